"""What the dims of a program can be, and what is checked of them at a launch, as attributes."""

from __future__ import annotations

from collections.abc import Mapping

from tessera.ir.core import Func
from tessera.ir.intbounds import Facts
from tessera.ir.intnode import Dim
from tessera.ir.intparse import parse

MOST_ELEMENTS = 1 << 30
"""So many elements of a memory need indices of 64 bits (`tile/index_width.py`)."""

RANGES = "ranges"
"""The attribute for the first, with text such as `1 <= N <= 4096; 0 <= M`."""

GUARD = "guard"
"""That for the second. In a Graph and a Schedule it says what may be asked for, `elements < 1024`;
in Tile IR what is: `N*M < 1024; M*K < 1024`."""


def with_ranges(
    func: Func, ranges: Mapping[str, tuple[int | None, int | None]], guard: int | None = None
) -> Func:
    """A program that says what its dims can be.

    Args:
        func: the program.
        ranges: the least and the greatest size by name; None for no end.
        guard: where it is launched, each memory has fewer elements than this.
    """
    clauses = [
        f"{low or 0} <= {name}" + ("" if high is None else f" <= {high}")
        for name, (low, high) in ranges.items()
    ]
    attrs = {**func.attrs, RANGES: "; ".join(clauses)}
    if guard is not None:
        attrs[GUARD] = f"elements < {guard}"
    return Func(func.name, func.body, func.dims, attrs)


def guarded_below(func: Func) -> int | None:
    """How many elements each memory has fewer of where a Graph or Schedule is launched."""
    text = func.attrs.get(GUARD)
    return None if text is None else int(text.rpartition(" < ")[2])


def guards_of(main: Func) -> list[tuple[Dim, int]]:
    """What is checked where a Tile program is launched: an expression, and what it is less than."""
    clauses = filter(None, main.attrs.get(GUARD, "").split("; "))
    pairs = [clause.rpartition(" < ") for clause in clauses]
    return [(parse(left), int(right)) for left, _, right in pairs]


def ranges_of(func: Func) -> Facts | None:
    """What a program says of its dims; None if it says nothing."""
    text = func.attrs.get(RANGES)
    return None if text is None else Facts.parse(text)
