"""Products of a CPU's program with few rows and columns, and great depth.

Threads share the rows and columns of a product. Where there are few of these, blocks become small,
and each reads the other operand again, which no near cache holds if it is deep. Such a product is
computed in parts of its depth side by side, which add up in order (`depth_parts`). How many there
are depends on sizes only, and so do results.
"""

from __future__ import annotations

from math import ceil, prod

from tessera.schedule import ops
from tessera.schedule.cost import LEAST_BLOCK
from tessera.schedule.dependence import only_loop
from tessera.schedule.depth_parts import UNROLLED, DepthParts
from tessera.schedule.machines import CachedCpu
from tessera.schedule.split import Context, Pieces

PARTS = 8
"""Parts that threads share, at least."""

LEAST_DEPTH = 512
"""Places of a part at least: fewer do not pay for storing its sums and adding them up."""

LEAST_WORK = 1 << 18
"""Multiplications of a product at least."""

MOST_SIDE = 128
"""Rows and columns at most: those of more are blocks enough for threads to share."""

LINE = 16
"""Where something is left, a part has a multiple of so many places."""


def split_deep(nest: ops.Nest, context: Context, machine: CachedCpu) -> Pieces | None:
    """The parts of a nest's product; None where it is none, or is better computed whole."""
    op = only_loop(nest)
    if not isinstance(op, ops.Contract) or nest.ordered or len(op.axes) != 1:
        return None
    # Parts would be another order than the one that is stated.
    if op.order is not None or op.fused or op.dtype.is_complex:
        return None
    (cut,) = op.axes
    sizes = {axis.name: axis.extent for axis in nest.axes if isinstance(axis.extent, int)}
    if len(sizes) < len(nest.axes) or not isinstance(cut.extent, int):
        return None
    sides = [prod([sizes[name] for name in names]) for names in (op.rows, op.cols)]
    points, work = prod(sizes.values()), prod(sizes.values()) * cut.extent
    if not LEAST_BLOCK <= min(sides) <= max(sides) <= MOST_SIDE:
        return None
    if points > MOST_SIDE**2 or work < LEAST_WORK:
        return None
    parts, places = parts_of(cut.extent, max(sides) * op.dtype.itemsize, machine.l2)
    if places < LEAST_DEPTH:
        return None
    pieces = DepthParts(nest, op, cut).pieces(parts, places, context)
    pieces.reason = f"in {parts} parts of {places} products"
    return pieces


def parts_of(depth: int, place: int, cache: int) -> tuple[int, int]:
    """Parts of a depth, and the places of each, with as little left as possible: an operand's part
    fills at most half of the second cache, unless that would be many.

    >>> parts_of(32768, 128, 1 << 20), parts_of(9999, 128, 1 << 20), parts_of(20011, 128, 1 << 20)
    ((8, 4096), (9, 1111), (8, 2496))

    Args:
        depth: the places of all.
        place: bytes of the larger operand at one.
        cache: bytes of the second cache.
    """
    least = min(max(PARTS, ceil(place * depth / (cache // 2))), UNROLLED)
    for parts in range(least, 3 * least // 2):
        if depth % parts == 0:
            return parts, depth // parts
    return least, depth // least // LINE * LINE
