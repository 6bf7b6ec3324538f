"""The lanes of several vectors combined side by side, so that one vector holds all results.

    a b c d  A B C D      2 rows of 4 lanes
    a b A B  c d C D      their first halves, and their second ones: added, e f E F
    e . E .  f . F .      neighbours: added
    e+f  E+F              one result a lane

A step halves the vectors while there are several, where a row by itself would halve its lanes and
leave the others idle: 16 rows of 16 lanes take 15 additions rather than 64. Each row is combined in
the order of `tile.reduce`: the first half of its lanes with the second, and so on.
"""

from __future__ import annotations

from collections.abc import Sequence

from tessera.dtypes import bool_
from tessera.ir.core import Value
from tessera.ir.scalar import ScalarFn
from tessera.target import ops as t
from tessera.target.from_tile.lowering import Lowering, is_power
from tessera.target.types import VecType

CHUNK_BITS = 128
"""Lanes that lie together move within such a part of a register in one instruction."""


def combined(s: Lowering, rows: Sequence[Value], fn: ScalarFn) -> Value | None:
    """One lane for each of some vectors; None where another way is as good.

    Args:
        s: the lowering of the kernel.
        rows: vectors of one type.
        fn: what combines two lanes.
    """
    type = rows[0].type
    if not isinstance(type, VecType) or not is_power(len(rows)) or not is_power(type.lanes):
        return None
    bits = type.dtype.bits
    # Formats narrower than float32 are combined in float32.
    if type.dtype is bool_ or (type.dtype.is_float and bits < 32):
        return None
    width = min(max(s.machine.vector_bits // bits, 1), type.lanes)
    if len(rows) > width:
        return None
    found = list(rows)
    while t.lanes(found[0].type) > width:
        half = t.lanes(found[0].type) // 2
        low, high = tuple(range(half)), tuple(range(half, 2 * half))
        found = [_fold(s, fn, x, x, low, high) for x in found]
    # The rows to which the groups of lanes in each vector belong.
    owners = [[k] for k in range(len(found))]
    size = width
    while len(found) > 1:
        order = _order(width, size, max(CHUNK_BITS // bits, 1))
        low = tuple([at + k for at in order for k in range(size // 2)])
        high = tuple([k + size // 2 for k in low])
        pairs = range(0, len(found), 2)
        found = [_fold(s, fn, found[k], found[k + 1], low, high) for k in pairs]
        both = [owners[k] + owners[k + 1] for k in pairs]
        owners = [[own[at // size] for at in order] for own in both]
        size //= 2
    (value,), (own,) = found, owners
    step = size // 2
    while step:
        other = tuple([k ^ step for k in range(width)])
        value = s.map(fn, value, s.emit(t.Shuffle(value, value, other, loc=s.loc)))
        step //= 2
    picks = tuple([own.index(k) * size for k in range(len(rows))])
    return value if picks == (*range(width),) else s.emit(t.Shuffle(value, value, picks, loc=s.loc))


def _order(width: int, size: int, chunk: int) -> list[int]:
    """Where the groups of two vectors, one behind the other, begin, in the order in which their
    halves are put: that of the vectors, or of chunks within which they lie."""
    part = width if size > chunk else min(chunk, width)
    firsts = [range(at, at + part, size) for at in range(0, width, part)]
    return [at + base for own in firsts for base in (0, width) for at in own]


def _fold(
    s: Lowering, fn: ScalarFn, a: Value, b: Value, low: tuple[int, ...], high: tuple[int, ...]
) -> Value:
    """Some lanes of two vectors combined with as many others."""
    first = s.emit(t.Shuffle(a, b, low, loc=s.loc))
    return s.map(fn, first, s.emit(t.Shuffle(a, b, high, loc=s.loc)))
