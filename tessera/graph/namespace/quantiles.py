"""Order statistics: medians, quantiles, the largest elements; NaN makes them NaN."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from tessera.dtypes import DType, default_int, float32, uint8
from tessera.errors import DTypeError, OptionError, ShapeError, api_boundary
from tessera.graph.array import ArrayBase
from tessera.graph.namespace.arguments import (
    ArrayLike,
    as_array,
    as_inexact,
    index_of,
    is_number,
    is_tracing,
    parse_axes,
    parse_axis,
    spread,
    to_dtype,
)
from tessera.graph.namespace.statistics import Axis, size_of, stopped
from tessera.graph.ops import elementwise as ops
from tessera.graph.ops import reduce
from tessera.graph.ops.gather import IndexMode, take_along
from tessera.graph.ops.largest import largest
from tessera.graph.ops.rearrange import (
    broadcast,
    full,
    reshape,
    slice_axis,
    transpose,
)
from tessera.graph.ops.sort import sort
from tessera.graph.shortcut import composed
from tessera.ir import loc
from tessera.ir.exchanges import exchanges
from tessera.ir.intexpr import Dim
from tessera.ir.intexpr import prod as product

__all__ = [
    "median",
    "nanmedian",
    "nanpercentile",
    "nanquantile",
    "percentile",
    "quantile",
    "top_k",
]

FEW = 9
"""Elements of a line that a compiled program exchanges where they are, as those of a window of 3 by
3: sorts of longer ones are sooner compiled."""

Method = Literal["linear", "lower", "higher", "midpoint", "nearest"]


@composed
@api_boundary
def quantile(
    x: ArrayLike, /, q: ArrayLike, *, axis: Axis = None, method: Method = "linear",
    keepdims: bool = False,
) -> ArrayBase:  # fmt: skip
    """The values below which parts of the elements lie.

    Args:
        x: real numbers.
        q: the parts, from 0 to 1, an array of any shape; NaN is the result for others.
        axis: the axes along which elements are put in order; None is all.
        method: what is between two elements: `linear` is on the line between them, `lower`,
            `higher` and `nearest` one of them (to the even one at ties), `midpoint` their mean.
        keepdims: whether the axes stay, with length 1.

    Returns:
        An array with the dims of `q`, then those of `x` without the axes. NaN where an element is.

    Example:
        >>> import tessera as ts
        >>> ts.quantile(ts.asarray([3.0, 1.0, 2.0]), 0.25)
        Array(1.5, dtype=float32)
    """
    return _quantile("quantile", x, q, 1.0, axis, method, keepdims, skip=False)


@composed
@api_boundary
def percentile(
    x: ArrayLike, /, q: ArrayLike, *, axis: Axis = None, method: Method = "linear",
    keepdims: bool = False,
) -> ArrayBase:  # fmt: skip
    """Quantiles, with `q` from 0 to 100. For the arguments see `quantile`."""
    return _quantile("percentile", x, q, 100.0, axis, method, keepdims, skip=False)


@composed
@api_boundary
def nanquantile(
    x: ArrayLike, /, q: ArrayLike, *, axis: Axis = None, method: Method = "linear",
    keepdims: bool = False,
) -> ArrayBase:  # fmt: skip
    """Quantiles of the elements that are not NaN; NaN where all are. See `quantile`."""
    return _quantile("nanquantile", x, q, 1.0, axis, method, keepdims, skip=True)


@composed
@api_boundary
def nanpercentile(
    x: ArrayLike, /, q: ArrayLike, *, axis: Axis = None, method: Method = "linear",
    keepdims: bool = False,
) -> ArrayBase:  # fmt: skip
    """Percentiles of the elements that are not NaN; NaN where all are. See `percentile`."""
    return _quantile("nanpercentile", x, q, 100.0, axis, method, keepdims, skip=True)


@composed
@api_boundary
def median(x: ArrayLike, /, *, axis: Axis = None, keepdims: bool = False) -> ArrayBase:
    """The element in the middle, or the mean of the two there, along some axes, or of all.

    Args:
        x: real numbers.
        axis: the axes; None is all.
        keepdims: whether the axes stay, with length 1.

    Returns:
        NaN where an element is NaN, or where there are none.
    """
    return _quantile("median", x, 0.5, 1.0, axis, "midpoint", keepdims, skip=False)


@composed
@api_boundary
def nanmedian(x: ArrayLike, /, *, axis: Axis = None, keepdims: bool = False) -> ArrayBase:
    """The median of the elements that are not NaN; NaN where all are. See `median`."""
    return _quantile("nanmedian", x, 0.5, 1.0, axis, "midpoint", keepdims, skip=True)


def _quantile(
    name: str,
    x: object,
    q: object,
    whole: float,
    axis: Axis,
    method: str,
    keepdims: bool,
    skip: bool,
) -> Any:
    if method not in ("linear", "lower", "higher", "midpoint", "nearest"):
        raise OptionError(
            f"{name}: method={method!r}",
            loc=loc.current(),
            rule="it is 'linear', 'lower', 'higher', 'midpoint' or 'nearest'",
        )
    found = as_inexact(name, x)
    if found.dtype.is_complex:
        raise DTypeError(
            f"{name}: the array is {found.type.strong()}",
            loc=loc.current(),
            rule="complex numbers have no order",
        )
    axes = parse_axes(name, axis, found.ndim)
    exact = ops.cast(found, float32) if found.dtype.bits < 32 else found
    parts = to_dtype(q if is_number(q) else as_array(name, q), exact.dtype)
    if whole != 1:
        parts = ops.div(parts, whole)
    rest = [k for k in range(found.ndim) if k not in axes]
    shape = tuple([found.shape[k] for k in rest])
    lines, at = _lines(exact, axes, rest)
    size = lines.shape[at]
    if size == 0:
        result = full((*parts.shape, *shape), float("nan"), exact.dtype)
    else:
        known = _known_place(q, whole, size, exact.dtype) if is_number(q) and not skip else None
        if known is None:
            result = _interpolated(lines, parts, at, method, skip)
        else:
            result = _at_place(lines, known, at, method)
        result = transpose(result, [at, *[k for k in range(result.ndim) if k != at]])
        result = reshape(result, (*parts.shape, *shape))
    result = ops.cast(result, found.dtype)
    if keepdims:
        kept = [1 if k in axes else d for k, d in enumerate(found.shape)]
        result = reshape(result, (*parts.shape, *kept))
    return result


def _lines(x: Any, axes: Sequence[int], rest: Sequence[int]) -> tuple[Any, int]:
    """The array with a line of elements along one axis for each place of the result, and that
    axis: where it is one of several, the last."""
    if len(axes) == 1:
        return x, axes[0]
    shape = [x.shape[k] for k in rest]
    size = product([x.shape[k] for k in axes])
    return reshape(transpose(x, [*rest, *axes]), (*shape, size)), len(rest)


def _known_place(q: Any, whole: float, size: Dim, dtype: DType) -> float | None:
    """The place of a quantile in a line, with the roundings of the dtype; None where it is not
    known, or there is none."""
    if not isinstance(size, int):
        return None
    number = dtype.np.type
    part = number(q) / number(whole)
    return float(part * (number(size) - number(1))) if 0 <= part <= 1 else None


def _at_place(lines: Any, place: float, at: int, method: str) -> Any:
    """The quantile at a known place of each line along an axis, which stays, with length 1."""
    size: int = lines.shape[at]
    place = float(np.round(place)) if method == "nearest" else place
    places = [min(int(k), size - 1) for k in (math.floor(place), math.ceil(place))]
    if size <= FEW and is_tracing():
        elements, bad = _exchanged(lines, at), None  # NaN comes to all of them
        ends = [elements[k] for k in places]
    else:
        (ordered,) = sort((lines,), at)  # NaN comes last
        *ends, last = [slice_axis(ordered, at, k, k + 1) for k in (*places, size - 1)]
        bad = ops.isnan(last)
    weight = place - math.floor(place)
    if method == "midpoint" and weight:
        weight = 0.5
    found = {"lower": ends[0], "nearest": ends[0], "higher": ends[1]}.get(method)
    if found is None:
        found = ops.add(ends[0], _rise(ends, weight)) if weight else ends[0]
    return found if bad is None else ops.select(bad, math.nan, found)


def _exchanged(lines: Any, at: int) -> list[Any]:
    """The elements of each line in order, by a network of exchanges. Those that the wanted ones do
    not need are dead code; what is left is elementwise, and needs no array of lines."""
    size: int = lines.shape[at]
    found = [slice_axis(lines, at, k, k + 1) for k in range(size)]
    for i, k in exchanges(size):
        pair = found[i], found[k]
        found[i], found[k] = ops.minimum(*pair), ops.maximum(*pair)
    return found


def _rise(ends: Sequence[Any], weight: Any) -> Any:
    """What a quantile between two elements has more than the first of them. Equal ends, infinite
    ones too, have nothing between them."""
    apart = ops.select(ops.eq(*ends), 0, ops.sub(ends[1], ends[0]))
    return ops.mul(apart, weight)


def _interpolated(lines: Any, parts: Any, at: int, method: str, skip: bool) -> Any:
    """Quantiles of the lines along an axis, which the parts take the place of."""
    size = lines.shape[at]
    others = [k for k in range(lines.ndim) if k != at]
    shape = tuple([lines.shape[k] for k in others])
    outer = product(parts.shape)
    missing = ops.isnan(lines)
    (ordered,) = sort((lines,), at)  # NaN comes last
    dtype = lines.dtype
    total = spread(size_of([size], dtype), shape)
    if skip:
        gone = reduce.sum_(ops.cast(missing, default_int), [at])
        total = ops.sub(total, ops.cast(gone, dtype))
    results = (*lines.shape[:at], outer, *lines.shape[at + 1 :])
    parts = broadcast(reshape(parts, (outer,)), results, [at])
    last = ops.maximum(ops.sub(broadcast(total, results, others), 1), 0)
    place = ops.mul(parts, last)
    inside = ops.and_(ops.ge(parts, 0), ops.le(parts, 1))
    place = ops.select(inside, place, 0)
    if method == "nearest":
        place = ops.round_(place)
    low = ops.floor(place)
    high = ops.ceil(place)
    ends = [
        take_along(ordered, ops.cast(end, default_int), at, IndexMode.CLIP) for end in (low, high)
    ]
    found = {"lower": ends[0], "nearest": ends[0], "higher": ends[1]}.get(method)
    if found is None:
        weight = ops.sub(place, low)
        if method == "midpoint":
            weight = ops.select(ops.eq(weight, 0), weight, 0.5)
        found = ops.add(ends[0], ops.select(ops.eq(weight, 0), 0, _rise(ends, weight)))
    nothing = ops.eq(total, 0) if skip else reduce.any_(missing, [at])
    bad = ops.or_(ops.not_(inside), broadcast(nothing, results, others))
    return ops.select(bad, float("nan"), found)


@composed
@api_boundary
def top_k(x: ArrayLike, /, k: int, *, axis: int = -1) -> tuple[ArrayBase, ArrayBase]:
    """The largest elements along an axis, the largest first, and where they are.

    Args:
        x: real numbers; NaN counts as larger than all.
        k: how many elements, at most as many as there are.
        axis: the axis.

    Returns:
        The elements, and their int64 positions along the axis; of equal elements the first comes
        first.

    Example:
        >>> import tessera as ts
        >>> ts.top_k(ts.asarray([1.0, 5.0, 3.0]), 2)
        (Array([5., 3.], dtype=float32), Array([1, 2], dtype=int64))
    """
    found = as_array("top_k", x)
    at = parse_axis("top_k", axis, found.ndim)
    size, k = found.shape[at], index_of("top_k: k", k)
    if k < 0 or (isinstance(size, int) and k > size):
        raise ShapeError(
            f"top_k: k={k} for dim {at} of {found.type.strong()}",
            loc=loc.current(),
            rule="k is at least 0, and at most the number of elements",
        )
    if found.dtype.is_complex:
        raise DTypeError(
            f"top_k: the array is {found.type.strong()}",
            loc=loc.current(),
            rule="complex numbers have no order",
        )
    keys = ops.cast(found, uint8) if found.dtype.is_bool else found
    last = found.ndim - 1
    there = (*[axis for axis in range(found.ndim) if axis != at], at)
    back = (*range(at), last, *range(at, last))
    rows = transpose(keys, there)
    places = largest(stopped(rows) if rows.dtype.is_float else rows, k)
    values = take_along(rows, places, last)
    return transpose(ops.cast(values, found.dtype), back), transpose(places, back)
