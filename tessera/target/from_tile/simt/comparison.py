"""Comparison of one number with the coordinates of a tile, as where labels become rows of zeros and
a one.

Coordinates are 64 bits wide, and what a register adds to them differs from register to register.
The other side is moved instead, once, and compared with constants of 32 bits.
"""

from __future__ import annotations

from collections.abc import Sequence

from tessera.dtypes import int32, int64
from tessera.ir.core import Value
from tessera.target.from_tile.simt.lowering import Simt
from tessera.tile import ops as tile
from tessera.tile.types import TileType

FEW = 4
"""Registers from which on this pays."""


def coordinates_compared(s: Simt, op: tile.Map, args: Sequence[Sequence[Value]]) -> bool:
    """Whether an elementwise op tells where coordinates are equal to one number."""
    return _parts(s, op, args) is not None


def compare_coordinates(s: Simt, op: tile.Map, args: Sequence[Sequence[Value]]) -> list[Value]:
    """The results, register by register."""
    parts = _parts(s, op, args)
    spread = s.spread_of(op.result)
    assert parts is not None and spread is not None
    number, start, axis = parts
    place = s.index("sub", number, s.cast(s.coordinate(spread, axis), int64))
    if start is not None:
        place = s.index("sub", place, start)
    # Numbers that are not coordinates of the tile stay so when they lose half of their bits.
    size = tile.tile_type(op.result).shape[axis]
    inside = s.index("and", s.index("ge", place, s.i64(0)), s.index("lt", place, s.i64(size)))
    narrow = s.map("select", inside, s.cast(place, int32), s.i32(-1))
    made: dict[int, Value] = {}
    found: list[Value] = []
    for coordinates in spread.coordinates:
        k = coordinates[axis]
        if k not in made:
            made[k] = s.map(op.fn, narrow, s.i32(k))
        found.append(made[k])
    return found


def _parts(
    s: Simt, op: tile.Map, args: Sequence[Sequence[Value]]
) -> tuple[Value, Value | None, int] | None:
    """The number, where the coordinates start and along which axis they count."""
    spread = s.spread_of(op.result)
    if op.fn.name not in ("eq", "ne") or spread is None or spread.registers < FEW:
        return None
    for k in (0, 1):
        counted = _counted(op.args[k])
        if counted is not None and len(set(args[1 - k])) == 1:
            start, axis = counted
            return args[1 - k][0], None if start is None else s.held(start).values[0], axis
    return None


def _counted(value: Value) -> tuple[Value | None, int] | None:
    """The scalar and the axis of a tile that is the axis's coordinates, or these plus a scalar."""
    op = value.op
    if isinstance(op, tile.Iota):
        assert isinstance(op.result.type, TileType)
        return (None, op.axis) if op.result.type.dtype is int64 else None
    if not isinstance(op, tile.Map) or op.fn.name != "add":
        return None
    for one, other in (op.args, op.args[::-1]):
        by, iota = one.op, other.op
        if isinstance(by, tile.Broadcast) and isinstance(iota, tile.Iota):
            assert isinstance(by.x.type, TileType)
            return None if by.x.type.shape else (by.x, iota.axis)
    return None
