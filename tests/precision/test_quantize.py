"""Quantized tensors: the definition, its bounds, and gradients.

The oracle is written out here a second time, in float64 and by tables of the formats' values.
"""

from __future__ import annotations

import doctest
import importlib
import itertools
from functools import partial
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tessera as ts
from tessera.errors import DTypeError, OptionError, ShapeError
from tessera.graph.interp import run
from tessera.graph.ops.quantize import Dequantize, Format, Quantize, dequantize, quantize
from tessera.ir.core import Value
from tessera.ir.parser import parse_type
from tessera.ir.types import TensorType

RNG = np.random.default_rng(0)
FORMATS = ["int4", "int8", "uint8", "e4m3", "e5m2", "e2m1"]
INTEGERS = ["int4", "int8", "uint8"]


def every_value(format: str) -> np.ndarray:
    """All finite values of a format that a symmetric tensor uses, in order."""
    if format in ("int4", "int8"):
        top = 7 if format == "int4" else 127
        return np.arange(-top, top + 1).astype(np.float64)
    if format == "uint8":
        return np.arange(256).astype(np.float64)
    name = {"e4m3": "float8_e4m3fn", "e5m2": "float8_e5m2", "e2m1": "float4_e2m1fn"}[format]
    dtype = getattr(ml_dtypes, name)
    codes = np.arange(16 if format == "e2m1" else 256, dtype=np.uint8).view(dtype)
    found = codes.astype(np.float64)
    return np.unique(found[np.isfinite(found)])


def nearest(y: np.ndarray, format: str) -> np.ndarray:
    """The nearest value of each number; of two as near the even one: what NumPy's formats do."""
    table = every_value(format)
    y = np.clip(y, table[0], table[-1])
    if format in INTEGERS:
        return np.rint(y)
    name = {"e4m3": "float8_e4m3fn", "e5m2": "float8_e5m2", "e2m1": "float4_e2m1fn"}[format]
    return y.astype(np.float32).astype(getattr(ml_dtypes, name)).astype(np.float64)


def exact(x: Any) -> np.ndarray:
    return np.asarray(x).astype(np.float64)


@pytest.mark.parametrize("format", FORMATS)
def test_every_value_is_kept(format: str) -> None:
    table = every_value(format)
    for scale in (1.0, 2.0**-20):
        q = ts.quantize((table * scale).astype(np.float32), format, scale=scale)
        np.testing.assert_array_equal(exact(q.values), table)
        np.testing.assert_array_equal(exact(q.dequantize()), table * scale)


@pytest.mark.parametrize("format", FORMATS)
def test_rounding_between_all_neighbours(format: str) -> None:
    """Also halves, which go to the even one, and what is just beside them."""
    table = every_value(format)
    middle = ((table[:-1] + table[1:]) / 2).astype(np.float32)
    for x in (middle, np.nextafter(middle, np.inf), np.nextafter(middle, -np.inf)):
        q = ts.quantize(x, format, scale=1.0)
        np.testing.assert_array_equal(exact(q.values), nearest(x.astype(np.float64), format))


@pytest.mark.parametrize("format", FORMATS)
def test_saturation_and_what_is_no_number(format: str) -> None:
    table = every_value(format)
    x = np.asarray([np.inf, 1e30, -np.inf, -1e30, np.nan], np.float32)
    found = exact(ts.jit(lambda x: ts.quantize(x, format, scale=1.0).values)(x))
    np.testing.assert_array_equal(found[:4], [table[-1]] * 2 + [table[0]] * 2)
    assert found[4] == 0 if format in INTEGERS else np.isnan(found[4])


SHAPES: list[dict[str, Any]] = [
    {},
    {"axis": 0},
    {"axis": (0, 1)},
    {"axis": -1},
    {"block": 4},
    {"block": 3, "axis": 0},
    {"block": (3, 4)},
    {"block": (0, 4)},
]


