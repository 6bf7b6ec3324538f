"""What the interpreter of Tile programs finds in memory by strides: boxes of elements that all lie
inside of their view, or but for the ends of checked dims. All others it finds one by one."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt

from tessera.tile import ops as t

if TYPE_CHECKING:
    from tessera.tile.interp import Interpreter, View

Array: TypeAlias = "npt.NDArray[Any]"


def window(
    s: Interpreter, op: t.Load | t.Store, shape: tuple[int, ...]
) -> Callable[[View], Array | None]:
    """What finds the elements of a box in memory, if all are accessed and none lies outside."""
    values, coords = s.values, op.coords
    ends = [size - 1 for size in shape]

    def find(view: View) -> Array | None:
        at, low, high = view.offset, 0, 0
        for coord, end, size, stride in zip(coords, ends, view.sizes, view.strides, strict=True):
            first = values[coord]
            if first < 0 or first + end >= size:
                return None
            at += first * stride
            if stride < 0:
                low += end * stride
            else:
                high += end * stride
        return _in_memory(view, at, low, high, shape)

    return find if not op.mask and 0 not in shape else lambda view: None


def clipped(
    s: Interpreter, op: t.Load | t.Store, shape: tuple[int, ...]
) -> Callable[[View], tuple[Array, tuple[slice, ...]] | None]:
    """What finds the elements of a box that ends beyond its view, in dims where that is checked:
    those in memory, and where in the box they are."""
    values, coords, check = s.values, op.coords, op.check

    def find(view: View) -> tuple[Array, tuple[slice, ...]] | None:
        at, low, high = view.offset, 0, 0
        inside: list[int] = []
        for k, (coord, count) in enumerate(zip(coords, shape, strict=True)):
            first, size, stride = values[coord], view.sizes[k], view.strides[k]
            if first < 0 or first >= size or (first + count > size and k not in check):
                return None
            end = min(count, size - first) - 1
            inside.append(end + 1)
            at += first * stride
            if stride < 0:
                low += end * stride
            else:
                high += end * stride
        found = _in_memory(view, at, low, high, tuple(inside))
        return None if found is None else (found, tuple([slice(0, count) for count in inside]))

    return find if check and not op.mask and 0 not in shape else lambda view: None


def _in_memory(
    view: View, at: int, low: int, high: int, shape: tuple[int, ...]
) -> Array | None:
    """So many elements from a place on, by the strides of a view, unless some lie outside of its
    memory: the first of them so far below that place, the last one so far above."""
    memory, data = view.memory, view.memory.data
    if at + low < 0 or at + high >= data.size:
        return None
    item = data.itemsize
    strides = tuple([stride * item for stride in view.strides])
    return np.ndarray(shape, data.dtype, memory.raw, at * item, strides)
