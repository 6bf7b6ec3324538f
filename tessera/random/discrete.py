"""Distributions of integers and of choices."""

from __future__ import annotations

import math
from typing import Any, Literal

from tessera.dtypes import (
    DType,
    DTypeLike,
    Kind,
    default_int,
    float64,
    iinfo,
    int32,
    int64,
    uint64,
)
from tessera.errors import DTypeError, OptionError, ShapeError, api_boundary
from tessera.graph.array import ArrayBase
from tessera.graph.namespace.arguments import (
    ArrayLike,
    Shape,
    as_array,
    as_inexact,
    number,
    parse_axis,
    parse_dtype,
    parse_shape,
    spread,
)
from tessera.graph.namespace.searching import argmax
from tessera.graph.namespace.sorting import argsort
from tessera.graph.ops import elementwise as ops
from tessera.graph.ops.rearrange import slice_axis
from tessera.graph.ops.reshape import move_axis, reshape, squeeze
from tessera.ir import loc
from tessera.ir.intexpr import Dim
from tessera.random import portable
from tessera.random.continuous import check_order, standard_exponential
from tessera.random.keys import (
    UNSIGNED,
    compiled,
    known,
    parse_integer,
    parse_key,
    refuse,
    sample_shape,
    words,
    working,
)

__all__ = ["bernoulli", "categorical", "rademacher", "randint"]

# --- integers ---------------------------------------------------------------------------------


@api_boundary
def randint(
    key: ArrayLike,
    shape: Shape,
    minval: ArrayLike,
    maxval: ArrayLike,
    dtype: DTypeLike = default_int,
) -> ArrayBase:
    """Integers of [minval, maxval), each as likely as the others.

    How often a number comes differs from the others' by less than 2**-32 of it, and by 2**-64 for
    dtypes of 64 bits.

    Args:
        key: a key.
        shape: the shape of the result.
        minval: the least one; broadcast to `shape`.
        maxval: the end of the range, which does not belong to it; broadcast to `shape`. Where
            it turns out not to be above `minval` when the program runs, the result is `minval`.
        dtype: an integer dtype.

    Raises:
        OptionError: `maxval` is known not to be above `minval`, or a limit does not fit the dtype.
    """
    name = "random.randint"
    found, wanted = parse_key(name, key), parse_integer(name, dtype)
    dims = parse_shape(name, shape)
    check_order(name, minval, maxval)
    first, end = known(minval), known(maxval)
    if first is not None and end is not None and not first.ndim and not end.ndim and first == end:
        raise OptionError(
            f"{name}: minval and maxval are both {first}",
            loc=loc.current(),
            rule="minval < maxval: maxval is not one of the results",
            fix=f"use maxval={int(end) + 1}",
        )
    low = _limit(name, "minval", minval, wanted, dims)
    last = _limit(name, "maxval", maxval, wanted, dims)
    return _randint(found, low, last, dims, wanted)


def _limit(name: str, what: str, x: Any, dtype: DType, shape: tuple[Dim, ...]) -> Any:
    """`minval`, or the last integer before `maxval`, in 64 bits."""
    below = what == "maxval"
    wide = uint64 if dtype is uint64 else int64
    if isinstance(x, int):
        info = iinfo(dtype)
        if not info.min <= x - below <= info.max:
            raise OptionError(
                f"{name}: {what} is {x}, and dtype {dtype}",
                loc=loc.current(),
                rule=f"{info.min + below} <= {what} <= {info.max + below}",
                fix="choose a wider dtype",
            )
        return number(x - below, wide)
    found = as_array(name, x)
    if not found.dtype.is_integer:
        raise DTypeError(
            f"{name}: {what} is {found.type.strong()}",
            loc=loc.current(),
            rule="limits are integers",
            fix="use `ts.random.uniform` for real numbers",
        )
    sample_shape(name, shape, found.shape, what)
    found = ops.cast(found, wide)
    if not below:
        return found
    least = iinfo(wide).min
    return ops.sub(found, ops.cast(ops.ne(found, least), wide))


@compiled("shape", "dtype")
def _randint(key: Any, low: Any, last: Any, shape: tuple[Dim, ...], dtype: DType) -> Any:
    low, last = spread(low, shape), spread(last, shape)
    width = 64 if dtype.bits == 64 else 32
    whole = UNSIGNED[width]
    start = ops.cast(low, whole)
    count = ops.add(ops.sub(ops.cast(ops.maximum(low, last), whole), start), 1)
    return ops.cast(ops.add(start, below(key, count, shape)), dtype)


def below(key: Any, count: Any, shape: tuple[Dim, ...]) -> Any:
    """Integers of [0, count), of dtype uint32 or uint64; a count of 0 stands for 2**width.

    The upper word of the product of `count` and a random number of two words (Lemire, "Fast random
    integer generation in an interval", 2019, without the rejection).
    """
    width = count.dtype.bits
    at = len(shape)
    drawn = words(key, (*shape, 2), width)
    high, low = [squeeze(slice_axis(drawn, at, k, k + 1), (at,)) for k in (0, 1)]
    middle = ops.mul(high, count)
    total = ops.add(middle, ops.mulhi(low, count))
    carry = ops.cast(ops.lt(total, middle), count.dtype)
    found = ops.add(ops.mulhi(high, count), carry)
    return ops.select(ops.eq(count, 0), high, found)


