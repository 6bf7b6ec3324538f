"""Products of a scan's steps that need not wait for the step before: done for all steps at once.

    scan: z = x[i] @ w + h @ u; h = tanh(z); yields h, h @ v
    ==>
    g = x @ w                   # all steps
    scan: z = g[i] + h @ u; h = tanh(z); yields h, h
    y = hs @ v                  # all steps

A step of few rows reads all of a matrix for little work. One product of the rows of all steps reads
it once, and its derivative with respect to the matrix is one product, where a loop would add up one
of each step. So it is done with products of a constant of the loop: before it where they depend on
what is scanned alone, behind it where only stacked results depend on them. What is read of the loop
or by it instead is stored for all steps.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any

from tessera.dtypes import int64
from tessera.graph.ops.base import Family, GraphOp
from tessera.graph.ops.contract import DotGeneral
from tessera.graph.ops.control import batch_to_front
from tessera.graph.ops.generate import iota
from tessera.graph.ops.work import count, nbytes
from tessera.graph.transforms.evaluate import argument_types, trace_function
from tessera.graph.transforms.vectorize import vmap_values
from tessera.ir.core import Block, Func, Op, Value, tensor_type
from tessera.ir.effects import PURE
from tessera.ir.loc import ORIGIN
from tessera.ir.rewrite import eliminate_dead
from tessera.ir.walk import clone_op, uses

if TYPE_CHECKING:
    from tessera.graph.ops.scan import Scan

ALLOWED = frozenset(
    {Family.CONTRACT, Family.ELEMENTWISE, Family.GENERATE, Family.REARRANGE, Family.REDUCE}
)
"""Ops that may be done for all steps at once."""

LEAST_STEPS = 4
"""Fewer steps are not worth it."""

MOST_BYTES = 64 << 20
"""What is stored for all steps."""

GROWTH = 32
"""What is stored may take so many times the memory of what is there anyway. The depth or width of a
product that takes more is small, and so is its work."""


def steps_apart(op: Scan, most_rows: int | None = None) -> Func | None:
    """The scan as a Graph of its operands, with products before and behind a smaller scan; None if
    there are no such products.

    Args:
        op: the scan.
        most_rows: rows of a product in each step, at most.
    """
    if isinstance(op.length, int) and op.length < LEAST_STEPS:
        return None
    if not any([isinstance(inner, DotGeneral) for inner in op.body.ops]):
        return None
    parts = _Parts(op, most_rows)
    return parts.program() if parts.before or parts.behind else None


class _Parts:
    """What a step does, by when it can be done.

    Attributes:
        before: values that depend on what is scanned, and constants.
        behind: numbers of stacked results, each with what its ops read of a step.
    """

    def __init__(self, op: Scan, most_rows: int | None) -> None:
        self.op, self.body, self.most_rows = op, op.body, most_rows
        self.steps = op.length if isinstance(op.length, int) else 1
        self.index, *args = self.body.args
        self.consts, self.carry, self.slices = op.split(args)
        self.steady = self._depending(self.consts)
        self.scanned = self._depending([self.index, *self.consts, *self.slices])
        self.before = self._before()
        self.behind = self._behind()

    def _depending(self, args: Sequence[Value]) -> set[Value]:
        """The values that depend on these arguments alone."""
        found = set(args)
        for op in self.body.ops:
            if _is_allowed(op) and found.issuperset(op.operands):
                found.update(op.results)
        return found

    def _is_product(self, op: Op | None) -> bool:
        """Whether an op multiplies a matrix, of few rows."""
        if not isinstance(op, DotGeneral) or op.batch_axes[0]:
            return False
        fixed = [v for v in op.operands if v in self.steady]
        if len(fixed) != 1:
            return False
        depth = count([tensor_type(op.operands[0]).shape[k] for k in op.contract[0]])
        matrix = max(count(tensor_type(fixed[0]).shape), 1)
        rows = count(tensor_type(op.result).shape) * depth // matrix
        return self.most_rows is None or rows <= self.most_rows

    def _fits(self, stored: Collection[Value], instead: Collection[Value]) -> bool:
        """Whether there is room for what is stored of all steps in place of something else."""
        size = sum(map(nbytes, stored))
        return size * self.steps <= MOST_BYTES and size <= GROWTH * sum(map(nbytes, instead))

    # --- before the loop ---

    def _before(self) -> list[Value]:
        wanted = set(self.body.outputs)
        for op in self.body.ops:
            if not self.scanned.issuperset(op.results):
                wanted.update(op.operands)
        found: list[Value] = []
        for op in reversed(self.body.ops):
            for v in op.results:
                if v not in wanted or v not in self.scanned or v in self.steady:
                    continue
                if self._holds_product(v):
                    found.append(v)
                else:
                    wanted.update(op.operands)
        read = {v for v in self._cone(found, set()) if v in self.slices}
        return found if self._fits(found, read) else []

    def _holds_product(self, value: Value) -> bool:
        """Whether a value is a product, or as large as one that it is made of."""
        left, seen = [value], {value}
        while left:
            v = left.pop()
            if v.op is None or v in self.steady or tensor_type(v).shape != tensor_type(value).shape:
                continue
            if self._is_product(v.op):
                return True
            if not isinstance(v.op, GraphOp) or v.op.family is not Family.ELEMENTWISE:
                continue
            for x in v.op.operands:
                if x not in seen:
                    seen.add(x)
                    left.append(x)
        return False

    # --- behind the loop ---

    def _behind(self) -> dict[int, list[Value]]:
        """Stacked results that end in products, whose operands something else of a step needs."""
        first = len(self.carry)
        carried = self.body.outputs[:first]
        kept = eliminate_dead(Block(self.body.args, self.body.ops, [*carried, *self.before]))
        needed = {v for op in kept.ops for v in op.results} | set(carried)
        found: dict[int, list[Value]] = {}
        for k, y in enumerate(self.body.outputs[first:]):
            if y in self.scanned or y in needed:
                continue
            cone = self._cone([y], needed)
            late = [v.op for v in cone if v.op is not None and v not in needed]
            if not all([_is_allowed(op) for op in late]):
                continue
            if not any([self._is_product(op) for op in late]):
                continue
            read = [v for v in cone if (v in needed or v in self.carry) and v not in self.steady]
            if self.index not in read and self._fits(read, [y]):
                found[k] = read
        return found

    def _cone(self, values: Sequence[Value], ends: set[Value]) -> list[Value]:
        """What values are computed of, as far as other values, and these."""
        seen: dict[Value, None] = {}
        left = list(values)
        while left:
            v = left.pop()
            if v in seen:
                continue
            seen[v] = None
            if v.op is not None and v not in ends:
                left += v.op.operands
        return list(seen)

    # --- the program ---

    def program(self) -> Func:
        """The three parts, one after the other."""
        types = argument_types(Func("scan", Block(self.op.operands, [], [])))
        func, captured = trace_function(self._run, [t.strong() for t in types], "scan", "scan")
        assert not captured
        return func

    def _run(self, *operands: Any) -> list[Any]:
        outer, ORIGIN.loc = ORIGIN.loc, self.op.loc
        try:
            return self._parts(*operands)
        finally:
            ORIGIN.loc = outer

    def _parts(self, *operands: Any) -> list[Any]:
        consts, init, xs = self.op.split(operands)
        given = dict(zip(self.consts, consts, strict=True)), dict(zip(self.slices, xs, strict=True))
        before = self._at_once(self.before, *given)
        first = len(self.carry)
        ys = self.body.outputs[first:]
        done = dict(zip(self.before, before, strict=True))
        left = [k for k, y in enumerate(ys) if y not in done and k not in self.behind]
        stored = list(dict.fromkeys([v for read in self.behind.values() for v in read]))
        outputs = [*self.body.outputs[:first], *[ys[k] for k in left], *stored]
        step = _closed(self.body, self.body.args, self.before, outputs)
        results = self.op.again(consts, init, [*xs, *before], step)
        stacks = {k: done[y] for k, y in enumerate(ys) if y in done}
        stacks |= dict(zip(left, results[first:], strict=False))
        kept = dict(zip(stored, results[first + len(left) :], strict=True))
        for k in self.behind:
            (stacks[k],) = self._at_once([ys[k]], given[0], given[1] | kept)
        return [*results[:first], *[stacks[k] for k in range(len(ys))]]

    def _at_once(
        self, values: Sequence[Value], consts: dict[Value, Any], scanned: dict[Value, Any]
    ) -> list[Any]:
        """Values of a step, computed for all steps.

        Args:
            values: of the body.
            consts: arrays that stand for values of it, the same in all steps.
            scanned: arrays that have those of all steps, one after the other.
        """
        length = self.op.length
        known = [*consts, *scanned]
        body = _closed(self.body, [self.index], known, values)
        read = uses(body)
        args, arrays, axes = list[Value](), list[Any](), list[int | None]()
        for old, arg in zip((self.index, *known), body.args, strict=True):
            if not read[arg]:
                continue
            args.append(arg)
            axes.append(None if old in consts else 0)
            if old is self.index:
                arrays.append(iota((length,), 0, int64))
            else:
                arrays.append(consts[old] if old in consts else scanned[old])
        func = Func("steps", Block(args, body.ops, body.outputs))
        found = vmap_values(func, arrays, axes, length)
        return [batch_to_front(x, axis, length) for x, axis in zip(*found, strict=True)]


def _closed(
    body: Block, args: Sequence[Value], known: Sequence[Value], outputs: Sequence[Value]
) -> Block:
    """What values of a block are computed of: some of its arguments, and values that become
    arguments, too."""
    ends = set(known)
    code = [op for op in body.ops if ends.isdisjoint(op.results)]
    env = {v: Value(tensor_type(v).strong(), v.name) for v in (*args, *known)}
    ops = [clone_op(op, env) for op in eliminate_dead(Block(body.args, code, outputs)).ops]
    return Block([env[v] for v in (*args, *known)], ops, [env[v] for v in outputs])


def _is_allowed(op: Op) -> bool:
    is_plain = isinstance(op, GraphOp) and op.family in ALLOWED and not op.regions
    return is_plain and op.get_effects() == PURE
