"""What a kernel must be to run on a GPU, beyond `target/spec.py`, whose numbers go on here.

Invariants of a kernel for a machine:
 G14 its first op is target.block_info, the only one, and asks for no more than the machine has;
 G15 the machine has the feature that each op needs;
 G16 a matrix product is an instruction of the machine;
 G17 an access moves 1, 2, 4, 8 or 16 bytes, or as a vector several of them with 16 at most;
 G18 no address is known to miss the alignment that the access relies on;
 G19 shared objects have a size, lie at multiples of their alignment, and fit together;
 G20 a barrier's number is one of the machine's, and all who use it count the same whole warps;
 G21 the control around a collective op is uniform over the threads that run it together;
 G22 as many threads come to a barrier as it counts;
 G23 a lane that a value is asked from exists;
 G24 nothing is stored to constant memory;
 G25 every async copy is committed;
 G26 bulk copies have ended when the kernel ends;
 G27 a barrier in memory is made, with a barrier behind it, before it is used;
 G28 the parities and counts of barriers in memory go with their phases;
 G29 what a loop carries fits into registers, unless spills are accepted;
 G30 what threads write to shared memory is fenced before the copy engine touches it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from tessera.dtypes import float32
from tessera.ir.core import Func, Op, Value
from tessera.ir.types import ScalarType, Type
from tessera.ir.verify import violation
from tessera.ir.walk import walk
from tessera.target import gpu_ops as g
from tessera.target import ops as t
from tessera.target.check.access import byte_size
from tessera.target.check.uniform import BLOCK, WARP, control, threads_of
from tessera.target.gpu import Gpu, GpuFeature
from tessera.target.types import AddressSpace, PtrType, VecType

BULK = "target.async_copy, or target.load and target.store"
NEEDS: dict[type[Op], tuple[GpuFeature, str]] = {
    g.AsyncCopy: (GpuFeature.ASYNC_COPY, "target.load and target.store"),
    g.LoadMatrix: (GpuFeature.LOAD_MATRIX, "target.load of each fragment"),
    g.StoreMatrix: (GpuFeature.STORE_MATRIX, "target.store of each fragment"),
    g.Mma: (GpuFeature.MMA, "multiplication and addition of scalars"),
    g.ReduceWarp: (GpuFeature.REDUX, "target.shuffle_lanes"),
    g.MbarrierInit: (GpuFeature.MBARRIER, "target.barrier"),
    g.MbarrierArrive: (GpuFeature.MBARRIER, "target.barrier"),
    g.MbarrierWait: (GpuFeature.MBARRIER, "target.barrier"),
    g.BulkLoad: (GpuFeature.BULK_COPY, BULK),
    g.BulkStore: (GpuFeature.BULK_COPY, "target.load and target.store"),
    g.BulkCommit: (GpuFeature.BULK_COPY, "none: without bulk copies there is nothing to commit"),
    g.BulkWait: (GpuFeature.BULK_COPY, "none: without bulk copies there is nothing to wait for"),
    g.TensorLoad: (GpuFeature.BULK_COPY, BULK),
    g.TensorStore: (GpuFeature.BULK_COPY, "target.load and target.store"),
    g.ClusterRank: (GpuFeature.CLUSTER, "a block of its own, through global memory"),
    g.ClusterBarrier: (GpuFeature.CLUSTER, "a launch of its own"),
    g.MapShared: (GpuFeature.CLUSTER, "global memory"),
    g.GridWait: (GpuFeature.GRID_CONTROL, "launches one after the other"),
    g.GridRelease: (GpuFeature.GRID_CONTROL, "launches one after the other"),
}
"""The feature that each op needs, and what is there instead of the op."""

FREE_REGISTERS = 16
"""Registers that addresses, counters and temporaries take at least, beside what is carried."""

Check = Callable[[Func, Gpu], None]


def check_launch(func: Func, machine: Gpu) -> None:
    """G14."""
    infos = [op for op in walk(func.body) if isinstance(op, g.BlockInfo)]
    if len(infos) != 1 or func.ops[0] is not infos[0]:
        op = infos[-1] if infos else None
        raise violation("G14", func, op, f"{len(infos)} target.block_info; the first op is the one")
    info = infos[0]
    if info.threads > machine.threads_per_block:
        limit = machine.threads_per_block
        message = f"{info.threads} threads; a block of {machine} has at most {limit}"
        raise violation("G14", func, info, message)
    if info.cluster > machine.cluster or info.cluster < 1:
        message = f"clusters of {info.cluster} blocks; {machine} has at most {machine.cluster}"
        raise violation("G14", func, info, message)


def check_features(func: Func, machine: Gpu) -> None:
    """G15, G16."""
    for op in walk(func.body):
        needed = _needed(op)
        if needed is not None and not machine.has(needed[0]):
            feature, fallback = needed
            message = f"{op.name} needs {feature.value}, which {machine} lacks; instead: {fallback}"
            raise violation("G15", func, op, message)
        if isinstance(op, g.Mma):
            _check_product(func, op, machine)


def _needed(op: Op) -> tuple[GpuFeature, str] | None:
    if isinstance(op, g.Mma) and op.kind.startswith("f8"):
        return GpuFeature.MMA_F8, "conversion of the operands to f16"
    if isinstance(op, g.MbarrierArrive) and op.expect:
        return GpuFeature.BULK_COPY, BULK
    if isinstance(op, g.AtomicReduce) and isinstance(op.value.type, VecType):
        return GpuFeature.VECTOR_RED, "one target.atomic_reduce for each element"
    return NEEDS.get(type(op))


def _check_product(func: Func, op: g.Mma, machine: Gpu) -> None:
    accumulator = t.element(op.c.type)
    given = (op.kind, str(accumulator), op.m, op.n, op.k)
    if given not in {(s.kind, s.accumulator, s.m, s.n, s.k) for s in machine.mma}:
        same = [str(s) for s in machine.mma if s.kind == op.kind]
        message = (
            f"{machine} has no product m{op.m}n{op.n}k{op.k} of {op.kind} into {accumulator}; "
            f"it has {', '.join(same) or f'none of {op.kind}; instead: f16 or scalars'}"
        )
        raise violation("G16", func, op, message)
    operand = float32 if op.kind == "tf32" else None
    for value in (op.a, op.b):
        dtype = t.element(value.type)
        if dtype is not operand and (operand is not None or str(dtype) != op.kind):
            raise violation("G16", func, op, f"an operand of {op.kind} is {value.type}")


def check_widths(func: Func, machine: Gpu) -> None:
    """G17, G24."""
    for op in walk(func.body):
        moved = _moved(op)
        if moved is None:
            continue
        ptr, type, writes = moved
        size = byte_size(type)
        if size > 16 or size & (size - 1):
            message = f"an access of {size} bytes ({type}); {machine} moves 1, 2, 4, 8 or 16"
            raise violation("G17", func, op, message)
        if writes and isinstance(ptr.type, PtrType) and ptr.type.space is AddressSpace.CONSTANT:
            raise violation("G24", func, op, f"{op.name} to constant memory")


def _moved(op: Op) -> tuple[Value, Type, bool] | None:
    if isinstance(op, (t.Load, g.LoadCached)):
        return op.ptr, op.result.type, False
    if isinstance(op, (t.Store, g.StoreCached)):
        return op.ptr, op.value.type, True
    if isinstance(op, (g.Atomic, g.AtomicReduce, g.CompareExchange)):
        return op.ptr, op.value.type, True
    return None


def check_shared(func: Func, machine: Gpu) -> None:
    """G19."""
    total = 0
    for op in walk(func.body):
        if not isinstance(op, g.Shared):
            continue
        if op.bytes <= 0 or op.align <= 0 or op.align & (op.align - 1):
            message = f"a shared object of {op.bytes} bytes, aligned to {op.align}"
            raise violation("G19", func, op, message)
        if op.offset >= 0 and op.offset % op.align:
            message = f"offset {op.offset} is no multiple of the alignment {op.align}"
            raise violation("G19", func, op, message)
        # What has not been placed lies behind everything else.
        total = max(total, op.offset + op.bytes) if op.offset >= 0 else total + op.bytes
        if total > machine.shared_per_block:
            limit = machine.shared_per_block
            message = f"{total} bytes of shared memory; a block of {machine} has {limit}"
            raise violation("G19", func, op, message)


def check_barriers(func: Func, machine: Gpu) -> None:
    """G20."""
    threads = threads_of(func)
    counts: dict[int, int] = {}
    for op in walk(func.body):
        if not isinstance(op, (g.Barrier, g.BarrierArrive)):
            continue
        if not 0 <= op.id < machine.barriers:
            message = f"barrier {op.id}; {machine} has {machine.barriers} of them"
            raise violation("G20", func, op, message)
        count = op.threads or threads
        if count % g.WARP or not 0 < count <= threads:
            message = f"a barrier of {count} threads, in a block of {threads} in whole warps"
            raise violation("G20", func, op, message)
        if counts.setdefault(op.id, count) != count:
            message = f"barrier {op.id} counts {count} threads here and {counts[op.id]} elsewhere"
            raise violation("G20", func, op, message)


def check_control(func: Func, machine: Gpu) -> None:
    """G21."""
    for op, around in control(func).items():
        if not isinstance(op, g.GpuOp) or not op.collective:
            continue
        # One that says how many come may stand in several places.
        partial = isinstance(op, g.Barrier) and op.threads != 0
        if around > (WARP if op.collective == "warp" or partial else BLOCK):
            whom = "warp" if op.collective == "warp" or partial else "block"
            message = f"{op.name} under {around} control; all threads of the {whom} must run it"
            raise violation("G21", func, op, message)


def check_registers(func: Func, machine: Gpu) -> None:
    """G29."""
    info = func.ops[0]
    assert isinstance(info, g.BlockInfo)
    if info.spills:
        return
    limit = register_limit(info, machine)
    for op in walk(func.body):
        if isinstance(op, (t.For, t.While)):
            carried = sum(registers(v.type) for v in op.init)
            if carried + FREE_REGISTERS > limit:
                message = (
                    f"{carried} registers are carried around a loop; a thread has {limit} of "
                    f"them on {machine}, with {info.threads} threads in a block"
                )
                raise violation("G29", func, op, message)


def register_limit(info: g.BlockInfo, machine: Gpu) -> int:
    """32-bit registers that a thread can have."""
    blocks = max(1, info.min_blocks)
    return min(machine.max_registers, machine.registers // (info.threads * blocks) // 8 * 8)


def registers(type: Type) -> int:
    """32-bit registers that a value takes; predicates take none."""
    if isinstance(type, VecType):
        return -(-type.lanes * type.dtype.itemsize // 4)
    if isinstance(type, ScalarType):
        return 0 if type.dtype.is_bool else max(1, type.dtype.itemsize // 4)
    return 2


RULES: tuple[Check, ...] = (
    check_launch,
    check_features,
    check_widths,
    check_shared,
    check_barriers,
    check_control,
    check_registers,
)


def check_rules(func: Func, machine: Gpu) -> None:
    """Checks what can be seen without following addresses: G14 to G17, G19 to G21, G24, G29.

    Raises:
        VerifyError: the kernel breaks one, whose number the message begins with.
    """
    for rule in RULES:
        rule(func, machine)


def peak_registers(func: Func) -> int:
    """An estimate of the registers that are alive together, in the order in which ops stand."""
    return max(_alive(func), default=0)


def _alive(func: Func) -> Iterator[int]:
    last: dict[Value, int] = {}
    order = list(walk(func.body))
    ends: dict[int, int] = {}
    for number, op in enumerate(order):
        ends[id(op)] = number
        for value in op.operands:
            last[value] = number
        for region in op.regions:
            for value in region.outputs:
                last[value] = number + sum(1 for _ in walk(region))
    alive = 0
    frees = np.zeros(len(order) + 2, np.int64)
    for number, op in enumerate(order):
        made = [*op.results, *(a for r in op.regions for a in r.args)]
        for value in made:
            end = last.get(value, number)
            alive += registers(value.type)
            frees[max(end, number) + 1] += registers(value.type)
        alive -= int(frees[number])
        yield alive
