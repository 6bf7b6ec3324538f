"""Elements of integer values as formulas, and numbers as values."""

from __future__ import annotations

from tessera.dtypes import DType
from tessera.graph.ops.generate import Constant, Dense, Iota
from tessera.graph.ops.rearrange import Broadcast, Reshape, Transpose
from tessera.ir.core import Value
from tessera.ir.intexpr import Dim
from tessera.schedule.ops import Number


def formula(value: Value, index: tuple[Dim, ...]) -> Dim | None:
    """The element of an iota or an integer constant, also behind a few rearrangements."""
    for _ in range(8):
        op = value.op
        if isinstance(op, Iota):
            return op.expr(index)
        if isinstance(op, Constant):
            items = op.value.array.reshape(-1)
            return int(items[0]) if len(items) == 1 else None
        if not isinstance(op, (Broadcast, Reshape, Transpose)):
            return None
        (source,) = op.sources(index)
        value, index = op.x, source.index
    return None


def constant_value(value: Number, dtype: DType) -> Value:
    """A constant that is no part of the Graph."""
    return Constant(Dense.of(value, dtype)).result
