"""Softmax and its kin with the arguments of JAX. `normalization` has those that are safe."""

from __future__ import annotations

import math
from typing import Any

from tessera.errors import api_boundary
from tessera.graph.array import ArrayBase
from tessera.graph.namespace import statistics
from tessera.graph.namespace.arguments import ArrayLike, inexact_operands, parse_axes
from tessera.graph.namespace.statistics import Axis, stop_gradient, with_dims
from tessera.graph.ops import elementwise as ops
from tessera.graph.ops import reduce
from tessera.graph.shortcut import composed, fused
from tessera.nn.activations import real
from tessera.nn.normalization import largest_along, masked, mean_along, widened

__all__ = ["log_softmax", "logsumexp", "softmax", "standardize"]


@fused
@composed
@api_boundary
def softmax(x: ArrayLike, axis: Axis = -1, where: ArrayLike | None = None) -> ArrayBase:
    """exp(x) / sum(exp(x)) along axes, without overflow on the way.

    Args:
        x: real numbers.
        axis: the axes; None is all.
        where: a mask, broadcast to `x`; what it leaves out gets 0. With its derivative, see
            `softmax_safe` where it may leave out all.
    """
    found = masked("softmax", real("softmax", x), where, -math.inf)
    return masked("softmax", statistics.softmax(found, axis=axis), where, 0.0)


@fused
@composed
@api_boundary
def log_softmax(x: ArrayLike, axis: Axis = -1, where: ArrayLike | None = None) -> ArrayBase:
    """log(softmax(x)) along axes, exact where softmax is near 0.

    Args:
        x: real numbers.
        axis: the axes; None is all.
        where: a mask, broadcast to `x`; what it leaves out gets -inf.
    """
    found = masked("log_softmax", real("log_softmax", x), where, -math.inf)
    return masked("log_softmax", statistics.log_softmax(found, axis=axis), where, -math.inf)


@fused
@composed
@api_boundary
def logsumexp(
    a: ArrayLike,
    axis: Axis = None,
    b: ArrayLike | None = None,
    keepdims: bool = False,
    return_sign: bool = False,
    where: ArrayLike | None = None,
) -> ArrayBase | tuple[ArrayBase, ArrayBase]:
    """log(sum(b * exp(a))) along axes, without overflow on the way.

    Args:
        a: real numbers.
        axis: the axes; None is all.
        b: factors, broadcast with `a`; 1 by default.
        keepdims: whether the axes stay, with length 1.
        return_sign: whether to return the logarithm of the sum's absolute value, and its sign.
            Without, the result is NaN where the sum is negative.
        where: a mask, broadcast to `a`, of what is summed.

    Returns:
        The logarithms, or a pair of these and the signs.
    """
    found = real("logsumexp", a)
    if b is None and not return_sign:
        rest = masked("logsumexp", found, where, -math.inf)
        return statistics.logsumexp(rest, axis=axis, keepdims=keepdims)
    factor: Any = 1.0 if b is None else real("logsumexp", b)
    found, factor = inexact_operands("nn.logsumexp", found, factor)
    axes = parse_axes("nn.logsumexp", axis, found.ndim)
    wide = masked("logsumexp", widened(found), where, -math.inf)
    # What has no weight has no part in the largest either.
    wide = ops.select(ops.eq(factor, 0.0), -math.inf, wide)
    top = largest_along(wide, axes)
    top = ops.select(ops.isfinite(top), top, 0.0)
    terms = ops.mul(ops.exp(ops.sub(wide, top)), ops.cast(factor, wide.dtype))
    terms = ops.select(ops.eq(wide, -math.inf), 0.0, terms)
    sums = reduce.sum_(terms, axes)
    sign = stop_gradient(ops.sign(sums))
    size = ops.abs_(sums) if return_sign else sums
    # The largest is the same along the axes, so any reduction of it is it.
    logs = ops.log(size)
    if all(wide.shape[k] != 0 for k in axes):
        logs = ops.add(logs, reduce.max_(top, axes))
    results = [ops.cast(v, found.dtype) for v in (logs, sign)]
    if keepdims:
        results = [with_dims(v, found.shape, axes) for v in results]
    return (results[0], results[1]) if return_sign else results[0]


@fused
@composed
@api_boundary
def standardize(
    x: ArrayLike,
    axis: Axis = -1,
    mean: ArrayLike | None = None,
    variance: ArrayLike | None = None,
    epsilon: ArrayLike = 1e-5,
) -> ArrayBase:
    """(x - mean) / sqrt(variance + epsilon) along axes.

    Args:
        x: real numbers.
        axis: the axes; None is all.
        mean: the mean, broadcast to `x`; by default that along the axes.
        variance: the variance, broadcast to `x`; by default that along the axes, around their own
            mean.
        epsilon: what is added to the variance.
    """
    found = real("standardize", x)
    axes = parse_axes("nn.standardize", axis, found.ndim)
    wide = widened(found)
    centre = mean_along(wide, axes) if mean is None else real("standardize", mean)
    _, centre = inexact_operands("nn.standardize", wide, centre)
    apart = ops.sub(wide, ops.cast(centre, wide.dtype))
    if variance is None:
        own = ops.sub(wide, mean_along(wide, axes))
        width = mean_along(ops.mul(own, own), axes)
    else:
        _, width = inexact_operands("nn.standardize", wide, real("standardize", variance))
    _, small = inexact_operands("nn.standardize", wide, epsilon)
    size = ops.sqrt(ops.add(ops.cast(width, wide.dtype), ops.cast(small, wide.dtype)))
    return ops.cast(ops.div(apart, size), found.dtype)
