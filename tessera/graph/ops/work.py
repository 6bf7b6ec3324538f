"""About how much an op has to do, and how much memory a value takes."""

from __future__ import annotations

from collections.abc import Sequence

from tessera.graph.ops.contract import DotGeneral
from tessera.graph.ops.elementwise_base import Elementwise
from tessera.ir.core import Op, Value, tensor_type
from tessera.ir.intexpr import Dim


def count(dims: Sequence[Dim]) -> int:
    """How many elements an array has, where each unknown dim counts as 1."""
    total = 1
    for dim in dims:
        total *= dim if isinstance(dim, int) else 1
    return total


def nbytes(value: Value) -> int:
    """How many bytes they take."""
    return count(tensor_type(value).shape) * tensor_type(value).dtype.np.itemsize


def work(op: Op) -> int:
    """About how many additions an op is worth, those of loops' bodies counted once."""
    if isinstance(op, DotGeneral):
        depth = count([tensor_type(op.operands[0]).shape[k] for k in op.contract[0]])
        return 2 * depth * count(tensor_type(op.results[0]).shape)
    if op.regions:
        return sum([work(inner) for block in op.regions for inner in block.ops])
    cost = op.row.cost if isinstance(op, Elementwise) and op.scalar else 1
    return cost * max([count(tensor_type(v).shape) for v in (*op.operands, *op.results)])
