"""Elementwise functions of mathematics: exponentials, trigonometry, special functions, rounding and
representation, activations.

Those that are defined on floating-point numbers take integers too, as numbers of the default
floating-point dtype.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tessera.dtypes import Kind
from tessera.errors import api_boundary
from tessera.graph.array import ArrayBase
from tessera.graph.namespace.arguments import (
    ArrayLike,
    as_array,
    as_inexact,
    filled,
    number,
    spread,
)
from tessera.graph.namespace.elementwise import both_inexact, kind_error
from tessera.graph.ops import elementwise as ops
from tessera.graph.shortcut import fused, shortcut

__all__ = [
    "acos",
    "acosh",
    "asin",
    "asinh",
    "atan",
    "atan2",
    "atanh",
    "cbrt",
    "ceil",
    "conj",
    "copysign",
    "cos",
    "cosh",
    "digamma",
    "erf",
    "erfc",
    "erfinv",
    "exp",
    "exp2",
    "expm1",
    "floor",
    "imag",
    "lgamma",
    "log",
    "log1p",
    "log2",
    "log10",
    "nextafter",
    "real",
    "relu",
    "round",
    "rsqrt",
    "sigmoid",
    "signbit",
    "sin",
    "sinh",
    "sqrt",
    "tan",
    "tanh",
    "trunc",
]


def _rounded(name: str, op: Callable[[Any], Any], x: Any) -> Any:
    """Rounding, of which integers have no need."""
    found = as_array(name, x)
    if found.dtype.is_bool or found.dtype.is_complex:
        raise kind_error(name, found, "real numbers")
    return found if found.dtype.is_integer else op(found)


# --- exponentials, trigonometry ---------------------------------------------------------------


@shortcut
@api_boundary
def exp(x: ArrayLike, /) -> ArrayBase:
    """e to the power of x."""
    return ops.exp(as_inexact("exp", x))


@shortcut
@api_boundary
def exp2(x: ArrayLike, /) -> ArrayBase:
    """2 to the power of x."""
    return ops.exp2(as_inexact("exp2", x))


@shortcut
@api_boundary
def expm1(x: ArrayLike, /) -> ArrayBase:
    """exp(x) - 1, exact near 0."""
    return ops.expm1(as_inexact("expm1", x))


@shortcut
@api_boundary
def log(x: ArrayLike, /) -> ArrayBase:
    """The natural logarithm."""
    return ops.log(as_inexact("log", x))


@shortcut
@api_boundary
def log1p(x: ArrayLike, /) -> ArrayBase:
    """log(1 + x), exact near 0."""
    return ops.log1p(as_inexact("log1p", x))


@shortcut
@api_boundary
def log2(x: ArrayLike, /) -> ArrayBase:
    """The logarithm to base 2."""
    return ops.log2(as_inexact("log2", x))


@shortcut
@api_boundary
def log10(x: ArrayLike, /) -> ArrayBase:
    """The logarithm to base 10."""
    return ops.log10(as_inexact("log10", x))


@shortcut
@api_boundary
def sqrt(x: ArrayLike, /) -> ArrayBase:
    """The square root; NaN of negative numbers."""
    return ops.sqrt(as_inexact("sqrt", x))


@shortcut
@api_boundary
def rsqrt(x: ArrayLike, /) -> ArrayBase:
    """1 / sqrt(x)."""
    return ops.rsqrt(as_inexact("rsqrt", x))


@shortcut
@api_boundary
def cbrt(x: ArrayLike, /) -> ArrayBase:
    """The cube root."""
    return ops.cbrt(as_inexact("cbrt", x))


@shortcut
@api_boundary
def sin(x: ArrayLike, /) -> ArrayBase:
    """The sine."""
    return ops.sin(as_inexact("sin", x))


@shortcut
@api_boundary
def cos(x: ArrayLike, /) -> ArrayBase:
    """The cosine."""
    return ops.cos(as_inexact("cos", x))


@shortcut
@api_boundary
def tan(x: ArrayLike, /) -> ArrayBase:
    """The tangent."""
    return ops.tan(as_inexact("tan", x))


@shortcut
@api_boundary
def asin(x: ArrayLike, /) -> ArrayBase:
    """The inverse sine."""
    return ops.asin(as_inexact("asin", x))


@shortcut
@api_boundary
def acos(x: ArrayLike, /) -> ArrayBase:
    """The inverse cosine."""
    return ops.acos(as_inexact("acos", x))


@shortcut
@api_boundary
def atan(x: ArrayLike, /) -> ArrayBase:
    """The inverse tangent."""
    return ops.atan(as_inexact("atan", x))


@shortcut
@api_boundary
def atan2(x1: ArrayLike, x2: ArrayLike, /) -> ArrayBase:
    """The angle of the point (x2, x1), in [-pi, pi]."""
    return both_inexact("atan2", ops.atan2, x1, x2)


@shortcut
@api_boundary
def sinh(x: ArrayLike, /) -> ArrayBase:
    """The hyperbolic sine."""
    return ops.sinh(as_inexact("sinh", x))


@shortcut
@api_boundary
def cosh(x: ArrayLike, /) -> ArrayBase:
    """The hyperbolic cosine."""
    return ops.cosh(as_inexact("cosh", x))


@shortcut
@api_boundary
def tanh(x: ArrayLike, /) -> ArrayBase:
    """The hyperbolic tangent."""
    return ops.tanh(as_inexact("tanh", x))


@shortcut
@api_boundary
def asinh(x: ArrayLike, /) -> ArrayBase:
    """The inverse hyperbolic sine."""
    return ops.asinh(as_inexact("asinh", x))


@shortcut
@api_boundary
def acosh(x: ArrayLike, /) -> ArrayBase:
    """The inverse hyperbolic cosine."""
    return ops.acosh(as_inexact("acosh", x))


@shortcut
@api_boundary
def atanh(x: ArrayLike, /) -> ArrayBase:
    """The inverse hyperbolic tangent."""
    return ops.atanh(as_inexact("atanh", x))


@shortcut
@api_boundary
def erf(x: ArrayLike, /) -> ArrayBase:
    """The error function."""
    return ops.erf(as_inexact("erf", x))


@shortcut
@api_boundary
def erfc(x: ArrayLike, /) -> ArrayBase:
    """1 - erf(x), exact for large x."""
    return ops.erfc(as_inexact("erfc", x))


@shortcut
@api_boundary
def erfinv(x: ArrayLike, /) -> ArrayBase:
    """The inverse of erf."""
    return ops.erfinv(as_inexact("erfinv", x))


@shortcut
@api_boundary
def lgamma(x: ArrayLike, /) -> ArrayBase:
    """log(|gamma(x)|)."""
    return ops.lgamma(as_inexact("lgamma", x))


@shortcut
@api_boundary
def digamma(x: ArrayLike, /) -> ArrayBase:
    """The derivative of lgamma."""
    return ops.digamma(as_inexact("digamma", x))


# --- representation ---------------------------------------------------------------------------


@shortcut
@api_boundary
def floor(x: ArrayLike, /) -> ArrayBase:
    """The largest integer not above x."""
    return _rounded("floor", ops.floor, x)


@shortcut
@api_boundary
def ceil(x: ArrayLike, /) -> ArrayBase:
    """The smallest integer not below x."""
    return _rounded("ceil", ops.ceil, x)


@shortcut
@api_boundary
def trunc(x: ArrayLike, /) -> ArrayBase:
    """x without its fraction."""
    return _rounded("trunc", ops.trunc, x)


@shortcut
@api_boundary
def round(x: ArrayLike, /) -> ArrayBase:
    """The nearest integer; halves go to the even one. Complex numbers are rounded by parts."""
    found = as_array("round", x)
    if found.dtype.is_complex:
        return ops.complex_(ops.round_(ops.real(found)), ops.round_(ops.imag(found)))
    return _rounded("round", ops.round_, found)


@shortcut
@api_boundary
def signbit(x: ArrayLike, /) -> ArrayBase:
    """Whether the sign is negative; also that of zero and NaN."""
    return ops.signbit(as_inexact("signbit", x))


@fused
@shortcut
@api_boundary
def copysign(x1: ArrayLike, x2: ArrayLike, /) -> ArrayBase:
    """x1 with the sign of x2."""
    return both_inexact("copysign", ops.copysign, x1, x2)


@shortcut
@api_boundary
def nextafter(x1: ArrayLike, x2: ArrayLike, /) -> ArrayBase:
    """The next number of the dtype from x1 towards x2."""
    return both_inexact("nextafter", ops.nextafter, x1, x2)


@shortcut
@api_boundary
def real(x: ArrayLike, /) -> ArrayBase:
    """The real part."""
    found = as_array("real", x)
    return ops.real(found) if found.dtype.is_complex else found


@shortcut
@api_boundary
def imag(x: ArrayLike, /) -> ArrayBase:
    """The imaginary part; 0 of real numbers."""
    found = as_array("imag", x)
    if found.dtype.is_complex:
        return ops.imag(found)
    return filled(found.shape, 0, found.dtype)


@shortcut
@api_boundary
def conj(x: ArrayLike, /) -> ArrayBase:
    """The complex conjugate; real numbers are their own."""
    found = as_array("conj", x)
    return ops.conj(found) if found.dtype.is_complex else found


# --- activations ------------------------------------------------------------------------------


@shortcut
@api_boundary
def sigmoid(x: ArrayLike, /) -> ArrayBase:
    """1 / (1 + exp(-x)), without overflow on the way."""
    return ops.sigmoid(as_inexact("sigmoid", x))


@fused
@shortcut
@api_boundary
def relu(x: ArrayLike, /) -> ArrayBase:
    """x where it is positive, else 0; the derivative at 0 is 0."""
    found = as_array("relu", x)
    if found.dtype.kind not in (Kind.INT, Kind.UINT, Kind.FLOAT):
        raise kind_error("relu", found, "real numbers")
    zero = spread(number(0, found.dtype), found.shape)
    # NaN is not below zero, so it stays.
    return ops.select(ops.le(found, zero), zero, found)
