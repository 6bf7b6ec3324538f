"""Bounds of integers: what scalar functions make of the least and the greatest value of their
operands. A value that could wrap around has none.
"""

from __future__ import annotations

from collections.abc import Callable

from tessera.dtypes import DType, Kind

Bounds = tuple[int, int]
"""The least and the greatest value."""


def limits(dtype: DType) -> Bounds:
    """What the dtype holds."""
    if dtype.kind is Kind.INT:
        return -(1 << (dtype.bits - 1)), (1 << (dtype.bits - 1)) - 1
    return 0, (1 << dtype.bits) - 1


def held(found: Bounds | None, dtype: DType) -> Bounds | None:
    """The bounds, if the dtype holds all that is between."""
    if found is None:
        return None
    low, high = limits(dtype)
    return found if low <= found[0] and found[1] <= high else None


def combined(name: str, a: Bounds | None, b: Bounds | None, dtype: DType) -> Bounds | None:
    """Bounds of a function of two integers of a dtype.

    >>> from tessera.dtypes import int8
    >>> combined("add", (0, 100), (1, 27), int8)
    (1, 127)
    >>> combined("add", (0, 100), (1, 28), int8)
    """
    rule = _RULES.get(name)
    if rule is None:
        return None
    if name in _BY_SECOND and b is not None:
        a = a or limits(dtype)
    return None if a is None or b is None else held(rule(a, b), dtype)


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
