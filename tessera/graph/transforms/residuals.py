"""What the linear part of a function needs of its forward part, less what it can have for nothing.

Windows of an image are many times as large as the image, and cost nothing where code reads them by
their index map; as a result of the forward part they would be written down. So would what is
repeated, and a copy of an argument.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

from tessera.graph.ops.base import Rearrange
from tessera.graph.ops.generate import Constant
from tessera.graph.transforms.evaluate import evaluate, trace_function
from tessera.ir.core import Block, Func, Op, Value
from tessera.ir.rewrite import eliminate_dead
from tessera.ir.types import TensorType


def smaller(forward: Func, linear: Func, count: int) -> tuple[Func, Func, list[int | Value]]:
    """The two parts with smaller residuals.

    Args:
        forward: gives results, then residuals.
        linear: takes residuals, then tangents.
        count: how many residuals there are.

    Returns:
        The two parts, and where residuals are: the number of an argument of the forward part, or
        one of its outputs behind the results.
    """
    split = len(forward.outputs) - count
    residuals = forward.outputs[split:]
    moves = [op for op in forward.ops if isinstance(op, (Rearrange, Constant))]
    made: dict[Value, Op] = {op.result: op for op in moves}
    places = {v: k for k, v in enumerate(forward.args)}
    moved: dict[Op, None] = {}
    leaves: dict[Value, None] = {}
    for value in residuals:
        ops, found = _chain(value, made)
        is_less = sum(_size(v) for v in found) < _size(value) or found.keys() <= places.keys()
        if is_less and all(_size(v) >= 0 for v in (value, *found)):
            moved |= ops
            leaves |= found
        else:
            leaves[value] = None
    if not moved and not places.keys() & leaves.keys():
        return forward, linear, [*residuals]

    rest = [op for op in moved if op.result not in leaves]
    moving = Func("residuals", Block([*leaves], rest, residuals))

    def run(*given: Any) -> Sequence[Any]:
        needed = evaluate(moving, given[: len(leaves)])
        return evaluate(linear, [*needed, *given[len(leaves) :]])

    types = [_type(v) for v in (*leaves, *linear.args[count:])]
    again, captured = trace_function(run, types, "linearize", linear.name)
    if captured:
        return forward, linear, [*residuals]
    kept = [v for v in leaves if v not in places]
    body = Block(forward.args, forward.ops, (*forward.outputs[:split], *kept))
    return (
        forward.with_body(eliminate_dead(body)),
        again.with_body(eliminate_dead(again.body)),
        [places.get(v, v) for v in leaves],
    )


def _chain(value: Value, made: dict[Value, Op]) -> tuple[dict[Op, None], dict[Value, None]]:
    """The ops that move elements, in order, by which a value comes about, and what of."""
    ops: dict[Op, None] = {}
    leaves: dict[Value, None] = {}

    def visit(v: Value) -> None:
        op = made.get(v)
        if op is None:
            leaves[v] = None
        elif op not in ops:
            for operand in op.operands:
                visit(operand)
            ops[op] = None

    visit(value)
    return ops, leaves


def _type(value: Value) -> TensorType:
    assert isinstance(value.type, TensorType)
    return value.type


def _size(value: Value) -> int:
    """Elements; -1 where nobody knows."""
    sizes = [n for n in _type(value).shape if isinstance(n, int)]
    return prod(sizes) if len(sizes) == len(_type(value).shape) else -1
