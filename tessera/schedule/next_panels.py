"""The next panel of a product, fetched while blocks read the one before, and its next steps.

All blocks of rows of a program go over one panel of the packed second operand. The first of them
waits for each of its lines, which come from a cache that cores share or from memory, and others use
that, too; prefetchers begin anew on every page. So each step of each block has some elements of the
next panel fetched, and all blocks together have fetched it when they are done:

    nest jo, io in blocks of 17, ii, ji:
        contract k < 512: left[io, ii, k], right[jo, k, ji]; fetch right[jo + 1] + io % 17 * 512 + k

1024 cubed of float32 take two cores of a Zen 3 0.87 to 0.98 of the time, depending on the third
cache, and 4096 cubed one core of a Xeon (Sapphire Rapids) 0.91. Many cores do better without: 16
take 1.05 of it for 1024 cubed, where panels come from one of them to all.

Each step reads as many lines of its own panel from the second cache as it has vectors of columns,
and those of a few steps later are fetched into the first one. Two cores of a Xeon (Granite Rapids)
take 0.93 to 0.97 of the time.

A packed first operand is one long run, in which a prefetcher begins anew on every page: one that
the second cache does not hold is fetched further ahead. 1024 cubed of float32 turned (TN) takes two
cores of such a Xeon 0.90 of the time, 2048 cubed 0.96.
"""

from __future__ import annotations

from math import ceil, prod

from tessera.ir.core import Block, Op, Value
from tessera.ir.intexpr import Dim, substitute, sym
from tessera.ir.walk import map_ops
from tessera.schedule import ops
from tessera.schedule.access import Access, accesses
from tessera.schedule.blocking import LINE_BYTES, meeting, ways_of
from tessera.schedule.few_rows import DEPTH, MOST
from tessera.schedule.grains import FEW
from tessera.schedule.machines import CachedCpu
from tessera.schedule.panel_ops import ContractPanels
from tessera.schedule.prefetch_ops import Prefetch
from tessera.schedule.sizes import size_of
from tessera.schedule.types import BufType

NEAR_STEPS = 8
"""Steps ahead of which lines come from the second cache into the first one."""

NEAR_LINES = 2
"""Lines ahead of which those of rows that are read once come, where rows displace each other."""

FAR_STEPS = 64
"""Steps ahead of which lines of a first operand come from beyond the second cache."""


def fetch_next_panel(nest: ops.Nest, machine: CachedCpu) -> ops.Nest:
    """A nest with a product of register blocks that fetches panels ahead, where that pays.

    Args:
        nest: with its tiles.
        machine: the CPU.
    """
    products = [op for op in nest.body.ops if isinstance(op, ops.Contract)]
    if isinstance(products[0], ContractPanels) or len(nest.axes) < 3:
        return nest
    read = accesses(nest)
    found: list[list[Op]] = []
    for product in products:
        inside = [a for a in read if a.op in product.body.ops]
        own: list[Op] = []
        if machine.cores <= FEW and len(nest.axes) >= 4:
            own += [f for a in inside if (f := _fetch(nest, product, a, machine.l2))]
        if machine.has_masks:
            own += [f for a in inside for f in _next_steps(nest, product, a, machine.l1)]
            own += [f for a in inside if (f := _next_rows(nest, product, a, machine.l2))]
            own += [f for a in inside if (f := _next_block(nest, product, a, machine))]
        found.append(own)
    if not any(found):
        return nest
    fetches = iter(found)

    def change(op: Op) -> Op:
        if not isinstance(op, ops.Contract):
            return op
        (body,) = op.regions
        return op.rebuild(regions=[Block(body.args, [*body.ops, *next(fetches)], body.outputs)])

    new = nest.rebuild(regions=[map_ops(nest.body, change)])
    assert isinstance(new, ops.Nest)
    return new


def _next_steps(nest: ops.Nest, product: ops.Contract, a: Access, near: int) -> list[Prefetch]:
    """What fetches the lines of an operand that a block needs some steps later, if each step needs
    others, and the first cache does not hold them all until the next block does."""
    *_, row, inner, lane = [axis.name for axis in nest.axes]
    steps = [axis for axis in product.axes if a.stride(axis.name) not in (0, 1)]
    if not isinstance(a.op, ops.Load) or a.op.dyn or not steps:
        return []
    step = steps[-1].name
    along = lane if a.stride(row) == 0 else inner
    other, width = (inner, nest.tile[-1]) if along == lane else (lane, nest.tile[-2])
    size, each = a.stride(along), a.stride(step)
    extents = [axis.extent for axis in steps if isinstance(axis.extent, int)]
    if not isinstance(size, int) or size == 0 or len(extents) < len(steps):
        return []
    # A short innermost loop is written out; the fetches would keep it from that.
    is_short = not extents or extents[-1] < 2 * NEAR_STEPS
    if a.stride(other) != 0 or not isinstance(each, int) or is_short:
        return []
    lanes = LINE_BYTES // (size * a.dtype.itemsize)
    if each * a.dtype.itemsize < LINE_BYTES or lanes < 2:
        return []
    lines = range(0, width, lanes)
    if prod(extents) * len(lines) * LINE_BYTES <= near // 2:
        return []
    later = sym(step) + NEAR_STEPS
    places = [{along: k, step: later} for k in lines]
    return [Prefetch(a.op.buf, substitute(a.offset, one), loc=a.op.loc) for one in places]


