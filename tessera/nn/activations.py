"""Activations: functions of each element.

They have the limits of the real functions at infinity, and derivatives that are numbers there:
where a gate has come to 0 or 1 in the dtype, its argument is held. NaN stays NaN. Integers are
numbers of the default floating-point dtype.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Final

from tessera.dtypes import DType, finfo, float64
from tessera.errors import DTypeError, ShapeError, api_boundary
from tessera.graph.array import ArrayBase
from tessera.graph.namespace.arguments import (
    ArrayLike,
    as_inexact,
    inexact_operands,
    parse_axis,
)
from tessera.graph.namespace.mathematics import relu, sigmoid
from tessera.graph.ops import elementwise as ops
from tessera.graph.ops.rearrange import slice_axis
from tessera.graph.shortcut import composed, fused
from tessera.ir import loc

__all__ = [
    "celu",
    "elu",
    "gelu",
    "glu",
    "hard_sigmoid",
    "hard_silu",
    "hard_swish",
    "hard_tanh",
    "identity",
    "leaky_relu",
    "log1mexp",
    "log_sigmoid",
    "mish",
    "relu",
    "relu6",
    "selu",
    "sigmoid",
    "silu",
    "soft_sign",
    "softplus",
    "softsign",
    "sparse_plus",
    "sparse_sigmoid",
    "squareplus",
    "swish",
    "tanh",
]


def real(name: str, x: object) -> Any:
    """An argument of real numbers, in a dtype that functions can be computed in."""
    found = as_inexact(f"nn.{name}", x)
    if found.dtype.is_complex:
        raise DTypeError(
            f"nn.{name}: the array is {found.type.strong()}",
            loc=loc.current(),
            rule="the elements are real numbers",
            fix="take `ts.abs(x)` or `ts.real(x)` first",
        )
    return found


def _clip(x: Any, low: float, high: float) -> Any:
    """x between two limits; the derivative at these is 1."""
    return ops.select(ops.gt(x, high), high, ops.select(ops.lt(x, low), low, x))


def _ramp(x: Any, low: float, high: float) -> Any:
    """As `_clip`; the derivative at the limits is 0."""
    return ops.select(ops.ge(x, high), high, ops.select(ops.le(x, low), low, x))


# exp(-x) is 0 from these on.
_ZERO: Final = 105.0
_ZERO_F64: Final = 746.0


def _gated(x: Any, gate: Callable[[Any], Any], limit: float) -> Any:
    """x * gate(x), for a gate that is 0 below -limit, and 1 above limit.

    The product of infinity and 0 is not taken.
    """
    held = _clip(x, -limit, limit)
    return ops.select(ops.gt(x, limit), x, ops.mul(held, gate(held)))


def _zero(dtype: DType) -> float:
    return _ZERO_F64 if dtype is float64 else _ZERO


# --- linear pieces ----------------------------------------------------------------------------


@api_boundary
def identity(x: ArrayLike) -> ArrayBase:
    """x."""
    return as_inexact("nn.identity", x)


@fused
@composed
@api_boundary
def relu6(x: ArrayLike) -> ArrayBase:
    """min(max(x, 0), 6); the derivative at 0 and at 6 is 0."""
    return _ramp(real("relu6", x), 0.0, 6.0)


@fused
@composed
@api_boundary
def leaky_relu(x: ArrayLike, negative_slope: ArrayLike = 0.01) -> ArrayBase:
    """x where it is at least 0, else x * negative_slope."""
    found, slope = inexact_operands("nn.leaky_relu", real("leaky_relu", x), negative_slope)
    return ops.select(ops.ge(found, 0.0), found, ops.mul(found, slope))


@fused
@composed
@api_boundary
def hard_tanh(x: ArrayLike) -> ArrayBase:
    """x, but at least -1 and at most 1."""
    return _clip(real("hard_tanh", x), -1.0, 1.0)


@fused
@composed
@api_boundary
def hard_sigmoid(x: ArrayLike) -> ArrayBase:
    """relu6(x + 3) / 6."""
    return _hard_gate(real("hard_sigmoid", x))


def _hard_gate(x: Any) -> Any:
    return ops.div(ops.add(_ramp(x, -3.0, 3.0), 3.0), 6.0)


@fused
@composed
@api_boundary
def hard_silu(x: ArrayLike) -> ArrayBase:
    """x * hard_sigmoid(x)."""
    return _gated(real("hard_silu", x), _hard_gate, 3.0)


hard_swish = hard_silu


@fused
@composed
@api_boundary
def sparse_sigmoid(x: ArrayLike) -> ArrayBase:
    """(x + 1) / 2, but at least 0 and at most 1: the derivative of `sparse_plus`."""
    return ops.mul(ops.add(_clip(real("sparse_sigmoid", x), -1.0, 1.0), 1.0), 0.5)


# --- smooth functions -------------------------------------------------------------------------


@fused
@composed
@api_boundary
def softplus(x: ArrayLike) -> ArrayBase:
    """log(1 + exp(x)), exact where it is near 0."""
    return _softplus(real("softplus", x))


def _softplus(x: Any) -> Any:
    return ops.logaddexp(x, 0.0)


@fused
@composed
@api_boundary
def log_sigmoid(x: ArrayLike) -> ArrayBase:
    """log(sigmoid(x)) = -softplus(-x)."""
    return ops.neg(_softplus(ops.neg(real("log_sigmoid", x))))


@composed
@api_boundary
def log1mexp(x: ArrayLike) -> ArrayBase:
    """log(1 - exp(-x)) for x > 0, exact where exp(-x) is near 0 or 1; NaN for x < 0."""
    found = real("log1mexp", x)
    is_small = ops.lt(found, math.log(2))
    # Each form gets what it is good for, so that neither has a wrong derivative.
    near = ops.select(is_small, found, math.log(2))
    far = ops.select(is_small, math.log(2), found)
    return ops.select(
        is_small,
        ops.log(ops.neg(ops.expm1(ops.neg(near)))),
        ops.log1p(ops.neg(ops.exp(ops.neg(far)))),
    )


@fused
@composed
@api_boundary
def sparse_plus(x: ArrayLike) -> ArrayBase:
    """0 up to -1, x from 1 on, and (x + 1)**2 / 4 between."""
    found = real("sparse_plus", x)
    middle = ops.mul(ops.add(_clip(found, -1.0, 1.0), 1.0), 0.5)
    return ops.select(ops.ge(found, 1.0), found, ops.mul(middle, middle))


@fused
@composed
@api_boundary
def squareplus(x: ArrayLike, b: ArrayLike = 4.0) -> ArrayBase:
    """(x + sqrt(x**2 + b)) / 2, exact where it is near 0.

    Args:
        x: real numbers.
        b: how smooth it is: 0 gives relu. At least 0.
    """
    found, width = inexact_operands("nn.squareplus", real("squareplus", x), b)
    most = float(finfo(found.dtype).max)
    held = _clip(found, -most, most)
    size = ops.select(ops.lt(held, 0.0), ops.neg(held), held)
    # The larger of the two roots of y**2 - |x| y - b / 4; the other is -b / 4 over it.
    root = ops.add(ops.mul(size, 0.5), ops.mul(ops.hypot(held, ops.sqrt(width)), 0.5))
    is_zero = ops.eq(root, 0.0)
    other = ops.div(ops.mul(width, 0.25), ops.select(is_zero, 1.0, root))
    finite = ops.select(ops.ge(held, 0.0), root, other)
    return ops.select(ops.gt(found, most), found, ops.select(ops.lt(found, -most), 0.0, finite))


@fused
@composed
@api_boundary
def soft_sign(x: ArrayLike) -> ArrayBase:
    """x / (1 + abs(x))."""
    found = real("soft_sign", x)
    most = float(finfo(found.dtype).max)
    held = _clip(found, -most, most)
    return ops.div(held, ops.add(ops.abs_(held), 1.0))


softsign = soft_sign


@composed
@api_boundary
def tanh(x: ArrayLike) -> ArrayBase:
    """The hyperbolic tangent."""
    return ops.tanh(as_inexact("nn.tanh", x))


@fused
@composed
@api_boundary
def elu(x: ArrayLike, alpha: ArrayLike = 1.0) -> ArrayBase:
    """x where it is positive, else alpha * (exp(x) - 1)."""
    found, scale = inexact_operands("nn.elu", real("elu", x), alpha)
    return _elu(found, scale)


def _elu(x: Any, alpha: Any) -> Any:
    below = ops.select(ops.gt(x, 0.0), 0.0, x)
    return ops.select(ops.gt(x, 0.0), x, ops.mul(ops.expm1(below), alpha))


@fused
@composed
@api_boundary
def celu(x: ArrayLike, alpha: ArrayLike = 1.0) -> ArrayBase:
    """x where it is positive, else alpha * (exp(x / alpha) - 1)."""
    found, scale = inexact_operands("nn.celu", real("celu", x), alpha)
    below = ops.select(ops.gt(found, 0.0), 0.0, found)
    other = ops.mul(ops.expm1(ops.div(below, scale)), scale)
    return ops.select(ops.gt(found, 0.0), found, other)


# Klambauer et al., "Self-normalizing neural networks" (2017).
_SELU_ALPHA: Final = 1.6732632423543772848170429916717
_SELU_SCALE: Final = 1.0507009873554804934193349852946


@fused
@composed
@api_boundary
def selu(x: ArrayLike) -> ArrayBase:
    """scale * elu(x, alpha), with the constants that keep mean 0 and variance 1."""
    return ops.mul(_elu(real("selu", x), _SELU_ALPHA), _SELU_SCALE)


# --- gates ------------------------------------------------------------------------------------


@fused
@composed
@api_boundary
def silu(x: ArrayLike) -> ArrayBase:
    """x * sigmoid(x), also called swish."""
    found = real("silu", x)
    return _gated(found, ops.sigmoid, _zero(found.dtype))


swish = silu


@fused
@composed
@api_boundary
def mish(x: ArrayLike) -> ArrayBase:
    """x * tanh(softplus(x))."""
    found = real("mish", x)
    return _gated(found, lambda held: ops.tanh(_softplus(held)), _zero(found.dtype))


@fused
@composed
@api_boundary
def gelu(x: ArrayLike, approximate: bool = True) -> ArrayBase:
    """x times the probability that a standard normal variable is below x.

    Args:
        x: real numbers.
        approximate: whether the probability is computed as
            (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x**3))) / 2, which differs by up to 5e-4
            (Hendrycks and Gimpel, "Gaussian error linear units", 2016), or exactly.
    """
    found = real("gelu", x)
    is_wide = found.dtype is float64
    if not approximate:

        def exact(held: Any) -> Any:
            return ops.mul(ops.erfc(ops.mul(held, -math.sqrt(0.5))), 0.5)

        return _gated(found, exact, 39.0 if is_wide else 14.5)

    def tangent(held: Any) -> Any:
        # (1 + tanh(z)) / 2 = sigmoid(2z), which has all its digits where it is near 0.
        cubic = ops.add(ops.mul(ops.mul(held, held), 0.044715), 1.0)
        return ops.sigmoid(ops.mul(ops.mul(held, cubic), 2 * math.sqrt(2 / math.pi)))

    return _gated(found, tangent, 22.0 if is_wide else 11.0)


@fused
@composed
@api_boundary
def glu(x: ArrayLike, axis: int = -1) -> ArrayBase:
    """The first half along an axis, times the sigmoid of the second.

    Args:
        x: real numbers.
        axis: an axis of even length.

    Raises:
        ShapeError: the length is odd.
    """
    found = real("glu", x)
    at = parse_axis("nn.glu", axis, found.ndim)
    size = found.shape[at]
    if isinstance(size, int) and size % 2:
        raise ShapeError(
            f"nn.glu: axis {at} of {found.type.strong()} has {size} elements",
            loc=loc.current(),
            rule="the axis has two halves",
        )
    first, second = (
        slice_axis(found, at, start, stop) for start, stop in ((0, size // 2), (size // 2, size))
    )
    return ops.mul(first, ops.sigmoid(second))
