"""`associative_scan` and `reduce`, against loops of Python."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tessera as ts
from tests.tolerance import assert_close

MODES: list[Callable[[Callable[..., Any]], Callable[..., Any]]] = [lambda f: f, ts.jit]


@pytest.fixture(params=MODES, ids=["eager", "jit"])
def mode(request: pytest.FixtureRequest) -> Any:
    return request.param


def values(dtype: Any, *shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).uniform(0.5, 1.5, shape).astype(dtype)


@given(
    st.integers(0, 17),
    st.integers(0, 1),
    st.booleans(),
    st.sampled_from(["add", "multiply", "maximum"]),
)
def test_prefixes(count: int, axis: int, reverse: bool, name: str) -> None:
    x = values(np.float64, count, 3) if axis == 0 else values(np.float64, 3, count)
    found = ts.associative_scan(getattr(ts, name), x, reverse=reverse, axis=axis - 2)
    flipped = np.flip(x, axis) if reverse else x
    wanted = getattr(np, name).accumulate(flipped, axis)
    assert_close(found, np.flip(wanted, axis) if reverse else wanted, length=max(count, 1))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8", "complex128"])
def test_prefixes_of_dtypes(mode: Any, dtype: str) -> None:
    x = ts.astype(ts.asarray([3, 1, 4, 1, 5, 9, 2]), getattr(ts, dtype))
    found = mode(lambda x: ts.associative_scan(ts.add, x))(x)
    assert found.dtype is x.dtype
    np.testing.assert_array_equal(np.asarray(found).astype(complex), [3, 4, 8, 9, 14, 23, 25])


def affine(a: Any, b: Any) -> Any:
    """The map x -> m x + t after another one; associative, and not commutative."""
    return {"m": b["m"] * a["m"], "t": b["m"] * a["t"] + b["t"]}


def recurrence(maps: Any, count: int) -> tuple[Any, Any]:
    m, t = maps["m"][0], maps["t"][0]
    found = [(m, t)]
    for i in range(1, count):
        m, t = maps["m"][i] * m, maps["m"][i] * t + maps["t"][i]
        found.append((m, t))
    return ts.stack([m for m, _ in found]), ts.stack([t for _, t in found])


@pytest.mark.parametrize("count", [1, 2, 5, 8])
def test_prefixes_of_a_linear_recurrence(mode: Any, count: int) -> None:
    m, t = values(np.float64, count, 2), values(np.float64, 2, count).T
    maps = {"m": ts.asarray(m), "t": ts.asarray(t)}
    found = mode(lambda maps: ts.associative_scan(affine, maps))(maps)
    m, t = recurrence(maps, count)
    assert_close(found["m"], m, length=count)
    assert_close(found["t"], t, length=count)


def test_derivatives_and_batches_of_prefixes(mode: Any) -> None:
    maps = {"m": ts.asarray(values(np.float64, 6, 2)), "t": ts.asarray(values(np.float64, 6, 2))}

    def f(maps: Any) -> Any:
        return ts.sum(ts.associative_scan(affine, maps)["t"] ** 2)

    def by_hand(maps: Any) -> Any:
        return ts.sum(recurrence(maps, 6)[1] ** 2)

    found, wanted = mode(ts.grad(f))(maps), ts.grad(by_hand)(maps)
    assert_close(found["m"], wanted["m"], length=50)
    assert_close(found["t"], wanted["t"], length=50)
    a, b = [mode(lambda x, g=g: ts.jvp(g, (x,), (x,))[1])(maps) for g in (f, by_hand)]
    assert_close(a, b, length=50)
    rows = mode(ts.vmap(lambda x: ts.associative_scan(ts.add, x), in_axes=1))(maps["m"])
    assert_close(rows, np.cumsum(np.asarray(maps["m"]), 0).T, length=6)


@pytest.mark.parametrize("dimensions", [(), (0,), (1,), (2, 0), (0, 1, -1)])
@pytest.mark.parametrize("name", ["add", "multiply", "minimum", "maximum", "hypot", "logaddexp"])
def test_reduce(mode: Any, name: str, dimensions: tuple[int, ...]) -> None:
    x = values(np.float64, 3, 5, 2)
    start = {"add": 0.0, "multiply": 1.0, "minimum": np.inf, "hypot": 0.0}.get(name, -np.inf)
    found = mode(lambda x: ts.reduce(x, start, getattr(ts, name), dimensions))(x)
    wanted = getattr(np, name).reduce(x, tuple(dimensions), initial=start) if dimensions else x
    if dimensions and name in ("hypot", "logaddexp"):
        # These take one axis at a time.
        wanted = x
        for axis in sorted([d % 3 for d in dimensions], reverse=True):
            wanted = getattr(np, name).reduce(wanted, axis)
    assert_close(found, wanted, length=30)


def test_reduce_of_nothing_and_of_containers(mode: Any) -> None:
    empty = mode(lambda x: ts.reduce(x, 7.0, ts.hypot, (0,)))(ts.ones((0, 3)))
    np.testing.assert_array_equal(empty, [7, 7, 7])
    assert mode(lambda x: ts.reduce(x, 0.0, ts.add, (0,)))(ts.ones((2, 0))).shape == (0,)

    def larger(a: Any, b: Any) -> Any:
        """The largest key, and what belongs to it."""
        first = a["key"] >= b["key"]
        return {"key": ts.where(first, a["key"], b["key"]), "at": ts.where(first, a["at"], b["at"])}

    x = values(np.float32, 4, 7)
    trees = {"key": ts.asarray(x), "at": ts.broadcast_to(ts.arange(7), (4, 7))}
    start = {"key": -ts.inf, "at": -1}
    found = mode(lambda t: ts.reduce(t, start, larger, (1,)))(trees)
    np.testing.assert_array_equal(found["at"], np.argmax(x, 1))
    assert_close(found["key"], x.max(1))


def test_initial_values_count(mode: Any) -> None:
    assert float(mode(lambda x: ts.reduce(x, 10.0, lambda a, b: a + b, (0,)))(ts.ones(3))) == 13
    assert float(mode(lambda x: ts.reduce(x, 4.0, ts.hypot, (0,)))(3 * ts.ones(1))) == 5


def test_derivatives_and_batches_of_reduce(mode: Any) -> None:
    x = ts.asarray(values(np.float64, 5))

    def f(x: Any) -> Any:
        return ts.reduce(x, 0.0, ts.hypot, (0,))

    norm = np.sqrt(np.sum(np.asarray(x) ** 2))
    assert_close(mode(ts.grad(f))(x), np.asarray(x) / norm, length=5)
    assert_close(mode(lambda x: ts.jvp(f, (x,), (x,))[1])(x), norm, length=5)
    assert_close(mode(ts.vmap(f))(ts.stack([x, 2 * x])), np.stack([norm, 2 * norm]), length=5)
