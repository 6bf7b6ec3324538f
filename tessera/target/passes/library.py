"""What CPUs take from the C library and GPUs have no instruction for: floating-point remainders,
neighbours and the logarithm of the gamma function of float64.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from tessera.dtypes import float32, uint32, uint64
from tessera.ir.core import Block, Value
from tessera.target import ops as t
from tessera.target.build import Build
from tessera.target.passes.expression import Num, fma, horner, where
from tessera.target.passes.fold import Fold

Step = Callable[[Fold, Value], Value]


def _while(b: Fold, init: Value, going: Step, step: Step) -> Value:
    """`while going(x): x = step(x)`."""
    blocks: list[Block] = []
    for fn in (going, step):
        arg, inner = Value(init.type), b.inner()
        blocks.append(Block([arg], inner.ops, [fn(inner, arg)]))
    return b.emit(t.While([init], *blocks, loc=b.loc))


def rem(b: Build, x: Value, y: Value) -> Value:
    """The exact remainder of the quotient towards zero.

    The divisor is taken times powers of two until a quotient has few bits: its whole part times
    that is subtracted without rounding.
    """
    assert isinstance(b, Fold)
    bits = 20 if t.element(x.type) is float32 else 50
    zero, infinity, factor = b.like(x, 0.0), b.like(x, math.inf), b.like(x, 2.0**bits)
    a, d = b.map("abs", x), b.map("abs", y)
    divides = b.map("ne", d, zero)
    valid = b.map("and", b.map("lt", a, infinity), divides)
    start, divisor = b.select(valid, a, zero), b.select(divides, d, b.like(x, 1.0))

    def subtract(b: Fold, r: Value) -> Value:
        large = _while(
            b,
            divisor,
            lambda b, m: b.map("le", b.map("mul", m, factor), r),
            lambda b, m: b.map("mul", m, factor),
        )
        quotient = b.map("trunc", b.map("div", r, large))
        rest = b.map("fma", b.map("neg", quotient), large, r)
        # The quotient may have been rounded up to the next whole number.
        return b.select(b.map("lt", rest, zero), b.map("add", rest, large), rest)

    rest = _while(b, start, lambda b, r: b.map("ge", r, divisor), subtract)
    result = b.map("copysign", rest, x)
    known = b.map("and", valid, b.map("eq", y, y))
    return b.select(known, result, b.like(x, math.nan))


def nextafter(b: Build, x: Value, y: Value) -> Value:
    """The neighbour of x on the side of y: one more or one less as an integer."""
    dtype = t.element(x.type)
    carrier = uint32 if dtype is float32 else uint64
    u, v = b.bitcast(x, carrier), b.bitcast(y, carrier)
    one, sign, zero = b.like(u, 1), b.like(u, 1 << (dtype.bits - 1)), b.like(x, 0.0)
    grows = b.map("eq", b.map("lt", x, y), b.map("gt", x, zero))
    away = b.select(grows, b.map("add", u, one), b.map("sub", u, one))
    smallest = b.map("or", b.map("and", v, sign), one)
    result = b.select(b.map("eq", x, zero), smallest, away)
    stays = b.map("or", b.map("ne", y, y), b.map("eq", x, y))
    result = b.select(b.map("ne", x, x), u, b.select(stays, v, result))
    return b.bitcast(result, dtype)


# --- the gamma function ---------------------------------------------------------------------------

# Of lgamma(2 + w): 1 - Euler's constant, then (-1)**k (zeta(k) - 1) / k.
LGAMMA_TERMS = (
    0.42278433509846713, 0.3224670334241132, -0.0673523010531981, 0.020580808427784546,
    -0.007385551028673986, 0.0028905103307415234, -0.001192753911703261, 0.0005096695247430425,
    -0.00022315475845357939, 9.945751278180853e-05, -4.492623673813314e-05, 2.050721277567069e-05,
    -9.439488275268397e-06, 4.374866789907488e-06, -2.039215753801366e-06, 9.55141213040742e-07,
    -4.492469198764566e-07, 2.1207184805554665e-07, -1.0043224823968099e-07,
    4.7698101693639804e-08, -2.2711094608943164e-08, 1.0838659214896955e-08,
    -5.183475041970047e-09, 2.4836745438024785e-09, -1.1921401405860912e-09,
    5.731367241678862e-10, -2.7595228851242334e-10,
)  # fmt: skip
STIRLING = (
    1 / 12, -1 / 360, 1 / 1260, -1 / 1680, 1 / 1188, -691 / 360360, 1 / 156, -3617 / 122400,
)  # fmt: skip
LARGE = 10


def lgamma(b: Build, value: Value) -> Value:
    """log(|gamma(x)|) of float64: a series about 2, reached by the recurrence, below 10; Stirling's
    from there; reflected for negative x.
    """
    x = Num(b, value)
    a = abs(x)
    large = _stirling(where(a < float(LARGE), float(LARGE), a))
    result = where(a < float(LARGE), _about_two(a), large)
    result = where(a < math.inf, result, a)
    magic = 2.0**52
    fraction = where(a < magic, a - a.map("round"), 0.0)
    sine = (fraction * math.pi).map("sin")
    reflected = (x.const(math.pi) / (a * abs(sine))).map("log") - result
    reflected = where(fraction.equals(0.0), math.inf, reflected)
    return where(x < 0.0, reflected, result).value


def _stirling(x: Num) -> Num:
    inverse = 1.0 / x
    series = inverse * horner(inverse * inverse, STIRLING)
    return fma(x - 0.5, x.map("log") - 1.0, 0.5 * math.log(2 * math.pi) - 0.5) + series


def _about_two(x: Num) -> Num:
    """lgamma between 0 and 10: of 2 + w, plus the logarithm of the factors that lead there."""
    low, near_one = x < 0.5, x < 1.5
    w, factor = x - 2.0, x.const(1.0)
    for k in range(1, LARGE - 1):
        above = x > k + 1.5
        factor = where(above, factor * (x - float(k)), factor)
        w = where(above, x - (2.0 + k), w)
    w = where(near_one, where(low, x, x - 1.0), w)
    result = w * horner(w, LGAMMA_TERMS)
    other = where(near_one, where(low, x, 1.0), factor)
    logarithm = other.map("log")
    result = where(near_one, (result - w.map("log1p")) - logarithm, result + logarithm)
    return where(x.equals(0.0), math.inf, result)


LIBRARY: dict[str, Callable[..., Value]] = {"rem": rem, "nextafter": nextafter}
"""Functions of float32 and float64."""

LIBRARY_DOUBLE: dict[str, Callable[..., Value]] = {"lgamma": lgamma}
"""Functions of float64."""
