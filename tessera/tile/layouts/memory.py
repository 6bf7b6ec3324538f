"""Memory layouts: from the offset, in elements, to the dims of a tile.

A swizzle XORs address bits 4-6 with bits 7-9: `addr ^= (addr >> 7 & 2**B - 1) << 4`, with B = 1, 2
and 3 for spans of 32, 64 and 128 bytes. It is an involution that repeats every 256, 512 or 1024
bytes, so a tile that starts on its repeat needs no carry into the XORed bits.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum

from tessera.tile.layouts.layout import Layout
from tessera.tile.layouts.linear import LayoutError


class Swizzle(Enum):
    """The swizzles of TMA and wgmma; the value is the number of XORed address bits."""

    NONE = 0
    B32 = 1
    B64 = 2
    B128 = 3

    @property
    def span(self) -> int:
        """Bytes of a row of the swizzled box; 16 without a swizzle."""
        return 16 << self.value

    @property
    def period(self) -> int:
        """Bytes after which the pattern repeats, which is also the alignment that it needs."""
        return 128 << self.value

    def layout(self, itemsize: int, size: int | None = None) -> Layout:
        """The permutation of offsets, in elements, over one period and on to `size` elements."""
        bits = (self.period // itemsize).bit_length() - 1
        shift = itemsize.bit_length() - 1
        columns = [1 << bit for bit in range(bits)]
        for row in range(self.value):
            columns[7 + row - shift] ^= 1 << (4 + row - shift)
        atom = Layout.of(("offset",), {"offset": [(c,) for c in columns]})
        if size is None:
            return atom
        repeats, rest = divmod(size, 1 << bits)
        if rest:
            raise LayoutError(f"layout: {size} elements are no whole {self.name} periods")
        return atom.product(
            Layout.of(("offset",), {"offset": ()}, [("offset", "offset", repeats, 1)])
        )


def row_major(shape: Mapping[str, int]) -> Layout:
    """Dense memory, the last dim contiguous: offset -> dims."""
    reps = [("offset", dim, count, 1) for dim, count in reversed([*shape.items()])]
    return Layout.of(tuple(shape), {"offset": ()}, reps)


def pitched(shape: Mapping[str, int], pitch: int) -> Layout:
    """Rows `pitch` elements apart, in the other direction: dims -> offset (a pad has no dims)."""
    (row, rows), (col, cols) = shape.items()
    reps = [(col, "offset", cols, 1), (row, "offset", rows, pitch)]
    return Layout.of(("offset",), {row: (), col: ()}, reps)


def swizzled(shape: Mapping[str, int], itemsize: int, swizzle: Swizzle) -> Layout:
    """Shared memory for TMA and wgmma: column blocks as wide as the swizzle's span, one by one.

    Args:
        shape: Two dims and their extents; the second is contiguous within a block.
        itemsize: Bytes per element, a power of two.
        swizzle: The swizzle; NONE is row-major.
    """
    if swizzle is Swizzle.NONE:
        return row_major(shape)
    (row, rows), (col, cols) = shape.items()
    width = swizzle.span // itemsize
    if cols % width or rows % 8:
        raise LayoutError(
            f"layout: swizzled: {rows} x {cols} is not whole blocks of 8 x {width}",
            rule=f"{swizzle.name} rows have {swizzle.span} bytes and repeat after 8",
        )
    # Rows of a short span lie several in 128 bytes, but 8 of them are always one period.
    box = row_major({row: 8, col: width}).compose(swizzle.layout(itemsize))
    blocks = [("offset", row, rows // 8, 1), ("offset", col, cols // width, 1)]
    return box.product(Layout.of((row, col), {"offset": ()}, blocks))
