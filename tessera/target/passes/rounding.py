"""Rounding to narrower formats, saturation and flushing, written with integer operations on bits.

The rows of `FORMAT_SCALARS` (`ir/scalar.py`) have no instruction on any machine; these expansions
serve all writers. A size (the bits without the sign) is an unsigned integer that grows with the
number, so that the upper bits of a size are the number rounded towards zero, one more in the last
of them is the next number, and what lies below says which of the two it is to be. Only where a
format has its subnormal numbers among the normal ones of the operand is this done in
floating-point, in multiples of the smallest number: these are exact.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from tessera.dtypes import DType, float32, uint32, uint64
from tessera.ir.core import Value
from tessera.ir.numerics import Rounding
from tessera.ir.rounding import GRIDS, Grid
from tessera.target import ops as t
from tessera.target.build import Build


@dataclass(frozen=True, slots=True)
class _Wide:
    """The format of the operand.

    Attributes:
        word: unsigned integer of its width.
        mantissa: stored bits.
        least: exponent of the smallest normal number.
    """

    word: DType
    mantissa: int
    least: int

    @property
    def sign(self) -> int:
        """The bit of the sign."""
        return 1 << (self.word.bits - 1)

    @property
    def infinity(self) -> int:
        """The bits of infinity."""
        return self.sign - (1 << self.mantissa)

    def bits(self, value: float) -> int:
        """The bits of a number."""
        float_type, int_type = (
            (np.float32, np.uint32) if self.word is uint32 else (np.float64, np.uint64)
        )
        return int(float_type(value).view(int_type))


_WIDE = {32: _Wide(uint32, 23, -126), 64: _Wide(uint64, 52, -1022)}


def _rounding(grid: Grid, mode: Rounding) -> Callable[..., Value]:
    def expand(b: Build, x: Value, u: Value | None = None) -> Value:
        wide = _WIDE[t.element(x.type).bits]
        shift = wide.mantissa - grid.mantissa
        if shift <= 0:
            return x
        bits = b.bitcast(x, wide.word)
        size = b.map("and", bits, b.like(bits, wide.sign - 1))
        sign = b.map("xor", bits, size)
        minus = b.map("ne", sign, b.like(bits, 0))
        found = _normal(b, wide, grid, mode, size, minus, u)
        if grid.least > wide.least:
            small = b.map("lt", size, b.like(bits, wide.bits(grid.smallest_normal)))
            found = b.select(small, _subnormal(b, grid, mode, b.bitcast(size, _dtype(x)), minus, u),
                             found)  # fmt: skip
        found = _overflow(b, wide, grid, mode, found, minus)
        special = b.map("ge", size, b.like(bits, wide.infinity))
        found = b.select(special, size, found)
        return b.bitcast(b.map("or", found, sign), _dtype(x))

    return expand


def _dtype(x: Value) -> DType:
    return t.element(x.type)


def _normal(
    b: Build, wide: _Wide, grid: Grid, mode: Rounding, size: Value, minus: Value, u: Value | None
) -> Value:
    """The size rounded to as many leading bits; a carry goes into the exponent, as it should."""
    shift = wide.mantissa - grid.mantissa
    rest = b.map("and", size, b.like(size, (1 << shift) - 1))
    kept = b.map("xor", size, rest)
    if mode is Rounding.TOWARD_ZERO:
        return kept
    one = b.like(size, 1 << shift)
    if mode is Rounding.NEAREST_EVEN:
        odd = b.map("and", b.map("shr", size, b.like(size, shift)), b.like(size, 1))
        half = b.map("add", b.map("add", size, b.like(size, (1 << (shift - 1)) - 1)), odd)
        return b.map("and", half, b.like(size, ((1 << wide.word.bits) - 1) - ((1 << shift) - 1)))
    if mode is Rounding.STOCHASTIC:
        assert u is not None
        # The rest as the mantissa of a number in [1, 2).
        moved = b.map("shl", rest, b.like(size, grid.mantissa))
        dtype = _dtype(u)
        number = b.bitcast(b.map("or", moved, b.like(size, wide.bits(1.0))), dtype)
        away = b.map("lt", u, b.map("sub", number, b.like(number, 1.0)))
    else:
        away = b.map("and", b.map("ne", rest, b.like(rest, 0)), _outward(b, mode, minus))
    return b.map("add", kept, b.select(away, one, b.like(size, 0)))


def _outward(b: Build, mode: Rounding, minus: Value) -> Value:
    """Whether a directed mode rounds away from zero."""
    return minus if mode is Rounding.DOWN else b.map("not", minus)


def _subnormal(
    b: Build, grid: Grid, mode: Rounding, size: Value, minus: Value, u: Value | None
) -> Value:
    """The bits of the size as a multiple of the smallest number of the format."""
    scale = 2.0 ** (grid.mantissa - grid.least)
    steps = b.map("mul", size, b.like(size, scale))
    if mode is Rounding.NEAREST_EVEN:
        whole = b.map("round", steps)
    else:
        whole = b.map("trunc", steps)
        if mode is not Rounding.TOWARD_ZERO:
            rest = b.map("sub", steps, whole)
            if mode is Rounding.STOCHASTIC:
                assert u is not None
                away = b.map("lt", u, rest)
            else:
                some = b.map("gt", rest, b.like(rest, 0.0))
                away = b.map("and", some, _outward(b, mode, minus))
            one, none = b.like(whole, 1.0), b.like(whole, 0.0)
            whole = b.map("add", whole, b.select(away, one, none))
    word = uint32 if _dtype(size) is float32 else uint64
    return b.bitcast(b.map("mul", whole, b.like(whole, 1 / scale)), word)


def _overflow(
    b: Build, wide: _Wide, grid: Grid, mode: Rounding, size: Value, minus: Value
) -> Value:
    """Beyond the largest number: infinity, or that number where the mode rounds towards zero."""
    limit, infinity = b.like(size, wide.bits(grid.largest)), b.like(size, wide.infinity)
    beyond = b.map("gt", size, limit)
    if mode is Rounding.TOWARD_ZERO:
        end = limit
    elif mode in (Rounding.UP, Rounding.DOWN):
        end = b.select(_outward(b, mode, minus), infinity, limit)
    else:
        end = infinity
    return b.select(beyond, end, size)


def _saturation(grid: Grid) -> Callable[..., Value]:
    def expand(b: Build, x: Value) -> Value:
        limit = min(grid.largest, float(np.finfo(_dtype(x).np).max))
        return b.map("min", b.map("max", x, b.like(x, -limit)), b.like(x, limit))

    return expand


def _flushing(grid: Grid) -> Callable[..., Value]:
    def expand(b: Build, x: Value) -> Value:
        wide = _WIDE[_dtype(x).bits]
        if grid.least < wide.least:
            return x
        bits = b.bitcast(x, wide.word)
        size = b.map("and", bits, b.like(bits, wide.sign - 1))
        tiny = b.map("lt", size, b.like(bits, wide.bits(grid.smallest_normal)))
        found = b.select(tiny, b.map("xor", bits, size), bits)
        return b.bitcast(found, _dtype(x))

    return expand


ROUNDINGS: dict[str, Callable[..., Value]] = {
    **{f"round.{d}.{m.value}": _rounding(g, m) for d, g in GRIDS.items() for m in Rounding},
    **{f"saturate.{d}": _saturation(g) for d, g in GRIDS.items()},
    **{f"flush.{d}": _flushing(g) for d, g in GRIDS.items()},
}
"""The expansion of each row of `FORMAT_SCALARS`."""
