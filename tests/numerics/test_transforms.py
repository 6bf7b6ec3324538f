"""Transforms in any order: nesting, closures, control flow, containers, empty arrays."""

from __future__ import annotations

import collections
import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tessera as ts
from tessera.errors import (
    ConcretizationError,
    GradError,
    NotDifferentiableError,
    ShapeError,
    TracerLeakError,
)
from tessera.graph.engine import current_engine
from tests.numerics.samples import call, cond, while_
from tests.tolerance import assert_close

# Values and derivatives by another route have other roundings, some of which cancel.
ROUTES = 1e2

X = np.array([0.4, 1.3, 0.8])
U = np.array([1.0, -0.5, 2.0])
M = np.array([[0.5, -1.0, 2.0], [1.5, 0.3, -0.4]])


def close(found: Any, expected: Any) -> None:
    """Equal but for rounding, leaf by leaf."""
    a, b = ts.pytree.leaves(found), ts.pytree.leaves(expected)
    assert len(a) == len(b)
    for x, y in zip(a, b, strict=True):
        assert_close(x, y, factor=ROUTES)


# --- nesting ----------------------------------------------------------------------------------


def polynomial(x: Any) -> Any:
    return ts.sum(x * x * x - 2.0 * x)


def layers(x: Any) -> Any:
    m = ts.asarray(M)
    return ts.mean(ts.tanh(m @ ts.sin(x)) ** 2) + ts.max(x)


def branches(x: Any) -> Any:
    (y,) = cond(ts.sum(x) > 0, lambda x: [ts.sin(x) * x], lambda x: [x], x)
    return ts.sum(y * y)


def positions(x: Any) -> Any:
    order = ts.argsort(x)
    y = ts.take(x, order) * ts.asarray([1.0, 2.0, 3.0], dtype=ts.float64)
    return ts.sum(ts.cumulative_sum(y)) + x[1] * ts.sum(x.at[0].set(x[2] ** 2))


POOL = [polynomial, layers, branches, positions]

# Each of these makes a function that has the same values and derivatives.
WRAPPERS: dict[str, Callable[[Callable[..., Any]], Callable[..., Any]]] = {
    "jit": ts.jit,
    "vmap": lambda f: lambda x: ts.vmap(f)(ts.stack([x, x * 2.0]))[0],
    "shared": lambda f: lambda x: ts.vmap(lambda k: f(x) * k)(ts.ones(2, dtype=x.dtype))[0],
    "jvp": lambda f: lambda x: ts.jvp(f, (x,), (ts.ones_like(x),))[0],
    "linearize": lambda f: lambda x: ts.linearize(f, x)[0],
    "vjp": lambda f: lambda x: ts.vjp(f, x)[0],
    "grad": lambda f: lambda x: ts.value_and_grad(f)(x)[0],
    "call": lambda f: lambda x: call(lambda x: [f(x)], x)[0],
}


def derivatives(f: Callable[..., Any]) -> tuple[Any, Any, Any]:
    """The value, the gradient and the product of the second derivative and U."""
    x, u = ts.asarray(X), ts.asarray(U)
    value, gradient = ts.value_and_grad(f)(x)
    return value, gradient, ts.jvp(ts.grad(f), (x,), (u,))[1]


EXPECTED: dict[str, Any] = {}


TWO = list(itertools.permutations(WRAPPERS, 2))


@pytest.mark.parametrize("names", TWO, ids="-".join)
def test_two_transforms_around(names: tuple[str, str]) -> None:
    for f in POOL[TWO.index(names) % 2 :: 2]:
        if f.__name__ not in EXPECTED:
            EXPECTED[f.__name__] = derivatives(f)
        wrapped = WRAPPERS[names[0]](WRAPPERS[names[1]](f))
        close(derivatives(wrapped), EXPECTED[f.__name__])


THREE = [p for k, p in enumerate(itertools.permutations(WRAPPERS, 3)) if k % 8 == 3]


@pytest.mark.parametrize("names", THREE, ids="-".join)
def test_three_transforms_around(names: tuple[str, str, str]) -> None:
    f = POOL[THREE.index(names) % len(POOL)]
    wrapped: Callable[..., Any] = f
    for name in reversed(names):
        wrapped = WRAPPERS[name](wrapped)
    if f.__name__ not in EXPECTED:
        EXPECTED[f.__name__] = derivatives(f)
    close(derivatives(wrapped), EXPECTED[f.__name__])


@pytest.mark.parametrize("f", POOL)
def test_jacobians_and_hessians(f: Callable[..., Any]) -> None:
    """By columns, by rows, and by both orders of both modes."""
    x, eye = ts.asarray(X), ts.eye(3, dtype=ts.float64)
    gradient = ts.grad(f)

    def columns(g: Callable[..., Any]) -> Callable[..., Any]:
        return lambda x: ts.vmap(lambda u: ts.jvp(g, (x,), (u,))[1], out_axes=-1)(eye)

    def rows(g: Callable[..., Any]) -> Callable[..., Any]:
        return lambda x: ts.vmap(ts.vjp(g, x)[1])(eye)[0]

    def pushed(g: Callable[..., Any]) -> Callable[..., Any]:
        return lambda x: ts.vmap(ts.linearize(g, x)[1], out_axes=-1)(eye)

    step = 1e-5
    expected = np.stack(
        [
            (np.asarray(gradient(ts.asarray(X + h))) - np.asarray(gradient(ts.asarray(X - h))))
            / (2 * step)
            for h in step * np.eye(3)
        ],
        -1,
    )
    first = columns(gradient)(x)
    # The error of a difference over two points is about step**2, and that of rounding over it.
    assert_close(first, expected, factor=1e5)
    for way in (rows, pushed, lambda g: columns(columns(f)), lambda g: rows(columns(f))):
        close(way(gradient)(x), first)
    close(ts.jit(columns(gradient))(x), first)
    close(ts.jit(rows(ts.jit(gradient)))(x), first)


