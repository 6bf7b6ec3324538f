"""Scans whose results are converted at once, as sums of narrow floats are, store what they become.

kernel: scan -> y (f32)
kernel: z[i, j] = cast y[i, j] (bf16)
==>
kernel: scan -> z
"""

from __future__ import annotations

from collections import Counter

from tessera.ir.core import Block, Func, Op, Value
from tessera.ir.walk import uses, walk
from tessera.schedule import ops
from tessera.schedule.copying import Copy
from tessera.schedule.types import BufType


def convert_scans(func: Func) -> Func:
    """The program without kernels that only convert the results of scans."""
    return func.with_body(_block(func.body, {}, uses(func.body)))


def _block(block: Block, env: dict[Value, Value], count: Counter[Value]) -> Block:
    becomes: dict[Value, ops.Kernel] = {}
    for op in block.ops:
        source = _converted(op)
        if source is not None and count[source] == 1 and _is_scanned(source, block):
            assert isinstance(op, ops.Kernel)
            becomes[source] = op
    dropped = set(becomes.values())
    code: list[Op] = []
    for op in block.ops:
        if op in dropped:
            continue
        operands = [env.get(v, v) for v in op.operands]
        if isinstance(op, ops.Kernel) and not becomes.keys().isdisjoint(op.results):
            new = _storing(op, operands, becomes)
        else:
            regions = op.regions
            if not isinstance(op, ops.Kernel):
                regions = [_block(region, env, count) for region in op.regions]
            new = op.rebuild(operands, regions)
        for old, result in zip(op.results, new.results, strict=True):
            env[old] = result
            if old in becomes:
                env[becomes[old].results[0]] = result
        code.append(new)
    return Block(block.args, code, [env.get(v, v) for v in block.outputs])


def _converted(op: Op) -> Value | None:
    """The buffer of which a kernel makes a converted copy and nothing else."""
    if not isinstance(op, ops.Kernel) or len(op.results) != 1 or len(op.inputs) != 1:
        return None
    (source,) = op.inputs
    nest = op.body.ops[0] if len(op.body.ops) == 1 else None
    if not isinstance(nest, ops.Nest) or len(nest.body.ops) != 3:
        return None
    load, cast, store = nest.body.ops
    if not (
        isinstance(load, ops.Load) and isinstance(cast, ops.Cast) and isinstance(store, ops.Store)
    ):
        return None
    types = source.type, op.types[0]
    assert isinstance(types[0], BufType)
    is_copy = (
        cast.x is load.result
        and store.value is cast.result
        and load.index == store.index
        and types[0].shape == types[1].shape
        and not (load.where or load.dyn or store.where or store.dyn or store.combine)
    )
    return source if is_copy else None


def _is_scanned(value: Value, block: Block) -> bool:
    """Whether a kernel of the block makes the buffer by a scan, and does not read it."""
    kernel = value.op
    if not isinstance(kernel, ops.Kernel) or kernel not in block.ops:
        return False
    arg = kernel.body.args[len(kernel.inputs) + kernel.results.index(value)]
    touching = [op for op in walk(kernel.body) if arg in op.operands]
    return len(touching) == 1 and type(touching[0]) is ops.Scan


def _storing(op: ops.Kernel, operands: list[Value], becomes: dict[Value, ops.Kernel]) -> ops.Kernel:
    """The kernel with other types of results."""
    types = tuple([
        becomes[v].types[0] if v in becomes else type
        for v, type in zip(op.results, op.types, strict=True)
    ])  # fmt: skip
    wanted = [*[v.type for v in operands], *types]
    args = [Value(type, arg.name) for type, arg in zip(wanted, op.body.args, strict=True)]
    copy = Copy(env=dict(zip(op.body.args, args, strict=True)))
    body = Block(args, [copy.op(part) for part in op.body.ops], ())
    reason = f"{op.reason}; results are converted as they are stored"
    new = op.rebuild(operands, [body], types=types, reason=reason)
    assert isinstance(new, ops.Kernel)
    return new
