"""Reductions and scans: loops that carry an accumulator.

An accumulator has the shape of what it combines: one dim per tiled axis on which the value depends,
and, where the last reduction axis is taken in steps, one more for these lanes, which are combined
at the end.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from tessera.dtypes import DType, int64, real_of, uint8
from tessera.errors import CompileError
from tessera.ir.core import Block, Value, scalar_dtype
from tessera.ir.intexpr import Dim, divides, linear_in, sym, symbols
from tessera.ir.order import Order, Tree
from tessera.ir.scalar import ScalarFn
from tessera.ir.walk import walk
from tessera.schedule import ops as s
from tessera.schedule.access import offset
from tessera.schedule.types import Axis, buffer_type
from tessera.tile import ops as t
from tessera.tile.lane_ops import Stack
from tessera.tile.lowering import windows
from tessera.tile.lowering.access import write
from tessera.tile.lowering.emitter import Shape
from tessera.tile.lowering.state import Point, State, TileDim, Val

Body: TypeAlias = Callable[[TileDim | None, list[Value]], Sequence[Value]]

MANY = 8
"""Steps of a loop behind which there may be more to do, if it takes less in each."""

_LOOPING = (s.Reduce, s.ArgReduce, s.Contract)


# --- loops ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Steps:
    """How the last reduction axis is taken.

    Attributes:
        size: elements per step; 1 without a dim for them, unless `always_dim`.
        masked: the rest is one step that reaches beyond the extent; else it is single elements.
        always_dim: also single elements get a dim, of size 1.
        stages: how far the loop over a GPU's blocks of the axis is pipelined.
        pairs: two elements in each step, one after the other.
        pooled: whether lanes of extremes are carried that are combined behind the loop.
    """

    size: int
    masked: bool = True
    always_dim: bool = False
    stages: int = 0
    pairs: bool = False
    pooled: bool = False


def run_steps(
    low: State, axes: Sequence[Axis], steps: Steps, carried: list[Value], body: Body
) -> list[Value]:
    """Runs a body over all points of some axes, the last one in steps."""
    if not axes:
        return list(body(None, carried))
    if len(axes) == 1:
        if steps.pairs:
            return _in_pairs(low, axes[0], carried, body)
        if steps.size == 1 and not steps.always_dim:
            return low.each(axes[0], carried, lambda inner: body(None, inner))
        return _stepped(low, axes[0], steps, carried, body)
    rest = axes[1:]
    return low.each(axes[0], carried, lambda inner: run_steps(low, rest, steps, inner, body))


def _in_pairs(low: State, axis: Axis, carried: list[Value], body: Body) -> list[Value]:
    """Two elements in each step: what both read is read once."""
    half = Axis(f"{axis.name}_2", axis.extent // 2)

    def step(inner: list[Value]) -> Sequence[Value]:
        for k in (0, 1):
            low.em.written_out[axis.name] = 2 * sym(half.name) + k
            inner = list(body(None, inner))
        del low.em.written_out[axis.name]
        return inner

    return low.each(half, carried, step)


def has_pairs(low: State, axes: Sequence[Axis], region: Block, step: int) -> bool:
    """Whether neighbours along the axis share a byte, as values of 4 bits do."""
    if low.is_block or step > 1 or len(axes) != 1 or not divides(2, axes[0].extent, low.facts):
        return False
    (axis,) = axes
    half = sym(axis.name) // 2
    if isinstance(half, int):
        return False
    for op in region.ops:
        if isinstance(op, s.Load) and buffer_type(op.buf).dtype is uint8:
            at = [e for e in op.index if axis.name in symbols(e)]
            if len(at) == 1 and axis.name not in symbols(at[0] - half):
                return not any([isinstance(x, _LOOPING) for x in region.ops])
    return False


def _stepped(low: State, axis: Axis, steps: Steps, carried: list[Value], body: Body) -> list[Value]:
    """Full steps without checks, then the rest."""
    em, size, extent = low.em, steps.size, axis.extent
    zero = em.const(0, int64)
    full = extent // size * size

    def run(start: Value, inner: list[Value], count: int, checked: bool = False) -> Sequence[Value]:
        return body(TileDim(axis.name, count, start, extent, checked), inner)

    if low.is_block and (steps.stages or not isinstance(extent, int)):
        checked = not divides(size, extent, low.facts)
        if isinstance(extent, int) and 0 < extent <= size:
            return list(run(zero, carried, size, checked))
        bounds = (zero, em.index(extent), em.const(size, int64))
        return em.loop(
            bounds, carried, lambda i, inner: run(i, inner, size, checked), stages=steps.stages
        )
    if full == size:
        carried = list(run(zero, carried, size))
    elif full != 0:
        bounds = (zero, em.index(full), em.const(size, int64))
        pooled = steps.pooled
        carried = em.loop(bounds, carried, lambda i, inner: run(i, inner, size), pooled=pooled)
    if divides(size, extent, low.facts):
        return carried
    start, end = em.index(full), em.index(extent)
    if not steps.masked:
        bounds = (start, end, em.const(1, int64))
        return em.loop(bounds, carried, lambda i, inner: run(i, inner, 1))
    if isinstance(extent, int):
        return list(run(start, carried, size, True))
    before = list(carried)
    return em.when(em.map("lt", start, end), lambda: run(start, before, size, True), lambda: before)


def step_size(low: State, axes: Sequence[Axis], region: Block, order: Order | None = None) -> int:
    """Elements per step: 1 where the body has loops itself, and what a short axis needs."""
    width = low.reduce_tile if order is None else order.width
    if not axes or width == 1:
        return 1
    if any(isinstance(x, _LOOPING) for x in region.ops):
        if order is not None:
            raise CompileError(
                f"a reduction of order {order} has a loop in each of its terms", loc=low.em.loc
            )
        return 1
    extent = axes[-1].extent
    if isinstance(extent, int) and extent < width:
        return 1 if extent <= 1 else 1 << (extent - 1).bit_length()
    return width


@dataclass(frozen=True, slots=True)
class Frame:
    """Where the body of a reduction is evaluated.

    Attributes:
        outer: the point around it.
        step: elements per step.
        shape: of the accumulator.
        axis: the dim of the steps, where there is one.
    """

    outer: Point
    step: int
    shape: Shape
    axis: int

    def inner(self, dim: TileDim | None) -> Point:
        """The point inside."""
        return self.outer.plus(dim, first=self.axis == 0)


def frame_at(low: State, axes: Sequence[Axis], region: Block, point: Point, step: int) -> Frame:
    """The frame of a reduction. In a block of a GPU its tiles have no dims on which nothing in the
    region depends: code of the region that stands outside too is the same code."""
    deps = frozenset[str]().union(*[low.deps[v] for v in region.outputs])
    if low.is_block:
        point = point.along(deps)
    first = low.is_block and step > 1 and not _runs_along(low, region, axes[-1].name)
    shape = tuple([d.size if d.name in deps else 1 for d in point.dims])
    if step == 1:
        return Frame(point, step, () if deps.isdisjoint(point.names) else shape, -1)
    return Frame(point, step, (step, *shape) if first else (*shape, step), 0 if first else -1)


def _runs_along(low: State, region: Block, axis: str) -> bool:
    """Whether memory runs along a reduction axis, rather than along the axes of the nest."""
    strides: list[Dim] = []
    for op in walk(region):
        if isinstance(op, s.Load):
            found = linear_in(offset(op), (axis,))
            strides.append(0 if found is None else found[0][axis])
    return all(x == 0 for x in strides) or 1 in strides


def masked(low: State, x: Val, neutral: Val, inner: Point, axis: int = -1) -> Val:
    """A value with its neutral element beyond the extent of a dim."""
    at = axis % len(inner.dims)
    if not inner.dims[at].checked:
        return x
    mask = low.inside(inner, at)
    pairs = zip(x.parts, neutral.parts, strict=True)
    return Val(tuple([low.em.select(mask, a, b) for a, b in pairs]), inner.names)


def identity(low: State, fn: ScalarFn, dtype: DType) -> Val:
    if fn.identity is None:
        raise CompileError(f"schedule.reduce: {fn.name} has no neutral element", loc=low.em.loc)
    return low.constant(fn.identity(real_of(dtype)), dtype)


# --- reduce -----------------------------------------------------------------------------------


def is_looped(low: State, op: s.Reduce) -> bool:
    """Whether a reduction is one loop that can be shared; in a block of a GPU one that carries
    lanes."""
    if len(op.axes) != 1 or scalar_dtype(op.result).is_complex:
        return False
    if not low.is_block:
        return True
    step = step_size(low, op.axes, op.body, op.order)
    return step > 1 and not is_covered(op.axes[0], step) and op.axes[0].extent != 0


def covered(low: State, op: s.Reduce, point: Point) -> Point | None:
    """Where the body of a reduction is evaluated that one step covers; None for others."""
    step = step_size(low, op.axes, op.body, op.order)
    if not low.is_block or len(op.axes) != 1 or not is_covered(op.axes[0], step):
        return None
    axis = op.axes[0]
    checked = not divides(step, axis.extent, low.facts)
    dim = TileDim(axis.name, step, low.em.const(0, int64), axis.extent, checked)
    return frame_at(low, op.axes, op.body, point, step).inner(dim)


def frame_of(low: State, op: s.Reduce, point: Point) -> Frame:
    """Where the body of such a reduction is evaluated."""
    step = step_size(low, op.axes, op.body, op.order)
    return frame_at(low, op.axes, op.body, point, step)


def loops(
    low: State, axes: Sequence[Axis], step: int, carried: list[Value], body: Body, pooled: bool
) -> list[Value]:
    """Runs the bodies of such reductions, which have one extent and one step."""
    return run_steps(low, axes, Steps(step, pooled=pooled), carried, body)


def reduce(low: State, op: s.Reduce, point: Point) -> Val:
    """Combines the body's value over the reduction axes."""
    (out,) = op.body.outputs

    def value(inner: Point) -> Val:
        low.run(op.body.ops, inner)
        return low.get(out, inner)

    step = step_size(low, op.axes, op.body, op.order)
    if windows.goes_by_rows(op.body, point, step):
        return _by_rows(low, op, point, step, value)
    return accumulate(low, op, op.fn, scalar_dtype(out), point, value)


