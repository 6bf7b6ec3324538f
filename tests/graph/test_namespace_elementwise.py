"""Elementwise functions and operators, against NumPy: dtypes, shapes, promotion, broadcasting."""

from __future__ import annotations

import operator
import traceback
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tessera as ts
from tests.graph.namespace_cases import (
    ALL,
    COMPLEX,
    FLOATS,
    INTEGERS,
    NUMERIC,
    SHAPES,
    dtype_of,
    engine,
    host,
    same,
    sample,
)

__all__ = ["engine"]

REAL = [*INTEGERS, *FLOATS]
INEXACT = [*FLOATS, *COMPLEX]

# Function, NumPy's, the dtypes it is defined on, the lower end of samples.
UNARY: list[tuple[str, Any, list[str], float]] = [
    ("abs", np.abs, NUMERIC, -9),
    ("negative", np.negative, NUMERIC, -9),
    ("positive", np.positive, NUMERIC, -9),
    ("sign", np.sign, NUMERIC, -9),
    ("square", np.square, NUMERIC, -9),
    ("reciprocal", np.reciprocal, INEXACT, 0.5),
    ("floor", np.floor, FLOATS, -9),
    ("ceil", np.ceil, FLOATS, -9),
    ("trunc", np.trunc, FLOATS, -9),
    ("round", np.round, INEXACT, -9),
    ("exp", np.exp, INEXACT, -9),
    ("expm1", np.expm1, INEXACT, -9),
    ("exp2", np.exp2, FLOATS, -9),
    ("log", np.log, INEXACT, 0.5),
    ("log1p", np.log1p, INEXACT, 0.5),
    ("log2", np.log2, INEXACT, 0.5),
    ("log10", np.log10, INEXACT, 0.5),
    ("sqrt", np.sqrt, INEXACT, 0),
    ("cbrt", np.cbrt, FLOATS, -9),
    ("sin", np.sin, INEXACT, -9),
    ("cos", np.cos, INEXACT, -9),
    ("tan", np.tan, INEXACT, -9),
    ("sinh", np.sinh, INEXACT, -9),
    ("cosh", np.cosh, INEXACT, -9),
    ("tanh", np.tanh, INEXACT, -9),
    ("atan", np.arctan, INEXACT, -9),
    ("asinh", np.arcsinh, INEXACT, -9),
    ("acosh", np.arccosh, INEXACT, 1.5),
    ("isnan", np.isnan, NUMERIC, -9),
    ("isinf", np.isinf, NUMERIC, -9),
    ("isfinite", np.isfinite, NUMERIC, -9),
    ("signbit", np.signbit, FLOATS, -9),
    ("logical_not", np.logical_not, ALL, -9),
    ("bitwise_invert", np.invert, ["bool", *INTEGERS], -9),
    ("conj", np.conj, COMPLEX, -9),
    ("real", np.real, COMPLEX, -9),
    ("imag", np.imag, COMPLEX, -9),
]

BINARY: list[tuple[str, Any, list[str], float]] = [
    ("add", np.add, NUMERIC, -9),
    ("subtract", np.subtract, NUMERIC, -9),
    ("multiply", np.multiply, NUMERIC, -9),
    ("divide", np.divide, INEXACT, 0.5),
    ("floor_divide", np.floor_divide, REAL, 1),
    ("remainder", np.remainder, REAL, 1),
    ("maximum", np.maximum, REAL, -9),
    ("minimum", np.minimum, REAL, -9),
    ("hypot", np.hypot, FLOATS, -9),
    ("logaddexp", np.logaddexp, FLOATS, -9),
    ("atan2", np.arctan2, FLOATS, -9),
    ("copysign", np.copysign, FLOATS, -9),
    ("equal", np.equal, ALL, -9),
    ("not_equal", np.not_equal, ALL, -9),
    ("less", np.less, ["bool", *REAL], -9),
    ("less_equal", np.less_equal, ["bool", *REAL], -9),
    ("greater", np.greater, ["bool", *REAL], -9),
    ("greater_equal", np.greater_equal, ["bool", *REAL], -9),
    ("logical_and", np.logical_and, ALL, -9),
    ("logical_or", np.logical_or, ALL, -9),
    ("logical_xor", np.logical_xor, ALL, -9),
    ("bitwise_and", np.bitwise_and, ["bool", *INTEGERS], -9),
    ("bitwise_or", np.bitwise_or, ["bool", *INTEGERS], -9),
    ("bitwise_xor", np.bitwise_xor, ["bool", *INTEGERS], -9),
]


