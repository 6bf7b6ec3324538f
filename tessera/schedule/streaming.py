"""Stores that go past the caches."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tessera.ir.core import Block, Op, Value
from tessera.ir.walk import walk
from tessera.schedule import loop_ops, ops
from tessera.schedule.types import BufType

STREAM_BYTES = 1 << 25
"""A nest that goes over so much memory has its first results out of the caches before anybody reads
them. Written past them, their lines need not be read first: a quarter less traffic where two arrays
make one."""

STREAM_PART = 8
"""A result that is a smaller part of it than one in so many is not."""


def marked(nest: ops.Nest) -> list[Op]:
    """The body of a nest with `streaming` on the stores of what is large."""
    code = list(walk(nest.body))
    read = {op.buf for op in code if isinstance(op, ops.Load)}
    written = {op.buf for op in code if isinstance(op, ops.Store)}
    total = sum(_bytes(buf) for buf in read | written)
    if total < STREAM_BYTES:
        return list(nest.body.ops)

    def is_streamed(op: Op) -> bool:
        if not isinstance(op, ops.Store) or op.combine is not None or op.buf in read:
            return False
        return _bytes(op.buf) * STREAM_PART >= total

    return _marked(nest.body.ops, is_streamed)


def _marked(code: Sequence[Op], is_streamed: Callable[[Op], bool]) -> list[Op]:
    """The ops with `streaming` on some stores, those in loops over steps included."""
    env: dict[Value, Value] = {}
    found: list[Op] = []
    for op in code:
        operands = [env.get(v, v) for v in op.operands]
        if isinstance(op, loop_ops.Recur):
            body = op.body
            inner = Block(body.args, _marked(body.ops, is_streamed), body.outputs)
            found.append(op.rebuild(operands, [inner]))
            env.update(zip(op.results, found[-1].results, strict=True))
        elif is_streamed(op):
            found.append(op.rebuild(operands, streaming=True))
        else:
            found.append(op if operands == list(op.operands) else op.rebuild(operands))
            env.update(zip(op.results, found[-1].results, strict=True))
    return found


def _bytes(value: Value) -> int:
    """How much memory a buffer is; nothing if that is not known."""
    buffer = value.type
    assert isinstance(buffer, BufType)
    return buffer.size * buffer.dtype.itemsize if isinstance(buffer.size, int) else 0
