"""Small loops of programs for a GPU become kernels of one block, which compute the same."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any

import numpy as np
import pytest

import tessera as ts
from tessera.compile_gpu import LoweredGpu, lower_on
from tessera.graph.device import device_at
from tessera.ir.walk import walk
from tessera.tile import ops as t
from tests.fake_gpu import FakeBackend, fake_gpu
from tests.tolerance import assert_close

RNG = np.random.default_rng(5)


def normal(*shape: int) -> Any:
    return RNG.standard_normal(shape).astype(np.float32)


@pytest.fixture(scope="module")
def gpu() -> Generator[FakeBackend]:
    with fake_gpu() as found:
        yield found


def leaves(tree: Any) -> tuple[Any, ...]:
    return tree if isinstance(tree, tuple) else (tree,)


def hidden_state(x: Any, w: Any) -> Any:
    """A product, a function, a sum."""
    return ts.fori_loop(0, 5, lambda _, h: ts.tanh(h @ w) + x, x)


def fibonacci(n: Any) -> Any:
    """What is carried changes places."""
    return ts.fori_loop(0, n, lambda _, c: (c[1], c[0] + c[1]), (n * 0, n * 0 + 1))


def collatz(n: Any) -> Any:
    """A branch inside of a loop inside of a loop, whose numbers of rounds are data."""

    def halve(c: Any) -> Any:
        return c[0] // 2, c[1] + 1

    def triple(c: Any) -> Any:
        return ts.cond(c[0] == 1, lambda c: c, lambda c: (3 * c[0] + 1, c[1] + 1), c)

    def step(c: Any) -> Any:
        return triple(ts.while_loop(lambda c: c[0] % 2 == 0, halve, c))

    return ts.while_loop(lambda c: c[0] != 1, step, (n, n * 0))


def newton(x: Any) -> Any:
    """A reduction decides."""

    def far(c: Any) -> Any:
        return ts.max(ts.abs(c * c - x)) > 1e-4

    return ts.while_loop(far, lambda c: 0.5 * (c + x / c), x + 1.0)


def several_blocks(x: Any) -> Any:
    """Rows and their sums, in more than one program each."""
    return ts.fori_loop(0, 3, lambda _, c: c / ts.sum(c, axis=1, keepdims=True) + x, x)


def sorting(x: Any) -> Any:
    """A kernel with steps of its own."""
    return ts.fori_loop(0, 4, lambda i, c: ts.sort(c * -1.5, axis=0) + i, x)


def dynamic_rows(x: Any) -> Any:
    """Reads and writes at places that the counter says."""

    def body(i: Any, c: Any) -> Any:
        return c.at[i].set(ts.cumulative_sum(c[i - 1]) + c[i])

    return ts.fori_loop(1, x.shape[0], body, x)


CASES: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "hidden state": (hidden_state, (normal(4, 16), normal(16, 16))),
    "pipelined": (hidden_state, (normal(16, 64), normal(64, 64) / 8)),
    "fibonacci": (fibonacci, (np.int64(30),)),
    "no round": (fibonacci, (np.int64(0),)),
    "collatz": (collatz, (np.int64(27),)),
    "newton": (newton, (np.abs(normal(40)) + 0.5,)),
    "several blocks": (several_blocks, (np.abs(normal(6, 300)) + 0.1,)),
    "sorting": (sorting, (normal(100, 3),)),
    "dynamic rows": (dynamic_rows, (normal(7, 33),)),
}


def lowered(fn: Callable[..., Any], *args: Any) -> LoweredGpu:
    return lower_on(ts.make_graph(fn)(*args), device_at("cuda", 0))


def loops_on_the_host(program: LoweredGpu) -> int:
    return sum(isinstance(op, t.While) for op in walk(program.tile.entry.body))


@pytest.mark.parametrize("name", CASES)
def test_one_kernel_runs_the_loop(gpu: FakeBackend, name: str) -> None:
    fn, args = CASES[name]
    program = lowered(fn, *args)
    assert loops_on_the_host(program) == 0
    assert any(kernel.startswith("loop_") for kernel in program.tile.funcs)
    for report in program.reports.values():
        report.raise_if_refuted()
    found = ts.jit(fn)(*[ts.device_put(np.asarray(x), "cuda:0") for x in args])
    expected = fn(*[ts.asarray(x) for x in args])
    for a, b in zip(leaves(found), leaves(expected), strict=True):
        assert_close(np.asarray(a), np.asarray(b), length=300, factor=20.0)


def test_the_races_of_a_joined_loop_are_decided(gpu: FakeBackend) -> None:
    program = lowered(*_case("hidden state"))
    report = program.reports[next(n for n in program.tile.funcs if n.startswith("loop_"))]
    races = [v for v in report.verdicts if v.what == "races"]
    assert races
    assert {str(v.outcome.value) for v in races} == {"proved"}


def _case(name: str) -> tuple[Any, ...]:
    fn, args = CASES[name]
    return fn, *args


def test_large_bodies_stay_with_the_host(gpu: FakeBackend) -> None:
    x = np.ones((512, 512), np.float32)
    program = lowered(lambda x: ts.fori_loop(0, 5, lambda _, c: ts.sin(c) + 1.0, x), x)
    assert loops_on_the_host(program) == 1


def test_atomic_updates_stay_with_the_host(gpu: FakeBackend) -> None:
    at = np.array([1, 1, 3])

    def fn(x: Any) -> Any:
        return ts.fori_loop(0, 5, lambda _, c: c.at[at].add(1.0), x)

    program = lowered(fn, np.ones(8, np.float32))
    scatters = [op for f in program.tile.funcs.values() for op in walk(f.body)]
    if any(isinstance(op, t.Scatter) and op.combine is not None for op in scatters):
        assert loops_on_the_host(program) == 1
