"""Sums of exponentials, softmax and normalisations that are safe: finite wherever the real function
has a limit, with derivatives that are finite too.

Storage dtypes such as bfloat16 are computed in float32 and rounded once.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from tessera.api import custom_jvp
from tessera.dtypes import DType, bool_, finfo, float32, float64, uint32, uint64
from tessera.errors import DTypeError, ShapeError, api_boundary
from tessera.graph.array import ArrayBase
from tessera.graph.namespace.arguments import (
    ArrayLike,
    as_array,
    broadcast_dims,
    parse_axes,
    spread,
)
from tessera.graph.namespace.statistics import Axis, size_of, stop_gradient, with_dims
from tessera.graph.ops import elementwise as ops
from tessera.graph.ops import reduce
from tessera.graph.ops.checks import shape_text
from tessera.graph.ops.rearrange import slice_axis
from tessera.graph.ops.reshape import full_like
from tessera.graph.shortcut import composed, fused
from tessera.ir import loc
from tessera.nn.activations import real

__all__ = [
    "layernorm_safe",
    "log_softmax_safe",
    "logsumexp_safe",
    "rmsnorm_safe",
    "softmax_safe",
]


def widened(x: Any) -> Any:
    """The array in the dtype that sums are taken in."""
    return x if x.dtype is float64 else ops.cast(x, float32)


def masked(name: str, x: Any, where: Any, fill: float) -> Any:
    """The array with another number where a mask does not hold."""
    if where is None:
        return x
    mask = as_array(f"nn.{name}", where)
    if mask.dtype is not bool_:
        raise DTypeError(
            f"nn.{name}: where is {mask.type.strong()}",
            loc=loc.current(),
            rule="a mask is a bool array",
            fix="compare it, as in `where != 0`",
        )
    if broadcast_dims([mask.shape, x.shape]) != x.shape:
        raise ShapeError(
            f"nn.{name}: where is {mask.type.strong()}, and the array {x.type.strong()}",
            loc=loc.current(),
            rule="the mask is broadcast to the shape of the array",
        )
    return ops.select(spread(mask, x.shape), x, fill)


def total_along(x: Any, axes: Sequence[int]) -> Any:
    """The sum along axes, repeated along them."""
    return spread(with_dims(reduce.sum_(x, axes), x.shape, axes), x.shape)


def largest_along(x: Any, axes: Sequence[int]) -> Any:
    """The largest element along axes, repeated along them; 0 of none. Without a derivative."""
    if any(x.shape[k] == 0 for k in axes):
        return full_like(x, 0.0)
    top = reduce.max_(stop_gradient(x), axes)
    return spread(with_dims(top, x.shape, axes), x.shape)


def _powers(x: Any, axes: Sequence[int]) -> tuple[Any, Any]:
    """exp(x - largest), and the largest. Where that is infinite, ones for what is equal to it."""
    top = largest_along(x, axes)
    apart = ops.sub(x, ops.select(ops.isfinite(top), top, 0.0))
    ties = ops.select(ops.eq(x, top), full_like(x, 0.0), -math.inf)
    apart = ops.select(ops.eq(top, math.inf), ties, apart)
    return ops.exp(apart), top


# --- softmax ----------------------------------------------------------------------------------


@fused
@composed
@api_boundary
def softmax_safe(x: ArrayLike, axis: Axis = -1, where: ArrayLike | None = None) -> ArrayBase:
    """exp(x) / sum(exp(x)) along axes, without NaN for any numbers.

    Where nothing is left, because all is -inf or masked, the result is 0, and so is the derivative.
    Infinities share the result equally. Only NaN gives NaN.

    Args:
        x: real numbers.
        axis: the axes; None is all.
        where: a mask, broadcast to `x`; what it leaves out gets 0.

    Returns:
        An array of the shape and the dtype of `x`.
    """
    found = real("softmax_safe", x)
    axes = parse_axes("nn.softmax_safe", axis, found.ndim)
    wide = masked("softmax_safe", widened(found), where, -math.inf)
    return ops.cast(_softmax(wide, axes), found.dtype)


def _softmax_plain(x: Any, axes: tuple[int, ...]) -> Any:
    powers, _ = _powers(x, axes)
    total = with_dims(reduce.sum_(powers, axes), x.shape, axes)
    inverse = ops.div(1.0, ops.select(ops.eq(total, 0.0), 1.0, total))
    return ops.mul(powers, spread(inverse, x.shape))


_softmax = custom_jvp(_softmax_plain, nondiff_argnums=(1,))


@_softmax.defjvp
def _(axes: tuple[int, ...], primals: tuple[Any], tangents: tuple[Any]) -> tuple[Any, Any]:
    out = _softmax(primals[0], axes)
    mean = total_along(ops.mul(out, tangents[0]), axes)
    return out, ops.mul(out, ops.sub(tangents[0], mean))


@fused
@composed
@api_boundary
def logsumexp_safe(
    x: ArrayLike, axis: Axis = None, keepdims: bool = False, where: ArrayLike | None = None
) -> ArrayBase:
    """log(sum(exp(x))) along axes, with a derivative that is always `softmax_safe(x)`.

    Of nothing (all -inf or masked) it is -inf, with derivative 0.

    Args:
        x: real numbers.
        axis: the axes; None is all.
        keepdims: whether the axes stay, with length 1.
        where: a mask, broadcast to `x`, of what is summed.
    """
    found = real("logsumexp_safe", x)
    axes = parse_axes("nn.logsumexp_safe", axis, found.ndim)
    wide = masked("logsumexp_safe", widened(found), where, -math.inf)
    result = ops.cast(_logsumexp(wide, axes), found.dtype)
    return with_dims(result, found.shape, axes) if keepdims else result


def _logsumexp_plain(x: Any, axes: tuple[int, ...]) -> Any:
    powers, _ = _powers(x, axes)
    total = ops.log(reduce.sum_(powers, axes))
    if any(x.shape[k] == 0 for k in axes):
        return total
    top = reduce.max_(x, axes)
    return ops.add(total, ops.select(ops.eq(top, -math.inf), 0.0, top))


_logsumexp = custom_jvp(_logsumexp_plain, nondiff_argnums=(1,))


@_logsumexp.defjvp
def _(axes: tuple[int, ...], primals: tuple[Any], tangents: tuple[Any]) -> tuple[Any, Any]:
    (x,) = primals
    return _logsumexp(x, axes), reduce.sum_(ops.mul(_softmax(x, axes), tangents[0]), axes)


@fused
@composed
@api_boundary
def log_softmax_safe(x: ArrayLike, axis: Axis = -1, where: ArrayLike | None = None) -> ArrayBase:
    """log(softmax_safe(x)) along axes, exact where softmax is near 0; -inf where it is 0.

    Args:
        x: real numbers.
        axis: the axes; None is all.
        where: a mask, broadcast to `x`; what it leaves out gets -inf.
    """
    found = real("log_softmax_safe", x)
    axes = parse_axes("nn.log_softmax_safe", axis, found.ndim)
    wide = masked("log_softmax_safe", widened(found), where, -math.inf)
    return ops.cast(_log_softmax(wide, axes), found.dtype)


def _log_softmax_plain(x: Any, axes: tuple[int, ...]) -> Any:
    powers, top = _powers(x, axes)
    apart = ops.sub(x, ops.select(ops.isfinite(top), top, 0.0))
    apart = ops.select(ops.eq(top, math.inf), ops.log(powers), apart)
    total = total_along(powers, axes)
    return ops.sub(apart, ops.log(ops.select(ops.eq(total, 0.0), 1.0, total)))


_log_softmax = custom_jvp(_log_softmax_plain, nondiff_argnums=(1,))


@_log_softmax.defjvp
def _(axes: tuple[int, ...], primals: tuple[Any], tangents: tuple[Any]) -> tuple[Any, Any]:
    (x,) = primals
    out = _log_softmax(x, axes)
    mean = total_along(ops.mul(_softmax(x, axes), tangents[0]), axes)
    # What has no probability has no derivative.
    return out, ops.select(ops.eq(out, -math.inf), 0.0, ops.sub(tangents[0], mean))


# --- normalisation ----------------------------------------------------------------------------


@fused
@composed
@api_boundary
def layernorm_safe(
    x: ArrayLike,
    scale: ArrayLike | None = None,
    bias: ArrayLike | None = None,
    *,
    axis: Axis = -1,
    epsilon: float = 1e-5,
) -> ArrayBase:
    """(x - mean) / sqrt(variance + epsilon) along axes, then times a scale and plus a bias.

    Squares do not overflow: the array is divided by a power of two first where it is large,
    which is exact. Where all elements are equal, the result is 0, for an `epsilon` of 0 too.

    Args:
        x: real numbers.
        scale: what the result is multiplied by, broadcast to `x`.
        bias: what is added after that, broadcast to `x`.
        axis: the axes; None is all.
        epsilon: what is added to the variance: a Python number.

    Returns:
        An array of the shape and the dtype of `x`.
    """
    name = "layernorm_safe"
    found = real(name, x)
    axes = parse_axes(f"nn.{name}", axis, found.ndim)
    small, inverse = _scaled(widened(found), axes, epsilon)
    # Relative to the first element, so that the mean of equal elements is exactly one of them.
    apart = ops.sub(small, _first(small, axes))
    apart = ops.sub(apart, mean_along(apart, axes))
    result = _normalised(apart, inverse, axes, epsilon)
    return _affine(name, result, scale, bias, found.dtype)


@composed
@api_boundary
def rmsnorm_safe(
    x: ArrayLike,
    scale: ArrayLike | None = None,
    *,
    axis: Axis = -1,
    epsilon: float = 1e-6,
) -> ArrayBase:
    """x / sqrt(mean(x**2) + epsilon) along axes, then times a scale.

    Squares do not overflow, as in `layernorm_safe`; zeros give zeros, for an `epsilon` of 0 too.

    Args:
        x: real numbers.
        scale: what the result is multiplied by, broadcast to `x`.
        axis: the axes; None is all.
        epsilon: what is added to the mean of the squares: a Python number.

    Returns:
        An array of the shape and the dtype of `x`.
    """
    name = "rmsnorm_safe"
    found = real(name, x)
    axes = parse_axes(f"nn.{name}", axis, found.ndim)
    small, inverse = _scaled(widened(found), axes, epsilon)
    return _affine(name, _normalised(small, inverse, axes, epsilon), scale, None, found.dtype)


def _scaled(x: Any, axes: Sequence[int], epsilon: float) -> tuple[Any, Any]:
    """An array divided by a power of two, and the inverse of that.

    Where its elements are above 1; without an epsilon, which tells how small is 0, also below.
    """
    least = float(finfo(x.dtype).smallest_normal)
    top = ops.maximum(largest_along(ops.abs_(x), axes), 1.0 if epsilon else least)
    power = power_below(top)
    # The largest power has an inverse that is no normal number, which some devices take for 0.
    inverse = ops.maximum(ops.div(1.0, power), least)
    inverse = stop_gradient(inverse)
    return ops.mul(x, inverse), inverse


def power_below(x: Any) -> Any:
    """The power of two not above a positive normal number. Without a derivative."""
    words, exponent = (uint64, 0x7FF << 52) if x.dtype is float64 else (uint32, 0xFF << 23)
    return ops.bitcast(ops.and_(ops.bitcast(x, words), exponent), x.dtype)


def _first(x: Any, axes: Sequence[int]) -> Any:
    """The first element along axes, repeated along them. Without a derivative."""
    if any(x.shape[k] == 0 for k in axes):
        return full_like(x, 0.0)
    found = stop_gradient(x)
    for k in axes:
        found = slice_axis(found, k, 0, 1)
    return spread(found, x.shape)


def mean_along(x: Any, axes: Sequence[int]) -> Any:
    dims = [x.shape[k] for k in axes]
    if 0 in dims:
        return x
    return ops.div(total_along(x, axes), spread(size_of(dims, x.dtype), x.shape))


def _normalised(x: Any, inverse: Any, axes: Sequence[int], epsilon: float) -> Any:
    variance = mean_along(ops.mul(x, x), axes)
    if epsilon:
        variance = ops.add(variance, ops.mul(ops.mul(inverse, inverse), epsilon))
    is_zero = ops.eq(variance, 0.0)
    found = ops.div(x, ops.sqrt(ops.select(is_zero, 1.0, variance)))
    return ops.select(is_zero, 0.0, found)


def _affine(name: str, x: Any, scale: Any, bias: Any, dtype: DType) -> Any:
    for what, given, op in (("scale", scale, ops.mul), ("bias", bias, ops.add)):
        if given is None:
            continue
        part = real(name, given)
        if broadcast_dims([part.shape, x.shape]) != x.shape:
            raise ShapeError(
                f"nn.{name}: {what} has the shape {shape_text(part.shape)}, and the array "
                f"{shape_text(x.shape)}",
                loc=loc.current(),
                rule=f"the {what} is broadcast to the shape of the array",
            )
        x = op(x, spread(ops.cast(part, x.dtype), x.shape))
    return ops.cast(x, dtype)
