"""Simulated loads, stores and atomics: where threads access memory, with every check on the way."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tessera.dtypes import DType, bool_
from tessera.ir.core import Op, Value
from tessera.ir.scalar import ScalarFn
from tessera.target import gpu_ops as g
from tessera.target import ops as t
from tessera.target.simulate.memory import Memory
from tessera.target.simulate.state import Array, Pointer, Threads
from tessera.tile.types import POISON

POISONED = np.frombuffer(bytes([POISON] * 16), np.uint8)


def poisoned(shape: tuple[int, ...], dtype: DType) -> Array:
    """Registers that hold nothing."""
    raw = np.dtype(np.uint8) if dtype is bool_ else dtype.np
    found = np.full(shape, POISONED[: raw.itemsize].view(raw)[0])
    return found != 0 if dtype is bool_ else found


def predicated(s: Threads, pred: Value | None) -> Array | None:
    """The positions of threads that are active and whose predicate holds; None: all."""
    if pred is None:
        return s.active
    holds: Array = s.values[pred]
    if holds.shape[0] == 1:
        return s.active if holds[0] else np.empty(0, np.int64)
    return np.flatnonzero(holds if s.mask is None else holds & s.mask)


def locate(
    s: Threads, op: Op, ptr: Pointer, at: Array, chosen: Array | None, size: int, align: int
) -> Array:
    """Where chosen threads access memory: one place for each, or one for all, checked.

    Args:
        s: the threads.
        op: the op.
        ptr: the pointer.
        at: bytes that are added to it.
        chosen: positions of the threads that access memory; None: all.
        size: bytes of an access.
        align: what the address is a multiple of.
    """
    if s.early and not ptr.memory.strict:
        raise s.fail(op, "a dependent kernel touches memory before grid_wait", 0)
    at = ptr.at + at
    if chosen is not None:
        at = at[:0] if not chosen.size else at[chosen] if at.shape[0] > 1 else at
    if not at.size:
        return at
    if at.min() < ptr.lo or at.max() + size > ptr.hi:
        k = int(np.flatnonzero((at < ptr.lo) | (at + size > ptr.hi))[0])
        message = f"{size} bytes at byte {int(at[k]) - ptr.lo} of {ptr.name}, which has "
        raise s.fail(op, f"{message}{ptr.hi - ptr.lo} bytes", _position(s, chosen, k))
    if align > 1 and (at & (align - 1)).any():
        k = int(np.flatnonzero(at & (align - 1))[0])
        message = f"byte {int(at[k]) - ptr.lo} of {ptr.name} is not aligned to {align} bytes"
        raise s.fail(op, message, _position(s, chosen, k))
    if ptr.window is None:
        return at
    return at + (ptr.window if chosen is None or ptr.window.size == 1 else ptr.window[chosen])


def _position(s: Threads, chosen: Array | None, k: int) -> int:
    del s
    return k if chosen is None else int(chosen[k])


def idents(s: Threads, chosen: Array | None) -> Array:
    """The numbers of chosen threads in the grid."""
    return s.ident if chosen is None else s.ident[chosen]


def element_offset(s: Threads, offset: Value, dtype: DType) -> Array:
    """An element offset in bytes."""
    found: Array = s.values[offset].astype(np.int64)
    return found if dtype.itemsize == 1 else found * dtype.itemsize


def places(at: Array, dtype: DType, lanes: int) -> Array:
    """Addresses as positions of elements; of vectors a row each."""
    place = at >> dtype.itemsize.bit_length() - 1
    return place[:, None] + np.arange(lanes) if lanes else place


def fetch(memory: Memory, at: Array, dtype: DType, lanes: int) -> Array:
    """What memory holds at these addresses."""
    found = memory.view(dtype)[places(at, dtype, lanes)]
    return found != 0 if dtype is bool_ else found


def _load(s: Threads, op: t.Load | g.LoadCached) -> None:
    dtype, lanes = t.element(op.type), t.lanes(op.type)
    ptr: Pointer = s.values[op.ptr]
    if op.mask and s.values[op.mask[0]].ndim > 1:
        _load_lanes(s, op, ptr, dtype, lanes)
        return
    chosen = predicated(s, op.mask[0] if op.mask else None)
    size = dtype.itemsize * (lanes or 1)
    offset = element_offset(s, op.offset, dtype)
    at = locate(s, op, ptr, offset, chosen, size, op.align or dtype.itemsize)
    ptr.memory.note_read(s, op, at, size, idents(s, chosen))
    found = fetch(ptr.memory, at, dtype, lanes)
    if chosen is not None and (op.mask or at.size != 1):
        found = _spread(s, op, found, chosen, dtype)
    s.values[op.result] = found


def _spread(
    s: Threads, op: t.Load | g.LoadCached, found: Array, chosen: Array, dtype: DType
) -> Array:
    """What chosen threads read, in a register of all."""
    shape = (s.count, *found.shape[1:])
    if op.mask:
        result = np.array(np.broadcast_to(s.values[op.mask[1]], shape))
    else:
        result = poisoned(shape, dtype)
    result[chosen] = found
    return result


def _load_lanes(
    s: Threads, op: t.Load | g.LoadCached, ptr: Pointer, dtype: DType, lanes: int
) -> None:
    """A load with a predicate for each lane of the vector."""
    holds = s.full(s.values[op.mask[0]])
    result = np.array(s.full(s.values[op.mask[1]]))
    offset = element_offset(s, op.offset, dtype)
    _check_start(s, op, ptr, offset, op.align or dtype.itemsize)
    for lane in range(lanes):
        chosen = np.flatnonzero(holds[:, lane] if s.mask is None else holds[:, lane] & s.mask)
        step = offset + lane * dtype.itemsize
        at = locate(s, op, ptr, step, chosen, dtype.itemsize, dtype.itemsize)
        ptr.memory.note_read(s, op, at, dtype.itemsize, idents(s, chosen))
        result[chosen, lane] = fetch(ptr.memory, at, dtype, 0)
    s.values[op.result] = result


def _check_start(s: Threads, op: Op, ptr: Pointer, offset: Array, align: int) -> None:
    wrong = s.full((ptr.at + offset) % align != 0)
    wrong = wrong if s.mask is None else wrong & s.mask
    if wrong.any():
        message = f"an address in {ptr.name} is not aligned to {align} bytes"
        raise s.fail(op, message, int(np.flatnonzero(wrong)[0]))


def stored(value: Array, dtype: DType) -> Array:
    """Register values as memory holds them."""
    return value.astype(np.uint8) if dtype is bool_ else value


def put(
    s: Threads, op: Op, memory: Memory, at: Array, value: Array, chosen: Array | None, dtype: DType
) -> None:
    """Chosen threads write, in order."""
    who = idents(s, chosen)
    if not who.size:
        return
    if not memory.writable:
        raise s.fail(op, f"writes to {memory.name}, which may only be read", 0)
    at = np.broadcast_to(at, who.shape)
    if chosen is not None and value.shape[0] > 1:
        value = value[chosen]
    value = stored(np.broadcast_to(value, (who.size, *value.shape[1:])), dtype)
    memory.note_write(s, op, at, value.nbytes // who.size, who, value)
    memory.view(dtype)[places(at, dtype, value.shape[1] if value.ndim > 1 else 0)] = value
    memory.check_stored(s, op, at, value, who)


def _store(s: Threads, op: t.Store | g.StoreCached) -> None:
    dtype, lanes = t.element(op.value.type), t.lanes(op.value.type)
    ptr: Pointer = s.values[op.ptr]
    value: Array = s.values[op.value]
    offset = element_offset(s, op.offset, dtype)
    align = op.align or dtype.itemsize
    if op.mask and s.values[op.mask[0]].ndim > 1:
        holds = s.full(s.values[op.mask[0]])
        _check_start(s, op, ptr, offset, align)
        for lane in range(lanes):
            chosen = np.flatnonzero(holds[:, lane] if s.mask is None else holds[:, lane] & s.mask)
            step = offset + lane * dtype.itemsize
            at = locate(s, op, ptr, step, chosen, dtype.itemsize, dtype.itemsize)
            put(s, op, ptr.memory, at, value[:, lane], chosen, dtype)
        return
    chosen = predicated(s, op.mask[0] if op.mask else None)
    at = locate(s, op, ptr, offset, chosen, dtype.itemsize * (lanes or 1), align)
    put(s, op, ptr.memory, at, value, chosen, dtype)


def _gather(s: Threads, op: t.Gather) -> None:
    ptr: Pointer = s.values[op.ptr]
    offsets = element_offset(s, op.offsets, op.dtype)
    columns: list[Array] = []
    for lane in range(offsets.shape[1]):
        chosen = _lane_chosen(s, op.mask, lane)
        at = locate(s, op, ptr, offsets[:, lane], chosen, op.dtype.itemsize, op.dtype.itemsize)
        ptr.memory.note_read(s, op, at, op.dtype.itemsize, idents(s, chosen))
        found = fetch(ptr.memory, at, op.dtype, 0)
        if chosen is not None:
            result = poisoned((s.count,), op.dtype)
            if op.mask:
                result[...] = s.values[op.mask[1]][:, lane]
            result[chosen] = found
            found = result
        columns.append(found)
    s.values[op.result] = np.stack(np.broadcast_arrays(*columns), axis=1)


def _scatter(s: Threads, op: t.Scatter) -> None:
    ptr: Pointer = s.values[op.ptr]
    dtype = t.element(op.value.type)
    offsets, value = element_offset(s, op.offsets, dtype), s.values[op.value]
    for lane in range(offsets.shape[1]):
        chosen = _lane_chosen(s, op.mask, lane)
        at = locate(s, op, ptr, offsets[:, lane], chosen, dtype.itemsize, dtype.itemsize)
        put(s, op, ptr.memory, at, value[:, lane], chosen, dtype)


def _lane_chosen(s: Threads, mask: tuple[Value, ...], lane: int) -> Array | None:
    if not mask:
        return s.active
    holds = s.values[mask[0]]
    holds = s.full(holds[:, lane] if holds.ndim > 1 else holds)
    return np.flatnonzero(holds if s.mask is None else holds & s.mask)


# --- objects --------------------------------------------------------------------------------------


def _trap(s: Threads, op: g.Trap) -> None:
    hit = predicated(s, op.pred)
    if hit is None or hit.size:
        raise s.fail(op, "the kernel ends with an error", 0 if hit is None else int(hit[0]))


def _sentinel(s: Threads, op: t.Sentinel) -> None:
    active = s.positions()
    if active.size and s.launch.told is None:
        raise s.fail(op, "a value is bad", int(active[0]))
    if active.size and s.launch.told is not None:
        s.launch.told.append(op)


def _shared(s: Threads, op: g.Shared) -> None:
    start = s.launch.placed[op]
    window = s.block * s.launch.window
    window = window[:1] if (window == window[0]).all() else window
    name = f"shared object {op.label!r}" if op.label else f"the shared object at byte {start}"
    s.values[op.result] = Pointer(
        s.launch.shared, np.full(1, start), start, start + op.bytes, window, name
    )


def _map_shared(s: Threads, op: g.MapShared) -> None:
    ptr: Pointer = s.values[op.ptr]
    rank: Array = s.values[op.rank].astype(np.int64)
    cluster = s.launch.cluster
    wrong = s.of_active((rank < 0) | (rank >= cluster))
    if wrong.any():
        k = int(np.flatnonzero(wrong)[0])
        message = f"block {int(s.of_active(rank)[k])} of a cluster of {cluster}"
        raise s.fail(op, message, int(s.positions()[k]))
    window = (s.block // cluster * cluster + rank) * s.launch.window
    s.values[op.result] = Pointer(ptr.memory, ptr.at, ptr.lo, ptr.hi, window, ptr.name)


def _alloca(s: Threads, op: t.Alloca) -> None:
    size = op.count * op.dtype.itemsize
    room = -(-size // 64) * 64
    data = np.full(room * s.count, POISON, np.uint8)
    memory = Memory(data, "scratch memory", 1, strict=True, watched=False, writable=True)
    memory.span = room
    window = np.arange(s.count) * room
    s.values[op.result] = Pointer(memory, np.zeros(1, np.int64), 0, size, window, memory.name)


# --- atomics --------------------------------------------------------------------------------------

_Atomic = g.Atomic | g.AtomicReduce | g.CompareExchange


def _claim(s: Threads, op: _Atomic) -> tuple[Memory, Array, Array | None, DType, int]:
    """Where an atomic changes memory: one address for each chosen thread."""
    dtype, lanes = t.element(op.value.type), t.lanes(op.value.type)
    ptr: Pointer = s.values[op.ptr]
    chosen = predicated(s, op.mask[0] if op.mask else None)
    size = dtype.itemsize * (lanes or 1)
    at = locate(s, op, ptr, element_offset(s, op.offset, dtype), chosen, size, size)
    who = idents(s, chosen)
    at = np.broadcast_to(at, who.shape)
    if who.size:
        if not ptr.memory.writable:
            raise s.fail(op, f"writes to {ptr.memory.name}, which may only be read", 0)
        ptr.memory.note_write(s, op, at, size, who, None, atomic=True)
    return ptr.memory, at // dtype.itemsize, chosen, dtype, lanes


def _chosen_values(s: Threads, value: Value, chosen: Array | None) -> Array:
    whole = s.full(s.values[value])
    return whole if chosen is None else whole[chosen]


def _combine(view: Array, place: Array, value: Array, fn: ScalarFn | None) -> Array:
    """Changes elements one after another; what was there before each change."""
    if np.unique(place).size == place.size:
        before = view[place]
        view[place] = value if fn is None else fn.evaluate(before, value)
        return before
    before = np.empty_like(value)
    for k, where in enumerate(place):
        before[k] = view[where]
        view[where] = value[k] if fn is None else fn.evaluate(view[where], value[k])
    return before


def _give(s: Threads, op: _Atomic, found: Array, chosen: Array | None, dtype: DType) -> None:
    if chosen is not None:
        result = poisoned((s.count,), dtype)
        result[chosen] = found
        found = result
    s.values[op.results[0]] = found


def _atomic(s: Threads, op: g.Atomic) -> None:
    memory, place, chosen, dtype, _ = _claim(s, op)
    value = _chosen_values(s, op.value, chosen)
    found = _combine(memory.view(dtype), place, value, op.fn)
    _give(s, op, found, chosen, dtype)


def _atomic_reduce(s: Threads, op: g.AtomicReduce) -> None:
    memory, place, chosen, dtype, lanes = _claim(s, op)
    value = _chosen_values(s, op.value, chosen)
    view = memory.view(dtype)
    for lane in range(lanes or 1):
        column = value[:, lane] if lanes else value
        native = op.fn.compute
        if isinstance(native, np.ufunc) and dtype.bits >= 32:
            native.at(view, place + lane, column)
        else:
            _combine(view, place + lane, column, op.fn)


def _compare_exchange(s: Threads, op: g.CompareExchange) -> None:
    memory, place, chosen, dtype, _ = _claim(s, op)
    value, expected = (_chosen_values(s, v, chosen) for v in (op.value, op.expected))
    bits = f"u{dtype.itemsize}"
    view = memory.view(dtype).view(bits)
    value, expected = (np.ascontiguousarray(x).view(bits) for x in (value, expected))
    before = np.empty_like(value)
    for k, where in enumerate(place):
        before[k] = view[where]
        if before[k] == expected[k]:
            view[where] = value[k]
    _give(s, op, before.view(dtype.np), chosen, dtype)


RULES: dict[type[Op], Callable[[Threads, Any], None]] = {
    t.Load: _load,
    t.Store: _store,
    t.Gather: _gather,
    t.Scatter: _scatter,
    t.Alloca: _alloca,
    g.LoadCached: _load,
    g.StoreCached: _store,
    g.Trap: _trap,
    t.Sentinel: _sentinel,
    g.Shared: _shared,
    g.MapShared: _map_shared,
    g.Atomic: _atomic,
    g.AtomicReduce: _atomic_reduce,
    g.CompareExchange: _compare_exchange,
}
