"""Products of few rows and columns in parts of their depth: at every level, and for any number of
threads."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tessera as ts
from tessera import dtypes as dt
from tessera.compile import Lowered
from tessera.graph.ops import elementwise as e
from tessera.graph.ops.contract import dot_general
from tessera.graph.ops.rearrange import broadcast
from tessera.schedule import deep_products
from tessera.schedule.deep_products import parts_of
from tessera.target.machine import machine, supported_levels
from tests.differential.levels import check_levels
from tests.pairs import every_pair
from tests.schedule.lowering import traced, typed

LEVELS = [name for name in ("x86-64", "x86-64-v3", "x86-64-v4") if name in supported_levels()]
FORMS = {"nn": (1, 0), "nt": (1, 1), "tn": (0, 0), "tt": (0, 1)}


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Short parts of small products pay."""
    monkeypatch.setattr(deep_products, "LEAST_DEPTH", 2)
    monkeypatch.setattr(deep_products, "LEAST_WORK", 1)
    monkeypatch.setattr(deep_products, "LINE", 4)


def operands(form: str, rows: int, cols: int, depth: int, dtype: dt.DType = dt.float32) -> Any:
    left = (rows, depth) if form[0] == "n" else (depth, rows)
    right = (depth, cols) if form[1] == "n" else (cols, depth)
    return [typed(*left, dtype=dtype), typed(*right, dtype=dtype)]


def product(form: str) -> Any:
    left, right = FORMS[form]
    return lambda x, y: dot_general(x, y, ((left,), (right,)))


def is_cut(lowered: Lowered) -> bool:
    return " parts of " in str(lowered.schedule)


def check(fn: Any, *types: Any, level: str = "x86-64-v3", cut: bool = True) -> Lowered:
    graph = traced(fn, *types)
    rng = np.random.default_rng(5)
    inputs = [(rng.standard_normal(t.shape) * 3).astype(t.dtype.np) for t in types]
    lowered = check_levels(graph, inputs, machine=machine(level))
    assert is_cut(lowered) is cut
    return lowered


@every_pair(
    ("level", LEVELS),
    ("form", FORMS),
    ("depth", [64, 99, 133]),
)
def test_forms(form: str, depth: int, level: str) -> None:
    """Parts as long as each other, nine of them, and ones that leave something."""
    check(product(form), *operands(form, 9, 17, depth), level=level)


@pytest.mark.parametrize("dtype", [dt.float64, dt.float16, dt.bfloat16, dt.int32])
def test_dtypes(dtype: dt.DType) -> None:
    check(product("nn"), *operands("nn", 12, 11, 67, dtype))


def test_narrow_integers() -> None:
    def fn(x: Any, y: Any) -> Any:
        return product("nn")(e.cast(x, dt.int32), e.cast(y, dt.int32))

    check(fn, *operands("nn", 12, 16, 131, dt.int8))


@pytest.mark.parametrize("depth", [64, 67])
def test_prologue_and_epilogue(depth: int) -> None:
    def fn(x: Any, y: Any, bias: Any) -> Any:
        z = product("nt")(e.cos(x), e.add(y, 1.0))
        return e.tanh(e.add(z, broadcast(bias, z.shape, (1,))))

    check(fn, *operands("nt", 13, 10, depth), typed(10))


def test_batches() -> None:
    def fn(x: Any, y: Any) -> Any:
        return dot_general(x, y, ((2,), (1,)), ((0,), (0,)))

    check(fn, typed(3, 9, 70), typed(3, 70, 12))


@pytest.mark.parametrize(("rows", "cols"), [(3, 16), (16, 3), (1, 1), (129, 8), (8, 129)])
def test_other_sizes_stay_whole(rows: int, cols: int) -> None:
    check(product("nn"), *operands("nn", rows, cols, 64), cut=False)


def test_infinities_and_nan_stay_where_they_are() -> None:
    graph = traced(product("nn"), *operands("nn", 9, 9, 67))
    x, y = np.ones((9, 67), np.float32), np.ones((67, 9), np.float32)
    x[1, 5], x[2, 66], y[60, 3] = np.inf, np.nan, -np.inf
    check_levels(graph, [x, y], machine=machine("x86-64-v3"))


def test_a_far_operand_has_more_parts() -> None:
    lowered = Lowered(
        traced(product("nn"), *operands("nn", 16, 16, 1024)),
        replace(machine("x86-64-v3"), l2=8192),
    )
    assert "in 16 parts of 64 products" in str(lowered.schedule)


@given(st.integers(1, 10**7), st.integers(1, 4096), st.integers(1 << 13, 1 << 22))
@settings(deadline=None)
def test_parts_are_of_the_depth(depth: int, place: int, cache: int) -> None:
    parts, places = parts_of(depth, place, cache)
    assert parts >= deep_products.PARTS
    assert 0 <= parts * places <= depth
    assert depth - parts * places < parts * deep_products.LINE


def test_threads_do_not_change_a_bit() -> None:
    rng = np.random.default_rng(1)
    x = rng.standard_normal((32, 20000)).astype(np.float32)
    y = rng.standard_normal((20000, 32)).astype(np.float32)
    found = []
    for count in (1, 2, 3):
        with ts.config.update(threads=count):
            found.append(np.asarray(ts.jit(lambda x, y: x @ y)(x, y)).tobytes())
    assert len(set(found)) == 1
