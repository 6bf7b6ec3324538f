"""Register blocks of matrix products on a CPU: which one takes the fewest cycles."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import ceil, gcd

STEPS = 8
"""Sums that have to be under way at a time: the latency of a multiplication and addition, times how
many begin in a cycle."""

STORE_STEPS = 6
"""What setting out and storing a register block costs, in steps along the depth."""

REUSED = 4
"""Blocks that read an operand, below which copying it does not pay."""

NEAR = 4
"""An operand of no more than such a part of the second cache leaves room for others in it."""

PACKING = 2
"""Cycles in which a vector is packed that lies in memory as it is packed."""

FAR_PACKING = 15
"""The same, where it comes from a cache that cores share, or goes there, or its elements lie apart:
to turn them takes a Zen 4 15 to 19 cycles."""

FAR_READING = 6
"""Cycles in which one is read where it is, from such a cache."""

MEMORY_PACKING = 40
"""The same, where it goes to memory."""

WAITING = 20_000
"""Cycles that each of many cores waits for an operand to be packed, until it goes on."""

HANDED = 8
"""Cycles in which a core gets a vector that another one of many has packed. With these two numbers
blocks of 51 products lie, on 16 cores of a Xeon (Sapphire Rapids), the way round that is faster, or
in the mean within 1% of it; without them 31%."""

TURNING = 5
"""Cycles in which a vector of a block is turned and stored."""

PANEL = 4096
"""Elements of the second operand that stay in the first cache from one block to the next."""

PASSING = 3
"""Cycles in which a vector of a panel that the first cache does not hold comes from the second one,
where that gives 32 bytes in two of them (a Zen 3)."""

LATE = 6
"""Cycles that a step along the depth waits for elements that do not, and are not packed."""

FETCHED = 4
"""Vectors side by side that are fetched ahead: for them a step hardly waits."""

SPLIT = 0.75
"""Cycles that a step waits for each vector that lies in two lines, on CPUs that do."""

LOADING = 0.4
"""Cycles more that it takes there for each vector and each number that it reads, with such rows.
Both say which block is best, and whether to pack; products whose lanes may run along either
operand were measured without. With these four numbers blocks of 215 products, float32 and float64,
take one core and two of Xeons (Emerald Rapids and others) 1.06 times as long as the best of twenty.
"""

SPLIT_PACKING = 8
"""Cycles in which one is packed."""

JOINING = 40_000
"""Cycles that threads lose where they wait for such a copy."""

MEETING = 0.7
"""Cycles for each element of rows that displace each other in the first cache, if they are just too
many for it."""

MET = 2
"""Cycles that a step waits for a line that has been displaced."""

SETS, LINE_BYTES = 64, 64
"""The lines of the first cache: so many that do not displace each other, of so many bytes."""


@dataclass(frozen=True, slots=True)
class Blocking:
    """The register block of a product.

    Attributes:
        rows: of the block.
        columns: of the block, whole vectors.
        packs_left: whether the first operand is packed for it.
        cycles: that the product takes at least, if no vector lies in two lines.
        packs_right: whether the second one is, though blocks could read it where it is.
        panels: of the second one, that lie side by side in the block.
    """

    rows: int
    columns: int
    packs_left: bool = True
    cycles: float = 0.0
    packs_right: bool = False
    panels: int = 1


@dataclass(frozen=True, slots=True)
class Operands:
    """How the operands of a product lie.

    Attributes:
        in_place: whether blocks can read the first one where it is.
        stride: bytes between its rows, if memory runs along the depth.
        left_packing: cycles in which a vector of the first one is packed.
        right_is_far: whether the second one is.
        reused: row blocks from which the second one is packed where it is far.
        right_streams: whether the second one is read where it is, and is a good part of the second
            cache.
        right_packing: cycles in which the second one is packed, if it has to be even so.
        right_copying: cycles in which a vector of the second one is packed, where that may pay
            though blocks could read it where it is; 0 where it does not.
        has_masks: whether what is left of its columns is read under masks as fast as all of them.
        left_meets: whether lines of the first one displace each other in the first cache, from one
            place of the depth to the next, and blocks wait for them.
        right_meets: whether those of the second one do.
        shared: products that read the same first operand, and share its packed copy.
        right_shared: products that read the same second one.
        right_splits: the part of the second one's vectors that lie in two lines each, where blocks
            wait for that.
        is_turned: whether the result runs along the rows, so that blocks are turned as they are
            stored.
        left_strays: whether the first one is too large, and its rows do not lie one after the
            other.
        ways: lines of the first cache that have the same place.
        shifts: whether the last block may begin among the rows of the one before.
        cores: how many share one product, if they are many.
        joining: cycles that cores lose where they wait for a copy of the second operand.
    """

    in_place: bool = False
    stride: int = 0
    left_packing: float = PACKING
    right_is_far: bool = False
    reused: int = REUSED
    right_streams: bool = False
    right_packing: float = 0.0
    right_copying: float = 0.0
    has_masks: bool = True
    left_meets: bool = False
    right_meets: bool = False
    shared: int = 1
    right_shared: int = 1
    right_splits: float = 0.0
    is_turned: bool = False
    left_strays: bool = False
    ways: int = 8
    shifts: bool = False
    cores: int = 0
    joining: float = 0.0

    def handing(self, vectors: float, panels: int) -> float:
        """Cycles in which many cores get an operand that some of them have packed.

        Args:
            vectors: of the operand.
            panels: in which it is packed, and which cores share.
        """
        often = max(1, self.cores / panels)
        return WAITING * self.cores + HANDED * vectors * often if self.cores else 0


def ways_of(cache: int) -> int:
    """Lines of a first cache of so many bytes that have the same place."""
    return cache // (SETS * LINE_BYTES)


def meeting(stride: int) -> float:
    """The part of rows so many bytes apart whose lines have the same place in a first cache."""
    return gcd(max(stride // LINE_BYTES, 1), SETS) / SETS


@functools.lru_cache(maxsize=1024)  # layers of a network are alike
def choose_block(
    shape: tuple[int, int, int], lanes: int, registers: int, operands: Operands | None = None
) -> Blocking:
    """The register block that takes the fewest cycles, what is wasted at the ends included.

    In a step along the depth a block of `h` rows and `v` vectors multiplies `h * v` times, and
    loads `h + v` values. A quarter of the registers is left to these.

    Args:
        shape: rows, columns and depth of the product.
        lanes: elements of a vector.
        registers: how many vectors they hold.
        operands: how they lie.
    """
    rows, columns, depth = shape
    lie = operands or Operands()
    best, least, whole = Blocking(1, lanes), float("inf"), float("inf")
    packing = lie.left_packing * (rows * depth / lanes + 1000) / lie.shared
    for vectors in (1, 2, 4):
        if vectors > 1 and (vectors - 1) * lanes >= columns:
            break
        most = min(registers * 3 // 4, registers - 1 - vectors) // vectors
        last, left = vectors, (columns - 1) % (vectors * lanes) + 1
        # An operand that is packed is best packed in whole panels.
        while last > 1 and last // 2 * lanes >= left and not lie.right_packing:
            last //= 2
        for height in range(1, most + 1):
            row_blocks, col_blocks = ceil(rows / height), ceil(columns / (vectors * lanes))
            for cycles, waits, packs_right in _right(lie, shape, lanes, height, vectors, last):
                packed = cycles + packing + lie.handing(rows * depth / lanes, row_blocks)
                whole = min(whole, packed)
                if packed + waits < least:
                    best = Blocking(height, vectors * lanes, True, packed, packs_right)
                    least = packed + waits
                if not lie.in_place or (lie.left_strays and col_blocks >= REUSED):
                    continue
                if rows % height and not (lie.shifts and height < rows):
                    continue
                # Rows at distances of a power of two meet in the same lines of the first cache.
                over = ceil(height * meeting(lie.stride)) / (lie.ways - 2)
                if over > 1 and depth > 64:
                    cycles += MEETING * over * row_blocks * col_blocks * height * depth
                if lie.left_meets:
                    cycles += MET * row_blocks * col_blocks * depth
                whole = min(whole, cycles)
                if cycles + waits < least:
                    best = Blocking(height, vectors * lanes, False, cycles, packs_right)
                    least = cycles + waits
    return replace(best, cycles=whole)


def _right(
    lie: Operands, shape: tuple[int, int, int], lanes: int, height: int, vectors: int, last: int
) -> Iterator[tuple[float, float, bool]]:
    """The ways to come by the second operand: the cycles of a product, besides packing the first
    one; those of `SPLIT`; and whether the second one is packed though it could be read where it is.

    Args:
        lie: how the operands lie.
        shape: of the product.
        lanes: elements of a vector.
        height: rows of a block.
        vectors: of its columns.
        last: vectors of the last columns.
    """
    rows, columns, depth = shape
    row_blocks, col_blocks = ceil(rows / height), ceil(columns / (vectors * lanes))
    right = columns * depth / lanes

    # Of what rows that begin anywhere in lines make of each step.
    steps = row_blocks * col_blocks * depth
    loading = LOADING * (height + vectors) * steps if lie.right_splits else 0

    def blocks(is_packed: bool) -> float:
        each = [_block_cycles(height, n, depth, lanes, lie, is_packed) for n in (vectors, last)]
        # A shorter block at the end leaves one of two threads idle for half of the difference.
        return row_blocks * ((col_blocks - 1) * each[0] + each[1]) + (each[0] - each[1]) / 2

    if lie.right_packing:
        yield blocks(True) + lie.right_packing + lie.handing(right, col_blocks), 0, False
        return
    is_far = lie.right_is_far and row_blocks * lie.right_shared >= lie.reused
    if is_far and lie.has_masks:
        copying = FAR_PACKING * right / lie.right_shared + lie.handing(right, col_blocks)
        yield blocks(True) + copying, 0, False
        return
    # All blocks of rows go over one panel: what the first cache holds is read once from afar.
    is_held = vectors * lanes * depth <= PANEL and not lie.right_meets
    if (columns % (vectors * lanes) == 0 or lie.has_masks) and (is_held or not is_far):
        waits = SPLIT * lie.right_splits * row_blocks * right + loading
        yield blocks(False) + (FAR_READING * right if is_far else 0), waits, False
    if lie.right_copying:
        copying = lie.right_copying * (right + 1000) / lie.right_shared + lie.joining
        yield blocks(True) + copying + lie.handing(right, col_blocks), loading, True


def _block_cycles(
    height: int, vectors: int, depth: int, lanes: int, lie: Operands, is_packed: bool
) -> float:
    """Of one block, which may read a second operand that is packed though it need not be."""
    step = max(height * vectors, STEPS, height + vectors) + (height + vectors) / 10
    if not lie.has_masks and vectors * lanes * depth > PANEL:
        step = max(step, PASSING * vectors)
    is_late = lie.right_meets or (lie.right_streams and vectors * lanes * depth > PANEL)
    if is_late and not is_packed:
        step += LATE if vectors < FETCHED else LATE / 8
    turning = TURNING * vectors * lanes if lie.is_turned else 0
    return step * (depth + STORE_STEPS) + 20 + turning


LOADED = 1.5
"""Cycles in which a row of 64 bytes of a packed operand comes into a register for matrices, from
the second cache."""

BLOCK, ROW = 100, 5
"""Cycles in which a block of sums in such registers is begun and stored, and in which a row of it
is gone on with, for each register and once more."""

SHAPES = ((1, 1), (1, 2), (1, 3), (1, 4), (2, 1), (2, 2), (3, 1), (4, 1))
"""Registers of a block, along its rows and its columns."""


@functools.lru_cache(maxsize=1024)
def choose_panels(shape: tuple[int, int, int], lanes: int) -> Blocking:
    """The block of sums in registers for matrices that takes the fewest cycles; a product of two
    registers takes a cycle for each row.

    Args:
        shape: rows, columns and steps of the product; in a step rows of both operands are taken.
        lanes: columns of a register, and the rows that it has at most.
    """
    rows, columns, steps = shape
    best = Blocking(2, lanes, True, float("inf"))
    for down, across in SHAPES:
        row_blocks, col_blocks = ceil(rows / (down * lanes)), ceil(columns / (across * lanes))
        height = max(ceil(rows / (row_blocks * down)), 2)
        if ceil(down * height / lanes) < down:
            continue
        step = max(down * across * height, LOADED * (down * height + across * lanes))
        each = steps * step + BLOCK + down * height * ROW * (across + 1)
        cycles = row_blocks * col_blocks * each
        if cycles < best.cycles:
            best = Blocking(down * height, across * lanes, True, cycles)
    return best
