"""What registers for matrices do, in NumPy."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from tessera.dtypes import DType
from tessera.ir.core import Op, Value
from tessera.ir.verify import fail
from tessera.target.panel_ops import BeginPanels, DotPanels, EndPanels
from tessera.tile.interp_panels import dot_panels, places_of
from tessera.tile.panel_ops import sum_dtype

if TYPE_CHECKING:
    import numpy.typing as npt

    from tessera.target.interp import Interpreter, Pointer

    Array = npt.NDArray[Any]


def _begin_panels(s: Interpreter, op: BeginPanels) -> None:
    if s.panels is not None:
        raise fail(op, "the registers are set up already")
    s.panels = op.rows, op.bytes


def _end_panels(s: Interpreter, op: EndPanels) -> None:
    if s.panels is None:
        raise fail(op, "the registers are not set up")
    s.panels = None


def _dot_panels(s: Interpreter, op: DotPanels) -> None:
    if s.panels != op.set_up:
        raise fail(op, f"the registers are set up for {s.panels}, not {op.set_up}")
    first, end = s.values[op.first], s.values[op.end]
    steps, size = max(end - first, 0), op.columns * op.depth
    at = first * op.step + places_of((steps, op.rows, op.depth), op.step, op.row)
    elements = _elements(s, op, op.left, int(at.max()) + 1 if at.size else 0, op.a)
    right = _elements(s, op, op.right, (first + steps) * size, op.b)[first * size :]
    dtype = sum_dtype(op.a, op.b)
    assert dtype is not None
    sums = dot_panels(elements[at], right, op.columns, dtype)
    if first:
        sums += _elements(s, op, op.start, sums.size, dtype).reshape(sums.shape)
    at = places_of((1, op.rows, op.columns), 0, op.width)[0]
    _elements(s, op, op.out, int(at.max()) + 1, dtype)[at] = sums


def _elements(s: Interpreter, op: Op, value: Value, count: int, dtype: DType) -> Array:
    ptr: Pointer = s.values[value]
    end = ptr.offset + count * dtype.itemsize
    if ptr.offset < 0 or end > ptr.data.size:
        raise fail(op, f"bytes {ptr.offset} to {end} of {ptr.name}, which has {ptr.data.size}")
    return ptr.data[ptr.offset : end].view(dtype.np)


RULES: Mapping[type[Op], Callable[..., None]] = {
    BeginPanels: _begin_panels,
    EndPanels: _end_panels,
    DotPanels: _dot_panels,
}
