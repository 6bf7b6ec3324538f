"""Arrays of few columns: vectors along them would have few lanes.

    y[i, j] = sin(x[i, j])      for i < 100000, j < 2

A vector along `j` has two lanes at work of sixteen, and a long function takes eight times as long.
Where both axes are one in memory, `axes.collapse` makes one of them. What keeps them apart (a
condition on rows, a sum or a scan along either) is done for as many rows as a vector has lanes:
they are read as whole vectors, and their columns are parted in registers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tessera.dtypes import DType
from tessera.ir.core import Op
from tessera.ir.intexpr import Dim, symbols
from tessera.schedule import ops
from tessera.schedule.access import Access, dependence_of
from tessera.schedule.blocking import LINE_BYTES
from tessera.schedule.sizes import power_below, size_of
from tessera.schedule.types import Axis

if TYPE_CHECKING:
    from tessera.schedule.heuristics import Choice

FEW = 4
"""An axis is narrow if a vector has so many times as many lanes: columns that are parted take a
quarter longer to read and to write."""

COSTLY = 2
"""The same where a function is long."""

MOST_ROWS = 8
"""Short rows of a tile, along one axis."""

WORD = 32
"""Bits of a word."""

LEAST_ROW = 8
"""Bytes of a row that is moved by itself."""

LEAST_BYTES = 32
"""Bytes of one that does not fill its vector."""

LINES = 256
"""Bytes of them where they lie side by side."""

LINE = 64
"""Bytes of memory that come together."""

PARTED = 0.8
"""Lanes at work of vectors whose columns are parted, in comparison with others."""

LEAST_DEPTH = 8
"""A depth that is as long is worth lanes of its own."""

LONG_DEPTH = 8
"""Vectors of a depth from which on squares of an operand are turned."""

MOST_DEPTH = 32
"""The deepest product of few columns that has lanes along rows."""

MOST_VECTORS = 2
"""Registers that the elements of a column take at most, unless a function is long. Of places (i64)
beside bfloat16 they would take four: to part five columns of these is a thousand instructions."""

SEVERAL = 3
"""Loads under conditions from which on it pays; a roll or a pad of rows of 128 has up to two, and
takes up to 1.5 of the time in narrower tiles."""

CROSS = 2
"""So many are enough beside others, as in a stencil of four neighbours, where most tiles test no
condition: steps of a wave in planes of [48, 64] take a Zen 3 0.7 of the time, of [48, 33] 1.08."""

TILES = 8
"""Tiles of an axis at whose ends a condition is tested: with four, half of the tiles of a stencil
of 128 x 128 test it, and a Zen 3 takes 1.07 ms for 200 steps rather than 0.71."""


def is_narrow(choice: Choice, axis: Axis, times: int = FEW) -> bool:
    """Whether vectors along an axis have a few of their lanes at work."""
    return isinstance(axis.extent, int) and axis.extent * times <= choice.lanes


def rows_of(choice: Choice, axis: Axis) -> Axis | None:
    """The axis of rows that are to be taken side by side, as their elements, along `axis`, are few;
    None where they are not."""
    if not is_narrow(choice, axis, COSTLY if choice.costly else FEW):
        return None
    most = MOST_VECTORS * choice.machine.vector_bits
    if not choice.costly and choice.lanes * _widest(choice) > most:
        return None
    rows = [one for one in choice.free if one is not axis]
    return rows[-1] if rows and _fill(choice, rows[-1]) else None


def rows_near(choice: Choice, axis: Axis, inside: Sequence[Access]) -> Axis | None:
    """The same for reductions, where what is read of neighbouring rows lies near."""
    rows = rows_of(choice, axis)
    return rows if rows is not None and _are_near(rows, inside) else None


def lie_mixed(choice: Choice, axis: Axis, found: Sequence[Access]) -> bool:
    """Whether whole vectors have elements of neighbouring rows, or all of these need the same."""
    near = axis.extent != 0 and _are_near(axis, found)
    return near and rows_near(choice, axis, found) is not None


def _are_near(axis: Axis, found: Sequence[Access]) -> bool:
    """Whether a step along an axis is short for all accesses."""
    steps = [access.stride(axis.name) for access in found]
    return all([isinstance(step, int) and abs(step) <= FEW for step in steps])


GATHERED = 8
"""What an element costs that is gathered, in accesses to memory that lies in a cache; a row that is
read whole costs as much as two."""


ELEMENT, ROW = 3, 2
"""What one costs in a vector that gathers it, and a row that is read whole, in steps of what is
computed for each row."""


def price(choice: Choice, op: Op) -> int:
    """What an op costs for each element, in accesses to memory."""
    if isinstance(op, ops.Load) and op.dyn and choice.lanes > 1:
        at = next(access for access in choice.accesses if access.op is op)
        along = [size for name, size in choice.tiles.items() if at.stride(name) == 1]
        return max(2 * GATHERED // max(along), 1) if along and max(along) > 1 else GATHERED
    return int(isinstance(op, (ops.Load, ops.Store, ops.Scan)))


def data(choice: Choice) -> list[Access]:
    """The accesses without those that tell where others are."""
    if not any([isinstance(a.op, ops.Load) and a.op.dyn for a in choice.accesses]):
        return choice.accesses
    wanted = {v for op in choice.code for region in op.regions for v in region.outputs}
    for op in reversed(choice.code):
        if isinstance(op, ops.Store) or not wanted.isdisjoint(op.results):
            places = op.dyn if isinstance(op, (ops.Load, ops.Store)) else ()
            wanted.update([value for value in op.operands if value not in places])
    told = [a for a in choice.accesses if a.is_store or not wanted.isdisjoint(a.op.results)]
    return told


def take_gathered(choice: Choice) -> bool:
    """Has lanes run along short rows that are read at computed places: a row is one access then,
    and places have the registers of numbers. Gathers of elements take an access for each. 50,000
    rows of f32, us on two cores of a Zen 4: of 4 elements 46 and 25, of 16 elements 197 and 40."""
    if choice.costly or choice.updates:
        return False
    stores = [access for access in choice.accesses if access.is_store]
    for access in choice.accesses:
        if not isinstance(access.op, ops.Load) or not access.op.dyn:
            continue
        for row in choice.free:
            is_short = isinstance(row.extent, int) and 1 < row.extent < choice.width
            is_near = is_short and all([a.stride(row.name) == 1 for a in (access, *stores)])
            if is_near and not _is_more_to_do(choice, row):
                choice.vectorise(row, choice.width)
                choice.reason = f"lanes along {row.name}, whose rows are read at computed places"
                return True
    return False


def rows_at_places(choice: Choice, axis: Axis) -> Axis | None:
    """The axis of short rows whose places take longer to compute than their elements do."""
    told = any([isinstance(op, ops.Load) and bool(op.dyn) for op in choice.code])
    rows = [one for one in choice.free if one is not axis]
    if not told or not rows or not isinstance(axis.extent, int) or axis.extent >= choice.width:
        return None
    return rows[-1] if _fill(choice, rows[-1]) and _is_more_to_do(choice, axis) else None


def _is_more_to_do(choice: Choice, row: Axis) -> bool:
    """Whether what tells places, and whatever else rows have one of, takes longer for each row than
    its elements do one by one, which lanes along other axes gather. 65,536 rows of f32 on a core of
    a Xeon (Emerald Rapids), us, read whole and gathered: between four neighbours at places that are
    computed, of 3 elements 1009 and 363, of 8 925 and 979; at those of a list 161 and 152, 274 and
    577."""
    depends = dependence_of(choice.nest.body).ops
    loads = sum([isinstance(op, ops.Load) and bool(op.dyn) for op in choice.code])
    own = [d for op, d in depends.items() if isinstance(op, (ops.Map, ops.Cast))]
    steps = sum([bool(d) and row.name not in d for d in own])
    return ELEMENT * size_of(row.extent) * loads < ROW * loads + steps


def short_rows(choice: Choice, axis: Axis, inside: Sequence[Access]) -> Axis:
    """The axis of short rows that lie side by side along an axis, instead of it: so lines of memory
    are read at once by loops that come from far each time."""
    for row in choice.free:
        if row is axis or not isinstance(row.extent, int) or not 1 < row.extent < choice.lanes:
            continue
        if any(a.stride(row.name) == 1 and a.stride(axis.name) == row.extent for a in inside):
            return row
    return axis


def _row_bytes(choice: Choice, axis: Axis) -> int:
    return size_of(axis.extent) * choice.machine.vector_bits // 8 // choice.lanes


def fill(choice: Choice, axis: Axis) -> None:
    """Tiles of several rows where one of them is short."""
    rows = [a for a in choice.free if a is not axis and size_of(a.extent) > 1]
    if choice.tiles[axis.name] * 2 <= choice.width and rows:
        take_rows(choice, axis, rows)


def fill_loops(choice: Choice, axis: Axis, room: int) -> None:
    """The same for loops of their own that carry so much in registers."""
    if _row_bytes(choice, axis) < LINE and room >= choice.width:
        fill(choice, axis)


def take_rows(choice: Choice, axis: Axis, rows: Sequence[Axis]) -> None:
    """Tiles of several short rows. Rows of another axis, which lie side by side where these do not,
    are taken by lines of memory: `permute_dims(x, (1, 0, 2))` of [1024, 64, 4] reads eight at each
    of eight places, and writes eight at each of eight. One core of a Zen 5 takes 32 us so, and 87
    row by row; 40 for [2048, 64, 2], and 120; 28 for [256, 64, 16], and 71."""
    last, count = rows[-1], min(choice.width // choice.tiles[axis.name], MOST_ROWS)
    choice.tiles[last.name] = min(count, power_below(size_of(last.extent)))
    choice.last.insert(0, last.name)
    size = _row_bytes(choice, axis)
    # Conditional stores of a few lanes, in turn to several rows, take longer where memory is far.
    is_whole = choice.tiles[axis.name] == axis.extent or size >= LEAST_BYTES
    lines = LINES if choice.machine.turns else LINE_BYTES
    beside = min(lines // size, MOST_ROWS) if is_whole and size >= LEAST_ROW else 1
    for other in reversed(rows[:-1]):
        strides = [(a.stride(other.name), a.stride(last.name)) for a in choice.accesses]
        if beside > 1 and any(near == axis.extent != far for near, far in strides):
            choice.tiles[other.name] = min(beside, power_below(size_of(other.extent)))
            choice.last.insert(0, other.name)
            return


def runs_down(choice: Choice, columns: Axis, moving: Sequence[Access], longest: int) -> bool:
    """Whether the reductions of few columns have lanes along the columns' elements: what they read
    lies near enough for whole vectors to be read."""
    strides = [access.stride(access.inner[-1].name) for access in moving if access.inner]
    near = all([isinstance(stride, int) and abs(stride) <= FEW for stride in strides])
    return near and longest > choice.lanes and is_narrow(choice, columns)


def is_product(choice: Choice, rows: Axis, columns: Axis, depth: int, along: bool) -> bool:
    """Whether the lanes of a product are rows.

    Args:
        choice: what is known of the nest.
        rows: of the product.
        columns: of the product.
        depth: of the product.
        along: whether both operands run along it.
    """
    if not is_narrow(choice, columns, COSTLY) or not _fill(choice, rows):
        return False
    if not choice.costly:
        return along and depth < LEAST_DEPTH
    return depth <= MOST_DEPTH if along else depth < LEAST_DEPTH and is_narrow(choice, columns)


def has_long_rows(choice: Choice, rows: Axis, columns: Axis) -> bool:
    """Whether what follows a product takes long, and its columns are few: with lanes along the
    depth it would be done for one sum at a time."""
    return choice.costly and is_narrow(choice, columns, COSTLY) and _fill(choice, rows)


def has_long_columns(choice: Choice, dtype: DType, columns: Axis, depth: int) -> bool:
    """Whether lanes had better go along the columns of a product whose operands run along its
    depth, and squares of the second one be turned for it: what follows takes long, and would be
    done for one sum at a time; or it costs little, and the depth is long or numbers are converted.

    One core of a Zen 5, us, `silu(x @ w.T)` of four rows: of 16 by 1024 columns 34 and 4.7, of 256
    51 and 20, without `silu` 29 and 18. Bytes that are multiplied in groups stay as they are.

    Args:
        choice: what is known of the nest.
        dtype: of the sums.
        columns: of the product.
        depth: of the product.
    """
    if not _fill(choice, columns):
        return False
    found = [a.dtype for a in choice.accesses if a.inner]
    is_wider = any(one.is_inexact and one.bits < dtype.bits for one in found)
    is_long = dtype.is_inexact and depth >= LONG_DEPTH * choice.lanes
    is_long = is_long and all(one is dtype for one in found)
    return choice.costly or (choice.machine.turns and (is_wider or is_long))


def is_short_scan(choice: Choice, rows: Axis, extent: Dim) -> bool:
    """Whether running sums of short rows have a lane for each row."""
    if not isinstance(extent, int) or not _fill(choice, rows):
        return False
    return extent * (1 if choice.costly else COSTLY) < choice.lanes


def bordered_width(choice: Choice, axis: Axis) -> int:
    """The width of tiles along an axis: the usual one, or less, so that conditions of several loads
    on the places of a short axis, as at a stencil's border, are tested in few of them only; and
    where elements lie apart, of which each is some code, no more of them than words would be."""
    if any(_lies_apart(access, axis) for access in choice.accesses):
        return min(choice.width, choice.machine.vector_bits // WORD * 4)
    found = [op.where for op in choice.code if isinstance(op, ops.Load)]
    tested = [where for where in found if any(axis.name in symbols(e) for e in where)]
    most = power_below(size_of(axis.extent) / TILES)
    is_cross = len(tested) == CROSS and len(found) > CROSS and most >= choice.lanes
    if len(tested) < SEVERAL and not is_cross:
        return choice.width
    return min(choice.width, max(choice.lanes, most))


def _lies_apart(access: Access, axis: Axis) -> bool:
    """Whether elements are read or written one by one; those of few columns are parted in
    registers, unless there are conditions."""
    stride = access.stride(axis.name)
    return not isinstance(stride, int) or abs(stride) > (1 if access.is_guarded else FEW)


def _widest(choice: Choice) -> int:
    """Bits of the widest element that is read or written."""
    return max([access.dtype.bits for access in choice.accesses], default=0)


def _fill(choice: Choice, rows: Axis) -> bool:
    extent = rows.extent
    return not isinstance(extent, int) or extent >= choice.lanes
