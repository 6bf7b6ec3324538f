"""What the stated order of a reduction asks of its schedule; see `ir/order.py`."""

from __future__ import annotations

from collections.abc import Iterable

from tessera.ir.core import Op
from tessera.ir.intexpr import Dim, Facts
from tessera.ir.order import Order
from tessera.schedule import ops


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
