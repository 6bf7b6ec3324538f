"""Transposed arrays that reductions read beside arrays as they lie.

    reduce j: f(x.T[i, j], y[i, j])

Lanes of such a loop go along the rows of `x` or of `y`, and take an element from each of as many
lines of the other one. A copy of `x.T`, which squares in registers make, costs a fraction of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from tessera.graph.ops.contract import DotGeneral
from tessera.graph.ops.elementwise import Elementwise
from tessera.graph.ops.reduce import Reduce
from tessera.graph.ops.reshape import Transpose
from tessera.ir.core import Value
from tessera.ir.intexpr import sym
from tessera.schedule.cost import hint, points, tensor
from tessera.schedule.nestplan import Key, NestPlan

LEAST = 32
"""Elements of a row, and rows, below which what is gathered lies in a few lines of a near cache."""

DEEP = 8
"""Operations on elements that are looked through."""

Use = tuple[NestPlan, Key]


def lies_across(value: Value, uses: Mapping[Value, Iterable[Use]]) -> bool:
    """Whether a value is a transposed array that is to be copied for its uses.

    Args:
        value: the value.
        uses: where values are needed of which it is not known yet what becomes of them; what has
            been stored is loaded by nests already.
    """
    if not isinstance(value.op, Transpose):
        return False
    shape = tensor(value).shape
    moved = [p for p, dim in zip(value.op.perm, shape, strict=True) if dim != 1]
    if not moved or moved[-1] == max(moved):
        return False
    if hint(shape[-1]) < LEAST or points(shape) < LEAST * hint(shape[-1]):
        return False
    nests = {nest for nest, key in uses.get(value, ()) if _is_whole(nest, key)}
    if not nests:
        return False
    loads = [(nest, one.key) for nest in nests for one in nest.members if one.op is None]
    if any(_is_whole(nest, key) for nest, key in loads):
        return True
    return any(
        nest in nests and _is_whole(nest, key) and _reads_straight(v, DEEP)
        for v, own in uses.items()
        if v is not value
        for nest, key in own
    )


def _is_whole(nest: NestPlan, key: Key) -> bool:
    """Whether a reduction reads each element of a value once, at the place that its axes are."""
    region = key.region
    if region is None or region.contracts or key.guard:
        return False
    index = [i for i, dim in zip(key.index, tensor(key.value).shape, strict=True) if dim != 1]
    names = {sym(axis.name) for axis in (*nest.axes, *region.axes) if axis.extent != 1}
    return len(index) == len(names) and {*index} == names


def _reads_straight(value: Value, depth: int) -> bool:
    """Whether a value is an array in memory, or an element of it computed of one at its place."""
    op = value.op
    if not isinstance(op, Elementwise):
        return op is None or isinstance(op, (DotGeneral, Reduce))
    shape = tensor(value).shape
    same = [v for v in op.operands if tensor(v).shape == shape]
    return depth > 0 and any(_reads_straight(v, depth - 1) for v in same)
