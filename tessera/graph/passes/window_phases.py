"""Windows over elements that stand apart are, phase by phase, windows over elements that do not.

Where a dim was padded with `s - 1` zeros between its elements, which is what a stride of `s` leaves
behind in a gradient, every s-th place of a window stands on an element, and all others on zeros.
Which these are is the same for every s-th window: those are a *phase*. A phase is windows with the
places of the window that count, moving over the elements without the zeros between them:

    u[lo + s * y] = x[y], 0 elsewhere;    out[i] = sum over k of u[i + k] w[k]
    ==>
    out[s * q + p] = sum over m of x[q + m - (lo - p - k0) / s] w[k0 + s * m],   k0 = (lo - p) mod s

so that no product has a factor that is known to be zero. Phases are joined along a new first dim,
and their elements moved to their places afterwards.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product
from math import prod

from tessera.graph.ops.generate import Constant, Dense
from tessera.graph.ops.rearrange import Concatenate, Pad, Slice
from tessera.graph.ops.reduce import Sum
from tessera.graph.ops.reshape import Broadcast, Reshape, Reverse, Transpose
from tessera.graph.ops.windows import Windows
from tessera.ir.core import Op, Value, tensor_type
from tessera.ir.intexpr import Dim

MOST_PHASES = 16
"""More phases than this would be many short products."""

Chain = tuple[Sum, list[Op]]
"""A sum, and the moves in front of it."""


@dataclass(frozen=True, slots=True)
class _Axis:
    """A dim with zeros between its elements.

    Attributes:
        at: which dim.
        window: the dim of the window that moves along it.
        step: how far apart the elements are.
        lo: zeros in front of the first element, less the windows that are not wanted.
        count: windows that are wanted.
    """

    at: int
    window: int
    step: int
    lo: int
    count: int

    @property
    def length(self) -> int:
        """Windows of a phase."""
        return -(-self.count // self.step)


@dataclass(frozen=True, slots=True)
class _Places:
    """The places of a window that count in a phase, along one dim.

    Attributes:
        first: the first of them; others follow in steps.
        before: how many elements the first window begins before the first one.
        after: how many elements the last window ends behind the last one.
    """

    first: int
    before: int
    after: int


class Phases:
    """The phases of a sum over windows.

    Attributes:
        code: ops that put the phases together.
    """

    def __init__(self, total: Sum, moves: Sequence[Op], cut: Slice | None) -> None:
        self.total, self.cut = total, cut
        self.moves = list(moves)
        self.at = next(k for k, op in enumerate(moves) if isinstance(op, Pad) and _apart(op))
        self.code: list[Op] = []
        self.axes = self._axes()

    def run(self, compute: Callable[[Sum, list[Op]], Value | None]) -> Value | None:
        """The sum, put together of phases; None where the rule does not hold.

        Args:
            compute: gives the value of one phase.
        """
        axes = self.axes
        if not axes or prod([axis.step for axis in axes]) > MOST_PHASES:
            return None
        parts: list[Value] = []
        for phase in product(*[range(axis.step) for axis in axes]):
            chain = self._chain(phase)
            value = self._nothing() if chain is None else compute(*chain)
            if value is None:
                return None
            parts.append(value)
        return self._joined(parts)

    def _add(self, op: Op) -> Value:
        self.code.append(op)
        return op.results[0]

    def _axes(self) -> list[_Axis]:
        """The dims with zeros in between; none where they are not all of the kind."""
        pad, *rest = self.moves[self.at :]
        assert isinstance(pad, Pad)
        windows = next((op for op in rest if isinstance(op, Windows)), None)
        if windows is None or any(not isinstance(op, (Reverse, Windows)) for op in rest):
            return []
        outer = tensor_type(windows.x).rank - len(windows.axes)
        found: list[_Axis] = []
        for at, inner in enumerate(pad.interior):
            if inner == 0:
                continue
            k = windows.axes.index(at) if at in windows.axes else -1
            if k < 0 or windows.step[k] != 1 or windows.dilation[k] != 1:
                return []
            if any(at in op.axes for op in rest if isinstance(op, Reverse)):
                return []
            lo, count = pad.lo[at], tensor_type(windows.result).shape[at]
            size = tensor_type(pad.x).shape[at]
            if not all(isinstance(n, int) for n in (inner, lo, pad.hi[at], count, size)):
                return []
            assert isinstance(inner, int) and isinstance(lo, int) and isinstance(count, int)
            start, count = self._wanted(at, count)
            if count < 1:
                return []
            found.append(_Axis(at, outer + k, inner + 1, lo - start, count))
        return found

    def _place(self, at: int) -> int:
        """The dim of the sum that a dim in front of it is."""
        return at - sum(axis < at for axis in self.total.axes)

    def _wanted(self, at: int, count: int) -> tuple[int, int]:
        """The first window that is wanted, and how many are; none where that is not known."""
        if self.cut is None:
            return 0, count
        k = self._place(at)
        start, limit = self.cut.start[k], self.cut.limit[k]
        if self.cut.stride[k] != 1 or not isinstance(start, int) or not isinstance(limit, int):
            return 0, 0
        return start, limit - start

    def _places(self, axis: _Axis, p: int) -> _Places | None:
        """Which places of the window count in a phase; None where there is none."""
        pad = self.moves[self.at]
        assert isinstance(pad, Pad)
        shape = tensor_type(pad.x).shape
        size, window = shape[axis.at], shape[axis.window]
        assert isinstance(size, int)
        assert isinstance(window, int)
        first = (axis.lo - p) % axis.step
        taps = -(-(window - first) // axis.step)
        if taps < 1:
            return None
        before = (axis.lo - p - first) // axis.step
        return _Places(first, before, axis.length + taps - 1 - size - before)

    def _chain(self, phase: Sequence[int]) -> Chain | None:
        """The moves and the sum of a phase; None where no place of the window counts."""
        pad = self.moves[self.at]
        assert isinstance(pad, Pad)
        rank = len(pad.lo)
        lo, hi, interior = list(pad.lo), list(pad.hi), list(pad.interior)
        start, cut = [0] * rank, [0] * rank
        picks: dict[int, tuple[int, int]] = {}
        for axis, p in zip(self.axes, phase, strict=True):
            all_ = [self._places(axis, n) for n in range(axis.step)]
            found = all_[p]
            if found is None:
                return None
            # All phases read one padded operand.
            before = max([0, *[one.before for one in all_ if one is not None]])
            after = max([0, *[one.after for one in all_ if one is not None]])
            lo[axis.at], hi[axis.at], interior[axis.at] = before, after, 0
            start[axis.at], cut[axis.at] = before - found.before, after - found.after
            picks[axis.window] = (found.first, axis.step)
        moves: list[Op] = [Pad(pad.x, pad.value, tuple(lo), tuple(hi), tuple(interior))]
        for op in self.moves[self.at + 1 :]:
            value = moves[-1].results[0]
            if isinstance(op, Windows):
                shape = tensor_type(value).shape
                begin = [picks[k][0] if k in picks else n for k, n in enumerate(start)]
                limit = [n - m for n, m in zip(shape, cut, strict=True)]
                step = [picks[k][1] if k in picks else 1 for k in range(rank)]
                moves.append(Slice(value, tuple(begin), tuple(limit), tuple(step), loc=pad.loc))
                value = moves[-1].results[0]
            moves.append(op.rebuild([value]))
        total = self.total.rebuild([moves[-1].results[0]])
        assert isinstance(total, Sum)
        return total, [*self.moves[: self.at], *moves]

    def _shape(self) -> list[int]:
        """The dims of the result of a phase."""
        shape = list(tensor_type(self.total.result).shape)
        for axis in self.axes:
            shape[self._place(axis.at)] = axis.length
        assert all(isinstance(n, int) for n in shape)
        return [n for n in shape if isinstance(n, int)]

    def _nothing(self) -> Value:
        """A phase whose windows stand on zeros."""
        zero = self._add(Constant(Dense.of(0, tensor_type(self.total.result).dtype)))
        return self._add(Broadcast(zero, tuple(self._shape()), ()))

    def _joined(self, parts: Sequence[Value]) -> Value:
        """All phases, with their elements at their places."""
        loc, shape = self.total.loc, self._shape()
        steps = [axis.step for axis in self.axes]
        places = [self._place(axis.at) for axis in self.axes]
        rows = [self._add(Reshape(v, (1, *shape), loc=loc)) for v in parts]
        joined = self._add(Concatenate(tuple(rows), 0, loc=loc))
        apart = self._add(Reshape(joined, (*steps, *shape), loc=loc))
        perm: list[int] = []
        for k in range(len(shape)):
            perm.append(len(steps) + k)
            if k in places:
                perm.append(places.index(k))
        value = self._add(Transpose(apart, tuple(perm), loc=loc))
        for k, step in zip(places, steps, strict=True):
            shape[k] *= step
        value = self._add(Reshape(value, tuple(shape), loc=loc))
        start: list[Dim] = [0] * len(shape)
        limit, stride = list[Dim](shape), list[Dim]([1] * len(shape))
        if self.cut is not None:
            start, limit = list(self.cut.start), list(self.cut.limit)
            stride = list(self.cut.stride)
        for axis, k in zip(self.axes, places, strict=True):
            start[k], limit[k] = 0, axis.count
        if any(n != 0 for n in start) or limit != shape or any(n != 1 for n in stride):
            value = self._add(Slice(value, tuple(start), tuple(limit), tuple(stride), loc=loc))
        return value


def has_phases(moves: Sequence[Op]) -> bool:
    """Whether exactly one of the moves puts zeros between elements."""
    return sum(isinstance(op, Pad) and _apart(op) for op in moves) == 1


def _apart(op: Pad) -> bool:
    return any(d != 0 for d in op.interior)
