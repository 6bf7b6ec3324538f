"""The walk over Graphs that numerics analysis is: from ops to terms, and what each op may give.

Each family of ops has a rule that makes terms of terms; an op without one gives any value of its
dtype. Calls are walked through as if they were inlined. Loops run over intervals of what they carry
until these grow no more (`loops.py`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tessera.dtypes import DType, finfo, int64
from tessera.graph.ops.base import GraphOp, Rearrange
from tessera.graph.ops.checkpoint import Barrier, Name
from tessera.graph.ops.composite import Composite
from tessera.graph.ops.contract import DotGeneral
from tessera.graph.ops.control import Call, Cond, While
from tessera.graph.ops.cumulative import Cumulative
from tessera.graph.ops.dynamic_slice import DynamicSlice, DynamicUpdateSlice
from tessera.graph.ops.elementwise import Bitcast, Cast, Elementwise
from tessera.graph.ops.gather import Combine, Gather, IndexMode, Scatter
from tessera.graph.ops.generate import Constant, Iota
from tessera.graph.ops.rearrange import Broadcast, Concatenate, Pad, Reshape, Slice, Transpose
from tessera.graph.ops.reduce import ArgReduce, Reduce
from tessera.graph.ops.scan import Scan, Unwritten
from tessera.graph.ops.sort import Sort
from tessera.ir.core import Block, Op, Value, tensor_type
from tessera.ir.interval import (
    ANY,
    EMPTY,
    Interval,
    finite_range,
    full_range,
    of_array,
    point,
    sum_of,
)
from tessera.ir.interval_rules import apply, cast
from tessera.ir.intexpr import Dim
from tessera.ir.types import TensorType
from tessera.verify.context import Context
from tessera.verify.terms import Base, Count, Term, Terms

MAX_TERM = 48
"""A term so deep is cut: what is above it knows its interval only."""

Sizes = Callable[[Dim], "tuple[int, float]"]
"""The least and the greatest size of a dim."""


@dataclass
class Record:
    """What one op may give, over all the times that it was looked at.

    Attributes:
        op: the op.
        results: an interval for each result.
        operands: an interval for each operand.
        is_origin: whether a result may be NaN, or infinite, though no operand is.
    """

    op: Op
    results: list[Interval]
    operands: list[Interval]
    is_origin: bool = False


@dataclass(frozen=True, eq=False)
class Known:
    """What is known of a value.

    Attributes:
        term: what its elements are.
        blame: the ops where NaN and infinities in it may come from.
    """

    term: Term
    blame: frozenset[Op] = frozenset()


class Walk:
    """Analysis of one Graph.

    Args:
        sizes: how large symbolic dims may be.

    Attributes:
        records: one for each op that was reached.
        order: the ops in the order in which they were first reached.
    """

    def __init__(self, sizes: Sizes) -> None:
        self.sizes = sizes
        self.terms = Terms()
        self.context = Context()
        self.records: dict[Op, Record] = {}
        self.order: dict[Op, int] = {}
        self.recording = True
        self.bases: dict[Any, Base] = {}

    # --- values ---------------------------------------------------------------------------------

    def leaf(self, type: TensorType, interval: Interval, label: str = "") -> Term:
        """A new array of which an interval is known."""
        return self.array_of(Base(interval, label), type)

    def array_of(self, base: Base, type: TensorType) -> Term:
        """An element of an array, at the index of a value of this type."""
        index = tuple([None if n == 1 else k for k, n in enumerate(type.shape)])
        return self.terms.leaf(base, index, type.dtype)

    def interval(self, known: Known) -> Interval:
        """Where a value is."""
        return self.context.interval(known.term)

    def count(self, dims: Sequence[Dim]) -> Count:
        """How many elements there are in some dims."""
        least, most = 1, 1.0
        for dim in dims:
            low, high = self.sizes(dim)
            least, most = least * low, 0.0 if 0 in (most, high) else most * high
        return Count(least, most)

    # --- blocks ---------------------------------------------------------------------------------

    def block(self, block: Block, args: Sequence[Known]) -> list[Known]:
        """What a block gives."""
        env: dict[Value, Known] = dict(zip(block.args, args, strict=True))
        for op in block.ops:
            given = [env[v] for v in op.operands]
            found = self.op(op, given)
            for value, known in zip(op.results, found, strict=True):
                env[value] = known
        return [env[v] for v in block.outputs]

    def op(self, op: Op, given: Sequence[Known]) -> list[Known]:
        """What an op gives."""
        self.context.budget.next_op()
        inner = self._control(op, given)
        if inner is not None:
            self._record(op, given, inner, False)
            return inner
        found = self._plain(op, [x.term for x in given])
        bad = [(x, i) for x in given if _matters(op, i := self.interval(x))]
        blamed = frozenset[Op]().union(*[x.blame for x, _ in bad])
        had = EMPTY
        for _, interval in bad:
            had = had.join(interval)
        results: list[Known] = []
        is_origin = False
        for value, term in zip(op.results, found, strict=True):
            if term.depth > MAX_TERM:
                term = self.leaf(tensor_type(value), self.context.interval(term))
            has = self.context.interval(term)
            # Infinite constants, as in masks, are meant so: only what is new is blamed.
            is_new = (has.nan and not had.nan) or (has.has_infinity and not had.has_infinity)
            is_new = is_new and not isinstance(op, Constant)
            is_origin = is_origin or is_new
            blame = frozenset[Op]() if has.is_finite else blamed | {op} if is_new else blamed
            results.append(Known(term, blame))
        self._record(op, given, results, is_origin)
        return results

    def _record(
        self, op: Op, given: Sequence[Known], found: Sequence[Known], is_origin: bool
    ) -> None:
        if not self.recording:
            return
        self.order.setdefault(op, len(self.order))
        results = [self.interval(x) for x in found]
        operands = [self.interval(x) for x in given]
        record = self.records.get(op)
        if record is None:
            self.records[op] = Record(op, results, operands, is_origin)
            return
        record.results = [a.join(b) for a, b in zip(record.results, results, strict=True)]
        record.operands = [a.join(b) for a, b in zip(record.operands, operands, strict=True)]
        record.is_origin = record.is_origin or is_origin

    # --- control --------------------------------------------------------------------------------

    def _control(self, op: Op, given: Sequence[Known]) -> list[Known] | None:
        if isinstance(op, Call):
            return self.block(op.body, given)
        if isinstance(op, Composite):
            return self._unrecorded(op.expansion().body, given)
        if isinstance(op, Barrier | Name):
            return list(given)
        if isinstance(op, Cond):
            return self._cond(op, given)
        if isinstance(op, Scan | While):
            from tessera.verify.loops import scan, while_loop

            return scan(self, op, given) if isinstance(op, Scan) else while_loop(self, op, given)
        return None

    def _unrecorded(self, block: Block, given: Sequence[Known]) -> list[Known]:
        """What a block gives whose ops are no ops of the program."""
        self.recording, before = False, self.recording
        try:
            return self.block(block, given)
        finally:
            self.recording = before

    def _cond(self, op: Cond, given: Sequence[Known]) -> list[Known]:
        pred, args = given[0].term, given[1:]
        truth = self.context.interval(pred)
        found: list[list[Known] | None] = []
        outer = self.context
        for wanted, region in ((True, op.then), (False, op.otherwise)):
            if truth.lo == truth.hi != int(wanted):
                found.append(None)
                continue
            self.context = outer if truth.lo == truth.hi else outer.assume(pred, wanted)
            outs = self.block(region, args)
            # What was found under the condition holds there only: it is kept as an interval.
            found.append([self._kept(x, outer) for x in outs])
            self.context = outer
        then, otherwise = found
        if then is None or otherwise is None:
            return then or otherwise or []
        return [self._either(pred, a, b) for a, b in zip(then, otherwise, strict=True)]

    def _kept(self, known: Known, outer: Context) -> Known:
        within, around = self.context.interval(known.term), outer.interval(known.term)
        if around.within(within):
            return known
        term = known.term
        index = tuple(sorted(term.free))
        base = Base(within.meet(around))
        return Known(self.terms.leaf(base, index, term.dtype), known.blame)

    def _either(self, pred: Term, a: Known, b: Known) -> Known:
        if a.term is b.term:
            return Known(a.term, a.blame | b.blame)
        dtype = a.term.dtype if a.term.dtype.bits >= b.term.dtype.bits else b.term.dtype
        term = self.terms.apply("select", (pred, a.term, b.term), dtype)
        return Known(term, a.blame | b.blame)

    # --- ops ------------------------------------------------------------------------------------

    def _plain(self, op: Op, given: Sequence[Term]) -> list[Term]:
        for cls, rule in _RULES:
            if isinstance(op, cls):
                return [rule(self, op, given)]
        if isinstance(op, Sort):
            return [self.shuffled(op, [x], k) for k, x in enumerate(given)]
        if isinstance(op, Rearrange):
            return [self.shuffled(op, given)]
        return [self.leaf(tensor_type(v), full_range(tensor_type(v).dtype)) for v in op.results]

    def shuffled(
        self, op: Op, given: Sequence[Term], k: int = 0, more: Interval = EMPTY
    ) -> Term:
        """Elements of operands in other places; equal ops of equal operands give one term."""
        type = tensor_type(op.results[k])
        if len(given) == 1 and not given[0].free and more is EMPTY:
            return given[0]
        found = more
        for x in given:
            found = found.join(self.context.interval(x))
        return self.same(op, given, type, found, k)

    def same(
        self, op: Op, given: Sequence[Term], type: TensorType, found: Interval, k: int = 0
    ) -> Term:
        """An array that is one for all equal ops of equal operands in one context."""
        key = (type_key(op), tuple(map(id, given)), k, id(self.context), str(type))
        base = self.bases.get(key)
        if base is None:
            base = self.bases[key] = Base(found)
        return self.array_of(base, type)

    def constant(self, op: Constant) -> Term:
        """A number, or an array of which the ends are known."""
        array, dtype = op.value.array, op.value.dtype
        if dtype.is_complex:
            return self.leaf(tensor_type(op.result), ANY)
        if array.size and bool((array == array.reshape(-1)[0]).all()):
            x = array.reshape(-1)[0]
            value = float(x) if dtype.is_float else int(x)
            return self.terms.const(value, dtype)
        base = self.bases.setdefault(op.value, Base(of_array(array)))
        return self.array_of(base, tensor_type(op.result))


def type_key(op: Op) -> tuple[Any, ...]:
    """What makes an op what it is, besides its operands."""
    return (op.name, *[str(v) for v in op.attrs.values()])


def _matters(op: Op, x: Interval) -> bool:
    """Whether an operand's infinities or NaN can be why the result has some."""
    if x.is_finite:
        return False
    if isinstance(op, Elementwise) and op.scalar in ("exp", "exp2", "expm1", "sigmoid"):
        return x.nan or x.hi == math.inf
    return True


