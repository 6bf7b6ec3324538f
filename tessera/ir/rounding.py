"""Rounding to the numbers of a floating-point format: the definition, in NumPy.

A format is a grid: numbers with `mantissa + 1` significant bits, multiples of its smallest positive
number at least. A number is rounded to the grid continued without an upper end, in one of the modes
of `Rounding`; what then exceeds the largest finite number of the format overflows: to infinity, or,
where the mode rounds towards zero there, to the largest number. NaN and infinities stay. For
stochastic rounding, a number that lies the fraction `f` of the way from the neighbour nearer to
zero to the other one becomes the latter if `u < f`, where `u` is uniform in [0, 1).

All functions give arrays of the dtype that they are given, float32 or float64, whose elements are
numbers of the format: a cast to it then changes nothing (and makes NaN of an infinity where the
format has none).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

from tessera.dtypes import (
    DType,
    bfloat16,
    finfo,
    float8_e4m3fn,
    float8_e5m2,
    float16,
    float32,
    float64,
)
from tessera.ir.numerics import Rounding

Array: TypeAlias = "npt.NDArray[Any]"


@dataclass(frozen=True, slots=True)
class Grid:
    """The numbers of a format.

    Attributes:
        mantissa: bits behind the leading one.
        least: exponent of the smallest normal number.
        largest: the largest finite number.
    """

    mantissa: int
    least: int
    largest: float

    @property
    def smallest_normal(self) -> float:
        """The smallest normal number."""
        return 2.0**self.least


def _grid(dtype: DType, mantissa: int) -> Grid:
    info = finfo(dtype)
    return Grid(mantissa, int(np.log2(float(info.smallest_normal))), float(info.max))


GRIDS: Final[dict[DType, Grid]] = {
    dtype: _grid(dtype, mantissa)
    for dtype, mantissa in (
        (float8_e4m3fn, 3),
        (float8_e5m2, 2),
        (float16, 10),
        (bfloat16, 7),
        (float32, 23),
        (float64, 52),
    )
}
"""Every floating-point format."""


def round_array(x: Array, grid: Grid, mode: Rounding, u: Array | None = None) -> Array:
    """The elements rounded to a grid.

    Args:
        x: float32 or float64.
        grid: the format's numbers; all of `x` stay if it is the format of `x`, or wider.
        mode: which neighbour.
        u: for stochastic rounding, numbers in [0, 1).
    """
    wide = x.astype(np.float64)
    size = np.abs(wide)
    finite = np.isfinite(wide)
    size = np.where(finite, size, 0.0)
    exponent = np.maximum(np.frexp(size)[1] - 1, grid.least)
    steps = np.ldexp(size, grid.mantissa - exponent)  # exact: at least the smallest step is 1
    whole = np.floor(steps)
    rest = steps - whole
    up = _goes_up(rest, whole, np.signbit(wide), mode, u)
    with np.errstate(all="ignore"):
        found = np.ldexp(whole + up, exponent - grid.mantissa)
    inward = _goes_in(np.signbit(wide), mode)
    found = np.where(found > grid.largest, np.where(inward, grid.largest, np.inf), found)
    with np.errstate(all="ignore"):
        return np.asarray(np.where(finite, np.copysign(found, wide), wide).astype(x.dtype))


def _goes_up(rest: Array, whole: Array, minus: Array, mode: Rounding, u: Array | None) -> Array:
    """Whether a size goes to the neighbour farther from zero."""
    if mode is Rounding.NEAREST_EVEN:
        return (rest > 0.5) | ((rest == 0.5) & (whole % 2 == 1))
    if mode is Rounding.STOCHASTIC:
        assert u is not None
        return u < rest
    return (rest > 0) & ~_goes_in(minus, mode)


def _goes_in(minus: Array, mode: Rounding) -> Array:
    """Whether the mode rounds towards zero."""
    if mode is Rounding.UP:
        return minus
    return ~minus if mode is Rounding.DOWN else np.full(minus.shape, mode is Rounding.TOWARD_ZERO)


def saturate_array(x: Array, grid: Grid) -> Array:
    """What exceeds the largest finite number of a format, infinities included, becomes it."""
    limit = x.dtype.type(min(grid.largest, float(np.finfo(x.dtype).max)))
    return np.asarray(np.minimum(np.maximum(x, -limit), limit))


def flush_array(x: Array, grid: Grid) -> Array:
    """What is smaller than the smallest normal number of a format becomes zero, of its sign."""
    tiny = np.abs(x) < grid.smallest_normal
    return np.asarray(np.where(tiny, np.copysign(np.zeros_like(x), x), x))
