"""Simplification of Graphs: inlining, canonical form, constant folding, common subexpressions, dead
code.

All of it is aware of effects: only pure ops are merged or folded, and only removable ones
disappear.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from tessera.dtypes import Kind
from tessera.graph.ops import elementwise as e
from tessera.graph.ops import rearrange as r
from tessera.graph.ops import reshape as s
from tessera.graph.ops.base import Family, GraphOp
from tessera.graph.ops.checkpoint import Name
from tessera.graph.ops.composite import Composite
from tessera.graph.ops.control import Call
from tessera.graph.ops.custom import CustomLinear
from tessera.graph.ops.generate import Constant, Dense
from tessera.graph.ops.reduce import Reduce
from tessera.graph.ops.sort import Sort
from tessera.graph.ops.windows import Windows
from tessera.graph.passes.merge_sorts import merge_sorts
from tessera.graph.spec import GRAPH
from tessera.ir.core import Block, Func, Op, Value
from tessera.ir.effects import is_repeatable
from tessera.ir.intexpr import Dim
from tessera.ir.passes import Pass
from tessera.ir.rewrite import Rewriter, RuleSet, eliminate_dead, rewrite_greedy, rule
from tessera.ir.types import TensorType
from tessera.ir.walk import inline, with_parts

OpT = TypeVar("OpT", bound=Op)


class _Sweep:
    """One forward pass over ops: what replaced what, and what is kept."""

    def __init__(self) -> None:
        self.env: dict[Value, Value] = {}
        self.ops: list[Op] = []

    def lookup(self, value: Value) -> Value:
        """What stands for a value now."""
        while value in self.env:
            value = self.env[value]
        return value

    def current(self, op: Op, regions: Sequence[Block] | None = None) -> Op:
        """The op on what stands for its operands now."""
        fresh = with_parts(op, [self.lookup(v) for v in op.operands], regions)
        if fresh is not op:
            self.replace(op, fresh)
        return fresh

    def replace(self, old: Op, new: Op) -> None:
        """The results of one op stand for those of another from now on."""
        self.env.update(zip(old.results, new.results, strict=True))

    def finish(self, block: Block) -> Block:
        """The block with what was kept."""
        return Block(block.args, self.ops, [self.lookup(v) for v in block.outputs])


@dataclass(frozen=True)
class InlineCalls(Pass):
    """Replaces calls by their bodies, and ops that are compositions by what they are made of.

    `%r = graph.call([%x]) body(%a) { %y = graph.sin(%a) yield %y }  ==>  %r = graph.sin(%x)`
    """

    name = "inline_calls"
    ensures = GRAPH
    selects: bool = False
    """Whether the machine finds the first places of a sort without sorting the rest."""

    def run(self, func: Func) -> Func:
        """Inlines at every depth."""
        return func.with_body(inline_calls(func.body, self.selects))


def inline_calls(block: Block, selects: bool = False) -> Block:
    """The block with the bodies of calls in place of the calls, at every depth."""
    if not any(op.regions or isinstance(op, (CustomLinear, Composite)) for op in block.ops):
        return block
    sweep = _Sweep()

    def add(op: Op) -> None:
        if isinstance(op, Call):
            values = inline(op.body, [sweep.lookup(v) for v in op.operands], add)
            sweep.env.update(zip(op.results, values, strict=True))
        elif isinstance(op, Composite):
            body = op.expansion(selects).body
            sweep.env[op.result] = inline(body, [sweep.lookup(v) for v in op.operands], add)[0]
        elif isinstance(op, CustomLinear):
            raise op.no_value()
        else:
            sweep.ops.append(sweep.current(op, [inline_calls(b, selects) for b in op.regions]))

    for op in block.ops:
        add(op)
    return sweep.finish(block)


@dataclass(frozen=True)
class DeadCode(Pass):
    """Removes ops whose results nobody uses and whose effects allow it."""

    name = "dead_code"
    ensures = GRAPH

    def run(self, func: Func) -> Func:
        """Removes them, in regions too."""
        return func.with_body(_dead(func.body))


def _dead(block: Block) -> Block:
    block = eliminate_dead(block)
    if not any(op.regions for op in block.ops):
        return block
    sweep = _Sweep()
    for op in block.ops:
        sweep.ops.append(sweep.current(op, [_dead(b) for b in op.regions]))
    return sweep.finish(block)


@dataclass(frozen=True)
class CommonSubexpressions(Pass):
    """Computes equal pure ops once.

    `%a = graph.sin(%x)  %b = graph.sin(%x)  ==>  %a = graph.sin(%x)`, and every use of `%b` becomes
    `%a`. Sorts by the same keys are one, too (`merge_sorts.py`).
    """

    name = "common_subexpressions"
    ensures = GRAPH

    def run(self, func: Func) -> Func:
        """One sweep; ops with regions are left alone, but not what is in these."""
        return func.with_body(_shared(func.body))


def _shared(block: Block) -> Block:
    seen: dict[Hashable, Op] = {}
    sweep = _Sweep()
    for old in block.ops:
        op = sweep.current(old, [_shared(b) for b in old.regions])
        if op.regions or not is_repeatable(op.get_effects()):
            sweep.ops.append(op)
            continue
        key = (type(op), tuple(map(id, op.operands)), tuple(op.attrs.values()))
        found = seen.setdefault(key, op)
        if found is op:
            sweep.ops.append(op)
        else:
            sweep.replace(op, found)
    return merge_sorts(sweep.finish(block))


@dataclass(frozen=True)
class FoldConstants(Pass):
    """Computes pure ops on scalar constants.

    `%a = graph.constant() {value=dense<f32[], 2.0>}  %b = graph.neg(%a)  ==>  %b = graph.constant()
    {value=...-2.0}`
    """

    name = "fold_constants"
    ensures = GRAPH

    def run(self, func: Func) -> Func:
        """One sweep, in regions too; only rank-0 results, so programs do not grow."""
        return func.with_body(_folded(func.body))


def _folded(block: Block) -> Block:
    sweep = _Sweep()
    for old in block.ops:
        op = sweep.current(old, [_folded(b) for b in old.regions])
        folded = _fold(op)
        if folded is not None:
            sweep.replace(op, folded)
            op = folded
        sweep.ops.append(op)
    return sweep.finish(block)


def _fold(op: Op) -> Constant | None:
    if (
        not isinstance(op, GraphOp)
        or op.regions
        or not is_repeatable(op.get_effects())
        or not op.operands
        or len(op.results) != 1
    ):
        return None
    if op.family not in (Family.ELEMENTWISE, Family.REARRANGE):
        return None
    type = op.result.type
    assert isinstance(type, TensorType)
    sources = [v.op for v in op.operands]
    if type.shape or not all(isinstance(x, Constant) and not x.value.shape for x in sources):
        return None
    arrays = [x.value.array for x in sources if isinstance(x, Constant)]
    value = np.asarray(op.evaluate(*arrays))
    folded = Constant(Dense.of(value, type.dtype), type.weak, loc=op.loc)
    return folded if folded.result.type == type else None


# --- canonical form ---


def _same(op: Op, value: Value) -> Value | None:
    """`value` in place of the op's result, if the types are equal."""
    return value if value.type == op.results[0].type else None


