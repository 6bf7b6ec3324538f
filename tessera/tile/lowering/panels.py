"""Products of packed panels: sums go to scratch memory, from where what follows them reads rows."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

from tessera.dtypes import int64
from tessera.ir.core import Value
from tessera.ir.intexpr import Dim, substitute
from tessera.schedule import ops as s
from tessera.schedule.panel_ops import ContractPanels
from tessera.tile import ops as t
from tessera.tile.lowering.state import Point, State, Val, dtype_of
from tessera.tile.panel_ops import GROUP_BYTES, DotPanels
from tessera.tile.scratch_ops import Scratch


def into_memory(low: State, op: ContractPanels, point: Point) -> Value:
    """A view of the sums of a block, in scratch memory.

    Args:
        low: the lowering.
        op: the product.
        point: rows and columns of a block.
    """
    em = low.em
    rows, cols = point.dims
    em.loc = op.loc
    (room,) = em.add(Scratch(op.dtype, rows.size * cols.size, loc=em.loc))
    left, right = [v.op for v in op.body.outputs]
    assert isinstance(left, s.Load) and isinstance(right, s.Load)
    *outer, groups, group = op.axes
    assert isinstance(groups.extent, int) and isinstance(group.extent, int)
    assert group.extent * dtype_of(left.result).itemsize == GROUP_BYTES
    steps = em.index(prod([axis.extent for axis in outer]))
    names = [rows.name, cols.name, *[axis.name for axis in op.axes]]
    begin: Mapping[str, Dim] = dict.fromkeys(names, 0)
    places: list[Value] = []
    for load in (left, right):
        strides = low.buffer(load.buf).element_strides()
        at = sum([e * n for e, n in zip(load.index, strides, strict=True)], 0)
        places += [low.memory[load.buf], em.index(substitute(at, begin))]
    sizes = rows.size, cols.size, groups.extent * group.extent
    em.add(DotPanels(*places, steps, room, *sizes, op.step, op.row, loc=em.loc))
    zero, one, width = [em.const(k, int64) for k in (0, 1, cols.size)]
    return em.pure(t.View, room, zero, (em.const(rows.size, int64), width), (width, one))


def contract(low: State, op: ContractPanels, point: Point) -> Val:
    """All sums of a block."""
    view, zero = into_memory(low, op, point), low.em.const(0, int64)
    (found,) = low.em.add(t.Load(view, (zero, zero), (), point.shape, loc=op.loc))
    return Val((found,), point.names)
