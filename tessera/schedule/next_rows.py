"""The next row, fetched while the last pass over a row runs.

Of several passes over a row only the first one waits for memory. Prefetchers stop where it ends, at
the latest at the end of a page, and begin anew with the next row. So the last pass, which writes,
has the places fetched that the first one is going to read in the next row. One array is enough: two
that are read side by side hide each other's beginnings, and their lines would not fit.

    each row i:  s = reduce r: x[i, r]                 (x marked: `ahead`)
                 for a tile of j: fetch x[i + 1, j]; y[i, j] = x[i, j] * s
"""

from __future__ import annotations

from tessera.ir.core import Op
from tessera.schedule import ops
from tessera.schedule.access import Access, accesses
from tessera.schedule.copying import Copy
from tessera.schedule.types import BufType

FAR = 1 << 20
"""Bytes of an array that no near cache holds."""

LEAST = 2048
"""Bytes of a row; of shorter ones, prefetchers read on into the next."""


def fetch_next_row(nest: ops.Nest, l1: int) -> ops.Nest:
    """A nest with `ahead` on what its first pass over a row reads of a far array.

    Args:
        nest: a nest with its tiles.
        l1: bytes of the first cache, which has to hold two rows.
    """
    if nest.warps or len(nest.tile) < 2 or nest.reduce_tile < 2:
        return nest
    row, lane = nest.axes[-2:]
    if nest.tile[-1] < 2 or max(nest.tile[:-1]) > 1 or not isinstance(lane.extent, int):
        return nest
    first = next((a for a in accesses(nest) if _is_read(a, row.name, lane.extent)), None)
    if first is None or not LEAST <= lane.extent * first.dtype.itemsize <= l1 // 2:
        return nest
    new = nest.rebuild(regions=[_Marking(first.op).block(nest.body)])
    assert isinstance(new, ops.Nest)
    return new


class _Marking(Copy):
    """A copy with a mark on one load."""

    def __init__(self, marked: Op) -> None:
        super().__init__()
        self.marked = marked

    def op(self, op: Op) -> Op:
        """One op."""
        fresh = super().op(op)
        if op is self.marked:
            fresh = fresh.rebuild(ahead=1)
            self.env[op.result] = fresh.result
        return fresh


def _is_read(a: Access, row: str, length: int) -> bool:
    """Whether an access of a reduction goes along a row of a far array."""
    op = a.op
    if not isinstance(op, ops.Load) or op.dyn or op.where or len(a.inner) != 1:
        return False
    if a.stride(a.inner[0].name) != 1 or a.stride(row) == 0 or a.inner[0].extent != length:
        return False
    assert isinstance(op.buf.type, BufType)
    size = op.buf.type.size
    return not isinstance(size, int) or size * a.dtype.itemsize >= FAR
