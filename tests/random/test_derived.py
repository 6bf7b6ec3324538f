"""Distributions that are functions of others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from scipy import stats

import tessera as ts
from tessera import random
from tests.random.statistics import SIZE, fits, fits_counts

KEY = random.key(31)

CASES: dict[str, tuple[Callable[..., Any], Any]] = {
    "cauchy": (lambda **k: random.cauchy(KEY, **k), stats.cauchy),
    "lognormal": (lambda **k: random.lognormal(KEY, 0.7, **k), stats.lognorm(0.7)),
    "maxwell": (lambda **k: random.maxwell(KEY, **k), stats.maxwell),
    "rayleigh": (lambda **k: random.rayleigh(KEY, 2.0, **k), stats.rayleigh(scale=2)),
    "pareto": (lambda **k: random.pareto(KEY, 3.0, **k), stats.pareto(3)),
    "weibull_min": (
        lambda **k: random.weibull_min(KEY, 2.0, 1.5, **k),
        stats.weibull_min(1.5, scale=2),
    ),
    "triangular": (
        lambda **k: random.triangular(KEY, -1.0, 0.5, 4.0, **k),
        stats.triang(0.3, loc=-1, scale=5),
    ),
    "wald": (lambda **k: random.wald(KEY, 3.0, **k), stats.invgauss(3.0)),
    "wald_small": (lambda **k: random.wald(KEY, 0.01, **k), stats.invgauss(0.01)),
    "chisquare": (lambda **k: random.chisquare(KEY, 3.0, **k), stats.chi2(3)),
    "t": (lambda **k: random.t(KEY, 4.0, **k), stats.t(4)),
    "f": (lambda **k: random.f(KEY, 3.0, 5.0, **k), stats.f(3, 5)),
    "generalized_normal": (
        lambda **k: random.generalized_normal(KEY, 1.5, **k),
        stats.gennorm(1.5),
    ),
}


DRAWS = [(name, ts.float32) for name in CASES] + [("wald", ts.float64), ("pareto", ts.float64)]


@pytest.mark.parametrize(("name", "dtype"), DRAWS)
def test_distributions(name: str, dtype: Any) -> None:
    draw, law = CASES[name]
    found = draw(shape=(SIZE,), dtype=dtype)
    assert found.dtype is dtype
    assert fits(found, law.cdf)
    assert draw(shape=(2, 0)).shape == (2, 0)


def test_the_two_sides_of_maxwell() -> None:
    found = (np.asarray(random.double_sided_maxwell(KEY, 1.0, 2.0, (SIZE,))) - 1) / 2
    assert fits(np.abs(found), stats.maxwell.cdf)
    assert fits_counts(found > 0, lambda k: np.full(2, 0.5), 0, 1)
    # The sign says nothing of the size.
    assert abs(np.corrcoef(found > 0, np.abs(found))[0, 1]) < 4 / np.sqrt(SIZE)


@pytest.mark.parametrize("p", [1e-3, 0.2, 0.5, 0.9, 1.0])
def test_geometric(p: float) -> None:
    found = random.geometric(KEY, p, (SIZE,))
    assert found.dtype is ts.int64
    if p == 1:
        assert (np.asarray(found) == 1).all()
    elif p < 0.1:
        smooth = np.asarray(found) - np.asarray(random.uniform(KEY, (SIZE,)))
        assert fits(smooth * p, stats.expon.cdf)
    else:
        assert fits_counts(found, stats.geom(p).pmf, 1, int(stats.geom(p).ppf(1 - 1e-9)))
    assert np.asarray(random.geometric(KEY, 1e-6, (9,), ts.int8)).max() == 127


def test_parameters_are_broadcast() -> None:
    scale = ts.asarray([[1.0], [100.0]])
    found = np.asarray(random.weibull_min(KEY, scale, ts.asarray([1.0, 2.0, 3.0])))
    assert found.shape == (2, 3)
    many = np.asarray(random.rayleigh(KEY, ts.asarray([1.0, 100.0]), (500, 2)))
    np.testing.assert_allclose(many.mean(0), np.sqrt(np.pi / 2) * np.array([1, 100]), rtol=0.1)


SMOOTH: dict[str, tuple[Callable[..., Any], list[float]]] = {
    "lognormal": (random.lognormal, [0.7]),
    "rayleigh": (random.rayleigh, [2.0]),
    "pareto": (random.pareto, [3.0]),
    "weibull_min": (random.weibull_min, [2.0, 1.5]),
    "triangular": (random.triangular, [-1.0, 0.5, 4.0]),
    "double_sided_maxwell": (random.double_sided_maxwell, [1.0, 2.0]),
}


@pytest.mark.parametrize("name", SMOOTH)
def test_derivatives_by_differences(name: str) -> None:
    draw, numbers = SMOOTH[name]
    args = [ts.asarray(x, dtype=ts.float64) for x in numbers]

    def loss(*args: Any) -> Any:
        return ts.sum(ts.sin(draw(KEY, *args, (9,), ts.float64)))

    found = ts.grad(loss, argnums=tuple(range(len(args))))(*args)
    for k, slope in enumerate(found):
        up, down = (
            float(loss(*[a + s * (j == k) for j, a in enumerate(args)])) for s in (1e-6, -1e-6)
        )
        np.testing.assert_allclose(float(slope), (up - down) / 2e-6, rtol=1e-6, atol=1e-8)


def test_derivatives_of_means() -> None:
    """Of what comes from gamma numbers: E[chi2] = df, E[F] = d2 / (d2 - 2)."""
    size = (SIZE,)
    slope = ts.grad(lambda df: ts.mean(random.chisquare(KEY, df, size)))(4.0)
    assert abs(float(slope) - 1) < 0.03
    slope = ts.grad(lambda d: ts.mean(random.f(KEY, 5.0, d, size)))(12.0)
    assert abs(float(slope) + 2 / 100) < 0.004


@pytest.mark.parametrize(
    "draw",
    [
        lambda k: random.cauchy(k, (5,)),
        lambda k: random.wald(k, 4.0, (5,)),
        lambda k: random.t(k, 4.0, (5,)),
        lambda k: random.geometric(k, 0.1, (5,)),
    ],
)
def test_the_same_under_vmap_and_jit(draw: Callable[[Any], Any]) -> None:
    keys = random.split(KEY, 3)
    wanted = np.stack([np.asarray(draw(key)) for key in keys])
    np.testing.assert_array_equal(ts.jit(ts.vmap(draw))(keys), wanted)
