"""What is taken out of loops: `graph/passes/loops.py`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tessera as ts
from tessera.graph.ops.contract import DotGeneral
from tessera.graph.ops.control import While
from tessera.graph.ops.scan import Scan
from tessera.ir.core import Op
from tessera.ir.walk import walk
from tests.tolerance import assert_close

RNG = np.random.default_rng(3)


def ops(fn: Callable[..., Any], *args: Any) -> list[Op]:
    return ts.jit(fn).lower(*args).graph.ops


def assert_all_close(actual: Any, expected: Any, *, length: int) -> None:
    for a, b in zip(ts.pytree.leaves(actual), ts.pytree.leaves(expected), strict=True):
        assert_close(a, b, length=length)


def numbers(*shape: int) -> Any:
    return ts.asarray(RNG.standard_normal(shape).astype(np.float32))


@pytest.mark.parametrize("length", [0, 1, 2, 7])
def test_products_of_what_no_step_changes(length: int) -> None:
    x, w, v = numbers(8, 64), numbers(64, 16), numbers(8, 16)

    def f(x: Any, w: Any, v: Any) -> Any:
        def step(c: Any, i: Any) -> Any:
            return ts.tanh(c + x @ w), ts.sum(ts.exp(w), axis=0) * i

        return ts.scan(step, v, ts.arange(length, dtype=ts.float32))

    def by_hand(x: Any, w: Any, v: Any) -> Any:
        rows = [ts.zeros((0, 16))]
        for i in range(length):
            v = ts.tanh(v + x @ w)
            rows.append(ts.sum(ts.exp(w), axis=0)[None] * i)
        return v, ts.concat(rows)

    assert_all_close(ts.jit(f)(x, w, v), by_hand(x, w, v), length=64)
    found = ops(f, x, w, v)
    if length > 1:
        assert sum(isinstance(op, DotGeneral) for op in found) == 1
    (loop,) = [op for op in found if isinstance(op, Scan)]
    inside = any(isinstance(op, DotGeneral) for op in walk(loop.body))
    assert inside == (length <= 1)


def test_gradients_are_the_same() -> None:
    x, w, v = numbers(8, 64), numbers(64, 16), numbers(8, 16)

    def f(x: Any, w: Any, v: Any) -> Any:
        def step(c: Any, i: Any) -> Any:
            params, c = c
            c = ts.tanh(c + ts.sin(params @ w) * 0.1) * (1 + i)
            return (params, c), ts.sum(c)

        (_, c), ys = ts.scan(step, (x, v), ts.arange(5, dtype=ts.float32) * 0.1)
        return ts.sum(ys) + ts.sum(c)

    ours = ts.jit(ts.grad(f, argnums=(0, 1, 2)))(x, w, v)
    assert_all_close(ours, ts.grad(f, argnums=(0, 1, 2))(x, w, v), length=512)


def test_one_is_made_of_another() -> None:
    x, w, v = numbers(8, 64), numbers(64, 16), numbers(16, 16)

    def f(x: Any, w: Any, v: Any) -> Any:
        def step(c: Any, i: Any) -> Any:
            y = x @ w
            return ts.cos(c + y) @ v + ts.tanh(y @ v), None

        return ts.scan(step, ts.zeros((8, 16)), ts.arange(6))[0]

    (loop,) = [op for op in ops(f, x, w, v) if isinstance(op, Scan)]
    assert sum(isinstance(op, DotGeneral) for op in walk(loop.body)) == 1
    assert_close(ts.jit(f)(x, w, v), f(x, w, v), length=64)


def test_loops_in_loops_hand_it_out_of_both() -> None:
    x, w, v = numbers(8, 64), numbers(64, 16), numbers(8, 16)

    def f(x: Any, w: Any, v: Any) -> Any:
        def outer(i: Any, c: Any) -> Any:
            return ts.fori_loop(0, 4, lambda j, c: ts.cos(c) + x @ w, c) * 0.5

        return ts.fori_loop(0, 3, outer, v)

    found = ops(f, x, w, v)
    assert sum(isinstance(op, DotGeneral) for op in found) == 1
    assert_close(ts.jit(f)(x, w, v), f(x, w, v), length=64)


@pytest.mark.parametrize("limit", [-5.0, 3.0])
def test_a_loop_that_does_not_run_gives_what_it_was_given(limit: float) -> None:
    x, v = numbers(64, 64), numbers(64)

    def f(x: Any, v: Any, limit: Any) -> Any:
        def body(c: Any) -> Any:
            return c[0] + 1, c[1] + ts.sum(ts.exp(x), axis=0), c[2]

        return ts.while_loop(lambda c: c[0] < limit, body, (ts.asarray(0.0), v, x))

    ours = ts.jit(f)(x, v, limit)
    assert_all_close(ours, f(x, v, limit), length=64)
    assert np.array_equal(np.asarray(ours[2]), np.asarray(x))
    (loop,) = [op for op in ops(f, x, v, limit) if isinstance(op, While)]
    assert len(loop.init) == 2


def test_what_has_effects_stays(capsys: pytest.CaptureFixture[str]) -> None:
    x = numbers(64, 64)

    def f(x: Any) -> Any:
        def step(c: Any, i: Any) -> Any:
            total = ts.sum(x * 0)
            ts.debug.print("total {}", total)
            return c + total, i

        return ts.scan(step, ts.asarray(0.0), ts.arange(3))[0]

    assert float(ts.jit(f)(x)) == 0
    assert capsys.readouterr().out.count("total 0") == 3


def test_carried_values_of_one_another_that_nobody_reads() -> None:
    """Two that only make each other are left out; what makes one that is read is not."""
    x = numbers(300)

    def f(x: Any) -> Any:
        def step(c: Any, v: Any) -> Any:
            a, b, c, d = c
            return (b + v, a * v, c + d, d * v), c - v

        _, _, c, _ = ts.scan(step, (x[0], x[1], x[2], x[3]), x)[0]
        return c

    (loop,) = [op for op in ops(f, x) if isinstance(op, Scan)]
    assert (len(loop.init), len(loop.results)) == (2, 2)
    assert_close(ts.jit(f)(x), f(x), length=300)