def test_higher_derivatives() -> None:
    f: Callable[..., Any] = ts.sin
    for k in range(1, 5):
        f = ts.grad(f) if k % 2 else ts.grad(ts.jit(f))
        expected = [np.sin, np.cos, lambda x: -np.sin(x), lambda x: -np.cos(x)][k % 4](0.7)
        assert abs(float(f(ts.asarray(0.7, dtype=ts.float64))) - expected) < 1e-14
        assert abs(float(ts.jit(f)(ts.asarray(0.7, dtype=ts.float64))) - expected) < 1e-14


def test_vmap_of_jit_of_grad() -> None:
    xs = np.stack([X, X + 1, X * 2])
    for f in POOL:
        found = ts.vmap(ts.jit(ts.grad(f)))(ts.asarray(xs))
        close(found, np.stack([np.asarray(ts.grad(f)(ts.asarray(x))) for x in xs]))


# --- closures ---------------------------------------------------------------------------------


@pytest.mark.parametrize("inner", [lambda f: f, ts.jit], ids=["plain", "jit"])
@pytest.mark.parametrize("outer", [lambda f: f, ts.jit], ids=["plain", "jit"])
def test_inner_transforms_use_values_of_outer_ones(outer: Any, inner: Any) -> None:
    x = ts.asarray(X)

    @outer
    def f(x: Any) -> Any:
        # d/dy (x**2 y**3) = 3 x**2 y**2, at y = 2 x
        g = ts.grad(inner(lambda y: ts.sum(x**2 * y**3)))(2.0 * x)
        # the derivative of x * y * k along x
        _, h = ts.jvp(inner(lambda y: x * y * y), (x,), (x,))
        v = ts.vmap(inner(lambda k: ts.sum(x) * k))(x)
        _, pull = ts.vjp(inner(lambda y: y * x), x)
        (p,) = pull(x)
        return ts.sum(g) + ts.sum(h) + ts.sum(v) + ts.sum(p)

    def known(x: np.ndarray) -> Any:
        return np.sum(12 * x**4) + np.sum(2 * x**3) + np.sum(x) ** 2 + np.sum(x**2)

    close(f(x), known(X))
    close(ts.grad(f)(x), 48 * X**3 + 6 * X**2 + 2 * np.sum(X) + 2 * X)
    close(ts.jit(ts.grad(f))(x), 48 * X**3 + 6 * X**2 + 2 * np.sum(X) + 2 * X)
    close(ts.jvp(ts.grad(f), (x,), (x,))[1], 144 * X**3 + 12 * X**2 + 2 * np.sum(X) + 2 * X)
    close(ts.vmap(f)(ts.stack([x, x + 1.0])), np.array([known(X), known(X + 1)]))


def test_compiled_function_that_uses_a_differentiated_value() -> None:
    """It has no traced argument of its own, and nothing of it may be kept."""
    other = ts.asarray(U)

    def f(x: Any) -> Any:
        inner = ts.jit(lambda y: ts.sum(x * x * y))
        assert inner.cache_size() == 0
        result = inner(other) + ts.jit(lambda: ts.sum(x))() + inner(other)
        assert inner.cache_size() == 0
        return result

    for way in (ts.grad(f), ts.jit(ts.grad(f)), ts.grad(ts.jit(f))):
        close(way(ts.asarray(X)), 4 * X * U + 1)
    close(ts.jvp(f, (ts.asarray(X),), (other,))[1], np.sum((4 * X * U + 1) * U))
    xs = ts.asarray(np.stack([X, U]))
    close(ts.vmap(f)(xs), np.array([2 * np.sum(X * X * U) + np.sum(X), 2 * np.sum(U**3) + sum(U)]))


def test_same_compiled_function_with_and_without_traces() -> None:
    f = ts.jit(lambda x: ts.sum(x * x))
    x = ts.asarray(X)
    for _ in range(2):
        close(f(x), np.sum(X * X))
        close(ts.grad(f)(x), 2 * X)
        close(ts.vmap(f)(ts.stack([x, x])), np.array([np.sum(X * X)] * 2))
        close(ts.jit(lambda x: f(x) + f(x[:2]))(x), np.sum(X * X) + np.sum(X[:2] ** 2))
    assert f.cache_size() == 1


def test_arrays_of_the_closure_become_inputs_once() -> None:
    big = ts.asarray(np.arange(3.0))
    f = ts.jit(lambda x: x * big + big)
    found = f.lower(ts.asarray(X)).graph
    assert len(found.args) == 2
    close(f(ts.asarray(X)), X * np.arange(3.0) + np.arange(3.0))
    close(ts.grad(lambda x: ts.sum(f(x)))(ts.asarray(X)), np.arange(3.0))


