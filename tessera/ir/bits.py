"""What integers do bit by bit, on NumPy arrays, for the reference meaning of scalar functions."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from tessera.dtypes import Kind, dtype_of

Array: TypeAlias = "npt.NDArray[Any]"


def shl(a: Array, b: Array) -> Array:
    """Shifted upwards; zero where the count is no place of a bit."""
    inside = unsigned(b) < 8 * a.dtype.itemsize
    return np.where(inside, np.left_shift(a, np.where(inside, b, 0).astype(b.dtype)), 0)


def shr(a: Array, b: Array) -> Array:
    """Shifted downwards; copies of the sign where the count is no place of a bit."""
    inside = unsigned(b) < 8 * a.dtype.itemsize
    gone = np.where(a < 0, -1, 0).astype(a.dtype)
    return np.where(inside, np.right_shift(a, np.where(inside, b, 0).astype(b.dtype)), gone)


def unsigned(x: Array) -> Array:
    """The bit patterns as unsigned integers of the same width."""
    return np.asarray(x).view(f"u{x.dtype.itemsize}")


def _bit_pattern(x: Array) -> tuple[Array, int]:
    """The bits of integers as uint64, and their number."""
    bits = dtype_of(x.dtype).bits
    if bits < 8:
        return unsigned(x.astype(np.int8)).astype(np.uint64) & np.uint64((1 << bits) - 1), bits
    return unsigned(x).astype(np.uint64), bits


def _bit_length(x: Array) -> Array:
    # frexp is exact on 32-bit halves; on 64 bits the conversion to float64 would round.
    high, low = x >> np.uint64(32), x & np.uint64(0xFFFFFFFF)
    upper = np.frexp(high.astype(np.float64))[1]
    lower = np.frexp(low.astype(np.float64))[1]
    return np.where(high != 0, upper + 32, lower)


def clz(x: Array) -> Array:
    """How many bits above the first one are zero."""
    pattern, bits = _bit_pattern(x)
    return (bits - _bit_length(pattern)).astype(np.int8)


def popcount(x: Array) -> Array:
    """How many bits are one."""
    return np.bitwise_count(_bit_pattern(x)[0])


def mulhi(a: Array, b: Array) -> Array:
    """The upper half of the product, which has twice as many bits."""
    dtype = dtype_of(a.dtype)
    wide = np.int64 if dtype.kind is Kind.INT else np.uint64
    x, y = a.astype(wide), b.astype(wide)
    if dtype.bits < 64:
        high = np.right_shift(x * y, wide(dtype.bits))
        return high.astype(np.int8) if dtype.bits < 8 else high
    u, v = unsigned(x), unsigned(y)
    half, mask = np.uint64(32), np.uint64(0xFFFFFFFF)
    u1, u0, v1, v0 = u >> half, u & mask, v >> half, v & mask
    middle = u1 * v0 + ((u0 * v0) >> half)
    carry = (middle & mask) + u0 * v1
    high = u1 * v1 + (middle >> half) + (carry >> half)
    if wide is np.int64:
        high = high - np.where(x < 0, v, 0).astype(np.uint64)
        high = high - np.where(y < 0, u, 0).astype(np.uint64)
    return high.astype(wide)
