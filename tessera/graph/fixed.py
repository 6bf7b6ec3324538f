"""Numbers that a function finds in arrays around it are part of its program.

An array that a jitted function captures is the same in all calls, and is one more argument of the
program. A number had better be known: a division by it may be a product, a shift has its places,
and no call hands it over.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tessera.graph.array import Array
from tessera.graph.ops.generate import Constant, Dense
from tessera.ir.core import Block, Func, Op, Value
from tessera.ir.walk import clone_block


def with_numbers(graph: Func, captured: Sequence[Any]) -> tuple[Func, list[Any]]:
    """A graph whose first inputs are what it captured, with the numbers of the host among those as
    constants; and what is captured still."""
    numbers: dict[Value, Op] = {}
    rest: list[Any] = []
    for x, arg in zip(captured, graph.body.args, strict=False):
        if isinstance(x, Array) and isinstance(x.storage, np.ndarray) and not x.storage.shape:
            op = Constant(Dense.of(x.storage, x.type.dtype), weak=x.type.weak)
            if op.result.type == arg.type:
                numbers[arg] = op
                continue
        rest.append(x)
    if not numbers:
        return graph, rest
    env = {arg: op.result for arg, op in numbers.items()}
    inputs = [arg for arg in graph.body.args if arg not in numbers]
    body = clone_block(Block(inputs, graph.body.ops, graph.body.outputs), env)
    body = Block(body.args, [*numbers.values(), *body.ops], body.outputs)
    return graph.with_body(body), rest
