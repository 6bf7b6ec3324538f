"""The functions that samples are computed by: close to the truth, and the same bits everywhere."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mpmath
import numpy as np
import pytest
from scipy import special

import tessera as ts
from tessera.graph.interp import run
from tessera.random import portable
from tests.fake_gpu import fake_gpu

POSITIVE = np.concatenate(
    [np.geomspace(1e-37, 1e37, 400), 1 + np.linspace(-0.5, 0.9, 201), 2.0 ** np.arange(-30, 30)]
)
ANY = np.concatenate([np.linspace(-87, 88, 301), np.linspace(-1, 1, 101)])


def precise(fn: Callable[[Any], Any], x: np.ndarray) -> np.ndarray:
    """A function of mpmath's with more digits than any format has."""
    with mpmath.workdps(40):
        found = [mpmath.nstr(fn(mpmath.mpf(float(v))), 25) for v in x]
    return np.array([np.longdouble(v) for v in found])


def units(found: np.ndarray, exact: Any) -> float:
    """The largest error in units of the last place."""
    wide = np.asarray(found, np.longdouble)
    spacing = np.spacing(np.abs(np.asarray(exact, np.longdouble)).astype(found.dtype))
    return float(np.max(np.abs(wide - exact) / spacing.astype(np.longdouble)))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_log(dtype: Any) -> None:
    x = POSITIVE.astype(dtype)
    exact = precise(mpmath.log, x)
    assert units(np.asarray(ts.jit(portable.log)(x)), exact) < 2


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_log_of_what_is_almost_one(dtype: Any) -> None:
    below = np.geomspace(1e-12, 0.2, 300).astype(dtype)
    found = ts.jit(portable.log)((1 - below).astype(dtype), below)
    exact = precise(lambda v: mpmath.log1p(-v), below)
    assert units(np.asarray(found), exact) < 3


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_exp(dtype: Any) -> None:
    x = ANY.astype(dtype)
    exact = precise(mpmath.exp, x)
    assert units(np.asarray(ts.jit(portable.exp)(x)), exact) < 2
    ends = np.array([-np.inf, -1e30, 1e30, np.inf, 0, -0.0], dtype)
    np.testing.assert_array_equal(ts.jit(portable.exp)(ends), [0, 0, np.inf, np.inf, 1, 1])


@pytest.mark.parametrize(("dtype", "rtol"), [(np.float32, 1e-6), (np.float64, 4e-15)])
def test_normal_quantile(dtype: Any, rtol: float) -> None:
    tail = np.concatenate([np.geomspace(2.0**-33, 0.5, 400), np.linspace(0.01, 0.499, 200)])
    if dtype is np.float64:
        tail = np.concatenate([np.geomspace(2.0**-65, 1e-10, 200), tail])
    tail = tail.astype(dtype)
    found = ts.jit(portable.normal_quantile)(tail, (0.5 - tail.astype(np.float64)).astype(dtype))
    exact = -special.ndtri(tail.astype(np.float64))
    np.testing.assert_allclose(found, exact, rtol=rtol, atol=1e-15)


CASES = {
    "log": (portable.log, POSITIVE),
    "exp": (portable.exp, ANY),
    "normal_quantile": (
        lambda t: portable.normal_quantile(t, 0.5 - t),
        np.geomspace(1e-9, 0.5, 99),
    ),
}


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", CASES)
def test_the_same_bits_everywhere(name: str, dtype: Any) -> None:
    fn, x = CASES[name]
    x = x.astype(dtype)
    expected = run(ts.make_graph(fn)(ts.asarray(x)), [x])[0]
    np.testing.assert_array_equal(ts.jit(fn)(x), expected)
    np.testing.assert_array_equal(fn(ts.asarray(x)), expected)
    with fake_gpu():
        np.testing.assert_array_equal(np.asarray(ts.jit(fn)(ts.device_put(x, "cuda:0"))), expected)
