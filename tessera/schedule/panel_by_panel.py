"""Products that pack a panel of the second operand, multiply all rows with it, and go on.

Where the second operand is packed as a whole, all of it is read, written and read again before the
first block is done. Few rows do not pay for that, and programs that pack a panel each before they
go over the rows have it in the second cache:

    each jo: nest k, ji: panel[k, ji] = b(k, jo*W + ji)
             nest io, ii, ji: y[io*H + ii, jo*W + ji] = f(contract k: a(io*H + ii, k), panel[k, ji])

A part has memory for one panel, which its next one takes over. If a panel of the whole depth takes
too much of the cache, all goes over a part of the depth first, and then over the next. Where blocks
have several panels side by side, as in registers for matrices, these go together.

64 x 2048 x 2048 of float32 take a core of a Xeon (Granite Rapids) 4.5 ms, 5.8 where all is packed
first, and 10 where the second operand is the rows of turned blocks that read it where it lies.
"""

from __future__ import annotations

from math import ceil
from typing import TYPE_CHECKING

from tessera.ir.core import Block, Op, Value
from tessera.ir.intexpr import Dim, ceildiv, divides, prod, substitute, sym
from tessera.ir.walk import map_ops
from tessera.schedule import ops
from tessera.schedule.axes import split
from tessera.schedule.block_ops import Each
from tessera.schedule.copying import Copy
from tessera.schedule.grains import grain_of, idle
from tessera.schedule.panel_rows import SMALL, is_far
from tessera.schedule.product_parts import Part
from tessera.schedule.sizes import size_of
from tessera.schedule.types import Axis, BufType

if TYPE_CHECKING:
    from tessera.schedule.products import Product

PARTS = 4
"""Programs for each core."""

PANELS = 2
"""Panels for each core at least: cores do not share one."""

AGAIN = 2
"""Times a second cache, that a first operand may take which is read for each panel again: 1024 and
2048 cubed take as long in both ways."""

SHARE = 8
"""Of a second cache, the part that a panel takes: so the next one is written where it was. 128 x
768 x 3072 take 4.2 ms so rather than 4.6."""

NEAR = 16
"""Operands of products that are added in groups go so from a size on that is such a part, as they
take a part of the time to be multiplied: one thread of a Xeon (Emerald Rapids) takes 0.85 of the
time for 32 x 1024 x 1024 of int8, 0.65 for 32 x 2048 x 512. First operands
that are larger than `SMALL` are read too often for that: 1001 x 999 x 1003 takes 1.03."""

UNROLLED = 4
"""Parts of the depth at most: each is written down by itself."""


