"""Batching of every primitive, against a Python loop over the examples."""

from __future__ import annotations

import itertools
import zlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

import tessera as ts
from tessera.errors import AxisError, PytreeError, ShapeError
from tests.numerics.samples import APART, SAMPLES, Sample, case_id, cases, example, graph_ops
from tests.tolerance import assert_close

SIZE = 3
# Sums over another layout are added up in another order, and products fused with them.
ORDER = 20
ALL = cases()
SMOOTH = [c for c in cases(True) if c[1].differentiated and c[1].reverse]
SEVERAL = [c for c in SMOOTH if len(c[1].xs) > 1]


def outputs(found: Any) -> list[Any]:
    return list(found) if isinstance(found, (tuple, list)) else [found]


def batch(x: np.ndarray, axis: int, size: int = SIZE) -> np.ndarray:
    """Examples like `x`, stacked along an axis."""
    return np.stack([example(x, k) for k in range(size)], axis)


def place(key: str, rank: int) -> int:
    """An axis of a batch of arrays of this rank: always the same one, of either sign."""
    return zlib.crc32(key.encode()) % (2 * rank + 2) - rank - 1


def compare(
    fn: Callable[..., Any],
    xs: Sequence[Any],
    axes: Sequence[int | None],
    size: int,
    found: Any,
    out_axis: int = 0,
) -> None:
    """`found` holds, along `out_axis`, what `fn` gives for each example."""
    results = [np.asarray(y) for y in outputs(found)]
    for k in range(size):
        args = [
            ts.asarray(x if a is None else np.asarray(np.take(x, k, a)))
            for x, a in zip(xs, axes, strict=True)
        ]
        expected = outputs(fn(*args))
        assert len(expected) == len(results)
        for y, e in zip(results, expected, strict=True):
            assert_close(np.take(y, k, out_axis), e, factor=ORDER)


def test_every_op_has_a_sample() -> None:
    assert not [c.name for c in graph_ops() if c not in {*SAMPLES, *APART}]


@pytest.mark.parametrize("case", ALL, ids=case_id)
def test_every_combination_of_batched_operands(case: Any) -> None:
    """With batch axes anywhere in operands and results."""
    _, sample = case
    for flags in itertools.product((True, False), repeat=len(sample.xs)):
        if not any(flags):
            continue
        axes: list[int | None] = []
        xs: list[np.ndarray] = []
        for k, (x, flag) in enumerate(zip(sample.xs, flags, strict=True)):
            axis = place(f"{case_id(case)}{k}{flags}", x.ndim)
            axes.append(axis if flag else None)
            xs.append(batch(x, axis) if flag else x)
        out_axis = -1 if flags[0] else 0
        found = ts.vmap(sample.fn, tuple(axes), out_axis)(*[ts.asarray(x) for x in xs])
        compare(sample.fn, xs, axes, SIZE, found, out_axis)


def stacked(sample: Sample, size: int) -> list[Any]:
    """The arguments with examples along axis 0; a batch without any has their types still."""
    if size == 0:
        return [ts.asarray(np.zeros((0, *x.shape), x.dtype)) for x in sample.xs]
    return [ts.asarray(batch(x, 0, size)) for x in sample.xs]


@pytest.mark.parametrize("size", [0, 1])
@pytest.mark.parametrize("case", ALL, ids=case_id)
def test_small_batches(case: Any, size: int) -> None:
    cls, sample = case
    xs = stacked(sample, size)
    found = outputs(ts.vmap(sample.fn)(*xs))
    expected = outputs(sample.fn(*[ts.asarray(x) for x in sample.xs]))
    for y, e in zip(found, expected, strict=True):
        assert y.shape == (size, *e.shape)
        assert y.dtype is e.dtype
        if size:
            assert_close(np.asarray(y)[0], e, factor=ORDER)
    if not cls.differentiable or not sample.differentiated or not sample.reverse:
        return
    gradients = ts.vmap(ts.grad(objective(sample), tuple(sample.differentiated)))(*xs)
    for k, g in zip(sample.differentiated, gradients, strict=True):
        assert g.shape == (size, *sample.xs[k].shape)
        assert g.dtype.np == sample.xs[k].dtype