# --- rules --------------------------------------------------------------------------------------


def _is_exact(source: DType, target: DType) -> bool:
    """Whether every number of one floating-point dtype is one of the other."""
    if source is target:
        return True
    if not (source.is_float and target.is_float) or source.bits >= target.bits:
        return False
    a, b = finfo(source), finfo(target)
    return a.eps >= b.eps and a.max <= b.max and a.smallest_subnormal >= b.smallest_subnormal


def _cast(walk: Walk, op: Cast, given: Sequence[Term]) -> Term:
    return converted(walk, given[0], tensor_type(op.x).dtype, op.dtype)


def converted(walk: Walk, x: Term, source: DType, target: DType) -> Term:
    """A term in another dtype: itself where nothing is rounded."""
    if _is_exact(source, target):
        return x
    return walk.terms.apply("cast", (x,), target, source)


def _bitcast(walk: Walk, op: Bitcast, given: Sequence[Term]) -> Term:
    """The bits; of the exponent's bits alone the power of two below the number."""
    (x,) = given
    if x.op == "bitcast" and x.attr is op.dtype:
        return x.args[0]  # there and back, as `stop_gradient` does
    if op.dtype.is_float and x.op == "and":
        mask = _exponent_mask(op.dtype)
        for number, bits in (x.args, x.args[::-1]):
            if number.op == "bitcast" and bits.op == "const" and bits.attr[1] == mask:
                inner = number.args[0]
                least = finfo(op.dtype).smallest_normal
                if number.attr is op.dtype and walk.context.interval(inner).lo >= least:
                    return walk.terms.apply("pow2", (inner,), op.dtype)
    return walk.terms.apply("bitcast", (x,), op.dtype, tensor_type(op.x).dtype)


