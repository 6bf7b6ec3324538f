"""Few components of what is computed from pairs, one by one.

    %s = graph.reduce_sum(%x) {axes=[2]}      # %x : f32[N, N, 3], computed from f32[N, 3]
    %r = graph.reduce_sum(%y) {axes=[1]}      # %y : f32[N, N, 3] too
    ==>
    %s = %x[:, :, 0] + %x[:, :, 1] + %x[:, :, 2]
    %r = graph.concatenate(sums of %y[:, :, 0], %y[:, :, 1], %y[:, :, 2])

Forces between particles are of this kind. The sum of few components is elementwise work then, which
flows into its consumers, and reductions of components go over the same pairs, so they share a loop:
nothing of the size of all pairs is stored.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

from tessera.graph.ops.arithmetic import Add
from tessera.graph.ops.elementwise import Elementwise
from tessera.graph.ops.rearrange import Broadcast, Concatenate, Reshape, Slice, Transpose
from tessera.graph.ops.reduce import Sum
from tessera.ir.core import Block, Op, Value
from tessera.schedule.cost import points, tensor

FEW = 3
"""Components, at most."""

PAIRS = 8
"""So many times as many elements as what they are computed from are pairs."""

MAX_DEPTH = 64
"""How many ops are looked through for what an array is computed from."""


def unroll_components(block: Block) -> Block:
    """The block with reductions of components in place of those of all of them."""
    if not any(isinstance(op, Sum) for op in block.ops):
        return block
    return _Unrolling().run(block)


class OpByOp(ABC):
    """A copy of a block in which other values stand for some.

    Attributes:
        code: its ops so far.
        env: for values of the block those of the copy.
    """

    def __init__(self) -> None:
        self.code: list[Op] = []
        self.env: dict[Value, Value] = {}

    def run(self, block: Block) -> Block:
        """The rewritten block."""
        for op in block.ops:
            fresh = op
            if any(v in self.env for v in op.operands):
                fresh = op.rebuild([self.env.get(v, v) for v in op.operands], op.regions)
            made = self.made(fresh)
            if made is None:
                self.code.append(fresh)
            if fresh is not op or made is not None:
                results = fresh.results if made is None else (made,)
                self.env.update(zip(op.results, results, strict=True))
        return Block(block.args, self.code, [self.env.get(v, v) for v in block.outputs])

    def add(self, op: Op) -> Value:
        """Appends an op with one result."""
        self.code.append(op)
        return op.results[0]

    @abstractmethod
    def made(self, op: Op) -> Value | None:
        """What stands for the result of an op, of values of the copy; None where the op stays."""


class _Unrolling(OpByOp):
    def made(self, op: Op) -> Value | None:
        """Sums of few components."""
        return self.sum(op) if isinstance(op, Sum) else None

    def sum(self, op: Sum) -> Value | None:
        """What stands for a sum; None where it stays."""
        x = tensor(op.x)
        last = x.rank - 1
        count = x.shape[last] if x.rank else 0
        if not isinstance(count, int) or not 1 < count <= FEW or not is_of_pairs(op.x):
            return None
        if op.axes == (last,) and op.accumulator is x.dtype:
            total = self.component(op.x, 0, op)
            for k in range(1, count):
                total = self.add(Add(total, self.component(op.x, k, op), loc=op.loc))
            return total
        if last in op.axes:
            return None
        shape = (*tensor(op.result).shape[:-1], 1)
        parts: list[Value] = []
        for k in range(count):
            part = op.rebuild([self.component(op.x, k, op)])
            parts.append(self.add(Reshape(self.add(part), shape, loc=op.loc)))
        return self.add(Concatenate(tuple(parts), len(shape) - 1, loc=op.loc))

    def component(self, x: Value, k: int, op: Op) -> Value:
        """One component of an array, without the last dim."""
        shape = tensor(x).shape
        ones = (1,) * len(shape)
        start, limit = (*(0,) * (len(shape) - 1), k), (*shape[:-1], k + 1)
        part = self.add(Slice(x, start, limit, ones, loc=op.loc))
        return self.add(Reshape(part, shape[:-1], loc=op.loc))


def is_of_pairs(x: Value) -> bool:
    """Whether an array is computed from much smaller ones."""
    seen: set[Value] = set()
    stack, leaves = [x], 0
    while stack:
        value = stack.pop()
        if value in seen:
            continue
        seen.add(value)
        if len(seen) > MAX_DEPTH:
            return False
        op = value.op
        if isinstance(op, (Elementwise, Broadcast, Reshape, Transpose, Slice)):
            stack.extend(op.operands)
        else:
            leaves += points(tensor(value).shape)
    return points(tensor(x).shape) >= PAIRS * max(leaves, 1)
