"""Which elements of a matrix product's operands each lane of the warp holds, for every shape.

The maps are those of the PTX ISA. With `g = lane >> 2` and `c = lane & 3`, a register of the first
operand (32 bits; 64 for float64) holds neighbours along k of row `g`: as many as fit, starting at
`c` times that number. Further registers are 8 rows down first, then one stretch of four lanes on
along k. The second operand is the same with columns for rows, of which there are 8; the lanes of an
accumulator hold two neighbouring columns of row `g`, then of row `g + 8`.
"""

from __future__ import annotations

import functools

from tessera.dtypes import dtype_of
from tessera.target.gpu import MmaShape
from tessera.tile.layouts.layout import Layout
from tessera.tile.layouts.linear import Vector

GROUP: tuple[int, ...] = (1, 2, 4)
WORD_BYTES = 4


@functools.cache
def fragments(shape: MmaShape) -> tuple[Layout, Layout, Layout]:
    """Layouts of a (dims row, k), b (dims k, col) and c (dims row, col).

    Inputs are `reg`, which counts elements, and `lane`.

    >>> from tessera.target.gpu import MmaShape
    >>> a, b, c = fragments(MmaShape("bf16", "f32", 16, 8, 16))
    >>> a(reg=2, lane=5)
    {'row': 9, 'k': 2}
    """
    packed = elements_per_register(shape.kind)
    neighbours = _doublings(1, packed)
    stretches = _doublings(4 * packed, shape.k)
    lanes = (packed, 2 * packed)
    lower: list[Vector] = [(8, 0)] if shape.m == 16 else []
    rows: list[Vector] = [(n, 0) for n in GROUP]
    a = {
        "reg": [*((0, n) for n in neighbours), *lower, *((0, n) for n in stretches)],
        "lane": [*((0, n) for n in lanes), *rows],
    }
    b = {
        "reg": [*((n, 0) for n in neighbours), *((n, 0) for n in stretches)],
        "lane": [*((n, 0) for n in lanes), *((0, n) for n in GROUP)],
    }
    c = {"reg": [(0, 1), *lower], "lane": [(0, 2), (0, 4), *rows]}
    return Layout.of(("row", "k"), a), Layout.of(("k", "col"), b), Layout.of(("row", "col"), c)


def elements_per_register(kind: str) -> int:
    """Elements of a or b in one register: 1 where an element fills it."""
    if kind in ("tf32", "f64"):
        return 1
    return WORD_BYTES // dtype_of(kind).itemsize


def _doublings(start: int, end: int) -> list[int]:
    """start, 2 * start, ... below end."""
    found: list[int] = []
    while start < end:
        found.append(start)
        start *= 2
    return found