def is_splat(value: Value, number: float) -> bool:
    """Whether every element of a value is known to be `number` (the sign of zero counts for
    floats).
    """
    op = value.op
    while isinstance(op, s.Broadcast):
        op = op.x.op
    if not isinstance(op, Constant) or op.value.shape:
        return False
    return op.value == Dense.of(number, op.value.dtype)


@rule(s.Reshape)
def reshape_same(op: s.Reshape, w: Rewriter) -> Value | None:
    """A reshape to the operand's own shape is the operand.

    func @f(%x: f32[2, 3]) { %r = graph.reshape(%x) {shape=[2, 3]} : f32[2, 3] return %r }
    ==>
    func @f(%x: f32[2, 3]) { return %x }
    """
    return _same(op, op.x)


@rule(s.Reshape)
def reshape_twice(op: s.Reshape, w: Rewriter) -> Value | None:
    """Only the last of several reshapes counts.

    func @f(%x: f32[6]) {
      %a = graph.reshape(%x) {shape=[2, 3]} : f32[2, 3]
      %b = graph.reshape(%a) {shape=[3, 2]} : f32[3, 2]
      return %b
    }
    ==>
    func @f(%x: f32[6]) { %b = graph.reshape(%x) {shape=[3, 2]} : f32[3, 2] return %b }
    """
    inner = op.x.op
    return (
        w.emit(s.Reshape(inner.x, op.shape, loc=op.loc)) if isinstance(inner, s.Reshape) else None
    )