def _next_rows(nest: ops.Nest, product: ops.Contract, a: Access, near: int) -> Prefetch | None:
    """What fetches a packed first operand ahead, if the second cache does not hold it: its steps
    lie one after the other, and so do its blocks."""
    lane = nest.axes[-1].name
    if not isinstance(a.op, ops.Load) or a.op.dyn or a.op.where or a.stride(lane) != 0:
        return None
    steps = [axis for axis in product.axes if a.stride(axis.name) != 0]
    each = a.stride(steps[-1].name) if steps else None
    if not isinstance(each, int) or each * a.dtype.itemsize >= LINE_BYTES:
        return None
    if each != nest.tile[-2] or a.stride(nest.axes[-2].name) != 1:
        return None
    if not _is_larger(a.op.buf, near):
        return None
    later = {steps[-1].name: sym(steps[-1].name) + FAR_STEPS, nest.axes[-2].name: 0}
    return Prefetch(a.op.buf, substitute(a.offset, later), loc=a.op.loc)


def _next_block(
    nest: ops.Nest, product: ops.Contract, a: Access, machine: CachedCpu
) -> Prefetch | None:
    """What fetches rows that lie where they are read, once for few columns (`few_rows`), if the
    second cache does not hold them: those of the next block, of which each step fetches a line; or
    some lines further along, where as many rows again would displace each other."""
    *others, row, inner, lane = nest.axes
    width = prod([size_of(axis.extent) for axis in (*others[-1:], lane)])
    steps = product.axes[:-1] if nest.reduce_tile > 1 else product.axes
    if not isinstance(a.op, ops.Load) or a.op.dyn or a.op.where or width > MOST or not steps:
        return None
    each, size = a.stride(steps[-1].name), a.stride(inner.name)
    if a.stride(lane.name) != 0 or not isinstance(each, int) or not isinstance(size, int):
        return None
    line, height = LINE_BYTES // a.dtype.itemsize, nest.tile[-2]
    if each < 1 or size < max(line, DEPTH) or line // each < height:
        return None
    if not _is_larger(a.op.buf, machine.l2):
        return None
    at: dict[str, Dim] = {inner.name: sym(steps[-1].name) % height}
    if 2 * height * meeting(size * a.dtype.itemsize) <= ways_of(machine.l1):
        at[row.name] = sym(row.name) + 1
        return Prefetch(a.op.buf, substitute(a.offset, at), loc=a.op.loc)
    return Prefetch(a.op.buf, substitute(a.offset, at) + NEAR_LINES * line, loc=a.op.loc)


def _fetch(nest: ops.Nest, product: ops.Contract, a: Access, near: int) -> Prefetch | None:
    """What fetches a part of the next panel that an access goes over, if it does so for several
    blocks of rows, and the second cache does not hold all panels."""
    panel, row, inner, lane = [axis.name for axis in nest.axes[-4:]]
    if not isinstance(a.op, ops.Load) or a.op.dyn or a.op.where:
        return None
    size = a.stride(panel)
    if a.stride(row) != 0 or a.stride(inner) != 0 or a.stride(lane) == 0:
        return None
    steps = [axis for axis in product.axes if a.stride(axis.name) not in (0, 1)]
    extents = [axis.extent for axis in steps if isinstance(axis.extent, int)]
    each = a.stride(steps[-1].name) if steps else None
    if not (isinstance(size, int) and isinstance(each, int)) or len(extents) < len(steps):
        return None
    depth = prod(extents)
    blocks = (nest.chunk[-3] if nest.chunk else 0) or nest.axes[-3].extent
    if size % max(depth * each, 1) or size < 1 or not isinstance(blocks, int):
        return None
    every = ceil(each / blocks)
    if not _is_larger(a.op.buf, near) or every * a.dtype.itemsize > LINE_BYTES:
        return None
    step: Dim = sym(row) % blocks
    for axis, extent in zip(steps, extents, strict=True):
        step = step * extent + sym(axis.name)
    start = {axis.name: 0 for axis in product.axes}
    offset = substitute(a.offset, {**start, lane: 0, panel: sym(panel) + 1})
    return Prefetch(a.op.buf, offset + step * every, loc=a.op.loc)


def _is_larger(buf: Value, near: int) -> bool:
    """Whether a buffer is larger than so many bytes, whatever the dims that are not known."""
    assert isinstance(buf.type, BufType)
    known = [n for n in buf.type.shape if isinstance(n, int)]
    return prod(known) * buf.type.dtype.itemsize > near
