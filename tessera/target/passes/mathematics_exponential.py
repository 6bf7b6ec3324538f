"""Expansions of the exponential and hyperbolic functions.

exp(x) = 2**k * exp(r) with k the integer nearest to x / log(2) and |r| <= log(2) / 2. The first
part of log(2) has so few bits that k times it is exact, so r is as exact as one rounding allows
with or without a fused multiply-add.

Where a register holds a table, k is a multiple of 1 / 32 in float32: the powers of two below 2 are
looked up, and a polynomial of degree 2 does for the rest (Tang's method), to 1.8 units of the last
place. Hyperbolic functions that have two exponentials need better ones.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tessera.target.passes import mathematics_tables as tables
from tessera.target.passes.expression import Grade, Num, Polynomial, fast_two_sum, fma, where

LOG2_E = 1.4426950408889634

# log(2) in two parts: 16 bits (float32) or 42 bits (float64), and the rest.
LN2_PARTS = {
    Grade.SINGLE: (0.693145751953125, 1.4286068203094173e-06),
    Grade.DOUBLE: (0.6931471805598903, 5.497923018708371e-14),
}


@dataclass(frozen=True, slots=True)
class Reduced:
    """An exponent and the rest: the exponential is 2**k * (1 + r + tail).

    Attributes:
        k: the exponent.
        power: bits of an unsigned integer, whose last 9 (12 in float64) are the exponent plus
            `twice_biased` or another start.
        r: at most log(2) / 2.
        tail: exp(r) - 1 - r.
    """

    k: Num
    power: Num
    r: Num
    tail: Num

    def scaled(self, x: Num) -> Num:
        """x * 2**k, where x is near 1: rounded once."""
        return times_power(x, self.k, self.power)


def twice_biased(x: Num) -> int:
    """Where exponents begin that `scaled` takes: each half of one has the format's bias then."""
    return 2 * x.format.bias


def reduce(x: Num, rest: Num | None = None, start: int | None = None) -> Reduced:
    """The parts of exp(x + rest), where the rest is small beside x. Of |x| so much that exponents
    are less than twice the format's bias; of float64 in place of float32 less than 2**10.
    """
    k, power = exponent(x, twice_biased(x) if start is None else start)
    if rest is not None and x.grade is not Grade.SHORT:
        high, low = LN2_PARTS[x.grade]
        r, lost = fast_two_sum(fma(k, -high, x), fma(k, -low, rest))
        return Reduced(k, power, r, fma(r * r, tables.EXPM1(r), lost))
    r = remainder(x, k)
    return Reduced(k, power, r, (r * r) * tables.EXPM1(r))


def exponent(x: Num, start: int) -> tuple[Num, Num]:
    """The exponent of exp(x), and bits whose last ones are that plus a start."""
    magic = x.format.magic + start
    shifted = fma(x, LOG2_E, magic)
    return shifted - magic, shifted.bits()


def parts_base2(x: Num, start: int) -> tuple[Num, Num, Num]:
    """The exponent of exp2(x), bits as of `exponent`, and the rest as an argument of exp."""
    magic = x.format.magic + start
    shifted = x + magic
    k = shifted - magic
    return k, shifted.bits(), (x - k) * (1 / LOG2_E)


def remainder(x: Num, k: Num) -> Num:
    """x - k * log(2)."""
    if x.grade is Grade.SHORT:
        return fma(k, -1 / LOG2_E, x)
    high, low = LN2_PARTS[x.grade]
    return fma(k, -low, fma(k, -high, x))


PLACES = 5
"""Binary places of an exponent whose power of two is looked up."""


def from_table(x: Num, raised: Num | None = None, *, is_base2: bool = False) -> Num:
    """exp(x) or exp2(x), into the subnormal numbers and to infinity. Either x is not far beyond
    them, or x is above and there is an instruction for `scale`: the polynomial is positive there.
    With `raised`, 2**RAISED times as much where it holds.
    """
    magic = x.format.magic / (1 << PLACES)
    shifted = x + magic if is_base2 else fma(x, LOG2_E, magic)
    k = shifted - magic
    r = (x - k) * (1 / LOG2_E) if is_base2 else remainder(x, k)
    start = shifted.bits().lookup(tables.POWERS)
    found = fma(tables.EXP_NEAR(r), r * start, start)
    if x.scales:
        return found.scale(k if raised is None else where(raised, k + float(RAISED), k))
    power = (shifted.bits() + (twice_biased(x) << PLACES)) >> PLACES
    return scaled(found, power if raised is None else where(raised, power + RAISED, power))


