"""Searches for extremes over the rows of large operands, read as they lie in memory.

As `read_in_order` does with sums, some rows are read side by side from end to end. What lies in a
near cache is the extreme of each column so far, and in which block of rows it is; only at the end
the row is looked for in that block.

    nest j: y[j] = arg_reduce k < K: g(k, j)
    ==>
    nest p, j: best[p, j] = -inf; at[p, j] = 0
    nest p, kb in order, j: value = reduce kk < 8: g((p*steps + kb)*8 + kk, j)
                            best[p, j], at[p, j] = value, p*steps + kb where value > best[p, j]
    nest j: b = the at[p, j] of the first largest best[p, j], or the block of rows that is left
            y[j] = b*8 + arg_reduce kk < 8: g(b*8 + kk, j)

NaN is larger than any number, and the first one wins.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil

from tessera.dtypes import DType, int32, int64
from tessera.ir.core import Block, Op, Value
from tessera.ir.intexpr import Dim, sym
from tessera.ir.loc import Loc
from tessera.ir.scalar import SCALARS
from tessera.ir.types import ScalarType
from tessera.schedule import ops
from tessera.schedule.access import accesses
from tessera.schedule.copying import Copy, guarded, identity
from tessera.schedule.dependence import Dependence
from tessera.schedule.emit import without_dead
from tessera.schedule.heuristics import grain_of, power_above
from tessera.schedule.products import CachedCpu
from tessera.schedule.read_in_order import ROWS, count_of, cut_of, runs_along
from tessera.schedule.split import Context, Pieces, index_of
from tessera.schedule.types import Axis, BufType

LEAST_BLOCKS = 64
"""Blocks of rows from which it does not matter that the row is looked for in one of them, which
reads elements of columns one by one."""


def search_rows(nest: ops.Nest, context: Context, machine: CachedCpu) -> Pieces | None:
    """The nests that read a large operand of a nest's search in order; None where there is none."""
    found = [op for op in nest.body.ops if op.regions]
    op = found[0] if len(found) == 1 else None
    if not isinstance(op, ops.ArgReduce) or nest.ordered:
        return None
    if any(one.regions for one in op.body.ops) or _type(op.body.outputs[0]).is_bool:
        return None
    extents = [axis.extent for axis in (*nest.axes, op.axis)]
    if not all(isinstance(extent, int) and extent > 0 for extent in extents):
        return None
    reads = [a for a in accesses(nest, context.facts) if a.inner]
    for axis in reversed(nest.axes):
        if runs_along(axis, op.axis, reads, machine):
            return _RowSearch(nest, op, axis, context, machine).run()
    return None


