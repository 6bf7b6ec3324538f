"""Searches for the place of an extreme: loops that carry an extreme and where it was.

A long line is searched in blocks. What is carried through a block is the extreme alone; a block
that has a better one is noted when it ends, and the place is looked for in the first of the best:

    for each block b:  m = max over the block;  if m > best: best, at = m, b
    for each place p of block `at`:  the least p whose value is `best`
"""

from __future__ import annotations

from collections.abc import Sequence
from math import isqrt, prod

from tessera.dtypes import DType, bool_, int32, int64, uint8
from tessera.ir.core import Value
from tessera.ir.scalar import SCALARS, ScalarFn
from tessera.schedule import ops as s
from tessera.tile import ops as t
from tessera.tile.lowering.reduction import (
    MANY,
    Frame,
    Steps,
    frame_at,
    identity,
    is_covered,
    masked,
    run_steps,
    step_size,
)
from tessera.tile.lowering.state import Point, State, TileDim, Val, dtype_of

FEWEST = 4
"""Blocks of a line that are worth it, each of as many steps at least."""


def arg_reduce(low: State, op: s.ArgReduce, point: Point) -> Val:
    """The index of the extreme; the first one wins, NaN is more extreme than any number.

    What is carried is the number of the step, in 32 bits where that is enough: lanes of an index
    are then no wider than those of a value.
    """
    em = low.em
    extent = op.axis.extent
    step = step_size(low, (op.axis,), op.body)
    is_short = extent < 1 << 31 if isinstance(extent, int) else step >= 16
    counter = int32 if is_short else int64
    frame = frame_at(low, (op.axis,), op.body, point, step)
    shape = frame.shape
    blocks = _Blocks(low, op, frame, counter)
    if blocks.pay:
        return Val((em.cast(blocks.search(), int64),), frame.outer.names)
    start = blocks.start()
    is_single = low.is_block and is_covered(op.axis, step)

    def body(dim: TileDim | None, carried: list[Value]) -> Sequence[Value]:
        x = blocks.value(dim)
        if dim is None:
            number = em.symbols[op.axis.name]
        else:
            number = em.map("floordiv", dim.start, em.const(step, int64))
        number = em.cast(number, counter)
        found = (x, number)
        if not is_single:
            found = _better(low, op.fn, carried, x, number)
        return [em.broadcast(v, shape) for v in found]

    best, number = run_steps(low, (op.axis,), Steps(step), start, body)
    if step == 1:
        return Val((em.cast(number, int64),), frame.outer.names)
    axis = frame.axis % len(shape)
    # Pairs of values and places are compared, which are short if they can be.
    wide = int32 if isinstance(extent, int) and is_short else int64
    first = em.map("mul", em.cast(number, wide), em.const(step, wide))
    at = em.map("add", first, em.cast(blocks.lane(), wide))
    if low.is_block:
        at = em.add(t.ArgReduce(best, em.broadcast(at, shape), op.fn, axis, loc=em.loc))[1]
    else:
        at = _first_of_best(low, best, _extreme(low, op.fn, best, axis), at, axis)
    return Val((em.cast(at, int64),), frame.outer.names)


