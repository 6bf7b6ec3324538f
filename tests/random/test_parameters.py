"""Samplers with parameters: their distributions, and their derivatives."""

from __future__ import annotations

from collections.abc import Callable
from itertools import permutations
from typing import Any

import numpy as np
import pytest
from scipy import special, stats

import tessera as ts
from tessera import random
from tessera.random.gammas import slope
from tests.random.statistics import SIZE, fits, fits_counts

KEY = random.key(21)


def host(x: Any) -> np.ndarray:
    return np.asarray(x)


def f64(x: Any) -> Any:
    return ts.asarray(x, dtype=ts.float64)


# --- truncated normal -------------------------------------------------------------------------

LIMITS = [(-1, 2), (-np.inf, np.inf), (3, np.inf), (-np.inf, -6), (8, 9), (-0.1, 0.1), (20, np.inf)]


@pytest.mark.parametrize(
    ("low", "high", "dtype"),
    [
        (*LIMITS[0], ts.float64),
        (*LIMITS[-1], ts.float64),
        *[(*limits, ts.float32) for limits in LIMITS],
    ],
)
def test_truncated_normal(low: float, high: float, dtype: Any) -> None:
    found = random.truncated_normal(KEY, low, high, (SIZE,), dtype)
    assert found.dtype is dtype
    assert fits(found, stats.truncnorm(low, high).cdf)
    assert host(found).min() >= low
    assert host(found).max() <= high


def test_truncated_normal_of_arrays() -> None:
    low = ts.asarray([[-1.0], [0.0]])
    high = ts.asarray([0.5, 1.0, 2.0])
    found = host(random.truncated_normal(KEY, low, high))
    assert found.shape == (2, 3)
    assert ((found >= host(low)) & (found <= host(high))).all()
    more = host(random.truncated_normal(KEY, low, high, (50, 2, 3)))
    assert ((more >= host(low)) & (more <= host(high))).all()
    # Beyond what the distribution function can tell from 0, samples are the nearer limit.
    far = host(random.truncated_normal(KEY, 60.0, 61.0, (9,)))
    assert (far == 60).all()


# --- gamma, beta, Dirichlet -------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [ts.float32, ts.float64])
@pytest.mark.parametrize("a", [0.1, 0.9, 1.0, 3.0, 50.0, 1e4])
def test_gamma(a: float, dtype: Any) -> None:
    found = random.gamma(KEY, a, (SIZE,), dtype)
    assert found.dtype is dtype
    assert fits(found, stats.gamma(a).cdf)
    data = host(found)
    logs = host(random.loggamma(KEY, a, (SIZE,), dtype))[data > 1e-30]
    np.testing.assert_allclose(logs, np.log(data[data > 1e-30]), rtol=1e-5, atol=1e-5)


def test_loggamma_of_numbers_that_are_too_small() -> None:
    found = random.loggamma(KEY, 1e-3, (SIZE,))
    assert fits(found, stats.loggamma(1e-3).cdf)
    # Three of four have no place in float32.
    assert 0.8 < np.mean(host(random.gamma(KEY, 1e-3, (SIZE,))) < 1e-37) < 1


def test_gamma_of_wrong_parameters_that_are_known_late() -> None:
    draw = ts.jit(lambda a: random.gamma(KEY, a))
    np.testing.assert_array_equal(
        np.isnan(draw(ts.asarray([1.0, -1.0, np.nan, 0.0]))), [False, True, True, True]
    )


@pytest.mark.parametrize(("a", "b"), [(0.5, 0.5), (2, 3), (0.1, 4), (30, 2)])
def test_beta(a: float, b: float) -> None:
    assert fits(random.beta(KEY, a, b, (SIZE,)), stats.beta(a, b).cdf)


def test_dirichlet() -> None:
    alpha = np.array([0.5, 2.0, 3.0], np.float32)
    found = random.dirichlet(KEY, alpha, (SIZE,))
    assert found.shape == (SIZE, 3)
    np.testing.assert_allclose(ts.sum(found, axis=-1), np.ones(SIZE), rtol=1e-6)
    for k in range(3):
        assert fits(found[:, k], stats.beta(alpha[k], alpha.sum() - alpha[k]).cdf)
    assert random.dirichlet(KEY, np.ones((4, 3), np.float32)).shape == (4, 3)
    # Of tiny concentrations almost always one element has everything.
    tiny = host(random.dirichlet(KEY, np.full(3, 1e-4, np.float32), (1000,)))
    assert np.mean(tiny.max(-1) > 0.999) > 0.99
    assert np.isfinite(tiny).all()


