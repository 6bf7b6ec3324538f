"""Tiles for a GPU: what one block of threads computes at a time, and how many warps it has.

All sizes are powers of two; what reaches beyond an axis is masked. A tile along a grid axis is the
whole share of a block. An axis that stays inside a block is either covered by one tile, whose
elements are then in registers for all uses, or a loop over tiles.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tessera.config import config
from tessera.dtypes import DType
from tessera.ir.core import Op, Value
from tessera.ir.intexpr import Dim, Facts, symbols
from tessera.ir.types import ScalarType
from tessera.ir.walk import walk
from tessera.schedule import heuristics_gpu_scan, ops
from tessera.schedule.access import Access, accesses
from tessera.schedule.dependence import Dependence, inner_axes
from tessera.schedule.machines import Gpu
from tessera.schedule.ordering import stated_width
from tessera.schedule.sizes import power_above, size_of
from tessera.schedule.types import Axis

WARP = 32
"""Threads of a warp."""

VECTOR_BYTES = 16
"""The longest access of a thread."""

THREAD_BYTES = 32
"""What a thread reads of the narrowest array: two accesses under way."""

MANY_STREAMS = 3
"""So many arrays keep memory busy with one access each."""

WARPS = 4
"""Warps of a block where nothing asks for more."""

SQUARE = 64
"""The side of a tile that is turned: whole lines of memory on both sides."""

MAX_ROW = 16384
"""Elements of the longest row that stays in the registers of one block."""

ROW_ELEMENTS = 32
"""Elements of a row in one thread."""

ROW_STREAMS = 4
"""A row kernel that reads so many rows keeps half as much of each."""

ROW_STEP = 4096
"""Elements of a step along a row that is too long for registers."""

LINE_BYTES = 128
"""Bytes of an operand's step along the depth of a product: a line of shared memory."""

SKINNY = 16
"""A product with so few rows is bound by reading its other operand."""

FEW_DEPTH = 32
"""Products a step of such a product without matrix instructions."""

FEW_ELEMENTS = 4
"""Accumulators in one thread of it, at least."""

SKINNY_STAGES = 5
"""Parts of that operand under way at a time."""

LEAST_DEPTH = 32
"""Products a step that are worth steps without masks."""

LARGE_PART = 4096
"""Accumulators of a warp whose registers hold little else."""

LARGE_DEPTH = 32
"""Products a step with such warps."""

LARGE_STAGES = 4
"""Parts of their operands under way at a time."""

COLUMN_BYTES = 128
"""Bytes of a line of memory, which is what a reduction over rows reads of each."""

COLUMN_ELEMENTS = 8
"""Elements of a step of a reduction over rows in one thread."""

JOINED_ELEMENTS = 16
"""Elements in one thread of the rows that a pass takes at a time, which also sums up columns."""

WASTE = 8
"""A tile may reach beyond an axis by this part of the axis if a smaller one would not."""


