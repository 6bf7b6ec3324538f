"""Reductions: values against NumPy, accumulators, errors, derivatives, batching."""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import tessera.graph.ops.cumulative  # noqa: F401 -- derivatives of products bind its ops
from tessera.dtypes import (
    ALL,
    DType,
    bfloat16,
    bool_,
    dtype_of,
    float16,
    float32,
    float64,
    int8,
    int32,
    int64,
)
from tessera.errors import AxisError, DTypeError, ShapeError
from tessera.graph.array import Array
from tessera.graph.interp import run
from tessera.graph.ops import elementwise as e
from tessera.graph.ops import reduce as r
from tessera.graph.transforms.differentiate import jvp
from tessera.ir.convert import widen
from tessera.ir.core import Value
from tessera.ir.intexpr import sym
from tessera.ir.types import TensorType
from tests.graph.rules import (
    check_batch,
    check_derivatives,
    check_func,
    numpy_engine,
    same,
    tangent,
    trace,
)

SHAPES = [(), (1,), (7,), (3, 5), (2, 3, 4), (2, 0, 3)]
S = sym("S")


@pytest.fixture(autouse=True)
def _engine() -> Any:
    with numpy_engine():
        yield


def subsets(rank: int) -> list[tuple[int, ...]]:
    return [c for n in range(1, rank + 1) for c in combinations(range(rank), n)]


def make(cls: type[Any], type: TensorType, **attrs: Any) -> Any:
    return cls(Value(type), **attrs)


def whole(rng: np.random.Generator, shape: tuple[int, ...], dtype: DType) -> np.ndarray:
    """Small whole numbers, which no accumulator rounds."""
    low = 0 if dtype.kind.value == "uint" else -2
    return rng.integers(low, 3, shape).astype(dtype.np)


# --- values -----------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [d for d in ALL if not d.is_bool], ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_sums_and_products(dtype: DType, shape: tuple[int, ...]) -> None:
    x = whole(np.random.default_rng(0), shape, dtype)
    wide = np.complex128 if dtype.is_complex else np.float64
    for axes in subsets(len(shape)):
        for fn, reference in ((r.sum_, np.sum), (r.prod_, np.prod)):
            found = fn(Array(x), axes)
            expected = reference(x.astype(wide), axis=axes)
            limit = {"i4": 8, "f8e4m3fn": 448}.get(dtype.name, np.inf)
            assert found.dtype is dtype
            assert found.host.shape == expected.shape
            if np.abs(expected).max(initial=0) < limit:
                np.testing.assert_allclose(found.host.astype(wide), expected)


@pytest.mark.parametrize(
    "dtype", [d for d in ALL if not d.is_bool and not d.is_complex], ids=str
)
def test_extrema(dtype: DType) -> None:
    rng = np.random.default_rng(1)
    for shape in ((1,), (7,), (3, 5), (2, 3, 4), (0, 3)):
        x = rng.integers(0, 7, shape).astype(dtype.np)
        for axes in subsets(len(shape)):
            if any(shape[k] == 0 for k in axes):
                continue
            same(r.max_(Array(x), axes).host, np.asarray(widen(x).max(axes)).astype(dtype.np))
            same(r.min_(Array(x), axes).host, np.asarray(widen(x).min(axes)).astype(dtype.np))
        for k, n in enumerate(shape):
            if n:
                same(r.argmax(Array(x), k).host, np.asarray(widen(x).argmax(k)))
                same(r.argmin(Array(x), k).host, np.asarray(widen(x).argmin(k)))


def test_extrema_of_special_values() -> None:
    x = np.array([[1, np.nan, 3], [-np.inf, -np.inf, -np.inf], [np.inf, 0, -1]])
    for dtype in (np.float64, np.float32, np.float16, ml_dtypes.bfloat16):
        y = Array(x.astype(dtype))
        np.testing.assert_array_equal(
            r.max_(y, (1,)).host.astype(np.float64), [np.nan, -np.inf, np.inf]
        )
        np.testing.assert_array_equal(
            r.min_(y, (1,)).host.astype(np.float64), [np.nan, -np.inf, -1]
        )
        assert r.argmax(y, 1).host.tolist() == [1, 0, 0]
        assert r.argmin(y, 1).host.tolist() == [1, 0, 2]
    ties = Array(np.array([2, 5, 5, 2]))
    assert r.argmax(ties, 0).host == 1
    assert r.argmin(ties, 0).host == 0


