"""Products of quantized tensors against what they stand for, in float64, and integers exactly."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tessera as ts
from tessera.compile_gpu import LoweredGpu
from tessera.errors import DTypeError, ShapeError
from tessera.target.gpu import gpu
from tests.tolerance import assert_close

RNG = np.random.default_rng(1)
A = RNG.normal(size=(6, 32)).astype(np.float32)
B = RNG.normal(size=(32, 10)).astype(np.float32)

LEFT: list[tuple[str, dict[str, Any]]] = [
    ("int8", {}),
    ("int8", {"axis": 0}),
    ("int8", {"axis": 0, "symmetric": False}),
    ("uint8", {"symmetric": False}),
    ("int4", {"block": 16}),
    ("e4m3", {}),
    ("e5m2", {"axis": 0}),
    ("nvfp4", {}),
    ("", {}),
]
RIGHT: list[tuple[str, dict[str, Any]]] = [
    ("int8", {"axis": 1}),
    ("int8", {"axis": 1, "symmetric": False}),
    ("uint8", {}),
    ("int4", {"block": (8, 1), "symmetric": False}),
    ("int8", {"block": (0, 5)}),
    ("e4m3", {}),
    ("e4m3", {"block": (16, 5)}),
    ("nvfp4", {"axis": 0}),
    ("", {}),
]
PAIRS = [(a, b) for a, b in itertools.product(LEFT, RIGHT) if a[0] or b[0]]


def made(x: np.ndarray, how: tuple[str, dict[str, Any]]) -> Any:
    format, options = how
    return ts.quantize(x, format, **options) if format else ts.asarray(x)


def meant(x: Any) -> np.ndarray:
    """The numbers in float64."""
    if not isinstance(x, ts.QuantizedTensor):
        return np.asarray(x).astype(np.float64)
    q, s = np.asarray(x.values).astype(np.float64), np.asarray(x.scale).astype(np.float64)
    z = np.zeros_like(s) if x.zero_point is None else np.asarray(x.zero_point).astype(np.float64)
    if x.global_scale is not None:
        s = s * float(x.global_scale)
    repeat = np.ones(np.floor_divide(q.shape, s.shape))
    return (q - np.kron(z, repeat)) * np.kron(s, repeat)


@pytest.mark.parametrize("pair", PAIRS[::3], ids=str)
def test_products_compiled(pair: Any) -> None:
    a, b = made(A, pair[0]), made(B, pair[1])
    found = ts.jit(lambda a, b: a @ b)(a, b)
    assert_close(found, (meant(a) @ meant(b)).astype(np.float32), length=32)


def test_products_of_all_pairs() -> None:
    """One program of all of them, and its definition."""
    left, right = [made(A, how) for how in LEFT], [made(B, how) for how in RIGHT]

    def f(left: Any, right: Any) -> Any:
        pairs = itertools.product(left, right)
        return [
            a @ b
            for a, b in pairs
            if isinstance(a, ts.QuantizedTensor) or isinstance(b, ts.QuantizedTensor)
        ]

    found = iter(ts.jit(f)(left, right))
    for a, b in itertools.product(left, right):
        if isinstance(a, ts.QuantizedTensor) or isinstance(b, ts.QuantizedTensor):
            assert_close(next(found), (meant(a) @ meant(b)).astype(np.float32), length=32)


@given(
    st.integers(1, 20),
    st.integers(0, 40),
    st.integers(1, 20),
    st.sampled_from(["int4", "int8", "uint8"]),
    st.sampled_from(["int4", "int8", "uint8"]),
    st.integers(0, 2**32 - 1),
)
def test_sums_of_integers_are_exact(n: int, k: int, m: int, fa: str, fb: str, seed: int) -> None:
    """Zero points anywhere in the range: nothing is lost before the scale."""
    rng = np.random.default_rng(seed)
    ranges = {"int4": (-8, 8), "int8": (-128, 128), "uint8": (0, 256)}

    def tensor(format: str, shape: tuple[int, int], zeros: tuple[int, int]) -> Any:
        dtype = {"int4": ts.int4, "int8": ts.int8, "uint8": ts.uint8}[format].np
        q = rng.integers(*ranges[format], shape).astype(dtype)
        z = rng.integers(*ranges[format], zeros).astype(dtype)
        scale = np.ones(zeros, np.float32)
        return ts.QuantizedTensor(ts.asarray(q), ts.asarray(scale), ts.asarray(z), format=format)

    a, b = tensor(fa, (n, k), (n, 1)), tensor(fb, (k, m), (1, m))
    wanted = meant(a) @ meant(b)
    np.testing.assert_array_equal(np.asarray(a @ b).astype(np.float64), wanted)


def test_dtypes_of_results() -> None:
    w = ts.quantize(B, ts.int8, axis=1)
    for dtype in (ts.float32, ts.bfloat16, ts.float16, ts.float64):
        x = ts.asarray(A).astype(dtype)
        found = ts.jit(lambda x, w: x @ w)(x, w)
        assert found.dtype is dtype
        assert_close(found, (meant(x) @ meant(w)).astype(dtype.np), length=32)
    q = ts.quantize(A, ts.float8_e4m3fn)
    v = ts.quantize(B, ts.float8_e4m3fn)
    assert (q @ v).dtype is ts.float32
    found = ts.quantized_matmul(q, v, dtype=ts.bfloat16)
    assert_close(found, (meant(q) @ meant(v)).astype(ts.bfloat16.np), length=32)


def test_vectors_and_stacks() -> None:
    w = ts.quantize(B, ts.int8, axis=1)
    x = ts.asarray(A)
    assert_close(x[0] @ w, (meant(x)[0] @ meant(w)).astype(np.float32), length=32)
    assert_close(w @ ts.ones(10), meant(w).sum(1).astype(np.float32), length=10)
    stack = RNG.normal(size=(3, 32, 10)).astype(np.float32)
    many = ts.quantize(stack, ts.int8, axis=(0, 2))
    assert_close(x @ many, (A @ meant(many)).astype(np.float32), length=32)
    both = ts.quantize(np.stack([A] * 3), ts.int8, axis=(0, 1)) @ many
    assert both.shape == (3, 6, 10)
    found = ts.vmap(lambda w: x @ w)(many)
    assert_close(found, (A @ meant(many)).astype(np.float32), length=32)
    turned = ts.quantize(B.T.copy(), ts.int8, axis=0).mT
    assert_close(x @ turned, (meant(x) @ meant(w)).astype(np.float32), length=32)


def test_gradients() -> None:
    """Of an activation beside weights, and of the weights' scales."""
    w = ts.quantize(B, ts.int8, block=(16, 1))
    ct = RNG.normal(size=(6, 10)).astype(np.float32)
    g = ts.grad(lambda x: ts.sum((x @ w) * ct))(ts.asarray(A))
    assert_close(g, (ct @ meant(w).T).astype(np.float32), length=10)
    g = ts.grad(lambda s: ts.sum((A @ ts.QuantizedTensor(w.values, s)) * ct))(w.scale)
    products = (A.T @ ct) * np.asarray(w.values)
    assert_close(g, products.reshape(2, 16, 10).sum(1).astype(np.float32), length=100)


