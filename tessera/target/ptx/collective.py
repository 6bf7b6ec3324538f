"""Ops of threads together: warps, atomics, barriers, asynchronous copies, matrices."""

from __future__ import annotations

from tessera.dtypes import float32
from tessera.errors import CompileError
from tessera.ir.core import Value
from tessera.target import gpu_ops as g
from tessera.target import ops as t
from tessera.target.gpu import GpuFeature, MmaShape
from tessera.target.ptx.address import address, space_of
from tessera.target.ptx.memory import pointer, predicate
from tessera.target.ptx.rows import APPROXIMATE, atomic_type, register_file
from tessera.target.ptx.text import Writer, is_packed, value_files
from tessera.target.types import AddressSpace, VecType

FULL = "0xffffffff"
"""The mask of all lanes."""


def thread_id(w: Writer, op: g.ThreadId) -> None:
    """A special register."""
    w.names[op.result] = (w.once(("special", "tid"), "b32", "mov.u32 {}, %tid.x"),)


def block_id(w: Writer, op: g.BlockId) -> None:
    """A special register."""
    w.names[op.result] = (w.once(("special", "ctaid"), "b32", "mov.u32 {}, %ctaid.x"),)


def cluster_rank(w: Writer, op: g.ClusterRank) -> None:
    """A special register."""
    w.need(GpuFeature.CLUSTER, op.name)
    w.always(f"mov.u32 {w.result(op.result)}, %cluster_ctarank")


def approximate(w: Writer, op: g.Approximate) -> None:
    """One instruction of the special function unit."""
    x = w.use(op.x)
    w.always(f"{APPROXIMATE[op.fn]} {w.result(op.result)}, {x}")


def clock(w: Writer, op: g.Clock) -> None:
    """The timer."""
    w.put(f"mov.u64 {w.result(op.result)}, %globaltimer")


# --- warps ----------------------------------------------------------------------------------------


def uniform(w: Writer, op: g.Uniform) -> None:
    """A shuffle from lane 0: what the assembler knows to be uniform."""
    x = w.in_register(w.use(op.x), "b32")
    w.put(f"shfl.sync.idx.b32 {w.result(op.result)}, {x}, 0, 31, {FULL}")


SHUFFLES = {"xor": "bfly", "up": "up", "down": "down", "index": "idx"}


def shuffle_lanes(w: Writer, op: g.ShuffleLanes) -> None:
    """One shuffle of 32 bits, or two."""
    # The lanes of a group, and for `up` that numbers do not go below its first.
    clamp = ((32 - op.width) << 8) | (0 if op.kind == "up" else 31)
    dtype = t.element(op.x.type)
    x, by = w.use(op.x), w.use(op.by)
    tail = f"{by}, {clamp}, {FULL}"
    word = f"shfl.sync.{SHUFFLES[op.kind]}.b32"
    file = register_file(dtype)
    result = w.result(op.result)
    if file in ("b32", "f32"):
        w.put(f"{word} {result}, {w.in_register(x, file)}, {tail}")
    elif file in ("b64", "f64"):
        low, high, low2, high2 = [w.register("b32") for _ in range(4)]
        w.always(f"mov.b64 {{{low}, {high}}}, {w.in_register(x, file)}")
        w.put(f"{word} {low2}, {low}, {tail}")
        w.put(f"{word} {high2}, {high}, {tail}")
        w.always(f"mov.b64 {result}, {{{low2}, {high2}}}")
    else:
        wide, moved = w.register("b32"), w.register("b32")
        if file == "pred":
            w.always(f"selp.b32 {wide}, 1, 0, {x}")
        else:
            w.always(f"cvt.u32.u16 {wide}, {w.in_register(x, file)}")
        w.put(f"{word} {moved}, {wide}, {tail}")
        if file == "pred":
            w.always(f"setp.ne.s32 {result}, {moved}, 0")
        else:
            w.always(f"cvt.u16.u32 {result}, {moved}")


def vote(w: Writer, op: g.Vote) -> None:
    """`vote.sync`."""
    kind = "ballot.b32" if op.kind == "ballot" else f"{op.kind}.pred"
    pred = w.use(op.pred)
    w.put(f"vote.sync.{kind} {w.result(op.result)}, {pred}, {FULL}")


