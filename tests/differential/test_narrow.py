"""Arrays of few columns have lanes along their rows, and agree at every level."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tessera as ts
from tessera.dtypes import DType, bfloat16, float32, float64, int8, int32
from tessera.ir.intexpr import sym
from tessera.ir.walk import walk
from tessera.schedule import ops
from tessera.target.machine import machine
from tests.differential.levels import check_levels, graph_of, values
from tests.pairs import every_pair


def stencil(x: Any) -> Any:
    wide = ts.pad(x, [(1, 1), (0, 0)])
    return ts.log1p(ts.abs(wide[:-2] + wide[2:] - 2 * x))


def shifted(x: Any) -> Any:
    return ts.sin(x - x[0])


def upside_down(x: Any) -> Any:
    return ts.tanh(ts.flip(x, axis=0))


def running(x: Any) -> Any:
    return ts.cumulative_sum(ts.sin(x), axis=1)


def running_maximum(x: Any) -> Any:
    return ts.cummax(ts.exp(x), axis=1)


def down(x: Any) -> Any:
    return ts.cumulative_sum(ts.tanh(x), axis=0)


def norm(x: Any) -> Any:
    centred = x - ts.mean(x, axis=0)
    return centred / ts.sqrt(ts.mean(centred * centred, axis=0) + 1e-5)


def largest(x: Any) -> Any:
    return ts.argmax(norm(x), axis=0), ts.min(x, axis=0)


def part(x: Any) -> Any:
    return ts.sum(x[:, 1:], axis=0), ts.exp(x[1:, :-1])


def pairs(x: Any) -> Any:
    return ts.log1p(ts.abs(ts.sum(ts.stack([x, x[::-1]], axis=1), axis=1) + x[:, ::-1]))


def neighbours(x: Any) -> Any:
    rows = ts.reshape(x[: x.shape[0] // 2 * 2], (-1, 2, x.shape[1]))
    return ts.log1p(ts.abs(ts.sum(ts.flip(rows, axis=2), axis=1)))


PROGRAMS = (stencil, shifted, upside_down, running, running_maximum, down, norm, largest, part)


def reasons(fn: Callable[..., Any], shape: tuple[int, ...], level: str = "x86-64-v4") -> str:
    lowered = check_levels(graph_of(fn, [shape]), values([shape]), machine=machine(level))
    return " | ".join([op.reason for op in walk(lowered.schedule.body) if isinstance(op, ops.Nest)])


@every_pair(
    ("columns", [2, 3, 4, 5, 8]),
    ("rows", [1, 2, 15, 16, 17, 300]),
    ("fn", [*PROGRAMS, pairs, neighbours]),
)
def test_programs(fn: Callable[..., Any], rows: int, columns: int) -> None:
    check_levels(graph_of(fn, [(rows, columns)]), values([(rows, columns)]))


@every_pair(
    ("level", ["x86-64", "x86-64-v3", "x86-64-v4"]),
    ("dtype", [float32, float64, bfloat16]),
    ("fn", PROGRAMS),
)
def test_levels_and_dtypes(fn: Callable[..., Any], dtype: DType, level: str) -> None:
    for columns in (2, 3):
        shape = (75, columns)
        given = values([shape], dtype)
        check_levels(graph_of(fn, [shape], dtype), given, machine=machine(level))


@pytest.mark.parametrize("fn", [shifted, running, running_maximum, down])
def test_rows_without_a_number(fn: Callable[..., Any]) -> None:
    graph = graph_of(fn, [(sym("n"), 2)])
    for rows in (1, 16, 35):
        check_levels(graph, values([(rows, 2)]), {"n": rows})


def test_integers() -> None:
    shape = (100, 3)
    given = [np.arange(300, dtype=np.int32).reshape(shape)]
    for fn in (lambda x: ts.cumulative_sum(x, axis=1), lambda x: (ts.sum(x, axis=0), x - x[1])):
        check_levels(graph_of(fn, [shape], int32), given)


def test_nan_and_infinities() -> None:
    given = values([(100, 2)])
    given[0][7, 0], given[0][30, 1], given[0][50] = np.nan, np.inf, -0.0
    for fn in (stencil, running, down, largest):
        check_levels(graph_of(fn, [(100, 2)]), given)


def test_what_is_chosen() -> None:
    assert reasons(stencil, (300, 2)).startswith("lanes along i0, as i1 is short")
    assert reasons(upside_down, (300, 4)).startswith("lanes along i0, as i1 is short")
    assert "lanes along i0, as the scan is short" in reasons(running, (300, 3))
    assert "lanes along the reduction, as the result is small" in reasons(norm, (30000, 2))
    assert "lanes along i0, as i1 is short" in reasons(neighbours, (300, 2))
    assert reasons(down, (300, 2)).count("lanes along i0") == 2  # tanh is stored
    assert "short" not in reasons(stencil, (300, 3), "x86-64")  # three lanes of four at work
    assert "short" not in reasons(stencil, (300, 9))
    assert "short" not in reasons(stencil, (10, 2))


def linear(x: Any, w: Any) -> Any:
    return x @ w.T


def dense(x: Any, w: Any) -> Any:
    return ts.tanh(x @ w.T) - 0.5


def dense_straight(x: Any, w: Any) -> Any:
    return ts.tanh(x @ ts.reshape(w, w.shape[::-1])) + x[:, :1]


@pytest.mark.parametrize("level", ["x86-64", "x86-64-v3", "x86-64-v4"])
@pytest.mark.parametrize("fn", [linear, dense, dense_straight])
def test_products_of_few_columns(fn: Callable[..., Any], level: str) -> None:
    for rows, depth, columns in ((16, 1, 2), (35, 3, 5), (100, 7, 3), (49, 40, 4), (33, 4, 8)):
        shapes = (rows, depth), (columns, depth)
        check_levels(graph_of(fn, shapes), values(shapes), machine=machine(level))


@pytest.mark.parametrize("dtype", [float64, bfloat16, int32])
def test_products_of_few_columns_and_dtypes(dtype: DType) -> None:
    shapes = (70, 3), (2, 3)
    for fn in (linear,) if dtype is int32 else (linear, dense):
        check_levels(graph_of(fn, shapes, dtype), values(shapes, dtype))


def test_products_whose_lanes_are_rows() -> None:
    def chosen(fn: Callable[..., Any], rows: int, depth: int, columns: int) -> str:
        shapes = (rows, depth), (columns, depth)
        graph = graph_of(fn, shapes)
        lowered = check_levels(graph, values(shapes), machine=machine("x86-64-v4"))
        return " | ".join([kernel.reason for kernel in lowered.kernels()])

    assert "lanes along i0, as i1 is short" in chosen(linear, 100, 3, 5)
    assert "lanes along it" in chosen(linear, 100, 40, 5)
    assert "lanes along i0, as i1 is short" in chosen(dense, 100, 32, 5)
    assert "accumulators in registers" in chosen(dense, 100, 40, 5)
    assert "lanes along i0, as i1 is short" in chosen(dense_straight, 100, 4, 4)
    assert "accumulators in registers" in chosen(dense_straight, 100, 4, 7)
    assert "short" not in chosen(linear, 12, 3, 5)


@every_pair(
    ("level", ["x86-64", "x86-64-v3", "x86-64-v4"]),
    ("dtype", [float32, float64, bfloat16]),
    ("fn", [linear, dense]),
)
def test_products_of_few_rows(fn: Callable[..., Any], dtype: DType, level: str) -> None:
    for rows, depth, columns in ((2, 8, 64), (7, 33, 20), (3, 86, 17), (4, 16, 35)):
        shapes = (rows, depth), (columns, depth)
        given = values(shapes, dtype)
        check_levels(graph_of(fn, shapes, dtype), given, machine=machine(level))


def moved(x: Any) -> Any:
    return ts.permute_dims(x, (1, 0, 2)), ts.permute_dims(x * 2, (1, 0, 2)) - 1


def centred(x: Any) -> Any:
    return x + x[0] - x[0, 0]


@every_pair(
    ("level", ["x86-64", "x86-64-v3", "x86-64-v4"]),
    ("dtype", [float32, float64, bfloat16]),
    ("few", [2, 3, 4, 8, 12, 16]),
)
def test_short_rows_of_three_axes(few: int, dtype: DType, level: str) -> None:
    for shape in ((40, 9, few), (5, 33, few), (17, 2, few)):
        for fn in (moved, centred):
            graph, given = graph_of(fn, [shape], dtype), values([shape], dtype)
            check_levels(graph, given, machine=machine(level))


@every_pair(
    ("level", ["x86-64", "x86-64-v3", "x86-64-v4"]),
    ("dtype", [float32, float64, bfloat16, int32]),
    ("times", [2, 3]),
)
def test_reductions_along_repeated_elements(times: int, dtype: DType, level: str) -> None:
    def repeated(x: Any) -> Any:
        y = ts.repeat(x, times, axis=1)
        return ts.max(y, axis=1), ts.sum(y * 2, axis=1), ts.sum(ts.repeat(x, times, axis=0), axis=1)

    for shape in ((24, 33), (7, 10)):
        graph, given = graph_of(repeated, [shape], dtype), [np.ones(shape, dtype.np)]
        given[0][:, 3] = np.arange(shape[0]) % 7
        lowered = check_levels(graph, given, machine=machine(level))
        assert f"r0 // {times}" not in str(lowered.schedule)


@pytest.mark.parametrize("dtype", [float32, int32])
def test_short_rows_without_elements(dtype: DType) -> None:
    for shape in ((1, 40, 0), (40, 1, 0), (0, 3, 2), (3, 0, 4)):
        graph, given = graph_of(lambda x: x * 2 + 1, [shape], dtype), values([shape], dtype)
        check_levels(graph, given)
        moves = graph_of(lambda x: ts.permute_dims(x, (1, 0, 2)) == 0, [shape], dtype)
        check_levels(moves, given)


@every_pair(
    ("level", ["x86-64", "x86-64-v3", "x86-64-v4"]),
    ("dtype", [float32, float64, bfloat16, int8]),
    ("columns", [2, 3, 5, 8, 16]),
)
def test_short_rows_at_computed_places(columns: int, dtype: DType, level: str) -> None:
    def rows(x: Any, i: Any, w: Any) -> Any:
        i = ts.astype(i, ts.int32)
        inside = ts.take(x, i, axis=0, mode="clip") * w[:, None]
        return inside, ts.take(x, i, axis=0, mode="fill", fill_value=3)

    graph = graph_of(rows, [(9, columns), (37,), (37,)], dtype)
    x, w = values([(9, columns), (37,)], dtype)
    places = np.random.default_rng(0).integers(-12, 12, 37).astype(dtype.np)
    lowered = check_levels(graph, [x, places, w], machine=machine(level))
    if columns < 8:  # four vectors of two elements are the narrowest tile
        assert "whose rows are read at computed places" in str(lowered.schedule)