CASES = [*[(f, {"block": 4}) for f in FORMATS], *[("int8", s) for s in SHAPES], ("e4m3", {})]


@pytest.mark.parametrize(("format", "options"), CASES, ids=str)
def test_the_definition_at_every_level(format: str, options: dict[str, Any]) -> None:
    """Interpreted, eager and compiled to the bit; and as written out here."""
    x = (RNG.normal(size=(6, 8)) * 3).astype(np.float32)
    if format == "uint8":
        x = np.abs(x)

    def f(x: Any) -> Any:
        q = ts.quantize(x, format, **options)
        return q.values, q.scale, q.dequantize(), q.dequantize(ts.bfloat16)

    graph = ts.make_graph(f)(x)
    assert "graph.quantize(" in str(graph)
    assert "graph.dequantize(" in str(graph)
    expected = [np.asarray(y) for y in run(graph, [x])]
    for results in (f(ts.asarray(x)), ts.jit(f)(x)):
        for got, want in zip(results, expected, strict=True):
            np.testing.assert_array_equal(exact(got), want.astype(np.float64))
    values, scale, back = (y.astype(np.float64) for y in expected[:3])
    wide = np.kron(scale, np.ones(np.floor_divide(x.shape, scale.shape)))
    # The quotient is rounded to float32 before it is rounded to the format.
    quotient = (x / wide.astype(np.float32)).astype(np.float64)
    np.testing.assert_array_equal(values, nearest(quotient, format))
    np.testing.assert_array_equal(back, (values * wide).astype(np.float32))
    # The largest magnitude of each block becomes the largest value.
    blocks = np.abs(x).max() if not options else None
    if blocks is not None:
        np.testing.assert_allclose(scale, blocks / every_value(format)[-1], rtol=1e-6)


@given(
    st.lists(st.floats(-1e6, 1e6, width=32), min_size=1, max_size=24),
    st.sampled_from(["int4", "int8"]),
    st.booleans(),
)
def test_the_error_is_half_a_step(xs: list[float], format: str, symmetric: bool) -> None:
    x = np.asarray(xs, np.float32)
    q = ts.quantize(x, format, symmetric=symmetric)
    step = float(np.asarray(q.scale)[0])
    error = np.abs(exact(q.dequantize()) - x)
    # The zero point is rounded as well, which moves the ends of the range by half a step.
    bound = step * (0.5 if symmetric else 1.0)
    largest = float(np.max(np.abs(x)))
    assert error.max() <= bound + 1e-6 * largest
    if not symmetric:
        padded = ts.quantize(np.asarray([*xs, 0.0], np.float32), format, symmetric=False)
        assert exact(padded.dequantize())[-1] == 0


@given(
    st.lists(st.floats(-1e6, 1e6, width=32), min_size=1, max_size=24), st.sampled_from(FORMATS)
)
def test_quantizing_again_changes_nothing(xs: list[float], format: str) -> None:
    x = np.asarray(xs, np.float32)
    q = ts.quantize(x, format)
    again = ts.quantize(q.dequantize(), format, scale=q.scale)
    np.testing.assert_array_equal(exact(again.values), exact(q.values))


@given(st.lists(st.floats(-400, 400, width=32), min_size=1, max_size=24))
def test_the_relative_error_of_floats_is_half_a_unit(xs: list[float]) -> None:
    x = np.asarray(xs, np.float32)
    for format, digits, small in (("e4m3", 3, 2.0**-10), ("e5m2", 2, 2.0**-17)):
        error = np.abs(exact(ts.quantize(x, format, scale=1.0).dequantize()) - x)
        assert (error <= np.maximum(np.abs(x) * 2.0 ** -(digits + 1), small)).all()


