"""`x.at[...]`, `take` and `take_along_axis` where indices are out of range, and rarer updates."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tessera as ts
from tests.graph.namespace_cases import engine, host, same, sample

__all__ = ["engine"]

X = sample("float64", (4, 5))
ROWS = np.asarray([1, 4, -1, -5, 1, 9, -9])
INSIDE = np.asarray([True, False, True, False, True, False, False])
# Negative indices are counted from the end first, so -5 is before the first row.
CLIPPED = np.asarray([1, 3, 3, 0, 1, 3, 0])


@pytest.fixture(params=["eager", "jit"])
def call(request: Any) -> Callable[..., Any]:
    """Calls a function of arrays, with the arrays known or traced."""

    def run(fn: Callable[..., Any], *xs: np.ndarray) -> Any:
        traced = ts.jit(fn) if request.param == "jit" else fn
        return traced(*map(ts.asarray, xs))

    return run


def test_get(call: Any) -> None:
    same(call(lambda x, i: x.at[i].get(mode="clip"), X, ROWS), X[CLIPPED])
    for mode in ("fill", "drop"):
        found = call(lambda x, i, mode=mode: x.at[i].get(mode=mode), X, ROWS)
        same(found, np.where(INSIDE[:, None], X[CLIPPED], np.nan))
    found = call(lambda x, i: x.at[:, i].get(mode="fill", fill_value=7), X.T, ROWS)
    same(found, np.where(INSIDE, X.T[:, CLIPPED], 7))
    found = call(lambda x, i: x.at[i, i].get(mode="fill", fill_value=7), X[:, :4], ROWS)
    same(found, np.where(INSIDE, X[CLIPPED, CLIPPED], 7))
    good = ROWS[INSIDE]
    same(call(lambda x, i: x.at[i].get(mode="promise_in_bounds"), X, good), X[good])
    same(call(lambda x, i: x.at[i].get(), X, good), X[good])


@pytest.mark.parametrize(
    ("dtype", "fill"),
    [("int8", -128), ("uint16", 65535), ("bool", True), ("complex64", np.nan), ("int64", -(2**63))],
)
def test_what_is_filled_in(dtype: str, fill: Any) -> None:
    x = sample(dtype, (3,))
    found = ts.asarray(x).at[ts.asarray([0, 3])].get(mode="fill")
    same(found, np.asarray([x[0], fill], x.dtype))


def test_int_indices(call: Any) -> None:
    same(call(lambda x: x.at[7].get(mode="clip"), X), X[3])
    same(call(lambda x: x.at[7, 1].get(mode="fill"), X), np.nan * X[0, 0])
    same(call(lambda x: x.at[-1].get(mode="fill"), X), X[3])
    same(call(lambda x: x.at[7, 1:3].set(0.0, mode="drop"), X), X)
    wanted = X.copy()
    wanted[3, 1:3] = 0
    same(call(lambda x: x.at[7, 1:3].set(0.0, mode="clip"), X), wanted)
    for index in (np.asarray(3), np.asarray(9)):
        wanted = X.copy()
        wanted[3] += index < 4
        same(call(lambda x, i: x.at[i].add(1.0, mode="drop"), X, index), wanted)
    same(ts.jit(lambda x, i: x.at[i].set(0.0))(ts.asarray(X), ts.asarray(9)), X)


UFUNCS: dict[str, Any] = {
    "add": np.add, "subtract": np.subtract, "multiply": np.multiply, "min": np.minimum,
    "max": np.maximum, "divide": np.divide,
}  # fmt: skip


@pytest.mark.parametrize("name", UFUNCS)
def test_updates(name: str, call: Any) -> None:
    values = sample("float64", (7, 1), 1, low=1)
    for mode, places, kept in (("clip", CLIPPED, slice(None)), ("drop", ROWS[INSIDE], INSIDE)):
        wanted = X.copy()
        UFUNCS[name].at(wanted, places, np.broadcast_to(values, (7, 5))[kept])

        def update(x: Any, i: Any, v: Any, mode: str = mode) -> Any:
            return getattr(x.at[i], name)(v, mode=mode)

        same(call(update, X, ROWS, values), wanted)


def test_power_and_apply(call: Any) -> None:
    wanted = X.copy()
    wanted[[0, 2]] **= 2
    same(call(lambda x: x.at[::2].power(2), X), wanted)
    wanted = X.copy()
    wanted[[1, 3], 2] = np.exp(wanted[[1, 3], 2])
    index = np.asarray([1, 3, 1])
    same(call(lambda x, i: x.at[i, 2].apply(ts.exp), X, index), wanted)
    same(call(lambda x, i: x.at[i, 2].apply(ts.exp, mode="drop"), X, np.append(index, 4)), wanted)
    wanted = np.where(X > 0, -X, X)
    same(call(lambda x: x.at[x > 0].multiply(-1.0), X), wanted)


def test_products_at_unique_places_have_derivatives() -> None:
    index = ts.asarray([2, 0])

    def loss(v: Any) -> Any:
        updated = ts.asarray(X[0]).at[index].multiply(v, unique_indices=True)
        return ts.sum(updated * ts.arange(5, dtype=ts.float64))

    found = ts.grad(loss)(ts.asarray([3.0, 4.0], dtype=ts.float64))
    same(found, np.asarray([2 * X[0, 2], 0.0]))


def test_derivatives_of_modes() -> None:
    x, i = ts.asarray(X[0]), ts.asarray([1, 7, 7])
    filled = ts.grad(lambda x: ts.sum(x.at[i].get(mode="fill", fill_value=3) ** 2))(x)
    same(filled, np.asarray([0, 2 * X[0, 1], 0, 0, 0]))
    clipped = ts.grad(lambda x: ts.sum(x.at[i].get(mode="clip") ** 2))(x)
    same(clipped, np.asarray([0, 2 * X[0, 1], 0, 0, 4 * X[0, 4]]))
    dropped = ts.grad(lambda v: ts.sum(x.at[i].set(v, mode="drop") ** 2))(x[:3])
    same(dropped, np.asarray([2 * X[0, 0], 0, 0]))


@pytest.mark.parametrize("index", [ROWS, ROWS[:, None], np.asarray(9)])
def test_take(index: np.ndarray, call: Any) -> None:
    moved = np.where(index < 0, index + 4, index)
    inside, clipped = (moved >= 0) & (moved < 4), np.clip(moved, 0, 3)
    found = call(lambda x, i: ts.take(x, i, axis=0, mode="clip"), X, index)
    same(found, np.take(X, clipped, 0))
    found = call(lambda x, i: ts.take(x, i, axis=1, mode="fill", fill_value=-1), X.T, index)
    same(found, np.where(inside, np.take(X.T, clipped, 1), -1))


def test_take_along_axis(call: Any) -> None:
    index = np.asarray([[0, 5, -1, -7, 2]])
    moved = np.where(index < 0, index + 4, index)
    wanted = np.take_along_axis(X, np.clip(moved, 0, 3), 0)
    same(call(lambda x, i: ts.take_along_axis(x, i, axis=0, mode="clip"), X, index), wanted)
    wanted = np.where((moved >= 0) & (moved < 4), wanted, np.nan)
    same(call(lambda x, i: ts.take_along_axis(x, i, axis=0, mode="fill"), X, index), wanted)


def test_empty_arrays() -> None:
    none = ts.zeros((0, 3))
    same(none.at[ts.asarray([0, 1])].get(mode="fill", fill_value=2), np.full((2, 3), 2, np.float32))
    assert host(none.at[ts.asarray([0, 1])].set(1.0, mode="drop")).shape == (0, 3)


@pytest.mark.parametrize("shape", [(0,), (4, 0), (0, 5), (0, 0)])
def test_masks_that_select_nothing(shape: tuple[int, ...]) -> None:
    mask = np.zeros(shape, np.bool_)
    same(ts.asarray(X)[ts.asarray(mask)], X[mask])
    same(ts.asarray(X).at[ts.asarray(mask)].set(0.0), X)


def test_mistakes() -> None:
    x = ts.ones(3)
    for call in (
        lambda: x.at[0].get(mode="wrap"),
        lambda: x.at[0].set(1.0, mode="wrap"),
        lambda: ts.take(x, ts.asarray([0]), mode="wrap"),
        lambda: ts.take_along_axis(x, ts.asarray([0]), mode="wrap"),
    ):
        with pytest.raises(ValueError, match="mode='wrap'") as caught:
            call()
        assert "it is 'clip', 'drop', 'fill', 'promise_in_bounds' or 'raise'" in str(caught.value)
    with pytest.raises(IndexError, match="5 is out of range"):
        x.at[5].set(1.0, mode="promise_in_bounds")
