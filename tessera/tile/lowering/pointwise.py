"""Ops of a nest's body that compute a scalar from scalars."""

from __future__ import annotations

from tessera.dtypes import Kind, bool_, float32, uint32, uint64
from tessera.errors import CompileError
from tessera.ir.core import scalar_dtype
from tessera.schedule import ops as s
from tessera.schedule import sentinel_ops
from tessera.tile import ops as t
from tessera.tile.lowering.state import Point, State, Val
from tessera.tile.ops import tile_type
from tessera.tile.sentinel_ops import Sentinel


def const(low: State, op: s.Const, point: Point) -> Val:
    """A constant."""
    return low.constant(op.value, op.dtype)


def index(low: State, op: s.Index, point: Point) -> Val:
    """The value of an index expression."""
    dyn = low.dyn(op.dyn, point)
    return Val((low.em.index(op.expr, low.leaf(point, dyn)),), point.names)


def holds(low: State, op: s.Holds, point: Point) -> Val:
    """Whether index expressions are >= 0."""
    bits = low.chosen.get(op.result, 32)
    conditions = low.conditions(op.where, point, low.dyn(op.dyn, point), bits)
    if conditions is None:
        return Val((low.em.const(False, bool_),))
    found = low.em.all_of(conditions)
    return Val((low.em.const(True, bool_) if found is None else found,), point.names)


def apply(low: State, op: s.Map, point: Point) -> Val:
    """A row of the scalar table; what is chosen by a condition whose outcome is known is that."""
    args = [low.get(a, point) for a in op.args]
    if op.fn.name == "select" and isinstance(known := args[0].parts[0].op, t.Const):
        return args[1 if known.value else 2]
    return low.apply(op.fn, *args)


def cast(low: State, op: s.Cast, point: Point) -> Val:
    """A conversion."""
    return low.cast(low.get(op.x, point), op.dtype)


def sentinel(low: State, op: sentinel_ops.Sentinel, point: Point) -> None:
    """Tells of the points of the nest, not of those beyond its ends, nor where a loop is over."""
    em = low.em
    checked = [k for k, dim in enumerate(point.dims) if dim.checked]
    scalars = [op.bad, *([] if low.active is None else [low.active])]
    bools = [low.get(v, point).parts[0] for v in scalars]
    bad = em.all_of([*bools, *[low.inside(point, k) for k in checked]])
    assert bad is not None
    em.add(Sentinel(bad, loc=op.loc))


def bitcast(low: State, op: s.Bitcast, point: Point) -> Val:
    """The same bits; those of a complex64 are its parts, the real one low."""
    em = low.em
    x = low.get(op.x, point)
    source = scalar_dtype(op.x)
    if source is op.dtype:
        return x
    if source.is_complex != op.dtype.is_complex and source.bits == 64:
        half = em.const(32, uint64)
        if source.is_complex:
            words = [em.cast(em.pure(t.Bitcast, part, uint32), uint64) for part in x.parts]
            word = em.map("or", words[0], em.map("shl", words[1], half))
            return Val((_retype(low, word, op),), x.names)
        word = x.parts[0]
        if tile_type(word).dtype is not uint64:
            word = em.pure(t.Bitcast, word, uint64)
        words = [em.cast(w, uint32) for w in (word, em.map("shr", word, half))]
        return Val(tuple([em.pure(t.Bitcast, w, float32) for w in words]), x.names)
    if Kind.COMPLEX in (source.kind, op.dtype.kind):
        raise CompileError(f"schedule.bitcast: {source} has no counterpart {op.dtype}", loc=op.loc)
    return Val((em.pure(t.Bitcast, x.parts[0], op.dtype),), x.names)


def _retype(low: State, word: t.Value, op: s.Bitcast) -> t.Value:
    return word if op.dtype is uint64 else low.em.pure(t.Bitcast, word, op.dtype)
