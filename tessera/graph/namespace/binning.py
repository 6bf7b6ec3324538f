"""Functions of the intervals between sorted numbers: interpolation and histograms."""

from __future__ import annotations

import operator
from typing import Any

from tessera.dtypes import default_int
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
from tessera.graph.namespace.creation import linspace
from tessera.graph.namespace.searching import bisect
from tessera.graph.namespace.statistics import size_of
from tessera.graph.ops import elementwise as ops
from tessera.graph.ops import reduce
from tessera.graph.ops.gather import Combine, IndexMode, gather, scatter
from tessera.graph.ops.rearrange import concatenate, full, reshape, slice_axis
from tessera.graph.ops.sort import sort
from tessera.graph.placement import common_device
from tessera.ir import loc
from tessera.ir.intexpr import prod

__all__ = [
    "histogram",
    "histogram_bin_edges",
    "interp",
]


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
    size = places.shape[0]
    found = _between(at, places, values)
    for edge, value, before in ((0, left, True), (size - 1, right, False)):
        end = reshape(slice_axis(places, 0, edge, edge + 1), ())
        outside = (ops.lt if before else ops.gt)(at, spread(end, at.shape))
        default = reshape(slice_axis(values, 0, edge, edge + 1), ())
        other = default if value is None else to_dtype(_plain(value), at.dtype)
        found = ops.select(outside, spread(other, at.shape), found)
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


def _between(at: Any, places: Any, values: Any) -> Any:
    """The value on the line through the points on both sides."""
    size = places.shape[0]
    after = bisect(places, at, "right")
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


@api_boundary
def histogram_bin_edges(
    a: ArrayLike, /, bins: int | ArrayLike = 10, range: tuple[Any, Any] | None = None
) -> ArrayBase:
    """The edges of the bins of a histogram. For the arguments see `histogram`."""
    return _edges("histogram_bin_edges", as_inexact("histogram_bin_edges", a), bins, range)


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
    edges = _edges(name, given, bins, range)
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
    last = spread(reshape(slice_axis(edges, 0, count, count + 1), ()), found.shape)
    place = ops.sub(bisect(edges, found, "right"), 1)
    place = ops.sub(place, ops.cast(ops.eq(found, last), place.dtype))
    place = ops.select(ops.isnan(found), -1, place)
    sums = scatter(full((count,), 0, counted.dtype), counted, [place], [0], Combine.ADD)
    if density:
        widths = ops.sub(slice_axis(edges, 0, 1, count + 1), slice_axis(edges, 0, 0, count))
        exact = ops.cast(sums, edges.dtype)
        total = reduce.sum_(exact)
        sums = ops.div(ops.div(exact, widths), spread(total, exact.shape))
    return sums, edges


def _edges(name: str, a: Any, bins: Any, range: Any) -> Any:
    if a.dtype.is_complex:
        raise DTypeError(
            f"{name}: the array is {a.type.strong()}",
            loc=loc.current(),
            rule="the elements are real numbers",
        )
    if not hasattr(bins, "__index__") or getattr(bins, "ndim", 0):
        edges, _ = inexact_operands(name, as_array(name, bins), number(0.0, a.dtype))
        if edges.ndim != 1 or edges.shape[0] < 2:
            raise ShapeError(
                f"{name}: the edges are {edges.type.strong()}",
                loc=loc.current(),
                rule="edges are a vector of two elements or more",
            )
        return edges
    count = operator.index(bins)
    if count < 1:
        raise ShapeError(
            f"{name}: bins={count}", loc=loc.current(), rule="there is one bin or more"
        )
    if range is not None:
        low, high = (to_dtype(v if is_number(v) else as_array(name, v), a.dtype) for v in range)
    elif any(d == 0 for d in a.shape):
        low, high = number(0.0, a.dtype), number(1.0, a.dtype)
    else:
        low, high = reduce.min_(a), reduce.max_(a)
    same = ops.eq(low, high)
    low, high = ops.select(same, ops.sub(low, 0.5), low), ops.select(same, ops.add(high, 0.5), high)
    return linspace(low, high, count + 1, dtype=a.dtype)