# --- derivatives ------------------------------------------------------------------------------


def test_the_derivative_of_gamma_samples() -> None:
    """Against a difference quotient of quantiles, over all of the distribution."""
    for a in (0.02, 0.4, 1.0, 2.5, 30.0, 1000.0):
        for p in (1e-4, 0.1, 0.5, 0.9, 1 - 1e-4):
            h = 1e-4 * a
            left, middle, right = (np.log(special.gammaincinv(x, p)) for x in (a - h, a, a + h))
            found = float(slope(f64(middle), f64(a)))
            np.testing.assert_allclose(found, (right - left) / (2 * h), rtol=2e-5)


def test_the_derivative_in_single_precision() -> None:
    a = np.array([0.05, 0.5, 1.0, 4.0, 100.0], np.float32)
    z = np.array([1e-8, 0.3, 2.0, 3.0, 110.0], np.float32)
    found = host(slope(ts.asarray(np.log(z)), ts.asarray(a))) * z
    wanted = [3.5845674e-06, 1.0098022, 1.6316909, 0.89952242, 1.0501618]  # jax's random_gamma_grad
    np.testing.assert_allclose(found, wanted, rtol=2e-4)


def quotient(fn: Callable[..., Any], args: list[Any], k: int, step: float = 1e-5) -> float:
    """A difference quotient with the random bits held, where samples move smoothly."""
    shifted = [[a + s * step if j == k else a for j, a in enumerate(args)] for s in (1, -1)]
    up, down = [float(fn(*map(f64, given))) for given in shifted]
    return (up - down) / (2 * step)


SMOOTH: dict[str, tuple[Callable[..., Any], list[float]]] = {
    "uniform": (lambda a, b: random.uniform(KEY, (7,), ts.float64, a, b), [-1.0, 2.0]),
    "truncated": (lambda a, b: random.truncated_normal(KEY, a, b, (7,), ts.float64), [-0.5, 1.5]),
    "right": (lambda a, b: random.truncated_normal(KEY, a, b, (7,), ts.float64), [1.0, 1.5]),
    "normal": (lambda m, s: m + s * random.normal(KEY, (7,), ts.float64), [1.0, 2.0]),
}


@pytest.mark.parametrize("name", SMOOTH)
def test_derivatives_of_samples(name: str) -> None:
    draw, args = SMOOTH[name]

    def loss(*args: Any) -> Any:
        return ts.sum(ts.sin(draw(*args)))

    reverse = ts.grad(loss, argnums=(0, 1))(*map(f64, args))
    for k in range(2):
        tangents = tuple(f64(float(j == k)) for j in range(2))
        _, forward = ts.jvp(loss, tuple(map(f64, args)), tangents)
        expected = quotient(loss, args, k)
        np.testing.assert_allclose([float(reverse[k]), float(forward)], expected, rtol=1e-6)


def test_limits_at_infinity_have_no_derivative() -> None:
    def loss(low: Any, high: Any) -> Any:
        return ts.sum(random.truncated_normal(KEY, low, high, (7,)))

    found = ts.grad(loss, argnums=(0, 1))(ts.asarray(0.5), ts.asarray(np.inf))
    assert float(found[1]) == 0
    assert np.isfinite(float(found[0]))


