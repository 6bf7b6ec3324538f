"""How windows move along dims: their lengths, strides and padding as users give them."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tessera.errors import OptionError, ShapeError
from tessera.graph.ops.rearrange import pad, slice_axis, spaced
from tessera.graph.ops.windows import windows
from tessera.ir import loc
from tessera.ir.intexpr import Dim, IntExpr, ceildiv, maximum

Padding = str | Sequence[tuple[int, int]]


@dataclass(frozen=True, slots=True)
class Window:
    """How windows move along one dim, whose elements were first padded."""

    size: int
    stride: int
    dilation: int
    lo: Dim
    hi: Dim
    base: int
    """How far apart the operand's own elements are put; 1 is adjacent."""

    @property
    def span(self) -> int:
        """From the first element of a window to its last, both included."""
        return (self.size - 1) * self.dilation + 1

    def room(self, dim: Dim) -> Dim:
        """At how many places the window fits into a dim, its stride left aside."""
        return spaced(dim, self.base - 1) + self.lo + self.hi - self.span + 1

    def count(self, dim: Dim) -> Dim:
        """How many windows there are along a dim."""
        room = self.room(dim)
        return ceildiv(max(room, 0) if isinstance(room, int) else room, self.stride)


def parse_ints(
    name: str, what: str, given: Any, count: int, default: int | None = None
) -> tuple[int, ...]:
    """One positive int for each of some dims."""
    if given is None and default is not None:
        return (default,) * count
    try:
        found = tuple([operator.index(n) for n in (() if given is None else given)])
    except TypeError:
        found = ()
    if len(found) != count or any(n < 1 for n in found):
        raise ShapeError(
            f"{name}: {what} is {given!r}",
            loc=loc.current(),
            rule=f"it has {count} ints, each 1 or more",
        )
    return found


def parse_windows(
    name: str,
    dims: Sequence[Dim],
    sizes: Sequence[int],
    strides: Sequence[int],
    padding: Any,
    base: Sequence[int],
    dilation: Sequence[int],
) -> list[Window]:
    """What moves along each dim; `padding` as users give it."""
    pads = _pads(name, dims, sizes, strides, padding, base, dilation)
    rows = zip(sizes, strides, dilation, pads, base, strict=True)
    return [Window(size, stride, apart, lo, hi, b) for size, stride, apart, (lo, hi), b in rows]


def _pads(
    name: str,
    dims: Sequence[Dim],
    sizes: Sequence[int],
    strides: Sequence[int],
    padding: Any,
    base: Sequence[int],
    dilation: Sequence[int],
) -> list[tuple[Dim, Dim]]:
    if isinstance(padding, str):
        kind = padding.upper()
        if kind == "VALID":
            return [(0, 0)] * len(dims)
        if kind not in ("SAME", "SAME_LOWER"):
            raise OptionError(
                f"{name}: padding={padding!r}",
                loc=loc.current(),
                rule="padding is 'SAME', 'SAME_LOWER', 'VALID', or a pair of ints for each dim",
            )
        found: list[tuple[Dim, Dim]] = []
        for dim, size, stride, b, apart in zip(dims, sizes, strides, base, dilation, strict=True):
            own = spaced(dim, b - 1)
            total = maximum((ceildiv(own, stride) - 1) * stride + (size - 1) * apart + 1 - own, 0)
            half = total // 2
            found.append((half, total - half) if kind == "SAME" else (total - half, half))
        return found
    try:
        pairs = [(_index(lo), _index(hi)) for lo, hi in padding]
    except (TypeError, ValueError):
        pairs = []
    if len(pairs) != len(dims):
        raise ShapeError(
            f"{name}: padding={padding!r}",
            loc=loc.current(),
            rule=f"there are {len(dims)} pairs of ints: elements before and after each dim",
        )
    return pairs


def _index(value: Any) -> Dim:
    return value if isinstance(value, IntExpr) else operator.index(value)


def padded(x: Any, axes: Sequence[int], moves: Sequence[Window], value: Any) -> Any:
    """The operand with the elements beyond its ends, and between its own; negative ones cut."""
    lo, hi, inner = [0] * x.ndim, [0] * x.ndim, [0] * x.ndim
    for axis, w in zip(axes, moves, strict=True):
        lo[axis], hi[axis], inner[axis] = _positive(w.lo), _positive(w.hi), w.base - 1
    x = pad(x, value, lo, hi, inner)
    for axis, w in zip(axes, moves, strict=True):
        start, end = _positive(-w.lo), x.shape[axis] - _positive(-w.hi)
        x = slice_axis(x, axis, start, maximum(end, start))
    return x


def _positive(n: Dim) -> Any:
    return max(n, 0) if isinstance(n, int) else maximum(n, 0)


def moved(x: Any, axes: Sequence[int], moves: Sequence[Window]) -> Any:
    """The windows of a padded operand: in place of each axis, and their elements last."""
    columns = [[getattr(w, what) for w in moves] for what in ("size", "stride", "dilation")]
    return windows(x, axes, *columns)
