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


INDEX_FNS: Mapping[str, Callable[[int, int], int | bool]] = {
    "add": lambda a, b: wrap(a + b),
    "sub": lambda a, b: wrap(a - b),
    "mul": lambda a, b: wrap(a * b),
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
