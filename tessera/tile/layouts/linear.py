"""Linear maps over GF(2) from named input bits to named output dims.

The coordinate in a dim is the XOR of one number per set input bit. All layouts of hardware are such
maps: fragments of tensor cores, `ldmatrix` tiles, swizzled shared memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tessera.errors import TesseraError
from tessera.ir.lazy import cached_property
from tessera.tile.layouts import gf2

Vector = tuple[int, ...]
Index = int | NDArray[np.int64]


class LayoutError(TesseraError, ValueError):
    """A layout is malformed, or an operation on layouts has no result."""


def pack(values: Iterable[int], widths: Iterable[int]) -> int:
    """Puts the values side by side into one int, the first in the lowest bits."""
    total, shift = 0, 0
    for value, width in zip(values, widths, strict=True):
        total |= value << shift
        shift += width
    return total


def unpack(packed: int, widths: Sequence[int]) -> Vector:
    """The inverse of `pack`."""
    values: list[int] = []
    for width in widths:
        values.append(packed & (1 << width) - 1)
        packed >>= width
    return tuple(values)


@dataclass(frozen=True)
class Linear:
    """A GF(2) matrix. `ins` gives, per named input, the image of each of its bits, low bit first.

    Args:
        ins: Input names with one column per bit; a column has one number per output dim.
        outs: Names of the output dims.
    """

    ins: tuple[tuple[str, tuple[Vector, ...]], ...]
    outs: tuple[str, ...]

    def __post_init__(self) -> None:
        names = [name for name, _ in self.ins]
        if len(set(names)) < len(names) or len(set(self.outs)) < len(self.outs):
            raise LayoutError(f"layout: a name stands twice in {names} or {list(self.outs)}")
        for name, columns in self.ins:
            for column in columns:
                if len(column) != len(self.outs) or min(column, default=0) < 0:
                    raise LayoutError(
                        f"layout: column {column} of {name} does not fit the dims {self.outs}",
                        rule="a column has one number >= 0 per output dim",
                    )

    @staticmethod
    def of(outs: Sequence[str], ins: Mapping[str, Sequence[Sequence[int]]]) -> Linear:
        """Builds a map from columns: `Linear.of(("row", "col"), {"reg": [(0, 1)]})`."""
        columns = ((name, tuple(tuple(c) for c in of_name)) for name, of_name in ins.items())
        return Linear(tuple(columns), tuple(outs))

    @staticmethod
    def unpacked(
        ins: Iterable[tuple[str, int]],
        outs: Sequence[str],
        widths: Sequence[int],
        columns: Iterable[int],
    ) -> Linear:
        """Builds a map from packed columns, taken in the order of the inputs' bits."""
        rest = iter(columns)
        named = tuple((n, tuple(unpack(next(rest), widths) for _ in range(b))) for n, b in ins)
        return Linear(named, tuple(outs))

    @cached_property
    def in_bits(self) -> dict[str, int]:
        """Bits per input."""
        return {name: len(columns) for name, columns in self.ins}

    @cached_property
    def out_bits(self) -> dict[str, int]:
        """Bits per dim: as many as the largest coordinate needs."""
        return {
            dim: max((c[place].bit_length() for _, cs in self.ins for c in cs), default=0)
            for place, dim in enumerate(self.outs)
        }

    @cached_property
    def columns(self) -> tuple[int, ...]:
        """All columns, packed, in the order of the inputs."""
        return tuple(self.pack(column) for _, columns in self.ins for column in columns)

    @cached_property
    def rank(self) -> int:
        """The rank of the matrix."""
        return gf2.rank(self.columns)

    @property
    def is_injective(self) -> bool:
        """Whether no two inputs have the same coordinates."""
        return self.rank == len(self.columns)

    @property
    def is_surjective(self) -> bool:
        """Whether every coordinate of the power-of-two box is reached."""
        return self.rank == sum(self.out_bits.values())

    def pack(self, vector: Sequence[int]) -> int:
        """One int for a vector over the dims."""
        return pack(vector, self.out_bits.values())

    def of_input(self, name: str) -> tuple[Vector, ...]:
        """The columns of an input; none where the map has no such input."""
        return dict(self.ins).get(name, ())

    def packed(self, *names: str) -> list[int]:
        """Packed columns of the named inputs."""
        return [self.pack(column) for name in names for column in self.of_input(name)]

    def apply(self, index: Mapping[str, Index]) -> list[Index]:
        """The coordinates of an index, one per dim. Arrays are mapped element by element."""
        coords: list[Index] = [0] * len(self.outs)
        for name, columns in self.ins:
            value = index.get(name, 0)
            for bit, column in enumerate(columns):
                for place, number in enumerate(column):
                    if number:
                        coords[place] = coords[place] ^ ((value >> bit & 1) * number)
        return coords

    def compose(self, inner: Linear) -> Linear:
        """`self` after `inner`: `inner`'s dims are the inputs of `self`."""
        for dim, bits in inner.out_bits.items():
            if bits > self.in_bits.get(dim, 0):
                raise LayoutError(
                    f"layout: compose: {dim} has {bits} bits, more than the outer map"
                )
        named = tuple(
            (name, tuple(self._image(inner.outs, column) for column in columns))
            for name, columns in inner.ins
        )
        return Linear(named, self.outs)

    def _image(self, dims: Sequence[str], vector: Vector) -> Vector:
        return tuple(int(v) for v in self.apply(dict(zip(dims, vector, strict=True))))

    def right_inverse(self) -> Linear:
        """A map from dims to inputs with `self(inverse(c)) == c`; inputs without effect get 0."""
        found = gf2.inverse(self.columns, sum(self.out_bits.values()))
        if found is None:
            raise LayoutError("layout: right_inverse: some coordinates are not reached")
        return self._inverse_from(found)

    def left_inverse(self) -> Linear:
        """A map from dims to inputs with `inverse(self(i)) == i`."""
        found = gf2.left_inverse(self.columns, sum(self.out_bits.values()))
        if found is None:
            raise LayoutError("layout: left_inverse: several inputs have the same coordinates")
        return self._inverse_from(found)

    def _inverse_from(self, masks: list[int]) -> Linear:
        names = [name for name, _ in self.ins]
        return Linear.unpacked(self.out_bits.items(), names, list(self.in_bits.values()), masks)

    def select(self, dims: Sequence[str]) -> Linear:
        """Only the given dims, in the given order."""
        places = [self.outs.index(dim) for dim in dims]
        named = tuple((n, tuple(tuple(c[p] for p in places) for c in cs)) for n, cs in self.ins)
        return Linear(named, tuple(dims))

    def with_input(self, name: str, columns: Sequence[Vector]) -> Linear:
        """The same map with the columns of one input replaced (or added)."""
        named = dict(self.ins) | {name: tuple(columns)}
        return Linear(tuple(named.items()), self.outs)