def test_values_that_do_not_depend_on_the_arguments() -> None:
    """They are computed once, not in the program."""
    c = ts.asarray(X)

    def f(x: Any) -> Any:
        return ts.sum(x) * 0.0 + ts.sum(c), c, 3, True, 2.5

    x = ts.asarray(U)
    total, array, number, flag, half = ts.jit(f)(x)
    close(total, np.sum(X))
    close(array, X)
    assert (int(number), bool(flag), float(half)) == (3, True, 2.5)
    _, tangents = ts.jvp(f, (x,), (x,))
    close(tangents[1], np.zeros(3))
    assert tangents[2].dtype.kind is ts.asarray(1).dtype.kind
    assert_close(ts.grad(lambda x: f(x)[0])(x), np.zeros(3))
    assert_close(ts.grad(lambda x: ts.sum(c))(x), np.zeros(3))


def test_integers_and_bools_of_the_closure() -> None:
    index, mask = ts.asarray([2, 0, 2]), ts.asarray([True, False, True])

    def f(x: Any) -> Any:
        return ts.sum(ts.where(mask, ts.take(x, index), ts.astype(index, ts.float64) * x))

    for way in (ts.grad(f), ts.jit(ts.grad(f)), ts.grad(ts.jit(f))):
        close(way(ts.asarray(X)), np.array([0.0, 0.0, 2.0]))
    close(ts.vmap(f)(ts.asarray(np.stack([X, U]))), np.array([2 * X[2], 2 * U[2]]))


def test_integer_arguments_besides() -> None:
    def f(x: Any, k: Any, flag: Any) -> Any:
        return ts.sum(ts.where(flag, x * k, x)), ts.astype(x, ts.int32)

    x = ts.asarray(X)
    found = ts.jit(ts.grad(f, has_aux=True))(x, 3, True)
    close(found, (np.full(3, 3.0), X.astype(np.int32)))
    assert found[1].dtype is ts.int32
    (_, ints), (_, zeros) = ts.jvp(lambda x: f(x, 3, False), (x,), (x,))
    assert ints.dtype is zeros.dtype is ts.int32
    out, pull = ts.vjp(lambda x: f(x, 3, False), x)
    close(pull((ts.asarray(2.0, dtype=ts.float64), out[1])), (np.full(3, 2.0),))
    with pytest.raises(GradError, match="int64"):
        ts.grad(f, argnums=1)(x, ts.asarray(3), True)
    with pytest.raises(GradError, match="bool"):
        ts.grad(lambda t: t["x"])({"x": x, "flag": ts.asarray(True)})


# --- control flow -----------------------------------------------------------------------------


def by_value(x: Any) -> Any:
    """Python's own control flow on values."""
    total = x * 0.0
    while float(ts.sum(total)) < 4.0:
        total = total + x * x
    if total[0] > total[1]:
        return total[int(ts.argmax(x))]
    return total[1] if bool(ts.any(x > 1.0)) else ts.sum(total)


def test_python_control_flow_on_values() -> None:
    x = ts.asarray(X)
    expected = np.array([0.0, 2 * 2 * X[1], 0.0])
    close(ts.grad(by_value)(x), expected)
    close(ts.value_and_grad(by_value)(x), (2 * X[1] ** 2, expected))
    close(ts.jvp(by_value, (x,), (x,)), (2 * X[1] ** 2, np.sum(expected * X)))
    close(ts.vjp(by_value, x)[1](ts.asarray(1.0, dtype=ts.float64)), (expected,))
    close(ts.linearize(by_value, x)[1](x), np.sum(expected * X))
    close(ts.grad(lambda x: ts.sum(ts.grad(by_value)(x)))(x), np.array([0.0, 4.0, 0.0]))
    close(ts.jvp(ts.grad(by_value), (x,), (x,))[1], np.array([0.0, 4 * X[1], 0.0]))


@pytest.mark.parametrize(
    "way",
    [
        lambda f: ts.jit(f),
        lambda f: ts.jit(ts.grad(f)),
        lambda f: ts.grad(ts.jit(f)),
        lambda f: lambda x: ts.vmap(f)(ts.stack([x])),
        lambda f: lambda x: ts.vmap(ts.grad(f))(ts.stack([x])),
        lambda f: lambda x: ts.grad(lambda x: ts.sum(ts.vmap(f)(ts.stack([x]))))(x),
    ],
)
def test_no_values_while_tracing(way: Any) -> None:
    with pytest.raises(ConcretizationError, match=r"float\(\)"):
        way(by_value)(ts.asarray(X))


def test_values_of_outer_functions_are_known_in_vmap() -> None:
    def f(x: Any) -> Any:
        return ts.sum(ts.vmap(lambda y: y * x[0] if x[0] > 0 else y)(x))

    close(ts.grad(f)(ts.asarray(X)), X[0] + np.array([np.sum(X), 0, 0]))


