"""What the interpreters of Tile and Target programs share: a table of values, and blocks that run.

A loop's body runs thousands of times, so what there is to know about an op is found out once: for
each op of a block there is a function without arguments that runs it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, TypeAlias

import numpy.typing as npt

from tessera.dtypes import dtype_of
from tessera.errors import VerifyError
from tessera.ir.core import Block, Op, Value
from tessera.ir.scalar import ScalarFn

Array: TypeAlias = "npt.NDArray[Any]"
Step = Callable[[], None]
"""Runs one op."""


class BlockInterpreter:
    """Runs blocks.

    Attributes:
        values: what has been computed. Values are objects, and nothing recurses, so that one
            table serves all functions.
        level: what messages call the programs.
        rules: run an op of a class, each time.
        plans: make the step of an op of a class, once, where that is much of the work.
    """

    level: str
    rules: Mapping[type[Op], Callable[[Any, Any], None]]
    plans: Mapping[type[Op], Callable[[Any, Any], Step]]

    def __init__(self) -> None:
        self.values: dict[Value, Any] = {}
        self._steps: dict[Block, list[Step]] = {}

    def block(self, block: Block) -> list[Any]:
        """Runs a block, whose arguments are in the table; the values of its outputs."""
        steps = self._steps.get(block)
        if steps is None:
            steps = self._steps[block] = [self._step(op) for op in block.ops]
        for step in steps:
            step()
        values = self.values
        return [values[v] for v in block.outputs]

    def _step(self, op: Op) -> Step:
        if plan := self.plans.get(type(op)):
            return plan(self, op)
        if rule := self.rules.get(type(op)):
            return partial(rule, self, op)
        raise VerifyError(f"{op.name} is no op of {self.level} IR", loc=op.loc)

    def applied(self, op: Op, compute: Callable[..., Any]) -> Step:
        """The step that sets the op's result to a function of its operands."""
        values, result, args = self.values, op.result, op.operands

        def one() -> None:
            values[result] = compute(values[a])

        def two() -> None:
            values[result] = compute(values[a], values[b])

        def some() -> None:
            values[result] = compute(*[values[v] for v in args])

        if len(args) == 1:
            (a,) = args
            return one
        if len(args) == 2:
            a, b = args
            return two
        return some

    def constant(self, op: Op, value: Any) -> Step:
        """The step that sets the op's result to a value, which nobody changes."""
        values, result = self.values, op.result

        def step() -> None:
            values[result] = value

        return step


def tree(fn: ScalarFn, items: Array) -> Array:
    """The first dim combined as `tile.reduce` says; an odd last element waits for the end."""
    rest: list[Array] = []
    dtype = dtype_of(items.dtype)
    combine = fn.on(dtype, dtype)
    while len(items) > 1:
        half = len(items) // 2
        if len(items) % 2:
            rest.append(items[-1])
        items = combine(items[:half], items[half : 2 * half])
    result = items[0]
    for item in reversed(rest):
        result = combine(result, item)
    return result
