"""What the dims of a program can be, as an attribute of it."""

from __future__ import annotations

from collections.abc import Mapping

from tessera.ir.core import Func
from tessera.ir.intbounds import Facts

RANGES = "ranges"
"""The attribute, with text such as `1 <= N <= 4096; 0 <= M`."""


def with_ranges(func: Func, ranges: Mapping[str, tuple[int | None, int | None]]) -> Func:
    """A program that says what its dims can be: the least and the greatest; None for no end."""
    clauses = [
        f"{low or 0} <= {name}" + ("" if high is None else f" <= {high}")
        for name, (low, high) in ranges.items()
    ]
    return Func(func.name, func.body, func.dims, {**func.attrs, RANGES: "; ".join(clauses)})


def ranges_of(func: Func) -> Facts | None:
    """What a program says of its dims; None if it says nothing."""
    text = func.attrs.get(RANGES)
    return None if text is None else Facts.parse(text)
