"""Sums along the rows of large operands, several of which are read side by side: at every level,
and for any number of threads."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import tessera as ts
from tessera import dtypes as dt
from tessera.compile import Lowered
from tessera.graph.ops import elementwise as e
from tessera.graph.ops.contract import dot_general
from tessera.graph.ops.rearrange import broadcast
from tessera.graph.ops.reduce import max_, min_, sum_
from tessera.target.machine import Machine, machine, supported_levels
from tests.differential.levels import check_levels
from tests.schedule.lowering import traced, typed

LEVELS = [name for name in ("x86-64", "x86-64-v3", "x86-64-v4") if name in supported_levels()]


def small(level: str = "x86-64-v3") -> Machine:
    """A machine whose second cache holds little."""
    return replace(machine(level), l2=16 * 1024)


def check(fn: Any, *types: Any, level: str = "x86-64-v3", rows: int = 4) -> Lowered:
    """Runs a program at all levels, in which so many rows are read side by side; 0: row by row."""
    graph = traced(fn, *types)
    rng = np.random.default_rng(5)
    inputs = [(rng.standard_normal(t.shape) * 3).astype(t.dtype.np) for t in types]
    lowered = check_levels(graph, inputs, machine=small(level))
    found = "far apart are read side by side" in str(lowered.schedule)
    assert found is bool(rows)
    assert not rows or f"{rows} rows far apart" in str(lowered.schedule)
    return lowered


def product(x: Any, y: Any) -> Any:
    return dot_general(x, y, ((1,), (0,)))


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize(("count", "rows"), [(32, 4), (36, 4), (27, 3), (34, 2), (37, 0), (28, 0)])
def test_a_matrix_times_a_column(count: int, rows: int, level: str) -> None:
    check(product, typed(count, 531), typed(531, 1), level=level, rows=rows)


@pytest.mark.parametrize("dtype", [dt.float64, dt.int32, dt.int64])
@pytest.mark.parametrize("fn", [sum_, max_, min_])
def test_reductions(fn: Any, dtype: dt.DType) -> None:
    check(lambda x: fn(x, (1,)), typed(32, 530, dtype=dtype))


@pytest.mark.parametrize("dtype", [dt.bfloat16, dt.float16, dt.int8])
def test_narrow_dtypes(dtype: dt.DType) -> None:
    check(lambda x: sum_(e.cast(x, dt.float32), (1,)), typed(32, 2055, dtype=dtype))


def test_prologue_and_epilogue() -> None:
    def fn(x: Any, y: Any, bias: Any) -> Any:
        z = dot_general(e.add(x, 1.0), e.neg(y), ((1,), (0,)))
        return e.tanh(e.add(z, bias)), e.neg(z)

    check(fn, typed(40, 515), typed(515), typed(40))


def test_batches() -> None:
    def fn(x: Any, y: Any) -> Any:
        return dot_general(x, y, ((2,), (1,)), ((0,), (0,)))

    check(fn, typed(3, 12, 520), typed(3, 520))


def test_what_is_small_or_short_or_costs_more_stays() -> None:
    check(lambda x: sum_(x, (1,)), typed(32, 100), rows=0)
    check(lambda x: sum_(x, (1,)), typed(400, 130), rows=0)
    check(lambda x: sum_(x, (1,)), typed(8, 2000), rows=0)
    check(lambda x: sum_(e.exp(x), (1,)), typed(32, 530), rows=0)
    # The mean is of use for all of its row.
    check(lambda x: e.sub(x, broadcast(sum_(x, (1,)), x.shape, (0,))), typed(32, 530), rows=0)


def test_infinities_and_nan_stay_where_they_are() -> None:
    x, y = np.ones((32, 530), np.float32), np.ones((530, 1), np.float32)
    x[0, 5], x[3, 529], x[31, 64] = np.inf, np.nan, -np.inf
    check_levels(traced(product, typed(32, 530), typed(530, 1)), [x, y], machine=small())


def test_threads_do_not_change_a_bit() -> None:
    x = np.random.default_rng(1).standard_normal((700, 1501)).astype(np.float32)
    y = np.random.default_rng(2).standard_normal((1501, 1)).astype(np.float32)
    f = ts.jit(lambda x, y: x @ y)
    found: list[bytes] = []
    for threads in (1, 2, 3):
        with ts.config.update(threads=threads):
            found.append(np.asarray(f(x, y)).tobytes())
    assert len(set(found)) == 1
