"""What reductions, scans and products of tiles give, in NumPy."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt

from tessera.dtypes import Kind, dtype_of
from tessera.ir.convert import cast_array
from tessera.ir.core import Op
from tessera.ir.interp import tree
from tessera.ir.order import neighbours
from tessera.ir.scalar import scalar
from tessera.tile import ops as t

if TYPE_CHECKING:
    from tessera.tile.interp import Interpreter

Array: TypeAlias = "npt.NDArray[Any]"


def _reduce(s: Interpreter, op: t.Reduce) -> None:
    x = s.tile(op.x)
    s.define(op, tree(op.fn, np.moveaxis(x, op.axis, 0) if op.axis else x))


def _arg_reduce(s: Interpreter, op: t.ArgReduce) -> None:
    values = np.moveaxis(s.tile(op.x), op.axis, 0)
    indices = np.moveaxis(s.tile(op.index), op.axis, 0)
    dtype = dtype_of(values.dtype)
    is_float = dtype.kind is Kind.FLOAT
    beats = scalar("gt" if op.fn.name == "max" else "lt").on(dtype, dtype)
    equal, differ = scalar("eq").on(dtype, dtype), scalar("ne").on(dtype, dtype)
    best: Array = values[0]
    at: Array = indices[0]
    for value, index in zip(values[1:], indices[1:], strict=True):
        keep: Array = beats(best, value)
        tie: Array = equal(best, value)
        if is_float:
            best_nan, value_nan = differ(best, best), differ(value, value)
            keep, tie = keep | (best_nan & ~value_nan), tie | (best_nan & value_nan)
        keep = keep | (tie & (at < index))
        best, at = np.where(keep, best, value), np.where(keep, at, index)
    for result, found in zip(op.results, (best, at), strict=True):
        s.put(result, found)


def _scan(s: Interpreter, op: t.Scan) -> None:
    items = np.moveaxis(s.tile(op.x), op.axis, 0)
    dtype = dtype_of(items.dtype)
    combine, result = op.fn.on(dtype, dtype), items.copy()
    if op.exact:
        assert op.fn.identity is not None
        step = -1 if op.reverse else 1
        identity = np.full_like(items[0], op.fn.identity(dtype))
        result[::step] = neighbours(combine, [*items[::step]], identity)
        s.define(op, np.moveaxis(result, 0, op.axis))
        return
    order = range(len(items))
    last: Array | None = None
    for k in reversed(order) if op.reverse else order:
        if last is not None:
            result[k] = combine(last, items[k])
        last = result[k]
    s.define(op, np.moveaxis(result, 0, op.axis))


def _flip_bits(s: Interpreter, op: t.FlipBits) -> None:
    items = np.moveaxis(s.tile(op.x), op.axis, 0)
    order = [i ^ op.mask for i in range(len(items))]
    s.define(op, np.moveaxis(items[order], 0, op.axis))


def _dot(s: Interpreter, op: t.Dot) -> None:
    acc = s.tile(op.acc)
    dtype = dtype_of(acc.dtype)
    a, b = cast_array(s.tile(op.a), dtype), cast_array(s.tile(op.b), dtype)
    add, mul = [scalar(name).on_arrays(dtype, dtype) for name in ("add", "mul")]
    for k in range(a.shape[1]):
        acc = add(acc, mul(a[:, k, None], b[None, k]))
    s.define(op, acc)


RULES: Mapping[type[Op], Callable[..., None]] = {
    t.Reduce: _reduce,
    t.ArgReduce: _arg_reduce,
    t.Scan: _scan,
    t.FlipBits: _flip_bits,
    t.Dot: _dot,
}