def _type(value: Value) -> DType:
    assert isinstance(value.type, ScalarType)
    return value.type.dtype


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

    def store(self, buf: Value, value: Value, index: Sequence[Dim]) -> None:
        """Writes an element."""
        self.append(ops.Store(buf, value, (), tuple(index), loc=self.loc))


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
        self.type = _type(op.body.outputs[0])
        self.tile = min(4 * max(1, machine.vector_bits // max(self.type.bits, 32)),
                        power_above(count_of([col])))
        column_bytes = self.type.itemsize + int32.itemsize
        self.cut = cut_of(col, self.deep, self.others, self.tile, column_bytes)

    def run(self) -> Pieces | None:
        """The nests."""
        if self.cut.steps * self.cut.parts < LEAST_BLOCKS or count_of([self.deep]) >= 1 << 31:
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
        none = identity(self.op.body.outputs[0], self.op.fn)
        code.store(self.best, code.const(none, self.type), index)
        code.store(self.at, code.const(0, int32), index)
        return ops.Nest((part, *self.axes), body=Block([], code, ()), loc=self.nest.loc)

    def partial(self, part: Axis) -> ops.Nest:
        """Searches all blocks of a part."""
        step = Axis(self.names.fresh("k"), self.cut.steps)
        block = sym(part.name) * self.cut.steps + sym(step.name)
        code, index = _Code(self.op.loc), index_of((part, *self.axes))
        value = self.extreme(code, block, ROWS)
        number = code.put(ops.Index((), block, loc=self.op.loc))
        number = code.put(ops.Cast(number, int32, loc=self.op.loc))
        old = (code.load(self.best, index), code.load(self.at, index))
        new = self.better(code, old, (value, number))
        code.store(self.best, new[0], index)
        code.store(self.at, new[1], index)
        axes = (part, *self.others, step, self.col)
        chunk = (
            1 if self.cut.parts > 1 else 0,
            *[1 if axis.extent != 1 else 0 for axis in self.others],
            0, self.cut.wide if self.cut.chunks > 1 else 0,
        )  # fmt: skip
        programs = self.cut.parts * count_of(self.others) * self.cut.chunks
        work = 3 * self.cut.steps * ROWS * min(self.cut.wide, count_of([self.col]))
        return ops.Nest(
            axes, ordered=(step.name,), tile=(*[1] * (len(axes) - 1), self.tile), chunk=chunk,
            reduce_tile=1, reason=f"{ROWS} rows are read side by side",
            body=Block([], without_dead(code), ()), loc=self.nest.loc,
            grain=grain_of(programs, work),
        )  # fmt: skip

    def extreme(self, code: _Code, block: Dim, count: int) -> Value:
        """The extreme of some rows of a block."""
        copy = Copy({self.deep.name: block * ROWS + sym(self.deep.name)})
        before = self.nest.body.ops[: self.nest.body.ops.index(self.op)]
        code += [copy.op(op) for op in before if not isinstance(op, ops.Store)]
        body = copy.block(self.op.body)
        axis = Axis(self.deep.name, count)
        return code.put(ops.Reduce((axis,), self.op.fn, body, loc=self.op.loc))

    def better(
        self, code: _Code, old: tuple[Value, Value], new: tuple[Value, Value]
    ) -> tuple[Value, Value]:
        """Of two extremes and their blocks the ones that win."""
        wins = code.map("gt" if self.op.fn.name == "max" else "lt", new[0], old[0])
        if self.type.is_float:
            known = code.map("not", code.map("isnan", old[0]))
            wins = code.map("or", wins, code.map("and", code.map("isnan", new[0]), known))
        best, at = [code.map("select", wins, a, b) for a, b in zip(new, old, strict=True)]
        return best, at

    def last(self) -> ops.Nest:
        """What the nest stores, from the blocks of the parts and what is left of the depth."""
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
        index, loc = index_of(self.axes), self.op.loc
        pairs = [
            (code.load(self.best, (k, *index)), code.load(self.at, (k, *index)))
            for k in range(self.cut.parts)
        ]
        blocks, depth = self.cut.parts * self.cut.steps, count_of([self.deep])
        for block in range(blocks, ceil(depth / ROWS)):
            value = self.extreme(code, block, min(ROWS, depth - block * ROWS))
            pairs.append((value, code.const(block, int32)))
        new = pairs[0]
        for pair in pairs[1:]:
            new = self.better(code, new, pair)
        block = code.put(ops.Cast(new[1], int64, loc=loc))
        place = sym("$0") * ROWS + sym(self.deep.name)
        start = code.put(ops.Index((block,), sym("$0") * ROWS, loc=loc))
        inside = () if depth % ROWS == 0 else (depth - 1 - place,)
        row = code_of_place(self.op, place, block, inside)
        axis = Axis(self.deep.name, ROWS)
        within = code.put(ops.ArgReduce(axis, self.op.fn, row, loc=loc))
        return code.map("add", start, within)


def code_of_place(op: ops.ArgReduce, place: Dim, block: Value, inside: tuple[Dim, ...]) -> Block:
    """The body of a search at a place of a block that is found when it runs; the neutral element
    beyond the end."""
    number = ops.Index((block,), place, loc=op.loc)
    guard = tuple([op.axis.extent - 1 - sym(op.axis.name) for _ in inside])
    copy = Copy({}, {op.axis.name: number.result}, guard)
    copied = copy.block(op.body)
    code: list[Op] = [number, *copied.ops]
    exists = (op.axis.extent - 1 - sym("$0"),) if inside else ()
    value = guarded(code, copied.outputs[0], exists, (number.result,), op.fn)
    return Block([], code, (value,))
