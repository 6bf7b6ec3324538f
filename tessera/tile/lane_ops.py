"""Lanes that a kernel moves between vectors of a CPU."""

from __future__ import annotations

from math import prod

from tessera.errors import VerifyError
from tessera.ir.core import Value
from tessera.ir.opdef import attr, operand, operands
from tessera.ir.types import Type
from tessera.tile.ops import TileOp, tile_type
from tessera.tile.types import TileType


class Slide(TileOp):
    """Elements of a row from another place on: those of `x` from the `by`-th on, and then the first
    ones of `beside`; if `by` is negative, the last ones of `beside`, and then those of `x`.
    """

    name = "tile.slide"
    x: Value = operand()
    beside: Value = operand()
    by: int = attr()

    def infer(self) -> Type:
        """The type of the row."""
        x, beside = tile_type(self.x), tile_type(self.beside)
        if len(x.shape) != 1 or len(beside.shape) != 1 or x.dtype is not beside.dtype:
            raise VerifyError(f"slide takes two rows of one dtype, not {x} and {beside}")
        if abs(self.by) > min(x.shape[0], beside.shape[0]):
            raise VerifyError(f"{x} and {beside} do not hold a row from {self.by} on")
        return x


class Unzip(TileOp):
    """Every second element of two rows, side by side: those of `x` and then those of `y`."""

    name = "tile.unzip"
    x: Value = operand()
    y: Value = operand()
    first: int = attr()

    def infer(self) -> Type:
        """The type of the rows."""
        x, y = tile_type(self.x), tile_type(self.y)
        if x != y or len(x.shape) != 1 or x.shape[0] % 2 or self.first not in (0, 1):
            raise VerifyError(f"unzip takes two rows of even length, not {x} and {y}")
        return x


class Stack(TileOp):
    """A tile whose rows are those of some tiles, one after the other."""

    name = "tile.stack"
    tiles: tuple[Value, ...] = operands()
    shape: tuple[int, ...] = attr()

    def infer(self) -> Type:
        """A tile of the shape."""
        types = [tile_type(x) for x in self.tiles]
        lanes = self.shape[-1:]
        if len({t.dtype for t in types}) != 1 or any(t.shape[-1:] != lanes for t in types):
            raise VerifyError(f"rows of {list(self.shape)}: {', '.join(map(str, types))}")
        if sum([prod(t.shape[:-1]) for t in types]) != prod(self.shape[:-1]):
            raise VerifyError(f"not as many rows as {list(self.shape)}")
        return TileType(self.shape, types[0].dtype)


class Row(TileOp):
    """The `k`-th row of a tile: the elements whose first coordinate is `k`."""

    name = "tile.row"
    x: Value = operand()
    k: int = attr()

    def infer(self) -> Type:
        """A tile without the first dim."""
        x = tile_type(self.x)
        if len(x.shape) < 2 or not 0 <= self.k < x.shape[0]:
            raise VerifyError(f"{x} has no row {self.k}")
        return TileType(x.shape[1:], x.dtype)
