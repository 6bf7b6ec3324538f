"""Expansions of the error functions and of the logarithm of the gamma function and its derivative.

The complement of the error function is exp(-x**2) / x times a factor that hardly changes, which is
a polynomial in (x - 3) / (x + 3). Below 1.5 it changes too much for that variable to be exact
enough in float64, and exp(-x**2) is multiplied by a polynomial in x - 1.
"""

from __future__ import annotations

import math

from tessera.ir.special import DIGAMMA_SERIES
from tessera.target.passes import mathematics_tables as tables
from tessera.target.passes.expression import (
    Grade,
    Num,
    fast_two_sum,
    fma,
    horner,
    upper_half,
    where,
)
from tessera.target.passes.mathematics_exponential import (
    exponential_inside,
    reduce,
)
from tessera.target.passes.mathematics_logarithm import log, positive_log


def _complement(x: Num) -> Num:
    """erfc(x) for x between 1 / 2 and 28."""
    variable = (x - 3.0) / (x + 3.0)
    if x.grade is Grade.SHORT:  # the square of a float32 is exact
        return exponential_inside(-(x * x)) * tables.ERFC(variable) / x
    near = x < 1.5
    a, c = tables.ERFC_NEAR.parts(x - 1.0), tables.ERFC.parts(variable)
    factor, factor_rest = fast_two_sum(where(near, a[0], c[0]), where(near, a[1], c[1]))
    below = where(near, 1.0, x)
    # exp(-x**2), where the square of a number with half the bits is exact.
    high = upper_half(x)
    parts = reduce(-(high * high), (high - x) * (high + x))
    whole, rest = fast_two_sum(x.const(1.0), parts.r)
    lost = fma(whole, factor_rest, (rest + parts.tail) * factor)
    return parts.scaled(fma(whole, factor, lost) / below)


def erf(x: Num) -> Num:
    """The error function."""
    a = abs(x)
    square = a * a
    small = fma(a, tables.ERF(square), a)
    if x.grade is Grade.SINGLE:
        limit, large = 0.9, 1.0 - exponential_inside(-tables.ERFC_LOG(where(a > 4.0, 4.0, a)))
    else:
        limit, large = 0.5, 1.0 - _complement(where(a > 6.0, 6.0, a))
    return where(a < limit, small, large).with_sign(x)


def erfc(x: Num) -> Num:
    """1 - erf(x)."""
    if x.grade is Grade.SINGLE:
        return erfc(x.widen()).narrow()
    a = abs(x)
    limit = 11.0 if x.grade is Grade.SHORT else 28.0
    large = _complement(where(a > limit, limit, a))
    large = where(x < 0.0, 2.0 - large, large)
    return where(a < 0.5, 1.0 - fma(x, tables.ERF(a * a), x), large)


def erfinv(x: Num) -> Num:
    """The inverse of erf: polynomials in w = -log(1 - x**2) and, away from 0, in sqrt(w)."""
    if x.grade is Grade.SINGLE:
        return erfinv(x.widen()).narrow()
    a = abs(x)
    w = -positive_log((1.0 - a) * (1.0 + a))
    root = w.sqrt()
    constant, slope = tables.ERFINV_CENTRE.parts(w - 3.125)
    c, s = tables.ERFINV_MIDDLE.parts(root - 3.25)
    if x.grade is Grade.DOUBLE:
        outer = tables.ERFINV_TAIL.parts(root - 5.0)
        c, s = where(root < 4.0, c, outer[0]), where(root < 4.0, s, outer[1])
    factor, rest = fast_two_sum(where(w < 6.25, constant, c), where(w < 6.25, slope, s))
    result = fma(x, factor, x * rest)
    result = where(a < 1.0, result, x.const(math.inf).with_sign(x))
    return where(a <= 1.0, result, math.nan)


def _rising(first: int, last: int) -> tuple[float, ...]:
    """The coefficients of (x + first) * ... * (x + last), lowest power first: integers."""
    result = [1.0]
    for k in range(first, last + 1):
        up = [0.0, *result]
        result = [a + k * b for a, b in zip(up, [*result, 0.0], strict=True)]
    return tuple(result)


