"""The normal distribution between two limits."""

from __future__ import annotations

from typing import Any

from tessera.api import custom_jvp
from tessera.dtypes import DType, DTypeLike, default_float, float64
from tessera.errors import OptionError, api_boundary
from tessera.graph.array import ArrayBase
from tessera.graph.namespace.arguments import ArrayLike, Shape, as_array, operands, spread
from tessera.graph.ops import elementwise as ops
from tessera.ir import loc
from tessera.ir.intexpr import Dim
from tessera.random import portable
from tessera.random.continuous import halves
from tessera.random.keys import compiled, known, parse_float, parse_key, sample_shape

__all__ = ["truncated_normal"]


@api_boundary
def truncated_normal(
    key: ArrayLike,
    lower: ArrayLike,
    upper: ArrayLike,
    shape: Shape | None = None,
    dtype: DTypeLike = default_float,
) -> ArrayBase:
    """Standard normal numbers, given that they are between two limits.

    They are computed in float64 by the inverse of the distribution function, from the side where it
    is smaller, so tails are exact up to 37 standard deviations. Differentiable in the limits.

    Args:
        key: a key.
        lower: lower limits; `-ts.inf` for none.
        upper: upper limits.
        shape: the shape of the result, which the limits are broadcast to; by default their common
            shape.
        dtype: a floating-point dtype.

    Raises:
        OptionError: `lower` is known not to be below `upper`.
    """
    name = "random.truncated_normal"
    found, wanted = parse_key(name, key), parse_float(name, dtype)
    first, last = known(lower), known(upper)
    if (
        first is not None
        and last is not None
        and not first.ndim
        and not last.ndim
        and first >= last
    ):
        raise OptionError(
            f"{name}: lower is {first}, upper {last}", loc=loc.current(), rule="lower < upper"
        )
    limits = [ops.cast(as_array(name, x), wanted) for x in (lower, upper)]
    low, high = operands(name, *limits)
    dims = sample_shape(name, shape, low.shape, "the array of limits")
    return _truncated_normal(found, low, high, dims, wanted)


@compiled("shape", "dtype")
def _truncated_normal(
    key: Any, lower: Any, upper: Any, shape: tuple[Dim, ...], dtype: DType
) -> Any:
    low, high = [spread(ops.cast(x, float64), shape) for x in (lower, upper)]
    share, rest = halves(key, shape, float64)
    found = ops.cast(_between(share, rest, low, high), dtype)
    # Rounding may lead out of the interval.
    return _clipped(found, *[spread(x, shape) for x in (lower, upper)])


@custom_jvp
def _between(share: Any, rest: Any, low: Any, high: Any) -> Any:
    """Where a share of the probability between two limits is to the left; rest is 1 - share."""
    # On the left side of the distribution, probabilities that are small have all their digits.
    is_right = ops.gt(ops.add(low, high), 0.0)
    left = ops.select(is_right, ops.neg(high), low)
    right = ops.select(is_right, ops.neg(low), high)
    share = ops.select(is_right, rest, share)
    below, through = [
        ops.select(ops.lt(x, 0.0), tail, ops.sub(1.0, tail))
        for x in (left, right)
        for tail in (portable.normal_tail(ops.abs_(x)),)
    ]
    place = ops.add(below, ops.mul(share, ops.sub(through, below)))
    is_above = ops.gt(place, 0.5)
    tail = ops.select(is_above, ops.sub(1.0, place), place)
    found = portable.normal_quantile(tail, ops.sub(0.5, tail))
    return ops.select(ops.ne(is_above, is_right), found, ops.neg(found))


@_between.defjvp
def _(primals: tuple[Any, ...], tangents: tuple[Any, ...]) -> tuple[Any, Any]:
    share, rest, low, high = primals
    found = _between(*primals)

    def part(weight: Any, limit: Any, t: Any) -> Any:
        """The densities of the limit and of the sample say how much of a shift arrives."""
        growth = ops.mul(ops.mul(ops.sub(found, limit), ops.add(found, limit)), 0.5)
        ratio = ops.select(ops.isfinite(limit), ops.exp(growth), ops.mul(share, 0.0))
        return ops.mul(ops.mul(weight, ratio), t)

    return found, ops.add(part(rest, low, tangents[2]), part(share, high, tangents[3]))


def _clipped(x: Any, lower: Any, upper: Any) -> Any:
    return ops.minimum(ops.maximum(x, lower), upper)
