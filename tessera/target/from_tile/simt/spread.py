"""How a tile lies in the registers of a block: which bit of the thread's or register's number is
which bit of the element's.

A tile whose extents are powers of two has a flat, row-major element number of some bits; bit 0 is
the lowest bit of the last dim. A spread gives each of them to one bit of the register number, of
the lane or of the warp; a bit of lane or warp that has none holds copies. This is the part of
`tile.layouts.Layout` that needs no XOR, which covers blocked tiles and matrix fragments alike; what
goes beyond (shared memory, conversions) is computed on `Spread.layout`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from tessera.errors import CompileError
from tessera.ir.lazy import cached_property
from tessera.tile.layouts.layout import Layout

LANE_BITS = 5


def log2(n: int) -> int:
    """The exponent of a power of two."""
    if n < 1 or n & (n - 1):
        raise CompileError(f"simt: a tile's extents are powers of two, not {n}")
    return n.bit_length() - 1


@lru_cache(maxsize=4096)
def dim_starts(shape: tuple[int, ...]) -> tuple[int, ...]:
    """The flat bit at which each dim starts."""
    starts: list[int] = []
    at = 0
    for extent in reversed(shape):
        starts.append(at)
        at += log2(extent)
    return tuple(reversed(starts))


def flat_bits(shape: tuple[int, ...]) -> int:
    """The number of bits of an element number."""
    return sum(log2(extent) for extent in shape)


def bits_of_dim(shape: tuple[int, ...], dim: int) -> range:
    """The flat bits of one dim, lowest first."""
    start = dim_starts(shape)[dim]
    return range(start, start + log2(shape[dim]))


@dataclass(frozen=True)
class Piece:
    """Some bits of the thread number that are neighbouring bits of a coordinate:
    `((thread >> right) & mask) << left`."""

    right: int
    mask: int
    left: int


@dataclass(frozen=True)
class Spread:
    """A distribution of a tile over registers, lanes and warps.

    Attributes:
        shape: of the tile.
        regs: the flat bit of each bit of the register number, lowest first.
        lanes: likewise for the lane; None where lanes hold copies.
        warps: likewise for the warp.
    """

    shape: tuple[int, ...]
    regs: tuple[int, ...]
    lanes: tuple[int | None, ...]
    warps: tuple[int | None, ...]

    @property
    def registers(self) -> int:
        """Registers of one thread."""
        return 1 << len(self.regs)

    @property
    def threads(self) -> tuple[int | None, ...]:
        """The flat bit of each bit of the thread number."""
        return (*self.lanes, *self.warps)

    @cached_property
    def elements(self) -> tuple[int, ...]:
        """The flat element number of each register of thread 0."""
        found = [0]
        for bit in self.regs:
            found += [e | 1 << bit for e in found]
        return tuple(found)

    @cached_property
    def coordinates(self) -> tuple[tuple[int, ...], ...]:
        """The coordinates of each register of thread 0."""
        starts = dim_starts(self.shape)
        return tuple(
            [
                tuple([e >> s & n - 1 for s, n in zip(starts, self.shape, strict=True)])
                for e in self.elements
            ]
        )

    @cached_property
    def register_of(self) -> Mapping[int, int]:
        """The register of each flat element number that thread 0 holds."""
        return {e: r for r, e in enumerate(self.elements)}

    @cached_property
    def copies(self) -> int:
        """A mask of the bits of the thread number that tell copies apart."""
        return sum(1 << k for k, bit in enumerate(self.threads) if bit is None)

    def pieces(self, dim: int) -> tuple[Piece, ...]:
        """How the thread's coordinate along a dim is put together."""
        bits = bits_of_dim(self.shape, dim)
        return tuple(
            [
                Piece(k, 1, bit - bits.start)
                for k, bit in enumerate(self.threads)
                if bit is not None and bit in bits
            ]
        )

    def largest(self, dim: int) -> int:
        """The largest coordinate along a dim that thread bits alone make."""
        return sum(piece.mask << piece.left for piece in self.pieces(dim))

    def renamed(self, shape: tuple[int, ...], names: Mapping[int, int | None]) -> Spread:
        """The spread of a tile whose flat bits are others: `names[old]` is the new bit, or None
        where the dim is gone.
        """
        regs = [names[bit] for bit in self.regs]
        return Spread(
            shape,
            tuple([bit for bit in regs if bit is not None]),
            tuple([None if bit is None else names[bit] for bit in self.lanes]),
            tuple([None if bit is None else names[bit] for bit in self.warps]),
        )

    def reshaped(self, shape: tuple[int, ...]) -> Spread:
        """The same elements in row-major order as another shape."""
        return Spread(shape, self.regs, self.lanes, self.warps)

    def transposed(self, perm: Sequence[int]) -> Spread:
        """The spread of the transposed tile, whose dim k is dim perm[k]."""
        shape = tuple([self.shape[p] for p in perm])
        names: dict[int, int | None] = {}
        for k, p in enumerate(perm):
            names.update(zip(bits_of_dim(self.shape, p), bits_of_dim(shape, k), strict=True))
        return self.renamed(shape, names)

    def without(self, axis: int) -> Spread:
        """The spread of a reduction along an axis: its threads hold copies."""
        return self.to_one([axis]).reshaped(self.shape[:axis] + self.shape[axis + 1 :])

    def to_one(self, axes: Sequence[int]) -> Spread:
        """The spread of a tile that broadcasts to this one: the given dims have extent 1."""
        shape = tuple([1 if k in axes else n for k, n in enumerate(self.shape)])
        names: dict[int, int | None] = {}
        for k in range(len(shape)):
            old = bits_of_dim(self.shape, k)
            if k in axes:
                names.update(dict.fromkeys(old))
            else:
                names.update(zip(old, bits_of_dim(shape, k), strict=True))
        return self.renamed(shape, names)

    @cached_property
    def layout(self) -> Layout:
        """The same as a layout: inputs `reg`, `lane`, `warp`; dims `d0`, `d1`, ..."""
        starts = dim_starts(self.shape)
        dims = [f"d{k}" for k in range(len(self.shape))]

        def column(bit: int | None) -> tuple[int, ...]:
            return tuple(
                [
                    0 if bit is None or not s <= bit < s + log2(n) else 1 << bit - s
                    for s, n in zip(starts, self.shape, strict=True)
                ]
            )

        ins = {"reg": self.regs, "lane": self.lanes, "warp": self.warps}
        return Layout.of(dims, {k: [column(b) for b in bits] for k, bits in ins.items()})

    def __str__(self) -> str:
        def text(bits: Sequence[int | None]) -> str:
            return " ".join("-" if b is None else str(b) for b in bits)

        return (
            f"{list(self.shape)} regs[{text(self.regs)}] lanes[{text(self.lanes)}] "
            f"warps[{text(self.warps)}]"
        )


