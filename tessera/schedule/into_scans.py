"""Elementwise work before a loop of steps that need no other elements, taken into its steps.

    %y = graph.mul(%a, %b)
    %c, %ys = graph.scan([], [%k], [%y]) body(%t, %k, %y) { ... }
    ==>
    %c, %ys = graph.scan([], [%k], [%a, %b]) body(%t, %k, %a, %b) { %y = graph.mul(%a, %b) ... }

The array between them is neither written nor read. What a gradient begins with, such as the
derivative of a mean of squares, is of this kind. Long functions stay outside, where all elements
are computed side by side.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

from tessera.graph.ops.elementwise import Bitcast, Cast, Elementwise
from tessera.graph.ops.generate import Constant, Iota
from tessera.graph.ops.rearrange import Broadcast, Rearrange
from tessera.graph.ops.scan import Scan
from tessera.ir.core import Block, Op, Value
from tessera.ir.rewrite import eliminate_dead
from tessera.ir.types import TensorType
from tessera.ir.walk import expand_ops, inline, uses
from tessera.schedule.cost import tensor
from tessera.schedule.recurrence import is_recurrence

MOST_COST = 6
"""Additions that are computed in the steps, at most."""

MOST_ARRAYS = 3
"""Arrays that are read in place of one."""

LEAST_POINTS = 64
"""Elements of a slice, at least: those of few are computed one by one."""


def into_scans(block: Block) -> Block:
    """The block whose scans do such work themselves; regions are left alone."""
    if not any(isinstance(op, Scan) for op in block.ops):
        return block
    count = uses(block)

    def expand(op: Op, code: list[Op]) -> Sequence[Value] | None:
        assert isinstance(op, Scan)
        found = {k: _Before(v) for k, v in enumerate(op.xs) if count[v] == 1 and _is_work(v)}
        found = {k: before for k, before in found.items() if before.is_worth}
        if not found or not is_recurrence(op):
            return None
        new = _with(op, found)
        if not is_recurrence(new):
            return None
        code.append(new)
        return new.results

    new = expand_ops(block, lambda op: _is_meant(op, count), expand)
    return block if new is block else eliminate_dead(new)


def _is_meant(op: Op, count: Counter[Value]) -> bool:
    """Whether a scan may have such work before it."""
    return isinstance(op, Scan) and any(count[v] == 1 and _is_work(v) for v in op.xs)


def _is_work(value: Value) -> bool:
    """Whether a value is computed element by element, and has several a slice."""
    sizes = [n for n in tensor(value).shape[1:] if isinstance(n, int)]
    is_wide = len(sizes) == tensor(value).rank - 1 and math.prod(sizes) >= LEAST_POINTS
    return is_wide and isinstance(value.op, Elementwise)


class _Before:
    """What computes a value that is scanned.

    Attributes:
        code: the ops, in order.
        arrays: what is read of each step.
        rest: what is the same in all of them.
    """

    def __init__(self, value: Value) -> None:
        self.value = value
        self.code: dict[Op, None] = {}
        self.arrays: dict[Value, None] = {}
        self.rest: dict[Value, None] = {}
        self.cost = 0
        self.is_whole = True
        self.visit(value)

    @property
    def is_worth(self) -> bool:
        """Whether less is read and written if it is computed in the steps."""
        return self.is_whole and len(self.arrays) <= MOST_ARRAYS and self.cost <= MOST_COST

    def visit(self, value: Value) -> None:
        """Finds what a value is computed of."""
        op = value.op
        if op in self.code or not self.is_whole or self.cost > MOST_COST:
            return
        match op:
            case Elementwise():
                self.cost += 1 if isinstance(op, (Cast, Bitcast)) else op.row.cost
                for operand in op.operands:
                    self.visit(operand)
                self.code[op] = None
            case Broadcast() if 0 not in op.dims:
                # A constant belongs to the code of the steps.
                inner = op.x.op
                if isinstance(inner, Constant):
                    self.code[inner] = None
                else:
                    self.rest[op.x] = None
                self.code[op] = None
            case Rearrange() | Constant() | Iota():
                # Nobody stores it, but a scan would have to read it.
                self.is_whole = False
            case _:
                self.arrays[value] = None


def _with(op: Scan, found: dict[int, _Before]) -> Scan:
    """The scan with such work in its steps."""
    body = op.body
    given, carry, slices = op.split(body.args[1:])
    arrays = [v for k, v in enumerate(op.xs) if k not in found]
    rest = dict.fromkeys(v for before in found.values() for v in before.rest)
    read = dict.fromkeys(v for before in found.values() for v in before.arrays)
    env: dict[Value, Value] = {v: Value(v.type) for v in rest}
    env.update({v: Value(_slice(tensor(v))) for v in read})
    code: list[Op] = []
    for before in found.values():
        for one in before.code:
            new = _of_slice(one, [env[v] for v in one.operands])
            env.update(zip(one.results, new.results, strict=True))
            code.append(new)
    kept = [arg for k, arg in enumerate(slices) if k not in found]
    new_args = [body.args[0], *given, *[env[v] for v in rest], *carry, *kept]
    new_args += [env[v] for v in read]
    stand = {slices[k]: env[before.value] for k, before in found.items()}
    outputs = inline(body, [stand.get(arg, arg) for arg in body.args], code.append)
    attrs = {name: value for name, value in op.attrs.items() if name != "body"}
    return Scan(
        (*op.consts, *rest),
        op.init,
        (*arrays, *read),
        **attrs,
        body=Block(new_args, code, outputs),
        loc=op.loc,
    )


def _of_slice(op: Op, operands: Sequence[Value]) -> Op:
    """An op on a slice of what it is of."""
    if not isinstance(op, Broadcast):
        return op.rebuild(operands)
    return op.rebuild(operands, shape=op.shape[1:], dims=tuple([d - 1 for d in op.dims]))


def _slice(type: TensorType) -> TensorType:
    return type.with_shape(type.shape[1:])
