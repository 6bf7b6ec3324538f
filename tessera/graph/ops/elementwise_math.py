"""Elementwise ops: exponentials, logarithms, powers, trigonometric and special functions.

Derivatives are written in terms of the result where that is as accurate. Formulas keep to the range
of the operands' format where they can: `hypot(x, 1)`, not `sqrt(x*x + 1)`, which overflows in
float16 for x > 255.
"""

from __future__ import annotations

import math
from typing import Any, Final

from tessera.graph.ops.arithmetic import (
    add,
    div,
    eq,
    isinf,
    lt,
    mul,
    neg,
    round_,
    select,
    square,
    sub,
)
from tessera.graph.ops.elementwise_base import Binary, Unary, binary, unary
from tessera.graph.ops.rearrange import call


def difference(x: Any, y: Any) -> Any:
    """x - y, and 0 for equal infinities, where that is NaN. Of equal numbers it is a difference
    still: it has a derivative."""
    return select(call("and", eq(x, y), isinf(x)), 0, sub(x, y))


# --- exponentials, logarithms, powers ---------------------------------------------------------


class Exp(Unary):
    """e ** x."""

    name = "graph.exp"
    scalar = "exp"

    def derivative(self, x: Any, out: Any) -> Any:
        return out


class Exp2(Unary):
    """2 ** x."""

    name = "graph.exp2"
    scalar = "exp2"

    def derivative(self, x: Any, out: Any) -> Any:
        return mul(out, math.log(2))


class Expm1(Unary):
    """e ** x - 1."""

    name = "graph.expm1"
    scalar = "expm1"

    def derivative(self, x: Any, out: Any) -> Any:
        return add(out, 1)


class Log(Unary):
    """The natural logarithm."""

    name = "graph.log"
    scalar = "log"

    def partial(self, k: int, t: Any, out: Any, *primals: Any) -> Any:
        return div(t, primals[0])


class Log1p(Unary):
    """log(1 + x)."""

    name = "graph.log1p"
    scalar = "log1p"

    def partial(self, k: int, t: Any, out: Any, *primals: Any) -> Any:
        return div(t, add(primals[0], 1))


class Log2(Unary):
    """The logarithm to base 2."""

    name = "graph.log2"
    scalar = "log2"

    def derivative(self, x: Any, out: Any) -> Any:
        return div(1 / math.log(2), x)


class Log10(Unary):
    """The logarithm to base 10."""

    name = "graph.log10"
    scalar = "log10"

    def derivative(self, x: Any, out: Any) -> Any:
        return div(1 / math.log(10), x)


class Sqrt(Unary):
    """The square root."""

    name = "graph.sqrt"
    scalar = "sqrt"

    def derivative(self, x: Any, out: Any) -> Any:
        return div(0.5, out)


class Rsqrt(Unary):
    """1 / sqrt(x)."""

    name = "graph.rsqrt"
    scalar = "rsqrt"

    def derivative(self, x: Any, out: Any) -> Any:
        return mul(div(out, x), -0.5)


class Cbrt(Unary):
    """The cube root."""

    name = "graph.cbrt"
    scalar = "cbrt"

    def derivative(self, x: Any, out: Any) -> Any:
        return div(1 / 3, square(out))


class Hypot(Binary):
    """sqrt(x*x + y*y), without overflow on the way. The derivative at the origin is 0."""

    name = "graph.hypot"
    scalar = "hypot"

    def partial(self, k: int, t: Any, out: Any, *primals: Any) -> Any:
        return mul(t, div(primals[k], select(eq(out, 0), 1, out)))


class LogAddExp(Binary):
    """log(exp(x) + exp(y))."""

    name = "graph.logaddexp"
    scalar = "logaddexp"

    def partial(self, k: int, t: Any, out: Any, *primals: Any) -> Any:
        return mul(t, sigmoid(difference(primals[k], primals[1 - k])))


exp = unary(Exp)
exp2 = unary(Exp2)
expm1 = unary(Expm1)
log = unary(Log)
log1p = unary(Log1p)
log2 = unary(Log2)
log10 = unary(Log10)
sqrt = unary(Sqrt)
rsqrt = unary(Rsqrt)
cbrt = unary(Cbrt)
hypot = binary(Hypot)
logaddexp = binary(LogAddExp)


# --- trigonometric and hyperbolic functions ---------------------------------------------------


def _one_minus_square(x: Any) -> Any:
    """1 - x*x, accurate near 1."""
    return mul(sub(1, x), add(x, 1))


def _root_square_plus_one(x: Any) -> Any:
    """sqrt(x*x + 1)."""
    if x.dtype.is_complex:
        return sqrt(add(square(x), 1))
    return hypot(x, 1)


class Sin(Unary):
    """The sine."""

    name = "graph.sin"
    scalar = "sin"

    def derivative(self, x: Any, out: Any) -> Any:
        return cos(x)


class Cos(Unary):
    """The cosine."""

    name = "graph.cos"
    scalar = "cos"

    def derivative(self, x: Any, out: Any) -> Any:
        return neg(sin(x))


class Tan(Unary):
    """The tangent."""

    name = "graph.tan"
    scalar = "tan"

    def derivative(self, x: Any, out: Any) -> Any:
        return add(square(out), 1)


class Asin(Unary):
    """The inverse sine."""

    name = "graph.asin"
    scalar = "asin"

    def derivative(self, x: Any, out: Any) -> Any:
        return div(1, sqrt(_one_minus_square(x)))


class Acos(Unary):
    """The inverse cosine."""

    name = "graph.acos"
    scalar = "acos"

    def derivative(self, x: Any, out: Any) -> Any:
        return div(-1, sqrt(_one_minus_square(x)))