def test_tracers_that_escape() -> None:
    kept: list[Any] = []

    def f(x: Any) -> Any:
        kept.append(x * 2.0)
        return ts.sum(x)

    for way in (ts.grad(f), ts.jit(f), lambda x: ts.vmap(f)(ts.stack([x]))):
        way(ts.asarray(X))
        with pytest.raises(TracerLeakError):
            kept[-1] + 1.0
        with pytest.raises(TracerLeakError):
            ts.grad(lambda x: ts.sum(x * kept[-1]))(ts.asarray(X))
        with pytest.raises(TracerLeakError):
            ts.jit(lambda x: x * kept[-1])(ts.asarray(X))


@pytest.mark.parametrize("positive", [True, False])
def test_branches_with_different_derivatives(positive: bool) -> None:
    """One uses more of the values again than the other, and not every result has tangents."""

    def f(pred: Any, x: Any, y: Any) -> Any:
        zero = ts.zeros_like
        a, b, c = cond(
            pred,
            lambda x, y: [ts.sin(x) * ts.exp(y) * x, zero(x), ts.argmax(x)],
            lambda x, y: [zero(x), y * 2.0, ts.argmin(y)],
            x,
            y,
        )
        return ts.sum(a * a) + ts.sum(b * y) + ts.astype(c, ts.float64)

    def plain(x: Any, y: Any) -> Any:
        if positive:
            return ts.sum((ts.sin(x) * ts.exp(y) * x) ** 2) + ts.astype(ts.argmax(x), ts.float64)
        return ts.sum(y * 2.0 * y) + ts.astype(ts.argmin(y), ts.float64)

    x, y, pred = ts.asarray(X), ts.asarray(U), ts.asarray(positive)
    for g, h in (
        (ts.value_and_grad(lambda x, y: f(pred, x, y), (0, 1)), ts.value_and_grad(plain, (0, 1))),
        (
            lambda x, y: ts.jvp(ts.grad(lambda y: f(pred, x, y)), (y,), (x,)),
            lambda x, y: ts.jvp(ts.grad(lambda y: plain(x, y)), (y,), (x,)),
        ),
    ):
        expected = h(x, y)
        close(g(x, y), expected)
        close(ts.jit(g)(x, y), expected)


def test_batch_of_predicates() -> None:
    """Only the predicate, only the operands, or both have a batch axis; with gradients."""

    def f(pred: Any, x: Any) -> Any:
        y, n = cond(
            pred, lambda x: [ts.sin(x), ts.argmax(x) + 1], lambda x: [x * x, ts.argmin(x)], x
        )
        return ts.sum(y * y), n

    preds, xs = np.array([True, False, True]), np.stack([X, U, X + U])
    one = np.asarray(True)
    for p, x, axes in ((preds, X, (0, None)), (one, xs, (None, 0)), (preds, xs, (0, 0))):
        for way in (f, lambda p, x: ts.grad(lambda x: f(p, x)[0])(x)):
            expected = [
                way(ts.asarray(p[k] if p.ndim else p), ts.asarray(x[k] if axes[1] == 0 else x))
                for k in range(3)
            ]
            columns = list(zip(*[ts.pytree.leaves(e) for e in expected], strict=True))
            stacked = [np.stack([np.asarray(v) for v in column]) for column in columns]
            batched = ts.vmap(way, axes)
            close(batched(ts.asarray(p), ts.asarray(x)), stacked)
            close(ts.jit(batched)(ts.asarray(p), ts.asarray(x)), stacked)


def newton(a: Any, x: Any) -> Any:
    """The square root of `a`, in as many steps as it takes."""
    _, found, _ = while_(
        lambda a, k, x, old: ts.logical_and(ts.abs(x - old) > 1e-12, k < 50),
        lambda a, k, x, old: [k + 1, 0.5 * (x + a / x), x],
        (a,),
        (ts.asarray(0), x, x + 1.0),
    )
    return found


def test_loop_with_unknown_number_of_steps() -> None:
    a, x = ts.asarray(2.0, dtype=ts.float64), ts.asarray(1.0, dtype=ts.float64)
    one = ts.asarray(1.0, dtype=ts.float64)

    def slope(a: Any) -> Any:
        return ts.jvp(lambda a: newton(a, x), (a,), (one,))[1]

    def curve(a: Any) -> Any:
        return ts.jvp(slope, (a,), (one,))[1]

    for wrap in (lambda f: f, ts.jit):
        assert abs(float(wrap(newton)(a, x)) - 2**0.5) < 1e-12
        assert abs(float(wrap(slope)(a)) - 0.5 / 2**0.5) < 1e-9
        assert abs(float(wrap(curve)(a)) + 0.25 * 2**-1.5) < 1e-6
    inner = ts.jit(lambda a: newton(a, x))
    assert abs(float(ts.jvp(inner, (a,), (one,))[1]) - 0.5 / 2**0.5) < 1e-9
    for f in (inner, lambda a: newton(a, x)):
        for g in (f, lambda a, f=f: call(lambda a: [f(a)], a)[0]):
            value, push = ts.linearize(g, a)
            assert abs(float(value) - 2**0.5) < 1e-12
            assert abs(float(push(one)) - 0.5 / 2**0.5) < 1e-9
    with pytest.raises(NotDifferentiableError, match="reverse"):
        ts.grad(lambda a: newton(a, x))(a)
    with pytest.raises(NotDifferentiableError, match="reverse"):
        ts.jit(ts.grad(lambda a: newton(a, x)))(a)


