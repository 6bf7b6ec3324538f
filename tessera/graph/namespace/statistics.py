"""Statistical functions.

Sums and products of integers are accumulated in 64 bits, those of float16 and bfloat16 in float32.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tessera.dtypes import (
    DType,
    DTypeLike,
    Kind,
    default_int,
    float32,
    uint8,
    uint16,
    uint32,
    uint64,
)
from tessera.errors import AxisError, DTypeError, api_boundary
from tessera.graph.array import ArrayBase
from tessera.graph.namespace.arguments import (
    ArrayLike,
    as_array,
    as_inexact,
    dim_value,
    number,
    parse_axes,
    parse_axis,
    parse_dtype,
    spread,
)
from tessera.graph.ops import cumulative, reduce
from tessera.graph.ops import elementwise as ops
from tessera.graph.ops.rearrange import concatenate, full, reshape
from tessera.graph.shortcut import composed, fused, shortcut
from tessera.ir import loc
from tessera.ir.intexpr import Dim
from tessera.ir.intexpr import prod as product

__all__ = [
    "cumulative_prod",
    "cumulative_sum",
    "log_softmax",
    "logsumexp",
    "max",
    "mean",
    "min",
    "prod",
    "softmax",
    "std",
    "stop_gradient",
    "sum",
    "var",
]

Axis = int | tuple[int, ...] | None


def reduced(
    name: str, op: Callable[[Any, Sequence[int]], Any], x: Any, axis: Axis, keepdims: bool
) -> Any:
    """A reduction along axes as users give them."""
    axes = parse_axes(name, axis, x.ndim)
    return with_dims(op(x, axes), x.shape, axes) if keepdims else op(x, axes)


def with_dims(found: Any, shape: Sequence[Dim], axes: Sequence[int]) -> Any:
    """The result of a reduction with dims of length 1 where axes were reduced."""
    return reshape(found, [1 if k in axes else d for k, d in enumerate(shape)])


def size_of(dims: Sequence[Dim], dtype: DType) -> Any:
    """The number of elements of some dims, as an array without dims."""
    count = product(dims)
    if isinstance(count, int):
        return number(count, dtype)
    return ops.cast(dim_value(count), dtype)


def _accumulator(dtype: DType) -> DType:
    """The dtype that sums and products of a dtype have."""
    if dtype.is_bool or dtype.kind is Kind.INT:
        return default_int
    return uint64 if dtype.kind is Kind.UINT else dtype


def accumulated(name: str, x: object, dtype: DTypeLike | None) -> Any:
    """An argument in the dtype in which its sums and products are accumulated."""
    found = as_array(name, x)
    wanted = _accumulator(found.dtype) if dtype is None else parse_dtype(name, dtype)
    return ops.cast(found, wanted)


@fused
@shortcut
@api_boundary
def sum(
    x: ArrayLike, /, *, axis: Axis = None, dtype: DTypeLike | None = None, keepdims: bool = False
) -> ArrayBase:
    """The sum along some axes, or of all elements.

    Args:
        x: the array.
        axis: the axes to add along; None is all.
        dtype: the dtype to add in, and of the result; by default 64 bits for integers, and that of
            `x` for others.
        keepdims: whether the axes stay, with length 1.

    Example:
        >>> import tessera as ts
        >>> ts.sum(ts.asarray([[1.0, 2.0], [3.0, 4.0]]), axis=0)
        Array([4., 6.], dtype=float32)
    """
    return reduced("sum", reduce.sum_, accumulated("sum", x, dtype), axis, keepdims)


@fused
@shortcut
@api_boundary
def prod(
    x: ArrayLike, /, *, axis: Axis = None, dtype: DTypeLike | None = None, keepdims: bool = False
) -> ArrayBase:
    """The product along some axes, or of all elements. For the arguments see `sum`."""
    return reduced("prod", reduce.prod_, accumulated("prod", x, dtype), axis, keepdims)


@shortcut
@api_boundary
def max(x: ArrayLike, /, *, axis: Axis = None, keepdims: bool = False) -> ArrayBase:
    """The largest element along some axes, or of all; NaN if one is.

    Args:
        x: real numbers.
        axis: the axes to search along; None is all. None of them is empty.
        keepdims: whether the axes stay, with length 1.
    """
    found = as_array("max", x)
    op = reduce.any_ if found.dtype.is_bool else reduce.max_
    return reduced("max", op, found, axis, keepdims)


@shortcut
@api_boundary
def min(x: ArrayLike, /, *, axis: Axis = None, keepdims: bool = False) -> ArrayBase:
    """The smallest element along some axes, or of all; NaN if one is. See `max`."""
    found = as_array("min", x)
    op = reduce.all_ if found.dtype.is_bool else reduce.min_
    return reduced("min", op, found, axis, keepdims)


def _wide(dtype: DType) -> DType:
    """The dtype in which means are computed: sums leave the range of narrow ones."""
    return float32 if dtype.is_float and dtype.bits < 32 else dtype


def _mean(x: Any, axes: Sequence[int]) -> Any:
    total = reduce.sum_(x, axes)
    count = size_of([x.shape[a] for a in axes], x.dtype)
    return ops.div(total, spread(count, total.shape))


@shortcut
@api_boundary
def mean(x: ArrayLike, /, *, axis: Axis = None, keepdims: bool = False) -> ArrayBase:
    """The arithmetic mean along some axes, or of all elements; NaN where there are none.

    Args:
        x: the array; integers count as numbers of the default floating-point dtype.
        axis: the axes to average along; None is all.
        keepdims: whether the axes stay, with length 1.
    """
    found = as_inexact("mean", x)
    wide = ops.cast(found, _wide(found.dtype))
    return ops.cast(reduced("mean", _mean, wide, axis, keepdims), found.dtype)


def _variance(name: str, x: Any, axis: Axis, correction: float, keepdims: bool) -> Any:
    axes = parse_axes(name, axis, x.ndim)
    center = with_dims(_mean(x, axes), x.shape, axes)
    apart = ops.sub(x, spread(center, x.shape))
    squares = ops.square(ops.abs_(apart) if x.dtype.is_complex else apart)
    total = reduce.sum_(squares, axes)
    count = size_of([x.shape[a] for a in axes], total.dtype)
    if correction:
        count = ops.maximum(ops.sub(count, float(correction)), 0)
    found = ops.div(total, spread(count, total.shape))
    return with_dims(found, x.shape, axes) if keepdims else found


@fused
@composed
@api_boundary
def var(
    x: ArrayLike, /, *, axis: Axis = None, correction: float = 0.0, keepdims: bool = False
) -> ArrayBase:
    """The variance along some axes, or of all elements.

    Args:
        x: the array.
        axis: the axes; None is all.
        correction: the squares' sum is divided by the number of elements less this: 1 for an
            unbiased estimate.
        keepdims: whether the axes stay, with length 1.
    """
    found = as_inexact("var", x)
    wide = ops.cast(found, _wide(found.dtype))
    result = _variance("var", wide, axis, correction, keepdims)
    return result if found.dtype.is_complex else ops.cast(result, found.dtype)


@fused
@composed
@api_boundary
def std(
    x: ArrayLike, /, *, axis: Axis = None, correction: float = 0.0, keepdims: bool = False
) -> ArrayBase:
    """The standard deviation: the square root of the variance. For the arguments see `var`."""
    found = as_inexact("std", x)
    wide = ops.cast(found, _wide(found.dtype))
    result = ops.sqrt(_variance("std", wide, axis, correction, keepdims))
    return result if found.dtype.is_complex else ops.cast(result, found.dtype)


# --- cumulative -------------------------------------------------------------------------------


@fused
@shortcut
@api_boundary
def cumulative_sum(
    x: ArrayLike,
    /,
    *,
    axis: int | None = None,
    dtype: DTypeLike | None = None,
    include_initial: bool = False,
) -> ArrayBase:
    """Running sums along an axis.

    Args:
        x: the array.
        axis: the axis; may be left out for an array of one dim.
        dtype: the dtype to add in; by default as for `sum`.
        include_initial: whether the result starts with the sum of no elements.
    """
    found = accumulated("cumulative_sum", x, dtype)
    return _running("cumulative_sum", cumulative.cumsum, found, axis, 0, include_initial)


@fused
@shortcut
@api_boundary
def cumulative_prod(
    x: ArrayLike,
    /,
    *,
    axis: int | None = None,
    dtype: DTypeLike | None = None,
    include_initial: bool = False,
) -> ArrayBase:
    """Running products along an axis. For the arguments see `cumulative_sum`."""
    found = accumulated("cumulative_prod", x, dtype)
    return _running("cumulative_prod", cumulative.cumprod, found, axis, 1, include_initial)


def _running(
    name: str,
    op: Callable[[Any, int], Any],
    x: Any,
    axis: int | None,
    initial: int,
    include_initial: bool,
) -> Any:
    if axis is None and x.ndim != 1:
        raise AxisError(
            f"{name}: no axis is given for {x.type.strong()}",
            loc=loc.current(),
            rule="the axis may be left out only for an array of one dim",
        )
    at = parse_axis(name, 0 if axis is None else axis, x.ndim)
    found = op(x, at)
    if include_initial:
        shape = [1 if k == at else d for k, d in enumerate(x.shape)]
        found = concatenate([full(shape, initial, x.dtype), found], at)
    return found


# --- of exponentials --------------------------------------------------------------------------


def _shift(x: Any, axes: Sequence[int]) -> Any:
    """The maximum along axes, with dims kept, that exponents are taken relative to.

    0 where it is infinite, so that the difference is never NaN because of it, and where there are
    no elements. Its derivative cancels, so it has none.
    """
    if any([x.shape[a] == 0 for a in axes]):
        return full([1 if k in axes else d for k, d in enumerate(x.shape)], 0, x.dtype)
    top = stopped(reduce.max_(x, axes))
    return with_dims(ops.select(ops.isfinite(top), top, 0), x.shape, axes)


def stopped(x: Any) -> Any:
    """`x` as a constant for derivatives."""
    words = {8: uint8, 16: uint16, 32: uint32, 64: uint64}[x.dtype.bits]
    return ops.bitcast(ops.bitcast(x, words), x.dtype)


def _exponents(name: str, x: object, axis: Axis) -> tuple[Any, tuple[int, ...], DType]:
    """The argument in a dtype that exponentials are computed in, the axes, and the result's dtype.

    Storage types hold too few numbers for what is computed on the way.
    """
    found = as_inexact(name, x)
    if found.dtype.is_complex:
        raise DTypeError(
            f"{name}: the array is {found.type.strong()}",
            loc=loc.current(),
            rule="the elements are real numbers",
            fix="take `ts.abs(x)` or `ts.real(x)` first",
        )
    wide = ops.cast(found, float32) if found.dtype.is_storage else found
    return wide, parse_axes(name, axis, found.ndim), found.dtype


@fused
@composed
@api_boundary
def logsumexp(x: ArrayLike, /, *, axis: Axis = None, keepdims: bool = False) -> ArrayBase:
    """log(sum(exp(x))) along some axes, without overflow on the way.

    Args:
        x: real numbers.
        axis: the axes; None is all.
        keepdims: whether the axes stay, with length 1.
    """
    found, axes, dtype = _exponents("logsumexp", x, axis)
    shift = _shift(found, axes)
    total = reduce.sum_(ops.exp(ops.sub(found, spread(shift, found.shape))), axes)
    result = ops.cast(ops.add(ops.log(total), reshape(shift, total.shape)), dtype)
    return with_dims(result, found.shape, axes) if keepdims else result


@fused
@composed
@api_boundary
def softmax(x: ArrayLike, /, *, axis: Axis = -1) -> ArrayBase:
    """exp(x) / sum(exp(x)) along an axis, without overflow on the way."""
    found, axes, dtype = _exponents("softmax", x, axis)
    powers = ops.exp(ops.sub(found, spread(_shift(found, axes), found.shape)))
    total = with_dims(reduce.sum_(powers, axes), found.shape, axes)
    # One division per row; the largest power is 1, so what it becomes is as exact as by dividing.
    return ops.cast(ops.mul(powers, spread(ops.div(1.0, total), found.shape)), dtype)


@fused
@composed
@api_boundary
def log_softmax(x: ArrayLike, /, *, axis: Axis = -1) -> ArrayBase:
    """log(softmax(x)) along an axis, exact where softmax is near 0."""
    found, axes, dtype = _exponents("log_softmax", x, axis)
    apart = ops.sub(found, spread(_shift(found, axes), found.shape))
    total = with_dims(reduce.sum_(ops.exp(apart), axes), found.shape, axes)
    return ops.cast(ops.sub(apart, spread(ops.log(total), found.shape)), dtype)


@api_boundary
def stop_gradient(x: ArrayLike, /) -> ArrayBase:
    """`x`, which counts as a constant where derivatives are taken."""
    found = as_array("stop_gradient", x)
    if found.dtype.is_complex:
        return ops.complex_(stopped(ops.real(found)), stopped(ops.imag(found)))
    return stopped(found) if found.dtype.is_float else found
