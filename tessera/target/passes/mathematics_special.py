"""Expansions of the error functions.

The complement of the error function is exp(-x**2) / x times a factor that hardly changes, which is
a polynomial in (x - 3) / (x + 3). Below 1.5 it changes too much for that variable to be exact
enough in float64, and exp(-x**2) is multiplied by a polynomial in x - 1.
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
    upper_half,
    where,
)
from tessera.target.passes.mathematics_exponential import exponential_inside, reduce
from tessera.target.passes.mathematics_logarithm import positive_log


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
