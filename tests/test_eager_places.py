"""Functions of places outside of any trace, which are few programs that native code runs: bisection
and what is made of it, elements at index arrays, and copies that are changed there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import tessera as ts
from tessera.errors import IndexOutOfBoundsError, ShapeError
from tessera.runtime.dispatch.native import native
from tests.counting import calls, forget, names_of_compiled
from tests.tolerance import assert_close

RNG = np.random.default_rng(41)
NATIVE = pytest.mark.skipif(native() is None, reason="the layout of objects is not known")


def floats(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


# --- bisection ----------------------------------------------------------------------------------


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int32, np.uint8, ml_dtypes.bfloat16])
def test_places_in_lines_of_any_length(dtype: Any, side: Any) -> None:
    wanted = np.concatenate([RNG.integers(0, 99, 40), [0, 99]]).astype(dtype)
    for size in (0, 1, 2, 3, 7, 8, 9, 63, 64, 65, 300):
        line = np.sort(RNG.integers(0, 99, size).astype(dtype))
        found = ts.searchsorted(ts.asarray(line), ts.asarray(wanted), side=side)
        expected = np.searchsorted(line.astype(np.float64), wanted.astype(np.float64), side)
        assert found.dtype is ts.int64
        assert np.array_equal(np.asarray(found), expected)


def test_numbers_that_are_not_numbers_come_last() -> None:
    line, wanted = np.array([1, 2, np.nan, np.nan], "f4"), np.array([np.nan, -np.inf, np.inf], "f4")
    for side in ("left", "right"):
        found = ts.searchsorted(ts.asarray(line), ts.asarray(wanted), side=side)
        assert np.array_equal(np.asarray(found), np.searchsorted(line, wanted, side))


@pytest.mark.unchecked
def test_few_programs_serve_all_lengths(monkeypatch: pytest.MonkeyPatch) -> None:
    names = names_of_compiled(monkeypatch)
    wanted = ts.asarray(floats(3, 5, 2, 1).astype(np.float16))
    for size in range(3, 500, 7):
        ts.searchsorted(ts.asarray(np.zeros(size, np.float16)), wanted)
    assert 0 < names.count("_first_places") <= 3


def test_bins_and_lines_are_those_of_numpy() -> None:
    x, edges = floats(70), np.array([-2.0, -0.5, 0.0, 0.25, 3.0], "f4")
    values = floats(5)
    for _ in range(3):
        for bins in (7, edges):
            counts, found = ts.histogram(ts.asarray(x), bins)
            expected = np.histogram(x, bins)
            assert np.array_equal(np.asarray(counts), expected[0])
            assert_close(np.asarray(found), expected[1].astype(np.float32))
        found = ts.interp(ts.asarray(x), ts.asarray(edges), ts.asarray(values), left=1.5)
        expected = np.interp(x, edges, values, left=1.5).astype(np.float32)
        assert_close(np.asarray(found), expected, factor=20.0)
        found = ts.digitize(ts.asarray(x), ts.asarray(edges))
        assert np.array_equal(np.asarray(found), np.digitize(x, edges))


# --- what native code calls -----------------------------------------------------------------------

PLACES = ts.asarray(RNG.integers(0, 9, 9))
COLUMNS = ts.asarray(RNG.integers(0, 9, (9, 9)))
LINE, X = ts.asarray(np.sort(floats(9))), ts.asarray(floats(9, 9))

CALLS: dict[str, Callable[[], Any]] = {
    "searchsorted": lambda: ts.searchsorted(LINE, X),
    "digitize": lambda: ts.digitize(X, LINE),
    "interp": lambda: ts.interp(X, LINE, LINE),
    "bincount": lambda: ts.bincount(PLACES, length=9),
    "segment_sum": lambda: ts.segment_sum(X, PLACES, 9),
    "roll": lambda: ts.roll(X, -2, axis=1),
}


@NATIVE
@pytest.mark.unchecked
@pytest.mark.parametrize("name", CALLS)
def test_known_calls_are_native(name: str) -> None:
    forget(getattr(ts, name))
    for _ in range(4):
        CALLS[name]()
    assert calls(CALLS[name])[0] == 1  # the test's own


@NATIVE
@pytest.mark.unchecked
@pytest.mark.parametrize(
    "change",
    [
        lambda: X.at[PLACES].add(1.0),
        lambda: X.at[PLACES, PLACES].set(X[0]),
        lambda: ts.take_along_axis(X, COLUMNS, axis=1),
    ],
    ids=["add", "set", "along"],
)
def test_python_only_looks_at_places(change: Callable[[], Any]) -> None:
    for _ in range(4):
        change()
    assert calls(change)[0] < 110


# --- places ---------------------------------------------------------------------------------------

UPDATES: dict[str, Callable[..., None]] = {
    "set": lambda x, i, v: x.__setitem__(i, v),
    "add": np.add.at,
    "multiply": np.multiply.at,
    "min": np.minimum.at,
    "max": np.maximum.at,
}


@pytest.mark.parametrize("dtype", [np.float32, np.int32, np.int8])
@pytest.mark.parametrize("name", UPDATES)
def test_copies_changed_at_places(name: str, dtype: Any) -> None:
    x = RNG.integers(-5, 5, (6, 7)).astype(dtype)
    rows, columns = RNG.permutation(6)[:4], np.array([1, -7, 6, 1])
    cases: list[tuple[Any, Any]] = [
        (rows, 2), (rows - 6, RNG.integers(1, 4, (4, 7)).astype(dtype)),
        ((rows, columns), RNG.integers(1, 4, 4).astype(dtype)), ((rows[:, None], columns[:2]), 3),
        (np.array([], np.int64), 1), (np.array([2, 2, 2]), 2),
    ]
    for index, values in cases:
        expected = x.copy()
        UPDATES[name](expected, index, values)
        items = index if isinstance(index, tuple) else (index,)
        places = tuple([ts.asarray(i) for i in items])
        given = values if isinstance(values, int) else ts.asarray(values)
        for _ in range(3):
            at = ts.asarray(x).at[places if len(places) > 1 else places[0]]
            assert np.array_equal(np.asarray(getattr(at, name)(given)), expected)


def test_gradients_of_what_is_written() -> None:
    places, x, values = ts.asarray([1, -1, 1]), ts.asarray(floats(4)), ts.asarray(floats(3))

    def f(x: Any, values: Any) -> Any:
        return ts.sum(x.at[places].add(values) ** 2)

    for _ in range(3):
        found = ts.grad(f, argnums=(0, 1))(x, values)
        expected = ts.jit(ts.grad(f, argnums=(0, 1)))(x, values)
        for a, b in zip(found, expected, strict=True):
            assert_close(np.asarray(a), np.asarray(b), factor=10.0)


def test_errors_are_said_each_time() -> None:
    x = ts.asarray(floats(4, 3))
    for _ in range(3):
        with pytest.raises(IndexOutOfBoundsError, match="index: 4 is out of range for dim 0"):
            x.at[ts.asarray([1, 4])].add(1.0)
        with pytest.raises(ShapeError, match="values are broadcast to the shape of the elements"):
            x.at[ts.asarray([1, 2])].add(ts.zeros((3, 3)))
        with pytest.raises(ShapeError, match="index arrays are broadcast to one shape"):
            x.at[ts.asarray([1, 2]), ts.asarray([0, 1, 2])].set(0.0)
        with pytest.raises(IndexOutOfBoundsError, match="-5 is out of range"):
            ts.take_along_axis(x, ts.asarray([[0, -5, 1]]), axis=0)


# --- rolls ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(3, 40_000), (300, 200), (7, 5)], ids=str)
def test_rolls_of_any_number_of_places(shape: tuple[int, int]) -> None:
    x = floats(*shape)
    for shift in (0, 1, -1, 3, -4, shape[1] - 1, shape[1], 12345, -12345):
        for axis in (0, 1, -1, None):
            found = ts.roll(ts.asarray(x), shift, axis=axis)
            assert np.array_equal(np.asarray(found), np.roll(x, shift, axis))
    found = ts.roll(ts.asarray(x), (2, -3), axis=(0, 1))
    assert np.array_equal(np.asarray(found), np.roll(x, (2, -3), (0, 1)))


# --- masks ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int8, np.complex64, np.bool_])
@pytest.mark.parametrize("share", [0.0, 0.05, 0.5, 1.0])
def test_elements_that_a_mask_chooses(share: float, dtype: Any) -> None:
    for shape in ((20_000,), (130, 150), (40_001,)):
        x = RNG.integers(0, 2 if dtype is np.bool_ else 99, shape).astype(dtype)
        mask = RNG.random(shape) < share
        found = ts.asarray(x)[ts.asarray(mask)]
        assert np.array_equal(np.asarray(found), x[mask])
        turned = ts.flip(ts.asarray(x), axis=0)[ts.asarray(mask)]
        assert np.array_equal(np.asarray(turned), np.flip(x, 0)[mask])


def test_a_mask_of_a_large_array_is_one_program(monkeypatch: pytest.MonkeyPatch) -> None:
    names = names_of_compiled(monkeypatch)
    x = np.zeros(1 << 14, np.int16)
    for share in (2, 3, 5):
        mask = np.arange(1 << 14) % share == 0
        assert ts.asarray(x)[ts.asarray(mask)].shape == (mask.sum(),)
    assert names.count("_compressed") == 1
