"""Expansions of the trigonometric functions and their inverses.

Sine, cosine and tangent subtract the nearest multiple k of pi / 2 from their argument. It is given
in parts of 33 bits, which k times are exact while k has 20; beyond ``LIMIT``, lanes get the C
library's result, in a branch that is taken only if there is such a lane. Those of float32 compute
in float64.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

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

LIMIT = 1.5e6
"""The largest argument of sine, cosine and tangent that is reduced here."""

# pi / 2 in parts of 33 bits and the rest.
HALF_PI = (1.5707963267341256, 6.077100506303966e-11, 2.0222662487111665e-21, 8.478427660368899e-32)
HALF_PI_SHORT = (1.5707963267341256, 6.077100506506192e-11)
HALF_PI_SINGLE = (1.5707963705062866, -4.371138828673793e-08, -1.7151245100058819e-15)
"""Numbers of float32."""

# The nearest number of the format, and what it lacks.
PI_PARTS = {
    Grade.SINGLE: (3.1415927410125732, -8.742277657347586e-08),
    Grade.DOUBLE: (math.pi, 1.2246467991473532e-16),
}


@dataclass(frozen=True, slots=True)
class Reduced:
    """An angle less a multiple of pi / 2.

    Attributes:
        quadrant: bits of an integer; the last two count.
        r: at most pi / 4.
        rest: what r lacks, or None where that is nothing.
    """

    quadrant: Num
    r: Num
    rest: Num | None


def reduce(x: Num) -> Reduced:
    """The parts of an angle of at most ``LIMIT``."""
    magic = x.format.magic
    shifted = fma(x, 2 / math.pi, magic)
    k = shifted - magic
    if x.grade is Grade.SHORT:
        first, second = HALF_PI_SHORT
        return Reduced(shifted.bits(), fma(k, -second, fma(k, -first, x)), None)
    first, second, third, fourth = HALF_PI
    # Where a sum of these is small beside its terms, it is exact: so the larger term of a fast
    # two_sum need not be the first.
    r, rest = fast_two_sum(fma(k, -first, x), k * -second)
    r, more = fast_two_sum(r, k * -third)
    return Reduced(shifted.bits(), r, fma(k, -fourth, rest + more))


def sine(parts: Reduced, square: Num) -> tuple[Num, Num]:
    """sin(r + rest) as a large and a small term."""
    r, cubic = parts.r, parts.r * square
    if parts.rest is None:
        return r, cubic * tables.SIN(square)
    correction = parts.rest * fma(square, -0.5, 1.0)
    return r, fma(cubic, tables.SIN(square), correction)


def cosine(parts: Reduced, square: Num) -> tuple[Num, Num]:
    """cos(r + rest) as a large and a small term."""
    fourth = square * square
    if parts.rest is None:
        return fma(square, -0.5, 1.0), fourth * tables.COS(square)
    total, lost = fast_two_sum(square.const(1.0), square * -0.5)
    return total, fma(fourth, tables.COS(square), lost - parts.r * parts.rest)


def _reduce_single(x: Num) -> Reduced:
    """The parts of a float32 angle of at most ``LIMIT``, in float32 with fused multiply-adds."""
    magic = x.format.magic
    shifted = fma(x, 2 / math.pi, magic)
    k = shifted - magic
    first, second, third = HALF_PI_SINGLE
    # All terms are multiples of 2**-23 and the sum is below 1: it is exact.
    r = fma(k, -first, x)
    high, low = two_product(k, k.const(-second))
    r, rest = fast_two_sum(r, high)
    return Reduced(shifted.bits(), r, rest + fma(k, -third, low))


def _of_angle(x: Num, name: str) -> Num:
    """sin, cos or tan, with the C library's for large arguments."""
    if x.grade is Grade.SINGLE and not x.b.fused:
        result = of_reduced(reduce(x.widen()), name).narrow()
    else:
        result = of_reduced(_reduce_single(x) if x.grade is Grade.SINGLE else reduce(x), name)
    if name != "cos":
        result = where(abs(x) < 2.0**-28, x, result)

    def library(x: Num) -> Num:
        return x.map(name)

    return where_any(abs(x) > LIMIT, library, [x], result)


