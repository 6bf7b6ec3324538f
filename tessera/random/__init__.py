"""Random numbers without state: functions of keys.

The same key gives the same numbers on every device, under `jit` and `vmap`, and in every order of
computation. See docs/random.md.
"""

from __future__ import annotations

from tessera.random.continuous import exponential, gumbel, laplace, logistic, normal, uniform
from tessera.random.discrete import bernoulli, categorical, rademacher, randint
from tessera.random.keys import bits, fold_in, key, split

__all__ = [
    "bernoulli",
    "bits",
    "categorical",
    "exponential",
    "fold_in",
    "gumbel",
    "key",
    "laplace",
    "logistic",
    "normal",
    "rademacher",
    "randint",
    "split",
    "uniform",
]
