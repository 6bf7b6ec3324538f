"""`checkpoint` and its policies."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tessera as ts
from tessera.ir.core import Func
from tests.tolerance import assert_close

POLICIES = ts.checkpoint_policies
ROUTES = 1e3
"""What is computed again may be fused otherwise, over four layers."""

RNG = np.random.default_rng(0)
W = (RNG.normal(size=(32, 32)) / 6).astype(np.float32)
X = RNG.normal(size=(128, 32)).astype(np.float32)
ARRAY_BYTES = X.nbytes
LAYERS = 4


def layer(w: Any, x: Any) -> Any:
    y = ts.checkpoint_name(ts.tanh(x @ w), "tanh")
    return ts.checkpoint_name(ts.exp(-y * y), "bell") @ w


def loss(f: Callable[..., Any]) -> Callable[..., Any]:
    def run(w: Any, x: Any) -> Any:
        for _ in range(LAYERS):
            x = f(w, x)
        return ts.sum(x * x)

    return run


def count(graph: Func, name: str) -> int:
    return sum([op.name == f"graph.{name}" for op in graph.ops])


# For each policy: how many products and functions of each layer run again.
AGAIN: dict[str, tuple[Any, int, int, int]] = {
    "nothing": (None, 1, 1, 1),
    "everything": (POLICIES.everything_saveable, 0, 0, 0),
    "dots": (POLICIES.dots_saveable, 0, 1, 1),
    "dots_without_batch": (POLICIES.checkpoint_dots_with_no_batch_dims, 0, 1, 1),
    "names": (POLICIES.save_only_these_names("tanh"), 1, 1, 1),
    "other_names": (POLICIES.save_any_names_but_these("bell"), 1, 1, 1),
    "unless_names": (POLICIES.save_anything_except_these_names("none"), 0, 0, 0),
    "both": (
        POLICIES.save_from_both_policies(POLICIES.dots_saveable, lambda op: "tanh" in op.name),
        0,
        0,
        1,
    ),
    "function": (lambda op: op.name == "graph.exp", 1, 1, 0),
    "budget_of_one": (POLICIES.memory_budget(ARRAY_BYTES), 0, 0, 1),
    "budget_of_none": (POLICIES.memory_budget(ARRAY_BYTES - 1), 1, 1, 1),
    "budget_of_all": (POLICIES.memory_budget(10 * ARRAY_BYTES), 0, 0, 0),
}


PLAIN = ts.jit(ts.grad(loss(layer)))


@pytest.mark.parametrize("name", AGAIN)
def test_policies(name: str) -> None:
    policy, dots, tanhs, exps = AGAIN[name]
    saving = ts.jit(ts.grad(loss(ts.checkpoint(layer, policy=policy))))
    assert_close(saving(W, X), PLAIN(W, X), factor=ROUTES)
    before, after = PLAIN.lower(W, X).graph, saving.lower(W, X).graph
    assert count(after, "dot_general") - count(before, "dot_general") == LAYERS * dots
    assert count(after, "tanh") - count(before, "tanh") == LAYERS * tanhs
    assert count(after, "exp") - count(before, "exp") == LAYERS * exps


def test_memory() -> None:
    """Between the passes, one array a layer is kept, not three."""
    plain = ts.jit(ts.grad(loss(layer))).lower(W, X).arena
    saving = ts.jit(ts.grad(loss(ts.checkpoint(layer)))).lower(W, X).arena
    some = ts.jit(ts.grad(loss(ts.checkpoint(layer, policy=POLICIES.dots_saveable)))).lower(W, X)
    assert plain >= 3 * LAYERS * ARRAY_BYTES
    assert saving <= (LAYERS + 5) * ARRAY_BYTES
    assert saving < some.arena < plain
    merged = ts.jit(ts.grad(loss(ts.checkpoint(layer, prevent_cse=False)))).lower(W, X)
    assert merged.arena == plain
    assert count(merged.graph, "exp") == LAYERS


def test_values_of_each_transform() -> None:
    def f(p: Any, x: Any) -> Any:
        return {"y": ts.sin(ts.cos(x) * p["a"]), "k": ts.argmax(x)}

    kept = ts.checkpoint(f)
    p, x = {"a": ts.asarray(0.7, dtype=ts.float64)}, ts.asarray([0.1, 0.5, 1.0], dtype=ts.float64)

    def routes(f: Any) -> list[Any]:
        def total(p: Any, x: Any) -> Any:
            return ts.sum(f(p, x)["y"])

        along = ts.jvp(lambda p, x: f(p, x)["y"], (p, x), (p, x))[1]
        push = ts.linearize(lambda p, x: f(p, x)["y"], p, x)[1](p, x)
        return ts.pytree.leaves(
            [
                f(p, x),
                ts.grad(total, (0, 1))(p, x),
                along,
                push,
                ts.hessian(total)(p, x),
                ts.vmap(ts.grad(lambda x, p: f(p, x)["y"]), (0, None))(x, p),
                ts.grad(lambda p: ts.sum(ts.vmap(f, (None, 0))(p, x)["y"]))(p),
                ts.jacrev(lambda x: ts.grad(total)(p, x))(x),
            ]
        )

    for once in (lambda f: f, lambda f: ts.jit(f)):
        expected = routes(f)
        for found, value in zip(routes(once(kept)), expected, strict=True):
            assert_close(found, value, factor=ROUTES)
        for found, value in zip(routes(ts.checkpoint(once(f))), expected, strict=True):
            assert_close(found, value, factor=ROUTES)


def test_higher_derivatives_keep_little_too() -> None:
    def f(x: Any) -> Any:
        return ts.sin(ts.exp(ts.cos(x)))

    graph = ts.make_graph(ts.grad(ts.grad(ts.checkpoint(f))))(1.0)
    calls = [op for op in graph.ops if op.regions]
    assert {op.name for op in calls} == {"graph.checkpoint"}
    # What is handed from one pass to another are arguments and cotangents, no results between.
    assert max([len(op.operands) for op in calls]) <= 4
    assert_close(ts.grad(ts.grad(ts.checkpoint(f)))(1.0), ts.grad(ts.grad(f))(1.0), factor=ROUTES)


def test_nesting_and_closures() -> None:
    w = ts.asarray(W)

    def run(wrap: Any) -> Any:
        def f(scale: Any) -> Any:
            inner = wrap(lambda x: ts.tanh(x @ w) * scale)
            return ts.sum(wrap(lambda x: inner(inner(x)) * scale)(ts.asarray(X)))

        return f

    for once in (lambda f: f, ts.jit):
        found = once(ts.grad(run(ts.checkpoint)))(0.5)
        assert_close(found, ts.grad(run(lambda f: f))(0.5), factor=ROUTES)


def test_arguments() -> None:
    @ts.checkpoint(static_argnums=(1, -1), policy=POLICIES.everything_saveable)
    def power(x: Any, n: int, flag: str, *, scale: Any) -> Any:
        """Documentation."""
        assert flag == "flag"
        return x**n * scale["s"]

    assert power.__doc__ == "Documentation."
    slope = ts.grad(lambda x: power(x, 3, "flag", scale={"s": 2.0}))
    assert float(slope(2.0)) == float(ts.jit(slope)(2.0)) == 24.0
    @ts.checkpoint(static_argnames=("mode", "n"))
    def named(x: Any, n: int, *, mode: str) -> Any:
        return ts.sin(x) ** n if mode == "sin" else x

    for call in (lambda x: named(x, 2, mode="sin"), lambda x: named(x, n=2, mode="sin")):
        assert float(ts.grad(call)(0.5)) == pytest.approx(np.sin(1.0), rel=1e-6)
    marker = object()
    assert ts.remat(lambda x: x)(marker) is marker


def test_layers_of_a_scan() -> None:
    """The loop keeps what goes into each step, and nothing of what is in it."""
    ws = np.stack([W] * 6)

    def total(step: Any) -> Any:
        return ts.jit(ts.grad(lambda ws: ts.sum(ts.scan(step, ts.asarray(X), ws)[0] ** 2)))

    def step(x: Any, w: Any) -> Any:
        return layer(w, x), None

    plain, saving = total(step), total(ts.checkpoint(step))
    assert_close(saving(ws), plain(ws), factor=ROUTES)
    assert saving.lower(ws).arena <= plain.lower(ws).arena - 2 * 6 * ARRAY_BYTES


def test_effects_happen_once() -> None:
    """What is computed again prints nothing again."""
    calls: list[float] = []

    def f(x: Any) -> Any:
        ts.debug.callback(lambda x: calls.append(float(x)), ts.cos(x))
        return ts.sin(ts.cos(x))

    for policy in (None, POLICIES.dots_saveable, POLICIES.memory_budget(0)):
        for once in (lambda f: f, ts.jit):
            calls.clear()
            once(ts.grad(ts.checkpoint(f, policy=policy)))(0.0)
            assert calls == [1.0]


def test_on_a_gpu() -> None:
    program = ts.jit(ts.grad(loss(ts.checkpoint(layer)))).lower(W, X, machine="sm_90a")
    plain = ts.jit(ts.grad(loss(layer))).lower(W, X, machine="sm_90a")
    assert program.arena < plain.arena


def test_barriers_have_no_buffers() -> None:
    """A result of a program may stand behind a barrier, also an argument."""
    from tessera.graph.ops.checkpoint import Barrier
    from tessera.graph.trace import as_tuple, bind

    @ts.jit
    def f(x: Any) -> Any:
        y, z = as_tuple(bind(Barrier, (x, x + 1)))
        (w,) = as_tuple(bind(Barrier, (z,)))
        return y, z, w, w * 2

    x = np.arange(3.0)
    for found, expected in zip(f(x), (x, x + 1, x + 1, 2 * x + 2), strict=True):
        assert_close(found, expected)
