"""Elements that stand apart, and what is put between others, at every level."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tessera as ts
from tessera.ir.intexpr import sym
from tessera.target.machine import machine
from tests.differential.levels import check_levels, graph_of, values


def spread(first: int, step: int, axis: int) -> Callable[[Any], Any]:
    """The gradient of every `step`-th element from the first one on."""
    part = (slice(None),) * axis + (slice(first, None, step),)
    return ts.grad(lambda x: ts.sum(ts.sin(x[part])))


def turned(x: Any, angle: Any) -> Any:
    """Rotary embeddings of neighbours."""
    a, b = x[..., ::2], x[..., 1::2]
    cos, sin = ts.cos(angle), ts.sin(angle)
    return ts.reshape(ts.stack([a * cos - b * sin, a * sin + b * cos], axis=-1), x.shape)


@pytest.mark.parametrize("level", ["host", "x86-64-v3", "x86-64"])
@pytest.mark.parametrize("step", [2, 3, 4, 5])
@pytest.mark.parametrize("size", [1, 12, 61])
def test_what_is_between_is_zero(size: int, step: int, level: str) -> None:
    for first in (0, 1, step, step + 1):
        if first < size:
            for axis, shape in ((1, (3, size)), (0, (size, 5))):
                graph = graph_of(spread(first, step, axis), [shape])
                check_levels(graph, values([shape]), machine=machine(level))


def test_a_size_without_a_number() -> None:
    graph = graph_of(spread(1, 2, 1), [(3, sym("n"))])
    for size in (2, 9, 40):
        check_levels(graph, values([(3, size)]), {"n": size})


@pytest.mark.parametrize("level", ["host", "x86-64-v3", "x86-64"])
@pytest.mark.parametrize("width", [2, 10, 64])
def test_rotary_embeddings(width: int, level: str) -> None:
    shapes = (3, 5, width), (5, width // 2)

    def gradient(x: Any, angle: Any) -> Any:
        return ts.grad(lambda x: ts.sum(turned(x, angle) ** 2 * 0.5 + turned(x, angle)))(x)

    for fn in (turned, gradient):
        lowered = check_levels(graph_of(fn, shapes), values(shapes), machine=machine(level))
        # Which half an element belongs to is known where the code is written.
        assert width < 64 or "gather" not in str(lowered.target)


def test_special_values_stay_apart() -> None:
    x = np.full((2, 12), np.nan, np.float32)
    found = np.array(ts.jit(spread(1, 3, 1))(x))
    assert np.isnan(found[:, 1::3]).all()
    found[:, 1::3] = 0
    assert (found == 0).all()
