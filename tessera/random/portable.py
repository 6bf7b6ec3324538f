"""Elementary functions whose results are the same bits on every machine.

`ts.log` and its kin are rounded as a target does best: their last bit may differ between a CPU with
fused multiply-add, one without, and a GPU. A sampler must not depend on that: a comparison that
falls out otherwise is another sample. The functions here are made of additions, products,
quotients, square roots and integers, each of which IEEE 754 rounds one way, and which no pass
reorders or fuses. They are for float32 and float64; narrower numbers are computed in float32, and
rounded once.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from tessera.dtypes import DType, float32, float64, int32, int64, uint32, uint64
from tessera.graph.ops import elementwise as ops


@dataclass(frozen=True)
class Format:
    """What is particular to a floating-point format.

    Attributes:
        signed: the integers of its width.
        words: the unsigned ones.
        mantissa: the number of stored bits of the mantissa.
        bias: that of the exponent.
        root_half: the bits of sqrt(1/2).
        log_terms: terms of the series of the logarithm.
        exp_terms: terms of that of the exponential.
        ln2: log(2) in two parts; products of the first with exponents are exact.
    """

    signed: DType
    words: DType
    mantissa: int
    bias: int
    root_half: int
    log_terms: int
    exp_terms: int
    ln2: tuple[float, float]


FORMATS: Final = {
    float32: Format(
        int32, uint32, 23, 127, 0x3F3504F3, 5, 8, (0.693145751953125, 1.4286068203094172e-6)
    ),
    float64: Format(
        int64, uint64, 52, 1023, 0x3FE6A09E667F3BCD, 11, 14,
        (6.93147180369123816490e-1, 1.90821492927058770002e-10),
    ),
}  # fmt: skip


def horner(x: Any, coefficients: Sequence[float]) -> Any:
    """A polynomial, from the constant term up."""
    found: Any = coefficients[-1]
    for c in reversed(coefficients[:-1]):
        found = ops.add(ops.mul(x, found), c)
    return found


def log(x: Any, below_one: Any = None) -> Any:
    """The natural logarithm of positive normal numbers.

    x = 2**e * f with f between sqrt(1/2) and sqrt(2), and log(f) = 2 atanh((f - 1) / (f + 1)).

    Args:
        x: the numbers.
        below_one: 1 - x, where it is known better than x has room for; used where x > sqrt(1/2).
    """
    form = FORMATS[x.dtype]
    bits = ops.bitcast(x, form.signed)
    exponent = ops.shr(ops.sub(bits, form.root_half), form.mantissa)
    f = ops.bitcast(ops.sub(bits, ops.shl(exponent, form.mantissa)), x.dtype)
    apart = ops.sub(f, 1.0)
    if below_one is not None:
        apart = ops.select(ops.ge(exponent, 0), ops.neg(below_one), apart)
    s = ops.div(apart, ops.add(f, 1.0))
    z = ops.mul(s, s)
    series = horner(z, [2 / (2 * k + 3) for k in range(form.log_terms - 1)])
    e = ops.cast(exponent, x.dtype)
    high, low = form.ln2
    small = ops.add(ops.mul(ops.mul(s, z), series), ops.mul(e, low))
    return ops.add(ops.mul(e, high), ops.add(ops.add(s, s), small))


def exp(x: Any) -> Any:
    """e**x of numbers that are not NaN: 2**k * e**r, and the series of e**r."""
    form = FORMATS[x.dtype]
    # Beyond these, results are 0 and infinity.
    limit = 2.0 * form.bias * math.log(2)
    x = ops.minimum(ops.maximum(x, -limit), limit)
    whole = ops.round_(ops.mul(x, 1 / math.log(2)))
    high, low = form.ln2
    r = ops.sub(ops.sub(x, ops.mul(whole, high)), ops.mul(whole, low))
    found = horner(r, [1 / math.factorial(k) for k in range(form.exp_terms)])
    # In two steps, as 2**k may be no normal number where the result is one.
    k = ops.cast(whole, form.signed)
    half = ops.shr(k, 1)
    for part in (half, ops.sub(k, half)):
        found = ops.mul(found, _power_of_two(part, form, x.dtype))
    return found


def _power_of_two(k: Any, form: Format, dtype: DType) -> Any:
    return ops.bitcast(ops.shl(ops.add(k, form.bias), form.mantissa), dtype)


# Wichura, "Algorithm AS 241: the percentage points of the normal distribution" (1988): numerators
# and denominators in the middle, in the tails, and far out. The short form is right to 7 digits,
# and has no need of the last, which begins at 1e-11.
_Ratio = tuple[tuple[float, ...], tuple[float, ...]]

_SHORT: Final[tuple[_Ratio, ...]] = (
    (
        (3.3871327179, 50.434271938, 159.29113202, 59.109374720),
        (1.0, 17.895169469, 78.757757664, 67.187563600),
    ),
    (
        (1.4234372777, 2.7568153900, 1.3067284816, 0.17023821103),
        (1.0, 0.73700164250, 0.12021132975),
    ),
)
_LONG: Final[tuple[_Ratio, ...]] = (
    (
        (3.3871328727963666080, 133.14166789178437745, 1971.5909503065514427,
         13731.693765509461125, 45921.953931549871457, 67265.770927008700853,
         33430.575583588128105, 2509.0809287301226727),
        (1.0, 42.313330701600911252, 687.18700749205790830, 5394.1960214247511077,
         21213.794301586595867, 39307.895800092710610, 28729.085735721942674,
         5226.4952788528545610),
    ),
    (
        (1.42343711074968357734, 4.63033784615654529590, 5.76949722146069140550,
         3.64784832476320460504, 1.27045825245236838258, 0.241780725177450611770,
         0.0227238449892691845833, 7.74545014278341407640e-4),
        (1.0, 2.05319162663775882187, 1.67638483018380384940, 0.689767334985100004550,
         0.148103976427480074590, 0.0151986665636164571966, 5.47593808499534494600e-4,
         1.05075007164441684324e-9),
    ),
    (
        (6.65790464350110377720, 5.46378491116411436990, 1.78482653991729133580,
         0.296560571828504891230, 0.0265321895265761230930, 1.24266094738807843860e-3,
         2.71155556874348757815e-5, 2.01033439929228813265e-7),
        (1.0, 0.599832206555887937690, 0.136929880922735805310, 0.0148753612908506148525,
         7.86869131145613259100e-4, 1.84631831751005468180e-5, 1.42151175831644588870e-7,
         2.04426310338993978564e-15),
    ),
)  # fmt: skip


def normal_quantile(tail: Any, centre: Any) -> Any:
    """The number that a standard normal variable exceeds with a probability of at most 1/2.

    Args:
        tail: the probability.
        centre: 1/2 minus the probability, exact where that is near 1/2.
    """
    parts = _SHORT if tail.dtype is float32 else _LONG
    above, below = (horner(ops.sub(0.180625, ops.mul(centre, centre)), c) for c in parts[0])
    above = ops.mul(centre, above)
    is_tail = ops.gt(centre, 0.425)
    root = ops.sqrt(ops.neg(log(tail)))
    for k, ratio in enumerate(parts[1:]):
        holds = ops.gt(root, 5.0) if k else is_tail
        found = [horner(ops.sub(root, 5.0 if k else 1.6), c) for c in ratio]
        above, below = (
            ops.select(holds, new, old) for new, old in zip(found, (above, below), strict=True)
        )
    return ops.div(above, below)


# exp(x**2 / 2) * (x + 4) times the probability, in t = (x - 4) / (x + 4): a Chebyshev series made
# by mpmath, whose next terms are below 3e-17, in powers of t.
_TAIL: Final = (
    0.7552851304157514, -0.6078966419718923, 0.3871374007422266, -0.1865218579596366,
    0.06039657489036092, -0.007540188967386312, -0.0034796923566515025, 0.0016308184674099085,
    0.00013334420916014778, -0.00023109501736277426, -1.907676030719098e-06, 3.514511190283765e-05,
    7.146021531267462e-07, -5.921611045923978e-06, -6.249551077565178e-07, 1.0247851016552774e-06,
    2.647337281979868e-07, -1.597739614223922e-07, -7.878360342693638e-08, 1.7844927772981415e-08,
    1.60673869573294e-08, -5.873626764987191e-10, -1.6886576966786735e-09, -1.1997782031253095e-10,
)  # fmt: skip


def normal_tail(x: Any) -> Any:
    """The probability that a standard normal variable exceeds x, at least 0, in float64."""
    # Beyond 39 it is 0.
    x = ops.minimum(x, 39.0)
    t = ops.div(ops.sub(x, 4.0), ops.add(x, 4.0))
    density = exp(ops.mul(ops.mul(x, x), -0.5))
    return ops.div(ops.mul(density, horner(t, _TAIL)), ops.add(x, 4.0))


def log_factorial(k: Any) -> Any:
    """log(k!) of whole numbers in float64, by Stirling's series from 10 on."""
    x = ops.add(k, 1.0)
    is_small = ops.lt(x, 10.0)
    product = x
    for step in range(1, 10):
        product = ops.mul(product, ops.add(x, float(step)))
    y = ops.select(is_small, ops.add(x, 10.0), x)
    inverse = ops.div(1.0, y)
    # B(2n) / (2n (2n - 1)) of the Bernoulli numbers.
    terms = (1 / 12, -1 / 360, 1 / 1260, -1 / 1680, 1 / 1188, -691 / 360360, 1 / 156)
    series = ops.mul(inverse, horner(ops.mul(inverse, inverse), terms))
    whole = ops.sub(ops.mul(ops.sub(y, 0.5), log(y)), y)
    found = ops.add(whole, ops.add(series, 0.5 * math.log(2 * math.pi)))
    return ops.sub(found, ops.select(is_small, log(product), ops.mul(x, 0.0)))