class GpuChoice:
    """The choice for one nest.

    Attributes:
        tiles: elements of a tile by axis name.
        inside: axes along which one block runs to the end.
        last: the axes that become the innermost ones.
    """

    def __init__(self, nest: ops.Nest, machine: Gpu, facts: Facts | None = None) -> None:
        self.nest = nest
        self.machine = machine
        self.accesses = accesses(nest, facts)
        self.free = [axis for axis in nest.axes if axis.name not in nest.ordered]
        self.code = list(walk(nest.body))
        self.tiles: dict[str, int] = {}
        self.inside: set[str] = set(nest.ordered)
        self.last: list[str] = []
        self.warps = WARPS
        self.stages = 0
        self.reduce_tile = 0
        self.reason = ""

    def run(self) -> ops.Nest:
        """The nest with tiles, chunks and warps."""
        rule = next(rule for cls, rule in RULES if any(isinstance(op, cls) for op in self.code))
        rule(self)
        byname = {axis.name: axis for axis in self.nest.axes}
        front = [axis for axis in self.nest.axes if axis.name not in self.last]
        axes = (*front, *[byname[name] for name in self.last])
        tile = tuple([self.tiles.get(axis.name, 1) for axis in axes])
        chunk = [0 if axis.name in self.inside else n for axis, n in zip(axes, tile, strict=True)]
        new = self.nest.rebuild(
            axes=axes,
            tile=tile,
            chunk=tuple(chunk),
            reduce_tile=self.reduce_tile,
            reason=f"{self.reason}; {self.warps} warps",
            warps=self.warps,
            stages=self.stages,
        )
        assert isinstance(new, ops.Nest)
        return new

    # --- kinds of nests ---------------------------------------------------------------------------

    def plain(self) -> None:
        """Elementwise work: threads along the axis that most accesses run along."""
        axis = self.best_axis(self.accesses)
        if axis is None:
            self.warps = 1
            self.reason = "one element"
            return
        across = self.turned_axis(axis)
        if across is not None:
            self.turn(axis, across)
            return
        total = self.block_size()
        if self.picks_rows(axis):
            total = min(power_above(size_of(axis.extent)), total)
            # A row is a block: fewer warps, so that each has several accesses under way.
            wide = max(a.dtype.itemsize for a in self.accesses if a.stride(axis.name) == 1)
            self.warps = min(WARPS, max(total * wide // (WARP * THREAD_BYTES), 1))
        width = self.fitting(axis.extent, total)
        self.tiles[axis.name] = width
        self.last = [axis.name]
        self.fill(axis, total // width)
        self.shrink()
        self.reason = f"threads along {axis.name}, {self.describe(axis)}"

    def picks_rows(self, axis: Axis) -> bool:
        """Whether rows are read whose numbers are data: one row after the other can be read by
        whole vectors, and several at a time only element by element."""
        if size_of(axis.extent) < 4 * WARP:
            return False
        depends = Dependence(self.nest.body).values
        for access in self.accesses:
            dyn = () if isinstance(access.op, ops.Scan) else access.op.dyn
            if dyn and access.stride(axis.name) == 1:
                return not any(axis.name in depends.get(v, ()) for v in dyn)
        return False

    def fill(self, axis: Axis, count: int) -> None:
        """Takes so many points of the axes around the innermost one into the tile."""
        rows = [a for a in self.free if a is not axis and size_of(a.extent) > 1]
        while count > 1 and rows:
            row = rows.pop()
            size = min(count, power_above(size_of(row.extent)))
            self.tiles[row.name] = size
            self.last.insert(0, row.name)
            count //= size

    def block_size(self) -> int:
        """Elements of an elementwise block: enough accesses under way, enough blocks."""
        narrow = min([a.dtype.itemsize for a in self.accesses] or [4])
        streams = len({a.op.buf for a in self.accesses if not a.is_store})
        wide = max([a.dtype.itemsize for a in self.accesses] or [4])
        each = THREAD_BYTES if streams < MANY_STREAMS else VECTOR_BYTES
        if streams == 1 and wide <= 2:
            # What narrow elements go through costs more than their way here.
            each *= 2
        count = max(each // narrow, 2)
        count = min(count, max(2 * THREAD_BYTES // wide, 1))
        least = max(VECTOR_BYTES // wide, 1)
        points = self.points()
        while count > least and points < self.machine.multiprocessors * 4 * WARPS * WARP * count:
            count //= 2
        return WARPS * WARP * count

    def shrink(self) -> None:
        """No more warps than a small tile has work for."""
        total = 1
        for size in self.tiles.values():
            total *= size
        self.warps = max(1, min(self.warps, total // WARP))

    def reduction(self) -> None:
        """A row per some warps where memory runs along the reduction, else columns."""
        found = [op for op in self.code if isinstance(op, (ops.Reduce, ops.ArgReduce))]
        longest = max([inner_axes(op)[-1].extent for op in found], key=size_of)
        inside = [a for a in self.accesses if a.inner]
        axes = self.nest.axes
        along = sum(traffic(a, axes) for a in inside if a.stride(a.inner[-1].name) == 1)
        columns = self.columns(found)
        rows = [axis for axis in self.free if axis not in columns]
        axis = best_of(rows, inside, axes)
        name = "" if axis is None else axis.name
        across = sum(traffic(a, axes) for a in inside if name and a.stride(name) == 1)
        stated = stated_width(found)
        if axis is not None and across > along:
            self.reduce_columns(axis, longest, stated)
        else:
            self.reduce_rows(rows, columns, longest, stated)

    def columns(self, found: Sequence[Op]) -> list[Axis]:
        """The axes on which no reduction depends."""
        dependence = Dependence(self.nest.body)
        used = frozenset[str]().union(*[dependence.ops[op] for op in found])
        return [axis for axis in self.free if axis.name not in used]

    def reduce_rows(
        self, rows: list[Axis], columns: list[Axis], longest: Dim, stated: int = 0
    ) -> None:
        """Whole rows in registers if they fit, else steps along them; of so many lanes, where that
        is stated."""
        names = {axis.name for axis in rows}
        loads = [a for a in self.accesses if not a.is_store and (a.inner or columns)]
        streams = len({a.op.buf for a in loads if not names.isdisjoint(symbols(a.offset))})
        limit = MAX_ROW if streams < ROW_STREAMS else MAX_ROW // 2
        extent = longest
        if columns and size_of(columns[-1].extent) > size_of(longest):
            extent = columns[-1].extent
        fits = isinstance(extent, int) and power_above(extent) <= limit
        step = power_above(size_of(extent)) if fits else ROW_STEP
        step = stated if stated > 1 else max(step, 2)
        each = ROW_ELEMENTS if streams < ROW_STREAMS else ROW_ELEMENTS // 2
        count = max(WARPS * WARP * each // step, 1)
        axis = rows[-1] if rows else None
        if axis is not None:
            count = min(count, power_above(size_of(axis.extent)))
            while count > 1 and self.count(rows) < self.machine.multiprocessors * 2 * count:
                count //= 2
            self.tiles[axis.name] = count
        self.warps = min(max(step * count // (WARP * each), 1), 32)
        self.reduce_tile = step
        if columns:
            self.tiles[columns[-1].name] = step
        self.inside.update(axis.name for axis in columns)
        self.last = [a.name for a in (*rows[-1:], *columns)]
        what = f"{count} rows" if count > 1 else "a row"
        self.reason = f"{what} in registers" if fits else f"{what} in steps of {step} elements"

    def reduce_columns(self, axis: Axis, longest: Dim, stated: int = 0) -> None:
        """Steps over rows, of so many where that is stated; each thread keeps its columns."""
        wide = max([a.dtype.itemsize for a in self.accesses if a.inner] or [4])
        width = min(max(COLUMN_BYTES // wide, 1), power_above(size_of(axis.extent)))
        self.warps = 2 * WARPS
        step = self.warps * WARP * COLUMN_ELEMENTS // width
        step = max(min(step, power_above(size_of(longest))), 2)
        if stated > 1:
            step = stated
            width = min(width, max(MAX_ROW // step, 1))
        self.tiles[axis.name] = width
        self.last = [axis.name]
        self.reduce_tile = step
        self.warps = max(1, min(self.warps, step * width // (WARP * 2)))
        self.reason = f"{width} columns, {step} rows a step"

    def contraction(self) -> None:
        """A block of accumulators in registers, and a step along the reduction."""
        (op,) = [op for op in self.code if isinstance(op, ops.Contract)]
        byname = {axis.name: axis for axis in self.nest.axes}
        rows, cols = [byname[n] for n in op.rows], [byname[n] for n in op.cols]
        row, col = rows[-1], cols[-1]
        batch = [a for a in self.nest.axes if a not in rows and a not in cols]
        height, width, step, self.warps = self.block(op, row, col)
        self.tiles = {row.name: height, col.name: width}
        self.reduce_tile = step
        others = [a for a in (*rows, *cols) if a is not row and a is not col]
        if any(a.is_store and a.stride(row.name) == 1 for a in self.accesses):
            row, col = col, row  # a product has no other preference than how it is written
        self.last = [a.name for a in (*batch, *others, row, col)]
        self.reason = f"{height} x {width} accumulators, {step} products a step"

    def block(
        self, op: ops.Contract, row: Axis, col: Axis, parts: int = 1
    ) -> tuple[int, int, int, int]:
        """Rows, columns and depth of a contraction's block, and its warps.

        Args:
            op: the contraction.
            row: its last axis of rows.
            col: its last axis of columns.
            parts: into how many the depth would be cut.
        """
        bits = max(operand_dtype(v).bits for v in op.body.outputs)
        fast = bits <= 16 or (bits == 32 and config.current().matmul_precision == "tf32")
        depth = LINE_BYTES * 8 // bits if fast else {32: 16, 64: 8}[bits]
        sides = [min(max(power_above(size_of(a.extent)), 16), 128) for a in (row, col)]
        others = self.points() // max(size_of(row.extent) * size_of(col.extent), 1) * parts
        if not fast or op.dtype.bits > 32:
            sides = [min(side, 64) for side in sides]
        has_parts = op.order is not None and op.order.split > 0
        if has_parts:
            # Its sums and those of its parts are in registers together, which do not suffice for
            # 128 x 128: 868 us rather than 419 at 4096 cubed in bf16, and 312 without parts.
            sides[0] = min(sides[0], 64)

        def blocks() -> int:
            return (
                max(others, 1)
                * -(-size_of(row.extent) // sides[0])
                * -(-size_of(col.extent) // sides[1])
            )

        few = [max(min(power_above(size_of(a.extent)), 64), 2) for a in (row, col)]
        if op.fused and bits == 32 and not fast and min(few) <= SKINNY:
            return self.few(op, few)

        if sides[0] <= SKINNY and fast:
            # Bound by the memory of the other operand: long steps, many of them under way.
            self.stages = SKINNY_STAGES
            depth = min(2 * depth, max(power_above(size_of(op.axes[-1].extent)), 16))
            return sides[0], min(sides[1], 64), within_part(op, depth), WARPS

        # Smaller blocks until each multiprocessor has one.
        while blocks() < self.machine.multiprocessors and max(sides) > 32:
            sides[0 if sides[0] >= sides[1] else 1] //= 2
        long = size_of(op.axes[-1].extent)
        depth = min(depth, max(power_above(long), 16))
        # Large parts for each warp: fragments are then read from shared memory less often. But
        # what is read or written besides the product needs registers, too.
        plain = self.tiles_beside(row, col) <= 1 and not has_parts
        each = LARGE_PART if sides[0] * sides[1] >= 4 * LARGE_PART and fast and plain else 2048
        warps = max(1, min(8, sides[0] * sides[1] // each))
        if each == LARGE_PART and bits == 16:
            # Measured at 4096 cubed, whichever way the operands lie: more and shorter parts under
            # way are 4 to 8% faster than three of a whole line.
            depth, self.stages = min(depth, LARGE_DEPTH), LARGE_STAGES
        return sides[0], sides[1], within_part(op, depth), warps

    def few(self, op: ops.Contract, sides: list[int]) -> tuple[int, int, int, int]:
        """A block of few rows, or columns, without matrix instructions, bound by the memory of the
        other operand."""
        self.stages = SKINNY_STAGES
        depth = min(FEW_DEPTH, max(power_above(size_of(op.axes[-1].extent)), 2))
        warps = max(1, min(WARPS, sides[0] * sides[1] // (WARP * FEW_ELEMENTS)))
        return sides[0], sides[1], within_part(op, depth), warps

    def tiles_beside(self, row: Axis, col: Axis) -> int:
        """Tiles of the size of a product's block that its nest reads and writes outside of it."""
        outside = [a for a in self.accesses if not a.inner]
        return sum(a.stride(row.name) != 0 and a.stride(col.name) != 0 for a in outside)

    # --- parts ------------------------------------------------------------------------------------

    def points(self) -> int:
        """Elements that the nest computes."""
        return self.count(self.free)

    def count(self, axes: list[Axis]) -> int:
        """The points of some axes."""
        total = 1
        for axis in axes:
            total *= size_of(axis.extent)
        return total

    def best_axis(self, found: list[Access]) -> Axis | None:
        """The axis along which most bytes are contiguous."""
        return best_of(self.free, found, self.nest.axes)

    def turned_axis(self, axis: Axis) -> Axis | None:
        """An axis along which other accesses are contiguous that jump along the first one."""
        for other in reversed(self.free):
            if other is axis or size_of(other.extent) < 2:
                continue
            for access in self.accesses:
                if access.stride(other.name) == 1 and access.stride(axis.name) not in (0, 1):
                    return other
        return None

    def turn(self, axis: Axis, across: Axis) -> None:
        """Square tiles: both sides read or write whole lines."""
        wide = max(a.dtype.itemsize for a in self.accesses)
        side = SQUARE if wide <= 4 else SQUARE // 2
        for one in (axis, across):
            self.tiles[one.name] = min(side, power_above(size_of(one.extent)))
        self.last = [across.name, axis.name]
        self.warps = 2 * WARPS
        self.shrink()
        self.reason = f"square tiles, as accesses run along {across.name} or {axis.name}"

    def fitting(self, extent: Dim, limit: int) -> int:
        """Elements of a tile along an axis: as many as allowed, unless that wastes many."""
        size = size_of(extent)
        best = width = min(power_above(size), limit)
        if not isinstance(extent, int):
            return best
        while width >= 2 * WARP:
            waste = -(-size // width) * width - size
            if waste * WASTE <= size:
                return width
            width //= 2
        return best

    def describe(self, axis: Axis) -> str:
        """How the accesses lie along an axis."""
        strides = [a.stride(axis.name) for a in self.accesses]
        text = f"{sum(s == 1 for s in strides)} of {len(strides)} accesses contiguous"
        zeros = sum(s == 0 for s in strides)
        return f"{text}, {zeros} constant" if zeros else text


def within_part(op: ops.Contract, depth: int) -> int:
    """Products a step: those of a part, where the order states parts, are whole steps."""
    part = op.order.split if op.order is not None else 0
    if not part and op.fused and isinstance(op.axes[-1].extent, int):
        part = op.axes[-1].extent  # one part of them: no step is masked
    exact = part & -part
    return min(depth, exact) if exact >= LEAST_DEPTH else depth


def traffic(access: Access, axes: Sequence[Axis]) -> float:
    """Bytes that an access moves over all points of a nest, each element once."""
    total = float(access.dtype.itemsize)
    # What is looked up at run time may be anywhere at every point.
    anywhere = bool(getattr(access.op, "dyn", ()))
    for axis in (*axes, *access.inner):
        if anywhere or access.stride(axis.name) != 0:
            total *= max(size_of(axis.extent), 1)
    return total


def choose_joined(nests: Sequence[Op]) -> list[Op]:
    """The first two nests of a joined kernel: a program has as many rows as the second says."""
    rows, parts = nests
    assert isinstance(rows, ops.Nest)
    assert isinstance(parts, ops.Nest)
    chunk = next(op.axes[0].extent for op in parts.body.ops if isinstance(op, ops.Reduce))
    width = power_above(size_of(rows.axes[1].extent))
    warps = max(width // (WARP * JOINED_ELEMENTS), WARPS)
    count = max(JOINED_ELEMENTS * WARP * warps // width, 1)
    assert isinstance(chunk, int)
    count = min(count, chunk)
    first = rows.rebuild(
        tile=(count, width),
        chunk=(chunk, 0),
        reduce_tile=width,
        reason=f"{chunk} rows, {count} at a time in registers; {warps} warps",
        warps=warps,
    )
    return [first, parts.rebuild(warps=warps, reason="in the same pass")]


def best_of(axes: list[Axis], found: list[Access], every: Sequence[Axis]) -> Axis | None:
    """The axis along which most bytes are contiguous, the last of equal ones.

    Args:
        axes: to choose from.
        found: accesses.
        every: all axes of the nest.
    """
    best, score = None, -1.0
    for axis in axes:
        total = 0.0
        for access in found:
            stride = access.stride(axis.name)
            weight = {1: 4.0, 0: 1.0}.get(stride, 0.0) if isinstance(stride, int) else 0.0
            total += weight * traffic(access, every) * (1.5 if access.is_store else 1.0)
        total = (total + 0.1) * min(size_of(axis.extent), WARP) / WARP
        if total >= score:
            best, score = axis, total
    return best


def operand_dtype(value: Value) -> DType:
    """The dtype in which an operand of a product is kept: before it is widened, if it is."""
    dtype = scalar_dtype(value.type)
    if isinstance(value.op, ops.Cast):
        narrow = scalar_dtype(value.op.x.type)
        if narrow.kind is dtype.kind and narrow.bits < dtype.bits:
            return narrow
    return dtype


def scalar_dtype(type: object) -> DType:
    """The dtype of a scalar's type."""
    assert isinstance(type, ScalarType)
    return type.dtype


RULES: tuple[tuple[type[Op] | tuple[type[Op], ...], Callable[[GpuChoice], None]], ...] = (
    (ops.Contract, GpuChoice.contraction),
    (ops.Scan, heuristics_gpu_scan.scan),
    ((ops.Reduce, ops.ArgReduce), GpuChoice.reduction),
    (Op, GpuChoice.plain),
)
"""The rule of the first kind of op that a nest holds."""