@pytest.mark.parametrize("case", ALL, ids=case_id)
def test_compiled(case: Any) -> None:
    """`jit` of `vmap`, `vmap` of `jit`."""
    _, sample = case
    xs = stacked(sample, SIZE)
    expected = outputs(ts.vmap(sample.fn)(*xs))
    jitted = ts.jit(ts.vmap(sample.fn))(*xs)
    inside = ts.vmap(ts.jit(sample.fn))(*xs)
    for found in (jitted, inside):
        for y, e in zip(outputs(found), expected, strict=True):
            assert_close(y, e, factor=ORDER)


@pytest.mark.parametrize("case", ALL, ids=case_id)
def test_nested(case: Any) -> None:
    """The outer batch is along all first axes, the inner one along all last ones; if there are
    several arguments, the inner batch does not have the first one.
    """
    _, sample = case
    several = len(sample.xs) > 1
    inner = (None if several else -1, *[-1] * (len(sample.xs) - 1))
    outer = (0, *[0] * (len(sample.xs) - 1))
    xs = [
        batch(x if a is None else batch(x, -1, 2), 0) for x, a in zip(sample.xs, inner, strict=True)
    ]
    twice = ts.vmap(ts.vmap(sample.fn, inner, -1), outer, 0)
    found = outputs(twice(*[ts.asarray(x) for x in xs]))
    for k in range(2):
        one = [x if a is None else np.take(x, k, -1) for x, a in zip(xs, inner, strict=True)]
        compare(sample.fn, one, outer, SIZE, [np.take(y, k, -1) for y in found])


def objective(sample: Sample) -> Callable[..., Any]:
    """A real number that depends on all outputs."""

    def h(*xs: Any) -> Any:
        total: Any = ts.asarray(0.0, dtype=ts.float64)
        for y in outputs(sample.fn(*xs)):
            if y.dtype.is_inexact:
                total = total + ts.sum(ts.real(y * y) if y.dtype.is_complex else ts.sin(y))
        return total

    return h


@pytest.mark.parametrize("case", SMOOTH, ids=case_id)
def test_with_gradients(case: Any) -> None:
    """`vmap` of `grad`, and `grad` of `vmap`."""
    _, sample = case
    h = objective(sample)
    argnums = tuple(sample.differentiated)
    axes = tuple([0] * len(sample.xs))
    xs = stacked(sample, SIZE)
    gradient = ts.grad(h, argnums)
    hosts = [np.asarray(x) for x in xs]
    found = ts.vmap(gradient)(*xs)
    compare(gradient, hosts, axes, SIZE, found)
    under = ts.grad(lambda *xs: ts.sum(ts.vmap(h)(*xs)), argnums)(*xs)
    compare(gradient, hosts, axes, SIZE, under)


@pytest.mark.parametrize("case", SEVERAL, ids=case_id)
def test_shared_argument_has_the_sum_of_gradients(case: Any) -> None:
    """The gradient of an argument that all examples share, compiled."""
    _, sample = case
    h = objective(sample)
    first = sample.differentiated[0]
    axes = tuple([None if k == first else 0 for k in range(len(sample.xs))])
    xs = [x if k == first else batch(x, 0) for k, x in enumerate(sample.xs)]
    args = [ts.asarray(x) for x in xs]
    found = ts.jit(ts.grad(lambda *xs: ts.sum(ts.vmap(h, axes)(*xs)), first))(*args)
    total = np.zeros(found.shape, found.dtype.np)
    for k in range(SIZE):
        one = [x if a is None else np.asarray(x[k]) for x, a in zip(xs, axes, strict=True)]
        total = total + np.asarray(ts.grad(h, first)(*[ts.asarray(x) for x in one]))
    assert_close(found, total, factor=ORDER)


