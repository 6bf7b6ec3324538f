"""The ops of a program that work on blocks, one op for those that run together.

`block_rows` says which they are and how each is cut (`Step`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING

from tessera.graph.ops.blocks import Blocks, Cut
from tessera.graph.ops.contract import DotGeneral
from tessera.graph.ops.elementwise import Cast, Elementwise
from tessera.graph.ops.generate import Constant, Iota
from tessera.graph.ops.rearrange import Broadcast, Reshape, Transpose
from tessera.graph.passes.same_axes import moved_back, operands_of
from tessera.graph.passes.skip_masked import skip_masked
from tessera.ir.core import Block, Op, Value, tensor_type

if TYPE_CHECKING:
    from tessera.graph.passes.block_rows import Rows


class Refused(Exception):
    """The rule does not apply; the text says why, if a user might expect that it does."""


def static_shape(value: Value) -> tuple[int, ...] | None:
    """The dims of an array, if they are numbers."""
    shape = [dim for dim in tensor_type(value).shape if isinstance(dim, int)]
    return tuple(shape) if len(shape) == tensor_type(value).rank else None


def op_of(value: Value) -> Op:
    """The op that gives a value."""
    assert value.op is not None
    return value.op


@dataclass(frozen=True, slots=True)
class Step:
    """How an op works on blocks.

    Attributes:
        operands: the cut of each operand.
        result: that of the result.
        summed: axes of the product over which the result is a sum.
    """

    operands: tuple[Cut, ...]
    result: Cut
    summed: frozenset[int] = frozenset()


class Part:
    """One op that computes the values of a level block by block.

    Attributes:
        given: values of lower levels that it is given.
        env: blocks of values, by how they are cut.
        inputs: those that are arguments.
        code: the ops of the body.
        lines: numbers along one axis in place of those that are repeated along others.
    """

    def __init__(self, rows: Rows, level: int) -> None:
        self.rows = rows
        self.level = level
        self.given: list[Value] = []
        self.env: dict[tuple[Value, Cut], Value] = {}
        self.inputs: dict[tuple[Value, Cut], Value] = {}
        self.code: list[Op] = []
        self.lines: dict[Op, Iota] = {}

    def blocks(self, outputs: Sequence[Value]) -> tuple[list[Op], list[Value]]:
        """The op, what converts its sums, and what the outputs are."""
        steps = [self.rows.steps[op_of(v)] for v in outputs]
        yielded = [self.value(v, step.result) for v, step in zip(outputs, steps, strict=True)]
        return self.finished(outputs, yielded)

    def finished(
        self,
        outputs: Sequence[Value],
        yielded: Sequence[Value],
        states: Sequence[Value] = (),
        firsts: Sequence[float] = (),
    ) -> tuple[list[Op], list[Value]]:
        """The same, given the blocks of the outputs.

        Args:
            outputs: what is computed.
            yielded: a block of each.
            states: arguments for the last ones, where they are states.
            firsts: what these hold at first.
        """
        rows = self.rows
        steps = [rows.steps[op_of(v)] for v in outputs]
        summed = sorted({k for step in steps for k in step.summed})
        loops = [k for k in range(len(rows.lengths)) if k not in summed] + summed

        def by_loops(cut: Cut) -> Cut:
            return tuple([k if k < 0 else loops.index(k) for k in cut])

        op = Blocks(
            tuple([value for value, _ in self.inputs]),
            counts=tuple([rows.count(k) for k in loops]),
            cuts=tuple([by_loops(cut) for _, cut in self.inputs]),
            outs=tuple([by_loops(step.result) for step in steps]),
            firsts=tuple(firsts),
            body=Block([*self.inputs.values(), *states], self.code, yielded),
            loc=rows.seed.loc,
        )
        seed = self.env.get((rows.seed.results[0], rows.steps[rows.seed].result))
        if seed is not None:
            op = skip_masked(op, seed, rows.row, rows.column, rows.options.columns)
        code: list[Op] = [*self.lines.values(), op]
        results: list[Value] = []
        for value, found in zip(outputs, op.results, strict=True):
            if tensor_type(found).dtype is not tensor_type(value).dtype:
                code.append(Cast(found, tensor_type(value).dtype, loc=op_of(value).loc))
                found = code[-1].results[0]
            results.append(found)
        return code, results

    def value(self, value: Value, cut: Cut) -> Value:
        """A block of a value."""
        key = (value, cut)
        found = self.env.get(key)
        if found is None:
            found = self.env[key] = self.made(value, cut)
        return found

    def made(self, value: Value, cut: Cut) -> Value:
        op, rows = value.op, self.rows
        if op is not None and op in rows.kept:
            step = rows.steps[op]
            if rows.levels[op] == self.level or (rows.is_wide(value) and not step.summed):
                if step.result != cut:
                    raise Refused("rows meet other rows")
                return self.copied(op, step.operands, cut)
            self.given.append(value)
        elif op is not None and _is_scalar(op):
            return self.copied(op, (), cut)
        elif isinstance(op, Iota) and len(cut) > 1:
            return self.counted(op, cut)
        elif isinstance(op, Elementwise) and (rows.is_point(cut) or self.repeats(value)):
            return self.copied(op, (cut,) * len(op.operands), cut)
        elif isinstance(op, (Broadcast, Reshape, Transpose)):
            inner = moved_back(op, cut)
            if inner is not None:
                return self.copied(op, (inner,), cut)
        elif isinstance(op, DotGeneral) and _grows(op):
            return self.copied(op, operands_of(op, cut), cut)
        return self.input(value, cut)

    def counted(self, op: Iota, cut: Cut) -> Value:
        """Numbers along one axis, of a line of them."""
        line = self.lines.get(op)
        if line is None:
            line = self.lines[op] = Iota((op.shape[op.axis],), 0, op.dtype, loc=op.loc)
        block = self.value(line.result, (cut[op.axis],))
        spread = Broadcast(block, self.shape(op.result, cut), (op.axis,), loc=op.loc)
        self.code.append(spread)
        return spread.result

    def input(self, value: Value, cut: Cut) -> Value:
        """An array that the blocks are given."""
        if not self.rows.fits(value, cut):
            raise Refused("an operand has other axes")
        arg = self.inputs.get((value, cut))
        if arg is None:
            type = tensor_type(value).strong()
            arg = Value(type.with_shape(self.shape(value, cut)))
            self.inputs[value, cut] = arg
        return arg

    def shape(self, value: Value, cut: Cut) -> tuple[int, ...]:
        """The dims of a block."""
        rows = self.rows
        found: list[int] = []
        for dim, k in zip(tensor_type(value).shape, cut, strict=True):
            assert isinstance(dim, int)
            found.append(dim if k < 0 else rows.sizes[k])
        return tuple(found)

    def copied(self, op: Op, cuts: Sequence[Cut], cut: Cut) -> Value:
        """The op on blocks."""
        own = self.rows.program.operands(op)
        operands = [self.value(v, c) for v, c in zip(own, cuts, strict=True)]
        changes: dict[str, object] = {}
        if isinstance(op, (Broadcast, Reshape)):
            changes["shape"] = self.shape(op.result, cut)
        step = self.rows.steps.get(op)
        if step is not None and step.summed and isinstance(op, DotGeneral):
            # Sums over blocks are as exact as those within one.
            changes["dtype"] = op.accumulate
        new = op.rebuild(operands, op.regions, **changes)
        self.code.append(new)
        return new.results[0]


    def repeats(self, value: Value) -> bool:
        """Whether a value only repeats, compares or combines elements of smaller arrays."""
        op = value.op
        if op is None:
            return False
        if isinstance(op, Broadcast):
            return prod(static_shape(op.result) or (0,)) > prod(static_shape(op.x) or (0,))
        if isinstance(op, Iota):
            return len(op.shape) > 1
        operands = self.rows.program.operands(op)
        if isinstance(op, (Reshape, Transpose)):
            return self.repeats(operands[0])
        if isinstance(op, Elementwise):
            return all(self.repeats(v) or (v.op is not None and _is_scalar(v.op)) for v in operands)
        return False


def _grows(op: DotGeneral) -> bool:
    """Whether a product has more elements than its operands."""
    sizes = [prod(static_shape(v) or (0,)) for v in (op.result, *op.operands)]
    return sizes[0] > sum(sizes[1:]) > 0


def _is_scalar(op: Op) -> bool:
    return isinstance(op, Constant) and not op.value.shape
