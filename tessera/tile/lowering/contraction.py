"""Contractions: products of tiles where the tiled axes are rows and columns, else sums of products.

A product whose order states parts carries two tiles through its loop: the sums of the part that it
is in, and those of the parts before it.
"""

from __future__ import annotations

from collections.abc import Sequence

from tessera.dtypes import DType, Kind, int64, real_of
from tessera.errors import CompileError
from tessera.ir.core import Block, Op, Value, scalar_dtype
from tessera.ir.intexpr import linear_in, sym
from tessera.ir.order import SEQUENCE
from tessera.ir.scalar import SCALARS
from tessera.schedule import ops as s
from tessera.schedule.dependence import behind
from tessera.schedule.part_ops import ContractFrom
from tessera.schedule.prefetch_ops import Prefetch
from tessera.schedule.sentinel_ops import Sentinel
from tessera.tile import ops as t
from tessera.tile.lane_ops import Row
from tessera.tile.lowering.emitter import Shape
from tessera.tile.lowering.reduction import Steps, accumulate, has_pairs, run_steps
from tessera.tile.lowering.state import Point, State, TileDim, Val


def contract(low: State, op: s.Contract, point: Point) -> Val:
    """A sum of products: a product of matrix tiles where the tiled axes are rows and columns."""
    sides = _sides(op, point)
    if sides is not None and (op.fused or not _has_lanes_along(low, op)):
        return _dot(low, op, point, *sides)
    if isinstance(op, ContractFrom):
        raise CompileError("a part of a sum of products is no product of tiles", loc=low.em.loc)

    def value(inner: Point) -> Val:
        low.run(op.body.ops, inner)
        lhs, rhs = [low.cast(low.get(v, inner), op.dtype) for v in op.body.outputs]
        return low.apply(SCALARS["mul"], lhs, rhs)

    return accumulate(low, op, SCALARS["add"], op.dtype, point, value)


def _has_lanes_along(low: State, op: s.Contract) -> bool:
    """Whether a CPU adds several places of the depth side by side: neither one after the other, nor
    the products of narrow ones in an instruction."""
    if op.order == SEQUENCE:
        return False
    widths = {scalar_dtype(value).bits for value in op.body.outputs}
    return not low.is_block and low.reduce_tile > 1 and max(widths) == op.dtype.bits


def _sides(op: s.Contract, point: Point) -> tuple[Value, Value] | None:
    """The operands of the matrix product; None if the tiled axes do not fit one.

    The last tiled axis runs along the columns, whichever operand it belongs to: a product has no
    other preference.
    """
    if len(point.dims) > 2 or not op.axes:
        return None
    lhs, rhs = op.body.outputs
    if not point.dims:
        # One product after the other, as they are added where there are more rows or columns.
        return (lhs, rhs) if op.fused else None
    *first, last = point.names
    if last in op.cols and all(name in op.rows for name in first):
        return lhs, rhs
    if last in op.rows and all(name in op.cols for name in first):
        return rhs, lhs
    return None