def test_batches_of_loops() -> None:
    """Examples that are done keep their values."""
    many = np.array([1e-4, 2.0, 1e4, 1.0])
    one = ts.asarray(1.0, dtype=ts.float64)

    def slope(a: Any) -> Any:
        return ts.jvp(lambda a: newton(a, one), (a,), (one,))[1]

    for wrap in (lambda f: f, ts.jit):
        close(wrap(ts.vmap(newton, (0, None)))(ts.asarray(many), one), np.sqrt(many))
        close(wrap(ts.vmap(newton, (None, 0)))(one, ts.asarray(many)), np.ones(4))
        close(wrap(ts.vmap(newton))(ts.asarray(many), ts.asarray(many)), np.sqrt(many))
        # The slope converges later than the value.
        assert_close(wrap(ts.vmap(slope))(ts.asarray(many)), 0.5 / np.sqrt(many), factor=1e6)
    batched = ts.vmap(newton, (0, None))
    found = ts.jvp(lambda a: batched(a, one), (ts.asarray(many),), (ts.ones(4, dtype=ts.float64),))
    assert_close(found[1], 0.5 / np.sqrt(many), factor=1e6)
    assert ts.vmap(newton, (0, None))(ts.zeros(0, dtype=ts.float64), one).shape == (0,)


def test_counters_of_batched_loops_stay_numbers() -> None:
    """What is the same for all examples is computed once, and then nothing needs to be selected."""

    def power(n: Any, x: Any) -> Any:
        return while_(
            lambda x, k, y, z: k > 0,
            lambda x, k, y, z: [k - 1, y * x, z + y],
            (x,),
            (n, ts.ones(3, dtype=ts.float64), ts.zeros(3, dtype=ts.float64)),
        )

    n, xs = ts.asarray(3), ts.asarray(np.stack([X, U]))
    batched = ts.vmap(power, (None, 0))
    graph = str(ts.make_graph(batched)(n, xs))
    assert "(i64[], f64[2, 3], f64[2, 3])" in graph
    assert "graph.select" not in graph
    k, y, z = batched(n, xs)
    close((y, z), (np.stack([X, U]) ** 3, sum(np.stack([X, U]) ** k for k in range(3))))
    close(k, np.zeros(2, np.int64))
    found = ts.vmap(power, (0, None))(ts.asarray([0, 3]), ts.asarray(X))
    close(found[1], np.stack([np.ones(3), X**3]))


def test_loops_of_integers_do_not_hinder_gradients() -> None:
    def f(n: Any, x: Any) -> Any:
        _, place = while_(
            lambda n, k, p: k < n, lambda n, k, p: [k + 1, p + k], (n,), (ts.asarray(0), n * 0)
        )
        return ts.take(x, place) ** 2

    n, x = ts.asarray(2), ts.asarray(X)
    for way in (ts.grad(f, 1), ts.jit(ts.grad(f, 1)), ts.grad(ts.jit(f), 1)):
        close(way(n, x), np.array([0.0, 2 * X[1], 0.0]))


def test_control_inside_control() -> None:
    def f(n: Any, x: Any) -> Any:
        def body(k: Any, x: Any) -> list[Any]:
            (y,) = cond(
                k % 2 == 0, lambda x: call(lambda x: [ts.sin(x) * x], x), lambda x: [x * 1.5], x
            )
            return [k - 1, y]

        return while_(lambda k, x: k > 0, body, (), (n, x))[1]

    def plain(n: int, x: Any) -> Any:
        for k in range(n, 0, -1):
            x = ts.sin(x) * x if k % 2 == 0 else x * 1.5
        return x

    x, u = ts.asarray(X), ts.asarray(U)
    for n in (0, 1, 4):
        expected = ts.jvp(lambda x, n=n: plain(n, x), (x,), (u,))
        for g in (f, ts.jit(f)):
            close(ts.jvp(lambda x, g=g, n=n: g(ts.asarray(n), x), (x,), (u,)), expected)
    found = ts.vmap(f, (0, None))(ts.asarray([0, 1, 4]), x)
    close(found, np.stack([np.asarray(plain(n, x)) for n in (0, 1, 4)]))
    pairs = ts.vmap(lambda n: ts.jvp(lambda x: f(n, x), (x,), (u,))[1])(ts.asarray([1, 4]))
    expected = [ts.jvp(lambda x, n=n: plain(n, x), (x,), (u,))[1] for n in (1, 4)]
    close(pairs, np.stack([np.asarray(e) for e in expected]))


# --- arguments and results --------------------------------------------------------------------

Pair = collections.namedtuple("Pair", ["left", "right"])


def test_arguments_by_number() -> None:
    def f(x: Any, y: Any, *, scale: Any = 1.0) -> Any:
        return ts.sum(x * y * y) * scale

    x, y = ts.asarray(X), ts.asarray(U)
    close(ts.grad(f)(x, y), U * U)
    close(ts.grad(f, 1)(x, y, scale=2.0), 4 * X * U)
    close(ts.grad(f, -1)(x, y), 2 * X * U)
    close(ts.grad(f, (1, 0))(x, y), (2 * X * U, U * U))
    close(ts.grad(f, [0])(x, y), (U * U,))
    assert isinstance(ts.grad(f, (0,))(x, y), tuple)
    with pytest.raises(GradError, match="argnums"):
        ts.grad(f, 2)(x, y)
    with pytest.raises(GradError, match="argnums"):
        ts.grad(f)()


