"""Functions beyond the array API standard that NumPy has, against NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tessera as ts
from tests.graph.namespace_cases import engine, same, sample

__all__ = ["engine"]


@pytest.mark.parametrize("dtype", ["float32", "int8", "bool", "complex64"])
@pytest.mark.parametrize("shapes", [((3, 4), (5,)), ((), (2, 2)), ((4,), (0,)), ((0,), (3,))])
def test_isin(dtype: str, shapes: Any) -> None:
    x, y = (np.round(sample(dtype, shape, low=-3) / 4).astype(dtype) for shape in shapes)
    same(ts.isin(ts.asarray(x), ts.asarray(y)), np.isin(x, y))
    same(ts.isin(ts.asarray(x), ts.asarray(y), invert=True), np.isin(x, y, invert=True))


def test_isin_of_numbers_and_nan() -> None:
    same(ts.isin(3, ts.asarray([1, 3])), np.asarray(True))
    same(ts.isin(ts.asarray([1.0, np.nan]), ts.asarray([np.nan, 1.0])), np.asarray([True, False]))


EINSUMS: list[Any] = [
    ("ij,jk->ik", (3, 4), (4, 5)), ("ij,jk", (3, 4), (4, 5)), ("ii->i", (4, 4)), ("ii", (4, 4)),
    ("ij->ji", (3, 4)), ("ij->", (3, 4)), ("...ij,...jk->...ik", (2, 3, 4), (4, 5)),
    ("bhqd,bhkd->bhqk", (2, 3, 4, 5), (2, 3, 6, 5)), ("ij,jk,kl->il", (2, 3), (3, 4), (4, 5)),
    ("i,j", (3,), (4,)), ("i,i", (3,), (3,)), (",ij->ij", (), (2, 3)),
    ("ij,kj->ik", (1, 4), (3, 4)),
    ("iij,jk->ik", (3, 3, 2), (2, 4)), ("ij,kj->ik", (2, 1), (3, 4)), ("i...->...", (3, 2, 2)),
    ("abc,abc->", (2, 3, 4), (2, 3, 4)), ("...->...", (3, 2)), ("iji->j", (3, 2, 3)),
    ("ij,jk,ki->", (2, 3), (3, 4), (4, 2)), ("i,i,i->i", (3,), (3,), (3,)),
    ("ab,b->a", (0, 3), (3,)),
    ("ab,b->a", (3, 0), (0,)), ("aij,a->ij", (2, 3, 3), (1,)), ("b i , i->b", (2, 3), (3,)),
    ("ijj,jkk->ik", (2, 3, 3), (3, 4, 4)), ("...i,i...->...", (2, 3), (3, 2)),
    ("ijk,ilm,njm,nlk,abc->", (2, 3, 2), (2, 2, 3), (2, 3, 3), (2, 2, 2), (1, 2, 1)),
]  # fmt: skip


@pytest.mark.parametrize("case", EINSUMS, ids=lambda c: c[0])
@pytest.mark.parametrize("dtype", ["float64", "complex128", "int64"])
def test_einsum(case: Any, dtype: str) -> None:
    text, *shapes = case
    xs = [sample(dtype, shape, k) for k, shape in enumerate(shapes)]
    same(ts.einsum(text, *map(ts.asarray, xs)), np.einsum(text, *xs), rtol=1e-12)


def test_einsum_takes_lists() -> None:
    x, y = sample("float64", (3, 4)), sample("float64", (4, 5), 1)
    a, b = ts.asarray(x), ts.asarray(y)
    same(ts.einsum(a, [0, 1], b, [1, 2], [2, 0]), (x @ y).T, rtol=1e-12)
    same(ts.einsum(a, [5, 1], b, [1, 2]), np.einsum(x, [5, 1], y, [1, 2]), rtol=1e-12)
    same(ts.einsum(a, [..., 1]), np.einsum(x, [..., 1]), rtol=1e-12)


def test_einsum_of_other_dtypes() -> None:
    flags = np.asarray([[True, False], [False, False]])
    same(ts.einsum("ij,jk->ik", ts.asarray(flags), ts.asarray(flags)), flags @ flags)
    x = ts.asarray(np.full(200, 100, np.int8))
    same(ts.einsum("i,i->", x, x, preferred_element_type=ts.int32), np.asarray(2000000, np.int32))
    same(ts.einsum("i->", x, preferred_element_type=ts.int32), np.asarray(20000, np.int32))
    half = ts.astype(ts.asarray([1.0, 2.0]), ts.bfloat16)
    assert ts.einsum("i,i", half, ts.asarray([1.0, 2.0])).dtype is ts.float32


@pytest.mark.parametrize(
    ("text", "shapes", "what"),
    [
        ("ij,jk", [(2, 3)], "2 groups of letters for 1 operands"),
        ("ij", [(2, 3, 4)], "'ij' for operand 0, which is f32[2, 3, 4]"),
        ("ijk", [(2, 3)], "'ijk' for operand 0"),
        ("i1", [(2, 3)], "dims are letters"),
        ("ij->ik", [(2, 3)], "the result 'ik' has 'k', which no operand has"),
        ("ij->ii", [(2, 3)], "each once"),
        ("...j->j", [(2, 3)], "the dims of `...` are not summed"),
        ("ij,jk", [(2, 3), (4, 5)], "operand 1 is f32[4, 5], with 4 for 'j', which is 3"),
        ("ii", [(2, 3)], "dims of one letter have equal lengths"),
    ],
)
def test_wrong_einsums(text: str, shapes: Any, what: str) -> None:
    with pytest.raises(ts.TesseraError) as caught:
        ts.einsum(text, *[ts.ones(shape) for shape in shapes])
    assert what in str(caught.value)
    assert "test_namespace_numpy.py" in str(caught.value)


# --- padding ----------------------------------------------------------------------------------

WIDTHS: list[Any] = [2, (1, 3), ((0, 0), (2, 1)), ((3, 0), (0, 4)), ((5, 6), (7, 2)), 0, [(1, 2)]]


@pytest.mark.parametrize(
    "mode",
    ["constant", "edge", "reflect", "symmetric", "wrap", "linear_ramp", "maximum", "mean", "median",
     "minimum"],
)  # fmt: skip
@pytest.mark.parametrize("width", WIDTHS, ids=str)
@pytest.mark.parametrize("dtype", ["float64", "int32"])
def test_pad(mode: Any, width: Any, dtype: str) -> None:
    x = sample(dtype, (3, 4))
    same(ts.pad(ts.asarray(x), width, mode), np.pad(x, width, mode), rtol=1e-12)


@pytest.mark.parametrize("mode", ["reflect", "symmetric"])
def test_odd_reflections(mode: Any) -> None:
    x = sample("float64", (5,))
    found = ts.pad(ts.asarray(x), (7, 3), mode, reflect_type="odd")
    same(found, np.pad(x, (7, 3), mode, reflect_type="odd"))
    one = sample("float64", (1, 3))
    same(ts.pad(ts.asarray(one), 2, mode), np.pad(one, 2, mode))


def test_values_of_padding() -> None:
    x = sample("float32", (3, 4))
    a = ts.asarray(x)
    for values in (7, (1, 2), ((1, 2), (3, 4)), ((5,),)):
        same(ts.pad(a, 2, constant_values=values), np.pad(x, 2, constant_values=values))
        same(
            ts.pad(a, 2, "linear_ramp", end_values=values),
            np.pad(x, 2, "linear_ramp", end_values=values), rtol=1e-6,
        )  # fmt: skip
    for length in (1, 2, ((1, 2), (3, 2)), 9):
        for mode in ("maximum", "mean", "median"):
            wanted = np.pad(x, 1, mode, stat_length=length)
            same(ts.pad(a, 1, mode, stat_length=length), wanted, rtol=1e-6)
    same(ts.pad(a, 1, constant_values=ts.asarray(2.0)), np.pad(x, 1, constant_values=2))
    same(ts.pad(a, {1: (1, 2)}), np.pad(x, ((0, 0), (1, 2))))
    same(ts.pad(ts.asarray(5.0), 3), np.float32(5))
    same(ts.pad(ts.zeros((0, 2)), 1, constant_values=3), np.full((2, 4), 3, np.float32))
    assert ts.pad(a, 1, "empty").shape == (5, 6)


@pytest.mark.parametrize(
    ("width", "options", "text"),
    [
        (-1, {}, "the numbers of elements are ints, 0 or more"),
        (1.5, {}, "the numbers of elements are ints, 0 or more"),
        (((1, 1), (1, 1), (1, 1)), {}, "it is a number, a pair, or a pair for each dim"),
        ((1, 2, 3), {}, "it is a number, a pair, or a pair for each dim"),
        (1, {"mode": "mirror"}, "it is one of constant, edge"),
        (1, {"mode": "reflect", "reflect_type": "even odd"}, "it is 'even' or 'odd'"),
        (1, {"mode": "mean", "stat_length": 0}, "it is 1 or more"),
        (1, {"constant_values": ts.ones(2)}, "values have no dims"),
    ],
)
def test_wrong_padding(width: Any, options: dict[str, Any], text: str) -> None:
    with pytest.raises(ts.TesseraError) as caught:
        ts.pad(ts.ones((2, 3)), width, **options)
    assert text in str(caught.value)
    with pytest.raises(ValueError, match="dim 0 of f32\\[0\\] has no elements"):
        ts.pad(ts.zeros(0), 1, "edge")


# --- running ----------------------------------------------------------------------------------


@pytest.mark.parametrize("axis", [None, 0, -1])
@pytest.mark.parametrize("dtype", ["float64", "int16", "bool", "complex128"])
def test_running_sums_and_products(axis: Any, dtype: str) -> None:
    x = sample(dtype, (3, 4), low=-3)
    same(ts.cumsum(ts.asarray(x), axis), np.cumsum(x, axis), rtol=1e-12)
    same(ts.cumprod(ts.asarray(x), axis), np.cumprod(x, axis), rtol=1e-12)
    line = x.ravel() if axis is None else x
    at = axis or 0
    wanted = np.flip(np.cumsum(np.flip(line, at), at), at)
    same(ts.cumsum(ts.asarray(x), axis, reverse=True), wanted, rtol=1e-12)
    wide = ts.cumsum(ts.asarray(x), axis, ts.complex128)
    same(wide, np.cumsum(x, axis, np.complex128), rtol=1e-12)


@pytest.mark.parametrize("dtype", ["float64", "int16", "bool"])
def test_running_extrema(dtype: str) -> None:
    x = sample(dtype, (3, 4))
    a = ts.asarray(x)
    same(ts.cummax(a), np.maximum.accumulate(x))
    same(ts.cummin(a, axis=1), np.minimum.accumulate(x, 1))
    same(ts.cummax(a, None), np.maximum.accumulate(x.ravel()))
    same(ts.cummin(a, reverse=True), np.minimum.accumulate(x[::-1])[::-1])


def test_running_logarithms() -> None:
    x = np.asarray([[-np.inf, 800.0, 0.0], [1.0, 801.0, -np.inf]])
    same(ts.logcumsumexp(ts.asarray(x)), np.logaddexp.accumulate(x), rtol=1e-12)
    wanted = np.logaddexp.accumulate(x[:, ::-1], 1)[:, ::-1]
    same(ts.logcumsumexp(ts.asarray(x), 1, reverse=True), wanted, rtol=1e-12)
    with pytest.raises(TypeError, match="the elements are real numbers"):
        ts.logcumsumexp(ts.asarray([1j]))
    with pytest.raises(TypeError, match="cummax: the array is c64"):
        ts.cummax(ts.asarray([1j]))


# --- order statistics -------------------------------------------------------------------------

METHODS = ["linear", "lower", "higher", "midpoint", "nearest"]


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("axis", [None, 0, 1, (0, 2)])
def test_quantile(method: Any, axis: Any) -> None:
    x = sample("float64", (3, 5, 2))
    for q in (0.0, 0.3, 0.5, 1.0, np.asarray([0.1, 0.25]), np.asarray([[0.9], [0.75]])):
        given = q if isinstance(q, float) else ts.asarray(q)
        for keep in (False, True):
            found = ts.quantile(ts.asarray(x), given, axis=axis, method=method, keepdims=keep)
            wanted = np.quantile(x, q, axis=axis, method=method, keepdims=keep)
            same(found, wanted, rtol=1e-12)
    same(ts.percentile(ts.asarray(x), 30, axis=0), np.percentile(x, 30, axis=0), rtol=1e-12)


def test_quantiles_of_special_values() -> None:
    x = np.asarray([[1.0, np.nan, 3.0], [np.inf, 2.0, np.inf], [np.nan] * 3, [1.0, 2.0, -np.inf]])
    for q in (0.0, 0.25, 0.5, 1.0):
        with np.errstate(all="ignore"):
            wanted = np.quantile(x, q, axis=1)
            wanted = np.where(np.isnan(x).any(1), np.nan, np.sort(x, 1)[:, round(q * 2)])
        if q != 0.25:
            same(ts.quantile(ts.asarray(x), q, axis=1), wanted)
    found = ts.quantile(ts.asarray(x[1]), 0.75)
    same(found, np.float64(np.inf))
    same(ts.quantile(ts.asarray(x[0, ::2]), ts.asarray([-0.1, 1.1, np.nan])), np.full(3, np.nan))
    same(ts.median(ts.zeros((2, 0)), axis=1), np.full(2, np.nan, np.float32))


@pytest.mark.parametrize("shape", [(1,), (4,), (5,), (3, 4), (2, 3, 5)])
@pytest.mark.parametrize("dtype", ["float64", "float16", "int8"])
def test_median(shape: Any, dtype: str) -> None:
    x = sample(dtype, shape)
    for axis in (None, 0, -1):
        wanted = np.median(x, axis=axis, keepdims=True)
        found = ts.median(ts.asarray(x), axis=axis, keepdims=True)
        same(found, wanted.astype(np.float32) if dtype == "int8" else wanted)


@pytest.mark.filterwarnings("ignore:All-NaN")
def test_quantiles_without_nan() -> None:
    x = np.where(sample("bool", (4, 6), 3), sample("float64", (4, 6)), np.nan)
    x[2] = np.nan
    a = ts.asarray(x)
    for axis in (None, 0, 1):
        same(ts.nanmedian(a, axis=axis), np.nanmedian(x, axis=axis), rtol=1e-12)
        for q in (0.2, np.asarray([0.0, 0.6, 1.0])):
            given = q if isinstance(q, float) else ts.asarray(q)
            same(ts.nanquantile(a, given, axis=axis), np.nanquantile(x, q, axis=axis), rtol=1e-12)
    same(ts.nanpercentile(a, 20, axis=1), np.nanpercentile(x, 20, axis=1), rtol=1e-12)


def test_wrong_quantiles() -> None:
    with pytest.raises(ValueError, match="method='median'"):
        ts.quantile(ts.ones(3), 0.5, method="median")
    with pytest.raises(TypeError, match="complex numbers have no order"):
        ts.median(ts.asarray([1j]))


@pytest.mark.parametrize("dtype", ["float32", "int8", "uint64", "bool", "bfloat16"])
def test_top_k(dtype: str) -> None:
    x = sample(dtype, (3, 6))
    order = np.argsort(-x.astype(np.float64), axis=1, kind="stable")
    for k in (0, 1, 4, 6):
        values, places = ts.top_k(ts.asarray(x), k)
        same(values, np.take_along_axis(x, order[:, :k], 1))
        same(places, order[:, :k])
    values, places = ts.top_k(ts.asarray(x), np.int64(2), axis=0)
    same(values, np.sort(x, 0)[::-1][:2])
    with pytest.raises(ValueError, match="k=7 for dim 1 of"):
        ts.top_k(ts.asarray(x), 7)
    with pytest.raises(TypeError, match="complex numbers have no order"):
        ts.top_k(ts.asarray([1j]), 1)


@pytest.mark.parametrize(("dtype", "shape", "k"), [
    ("float32", (5000,), 7), ("float64", (3, 2001), 100), ("int8", (2, 300), 18),
    ("uint16", (900,), 3),
])  # fmt: skip
def test_top_k_of_long_rows(dtype: str, shape: tuple[int, ...], k: int) -> None:
    rng = np.random.default_rng(len(shape) + k)
    # Many are equal, so that it shows which of them comes first.
    x = rng.integers(0, 40, shape).astype(dtype)
    if dtype.startswith("float"):
        x[..., ::97], x[..., 5::89], x[..., 7::83] = -np.inf, np.nan, -0.0
    ranks = np.where(np.isnan(x), np.inf, x.astype(np.float64))
    order = np.argsort(-ranks, axis=-1, kind="stable")[..., :k]
    largest = ts.jit(lambda x: ts.top_k(x, k))
    values, places = largest(x)
    same(values, np.take_along_axis(x, order, -1))
    same(places, order)
    low = np.full(shape, -np.inf if dtype.startswith("float") else np.iinfo(dtype).min, dtype)
    same(largest(low)[1], np.broadcast_to(np.arange(k), (*shape[:-1], k)))


def test_derivative_of_top_k_of_long_rows() -> None:
    x = np.random.default_rng(0).permutation(2000).astype(np.float32)
    weights = np.arange(1, 6, dtype=np.float32)
    slope = np.asarray(ts.jit(ts.grad(lambda x: ts.sum(ts.top_k(x, 5)[0] * weights)))(x))
    wanted = np.zeros(2000, np.float32)
    wanted[np.argsort(-x)[:5]] = weights
    np.testing.assert_array_equal(slope, wanted)
    along = ts.jit(lambda x: ts.jvp(lambda x: ts.top_k(x, 5)[0], (x,), (x * x,))[1])(x)
    np.testing.assert_array_equal(np.asarray(along), np.sort(x * x)[::-1][:5])


# --- NaN --------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:All-NaN", "ignore:Mean of empty", "ignore:Degrees of freedom")
@pytest.mark.parametrize("axis", [None, 0, 1, (0, 1)])
@pytest.mark.parametrize("dtype", ["float64", "complex128", "int32", "float32"])
def test_reductions_without_nan(axis: Any, dtype: str) -> None:
    x = sample(dtype, (4, 6))
    if dtype != "int32":
        x = np.where(sample("bool", (4, 6), 3), x, np.asarray(np.nan, x.dtype))
        x[2] = np.nan
    a = ts.asarray(x)
    exact = np.float32 if dtype == "int32" else x.dtype
    real = np.float64 if dtype == "complex128" else exact
    for keep in (False, True):
        options: dict[str, Any] = {"axis": axis, "keepdims": keep}
        same(ts.nansum(a, **options), np.nansum(x, **options), rtol=1e-5)
        same(ts.nanprod(a, **options), np.nanprod(x, **options), rtol=1e-5)
        with np.errstate(all="ignore"):
            same(ts.nanmean(a, **options), np.nanmean(x, **options).astype(exact), rtol=1e-5)
            wanted = np.nanvar(x, ddof=1, **options).astype(real)
            same(ts.nanvar(a, correction=1, **options), wanted, rtol=1e-5)
            same(ts.nanstd(a, **options), np.nanstd(x, **options).astype(real), rtol=1e-5)
        if dtype != "complex128":
            same(ts.nanmax(a, **options), np.nanmax(x, **options))
            same(ts.nanmin(a, **options), np.nanmin(x, **options))
    if dtype != "complex128" and not isinstance(axis, tuple):
        # NumPy refuses lines that are all NaN.
        rows = np.delete(x, 2, 0) if axis == 1 else x[:, ~np.isnan(x).all(0)]
        same(ts.nanargmax(ts.asarray(rows), axis=axis), np.nanargmax(rows, axis=axis))
        same(ts.nanargmin(ts.asarray(rows), axis=axis), np.nanargmin(rows, axis=axis))


def test_nothing_but_nan() -> None:
    none = ts.full(3, np.nan)
    same(ts.nansum(none), np.float32(0))
    same(ts.nanargmax(none), np.asarray(-1))
    same(ts.nanargmin(ts.full((2, 3), np.nan), axis=1, keepdims=True), np.full((2, 1), -1))
    same(ts.nanmax(none), np.float32(np.nan))


# --- segments, bins ---------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float64", "int16", "uint8", "float16"])
def test_segments(dtype: str) -> None:
    x = sample(dtype, (7, 2), low=-3)
    ids = np.asarray([2, 0, 2, -1, 5, 0, 3])
    kept = [0, 1, 2, 5, 6]
    cases: list[tuple[Any, Any, Any]] = [
        (ts.segment_sum, np.add, 0), (ts.segment_prod, np.multiply, 1),
        (ts.segment_max, np.maximum, -np.inf), (ts.segment_min, np.minimum, np.inf),
    ]  # fmt: skip
    for function, ufunc, start in cases:
        if np.isinf(start) and x.dtype.kind != "f":
            start = getattr(np.iinfo(x.dtype), "min" if start < 0 else "max")
        wanted = np.full((4, 2), start, x.dtype)
        ufunc.at(wanted, ids[kept], x[kept])
        same(function(ts.asarray(x), ts.asarray(ids), 4), wanted)
    same(ts.segment_sum(ts.asarray(x), ts.asarray(ids)).at[:4].get(),
         np.asarray(ts.segment_sum(ts.asarray(x), ts.asarray(ids), 4)))  # fmt: skip
    assert ts.segment_sum(ts.asarray(x), ts.asarray(ids)).shape == (6, 2)


def test_wrong_segments() -> None:
    with pytest.raises(ValueError, match="there is one number for each row"):
        ts.segment_sum(ts.ones(3), ts.asarray([0, 1]))
    with pytest.raises(TypeError, match="the indices are f32"):
        ts.segment_sum(ts.ones(3), ts.ones(3))
    with pytest.raises(TypeError, match="the elements are numbers"):
        ts.segment_max(ts.ones(1) > 0, ts.asarray([0]))
    with pytest.raises(ts.TesseraError, match="give num_segments"):
        ts.jit(ts.segment_sum)(ts.ones(1), ts.asarray([0]))


def test_interp() -> None:
    places, values = np.asarray([0.0, 1.0, 1.0, 2.5, 4.0]), sample("float64", (5,))
    x = np.asarray([[-1.0, 0.0, 0.25, 1.0, 1.5], [2.5, 3.9, 4.0, 7.0, np.nan]])
    a, p, f = map(ts.asarray, (x, places, values))
    same(ts.interp(a, p, f), np.interp(x, places, values), rtol=1e-12)
    found = ts.interp(a, p, f, left=-5, right=ts.asarray(7.0, dtype=ts.float64))
    same(found, np.interp(x, places, values, -5, 7), rtol=1e-12)
    same(ts.interp(0.5, p, f), np.interp(0.5, places, values), rtol=1e-12)
    same(ts.interp(a, p[:1], f[:1]), np.interp(x, places[:1], values[:1]))
    turned = np.asarray([190.0, -190.0, 350.0, -340.0])
    angles = np.asarray([-180.0, -170.0, -185.0, 185.0, -10.0, -5.0, 0.0, 365.0])
    found = ts.interp(ts.asarray(angles), ts.asarray(turned), ts.asarray(values[:4]), period=360)
    same(found, np.interp(angles, turned, values[:4], period=360), rtol=1e-12)
    with pytest.raises(ValueError, match="both are vectors of one length"):
        ts.interp(a, p, f[:2])
    with pytest.raises(TypeError, match="they are real numbers"):
        ts.interp(ts.asarray([1j]), ts.asarray([1j]), ts.asarray([1j]))


@pytest.mark.parametrize("bins", [1, 4, 10, [-3.0, 0.0, 0.5, 9.0]])
@pytest.mark.parametrize("limits", [None, (-2.0, 3.0), (1, 1)])
def test_histogram(bins: Any, limits: Any) -> None:
    x = sample("float64", (5, 7))
    weights = sample("float64", (5, 7), 1)
    given = ts.asarray(np.asarray(bins)) if isinstance(bins, list) else bins
    options: list[dict[str, Any]] = [{}, {"density": True}, {"weights": weights}]
    for case in options:
        own = {k: ts.asarray(v) if k == "weights" else v for k, v in case.items()}
        found = ts.histogram(ts.asarray(x), given, limits, **own)
        with np.errstate(all="ignore"):
            wanted = np.histogram(x, bins, limits, **case)
        same(found[0], wanted[0], rtol=1e-12)
        same(found[1], wanted[1], rtol=1e-12)
    edges = ts.histogram_bin_edges(ts.asarray(x), given, limits)
    same(edges, np.histogram_bin_edges(x, bins, limits), rtol=1e-12)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(
    ("bins", "limits"),
    [(64, (-4.0, 4.0)), (10, (-1, 2)), (37, (-0.1, 0.7)), (1000, (1000.0, 1000.5)), (6, None)],
)
def test_histograms_are_exact(bins: int, limits: Any, dtype: str) -> None:
    x = (sample(dtype, (500,)) * 3).astype(dtype)
    if limits is not None:
        low, high = limits
        x = (x + low / 2 + high / 2).astype(dtype)
        edges = np.histogram_bin_edges(x, bins, limits)
        ups, downs = (np.nextafter(edges, np.asarray(v, dtype)) for v in (np.inf, -np.inf))
        x = np.concatenate([x, edges, ups, downs, np.asarray([np.nan, np.inf, -np.inf], dtype)])
    expected = np.histogram(x, bins, limits)
    fn = lambda x: ts.histogram(x, bins, limits)  # noqa: E731
    for counts, edges in (fn(ts.asarray(x)), ts.jit(fn)(ts.asarray(x))):
        np.testing.assert_array_equal(np.asarray(counts), expected[0])
        np.testing.assert_array_equal(np.asarray(edges), expected[1])


def test_histograms_of_other_elements() -> None:
    counts, edges = ts.histogram(ts.asarray([3, 1, 1, 2, 5]), 2)
    same(counts, np.asarray([3, 2]))
    same(edges, np.float32([1, 3, 5]))
    counts, edges = ts.histogram(ts.zeros(0), 2)
    same(counts, np.asarray([0, 0]))
    counts, _ = ts.histogram(ts.asarray([np.nan, 0.5, np.inf]), 2, (0.0, 1.0))
    same(counts, np.asarray([0, 1]))
    counts, edges = ts.histogram(ts.asarray([2.0, 2.0]), 2)
    same(edges, np.float32([1.5, 2, 2.5]))
    # Half a bin to both sides of such numbers is nothing, and -inf < inf are no distance.
    for limits, wanted in (((1e20, 1e20), [0, 0]), ((-np.inf, np.inf), [3, 0])):
        counts, _ = ts.jit(lambda x, limits=limits: ts.histogram(x, 2, limits))(ts.ones(3))
        same(counts, np.asarray(wanted))
    for bins in (0, ts.ones(1)):
        with pytest.raises(ValueError, match="histogram: "):
            ts.histogram(ts.ones(3), bins)
    with pytest.raises(ValueError, match="both have one shape"):
        ts.histogram(ts.ones(3), 2, weights=ts.ones(2))
