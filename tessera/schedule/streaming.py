"""Stores that go past the caches: what a large nest writes, and outputs of a program that goes over
much memory in small ones, as an optimizer does over the tensors of a model.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tessera.config import config
from tessera.ir.core import Block, Func, Op, Value
from tessera.ir.intexpr import Dim, evaluate
from tessera.ir.walk import uses, walk
from tessera.schedule import loop_ops, ops
from tessera.schedule.access import Access, accesses
from tessera.schedule.machines import Cpu
from tessera.schedule.rebuild import with_bodies
from tessera.schedule.types import Axis, BufType, PlaceKind

STREAM_BYTES = 1 << 25
"""A nest that goes over so much memory has its first results out of the caches before anybody reads
them. Written past them, their lines need not be read first: a quarter less traffic where two arrays
make one. More where threads share the rows (`Cpu.keeps`): one of them computes while another waits
for the lines that it is to write, and the third cache may have much of them still. Not where each
has some columns of all rows: lines that the other thread had are what it waits for longest."""

BETWEEN = 1.25
"""A nest that goes over no more than so much of it, and is far, leaves every other piece of what it
writes in the caches: what it reads stays there, too, and half as much goes over the link to memory.
A norm of two arrays of 17 MB takes two cores of a Zen 4 0.43 ms so, 0.66 all past the caches and
0.42 to 0.6 through them; two that have a third cache each take 0.29, 0.34 and 0.26 to 0.3. Not
what waits for operations, or for lines that it turns: a softmax takes 1.02 to 1.2 times as long."""

LEAST_OUTPUT = 1 << 16
"""Bytes of an output that is worth it."""

COSTLY = 16
"""A function that costs so much is not bound by memory."""

PLAUSIBLE = 4096
"""What a symbolic dim counts as where results are compared with the rest."""

STRETCH = 256
"""Bytes of a row past the caches at a time that are as fast as all in order. More of what is turned
come from more rows, which often share a set of the first cache."""

PAGE = 4096
"""Bytes of a page, and what lies between lines of one set of a first cache."""

STREAM_PART = 8
"""A result that is a smaller part of it than one in so many is not."""


def is_far(nest: ops.Nest, machine: Cpu, down: bool = False) -> bool:
    """Whether a nest goes over more memory than stays in the caches.

    Args:
        nest: the nest.
        machine: the CPU.
        down: whether threads go down rows, far apart, of which each has some columns.
    """
    return _plausible(_memory(nest)) >= _most(machine, down)


def _most(machine: Cpu, down: bool = False) -> int:
    """The bytes from which on memory is far."""
    return STREAM_BYTES if _is_alone(down) else int(STREAM_BYTES * machine.keeps)


def _is_alone(down: bool) -> bool:
    return down or config.current().threads == 1


def _pieces(nest: ops.Nest, total: Dim, down: bool) -> int:
    """Of how many pieces of a far nest's results one goes past the caches."""
    is_between = isinstance(total, int) and total < STREAM_BYTES * BETWEEN
    if not is_between or _is_alone(down) or _is_costly(nest.body):
        return 1
    large = [a for a in accesses(nest) if _plausible(_bytes(a.op.buf)) * STREAM_PART >= total]
    for axis in nest.axes:
        steps = {a.stride(axis.name) for a in large} - {0}
        if 1 in steps and len(steps) > 1:
            return 1  # turned
    return 2


def _is_costly(body: Block) -> bool:
    return any(isinstance(op, ops.Map) and op.fn.cost >= COSTLY for op in walk(body))


def marked(nest: ops.Nest, machine: Cpu, down: bool = False) -> list[Op]:
    """The body of a nest with `streaming` on the stores of what is large; arguments as `is_far`."""
    read = {op.buf for op in walk(nest.body) if isinstance(op, ops.Load)}
    total = _memory(nest)
    most = _most(machine, down)
    least = 0 if isinstance(total, int) else total - most
    if isinstance(total, int) and total < most:
        return list(nest.body.ops)

    def is_streamed(op: Op) -> bool:
        if not isinstance(op, ops.Store) or op.combine is not None or op.buf in read:
            return False
        return _plausible(_bytes(op.buf)) * STREAM_PART >= _plausible(total)

    return _marked(nest.body.ops, is_streamed, _pieces(nest, total, down), least)


def stream_outputs(func: Func, machine: Cpu) -> Func:
    """The program, whose places are known, with `streaming` on outputs that elementwise nests write
    and nobody reads, if all kernels together go over so much memory."""
    kernels = [op for op in func.body.ops if isinstance(op, ops.Kernel)]
    found = dict.fromkeys(v for kernel in kernels for v in (*kernel.operands, *kernel.results))
    sizes = {v: _bytes(v) for v in found}
    if sum([n for n in sizes.values() if isinstance(n, int)]) < _most(machine):
        return func
    count = uses(func.body)
    outputs = {v for v in func.body.outputs if count[v] == 1}

    def body(kernel: ops.Kernel) -> Block:
        args = kernel.body.args[len(kernel.inputs) :]
        far = {
            arg
            for arg, v, place in zip(args, kernel.results, kernel.places, strict=True)
            # What takes an input's memory has its lines in the cache.
            if v in outputs and place.kind is PlaceKind.OUTPUT and _is_long(sizes.get(v, 0))
        }
        far -= {op.buf for op in walk(kernel.body) if isinstance(op, ops.Load)}
        code = [_streaming(op, far) if far else op for op in kernel.body.ops]
        return Block(kernel.body.args, code, ())

    return with_bodies(func, body)


def _is_long(size: Dim) -> bool:
    return isinstance(size, int) and size >= LEAST_OUTPUT


def _streaming(op: Op, far: set[Value]) -> Op:
    """An elementwise nest that stores such outputs past the caches."""
    if not isinstance(op, ops.Nest) or op.ordered or any(one.regions for one in op.body.ops):
        return op
    if _is_costly(op.body):
        return op
    code = [
        one.rebuild(streaming=one.streaming or 1)
        if isinstance(one, ops.Store) and one.buf in far and not (one.dyn or one.combine)
        else one
        for one in op.body.ops
    ]
    new = op.rebuild(regions=[Block(op.body.args, code, op.body.outputs)])
    assert isinstance(new, ops.Nest)
    return new


def is_paged(access: Access, axis: Axis) -> bool:
    """Whether steps along an axis are whole pages: lines that far apart share a set of a cache."""
    step = access.stride(axis.name)
    return isinstance(step, int) and step != 0 and step * access.dtype.itemsize % PAGE == 0


def in_lines(code: Sequence[Op], steps: Sequence[Dim | None], lanes: int) -> bool:
    """Whether some stores of a body go past the caches, and rows that are so many elements apart
    all begin as a vector does."""
    stores = any(isinstance(op, ops.Store) and op.streaming for op in code)
    return stores and all(isinstance(step, int) and step % lanes == 0 for step in steps)


def _marked(
    code: Sequence[Op], is_streamed: Callable[[Op], bool], part: int, least: Dim
) -> list[Op]:
    """The ops with `streaming` on some stores, those in loops over steps included."""
    env: dict[Value, Value] = {}
    found: list[Op] = []
    for op in code:
        operands = [env.get(v, v) for v in op.operands]
        if isinstance(op, loop_ops.Recur):
            body = op.body
            inner = Block(body.args, _marked(body.ops, is_streamed, part, least), body.outputs)
            found.append(op.rebuild(operands, [inner]))
            env.update(zip(op.results, found[-1].results, strict=True))
        elif is_streamed(op):
            found.append(op.rebuild(operands, streaming=part, least=least))
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
