"""Searches of numbers that run again where one of them is NaN, at every level."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest

import tessera as ts
from tessera.target.machine import machine
from tests.differential.levels import check_levels
from tests.schedule.lowering import traced, type_of

LEVELS = ["host", "x86-64-v3", "x86-64"]
AGAIN = "unroll=1"
"""What a loop says that most often does not run."""


def check(x: np.ndarray, axis: int = 0, level: str = "host") -> str:
    found = ""
    for fn in (ts.argmax, ts.argmin):
        graph = traced(partial(fn, axis=axis), type_of(x))
        found += str(check_levels(graph, [x], machine=machine(level)).target)
    return found


def numbers(*shape: int, dtype: type = np.float32) -> np.ndarray:
    return np.random.default_rng(0).integers(-9, 9, shape).astype(dtype)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_nan_in_any_column(dtype: type, level: str) -> None:
    x = numbers(67, 150, dtype=dtype)
    x[np.arange(150) * 7 % 67, np.arange(150)] = np.nan
    x[60:, ::3] = np.nan
    assert (AGAIN in check(x, 0, level)) == (machine(level).vector_bits >= 256)
    x = numbers(67, 150, dtype=dtype)
    x[-1, 149] = -np.nan
    check(x, 0, level)


@pytest.mark.parametrize("level", LEVELS)
def test_infinities_zeros_and_ties(level: str) -> None:
    x = numbers(33, 70)
    x[:, 0], x[:, 1], x[:, 2] = np.inf, -np.inf, np.nan
    x[:, 3], x[::2, 4], x[:, 5] = -0.0, -0.0, 0
    x[7, 6], x[9, 6], x[20, 7], x[32, 7] = np.inf, np.inf, -np.inf, -np.inf
    x[0, 8], x[5, 8], x[0, 9], x[1, 9] = np.nan, np.inf, -np.inf, np.nan
    check(x, 0, level)
    check(np.ascontiguousarray(x[:, [0, 1, 3, 4, 5, 6, 7]]), 0, level)


@pytest.mark.parametrize("steps", [1, 2, 7, 8, 9, 16, 17])
def test_numbers_of_steps(steps: int) -> None:
    x = numbers(steps, 40)
    assert (AGAIN in check(x, level="x86-64-v3")) == (steps >= 8)
    x[steps // 2, ::7] = np.nan
    check(x)


@pytest.mark.parametrize("shape", [(3, 20, 300), (2, 16, 1), (2, 16, 5), (1, 9, 17)])
def test_blocks_of_columns(shape: tuple[int, ...]) -> None:
    x = numbers(*shape)
    check(x, 1)
    x.reshape(-1)[::13] = np.nan
    check(x, 1)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_pairs_of_columns(dtype: type) -> None:
    """Whether either is NaN is one bit."""
    for shape in ((8, 11, 2), (3, 16, 4)):
        x = numbers(*shape, dtype=dtype)
        check(x, 1)
        x[1, 7, 1], x[2, 10] = np.nan, np.nan
        check(x, 1)


def test_integers_have_no_nan() -> None:
    assert AGAIN not in check(numbers(50, 70, dtype=np.int32))


@pytest.mark.parametrize("n", [64 * 16, 64 * 9 + 5])
def test_lanes_along_the_search(n: int) -> None:
    x = numbers(5, n)
    x[1, n - 1], x[2, [3, 700 % n]], x[3, 64] = np.nan, np.nan, 99
    check(x, 1)


def test_what_is_computed_and_used_besides() -> None:
    x = numbers(40, 33)
    x[11, 4] = np.nan

    def both(x: Any) -> Any:
        y = ts.where(x > 3, ts.sqrt(x - 5), x)
        return ts.argmax(y, axis=0), ts.max(y, axis=0), ts.argmin(y, axis=0) + ts.argmax(x, axis=0)

    with np.errstate(invalid="ignore"):
        y = np.where(x > 3, np.sqrt(x - 5), x)
    wanted = y.argmax(0), y.max(0), y.argmin(0) + x.argmax(0)
    for found, one in zip(ts.jit(both)(x), wanted, strict=True):
        np.testing.assert_array_equal(np.asarray(found), one)


def test_threads_find_the_same() -> None:
    x = np.random.default_rng(1).normal(size=(512, 2100)).astype(np.float32)
    x[np.arange(0, 512, 5), np.arange(0, 2060, 20)] = np.nan
    f: Any = ts.jit(lambda x: ts.argmax(x, axis=0))
    for threads in (1, 2, 3):
        with ts.config.update(threads=threads):
            np.testing.assert_array_equal(np.asarray(f(x)), x.argmax(0))
