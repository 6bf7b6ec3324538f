"""The Poisson and the binomial distribution."""

from __future__ import annotations

import math
from typing import Any, Final

from tessera.api import while_loop
from tessera.dtypes import DType, DTypeLike, default_float, default_int, float64, iinfo, int32
from tessera.errors import DTypeError, api_boundary
from tessera.graph.array import ArrayBase
from tessera.graph.namespace.arguments import (
    ArrayLike,
    Shape,
    as_array,
    operands,
    parse_dtype,
    spread,
)
from tessera.graph.namespace.utility import all as reduce_all
from tessera.graph.ops import elementwise as ops
from tessera.graph.ops.reshape import full
from tessera.ir import loc
from tessera.ir.intexpr import Dim
from tessera.random import portable
from tessera.random.continuous import halves
from tessera.random.keys import (
    compiled,
    parse_integer,
    parse_key,
    refuse,
    sample_shape,
    sequence,
)

__all__ = ["binomial", "poisson"]

_FEW: Final = 10.0
"""From this rate on samples come from proposals."""

# No sample below that rate is larger, and at most three of ten proposals are rejected.
_ROUNDS: Final = 128


@api_boundary
def poisson(
    key: ArrayLike, lam: ArrayLike, shape: Shape | None = None, dtype: DTypeLike = default_int
) -> ArrayBase:
    """Poisson distributed integers: k with probability lam**k * exp(-lam) / k!.

    Rates below 10 by the inverse of the distribution function, others by the method PTRS of
    Hörmann, "The transformed rejection method for generating Poisson random variables" (1993); in
    float64.

    Args:
        key: a key.
        lam: rates, at least 0; at most 2**52.
        shape: the shape of the result, which `lam` is broadcast to; by default that of `lam`.
        dtype: an integer dtype; samples that are too large for it are its largest number.

    Returns:
        Integers; -1 (0 in unsigned dtypes) where a rate turns out to be negative or NaN when the
        program runs.

    Raises:
        OptionError: a rate is known to be negative.
    """
    name = "random.poisson"
    found, wanted = parse_key(name, key), parse_integer(name, dtype)
    refuse(name, "lam", lam, lambda v: ~((v >= 0) & (v <= 2.0**52)), "0 <= lam <= 2**52")
    rate = as_array(name, lam)
    if rate.dtype.is_complex:
        raise DTypeError(
            f"{name}: lam is {rate.type.strong()}", loc=loc.current(), rule="lam is real"
        )
    dims = sample_shape(name, shape, rate.shape, "lam")
    return _poisson(found, ops.cast(rate, float64), dims, wanted)


@compiled("shape", "dtype")
def _poisson(key: Any, lam: Any, shape: tuple[Dim, ...], dtype: DType) -> Any:
    lam = spread(lam, shape)
    is_right = ops.ge(lam, 0.0)
    is_large = ops.ge(lam, _FEW)
    small = _inverted(key, ops.select(ops.and_(is_right, ops.not_(is_large)), lam, _zeros(shape)))
    large = _proposed(key, ops.select(is_large, lam, full(shape, _FEW, float64)), is_large)
    found = ops.minimum(ops.select(is_large, large, small), float(2**53))
    info = iinfo(dtype)
    if dtype.bits < 64:
        found = ops.minimum(found, float(info.max))
    wrong = full(shape, -1.0 if info.min else 0.0, float64)
    return ops.cast(ops.select(is_right, found, wrong), dtype)


def _zeros(shape: tuple[Dim, ...]) -> Any:
    return full(shape, 0.0, float64)


def _inverted(key: Any, lam: Any) -> Any:
    """Adds probabilities until they exceed a uniform number."""
    share, _ = halves(key, lam.shape, float64)
    first = portable.exp(ops.neg(lam))

    def is_open(state: tuple[Any, ...]) -> Any:
        step, _, _, total = state
        return ops.and_(ops.lt(step, _ROUNDS), ops.not_(reduce_all(ops.ge(total, share))))

    def add(state: tuple[Any, ...]) -> tuple[Any, ...]:
        step, count, term, total = state
        is_below = ops.lt(total, share)
        step = ops.add(step, 1)
        term = ops.div(ops.mul(term, lam), spread(ops.cast(step, float64), lam.shape))
        count = ops.add(count, ops.cast(is_below, float64))
        return step, count, term, ops.select(is_below, ops.add(total, term), total)

    return while_loop(is_open, add, (full((), 0, int32), _zeros(lam.shape), first, first))[1]


