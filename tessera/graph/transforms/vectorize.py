"""`vmap`: a Graph on examples becomes a Graph on batches, by the ops' `batch` rules.

The batch axis may have a name. Collectives over that name are resolved then, also in regions: what
rules batch on their way is batched over the same axis.
"""

from __future__ import annotations

import threading
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import Any

from tessera.graph.ops.base import Collective, GraphOp
from tessera.graph.transforms.evaluate import argument_types, bind_op, trace_function
from tessera.ir.core import Func, Op, Value
from tessera.ir.intexpr import Dim
from tessera.ir.loc import ORIGIN
from tessera.ir.types import TensorType


class _State(threading.local):
    def __init__(self) -> None:
        self.axis_name: str | None = None


_STATE = _State()


@contextmanager
def named_axis(name: str | None) -> Generator[None]:
    """Batching in this block is over the axis of a name, or of none."""
    before = _STATE.axis_name
    _STATE.axis_name = name
    try:
        yield
    finally:
        _STATE.axis_name = before


def _is_over(op: Op, name: str) -> bool:
    """Whether an op is a collective over an axis, or has one in its regions."""
    if isinstance(op, Collective):
        return op.attrs["axis_name"] == name
    return any(_is_over(inner, name) for block in op.regions for inner in block.ops)


def vmap_values(
    func: Func, args: Sequence[Any], axes: Sequence[int | None], size: Dim
) -> tuple[list[Any], list[int | None]]:
    """Outputs of a Graph over a batch, and the batch axis of each (None: the same for every
    example).
    """
    env: dict[Value, Any] = dict(zip(func.args, args, strict=True))
    axis_of: dict[Value, int | None] = dict(zip(func.args, axes, strict=True))
    name = _STATE.axis_name
    outer = ORIGIN.loc
    try:
        for op in func.ops:
            assert isinstance(op, GraphOp)
            operands = [env[v] for v in op.operands]
            batch_axes = [axis_of.get(v) for v in op.operands]
            is_over = name is not None and _is_over(op, name)
            ORIGIN.loc = op.loc or outer
            if is_over and isinstance(op, Collective):
                outs, out_axes = op.resolve(operands, batch_axes, size)
            elif not is_over and all([a is None for a in batch_axes]):
                outs = bind_op(op, operands)
                out_axes = [None] * len(outs)
            else:
                outs, out_axes = op.batch(operands, batch_axes, size)
            env.update(zip(op.results, outs, strict=True))
            axis_of.update(zip(op.results, out_axes, strict=True))
    finally:
        ORIGIN.loc = outer
    return [env[v] for v in func.outputs], [axis_of.get(v) for v in func.outputs]


def batched_type(type: TensorType, axis: int | None, size: Dim) -> TensorType:
    """The type with a batch axis put in."""
    if axis is None:
        return type
    return type.with_shape((*type.shape[:axis], size, *type.shape[axis:])).strong()


def vmap(
    func: Func, axes: Sequence[int | None], size: Dim
) -> tuple[Func, list[int | None], list[Any]]:
    """The batched Graph, the batch axes of its outputs, and the captured values (its leading
    arguments).
    """
    types = [batched_type(t, a, size) for t, a in zip(argument_types(func), axes, strict=True)]
    found: list[int | None] = []

    def run(*args: Any) -> list[Any]:
        outs, out_axes = vmap_values(func, args, axes, size)
        found[:] = out_axes
        return outs

    graph, captured = trace_function(run, types, "vmap", func.name)
    return graph, found, captured
