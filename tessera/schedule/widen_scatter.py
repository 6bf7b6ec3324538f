"""Scatters of bytes that combine with what is there, in words: GPUs have no atomics of bytes.

    %r = graph.scatter(%x, %u, [%i]) {axes=[0], combine=add} : u8[8]
    ==>
    %r = graph.cast(graph.scatter(graph.cast(%x), graph.cast(%u), [%i]) ...) : u8[8]

What integers have beyond their byte is cut off at the end; of floats, sums are rounded once.
"""

from __future__ import annotations

from collections.abc import Sequence

from tessera.dtypes import Kind, float32, int32, uint32
from tessera.graph.ops.elementwise import Cast
from tessera.graph.ops.gather import Combine, Scatter
from tessera.ir.core import Block, Op, Value
from tessera.ir.walk import expand_ops
from tessera.schedule.cost import tensor

_WORDS = {Kind.INT: int32, Kind.UINT: uint32, Kind.FLOAT: float32}


def widen_scatters(block: Block) -> Block:
    """The block, whose scatters combine elements of two bytes or more."""
    return expand_ops(block, _is_narrow, _widen)


def _widen(op: Op, code: list[Op]) -> Sequence[Value]:
    assert isinstance(op, Scatter)
    dtype = tensor(op.x).dtype
    x, updates = (Cast(v, _WORDS[dtype.kind], loc=op.loc) for v in (op.x, op.updates))
    wide = op.rebuild([x.result, updates.result, *op.indices])
    narrow = Cast(wide.results[0], dtype, loc=op.loc)
    code += [x, updates, wide, narrow]
    return narrow.results


def _is_narrow(op: Op) -> bool:
    if not isinstance(op, Scatter) or op.combine is Combine.SET:
        return False
    dtype = tensor(op.x).dtype
    return dtype.itemsize == 1 and dtype.kind in _WORDS
