"""Functions of the intervals between sorted numbers: interpolation and histograms."""

from __future__ import annotations

import operator
from typing import Any

import numpy as np

from tessera.dtypes import DType, default_int, finfo, float32, float64, int16, int32
from tessera.errors import DTypeError, ShapeError, api_boundary
from tessera.graph.array import ArrayBase
from tessera.graph.namespace.arguments import (
    ArrayLike,
    as_array,
    as_inexact,
    common_dtype,
    inexact_operands,
    is_number,
    number,
    spread,
    to_dtype,
)
from tessera.graph.namespace.searching import bisect
from tessera.graph.namespace.statistics import size_of
from tessera.graph.ops import elementwise as ops
from tessera.graph.ops import reduce
from tessera.graph.ops.gather import Combine, IndexMode, gather, scatter
from tessera.graph.ops.rearrange import concatenate, full, iota, reshape, slice_axis
from tessera.graph.ops.sort import sort
from tessera.graph.placement import common_device, device_of, placed
from tessera.graph.shortcut import composed, one_program
from tessera.graph.trace import is_tracing
from tessera.ir import loc
from tessera.ir.convert import cast_array
from tessera.ir.intexpr import prod

__all__ = [
    "histogram",
    "histogram_bin_edges",
    "interp",
]

CLOSE = 1 / 8
"""So many bins from an edge, an element is nearer to no other one, however that has been rounded.
"""


@composed
@api_boundary
def interp(
    x: ArrayLike,
    xp: ArrayLike,
    fp: ArrayLike,
    left: ArrayLike | None = None,
    right: ArrayLike | None = None,
    period: ArrayLike | None = None,
) -> ArrayBase:
    """The values of a function that is a line between points.

    Args:
        x: where to take it, of any shape.
        xp: the places of the points, in increasing order; with a period in any order.
        fp: the values there.
        left: the value before the first place; by default that of the first point.
        right: the value after the last place; by default that of the last point.
        period: the length after which the places and the function repeat; `left` and `right` then
            have no meaning.

    Example:
        >>> import tessera as ts
        >>> ts.interp(ts.asarray([0.5, 3.0]), ts.asarray([0.0, 1.0]), ts.asarray([10.0, 20.0]))
        Array([15., 20.], dtype=float32)
    """
    name = "interp"
    given = [v if is_number(v) else as_array(name, v) for v in (x, xp, fp)]
    common_device(name, given, (x, xp, fp))
    dtype, weak = common_dtype(name, given)
    at, places, values = (as_inexact(name, to_dtype(v, dtype, weak)) for v in given)
    if places.ndim != 1 or values.shape != places.shape or places.shape[0] == 0:
        raise ShapeError(
            f"{name}: xp is {places.type.strong()}, fp is {values.type.strong()}",
            loc=loc.current(),
            rule="both are vectors of one length, with an element or more",
        )
    if at.dtype.is_complex:
        raise DTypeError(
            f"{name}: the operands are {at.type.strong()}",
            loc=loc.current(),
            rule="they are real numbers",
        )
    if period is not None:
        at, places, values = _repeated(at, places, values, period)
        left = right = None
    ends = [None if v is None else to_dtype(_plain(v), at.dtype) for v in (left, right)]
    return _interpolated(at, places, values, bisect(places, at, "right"), *ends)


@one_program
@composed
def _interpolated(at: Any, places: Any, values: Any, after: Any, left: Any, right: Any) -> Any:
    """The values between and outside of points, given which ones come after."""
    found = _between(at, places, values, after)
    size = places.shape[0]
    for edge, value, before in ((0, left, True), (size - 1, right, False)):
        end = reshape(slice_axis(places, 0, edge, edge + 1), ())
        outside = (ops.lt if before else ops.gt)(at, spread(end, at.shape))
        default = reshape(slice_axis(values, 0, edge, edge + 1), ())
        found = ops.select(outside, spread(default if value is None else value, at.shape), found)
    return found


def _plain(value: Any) -> Any:
    return value if is_number(value) else as_array("interp", value)


def _repeated(at: Any, places: Any, values: Any, period: Any) -> tuple[Any, Any, Any]:
    """A periodic function as one with a point of the periods before and after at each end."""
    length = ops.abs_(to_dtype(_plain(period), at.dtype))
    at = ops.mod(at, spread(length, at.shape))
    places = ops.mod(places, spread(length, places.shape))
    places, values = sort((places, values), 0)
    size = places.shape[0]
    ends = [slice_axis(places, 0, size - 1, size), slice_axis(places, 0, 0, 1)]
    once = reshape(length, (1,))
    places = concatenate([ops.sub(ends[0], once), places, ops.add(ends[1], once)], 0)
    first, last = slice_axis(values, 0, 0, 1), slice_axis(values, 0, size - 1, size)
    return at, places, concatenate([last, values, first], 0)


