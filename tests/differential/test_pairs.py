"""Sums over pairs that are computed from single elements are one kernel, which stores no pairs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import tessera as ts
from tessera.dtypes import float16, float32
from tessera.ir.intexpr import sym
from tessera.ir.types import TensorType
from tests.differential.levels import check_levels
from tests.pairs import every_pair
from tests.schedule.lowering import traced


def accelerations(p: Any, m: Any) -> Any:
    d = p[None, :, :] - p[:, None, :]
    r2 = ts.sum(d * d, axis=-1) + 1e-2
    w = m[None, :] / (r2 * ts.sqrt(r2))
    return ts.sum(w[:, :, None] * d, axis=1)


def by_components(p: Any, m: Any) -> Any:
    d = [p[None, :, k] - p[:, None, k] for k in range(p.shape[1])]
    w = m[None, :] / (sum(x * x for x in d) + 1e-2)
    return ts.stack([ts.sum(w * x, axis=1) for x in d], axis=-1)


def both_dims(p: Any, m: Any) -> Any:
    d = p[None, :, :] * p[:, None, :]
    return ts.sum(d, axis=(0, 1)), ts.sum(d, axis=(1, 2)), ts.max(d, axis=2)


def values(size: int, width: int) -> list[np.ndarray]:
    rng = np.random.default_rng(4)
    shapes = [(size, width), (size,)]
    return [rng.normal(size=s).astype(np.float32) for s in shapes]


@every_pair(
    ("size", [24, 33]),
    ("width", [1, 2, 3, 4]),
    ("fn", [accelerations, by_components, both_dims]),
)
def test_levels(fn: Callable[..., Any], size: int, width: int) -> None:
    inputs = values(size, width)
    lowered = check_levels(traced(fn, *[TensorType(x.shape, float32) for x in inputs]), inputs)
    if fn is not both_dims and 1 < width <= 3:
        assert lowered.kernels()[0].label.startswith("sum")
        assert len(lowered.kernels()) == 1
        assert lowered.arena == 0


def test_symbolic_and_narrow() -> None:
    n = sym("n")
    graph = traced(accelerations, TensorType((n, 3), float32), TensorType((n,), float32))
    for size in (0, 1, 17):
        check_levels(graph, values(size, 3), {"n": size})
    narrow = [x.astype(np.float16) for x in values(24, 3)]
    check_levels(traced(accelerations, *[TensorType(x.shape, float16) for x in narrow]), narrow)


def test_special_values() -> None:
    p, m = values(20, 3)
    p[3, 1], p[5, 2], m[7] = np.nan, np.inf, -np.inf
    types = [TensorType(x.shape, float32) for x in (p, m)]
    check_levels(traced(accelerations, *types), [p, m])
