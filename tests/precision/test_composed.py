"""Quantized tensors under the transforms, with symbolic sizes, and in control flow."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tessera as ts
from tessera.errors import NonFiniteError
from tests.tolerance import assert_close

RNG = np.random.default_rng(5)
A = RNG.normal(size=(6, 32)).astype(np.float32)
W = RNG.normal(size=(32, 32)).astype(np.float32)


def test_one_program_for_all_sizes() -> None:
    """Annotated sizes: rows are quantized, and multiplied, by one executable."""
    w = ts.quantize(W, ts.int8, axis=1)

    @ts.jit
    def f(x: ts.Tensor["B", 32, ts.float32]) -> Any:  # noqa: F821, UP037
        q = ts.quantize(x, ts.int8, axis=0)
        blocks = ts.quantize(x, "e4m3", block=16).dequantize()
        return q.values, q.scale, q @ w, blocks

    for n in (1, 3, 6):
        q = ts.quantize(A[:n], ts.int8, axis=0)
        values, scale, y, blocks = f(A[:n])
        np.testing.assert_array_equal(np.asarray(values), np.asarray(q.values))
        np.testing.assert_array_equal(np.asarray(scale), np.asarray(q.scale))
        assert_close(y, np.asarray(q @ w), length=32)
        plain = ts.quantize(A[:n], "e4m3", block=16).dequantize()
        np.testing.assert_array_equal(np.asarray(blocks), np.asarray(plain))
    assert len(f.compiled()) == 1


def layer(w: Any, x: Any) -> Any:
    return ts.tanh(ts.fake_quantize(x, "e4m3", axis=0) @ ts.fake_quantize(w, ts.int8, axis=1))


def test_gradients_where_residuals_are_computed_again() -> None:
    def loss(f: Any) -> Any:
        return lambda w, x: ts.sum(f(w, f(w, x)) ** 2)

    plain = ts.grad(loss(layer), argnums=(0, 1))(W, A)
    for make in (lambda f: f, ts.jit):
        again = make(ts.grad(loss(ts.checkpoint(layer)), argnums=(0, 1)))(W, A)
        for a, b in zip(again, plain, strict=True):
            assert_close(a, np.asarray(b), length=32)


def test_loops_and_branches() -> None:
    ws = [ts.quantize(W * k, ts.int8, axis=1) for k in (0.1, 0.2, 0.3)]
    stack = ts.pytree.map_(lambda *xs: ts.stack(xs), *ws)

    def step(x: Any, w: Any) -> Any:
        return ts.cond(ts.sum(x) > 0, lambda x: x @ w, lambda x: -x @ w, x), ts.sum(x)

    found, _ = ts.jit(lambda x, stack: ts.scan(step, x, stack))(A, stack)
    wanted = A.astype(np.float64)
    for w in ws:
        sign = 1 if wanted.sum() > 0 else -1
        wanted = sign * wanted @ np.asarray(w.dequantize()).astype(np.float64)
    assert_close(found, wanted.astype(np.float32), length=32)

    def wider(state: Any) -> Any:
        q, k = state
        return ts.quantize(q.dequantize() * 2, ts.int8, axis=1), k + 1

    q, count = ts.jit(lambda q: ts.while_loop(lambda s: s[1] < 3, wider, (q, 0)))(ws[0])
    assert int(count) == 3
    np.testing.assert_array_equal(np.asarray(q.values), np.asarray(ws[0].values))
    assert_close(q.scale, np.asarray(ws[0].scale) * 8)


def test_gradients_of_each_example() -> None:
    """vmap of grad, the scale of each example its own; and grad of vmap."""
    xs = RNG.normal(size=(3, 4, 8)).astype(np.float32)

    def loss(x: Any, s: Any) -> Any:
        return ts.sum(ts.fake_quantize(x, ts.int4, scale=s) ** 2)

    s = ts.asarray([0.3, 0.5, 0.9])
    got = ts.jit(ts.vmap(ts.grad(loss, argnums=(0, 1))))(xs, s)
    each = [ts.grad(loss, argnums=(0, 1))(x, float(v)) for x, v in zip(xs, s, strict=True)]
    for k in range(2):
        assert_close(got[k], np.stack([np.asarray(g[k]) for g in each]), length=32)
    whole = ts.grad(lambda xs: ts.sum(ts.vmap(loss)(xs, s)))(ts.asarray(xs))
    np.testing.assert_array_equal(np.asarray(whole), np.asarray(got[0]))


@pytest.mark.parametrize("shape", [(), (1,), (5,), (0, 3), (3, 0), (2, 1, 7)], ids=str)
def test_shapes(shape: tuple[int, ...]) -> None:
    x = np.asarray(RNG.normal(size=shape)).astype(np.float32)
    for make in (lambda f: f, ts.jit):
        q = make(lambda x: ts.quantize(x, ts.int8))(ts.asarray(x))
        assert q.shape == shape
        assert q.scale.shape == (1,) * len(shape)
        back = np.asarray(q.dequantize())
        assert back.shape == shape
        if x.size:
            assert np.abs(back - x).max() <= float(np.asarray(q.scale).max()) * 0.500001


def test_products_in_training_with_fp8_both_ways() -> None:
    """As the documentation writes it: e4m3 forwards, e5m2 for what comes back."""

    @ts.custom_vjp
    def dot(x: Any, w: Any) -> Any:
        return ts.quantize(x, "e4m3") @ ts.quantize(w, "e4m3")

    def forward(x: Any, w: Any) -> Any:
        a, b = ts.quantize(x, "e4m3"), ts.quantize(w, "e4m3")
        return a @ b, (a, b)

    def backward(kept: Any, ct: Any) -> Any:
        a, b = kept
        c = ts.quantize(ct, "e5m2")
        return c @ b.mT, a.mT @ c

    dot.defvjp(forward, backward)
    ct = RNG.normal(size=(6, 32)).astype(np.float32)
    grads = ts.jit(ts.grad(lambda x, w: ts.sum(dot(x, w) * ct), argnums=(0, 1)))(A, W)

    def meant(x: Any, dtype: str) -> np.ndarray:
        return np.asarray(ts.quantize(x, dtype).dequantize()).astype(np.float64)

    a, b, c = meant(A, "e4m3"), meant(W, "e4m3"), meant(ct, "e5m2")
    assert_close(grads[0], (c @ b.T).astype(np.float32), length=32)
    assert_close(grads[1], (a.T @ c).astype(np.float32), length=32)


def test_blocks_of_a_size_that_is_known_later() -> None:
    """A condition says that blocks fill the axis; both sizes that it allows run one executable."""

    @ts.jit
    @ts.constrain("S % 16 == 0")
    def f(x: ts.Tensor["B", "S", ts.float32], y: ts.Tensor["S", 8, ts.float32]) -> Any:  # noqa: F821, UP037
        blocks = ts.quantize(x, "e4m3", block=16)
        assert blocks.block == (1, 16)
        product = ts.quantize(x, "nvfp4") @ ts.quantize(y, ts.int4, block=(16, 1))
        return blocks.dequantize(), product

    for n in (16, 48):
        x, y = (RNG.normal(size=s).astype(np.float32) for s in ((3, n), (n, 8)))
        back, product = f(x, y)
        plain = ts.quantize(x, "e4m3", block=16).dequantize()
        np.testing.assert_array_equal(np.asarray(back), np.asarray(plain))
        wanted = ts.quantize(x, "nvfp4") @ ts.quantize(y, ts.int4, block=(16, 1))
        assert_close(product, np.asarray(wanted), length=n)
    assert len(f.compiled()) == 1


def test_the_same_bits_for_each_batch() -> None:
    w = ts.quantize(W, ts.int8, axis=1)
    v = ts.quantize(W, "e4m3", axis=1)

    @ts.jit
    @ts.deterministic(batch_invariant=True)
    def f(x: Any) -> Any:
        return ts.quantize(x, ts.int8, axis=0) @ w, ts.quantize(x, "e4m3", axis=0) @ v, x @ w

    whole = f(A)
    for k in range(6):
        for a, b in zip(f(A[k : k + 1]), whole, strict=True):
            np.testing.assert_array_equal(np.asarray(a)[0], np.asarray(b)[k])


def test_sentinels_see_through_quantization() -> None:
    """NaN becomes 0 in integers; the operation that makes one is told nevertheless."""
    f = ts.jit(lambda x, y: ts.quantize(x / y, ts.int8, scale=0.1).values, check="nan")
    assert not np.asarray(f(ts.zeros(3), ts.ones(3))).any()
    with pytest.raises(NonFiniteError, match="divide: the result has NaN"):
        f(ts.zeros(3), ts.asarray([1.0, 0.0, 1.0]))


def everything() -> dict[str, Any]:
    """What the functions of this package give for some numbers that are not short."""
    scale = ts.LossScale(1000.123, factor=1.7, growth_interval=1)
    grads, after, _ = scale.unscale({"w": ts.asarray(A)})
    history = ts.AmaxHistory.empty(3).update(A).update(np.float32(A * 1.23))
    q, w = ts.quantize(A, ts.int8, axis=0), ts.quantize(W, "nvfp4", axis=0)
    batches = [A, np.float32(A * 1.1)]
    adaptive = ts.AdaptivePrecision({"a": lambda x: x, "b": lambda x: x}, [1.2345])
    adaptive(A)
    return {
        "gradients": grads["w"],
        "next scale": after.value,
        "scaled": scale.scale(ts.asarray(1.2345)),
        "history": history.history,
        "history's scale": history.scale("e4m3", 1),
        "values": q.values,
        "scales": q.scale,
        "back": q.dequantize(),
        "products": q @ w,
        "beside an array": A @ w,
        "fake": ts.fake_quantize(A, "e4m3"),
        "squared error": ts.calibrate(lambda x: x, batches, ts.int8, method="mse", axis=1),
        "percentile": ts.calibrate(lambda x: x, batches, ts.int8, method="percentile"),
        "measured": np.float64(adaptive.switches[0].measured),
    }


@pytest.mark.parametrize("policy", ["Training", "Inference"])
def test_a_policy_changes_no_scale(policy: str) -> None:
    """Nor what is computed with them; the user's functions do obey it."""
    wanted = everything()
    third = np.float32(1 / 3)
    p = getattr(ts.policies, policy)()
    with ts.policy(p):
        found = everything()
        scale = ts.calibrate(lambda x: x * third, [ts.asarray(A)], ts.int8)
        y = ts.asarray(A) * third
    for name, x in wanted.items():
        a, b = np.asarray(found[name]), np.asarray(x)
        assert a.dtype == b.dtype, name
        np.testing.assert_array_equal(a.astype(np.float64), b.astype(np.float64), err_msg=name)
    assert y.dtype is p.storage
    top = np.abs(np.asarray(y).astype(np.float32)).max()
    np.testing.assert_array_equal(np.asarray(scale), [[top / np.float32(127)]])


def test_products_beside_an_array_of_8_bits() -> None:
    """They are float32: the array's own format would not hold them."""
    x = ts.asarray(A * 100).astype(ts.float8_e4m3fn)
    w = ts.quantize(W * 100, ts.int8, axis=1)
    found = x @ w
    assert found.dtype is ts.float32
    wanted = np.asarray(x).astype(np.float64) @ np.asarray(w.dequantize()).astype(np.float64)
    assert_close(found, wanted.astype(np.float32), length=32)