@rule(s.Transpose)
def transpose_identity(op: s.Transpose, w: Rewriter) -> Value | None:
    """The identity permutation does nothing.

    func @f(%x: f32[2, 3]) { %r = graph.transpose(%x) {perm=[0, 1]} : f32[2, 3] return %r }
    ==>
    func @f(%x: f32[2, 3]) { return %x }
    """
    return op.x if op.perm == tuple(range(len(op.perm))) else None


@rule(s.Transpose)
def transpose_twice(op: s.Transpose, w: Rewriter) -> Value | None:
    """Permutations compose.

    func @f(%x: f32[2, 3, 4]) {
      %a = graph.transpose(%x) {perm=[1, 0, 2]} : f32[3, 2, 4]
      %b = graph.transpose(%a) {perm=[2, 0, 1]} : f32[4, 3, 2]
      return %b
    }
    ==>
    func @f(%x: f32[2, 3, 4]) {
      %b = graph.transpose(%x) {perm=[2, 1, 0]} : f32[4, 3, 2]
      return %b
    }
    """
    inner = op.x.op
    if not isinstance(inner, s.Transpose):
        return None
    perm = tuple(inner.perm[p] for p in op.perm)
    return w.emit(s.Transpose(inner.x, perm, loc=op.loc))


@rule(s.Broadcast)
def broadcast_same(op: s.Broadcast, w: Rewriter) -> Value | None:
    """A broadcast to the operand's own shape, dims in order, is the operand.

    func @f(%x: f32[2]) { %r = graph.broadcast(%x) {shape=[2], dims=[0]} : f32[2] return %r }
    ==>
    func @f(%x: f32[2]) { return %x }
    """
    return _same(op, op.x) if op.dims == tuple(range(len(op.shape))) else None


@rule(s.Broadcast)
def broadcast_twice(op: s.Broadcast, w: Rewriter) -> Value | None:
    """Broadcasts compose.

    func @f(%x: f32[]) {
      %a = graph.broadcast(%x) {shape=[2], dims=[]} : f32[2]
      %b = graph.broadcast(%a) {shape=[3, 2], dims=[1]} : f32[3, 2]
      return %b
    }
    ==>
    func @f(%x: f32[]) { %b = graph.broadcast(%x) {shape=[3, 2], dims=[]} : f32[3, 2] return %b }
    """
    inner = op.x.op
    if not isinstance(inner, s.Broadcast):
        return None
    dims = tuple(op.dims[d] for d in inner.dims)
    return w.emit(s.Broadcast(inner.x, op.shape, dims, loc=op.loc))


@rule(e.Cast)
def cast_same(op: e.Cast, w: Rewriter) -> Value | None:
    """A cast to the operand's own dtype is the operand.

    func @f(%x: f32[2]) { %r = graph.cast(%x) {dtype=f32} : f32[2] return %r }
    ==>
    func @f(%x: f32[2]) { return %x }
    """
    return _same(op, op.x)


@rule(e.Bitcast)
def bitcast_back(op: e.Bitcast, w: Rewriter) -> Value | None:
    """Reading bits as another dtype and back does nothing (`stop_gradient` is written so).

    func @f(%x: f32[2]) {
      %a = graph.bitcast(%x) {dtype=u32} : u32[2]
      %b = graph.bitcast(%a) {dtype=f32} : f32[2]
      return %b
    }
    ==>
    func @f(%x: f32[2]) { %a = graph.bitcast(%x) {dtype=u32} : u32[2] return %x }
    """
    inner = op.x.op
    return _same(op, inner.x) if isinstance(inner, e.Bitcast) else None