def test_zero_and_tiny_arrays() -> None:
    for x in (np.zeros((2, 3), np.float32), np.full((2, 3), 1e-42, np.float32)):
        for format in FORMATS:
            q = ts.quantize(x, format, axis=0)
            assert np.isfinite(exact(q.dequantize())).all()
            assert np.abs(exact(q.dequantize()) - x).max() <= 1e-38
    assert ts.quantize(np.zeros((0, 4), np.float32), ts.int8, axis=1).values.shape == (0, 4)
    assert ts.quantize(np.float32(3), ts.int8).dequantize() == 3


def test_nvfp4_has_two_levels_of_scales() -> None:
    x = (RNG.normal(size=(4, 64)) * np.exp(RNG.normal(size=(4, 1)) * 2)).astype(np.float32)
    q = ts.quantize(x, "nvfp4")
    assert q.scale.shape == (4, 4)
    assert q.scale.dtype is ts.float8_e4m3fn
    assert q.block == (1, 16)
    assert set(np.unique(np.abs(exact(q.values)))) <= {0, 0.5, 1, 1.5, 2, 3, 4, 6}
    # As NVFP4 says it: the global scale makes the largest block scale 448.
    top = np.abs(x).max()
    factor = np.float32(top) / np.float32(6 * 448)
    np.testing.assert_array_equal(np.asarray(q.global_scale), factor)
    assert exact(q.scale).max() == 448
    blocks = x.reshape(4, 4, 16)
    scales = (np.abs(blocks).max(-1) / np.float32(6) / factor).astype(ml_dtypes.float8_e4m3fn)
    np.testing.assert_array_equal(exact(q.scale), scales.astype(np.float64))
    full = (scales.astype(np.float32) * factor)[..., None]
    codes = (blocks / full).clip(-6, 6).astype(ml_dtypes.float4_e2m1fn).astype(np.float32)
    np.testing.assert_array_equal(exact(q.dequantize()), (codes * full).reshape(4, 64))


def test_transforms() -> None:
    x = RNG.normal(size=(5, 6, 8)).astype(np.float32)

    def f(x: Any) -> Any:
        return ts.quantize(x, ts.int8, axis=0)

    rows = ts.jit(ts.vmap(f))(x)
    assert isinstance(rows, ts.QuantizedTensor)
    one = [f(each) for each in x]
    np.testing.assert_array_equal(exact(rows.values), np.stack([exact(q.values) for q in one]))
    # Slices of a stack are quantized tensors again.
    total, back = ts.jit(
        lambda q: ts.scan(lambda c, q: (c + ts.sum(q.dequantize()), q.dequantize()), 0.0, q)
    )(rows)
    np.testing.assert_array_equal(exact(back), exact(rows.dequantize()))
    found = ts.vmap(lambda q: q.dequantize(), in_axes=0)(rows)
    np.testing.assert_array_equal(exact(found), exact(rows.dequantize()))
    np.testing.assert_allclose(float(total), exact(back).sum(), rtol=1e-3)


# --- gradients --------------------------------------------------------------------------------


@pytest.mark.parametrize("format", FORMATS)
def test_a_gradient_goes_straight_through(format: str) -> None:
    table = every_value(format)
    low, high = table[0], table[-1]
    rounds = high + (high - table[-2]) / 2
    x = np.asarray([low / 2, 0.3, high, rounds * 0.999, rounds * 1.01, low * 1.3], np.float32)
    wanted = [1, 1, 1, 1, 0, 1 if low == 0 else 0]

    def f(x: Any) -> Any:
        return ts.fake_quantize(x, format, scale=0.5)

    x *= 0.5
    ct = np.arange(1, 7).astype(np.float32)
    for make in (lambda g: g, ts.jit):
        g = make(ts.grad(lambda x: ts.sum(f(x) * ct)))(ts.asarray(x))
        np.testing.assert_array_equal(np.asarray(g), wanted * ct)
        _, t = make(lambda x, t: ts.jvp(f, (x,), (t,)))(ts.asarray(x), ts.asarray(ct))
        np.testing.assert_array_equal(np.asarray(t), wanted * ct)
    plain = ts.quantize(x, format, scale=0.5).dequantize()
    np.testing.assert_array_equal(exact(f(ts.asarray(x))), exact(plain))