def reference(fn: Any, name: str, *arrays: np.ndarray) -> np.ndarray:
    """NumPy's result; that of float64 where it lacks the dtype."""
    with np.errstate(all="ignore"):
        if name != "bfloat16":
            return np.asarray(fn(*arrays))
        wide = np.asarray(fn(*[x.astype(np.float64) for x in arrays]))
        return wide if wide.dtype == np.bool_ else wide.astype(dtype_of(name))


@pytest.mark.parametrize(("name", "numpy", "dtypes", "low"), UNARY, ids=[r[0] for r in UNARY])
def test_unary(name: str, numpy: Any, dtypes: list[str], low: float) -> None:
    for dtype in dtypes:
        for shape in ((), (0,), (3, 5)):
            x = sample(dtype, shape, low=low)
            same(getattr(ts, name)(ts.asarray(x)), reference(numpy, dtype, x))


@pytest.mark.parametrize(("name", "numpy", "dtypes", "low"), BINARY, ids=[r[0] for r in BINARY])
def test_binary(name: str, numpy: Any, dtypes: list[str], low: float) -> None:
    for dtype in dtypes:
        x, y = sample(dtype, (3, 1), 1), sample(dtype, (4,), 2, low)
        if low > 0:
            y = np.maximum(np.abs(y), 1).astype(y.dtype)
        found = getattr(ts, name)(ts.asarray(x), ts.asarray(y))
        same(found, reference(numpy, dtype, x, y))


@pytest.mark.parametrize("name", ["bitwise_left_shift", "bitwise_right_shift"])
@pytest.mark.parametrize("dtype", INTEGERS)
def test_shifts(name: str, dtype: str) -> None:
    x, by = sample(dtype, (7,)), np.abs(sample(dtype, (7,), 1)) % 7
    numpy = getattr(np, name)
    same(getattr(ts, name)(ts.asarray(x), ts.asarray(by)), numpy(x, by))


@pytest.mark.parametrize("shape", SHAPES)
def test_shapes_of_one_and_two_operands(shape: tuple[int, ...]) -> None:
    x = sample("float32", shape)
    same(ts.exp(ts.asarray(x)), np.exp(x))
    same(ts.asarray(x) + ts.asarray(x), x + x)
    same(ts.asarray(x) * 2, x * np.float32(2))


@pytest.mark.parametrize(
    ("a", "b"),
    [((3,), ()), ((3, 1), (1, 4)), ((2, 1, 3), (5, 1)), ((0,), (1,)), ((1, 0), (3, 1)), ((), ())],
)
def test_broadcasting(a: tuple[int, ...], b: tuple[int, ...]) -> None:
    x, y = sample("float64", a), sample("float64", b, 1)
    same(ts.asarray(x) - ts.asarray(y), x - y)
    same(ts.where(ts.asarray(x) > 0, ts.asarray(x), ts.asarray(y)), np.where(x > 0, x, y))


SPECIAL = [0.0, -0.0, 1.0, -1.0, np.inf, -np.inf, np.nan, 1e-40, 3.4e38, 2.5, -2.5, 0.5]


@pytest.mark.parametrize(
    "name",
    ["add", "subtract", "multiply", "divide", "maximum", "minimum", "atan2", "hypot", "copysign"],
)
def test_special_values_of_two(name: str) -> None:
    x = np.asarray(SPECIAL, np.float32)[:, None]
    y = np.asarray(SPECIAL, np.float32)
    numpy = {"atan2": np.arctan2}.get(name) or getattr(np, name)
    with np.errstate(all="ignore"):
        same(getattr(ts, name)(ts.asarray(x), ts.asarray(y)), numpy(x, y))


