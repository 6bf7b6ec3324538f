"""Sorts of which only the first places are read, such as those of the largest elements.

What nobody reads of a sorted array need not be there: the outputs of such a sort become shorter,
a GPU keeps only so many elements of each part of a row, and a CPU leaves the others unsorted.
"""

from __future__ import annotations

from collections.abc import Iterator

from tessera.ir.core import Block, Func, Op, Value
from tessera.ir.intexpr import Facts
from tessera.schedule import ops
from tessera.schedule.access import ranges
from tessera.schedule.copying import Copy
from tessera.schedule.dependence import inner_axes
from tessera.schedule.rebuild import kernels
from tessera.schedule.types import BufType, buffer_type

SHARE = 4
"""Fewer places than a row divided by this are worth it."""

MAX_LIMIT = 1024
"""More places are not."""


def limit_sorts(func: Func, facts: Facts) -> Func:
    """The program with shorter outputs of sorts where that is enough."""
    limits: dict[Value, BufType] = {}
    for kernel in kernels(func.body):
        limits.update(_limits(func, kernel, facts))
    if not limits:
        return func
    return func.with_body(_block(func.body, {}, limits))


def _limits(func: Func, kernel: ops.Kernel, facts: Facts) -> dict[Value, BufType]:
    """The types that the results of a sort may have."""
    if len(kernel.body.ops) != 1:
        return {}
    (op,) = kernel.body.ops
    if not isinstance(op, ops.Sort) or op.warps:
        return {}
    results = kernel.results[: len(op.outputs)]
    extent = buffer_type(results[0]).shape[op.axis]
    limit = 0
    for value in results:
        for bound in _reads(func.body, value, op.axis, facts):
            if bound is None:
                return {}
            limit = max(limit, bound)
    if not isinstance(extent, int) or not 0 < limit <= min(extent // SHARE, MAX_LIMIT):
        return {}
    found: dict[Value, BufType] = {}
    for value in results:
        type = buffer_type(value)
        shape = tuple([limit if k == op.axis else dim for k, dim in enumerate(type.shape)])
        found[value] = BufType(shape, type.dtype)
    return found


def _reads(block: Block, value: Value, axis: int, facts: Facts) -> Iterator[int | None]:
    """For each use of a buffer, how many places along an axis it reads; None: all."""
    if value in block.outputs:
        yield None
    for op in block.ops:
        if isinstance(op, ops.Kernel):
            for arg, given in zip(op.body.args, op.inputs, strict=False):
                if given is value:
                    yield from _loads(Block([], op.body.ops, ()), arg, axis, facts)
            continue
        if value in op.operands:
            yield None
        for region in op.regions:
            yield from _reads(region, value, axis, facts)


def _loads(block: Block, arg: Value, axis: int, facts: Facts) -> Iterator[int | None]:
    for op in block.ops:
        if isinstance(op, ops.Load) and op.buf is arg:
            high = facts.upper(op.index[axis])
            yield None if high is None else high + 1
        elif arg in op.operands:
            yield None
        axes = op.axes if isinstance(op, ops.Nest) else inner_axes(op)
        inner = ranges(axes, facts) if axes else facts
        for region in op.regions:
            yield from _loads(region, arg, axis, inner)


def _block(block: Block, env: dict[Value, Value], limits: dict[Value, BufType]) -> Block:
    code: list[Op] = []
    for op in block.ops:
        operands = [env.get(v, v) for v in op.operands]
        if isinstance(op, ops.Kernel):
            new = _kernel(op, operands, limits)
        else:
            new = op.rebuild(operands, [_block(region, env, limits) for region in op.regions])
        env.update(zip(op.results, new.results, strict=True))
        code.append(new)
    return Block(block.args, code, [env.get(v, v) for v in block.outputs])


def _kernel(op: ops.Kernel, operands: list[Value], limits: dict[Value, BufType]) -> Op:
    types = tuple([limits.get(v, type) for v, type in zip(op.results, op.types, strict=True)])
    wanted = [*[v.type for v in operands], *types]
    if wanted == [arg.type for arg in op.body.args]:
        return op.rebuild(operands, op.regions)
    args = [Value(type, arg.name) for type, arg in zip(wanted, op.body.args, strict=True)]
    copy = Copy(env=dict(zip(op.body.args, args, strict=True)))
    body = Block(args, [copy.op(part) for part in op.body.ops], ())
    return op.rebuild(operands, [body], types=types)
