"""Stores that go past the caches."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tessera.ir.core import Block, Op, Value
from tessera.ir.intexpr import Dim, evaluate
from tessera.ir.walk import walk
from tessera.schedule import loop_ops, ops
from tessera.schedule.types import BufType

STREAM_BYTES = 1 << 25
"""A nest that goes over so much memory has its first results out of the caches before anybody reads
them. Written past them, their lines need not be read first: a quarter less traffic where two arrays
make one."""

PLAUSIBLE = 4096
"""What a symbolic dim counts as where results are compared with the rest."""

STRETCH = 256
"""Bytes of a row past the caches at a time that are as fast as all in order. More of what is turned
come from more rows, which often share a set of the first cache."""

STREAM_PART = 8
"""A result that is a smaller part of it than one in so many is not."""


def is_far(nest: ops.Nest) -> bool:
    """Whether a nest goes over more memory than stays in the caches."""
    return _plausible(_memory(nest)) >= STREAM_BYTES


def marked(nest: ops.Nest) -> list[Op]:
    """The body of a nest with `streaming` on the stores of what is large."""
    read = {op.buf for op in walk(nest.body) if isinstance(op, ops.Load)}
    total = _memory(nest)
    least = 0 if isinstance(total, int) else total - STREAM_BYTES
    if isinstance(total, int) and total < STREAM_BYTES:
        return list(nest.body.ops)

    def is_streamed(op: Op) -> bool:
        if not isinstance(op, ops.Store) or op.combine is not None or op.buf in read:
            return False
        return _plausible(_bytes(op.buf)) * STREAM_PART >= _plausible(total)

    return _marked(nest.body.ops, is_streamed, least)


def in_lines(code: Sequence[Op], steps: Sequence[Dim], lanes: int) -> bool:
    """Whether some stores of a body go past the caches, and rows that are so many elements apart
    all begin as a vector does."""
    stores = any(isinstance(op, ops.Store) and op.streaming for op in code)
    return stores and all(isinstance(step, int) and step % lanes == 0 for step in steps)


def _marked(code: Sequence[Op], is_streamed: Callable[[Op], bool], least: Dim) -> list[Op]:
    """The ops with `streaming` on some stores, those in loops over steps included."""
    env: dict[Value, Value] = {}
    found: list[Op] = []
    for op in code:
        operands = [env.get(v, v) for v in op.operands]
        if isinstance(op, loop_ops.Recur):
            body = op.body
            inner = Block(body.args, _marked(body.ops, is_streamed, least), body.outputs)
            found.append(op.rebuild(operands, [inner]))
            env.update(zip(op.results, found[-1].results, strict=True))
        elif is_streamed(op):
            found.append(op.rebuild(operands, streaming=True, least=least))
        else:
            found.append(op if operands == list(op.operands) else op.rebuild(operands))
            env.update(zip(op.results, found[-1].results, strict=True))
    return found


def _memory(nest: ops.Nest) -> Dim:
    """Bytes of the buffers that a nest reads or writes."""
    accesses = [op for op in walk(nest.body) if isinstance(op, (ops.Load, ops.Store))]
    total: Dim = 0
    for buf in dict.fromkeys(op.buf for op in accesses):
        total = total + _bytes(buf)
    return total


def _bytes(value: Value) -> Dim:
    """How much memory a buffer is."""
    buffer = value.type
    assert isinstance(buffer, BufType)
    return buffer.size * buffer.dtype.itemsize


def _plausible(size: Dim) -> int:
    """A size as a number, for comparisons."""
    if isinstance(size, int):
        return size
    return int(evaluate(size, dict.fromkeys(size.symbols, PLAUSIBLE)))
