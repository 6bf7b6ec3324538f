"""Atomic functions that a GPU has no instruction for: what is expected in memory is combined and
put there if it is there, else once more with what is there.
"""

from __future__ import annotations

from tessera.dtypes import bool_, float16, uint16, uint32, uint64
from tessera.errors import CompileError
from tessera.ir.core import Block, Value
from tessera.ir.types import ScalarType
from tessera.target import gpu_ops as g
from tessera.target import ops as t
from tessera.target.gpu import Gpu
from tessera.target.passes.fold import Fold
from tessera.target.ptx.rows import atomic_type

CARRIERS = {2: float16, 4: uint32, 8: uint64}
"""What is exchanged, by size: the bits of the element."""


def is_native(op: g.Atomic | g.AtomicReduce, machine: Gpu) -> bool:
    """Whether there is an instruction."""
    if t.lanes(op.value.type):
        return True
    name = "exch" if op.fn is None else op.fn.name
    return atomic_type(name, t.element(op.value.type), machine) is not None


def expand_atomic(b: Fold, op: g.Atomic | g.AtomicReduce) -> Value | None:
    """What an atomic op gives, where it has a result. The op's operands are those of legal code."""
    dtype = t.element(op.value.type)
    if dtype.itemsize not in CARRIERS:
        name = "exchange" if op.fn is None else op.fn.name
        raise CompileError(
            f"legalize_gpu: no atomic {name} of {dtype}",
            loc=op.loc,
            rule="atomic functions are of 16 bits or more",
            fix="combine in a wider dtype",
        )
    has_result = bool(op.results)
    if not op.mask:
        found = _loop(b, op)
        return found if has_result else None
    inner = b.inner()
    found = _loop(inner, op)
    then = Block([], inner.ops, [found] if has_result else [])
    zero = [b.like(found, 0)] if has_result else []
    branch = t.If(op.mask[0], then, Block([], [], zero), loc=b.loc)
    b.ops.append(branch)
    return branch.result if has_result else None


def _loop(b: Fold, op: g.Atomic | g.AtomicReduce) -> Value:
    """What was there when the value was put."""
    dtype = t.element(op.value.type)
    carrier = CARRIERS[dtype.itemsize]
    order = op.order if isinstance(op, g.Atomic) else "relaxed"
    # A guess: if it is wrong, the first exchange says what is there, without a racing load.
    first = b.const(0, ScalarType(carrier))
    types = [ScalarType(carrier), ScalarType(bool_)]
    seen, going = (Value(type) for type in types)
    cond = Block([seen, going], [], [going])
    inner = b.inner()
    before, again = (Value(type) for type in types)
    current = inner.bitcast(before, dtype)
    wanted = op.value if op.fn is None else inner.map(op.fn.name, current, op.value)
    bits = inner.bitcast(wanted, carrier)
    exchange = g.CompareExchange(op.ptr, op.offset, before, bits, [], op.scope, order, loc=b.loc)
    found = inner.emit(exchange)
    a, c = (_bits(inner, v) for v in (before, found))
    changed = inner.map("ne", a, c)
    body = Block([before, again], inner.ops, [found, changed])
    loop = t.While([first, b.const(True, ScalarType(bool_))], cond, body, loc=b.loc)
    b.ops.append(loop)
    return b.bitcast(loop.results[0], dtype)


def _bits(b: Fold, value: Value) -> Value:
    """Something that compares as bits."""
    return b.bitcast(value, uint16) if t.element(value.type) is float16 else value
