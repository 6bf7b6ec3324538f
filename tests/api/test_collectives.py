"""Collectives over a named axis, and batching rules of the user."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tessera as ts
from tests.tolerance import assert_close

ROUTES = 1e2
"""Derivatives by several routes differ by roundings."""

X = np.random.default_rng(0).normal(size=(4, 3))
STEP = 1e-5

ONCE: dict[str, Callable[[Any], Any]] = {"eager": lambda f: f, "jit": ts.jit}

# Functions of an example, and what they give for the batch, in NumPy.
CASES: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {
    "psum": (lambda x: x / ts.psum(ts.exp(x), "i"), lambda x: x / np.exp(x).sum(0)),
    "pmean": (lambda x: ts.pmean({"a": x * x}, "i")["a"] * x, lambda x: (x * x).mean(0) * x),
    "pmax": (lambda x: x * ts.pmax(x, "i"), lambda x: x * x.max(0)),
    "pmin": (lambda x: x - ts.pmin(x, axis_name="i"), lambda x: x - x.min(0)),
    "all_gather": (
        lambda x: ts.all_gather(ts.sin(x), "i", axis=1) @ ts.broadcast_to(x[0], (4,)),
        lambda x: np.einsum("ki,k->ki", np.sin(x).sum(0)[None].repeat(4, 0), x[:, 0]),
    ),
    "tiled": (
        lambda x: ts.all_gather(x, "i", axis=-1, tiled=True)[:3] * x,
        lambda x: x[0] * x,
    ),
    "ppermute": (
        lambda x: ts.ppermute(x, "i", [(0, 1), (1, 2), (3, 0)]) * x,
        lambda x: np.stack([x[3], x[0], x[1], 0 * x[0]]) * x,
    ),
    "axis_index": (
        lambda x: x * ts.astype(ts.axis_index("i"), x.dtype),
        lambda x: x * np.arange(4)[:, None],
    ),
    "sizes": (
        lambda x: ts.psum(1, "i") * x + ts.psum(ts.ones(3, dtype=x.dtype), "i"),
        lambda x: 4 * x + 4,
    ),
    "shared": (
        lambda x: x + ts.pmax(ts.ones(3, dtype=x.dtype), "i") + ts.all_gather(2.0, "i")[1],
        lambda x: x + 3,
    ),
}


@pytest.mark.parametrize("once", ONCE.values(), ids=ONCE)
@pytest.mark.parametrize("name", CASES)
def test_values(name: str, once: Any) -> None:
    f, expected = CASES[name]
    x = ts.asarray(X)
    for g in (f, ts.jit(f), ts.checkpoint(f)):
        assert_close(once(ts.vmap(g, axis_name="i"))(x), expected(X), factor=ROUTES)
    columns = once(ts.vmap(f, in_axes=1, out_axes=1, axis_name="i"))(x.T)
    assert_close(columns, expected(X).T, factor=ROUTES)


@pytest.mark.parametrize("once", ONCE.values(), ids=ONCE)
@pytest.mark.parametrize("name", CASES)
def test_gradients(name: str, once: Any) -> None:
    """The gradient of the sum over all examples, taken inside and outside, by differences."""
    f, _ = CASES[name]
    weights = ts.asarray(np.random.default_rng(1).normal(size=X.shape))

    def total(x: Any) -> Any:
        return ts.sum(ts.vmap(f, axis_name="i")(x) * weights)

    found = np.asarray(once(ts.grad(total))(ts.asarray(X)))
    direction = np.random.default_rng(2).normal(size=X.shape)
    ahead, behind = (float(total(ts.asarray(X + s * STEP * direction))) for s in (1, -1))
    # Central differences are wrong by the square of the step.
    np.testing.assert_allclose((found * direction).sum(), (ahead - behind) / (2 * STEP), atol=1e-8)
    along = once(lambda x, t: ts.jvp(total, (x,), (t,))[1])(ts.asarray(X), direction)
    np.testing.assert_allclose(along, (found * direction).sum(), rtol=1e-9)
    if name in ("pmax", "pmin"):
        return
    inside = once(ts.vmap(ts.grad(lambda x, w: ts.sum(f(x) * w)), axis_name="i"))
    assert_close(inside(ts.asarray(X), weights), found, factor=ROUTES)


def test_several_axes() -> None:
    def f(x: Any) -> Any:
        gathered = ts.all_gather(ts.all_gather(x, "j"), "i")
        sums = x + 10 * ts.psum(x, "i") + 100 * ts.psum(x, "j")
        return sums, ts.pmean(x, ("i", "j")), gathered, ts.axis_index(("i", "j"))

    for once in ONCE.values():
        mapped = once(ts.vmap(ts.vmap(f, axis_name="j"), axis_name="i"))
        sums, mean, gathered, index = mapped(ts.asarray(X))
        assert_close(sums, X + 10 * X.sum(0) + 100 * X.sum(1)[:, None], factor=ROUTES)
        assert_close(mean, np.full((4, 3), X.mean()), factor=ROUTES)
        assert gathered.shape == (4, 3, 4, 3)
        assert_close(gathered[2, 1], X)
        assert index.tolist() == np.arange(12).reshape(4, 3).tolist()
    # An axis of the same name inside hides the outer one.
    hidden = ts.vmap(ts.vmap(lambda x: ts.psum(x, "i"), axis_name="i"), axis_name="i")
    assert_close(hidden(ts.asarray(X)), np.repeat(X.sum(1)[:, None], 3, 1), factor=ROUTES)


def test_in_control_flow() -> None:
    def f(x: Any) -> Any:
        y = ts.cond(x[0] > 0, lambda x: ts.psum(x, "i"), lambda x: x, x)
        z = ts.fori_loop(0, 3, lambda k, x: ts.ppermute(x, "i", ROTATE) + 1, x)
        return y, z, ts.cond(True, lambda: ts.axis_index("i"), lambda: ts.asarray(7))

    for once in ONCE.values():
        y, z, index = once(ts.vmap(f, axis_name="i"))(ts.asarray(X))
        assert_close(y, np.where(X[:, :1] > 0, X.sum(0), X), factor=ROUTES)
        assert_close(z, np.roll(X, 3, 0) + 3, factor=ROUTES)
        assert index.tolist() == [0, 1, 2, 3]


ROTATE = [(k, (k + 1) % 4) for k in range(4)]


def test_axis_size() -> None:
    f = ts.vmap(lambda: ts.axis_index("i"), in_axes=None, axis_name="i", axis_size=3)
    assert f().tolist() == [0, 1, 2]
    assert ts.jit(f)().tolist() == [0, 1, 2]
    assert ts.vmap(lambda x: x, axis_size=2)(ts.ones(2)).tolist() == [1.0, 1.0]


# --- custom_vmap ------------------------------------------------------------------------------


@ts.custom_batching.custom_vmap
def scaled(x: Any, p: Any) -> Any:
    return {"y": x * p["k"], "z": ts.sum(x)}


CALLS: list[Any] = []


@scaled.def_vmap
def _(size: Any, batched: Any, x: Any, p: Any) -> Any:
    CALLS.append((size, batched))
    x_batched, p_batched = batched[0], batched[1]["k"]
    k = ts.reshape(p["k"], (-1,) + (1,) * (x.ndim - x_batched)) if p_batched else p["k"]
    out = {"y": x * k, "z": 100 + (ts.sum(x, axis=1) if x_batched else ts.sum(x))}
    return out, {"y": x_batched or p_batched, "z": x_batched}


@pytest.mark.parametrize("once", ONCE.values(), ids=ONCE)
def test_custom_vmap(once: Any) -> None:
    CALLS.clear()
    x, p = ts.asarray(X), {"k": ts.asarray(2.0, dtype=ts.float64)}
    assert_close(once(scaled)(x[0], p)["z"], X[0].sum(), factor=ROUTES)
    assert not CALLS
    found = once(ts.vmap(scaled, (0, None)))(x, p)
    assert CALLS == [(4, [True, {"k": False}])]
    assert_close(found["y"], 2 * X)
    assert_close(found["z"], 100 + X.sum(1), factor=ROUTES)
    # Under grad of the mapped function, what the rule computes is differentiated.
    slope = once(ts.grad(lambda x: ts.sum(ts.vmap(scaled, (0, None))(x, p)["y"])))(x)
    assert_close(slope, np.full(X.shape, 2.0))
    # The derivative of an example is that of the function.
    one = once(ts.vmap(ts.grad(lambda x: scaled(x, p)["z"])))(x)
    assert_close(one, np.ones(X.shape))
    twice = once(ts.vmap(ts.vmap(scaled, (None, {"k": 0})), (0, None)))
    grid = twice(x, {"k": ts.asarray([1.0, 3.0], dtype=ts.float64)})
    assert grid["y"].shape == (4, 2, 3)
    assert_close(grid["y"][:, 1], 3 * X)


def test_one_flag_for_the_whole_result() -> None:
    @ts.custom_batching.custom_vmap
    def f(x: Any) -> Any:
        return x, (x, 1)

    f.def_vmap(lambda size, batched, x: ((x, (x, 1)), (True, (True, False))))
    assert ts.vmap(f)(ts.ones(2))[1][1].tolist() == [1, 1]
    f.def_vmap(lambda size, batched, x: ((x, (x, ts.ones(2, dtype=ts.int64))), True))
    assert ts.vmap(f)(ts.ones(2))[1][1].tolist() == [1, 1]


def test_sequential_vmap() -> None:
    def f(p: Any, x: Any) -> Any:
        return {"y": ts.sin(x) * p["k"]}

    g = ts.custom_batching.sequential_vmap(f)
    p, x = {"k": ts.asarray(2.0, dtype=ts.float64)}, ts.asarray(X)
    for once in ONCE.values():
        assert_close(once(ts.vmap(g, (None, 0)))(p, x)["y"], 2 * np.sin(X), factor=ROUTES)
        slope = once(ts.grad(lambda p: ts.sum(ts.vmap(g, (None, 0))(p, x)["y"])))(p)
        assert_close(slope["k"], np.sin(X).sum(), factor=ROUTES)
    mapped = str(ts.make_graph(ts.vmap(g, (None, 0)))(p, x))
    assert "graph.scan" in mapped
    assert "f64[4, 3] = graph.sin" not in mapped


@pytest.mark.parametrize(
    ("collective", "shape"),
    [
        (lambda x: ts.psum(x, "i"), (3, 5)),
        (lambda x: ts.pmean(x, "i"), (3, 5)),
        (lambda x: ts.pmax(x, "i"), (3, 5)),
        (lambda x: ts.pmin(x, "i"), (3, 5)),
        (lambda x: ts.ppermute(x, "i", [(0, 1), (1, 0)]), (3, 5)),
        (lambda x: ts.all_gather(x, "i"), (4, 3, 5)),
        (lambda x: ts.all_gather(x, "i", axis=-1), (3, 5, 4)),
        (lambda x: ts.all_gather(x, "i", axis=1, tiled=True), (3, 20)),
        (lambda x: ts.axis_index("i"), ()),
    ],
)
@pytest.mark.parametrize("once", ONCE.values(), ids=ONCE)
def test_shape_of_collectives(collective: Any, shape: tuple[int, ...], once: Any) -> None:
    """What one example has; the same under `jit` and for shapes alone."""
    seen: list[tuple[int, ...]] = []

    def f(x: Any) -> Any:
        y = collective(x)
        seen.append(tuple(y.shape))
        return y

    x = ts.ones((4, 3, 5))
    assert once(ts.vmap(f, axis_name="i"))(x).shape == (4, *shape)
    assert ts.eval_shape(ts.vmap(f, axis_name="i"), x).shape == (4, *shape)
    assert set(seen) == {shape}
    empty = ts.vmap(collective, axis_name="i")(ts.ones((4, 0, 5)))
    assert empty.size == 0 or not shape
