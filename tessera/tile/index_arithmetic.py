"""Index arithmetic of interpreters, on Python ints."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping

_LIMIT = 1 << 63


def wrap(value: int) -> int:
    """An integer modulo 2**64, as i64."""
    if -_LIMIT <= value < _LIMIT:
        return value
    return (value + _LIMIT) % (2 * _LIMIT) - _LIMIT


def _add(a: int, b: int) -> int:
    found = a + b
    return found if -_LIMIT <= found < _LIMIT else wrap(found)


def _sub(a: int, b: int) -> int:
    found = a - b
    return found if -_LIMIT <= found < _LIMIT else wrap(found)


def _mul(a: int, b: int) -> int:
    found = a * b
    return found if -_LIMIT <= found < _LIMIT else wrap(found)


INDEX_FNS: Mapping[str, Callable[[int, int], int | bool]] = {
    "add": _add,
    "sub": _sub,
    "mul": _mul,
    "floordiv": lambda a, b: wrap(a // b) if b else 0,
    "mod": lambda a, b: a % b if b else 0,
    "min": min,
    "max": max,
    "lt": operator.lt,
    "le": operator.le,
    "gt": operator.gt,
    "ge": operator.ge,
    "eq": operator.eq,
    "ne": operator.ne,
}
"""Rows of the scalar table on Python ints: index arithmetic is most of what runs."""
