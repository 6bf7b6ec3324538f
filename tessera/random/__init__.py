"""Random numbers without state: functions of keys.

The same key gives the same numbers on every device, under `jit` and `vmap`, and in every order of
computation. See docs/random.md.
"""

from __future__ import annotations

from tessera.random.arrangement import choice, orthogonal, permutation
from tessera.random.continuous import exponential, gumbel, laplace, logistic, normal, uniform
from tessera.random.counts import binomial, poisson
from tessera.random.derived import (
    cauchy,
    chisquare,
    double_sided_maxwell,
    f,
    generalized_normal,
    geometric,
    lognormal,
    maxwell,
    pareto,
    rayleigh,
    t,
    triangular,
    wald,
    weibull_min,
)
from tessera.random.discrete import bernoulli, categorical, rademacher, randint
from tessera.random.gammas import beta, dirichlet, gamma, loggamma
from tessera.random.keys import bits, fold_in, key, split
from tessera.random.streams import next_key
from tessera.random.truncated import truncated_normal
from tessera.random.vectors import ball, multivariate_normal

__all__ = [
    "ball",
    "bernoulli",
    "beta",
    "binomial",
    "bits",
    "categorical",
    "cauchy",
    "chisquare",
    "choice",
    "dirichlet",
    "double_sided_maxwell",
    "exponential",
    "f",
    "fold_in",
    "gamma",
    "generalized_normal",
    "geometric",
    "gumbel",
    "key",
    "laplace",
    "loggamma",
    "logistic",
    "lognormal",
    "maxwell",
    "multivariate_normal",
    "next_key",
    "normal",
    "orthogonal",
    "pareto",
    "permutation",
    "poisson",
    "rademacher",
    "randint",
    "rayleigh",
    "split",
    "t",
    "triangular",
    "truncated_normal",
    "uniform",
    "wald",
    "weibull_min",
]
