"""Target types: scalars (`ir.types.ScalarType`), vectors, pointers. A bool is one bit in registers,
one byte in memory.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

from tessera.dtypes import DType
from tessera.ir.types import Type

if TYPE_CHECKING:
    from tessera.ir.parser import Parser


class AddressSpace(Enum):
    """Address spaces of pointers."""

    GLOBAL = "global"
    SHARED = "shared"
    LOCAL = "local"
    CONSTANT = "constant"


@dataclass(frozen=True, slots=True)
class VecType(Type):
    """A vector register value: `vec<16 x f32>`."""

    prefix = "vec"
    lanes: int
    dtype: DType

    def __str__(self) -> str:
        return f"vec<{self.lanes} x {self.dtype}>"

    @classmethod
    def parse(cls, parser: Parser) -> VecType:
        """Reads `<n x dtype>`."""
        parser.expect("<")
        lanes = parser.integer()
        parser.expect("x")
        dtype = parser.dtype()
        parser.expect(">")
        return cls(lanes, dtype)


@dataclass(frozen=True, slots=True)
class PtrType(Type):
    """A pointer to bytes in an address space: `ptr<global>`."""

    prefix = "ptr"
    space: AddressSpace = AddressSpace.GLOBAL

    def __str__(self) -> str:
        return f"ptr<{self.space.value}>"

    @classmethod
    def parse(cls, parser: Parser) -> PtrType:
        """Reads `<space>`."""
        parser.expect("<")
        space = AddressSpace(parser.word())
        parser.expect(">")
        return cls(space)