def near_one(r: Num) -> Num:
    """exp(r) for |r| <= log(2) / 2, to a unit of the last place; by Horner's rule where each step
    is one instruction, rounded once.
    """
    tail = tables.EXP(r)
    return fma(fma(tail, r, 1.0), r, 1.0) if r.b.fused else 1.0 + (r + (r * r) * tail)


def grown(r: Num, scale: Num) -> Num:
    """exp(r) times a power of two, as exp(r) - 1 of it and itself: a step less than to multiply
    `near_one`, and rounded where it is largest only."""
    return fma(fma(r * r, tables.EXP(r), r), scale, scale)


RAISED = 64
"""A power of two that makes normal numbers of all others."""


def gradual(x: Num, low: float, least: float, fn: Callable[[Num, Num | None], Num]) -> Num:
    """An exponential `fn(x, raised)` whose results are less than the smallest normal number below
    `least`, and 0 below `low`.

    Where an underflow takes long there is none: what is too small is computed times a power of two,
    the sum with a number that is as much too large is rounded where the result is, and the
    difference of their bits is the result's, as these numbers are as far apart as integers.
    """
    limited = where(x < low, low, x)
    if not x.b.assists:
        return fn(limited, None)
    small = x < least
    raised = fn(limited, small)
    start = x.const(2.0 ** (RAISED + 1 - x.format.bias))
    return where(small, ((raised + start).bits() - start.bits()).floats(), raised)


def near_power(r: Num, k: Num, power: Num) -> Num:
    """exp(r) * 2**k for |r| <= log(2) / 2; `power` is `twice_biased`."""
    if not r.b.pairs:
        return times_power(near_one(r), k, power)
    first = power >> 1
    return grown(r, power_of_two(first)) * power_of_two(power - first)


def _raised(k: Num, power: Num, raised: Num | None) -> tuple[Num, Num]:
    if raised is None:
        return k, power
    if k.scales:
        return where(raised, k + float(RAISED), k), power
    return k, where(raised, power + RAISED, power)


def exponential(x: Num, halvings: int = 0, raised: Num | None = None) -> Num:
    """exp(x) / 2**halvings to a unit of the last place, into the subnormal numbers and to infinity,
    but not far beyond them. With `raised`, 2**RAISED times as much where it holds.
    """
    k, power = exponent(x, twice_biased(x))
    r = remainder(x, k)
    k, power = _raised(k, power, raised)
    if halvings:
        k, power = k - float(halvings), power - halvings
    return near_power(r, k, power)


def exponential_inside(x: Num) -> Num:
    """exp(x) where it is a normal number."""
    if x.looks_up:
        return from_table(x)
    k, power = exponent(x, x.format.bias)
    r = remainder(x, k)
    if x.b.pairs:
        return grown(r, power_of_two(power))
    return near_one(r).scale(k) if x.scales else near_one(r) * power_of_two(power)


def times_power(x: Num, k: Num, power: Num) -> Num:
    """x * 2**k, where x is near 1: rounded once; `power` has the bits of k."""
    return x.scale(k) if x.scales else scaled(x, power)


def scaled(x: Num, power: Num) -> Num:
    """x times two to an exponent that is `twice_biased`, in two steps because one factor may be no
    normal number.
    """
    first = power >> 1
    return (x * power_of_two(first)) * power_of_two(power - first)


def power_of_two(exponent: Num) -> Num:
    """The power of two whose exponent, with its bias, the last bits of an integer are."""
    return (exponent << exponent.format.mantissa).floats()


def _limits(x: Num) -> tuple[float, float]:
    """Where exp has become 0 and infinity. Where `scaled` takes two products, both factors are 0 at
    the first limit: a product that underflows takes twice as long.
    """
    is_single = x.grade is Grade.SINGLE
    high = 89.0 if is_single else 710.0
    if x.b.assists or x.scales:
        return (-104.0 if is_single else -746.0), high
    return (-176.0 if is_single else -1418.0), high


def clamped(x: Num, low: float, high: float) -> Num:
    """x between limits; NaN stays."""
    x = where(x < low, low, x)
    return where(x > high, high, x)


