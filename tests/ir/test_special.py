"""Special functions against SciPy and mpmath, densely."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import mpmath
import numpy as np
import pytest
from scipy import special as scipy_special

from tessera.ir import special

mp: Any = mpmath
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # evaluate() silences them
EPS = np.finfo(np.float64).eps


def test_erfinv() -> None:
    tails = 1 - np.logspace(-15, -1, 500)
    x = np.concatenate(
        [np.linspace(-0.999, 0.999, 2001), np.logspace(-300, -1, 500), tails, -tails]
    )
    found = special.erfinv(x)
    assert np.allclose(found, scipy_special.erfinv(x), rtol=8 * EPS, atol=0)


def fma_exactly(a: float, b: float, c: float) -> float:
    if not (math.isfinite(a) and math.isfinite(b)):
        return a * b + c
    if not math.isfinite(c):
        return c  # the product is finite, however large
    exact = Fraction(a) * Fraction(b) + Fraction(c)
    if exact == 0:
        return a * b + c if a * b == 0 else 0.0  # the signs of zeros follow IEEE addition
    try:
        result = float(exact)
    except OverflowError:
        return math.inf if exact > 0 else -math.inf
    return result if result else (0.0 if exact > 0 else -0.0)


@pytest.mark.parametrize("kind", ["values", "cancellation", "bits", "halves"])
def test_fma_rounds_once(kind: str) -> None:
    rng = np.random.default_rng(0)
    a, b, c = rng.standard_normal((3, 4000))
    if kind == "cancellation":
        c = -(a * b) * rng.choice([1, 1 + EPS, 1 - EPS, 1 + 2**-30], a.size)
    elif kind == "bits":
        a, b, c = rng.integers(0, 2**64, (3, 4000), np.uint64).view(np.float64)
        c[::3] = a[::3] * b[::3]
    elif kind == "halves":
        # Sums that lie on the middle between two numbers, or beside it by very little.
        a, b = np.full(4000, 1 + EPS), 1 + EPS * rng.integers(0, 4, 4000)
        c = rng.choice([2.0**53, 2.0**52 + 0.5, -0.5, 2.0**106, 2.0**-54, -(2.0**-106)], 4000)
    zeros = [0.0, -0.0, 1.0, -1.0, np.inf, -np.inf, np.nan, 5e-324, 1e308, -1e308]
    grid = np.stack(np.meshgrid(zeros, zeros, zeros)).reshape(3, -1)
    a, b, c = (np.concatenate([x, y]) for x, y in zip((a, b, c), grid, strict=True))
    exact = np.array([fma_exactly(*numbers) for numbers in np.stack([a, b, c], 1).tolist()])
    known = ~np.isnan(exact)
    for found in (special.fma.__wrapped__(a, b, c), special.fma(a, b, c)):
        assert np.isnan(found).tolist() == np.isnan(exact).tolist()
        assert (found.view(np.int64) == exact.view(np.int64))[known].all()


@pytest.mark.parametrize("kind", ["bits", "halves", "below the normal ones"])
def test_fma_of_single_numbers_rounds_once(kind: str) -> None:
    rng = np.random.default_rng(0)
    count = 2000
    a, b, c = rng.integers(0, 2**32, (3, count), np.uint32).view(np.float32)
    if kind == "halves":
        # 1 + 2**-24, halfway between two numbers, and what float64 cannot add to it.
        a, b = np.full(count, 24929.0), np.full(count, 673 * 2.0**-24)
        c = rng.choice([-1.0, 0.0, 1.0], count) * 2.0 ** rng.integers(-100, -40, count)
    elif kind != "bits":
        # Nearly half of the smallest number, beside a multiple of it.
        a = (1 + rng.choice([-1, 1], count) * 2.0**-20) * 2.0**-75
        b = (1 + rng.choice([-1, 1], count) * 2.0**-20) * 2.0**-75
        c = rng.integers(2**21, 2**23, count) * 2.0**-149
    a, b, c = (np.float32(x) for x in (a, b, c))
    with np.errstate(all="ignore"):
        expected = special.fma_wide(*[np.float64(x) for x in (a, b, c)]).astype(np.float32)
        defined = special.fma_single.__wrapped__
        # One by one too: whether a sum may lie halfway is asked of all of them.
        one_by_one = [defined(a[k, None], b[k, None], c[k, None]) for k in range(count)]
        for found in (defined(a, b, c), np.concatenate(one_by_one), special.fma_single(a, b, c)):
            assert np.array_equal(found.view(np.int32), expected.view(np.int32))


def test_digamma() -> None:
    x = np.concatenate([np.logspace(-10, 10, 1001), np.linspace(-20.3, 20.3, 1000)])
    # Between its poles SciPy's digamma is far less accurate, so mpmath is the measure.
    expected = np.array([float(mp.digamma(mp.mpf(v))) for v in x])
    assert np.allclose(
        special.digamma(x), expected, rtol=0, atol=8 * EPS * np.fmax(1, abs(expected))
    )
    assert special.digamma(np.array([1e300]))[0] == pytest.approx(np.log(1e300), rel=EPS)


def test_lgamma_and_the_error_functions() -> None:
    x = np.linspace(-9.97, 30, 1001)
    assert np.allclose(special.lgamma(x), scipy_special.gammaln(x), rtol=8 * EPS, atol=16 * EPS)
    assert np.allclose(special.erf(x), scipy_special.erf(x), rtol=4 * EPS, atol=0)
    # Far out SciPy's erfc is the less accurate of the two.
    assert np.allclose(special.erfc(x), scipy_special.erfc(x), rtol=1e-13, atol=1e-300)
    assert special.lgamma(np.array([1e306]))[0] == np.inf


def test_rounding_to_odd() -> None:
    wide = np.array([1.0, 1.0, 1.0 + EPS, np.inf, 1.0])
    rest = np.array([1e-30, -1e-30, 1e-30, 1.0, 0.0])
    expected = [1.0 + EPS, 1.0 - EPS / 2, 1.0 + EPS, np.inf, 1.0]
    assert special.round_to_odd(wide, rest).tolist() == expected
    f32 = np.finfo(np.float32)
    found = special.to_float32_odd(np.array([1 + 1e-12, 1 - 1e-12, 1e300, -np.inf, 1.5]))
    assert found.dtype == np.float32
    expected = [1 + float(f32.eps), 1 - float(f32.epsneg), float(f32.max), -np.inf, 1.5]
    assert found.tolist() == expected
