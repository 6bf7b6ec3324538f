"""Sorting rows that are longer than a block can hold: runs that a block sorts, merged in pairs.

A program merges one tile of the result. Which elements of the two runs it holds is known from the
splits, which a kernel of its own finds by binary search, many tiles at a time (Green, McColl and
Bader, "GPU merge path", 2012). The program reads the elements of the first run forwards and those
of the second one backwards into one tile, which then rises and falls, and a merging network sorts
it:

    position   0 ........ na | ....... | T - nb ........ T
    elements   first run, up | largest | second run, down
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from tessera.dtypes import int64
from tessera.ir.core import Value
from tessera.ir.intexpr import Dim, ceildiv, maximum, minimum, sym
from tessera.schedule import sort_ops
from tessera.schedule.types import BufType, buffer_type
from tessera.schedule.words import PLACE_BITS, Layout
from tessera.tile import ops as t
from tessera.tile.lowering.emitter import Emitter
from tessera.tile.lowering.sort_words import Network, Words, last, precedes

Merging: TypeAlias = sort_ops.SplitRuns | sort_ops.MergeRuns

DIAGONALS = 128
"""Tiles whose beginnings one program looks for."""


def lower_runs(
    em: Emitter,
    op: sort_ops.SortRuns | Merging,
    memory: dict[Value, Value],
) -> tuple[Dim, ...]:
    """Emits the body of the kernel; returns its grid."""
    em.loc = op.loc
    match op:
        case sort_ops.SortRuns():
            return _sort_runs(em, op, memory)
        case sort_ops.SplitRuns():
            return _split_runs(em, op, memory)
        case sort_ops.MergeRuns():
            return _merge_runs(em, op, memory)


class _Grid:
    """Programs for each row, and several along it.

    Attributes:
        grid: programs along each axis.
        at: the number of the program along the row.
    """

    def __init__(self, em: Emitter, type: BufType, axis: int, programs: Dim) -> None:
        self.em = em
        self.names: dict[int, str] = {}
        others = [k for k in range(len(type.shape)) if k != axis]
        for at in range(len(others)):
            self.names[at] = f"$p{at}"
            em.symbols[f"$p{at}"] = em.pure(t.ProgramId, at)
        self.grid = (*[type.shape[k] for k in others], programs)
        self.at = em.pure(t.ProgramId, len(others))

    def base(self, type: BufType, axis: int) -> Value:
        """The offset of the row in a buffer."""
        strides = [step for k, step in enumerate(type.element_strides()) if k != axis]
        total: Dim = 0
        for k, step in enumerate(strides):
            total = total + step * sym(self.names[k])
        return self.em.index(total)


def _view(em: Emitter, mem: Value, base: Value, count: Value, step: Dim = 1) -> Value:
    """A view on a row."""
    return em.pure(t.View, mem, base, (count,), (em.index(step),))


def repeats(op: Merging) -> Dim:
    """How often the kernel runs: 1, or 0 if rows are so short that they are left alone."""
    type, axis = _words(op)
    return minimum(maximum(type.shape[axis] - op.least, 0), 1) if op.least else 1


def _sort_runs(em: Emitter, op: sort_ops.SortRuns, memory: dict[Value, Value]) -> tuple[Dim, ...]:
    first = buffer_type(op.keys[0])
    count = first.shape[op.axis]
    rows = _Grid(em, first, op.axis, ceildiv(count, op.run))
    start = em.map("mul", rows.at, em.const(op.run, int64))
    length, shape = em.index(count), (op.run,)
    keys: list[Value] = []
    for buf in op.keys:
        type = buffer_type(buf)
        step = type.element_strides()[op.axis]
        view = _view(em, memory[buf], rows.base(type, op.axis), length, step)
        keys.append(em.pure(t.Load, view, (start,), (), shape, (0,), 0))
    place = em.map("add", start, em.pure(t.Iota, shape, 0))
    packed = keys
    if not op.packed:
        layout = Layout.of([buffer_type(v).dtype for v in op.keys], PLACE_BITS)
        packed = Words(em, layout, op.descending, shape).pack(keys, place)
    network = Network(em, shape, 0, op.run // (32 * op.warps))
    found = last(em, em.map("lt", place, length), packed)
    found = network.first(found, op.keep) if op.keep else network.sorted(found)
    check = (0,)
    if op.keep:
        start, check = em.map("mul", rows.at, em.const(op.keep, int64)), ()
    for word, buf in zip(found, op.words, strict=True):
        type = buffer_type(buf)
        axis = len(type.shape) - 1
        view = _view(em, memory[buf], rows.base(type, axis), em.index(type.shape[axis]))
        em.add(t.Store(view, word, (start,), (), check, loc=em.loc))
    return rows.grid


@dataclass(frozen=True, slots=True)
class _Pair:
    """The pair of runs that some tiles of the result belong to; scalars, or tiles of them.

    Attributes:
        base: place of its first element.
        diagonal: elements of the pair before the tile.
        first: elements of the first run.
        second: elements of the second run.
    """

    base: Value
    diagonal: Value
    first: Value
    second: Value


def _pair(
    em: Emitter, op: Merging, memory: dict[Value, Value], number: Value, count: Value
) -> _Pair:
    """The pair of the tile of a number."""
    run = em.const(op.run, int64)
    if op.runs:
        view = em.pure(t.View, memory[op.runs[0]], em.const(0, int64), (), ())
        run = em.pure(t.Load, view, (), (), (), (), 0)
    both = em.map("add", run, run)
    begin = em.map("mul", number, em.const(op.tile, int64))
    base = em.map("mul", em.map("floordiv", begin, both), both)
    left = em.map("sub", count, base)
    first = em.map("min", left, run)
    second = em.map("min", em.map("sub", left, first), run)
    return _Pair(base, em.map("sub", begin, base), first, second)


def _words(op: Merging) -> tuple[BufType, int]:
    """The type of the words, and their last axis."""
    type = buffer_type(op.words[0])
    return type, len(type.shape) - 1


def _gather(
    em: Emitter,
    memory: dict[Value, Value],
    words: Sequence[Value],
    at: Value,
    mask: Value,
    last: bool = False,
) -> list[Value]:
    """Words at some offsets; where the mask is false 0, or the last word."""
    found: list[Value] = []
    for word in words:
        fill = 2 ** buffer_type(word).dtype.bits - 1 if last else 0
        found.append(em.add(t.Gather(memory[word], at, (mask,), fill, loc=em.loc))[0])
    return found


def _split_runs(em: Emitter, op: sort_ops.SplitRuns, memory: dict[Value, Value]) -> tuple[Dim, ...]:
    type, axis = _words(op)
    count = type.shape[axis]
    tiles = ceildiv(count, op.tile)
    rows = _Grid(em, type, axis, ceildiv(tiles, DIAGONALS))
    start = em.map("mul", rows.at, em.const(DIAGONALS, int64))
    base = rows.base(type, axis)
    number = em.map("add", start, em.pure(t.Iota, (DIAGONALS,), 0))
    pair = _pair(em, op, memory, number, em.index(count))
    zero, one = em.const(0, int64), em.const(1, int64)
    low = em.map("max", em.map("sub", pair.diagonal, pair.second), zero)
    high = em.map("min", pair.diagonal, pair.first)
    left = em.map("add", base, pair.base)
    right = em.map("add", left, pair.first)
    until = em.map("sub", pair.diagonal, one)

    def halve(_: Value, carried: list[Value]) -> Sequence[Value]:
        low, high = carried
        goes_on = em.map("lt", low, high)
        middle = em.map("shr", em.map("add", low, high), one)
        a = _gather(em, memory, op.words, em.map("add", left, middle), goes_on)
        other = em.map("add", right, em.map("sub", until, middle))
        b = _gather(em, memory, op.words, other, goes_on)
        before = precedes(em, a, b)
        lower = em.select(em.map("and", goes_on, before), em.map("add", middle, one), low)
        stays = em.map("and", goes_on, em.map("not", before))
        return [lower, em.select(stays, middle, high)]

    steps = em.const(op.run.bit_length() or PLACE_BITS, int64)
    found, _ = em.loop((zero, steps, one), [low, high], halve)
    splits = buffer_type(op.splits)
    view = _view(em, memory[op.splits], rows.base(splits, axis), em.index(tiles))
    em.add(t.Store(view, found, (start,), (), (0,), loc=em.loc))
    return rows.grid


def _merge_runs(em: Emitter, op: sort_ops.MergeRuns, memory: dict[Value, Value]) -> tuple[Dim, ...]:
    type, axis = _words(op)
    count = type.shape[axis]
    tiles = ceildiv(count, op.tile)
    rows = _Grid(em, type, axis, tiles)
    pair = _pair(em, op, memory, rows.at, em.index(count))
    size, one = em.const(op.tile, int64), em.const(1, int64)
    splits = buffer_type(op.splits)
    view = _view(em, memory[op.splits], rows.base(splits, axis), em.index(tiles))

    def split(number: Value) -> Value:
        (found,) = em.add(t.Load(view, (number,), (), (1,), (), 0, loc=em.loc))
        return em.reshape(found, ())

    # The last tile of a pair ends with the first run.
    total = em.map("add", pair.first, pair.second)
    reached = em.map("add", pair.diagonal, size)
    end = em.map("min", reached, total)
    follower = em.map("min", em.map("add", rows.at, one), em.index(tiles - 1))
    i, j = split(rows.at), split(follower)
    j = em.select(em.map("ge", reached, total), pair.first, j)
    first_count = em.map("sub", j, i)
    begin = em.map("sub", pair.diagonal, i)
    second_count = em.map("sub", em.map("sub", end, j), begin)

    place = em.pure(t.Iota, (op.tile,), 0)
    back = em.map("sub", em.const(op.tile - 1, int64), place)
    is_first, is_second = em.map("lt", place, first_count), em.map("lt", back, second_count)
    base = em.map("add", rows.base(type, axis), pair.base)
    first_at = em.map("add", em.map("add", base, i), place)
    second_base = em.map("add", em.map("add", base, pair.first), begin)
    at = em.select(is_first, first_at, em.map("add", second_base, back))
    found = _gather(em, memory, op.words, at, em.map("or", is_first, is_second), last=True)
    network = Network(em, (op.tile,), 0, op.tile // (32 * op.warps))
    merged = network.merged(found, op.tile)
    start = em.map("mul", rows.at, size)
    for word, buf in zip(merged, op.outputs, strict=True):
        target = _view(em, memory[buf], rows.base(type, axis), em.index(count))
        em.add(t.Store(target, word, (start,), (), (0,), loc=em.loc))
    return rows.grid
