"""What the linear part of a function needs of its forward part, less what it can have for nothing.

Windows of an image are many times as large as the image, and cost nothing where code reads them by
their index map; as a result of the forward part they would be written down. So would what is
repeated, and a copy of an argument. Scores of attention are as much larger than queries and keys:
they are computed once more, of these and of what belongs to whole rows, block by block where they
are used.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from math import prod
from typing import Any

from tessera.graph.ops.base import Family, Rearrange
from tessera.graph.ops.contract import DotGeneral
from tessera.graph.ops.generate import Constant, Iota
from tessera.graph.transforms.evaluate import evaluate, trace_function
from tessera.ir.core import Block, Func, Op, Value, tensor_type
from tessera.ir.rewrite import eliminate_dead

LARGER = 2
"""So many times the elements of what it is made of has what is computed once more."""

DEEPEST = 128
"""Elements of each operand that are multiplied for one of a product that is."""

LONGEST = 64
"""Ops of what is computed once more, at most."""

_MOVES = (Rearrange, Constant)


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
    cheap = [op for op in forward.ops if isinstance(op, _MOVES) or _is_cheap(op)]
    made: dict[Value, Op] = {op.result: op for op in cheap}
    places = {v: k for k, v in enumerate(forward.args)}
    moved: dict[Op, None] = {}
    leaves: dict[Value, None] = {}
    # Of the small ones that stay, larger ones can be made.
    for value in sorted(residuals, key=_size):
        ops, found = _chain(value, made, leaves)
        size = sum(_size(v) for v in found)
        is_less = size < _size(value) or found.keys() <= places.keys()
        if not all(isinstance(op, _MOVES) for op in ops):
            is_less = size * LARGER <= _size(value)
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

    types = [tensor_type(v) for v in (*leaves, *linear.args[count:])]
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


def _is_cheap(op: Op) -> bool:
    """Whether an op computes each element of a few others."""
    if isinstance(op, DotGeneral):
        lhs = tensor_type(op.operands[0]).shape
        sizes = [n for k in op.contract[0] if isinstance(n := lhs[k], int)]
        return len(sizes) == len(op.contract[0]) and prod(sizes) <= DEEPEST
    return isinstance(op, Iota) or getattr(op, "family", None) is Family.ELEMENTWISE


def _chain(
    value: Value, made: dict[Value, Op], known: Collection[Value]
) -> tuple[dict[Op, None], dict[Value, None]]:
    """The ops, in order, by which a value comes about, and what of, or of what is known."""
    seen: set[Op] = set()
    ops: dict[Op, None] = {}
    leaves: dict[Value, None] = {}

    def visit(v: Value) -> None:
        op = made.get(v)
        if op is None or v in known:
            leaves[v] = None
        elif op not in seen and len(seen) < LONGEST:
            seen.add(op)
            for operand in op.operands:
                visit(operand)
            ops[op] = None

    visit(value)
    return ({}, {value: None}) if len(seen) == LONGEST else (ops, leaves)


def _size(value: Value) -> int:
    """Elements; -1 where nobody knows."""
    sizes = [n for n in tensor_type(value).shape if isinstance(n, int)]
    return prod(sizes) if len(sizes) == len(tensor_type(value).shape) else -1
