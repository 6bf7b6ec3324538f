"""Reductions, cumulative functions, searching, sorting, sets, tests of whole arrays."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tessera as ts
from tests.graph.namespace_cases import (
    ALL,
    COMPLEX,
    FLOATS,
    INTEGERS,
    NUMERIC,
    dtype_of,
    engine,
    host,
    same,
    sample,
)

__all__ = ["engine"]

REAL = [*INTEGERS, *FLOATS]
AXES: list[Any] = [None, 0, 1, -1, (0, 2), (2, 0, 1), ()]


def wide(x: np.ndarray) -> np.ndarray:
    """What sums and products are accumulated in."""
    kind = x.dtype.name
    if kind == "bool" or kind.startswith("int"):
        return x.astype(np.int64)
    if kind.startswith("uint"):
        return x.astype(np.uint64)
    return x.astype(np.complex128 if kind.startswith("complex") else np.float64)


def back(found: Any, x: np.ndarray) -> np.ndarray:
    return np.asarray(found) if x.dtype.kind in "biu" else np.asarray(found).astype(x.dtype)


@pytest.mark.parametrize("dtype", ALL)
@pytest.mark.parametrize("axis", AXES)
def test_sum_and_prod(dtype: str, axis: Any) -> None:
    x = sample(dtype, (2, 3, 4), low=0)
    for keep in (False, True):
        found = ts.sum(ts.asarray(x), axis=axis, keepdims=keep)
        same(found, back(np.sum(wide(x), axis=axis, keepdims=keep), x), rtol=1e-2)
    small = (x.astype(np.float64) % 3).astype(x.dtype) if not dtype.startswith("c") else x / 9
    small = small.astype(x.dtype)
    same(ts.prod(ts.asarray(small), axis=axis), back(np.prod(wide(small), axis=axis), x), rtol=2e-2)


@pytest.mark.parametrize("dtype", REAL)
@pytest.mark.parametrize("axis", AXES)
def test_extrema(dtype: str, axis: Any) -> None:
    x = sample(dtype, (2, 3, 4))
    for keep in (False, True):
        same(
            ts.max(ts.asarray(x), axis=axis, keepdims=keep),
            np.max(wide(x), axis=axis, keepdims=keep).astype(x.dtype),
        )
        same(
            ts.min(ts.asarray(x), axis=axis, keepdims=keep),
            np.min(wide(x), axis=axis, keepdims=keep).astype(x.dtype),
        )


@pytest.mark.parametrize("dtype", [*FLOATS, *COMPLEX])
@pytest.mark.parametrize("axis", AXES)
def test_means(dtype: str, axis: Any) -> None:
    x = sample(dtype, (2, 3, 4))
    rtol = {"float16": 2e-3, "bfloat16": 2e-2}.get(dtype, 1e-5)
    for keep in (False, True):
        options = {"axis": axis, "keepdims": keep}
        same(ts.mean(ts.asarray(x), **options), back(np.mean(wide(x), **options), x), rtol=rtol)
        real = np.real(x[:1]).dtype if dtype.startswith("c") else x.dtype
        same(
            ts.var(ts.asarray(x), **options), np.var(wide(x), **options).astype(real), rtol=2 * rtol
        )
        same(ts.std(ts.asarray(x), **options), np.std(wide(x), **options).astype(real), rtol=rtol)


def test_means_of_integers_and_bools() -> None:
    same(ts.mean(ts.asarray([1, 2, 4])), np.float32(7 / 3))
    same(ts.mean(ts.asarray([True, False])), np.float32(0.5))
    same(ts.var(ts.asarray([1, 2, 4])), np.float32(np.var([1, 2, 4])))


def test_a_mean_of_narrow_numbers_does_not_overflow() -> None:
    x = ts.full((1000,), 60000.0, dtype=ts.float16)
    assert float(ts.mean(x)) == 60000
    assert float(ts.std(x)) == 0


@pytest.mark.parametrize("correction", [0, 1, 2.0, 0.5])
def test_correction(correction: float) -> None:
    x = sample("float64", (5, 3))
    same(ts.var(ts.asarray(x), axis=0, correction=correction), np.var(x, axis=0, ddof=correction))
    same(ts.std(ts.asarray(x), correction=correction), np.asarray(np.std(x, ddof=correction)))


def test_reductions_of_nothing() -> None:
    x = ts.zeros((0, 3))
    same(ts.sum(x, axis=0), np.zeros(3, np.float32))
    same(ts.prod(x, axis=0), np.ones(3, np.float32))
    assert np.isnan(host(ts.mean(x, axis=0))).all()
    assert np.isnan(host(ts.var(x, axis=0))).all()
    same(ts.all(x, axis=0), [True] * 3, "bool")
    same(ts.any(x, axis=0), [False] * 3, "bool")
    same(ts.sum(x, axis=1), np.zeros(0, np.float32))
    with pytest.raises(ValueError, match=r"max.*empty"):
        ts.max(x, axis=0)
    with pytest.raises(ValueError, match=r"argmax.*empty"):
        ts.argmax(x, axis=0)


def test_sum_in_a_dtype() -> None:
    x = ts.asarray([100, 100, 100], dtype=ts.int8)
    assert ts.sum(x).dtype is ts.int64
    same(ts.sum(x, dtype=ts.int8), np.int8(44))
    same(ts.sum(x, dtype=ts.float64), np.float64(300))
    assert ts.sum(ts.asarray([1], dtype=ts.uint8)).dtype is ts.uint64
    same(ts.sum(ts.asarray([1.5, 2.5]), dtype=ts.int64), np.int64(3))


def test_special_values() -> None:
    x = ts.asarray([1.0, np.nan, np.inf, -np.inf])
    for fn in (ts.sum, ts.max, ts.min, ts.mean):
        assert np.isnan(float(fn(x)))
    assert int(ts.argmax(x)) == 1
    assert int(ts.argmin(x)) == 1
    assert float(ts.max(ts.asarray([-np.inf, -1.0]))) == -1


@pytest.mark.parametrize("dtype", ["float32", "int8", "uint16", "bool", "bfloat16"])
@pytest.mark.parametrize("axis", [None, 0, 1, -1])
@pytest.mark.parametrize("keep", [False, True])
def test_positions(dtype: str, axis: Any, keep: bool) -> None:
    x = sample(dtype, (3, 4))
    same(ts.argmax(ts.asarray(x), axis=axis, keepdims=keep), np.argmax(x, axis, keepdims=keep))
    same(ts.argmin(ts.asarray(x), axis=axis, keepdims=keep), np.argmin(x, axis, keepdims=keep))


@pytest.mark.parametrize("dtype", ALL)
@pytest.mark.parametrize("axis", AXES)
def test_truth(dtype: str, axis: Any) -> None:
    x = sample(dtype, (2, 3, 4), low=-1)
    same(ts.all(ts.asarray(x), axis=axis), np.all(x != 0, axis=axis))
    same(ts.any(ts.asarray(x), axis=axis, keepdims=True), np.any(x != 0, axis, keepdims=True))
    count = np.sum(x != 0, axis=axis, dtype=np.int64)
    same(ts.count_nonzero(ts.asarray(x), axis=axis), count)


def test_max_of_bools() -> None:
    x = np.asarray([[True, False], [False, False]])
    same(ts.max(ts.asarray(x), axis=1), x.max(1))
    same(ts.min(ts.asarray(x), axis=1), x.min(1))
    same(ts.maximum(ts.asarray(x), ts.asarray(x[0])), np.maximum(x, x[0]))


@pytest.mark.parametrize("axis", [5, -3, (0, 0), (0, -2), 1.5, "a"])
def test_wrong_axes(axis: Any) -> None:
    with pytest.raises(ValueError, match="sum: axis") as caught:
        ts.sum(ts.ones((2, 3)), axis=axis)
    assert "test_namespace_statistics.py" in str(caught.value)


# --- cumulative -------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["int8", "uint8", "float32", "float64", "complex64", "bool"])
@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("initial", [False, True])
def test_cumulative(dtype: str, axis: int, initial: bool) -> None:
    x = sample(dtype, (3, 4))
    options: dict[str, Any] = {"axis": axis, "include_initial": initial}
    for own, numpy, start in (
        (ts.cumulative_sum, np.cumsum, 0),
        (ts.cumulative_prod, np.cumprod, 1),
    ):
        wanted = numpy(wide(x), axis=axis)
        if initial:
            shape = [1 if k == axis % 2 else d for k, d in enumerate(x.shape)]
            wanted = np.concatenate([np.full(shape, start, wanted.dtype), wanted], axis)
        same(own(ts.asarray(x), **options), back(wanted, x), rtol=1e-5)


def test_cumulative_without_axis() -> None:
    same(ts.cumulative_sum(ts.asarray([1, 2, 3])), [1, 3, 6], "int64")
    same(ts.cumulative_sum(ts.asarray([1, 2]), dtype=ts.float32), [1, 3], "float32")
    with pytest.raises(ValueError, match="cumulative_sum: no axis is given"):
        ts.cumulative_sum(ts.ones((2, 2)))


@pytest.mark.parametrize("n", [0, 1, 2, 3, 6])
@pytest.mark.parametrize("axis", [0, 1, -1])
def test_diff(n: int, axis: int) -> None:
    x = sample("int32", (4, 5))
    same(ts.diff(ts.asarray(x), axis=axis, n=n), np.diff(x, n=n, axis=axis))


def test_diff_with_more_at_the_ends() -> None:
    x = sample("float32", (2, 3))
    edge = sample("float32", (2, 1), 1)
    same(
        ts.diff(ts.asarray(x), prepend=ts.asarray(edge), append=ts.asarray(edge)),
        np.diff(x, prepend=edge, append=edge),
    )


@pytest.mark.parametrize("axis", [None, 0, 1, (0, 1)])
def test_exponentials(axis: Any) -> None:
    x = np.asarray([[1.0, 1000.0, -np.inf], [-2000.0, -2001.0, 3.0]])
    top = x.max(axis, keepdims=True)
    total = np.sum(np.exp(x - top), axis, keepdims=True)
    wanted = np.log(total) + top
    same(ts.logsumexp(ts.asarray(x), axis=axis, keepdims=True), wanted)
    same(ts.softmax(ts.asarray(x), axis=axis), np.exp(x - top) / total)
    same(ts.log_softmax(ts.asarray(x), axis=axis), x - wanted)


def test_logsumexp_of_infinities() -> None:
    x = ts.asarray([-np.inf, -np.inf])
    assert float(ts.logsumexp(x)) == -np.inf
    assert float(ts.logsumexp(ts.asarray([np.inf, 1.0]))) == np.inf
    assert np.isnan(float(ts.logsumexp(ts.asarray([np.nan, 1.0]))))


# --- searching --------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ALL)
def test_where(dtype: str) -> None:
    x, y, c = sample(dtype, (3, 1)), sample(dtype, (4,), 1), sample("bool", (2, 1, 4))
    same(ts.where(ts.asarray(c), ts.asarray(x), ts.asarray(y)), np.where(c, x, y))


def test_where_with_numbers() -> None:
    c = ts.asarray([True, False])
    same(ts.where(c, 1, 0), [1, 0], "int64")
    same(ts.where(c, 1.5, 0), [1.5, 0], "float32")
    same(ts.where(c, ts.asarray([1, 2], dtype=ts.int8), 0), [1, 0], "int8")
    same(ts.where(ts.asarray([1, 0]), 1, 0), [1, 0], "int64")


@pytest.mark.parametrize("shape", [(4,), (3, 4), (0,), (2, 0, 3)])
def test_nonzero(shape: tuple[int, ...]) -> None:
    x = sample("int32", shape, low=-1)
    for a, b in zip(ts.nonzero(ts.asarray(x)), np.nonzero(x), strict=True):
        same(a, b)
    with pytest.raises(ValueError, match="nonzero: the array is"):
        ts.nonzero(ts.asarray(1))


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("size", [0, 1, 2, 5, 8, 33])
@pytest.mark.parametrize("dtype", ["float32", "int64", "uint8"])
def test_searchsorted(side: Any, size: int, dtype: str) -> None:
    line = np.sort(sample(dtype, (size,)))
    wanted = sample(dtype, (4, 5), 1)
    found = ts.searchsorted(ts.asarray(line), ts.asarray(wanted), side=side)
    same(found, np.searchsorted(line, wanted, side))


@pytest.mark.parametrize("side", ["left", "right"])
def test_searchsorted_of_special_values(side: Any) -> None:
    line = np.asarray([-np.inf, -1, 0, 0, 2, np.inf, np.nan, np.nan])
    values = np.asarray([np.nan, np.inf, -np.inf, 0, -0.0, 3])
    found = ts.searchsorted(ts.asarray(line), ts.asarray(values), side=side)
    same(found, np.searchsorted(line, values, side))


def test_searchsorted_in_an_order() -> None:
    line = np.asarray([3, 1, 2])
    order = np.argsort(line)
    found = ts.searchsorted(ts.asarray(line), ts.asarray(2), sorter=ts.asarray(order))
    same(found, np.searchsorted(line, 2, sorter=order))


# --- sorting and sets -------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["bool", *REAL])
@pytest.mark.parametrize("axis", [0, 1, -1])
def test_sort(dtype: str, axis: int) -> None:
    x = sample(dtype, (5, 6))
    same(ts.sort(ts.asarray(x), axis=axis), np.sort(x, axis))
    down = np.flip(np.sort(x, axis), axis)
    same(ts.sort(ts.asarray(x), axis=axis, descending=True), down)
    same(ts.argsort(ts.asarray(x), axis=axis), np.argsort(x, axis, stable=True))


def test_descending_order_is_stable() -> None:
    x = ts.asarray([1, 2, 1, 2, 1])
    same(ts.argsort(x, descending=True), [1, 3, 0, 2, 4], "int64")


def test_nan_comes_last() -> None:
    x = np.asarray([np.nan, 1, -np.inf, np.nan, np.inf])
    same(ts.sort(ts.asarray(x)), np.sort(x))
    same(ts.argsort(ts.asarray(x)), np.argsort(x, stable=True))


def test_complex_numbers_are_not_sorted() -> None:
    with pytest.raises(TypeError, match="sort: the array is c64"):
        ts.sort(ts.asarray([1j]))


@pytest.mark.parametrize("dtype", ["bool", *NUMERIC])
@pytest.mark.parametrize("shape", [(12,), (3, 4), (), (0,)])
def test_sets(dtype: str, shape: tuple[int, ...]) -> None:
    x = sample(dtype, shape)
    values, indices, inverse, counts = np.unique(
        x if dtype != "bfloat16" else x.astype(np.float32),
        return_index=True,
        return_inverse=True,
        return_counts=True,
    )
    values = values.astype(dtype_of(dtype))
    found = ts.unique_all(ts.asarray(x))
    same(found.values, values)
    same(found.indices, indices)
    same(found.inverse_indices, inverse.reshape(shape))
    same(found.counts, counts)
    same(ts.unique_values(ts.asarray(x)), values)
    same(ts.unique_counts(ts.asarray(x)).counts, counts)
    same(ts.unique_inverse(ts.asarray(x)).inverse_indices, inverse.reshape(shape))


@pytest.mark.parametrize("dtype", ["f4", "f8", "f2", "i4", "i8", "u1", "i2", "b1", "c8"])
@pytest.mark.parametrize("size", [0, 1, 999, 1000, 30000])
def test_unique_elements_of_few_and_of_many(dtype: str, size: int) -> None:
    """NumPy finds the one, a compiled sort the other."""
    random = np.random.default_rng(size)
    x = (random.integers(-3, 40, size) * 0.75).astype(dtype)
    if np.issubdtype(x.dtype, np.inexact):
        x[1::7], x[::11], x[2:6:2] = -0.0, 0.0, np.nan
    x = x if size % 2 else x.reshape(2, -1)
    values, indices, inverse, counts = np.unique(
        x, return_index=True, return_inverse=True, return_counts=True, equal_nan=False
    )
    values = x.reshape(-1)[indices]
    found = ts.unique_all(ts.asarray(x))
    same(found.indices, indices)
    same(found.inverse_indices, inverse.reshape(x.shape))
    same(found.counts, counts)
    same(ts.unique_inverse(ts.asarray(x)).inverse_indices, inverse.reshape(x.shape))
    same(ts.unique_counts(ts.asarray(x)).counts, counts)
    for function in (ts.unique_all, ts.unique_inverse, ts.unique_counts):
        assert np.asarray(function(ts.asarray(x)).values).tobytes() == values.tobytes()
    assert np.asarray(ts.unique_values(ts.asarray(x))).tobytes() == values.tobytes()


def test_every_nan_is_distinct() -> None:
    found = ts.unique_counts(ts.asarray([np.nan, 1.0, np.nan]))
    assert found.values.shape == (3,)
    same(found.counts, [1, 1, 1], "int64")


# --- exponentials of 8-bit floats, and of nothing -----------------------------------------------


@pytest.mark.parametrize("jitted", [False, True])
@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "float8_e5m2"])
@pytest.mark.parametrize("name", ["softmax", "log_softmax", "logsumexp"])
def test_exponentials_of_storage_types(name: str, dtype: str, jitted: bool) -> None:
    x = ts.asarray([[1.0, 2.0, 3.0], [0.0, -1.5, 96.0]], dtype=getattr(ts, dtype))
    function: Any = getattr(ts, name)
    wanted = function(x.astype(ts.float32), axis=-1).astype(x.dtype)
    found = (ts.jit(function, static_argnames="axis") if jitted else function)(x, axis=-1)
    assert found.dtype is x.dtype
    assert np.asarray(found).tobytes() == np.asarray(wanted).tobytes()


@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "float8_e5m2", "bfloat16", "float32"])
def test_stop_gradient_keeps_all_floats(dtype: str) -> None:
    x = ts.asarray([1.0, -2.0], dtype=getattr(ts, dtype))
    for found in (ts.stop_gradient(x), ts.jit(ts.stop_gradient)(x)):
        assert found.dtype is x.dtype
        assert host(found).tobytes() == host(x).tobytes()


@pytest.mark.parametrize("jitted", [False, True])
def test_exponentials_of_nothing(jitted: bool) -> None:
    def apply(fn: Any, *shape: int) -> Any:
        return (ts.jit(fn) if jitted else fn)(ts.zeros(shape))

    low = np.full(3, -np.inf, np.float32)
    same(apply(lambda x: ts.logsumexp(x, axis=0), 0, 3), low)
    same(apply(lambda x: ts.logsumexp(x, axis=0, keepdims=True), 0, 3), low[None])
    same(apply(ts.logsumexp, 0, 3), np.float32(-np.inf))
    same(apply(lambda x: ts.logsumexp(x, axis=1), 0, 3), np.zeros(0, np.float32))
    for fn in (ts.softmax, ts.log_softmax):
        for axis in (0, 1):
            same(apply(lambda x, fn=fn, axis=axis: fn(x, axis=axis), 0, 3), np.zeros((0, 3), "f4"))


def test_gradient_of_the_logsumexp_of_nothing() -> None:
    found = ts.grad(lambda x: ts.sum(ts.logsumexp(x, axis=0)))(ts.zeros((0, 3)))
    same(found, np.zeros((0, 3), np.float32))


@pytest.mark.parametrize("size", range(1, 11))
def test_few_elements_are_exchanged_where_they_are(size: int) -> None:
    """A compiled program sorts no line of few: NaN comes to all of them, and ties are what they
    are."""
    rng = np.random.default_rng(size)
    x = rng.integers(-3, 4, (40, size, 3)).astype(np.float32)
    x[1, -1, 1], x[3, 0, 0] = np.nan, -0.0

    def fn(x: Any) -> Any:
        return ts.median(x, axis=1), ts.quantile(x, 0.3, axis=1), ts.median(x[:, ::-1], axis=1)

    wanted = np.median(x, axis=1), np.quantile(x, np.float32(0.3), axis=1), np.median(x, axis=1)
    for a, b in zip(ts.jit(fn)(x), wanted, strict=True):
        np.testing.assert_allclose(np.asarray(a), b, rtol=1e-5, atol=1e-5)
    x[0, 0], x[2, size // 2, 2] = np.inf, -np.inf
    for a, b in zip(ts.jit(fn)(x), fn(ts.asarray(x)), strict=True):
        np.testing.assert_array_equal(np.asarray(a), np.asarray(b))
    text = ts.jit(fn).lower(x).stage("graph")
    assert ("graph.sort" in text) == (size > 9)
    assert size < 10 or text.count("graph.slice") < size


def test_the_median_of_a_window_is_one_kernel() -> None:
    def fn(x: Any) -> Any:
        p = ts.pad(x, ((1, 1), (1, 1)))
        around = [p[i : i + 20, j : j + 30] for i in range(3) for j in range(3)]
        return ts.median(ts.stack(around, axis=-1), axis=-1)

    x = np.random.default_rng(0).standard_normal((20, 30)).astype(np.float32)
    p = np.pad(x, 1)
    around = [p[i : i + 20, j : j + 30] for i in range(3) for j in range(3)]
    found = ts.jit(fn)
    np.testing.assert_array_equal(np.asarray(found(x)), np.median(np.stack(around), axis=0))
    assert "concatenate" not in found.lower(x).stage("graph")
