"""Scatters of bytes that combine with what is there, in words: GPUs have no atomics of bytes.

    %r = graph.scatter(%x, %u, [%i]) {axes=[0], combine=add} : u8[8]
    ==>
    %r = graph.cast(graph.scatter(graph.cast(%x), graph.cast(%u), [%i]) ...) : u8[8]

What integers have beyond their byte is cut off at the end; of floats, sums are rounded once.
"""

from __future__ import annotations

from tessera.dtypes import Kind, float32, int32, uint32
from tessera.graph.ops.elementwise import Cast
from tessera.graph.ops.gather import Combine, Scatter
from tessera.ir.core import Block, Op, Value
from tessera.schedule.cost import tensor

_WORDS = {Kind.INT: int32, Kind.UINT: uint32, Kind.FLOAT: float32}


def widen_scatters(block: Block) -> Block:
    """The block, whose scatters combine elements of two bytes or more."""
    if not any(_is_narrow(op) for op in block.ops):
        return block
    code: list[Op] = []
    env: dict[Value, Value] = {}
    for old in block.ops:
        op = old
        if any(v in env for v in op.operands):
            op = op.rebuild([env.get(v, v) for v in op.operands])
        if isinstance(op, Scatter) and _is_narrow(op):
            dtype = tensor(op.x).dtype
            x, updates = (Cast(v, _WORDS[dtype.kind], loc=op.loc) for v in (op.x, op.updates))
            wide = op.rebuild([x.result, updates.result, *op.indices])
            op = Cast(wide.results[0], dtype, loc=op.loc)
            code += [x, updates, wide]
        code.append(op)
        if op is not old:
            env.update(zip(old.results, op.results, strict=True))
    return Block(block.args, code, [env.get(v, v) for v in block.outputs])


def _is_narrow(op: Op) -> bool:
    if not isinstance(op, Scatter) or op.combine is Combine.SET:
        return False
    dtype = tensor(op.x).dtype
    return dtype.itemsize == 1 and dtype.kind in _WORDS
