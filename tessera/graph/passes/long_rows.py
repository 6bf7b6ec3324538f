"""Rows that are too long to be kept whole are gone over block of columns by block of columns.

    m = max(x)                     for each block of columns, with what was found before:
    e = exp(x - m)                     m' = max(m, max(x)); a = exp(m - m'); e = exp(x - m')
    l = sum(e)                 ==>     l' = l * a + sum(e)
    o = dot(e, v)                      o' = o * a + dot(e, v)

after Milakov and Gimelshein, "Online normalizer calculation for softmax" (2018), and Dao et al.,
"FlashAttention" (2022). Before that, what is the same for a row is taken out of its sums, so that
nothing waits for them that need not:

    dot(e * r, v)           ==>  dot(e, v) * r
    sum(dot(d, v) * e)      ==>  sum(d * dot(e, v)), the second one of which there is

Nothing is subtracted where the maximum is -inf or no number; sums are what they were there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence, Set
from dataclasses import dataclass, field
from math import inf, isinf
from typing import TYPE_CHECKING, Any

import numpy as np

from tessera.dtypes import DType, float32
from tessera.graph.ops import elementwise as e
from tessera.graph.ops.blocks import Cut
from tessera.graph.ops.contract import DotGeneral
from tessera.graph.ops.elementwise import Cast
from tessera.graph.ops.generate import Constant, Dense
from tessera.graph.ops.rearrange import Broadcast, Reshape, Transpose
from tessera.graph.ops.reduce import Max, Sum
from tessera.graph.passes.block_parts import Part, Refused, op_of
from tessera.graph.passes.replacing import Made
from tessera.graph.passes.same_axes import axis_pairs, moved
from tessera.graph.passes.skip_masked import number_of
from tessera.ir.core import Op, Value, tensor_type
from tessera.ir.intexpr import Dim

if TYPE_CHECKING:
    from tessera.graph.passes.block_rows import Rows


# --- sums of exponentials that are scaled -------------------------------------------------------


class Online:
    """Largest elements of rows, and the sums of exponentials that wait for them, as one op.

    Attributes:
        rows: the blocks.
        largest: the op that finds the largest elements.
        sums: what waits for them.
        shifts: the values that are these, and how they are cut.
        guards: of those of them that are 0 where that is no number, the op that sees to it.
        subtracted: those that sums subtract.
    """

    def __init__(self, rows: Rows, largest: Max, kept: Sequence[Op]) -> None:
        self.rows = rows
        self.largest = largest
        self.shifts: dict[Value, Cut] = {}
        self.guards: dict[Value, e.Select] = {}
        self.find_shifts(largest.results[0], rows.steps[largest].result)
        self.subtracted: set[Value] = set()
        self.sums: list[Value] = []
        for op in kept:
            if not rows.steps[op].summed or rows.levels[op] > 1 or op is largest:
                continue
            wide = [v for v in rows.program.operands(op) if rows.cut_of(v) is not None]
            is_sum = isinstance(op, (Sum, DotGeneral)) and len(wide) == 1
            if rows.levels[op] != 1 or not is_sum or rows.steps[op].summed != rows.across:
                raise Refused
            others = [v for v in rows.program.operands(op) if v is not wide[0]]
            if not self.is_scaled(wide[0]) or not all(map(self.is_free, others)):
                raise Refused
            self.sums.append(op.results[0])

    @staticmethod
    def of(rows: Rows, kept: Sequence[Op]) -> Online | None:
        """The one of some ops, if they subtract what is largest of rows."""
        found = [op for op in kept if isinstance(op, Max) and rows.steps[op].summed]
        if not found:
            return None
        if len(found) > 1 or rows.levels[found[0]]:
            raise Refused
        return Online(rows, found[0], kept)

    @property
    def outputs(self) -> list[Value]:
        """What the op gives: the largest elements, and the sums."""
        return [self.largest.results[0], *self.sums]

    # --- what it is made of -------------------------------------------------------------------

    def find_shifts(self, value: Value, cut: Cut, guard: e.Select | None = None) -> None:
        """Notes what is subtracted: a value, its other shapes, and what guards it."""
        self.shifts[value] = cut
        if guard:
            self.guards[value] = guard
        for op in self.rows.program.users.get(value, ()):
            if isinstance(op, Reshape):
                found = moved(op, cut)
                if found is not None:
                    self.find_shifts(op.results[0], found, guard)
            elif isinstance(op, e.Select) and not guard and self.is_guard(op, value):
                self.find_shifts(op.results[0], cut, op)

    def is_guard(self, op: e.Select, value: Value) -> bool:
        """Whether an op gives a value, or 0 where a test of that value alone says so."""
        test, *parts = self.rows.program.operands(op)
        if not isinstance(test.op, (e.IsFinite, e.Eq, e.Ne)):
            return False
        kept, other = reversed(parts) if isinstance(test.op, e.Eq) else parts
        tested = self.rows.program.operands(test.op)
        rest = [v for v in tested if v is not value]
        if kept is not value or not _is_zero(other) or len(rest) != len(tested) - 1:
            return False
        return all(map(_is_infinite, rest))

    def is_free(self, value: Value) -> bool:
        """Whether a value waits for no row."""
        return self.rows.levels.get(value.op, 0) == 0

    def is_scaled(self, value: Value) -> bool:
        """Whether a value is as many times as large as an exponential of a row."""
        op = value.op
        if op is None:
            return False
        operands = self.rows.program.operands(op)
        if isinstance(op, e.Exp):
            return self.is_shifted(operands[0])
        if isinstance(op, (e.Neg, Cast, Reshape, Transpose)):
            return self.is_scaled(operands[0])
        if isinstance(op, (e.Mul, e.Div)):
            a, b = operands
            if isinstance(op, e.Mul) and self.is_free(a):
                a, b = b, a
            return self.is_scaled(a) and self.is_free(b)
        if isinstance(op, (e.Add, e.Sub)):
            return all(map(self.is_scaled, operands))
        if isinstance(op, e.Select) and self.is_free(operands[0]):
            parts = [v for v in operands[1:] if not _is_zero(v)]
            return bool(parts) and all(map(self.is_scaled, parts))
        return False

    def is_shifted(self, value: Value) -> bool:
        """Whether a value is the row without its largest element."""
        if not isinstance(value.op, e.Sub):
            return False
        x, shift = self.rows.program.operands(value.op)
        while shift not in self.shifts and isinstance(shift.op, (Broadcast, Reshape)):
            shift = self.rows.program.operands(shift.op)[0]
        if x is not self.rows.program.operands(self.largest)[0] or shift not in self.shifts:
            return False
        self.subtracted.add(shift)
        return True

    # --- the op -------------------------------------------------------------------------------

    def blocks(self) -> tuple[list[Op], list[Value]]:
        """The op and what follows it, and the values that are its outputs."""
        rows, loc = self.rows, self.largest.loc
        part = Part(rows, 1)
        made = _Maker(part.code, loc)
        step = rows.steps[self.largest]
        x = part.value(rows.program.operands(self.largest)[0], step.operands[0])
        found = made(Max(x, self.largest.axes, loc=loc))
        before = Value(tensor_type(found))
        largest = made(e.Max(before, found, loc=loc))
        shift = made.guarded(largest)
        for value, cut in self.shifts.items():
            part.env[value, cut] = made(Reshape(shift, part.shape(value, cut), loc=loc))
        wide = _at_least_32(tensor_type(found).dtype)
        scale = made(e.Exp(made(e.Sub(*[made.cast(v, wide) for v in (before, shift)]))))
        states, yielded = [before], [largest]
        for value in self.sums:
            op = op_of(value)
            own = rows.steps[op]
            new = part.copied(op, own.operands, own.result)
            state = Value(tensor_type(new))
            scaled = made(e.Mul(state, self.spread(made, scale, new, own.result), loc=loc))
            states.append(state)
            yielded.append(made(e.Add(scaled, new, loc=loc)))
        firsts = (-inf, *[0.0] * len(self.sums))
        code, results = part.finished(self.outputs, yielded, states, firsts)
        guards = {self.guards.get(v) for v in self.subtracted}
        if len(guards) > 1:
            raise Refused
        (guard,) = guards
        if guard and isinstance(guard.operands[0].op, e.IsFinite):
            return code, results
        # Where no number was the largest, the program subtracts something else.
        after = _Maker(code, loc)
        plain = results[0]
        shift = self.guarded(after, guard, plain) if guard else plain
        factor = after(e.Exp(after(e.Sub(after.guarded(plain), shift, loc=loc)), loc=loc))
        for k, value in enumerate(self.sums, 1):
            factors = self.spread(after, factor, results[k], rows.steps[op_of(value)].result)
            results[k] = after(e.Mul(results[k], factors, loc=loc))
        return code, results

    def guarded(self, made: _Maker, guard: e.Select, largest: Value) -> Value:
        """The largest elements as the program guards them."""
        test, *parts = self.rows.program.operands(guard)
        (value,) = [v for v in parts if v in self.shifts]
        line = made(Reshape(largest, tensor_type(value).shape, loc=made.loc))
        found = op_of(test)
        given = [line if v is value else v for v in self.rows.program.operands(found)]
        tested = made(found.rebuild(given))
        kept = made(guard.rebuild([tested, *[line if v is value else v for v in parts]]))
        return made(Reshape(kept, tensor_type(largest).shape, loc=made.loc))

    def spread(self, made: _Maker, value: Value, like: Value, cut: Cut) -> Value:
        """One number of each row, for each element of an array of rows.

        Args:
            made: what adds ops.
            value: the numbers, cut as the largest elements are.
            like: the array.
            cut: how it is cut.
        """
        own = self.rows.steps[self.largest].result
        shape = tensor_type(value).shape
        axes = [k for k, loop in enumerate(own) if loop >= 0]
        places = [cut.index(own[k]) for k in axes]
        if places != sorted(places):
            raise Refused
        line = made(Reshape(value, tuple([shape[k] for k in axes])))
        line = made.cast(line, tensor_type(like).dtype)
        return made(Broadcast(line, tensor_type(like).shape, tuple(places)))


class _Maker:
    """Adds ops to some code."""

    def __init__(self, code: list[Op], loc: Any) -> None:
        self.code = code
        self.loc = loc

    def __call__(self, op: Op) -> Value:
        self.code.append(op)
        return op.results[0]

    def cast(self, value: Value, dtype: DType) -> Value:
        """A value as another dtype."""
        if tensor_type(value).dtype is dtype:
            return value
        return self(Cast(value, dtype, loc=self.loc))

    def guarded(self, value: Value) -> Value:
        """A value, and 0 where it is no number."""
        test = self(e.IsFinite(value, loc=self.loc))
        return self(e.Select(test, value, self.zeros(value), loc=self.loc))

    def zeros(self, value: Value) -> Value:
        """Zeros, as many as a value has elements."""
        type = tensor_type(value)
        zero = self(Constant(Dense.of(np.zeros((), type.dtype.np), type.dtype), loc=self.loc))
        return self(Broadcast(zero, type.shape, (), loc=self.loc))


def _at_least_32(dtype: DType) -> DType:
    return dtype if dtype.bits >= 32 else float32


def _is_zero(value: Value) -> bool:
    return number_of(value) == 0


def _is_infinite(value: Value) -> bool:
    number = number_of(value)
    return number is not None and isinf(number)


# --- what is taken out of sums --------------------------------------------------------------------


@dataclass
class _Factors:
    """What an array with rows is a product of.

    Attributes:
        wide: its factors that differ along a row.
        narrow: those that do not, as they are repeated, and whether they divide.
        masks: tests where one of which fails it is zero.
        is_negative: whether it is that with another sign.
    """

    wide: list[Value] = field(default_factory=list[Value])
    narrow: list[tuple[Broadcast, bool]] = field(default_factory=list[tuple[Broadcast, bool]])
    masks: dict[Value, None] = field(default_factory=dict[Value, None])
    is_negative: bool = False

    def is_plain(self) -> bool:
        """Whether all of it differs along a row."""
        return not self.narrow and not self.is_negative


def simpler(rows: Rows) -> tuple[Set[Op], Made] | None:
    """A sum over columns without what is the same for a row, or another one that is better, instead
    of one that there is; None if none is left."""
    is_long = rows.cols >= 0
    sums = [op for op, step in rows.steps.items() if not is_long or step.summed == rows.across]
    for op in sums:
        if isinstance(op, DotGeneral):
            found = _factored(rows, op)
            if found is not None:
                return {op}, {op.results[0]: found}
    for op in sums:
        if isinstance(op, Sum):
            found = _of_products(rows, op, [s for s in sums if isinstance(s, DotGeneral)])
            if found is not None:
                return {op}, {op.results[0]: found}
    for op, step in rows.steps.items() if is_long else ():
        if isinstance(op, DotGeneral) and step.summed and step.result[-1] == rows.cols:
            turned = _turned(rows, op)
            if turned is not None:
                return turned
    return None


def _turned(rows: Rows, op: DotGeneral) -> tuple[Set[Op], Made] | None:
    """A product that is turned afterwards, with its operands the other way round: what is added to
    for a block of columns lies together then."""
    users = rows.program.users.get(op.results[0], ())
    rank = tensor_type(op.result).rank
    perm = (*range(rank - 2), rank - 1, rank - 2)
    if len(op.batch_axes[0]) != rank - 2:
        return None
    if len(users) != 1 or op.results[0] in rows.program.outputs:
        return None
    (user,) = users
    if not isinstance(user, Transpose) or tuple(user.perm) != perm:
        return None
    lhs, rhs = rows.program.operands(op)
    contract, batch = op.contract[::-1], op.batch_axes[::-1]
    new = op.rebuild([rhs, lhs], contract=contract, batch_axes=batch)
    return {op, user}, {user.results[0]: ([new], new.results[0])}


def _factors(rows: Rows, value: Value, axis: int, found: _Factors, divides: bool = False) -> bool:
    """Finds what a value is a product of; whether it is."""
    op = value.op
    if isinstance(op, (e.Mul, e.Div)) and not (divides and isinstance(op, e.Div)):
        a, b = rows.program.operands(op)
        turned = divides or isinstance(op, e.Div)
        return _factors(rows, a, axis, found, divides) and _factors(rows, b, axis, found, turned)
    if isinstance(op, e.Neg):
        found.is_negative = not found.is_negative
        return _factors(rows, rows.program.operands(op)[0], axis, found, divides)
    if isinstance(op, e.Select) and not divides:
        test, kept, other = rows.program.operands(op)
        if _is_zero(other):
            found.masks[test] = None
            return _factors(rows, kept, axis, found)
    if isinstance(op, Broadcast) and _is_repeated(rows, op, axis):
        found.narrow.append((op, divides))
        return True
    found.wide.append(value)
    return not divides


def _factored(rows: Rows, op: DotGeneral) -> tuple[list[Op], Value] | None:
    """`dot(e * r, v)` as `dot(e, v) * r`."""
    operands = list(rows.program.operands(op))
    side = next((k for k, v in enumerate(operands) if rows.cut_of(v) is not None), None)
    if side is None or len(op.contract[0]) != 1:
        return None
    value, (axis,) = operands[side], op.contract[side]
    found = _Factors()
    if not _is_row(rows, value, axis) or not _factors(rows, value, axis, found):
        return None
    if not _has_exponential(rows, found.wide, axis):
        return None
    if all(isinstance(b.x.op, Constant) for b, _ in found.narrow):
        return None
    made = _Maker([], op.loc)
    operands[side] = _product(made, found)
    # A sum of exponentials may be too large for a narrow dtype.
    dtype = tensor_type(op.result).dtype
    total = made(op.rebuild(operands, dtype=op.accumulate if dtype.bits < 32 else dtype))
    places = {a[1]: b[1] for a, b in _own_pairs(op) if a[0] is op.operands[side]}
    return _times(rows, made, total, dtype, found, places)


def _of_products(
    rows: Rows, op: Sum, products: Sequence[DotGeneral]
) -> tuple[list[Op], Value] | None:
    """`sum(dot(d, v) * e)` as `sum(d * dot(e, v))`."""
    (value,) = rows.program.operands(op)
    if len(op.axes) != 1 or op.order is not None:
        return None
    (axis,) = op.axes
    found = _Factors()
    if not _is_row(rows, value, axis) or not _factors(rows, value, axis, found):
        return None
    scores = [v for v in found.wide if isinstance(v.op, DotGeneral) and v is not rows.seed.result]
    if len(scores) != 1:
        return None
    (score,) = scores
    rest = Counter([v for v in found.wide if v is not score])
    if not _has_exponential(rows, list(rest), axis):
        return None
    wanted = (rest, {*found.masks})
    dot = op_of(score)
    assert isinstance(dot, DotGeneral)
    if len(dot.contract[0]) != 1:
        return None
    pairs = _own_pairs(dot)
    for side in (0, 1):
        mine = {a[1]: b[1] for a, b in pairs if a[0] is dot.operands[side]}
        theirs = {a[1]: b[1] for a, b in pairs if a[0] is dot.operands[1 - side]}
        if axis in mine.values() or axis not in theirs.values():
            continue
        made = _with_other(rows, op, dot, side, (mine, theirs), wanted, products)
        if made is not None:
            code, total = made
            kept = [k for k in range(tensor_type(value).rank) if k != axis]
            places = {k: place for place, k in enumerate(kept)}
            dtype = tensor_type(op.result).dtype
            return _times(rows, _Maker(code, op.loc), total, dtype, found, places)
    return None


def _with_other(
    rows: Rows,
    op: Sum,
    dot: DotGeneral,
    side: int,
    axes: tuple[dict[int, int], dict[int, int]],
    rest: tuple[Counter[Value], set[Value]],
    products: Sequence[DotGeneral],
) -> tuple[list[Op], Value] | None:
    """The sum of `d * o`, where `o` is a product of the rest and of what `dot` multiplies `d` with.

    Args:
        rows: the blocks.
        op: the sum over columns.
        dot: `dot(d, v)`.
        side: of it, where d stands.
        axes: where axes of d and v are in its result.
        rest: what else is multiplied, and the masks.
        products: where `o` may be found.
    """
    mine, theirs = axes
    (axis,) = op.axes
    given = rows.program.operands(dot)
    d, v = given[side], given[1 - side]
    (deep,), (deep_v,) = dot.contract[side], dot.contract[1 - side]
    for other in products:
        both = list(rows.program.operands(other))
        if v not in both or len(other.contract[0]) != 1:
            continue
        at = 1 - both.index(v)
        found = _Factors()
        is_product = _factors(rows, both[at], axis, found) and found.is_plain()
        if not is_product or (Counter(found.wide), {*found.masks}) != rest:
            continue
        pairs = _own_pairs(other)
        wide = {a[1]: b[1] for a, b in pairs if a[0] is other.operands[at]}
        last = {a[1]: b[1] for a, b in pairs if a[0] is other.operands[1 - at]}
        # The columns are summed, and what both products go through together is the same in them.
        if other.contract[at] != (axis,) or theirs[other.contract[1 - at][0]] != axis:
            continue
        together = dot.batch_axes[1 - side]
        if any(k not in last or last[k] != wide.get(theirs[k]) for k in together):
            continue
        rank = tensor_type(d).rank
        perm = tuple([last[deep_v] if k == deep else wide[mine[k]] for k in range(rank)])
        kept = [mine[k] for k in range(rank) if k != deep]
        types = {tensor_type(x).dtype for x in (d, v, other.result, op.result)}
        if len({*perm}) != tensor_type(other.result).rank or kept != sorted(kept) or len(types) > 1:
            continue
        made = _Maker([], op.loc)
        turned = other.results[0]
        if perm != tuple(range(len(perm))):
            turned = made(Transpose(turned, perm, loc=op.loc))
        if tensor_type(turned).shape != tensor_type(d).shape:
            continue
        total = made(Sum(made(e.Mul(d, turned, loc=op.loc)), (deep,), loc=op.loc))
        return made.code, total
    return None


def _own_pairs(op: DotGeneral) -> list[tuple[tuple[Value, int], tuple[Value, int]]]:
    """Which axes of its operands are axes of the result."""
    return [(a, b) for a, b in axis_pairs(op) if b[0] is op.results[0]]


def _is_row(rows: Rows, value: Value, axis: int) -> bool:
    """Whether an axis of a value is that of columns."""
    cut = rows.cut_of(value)
    if cut is None or not rows.is_wide(value):
        return False
    return cut[axis] == rows.cols and tensor_type(value).shape[axis] == rows.columns


def _has_exponential(rows: Rows, values: Sequence[Value], axis: int) -> bool:
    """Whether there is one of numbers less something of the row: it is not large, nor are sums."""
    operands = rows.program.operands
    below = [operands(v.op)[0].op for v in values if isinstance(v.op, e.Exp)]
    shifts = [operands(op)[1].op for op in below if isinstance(op, e.Sub)]
    return any(isinstance(op, Broadcast) and _is_repeated(rows, op, axis) for op in shifts)


def _is_repeated(rows: Rows, op: Broadcast, axis: int) -> bool:
    """Whether all elements along an axis are the same."""
    before = tensor_type(rows.program.operands(op)[0]).shape
    return axis not in op.dims or before[op.dims.index(axis)] == 1


def _product(made: _Maker, factors: _Factors) -> Value:
    """What differs along a row of a product."""
    total = factors.wide[0]
    for value in factors.wide[1:]:
        total = made(e.Mul(total, value, loc=made.loc))
    for test in factors.masks:
        total = made(e.Select(test, total, made.zeros(total), loc=made.loc))
    return total


def _times(
    rows: Rows,
    made: _Maker,
    total: Value,
    dtype: DType,
    factors: _Factors,
    places: dict[int, int],
) -> tuple[list[Op], Value] | None:
    """A sum of rows times what was taken out of it.

    Args:
        rows: the blocks.
        made: what adds ops.
        total: the sum.
        dtype: what it is to be in the end.
        factors: what it was found in.
        places: where the axes of these are in the sum.
    """
    for op, divides in factors.narrow:
        x = rows.program.operands(op)[0]
        shape = tensor_type(x).shape
        kept = [k for k, axis in enumerate(op.dims) if axis in places]
        dims = [places[op.dims[k]] for k in kept]
        if dims != sorted(dims):
            return None
        line = made(Reshape(x, _dims(shape, kept), loc=made.loc)) if len(kept) < len(shape) else x
        line = made.cast(line, tensor_type(total).dtype)
        factor = made(Broadcast(line, tensor_type(total).shape, tuple(dims), loc=made.loc))
        total = made((e.Div if divides else e.Mul)(total, factor, loc=made.loc))
    if factors.is_negative:
        total = made(e.Neg(total, loc=made.loc))
    return made.code, made.cast(total, dtype)


def _dims(shape: Sequence[Dim], kept: Sequence[int]) -> tuple[Dim, ...]:
    return tuple([shape[k] for k in kept])
