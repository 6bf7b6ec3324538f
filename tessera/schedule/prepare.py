"""Rewrites of a Graph block before it is lowered: calls are inlined, scans, one-hot sums and some
scatters are what they stand for."""

from __future__ import annotations

from tessera.graph.passes.simplify import inline_calls
from tessera.ir.core import Block
from tessera.schedule.cut_scans import cut_scans
from tessera.schedule.into_scans import into_scans
from tessera.schedule.long_scans import apart
from tessera.schedule.loops import expand_scans
from tessera.schedule.one_hot import expand
from tessera.schedule.product_rows import with_rows
from tessera.schedule.products_behind import products_behind
from tessera.schedule.recurrence import is_recurrence
from tessera.schedule.scatter_in_order import scatter_in_order
from tessera.schedule.strategy import CPU, Strategy
from tessera.schedule.unroll import unroll_components
from tessera.schedule.unstack import unstack
from tessera.schedule.widen_scatter import widen_scatters


def prepare(
    block: Block,
    strategy: Strategy = CPU,
    stored: int | None = None,
    below: int | None = None,
) -> Block:
    """The block to lower.

    Args:
        block: the block.
        strategy: of the machine.
        stored: bytes that may be stored for the sums behind a loop, if not as many as ever.
        below: each array has fewer elements than this; None if that is not known.
    """
    kept = is_recurrence if strategy.keeps_loops else None
    block = inline_calls(block)
    if strategy.keeps_loops:
        block = into_scans(cut_scans(products_behind(block), stored))
    block = expand(expand_scans(block, kept))
    if strategy.unrolls_components:
        block = unroll_components(unstack(block))
    block = block if strategy.combines_bytes else widen_scatters(block)
    if strategy.scatters_in_order:
        return block
    return with_rows(apart(scatter_in_order(block, below)))
