"""What holds a budget of memory on a GPU at the least cost: values computed again, and buffers that
are moved to the memory of the host meanwhile.

`memory_budget` gives Graphs that compute more and more again, `offload` programs that move more and
more. Neither depends on the budget. For each Graph, the first of its programs (in steps of an
eighth) whose plan holds the budget is taken, and of all these the one that takes least time, by
`duration`. So a larger budget never takes more time, and what one budget holds every larger one
does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from math import inf
from typing import Protocol

from tessera.ir.core import Func
from tessera.schedule.duration import Device, of_op
from tessera.schedule.machines import Gpu
from tessera.schedule.memory_budget import Again, steps, sums_of
from tessera.schedule.offload import OFFLOAD, Offloading

Planned = Callable[[Func], tuple[int, int]]
"""The bytes at the peak of a program with tiles, by its plan, and those of them in between."""


ROOMS = (inf, 1.0, 0.875, 0.75, 0.5)
"""Room for copies beside kernels that is tried within the budget, in parts of what the kernels need
at least: a plan needs more than that, as its memory lies in pieces."""

MOST = 1 << 12
"""The most buffers that are moved."""


def _counts() -> Iterator[int]:
    count = 0
    while count < MOST:
        count += max(1, count // 8)
        yield count


COUNTS = frozenset(_counts())
"""Of so many buffers that are moved the plan is asked: each plan takes about as long as a hundredth
of compiling, and an eighth more of copies is not much."""


class GpuDevice(Gpu, Device, Protocol):
    """What is asked of a GPU here."""


@dataclass(frozen=True)
class Held:
    """A way to hold a budget, or what needs least where there is none.

    Attributes:
        graph: the program; an attribute of it says what is moved.
        need: bytes at the peak.
        seconds: what it takes beyond the program as it was, roughly.
        again: what is computed again.
        moved: how many buffers are moved.
    """

    graph: Func
    need: int
    seconds: float
    again: tuple[Again, ...]
    moved: int = 0


def hold(
    graph: Func, budget: int, device: GpuDevice, tiled: Callable[[Func], Func], planned: Planned
) -> Held:
    """The cheapest way to hold a budget, or else the one that needs least memory.

    Args:
        graph: the program.
        budget: bytes.
        device: what it is for.
        tiled: the program of a Graph, with tiles and without places.
        planned: see `Planned`.
    """
    best: Held | None = None
    least: Held | None = None
    known: set[tuple[object, ...]] | None = None
    base = spent = 0.0
    for one, again in _all(graph, device):
        program = tiled(one)
        sums = sums_of(program)
        if known is None:
            known, base = sums, _seconds(program, device)
        elif not sums <= known:
            continue  # other bits
        spent = max(spent, _seconds(program, device) - base)
        if best is not None and spent >= best.seconds:
            break
        found = _moving(Held(one, 0, spent, again), budget, best, program, device, planned)
        if found is None:
            continue
        if found.need <= budget:
            best = found
        elif best is None and (least is None or found.need < least.need):
            least = found
    found = best or least
    assert found is not None
    return found


def _all(graph: Func, device: GpuDevice) -> Iterator[tuple[Func, tuple[Again, ...]]]:
    yield graph, ()
    yield from steps(graph, device)


def _seconds(program: Func, device: Device) -> float:
    return sum([of_op(op, device) for op in program.ops])


def _moving(
    held: Held, budget: int, best: Held | None, program: Func, device: Device, planned: Planned
) -> Held | None:
    """The first program that holds the budget as buffers are moved, or the last; None if there is a
    better one."""
    moving = Offloading(program, device)
    need, arena = planned(program)
    fixed = need - arena
    while need > budget and moving.step():
        if best is not None and held.seconds + moving.seconds >= best.seconds:
            return None
        # Nor is it asked where it cannot hold the budget.
        if len(moving.gaps) in COUNTS and fixed + moving.between <= budget:
            need, _ = planned(moving.moved())
    seconds, count, room = held.seconds + moving.seconds, len(moving.gaps), 0
    if not count:
        return replace(held, need=need)
    if need > budget:  # all are moved
        need, _ = planned(moving.moved())
    if need <= budget:
        rooms = [int(min(budget - fixed, moving.between * part)) for part in ROOMS] + [0]
        needs = ((planned(moving.moved(room))[0], room) for room in rooms)
        need, room = next(pair for pair in needs if pair[0] <= budget)
    attrs = {**held.graph.attrs, OFFLOAD: f"{count}, {room}"}
    graph = Func(held.graph.name, held.graph.body, held.graph.dims, attrs)
    return replace(held, graph=graph, need=need, seconds=seconds, moved=count)
