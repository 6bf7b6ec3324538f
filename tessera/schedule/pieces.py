"""Nests cut where conditions change, so that each piece has none of them left.

What is joined along an axis and read by what follows is computed where it is used:

    nest i < 512: y[i] = f(select(i < 256, a[2*i] if i < 256, b[2*i - 512] if i >= 256))
    ==>
    nest i < 256: y[i] = f(a[2*i])
    nest i < 256: y[256 + i] = f(b[2*i])

The first gathers both sides at each point, one of them for nothing, and what lies apart in memory
one by one, where whole vectors would do. Where elements are neighbours, vectors under masks cost so
little that one loop over whole rows is better: a rotary embedding takes 0.6 of the time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod

from tessera.dtypes import bool_
from tessera.ir.core import Block, Op
from tessera.ir.intbounds import is_nonneg
from tessera.ir.intexpr import Dim, Facts, linear_in, sym, symbols
from tessera.ir.types import ScalarType
from tessera.schedule import ops
from tessera.schedule.access import Access, accesses
from tessera.schedule.axes import ranges
from tessera.schedule.copying import POINTWISE, Copy
from tessera.schedule.emit import without_dead
from tessera.schedule.types import Axis

LEAST = 64
"""Places of the last axis that a piece has: vectors are filled."""

LEAST_POINTS = 8192
"""And points. What is less is computed before another loop has begun."""

MOST = 4
"""Pieces of a nest: each is code of its own."""

MOST_OPS = 160
"""Ops of all pieces together."""


def cut(nest: ops.Nest, facts: Facts) -> list[ops.Nest]:
    """The pieces of a nest; the nest alone where it is not cut."""
    if nest.ordered or not all([type(op) in POINTWISE for op in nest.body.ops]):
        return [nest]
    if any([isinstance(op, ops.Store) and op.combine is not None for op in nest.body.ops]):
        return [nest]
    extents = [axis.extent for axis in nest.axes]
    sizes = [extent for extent in extents if isinstance(extent, int)]
    if len(sizes) < len(extents) or not sizes:
        return [nest]
    conditions = list(dict.fromkeys(_conditions(nest.body)))
    found = accesses(nest, facts) if conditions else []
    apart = {name for access in found for name in _apart(nest, access)}
    for axis in reversed(nest.axes):
        if axis.name not in apart:
            continue
        assert isinstance(axis.extent, int)
        points = prod(sizes) // max(axis.extent, 1)
        least = max(-(-LEAST_POINTS // max(points, 1)), LEAST if axis is nest.axes[-1] else 1)
        ends = _ends(conditions, axis.name, axis.extent, least)
        if 1 < len(ends) <= MOST and len(nest.body.ops) * len(ends) <= MOST_OPS:
            starts = [0, *ends[:-1]]
            return [
                _piece(nest, axis, start, end, facts)
                for start, end in zip(starts, ends, strict=True)
            ]
    return [nest]


def _apart(nest: ops.Nest, access: Access) -> frozenset[str]:
    """What the conditions of a load are about whose elements lie apart along the last axis."""
    op, stride = access.op, access.stride(nest.axes[-1].name)
    if not isinstance(op, ops.Load) or stride is None or stride in (-1, 0, 1):
        return frozenset()
    return frozenset([name for condition in op.where for name in symbols(condition)])


def _conditions(body: Block) -> Iterator[Dim]:
    for op in body.ops:
        if isinstance(op, (ops.Load, ops.Store, ops.Holds)):
            yield from op.where


def _ends(conditions: Sequence[Dim], name: str, extent: int, least: int) -> list[int]:
    """Where the pieces of an axis end: at changes of conditions about it alone, as far as all
    pieces have so many places."""
    places: set[int] = set()
    for condition in conditions:
        if list(symbols(condition)) != [name]:
            continue
        found = linear_in(condition, [name])
        if found is None:
            continue
        step, rest = found[0][name], found[1]
        if isinstance(step, int) and isinstance(rest, int) and step:
            # step * i + rest >= 0 from here on, or up to here.
            places.add(-(rest // step) if step > 0 else rest // -step + 1)
    ends: list[int] = []
    for place in sorted(places):
        if (ends[-1] if ends else 0) + least <= place <= extent - least:
            ends.append(place)
    return [*ends, extent]


def _piece(nest: ops.Nest, axis: Axis, start: int, end: int, facts: Facts) -> ops.Nest:
    """The points of a nest whose place on an axis is one of these."""
    own = Axis(axis.name, end - start)
    axes = tuple([own if one is axis else one for one in nest.axes])
    mapping = {axis.name: sym(axis.name) + start}
    writer = _Writer(mapping, ranges(axes, facts))
    for op in nest.body.ops:
        writer.op(op)
    body = Block((), without_dead(writer.code), ())
    return ops.Nest(axes, nest.ordered, reason=nest.reason, body=body, loc=nest.loc)


class _Writer:
    """Writes the code of a piece, without what is decided in it.

    Args:
        mapping: what the axis is in terms of the piece's.
        facts: the ranges of the piece's axes.
    """

    def __init__(self, mapping: dict[str, Dim], facts: Facts) -> None:
        self.copy = Copy(mapping)
        self.facts = facts
        self.code: list[Op] = []

    def op(self, op: Op) -> None:
        """One op."""
        if isinstance(op, (ops.Load, ops.Store, ops.Holds)):
            where = self.left(op.where)
            if where is None or (isinstance(op, ops.Holds) and not where):
                self.decided(op, where is not None)
            else:
                self.guarded(op, where)
            return
        if isinstance(op, ops.Map) and op.fn.name == "select":
            condition = self.copy.find(op.operands[0]).op
            if isinstance(condition, ops.Const):
                chosen = op.operands[1 if condition.value else 2]
                self.copy.env[op.result] = self.copy.find(chosen)
                return
        self.code.append(self.copy.op(op))

    def guarded(self, op: Op, where: tuple[Dim, ...]) -> None:
        """An op with the conditions that are left."""
        attrs: dict[str, object] = {"where": where}
        if isinstance(op, ops.Load) and not where:
            attrs["fill"] = 0
        fresh = self.copy.op(op)
        new = fresh.rebuild(fresh.operands, [], **attrs)
        self.copy.env.update(zip(op.results, new.results, strict=True))
        self.code.append(new)

    def left(self, where: Sequence[Dim]) -> tuple[Dim, ...] | None:
        """The conditions that are not known to hold; None where one is known not to."""
        found = self.copy.places(where)
        if any([is_nonneg(-e - 1, self.facts) for e in found]):
            return None
        return tuple([e for e in found if not is_nonneg(e, self.facts)])

    def decided(self, op: ops.Load | ops.Store | ops.Holds, holds: bool) -> None:
        """What a condition decides: a store does nothing."""
        if isinstance(op, ops.Store):
            return
        assert isinstance(op.result.type, ScalarType)
        number = holds if isinstance(op, ops.Holds) else op.fill
        dtype = bool_ if isinstance(op, ops.Holds) else op.result.type.dtype
        made = ops.Const(number, dtype, loc=op.loc)
        self.code.append(made)
        self.copy.env[op.result] = made.result
