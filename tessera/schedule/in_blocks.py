"""Nests of blocks as nests of their own, and back.

    each b0, b1: nest i, j: y[b, i, j] = x[b0, b1, i, j]
    <==>
    nest b0, b1, i, j: ...

What is known of nests holds for the second form; `InBlocks` makes the first one of what has come
of it.
"""

from __future__ import annotations

from collections.abc import Sequence

from tessera.ir.core import Block, Op, Value
from tessera.ir.intexpr import Dim, sym
from tessera.schedule import ops
from tessera.schedule.block_ops import Each
from tessera.schedule.copying import Copy
from tessera.schedule.dependence import Dependence
from tessera.schedule.product_sides import Side
from tessera.schedule.types import BufType


def spread(nest: ops.Nest, each: Each) -> ops.Nest:
    """The nest over the axes of the blocks that it mentions, and its own."""
    depends = Dependence(nest.body).ops.values()
    names = frozenset[str]().union(*depends)
    new = nest.rebuild(axes=(*[axis for axis in each.axes if axis.name in names], *nest.axes))
    assert isinstance(new, ops.Nest)
    return new


class InBlocks:
    """What belongs to one product of a block.

    Attributes:
        temps: memory of the parts.
    """

    def __init__(self, each: Each) -> None:
        self.each = each
        self.names = [axis.name for axis in each.axes]
        self.temps: list[Value] = []
        self.local: dict[Value, tuple[Value, int]] = {}

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
            inner = nest.axes[len(outer) :]
            copy = Copy(axes)
            body = copy.block(nest.body)
            self.local[packed] = (temp, len(outer))
            new = nest.rebuild(regions=[body], axes=inner, tile=nest.tile[len(outer) :], chunk=())
            assert isinstance(new, ops.Nest)
            found.append(self.nest(new))
        return found

    def nest(self, nest: ops.Nest) -> ops.Nest:
        """A nest without the axes of the blocks, on memory of the parts."""
        kept = [k for k, axis in enumerate(nest.axes) if axis.name not in self.names]
        env: dict[Value, Value] = {}
        new = nest.rebuild(
            regions=[self.block(nest.body, env)],
            axes=tuple([nest.axes[k] for k in kept]),
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
            else:
                new = op.rebuild(operands, regions)
            env.update(zip(op.results, new.results, strict=True))
            code.append(new)
        return Block(block.args, code, [env.get(v, v) for v in block.outputs])