def test_a_scale_from_the_array_clips_nothing() -> None:
    x = RNG.normal(size=(16, 32)).astype(np.float32)
    for format, options in itertools.product(FORMATS, ({}, {"block": 16})):
        if format == "uint8":
            x = np.abs(x)
        f = partial(ts.fake_quantize, dtype=format, **options)
        g = ts.grad(lambda x, f=f: ts.sum(f(x)))(ts.asarray(x))
        np.testing.assert_array_equal(np.asarray(g), np.ones_like(x))


def test_a_gradient_by_the_users_rule() -> None:
    x = ts.asarray([-9.0, 0.2, 3.0])

    def everywhere(x: Any, low: Any, high: Any) -> float:
        return 1.0

    def soft(x: Any, low: Any, high: Any) -> Any:
        return ts.where(x < low, 0.25, 1.0)

    for rule, wanted in ((everywhere, [1, 1, 1]), (soft, [0.25, 1, 1])):
        fake = partial(ts.fake_quantize, dtype="int4", scale=0.5, gradient=rule)
        f = ts.jit(lambda x, fake=fake: ts.sum(fake(x)))
        np.testing.assert_array_equal(np.asarray(ts.grad(f)(x)), np.float32(wanted))


def test_the_gradient_of_a_learned_step() -> None:
    """As Esser et al. define it, for a scale per row; clipped elements give the end."""
    x = (RNG.normal(size=(3, 8)) * 4).astype(np.float32)
    s = np.asarray([[0.5], [0.25], [1.0]], np.float32)
    z = np.asarray([[1], [0], [-2]], np.int8)
    ct = RNG.normal(size=x.shape).astype(np.float32)
    for zero in (None, z):
        low, high = (-7, 7) if zero is None else (-8, 7)
        origin = 0 if zero is None else zero.astype(np.float64)

        given = None if zero is None else zero.astype(ml_dtypes.int4)

        def f(s: Any, given: Any = given) -> Any:
            return ts.sum(ts.fake_quantize(x, ts.int4, scale=s, zero_point=given) * ct)

        y = x / s + origin
        inside = (y >= low - 0.5) & (y <= high + 0.5)
        q = np.clip(np.rint(x / s) + origin, low, high) - origin
        wanted = np.sum((q - inside * (x / s)) * ct, axis=1, keepdims=True)
        found = np.asarray(ts.grad(f)(s))
        np.testing.assert_allclose(found, wanted, rtol=2e-5, atol=2e-5)


def test_dequantize_is_linear_in_its_scale() -> None:
    q = ts.quantize(RNG.normal(size=(4, 6)).astype(np.float32), ts.int8, block=(2, 3))
    ct = RNG.normal(size=(4, 6)).astype(np.float32)

    def f(scale: Any) -> Any:
        again = ts.QuantizedTensor(q.values, scale, format="int8")
        return ts.sum(again.dequantize() * ct)

    wanted = (exact(q.values) * ct).reshape(2, 2, 2, 3).sum((1, 3))
    # Terms of both signs: what they lose is as much as the largest of them loses.
    np.testing.assert_allclose(np.asarray(ts.grad(f)(q.scale)), wanted, rtol=1e-5, atol=1e-4)


# --- what the ops refuse ----------------------------------------------------------------------


def t(text: str) -> Value:
    found = parse_type(text)
    assert isinstance(found, TensorType)
    return Value(found)


def op(x: str, scale: str, block: tuple[int, ...], zero: str = "", format: Any = "int8") -> Any:
    zeros = (t(zero),) if zero else ()
    return Quantize(t(x), t(scale), zeros, format=Format(format), block=block)


