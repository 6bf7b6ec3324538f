"""Distributions of real numbers: uniform, normal, exponential and what is made from these by one
formula.

Samples are computed in float32, or in float64 for that dtype, by functions whose results are the
same bits on every machine (`portable`). They use 31 or 32 random bits for a number of 32 bits, so
tails are fine: a normal number in float32 reaches 6.2 standard deviations.
"""

from __future__ import annotations

from typing import Any, Final

from tessera.dtypes import DType, DTypeLike, default_float, float64, int32, int64
from tessera.errors import OptionError, api_boundary
from tessera.graph.array import ArrayBase
from tessera.graph.namespace.arguments import (
    ArrayLike,
    Shape,
    as_array,
    is_number,
    parse_shape,
    spread,
)
from tessera.graph.namespace.statistics import stop_gradient
from tessera.graph.ops import elementwise as ops
from tessera.ir import loc
from tessera.ir.intexpr import Dim
from tessera.random import portable
from tessera.random.keys import (
    UNSIGNED,
    compiled,
    known,
    parse_float,
    parse_key,
    sample_shape,
    words,
    working,
)

__all__ = [
    "exponential",
    "gumbel",
    "laplace",
    "logistic",
    "normal",
    "uniform",
]

# The bits of a mantissa, with the one that is not stored: as many as a uniform number has.
_DIGITS: Final = {"f16": 11, "bf16": 8, "f32": 24, "f64": 53}


def bit_width(dtype: DType) -> int:
    """The number of random bits for one number."""
    return 64 if dtype is float64 else 32


# --- uniform ----------------------------------------------------------------------------------


@api_boundary
def uniform(
    key: ArrayLike,
    shape: Shape = (),
    dtype: DTypeLike = default_float,
    minval: ArrayLike = 0.0,
    maxval: ArrayLike = 1.0,
) -> ArrayBase:
    """Uniformly distributed numbers in [minval, maxval).

    They are multiples of 2**-24 in float32 (2**-53 in float64) before they are scaled.
    Differentiable in `minval` and `maxval`.

    Args:
        key: a key.
        shape: the shape of the result.
        dtype: a floating-point dtype.
        minval: the least number; broadcast to `shape`.
        maxval: the end of the interval, which does not belong to it; broadcast to `shape`.

    Raises:
        OptionError: `minval` is known to be above `maxval`.
    """
    name = "random.uniform"
    found = parse_key(name, key)
    wanted = parse_float(name, dtype)
    dims = parse_shape(name, shape)
    if is_number(minval) and is_number(maxval) and (minval, maxval) == (0.0, 1.0):
        return _unit(found, dims, wanted)
    low, high = [ops.cast(as_array(name, x), wanted) for x in (minval, maxval)]
    sample_shape(name, dims, low.shape, "minval")
    sample_shape(name, dims, high.shape, "maxval")
    check_order(name, minval, maxval)
    return _uniform(found, low, high, dims, wanted)


def check_order(name: str, minval: Any, maxval: Any) -> None:
    """Refuses limits that are known to be in the wrong order."""
    low, high = known(minval), known(maxval)
    if low is None or high is None or low.ndim or high.ndim or low <= high:
        return
    raise OptionError(
        f"{name}: minval {low} is above maxval {high}",
        loc=loc.current(),
        rule="minval <= maxval",
        fix="exchange them",
    )


@compiled("shape", "dtype")
def _unit(key: Any, shape: tuple[Dim, ...], dtype: DType) -> Any:
    return unit(key, shape, dtype)


def unit(key: Any, shape: tuple[Dim, ...], dtype: DType) -> Any:
    """Numbers in [0, 1), of as many bits as their mantissa has."""
    width, digits = bit_width(dtype), _DIGITS[dtype.name]
    drawn = ops.shr(words(key, shape, width), width - digits)
    return ops.mul(ops.cast(drawn, dtype), 2.0**-digits)


@compiled("shape", "dtype")
def _uniform(key: Any, low: Any, high: Any, shape: tuple[Dim, ...], dtype: DType) -> Any:
    low, high = spread(low, shape), spread(high, shape)
    found = ops.add(low, ops.mul(unit(key, shape, dtype), ops.sub(high, low)))
    # The sum may round up to the end.
    last = ops.maximum(low, stop_gradient(ops.nextafter(high, low)))
    return ops.select(ops.ge(found, high), last, found)


# --- normal -----------------------------------------------------------------------------------


@api_boundary
def normal(key: ArrayLike, shape: Shape = (), dtype: DTypeLike = default_float) -> ArrayBase:
    """Normally distributed numbers with mean 0 and variance 1.

    They come from uniform ones by the inverse of the distribution function (Wichura, "Algorithm AS
    241", 1988). For other means and variances write `mean + deviation * normal(...)`, which is
    differentiable in both.

    Args:
        key: a key.
        shape: the shape of the result.
        dtype: a floating-point dtype.

    Example:
        >>> import tessera as ts
        >>> x = ts.random.normal(ts.random.key(1), (10_000,))
        >>> bool(abs(ts.mean(x)) < 0.03)
        True
    """
    found = parse_key("random.normal", key)
    wanted = parse_float("random.normal", dtype)
    return _normal(found, parse_shape("random.normal", shape), wanted)


