"""Checks of the derivative and batching rules of Graph ops, against loops and finite differences.

A checked function takes arrays or tracers and returns one of them, or a list.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from tessera.dtypes import dtype_of
from tessera.graph.array import Array
from tessera.graph.engine import installed
from tessera.graph.interp import NumpyEngine, bind_dims, run
from tessera.graph.spec import GRAPH
from tessera.graph.transforms.differentiate import jvp, linearize, transpose
from tessera.graph.transforms.evaluate import trace_function
from tessera.graph.transforms.vectorize import vmap_values
from tessera.ir.convert import widen
from tessera.ir.core import Func
from tessera.ir.intexpr import Dim
from tessera.ir.types import TensorType
from tessera.ir.verify import verify

STEP = 1e-6


@contextmanager
def numpy_engine() -> Iterator[None]:
    """Ops outside of traces are computed by their `evaluate`."""
    with installed(NumpyEngine()):
        yield


def same(found: np.ndarray, expected: np.ndarray) -> None:
    """Equal elements of one dtype, NaN equal to NaN (which NumPy knows of its own dtypes only)."""
    assert found.dtype == expected.dtype
    np.testing.assert_array_equal(widen(found), widen(expected))


def arrays(xs: Sequence[np.ndarray]) -> list[Array]:
    return [Array(np.asarray(x)) for x in xs]


def trace(
    fn: Callable[..., Any],
    xs: Sequence[np.ndarray],
    shapes: Sequence[tuple[Dim, ...] | None] | None = None,
) -> Func:
    """The Graph of `fn`; `shapes` replaces the arrays' own, for symbolic dims."""
    types = [
        TensorType(x.shape if shape is None else shape, dtype_of(x.dtype))
        for x, shape in zip(xs, shapes or [None] * len(xs), strict=True)
    ]

    def wrapped(*args: Any) -> list[Any]:
        found = fn(*args)
        return list(found) if isinstance(found, (tuple, list)) else [found]

    func, captured = trace_function(wrapped, types, "test", "f")
    assert not captured
    verify(func, GRAPH)
    return func


def is_inexact(x: np.ndarray) -> bool:
    return dtype_of(x.dtype).is_inexact


def direction(rng: np.random.Generator, x: np.ndarray) -> np.ndarray:
    t = rng.standard_normal(x.shape)
    if x.dtype.kind == "c":
        t = t + 1j * rng.standard_normal(x.shape)
    return np.asarray(t).astype(x.dtype)


def check_func(
    func: Func, xs: Sequence[np.ndarray], rtol: float = 1e-5, order: int = 2, seed: int = 0
) -> None:
    """Compares `jvp` with central differences, to an order, and `transpose` with `jvp`."""
    rng = np.random.default_rng(seed)
    wrt = [is_inexact(x) for x in xs]
    ts = [direction(rng, x) for x in xs if is_inexact(x)]
    pushed, flags, captured = jvp(func, wrt)
    assert not captured
    verify(pushed, GRAPH)
    found = run(pushed, [*xs, *ts])
    count = len(func.outputs)
    base = run(func, xs)
    for a, b in zip(found[:count], base, strict=True):
        same(a, b)

    def moved(step: float) -> list[np.ndarray]:
        given = iter(ts)
        at = [x + step * next(given) if w else x for x, w in zip(xs, wrt, strict=True)]
        return run(func, [np.asarray(x) for x in at])

    tangents = iter(found[count:])
    for low, high, y, flag in zip(moved(-STEP), moved(STEP), base, flags, strict=True):
        if not is_inexact(y):
            assert not flag
            continue
        expected = (high - low) / (2 * STEP)
        tangent = next(tangents) if flag else np.zeros_like(y)
        np.testing.assert_allclose(tangent, expected, rtol=rtol, atol=rtol)
    check_transpose(func, xs, seed)
    if order > 1 and any(flags):
        check_func(pushed, [*xs, *ts], rtol * 10, order - 1, seed + 1)


def check_transpose(func: Func, xs: Sequence[np.ndarray], seed: int = 0) -> None:
    """`Re(ct * jvp(t)) == Re(transpose(ct) * t)`, summed, for random directions."""
    rng = np.random.default_rng(seed + 100)
    forward, linear, captured, nonzero, count = linearize(func, [is_inexact(x) for x in xs])
    assert not captured
    verify(forward, GRAPH)
    verify(linear, GRAPH)
    if not any(nonzero):
        return
    dims = bind_dims(func.args, xs)
    residuals = run(forward, xs)[len(nonzero) :]
    assert len(residuals) == count
    ts = [direction(rng, x) for x in xs if is_inexact(x)]
    outs = run(linear, [*residuals, *ts], dims)
    cts = [direction(rng, y) for y in outs]
    backward, flags, captured = transpose(linear, count, [True] * len(outs))
    assert not captured
    verify(backward, GRAPH)
    found = iter(run(backward, [*residuals, *cts], dims))
    pulled = [next(found) if flag else None for flag in flags]
    left = sum(float(np.sum(c * y).real) for c, y in zip(cts, outs, strict=True))
    right = 0.0
    for c, t in zip(pulled, ts, strict=True):
        if c is not None:
            assert c.shape == t.shape
            assert c.dtype == t.dtype
            right += float(np.sum(c * t).real)
    np.testing.assert_allclose(left, right, rtol=1e-8, atol=1e-10)


def check_derivatives(
    fn: Callable[..., Any], *xs: np.ndarray, rtol: float = 1e-5, order: int = 2
) -> None:
    """`check_func` of a function."""
    xs = tuple(np.asarray(x) for x in xs)
    check_func(trace(fn, xs), xs, rtol, order)


def tangent(fn: Callable[..., Any], *xs: Any, k: int = 0, t: Any = None) -> np.ndarray:
    """The tangent of the first output for a tangent (default ones) of argument k."""
    xs = tuple(np.asarray(x) for x in xs)
    pushed, flags, _ = jvp(trace(fn, xs), [j == k for j in range(len(xs))])
    t = np.ones_like(xs[k]) if t is None else np.asarray(t, xs[k].dtype)
    if not flags[0]:
        return np.zeros_like(xs[k])
    return run(pushed, [*xs, t])[len(flags)]


def check_batch(
    fn: Callable[..., Any], xs: Sequence[np.ndarray], axes: Sequence[int | None], **tolerance: float
) -> None:
    """The batched Graph does for each example what the Graph does.

    Args:
        fn: a function of examples.
        xs: arguments; batched along `axes`.
        axes: the batch axis of each argument; None has none.
        **tolerance: of `assert_allclose`; equal unless given.
    """
    size = next(x.shape[a] for x, a in zip(xs, axes, strict=True) if a is not None)

    def example(i: int) -> list[np.ndarray]:
        return [
            x if a is None else np.asarray(np.take(x, i, a))
            for x, a in zip(xs, axes, strict=True)
        ]

    func = trace(fn, example(0))
    with numpy_engine():
        outs, out_axes = vmap_values(func, arrays(xs), axes, size)
    for i in range(size):
        for y, axis, expected in zip(outs, out_axes, run(func, example(i)), strict=True):
            found = y.host if axis is None else np.take(y.host, i, axis)
            assert found.shape == expected.shape
            if tolerance:
                np.testing.assert_allclose(found, expected, **tolerance)
            else:
                same(found, expected)
