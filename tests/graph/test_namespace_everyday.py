"""What NumPy's users reach for daily, against NumPy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tessera as ts
from tessera.errors import DTypeError, OptionError, ShapeError
from tests.graph.namespace_cases import engine, same, sample

__all__ = ["engine"]

Array = np.ndarray[Any, Any]


def several(found: Any, wanted: Any, **how: Any) -> None:
    assert len(found) == len(wanted)
    for a, b in zip(found, wanted, strict=True):
        same(a, b, **how)


# --- parts --------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", [3, 1, [2], [2, 4], [0, 0, 6], [4, 2], [-1], [9], []])
@pytest.mark.parametrize("axis", [0, -1])
def test_split(how: Any, axis: int) -> None:
    x = sample("float32", (6, 12))
    several(ts.split(ts.asarray(x), how, axis=axis), np.split(x, how, axis))


@pytest.mark.parametrize("count", [1, 2, 4, 7, 9])
def test_array_split(count: int) -> None:
    x = sample("int16", (7, 2))
    several(ts.array_split(ts.asarray(x), count), np.array_split(x, count))


def test_parts_that_would_differ_are_refused() -> None:
    with pytest.raises(ShapeError, match=r"split: 4 parts of dim 0 of f32\[6\]") as error:
        ts.split(ts.ones(6), 4)
    assert "array_split" in str(error.value)
    with pytest.raises(OptionError, match="split: 0 parts"):
        ts.split(ts.ones(6), 0)
    with pytest.raises(DTypeError, match=r"split: indices_or_sections: got 1\.5"):
        ts.split(ts.ones(6), [1.5])  # type: ignore[list-item]


SHAPES: list[Any] = [(), (3,), (2, 3), (1, 3), (2, 3, 4), (0,), (0, 3)]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", ["atleast_1d", "atleast_2d", "atleast_3d"])
def test_dims_are_added(name: str, shape: Any) -> None:
    x = sample("float32", shape)
    same(getattr(ts, name)(ts.asarray(x)), getattr(np, name)(x))


STACKS: list[Any] = [
    [(3,), (3,)], [(2, 3), (2, 3)], [(2, 3, 4), (2, 3, 4)], [(), ()], [(3,)], [(0,), (0,)],
]  # fmt: skip


@pytest.mark.parametrize("shapes", STACKS)
@pytest.mark.parametrize("name", ["vstack", "hstack", "dstack", "column_stack"])
def test_stacks(name: str, shapes: Any) -> None:
    if name == "column_stack" and len(shapes[0]) > 2:
        pytest.skip("vectors and matrices only")
    xs = [sample("float32", shape, k) for k, shape in enumerate(shapes)]
    same(getattr(ts, name)([ts.asarray(x) for x in xs]), getattr(np, name)(xs))


def test_stacks_of_nothing() -> None:
    for name in ("vstack", "hstack", "dstack", "column_stack"):
        with pytest.raises(OptionError, match=f"{name}: got no array"):
            getattr(ts, name)([])
        with pytest.raises(OptionError, match=f"{name}: got a Array"):
            getattr(ts, name)(ts.ones(3))


@pytest.mark.parametrize("k", range(-5, 6))
def test_turns(k: int) -> None:
    x = sample("int32", (2, 3, 4))
    same(ts.rot90(ts.asarray(x), k), np.rot90(x, k))
    same(ts.rot90(ts.asarray(x), k, axes=(2, 0)), np.rot90(x, k, axes=(2, 0)))


def test_swapaxes() -> None:
    x = sample("float32", (2, 3, 4))
    for a, b in ((0, 1), (-1, 0), (1, 1)):
        same(ts.swapaxes(ts.asarray(x), a, b), np.swapaxes(x, a, b))


@pytest.mark.parametrize("k", [-4, -1, 0, 2, 5])
@pytest.mark.parametrize("shape", [(3,), (3, 4), (4, 2), (0,), (1, 1)])
@pytest.mark.parametrize("dtype", ["float32", "bool", "complex64"])
def test_diag(shape: Any, k: int, dtype: str) -> None:
    x = sample(dtype, shape)
    same(ts.diag(ts.asarray(x), k=k), np.diag(x, k))


def test_diag_of_stacks() -> None:
    with pytest.raises(ShapeError, match=r"diag: x has shape \[2, 3, 4\]") as error:
        ts.diag(ts.ones((2, 3, 4)))
    assert "ts.linalg.diagonal" in str(error.value)


# --- comparisons --------------------------------------------------------------------------------

CLOSE = np.asarray([0.0, 1.0, 1.000009, 1.00002, np.inf, -np.inf, np.nan, 1e-9, 5e300])


@pytest.mark.parametrize("equal_nan", [False, True])
def test_isclose(equal_nan: bool) -> None:
    a, b = np.meshgrid(CLOSE, CLOSE)
    found = ts.isclose(ts.asarray(a), ts.asarray(b), equal_nan=equal_nan)
    same(found, np.isclose(a, b, equal_nan=equal_nan))
    n = np.asarray([2**53 + 1, 5])
    same(ts.isclose(ts.asarray(n), 5, 0.0, 0.0), np.asarray([False, True]))


def test_allclose_and_array_equal() -> None:
    x = ts.asarray([1.0, 2.0, np.nan])
    assert not bool(ts.allclose(x, x))
    assert bool(ts.allclose(x, x, equal_nan=True))
    assert bool(ts.allclose(x[:2], ts.asarray([1.000005, 2.0])))
    assert bool(ts.array_equal(x, x, equal_nan=True))
    assert not bool(ts.array_equal(x, x))
    assert not bool(ts.array_equal(x, x[:2]))
    assert bool(ts.array_equal(ts.asarray([1, 2]), ts.asarray([1.0, 2.0])))


@pytest.mark.parametrize("dtype", ["float32", "float16", "float64", "int32", "complex64"])
def test_nan_to_num(dtype: str) -> None:
    x = sample(dtype, (8,))
    if dtype != "int32":
        x[:4] = np.nan, np.inf, -np.inf, 0
    if dtype == "complex64":
        x[4] = complex(np.inf, np.nan)
    same(ts.nan_to_num(ts.asarray(x)), np.nan_to_num(x))
    same(
        ts.nan_to_num(ts.asarray(x), nan=3.0, posinf=4.0, neginf=-5.0),
        np.nan_to_num(x, nan=3.0, posinf=4.0, neginf=-5.0),
    )


# --- numbers ------------------------------------------------------------------------------------


def test_average() -> None:
    x, w = sample("float64", (3, 4)), np.abs(sample("float64", (3, 4), 1))
    same(ts.average(ts.asarray(x)), np.average(x), rtol=1e-12)
    a = ts.asarray(x)
    for axis in (0, 1, None):
        same(ts.average(a, axis=axis, weights=ts.asarray(w)), np.average(x, axis, w), rtol=1e-12)
    found = ts.average(a, axis=1, weights=ts.asarray(w[0]), keepdims=True)
    same(found, np.average(x, 1, w[0], keepdims=True), rtol=1e-12)
    with pytest.raises(ShapeError, match=r"average: weights of shape \[3\]"):
        ts.average(a, weights=ts.ones(3))


@pytest.mark.parametrize("shape", [(3, 5), (1, 5), (6,)])
@pytest.mark.parametrize("dtype", ["float64", "complex128"])
def test_covariance(shape: Any, dtype: str) -> None:
    x = sample(dtype, shape)
    a = ts.asarray(x)
    same(ts.cov(a), np.cov(x), rtol=1e-10)
    same(ts.cov(a, ddof=0), np.cov(x, ddof=0), rtol=1e-10)
    same(ts.corrcoef(a), np.corrcoef(x), rtol=1e-10)
    if len(shape) == 2 and shape[0] > 1:
        same(ts.cov(a, rowvar=False), np.cov(x, rowvar=False), rtol=1e-10)


def test_gradient() -> None:
    x = sample("float64", (4, 5))
    several(ts.gradient(ts.asarray(x)), np.gradient(x), rtol=1e-12)
    same(ts.gradient(ts.asarray(x), 0.5, axis=1), np.gradient(x, 0.5, axis=1), rtol=1e-12)
    same(ts.gradient(ts.asarray(x[:2]), axis=0), np.gradient(x[:2], axis=0), rtol=1e-12)
    with pytest.raises(ShapeError, match="two values at least"):
        ts.gradient(ts.ones(1))


def test_trapezoid() -> None:
    y, x = sample("float64", (3, 5)), np.sort(sample("float64", (5,), 1))
    a = ts.asarray(y)
    same(ts.trapezoid(a), np.trapezoid(y), rtol=1e-12)
    same(ts.trapezoid(a, dx=0.1, axis=0), np.trapezoid(y, dx=0.1, axis=0), rtol=1e-12)
    same(ts.trapezoid(a, ts.asarray(x)), np.trapezoid(y, x), rtol=1e-12)


@pytest.mark.parametrize("dtype", ["float64", "int64", "complex128"])
def test_polyval(dtype: str) -> None:
    p, x = sample(dtype, (4,)), sample("float64", (2, 3), 1)
    same(ts.polyval(ts.asarray(p), ts.asarray(x)), np.polyval(p, x), rtol=1e-12)


def test_angles() -> None:
    x = sample("float32", (7,))
    same(ts.deg2rad(ts.asarray(x)), np.deg2rad(x), rtol=1e-6)
    same(ts.rad2deg(ts.asarray(x)), np.rad2deg(x), rtol=1e-6)


def test_spaces() -> None:
    double: Any = {"dtype": ts.float64}
    same(ts.logspace(-1, 2, 7, **double), np.logspace(-1, 2, 7), rtol=1e-13)
    same(ts.logspace(0, 3, 4, base=2, endpoint=False, **double),
         np.logspace(0, 3, 4, base=2, endpoint=False), rtol=1e-13)  # fmt: skip
    same(ts.geomspace(1, 1000, 4, **double), np.geomspace(1, 1000, 4), rtol=1e-13)
    same(ts.geomspace(-8, -1, 5, **double), np.geomspace(-8, -1, 5), rtol=1e-13)
    same(ts.geomspace(2, 3, 1, **double), np.geomspace(2, 3, 1))
    with pytest.raises(OptionError, match="geomspace: from -1 to 2"):
        ts.geomspace(-1, 2)


KRON: list[Any] = [((2, 3), (4, 5)), ((3,), (2,)), ((2, 2), (3,)), ((), (2,)), ((2, 1, 3), (2, 2))]


@pytest.mark.parametrize("shapes", KRON)
def test_products(shapes: Any) -> None:
    x, y = (sample("float64", shape, k) for k, shape in enumerate(shapes))
    same(ts.kron(ts.asarray(x), ts.asarray(y)), np.kron(x, y), rtol=1e-12)
    z = sample("float64", (3,) if x.shape[-1:] == (3,) else x.shape, 5)
    same(ts.inner(ts.asarray(x), ts.asarray(z)), np.inner(x, z), rtol=1e-12)


def test_counts() -> None:
    x = np.asarray([0, 3, 1, 1, 3, 3])
    w = sample("float64", (6,))
    same(ts.bincount(ts.asarray(x)), np.bincount(x))
    same(ts.bincount(ts.asarray(x), ts.asarray(w)), np.bincount(x, w), rtol=1e-12)
    same(ts.bincount(ts.asarray(x), length=3), np.asarray([1, 2, 0]))
    same(ts.bincount(ts.asarray(x[:0])), np.bincount(x[:0]))
    with pytest.raises(DTypeError, match=r"bincount: x is f32\[2\]"):
        ts.bincount(ts.ones(2))


@pytest.mark.parametrize("right", [False, True])
def test_digitize(right: bool) -> None:
    x, bins = np.asarray([0.5, 1.0, -3.0, 9.0, 2.5]), np.asarray([0.0, 1.0, 2.5])
    same(ts.digitize(ts.asarray(x), ts.asarray(bins), right=right), np.digitize(x, bins, right))


def test_places() -> None:
    x = np.arange(24).reshape(2, 12)
    several(ts.unravel_index(ts.asarray(x), (2, 3, 4)), np.unravel_index(x, (2, 3, 4)))
    at = np.unravel_index(x, (2, 3, 4))
    same(ts.ravel_multi_index([ts.asarray(i) for i in at], (2, 3, 4)), x)
    with pytest.raises(ShapeError, match="1 coordinates for 2 dims"):
        ts.ravel_multi_index([1], (2, 3))


@pytest.mark.parametrize("start", [(0, 0), (1, 2), (3, 9), (-1, -2), (-9, 1)])
def test_dynamic_slices(start: Any) -> None:
    x, y = sample("float32", (4, 5)), sample("float32", (2, 3), 1)
    # A negative start counts from the end; then the part is moved to lie inside.
    wrapped = [s + n if s < 0 else s for s, n in zip(start, (4, 5), strict=True)]
    first = [min(max(s, 0), last) for s, last in zip(wrapped, (2, 2), strict=True)]
    part = tuple([slice(s, s + m) for s, m in zip(first, (2, 3), strict=True)])
    wanted = x[part]
    same(ts.dynamic_slice(ts.asarray(x), start, (2, 3)), wanted)
    at = ts.asarray(start)
    cut: Callable[..., Any] = ts.jit(lambda x, at: ts.dynamic_slice(x, at, (2, 3)))
    same(cut(ts.asarray(x), at), wanted)
    put: Callable[..., Any] = ts.jit(ts.dynamic_update_slice)
    wanted = x.copy()
    wanted[part] = y
    same(put(ts.asarray(x), ts.asarray(y), at), wanted)


def test_dynamic_slices_have_derivatives() -> None:
    x = ts.arange(6.0)
    found = ts.grad(lambda x: ts.sum(ts.dynamic_slice(x, (ts.argmax(x) - 3,), (2,)) ** 2))(x)
    same(found, np.asarray([0, 0, 4, 6, 0, 0], np.float32))
    with pytest.raises(ShapeError, match=r"a part of length 7 of dim 0 of f32\[6\]"):
        ts.dynamic_slice(x, (0,), (7,))
    with pytest.raises(ShapeError, match=r"2 starts and 1 sizes for f32\[6\]"):
        ts.dynamic_slice(x, (0, 0), (1,))


LINEAR: list[Callable[[Any], Any]] = [
    lambda x: ts.split(x, 2)[1],
    lambda x: ts.diag(x),
    lambda x: ts.cov(ts.reshape(x, (2, 3))),
    lambda x: ts.kron(x, x),
    lambda x: ts.polyval(x, 1.5),
    lambda x: ts.trapezoid(x),
    lambda x: ts.gradient(x),
    lambda x: ts.rot90(ts.reshape(x, (2, 3))),
]


@pytest.mark.parametrize("fn", LINEAR)
def test_they_are_differentiated_and_mapped(fn: Callable[[Any], Any]) -> None:
    x, v = ts.asarray(sample("float64", (6,))), ts.asarray(sample("float64", (6,), 1))
    step = 1e-6
    wanted = (np.asarray(fn(x + step * v)) - np.asarray(fn(x - step * v))) / (2 * step)
    value, tangent = ts.jvp(fn, (x,), (v,))
    np.testing.assert_allclose(np.asarray(tangent), wanted, rtol=1e-6, atol=1e-8)
    u = ts.ones_like(value) * 0.5
    _, pull = ts.vjp(fn, x)
    left, right = ts.sum(pull(u)[0] * v), ts.sum(u * tangent)
    np.testing.assert_allclose(float(left), float(right), rtol=1e-9)
    rows = ts.vmap(fn)(ts.stack([x, v]))
    np.testing.assert_allclose(np.asarray(rows[1]), np.asarray(fn(v)), rtol=1e-9)
