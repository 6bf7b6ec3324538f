"""Blocks of rows read only the columns that a causal mask leaves.

    blocks s: x = select(row >= column, dot(q, k), -inf); e = exp(x - max(x)); ... dot(e, v)
    ==>
    blocks s: the same on the first T(s) places of k and v      T(s) = rows * (s + 1), rounded up

What is known of the columns from T on is followed through the body, as a number: the mask gives
them -inf, or a large negative number, whose exponential is 0, and products with 0 stay 0. The rule
applies if all sums take 0 there, all maxima numbers that are no maximum, and all results that have
columns are sums.

A number counts as large if no score of a kept column is as small: -1e8 or less, or half the least
number of a narrower dtype. NaN and infinity times 0 counts as 0: what a row must not see does not
reach it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from tessera.dtypes import finfo
from tessera.graph.ops import elementwise as e
from tessera.graph.ops import reduce as r
from tessera.graph.ops.blocks import Blocks
from tessera.graph.ops.contract import DotGeneral
from tessera.graph.ops.elementwise import Cast
from tessera.graph.ops.generate import Constant, Iota
from tessera.graph.ops.rearrange import Broadcast, Reshape, Transpose
from tessera.graph.ops.reduce import Reduce
from tessera.graph.passes.same_axes import Axis, axis_pairs
from tessera.ir.core import Block, Op, Value, tensor_type
from tessera.ir.intexpr import Dim, ceildiv, substitute, sym

LARGE = 1e8
"""A number that far below 0 is that of a masked score."""

Number = float | None
"""What the columns that are left out hold; None if that is not known, NaN if it is the same in all
columns of a row, and nothing that a mask would give."""

ORDINARY = math.nan
"""A number of the row."""


def skip_masked(op: Blocks, seed: Value, row: int, column: int, step: int) -> Blocks:
    """The op with fewer columns; itself where there is no such mask.

    Args:
        op: blocks of rows.
        seed: the product in its body that has all rows and columns.
        row: its axis of rows.
        column: its axis of columns.
        step: how many columns at a time there are more.
    """
    return _Columns(op, seed, row, column).run(step)


class _Same:
    """Axes that are the same (union-find)."""

    def __init__(self) -> None:
        self.up: dict[Axis, Axis] = {}

    def find(self, axis: Axis) -> Axis:
        """The axis that stands for all of its kind."""
        while axis in self.up:
            axis = self.up[axis]
        return axis

    def join(self, a: Axis, b: Axis) -> None:
        """Says that two are the same."""
        a, b = self.find(a), self.find(b)
        if a != b:
            self.up[a] = b


@dataclass(frozen=True, slots=True)
class _Place:
    """An integer that counts rows or columns.

    Attributes:
        is_row: which.
        first: what it is at 0.
    """

    is_row: bool
    first: int


class _Columns:
    """The analysis of one op.

    Attributes:
        same: axes of the body's values.
        outside: the operand that each argument is a block of.
        limits: how far right of its row a column may be that is seen, for each mask.
        held: what the columns that are left out hold.
    """

    def __init__(self, op: Blocks, seed: Value, row: int, column: int) -> None:
        self.op = op
        self.seed = seed
        self.same = _Same()
        for one in op.body.ops:
            for a, b in axis_pairs(one):
                self.same.join(a, b)
        self.row = self.same.find((seed, row))
        self.column = self.same.find((seed, column))
        self.rows, self.columns = tensor_type(seed).shape[row], tensor_type(seed).shape[column]
        self.outside = dict(zip(op.body.args, op.args, strict=False))  # states come behind
        self.cuts = dict(zip(op.body.args, op.cuts, strict=False))
        self.limits: list[int] = []
        self.held: dict[Value, Number] = {}
        for arg in op.body.args:
            self.held[arg] = ORDINARY if self.column_of(arg) is None else None

    def run(self, step: int) -> Blocks:
        """The op with fewer columns, if it may have fewer."""
        loop, across = self.loop(self.row), self.loop(self.column)
        if loop is None or self.row == self.column:
            return self.op
        if not all(self.follow(op) for op in self.op.body.ops) or not self.limits:
            return self.op
        for value, cut in zip(self.op.body.outputs, self.op.outs, strict=True):
            if self.column_of(value) is not None and (loop in cut or self.held[value] != 0):
                return self.op
        count = self.op.counts[loop]
        names = tuple([f"block{k}" for k in range(len(self.op.counts))])
        assert isinstance(self.rows, int)
        seen = sym(names[loop]) * self.rows + self.rows + max(self.limits)
        if across is not None:
            return self.shortened(ceildiv(seen, self.columns), loop, across, names)
        whole = all(n % step == 0 for n in (self.rows, max(self.limits)))
        wide = seen if whole else (seen + step - 1) // step * step
        ends = [substitute(wide, {names[loop]: k}) for k in (0, count - 1)]
        if not isinstance(ends[0], int) or ends[0] < 1 or ends[1] != self.columns:
            return self.op
        return self.narrowed(wide, names)

    def loop(self, kind: Axis) -> int | None:
        """The loop over blocks of rows, or of columns."""
        for arg, cut in self.cuts.items():
            for axis, loop in enumerate(cut):
                if loop >= 0 and self.same.find((arg, axis)) == kind:
                    return loop
        return None

    def column_of(self, value: Value) -> int | None:
        """The axis of columns of a value."""
        axes = range(tensor_type(value).rank)
        found = [k for k in axes if self.same.find((value, k)) == self.column]
        return found[0] if found else None

    # --- masks --------------------------------------------------------------------------------

    def place(self, value: Value) -> _Place | None:
        """The row or column that an integer counts."""
        line = self.line(value)
        if line is None:
            return None
        axis, first = line
        kind = self.same.find((value, axis))
        if kind in (self.row, self.column):
            return _Place(kind == self.row, first)
        return None

    def line(self, value: Value) -> tuple[int, int] | None:
        """The axis along which an integer is the place, and what it is at 0."""
        op = value.op
        if op is None:
            outer = self.outside.get(value)
            return None if outer is None else self.line(outer)
        if isinstance(op, Iota):
            return op.axis, 0
        if isinstance(op, Cast):
            return self.line(op.x) if op.dtype.is_integer else None
        if isinstance(op, (Broadcast, Transpose, Reshape)):
            line = self.line(op.x)
            axes = {a[1]: b[1] for a, b in axis_pairs(op)}
            return (axes[line[0]], line[1]) if line is not None and line[0] in axes else None
        if isinstance(op, (e.Add, e.Sub)):
            line, number = self.line(op.operands[0]), number_of(op.operands[1])
            if line is None or number is None or not number.is_integer():
                return None
            return line[0], line[1] + int(number if isinstance(op, e.Add) else -number)
        return None

    def limit(self, op: Op, holds: bool) -> int | None:
        """How far right of its row a column may be where a comparison holds, or fails."""
        if not isinstance(op, _COMPARISONS):
            return None
        places = [self.place(v) for v in op.operands]
        left, right = places
        if left is None or right is None or left.is_row == right.is_row:
            return None
        is_above = isinstance(op, (e.Ge, e.Gt)) == holds
        if is_above != left.is_row:
            return None
        row, column = (left, right) if left.is_row else (right, left)
        strict = isinstance(op, (e.Gt, e.Lt)) == holds
        return row.first - column.first - strict

    # --- what is left out ---------------------------------------------------------------------

    def follow(self, op: Op) -> bool:
        """Notes what the result of an op holds there; whether the op may do without these."""
        result = op.results[0]
        if isinstance(op, (Reduce, DotGeneral)):
            return self.combine(op, result)
        found = self.number(op)
        is_row = self.column_of(result) is None and (found is None or math.isnan(found))
        self.held[result] = ORDINARY if is_row else found
        return True

    def combine(self, op: Reduce | DotGeneral, result: Value) -> bool:
        """The same for an op that may combine columns."""
        if isinstance(op, Reduce):
            axis = self.column_of(op.x)
            held = self.held.get(op.x)
            self.held[result] = held if axis is not None and axis not in op.axes else ORDINARY
            if axis is None or axis not in op.axes:
                self.held[result] = ORDINARY if axis is None else None
                return True
            if isinstance(op, r.Max):
                return _is_low(held, op.x)
            return isinstance(op, (r.Sum, r.Any_)) and held == 0
        columns = [self.column_of(v) for v in op.operands]
        zeros = [
            axis is not None and self.held.get(v) == 0
            for v, axis in zip(op.operands, columns, strict=True)
        ]
        summed = any(axis in op.contract[k] for k, axis in enumerate(columns) if axis is not None)
        has_columns = self.column_of(result) is not None
        self.held[result] = (0.0 if any(zeros) else None) if has_columns else ORDINARY
        return not summed or any(zeros)

    def number(self, op: Op) -> Number:
        """What the result of an op that works on elements holds."""
        if isinstance(op, Constant):
            return number_of(op.result)
        given = [self.held.get(v) for v in op.operands]
        if isinstance(op, (Broadcast, Reshape, Transpose, Cast)):
            return given[0]
        if isinstance(op, _COMPARISONS):
            limit = self.limit(op, True)
            if limit is not None:
                self.limits.append(limit)
                return 0.0
            fails = self.limit(op, False)
            if fails is not None:
                self.limits.append(fails)
                return 1.0
        rule = RULES.get(type(op))
        return None if rule is None else rule(op, given)

    # --- the new op ---------------------------------------------------------------------------

    def narrowed(self, wide: Dim, names: tuple[str, ...]) -> Blocks:
        """The op on so many columns."""
        env: dict[Value, Value] = {}
        for arg in self.op.body.args:
            env[arg] = Value(tensor_type(arg).with_shape(self.shape(arg, wide)), arg.name)
        code: list[Op] = []
        for op in self.op.body.ops:
            changes: dict[str, object] = {}
            if isinstance(op, (Broadcast, Reshape)):
                changes["shape"] = self.shape(op.result, wide)
            new = op.rebuild([env[v] for v in op.operands], op.regions, **changes)
            env.update(zip(op.results, new.results, strict=True))
            code.append(new)
        args = [env[v] for v in self.op.body.args]
        body = Block(args, code, [env[v] for v in self.op.body.outputs])
        new = self.op.rebuild(regions=[body], names=names)
        assert isinstance(new, Blocks)
        return new

    def shortened(self, steps: Dim, loop: int, cut: int, names: tuple[str, ...]) -> Blocks:
        """The op with fewer steps of the last loop, which is that over blocks of columns."""
        counts = self.op.counts
        ends = [substitute(steps, {names[loop]: k}) for k in (0, counts[loop] - 1)]
        first, last = [n if isinstance(n, int) else 0 for n in ends]
        if cut != len(counts) - 1 or first < 1 or last > counts[cut]:
            return self.op
        new = self.op.rebuild(names=names, steps=steps)
        assert isinstance(new, Blocks)
        return new

    def shape(self, value: Value, wide: Dim) -> tuple[Dim, ...]:
        """The dims of a value with so many columns."""
        dims = enumerate(tensor_type(value).shape)
        return tuple([wide if self.same.find((value, k)) == self.column else d for k, d in dims])


_COMPARISONS = (e.Ge, e.Gt, e.Le, e.Lt)


def number_of(value: Value) -> Number:
    """The number that all elements of a value are."""
    op = value.op
    while isinstance(op, (Broadcast, Reshape, Cast)):
        op = op.operands[0].op
    if not isinstance(op, Constant) or op.value.array.size != 1 or op.value.dtype.is_complex:
        return None
    return float(op.value.array.reshape(-1)[0])


def _is_low(number: Number, value: Value) -> bool:
    """Whether a number is that of a masked score."""
    if number is None:
        return False
    dtype = tensor_type(value).dtype
    least = -LARGE
    if dtype.is_inexact and dtype.bits < 32:
        least = max(least, float(finfo(dtype).min) / 2)
    return number <= least


def _add(op: Op, given: Sequence[Number]) -> Number:
    a, b = given
    low = [x for x, v in zip(given, op.operands, strict=True) if _is_low(x, v)]
    if low:
        return low[0]
    return None if a is None or b is None else a + b


def _sub(op: Op, given: Sequence[Number]) -> Number:
    a, b = given
    if a is None or b is None or _is_low(b, op.operands[1]):
        return None
    return a if _is_low(a, op.operands[0]) else a - b


def _mul(op: Op, given: Sequence[Number]) -> Number:
    a, b = given
    if 0 in (a, b):
        return 0.0
    return a * b if a is not None and b is not None and _is_known(a, b) else None


def _div(op: Op, given: Sequence[Number]) -> Number:
    a, b = given
    if a is None or b is None or b == 0:
        return None
    if a == 0:
        return 0.0
    return a / b if _is_known(a, b) else None


def _is_known(a: float, b: float) -> bool:
    """Whether two numbers are both what they are, or both of the row."""
    return math.isnan(a) == math.isnan(b)


def _exp(op: Op, given: Sequence[Number]) -> Number:
    return 0.0 if _is_low(given[0], op.operands[0]) else None



def _neg(op: Op, given: Sequence[Number]) -> Number:
    return None if given[0] is None else -given[0]


def _eq(op: Op, given: Sequence[Number]) -> Number:
    low = [_is_low(x, v) for x, v in zip(given, op.operands, strict=True)]
    return 0.0 if None not in given and low[0] != low[1] else None


def _and(op: Op, given: Sequence[Number]) -> Number:
    if 0 in given:
        return 0.0
    return 1.0 if given[0] == given[1] == 1 else None


def _or(op: Op, given: Sequence[Number]) -> Number:
    if 1 in given:
        return 1.0
    return 0.0 if given[0] == given[1] == 0 else None


def _not(op: Op, given: Sequence[Number]) -> Number:
    return None if given[0] is None else 1 - given[0]


def _select(op: Op, given: Sequence[Number]) -> Number:
    test, a, b = given
    if test is not None:
        return a if test else b
    return a if a == b else None


RULES: Mapping[type[Op], Callable[[Op, Sequence[Number]], Number]] = {
    e.Add: _add,
    e.Sub: _sub,
    e.Mul: _mul,
    e.Div: _div,
    e.Exp: _exp,
    e.Exp2: _exp,
    e.Neg: _neg,
    e.Eq: _eq,
    e.And: _and,
    e.Or: _or,
    e.Not: _not,
    e.Select: _select,
}
"""What elementwise ops make of what their operands hold."""
