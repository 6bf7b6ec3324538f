"""Normal vectors with a covariance, and points of a ball."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy import stats

import tessera as ts
from tessera import random
from tests.random.statistics import SIZE, fits

KEY = random.key(41)
MEAN = np.array([1.0, -2.0, 0.5], np.float32)
COV = np.array([[2.0, 0.6, -0.3], [0.6, 1.0, 0.2], [-0.3, 0.2, 0.5]], np.float32)


@pytest.mark.parametrize("method", ["cholesky", "eigh", "svd"])
def test_multivariate_normal(method: Any) -> None:
    found = random.multivariate_normal(KEY, MEAN, COV, (SIZE,), method=method)
    assert found.shape == (SIZE, 3)
    data = np.asarray(found)
    for k in range(3):
        assert fits(data[:, k], stats.norm(MEAN[k], np.sqrt(COV[k, k])).cdf)
    # Along any direction, and so as a whole (Cramer and Wold).
    for direction in np.random.default_rng(0).normal(size=(4, 3)):
        deviation = np.sqrt(direction @ COV @ direction)
        assert fits(data @ direction, stats.norm(MEAN @ direction, deviation).cdf)


def test_covariances_without_full_rank() -> None:
    line = np.outer([1, 2, 3], [1, 2, 3]).astype(np.float32)
    for method in ("eigh", "svd"):
        found = np.asarray(random.multivariate_normal(KEY, 0 * MEAN, line, (50,), method=method))
        np.testing.assert_allclose(found[:, 1:], found[:, :1] * [2, 3], atol=2e-2)
        assert found[:, 0].std() > 0.5
    assert np.isnan(np.asarray(random.multivariate_normal(KEY, MEAN, -COV))).all()


def test_batches_and_derivatives() -> None:
    means = np.stack([MEAN, -MEAN])
    assert random.multivariate_normal(KEY, means, COV).shape == (2, 3)
    assert random.multivariate_normal(KEY, means, COV, (5, 2), ts.float64).shape == (5, 2, 3)
    keys = random.split(KEY, 4)
    draw = ts.jit(ts.vmap(lambda k: random.multivariate_normal(k, MEAN, COV)))
    wanted = [np.asarray(random.multivariate_normal(k, MEAN, COV)) for k in keys]
    np.testing.assert_allclose(draw(keys), wanted, rtol=1e-5, atol=1e-6)

    def loss(mean: Any, cov: Any) -> Any:
        return ts.mean(ts.sum(random.multivariate_normal(KEY, mean, cov, (SIZE,)) ** 2, axis=-1))

    # E[|x|^2] = |mean|^2 + trace(cov).
    by_mean, by_cov = ts.grad(loss, argnums=(0, 1))(ts.asarray(MEAN), ts.asarray(COV))
    np.testing.assert_allclose(by_mean, 2 * MEAN, atol=0.05)
    np.testing.assert_allclose(np.diag(by_cov), np.ones(3), atol=0.05)


@pytest.mark.parametrize("p", [1.0, 2.0, 5.0])
def test_ball(p: float) -> None:
    found = random.ball(KEY, 3, p, (SIZE,))
    assert found.shape == (SIZE, 3)
    size = np.sum(np.abs(np.asarray(found, np.float64)) ** p, axis=-1) ** (1 / p)
    # The volume within a radius grows with its third power.
    assert fits(size, lambda r: np.clip(r, 0, 1) ** 3)
    assert size.max() <= 1 + 1e-6
    if p == 2:
        # By Archimedes, a coordinate of the direction is uniform.
        direction = np.asarray(found)[:, 1] / size
        assert fits(direction, stats.uniform(-1, 2).cdf)
    signs = np.sign(np.asarray(found))
    assert np.abs(np.corrcoef(signs.T) - np.eye(3)).max() < 4 / np.sqrt(SIZE)
    assert np.abs(np.corrcoef(signs[:, 0], np.abs(found)[:, 0])[0, 1]) < 4 / np.sqrt(SIZE)
