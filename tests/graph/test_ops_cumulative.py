"""Running combinations: values against NumPy, errors, derivatives, batching."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tessera.dtypes import ALL, DType, bool_, complex64, float16, float32
from tessera.errors import AxisError, DTypeError
from tessera.graph.array import Array
from tessera.graph.interp import run
from tessera.graph.ops import cumulative as c
from tessera.graph.ops import elementwise as e
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

S = sym("S")
FUNCTIONS: dict[Callable[..., Any], Any] = {
    c.cumsum: np.add,
    c.cumprod: np.multiply,
    c.cummax: np.maximum,
    c.cummin: np.minimum,
    c.cumlogsumexp: np.logaddexp,
}


@pytest.fixture(autouse=True)
def _engine() -> Any:
    with numpy_engine():
        yield


def reference(fn: Any, x: np.ndarray, axis: int, reverse: bool) -> np.ndarray:
    ufunc = FUNCTIONS[fn]
    x = np.flip(x, axis) if reverse else x
    found = ufunc.accumulate(x, axis, **({} if ufunc is np.logaddexp else {"dtype": x.dtype}))
    return np.flip(found, axis) if reverse else found


@pytest.mark.parametrize("fn", FUNCTIONS)
@pytest.mark.parametrize("reverse", [False, True])
def test_values(fn: Any, reverse: bool) -> None:
    rng = np.random.default_rng(0)
    for shape in ((1,), (7,), (3, 5), (2, 3, 4), (0,), (2, 0), (0, 3)):
        x = rng.standard_normal(shape)
        for axis in range(len(shape)):
            found = fn(Array(x), axis, reverse).host
            np.testing.assert_allclose(found, reference(fn, x, axis, reverse), rtol=1e-14)
            half = fn(Array(x.astype(np.float16)), axis, reverse)
            assert half.dtype is float16
            np.testing.assert_allclose(
                half.host.astype(np.float64), found, rtol=1e-2, atol=1e-2
            )


@pytest.mark.parametrize("dtype", [d for d in ALL if d.is_integer and d.bits >= 8], ids=str)
def test_integers(dtype: DType) -> None:
    x = np.arange(12, dtype=np.int64).reshape(3, 4)[:, ::-1].astype(dtype.np)
    for fn in (c.cumsum, c.cumprod, c.cummax, c.cummin):
        for axis in (0, 1):
            for reverse in (False, True):
                expected = reference(fn, x, axis, reverse)
                same(fn(Array(x), axis, reverse).host, expected)


def test_nan_stays() -> None:
    x = Array(np.array([1, -np.inf, np.nan, 3.0]))
    assert np.isnan(c.cummax(x, 0).host).tolist() == [False, False, True, True]
    assert np.isnan(c.cumsum(x, 0, True).host).tolist() == [True, True, True, False]
    low = Array(np.array([-np.inf, -np.inf, 0.0, np.inf]))
    assert c.cumlogsumexp(low, 0).host.tolist() == [-np.inf, -np.inf, 0, np.inf]


def test_narrow_floats_are_accumulated_in_float32() -> None:
    x = np.ones(3000, np.float16)
    assert c.cumsum(Array(x), 0).host[-1] == 3000
    y = np.full(4, 1 + 2.0**-7).astype("bfloat16")
    assert widen(c.cumprod(Array(y), 0).host)[-1] == np.float32(1.03125)


def infer(cls: type[c.Cumulative], type: TensorType, **attrs: Any) -> Any:
    return cls(Value(type), **attrs).result.type


def test_types_and_errors() -> None:
    x = TensorType((2, S), float32)
    assert infer(c.CumSum, x, axis=1) == x
    with pytest.raises(AxisError, match="cumulative_sum: axis 2 is out of range for rank 2"):
        infer(c.CumSum, x, axis=2)
    with pytest.raises(AxisError, match="cummax: axis 0 is out of range for rank 0"):
        c.cummax(Array(np.float32(1)), 0)
    with pytest.raises(DTypeError, match=r"cumulative_sum: the operand is bool\[2\]"):
        infer(c.CumSum, TensorType((2,), bool_), axis=0)
    with pytest.raises(DTypeError, match=r"cummax: the operand is c64\[2\]"):
        infer(c.CumMax, TensorType((2,), complex64), axis=0)
    with pytest.raises(DTypeError, match=r"cumlogsumexp: the operand is i32\[2\]"):
        infer(c.CumLogSumExp, TensorType((2,), ALL[4]), axis=0)


# --- derivatives ------------------------------------------------------------------------------


@pytest.mark.parametrize("fn", FUNCTIONS)
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("symbolic", [False, True])
def test_derivatives(fn: Any, reverse: bool, symbolic: bool) -> None:
    rng = np.random.default_rng(1)
    for shape in ((1,), (6,), (3, 5), (2, 3, 4)):
        x = rng.standard_normal(shape)
        for axis in range(len(shape)):
            dims = tuple([S if k == axis and symbolic else n for k, n in enumerate(shape)])
            func = trace(lambda x, a=axis: fn(e.sin(x), a, reverse), [x], [dims])
            check_func(func, [x], rtol=1e-4)


def test_derivatives_of_complex_numbers() -> None:
    rng = np.random.default_rng(2)
    z = rng.standard_normal((3, 4)) + 1j * rng.standard_normal((3, 4))
    check_derivatives(lambda z: [c.cumsum(e.square(z), 1), c.cumprod(z, 0, True)], z)


@pytest.mark.parametrize("zeros", [[], [0], [2], [4], [1, 3], [0, 1, 2]])
@pytest.mark.parametrize("reverse", [False, True])
def test_derivatives_of_products_with_zeros(zeros: list[int], reverse: bool) -> None:
    x = np.array([2.0, -3.0, 0.5, 4.0, 1.5])
    x[zeros] = 0
    check_derivatives(lambda x: c.cumprod(x, 0, reverse), x, order=3, rtol=1e-6)
    func = trace(lambda x: c.cumprod(x, 0, reverse), [x], [(S,)])
    check_func(func, [x], order=2 if len(zeros) < 2 else 1)


@pytest.mark.parametrize("symbolic", [False, True])
def test_derivatives_of_logarithms_far_below_the_maximum(symbolic: bool) -> None:
    x = np.array([-800.0, -801.0, 900.0, -5.0])
    t = np.array([1.0, 2.0, 3.0, 4.0])
    func = trace(lambda x: c.cumlogsumexp(x, 0), [x], [(S,)] if symbolic else None)
    found = run(jvp(func, [True])[0], [x, t])[1]
    p = 1 / (1 + np.exp(-1))
    np.testing.assert_allclose(found, [1, p + 2 * (1 - p), 3, 3], rtol=1e-12)


def test_ties_of_extrema() -> None:
    x = np.array([1.0, 3.0, 3.0, 2.0])
    t = np.array([10.0, 20.0, 30.0, 40.0])
    assert tangent(lambda x: c.cummax(x, 0), x, t=t).tolist() == [10, 20, 30, 30]
    assert tangent(lambda x: c.cummax(x, 0, True), x, t=t).tolist() == [20, 20, 30, 40]
    x = np.array([1.0, np.nan, 2.0])
    assert tangent(lambda x: c.cummin(x, 0), x, t=t[:3]).tolist() == [10, 20, 20]


def test_batches() -> None:
    x = np.random.default_rng(3).integers(-4, 4, (3, 2, 4, 5)).astype(np.float64)
    for fn in FUNCTIONS:
        for at in range(4):
            for axis in range(3):
                check_batch(lambda x, a=axis, f=fn: f(x, a), [np.moveaxis(x, 0, at)], [at])
                check_batch(lambda x, a=axis, f=fn: f(x, a, True), [np.moveaxis(x, 0, at)], [at])
