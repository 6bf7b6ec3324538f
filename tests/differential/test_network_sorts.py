"""Sorts of many rows of a few elements, a vector for each place of a row, at every level."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tessera as ts
from tessera.compile import Lowered
from tessera.dtypes import ALL, DType, float32, int32
from tessera.ir.types import TensorType
from tessera.runtime.memory import pointer
from tessera.schedule import network_sort
from tessera.target.machine import machine, supported_levels
from tests.differential.levels import check_levels
from tests.schedule.lowering import traced, typed

LEVELS = [name for name in ("x86-64", "x86-64-v3", "x86-64-v4") if name in supported_levels()]
NETWORK = "are sorted side by side"


def both(axis: int, descending: bool = False) -> Callable[[Any], Any]:
    def fn(x: Any) -> Any:
        return (
            ts.sort(x, axis=axis, descending=descending),
            ts.argsort(x, axis=axis, descending=descending),
        )

    return fn


def is_network(fn: Callable[..., Any], *types: TensorType, level: str = "x86-64-v4") -> bool:
    return NETWORK in str(Lowered(traced(fn, *types), machine(level)).schedule)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("dtype", [d for d in ALL if not d.is_complex], ids=str)
def test_dtypes(dtype: DType, level: str) -> None:
    x = np.random.default_rng(0).integers(0, 2 if dtype.is_bool else 5, (17, 4)).astype(dtype.np)
    for descending in (False, True):
        fn = both(1, descending)
        graph = traced(fn, TensorType(x.shape, dtype))
        lowered = check_levels(graph, [x], machine=machine(level))
        assert NETWORK in str(lowered.schedule)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize(("shape", "axis"), [
    ((17, 2), 1), ((33, 3), 1), ((3, 21), 0), ((4, 4, 5), 1), ((2, 16), 0), ((1, 4, 16, 1), 1),
])  # fmt: skip
def test_axes(shape: tuple[int, ...], axis: int, level: str) -> None:
    x = np.random.default_rng(1).integers(-3, 4, shape).astype(np.float32)
    fn = both(axis)
    lowered = check_levels(traced(fn, typed(*shape)), [x], machine=machine(level))
    assert NETWORK in str(lowered.schedule)


@pytest.mark.parametrize("count", range(2, 13))
def test_longer_rows(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keys alone, floats and whole numbers, and keys with places."""
    monkeypatch.setattr(network_sort, "MANY_ROWS", 16)
    rng = np.random.default_rng(count)
    for dtype in (float32, int32):
        x = rng.integers(-9, 9, (count, 18)).astype(dtype.np)
        for fn in (lambda x: ts.sort(x, axis=0), lambda x: ts.argsort(x, axis=0, descending=True)):
            lowered = check_levels(traced(fn, typed(count, 18, dtype=dtype)), [x])
            assert NETWORK in str(lowered.schedule)


def test_where_rows_are_sorted_so() -> None:
    """Memory runs along a row or beside it, rows fill a vector, or are many."""
    last, first = (lambda x: ts.sort(x, axis=1)), (lambda x: ts.sort(x, axis=0))
    assert is_network(last, typed(16, 4))
    assert not is_network(last, typed(15, 4))
    assert not is_network(last, typed(1000, 5))
    assert is_network(last, typed(1024, 9))
    assert not is_network(last, typed(1024, 10))
    assert is_network(first, typed(12, 1024))
    assert not is_network(first, typed(13, 1024))


def values(level: str, fn: Callable[[Any], Any], x: np.ndarray) -> list[np.ndarray]:
    lowered = ts.jit(fn).lower(x, machine=level)
    assert NETWORK in str(lowered.schedule)
    return [np.asarray(part) for part in lowered.executable().run([pointer(x)], [])]


SPECIAL = np.array(
    [0.0, -0.0, 1.0, -1.0, np.inf, -np.inf, np.nan, -np.nan, 1e-45, -1e-45, 3e38], np.float32
)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("descending", [False, True])
def test_numbers_that_are_special(level: str, descending: bool) -> None:
    """NaN counts as the largest; what is equal, as -0 and 0 are, keeps its order and its bits."""
    rng = np.random.default_rng(5)
    for count in (2, 3, 4):
        x = SPECIAL[rng.integers(0, len(SPECIAL), (400, count))]
        found, places = values(level, both(1, descending), x)
        keys = np.where(np.isnan(x), np.inf, x).astype(np.float64)
        keys[np.isnan(x)] = 1e300  # behind inf
        keys[np.isposinf(x)] = 1e299
        order = np.argsort(-keys if descending else keys, axis=1, kind="stable")
        np.testing.assert_array_equal(places, order)
        expected = np.take_along_axis(x, order, 1)
        np.testing.assert_array_equal(found.view(np.uint32), expected.view(np.uint32))


def test_what_is_moved_with_keys() -> None:
    """Of any dtype, also one of another width than that of the keys."""
    def fn(x: Any) -> Any:
        order = ts.argsort(x, axis=0)
        return ts.sort(x, axis=0), ts.take_along_axis(x, order, axis=0), ts.median(x, axis=0)

    x = np.random.default_rng(3).normal(size=(3, 20)).astype(np.float64)
    check_levels(traced(fn, TensorType(x.shape, ts.float64)), [x])


def test_the_largest_of_a_few() -> None:
    x = np.random.default_rng(4).normal(size=(40, 4)).astype(np.float32)
    check_levels(traced(lambda x: ts.top_k(x, 1), typed(40, 4)), [x])


@given(st.integers(2, 12), st.data())
def test_networks_sort(count: int, data: st.DataObject) -> None:
    """Zeros and ones (Knuth, 5.3.4 Z), by either kind; neighbours keep the order of equal keys."""
    keys = data.draw(st.lists(st.integers(0, 1), min_size=count, max_size=count))
    for steps in (network_sort.neighbours, network_sort.exchanges):
        found = list(enumerate(keys))
        for i, k in steps(count):
            if found[k][1] < found[i][1]:
                found[i], found[k] = found[k], found[i]
        assert [key for _, key in found] == sorted(keys)
        if steps is network_sort.neighbours:
            assert found == sorted(found, key=lambda one: one[1])
