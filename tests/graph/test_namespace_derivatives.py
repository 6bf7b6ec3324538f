"""Derivatives of the namespace in both modes against differences, by the ops' own definitions.

The compiled programs of the same functions are in `test_namespace_transforms.py`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tessera as ts
from tests.graph.namespace_cases import engine, host, sample
from tests.graph.test_namespace_transforms import DIFFERENTIABLE, PROGRAMS

__all__ = ["engine"]

STEP = 1e-6


@pytest.mark.parametrize("name", DIFFERENTIABLE)
def test_both_modes(name: str) -> None:
    fn, args = PROGRAMS[name]
    first, *others = args
    # No two elements are equal: where they are, a sort has no derivative.
    x = first.astype(np.float64) + 0.01 + 1e-3 * np.arange(first.size).reshape(first.shape)
    rest = [ts.asarray(a.astype(np.float64) if a.dtype.kind == "f" else a) for a in others]

    def run(x: Any) -> Any:
        return fn(x, *rest)

    along = sample("float64", x.shape, 9)
    ahead, behind = (host(run(ts.asarray(x + s * along))) for s in (STEP, -STEP))
    difference = (ahead - behind) / (2 * STEP)
    _, forward = ts.jvp(run, (ts.asarray(x),), (ts.asarray(along),))
    np.testing.assert_allclose(host(forward), difference, rtol=1e-4, atol=1e-4)
    out, pull = ts.vjp(run, ts.asarray(x))
    weights = sample("float64", out.shape, 7)
    (backward,) = pull(ts.asarray(weights))
    wanted = np.sum(difference * weights)
    np.testing.assert_allclose(np.sum(host(backward) * along), wanted, rtol=1e-4, atol=1e-3)
