"""Activations against mpmath, at the ends of the numbers, and their derivatives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mpmath as mp
import numpy as np
import pytest

import tessera as ts
from tessera import nn
from tests.tolerance import rtol


def gate(fn: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda x: x * fn(x)


def sigmoid(x: Any) -> Any:
    return 1 / (1 + mp.exp(-x))


def softplus(x: Any) -> Any:
    return mp.log1p(mp.exp(x))


def tangent(x: Any) -> Any:
    """(1 + tanh(z)) / 2 = sigmoid(2z)."""
    return sigmoid(2 * mp.sqrt(2 / mp.pi) * (x + mp.mpf("0.044715") * x**3))


def ramp(x: Any, low: float, high: float) -> Any:
    return min(max(x, mp.mpf(low)), mp.mpf(high))


SELU = mp.mpf("1.6732632423543772848170429916717"), mp.mpf("1.0507009873554804934193349852946")

# The function, what it is, its limits at -inf and inf, and what holds the smooth ones apart.
CASES: dict[str, tuple[Callable[..., Any], Callable[[Any], Any], tuple[float, float]]] = {
    "relu": (nn.relu, lambda x: max(x, 0), (0, np.inf)),
    "relu6": (nn.relu6, lambda x: ramp(x, 0, 6), (0, 6)),
    "leaky_relu": (nn.leaky_relu, lambda x: x if x > 0 else x / 100, (-np.inf, np.inf)),
    "hard_tanh": (nn.hard_tanh, lambda x: ramp(x, -1, 1), (-1, 1)),
    "hard_sigmoid": (nn.hard_sigmoid, lambda x: (ramp(x, -3, 3) + 3) / 6, (0, 1)),
    "hard_silu": (nn.hard_silu, gate(lambda x: (ramp(x, -3, 3) + 3) / 6), (0, np.inf)),
    "sparse_sigmoid": (nn.sparse_sigmoid, lambda x: (ramp(x, -1, 1) + 1) / 2, (0, 1)),
    "sparse_plus": (
        nn.sparse_plus,
        lambda x: x if x > 1 else (ramp(x, -1, 1) + 1) ** 2 / 4,
        (0, np.inf),
    ),
    "sigmoid": (nn.sigmoid, sigmoid, (0, 1)),
    "softplus": (nn.softplus, softplus, (0, np.inf)),
    "log_sigmoid": (nn.log_sigmoid, lambda x: -softplus(-x), (-np.inf, 0)),
    "soft_sign": (nn.soft_sign, lambda x: x / (1 + abs(x)), (-1, 1)),
    "squareplus": (nn.squareplus, lambda x: (x + mp.sqrt(x * x + 4)) / 2, (0, np.inf)),
    "tanh": (nn.tanh, mp.tanh, (-1, 1)),
    "elu": (nn.elu, lambda x: x if x > 0 else mp.expm1(x), (-1, np.inf)),
    "elu_2": (lambda x: nn.elu(x, 2.0), lambda x: x if x > 0 else 2 * mp.expm1(x), (-2, np.inf)),
    "celu": (
        lambda x: nn.celu(x, 0.5),
        lambda x: x if x > 0 else mp.expm1(2 * x) / 2,
        (-0.5, np.inf),
    ),
    "selu": (
        nn.selu,
        lambda x: SELU[1] * (x if x > 0 else SELU[0] * mp.expm1(x)),
        (-float(SELU[0] * SELU[1]), np.inf),
    ),
    "silu": (nn.silu, gate(sigmoid), (0, np.inf)),
    "mish": (nn.mish, gate(lambda x: mp.tanh(softplus(x))), (0, np.inf)),
    "gelu": (nn.gelu, gate(tangent), (0, np.inf)),
    "gelu_exact": (
        lambda x: nn.gelu(x, approximate=False),
        gate(lambda x: mp.erfc(-x / mp.sqrt(2)) / 2),
        (0, np.inf),
    ),
}
# Where the pieces of functions meet.
KINKS = {0.0, 1.0, -1.0, 3.0, -3.0, 6.0}

POINTS = np.concatenate(
    [
        -np.geomspace(1e-30, 1e30, 121),
        np.geomspace(1e-30, 1e30, 121),
        np.linspace(-20, 20, 163),
        [1e-40, -1e-40, 3e38, -3e38, 0.0, -100.0, 80.0],
    ]
)


def exact(fn: Callable[[Any], Any], x: np.ndarray) -> np.ndarray:
    with mp.workprec(300):
        return np.array([float(fn(mp.mpf(float(v)))) for v in x])


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", CASES)
def test_values(name: str, dtype: Any) -> None:
    """Right relative to the result, also where that is near 0, as long as it is a normal number."""
    fn, definition, _ = CASES[name]
    x = POINTS.astype(dtype)
    found = np.asarray(fn(x))
    assert found.dtype == dtype
    wanted = exact(definition, x)
    tiny = float(np.finfo(dtype).smallest_normal)
    # An argument of an exponential or of a product of several factors carries its rounding along:
    # up to 100 units for exp(-100), in the tails of gates.
    tail = np.maximum(1, np.minimum(np.abs(x.astype(np.float64)), 40) ** 2)
    allowed = rtol(dtype) * np.where(np.abs(wanted) < 0.01, tail, 1)
    with np.errstate(over="ignore"):
        wrong = np.abs(found - wanted) > allowed * np.abs(wanted) + 4 * tiny
        wrong &= found != wanted.astype(dtype)
    assert not wrong.any(), (x[wrong][:4], found[wrong][:4], wanted[wrong][:4])


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
@pytest.mark.parametrize("name", CASES)
def test_infinity_and_nan(name: str, dtype: str) -> None:
    fn, _, limits = CASES[name]
    x = ts.asarray([-np.inf, np.inf, np.nan], dtype=getattr(ts, dtype))
    found = fn(x)
    assert found.dtype is x.dtype
    data = np.asarray(found).astype(np.float64)
    np.testing.assert_allclose(data[:2], limits, rtol=rtol(x.dtype))
    assert np.isnan(data[2])
    slopes = np.asarray(ts.vmap(ts.grad(fn))(x[:2])).astype(np.float64)
    assert np.isfinite(slopes).all()
    # A line at the end, or nothing.
    steep = {"leaky_relu": (0.01, 1), "selu": (0, float(SELU[1])), "log_sigmoid": (1, 0)}
    ends = steep.get(name, tuple(float(np.isinf(limit)) for limit in limits))
    np.testing.assert_allclose(slopes, ends, rtol=rtol(x.dtype))


@pytest.mark.parametrize("name", CASES)
def test_derivatives(name: str) -> None:
    """By differences, in both modes; and the derivatives of derivatives."""
    fn = CASES[name][0]
    x = ts.asarray([-50.0, -7.3, -2.2, -0.7, -0.04, 0.06, 0.5, 1.7, 4.4, 30.0], dtype=ts.float64)
    reverse = ts.vmap(ts.grad(fn))

    def forward(x: Any) -> Any:
        return ts.jvp(fn, (x,), (ts.ones_like(x),))[1]

    step = 1e-5
    for found, below in (
        (reverse(x), fn),
        (forward(x), fn),
        (ts.vmap(ts.grad(ts.grad(fn)))(x), reverse),
    ):
        wanted = (np.asarray(below(x + step)) - np.asarray(below(x - step))) / (2 * step)
        np.testing.assert_allclose(found, wanted, rtol=1e-6, atol=1e-8)


# The derivatives that jax.nn gives at -3, -1, 0, 1, 3 and 6, of what has pieces.
AT_KINKS: dict[str, list[float]] = {
    "relu": [0, 0, 0, 1, 1, 1],
    "relu6": [0, 0, 0, 1, 1, 0],
    "leaky_relu": [0.01, 0.01, 1, 1, 1, 1],
    "hard_tanh": [0, 1, 1, 1, 0, 0],
    "hard_sigmoid": [0, 1 / 6, 1 / 6, 1 / 6, 0, 0],
    "hard_silu": [0, 1 / 6, 1 / 2, 5 / 6, 1, 1],
    "sparse_plus": [0, 0, 1 / 2, 1, 1, 1],
    "soft_sign": [1 / 16, 1 / 4, 1, 1 / 4, 1 / 16, 1 / 49],
    "elu": [np.exp(-3), np.exp(-1), 1, 1, 1, 1],
    "selu": [*[float(SELU[0] * SELU[1]) * np.exp(x) for x in (-3, -1, 0)], *[float(SELU[1])] * 3],
}


@pytest.mark.parametrize("name", AT_KINKS)
def test_the_derivative_where_pieces_meet_is_that_of_jax(name: str) -> None:
    points = np.array(sorted(KINKS), np.float32)
    found = ts.vmap(ts.grad(CASES[name][0]))(ts.asarray(points))
    np.testing.assert_allclose(found, AT_KINKS[name], atol=2e-6)


@pytest.mark.parametrize("name", CASES)
def test_shapes_and_integers(name: str) -> None:
    fn = CASES[name][0]
    for shape in ((), (0,), (2, 0), (3, 5), (1, 1, 7)):
        assert fn(ts.ones(shape)).shape == shape
    if name != "relu":  # which keeps integers
        assert fn(ts.asarray([1, 2])).dtype is ts.float32
    x = ts.asarray(np.linspace(-4, 4, 33, dtype=np.float32))
    np.testing.assert_allclose(ts.jit(fn)(x), fn(x), rtol=2e-6, atol=1e-7)
    np.testing.assert_allclose(ts.jit(ts.vmap(fn))(x), fn(x), rtol=2e-6, atol=1e-7)


def test_names_that_are_the_same() -> None:
    assert nn.swish is nn.silu
    assert nn.hard_swish is nn.hard_silu
    assert nn.softsign is nn.soft_sign
    assert nn.relu is ts.relu
    x = ts.asarray([1.0, -2.0])
    np.testing.assert_array_equal(nn.identity(x), x)


def test_parameters_may_be_arrays() -> None:
    x = ts.asarray([-1.0, -1.0, 2.0])
    slopes = ts.asarray([0.1, 0.5, 0.5])
    np.testing.assert_allclose(nn.leaky_relu(x, slopes), [-0.1, -0.5, 2])
    np.testing.assert_allclose(ts.grad(lambda s: ts.sum(nn.leaky_relu(x, s)))(slopes), [-1, -1, 0])
    np.testing.assert_allclose(
        nn.elu(x, slopes)[:2], np.expm1(-1) * np.array([0.1, 0.5]), rtol=1e-6
    )
    np.testing.assert_allclose(nn.squareplus(x, 0.0), [0, 0, 2])


def test_log1mexp() -> None:
    x = np.geomspace(1e-30, 50, 200)
    wanted = exact(lambda v: mp.log(-mp.expm1(-v)), x)
    np.testing.assert_allclose(nn.log1mexp(x), wanted, rtol=1e-12)
    np.testing.assert_array_equal(nn.log1mexp(np.array([0.0, np.inf])), [-np.inf, 0])
    assert np.isnan(float(nn.log1mexp(-1.0)))
    slope = ts.vmap(ts.grad(nn.log1mexp))(ts.asarray(x))
    np.testing.assert_allclose(slope, exact(lambda v: 1 / mp.expm1(v), x), rtol=1e-12)


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_glu(axis: int) -> None:
    x = np.linspace(-3, 3, 24, dtype=np.float32).reshape(4, 6)
    a, b = np.split(x, 2, axis)
    np.testing.assert_allclose(nn.glu(x, axis), a / (1 + np.exp(-b)), rtol=1e-6)
