"""The one table of tolerances, and the comparison that uses it.

Results are compared as `|a - b| <= rtol * scale`, where the scale is the magnitude of the values
that went into an element: the largest magnitude in the expected array (sums may cancel), at least
1. Accumulating `length` values allows errors to grow by its square root. NaN must meet NaN,
infinities their equals; integers and bools are exact.
"""

from __future__ import annotations

import numpy as np

from tessera.dtypes import Kind, dtype_of

RTOL: dict[str, float] = {
    "f64": 1e-12,
    "c128": 1e-12,
    "f32": 4e-6,
    "c64": 8e-6,
    "f16": 4e-3,
    "bf16": 3e-2,
    "f8e4m3fn": 2.5e-1,
    "f8e5m2": 5e-1,
}
"""Relative error allowed per dtype for one operation and a few roundings."""


def rtol(dtype: object, length: int = 1, factor: float = 1.0) -> float:
    """The relative tolerance.

    Args:
        dtype: anything that `dtype_of` takes.
        length: how many values are accumulated.
        factor: for results behind several operations; give the reason beside it.
    """
    found = dtype_of(dtype)
    base = RTOL.get(found.name, 0.0)
    return base * factor * max(1.0, float(length) ** 0.5)


def assert_close(actual: object, expected: object, *, length: int = 1, factor: float = 1.0) -> None:
    """Compares arrays by the table; dtypes and shapes must be equal."""
    a, b = np.asarray(actual), np.asarray(expected)
    assert a.dtype == b.dtype, f"dtype {a.dtype}, expected {b.dtype}"
    assert a.shape == b.shape, f"shape {a.shape}, expected {b.shape}"
    if dtype_of(b.dtype).kind not in (Kind.FLOAT, Kind.COMPLEX):
        np.testing.assert_array_equal(a, b)
        return
    wide = np.complex128 if dtype_of(b.dtype).kind is Kind.COMPLEX else np.float64
    x, y = a.astype(wide), b.astype(wide)
    with np.errstate(all="ignore"):
        finite = np.isfinite(y)
        np.testing.assert_array_equal(np.isnan(x), np.isnan(y))
        same = np.where(finite | np.isnan(y), True, x == y)
        assert same.all(), "infinities differ"
        scale = max(1.0, float(np.max(np.abs(y[finite]), initial=0.0)))
        worst = float(np.max(np.abs(x[finite] - y[finite]), initial=0.0)) / scale
    allowed = rtol(b.dtype, length, factor)
    assert worst <= allowed, f"relative error {worst:.3g}, allowed {allowed:.3g}"