class _Blocks:
    """A search in blocks, and what a search without them shares with it.

    Attributes:
        count: steps of a block; 0 where there are no blocks.
    """

    def __init__(self, low: State, op: s.ArgReduce, frame: Frame, counter: DType) -> None:
        self.low, self.op, self.frame, self.counter = low, op, frame, counter
        (self.out,) = op.body.outputs
        self.dtype = uint8 if dtype_of(self.out) is bool_ else dtype_of(self.out)
        self.neutral = identity(low, op.fn, self.dtype)
        self.loc = low.em.loc
        extent = op.axis.extent
        is_line = not low.is_block and frame.step > 1 and prod(frame.shape) == frame.step
        steps = extent // frame.step if is_line and isinstance(extent, int) else 0
        self.count = 1 << (isqrt(steps).bit_length() - 1) if steps else 0

    @property
    def pay(self) -> bool:
        """Whether there are enough of them."""
        return self.count >= FEWEST

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

    def search(self) -> Value:
        """The place."""
        low, em, fn = self.low, self.low.em, self.op.fn
        extent, step, shape = self.op.axis.extent, self.frame.step, self.frame.shape
        assert isinstance(extent, int)
        size = self.count * step
        full = extent // size * size

        def one(start: Value, count: int, carried: list[Value]) -> Sequence[Value]:
            found = self.extreme(start, count, extent)
            number = em.map("floordiv", start, em.const(size, int64))
            pair = _better(low, fn, carried, found, em.cast(number, self.counter))
            return [em.broadcast(v, shape) for v in pair]

        bounds = (em.const(0, int64), em.const(full, int64), em.const(size, int64))
        carried = em.loop(bounds, self.start(), lambda i, inner: one(i, size, inner))
        if full < extent:
            carried = list(one(em.const(full, int64), extent - full, carried))
        axis = self.frame.axis % len(shape)
        best = _extreme(low, fn, carried[0], axis)
        number = _first_of_best(low, carried[0], best, carried[1], axis)
        return self.place(best, em.cast(number, int64), size, extent)

    def extreme(self, start: Value, count: int, extent: int) -> Value:
        """The extremes of the lanes of so many elements."""
        low, em, step = self.low, self.low.em, self.frame.step
        first, *_ = self.start()
        name, names = self.op.axis.name, self.frame.inner(None).names

        def run(at: Value, carried: Value, checked: bool = False) -> Value:
            x = self.value(TileDim(name, step, em.map("add", start, at), extent, checked))
            total = low.apply(self.op.fn, Val((carried,), names), Val((x,), names))
            return em.broadcast(total.parts[0], self.frame.shape)

        whole = count // step * step
        bounds = (em.const(0, int64), em.const(whole, int64), em.const(step, int64))
        pooled = count >= MANY * step
        (found,) = em.loop(bounds, [first], lambda i, inner: [run(i, inner[0])], pooled=pooled)
        return found if whole == count else run(em.const(whole, int64), found, True)

    def place(self, best: Value, block: Value, size: int, extent: int) -> Value:
        """The first place in a block that has the extreme."""
        em, step, shape = self.low.em, self.frame.step, self.frame.shape
        start = em.map("mul", block, em.const(size, int64))
        end = em.map("add", start, em.const(size, int64))
        checked = extent % step > 0
        if extent % size:
            end = em.map("min", end, em.const(extent, int64))
        most = em.const((1 << (self.counter.bits - 1)) - 1, self.counter)
        lane = em.cast(self.lane(), self.counter)

        def run(i: Value, carried: list[Value]) -> Sequence[Value]:
            x = self.value(TileDim(self.op.axis.name, step, i, extent, checked))
            at = em.map("add", em.cast(i, self.counter), lane)
            at = em.select(_wins(self.low, x, best), at, most)
            return [em.broadcast(em.map("min", carried[0], at), shape)]

        bounds = (start, end, em.const(step, int64))
        (at,) = em.loop(bounds, [em.broadcast(most, shape)], run)
        return em.pure(t.Reduce, at, SCALARS["min"], self.frame.axis % len(shape))


def _extreme(low: State, fn: ScalarFn, best: Value, axis: int) -> Value:
    """The extreme of the lanes, in a dim of one."""
    line = tuple([1 if k == axis else n for k, n in enumerate(t.tile_type(best).shape)])
    return low.em.reshape(low.em.pure(t.Reduce, best, fn, axis), line)


def _wins(low: State, x: Value, extreme: Value) -> Value:
    """Whether a value is the extreme."""
    wins = low.em.map("eq", x, extreme)
    if t.tile_type(x).dtype.is_float:
        wins = low.em.map("or", wins, low.em.map("isnan", x))
    return wins


def _first_of_best(low: State, best: Value, extreme: Value, at: Value, axis: int) -> Value:
    """The smallest number beside an extreme, along a dim."""
    em, dtype = low.em, t.tile_type(at).dtype
    most = em.const((1 << (dtype.bits - 1)) - 1, dtype)
    at = em.select(_wins(low, best, extreme), at, most)
    return em.pure(t.Reduce, at, SCALARS["min"], axis)


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
