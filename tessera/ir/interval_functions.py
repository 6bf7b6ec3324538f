"""How rules of intervals are made, and those of elementary functions and of bits.

A rule takes an interval for each operand and a dtype; see `interval_rules.py`, which has the table.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np

from tessera.dtypes import DType, finfo, iinfo
from tessera.ir.interval import (
    ANY,
    EMPTY,
    Interval,
    Number,
    finite_range,
    hull,
    point,
    rounded,
    spread_out,
    wrapped,
)
from tessera.ir.scalar import SCALARS

Rule: TypeAlias = Callable[[Sequence[Interval], DType], Interval]

INF = math.inf
TRUE, FALSE, EITHER = point(1), point(0), Interval(0, 1)

# --- how rules are made -------------------------------------------------------------------------


def at(row: str, *numbers: Number) -> float:
    """The function at a point, in float64."""
    with np.errstate(all="ignore"):
        return float(SCALARS[row].compute(*[np.asarray(_float(x)) for x in numbers]))


def _float(x: Number) -> float:
    try:
        return float(x)
    except OverflowError:
        return math.copysign(INF, x)


def monotone(
    row: str,
    domain: tuple[float, float] = (-INF, INF),
    image: tuple[float, float] = (-INF, INF),
    falls: bool = False,
    exact: bool = False,
) -> Rule:
    """A function that rises (or falls) in its domain, and is NaN outside of it."""

    def rule(xs: Sequence[Interval], dtype: DType) -> Interval:
        (x,) = xs
        inside = Interval(max(x.lo, domain[0]), min(x.hi, domain[1]))
        nan = x.nan or x.lo < domain[0] or x.hi > domain[1]
        if inside.is_empty:
            return EMPTY.or_nan()
        ends = [at(row, inside.lo), at(row, inside.hi)]
        if falls:
            ends.reverse()
        found = rounded(Interval(ends[0], ends[1]), dtype)
        if not exact:
            found = spread_out(found, dtype)
        low, high = max(found.lo, image[0]), min(found.hi, image[1])
        return Interval(low, high, nan or found.nan)

    return rule


def corners(row: str, a: Interval, b: Interval) -> list[float]:
    """The function at the four corners; products of zero and infinity are zero there, for near
    them are numbers of all sizes of which the others are ends."""
    found = [at(row, x, y) for x in (a.lo, a.hi) for y in (b.lo, b.hi)]
    return [0.0 if math.isnan(v) else v for v in found]


def of_numbers(
    ends: Sequence[Number], operands: Sequence[Interval], dtype: DType, nan: bool
) -> Interval:
    nan = nan or any(x.nan for x in operands)
    if any(x.is_empty for x in operands):
        return EMPTY.or_nan()
    found = hull(ends)
    return rounded(found, dtype).or_nan(nan) if dtype.is_float else wrapped(found, dtype)


def clamped(x: Interval, low: Number, high: Number) -> Interval:
    return Interval(max(x.lo, low), min(x.hi, high), x.nan)


# --- bits ---------------------------------------------------------------------------------------


def and_(xs: Sequence[Interval], dtype: DType) -> Interval:
    a, b = xs
    if dtype.is_bool:
        return Interval(min(a.lo, b.lo), min(a.hi, b.hi))
    nonnegative = [x.hi for x in xs if x.lo >= 0]
    return Interval(0, min(nonnegative)) if nonnegative else finite_range(dtype)


def or_(xs: Sequence[Interval], dtype: DType) -> Interval:
    a, b = xs
    if dtype.is_bool:
        return Interval(max(a.lo, b.lo), max(a.hi, b.hi))
    if a.lo >= 0 and b.lo >= 0:
        return Interval(max(a.lo, b.lo), _all_ones(max(a.hi, b.hi)))
    return finite_range(dtype)


def xor(xs: Sequence[Interval], dtype: DType) -> Interval:
    a, b = xs
    if dtype.is_bool:
        return point(int(a.lo != b.lo)) if a.lo == a.hi and b.lo == b.hi else EITHER
    if a.lo >= 0 and b.lo >= 0:
        return Interval(0, _all_ones(max(a.hi, b.hi)))
    return finite_range(dtype)


def _all_ones(x: Number) -> int:
    return (1 << int(x).bit_length()) - 1


def not_(xs: Sequence[Interval], dtype: DType) -> Interval:
    (x,) = xs
    if dtype.is_bool:
        return Interval(1 - x.hi, 1 - x.lo)
    limits = iinfo(dtype)
    offset = -1 if limits.min < 0 else limits.max
    return Interval(offset - x.hi, offset - x.lo)


def shl(xs: Sequence[Interval], dtype: DType) -> Interval:
    a, b = xs
    if b.lo < 0 or b.hi >= iinfo(dtype).bits:
        return finite_range(dtype)
    ends = [int(x) << int(n) for x in (a.lo, a.hi) for n in (b.lo, b.hi)]
    return wrapped(hull(ends), dtype)


def shr(xs: Sequence[Interval], dtype: DType) -> Interval:
    a, b = xs
    bits = iinfo(dtype).bits
    if b.lo < 0:
        return hull([a.lo, a.hi, 0, -1 if a.lo < 0 else 0])
    ends = [int(x) >> min(int(n), bits) for x in (a.lo, a.hi) for n in (b.lo, b.hi)]
    return hull(ends)


def bit_count(xs: Sequence[Interval], dtype: DType) -> Interval:
    return wrapped(Interval(0, iinfo(dtype).bits), dtype)


def mulhi(xs: Sequence[Interval], dtype: DType) -> Interval:
    a, b = xs
    ends = [int(x) * int(y) >> iinfo(dtype).bits for x in (a.lo, a.hi) for y in (b.lo, b.hi)]
    return hull(ends)


# --- elementary functions -----------------------------------------------------------------------


def waves(row: str, first_top: float) -> Rule:
    """Sine and cosine: where an interval has no turning point, its ends bound it."""

    def rule(xs: Sequence[Interval], dtype: DType) -> Interval:
        (x,) = xs
        nan = x.nan or x.has_infinity
        if x.is_empty or (x.lo == x.hi and x.has_infinity):
            return EMPTY.or_nan()
        if x.has_infinity or x.magnitude > 1e6 or x.hi - x.lo >= 2 * math.pi:
            return Interval(-1.0, 1.0, nan)
        ends = [at(row, x.lo), at(row, x.hi)]
        for top, value in ((first_top, 1.0), (first_top + math.pi, -1.0)):
            turns = (x.lo - top) / (2 * math.pi), (x.hi - top) / (2 * math.pi)
            if math.floor(turns[1] + 1e-9) >= math.ceil(turns[0] - 1e-9):
                ends.append(value)
        found = spread_out(rounded(hull(ends), dtype), dtype)
        return clamped(found, -1.0, 1.0).or_nan(nan)

    return rule


def tan(xs: Sequence[Interval], dtype: DType) -> Interval:
    (x,) = xs
    nan = x.nan or x.has_infinity
    if x.is_empty:
        return x
    if not x.has_infinity and x.lo > -math.pi / 2 + 1e-6 and x.hi < math.pi / 2 - 1e-6:
        found = Interval(at("tan", x.lo), at("tan", x.hi))
        return spread_out(rounded(found, dtype), dtype).or_nan(nan)
    # No number of a dtype is so near to a pole that the tangent overflows in float64.
    return rounded(Interval(-1e300, 1e300), dtype).or_nan(nan)


def cosh(xs: Sequence[Interval], dtype: DType) -> Interval:
    (x,) = xs
    if x.is_empty:
        return x
    found = rounded(Interval(at("cosh", x.least), at("cosh", x.magnitude)), dtype)
    return clamped(spread_out(found, dtype), 1.0, INF).or_nan(x.nan or found.nan)


def rsqrt(xs: Sequence[Interval], dtype: DType) -> Interval:
    (x,) = xs
    if x.hi >= 0 >= x.lo:
        # Of zeros it has the sign, and is infinite.
        found = Interval(-INF, INF, x.nan or x.lo < 0)
        return rounded(found, dtype)
    return monotone("rsqrt", (0.0, INF), (0.0, INF), falls=True)(xs, dtype)


def atan2(xs: Sequence[Interval], dtype: DType) -> Interval:
    a, b = xs
    if a.is_empty or b.is_empty:
        return EMPTY.or_nan()
    low = 0.0 if a.lo > 0 else -math.pi
    high = 0.0 if a.hi < 0 else math.pi
    found = rounded(Interval(low, high), dtype)
    return spread_out(found, dtype, 1.0).or_nan(a.nan or b.nan)


def hypot(xs: Sequence[Interval], dtype: DType) -> Interval:
    a, b = xs
    if a.is_empty or b.is_empty:
        return EMPTY.or_nan()
    ends = Interval(at("hypot", a.least, b.least), at("hypot", a.magnitude, b.magnitude))
    found = spread_out(rounded(ends, dtype), dtype)
    return clamped(found, 0.0, INF).or_nan(a.nan or b.nan)


def logaddexp(xs: Sequence[Interval], dtype: DType) -> Interval:
    a, b = xs
    if a.is_empty or b.is_empty:
        return EMPTY.or_nan()
    ends = Interval(at("logaddexp", a.lo, b.lo), at("logaddexp", a.hi, b.hi))
    found = spread_out(rounded(ends, dtype), dtype)
    # The error is relative to the larger operand, which may be far from a result near zero.
    slack = 8 * finfo(dtype).eps * max(
        [float(abs(v)) for x in xs for v in (x.lo, x.hi) if not math.isinf(v)], default=0.0
    )
    found = rounded(Interval(found.lo - slack, found.hi + slack), dtype)
    return found.or_nan(a.nan or b.nan)


def lgamma(xs: Sequence[Interval], dtype: DType) -> Interval:
    (x,) = xs
    if x.lo <= 0:
        return rounded(Interval(-INF, INF, x.nan), dtype)
    bottom = 1.4616321449683623
    ends = [at("lgamma", x.lo), at("lgamma", x.hi)]
    if x.lo <= bottom <= x.hi:
        ends.append(at("lgamma", bottom))
    found = rounded(hull(ends), dtype)
    # Near its zeros at 1 and 2 the error is relative to 1.
    slack = 8 * finfo(dtype).eps
    wide = spread_out(found, dtype)
    return rounded(Interval(wide.lo - slack, wide.hi + slack), dtype).or_nan(x.nan)


def digamma(xs: Sequence[Interval], dtype: DType) -> Interval:
    (x,) = xs
    if x.lo <= 0:
        return ANY
    found = Interval(at("digamma", x.lo), at("digamma", x.hi))
    slack = 16 * finfo(dtype).eps
    wide = spread_out(rounded(found, dtype), dtype, 16.0)
    return rounded(Interval(wide.lo - slack, wide.hi + slack), dtype).or_nan(x.nan)


# --- representation -----------------------------------------------------------------------------


def signbit(xs: Sequence[Interval], dtype: DType) -> Interval:
    (x,) = xs
    if x.nan or x.is_empty or x.has_zero:
        return EITHER
    return TRUE if x.hi < 0 else FALSE if x.lo > 0 else EITHER


def copysign(xs: Sequence[Interval], dtype: DType) -> Interval:
    a, b = xs
    if a.is_empty:
        return a
    most = a.magnitude
    negative = b.nan or b.is_empty or b.lo <= 0
    positive = b.nan or b.is_empty or b.hi >= 0
    low = -most if negative else a.least
    high = most if positive else -a.least
    return Interval(low, high, a.nan)


def nextafter(xs: Sequence[Interval], dtype: DType) -> Interval:
    a, b = xs
    if a.is_empty or b.is_empty:
        return EMPTY.or_nan()
    return a.without_nan().join(b.without_nan()).or_nan(a.nan or b.nan)


def same_number(xs: Sequence[Interval], dtype: DType) -> Interval:
    return xs[0]


