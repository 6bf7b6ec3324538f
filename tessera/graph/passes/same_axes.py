"""Which axes of an op's operands and results are the same."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeAlias

from tessera.graph.ops.contract import DotGeneral
from tessera.graph.ops.elementwise import Elementwise
from tessera.graph.ops.rearrange import Broadcast, Reshape, Transpose
from tessera.graph.ops.reduce import Reduce
from tessera.ir.core import Op, Value, tensor_type
from tessera.ir.intexpr import Dim

if TYPE_CHECKING:
    from tessera.graph.ops.blocks import Cut

Axis: TypeAlias = tuple[Value, int]
"""An axis of a value."""


def axis_pairs(op: Op) -> list[tuple[Axis, Axis]]:
    """Axes of operands and results of an op that are the same."""
    result = op.results[0]
    if isinstance(op, Elementwise):
        rank = range(tensor_type(result).rank)
        return [((v, k), (result, k)) for v in op.operands for k in rank]
    if isinstance(op, Broadcast):
        found = [(k, axis) for k, axis in enumerate(op.dims)]
        before, after = tensor_type(op.x).shape, op.shape
        return [((op.x, k), (result, a)) for k, a in found if before[k] == after[a]]
    if isinstance(op, Transpose):
        return [((op.x, k), (result, axis)) for axis, k in enumerate(op.perm)]
    if isinstance(op, Reshape):
        kept = same_axes(tensor_type(op.x).shape, op.shape) or []
        return [((op.x, a), (result, b)) for a, b in kept]
    if isinstance(op, Reduce):
        left = [k for k in range(tensor_type(op.x).rank) if k not in op.axes]
        return [((op.x, k), (result, axis)) for axis, k in enumerate(left)]
    if isinstance(op, DotGeneral):
        return _product_pairs(op)
    return []


def _product_pairs(op: DotGeneral) -> list[tuple[Axis, Axis]]:
    result = op.result
    pairs: list[tuple[Axis, Axis]] = []
    for place, (a, b) in enumerate(zip(*op.batch_axes, strict=True)):
        pairs += [((op.lhs, a), (result, place)), ((op.rhs, b), (result, place))]
    pairs += [((op.lhs, a), (op.rhs, b)) for a, b in zip(*op.contract, strict=True)]
    at = len(op.batch_axes[0])
    for side, value in enumerate((op.lhs, op.rhs)):
        for axis in op.free(side):
            pairs.append(((value, axis), (result, at)))
            at += 1
    return pairs


def same_axes(before: Sequence[Dim], after: Sequence[Dim]) -> list[tuple[int, int]] | None:
    """The axes that stay what they are where only axes of length 1 come and go."""
    left = [k for k, dim in enumerate(before) if dim != 1]
    right = [k for k, dim in enumerate(after) if dim != 1]
    pairs = list(zip(left, right, strict=False))
    same = len(left) == len(right) and all(before[a] == after[b] for a, b in pairs)
    return pairs if same else None


def moved(op: Broadcast | Reshape | Transpose, cut: Cut) -> Cut | None:
    """The cut of what has the same elements elsewhere, given the operand's."""
    before, after = tensor_type(op.x).shape, tensor_type(op.result).shape
    if isinstance(op, Transpose):
        return tuple([cut[k] for k in op.perm])
    if isinstance(op, Broadcast):
        found = [-1] * len(after)
        for k, axis in enumerate(op.dims):
            found[axis] = cut[k]
        return tuple(found)
    pairs = same_axes(before, after)
    if pairs is None:
        return None
    found = [-1] * len(after)
    for k, axis in pairs:
        found[axis] = cut[k]
    return tuple(found)


def moved_back(op: Broadcast | Reshape | Transpose, cut: Cut) -> Cut | None:
    """The cut of the operand, given that of the result."""
    before, after = tensor_type(op.x).shape, tensor_type(op.result).shape
    if isinstance(op, Transpose):
        found = [-1] * len(before)
        for k, axis in enumerate(op.perm):
            found[axis] = cut[k]
        return tuple(found)
    if isinstance(op, Broadcast):
        pairs = [(k, axis) for k, axis in enumerate(op.dims) if before[k] == after[axis]]
    else:
        pairs = same_axes(before, after)
        if pairs is None:
            return None
    found = [-1] * len(before)
    for k, axis in pairs:
        found[k] = cut[axis]
    return tuple(found)


def operands_of(op: DotGeneral, cut: Cut) -> tuple[Cut, Cut]:
    """The cuts of a product's operands, given that of the result."""
    count = len(op.batch_axes[0])
    free = [op.free(0), op.free(1)]
    starts = (count, count + len(free[0]))
    cuts: list[Cut] = []
    for side, value in enumerate(op.operands):
        found = [-1] * tensor_type(value).rank
        for place, axis in enumerate(op.batch_axes[side]):
            found[axis] = cut[place]
        for place, axis in enumerate(free[side]):
            found[axis] = cut[starts[side] + place]
        cuts.append(tuple(found))
    return cuts[0], cuts[1]
