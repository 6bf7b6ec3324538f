"""`jacfwd`, `jacrev`, `hessian`, `linear_transpose`, `eval_shape`, `closure_convert`, and options
of `grad`, `jvp` and `linearize`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tessera as ts
from tessera.errors import GradError, PytreeError, ShapeError
from tests.tolerance import assert_close

ROUTES = 1e2
"""Derivatives by several routes differ by roundings."""

X = np.array([0.3, 0.5, 1.2])
W = np.array([[1.0, -2.0, 0.5], [0.25, 3.0, -1.0]])
STEP = 1e-5

ONCE: dict[str, Callable[[Any], Any]] = {"eager": lambda f: f, "jit": ts.jit}
JACOBIANS = {"jacfwd": ts.jacfwd, "jacrev": ts.jacrev}


def close(found: Any, expected: Any, factor: float = ROUTES) -> None:
    a, b = ts.pytree.flatten(found), ts.pytree.flatten(expected)
    assert a[1] == b[1]
    for x, y in zip(a[0], b[0], strict=True):
        assert_close(np.asarray(x), np.asarray(y), factor=factor)


def differences(f: Callable[[Any], Any], x: np.ndarray) -> np.ndarray:
    """The Jacobian of a function of one array by central differences."""
    columns: list[np.ndarray] = []
    for k in range(x.size):
        step = np.zeros(x.size)
        step[k] = STEP
        ahead, behind = (
            np.asarray(f(ts.asarray(x + s * step.reshape(x.shape)))) for s in (1, -1)
        )
        columns.append((ahead - behind) / (2 * STEP))
    return np.stack(columns, -1).reshape(*columns[0].shape, *x.shape)


def curve(x: Any) -> Any:
    return ts.stack([ts.sin(x[0]) * x[1], x[2] ** 3, ts.sum(x * x), x[0]])


@pytest.mark.parametrize("once", ONCE.values(), ids=ONCE)
@pytest.mark.parametrize("jacobian", JACOBIANS.values(), ids=JACOBIANS)
def test_jacobian(jacobian: Any, once: Any) -> None:
    found = once(jacobian(curve))(ts.asarray(X))
    assert found.shape == (4, 3)
    # Central differences are wrong by the square of the step.
    np.testing.assert_allclose(found, differences(curve, X), atol=1e-8)
    matrix = once(jacobian(lambda w: ts.tanh(w) @ ts.asarray(X)))(ts.asarray(W))
    np.testing.assert_allclose(
        matrix, differences(lambda w: ts.tanh(w) @ ts.asarray(X), W), atol=1e-8
    )


@pytest.mark.parametrize("jacobian", JACOBIANS.values(), ids=JACOBIANS)
def test_structure_of_jacobian(jacobian: Any) -> None:
    def f(params: Any, y: Any, n: Any) -> Any:
        return {"out": params["w"] @ y, "sum": (ts.sum(y) * n,)}, ts.asarray(7)

    args = ({"w": ts.asarray(W)}, ts.asarray(X), 2)
    found, aux = jacobian(f, argnums=(0, 1), has_aux=True)(*args)
    assert int(aux) == 7
    wrt_w = np.einsum("ik,j->ikj", np.eye(2), X)
    expected = {
        "out": ({"w": wrt_w}, W),
        "sum": (({"w": np.zeros((2, 3))}, np.full(3, 2.0)),),
    }
    close(found, expected)
    close(jacobian(f, argnums=-2, has_aux=True)(*args)[0], {"out": W, "sum": (np.full(3, 2.0),)})


@pytest.mark.parametrize("jacobian", JACOBIANS.values(), ids=JACOBIANS)
def test_jacobian_of_no_elements(jacobian: Any) -> None:
    assert jacobian(lambda x: x)(ts.ones((0, 2))).shape == (0, 2, 0, 2)
    assert jacobian(lambda x: ts.sum(x))(ts.ones((0, 2))).shape == (0, 2)


def test_jacobian_of_integers_in_forward_mode() -> None:
    """Results without a derivative have a zero one in forward mode, as in `jvp`."""
    found = ts.jacfwd(lambda x: ts.argmax(x))(ts.asarray(X))
    assert found.dtype == ts.int64
    assert found.tolist() == [0, 0, 0]


@pytest.mark.parametrize("once", ONCE.values(), ids=ONCE)
def test_hessian(once: Any) -> None:
    def f(x: Any) -> Any:
        return ts.sum(ts.sin(x) * x[0]) + ts.prod(x)

    found = once(ts.hessian(f))(ts.asarray(X))
    np.testing.assert_allclose(found, differences(ts.grad(f), X), atol=1e-8)
    close(found, ts.jacrev(ts.jacfwd(f))(ts.asarray(X)))
    close(ts.vmap(ts.hessian(f))(ts.asarray(np.stack([X, X])))[1], found)


def test_structure_of_hessian() -> None:
    def f(a: Any, b: Any) -> Any:
        return a * a * b, {"a": a}

    found, aux = ts.hessian(f, argnums=(0, 1), has_aux=True)(2.0, 3.0)
    assert float(aux["a"]) == 2.0
    assert ts.pytree.map_(float, found) == ((6.0, 4.0), (4.0, 0.0))


# --- complex numbers --------------------------------------------------------------------------


@pytest.mark.parametrize("once", ONCE.values(), ids=ONCE)
def test_holomorphic(once: Any) -> None:
    z = ts.asarray([1 + 2j, -0.5j], dtype=ts.complex128)
    expected = np.diag(3 * np.asarray(z) ** 2)
    for jacobian in JACOBIANS.values():
        close(once(jacobian(lambda z: z**3, holomorphic=True))(z), expected)
    close(
        once(ts.grad(lambda z: ts.sum(ts.exp(z)), holomorphic=True))(z), np.exp(np.asarray(z))
    )
    value, slope = ts.value_and_grad(lambda z: z * z, holomorphic=True)(ts.asarray(3j))
    assert (complex(value), complex(slope)) == (-9, 6j)
    close(
        ts.hessian(lambda z: z[0] ** 2 * z[1], holomorphic=True)(z),
        np.array([[-1j, 2 + 4j], [2 + 4j, 0]]),
    )


# --- linear_transpose -------------------------------------------------------------------------


@pytest.mark.parametrize("once", ONCE.values(), ids=ONCE)
def test_linear_transpose(once: Any) -> None:
    a = ts.asarray(W)

    def f(x: Any, p: Any) -> Any:
        return a @ x + 2 * p["y"], ts.cumulative_sum(x)[::-1], ts.where(ts.asarray(True), x, 0.0)

    types = ts.ShapeDtypeStruct((3,), ts.float64), {"y": ts.ShapeDtypeStruct((2,), ts.float64)}
    rng = np.random.default_rng(0)
    x, p = rng.normal(size=3), {"y": rng.normal(size=2)}
    ct = tuple(rng.normal(size=n) for n in (2, 3, 3))
    transposed = once(ts.linear_transpose(f, *types))
    found = transposed(ct)
    close(found, once(lambda ct: ts.vjp(f, x, p)[1](ct))(ct))
    # The definition: <ct, f(x)> = <transpose(ct), x>.
    left = sum(np.sum(c * np.asarray(y)) for c, y in zip(ct, f(x, p), strict=True))
    right = np.sum(np.asarray(found[0]) * x) + np.sum(np.asarray(found[1]["y"]) * p["y"])
    np.testing.assert_allclose(left, right, rtol=1e-12)
    close(ts.linear_transpose(ts.jit(f), *types)(ct), found)
    back = ts.linear_transpose(lambda ct: ts.linear_transpose(f, *types)(ct), ct)
    close(back((x, p))[0], tuple(f(x, p)))


def test_linear_in_some_arguments() -> None:
    """What is linear in each argument is not linear in both together."""
    backwards = ts.linear_transpose(lambda x: x * ts.asarray(W), ts.asarray(2.0, dtype=ts.float64))
    close(backwards(ts.asarray(W)), (np.sum(W * W),))
    with pytest.raises(GradError, match="is not linear: it takes multiply"):
        ts.linear_transpose(lambda x, y: x * y, 1.0, 1.0)
    for bent in (ts.sin, ts.abs, lambda x: x @ x, lambda x: ts.where(x > 0, x, 0.0), ts.max):
        with pytest.raises(GradError, match="is not linear"):
            ts.linear_transpose(bent, ts.asarray(X))


# --- shapes -----------------------------------------------------------------------------------


def test_eval_shape() -> None:
    def f(p: Any, n: Any, *, more: Any) -> Any:
        assert more.shape == (4, 0)
        return {"y": p["w"] @ p["x"] * n, "n": n, "k": ts.argmax(p["x"])}

    struct = ts.ShapeDtypeStruct
    found = ts.eval_shape(
        f, {"w": struct((2, 3), ts.float16), "x": np.ones(3, np.float16)}, 2.0, more=ts.ones((4, 0))
    )
    assert found == {
        "y": struct((2,), ts.float16),
        "n": struct((), ts.float32, weak_type=True),
        "k": struct([], "int64"),
    }
    # A large shape costs nothing.
    large = ts.eval_shape(lambda x: x @ x.T, struct((10**6, 10**6), ts.float32))
    assert (large.shape, large.dtype, large.ndim, large.size) == (
        (10**6, 10**6),
        ts.float32,
        2,
        10**12,
    )
    assert repr(found["n"]) == "ShapeDtypeStruct(shape=(), dtype=float32, weak_type=True)"
    assert len({found["y"], struct((2,), ts.float16), found["k"]}) == 2
    assert str(ts.make_graph(ts.sin)(struct((2,), ts.float32))).startswith("func @sin(%0: f32[2])")
    with pytest.raises(ShapeError, match="ShapeDtypeStruct: the shape"):
        struct((-1,), ts.float32)


def test_closure_convert() -> None:
    def f(k: Any, n: Any) -> Any:
        converted, values = ts.closure_convert(lambda x: {"y": ts.sin(k) * x * n}, 1.0)
        with pytest.raises(ShapeError):
            converted(ts.ones(3), *values)
        with pytest.raises(PytreeError):
            converted([1.0], *values)
        return converted(2.0, *values)["y"]

    for once in ONCE.values():
        close(once(ts.grad(f))(ts.asarray(0.5), 3), np.float32(6 * np.cos(np.float32(0.5))))
    converted, values = ts.closure_convert(lambda x: x * ts.asarray(3.0), 1.0)
    assert values == []
    assert float(converted(2.0)) == 6.0


# --- auxiliary results ------------------------------------------------------------------------


def test_auxiliary_results() -> None:
    def f(x: Any) -> Any:
        return {"y": x * x}, (x + 1, ts.argmax(x))

    x = ts.asarray(X)
    y, dy, aux = ts.jvp(f, (x,), (x,), has_aux=True)
    close((y, dy), ({"y": X * X}, {"y": 2 * X * X}))
    close(aux, (X + 1, np.int64(2)))
    y, push, aux = ts.linearize(f, x, has_aux=True)
    close((y, push(x)), ({"y": X * X}, {"y": 2 * X * X}))
    close(aux, (X + 1, np.int64(2)))


# --- pullbacks are trees ----------------------------------------------------------------------


def test_pullbacks_are_trees() -> None:
    def f(x: Any) -> Any:
        return {"y": ts.sin(x) * x}

    x, ct = ts.asarray(X), {"y": ts.asarray(X)}
    expected = (np.cos(X) * X + np.sin(X)) * X
    # Out of jit and into it again.
    y, pull = ts.jit(lambda x: ts.vjp(f, x))(x)
    close(y, {"y": np.sin(X) * X})
    close(pull(ct), (expected,))
    close(ts.jit(lambda pull, ct: pull(ct))(pull, ct), (expected,))
    _, push = ts.jit(lambda x: ts.linearize(f, x))(x)
    close(push(x), {"y": expected})
    assert all(isinstance(leaf, ts.Array) for leaf in ts.pytree.leaves((pull, push)))
    # Over a batch.
    _, pulls = ts.vmap(lambda x: ts.vjp(f, x))(x)
    close(ts.vmap(lambda pull, ct: pull(ct))(pulls, ct), (expected,))


def test_pullbacks_as_residuals() -> None:
    f = ts.custom_vjp(lambda x: ts.sin(x))
    f.defvjp(lambda x: ts.vjp(ts.sin, x), lambda pull, ct: pull(2 * ct))
    for once in ONCE.values():
        close(once(ts.vmap(ts.grad(f)))(ts.asarray(X)), 2 * np.cos(X))


def test_partial() -> None:
    double = ts.pytree.Partial(lambda k, x, *, shift: k * x + shift["s"], 2.0, shift={"s": 1.0})
    assert ts.pytree.leaves(double) == [2.0, 1.0]
    assert float(ts.jit(lambda f, x: f(x))(double, 3.0)) == 7.0
    slope = ts.grad(lambda f: f(3.0))(double)
    assert float(slope.args[0]) == 3.0
    assert float(slope.keywords["shift"]["s"]) == 1.0
