"""Sorting: values against NumPy, order of equal elements, errors, derivatives, batching."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tessera.dtypes import ALL, DType, bool_, complex64, float32, int64
from tessera.errors import AxisError, DTypeError, ShapeError
from tessera.graph.array import Array
from tessera.graph.ops import elementwise as e
from tessera.graph.ops.sort import Sort, argsort, sort, sort_order
from tessera.graph.transforms.differentiate import jvp_values
from tessera.ir.convert import widen
from tessera.ir.core import Value
from tessera.ir.intexpr import sym
from tessera.ir.types import TensorType
from tests.graph.rules import (
    arrays,
    check_batch,
    check_derivatives,
    check_func,
    numpy_engine,
    same,
    trace,
)

S = sym("S")


@pytest.fixture(autouse=True)
def _engine() -> Any:
    with numpy_engine():
        yield


@pytest.mark.parametrize("dtype", [d for d in ALL if not d.is_complex], ids=str)
@pytest.mark.parametrize("descending", [False, True])
def test_one_array(dtype: DType, descending: bool) -> None:
    rng = np.random.default_rng(0)
    for shape in ((0,), (1,), (9,), (3, 5), (2, 0), (2, 3, 4)):
        x = rng.integers(0, 2 if dtype.is_bool else 6, shape).astype(dtype.np)
        for axis in range(len(shape)):
            (found,) = sort([Array(x)], axis, descending=descending)
            expected = np.sort(widen(x), axis=axis)
            expected = np.flip(expected, axis) if descending else expected
            same(found.host, expected.astype(dtype.np))
            order = argsort(Array(x), axis, descending)
            assert order.dtype is int64
            same(np.take_along_axis(x, order.host, axis), expected.astype(dtype.np))


@pytest.mark.parametrize("dtype", [d for d in ALL if d.is_float], ids=str)
def test_nan_and_zeros(dtype: DType) -> None:
    x = np.array([0.0, np.nan, -1.0, -0.0, 2.0, np.nan, 0.0]).astype(dtype.np)
    up = argsort(Array(x), 0).host
    assert up.tolist() == [2, 0, 3, 6, 4, 1, 5]
    down = argsort(Array(x), 0, True).host
    assert down.tolist() == [1, 5, 4, 0, 3, 6, 2]
    y = np.array([np.inf, np.nan, -np.inf])
    assert argsort(Array(y), 0).host.tolist() == [2, 0, 1]


def test_several_operands() -> None:
    a = np.array([[2, 1, 2, 1, 2], [0, 0, 0, 0, 0]])
    b = np.array([[5.0, 7.0, 4.0, 6.0, 4.0], [2.0, 1.0, np.nan, 1.0, 0.0]])
    c = np.arange(10).reshape(2, 5).astype(np.complex64)
    x, y, z = sort(arrays([a, b, c]), 1, num_keys=2)
    assert x.host.tolist() == [[1, 1, 2, 2, 2], [0] * 5]
    np.testing.assert_array_equal(y.host, [[6, 7, 4, 4, 5], [0, 1, 1, 2, np.nan]])
    assert z.host.real.tolist() == [[3, 1, 2, 4, 0], [9, 6, 8, 5, 7]]
    x, _, z = sort(arrays([a, b, c]), 1, num_keys=1, descending=True)
    assert x.host.tolist() == [[2, 2, 2, 1, 1], [0] * 5]
    assert z.host.real.tolist() == [[0, 2, 4, 1, 3], [5, 6, 7, 8, 9]]
    assert sort_order([np.array([3, 1, 2])], 0).tolist() == [1, 2, 0]


def infer(*types: TensorType, **attrs: Any) -> list[Any]:
    return [v.type for v in Sort([Value(t) for t in types], **attrs).results]


def test_types_and_errors() -> None:
    x, k = TensorType((2, S), float32), TensorType((2, S), int64)
    assert infer(x, k, axis=1) == [x, k]
    assert not infer(TensorType((2,), float32, weak=True), axis=0)[0].weak
    with pytest.raises(AxisError, match="sort: axis 2 is out of range for rank 2"):
        infer(x, axis=2)
    with pytest.raises(AxisError, match="sort: axis 0 is out of range for rank 0"):
        sort([Array(np.float32(1))], 0)
    with pytest.raises(ShapeError, match=r"sort: operand 1 is i64\[2\], but operand 0 is f32\[3\]"):
        infer(TensorType((3,), float32), TensorType((2,), int64), axis=0)
    with pytest.raises(DTypeError, match=r"sort: key 0 is c64\[3\]"):
        infer(TensorType((3,), complex64), axis=0)
    with pytest.raises(ShapeError, match="sort: num_keys is 2 for 1 operands"):
        infer(x, axis=0, num_keys=2)
    infer(TensorType((3,), bool_), TensorType((3,), complex64), axis=0)


@pytest.mark.parametrize("descending", [False, True])
def test_derivatives(descending: bool) -> None:
    rng = np.random.default_rng(1)
    x, y = rng.standard_normal((2, 3, 4))
    k = rng.integers(0, 2, (3, 4))

    def fn(k: Any, x: Any, y: Any) -> Any:
        return sort([k, e.sin(x), e.mul(x, y)], 1, num_keys=2, descending=descending)

    check_derivatives(fn, k, x, y)
    check_func(trace(fn, [k, x, y], [(3, S)] * 3), [k, x, y])
    check_derivatives(lambda x: sort([e.square(x)], 0, descending=descending), x)


def test_derivative_of_outputs_known_before() -> None:
    x, k = np.array([3.0, 1.0, 2.0]), np.array([0, 0, 0])
    func = trace(lambda k, x: sort([k, x], 0), [k, x])
    known = dict(zip(func.outputs, arrays([k, x]), strict=True))
    _, tangents = jvp_values(func, arrays([k, x]), [None, *arrays([10 * x])], known)
    assert tangents[0] is None
    assert tangents[1].host.tolist() == [30, 10, 20]


def test_batches() -> None:
    rng = np.random.default_rng(2)
    a, b = rng.integers(0, 4, (3, 2, 5)), rng.standard_normal((3, 2, 5))
    for axis in range(2):

        def fn(a: Any, b: Any, axis: int = axis) -> Any:
            return sort([a, b], axis)

        check_batch(fn, [a, np.moveaxis(b, 0, 2)], [0, 2])
        check_batch(fn, [a[0], b], [None, 0])
        check_batch(fn, [np.moveaxis(a, 0, 1), b[0]], [1, None])
        check_batch(lambda a, k=axis: argsort(a, k, True), [a], [0])
