"""Rewrites of a Graph block before it is lowered: calls are inlined, contractions get operands
they can read in order."""

from __future__ import annotations

from collections.abc import Sequence

from tessera.graph.ops.contract import DotGeneral
from tessera.graph.ops.elementwise import Elementwise
from tessera.graph.ops.rearrange import Broadcast, Reshape, Transpose
from tessera.graph.passes.simplify import inline_calls
from tessera.ir.core import Block, Op, Value
from tessera.ir.intexpr import Dim, prod
from tessera.schedule.cost import points, tensor
from tessera.schedule.loops import expand_scans
from tessera.schedule.one_hot import expand
from tessera.schedule.strategy import CPU, Strategy
from tessera.schedule.widen_scatter import widen_scatters

MIN_ROWS = 8
"""A contraction with fewer rows does not repay copying its second operand."""

PANELS = (32, 16)
"""Columns per panel of a large second operand: whole vectors of every machine."""

PANEL_ROWS = 32
"""A contraction with fewer rows does not repay cutting its second operand into panels."""

PANEL_DEPTH = 1536
"""Rows of the second operand whose pages the processor's table of pages holds no longer."""

PAGE_BYTES = 4096
"""A row of at least so many bytes begins on another page than the one before."""

MAX_DEPTH = 16
"""How far an operand is traced to the buffer it is read from."""


def prepare(block: Block, strategy: Strategy = CPU) -> tuple[Block, dict[Value, str]]:
    """The block to lower.

    Args:
        block: Graph ops.
        strategy: whether operands are copied.

    Returns:
        The block, and values in it that must be stored, with the reasons.
    """
    block = expand(expand_scans(inline_calls(block)))
    if not strategy.combines_bytes:
        block = widen_scatters(block)
    operands = _Operands()
    if strategy.copies_operands and any(isinstance(op, DotGeneral) for op in block.ops):
        block = operands.run(block)
    return block, operands.needed


class _Operands:
    """Copies second operands of contractions into the order in which they are read.

    Vectors run along the columns of a product, so the second operand must be contiguous along
    these. Reading it along the reduction instead costs more for each row than one copy does. A
    large one is cut into panels of some columns, each of which is contiguous as a whole: a step
    along the reduction would otherwise be a step to another page of memory.
    """

    def __init__(self) -> None:
        self.needed: dict[Value, str] = {}
        self.copies: dict[tuple[Value, tuple[int, ...], int], Value] = {}
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
        """The op, on a copy where that pays."""
        lhs, rhs = [self.env.get(v, v) for v in op.operands]
        batch, inner, free = op.batch_axes[1], op.contract[1], tuple(op.free(1))
        shape = tensor(rhs).shape
        rows = points([tensor(lhs).shape[k] for k in op.free(0)])
        perm = (*batch, *inner, *free)
        panel = self.panel(rhs, rows, points([shape[k] for k in inner]), [shape[k] for k in free])
        turned = innermost(rhs) in inner and points([shape[k] for k in free]) > 1
        if not panel and not (turned and rows >= MIN_ROWS):
            return op if (lhs, rhs) == op.operands else op.rebuild((lhs, rhs))
        copy = self.copies.get((rhs, perm, panel))
        if copy is None:
            copy = self.copies[rhs, perm, panel] = self.copy(op, rhs, perm, panel)
        start = len(batch) + (1 if panel else 0)
        found = op.rebuild(
            (lhs, copy),
            batch_axes=(op.batch_axes[0], tuple(range(len(batch)))),
            contract=(op.contract[0], tuple(range(start, start + len(inner)))),
        )
        if not panel:
            return found
        self.code.append(found)
        return Reshape(found.results[0], tensor(op.result).shape, loc=op.loc)

    def panel(self, rhs: Value, rows: int, depth: int, free: Sequence[Dim]) -> int:
        """Columns per panel; 0 where panels do not pay."""
        columns = prod(free)
        if rows < PANEL_ROWS or depth < PANEL_DEPTH or not isinstance(columns, int):
            return 0
        if columns * tensor(rhs).dtype.itemsize < PAGE_BYTES:
            return 0
        return next((n for n in PANELS if columns % n == 0), 0)

    def copy(self, op: DotGeneral, rhs: Value, perm: tuple[int, ...], panel: int) -> Value:
        """The second operand with its reduction in front of its columns, perhaps in panels."""
        value = rhs
        if perm != tuple(range(len(perm))):
            value = self.emit(Transpose(value, perm, loc=op.loc))
        reason = "a turned copy, so that the columns of a product are contiguous"
        if panel:
            shape = tensor(value).shape
            count = len(op.batch_axes[1])
            kept = count + len(op.contract[1])
            columns = prod(shape[kept:])
            cut = (*shape[:kept], columns // panel, panel)
            value = self.emit(Reshape(value, cut, loc=op.loc))
            order = (*range(count), kept, *range(count, kept), kept + 1)
            value = self.emit(Transpose(value, order, loc=op.loc))
            reason = f"a copy in panels of {panel} columns, which are read in order"
        self.needed[value] = reason
        return value

    def emit(self, op: Op) -> Value:
        self.code.append(op)
        return op.result


def innermost(value: Value) -> int | None:
    """The dim along which a value's elements are neighbours in memory; None where that is not
    known."""
    steps: list[Transpose | Broadcast | Reshape] = []
    for _ in range(MAX_DEPTH):
        op = value.op
        if isinstance(op, Elementwise):
            value = op.operands[0]
        elif isinstance(op, (Transpose, Broadcast)) or (
            isinstance(op, Reshape) and tensor(op.x).shape[-1:] == op.shape[-1:]
        ):
            steps.append(op)
            value = op.x
        else:
            break
    dim = tensor(value).rank - 1
    for op in reversed(steps):
        if dim < 0:
            return None
        if isinstance(op, Reshape):
            # Of a reshape only the last dim is known to stay what it is.
            if dim != tensor(op.x).rank - 1:
                return None
            dim = len(op.shape) - 1
        else:
            dim = op.perm.index(dim) if isinstance(op, Transpose) else op.dims[dim]
    return dim if dim >= 0 else None