def reduce_warp(w: Writer, op: g.ReduceWarp) -> None:
    """`redux.sync`."""
    w.need(GpuFeature.REDUX, op.name)
    name = op.fn.name
    if name not in ("add", "min", "max", "and", "or", "xor"):
        raise CompileError(f"ptx: no redux.sync of {name}", loc=op.loc)
    kind = "b32" if name in ("and", "or", "xor") else ("s32" if op.x.type == g.I32 else "u32")
    x = w.in_register(w.use(op.x), "b32")
    w.put(f"redux.sync.{name}.{kind} {w.result(op.result)}, {x}, {FULL}")


# --- atomics --------------------------------------------------------------------------------------

SCOPES = {"block": "cta", "device": "gpu", "system": "sys"}
ORDERS = {"relaxed": "relaxed", "acquire": "acquire", "release": "release", "both": "acq_rel"}


def _atomic_type(w: Writer, op: g.Atomic | g.AtomicReduce) -> str:
    """The type that an atomic function has; refuses what has no instruction."""
    dtype = t.element(op.value.type)
    name = "exch" if op.fn is None else op.fn.name
    kind = atomic_type(name, dtype, w.machine)
    if kind is None:
        raise CompileError(f"ptx: no atomic {name} of {dtype} on {w.machine}", loc=op.loc)
    return kind


def atomic(w: Writer, op: g.Atomic) -> None:
    """`atom`."""
    mask = predicate(w, op.mask)
    dtype = t.element(op.value.type)
    kind = _atomic_type(w, op)
    name = "exch" if op.fn is None else op.fn.name
    file = register_file(dtype)
    value = w.in_register(w.use(op.value), file)
    result = w.result(op.result)
    if mask is None:
        w.copy(result, "0", "b" + file[1:])
        return
    if mask:
        w.always(f"mov.b{file[1:]} {result}, 0")
    at = address(w, op.ptr, op.offset, dtype.itemsize)
    space = space_of(w, op.ptr).value
    where = f"{ORDERS[op.order]}.{SCOPES[op.scope]}.{space}"
    w.under(mask, f"atom.{where}.{name}.{kind} {result}, {at}, {value}")


def atomic_reduce(w: Writer, op: g.AtomicReduce) -> None:
    """`red`."""
    mask = predicate(w, op.mask)
    if mask is None:
        return
    dtype = t.element(op.value.type)
    at = address(w, op.ptr, op.offset, dtype.itemsize)
    space = space_of(w, op.ptr).value
    where = f"relaxed.{SCOPES[op.scope]}.{space}"
    if isinstance(op.value.type, VecType):
        _reduce_vector(w, op, mask, f"{SCOPES[op.scope]}")
        return
    kind = _atomic_type(w, op)
    value = w.in_register(w.use(op.value), register_file(dtype))
    w.under(mask, f"red.{where}.{op.fn.name}.{kind} {at}, {value}")


def _reduce_vector(w: Writer, op: g.AtomicReduce, mask: str, scope: str) -> None:
    """float32 sums: one instruction where the machine has it."""
    dtype = t.element(op.value.type)
    if dtype is not float32 or op.fn.name != "add":
        raise CompileError(f"ptx: no atomic {op.fn.name} of {op.value.type}", loc=op.loc)
    values = w.registers(op.value)
    space = space_of(w, op.ptr)
    count = len(values)
    if count in (2, 4) and w.machine.has(GpuFeature.VECTOR_RED) and space is AddressSpace.GLOBAL:
        at = address(w, op.ptr, op.offset, 4)
        text = f"red.relaxed.{scope}.global.add.v{count}.f32 {at}, {{{', '.join(values)}}}"
        w.under(mask, text)
        return
    for k, value in enumerate(values):
        at = address(w, op.ptr, op.offset, 4, 4 * k)
        w.under(mask, f"red.relaxed.{scope}.{space.value}.add.f32 {at}, {value}")


