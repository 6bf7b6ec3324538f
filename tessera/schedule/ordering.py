"""What the stated order of a reduction asks of its schedule, and the order that a schedule makes
where none is stated; see `ir/order.py`."""

from __future__ import annotations

from collections.abc import Iterable

from tessera.ir.core import Block, Op, Value, scalar_dtype
from tessera.ir.intexpr import Dim, Facts
from tessera.ir.order import SEQUENCE, Order, Tree
from tessera.ir.scalar import ScalarFn
from tessera.ir.walk import walk
from tessera.schedule import ops
from tessera.schedule.block_ops import Each


def stated_part(found: Iterable[Op], extent: Dim, facts: Facts) -> int | None:
    """The terms of a part of the reductions of a nest; 0 where they are not cut, None where no
    order is stated.

    Args:
        found: the reductions.
        extent: of the longest axis.
        facts: what is known of symbolic dims.
    """
    orders = [op.order for op in found if isinstance(op, ops.Reduce) and op.order is not None]
    if not orders:
        return None
    part = max(order.split for order in orders)
    upper = extent if isinstance(extent, int) else facts.upper(extent)
    return part if upper is None or upper > part else 0


def stated_width(found: Iterable[Op]) -> int:
    """The lanes of the reductions of a nest; 0 where no order is stated."""
    orders = [op.order for op in found if isinstance(op, ops.Reduce) and op.order is not None]
    return max([order.width for order in orders], default=0)


def is_cut(op: Op, part: int) -> bool:
    """Whether the order of a reduction is one in such parts."""
    order = op.order if isinstance(op, ops.Reduce) else None
    return order is None or order.split == part


def whole(order: Order | None) -> Order | None:
    """The order within a part."""
    return None if order is None else Order(order.tree, 0, order.width)


# --- what a schedule makes -------------------------------------------------------------------

EXACT = frozenset({"min", "max", "and", "or", "xor"})
"""Rows of the scalar table that do not round: their results have no order."""

LOOPING = (ops.Reduce, ops.ArgReduce, ops.Contract)
"""What is a loop in each term of a reduction, which then has no lanes."""


def rounds(op: Op) -> bool:
    """Whether an op accumulates what rounds, so that its order matters."""
    match op:
        case ops.Store():
            return op.rounds
        case ops.Contract():
            return op.dtype.is_inexact
        case ops.Reduce() | ops.Scan():
            return _does_round(op.fn, op.body.outputs[0])
        case _:
            return False


def _does_round(fn: ScalarFn, value: Value) -> bool:
    return fn.name not in EXACT and scalar_dtype(value).is_inexact


def with_orders(code: Iterable[Op]) -> list[Op]:
    """The ops of a kernel whose nests have tiles, with the order of all that they accumulate."""
    found: list[Op] = []
    for op in code:
        if isinstance(op, ops.Nest):
            found.append(_stated(op))
        elif isinstance(op, Each):
            found.append(op.with_nests([_stated(nest) for nest in op.nests]))
        else:
            found.append(op)
    return found


def _stated(nest: ops.Nest) -> ops.Nest:
    if all(getattr(op, "order", None) or not rounds(op) for op in walk(nest.body)):
        return nest
    new = nest.rebuild(regions=[_Stating(nest).block(nest.body)])
    assert isinstance(new, ops.Nest)
    return new


class _Stating:
    """Writes the orders into the body of a nest."""

    def __init__(self, nest: ops.Nest) -> None:
        self.width = nest.reduce_tile
        self.in_block = nest.warps > 0
        self.env: dict[Value, Value] = {}

    def block(self, block: Block) -> Block:
        """A region."""
        code: list[Op] = []
        for op in block.ops:
            regions = [self.block(region) for region in op.regions]
            fields = {}
            if "order" in op.attr_names and op.attrs["order"] is None and rounds(op):
                fields["order"] = self.order(op)
            operands = [self.env.get(v, v) for v in op.operands]
            if fields or regions or operands != [*op.operands]:
                new = op.rebuild(operands, regions, **fields)
                self.env.update(zip(op.results, new.results, strict=True))
                code.append(new)
            else:
                code.append(op)
        return Block(block.args, code, [self.env.get(v, v) for v in block.outputs])

    def order(self, op: Op) -> Order:
        """The order that the tiles of the nest give an op."""
        if self.width < 2 or isinstance(op, ops.Store):
            return SEQUENCE
        if isinstance(op, ops.Scan):
            return Order(Tree.BLOCKS, 0, self.width)
        if any(isinstance(one, LOOPING) for region in op.regions for one in walk(region)):
            return SEQUENCE
        is_product = isinstance(op, ops.Reduce) and op.fn.name != "add"
        if is_product and scalar_dtype(op.results[0]).is_complex:
            return SEQUENCE
        if isinstance(op, ops.Contract):
            widest = max(scalar_dtype(v).bits for v in op.body.outputs)
            if self.in_block or widest < op.dtype.bits:
                return Order(Tree.BLOCKS, 0, self.width)
        return Order(Tree.WARPS if self.in_block else Tree.HALVES, 0, self.width)
