"""Dense layers, convolutions and dropout."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tessera as ts
from tessera import nn
from tests.graph.convolving import convolved
from tests.random.statistics import SIZE

KEY = ts.random.key(5)


def sample(*shape: int) -> np.ndarray:
    return np.random.default_rng(len(shape)).normal(size=shape).astype(np.float32)


@pytest.mark.parametrize("lead", [(), (4,), (2, 0), (2, 3, 4)])
def test_dense(lead: tuple[int, ...]) -> None:
    x, w, b = sample(*lead, 5), sample(5, 3), sample(3)
    np.testing.assert_allclose(nn.dense(x, w, b), x @ w + b, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(nn.dense(x, w), x @ w, rtol=1e-5, atol=1e-5)


CONVOLUTIONS: list[tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = [
    ((2, 9, 3), (3, 3, 4), {}),
    ((2, 8, 7, 3), (3, 2, 3, 4), {"strides": 2}),
    ((2, 8, 7, 3), (3, 2, 3, 4), {"strides": (1, 2), "padding": "VALID"}),
    ((2, 8, 7, 4), (3, 3, 2, 6), {"feature_group_count": 2, "kernel_dilation": 2}),
    ((1, 4, 4, 2), (2, 2, 2, 3), {"input_dilation": 2, "padding": [(1, 0), (0, 1)]}),
    ((1, 4, 5, 3, 2), (2, 2, 2, 2, 3), {}),
    ((5, 2), (2, 3), {}),
]


@pytest.mark.parametrize(("x_shape", "w_shape", "options"), CONVOLUTIONS)
def test_conv(x_shape: tuple[int, ...], w_shape: tuple[int, ...], options: dict[str, Any]) -> None:
    x, w, b = sample(*x_shape), sample(*w_shape), sample(w_shape[-1])
    count = len(w_shape) - 2

    def each(name: str) -> tuple[int, ...]:
        value = options.get(name, 1)
        return (value,) * count if isinstance(value, int) else value

    padding = options.get("padding", "SAME")
    found = convolved(
        np.moveaxis(x, -1, 1), np.moveaxis(w, (-1, -2), (0, 1)), each("strides"),
        [(0, 0)] * count if padding == "VALID" else padding, each("input_dilation"),
        each("kernel_dilation"), options.get("feature_group_count", 1),
    )  # fmt: skip
    wanted = np.moveaxis(found, 1, -1)
    np.testing.assert_allclose(nn.conv(x, w, b, **options), wanted + b, rtol=1e-4, atol=1e-4)
    # One example, and several dims of examples.
    np.testing.assert_allclose(nn.conv(x[0], w, **options), wanted[0], rtol=1e-4, atol=1e-4)
    two = np.stack([x, 2 * x])
    found = nn.conv(two, w, **options)
    np.testing.assert_allclose(found, np.stack([wanted, 2 * wanted]), rtol=1e-4, atol=1e-4)


def test_dropout() -> None:
    x = sample(SIZE) + 10
    for rate in (0.1, 0.5, 0.9):
        found = np.asarray(nn.dropout(KEY, x, rate))
        kept = found != 0
        np.testing.assert_allclose(found[kept], x[kept] / (1 - rate), rtol=1e-6)
        # Four standard deviations.
        assert abs(kept.mean() - (1 - rate)) < 4 * np.sqrt(rate * (1 - rate) / SIZE)


def test_dropout_of_nothing_and_of_all() -> None:
    x = ts.asarray([1.0, np.inf, np.nan])
    np.testing.assert_array_equal(nn.dropout(KEY, x, 0.0), x)
    np.testing.assert_array_equal(nn.dropout(None, x, 0.3, deterministic=True), x)
    np.testing.assert_array_equal(nn.dropout(KEY, x, 1.0), [0, 0, 0])
    dropped = np.asarray(nn.dropout(KEY, ts.full((100,), np.nan), 0.5))
    assert set(dropped[~np.isnan(dropped)]) == {0}
    assert 20 < np.isnan(dropped).sum() < 80


def test_dropout_drops_the_same_backwards() -> None:
    x = ts.asarray(sample(4, 100))
    mask = np.asarray(nn.dropout(KEY, ts.ones((4, 100)), 0.25))
    found = ts.jit(ts.grad(lambda x: ts.sum(nn.dropout(KEY, x, 0.25) * x)))(x)
    np.testing.assert_allclose(found, 2 * mask * np.asarray(x), rtol=1e-6)


def test_dropout_of_whole_rows_and_of_traced_rates() -> None:
    found = np.asarray(nn.dropout(KEY, ts.ones((200, 3, 2)), 0.5, broadcast_dims=(1, -1)))
    assert (found == found[:, :1, :1]).all()
    assert 60 < (found[:, 0, 0] == 0).sum() < 140
    late = ts.jit(lambda rate: nn.dropout(KEY, ts.ones(1000), rate))
    np.testing.assert_allclose(late(0.25), nn.dropout(KEY, ts.ones(1000), 0.25), rtol=1e-6)
    half = nn.dropout(KEY, ts.ones(8, dtype=ts.bfloat16), 0.25)
    assert half.dtype is ts.bfloat16


def test_one_hot() -> None:
    np.testing.assert_array_equal(nn.one_hot(ts.asarray([2, 0]), 3), [[0, 0, 1], [1, 0, 0]])
    found = nn.one_hot(ts.asarray([2, 0]), num_classes=3, axis=0, dtype=ts.int8)
    np.testing.assert_array_equal(found, [[0, 1], [0, 0], [1, 0]])
    assert found.dtype is ts.int8
