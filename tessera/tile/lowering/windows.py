"""Windows along rows that stay in registers.

    y[i, j] = reduce r < 3, s < 3: x[i + r - 1, j + s - 1] * w[r, s]

Read from memory, a row would be loaded for each place of the window, at addresses of which most
vectors lie across two lines of the cache. Here it is loaded once, and its lanes are moved by
`s - 1`: those of its neighbours, or what stands for elements outside, come in at the ends. Places
of the window are written out, and two or more rows `i` are under way together, so that a row is
loaded once for all that read it.

    row(k) = if 0 <= i + k < rows: load x[i + k, 0 .. n]; else zeros          k = -1 .. 2
    y(0) = slide(row(-1), -1) * w[0, 0] + row(-1) * w[0, 1] + slide(row(-1), 1) * w[0, 2] + ...

Where the points' own places are two elements apart, a tile's elements are two rows, of which every
second lane is picked, beginning with the first or the second: those rows are moved then.

Sums keep the order that they have: it is that of the places.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial

from tessera.dtypes import DType, int64, uint32, uint64
from tessera.ir.core import Block, Value
from tessera.ir.intexpr import Dim, Facts, is_nonneg, linear_in, substitute, sym, symbols
from tessera.ir.lazy import cached_property
from tessera.ir.walk import walk
from tessera.schedule.ops import Reduce
from tessera.schedule.types import Axis, buffer_type
from tessera.schedule.window_ops import WindowLoad
from tessera.tile import ops as t
from tessera.tile.lane_ops import Slide, Stack, Unzip
from tessera.tile.lowering import access
from tessera.tile.lowering.state import Point, Rows, State, TileDim, Val
from tessera.tile.ops import tile_type

WORDS = {32: uint32, 64: uint64}
"""Integers of as many bits as elements, as which they move: LLVM 22 has a single instruction for
lanes of two neighbours among those for integers only (`valignd`). Others overwrite an operand and
need places in a register, and expand what has zeros in front."""

LEAST_BESIDE = 4
"""Elements at least that are read beside a row."""


def is_written_out(low: State, region: Block, step: int) -> bool:
    """Whether places of a reduction are written out, as rows are held that they share."""
    return step == 1 and not low.is_block and any(isinstance(op, WindowLoad) for op in walk(region))


def write_out(
    low: State,
    axes: Sequence[Axis],
    carried: list[Value],
    body: Callable[[list[Value]], Sequence[Value]],
) -> list[Value]:
    """Runs a body at every point of some axes, one after the other."""
    written = low.em.written_out
    names = [axis.name for axis in axes]
    extents = [axis.extent for axis in axes]
    with low.holding_rows():
        for places in itertools.product(*[range(n) for n in extents if isinstance(n, int)]):
            written.update(zip(names, places, strict=True))
            carried = list(body(carried))
    for name in names:
        written.pop(name, None)
    return carried


def goes_by_rows(region: Block, point: Point, step: int) -> bool:
    """Whether sums with lanes along a reduction are for several rows of a window."""
    dims = point.dims
    is_window = step > 1 and len(dims) == 2 and _constant(dims[0].start) is not None
    return is_window and any(isinstance(op, WindowLoad) for op in region.ops)


def rows_of(low: State, point: Point) -> list[Point]:
    """The rows of such a point."""
    first, *rest = point.dims
    begin = _constant(first.start) or 0
    starts = [low.em.const(begin + k, int64) for k in range(first.size)]
    return [Point((replace(first, size=1, start=start), *rest)) for start in starts]


def shares_rows(op: Reduce, point: Point) -> bool:
    """Whether rows of the window meet the same rows of memory along a reduction, if they go over
    its last axis but one at different times."""
    if len(op.axes) < 2:
        return False
    dim, axis = point.dims[0], op.axes[-2]
    if not isinstance(axis.extent, int) or not 1 < dim.size < axis.extent:
        return False
    for load in [one for one in op.body.ops if isinstance(one, WindowLoad)]:
        for e in load.index[:-1]:
            found = linear_in(e, (dim.name, axis.name))
            if found is None or found[0][dim.name] != found[0][axis.name]:
                return False
    return True


def over_rows(
    low: State,
    axis: Axis,
    count: int,
    carried: list[Value],
    body: Callable[[Mapping[int, Dim], list[Value]], list[Value]],
) -> list[Value]:
    """Goes over the rows of memory that some rows of a window meet along an axis, so that each is
    moved once for all of them. Those that one of them does not meet are written out.

    Args:
        low: the lowering of the nest.
        axis: the axis, of which the k-th row of the window is at place t - k for the t-th row.
        count: rows of the window, fewer than places of the axis.
        carried: what the body carries.
        body: what is done for a row, at the places of those rows of the window that meet it.
    """
    extent = axis.extent
    assert isinstance(extent, int)

    def at(row: int, inner: list[Value]) -> list[Value]:
        return body({k: row - k for k in range(count) if 0 <= row - k < extent}, inner)

    def between(inner: list[Value]) -> list[Value]:
        return body({k: sym(middle.name) + (count - 1 - k) for k in range(count)}, inner)

    middle = Axis(f"{axis.name}_row", extent - count + 1)
    for row in range(count - 1):
        carried = at(row, carried)
    with low.inside_of({middle.name: (0, extent - count)}):
        carried = low.each(middle, carried, between)
    for row in range(extent, extent + count - 1):
        carried = at(row, carried)
    return carried


def load(low: State, op: WindowLoad, point: Point) -> Val:
    """An element of the window per point of the tile."""
    tiled = _Tile.of(low, op, point)
    if tiled is None:
        return access.load(low, op, point)
    with low.em.bound(tiled.starts) if tiled.starts else nullcontext():
        rows = [tiled.row(places) for places in tiled.places()]
    value = rows[0] if len(point.dims) == 1 else low.em.pure(Stack, tuple(rows), point.shape)
    return Val((value,), point.names)


@dataclass(frozen=True)
class _Tile:
    """A read over a tile.

    Attributes:
        low: the lowering of the nest.
        op: the read.
        point: where.
        lane: the tile's last dim, along which rows go.
        bases: what stands for the other dims.
        starts: values of those that are known when it runs only.
        held: the rows that have been read, with what is in front of each and behind it.
    """

    low: State
    op: WindowLoad
    point: Point
    lane: TileDim
    bases: dict[str, Dim]
    starts: dict[str, Value]
    held: Rows

    @staticmethod
    def of(low: State, op: WindowLoad, point: Point) -> _Tile | None:
        """The tile, unless it is one to read as any other."""
        if low.is_block or not point.dims or any(dim.checked for dim in point.dims[:-1]):
            return None
        *others, lane = point.dims
        bases: dict[str, Dim] = {}
        starts: dict[str, Value] = {}
        for dim in others:
            known = _constant(dim.start)
            bases[dim.name] = sym(dim.name) if known is None else known
            if known is None:
                starts[dim.name] = dim.start
        found = _Tile(low, op, point, lane, bases, starts, {} if low.rows is None else low.rows)
        shifts = [found.shift(places) for places in found.places()]
        fits = all(by is not None and -op.front <= by <= op.back for by in shifts)
        return found if fits and lane.size >= found.count else None

    @cached_property
    def facts(self) -> Facts:
        """What is known of axes: tiles end where their axes do, at the latest."""
        known: dict[str, tuple[Dim | None, Dim | None]] = dict(self.low.facts)
        dims = [dim for dim in self.point.dims if dim.name in self.starts]
        known.update({dim.name: (0, dim.extent - dim.size) for dim in dims})
        return Facts(known, self.low.facts.multiples)

    @property
    def count(self) -> int:
        """How many elements are read beside a row."""
        most = max(self.op.front + self.op.step - 1, self.op.back)
        return max(1 << (most - 1).bit_length(), LEAST_BESIDE)

    def places(self) -> itertools.product[tuple[int, ...]]:
        """The places of the tile's rows in it."""
        return itertools.product(*[range(dim.size) for dim in self.point.dims[:-1]])

    def at(self, e: Dim, places: tuple[int, ...]) -> Dim:
        """An expression at a row of the tile."""
        pairs = zip(self.bases.items(), places, strict=True)
        found = substitute(e, {name: base + k for (name, base), k in pairs})
        return substitute(found, self.low.em.written_out)

    def shift(self, places: tuple[int, ...]) -> int | None:
        """By how many elements a row of the window begins behind the tile's own."""
        found = self.at(self.op.index[-1], places) - self.op.step * sym(self.lane.name)
        return found if isinstance(found, int) else None

    def row(self, places: tuple[int, ...]) -> Value:
        """One row of the window."""
        em, op = self.low.em, self.op
        by, first = divmod(self.shift(places) or 0, op.step)
        index = tuple([self.at(e, places) for e in op.index[:-1]])
        # What is asked of the place along the row is what the row's length says.
        where = [e for e in op.where if self.lane.name not in symbols(e)]
        asked = tuple([self.at(e, places) for e in where])
        key = (op.buf, index, asked)
        if key not in self.held:
            self.held[key] = self.parts(index, asked)
        *own, front, back = self.held[key]
        row = own[0] if op.step == 1 else em.pure(Unzip, *own, first)
        if by == 0:
            return self.numbers(row)
        other = back if by > 0 else front
        other = other if op.step == 1 else em.pure(Unzip, other, other, first)
        return self.numbers(em.pure(Slide, row, other, by))

    @property
    def dtype(self) -> DType:
        """That of the elements."""
        return buffer_type(self.op.buf).dtype

    def words(self, x: Value) -> Value:
        """Elements as they move."""
        word = WORDS.get(self.dtype.bits) if self.dtype.is_inexact else None
        return x if word is None else self.low.em.pure(t.Bitcast, x, word)

    def numbers(self, x: Value) -> Value:
        """Elements that have moved."""
        moved = tile_type(x).dtype is not self.dtype
        return self.low.em.pure(t.Bitcast, x, self.dtype) if moved else x

    def parts(self, index: tuple[Dim, ...], asked: tuple[Dim, ...]) -> tuple[Value, ...]:
        """The elements of a row, in as many tiles as they take, and what is in front of them and
        behind: what there is of it in memory where its conditions hold."""
        low, em, op = self.low, self.low.em, self.op
        strides = buffer_type(op.buf).element_strides()[:-1]
        offset = em.index(sum([e * n for e, n in zip(index, strides, strict=True)], 0))
        owns = [partial(self.own, k) for k in range(op.step)]
        fills = [self.fill(n) for n in (*[self.lane.size] * op.step, self.count, self.count)]
        readers = (*owns, self.in_front, self.behind)
        beside = (op.front > 0 and not self.is_first, op.back > 0 and not self.is_last)
        wanted = (*[self.has(k) for k in range(op.step)], *beside)
        asked = tuple([e for e in asked if not is_nonneg(e, self.facts)])
        conditions = low.conditions(asked, Point(), ())
        if conditions is None:
            return tuple(fills)

        def inside() -> list[Value]:
            return [read(offset) for read, is_read in zip(readers, wanted, strict=True) if is_read]

        def outside() -> list[Value]:
            return [fill for fill, is_read in zip(fills, wanted, strict=True) if is_read]

        guard = em.all_of(conditions)
        found = iter(inside() if guard is None else em.when(guard, inside, outside))
        pairs = zip(fills, wanted, strict=True)
        return tuple([next(found) if is_read else fill for fill, is_read in pairs])

    def fill(self, count: int) -> Value:
        """What stands for elements outside."""
        em = self.low.em
        return self.words(em.broadcast(em.const(self.op.fill, self.dtype), (count,)))

    @property
    def is_first(self) -> bool:
        """Whether the tile is known to be the first of its row."""
        return _constant(self.lane.start) == 0

    @property
    def is_last(self) -> bool:
        """Whether nothing is known to be behind the tile."""
        return not self.has(self.op.step)

    def has(self, k: int) -> bool:
        """Whether there may be elements of the k-th row of the tile's own, or behind them."""
        start = _constant(self.lane.start)
        return start is None or self.op.step * start + k * self.lane.size < self.op.length

    def is_inside(self, reach: int) -> bool:
        """Whether as many elements as this are known to be there from the tile's start on."""
        start, lane, step = _constant(self.lane.start), self.lane, self.op.step
        if start is not None:
            return step * start + reach <= self.op.length
        is_covered = isinstance(lane.extent, int) and step * lane.extent <= self.op.length
        return is_covered and not lane.checked and reach <= step * lane.size

    def read(self, offset: Value, start: Value, count: int, is_inside: bool) -> Value:
        """Elements of a row from a place on."""
        low, em, op = self.low, self.low.em, self.op
        sizes, strides = (em.index(op.length),), (em.const(1, int64),)
        view = em.pure(t.View, low.memory[op.buf], offset, sizes, strides)
        fields = (view, (start,), (), (count,), () if is_inside else (0,), op.fill)
        if op.buf in low.written:
            return self.words(em.add(t.Load(*fields, loc=em.loc))[0])
        return self.words(em.pure(t.Load, *fields, floor=em.depth))

    def place(self, by: int) -> Value:
        """The place in a row that is so many elements behind the tile's first."""
        em, step, start = self.low.em, self.op.step, _constant(self.lane.start)
        if start is not None:
            return em.const(step * start + by, int64)
        first = self.lane.start
        first = first if step == 1 else em.map("mul", first, em.const(step, int64))
        return first if by == 0 else em.map("add", first, em.const(by, int64))

    def own(self, k: int, offset: Value) -> Value:
        """The k-th row of the elements from the tile's own place on."""
        size = self.lane.size
        return self.read(offset, self.place(k * size), size, self.is_inside((k + 1) * size))

    def in_front(self, offset: Value) -> Value:
        """Those in front: tiles are as long as these at least, so all are there or none."""
        em, start = self.low.em, self.lane.start
        is_there = None if _constant(start) else em.map("gt", start, em.const(0, int64))
        return self.beside(offset, -self.count, is_there, self.is_inside(0))

    def behind(self, offset: Value) -> Value:
        """Those behind."""
        em, is_there, reach = self.low.em, None, self.op.step * self.lane.size
        if _constant(self.lane.start) is None:
            is_there = em.map("lt", self.place(reach), em.const(self.op.length, int64))
        return self.beside(offset, reach, is_there, self.is_inside(reach + self.count))

    def beside(self, offset: Value, by: int, is_there: Value | None, is_inside: bool) -> Value:
        """Elements so far behind the tile's start, or what stands for them."""
        em, count = self.low.em, self.count

        def there() -> list[Value]:
            return [self.read(offset, self.place(by), count, is_inside)]

        if is_there is None:
            return there()[0]
        return em.when(is_there, there, lambda: [self.fill(count)])[0]


def _constant(value: Value) -> int | None:
    """The number that a scalar is known to be."""
    number = value.op.value if isinstance(value.op, t.Const) else None
    return number if isinstance(number, int) else None