def test_logical() -> None:
    x = Array(np.array([[True, False], [True, True], [False, False]]))
    assert r.any_(x, (1,)).host.tolist() == [True, True, False]
    assert r.all_(x, (1,)).host.tolist() == [False, True, False]
    assert r.any_(Array(np.zeros((0, 2), np.bool_)), (0,)).host.tolist() == [False, False]
    assert r.all_(Array(np.zeros((0, 2), np.bool_)), (0,)).host.tolist() == [True, True]


def test_all_axes_and_no_axes() -> None:
    x = Array(np.ones((2, 3), np.float32))
    assert r.sum_(x).host == 6
    assert r.sum_(x, ()) is x
    assert r.max_(x, (-1,)).host.tolist() == [1, 1]


def test_integers_wrap() -> None:
    x = Array(np.array([100, 100, 100], np.int8))
    assert r.sum_(x).host == np.int8(300 - 256)
    assert r.prod_(x).host == np.int8((10**6 + 128) % 256 - 128)
    y = Array(np.array([7, 7], ml_dtypes.int4))
    assert int(r.sum_(y).host) == -2


def test_narrow_floats_are_accumulated_in_float32() -> None:
    x = np.ones(5000, np.float16)
    assert r.sum_(Array(x)).host == 5000
    assert r.sum_(Array(x)).dtype is float16
    op = make(r.Sum, TensorType((4,), bfloat16), axes=(0,))
    assert op.accumulate is float32
    assert op.accumulator is float32
    assert "accumulate=f32" in str(op)
    assert make(r.Sum, TensorType((4,), float32), axes=(0,)).accumulate is None
    assert make(r.Max, TensorType((4,), bfloat16), axes=(0,)).accumulator is bfloat16
    exact = r.sum_(Array(np.float32([1, 1e-8, -1])), None, float64).host
    np.testing.assert_allclose(exact, 1e-8, rtol=1e-6)


# --- types and errors -------------------------------------------------------------------------


def test_types() -> None:
    x = TensorType((2, S, 4), float32)
    assert make(r.Sum, x, axes=(0, 2)).result.type == TensorType((S,), float32)
    assert make(r.Max, x, axes=(1,)).result.type == TensorType((2, 4), float32)
    assert make(r.ArgMax, x, axis=1).result.type == TensorType((2, 4), int64)
    weak = TensorType((2,), float32, weak=True)
    assert make(r.Sum, weak, axes=(0,)).result.type.weak


def test_errors() -> None:
    x = TensorType((2, 0), float32)
    with pytest.raises(AxisError, match=r"^sum: axis 2 is out of range for rank 2"):
        make(r.Sum, x, axes=(2,))
    with pytest.raises(AxisError, match=r"^prod: axes \[0, 0\] repeat"):
        make(r.Prod, x, axes=(0, 0))
    with pytest.raises(AxisError, match=r"^sum: axis -3 is out of range"):
        r.sum_(Array(np.ones((2, 2))), (-3,))
    for cls in (r.Max, r.Min):
        with pytest.raises(ShapeError, match=r": dim 1 of f32\[2, 0\] is empty") as caught:
            make(cls, x, axes=(0, 1))
        assert "rule: an empty axis has no extremum" in str(caught.value)
    with pytest.raises(ShapeError, match=r"argmin: dim 1 of f32\[2, 0\] is empty"):
        make(r.ArgMin, x, axis=1)
    make(r.Max, x, axes=(0,))
    with pytest.raises(DTypeError, match=r"^any: the operand is f32\[2, 0\]"):
        make(r.Any_, x, axes=(0,))
    with pytest.raises(DTypeError, match=r"^sum: the operand is bool\[3\]"):
        make(r.Sum, TensorType((3,), bool_), axes=(0,))
    with pytest.raises(DTypeError, match=r"^max: the operand is c64\[3\]"):
        make(r.Max, TensorType((3,), dtype_of("c64")), axes=(0,))
    with pytest.raises(DTypeError, match=r"^sum: f32\[3\] cannot be accumulated in f16"):
        make(r.Sum, TensorType((3,), float32), axes=(0,), accumulate=float16)
    with pytest.raises(DTypeError, match=r"^sum: i8\[3\] cannot be accumulated in f32"):
        make(r.Sum, TensorType((3,), int8), axes=(0,), accumulate=float32)