@compiled("shape", "dtype")
def _normal(key: Any, shape: tuple[Dim, ...], dtype: DType) -> Any:
    return ops.cast(standard_normal(key, shape, working(dtype)), dtype)


def standard_normal(key: Any, shape: tuple[Dim, ...], dtype: DType) -> Any:
    """Normally distributed numbers of dtype float32 or float64."""
    width = bit_width(dtype)
    whole, signed = UNSIGNED[width], int64 if width == 64 else int32
    drawn = ops.bitcast(words(key, shape, width), signed)
    is_negative = ops.lt(drawn, 0)
    # One of 2**(width - 1) cells on either side of the median, and the middle of it.
    cell = ops.select(is_negative, ops.not_(drawn), drawn)
    last = 2 ** (width - 1) - 1
    tail, centre = [
        ops.mul(ops.cast(ops.add(ops.shl(ops.bitcast(c, whole), 1), 1), dtype), 2.0 ** -(width + 1))
        for c in (ops.sub(last, cell), cell)
    ]
    found = portable.normal_quantile(tail, centre)
    return ops.select(is_negative, ops.neg(found), found)


# --- exponential and its kin ------------------------------------------------------------------


def halves(key: Any, shape: tuple[Dim, ...], dtype: DType) -> tuple[Any, Any]:
    """Uniform numbers in (0, 1), and 1 minus these, both rounded once."""
    width = bit_width(dtype)
    drawn = ops.shr(words(key, shape, width), 1)
    last = 2 ** (width - 1) - 1
    below, above = [
        ops.mul(ops.cast(ops.add(ops.shl(c, 1), 1), dtype), 2.0**-width)
        for c in (drawn, ops.sub(last, drawn))
    ]
    return below, above


def standard_exponential(key: Any, shape: tuple[Dim, ...], dtype: DType) -> Any:
    """Exponentially distributed numbers of dtype float32 or float64."""
    below, above = halves(key, shape, dtype)
    return ops.neg(portable.log(below, below_one=above))


@api_boundary
def exponential(key: ArrayLike, shape: Shape = (), dtype: DTypeLike = default_float) -> ArrayBase:
    """Exponentially distributed numbers with rate 1: positive, with density exp(-x).

    For another rate divide by it.

    Args:
        key: a key.
        shape: the shape of the result.
        dtype: a floating-point dtype.
    """
    return _simple("exponential", key, shape, dtype)


@api_boundary
def gumbel(key: ArrayLike, shape: Shape = (), dtype: DTypeLike = default_float) -> ArrayBase:
    """Numbers with the standard Gumbel distribution, whose distribution function is exp(-exp(-x)).

    The argmax of logits to which such numbers are added is a sample of their categorical
    distribution; see `categorical`.

    Args:
        key: a key.
        shape: the shape of the result.
        dtype: a floating-point dtype.
    """
    return _simple("gumbel", key, shape, dtype)


@api_boundary
def laplace(key: ArrayLike, shape: Shape = (), dtype: DTypeLike = default_float) -> ArrayBase:
    """Numbers with the standard Laplace distribution, of density exp(-abs(x)) / 2.

    Args:
        key: a key.
        shape: the shape of the result.
        dtype: a floating-point dtype.
    """
    return _simple("laplace", key, shape, dtype)


@api_boundary
def logistic(key: ArrayLike, shape: Shape = (), dtype: DTypeLike = default_float) -> ArrayBase:
    """Numbers with the standard logistic distribution, whose distribution function is the sigmoid.

    Args:
        key: a key.
        shape: the shape of the result.
        dtype: a floating-point dtype.
    """
    return _simple("logistic", key, shape, dtype)


def _simple(kind: str, key: Any, shape: Shape, dtype: DTypeLike) -> Any:
    name = f"random.{kind}"
    found = parse_key(name, key)
    return _from_exponential(found, parse_shape(name, shape), parse_float(name, dtype), kind)


@compiled("shape", "dtype", "kind")
def _from_exponential(key: Any, shape: tuple[Dim, ...], dtype: DType, kind: str) -> Any:
    below, above = halves(key, shape, working(dtype))
    found = ops.neg(portable.log(below, below_one=above))
    if kind == "gumbel":
        found = ops.neg(portable.log(found))
    elif kind == "laplace":
        # The lowest bit has no part in the size.
        drawn = words(key, shape, bit_width(dtype))
        found = ops.select(ops.ne(ops.and_(drawn, 1), 0), ops.neg(found), found)
    elif kind == "logistic":
        found = ops.sub(ops.neg(portable.log(above, below_one=below)), found)
    return ops.cast(found, dtype)