def test_derivatives_of_means() -> None:
    """The gradient of an expectation is the mean of gradients: E[z] = a, E[beta] = a / (a + b)."""
    mean = ts.value_and_grad(lambda a: ts.mean(random.gamma(KEY, a, (SIZE,))))
    for a in (0.3, 2.0, 30.0):
        np.testing.assert_allclose([float(x) for x in mean(a)], [a, 1], rtol=0.03)
    log = ts.grad(lambda a: ts.mean(random.loggamma(KEY, a, (SIZE,))))
    np.testing.assert_allclose(float(log(0.3)), special.polygamma(1, 0.3), rtol=0.03)
    beta = ts.grad(lambda a, b: ts.mean(random.beta(KEY, a, b, (SIZE,))), argnums=(0, 1))
    np.testing.assert_allclose([float(x) for x in beta(2.0, 3.0)], [3 / 25, -2 / 25], rtol=0.03)

    alpha = np.array([0.5, 2.0, 3.0])
    jacobian = host(
        ts.jacfwd(lambda a: ts.mean(random.dirichlet(KEY, a, (SIZE,)), axis=0))(
            ts.asarray(alpha, dtype=ts.float32)
        )
    )
    expected = (np.eye(3) * alpha.sum() - alpha[:, None]) / alpha.sum() ** 2
    np.testing.assert_allclose(jacobian, expected, atol=5e-3)
    gradient = ts.grad(lambda a: ts.mean(random.dirichlet(KEY, a, (SIZE,))[:, 0]))
    np.testing.assert_allclose(
        gradient(ts.asarray(alpha, dtype=ts.float32)), expected[0], atol=5e-3
    )


def test_second_derivatives_of_gamma() -> None:
    def mean_square(a: Any) -> Any:
        return ts.mean(random.gamma(KEY, a, (SIZE,), ts.float64) ** 2)  # a**2 + a

    assert abs(float(ts.grad(ts.grad(mean_square))(f64(2.0))) - 2) < 0.1


# --- Poisson ----------------------------------------------------------------------------------


@pytest.mark.parametrize("lam", [0.05, 1.0, 9.99, 10.0, 40.0, 1000.0])
def test_poisson(lam: float) -> None:
    law = stats.poisson(lam)
    found = random.poisson(KEY, lam, (SIZE,))
    assert found.dtype is ts.int64
    assert fits_counts(found, law.pmf, int(law.ppf(1e-9)), int(law.ppf(1 - 1e-9)) + 1)


def test_poisson_of_large_rates() -> None:
    for lam in (1e6, 1e12):
        found = (host(random.poisson(KEY, lam, (SIZE,))) - lam) / np.sqrt(lam)
        assert fits(found + host(random.uniform(KEY, (SIZE,))) / np.sqrt(lam), stats.norm.cdf)


def test_poisson_of_several() -> None:
    found = host(random.poisson(KEY, ts.asarray([0.0, 3.0, 300.0]), (2000, 3)))
    np.testing.assert_array_equal(found[:, 0], 0)
    np.testing.assert_allclose(found.mean(0)[1:], [3, 300], rtol=0.05)
    assert random.poisson(KEY, 300.0, (9,), ts.uint8).dtype is ts.uint8
    assert host(random.poisson(KEY, 1e4, (9,), ts.int8)).min() == 127
    late = ts.jit(lambda lam: random.poisson(KEY, lam))
    np.testing.assert_array_equal(late(ts.asarray([-1.0, np.nan, 0.0])), [-1, -1, 0])


BINOMIAL = [(1, 0.3), (19, 0.9), (20, 0.1), (40, 0.5), (1000, 0.97), (10**6, 0.4), (10**9, 1e-9)]


@pytest.mark.parametrize(("n", "p"), BINOMIAL)
def test_binomial(n: int, p: float) -> None:
    law = stats.binom(n, p)
    found = random.binomial(KEY, n, p, (SIZE,), ts.int64)
    assert fits_counts(found, law.pmf, max(0, int(law.ppf(1e-9))), int(law.ppf(1 - 1e-9)) + 1)


def test_binomial_of_several() -> None:
    found = random.binomial(KEY, ts.asarray([0.0, 5.0, 7.0, 100.0]), 0.5, (1000, 4))
    assert found.dtype is ts.float32
    np.testing.assert_allclose(np.asarray(found).mean(0), [0, 2.5, 3.5, 50], rtol=0.05)
    np.testing.assert_array_equal(random.binomial(KEY, 9, np.float32([0, 1])), [0, 9])
    late = ts.jit(lambda n, p: random.binomial(KEY, n, p))
    found = late(ts.asarray([-1.0, 3.0, 3.0]), ts.asarray([0.5, 1.5, 1.0]))
    np.testing.assert_array_equal(found, [np.nan, np.nan, 3])
    keys = random.split(KEY, 3)
    draw = ts.jit(ts.vmap(lambda k: random.binomial(k, 100, 0.3, (4,))))
    wanted = [np.asarray(random.binomial(k, 100, 0.3, (4,))) for k in keys]
    np.testing.assert_array_equal(draw(keys), wanted)