def compare_exchange(w: Writer, op: g.CompareExchange) -> None:
    """`atom.cas`."""
    mask = predicate(w, op.mask)
    dtype = t.element(op.value.type)
    file = register_file(dtype)
    if dtype.bits not in (32, 64) and file != "b16":
        raise CompileError(f"ptx: no compare_exchange of {dtype}", loc=op.loc)
    expected = w.in_register(w.use(op.expected), file)
    value = w.in_register(w.use(op.value), file)
    result = w.result(op.result)
    bits = f"b{8 * dtype.itemsize}"
    if mask is None:
        w.always(f"mov.{bits} {result}, 0")
        return
    if mask:
        w.always(f"mov.{bits} {result}, 0")
    at = address(w, op.ptr, op.offset, dtype.itemsize)
    where = f"{ORDERS[op.order]}.{SCOPES[op.scope]}.{space_of(w, op.ptr).value}"
    w.under(mask, f"atom.{where}.cas.{bits} {result}, {at}, {expected}, {value}")


# --- order ----------------------------------------------------------------------------------------


def barrier(w: Writer, op: g.Barrier) -> None:
    """`bar.sync`, with immediate numbers: a register would take all 16 barriers."""
    w.put(f"bar.sync {op.id}, {op.threads}" if op.threads else f"bar.sync {op.id}")


def barrier_arrive(w: Writer, op: g.BarrierArrive) -> None:
    """`bar.arrive`."""
    w.put(f"bar.arrive {op.id}, {op.threads}")


def warp_barrier(w: Writer, op: g.WarpBarrier) -> None:
    """`bar.warp.sync`."""
    del op
    w.put(f"bar.warp.sync {FULL}")


FENCES = {
    "block": ("fence.acq_rel.cta", None),
    "device": ("fence.acq_rel.gpu", None),
    "system": ("fence.acq_rel.sys", None),
    "async_shared": ("fence.proxy.async.shared::cta", GpuFeature.BULK_COPY),
    "async_global": ("fence.proxy.async.global", GpuFeature.BULK_COPY),
    "mbarrier_init": ("fence.mbarrier_init.release.cluster", GpuFeature.CLUSTER),
}


def fence(w: Writer, op: g.Fence) -> None:
    """A fence; on machines without what it is for there is nothing to order."""
    text, feature = FENCES[op.scope]
    w.need(feature, f"{op.name} {op.scope}")
    w.put(text)


def cluster_barrier(w: Writer, op: g.ClusterBarrier) -> None:
    """Arrive and wait."""
    w.need(GpuFeature.CLUSTER, op.name)
    w.put("barrier.cluster.arrive.release.aligned")
    w.put("barrier.cluster.wait.acquire.aligned")


def map_shared(w: Writer, op: g.MapShared) -> None:
    """`mapa`."""
    w.need(GpuFeature.CLUSTER, op.name)
    base, rank = pointer(w, op.ptr), w.use(op.rank)
    w.always(f"mapa.shared::cluster.u32 {w.result(op.result)}, {base}, {rank}")


def grid_wait(w: Writer, op: g.GridWait) -> None:
    """`griddepcontrol.wait`."""
    w.need(GpuFeature.GRID_CONTROL, op.name)
    w.put("griddepcontrol.wait")


def grid_release(w: Writer, op: g.GridRelease) -> None:
    """`griddepcontrol.launch_dependents`."""
    w.need(GpuFeature.GRID_CONTROL, op.name)
    w.put("griddepcontrol.launch_dependents")


def trap(w: Writer, op: g.Trap) -> None:
    """`trap` under its condition."""
    if isinstance(op.pred.op, t.Const):
        if op.pred.op.value:
            w.put("trap")
        return
    w.under(w.use(op.pred), "trap")


TOLD = "tessera_told"
"""The word that says which sentinel was the first to tell of something."""


def sentinel(w: Writer, op: t.Sentinel) -> None:
    """Leaves its number, if no other one has: the first one counts."""
    w.told += 1
    nothing, number = (w.in_register(str(n), "b32") for n in (0, w.told))
    w.put(f"atom.relaxed.gpu.global.cas.b32 {w.register('b32')}, [{TOLD}], {nothing}, {number}")


# --- asynchronous copies --------------------------------------------------------------------------


