"""Expansions of the logarithm of the gamma function and of its derivative."""

from __future__ import annotations

import math

from tessera.target.passes import mathematics_tables as tables
from tessera.target.passes.expression import (
    Grade,
    Num,
    fast_two_sum,
    fma,
    two_product,
    two_sum,
    where,
    where_any,
)
from tessera.target.passes.mathematics_logarithm import positive_log
from tessera.target.passes.mathematics_powers import log_in_parts
from tessera.target.passes.mathematics_trigonometry import PI_PARTS, Reduced, cosine, sine

# Constants in two parts.
HALF_LOG_TWO_PI = (0.9189385332046728, -3.8782941580672414e-17)
LOG_PI = (1.1447298858494002, 1.0265951162707826e-17)

# The positive root of digamma(1 + x) in two parts.
DIGAMMA_ROOT = (0.46163214496836236, -1.5522348162858677e-17)


def _distance_to_integer(x: Num) -> Num:
    """|x| less the nearest integer, exactly; 0 from where on all numbers are integers."""
    a, magic = abs(x), 2.0**52
    return where(a < magic, a - ((a + magic) - magic), 0.0)


def _sine_and_cosine_of_pi(fraction: Num) -> tuple[tuple[Num, Num], tuple[Num, Num]]:
    """sin(pi * f) and cos(pi * f) for f between 0 and 1 / 2, each in two parts."""
    swap = fraction > 0.25
    f = where(swap, 0.5 - fraction, fraction)
    high, low = PI_PARTS[Grade.DOUBLE]
    r, rest = two_product(f, f.const(high))
    parts = Reduced(f.bits(), r, fma(f, low, rest))
    square = r * r
    s, c = fast_two_sum(*sine(parts, square)), fast_two_sum(*cosine(parts, square))
    first = where(swap, c[0], s[0]), where(swap, c[1], s[1])
    second = where(swap, s[0], c[0]), where(swap, s[1], c[1])
    return first, second


def _cotangent_of_pi(fraction: Num) -> tuple[Num, Num]:
    """pi / tan(pi * f) for f between 0 and 1 / 2 in two parts."""
    (below, below_rest), (above, above_rest) = _sine_and_cosine_of_pi(fraction)
    high, low = PI_PARTS[Grade.DOUBLE]
    inverse = 1.0 / below
    ratio = above * inverse
    back, lost = two_product(ratio, below)
    ratio_rest = (((above - back) - lost) + (above_rest - ratio * below_rest)) * inverse
    result, rest = two_product(ratio, ratio.const(high))
    rest = fma(ratio, low, fma(ratio_rest, high, rest))
    tiny = fraction < 2.0**-60
    return where(tiny, 1.0 / fraction, result), where(tiny, 0.0, rest)


def digamma(x: Num) -> Num:
    """The derivative of lgamma: log(x - 1 / 2) and a polynomial from 2 on; between 1 and 2 a
    polynomial times the distance to the root; below, digamma(x + 1) - 1 / x; reflected for negative
    x, where it is as exact as its larger term.
    """
    if x.grade is Grade.SINGLE:
        return _digamma(Num(x.b, x.widen().value), is_exact=False).narrow()
    return _digamma(x, is_exact=True)


def _digamma(x: Num, is_exact: bool) -> Num:
    """``digamma`` in float64; exact to a few units, or to its last one."""
    reflected = x < 0.0
    y = where(reflected, 1.0 - x, x)
    large, low = y >= 2.0, y < 1.0
    z = where(large, y, 2.0) - 0.5
    inverse = 1.0 / z
    u = inverse * inverse
    far = fma(u, tables.DIGAMMA_TAIL(u), positive_log(z))
    result = where(large, far, _digamma_near(y, low, is_exact))
    result = where(y < math.inf, result, y)
    result = where_any(reflected, _reflected_digamma, [x, result], result)
    return where(x.equals(0.0), x.const(math.inf).with_sign(-x), result)


def _digamma_near(y: Num, low: Num, is_exact: bool) -> Num:
    """digamma between 0 and 2, where it is low between 0 and 1."""
    w = where(low, y, y - 1.0)
    high, low_part = DIGAMMA_ROOT
    term = 1.0 / y
    if not is_exact:
        near = ((w - high) - low_part) * tables.DIGAMMA_NEAR(w - 0.5)
        return where(low, near - term, near)
    distance, distance_rest = two_sum(w, w.const(-high))
    factor, factor_rest = fast_two_sum(*tables.DIGAMMA_NEAR.parts(w - 0.5))
    near, lost = two_product(distance, factor)
    near_rest = fma(distance, factor_rest, fma(distance_rest - low_part, factor, lost))
    back, lost = two_product(term, y)
    term_rest = ((1.0 - back) - lost) * term
    below, lost = two_sum(near, -term)
    below_rest = where(y > 2.0**-60, lost + (near_rest - term_rest), 0.0)
    return where(low, below, near) + where(low, below_rest, near_rest)


