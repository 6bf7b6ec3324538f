"""Bounds of integer values: what a thread's number, loops with constant ends and arithmetic on them
can be. A value that could wrap around has none.
"""

from __future__ import annotations

from collections.abc import Mapping

from tessera.ir.core import Op, Value
from tessera.ir.intvalues import Bounds, combined, held
from tessera.ir.types import ScalarType
from tessera.target import gpu_ops as g
from tessera.target import ops as t

MOST_BLOCKS = (1 << 31) - 1
MOST_THREADS = 1024


def bounds_of(op: Op, known: Mapping[Value, Bounds]) -> Bounds | None:
    """Bounds of an op's result, from those of its operands."""
    if isinstance(op, t.Const):
        is_integer = isinstance(op.type, ScalarType) and op.type.dtype.is_integer
        return (int(op.value), int(op.value)) if is_integer else None
    if isinstance(op, g.ThreadId):
        return 0, MOST_THREADS - 1
    if isinstance(op, g.BlockId):
        return 0, MOST_BLOCKS - 1
    if isinstance(op, t.Cast):
        found = known.get(op.x)
        return held(found, op.dtype) if found is not None and op.dtype.is_integer else None
    if not isinstance(op, t.Map) or not isinstance(op.result.type, ScalarType):
        return None
    dtype = op.result.type.dtype
    if not dtype.is_integer:
        return None
    if op.fn.name == "select":
        a, b = known.get(op.args[1]), known.get(op.args[2])
        return None if a is None or b is None else (min(a[0], b[0]), max(a[1], b[1]))
    if len(op.args) != 2:
        return None
    return combined(op.fn.name, known.get(op.args[0]), known.get(op.args[1]), dtype)


def decided(name: str, a: Bounds, b: Bounds) -> bool | None:
    """A comparison of any two values within bounds, if it has one answer."""
    if name in ("gt", "ge"):
        return decided("lt" if name == "gt" else "le", b, a)
    if name == "lt":
        return True if a[1] < b[0] else False if a[0] >= b[1] else None
    if name == "le":
        return True if a[1] <= b[0] else False if a[0] > b[1] else None
    if a[1] < b[0] or b[1] < a[0]:
        return name == "ne"
    return None
