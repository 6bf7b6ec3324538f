"""Sums of the columns of arrays that fit no cache of a CPU, some rows at a time."""

from __future__ import annotations

from collections.abc import Sequence

from tessera.ir.intexpr import Dim
from tessera.schedule.access import Access
from tessera.schedule.streaming import STREAM_BYTES

ROWS = 128
"""Rows of which one program adds up some columns: the programs of the next columns find their lines
in the second cache, and their pages known."""

LEAST_COLUMNS = 64
"""Fewer columns are one program in any case."""


def near_rows(extent: Dim, columns: int, found: Sequence[Access]) -> int:
    """Rows of a part; 0 where all of them stay in a cache.

    Args:
        extent: how many rows there are.
        columns: how many columns.
        found: the accesses inside the sums.
    """
    if not isinstance(extent, int) or extent < 4 * ROWS or columns < LEAST_COLUMNS:
        return 0
    # What does not move along the rows stays where it is.
    place = sum(a.dtype.itemsize for a in found if a.stride(a.inner[-1].name) != 0)
    return ROWS if place * extent * columns >= STREAM_BYTES else 0
