"""Softmax and its kin, beside SciPy and what they are by definition."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy import special

import tessera as ts
from tessera import nn

X = np.random.default_rng(0).normal(size=(3, 4, 5)).astype(np.float32) * 4
B = np.random.default_rng(1).normal(size=(4, 5)).astype(np.float32)
MASK = np.random.default_rng(2).random((3, 4, 5)) > 0.3
MASK[:, :, 0] = True


@pytest.mark.parametrize("axis", [0, -1, (0, 2)])
@pytest.mark.parametrize("where", [None, MASK])
def test_softmax(axis: Any, where: Any) -> None:
    kept = X.astype(np.float64) if where is None else np.where(where, X, -np.inf)
    with np.errstate(divide="ignore", invalid="ignore"):  # where nothing is left
        wanted = np.nan_to_num(special.softmax(kept, axis))
    np.testing.assert_allclose(nn.softmax(X, axis, where), wanted, rtol=2e-6, atol=1e-7)
    with np.errstate(divide="ignore"):
        wanted = np.log(wanted)
    np.testing.assert_allclose(nn.log_softmax(X, axis, where), wanted, rtol=1e-5, atol=1e-6)
    row = X[0]
    np.testing.assert_allclose(nn.softmax(row), special.softmax(row, -1), rtol=1e-5)


def test_nothing_is_left() -> None:
    where = np.zeros(5, bool)
    for fn in (nn.softmax, nn.softmax_safe):
        assert not np.asarray(fn(X, where=where)).any()
    assert (np.asarray(nn.log_softmax(X, where=where)) == -np.inf).all()


def log_sum(x: Any, axis: Any, weights: Any, keepdims: bool, where: Any) -> tuple[Any, Any]:
    """The logarithm of a weighted sum of exponentials in f64, without care for large numbers."""
    terms = np.exp(x.astype(np.float64)) * (1 if weights is None else weights)
    total = np.sum(terms, axis, keepdims=keepdims, where=True if where is None else where)
    with np.errstate(divide="ignore"):
        return np.log(np.abs(total)), np.sign(total)


@pytest.mark.parametrize("axis", [None, 0, -1, (1, 2)])
@pytest.mark.parametrize("weights", [None, B, 2.0])
@pytest.mark.parametrize("where", [None, MASK])
@pytest.mark.parametrize("keepdims", [False, True])
def test_logsumexp(axis: Any, weights: Any, where: Any, keepdims: bool) -> None:
    found, sign = nn.logsumexp(X, axis, weights, keepdims, True, where)
    wanted, theirs = log_sum(X, axis, weights, keepdims, where)
    np.testing.assert_allclose(found, wanted, rtol=2e-5, atol=2e-6)
    np.testing.assert_array_equal(sign, theirs)
    positive = None if weights is None else np.abs(weights)
    np.testing.assert_allclose(
        nn.logsumexp(X, axis, positive, keepdims, where=where),
        log_sum(X, axis, positive, keepdims, where)[0],
        rtol=2e-6,
        atol=2e-6,
    )


def test_weights_of_logsumexp() -> None:
    large = np.array([1000.0, 1001.0, 5.0], np.float32)
    found = float(nn.logsumexp(large, b=np.float32([1, 0, 1])))
    np.testing.assert_allclose(found, 1000, rtol=1e-6)
    assert np.isnan(float(nn.logsumexp(large, b=-1.0)))
    value, sign = nn.logsumexp(large, b=np.float32([-1, 1, 0]), return_sign=True)
    np.testing.assert_allclose(float(value), 1000 + np.log(np.e - 1), rtol=1e-6)
    assert float(sign) == 1
    assert float(nn.logsumexp(large, b=0.0)) == -np.inf

    def loss(a: Any, b: Any) -> Any:
        return ts.sum(nn.logsumexp(a, axis=-1, b=b))

    found = ts.grad(loss, argnums=(0, 1))(ts.asarray(X[0]), ts.asarray(np.abs(B)))
    terms = np.exp(X[0].astype(np.float64))
    total = (terms * np.abs(B)).sum(-1, keepdims=True)
    np.testing.assert_allclose(found[0], terms * np.abs(B) / total, rtol=1e-5, atol=1e-7)
    np.testing.assert_allclose(found[1], terms / total, rtol=1e-5, atol=1e-7)


def test_standardize() -> None:
    several: list[dict[str, Any]] = [{}, {"axis": 0}, {"axis": (1, 2), "epsilon": 0.1}]
    for keywords in several:
        axis: Any = keywords.get("axis", -1)
        mean, variance = X.mean(axis, keepdims=True), X.var(axis, keepdims=True)
        wanted = (X - mean) / np.sqrt(variance + keywords.get("epsilon", 1e-5))
        np.testing.assert_allclose(nn.standardize(X, **keywords), wanted, rtol=2e-5, atol=2e-6)
    apart = (X - 0.5) / np.sqrt(X.var(-1, keepdims=True) + 1e-5)
    np.testing.assert_allclose(nn.standardize(X, mean=0.5), apart, rtol=2e-5, atol=2e-6)
    scale = np.abs(B)
    np.testing.assert_allclose(
        nn.standardize(X, mean=B, variance=scale, epsilon=0.1), (X - B) / np.sqrt(scale + 0.1),
        rtol=1e-5, atol=1e-6,
    )  # fmt: skip
