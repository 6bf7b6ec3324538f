"""Transcendental functions of float32 with the help of a GPU's special function unit.

On an H200 its exponential is right to 2.06 units in the last place, the reciprocal to 1, that of
the square root to 1.6, for all arguments; they read and give subnormal numbers as zero. Arguments
are brought into the range where that does not matter, and what would add up to more is corrected.

`ROUGH` has shorter forms for results that are rounded to 16 bits at once: they are at most one unit
of the narrow format from the correctly rounded result.
"""

from __future__ import annotations

from collections.abc import Callable

from tessera.dtypes import DType, bfloat16, float16, float32, int32
from tessera.ir.core import Value
from tessera.target import gpu_ops as g
from tessera.target.build import Build
from tessera.target.passes import mathematics_tables as tables
from tessera.target.passes.expression import Num, fast_two_sum, fma, horner, where
from tessera.target.passes.mathematics_exponential import (
    LN2_PARTS,
    LOG2_E,
    odd,
    power_of_two,
    reduce,
)
from tessera.target.passes.mathematics_logarithm import (
    LN2,
    LOG2_E_PARTS,
    LOG10_2_PARTS,
    LOG10_E_PARTS,
    missing,
)

SMALLEST = 2.0**-126
"""The smallest number that the unit reads and gives."""

ROUNDER = 12582912.0 + 127
"""Added to an exponent, leaves it with its bias in the last bits."""

ROOT_HALF = 0x3F3504F3
ONE = 0x3F800000
INFINITY = 0x7F800000


def _unit(x: Num, fn: str) -> Num:
    """One instruction of the special function unit."""
    return Num(x.b, x.b.emit(g.Approximate(x.value, fn, loc=x.b.loc)), x.grade)


def exp(x: Num) -> Num:
    """2**k * 2**r with k an integer between -126 and 127, so that 2**k is a normal number. What x
    lacks to it goes into the unit, which has room for 2**-126 and 2**127 more.
    """
    part = _unit(fma(x, LOG2_E / 253, 126 / 253), "saturate")
    shifted = fma(part, 253.0, ROUNDER - 126)
    exponent = shifted - ROUNDER
    high, low = LOG2_E_PARTS[x.grade]
    rest = fma(x, low, fma(x, high, -exponent))
    return _unit(rest, "exp2") * (shifted.bits() << 23).floats()


def exp2(x: Num) -> Num:
    """The unit's, moved away from subnormal results."""
    tiny = x < -126.0
    scale = where(tiny, x.const(2.0**-24), 1.0)
    return _unit(where(tiny, x + 24.0, x), "exp2") * scale


def sigmoid(x: Num) -> Num:
    """exp(-|x|) / (1 + exp(-|x|)), or 1 less that. The unit's exponential would not be exact enough
    here, and its reciprocal is corrected once.
    """
    # Powers of two down to 2**-150, in two steps.
    parts = reduce((-abs(x)).map("max", -104.0), start=x.format.bias + 64)
    scale = power_of_two(parts.power)
    small = ((parts.r + parts.tail) + 1.0) * scale * 2.0**-64
    below, lost = fast_two_sum(small.const(1.0), small)
    inverse = _unit(below, "reciprocal")
    wrong = fma(-lost, inverse, fma(-below, inverse, 1.0))
    inverse = fma(inverse, wrong, inverse)
    return where(x < 0.0, small * inverse, inverse)


def tanh(x: Num) -> Num:
    """1 - 2 / (exp(2 |x|) + 1) for large |x|, a polynomial for small."""
    magnitude = abs(x)
    growth = _unit(magnitude * (2 * LOG2_E), "exp2")
    large = fma(_unit(growth + 1.0, "reciprocal"), -2.0, 1.0)
    return where(magnitude < 0.55, odd(magnitude, tables.TANH), large).with_sign(x)


def erf(x: Num) -> Num:
    """1 - exp(polynomial) for large |x|, a polynomial for small."""
    a = abs(x)
    small = fma(a, tables.ERF(a * a), a)
    exponent = tables.ERFC_LOG(a.map("min", 4.0)) * -LOG2_E
    return where(a < 0.9, small, 1.0 - _unit(exponent, "exp2")).with_sign(x)


def _fields(x: Num) -> tuple[Num, Num]:
    """The bits of an exponent e, and x / 2**e between sqrt(1/2) and sqrt(2), of a normal number."""
    bits = x.bits()
    exponent = (bits - ROOT_HALF) & (INFINITY | 1 << 31)
    return exponent, (bits - exponent).floats()


def _exponent(bits: Num, base: Num | float) -> Num:
    """The number of exponent bits, plus a base."""
    signed = bits.b.bitcast(bits.value, int32)
    return fma(Num(bits.b, bits.b.cast(signed, float32)), 2.0**-23, base)


def _split(x: Num) -> tuple[Num, Num, Num]:
    """e and f of a positive number 2**e * (1 + f), and the number, made normal."""
    tiny = x < SMALLEST
    normal = where(tiny, x * 2.0**24, x)
    bits, mantissa = _fields(normal)
    return _exponent(bits, where(tiny, x.const(-24.0), 0.0)), mantissa - 1.0, normal


def _of_positive(x: Num, result: Num) -> Num:
    """The result where x is positive and finite, else what the unit's logarithm says: infinite of
    0 and infinity, NaN of what is negative.
    """
    regular = (x.bits() - 1) < INFINITY - 1
    return where(regular, result, _unit(x, "log2"))


def log(x: Num) -> Num:
    """e * log(2) + log(1 + f)."""
    exponent, f, normal = _split(x)
    return _of_positive(normal, _joined(exponent, f))


