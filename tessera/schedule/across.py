"""Arrays that are copied for reductions, whose lanes would take one element after the other.

Transposed ones, beside arrays as they lie:

    reduce j: f(x.T[i, j], y[i, j])

Lanes of such a loop go along the rows of `x` or of `y`, and take an element from each of as many
lines of the other one. A copy of `x.T`, which squares in registers make, costs a fraction of it.

Arrays whose elements are repeated, `reduce j: f(x[i, j // 2])`: where they are written, an axis of
their own has the copies (`axes.split`), which a reduction along both does not have.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from tessera.graph.ops.contract import DotGeneral
from tessera.graph.ops.elementwise import Elementwise
from tessera.graph.ops.rearrange import Broadcast
from tessera.graph.ops.reduce import Reduce
from tessera.graph.ops.reshape import Reshape, Transpose
from tessera.ir.core import Value
from tessera.ir.intexpr import sym, symbols
from tessera.schedule.cost import hint, points, tensor
from tessera.schedule.nestplan import Key, NestPlan

LEAST = 32
"""Elements of a row, and rows, below which what is gathered lies in a few lines of a near cache."""

DEEP = 8
"""Operations on elements that are looked through."""

Use = tuple[NestPlan, Key]


def reason_to_copy(value: Value, uses: Mapping[Value, Iterable[Use]]) -> str:
    """Why a value is to be copied for its uses; nothing where it is not.

    Args:
        value: the value.
        uses: where values are needed of which it is not known yet what becomes of them; what has
            been stored is loaded by nests already.
    """
    if _lies_across(value, uses):
        return "it is reduced with what lies the other way in memory"
    if _repeats_along(value, uses.get(value, ())):
        return "it is reduced along what repeats its elements"
    return ""


def _lies_across(value: Value, uses: Mapping[Value, Iterable[Use]]) -> bool:
    """Whether it is a transposed array, and read beside one as it lies."""
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


def _repeats_along(value: Value, uses: Iterable[Use]) -> bool:
    """Whether its elements are repeated one by one, and reduced along these. The largest of 1024
    numbers, each of them twice, takes a Zen 5 a twentieth of the time if they are stored."""
    if not isinstance(value.op, Reshape) or not isinstance(value.op.x.op, Broadcast):
        return False
    wide, spread = tensor(value.op.x).shape, value.op.x.op
    rank, shape = len(wide), tensor(value).shape
    if not shape or rank < 2 or 1 in wide[-2:] or shape[-1] != wide[-2] * wide[-1]:
        return False
    is_repeated = rank - 1 not in spread.dims and rank - 2 in spread.dims
    if not is_repeated or hint(shape[-1]) < LEAST or points(shape) < LEAST * LEAST:
        return False
    return any(
        key.region is not None and {axis.name for axis in key.region.axes} & symbols(key.index[-1])
        for _, key in uses
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
