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
    two_product,
    two_sum,
    upper_half,
    where,
)
from tessera.target.passes.mathematics_exponential import (
    exponential_inside,
    reduce,
)
from tessera.target.passes.mathematics_logarithm import log, positive_log
from tessera.target.passes.mathematics_trigonometry import (
    PI_PARTS,
    Reduced,
    cosine,
    sine,
)


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
    # Four roundings in a row would be more than two units: what they lose is collected.
    growth = parts.r + parts.tail
    above, lost = fast_two_sum(factor, fma(factor, growth, factor_rest))
    lost = fma(factor_rest, growth, lost)
    inverse = 1.0 / below
    result = above * inverse
    back, back_rest = two_product(result, below)
    return parts.scaled(fma(((above - back) - back_rest) + lost, inverse, result))


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
        # What the root lacks; the slope of the function is about 1 here.
        square, lost = two_product(root, root)
        s = fma((w - square) - lost, 0.5 / root, s)
    factor, rest = fast_two_sum(where(w < 6.25, constant, c), where(w < 6.25, slope, s))
    product, lost = two_product(x, factor)
    result = product + fma(x, rest, lost)
    result = where(a < 1.0, result, math.inf).with_sign(x)
    return where(a <= 1.0, result, math.nan)


def _rising(first: int, last: int) -> tuple[float, ...]:
    """The coefficients of (x + first) * ... * (x + last), lowest power first: integers."""
    result = [1.0]
    for k in range(first, last + 1):
        up = [0.0, *result]
        result = [a + k * b for a, b in zip(up, [*result, 0.0], strict=True)]
    return tuple(result)


# The positive root of digamma(1 + x) in two parts.
DIGAMMA_ROOT = (0.46163214496836236, -1.5522348162858677e-17)

# B(2k) / (2k (2k - 1)), of the asymptotic series of lgamma; that of digamma has B(2k) / (2k).
LGAMMA_SERIES = tuple(c / (2 * k + 1) for k, c in enumerate(DIGAMMA_SERIES))
SHIFT = 10


def _distance_to_integer(x: Num) -> Num:
    """|x| less the nearest integer, exactly; 0 from where on all numbers are integers."""
    a, magic = abs(x), 2.0**52
    return where(a < magic, a - ((a + magic) - magic), 0.0)


def _cotangent_of_pi(fraction: Num) -> tuple[Num, Num]:
    """pi / tan(pi * f) for f between 0 and 1 / 2 in two parts."""
    swap = fraction > 0.25
    f = where(swap, 0.5 - fraction, fraction)
    high, low = PI_PARTS[Grade.DOUBLE]
    r, rest = two_product(f, f.const(high))
    parts = Reduced(f.bits(), r, fma(f, low, rest))
    square = r * r
    s, c = sine(parts, square), cosine(parts, square)
    above = where(swap, s[0], c[0]), where(swap, s[1], c[1])
    below = where(swap, c[0], s[0]), where(swap, c[1], s[1])
    above, above_rest = fast_two_sum(*above)
    below, below_rest = fast_two_sum(*below)
    inverse = 1.0 / below
    ratio = above * inverse
    back, lost = two_product(ratio, below)
    ratio_rest = (((above - back) - lost) + (above_rest - ratio * below_rest)) * inverse
    result, rest = two_product(ratio, ratio.const(high))
    rest = fma(ratio, low, fma(ratio_rest, high, rest))
    tiny = fraction < 2.0**-60
    return where(tiny, 1.0 / fraction, result), where(tiny, 0.0, rest)


def _sine_cosine_of_pi(fraction: Num) -> tuple[Num, Num]:
    """|sin(pi * f)| and cos(pi * f) for f between 0 and 1 / 2."""
    swap = fraction > 0.25
    r = where(swap, 0.5 - fraction, fraction) * math.pi
    square = r * r
    sine = fma(r * square, tables.SIN(square), r)
    cosine = fma(square * square, tables.COS(square), fma(square, -0.5, 1.0))
    return where(swap, cosine, sine), where(swap, sine, cosine)


def digamma(x: Num) -> Num:
    """The derivative of lgamma: log(x - 1 / 2) and a polynomial from 2 on; between 1 and 2 a
    polynomial times the distance to the root; below, digamma(x + 1) - 1 / x; reflected for negative
    x, where it is as exact as its larger term.
    """
    if x.grade is Grade.SINGLE:
        return digamma(Num(x.b, x.widen().value)).narrow()
    reflected = x < 0.0
    y = where(reflected, 1.0 - x, x)
    large, low = y >= 2.0, y < 1.0
    z = where(large, y, 2.0) - 0.5
    inverse = 1.0 / z
    u = inverse * inverse
    far = fma(u, tables.DIGAMMA_TAIL(u), positive_log(z))
    w = where(low, y, y - 1.0)
    high, low_part = DIGAMMA_ROOT
    distance, distance_rest = two_sum(w, w.const(-high))
    factor, factor_rest = fast_two_sum(*tables.DIGAMMA_NEAR.parts(w - 0.5))
    near, lost = two_product(distance, factor)
    near_rest = fma(distance, factor_rest, fma(distance_rest - low_part, factor, lost))
    term = 1.0 / y
    back, lost = two_product(term, y)
    term_rest = ((1.0 - back) - lost) * term
    below, lost = two_sum(near, -term)
    below_rest = where(y > 2.0**-60, lost + (near_rest - term_rest), 0.0)
    result = where(low, below, near) + where(low, below_rest, near_rest)
    result = where(large, far, result)
    result = where(y < math.inf, result, y)
    # The reflection adds pi / tan(pi |x|), which has the fraction's sign.
    fraction = _distance_to_integer(x)
    cotangent, rest = _cotangent_of_pi(abs(fraction))
    left = fraction < 0.0
    total, lost = two_sum(result, where(left, -cotangent, cotangent))
    rest = where(cotangent < math.inf, lost + where(left, -rest, rest), 0.0)
    mirrored = total + rest
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
