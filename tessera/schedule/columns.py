"""Arrays of few columns that are put together from other arrays, as colours and points are.

    stack([f(x), g(x), h(x)], axis=-1)

A nest for each column would write every third element, and compute again what the columns share.
One nest over the rows stores all elements of a row:

    nest i: y[i, 0] = f(x[i]); y[i, 1] = g(x[i]); y[i, 2] = h(x[i])

`tile/lowering/columns.py` writes them as whole vectors.
"""

from __future__ import annotations

from collections.abc import Sequence
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

MOST_OF_ONE = 16
"""Columns where two of three parts at least are one column. Wider parts are rows that are copied
faster as they are than put together from columns. More would take more than a tile has lanes."""

DEAR = 16
"""Elementwise work that is worth lanes along the rows, where what it reads was put together before:
columns that are read one by one."""

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
    if not rows or not isinstance(count, int) or not 1 < count <= MOST_OF_ONE:
        return None
    path = _joined(fusion, op)
    if not path:
        return None
    if count > MOST_COLUMNS and not (fusion.strategy.computes_operands and _pays(path, count)):
        return None  # threads of a GPU that write whole rows are far from what others write
    nest = fusion.new_nest(rows)
    for column in range(count):
        key = Key(value, (*nest.index, column), (), None)
        nest.stores.append(StorePlan(value, key, key.index))
        fusion.expand(nest, key, op, False)
    return nest


def _pays(path: Sequence[Op], count: int) -> bool:
    """Whether one nest for many columns pays."""
    *behind, joined = path
    assert isinstance(joined, Concatenate)
    costs = [op.row.cost for op in behind if isinstance(op, Elementwise) and op.scalar]
    return 3 * len(joined.xs) >= 2 * count and (not behind or max(costs, default=0) >= DEAR)


def _joined(fusion: Fusion, op: GraphOp) -> list[Op]:
    """The concatenation of columns that an op is, or with whose elements it does something and
    nothing else does, behind the ops that do so; nothing if there is none."""
    costs = fusion.costs
    if isinstance(op, Concatenate):
        is_last = op.axis == tensor(op.result).rank - 1
        return [op] if is_last and costs.contracts.isdisjoint(op.xs) else []
    if not fusion.strategy.computes_operands:
        return []  # a GPU's threads write neighbours, each chooses its column
    shape = tensor(op.results[0]).shape
    stack: list[Op] = [op]
    seen: list[Op] = []
    for _ in range(MOST_STEPS):
        if not stack:
            break
        one = stack.pop()
        if not isinstance(one, Elementwise) or not costs.reduces.isdisjoint(one.results):
            continue
        seen.append(one)
        for x in one.operands:
            if x.op is None or costs.counts[x] > 1 or tensor(x).shape != shape:
                continue
            if isinstance(x.op, Concatenate):
                is_last = x.op.axis == len(shape) - 1 and costs.reduces.isdisjoint(x.op.xs)
                return [*seen, x.op] if is_last else []
            stack.append(x.op)
    return []
