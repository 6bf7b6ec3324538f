"""Scans in a block of a GPU's threads.

A tile has one dim for the places along the scan, of `reduce_tile` elements, besides the nest's. It
is scanned as a whole, combined with what is carried from the tiles before it, and stored:

    carry = start
    for k in 0 .. N step K:
        x = body on [R, K], the neutral element beyond the end
        store fn(carry, tile.scan(x))
        carry = fn(carry, tile.reduce(x))

A scan that one tile covers carries nothing. The dim of the places is the last one where memory
runs along it, otherwise the first, so that the last dim is the one along which memory runs.
"""

from __future__ import annotations

from collections.abc import Sequence

from tessera.dtypes import int64, real_of
from tessera.ir.core import Value, scalar_dtype
from tessera.ir.intexpr import ceildiv, divides, linear_in, simplify
from tessera.ir.order import Tree
from tessera.schedule import ops as s
from tessera.schedule.access import is_affine, offset
from tessera.schedule.types import buffer_type
from tessera.tile import ops as t
from tessera.tile.lowering import reduction
from tessera.tile.lowering.access import write
from tessera.tile.lowering.state import Point, State, TileDim, Val


def scan(low: State, op: s.Scan, point: Point) -> None:
    """Runs along the axis, storing what has been combined so far."""
    if op.axis.extent != 0 and (low.is_block or _has_lanes(low, op, point)):
        _Scan(low, op, point).run()
    else:
        reduction.scan(low, op, point)


def _has_lanes(low: State, op: s.Scan, point: Point) -> bool:
    """Whether a CPU scans whole vectors."""
    return low.reduce_tile > 1 and not scalar_dtype(op.body.outputs[0]).is_complex