def _proposed(key: Any, lam: Any, is_wanted: Any) -> Any:
    """Proposals by a ratio of uniform numbers, accepted by their probability."""
    shape = lam.shape
    log_lam = portable.log(lam)
    b = ops.add(ops.mul(ops.sqrt(lam), 2.53), 0.931)
    a = ops.add(ops.mul(b, 0.02483), -0.059)
    inverse = ops.add(ops.div(1.1328, ops.sub(b, 3.4)), 1.1239)
    limit = ops.sub(0.9277, ops.div(3.6224, ops.sub(b, 2.0)))

    def is_open(state: tuple[Any, ...]) -> Any:
        step, is_done, _ = state
        return ops.and_(ops.lt(step, _ROUNDS), ops.not_(reduce_all(is_done)))

    def propose(state: tuple[Any, ...]) -> tuple[Any, ...]:
        step, is_done, found = state
        first, _ = halves(sequence(key, ops.mul(step, 2)), shape, float64)
        v, _ = halves(sequence(key, ops.add(ops.mul(step, 2), 1)), shape, float64)
        u = ops.sub(first, 0.5)
        us = ops.sub(0.5, ops.abs_(u))
        slope = ops.add(ops.div(ops.mul(a, 2.0), us), b)
        k = ops.floor(ops.add(ops.add(ops.mul(slope, u), lam), 0.43))
        is_inside = ops.and_(ops.ge(us, 0.07), ops.le(v, limit))
        is_outside = ops.or_(ops.lt(k, 0.0), ops.and_(ops.lt(us, 0.013), ops.gt(v, us)))
        k = ops.maximum(k, 0.0)
        curve = ops.add(ops.div(a, ops.mul(us, us)), b)
        height = portable.log(ops.div(ops.mul(v, inverse), curve))
        weight = ops.sub(ops.sub(ops.mul(k, log_lam), lam), portable.log_factorial(k))
        is_fine = ops.or_(is_inside, ops.and_(ops.not_(is_outside), ops.le(height, weight)))
        found = ops.select(ops.and_(is_fine, ops.not_(is_done)), k, found)
        return ops.add(step, 1), ops.or_(is_done, is_fine), found

    start = (full((), 0, int32), ops.not_(is_wanted), ops.floor(lam))
    return while_loop(is_open, propose, start)[2]


# --- binomial ---------------------------------------------------------------------------------


@api_boundary
def binomial(
    key: ArrayLike,
    n: ArrayLike,
    p: ArrayLike,
    shape: Shape | None = None,
    dtype: DTypeLike = default_float,
) -> ArrayBase:
    """How many of n trials succeed, each with probability p.

    Where less than 10 are expected by the inverse of the distribution function, else by the method
    BTRS of Hörmann, "The generation of binomial random variates" (1993); in float64.

    Args:
        key: a key.
        n: numbers of trials, at least 0; fractions are cut off.
        p: probabilities of success.
        shape: the shape of the result, which the parameters are broadcast to; by default their
            common shape.
        dtype: a floating-point or an integer dtype.

    Returns:
        Whole numbers; NaN (-1 in integer dtypes, 0 in unsigned ones) where a parameter turns out to
        be wrong when the program runs.

    Raises:
        OptionError: a parameter is known to be wrong.
    """
    name = "random.binomial"
    found, wanted = parse_key(name, key), parse_dtype(name, dtype)
    if not (wanted.is_float or wanted.is_integer):
        raise DTypeError(f"{name}: dtype is {wanted}", loc=loc.current(), rule="it is of numbers")
    refuse(name, "n", n, lambda v: ~((v >= 0) & (v <= 2.0**52)), "0 <= n <= 2**52")
    refuse(name, "p", p, lambda v: ~((v >= 0) & (v <= 1)), "0 <= p <= 1")
    trials, chance = operands(name, *[ops.cast(as_array(name, x), float64) for x in (n, p)])
    dims = sample_shape(name, shape, trials.shape, "the array of parameters")
    return _binomial(found, trials, chance, dims, wanted)


@compiled("shape", "dtype")
def _binomial(key: Any, n: Any, p: Any, shape: tuple[Dim, ...], dtype: DType) -> Any:
    n, p = ops.floor(spread(n, shape)), spread(p, shape)
    is_right = ops.and_(ops.ge(n, 0.0), ops.and_(ops.ge(p, 0.0), ops.le(p, 1.0)))
    # The rarer of the two outcomes is counted.
    is_mirrored = ops.gt(p, 0.5)
    rare = ops.select(is_right, ops.select(is_mirrored, ops.sub(1.0, p), p), _zeros(shape))
    n = ops.select(is_right, n, _zeros(shape))
    is_large = ops.ge(ops.mul(n, rare), _FEW)
    small = _few_of(key, ops.select(is_large, _zeros(shape), n), rare)
    # A case with as many as are expected, for those that are not wanted.
    trials = ops.select(is_large, n, full(shape, 4 * _FEW, float64))
    chance = ops.select(is_large, rare, full(shape, 0.5, float64))
    large = _many_of(key, trials, chance, is_large)
    found = ops.select(is_large, large, small)
    found = ops.select(is_mirrored, ops.sub(n, found), found)
    if dtype.is_float:
        return ops.cast(ops.select(is_right, found, full(shape, math.nan, float64)), dtype)
    info = iinfo(dtype)
    found = ops.minimum(found, float(min(info.max, 2**53)))
    wrong = full(shape, -1.0 if info.min else 0.0, float64)
    return ops.cast(ops.select(is_right, found, wrong), dtype)


