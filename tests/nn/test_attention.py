"""Scaled dot-product attention."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tessera as ts
from tessera import nn


def sample(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).normal(size=shape)


def expected(q: Any, k: Any, v: Any, mask: Any = None, scale: float | None = None) -> np.ndarray:
    """The definition, with the heads of the keys repeated."""
    if q.ndim > 2 and q.shape[-3] != k.shape[-3]:
        k, v = (np.repeat(x, q.shape[-3] // k.shape[-3], axis=-3) for x in (k, v))
    scores = q @ np.swapaxes(k, -1, -2) * (q.shape[-1] ** -0.5 if scale is None else scale)
    if mask is not None:
        scores = np.where(mask, scores, -np.inf) if mask.dtype == bool else scores + mask
    top = np.max(scores, axis=-1, keepdims=True)
    weights = np.exp(scores - np.where(np.isfinite(top), top, 0))
    total = np.sum(weights, axis=-1, keepdims=True)
    return weights / np.where(total == 0, 1, total) @ v


def below(rows: int, columns: int) -> np.ndarray:
    return np.arange(rows)[:, None] >= np.arange(columns)


SHAPES = [
    ((5, 3), (7, 3), (7, 2)),
    ((4, 5, 3), (4, 5, 3), (4, 5, 3)),
    ((2, 4, 5, 3), (2, 2, 6, 3), (2, 2, 6, 4)),
    ((2, 6, 5, 3), (2, 1, 5, 3), (2, 1, 5, 3)),
    ((2, 3, 2, 5, 3), (2, 3, 2, 5, 3), (2, 3, 2, 5, 3)),
]


@pytest.mark.parametrize("jit", [False, True])
@pytest.mark.parametrize("shapes", SHAPES)
def test_forward(shapes: Any, jit: bool) -> None:
    q, k, v = (sample(*s) for s in shapes)
    run: Any = ts.jit(nn.attention) if jit else nn.attention
    np.testing.assert_allclose(run(q, k, v), expected(q, k, v), rtol=1e-9)
    found = nn.attention(q, k, v, causal=True, scale=0.3)
    mask = below(q.shape[-2], k.shape[-2])
    np.testing.assert_allclose(found, expected(q, k, v, mask, 0.3), rtol=1e-9)


@pytest.mark.parametrize("shapes", SHAPES[1:4])
def test_masks(shapes: Any) -> None:
    q, k, v = (sample(*s) for s in shapes)
    heads, rows, columns = q.shape[-3], q.shape[-2], k.shape[-2]
    causal = below(rows, columns)
    for shape in ((columns,), (rows, columns), (1, rows, columns), (heads, 1, columns)):
        added = sample(*shape)
        found = nn.attention(q, k, v, mask=added)
        np.testing.assert_allclose(found, expected(q, k, v, added), rtol=1e-9)
        seen = added > 0
        found = nn.attention(q, k, v, mask=seen)
        np.testing.assert_allclose(found, expected(q, k, v, seen), rtol=1e-9)
        found = nn.attention(q, k, v, mask=seen, causal=True)
        np.testing.assert_allclose(found, expected(q, k, v, seen & causal), rtol=1e-9)


def test_queries_that_see_nothing() -> None:
    q, k, v = (sample(2, 5, 3) for _ in range(3))
    seen = np.arange(5)[:, None] != 2
    assert (np.asarray(nn.attention(q, k, v, mask=seen))[:, 2] == 0).all()
    grads = ts.grad(lambda q, k, v: ts.sum(nn.attention(q, k, v, mask=seen)), argnums=(0, 1, 2))
    assert all(np.isfinite(np.asarray(g)).all() for g in grads(q, k, v))
    empty = nn.attention(q, k[:, :0], v[:, :0])
    assert np.asarray(empty).shape == (2, 5, 3)
    assert (np.asarray(empty) == 0).all()


@pytest.mark.parametrize("dtype", [ts.bfloat16, ts.float16])
def test_narrow_dtypes(dtype: Any) -> None:
    q, k, v = (ts.asarray(sample(2, 5, 3), dtype=dtype) for _ in range(3))
    found = ts.jit(nn.attention)(q, k, v)
    assert found.dtype is dtype
    wide = [np.asarray(ts.astype(x, ts.float64)) for x in (q, k, v)]
    np.testing.assert_allclose(np.asarray(ts.astype(found, ts.float64)), expected(*wide), atol=0.02)


def test_gradients() -> None:
    q, k, v = sample(2, 4, 5, 3), sample(2, 2, 5, 3), sample(2, 2, 5, 3)

    def loss(q: Any, k: Any, v: Any) -> Any:
        return ts.sum(ts.sin(nn.attention(q, k, v, causal=True)))

    found = ts.jit(ts.grad(loss, argnums=(0, 1, 2)))(q, k, v)
    step = 1e-6
    for at, grad in enumerate(found):
        way = sample(*np.asarray(grad).shape)
        ends: list[float] = []
        for sign in (1, -1):
            args: list[Any] = [q, k, v]
            args[at] = args[at] + sign * step * way
            ends.append(float(np.sum(np.sin(expected(*args, mask=below(5, 5))))))
        slope = (ends[0] - ends[1]) / (2 * step)
        np.testing.assert_allclose(np.sum(np.asarray(grad) * way), slope, rtol=1e-6)


def test_shapes_that_do_not_fit() -> None:
    q = np.zeros((2, 4, 5, 3), np.float32)
    for k, v in (
        (q[..., :2], q),
        (q[:, :3], q[:, :3]),
        (q[:1], q[:1]),
        (q, q[:, :, :4]),
        (q[0], q[0]),
    ):
        with pytest.raises(ts.errors.ShapeError, match=r"nn\.attention: q is f32\[2, 4, 5, 3\], k"):
            nn.attention(q, k, v)
    with pytest.raises(ts.errors.ShapeError, match=r"mask is bool\[4, 5\], and the scores"):
        nn.attention(q, q, q, mask=np.zeros((4, 5), bool))
