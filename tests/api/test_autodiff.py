"""What the derivative transforms take and return; the derivatives are tested with the ops."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tessera as ts


def loss(params: dict[str, Any], x: Any, scale: Any = 1.0) -> Any:
    return scale * ts.sum(params["w"] * x + params["b"])


@pytest.fixture
def params() -> dict[str, Any]:
    return {"w": ts.ones(3), "b": ts.asarray(2.0)}


@pytest.fixture
def x() -> np.ndarray:
    return np.arange(3, dtype=np.float32)


def test_the_gradient_has_the_structure_of_the_argument(
    params: dict[str, Any], x: np.ndarray
) -> None:
    found = ts.grad(loss)(params, x)
    assert set(found) == {"w", "b"}
    np.testing.assert_array_equal(found["w"], x)
    assert float(found["b"]) == 3.0


def test_argnums(params: dict[str, Any], x: np.ndarray) -> None:
    by_x = ts.grad(loss, argnums=1)(params, x)
    np.testing.assert_array_equal(by_x, np.ones(3))
    both = ts.grad(loss, argnums=(1, 0))(params, x)
    assert isinstance(both, tuple)
    np.testing.assert_array_equal(both[0], np.ones(3))
    np.testing.assert_array_equal(both[1]["w"], x)
    (single,) = ts.grad(loss, argnums=[-1])(params, x)
    np.testing.assert_array_equal(single, np.ones(3))


def test_keyword_arguments_are_passed_on(params: dict[str, Any], x: np.ndarray) -> None:
    np.testing.assert_array_equal(ts.grad(loss)(params, x=x, scale=2.0)["w"], 2 * x)


def test_value_and_grad(params: dict[str, Any], x: np.ndarray) -> None:
    value, grads = ts.value_and_grad(loss)(params, x)
    assert float(value) == 9.0
    np.testing.assert_array_equal(grads["w"], x)


def test_auxiliary_results(x: np.ndarray) -> None:
    def f(x: Any) -> Any:
        y = x * x
        return ts.sum(y), {"y": y, "count": 3}

    grads, aux = ts.grad(f, has_aux=True)(x)
    np.testing.assert_array_equal(grads, 2 * x)
    np.testing.assert_array_equal(aux["y"], x * x)
    assert int(aux["count"]) == 3
    (value, aux), grads = ts.value_and_grad(f, has_aux=True)(x)
    assert float(value) == 5.0
    assert set(aux) == {"y", "count"}
    value, pullback, aux = ts.vjp(f, x, has_aux=True)
    np.testing.assert_array_equal(pullback(2.0)[0], 4 * x)
    np.testing.assert_array_equal(aux["y"], x * x)


def test_python_numbers_and_control_flow() -> None:
    def f(x: Any) -> Any:
        return x**3 if x > 0 else -x

    assert float(ts.grad(f)(2.0)) == 12.0
    assert float(ts.grad(f)(-2.0)) == -1.0
    assert ts.grad(f)(2.0).dtype is ts.float32


def test_inputs_without_influence(x: np.ndarray) -> None:
    grads = ts.grad(lambda x, y: ts.sum(x), argnums=(0, 1))(x, ts.ones((2, 2)))
    np.testing.assert_array_equal(grads[1], np.zeros((2, 2)))
    np.testing.assert_array_equal(ts.grad(lambda x: 3.0)(x), np.zeros(3))


def test_vjp_of_several_results(x: np.ndarray) -> None:
    out, pullback = ts.vjp(lambda x, y: {"p": x * y, "s": x + y, "n": ts.argmax(x)}, x, 2 * x)
    np.testing.assert_array_equal(out["p"], 2 * x * x)
    zero = ts.zeros((), dtype=out["n"].dtype)
    by_x, by_y = pullback({"p": ts.ones(3), "s": ts.ones(3), "n": zero})
    np.testing.assert_array_equal(by_x, 2 * x + 1)
    np.testing.assert_array_equal(by_y, x + 1)


def test_the_pullback_can_be_used_again_and_compiled(x: np.ndarray) -> None:
    _, pullback = ts.vjp(lambda x: x * x, x)
    for ct in (np.ones(3, np.float32), x):
        np.testing.assert_array_equal(pullback(ct)[0], 2 * x * ct)
        np.testing.assert_array_equal(ts.jit(pullback)(ct)[0], 2 * x * ct)


def test_jvp_and_linearize_agree(x: np.ndarray) -> None:
    def f(a: Any, b: Any) -> Any:
        return {"y": a * b, "z": ts.sum(a)}

    t = (np.ones(3, np.float32), 2 * x)
    out, tangent = ts.jvp(f, (x, x), t)
    again, push = ts.linearize(f, x, x)
    for key in ("y", "z"):
        np.testing.assert_array_equal(out[key], again[key])
        np.testing.assert_array_equal(tangent[key], push(*t)[key])
    np.testing.assert_array_equal(tangent["y"], x + 2 * x * x)


def test_tangents_may_be_numbers() -> None:
    value, tangent = ts.jvp(lambda x: x * x, (3.0,), (1,))
    assert (float(value), float(tangent)) == (9.0, 6.0)


def test_composition(x: np.ndarray) -> None:
    hessian = ts.vmap(ts.jit(lambda v: ts.jvp(ts.grad(lambda x: ts.sum(x**3)), (x,), (v,))[1]))
    np.testing.assert_array_equal(hessian(np.eye(3, dtype=np.float32)), np.diag(6 * x))
