"""Products of few rows and a large operand that runs along the depth, as in a linear layer
(`x @ w.T`): the few rows are the second operand, and packed; the first one is read where it lies,
once, and nothing of it is copied.

    pack x in panels of 16 columns
    nest jo, io in blocks of 8, ii, ji:
        contract k: w[io, ii, k], panels[jo, k, ji]; fetch w[io + 1, k % 8, k]

A step of a block multiplies elements of 8 rows of `w`, or the 2 or 4 neighbours that an instruction
adds up, with vectors of the panel. More rows would displace each other in the first cache, where
they lie apart by a power of two: 16 x 4096 x 4096 of bfloat16 takes a core of a Zen 4 3.3 ms so,
5.7 in blocks of 16 rows, 10 of 24, and 26 where `w` is packed. As rows begin on pages of their own,
in which prefetchers begin anew, each step has a line of the next block fetched; 16 x 768 x 50257
take 9.2 ms so, and 13.7 without. Blocks are turned as they are stored, by squares.

Registers for matrices go over blocks of their own shape (`panel_rows`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tessera.schedule import ops
from tessera.schedule.blocking import Blocking
from tessera.schedule.sizes import size_of

if TYPE_CHECKING:
    from tessera.schedule.products import Product

MOST = 128
"""Rows up to which they are the second operand of a product with one that runs along the depth."""

LEAST, LEAST_BYTES = 7, 4
"""Rows from which that is so in vectors, and of bytes: fewer have lanes along the depth
(`depth_lanes`)."""

DEPTH = 128
"""The depth from which turning sums as they are stored does not matter."""

SMALL = 4
"""First caches that hold a large operand of narrow numbers at least."""

HEIGHT = 8
"""Rows of the large operand in a block of vectors."""


def may_have_few(p: Product) -> bool:
    """Whether a product multiplies few rows with those of another operand, which might be read
    where they lie."""
    sizes = p.row.extent, p.col.extent
    few, many = min(map(size_of, sizes)), max(map(size_of, sizes))
    if not all(isinstance(size, int) for size in sizes) or few > MOST or 2 * few > many:
        return False
    if p.groups.is_panels:
        return few > 1
    if not p.machine.has_masks or p.in_blocks or p.depth < DEPTH:
        return False
    large = p.left if size_of(p.row.extent) > size_of(p.col.extent) else p.right
    # What near caches hold is copied soon, and others need no copy for groups.
    if large.bytes() <= (p.machine.l2 if p.group == 1 else SMALL * p.machine.l1):
        return False
    return few >= (LEAST_BYTES if p.elements[0].itemsize == 1 else LEAST)


def few_block(p: Product) -> Blocking:
    """The block of vectors of such a product, whose few rows are its columns."""
    vectors = 1 if size_of(p.col.extent) <= p.lanes else 2
    return Blocking(HEIGHT, vectors * p.lanes, packs_left=not p.left.is_taken_in_rows(HEIGHT))


def stores_again(p: Product) -> bool:
    """Whether a block that begins earlier, to be whole, stores what the one before has: the same,
    as nothing else is read where it is stored, and under no condition, so that squares are turned.
    """
    own = {p.row.name, p.col.name}
    return p.has_few and not any(
        isinstance(op, ops.Load) and own <= p.depends.ops[op] for op in p.nest.body.ops
    )