def vanishing(x: Num, gone: Num, end: float, fn: Callable[[Num], Num]) -> Num:
    """fn(x), which is 0 where a condition says that x is beyond an end. Where an underflow takes
    long it is not computed there: masks (attention's) ask for many."""
    if not x.b.assists:
        return fn(where(gone, end, x))
    return where(gone, 0.0, fn(where(gone, 1.0, x)))


def _topped(x: Num, high: float) -> Num:
    """An operand of the exponential up to a limit; `from_table` takes what is above."""
    return x if x.looks_up and x.scales else where(x > high, high, x)


def exp(x: Num) -> Num:
    """e ** x."""
    low, high = _limits(x)

    def inside(x: Num, raised: Num | None) -> Num:
        x = _topped(x, high)
        return from_table(x, raised) if x.looks_up else exponential(x, raised=raised)

    return gradual(x, low, -87.3366 if x.grade is Grade.SINGLE else -708.3965, inside)


def exp2(x: Num) -> Num:
    """2 ** x."""
    low, high = (-150.0, 129.0) if x.grade is Grade.SINGLE else (-1076.0, 1025.0)
    if not (x.b.assists or x.scales):
        low = -float(twice_biased(x))  # as in `_limits`

    def inside(x: Num, raised: Num | None) -> Num:
        x = _topped(x, high)
        if x.looks_up:
            return from_table(x, raised, is_base2=True)
        k, power, r = parts_base2(x, twice_biased(x))
        return near_power(r, *_raised(k, power, raised))

    return gradual(x, low, 1.0 - x.format.bias, inside)


def expm1(x: Num) -> Num:
    """exp(x) - 1 = (2**k - 1) + 2**k * r + 2**k * (exp(r) - 1 - r)."""
    low, high = (-18.0, 89.0) if x.grade is Grade.SINGLE else (-39.0, 710.0)
    # Half of everything: 2**k alone would overflow where the result does not.
    parts = reduce(clamped(x, low, high), start=x.format.bias - 1)
    half = power_of_two(parts.power)
    whole, rest = fast_two_sum(half - 0.5, half * parts.r)
    result = 2.0 * (whole + fma(half, parts.tail, rest))
    return where(abs(x) < x.format.epsilon / 4, x, result)


def sigmoid(x: Num) -> Num:
    """1 / (1 + exp(-x)), by the exponential of a negative number, which does not overflow."""

    def inside(x: Num) -> Num:
        parts = reduce(x)
        # Three roundings in a row would be more than two units, so two of them are made good.
        whole, rest = fast_two_sum(parts.r.const(1.0), parts.r)
        return parts.scaled(whole + (rest + parts.tail))

    low, least = _limits(x)[0], -abs(x)
    small = vanishing(least, least < low, low, inside)
    below, lost = fast_two_sum(small.const(1.0), small)
    negative = x < 0.0
    result = where(negative, small, 1.0) / below
    inverse = where(negative, 1.0 - result, result)
    return fma(-(result * inverse), lost, result)


def tanh(x: Num) -> Num:
    """1 - 2 / (exp(2 |x|) + 1) for large |x|, a polynomial for small."""
    magnitude = abs(x)
    limit = 10.0 if x.grade is Grade.SINGLE else 20.0
    twice = where(magnitude > limit, limit, magnitude) * 2.0
    large = 1.0 - 2.0 / (exponential_inside(twice) + 1.0)
    return where(magnitude < 0.55, odd(magnitude, tables.TANH), large).with_sign(x)


def odd(x: Num, polynomial: Polynomial) -> Num:
    """x + x**3 * polynomial(x**2) for x >= 0; of -0 it may lose the sign."""
    square = x * x
    return fma(x * square, polynomial(square), x)


def sinh(x: Num) -> Num:
    """(exp(|x|) - exp(-|x|)) / 2 for large |x|, a polynomial for small."""
    half = _half_exponential(x)
    large = half - 0.25 / half
    magnitude = abs(x)
    return where(magnitude < 1.0, odd(magnitude, tables.SINH), large).with_sign(x)


def cosh(x: Num) -> Num:
    """(exp(|x|) + exp(-|x|)) / 2."""
    half = _half_exponential(x)
    return half + 0.25 / half


def _half_exponential(x: Num) -> Num:
    magnitude = abs(x)
    limit = _limits(x)[1] + 1.0
    return exponential(where(magnitude > limit, limit, magnitude), halvings=1)
