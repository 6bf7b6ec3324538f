"""Elementwise functions of the array API, and a few more.

Operands are promoted to one dtype and broadcast to one shape. Functions that are defined on
floating-point numbers take integers too, as numbers of the default floating-point dtype.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tessera.dtypes import Kind, bool_, uint8
from tessera.errors import DTypeError, api_boundary
from tessera.graph.array import ArrayBase
from tessera.graph.namespace.arguments import (
    ArrayLike,
    as_array,
    as_inexact,
    filled,
    inexact_operands,
    is_number,
    number,
    operands,
    spread,
)
from tessera.graph.ops import elementwise as ops
from tessera.ir import loc

__all__ = [
    "abs",
    "acos",
    "acosh",
    "add",
    "asin",
    "asinh",
    "atan",
    "atan2",
    "atanh",
    "bitwise_and",
    "bitwise_invert",
    "bitwise_left_shift",
    "bitwise_or",
    "bitwise_right_shift",
    "bitwise_xor",
    "cbrt",
    "ceil",
    "clip",
    "conj",
    "copysign",
    "cos",
    "cosh",
    "digamma",
    "divide",
    "equal",
    "erf",
    "erfc",
    "erfinv",
    "exp",
    "exp2",
    "expm1",
    "floor",
    "floor_divide",
    "greater",
    "greater_equal",
    "hypot",
    "imag",
    "isfinite",
    "isinf",
    "isnan",
    "less",
    "less_equal",
    "lgamma",
    "log",
    "log1p",
    "log2",
    "log10",
    "logaddexp",
    "logical_and",
    "logical_not",
    "logical_or",
    "logical_xor",
    "maximum",
    "minimum",
    "multiply",
    "negative",
    "nextafter",
    "not_equal",
    "positive",
    "pow",
    "real",
    "reciprocal",
    "relu",
    "remainder",
    "round",
    "rsqrt",
    "sigmoid",
    "sign",
    "signbit",
    "sin",
    "sinh",
    "sqrt",
    "square",
    "subtract",
    "tan",
    "tanh",
    "trunc",
]


def _both(name: str, op: Callable[[Any, Any], Any], x1: Any, x2: Any) -> Any:
    if type(x1) is type(x2) and isinstance(x1, ArrayBase) and x1.type == x2.type:
        return op(x1, x2)
    a, b = operands(name, x1, x2)
    return op(a, b)


def _both_inexact(name: str, op: Callable[[Any, Any], Any], x1: Any, x2: Any) -> Any:
    a, b = inexact_operands(name, x1, x2)
    return op(a, b)


def _order(name: str, op: Callable[[Any, Any], Any], x1: Any, x2: Any) -> Any:
    """Comparisons by size, which bools take part in as 0 and 1."""
    a, b = operands(name, x1, x2)
    if a.dtype.is_bool:
        a, b = ops.cast(a, uint8), ops.cast(b, uint8)
    return op(a, b)


def _rounded(name: str, op: Callable[[Any], Any], x: Any) -> Any:
    """Rounding, of which integers have no need."""
    found = as_array(name, x)
    if found.dtype.is_bool or found.dtype.is_complex:
        raise _kind_error(name, found, "real numbers")
    return found if found.dtype.is_integer else op(found)


def _logical(name: str, x: Any) -> Any:
    return ops.cast(as_array(name, x), bool_)


def _kind_error(name: str, x: Any, wanted: str) -> DTypeError:
    return DTypeError(
        f"{name}: got {x.type}", loc=loc.current(), rule=f"{name} takes {wanted}", fix="cast first"
    )


# --- arithmetic -------------------------------------------------------------------------------


@api_boundary
def add(x1: ArrayLike, x2: ArrayLike, /) -> ArrayBase:
    """x1 + x2. Integers wrap around.

    Args:
        x1: numbers.
        x2: numbers, broadcast with x1.

    Returns:
        An array of the promoted dtype.

    Example:
        >>> import tessera as ts
        >>> ts.add(ts.asarray([1, 2]), 3)
        Array([4, 5], dtype=int64)
    """
    return _both("add", ops.add, x1, x2)


@api_boundary
def subtract(x1: ArrayLike, x2: ArrayLike, /) -> ArrayBase:
    """x1 - x2. Integers wrap around."""
    return _both("subtract", ops.sub, x1, x2)


@api_boundary
def multiply(x1: ArrayLike, x2: ArrayLike, /) -> ArrayBase:
    """x1 * x2. Integers wrap around."""
    return _both("multiply", ops.mul, x1, x2)


@api_boundary
def divide(x1: ArrayLike, x2: ArrayLike, /) -> ArrayBase:
    """x1 / x2. The quotient of integers has the default floating-point dtype."""
    return _both_inexact("divide", ops.div, x1, x2)


@api_boundary
def floor_divide(x1: ArrayLike, x2: ArrayLike, /) -> ArrayBase:
    """The largest integer not above x1 / x2; 0 for integers divided by zero."""
    return _both("floor_divide", ops.floordiv, x1, x2)


@api_boundary
def remainder(x1: ArrayLike, x2: ArrayLike, /) -> ArrayBase:
    """x1 - x2 * floor_divide(x1, x2), which has the sign of x2."""
    return _both("remainder", ops.mod, x1, x2)


@api_boundary
def pow(x1: ArrayLike, x2: ArrayLike, /) -> ArrayBase:
    """x1 to the power of x2.

    Small exponents that are Python numbers become products and square roots.
    """
    if is_number(x2) and not is_number(x1):
        found = _known_power(as_array("pow", x1), x2)
        if found is not None:
            return found
    return _both("pow", ops.pow_, x1, x2)


def _known_power(x: Any, exponent: bool | int | float | complex) -> Any:
    if isinstance(exponent, bool) or x.dtype.is_bool or x.dtype.is_storage:
        return None
    if isinstance(exponent, int) or x.dtype.is_inexact:
        if exponent == 1:
            return x
        if exponent == 2:
            return ops.square(x)
        if exponent == 3:
            return ops.mul(ops.square(x), x)
        if exponent == 4:
            return ops.square(ops.square(x))
    if x.dtype.is_float:
        if exponent == 0.5:
            return ops.sqrt(x)
        if exponent == -1:
            return ops.div(spread(number(1, x.dtype), x.shape), x)
    return None


@api_boundary
def negative(x: ArrayLike, /) -> ArrayBase:
    """-x."""
    return ops.neg(as_array("negative", x))


@api_boundary
def positive(x: ArrayLike, /) -> ArrayBase:
    """x."""
    found = as_array("positive", x)
    if found.dtype.is_bool:
        raise _kind_error("positive", found, "numbers")
    return found


@api_boundary
def abs(x: ArrayLike, /) -> ArrayBase:
    """The absolute value; for complex numbers a real one."""
    return ops.abs_(as_array("abs", x))


@api_boundary
def sign(x: ArrayLike, /) -> ArrayBase:
    """-1, 0 or 1; for complex numbers x / |x|, and 0 of 0."""
    return ops.sign(as_array("sign", x))


@api_boundary
def square(x: ArrayLike, /) -> ArrayBase:
    """x * x."""
    return ops.square(as_array("square", x))


@api_boundary
def reciprocal(x: ArrayLike, /) -> ArrayBase:
    """1 / x."""
    found = as_inexact("reciprocal", x)
    return ops.div(spread(number(1, found.dtype), found.shape), found)


@api_boundary
def maximum(x1: ArrayLike, x2: ArrayLike, /) -> ArrayBase:
    """The larger of x1 and x2, or NaN if either is."""
    a, b = operands("maximum", x1, x2)
    return ops.or_(a, b) if a.dtype.is_bool else ops.maximum(a, b)


@api_boundary
def minimum(x1: ArrayLike, x2: ArrayLike, /) -> ArrayBase:
    """The smaller of x1 and x2, or NaN if either is."""
    a, b = operands("minimum", x1, x2)
    return ops.and_(a, b) if a.dtype.is_bool else ops.minimum(a, b)


@api_boundary
def clip(x: ArrayLike, /, min: ArrayLike | None = None, max: ArrayLike | None = None) -> ArrayBase:
    """x, but not below `min` and not above `max`.

    Args:
        x: real numbers.
        min: the lower end; None is no end.
        max: the upper end; it wins where it is below `min`.
    """
    found: Any = as_array("clip", x)
    if min is not None:
        a, b = operands("clip", found, min)
        found = ops.maximum(a, b)
    if max is not None:
        a, b = operands("clip", found, max)
        found = ops.minimum(a, b)
    return found


@api_boundary
def hypot(x1: ArrayLike, x2: ArrayLike, /) -> ArrayBase:
    """sqrt(x1 * x1 + x2 * x2), without overflow on the way."""
    return _both_inexact("hypot", ops.hypot, x1, x2)


@api_boundary
def logaddexp(x1: ArrayLike, x2: ArrayLike, /) -> ArrayBase:
    """log(exp(x1) + exp(x2)), without overflow on the way."""
    return _both_inexact("logaddexp", ops.logaddexp, x1, x2)


# --- comparison and logic ---------------------------------------------------------------------


@api_boundary
def equal(x1: ArrayLike, x2: ArrayLike, /) -> ArrayBase:
    """Whether x1 == x2."""
    return _both("equal", ops.eq, x1, x2)


@api_boundary
def not_equal(x1: ArrayLike, x2: ArrayLike, /) -> ArrayBase:
    """Whether x1 != x2."""
    return _both("not_equal", ops.ne, x1, x2)


@api_boundary
def less(x1: ArrayLike, x2: ArrayLike, /) -> ArrayBase:
    """Whether x1 < x2."""
    return _order("less", ops.lt, x1, x2)


@api_boundary
def less_equal(x1: ArrayLike, x2: ArrayLike, /) -> ArrayBase:
    """Whether x1 <= x2."""
    return _order("less_equal", ops.le, x1, x2)


@api_boundary
def greater(x1: ArrayLike, x2: ArrayLike, /) -> ArrayBase:
    """Whether x1 > x2."""
    return _order("greater", ops.gt, x1, x2)


@api_boundary
def greater_equal(x1: ArrayLike, x2: ArrayLike, /) -> ArrayBase:
    """Whether x1 >= x2."""
    return _order("greater_equal", ops.ge, x1, x2)


@api_boundary
def logical_and(x1: ArrayLike, x2: ArrayLike, /) -> ArrayBase:
    """Whether x1 and x2 are both true. Numbers other than 0 are true."""
    return _both("logical_and", ops.and_, _logical("logical_and", x1), _logical("logical_and", x2))


@api_boundary
def logical_or(x1: ArrayLike, x2: ArrayLike, /) -> ArrayBase:
    """Whether x1 or x2 is true. Numbers other than 0 are true."""
    return _both("logical_or", ops.or_, _logical("logical_or", x1), _logical("logical_or", x2))


@api_boundary
def logical_xor(x1: ArrayLike, x2: ArrayLike, /) -> ArrayBase:
    """Whether one of x1 and x2 is true, and the other is not."""
    return _both("logical_xor", ops.xor, _logical("logical_xor", x1), _logical("logical_xor", x2))


@api_boundary
def logical_not(x: ArrayLike, /) -> ArrayBase:
    """Whether x is not true."""
    return ops.not_(_logical("logical_not", x))


@api_boundary
def isnan(x: ArrayLike, /) -> ArrayBase:
    """Whether x is NaN."""
    return _test("isnan", ops.isnan, x, False)


@api_boundary
def isinf(x: ArrayLike, /) -> ArrayBase:
    """Whether x is infinite."""
    return _test("isinf", ops.isinf, x, False)


@api_boundary
def isfinite(x: ArrayLike, /) -> ArrayBase:
    """Whether x is neither NaN nor infinite."""
    return _test("isfinite", ops.isfinite, x, True)


def _test(name: str, op: Callable[[Any], Any], x: Any, of_integers: bool) -> Any:
    found = as_array(name, x)
    return op(found) if found.dtype.is_inexact else filled(found.shape, of_integers, bool_)


# --- bits -------------------------------------------------------------------------------------


@api_boundary
def bitwise_and(x1: ArrayLike, x2: ArrayLike, /) -> ArrayBase:
    """x1 & x2."""
    return _both("bitwise_and", ops.and_, x1, x2)


@api_boundary
def bitwise_or(x1: ArrayLike, x2: ArrayLike, /) -> ArrayBase:
    """x1 | x2."""
    return _both("bitwise_or", ops.or_, x1, x2)


@api_boundary
def bitwise_xor(x1: ArrayLike, x2: ArrayLike, /) -> ArrayBase:
    """x1 ^ x2."""
    return _both("bitwise_xor", ops.xor, x1, x2)


@api_boundary
def bitwise_invert(x: ArrayLike, /) -> ArrayBase:
    """~x."""
    return ops.not_(as_array("bitwise_invert", x))


@api_boundary
def bitwise_left_shift(x1: ArrayLike, x2: ArrayLike, /) -> ArrayBase:
    """x1 << x2; 0 for shifts by the width of the dtype or more."""
    return _both("bitwise_left_shift", ops.shl, x1, x2)


@api_boundary
def bitwise_right_shift(x1: ArrayLike, x2: ArrayLike, /) -> ArrayBase:
    """x1 >> x2, keeping the sign."""
    return _both("bitwise_right_shift", ops.shr, x1, x2)


# --- exponentials, trigonometry ---------------------------------------------------------------


@api_boundary
def exp(x: ArrayLike, /) -> ArrayBase:
    """e to the power of x."""
    return ops.exp(as_inexact("exp", x))


@api_boundary
def exp2(x: ArrayLike, /) -> ArrayBase:
    """2 to the power of x."""
    return ops.exp2(as_inexact("exp2", x))


@api_boundary
def expm1(x: ArrayLike, /) -> ArrayBase:
    """exp(x) - 1, exact near 0."""
    return ops.expm1(as_inexact("expm1", x))


@api_boundary
def log(x: ArrayLike, /) -> ArrayBase:
    """The natural logarithm."""
    return ops.log(as_inexact("log", x))


@api_boundary
def log1p(x: ArrayLike, /) -> ArrayBase:
    """log(1 + x), exact near 0."""
    return ops.log1p(as_inexact("log1p", x))


@api_boundary
def log2(x: ArrayLike, /) -> ArrayBase:
    """The logarithm to base 2."""
    return ops.log2(as_inexact("log2", x))


@api_boundary
def log10(x: ArrayLike, /) -> ArrayBase:
    """The logarithm to base 10."""
    return ops.log10(as_inexact("log10", x))


@api_boundary
def sqrt(x: ArrayLike, /) -> ArrayBase:
    """The square root; NaN of negative numbers."""
    return ops.sqrt(as_inexact("sqrt", x))


@api_boundary
def rsqrt(x: ArrayLike, /) -> ArrayBase:
    """1 / sqrt(x)."""
    return ops.rsqrt(as_inexact("rsqrt", x))


@api_boundary
def cbrt(x: ArrayLike, /) -> ArrayBase:
    """The cube root."""
    return ops.cbrt(as_inexact("cbrt", x))


@api_boundary
def sin(x: ArrayLike, /) -> ArrayBase:
    """The sine."""
    return ops.sin(as_inexact("sin", x))


@api_boundary
def cos(x: ArrayLike, /) -> ArrayBase:
    """The cosine."""
    return ops.cos(as_inexact("cos", x))


@api_boundary
def tan(x: ArrayLike, /) -> ArrayBase:
    """The tangent."""
    return ops.tan(as_inexact("tan", x))


@api_boundary
def asin(x: ArrayLike, /) -> ArrayBase:
    """The inverse sine."""
    return ops.asin(as_inexact("asin", x))


@api_boundary
def acos(x: ArrayLike, /) -> ArrayBase:
    """The inverse cosine."""
    return ops.acos(as_inexact("acos", x))


@api_boundary
def atan(x: ArrayLike, /) -> ArrayBase:
    """The inverse tangent."""
    return ops.atan(as_inexact("atan", x))


@api_boundary
def atan2(x1: ArrayLike, x2: ArrayLike, /) -> ArrayBase:
    """The angle of the point (x2, x1), in [-pi, pi]."""
    return _both_inexact("atan2", ops.atan2, x1, x2)


@api_boundary
def sinh(x: ArrayLike, /) -> ArrayBase:
    """The hyperbolic sine."""
    return ops.sinh(as_inexact("sinh", x))


@api_boundary
def cosh(x: ArrayLike, /) -> ArrayBase:
    """The hyperbolic cosine."""
    return ops.cosh(as_inexact("cosh", x))


@api_boundary
def tanh(x: ArrayLike, /) -> ArrayBase:
    """The hyperbolic tangent."""
    return ops.tanh(as_inexact("tanh", x))


@api_boundary
def asinh(x: ArrayLike, /) -> ArrayBase:
    """The inverse hyperbolic sine."""
    return ops.asinh(as_inexact("asinh", x))


@api_boundary
def acosh(x: ArrayLike, /) -> ArrayBase:
    """The inverse hyperbolic cosine."""
    return ops.acosh(as_inexact("acosh", x))


@api_boundary
def atanh(x: ArrayLike, /) -> ArrayBase:
    """The inverse hyperbolic tangent."""
    return ops.atanh(as_inexact("atanh", x))


@api_boundary
def erf(x: ArrayLike, /) -> ArrayBase:
    """The error function."""
    return ops.erf(as_inexact("erf", x))


@api_boundary
def erfc(x: ArrayLike, /) -> ArrayBase:
    """1 - erf(x), exact for large x."""
    return ops.erfc(as_inexact("erfc", x))


@api_boundary
def erfinv(x: ArrayLike, /) -> ArrayBase:
    """The inverse of erf."""
    return ops.erfinv(as_inexact("erfinv", x))


@api_boundary
def lgamma(x: ArrayLike, /) -> ArrayBase:
    """log(|gamma(x)|)."""
    return ops.lgamma(as_inexact("lgamma", x))


@api_boundary
def digamma(x: ArrayLike, /) -> ArrayBase:
    """The derivative of lgamma."""
    return ops.digamma(as_inexact("digamma", x))


# --- representation ---------------------------------------------------------------------------


@api_boundary
def floor(x: ArrayLike, /) -> ArrayBase:
    """The largest integer not above x."""
    return _rounded("floor", ops.floor, x)


@api_boundary
def ceil(x: ArrayLike, /) -> ArrayBase:
    """The smallest integer not below x."""
    return _rounded("ceil", ops.ceil, x)


@api_boundary
def trunc(x: ArrayLike, /) -> ArrayBase:
    """x without its fraction."""
    return _rounded("trunc", ops.trunc, x)


@api_boundary
def round(x: ArrayLike, /) -> ArrayBase:
    """The nearest integer; halves go to the even one. Complex numbers are rounded by parts."""
    found = as_array("round", x)
    if found.dtype.is_complex:
        return ops.complex_(ops.round_(ops.real(found)), ops.round_(ops.imag(found)))
    return _rounded("round", ops.round_, found)


@api_boundary
def signbit(x: ArrayLike, /) -> ArrayBase:
    """Whether the sign is negative; also that of zero and NaN."""
    return ops.signbit(as_inexact("signbit", x))


@api_boundary
def copysign(x1: ArrayLike, x2: ArrayLike, /) -> ArrayBase:
    """x1 with the sign of x2."""
    return _both_inexact("copysign", ops.copysign, x1, x2)


@api_boundary
def nextafter(x1: ArrayLike, x2: ArrayLike, /) -> ArrayBase:
    """The next number of the dtype from x1 towards x2."""
    return _both_inexact("nextafter", ops.nextafter, x1, x2)


@api_boundary
def real(x: ArrayLike, /) -> ArrayBase:
    """The real part."""
    found = as_array("real", x)
    return ops.real(found) if found.dtype.is_complex else found


@api_boundary
def imag(x: ArrayLike, /) -> ArrayBase:
    """The imaginary part; 0 of real numbers."""
    found = as_array("imag", x)
    if found.dtype.is_complex:
        return ops.imag(found)
    return filled(found.shape, 0, found.dtype)


@api_boundary
def conj(x: ArrayLike, /) -> ArrayBase:
    """The complex conjugate; real numbers are their own."""
    found = as_array("conj", x)
    return ops.conj(found) if found.dtype.is_complex else found


# --- activations ------------------------------------------------------------------------------


@api_boundary
def sigmoid(x: ArrayLike, /) -> ArrayBase:
    """1 / (1 + exp(-x)), without overflow on the way."""
    return ops.sigmoid(as_inexact("sigmoid", x))


@api_boundary
def relu(x: ArrayLike, /) -> ArrayBase:
    """x where it is positive, else 0; the derivative at 0 is 0."""
    found = as_array("relu", x)
    if found.dtype.kind not in (Kind.INT, Kind.UINT, Kind.FLOAT):
        raise _kind_error("relu", found, "real numbers")
    zero = spread(number(0, found.dtype), found.shape)
    # NaN is not below zero, so it stays.
    return ops.select(ops.le(found, zero), zero, found)