def _exponent_mask(dtype: DType) -> int:
    inf = np.asarray(math.inf, dtype.np) if dtype.bits >= 16 else None
    return -1 if inf is None else int(inf.view(f"u{dtype.bits // 8}"))


def _elementwise(walk: Walk, op: Elementwise, given: Sequence[Term]) -> Term:
    dtypes = [tensor_type(v).dtype for v in op.operands]
    dtype = tensor_type(op.results[0]).dtype
    if any(d.is_complex for d in dtypes):
        dtype = next(d for d in dtypes if d.is_complex)
    elif dtype.is_bool:
        dtype = dtypes[-1]  # that of what is compared, or chosen from
    return walk.terms.apply(op.row.name, tuple(given), dtype)


def _broadcast(walk: Walk, op: Broadcast, given: Sequence[Term]) -> Term:
    return walk.terms.rename(given[0], dict(enumerate(op.dims)))


def _transpose(walk: Walk, op: Transpose, given: Sequence[Term]) -> Term:
    return walk.terms.rename(given[0], {axis: k for k, axis in enumerate(op.perm)})


def _reshape(walk: Walk, op: Reshape, given: Sequence[Term]) -> Term:
    (x,) = given
    before = [k for k, n in enumerate(tensor_type(op.x).shape) if n != 1]
    after = [k for k, n in enumerate(op.shape) if n != 1]
    same = [tensor_type(op.x).shape[k] for k in before] == [op.shape[k] for k in after]
    if same:
        return walk.terms.rename(x, dict(zip(before, after, strict=True)))
    return walk.shuffled(op, given)


