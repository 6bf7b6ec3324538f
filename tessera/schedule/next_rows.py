"""Later rows, fetched while the last passes over a row run.

Of several passes over a row only the first one that reads an array waits for memory. Prefetchers
stop where it ends, at the latest at the end of a page, and begin anew with the next row. So later
passes have fetched what is going to be read two rows further along, and written, unless that goes
past the caches: the last pass one array, the one before it another, and so on.

    each row i:  s = reduce r: x[i, r]                 (x marked: `ahead`)
                 t = reduce r: d[i, r] * (x[i, r] - s) (d marked: `ahead`)
                 u = reduce r: fetch d[i + 2, r]; d[i, r] - t * x[i, r]
                 for a tile of j: fetch x[i + 2, j]; y[i, j] = d[i, j] - x[i, j] * t - u

It is all arrays or none: what is fetched of some only keeps prefetchers from following the others.
Of rows for which there is no room the last pass has one array fetched, of the next row. The first
cache of some CPUs waits for few lines at a time: there those of several arrays come to the second
one, from further along (`Machine.waits_for_few`).

Short rows that go together (`schedule/short_rows.py`) are read in one go, and written in one, which
prefetchers do not follow: all arrays are fetched, what is written too, from rows further along.

Sums alone, as of a logarithm of exponentials or a variance, have the last pass fetch what the first
one reads next. One thread of a Xeon (Emerald Rapids) takes 0.7 to 0.8 of the time for rows of 256
bytes to 400 KB, exponentials, and for a variance of rows of up to 16 KB.

A search reads a block again when its line ends, which a core does not work ahead of far enough to
have asked for the next line, if its vectors are short.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from math import ceil

from tessera.ir.core import Block, Op, Value
from tessera.ir.intexpr import substitute, sym
from tessera.ir.walk import map_ops
from tessera.schedule import ops
from tessera.schedule.access import Access, accesses
from tessera.schedule.blocking import LINE_BYTES
from tessera.schedule.copying import Copy
from tessera.schedule.machines import CachedCpu
from tessera.schedule.prefetch_ops import Prefetch
from tessera.schedule.short_rows import BRIEF
from tessera.schedule.types import BufType

FAR = 1 << 20
"""Bytes of an array that no near cache holds."""

LEAST = 2048
"""Bytes of a row; of shorter ones, prefetchers read on into the next."""

AHEAD = 2
"""Rows from the one that is read to those that are fetched, of all arrays. With one row less,
memory is idle for as long as a pass takes; with one more, rows leave the first cache too early."""

FURTHER = 8192
"""Bytes from the row that is read to those of several arrays that come to the second cache."""

SHORT = 4096
"""Bytes from short rows that go together to those that are fetched."""

LINE = 4096
"""Bytes from what a search reads to what is fetched, and the longest line that gains by it."""

CHEAP = 4
"""What functions cost at most whose pass over a row of the second cache is over too soon."""

LARGE = 1 << 22
"""Bytes of an array whose rows are fetched so."""


def fetch_next_row(nest: ops.Nest, machine: CachedCpu) -> ops.Nest:
    """A nest with `ahead` on what its passes over a row read first of far arrays.

    What the first cache does not hold of two more rows waits in the second, if it is no more than
    half as much again.

    Args:
        nest: a nest with its tiles.
        machine: the CPU.
    """
    if nest.warps or len(nest.tile) < 2 or nest.reduce_tile < 2:
        return nest
    row, lane = nest.axes[-2:]
    if nest.tile[-1] < 2 or not isinstance(lane.extent, int):
        return nest
    read = [a for a in accesses(nest) if _is_read(a, row.name, lane.extent)]
    if max(nest.tile[:-1]) > 1:
        return _fetch_short_rows(nest, lane.extent, read)
    size = lane.extent * read[0].dtype.itemsize if read else 0
    if size < LEAST:
        return nest
    found = _rows(nest, read)
    total = _bytes(nest, found, lane.extent)
    if len(found) > 1 and machine.waits_for_few and 2 * total <= machine.l2:
        return _marked(nest, {a.op: max(AHEAD, ceil(FURTHER / size)) for a in found.values()})
    if 2 * total <= 3 * machine.l1:
        return _marked(nest, {a.op: AHEAD for a in found.values()})
    is_held = size <= machine.l1 // 2
    return _marked(nest, {read[0].op: 1}) if is_held else nest


def fetch_next_sums(nest: ops.Nest, machine: CachedCpu) -> ops.Nest:
    """A nest without results along its rows, whose last pass over a row has fetched what the first
    pass is going to read of far arrays, in the next row or in short ones further along.

    The first cache holds two rows, or else a pass takes long, and the second one holds more.

    Args:
        nest: a nest with its tiles.
        machine: the CPU.
    """
    sums = [op for op in nest.body.ops if isinstance(op, ops.Reduce)]
    if len(sums) < 2 or nest.reduce_tile < 2 or nest.warps or not nest.tile:
        return nest
    *outer, count = nest.tile
    if max(outer, default=1) > 1:
        return nest
    first, last = sums[0], sums[-1]
    row, lane, length = nest.axes[-1].name, last.axes[-1].name, first.axes[-1].extent
    if not isinstance(length, int) or last.axes[-1].extent != length:
        return nest
    read = [a for a in accesses(nest) if a.op in first.body.ops and _is_read(a, row, length)]
    size = sum([length * a.dtype.itemsize for a in read])
    is_long = any(isinstance(op, ops.Map) and op.fn.cost > CHEAP for op in last.body.ops)
    is_brief = size < LEAST
    most = machine.l2 // 4 if is_long else machine.l1 // 3
    if not read or size > most or (is_brief and count == 1):
        return nest
    ahead = ceil(SHORT / size / count) * count if is_brief else count
    rows = [sym(row) + ahead + k for k in range(count)]
    fetches: list[Op] = []
    for a in read:
        lanes = range(0, min(nest.reduce_tile, length), LINE_BYTES // a.dtype.itemsize)
        for later, k in product(rows, lanes):
            at = substitute(a.offset, {row: later, first.axes[-1].name: sym(lane) + k})
            fetches.append(Prefetch(a.op.buf, at, loc=a.op.loc))

    def change(op: Op) -> Op:
        if op is not last:
            return op
        body = Block(last.body.args, [*fetches, *last.body.ops], last.body.outputs)
        return op.rebuild(regions=[body])

    new = nest.rebuild(regions=[map_ops(nest.body, change)])
    assert isinstance(new, ops.Nest)
    return new


def fetch_next_line(nest: ops.Nest) -> ops.Nest:
    """A nest with `ahead` on what searches along lines of far arrays read, if they are short."""
    searches = [op for op in nest.body.ops if isinstance(op, ops.ArgReduce)]
    if not searches or nest.warps or nest.reduce_tile < 2:
        return nest
    # Sums along the same line are passes over rows, where what lies ahead is another row.
    inside = {op for search in searches for op in search.body.ops}
    found: dict[Op, int] = {}
    for a in accesses(nest):
        if len(a.inner) != 1 or a.op not in inside or not _is_plain(a.op):
            continue
        most = LINE // a.dtype.itemsize
        is_short = isinstance(a.inner[0].extent, int) and a.inner[0].extent <= most
        if is_short and a.stride(a.inner[0].name) == 1 and _is_far(a, FAR):
            found[a.op] = most
    return _marked(nest, found)


def _rows(nest: ops.Nest, read: Sequence[Access]) -> dict[Value, Access]:
    """By far array, what first reads its rows, or else writes them."""
    row, lane = [axis.name for axis in nest.axes[-2:]]
    filled = [a for a in accesses(nest) if _fills(a, lane) and a.stride(row) != 0]
    found: dict[Value, Access] = {}
    for a in (*read, *[a for a in filled if _is_far(a, FAR)]):
        found.setdefault(a.op.buf, a)
    return found


def _bytes(nest: ops.Nest, found: Mapping[Value, Access], length: int) -> int:
    """Bytes of a row of all arrays, and of further rows of those that are fetched."""
    sizes: dict[Value, int] = {}
    for a in accesses(nest):
        lane = a.inner[0].name if a.inner else nest.axes[-1].name
        is_past = isinstance(a.op, ops.Store) and a.op.streaming
        if a.stride(lane) != 0 and not is_past:
            sizes[a.op.buf] = length * a.dtype.itemsize
    return sum(size * (1 + AHEAD * (buf in found)) for buf, size in sizes.items())


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
    if not _is_plain(a.op) or len(a.inner) != 1:
        return False
    if a.stride(a.inner[0].name) != 1 or a.stride(row) == 0 or a.inner[0].extent != length:
        return False
    return _is_far(a, FAR)


def _is_plain(op: Op) -> bool:
    """Whether an op reads elements at places that axes tell."""
    return isinstance(op, ops.Load) and not op.dyn and not op.where


def _is_far(a: Access, least: int) -> bool:
    """Whether an access goes to an array of so many bytes, or one that may have them."""
    assert isinstance(a.op.buf.type, BufType)
    size = a.op.buf.type.size
    return not isinstance(size, int) or size * a.dtype.itemsize >= least