def _by_rows(
    low: State, op: s.Reduce, point: Point, step: int, value: Callable[[Point], Val]
) -> Val:
    """The same with an accumulator for each of some rows of windows: products of one row are added
    up before the next one is read, so that registers suffice."""
    em, loc = low.em, low.em.loc
    rows = windows.rows_of(low, point)
    frames = [frame_at(low, op.axes, op.body, row, step) for row in rows]
    neutral = identity(low, op.fn, scalar_dtype(op.result))

    def added(k: int, dim: TileDim | None, total: Value) -> Value:
        inner = frames[k].inner(dim)
        x = masked(low, value(inner), neutral, inner, frames[k].axis)
        em.loc = loc
        new = low.apply(op.fn, Val((total,), inner.names), x)
        return low.spread(new, frames[k].shape, 1)[0]

    def each(dim: TileDim | None, carried: list[Value]) -> Sequence[Value]:
        return [added(k, dim, total) for k, total in enumerate(carried)]

    def shared(places: Mapping[int, Dim], carried: list[Value]) -> list[Value]:
        name = op.axes[-2].name

        def body(dim: TileDim | None, inner: list[Value]) -> Sequence[Value]:
            found = list(inner)
            with low.holding_rows():
                for k, place in places.items():
                    em.written_out[name] = place
                    found[k] = added(k, dim, found[k])
                em.written_out.pop(name)
            return found

        return run_steps(low, op.axes[-1:], Steps(step), carried, body)

    def around(axes: Sequence[Axis], carried: list[Value]) -> list[Value]:
        if axes:
            return low.each(axes[0], carried, lambda inner: around(axes[1:], inner))
        return windows.over_rows(low, op.axes[-2], len(frames), carried, shared)

    start = [em.broadcast(neutral.parts[0], frame.shape) for frame in frames]
    if windows.shares_rows(op, point):
        lanes = around(op.axes[:-2], start)
    else:
        lanes = run_steps(low, op.axes, Steps(step), start, each)
    sums = [em.pure(t.Reduce, x, op.fn, len(frames[0].shape) - 1, False) for x in lanes]
    shape = (len(frames), *frames[0].shape[1:-1])
    return Val((em.pure(Stack, tuple(sums), shape),), frames[0].outer.names)


