"""Target IR of GPU kernels as PTX text.

Tables (`rows.py`) plus a printer. A module holds one `.visible .entry` for each kernel. Shared
memory is one dynamic array; pointers to it are 32-bit. Lines say where in the user's program an
instruction comes from (`.loc`), which is what profilers and sanitizers show.

What the tables have no row for has been rewritten by `target/passes/legalize_gpu.py`; what the
machine has no instruction for is refused, with the place of the op.

Where there are sentinels, the module has a word in global memory, `tessera_told`: 0, or the number
of the first one that has told of something. They are numbered from 1 as they stand in the text.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from tessera.errors import CompileError
from tessera.ir.core import Func, Op, Value
from tessera.ir.types import ScalarType
from tessera.target import gpu_ops as g
from tessera.target import ops as t
from tessera.target.check.uniform import DIVERGENT, uniformity
from tessera.target.gpu import Gpu, GpuFeature
from tessera.target.ptx import collective, control, memory
from tessera.target.ptx.address import (
    SHARED,
    addressed_values,
    fused_values,
    is_rounding,
    is_widening,
)
from tessera.target.ptx.rows import (
    BITS,
    BY_CONSTANT,
    CONVERSIONS,
    PREFIX,
    ROWS,
    key,
    memory_type,
    register_file,
)
from tessera.target.ptx.text import Rule, Writer, value_files
from tessera.target.types import AddressSpace, PtrType, VecType

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_$]*|[_$%][A-Za-z0-9_$]+")


def _const(w: Writer, op: t.Const) -> None:
    del w, op  # constants are written where they are used


def _map(w: Writer, op: t.Map) -> None:
    type = op.args[-1].type
    if isinstance(type, VecType):
        raise CompileError(
            f"ptx: {op.fn.name} of {type}; it should have been legalized", loc=op.loc
        )
    k = key(t.element(type))
    rows = ROWS.get(op.fn.name, {})
    if op.fn.name in BY_CONSTANT and isinstance(op.args[1].op, t.Const):
        by, dtype = int(op.args[1].op.value), t.element(type)
        shifts = op.fn.name in ("shl", "shr")
        if (0 <= by < dtype.bits) if shifts else by:
            rows = rows | BY_CONSTANT[op.fn.name]
    row = rows.get(k)
    if row is None:
        raise CompileError(
            f"ptx: {op.fn.name} of {type} is not primitive; it should have been legalized",
            loc=op.loc,
        )
    operands = [w.use(a) for a in op.args]
    if register_file(t.element(type)) == "b16":  # literals of 16 bits go through a register
        first = 1 if op.fn.name == "select" else 0
        operands[first:] = [w.in_register(x, "b16") for x in operands[first:]]
    w.row(row, f"{op.fn.name} of {type}", w.result(op.result), operands, op.loc)


def _cast(w: Writer, op: t.Cast) -> None:
    source, target = t.element(op.x.type), op.dtype
    if isinstance(op.x.type, VecType):
        raise CompileError(f"ptx: cast of {op.x.type}; it should have been legalized", loc=op.loc)
    if is_widening(op):
        memory.widen_lane(w, op)
        return
    if is_rounding(op) and isinstance(op.x.op, t.Cast):
        word = w.register("b32")
        w.always(f"cvt.rn.bf16x2.f32 {word}, {w.use(op.x.op.x)}, 0f00000000")
        w.always(f"mov.b32 {w.result(op.result)}, {word}")
        return
    counter = w.narrow.get(op.x)
    if counter is not None and target.is_integer and target.bits == 32:
        w.names[op.result] = (counter,)
        return
    pair = key(source), key(target)
    if source is target:
        w.names[op.result] = (w.use(op.x),)
        return
    if pair not in CONVERSIONS:
        raise CompileError(
            f"ptx: cast {source} -> {target} is not primitive; it should have been legalized",
            loc=op.loc,
        )
    row = CONVERSIONS[pair]
    if row is None:
        w.names[op.result] = (w.use(op.x),)
        return
    operand = w.use(op.x)
    if not operand.startswith("%"):
        operand = w.in_register(operand, register_file(source))
    w.row(row, f"cast {source} -> {target}", w.result(op.result), [operand], op.loc)


def _bitcast(w: Writer, op: t.Bitcast) -> None:
    source, target = t.element(op.x.type), op.dtype
    if isinstance(op.x.type, VecType):
        if value_files(op.x.type) == value_files(op.result.type):
            w.names[op.result] = w.registers(op.x)
            return
        raise CompileError(f"ptx: bitcast of {op.x.type} to {target}", loc=op.loc)
    pair = register_file(source), register_file(target)
    operand = w.use(op.x)
    if source.is_integer and target.is_integer:
        row = CONVERSIONS[key(source), key(target)]
        if row is None:
            w.names[op.result] = (operand,)
        else:
            w.row(row, op.name, w.result(op.result), [operand])
        return
    if not operand.startswith("%"):
        operand = w.in_register(operand, pair[0])
    if not BITS[pair]:
        w.names[op.result] = (operand,)
        return
    if pair == ("b32", "b16") and target.bits == 8 and key(source) == "s8":
        operand = w.once(("byte", op.x), "b32", f"and.b32 {{}}, {operand}, 255")
    text = BITS[pair]
    if pair == ("b16", "b32") and key(target) in ("s8", "s16"):
        text = f"cvt.s32.{key(target)} {{d}}, {{a}};"
    w.always(text.format(d=w.result(op.result), a=operand).rstrip(";"))


def _shared(w: Writer, op: g.Shared) -> None:
    if op.offset < 0:
        raise CompileError("ptx: shared memory that has not been placed", loc=op.loc)
    w.uses_shared = True


def _refuse(w: Writer, op: Op) -> None:
    del w
    raise CompileError(f"ptx: {op.name} should have been rewritten before", loc=op.loc)


RULES: Mapping[type[Op], Rule] = {
    t.Const: _const,
    t.Map: _map,
    t.Cast: _cast,
    t.Bitcast: _bitcast,
    t.Extract: memory.extract,
    t.PtrAdd: memory.ptr_add,
    t.Load: memory.load,
    t.Store: memory.store,
    t.Alloca: memory.alloca,
    t.For: control.for_loop,
    t.While: control.while_loop,
    t.If: control.branch,
    t.Call: _refuse,
    t.Parallel: _refuse,
    t.Together: _refuse,
    t.Limit: _refuse,
    t.BadAccess: _refuse,
    t.Sentinel: collective.sentinel,
    t.Apply: _refuse,
    t.Lanes: _refuse,
    t.Splat: _refuse,
    t.Insert: _refuse,
    t.Shuffle: _refuse,
    t.ReduceLanes: _refuse,
    t.Gather: _refuse,
    t.Scatter: _refuse,
    g.BlockInfo: _const,
    g.ThreadId: collective.thread_id,
    g.BlockId: collective.block_id,
    g.ClusterRank: collective.cluster_rank,
    g.Pack: memory.pack,
    g.Approximate: collective.approximate,
    g.Uniform: collective.uniform,
    g.ShuffleLanes: collective.shuffle_lanes,
    g.Vote: collective.vote,
    g.ReduceWarp: collective.reduce_warp,
    g.Shared: _shared,
    g.LoadCached: memory.load,
    g.StoreCached: memory.store,
    g.Atomic: collective.atomic,
    g.AtomicReduce: collective.atomic_reduce,
    g.CompareExchange: collective.compare_exchange,
    g.Barrier: collective.barrier,
    g.BarrierArrive: collective.barrier_arrive,
    g.WarpBarrier: collective.warp_barrier,
    g.Fence: collective.fence,
    g.ClusterBarrier: collective.cluster_barrier,
    g.MapShared: collective.map_shared,
    g.GridWait: collective.grid_wait,
    g.GridRelease: collective.grid_release,
    g.Trap: collective.trap,
    g.AsyncCopy: collective.async_copy,
    g.AsyncCommit: collective.async_commit,
    g.AsyncWait: collective.async_wait,
    g.MbarrierInit: collective.mbarrier_init,
    g.MbarrierArrive: collective.mbarrier_arrive,
    g.MbarrierWait: collective.mbarrier_wait,
    g.BulkLoad: collective.bulk_load,
    g.BulkStore: collective.bulk_store,
    g.TensorLoad: collective.tensor_load,
    g.TensorStore: collective.tensor_store,
    g.BulkCommit: collective.bulk_commit,
    g.BulkWait: collective.bulk_wait,
    g.LoadMatrix: collective.load_matrix,
    g.StoreMatrix: collective.store_matrix,
    g.Mma: collective.mma,
    g.Clock: collective.clock,
}


def _param(w: Writer, k: int, value: Value) -> str:
    """The declaration of an argument, and its register."""
    name = f"{w.kernel}_param_{k}"
    if isinstance(value.type, PtrType):
        if value.type.space is AddressSpace.CONSTANT:
            register = w.result(value)
            w.always(f"mov.b64 {register}, {name}")
            w.always(f"cvta.param.u64 {register}, {register}")
            return f".param .align 128 .b8 {name}[128]"
        register = w.result(value)
        w.always(f"ld.param.u64 {register}, [{name}]")
        w.always(f"cvta.to.global.u64 {register}, {register}")
        return f".param .u64 {name}"
    assert isinstance(value.type, ScalarType)
    dtype = value.type.dtype
    kind = memory_type(dtype)
    if dtype.is_bool:
        byte = w.register("b32")
        w.always(f"ld.param.u8 {byte}, [{name}]")
        w.always(f"setp.ne.s32 {w.result(value)}, {byte}, 0")
    else:
        w.always(f"ld.param.{kind} {w.result(value)}, [{name}]")
    return f".param .{kind} {name}"


def _info(func: Func) -> g.BlockInfo:
    if not func.ops or not isinstance(func.ops[0], g.BlockInfo):
        raise CompileError(f"ptx: @{func.name} does not begin with target.block_info")
    return func.ops[0]


def _kernel(
    func: Func, machine: Gpu, files: dict[str, int], told: int
) -> tuple[list[str], bool, int]:
    """The lines of one entry, whether it has shared memory, and the number of the last sentinel, if
    that of the last one before is `told`."""
    if not _NAME.fullmatch(func.name):
        raise CompileError(f"ptx: {func.name!r} is no name of a kernel")
    info = _info(func)
    w = Writer(machine, func.name, RULES, files)
    w.told = told
    w.fused = fused_values(func.body)
    w.addressed = addressed_values(func.body)
    w.divergent = frozenset(v for v, how in uniformity(func).items() if how is DIVERGENT)
    params = ", ".join(_param(w, k, arg) for k, arg in enumerate(func.args))
    w.block(func.body)
    w.put("ret")
    head = [f".visible .entry {func.name}({params})", f".reqntid {info.threads}, 1, 1"]
    if info.min_blocks:
        head.append(f".minnctapersm {info.min_blocks}")
    if info.cluster > 1:
        w.need(GpuFeature.CLUSTER, f"a cluster of {info.cluster} blocks", info.loc)
        head.append(f".reqnctapercluster {info.cluster}, 1, 1")
    head.append("{")
    for file, count in w.counts.items():
        if count:
            head.append(f"\t.reg .{file} {PREFIX[file]}<{count + 1}>;")
    head += [f"\t{line}" for line in w.symbols]
    return [*head, *w.lines, "}"], w.uses_shared, w.told


def write_kernels(funcs: Sequence[Func], machine: Gpu) -> str:
    """PTX text of kernels.

    Args:
        funcs: legalized kernels; their names are those of the entries.
        machine: the GPU.

    Raises:
        CompileError: an op is not one that the machine can run; it names the op's place.
    """
    files: dict[str, int] = {}
    parts: list[tuple[list[str], bool]] = []
    told = 0
    for func in funcs:
        text, shared, told = _kernel(func, machine, files, told)
        parts.append((text, shared))
    major, minor = machine.ptx
    lines = [f".version {major}.{minor}", f".target {machine.name}", ".address_size 64"]
    lines += [f".file {number} {_quoted(name)}" for name, number in files.items()]
    if any(shared for _, shared in parts):
        lines.append(f".extern .shared .align 1024 .b8 {SHARED}[];")
    if told:
        lines.append(f".visible .global .align 4 .u32 {collective.TOLD} = 0;")
    for text, _ in parts:
        lines += text
    return "\n".join(lines) + "\n"


def _quoted(name: str) -> str:
    escaped = name.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
