"""Reductions over the axis of a stack, array by array.

    %s = graph.concatenate([%a, %b, %c]) {axis=1}      # each f32[N, 1]
    %r = graph.reduce_sum(exp of %s) {axes=[1]}
    ==>
    %r = exp of %a + (exp of %b + exp of %c)           # each f32[N]

Windows that a user collects by slices are of this kind, and so are the outputs of several models.
The stack, whose elements are strewn over memory as they are written, is not stored: what is
computed of its arrays flows into what their sum, or their maximum, flows into, in whole vectors.
Gradients take single places of what is computed of a stack; these are computed of its arrays too.
"""

from __future__ import annotations

from collections.abc import Sequence

from tessera.dtypes import DType
from tessera.graph.ops.arithmetic import Add, Max, Min, Mul
from tessera.graph.ops.elementwise import And, Elementwise, Or
from tessera.graph.ops.elementwise_base import Cast
from tessera.graph.ops.rearrange import Broadcast, Concatenate, Reshape, Slice
from tessera.graph.ops.reduce import Reduce
from tessera.ir.core import Block, Op, Value
from tessera.ir.intexpr import Dim
from tessera.ir.rewrite import eliminate_dead
from tessera.schedule.cost import tensor
from tessera.schedule.unroll import OpByOp

MOST = 32
"""Arrays of a stack."""

MOST_OPS = 256
"""Elementwise ops on its arrays, in all."""

COMBINED: dict[str, type[Elementwise]] = {
    cls.scalar: cls for cls in (Add, Mul, Max, Min, And, Or)
}
"""By the function that a reduction combines elements with, the op on whole arrays."""


def unstack(block: Block) -> Block:
    """The block with what is reduced over the axis of a stack, or is one place of it, computed from
    the arrays that are stacked."""
    if not any([isinstance(op, Concatenate) for op in block.ops]):
        return block
    return _Unstacking().run(block)


class _Unstacking(OpByOp):
    def __init__(self) -> None:
        super().__init__()
        self.parts: dict[tuple[Value, int, int], Value] = {}

    def run(self, block: Block) -> Block:
        """The rewritten block."""
        new = super().run(block)
        return eliminate_dead(new) if self.parts else new

    def made(self, op: Op) -> Value | None:
        """Reductions, and single places of what is computed."""
        if isinstance(op, Reduce):
            return self.reduce(op)
        if isinstance(op, Slice) and isinstance(op.x.op, Elementwise):
            return self.slice(op)
        return None

    def reduce(self, op: Reduce) -> Value | None:
        """What stands for a reduction; None where it stays."""
        if op.order is not None:
            return None
        accumulator = op.accumulator
        whole = op.axes if accumulator is tensor(op.x).dtype else op.axes[: len(op.axes) == 1]
        axis = next((a for a in whole if is_of_stack(op.x, a)), None)
        if axis is None:
            return None
        count = tensor(op.x).shape[axis]
        assert isinstance(count, int)
        found = [self.cast(self.part(op.x, k, axis), accumulator, op) for k in range(count)]
        while len(found) > 1:
            half = len(found) // 2
            combine = COMBINED[op.fn]
            pairs = [
                self.add(combine(found[2 * k], found[2 * k + 1], loc=op.loc)) for k in range(half)
            ]
            found = [*pairs, *found[2 * half :]]
        total = self.cast(found[0], tensor(op.result).dtype, op)
        rest = tuple([a - (a > axis) for a in op.axes if a != axis])
        return self.add(op.rebuild([total], axes=rest)) if rest else total

    def slice(self, op: Slice) -> Value | None:
        """What stands for a slice of one place along the axis of a stack; None where it stays."""
        ends = zip(op.start, op.limit, tensor(op.x).shape, strict=True)
        for axis, (start, limit, size) in enumerate(ends):
            if not isinstance(start, int) or size == 1 or limit != start + 1:
                continue
            if not is_of_stack(op.x, axis):
                continue
            shape = list(tensor(op.x).shape)
            shape[axis] = 1
            part = self.add(Reshape(self.part(op.x, start, axis), tuple(shape), loc=op.loc))
            first, last = list(op.start), list(op.limit)
            first[axis], last[axis] = 0, 1
            if last == shape and not any(first):
                return part
            return self.add(Slice(part, tuple(first), tuple(last), op.stride, loc=op.loc))
        return None

    def part(self, x: Value, k: int, axis: int) -> Value:
        """One place along an axis, without that axis."""
        found = self.parts.get((x, k, axis))
        if found is None:
            found = self.parts[x, k, axis] = self.new_part(x, k, axis)
        return found

    def new_part(self, x: Value, k: int, axis: int) -> Value:
        """The same, where it is asked for the first time."""
        op = x.op
        if isinstance(op, Elementwise):
            return self.add(op.rebuild([self.part(v, k, axis) for v in op.operands]))
        assert op is not None
        if isinstance(op, Concatenate):
            return self.squeezed(op.xs[k], axis, op)
        assert isinstance(op, Broadcast)
        inner, shape = op.x, _without(op.shape, axis)
        dims = tuple([d - (d > axis) for d in op.dims if d != axis])
        if axis in op.dims:
            own = op.dims.index(axis)
            sizes = tensor(inner).shape
            if sizes[own] != 1:
                start, limit = [0] * len(sizes), list(sizes)
                start[own], limit[own] = k, k + 1
                steps = (1,) * len(sizes)
                inner = self.add(Slice(inner, tuple(start), tuple(limit), steps, loc=op.loc))
            inner = self.squeezed(inner, own, op)
        return self.add(Broadcast(inner, shape, dims, loc=op.loc))

    def squeezed(self, x: Value, axis: int, op: Op) -> Value:
        """An array without one of its axes, along which it has one place."""
        shape = _without(tensor(x).shape, axis)
        if isinstance(x.op, Reshape) and tensor(x.op.x).shape == shape:
            return x.op.x
        return self.add(Reshape(x, shape, loc=op.loc))

    def cast(self, x: Value, dtype: DType, op: Op) -> Value:
        """An array in a dtype."""
        return x if tensor(x).dtype is dtype else self.add(Cast(x, dtype, loc=op.loc))


def _without(shape: Sequence[Dim], axis: int) -> tuple[Dim, ...]:
    return tuple([dim for k, dim in enumerate(shape) if k != axis])


def is_of_stack(x: Value, axis: int) -> bool:
    """Whether an array is computed element by element from arrays that are stacked along an axis,
    and from what is repeated, and that takes few ops."""
    count = tensor(x).shape[axis]
    if not isinstance(count, int) or not 1 < count <= MOST:
        return False
    seen, open_, stacks = {x}, [x], 0
    while open_:
        op = open_.pop().op
        if isinstance(op, Concatenate):
            if op.axis != axis or len(op.xs) != count:
                return False
            stacks += 1
        elif isinstance(op, Elementwise):
            open_ += [v for v in op.operands if v not in seen]
            seen.update(op.operands)
            if len(seen) * count > MOST_OPS:
                return False
        elif not isinstance(op, Broadcast):
            return False
    return stacks > 0


__all__ = ["unstack"]