def _derivative(coefficients: tuple[float, ...]) -> tuple[float, ...]:
    return tuple(k * c for k, c in enumerate(coefficients))[1:]


# B(2k) / (2k (2k - 1)), of the asymptotic series of lgamma; that of digamma has B(2k) / (2k).
LGAMMA_SERIES = tuple(c / (2 * k + 1) for k, c in enumerate(DIGAMMA_SERIES))
SHIFT = 10


def _distance_to_integer(x: Num) -> Num:
    """|x| less the nearest integer, exactly; 0 from where on all numbers are integers."""
    a, magic = abs(x), 2.0**52
    return where(a < magic, a - ((a + magic) - magic), 0.0)


def _sine_cosine_of_pi(fraction: Num) -> tuple[Num, Num]:
    """|sin(pi * f)| and cos(pi * f) for f between 0 and 1 / 2."""
    swap = fraction > 0.25
    r = where(swap, 0.5 - fraction, fraction) * math.pi
    square = r * r
    sine = fma(r * square, tables.SIN(square), r)
    cosine = fma(square * square, tables.COS(square), fma(square, -0.5, 1.0))
    return where(swap, cosine, sine), where(swap, sine, cosine)


def digamma(x: Num) -> Num:
    """The derivative of lgamma: asymptotic for large x, else digamma(x + 10) less the terms
    1 / (x + k), whose sum is the quotient of two polynomials; reflected for negative x.
    """
    if x.grade is Grade.SINGLE:
        return digamma(Num(x.b, x.widen().value)).narrow()
    reflected = x < 0.0
    y = where(reflected, 1.0 - x, x)
    small = y < float(SHIFT)
    z = where(small, y + float(SHIFT), y)
    inverse = 1.0 / z
    square = inverse * inverse
    result = positive_log(z) - fma(square, horner(square, DIGAMMA_SERIES), inverse * 0.5)
    terms = _rising(1, SHIFT - 1)
    capped = where(small, y, 1.0)
    shift = horner(capped, _derivative(terms)) / horner(capped, terms)
    result = where(small, (result - shift) - 1.0 / capped, result)
    result = where(y < math.inf, result, y)
    fraction = _distance_to_integer(x)
    sine, cosine = _sine_cosine_of_pi(abs(fraction))
    cotangent = (cosine / sine) * math.pi
    # The reflection adds pi / tan(pi |x|), which has the fraction's sign.
    mirrored = result + cotangent.with_sign(fraction)
    mirrored = where(fraction.equals(0.0), math.nan, mirrored)
    result = where(reflected, mirrored, result)
    return where(x.equals(0.0), x.const(math.inf).with_sign(-x), result)


def lgamma(x: Num) -> Num:
    """log(|gamma(x)|) of float32 in float64: Stirling's series at x + 10 less the logarithm of
    x (x + 1) ... (x + 9); near the zeros 1 and 2, (t - 1) (t - 2) times a polynomial at t = x or
    x + 1; reflected for negative x.
    """
    if x.grade is Grade.DOUBLE:
        return x.map("lgamma")
    # The zeros of the reflected function need all bits of its terms.
    x = Num(x.b, x.widen().value)
    a = abs(x)
    low, near, small = a < 1.5, (a >= 0.5) & (a < 2.5), a < float(SHIFT)
    z = where(small, a + float(SHIFT), a)
    inverse = 1.0 / z
    series = inverse * horner(inverse * inverse, LGAMMA_SERIES)
    half_log = 0.5 * math.log(2 * math.pi)
    main = fma(z - 0.5, positive_log(z), half_log - z) + series
    t = where(low, a, a - 1.0)  # less 1
    main = where(near, t * (t - 1.0) * tables.LGAMMA(t - 1.0), main)
    capped = where(small, a, 1.0)
    product = where(small, horner(capped, _rising(0, SHIFT - 1)), 1.0)
    product = where(near, where(low, a, 1.0), product)
    sine, _ = _sine_cosine_of_pi(abs(_distance_to_integer(x)))
    negative = x < 0.0
    rest = log(where(negative, (product * math.pi) / (a * sine), product))
    result = where(negative, rest - main, main - rest)
    return where(a.equals(math.inf), a, result).narrow()