def test_auxiliary_results() -> None:
    def f(x: Any) -> Any:
        y = x * x
        return ts.sum(y), {"y": y, "count": 3, "none": None, "flags": (x > 1.0, ts.asarray(X))}

    x = ts.asarray(X)
    aux = {"y": X * X, "count": np.int32(3), "none": None, "flags": (X > 1.0, X)}
    for wrap in (lambda f: f, ts.jit):
        (value, found), gradient = wrap(ts.value_and_grad(f, has_aux=True))(x)
        close((value, gradient), (np.sum(X * X), 2 * X))
        assert found["none"] is None
        close({**found, "count": np.int32(found["count"])}, aux)
        gradient, found = wrap(ts.grad(f, has_aux=True))(x)
        close(gradient, 2 * X)
        close(found["flags"], aux["flags"])
    value, pull, found = ts.vjp(f, x, has_aux=True)
    close(pull(ts.asarray(1.0, dtype=ts.float64)), (2 * X,))
    close(found["y"], X * X)
    # Auxiliary results have derivatives of their own.
    close(ts.grad(lambda x: ts.sum(ts.grad(f, has_aux=True)(x)[1]["y"]))(x), 2 * X)
    with pytest.raises(GradError, match="pair"):
        ts.grad(lambda x: ts.sum(x), has_aux=True)(x)


def test_containers() -> None:
    tree = {
        "b": Pair(ts.asarray(X), [ts.asarray(U), None]),
        "a": (ts.asarray(M), {}),
        "empty": (),
    }

    def f(tree: Any) -> Any:
        left, (right, none) = tree["b"]
        assert none is None
        return ts.sum((tree["a"][0] @ left) ** 2) + ts.sum(left * right)

    found = ts.grad(f)(tree)
    assert isinstance(found["b"], Pair)
    assert found["b"].right[1] is None
    assert found["a"][1] == {}
    assert found["empty"] == ()
    close(found["b"].left, 2 * M.T @ (M @ X) + U)
    close(found["b"].right[0], X)
    close(found["a"][0], 2 * np.outer(M @ X, X))
    close(ts.jit(ts.grad(f))(tree), found)
    close(ts.grad(ts.jit(f))(tree), found)
    _, tangent = ts.jvp(f, (tree,), (found,))
    squares = [np.sum(np.asarray(g) ** 2) for g in ts.pytree.leaves(found)]
    close(tangent, np.sum(squares))
    # A tree of gradients of each example.
    stacked = ts.pytree.map_(lambda x: ts.stack([x, x * 2.0]), tree)
    each = ts.vmap(ts.grad(f))(stacked)
    close(ts.pytree.map_(lambda x: x[0], each), found)


def test_results_in_containers() -> None:
    def f(x: Any) -> Any:
        return {"s": ts.sin(x), "t": (None, Pair(x * 2.0, ts.sum(x)))}

    x = ts.asarray(X)
    for wrap in (lambda f: f, ts.jit):
        out, tangent = ts.jvp(wrap(f), (x,), (ts.asarray(U),))
        close(tangent, {"s": np.cos(X) * U, "t": (None, Pair(2 * U, np.sum(U)))})
        assert isinstance(out["t"][1], Pair)
        _, pull = ts.vjp(wrap(f), x)
        (found,) = pull(out)
        close(found, np.sin(X) * np.cos(X) + 4 * X + np.sum(X))
    with pytest.raises(Exception, match="structure"):
        pull({"s": x})
    with pytest.raises(ShapeError):
        pull({"s": x[:2], "t": (None, Pair(x, ts.sum(x)))})
    with pytest.raises(Exception, match="structure"):
        ts.jvp(f, (x,), ((x, x),))
    with pytest.raises(ShapeError):
        ts.jvp(f, (x,), (x[:2],))


def test_arguments_that_are_results_and_arrays_that_occur_twice() -> None:
    x = ts.asarray(X)

    def f(x: Any) -> Any:
        return x, x, {"a": x * 2.0, "b": x}

    for wrap in (lambda f: f, ts.jit):
        out, pull = ts.vjp(wrap(f), x)
        for _ in range(2):
            close(pull(out), (X + X + 4 * X + X,))
        close(ts.jvp(wrap(f), (x,), (x,))[1], out)
        product = wrap(lambda x, y: x * y)
        found = ts.grad(lambda x, y, f=product: ts.sum(f(x, y) * x), (0, 1))(x, x)
        close(found, (2 * X * X, X * X))


