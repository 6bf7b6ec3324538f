"""Nests of blocks as nests of their own, and back.

    each b0, b1: nest i, j: y[b, i, j] = x[b0, b1, i, j]
    <==>
    nest b0, b1, i, j: ...

What is known of nests holds for the second form; `InBlocks` makes the first one of what has come
of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tessera.ir.core import Block, Op, Value
from tessera.ir.intexpr import Dim, ceildiv, divides, substitute, sym
from tessera.ir.walk import walk
from tessera.schedule import ops
from tessera.schedule.access import dependence_of
from tessera.schedule.block_ops import Each
from tessera.schedule.copying import Copy
from tessera.schedule.dependence import inner_axes
from tessera.schedule.product_sides import Side
from tessera.schedule.products import Product
from tessera.schedule.types import Axis, BufType


class InBlocks:
    """One nest of a block, which may be a product.

    Attributes:
        spread: the nest over the axes of the blocks that it mentions, and its own; extents that
            grow from block to block are what they are in the last one.
        extents: what these are.
        temps: memory of the parts that its packed operands have.
    """

    def __init__(self, nest: ops.Nest, each: Each) -> None:
        self.each = each
        self.names = [axis.name for axis in each.axes]
        self.temps: list[Value] = []
        self.local: dict[Value, tuple[Value, int]] = {}
        last: dict[str, Dim] = {axis.name: axis.extent - 1 for axis in each.axes}
        axes = [*nest.axes, *[axis for op in walk(nest.body) for axis in inner_axes(op)]]
        grows = [axis for axis in axes if substitute(axis.extent, last) != axis.extent]
        self.extents: dict[str, Dim] = {axis.name: axis.extent for axis in grows}
        whole = {axis.name: substitute(axis.extent, last) for axis in grows}
        new = _with_extents(nest, whole)
        used = frozenset[str]().union(*dependence_of(new.body).ops.values())
        outer = [axis for axis in each.axes if axis.name in used]
        found = new.rebuild(axes=(*outer, *new.axes))
        assert isinstance(found, ops.Nest)
        self.spread = found
        self.edges: list[Dim] = []

    def cut(self, product: Product) -> bool:
        """Says that the nest is a product in register blocks, whose axes grow as the nest's do;
        whether it may be, with whole lines along the depth in each block."""
        p, extents = product, self.extents
        for axis, outer, inner, size in (
            (p.row, p.io, p.ii, p.block.rows),
            (p.col, p.jo, p.ji, p.block.columns),
        ):
            if axis.name in extents:
                extent = extents[axis.name]
                extents[outer] = ceildiv(extent, size)
                if not divides(size, extent):
                    self.edges.append(extent - 1 - (sym(outer) * size + sym(inner)))
        last = p.op.axes[-1].name
        if p.line and last in extents:
            if not divides(p.line, extents[last]):
                return False
            extents[p.kb] = ceildiv(extents[last], p.line)
        # Sums of columns stand beside operands that are packed once.
        return p.right.sums is None

    def pack(self, side: Side, nests: Sequence[ops.Nest]) -> list[ops.Nest]:
        """Nests that pack an operand which the block computes: without the dims of the blocks'
        axes, but with one for parts."""
        packed = side.packed
        assert packed is not None
        assert isinstance(packed.type, BufType)
        outer = [axis.name for axis in side.batch if axis.name in self.names]
        shape = (self.each.part.extent, *packed.type.shape[len(outer) :])
        temp = Value(BufType(shape, packed.type.dtype))
        self.temps.append(temp)
        found: list[ops.Nest] = []
        for nest in nests:
            axes = dict(zip([a.name for a in nest.axes], map(sym, outer), strict=False))
            inner = [self.grown(*pair) for pair in zip(side.axes(), nest.axes, strict=True)]
            inner = inner[len(outer) :]
            copy = Copy(axes)
            body = copy.block(nest.body)
            self.local[packed] = (temp, len(outer))
            tile = nest.tile[len(outer) :]
            new = nest.rebuild(regions=[body], axes=tuple(inner), tile=tile, chunk=())
            assert isinstance(new, ops.Nest)
            found.append(self.nest(new))
        return found

    def grown(self, axis: Axis, copy: Axis) -> Axis:
        """A copy of an axis, which grows as the axis does."""
        if axis.name not in self.extents or copy.extent != axis.extent:
            return copy
        return Axis(copy.name, self.extents[axis.name])

    def nest(self, nest: ops.Nest) -> ops.Nest:
        """A nest without the axes of the blocks, on memory of the parts."""
        kept = [k for k, axis in enumerate(nest.axes) if axis.name not in self.names]
        env: dict[Value, Value] = {}
        new = nest.rebuild(
            regions=[self.block(nest.body, env)],
            axes=tuple([self.grown(nest.axes[k], nest.axes[k]) for k in kept]),
            tile=tuple([nest.tile[k] for k in kept if nest.tile]),
            chunk=(),
            grain=0,
        )
        assert isinstance(new, ops.Nest)
        return new

    def block(self, block: Block, env: dict[Value, Value]) -> Block:
        """A region with its accesses to packed operands moved."""
        code: list[Op] = []
        for op in block.ops:
            regions = [self.block(region, env) for region in op.regions]
            operands = [env.get(v, v) for v in op.operands]
            if isinstance(op, (ops.Load, ops.Store)) and op.buf in self.local:
                temp, skipped = self.local[op.buf]
                index: tuple[Dim, ...] = (sym(self.each.part.name), *op.index[skipped:])
                new = op.rebuild([temp, *operands[1:]], regions, index=index)
            elif isinstance(op, ops.Contract):
                grown = tuple([self.grown(axis, axis) for axis in op.axes])
                new = op.rebuild(operands, regions, axes=grown)
            elif isinstance(op, ops.Store) and self.edges:
                new = op.rebuild(operands, regions, where=(*op.where, *self.edges))
            else:
                new = op.rebuild(operands, regions)
            env.update(zip(op.results, new.results, strict=True))
            code.append(new)
        return Block(block.args, code, [env.get(v, v) for v in block.outputs])


def _with_extents(nest: ops.Nest, extents: Mapping[str, Dim]) -> ops.Nest:
    """The nest with other extents of some axes, those of its reductions included."""
    env: dict[Value, Value] = {}

    def axes(old: Sequence[Axis]) -> tuple[Axis, ...]:
        return tuple([Axis(axis.name, extents.get(axis.name, axis.extent)) for axis in old])

    def region(block: Block) -> Block:
        code: list[Op] = []
        for op in block.ops:
            operands = [env.get(v, v) for v in op.operands]
            regions = [region(inner) for inner in op.regions]
            changes = {"axes": axes(inner_axes(op))} if isinstance(op, _REDUCTIONS) else {}
            new = op.rebuild(operands, regions, **changes)
            env.update(zip(op.results, new.results, strict=True))
            code.append(new)
        return Block(block.args, code, [env.get(v, v) for v in block.outputs])

    new = nest.rebuild(regions=[region(nest.body)], axes=axes(nest.axes))
    assert isinstance(new, ops.Nest)
    return new


_REDUCTIONS = (ops.Reduce, ops.Contract)