def _between(at: Any, places: Any, values: Any, after: Any) -> Any:
    """The value on the line through the points on both sides."""
    size = places.shape[0]
    last = spread(size_of([size], after.dtype), after.shape)
    after = ops.minimum(ops.maximum(after, 1), ops.sub(last, 1))
    before = ops.maximum(ops.sub(after, 1), 0)
    x0, x1, f0, f1 = (
        gather(v, [i], [0], IndexMode.CLIP) for v in (places, values) for i in (before, after)
    )
    width = ops.sub(x1, x0)
    # Points at one place have no line between them.
    part = ops.div(ops.sub(at, x0), ops.select(ops.eq(width, 0), 1, width))
    return ops.select(ops.eq(width, 0), f0, ops.add(f0, ops.mul(part, ops.sub(f1, f0))))


# --- histograms -------------------------------------------------------------------------------


@composed
@api_boundary
def histogram_bin_edges(
    a: ArrayLike, /, bins: int | ArrayLike = 10, range: tuple[Any, Any] | None = None
) -> ArrayBase:
    """The edges of the bins of a histogram. For the arguments see `histogram`."""
    name = "histogram_bin_edges"
    given = as_inexact(name, a)
    bounds = None if _is_vector(bins) else _bounds(name, given, bins, range)
    return _edges(name, given, bins, bounds)


@composed
@api_boundary
def histogram(
    a: ArrayLike,
    /,
    bins: int | ArrayLike = 10,
    range: tuple[Any, Any] | None = None,
    weights: ArrayLike | None = None,
    density: bool = False,
) -> tuple[ArrayBase, ArrayBase]:
    """How many elements lie in each of several bins.

    Args:
        a: real numbers.
        bins: how many bins of equal width, or their edges in increasing order.
        range: the lowest and the highest edge; by default the smallest and the largest element.
        weights: what each element counts, of the shape of `a`.
        density: whether to divide by the total and by the bins' widths, so that the integral is 1.

    Returns:
        The counts, int64 or of the dtype of the weights, and the edges. A bin has its left edge but
        not its right one, except for the last, which has both. Other elements do not count.

    Example:
        >>> import tessera as ts
        >>> ts.histogram(ts.asarray([0.0, 1.0, 1.5, 4.0]), 2)
        (Array([3, 1], dtype=int64), Array([0., 2., 4.], dtype=float32))
    """
    name = "histogram"
    given = as_inexact(name, a)
    bounds = None if _is_vector(bins) else _bounds(name, given, bins, range)
    edges = _edges(name, given, bins, bounds)
    found = ops.cast(reshape(given, (prod(given.shape),)), edges.dtype)
    count = edges.shape[0] - 1
    if weights is None:
        counted = full(found.shape, 1, default_int)
    else:
        each = as_array(name, weights)
        if each.shape != given.shape:
            raise ShapeError(
                f"{name}: a is {given.type.strong()}, the weights are {each.type.strong()}",
                loc=loc.current(),
                rule="both have one shape",
            )
        counted = reshape(each, found.shape)
        counted = ops.cast(counted, default_int) if counted.dtype.is_bool else counted
    if bounds is None:
        place = _bisected(found, edges, bisect(edges, found, "right"))
    else:
        place = _computed(found, edges, *_limits(found, count, *bounds), count)
    # What lies outside has a bin of its own, so that nothing has to be left out.
    sums = full((count + 1,), 0, counted.dtype)
    sums = scatter(sums, counted, [place], [0], Combine.ADD, IndexMode.PROMISE)
    sums = slice_axis(sums, 0, 0, count)
    if density:
        widths = ops.sub(slice_axis(edges, 0, 1, count + 1), slice_axis(edges, 0, 0, count))
        exact = ops.cast(sums, edges.dtype)
        total = reduce.sum_(exact)
        sums = ops.div(ops.div(exact, widths), spread(total, exact.shape))
    return sums, edges


def _is_vector(bins: Any) -> bool:
    """Whether bins are given by their edges."""
    return not hasattr(bins, "__index__") or bool(getattr(bins, "ndim", 0))


def _bounds(name: str, a: Any, bins: Any, range: Any) -> tuple[Any, Any]:
    """The lowest and the highest edge: numbers, or arrays of no axes."""
    _check_real(name, a)
    if operator.index(bins) < 1:
        raise ShapeError(
            f"{name}: bins={operator.index(bins)}",
            loc=loc.current(),
            rule="there is one bin or more",
        )
    if range is not None and all(is_number(v) for v in range):
        low, high = (float(v) for v in range)
        return (low - 0.5, high + 0.5) if low == high else (low, high)
    if range is not None:
        low, high = (to_dtype(v if is_number(v) else as_array(name, v), a.dtype) for v in range)
    elif any(d == 0 for d in a.shape):
        return 0.0, 1.0
    else:
        low, high = reduce.min_(a), reduce.max_(a)
    same = ops.eq(low, high)
    return ops.select(same, ops.sub(low, 0.5), low), ops.select(same, ops.add(high, 0.5), high)


def _check_real(name: str, a: Any) -> None:
    if a.dtype.is_complex:
        raise DTypeError(
            f"{name}: the array is {a.type.strong()}",
            loc=loc.current(),
            rule="the elements are real numbers",
        )


