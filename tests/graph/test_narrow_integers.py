"""Integers that are known to be small are computed in int32, and are the same numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tessera as ts
from tessera.graph import interp
from tessera.graph.passes.narrow_integers import NarrowIntegers
from tessera.graph.transforms.evaluate import trace_function
from tessera.ir.core import Func
from tessera.ir.types import TensorType
from tessera.ir.verify import verify
from tessera.ir.walk import walk

SHAPE = (5, 7)
TYPES = (ts.int8, ts.uint8, ts.int16, ts.int32, ts.int64, ts.bool)


def traced(fn: Callable[..., Any], *dtypes: Any) -> Func:
    types = [TensorType(SHAPE, dtype) for dtype in dtypes]
    graph, captured = trace_function(fn, types, "jit", "program")
    assert not captured
    return graph


def names(func: Func, dtype: str) -> list[str]:
    """The ops whose first result is of a dtype."""
    return [op.name for op in walk(func.body) if f"{dtype}[" in str(op.results[0].type)]


def wide(x: Any) -> Any:
    return ts.astype(x, ts.int64)


LEAVES: tuple[Callable[[list[Any]], Any], ...] = (
    lambda v: ts.arange(5)[:, None] + ts.zeros(SHAPE, dtype=ts.int64),
    lambda v: ts.broadcast_to(ts.arange(7), SHAPE),
    *[lambda v, k=k: wide(v[k]) for k in range(len(TYPES))],
    *[
        lambda v, n=n: ts.full(SHAPE, n, dtype=ts.int64)
        for n in (0, 1, -1, 3, -7, 31, 32, 200, 46341, 2**31 - 1, -(2**31), 2**31, 2**40)
    ],
    lambda v: ts.broadcast_to(wide(ts.argmax(v[0], axis=1, keepdims=True)), SHAPE),
)

STEPS: tuple[Callable[[Any, Any], Any], ...] = (
    ts.add, ts.subtract, ts.multiply, ts.minimum, ts.maximum, ts.floor_divide, ts.remainder,
    ts.bitwise_and, ts.bitwise_or, ts.bitwise_xor,
    lambda a, b: ts.bitwise_left_shift(a, ts.clip(b, 0, 40)),
    lambda a, b: ts.bitwise_right_shift(a, ts.clip(b, 0, 40)),
    lambda a, b: ts.where(a < b, a, b + 1),
    lambda a, b: ts.square(a), lambda a, b: ts.abs(b), lambda a, b: -a, lambda a, b: ~a,
    lambda a, b: ts.flip(a, axis=1),
    lambda a, b: ts.concat([a[:, :3], b[:, 3:]], axis=1),
    lambda a, b: ts.pad(a, ((1, 0), (0, 2)))[:5, 2:],
    lambda a, b: ts.broadcast_to(ts.sum(a, axis=1, keepdims=True), SHAPE),
    lambda a, b: ts.broadcast_to(ts.max(a, axis=0, keepdims=True), SHAPE),
    lambda a, b: ts.cumsum(a, axis=0),
)  # fmt: skip


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_they_are_the_same_numbers(data: st.DataObject) -> None:
    leaves = data.draw(st.lists(st.sampled_from(range(len(LEAVES))), min_size=2, max_size=5))
    places = st.integers(0, 30)
    steps = data.draw(
        st.lists(
            st.tuples(st.sampled_from(range(len(STEPS))), places, places), min_size=1, max_size=8
        )
    )

    def fn(*args: Any) -> Any:
        values = [LEAVES[k](list(args)) for k in leaves]
        for k, i, j in steps:
            values.append(STEPS[k](values[i % len(values)], values[j % len(values)]))
        a, b = values[-1], values[-2]
        return (
            a < b, a == b, ts.astype(a, ts.float32), ts.astype(b, ts.int8), ts.sum(a, axis=1),
            ts.astype(a, ts.int32), ts.astype(a, ts.bool), ts.astype(a, ts.uint64), a,
        )  # fmt: skip

    rng = np.random.default_rng(len(steps))
    inputs = []
    for dtype in TYPES:
        info = np.iinfo(dtype.np) if dtype is not ts.bool else None
        low, high = (info.min, info.max) if info else (0, 1)
        inputs.append(rng.integers(low, high, SHAPE, np.int64, endpoint=True).astype(dtype.np))
    graph = traced(fn, *TYPES)
    new = NarrowIntegers().run(graph)
    verify(new, NarrowIntegers.ensures)
    for a, b in zip(interp.run(graph, inputs), interp.run(new, inputs), strict=True):
        assert a.dtype == b.dtype
        np.testing.assert_array_equal(a, b)


def test_masks_of_places() -> None:
    graph = traced(lambda x: ts.where(ts.arange(5)[:, None] >= ts.arange(7), x, 0.0), ts.float32)
    assert "graph.iota" in names(graph, "i64")
    assert not names(NarrowIntegers().run(graph), "i64")


def test_long_chains() -> None:
    def fn(x: Any) -> Any:
        i = ts.arange(7)
        for k in range(3000):
            i = ts.minimum(i + k % 3, 1000)
        return i > 5, x

    new = NarrowIntegers().run(traced(fn, ts.float32))
    assert names(new, "i32").count("graph.min") == 3000
    assert "graph.min" not in names(new, "i64")


def test_inside_of_loops() -> None:
    def fn(x: Any) -> Any:
        return ts.fori_loop(0, 3, lambda k, x: ts.where(ts.arange(7) % 2 == 0, x, -x), x)

    new = NarrowIntegers().run(traced(fn, ts.float32))
    assert "graph.mod" in names(new, "i32")
    assert "graph.mod" not in names(new, "i64")


@pytest.mark.parametrize(("count", "small"), [(2**31, True), (2**31 + 1, False)])
def test_many_places_stay(count: int, small: bool) -> None:
    graph = traced(lambda x: (ts.arange(count)[-7:] > ts.arange(7), x), ts.float32)
    assert ("graph.iota" in names(NarrowIntegers().run(graph), "i64")) is not small


def test_what_needs_64_bits_on_the_way_stays() -> None:
    def fn(x: Any) -> Any:
        i = ts.arange(7) * 2**30
        return (i - i) + 1 > ts.arange(7), x

    new = NarrowIntegers().run(traced(fn, ts.float32))
    assert "graph.mul" not in names(new, "i32")