class Atan(Unary):
    """The inverse tangent."""

    name = "graph.atan"
    scalar = "atan"

    def derivative(self, x: Any, out: Any) -> Any:
        return div(1, add(square(x), 1))


class Atan2(Binary):
    """The angle of the point (y, x). The derivative at the origin is 0."""

    name = "graph.atan2"
    scalar = "atan2"

    def partial(self, k: int, t: Any, out: Any, *primals: Any) -> Any:
        x, y = primals
        radius = hypot(x, y)
        radius = select(eq(radius, 0), 1, radius)
        # Two divisions: the square of the radius may overflow.
        factor = div(div(primals[1 - k], radius), radius)
        return neg(mul(t, factor)) if k else mul(t, factor)


class Sinh(Unary):
    """The hyperbolic sine."""

    name = "graph.sinh"
    scalar = "sinh"

    def derivative(self, x: Any, out: Any) -> Any:
        return cosh(x)


class Cosh(Unary):
    """The hyperbolic cosine."""

    name = "graph.cosh"
    scalar = "cosh"

    def derivative(self, x: Any, out: Any) -> Any:
        return sinh(x)


class Tanh(Unary):
    """The hyperbolic tangent."""

    name = "graph.tanh"
    scalar = "tanh"

    def derivative(self, x: Any, out: Any) -> Any:
        return _one_minus_square(out)


class Asinh(Unary):
    """The inverse hyperbolic sine."""

    name = "graph.asinh"
    scalar = "asinh"

    def derivative(self, x: Any, out: Any) -> Any:
        return div(1, _root_square_plus_one(x))


class Acosh(Unary):
    """The inverse hyperbolic cosine."""

    name = "graph.acosh"
    scalar = "acosh"

    def derivative(self, x: Any, out: Any) -> Any:
        # For complex x, the root of the product would be on the wrong branch.
        return div(1, mul(sqrt(sub(x, 1)), sqrt(add(x, 1))))


class Atanh(Unary):
    """The inverse hyperbolic tangent."""

    name = "graph.atanh"
    scalar = "atanh"

    def derivative(self, x: Any, out: Any) -> Any:
        return div(1, _one_minus_square(x))


sin = unary(Sin)
cos = unary(Cos)
tan = unary(Tan)
asin = unary(Asin)
acos = unary(Acos)
atan = unary(Atan)
atan2 = binary(Atan2)
sinh = unary(Sinh)
cosh = unary(Cosh)
tanh = unary(Tanh)
asinh = unary(Asinh)
acosh = unary(Acosh)
atanh = unary(Atanh)


# --- special functions ------------------------------------------------------------------------


class Erf(Unary):
    """The error function."""

    name = "graph.erf"
    scalar = "erf"

    def derivative(self, x: Any, out: Any) -> Any:
        return mul(exp(neg(square(x))), 2 / math.sqrt(math.pi))


class Erfc(Unary):
    """1 - erf(x)."""

    name = "graph.erfc"
    scalar = "erfc"

    def derivative(self, x: Any, out: Any) -> Any:
        return mul(exp(neg(square(x))), -2 / math.sqrt(math.pi))


class Erfinv(Unary):
    """The inverse of the error function."""

    name = "graph.erfinv"
    scalar = "erfinv"

    def derivative(self, x: Any, out: Any) -> Any:
        return mul(exp(square(out)), math.sqrt(math.pi) / 2)


class Lgamma(Unary):
    """log(|gamma(x)|)."""

    name = "graph.lgamma"
    scalar = "lgamma"

    def derivative(self, x: Any, out: Any) -> Any:
        return digamma(x)


class Digamma(Unary):
    """The derivative of lgamma."""

    name = "graph.digamma"
    scalar = "digamma"

    def derivative(self, x: Any, out: Any) -> Any:
        return trigamma(x)


class Sigmoid(Unary):
    """1 / (1 + exp(-x))."""

    name = "graph.sigmoid"
    scalar = "sigmoid"

    def derivative(self, x: Any, out: Any) -> Any:
        return mul(out, sub(1, out))


erf = unary(Erf)
erfc = unary(Erfc)
erfinv = unary(Erfinv)
lgamma = unary(Lgamma)
digamma = unary(Digamma)
sigmoid = unary(Sigmoid)

# B(2), B(4), ... of the series psi'(x) ~ 1/x + 1/(2 x**2) + sum(B(2k) / x**(2k+1)).
_BERNOULLI: Final = (1 / 6, -1 / 30, 1 / 42, -1 / 30, 5 / 66, -691 / 2730, 7 / 6)
_SHIFT: Final = 10
"""From x + 10 on, the series is accurate to float64."""


def trigamma(x: Any) -> Any:
    """The derivative of digamma, made of other ops: it serves second derivatives only."""
    mirrored = lt(x, 0.5)
    y = select(mirrored, sub(1, x), x)
    total = div(1, square(y))
    for _ in range(1, _SHIFT):
        y = add(y, 1)
        total = add(total, div(1, square(y)))
    y = add(y, 1)
    inverse = div(1, y)
    inverse_square = square(inverse)
    series = mul(inverse_square, _BERNOULLI[-1])
    for number in reversed(_BERNOULLI[:-1]):
        series = mul(add(series, number), inverse_square)
    total = add(total, mul(inverse, add(add(series, mul(inverse, 0.5)), 1)))
    # psi'(1 - x) + psi'(x) = (pi / sin(pi x))**2; the integer part would blur the poles.
    # Where it is not used it is 1, not 0: its derivative must be finite there.
    wave = select(mirrored, sin(mul(sub(x, round_(x)), math.pi)), 1)
    return select(mirrored, sub(square(div(math.pi, wave)), total), total)
