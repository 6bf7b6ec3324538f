"""States that one loop keeps for another lie with their lanes innermost: at every level."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tessera as ts
from tessera.compile import Lowered
from tessera.schedule import ops
from tessera.schedule.types import BufType
from tessera.target.machine import machine, supported_levels
from tests.differential.levels import check_levels, graph_of, values
from tests.schedule.lowering import all_ops

LEVELS = [name for name in ("x86-64", "x86-64-v3", "x86-64-v4") if name in supported_levels()]
TIME, BATCH, CHANNELS, STATES = 5, 2, 20, 3
SHAPES = [(TIME, BATCH, CHANNELS), (CHANNELS, STATES), (TIME, BATCH, STATES)]


def states(x: Any, a: Any, b: Any) -> tuple[Any, Any]:
    """A state of a few components for each channel, and all of its values."""

    def step(h: Any, row: Any) -> tuple[Any, Any]:
        x, b = row
        h = ts.tanh(x[:, :, None] * a) * h + b[:, None, :]
        return h, h

    zero = ts.zeros((*x.shape[1:], a.shape[1]), dtype=x.dtype)
    return ts.scan(step, zero, (x, b))


def back(h: Any, x: Any) -> Any:
    """A loop from the end, which reads them."""

    def step(g: Any, row: Any) -> tuple[Any, Any]:
        h, x = row
        g = g * h + x[:, :, None]
        return g, ts.sum(g * h, axis=-1)

    return ts.scan(step, ts.zeros_like(h[0]), (h, x), reverse=True)[1]


def laid_out(lowered: Lowered) -> list[BufType]:
    """Buffers with strides, or a dim of lanes, that loads of a program read."""
    found = [op.buf.type for op in all_ops(lowered.schedule, ops.Load)]
    types = [t for t in dict.fromkeys(found) if isinstance(t, BufType)]
    return [t for t in types if t.strides is not None or len(t.shape) == 5]


def check(fn: Any, level: str = "x86-64-v3", count: int = 1, channels: int = CHANNELS) -> Lowered:
    shapes = [(TIME, BATCH, channels), (channels, STATES), (TIME, BATCH, STATES)]
    lowered = check_levels(graph_of(fn, shapes), values(shapes), machine=machine(level))
    assert len(laid_out(lowered)) == count
    return lowered


def both(x: Any, a: Any, b: Any) -> Any:
    return back(states(x, a, b)[1], x)


@pytest.mark.parametrize("level", LEVELS)
def test_components_before_lanes(level: str) -> None:
    (found,) = laid_out(check(both, level, channels=21))
    assert found.shape == (TIME, BATCH, 21, STATES)
    assert found.strides == (STATES * BATCH * 21, 21, 1, BATCH * 21)


@pytest.mark.parametrize("level", LEVELS)
def test_whole_vectors_lie_together(level: str) -> None:
    lowered = check(both, level, channels=64)
    lanes = lowered.cpu.vector_bits // 32
    (found,) = laid_out(lowered)
    assert found.shape == (BATCH, 64 // lanes, TIME + 1, STATES, lanes)


def test_other_kernels_sum_whole_vectors() -> None:
    def fn(x: Any, a: Any, b: Any) -> Any:
        h = states(x, a, b)[1]
        return back(h, x), ts.sum(h * x[..., None], axis=2), ts.max(h, axis=(0, 2))

    check(fn, channels=64)


def test_one_dim_of_points() -> None:
    def fn(x: Any, a: Any, b: Any) -> Any:
        h = ts.scan(lambda h, x: (h * a + x[:, None], h), ts.zeros_like(a), x[:, 0])[1]
        step = lambda g, h: (g * h, ts.sum(g * h, axis=-1))  # noqa: E731
        return ts.scan(step, ts.ones_like(a), h, reverse=True)[1]

    shapes = [(TIME, BATCH, 32), (32, STATES), (TIME, BATCH, STATES)]
    lowered = check_levels(graph_of(fn, shapes), values(shapes), machine=machine("x86-64-v3"))
    assert [op.buf.type.shape for op in all_ops(lowered.schedule, ops.Load)].count(
        (4, TIME + 1, STATES, 8)
    )


def test_other_kernels_read_them_too() -> None:
    def fn(x: Any, a: Any, b: Any) -> Any:
        h = states(x, a, b)[1]
        return back(h, x), ts.sum(h * x[..., None], axis=2), ts.cumulative_sum(h[..., 0], axis=0)

    check(fn)


def test_results_stay_as_they_are() -> None:
    def fn(x: Any, a: Any, b: Any) -> Any:
        h = states(x, a, b)[1]
        return back(h, x), h

    check(fn, count=0)


def test_what_is_sorted_stays_as_it_is() -> None:
    def fn(x: Any, a: Any, b: Any) -> Any:
        h = states(x, a, b)[1]
        return back(h, x), ts.sort(h, axis=2)

    check(fn, count=0)


def test_states_without_components() -> None:
    def fn(x: Any, a: Any, b: Any) -> Any:
        h = ts.scan(lambda h, x: (h * a[:, 0] + x, h), ts.zeros_like(x[0]), x)[1]
        return ts.scan(lambda g, h: (g * h, g), ts.ones_like(x[0]), h, reverse=True)[1]

    check(fn, count=0)


def test_inside_of_a_loop() -> None:
    def fn(x: Any, a: Any, b: Any) -> Any:
        return ts.fori_loop(0, 2, lambda i, x: ts.tanh(back(states(x, a, b)[1], x) / 64), x)

    check(fn)


def test_the_gradient_of_a_selective_scan() -> None:
    def loss(x: Any, a: Any, b: Any) -> Any:
        return ts.sum(ts.sum(states(x, a, b)[1], axis=-1) ** 2)

    given = values(SHAPES)
    graph = graph_of(ts.grad(loss), SHAPES)
    lowered = check_levels(graph, given, machine=machine("x86-64-v3"))
    assert laid_out(lowered)
    step = 1e-3
    direction = np.random.default_rng(1).standard_normal(SHAPES[0]).astype(np.float32)
    f = ts.jit(lambda x: loss(ts.astype(x, ts.float64), *[np.float64(v) for v in given[1:]]))
    wide, along = given[0].astype(np.float64), direction.astype(np.float64)
    expected = (float(f(wide + step * along)) - float(f(wide - step * along))) / (2 * step)
    found = float(np.sum(np.asarray(ts.jit(ts.grad(loss))(*given)) * direction))
    np.testing.assert_allclose(found, expected, rtol=1e-3)
