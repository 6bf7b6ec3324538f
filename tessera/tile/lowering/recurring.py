"""Loops inside a nest that carry scalars (`schedule.recur` and `schedule.repeat`): tiles that stay
in registers. A loop with a condition ends for a tile when it has ended for all of its points."""

from __future__ import annotations

from collections.abc import Sequence

from tessera.dtypes import bool_
from tessera.ir.core import Block, Value, scalar_dtype
from tessera.ir.scalar import SCALARS
from tessera.ir.types import ScalarType
from tessera.schedule import loop_ops
from tessera.tile import ops as t
from tessera.tile.lowering.state import Point, State, Val


class _Carried:
    """What a loop carries, as tiles with an element for each point."""

    def __init__(self, low: State, point: Point, init: Sequence[Value]) -> None:
        self.low = low
        self.point = point
        self.counts = [2 if scalar_dtype(v).is_complex else 1 for v in init]

    def spread(self, values: Sequence[Value]) -> list[Value]:
        """The tiles of scalars."""
        low, point = self.low, self.point
        found: list[Value] = []
        for value, count in zip(values, self.counts, strict=True):
            found += low.spread(low.get(value, point), point.shape, count)
        return found

    def bind(self, values: Sequence[Value], parts: Sequence[Value]) -> None:
        """The scalars that tiles are."""
        rest = iter(parts)
        for value, count in zip(values, self.counts, strict=True):
            tiles = tuple([next(rest) for _ in range(count)])
            self.low.env[value] = Val(tiles, self.point.names)

    def run(self, block: Block, parts: Sequence[Value]) -> None:
        """Runs a region."""
        self.bind(block.args, parts)
        self.low.run(block.ops, self.point)


def recur(low: State, op: loop_ops.Recur, point: Point) -> None:
    """Runs along the axis."""
    carried = _Carried(low, point, op.init)

    def body(parts: list[Value]) -> Sequence[Value]:
        carried.run(op.body, parts)
        return carried.spread(op.body.outputs)

    carried.bind(op.results, low.each(op.axis, carried.spread(op.init), body, op.reverse))


def repeat(low: State, op: loop_ops.Repeat, point: Point) -> None:
    """Goes on while any point of the tile does; the others keep what they have."""
    em = low.em
    carried = _Carried(low, point, op.init)

    def goes(parts: Sequence[Value]) -> Value:
        carried.run(op.cond, parts)
        (wish,) = op.cond.outputs
        return em.broadcast(low.get(wish, point).parts[0], point.shape)

    def any_of(parts: list[Value]) -> Value:
        found = parts[0]
        for _ in point.shape:
            found = em.pure(t.Reduce, found, SCALARS["or"], len(t.tile_type(found).shape) - 1)
        return found

    def body(parts: list[Value]) -> Sequence[Value]:
        active, *before = parts
        outer, low.active = low.active, Value(ScalarType(bool_), "active")
        low.env[low.active] = Val((active,), point.names)
        carried.run(op.body, before)
        low.active = outer
        after = carried.spread(op.body.outputs)
        kept = [em.select(active, a, b) for a, b in zip(after, before, strict=True)]
        return [em.map("and", active, goes(kept)), *kept]

    start = carried.spread(op.init)
    active = goes(start)
    for k, dim in enumerate(point.dims):
        if dim.checked:
            # What lies beyond the end might never end.
            active = em.map("and", active, em.broadcast(low.inside(point, k), point.shape))
    _, *last = em.repeat([active, *start], any_of, body)
    carried.bind(op.results, last)