def test_the_verifier() -> None:
    op("f32[4, S]", "f32[4, 1]", (1, 0), "i8[4, 1]")
    with pytest.raises(ShapeError, match="dim 0 has 4 elements and 3 scales"):
        op("f32[4, 8]", "f32[3, 1]", (1, 0))
    with pytest.raises(ShapeError, match="dim 1 has 8 elements and 2 scales"):
        op("f32[4, 8]", "f32[4, 2]", (1, 3))
    with pytest.raises(ShapeError, match="dim 1 has 8 elements and 2 scales"):
        op("f32[4, 8]", "f32[4, 2]", (1, 0))
    with pytest.raises(ShapeError, match="dim 0 has 4 elements and 4 scales"):
        op("f32[4, 8]", "f32[4, 1]", (-1, 0))
    with pytest.raises(ShapeError, match="their ranks are 1 and 2"):
        op("f32[4, 8]", "f32[4]", (1, 0))
    with pytest.raises(ShapeError, match="one entry per dim"):
        op("f32[4, 8]", "f32[4, 1]", (1,))
    with pytest.raises(DTypeError, match="a scale is a floating-point number"):
        op("f32[4]", "i32[1]", (0,))
    with pytest.raises(DTypeError, match="-128 to 127, and has their dtype"):
        op("f32[4]", "f32[1]", (0,), "i32[1]")
    with pytest.raises(ShapeError, match="the zero point is i8"):
        op("f32[4, 8]", "f32[4, 1]", (1, 0), "i8[1, 1]")
    with pytest.raises(DTypeError, match="formats of floating-point numbers are symmetric"):
        op("f32[4]", "f32[1]", (0,), "f8e4m3fn[1]", "e4m3")
    with pytest.raises(DTypeError, match="what is quantized are floating-point numbers"):
        op("i32[4]", "f32[1]", (0,))
    with pytest.raises(DTypeError, match="values of int8 are kept in i8"):
        Dequantize(
            t("i32[4]"), t("f32[1]"), (), format=Format.INT8, block=(0,), dtype=ts.float32
        )
    with pytest.raises(DTypeError, match="stand for floating-point numbers"):
        Dequantize(t("i8[4]"), t("f32[1]"), (), format=Format.INT8, block=(0,), dtype=ts.int32)


def test_options_that_exclude_each_other() -> None:
    x = ts.ones((4, 8))
    for options, error in (
        ({"block": (2, 2), "axis": 0}, OptionError),
        ({"zero_point": 3}, OptionError),
        ({"scale": 1.0, "zero_point": 200}, DTypeError),
        ({"block": 3}, ShapeError),
        ({"block": (2, 2, 2)}, ShapeError),
    ):
        with pytest.raises(error):
            ts.quantize(x, ts.int8, **options)
    with pytest.raises(OptionError):
        ts.quantize(x, "e4m3", symmetric=False)
    with pytest.raises(OptionError):
        ts.quantize(x, "nvfp4", scale=1.0)
    with pytest.raises(DTypeError):
        ts.quantize(x, ts.int32)
    with pytest.raises(DTypeError):
        ts.quantize(x, "e3m4")
    with pytest.raises(DTypeError):
        ts.quantize(ts.asarray([1, 2]), ts.int8)


def test_ops_directly() -> None:
    """Where both an array and its scales are symbols of a compiled program."""
    x = RNG.normal(size=(4, 8)).astype(np.float64)
    s = np.full((4, 1), 0.1)

    def f(x: Any, s: Any) -> Any:
        values = quantize(x, s, None, Format.INT8, (1, 0))
        return dequantize(values, s, None, Format.INT8, (1, 0), ts.float64)

    found = ts.jit(f)(ts.asarray(x), ts.asarray(s))
    np.testing.assert_array_equal(np.asarray(found), np.clip(np.rint(x / s), -127, 127) * s)


@pytest.mark.parametrize("name", ["tensors", "products"])
def test_examples(name: str) -> None:
    module = importlib.import_module(f"tessera.precision.{name}")
    failed, count = doctest.testmod(module)
    assert failed == 0
    assert count