class _Scan:
    """One scan at one point.

    Attributes:
        size: places per tile.
        first: whether their dim is the first one.
        neutral: the neutral element.
        is_exact: whether the threads of a block combine places as the program states it.
    """

    def __init__(self, low: State, op: s.Scan, point: Point) -> None:
        self.low = low
        self.op = op
        self.point = point
        (self.out,) = op.body.outputs
        self.dtype = scalar_dtype(self.out)
        assert op.fn.identity is not None
        self.neutral = low.constant(op.fn.identity(real_of(self.dtype)), self.dtype)
        self.where = op.where if isinstance(op, s.ScanFrom) else ()
        self.is_exact = op.order is not None and op.order.tree is Tree.NEIGHBOURS
        self.size = self._size()
        # Squares are scanned along their columns, one vector after the other.
        self.first = not self._is_contiguous() or (bool(point.dims) and not low.is_block)

    def _size(self) -> int:
        # The parts of complex numbers can be scanned one by one only if they are added.
        if self.dtype.is_complex and self.op.fn.name != "add":
            return 1
        extent, order = self.op.axis.extent, self.op.order
        size = self.low.reduce_tile if order is None else order.width
        if isinstance(extent, int) and extent < size:
            return 1 << (extent - 1).bit_length()
        return size

    def _is_contiguous(self) -> bool:
        place = offset(self.op)
        place = place if is_affine(place) else simplify(place, self.low.facts)
        found = linear_in(place, (self.op.axis.name,))
        return found is not None and found[0][self.op.axis.name] == 1

    def run(self) -> None:
        """Emits the loop over tiles."""
        em, size, extent = self.low.em, self.size, self.op.axis.extent
        checked = not divides(size, extent, self.low.facts)
        carry = self.start()
        if isinstance(extent, int) and extent <= size:
            self.step(em.const(0, int64), carry, checked, False)
            return
        if not carry:
            shape = self.inner(em.const(0, int64), False).shape
            line = tuple([1 if k == self.axis else n for k, n in enumerate(shape)])
            carry = [em.broadcast(part, line) for part in self.neutral.parts]
        if not self.low.is_block:
            self.vectors(carry, checked)
            return
        last = em.index((ceildiv(extent, size) - 1) * size)

        def tile(i: Value, carried: list[Value]) -> Sequence[Value]:
            start = em.map("sub", last, i) if self.op.reverse else i
            return self.step(start, carried, checked, True)

        em.loop((em.const(0, int64), em.index(extent), em.const(size, int64)), carry, tile)

    def vectors(self, carry: list[Value], checked: bool) -> None:
        """Full vectors without checks, and the rest, which is the last or the first."""
        em, size, extent = self.low.em, self.size, self.op.axis.extent
        full, end = em.index(extent // size * size), em.index(extent)
        bounds = (em.const(0, int64), full, em.const(size, int64))
        if self.op.reverse:
            if checked:
                carry = list(self.step(full, carry, True, True))
            last = em.map("sub", full, em.const(size, int64))

            def down(i: Value, carried: list[Value]) -> Sequence[Value]:
                return self.step(em.map("sub", last, i), carried, False, True)

            em.loop(bounds, carry, down)
            return
        carry = em.loop(bounds, carry, lambda i, carried: self.step(i, carried, False, True))
        if checked:
            em.when(em.map("lt", full, end), lambda: self.step(full, carry, True, False))

    @property
    def axis(self) -> int:
        """The dim of the places along the scan."""
        return 0 if self.first else len(self.point.dims)

    def inner(self, start: Value, checked: bool) -> Point:
        """The point of one tile."""
        axis = self.op.axis
        dim = TileDim(axis.name, self.size, start, axis.extent, checked)
        return self.point.plus(dim, first=self.first)

    def start(self) -> list[Value]:
        """What is there before the first tile: nothing, or one element for each scan."""
        if not isinstance(self.op, s.ScanFrom):
            return []
        shape = self.point.shape
        parts = self.low.get(self.op.start, self.point)
        line = (*shape[: self.axis], 1, *shape[self.axis :])
        spread = self.low.spread(parts, shape, len(self.neutral.parts))
        return [self.low.em.reshape(part, line) for part in spread]

    def step(
        self, start: Value, carried: list[Value], checked: bool, goes_on: bool
    ) -> Sequence[Value]:
        """Scans and stores one tile; what is carried on."""
        low, op, em = self.low, self.op, self.low.em
        inner = self.inner(start, checked)
        low.run(op.body.ops, inner)
        em.loc = op.loc
        x = self.masked(low.get(self.out, inner), inner)
        parts = low.spread(x, inner.shape, len(self.neutral.parts))
        fields = op.fn, self.axis, op.reverse, self.is_exact
        scanned = Val(tuple([em.pure(t.Scan, part, *fields) for part in parts]), inner.names)
        before = Val(tuple(carried), inner.names)
        total = low.apply(op.fn, before, scanned) if carried else scanned
        written = low.cast(total, buffer_type(op.buf).dtype)
        write(low, op.buf, written, op.index, inner, self.where)
        if not goes_on:
            return ()
        shape = tuple([1 if k == self.axis else n for k, n in enumerate(inner.shape)])
        fields = op.fn, self.axis, self.is_exact
        sums = [em.reshape(em.pure(t.Reduce, part, *fields), shape) for part in parts]
        after = low.apply(op.fn, before, Val(tuple(sums), inner.names))
        return [em.broadcast(part, shape) for part in after.parts]

    def masked(self, x: Val, inner: Point) -> Val:
        """The value, with the neutral element where there is no place along the scan."""
        low = self.low
        found = low.conditions(self.where, inner, ())
        if found is None:
            return self.neutral
        if inner.dims[self.axis].checked:
            found.append(low.inside(inner, self.axis))
        mask = low.em.all_of(found)
        if mask is None:
            return x
        pairs = zip(x.parts, self.neutral.parts, strict=True)
        return Val(tuple([low.em.select(mask, a, b) for a, b in pairs]), inner.names)
