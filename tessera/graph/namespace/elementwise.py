"""Elementwise functions of the array API, and a few more.

Operands are promoted to one dtype and broadcast to one shape. Functions that are defined on
floating-point numbers take integers too, as numbers of the default floating-point dtype.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tessera.dtypes import bool_, uint8
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
from tessera.graph.placement import common_device
from tessera.graph.shortcut import composed, fused, shortcut
from tessera.ir import loc

__all__ = [
    "abs",
    "add",
    "bitwise_and",
    "bitwise_invert",
    "bitwise_left_shift",
    "bitwise_or",
    "bitwise_right_shift",
    "bitwise_xor",
    "clip",
    "divide",
    "equal",
    "floor_divide",
    "greater",
    "greater_equal",
    "hypot",
    "isfinite",
    "isinf",
    "isnan",
    "less",
    "less_equal",
    "logaddexp",
    "logical_and",
    "logical_not",
    "logical_or",
    "logical_xor",
    "maximum",
    "minimum",
    "multiply",
    "negative",
    "not_equal",
    "positive",
    "pow",
    "reciprocal",
    "remainder",
    "sign",
    "square",
    "subtract",
]


def _both(name: str, op: Callable[[Any, Any], Any], x1: Any, x2: Any) -> Any:
    if type(x1) is type(x2) and isinstance(x1, ArrayBase) and x1.type == x2.type:
        common_device(name, (x1, x2), (x1, x2))
        return op(x1, x2)
    a, b = operands(name, x1, x2)
    return op(a, b)


def both_inexact(name: str, op: Callable[[Any, Any], Any], x1: Any, x2: Any) -> Any:
    a, b = inexact_operands(name, x1, x2)
    return op(a, b)


def _order(name: str, op: Callable[[Any, Any], Any], x1: Any, x2: Any) -> Any:
    """Comparisons by size, which bools take part in as 0 and 1."""
    a, b = operands(name, x1, x2)
    if a.dtype.is_bool:
        a, b = ops.cast(a, uint8), ops.cast(b, uint8)
    return op(a, b)


def _logical(name: str, x: Any) -> Any:
    return ops.cast(as_array(name, x), bool_)


def kind_error(name: str, x: Any, wanted: str) -> DTypeError:
    return DTypeError(
        f"{name}: got {x.type.strong()}",
        loc=loc.current(),
        rule=f"{name} takes {wanted}",
        fix="cast first",
    )


# --- arithmetic -------------------------------------------------------------------------------


@shortcut
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


@shortcut
@api_boundary
def subtract(x1: ArrayLike, x2: ArrayLike, /) -> ArrayBase:
    """x1 - x2. Integers wrap around."""
    return _both("subtract", ops.sub, x1, x2)


@shortcut
@api_boundary
def multiply(x1: ArrayLike, x2: ArrayLike, /) -> ArrayBase:
    """x1 * x2. Integers wrap around."""
    return _both("multiply", ops.mul, x1, x2)


@fused
@shortcut
@api_boundary
def divide(x1: ArrayLike, x2: ArrayLike, /) -> ArrayBase:
    """x1 / x2. The quotient of integers has the default floating-point dtype."""
    return both_inexact("divide", ops.div, x1, x2)


@shortcut
@api_boundary
def floor_divide(x1: ArrayLike, x2: ArrayLike, /) -> ArrayBase:
    """The largest integer not above x1 / x2; 0 for integers divided by zero."""
    return _both("floor_divide", ops.floordiv, x1, x2)


@shortcut
@api_boundary
def remainder(x1: ArrayLike, x2: ArrayLike, /) -> ArrayBase:
    """x1 - x2 * floor_divide(x1, x2), which has the sign of x2."""
    return _both("remainder", ops.mod, x1, x2)


@fused
@composed
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


@shortcut
@api_boundary
def negative(x: ArrayLike, /) -> ArrayBase:
    """-x."""
    return ops.neg(as_array("negative", x))


@api_boundary
def positive(x: ArrayLike, /) -> ArrayBase:
    """x."""
    found = as_array("positive", x)
    if found.dtype.is_bool:
        raise kind_error("positive", found, "numbers")
    return found


@shortcut
@api_boundary
def abs(x: ArrayLike, /) -> ArrayBase:
    """The absolute value; for complex numbers a real one."""
    return ops.abs_(as_array("abs", x))


@shortcut
@api_boundary
def sign(x: ArrayLike, /) -> ArrayBase:
    """-1, 0 or 1; for complex numbers x / |x|, and 0 of 0."""
    return ops.sign(as_array("sign", x))


@shortcut
@api_boundary
def square(x: ArrayLike, /) -> ArrayBase:
    """x * x."""
    return ops.square(as_array("square", x))


@shortcut
@api_boundary
def reciprocal(x: ArrayLike, /) -> ArrayBase:
    """1 / x."""
    found = as_inexact("reciprocal", x)
    return ops.div(spread(number(1, found.dtype), found.shape), found)


@shortcut
@api_boundary
def maximum(x1: ArrayLike, x2: ArrayLike, /) -> ArrayBase:
    """The larger of x1 and x2, or NaN if either is."""
    a, b = operands("maximum", x1, x2)
    return ops.or_(a, b) if a.dtype.is_bool else ops.maximum(a, b)


@shortcut
@api_boundary
def minimum(x1: ArrayLike, x2: ArrayLike, /) -> ArrayBase:
    """The smaller of x1 and x2, or NaN if either is."""
    a, b = operands("minimum", x1, x2)
    return ops.and_(a, b) if a.dtype.is_bool else ops.minimum(a, b)


@fused
@shortcut
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


@shortcut
@api_boundary
def hypot(x1: ArrayLike, x2: ArrayLike, /) -> ArrayBase:
    """sqrt(x1 * x1 + x2 * x2), without overflow on the way."""
    return both_inexact("hypot", ops.hypot, x1, x2)


@shortcut
@api_boundary
def logaddexp(x1: ArrayLike, x2: ArrayLike, /) -> ArrayBase:
    """log(exp(x1) + exp(x2)), without overflow on the way."""
    return both_inexact("logaddexp", ops.logaddexp, x1, x2)


# --- comparison and logic ---------------------------------------------------------------------


@shortcut
@api_boundary
def equal(x1: ArrayLike, x2: ArrayLike, /) -> ArrayBase:
    """Whether x1 == x2."""
    return _both("equal", ops.eq, x1, x2)


@shortcut
@api_boundary
def not_equal(x1: ArrayLike, x2: ArrayLike, /) -> ArrayBase:
    """Whether x1 != x2."""
    return _both("not_equal", ops.ne, x1, x2)


@shortcut
@api_boundary
def less(x1: ArrayLike, x2: ArrayLike, /) -> ArrayBase:
    """Whether x1 < x2."""
    return _order("less", ops.lt, x1, x2)


@shortcut
@api_boundary
def less_equal(x1: ArrayLike, x2: ArrayLike, /) -> ArrayBase:
    """Whether x1 <= x2."""
    return _order("less_equal", ops.le, x1, x2)


@shortcut
@api_boundary
def greater(x1: ArrayLike, x2: ArrayLike, /) -> ArrayBase:
    """Whether x1 > x2."""
    return _order("greater", ops.gt, x1, x2)


@shortcut
@api_boundary
def greater_equal(x1: ArrayLike, x2: ArrayLike, /) -> ArrayBase:
    """Whether x1 >= x2."""
    return _order("greater_equal", ops.ge, x1, x2)


@fused
@shortcut
@api_boundary
def logical_and(x1: ArrayLike, x2: ArrayLike, /) -> ArrayBase:
    """Whether x1 and x2 are both true. Numbers other than 0 are true."""
    return _both("logical_and", ops.and_, _logical("logical_and", x1), _logical("logical_and", x2))


@fused
@shortcut
@api_boundary
def logical_or(x1: ArrayLike, x2: ArrayLike, /) -> ArrayBase:
    """Whether x1 or x2 is true. Numbers other than 0 are true."""
    return _both("logical_or", ops.or_, _logical("logical_or", x1), _logical("logical_or", x2))


@fused
@shortcut
@api_boundary
def logical_xor(x1: ArrayLike, x2: ArrayLike, /) -> ArrayBase:
    """Whether one of x1 and x2 is true, and the other is not."""
    return _both("logical_xor", ops.xor, _logical("logical_xor", x1), _logical("logical_xor", x2))


@fused
@shortcut
@api_boundary
def logical_not(x: ArrayLike, /) -> ArrayBase:
    """Whether x is not true."""
    return ops.not_(_logical("logical_not", x))


@shortcut
@api_boundary
def isnan(x: ArrayLike, /) -> ArrayBase:
    """Whether x is NaN."""
    return _test("isnan", ops.isnan, x, False)


@shortcut
@api_boundary
def isinf(x: ArrayLike, /) -> ArrayBase:
    """Whether x is infinite."""
    return _test("isinf", ops.isinf, x, False)


@shortcut
@api_boundary
def isfinite(x: ArrayLike, /) -> ArrayBase:
    """Whether x is neither NaN nor infinite."""
    return _test("isfinite", ops.isfinite, x, True)


def _test(name: str, op: Callable[[Any], Any], x: Any, of_integers: bool) -> Any:
    found = as_array(name, x)
    return op(found) if found.dtype.is_inexact else filled(found.shape, of_integers, bool_)


# --- bits -------------------------------------------------------------------------------------


@shortcut
@api_boundary
def bitwise_and(x1: ArrayLike, x2: ArrayLike, /) -> ArrayBase:
    """x1 & x2."""
    return _both("bitwise_and", ops.and_, x1, x2)


@shortcut
@api_boundary
def bitwise_or(x1: ArrayLike, x2: ArrayLike, /) -> ArrayBase:
    """x1 | x2."""
    return _both("bitwise_or", ops.or_, x1, x2)


@shortcut
@api_boundary
def bitwise_xor(x1: ArrayLike, x2: ArrayLike, /) -> ArrayBase:
    """x1 ^ x2."""
    return _both("bitwise_xor", ops.xor, x1, x2)


@shortcut
@api_boundary
def bitwise_invert(x: ArrayLike, /) -> ArrayBase:
    """~x."""
    return ops.not_(as_array("bitwise_invert", x))


@composed
@api_boundary
def bitwise_left_shift(x1: ArrayLike, x2: ArrayLike, /) -> ArrayBase:
    """x1 << x2; 0 for shifts by the width of the dtype or more."""
    return _both("bitwise_left_shift", ops.shl, x1, x2)


@composed
@api_boundary
def bitwise_right_shift(x1: ArrayLike, x2: ArrayLike, /) -> ArrayBase:
    """x1 >> x2, keeping the sign."""
    return _both("bitwise_right_shift", ops.shr, x1, x2)
