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


def finder(
    s: Interpreter, op: t.Load | t.Store, shape: tuple[int, ...]
) -> Callable[[View], Array | None]:
    """What finds the elements of a box in memory, from its first one to the end of the box, or of
    the view in dims where that is checked; None where others are accessed, or not all of these."""
    values, coords, check = s.values, op.coords, op.check

    def find(view: View) -> Array | None:
        at, low, high = view.offset, 0, 0
        counts: list[int] = []
        for k, (coord, count) in enumerate(zip(coords, shape, strict=True)):
            first, size, stride = values[coord], view.sizes[k], view.strides[k]
            if first < 0 or first >= size:
                return None
            if first + count > size:
                if k not in check:
                    return None
                count = size - first
            counts.append(count)
            at += first * stride
            if stride < 0:
                low += (count - 1) * stride
            else:
                high += (count - 1) * stride
        memory, data = view.memory, view.memory.data
        if at + low < 0 or at + high >= data.size:
            return None
        item = data.itemsize
        strides = tuple([stride * item for stride in view.strides])
        return np.ndarray(tuple(counts), data.dtype, memory.raw, at * item, strides)

    return find if not op.mask and 0 not in shape else lambda view: None


def places(part: Array) -> tuple[slice, ...]:
    """Where the elements that were found are in their box."""
    return tuple([slice(0, count) for count in part.shape])
