"""How many rows a product in registers for matrices takes together.

Registers hold sums of 32 rows and columns, for which 64 lines come from the second cache in each
step, as many as they are multiplied in cycles, and more than that cache gives. Of more rows some go
over a part of a panel of the second operand, which then is in the first cache, before the next ones
do; their sums wait in memory.

512 x 3072 x 768 of bfloat16 take a core of a Xeon (Granite Rapids) 2.2 ms so, besides packing, and
1.5 with 256 rows together.
"""

from __future__ import annotations

from math import ceil
from typing import TYPE_CHECKING

from tessera.schedule.grains import EACH, FEW, PROGRAMS
from tessera.schedule.product_sides import LINE
from tessera.schedule.sizes import size_of

if TYPE_CHECKING:
    from tessera.schedule.blocking import Blocking
    from tessera.schedule.products import Product

WAITING = 1 << 15
"""Bytes of sums that wait at most."""

LEAST = 3
"""The part of a first cache that a panel fills, from which on more rows pay."""


def stacked(p: Product, block: Blocking) -> int:
    """How many blocks of rows lie below each other in one that takes all of them together.

    Args:
        p: the product.
        block: that registers hold.
    """
    height, width = size_of(p.row.extent), size_of(p.col.extent)
    item = p.elements[0].itemsize
    lines = ceil(p.depth / (LINE * p.group)) * LINE * p.group
    is_near = lines * block.columns * item * LEAST <= p.machine.l1
    # Where the number of rows is not known, there may be few.
    if is_near or p.in_blocks or not isinstance(p.row.extent, int):
        return 1
    blocks, panels = ceil(height / block.rows), ceil(width / block.columns) * p.copies
    near = p.machine.l2 // 2 // (block.rows * lines * item)
    most = min(near, WAITING // (block.rows * block.columns * 4))
    if most < 2:
        return 1
    programs = PROGRAMS if p.cores <= FEW else EACH * p.cores
    parts = max(ceil(blocks / most), ceil(programs / panels))
    for count in range(parts, blocks):
        found = ceil(blocks / count)
        if found * block.rows <= height:
            return found
    return 1
