"""The statistical tests of samples, and what they can find.

The seeds are fixed, so a test passes always or never: a failure is a change of the numbers. A right
distribution fails for one seed in a thousand.

Continuous distributions: Kolmogorov-Smirnov with n = `SIZE` samples. Its statistic D exceeds
1.95 / sqrt(n) with probability 0.001. As the empirical distribution function is that near to the
true one with probability 0.999, a sampler whose distribution function is wrong by twice as much
anywhere, which is 0.0195 for 40,000 samples, is found with probability 0.999.

Discrete distributions: chi-square over classes of an expected count of 20 or more. The power for a
relative error w (the square root of the sum of (q - p)^2 / p) is that of a noncentral chi-square
with the parameter n w^2: for 20 classes w = 0.043 is found with probability 0.999.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from scipy import stats

SIZE = 40_000
SIGNIFICANCE = 1e-3


def fits(samples: Any, cdf: Callable[..., Any]) -> bool:
    """Whether samples are of a continuous distribution."""
    data = np.asarray(samples, np.float64).reshape(-1)
    assert data.size == SIZE
    assert np.isfinite(data).all()
    return bool(stats.kstest(data, cdf).pvalue > SIGNIFICANCE)


def fits_counts(samples: Any, pmf: Callable[[np.ndarray], Any], low: int, high: int) -> bool:
    """Whether samples are of a discrete distribution; [low, high] has almost all of them."""
    data = np.asarray(samples, np.int64).reshape(-1)
    assert data.size == SIZE
    expected = np.asarray(pmf(np.arange(low, high + 1)), np.float64) * SIZE
    found = np.bincount(np.clip(data, low, high) - low, minlength=high - low + 1).astype(float)
    # What is beyond the ends belongs to the last classes.
    expected[-1] += SIZE - expected.sum()
    assert not found[expected <= 0].any()
    expected, found = expected[expected > 0], found[expected > 0]
    classes = np.minimum(np.cumsum(expected) // 20, (SIZE - 1) // 20).astype(int)
    _, classes = np.unique(classes, return_inverse=True)
    expected, found = np.bincount(classes, expected), np.bincount(classes, found)
    if expected[-1] < 20:
        expected, found = (np.append(x[:-2], x[-2] + x[-1]) for x in (expected, found))
    statistic = np.sum((found - expected) ** 2 / expected)
    return bool(stats.chi2.sf(statistic, len(expected) - 1) > SIGNIFICANCE)
