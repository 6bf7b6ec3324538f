"""How the states that a loop keeps for another one lie in memory.

A loop whose steps are work on single elements carries a few scalars at each point of its nest
(`schedule/recurrence.py`): the state of [batch, channels, 16] is sixteen registers of lanes along
the channels. What is kept of it for the gradient's loop has the components innermost, as the
program says, so each register would be scattered, and gathered again. Where nobody but kernels
touches such a buffer, its components come before what the nest goes over:

    buf<f32[T, B, D, 16]>  ==>  buf<f32[T, B, D, 16], strides [16*B*D, D, 1, B*D]>
"""

from __future__ import annotations

from collections.abc import Iterator

from tessera.ir.core import Block, Func, Op, Value
from tessera.ir.intexpr import Dim, prod, symbols
from tessera.ir.walk import clone_op, free_values, walk
from tessera.schedule import loop_ops, ops
from tessera.schedule.types import Axis, BufType


def lay_out_states(func: Func) -> Func:
    """The program with buffers of states that have their lanes innermost."""
    if not any(isinstance(op, loop_ops.Recur) for op in walk(func.body)):
        return func
    return func.with_body(_block(func.body, {}))


def _block(block: Block, env: dict[Value, Value]) -> Block:
    """A block of the program."""
    others = [op for op in block.ops if not isinstance(op, ops.Kernel)]
    fixed = {*block.outputs, *free_values(Block([], others, ()))}
    seen: dict[Value, list[Value]] = {}
    for op in block.ops:
        if isinstance(op, ops.Kernel):
            for value, arg in zip((*op.inputs, *op.results), op.body.args, strict=True):
                seen.setdefault(value, []).append(arg)
    touching = _touching(block)
    types: dict[Value, BufType] = {}
    for value, args in seen.items():
        if isinstance(value.op, ops.Kernel) and value in value.op.results and value not in fixed:
            found = [one for arg in args for one in touching.get(arg, ())]
            dims = _inner_dims(_buffer(value), found)
            if dims is not None:
                types[value] = _laid_out(_buffer(value), *dims)
    code: list[Op] = []
    for op in block.ops:
        operands = [env.get(v, v) for v in op.operands]
        if isinstance(op, ops.Kernel):
            new = _kernel(op, operands, [types.get(v, _buffer(v)) for v in op.results])
        else:
            new = op.rebuild(operands, [_block(region, env) for region in op.regions])
        env.update(zip(op.results, new.results, strict=True))
        code.append(new)
    return Block(block.args, code, [env.get(v, v) for v in block.outputs])


def _touching(block: Block) -> dict[Value, list[tuple[Op, Axis | None]]]:
    """For the buffers of kernels the ops that touch them, and the axis of the loop each is in."""
    found: dict[Value, list[tuple[Op, Axis | None]]] = {}
    for kernel in block.ops:
        for op, axis in _walk(kernel.body, None) if isinstance(kernel, ops.Kernel) else ():
            for value in op.operands:
                if isinstance(value.type, BufType):
                    found.setdefault(value, []).append((op, axis))
    return found


def _walk(block: Block, axis: Axis | None) -> Iterator[tuple[Op, Axis | None]]:
    for op in block.ops:
        yield op, axis
        for region in op.regions:
            yield from _walk(region, op.axis if isinstance(op, loop_ops.Recur) else axis)


def _inner_dims(
    type: BufType, touching: list[tuple[Op, Axis | None]]
) -> tuple[int, int] | None:
    """The first dim of a buffer along which lanes run, and how many dims, the last ones, are
    components that loops unroll; None where it should stay as it is."""
    found: dict[tuple[int, int], set[tuple[Dim, ...]]] = {}
    for op, axis in touching:
        if not isinstance(op, (ops.Load, ops.Store, ops.Scan)):
            return None
        rank, index = len(op.index), op.index
        count = next((k for k, e in enumerate(reversed(index)) if not isinstance(e, int)), rank)
        if axis is None or not 0 < count < rank:
            continue
        first = rank - count
        while first and symbols(index[first - 1]) and axis.name not in symbols(index[first - 1]):
            first -= 1
        found.setdefault((first, count), set()).add(index[-count:])
    if len(found) != 1:
        return None
    (((first, count), components),) = found.items()
    is_whole = len(components) == prod(type.shape[-count:])
    return (first, count) if is_whole and first < len(type.shape) - count else None


def _laid_out(type: BufType, first: int, count: int) -> BufType:
    """A buffer with its last dims before those from `first` on."""
    rank = len(type.shape)
    order = (*range(first), *range(rank - count, rank), *range(first, rank - count))
    strides: list[Dim] = [0] * rank
    step: Dim = 1
    for k in reversed(order):
        strides[k] = step
        step = step * type.shape[k]
    return BufType(type.shape, type.dtype, tuple(strides))


def _kernel(op: ops.Kernel, operands: list[Value], types: list[BufType]) -> Op:
    """A kernel on buffers of other types."""
    given = [*map(_buffer, operands), *types]
    if given == [_buffer(arg) for arg in op.body.args]:
        return op.rebuild(operands, op.regions)
    args = [Value(type, arg.name) for type, arg in zip(given, op.body.args, strict=True)]
    inner: dict[Value, Value] = dict(zip(op.body.args, args, strict=True))
    body = Block(args, [clone_op(one, inner) for one in op.body.ops], ())
    return op.rebuild(operands, [body], types=tuple(types))


def _buffer(value: Value) -> BufType:
    assert isinstance(value.type, BufType)
    return value.type