def test_arrays_that_change_afterwards() -> None:
    """A NumPy array that the caller writes to later has the value it had."""
    ones = ts.ones(3, dtype=ts.float64)

    def changed(use: Callable[[np.ndarray], Callable[[], Any]]) -> Any:
        w = X.copy()
        later = use(w)
        w[:] = 100.0
        return later()

    def pulled(w: np.ndarray) -> Any:
        pull = ts.vjp(lambda x: x * w, ones)[1]
        return lambda: pull(ones)[0]

    def pulled_argument(w: np.ndarray) -> Any:
        pull = ts.vjp(lambda x, w: x * w, ones, w)[1]
        return lambda: pull(ones)[0]

    def pushed(w: np.ndarray) -> Any:
        push = ts.linearize(lambda x: x * w, ones)[1]
        return lambda: push(ones)

    def compiled(w: np.ndarray) -> Any:
        f = ts.jit(lambda x: x * w)
        f(ones)
        return lambda: f(ones)

    def returned(way: Callable[..., Any]) -> Callable[[np.ndarray], Any]:
        def use(w: np.ndarray) -> Any:
            found = way(w)
            return lambda: found

        return use

    for use in (
        pulled,
        pulled_argument,
        pushed,
        compiled,
        returned(ts.jit(lambda x: x)),
        returned(ts.vmap(lambda x: x)),
        returned(lambda w: ts.jvp(lambda x: x, (w,), (w,))[1]),
        returned(lambda w: ts.vmap(lambda k: w)(ones)[0]),
    ):
        close(changed(use), X)


def test_functions_without_results() -> None:
    x = ts.asarray(X)
    assert ts.jit(lambda x: None)(x) is None
    assert ts.jit(lambda x: {"a": ()})(x) == {"a": ()}
    assert ts.jvp(lambda x: None, (x,), (x,)) == (None, None)
    assert ts.vmap(lambda x: None)(x) is None
    close(ts.grad(lambda x: (ts.jit(lambda x: None)(x), ts.sum(x))[1])(x), np.ones(3))
    assert ts.jit(ts.jit(lambda: None))() is None


@pytest.mark.parametrize(
    ("fn", "message"),
    [
        (lambda x: x, "f64"),
        (lambda x: (ts.sum(x), ts.sum(x)), "2"),
        (lambda x: ts.argmax(x), "i64"),
        (lambda x: ts.sum(x) + 1j, "c128"),
        (lambda x: None, "no array"),
    ],
)
def test_gradients_are_of_real_scalars(fn: Any, message: str) -> None:
    with pytest.raises(GradError, match=message):
        ts.grad(fn)(ts.asarray(X))


# --- caches -----------------------------------------------------------------------------------


def entries() -> int:
    """How many programs of single ops there are."""
    return len(current_engine()._cache)


def test_repeated_gradients_compile_nothing() -> None:
    def f(x: Any, y: Any) -> Any:
        h = ts.tanh(x @ y) / 3.0
        return ts.mean(ts.logsumexp(h, axis=1)) if hasattr(ts, "logsumexp") else ts.mean(ts.exp(h))

    def both(m: np.ndarray, scale: float) -> Any:
        x, y = ts.asarray(m * scale), ts.asarray(m.T + scale)
        gradient = ts.grad(lambda x, y: f(x, y) * scale, (0, 1))
        ts.vmap(ts.grad(lambda x: ts.sum(x * x * scale)))(x)
        return ts.jvp(gradient, (x, y), (x, y))

    both(M, 1.0)
    count = entries()
    both(M, 2.0)
    assert entries() == count
    # What is run natively from the next call on reads copies of what is repeated, at first.
    for _ in range(3):
        both(M, 2.0)
    count = entries()
    for scale in (2.0, 0.1, 1e3):
        both(M, scale)
    assert entries() == count
    # Nor for other sizes, once two that differ are there (equal sizes are equal in the program).
    both(np.ones((4, 5)), 1.0)
    count = entries()
    for shape in ((6, 7), (9, 2), (3, 11)):
        both(np.ones(shape), 0.5)
    assert entries() == count


def test_repeated_gradients_of_compiled_functions_compile_nothing() -> None:
    f = ts.jit(lambda x: ts.sum(ts.sin(x) * x))

    def work(x: np.ndarray) -> None:
        ts.grad(f)(ts.asarray(x))
        ts.vmap(ts.grad(f))(ts.asarray(np.stack([x, x])))
        ts.jvp(ts.grad(f), (ts.asarray(x),), (ts.asarray(x),))

    work(X)
    count = entries()
    for k in range(3):
        work(U + k)
    assert entries() == count
    assert f.cache_size() == 0


def test_numbers_need_no_program() -> None:
    x = ts.asarray(X)
    ts.grad(lambda x: ts.sum(x * 1.25))(x)
    count = entries()
    for k in range(5):
        close(ts.grad(lambda x, k=k: ts.sum(x * (k + 0.1)))(x), np.full(3, k + 0.1))
    assert entries() == count


def test_compiled_functions_inside_are_compiled_once() -> None:
    inner = ts.jit(lambda x: ts.sum(x * x))
    f = ts.jit(ts.grad(lambda x: inner(x) + inner(x)))
    for k in range(3):
        close(f(ts.asarray(X + k)), 4 * (X + k))
    assert f.cache_size() == 1
    assert inner.cache_size() == 0


# --- empty arrays and scalars -----------------------------------------------------------------

