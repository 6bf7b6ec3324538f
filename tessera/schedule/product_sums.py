"""Sums along the depth of an operand of a CPU's product of signed bytes.

Instructions multiply signed bytes with unsigned ones only, so the other operand is moved by 128,
and what that adds, 128 times these sums, is subtracted from the product again.
"""

from __future__ import annotations

from math import prod

from tessera.ir.core import Block, Op, Value
from tessera.ir.intexpr import ceildiv, sym, symbols
from tessera.ir.scalar import SCALARS
from tessera.schedule import ops
from tessera.schedule.copying import Copy, Names
from tessera.schedule.dependence import behind
from tessera.schedule.grains import grain_of
from tessera.schedule.product_sides import MOVED, Side
from tessera.schedule.sizes import size_of
from tessera.schedule.types import Axis, BufType


def add_sums(side: Side, other: Side) -> None:
    """Gives an operand sums along the depth, if the other one is moved."""
    if not other.is_moved:
        return
    # Of rows, blocks that are not whole read some more.
    whole = ceildiv(side.axis.extent, side.size) * side.size
    extents = {axis.name: axis.extent for axis in (*side.batch, *side.axes())}
    extents[side.product.row.name] = whole
    shape = tuple([extents[name] for name in sum_names(side)])
    side.sums = Value(BufType(shape, side.product.op.dtype))


def sum_names(side: Side) -> list[str]:
    """The axes of the sums."""
    p = side.product
    own = [side.axis.name] if side.is_left else [p.jo, p.ji]
    return [*[axis.name for axis in side.batch], *own]


def row_sums(side: Side, target: Value) -> ops.Nest:
    """The nest that sums the rows of a first operand, packed or not."""
    p, loc = side.product, side.product.op.loc
    fresh = Names({*p.facts, *[name for axis in p.nest.axes for name in symbols(axis.extent)]})
    kept = [Axis(fresh.fresh("p"), axis.extent) for axis in (*side.batch, side.axis)]
    deep = [Axis(fresh.fresh("p"), axis.extent) for axis in p.op.axes]
    olds, news = (*side.batch, side.axis, *p.op.axes), (*kept, *deep)
    copy = Copy({old.name: sym(new.name) for old, new in zip(olds, news, strict=True)})
    inner: list[Op] = [copy.op(op) for op in (*side.scalars(), *side.code())]
    wide = ops.Cast(copy.find(side.value), p.op.dtype, loc=loc)
    body = Block([], behind([*inner, wide], (wide.result,)), (wide.result,))
    total = ops.Reduce(tuple(deep), SCALARS["add"], body, loc=loc)
    moved = ops.Const(MOVED, p.op.dtype, loc=loc)
    times = ops.Map((total.result, moved.result), SCALARS["mul"], loc=loc)
    index = tuple([sym(axis.name) for axis in kept])
    store = ops.Store(target, times.result, (), index, loc=loc)
    return ops.Nest(tuple(kept), body=Block([], [total, moved, times, store], ()), loc=loc)


def column_sums(side: Side, packed: Value, target: Value) -> ops.Nest:
    """The nest that sums the columns of a packed second operand."""
    p, loc = side.product, side.product.op.loc
    axes, names = side.axes(), sum_names(side)
    moved = ops.Const(MOVED, p.elements[0], loc=loc)
    load = ops.Load(packed, (), side.place(), loc=loc)
    body = Block([], [moved, load], (moved.result, load.result))
    # As a product with a row of 128s it is one of groups too.
    summed = ops.Contract(p.depth_axes, (), tuple(names[-2:]), p.op.dtype, body, loc=loc)
    store = ops.Store(target, summed.result, (), tuple([sym(n) for n in names]), loc=loc)
    found = tuple([axis for axis in axes if axis.name in names])
    chunk = [0 if axis.extent == 1 else 1 for axis in found[:-1]]
    programs = prod([size_of(axis.extent) for axis in found[:-1]])
    return ops.Nest(
        found,
        tile=(*[1] * (len(found) - 1), side.size),
        chunk=(*chunk, 0),
        reduce_tile=p.group,
        body=Block([], [summed, store], ()),
        loc=loc,
        grain=grain_of(programs, p.depth * side.size // p.lanes),
    )
