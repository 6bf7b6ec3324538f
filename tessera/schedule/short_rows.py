"""Short rows, of which a CPU takes several through their passes together.

A pass over a short row is over before its lanes are combined, which takes as long again, and what
belongs to a row is computed in one lane. Of several rows one waits while others are worked on,
their lanes are combined in half of the steps (`side_by_side` of the lowering to registers), and
what belongs to a row is a lane of a vector:

    nest i, j: tile [4, 64]:  s = reduce r: x[i, r];  y[i, j] = x[i, j] * s

Each row goes through the same operations as by itself, so its bits are the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tessera.ir.core import Op
from tessera.ir.intexpr import Dim
from tessera.ir.walk import walk
from tessera.schedule import ops, streaming
from tessera.schedule.access import dependence_of
from tessera.schedule.types import Axis

if TYPE_CHECKING:
    from tessera.schedule.heuristics import Choice

ROWS = 8
"""Rows that go together, at most: code is written down for each of them."""

LONGEST = 2048
"""Bytes of a row that is not short any more: it waits for memory, not for its lanes."""

NEAR = 4096
"""Bytes of rows that go together where all is in a cache."""

FAR = 1024
"""The same where it is not."""

BRIEF = 512
"""Bytes of a row whose exponentials had better wait beside those of other rows; several go together
then, and are fetched."""

EXPONENTIALS = frozenset({"exp", "exp2"})
"""Functions with few temporaries; others would spill registers in four vectors."""

FEW = 24
"""Ops of a body whose own temporaries leave room for those."""

ROOT = 4
"""What a square root costs, the dearest of instructions."""

TIMES = 8
"""So many times as many rows as go together there are where the last ones do some once more, as
their number is no multiple. A million elements, us on two cores of a Zen 4: `logsumexp` of rows of
7, an odd number of them, 1490 and 339, of 13 948 and 254, `max` 165 and 53."""

LONE = 4
"""Vectors of a row whose only sum keeps a processor busy: it is at the next rows by itself."""

REDUCING = (ops.Reduce, ops.ArgReduce)
"""What has lanes along a row."""

_PLAIN = (ops.Load, ops.Store, ops.Map, ops.Cast, ops.Const, ops.Index, *REDUCING)


def row_width(choice: Choice, length: Dim, width: int) -> int:
    """Lanes of a tile along a row. Exponentials take twice as many where a row would be a loop of
    two steps, and where it is long: of two vectors each step waits for the one before.

    Args:
        choice: that of the nest.
        length: elements of a row.
        width: lanes otherwise.
    """
    most = choice.machine.registers // 8 * choice.lanes
    if not choice.costly or not isinstance(length, int):
        return width
    is_short = bool(choice.whole) and length <= most
    is_long = _bytes(choice, length) >= LONGEST and _is_simple(choice)
    if is_long:
        return max(width, most, 4 * choice.lanes)
    return max(width, most) if is_short else width


def _is_simple(choice: Choice) -> bool:
    """Whether four vectors have room in the registers, beside the constants of an exponential."""
    costly = {op.fn.name for op in choice.code if isinstance(op, ops.Map) and op.fn.cost > ROOT}
    return costly <= EXPONENTIALS and len(choice.code) <= FEW


def _bytes(choice: Choice, length: int) -> int:
    return length * choice.machine.vector_bits // (8 * choice.lanes)


def take_together(choice: Choice, rows: Sequence[Axis], row: Axis, found: Sequence[Op]) -> None:
    """Has a nest take several short rows together.

    Args:
        choice: that of the nest, with the lanes of its reductions.
        rows: the axes along which rows lie.
        row: the axis that runs along a row.
        found: the reductions.
    """
    if choice.reduce_tile < 2 or choice.tiles.keys() - {row.name} or not rows:
        return
    extent = rows[-1].extent
    if not isinstance(extent, int) or not isinstance(row.extent, int):
        return
    if _is_product(choice, rows[-1], row, found):
        choice.reduce_tile = choice.lanes
        _put_together(choice, rows, ROWS)
        return
    size = _bytes(choice, row.extent)
    if not 0 < size < LONGEST:
        return
    vectors = max(choice.reduce_tile // choice.lanes, 1)
    is_loop = row.extent > choice.reduce_tile
    if _is_busy(found, vectors, is_loop) or not _is_plain(choice, rows[-1].name):
        return
    is_whole = row.name in choice.whole
    part, room = _share(choice, row, found)
    most = min(choice.machine.registers // part // vectors, room // size, extent, ROWS)
    count = 1 << max(most, 1).bit_length() - 1
    while not is_whole and extent % count:
        if extent >= TIMES * count and may_repeat(choice.nest):
            break
        count //= 2  # lanes of results beyond the end would have rows to read
    if count > 1:
        _put_together(choice, rows, count)


def _put_together(choice: Choice, rows: Sequence[Axis], count: int) -> None:
    choice.tiles[rows[-1].name] = count
    choice.reason += f"; {count} rows together"
    choice.last = choice.last or [axis.name for axis in rows]


def _is_product(choice: Choice, axis: Axis, row: Axis, found: Sequence[Op]) -> bool:
    """Whether rows are multiplied by one vector, near the processor. Of eight rows at a time each
    has one sum, whose second operand is in memory; what it multiplies is loaded once for all."""
    op = found[0]
    if len(found) > 1 or not isinstance(op, ops.Reduce) or op.fn.name != "add" or choice.whole:
        return False
    inner = op.body.ops
    maps = [x.fn.name for x in inner if isinstance(x, ops.Map)]
    if maps != ["mul"] or not all(isinstance(x, ops.Load | ops.Map) for x in inner):
        return False
    steady = [a.stride(axis.name) == 0 for a in choice.accesses if a.op in inner]
    if sorted(steady) != [False, True]:
        return False
    count, length = axis.extent, row.extent
    assert isinstance(count, int)
    assert isinstance(length, int)
    if count % ROWS and not (count >= TIMES * ROWS and may_repeat(choice.nest)):
        return False
    is_near = not streaming.is_far(choice.nest, choice.machine)
    return length > 2 * choice.lanes and is_near and _is_plain(choice, axis.name)


def may_repeat(nest: ops.Nest) -> bool:
    """Whether points of a nest may be done twice. What is read where it is written may lie where
    the result does."""
    code = list(walk(nest.body))
    stores = [op for op in code if isinstance(op, ops.Store)]
    written = {op.buf for op in stores}
    places = {op.index for op in stores}
    loads = [op for op in code if isinstance(op, ops.Load)]
    return (
        not nest.ordered
        and all(op.combine is None and not op.dyn for op in stores)
        and all(op.buf not in written and op.index not in places for op in loads)
        and all(isinstance(op, _PLAIN) for op in code)
    )


def _share(choice: Choice, row: Axis, found: Sequence[Op]) -> tuple[int, int]:
    """The part of the registers for what rows that go together read, as its inverse, and the bytes
    of these rows."""
    assert isinstance(row.extent, int)
    is_far = streaming.is_far(choice.nest, choice.machine)
    if _bytes(choice, row.extent) <= BRIEF and _is_exponential(choice, row, found):
        return 2, 4 * FAR >> _arrays(choice, row) if is_far else NEAR // 2
    is_loop = row.name in choice.whole and row.extent > choice.reduce_tile
    part = 2 if not choice.heavy else 8 if choice.costly and is_loop else 4
    return part, FAR if is_far else NEAR


def _is_exponential(choice: Choice, row: Axis, found: Sequence[Op]) -> bool:
    """Whether exponentials are the costly functions of elements."""
    along = {row.name}.union(*[ops.bound_axes(op) for op in found])
    depends = dependence_of(choice.nest.body).ops
    costly = [op for op in choice.code if isinstance(op, ops.Map) and op.fn.cost > ROOT]
    elements = {op.fn.name for op in costly if not along.isdisjoint(depends[op])}
    return choice.costly and elements <= EXPONENTIALS


def _arrays(choice: Choice, row: Axis) -> int:
    """How many arrays have rows."""
    along = [a for a in choice.accesses if a.stride((a.inner[-1] if a.inner else row).name) != 0]
    return len({a.op.buf for a in along})


def _is_plain(choice: Choice, row: str) -> bool:
    """Whether all accesses go from row to row by steps; places that data tell would be gathered."""
    depends = dependence_of(choice.nest.body).values
    axes = {axis.name for a in choice.accesses for axis in a.inner}
    axes |= {axis.name for axis in choice.nest.axes}
    return all(
        not isinstance(a.op, ops.Scan)
        and not (a.is_guarded or a.stride(row) is None)
        and all([axes.isdisjoint(depends[v]) for v in a.op.dyn])
        and (not a.inner or a.stride(a.inner[-1].name) in (0, 1))
        for a in choice.accesses
    )


def _is_busy(found: Sequence[Op], vectors: int, is_loop: bool) -> bool:
    """Whether there is nothing to wait for, or a long search for a place, whose masks take
    registers."""
    if any(isinstance(op, ops.ArgReduce) for op in found):
        return len(found) > 1 or is_loop
    if not all(isinstance(op, ops.Reduce) for op in found):
        return True
    op = found[0]
    is_sum = isinstance(op, ops.Reduce) and op.fn.name == "add"
    return len(found) == 1 and is_sum and vectors >= LONE
