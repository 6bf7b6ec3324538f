"""Rewrites of a Graph block before it is lowered: calls are inlined, contractions get operands
they can read in order."""

from __future__ import annotations

from tessera.graph.ops.contract import DotGeneral
from tessera.graph.ops.control import Call
from tessera.graph.ops.elementwise import Elementwise
from tessera.graph.ops.rearrange import Broadcast, Reshape, Transpose
from tessera.ir.core import Block, Op, Value
from tessera.ir.walk import clone_op
from tessera.schedule.cost import points, tensor

MIN_ROWS = 8
"""A contraction with fewer rows does not repay copying its second operand."""

MAX_DEPTH = 16
"""How far an operand is traced to the buffer it is read from."""


def prepare(block: Block) -> tuple[Block, dict[Value, str]]:
    """The block to lower.

    Returns:
        The block, and values in it that must be stored, with the reasons.
    """
    block = inline_calls(block)
    turning = _Turning()
    if any(isinstance(op, DotGeneral) for op in block.ops):
        block = turning.run(block)
    return block, turning.needed


def inline_calls(block: Block) -> Block:
    """The block with the bodies of calls in place of the calls."""
    if not any(isinstance(op, Call) for op in block.ops):
        return block
    code: list[Op] = []
    env: dict[Value, Value] = {}
    _inline(block, env, code, copy=False)
    return Block(block.args, code, [env.get(v, v) for v in block.outputs])


def _inline(block: Block, env: dict[Value, Value], code: list[Op], copy: bool) -> None:
    for op in block.ops:
        if isinstance(op, Call):
            inner = {a: env.get(v, v) for a, v in zip(op.body.args, op.args, strict=True)}
            _inline(op.body, inner, code, copy=True)
            found = [inner.get(v, v) for v in op.body.outputs]
            env.update(zip(op.results, found, strict=True))
        elif copy or any(v in env for v in op.operands):
            code.append(clone_op(op, env))
        else:
            code.append(op)


class _Turning:
    """Copies second operands of contractions whose memory runs along the reduction.

    Vectors run along the columns of a product, so the second operand must be contiguous along
    these. Reading it along the reduction instead costs more for each row than one copy does.
    """

    def __init__(self) -> None:
        self.needed: dict[Value, str] = {}
        self.turned: dict[tuple[Value, tuple[int, ...]], Value] = {}
        self.env: dict[Value, Value] = {}
        self.code: list[Op] = []

    def run(self, block: Block) -> Block:
        """The rewritten block."""
        for op in block.ops:
            if isinstance(op, DotGeneral):
                fresh = self.contraction(op)
            elif any(v in self.env for v in op.operands):
                fresh = op.rebuild([self.env.get(v, v) for v in op.operands], op.regions)
            else:
                fresh = op
            if fresh is not op:
                self.env.update(zip(op.results, fresh.results, strict=True))
            self.code.append(fresh)
        return Block(block.args, self.code, [self.env.get(v, v) for v in block.outputs])

    def contraction(self, op: DotGeneral) -> Op:
        """The op, on a turned copy where that pays."""
        lhs, rhs = [self.env.get(v, v) for v in op.operands]
        batch, inner, free = op.batch_axes[1], op.contract[1], tuple(op.free(1))
        shape = tensor(rhs).shape
        rows = points([tensor(lhs).shape[k] for k in op.free(0)])
        columns = points([shape[k] for k in free])
        if rows < MIN_ROWS or columns == 1 or innermost(rhs) not in inner:
            return op if (lhs, rhs) == op.operands else op.rebuild((lhs, rhs))
        perm = (*batch, *inner, *free)
        copy = self.turned.get((rhs, perm))
        if copy is None:
            made = Transpose(rhs, perm, loc=op.loc)
            self.code.append(made)
            copy = self.turned[rhs, perm] = made.result
            self.needed[copy] = "a turned copy, so that the columns of a product are contiguous"
        places = tuple(range(len(batch))), tuple(range(len(batch), len(batch) + len(inner)))
        return op.rebuild(
            (lhs, copy),
            batch_axes=(op.batch_axes[0], places[0]),
            contract=(op.contract[0], places[1]),
        )


def innermost(value: Value) -> int | None:
    """The dim along which a value's elements are neighbours in memory; None where that is not
    known."""
    steps: list[Transpose | Broadcast] = []
    for _ in range(MAX_DEPTH):
        op = value.op
        if isinstance(op, Elementwise):
            value = op.operands[0]
        elif isinstance(op, (Transpose, Broadcast)):
            steps.append(op)
            value = op.x
        elif isinstance(op, Reshape) and tensor(op.x).shape[-1:] == op.shape[-1:]:
            value = op.x
        else:
            break
    dim = tensor(value).rank - 1
    for op in reversed(steps):
        if dim < 0:
            return None
        dim = op.perm.index(dim) if isinstance(op, Transpose) else op.dims[dim]
    return dim if dim >= 0 else None
