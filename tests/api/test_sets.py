"""Distinct elements of concrete arrays, beside NumPy's."""

from __future__ import annotations

import numpy as np
import pytest

import tessera as ts

RNG = np.random.default_rng(19)
DTYPES = ["bool", "int8", "uint8", "int16", "int32", "int64", "uint64", "f2", "f4", "f8"]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(0,), (1,), (7,), (3, 4), (50, 60)], ids=str)
def test_values_and_counts(dtype: str, shape: tuple[int, ...]) -> None:
    """Every NaN is distinct. Of zeros of both signs the first one stands for all."""
    for k in range(4):
        x = RNG.integers(-3, 4, shape).astype(dtype)
        if x.dtype.kind == "f" and k:
            x *= RNG.choice([1, -1], shape).astype(dtype)
            x[RNG.random(shape) < 0.1 * (k - 1)] = np.nan
        wanted, first, counts = np.unique(
            x, return_index=True, return_counts=True, equal_nan=False
        )
        is_nan = wanted != wanted
        a = ts.asarray(x)
        for values in (ts.unique_values(a), ts.unique_counts(a).values):
            found = np.asarray(values)
            assert found.dtype == x.dtype
            assert found.shape == wanted.shape
            assert (np.isnan(found) == is_nan).all() if is_nan.any() else True
            assert found[~is_nan].tobytes() == x.reshape(-1)[first][~is_nan].tobytes()
        found = ts.unique_counts(a).counts
        assert found.dtype == ts.int64
        np.testing.assert_array_equal(found, counts)


def test_arrays_in_another_order() -> None:
    x = RNG.integers(0, 9, (300, 400)).astype(np.int32)
    for a, y in ((ts.asarray(x).T, x.T), (ts.asarray(x)[::2, 5:], x[::2, 5:])):
        for _ in range(3):
            np.testing.assert_array_equal(ts.unique_values(a), np.unique(y))
