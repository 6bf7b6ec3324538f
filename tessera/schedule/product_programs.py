"""The programs into which a CPU's product is cut: which of its blocks a thread computes one after
the other; see `products`."""

from __future__ import annotations

from math import ceil
from typing import TYPE_CHECKING

from tessera.schedule.blocking import LINE_BYTES, NEAR
from tessera.schedule.grains import FEW, PROGRAMS, Shared, idle, share
from tessera.schedule.panel_rows import panel_program
from tessera.schedule.sizes import size_of

if TYPE_CHECKING:
    from tessera.schedule.products import Product

SOON = 190_000
"""Cycles in which one core has done a product in registers for matrices sooner than two: one of a
Xeon (Granite Rapids) takes 27 us for 256 cubed of bfloat16, two 50."""

SOON_READ = 24_000
"""The same of few rows and an operand that each core reads where it lies: one of a Xeon (Emerald
Rapids) takes 11.4 us for 16 x 1024 x 256 of bfloat16, two 8.3, and both 6.2 for 16 x 512 x 256."""

SHARED_LINE = 100
"""Cycles that cores lose for each line of the result that two of them store to."""

LINE_CYCLES = 10
"""Of them, those in which it packs a line."""


def is_worth_sharing(p: Product) -> bool:
    """Whether a second core makes a product shorter, though it gets lines from the one that has
    packed them."""
    if not p.groups.is_panels or p.cores > FEW:
        return True
    rows = ceil(size_of(p.row.extent) / p.block.rows)
    columns = ceil(size_of(p.col.extent) / p.block.columns)
    product = rows * columns * p.copies * p.cycles
    packed = p.right.copied() // LINE_BYTES * LINE_CYCLES
    # Two pack twice as fast as one.
    soon = SOON_READ if p.has_few else SOON
    return 2 * packed >= product or packed + product >= soon


def program(p: Product, rows: int, columns: int) -> tuple[int, int]:
    """Blocks along the rows that a program computes side by side, and along the columns.

    What it reads of the first operand stays in the second cache.

    Args:
        p: the product.
        rows: blocks along them.
        columns: the same.
    """
    if p.groups.is_panels:
        return panel_program(p, rows, columns)
    panel = p.block.rows * p.depth * p.elements[0].itemsize // p.parts
    most = max(p.machine.l2 // 2 // panel, 1)
    if p.cores > FEW:
        right = p.block.columns * p.depth * p.elements[1].itemsize // p.parts
        return share(Shared(p.copies, p.cores, p.cycles, panel, right), (rows, columns), most)
    wanted, near = ceil(PROGRAMS / p.copies), p.machine.l2 // NEAR
    if rows > 1 and columns >= wanted and p.left.bytes() <= near < p.right.bytes():
        # Few rows go over one panel after the other, which nobody else reads.
        return rows, ceil(columns / wanted)
    count = _rows(p, rows, most)
    programs = ceil(rows / count)
    beside = _columns(programs, columns)
    if beside < columns and _shares_lines(p):
        product = rows * columns * p.copies * p.cycles
        lost = product * (ceil(programs / p.cores) / programs - 1 / p.cores)
        if lost <= rows * p.block.rows * p.copies * SHARED_LINE:
            return count, columns
    return count, beside


def _shares_lines(p: Product) -> bool:
    """Whether columns of the result that lie side by side are in one line, as its rows begin
    anywhere in lines: two cores that store them wait for each other.

    40 x 50 x 60 of float32 take two cores of a Xeon (Granite Rapids) 4.2 us so, 1.8 by rows;
    151 x 133 x 27 of another one (Emerald Rapids) 17 and 7.
    """
    rows = [(a.stride(p.row.name), a.dtype.itemsize) for a in p.accesses if a.is_store]
    return any(isinstance(stride, int) and stride * size % LINE_BYTES for stride, size in rows)


def _rows(p: Product, blocks: int, most: int) -> int:
    """Blocks along the rows that a program has, of so many at most: there are some programs."""
    # Programs of products that are cut should be as many for each of two threads.
    wanted = ceil(PROGRAMS * (2 if p.parts > 1 < p.copies else 1) / p.copies)
    programs = max(ceil(blocks / most), min(wanted, blocks))
    count = ceil(blocks / programs)
    if wanted == 1:
        return count
    return min(range(count, count // 2, -1), key=lambda size: idle(blocks, size))


def _columns(programs: int, blocks: int) -> int:
    """Blocks along the columns that a program computes one after the other: all, unless there would
    be few programs."""
    wanted = min(ceil(PROGRAMS / programs), blocks)
    return ceil(blocks / wanted)
