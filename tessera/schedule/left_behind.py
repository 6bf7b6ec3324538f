"""What one thread has just written, and leaves in the caches of its core.

A second core gets a line of another one's caches in some 25 nanoseconds, and in some 4 where both
share a third cache, which the cores of a server seldom do. Half of what one thread has written goes
over if two threads share the next kernel: for one that does little with it, a sum or a pass over
the steps of a recurrence, that takes longer than the other thread saves.
"""

from __future__ import annotations

from tessera.ir.core import Op, Value
from tessera.schedule import ops
from tessera.schedule.block_ops import Each
from tessera.schedule.sizes import bytes_of
from tessera.schedule.sort_ops import WORDS
from tessera.schedule.streaming import STREAM_BYTES

MOVED = 1
"""Additions in the time of which a byte comes from another core's caches, in lines: between what
cores of one third cache and what others need."""

LITTLE = 8
"""A kernel leaves little behind whose results are so many times smaller: whoever reads large ones
gains if threads share them, sooner or later."""


def is_shared(op: Op) -> bool:
    """Whether threads share a unit of a kernel."""
    return isinstance(op, (ops.Nest, Each, ops.Sort, *WORDS)) and op.grain > 0


class LeftBehind:
    """What the kernels of a program that one thread runs have written, kernel by kernel."""

    def __init__(self) -> None:
        self._bytes: dict[Value, int] = {}

    def least_work(self, kernel: ops.Kernel) -> float:
        """Additions of a nest of a kernel from which on threads gain, for all that has to move."""
        moved = sum([self._bytes.get(value, 0) for value in kernel.inputs])
        if LITTLE * sum(map(bytes_of, kernel.types)) > moved:
            return 0
        return moved * MOVED

    def note(self, kernel: ops.Kernel, code: list[Op]) -> None:
        """Takes notice of a kernel with tiles."""
        if not any(map(is_shared, code)):
            sizes = zip(kernel.results, map(bytes_of, kernel.types), strict=True)
            self._bytes.update({value: size for value, size in sizes if size < STREAM_BYTES})
