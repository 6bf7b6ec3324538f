"""The NumPy interpreter of Graphs: the definition of what a Graph computes.

Every op computes itself (`GraphOp.evaluate`); here are only names and sizes. Symbolic dims are
bound from the shapes of the inputs, and each op is then rebuilt on types without symbols, so
`evaluate` sees numbers only. Ops with regions call `run_block`, which sees the dims bound so far.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from tessera.dtypes import dtype_of
from tessera.errors import ShapeError, VerifyError
from tessera.graph.array import Array
from tessera.graph.ops.base import GraphOp
from tessera.ir.core import Block, Func, Op, Value, tensor_type
from tessera.ir.intexpr import Dim, IntExpr, Sym, evaluate, symbols
from tessera.ir.loc import ORIGIN
from tessera.ir.opdef import FieldKind
from tessera.ir.types import TensorType

Observer = Callable[[Op, Sequence[np.ndarray], Sequence[np.ndarray]], None]
"""Gets each op as it has been computed, those in regions included, its operands and its results."""


class Around:
    """An op whose regions are being computed.

    Attributes:
        op: the op.
        runs: how often each region has begun.
        inputs: what the latest one is given.
    """

    def __init__(self, op: Op) -> None:
        self.op = op
        self.runs: dict[Block, int] = {}
        self.inputs: Sequence[np.ndarray] = ()


class _State(threading.local):
    def __init__(self) -> None:
        self.dims: dict[str, int] = {}
        self.observer: Observer | None = None
        self.around: list[Around] = []


_STATE = _State()


def run(
    func: Func,
    inputs: Sequence[np.ndarray],
    dims: Mapping[str, int] | None = None,
    observer: Observer | None = None,
) -> list[np.ndarray]:
    """Computes a Graph function.

    Args:
        func: the function.
        inputs: one array per argument, of its dtype.
        dims: values of symbolic dims that no argument has as a dim of its own.
        observer: is told of each op.

    Returns:
        One array per output.

    Raises:
        ShapeError: the inputs' shapes contradict the arguments' types.
    """
    outer = _STATE.dims, _STATE.observer, _STATE.around
    _STATE.dims, _STATE.observer, _STATE.around = dict(dims or {}), observer, []
    try:
        return run_block(func.body, inputs)
    finally:
        _STATE.dims, _STATE.observer, _STATE.around = outer


def around() -> list[Around]:
    """For an observer: the ops in whose regions the op stands that was computed last, outermost
    first."""
    return list(_STATE.around)


def run_block(
    block: Block, inputs: Sequence[np.ndarray], dims: Mapping[str, int] | None = None
) -> list[np.ndarray]:
    """Computes a closed block: the region of an op, or a function's body.

    Args:
        block: the block.
        inputs: one array per argument.
        dims: values of symbols that the op binds for its region.
    """
    outer = _STATE.dims
    _STATE.dims = bind_dims(block.args, inputs, {**outer, **(dims or {})})
    if _STATE.around:
        around = _STATE.around[-1]
        around.runs[block] = around.runs.get(block, 0) + 1
        around.inputs = inputs
    try:
        env: dict[Value, np.ndarray] = dict(zip(block.args, inputs, strict=True))
        for op in block.ops:
            is_around = bool(op.regions) and _STATE.observer is not None
            if is_around:
                _STATE.around.append(Around(op))
            found = evaluate_op(op, [env[v] for v in op.operands])
            if is_around:
                _STATE.around.pop()
            env.update(zip(op.results, found, strict=True))
            if _STATE.observer is not None:
                _STATE.observer(op, [env[v] for v in op.operands], found)
        return [env[v] for v in block.outputs]
    finally:
        _STATE.dims = outer


def sizes(dims: Sequence[Dim]) -> tuple[int, ...]:
    """Dims as numbers, under the dims bound so far."""
    return tuple([d if isinstance(d, int) else int(evaluate(d, _STATE.dims)) for d in dims])


def evaluate_op(op: Op, operands: Sequence[np.ndarray]) -> tuple[np.ndarray, ...]:
    """The results of one op on arrays, under the dims bound so far."""
    fixed = _fix(op, operands, _STATE.dims)
    found: Any = fixed.evaluate(*operands)
    arrays: tuple[np.ndarray, ...] = _as_tuple(found)
    for value, array in zip(fixed.results, arrays, strict=True):
        type = tensor_type(value)
        if dtype_of(array.dtype) is not type.dtype or not _fits(type, array):
            raise VerifyError(
                f"{op.name}: evaluate gave {dtype_of(array.dtype)}{list(array.shape)}, but infer"
                f" says {type}",
                loc=op.loc,
            )
    return arrays


def _as_tuple(found: np.ndarray | Sequence[np.ndarray]) -> tuple[np.ndarray, ...]:
    return (found,) if isinstance(found, np.ndarray) else tuple(found)


def _fits(type: TensorType, array: np.ndarray) -> bool:
    return array.ndim == type.rank and not any(
        isinstance(d, int) and d != n for d, n in zip(type.shape, array.shape, strict=True)
    )


class NumpyEngine:
    """Computes ops outside of traces by their `evaluate`: the slow, exact way."""

    def __init__(self) -> None:
        self.starters: dict[type[Op], Callable[..., Any]] = {}
        self.operators: dict[int, object] = {}

    def evaluate(self, cls: type[Op], operands: Sequence[Any], attrs: dict[str, Any]) -> Any:
        """The results: an `Array`, or a tuple of them for several results."""
        groups: list[Any] = []
        flat: list[np.ndarray] = []
        for item in operands:
            is_one = isinstance(item, Array)
            group: Sequence[Array] = (item,) if is_one else item
            values = tuple([Value(x.type) for x in group])
            groups.append(values[0] if is_one else values)
            flat += [x.host for x in group]
        op = cls(*groups, **attrs)
        results = [
            Array(data, tensor_type(value))
            for data, value in zip(evaluate_op(op, flat), op.results, strict=True)
        ]
        return results[0] if len(results) == 1 else tuple(results)


def bind_dims(
    args: Sequence[Value], inputs: Sequence[np.ndarray], known: Mapping[str, int] | None = None
) -> dict[str, int]:
    """The symbolic dims that the inputs of a function or block determine.

    Args:
        args: its arguments.
        inputs: one array per argument.
        known: dims known before.

    Raises:
        ShapeError: a dim stays unknown, or an input does not fit its argument.
    """
    dims = dict(known or {})
    pairs: list[tuple[IntExpr, int, Value]] = []
    for arg, array in zip(args, inputs, strict=True):
        type = tensor_type(arg)
        if dtype_of(array.dtype) is not type.dtype or array.ndim != type.rank:
            raise ShapeError(
                f"the argument {arg!r} was given {dtype_of(array.dtype)}{list(array.shape)}"
            )
        for dim, size in zip(type.shape, array.shape, strict=True):
            if isinstance(dim, Sym):
                dims.setdefault(dim.name, size)
            if isinstance(dim, IntExpr):
                pairs.append((dim, size, arg))
            elif dim != size:
                raise ShapeError(f"the argument {arg!r} was given the shape {list(array.shape)}")
    for dim, size, arg in pairs:
        missing = symbols(dim) - dims.keys()
        if missing:
            raise ShapeError(
                f"the size of {', '.join(sorted(missing))} in {arg!r} is not known",
                rule="each symbolic dim is a dim of an argument, or is given",
            )
        if evaluate(dim, dims) != size:
            raise ShapeError(
                f"dim {dim} of the argument {arg!r} is {evaluate(dim, dims)}, but the input has"
                f" {size}"
            )
    return dims


def _fix(op: Op, operands: Sequence[np.ndarray], dims: Mapping[str, int]) -> GraphOp:
    """The op on types without symbols; itself where it has none."""
    assert isinstance(op, GraphOp)
    if op.regions:
        return op  # regions are computed op by op, with the dims bound then
    store = op.__dict__
    changed: dict[str, Any] = {}
    for field in op.fields:
        if field.kind is FieldKind.ATTR:
            number = _number(store[field.name], dims)
            if number is not store[field.name]:
                changed[field.name] = number
    if op.regions:
        # Regions keep their symbols, which run_block resolves, so infer cannot run again.
        fixed = object.__new__(type(op))
        fixed.__dict__.update({**store, **changed})
        return fixed
    types = [tensor_type(v) for v in (*op.operands, *op.results)]
    if not changed and not any(isinstance(d, IntExpr) for t in types for d in t.shape):
        return op
    values = [
        Value(tensor_type(v).with_shape(x.shape))
        for v, x in zip(op.operands, operands, strict=True)
    ]
    outer = ORIGIN.loc
    ORIGIN.loc = op.loc or outer
    try:
        fixed = op.rebuild(values, **changed)
    finally:
        ORIGIN.loc = outer
    assert isinstance(fixed, GraphOp)
    return fixed


def _number(value: Any, dims: Mapping[str, int]) -> Any:
    """An attribute with its symbolic dims replaced by their values; itself where it has none."""
    if isinstance(value, IntExpr):
        return evaluate(value, dims)
    if isinstance(value, tuple):
        items: tuple[Any, ...] = value  # pyright: ignore[reportUnknownVariableType]
        found = tuple([_number(item, dims) for item in items])
        return items if all(a is b for a, b in zip(found, items, strict=True)) else found
    return value
