"""The last columns of a product, of which there are fewer than a block has.

Sixty-four columns of which 16 are wanted take four times as long as these. That block is written
down once more, with as few as a power of two has room for; all others store without conditions:

    for n in 0 .. 3:                            for n in 0 .. 3:
        c[6, 32] = sums of products                 if n == 2: c[6, 16] = sums of products ...
        store c where 32*n + j < 80     ==>         else:      c[6, 32] = sums of products ...

Stores under a mask take a CPU without AVX-512 long: of 2048 rows of 104 columns, for a depth of 8,
a Zen 3 takes 144 us with them, and 51 where only the last block has them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tessera.dtypes import int64
from tessera.ir.core import Value
from tessera.ir.intexpr import Dim, linear_in, symbols
from tessera.schedule import lengths
from tessera.schedule import ops as s
from tessera.schedule.panel_ops import ContractPanels
from tessera.tile.lowering.state import Point, State

LONG = 52
"""Instructions for a vector that are too many to be written down once more."""

LEAST, LEAST_OF_SQUARES = 4, 16
"""Columns of a block at least, and of one that takes products in groups or is turned in squares as
it is stored."""


class LastColumns:
    """The columns behind the last whole block.

    Attributes:
        block: the axis of blocks.
        place: its last one.
        size: how many columns that has.
    """

    def __init__(self, block: str, place: int, size: int) -> None:
        self.block = block
        self.place = place
        self.size = size

    @classmethod
    def of(cls, nest: s.Nest, tiles: Sequence[int]) -> LastColumns | None:
        """Those of a nest that is a product; None where there are none, or too many.

        Args:
            nest: the nest.
            tiles: the tile of each axis.
        """
        code = nest.body.ops
        sums = [op for op in code if isinstance(op, s.Contract)]
        if len(sums) != 1 or isinstance(sums[0], ContractPanels) or lengths.of(code) >= LONG:
            return None
        if not nest.axes:
            return None
        axis, tile = nest.axes[-1], tiles[-1]
        stores = [op for op in code if isinstance(op, s.Store)]
        is_along = all(op.index and axis.name in symbols(op.index[-1]) for op in stores)
        least = LEAST if nest.reduce_tile == 1 and is_along else LEAST_OF_SQUARES
        for e in {e for op in stores for e in op.where}:
            for outer in nest.axes[:-1]:
                found = linear_in(e, (outer.name, axis.name))
                count = outer.extent
                if found is None or not isinstance(count, int) or not isinstance(found[1], int):
                    continue
                if (found[0][outer.name], found[0][axis.name]) != (-tile, -1):
                    continue
                left, size = found[1] + 1 - tile * (count - 1), tile
                while size // 2 >= max(left, least):
                    size //= 2
                if count > 1 and 0 < left < tile:
                    return cls(outer.name, count - 1, size)
        return None

    def is_there(self, low: State) -> Value:
        """Whether the current block is the last one."""
        em = low.em
        return em.map("eq", em.symbols[self.block], em.const(self.place, int64))

    @property
    def before(self) -> dict[str, tuple[Dim, Dim]]:
        """Where the other blocks are."""
        return {self.block: (0, self.place - 1)}

    def inside(self, narrow: Point) -> dict[str, tuple[Dim, Dim]]:
        """Where the last block is, and its columns."""
        return {self.block: (self.place, self.place), narrow.dims[-1].name: (0, self.size - 1)}

    def at(self, point: Point) -> Point:
        """The tile of the last block."""
        *first, last = point.dims
        return Point((*first, replace(last, size=self.size)))
