"""Reductions that leave NaN out: it stands for elements that are missing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tessera.dtypes import DTypeLike, float32
from tessera.errors import api_boundary
from tessera.graph.array import ArrayBase
from tessera.graph.namespace import searching, statistics
from tessera.graph.namespace.arguments import ArrayLike, as_array, as_inexact, parse_axes, spread
from tessera.graph.namespace.statistics import Axis, accumulated, reduced, with_dims
from tessera.graph.ops import elementwise as ops
from tessera.graph.ops import reduce
from tessera.graph.shortcut import composed, fused

__all__ = [
    "nanargmax",
    "nanargmin",
    "nanmax",
    "nanmean",
    "nanmin",
    "nanprod",
    "nanstd",
    "nansum",
    "nanvar",
]


def _without(x: Any, value: float) -> Any:
    """The array with a value in place of NaN."""
    return ops.select(ops.isnan(x), value, x) if x.dtype.is_inexact else x


@fused
@composed
@api_boundary
def nansum(
    x: ArrayLike, /, *, axis: Axis = None, dtype: DTypeLike | None = None, keepdims: bool = False
) -> ArrayBase:
    """The sum of the elements that are not NaN; 0 if there are none. See `sum`."""
    found = _without(accumulated("nansum", x, dtype), 0)
    return reduced("nansum", reduce.sum_, found, axis, keepdims)


@fused
@composed
@api_boundary
def nanprod(
    x: ArrayLike, /, *, axis: Axis = None, dtype: DTypeLike | None = None, keepdims: bool = False
) -> ArrayBase:
    """The product of the elements that are not NaN; 1 if there are none. See `prod`."""
    found = _without(accumulated("nanprod", x, dtype), 1)
    return reduced("nanprod", reduce.prod_, found, axis, keepdims)


@fused
@composed
@api_boundary
def nanmax(x: ArrayLike, /, *, axis: Axis = None, keepdims: bool = False) -> ArrayBase:
    """The largest element that is not NaN; NaN where all are. See `max`."""
    return _extremum(statistics.max, "nanmax", x, -float("inf"), axis, keepdims)


@fused
@composed
@api_boundary
def nanmin(x: ArrayLike, /, *, axis: Axis = None, keepdims: bool = False) -> ArrayBase:
    """The smallest element that is not NaN; NaN where all are. See `min`."""
    return _extremum(statistics.min, "nanmin", x, float("inf"), axis, keepdims)


def _extremum(
    op: Callable[..., Any], name: str, x: object, neutral: float, axis: Axis, keepdims: bool
) -> Any:
    found = as_array(name, x)
    if not found.dtype.is_float:
        return op(found, axis=axis, keepdims=keepdims)
    result = op(_without(found, neutral), axis=axis, keepdims=keepdims)
    return ops.select(_all_missing(name, found, axis, keepdims), float("nan"), result)


def _all_missing(name: str, x: Any, axis: Axis, keepdims: bool) -> Any:
    return reduced(name, reduce.all_, ops.isnan(x), axis, keepdims)


@composed
@api_boundary
def nanargmax(x: ArrayLike, /, *, axis: int | None = None, keepdims: bool = False) -> ArrayBase:
    """The place of the first largest element that is not NaN; -1 where all are. See `argmax`."""
    return _position(searching.argmax, "nanargmax", x, -float("inf"), axis, keepdims)


@composed
@api_boundary
def nanargmin(x: ArrayLike, /, *, axis: int | None = None, keepdims: bool = False) -> ArrayBase:
    """The place of the first smallest element that is not NaN; -1 where all are. See `argmin`."""
    return _position(searching.argmin, "nanargmin", x, float("inf"), axis, keepdims)


def _position(
    op: Callable[..., Any], name: str, x: object, worst: float, axis: int | None, keepdims: bool
) -> Any:
    found = as_array(name, x)
    if not found.dtype.is_float:
        return op(found, axis=axis, keepdims=keepdims)
    place = op(_without(found, worst), axis=axis, keepdims=keepdims)
    return ops.select(_all_missing(name, found, axis, keepdims), -1, place)


@fused
@composed
@api_boundary
def nanmean(x: ArrayLike, /, *, axis: Axis = None, keepdims: bool = False) -> ArrayBase:
    """The mean of the elements that are not NaN; NaN where all are. See `mean`."""
    found = as_inexact("nanmean", x)
    axes = parse_axes("nanmean", axis, found.ndim)
    result = ops.cast(_mean(_wide(found), axes)[0], found.dtype)
    return with_dims(result, found.shape, axes) if keepdims else result


def _wide(x: Any) -> Any:
    """The dtype in which means are computed: sums leave the range of narrow ones."""
    return ops.cast(x, float32) if x.dtype.bits < 32 else x


def _mean(x: Any, axes: tuple[int, ...]) -> tuple[Any, Any]:
    """The mean without NaN along axes, and of how many elements."""
    total = reduce.sum_(_without(x, 0), axes)
    here = ops.cast(ops.not_(ops.isnan(x)), float32 if x.dtype.bits <= 32 else _real(x))
    count = ops.cast(reduce.sum_(here, axes), x.dtype)
    return ops.div(total, count), count


def _real(x: Any) -> Any:
    return ops.abs_(x).dtype if x.dtype.is_complex else x.dtype


@fused
@composed
@api_boundary
def nanvar(
    x: ArrayLike, /, *, axis: Axis = None, correction: float = 0.0, keepdims: bool = False
) -> ArrayBase:
    """The variance of the elements that are not NaN. For the arguments see `var`."""
    return _variance("nanvar", x, axis, correction, keepdims, lambda v: v)


@fused
@composed
@api_boundary
def nanstd(
    x: ArrayLike, /, *, axis: Axis = None, correction: float = 0.0, keepdims: bool = False
) -> ArrayBase:
    """The standard deviation of the elements that are not NaN. For the arguments see `var`."""
    return _variance("nanstd", x, axis, correction, keepdims, ops.sqrt)


def _variance(
    name: str,
    x: object,
    axis: Axis,
    correction: float,
    keepdims: bool,
    finish: Callable[[Any], Any],
) -> Any:
    found = as_inexact(name, x)
    axes = parse_axes(name, axis, found.ndim)
    exact = _wide(found)
    center, count = _mean(exact, axes)
    center = spread(with_dims(center, found.shape, axes), found.shape)
    # NaN is replaced before anything is computed with it, or derivatives would be 0 times NaN.
    apart = ops.select(ops.isnan(exact), 0, ops.sub(_without(exact, 0), center))
    total = reduce.sum_(ops.square(ops.abs_(apart) if exact.dtype.is_complex else apart), axes)
    count = ops.cast(ops.real(count) if count.dtype.is_complex else count, total.dtype)
    left = ops.maximum(ops.sub(count, float(correction)), 0)
    result = finish(ops.div(total, left))
    if not found.dtype.is_complex:
        result = ops.cast(result, found.dtype)
    return with_dims(result, found.shape, axes) if keepdims else result
