"""What is known about a kernel before it runs: its launch, its objects, how it touches memory."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tessera.errors import SimulationError
from tessera.ir.core import Func, Op, Value
from tessera.ir.effects import READ
from tessera.ir.walk import walk
from tessera.target import gpu_ops as g
from tessera.target import ops as t
from tessera.target.gpu import Gpu
from tessera.target.simulate.state import Array, failure
from tessera.target.types import AddressSpace, PtrType

_ATOMICS = (g.Atomic, g.AtomicReduce, g.CompareExchange)
_WRITES: dict[type[Op], str] = {
    t.Store: "ptr",
    t.Scatter: "ptr",
    g.StoreCached: "ptr",
    g.Atomic: "ptr",
    g.AtomicReduce: "ptr",
    g.CompareExchange: "ptr",
    g.BulkStore: "dst",
}
_SEPARATE = (
    g.MbarrierInit, g.MbarrierArrive, g.MbarrierWait, g.BulkLoad, g.TensorLoad, g.BarrierArrive,
    g.ClusterBarrier,
)  # fmt: skip
"""Ops that let warps of a block go on at different places."""

WINDOW = 1024
"""Shared memory of blocks lies in multiples of this, the strictest alignment."""


@dataclass(frozen=True, slots=True)
class Kernel:
    """What all launches of a kernel share.

    Attributes:
        func: the kernel.
        info: its first op.
        ops: all ops.
        number: their positions.
        placed: where each shared object lies.
        window: bytes of shared memory.
        shared_grain: the smallest access to shared memory.
        grains: the smallest access to the memory of each argument; under None, to tensors.
        written: arguments that may be written; None: all.
        in_step: whether the threads of a block need no turns.
        spinning: loops that may wait for memory.
        atomic: for each op, whether it changes memory in one step.
        relaxed: whether blocks synchronize with each other.
    """

    func: Func
    info: g.BlockInfo
    ops: list[Op]
    number: dict[Op, int]
    placed: dict[Op, int]
    window: int
    shared_grain: int
    grains: dict[Value | None, int]
    written: frozenset[Value] | None
    in_step: bool
    spinning: frozenset[Op]
    atomic: Array
    relaxed: bool


def analyse(func: Func, machine: Gpu) -> Kernel:
    """Looks at a kernel once.

    Raises:
        SimulationError: the machine cannot launch it.
    """
    ops = list(walk(func.body))
    info = ops[0] if ops else None
    if not isinstance(info, g.BlockInfo):
        raise SimulationError(f"@{func.name}: a kernel begins with target.block_info")
    placed, total = _place([op for op in ops if isinstance(op, g.Shared)])
    _check_limits(info, total, machine)
    spinning = frozenset(
        op for op in ops if isinstance(op, t.While) and op.cond.get_effects() >= READ
    )
    return Kernel(
        func, info, ops, {op: k for k, op in enumerate(ops)}, placed, -(-total // WINDOW) * WINDOW,
        _shared_grain(ops), _global_grains(func, ops), _written(func, ops),
        not spinning and not any(map(_is_separate, ops)), spinning,
        np.array([isinstance(op, _ATOMICS) for op in ops]), any(map(_is_relaxed, ops)),
    )  # fmt: skip


def _is_separate(op: Op) -> bool:
    return isinstance(op, _SEPARATE) or (isinstance(op, g.Barrier) and op.threads != 0)


def _is_relaxed(op: Op) -> bool:
    if isinstance(op, g.Fence):
        return op.scope in ("device", "system")
    return isinstance(op, (g.Atomic, g.CompareExchange)) and op.order != "relaxed"


def _place(objects: list[g.Shared]) -> tuple[dict[Op, int], int]:
    """Offsets of shared objects: those that they have, and one after another for the rest."""
    placed: dict[Op, int] = {op: op.offset for op in objects if op.offset >= 0}
    end = max([op.offset + op.bytes for op in objects if op.offset >= 0], default=0)
    for op in objects:
        if op.offset < 0:
            placed[op] = -(-end // op.align) * op.align
            end = placed[op] + op.bytes
        elif op.offset % op.align:
            raise failure(op, f"byte {op.offset} is not aligned to {op.align} bytes")
    return placed, end


def _check_limits(info: g.BlockInfo, shared: int, machine: Gpu) -> None:
    limits = (
        ("threads in a block", info.threads, machine.threads_per_block),
        ("bytes of shared memory", shared, machine.shared_per_block),
        ("blocks in a cluster", info.cluster, machine.cluster),
    )
    for what, asked, limit in limits:
        if asked > limit:
            raise failure(info, f"{asked} {what}; {machine} has {limit}")


def _shared_grain(ops: list[Op]) -> int:
    """The size of the smallest access to shared memory."""
    sizes = [16]
    for op in ops:
        if any(_space(v) is AddressSpace.SHARED for v in op.operands):
            sizes.append(_access_size(op))
    return min(sizes)


def _global_grains(func: Func, ops: list[Op]) -> dict[Value | None, int]:
    """The size of the smallest access through each argument; under None, to tensors."""
    found: dict[Value | None, int] = dict.fromkeys([*func.args, None], 16)
    for op in ops:
        if isinstance(op, (g.TensorLoad, g.TensorStore)):
            found[None] = min(found[None], _access_size(op))
        for value in op.operands:
            if _space(value) is AddressSpace.GLOBAL:
                # What cannot be told apart may be any.
                root = _root(value)
                if isinstance(root.op, t.Alloca):
                    continue
                for arg in [root] if root in found else list(found):
                    found[arg] = min(found[arg], _access_size(op))
    return {arg: min(size, found[None]) for arg, size in found.items()}


def _space(value: Value) -> AddressSpace | None:
    return value.type.space if isinstance(value.type, PtrType) else None


def _root(ptr: Value) -> Value:
    """What a pointer has been moved from."""
    while isinstance(ptr.op, (t.PtrAdd, g.MapShared)):
        ptr = ptr.op.ptr
    return ptr


def _access_size(op: Op) -> int:
    if isinstance(op, (t.Load, g.LoadCached)):
        return t.element(op.type).itemsize
    if isinstance(op, (t.Store, t.Scatter, g.StoreCached, *_ATOMICS)):
        return t.element(op.value.type).itemsize
    if isinstance(op, (t.Gather, g.TensorLoad, g.TensorStore)):
        return op.dtype.itemsize
    if isinstance(op, g.AsyncCopy):
        return min(op.bytes, op.dtype.itemsize)
    return 8 if isinstance(op, (g.MbarrierInit, g.MbarrierArrive, g.MbarrierWait)) else 16


def _written(func: Func, ops: list[Op]) -> frozenset[Value] | None:
    """The pointers among a kernel's arguments through which it may write; None: any."""
    found: set[Value] = set()
    for op in ops:
        field = _WRITES.get(type(op))
        if isinstance(op, g.TensorStore):
            return None
        if field is None:
            continue
        root = _root(getattr(op, field))
        if root in func.args:
            found.add(root)
        elif not isinstance(root.op, (g.Shared, t.Alloca)):
            return None
    return frozenset(found)
