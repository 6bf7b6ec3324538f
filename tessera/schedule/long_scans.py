"""Running sums that state an order with parts, in nests of their own: `split_scan` makes the parts
of a nest that holds nothing else."""

from __future__ import annotations

from typing import Any

from tessera.graph.ops.cumulative import Cumulative
from tessera.ir.core import Block, Op, Value
from tessera.ir.walk import expand_ops
from tessera.schedule.scatter_in_order import emit_traced, stored


def apart(block: Block) -> Block:
    """The block, whose long running sums share no loop with what makes or reads them."""
    return expand_ops(block, _is_long, _stored)


def _is_long(op: Op) -> bool:
    return isinstance(op, Cumulative) and op.order is not None and op.order.split > 0


def _stored(op: Op, code: list[Op]) -> list[Value]:
    """Emits the op between what is stored."""

    def run(*given: Any) -> list[Any]:
        assert isinstance(op, Cumulative)
        return [stored(op.bind(*[stored(x) for x in given]))]

    return emit_traced(run, op, "long_scan", code)