def _few_of(key: Any, n: Any, p: Any) -> Any:
    """Adds probabilities until they exceed a uniform number."""
    share, _ = halves(key, n.shape, float64)
    odds = ops.div(p, ops.sub(1.0, p))
    first = portable.exp(ops.mul(n, portable.log(ops.sub(1.0, p), below_one=p)))

    def is_open(state: tuple[Any, ...]) -> Any:
        step, count, _, total = state
        is_done = ops.or_(ops.ge(total, share), ops.ge(count, n))
        return ops.and_(ops.lt(step, _ROUNDS), ops.not_(reduce_all(is_done)))

    def add(state: tuple[Any, ...]) -> tuple[Any, ...]:
        step, count, term, total = state
        is_below = ops.and_(ops.lt(total, share), ops.lt(count, n))
        step = ops.add(step, 1)
        k = spread(ops.cast(step, float64), n.shape)
        left = ops.maximum(ops.add(ops.sub(n, k), 1.0), 0.0)
        term = ops.div(ops.mul(ops.mul(term, left), odds), k)
        count = ops.add(count, ops.cast(is_below, float64))
        return step, count, term, ops.select(is_below, ops.add(total, term), total)

    return while_loop(is_open, add, (full((), 0, int32), _zeros(n.shape), first, first))[1]


def _many_of(key: Any, n: Any, p: Any, is_wanted: Any) -> Any:
    """Proposals by a ratio of uniform numbers, accepted by their probability."""
    shape = n.shape
    deviation = ops.sqrt(ops.mul(ops.mul(n, p), ops.sub(1.0, p)))
    b = ops.add(ops.mul(deviation, 2.53), 1.15)
    a = ops.add(ops.add(ops.mul(b, 0.0248), ops.mul(p, 0.01)), -0.0873)
    centre = ops.add(ops.mul(n, p), 0.5)
    limit = ops.sub(0.92, ops.div(4.2, b))
    alpha = ops.mul(ops.add(ops.div(5.1, b), 2.83), deviation)
    odds = portable.log(ops.div(p, ops.sub(1.0, p)))
    mode = ops.floor(ops.mul(ops.add(n, 1.0), p))
    at_mode = ops.add(portable.log_factorial(mode), portable.log_factorial(ops.sub(n, mode)))

    def is_open(state: tuple[Any, ...]) -> Any:
        step, is_done, _ = state
        return ops.and_(ops.lt(step, _ROUNDS), ops.not_(reduce_all(is_done)))

    def propose(state: tuple[Any, ...]) -> tuple[Any, ...]:
        step, is_done, found = state
        first, _ = halves(sequence(key, ops.mul(step, 2)), shape, float64)
        v, _ = halves(sequence(key, ops.add(ops.mul(step, 2), 1)), shape, float64)
        u = ops.sub(first, 0.5)
        us = ops.sub(0.5, ops.abs_(u))
        k = ops.floor(ops.add(ops.mul(ops.add(ops.div(ops.mul(a, 2.0), us), b), u), centre))
        is_inside = ops.and_(ops.ge(us, 0.07), ops.le(v, limit))
        is_outside = ops.or_(ops.lt(k, 0.0), ops.gt(k, n))
        k = ops.minimum(ops.maximum(k, 0.0), n)
        curve = ops.add(ops.div(a, ops.mul(us, us)), b)
        height = portable.log(ops.div(ops.mul(v, alpha), curve))
        here = ops.add(portable.log_factorial(k), portable.log_factorial(ops.sub(n, k)))
        weight = ops.add(ops.sub(at_mode, here), ops.mul(ops.sub(k, mode), odds))
        is_fine = ops.and_(ops.not_(is_outside), ops.or_(is_inside, ops.le(height, weight)))
        found = ops.select(ops.and_(is_fine, ops.not_(is_done)), k, found)
        return ops.add(step, 1), ops.or_(is_done, is_fine), found

    start = (full((), 0, int32), ops.not_(is_wanted), mode)
    return while_loop(is_open, propose, start)[2]
