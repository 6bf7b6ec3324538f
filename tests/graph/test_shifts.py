"""Largest elements of which nothing depends have no derivative; all others have theirs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tessera as ts
from tessera.graph.ops import elementwise as e
from tessera.ir.types import TensorType
from tessera.ir.walk import walk
from tests.tolerance import assert_close

X = np.random.default_rng(1).normal(size=(3, 5))
W = np.random.default_rng(2).normal(size=(3, 5))


def top(x: Any) -> Any:
    return ts.max(x, axis=-1, keepdims=True)


def softmax(x: Any) -> Any:
    y = ts.exp(x - top(x))
    return y / ts.sum(y, axis=-1, keepdims=True)


def twice(x: Any) -> Any:
    """The largest elements are found two times."""
    return ts.exp(x - top(x)) / ts.sum(ts.exp(x - top(x)), axis=-1, keepdims=True)


def reciprocal(x: Any) -> Any:
    y = ts.exp(x - top(x))
    return y * (1 / ts.sum(y, axis=-1, keepdims=True))


def least(x: Any) -> Any:
    """Of least elements, the other way round."""
    y = ts.exp(ts.min(x, axis=-1, keepdims=True) - x)
    return y / ts.sum(y, axis=-1, keepdims=True)


def logsumexp(x: Any) -> Any:
    m = ts.max(x, axis=-1)
    return m + ts.log(ts.sum(ts.exp(x - m[:, None]), axis=-1))


def log_softmax(x: Any) -> Any:
    y = x - top(x)
    return y - ts.log(ts.sum(ts.exp(y), axis=-1, keepdims=True))


def guarded(x: Any) -> Any:
    m = top(x)
    y = ts.exp(x - ts.where(m == -ts.inf, 0.0, m))
    return y / ts.sum(y, axis=-1, keepdims=True)


def finite(x: Any) -> Any:
    m = top(x)
    y = ts.exp(x - ts.where(ts.isfinite(m), m, 0.0))
    return y / ts.sum(y, axis=-1, keepdims=True)


def masked(x: Any) -> Any:
    seen = x > -0.5
    y = ts.where(seen, ts.exp(x - top(x)), 0.0)
    return y / ts.sum(y, axis=-1, keepdims=True)


def shifted(x: Any) -> Any:
    y = ts.exp(ts.where(x > -0.5, x - top(x), -ts.inf))
    return y / ts.sum(y, axis=-1, keepdims=True)


def attention(x: Any) -> Any:
    y = ts.exp(x - top(x))
    return (y @ W.T) / ts.sum(y, axis=-1, keepdims=True)


def squares(x: Any) -> Any:
    y = ts.exp(x - top(x))
    return y * y / ts.sum(y * y, axis=-1, keepdims=True)


def everything(x: Any) -> Any:
    y = ts.exp(x - ts.max(x))
    return y / ts.sum(y)


def columns(x: Any) -> Any:
    y = ts.exp(x - ts.max(x, axis=0))
    return y / ts.sum(y, axis=0)


SHIFTS = [
    softmax, twice, reciprocal, least, logsumexp, log_softmax, guarded, finite, masked, shifted,
    attention, squares, everything, columns,
]  # fmt: skip


def unnormalised(x: Any) -> Any:
    return ts.exp(x - top(x))


def kept(x: Any) -> Any:
    """The largest elements leave."""
    return softmax(x) * top(x)


def returned(x: Any) -> Any:
    y = ts.exp(x - top(x))
    return y / ts.sum(y, axis=-1, keepdims=True) + ts.sum(y)


def across(x: Any) -> Any:
    """The sum is not along what was largest."""
    y = ts.exp(x - top(x))
    return y / ts.sum(y, axis=0)


def mixed(x: Any) -> Any:
    """Rows and columns are as long."""
    x = x[:, :3]
    y = ts.exp(x - ts.max(x, axis=-1))
    return y / ts.sum(y, axis=-1, keepdims=True)


def powers(x: Any) -> Any:
    y = ts.exp(x - top(x))
    return y * y / ts.sum(y, axis=-1, keepdims=True)


def added(x: Any) -> Any:
    y = ts.exp(x - top(x)) + 1
    return y / ts.sum(y, axis=-1, keepdims=True)


def halves(x: Any) -> Any:
    y = ts.exp((x - top(x)) * 0.5)
    return y / ts.sum(y, axis=-1, keepdims=True)


def replaced(x: Any) -> Any:
    y = ts.where(x > 0, ts.exp(x - top(x)), 0.5)
    return y / ts.sum(y, axis=-1, keepdims=True)


def clipped(x: Any) -> Any:
    y = ts.exp(ts.maximum(x - top(x), -1.0))
    return y / ts.sum(y, axis=-1, keepdims=True)


def elsewhere(x: Any) -> Any:
    """A guard that tests something else."""
    m = top(x)
    return ts.exp(x - ts.where(ts.isfinite(x[:, :1]), m, 0.0))


def turned(x: Any) -> Any:
    """Two programs that look alike, of which one subtracts nothing."""
    m = top(x)
    y = ts.exp(x - ts.where(m == -ts.inf, m, 0.0))
    return y / ts.sum(ts.exp(x - m), axis=-1, keepdims=True)


OTHERS = [
    turned,
    unnormalised, kept, returned, across, mixed, powers, added, halves, replaced, clipped,
    elsewhere,
]  # fmt: skip


def loss(f: Callable[..., Any]) -> Callable[..., Any]:
    def run(x: Any) -> Any:
        found: Any = f(x)
        places: Any = np.arange(np.prod(found.shape, dtype=int))
        weights: Any = np.cos(places).reshape(found.shape)
        terms: Any = ts.sin(found) * weights
        return ts.sum(terms)

    return run


def compares(f: Callable[..., Any], x: np.ndarray = X) -> bool:
    """Whether a gradient looks for the elements that are largest."""
    graph = ts.make_graph(ts.grad(loss(f)))(x)
    types = [op.results[0].type for op in walk(graph.body) if isinstance(op, e.Eq)]
    return any(isinstance(t, TensorType) and t.rank == 2 and t.shape[-1] != 1 for t in types)


@pytest.mark.parametrize("f", [*SHIFTS, *OTHERS])
def test_derivatives(f: Callable[..., Any]) -> None:
    """By central differences, in both modes."""
    run, step = loss(f), 1e-5
    found = np.asarray(ts.grad(run)(X))
    expected = np.zeros_like(X)
    for place in np.ndindex(X.shape):
        d = np.zeros_like(X)
        d[place] = step
        expected[place] = (float(run(X + d)) - float(run(X - d))) / (2 * step)
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-8)
    direction = np.random.default_rng(3).normal(size=X.shape)
    _, slope = ts.jvp(run, (X,), (direction,))
    assert_close(np.asarray(slope), np.sum(found * direction), factor=10)  # 15 products


@pytest.mark.parametrize("f", SHIFTS)
def test_shifts_have_no_derivative(f: Callable[..., Any]) -> None:
    assert not compares(f)


@pytest.mark.parametrize("f", [softmax, logsumexp, everything])
def test_one_row(f: Callable[..., Any]) -> None:
    assert not compares(f, X[:1])


@pytest.mark.parametrize("f", OTHERS)
def test_what_matters_has_one(f: Callable[..., Any]) -> None:
    assert compares(f)


def test_rows_without_a_largest_number() -> None:
    """They are what they were: no number, and its derivatives."""
    x = np.array([[1.0, np.nan, 2.0], [-np.inf, -np.inf, -np.inf], [0.0, -np.inf, 1.0]])

    def total(x: Any) -> Any:
        return ts.sum(ts.sin(softmax(x)))

    found = np.asarray(ts.grad(total)(x))
    assert np.isnan(found[:2]).all()
    np.testing.assert_array_equal(np.isnan(found[2]), False)


def test_under_vmap_and_twice() -> None:
    f = ts.grad(loss(softmax))
    many = np.stack([X, X + 1, X * 2])
    each = np.stack([np.asarray(f(x)) for x in many])
    assert_close(np.asarray(ts.vmap(f)(many)), each)
    np.testing.assert_allclose(each[0], each[1], rtol=0, atol=1e-12)  # a shift of all

    def directed(x: Any) -> Any:
        return ts.sum(f(x) * W)

    step = 1e-5
    slope = np.sum((np.asarray(f(X + step * W)) - np.asarray(f(X - step * W))) * W)
    second = np.sum(np.asarray(ts.grad(directed)(X)) * W)
    np.testing.assert_allclose(second, slope / (2 * step), rtol=1e-6)
