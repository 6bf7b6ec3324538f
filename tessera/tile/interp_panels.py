"""What products of packed panels are, in NumPy."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from tessera.dtypes import DType, dtype_of
from tessera.ir.convert import cast_array
from tessera.ir.core import Op, Value
from tessera.ir.verify import fail
from tessera.tile.panel_ops import GROUP_BYTES, DotPanels

if TYPE_CHECKING:
    import numpy.typing as npt

    from tessera.tile.interp import Interpreter, Memory

    Array = npt.NDArray[Any]


def places_of(shape: tuple[int, int, int], step: int, row: int) -> Array:
    """Where elements of the first panel are, by step, row and place along the depth.

    Args:
        shape: steps, rows and products that a step adds.
        step: elements from one step to the next.
        row: elements from one row to the next.
    """
    along = [np.arange(n) * by for n, by in zip(shape, (step, row, 1), strict=True)]
    return np.add.outer(np.add.outer(along[0], along[1]), along[2])


def dot_panels(left: Array, right: Array, columns: int, dtype: DType) -> Array:
    """The sums of two panels.

    Args:
        left: the first one, by step, row and place along the depth.
        right: the elements of the second one.
        columns: of the second one.
        dtype: of the sums.
    """
    steps, rows, depth = left.shape
    group = GROUP_BYTES // left.itemsize
    a = cast_array(left, dtype)
    b = cast_array(right, dtype).reshape(steps, depth // group, columns, group)
    total = np.zeros((rows, columns), dtype.np)
    for x, y in zip(a, b, strict=True):
        total += x @ y.swapaxes(1, 2).reshape(depth, columns)
    return total


def _dot_panels(s: Interpreter, op: DotPanels) -> None:
    places = (op.first, op.end, op.left_at, op.right_at, op.start_at, op.out_at)
    first, end, left_at, right_at, start_at, out_at = s.ints(places)
    steps, size = max(end - first, 0), op.columns * op.depth
    at = left_at + first * op.step + places_of((steps, op.rows, op.depth), op.step, op.row)
    left = _elements(s, op, op.left, at)
    right = _elements(s, op, op.right, right_at + first * size + np.arange(steps * size))
    out: Memory = s.values[op.out]
    sums = dot_panels(left, right, op.columns, dtype_of(out.data.dtype))
    if first:
        start = start_at + np.arange(sums.size).reshape(sums.shape)
        sums += _elements(s, op, op.start, start)
    at = out_at + places_of((1, op.rows, op.columns), 0, op.width)[0]
    _check(op, out, at)
    out.data[at] = sums


def _elements(s: Interpreter, op: Op, value: Value, at: Array) -> Array:
    memory: Memory = s.values[value]
    _check(op, memory, at)
    return memory.data[at]


def _check(op: Op, memory: Memory, at: Array) -> None:
    if at.size and not (at.min() >= 0 and at.max() < memory.data.size):
        where = f"elements {at.min()} to {at.max()} of {memory.name}"
        raise fail(op, f"{where}, which has {memory.data.size}")


RULES: Mapping[type[Op], Callable[..., None]] = {DotPanels: _dot_panels}
