"""Loops that add up products of what is stacked: the sum is one product behind the loop.

The gradient for the weights of a recurrent cell is a sum of products, one for each step, of what
the loop reads and what it stacks anyway. Each step would read and write all of the sum, and its
depth is that of a batch:

    %w, %zs = graph.scan([], [%w0], [%hs]) body(%t, %w, %h) { ... yield %w + dot(%h, %z), %z }
    ==>
    %zs = graph.scan([], [], [%hs]) body(%t, %h) { ... yield %z }
    %w = %w0 + dot(%hs, %zs)

A product that states its order stays where it is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tessera.graph.ops.arithmetic import Add
from tessera.graph.ops.contract import DotGeneral
from tessera.graph.ops.rearrange import Transpose
from tessera.graph.ops.scan import Scan
from tessera.ir.core import Block, Op, Value
from tessera.ir.walk import expand_ops, inline, uses
from tessera.schedule.cost import tensor
from tessera.schedule.recurrence import is_recurrence


def products_behind(block: Block) -> Block:
    """The block with such sums behind its scans; regions are left alone."""
    return expand_ops(block, lambda op: isinstance(op, Scan), _expand)


def _expand(op: Op, code: list[Op]) -> Sequence[Value] | None:
    """The scan without its sums, and these; None where it has none."""
    assert isinstance(op, Scan)
    found = _sums(op)
    if not found or is_recurrence(op):
        return None
    body = op.body
    given, carry, slices = op.split(body.args[1:])
    stay = [k for k in range(len(carry)) if k not in found]
    gone = {one for dot in found.values() for one in (dot, _adds(body, dot))}
    kept = [one for one in body.ops if one not in gone]
    outs = [*[body.outputs[k] for k in stay], *body.outputs[len(carry) :]]
    slim = Block([body.args[0], *given, *[carry[k] for k in stay], *slices], kept, outs)
    args, inner = [Value(v.type) for v in slim.args], list[Op]()
    outputs = inline(slim, args, inner.append)
    attrs = {name: value for name, value in op.attrs.items() if name != "body"}
    init = [op.init[k] for k in stay]
    new = Scan(op.consts, init, op.xs, **attrs, body=Block(args, inner, outputs), loc=op.loc)
    code.append(new)
    results = dict(zip(stay, new.results, strict=False))
    stacked = new.results[len(stay) :]
    stacks = dict(zip(body.outputs[len(carry) :], stacked, strict=True))
    stacks.update(zip(slices, op.xs, strict=True))
    for k, dot in found.items():
        whole = _of_stacks(dot, stacks, code)
        code.append(Add(op.init[k], whole, loc=op.loc))
        results[k] = code[-1].result
    return [*[results[k] for k in range(len(carry))], *stacked]


def _sums(op: Scan) -> dict[int, DotGeneral]:
    """By the number of what is carried, the product that each step adds to it."""
    body, count = op.body, uses(op.body)
    _, carry, slices = op.split(body.args[1:])
    if not isinstance(op.length, int) or op.length < 2:
        return {}
    stacked = {*slices, *body.outputs[len(carry) :]}
    found: dict[int, DotGeneral] = {}
    for k, arg in enumerate(carry):
        one = body.outputs[k].op
        if not isinstance(one, Add) or arg not in one.operands:
            continue
        term = one.operands[1] if one.operands[0] is arg else one.operands[0]
        dot = term.op
        once = count[arg] == count[term] == count[one.result] == 1
        if once and isinstance(dot, DotGeneral) and dot in body.ops and _is_plain(dot):
            sources = [v if v in stacked else _source(v) for v in dot.operands]
            if tensor(arg).shape == tensor(term).shape and stacked.issuperset(sources):
                found[k] = dot
    return found


def _source(value: Value) -> Value:
    """What a value is, but for the order of its axes."""
    return value.op.x if isinstance(value.op, Transpose) else value


def _is_plain(dot: DotGeneral) -> bool:
    """Whether a product is of real numbers in the dtype in which they are added, in any order."""
    dtype = tensor(dot.result).dtype
    return dot.order is None and dtype.is_float and dot.accumulate is dtype


def _adds(body: Block, dot: DotGeneral) -> Op:
    """The addition of a product."""
    return next(one for one in body.ops if dot.result in one.operands)


def _of_stacks(dot: DotGeneral, stacks: Mapping[Value, Value], code: list[Op]) -> Value:
    """The product of the stacks of what a product is of."""
    sides: list[Value] = []
    for value in (dot.lhs, dot.rhs):
        side = stacks.get(value)
        if side is None:
            assert isinstance(value.op, Transpose)
            perm = (0, *[axis + 1 for axis in value.op.perm])
            code.append(Transpose(stacks[value.op.x], perm, loc=dot.loc))
            side = code[-1].result
        sides.append(side)
    left, right = [tuple([axis + 1 for axis in axes]) for axes in dot.contract]
    batch = tuple([tuple([axis + 1 for axis in axes]) for axes in dot.batch_axes])
    attrs = {**dot.attrs, "contract": ((0, *left), (0, *right)), "batch_axes": batch}
    code.append(DotGeneral(*sides, **attrs, loc=dot.loc))
    return code[-1].result