# --- arguments and results --------------------------------------------------------------------


X = np.arange(6.0).reshape(2, 3)


def test_axes_are_a_prefix_of_the_arguments() -> None:
    tree = {"a": ts.asarray(X), "b": (ts.asarray(X.T), ts.asarray(X[0]))}

    def f(tree: Any, k: Any) -> Any:
        a, (b, c) = tree["a"], tree["b"]
        return {"sum": a + b, "both": (c * k, None)}

    found = ts.vmap(f, ({"a": 0, "b": (1, None)}, None), {"sum": 1, "both": 0})(tree, 2.0)
    assert_close(found["sum"], (X + X).T)
    assert_close(found["both"][0], np.stack([X[0] * 2] * 2))
    assert found["both"][1] is None
    found = ts.vmap(f, ({"a": 1, "b": (0, 0)}, None))(tree, 2.0)
    assert_close(found["sum"], (X + X).T)
    assert_close(found["both"][0], X[0] * 2)


def test_keywords_are_batched_along_their_first_axis() -> None:
    found = ts.vmap(lambda x, *, y: x * ts.sum(y), in_axes=1)(ts.asarray(X), y=ts.asarray(X.T))
    assert_close(found, X.T * X.T.sum(1)[:, None])


def test_result_that_does_not_depend_on_the_batch() -> None:
    def f(x: Any) -> Any:
        return x, ts.asarray(X), 1.5, ts.asarray(True)

    x, y, z, w = ts.vmap(f, out_axes=(0, 1, 0, 0))(ts.asarray(X))
    assert_close(x, X)
    assert_close(y, np.stack([X, X], 1))
    assert_close(ts.astype(z, ts.float64), np.array([1.5, 1.5]))
    assert_close(w, np.array([True, True]))
    x, y, z, w = ts.vmap(f, out_axes=(0, None, None, None))(ts.asarray(X))
    assert_close(y, X)
    assert z.shape == w.shape == ()


def test_python_numbers_in_a_batch() -> None:
    found = ts.vmap(lambda x, k: x + k, (0, None))(ts.asarray(X.astype(np.float32)), 1)
    assert_close(found, X.astype(np.float32) + np.float32(1))


def test_batch_of_scalars_of_scalars() -> None:
    found = ts.vmap(ts.vmap(lambda x, y: x * y, (0, None)), (None, 0))(
        ts.asarray(X[0]), ts.asarray(X[1])
    )
    assert_close(found, X[1][:, None] * X[0])


@pytest.mark.parametrize(
    ("in_axes", "out_axes", "error"),
    [
        (2, 0, AxisError),
        (-3, 0, AxisError),
        (None, 0, ShapeError),
        ((0, 0), 0, PytreeError),
        ({"a": 0}, 0, PytreeError),
        ("x", 0, PytreeError),
        (0, None, ShapeError),
        (0, 2, AxisError),
        (0, -3, AxisError),
        (0, (0, 0), PytreeError),
    ],
)
def test_bad_axes(in_axes: Any, out_axes: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match="vmap"):
        ts.vmap(lambda x: x + 1, in_axes, out_axes)(ts.asarray(X))


@pytest.mark.parametrize("out_axes", [2, -3])
def test_bad_axis_of_a_result_that_is_not_batched(out_axes: int) -> None:
    with pytest.raises(AxisError, match="vmap"):
        ts.vmap(lambda x: ts.asarray(X[0]), 0, out_axes)(ts.asarray(X))


def test_sizes_differ() -> None:
    with pytest.raises(ShapeError, match=r"vmap.* 3 .* 2"):
        ts.vmap(lambda x, y: x, (0, 1))(ts.asarray(X), ts.asarray(X))
