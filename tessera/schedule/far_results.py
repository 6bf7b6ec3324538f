"""Products of little depth, whose time goes into writing a result that no cache holds.

Their blocks go along whole rows, if the second operand stays in the second cache meanwhile, and
what they store goes past the caches: 4096 x 16 times 16 x 4096 takes one core 2.2 ms, by columns
3.3, through the caches 3.3, and both ways 5.5.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from tessera.ir.core import Op
from tessera.schedule import ops, streaming
from tessera.schedule.blocking import Blocking

if TYPE_CHECKING:
    from tessera.schedule.products import Product

MOST_DEPTH = 64
"""The depth of such a product at most: more are bound by their multiplications."""

HEIGHTS = (6, 4)
"""Rows of a block, which are written side by side, so many if they divide what there are."""


def is_written_far(product: Product) -> bool:
    """Whether a product is one, and stores whole vectors along the lanes."""
    if product.depth > MOST_DEPTH or not streaming.is_far(product.nest, product.machine):
        return False
    stores = [a for a in product.accesses if a.is_store]
    reads = {op.buf for op in product.nest.body.ops if isinstance(op, ops.Load)}
    for a in stores:
        steps = [a.stride(axis.name) for axis in (product.row, *product.others)]
        whole = all(isinstance(n, int) and n % product.lanes == 0 for n in steps)
        assert isinstance(a.op, ops.Store)
        if a.stride(product.col.name) != 1 or not whole or a.op.buf in reads:
            return False
    return bool(stores)


def goes_along_rows(product: Product) -> bool:
    """Whether the second operand stays near while rows are written."""
    return 2 * product.right.bytes() <= product.machine.l2


def block_of(product: Product, chosen: Blocking, in_place: bool) -> Blocking:
    """The register block of a product: whole rows of such a one, if they can be."""
    if not (in_place and is_written_far(product) and goes_along_rows(product)):
        return chosen
    rows, lanes = product.row.extent, product.lanes
    height = next((n for n in HEIGHTS if isinstance(rows, int) and rows % n == 0), 0)
    vectors = 4 if product.machine.registers >= 32 else 2
    if height and product.is_whole(product.col, vectors * lanes):
        return replace(chosen, rows=height, columns=vectors * lanes, packs_left=False)
    return chosen


def past_caches(code: Sequence[Op]) -> list[Op]:
    """The code of such a product; what is stored under a condition goes through the caches."""
    return [
        op.rebuild(op.operands, streaming=1)
        if isinstance(op, ops.Store) and not op.where and not op.dyn
        else op
        for op in code
    ]
