"""Scatters and gathers as a GPU runs them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tessera import dtypes
from tessera.dtypes import dtype_of
from tessera.graph.ops.gather import Combine, IndexMode, gather, scatter
from tessera.graph.ops.rearrange import reshape
from tessera.ir.core import Module
from tessera.ir.intexpr import sym
from tessera.schedule import split_scatter
from tessera.tile import ops as t
from tests.schedule.lowering import Array, typed
from tests.tile.gpu_running import check_gpu, ops_of

MODES = (IndexMode.DROP, IndexMode.CLIP)


@pytest.fixture(autouse=True)
def long(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few updates are many."""
    monkeypatch.setattr(split_scatter, "SHORT", 1)


def check(fn: Callable[..., Any], *arrays: Array, **options: Any) -> Module:
    types = [typed(*x.shape, dtype=dtype_of(x.dtype)) for x in arrays]
    return check_gpu(fn, *types, inputs=arrays, **options)


def whole(rng: np.random.Generator, shape: tuple[int, ...], dtype: str) -> Array:
    return rng.integers(1, 3, shape).astype(dtype_of(dtype).np)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("combine", list(Combine))
@pytest.mark.parametrize("dtype", ["f32", "i32", "f16", "i64", "u8", "c64"])
def test_updates_that_meet(dtype: str, combine: Combine, mode: IndexMode) -> None:
    if dtype == "c64" and combine not in (Combine.SET, Combine.ADD):
        return
    rng = np.random.default_rng(0)
    x, u = whole(rng, (5, 7), dtype), whole(rng, (9, 7), dtype)
    i = rng.integers(-1, 6, 9)
    fn = lambda x, u, i: scatter(x, u, [i], (0,), combine, mode)  # noqa: E731
    module = check(fn, x, u, i)
    found = [op for op in ops_of(module, t.Scatter) if op.combine is not None]
    assert found
    assert all(op.atomic for op in found)


@pytest.mark.parametrize("combine", [Combine.SET, Combine.ADD])
def test_several_indices(combine: Combine) -> None:
    rng = np.random.default_rng(1)
    x, u = whole(rng, (4, 6, 5), "f32"), whole(rng, (3, 8, 6), "f32")
    i, j = rng.integers(-1, 5, (3, 8)), rng.integers(0, 5, (3, 8))
    check(lambda x, u, i, j: scatter(x, u, [i, j], (0, 2), combine, IndexMode.DROP), x, u, i, j)
    points = whole(rng, (3, 8), "f32")
    flat = lambda x, u, i, j: scatter(  # noqa: E731
        reshape(x, (24, 5)), u, [i, j], (0, 1), combine, IndexMode.CLIP
    )
    check(flat, x, points, i, j)


@pytest.mark.parametrize("count", [0, 1, 2, 17])
def test_symbolic_counts(count: int) -> None:
    rng = np.random.default_rng(2)
    n, v = sym("N"), sym("V")
    x, u, i = whole(rng, (6, 3), "f32"), whole(rng, (count, 3), "f32"), rng.integers(0, 6, count)
    types = (typed(v, 3), typed(n, 3), typed(n, dtype=dtypes.int64))
    for combine in (Combine.SET, Combine.ADD, Combine.MAX):
        check_gpu(
            lambda x, u, i, c=combine: scatter(x, u, [i], (0,), c, IndexMode.DROP),
            *types,
            inputs=[x, u, i],
        )


def test_indices_that_depend_on_the_window() -> None:
    rng = np.random.default_rng(3)
    x, u, i = whole(rng, (6, 4), "f32"), whole(rng, (5, 4), "f32"), rng.integers(0, 6, (5, 4))

    def fn(x: Any, u: Any, i: Any) -> Any:
        from tessera.graph.ops.rearrange import iota

        columns = iota((5, 4), 1, dtypes.int64)
        return scatter(x, u, [i, columns], (0, 1), Combine.SET, IndexMode.DROP)

    check(fn, x, u, i)


def test_few_updates_of_rows_are_written_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(split_scatter, "SHORT", 16)
    rng = np.random.default_rng(4)
    x, u, i = whole(rng, (6, 40), "f32"), whole(rng, (5, 40), "f32"), rng.integers(0, 2, 5)
    module = check(lambda x, u, i: scatter(x, u, [i], (0,), Combine.SET), x, u, i)
    assert len(module.funcs) == 3


def test_rows_of_a_table() -> None:
    rng = np.random.default_rng(5)
    x, i = whole(rng, (30, 64), "f32"), rng.integers(-2, 32, 50)
    for mode in (IndexMode.CLIP, IndexMode.FILL):
        check(lambda x, i, m=mode: gather(x, [i], (0,), m), x, i)
