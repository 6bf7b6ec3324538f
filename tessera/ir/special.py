"""Special functions on float64 arrays, for the reference meaning of scalar functions.

SciPy is not needed at run time, and the meaning of a program must not depend on whether it is
there: what NumPy lacks is computed here, the same way everywhere. Accuracy is that of the C
library for erf, erfc and lgamma; fma is exact but for one rounding; erfinv is within a few units in
the last place; digamma is within a few units of the larger of its value and 1 (it has zeros, near
which relative accuracy is lost).
Whoever calls these silences NumPy's warnings, as ``ScalarFn.evaluate`` does.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

Floats: TypeAlias = "npt.NDArray[np.float64]"
Singles: TypeAlias = "npt.NDArray[np.float32]"


def _elementwise(fn: Callable[..., float], arity: int) -> Callable[..., Floats]:
    ufunc: Any = np.frompyfunc(fn, arity, 1)

    def apply(*arrays: npt.NDArray[Any]) -> Floats:
        return np.asarray(ufunc(*arrays), dtype=np.float64)

    return apply


def _lgamma(x: float) -> float:
    try:
        return math.lgamma(x)
    except (ValueError, OverflowError):  # a pole, or too large
        return math.inf


erf = _elementwise(math.erf, 1)
erfc = _elementwise(math.erfc, 1)
lgamma = _elementwise(_lgamma, 1)
_c_fma = ctypes.CDLL(None).fma
_c_fma.restype, _c_fma.argtypes = ctypes.c_double, [ctypes.c_double] * 3
fma = _elementwise(_c_fma, 3)
"""``a * b + c``, rounded once."""

# B(2k) / (2k) of the asymptotic series psi(x) ~ log(x) - 1/(2x) - sum(c[k] / x**(2k)).
DIGAMMA_SERIES = (
    1 / 12,
    -1 / 120,
    1 / 252,
    -1 / 240,
    1 / 132,
    -691 / 32760,
    1 / 12,
    -3617 / 8160,
)
DIGAMMA_LARGE = 10.0
"""From here on the asymptotic series is exact to the last digits."""


def digamma(x: Floats) -> Floats:
    """The derivative of lgamma: NaN at negative integers, infinite at zeros (-inf at +0)."""
    reflect = x < 0
    positive = np.where(reflect, 1 - x, x)
    shift = np.zeros_like(positive)
    for _ in range(int(DIGAMMA_LARGE)):
        small = positive < DIGAMMA_LARGE
        shift = shift - np.where(small, 1 / np.where(positive == 0, np.nan, positive), 0)
        positive = np.where(small, positive + 1, positive)
    inverse = 1 / (positive * positive)
    series = np.zeros_like(positive)
    for coefficient in reversed(DIGAMMA_SERIES):
        series = (series + coefficient) * inverse
    result = shift + (np.log(positive) - 0.5 / positive - series)
    fraction = x - np.rint(x)  # tan has period 1 here, and this difference is exact
    result = result - np.where(reflect, np.pi / np.tan(np.pi * fraction), 0)
    result = np.where(reflect & (fraction == 0), np.nan, result)
    return np.where(x == 0, np.copysign(np.inf, -x), result)


def erfinv(x: Floats) -> Floats:
    """The inverse of erf: infinite at -1 and 1, NaN outside."""
    magnitude = np.abs(x)
    tail = 1 - magnitude  # exact where it is used, from 1/2 upwards
    # Winitzki's closed form is right to three digits; each Halley step triples them.
    log_term = np.log1p(-magnitude * magnitude)
    first = 2 / (np.pi * 0.147) + log_term / 2
    guess = np.sqrt(np.sqrt(first * first - log_term / 0.147) - first)
    for _ in range(3):
        near = erf(guess) - magnitude
        far = tail - erfc(guess)
        error = np.where(magnitude < 0.5, near, far)
        step = error / (2 / np.sqrt(np.pi) * np.exp(-guess * guess))
        guess = guess - step / (1 + guess * step)
    # Below this the function is linear to the last digit, and the closed form loses everything.
    guess = np.where(magnitude < 1e-8, magnitude * (np.sqrt(np.pi) / 2), guess)
    guess = np.where(magnitude == 1, np.inf, guess)
    return np.copysign(np.where(magnitude > 1, np.nan, guess), x)


def round_to_odd(wide: Floats, rest: Floats) -> Floats:
    """Make an inexact result odd in its last bit, so that rounding it again rounds only once.

    Args:
        wide: The nearest float64 to the true value.
        rest: The true value less ``wide``; only its sign matters.
    """
    if not rest.any():
        return wide
    even = (wide.view(np.int64) & 1) == 0
    inexact = np.isfinite(wide) & np.isfinite(rest) & (rest != 0)
    toward = np.copysign(np.inf, rest)
    return np.where(inexact & even, np.nextafter(wide, toward), wide)


def to_float32_odd(wide: Floats) -> npt.NDArray[np.float32]:
    """Convert to float32, rounding to odd, on the way to a format narrower still."""
    near = np.asarray(wide.astype(np.float32))
    even = (near.view(np.int32) & 1) == 0
    inexact = ~np.isnan(wide) & (near != wide)
    toward = np.where(near < wide, np.float32(np.inf), np.float32(-np.inf))
    return np.asarray(np.where(inexact & even, np.nextafter(near, toward), near))


def fma_wide(a: Floats, b: Floats, c: Floats) -> Floats:
    """``a * b + c`` of float32 (or narrower) values held in float64, rounded to odd.

    Products of float32 numbers are exact in float64; only the sum is rounded.
    """
    product = a * b
    total = np.asarray(product + c)
    back = total - product
    rest = (product - (total - back)) + (c - back)
    return round_to_odd(total, np.asarray(rest))


_TINY = float(np.finfo(np.float32).tiny)
_TIE = 1 << 28
_BELOW = (1 << 29) - 1


def fma_single(x: Singles, y: Singles, z: Singles) -> Singles:
    """``x * y + z`` of float32 numbers, rounded once.

    A sum that is rounded to float64 first is rounded wrongly only if that has it halfway between
    two float32 numbers, which are closer together below the normal ones.
    """
    a, b, c = x.astype(np.float64), y.astype(np.float64), z.astype(np.float64)
    total = np.asarray(a * b + c)
    halfway = (total.view(np.int64) & _BELOW) == _TIE
    # Interpreters do this for a few lanes at a time: one count costs less than two calls of any().
    if np.count_nonzero(halfway | (np.abs(total) < _TINY)):
        total = fma_wide(a, b, c)
    return np.asarray(total.astype(np.float32))


def log1p_complex(z: npt.NDArray[np.complex128]) -> npt.NDArray[np.complex128]:
    """``log(1 + z)``; near zero the real part keeps its digits, which NumPy's loses."""
    x, y = z.real, z.imag
    near = (np.abs(x) < 0.5) & (np.abs(y) < 0.5)
    safe_x, safe_y = np.where(near, x, 0), np.where(near, y, 0)
    precise = 0.5 * np.log1p(safe_x * (2 + safe_x) + safe_y * safe_y)
    result = np.empty(z.shape, np.complex128)
    result.real = np.where(near, precise, np.log(np.abs(1 + z)))
    result.imag = np.arctan2(y, 1 + x)
    return result
