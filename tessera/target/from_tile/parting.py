"""Vectors of which each holds some elements of several rows, and rows of them: in registers."""

from __future__ import annotations

from typing import TypeAlias

from tessera.ir.core import Value
from tessera.target import ops as t
from tessera.target.from_tile.lowering import Lowering, View
from tessera.target.types import VecType

Part: TypeAlias = tuple[Value, dict[int, int]]
"""A vector, and by lane of a result the lane that has it."""


def halved(s: Lowering, view: View, start: Value, count: int, lanes: int) -> list[Value]:
    """Rows that lie mixed, of a number that is a power of two: half of them have what is even in
    pairs of vectors, half what is odd."""
    type = VecType(lanes, view.dtype)
    places = [s.map("add", start, s.index(k * lanes)) for k in range(count)]
    rows = [s.emit(t.Load(view.ptr, at, (), type, loc=s.loc)) for at in places]
    numbers, halves = [0], [tuple(range(k, 2 * lanes, 2)) for k in range(2)]
    groups = [rows]
    while len(groups) < count:
        pairs = [list(zip(group[::2], group[1::2], strict=True)) for group in groups]
        picked = [(group, half) for group in pairs for half in halves]
        groups = [
            [s.emit(t.Shuffle(a, b, half, loc=s.loc)) for a, b in group] for group, half in picked
        ]
        numbers = [n + k * len(numbers) for n in numbers for k in range(2)]
    found = sorted(zip(numbers, groups, strict=True), key=lambda one: one[0])
    return [group[0] for _, group in found]


def parted(s: Lowering, view: View, start: Value, count: int, lanes: int) -> list[Value]:
    """Rows that lie mixed, of a number that is no power of two: as many vectors, of which each
    holds some elements of each row."""
    type = VecType(lanes, view.dtype)
    places = [s.map("add", start, s.index(k * lanes)) for k in range(count)]
    vectors = [s.emit(t.Load(view.ptr, at, (), type, loc=s.loc)) for at in places]
    rows: list[Value] = []
    for row in range(count):
        parts: list[Part] = []
        for k, vector in enumerate(vectors):
            own = [at for at in range(k * lanes, (k + 1) * lanes) if at % count == row]
            parts.append((vector, {at // count: at % lanes for at in own}))
        rows.append(joined(s, parts, lanes))
    return rows


def joined(s: Lowering, parts: list[Part], lanes: int) -> Value:
    """What several vectors hold, as one."""
    while len(parts) > 1:  # pairs become one, where each lane is in its place
        pairs = list(zip(parts[::2], parts[1::2], strict=False))
        rest = parts[2 * len(pairs) :]
        parts = [_merged(s, a, b, lanes) for a, b in pairs] + rest
    return parts[0][0]


def _merged(s: Lowering, a: Part, b: Part, lanes: int) -> Part:
    """The lanes that two vectors hold, each in its place."""
    from_a, from_b = a[1], b[1]
    picks = [from_a.get(i, from_b.get(i, -lanes) + lanes) for i in range(lanes)]
    row = s.emit(t.Shuffle(a[0], b[0], tuple(picks), loc=s.loc))
    return row, {i: i for i in (*from_a, *from_b)}
