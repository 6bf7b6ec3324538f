"""Which values of a program may be infinite because the program means them to be.

An infinity that is written down, as -inf for what is masked out, goes where it is read, chosen and
computed with; what ends its way is known for exponentials of -inf, functions with limits, and
`select(isfinite(x), x, y)`. Arguments count as finite: an infinity in one looks like one that was
made.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from tessera.ir.core import Block, Func, Op, Value
from tessera.schedule import loop_ops, ops
from tessera.schedule.sort_ops import SORTS

Signs = frozenset[int]
"""Which infinities: -1, 1, both or none."""

NONE: Signs = frozenset()
BOTH: Signs = frozenset((-1, 1))

_SAME = frozenset(("add", "select", "min", "max", "floor", "ceil", "trunc", "round"))
_BOUNDED = frozenset(("tanh", "sigmoid", "erf", "erfc", "atan", "sign"))
_POWERS = frozenset(("exp", "exp2", "expm1"))


class Infinities:
    """The infinities of a program.

    Args:
        func: the program, with or without places.
    """

    def __init__(self, func: Func) -> None:
        self._signs: dict[Value, Signs] = {}
        self._program(func.body)

    def has(self, value: Value) -> bool:
        """Whether a value may be an infinity that is meant."""
        return bool(self._signs.get(value))

    def _get(self, values: Iterable[Value]) -> Signs:
        return NONE.union(*[self._signs.get(v, NONE) for v in values])

    def _add(self, value: Value, signs: Signs) -> bool:
        """Notes infinities of a value; whether they are new."""
        before = self._signs.get(value, NONE)
        if signs <= before:
            return False
        self._signs[value] = before | signs
        return True

    # --- programs -----------------------------------------------------------------------------

    def _program(self, block: Block) -> None:
        for op in block.ops:
            match op:
                case ops.Kernel():
                    outer = (*op.inputs, *op.results)
                    pairs = list(zip(op.body.args, outer, strict=True))
                    for arg, value in pairs:
                        self._add(arg, self._get([value]))
                    self._kernel(op.body)
                    for arg, value in pairs[len(op.inputs) :]:
                        self._add(value, self._get([arg]))
                case ops.While():
                    self._loop(op)
                case ops.Cond():
                    for region in op.regions:
                        self._program(region)
                        for value, found in zip(op.results, region.outputs, strict=True):
                            self._add(value, self._get([found]))
                case _:
                    found = self._get(op.operands)
                    for value in op.results:
                        self._add(value, BOTH if found else NONE)

    def _loop(self, op: ops.While) -> None:
        carried = list(zip(op.init, op.cond.args, op.body.args, op.results, strict=True))
        for values in carried:
            self._carry(values, self._get(values[:1]))
        is_new = True
        while is_new:  # infinities of a value only become more, and there are two at most
            self._program(op.cond)
            self._program(op.body)
            after = [self._get([v]) for v in op.body.outputs]
            new = [self._carry(v, found) for v, found in zip(carried, after, strict=True)]
            is_new = any(new)

    def _carry(self, values: Iterable[Value], signs: Signs) -> bool:
        _, *inner = values
        return any([self._add(v, signs) for v in inner])

    # --- nests --------------------------------------------------------------------------------

    def _kernel(self, block: Block) -> None:
        for op in block.ops:
            if isinstance(op, (ops.Sort, *SORTS)):
                found = self._get(op.operands)
                for value in op.operands:
                    self._add(value, found)
            elif isinstance(op, ops.Nest):
                self._nest(op.body)
            else:
                for region in op.regions:
                    self._kernel(region)

    def _nest(self, block: Block) -> None:
        for op in block.ops:
            if isinstance(op, loop_ops.LOOPS):
                self._steps(op)
                continue
            for region in op.regions:
                self._nest(region)
            if isinstance(op, ops.Store):
                self._add(op.buf, self._get([op.value]))
            elif isinstance(op, ops.Scan):
                self._add(op.buf, self._get(op.body.outputs))
            for value in op.results:
                self._add(value, self._result(op))

    def _steps(self, op: loop_ops.Recur | loop_ops.Repeat) -> None:
        is_new = True
        signs = [self._get([v]) for v in op.init]
        while is_new:
            new: list[bool] = []
            for region in op.regions:
                new += [self._add(v, s) for v, s in zip(region.args, signs, strict=True)]
                self._nest(region)
            signs = [self._get([v]) for v in op.body.outputs]
            new += [self._add(v, s) for v, s in zip(op.results, signs, strict=True)]
            is_new = any(new)
        for value, start in zip(op.results, op.init, strict=True):
            self._add(value, self._get([start]))

    def _result(self, op: Op) -> Signs:
        """The infinities of what an op gives."""
        match op:
            case ops.Const():
                return _signs_of(op.value)
            case ops.Load():
                return self._get([op.buf]) | _signs_of(op.fill)
            case ops.Map():
                return self._map(op)
            case ops.Reduce():
                return self._get(op.body.outputs)
            case ops.Contract():
                return BOTH if self._get(op.body.outputs) else NONE
            case _:
                return self._get(op.operands)

    def _map(self, op: ops.Map) -> Signs:
        name = op.fn.name
        if name in _BOUNDED:
            return NONE
        if name == "select":
            test, x, y = op.args
            is_tested = isinstance(test.op, ops.Map) and test.op.fn.name == "isfinite"
            if is_tested and test.op is not None and test.op.operands == (x,):
                return self._get([y])
            return self._get([x, y])
        found = self._get(op.args)
        if name in _POWERS:
            return found - {-1}
        if name in _SAME:
            return found
        if name in ("neg", "sub"):
            *kept, turned = op.args
            return self._get(kept) | frozenset([-s for s in self._get([turned])])
        return BOTH if found else NONE


def _signs_of(value: bool | int | float | complex) -> Signs:
    """The infinities that a constant has."""
    if isinstance(value, complex):
        return BOTH if math.isinf(value.real) or math.isinf(value.imag) else NONE
    if isinstance(value, float) and math.isinf(value):
        return frozenset((1 if value > 0 else -1,))
    return NONE