def async_copy(w: Writer, op: g.AsyncCopy) -> None:
    """`cp.async`; 16 bytes go past L1."""
    w.need(GpuFeature.ASYNC_COPY, op.name)
    size = op.dtype.itemsize
    dst, src = address(w, op.dst, op.dst_offset, size), address(w, op.src, op.src_offset, size)
    valid = f", {w.use(op.valid[0])}" if op.valid else ""
    cache = "cg" if op.bytes == 16 else "ca"
    w.put(f"cp.async.{cache}.shared.global {dst}, {src}, {op.bytes}{valid}")


def async_commit(w: Writer, op: g.AsyncCommit) -> None:
    """`cp.async.commit_group`."""
    w.need(GpuFeature.ASYNC_COPY, op.name)
    w.put("cp.async.commit_group")


def async_wait(w: Writer, op: g.AsyncWait) -> None:
    """`cp.async.wait_group`."""
    w.need(GpuFeature.ASYNC_COPY, op.name)
    w.put(f"cp.async.wait_group {op.pending}" if op.pending else "cp.async.wait_all")


def mbarrier_init(w: Writer, op: g.MbarrierInit) -> None:
    """`mbarrier.init`."""
    w.need(GpuFeature.MBARRIER, op.name)
    w.put(f"mbarrier.init.shared.b64 {address(w, op.ptr, op.offset, 1)}, {op.count}")


def mbarrier_arrive(w: Writer, op: g.MbarrierArrive) -> None:
    """`mbarrier.arrive`, with the bytes to expect."""
    w.need(GpuFeature.MBARRIER, op.name)
    at = address(w, op.ptr, op.offset, 1)
    if op.expect:
        w.need(GpuFeature.BULK_COPY, f"{op.name} with bytes")
        w.put(f"mbarrier.arrive.expect_tx.shared.b64 _, {at}, {w.use(op.expect[0])}")
        return
    state = w.register("b64")
    w.put(f"mbarrier.arrive.shared.b64 {state}, {at}")


def mbarrier_wait(w: Writer, op: g.MbarrierWait) -> None:
    """A loop of tests, in which the machine suspends the thread where it can."""
    w.need(GpuFeature.MBARRIER, op.name)
    at, parity = address(w, op.ptr, op.offset, 1), w.use(op.parity)
    test = "try_wait" if w.machine.has(GpuFeature.BULK_COPY) else "test_wait"
    n, done = w.next_label(), w.register("pred")
    w.start(f"$wait{n}")
    w.put(f"mbarrier.{test}.parity.shared.b64 {done}, {at}, {parity}")
    w.put(f"@!{done} bra $wait{n}")


def bulk_load(w: Writer, op: g.BulkLoad) -> None:
    """`cp.async.bulk` into shared memory."""
    w.need(GpuFeature.BULK_COPY, op.name)
    dst, src = address(w, op.dst, op.dst_offset, 1), address(w, op.src, op.src_offset, 1)
    bar = address(w, op.barrier, op.barrier_offset, 1)
    word = "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes"
    w.put(f"{word} {dst}, {src}, {w.use(op.size)}, {bar}")


def bulk_store(w: Writer, op: g.BulkStore) -> None:
    """`cp.async.bulk` out of shared memory."""
    w.need(GpuFeature.BULK_COPY, op.name)
    dst, src = address(w, op.dst, op.dst_offset, 1), address(w, op.src, op.src_offset, 1)
    w.put(f"cp.async.bulk.global.shared::cta.bulk_group {dst}, {src}, {w.use(op.size)}")


def _box(w: Writer, map_value: Value, coords: tuple[Value, ...]) -> str:
    at = ", ".join(w.use(c) for c in coords)
    return f"[{w.use(map_value)}, {{{at}}}]"


def tensor_load(w: Writer, op: g.TensorLoad) -> None:
    """`cp.async.bulk.tensor` into shared memory."""
    w.need(GpuFeature.BULK_COPY, op.name)
    dst = address(w, op.dst, op.dst_offset, op.dtype.itemsize)
    bar = address(w, op.barrier, op.barrier_offset, 1)
    word = f"cp.async.bulk.tensor.{len(op.box)}d.shared::cluster.global"
    w.put(f"{word}.mbarrier::complete_tx::bytes {dst}, {_box(w, op.map, op.coords)}, {bar}")