EMPTY: list[tuple[str, Callable[..., Any], tuple[int, ...]]] = [
    ("sum", lambda x: ts.sum(x * x), (0,)),
    ("sum of rows", lambda x: ts.sum(ts.sum(x, axis=1) ** 2), (2, 0)),
    ("sum of columns", lambda x: ts.sum(ts.sum(x, axis=1) ** 2), (0, 2)),
    ("prod", lambda x: ts.sum(ts.prod(x, axis=0)), (0, 3)),
    ("matmul", lambda x: ts.sum(x @ ts.permute_dims(x, (1, 0))), (3, 0)),
    ("outer", lambda x: ts.sum(x @ ts.ones((3, 2), dtype=x.dtype)), (0, 3)),
    ("concat", lambda x: ts.sum(ts.concat([x, x * 2.0])), (0,)),
    ("sort", lambda x: ts.sum(ts.sort(x)), (0,)),
    ("cumulative", lambda x: ts.sum(ts.cumulative_sum(x) * x), (0,)),
    ("slice", lambda x: ts.sum(x[1:1] * 2.0), (3,)),
    ("take", lambda x: ts.sum(ts.take(x, ts.asarray([], dtype=ts.int64), axis=0)), (3, 2)),
    ("reshape", lambda x: ts.sum(ts.reshape(x, (0, 5))), (3, 0)),
    ("reverse", lambda x: ts.sum(ts.flip(x) * x), (0, 2)),
    ("broadcast", lambda x: ts.sum(x[:, None] * ts.zeros((1, 0), dtype=x.dtype)), (2,)),
    ("where", lambda x: ts.sum(ts.where(x > 0, x, -x)), (0, 1)),
    ("at", lambda x: ts.sum(x.at[0:0].set(1.0) ** 2), (2,)),
    ("exp of the empty sum", lambda x: ts.exp(ts.sum(x)), (0, 0)),
]


@pytest.mark.parametrize(("name", "fn", "shape"), EMPTY, ids=[e[0] for e in EMPTY])
def test_empty_arrays(name: str, fn: Any, shape: tuple[int, ...]) -> None:
    x = ts.asarray(np.full(shape, 0.5))
    value, gradient = ts.value_and_grad(fn)(x)
    assert gradient.shape == shape
    assert gradient.dtype is ts.float64
    close(ts.jit(ts.value_and_grad(fn))(x), (value, gradient))
    close(ts.grad(ts.jit(fn))(x), gradient)
    out, tangent = ts.jvp(fn, (x,), (x,))
    close((out, tangent), (value, np.sum(np.asarray(gradient) * 0.5)))
    second = ts.jvp(ts.grad(fn), (x,), (x,))[1]
    close(ts.jit(lambda x: ts.jvp(ts.grad(fn), (x,), (x,))[1])(x), second)
    for size in (0, 2):
        found = ts.vmap(ts.grad(fn))(ts.asarray(np.full((size, *shape), 0.5)))
        close(found, np.stack([np.asarray(gradient)] * size) if size else np.zeros((0, *shape)))


def test_scalars() -> None:
    x = ts.asarray(0.5, dtype=ts.float64)

    def f(x: Any) -> Any:
        y = ts.reshape(ts.sum(ts.broadcast_to(x, (2, 3))), ())
        z = ts.permute_dims(y * x, ())
        line = ts.reshape(z, (1,))
        return ts.where(z > 0, ts.max(z) + ts.prod(z), line @ line)

    for way in (f, ts.jit(f)):
        close(ts.value_and_grad(way)(x), (np.float64(3.0), np.float64(24 * 0.5)))
        close(ts.grad(ts.grad(way))(x), np.float64(24.0))
    close(ts.vmap(ts.grad(f))(ts.asarray([0.5, 1.0], dtype=ts.float64)), np.array([12.0, 24.0]))


def test_python_numbers_as_arguments() -> None:
    assert float(ts.grad(lambda x: x * x)(3.0)) == 6.0
    assert float(ts.jit(ts.grad(lambda x: x * x))(3.0)) == 6.0
    assert float(ts.grad(ts.jit(lambda x: x * x))(3.0)) == 6.0
    value, tangent = ts.jvp(lambda x, y: x * y, (3.0, ts.asarray(2.0)), (1.0, 1.0))
    assert (float(value), float(tangent)) == (6.0, 5.0)
    value, tangent = ts.jvp(ts.sin, (ts.asarray(0.0, dtype=ts.float64),), (1.0,))
    assert tangent.dtype is ts.float64
    _, pull = ts.vjp(lambda x: x * 2.0, ts.asarray(0.0, dtype=ts.float64))
    assert pull(1.0)[0].dtype is ts.float64
    with pytest.raises(GradError):
        ts.grad(lambda x: x * x)(3)


@pytest.mark.parametrize("dtype", [ts.float16, ts.bfloat16, ts.float32, ts.complex64])
def test_other_dtypes(dtype: Any) -> None:
    """Gradients have the dtype of their arguments, and so does what they are made of."""

    def f(x: Any) -> Any:
        y = x * x * 0.5 + ts.sum(x) / 2.0
        return ts.sum(ts.real(y)) if dtype is ts.complex64 else ts.sum(y)

    x = ts.asarray(X, dtype=dtype)
    for way in (ts.grad(f), ts.jit(ts.grad(f)), ts.grad(ts.jit(f))):
        found = way(x)
        assert found.dtype is dtype
        assert_close(found, np.asarray(X + 1.5).astype(dtype.np), factor=4)
    second = ts.jvp(ts.grad(f), (x,), (ts.ones_like(x),))[1]
    assert_close(second, np.ones(3).astype(dtype.np))
