"""Which instructions can move a tile: derived from its layouts, with what the instruction needs.

Each question has the answer's parameters (addresses, box, descriptor fields) or a `Refusal` that
says what stands in the way. The rules are those of `ldmatrix`/`stmatrix`, of tensor maps and of the
matrix descriptors of `wgmma`; the layouts are compared with what those rules compute, so a layout
is eligible however it was built.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

import numpy as np

from tessera.tile.layouts import gf2
from tessera.tile.layouts.access import Access, address_map
from tessera.tile.layouts.layout import Array, Layout, Rep
from tessera.tile.layouts.linear import LayoutError
from tessera.tile.layouts.memory import Swizzle

MAX_BOX = 256
MAX_RANK = 5
ROW_BYTES = 16


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why an instruction cannot be used."""

    reason: str

    def __str__(self) -> str:
        return self.reason


@dataclass(frozen=True)
class MatrixMove:
    """An `ldmatrix` or `stmatrix` that moves a register tile.

    Args:
        count: Matrices per instruction: 1, 2 or 4.
        trans: Whether it is the `.trans` form.
        addresses: `lane` to the `offset`, in elements, of the 16-byte row that the lane names, in
            the first instruction; lane l gives row `l & 7` of matrix `l >> 3`.
        itemsize: Bytes per element.
    """

    count: int
    trans: bool
    addresses: Layout
    itemsize: int

    @property
    def conflicts(self) -> float:
        """How many wavefronts each row of eight addresses takes; 1.0 is conflict-free."""
        row = [(1 << bit,) for bit in range((ROW_BYTES // self.itemsize).bit_length() - 1)]
        rows = Layout(self.addresses.atom.with_input("reg", row), self.addresses.reps)
        return Access(rows, self.itemsize).conflicts


def matrix_move(registers: Layout, memory: Layout, itemsize: int) -> MatrixMove | Refusal:
    """Whether `ldmatrix`/`stmatrix` can move a register tile from or to shared memory.

    Plain: four lanes share a 16-byte row, each with 4 bytes in registers, and eight rows lie
    anywhere. Transposed (16-bit only): the eight lanes that plain gives different rows share one.

    Args:
        registers: The register layout.
        memory: The memory layout, of the same dims.
        itemsize: Bytes per element.
    """
    form = address_map(memory).compose(registers).expanded
    if any(r.axis == "lane" or r.stride * itemsize % ROW_BYTES for r in form.reps):
        return Refusal("the rows of the lanes are not linear, or not 16 bytes apart")
    reg = [column[0] * itemsize for column in form.atom.of_input("reg")]
    lane = [column[0] * itemsize for column in form.atom.of_input("lane")]
    if len(lane) != 5:
        return Refusal("the tile is not spread over 32 lanes")
    within, rows, trans = lane[:2], lane[2:], False
    if within == [4, 8]:
        space = gf2.Echelon(reg)
        if not all(space.has(1 << bit) for bit in range(itemsize.bit_length() - 1, 2)):
            return Refusal("a lane does not hold whole 32-bit words of a row")
        # The words' own bits are in the span, so the other registers may be taken without them.
        others = gf2.independent(column & ~3 for column in reg)
    elif itemsize == 2 and lane[2:] == [2, 4, 8]:
        trans = True
        others = gf2.independent(reg)
        if not others:
            return Refusal("a lane does not hold pairs of a column")
        rows, others = [others[0], *lane[:2]], others[1:]
    else:
        return Refusal("four consecutive lanes do not share a row of 16 bytes")
    if any(column % ROW_BYTES for column in (*rows, *others)):
        return Refusal("the rows of 8 x 16 bytes do not start at multiples of 16 bytes")
    columns = [*rows, *others[:2]]
    strides = [r.stride for r in form.reps if r.axis == "reg" and r.count % 2 == 0]
    strides = strides[: 5 - len(columns)]
    count = 1 << len(columns) + len(strides) - 3
    strides += [0] * (5 - len(columns) - len(strides))
    addresses = Layout.of(
        ("offset",),
        {"lane": [(column // itemsize,) for column in columns]},
        [("lane", "offset", 2, stride) for stride in strides],
    )
    return MatrixMove(count, trans, addresses, itemsize)


@dataclass(frozen=True, slots=True)
class TmaBox:
    """The box of a tensor map that fills a shared-memory tile in one copy.

    Args:
        dims: The box, contiguous dim first: `count` steps of `stride` elements along tensor dim
            `dim`. A tensor dim that stands twice is split in two in the map.
        swizzle: The map's swizzle.
    """

    dims: tuple[Rep, ...]
    swizzle: Swizzle

    @property
    def alignment(self) -> int:
        """Bytes to which the tile must be aligned in shared memory."""
        return max(128, self.swizzle.period if self.swizzle is not Swizzle.NONE else 128)


def tma_box(memory: Layout, itemsize: int) -> TmaBox | Refusal:
    """Whether one TMA copy can fill (or drain) a shared-memory tile, given as offset -> dims."""
    for swizzle in Swizzle:
        elements = swizzle.period // itemsize
        if swizzle is not Swizzle.NONE and memory.count % elements:
            continue
        plain = memory
        if swizzle is not Swizzle.NONE:
            try:
                plain = memory.compose(swizzle.layout(itemsize, memory.count))
            except LayoutError:
                continue
        plain = plain.canonical()
        if not plain.atom.columns:
            return _box(plain.reps, swizzle, itemsize)
    return Refusal("no swizzle turns the memory into a box of rows")


def _box(dims: tuple[Rep, ...], swizzle: Swizzle, itemsize: int) -> TmaBox | Refusal:
    if not 1 <= len(dims) <= MAX_RANK:
        return Refusal(f"the box has rank {len(dims)}; tensor maps have rank 1 to {MAX_RANK}")
    row = dims[0].count * itemsize
    if dims[0].stride != 1 or row % 16:
        return Refusal(f"the contiguous run of {row} bytes is no multiple of 16 bytes of one dim")
    if swizzle is not Swizzle.NONE and row > swizzle.span:
        return Refusal(f"rows of {row} bytes exceed the swizzle's span of {swizzle.span}")
    for rep in dims:
        if rep.count > MAX_BOX:
            return Refusal(f"{rep.count} along {rep.dim} exceeds the box limit of {MAX_BOX}")
        if rep.stride == 0:
            return Refusal(f"{rep.dim} is repeated, which no copy does")
    return TmaBox(dims, swizzle)


class Major(Enum):
    """Which dim of an operand is contiguous in shared memory."""

    K = 0
    MN = 1


@dataclass(frozen=True, slots=True)
class MatrixDescriptor:
    """The fields of a `wgmma` descriptor, in bytes.

    Args:
        major: The contiguous dim; MN needs the instruction's transpose bit.
        swizzle: The swizzle mode.
        lbo: Leading byte offset; 0 where the hardware ignores it.
        sbo: Stride byte offset; 0 where there is no second group.
        steps: Where each step of 32 bytes along k starts, relative to the tile.
    """

    major: Major
    swizzle: Swizzle
    lbo: int
    sbo: int
    steps: tuple[int, ...]

    def encode(self, address: int) -> int:
        """The 64-bit descriptor of the tile at a shared-memory address (aligned to its period)."""
        # Bits above 18 hold the rank of the block in its cluster and would spill into the offset.
        start = (address & 0x3FFFF) >> 4
        mode = (4 - self.swizzle.value) % 4
        return start | self.lbo >> 4 << 16 | self.sbo >> 4 << 32 | mode << 62


def matrix_descriptor(memory: Layout, itemsize: int, mn: str, k: str) -> MatrixDescriptor | Refusal:
    """Whether `wgmma` can read an operand from shared memory, and with which descriptor.

    Args:
        memory: The memory layout, in either direction.
        itemsize: Bytes per element: 1, 2 or 4. Only 2-byte elements may be MN-major.
        mn: The name of the dim that is M or N.
        k: The name of the dim that is summed.
    """
    addresses = address_map(memory)
    extents = {name: addresses.sizes.get(name, 1) for name in (mn, k)}
    if itemsize not in (1, 2, 4):
        return Refusal(f"wgmma has no operands of {itemsize} bytes")
    if extents[mn] % 8 or extents[k] * itemsize % 32:
        return Refusal(f"{extents} is not whole groups of 8 by whole steps of 32 bytes along {k}")
    rows, cols = np.ogrid[0 : extents[mn], 0 : extents[k]]
    (offset,) = addresses.apply({mn: rows, k: cols})
    table = np.asarray(offset, np.int64) * itemsize
    for swizzle in reversed(Swizzle):
        plain = table ^ ((table >> 7 & (1 << swizzle.value) - 1) << 4)
        for major in Major if itemsize == 2 else (Major.K,):
            found = _descriptor(plain, itemsize, swizzle, major)
            if found is not None:
                return found
    return Refusal("the memory has none of the canonical forms of a matrix descriptor")


def _descriptor(
    plain: Array, itemsize: int, swizzle: Swizzle, major: Major
) -> MatrixDescriptor | None:
    """The descriptor of this form, if it addresses every element; `plain` is `[mn, k]` bytes."""
    step = 32 // itemsize
    group = ROW_BYTES // itemsize if swizzle is Swizzle.NONE else swizzle.span // itemsize
    fast = plain.T if major is Major.K else plain
    # Strides past a group along the contiguous dim, and past eight along the other.
    along = int(fast[group, 0]) if fast.shape[0] > group else 0
    across = int(fast[0, 8]) if fast.shape[1] > 8 else 0
    place = _offsets(fast.shape[0], group, itemsize, along)[:, None]
    place = place + _offsets(fast.shape[1], 8, max(ROW_BYTES, swizzle.span), across)
    first = place.T if major is Major.K else place
    if major is Major.K and swizzle is not Swizzle.NONE:
        along = 0
    lbo, sbo = along, across
    if major is Major.MN and swizzle is Swizzle.NONE:
        lbo, sbo = across, along
    starts = [int(start) for start in plain[0, ::step]]
    for number, start in enumerate(starts):
        part = plain[:, number * step : (number + 1) * step]
        if not np.array_equal(part, first[:, :step] + start):
            return None
        if swizzle is not Swizzle.NONE and start % swizzle.period >= swizzle.span:
            return None
    if starts[0] or not all(_is_offset(offset) for offset in (lbo, sbo, *starts)):
        return None
    return MatrixDescriptor(major, swizzle, lbo, sbo, tuple(starts))


def _offsets(extent: int, group: int, inner: int, outer: int) -> Array:
    index: Array = np.arange(extent, dtype=np.int64)
    return index % group * inner + index // group * outer


def _is_offset(offset: int) -> bool:
    return offset % 16 == 0 and 0 <= offset < 1 << 18
