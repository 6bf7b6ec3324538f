"""Loops whose steps sum over points, cut in two: one nest for what they carry, and the sums."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tessera as ts
from tessera.compile import Lowered
from tessera.ir.walk import walk
from tessera.schedule import cut_scans, loop_ops, ops
from tessera.target.machine import machine, supported_levels
from tests.differential.levels import check_levels, graph_of, values

LEVELS = [name for name in ("x86-64", "x86-64-v3", "x86-64-v4") if name in supported_levels()]
TIME, BATCH, CHANNELS, STATES = 6, 2, 20, 3
SHAPES = [(TIME, BATCH, CHANNELS), (CHANNELS, STATES), (TIME, BATCH, STATES)]


def check(fn: Any, cut: bool = True, level: str = "x86-64-v3", shapes: Any = SHAPES) -> Lowered:
    lowered = check_levels(graph_of(fn, shapes), values(shapes), machine=machine(level))
    kinds = [type(op) for op in walk(lowered.schedule.body)]
    assert (loop_ops.Recur in kinds, ops.While in kinds) == (cut, not cut)
    return lowered


def gradient(x: Any, a: Any, b: Any, reverse: bool = True) -> Any:
    """Sums over channels of what is carried and of what is not, over examples, and over states."""

    def step(carry: Any, row: Any) -> Any:
        g, total = carry
        x, b = row
        g = ts.cos(x)[:, :, None] * g + b[:, None, :]
        seen = x[:, :, None] * a
        given = ts.sum(g * seen, axis=1), ts.sum(seen * b[:, None, :], axis=1), ts.sum(g, axis=-1)
        return (g, total + ts.sum(g * seen, axis=0)), given

    zero = ts.zeros((*x.shape[1:], a.shape[1]), dtype=x.dtype)
    (g, total), ys = ts.scan(step, (zero, a), (x, b), reverse=reverse)
    return g, total, *ys


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("reverse", [False, True])
def test_sums_behind_a_loop(level: str, reverse: bool) -> None:
    check(lambda *args: gradient(*args, reverse=reverse), level=level)


def test_what_is_computed_of_sums() -> None:
    def fn(x: Any, a: Any, b: Any) -> Any:
        def step(h: Any, row: Any) -> Any:
            h = ts.sin(h) + row
            return h, (ts.max(h, axis=0) * ts.sum(a), row - ts.mean(h, axis=(0, 1), keepdims=True))

        return ts.scan(step, ts.zeros_like(x[0]), x)[1]

    check(fn)


def test_what_stays_a_loop_of_kernels() -> None:
    def fed_back(x: Any, a: Any, b: Any) -> Any:
        return ts.scan(lambda h, row: (h * ts.sum(h, axis=0) + row, h), x[0], x)[1]

    def numbered(x: Any, a: Any, b: Any) -> Any:
        def step(i: Any, carry: Any) -> Any:
            h, total = carry
            return ts.sin(h) + x[0], total * ts.astype(i, x.dtype) + ts.sum(h)

        return ts.fori_loop(0, TIME, step, (x[1], ts.zeros((), dtype=x.dtype)))

    def read_again(x: Any, a: Any, b: Any) -> Any:
        def step(carry: Any, row: Any) -> Any:
            h, total = carry
            return (ts.sin(h) + row, total + ts.sum(h, axis=0)), total

        return ts.scan(step, (x[0], x[0, 0]), x)

    for fn in (fed_back, numbered, read_again):
        check(fn, cut=False)


def test_too_much_to_store(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cut_scans, "MOST_BYTES", TIME * BATCH * CHANNELS * STATES * 4 - 1)
    check(gradient, cut=False)
    monkeypatch.setattr(cut_scans, "MOST_BYTES", TIME * BATCH * CHANNELS * STATES * 4)
    check(gradient)


def test_the_gradient_of_a_selective_scan() -> None:
    """For all arguments, in one step of central differences each."""

    def loss(x: Any, d: Any, a: Any, b: Any) -> Any:
        def step(h: Any, row: Any) -> Any:
            x, d, b = row
            h = ts.exp(-(d**2)[:, :, None] * a**2) * h + (d * x)[:, :, None] * b[:, None, :]
            return h, ts.sum(h * b[:, None, :], axis=-1)

        zero = ts.zeros((*x.shape[1:], a.shape[1]), dtype=x.dtype)
        return ts.mean(ts.scan(step, zero, (x, d, b))[1] ** 2)

    shapes = [SHAPES[0], *SHAPES]
    given = [np.asarray(v, np.float64) / 3 for v in values(shapes)]
    lowered = ts.jit(ts.grad(loss, argnums=(0, 1, 2, 3))).lower(*given)
    assert not any(isinstance(op, ops.While) for op in walk(lowered.schedule.body))
    found = ts.jit(ts.grad(loss, argnums=(0, 1, 2, 3)))(*given)
    f, step = ts.jit(loss), 1e-5
    rng = np.random.default_rng(3)
    for k, x in enumerate(given):
        along = rng.standard_normal(x.shape)
        ends = [f(*given[:k], x + s * step * along, *given[k + 1 :]) for s in (1, -1)]
        expected = (float(ends[0]) - float(ends[1])) / (2 * step)
        np.testing.assert_allclose(np.sum(np.asarray(found[k]) * along), expected, rtol=1e-6)
