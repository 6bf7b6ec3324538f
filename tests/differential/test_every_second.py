"""Elements that stand apart, and what is put between others, at every level."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tessera as ts
from tessera.dtypes import DType, bfloat16, float32, float64, int8
from tessera.ir.intexpr import sym
from tessera.target.machine import machine
from tests.differential.levels import check_levels, graph_of, values
from tests.pairs import every_pair
from tests.schedule.lowering import traced, type_of


def spread(first: int, step: int, axis: int) -> Callable[[Any], Any]:
    """The gradient of every `step`-th element from the first one on."""
    part = (slice(None),) * axis + (slice(first, None, step),)
    return ts.grad(lambda x: ts.sum(ts.sin(x[part])))


def turned(x: Any, angle: Any) -> Any:
    """Rotary embeddings of neighbours."""
    a, b = x[..., ::2], x[..., 1::2]
    cos, sin = ts.cos(angle), ts.sin(angle)
    return ts.reshape(ts.stack([a * cos - b * sin, a * sin + b * cos], axis=-1), x.shape)


@every_pair(
    ("level", ["host", "x86-64-v3", "x86-64"]),
    ("step", [2, 3, 4, 5]),
    ("size", [1, 12, 61]),
)
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


def kernels(fn: Callable[..., Any], array: np.ndarray, level: str) -> str:
    """What the kernels say, of results that agree at all levels."""
    graph = traced(fn, type_of(array))
    return str(check_levels(graph, [array], machine=machine(level)).schedule)


@every_pair(
    ("level", ["host", "x86-64-v3", "x86-64"]),
    ("dtype", [float32, float64, bfloat16, int8]),
    ("step", [2, 3, 7, 8, 13, 16, 17, -2]),
)
def test_what_stands_apart_is_reduced_along_its_rows(step: int, dtype: DType, level: str) -> None:
    rng = np.random.default_rng(0)
    for shape in ((5, 40 * abs(step)), (3, 70 * abs(step) + 1)):
        x = rng.integers(-9, 9, shape).astype(dtype.np)
        for reduce in (ts.sum, ts.max, ts.argmax):
            found = kernels(lambda x, f=reduce: f(x[:, ::step], axis=1), x, level)
            assert "lanes along the reduction" in found


def test_what_stands_nearer_along_another_axis_is_not() -> None:
    x = np.random.default_rng(0).normal(size=(300, 40, 2)).astype(np.float32)
    assert "lanes along i0" in kernels(lambda x: ts.sum(x[..., 0], axis=0), x, "host")


@every_pair(
    ("level", ["host", "x86-64-v3", "x86-64"]),
    ("dtype", [float32, float64, bfloat16, int8]),
    ("step", [5, 6, 8, 12, 16, 17]),
)
def test_what_is_near_is_picked_from_its_neighbours(step: int, dtype: DType, level: str) -> None:
    # One value is the last of all, one the first: nothing before or behind them is read.
    x = np.random.default_rng(0).integers(-9, 9, (2, 64 * step + 1)).astype(dtype.np)
    graph = traced(lambda x: (x[:, ::step] + 1, x[:, step::step] * 2), type_of(x))
    check_levels(graph, [x], machine=machine(level))


def test_a_line_and_a_half_apart_at_most() -> None:
    def target(dtype: DType, step: int) -> str:
        x = np.zeros((2, 64 * step), dtype.np)
        graph = traced(lambda x: x[:, ::step] + 1, type_of(x))
        return str(check_levels(graph, [x], machine=machine("x86-64-v4")).target)

    assert "gather" not in target(float32, 16)
    assert "gather" in target(float32, 17)
    assert "gather" not in target(float64, 12)
    assert "gather" in target(float64, 13)
