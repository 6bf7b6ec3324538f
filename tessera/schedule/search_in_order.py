"""Searches for extremes over the rows of large operands, read as they lie in memory.

As `read_in_order` does with sums, some rows are read side by side from end to end. What lies in a
near cache is the extreme of each column so far, and in which row it is:

    nest j: y[j] = arg_reduce k < K: g(k, j)
    ==>
    nest p, j: best[p, j] = -inf; at[p, j] = 0
    nest p, k in order, j: value, row = the first largest of g((p*8 + kk)*steps + k, j), kk < 8
                           best[p, j], at[p, j] = value, row where they win
    nest j: y[j] = the at[p, j] of the first largest best[p, j], or the row that is left

NaN is larger than any number. Of equal ones the first wins, whatever the order of the rows: those
side by side are far apart.
"""

from __future__ import annotations

from collections.abc import Sequence

from tessera.dtypes import DType, int32, int64
from tessera.ir.core import Block, Op, Value, scalar_dtype
from tessera.ir.intexpr import Dim, substitute, sym
from tessera.ir.loc import Loc
from tessera.ir.scalar import SCALARS
from tessera.schedule import loop_ops, ops
from tessera.schedule.access import accesses
from tessera.schedule.copying import Copy, identity
from tessera.schedule.dependence import Dependence, only_loop
from tessera.schedule.emit import without_dead
from tessera.schedule.machines import CachedCpu
from tessera.schedule.read_in_order import (
    LEAST_PLACES,
    ROWS,
    count_of,
    cut_of,
    grain_of_rows,
    row_of,
    runs_along,
)
from tessera.schedule.sizes import power_above
from tessera.schedule.split import Context, Pieces, index_of
from tessera.schedule.types import Axis, BufType


def search_rows(nest: ops.Nest, context: Context, machine: CachedCpu) -> Pieces | None:
    """The nests that read a large operand of a nest's search in order; None where there is none."""
    op = only_loop(nest)
    if not isinstance(op, ops.ArgReduce) or nest.ordered:
        return None
    if any(one.regions for one in op.body.ops) or scalar_dtype(op.body.outputs[0]).is_bool:
        return None
    extents = [axis.extent for axis in (*nest.axes, op.axis)]
    if not all(isinstance(extent, int) and extent > 0 for extent in extents):
        return None
    reads = [a for a in accesses(nest, context.facts) if a.inner]
    for axis in reversed(nest.axes):
        if runs_along(nest, axis, op.axis, reads, machine, held=2):
            return _RowSearch(nest, op, axis, context, machine).run()
    return None


class _Code(list[Op]):
    """Code that grows."""

    def __init__(self, loc: Loc) -> None:
        super().__init__()
        self.loc = loc

    def put(self, op: Op) -> Value:
        """Adds an op with a result."""
        self.append(op)
        return op.result

    def map(self, fn: str, *args: Value) -> Value:
        """A row of the scalar table."""
        return self.put(ops.Map(args, SCALARS[fn], loc=self.loc))

    def const(self, value: ops.Number, dtype: DType) -> Value:
        """A constant."""
        return self.put(ops.Const(value, dtype, loc=self.loc))

    def load(self, buf: Value, index: Sequence[Dim]) -> Value:
        """An element."""
        return self.put(ops.Load(buf, (), tuple(index), loc=self.loc))

    def number(self, place: Dim) -> Value:
        """A place along the depth, as i32."""
        index = self.put(ops.Index((), place, loc=self.loc))
        return self.put(ops.Cast(index, int32, loc=self.loc))

    def store(self, buf: Value, value: Value, index: Sequence[Dim]) -> None:
        """Writes an element."""
        self.append(ops.Store(buf, value, (), tuple(index), loc=self.loc))


_Pair = tuple[Value, Value]
"""An extreme, and the row (i32) where it is."""


