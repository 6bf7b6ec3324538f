"""The loops of a nest.

An axis with a chunk is a grid axis: a program has the points [pid * chunk, min(extent, (pid + 1) *
chunk)). An axis with a tile becomes a loop over full tiles, and a rest: of the last tiled axis (the
vector axis) one masked tile; of the other one a smaller tile if its size is known, or else single
rows. The body is emitted once per combination, by the same code.

In a block of a GPU's threads (a nest with `warps`) all tiles have their full size and are masked,
the chunk of a tiled axis is its tile, and what depends on some axes only is computed before the
others are opened.

    for i in 0 .. M // 4 * 4 step 4:           for i in M // 4 * 4 .. M:
        for j in 0 .. N // 16 * 16 step 16:        for j in 0 .. N // 16 * 16 step 16:
            body on [4, 16]                            body on [16]
        if N // 16 * 16 < N:                       if N // 16 * 16 < N:
            body on [4, 16], j checked                 body on [16], j checked
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tessera.dtypes import int64
from tessera.ir.core import Op, Value
from tessera.ir.intexpr import (
    Dim,
    Facts,
    ceildiv,
    divides,
    minimum,
    prod,
    sym,
)
from tessera.ir.walk import walk
from tessera.schedule import keeping, lengths, loop_ops, prefetch_ops, short_rows
from tessera.schedule import ops as s
from tessera.schedule.dependence import behind
from tessera.schedule.panel_ops import ContractPanels
from tessera.schedule.part_ops import ContractFrom
from tessera.schedule.sentinel_ops import Sentinel
from tessera.schedule.types import Axis, BufType
from tessera.schedule.window_ops import WindowLoad
from tessera.tile import ops as t
from tessera.tile.lowering import (
    access,
    columns,
    contraction,
    drawing,
    later_rows,
    panels,
    pointwise,
    product_rows,
    recurring,
    reduction,
    row_passes,
    scanning,
    searching,
    windows,
)
from tessera.tile.lowering.emitter import Emitter
from tessera.tile.lowering.inner_ranges import inner_ranges
from tessera.tile.lowering.last_columns import LastColumns
from tessera.tile.lowering.state import Handler, Point, State, TileDim
from tessera.tile.scratch_ops import Scratch

HANDLERS: Mapping[type[Op], Handler] = {
    s.Const: pointwise.const,
    s.Index: pointwise.index,
    s.Random: drawing.random,
    s.Holds: pointwise.holds,
    s.Map: pointwise.apply,
    s.Cast: pointwise.cast,
    s.Bitcast: pointwise.bitcast,
    s.Load: columns.load,
    WindowLoad: windows.load,
    s.Store: columns.store,
    prefetch_ops.Prefetch: access.prefetch_place,
    s.Reduce: reduction.reduce,
    s.ArgReduce: searching.arg_reduce,
    s.Contract: contraction.contract,
    ContractFrom: contraction.contract,
    ContractPanels: panels.contract,
    s.Scan: scanning.scan,
    s.ScanFrom: scanning.scan,
    Sentinel: pointwise.sentinel,
    loop_ops.Recur: recurring.recur,
    loop_ops.Repeat: recurring.repeat,
}


@dataclass(frozen=True, slots=True)
class _AxisPlan:
    """How an axis of the nest is run.

    Attributes:
        axis: the axis.
        tile: elements per tile.
        low: first point of this program.
        high: end of its points.
        single: whether low is its only point.
        vector: whether it is the last tiled axis.
        parallel: whether its points may run in any order.
    """

    axis: Axis
    tile: int
    low: Dim
    high: Dim
    single: bool
    vector: bool
    parallel: bool


def lower_nest(
    em: Emitter,
    nest: s.Nest,
    memory: Mapping[Value, Value],
    known: Facts,
    programs: Sequence[Value] | None = None,
) -> tuple[Dim, ...]:
    """Emits the body of the kernel; returns its grid.

    Args:
        em: receives the body.
        nest: the nest.
        memory: the kernel's argument for each buffer.
        known: what is known of the program's dims.
        programs: the program's coordinates in the grid, if they are not its ids.
    """
    em.loc = nest.loc
    nest, room = keeping.expanded(nest)
    if room is not None:
        assert isinstance(room.type, BufType)
        count = room.type.size
        assert isinstance(count, int)
        scratch = Scratch(room.type.dtype, count, loc=nest.loc)
        memory = {**memory, room: em.add(scratch)[0]}
    tiles = _tiles(nest)
    chunks = _chunks(nest, tiles)
    vector = max([k for k, tile in enumerate(tiles) if tile > 1], default=-1)
    combines = any(isinstance(op, s.Store) and op.combine is not None for op in walk(nest.body))
    plans: list[_AxisPlan] = []
    grid: list[Dim] = []
    for k, (axis, tile, chunk) in enumerate(zip(nest.axes, tiles, chunks, strict=True)):
        extent = axis.extent
        low: Dim = 0
        high = extent
        if chunk:
            is_whole = isinstance(extent, int) and extent <= chunk
            if not is_whole:
                name = f"$p{len(grid)}"
                at = len(grid)
                em.symbols[name] = em.pure(t.ProgramId, at) if programs is None else programs[at]
                low = sym(name) * chunk
                high = low + chunk
                high = high if divides(chunk, extent, known) else minimum(extent, high)
            grid.append(ceildiv(extent, chunk))
        single = extent == 1 or (chunk == 1 and low != 0)
        parallel = not combines and axis.name not in nest.ordered
        plans.append(_AxisPlan(axis, tile, low, high, single, k == vector, parallel))
    _Loops(State(em, nest, memory, HANDLERS, known), nest, plans).axis(0, Point())
    return tuple(grid)


def lower_together(
    em: Emitter, nests: Sequence[s.Nest], memory: Mapping[Value, Value], known: Facts
) -> tuple[Dim, ...]:
    """Emits nests that share a launch, each for programs of its own; returns the grid."""
    program = em.pure(t.ProgramId, 0)
    total: Dim = 0
    for nest in nests:
        grid = grid_of(nest)
        begin, total = total, total + prod(grid)
        conditions = [em.map("lt", program, em.index(total))]
        if begin != 0:
            conditions.insert(0, em.map("ge", program, em.index(begin)))

        def branch(
            nest: s.Nest = nest, begin: Dim = begin, grid: Sequence[Dim] = grid
        ) -> tuple[()]:
            rest = em.map("sub", program, em.index(begin)) if begin != 0 else program
            places: list[Value] = []
            for extent in reversed(grid):
                size = em.index(extent)
                places.append(em.map("mod", rest, size))
                rest = em.map("floordiv", rest, size)
            lower_nest(em, nest, memory, known, places[::-1])
            return ()

        condition = em.all_of(conditions)
        assert condition is not None
        em.when(condition, branch)
    return (total,)


def grid_of(nest: s.Nest) -> tuple[Dim, ...]:
    """The programs of a nest along each axis of its grid."""
    chunks = _chunks(nest, _tiles(nest))
    pairs = zip(nest.axes, chunks, strict=True)
    return tuple([ceildiv(axis.extent, chunk) for axis, chunk in pairs if chunk])


def _chunks(nest: s.Nest, tiles: Sequence[int]) -> list[int]:
    """The chunk of each axis; that of a tiled axis of a block is its tile."""
    chunks = nest.chunk or (0,) * len(nest.axes)
    in_block = nest.warps > 0
    pairs = zip(chunks, tiles, strict=True)
    return [tile if chunk and in_block and tile > 1 else chunk for chunk, tile in pairs]


def _tiles(nest: s.Nest) -> list[int]:
    """The tile of each axis: three axes at most have one, except in a block; ordered axes have
    none."""
    tiles = [max(tile, 1) for tile in nest.tile or (1,) * len(nest.axes)]
    tiles = [
        1 if axis.extent == 1 or axis.name in nest.ordered else tile
        for axis, tile in zip(nest.axes, tiles, strict=True)
    ]
    if any(_needs_points(op) for op in walk(nest.body)):
        return [1] * len(tiles)
    tiled = [k for k, tile in enumerate(tiles) if tile > 1]
    for k in tiled[:-3] if nest.warps == 0 else ():
        tiles[k] = 1
    return tiles


def _slides(nest: s.Nest, tiles: Sequence[int]) -> bool:
    """Whether the last tile of an axis does some points once more, where they are no whole tiles:
    of squares, each of which is turned in registers, by too much code to write it down for all that
    may be left of either side, and of rows that are reduced together."""
    sides = [
        (axis.extent, tile) for axis, tile in zip(nest.axes, tiles, strict=True) if tile > 1
    ]
    if not all(isinstance(extent, int) and extent >= tile for extent, tile in sides):
        return False
    count = 2
    if any(isinstance(op, short_rows.REDUCING) for op in nest.body.ops):
        # Where conditions hold in the middle, what is around that has loops of its own.
        count = 1 if nest.reduce_tile > 1 and not _has_conditions(nest) else 0
    return len(sides) == count > 0 and short_rows.may_repeat(nest)


def _has_conditions(nest: s.Nest) -> bool:
    return any(bool(op.where) for op in walk(nest.body) if isinstance(op, (s.Load, s.Store)))


def _needs_points(op: Op) -> bool:
    """Whether a store combines complex elements in a way that has to see both parts."""
    if not isinstance(op, s.Store) or op.combine is None or op.combine.name == "add":
        return False
    return isinstance(op.buf.type, BufType) and op.buf.type.dtype.is_complex


class _Loops:
    """Emits the loops around a body.

    Attributes:
        stages: the ops of the body by the number of axes that are fixed when they run.
        are_many: whether many lines of later rows are on their way at once.
        is_once: whether the body is not written down again for what is left at the end.
        slides: whether the last tile of an axis begins early enough to be a full one.
        last: the last columns of a product, of which there are fewer.
        product: the place of a product among the ops, where what follows it goes row by row.
    """

    def __init__(self, low: State, nest: s.Nest, plans: list[_AxisPlan]) -> None:
        self.low = low
        self.em = low.em
        self.plans = plans
        self.by_row = low.is_block or row_passes.has_rows(low, nest)
        self.stages: list[list[Op]] = [[] for _ in range(len(plans) + 1)]
        self.is_once = lengths.of(nest.body.ops) >= lengths.WHOLE
        self.slides = not self.by_row and _slides(nest, [plan.tile for plan in plans])
        self.inner: Mapping[str, tuple[Dim, Dim]] = {}
        if not self.is_once and not self.by_row:
            self.inner = inner_ranges(nest)
        memory = [op for op in nest.body.ops if isinstance(op, (s.Load, s.Store))]
        self.fetched = [op for op in memory if op.ahead and not later_rows.is_filled(op)]
        self.early = [op for op in memory if isinstance(op, s.Load) and op.early]
        self.next_row = later_rows.of(nest)
        self.are_many = later_rows.are_many(nest, self.next_row)
        self.begun = 0
        self.code = nest.body.ops
        self.last = None if self.by_row else LastColumns.of(nest, [plan.tile for plan in plans])
        self.product = None if self.by_row else product_rows.product_of(self.code)
        depths = {plan.axis.name: k + 1 for k, plan in enumerate(plans)}
        for op in nest.body.ops:
            self.stages[self.stage(op, depths)].append(op)

    def stage(self, op: Op, depths: Mapping[str, int]) -> int:
        """How many axes are fixed when an op of the body runs: all of them, but in a block, and
        where there are rows, only those that it depends on: what belongs to a row is computed once.
        """
        if not self.by_row or (isinstance(op, s.Store) and op.combine is not None):
            return len(depths)
        names = self.low.dependence.ops[op]
        return max([depths[name] for name in names if name in depths], default=0)

    def axis(self, k: int, point: Point) -> None:
        """Runs the axes from the k-th on, then the body."""
        if k == len(self.plans):
            self.body(point)
            return
        plan = self.plans[k]
        self.begun = row_passes.run(self.low, self.stages[k], point, self.spread(k, point))
        if plan.tile > 1:
            self.tiled(k, plan, point)
        elif plan.single:
            self.scalar(k, self.em.index(plan.low), point)
        elif plan.axis.extent != 0:
            self.rows(k, plan, plan.low, point)

    def body(self, point: Point) -> None:
        """Runs the body; without its conditions where they hold for the whole tile."""
        em, code = self.em, self.stages[-1]
        tiled = {dim.name: dim for dim in point.dims}
        if len(point.dims) == 2 and self.early:
            self.fetch_block(point)
        elif len(point.dims) == 2 and not any(dim.checked for dim in point.dims):
            self.fetch_square(point)
        for name, op in self.next_row[: len(self.next_row) - self.begun]:
            self.fetch_next(name, op, point, point.dims[-1].start, point.dims[-1].size)
        last = self.last if len(point.dims) == 2 else None
        if last is not None:
            narrow = last.at(point)

            def behind() -> tuple[Value, ...]:
                with self.low.inside_of(last.inside(narrow)):
                    return self.run(code, narrow)

            def before() -> tuple[Value, ...]:
                with self.low.inside_of(last.before):
                    return self.run(code, point)

            em.when(last.is_there(self.low), behind, before)
            return
        if not self.inner or any(dim.checked for dim in point.dims):
            self.run(code, point)
            return
        conditions: list[Value] = []
        for name, (low, high) in self.inner.items():
            dim = tiled.get(name)
            first = em.symbols[name] if dim is None else dim.start
            last = high if dim is None else high - (dim.size - 1)
            conditions.append(em.map("ge", first, em.index(low)))
            conditions.append(em.map("le", first, em.index(last)))
        every = em.all_of(conditions)
        assert every is not None

        def inner() -> tuple[Value, ...]:
            with self.low.inside_of(self.inner):
                return self.run(code, point)

        em.when(every, inner, lambda: self.run(code, point))

    def run(self, code: Sequence[Op], point: Point) -> tuple[()]:
        """Evaluates the body at a point, perhaps as a branch, which yields nothing."""
        if self.product is not None and len(point.dims) == 2 and not point.dims[0].checked:
            product_rows.run(self.low, code, self.product, point)
        else:
            row_passes.run(self.low, code, point)
        return ()

    def fetch_block(self, point: Point) -> None:
        """Fetches what is read beside the product of a block."""
        em, low, (rows, lanes) = self.em, self.low, point.dims
        before = dict(low.env)
        for op in self.early:
            low.run(behind(self.code, op.dyn), Point())
            for k in range(rows.size):
                row = em.map("add", rows.start, em.const(k, int64))
                with em.bound({rows.name: row, lanes.name: lanes.start}):
                    access.prefetch(low, op, lanes.size)
        low.env = before

    def fetch_square(self, point: Point) -> None:
        """Fetches a square further along the rows of what is going to be turned."""
        em, low, (rows, lanes) = self.em, self.low, point.dims
        for op in self.fetched:
            later = em.map("add", rows.start, em.const(op.ahead, int64))
            for k in range(lanes.size):
                lane = em.map("add", lanes.start, em.const(k, int64))
                with em.bound({rows.name: later, lanes.name: lane}):
                    access.prefetch(low, op, rows.size)

    def spread(self, k: int, point: Point) -> list[row_passes.Fetch]:
        """What the passes over a row that goes alone fetch for later ones."""
        if k < len(self.plans) - 1 or point.dims:
            return []

        def one(name: str, op: s.Load | s.Store) -> row_passes.Fetch:
            return lambda start, count: self.fetch_next(name, op, point, start, count)

        return [one(name, op) for name, op in self.next_row]

    def fetch_next(
        self, name: str, op: s.Load | s.Store, point: Point, start: Value, count: int
    ) -> None:
        """Fetches what a pass along an axis is going to access in later rows, from a place on."""
        em, row, rows = self.em, self.plans[-2].axis.name, point.dims[:-1]
        first = rows[0].start if rows else em.symbols[row]
        for k in range(rows[0].size if rows else 1):
            later = em.map("add", first, em.const(op.ahead + k, int64))
            with em.bound({row: later, name: start}):
                access.prefetch(self.low, op, count, self.are_many)

    def scalar(self, k: int, i: Value, point: Point) -> None:
        """Goes on at one point of axis k."""
        if k == len(self.plans) - 2 and not point.dims:
            self.fetch(self.plans[k], i)
        with self.em.bound({self.plans[k].axis.name: i}):
            self.axis(k + 1, point)

    def tile(self, k: int, size: int, start: Value, point: Point, checked: bool = False) -> None:
        """Goes on at a tile of axis k."""
        axis = self.plans[k].axis
        self.axis(k + 1, point.plus(TileDim(axis.name, size, start, axis.extent, checked)))

    def rows(self, k: int, plan: _AxisPlan, low: Dim, point: Point) -> None:
        """Runs the points of an axis from `low` on, one by one."""
        em = self.em

        def row(i: Value, _: list[Value]) -> tuple[Value, ...]:
            self.scalar(k, i, point)
            return ()

        bounds = (em.index(low), em.index(plan.high), em.const(1, int64))
        em.loop(bounds, (), row, plan.parallel)

    def fetch(self, plan: _AxisPlan, i: Value) -> None:
        """Fetches what rows ahead of the i-th one read, those of the next program too."""
        em, low, lane = self.em, self.low, self.plans[-1]
        before = dict(low.env)
        for op in self.fetched:
            later = em.map("add", i, em.const(op.ahead, int64))
            later = em.map("min", later, em.index(plan.axis.extent - 1))
            with em.bound({plan.axis.name: later, lane.axis.name: em.index(lane.low)}):
                low.run(behind(self.code, op.dyn), Point())
                access.prefetch(low, op, lane.axis.extent)
            low.env = dict(before)

    def rest(self, k: int, plan: _AxisPlan, full: Dim, point: Point) -> None:
        """Rows after the full tiles: as many at once as there are, if that is known. Passes over
        rows are written down once more for one row."""
        em, extent = self.em, plan.axis.extent
        if self.by_row or not isinstance(extent, int):
            self.rows(k, plan, full, point)
            return

        def action() -> tuple[Value, ...]:
            if count == 1:
                self.scalar(k, start, point)
            else:
                self.tile(k, count, start, point)
            return ()

        count, start = extent % plan.tile, em.index(full)
        if isinstance(full, int) and isinstance(plan.high, int):
            action()
        else:
            em.when(em.map("lt", start, em.index(plan.high)), action)

    def masked(self, k: int, plan: _AxisPlan, point: Point, checked: bool) -> None:
        """One tile, or a loop over tiles; the last one may reach beyond the extent."""
        em, size = self.em, plan.tile
        extent = plan.axis.extent
        if plan.low != 0 or (isinstance(extent, int) and extent <= size):
            self.tile(k, size, em.index(plan.low), point, checked)
            return

        def tile(i: Value, _: list[Value]) -> tuple[Value, ...]:
            self.tile(k, size, i, point, checked)
            return ()

        bounds = (em.index(plan.low), em.index(plan.high), em.const(size, int64))
        em.loop(bounds, (), tile, plan.parallel)

    def slide(self, k: int, plan: _AxisPlan, point: Point) -> None:
        """Full tiles, of which the last one does some points once more."""
        em, size = self.em, plan.tile
        last = em.index(plan.axis.extent - size)

        def tile(i: Value, _: list[Value]) -> tuple[Value, ...]:
            self.tile(k, size, em.map("min", i, last), point)
            return ()

        bounds = em.index(plan.low), em.index(plan.high), em.const(size, int64)
        em.loop(bounds, (), tile, plan.parallel)

    def once(self, k: int, plan: _AxisPlan, point: Point) -> None:
        """A loop over full tiles, and the rest as another turn of a loop around it, so that masks
        change nowhere inside: computed in front of each load they would have it wait."""
        em, size, extent = self.em, plan.tile, plan.axis.extent
        full = plan.high // size * size
        if full == plan.low:
            self.tile(k, size, em.index(plan.low), point, checked=True)
            return

        def part(i: Value, _: list[Value]) -> tuple[Value, ...]:
            is_first = em.map("eq", i, em.const(0, int64))
            low, high = em.index(plan.low), em.index(plan.high)
            middle, step = em.index(full), em.const(size, int64)
            count = em.select(is_first, step, em.index(extent % size))
            bounds = em.select(is_first, low, middle), em.select(is_first, middle, high), step

            def tile(i: Value, _: list[Value]) -> tuple[Value, ...]:
                dim = TileDim(plan.axis.name, size, i, extent, True, count)
                self.axis(k + 1, point.plus(dim))
                return ()

            em.loop(bounds, (), tile, plan.parallel)
            return ()

        bounds = em.const(0, int64), em.const(2, int64), em.const(1, int64)
        em.loop(bounds, (), part, plan.parallel)

    def tiled(self, k: int, plan: _AxisPlan, point: Point) -> None:
        """Full tiles without checks, then the rest; a long body is written down once."""
        em, size, extent = self.em, plan.tile, plan.axis.extent
        if extent == 0:
            return
        whole = divides(size, extent, self.low.facts)
        if self.low.is_block:
            self.masked(k, plan, point, not whole)
            return
        if not whole and self.slides:
            self.slide(k, plan, point)
            return
        if not whole and self.is_once and plan.vector:
            self.once(k, plan, point)
            return
        # The low end is a multiple of the tile, so rounding the high end down leaves full tiles.
        full = plan.high if whole else plan.high // size * size

        def tile(i: Value, _: list[Value]) -> tuple[Value, ...]:
            self.tile(k, size, i, point)
            return ()

        if full == plan.low + size:
            self.tile(k, size, em.index(plan.low), point)
        elif full != plan.low:
            bounds = (em.index(plan.low), em.index(full), em.const(size, int64))
            em.loop(bounds, (), tile, plan.parallel)
        if whole:
            return
        if not plan.vector:
            self.rest(k, plan, full, point)
        elif isinstance(full, int) and isinstance(plan.high, int):
            self.tile(k, size, em.index(full), point, checked=True)
        else:
            start, end = em.index(full), em.index(plan.high)

            def rest() -> tuple[Value, ...]:
                self.tile(k, size, start, point, checked=True)
                return ()

            em.when(em.map("lt", start, end), rest)
