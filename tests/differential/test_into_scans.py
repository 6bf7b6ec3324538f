"""Elementwise work that scans take into their steps: at every level, the bits of work before."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tessera as ts
from tessera.compile import Lowered
from tessera.ir.core import Func
from tessera.runtime.memory import pointer
from tessera.schedule import loop_ops, prepare
from tessera.target.machine import machine, supported_levels
from tests.differential.levels import check_levels, graph_of
from tests.schedule.lowering import all_ops

LEVELS = [name for name in ("x86-64", "x86-64-v3", "x86-64-v4") if name in supported_levels()]
TIME, WIDTH = 9, 67
SHAPES = ((WIDTH,), (TIME, WIDTH), (TIME, WIDTH))


def last(w: Any, x: Any, reverse: bool = False) -> Any:
    """h = w h + x: all of h."""

    def step(h: Any, row: Any) -> Any:
        h = w * h + row
        return h, h

    return ts.scan(step, ts.zeros_like(w), x, reverse=reverse)[1]


def check(
    fn: Callable[..., Any], *shapes: tuple[int, ...], level: str = "x86-64-v3", fewer: int = 1
) -> None:
    """Runs a program at all levels, and compares it with the one whose scans are left alone, which
    has more kernels."""
    graph = graph_of(fn, shapes)
    rng = np.random.default_rng(3)
    inputs = [rng.standard_normal(shape).astype(np.float32) for shape in shapes]
    lowered = check_levels(graph, inputs, machine=machine(level))
    found, count = run(graph, inputs)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(prepare, "into_scans", lambda block: block)
        other, more = run(graph, inputs)
    for a, b in zip(found, other, strict=True):
        np.testing.assert_array_equal(a.view(np.uint8), b.view(np.uint8))
    assert more - count == fewer
    assert all_ops(lowered.schedule, loop_ops.Recur)


def run(graph: Func, inputs: list[np.ndarray]) -> tuple[list[np.ndarray], int]:
    """The results, and how many kernels it takes."""
    lowered = Lowered(graph, machine("host"))
    found = lowered.executable().run([pointer(x) for x in inputs])
    count = sum(kernel.count for kernel in lowered.kernels())
    return [np.atleast_1d(np.asarray(x)) for x in found], count


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("reverse", [False, True])
def test_what_is_computed_before_a_loop(level: str, reverse: bool) -> None:
    def fn(w: Any, x: Any, y: Any) -> Any:
        return last(w, 2 * x * y - w, reverse)

    check(fn, *SHAPES, level=level)


def test_the_derivative_of_a_mean_of_squares() -> None:
    """The loop backwards reads what the loop forwards has written."""

    def fn(w: Any, x: Any) -> Any:
        return ts.value_and_grad(lambda w: ts.mean(last(w, x) ** 2))(w)

    check(fn, *SHAPES[:2], fewer=0)  # the factor is a kernel in place of the product
    lowered = ts.jit(fn).lower(*[np.ones(shape, np.float32) for shape in SHAPES[:2]])
    assert [kernel.label for kernel in lowered.kernels()].count("mul") == 0


def test_conversions_and_several_operands() -> None:
    def fn(w: Any, x: Any, y: Any) -> Any:
        a, b = ts.abs(x), ts.astype(ts.astype(y, ts.int32), ts.float32)

        def step(h: Any, row: Any) -> Any:
            p, q, r = row
            h = w * h + p - q * r
            return h, h

        return ts.scan(step, ts.zeros_like(w), (a, x, b + 1))[1]

    check(fn, *SHAPES, fewer=2)


@pytest.mark.parametrize(
    ("fn", "fewer"),
    [
        (lambda w, x, y: last(w, ts.exp(x)), 0),  # a long function
        (lambda w, x, y: last(w, x + ts.expand_dims(y[:, 0], axis=1)), 0),  # differs by steps
        (lambda w, x, y: (last(w, x + y), ts.sum(x + y)), 0),  # is needed elsewhere
        (lambda w, x, y: last(w[:8], x[:, :8] + y[:, :8]), 0),  # few columns
        (lambda w, x, y: last(w, x - 1.5), 1),
    ],
)
def test_what_stays_outside_and_what_does_not(fn: Any, fewer: int) -> None:
    check(fn, *SHAPES, fewer=fewer)


def test_steps_that_need_other_elements_are_left_alone() -> None:
    def fn(m: Any, x: Any, y: Any) -> Any:
        def step(h: Any, row: Any) -> Any:
            h = h @ m + row
            return h, h

        return ts.scan(step, ts.zeros((WIDTH,)), x * y)[1]

    shapes = ((WIDTH, WIDTH), *SHAPES[1:])
    graph = graph_of(fn, shapes)
    rng = np.random.default_rng(3)
    inputs = [rng.standard_normal(shape).astype(np.float32) / 8 for shape in shapes]
    check_levels(graph, inputs, machine=machine("x86-64-v3"))
