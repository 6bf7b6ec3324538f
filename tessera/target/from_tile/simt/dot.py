"""Products of matrices: tensor cores where there is an instruction, multiply-adds elsewhere."""

from __future__ import annotations

from tessera.dtypes import DType
from tessera.ir.core import Value
from tessera.ir.types import ScalarType
from tessera.target import ops as t
from tessera.target.from_tile.simt.exchange import shared, to_spread
from tessera.target.from_tile.simt.lowering import Simt
from tessera.target.from_tile.simt.spread import Spread, blocked
from tessera.tile import ops as tile
from tessera.tile.types import TileType


def dot_spread(op: tile.Dot, warps: int) -> Spread:
    """How the accumulator lies."""
    assert isinstance(op.result.type, TileType)
    shape = op.result.type.shape
    return blocked(shape, warps, (1, 0), 4)


def dot(s: Simt, op: tile.Dot) -> None:
    """Both operands go through shared memory; each thread multiplies what its elements need."""
    acc = to_spread(s, s.held(op.acc), s.spread_of(op.result))
    a, b = s.held(op.a), s.held(op.b)
    dtype = acc.dtype
    depth = a.shape[1]
    left = _room(s, op.a, "lhs")
    right = _room(s, op.b, "rhs")
    spread = acc.spread
    if spread is None:
        row: Value = s.i32(0)
        col: Value = s.i32(0)
        coordinates = ((0, 0),)
    else:
        row, col = s.coordinate(spread, 0), s.coordinate(spread, 1)
        coordinates = spread.coordinates
    values = list(acc.values)
    for k in range(depth):
        lhs: dict[int, Value] = {}
        rhs: dict[int, Value] = {}
        for r, (i, j) in enumerate(coordinates):
            if i not in lhs:
                at = s.index("mul", s.index("add", row, s.i32(i)), s.i32(depth))
                lhs[i] = _element(s, left, s.index("add", at, s.i32(k)), a.dtype, dtype)
            if j not in rhs:
                at = s.index("add", s.index("add", col, s.i32(j)), s.i32(k * b.shape[1]))
                rhs[j] = _element(s, right, at, b.dtype, dtype)
            if dtype.is_inexact:
                values[r] = s.map("fma", lhs[i], rhs[j], values[r])
            else:
                values[r] = s.map("add", values[r], s.map("mul", lhs[i], rhs[j]))
    s.define(op.result, values)


def _element(s: Simt, room: Value, at: Value, stored: DType, dtype: DType) -> Value:
    value = s.emit(t.Load(room, at, (), ScalarType(stored), 0, loc=s.loc))
    return s.convert(value, dtype)


def _room(s: Simt, value: Value, label: str) -> Value:
    """A row-major copy of an operand in shared memory."""
    x = s.held(value)
    count = 1
    for n in x.shape:
        count *= n
    room = shared(s, x.dtype, count, label)
    if x.spread is None:
        guard = s.first_copy(s.threads - 1)
        s.emit(t.Store(room, s.i32(0), x.values[0], () if guard is None else (guard,), loc=s.loc))
        return room
    spread = x.spread.reshaped(x.shape)
    guard = s.first_copy(spread.copies)
    masks = () if guard is None else (guard,)
    row, col = s.coordinate(spread, 0), s.coordinate(spread, 1)
    for (i, j), v in zip(spread.coordinates, x.values, strict=True):
        at = s.index("mul", s.index("add", row, s.i32(i)), s.i32(x.shape[1]))
        at = s.index("add", at, s.index("add", col, s.i32(j)))
        s.emit(t.Store(room, at, v, masks, 0, loc=s.loc))
    return room
