"""Passes over rows that do not fit a block's registers: as few as possible.

Reductions along the same axis that do not need each other's results share a loop. The sum of
exponentials below a maximum shares even the loop of the maximum, which it follows: a sum that was
taken below a smaller maximum is scaled when a larger one is found.

    m = max over r of x(r)                     for a step of r:
    s = sum over r of exp(x(r) - g(m))   ==>       m' = max(m, max of x)
                                                   s  = s * exp(m - m') + sum of exp(x - m')
                                                   m  = m'
where g is the identity, or replaces what is not finite by 0. Each thread keeps maxima and sums of
its own, over as many elements of a step as it loads at once; they meet at the end.

Rows that do fit are all loaded before the first reduction.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from tessera.dtypes import DType, real_of
from tessera.ir.core import Block, Op, Value, scalar_dtype
from tessera.ir.scalar import SCALARS
from tessera.ir.walk import walk
from tessera.schedule import ops as s
from tessera.schedule.dependence import inputs, is_same, needs, reads_own
from tessera.tile import ops as t
from tessera.tile.lowering import reduction
from tessera.tile.lowering.emitter import Shape
from tessera.tile.lowering.state import Point, State, TileDim, Val

VECTOR_BYTES = 16
"""What a thread loads at once."""

Fetch = Callable[[Value, int], None]
"""Fetches what is read of a later row, from a place on, so many elements."""


def has_rows(low: State, nest: s.Nest) -> bool:
    """Whether a nest has reductions that are the same all along its innermost axis."""
    found = [op for op in nest.body.ops if isinstance(op, (s.Reduce, s.ArgReduce))]
    if not nest.axes or not found:
        return False
    if nest.ordered and (nest.axes[-1].name in nest.ordered or reads_own(nest, low.kept)):
        return False
    return all(nest.axes[-1].name not in low.dependence.ops[op] for op in found)


def run(low: State, ops: Sequence[Op], point: Point, fetch: Sequence[Fetch] = ()) -> int:
    """Evaluates ops at a point, with as few loops over reduction axes as can be.

    Args:
        low: the lowering.
        ops: the ops.
        point: where they are evaluated.
        fetch: what each pass but the first may begin to fetch for later rows, one pass of these
            and one that follows them each. The first pass waits for memory itself.

    Returns:
        How many of these the last passes have begun, the last ones of `fetch`.
    """
    looped = [op for op in ops if isinstance(op, s.Reduce) and reduction.is_looped(low, op)]
    if low.is_block and not low.written.intersection(op.buf for op in _loads(ops)):
        _fetch(low, ops, point)
    if len(looped) < 2 or any(_reads_written(low, op) for op in ops):
        low.run(ops, point)
        return 0
    pairs: dict[Op, _Pair] = {}
    if low.is_block:
        along = [op for op in looped if reduction.frame_of(low, op, point).axis != 0]
        pairs = dict(_pairs([op for op in along if not reduction.is_exact(low, op)]))
    levels = _levels(ops, looped, pairs)
    for stores in low.columns.stores.values():  # which write rows together
        if stores[0] in levels:
            levels.update(dict.fromkeys(stores, max(levels[op] for op in stores)))
    last = max(levels[op] for op in looped)
    begun = fetch[max(len(fetch) - last, 1) :]
    for level in range(max(levels.values()) + 1):
        here = [op for op in ops if levels[op] == level]
        low.run([op for op in here if op not in looped], point)
        groups: dict[object, list[s.Reduce]] = {}
        for op in here:
            if isinstance(op, s.Reduce) and op in looped:
                step = reduction.frame_of(low, op, point).step
                groups.setdefault((op.axes[0].extent, step), []).append(op)
        share = begun[last - level : last - level + 1] if level else ()
        for group in groups.values():
            _together(low, group, pairs, point, share)
            share = ()
    return len(begun)


def _fetch(low: State, ops: Sequence[Op], point: Point) -> None:
    """Begins to load the rows of all reductions before the first one waits for its row."""
    rows = [op for op in ops if isinstance(op, s.Reduce)]
    for op in rows if len(rows) > 1 else ():
        inner = reduction.covered(low, op, point)
        for load in op.body.ops if inner is not None else ():
            if not isinstance(load, s.Load) or load.dyn or load.where:
                continue
            # What is the same for all rows is in a cache, and may wait.
            if low.deps[load.result] - low.em.dims - {op.axes[0].name}:
                low.run([load], inner or point)


def _loads(ops: Sequence[Op]) -> list[s.Load]:
    """All loads of some ops."""
    return [x for x in walk(Block([], list(ops), ())) if isinstance(x, s.Load)]


def _reads_written(low: State, op: Op) -> bool:
    """Whether an op reads what the nest writes, so that the order counts. What is kept is read by
    reductions that need the one which computes it."""
    written = low.written - low.kept
    inner = (one for region in op.regions for one in walk(region))
    return any(isinstance(x, s.Load) and x.buf in written for x in (op, *inner))


def _levels(ops: Sequence[Op], looped: Sequence[Op], pairs: dict[Op, _Pair]) -> dict[Op, int]:
    """By op, how many loops must have ended before it can run."""
    levels: dict[Op, int] = {}
    ready: dict[Value, int] = {}
    for op in ops:
        pair = pairs.get(op)
        needed = [ready.get(v, 0) for v in inputs(op) if pair is None or v is not pair.shift]
        if pair is not None:
            needed.append(levels[pair.top])
        levels[op] = max(needed, default=0)
        for value in op.results:
            ready[value] = levels[op] + (op in looped)
    return levels


# --- sums of exponentials ---------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Pair:
    """A sum of exponentials and the maximum that it goes with.

    Attributes:
        top: the maximum.
        total: the sum.
        shift: what is subtracted in the exponent.
        replaces: whether that is 0 where the maximum is not finite.
    """

    top: s.Reduce
    total: s.Reduce
    shift: Value
    replaces: bool


def _pairs(looped: Sequence[s.Reduce]) -> Iterator[tuple[Op, _Pair]]:
    """The sums that can share the loop of a maximum; one for each."""
    taken: set[Op] = set()
    for total in looped:
        found = _pair(total, looped)
        if found is not None and found.top not in taken:
            taken.add(found.top)
            yield total, found


def _pair(total: s.Reduce, looped: Sequence[s.Reduce]) -> _Pair | None:
    if total.fn.name != "add" or not scalar_dtype(total.result).is_float:
        return None
    (out,) = total.body.outputs
    power = _without_casts(out).op
    if not isinstance(power, s.Map) or power.fn.name != "exp":
        return None
    difference = _without_casts(power.args[0]).op
    if not isinstance(difference, s.Map) or difference.fn.name != "sub":
        return None
    x, shift = difference.args
    top, replaces = _maximum(shift)
    if top is None or top not in looped or top.axes[0].extent != total.axes[0].extent:
        return None
    inner = {v for op in walk(total.body) for v in op.results}
    others = [v for v in inputs(total) if v not in inner and v is not shift]
    if any(needs(v, top) for v in others):
        return None
    (y,) = top.body.outputs
    same = is_same(x, y, total.axes[0].name, top.axes[0].name)
    return _Pair(top, total, shift, replaces) if same else None


def _maximum(shift: Value) -> tuple[s.Reduce | None, bool]:
    """The maximum from which a shift is made, and whether it replaces what is not finite."""
    op = shift.op
    if isinstance(op, s.Reduce) and op.fn.name == "max":
        return op, False
    if not isinstance(op, s.Map) or op.fn.name != "select":
        return None, False
    test, value, other = op.args
    top = value.op
    fits = (
        isinstance(test.op, s.Map)
        and test.op.fn.name == "isfinite"
        and test.op.args == (value,)
        and isinstance(other.op, s.Const)
        and other.op.value == 0
    )
    return (
        (top, True)
        if fits and isinstance(top, s.Reduce) and top.fn.name == "max"
        else (None, False)
    )


def _without_casts(value: Value) -> Value:
    while isinstance(value.op, s.Cast) and scalar_dtype(value.op.x).is_float:
        value = value.op.x
    return value


# --- shared loops -----------------------------------------------------------------------------


class _Plain:
    """A reduction by itself: its lanes are combined at the end."""

    def __init__(self, low: State, op: s.Reduce, point: Point) -> None:
        self.low = low
        self.op = op
        (self.out,) = op.body.outputs
        self.dtype = scalar_dtype(self.out)
        self.frame = reduction.frame_of(low, op, point)
        self.neutral = reduction.identity(low, op.fn, self.dtype)

    def start(self) -> list[Value]:
        """What is carried into the loop."""
        return [self.low.em.broadcast(self.neutral.parts[0], self.frame.shape)]

    def step(self, dim: TileDim | None, carried: Sequence[Value]) -> list[Value]:
        """One step."""
        if dim is not None:
            dim = replace(dim, name=self.op.axes[0].name)
        x = self.value(self.frame.inner(dim))
        return [self.low.em.map(self.op.fn, carried[0], x)]

    def value(self, inner: Point) -> Value:
        """The value of the body, with the neutral element beyond the end."""
        self.low.run(self.op.body.ops, inner)
        x = self.low.get(self.out, inner)
        if self.frame.step > 1:
            x = reduction.masked(self.low, x, self.neutral, inner, self.frame.axis)
        return self.low.em.broadcast(x.parts[0], self.frame.shape)

    def finish(self, carried: Sequence[Value]) -> None:
        """Sets the result."""
        em, frame = self.low.em, self.frame
        (found,) = carried
        if frame.step > 1:
            axis, exact = frame.axis % len(frame.shape), reduction.is_exact(self.low, self.op)
            found = em.pure(t.Reduce, found, self.op.fn, axis, exact)
        self.low.env[self.op.result] = Val((found,), frame.outer.names)


class _Online:
    """A maximum and the sum of exponentials below it."""

    def __init__(self, low: State, pair: _Pair, point: Point) -> None:
        self.low = low
        self.pair = pair
        self.top = _Plain(low, pair.top, point)
        self.total = _Plain(low, pair.total, point)
        shape = self.top.frame.shape
        size = min([x.bits for x in _loaded(pair.top.body)] or [32]) // 8
        vector = min(max(VECTOR_BYTES // max(size, 1), 1), shape[-1])
        self.parts: Shape = (*shape[:-1], shape[-1] // vector, vector)
        self.lanes: Shape = self.parts[:-1]

    def start(self) -> list[Value]:
        """What is carried into the loop."""
        em = self.low.em
        return [em.broadcast(x.neutral.parts[0], self.lanes) for x in (self.top, self.total)]

    def step(self, dim: TileDim | None, carried: Sequence[Value]) -> list[Value]:
        """One step."""
        assert dim is not None
        em, low = self.low.em, self.low
        before, total = carried
        inner = self.top.frame.inner(replace(dim, name=self.pair.top.axes[0].name))
        x = em.reshape(self.top.value(inner), self.parts)
        top = em.map("max", before, em.pure(t.Reduce, x, SCALARS["max"], len(self.parts) - 1))
        inner = self.total.frame.inner(replace(dim, name=self.pair.total.axes[0].name))
        shift = em.reshape(self.finite(top), (*self.lanes, 1))
        spread = em.reshape(em.broadcast(shift, self.parts), self.total.frame.shape)
        low.env[self.pair.shift] = Val((spread,), inner.names)
        y = em.reshape(self.total.value(inner), self.parts)
        part = em.pure(t.Reduce, y, SCALARS["add"], len(self.parts) - 1)
        return [top, em.map("add", em.map("mul", total, self.scale(before, top)), part)]

    def finite(self, top: Value) -> Value:
        """A maximum with 0 where it is not finite."""
        em = self.low.em
        return em.select(em.map("isfinite", top), top, em.const(0.0, t.tile_type(top).dtype))

    def scale(self, old: Value, new: Value) -> Value:
        """By what a sum below an old maximum is multiplied to become one below a new one."""
        em, dtype = self.low.em, self.total.dtype
        down = em.map("sub", em.cast(old, dtype), em.cast(self.finite(new), dtype))
        # Below a maximum of -inf there is nothing; what is added below other ones is not shifted.
        return em.select(em.map("isfinite", old), em.map("exp", down), em.const(1.0, dtype))

    def finish(self, carried: Sequence[Value]) -> None:
        """Sets both results."""
        em, frame = self.low.em, self.top.frame
        lanes, totals = carried
        axis = len(self.lanes) - 1
        top = em.pure(t.Reduce, lanes, SCALARS["max"], axis)
        line = em.reshape(top, (*self.lanes[:-1], 1)) if self.lanes[:-1] else top
        scaled = em.map("mul", totals, self.scale(lanes, em.broadcast(line, self.lanes)))
        total = em.pure(t.Reduce, scaled, SCALARS["add"], axis)
        if not self.pair.replaces:
            nan = em.const(float("nan"), self.total.dtype)
            total = em.select(em.map("isfinite", top), total, nan)
        self.low.env[self.pair.top.result] = Val((top,), frame.outer.names)
        self.low.env[self.pair.total.result] = Val((total,), frame.outer.names)


def _loaded(block: Block) -> list[DType]:
    """The dtypes of what a region loads."""
    return [real_of(scalar_dtype(op.result)) for op in walk(block) if isinstance(op, s.Load)]


def _together(
    low: State,
    group: Sequence[s.Reduce],
    pairs: dict[Op, _Pair],
    point: Point,
    fetch: Sequence[Fetch] = (),
) -> None:
    """One loop for reductions along axes of one extent, which fetches for later rows."""
    em = low.em
    axis = group[0].axes[0]
    names = {op.axes[0].name for op in group}
    inside = [pairs[op] for op in group if op in pairs and pairs[op].top in group]
    covered = {op for pair in inside for op in (pair.top, pair.total)}
    parts: list[_Plain | _Online] = [_Online(low, pair, point) for pair in inside]
    parts += [_Plain(low, op, point) for op in group if op not in covered]
    counts = [len(part.start()) for part in parts]
    start = [value for part in parts for value in part.start()]
    loc = em.loc

    def body(dim: TileDim | None, carried: list[Value]) -> Sequence[Value]:
        found: list[Value] = []
        rest = list(carried)
        if dim is not None:
            for begin in fetch:
                begin(dim.start, dim.size)
        same = {} if dim is not None else dict.fromkeys(names, em.symbols[axis.name])
        with em.bound(same):
            for part, count in zip(parts, counts, strict=True):
                found += part.step(dim, rest[:count])
                rest = rest[count:]
        em.loc = loc
        return found

    step = reduction.frame_of(low, group[0], point).step
    pooled = any(
        isinstance(part, _Plain) and reduction.is_pooled(low, axis, part.frame, part.op.fn)
        for part in parts
    )
    result = reduction.loops(low, (axis,), step, start, body, pooled)
    for part, count in zip(parts, counts, strict=True):
        part.finish(result[:count])
        result = result[count:]