def of_reduced(parts: Reduced, name: str) -> Num:
    """sin, cos or tan of an angle in parts."""
    square = parts.r * parts.r
    s, c = sine(parts, square), cosine(parts, square)
    quadrant = parts.quadrant + 1 if name == "cos" else parts.quadrant
    is_odd = (quadrant & 1).differs(0)
    high, low = (where(is_odd, a, b) for a, b in zip(c, s, strict=True))
    if name == "tan":
        below = where(is_odd, s[0], c[0]), where(is_odd, s[1], c[1])
        result = _quotient((high, low), below)
        return where(is_odd, -result, result)
    sign = (quadrant & 2) << (parts.r.format.bits.bits - 2)
    return ((high + low).bits() ^ sign).floats()


def _quotient(a: tuple[Num, Num], b: tuple[Num, Num]) -> Num:
    """The quotient of two sums of a large and a small term."""
    if a[0].grade is Grade.SHORT:
        return (a[0] + a[1]) / (b[0] + b[1])
    above, above_rest = fast_two_sum(*a)
    below, below_rest = fast_two_sum(*b)
    result = above / below
    return result + fma(-result, below_rest, above_rest) / below


def sin(x: Num) -> Num:
    """The sine."""
    return _of_angle(x, "sin")


def cos(x: Num) -> Num:
    """The cosine."""
    return _of_angle(x, "cos")


def tan(x: Num) -> Num:
    """The tangent."""
    return _of_angle(x, "tan")


def asin(x: Num) -> Num:
    """The inverse sine; above 1 / 2 by asin(x) = pi / 2 - 2 asin(sqrt((1 - x) / 2))."""
    a = abs(x)
    large = a > 0.5
    z = where(large, fma(a, -0.5, 0.5), a * a)
    s = where(large, z.sqrt(), a)
    tail = s * z * tables.ASIN(z)
    high, low = PI_PARTS[x.grade]
    # Half of pi / 2 waits, so that no intermediate result is larger than the last one.
    above = high / 4 + (fma(s, -2.0, high / 4) - fma(tail, 2.0, -low / 2))
    result = where(large, above, s + tail)
    return result.with_sign(x)


def acos(x: Num) -> Num:
    """The inverse cosine: pi / 2 less the inverse sine; see there."""
    a = abs(x)
    large = a > 0.5
    z = where(large, fma(a, -0.5, 0.5), a * a)
    s = where(large, z.sqrt(), x)
    tail = s * z * tables.ASIN(z)
    high, low = PI_PARTS[x.grade]
    twice = (s + tail) * 2.0
    near = high - (twice - low)
    middle = high / 2 - (s - (low / 2 - tail))
    return where(large, where(x < 0.0, near, twice), middle)


def atan(x: Num) -> Num:
    """The inverse tangent; above 1 / 2 that of (x - 1) / (x + 1), above 2 that of -1 / x."""
    a = abs(x)
    middle, large = a > 0.5, a > 2.0
    numerator = where(large, -1.0, where(middle, a - 1.0, a))
    denominator = where(large, a, where(middle, a + 1.0, 1.0))
    ratio = numerator / denominator
    square = ratio * ratio
    result = fma(ratio * square, tables.ATAN(square), ratio)
    high, low = PI_PARTS[x.grade]
    base = where(large, high / 2, where(middle, a.const(high / 4), 0.0))
    base_low = where(large, low / 2, where(middle, a.const(low / 4), 0.0))
    return (base + (result + base_low)).with_sign(x)


def atan2(y: Num, x: Num) -> Num:
    """The angle of a point: the inverse tangent of y / x, with the branches of ``atan``."""
    a, b = abs(y), abs(x)
    # Sums of large numbers would overflow; the small number of such a pair may lose all its bits.
    largest = 2.0 ** (x.format.bias - 8)
    scale = where((a > largest) | (b > largest), a.const(2.0**-8), 1.0)
    p, q = a * scale, b * scale
    middle, large = p + p > q, p > q + q
    numerator = where(large, -q, where(middle, p - q, p))
    denominator = where(large, p, where(middle, p + q, q))
    ratio = numerator / denominator
    # Zeros have the angle 0 or pi; infinities, that of equal numbers.
    infinite = a.equals(math.inf) & b.equals(math.inf)
    ratio = where(infinite | (a.equals(0.0) & b.equals(0.0)), 0.0, ratio)
    middle = middle | infinite
    square = ratio * ratio
    result = fma(ratio * square, tables.ATAN(square), ratio)
    left = x.map("signbit")
    result = where(left, -result, result)
    high, low = PI_PARTS[x.grade]

    def base(part: float) -> Num:
        outer = where(left, a.const(part), 0.0)
        inner = where(left, a.const(0.75 * part), 0.25 * part)
        return where(large, 0.5 * part, where(middle, inner, outer))

    result = base(high) + (result + base(low))
    return result.with_sign(y)
