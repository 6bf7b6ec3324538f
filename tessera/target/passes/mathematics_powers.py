"""Expansions of powers, and the logarithm in two parts that they need.

x ** y = 2 ** (y * log2(x)), where the product may be as large as 1075: for a result that is right
to the last place the logarithm needs 11 bits more than a number has. It is computed as the sum of
two numbers, and so is the product.
"""

from __future__ import annotations

import math

from tessera.target.passes import mathematics_tables as tables
from tessera.target.passes.expression import (
    Grade,
    Num,
    fast_two_sum,
    fma,
    two_product,
    where,
    where_any,
)
from tessera.target.passes.mathematics_exponential import (
    LN2_PARTS,
    LOG2_E,
    Reduced,
    clamped,
    near_one,
    parts_base2,
    power_of_two,
    twice_biased,
    vanishing,
)
from tessera.target.passes.mathematics_logarithm import LN2, short_log, split

# Constants in two parts: the nearest number, and what it lacks.
TWICE_LOG2_E = (2.8853900817779268, 4.0710547481862066e-17)
TWO_THIRDS_LOG2_E = (0.9617966939259756, 5.0577616648125907e-17)
TWO_THIRDS = (0.6666666666666666, 3.700743415417188e-17)


def log2_in_parts(x: Num) -> tuple[Num, Num]:
    """log2 of a positive float64 as a number and the rest, to 64 bits."""
    exponent, f = split(x)
    result, rest = _log_near_one(f, TWICE_LOG2_E, TWO_THIRDS_LOG2_E, 1.0)
    total, lost = fast_two_sum(exponent, result)
    return total, lost + rest


def log_in_parts(x: Num) -> tuple[Num, Num]:
    """The natural logarithm of a positive float64 as a number and the rest, to 64 bits."""
    exponent, f = split(x)
    result, rest = _log_near_one(f, (2.0, 0.0), TWO_THIRDS, LN2)
    high, low = LN2_PARTS[Grade.DOUBLE]
    total, lost = fast_two_sum(exponent * high, result)
    return total, lost + fma(exponent, low, rest)


def _log_near_one(
    f: Num, first: tuple[float, float], third: tuple[float, float], scale: float
) -> tuple[Num, Num]:
    """log(1 + f) as a number and the rest: s * (2 + s**2 * (2/3 + s**2 * ...)) times a constant,
    with s = f / (2 + f). The third term is so small beside the first one that it needs no rest.
    """
    below, below_rest = fast_two_sum(f.const(2.0), f)
    inverse = 1.0 / below
    s = f * inverse
    back, back_rest = two_product(s, below)
    s_rest = (((f - back) - back_rest) - s * below_rest) * inverse
    z, z_rest = two_product(s, s)
    z_rest = fma(s + s, s_rest, z_rest)
    high, low = third
    second, second_rest = two_product(z, z.const(high))
    tail = fma(z_rest, high, fma(z, low, second_rest))
    square = fma(z + z, z_rest, z * z)
    square = square if scale == 1.0 else square * scale
    second, tail = fast_two_sum(second, fma(square, tables.LOG2_TAIL(z), tail))
    high, low = first
    factor, lost = fast_two_sum(z.const(high), second)
    factor_rest = lost + (tail + low)
    result, rest = two_product(s, factor)
    return result, rest + fma(s, factor_rest, s_rest * factor)


def _power(base: Num, exponent: Num) -> Num:
    """base ** exponent of a number that is not negative, in float64."""
    high, low = log2_in_parts(base)
    high = where(base.equals(0.0), -math.inf, where(base < math.inf, high, base))
    product, lost = two_product(exponent, high)
    rest = where(abs(product) < 2048.0, fma(exponent, low, lost), 0.0)

    def inside(product: Num) -> Num:
        product = where(product > 1080.0, 1080.0, product)
        magic = product.format.magic + twice_biased(product)
        shifted = product + magic
        k = shifted - magic
        r = ((product - k) + rest) * LN2
        parts = Reduced(k, shifted.bits(), r, (r * r) * tables.EXPM1(r))
        whole, lost = fast_two_sum(r.const(1.0), r)
        return parts.scaled(whole + (lost + parts.tail))

    return vanishing(product, product < -1080.0, -1080.0, inside)


def _short_power(base: Num, exponent: Num) -> Num:
    """The float32 power of float32 numbers, a positive one that is finite and a finite one, which
    are given as float64."""
    e, f = split(base)
    binary = fma(short_log(f), LOG2_E, e)
    _, power, r = parts_base2(clamped(exponent * binary, -200.0, 200.0), base.format.bias)
    return (near_one(r) * power_of_two(power)).narrow()


def pow(x: Num, y: Num) -> Num:
    """x ** y: that of |x|, with the sign of odd powers. float32 is computed in float64."""
    if x.grade is not Grade.SINGLE:
        return _signed(x, y, _power(abs(x), y))
    magnitude = _short_power(abs(x).widen(), y.widen())
    usual = (x > 0.0) & (x < math.inf) & (abs(y) < math.inf)
    return where_any(~usual, _special, [x, y, magnitude], magnitude)


def _special(x: Num, y: Num, magnitude: Num) -> Num:
    """The power of float32 numbers, of which one may be negative, 0, infinite or no number."""
    a = abs(x)
    grows = y > 0.0
    magnitude = where(a.equals(0.0), where(grows, x.const(0.0), math.inf), magnitude)
    magnitude = where(a.equals(math.inf), where(grows, x.const(math.inf), 0.0), magnitude)
    magnitude = where(x.differs(x) | y.differs(y), math.nan, magnitude)
    return _signed(x, y, magnitude)


def _signed(x: Num, y: Num, magnitude: Num) -> Num:
    """x ** y, given |x| ** y."""
    a, size = abs(x), abs(y)
    # 1 to any power, -1 to an infinite one, and anything to the power of 0 are 1.
    unit = x.equals(1.0) | (x.equals(-1.0) & size.equals(math.inf))
    magnitude = where(unit | y.equals(0.0), 1.0, magnitude)
    # From here on all numbers are integers; up to here a sum with it is rounded to one.
    integers = 2.0**23 if x.grade is Grade.SINGLE else 2.0**52
    half = size * 0.5
    whole = (size >= integers) | size.equals((size + integers) - integers)
    is_odd = whole & (size < 2 * integers) & half.differs((half + integers) - integers)
    negative = where(is_odd, -magnitude, magnitude)
    negative = where((x < 0.0) & (a < math.inf) & ~whole, math.nan, negative)
    return where(x.map("signbit"), negative, magnitude)