def accumulate(
    low: State,
    op: s.Reduce | s.Contract,
    fn: ScalarFn,
    dtype: DType,
    point: Point,
    value: Callable[[Point], Val],
) -> Val:
    em = low.em
    axes, region = op.axes, op.body
    step = step_size(low, axes, region, op.order)
    if dtype.is_complex and fn.name != "add":
        step = 1  # lanes are combined part by part at the end, which only a sum allows
    frame = frame_at(low, axes, region, point, step)
    shape = frame.shape
    neutral = identity(low, fn, dtype)
    parts = len(neutral.parts)
    loc = em.loc

    is_single = low.is_block and len(axes) == 1 and is_covered(axes[0], step)

    def body(dim: TileDim | None, carried: list[Value]) -> Sequence[Value]:
        inner = frame.inner(dim)
        x = value(inner)
        if dim is not None:
            x = masked(low, x, neutral, inner, frame.axis)
        em.loc = loc
        total = x if is_single else low.apply(fn, Val(tuple(carried), inner.names), x)
        return low.spread(total, shape, parts)

    start = [] if is_single else [em.broadcast(part, shape) for part in neutral.parts]
    if windows.is_written_out(low, region, step):
        result = windows.write_out(low, axes, start, lambda carried: body(None, carried))
        return Val(tuple(result), frame.outer.names)
    pairs = has_pairs(low, axes, region, step)
    steps = Steps(step, pairs=pairs, pooled=is_pooled(low, axes[-1], frame, fn))
    result = run_steps(low, axes, steps, start, body)
    if step > 1:
        exact = is_exact(low, op)
        result = [em.pure(t.Reduce, x, fn, frame.axis % len(shape), exact) for x in result]
    return Val(tuple(result), frame.outer.names)