def panel_cuts(p: Product) -> tuple[int, ...] | None:
    """Cuts of the depth, so that the second cache holds a panel and some rows; None where a product
    does not go panel by panel."""
    machine, depth = p.machine, p.op.axes[-1].extent
    sizes = (p.row.extent, p.col.extent, depth)
    if not all(isinstance(n, int) for n in sizes) or len(p.op.axes) > 1:
        return None
    if not machine.has_masks or p.right.products > 1 or p.in_blocks:
        return None
    # Sums of columns are those of an operand that is packed as a whole.
    if p.left.is_moved or (p.groups.is_panels and _has_ends(p)):
        return None
    far, again = machine.l2, AGAIN * machine.l2
    if p.group > 1:
        far, again = machine.l2 // NEAR, machine.l2 // SMALL
    pays = p.right.bytes() > far and p.left.bytes() <= again
    if not (is_far(p) if p.block.panels > 1 else pays):
        return None
    panels = ceil(size_of(p.col.extent) / p.block.columns) * p.copies
    if panels < PANELS * machine.cores:
        return None
    panel = p.block.columns * p.depth * p.elements[1].itemsize
    parts = min(max(round(panel / (machine.l2 // SHARE)), 1), UNROLLED)
    while 1 < parts <= UNROLLED and not divides(parts * (p.line or 1), depth):
        parts += 1
    if parts > UNROLLED or p.group > 1 or (parts > 1 and p.sums() is None):
        parts = 1
    if panel // parts > machine.l2 // 2:
        return None
    return (parts,)


def _has_ends(p: Product) -> bool:
    """Whether panels for registers for matrices are packed under conditions of their columns, where
    squares are turned: as a whole all but the last one are not. 512 x 768 x 50257 of bfloat16 take
    a core of a Xeon (Emerald Rapids) 0.72 of the time so, 200 x 1024 x 4001 0.44."""
    return p.right.runs_along(p.op.axes[-1]) and not p.is_whole(p.col, p.right.size)


def panel_by_panel(p: Product) -> tuple[list[Op], Value]:
    """The blocks of a product that goes so, for one part of the depth after the other, and the
    memory of their parts."""
    side, loc = p.right, p.op.loc
    packed = side.packed
    assert packed is not None
    assert isinstance(packed.type, BufType)
    # Some panels may go together.
    panels, columns = p.block.panels, Axis(p.jo, ceildiv(p.col.extent, p.block.columns))
    axes = (*side.batch, columns)
    names = [axis.name for axis in axes]
    points = size_of(prod([axis.extent for axis in axes]))
    each = ceil(points / (PARTS * p.machine.cores))
    if panels > 1:
        # As many as may be, for two rounds at least: all cores are done at about the same time.
        sizes = range(max(points // (2 * p.machine.cores), 1), 0, -1)
        each = min(sizes, key=lambda size: idle(points, size))
    part = Axis(p.part, ceil(points / each))
    copy = side.panel_nest(packed)
    inner = copy.axes[len(axes) :]
    deep = [axis.extent for axis in inner]
    assert isinstance(deep[0], int)
    length = deep[0] // p.parts
    # Of groups there are no parts of the depth, and their axes may be others.
    inside = packed.type.shape[len(axes) :] if p.group > 1 else (length, *deep[1:])
    beside = (Axis(p.beside, panels),) if panels > 1 else ()
    inside = (*[axis.extent for axis in beside], *inside)
    memory = Value(BufType((part.extent, *inside), packed.type.dtype))

    def moved(op: Op, first: int) -> Op:
        """An op on the packed operand as one on the memory, where it begins at a place."""
        if op.regions:
            regions = [map_ops(region, lambda x: moved(x, first)) for region in op.regions]
            op = op.rebuild(regions=regions)
        if not isinstance(op, (ops.Load, ops.Store)) or op.buf is not packed:
            return op
        panel, at, *rest = op.index[len(axes) - 1 :]
        place = (substitute(panel, {p.jo: 0}),) if beside else ()
        index = (sym(p.part), *place, at - first, *rest)
        return op.rebuild([memory, *op.operands[1:]], index=index)

    count = ceil(points / size_of(part.extent))
    work = p.cycles / p.parts * ceil(size_of(p.row.extent) / p.block.rows)
    if p.groups.is_panels:
        # Few rows are multiplied sooner than a panel is packed.
        work = 4 * p.lanes * work + size_of(prod(inside)) * packed.type.dtype.itemsize
    grain = grain_of(size_of(part.extent), work * count)
    reason = "panels of the second operand, which the second cache holds"
    found: list[Op] = []
    for nest, first in zip(_rows(p), range(0, deep[0], length), strict=True):
        copied = [axis.name for axis in copy.axes]
        to: dict[str, Dim] = dict(zip(copied, map(sym, names), strict=False))
        if beside:
            to[copied[len(axes) - 1]] = sym(p.jo) * panels + sym(p.beside)
        to[inner[0].name] = sym(inner[0].name) + first
        code = map_ops(Copy(to).block(copy.body), lambda op, at=first: moved(op, at))
        deepest = (Axis(inner[0].name, length), *inner[1:])
        # Of panels that go together, rows of a line are read one after the other.
        pack = ops.Nest((*deepest[:-2], *beside, *deepest[-2:]), body=code, loc=loc)
        pack = split(pack, p.facts)  # where elements are parts of words, or rows share a scale
        kept = [k for k, axis in enumerate(nest.axes) if axis.name not in names]
        rows = nest.rebuild(
            axes=tuple([nest.axes[k] for k in kept]), tile=tuple([nest.tile[k] for k in kept]),
            chunk=(), grain=0, regions=[map_ops(nest.body, lambda op, at=first: moved(op, at))],
        )  # fmt: skip
        body = Block((), [pack, rows], ())
        found.append(Each(axes, 0, part, reason, grain, body=body, loc=loc))
    return found, memory


def _rows(p: Product) -> list[ops.Nest]:
    """The nests over the rows of a panel: one for each part of the depth."""
    sums = p.sums() if p.parts > 1 else None
    if sums is None:
        return [p.nest_of_blocks()]
    p.memory = [] if sums.store else [sums.buf]
    last = p.parts - 1
    parts = [Part(sums, Axis(p.kp, 1), k, k == last) for k in range(p.parts)]
    return [p.nest_of_blocks(part) for part in parts]
