"""Intervals: what is known of numbers that a program computes, without running it.

An interval holds every value that an element of an array may have: the numbers between two ends,
infinities where an end is one, and NaN where it says so. This is the abstract domain of numerics
analysis; it knows dtypes and rounding, but no program: any layer whose ops name rows of the scalar
table can walk over its own ops with it (`interval_rules.py` has a rule for each row).

All results are sound: a bound may be too wide, never too narrow. `ANY` is what is said where
nothing is known.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from tessera.dtypes import DType, finfo, iinfo
from tessera.ir.scalar import round_into

Number = int | float


@dataclass(frozen=True, slots=True)
class Interval:
    """A set of numbers.

    Attributes:
        lo: no number is less. Above `hi` if there are no numbers.
        hi: no number is greater.
        nan: whether NaN is possible.
    """

    lo: Number
    hi: Number
    nan: bool = False

    @property
    def is_finite(self) -> bool:
        """Whether neither NaN nor an infinity is possible."""
        return not (self.nan or self.has_infinity)

    @property
    def has_infinity(self) -> bool:
        """Whether an infinity is possible."""
        return self.lo <= self.hi and (self.lo == -math.inf or self.hi == math.inf)

    @property
    def is_empty(self) -> bool:
        """Whether there is no number, except for NaN perhaps."""
        return self.lo > self.hi

    @property
    def has_zero(self) -> bool:
        """Whether zero is possible."""
        return self.lo <= 0 <= self.hi

    @property
    def magnitude(self) -> Number:
        """The largest distance from zero; 0 of nothing."""
        return 0 if self.is_empty else max(abs(self.lo), abs(self.hi))

    @property
    def least(self) -> Number:
        """The smallest distance from zero."""
        if self.is_empty or self.has_zero:
            return 0
        return min(abs(self.lo), abs(self.hi))

    def join(self, other: Interval) -> Interval:
        """What is in either."""
        nan = self.nan or other.nan
        if self.is_empty:
            return Interval(other.lo, other.hi, nan)
        if other.is_empty:
            return Interval(self.lo, self.hi, nan)
        return Interval(min(self.lo, other.lo), max(self.hi, other.hi), nan)

    def meet(self, other: Interval) -> Interval:
        """What is in both."""
        return Interval(max(self.lo, other.lo), min(self.hi, other.hi), self.nan and other.nan)

    def without_nan(self) -> Interval:
        """The numbers alone."""
        return Interval(self.lo, self.hi) if self.nan else self

    def or_nan(self, nan: bool = True) -> Interval:
        """The same numbers, and NaN if a condition holds."""
        return Interval(self.lo, self.hi, True) if nan and not self.nan else self

    def contains(self, x: Number) -> bool:
        """Whether a number, or NaN, is in it."""
        if isinstance(x, float) and math.isnan(x):
            return self.nan
        return self.lo <= x <= self.hi

    def within(self, other: Interval) -> bool:
        """Whether all of it is in another."""
        if self.nan and not other.nan:
            return False
        return self.is_empty or (other.lo <= self.lo and self.hi <= other.hi)

    def __str__(self) -> str:
        if self.is_empty:
            return "NaN" if self.nan else "nothing"
        ends = shown(self.lo) if self.lo == self.hi else f"[{shown(self.lo)}, {shown(self.hi)}]"
        return f"{ends} or NaN" if self.nan else ends


def shown(x: Number) -> str:
    """A number for messages: four digits."""
    if isinstance(x, int):
        return str(x) if abs(x) < 10**6 else f"{float(x):.4g}"
    return f"{x:.4g}" if x else "0"


EMPTY = Interval(math.inf, -math.inf)
"""No value."""

ANY = Interval(-math.inf, math.inf, True)
"""Any value: what a missing rule gives."""


def point(x: Number) -> Interval:
    """One number."""
    return Interval(x, x)


def hull(xs: Iterable[Number]) -> Interval:
    """From the least to the greatest of some numbers; NaN among them count as NaN."""
    found = EMPTY
    for x in xs:
        nan = isinstance(x, float) and math.isnan(x)
        found = found.or_nan() if nan else found.join(Interval(x, x))
    return found


def of_array(x: np.ndarray) -> Interval:
    """What is in an array of real numbers or truth values; `ANY` for complex ones."""
    if x.dtype.kind == "c":
        return ANY
    if x.size == 0:
        return EMPTY
    if x.dtype.kind in "iub":
        return Interval(int(x.min()), int(x.max()))
    wide = x.astype(np.float64) if x.dtype != np.float64 else x
    if wide.dtype.kind != "f":
        return ANY
    gone = np.isnan(wide)
    if gone.all():
        return EMPTY.or_nan()
    return Interval(float(np.nanmin(wide)), float(np.nanmax(wide)), bool(gone.any()))


# --- dtypes -------------------------------------------------------------------------------------


def finite_range(dtype: DType) -> Interval:
    """All numbers of a dtype, without infinities and NaN; `ANY` of complex dtypes."""
    if dtype.is_bool:
        return Interval(0, 1)
    if dtype.is_integer:
        limits = iinfo(dtype)
        return Interval(limits.min, limits.max)
    if dtype.is_complex:
        return ANY
    return Interval(finfo(dtype).min, finfo(dtype).max)


def full_range(dtype: DType) -> Interval:
    """All values of a dtype."""
    return ANY if dtype.is_inexact else finite_range(dtype)


def has_infinities(dtype: DType) -> bool:
    """Whether a floating-point dtype has infinities: an overflow is NaN if not."""
    return not dtype.full_name.endswith("fn")


def nearest(x: Number, dtype: DType) -> float:
    """A number rounded to a floating-point dtype; infinite where it overflows."""
    x = _as_float(x)
    if dtype.bits >= 64 or math.isinf(x) or x == 0:
        return x
    with np.errstate(all="ignore"):
        found = float(round_into(np.asarray(x, np.float64), dtype))
    if math.isnan(found):  # a format without infinities
        return math.copysign(math.inf, x)
    return found


def _as_float(x: Number) -> float:
    try:
        return float(x)
    except OverflowError:
        return math.inf if x > 0 else -math.inf


def rounded(x: Interval, dtype: DType) -> Interval:
    """What numbers in an interval become when each is rounded to the nearest of a dtype.

    Rounding keeps the order, so the ends bound what is between them.
    """
    if x.is_empty:
        return x
    lo, hi, nan = nearest(x.lo, dtype), nearest(x.hi, dtype), x.nan
    if not has_infinities(dtype) and not finfo(dtype).min <= lo <= hi <= finfo(dtype).max:
        limits = finfo(dtype)
        return Interval(max(lo, limits.min), min(hi, limits.max), True)
    return Interval(lo, hi, nan)


def wrapped(x: Interval, dtype: DType) -> Interval:
    """What integers in an interval become in a dtype, where they wrap around."""
    limits = finite_range(dtype)
    return x if x.within(limits) else limits


def spread_out(x: Interval, dtype: DType, ulps: float = 4.0) -> Interval:
    """A wider interval: for functions whose last digits depend on who computes them.

    Ends move by some units in the last place of the dtype; exact zeros and infinities stay.
    """
    if x.is_empty:
        return x
    return Interval(_moved(x.lo, dtype, -ulps), _moved(x.hi, dtype, ulps), x.nan)


def _moved(x: Number, dtype: DType, ulps: float) -> float:
    x = float(x)
    if x == 0 or math.isinf(x):
        return x
    limits = finfo(dtype)
    step = max(abs(x) * limits.eps, limits.smallest_subnormal)
    moved = nearest(x + ulps * step, dtype)
    # An end that was finite stays so: these functions round to a number that is close.
    return max(min(moved, limits.max), limits.min)


def bits_of(x: Interval, source: DType, target: DType) -> Interval:
    """What bits of numbers in an interval may be in a dtype of the same width.

    Bits of positive numbers have their order. That is used one way: random bits become numbers in
    [1, 2) so.
    """
    if not (target.is_float and source.is_integer) or target.bits < 16 or x.is_empty:
        return full_range(target)
    ends = np.asarray([max(x.lo, 0), max(x.hi, 0)], dtype=f"u{target.bits // 8}")
    low, high = ends.view(target.np).astype(np.float64)
    if x.lo < 0 or ends[1] >> (target.bits - 1) or not math.isfinite(high):
        return full_range(target)
    return Interval(float(low), float(high))


def next_above(x: Number, dtype: DType) -> Number:
    """The least number of a dtype above another."""
    if not dtype.is_float:
        return math.floor(x) + 1 if not math.isinf(x) else x
    return _next(float(x), dtype, 1)


def next_below(x: Number, dtype: DType) -> Number:
    """The greatest number of a dtype below another."""
    if not dtype.is_float:
        return math.ceil(x) - 1 if not math.isinf(x) else x
    return -_next(-float(x), dtype, 1)


def _next(x: float, dtype: DType, sign: int) -> float:
    limits = finfo(dtype)
    if x == math.inf:
        return x
    if x == -math.inf:
        return limits.min
    if dtype.bits >= 64:
        return math.nextafter(x, math.inf)
    if x == 0:
        return limits.smallest_subnormal
    step = max(abs(x) * limits.eps, limits.smallest_subnormal)
    # A quarter of the step is rounded away at the beginning of a binade, a whole one never.
    for part in (0.25, 0.5, 1.0):
        found = nearest(x + part * step, dtype)
        if found > x:
            return found
    return x


# --- sums ---------------------------------------------------------------------------------------


def sum_of(x: Interval, least: int, most: float, dtype: DType) -> Interval:
    """The sum of numbers that are all in an interval, added in any order in a dtype.

    Each addition is off by one half unit at most, so a sum of n is off by a factor of
    (1 + eps/2)^(n-1) of the sum of magnitudes (Higham, "Accuracy and stability of numerical
    algorithms", section 4.2).

    Args:
        x: where the numbers are, as they are given.
        least: there are at least so many.
        most: and at most so many; infinity where that is not known.
        dtype: in which they are added.
    """
    if most == 0 or (x.is_empty and not x.nan):
        return point(0.0 if dtype.is_inexact else 0)
    if x.is_empty:
        return EMPTY.or_nan().join(point(0.0)) if least == 0 else EMPTY.or_nan()
    if not dtype.is_inexact:
        return _integer_sum(x, least, most, dtype)
    if most == 1:
        one = rounded(x, dtype)
        return one if least else one.join(point(0.0))
    mag = float(x.magnitude)
    unit = finfo(dtype).eps / 2
    growth = math.exp(min(unit * most, 700.0)) if most < math.inf else math.inf
    slack = 0.0 if mag == 0 else _product(_product(most, mag), growth - 1)
    high = 0.0 if x.hi <= 0 else _product(most, float(x.hi))
    low = 0.0 if x.lo >= 0 else _product(most, float(x.lo))
    if x.hi < 0 and least:
        # Of negative numbers none is above the first; sums of many are below it.
        high = min(float(x.hi), least * float(x.hi) / growth)
    if x.lo > 0 and least:
        low = max(float(x.lo), least * float(x.lo) / growth)
    one_sign = x.lo >= 0 or x.hi <= 0
    found = Interval(
        low if x.lo >= 0 else low - slack, high if x.hi <= 0 else high + slack, x.nan
    )
    if least == 0:
        found = found.join(point(0.0))
    result = rounded(found, dtype)
    # Partial sums of both signs may overflow both ways, or meet infinities of both signs.
    total = _product(most, mag) + slack
    overflows = x.has_infinity or not total <= finfo(dtype).max
    if not one_sign and overflows and (x.has_infinity or nearest(total, dtype) == math.inf):
        return Interval(-math.inf, math.inf, True)
    return result


def _product(a: float, b: float) -> float:
    if a == 0 or b == 0:
        return 0.0
    return a * b


def _integer_sum(x: Interval, least: int, most: float, dtype: DType) -> Interval:
    if most == math.inf:
        return finite_range(dtype)
    count = int(most)
    ends = [least * x.lo, least * x.hi, count * x.lo, count * x.hi]
    return wrapped(Interval(min(ends), max(ends)), dtype)