def _reduce(walk: Walk, op: Reduce, given: Sequence[Term]) -> Term:
    type = tensor_type(op.x)
    count = walk.count([type.shape[k] for k in op.axes])
    kept = {axis: k for k, axis in enumerate(op.kept)}
    if type.dtype.is_complex:
        return walk.leaf(tensor_type(op.result), ANY)
    wide = op.accumulator if op.row.name in ("add", "mul") else type.dtype
    found = walk.terms.reduce(op.row.name, given[0], op.axes, count, wide)
    return converted(walk, walk.terms.rename(found, kept), wide, type.dtype)


def _arg_reduce(walk: Walk, op: ArgReduce, given: Sequence[Term]) -> Term:
    most = walk.sizes(tensor_type(op.operands[0]).shape[op.axis])[1]
    type = tensor_type(op.result)
    return walk.same(op, given, type, _indices(most, type.dtype))


def _indices(count: float, dtype: DType) -> Interval:
    limits = finite_range(dtype)
    top = limits.hi if count == math.inf else max(int(count) - 1, 0)
    return cast(Interval(0, top), dtype, dtype) if dtype.is_integer else Interval(0.0, float(top))


def _iota(walk: Walk, op: Iota, given: Sequence[Term]) -> Term:
    most = walk.sizes(op.shape[op.axis])[1]
    key = ("iota", op.shape[op.axis], op.dtype.name)
    base = walk.bases.setdefault(key, Base(_indices(most, op.dtype), "iota"))
    axis = None if op.shape[op.axis] == 1 else op.axis
    return walk.terms.leaf(base, (axis,), op.dtype)


def _slice(walk: Walk, op: Slice, given: Sequence[Term]) -> Term:
    """Part of an array; of numbers that count, as sizes are made of, it is known which."""
    (x,) = given
    more = EMPTY
    if not x.free:
        return x
    if x.op == "leaf" and x.attr[0].label == "iota":
        (axis,) = x.free
        least, most = walk.sizes(op.start[axis])[0], walk.sizes(op.limit[axis])[1] - 1
        top = finite_range(x.dtype).hi if most == math.inf else int(most)
        more = cast(Interval(least, max(top, least)), int64, x.dtype)
    found = walk.context.interval(x)
    return walk.same(op, given, tensor_type(op.result), found if more is EMPTY else more)


def _concatenate(walk: Walk, op: Concatenate, given: Sequence[Term]) -> Term:
    return walk.shuffled(op, given)


