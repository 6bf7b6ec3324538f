"""Floating-point operations that are rounded once, where NumPy would round twice or not at all."""

from __future__ import annotations

import ml_dtypes
import numpy as np

from tests.ptx.memory import Array

BF16 = np.dtype(ml_dtypes.bfloat16)
E4M3 = np.dtype(ml_dtypes.float8_e4m3fn)
E5M2 = np.dtype(ml_dtypes.float8_e5m2)
_TINY = np.float32(2.0**-126)
_SPLIT = float((1 << 27) + 1)


def flush(x: Array) -> Array:
    """Subnormal float32 numbers as zeros of their sign."""
    return np.where(np.abs(x) < _TINY, np.copysign(np.float32(0), x), x)


def _odd(total: Array, error: Array) -> Array:
    """A sum whose exact value is total + error, with a last bit that says it is inexact: rounding
    it to a type with two bits less gives what rounding the exact sum gives."""
    bits = total.view("u8")
    inexact = (error != 0) & np.isfinite(total) & ((bits & 1) == 0)
    toward = np.where(error > 0, np.inf, -np.inf)
    return np.where(inexact, np.nextafter(total, toward), total)


def two_sum(a: Array, b: Array) -> tuple[Array, Array]:
    """a + b rounded, and what that leaves out."""
    s = a + b
    t = s - a
    return s, (a - (s - t)) + (b - t)


def fma_wide(a: Array, b: Array, c: Array) -> Array:
    """a * b + c of numbers of at most 24 bits, as float64 that may be rounded once more."""
    product = a.astype("f8") * b.astype("f8")
    total, error = two_sum(product, c.astype("f8"))
    return _odd(total, error)


def fma64(a: Array, b: Array, c: Array) -> Array:
    """a * b + c in float64, rounded once (up to the ends of the range)."""
    a, b = np.broadcast_arrays(a, b)
    high = a * b
    aa, bb = a * _SPLIT, b * _SPLIT
    ah, bh = aa - (aa - a), bb - (bb - b)
    al, bl = a - ah, b - bh
    low = ((ah * bh - high) + ah * bl + al * bh) + al * bl
    th, tl = two_sum(c, low)
    vh, vl = two_sum(high, th)
    result = vh + _odd(*two_sum(tl, vl))
    plain = high + c
    size = np.abs(high)
    safe = np.isfinite(result) & (size < 2.0**990) & (np.abs(a) < 2.0**990) & (np.abs(b) < 2.0**990)
    safe &= (size > 2.0**-900) | (high == 0)
    return np.where(safe & (high != 0), result, plain)


def odd32(x: Array) -> Array:
    """A float64 as float32, cut off, with a last bit that says that something is missing."""
    r = x.astype("f4")
    wide = r.astype("f8")
    over = np.abs(wide) > np.abs(x)
    cut = np.where(over, np.nextafter(r, np.float32(0)), r)
    inexact = (cut.astype("f8") != x) & np.isfinite(x)
    return np.where(inexact, (cut.view("u4") | 1).view("f4"), cut)


def directed(x: Array, mode: str) -> Array:
    """A float64 as float32, rounded by rn, rz, rm (down) or rp (up)."""
    r = x.astype("f4")
    if mode in ("", "rn"):
        return r
    wide = r.astype("f8")
    down, up = np.float32(-np.inf), np.float32(np.inf)
    if mode == "rm":
        return np.where(wide > x, np.nextafter(r, down), r)
    if mode == "rp":
        return np.where(wide < x, np.nextafter(r, up), r)
    over = np.abs(wide) > np.abs(x)
    return np.where(over, np.nextafter(r, np.float32(0)), r)


def narrow(x: Array, kind: str, mode: str = "rn") -> Array:
    """A float64 as `f32`, `f64`, `f16` or `bf16`."""
    if kind == "f64":
        return x
    if kind == "f32":
        return directed(x, mode)
    if kind == "f16":
        if mode in ("rz", "rm", "rp"):
            r = x.astype("f2")
            wide = r.astype("f8")
            over = {"rz": np.abs(wide) > np.abs(x), "rm": wide > x, "rp": wide < x}[mode]
            toward = {"rz": 0.0, "rm": -np.inf, "rp": np.inf}[mode]
            return np.where(over, np.nextafter(r, np.float16(toward)), r)
        return x.astype("f2")
    if mode in ("rz", "rm", "rp"):
        cut = directed(x, mode).view("u4")
        if mode == "rz":
            return (cut >> np.uint32(16)).astype("u2").view(BF16)
        away = ((cut & np.uint32(0xFFFF)) != 0) & ((cut >> np.uint32(31)) == (mode == "rm"))
        return ((cut >> np.uint32(16)) + away).astype("u2").view(BF16)
    return odd32(x).astype(BF16)


def to_f8(x: Array, kind: str) -> Array:
    """A float32 as an 8-bit float, saturating, as bytes."""
    limit = np.float32(448 if kind == "e4m3" else 57344)
    clipped = np.where(np.isnan(x), np.float32(0), np.clip(x, -limit, limit))
    code = clipped.astype(E4M3 if kind == "e4m3" else E5M2).view("u1")
    return np.where(np.isnan(x), np.uint8(0x7F), code)


def tf32(x: Array, mode: str) -> Array:
    """A float32 with 10 bits of mantissa: rna (ties away), rn (ties to even) or rz."""
    bits = x.view("u4")
    if mode == "rna":
        rounded = bits + np.uint32(0x1000)
    elif mode == "rz":
        rounded = bits
    else:
        rounded = bits + np.uint32(0xFFF) + ((bits >> np.uint32(13)) & np.uint32(1))
    return np.where(np.isfinite(x), rounded & np.uint32(0xFFFFE000), bits).view("f4")


def minimum(a: Array, b: Array) -> Array:
    """The smaller number; -0 is below +0, and a number wins over NaN."""
    return _extreme(a, b, False, False)


def maximum(a: Array, b: Array) -> Array:
    """The larger number, likewise."""
    return _extreme(a, b, True, False)


def minimum_nan(a: Array, b: Array) -> Array:
    """The smaller number; NaN wins."""
    return _extreme(a, b, False, True)


def maximum_nan(a: Array, b: Array) -> Array:
    """The larger number; NaN wins."""
    return _extreme(a, b, True, True)


def _extreme(a: Array, b: Array, larger: bool, nan: bool) -> Array:
    words = f"u{a.dtype.itemsize}"
    first = (a > b) if larger else (a < b)
    result = np.where(first, a, b)
    # Equal numbers differ in the sign of zero at most.
    x, y = a.view(words), np.broadcast_to(b, a.shape).view(words)
    equal = (x & y if larger else x | y).view(a.dtype)
    result = np.where(a == b, equal, result)
    no_a, no_b = np.isnan(a), np.isnan(b)
    if nan:
        return np.where(no_a, a, np.where(no_b, b, result)).astype(a.dtype)
    return np.where(no_a, b, np.where(no_b, a, result)).astype(a.dtype)


def saturate(x: Array) -> Array:
    """Into [0, 1]; NaN gives 0."""
    one = np.ones((), x.dtype)
    zero = np.zeros((), x.dtype)
    return np.where(x > zero, np.where(x < one, x, one), zero).astype(x.dtype)
