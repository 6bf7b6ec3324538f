"""What is reduced over the axis of a stack is computed from its arrays, at every level."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tessera as ts
from tessera import dtypes as dt
from tessera.compile import Lowered
from tessera.dtypes import DType, float32
from tessera.graph.transforms.evaluate import trace_function
from tessera.ir.types import TensorType
from tessera.schedule import unstack
from tessera.schedule.rebuild import kernels
from tests.differential.levels import check_levels, graph_of, values

SHAPE = (9, 21)


def windows(x: Any, axis: int) -> Any:
    """Nine places of each window."""
    high, wide = x.shape[0] - 2, x.shape[1] - 2
    found = [x[i : i + high, j : j + wide] for i in range(3) for j in range(3)]
    return ts.stack(found, axis=axis)


def largest(lowered: Lowered) -> int:
    """Elements of the largest array that kernels write."""
    return max(t.size for kernel in kernels(lowered.schedule.body) for t in kernel.types)


def check(fn: Callable[..., Any], dtype: DType = float32, stores: bool = False) -> None:
    lowered = check_levels(graph_of(fn, (SHAPE,), dtype), values((SHAPE,), dtype))
    assert (largest(lowered) >= 9 * 7 * 19) is stores


@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize("name", ["sum", "prod", "max", "min", "mean", "std"])
def test_reductions(name: str, axis: int) -> None:
    check(lambda x: getattr(ts, name)(ts.tanh(windows(x, axis)), axis=axis))


@pytest.mark.parametrize("dtype", [dt.float64, dt.float16, dt.bfloat16, dt.int32, dt.uint8])
def test_dtypes(dtype: DType) -> None:
    """Sums of narrow numbers are of wide ones."""
    check(lambda x: (ts.sum(windows(x, -1), axis=-1), ts.max(windows(x, 0), axis=0)), dtype)


@pytest.mark.parametrize("fn", [ts.any, ts.all])
def test_truth(fn: Any) -> None:
    check(lambda x: fn(windows(x, 1) > -0.5, axis=1))


def test_several_axes() -> None:
    check(lambda x: (ts.max(windows(x, 1), axis=(0, 1)), ts.sum(ts.exp(windows(x, 2)))))


def test_with_what_is_repeated() -> None:
    """Weights of each array, of each row, and what was computed of the stack before."""
    def fn(x: Any) -> Any:
        s = windows(x, -1)
        less = s - ts.max(s, axis=-1, keepdims=True)
        return ts.sum(ts.exp(less) * x[0, :9] * x[1:-1, 1, None, None], axis=-1)

    check(fn)


def test_a_gradient() -> None:
    """Gradients for the arrays of a stack are places along its axis."""

    def loss(x: Any) -> Any:
        return ts.sum(ts.sin(ts.std(ts.tanh(windows(x, -1)) + 0.1, axis=-1)))

    check(ts.grad(loss))


def test_not_a_number() -> None:
    (x,) = values((SHAPE,))
    x[3, 4], x[5, 6], x[0, 0] = np.nan, np.inf, -0.0
    fns = (ts.max, ts.min, ts.sum, ts.prod)
    graph = graph_of(lambda x: tuple([f(windows(x, -1), axis=-1) for f in fns]), (SHAPE,))
    check_levels(graph, [x])


def test_other_axes_and_long_stacks_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    check(lambda x: ts.sum(windows(x, 0), axis=1), stores=True)
    monkeypatch.setattr(unstack, "MOST", 8)
    check(lambda x: ts.sum(windows(x, 0), axis=0), stores=True)


def test_much_that_is_computed_of_a_stack_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unstack, "MOST_OPS", 9)
    check(lambda x: ts.sum(ts.exp(ts.sin(windows(x, 0))), axis=0), stores=True)


def test_joined_arrays_that_are_no_stack_stay() -> None:
    """Arrays of several places along the axis are sums of their own."""
    types = [TensorType((3, 4), float32), TensorType((5, 4), float32)]
    graph, _ = trace_function(
        lambda x, y: ts.sum(ts.concat([x, y], axis=0), axis=0), types, "jit", "joined"
    )
    check_levels(graph, values(((3, 4), (5, 4))))