def _dot(low: State, op: s.Contract, point: Point, left: Value, right: Value) -> Val:
    em = low.em
    loc = em.loc
    extent = op.axes[-1].extent
    # On a CPU the schedule says which operands stay narrow: it takes some of their steps at once.
    bits, others = scalar_dtype(left).bits, scalar_dtype(right).bits
    keeps = low.reduce_tile > 1 and bits == others < op.dtype.bits
    if low.is_block:
        left, right, keeps = _narrow(left, right, op.dtype)
    step = low.reduce_tile
    if isinstance(extent, int) and not low.is_block:
        step = max(1, min(step, extent))
    rows, cols = Point(point.dims[:-1]), Point(point.dims[-1:])
    shape = (*(rows.shape or (1,)), *(cols.shape or (1,)))
    sides = ((left, cols), (right, rows))
    left_ops, right_ops = [
        _watched(low, op.body, behind(op.body.ops, (v,)), set(other.names)) for v, other in sides
    ]
    right_ops += [one for one in op.body.ops if isinstance(one, Prefetch)]
    neutral = low.constant(0.0 if op.dtype.is_inexact else 0, op.dtype)

    def matrix(ops: Sequence[Op], value: Value, at: Point, full: Shape) -> list[Value]:
        low.run(ops, at)
        found = low.get(value, at)
        if low.is_block:
            found = _zero_beyond(low, value, found, at, op.axes[-1].name)
        parts = found.parts if keeps else [em.cast(x, real_of(op.dtype)) for x in found.parts]
        return [em.reshape(em.broadcast(x, at.shape), full) for x in parts]

    start = [em.broadcast(part, shape) for part in neutral.parts]
    if isinstance(op, ContractFrom):
        found = low.spread(low.get(op.start, point), point.shape, len(start))
        start = [em.reshape(part, shape) for part in found]
    split = op.order.split if low.is_block and op.fused and op.order is not None else 0
    if split % step:
        raise CompileError(f"{step} products a step, and parts of {split}", loc=loc)

    # What all lanes are multiplied with is best read from memory, one element after the other.
    by_places = not low.is_block and not keeps and isinstance(left.op, s.Load)

    def body(dim: TileDim | None, carried: list[Value]) -> Sequence[Value]:
        # One of two neighbours is a dim of an operand in which they do not share a byte.
        deep = op.axes[-1]
        one = dim or TileDim(deep.name, 1, em.index(sym(deep.name)), deep.extent, False)
        at_left, at_right = rows.plus(one), Point((one, *cols.dims))
        if dim is None:
            at_left = rows if _shares_bytes(left_ops, deep.name) else at_left
            at_right = cols if _shares_bytes(right_ops, deep.name) else at_right
        places = _places(low, rows, one) if by_places and one.size > 1 else [at_left]
        side = (shape[0], one.size // len(places))
        a = matrix(left_ops, left, places[0], side)
        b = matrix(right_ops, right, at_right, (one.size, shape[1]))
        sums = carried[: len(start)]
        for k, at in enumerate(places):
            a = matrix(left_ops, left, at, side) if k else a
            em.loc = loc
            sums = _multiply(low, a, [_line(low, x, k, len(places)) for x in b], sums)
        if not split or dim is None:
            return sums
        # After the last step of a part, its sums are added to those of the parts before it.
        end = em.map("add", dim.start, em.const(dim.size, int64))
        is_last = em.map("eq", em.map("rem", end, em.const(split, int64)), em.const(0, int64))
        before = carried[len(start) :]
        return em.when(
            is_last, lambda: [*start, *_sums(low, before, sums)], lambda: [*sums, *before]
        )

    stages = low.stages if low.is_block else 0
    pairs = has_pairs(low, op.axes, op.body, step)
    steps = Steps(step, masked=False, always_dim=True, stages=stages, pairs=pairs)
    result = run_steps(low, op.axes, steps, start * 2 if split else start, body)
    if split:
        result = _sums(low, result[len(start) :], result[: len(start)])
    return Val(tuple([em.reshape(x, point.shape) for x in result]), point.names)


def _places(low: State, rows: Point, deep: TileDim) -> list[Point]:
    """Rows at each place of a tile of the depth."""
    em = low.em
    starts = [em.map("add", deep.start, em.index(k)) for k in range(deep.size)]
    return [rows.plus(TileDim(deep.name, 1, start, deep.extent)) for start in starts]


def _line(low: State, x: Value, k: int, count: int) -> Value:
    """What an operand has at one of so many places of the depth."""
    if count == 1:
        return x
    return low.em.reshape(low.em.pure(Row, x, k), (1, t.tile_type(x).shape[1]))


def _shares_bytes(ops: Sequence[Op], axis: str) -> bool:
    """Whether neighbours along an axis are read from the same place."""
    loads = [op for op in ops if isinstance(op, s.Load)]
    return any(linear_in(e, (axis,)) is None for op in loads for e in op.index)


def _sums(low: State, a: Sequence[Value], b: Sequence[Value]) -> list[Value]:
    """The sums of some tiles."""
    return [low.em.map("add", x, y) for x, y in zip(a, b, strict=True)]


def _narrow(left: Value, right: Value, dtype: DType) -> tuple[Value, Value, bool]:
    """The operands before a widening that a matrix instruction does itself, and whether they may
    go into it as they are."""
    found: list[Value] = []
    for value in (left, right):
        op = value.op
        if isinstance(op, s.Cast) and _widens(scalar_dtype(op.x), op.dtype):
            value = op.x
        found.append(value)
    types = {scalar_dtype(v) for v in found}
    if len(types) == 1 and _widens(scalar_dtype(found[0]), dtype):
        return found[0], found[1], True
    return left, right, scalar_dtype(left) is scalar_dtype(right) is dtype


def _widens(source: DType, target: DType) -> bool:
    """Whether a conversion is exact, and one that matrix instructions know."""
    if source.bits == 8 and source.kind in (Kind.INT, Kind.UINT):
        return target.kind in (Kind.INT, Kind.UINT) and target.bits == 32
    return source.is_float and source.bits <= 16 and target.is_float and target.bits == 32


def _zero_beyond(low: State, value: Value, x: Val, at: Point, axis: str) -> Val:
    """An operand with zeros beyond the end of the reduction, as loads have them."""
    k = at.names.index(axis)
    source = value
    while isinstance(source.op, s.Cast):
        source = source.op.x
    op = source.op
    if not at.dims[k].checked or (
        isinstance(op, s.Load) and op.fill == 0 and axis in low.deps[op.result]
    ):
        return x
    mask = low.inside(at, k)
    zero = [low.em.cast(low.em.const(0, int64), t.tile_type(p).dtype) for p in x.parts]
    parts = [low.em.select(mask, a, b) for a, b in zip(x.parts, zero, strict=True)]
    return Val(tuple(parts), at.names)


def _multiply(
    low: State, a: Sequence[Value], b: Sequence[Value], acc: Sequence[Value]
) -> list[Value]:
    """acc + a @ b on real matrices, or on complex ones by their parts."""
    em = low.em

    def dot(x: Value, y: Value, total: Value) -> Value:
        return em.pure(t.Dot, x, y, total)

    if len(acc) == 1:
        return [dot(a[0], b[0], acc[0])]
    re, im = dot(a[0], b[0], acc[0]), acc[1]
    if len(b) == 2:
        im = dot(a[0], b[1], im)
    if len(a) == 2:
        im = dot(a[1], b[0], im)
    if len(a) == len(b) == 2:
        re = dot(em.map("neg", a[1]), b[1], re)
    return [re, im]


def _watched(low: State, block: Block, ops: Sequence[Op], other: set[str]) -> list[Op]:
    """Some ops of a block with the sentinels that look at nothing else that is read, nor at what
    depends on some other axes."""
    found = list(ops)
    for op in block.ops:
        if not isinstance(op, Sentinel) or not other.isdisjoint(low.deps[op.bad]):
            continue
        needed = behind(block.ops, (op.bad,))
        if all(one in ops for one in needed if isinstance(one, s.Load)):
            found += [one for one in needed if one not in found]
            found.append(op)
    return found
