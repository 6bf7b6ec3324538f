"""Bounds of integer values: what a thread's number, loops with constant ends and arithmetic on them
can be. A value that could wrap around has none.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from tessera.dtypes import DType, Kind
from tessera.ir.core import Op, Value
from tessera.ir.types import ScalarType
from tessera.target import gpu_ops as g
from tessera.target import ops as t

Bounds = tuple[int, int]
"""The least and the greatest value."""

MOST_BLOCKS = (1 << 31) - 1
MOST_THREADS = 1024


def limits(dtype: DType) -> Bounds:
    """What the dtype holds."""
    if dtype.kind is Kind.INT:
        return -(1 << (dtype.bits - 1)), (1 << (dtype.bits - 1)) - 1
    return 0, (1 << dtype.bits) - 1


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
        return _held(found, op.dtype) if found is not None and op.dtype.is_integer else None
    if not isinstance(op, t.Map) or not isinstance(op.result.type, ScalarType):
        return None
    dtype = op.result.type.dtype
    if not dtype.is_integer:
        return None
    if op.fn.name == "select":
        a, b = known.get(op.args[1]), known.get(op.args[2])
        return None if a is None or b is None else (min(a[0], b[0]), max(a[1], b[1]))
    rule = _RULES.get(op.fn.name)
    if rule is None or len(op.args) != 2:
        return None
    a, b = known.get(op.args[0]), known.get(op.args[1])
    if op.fn.name in _BY_SECOND and b is not None:
        a = a or limits(dtype)
    return None if a is None or b is None else _held(rule(a, b), dtype)


def _held(found: Bounds | None, dtype: DType) -> Bounds | None:
    """The bounds, if the dtype holds all that is between."""
    if found is None:
        return None
    low, high = limits(dtype)
    return found if low <= found[0] and found[1] <= high else None


def _mul(a: Bounds, b: Bounds) -> Bounds:
    products = [x * y for x in a for y in b]
    return min(products), max(products)


def _shl(a: Bounds, b: Bounds) -> Bounds | None:
    if not 0 <= b[0] <= b[1] < 64:
        return None
    return _mul(a, (1 << b[0], 1 << b[1]))


def _shr(a: Bounds, b: Bounds) -> Bounds | None:
    if not 0 <= b[0] <= b[1] < 64:
        return None
    shifted = [x >> k for x in a for k in b]
    return min(shifted), max(shifted)


def _and(a: Bounds, b: Bounds) -> Bounds | None:
    if a[0] >= 0 and b[0] >= 0:
        return 0, min(a[1], b[1])
    if b[0] >= 0:
        return 0, b[1]
    return (0, a[1]) if a[0] >= 0 else None


def _or(a: Bounds, b: Bounds) -> Bounds | None:
    if a[0] < 0 or b[0] < 0:
        return None
    return 0, (1 << max(a[1].bit_length(), b[1].bit_length())) - 1


def _div(a: Bounds, b: Bounds) -> Bounds | None:
    if a[0] < 0 or b[0] < 1:
        return None
    return a[0] // b[1], a[1] // b[0]


def _rem(a: Bounds, b: Bounds) -> Bounds | None:
    if b[0] < 1:
        return None
    if a[0] >= 0:
        return 0, min(a[1], b[1] - 1)
    return -(b[1] - 1), b[1] - 1


def _mod(a: Bounds, b: Bounds) -> Bounds | None:
    if b[0] < 1:
        return None
    return 0, min(a[1], b[1] - 1) if a[0] >= 0 else b[1] - 1


_RULES: dict[str, Callable[[Bounds, Bounds], Bounds | None]] = {
    "add": lambda a, b: (a[0] + b[0], a[1] + b[1]),
    "sub": lambda a, b: (a[0] - b[1], a[1] - b[0]),
    "mul": _mul,
    "shl": _shl,
    "shr": _shr,
    "and": _and,
    "or": _or,
    "xor": _or,
    "trunc_div": _div,
    "floordiv": _div,
    "rem": _rem,
    "mod": _mod,
    "min": lambda a, b: (min(a[0], b[0]), min(a[1], b[1])),
    "max": lambda a, b: (max(a[0], b[0]), max(a[1], b[1])),
}

_BY_SECOND = ("and", "mod", "rem", "min", "max")
"""Functions whose second operand alone bounds them."""


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
