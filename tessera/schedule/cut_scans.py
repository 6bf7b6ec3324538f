"""Loops whose steps sum over points: what they carry in one nest, the sums behind it.

A step that is work on single elements is a nest with the loop inside (`recurrence.py`). The
gradient of such a loop sums, in each step, what is the same for all examples or channels, and would
be a loop of kernels. Where nothing that is carried on needs these sums, they are taken of all steps
at once:

    %c, %ys = graph.scan([%k], [%a], [%xs]) body(%t, %k, %a, %x) { yield f(%a, %x), sum(g(%a, %x)) }
    ==>
    %c, %gs = graph.scan([%k], [%a], [%xs]) body(%t, %k, %a, %x) { yield f(%a, %x), g(%a, %x) }
    %ys = sum(%gs)

What is summed up from step to step (`%b = %s + sum(...)`) is summed for each point, which stays in
registers, and over points in the end; if something is computed of the sum first, that is summed
over steps behind the loop. What does not depend on what is carried is computed behind
the loop, and not stored.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tessera.graph.ops.arithmetic import Add
from tessera.graph.ops.base import GraphOp, Rearrange
from tessera.graph.ops.control import batch_to_front
from tessera.graph.ops.elementwise import Bitcast, Cast, Elementwise, add
from tessera.graph.ops.generate import Constant, Iota
from tessera.graph.ops.rearrange import full
from tessera.graph.ops.reduce import Reduce, Sum, sum_
from tessera.graph.ops.scan import Scan
from tessera.graph.transforms.evaluate import bind_op, evaluate, trace_function
from tessera.graph.transforms.vectorize import vmap_values
from tessera.ir.core import Block, Func, Op, Value
from tessera.ir.effects import is_removable
from tessera.ir.types import TensorType
from tessera.ir.walk import expand_ops, free_values, inline
from tessera.schedule.cost import tensor
from tessera.schedule.recurrence import MAX_UNROLLED, is_recurrence
from tessera.schedule.sizes import bytes_of, size_of

ON_ELEMENTS = (Elementwise, Cast, Bitcast, Constant, Iota, Rearrange, Reduce)
"""What `recurrence.py` has code for, if reductions are over few elements."""

MOST_BYTES = 1 << 28
"""What is stored for sums behind a loop, at most."""


def cut_scans(block: Block, most: int | None = None) -> Block:
    """The block with the sums of scans behind them, where the rest is work on single elements;
    regions are left alone.

    Args:
        block: the block.
        most: bytes that may be stored for the sums behind a loop, if not `MOST_BYTES`.
    """
    limit = MOST_BYTES if most is None else most

    def expand(op: Op, code: list[Op]) -> list[Value] | None:
        assert isinstance(op, Scan)
        found = _cut(op, limit)
        return None if found is None else inline(found.body, op.operands, code.append)

    return expand_ops(block, _may_be_cut, expand)


def may_be_cut(block: Block) -> bool:
    """Whether a block has a scan that might be cut."""
    return any([_may_be_cut(op) for op in block.ops])


def _may_be_cut(op: Op) -> bool:
    """Whether a scan sums in its steps, and is work on single elements but for that, perhaps."""
    if not isinstance(op, Scan) or not isinstance(op.length, int) or not op.init:
        return False
    code = op.body.ops
    if not all(isinstance(one, ON_ELEMENTS) and is_removable(one.get_effects()) for one in code):
        return False
    return any(isinstance(one, Reduce) for one in code)


def _cut(op: Scan, most: int) -> Func | None:
    """What takes the place of a scan; None where it stays. So many bytes are stored at most."""
    if is_recurrence(op):
        return None
    rank = max([tensor(v).rank for v in op.init])
    # The fewer sums are taken behind it, the less is stored.
    for unrolled in range(min(MAX_UNROLLED, rank), -1, -1):
        found = _Cut(op, rank - unrolled, most).run()
        if found is not None:
            return found
    return None


class _Captured(Exception):
    """A value of another program is in the body."""


class _Cut:
    """One attempt.

    Attributes:
        sums: reductions over points.
        behind: ops that need their results.
        totals: by the number of what is carried, the sum that is added to it.
        terms: the same for what is computed of sums, and added.
    """

    def __init__(self, op: Scan, lead: int, most: int) -> None:
        self.op = op
        self.most = most
        self.body = op.body
        sums = [one for one in op.body.ops if isinstance(one, Reduce)]
        self.sums = [one for one in sums if min(one.axes, default=lead) < lead]
        self.behind: set[Op] = set()
        self.varying: set[Value] = set()
        self.totals: dict[int, Sum] = {}
        self.terms: dict[int, Value] = {}
        found: set[Value] = {v for one in self.sums for v in one.results}
        _, carry, _ = op.split(op.body.args[1:])
        self.varying.update(carry)
        for one in op.body.ops:
            if one in self.sums or not found.isdisjoint(one.operands):
                self.behind.add(one)
                found.update(one.results)
            if not self.varying.isdisjoint(one.operands):
                self.varying.update(one.results)
        self.carry = carry

    def run(self) -> Func | None:
        """The loop, and what follows it."""
        if not self.sums or any(one.order is not None for one in self.sums):
            return None
        count = len(self.op.init)
        for k, value in enumerate(self.body.outputs[:count]):
            if value.op in self.behind and not self.is_total(k, value):
                return None
        late = [v for v in self.body.outputs[count:] if v.op in self.behind]
        late += self.terms.values()
        code, needed = self.slice(late)
        if self.body.args[0] in needed:
            return None
        kept = [v for v in needed if v in self.varying]
        if not all(isinstance(n, int) for v in kept for n in tensor(v).shape):
            return None
        if size_of(self.op.length) * sum([bytes_of(tensor(value)) for value in kept]) > self.most:
            return None
        after = Func("after", Block(needed, code, late))
        types = [tensor(v) for v in self.op.operands]
        try:
            found, captured = trace_function(
                lambda *args: self.traced(args, after, kept), types, "cut"
            )
        except _Captured:
            return None
        loops = [one for one in found.ops if isinstance(one, Scan)]
        return found if not captured and all(map(is_recurrence, loops)) else None

    def is_total(self, k: int, value: Value) -> bool:
        """Whether what is carried is a sum of what each step adds; notes what that is."""
        arg, one = self.carry[k], value.op
        if not isinstance(one, Add) or self.uses(arg) != 1 or self.uses(value) != 1:
            return False
        a, b = one.operands
        term = b if a is arg else a
        if arg not in (a, b) or not tensor(arg).dtype.is_inexact:
            return False
        total = term.op
        if isinstance(total, Sum) and total in self.sums and total.x.op not in self.behind:
            dtypes = {total.accumulator, tensor(total.x).dtype, tensor(arg).dtype}
            # It goes nowhere else, and is of the dtype in which it is taken.
            if self.uses(term) == 1 and len(dtypes) == 1:
                self.totals[k] = total
                return True
        self.terms[k] = term
        return tensor(term).shape == tensor(arg).shape

    def uses(self, value: Value) -> int:
        """How often the body uses a value."""
        inside = sum([list(op.operands).count(value) for op in self.body.ops])
        return inside + list(self.body.outputs).count(value)

    def slice(self, late: Sequence[Value]) -> tuple[list[Op], list[Value]]:
        """The ops that compute some results behind the loop, and the values that these begin with:
        what the loop keeps, and arguments of its body that change nothing."""
        wanted, code = set(late), list[Op]()
        for one in reversed(self.body.ops):
            if wanted.isdisjoint(one.results):
                continue
            if one in self.behind or self.varying.isdisjoint(one.results):
                code.append(one)
                wanted.update(one.operands)
        code.reverse()
        return code, free_values(Block([], code, late))

    def traced(self, args: Sequence[Any], after: Func, kept: Sequence[Value]) -> list[Any]:
        """The loop and what follows it, on tracers of its operands."""
        op, count = self.op, len(self.op.init)
        consts, init, xs = op.split(args)
        given, _, slices = op.split(self.body.args[1:])
        outs = [*self.body.outputs]
        early = [k for k in range(count, len(outs)) if outs[k].op not in self.behind]
        stay = [k for k in range(count) if k not in self.terms]
        inner = [self.body.args[0], *given, *[self.carry[k] for k in stay], *slices]

        # What is carried, with a sum for each point in place of one over points.
        def step(*values: Any) -> list[Any]:
            env: dict[Value, Any] = dict(zip(inner, values, strict=True))
            for one in self.body.ops:
                if one in self.behind:
                    continue
                assert isinstance(one, GraphOp)
                found = bind_op(one, [env[v] for v in one.operands])
                env.update(zip(one.results, found, strict=True))
            carried = [
                add(env[self.carry[k]], env[self.totals[k].x]) if k in self.totals else env[outs[k]]
                for k in stay
            ]
            return [*carried, *[env[outs[k]] for k in early], *[env[v] for v in kept]]

        start = dict(enumerate(init))
        types = [tensor(v) for v in inner]
        for k, total in self.totals.items():
            type = TensorType(tensor(total.x).shape, tensor(total.x).dtype)
            start[k] = full(type.shape, 0, type.dtype)
            types[1 + len(consts) + stay.index(k)] = type
        graph, captured = trace_function(step, types, "scan", "body")
        if captured:
            raise _Captured
        body = Block(graph.args, graph.ops, graph.outputs)
        found = op.again(consts, [start[k] for k in stay], xs, body)
        known: dict[int, Any] = dict(zip([*stay, *early], found, strict=False))
        for k, total in self.totals.items():
            (summed,) = evaluate(_alone(total), [known[k]])
            known[k] = add(init[k], summed)
        stacks = dict(zip(kept, found[len(stay) + len(early) :], strict=True))
        stacks.update(zip(slices, xs, strict=True))
        fixed = dict(zip(given, consts, strict=True))
        values = [stacks[v] if v in stacks else fixed[v] for v in after.args]
        axes = [0 if v in stacks else None for v in after.args]
        late, where = vmap_values(after, values, axes, op.length)
        rest = iter(zip(late, where, strict=True))
        for k in range(count, len(outs)):
            if k not in known:
                known[k] = batch_to_front(*next(rest), op.length)
        for k, (term, axis) in zip(self.terms, rest, strict=True):
            known[k] = add(init[k], sum_(batch_to_front(term, axis, op.length), (0,)))
        return [known[k] for k in range(len(outs))]


def _alone(op: Op) -> Func:
    """A program of one op."""
    args = [Value(v.type) for v in op.operands]
    fresh = op.rebuild(args)
    return Func("one", Block(args, [fresh], fresh.results))
