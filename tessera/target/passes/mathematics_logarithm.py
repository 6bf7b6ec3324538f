"""Expansions of the logarithms, of the inverse hyperbolic functions and of roots.

A positive number is 2**e * (1 + f) with 1 + f between sqrt(1/2) and sqrt(2). Its logarithm is
e * log(2) + (f - g), where f is exact and g is small beside it; the first part of log(2) has so few
bits that e times it is exact.
"""

from __future__ import annotations

import math
import struct

from tessera.target.passes import mathematics_tables as tables
from tessera.target.passes.expression import (
    Format,
    Grade,
    Num,
    fast_two_sum,
    fma,
    two_sum,
    upper_half,
    where,
)
from tessera.target.passes.mathematics_exponential import LN2_PARTS, clamped

LN2 = math.log(2.0)

# Constants in two parts: the nearest number of the format and what it lacks.
LOG2_E_PARTS = {
    Grade.SINGLE: (1.4426950216293335, 1.925963033500011e-08),
    Grade.DOUBLE: (1.4426950408889634, 2.0355273740931033e-17),
}
LOG10_E_PARTS = {
    Grade.SINGLE: (0.4342944920063019, -1.0103049952192578e-08),
    Grade.DOUBLE: (0.4342944819032518, 1.098319650216765e-17),
}
# log10(2) with few bits in the first part, as log(2) has.
LOG10_2_PARTS = {
    Grade.SINGLE: (0.301025390625, 4.605038981195214e-06),
    Grade.DOUBLE: (0.30102999566395283, 2.8363394551044964e-14),
}


def _bits(form: Format, x: float) -> int:
    """The bits of a constant, which is rounded to the format."""
    code = ("<f", "<I") if form.mantissa == 23 else ("<d", "<Q")
    return int(struct.unpack(code[1], struct.pack(code[0], x))[0])


def _fields(x: Num) -> tuple[Num, Num]:
    """The biased exponent in integer bits, and 1 + f, of a positive normal number."""
    form = x.format
    low = _bits(form, math.sqrt(0.5))
    shifted = x.bits() + (_bits(form, 1.0) - low)
    mantissa = (shifted & ((1 << form.mantissa) - 1)) + low
    return shifted >> form.mantissa, mantissa.floats()


def _exponent(field: Num) -> Num:
    """A biased exponent as a number: in the last places of one whose last place is 1."""
    form = field.format
    magic = 2.0**form.mantissa
    return (field | _bits(form, magic)).floats() - (magic + form.bias)


def split(x: Num) -> tuple[Num, Num]:
    """e and f of a positive number, subnormal ones included."""
    if x.grade is Grade.SHORT:  # every float32 is normal in float64
        field, mantissa = _fields(x)
        return _exponent(field), mantissa - 1.0
    shift = x.format.mantissa + 1
    tiny = x < x.format.smallest
    field, mantissa = _fields(where(tiny, x * 2.0**shift, x))
    exponent = _exponent(field)
    return where(tiny, exponent - float(shift), exponent), mantissa - 1.0


def missing(f: Num) -> Num:
    """g = f - log(1 + f)."""
    square = f * f
    if f.grade is Grade.SINGLE:
        return square * fma(-f, tables.LOG1P(f), 0.5)
    s = f / (f + 2.0)
    z = s * s
    half = square * 0.5
    return half - s * fma(z, tables.LOG_RATIO(z), half)


def short_log(f: Num) -> Num:
    """log(1 + f) in float64 for a result in float32."""
    s = f / (f + 2.0)
    z = s * s
    return s * fma(z, tables.LOG_RATIO(z), 2.0)


def joined(exponent: Num, f: Num, rest: Num | None = None) -> Num:
    """log(2**exponent * (1 + f + rest)), where the rest is below the last place of f."""
    if f.grade is Grade.SHORT:
        return fma(exponent, LN2, short_log(f))
    high, low = LN2_PARTS[f.grade]
    low_part = exponent * low if rest is None else fma(exponent, low, rest)
    return fma(exponent, high, f - (missing(f) - low_part))


