"""Contractions: values against einsum, errors, derivatives, batching."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tessera.dtypes import ALL, DType, bfloat16, dtype_of, float16, float32, float64, int8, int32
from tessera.errors import AxisError, DTypeError, ShapeError
from tessera.graph.array import Array
from tessera.graph.ops.contract import DotGeneral, dot_general
from tessera.graph.transforms.differentiate import linearize_values
from tessera.ir.core import Value
from tessera.ir.intexpr import sym
from tessera.ir.types import TensorType
from tests.graph.rules import (
    arrays,
    check_batch,
    check_derivatives,
    check_func,
    check_transpose,
    numpy_engine,
    same,
    trace,
)

S = sym("S")


@pytest.fixture(autouse=True)
def _engine() -> Any:
    with numpy_engine():
        yield


def einsum(lhs: np.ndarray, rhs: np.ndarray, contract: Any, batch: Any = ((), ())) -> np.ndarray:
    left = list("abcdefgh"[: lhs.ndim])
    right = list("ijklmnop"[: rhs.ndim])
    for pairs in (contract, batch):
        for a, b in zip(*pairs, strict=True):
            right[b] = left[a]
    out = [left[k] for k in batch[0]]
    out += [c for k, c in enumerate(left) if k not in (*contract[0], *batch[0])]
    out += [c for k, c in enumerate(right) if k not in (*contract[1], *batch[1])]
    return np.einsum(f"{''.join(left)},{''.join(right)}->{''.join(out)}", lhs, rhs)


CASES: list[tuple[tuple[int, ...], tuple[int, ...], Any, Any]] = [
    ((3, 4), (4, 5), ((1,), (0,)), ((), ())),
    ((4, 3), (5, 4), ((0,), (1,)), ((), ())),
    ((4,), (4,), ((0,), (0,)), ((), ())),
    ((3,), (4,), ((), ()), ((), ())),
    ((), (), ((), ()), ((), ())),
    ((), (3, 2), ((), ()), ((), ())),
    ((2, 3, 4), (2, 4, 5), ((2,), (1,)), ((0,), (0,))),
    ((3, 2, 4), (5, 4, 2), ((2,), (1,)), ((1,), (2,))),
    ((2, 3, 4, 6), (6, 4, 5, 2, 3), ((3, 2), (0, 1)), ((1, 0), (4, 3))),
    ((2, 3), (2, 3), ((0, 1), (0, 1)), ((), ())),
    ((2, 3), (3, 2), ((1, 0), (0, 1)), ((), ())),
    ((2, 3), (2, 3), ((), ()), ((0, 1), (0, 1))),
    ((0, 3), (3, 4), ((1,), (0,)), ((), ())),
    ((2, 0), (0, 4), ((1,), (0,)), ((), ())),
    ((7, 1, 3), (3, 1), ((2, 1), (0, 1)), ((), ())),
]


@pytest.mark.parametrize("case", CASES, ids=lambda c: f"{list(c[0])}x{list(c[1])}")
@pytest.mark.parametrize("dtype", [d for d in ALL if d.bits >= 16 and not d.is_bool], ids=str)
def test_values(case: Any, dtype: DType) -> None:
    a, b, contract, batch = case
    rng = np.random.default_rng(0)
    low = 0 if dtype.kind.value == "uint" else -3
    x, y = (rng.integers(low, 4, shape).astype(dtype.np) for shape in (a, b))
    wide = np.complex128 if dtype.is_complex else np.float64
    found = dot_general(Array(x), Array(y), contract, batch)
    assert found.dtype is dtype
    np.testing.assert_array_equal(
        found.host.astype(wide), einsum(x.astype(wide), y.astype(wide), contract, batch)
    )


def test_bool_integers_and_special_values() -> None:
    x = np.array([[True, False], [False, False]])
    found = dot_general(Array(x), Array(~x), ((1,), (0,))).host
    same(found, np.array([[False, True], [False, False]]))
    big = Array(np.full((1, 4), 100, np.int8))
    assert dot_general(big, big, ((1,), (1,))).host == np.int8(40000 % 256)
    assert dot_general(big, big, ((1,), (1,)), dtype=int32).host == 40000
    four = Array(np.array([7, 7], ml_dtypes.int4))
    assert int(dot_general(four, four, ((0,), (0,))).host) == 98 % 16
    nan = Array(np.array([[np.inf, 1], [0, np.nan]]))
    zero = Array(np.zeros((2, 2)))
    assert np.isnan(dot_general(nan, zero, ((1,), (0,))).host).all()


def test_accumulators() -> None:
    x = Array(np.ones((1, 5000), np.float16))
    assert dot_general(x, x, ((1,), (1,))).host == 5000
    assert dot_general(x, x, ((1,), (1,))).dtype is float16
    wide = dot_general(x, x, ((1,), (1,)), dtype=float32)
    assert wide.dtype is float32
    type = TensorType((4,), bfloat16)
    for dtype, accumulate in ((None, float32), (bfloat16, float32), (float64, float64)):
        op = DotGeneral(Value(type), Value(type), contract=((0,), (0,)), dtype=dtype)
        assert op.accumulate is accumulate


def infer(a: TensorType, b: TensorType, *args: Any, **attrs: Any) -> TensorType:
    found = DotGeneral(Value(a), Value(b), *args, **attrs).result.type
    assert isinstance(found, TensorType)
    return found


def test_types() -> None:
    a, b = TensorType((2, S, 4), float32), TensorType((4, 2, 5), float32)
    assert infer(a, b, ((2,), (0,)), ((0,), (1,))) == TensorType((2, S, 5), float32)
    weak = TensorType((), float32, weak=True)
    assert infer(weak, weak, ((), ())).weak
    assert not infer(weak, TensorType((), float32), ((), ())).weak


def test_errors() -> None:
    a, b = TensorType((2, 3), float32), TensorType((4, 5), float32)
    with pytest.raises(ShapeError) as caught:
        infer(a, b, ((1,), (0,)))
    assert caught.value.what == (
        "dot_general: lhs is f32[2, 3], rhs is f32[4, 5]; the contracted dims 1 of lhs and 0 of rhs"
        " are 3 and 4"
    )
    with pytest.raises(ShapeError, match=r"the batch dims 0 of lhs and 1 of rhs are 2 and 5"):
        infer(a, b, ((), ()), ((0,), (1,)))
    with pytest.raises(ShapeError, match="are S and 4"):
        infer(TensorType((S,), float32), TensorType((4,), float32), ((0,), (0,)))
    with pytest.raises(DTypeError, match=r"dot_general: lhs is f32\[2, 3\], but rhs is i32\[3\]"):
        infer(a, TensorType((3,), int32), ((1,), (0,)))
    with pytest.raises(AxisError, match="contract names 1 axes of lhs and 0 of rhs"):
        infer(a, b, ((1,), ()))
    with pytest.raises(AxisError, match=r"axes \[1, 1\] of lhs repeat"):
        infer(a, a, ((1,), (1,)), ((1,), (0,)))
    with pytest.raises(AxisError, match="axis 2 is out of range for rank 2"):
        infer(a, b, ((2,), (0,)))
    with pytest.raises(DTypeError, match="products of f32 cannot be accumulated in f16"):
        infer(a, a, ((1,), (1,)), dtype=float16)
    with pytest.raises(DTypeError, match="products of i8 cannot be accumulated in f32"):
        infer(TensorType((2,), int8), TensorType((2,), int8), ((0,), (0,)), dtype=float32)


@pytest.mark.parametrize("case", CASES, ids=lambda c: f"{list(c[0])}x{list(c[1])}")
@pytest.mark.parametrize("dtype", ["f64", "c128"])
def test_derivatives(case: Any, dtype: str) -> None:
    a, b, contract, batch = case
    rng = np.random.default_rng(1)
    x, y = (rng.standard_normal(shape) for shape in (a, b))
    if dtype == "c128":
        x, y = (v + 1j * rng.standard_normal(v.shape) for v in (x, y))
    check_derivatives(lambda x, y: dot_general(x, y, contract, batch), x, y)


def test_derivatives_of_symbolic_shapes() -> None:
    rng = np.random.default_rng(2)
    x, y = rng.standard_normal((3, 4)), rng.standard_normal((4, 5))
    func = trace(lambda x, y: dot_general(x, y, ((1,), (0,))), [x, y], [(3, S), (S, sym("T"))])
    check_func(func, [x, y])


def test_transposes_of_a_wider_result() -> None:
    rng = np.random.default_rng(3)
    x, y = (rng.integers(-2, 3, (3, 3)).astype(np.float32) for _ in range(2))
    func = trace(lambda x: dot_general(x, x, ((1,), (0,)), dtype=float64), [x])
    assert func.outputs[0].type == TensorType((3, 3), dtype_of("f64"))
    lin = linearize_values(func, arrays([x]), [True])
    (pulled,) = lin.pull_back(arrays([y.astype(np.float64)]))
    same(pulled.host, (y @ x.T + x.T @ y).astype(np.float32))
    wide = x.astype(np.float64)
    check_transpose(trace(lambda x: dot_general(x, x, ((1,), (0,))), [wide]), [wide])


@pytest.mark.parametrize("case", CASES[:12], ids=lambda c: f"{list(c[0])}x{list(c[1])}")
def test_batches(case: Any) -> None:
    a, b, contract, batch = case
    rng = np.random.default_rng(4)
    x, y = (rng.integers(-3, 4, (3, *shape)) for shape in (a, b))

    def fn(x: Any, y: Any) -> Any:
        return dot_general(x, y, contract, batch)

    for i in range(x.ndim):
        check_batch(fn, [np.moveaxis(x, 0, i), y[0]], [i, None])
        for j in range(y.ndim):
            check_batch(fn, [np.moveaxis(x, 0, i), np.moveaxis(y, 0, j)], [i, j])
    for j in range(y.ndim):
        check_batch(fn, [x[0], np.moveaxis(y, 0, j)], [None, j])
