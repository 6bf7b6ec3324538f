"""Expansions of the error functions.

The complement of the error function is exp(-x**2) / x times a factor that hardly changes, which is
a polynomial in (x - 3) / (x + 3). Below 1.5 it changes too much for that variable to be exact
enough in float64, and exp(-x**2) is multiplied by a polynomial in x - 1.

Where a machine picks coefficients from tables, float32 has one of 16 short polynomials instead. The
fourth root of the complement is a quotient of short ones, too, to as many units as its exponential
leaves room for if products are fused with additions.
"""

from __future__ import annotations

import math
from collections.abc import Callable

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
from tessera.target.passes.mathematics_exponential import exponential_inside, reduce, vanishing
from tessera.target.passes.mathematics_logarithm import positive_log

ERF_END = 3.8749997615814209
"""From here on erf is 1: the last float32 of the last piece."""

ROOT_END = 3.92
"""From here on erf is 1, too; the fourth root of its complement is 0.013."""

ERFC_END = 10.1
"""From here on erfc is 0."""


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


def _erf_in_pieces(x: Num) -> Num:
    """erf(k / 4) + t * polynomial(t) with |t| <= 1 / 8."""
    a = abs(x)
    a = where(a > ERF_END, ERF_END, a)
    magic = x.format.magic / 4
    shifted = a + magic
    index, rest = shifted.bits(), a - (shifted - magic)
    # The first piece is a + a * polynomial(a).
    base = where(a <= 0.125, a, index.lookup(tables.ERF_STARTS))
    return fma(tables.ERF_PIECES(rest, index), rest, base).with_sign(x)


def _erfc_of(x: Num, scaled: Callable[[Num], tuple[Num, Num]]) -> Num:
    """exp(-x**2) times what is given of |x| in two parts, of which the second one is small."""

    def inside(a: Num) -> Num:
        factor, small = scaled(a)
        square, lost = two_product(a, a)
        parts = reduce(-square, -lost)
        growth = parts.r + parts.tail
        # (factor + small) * (1 + growth), rounded where it is largest only.
        return parts.scaled(fma(factor, growth, fma(small, growth, small)) + factor)

    a = abs(x)
    large = vanishing(a, a > ERFC_END, ERFC_END, inside)
    return where(x < 0.0, 2.0 - large, large)


def _erfcx_in_pieces(a: Num) -> tuple[Num, Num]:
    """exp(x**2) * erfc(x) by polynomials, four for each power of two of x + 3 / 4."""
    index = (a + 0.75).bits() >> 21
    rest = a - index.lookup(tables.ERFCX_CENTRES)
    return index.lookup(tables.ERFCX_STARTS), tables.ERFCX_PIECES(rest, index)


def _erfcx_by_parts(a: Num) -> tuple[Num, Num]:
    """The same as (1 + bulge(x)) / (1 + 2 x) (Shepherd and Laframboise, "Chebyshev approximation
    of (1 + 2x) exp(x**2) erfc(x)", 1981), without what the roundings of the divisor lose.
    """
    # (x - 2) / (x + 2), as exact near 0 as elsewhere.
    bulge = tables.ERFC_BULGE(fma(a / (a + 2.0), 2.0, -1.0))
    twice = a * 2.0
    below = twice + 1.0
    gone = below - twice
    lost = (twice - (below - gone)) + (1.0 - gone)
    inverse = 1.0 / below
    rest = inverse * fma(-lost, inverse, fma(-below, inverse, 1.0))
    return inverse, fma(inverse, bulge, fma(rest, bulge, rest))


def _erf_of_root(x: Num) -> Num:
    """1 - (a quotient of polynomials)**4, or x + x * polynomial(x**2)."""
    a = abs(x)
    a = where(a > ROOT_END, ROOT_END, a)
    root = tables.ERFC_ROOT_ABOVE(a) / tables.ERFC_ROOT_BELOW(a)
    square = root * root
    small = fma(a, tables.ERF_WIDE(a * a), a)
    return where(a < 1.2, small, 1.0 - square * square).with_sign(x)


def erf(x: Num) -> Num:
    """The error function."""
    if x.looks_up:
        return _erf_in_pieces(x)
    if x.b.fused and x.grade is Grade.SINGLE:
        return _erf_of_root(x)
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
    if x.looks_up:
        return _erfc_of(x, _erfcx_in_pieces)
    if x.grade is Grade.SINGLE:
        return _erfc_of(x, _erfcx_by_parts) if x.b.fused else erfc(x.widen()).narrow()
    a = abs(x)
    limit = 11.0 if x.grade is Grade.SHORT else 28.0
    large = vanishing(a, a > limit, limit, _complement)
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