def inside(x: Num, result: Num) -> Num:
    """The result of a logarithm, with its special cases: of infinity, zero, negative and NaN."""
    result = where(x < math.inf, result, x)
    outside = where(x.equals(0.0), result.const(-math.inf), math.nan)
    return where(x <= 0.0, outside, result)


def positive_log(x: Num) -> Num:
    """The natural logarithm of a positive finite number."""
    return joined(*split(x))


def log(x: Num) -> Num:
    """The natural logarithm."""
    return inside(x, positive_log(x))


def log2(x: Num) -> Num:
    """The logarithm to base 2."""
    exponent, f = split(x)
    high, low = LOG2_E_PARTS[x.grade]
    rest = fma(missing(f), -high, f * low)
    return inside(x, exponent + fma(f, high, rest))


def log10(x: Num) -> Num:
    """The logarithm to base 10."""
    exponent, f = split(x)
    high, low = LOG10_E_PARTS[x.grade]
    high2, low2 = LOG10_2_PARTS[x.grade]
    rest = fma(exponent, low2, fma(missing(f), -high, f * low))
    return inside(x, fma(exponent, high2, fma(f, high, rest)))


def log_of_sum(total: Num, rest: Num, doublings: Num | None = None) -> Num:
    """log(2**doublings * (total + rest)), where rest is below the last place of total, which is at
    least 1 / 2 or tiny itself.
    """
    field, mantissa = _fields(total)
    form = total.format
    # Twice 2**-e, or 0 where that is subnormal: there the rest does not count.
    inverse = (((2 * form.bias + 1) - field) << form.mantissa).floats()
    exponent = _exponent(field)
    if doublings is not None:
        exponent = exponent + doublings
    return joined(exponent, *fast_two_sum(mantissa - 1.0, rest * 0.5 * inverse))


def log1p(x: Num) -> Num:
    """log(1 + x), where 1 + x is a rounded sum and what rounding lost."""
    total, rest = two_sum(x.const(1.0), x)
    result = where(abs(x) < x.format.epsilon / 4, x, log_of_sum(total, rest))
    result = where(x < math.inf, result, x)
    outside = where(x.equals(-1.0), result.const(-math.inf), math.nan)
    return where(x <= -1.0, outside, result)


