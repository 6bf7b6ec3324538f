"""Derivatives that the user writes: `custom_jvp` and `custom_vjp`."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest

import tessera as ts
from tessera.errors import GradError, NotDifferentiableError
from tests.tolerance import assert_close

X = np.array([0.4, 1.3, 0.8])
ROUTES = 1e2
"""Derivatives by several routes differ by roundings."""

ONCE: dict[str, Callable[[Any], Any]] = {"eager": lambda f: f, "jit": ts.jit}


def close(found: Any, expected: Any) -> None:
    assert_close(np.asarray(found), np.asarray(expected), factor=ROUTES)


@ts.custom_jvp
def wave(x: Any) -> Any:
    """Its rule says three times its derivative, so that it is seen whether the rule was used."""
    return ts.sin(x)


@wave.defjvp
def _(primals: Any, tangents: Any) -> Any:
    (x,), (t,) = primals, tangents
    return wave(x), 3 * ts.cos(x) * t


@ts.custom_vjp
def product(x: Any, y: Any) -> Any:
    return ts.sin(x) * y


def _product_fwd(x: Any, y: Any) -> Any:
    return product(x, y), {"c": ts.cos(x), "s": ts.sin(x), "y": y, "large": ts.ones((50, 50))}


def _product_bwd(residuals: Any, ct: Any) -> Any:
    return 2 * residuals["c"] * residuals["y"] * ct, 5 * residuals["s"] * ct


product.defvjp(_product_fwd, _product_bwd)


@pytest.mark.parametrize("once", ONCE.values(), ids=ONCE)
def test_jvp_rule_in_every_transform(once: Any) -> None:
    x = ts.asarray(X)
    close(once(wave)(x), np.sin(X))
    close(once(ts.vmap(wave))(x), np.sin(X))
    close(once(lambda x, t: ts.jvp(wave, (x,), (t,))[1])(x, x), 3 * np.cos(X) * X)
    close(once(ts.vmap(ts.grad(wave)))(x), 3 * np.cos(X))
    close(once(ts.grad(lambda x: ts.sum(wave(x))))(x), 3 * np.cos(X))
    close(once(ts.grad(lambda x: ts.sum(ts.vmap(wave)(x))))(x), 3 * np.cos(X))
    close(once(ts.grad(lambda x: ts.sum(ts.jit(wave)(x))))(x), 3 * np.cos(X))
    # The rule calls cos, which has no rule of the user's.
    close(once(ts.vmap(ts.grad(ts.grad(wave))))(x), -3 * np.sin(X))
    close(once(lambda x: ts.linearize(wave, x)[1](x))(x), 3 * np.cos(X) * X)


@pytest.mark.parametrize("once", ONCE.values(), ids=ONCE)
def test_vjp_rule_in_every_transform(once: Any) -> None:
    x, y = ts.asarray(X), ts.asarray(2.0, dtype=ts.float64)
    wrt_x, wrt_y = 4 * np.cos(X), 5 * np.sin(X)
    close(once(product)(x, y), 2 * np.sin(X))
    both = once(ts.grad(lambda x, y: ts.sum(product(x, y)), (0,)))(x, ts.broadcast_to(y, (3,)))
    close(both[0], wrt_x)
    found = once(ts.vmap(ts.grad(product, (0, 1)), (0, None)))(x, y)
    close(found[0], wrt_x)
    close(found[1], wrt_y)
    # A value that all examples share has the sum of their derivatives.
    shared = lambda x, y: ts.sum(ts.vmap(product, (0, None))(x, y))  # noqa: E731
    found = once(ts.grad(shared, (0, 1)))(x, y)
    close(found[0], wrt_x)
    close(found[1], np.sum(wrt_y))
    # The rule is differentiated in its turn: of cos, not of what the rule belongs to.
    close(once(ts.vmap(ts.grad(lambda x: ts.grad(product)(x, y))))(x), -4 * np.sin(X))
    # Batches in batches.
    grid = ts.vmap(ts.vmap(ts.grad(product), (0, None)), (None, 0))
    close(once(grid)(x, x), 2 * np.cos(X)[None, :] * X[:, None])


def test_vjp_rule_in_forward_mode() -> None:
    for f in (product, ts.jit(product), ts.vmap(product)):
        with pytest.raises(NotDifferentiableError, match="reverse mode only"):
            ts.jvp(f, (ts.asarray(X), ts.asarray(X)), (ts.asarray(X), ts.asarray(X)))
    with pytest.raises(NotDifferentiableError, match="reverse mode only"):
        ts.jit(lambda x: ts.jvp(lambda x: product(x, x), (x,), (x,)))(ts.asarray(X))


    push = ts.linearize(lambda x: product(x, x), ts.asarray(1.0))[1]
    with pytest.raises(NotDifferentiableError, match="reverse mode only"):
        ts.vmap(push)(ts.ones(3))


@pytest.mark.parametrize("once", ONCE.values(), ids=ONCE)
def test_forward_over_reverse(once: Any) -> None:
    """What is differentiated forwards then are the functions of the rule, not what they are for."""
    f = ts.custom_vjp(lambda x: ts.sin(x))
    f.defvjp(lambda x: (ts.sin(x), x), lambda x, ct: (3 * ts.cos(x) * ct,))
    x = ts.asarray(X)
    wrapped: list[Callable[[Any], Any]] = [
        f,
        ts.jit(f),
        ts.checkpoint(f),
        lambda x: ts.cond(x[0] > 0, f, f, x),
        lambda x: ts.scan(lambda c, _: (f(c), None), x, None, length=1)[0],
        ts.vmap(f),
    ]
    for g in wrapped:
        found = once(ts.hessian(lambda x, g=g: ts.sum(g(x))))(x)
        close(found, np.diag(-3 * np.sin(X)))
    value, slope = once(lambda x, t: ts.jvp(ts.value_and_grad(f), (x,), (t,))[1])(0.5, 1.0)
    close(value, np.float32(np.cos(0.5)))
    close(slope, np.float32(-3 * np.sin(0.5)))


def test_residuals_that_are_not_used() -> None:
    graph = ts.make_graph(ts.grad(ts.jit(lambda x: product(x, x * 2))))(1.0)
    *_, forward, backward = [op for op in graph.ops if op.name == "graph.call"]
    assert all(value.type.shape == () for value in (*forward.results, *backward.operands))
    assert "[50, 50]" not in str(ts.jit(ts.grad(product)).lower(1.0, 2.0).graph)


def test_python_control_flow_by_values() -> None:
    """Outside `jit`, the function and its rule see values, as everything in `grad` does."""

    @ts.custom_jvp
    def half(x: Any) -> Any:
        return x / 2 if x > 0 else -x

    @half.defjvp
    def _(primals: Any, tangents: Any) -> Any:
        (x,), (t,) = primals, tangents
        return half(x), 10 * t if x > 0 else 20 * t

    assert float(ts.grad(half)(1.0)) == 10.0
    assert float(ts.grad(half)(-1.0)) == 20.0
    assert float(ts.grad(lambda x: half(x) * half(-x))(1.0)) == 10.0 * 1 + 0.5 * -20.0


def test_nondiff_argnums_of_jvp() -> None:
    @partial(ts.custom_jvp, nondiff_argnums=(0, 2))
    def apply(f: Any, x: Any, n: int) -> Any:
        return f(x) * n

    @apply.defjvp
    def _(f: Any, n: int, primals: Any, tangents: Any) -> Any:
        (x,), (t,) = primals, tangents
        return apply(f, x, n), 100 * n * f(t)

    assert float(apply(ts.sin, 0.0, 2)) == 0.0
    for once in ONCE.values():
        assert float(once(ts.grad(lambda x: apply(lambda t: 3 * t, x, n=2)))(1.0)) == 600.0
        found = once(ts.vmap(ts.grad(lambda x: apply(lambda t: 3 * t, x, 2))))(ts.ones(2))
        assert found.tolist() == [600.0, 600.0]


def test_nondiff_argnums_of_vjp() -> None:
    @partial(ts.custom_vjp, nondiff_argnums=(1,))
    def clip(x: Any, limit: Any) -> Any:
        return x

    clip.defvjp(
        lambda x, limit: (x, None), lambda limit, _, ct: (ts.clip(ct, -limit, limit),)
    )
    named = ts.custom_vjp(lambda x, limit: x, nondiff_argnames="limit")
    named.defvjp(lambda x, limit: (x, None), lambda limit, _, ct: (ct * limit,))
    assert float(ts.grad(lambda x: named(x, limit=7.0))(1.0)) == 7.0

    for once in ONCE.values():
        slope = once(ts.grad(lambda x: 10 * clip(x, 2.0)))
        assert float(slope(1.0)) == 2.0
        # A traced value among these arguments is fine as long as it has no derivative.
        slopes = once(ts.vmap(lambda limit: ts.grad(lambda x: 10 * clip(x, limit))(1.0)))
        assert slopes(ts.asarray([1.0, 3.0])).tolist() == [1.0, 3.0]


def test_containers() -> None:
    @ts.custom_vjp
    def line(params: Any, x: Any) -> Any:
        return {"y": params["w"] * x + params["b"][0], "n": ts.asarray(3)}

    def fwd(params: Any, x: Any) -> Any:
        return line(params, x), (params["w"], x)

    def bwd(residuals: Any, ct: Any) -> Any:
        w, x = residuals
        return {"w": 7 * ct["y"] * x, "b": None}, w * ct["y"]

    line.defvjp(fwd, bwd)
    params = {"w": ts.asarray(2.0), "b": [ts.asarray(1.0)]}
    for once in ONCE.values():
        found = once(ts.grad(lambda p, x: line(p, x)["y"] * 1.0, (0, 1)))(params, 3.0)
        assert ts.pytree.map_(float, found) == ({"b": [0.0], "w": 21.0}, 2.0)


def test_defjvps() -> None:
    @ts.custom_jvp
    def f(x: Any, y: Any, n: Any) -> Any:
        return x * y * n

    f.defjvps(lambda t, out, x, y, n: 10 * t * out, lambda t, out, x, y, n: 100 * t, None)
    for once in ONCE.values():
        found = once(ts.grad(f, (0, 1, 2)))(2.0, 3.0, 1.0)
        assert [float(x) for x in found] == [60.0, 100.0, 0.0]


def test_integer_arguments_and_results() -> None:
    @ts.custom_jvp
    def pick(xs: Any, k: Any) -> Any:
        return xs[k], k + 1

    @pick.defjvp
    def _(primals: Any, tangents: Any) -> Any:
        (xs, k), (dxs, dk) = primals, tangents
        assert dk.dtype == ts.int64
        return pick(xs, k), (5 * dxs[k], dk)

    for once in ONCE.values():
        found = once(ts.grad(lambda xs, k: pick(xs, k)[0]))(ts.ones(3), 1)
        assert found.tolist() == [0.0, 5.0, 0.0]


def test_closures() -> None:
    """A value from outside may be traced; it has no derivative."""

    def scaled(k: Any, x: Any) -> Any:
        @ts.custom_vjp
        def f(x: Any) -> Any:
            return x * k

        f.defvjp(lambda x: (x * k, None), lambda _, ct: (ct * k * 2,))
        return f(x)

    def jvp_scaled(k: Any, x: Any) -> Any:
        @ts.custom_jvp
        def f(x: Any) -> Any:
            return x * k

        f.defjvps(lambda t, out, x: t * k)
        return f(x)

    for once in ONCE.values():
        slopes = once(ts.vmap(ts.grad(lambda x, k: scaled(k, x)), (None, 0)))
        assert slopes(1.0, ts.asarray([2.0, 3.0])).tolist() == [4.0, 6.0]
        with pytest.raises(GradError, match="from outside"):
            once(ts.grad(partial(jvp_scaled, x=1.0)))(2.0)


def test_unchanged_outside_of_transforms() -> None:
    calls: list[Any] = []

    @ts.custom_vjp
    def f(x: Any) -> Any:
        """Documentation."""
        calls.append(x)
        return x

    f.defvjp(lambda x: (x, None), lambda _, ct: (ct,))
    marker = object()
    assert f(marker) is marker
    assert calls == [marker]
    assert f.__doc__ == "Documentation."
    assert repr(f) == "custom_vjp(f)"