def _edges(name: str, a: Any, bins: Any, bounds: tuple[Any, Any] | None) -> Any:
    """The edges of the bins, as NumPy rounds them."""
    _check_real(name, a)
    if bounds is None:
        edges, _ = inexact_operands(name, as_array(name, bins), number(0.0, a.dtype))
        if edges.ndim != 1 or edges.shape[0] < 2:
            raise ShapeError(
                f"{name}: the edges are {edges.type.strong()}",
                loc=loc.current(),
                rule="edges are a vector of two elements or more",
            )
        return edges
    count = operator.index(bins)
    low, high = bounds
    if isinstance(low, float) and not is_tracing():
        line = np.asarray(np.linspace(low, high, count + 1), np.float64)
        return placed(cast_array(line, a.dtype), device_of(a))
    exact = float64 if isinstance(low, float) else _wide(a.dtype)
    low, high = (
        number(v, exact) if isinstance(v, float) else ops.cast(v, exact) for v in (low, high)
    )
    shape = (count + 1,)
    step = spread(ops.div(ops.sub(high, low), count), shape)
    position = iota(shape, 0, exact)
    line = ops.add(ops.mul(position, step), spread(low, shape))
    return ops.cast(ops.select(ops.eq(position, count), spread(high, shape), line), a.dtype)


def _wide(dtype: DType) -> DType:
    """The dtype in which places are computed."""
    return float64 if dtype is float64 else float32


@one_program
@composed
def _bisected(x: Any, edges: Any, after: Any) -> Any:
    """The bin of each element between any edges, of which it is known which comes after; the number
    of bins for others."""
    count = edges.shape[0] - 1
    last = spread(reshape(slice_axis(edges, 0, count, count + 1), ()), x.shape)
    place = ops.sub(after, 1)
    place = ops.sub(place, ops.cast(ops.eq(x, last), place.dtype))
    outside = ops.or_(ops.isnan(x), ops.or_(ops.lt(place, 0), ops.ge(place, count)))
    return ops.select(outside, spread(size_of([count], place.dtype), x.shape), place)


def _limits(x: Any, count: int, low: Any, high: Any) -> tuple[Any, Any, bool]:
    """The lowest and the highest edge as places are computed, and whether no two edges of so many
    bins can be near to one element."""
    exact = _wide(x.dtype)
    is_close = isinstance(low, float) and (
        # Half a bin to both sides of a large number is nothing.
        _error(x, count) * (max(abs(low), abs(high)) + high - low) < CLOSE * (high - low)
    )
    low, high = (
        number(v, exact) if isinstance(v, float) else ops.cast(ops.cast(v, x.dtype), exact)
        for v in (low, high)
    )
    return low, high, is_close


def _error(x: Any, count: int) -> float:
    """What has been rounded of a place."""
    return 4 * count * finfo(x.dtype).eps


@one_program
@composed
def _computed(x: Any, edges: Any, low: Any, high: Any, is_close: bool, count: int) -> Any:
    """The bin of each element between edges at equal distances; the number of bins for others.

    One that is computed to lie near an edge, with regard to all that has been rounded, is compared
    with that edge: what counts is on which side of the rounded edge it is. Where it is not known
    that no other edge is as near, it is compared with those on both sides of its bin.
    """
    exact = _wide(x.dtype)
    span = ops.sub(high, low)
    size = ops.maximum(ops.abs_(low), ops.abs_(high))
    slack = ops.mul(ops.add(ops.div(size, span), 1), _error(x, count))
    shape = x.shape
    wide = ops.cast(x, exact)
    inside = ops.and_(ops.ge(wide, spread(low, shape)), ops.le(wide, spread(high, shape)))
    place = ops.mul(ops.div(ops.sub(wide, spread(low, shape)), spread(span, shape)), count)
    place = ops.select(inside, place, 0)
    nearest = ops.round_(place)
    near = ops.le(ops.abs_(ops.sub(place, nearest)), spread(slack, shape))
    # Places are stored before they are counted.
    short = int16 if count < 1 << 15 else int32

    def edge(at: Any) -> Any:
        """The edge of a number where an element lies near one; elsewhere nothing is read."""
        return gather(edges, [ops.select(near, at, -1)], [0], IndexMode.DROP)

    if is_close:
        found = ops.cast(ops.select(near, nearest, place), int32)
        below = ops.and_(near, ops.lt(x, edge(found)))
        found = ops.minimum(ops.sub(found, ops.cast(below, int32)), count - 1)
    else:
        found = ops.minimum(ops.cast(place, int32), count - 1)
        left, right = edge(found), edge(ops.add(found, 1))
        below = ops.and_(near, ops.lt(x, left))
        above = ops.and_(ops.and_(near, ops.ge(x, right)), ops.lt(found, count - 1))
        found = ops.sub(ops.add(found, ops.cast(above, int32)), ops.cast(below, int32))
    return ops.cast(ops.select(inside, found, count), short)
