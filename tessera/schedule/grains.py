"""Programs of a CPU's grid, as threads share them: how many are worth a thread's while, and how
large they are."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from math import prod

from tessera.schedule import ops
from tessera.schedule.sizes import size_of
from tessera.schedule.sort_ops import SelectWords, SortWords, work_of

WORK = 65536
"""Additions that one program of a grid should have to do: some 10 microseconds."""

GRAIN = 2 * WORK
"""Additions that are worth a thread's while: to wake it and to wait costs a few microseconds."""

PROGRAMS = 8
"""Programs of a nest that is worth it: enough for two cores to be done at about the same time."""

EACH = 4
"""Programs for each core, where there are more."""

FEW = 4
"""No more cores than this have their programs of a product cut by what is good for two."""

MANY = 4
"""So many cores read more of memory at a time than two, though each reads it less well."""

BYTES = 32
"""What a core reads in a cycle from a cache that many share, while it computes."""

BEGIN = 1000
"""Cycles until a program is under way."""

LATE = 3
"""Programs that the last of many threads is behind the others in the end."""

MOST = 12
"""Programs for each of many cores at most: no more were measured."""

EVEN = 8
"""Shares of fewer are an even number."""

AWAKE = 4
"""How much less is worth the while of a thread that is woken anyway."""


def grain_of(programs: int, work: float, is_awake: bool = False) -> int:
    """Programs of so many additions each that are worth a thread's while; 0 where all together are
    not worth a second thread's.

    Args:
        programs: how many there are.
        work: of each.
        is_awake: whether something follows at once for which threads are woken anyway.
    """
    worth = GRAIN // AWAKE if is_awake else GRAIN
    grain = max(math.ceil(worth / max(work, 1)), 1)
    if programs <= grain:
        return 0
    shares = -(-programs // grain)
    if shares < EVEN:
        shares += shares % 2  # two threads have equally many
    return -(-programs // shares)


def programs_of(cores: int) -> int:
    """Programs that a large nest is cut into, for so many cores."""
    return max(PROGRAMS, EACH * cores)


@dataclass(frozen=True, slots=True)
class Shared:
    """A product of blocks that cores share.

    Attributes:
        copies: products side by side.
        cores: how many.
        cycles: of a block.
        rows: bytes that a row of blocks reads of the first operand.
        columns: the same of a column and the second one.
    """

    copies: int
    cores: int
    cycles: float
    rows: int
    columns: int


@lru_cache(1024)
def share(product: Shared, blocks: tuple[int, int], most: int) -> tuple[int, int]:
    """Rows and columns of blocks that a program has: the last core is done as early as may be,
    each reads little of what others read too, and nobody waits long for the slowest one.

    The constants are those with which choices for twelve shapes were within 3% of the fastest of
    some twenty for each, on 16 cores of a Xeon (Sapphire Rapids).

    Args:
        product: whose blocks they are.
        blocks: along the rows, and along the columns.
        most: rows of a program.
    """

    def programs(size: tuple[int, int]) -> int:
        return prod([-(-n // k) for n, k in zip(blocks, size, strict=True)]) * product.copies

    def time(size: tuple[int, int]) -> float:
        read = size[0] * product.rows + size[1] * product.columns
        each = BEGIN + prod(size) * product.cycles + read / BYTES
        return (-(-programs(size) // product.cores) + LATE) * each

    limit = max(MOST * product.cores // product.copies, 1)
    first = -(-blocks[0] // most)
    sizes = {
        (-(-blocks[0] // k), -(-blocks[1] // j))
        for k in range(first, min(max(limit, first), blocks[0]) + 1)
        for j in range(1, min(max(limit // k, 1), blocks[1]) + 1)
    }
    return min(sorted(sizes), key=time)


def idle(blocks: int, size: int) -> float:
    """How much longer blocks take than if threads were busy to the end, for two threads and for
    four, where a program has so many of them; every program costs a little."""
    full, rest = divmod(blocks, size)
    total = 0.01 * full
    for threads in (2, 4):
        rounds, left = divmod(full, threads)
        longest = (rounds + 1) * size if left else rounds * size + rest
        total += longest * threads / blocks
    return total


def even(extent: int, chunk: int, step: int) -> int:
    """What a program takes of an axis, or a thread of the programs, so that all take about as much
    and are no more: who has equally many of them has done them at the same time.

    >>> even(333, 256, 16)
    176
    """
    programs = -(-extent // chunk)
    equal = -(-extent // programs)
    return min(-(-equal // step) * step, extent)


def sort_grain(op: ops.Sort | SortWords | SelectWords) -> int:
    """Rows of a sort that are worth a thread's while."""
    rows, places, cost = work_of(op)
    extent = size_of(places)
    return grain_of(size_of(rows), cost * extent * extent.bit_length())
