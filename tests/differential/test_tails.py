"""What is left at the ends of rows: vectors, halves and quarters of one are read and written as
they are, anything else under a mask, and nothing beyond."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import scipy.special

import tessera as ts
from tessera import dtypes as dt
from tessera.compile import Lowered
from tessera.dtypes import DType
from tessera.target.machine import machine, supported_levels
from tests.differential.levels import check_levels, graph_of, values
from tests.pairs import every_pair

LEVELS = [name for name in ("x86-64", "x86-64-v3", "x86-64-v4") if name in supported_levels()]


def both(x: Any) -> Any:
    return ts.flip(x, axis=0) * 2 + 1, ts.max(x, axis=1)


def check(columns: int, dtype: DType, level: str) -> Lowered:
    shapes = ((3, columns),)
    inputs = values(shapes, dtype)
    return check_levels(graph_of(both, shapes, dtype), inputs, machine=machine(level))


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("columns", [4, 7, 8, 12, 20, 24, 40, 56, 57, 60, 100, 104])
def test_columns(columns: int, level: str) -> None:
    check(columns, dt.float32, level)


@pytest.mark.parametrize("dtype", [dt.float64, dt.int32, dt.int8, dt.float16, dt.bool_])
@pytest.mark.parametrize("columns", [10, 12, 20, 56])
def test_dtypes(columns: int, dtype: DType) -> None:
    def flipped(x: Any) -> Any:
        return ts.flip(x, axis=0)

    shapes = ((3, columns),)
    inputs = [x > 0 if dtype is dt.bool_ else x for x in values(shapes, dt.float32)]
    inputs = [x.astype(dtype.np) for x in inputs]
    for level in LEVELS:
        check_levels(graph_of(flipped, shapes, dtype), inputs, machine=machine(level))


@pytest.mark.unchecked
@pytest.mark.parametrize(("columns", "masked"), [(56, False), (36, False), (57, True), (34, True)])
def test_masks(columns: int, masked: bool) -> None:
    graph = graph_of(lambda x: ts.flip(x, axis=0) + 1, ((3, columns),), dt.float32)
    assert ("llvm.masked" in Lowered(graph, machine("x86-64-v4")).llvm) is masked


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("dtype", [dt.float32, dt.float64, dt.int64])
@pytest.mark.parametrize(("columns", "width"), [(26, 29), (26, 32), (49, 57), (7, 16)])
def test_parts_of_rows_that_are_outside(columns: int, width: int, dtype: DType, level: str) -> None:
    """What masks a whole vector masks others in part. LLVM 22 read such a vector without a mask,
    or ended the process, where it saw late that none of its lanes is inside."""
    widths = ((0, 0), (2, 1), (1, width - columns - 1))
    shapes = ((2, 3, columns),)
    graph = graph_of(lambda x: ts.pad(x, widths, constant_values=7), shapes, dtype)
    check_levels(graph, values(shapes, dtype), machine=machine(level))


@pytest.mark.parametrize("columns", [56, 104, 1000])
def test_accesses_are_checked(columns: int) -> None:
    x = np.arange(5.0 * columns, dtype=np.float32).reshape(5, columns)
    with ts.config.update(debug_bounds=True):
        found = ts.jit(lambda x: both(x))(x)
    for one, other in zip(found, (x[::-1] * 2 + 1, x.max(axis=1)), strict=True):
        np.testing.assert_array_equal(one, other)


def long(x: Any) -> Any:
    """So long that the lanes at the end are a turn of its loop."""
    return ts.digamma(x * x + 1)


def long_rows(x: Any) -> Any:
    return long(x) - ts.mean(x, axis=1, keepdims=True)


@every_pair(
    ("level", LEVELS),
    ("fn", [long, long_rows, lambda x: long(x.T)]),
    ("columns", [0, 1, 15, 31, 32, 33, 63, 64, 65, 100]),
)
def test_long_functions(columns: int, fn: Callable[[Any], Any], level: str) -> None:
    shapes = ((3, columns),)
    check_levels(graph_of(fn, shapes, dt.float32), values(shapes), machine=machine(level))


@pytest.mark.parametrize("dtype", [dt.float64, dt.bfloat16, dt.float16])
@pytest.mark.parametrize("columns", [33, 77])
def test_long_functions_of_other_dtypes(columns: int, dtype: DType) -> None:
    shapes = ((3, columns),)
    check_levels(graph_of(long, shapes, dtype), values(shapes, dtype), machine=machine(LEVELS[-1]))


@pytest.mark.parametrize("rows", [1, 40])
def test_a_long_function_is_written_down_once(rows: int) -> None:
    lowered = Lowered(graph_of(long, ((rows, 1003),), dt.float32), machine(LEVELS[-1]))
    assert str(lowered.tile).count("fn=digamma") == 1
    lowered = Lowered(graph_of(ts.exp, ((rows, 1003),), dt.float32), machine(LEVELS[-1]))
    assert str(lowered.tile).count("fn=exp") == 2


@pytest.mark.parametrize("size", [5, 1003, 70001])
def test_long_functions_are_the_same_for_any_number_of_threads(size: int) -> None:
    x = np.random.default_rng(1).normal(size=(2, size)).astype(np.float32)
    found: list[np.ndarray] = []
    for threads in (1, 2, 5):
        with ts.config.update(threads=threads):
            found.append(np.asarray(ts.jit(lambda x: long(x))(x)))
    expected = scipy.special.digamma(x.astype(np.float64) ** 2 + 1)
    np.testing.assert_allclose(found[0], expected, rtol=1e-5, atol=1e-5)
    assert all(np.array_equal(found[0], one) for one in found)


def test_accesses_of_long_functions_are_checked() -> None:
    x = np.linspace(1, 2, 1003, dtype=np.float32)
    with ts.config.update(debug_bounds=True):
        found = ts.jit(lambda x: long(x))(x)
    np.testing.assert_array_equal(found, ts.jit(lambda x: long(x))(x))


@every_pair(
    ("level", LEVELS),
    ("dtype", [dt.float32, dt.float64, dt.int8]),
    ("shape", [(16, 17), (33, 100), (15, 40), (40, 15), (1, 77)]),
)
def test_squares_begin_early_enough(shape: tuple[int, int], dtype: DType, level: str) -> None:
    graph = graph_of(lambda x: x.T + 1, (shape,), dtype)
    check_levels(graph, values((shape,), dtype), machine=machine(level))


def test_a_square_is_written_down_once() -> None:
    shapes = ((1001, 333),) * 2
    lowered = Lowered(graph_of(lambda x, y: x.T + 1, shapes, dt.float32), machine(LEVELS[-1]))
    assert str(lowered.tile).count("tile.load") == 1
    lowered = Lowered(graph_of(lambda x, y: x + y.T, ((333, 1001), shapes[0]), dt.float32))
    assert str(lowered.tile).count("tile.load") == 8  # the result may lie where x does


@pytest.mark.parametrize("shape", [(333, 1001), (40, 17)])
def test_points_are_not_done_twice_in_place(shape: tuple[int, int]) -> None:
    rng = np.random.default_rng(2)
    x, y = rng.normal(size=shape[::-1]), rng.normal(size=shape)
    f = ts.jit(lambda x, y: x.T + y, donate_argnums=1)
    np.testing.assert_array_equal(f(x, ts.asarray(y.copy())), x.T + y)
