"""Loops with a known number of steps as loops with a condition.

    %c, %ys = graph.scan([%k], [%a], [%xs]) {length=8} body(%i, %k, %a, %x) { ... yield %b, %y }
    ==>
    %i, %c, %ys = graph.while([%k, %xs], [0, %a, unwritten]) cond { %i < 8 } body {
      %x = %xs[%i]
      ...
      yield %i + 1, %b, %ys with row %i = %y
    }

Rows of results are written where they belong: the plan of buffers leaves what is carried in one
place, and of an update only what changes is written. A turn of several steps updates several rows
at once. The steps that are left over follow the loop; a loop of one turn is none.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from tessera.dtypes import int64
from tessera.graph.ops.arithmetic import Add, Ge, Lt
from tessera.graph.ops.control import While
from tessera.graph.ops.dynamic_slice import DynamicSlice, DynamicUpdateSlice
from tessera.graph.ops.generate import Constant, Dense
from tessera.graph.ops.rearrange import Broadcast, Concatenate, Reshape
from tessera.graph.ops.reduce import Sum
from tessera.graph.ops.scan import Scan, Unwritten
from tessera.ir.core import Block, Op, Value
from tessera.ir.intexpr import Dim
from tessera.ir.loc import Loc
from tessera.ir.types import TensorType
from tessera.ir.walk import expand_ops, inline
from tessera.schedule.cost import tensor


def expand_scans(block: Block, kept: Callable[[Scan], bool] | None = None) -> Block:
    """The block without scans, but those that are kept; regions are left alone."""

    def is_meant(op: Op) -> bool:
        return isinstance(op, Scan) and not (kept and kept(op))

    def expand(op: Op, code: list[Op]) -> list[Value]:
        assert isinstance(op, Scan)
        return _Expansion(op, code).run()

    found = expand_ops(block, is_meant, expand)
    # The steps of a loop that is none may hold scans, which are in this block now.
    return block if found is block else expand_scans(found, kept)


class _Code:
    """Ops one after the other."""

    def __init__(self, ops: list[Op], loc: Loc) -> None:
        self.ops = ops
        self.loc = loc

    def add(self, op: Op) -> Value:
        """Appends an op with one result."""
        self.ops.append(op)
        return op.results[0]

    def number(self, value: int) -> Value:
        """A number as an i64 scalar."""
        return self.add(Constant(Dense.of(np.asarray(value), int64), loc=self.loc))

    def moved(self, index: Value, by: int) -> Value:
        """An index some steps on."""
        return self.add(Add(index, self.number(by), loc=self.loc)) if by else index

    def zeros(self, type: TensorType) -> Value:
        """Zeros of a type."""
        zero = self.add(Constant(Dense.of(np.asarray(0), type.dtype), loc=self.loc))
        return self.add(Broadcast(zero, type.shape, (), loc=self.loc)) if type.shape else zero

    def unwritten(self, type: TensorType) -> Value:
        """Memory for rows, of which each will be written."""
        return self.add(Unwritten(type.shape, type.dtype, loc=self.loc))

    def starts(self, index: Value, rank: int) -> list[Value]:
        """The position of a row."""
        return [index, *[self.number(0) for _ in range(rank - 1)]]

    def row(self, x: Value, index: Value) -> Value:
        """A slice along the leading dim."""
        rest = tensor(x).shape[1:]
        starts = self.starts(index, 1 + len(rest))
        found = self.add(DynamicSlice(x, tuple(starts), (1, *rest), loc=self.loc))
        return self.add(Reshape(found, rest, loc=self.loc))

    def rows(self, slices: Sequence[Value]) -> Value:
        """Slices one after the other."""
        parts = [self.add(Reshape(y, (1, *tensor(y).shape), loc=self.loc)) for y in slices]
        return self.add(Concatenate(tuple(parts), 0, loc=self.loc)) if len(parts) > 1 else parts[0]

    def written(self, stack: Value, slices: Sequence[Value], index: Value) -> Value:
        """The stack with slices in place of those from an index on."""
        starts = tuple(self.starts(index, tensor(stack).rank))
        return self.add(DynamicUpdateSlice(stack, self.rows(slices), starts, loc=self.loc))


class _Expansion:
    def __init__(self, op: Scan, code: list[Op]) -> None:
        self.op = op
        self.code = _Code(code, op.loc)
        self.n_carry = len(op.init)
        self.step = -1 if op.reverse else 1

    def run(self) -> list[Value]:
        """What stands for the results."""
        op, code = self.op, self.code
        length = op.length
        turn = op.unroll if isinstance(length, int) else 1
        turns = length // turn if isinstance(length, int) else None
        rest = length - turns * turn if isinstance(length, int) and turns is not None else 0
        carry = list(op.init)
        if turns is not None and turns <= 1:
            assert isinstance(length, int)
            return self.straight(carry, length)
        end = self.value(length)
        first = code.moved(end, -1) if op.reverse else code.number(0)
        ys = [code.unwritten(tensor(v)) for v in op.results[self.n_carry :]]
        last = code.number(rest) if op.reverse else code.moved(end, -rest)
        index, *found = self.loop(turn, first, last, [*carry, *ys])
        if rest:
            found = self.steps(code, rest, index, op.operands, found)
        return found

    def value(self, length: Dim) -> Value:
        """The number of steps as an i64 scalar."""
        if isinstance(length, int):
            return self.code.number(length)
        one = self.code.number(1)
        ones = self.code.add(Broadcast(one, (length,), (), loc=self.op.loc))
        return self.code.add(Sum(ones, (0,), loc=self.op.loc))

    def straight(self, carry: list[Value], length: int) -> list[Value]:
        """All steps, without a loop."""
        code, op = self.code, self.op
        made: list[list[Value]] = [[] for _ in op.results[self.n_carry :]]
        for i in range(length)[:: self.step]:
            carry, ys = self.one(code, code.number(i), op.operands, carry)
            for rows, y in zip(made, ys, strict=True):
                rows.append(y)
        ordered = [rows[:: self.step] for rows in made]
        results = op.results[self.n_carry :]
        stacks = [
            code.rows(rows) if rows else code.zeros(tensor(v))
            for rows, v in zip(ordered, results, strict=True)
        ]
        return [*carry, *stacks]

    def loop(self, turn: int, first: Value, last: Value, init: list[Value]) -> Sequence[Value]:
        """The loop; its first result is the index behind it."""
        op = self.op
        fixed = [*op.consts, *op.xs]
        types = [v.type for v in (last, *fixed, first, *init)]
        args = [Value(t) for t in types]
        index = args[1 + len(fixed)]
        test = Lt(index, args[0]) if not op.reverse else Ge(index, args[0])
        cond = Block(args, [test], test.results)
        args = [Value(t) for t in types]
        index, *carried = args[1 + len(fixed) :]
        body = _Code([], op.loc)
        n = len(op.consts)
        operands = [*args[1 : 1 + n], *carried[: self.n_carry], *args[1 + n : 1 + len(fixed)]]
        found = self.steps(body, turn, index, operands, carried)
        after = body.moved(index, turn * self.step)
        block = Block(args, body.ops, [after, *found])
        loop = While((last, *fixed), (first, *init), cond=cond, body=block, loc=op.loc)
        self.code.ops.append(loop)
        return loop.results

    def steps(
        self,
        code: _Code,
        count: int,
        index: Value,
        operands: Sequence[Value],
        carried: Sequence[Value],
    ) -> list[Value]:
        """Some steps, and their rows written."""
        carry, stacks = list(carried[: self.n_carry]), carried[self.n_carry :]
        made: list[list[Value]] = [[] for _ in stacks]
        for k in range(count):
            carry, ys = self.one(code, code.moved(index, k * self.step), operands, carry)
            for rows, y in zip(made, ys, strict=True):
                rows.append(y)
        begin = code.moved(index, 1 - count) if self.op.reverse else index
        updated: list[Value] = []
        for stack, rows in zip(stacks, made, strict=True):
            updated.append(code.written(stack, rows[:: self.step], begin))
        return [*carry, *updated]

    def one(
        self, code: _Code, index: Value, operands: Sequence[Value], carry: Sequence[Value]
    ) -> tuple[list[Value], list[Value]]:
        """One step: what it carries on, and its slices."""
        consts, _, xs = self.op.split(operands)
        slices = [code.row(x, index) for x in xs]
        found = inline(self.op.body, [index, *consts, *carry, *slices], code.ops.append)
        return found[: self.n_carry], found[self.n_carry :]

