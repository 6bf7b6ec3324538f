"""Loops in numerics analysis: intervals of what a loop carries that hold at every step.

Short loops of known length are walked step by step. Others start with the intervals of the
initial values, join what a step makes of them, and widen what still grows after some steps, to
powers of two and in the end to all numbers (Cousot and Cousot, "Abstract interpretation", 1977);
then a few steps of narrowing. Sums that grow by a bounded amount at each of a bounded number of
steps are found apart: `c + x` is at most so many times the largest `x` away from where it began.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from tessera.dtypes import DType, finfo
from tessera.graph.ops.control import While
from tessera.graph.ops.scan import INDEX, Scan
from tessera.ir.core import Op
from tessera.ir.interval import EMPTY, Interval, finite_range, full_range, rounded
from tessera.ir.types import TensorType
from tessera.verify.terms import Term

if TYPE_CHECKING:
    from tessera.verify.graph_walk import Known, Walk

UNROLLED = 8
"""Loops of so many steps are walked step by step."""

JOINED = 3
"""So many times what a step gives is joined as it is, before it is widened."""

MAX_ROUNDS = 40

Step = Callable[[Sequence["Known"]], list["Known"]]


def scan(walk: Walk, op: Scan, given: Sequence[Known]) -> list[Known]:
    """What a scan gives."""
    from tessera.verify.graph_walk import Known

    consts, init, xs = op.split(given)
    least, most = walk.sizes(op.length)
    slices: list[Known] = []
    for arg, x in zip(op.body.args[1 + len(consts) + len(init) :], xs, strict=True):
        type = arg.type
        assert isinstance(type, TensorType)
        slices.append(Known(walk.leaf(type, walk.interval(x)), x.blame))
    last = int(most) - 1 if most < math.inf else finite_range(INDEX.dtype).hi
    index = Known(walk.leaf(INDEX, Interval(0, max(last, 0))))

    def step(state: Sequence[Known]) -> list[Known]:
        return walk.block(op.body, [index, *consts, *state, *slices])

    count = len(init)
    types = [_type(v) for v in op.results]
    if least == most <= UNROLLED:
        state: list[Known] = list(init)
        stacked = [Known(walk.leaf(t, EMPTY)) for t in types[count:]]
        for _ in range(int(most)):
            found = step(state)
            state = found[:count]
            stacked = [_joined(walk, t, a, b) for t, a, b in
                       zip(types[count:], stacked, found[count:], strict=True)]  # fmt: skip
        return [*state, *stacked]
    begin, blame = _fixpoint(walk, step, init, types[:count], most)
    ends = _final(walk, step, begin, types[:count], blame)
    results: list[Known] = []
    for k, (type, end) in enumerate(zip(types, ends, strict=True)):
        found = walk.interval(end)
        blamed = end.blame
        if k < count:
            # At any step what is carried lies where the fixpoint says, also after the last.
            found = found.meet(begin[k]) if least else found.join(walk.interval(init[k]))
            blamed = blamed | init[k].blame
        results.append(Known(walk.leaf(type, found), blamed))
    return results


def while_loop(walk: Walk, op: While, given: Sequence[Known]) -> list[Known]:
    """What a while loop gives."""
    from tessera.verify.graph_walk import Known

    consts, init = given[: len(op.consts)], list(given[len(op.consts) :])
    types = [_type(v) for v in op.results]

    def condition(state: Sequence[Known]) -> Term:
        return walk.block(op.cond, [*consts, *state])[0].term

    def step(state: Sequence[Known]) -> list[Known]:
        outer = walk.context
        asked = condition(state)
        truth = outer.interval(asked)
        if truth.lo == truth.hi == 0:
            return [Known(walk.leaf(t, EMPTY)) for t in types]
        walk.context = outer if truth.lo == truth.hi else outer.assume(asked, True)
        try:
            found = walk.block(op.body, [*consts, *state])
            return [
                Known(walk.leaf(t, walk.interval(x)), x.blame)
                for t, x in zip(types, found, strict=True)
            ]
        finally:
            walk.context = outer

    begin, blame = _fixpoint(walk, step, init, types, math.inf)
    ends = _final(walk, step, begin, types, blame)
    state = _leaves(walk, types, begin, [e.blame for e in ends])
    asked = condition(state)
    truth = walk.context.interval(asked)
    after = walk.context if truth.lo == truth.hi else walk.context.assume(asked, False)
    return [
        Known(walk.leaf(t, after.interval(x.term)), x.blame)
        for t, x in zip(types, state, strict=True)
    ]


def _type(value: object) -> TensorType:
    type = getattr(value, "type", None)
    assert isinstance(type, TensorType)
    return type


def _joined(walk: Walk, type: TensorType, a: Known, b: Known) -> Known:
    from tessera.verify.graph_walk import Known

    return Known(walk.leaf(type, walk.interval(a).join(walk.interval(b))), a.blame | b.blame)


def _leaves(
    walk: Walk,
    types: Sequence[TensorType],
    intervals: Sequence[Interval],
    blame: Sequence[frozenset[Op]],
) -> list[Known]:
    from tessera.verify.graph_walk import Known

    return [
        Known(walk.leaf(t, i), b) for t, i, b in zip(types, intervals, blame, strict=True)
    ]


def _final(
    walk: Walk,
    step: Step,
    begin: Sequence[Interval],
    types: Sequence[TensorType],
    blame: list[frozenset[Op]],
) -> list[Known]:
    """One step from the fixpoint, which is what is recorded."""
    count = len(types)
    walk.recording, before = False, walk.recording
    # Whom to blame is what makes infinities of finite numbers.
    finite = [
        x.without_nan().meet(finite_range(t.dtype)) for x, t in zip(begin, types, strict=True)
    ]
    found = step(_leaves(walk, types, finite, blame))
    walk.recording = before
    grown = [a | x.blame for a, x in zip(blame, found[:count], strict=True)]
    return step(_leaves(walk, types, begin, grown))


def _fixpoint(
    walk: Walk, step: Step, init: Sequence[Known], types: Sequence[TensorType], most: float
) -> tuple[list[Interval], list[frozenset[Op]]]:
    """Intervals of the carried values before any step, and whom to blame for their beginning."""
    count = len(types)
    first = [walk.interval(x) for x in init]
    blame = [x.blame for x in init]
    if not count:
        return [], []
    walk.recording, before = False, walk.recording

    def after(state: Sequence[Interval]) -> list[Interval]:
        known = step(_leaves(walk, types, state, blame))[:count]
        return [walk.interval(x) for x in known]

    try:
        state = first
        for turn in range(MAX_ROUNDS):
            if turn >= most:
                break
            found = [a.join(b) for a, b in zip(state, after(state), strict=True)]
            if all(a.within(b) for a, b in zip(found, state, strict=True)):
                break
            if turn >= JOINED:
                found = [
                    _widened(a, b, t.dtype, turn - JOINED)
                    for a, b, t in zip(state, found, types, strict=True)
                ]
            state = found
        else:
            state = [full_range(t.dtype) for t in types]
        for _ in range(3):
            found = [a.join(b) for a, b in zip(first, after(state), strict=True)]
            smaller = [a.meet(b) for a, b in zip(found, state, strict=True)]
            again = [a.join(b) for a, b in zip(first, after(smaller), strict=True)]
            if smaller == state or not _all_within(again, smaller):
                break
            state = smaller
        if most < math.inf and state != first:
            grown = _by_growth(walk, step, first, state, types, most)
            if grown is not None:
                state = [a.meet(b) for a, b in zip(state, grown, strict=True)]
    finally:
        walk.recording = before
    return list(state), blame


def _all_within(a: Sequence[Interval], b: Sequence[Interval]) -> bool:
    return all(x.within(y) for x, y in zip(a, b, strict=True))


def _widened(old: Interval, new: Interval, dtype: DType, turn: int) -> Interval:
    """Ends that still grow go to a power of two, further away at each turn."""
    limits = finite_range(dtype)
    if not dtype.is_float:
        low = new.lo if new.lo >= old.lo else limits.lo
        return Interval(low, new.hi if new.hi <= old.hi else limits.hi)
    low = new.lo if new.lo >= old.lo else -_beyond(-float(new.lo), float(limits.hi), turn)
    high = new.hi if new.hi <= old.hi else _beyond(float(new.hi), float(limits.hi), turn)
    return Interval(low, high, new.nan)


def _beyond(x: float, top: float, turn: int) -> float:
    """A threshold above a number that an end has grown to."""
    if x <= 0:
        return 0.0 if turn < 4 else _beyond(1.0, top, turn)
    if x == math.inf or x >= top:
        return math.inf
    exponent = math.frexp(x)[1] + 2 ** min(turn, 11) - 1
    return min(math.ldexp(1.0, exponent) if exponent < 1024 else math.inf, top)


def _by_growth(
    walk: Walk,
    step: Step,
    first: Sequence[Interval],
    state: Sequence[Interval],
    types: Sequence[TensorType],
    most: float,
) -> list[Interval] | None:
    """Bounds of sums: what a step adds, times the number of steps.

    If what a step adds lies in [-a, b] wherever the sum is between its beginning less `most` times
    a and plus `most` times b, then by induction the sum stays there.
    """
    grows = [k for k, (x, t) in enumerate(zip(state, types, strict=True))
             if not x.within(first[k]) and first[k].is_finite and t.dtype.is_float]  # fmt: skip
    if not grows:
        return None
    blame = [frozenset[Op]()] * len(types)
    added = [(0.0, 0.0)] * len(types)
    guess = list(state)
    for k in grows:
        guess[k] = first[k]
    for _ in range(6):
        leaves = _leaves(walk, types, guess, blame)
        found = step(leaves)
        is_stable = True
        for k in grows:
            dtype = types[k].dtype
            change = walk.terms.apply("sub", (found[k].term, leaves[k].term), dtype)
            gap = walk.context.interval(change)
            if not gap.is_finite:
                return None  # this one is multiplied, or grows by itself
            a, b = added[k]
            if gap.lo < -a or gap.hi > b:
                is_stable = False
                # A little more, for roundings that grow with the sum.
                grown = 1 + most * finfo(dtype).eps
                added[k] = max(a, -float(gap.lo) * grown), max(b, float(gap.hi) * grown)
        if is_stable:
            return guess
        for k in grows:
            a, b = added[k]
            start = first[k]
            end = Interval(float(start.lo) - most * a, float(start.hi) + most * b)
            guess[k] = rounded(end, types[k].dtype)
            if not guess[k].is_finite:
                return None
    return None
