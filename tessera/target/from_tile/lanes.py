"""Lanes that change places, which a shuffle of one vector or two does."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

from tessera.ir.core import Op, Value
from tessera.target import ops as t
from tessera.target.from_tile.lowering import Lowering, Rows, Rule
from tessera.target.types import VecType
from tessera.tile import lane_ops
from tessera.tile import ops as tile


def slide(s: Lowering, op: lane_ops.Slide) -> None:
    """Lanes of a row and of what is beside it."""
    x, beside = s.rows(op.x), s.rows(op.beside)
    count, by = x.lanes, op.by
    if by == 0 or count == 1:
        s.define(op.result, (x if by == 0 else beside).values)
        return
    if by > 0:
        other = _at_width(s, beside, count, range(beside.lanes))
        pair, first = (x.values[0], other), by
    else:
        # What is wanted are its last lanes, which come to stand at the end.
        other = _at_width(s, beside, count, range(-count, 0))
        pair, first = (other, x.values[0]), count + by
    s.define(op.result, [s.emit(t.Shuffle(*pair, tuple(range(first, first + count)), loc=s.loc))])


def _at_width(s: Lowering, x: Rows, count: int, lanes: Sequence[int]) -> Value:
    """A row of another width; lanes beyond its own hold anything."""
    (value,) = x.values
    if x.lanes == count:
        return value
    if isinstance(value.op, t.Const):
        return s.const(value.op.value, VecType(count, x.dtype))
    if x.lanes == 1:
        return s.splat(value, count)
    picks = [lane % x.lanes for lane in lanes]
    picks += picks[-1:] * (count - len(picks))
    return s.emit(t.Shuffle(value, value, tuple(picks), loc=s.loc))


def unzip(s: Lowering, op: lane_ops.Unzip) -> None:
    """Every second lane of two rows."""
    x, y = s.rows(op.x), s.rows(op.y)
    picks = tuple(range(op.first, 2 * x.lanes, 2))
    s.define(op.result, [s.emit(t.Shuffle(x.values[0], y.values[0], picks, loc=s.loc))])


def stack(s: Lowering, op: lane_ops.Stack) -> None:
    """A tile is its rows."""
    s.define(op.result, s.flatten(op.tiles))


def row(s: Lowering, op: lane_ops.Row) -> None:
    """Some of the rows of a tile."""
    x = s.rows(op.x)
    count = len(x.values) // x.shape[0]
    s.define(op.result, x.values[op.k * count : (op.k + 1) * count])


def flip_bits(s: Lowering, op: tile.FlipBits) -> None:
    """Lanes, or rows, whose numbers have other bits."""
    x = s.rows(op.x)
    if op.axis == len(x.shape) - 1:
        picks = tuple([k ^ op.mask for k in range(x.lanes)])
        moved = op.mask != 0
        s.define(
            op.result,
            [s.emit(t.Shuffle(v, v, picks, loc=s.loc)) if moved else v for v in x.values],
        )
        return
    result = list(x.values)
    for rows in slices(x, op.axis):
        for k, row in enumerate(rows):
            result[row] = x.values[rows[k ^ op.mask]]
    s.define(op.result, result)


def slices(x: Rows, axis: int) -> list[list[int]]:
    """For a leading axis: for each row of the result, the rows along the axis."""
    lead = x.shape[:-1]
    kept = [range(n) for k, n in enumerate(lead) if k != axis]
    result: list[list[int]] = []
    for index in itertools.product(*kept):
        rows: list[int] = []
        for i in range(lead[axis]):
            full = [*index[:axis], i, *index[axis:]]
            flat = 0
            for position, size in zip(full, lead, strict=True):
                flat = flat * size + position
            rows.append(flat)
        result.append(rows)
    return result


RULES: Mapping[type[Op], Rule] = {
    lane_ops.Slide: slide,
    lane_ops.Unzip: unzip,
    lane_ops.Stack: stack,
    lane_ops.Row: row,
    tile.FlipBits: flip_bits,
}
