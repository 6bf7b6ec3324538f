"""Which accesses come before which: time stamps of barriers.

`now` counts synchronizations. Two accesses of different threads are ordered if a barrier that both
threads took part in lies between them. `Order` is what a launch needs whose blocks run in step:
barriers of whole blocks and of whole warps, so that one time for each of them says all.

Accesses are known by a code: a thread's number in the grid, or that several threads made them: of
one warp, of one block, or of different blocks.
"""

from __future__ import annotations

import numpy as np

from tessera.target.gpu_ops import WARP
from tessera.target.simulate.state import Array

NOBODY = -1
_WARP_BITS = WARP.bit_length() - 1
_WARP = -2
"""All of warp w is _WARP - w."""
_BLOCK = 1 << 30
"""All of block b is _BLOCK + b."""
_ANYBODY = (1 << 31) - 1


class Order:
    """Time stamps of a launch whose blocks run in step.

    Attributes:
        threads: of a block.
        bits: their logarithm, if it is whole.
        first: the first thread of the launch in the grid.
        now: how many synchronizations there were.
        floor: what was accessed before this time is ordered, within any block.
        relaxed: whether blocks synchronize with each other by means that are not followed here.
    """

    def __init__(self, first: int, blocks: int, threads: int, relaxed: bool) -> None:
        self.threads = threads
        self.bits = None if threads & (threads - 1) else threads.bit_length() - 1
        self.first = first * threads
        self.now = 0
        self.floor = 0
        self.relaxed = relaxed
        self.by_block = np.zeros(blocks, np.int32)
        self.by_warp = np.zeros(blocks * threads // WARP, np.int32)
        # Up to which time each thread has published writes to the copy engine, its own and others'.
        self.fenced_own = np.zeros(blocks * threads, np.int32)
        self.fenced_others = np.zeros(blocks * threads, np.int32)

    def meet_blocks(self, blocks: Array | None) -> None:
        """A barrier of blocks, given as a mask."""
        self.now += 1
        which = slice(None) if blocks is None else blocks
        self.by_block[which] = self.now
        self.by_warp.reshape(self.by_block.size, -1)[which] = self.now
        self.floor = int(self.by_block.min())

    def meet_warps(self, warps: Array | None, first: int) -> None:
        """A barrier of warps, given as a mask from the one of a thread of the launch on."""
        self.now += 1
        whole = self.by_warp[first // WARP :]
        if warps is None:
            whole[...] = self.now
        else:
            whole[: warps.size][warps] = self.now

    def fence(self, threads: Array) -> None:
        """These threads of the launch publish to the copy engine what they wrote and know of."""
        self.now += 1
        self.fenced_own[threads] = self.now
        self.fenced_others[threads] = self.by_block[threads // self.threads]

    def unordered(self, code: Array, when: Array, thread: Array) -> Array:
        """Whether accesses of a code at times `when` are concurrent to what these threads, given
        by their numbers in the grid, do now."""
        warp, block = self._parts(code)
        mine = self._block(thread)
        here = block == mine
        late = ~here & (not self.relaxed)
        if when.size and when.max() >= self.floor:
            limit = np.where(
                warp == thread >> _WARP_BITS,
                self.by_warp[(thread - self.first) >> _WARP_BITS],
                self.by_block[mine - self.first // self.threads],
            )
            late |= here & (when >= limit)
        return late & (code != thread)

    def _block(self, thread: Array) -> Array:
        """The blocks of threads."""
        return thread // self.threads if self.bits is None else thread >> self.bits

    def unfenced(self, then: Array, when: Array, thread: int) -> Array:
        """Whether writes are unknown to the copy engine when this thread starts it."""
        mine = thread - self.first
        return (self.fenced_own[then - self.first] <= when) & (self.fenced_others[mine] <= when)

    def _parts(self, code: Array) -> tuple[Array, Array]:
        """The warp and the block of a code, -1 for several."""
        warp = code >> _WARP_BITS
        block = self._block(code)
        if code.size and (code.min() < NOBODY or code.max() >= _BLOCK):
            warps = self.threads // WARP
            warp = np.where(code >= _BLOCK, -1, np.where(code < NOBODY, _WARP - code, warp))
            block = np.where(code >= _BLOCK, code - _BLOCK, warp // warps)
            block = np.where(code == _ANYBODY, -1, block)
        return warp, block

    def joined(self, a: Array, b: Array) -> tuple[Array, Array]:
        """The code for the threads of both, and how wide: 0 for a thread, 3 for several blocks."""
        (warp, block), (other_warp, other_block) = self._parts(a), self._parts(b)
        same_warp = (warp == other_warp) & (warp >= 0)
        same_block = (block == other_block) & (block >= 0)
        code = np.where(same_warp, _WARP - warp, np.where(same_block, _BLOCK + block, _ANYBODY))
        width = np.where(same_warp, 1, np.where(same_block, 2, 3))
        return np.where(a == b, a, code), np.where(a == b, 0, width)

    def said(self, code: int, when: int) -> str:
        """Who made an access, as a message says it."""
        del when
        if code == _ANYBODY:
            return "threads of several blocks"
        if code >= _BLOCK:
            return f"several threads of block {code - _BLOCK}"
        if code < NOBODY:
            warp = _WARP - code
            warps = self.threads // WARP
            return f"several threads of warp {warp % warps} of block {warp // warps}"
        return f"thread {code % self.threads} of block {code // self.threads}"
