"""Programs of a CPU's grid, as threads share them: how many are worth a thread's while, and how
large they are."""

from __future__ import annotations

import math

from tessera.schedule import ops
from tessera.schedule.sizes import size_of
from tessera.schedule.sort_ops import SelectWords, SortWords, work_of

WORK = 65536
"""Additions that one program of a grid should have to do: some 10 microseconds."""

GRAIN = 2 * WORK
"""Additions that are worth a thread's while: to wake it and to wait costs a few microseconds."""

AWAKE = 4
"""How much less is worth the while of a thread that is woken anyway."""


def grain_of(programs: int, work: float, is_awake: bool = False) -> int:
    """Programs of so many additions each that are worth a thread's while; 0 where all together are
    not worth a second thread's.

    Args:
        programs: how many there are.
        work: of each.
        is_awake: whether something follows at once for which threads are woken anyway.
    """
    worth = GRAIN // AWAKE if is_awake else GRAIN
    grain = max(math.ceil(worth / max(work, 1)), 1)
    return even(programs, grain, 1) if programs > grain else 0


def even(extent: int, chunk: int, step: int) -> int:
    """What a program takes of an axis, or a thread of the programs, so that all take about as much
    and are no more: who has equally many of them has done them at the same time.

    >>> even(333, 256, 16)
    176
    """
    programs = -(-extent // chunk)
    equal = -(-extent // programs)
    return min(-(-equal // step) * step, extent)


def sort_grain(op: ops.Sort | SortWords | SelectWords) -> int:
    """Rows of a sort that are worth a thread's while."""
    rows, places, cost = work_of(op)
    extent = size_of(places)
    return grain_of(size_of(rows), cost * extent * extent.bit_length())
