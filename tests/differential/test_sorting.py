"""Sorts on a CPU, of words and of permutations, at every level."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tessera as ts
from tessera.dtypes import ALL, DType, float32, float64, int8, int16, int64
from tessera.graph.ops.sort import sort
from tessera.graph.trace import Trace, active
from tessera.ir.core import Func
from tessera.ir.intexpr import sym
from tessera.ir.types import TensorType
from tessera.target.machine import machine
from tests.differential.levels import check_levels

SIZES = [0, 1, 2, 5, 16, 35]


def graph_of(fn: Callable[..., Any], *types: TensorType) -> Func:
    with active(Trace("jit", "program", staging=True)) as trace:
        found = fn(*[trace.input(t) for t in types])
        outputs = list(found) if isinstance(found, (tuple, list)) else [found]
        graph, captured = trace.finish(outputs, "program")
    assert not captured
    return graph


def both(x: Any) -> Any:
    return ts.sort(x, axis=0), ts.argsort(x, axis=0)


def falling(x: Any) -> Any:
    return ts.sort(x, axis=0, descending=True), ts.argsort(x, axis=0, descending=True)


@pytest.mark.parametrize("dtype", [d for d in ALL if not d.is_complex], ids=str)
def test_dtypes(dtype: DType) -> None:
    x = np.random.default_rng(0).integers(0, 2 if dtype.is_bool else 9, 13).astype(dtype.np)
    for fn in (both, falling):
        check_levels(graph_of(fn, TensorType(x.shape, dtype)), [x])


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("dtype", [float32, float64])
def test_sizes(dtype: DType, size: int) -> None:
    x = np.random.default_rng(size).normal(size=(size, 2)).astype(dtype.np)
    check_levels(graph_of(both, TensorType(x.shape, dtype)), [x])


def test_symbolic() -> None:
    graph = graph_of(both, TensorType((sym("n"),), float32))
    for size in (0, 1, 7, 20):
        x = np.random.default_rng(size).normal(size=size).astype(np.float32)
        check_levels(graph, [x], {"n": size})


def test_special_values() -> None:
    x = np.array([0, np.nan, -1, -0.0, np.inf, np.nan, 0, -np.inf, 1e-45, -1e-45], np.float32)
    for fn in (both, falling):
        check_levels(graph_of(fn, TensorType(x.shape, float32)), [x])
    found = np.asarray(ts.jit(ts.sort)(x))
    assert np.signbit(found[3:6]).tolist() == [False, True, False]


def test_keys_that_share_a_word_and_payloads() -> None:
    rng = np.random.default_rng(1)
    a, b = rng.integers(-3, 3, 29).astype(np.int8), rng.integers(-3, 3, 29).astype(np.int16)
    c = rng.normal(size=29).astype(np.float64)
    types = [TensorType((29,), d) for d in (int8, int16, float64)]
    check_levels(graph_of(lambda *x: sort(list(x), 0, num_keys=2), *types), [a, b, c])


@pytest.mark.parametrize("level", ["host", "x86-64"])
@pytest.mark.parametrize("first", [int64, float64, int8])
def test_elements_of_two_words(first: DType, level: str) -> None:
    rng = np.random.default_rng(1)
    a, b = rng.integers(-3, 3, 29).astype(first.np), rng.integers(-2, 2, 29).astype(np.int64)
    c = rng.normal(size=29)
    types = [TensorType((29,), d) for d in (first, int64, float64)]
    programs = [
        lambda a, b, c: sort([a, b, c], 0, num_keys=2),
        lambda a, b, c: sort([a, b, c], 0, num_keys=1, descending=True),
        lambda a, b, c: sort([b, c], 0, num_keys=2),
    ]
    for fn in programs:
        check_levels(graph_of(fn, *types), [a, b, c], machine=machine(level))


@pytest.mark.parametrize("dtype", ["int64", "uint64", "float64"])
def test_many_elements_against_numpy(dtype: str) -> None:
    x = np.random.default_rng(3).integers(0, 99, (3, 2001)).astype(dtype)
    fn = ts.jit(lambda x: (ts.sort(x, axis=1), ts.argsort(x, axis=1)))
    values, order = [np.asarray(v) for v in fn(x)]
    np.testing.assert_array_equal(values, np.sort(x, axis=1))
    np.testing.assert_array_equal(order, np.argsort(x, axis=1, kind="stable"))


def test_many_rows_against_numpy() -> None:
    x = np.random.default_rng(2).normal(size=(37, 1001)).astype(np.float32)
    fn = ts.jit(lambda x: (ts.sort(x, axis=1), ts.argsort(x, axis=1)))
    values, order = [np.asarray(v) for v in fn(x)]
    np.testing.assert_array_equal(values, np.sort(x, 1))
    np.testing.assert_array_equal(order, np.argsort(x, 1, kind="stable"))
