"""Simulated barriers: where threads wait for each other."""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any

import numpy as np

from tessera.ir.core import Op
from tessera.target import gpu_ops as g
from tessera.target.gpu_ops import WARP
from tessera.target.simulate.state import Array, Threads


@dataclass(slots=True)
class Wait:
    """Why threads cannot go on.

    Attributes:
        op: where they wait.
        threads: who waits.
        over: whether they may go on now.
        what: what they wait for, as messages say it.
    """

    op: Op
    threads: Threads
    over: Callable[[], bool]
    what: str


Waits = Generator[Wait, None, None]


def _barrier(s: Threads, op: g.Barrier) -> Waits:
    launch = s.launch
    if op.threads and op.threads % WARP:
        raise s.fail(op, f"{op.threads} threads are not whole warps")
    meet_in_step(s, op, launch.threads)
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


def _warp_barrier(s: Threads, op: g.WarpBarrier) -> Waits:
    s.launch.order.meet_warps(s.warps(op), int(s.number[0]))
    return
    yield


STEPS: dict[type[Op], Callable[[Threads, Any], Waits]] = {
    g.Barrier: _barrier,
    g.WarpBarrier: _warp_barrier,
}