def test_a_symbolic_axis_that_is_empty_gives_the_neutral_element() -> None:
    func = trace(
        lambda x: [r.max_(x, (0,)), r.sum_(x, (0,)), r.prod_(x, (0,)), r.argmax(x, 0)],
        [np.zeros((3, 2), np.int32)],
        [(S, 2)],
    )
    # The interpreter's types are those of the arrays, so it refuses what is known to be empty.
    with pytest.raises(ShapeError, match="is empty"):
        run(func, [np.zeros((0, 2), np.int32)])
    found = run(func, [np.array([[1, 2], [5, 0]], np.int32)])
    assert [x.tolist() for x in found] == [[5, 2], [6, 2], [5, 0], [1, 0]]


# --- derivatives ------------------------------------------------------------------------------


@pytest.mark.parametrize("fn", [r.sum_, r.prod_, r.max_, r.min_])
@pytest.mark.parametrize("shape", [(1,), (5,), (3, 4), (2, 3, 4)], ids=str)
def test_derivatives(fn: Callable[..., Any], shape: tuple[int, ...]) -> None:
    x = np.random.default_rng(2).standard_normal(shape)
    for axes in subsets(len(shape)):
        check_derivatives(lambda x, a=axes: fn(e.sin(x), a), x, rtol=1e-4)


def test_derivatives_of_complex_sums_and_products() -> None:
    rng = np.random.default_rng(3)
    z = rng.standard_normal((3, 4)) + 1j * rng.standard_normal((3, 4))
    check_derivatives(lambda z: [r.sum_(e.square(z), (1,)), r.prod_(z, (0,))], z)


@pytest.mark.parametrize("zeros", [[], [1], [0, 3], [0, 1, 2, 3]])
def test_derivatives_of_products_with_zeros(zeros: list[int]) -> None:
    x = np.array([2.0, -3.0, 0.5, 4.0])
    x[zeros] = 0
    check_derivatives(r.prod_, x, order=4, rtol=1e-6)
    grads = [np.prod(np.delete(x, k)) for k in range(4)]
    found = [tangent(r.prod_, x, t=np.eye(4)[k]) for k in range(4)]
    np.testing.assert_array_equal(found, grads)


def test_derivatives_of_products_over_axes_of_symbolic_length() -> None:
    rng = np.random.default_rng(4)
    x = rng.standard_normal((3, 2, 4))
    x[0, 0, 1] = x[2, 1, 1] = 0
    func = trace(lambda x: r.prod_(x, (0, 2)), [x], [(S, 2, sym("T"))])
    check_func(func, [x], order=2)
    check_func(func, [x[:1, :, :1]], order=2)


def test_derivative_of_an_empty_product() -> None:
    func = trace(lambda x: r.prod_(x, (0,)), [np.zeros((0, 2))])
    assert jvp(func, [True])[1] == [False]


def test_ties_share_the_derivative() -> None:
    x = np.array([[3.0, 3.0, 1.0], [0.0, 3.0, 2.0]])
    weights = [tangent(r.max_, x, t=np.eye(6)[k].reshape(2, 3)) for k in range(6)]
    np.testing.assert_allclose(weights, [1 / 3, 1 / 3, 0, 0, 1 / 3, 0])
    assert tangent(lambda x: r.min_(x, (0,)), np.array([[2.0], [2.0]]), t=[[1], [0]]) == 0.5


def test_derivatives_keep_the_accumulator() -> None:
    func = trace(lambda x: r.sum_(x, (0,), float64), [np.ones(3, np.float32)])
    pushed, _, _ = jvp(func, [True])
    assert str(pushed).count("accumulate=f64") == 2


# --- batching ---------------------------------------------------------------------------------


def test_batches() -> None:
    rng = np.random.default_rng(5)
    x = rng.integers(-3, 3, (4, 2, 3, 5)).astype(np.int32)
    for axis in range(4):
        y = np.moveaxis(x, 0, axis)
        for axes in subsets(3):
            check_batch(lambda x, a=axes: r.sum_(x, a), [y], [axis])
            check_batch(lambda x, a=axes: r.max_(x, a), [y], [axis])
        for k in range(3):
            check_batch(lambda x, k=k: r.argmax(x, k), [y], [axis])
            check_batch(lambda x, k=k: r.any_(e.gt(x, 1), (k,)), [y], [axis])


def test_int32_stays_int32() -> None:
    assert r.sum_(Array(np.ones(3, np.int32))).dtype is int32