def tensor_store(w: Writer, op: g.TensorStore) -> None:
    """`cp.async.bulk.tensor` out of shared memory."""
    w.need(GpuFeature.BULK_COPY, op.name)
    src = address(w, op.src, op.src_offset, op.dtype.itemsize)
    word = f"cp.async.bulk.tensor.{len(op.box)}d.global.shared::cta.bulk_group"
    w.put(f"{word} {_box(w, op.map, op.coords)}, {src}")


def bulk_commit(w: Writer, op: g.BulkCommit) -> None:
    """`cp.async.bulk.commit_group`."""
    w.need(GpuFeature.BULK_COPY, op.name)
    w.put("cp.async.bulk.commit_group")


def bulk_wait(w: Writer, op: g.BulkWait) -> None:
    """`cp.async.bulk.wait_group`."""
    w.need(GpuFeature.BULK_COPY, op.name)
    w.put(f"cp.async.bulk.wait_group{'.read' if op.read else ''} {op.pending}")


# --- matrices -------------------------------------------------------------------------------------


def load_matrix(w: Writer, op: g.LoadMatrix) -> None:
    """`ldmatrix`."""
    w.need(GpuFeature.LOAD_MATRIX, op.name)
    at = address(w, op.ptr, op.offset, 1)
    registers = w.results(op.result)
    words = registers
    if not is_packed(op.dtype) and register_file(op.dtype) != "b32":
        words = tuple([w.register("b32") for _ in registers])
    trans = ".trans" if op.transpose else ""
    modifier = f"x{op.count}{trans}"
    w.put(f"ldmatrix.sync.aligned.m8n8.{modifier}.shared.b16 {{{', '.join(words)}}}, {at}")
    if words is not registers:
        for register, word in zip(registers, words, strict=True):
            w.always(f"mov.b32 {register}, {word}")


def store_matrix(w: Writer, op: g.StoreMatrix) -> None:
    """`stmatrix`."""
    w.need(GpuFeature.STORE_MATRIX, op.name)
    at = address(w, op.ptr, op.offset, 1)
    words = [w.in_register(x, "b32") for x in w.registers(op.value)]
    trans = ".trans" if op.transpose else ""
    modifier = f"x{len(words)}{trans}"
    w.put(f"stmatrix.sync.aligned.m8n8.{modifier}.shared.b16 {at}, {{{', '.join(words)}}}")


KINDS = {
    "bf16": "bf16", "f16": "f16", "tf32": "tf32", "f64": "f64", "i8": "s8", "u8": "u8",
    "f8e4m3fn": "e4m3", "f8e5m2": "e5m2",
}  # fmt: skip


def mma(w: Writer, op: g.Mma) -> None:
    """`mma.sync`."""
    accumulator = t.element(op.c.type).name
    shape = MmaShape(op.kind, accumulator, op.m, op.n, op.k)
    if shape not in w.machine.mma:
        near = [str(s) for s in w.machine.mma if s.kind == op.kind]
        has = f"it has {', '.join(near)}" if near else "it has none of that kind"
        raise CompileError(f"ptx: {w.machine} lacks mma.sync {shape}", loc=op.loc, fix=has)
    source = KINDS[op.kind]
    into = {"i32": "s32"}.get(accumulator, accumulator)
    file = "f64" if op.kind == "f64" else "b32"
    a, b = (_bits(w, v, file) for v in (op.a, op.b))
    c_file = {"f32": "f32", "f64": "f64"}.get(into, "b32")
    c = [w.in_register(x, c_file) for x in w.registers(op.c)]
    d = w.results(op.result)
    groups = ", ".join(f"{{{', '.join(x)}}}" for x in (d, a, b, c))
    word = f"mma.sync.aligned.m{op.m}n{op.n}k{op.k}.row.col.{into}.{source}.{source}.{into}"
    w.put(f"{word} {groups}")


def _bits(w: Writer, value: Value, file: str) -> list[str]:
    """The operands of a matrix instruction; tf32 is float32 in a 32-bit register."""
    found: list[str] = []
    for k, operand in enumerate(w.registers(value)):
        if not operand.startswith("%"):
            found.append(w.in_register(operand, file))
        elif file == "b32" and value_files(value.type)[k] == "f32":
            found.append(w.once(("bits", value, k), "b32", f"mov.b32 {{}}, {operand}"))
        else:
            found.append(operand)
    return found