class _RowSearch:
    """The cut of one nest.

    Attributes:
        col: the axis along which rows run.
        axes: the axes on which the search depends.
        cut: of columns and depth.
    """

    def __init__(
        self, nest: ops.Nest, op: ops.ArgReduce, col: Axis, context: Context, machine: CachedCpu
    ) -> None:
        self.nest = nest
        self.op = op
        self.col = col
        self.deep = op.axis
        self.names = context.names
        used = Dependence(nest.body).ops[op]
        self.axes = [axis for axis in nest.axes if axis.name in used]
        self.others = [axis for axis in self.axes if axis is not col]
        self.type = scalar_dtype(op.body.outputs[0])
        self.none = identity(op.body.outputs[0], op.fn)
        self.tile = min(
            4 * max(1, machine.vector_bits // max(self.type.bits, 32)), power_above(count_of([col]))
        )
        column_bytes = self.type.itemsize + int32.itemsize
        known = (col, self.deep, self.others, self.tile, column_bytes, machine.cores)
        self.cut = cut_of(*known)

    def run(self) -> Pieces | None:
        """The nests."""
        if self.cut.places < LEAST_PLACES or count_of([self.deep]) >= 1 << 31:
            return None
        pieces = Pieces()
        dims = (self.cut.parts, *[axis.extent for axis in self.axes])
        self.best = pieces.buffer(BufType(dims, self.type))
        self.at = pieces.buffer(BufType(dims, int32))
        part = Axis(self.names.fresh("p"), self.cut.parts)
        pieces.nests += [self.start(part), self.partial(part), self.last()]
        pieces.reason = f"{ROWS} rows read side by side, in {self.cut.parts} parts of the depth"
        return pieces

    def start(self, part: Axis) -> ops.Nest:
        """Nothing found."""
        code, index = _Code(self.op.loc), index_of((part, *self.axes))
        code.store(self.best, code.const(self.none, self.type), index)
        code.store(self.at, code.const(0, int32), index)
        return ops.Nest((part, *self.axes), body=Block([], code, ()), loc=self.nest.loc)

    def partial(self, part: Axis) -> ops.Nest:
        """Searches all rows of a part."""
        step = Axis(self.names.fresh("k"), self.cut.steps)
        code, index = _Code(self.op.loc), index_of((part, *self.axes))
        place = row_of(self.cut, part, step, self.deep)
        # Rows are counted from the first one on: numbers that are constants once it is unrolled.
        first = substitute(place, {self.deep.name: 0})
        found = code.const(self.none, self.type), code.const(0, int32)
        best, at = self.search(code, place, ROWS, found, place - first)
        new = best, code.map("add", at, code.number(first))
        old = (code.load(self.best, index), code.load(self.at, index))
        new = self.merge(code, old, new)
        code.store(self.best, new[0], index)
        code.store(self.at, new[1], index)
        axes = (part, *self.others, step, self.col)
        chunk = (
            1 if self.cut.parts > 1 else 0,
            *[1 if axis.extent != 1 else 0 for axis in self.others],
            0, self.cut.wide if self.cut.chunks > 1 else 0,
        )  # fmt: skip
        programs = self.cut.parts * count_of(self.others) * self.cut.chunks
        work = 3 * self.cut.places * min(self.cut.wide, count_of([self.col]))
        return ops.Nest(
            axes, ordered=(step.name,), tile=(*[1] * (len(axes) - 1), self.tile), chunk=chunk,
            reduce_tile=1, reason=f"{ROWS} rows are read side by side",
            body=Block([], without_dead(code), ()), loc=self.nest.loc,
            grain=grain_of_rows(self.cut, programs, work),
        )  # fmt: skip

    def search(
        self, code: _Code, place: Dim, count: int, found: _Pair, number: Dim | None = None
    ) -> _Pair:
        """The first extreme of some rows, and its row.

        Args:
            code: that grows.
            place: of a row along the depth, in terms of the depth's axis.
            count: how many rows.
            found: what counts as found before them.
            number: what a row is called; its place if it is None.
        """
        copy = Copy({self.deep.name: place})
        before = self.nest.body.ops[: self.nest.body.ops.index(self.op)]
        code += [copy.op(op) for op in before if not isinstance(op, ops.Store)]
        body, inside = copy.block(self.op.body), _Code(self.op.loc)
        inside += body.ops
        best, at = (Value(value.type) for value in found)
        row = inside.number(place if number is None else number)
        new = self.better(inside, (best, at), (body.outputs[0], row))
        axis, block = Axis(self.deep.name, count), Block([best, at], inside, new)
        loop = loop_ops.Recur(found, axis, body=block, loc=self.op.loc)
        code.append(loop)
        return loop.results[0], loop.results[1]

    def better(self, code: _Code, old: _Pair, new: _Pair) -> _Pair:
        """Of two extremes the second, with its row, if it wins: where there is a tie, the first."""
        wins = self.beats(code, old[0], new[0])
        return code.map("select", wins, new[0], old[0]), code.map("select", wins, new[1], old[1])

    def merge(self, code: _Code, old: _Pair, new: _Pair) -> _Pair:
        """Of two extremes the one that wins, with its row: where there is a tie, the first row."""
        same = code.map("eq", new[0], old[0])
        if self.type.is_float:
            both = code.map("and", code.map("isnan", new[0]), code.map("isnan", old[0]))
            same = code.map("or", same, both)
        first = code.map("select", same, code.map("min", new[1], old[1]), old[1])
        wins = self.beats(code, old[0], new[0])
        return code.map("select", wins, new[0], old[0]), code.map("select", wins, new[1], first)

    def beats(self, code: _Code, old: Value, new: Value) -> Value:
        """Whether an extreme is more than another."""
        is_max = self.op.fn.name == "max"
        if not self.type.is_float:
            return code.map("gt" if is_max else "lt", new, old)
        # A NaN beats every number, and no other NaN: two comparisons.
        loses = code.map("le" if is_max else "ge", new, old)
        return code.map("and", code.map("not", loses), code.map("not", code.map("isnan", old)))

    def last(self) -> ops.Nest:
        """What the nest stores, from what the parts found and what is left of the depth."""
        copy, code = Copy(), _Code(self.op.loc)
        for op in self.nest.body.ops:
            if op is self.op:
                copy.env[self.op.result] = self.found(code)
            else:
                code.append(copy.op(op))
        body = Block([], without_dead(code), ())
        return ops.Nest(self.nest.axes, body=body, loc=self.nest.loc)

    def found(self, code: _Code) -> Value:
        """The place of the extreme."""
        index = index_of(self.axes)
        best = code.load(self.best, (0, *index)), code.load(self.at, (0, *index))
        if self.cut.parts > 1:
            part = Axis(self.names.fresh("p"), self.cut.parts - 1)
            place, inside = (sym(part.name) + 1, *index), _Code(self.op.loc)
            old = Value(best[0].type), Value(best[1].type)
            new = inside.load(self.best, place), inside.load(self.at, place)
            block = Block([*old], inside, self.better(inside, old, new))
            loop = loop_ops.Recur(best, part, body=block, loc=self.op.loc)
            code.append(loop)
            best = loop.results[0], loop.results[1]
        done = self.cut.parts * self.cut.places
        left = count_of([self.deep]) - done
        if left:
            best = self.search(code, sym(self.deep.name) + done, left, best)
        return code.put(ops.Cast(best[1], int64, loc=self.op.loc))
