"""Simulated ops that the lanes of a warp run together: shuffles, votes, matrices."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from tessera.dtypes import dtype_of
from tessera.ir.core import Op
from tessera.target import gpu_ops as g
from tessera.target import ops as t
from tessera.target.gpu_ops import WARP
from tessera.target.simulate.access import idents, locate, put
from tessera.target.simulate.state import Array, Pointer, Threads
from tessera.tile.layouts.fragments import mma_a, mma_b, mma_c

_LANE = np.arange(WARP)


def _uniform(s: Threads, op: g.Uniform) -> None:
    s.warps(op)
    x: Array = s.values[op.x]
    if x.shape[0] > 1:
        rows = x.reshape(-1, WARP)
        differ = (rows != rows[:, :1]).reshape(-1)
        differ = differ if s.mask is None else differ & s.mask
        if differ.any():
            k = int(np.flatnonzero(differ)[0])
            message = f"lane {k % WARP} has {int(x[k])}, lane 0 {int(x[k - k % WARP])}"
            raise s.fail(op, message, k)
    s.values[op.result] = x


def _shuffle_lanes(s: Threads, op: g.ShuffleLanes) -> None:
    s.warps(op)
    x, by = s.values[op.x], s.values[op.by].astype(np.int64)
    limit = op.width if op.kind in ("index", "xor") else WARP
    wrong = (by < 0) | (by >= limit)
    if wrong.any() and s.of_active(wrong).any():
        k = int(s.positions()[np.flatnonzero(s.of_active(wrong))[0]])
        message = f"{op.kind} by {int(s.full(by)[k])} in groups of {op.width} lanes"
        raise s.fail(op, message, k)
    if x.shape[0] == 1:
        s.values[op.result] = x
        return
    rows = x.reshape(-1, WARP)
    if by.shape[0] == 1:
        s.values[op.result] = rows[:, _source(op, by)].reshape(-1)
    else:
        source = _source(op, by.reshape(-1, WARP))
        s.values[op.result] = np.take_along_axis(rows, source, axis=1).reshape(-1)


def _source(op: g.ShuffleLanes, by: Array) -> Array:
    """The lane that each lane takes its value from."""
    within, start = _LANE % op.width, _LANE // op.width * op.width
    if op.kind == "xor":
        source = within ^ by
    elif op.kind == "up":
        source = np.where(within >= by, within - by, within)
    elif op.kind == "down":
        source = np.where(within + by < op.width, within + by, within)
    else:
        source = np.broadcast_to(by, np.broadcast_shapes(by.shape, _LANE.shape))
    # Lanes that do not take part may hold anything.
    return np.clip(source + start, 0, WARP - 1)


def _vote(s: Threads, op: g.Vote) -> None:
    s.warps(op)
    pred = s.full(s.values[op.pred]).reshape(-1, WARP)
    if op.kind == "ballot":
        found = (pred.astype(np.uint32) << _LANE.astype(np.uint32)).sum(axis=1, dtype=np.uint32)
    else:
        found = pred.any(axis=1) if op.kind == "any" else pred.all(axis=1)
    s.values[op.result] = np.repeat(found, WARP)


def _reduce_warp(s: Threads, op: g.ReduceWarp) -> None:
    s.warps(op)
    x = s.full(s.values[op.x])
    if not isinstance(op.fn.compute, np.ufunc):
        raise s.fail(op, f"no reduction by {op.fn.name}")
    found = op.fn.compute.reduce(x.reshape(-1, WARP), axis=1, dtype=x.dtype)
    s.values[op.result] = np.repeat(found, WARP)


# --- matrices in shared memory --------------------------------------------------------------------


def _rows(s: Threads, op: g.LoadMatrix | g.StoreMatrix, count: int) -> tuple[Array, Array]:
    """The addresses of the rows of matrices, and the positions of the lanes that pass them."""
    s.warps(op)
    passes = np.tile(np.less(_LANE, 8 * count), s.count // WARP)
    chosen = np.flatnonzero(passes if s.mask is None else passes & s.mask)
    ptr: Pointer = s.values[op.ptr]
    at = locate(s, op, ptr, s.full(s.values[op.offset].astype(np.int64)), chosen, 16, 16)
    return at, chosen


def _load_matrix(s: Threads, op: g.LoadMatrix) -> None:
    at, chosen = _rows(s, op, op.count)
    memory = s.values[op.ptr].memory
    memory.note_read(s, op, at, 16, idents(s, chosen))
    rows = memory.data[at[:, None] + np.arange(16)].view(np.uint16)
    matrices = rows.reshape(-1, op.count, 8, 8)
    if op.transpose:
        matrices = matrices.swapaxes(2, 3)
    # Lane l takes columns 2 * (l % 4) and the next of row l // 4: 32 pairs in order.
    pairs = matrices.reshape(-1, op.count, WARP, 2).swapaxes(1, 2)
    found = np.ascontiguousarray(pairs).reshape(-1, op.count * 2).view(op.dtype.np)
    result = np.zeros((s.count, found.shape[1]), op.dtype.np)
    result[s.positions()] = found
    s.values[op.result] = result


def _store_matrix(s: Threads, op: g.StoreMatrix) -> None:
    count = t.lanes(op.value.type) // 2
    at, chosen = _rows(s, op, count)
    value = np.ascontiguousarray(s.of_active(s.values[op.value])).view(np.uint16)
    pairs = value.reshape(-1, WARP, count, 2).swapaxes(1, 2)
    matrices = pairs.reshape(-1, count, 8, 8)
    if op.transpose:
        matrices = matrices.swapaxes(2, 3)
    rows = np.ascontiguousarray(matrices).reshape(-1, 8)
    whole = np.zeros((s.count, 8), np.uint16)
    whole[chosen] = rows
    put(s, op, s.values[op.ptr].memory, at, whole, chosen, dtype_of("u16"))


# --- products -------------------------------------------------------------------------------------


@functools.cache
def fragment(which: str, kind: str, count: int) -> tuple[Array, Array]:
    """Rows and columns of the elements that each lane holds, [lanes, elements] both.

    Args:
        which: a (m by k), b (k by n) or c (m by n).
        kind: the operands' dtype, as `target.mma` names it.
        count: elements of a lane. Half of a fragment is that of half the depth.
    """
    # What is wider than 32 bits lies as 32-bit elements do.
    itemsize = 4 if kind in ("tf32", "f64") else dtype_of(kind).itemsize
    step = 32 // itemsize
    # A lane holds a 32nd of 16 rows or 8 columns.
    depth = max(step, count * 2 if which == "a" else count * 4)
    layout = mma_c()
    if which != "c":
        layout = mma_a(itemsize, depth) if which == "a" else mma_b(itemsize, depth)
    row, column = layout.apply({"lane": _LANE[:, None], "reg": np.arange(count)[None]})
    shape = (WARP, count)
    return np.broadcast_to(row, shape), np.broadcast_to(column, shape)


def _matrix(s: Threads, x: Array, which: str, kind: str, shape: tuple[int, int]) -> Array:
    """The matrices that fragments hold, one for each warp that takes part."""
    held = s.of_active(x).reshape(-1, WARP, x.shape[1])
    result = np.empty((held.shape[0], *shape), x.dtype)
    row, column = fragment(which, kind, x.shape[1])
    result[:, row, column] = held
    return result


def _as_tf32(x: Array) -> Array:
    """What the tensor core takes of float32: 10 bits of the fraction."""
    return np.asarray(x.view(np.uint32) & np.uint32(0xFFFFE000)).view(np.float32)


def _mma(s: Threads, op: g.Mma) -> None:
    s.warps(op)
    m, n, k = op.m, op.n, op.k
    a = _matrix(s, s.values[op.a], "a", op.kind, (m, k))
    b = _matrix(s, s.values[op.b], "b", op.kind, (k, n))
    c = _matrix(s, s.values[op.c], "c", op.kind, (m, n))
    if op.kind == "tf32":
        a, b = (_as_tf32(x) for x in (a, b))
    # Products of all operand formats but float64 are exact in it, and sums of int8 products, too.
    found = np.matmul(a.astype(np.float64), b.astype(np.float64))
    if c.dtype == np.int32:
        found = (found.astype(np.int64) + c).astype(np.int32)
    else:
        found = (found + c.astype(np.float64)).astype(c.dtype)
    row, column = fragment("c", op.kind, s.values[op.c].shape[1])
    result = np.zeros((s.count, row.shape[1]), c.dtype)
    result[s.positions()] = found[:, row, column].reshape(-1, row.shape[1])
    s.values[op.result] = result


RULES: dict[type[Op], Callable[[Threads, Any], None]] = {
    g.Uniform: _uniform,
    g.ShuffleLanes: _shuffle_lanes,
    g.Vote: _vote,
    g.ReduceWarp: _reduce_warp,
    g.LoadMatrix: _load_matrix,
    g.StoreMatrix: _store_matrix,
    g.Mma: _mma,
}