@pytest.mark.parametrize(
    ("name", "numpy"),
    [
        ("exp", np.exp), ("log", np.log), ("sqrt", np.sqrt), ("abs", np.abs), ("sign", np.sign),
        ("round", np.round), ("floor", np.floor), ("isnan", np.isnan), ("isinf", np.isinf),
        ("isfinite", np.isfinite), ("signbit", np.signbit), ("tanh", np.tanh), ("atan", np.arctan),
        ("log1p", np.log1p), ("expm1", np.expm1), ("ceil", np.ceil), ("trunc", np.trunc),
    ],
)  # fmt: skip
def test_special_values(name: str, numpy: Any) -> None:
    x = np.asarray(SPECIAL, np.float32)
    with np.errstate(all="ignore"):
        same(getattr(ts, name)(ts.asarray(x)), numpy(x))


def test_integers_become_the_default_float() -> None:
    x = ts.asarray([1, 4, 9])
    assert ts.sqrt(x).dtype is ts.float32
    assert (x / 2).dtype is ts.float32
    assert (x / x).dtype is ts.float32
    assert ts.exp(ts.asarray([True])).dtype is ts.float32
    same(ts.sqrt(x), np.asarray([1, 2, 3], np.float32))


def test_rounding_of_integers_is_the_identity() -> None:
    x = ts.asarray([1, 2, 3], dtype=ts.int16)
    for fn in (ts.floor, ts.ceil, ts.trunc, ts.round):
        assert fn(x) is x


@pytest.mark.parametrize("a", ALL)
@pytest.mark.parametrize("b", ALL)
def test_promotion_of_two_arrays(a: str, b: str) -> None:
    x, y = ts.ones((2,), dtype=getattr(ts, a)), ts.ones((2,), dtype=getattr(ts, b))
    if {"uint64"} < {a, b} and any(d.startswith("int") for d in (a, b)):
        with pytest.raises(TypeError, match=r"multiply: got .* do not combine"):
            ts.multiply(x, y)
        return
    wanted = ts.result_type(x, y)
    assert wanted is ts.result_type(x.dtype, y.dtype)
    assert ts.equal(x, y).dtype is ts.bool
    if not wanted.is_bool:
        assert (x * y).dtype is wanted
    kinds = {x.dtype.kind, y.dtype.kind}
    if len(kinds) == 1 and "bfloat16" not in (a, b):
        assert wanted == np.result_type(dtype_of(a), dtype_of(b))


@pytest.mark.parametrize("dtype", NUMERIC)
def test_python_numbers_are_weak(dtype: str) -> None:
    x = ts.ones((2,), dtype=getattr(ts, dtype))
    for found in (x + 1, 1 + x, x * True, x - 1, 2 * x):
        assert found.dtype is x.dtype
    wanted = x.dtype if x.dtype.is_inexact else ts.float32
    assert (x * 1.5).dtype is wanted
    assert (1.5 * x).dtype is wanted
    assert (x == 1).dtype is ts.bool


def test_numpy_scalars_are_not_weak() -> None:
    x = ts.ones((2,), dtype=ts.float32)
    assert (x + np.float64(1)).dtype is ts.float64
    assert (np.float64(1) + x).dtype is ts.float64
    assert (x + np.ones(2)).dtype is ts.float64
    assert isinstance(np.ones(2, np.float32) * x, ts.Array)


def test_a_number_that_does_not_fit_is_refused() -> None:
    x = ts.ones((2,), dtype=ts.uint8)
    with pytest.raises(TypeError, match="does not fit into uint8"):
        _ = x + 256
    with pytest.raises(TypeError, match="does not fit into uint8"):
        _ = x > -1


OPERATORS = [
    operator.add, operator.sub, operator.mul, operator.truediv, operator.floordiv, operator.mod,
    operator.pow, operator.lt, operator.le, operator.gt, operator.ge, operator.eq, operator.ne,
]  # fmt: skip


