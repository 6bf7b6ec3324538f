"""Stencils with borders, and loops that step from one array to another, at every level."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tessera as ts
from tessera.ir.core import Func
from tessera.ir.walk import walk
from tessera.lowering import to_schedule
from tessera.schedule import ops, plan
from tessera.target.gpu import gpu
from tessera.target.machine import machine
from tests.differential.levels import check_levels
from tests.schedule.lowering import traced, typed


@pytest.fixture(autouse=True)
def large(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small arrays are large."""
    monkeypatch.setattr(plan, "LARGE", 1)


def graph_of(fn: Callable[..., Any], *shapes: tuple[int, ...]) -> Func:
    return traced(fn, *[typed(*shape) for shape in shapes])


def values(*shapes: tuple[int, ...]) -> list[np.ndarray]:
    rng = np.random.default_rng(3)
    return [rng.normal(size=shape).astype(np.float32) for shape in shapes]


def alternates(lowered: Any) -> list[tuple[int, ...]]:
    return [op.alternate for op in walk(lowered.schedule.body) if isinstance(op, ops.While)]


def heat(u: Any) -> Any:
    inner = u[1:-1, 1:-1]
    around = u[:-2, 1:-1] + u[2:, 1:-1] + u[1:-1, :-2] + u[1:-1, 2:]
    return ts.pad(inner + 0.2 * (around - 4 * inner), 1)


def smooth(x: Any) -> Any:
    return ts.pad(x, ((2, 3),), constant_values=1.5) * 0.5 + ts.pad(x, ((0, 5),))


@pytest.mark.parametrize("level", ["host", "x86-64-v3", "x86-64"])
@pytest.mark.parametrize("shape", [(9, 200), (3, 3), (20, 67), (70, 5)])
def test_borders(shape: tuple[int, int], level: str) -> None:
    lowered = check_levels(graph_of(heat, shape), values(shape), machine=machine(level))
    if shape == (9, 200):
        # Vectors of the interior are loaded without masks.
        assert "tile.if" in str(lowered.tile)


@pytest.mark.parametrize("size", [300, 40, 1])
def test_borders_of_vectors(size: int) -> None:
    check_levels(graph_of(smooth, (size,)), values((size,)))


@pytest.mark.parametrize("steps", [2, 3, 5])
def test_steps_alternate_between_two_places(steps: int) -> None:
    graph = graph_of(lambda u: ts.fori_loop(0, steps, lambda k, u: heat(u), u), (9, 20))
    assert alternates(check_levels(graph, values((9, 20)))) == [(1,)]


def test_devices_copy() -> None:
    graph = graph_of(lambda u: ts.fori_loop(0, 3, lambda k, u: heat(u), u), (9, 20))
    schedule, _, _ = to_schedule(graph, gpu("sm_90a"))
    assert [op.alternate for op in walk(schedule.body) if isinstance(op, ops.While)] == [()]


def test_what_is_carried_besides_is_copied() -> None:
    def step(k: Any, state: Any) -> Any:
        u, before, total = state
        return heat(u) - before, u, total + ts.sum(u)

    def fn(u: Any, v: Any) -> Any:
        return ts.fori_loop(0, 3, step, (u, v, ts.sum(v)))

    check_levels(graph_of(fn, (6, 9), (6, 9)), values((6, 9), (6, 9)))


def test_two_arrays_alternate() -> None:
    def step(k: Any, state: Any) -> Any:
        u, v = state
        return heat(u) + v[::-1], ts.flip(v, axis=1) + u[:, ::-1]

    graph = graph_of(lambda u, v: ts.fori_loop(0, 3, step, (u, v)), (6, 9), (6, 9))
    assert alternates(check_levels(graph, values((6, 9), (6, 9)))) == [(1, 2)]


