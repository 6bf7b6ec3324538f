"""Simulated barriers: where threads wait for each other."""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any

import numpy as np

from tessera.ir.core import Op
from tessera.target import gpu_ops as g
from tessera.target.gpu_ops import WARP
from tessera.target.simulate.clocks import Clocks
from tessera.target.simulate.engine import Mbarrier, barrier_places, touched
from tessera.target.simulate.state import Array, Launch, Threads, failure


@dataclass(slots=True)
class Wait:
    """Why threads cannot go on.

    Attributes:
        op: where they wait.
        threads: who waits.
        over: whether they may go on now.
        what: what they wait for, as messages say it.
        barriers: the barriers in memory that they wait for.
    """

    op: Op
    threads: Threads
    over: Callable[[], bool]
    what: Callable[[], str]
    barriers: tuple[Mbarrier, ...] = ()


Waits = Generator[Wait, None, None]


@dataclass(slots=True)
class Meeting:
    """A barrier of a block or of a cluster.

    Attributes:
        count: threads that have come.
        expected: how many must come.
        generation: how often all have come.
        op: where the first has come.
        clock: what those who have come know.
        published: the same when all had come.
    """

    count: int
    expected: int
    generation: int
    op: Op
    clock: Array
    published: Array


def _barrier(s: Threads, op: g.Barrier) -> Waits:
    if s.launch.in_step:
        meet_in_step(s, op, s.launch.threads)
    else:
        block = int(s.block[0])
        yield from _meet(s, op, (block, op.id), op.threads or s.launch.threads, not op.threads)


def _cluster_barrier(s: Threads, op: g.ClusterBarrier) -> Waits:
    cluster = int(s.block[0]) // s.launch.cluster
    yield from _meet(s, op, (cluster, -1), s.launch.cluster * s.launch.threads, False)


def _barrier_arrive(s: Threads, op: g.BarrierArrive) -> Waits:
    _come(s, op, (int(s.block[0]), op.id), op.threads, False)
    return
    yield


def meet_in_step(s: Threads, op: Op, size: int) -> None:
    """A barrier of groups of threads that run in step: all of a group or none must be there."""
    blocks: Array | None = None
    if s.mask is not None:
        there = s.mask.reshape(-1, size)
        blocks = np.any(there, axis=1)
        every: Array = np.all(there, axis=1)
        if (blocks != every).any():
            block = int(np.flatnonzero(blocks != every)[0])
            missing = int(np.flatnonzero(~there[block])[0])
            message = f"divergent barrier: thread {missing} of the block does not come"
            raise s.fail(op, message, block * size + int(np.flatnonzero(there[block])[0]))
    s.launch.order.meet_blocks(blocks)


def _come(s: Threads, op: Op, key: tuple[int, int], expected: int, same_op: bool) -> Meeting:
    """A warp comes to a barrier."""
    s.warps(op)
    launch = s.launch
    assert isinstance(launch.order, Clocks)
    if not 0 <= key[1] + 1 <= launch.machine.barriers or expected % WARP:
        raise s.fail(op, f"barrier {key[1]} of {expected} threads", 0)
    meeting = launch.meetings.get(key)
    if meeting is None:
        none = np.zeros(launch.order.count + 1, np.int32)
        meeting = launch.meetings[key] = Meeting(0, expected, 0, op, none, none)
    if meeting.count == 0:
        meeting.expected, meeting.op = expected, op
    elif meeting.expected != expected:
        message = f"{expected} threads are to meet here, elsewhere {meeting.expected}"
        raise s.fail(op, message, 0)
    elif same_op and meeting.op is not op:
        raise s.fail(op, "divergent barrier: other threads of the block wait at another one", 0)
    meeting.count += WARP
    meeting.clock = np.maximum(meeting.clock, launch.order.publish(s.number))
    if meeting.count == expected:
        meeting.count = 0
        meeting.generation += 1
        meeting.published = meeting.clock.copy()
    return meeting


def _meet(s: Threads, op: Op, key: tuple[int, int], expected: int, same_op: bool) -> Waits:
    """A warp waits at a barrier."""
    old = s.launch.meetings.get(key)
    generation = old.generation if old else 0
    meeting = _come(s, op, key, expected, same_op)
    if meeting.generation == generation:

        def over() -> bool:
            return meeting.generation > generation

        def what() -> str:
            return f"the others at {op.name}: {meeting.count} of {expected} threads have come"

        yield Wait(op, s, over, what)
    assert isinstance(s.launch.order, Clocks)
    s.launch.order.take(s.number, meeting.published)


def _warp_barrier(s: Threads, op: g.WarpBarrier) -> Waits:
    s.launch.order.meet_warps(s.warps(op), int(s.number[0]))
    return
    yield


def _mbarrier_wait(s: Threads, op: g.MbarrierWait) -> Waits:
    launch = s.launch
    assert isinstance(launch.order, Clocks)
    places = barrier_places(s, op, op.ptr, op.offset).tolist()
    positions = s.positions().tolist()
    parity = s.of_active(s.values[op.parity]).tolist()
    if any(p not in (0, 1) for p in parity):
        raise s.fail(op, f"a parity is 0 or 1, not {parity[0]}", positions[0])
    found = [touched(s, op, place, k) for place, k in zip(places, positions, strict=True)]
    pairs = list(dict.fromkeys(zip(found, parity, strict=True)))

    def over() -> bool:
        return all(barrier.phase % 2 != p for barrier, p in pairs)

    def what() -> str:
        waited = next(((b, p) for b, p in pairs if b.phase % 2 == p), pairs[0])
        at = launch.offset(places[found.index(waited[0])])
        return f"parity {waited[1]} of the barrier at byte {at}: {waited[0].said()}"

    if not over():
        yield Wait(op, s, over, what, tuple(barrier for barrier, _ in pairs))
    for barrier, _ in pairs:
        mine = [k for k, b in zip(positions, found, strict=True) if b is barrier]
        launch.order.take(s.number[mine], barrier.published)


def deadlock(launch: Launch, waits: list[Wait]) -> Exception:
    """The error of threads that wait for each other for ever."""
    notes = [f"{launch.who(int(w.threads.ident[0]))} waits for {w.what()}" for w in waits]
    partial = any(isinstance(w.op, g.Barrier) and not w.op.threads for w in waits)
    why = " (divergent barrier: not all threads of the block come)" if partial else ""
    return failure(waits[0].op, f"deadlock: no thread can go on{why}", *dict.fromkeys(notes[:16]))


STEPS: dict[type[Op], Callable[[Threads, Any], Waits]] = {
    g.Barrier: _barrier,
    g.BarrierArrive: _barrier_arrive,
    g.ClusterBarrier: _cluster_barrier,
    g.WarpBarrier: _warp_barrier,
    g.MbarrierWait: _mbarrier_wait,
}
