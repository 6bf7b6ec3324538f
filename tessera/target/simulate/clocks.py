"""Which accesses come before which, where warps go their own ways: a vector clock for each thread.

`known[t, u]` is the time up to which thread t knows what thread u did: what u accessed before it
comes before what t does now. The last column is the copy engine's. A thread publishes what it knows
at an arrival, and takes over at the end of a wait what was published.
"""

from __future__ import annotations

import numpy as np

from tessera.ir.core import Op
from tessera.target.gpu_ops import WARP
from tessera.target.simulate.memory import Memory
from tessera.target.simulate.order import NOBODY, Order
from tessera.target.simulate.state import Array, Threads

ENGINE = -3
"""The code of the copy engine as a writer."""

_ALWAYS = (1 << 31) - 1


class Clocks(Order):
    """Vector clocks of the threads of one launch."""

    def __init__(self, first: int, blocks: int, threads: int, relaxed: bool) -> None:
        super().__init__(first, blocks, threads, relaxed)
        self.count = blocks * threads
        self.known = np.zeros((self.count, self.count + 1), np.int32)
        self.itself = np.arange(self.count)
        self.known[self.itself, self.itself] = _ALWAYS
        self.fenced = np.zeros((self.count, self.count + 1), np.int32)

    def publish(self, threads: Array) -> Array:
        """What these threads know together, all that they did included."""
        self.now += 1
        found = self.known[threads]
        found[np.arange(threads.size), threads] = self.now
        return found.max(axis=0)

    def take(self, threads: Array, clock: Array) -> None:
        """These threads learn what was published."""
        self.known[threads] = np.maximum(self.known[threads], clock)

    def landed(self, clock: Array) -> None:
        """Writes of the copy engine until now are published with a clock."""
        self.now += 1
        clock[-1] = self.now

    def meet(self, threads: Array) -> None:
        """These threads wait for each other."""
        self.take(threads, self.publish(threads))

    def meet_warps(self, warps: Array | None, first: int) -> None:
        """A barrier of one warp."""
        del warps
        self.meet(np.arange(first, first + WARP))

    def fence(self, threads: Array) -> None:
        """These threads publish to the copy engine what they wrote and know of."""
        self.now += 1
        found = self.known[threads]
        found[np.arange(threads.size), threads] = self.now
        self.fenced[threads] = found

    def unordered(self, code: Array, when: Array, thread: Array) -> Array:
        """Whether accesses of a code at times `when` are concurrent to what these threads do."""
        mine = thread - self.first
        other = np.where(code == ENGINE, self.count, code - self.first)
        here = (other >= 0) & (other <= self.count)
        limit = self.known[mine, np.where(here, other, 0)]
        return np.where(here, when >= limit, not self.relaxed) & (code != thread)

    def unfenced(self, then: Array, when: Array, thread: int) -> Array:
        """Whether writes are unknown to the copy engine when this thread starts it."""
        other = then - self.first
        by_itself = self.fenced[np.clip(other, 0, self.count - 1), np.maximum(other, 0)]
        covered = (by_itself > when) | (self.fenced[thread - self.first, other] > when)
        return ~covered & (then != ENGINE)

    def said(self, code: int, when: int) -> str:
        """Who made an access, as a message says it."""
        del when
        if code == ENGINE:
            return "the copy engine"
        if code < NOBODY:
            return f"several threads of the warp of {super().said(-2 + ENGINE - code, 0)}"
        return super().said(code, 0)


class WarpMemory(Memory):
    """Memory of a launch with clocks: who reads is remembered for each warp."""

    warps: int = 0

    def watch(self, warps: int) -> None:
        """Remembers reads of so many warps."""
        self.warps = warps
        count = self.when_read.size
        self.when_read = np.full((count, warps), NOBODY, np.int32)
        self.reader = np.full((count, warps), NOBODY, np.int32)
        self.read_by = np.zeros((count, warps), np.int32)

    def _recent(self, order: Order) -> int:
        del order
        return 0

    def remember_readers(self, s: Threads, op: Op, grains: Array, idents: Array) -> None:
        """Keeps who read."""
        order, warp = s.launch.order, int(s.number[0]) // WARP
        grains, code = np.broadcast_arrays(grains, idents[:, None])
        several = -2 + ENGINE - idents // WARP * WARP
        when, old = self.when_read[grains, warp], self.reader[grains, warp]
        self.reader[grains, warp] = code
        late = self.reader[grains, warp] != code
        seen = when >= 0
        if seen.any():
            # Who read before and is parted from these by nothing stays remembered.
            late |= seen & ((old < NOBODY) | order.unordered(old, when, code))
        if late.any():
            self.reader[grains[late], warp] = np.broadcast_to(several[:, None], late.shape)[late]
        self.when_read[grains, warp] = order.now
        self.read_by[grains, warp] = s.launch.number[op]

    def check_readers(self, s: Threads, op: Op, at: Array, grains: Array, thread: Array) -> None:
        """Raises where somebody may still read what is written."""
        order = s.launch.order
        assert isinstance(order, Clocks)
        for warp in range(self.warps):
            when, code = self.when_read[grains, warp], self.reader[grains, warp]
            if not when.size or when.max() < 0:
                continue
            late = (when >= 0) & order.unordered(code, when, thread) & (code >= 0)
            many = (when >= 0) & (code < NOBODY)
            if many.any():
                first = -2 + ENGINE - code[many] - order.first
                lanes = np.clip(first[:, None] + np.arange(WARP), 0, order.count - 1)
                known = order.known[(thread[many] - order.first)[:, None], lanes].min(axis=1)
                inside = (first >= 0) & (first < order.count)
                late[many] = np.where(inside, when[many] >= known, not order.relaxed)
            if late.any():
                self.race(s, op, late, grains, thread, ("writes", "read"), warp)