@rule(r.Slice)
def slice_all(op: r.Slice, w: Rewriter) -> Value | None:
    """A slice of everything is the operand.

    func @f(%x: f32[4]) { %r = graph.slice(%x) {start=[0], limit=[4], stride=[1]} : f32[4] return %r
    } ==> func @f(%x: f32[4]) { return %x }
    """
    return _same(op, op.x) if all(d == 1 for d in op.stride) else None


@rule(r.Slice)
def slice_of_part(op: r.Slice, w: Rewriter) -> Value | None:
    """A slice of joined arrays that lies in one of them is a slice of that one.

    func @f(%x: f32[4], %y: f32[2]) {
      %a = graph.concatenate([%x, %y]) {axis=0} : f32[6]
      %r = graph.slice(%a) {start=[4], limit=[5], stride=[1]} : f32[1]
      return %r
    }
    ==>
    func @f(%x: f32[4], %y: f32[2]) {
      %r = graph.slice(%y) {start=[0], limit=[1], stride=[1]} : f32[1]
      return %r
    }
    """
    joined = op.x.op
    if not isinstance(joined, r.Concatenate):
        return None
    axis, offset = joined.axis, 0
    start, limit = op.start[axis], op.limit[axis]
    if not isinstance(start, int) or not isinstance(limit, int) or start >= limit:
        return None
    for x in joined.xs:
        assert isinstance(x.type, TensorType)
        size = x.type.shape[axis]
        if not isinstance(size, int):
            return None
        if offset <= start and limit <= offset + size:
            starts, limits = list(op.start), list(op.limit)
            starts[axis], limits[axis] = start - offset, limit - offset
            return w.emit(r.Slice(x, tuple(starts), tuple(limits), op.stride, loc=op.loc))
        offset += size
    return None


@rule(Windows)
def windows_of_one(op: Windows, w: Rewriter) -> Value | None:
    """Windows of one element are the elements that they begin with.

    func @f(%x: f32[7, 1]) {
      %r = graph.windows(%x) {axes=[0], step=[2], dilation=[1]} : f32[4, 1]
      return %r
    }
    ==>
    func @f(%x: f32[7, 1]) {
      %r = graph.slice(%x) {start=[0, 0], limit=[7, 1], stride=[2, 1]} : f32[4, 1]
      return %r
    }
    """
    x = op.x.type
    assert isinstance(x, TensorType)
    if any(size != 1 for size in x.shape[x.rank - len(op.axes) :]):
        return None
    stride: list[Dim] = [1] * x.rank
    for axis, step in zip(op.axes, op.step, strict=True):
        stride[axis] = step
    return w.emit(r.Slice(op.x, (0,) * x.rank, x.shape, tuple(stride), loc=op.loc))


@rule(r.Concatenate)
def concatenate_one(op: r.Concatenate, w: Rewriter) -> Value | None:
    """The concatenation of one array is that array.

    func @f(%x: f32[4]) { %r = graph.concatenate([%x]) {axis=0} : f32[4] return %r }
    ==>
    func @f(%x: f32[4]) { return %x }
    """
    return _same(op, op.xs[0]) if len(op.xs) == 1 else None


@rule(Sort)
def sort_one(op: Sort, w: Rewriter) -> Sequence[Value] | None:
    """Along an axis of one element there is nothing to sort.

    func @f(%x: f32[1, 4]) { %r = graph.sort([%x]) {axis=0} : f32[1, 4] return %r }
    ==>
    func @f(%x: f32[1, 4]) { return %x }
    """
    x = op.xs[0].type
    assert isinstance(x, TensorType)
    is_sorted = x.shape[op.axis] == 1
    same = all(a.type == b.type for a, b in zip(op.xs, op.results, strict=True))
    return op.xs if is_sorted and same else None


@rule(Reduce)
def reduce_nothing(op: Reduce, w: Rewriter) -> Value | None:
    """A reduction over no axes is the operand.

    func @f(%x: f32[4]) { %r = graph.reduce_sum(%x) {axes=[]} : f32[4] return %r }
    ==>
    func @f(%x: f32[4]) { return %x }
    """
    return _same(op, op.x) if not op.axes else None


