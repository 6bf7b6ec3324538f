"""Where the elements of a box access are, and which of them there are: addresses and masks."""

from __future__ import annotations

import functools
from collections.abc import Sequence

from tessera.dtypes import int16, int32
from tessera.ir.core import Value
from tessera.ir.types import ScalarType
from tessera.target import ops as t
from tessera.target.from_tile.lowering import Lowering, View


class Box:
    """Addresses and masks of one box access."""

    def __init__(
        self,
        s: Lowering,
        view: View,
        coords: Sequence[Value],
        shape: tuple[int, ...],
        check: Sequence[int],
        start: Sequence[int] = (),
    ) -> None:
        self.s = s
        self.view = view
        self.coords = [s.scalar(c) for c in coords]
        if start:
            places = zip(self.coords, start, strict=True)
            self.coords = [s.map("add", c, s.index(n)) for c, n in places]
        self.shape = shape
        self.check = check
        self.lanes = shape[-1] if shape else 1
        self.base = view.offset
        for coord, stride in zip(self.coords, view.strides, strict=True):
            self.base = s.map("add", self.base, s.map("mul", coord, stride))
        self.lane_mask: Value | None = None
        self.left: Value | None = None
        last = len(shape) - 1
        if last in check and self.lanes > 1:
            self.left = s.map("sub", view.sizes[-1], self.coords[-1])
            left, dtype = s.map("min", self.left, s.index(self.lanes)), int32
            if view.dtype.bits < 32:
                # As wide as what is masked, or twice; of a row far behind the end less is left.
                left, dtype = s.map("max", left, s.index(0)), int16
            limit = s.splat(s.cast(left, dtype), self.lanes)
            self.lane_mask = s.map("lt", s.emit(t.Lanes(self.lanes, dtype, loc=s.loc)), limit)

    def offset(self, index: tuple[int, ...]) -> Value:
        """The element offset of a row's first element."""
        offset = self.base
        for i, stride in zip(index, self.view.strides, strict=False):
            offset = self.s.map("add", offset, self.s.map("mul", self.s.index(i), stride))
        return offset

    def place(self, index: tuple[int, ...], extra: Value | None) -> Value:
        """The offset to access a row at: that of the first one for a row that is outside, and that
        of the array for one that a condition of its own excludes. No lane of it is wanted then,
        but to find that there is no memory takes a CPU hundreds of cycles."""
        guard = self.guard(index) if self.lanes > 1 and any(index) else None
        offset = self.offset(index)
        if guard is not None:
            offset = self.s.map("select", guard, offset, self.base)
        if self.lanes > 1 and extra is not None and isinstance(extra.op, t.Splat):
            offset = self.s.map("select", extra.op.x, offset, self.s.index(0))
        return offset

    def guard(self, index: tuple[int, ...]) -> Value | None:
        """The scalar condition under which a row is inside the view, or None."""
        s = self.s
        found: Value | None = None
        dims = [*index, 0] if self.shape else []
        for axis in self.check:
            if axis == len(self.shape) - 1 and self.lanes > 1:
                continue
            at = s.map("add", self.coords[axis], s.index(dims[axis]))
            inside = s.map("lt", at, self.view.sizes[axis])
            found = inside if found is None else s.map("and", found, inside)
        return found

    def mask(self, index: tuple[int, ...], extra: Value | None) -> Value | None:
        """The whole mask of a row: a scalar bool for scalar rows, a vector otherwise, or None."""
        guard = self.guard(index)
        if self.lanes > 1 and guard is not None:
            guard = self.s.splat(guard, self.lanes)
        return self.every([self.lane_mask, guard, extra])

    def condition(
        self, index: tuple[int, ...], extra: Value | None
    ) -> tuple[Value | None, Value | None]:
        """The mask of a row in two parts: a scalar for all of its lanes, and what differs between
        them."""
        of_row, of_lanes = [self.guard(index)], [self.lane_mask]
        for part in () if extra is None else _factors(extra):
            if isinstance(part.type, ScalarType):
                of_row.append(part)
            else:
                of_lanes.append(part)
        return self.every(of_row), self.every(of_lanes)

    def every(self, parts: Sequence[Value | None]) -> Value | None:
        """The conjunction of those masks that there are."""
        found = [part for part in parts if part is not None]
        return functools.reduce(lambda a, b: self.s.map("and", a, b), found) if found else None


def _factors(mask: Value) -> list[Value]:
    """What has to hold for a mask to, scalars where it is the same in all lanes."""
    op = mask.op
    if isinstance(op, t.Map) and op.fn.name == "and":
        return [part for arg in op.args for part in _factors(arg)]
    return [op.x if isinstance(op, t.Splat) else mask]