def _gather(walk: Walk, op: Gather, given: Sequence[Term]) -> Term:
    x = tensor_type(op.x)
    inside = all(
        walk.context.interval(i).within(Interval(0, walk.sizes(x.shape[axis])[0] - 1))
        for i, axis in zip(given[1:], op.axes, strict=True)
    )
    more = EMPTY
    if not inside and op.mode is IndexMode.FILL:
        more = EMPTY.or_nan() if x.dtype.is_inexact else point(0)
    elif not inside and op.mode is IndexMode.DROP:
        more = point(0.0 if x.dtype.is_inexact else 0)
    found = walk.context.interval(given[0]).join(more)
    return walk.same(op, given, tensor_type(op.result), found)


def _scatter(walk: Walk, op: Scatter, given: Sequence[Term]) -> Term:
    type = tensor_type(op.x)
    x, updates = walk.context.interval(given[0]), walk.context.interval(given[1])
    found = x.join(updates)
    if op.combine in (Combine.ADD, Combine.MUL):
        # All updates may have one place.
        outer = tensor_type(op.updates).rank - type.rank + len(op.axes)
        many = walk.count(tensor_type(op.updates).shape[:outer])
        most = 1 if op.unique else many.most
        if op.combine is Combine.ADD:
            total = sum_of(updates, 0, most, type.dtype)
            found = x.join(apply("add", [x, total], type.dtype))
            # Added one after the other to what is there: as a sum of one number more.
            both = sum_of(x.join(updates), 0, most + 1, type.dtype)
            found = found if most <= 1 else both.join(x)
        elif most <= 1:
            found = x.join(apply("mul", [x, updates], type.dtype))
        else:
            found = full_range(type.dtype)
    return walk.same(op, given, tensor_type(op.result), found)


def _dot(walk: Walk, op: DotGeneral, given: Sequence[Term]) -> Term:
    type = tensor_type(op.result)
    a, b = [walk.context.interval(x) for x in given]
    if type.dtype.is_complex:
        return walk.leaf(type, ANY)
    if type.dtype.is_bool:
        return walk.same(op, given, type, Interval(0, 1))
    count = walk.count([tensor_type(op.lhs).shape[k] for k in op.contract[0]])
    wide = op.accumulate
    if wide.is_integer:
        ends = [x * y for x in (a.lo, a.hi) for y in (b.lo, b.hi)] if count.least else [0]
        product = Interval(min(ends), max(ends)) if not (a.is_empty or b.is_empty) else EMPTY
    else:
        product = apply("mul", [a, b], wide)
    found = sum_of(product, count.least, count.most, wide)
    return walk.same(op, given, type, cast(found, wide, type.dtype))


def _cumulative(walk: Walk, op: Cumulative, given: Sequence[Term]) -> Term:
    type = tensor_type(op.x)
    x = walk.context.interval(given[0])
    most = walk.sizes(type.shape[op.axis])[1]
    row = op.row.name
    found = full_range(type.dtype)
    if row in ("max", "min"):
        found = x
    elif row == "add" and not type.dtype.is_complex:
        found = sum_of(x, 1, most, type.dtype).join(x)
    elif row == "logaddexp" and most < math.inf:
        found = x
        for _ in range(max(int(most) - 1, 0).bit_length()):
            found = found.join(apply("logaddexp", [found, found], type.dtype))
    return walk.same(op, given, type, found)


def _unwritten(walk: Walk, op: Unwritten, given: Sequence[Term]) -> Term:
    return walk.terms.const(0.0 if op.dtype.is_inexact else 0, op.dtype)


_RULES: tuple[tuple[type[GraphOp], Callable[[Walk, Any, Sequence[Term]], Term]], ...] = (
    (Cast, _cast),
    (Bitcast, _bitcast),
    (Elementwise, _elementwise),
    (Constant, lambda walk, op, given: walk.constant(op)),
    (Iota, _iota),
    (Broadcast, _broadcast),
    (Transpose, _transpose),
    (Reshape, _reshape),
    (Reduce, _reduce),
    (ArgReduce, _arg_reduce),
    (DotGeneral, _dot),
    (Cumulative, _cumulative),
    (Gather, _gather),
    (Scatter, _scatter),
    (Concatenate, _concatenate),
    (Slice, _slice),
    (Pad, lambda walk, op, given: walk.shuffled(op, given)),
    (DynamicSlice, lambda walk, op, given: walk.shuffled(op, given[:1])),
    (DynamicUpdateSlice, lambda walk, op, given: walk.shuffled(op, given[:2])),
    (Unwritten, _unwritten),
)
