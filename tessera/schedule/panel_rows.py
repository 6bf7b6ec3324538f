"""Which panels a product in registers for matrices multiplies with a block of rows, and in which
order.

Registers hold sums of 32 rows and columns, for which 64 lines come from the second cache in each
step, as many as they are multiplied in cycles, and more than that cache gives. So the rows of a
block are in the first cache, while all panels of a program are multiplied with them, and the other
side comes in order from the second one; what is stored runs along rows. Of rows that the first
cache does not hold a part is there: some panels side by side are multiplied with it, before they go
on with the next one, and their sums wait in memory.

A core of a Xeon (Emerald Rapids) takes 1.1 ms for 512 x 3072 x 768 of bytes so, besides packing,
1.23 if a panel stays in the first cache rather than rows; 2.3 for 1024 x 1024 x 2048, whose rows
meet in the same lines, and 3.0.

Few rows times a large operand that runs along the depth, as in a linear layer (`x @ w.T`), are the
second operand, and packed: the first one is read where it lies, once, and nothing of it is copied.
16 x 4096 x 4096 of bfloat16 take such a core 1.4 ms so, and 10 where the large operand is packed.
"""

from __future__ import annotations

from math import ceil
from typing import TYPE_CHECKING

from tessera.schedule.grains import FEW, even, programs_of
from tessera.schedule.product_sides import LINE
from tessera.schedule.sizes import size_of

if TYPE_CHECKING:
    from tessera.schedule.blocking import Blocking
    from tessera.schedule.products import Product

WAITING = 1 << 15
"""Bytes of sums that wait at most."""

TILES = 32
"""Blocks of a program from which on some panels go together: of fewer, programs with several panels
each take as long as the last core does."""

FEW_CORES = 2
"""No more cores than this pack some panels when they are needed: more find what others have packed
sooner than programs enough. 16 cores of a Xeon (Emerald Rapids) take 1.3 to 1.5 of the time so."""

ROWS = 2 / 3
"""The part of a first cache that the rows of a block take at most, if nothing waits."""

SHARE = 4
"""The part of a second cache that the panels of a program take."""

WIDE = 16
"""Panels of a program at least, on few cores: rows come from the second cache for all of them."""

SMALL = 8
"""The part of a second cache up to which a first operand is multiplied with one panel after the
other, as it is soon read again there; but for those of `READ`."""

READ = 128
"""Bytes of a row of a far second operand that are packed together at least, where it runs along the
columns: two lines. With two panels of 64 bytes a core of a Xeon (Emerald Rapids) takes 0.58 to 0.85
of the time for 24 to 128 rows of bfloat16 times 1024 x 4096, 4096 x 1024 and 4096 x 4096, with four
of 32 bytes 0.44 to 0.76 for bytes; with twice as many 1.0 to 1.3 of that."""

LOW = 32
"""Rows of a block of such an operand at most: they come from memory side by side, each from a page
of its own. With 64 of them 16 x 4096 x 4096 of bfloat16 take 1.0 to 1.18 of the time."""


LEAST_BYTES, LEAST_ROWS = 2, 5
"""Rows from which packing for registers for matrices pays, of bytes and of others: a core of a Xeon
(Emerald Rapids) takes 0.3 of the time for 4 rows of bytes times 512 x 512, 0.55 for 7 of bfloat16,
and 1.0 to 1.5 for 4 of those. 16 cores, which all share what one packs, take 1.4 to 1.9 of the time
for 2 to 4 rows of bytes times 1024 x 1024."""


def least_rows(p: Product) -> int:
    """Rows from which a product's second operand is packed."""
    return LEAST_BYTES if p.elements[0].itemsize == 1 and p.cores <= FEW else LEAST_ROWS


def side_by_side(p: Product, block: Blocking) -> int:
    """How many panels are multiplied with a part of a block's rows, before they go on.

    Args:
        p: the product.
        block: that registers hold.
    """
    is_near = block.rows * _row_bytes(p) <= ROWS * p.machine.l1 and not is_far(p)
    is_small = p.left.bytes() <= p.machine.l2 // SMALL
    if is_near or (is_small and not (is_far(p) and p.right.runs_along(p.col))):
        return 1
    blocks, panels = [
        ceil(size_of(axis.extent) / size)
        for axis, size in ((p.row, block.rows), (p.col, block.columns))
    ]
    programs = programs_of(p.cores)
    if is_small:
        beside = READ // (block.columns * p.elements[1].itemsize)
        return even(panels, max(min(beside, panels // programs), 1), 1)
    each = blocks * panels * p.copies // programs
    if each < TILES:
        return 1
    most = max(min(WAITING // (block.rows * block.columns * 4), each), 1)
    return even(panels, most, 1)


def is_far(p: Product) -> bool:
    """Whether a second operand is so large that few cores better pack some panels of it when they
    are needed."""
    return p.cores <= FEW_CORES and p.right.bytes() > p.machine.l2 // 2


def panel_program(p: Product, rows: int, columns: int) -> tuple[int, int]:
    """Blocks along the rows that a program computes, and along the columns: their panels are in the
    second cache while it goes over the rows, of which it has all, if there are programs enough.

    Args:
        p: the product.
        rows: blocks along them.
        columns: the same.
    """
    wanted = ceil(programs_of(p.cores) / p.copies)
    near = max(p.machine.l2 // SHARE // (p.block.columns * _row_bytes(p)), 1)
    least = WIDE // p.block.panels if p.cores <= FEW_CORES else 1
    wide = min(near, max(ceil(columns / wanted), least))
    beside = ceil(columns / wide)
    return ceil(rows / min(ceil(wanted / beside), rows)), even(columns, wide, 1)


def _row_bytes(p: Product) -> int:
    """Of a row or a column over the whole depth."""
    return ceil(p.depth / (LINE * p.group)) * LINE * p.group * p.elements[0].itemsize
