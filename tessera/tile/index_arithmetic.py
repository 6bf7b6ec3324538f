"""Index arithmetic of interpreters, on Python ints."""

from __future__ import annotations

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
    "lt": lambda a, b: a < b,
    "le": lambda a, b: a <= b,
    "gt": lambda a, b: a > b,
    "ge": lambda a, b: a >= b,
    "eq": lambda a, b: a == b,
    "ne": lambda a, b: a != b,
}
"""Rows of the scalar table on Python ints: index arithmetic is most of what runs."""
