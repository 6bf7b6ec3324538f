"""The safe sums of exponentials, softmax and normalisations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from scipy import special

import tessera as ts
from tessera import nn
from tests.tolerance import assert_close, rtol

INF = np.inf
ROWS = np.array(
    [
        [1, 2, 3], [1e30, -1e30, 0], [-INF, -INF, -INF], [INF, 1, 2], [INF, INF, 0], [-INF, 0, 1],
        [INF, -INF, 0], [np.nan, 0, 1], [3e38, 3e38, 3e38], [-3e38, -3e38, 3e38],
        [1e-40, 0, -1e-40],
    ],
    np.float32,
)  # fmt: skip
E = np.exp(1.0)
THIRD = 1 / 3
SOFTMAX = np.array(
    [
        special.softmax([1, 2, 3]), [1, 0, 0], [0, 0, 0], [1, 0, 0], [0.5, 0.5, 0],
        [0, 1 / (1 + E), E / (1 + E)], [1, 0, 0], [np.nan] * 3, [THIRD] * 3, [0, 0, 1], [THIRD] * 3,
    ],
    np.float32,
)  # fmt: skip
LOG_SUM = [
    special.logsumexp([1, 2, 3]), 1e30, -INF, INF, INF, np.log(1 + E), INF, np.nan, 3e38, 3e38,
    np.log(3),
]  # fmt: skip
NUMBERS = ~np.isnan(ROWS).any(1)


def test_softmax_of_all_numbers() -> None:
    np.testing.assert_allclose(nn.softmax_safe(ROWS), SOFTMAX, rtol=1e-6)
    np.testing.assert_allclose(nn.logsumexp_safe(ROWS, axis=1), LOG_SUM, rtol=1e-6)
    found = np.asarray(nn.log_softmax_safe(ROWS))
    with np.errstate(divide="ignore"):
        # The logarithm of 0, but where the difference can be told from infinity.
        wanted = np.log(SOFTMAX)
    told = (wanted == -INF) & (found != -INF)
    np.testing.assert_allclose(found[~told], wanted[~told], rtol=1e-6)
    assert (found[told] <= -1e30).all()


def test_derivatives_are_numbers() -> None:
    weights = ts.asarray([1.0, 2.0, 4.0])
    rows = ts.asarray(ROWS[NUMBERS])
    softmax = SOFTMAX[NUMBERS].astype(np.float64)
    found = ts.grad(lambda x: ts.sum(nn.logsumexp_safe(x, axis=1)))(rows)
    np.testing.assert_allclose(found, softmax, rtol=1e-6)
    found = ts.grad(lambda x: ts.sum(nn.softmax_safe(x) * weights))(rows)
    w = np.array([1, 2, 4.0])
    wanted = softmax * (w - (softmax * w).sum(1, keepdims=True))
    np.testing.assert_allclose(found, wanted, atol=1e-6)
    _, forward = ts.jvp(nn.softmax_safe, (rows,), (ts.ones_like(rows) * weights,))
    np.testing.assert_allclose(forward, wanted, atol=1e-6)
    _, pull = ts.vjp(nn.log_softmax_safe, rows)
    found = np.asarray(pull(ts.ones_like(rows) * weights)[0])
    assert np.isfinite(found).all()
    np.testing.assert_allclose(found[0], w - 7 * softmax[0], rtol=1e-5)
    second = ts.grad(
        lambda x: ts.sum(ts.grad(lambda y: ts.sum(nn.logsumexp_safe(y, axis=1)))(x) ** 2)
    )
    assert np.isfinite(np.asarray(second(rows))).all()


def test_masks() -> None:
    mask = np.array([True, False, True])
    x = np.array([[1, 50, 3], [np.nan, np.nan, 0]], np.float32)
    found = nn.softmax_safe(x[:1], where=mask)
    np.testing.assert_allclose(found, [[1 / (1 + E**2), 0, E**2 / (1 + E**2)]], rtol=1e-6)
    nothing = np.zeros((2, 3), bool)
    np.testing.assert_array_equal(nn.softmax_safe(x, where=nothing), 0 * ROWS[:2])
    np.testing.assert_array_equal(nn.logsumexp_safe(x, 1, where=nothing), [-INF, -INF])
    np.testing.assert_array_equal(nn.log_softmax_safe(x, where=nothing), np.full((2, 3), -INF))
    # What is masked has no part in the derivative, whatever it is.
    hole = np.array([[False, False, True]])
    slope = ts.grad(lambda x: ts.sum(nn.softmax_safe(x, where=hole) ** 2))(ts.asarray(x[1:]))
    np.testing.assert_array_equal(slope, [[0, 0, 0]])


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
@pytest.mark.parametrize("axis", [0, 1, -1, (0, 2), None])
def test_axes_and_dtypes(axis: Any, dtype: str) -> None:
    x = ts.asarray(np.random.default_rng(0).normal(size=(3, 4, 5)) * 3, dtype=getattr(ts, dtype))
    wide = np.asarray(x).astype(np.float64)
    native = np.asarray(x).dtype
    for found, wanted in (
        (nn.softmax_safe(x, axis), special.softmax(wide, axis)),
        (nn.log_softmax_safe(x, axis), special.log_softmax(wide, axis)),
        (nn.logsumexp_safe(x, axis), special.logsumexp(wide, axis)),
        (nn.logsumexp_safe(x, axis, keepdims=True), special.logsumexp(wide, axis, keepdims=True)),
    ):
        assert_close(found, np.asarray(wanted).astype(native))
    sizes = tuple(range(3)) if axis is None else axis
    mean, var = wide.mean(sizes, keepdims=True), wide.var(sizes, keepdims=True)
    assert_close(
        nn.layernorm_safe(x, axis=axis),
        ((wide - mean) / np.sqrt(var + 1e-5)).astype(native),
    )
    square = (wide**2).mean(sizes, keepdims=True)
    assert_close(nn.rmsnorm_safe(x, axis=axis), (wide / np.sqrt(square + 1e-6)).astype(native))


def test_nothing_along_an_axis() -> None:
    x = ts.ones((3, 0))
    assert nn.softmax_safe(x).shape == (3, 0)
    assert nn.log_softmax_safe(x).shape == (3, 0)
    assert nn.layernorm_safe(x).shape == (3, 0)
    assert nn.rmsnorm_safe(x).shape == (3, 0)
    np.testing.assert_array_equal(nn.logsumexp_safe(x, axis=1), [-INF] * 3)
    assert nn.softmax_safe(ts.ones((0, 3))).shape == (0, 3)


FLOATS = st.floats(width=32, allow_nan=False)


@given(hnp.arrays(np.float32, hnp.array_shapes(max_dims=2, max_side=6), elements=FLOATS))
def test_softmax_is_a_distribution_or_nothing(x: np.ndarray) -> None:
    found = np.asarray(nn.softmax_safe(x)).astype(np.float64)
    total = found.sum(-1)
    nothing = (x == -INF).all(-1)
    assert (found >= 0).all()
    np.testing.assert_allclose(total, np.where(nothing, 0, 1), rtol=1e-5)
    for norm in (nn.layernorm_safe, nn.rmsnorm_safe):
        finite = np.asarray(norm(np.where(np.isfinite(x), x, 0)))
        assert np.isfinite(finite).all()
        assert (np.abs(finite) <= np.sqrt(x.shape[-1]) * 1.001).all()


# --- normalisation ----------------------------------------------------------------------------

NORMS: list[tuple[Callable[..., Any], float]] = [(nn.layernorm_safe, 1e-5), (nn.rmsnorm_safe, 1e-6)]


def reference(norm: Any, x: np.ndarray, epsilon: float) -> np.ndarray:
    x = x.astype(np.longdouble)
    if norm is nn.layernorm_safe:
        x = x - x.mean(-1, keepdims=True)
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + epsilon)


@pytest.mark.parametrize(("norm", "epsilon"), NORMS)
def test_sizes(norm: Any, epsilon: float) -> None:
    x = np.random.default_rng(1).normal(size=(9, 32)).astype(np.float32)
    for power in (-100, -20, 0, 20, 60, 100, 124):
        scaled = x * np.float32(2.0**power)
        wanted = reference(norm, scaled, epsilon)
        np.testing.assert_allclose(
            norm(scaled), wanted, rtol=2e-5, atol=1e-6 * np.abs(wanted).max()
        )
        bare = reference(norm, scaled, 0.0)
        np.testing.assert_allclose(norm(scaled, epsilon=0.0), bare, rtol=2e-5, atol=2e-6)
    # Scaled by a power of two, the result of large numbers is the same.
    np.testing.assert_allclose(norm(x * 2.0**60), norm(x * 2.0**70), rtol=1e-6)


@pytest.mark.parametrize(("norm", "epsilon"), NORMS)
def test_rows_without_a_size(norm: Any, epsilon: float) -> None:
    zeros = ts.zeros((2, 5))
    for value in (epsilon, 0.0):
        np.testing.assert_array_equal(norm(zeros, epsilon=value), zeros)
        slope = ts.grad(lambda x, e=value: ts.sum(norm(x, epsilon=e) * ts.arange(5.0)))(zeros)
        assert np.isfinite(np.asarray(slope)).all()
    if norm is nn.layernorm_safe:
        for value in (0.1, 5.1, 3e38, -1e-20):
            equal = norm(np.full((2, 7), value, np.float32), epsilon=0.0)
            np.testing.assert_array_equal(equal, np.zeros((2, 7)))
    large = np.full((1, 4), 60000, np.float16)
    wanted = 0 if norm is nn.layernorm_safe else 1
    np.testing.assert_array_equal(norm(large), np.full((1, 4), wanted, np.float16))


@pytest.mark.parametrize(("norm", "epsilon"), NORMS)
@pytest.mark.parametrize("scale", [1.0, 2.0**70])
def test_derivatives(norm: Any, epsilon: float, scale: float) -> None:
    x = ts.asarray(np.random.default_rng(2).normal(size=(3, 6))) * scale
    weights = ts.asarray(np.random.default_rng(3).normal(size=(3, 6)))
    gain = ts.asarray(np.linspace(0.5, 2, 6))

    def loss(x: Any, gain: Any) -> Any:
        return ts.sum(weights * norm(x, gain, epsilon=epsilon))

    along = ts.asarray(np.random.default_rng(4).normal(size=(3, 6))) * scale
    step = 1e-6
    quotient = (loss(x + step * along, gain) - loss(x - step * along, gain)) / (2 * step)
    reverse = ts.grad(loss, argnums=(0, 1))(x, gain)
    np.testing.assert_allclose(float(ts.sum(reverse[0] * along)), float(quotient), rtol=1e-6)
    _, forward = ts.jvp(lambda x: loss(x, gain), (x,), (along,))
    np.testing.assert_allclose(float(forward), float(quotient), rtol=1e-6)
    np.testing.assert_allclose(
        reverse[1], np.sum(np.asarray(weights * norm(x, epsilon=epsilon)), 0), rtol=1e-9
    )


def test_scale_and_bias() -> None:
    x = np.random.default_rng(5).normal(size=(4, 3)).astype(np.float32)
    scale, bias = np.float32([1, 2, 3]), np.float32([0, 10, 20])
    plain = np.asarray(nn.layernorm_safe(x))
    np.testing.assert_allclose(nn.layernorm_safe(x, scale, bias), plain * scale + bias, rtol=1e-6)
    np.testing.assert_allclose(
        nn.rmsnorm_safe(x, scale), np.asarray(nn.rmsnorm_safe(x)) * scale, rtol=1e-6
    )
    half = ts.asarray(x, dtype=ts.bfloat16)
    found = nn.layernorm_safe(half, scale, bias)
    assert found.dtype is ts.bfloat16
    close = np.asarray(found).astype(np.float64) - (plain * scale + bias)
    assert np.abs(close).max() < 25 * rtol("bf16")