def test_fp8_scaling() -> None:
    """Products in fp8 with scales are right where unscaled casts overflow or vanish."""
    for size in (1e-6, 1.0, 1e6):
        a, b = A * np.float32(size), B * np.float32(1e3)
        scaled = ts.quantize(a, ts.float8_e4m3fn, axis=0) @ ts.quantize(b, ts.float8_e4m3fn, axis=1)
        wanted = a.astype(np.float64) @ b
        error = np.abs(np.asarray(scaled) - wanted).max() / np.abs(wanted).max()
        assert error < 2.0**-4
        plain = ts.asarray(a).astype(ts.float8_e4m3fn).astype(ts.float32) @ b
        if size != 1.0:
            assert not np.abs(np.asarray(plain) - wanted).max() < 0.5 * np.abs(wanted).max()


def test_no_array_is_dequantized_before_its_product() -> None:
    """Kernels pack operands and multiply; nothing else is stored."""
    a = RNG.normal(size=(64, 128)).astype(np.float32)
    b = RNG.normal(size=(128, 96)).astype(np.float32)
    f = ts.jit(lambda a, b: a @ b)
    for x, y in (
        (a, ts.quantize(b, ts.int8, axis=1)),
        (a, ts.quantize(b, ts.int4, block=(32, 1))),
        (ts.quantize(a, ts.int8, axis=0), ts.quantize(b, ts.int8, axis=1)),
        (ts.quantize(a, ts.float8_e4m3fn), ts.quantize(b, ts.float8_e4m3fn)),
    ):
        labels = [k.label for k in f.lower(x, y).kernels()]
        assert {label.split("_")[0] for label in labels} <= {"pack", "dot"}, labels
        assert sum(label.startswith("dot") for label in labels) == 1