# --- permutations and choices -----------------------------------------------------------------


def orders(found: np.ndarray) -> np.ndarray:
    """The numbers of permutations, in lexicographic order."""
    numbers = {p: k for k, p in enumerate(permutations(range(found.shape[1])))}
    return np.array([numbers[tuple(row)] for row in found.tolist()])


def test_all_permutations_are_alike() -> None:
    draw = ts.jit(ts.vmap(lambda k: random.permutation(k, 4)))
    found = orders(host(draw(random.split(KEY, SIZE))))
    assert fits_counts(found, lambda k: np.full(24, 1 / 24), 0, 23)


def test_permutation_of_an_axis() -> None:
    x = np.arange(24).reshape(2, 3, 4)
    for axis in (0, 1, 2, -1):
        found = host(random.permutation(KEY, x, axis))
        order = host(random.permutation(KEY, x.shape[axis]))
        np.testing.assert_array_equal(found, np.take(x, order, axis))
        own = host(random.permutation(KEY, x, axis, independent=True))
        np.testing.assert_array_equal(np.sort(own, axis), x)
    lines = np.tile(np.arange(3), (SIZE, 1))
    found = orders(host(random.permutation(KEY, lines, 1, independent=True)))
    assert fits_counts(found, lambda k: np.full(6, 1 / 6), 0, 5)
    assert random.permutation(KEY, 0).shape == (0,)


def test_choice() -> None:
    p = np.array([0.1, 0.2, 0.0, 0.7], np.float32)
    found = random.choice(KEY, 7, (SIZE,))
    assert found.dtype is ts.int64
    assert fits_counts(found, lambda k: np.full(7, 1 / 7), 0, 6)
    assert fits_counts(random.choice(KEY, 4, (SIZE,), p=p), lambda k: p[k], 0, 3)
    # Under jit, weights are scaled.
    late = ts.jit(lambda p: random.choice(KEY, 4, (SIZE,), p=p))
    np.testing.assert_array_equal(late(p), random.choice(KEY, 4, (SIZE,), p=p))
    assert fits_counts(late(100 * p), lambda k: p[k], 0, 3)
    x = np.arange(12.0).reshape(3, 4)
    index = host(random.choice(KEY, 4, (2, 5)))
    np.testing.assert_array_equal(random.choice(KEY, x, (2, 5), axis=1), x[:, index])
    assert random.choice(KEY, x).shape == (4,)


def test_choice_without_replacement() -> None:
    p = np.array([0.5, 0.3, 0.2])
    keys = random.split(KEY, SIZE)
    draw = ts.jit(ts.vmap(lambda k: random.choice(k, 3, (3,), replace=False)))
    assert fits_counts(orders(host(draw(keys))), lambda k: np.full(6, 1 / 6), 0, 5)
    weighted = ts.jit(
        ts.vmap(lambda k: random.choice(k, 3, (3,), False, ts.asarray(p, dtype=ts.float32)))
    )
    found = orders(host(weighted(keys)))
    expected = np.array([p[i] * p[j] / (1 - p[i]) for i, j, _ in permutations(range(3))])
    assert fits_counts(found, lambda k: expected[k], 0, 5)


# --- orthogonal matrices ----------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [ts.float32, ts.float64])
@pytest.mark.parametrize(("n", "m"), [(1, 1), (20, 20), (2, 5), (3, 0)])
def test_orthogonal(n: int, m: int, dtype: Any) -> None:
    found = random.orthogonal(KEY, n, (2,), dtype, m)
    assert found.shape == (2, n, m)
    assert found.dtype is dtype
    for q in host(found).astype(np.float64):
        product = q.T @ q if m <= n else q @ q.T
        np.testing.assert_allclose(
            product, np.eye(len(product)), atol=1e-6 if dtype is ts.float32 else 1e-14
        )


def test_orthogonal_matrices_prefer_no_direction() -> None:
    """An element of a rotation in three dims is uniform in [-1, 1], as Archimedes knew."""
    q = random.orthogonal(KEY, 3, (SIZE,))
    for i, j in ((0, 0), (2, 1), (1, 2)):
        assert fits(q[:, i, j], stats.uniform(-1, 2).cdf)
    determinants = np.linalg.det(host(q))
    assert fits_counts((determinants > 0), lambda k: np.full(2, 0.5), 0, 1)
