"""Tiles for scans on a GPU.

The places along a scan that one tile holds are scanned together. Where memory runs along the scan,
a tile is some whole rows if they are short, one row if it fits the registers of a block, or a step
along a long row. Otherwise it is some places of neighbouring scans, a line of memory wide.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tessera.schedule import ops
from tessera.schedule.sizes import power_above, size_of
from tessera.schedule.types import Axis

if TYPE_CHECKING:
    from tessera.schedule.heuristics_gpu import GpuChoice

WARP = 32
"""Threads of a warp."""

MIN_WARPS = 4
"""Warps of a block, where there is work for them."""

MAX_WARPS = 16
"""Warps of the largest block."""

THREAD_ELEMENTS = 16
"""Elements of a tile in one thread."""

MAX_ROW = 16384
"""Elements of the longest row that one tile holds."""

STEP = 8192
"""Elements of a step along a longer row."""

LINE_BYTES = 128
"""Bytes of a line of memory: so many neighbouring scans are in one tile."""


def scan(choice: GpuChoice) -> None:
    """Chooses the tile of a nest that holds scans."""
    found = [op for op in choice.code if isinstance(op, ops.Scan)]
    longest = max((op.axis for op in found), key=lambda axis: size_of(axis.extent))
    writes = [a for a in choice.accesses if isinstance(a.op, ops.Scan)]
    along = any(a.stride(a.inner[-1].name) == 1 for a in writes)
    neighbours = choice.best_axis(writes)
    stated = max([op.order.width for op in found if op.order is not None], default=0)
    if neighbours is not None and not along:
        across_rows(choice, longest, neighbours, stated)
    else:
        along_rows(choice, longest, stated)


def along_rows(choice: GpuChoice, axis: Axis, stated: int = 0) -> None:
    """Rows whose elements are neighbours in memory; so many at a time, where that is stated."""
    size = power_above(size_of(axis.extent))
    fits = isinstance(axis.extent, int) and size <= MAX_ROW
    step = max(size if fits else min(size, STEP), 2)
    if stated > 1:
        step, fits = stated, fits and size <= stated
    rows = 1
    if choice.free:
        row = choice.free[-1]
        rows = max(MIN_WARPS * WARP * THREAD_ELEMENTS // step, 1)
        rows = min(rows, power_above(size_of(row.extent)))
        while rows > 1 and choice.points() < choice.machine.multiprocessors * 2 * rows:
            rows //= 2
        choice.tiles[row.name] = rows
        choice.last = [row.name]
    choice.reduce_tile = step
    choice.warps = max(1, min(rows * step // (WARP * THREAD_ELEMENTS), MAX_WARPS))
    what = f"{rows} rows" if rows > 1 else "a row"
    choice.reason = f"{what} at a time" if fits else f"{what} in steps of {step} elements"


def across_rows(choice: GpuChoice, axis: Axis, neighbours: Axis, stated: int = 0) -> None:
    """Scans that are neighbours in memory, some places of each at a time; so many, where that is
    stated."""
    wide = max([a.dtype.itemsize for a in choice.accesses])
    width = min(max(LINE_BYTES // wide, 1), power_above(size_of(neighbours.extent)))
    most = MIN_WARPS * 2 * WARP * THREAD_ELEMENTS
    step = max(min(most // width, power_above(size_of(axis.extent))), 2)
    if stated > 1:
        step, width = stated, max(min(width, most // stated), 1)
    while step * width * 2 <= most and width < power_above(size_of(neighbours.extent)):
        width *= 2
    choice.tiles[neighbours.name] = width
    choice.last = [neighbours.name]
    choice.reduce_tile = step
    choice.warps = max(1, min(step * width // (WARP * THREAD_ELEMENTS), MAX_WARPS))
    choice.reason = f"{width} neighbouring scans, {step} places of each at a time"
