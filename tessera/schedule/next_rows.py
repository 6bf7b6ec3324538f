"""Later rows, fetched while the last pass over a row runs.

Of several passes over a row only the first one waits for memory. Prefetchers stop where it ends, at
the latest at the end of a page, and begin anew with the next row. So the last pass, which writes,
has the places fetched that the first one is going to read in the next row. One array is enough: two
that are read side by side hide each other's beginnings, and their lines would not fit.

    each row i:  s = reduce r: x[i, r]                 (x marked: `ahead`)
                 for a tile of j: fetch x[i + 1, j]; y[i, j] = x[i, j] * s

Short rows that go together (`schedule/short_rows.py`) are read in one go, and written in one, which
prefetchers do not follow: all arrays are fetched, what is written too, from rows further along.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tessera.ir.core import Op, Value
from tessera.schedule import ops
from tessera.schedule.access import Access, accesses
from tessera.schedule.copying import Copy
from tessera.schedule.short_rows import BRIEF
from tessera.schedule.types import BufType

FAR = 1 << 20
"""Bytes of an array that no near cache holds."""

LEAST = 2048
"""Bytes of a row; of shorter ones, prefetchers read on into the next."""

SHORT = 4096
"""Bytes from short rows that go together to those that are fetched."""

LARGE = 1 << 22
"""Bytes of an array whose rows are fetched so."""


def fetch_next_row(nest: ops.Nest, l1: int) -> ops.Nest:
    """A nest with `ahead` on what its first pass over a row reads of a far array.

    Args:
        nest: a nest with its tiles.
        l1: bytes of the first cache, which has to hold two rows.
    """
    if nest.warps or len(nest.tile) < 2 or nest.reduce_tile < 2:
        return nest
    row, lane = nest.axes[-2:]
    if nest.tile[-1] < 2 or not isinstance(lane.extent, int):
        return nest
    read = [a for a in accesses(nest) if _is_read(a, row.name, lane.extent)]
    if max(nest.tile[:-1]) > 1:
        return _fetch_short_rows(nest, lane.extent, read)
    first = next(iter(read), None)
    if first is None or not LEAST <= lane.extent * first.dtype.itemsize <= l1 // 2:
        return nest
    return _marked(nest, {first.op: 1})


def _fetch_short_rows(nest: ops.Nest, length: int, read: Sequence[Access]) -> ops.Nest:
    """A nest of rows that go together, with `ahead` on what it reads first and writes."""
    row, lane = [axis.name for axis in nest.axes[-2:]]
    count = nest.tile[-2]
    if count == 1 or max(nest.tile[:-2], default=1) > 1:
        return nest
    written = [a for a in accesses(nest) if _fills(a, lane)]
    found: dict[Value, Access] = {}
    for a in (*read, *written):
        is_brief = length * a.dtype.itemsize <= BRIEF
        if is_brief and a.stride(row) == length and _is_far(a, LARGE):
            found.setdefault(a.op.buf, a)
    ahead = {a.op: SHORT // (length * a.dtype.itemsize) for a in found.values()}
    return _marked(nest, {op: max(n - n % count, count) for op, n in ahead.items()})


def _fills(a: Access, lane: str) -> bool:
    """Whether an access writes rows of which nothing is read from memory but that."""
    op = a.op
    is_plain = isinstance(op, ops.Store) and not (op.combine or op.streaming or op.dyn)
    return is_plain and not a.inner and a.stride(lane) == 1


def _marked(nest: ops.Nest, ahead: Mapping[Op, int]) -> ops.Nest:
    """A nest with marks on some of its accesses."""
    if not ahead:
        return nest
    new = nest.rebuild(regions=[_Marking(ahead).block(nest.body)])
    assert isinstance(new, ops.Nest)
    return new


class _Marking(Copy):
    """A copy with marks on some accesses."""

    def __init__(self, ahead: Mapping[Op, int]) -> None:
        super().__init__()
        self.ahead = ahead

    def op(self, op: Op) -> Op:
        """One op."""
        fresh = super().op(op)
        if op in self.ahead:
            fresh = fresh.rebuild(ahead=self.ahead[op])
            self.env.update(zip(op.results, fresh.results, strict=True))
        return fresh


def _is_read(a: Access, row: str, length: int) -> bool:
    """Whether an access of a reduction goes along a row of a far array."""
    op = a.op
    if not isinstance(op, ops.Load) or op.dyn or op.where or len(a.inner) != 1:
        return False
    if a.stride(a.inner[0].name) != 1 or a.stride(row) == 0 or a.inner[0].extent != length:
        return False
    return _is_far(a, FAR)


def _is_far(a: Access, least: int) -> bool:
    """Whether an access goes to an array of so many bytes, or one that may have them."""
    assert isinstance(a.op.buf.type, BufType)
    size = a.op.buf.type.size
    return not isinstance(size, int) or size * a.dtype.itemsize >= least