@pytest.mark.unchecked
def test_gpus_multiply_the_values_themselves() -> None:
    """One kernel, with the instruction for the format; scales are in its epilogue."""
    x = RNG.normal(size=(256, 256)).astype(np.float32)
    f8, i8 = ts.quantize(x, "e4m3"), ts.quantize(x, ts.int8, axis=0)
    for a, b, word in (
        (i8, ts.quantize(x, ts.int8, axis=1), "s32.s8.s8.s32"),
        (f8, f8, "f32.e4m3.e4m3.f32"),
        (ts.quantize(x, "e5m2"), f8, "f32.bf16.bf16.f32"),
        (ts.asarray(x).astype(ts.bfloat16), ts.quantize(x, ts.int8, axis=1), "f32.bf16.bf16.f32"),
    ):
        lowered = LoweredGpu(ts.make_graph(lambda a, b: a @ b)(a, b), gpu("sm_90a"))
        assert len(lowered.kernels()) == 1
        assert f".{word}" in str(lowered.ptx)


def test_values_of_all_formats_are_exact_in_16_bits() -> None:
    for dtype, low, high in ((ts.int8, -128, 128), (ts.uint8, 0, 256), (ts.int4, -8, 8)):
        values = np.arange(low, high).astype(dtype.np).astype(np.float64)
        differences = np.arange(low - high + 1, high - low).astype(np.float64)
        for x in (values, differences):
            for wide in (ts.bfloat16, ts.float16):
                np.testing.assert_array_equal(x.astype(wide.np).astype(np.float64), x)
    for dtype in (ts.float8_e4m3fn, ts.float8_e5m2):
        codes = np.arange(256, dtype=np.uint8).view(dtype.np).astype(np.float64)
        codes = codes[np.isfinite(codes)]
        for wide in (ts.bfloat16, ts.float16):
            np.testing.assert_array_equal(codes.astype(wide.np).astype(np.float64), codes)


def test_calls_with_quantized_tensors_are_native() -> None:
    q = ts.quantize(B, ts.int8, axis=1)
    from tessera.runtime.dispatch.structure import structure_of  # not before `ts` is loaded

    found = structure_of((q, {"w": ts.quantize(B, "nvfp4", axis=0)}), {}, (), ())
    assert found is not None
    assert found.flatten is None


def test_what_does_not_fit() -> None:
    w = ts.quantize(B, ts.int8)
    with pytest.raises(ShapeError):
        ts.ones((4, 5)) @ w
    with pytest.raises(ShapeError):
        ts.quantize(ts.ones(3), ts.int8) @ ts.ones((3, 2))
    with pytest.raises(DTypeError):
        ts.asarray([[1] * 32]) @ w