def asinh(x: Num) -> Num:
    """log(|x| + sqrt(x**2 + 1)), with the sign of x."""
    a = abs(x)
    square = a * a
    t, t_rest = two_sum(a, square / (1.0 + (square + 1.0).sqrt()))
    total, rest = two_sum(t.const(1.0), t)
    # From where on x**2 + 1 is x**2.
    large = a > 2.0 ** (x.format.mantissa // 2 + 2)
    result = log_of_sum(
        where(large, a, total), where(large, 0.0, rest + t_rest), where(large, a.const(1.0), 0.0)
    )
    result = where(a < x.format.epsilon, a, where(a < math.inf, result, a))
    return result.with_sign(x)


def acosh(x: Num) -> Num:
    """log(x + sqrt(x**2 - 1))."""
    t = x - 1.0
    root = fma(t, t, t + t).sqrt()
    small, small_rest = two_sum(t, root)
    total, rest = two_sum(t.const(1.0), small)
    large = x > 2.0 ** (x.format.mantissa // 2 + 2)
    result = log_of_sum(
        where(large, x, total),
        where(large, 0.0, rest + small_rest),
        where(large, x.const(1.0), 0.0),
    )
    result = where(x < math.inf, result, x)
    return where(x < 1.0, math.nan, result)


def atanh(x: Num) -> Num:
    """log((1 + |x|) / (1 - |x|)) / 2, with the sign of x; a polynomial for small x."""
    a = abs(x)
    twice = a + a
    t, t_rest = two_sum(twice, (twice * a) / (1.0 - a))
    total, rest = two_sum(t.const(1.0), t)
    large = log_of_sum(total, rest + t_rest) * 0.5
    square = a * a
    small = fma(a * square * 0.5, tables.LOG_RATIO(square), a)
    result = where(a < 0.17, small, large)
    result = where(a.equals(1.0), math.inf, result)
    return where(a > 1.0, math.nan, result).with_sign(x)


def cbrt(x: Num) -> Num:
    """The cube root: 2**q times that of a number v between 0.35 and 2.83."""
    if x.grade is Grade.SINGLE:
        return _single_cbrt(x)
    a = abs(x)
    exponent, f = split(a)
    magic = x.format.magic
    shifted = fma(exponent, 1 / 3, magic)
    third = shifted - magic
    left = fma(third, -3.0, exponent)
    v = (f + 1.0) * where(left > 0.5, left.const(2.0), where(left < -0.5, left.const(0.5), 1.0))
    root = where(left < -0.5, left.const(2 ** (1 / 3)), 1.0)
    root = where(left > 0.5, 0.5 ** (1 / 3), root)
    z = tables.INVERSE_CBRT(f) * root  # about v**(-1/3)
    z = z * fma(v * (-1 / 3), z * z * z, 4 / 3)
    y = v * (z * z)
    if x.grade is Grade.DOUBLE:
        # The square of a number with half as many bits is exact. What is missing, to second order.
        y = upper_half(y)
        step = (v - (y * y) * y) * (z * z * (1 / 3))
        y = y + step * fma(step, z, 1.0)
    form = x.format
    whole = (shifted.bits() << form.mantissa) + _bits(form, 1.0)
    result = y * whole.floats()
    return where((a > 0.0) & (a < math.inf), result, a).with_sign(x)


def _single_cbrt(x: Num) -> Num:
    """The cube root of float32: two of Halley's steps from a third of the bits."""
    a = abs(x)
    form = x.format
    tiny = a < form.smallest
    a = where(tiny, a * 2.0**24, a)
    # The bits without the last 9, as a number; what is added is two thirds of the exponent's bias.
    magic = _bits(form, 2.0**form.mantissa)
    third = ((a.bits() >> 9) | magic).floats() - 2.0**form.mantissa
    third = fma(third, 1 / 3, 2.0**form.mantissa)
    y = (((third.bits() - magic) << 9) + 0x2A5119F2).floats()
    quarter = a * 0.25
    for _ in range(2):
        cube = ((y * 0.25) * y) * y  # a quarter of it: it may be too large for a number
        y = y - y * ((cube - quarter) / ((cube + cube) + quarter))
    y = where(tiny, y * 2.0**-8, y)
    return where(x.differs(0.0) & (a < math.inf), y.with_sign(x), x)


def _single_hypot(a: Num, b: Num) -> Num:
    """hypot of positive float32, brought near 1 by a power of two."""
    form = a.format
    high = clamped(where(a > b, a, b), form.smallest, 2.0 ** (form.bias - 2))
    exponent = high.bits() & _bits(form, math.inf)
    scale = (2 * form.bias << form.mantissa) - exponent
    p, q = a * scale.floats(), b * scale.floats()
    return fma(p, p, q * q).sqrt() * exponent.floats()


def hypot(x: Num, y: Num) -> Num:
    """sqrt(x**2 + y**2); infinite if one is, even if the other is NaN."""
    a, b = abs(x), abs(y)
    infinite = a.equals(math.inf) | b.equals(math.inf)
    if x.grade is Grade.SINGLE:
        return where(infinite, math.inf, _single_hypot(a, b))
    high = where(a > b, a, b)
    scale = where(high > 2.0**500, high.const(2.0**-600), 1.0)
    scale = where(high < 2.0**-400, 2.0**600, scale)
    back = where(high > 2.0**500, high.const(2.0**600), 1.0)
    back = where(high < 2.0**-400, 2.0**-600, back)
    p, q = a * scale, b * scale
    return where(infinite, math.inf, fma(p, p, q * q).sqrt() * back)
