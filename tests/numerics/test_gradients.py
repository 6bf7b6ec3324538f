"""Derivatives of every differentiable primitive, compiled, against differences in float64.

Each op is differentiated in one random direction: once and twice, forwards and backwards and both
orders of the two, eagerly and as compiled programs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

import tessera as ts
from tessera.errors import NotDifferentiableError
from tests.numerics.samples import APART, SAMPLES, Sample, case_id, cases, graph_ops
from tests.tolerance import assert_close

STEP = 1e-3
# A difference over four points is wrong by step**4 / 30 times the fifth derivative, about 1e-13
# times that, and by rounding errors over the step, 1e-12.
DIFFERENCE = 1e4
# Derivatives of two ways of computing take different steps, some of which cancel.
ROUTES = 1e2


def direction(sample: Sample, seed: int = 0) -> list[np.ndarray]:
    """A random direction of the differentiated arguments."""
    rng = np.random.default_rng(seed)
    found: list[np.ndarray] = []
    for k in sample.differentiated:
        x = sample.xs[k]
        t = np.asarray(rng.uniform(-1, 1, x.shape))
        found.append(np.asarray(t + 1j * rng.uniform(-1, 1, x.shape)) if x.dtype.kind == "c" else t)
    return found


def along(sample: Sample) -> tuple[Callable[..., Any], list[Any]]:
    """The sample as a function of its differentiated arguments, which returns a list; and them."""
    places = sample.differentiated

    def run(*xs: Any) -> list[Any]:
        args: list[Any] = [ts.asarray(x) for x in sample.xs]
        for k, x in zip(places, xs, strict=True):
            args[k] = x
        found = sample.fn(*args)
        return list(found) if isinstance(found, (tuple, list)) else [found]

    return run, [ts.asarray(sample.xs[k]) for k in places]


def pairing(xs: Sequence[Any], ys: Sequence[Any]) -> Any:
    """The real part of the sum of products, of those that have derivatives."""
    total: Any = 0.0
    for x, y in zip(xs, ys, strict=True):
        if x.dtype.is_inexact:
            product = ts.asarray(x) * ts.asarray(y)
            total = total + ts.sum(ts.real(product) if product.dtype.is_complex else product)
    return total


def cotangents(ys: Sequence[Any]) -> list[Any]:
    rng = np.random.default_rng(7)
    found: list[Any] = []
    for y in ys:
        ct = rng.uniform(-1, 1, y.shape)
        if y.dtype.is_complex:
            ct = ct + 1j * rng.uniform(-1, 1, y.shape)
        found.append(ts.asarray(np.asarray(ct).astype(y.dtype.np)))
    return found


def difference(fn: Callable[..., Sequence[Any]], xs: Sequence[Any], ts_: Sequence[Any]) -> Any:
    """The derivatives of the outputs of `fn` in a direction, from four points."""

    def at(step: float) -> list[np.ndarray]:
        moved = [ts.asarray(np.asarray(x) + step * t) for x, t in zip(xs, ts_, strict=True)]
        return [np.asarray(y) for y in fn(*moved)]

    points = zip(at(-2 * STEP), at(-STEP), at(STEP), at(2 * STEP), strict=True)
    return [
        np.asarray((8.0 * (c - b) - (d - a)) / (12 * STEP)) if a.dtype.kind in "fc" else None
        for a, b, c, d in points
    ]


CASES = [case for case in cases(True) if case[1].differentiated]
BACKWARDS = [case for case in CASES if case[1].reverse]


def test_every_differentiable_op_has_a_sample() -> None:
    known = {*SAMPLES, *APART}
    missing = [c.name for c in graph_ops() if c.differentiable and c not in known]
    assert not missing


@pytest.mark.parametrize("case", cases(True), ids=case_id)
def test_samples_bind_their_op(case: Any) -> None:
    cls, sample = case
    graph = ts.make_graph(sample.fn)(*[ts.asarray(x) for x in sample.xs])
    assert f"{cls.name}(" in str(graph)


@pytest.mark.parametrize("case", CASES, ids=case_id)
def test_first_derivative(case: Any) -> None:
    """`jvp`, `linearize` and `vjp`."""
    _, sample = case
    fn, xs = along(sample)
    us = direction(sample)
    outs, touts = ts.jvp(fn, xs, us)
    expected = difference(fn, xs, us)
    for y, base, t, e in zip(outs, fn(*xs), touts, expected, strict=True):
        assert_close(y, base)
        assert t.shape == y.shape
        assert t.dtype is y.dtype
        assert_close(t, np.zeros_like(y) if e is None else e, factor=DIFFERENCE)
    outs, push = ts.linearize(fn, *xs)
    for a, b in zip(push(*us), touts, strict=True):
        assert_close(a, b, factor=ROUTES)
    outs, pull = ts.vjp(fn, *xs)
    cts = cotangents(outs)
    if not sample.reverse:
        with pytest.raises(NotDifferentiableError):
            pull(cts)
        return
    pulled = pull(cts)
    for x, ct in zip(xs, pulled, strict=True):
        assert ct.shape == x.shape
        assert ct.dtype is x.dtype
    assert_close(pairing(pulled, us), pairing(cts, touts), factor=ROUTES)


def objective(sample: Sample) -> tuple[Callable[..., Any], list[Any], list[Any]]:
    """A real number that depends on all outputs and not linearly, the point, and a direction."""
    fn, xs = along(sample)
    cts = cotangents(fn(*xs))

    def h(*xs: Any) -> Any:
        outs = fn(*xs)
        return pairing(cts, [y * y if y.dtype.is_inexact else y for y in outs])

    return h, xs, [ts.asarray(t) for t in direction(sample)]


@pytest.mark.parametrize("case", CASES, ids=case_id)
def test_second_derivative(case: Any) -> None:
    """Forwards over forwards, forwards over backwards, backwards over forwards, and twice
    backwards.
    """
    _, sample = case
    h, xs, us = objective(sample)
    argnums = tuple(range(len(xs)))

    def slope(*xs: Any) -> Any:
        return ts.jvp(h, xs, us)[1]

    (expected,) = difference(lambda *xs: [slope(*xs)], xs, [np.asarray(u) for u in us])
    _, twice = ts.jvp(slope, xs, us)
    assert_close(twice, expected, factor=DIFFERENCE)
    if not sample.reverse:
        return
    _, over = ts.jvp(lambda *xs: ts.grad(h, argnums)(*xs), xs, us)
    assert_close(pairing(over, us), twice, factor=ROUTES)
    under = ts.grad(slope, argnums)(*xs)
    assert_close(pairing(under, us), twice, factor=ROUTES)
    back = ts.grad(lambda *xs: pairing(ts.grad(h, argnums)(*xs), us), argnums)(*xs)
    assert_close(pairing(back, us), twice, factor=ROUTES)


@pytest.mark.parametrize("case", CASES, ids=case_id)
def test_compiled_derivatives(case: Any) -> None:
    """One program of value, slope, gradient, and second derivatives does what eager ops do."""
    _, sample = case
    h, xs, us = objective(sample)
    argnums = tuple(range(len(xs)))

    def forwards(xs: Any, us: Any) -> Any:
        return ts.jvp(lambda *xs: ts.jvp(h, xs, us)[1], xs, us)

    def backwards(xs: Any, us: Any) -> Any:
        return ts.jvp(lambda *xs: ts.grad(h, argnums)(*xs), xs, us)

    for fn in (forwards, backwards) if sample.reverse else (forwards,):
        found, expected = ts.jit(fn)(xs, us), fn(xs, us)
        for a, b in zip(ts.pytree.leaves(found), ts.pytree.leaves(expected), strict=True):
            assert_close(a, b, factor=ROUTES)


@pytest.mark.parametrize("case", BACKWARDS, ids=case_id)
def test_gradient_of_compiled(case: Any) -> None:
    """`grad` of a compiled function is `grad` of the function."""
    _, sample = case
    h, xs, _ = objective(sample)
    argnums = tuple(range(len(xs)))
    found, expected = ts.grad(ts.jit(h), argnums)(*xs), ts.grad(h, argnums)(*xs)
    for a, b in zip(found, expected, strict=True):
        assert_close(a, b, factor=ROUTES)
