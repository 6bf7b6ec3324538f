"""Outputs of a program that goes over much memory in small nests are written past the caches."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import tessera as ts
from tessera.compile import Lowered
from tessera.schedule import streaming
from tessera.target.machine import machine
from tests.differential.levels import check_levels
from tests.schedule.lowering import traced, typed

SHAPES = [(40, 70), (33,), (9, 64), (2800,)]


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Much memory is 64 KB, and a long output 1 KB."""
    monkeypatch.setattr(streaming, "STREAM_BYTES", 1 << 16)
    monkeypatch.setattr(streaming, "LEAST_OUTPUT", 1 << 10)


def step(*arrays: Any) -> tuple[Any, ...]:
    arrays = tuple([ts.asarray(x) for x in arrays])
    half = len(arrays) // 2
    pairs = list(zip(arrays[:half], arrays[half:], strict=True))
    first = [0.9 * m + 0.1 * g for m, g in pairs]
    return (*first, *[g - m / (ts.sqrt(m * m) + 1) for m, (_, g) in zip(first, pairs, strict=True)])


def marks(fn: Any, *arrays: np.ndarray, **options: Any) -> int:
    """How many stores go past the caches."""
    lowered = ts.jit(fn, **options).lower(*arrays)
    return lowered.stage("schedule").count("streaming=1")


def test_a_little_more_than_the_caches_hold_goes_past_them_by_halves() -> None:
    """Of 64 KB: two threads that find no more in them again, one, and two that find more."""

    def part(rows: int, threads: int, keeps: float, fn: Any = lambda x: ts.add(x, 1)) -> int:
        with ts.config.update(threads=threads):
            graph = traced(fn, typed(rows, 1024))
            text = Lowered(graph, replace(machine("host"), keeps=keeps)).stage("schedule")
        found = re.search("streaming=([0-9])", text)
        return int(found[1]) if found else 0

    assert [part(rows, 2, 1.0) for rows in (7, 8, 9, 10, 12)] == [0, 2, 2, 1, 1]
    assert [part(rows, 1, 1.0) for rows in (7, 8, 9, 10, 12)] == [0, 1, 1, 1, 1]
    assert [part(rows, 2, 1.5) for rows in (7, 8, 9, 10, 12)] == [0, 0, 0, 0, 1]
    # Who waits for operations, or turns lines, does not wait for the link to memory.
    others = (ts.softmax, lambda x: ts.matrix_transpose(x) + 1)
    assert [part(9, 2, 1.0, fn) for fn in others] == [1, 1]


def zeros(*shapes: tuple[int, ...]) -> list[np.ndarray]:
    return [np.zeros(shape, np.float32) for shape in shapes]


def test_an_optimizer_of_several_tensors() -> None:
    types = [typed(*shape) for shape in SHAPES * 2]
    rng = np.random.default_rng(2)
    inputs = [rng.standard_normal(t.shape).astype(np.float32) for t in types]
    lowered = check_levels(traced(step, *types), inputs)
    # All but the outputs of 33 elements.
    assert lowered.stage("schedule").count("streaming=1") == 6


def test_little_memory_stays_in_the_caches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streaming, "STREAM_BYTES", 1 << 20)
    assert marks(step, *zeros(*SHAPES * 2)) == 0


def test_what_takes_the_memory_of_an_argument_is_in_the_cache() -> None:
    arrays = zeros(*SHAPES * 2)
    assert marks(step, *arrays, donate_argnums=tuple(range(8))) == 0


def test_what_is_read_again_stays_in_the_caches() -> None:
    def fn(x: Any, y: Any) -> tuple[Any, Any]:
        z = x + 1
        return z, ts.cumulative_sum(z, axis=1) @ y

    assert marks(fn, *zeros((80, 80), (80, 80))) == 0


@pytest.mark.parametrize("fn", [lambda x: ts.exp(x), lambda x: x / ts.sum(x, axis=1)[:, None]])
def test_long_functions_and_rows_are_left_alone(fn: Any) -> None:
    found = ts.jit(lambda *xs: [fn(x) for x in xs]).lower(*zeros((80, 60), (80, 60), (80, 60)))
    assert found.stage("schedule").count("streaming=1") == 0


def decays(w: Any, xs: Any) -> Any:
    def step(h: Any, x: Any) -> Any:
        h = w * h + x
        return h, h

    return ts.scan(step, ts.zeros_like(w), xs)[1]


@pytest.mark.parametrize(
    ("fn", "shapes", "alone", "shared"),
    [
        # 72 KB are as much as one thread leaves to the caches, 96 KB as two do.
        (lambda x: x + 1, [(8, 1152)], 1, 0),
        (lambda x: x.T + 1, [(96, 96)], 1, 0),
        (lambda x: x.T + 1, [(1024, 9)], 1, 1),
        (decays, [(1152,), (8, 1152)], 1, 1),
    ],
    ids=["rows", "squares", "squares of pages", "steps"],
)
def test_what_threads_write_in_each_others_rows_goes_past_the_caches_sooner(
    fn: Any, shapes: list[tuple[int, ...]], alone: int, shared: int
) -> None:
    for keeps, together in ((1.5, shared), (1.0, alone)):
        for threads, expected in ((1, alone), (2, together)):
            with ts.config.update(threads=threads):
                graph = traced(fn, *[typed(*shape) for shape in shapes])
                lowered = Lowered(graph, replace(machine("host"), keeps=keeps))
                assert lowered.stage("schedule").count("streaming=") == expected
