"""Scatters of many updates to few elements, which threads share, at every level."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tessera as ts
from tessera.dtypes import float32, int32
from tessera.graph.ops.gather import Combine, IndexMode, scatter
from tessera.ir.types import TensorType
from tessera.schedule import split_scatter
from tessera.target.machine import machine
from tests.differential.levels import check_levels
from tests.schedule.lowering import traced


@pytest.fixture(autouse=True)
def many(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few updates are many."""
    monkeypatch.setattr(split_scatter, "GRAIN", 64)


def is_shared(lowered: Any) -> bool:
    return "go to copies of their own" in str(lowered.kernels())


@pytest.mark.parametrize("level", ["host", "x86-64-v3", "x86-64"])
@pytest.mark.parametrize("size", [200, 197])
def test_histogram(size: int, level: str) -> None:
    x = np.random.default_rng(0).normal(size=size).astype(np.float32)
    x[10:20] = 0.25
    graph = traced(lambda x: ts.histogram(x, 7), TensorType((size,), float32))
    assert is_shared(check_levels(graph, [x], machine=machine(level)))


@pytest.mark.parametrize("mode", [IndexMode.DROP, IndexMode.CLIP])
@pytest.mark.parametrize("combine", [Combine.ADD, Combine.MUL, Combine.MIN, Combine.MAX])
def test_rows(combine: Combine, mode: IndexMode) -> None:
    rng = np.random.default_rng(1)
    x, u = (rng.integers(1, 3, shape).astype(np.float32) for shape in ((3, 5), (97, 5)))
    i = rng.integers(-1, 5, 97).astype(np.int32)
    graph = traced(
        lambda x, u, i: [scatter(x, u, [i], (0,), combine, mode)],
        TensorType(x.shape, float32), TensorType(u.shape, float32), TensorType(i.shape, int32),
    )  # fmt: skip
    assert is_shared(check_levels(graph, [x, u, i]))


@pytest.mark.parametrize("shared", [False, True])
def test_products_that_are_scattered(shared: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of one product meet: threads must not share them."""
    monkeypatch.setattr(split_scatter, "GRAIN", 64 if shared else 1 << 40)
    rng = np.random.default_rng(2)
    x, w = (rng.standard_normal(shape).astype(np.float32) for shape in ((1500, 8), (8, 64)))
    i = rng.integers(0, 5, 1500).astype(np.int32)
    f = ts.jit(lambda x, w, i: ts.zeros((5, 64)).at[i].add(x @ w))
    graph = f.lower(x, w, i).graph
    lowered = check_levels(graph, [x, w, i])
    assert is_shared(lowered) == shared
    found = np.asarray(f(x, w, i))
    wanted = np.zeros((5, 64))
    np.add.at(wanted, i, x.astype(np.float64) @ w)
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-3)
    assert all(np.asarray(f(x, w, i)).tobytes() == found.tobytes() for _ in range(10))


def test_what_is_not_shared() -> None:
    def fn(x: Any, i: Any) -> Any:
        return [scatter(x, x, [i], (0,), Combine.ADD), scatter(x[:3], x, [i], (0,), Combine.SET)]

    x, i = np.arange(97, dtype=np.float32), np.arange(97, dtype=np.int32) % 3
    graph = traced(fn, TensorType(x.shape, float32), TensorType(i.shape, int32))
    assert not is_shared(check_levels(graph, [x, i]))


@pytest.mark.parametrize("level", ["host", "x86-64-v3", "x86-64"])
@pytest.mark.parametrize("row", [(2,), (3,), (8,), (12,), (17,), (4, 4), (3, 7), (2, 48)])
def test_rows_are_added_as_vectors(row: tuple[int, ...], level: str) -> None:
    rng = np.random.default_rng(3)
    u, i = rng.normal(size=(97, *row)).astype(np.float32), rng.integers(-1, 6, 97).astype(np.int32)
    graph = traced(
        lambda u, i: ts.segment_sum(u, i, 5),
        TensorType(u.shape, float32), TensorType(i.shape, int32),
    )  # fmt: skip
    lowered = check_levels(graph, [u, i], machine=machine(level))
    assert is_shared(lowered)
    assert "tile.scatter" not in str(lowered.tile)


def test_parts_of_updates_are_programs() -> None:
    """A part goes over all of its updates, however few elements a row has."""
    u, i = np.ones((50_000, 3), np.float32), np.arange(50_000, dtype=np.int32) % 100
    lowered = ts.jit(lambda u, i: ts.segment_sum(u, i, 100)).lower(u, i)
    shared = [line for line in str(lowered.schedule).splitlines() if "ordered" in line]
    assert "threads share its programs" in shared[0]
