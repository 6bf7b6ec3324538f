"""Products of a GPU that state an order, and have one row or one column.

A row of many is computed by matrix instructions, or as they would; one alone as a sum of products,
which is faster, and rounds otherwise. Where the order is stated, the row is one of two:

    %r = graph.dot_general(%x, %w) {contract=[[1], [0]], order=...} : f32[1, N]     # %x : f32[1, K]
    ==>
    %r = graph.dot_general(%x twice, %w) {contract=[[2], [0]], order=...} : f32[2, 1, N], the first
"""

from __future__ import annotations

from typing import Any

from tessera.graph.ops.contract import DotGeneral
from tessera.graph.ops.rearrange import slice_axis
from tessera.graph.ops.reshape import broadcast, squeeze
from tessera.ir.core import Block, Op, Value
from tessera.ir.walk import expand_ops
from tessera.schedule.cost import tensor
from tessera.schedule.scatter_in_order import emit_traced, stored


def with_rows(block: Block) -> Block:
    """The block, whose products that state an order have rows and columns."""
    return expand_ops(block, lambda op: bool(_single(op)), _widen)


def _single(op: Op) -> list[int]:
    """The sides of a product that have one row, or one column."""
    if not isinstance(op, DotGeneral) or op.order is None:
        return []
    return [
        side
        for side, value in enumerate((op.lhs, op.rhs))
        if all(tensor(value).shape[k] == 1 for k in op.free(side))
    ]


def _widen(op: Op, code: list[Op]) -> list[Value]:
    """Emits the product of more rows, and takes the first."""
    assert isinstance(op, DotGeneral)
    sides = _single(op)

    def run(*given: Any) -> list[Any]:
        operands = list(given)
        contract, batch = [list(op.contract), list(op.batch_axes)]
        for side in sides:
            shape = operands[side].shape
            operands[side] = broadcast(operands[side], (2, *shape), range(1, len(shape) + 1))
            contract[side] = tuple([k + 1 for k in contract[side]])
            batch[side] = tuple([k + 1 for k in batch[side]])
        found = stored(op.bind(*operands, contract=tuple(contract), batch_axes=tuple(batch)))
        place = len(op.batch_axes[0])
        places = {0: place, 1: place + len(op.free(0)) + (0 in sides)}
        for side in sorted(sides, reverse=True):
            found = squeeze(slice_axis(found, places[side], 0, 1), (places[side],))
        return [found]

    return emit_traced(run, op, "product_rows", code)
