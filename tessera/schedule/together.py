"""Kernels of a CPU that need nothing of each other are one piece of work for its threads.

    in:  a program with tiles and places
    out: the same program, where kernels of a job stand next to each other and have its number

To share a kernel among threads costs some microseconds, and small kernels are not worth that. An
optimizer's update of a hundred arrays is: it is a hundred kernels, none of which reads or writes
what another one writes. All of them are cut into pieces, and these are dealt out together: threads
wait for each other once, at the end.

What lies in the same memory in turn is not independent, so this comes after the buffer plan. Small
kernels may move up to others: `f(x)`, `g(f(x))`, `f(y)`, `g(f(y))` is two jobs.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TypeAlias

from tessera.ir.core import Block, Func, Op, Value
from tessera.ir.walk import walk
from tessera.schedule import loop_ops, ops
from tessera.schedule.access import dependence_of
from tessera.schedule.dependence import inner_axes
from tessera.schedule.grains import GRAIN, WORK
from tessera.schedule.plan import byte_size
from tessera.schedule.types import BufType, Place, PlaceKind

MOST = 128
"""Kernels of a job."""

WINDOW = 16
"""So many levels of kernels, each of which needs something of the one before, are looked at."""

LARGE = 16 * GRAIN
"""A kernel of so much work gains nothing: to begin and to end its own job is little beside it."""

LANES = 8
"""Elements that a step takes at once, where a kernel works on vectors."""


def join(func: Func) -> Func:
    """Gives numbers to jobs, and brings kernels of a job together.

    Args:
        func: a program with tiles and places.
    """
    return func.with_body(_Joiner(func).block(func.body, {}))


_Access: TypeAlias = tuple[Place, int, bool]
"""A place, its bytes, and whether it is written."""


class _Memory:
    """What kernels read and write."""

    def __init__(self) -> None:
        self.buffers: dict[Place, bool] = {}
        self.arena: list[tuple[int, int, bool]] = []

    def meets(self, place: Place, size: int, is_written: bool) -> bool:
        """Whether something else touches the memory, and one of the two writes it."""
        if place.kind is not PlaceKind.ARENA:
            found = self.buffers.get(place)
            return found is not None and (found or is_written)
        start = int(str(place.at))
        return any(
            low < start + size and start < high and (written or is_written)
            for low, high, written in self.arena
        )

    def add(self, place: Place, size: int, is_written: bool) -> None:
        """Notes an access."""
        if place.kind is not PlaceKind.ARENA:
            self.buffers[place] = self.buffers.get(place, False) or is_written
        else:
            start = int(str(place.at))
            self.arena.append((start, start + size, is_written))


class _Job:
    """Kernels that need nothing of each other.

    Attributes:
        number: that of the job, once it is one.
    """

    def __init__(self, is_open: bool) -> None:
        self.kernels: list[ops.Kernel] = []
        self.work: list[float] = []
        self.memory = _Memory()
        self.number = 0
        self._is_open = is_open

    @property
    def is_open(self) -> bool:
        """Whether more kernels may join."""
        return self._is_open and len(self.kernels) < MOST

    @property
    def is_worthwhile(self) -> bool:
        """Whether threads should share it, and something is gained if they share all of it."""
        return len(self.kernels) > 1 and sum(self.work) >= 2 * GRAIN

    def part(self, kernel: ops.Kernel, operands: list[Value]) -> ops.Kernel:
        """A kernel of it, with the number."""
        (nest,) = kernel.body.ops
        assert isinstance(nest, ops.Nest)
        work = self.work[self.kernels.index(kernel)]
        programs = _programs(nest)
        grain = max(math.ceil(WORK * programs / max(work, 1)), 1)
        code = nest.rebuild(grain=grain if grain < programs else 0)
        count = len(self.kernels) - 1
        others = "another that needs" if count == 1 else f"{count} others that need"
        together = f"threads share it with {others} nothing of it"
        found = kernel.rebuild(
            operands,
            [Block(kernel.body.args, [code], ())],
            job=self.number,
            reason=f"{kernel.reason}; {together}",
        )
        assert isinstance(found, ops.Kernel)
        return found


class _Joiner:
    def __init__(self, func: Func) -> None:
        self.places = {arg: Place(PlaceKind.INPUT, k) for k, arg in enumerate(func.args)}
        self.number = 0

    def block(self, old: Block, env: dict[Value, Value]) -> Block:
        """A block of the program."""
        code: list[Op] = []
        for op, job in self.ordered(old):
            operands = [env.get(v, v) for v in op.operands]
            if job is not None and isinstance(op, ops.Kernel):
                new: Op = job.part(op, operands)
            elif isinstance(op, ops.Kernel):
                new = op.rebuild(operands)
            else:
                places = op.places if isinstance(op, ops.While) else ()
                for region in op.regions if places else ():
                    self.places.update(zip(region.args, places, strict=True))
                new = op.rebuild(operands, [self.block(region, env) for region in op.regions])
            env.update(zip(op.results, new.results, strict=True))
            code.append(new)
        return Block(old.args, code, [env.get(v, v) for v in old.outputs])

    def ordered(self, block: Block) -> Iterator[tuple[Op, _Job | None]]:
        """The ops of a block in their new order, each with its job."""
        levels: list[_Job] = []
        run: list[Op] = []
        for op in block.ops:
            places: tuple[Place, ...] = getattr(op, "places", ())
            self.places.update(zip(op.results, places, strict=True))
            accesses = self.accesses(op)
            if accesses is None or not isinstance(op, ops.Kernel):
                yield from self.levelled(levels, run)
                yield op, None
                levels, run = [], []
                continue
            if len(levels) >= WINDOW:
                yield from self.levelled(levels, run)
                levels, run = [], []
            run.append(op)
            self.put(op, accesses, levels)
        yield from self.levelled(levels, run)

    def put(self, op: ops.Kernel, accesses: list[_Access], levels: list[_Job]) -> None:
        """Puts a kernel into the first level that it may be in."""
        work = self.work(op)
        after = len(levels)
        while after and not any([levels[after - 1].memory.meets(*one) for one in accesses]):
            after -= 1
        if work is None:
            after = len(levels)
        elif work >= 2 * GRAIN:
            # It is shared anyhow, and finds in the cache what the kernels before it left there.
            after = max(after, len(levels) - 1)
        level = next((one for one in levels[after:] if one.is_open), None)
        if level is None:
            level = _Job(is_open=work is not None)
            levels.append(level)
        level.kernels.append(op)
        level.work.append(work or 0.0)
        for one in accesses:
            level.memory.add(*one)

    def levelled(
        self, levels: Sequence[_Job], run: Sequence[Op]
    ) -> Iterator[tuple[Op, _Job | None]]:
        """The kernels by levels, if that makes a job of some."""
        if not any([level.is_worthwhile for level in levels]):
            yield from [(op, None) for op in run]
            return
        for level in levels:
            if level.is_worthwhile:
                self.number += 1
                level.number = self.number
            yield from [(op, level if level.is_worthwhile else None) for op in level.kernels]

    def accesses(self, op: Op) -> list[_Access] | None:
        """Where a kernel reads and writes; None if that is not known."""
        if not isinstance(op, ops.Kernel):
            return None
        found: list[_Access] = []
        for values, is_written in ((op.inputs, False), (op.results, True)):
            for value in values:
                assert isinstance(value.type, BufType)
                place, size = self.places[value], byte_size(value.type)
                if not isinstance(place.at, int) or not isinstance(size, int):
                    return None
                found.append((place, size, is_written))
        return found

    def work(self, op: Op) -> float | None:
        """What a kernel does, in accesses to memory that lie in a cache; None where it is no single
        nest of known size, or large."""
        if not isinstance(op, ops.Kernel) or len(op.body.ops) != 1:
            return None
        (nest,) = op.body.ops
        if not isinstance(nest, ops.Nest):
            return None
        if not all([isinstance(axis.extent, int) for axis in nest.axes]):
            return None
        if any([isinstance(one, loop_ops.LOOPS) for one in walk(nest.body)]):
            return None
        depends = dependence_of(nest.body).ops
        speed = LANES if max(nest.tile, default=1) > 1 or nest.reduce_tile > 1 else 1
        total = 0.0
        for one in nest.body.ops:
            inside = [one, *(inner for region in one.regions for inner in walk(region))]
            own = sum([part.fn.cost for part in inside if isinstance(part, ops.Map)]) / speed
            own += sum([isinstance(part, (ops.Load, ops.Store, ops.Scan)) for part in inside])
            extents = [axis.extent for axis in inner_axes(one)]
            if not all([isinstance(extent, int) for extent in extents]):
                return None
            own *= math.prod([int(str(extent)) for extent in extents])
            axes = [axis.extent for axis in nest.axes if axis.name in depends[one]]
            total += own * math.prod([int(str(extent)) for extent in axes])
        return None if total > LARGE else total


def _programs(nest: ops.Nest) -> int:
    pairs = zip(nest.axes, nest.chunk, strict=False)
    return math.prod([-(-int(str(axis.extent)) // chunk) for axis, chunk in pairs if chunk])
