"""Schedule types and attribute values."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

from tessera.dtypes import DType
from tessera.ir.core import Value
from tessera.ir.intexpr import Dim, prod
from tessera.ir.types import TensorType, Type

if TYPE_CHECKING:
    from tessera.ir.parser import Parser


@dataclass(frozen=True, slots=True)
class BufType(Type):
    """Memory that holds an n-dimensional array: `buf<f32[4, S]>`, `buf<f32[4, S], strides [1, 4]>`.

    Attributes:
        shape: dims.
        dtype: element type.
        strides: element strides, one per dim; None is row-major contiguous.
    """

    prefix = "buf"
    shape: tuple[Dim, ...]
    dtype: DType
    strides: tuple[Dim, ...] | None = None

    def __str__(self) -> str:
        tensor = TensorType(self.shape, self.dtype)
        if self.strides is None:
            return f"buf<{tensor}>"
        return f"buf<{tensor}, strides [{', '.join(map(str, self.strides))}]>"

    @classmethod
    def parse(cls, parser: Parser) -> BufType:
        """Reads `<tensor>` or `<tensor, strides [...]>`."""
        parser.expect("<")
        tensor = parser.type()
        if not isinstance(tensor, TensorType):
            raise parser.error("expected a tensor type")
        strides = None
        if parser.accept(","):
            parser.expect("strides")
            parser.expect("[")
            strides = tuple(parser.sequence("]", parser.dim))
        parser.expect(">")
        return cls(tensor.shape, tensor.dtype, strides)

    def dims(self) -> Iterable[Dim]:
        """Shape and strides."""
        return self.shape + (self.strides or ())

    def element_strides(self) -> tuple[Dim, ...]:
        """The strides in elements, row-major ones computed."""
        return _row_major(self.shape) if self.strides is None else self.strides

    @property
    def size(self) -> Dim:
        """The number of elements."""
        return _size(self.shape)


# Programs have few shapes and ask often.
@functools.lru_cache(1 << 12)
def _size(shape: tuple[Dim, ...]) -> Dim:
    return prod(shape)


@functools.lru_cache(1 << 12)
def _row_major(shape: tuple[Dim, ...]) -> tuple[Dim, ...]:
    result: list[Dim] = []
    step: Dim = 1
    for dim in reversed(shape):
        result.append(step)
        step = step * dim
    return tuple(reversed(result))


@dataclass(frozen=True, slots=True)
class Axis:
    """A loop axis: its symbol, usable in index expressions inside the nest, and its extent. Text:
    `i: S`.
    """

    name: str
    extent: Dim

    def __str__(self) -> str:
        return f"{self.name}: {self.extent}"

    @classmethod
    def parse(cls, parser: Parser) -> Axis:
        """Reads `name: extent`."""
        name = parser.word()
        parser.expect(":")
        return cls(name, parser.dim())


class PlaceKind(Enum):
    """Where a program value lives."""

    INPUT = "input"
    OUTPUT = "output"
    ARENA = "arena"
    HOST = "host"


@dataclass(frozen=True, slots=True)
class Place:
    """Where a program value lives: `input(k)`, `output(k)`, or `arena(byte offset)`; a copy in the
    memory of the host lies at `host(byte offset)`."""

    kind: PlaceKind
    at: Dim

    def __str__(self) -> str:
        return f"{self.kind.value}({self.at})"

    @classmethod
    def parse(cls, parser: Parser) -> Place:
        """Reads `kind(at)`."""
        kind = PlaceKind(parser.word())
        parser.expect("(")
        at = parser.dim()
        parser.expect(")")
        return cls(kind, at)


def buffer_type(value: Value) -> BufType:
    """The type of a buffer."""
    assert isinstance(value.type, BufType)
    return value.type
