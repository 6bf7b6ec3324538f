"""Kernels that threads share together: which ones, and that results do not depend on it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tessera as ts
from tessera.compile import Lowered
from tessera.ir.walk import walk
from tessera.schedule import ops
from tessera.schedule.rebuild import kernels
from tessera.target import ops as t

COUNT, SIDE = 20, 200
RNG = np.random.default_rng(3)
SHAPES = [(SIDE, SIDE) if k % 2 else (SIDE,) for k in range(COUNT)]
ARRAYS = [RNG.uniform(-1, 1, shape).astype(np.float32) for shape in SHAPES]


def jobs(fn: Callable[..., Any], *args: Any, donated: tuple[int, ...] = ()) -> list[int]:
    """Of each kernel that launches something, the number of its job."""
    found = ts.jit(fn, donate_argnums=donated).lower(*args)
    return [kernel.job for kernel in kernels(found.schedule.body) if kernel.body.ops]


def adam(p: Any, g: Any, m: Any, v: Any) -> Any:
    m = [0.9 * a + 0.1 * b for a, b in zip(m, g, strict=True)]
    v = [0.99 * a + 0.01 * b * b for a, b in zip(v, g, strict=True)]
    return [a - b / (ts.sqrt(c) + 1e-6) for a, b, c in zip(p, m, v, strict=True)], m, v


STATE = [ARRAYS, ARRAYS, ARRAYS, [x * x for x in ARRAYS]]


@pytest.mark.parametrize("donated", [(), (0, 2, 3)])
def test_an_optimizer_is_one_job(donated: tuple[int, ...]) -> None:
    found = jobs(adam, *STATE, donated=donated)
    assert found == [1] * COUNT
    lowered = ts.jit(adam, donate_argnums=donated).lower(*STATE)
    shared = [op for op in walk(lowered.target.entry.body) if isinstance(op, t.Together)]
    assert [len(op.body.ops) for op in shared] == [COUNT]
    assert not [op for op in lowered.target.entry.body.ops if isinstance(op, (t.Call, t.Parallel))]
    assert all("threads share it with 19 others" in str(kernel) for kernel in lowered.kernels())


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_results_do_not_depend_on_threads(threads: int) -> None:
    with ts.config.update(threads=1):
        wanted = ts.jit(adam)(*STATE)
    with ts.config.update(threads=threads):
        f = ts.jit(adam)
        for _ in range(5):
            found = f(*STATE)
            for a, b in zip(ts.pytree.leaves(found), ts.pytree.leaves(wanted), strict=True):
                np.testing.assert_array_equal(np.asarray(a), np.asarray(b))


def test_small_work_is_no_job() -> None:
    assert jobs(adam, *[[x[:3] for x in part] for part in STATE]) == [0] * COUNT


def test_what_needs_a_result_is_not_in_its_job() -> None:
    def chained(xs: Any) -> Any:
        found: list[Any] = []
        for x in xs:
            y = ts.cumsum(x, axis=0)
            found += [ts.cumsum(ts.flip(y), axis=0), y]
        return found

    square = [x for x in ARRAYS if x.ndim == 2]
    assert jobs(chained, square) == COUNT // 2 * [1] + COUNT // 2 * [2]
    found = ts.jit(chained)(square)
    for x, y, z in zip(square, found[1::2], found[::2], strict=True):
        np.testing.assert_allclose(np.asarray(y), np.cumsum(x, axis=0), rtol=1e-3, atol=1e-3)
        wanted = np.cumsum(np.flip(np.asarray(y)), axis=0)
        np.testing.assert_allclose(np.asarray(z), wanted, rtol=1e-3, atol=1e-2)


def test_what_lies_in_the_same_memory_is_not_in_one_job() -> None:
    # Each is dead when the next one is computed, and lies where that lies.
    def totals(xs: Any) -> Any:
        return [ts.sum(ts.sort(x * 2, axis=0)[::7]) for x in xs]

    found = jobs(totals, [x for x in ARRAYS if x.ndim == 2])
    assert not any(found)


def test_a_loop_of_kernels() -> None:
    def steps(xs: Any) -> Any:
        def step(_: Any, state: Any) -> Any:
            return [ts.flip(ts.sin(x)) * 0.5 for x in state]

        return ts.fori_loop(0, 3, step, xs)

    square = [x for x in ARRAYS if x.ndim == 2]
    lowered: Lowered = ts.jit(steps).lower(square)
    (loop,) = [op for op in lowered.schedule.body.ops if isinstance(op, ops.While)]
    assert {kernel.job for kernel in kernels(loop.body) if len(kernel.types) == 1} >= {1}
    found = ts.jit(steps)(square)
    for x, y in zip(square, found, strict=True):
        for _ in range(3):
            x = np.flip(np.sin(x)) * np.float32(0.5)
        np.testing.assert_allclose(np.asarray(y), x, rtol=1e-5)
