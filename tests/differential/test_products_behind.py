"""Loops that add up products of what is stacked: one product behind the loop."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tessera as ts
from tessera import dtypes as dt
from tessera.compile import Lowered
from tessera.graph.ops.contract import DotGeneral
from tessera.graph.ops.scan import Scan
from tessera.graph.passes.simplify import inline_calls
from tessera.ir.walk import walk
from tessera.schedule.products_behind import products_behind
from tessera.target.machine import machine
from tests.differential.levels import check_levels, graph_of, values

TIME, BATCH, ROWS, COLUMNS = 7, 3, 9, 12
SHAPES = [(TIME, BATCH, ROWS), (TIME, BATCH, COLUMNS), (ROWS, COLUMNS)]


def products(fn: Any, shapes: Any = SHAPES) -> tuple[int, int]:
    """Products in the loops of a program and behind them, which is right at all levels."""
    graph = graph_of(fn, shapes)
    return counted(check_levels(graph, values(shapes), machine=machine("x86-64-v3")))


def counted(lowered: Lowered) -> tuple[int, int]:
    """Products in the loops of a program and behind them, after the pass."""
    block = products_behind(inline_calls(lowered.graph.body))
    loops = [one for one in block.ops if isinstance(one, Scan)]
    inside = [one for loop in loops for one in walk(loop.body) if isinstance(one, DotGeneral)]
    return len(inside), sum(isinstance(one, DotGeneral) for one in block.ops)


def sums(x: Any, y: Any, start: Any, reverse: bool = False) -> Any:
    """A sum of products of what is read and of what is stacked."""

    def step(total: Any, row: Any) -> Any:
        a, b = row
        z = ts.tanh(b)
        return total + a.T @ z, z

    return ts.scan(step, start, (x, y), reverse=reverse)


@pytest.mark.parametrize("reverse", [False, True])
def test_a_sum_of_products(reverse: bool) -> None:
    assert products(lambda *args: sums(*args, reverse=reverse)) == (0, 1)


def test_several_of_which_one_stays() -> None:
    def fn(x: Any, y: Any, start: Any) -> Any:
        def step(carry: Any, row: Any) -> Any:
            (first, second, third), (a, b) = carry, row
            first = first + a.T @ b
            third = b.T @ b + third
            # What it is of is not stacked, and a later step needs it.
            second = second + ts.sin(a).T @ b + ts.sum(second)
            return (first, second, third), None

        zero = ts.zeros((COLUMNS, COLUMNS))
        return ts.scan(step, (start, start, zero), (x, y))[0]

    assert products(fn) == (1, 2)


def test_batches() -> None:
    shapes = [(TIME, 2, BATCH, ROWS), (TIME, 2, BATCH, COLUMNS), (2, ROWS, COLUMNS)]

    def fn(x: Any, y: Any, start: Any) -> Any:
        def step(total: Any, row: Any) -> Any:
            return total + ts.einsum("bki,bkj->bij", *row), None

        return ts.scan(step, start, (x, y))[0]

    assert products(fn, shapes) == (0, 1)


def test_gradient_of_a_recurrent_cell() -> None:
    def loss(w: Any, x: Any) -> Any:
        def cell(h: Any, row: Any) -> Any:
            h = ts.tanh(h @ w + row)
            return h, h

        return ts.sum(ts.square(ts.scan(cell, ts.zeros_like(x[0]), x)[1]))

    shapes = [(COLUMNS, COLUMNS), (TIME, BATCH, COLUMNS)]
    # The cell's product, that of its gradient, and behind the loop the one for the weights.
    assert products(ts.grad(loss, argnums=(0, 1)), shapes) == (2, 1)


@pytest.mark.parametrize("what", ["order", "one step", "seen", "stacked", "integers", "narrow"])
def test_what_stays(what: str) -> None:
    length = 1 if what == "one step" else TIME
    dtype = {"integers": dt.int32, "narrow": dt.bfloat16}.get(what, dt.float32)

    def fn(x: Any, y: Any, start: Any) -> Any:
        x, y, start = [ts.astype(one, dtype) for one in (x, y, start)]

        def step(total: Any, row: Any) -> Any:
            a, b = row
            new = total + a.T @ b
            seen = total if what == "seen" else new if what == "stacked" else None
            return new, seen

        total, stacks = ts.scan(step, start, (x, y))
        return total if stacks is None else (total, stacks)

    made = ts.deterministic(fn) if what == "order" else fn
    graph = graph_of(made, [(length, BATCH, ROWS), (length, BATCH, COLUMNS), (ROWS, COLUMNS)])
    assert counted(Lowered(graph, machine("x86-64-v3"))) == (1, 0)


def test_threads_do_not_change_a_bit() -> None:
    rng = np.random.default_rng(0)
    x, y = [rng.standard_normal((50, 32, n)).astype(np.float32) for n in (64, 128)]
    f = ts.jit(lambda x, y: sums(x, y, ts.zeros((64, 128)))[0])
    found: list[bytes] = []
    for threads in (1, 2, 3):
        with ts.config.update(threads=threads):
            found.append(np.asarray(f(x, y)).tobytes())
    assert len(set(found)) == 1
    wanted = np.einsum("tki,tkj->ij", x.astype(np.float64), np.tanh(y.astype(np.float64)))
    np.testing.assert_allclose(np.asarray(f(x, y)), wanted, atol=1e-3)