@rule(e.Neg)
def neg_twice(op: e.Neg, w: Rewriter) -> Value | None:
    """Two negations cancel.

    func @f(%x: f32[4]) {
      %a = graph.neg(%x) : f32[4]
      %b = graph.neg(%a) : f32[4]
      return %b
    }
    ==>
    func @f(%x: f32[4]) { return %x }
    """
    inner = op.x.op
    return inner.x if isinstance(inner, e.Neg) else None


@rule(e.Add)
def add_zero(op: e.Add, w: Rewriter) -> Value | None:
    """x + 0 is x for integers; for floats x + -0.0 is x, and x + 0.0 is not (-0.0 + 0.0 is 0.0).

    func @f(%x: i32[]) {
      %z = graph.constant() {value=dense<i32[], 0>} : i32[]
      %r = graph.add(%x, %z) : i32[]
      return %r
    }
    ==>
    func @f(%x: i32[]) { %z = graph.constant() {value=dense<i32[], 0>} : i32[] return %x }
    """
    for value, other in ((op.x, op.y), (op.y, op.x)):
        assert isinstance(value.type, TensorType)
        inexact = value.type.dtype.kind in (Kind.FLOAT, Kind.COMPLEX)
        if is_splat(other, -0.0 if inexact else 0):
            return _same(op, value)
    return None


@rule(e.Sub)
def sub_zero(op: e.Sub, w: Rewriter) -> Value | None:
    """x - 0 is x.

    func @f(%x: f32[]) {
      %z = graph.constant() {value=dense<f32[], 0.0>} : f32[]
      %r = graph.sub(%x, %z) : f32[]
      return %r
    }
    ==>
    func @f(%x: f32[]) { %z = graph.constant() {value=dense<f32[], 0.0>} : f32[] return %x }
    """
    return _same(op, op.x) if is_splat(op.y, 0.0) else None


@rule(e.Mul)
def mul_one(op: e.Mul, w: Rewriter) -> Value | None:
    """x * 1 is x.

    func @f(%x: f32[]) {
      %z = graph.constant() {value=dense<f32[], 1.0>} : f32[]
      %r = graph.mul(%z, %x) : f32[]
      return %r
    }
    ==>
    func @f(%x: f32[]) { %z = graph.constant() {value=dense<f32[], 1.0>} : f32[] return %x }
    """
    for value, other in ((op.x, op.y), (op.y, op.x)):
        if is_splat(other, 1):
            return _same(op, value)
    return None


@rule(e.Div)
def div_one(op: e.Div, w: Rewriter) -> Value | None:
    """x / 1 is x.

    func @f(%x: f32[]) {
      %z = graph.constant() {value=dense<f32[], 1.0>} : f32[]
      %r = graph.div(%x, %z) : f32[]
      return %r
    }
    ==>
    func @f(%x: f32[]) { %z = graph.constant() {value=dense<f32[], 1.0>} : f32[] return %x }
    """
    return _same(op, op.x) if is_splat(op.y, 1) else None


@rule(Name)
def name_nothing(op: Name, w: Rewriter) -> Value | None:
    """A name is for checkpoints, which have been made of it what they want.

    func @f(%x: f32[4]) {
      %r = graph.name(%x) {label="scores"} : f32[4]
      return %r
    }
    ==>
    func @f(%x: f32[4]) { return %x }
    """
    return op.x


CANONICAL = RuleSet(
    (
        name_nothing,
        reshape_same,
        reshape_twice,
        transpose_identity,
        transpose_twice,
        broadcast_same,
        broadcast_twice,
        cast_same,
        bitcast_back,
        windows_of_one,
        slice_all,
        slice_of_part,
        concatenate_one,
        sort_one,
        reduce_nothing,
        neg_twice,
        add_zero,
        sub_zero,
        mul_one,
        div_one,
    )
)


@dataclass(frozen=True)
class Canonicalize(Pass):
    """Applies the rules of `CANONICAL` until none fires."""

    name = "canonicalize"
    ensures = GRAPH

    def run(self, func: Func) -> Func:
        """One bottom-up sweep to the fixpoint."""
        return rewrite_greedy(func, CANONICAL)