@api_boundary
def rademacher(key: ArrayLike, shape: Shape = (), dtype: DTypeLike = default_int) -> ArrayBase:
    """Numbers that are 1 or -1, with equal probabilities.

    Args:
        key: a key.
        shape: the shape of the result.
        dtype: any dtype that has -1.
    """
    name = "random.rademacher"
    found, wanted = parse_key(name, key), parse_dtype(name, dtype)
    if wanted.is_bool or wanted.kind is Kind.UINT:
        raise DTypeError(
            f"{name}: dtype is {wanted}", loc=loc.current(), rule="it is a dtype that has -1"
        )
    return _rademacher(found, parse_shape(name, shape), wanted)


@compiled("shape", "dtype")
def _rademacher(key: Any, shape: tuple[Dim, ...], dtype: DType) -> Any:
    signs = ops.shr(ops.bitcast(words(key, shape), int32), 31)
    return ops.cast(ops.or_(signs, 1), dtype)


# --- choices ----------------------------------------------------------------------------------


@api_boundary
def bernoulli(
    key: ArrayLike,
    p: ArrayLike = 0.5,
    shape: Shape | None = None,
    mode: Literal["low", "high"] = "low",
) -> ArrayBase:
    """True with probability p, else false.

    Args:
        key: a key.
        p: probabilities.
        shape: the shape of the result, which `p` is broadcast to; by default that of `p`.
        mode: probabilities are rounded down to multiples of 2**-32, or with `"high"` of 2**-63.

    Raises:
        OptionError: a probability is known not to be in [0, 1].
    """
    name = "random.bernoulli"
    found = parse_key(name, key)
    if mode not in ("low", "high"):
        raise OptionError(f"{name}: mode={mode!r}", loc=loc.current(), rule="it is 'low' or 'high'")
    refuse(name, "p", p, lambda p: ~((p >= 0) & (p <= 1)), "0 <= p <= 1")
    chance = as_inexact(name, p)
    if chance.dtype.is_complex:
        raise DTypeError(
            f"{name}: p is {chance.type.strong()}",
            loc=loc.current(),
            rule="probabilities are real",
        )
    dims = sample_shape(name, shape, chance.shape, "p")
    return _bernoulli(found, chance, dims, 64 if mode == "high" else 32)


@compiled("shape", "width")
def _bernoulli(key: Any, p: Any, shape: tuple[Dim, ...], width: int) -> Any:
    p = spread(ops.cast(p, float64 if width == 64 else working(p.dtype)), shape)
    # Scaling by a power of two is exact. Words of 64 bits lose one, so that the limit fits.
    bits = min(width, 63)
    limit = ops.minimum(ops.maximum(ops.mul(p, 2.0**bits), 0.0), 2.0**bits)
    drawn = ops.shr(ops.cast(words(key, shape, width), uint64), width - bits)
    return ops.lt(drawn, ops.cast(limit, uint64))


@api_boundary
def categorical(
    key: ArrayLike,
    logits: ArrayLike,
    axis: int = -1,
    shape: Shape | None = None,
    replace: bool = True,
) -> ArrayBase:
    """Indices, with probabilities that are the softmax of `logits` along an axis.

    By the Gumbel-max method: the argmax of the logits plus Gumbel noise.

    Args:
        key: a key.
        logits: logarithms of probabilities, up to a constant; -inf for what must not come.
        axis: the axis of the categories.
        shape: the shape of the result: that of the logits without the axis, with further samples in
            leading dims. By default without these.
        replace: whether the samples along the leading dims may be equal.

    Returns:
        int64 indices along the axis.

    Raises:
        ShapeError: `shape` does not fit, there are no categories, or fewer than are to be drawn.

    Example:
        >>> import tessera as ts
        >>> logits = ts.log(ts.asarray([0.1, 0.6, 0.3]))
        >>> ts.random.categorical(ts.random.key(0), logits, shape=(4,)).shape
        (4,)
    """
    name = "random.categorical"
    found = parse_key(name, key)
    weights = as_inexact(name, logits)
    if weights.dtype.is_complex or not weights.ndim:
        raise (ShapeError if weights.dtype.is_float else DTypeError)(
            f"{name}: the logits are {weights.type.strong()}",
            loc=loc.current(),
            rule="they are real numbers along an axis",
        )
    at = parse_axis(name, axis, weights.ndim)
    batch = weights.shape[:at] + weights.shape[at + 1 :]
    dims = sample_shape(name, shape, batch, "the array of logits without their axis")
    count = weights.shape[at]
    lead = dims[: len(dims) - len(batch)]
    several: Any = 1 if replace else math.prod(lead)
    if isinstance(count, int) and isinstance(several, int) and several > count:
        raise ShapeError(
            f"{name}: draws {several} of {count} categories",
            loc=loc.current(),
            rule="without replacement there are at most as many samples as categories"
            if not replace
            else "there is a category",
        )
    return _categorical(found, move_axis(weights, at, -1), dims, replace)


@compiled("shape", "replace")
def _categorical(key: Any, logits: Any, shape: tuple[Dim, ...], replace: bool) -> Any:
    rank, count = logits.ndim - 1, logits.shape[-1]
    lead, batch = shape[: len(shape) - rank], shape[len(shape) - rank :]
    full = (*shape, count) if replace else (*batch, count)
    dtype = working(logits.dtype)
    noise = ops.neg(portable.log(standard_exponential(key, full, dtype)))
    scores = ops.add(spread(ops.cast(logits, dtype), full), noise)
    if replace:
        return argmax(scores, axis=-1)
    order = argsort(scores, axis=-1, descending=True)
    chosen = slice_axis(order, rank, 0, math.prod(lead))
    return reshape(move_axis(chosen, rank, 0), shape)
