"""Tile sizes, without measuring anything. What is here is for the CPU; `heuristics_gpu` has what is
different on a GPU.

A register tile has lanes along one axis (the last with a tile > 1) and is unrolled along the
others; a chunk is what one program of the grid computes. `choose` fills both in, and orders the
axes of a nest so that the vector axis is the innermost.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from tessera.ir.core import Block, Func, Op
from tessera.ir.intexpr import Facts
from tessera.ir.walk import walk
from tessera.schedule import keeping, lengths, loop_ops, narrow, ops, streaming
from tessera.schedule.access import Access, accesses, dependence_of, varying
from tessera.schedule.block_ops import Each
from tessera.schedule.dependence import inner_axes
from tessera.schedule.grains import WORK, even, grain_of, sort_grain
from tessera.schedule.left_behind import LeftBehind
from tessera.schedule.machines import Cpu, Gpu
from tessera.schedule.ordering import stated_width, with_orders
from tessera.schedule.rebuild import with_bodies
from tessera.schedule.schedule import Schedule
from tessera.schedule.shared_lines import take_block
from tessera.schedule.short_rows import row_width, take_together
from tessera.schedule.side_by_side import long_line, registers_of, runs_along, side_by_side
from tessera.schedule.sizes import power_above, power_below, size_of
from tessera.schedule.sort_ops import WORDS
from tessera.schedule.types import Axis
from tessera.schedule.widths import widest

UNKNOWN_PROGRAMS = 1 << 40
"""Programs along a symbolic axis, where the question is whether there may be many: how many there
are shows when it runs."""

MAX_CHUNK = 16384
"""Elements that one program handles at most: what it reads and writes should stay in the cache."""

MIN_CHUNK = 1024
"""Elements that one program handles at least."""

SYMBOLIC_LINE = 4096
"""The chunk of a symbolic vector axis that has others around it."""

PANEL_BYTES = 256 * 1024
"""The part of the second operand of a contraction that one program goes over again and again."""

TURNED_CHUNK = 256
"""Sides of the square that one program turns: its lines stay in the second cache, and long enough
stretches of each side lie in one page."""

HEAVY_OPS = 24
"""A body with this many ops keeps many temporaries in registers."""

UNKNOWN_STEPS = 64
"""What a loop with a condition counts as."""

SHORT = 4
"""Reductions of no more elements are not worth a vector."""


def choose(
    func: Func,
    machine: Cpu | Gpu,
    overrides: Mapping[str, Schedule] | None = None,
    facts: Facts | None = None,
) -> Func:
    """Chooses tiles for every nest.

    Args:
        func: a program.
        machine: the CPU or GPU.
        overrides: schedules by kernel label; what they leave open is chosen.
        facts: what is known of symbolic dims.
    """

    left = LeftBehind()

    def body(kernel: ops.Kernel) -> Block:
        code: list[Op] = []
        for op in kernel.body.ops:
            if isinstance(op, (ops.Sort, *WORDS)) and not isinstance(machine, Gpu):
                op = op.rebuild(grain=sort_grain(op))
            if isinstance(op, ops.Nest):
                op = choose_nest(op, machine, facts, left.least_work(kernel, code, op))
                if overrides and kernel.label in overrides:
                    op = overrides[kernel.label].apply(op)
            if isinstance(op, Each):
                op = op.with_nests([choose_nest(nest, machine, facts) for nest in op.nests])
            code.append(op)
        if kernel.joined and isinstance(machine, Gpu):
            from tessera.schedule.heuristics_gpu import choose_joined  # which builds on this module

            code[:2] = choose_joined(code[:2])
        left.note(kernel, code)
        return Block(kernel.body.args, with_orders(code), ())

    return with_bodies(func, body)


def choose_nest(
    nest: ops.Nest, machine: Cpu | Gpu, facts: Facts | None = None, least: float = 0
) -> ops.Nest:
    """Chooses the tiles of one nest; on a CPU, threads share no less work than the least."""
    if isinstance(machine, Gpu):
        from tessera.schedule.heuristics_gpu import GpuChoice  # which builds on this module

        return GpuChoice(nest, machine, facts).run()
    if nest.tile:
        return nest  # a part of a product that has been cut into register blocks
    return Choice(nest, machine, facts, least).run()


class Choice:
    """The choice for one nest.

    Attributes:
        tiles: register tile by axis name.
        limits: elements per program by axis name, where that is not left to `grid`.
        last: the axes that become the innermost ones.
        whole: axes along which one program runs to the end.
        cost: additions per point.
        costly: whether a function is worth many of them.
        heavy: whether the body keeps many temporaries in registers.
        down: as in `streaming.is_far`.
        least: what threads share at least.
        updates: whether it combines rows with others anywhere, one after the other.
    """

    def __init__(
        self, nest: ops.Nest, machine: Cpu, facts: Facts | None = None, least: float = 0
    ) -> None:
        self.nest = nest
        self.least = least
        self.machine = machine
        self.accesses = varying(nest, accesses(nest, facts))
        self.free = [axis for axis in nest.axes if axis.name not in nest.ordered]
        self.code = list(walk(nest.body))
        self.lanes = max(1, machine.vector_bits // widest(nest, self.code, self.accesses))
        maps = [op for op in self.code if isinstance(op, ops.Map)]
        self.cost = sum(op.fn.cost for op in maps) + len(self.accesses)
        self.costly = any(op.fn.cost >= lengths.HEAVY_COST for op in maps)
        self.heavy = self.costly or len(self.code) > HEAVY_OPS
        self.updates = any(isinstance(op, ops.Store) and op.combine and op.dyn for op in self.code)
        self.width = self.lanes * (2 if self.heavy else 4)
        self.tiles: dict[str, int] = {}
        self.limits: dict[str, int] = {}
        self.last: list[str] = []
        self.whole: set[str] = set()
        self.reduce_tile, self.reason, self.down = 0, "", False

    def run(self) -> ops.Nest:
        """The nest with tiles and chunks."""
        rule = next(rule for cls, rule in RULES if any(isinstance(op, cls) for op in self.code))
        rule(self)
        front = [axis for axis in self.nest.axes if axis.name not in self.last]
        byname = {axis.name: axis for axis in self.nest.axes}
        axes = (*front, *[byname[name] for name in self.last])
        tile = [self.tiles.get(axis.name, 1) for axis in axes]
        chunk = self.grid(axes, tile)
        grain = self.grain(axes, chunk)
        if grain:
            self.reason += f"; threads share its programs, {grain} at a time"
        new = self.nest.rebuild(
            regions=[Block((), self.streamed(), ())], axes=axes, tile=tuple(tile),
            chunk=tuple(chunk), reduce_tile=self.reduce_tile, reason=self.reason, grain=grain,
        )  # fmt: skip
        assert isinstance(new, ops.Nest)
        if not self.whole or self.reduce_tile < 2:
            return new
        return keeping.marked(new, self.machine, self.down)

    # --- kinds of nests ---------------------------------------------------------------------------

    def plain(self) -> None:
        """Elementwise work: lanes along the axis that most accesses run along."""
        self.reason = "one point after the other"
        if narrow.take_gathered(self):
            return
        axis = self.best_axis(self.accesses)
        if axis is None:
            return
        if self.nest.ordered and not any(a.stride(axis.name) == 1 for a in self.accesses):
            # Points of the other axes have nothing to do with each other: programs of their own.
            ordered = [one for one in self.nest.axes if one.name in self.nest.ordered]
            self.cost *= math.prod(size_of(one.extent) for one in ordered)
            self.last = [one.name for one in ordered]
            return
        # A step of a polynomial waits for the one before: four vectors keep a core busy. Those that
        # do not fit the registers side by side go through memory; but conditions are tested for all
        # of a tile's at once.
        if not any(a.is_guarded for a in self.accesses):
            if not self.costly and self.machine.registers >= 32:
                self.width = 4 * self.lanes
            taken = lengths.registers(self.nest.body.ops, self.width // self.lanes)
            if taken > self.machine.registers:
                self.width = min(self.width, 2 * self.lanes)
        self.vectorise(axis, narrow.bordered_width(self, axis))
        self.reason = f"lanes along {axis.name}, {self.describe(axis)}"
        across = self.turned_axis(axis)
        if across is not None:
            self.turn(axis, across)
            return
        if self.updates:
            return
        # Rows that lie apart would be read from as many places.
        near = narrow.rows_near(self, axis, self.accesses)
        side = narrow.rows_of(self, axis) if self.costly else near
        side = side or narrow.rows_at_places(self, axis)
        if side is None:
            narrow.fill(self, axis)
            return
        self.turn(side, axis)
        self.reason = f"lanes along {side.name}, as {axis.name} is short"

    def reduction(self) -> None:
        """Lanes along the reduction if that is how memory runs, otherwise along an axis of the
        nest."""
        # What a reduction does not move along is read once for all of it.
        moving = [a for a in narrow.data(self) if any(a.stride(x.name) != 0 for x in a.inner)]
        inside = moving or self.accesses
        found = [op for op in self.code if isinstance(op, (ops.Reduce, ops.ArgReduce))]
        axes = [op.axes if isinstance(op, ops.Reduce) else (op.axis,) for op in found]
        longest = max(size_of(one[-1].extent) for one in axes)
        self.cost *= max(math.prod(size_of(axis.extent) for axis in one) for one in axes)
        columns = self.columns(found)
        rows = [axis for axis in self.free if axis not in columns]
        axis = self.best_axis(inside, rows)
        along = runs_along(self.machine, inside, axis, longest)
        across = 0 if axis is None else sum(1 for a in inside if a.stride(axis.name) in (1, -1))
        stated = stated_width(found)
        if columns:
            self.rows(rows, columns, axis if across > along and stated < 2 else None)
            self.reduce_tile = stated or self.reduce_tile
            take_together(self, rows, columns[-1], found)
            return
        is_small = axis is None or math.prod(size_of(a.extent) for a in self.free) * 2 <= self.lanes
        is_small = is_small or (axis is not None and narrow.runs_down(self, axis, moving, longest))
        if stated > 1 or (stated and axis is None):
            self.reduce_tile = stated
            self.reason = f"{stated} lanes along the reduction, as it is stated"
            return
        if not stated and (is_small or (along > across and longest > SHORT)):
            few = is_small and along <= across
            why = "as the result is small" if few else "whose elements are neighbours in memory"
            self.reason = f"lanes along the reduction, {why}"
            width = row_width(self, axes[0][-1].extent, side_by_side(self, moving, found))
            self.reduce_tile = min(width, power_above(longest))
            take_together(self, rows, axes[0][-1], found)
            return
        assert axis is not None
        self.reduce_tile = 1
        side = narrow.rows_near(self, axis, inside)
        if side is not None:
            self.vectorise(side, self.width)
            self.reason = f"lanes along {side.name}, as {axis.name} is short"
            return
        width = self.width
        if not self.heavy and all(isinstance(op, ops.Reduce) for op in found):
            width = long_line(self, axis, registers_of(found, inside, axis))
        elif not self.heavy and len(found) == 1:
            # A search needs registers for the places, too, and masks.
            width = long_line(self, axis, 4)
        other = self.turned_axis(axis)
        if other is not None and longest <= self.lanes:
            self.turn(axis, other)
            return
        if take_block(self, axis, found, moving):
            return
        self.vectorise(axis, width)
        self.reason = f"lanes along {axis.name}, each with its own reduction"

    def columns(self, found: Sequence[Op]) -> list[Axis]:
        """The axes on which no reduction depends."""
        dependence = dependence_of(self.nest.body)
        used = frozenset[str]().union(*[dependence.ops[op] for op in found])
        return [axis for axis in self.free if axis.name not in used]

    def rows(self, rows: Sequence[Axis], columns: Sequence[Axis], across: Axis | None) -> None:
        """Passes over one row after the other, which stays cached; lanes are rows if `across`."""
        self.whole = {axis.name for axis in columns}
        length = columns[-1].extent
        if across is None:
            width = row_width(self, length, self.width)
            self.reduce_tile = min(width, power_above(size_of(length)))
            self.vectorise(columns[-1], width)
            self.reason = "passes over a row that stays in the cache"
        else:
            self.reduce_tile = 1
            self.vectorise(across, self.width)
            self.reason = f"passes over rows that stay in the cache, lanes along {across.name}"
        names = [axis.name for axis in rows if axis is not across]
        self.last = [*names, *([across.name] if across else []), *[a.name for a in columns]]

    def scan(self) -> None:
        """Running combinations are independent of each other along the nest's axes only."""
        self.reduce_tile = 1
        self.reason = "one element after the other along the scan"
        inside = [a for a in self.accesses if a.inner]  # what is outside is done once for the line
        axis = self.best_axis(inside)
        scans = [op for op in self.code if isinstance(op, ops.Scan)]
        self.cost *= max(size_of(op.axis.extent) for op in scans)
        strides = {a.stride(a.inner[-1].name) for a in inside}
        if axis is not None and any(a.stride(axis.name) == 1 for a in inside):
            is_plain = not self.heavy and len(scans) == 1
            self.vectorise(axis, long_line(self, axis) if is_plain else self.width)
            self.reason = f"lanes along {axis.name}, each with its own scan"
            if len(scans) == 1 and 1 in strides:
                self.tiles[axis.name] = self.reduce_tile = self.lanes
                self.reason += ", in squares, as accesses run along both"
            return
        if len(scans) > 1 or scans[0].order is not None or not strides <= {0, 1, -1}:
            return
        self.reduce_tile = min(self.lanes, power_above(size_of(scans[0].axis.extent)))
        self.reason = "vectors along the scan, whose elements are neighbours in memory"
        if axis is not None and narrow.is_short_scan(self, axis, scans[0].axis.extent):
            self.vectorise(axis, self.lanes)
            self.reason = f"lanes along {axis.name}, as the scan is short"

    def recurrence(self) -> None:
        """Each point has a loop of its own; what all lanes of a tile carry stays in registers."""
        loop, *_ = [op for op in self.code if isinstance(op, loop_ops.LOOPS)]
        is_counted = isinstance(loop, loop_ops.Recur)
        self.cost *= size_of(loop.axis.extent) if is_counted else UNKNOWN_STEPS
        self.reason = "one point after the other, each with its own loop"
        inside = [a for a in self.accesses if a.inner]
        if (axis := self.best_axis(inside or self.accesses)) is not None:
            axis = narrow.short_rows(self, axis, inside)
            # Where memory is far, more vectors of a row wait for it longer than a step takes.
            self.down = is_counted
            part = 4 if streaming.is_far(self.nest, self.machine, self.down) else 2
            vectors = power_below(self.machine.registers / (part * len(loop.init)))
            width = self.width
            if is_counted and inside and not self.heavy:
                # Long lines of memory, where two programs are left.
                width = max(width, power_below(size_of(axis.extent) / 2))
            self.vectorise(axis, min(width, self.lanes * vectors))
            self.reason = f"lanes along {axis.name}, each with its own loop in registers"
            narrow.fill_loops(self, axis, self.lanes * vectors)

    def contraction(self) -> None:
        """A block of accumulators that stays in registers."""
        (op,) = [op for op in self.code if isinstance(op, ops.Contract)]
        byname = {axis.name: axis for axis in self.nest.axes}
        rows, cols = [byname[n] for n in op.rows], [byname[n] for n in op.cols]
        depth = math.prod(size_of(axis.extent) for axis in op.axes)
        self.cost = 2 * depth
        if not (rows and cols):
            self.sequence(depth, rows or cols)
            return
        last = op.axes[-1].name
        inside = [a for a in self.accesses if a.inner]
        sides = [a for a in inside if any(a.stride(axis.name) != 0 for axis in cols)]
        col = max(cols, key=lambda c: (sum(a.stride(c.name) == 1 for a in sides), cols.index(c)))
        row = rows[-1]
        across = all(a.stride(col.name) == 1 for a in sides)
        along = not across and all(a.stride(last) == 1 for a in inside)
        turns = along and (
            narrow.has_long_rows(self, row, col)
            or narrow.has_long_columns(self, op.dtype, col, depth)
        )
        if op.order is None and narrow.is_product(self, row, col, depth, along):
            self.reduce_tile = 1
            self.tiles = {row.name: self.lanes, col.name: power_above(size_of(col.extent))}
            self.reason = f"lanes along {row.name}, as {col.name} is short"
            row, col = col, row
        elif op.order is None and along and not turns:
            self.reduce_tile = min(self.width, power_above(size_of(op.axes[-1].extent)))
            self.reason = "both operands run along the reduction: lanes along it"
        else:
            self.reduce_tile = 1
            # Few rows: what counts is to read long lines of the second operand.
            height = self.block_rows(row)
            vectors = max(power_below(self.machine.registers / 2 / height), 2)
            width = min(vectors * self.lanes, power_above(size_of(col.extent)))
            self.tiles = {row.name: height, col.name: width}
            self.reason = f"{self.tiles[row.name]} x {width} accumulators in registers"
            if not across and all(a.stride(last) == 1 for a in sides):
                self.squares(col)
            elif not across:
                self.reason += "; the second operand is not contiguous along any axis"
        batch = [a.name for a in self.nest.axes if a not in rows and a not in cols]
        others = [a.name for a in (*rows, *cols) if a is not row and a is not col]
        self.last = [*batch, *others, row.name, col.name]
        self.depth = depth

    def sequence(self, depth: int, axes: Sequence[Axis]) -> None:
        """A product without rows or columns, in the order that it states."""
        self.depth, self.reduce_tile = depth, 1
        self.reason = "one sum, in the order that is stated"
        if axes:
            axis = axes[-1]
            self.vectorise(axis, self.width)
            self.reason = f"lanes along {axis.name}, each with its own sum in order"
            inside = [a for a in self.accesses if a.inner and a.stride(axis.name) not in (0, 1)]
            if inside and all(a.stride(a.inner[-1].name) == 1 for a in inside):
                self.squares(axis)

    def squares(self, axis: Axis) -> None:
        """Loads squares of an operand that runs along the depth, and turns them in registers."""
        self.tiles[axis.name] = min(self.lanes, power_above(size_of(axis.extent)))
        self.reduce_tile = self.lanes
        self.reason += ", in squares, as accesses run along the depth"

    def block_rows(self, row: Axis) -> int:
        """Rows of the register block, so that few are wasted at the end."""
        registers = self.machine.registers
        if registers >= 32:
            options = (12, 14, 10, 8)
        else:
            options = (6, 5, 4) if self.machine.vector_bits >= 256 else (4,)
        extent = row.extent
        if not isinstance(extent, int):
            return min(options[0], 8)
        if extent < max(options):
            return max(extent, 1)
        return min(options, key=lambda m: -(-extent // m) * m)

    # --- parts ------------------------------------------------------------------------------------

    def best_axis(
        self, found: Sequence[Access], among: Sequence[Axis] | None = None
    ) -> Axis | None:
        """The axis along which most accesses are contiguous, or constant."""
        best, score = None, 0.0
        for axis in self.free if among is None else among:
            total = 0.0
            for access in found:
                stride = access.stride(axis.name)
                if stride == 1:
                    total += 4 if access.is_store else 3
                elif stride in (0, -1):  # downwards, a vector is turned round
                    total += 2
            filled = min(size_of(axis.extent), self.lanes) / self.lanes
            if narrow.lie_mixed(self, axis, found):
                filled = narrow.PARTED
            total = (total + 0.1) * filled
            if best is None or total >= score:
                best, score = axis, total
        return best

    def vectorise(self, axis: Axis, width: int) -> None:
        """Makes an axis the vector axis."""
        self.tiles[axis.name] = min(width, power_above(size_of(axis.extent)))
        self.last.append(axis.name)

    def turned_axis(self, axis: Axis) -> Axis | None:
        """An axis along which other accesses are contiguous that jump along the vector axis."""
        for other in reversed(self.free):
            if other is axis or size_of(other.extent) < 2:
                continue
            for access in self.accesses:
                strides = access.stride(other.name), access.stride(axis.name)
                if strides[0] in (1, -1) and strides[1] not in (0, 1, -1):
                    return other
        return None

    def turn(self, axis: Axis, across: Axis) -> None:
        """Square tiles: both sides are whole vectors, and lines of the cache."""
        self.tiles[axis.name] = min(self.lanes, power_above(size_of(axis.extent)))
        self.tiles[across.name] = max(min(self.lanes, power_above(size_of(across.extent))), 1)
        self.last = [across.name, axis.name]
        steps = [a.stride(across.name) for a in self.accesses if a.is_store]
        self.down = any(streaming.is_paged(a, across) for a in self.accesses if a.is_store)
        line = streaming.STRETCH * 8 * self.lanes // self.machine.vector_bits
        line = line if streaming.in_lines(self.streamed(), steps, self.lanes) else TURNED_CHUNK
        self.limits = {across.name: TURNED_CHUNK, axis.name: line}
        self.reason = f"square tiles, as accesses run along {across.name} or {axis.name}"

    def describe(self, axis: Axis) -> str:
        """How the accesses lie along an axis."""
        strides = [a.stride(axis.name) for a in self.accesses]
        ones = sum(s == 1 for s in strides)
        text = f"{ones} of {len(strides)} accesses contiguous"
        zeros = sum(s == 0 for s in strides)
        return f"{text}, {zeros} constant" if zeros else text

    def grid(self, axes: Sequence[Axis], tile: Sequence[int]) -> list[int]:
        """The chunk of each axis: innermost axes are taken whole while there is room."""
        if any(isinstance(op, ops.Contract) for op in self.code):
            return [self._contraction_chunk(a, t) for a, t in zip(axes, tile, strict=True)]
        room = min(max(power_below(WORK / max(self.cost, 1)), 1), MAX_CHUNK)
        if self.cost * MIN_CHUNK <= 4 * WORK:
            room = max(room, MIN_CHUNK)
        chunks: list[int] = []
        for axis, step in zip(reversed(axes), reversed(tile), strict=True):
            extent = axis.extent
            if axis.name in self.nest.ordered or axis.name in self.whole:
                chunks.append(0)
                if self.updates and isinstance(extent, int):
                    room = max(room // max(extent, 1), 1)
                continue
            if axis.name in self.limits:
                own = max(self.limits[axis.name] // step, 1) * step
                own = even(extent, own, step) if isinstance(extent, int) else own
                chunks.append(0 if own == extent else own)
                room = max(room // max(own, 1), 1)
                continue
            if isinstance(extent, int) and extent <= room:
                chunks.append(0)
                room //= max(extent, 1)
                continue
            own = room
            if not isinstance(extent, int) and not chunks and len(axes) > 1:
                own = min(room, SYMBOLIC_LINE)
            own = max(own // step, 1) * step
            if isinstance(extent, int) and own < extent:
                own = even(extent, own, step)
            chunks.append(own)
            room = max(room // own, 1)
        chunks.reverse()
        return chunks

    def grain(self, axes: Sequence[Axis], chunks: Sequence[int]) -> int:
        """Programs that are worth a thread's while."""
        programs = 1
        points: dict[str, int] = {}
        for axis, chunk in zip(axes, chunks, strict=True):
            extent = size_of(axis.extent)
            points[axis.name] = min(chunk, extent) if chunk else extent
            if chunk and isinstance(axis.extent, int):
                programs *= -(-extent // chunk)
            elif chunk and programs < UNKNOWN_PROGRAMS:
                points[axis.name], programs = chunk, UNKNOWN_PROGRAMS  # several are full
        work = self.work(points)
        grain = grain_of(programs, work, self.nest.grain > 0)
        in_loops = any(isinstance(op, loop_ops.LOOPS) for op in self.code)
        if grain and programs * work / (self.speed if in_loops else 1) < self.least:
            self.reason += "; one thread has just used what it reads"
            return 0
        return grain

    @property
    def speed(self) -> int:
        """Operations of a vector that take as long as one of an element."""
        is_vector = self.reduce_tile > 1 or max(self.tiles.values(), default=1) > 1
        return max(self.lanes // 2, 1) if is_vector else 1

    def work(self, points: Mapping[str, int]) -> float:
        """How long a program takes with so many points along each axis, in accesses to memory that
        lie in a cache. What belongs to a row is computed once for it."""
        if any(isinstance(op, loop_ops.LOOPS) for op in self.code):
            return self.cost * math.prod(points.values())
        found = dependence_of(self.nest.body).ops
        total = 0.0
        for op in self.nest.body.ops:
            inside = [op, *(one for region in op.regions for one in walk(region))]
            own = sum(one.fn.cost for one in inside if isinstance(one, ops.Map))
            own /= self.speed
            own += sum(narrow.price(self, one) for one in inside)
            own *= math.prod(size_of(axis.extent) for axis in inner_axes(op))
            total += own * math.prod(n for name, n in points.items() if name in found[op])
        return total

    def streamed(self) -> list[Op]:
        """The body, which stores past the caches what is large, in lines. Long computations are
        not bound by memory, and the branch at such a store would keep vectors from overlapping.
        What follows passes over a row is short beside them."""
        if self.whole:
            is_bound = self.reduce_tile > 1 and not self.costly
        else:
            # What loops keep of each step is several times what they read.
            keeps = any(isinstance(op, loop_ops.Recur) for op in self.code)
            is_bound = keeps or not self.heavy
            loops = (ops.Reduce, ops.ArgReduce, ops.Contract, ops.Scan)
            is_bound &= not any(isinstance(op, loops) for op in self.code)
        if not is_bound:
            return list(self.nest.body.ops)
        return streaming.marked(self.nest, self.machine, self.down)

    def _contraction_chunk(self, axis: Axis, step: int) -> int:
        """Some register blocks along rows, a panel for the cache along columns, one elsewhere."""
        (op,) = [op for op in self.code if isinstance(op, ops.Contract)]
        if axis.name in self.nest.ordered:
            return 0
        if axis.name in op.cols:
            bits = self.machine.vector_bits // self.lanes
            wide = PANEL_BYTES * 8 // bits // max(self.depth, 1)
            own = max(min(wide, 512) // step, 1) * step
        elif axis.name in op.rows:
            own = -(-64 // step) * step if step > 1 else 1
        else:
            own = 1
        return 0 if isinstance(axis.extent, int) and axis.extent <= own else own


RULES: tuple[tuple[type[Op] | tuple[type[Op], ...], Callable[[Choice], None]], ...] = (
    (ops.Contract, Choice.contraction),
    (loop_ops.LOOPS, Choice.recurrence),
    (ops.Scan, Choice.scan),
    ((ops.Reduce, ops.ArgReduce), Choice.reduction),
    (Op, Choice.plain),
)
"""The rule of the first kind of op that a nest holds."""
