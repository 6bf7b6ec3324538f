"""Pooling: reductions over windows that move along dims."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from tessera.errors import ShapeError, api_boundary
from tessera.graph.array import ArrayBase
from tessera.graph.calls import fused_for_sizes
from tessera.graph.namespace import elementwise
from tessera.graph.namespace.arguments import (
    ArrayLike,
    as_array,
    as_inexact,
    is_number,
    number,
    to_dtype,
)
from tessera.graph.namespace.windows import (
    Padding,
    Window,
    moved,
    padded,
    parse_ints,
    parse_windows,
)
from tessera.graph.ops import elementwise as ops
from tessera.graph.ops import reduce
from tessera.graph.ops.rearrange import broadcast, concatenate, full, reshape, slice_axis
from tessera.graph.shortcut import composed
from tessera.ir import loc
from tessera.ir.scalar import SCALARS

__all__ = [
    "avg_pool",
    "max_pool",
    "min_pool",
    "reduce_window",
]

_REDUCTIONS: dict[Any, Callable[[Any, Sequence[int]], Any]] = {
    elementwise.add: reduce.sum_,
    elementwise.multiply: reduce.prod_,
    elementwise.maximum: reduce.max_,
    elementwise.minimum: reduce.min_,
    elementwise.logical_and: reduce.all_,
    elementwise.logical_or: reduce.any_,
}


@api_boundary
def reduce_window(
    operand: ArrayLike,
    init_value: ArrayLike,
    computation: Callable[[Any, Any], Any],
    window_dimensions: Sequence[int],
    window_strides: Sequence[int] | None = None,
    padding: Padding = "VALID",
    base_dilation: Sequence[int] | None = None,
    window_dilation: Sequence[int] | None = None,
) -> ArrayBase:
    """The elements of each place of a moving window, combined.

    Args:
        operand: the array.
        init_value: a number, or an array without dims, that the computation leaves things as they
            are with; stands beyond the ends.
        computation: combines two arrays elementwise, in any order: `ts.add`, `ts.maximum`, ..., or
            a function of yours.
        window_dimensions: the lengths of the window, along every dim of the operand.
        window_strides: how far it moves; 1 by default.
        padding: elements beyond the ends, as for `conv_general`.
        base_dilation: how far apart the operand's elements are put; 1 by default.
        window_dilation: how far apart the window's elements are; 1 by default.

    Example:
        >>> import tessera as ts
        >>> ts.reduce_window(ts.arange(5), 0, ts.add, (2,))
        Array([1, 3, 5, 7], dtype=int64)
    """
    name = "reduce_window"
    x = as_array(name, operand)
    sizes = parse_ints(name, "window_dimensions", window_dimensions, x.ndim)
    strides = parse_ints(name, "window_strides", window_strides, x.ndim, 1)
    base = parse_ints(name, "base_dilation", base_dilation, x.ndim, 1)
    apart = parse_ints(name, "window_dilation", window_dilation, x.ndim, 1)
    moves = parse_windows(name, x.shape, sizes, strides, padding, base, apart)
    return _combined(x, _neutral(name, x, init_value), computation, moves)


def _neutral(name: str, x: Any, value: Any) -> Any:
    if is_number(value):
        return to_dtype(value, x.dtype)
    found = as_array(name, value)
    if found.ndim or (found.dtype is not x.dtype and not found.type.weak):
        raise ShapeError(
            f"{name}: init_value is {found.type.strong()}, the operand is {x.type.strong()}",
            loc=loc.current(),
            rule="init_value is a number, or an array without dims of the operand's dtype",
        )
    return to_dtype(found, x.dtype)


def _combined(
    x: Any, neutral: Any, computation: Callable[[Any, Any], Any], moves: Sequence[Window]
) -> Any:
    counts = [w.count(dim) for w, dim in zip(moves, x.shape, strict=True)]
    if any(n == 0 for n in counts):
        return broadcast(neutral, counts, ())
    axes = range(x.ndim)
    x = padded(x, axes, moves, neutral)
    moving = [k for k in axes if moves[k].size > 1 or moves[k].stride > 1]
    if not moving:
        return x
    patches = moved(x, moving, [moves[k] for k in moving])
    last = range(x.ndim, patches.ndim)
    known = _REDUCTIONS.get(computation)
    if known is not None and (known not in (reduce.all_, reduce.any_) or x.dtype.is_bool):
        return known(patches, last)
    size = math.prod([moves[k].size for k in moving])
    return _folded(reshape(patches, (*patches.shape[: x.ndim], size)), computation)


def _folded(x: Any, computation: Callable[[Any, Any], Any]) -> Any:
    """The last dim combined by a user's function, halves with halves."""
    axis = x.ndim - 1
    size = x.shape[axis]
    while size > 1:
        half = size // 2
        parts = [slice_axis(x, axis, k, min(k + half, size)) for k in range(0, size, half)]
        x = concatenate([computation(*parts[:2]), *parts[2:]], axis)
        size = x.shape[axis]
    return reshape(x, x.shape[:-1])


