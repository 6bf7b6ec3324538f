"""The next panel of a product, fetched while blocks read the one before.

All blocks of rows of a program go over one panel of the packed second operand. The first of them
waits for each of its lines, which come from a cache that cores share or from memory, and others use
that, too; prefetchers begin anew on every page. So each step of each block has some elements of the
next panel fetched, and all blocks together have fetched it when they are done:

    nest jo, io in blocks of 17, ii, ji:
        contract k < 512: left[io, ii, k], right[jo, k, ji]; fetch right[jo + 1] + io % 17 * 512 + k

1024 cubed of float32 take two cores of a Zen 3 0.87 to 0.98 of the time, depending on the third
cache, and 4096 cubed one core of a Xeon (Sapphire Rapids) 0.91. Many cores do better without: 16
take 1.05 of it for 1024 cubed, where panels come from one of them to all.
"""

from __future__ import annotations

from math import ceil, prod

from tessera.ir.core import Block, Op
from tessera.ir.intexpr import Dim, substitute, sym
from tessera.ir.walk import map_ops
from tessera.schedule import ops
from tessera.schedule.access import Access, accesses
from tessera.schedule.blocking import LINE_BYTES
from tessera.schedule.grains import FEW
from tessera.schedule.panel_ops import ContractPanels
from tessera.schedule.prefetch_ops import Prefetch
from tessera.schedule.products import CachedCpu
from tessera.schedule.types import BufType


def fetch_next_panel(nest: ops.Nest, machine: CachedCpu) -> ops.Nest:
    """A nest with a product of register blocks that fetches panels ahead, where that pays.

    Args:
        nest: with its tiles.
        machine: the CPU.
    """
    product = next(op for op in nest.body.ops if isinstance(op, ops.Contract))
    if machine.cores > FEW or len(nest.axes) < 4 or isinstance(product, ContractPanels):
        return nest
    inside = [a for a in accesses(nest) if a.op in product.body.ops]
    found = [f for a in inside if (f := _fetch(nest, product, a, machine.l2))]
    if not found:
        return nest

    def change(op: Op) -> Op:
        if not isinstance(op, ops.Contract):
            return op
        (body,) = op.regions
        return op.rebuild(regions=[Block(body.args, [*body.ops, *found], body.outputs)])

    new = nest.rebuild(regions=[map_ops(nest.body, change)])
    assert isinstance(new, ops.Nest)
    return new


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
    blocks = nest.chunk[-3] or nest.axes[-3].extent
    if size % max(depth * each, 1) or size < 1 or not isinstance(blocks, int):
        return None
    assert isinstance(a.op.buf.type, BufType)
    dims = a.op.buf.type.shape
    count = prod([n for n in dims if isinstance(n, int)]) * a.dtype.itemsize
    every = ceil(each / blocks)
    if count <= near or every * a.dtype.itemsize > LINE_BYTES:
        return None
    step: Dim = sym(row) % blocks
    for axis, extent in zip(steps, extents, strict=True):
        step = step * extent + sym(axis.name)
    start = {axis.name: 0 for axis in product.axes}
    offset = substitute(a.offset, {**start, lane: 0, panel: sym(panel) + 1})
    return Prefetch(a.op.buf, offset + step * every, loc=a.op.loc)
