"""Searches along lines that are long enough for blocks, and their extremes, at every level."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest

import tessera as ts
from tessera.compile import Lowered
from tessera.dtypes import DType, bool_, float16, float32, float64, int8, int32, uint8
from tessera.graph import interp as graph_interp
from tessera.runtime.memory import pointer
from tessera.target.machine import machine
from tests.differential.levels import check_levels, compare
from tests.schedule.lowering import traced, type_of

DTYPES = (float32, float64, float16, int8, uint8, int32, bool_)
LENGTHS = (1024, 1279, 1025, 1300)
"""Whole blocks; an end of as many steps as a block; one element more; a block that is shorter."""


def check(x: np.ndarray, level: str = "host") -> None:
    dtype = next(d for d in DTYPES if d.np == x.dtype)
    for fn in (ts.argmax, ts.argmin):
        lowered = check_levels(traced(partial(fn, axis=1), type_of(x)), [x], machine=machine(level))
        assert str(lowered.tile).count("tile.for(") >= (2 if dtype.is_float else 1)  # blocks, NaN


def special(n: int) -> np.ndarray:
    """Rows of infinities, zeros, ties and NaN at the ends of blocks."""
    x = np.random.default_rng(1).normal(size=(9, n)).astype(np.float32)
    x[1, [n - 1, 300, 255]] = np.nan
    x[2, 700] = -np.float32(np.nan)
    x[3], x[4] = -np.inf, np.inf
    x[5] = -0.0
    x[5, n // 2 :] = 0.0
    x[6] = 3
    x[6, n - 1], x[7, 0], x[8, n - 1] = 4, 9, 9
    return x


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_dtypes(dtype: DType) -> None:
    x = np.random.default_rng(0).integers(0, 100, (3, 4100))
    check((x > 98).astype(dtype.np) if dtype is bool_ else x.astype(dtype.np))


@pytest.mark.parametrize("level", ["host", "x86-64-v3", "x86-64"])
@pytest.mark.parametrize("n", LENGTHS)
def test_special_values(n: int, level: str) -> None:
    check(special(n), level)


@pytest.mark.parametrize("level", ["host", "x86-64-v3", "x86-64"])
@pytest.mark.parametrize("n", [63, 64, 65, 127, 128, 200, 255, 384, 385, 449, 513, 700])
def test_lines_of_few_steps(n: int, level: str) -> None:
    """The last step begins where it ends with the line, so some elements are read twice.

    Compiled code goes over lines with an extreme at each place; interpreters over some of them."""
    rng = np.random.default_rng(n)
    x = rng.integers(0, 9, (2 * n + 4, n)).astype(np.float32)
    x[np.arange(n), np.arange(n)] = np.nan
    x[np.arange(n), (np.arange(n) * 7 + n // 2) % n] = np.nan
    x[n + np.arange(n), np.arange(n)] = 9
    x[-1], x[-2], x[-3], x[-4] = np.nan, -np.inf, np.inf, 0
    x[-4, ::2] = -0.0
    some = [*rng.choice(2 * n, 20, replace=False), *range(2 * n, 2 * n + 4)]
    for fn, one in ((ts.argmax, x), (ts.argmin, -x)):
        few = one[some]
        check_levels(traced(partial(fn, axis=1), type_of(few)), [few], machine=machine(level))
        graph = traced(partial(fn, axis=1), type_of(one))
        found = Lowered(graph, machine(level)).executable().run([pointer(one)], [])
        compare(found, graph_interp.run(graph, [one]), "native")


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("n", [100, 130, 700])
def test_dtypes_of_few_steps(n: int, dtype: DType) -> None:
    x = np.random.default_rng(0).integers(0, 100, (9, n))
    x = (x > 98).astype(dtype.np) if dtype is bool_ else x.astype(dtype.np)
    for fn in (ts.argmax, ts.argmin):
        check_levels(traced(partial(fn, axis=1), type_of(x)), [x])


def test_values_that_are_computed() -> None:
    x = special(1300)
    found: Any = ts.jit(lambda x: ts.argmax(ts.cos(x) * 2, axis=1))(x)
    with np.errstate(invalid="ignore"):
        np.testing.assert_array_equal(np.asarray(found), np.cos(x).argmax(1))


@pytest.mark.parametrize("n", [1 << 16, (1 << 16) + 5, 10**6])
def test_arrays_as_a_whole(n: int) -> None:
    x = np.random.default_rng(2).normal(size=n).astype(np.float32)
    for at in (0, n // 3, n - 1):
        x[at] += 10
        assert int(ts.jit(ts.argmax)(x)) == x.argmax()
        assert int(ts.jit(ts.argmin)(-x)) == x.argmax()


@pytest.mark.parametrize("level", ["host", "x86-64-v3", "x86-64"])
@pytest.mark.parametrize("n", LENGTHS)
def test_extremes(n: int, level: str) -> None:
    x = np.concatenate([special(n), np.full((3, n), np.nan, np.float32)])
    x[10, : n // 2], x[11, n - 1] = 1, 2
    for at, row in zip((0, 31, 32, 63, n - 1), x[[0, 4, 5, 6, 8]], strict=True):
        row[at] = np.nan
    for fn in (ts.max, ts.min):
        check_levels(traced(partial(fn, axis=1), type_of(x)), [x], machine=machine(level))


@pytest.mark.parametrize("n", [1024, 1300])
def test_extremes_of_each_lane(n: int) -> None:
    """A NaN anywhere is one of its row alone."""
    x = np.random.default_rng(3).normal(size=(n, n)).astype(np.float32)
    x[np.arange(n), np.arange(n)] = np.nan
    x[::5, ::1] = 1
    both: Any = ts.jit(lambda x: (ts.max(x, axis=1), ts.min(x, axis=1), ts.sum(x, axis=1)))(x)
    np.testing.assert_array_equal(np.asarray(both[0]), x.max(1))
    np.testing.assert_array_equal(np.asarray(both[1]), x.min(1))
    np.testing.assert_array_equal(np.isnan(np.asarray(both[2])), np.isnan(x.sum(1)))
    wide: Any = ts.jit(lambda x: ts.max(x, axis=1))(x.astype(np.float64))
    np.testing.assert_array_equal(np.asarray(wide), x.max(1))
