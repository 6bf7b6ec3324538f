"""Simulated ops that compute in registers. A value that all threads share stays one element."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tessera.dtypes import Kind, float32
from tessera.ir.convert import bitcast_array, cast_array
from tessera.ir.core import Op
from tessera.ir.interp import tree
from tessera.ir.scalar import Precision, Sig, round_into
from tessera.target import gpu_ops as g
from tessera.target import ops as t
from tessera.target.simulate.state import Array, Pointer, Threads
from tessera.target.types import VecType


def _const(s: Threads, op: t.Const) -> None:
    found = s.launch.plans.get(op)
    if found is None:
        shape = (1, op.type.lanes) if isinstance(op.type, VecType) else (1,)
        value = np.asarray(op.value).astype(t.element(op.type).np)
        found = s.launch.plans[op] = np.full(shape, value)
    s.values[op.result] = found


def _lanes(s: Threads, op: t.Lanes) -> None:
    s.values[op.result] = np.arange(op.count).astype(op.dtype.np)[None]


def _map(s: Threads, op: t.Map) -> None:
    plan = s.launch.plans.get(op)
    if plan is None:
        plan = s.launch.plans[op] = _plan(op)
    values = s.values
    s.values[op.result] = plan(*[values[v] for v in op.args])


def _plan(op: t.Map) -> Callable[..., Array]:
    """How a scalar function is computed on values of an op's types."""
    fn = op.fn
    dtype, wanted = t.element(op.args[-1].type), t.element(op.result.type).np
    is_native = dtype.bits >= (32 if dtype.is_float else 8)
    if fn.sig is Sig.SELECT:
        return np.where
    if not is_native or fn.precision is not Precision.NATIVE:
        return fn.evaluate
    compute = fn.compute

    def direct(*args: Array) -> Array:
        found = np.asarray(compute(*args))
        return found if found.dtype == wanted else round_into(found, t.element(op.result.type))

    return direct


def _cast(s: Threads, op: t.Cast) -> None:
    s.values[op.result] = cast_array(s.values[op.x], op.dtype)


def _bitcast(s: Threads, op: t.Bitcast) -> None:
    s.values[op.result] = bitcast_array(s.values[op.x], op.dtype)


def _splat(s: Threads, op: t.Splat) -> None:
    s.values[op.result] = np.repeat(s.values[op.x][:, None], op.count, axis=1)


def _pack(s: Threads, op: g.Pack) -> None:
    s.values[op.result] = np.stack(np.broadcast_arrays(*[s.values[v] for v in op.args]), axis=1)


def _extract(s: Threads, op: t.Extract) -> None:
    s.values[op.result] = s.values[op.x][:, op.lane]


def _insert(s: Threads, op: t.Insert) -> None:
    vector, value = s.values[op.x], s.values[op.value]
    count = max(vector.shape[0], value.shape[0])
    result = np.array(np.broadcast_to(vector, (count, vector.shape[1])))
    result[:, op.lane] = value
    s.values[op.result] = result


def _shuffle(s: Threads, op: t.Shuffle) -> None:
    a, b = s.values[op.a], s.values[op.b]
    count = max(a.shape[0], b.shape[0])
    both = [np.broadcast_to(x, (count, x.shape[1])) for x in (a, b)]
    s.values[op.result] = np.concatenate(both, axis=1)[:, list(op.picks)]


def _reduce_lanes(s: Threads, op: t.ReduceLanes) -> None:
    x = s.values[op.x]
    dtype = t.element(op.x.type)
    if dtype.kind is Kind.FLOAT and dtype.bits < 32:
        s.values[op.result] = cast_array(tree(op.fn, cast_array(x, float32).T), dtype)
    else:
        s.values[op.result] = tree(op.fn, x.T)


def _ptr_add(s: Threads, op: t.PtrAdd) -> None:
    ptr: Pointer = s.values[op.ptr]
    s.values[op.result] = ptr.moved(s.values[op.bytes])


_APPROXIMATE: dict[str, Callable[[Array], Array]] = {
    "exp2": np.exp2,
    "log2": np.log2,
    "reciprocal": np.reciprocal,
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "sqrt": np.sqrt,
    "sin": np.sin,
    "cos": np.cos,
    "tanh": np.tanh,
    "saturate": lambda x: np.fmin(np.fmax(x, 0), 1),
}


def _flushed(x: Array) -> Array:
    """Float32 with subnormals as zeros of their sign."""
    small = np.abs(x) < np.finfo(np.float32).tiny
    return np.where(small, np.copysign(np.float32(0), x), x).astype(np.float32)


def _approximate(s: Threads, op: g.Approximate) -> None:
    wide = _flushed(s.values[op.x]).astype(np.float64)
    s.values[op.result] = _flushed(_APPROXIMATE[op.fn](wide).astype(np.float32))


def _thread_id(s: Threads, op: g.ThreadId) -> None:
    s.values[op.result] = s.thread


def _block_id(s: Threads, op: g.BlockId) -> None:
    block = s.block + s.launch.first
    s.values[op.result] = (block[:1] if s.launch.blocks == 1 else block).astype(np.int32)


def _cluster_rank(s: Threads, op: g.ClusterRank) -> None:
    s.values[op.result] = (s.block % s.launch.cluster).astype(np.int32)


def _nothing(s: Threads, op: Op) -> None:
    del s, op


def _grid_wait(s: Threads, op: g.GridWait) -> None:
    del op
    s.early = False


def _clock(s: Threads, op: g.Clock) -> None:
    # Time that goes on and says nothing.
    s.launch.ticks += 1
    s.values[op.result] = np.full(1, s.launch.ticks, np.uint64)


RULES: dict[type[Op], Callable[[Threads, Any], None]] = {
    t.Const: _const,
    t.Lanes: _lanes,
    t.Map: _map,
    t.Cast: _cast,
    t.Bitcast: _bitcast,
    t.Splat: _splat,
    t.Extract: _extract,
    t.Insert: _insert,
    t.Shuffle: _shuffle,
    t.ReduceLanes: _reduce_lanes,
    t.PtrAdd: _ptr_add,
    g.Pack: _pack,
    g.Approximate: _approximate,
    g.BlockInfo: _nothing,
    g.GridWait: _grid_wait,
    g.GridRelease: _nothing,
    g.ThreadId: _thread_id,
    g.BlockId: _block_id,
    g.ClusterRank: _cluster_rank,
    g.Clock: _clock,
}
