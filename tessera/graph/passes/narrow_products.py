"""Products of widened numbers as products of the narrow ones.

    %a = graph.cast(%x) {dtype=f32}          %r = graph.dot_general(%x, %y) {dtype=f32, ...}
    %b = graph.cast(%y) {dtype=f32}    ==>
    %r = graph.dot_general(%a, %b) {...}

The product of two numbers of 16 bits is exact in float32, so both say the same, and what a
product of narrow numbers is added in is float32 (`DotGeneral.accumulate`). GPUs have matrix
instructions for narrow operands, and would store the wide ones first; CPUs widen what they read in
any case.
"""

from __future__ import annotations

from dataclasses import dataclass

from tessera.graph.ops.contract import DotGeneral
from tessera.graph.ops.elementwise import Cast
from tessera.graph.ops.reduce import default_accumulator
from tessera.graph.passes.simplify import DeadCode
from tessera.graph.spec import GRAPH
from tessera.ir.core import Func, Op, Value, tensor_type
from tessera.ir.passes import Pass
from tessera.ir.rewrite import Rewriter, RuleSet, rewrite_greedy, rule
from tessera.ir.types import TensorType
from tessera.ir.walk import walk


@dataclass(frozen=True)
class NarrowProducts(Pass):
    """Takes the widening of both operands out of products."""

    name = "narrow_products"
    ensures = GRAPH

    def run(self, func: Func) -> Func:
        """All products, in regions too."""
        if not any(isinstance(op, DotGeneral) and _narrow(op) for op in walk(func.body)):
            return func
        return DeadCode().run(rewrite_greedy(func, _RULES))


@rule(DotGeneral)
def narrow_operands(op: DotGeneral, w: Rewriter) -> Value | None:
    """A product of casts from a narrow dtype to its accumulator is one of what is cast.

    func @f(%x: bf16[2, 3], %y: bf16[3, 2]) {
      %a = graph.cast(%x) {dtype=f32} : f32[2, 3]
      %b = graph.cast(%y) {dtype=f32} : f32[3, 2]
      %r = graph.dot_general(%a, %b) {contract=[[1], [0]]} : f32[2, 2]
      return %r
    }
    ==>
    func @f(%x: bf16[2, 3], %y: bf16[3, 2]) {
      %r = graph.dot_general(%x, %y) {contract=[[1], [0]], dtype=f32} : f32[2, 2]
      return %r
    }
    """
    found = _narrow(op)
    if found is None:
        return None
    result = op.result.type
    assert isinstance(result, TensorType)
    return w.emit(DotGeneral(*found, op.contract, op.batch_axes, result.dtype, loc=op.loc))


def _narrow(op: DotGeneral) -> tuple[Value, Value] | None:
    """What the operands are cast from, if it is one narrow dtype."""
    lhs, rhs = _widened(op.lhs), _widened(op.rhs)
    if lhs is None or rhs is None:
        return None
    return (lhs, rhs) if tensor_type(lhs).dtype is tensor_type(rhs).dtype else None


def _widened(value: Value) -> Value | None:
    """What a value is cast from, where that has 16 bits and is cast to its accumulator."""
    op: Op | None = value.op
    if not isinstance(op, Cast):
        return None
    narrow = tensor_type(op.x).dtype
    fits = narrow.is_float and narrow.bits == 16 and op.dtype is default_accumulator(narrow)
    return op.x if fits else None


_RULES = RuleSet((narrow_operands,))