def blocked(
    shape: tuple[int, ...],
    warps: int,
    order: Sequence[int],
    vector: int = 1,
    late: Sequence[int] = (),
) -> Spread:
    """Neighbours along the first dim of `order` in the registers, lanes and warps of a block.

    Args:
        shape: the tile's.
        warps: of the block.
        order: all dims, the fastest first.
        vector: elements along the first dim that one thread holds together.
        late: dims that warps are given to last, because something is combined along them.
    """
    bits = in_order(shape, order)
    first = len(bits_of_dim(shape, order[0])) if order else 0
    held = frozenset(bit for dim in late for bit in bits_of_dim(shape, dim))
    return arranged(shape, warps, bits, min(log2(vector), first), held)


def in_order(shape: tuple[int, ...], order: Sequence[int]) -> tuple[int, ...]:
    """The flat bits of a tile, those of the first dim of `order` first."""
    return tuple([bit for dim in order for bit in bits_of_dim(shape, dim)])


def arranged(
    shape: tuple[int, ...],
    warps: int,
    bits: Sequence[int],
    vector: int,
    late: frozenset[int] = frozenset(),
) -> Spread:
    """`blocked`, for flat bits in any order.

    Args:
        shape: the tile's.
        warps: of the block.
        bits: all flat bits, the fastest first.
        vector: how many of them one thread holds together.
        late: bits that warps are given to last.
    """
    warp_bits = log2(warps)
    count = min(vector, max(len(bits) - LANE_BITS - warp_bits, 0))
    regs, rest = list(bits[:count]), list(bits[count:])
    lanes, rest = rest[:LANE_BITS], rest[LANE_BITS:]
    ranked = [bit for bit in rest if bit not in late] + [bit for bit in rest if bit in late]
    warped = sorted(ranked[:warp_bits], key=rest.index)
    regs += [bit for bit in rest if bit not in warped]
    return Spread(
        shape,
        tuple(regs),
        (*lanes, *[None] * (LANE_BITS - len(lanes))),
        (*warped, *[None] * (warp_bits - len(warped))),
    )


def replicated(shape: tuple[int, ...], warps: int) -> Spread:
    """Every thread holds every element."""
    return Spread(shape, tuple(range(flat_bits(shape))), (None,) * LANE_BITS, (None,) * log2(warps))
