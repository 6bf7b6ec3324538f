"""The Graph interpreter: symbolic dims, regions, agreement of `evaluate` with `infer`; the spec."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tessera.dtypes import bool_, float32, float64, int64
from tessera.errors import ShapeError, VerifyError
from tessera.graph.array import Array
from tessera.graph.interp import run
from tessera.graph.ops import elementwise as e
from tessera.graph.ops import rearrange as r
from tessera.graph.ops.base import Family, GraphOp
from tessera.graph.ops.control import Call, Cond, While
from tessera.graph.ops.reduce import sum_
from tessera.graph.spec import GRAPH
from tessera.graph.trace import bind
from tessera.graph.transforms.evaluate import trace_function
from tessera.ir.core import Block, Func, Op, Value
from tessera.ir.intexpr import sym
from tessera.ir.opdef import operand
from tessera.ir.parser import parse_func
from tessera.ir.types import ScalarType, TensorType, Type
from tessera.ir.verify import verify
from tests.graph.rules import numpy_engine, trace

S, T = sym("S"), sym("T")


def test_symbolic_dims_come_from_the_inputs() -> None:
    func = trace(
        lambda x, y: r.broadcast(sum_(x, (1,)), (S, T * 2 + 1), (0,)),
        [np.zeros((2, 3)), np.zeros(3)],
        [(S, T), (T,)],
    )
    found = run(func, [np.ones((4, 2)), np.ones(2)])
    assert found[0].shape == (4, 5)
    assert (found[0] == 2).all()
    with pytest.raises(ShapeError, match=r"dim T of the argument .* is 2, but the input has 3"):
        run(func, [np.ones((4, 2)), np.ones(3)])


def test_dims_that_no_argument_has() -> None:
    x = Value(TensorType((), float64))
    op = r.Broadcast(x, (S + 1,), ())
    func = Func("f", Block([x], [op], op.results), ["S"])
    verify(func, GRAPH)
    assert run(func, [np.asarray(2.0)], {"S": 3})[0].tolist() == [2.0] * 4
    func = trace(lambda x: e.neg(x), [np.zeros(3)], [(S * 2,)])
    with pytest.raises(ShapeError, match=r"the size of S in .* is not known"):
        run(func, [np.zeros(4)])
    assert run(func, [np.ones(4)], {"S": 2})[0].shape == (4,)


def test_wrong_inputs() -> None:
    func = trace(lambda x: e.neg(x), [np.zeros((2, 3))])
    with pytest.raises(ShapeError, match=r"was given the shape \[2, 4\]"):
        run(func, [np.zeros((2, 4))])
    with pytest.raises(ShapeError, match=r"was given f32\[2, 3\]"):
        run(func, [np.zeros((2, 3), np.float32)])


def block(fn: Any, *types: TensorType) -> Block:
    func, captured = trace_function(lambda *xs: fn(*xs), types, "test")
    assert not captured
    return func.body


def test_regions() -> None:
    vector, scalar = TensorType((S,), float64), TensorType((), float64)
    double = block(lambda x: [e.add(x, x)], vector)
    halve = block(lambda x: [e.mul(x, 0.5)], vector)

    def fn(x: Any, n: Any) -> list[Any]:
        called = bind(Call, (x,), body=double)
        chosen = bind(Cond, e.gt(n, 0), (called,), then=double, otherwise=halve)
        cond = block(lambda n, x: [e.lt(n, 3)], scalar, vector)
        body = block(
            lambda n, x: [e.add(n, 1), e.add(x, r.full((S,), 1, float64))], scalar, vector
        )
        return [chosen, bind(While, (), (n, x), cond=cond, body=body)[1]]

    func = trace(fn, [np.zeros(3), np.float64(0)], [(S,), ()])
    verify(func, GRAPH)
    for n in (3, 5):
        x = np.arange(float(n))
        up = run(func, [x, np.asarray(1.0)])
        np.testing.assert_array_equal(up[0], 4 * x)
        np.testing.assert_array_equal(up[1], x + 2)
        np.testing.assert_array_equal(run(func, [x, np.asarray(-1.0)])[0], x)


def test_the_engine() -> None:
    with numpy_engine():
        x = Array(np.float32([1, 2]))
        found = e.add(x, x)
        assert found.type == TensorType((2,), float32)
        weak = Array(np.asarray(1.0, np.float32), TensorType((), float32, weak=True))
        assert e.exp(weak).type.weak


class Wrong(GraphOp):
    """Says one dtype and computes another."""

    name = "test.wrong"
    family = Family.ELEMENTWISE
    x: Value = operand()

    def infer(self) -> TensorType:
        return TensorType((3,), float32)

    def evaluate(self, *operands: np.ndarray) -> np.ndarray:
        return operands[0]


def test_evaluate_must_agree_with_infer() -> None:
    op = Wrong(Value(TensorType((3,), float64)))
    with pytest.raises(VerifyError, match=r"wrong: evaluate gave f64\[3\], but infer says"):
        run(Func("f", Block([op.x], [op], op.results)), [np.zeros(3)])
    op = Wrong(Value(TensorType((2,), float32)))
    with pytest.raises(VerifyError, match=r"evaluate gave f32\[2\], but infer says f32\[3\]"):
        run(Func("f", Block([op.x], [op], op.results)), [np.zeros(2, np.float32)])


# --- the spec ---------------------------------------------------------------------------------


class Foreign(Op):
    """Not of the Graph layer."""

    name = "test.foreign"

    def infer(self) -> Type:
        return TensorType((), float32)


class Weakening(GraphOp):
    """Makes weak what is not."""

    name = "test.weakening"
    family = Family.ELEMENTWISE
    x: Value = operand()

    def infer(self) -> TensorType:
        return TensorType((), float32, weak=True)


def fails(func: Func, message: str) -> None:
    with pytest.raises(VerifyError, match=message):
        verify(func, GRAPH)


def test_spec() -> None:
    foreign = Foreign()
    fails(Func("f", Block([], [foreign], [])), r"test\.foreign may not stand in graph IR")
    arg = Value(ScalarType(float32))
    fails(Func("f", Block([arg], [], [arg])), "A1: .* is not a tensor")
    negative = Value(TensorType((S * -1 - 1,), float32))
    fails(Func("f", Block([negative], [], []), ["S"]), "A2: dim 0 of .* is negative")
    weakening = Weakening(Value(TensorType((), float32)))
    fails(Func("f", Block([weakening.x], [weakening], [])), "A3: .* is weak, but not all")
    outer, flag = Value(TensorType((), float32)), Value(TensorType((), bool_))
    inner = e.Neg(outer)
    cond = Cond(
        flag, (), then=Block([], [inner], inner.results), otherwise=Block([], [], [outer])
    )
    fails(Func("f", Block([outer, flag], [cond], [])), "V7: .* comes from outside")


def test_texts_are_parsed_and_run() -> None:
    func = parse_func(
        """
        func @f[S](%x: f32[S, 3], %k: i64[S]) {
          %0 = graph.exp(%x) : f32[S, 3]
          %1 = graph.reduce_sum(%0) {axes=[1]} : f32[S]
          %2, %3 = graph.sort([%1, %k]) {axis=0, descending=true} : (f32[S], i64[S])
          %4 = graph.cumsum(%2) {axis=0, reverse=true} : f32[S]
          %5 = graph.dot_general(%4, %x) {contract=[[0], [0]]} : f32[3]
          %6 = graph.cast(%5) {dtype=f16} : f16[3]
          %7 = graph.reduce_sum(%6) {axes=[0], accumulate=f32} : f16[]
          return %7, %3
        }
        """
    )
    verify(func, GRAPH)
    assert str(parse_func(str(func))) == str(func)
    found, order = run(func, [np.float32([[0] * 3, [1] * 3]), np.arange(2)])
    assert order.tolist() == [1, 0]
    assert order.dtype == int64.np
    np.testing.assert_allclose(found, 9, rtol=1e-3)
