"""Arrays of few columns that are put together from other arrays, as colours and points are.

    stack([f(x), g(x), h(x)], axis=-1)

A nest for each column would write every third element, and compute again what the columns share.
One nest over the rows stores all elements of a row:

    nest i: y[i, 0] = f(x[i]); y[i, 1] = g(x[i]); y[i, 2] = h(x[i])

`tile/lowering/columns.py` writes them as whole vectors.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tessera.graph.ops.base import GraphOp
from tessera.graph.ops.elementwise import Elementwise
from tessera.graph.ops.rearrange import Concatenate
from tessera.ir.core import Op
from tessera.schedule.cost import tensor
from tessera.schedule.nestplan import Key, NestPlan, StorePlan

if TYPE_CHECKING:
    from tessera.schedule.fusion import Fusion

MOST_COLUMNS = 4
"""Columns of such an array."""

MOST_STEPS = 16
"""Elementwise ops that may follow a concatenation."""


def join_nests(fusion: Fusion, op: GraphOp) -> list[NestPlan]:
    """The nests that store a result which other arrays are joined to: one over rows where these are
    short, or one for each array; none if it is no such result."""
    columns = _column_nest(fusion, op) if fusion.strategy.joins_columns else None
    if columns is not None:
        return [columns]
    return _part_nests(fusion, op) if isinstance(op, Concatenate) else []


def _part_nests(fusion: Fusion, op: Concatenate) -> list[NestPlan]:
    offsets = op.offsets([tensor(x).shape for x in op.xs])
    nests: list[NestPlan] = []
    for x, offset in zip(op.xs, offsets, strict=False):
        nest = fusion.new_nest(tensor(x).shape)
        key = fusion.use(nest, x, nest.index, (), None, True)
        index = tuple([i + offset if k == op.axis else i for k, i in enumerate(nest.index)])
        nest.stores.append(StorePlan(op.result, key, index))
        nests.append(nest)
    return nests


def _column_nest(fusion: Fusion, op: GraphOp) -> NestPlan | None:
    """The nest over rows that stores the columns of an op's result, if there is one."""
    (value,) = op.results
    *rows, count = tensor(value).shape or (1,)
    if not rows or not isinstance(count, int) or not 1 < count <= MOST_COLUMNS:
        return None
    if not _joins_columns(fusion, op):
        return None
    nest = fusion.new_nest(rows)
    for column in range(count):
        key = Key(value, (*nest.index, column), (), None)
        nest.stores.append(StorePlan(value, key, key.index))
        fusion.expand(nest, key, op, False)
    return nest


def _joins_columns(fusion: Fusion, op: GraphOp) -> bool:
    """Whether an op is a concatenation of columns, or does something with the elements of one that
    nothing else needs."""
    costs = fusion.costs
    if isinstance(op, Concatenate):
        is_last = op.axis == tensor(op.result).rank - 1
        return is_last and costs.contracts.isdisjoint(op.xs)
    if not fusion.strategy.computes_operands:
        return False  # a GPU's threads write neighbours, each chooses its column
    shape = tensor(op.results[0]).shape
    stack: list[Op] = [op]
    for _ in range(MOST_STEPS):
        if not stack:
            break
        one = stack.pop()
        if not isinstance(one, Elementwise) or not costs.reduces.isdisjoint(one.results):
            continue
        for x in one.operands:
            if x.op is None or costs.counts[x] > 1 or tensor(x).shape != shape:
                continue
            if isinstance(x.op, Concatenate):
                return x.op.axis == len(shape) - 1 and costs.reduces.isdisjoint(x.op.xs)
            stack.append(x.op)
    return False
