"""Large operands that lie in memory in another order than row-major, computed as they lie.

`2 * a.T` reads the elements of `a` one after the other and gives the transpose of `2 * a`, and a
sum of `a.T` along its rows is one of `a` along its columns: nothing is turned. Where elements are
to be in row-major order a compiled transpose puts them there, in a fifth of NumPy's time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tessera.graph.array import Array, view_of
from tessera.graph.ops import cumulative, reduce
from tessera.ir.core import Op
from tessera.runtime.dispatch.direct import MOST_COPIED

_SHORTEST = 8
"""A last dim in memory that is shorter fills no vectors: NumPy turns it as fast."""


def order_of(data: Any) -> tuple[int, ...] | None:
    """The dims of a large array from the outermost in memory to the innermost, if its elements lie
    one behind the other in that order, which is not row-major; else None."""
    if type(data) is not np.ndarray or data.size <= MOST_COPIED or data.flags.c_contiguous:
        return None
    strides = data.strides
    # Dims of one element have any stride.
    order = sorted(range(data.ndim), key=lambda k: (-strides[k], data.shape[k] != 1))
    turned = data.transpose(order)
    return tuple(order) if turned.flags.c_contiguous and turned.flags.aligned else None


def inverse(order: Sequence[int]) -> tuple[int, ...]:
    """The order in which dims go back to where they were."""
    return tuple(sorted(range(len(order)), key=order.__getitem__))


def turned(x: Array, order: Sequence[int]) -> Array:
    """The array with its dims in another order, as a view."""
    storage: Any = x.storage
    data = storage.transpose(order)
    return Array(data, x.type.with_shape(data.shape)) if x.weak else view_of(data)


def alike(operands: Sequence[Array]) -> tuple[int, ...] | None:
    """The order of all operands of an elementwise op but numbers, if they have the same."""
    found = None
    for x in operands:
        if not x.is_splat:
            order = order_of(x.storage)
            if order is None or (found is not None and order != found):
                return None
            found = order
    return found


def along_axes(
    cls: type[Op], x: Array, attrs: dict[str, Any]
) -> tuple[Array, dict[str, Any], tuple[int, ...]] | None:
    """An op along axes on an operand as it lies: the operand, the attributes, and the order in
    which the dims of the result are to be put; None where that is not known.

    Args:
        cls: the op.
        x: its only operand.
        attrs: its attributes.
    """
    is_reduce = issubclass(cls, reduce.Reduce)
    is_cumulative = issubclass(cls, cumulative.Cumulative)
    if not (is_reduce or is_cumulative or issubclass(cls, reduce.ArgReduce)):
        return None
    # An order of combining that was asked for is one of the axes as they are.
    order = None if attrs.get("order") is not None else order_of(x.storage)
    if order is None:
        return None
    places = inverse(order)
    moved = dict(attrs)
    gone: tuple[int, ...] = ()
    if is_reduce:
        gone = attrs["axes"]
        moved["axes"] = tuple(sorted([places[k] for k in gone]))
    else:
        axis: int = attrs["axis"]
        gone = () if is_cumulative else (axis,)
        moved["axis"] = places[axis]
    return turned(x, order), moved, inverse([k for k in order if k not in gone])


def merged(data: np.ndarray, order: Sequence[int]) -> tuple[np.ndarray, tuple[int, ...]]:
    """An array as it lies, whose neighbouring dims that stay together are one, and the order that
    makes it row-major in the dims of `data`."""
    runs: list[list[int]] = []
    for k in order:
        if data.shape[k] == 1:
            continue
        if runs and _follows(data.shape, runs[-1][-1], k):
            runs[-1].append(k)
        else:
            runs.append([k])
    sizes = [int(np.prod([data.shape[k] for k in run], dtype=np.int64)) for run in runs]
    firsts = [run[0] for run in runs]
    return data.transpose(order).reshape(sizes), tuple(
        sorted(range(len(runs)), key=firsts.__getitem__)
    )


def _follows(shape: Sequence[int], a: int, b: int) -> bool:
    """Whether nothing is between two dims."""
    return a < b and all([shape[k] == 1 for k in range(a + 1, b)])


def is_worth_turning(base: np.ndarray) -> bool:
    """Whether a compiled transpose of what `merged` gives is faster than NumPy's."""
    return base.shape[-1] >= _SHORTEST and base.dtype.itemsize <= 8