@pytest.mark.parametrize("op", OPERATORS)
def test_operators(op: Any) -> None:
    x, y = sample("float32", (4, 3), 1, 1), np.abs(sample("float32", (4, 3), 2, 1)) + 1
    same(op(ts.asarray(x), ts.asarray(y)), op(x, y), rtol=1e-5)
    same(op(ts.asarray(x), 2), op(x, np.float32(2)), rtol=1e-5)
    same(op(3, ts.asarray(y)), op(np.float32(3), y), rtol=1e-5)
    same(op(ts.asarray(x), y), op(x, y), rtol=1e-5)
    same(op(x, ts.asarray(y)), op(x, y), rtol=1e-5)


@pytest.mark.parametrize(
    "op", [operator.and_, operator.or_, operator.xor, operator.lshift, operator.rshift]
)
def test_bit_operators(op: Any) -> None:
    x, y = np.asarray([5, 9, 2]), np.asarray([1, 2, 3])
    same(op(ts.asarray(x), ts.asarray(y)), op(x, y))
    same(op(ts.asarray(x), 2), op(x, 2))
    same(op(7, ts.asarray(y)), op(7, y))


def test_unary_operators() -> None:
    x = ts.asarray([1, -2, 3])
    same(-x, [-1, 2, -3], "int64")
    same(abs(x), [1, 2, 3], "int64")
    same(+x, [1, -2, 3], "int64")
    same(~x, [-2, 1, -4], "int64")
    same(~(x > 0), [False, True, False], "bool")


def test_divmod() -> None:
    q, r = divmod(ts.asarray([7, -7]), 2)
    same(q, [3, -4], "int64")
    same(r, [1, 1], "int64")


def test_operators_with_strangers() -> None:
    x = ts.ones(2)
    with pytest.raises(TypeError, match="add: got a str beside an array"):
        _ = x + "a"
    with pytest.raises(TypeError, match="less: got None beside an array"):
        _ = x < None
    with pytest.raises(TypeError, match="unsupported operand"):
        _ = x + object()
    with pytest.raises(TypeError, match="add: got a list beside an array"):
        _ = operator.add(x, [1, 2])
    assert (x == None) is False  # noqa: E711
    assert (x != "a") is True


@pytest.mark.parametrize("exponent", [0, 1, 2, 3, 4, 5, -1, -2, 0.5, 1.5, 2.0])
@pytest.mark.parametrize("dtype", ["float32", "float64", "int64", "complex64"])
def test_powers(exponent: float, dtype: str) -> None:
    x = np.maximum(np.abs(sample(dtype, (5,))), 1).astype(dtype)
    if dtype == "int64" and exponent != int(exponent):
        return
    if dtype == "int64":
        wanted = np.asarray([int(float(v) ** exponent) for v in x])
        if isinstance(exponent, float):
            same(ts.asarray(x) ** exponent, wanted.astype(np.float32), "float32", 1e-5)
        else:
            same(ts.asarray(x) ** exponent, wanted)
        return
    same(ts.asarray(x) ** exponent, (x**exponent).astype(dtype), rtol=1e-5)


def test_power_with_array_exponent_and_base() -> None:
    x = ts.asarray([1.0, 2.0, 3.0])
    same(2**x, [2, 4, 8], "float32")
    same(x**x, [1, 4, 27], "float32", 1e-5)
    same(ts.pow(2, x), [2, 4, 8], "float32")


@pytest.mark.parametrize("dtype", REAL)
def test_clip(dtype: str) -> None:
    x = sample(dtype, (6,))
    wanted = np.clip(x.astype(np.float64), 2, 5).astype(x.dtype)
    same(ts.clip(ts.asarray(x), 2, 5), wanted)
    same(ts.clip(ts.asarray(x), ts.asarray(2, dtype=getattr(ts, dtype)), 5), wanted)