def _reflected_digamma(x: Num, result: Num) -> Num:
    """digamma(1 - x), which is given, plus pi / tan(pi |x|), which has the fraction's sign."""
    fraction = _distance_to_integer(x)
    cotangent, rest = _cotangent_of_pi(abs(fraction))
    left = fraction < 0.0
    total, lost = two_sum(result, where(left, -cotangent, cotangent))
    rest = where(cotangent < math.inf, lost + where(left, -rest, rest), 0.0)
    return where(fraction.equals(0.0), math.nan, total + rest)


def _double_lgamma(x: Num) -> Num:
    """log(|gamma(x)|) of float64, whose terms are sums of two numbers.

    From 2.5 on it is y (log(y) - 1) + log(2 pi) / 2 + p(y**-2) / y with y = x - 1 / 2; at 2 + t for
    |t| <= 1 / 2 it is t (1 + t) p(t), so that the zeros 1 and 2 are exact; below 1.5 it is less by
    log(x), below 1 / 2 by log(x (1 + x)). That of negative x is log(pi / |x sin(pi x)|) less that
    of -x.
    """
    a = abs(x)
    is_large, is_middle, is_low = a >= 2.5, a >= 1.5, a < 0.5
    t = where(is_middle, a - 2.0, where(is_low, a, a - 1.0))
    above, above_rest = two_sum(a.const(1.0), a)
    above, above_rest = where(is_low, above, t + 1.0), where(is_low, above_rest, 0.0)
    product, product_rest = two_product(t, above)
    product_rest = fma(t, above_rest, product_rest)
    argument = where(is_middle, 1.0, where(is_low, product, a))
    argument = where(is_large, a - 0.5, argument)
    inverse = 1.0 / where(a > 2.0**-60, argument, 1.0)
    log, log_rest = log_in_parts(argument)
    log_rest = log_rest + where(is_low, product_rest, 0.0) * inverse
    # From 2.5 on.
    slope, lost = two_sum(log, log.const(-1.0))
    far, far_rest = two_product(argument, slope)
    far_rest = fma(argument, lost + log_rest, far_rest)
    far_rest = fma(inverse, tables.LGAMMA_TAIL(inverse * inverse), far_rest)
    high, low = HALF_LOG_TWO_PI
    far, lost = two_sum(far, far.const(high))
    far_rest = far_rest + (lost + low)
    # Below.
    factor, factor_rest = fast_two_sum(*tables.LGAMMA_NEAR.parts(t))
    near, lost = two_product(product, factor)
    lost = fma(product, factor_rest, fma(product_rest, factor, lost))
    near, near_rest = two_sum(near, -log)
    near_rest = near_rest + (lost - log_rest)
    main = where(is_large, far, near)
    main_rest = where(is_large, where(far < math.inf, far_rest, 0.0), near_rest)
    result = main + main_rest
    negative = (x < 0.0) & (a > 2.0**-60)
    result = where_any(negative, _reflected_lgamma, [x, main, main_rest], result)
    return where(a.equals(0.0), math.inf, where(a < math.inf, result, a))


def _reflected_lgamma(x: Num, main: Num, main_rest: Num) -> Num:
    """log(pi / |x sin(pi x)|) less lgamma(-x), which is given in two parts."""
    fraction = _distance_to_integer(x)
    (sine, sine_rest), _ = _sine_and_cosine_of_pi(abs(fraction))
    a = abs(x)
    below, below_rest = two_product(a, sine)
    below_rest = fma(a, sine_rest, below_rest) / below
    log, log_rest = log_in_parts(below)
    high, low = LOG_PI
    left, left_rest = two_sum(-log, log.const(high))
    left, lost = two_sum(left, -main)
    result = left + (left_rest + ((low - (log_rest + below_rest)) + (lost - main_rest)))
    return where(fraction.equals(0.0), math.inf, result)


def lgamma(x: Num) -> Num:
    """log(|gamma(x)|); that of float32 by the same terms, of one number in float64 each."""
    if x.grade is Grade.DOUBLE:
        return _double_lgamma(x)
    # The zeros between negative integers need all bits of the terms.
    x = Num(x.b, x.widen().value)
    a = abs(x)
    is_large, is_middle, is_low = a >= 2.5, a >= 1.5, a < 0.5
    t = where(is_middle, a - 2.0, where(is_low, a, a - 1.0))
    product = t * (t + 1.0)
    argument = where(is_middle, 1.0, where(is_low, product, a))
    argument = where(is_large, a - 0.5, argument)
    logarithm = positive_log(argument)
    inverse = 1.0 / where(is_large, argument, 1.0)
    tail = fma(inverse, tables.LGAMMA_TAIL(inverse * inverse), HALF_LOG_TWO_PI[0])
    far = fma(argument, logarithm - 1.0, tail)
    result = where(is_large, far, fma(product, tables.LGAMMA_NEAR(t), -logarithm))
    result = where_any(x < 0.0, _reflected_single, [x, result], result)
    return where(a.equals(0.0), math.inf, where(a < math.inf, result, a)).narrow()


def _reflected_single(x: Num, main: Num) -> Num:
    """log(pi / |x sin(pi x)|) less lgamma(-x), which is given."""
    fraction = _distance_to_integer(x)
    (sine, _), _ = _sine_and_cosine_of_pi(abs(fraction))
    result = positive_log(x.const(math.pi) / (abs(x) * sine)) - main
    return where(fraction.equals(0.0), math.inf, result)
