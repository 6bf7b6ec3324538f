"""Searches for the place of an extreme: loops that carry an extreme and where it was.

A line is read for its extreme, and then for the first place that has it. A long line goes by
blocks. What is carried through a block is the extreme alone; a block that has a better one is
noted when it ends, and the place is looked for in the first of the best:

    for each block b:  m = max over the block;  if m > best: best, at = m, b
    for each place p of block `at`:  the least p whose value is `best`

Comparisons are those of numbers; where one was NaN, its place is looked for instead.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import isqrt, prod

from tessera.dtypes import DType, bool_, int32, int64, uint8
from tessera.ir.core import Value, scalar_dtype
from tessera.ir.scalar import SCALARS, ScalarFn
from tessera.ir.walk import walk
from tessera.schedule import ops as s
from tessera.tile import ops as t
from tessera.tile.lowering import access
from tessera.tile.lowering.reduction import (
    Steps,
    frame_at,
    identity,
    is_covered,
    masked,
    run_steps,
    step_size,
)
from tessera.tile.lowering.state import Point, State, TileDim, Val

CHEAP = 8
"""The cost of values that may be computed twice."""

FEWEST = 4
"""Steps of a block, at least."""

WRITTEN = 8
"""So many steps are a block by themselves, written down one after the other: registers are kept for
what is read twice."""


def arg_reduce(low: State, op: s.ArgReduce, point: Point) -> Val:
    """The index of the extreme; the first one wins, NaN is more extreme than any number."""
    search = _Search(low, op, point)
    line = _Line(search)
    place = line.place() if line.block else search.place()
    return Val((low.em.cast(place, int64),), search.frame.outer.names)


class _Search:
    """A search, step by step.

    What is carried is the number of the step, in 32 bits where that is enough: lanes of an index
    are then no wider than those of a value.

    Attributes:
        extent: of the axis.
        frame: where the body is evaluated.
        counter: the dtype of numbers of steps.
        dtype: that of what is searched.
    """

    def __init__(self, low: State, op: s.ArgReduce, point: Point) -> None:
        self.low, self.op = low, op
        self.extent = op.axis.extent
        step = step_size(low, (op.axis,), op.body)
        is_short = self.extent < 1 << 31 if isinstance(self.extent, int) else step >= 16
        self.counter: DType = int32 if is_short else int64
        self.frame = frame_at(low, (op.axis,), op.body, point, step)
        (self.out,) = op.body.outputs
        self.dtype = uint8 if scalar_dtype(self.out) is bool_ else scalar_dtype(self.out)
        self.neutral = identity(low, op.fn, self.dtype)
        self.loc = low.em.loc

    def start(self) -> list[Value]:
        """What is carried in the beginning."""
        em = self.low.em
        zero = em.const(0, self.counter)
        return [em.broadcast(v, self.frame.shape) for v in (self.neutral.parts[0], zero)]

    def value(self, dim: TileDim | None) -> Value:
        """What is searched, at a step."""
        low, inner = self.low, self.frame.inner(dim)
        low.run(self.op.body.ops, inner)
        x = low.cast(low.get(self.out, inner), self.dtype)
        if dim is not None:
            x = masked(low, x, self.neutral, inner, self.frame.axis)
        low.em.loc = self.loc
        return x.parts[0]

    def lane(self) -> Value:
        """The numbers of the lanes of a step."""
        shape, step = self.frame.shape, self.frame.step
        axis = self.frame.axis % len(shape)
        line = tuple([step if k == axis else 1 for k in range(len(shape))])
        return self.low.em.pure(t.Iota, line, axis)

    def place(self) -> Value:
        """The place."""
        low, em, op = self.low, self.low.em, self.op
        step, shape = self.frame.step, self.frame.shape
        is_single = low.is_block and is_covered(op.axis, step)

        def body(dim: TileDim | None, carried: list[Value]) -> Sequence[Value]:
            x = self.value(dim)
            if dim is None:
                number = em.symbols[op.axis.name]
            else:
                number = em.map("floordiv", dim.start, em.const(step, int64))
            found = (x, em.cast(number, self.counter))
            if not is_single:
                found = _better(low, op.fn, carried, *found)
            return [em.broadcast(v, shape) for v in found]

        best, number = run_steps(low, (op.axis,), Steps(step), self.start(), body)
        if step == 1:
            return number
        axis = self.frame.axis % len(shape)
        # Pairs of values and places are compared, which are short if they can be.
        wide = self.counter if isinstance(self.extent, int) else int64
        first = em.map("mul", em.cast(number, wide), em.const(step, wide))
        at = em.map("add", first, em.cast(self.lane(), wide))
        if low.is_block:
            return em.add(t.ArgReduce(best, em.broadcast(at, shape), op.fn, axis, loc=em.loc))[1]
        extreme = _extreme(low, op.fn, best, axis)
        wins = em.map("eq", best, extreme)
        if self.dtype.is_float:
            wins = em.map("or", wins, em.map("isnan", best))
        return _first(low, wins, at, axis)


class _Line:
    """A search along a line of numbers, for an extreme and then for its place; if there is a NaN,
    for the first one.

    Attributes:
        block: steps of a block, all of them where there is one block; 0 for other searches.
        is_cut: whether there are several.
        is_long: whether a block is a loop: prefetchers follow its loads.
    """

    def __init__(self, search: _Search) -> None:
        self.search, self.low, self.em = search, search.low, search.low.em
        self.shape, self.step = search.frame.shape, search.frame.step
        self.axis = search.frame.axis % max(len(self.shape), 1)
        is_line = not self.low.is_block and self.step > 1 and prod(self.shape) == self.step
        self.extent = search.extent if is_line and isinstance(search.extent, int) else 0
        steps = -(-self.extent // self.step)
        self.is_cut = steps > WRITTEN
        self.block = max(1 << (isqrt(steps).bit_length() - 1), FEWEST) if self.is_cut else steps
        if steps < 2 or _is_costly(search.op):
            self.block = 0
        self.is_long = self.is_cut and self.block > FEWEST

    def place(self) -> Value:
        """The place."""
        search, em = self.search, self.em
        size = self.block * self.step if self.is_cut else self.extent
        best, number = search.start()
        bad = em.broadcast(em.const(False, bool_), self.shape)
        if self.is_cut:
            best, number, bad = self.blocks(size, [best, number, bad])
        else:
            best, bad = self.extreme(em.const(0, int64), self.extent, bad)

        def found() -> list[Value]:
            extreme = _extreme(self.low, search.op.fn, best, self.axis, numbers=True)
            block = em.const(0, int64)
            if self.is_cut:
                first = _first(self.low, em.map("eq", best, extreme), number, self.axis)
                block = em.cast(first, int64)
            return [self.within(extreme, em.map("mul", block, em.const(size, int64)))]

        if not search.dtype.is_float:
            return found()[0]
        some = em.pure(t.Reduce, bad, SCALARS["or"], self.axis)
        if self.is_long:
            return self.either(some, best, number, size)
        return em.when(some, lambda: [self.first_nan()], found)[0]

    def either(self, some: Value, best: Value, number: Value, size: int) -> Value:
        """The first NaN of all places, if there is some, or the first place in a block that has the
        extreme: one loop, where that is long code to write twice."""
        em, zero, dtype = self.em, self.em.const(0, int64), self.search.dtype
        extreme = _extreme(self.low, self.search.op.fn, best, self.axis, numbers=True)
        first = _first(self.low, em.map("eq", best, extreme), number, self.axis)
        start = em.map("mul", em.cast(first, int64), em.const(size, int64))
        end = em.map("add", start, em.const(size, int64))
        # No number is equal to NaN.
        is_nan = em.reshape(some, t.tile_type(extreme).shape)
        wanted = em.select(is_nan, em.const(float("nan"), dtype), extreme)

        def test(x: Value) -> Value:
            return em.map("or", em.map("eq", x, wanted), em.map("isnan", x))

        start = em.select(some, zero, start)
        end = em.select(some, em.const(self.extent, int64), end)
        return self.first_in(start, end, self.extent % size > 0, test)

    def blocks(self, size: int, carried: list[Value]) -> list[Value]:
        """The best lanes, the blocks where they are, and whether some was NaN."""
        em, search = self.em, self.search
        full = self.extent // size * size

        def one(start: Value, count: int, carried: Sequence[Value]) -> list[Value]:
            best, at, bad = carried
            self.fetch(start, count)
            x, bad = self.extreme(start, count, bad)
            number = em.cast(em.map("floordiv", start, em.const(size, int64)), search.counter)
            wins = self.wins(x, best)
            number = em.broadcast(number, self.shape)
            return [em.select(wins, x, best), em.select(wins, number, at), bad]

        bounds = (em.const(0, int64), em.const(full, int64), em.const(size, int64))
        carried = em.loop(bounds, carried, lambda i, inner: one(i, size, inner))
        if full < self.extent:
            carried = one(em.const(full, int64), self.extent - full, carried)
        return carried

    def fetch(self, start: Value, count: int) -> None:
        """Fetches what a later block reads, of this line or behind it."""
        em, op = self.em, self.search.op
        for load in op.body.ops:
            if isinstance(load, s.Load) and load.ahead:
                later = em.map("add", start, em.const(load.ahead, int64))
                with em.bound({op.axis.name: later}):
                    access.prefetch(self.low, load, count)

    def wins(self, x: Value, best: Value) -> Value:
        """Whether a number is more extreme."""
        return self.em.map("gt" if self.search.op.fn.name == "max" else "lt", x, best)

    def extreme(self, start: Value, count: int, bad: Value) -> list[Value]:
        """The extremes of the lanes of so many elements, and whether some was NaN, or is: a test is
        for two steps. The last step goes back for what it lacks."""
        em, step = self.em, self.step

        def run(offsets: Sequence[Value], carried: Sequence[Value]) -> list[Value]:
            *best, bad = carried
            found = [self.at(em.map("add", start, offset)) for offset in offsets]
            for x in found:
                best = [em.select(self.wins(x, best[0]), x, best[0])] if best else [x]
            if self.search.dtype.is_float:
                tests = [em.map("isnan", x) for x in found]
                bad = em.map("or", bad, tests[0] if len(tests) == 1 else em.map("or", *tests))
            return [*best, bad]

        def both(i: Value, carried: Sequence[Value]) -> list[Value]:
            return run([i, em.map("add", i, em.const(step, int64))], carried)

        pairs, carried = count // (2 * step) * 2 * step, [bad]
        if self.is_long and pairs:
            bounds = (em.const(0, int64), em.const(pairs, int64), em.const(2 * step, int64))
            carried = em.loop(bounds, [self.search.start()[0], bad], both)
        else:
            for at in range(0, pairs, 2 * step):
                carried = both(em.const(at, int64), carried)
        rest = [em.const(min(at, count - step), int64) for at in range(pairs, count, step)]
        return run(rest, carried) if rest else carried

    def at(self, start: Value) -> Value:
        """The numbers of a step."""
        axis = self.search.op.axis
        dim = TileDim(axis.name, self.step, start, self.extent, False)
        return self.em.broadcast(self.search.value(dim), self.shape)

    def within(self, extreme: Value, start: Value) -> Value:
        """The first place in a block that has the extreme."""
        em, step = self.em, self.step
        is_ragged = self.extent % (self.block * step) > 0

        def has(x: Value) -> Value:
            return em.map("eq", x, extreme)

        if self.is_long:
            end = em.map("add", start, em.const(self.block * step, int64))
            return self.first_in(start, end, is_ragged, has)
        found = self.nowhere()
        # The last one first: what is found later takes its place.
        for k in range(self.block - 1, -1, -1):
            place = em.map("add", start, em.const(k * step, int64))
            found = self.where(place, is_ragged, has, found)
        return em.pure(t.Reduce, found, SCALARS["min"], self.axis)

    def first_nan(self) -> Value:
        """The place of the first NaN."""
        em, is_ragged = self.em, self.extent % self.step > 0
        start, end = em.const(0, int64), em.const(self.extent, int64)
        return self.first_in(start, end, is_ragged, lambda x: em.map("isnan", x))

    def first_in(
        self, start: Value, end: Value, is_ragged: bool, test: Callable[[Value], Value]
    ) -> Value:
        """The first place from one to another where a test holds."""
        em = self.em
        bounds = (start, end, em.const(self.step, int64))

        def run(i: Value, found: list[Value]) -> list[Value]:
            return [em.map("min", found[0], self.where(i, is_ragged, test, self.nowhere()))]

        (found,) = em.loop(bounds, [self.nowhere()], run)
        return em.pure(t.Reduce, found, SCALARS["min"], self.axis)

    def where(
        self, place: Value, is_ragged: bool, test: Callable[[Value], Value], other: Value
    ) -> Value:
        """The places of a step where a test holds, and others where it does not."""
        em, counter = self.em, self.search.counter
        if is_ragged:
            place = em.map("min", place, em.const(self.extent - self.step, int64))
        at = em.map("add", em.cast(place, counter), em.cast(self.search.lane(), counter))
        return em.select(test(self.at(place)), at, other)

    def nowhere(self) -> Value:
        """Places beyond all others."""
        counter = self.search.counter
        return self.em.broadcast(self.em.const((1 << (counter.bits - 1)) - 1, counter), self.shape)


def _is_costly(op: s.ArgReduce) -> bool:
    """Whether values had better be computed once."""
    inside = list(walk(op.body))
    cost = sum([one.fn.cost for one in inside if isinstance(one, s.Map)])
    return cost > CHEAP or any(
        [isinstance(x, s.Random) or (isinstance(x, s.Load) and bool(x.dyn)) for x in inside]
    )


def _extreme(low: State, fn: ScalarFn, best: Value, axis: int, numbers: bool = False) -> Value:
    """The extreme of the lanes, of which none is NaN if they are numbers, in a dim of one."""
    line = tuple([1 if k == axis else n for k, n in enumerate(t.tile_type(best).shape)])
    found = low.em.pure(t.Reduce, best, fn, axis, False, numbers)
    return low.em.reshape(found, line)


def _first(low: State, wins: Value, at: Value, axis: int) -> Value:
    """The smallest number beside those that win, along a dim."""
    em, dtype = low.em, t.tile_type(at).dtype
    most = em.const((1 << (dtype.bits - 1)) - 1, dtype)
    return em.pure(t.Reduce, em.select(wins, at, most), SCALARS["min"], axis)


def _better(
    low: State, fn: ScalarFn, carried: Sequence[Value], x: Value, number: Value
) -> tuple[Value, Value]:
    em = low.em
    best, at = carried
    is_float = t.tile_type(x).dtype.is_float
    if not is_float:
        wins = em.map("gt" if fn.name == "max" else "lt", x, best)
    else:
        # A NaN beats every number, and the first NaN stays: two comparisons.
        loses = em.map("le" if fn.name == "max" else "ge", x, best)
        wins = em.map("and", em.map("not", loses), em.map("not", em.map("isnan", best)))
    return em.select(wins, x, best), em.select(wins, number, at)