def _joined(exponent: Num, f: Num) -> Num:
    high, low = LN2_PARTS[f.grade]
    return fma(exponent, high, f - fma(exponent, -low, missing(f)))


def log2(x: Num) -> Num:
    """e + log2(1 + f)."""
    exponent, f, normal = _split(x)
    high, low = LOG2_E_PARTS[x.grade]
    rest = fma(missing(f), -high, f * low)
    return _of_positive(normal, exponent + fma(f, high, rest))


def log10(x: Num) -> Num:
    """e * log10(2) + log10(1 + f)."""
    exponent, f, normal = _split(x)
    high, low = LOG10_E_PARTS[x.grade]
    high2, low2 = LOG10_2_PARTS[x.grade]
    rest = fma(exponent, low2, fma(missing(f), -high, f * low))
    return _of_positive(normal, fma(exponent, high2, fma(f, high, rest)))


def log1p(x: Num) -> Num:
    """log(1 + x) where 1 + x = 2**e * (1 + f): f is x / 2**e + (1 / 2**e - 1)."""
    total = x + 1.0
    bits, _ = _fields(total)
    # Four times 1 / 2**e, which is normal where that is not.
    inverse = (x.const(4.0).bits() - bits).floats()
    scaled = (x.bits() - bits).floats()
    f = scaled + fma(inverse, 0.25, -1.0)
    result = _of_positive(total, _joined(_exponent(bits, 0.0), f))
    return where(abs(x) < 2.0**-25, x, result)


def rsqrt(x: Num) -> Num:
    """The unit's, of numbers made normal."""
    tiny = x < SMALLEST
    root = _unit(where(tiny, x * 2.0**24, x), "rsqrt")
    return root * where(tiny, x.const(2.0**12), 1.0)


# --- for results of 16 bits -----------------------------------------------------------------------


def _root_exponential(x: Num) -> Num:
    """exp(x / 2), whose square is exp(x) into the subnormal numbers."""
    return _unit(x * (LOG2_E / 2), "exp2")


def rough_exp(x: Num) -> Num:
    """The square of exp(x / 2)."""
    root = _root_exponential(x)
    return root * root


def rough_exp2(x: Num) -> Num:
    """The square of 2**(x / 2)."""
    root = _unit(x * 0.5, "exp2")
    return root * root


def rough_sigmoid(x: Num) -> Num:
    """As `sigmoid`, without corrections."""
    root = _root_exponential(-abs(x))
    small = root * root
    inverse = _unit(small + 1.0, "reciprocal")
    return where(x < 0.0, small * inverse, inverse)


def rough_log(x: Num) -> Num:
    """The unit's logarithm; near 1 it has the digits of a bfloat16."""
    return _rough_log2(x, LN2)


def rough_log2(x: Num) -> Num:
    """The unit's logarithm; near 1 it has the digits of a bfloat16."""
    return _rough_log2(x, 1.0)


def _rough_log2(x: Num, unit: float) -> Num:
    tiny = x < SMALLEST
    found = _unit(where(tiny, x * 2.0**24, x), "log2")
    return fma(found, unit, where(tiny, x.const(-24.0 * unit), 0.0))


def rough_sqrt(x: Num) -> Num:
    """The unit's, of numbers made normal. Roots of numbers of 8 bits are so far from the middle of
    two such numbers that the result is rounded correctly.
    """
    tiny = x < SMALLEST
    root = _unit(where(tiny, x * 2.0**24, x), "sqrt")
    return root * where(tiny, x.const(2.0**-12), 1.0)


def rough_tanh(x: Num) -> Num:
    """The unit's, with the digits of 16 bits."""
    return _tanh(x)


def _tanh(x: Num) -> Num:
    """The unit's, and subnormal numbers as they are."""
    return where(abs(x) < SMALLEST, x, _unit(x, "tanh"))


# erf(x) = tanh(x * polynomial(x**2)) to 2**-14.
ERF_TANH = (1.12831288, 0.10364823, -0.00161952)


def rough_erf(x: Num) -> Num:
    """By the unit's tanh; from 4 on both are 1."""
    square = (x * x).map("min", 16.0)
    return _tanh(x * horner(square, ERF_TANH))


def _expansion(fn: Callable[..., Num]) -> Callable[..., Value]:
    def expand(b: Build, *args: Value) -> Value:
        return fn(*[Num(b, x) for x in args]).value

    expand.__name__, expand.__doc__ = fn.__name__, fn.__doc__
    return expand


APPROXIMATE: dict[str, Callable[..., Value]] = {
    fn.__name__: _expansion(fn)
    for fn in (exp, exp2, sigmoid, tanh, erf, log, log2, log10, log1p, rsqrt)
}
"""Functions of float32 by the name of their row."""

_EITHER = (float16, bfloat16)

ROUGH: dict[tuple[str, DType], Callable[..., Value]] = {
    **{("exp", d): _expansion(rough_exp) for d in _EITHER},
    **{("exp2", d): _expansion(rough_exp2) for d in _EITHER},
    **{("sigmoid", d): _expansion(rough_sigmoid) for d in _EITHER},
    **{("tanh", d): _expansion(rough_tanh) for d in _EITHER},
    ("sqrt", bfloat16): _expansion(rough_sqrt),
    ("erf", bfloat16): _expansion(rough_erf),
    ("log", bfloat16): _expansion(rough_log),
    ("log2", bfloat16): _expansion(rough_log2),
}
"""Functions of float32 whose result is rounded to the format at once."""