def is_pooled(low: State, axis: Axis, frame: Frame, fn: ScalarFn) -> bool:
    """Whether extremes are carried in lanes that are combined behind a loop of many steps."""
    if low.is_block or frame.step == 1 or fn.name not in ("max", "min"):
        return False
    return not isinstance(axis.extent, int) or axis.extent >= MANY * frame.step


def is_exact(low: State, op: s.Reduce | s.Contract) -> bool:
    """Whether the threads of a block combine lanes as a program states it, however these lie."""
    return low.is_block and op.order is not None and op.order.tree is Tree.HALVES


def is_covered(axis: Axis, step: int) -> bool:
    """Whether one step is all."""
    return step > 1 and isinstance(axis.extent, int) and 0 < axis.extent <= step


# --- scan -------------------------------------------------------------------------------------


def scan(low: State, op: s.Scan, point: Point) -> None:
    """Runs along the axis, storing what has been combined so far."""
    em = low.em
    (out,) = op.body.outputs
    along = low.deps[out]
    shape = tuple([d.size if d.name in along else 1 for d in point.dims])
    shape = () if along.isdisjoint(point.names) else shape
    neutral = identity(low, op.fn, scalar_dtype(out))
    loc = em.loc

    def body(carried: list[Value]) -> Sequence[Value]:
        low.run(op.body.ops, point)
        em.loc = loc
        total = low.apply(op.fn, Val(tuple(carried), point.names), low.get(out, point))
        parts = low.spread(total, shape, len(neutral.parts))
        write(low, op.buf, Val(tuple(parts), point.names), op.index, point)
        return parts

    low.each(op.axis, [em.broadcast(part, shape) for part in neutral.parts], body, op.reverse)
