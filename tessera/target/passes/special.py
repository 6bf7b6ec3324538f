"""Expansions of special functions that the C library lacks.

They compute in float64 what float32 asks for, except where a float32 method is as good.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from tessera.dtypes import float32, float64
from tessera.ir.core import Value
from tessera.ir.special import DIGAMMA_LARGE, DIGAMMA_SERIES
from tessera.target import ops as t
from tessera.target.build import Build

# M. Giles, "Approximating the erfinv function" (2012), table 3: erfinv(x) / x by powers of
# -log(1 - x*x) - 2.5 in the centre and of sqrt(-log(1 - x*x)) - 3 in the tails, highest first.
_CENTRE = (
    2.81022636e-08,
    3.43273939e-07,
    -3.5233877e-06,
    -4.39150654e-06,
    0.00021858087,
    -0.00125372503,
    -0.00417768164,
    0.246640727,
    1.50140941,
)
_TAIL = (
    -0.000200214257,
    0.000100950558,
    0.00134934322,
    -0.00367342844,
    0.00573950773,
    -0.0076224613,
    0.00943887047,
    1.00167406,
    2.83297682,
)


def erfinv(b: Build, x: Value) -> Value:
    """The inverse of erf: infinite at -1 and 1, NaN outside."""
    result = _erfinv32(b, x) if t.element(x.type) is float32 else _erfinv64(b, x)
    one = b.like(x, 1.0)
    infinite = b.map("copysign", b.like(x, math.inf), x)
    return b.select(b.map("eq", b.map("abs", x), one), infinite, result)


def _erfinv32(b: Build, x: Value) -> Value:
    # 1 - x is exact where it is small, unlike 1 - x*x.
    one = b.like(x, 1.0)
    w = b.map("neg", b.map("log", b.map("mul", b.map("sub", one, x), b.map("add", one, x))))
    centre = _polynomial(b, _CENTRE, b.map("sub", w, b.like(w, 2.5)))
    tail = _polynomial(b, _TAIL, b.map("sub", b.map("sqrt", w), b.like(w, 3.0)))
    return b.map("mul", b.select(b.map("lt", w, b.like(w, 5.0)), centre, tail), x)


def _polynomial(b: Build, coefficients: Sequence[float], x: Value) -> Value:
    result = b.like(x, coefficients[0])
    for coefficient in coefficients[1:]:
        result = b.map("add", b.map("mul", result, x), b.like(x, coefficient))
    return result


def _erfinv64(b: Build, x: Value) -> Value:
    """As `ir/special.py`: Winitzki's closed form, then Halley steps that triple its digits."""
    size, half = b.map("abs", x), b.like(x, 0.5)
    tail = b.map("sub", b.like(x, 1.0), size)
    logarithm = b.map("log1p", b.map("neg", b.map("mul", size, size)))
    first = b.map("add", b.like(x, 2 / (math.pi * 0.147)), b.map("mul", logarithm, half))
    inner = b.map("sub", b.map("mul", first, first), b.map("div", logarithm, b.like(x, 0.147)))
    guess = b.map("sqrt", b.map("sub", b.map("sqrt", inner), first))
    central = b.map("lt", size, half)
    for _ in range(3):
        near = b.map("sub", b.map("erf", guess), size)
        far = b.map("sub", tail, b.map("erfc", guess))
        slope = b.map("exp", b.map("neg", b.map("mul", guess, guess)))
        slope = b.map("mul", slope, b.like(x, 2 / math.sqrt(math.pi)))
        step = b.map("div", b.select(central, near, far), slope)
        scale = b.map("add", b.like(x, 1.0), b.map("mul", guess, step))
        guess = b.map("sub", guess, b.map("div", step, scale))
    # The closed form loses everything near zero, where the function is linear to the last digit.
    linear = b.map("mul", size, b.like(x, math.sqrt(math.pi) / 2))
    guess = b.select(b.map("lt", size, b.like(x, 1e-8)), linear, guess)
    return b.map("copysign", guess, x)


def digamma(b: Build, x: Value) -> Value:
    """The derivative of lgamma: NaN at negative integers, infinite at zeros (-inf at +0)."""
    dtype = t.element(x.type)
    return b.cast(_digamma64(b, b.cast(x, float64)), dtype)


def _digamma64(b: Build, x: Value) -> Value:
    """As `ir/special.py`: reflection, shifts to where the asymptotic series is good."""
    none, one = b.like(x, 0.0), b.like(x, 1.0)
    reflect = b.map("lt", x, none)
    y = b.select(reflect, b.map("sub", one, x), x)
    shift = none
    for _ in range(int(DIGAMMA_LARGE)):
        small = b.map("lt", y, b.like(y, DIGAMMA_LARGE))
        shift = b.select(small, b.map("sub", shift, b.map("div", one, y)), shift)
        y = b.select(small, b.map("add", y, one), y)
    inverse = b.map("div", one, b.map("mul", y, y))
    series = none
    for coefficient in reversed(DIGAMMA_SERIES):
        series = b.map("mul", b.map("add", series, b.like(x, coefficient)), inverse)
    series = b.map("add", b.map("div", b.like(x, 0.5), y), series)
    result = b.map("add", shift, b.map("sub", b.map("log", y), series))
    fraction = b.map("sub", x, b.map("round", x))
    pi = b.like(x, math.pi)
    tangent = b.map("tan", b.map("mul", pi, fraction))
    reflected = b.map("sub", result, b.map("div", pi, tangent))
    whole = b.map("eq", fraction, none)
    reflected = b.select(whole, b.like(x, math.nan), reflected)
    result = b.select(reflect, reflected, result)
    pole = b.map("copysign", b.like(x, math.inf), b.map("neg", x))
    return b.select(b.map("eq", x, none), pole, result)