@pytest.mark.parametrize("steps", [2, 3, 6])
def test_what_was_is_kept_without_a_copy(steps: int) -> None:
    """The next array is computed on the one before the last, and the two exchange their names."""

    def wave(k: Any, state: Any) -> Any:
        u, before = state
        return 2 * u - before + 0.1 * ts.roll(u, 1, axis=0), u

    def fn(u: Any, v: Any) -> Any:
        return ts.fori_loop(0, steps, wave, (u, v))

    lowered = check_levels(graph_of(fn, (6, 9), (6, 9)), values((6, 9), (6, 9)))
    assert alternates(lowered) == [(1,)]
    (loop,) = [op for op in walk(lowered.schedule.body) if isinstance(op, ops.While)]
    step = loop.body.outputs[1].op
    assert isinstance(step, ops.Kernel)
    assert step.places == (loop.places[2],)


@pytest.mark.parametrize("steps", [2, 3, 4])
def test_what_was_is_copied_where_the_step_reads_elsewhere(steps: int) -> None:
    def step(k: Any, state: Any) -> Any:
        u, before = state
        return u[::-1] + before[:, ::-1], u

    def fn(u: Any, v: Any) -> Any:
        return ts.fori_loop(0, steps, step, (u, v))

    lowered = check_levels(graph_of(fn, (6, 9), (6, 9)), values((6, 9), (6, 9)))
    assert alternates(lowered) == [(1,)]


@pytest.mark.parametrize("steps", [1, 2, 3, 4, 5])
def test_longer_histories(steps: int) -> None:
    def shift(k: Any, state: Any) -> Any:
        a, b, c, _, other = state
        return ts.roll(a, 1, axis=1) + b - c, a, b, a, other

    def both(k: Any, state: Any) -> Any:
        a, b, c, d, other = state
        return a[::-1] - b, a, d[::-1] * c, c, other + a

    for step in (shift, both):
        for condition in (False, True):

            def fn(*arrays: Any, step: Any = step, condition: bool = condition) -> Any:
                if not condition:
                    return ts.fori_loop(0, steps, step, arrays)
                return ts.while_loop(
                    lambda state: (state[5] < steps) & (ts.sum(state[0]) < 1e9),
                    lambda state: (*step(None, state[:5]), state[5] + 1),
                    (*arrays, 0),
                )

            shapes = [(6, 9)] * 5
            check_levels(graph_of(fn, *shapes), values(*shapes))


def test_histories_in_loops() -> None:
    def wave(k: Any, state: Any) -> Any:
        u, before = state
        return 2 * u - before + 0.1 * ts.roll(u, 1, axis=0), u

    for outer, inner in ((1, 1), (2, 3), (3, 2), (3, 3)):

        def fn(u: Any, v: Any, outer: int = outer, inner: int = inner) -> Any:
            def step(k: Any, state: Any) -> Any:
                u, v = ts.fori_loop(0, inner, wave, state)
                return v - ts.roll(u, 2, axis=1), u

            return ts.fori_loop(0, outer, step, (u, v))

        check_levels(graph_of(fn, (6, 9), (6, 9)), values((6, 9), (6, 9)))


@pytest.mark.parametrize("limit", [0.5, 0.05, 9.0])
def test_a_condition_reads_what_alternates(limit: float) -> None:
    def fn(u: Any) -> Any:
        return ts.while_loop(lambda u: ts.max(ts.abs(u)) > limit, heat, u)

    assert alternates(check_levels(graph_of(fn, (6, 9)), values((6, 9)))) == [(0,)]


@pytest.mark.parametrize("steps", [(3, 2), (2, 3), (3, 3)])
def test_loops_in_loops(steps: tuple[int, int]) -> None:
    outer, inner = steps

    def fn(u: Any) -> Any:
        def step(k: Any, u: Any) -> Any:
            return ts.fori_loop(0, inner, lambda k, u: heat(u), u) + u[::-1]

        return ts.fori_loop(0, outer, step, u)

    check_levels(graph_of(fn, (6, 9)), values((6, 9)))