def test_clip_with_one_end_and_broadcasting() -> None:
    x = sample("float32", (3, 4))
    same(ts.clip(ts.asarray(x), min=0), np.clip(x, 0, None))
    same(ts.clip(ts.asarray(x), max=1), np.clip(x, None, 1))
    same(ts.clip(ts.asarray(x)), x)
    low = sample("float32", (3, 1), 5)
    same(ts.clip(ts.asarray(x), ts.asarray(low), 9), np.clip(x, low, np.float32(9)))
    assert np.isnan(host(ts.clip(ts.asarray([np.nan]), 0, 1))).all()


def test_activations() -> None:
    x = np.asarray([-100.0, -1.0, 0.0, 2.0, 100.0, np.nan], np.float32)
    same(ts.relu(ts.asarray(x)), np.maximum(x, 0))
    same(ts.sigmoid(ts.asarray(x)), 1 / (1 + np.exp(-x.astype(np.float64))), "float32")
    same(ts.relu(ts.asarray([-1, 2])), [0, 2], "int64")
    with pytest.raises(TypeError, match="relu: got bool"):
        ts.relu(ts.asarray([True]))


def test_special_functions() -> None:
    scipy = pytest.importorskip("scipy.special")
    x = np.asarray([-0.75, -0.25, 0.1, 0.5, 0.9])
    same(ts.erf(ts.asarray(x)), scipy.erf(x))
    same(ts.erfc(ts.asarray(x)), scipy.erfc(x))
    same(ts.erfinv(ts.asarray(x)), scipy.erfinv(x), rtol=1e-12)
    same(ts.lgamma(ts.asarray(x + 2)), scipy.gammaln(x + 2), rtol=1e-12)
    same(ts.digamma(ts.asarray(x + 2)), scipy.digamma(x + 2), rtol=1e-12)
    same(ts.rsqrt(ts.asarray(x + 2)), 1 / np.sqrt(x + 2))


def test_nextafter() -> None:
    x = np.asarray([0.0, 1.0, -1.0, np.inf], np.float32)
    same(ts.nextafter(ts.asarray(x), ts.asarray(2.0)), np.nextafter(x, np.float32(2)), rtol=0)


def test_real_and_imag_of_real_numbers() -> None:
    x = ts.asarray([1.0, 2.0])
    assert ts.real(x) is x
    assert ts.conj(x) is x
    same(ts.imag(x), [0, 0], "float32")


def test_scalars_alone() -> None:
    assert float(ts.sqrt(4.0)) == 2
    assert ts.add(1, 2).dtype is ts.int64
    assert float(ts.maximum(1, 2.5)) == 2.5


# --- errors -----------------------------------------------------------------------------------


def test_shapes_that_do_not_fit() -> None:
    x, y = ts.ones((3, 4)), ts.ones((2, 4))
    with pytest.raises(ValueError, match=r"add: got f32\[3, 4\] and f32\[2, 4\]") as caught:
        _ = x + y
    text = str(caught.value)
    assert "dim -2: 3 and 2" in text
    assert "test_namespace_elementwise.py" in text
    assert "_ = x + y" in text
    assert "^" in text
    assert "rule:" in text
    assert "fix:" in text
    own = str(Path(ts.__file__).parent)
    entries = traceback.extract_tb(caught.value.__traceback__)
    assert [e.filename for e in entries if e.filename.startswith(own)] == []


def test_wrong_dtypes() -> None:
    mask = ts.asarray([True, False])
    with pytest.raises(TypeError, match="add: bool operands"):
        _ = mask + mask
    with pytest.raises(TypeError, match="less: complex64"):
        _ = ts.asarray([1j]) < ts.asarray([2j])
    with pytest.raises(TypeError, match="and"):
        _ = ts.ones(2) & ts.ones(2)
    with pytest.raises(TypeError, match="floor: got c64"):
        ts.floor(ts.asarray([1j]))


def test_arguments_that_are_no_arrays() -> None:
    with pytest.raises(TypeError, match="exp: got a value of type list"):
        ts.exp([1.0, 2.0])
    with pytest.raises(TypeError, match="add: got NoneType"):
        ts.add(ts.ones(2), None)
    with pytest.raises(TypeError, match=r"takes 1 positional argument|positional argument"):
        ts.exp()
