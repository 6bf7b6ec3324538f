"""Evaluating a Graph on arrays or tracers, and tracing a function to a Graph: what every transform
is built from.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tessera.graph.trace import Trace, active, as_tuple, bind
from tessera.ir.core import Func, Op, Value
from tessera.ir.loc import ORIGIN
from tessera.ir.opdef import FieldKind
from tessera.ir.types import TensorType


def bind_op(op: Op, operands: Sequence[Any]) -> tuple[Any, ...]:
    """Applies `op`'s primitive, with its attributes and regions, to other operands (flat); returns
    a tuple.
    """
    items, rest = arguments_of(op, operands)
    return as_tuple(bind(type(op), *items, **rest))


def arguments_of(op: Op, operands: Sequence[Any]) -> tuple[list[Any], dict[str, Any]]:
    """What `bind` takes for an op with other operands (flat): items, and its attributes and
    regions."""
    flat = iter(operands)
    store = op.__dict__
    items: list[Any] = []
    rest: dict[str, Any] = {}
    for field in op.fields:
        if field.kind is FieldKind.OPERAND:
            items.append(next(flat))
        elif field.kind is FieldKind.OPERANDS:
            items.append(tuple([next(flat) for _ in store[field.name]]))
        else:
            rest[field.name] = store[field.name]
    return items, rest


def values_of(func: Func, args: Sequence[Any]) -> dict[Value, Any]:
    """All values of a Graph on arrays or tracers."""
    env: dict[Value, Any] = dict(zip(func.args, args, strict=True))
    outer = ORIGIN.loc
    try:
        for op in func.ops:
            ORIGIN.loc = op.loc or outer
            results = bind_op(op, [env[v] for v in op.operands])
            env.update(zip(op.results, results, strict=True))
    finally:
        ORIGIN.loc = outer
    return env


def evaluate(func: Func, args: Sequence[Any]) -> list[Any]:
    """The outputs of a Graph on arrays or tracers."""
    env = values_of(func, args)
    return [env[v] for v in func.outputs]


def trace_function(
    fn: Callable[..., Sequence[Any]], types: Sequence[TensorType], kind: str, name: str = ""
) -> tuple[Func, list[Any]]:
    """Traces `fn`, a function of tracers to a list of them, abstractly.

    Returns:
        The closed Graph (captured values first, then one argument per type) and the captured
        values.
    """
    with active(Trace(kind, name, staging=True, is_inner=True)) as trace:
        outputs = fn(*[trace.input(t) for t in types])
        return trace.finish(outputs, name)


def argument_types(func: Func) -> list[TensorType]:
    """The types of a Graph's arguments."""
    result: list[TensorType] = []
    for arg in func.args:
        assert isinstance(arg.type, TensorType)
        result.append(arg.type)
    return result
