"""What one thread has just written, and leaves in the caches of its core.

A second core gets a line of another one's caches in some 25 nanoseconds, and in some 4 where both
share a third cache, which the cores of a server seldom do. Half of what one thread has written goes
over if two threads share the next kernel: for one that does little with it, a sum or a pass over
the steps of a recurrence, that takes longer than the other thread saves. So it is with what one
thread has just read, where the nests of a kernel go over the same arrays.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from tessera.ir.core import Op, Value
from tessera.ir.walk import walk
from tessera.schedule import ops
from tessera.schedule.block_ops import Each
from tessera.schedule.dependence import inner_axes
from tessera.schedule.sizes import bytes_of, size_of
from tessera.schedule.sort_ops import WORDS
from tessera.schedule.streaming import STREAM_BYTES
from tessera.schedule.types import BufType

MOVED = 1
"""Additions in the time of which a byte comes from another core's caches, in lines: between what
cores of one third cache and what others need."""

LITTLE = 8
"""A kernel leaves little behind whose results are so many times smaller: whoever reads large ones
gains if threads share them, sooner or later."""


def is_shared(op: Op) -> bool:
    """Whether threads share a unit of a kernel."""
    return isinstance(op, (ops.Nest, Each, ops.Sort, *WORDS)) and op.grain > 0


def _used(nest: ops.Nest) -> dict[Value, int]:
    """The buffers that a nest reads or writes, and about how many bytes of each."""
    points = prod([size_of(axis.extent) for axis in nest.axes])
    found: dict[Value, int] = {}
    for op in nest.body.ops:
        count = points * prod([size_of(axis.extent) for axis in inner_axes(op)])
        for inner in [op, *[one for region in op.regions for one in walk(region)]]:
            if isinstance(inner, (ops.Load, ops.Store)) and isinstance(inner.buf.type, BufType):
                size = min(count * inner.buf.type.dtype.itemsize, bytes_of(inner.buf.type))
                found[inner.buf] = max(found.get(inner.buf, 0), size)
    return found


class LeftBehind:
    """What the kernels of a program that one thread runs have written, kernel by kernel."""

    def __init__(self) -> None:
        self._bytes: dict[Value, int] = {}

    def least_work(self, kernel: ops.Kernel, before: Sequence[Op], nest: ops.Nest) -> float:
        """Additions of a nest of a kernel from which on threads gain, for all that has to move.

        Args:
            kernel: the kernel.
            before: what it runs before, with tiles.
            nest: the nest.
        """
        moved = sum([self._bytes.get(value, 0) for value in kernel.inputs])
        if LITTLE * sum(map(bytes_of, kernel.types)) > moved:
            moved = 0
        alone = [one for one in before if isinstance(one, ops.Nest) and not is_shared(one)]
        used = _used(nest) if alone else {}
        beside: dict[Value, int] = {}
        for one in alone:
            for buffer, size in _used(one).items():
                beside[buffer] = max(beside.get(buffer, 0), min(size, used.get(buffer, 0)))
        # Of these a line that was written comes from another core, and goes there again.
        there_and_back = 2 * sum([size for size in beside.values() if size < STREAM_BYTES])
        return (moved + there_and_back) * MOVED

    def note(self, kernel: ops.Kernel, code: list[Op]) -> None:
        """Takes notice of a kernel with tiles."""
        if not any(map(is_shared, code)):
            sizes = zip(kernel.results, map(bytes_of, kernel.types), strict=True)
            self._bytes.update({value: size for value, size in sizes if size < STREAM_BYTES})
