"""Tile types."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

from tessera.dtypes import DType
from tessera.ir.types import TensorType, Type

if TYPE_CHECKING:
    from tessera.ir.parser import Parser

FINISHED = "finished"
"""An attribute of functions whose code is written as it is to be: LLVM's passes would spend half of
their time on it and find nothing, so that it is compiled without them."""

RARE = "rare"
"""What the attribute says of functions that hardly run themselves: what they call takes the time.
They are compiled as fast as they can be."""

POISON = 0xFF
"""Every byte of memory that nobody wrote."""


class Space(Enum):
    """Memory spaces."""

    GLOBAL = "global"
    SHARED = "shared"
    REGISTER = "register"
    HOST = "host"


@dataclass(frozen=True, slots=True)
class TileType(Type):
    """A tile value: static shape, any rank; rank 0 is a scalar. `tile<f32[4, 32]>`."""

    prefix = "tile"
    shape: tuple[int, ...]
    dtype: DType

    def __str__(self) -> str:
        return f"tile<{TensorType(self.shape, self.dtype)}>"

    @classmethod
    def parse(cls, parser: Parser) -> TileType:
        """Reads `<dtype[shape]>`."""
        parser.expect("<")
        tensor = parser.type()
        parser.expect(">")
        if not isinstance(tensor, TensorType) or not all(isinstance(d, int) for d in tensor.shape):
            raise parser.error("a tile has a static shape")
        return cls(tuple(d for d in tensor.shape if isinstance(d, int)), tensor.dtype)

    @property
    def rank(self) -> int:
        """The number of dims."""
        return len(self.shape)

    def with_dtype(self, dtype: DType) -> TileType:
        """The same shape with another dtype."""
        return TileType(self.shape, dtype)

    def with_shape(self, shape: tuple[int, ...]) -> TileType:
        """The same dtype with another shape."""
        return TileType(shape, self.dtype)


@dataclass(frozen=True, slots=True)
class MemType(Type):
    """A region of memory holding elements of one dtype: `mem<f32>`, `mem<f32, shared>`."""

    prefix = "mem"
    dtype: DType
    space: Space = Space.GLOBAL

    def __str__(self) -> str:
        return (
            f"mem<{self.dtype}>"
            if self.space is Space.GLOBAL
            else f"mem<{self.dtype}, {self.space.value}>"
        )

    @classmethod
    def parse(cls, parser: Parser) -> MemType:
        """Reads `<dtype>` or `<dtype, space>`."""
        parser.expect("<")
        dtype = parser.dtype()
        space = Space(parser.word()) if parser.accept(",") else Space.GLOBAL
        parser.expect(">")
        return cls(dtype, space)


@dataclass(frozen=True, slots=True)
class ViewType(Type):
    """A strided window on memory with run-time sizes and strides: `view<f32, 2>`."""

    prefix = "view"
    dtype: DType
    rank: int
    space: Space = Space.GLOBAL

    def __str__(self) -> str:
        space = "" if self.space is Space.GLOBAL else f", {self.space.value}"
        return f"view<{self.dtype}, {self.rank}{space}>"

    @classmethod
    def parse(cls, parser: Parser) -> ViewType:
        """Reads `<dtype, rank>` or `<dtype, rank, space>`."""
        parser.expect("<")
        dtype = parser.dtype()
        parser.expect(",")
        rank = parser.integer()
        space = Space(parser.word()) if parser.accept(",") else Space.GLOBAL
        parser.expect(">")
        return cls(dtype, rank, space)