@fused_for_sizes
@composed
@api_boundary
def max_pool(
    x: ArrayLike,
    window_shape: Sequence[int],
    strides: Sequence[int] | None = None,
    padding: Padding = "VALID",
) -> ArrayBase:
    """The largest element of each window; NaN if one is.

    Args:
        x: real numbers, `[N, ..., C]`: windows move along all dims but the first and the last.
        window_shape: the window's lengths along these dims.
        strides: how far it moves; 1 by default.
        padding: elements beyond the ends, as for `conv_general`; they do not count.
    """
    found = as_array("max_pool", x)
    return _pooled("max_pool", found, elementwise.maximum, window_shape, strides, padding)


@fused_for_sizes
@composed
@api_boundary
def min_pool(
    x: ArrayLike,
    window_shape: Sequence[int],
    strides: Sequence[int] | None = None,
    padding: Padding = "VALID",
) -> ArrayBase:
    """The smallest element of each window; NaN if one is. For the arguments see `max_pool`."""
    found = as_array("min_pool", x)
    return _pooled("min_pool", found, elementwise.minimum, window_shape, strides, padding)


@fused_for_sizes
@composed
@api_boundary
def avg_pool(
    x: ArrayLike,
    window_shape: Sequence[int],
    strides: Sequence[int] | None = None,
    padding: Padding = "VALID",
    count_include_pad: bool = True,
) -> ArrayBase:
    """The mean of each window. For the other arguments see `max_pool`.

    Args:
        x: numbers.
        window_shape: the window's lengths.
        strides: how far it moves.
        padding: zeros beyond the ends.
        count_include_pad: whether these count, so that every sum is divided by the same number.
    """
    name = "avg_pool"
    found = as_inexact(name, x)
    exact = ops.cast(found, reduce.default_accumulator(found.dtype))
    total = _pooled(name, exact, elementwise.add, window_shape, strides, padding)
    count: Any = math.prod(window_shape)
    if not count_include_pad:
        ones = full(exact.shape, 1, exact.dtype)
        count = _pooled(name, ones, elementwise.add, window_shape, strides, padding)
    return ops.cast(ops.div(total, count), found.dtype)


def _pooled(name: str, x: Any, computation: Any, window: Any, strides: Any, padding: Any) -> Any:
    """A known reduction over windows that move along the dims between the first and the last."""
    count = x.ndim - 2
    if count < 0:
        raise ShapeError(
            f"{name}: the array is {x.type.strong()}",
            loc=loc.current(),
            rule="its first dim is the batch, its last one the features",
        )
    dims = x.shape[1:-1]
    once = (1,) * count
    sizes = parse_ints(name, "window_shape", window, count)
    steps = parse_ints(name, "strides", strides, count, 1)
    moves = parse_windows(name, dims, sizes, steps, padding, once, once)
    whole = Window(1, 1, 1, 0, 0, 1)
    identity = SCALARS[_ROWS[computation]].identity
    assert identity is not None
    neutral = number(identity(x.dtype), x.dtype)
    return _combined(x, neutral, computation, [whole, *moves, whole])


_ROWS: dict[Any, str] = {
    elementwise.add: "add",
    elementwise.maximum: "max",
    elementwise.minimum: "min",
}
