"""Rounding, policies, quantization, refs, host calls and determinism on a real GPU."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tessera as ts

pytestmark = pytest.mark.gpu

FORMATS = ["float32", "bfloat16", "float16", "float8_e4m3fn", "float8_e5m2"]


def on_gpu(data: Any) -> Any:
    return ts.device_put(data if isinstance(data, ts.Array) else np.asarray(data), "cuda:0")


def same(x: Any, wanted: Any) -> None:
    assert str(x.device) == "cuda:0"
    assert np.asarray(x).tobytes() == np.asarray(wanted).tobytes()


def bits(dtype: str) -> Any:
    """Numbers of random bits, and the edges."""
    words = np.random.default_rng(0).integers(0, 2**63, 20000, np.uint64)
    wide = words.view(np.float64) if dtype == "float64" else words.astype(np.uint32).view(dtype)
    edges = [0.0, -0.0, 1.0, np.inf, -np.inf, np.nan, 448.0, 464.0, 65504.0, 65520.0, 1e-45, 2**-16]
    return np.concatenate([wide, np.asarray(edges, dtype)])


@pytest.mark.parametrize("source", ["float32", "float64"])
@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("mode", ["nearest_even", "toward_zero", "up", "down", "stochastic"])
@pytest.mark.parametrize("saturate", [False, True])
def test_numbers_are_rounded_as_on_a_cpu(
    source: str, format: str, mode: str, saturate: bool
) -> None:
    key = ts.random.key(1)

    def f(x: Any, key: Any) -> Any:
        dtype = getattr(ts, format)
        used = key if mode == "stochastic" else None
        found = ts.round_to(x, dtype, rounding=mode, saturate=saturate, key=used)
        # NaN has no sign that matters.
        return ts.where(ts.isnan(found), ts.asarray(0, dtype=dtype), found)

    x = bits(source)
    same(ts.jit(f)(on_gpu(x), on_gpu(key)), ts.jit(f)(ts.asarray(x), key))


def test_a_step_under_a_policy() -> None:
    x = np.random.default_rng(0).standard_normal((64, 32)).astype(np.float32)
    w = np.random.default_rng(1).standard_normal((32, 16)).astype(np.float32)

    def loss(w: Any, x: Any) -> Any:
        with ts.policy(ts.policies.Training()):
            return ts.sum(ts.tanh(x @ w) ** 2)

    step = ts.jit(ts.grad(loss))
    found, wanted = step(on_gpu(w), on_gpu(x)), step(ts.asarray(w), ts.asarray(x))
    np.testing.assert_allclose(np.asarray(found), np.asarray(wanted), rtol=0.05, atol=0.05)


@pytest.mark.parametrize("dtype", ["int8", "float8_e4m3fn", "float8_e5m2"])
def test_quantized_products(dtype: str) -> None:
    x = np.random.default_rng(0).standard_normal((48, 64)).astype(np.float32)
    w = np.random.default_rng(1).standard_normal((64, 32)).astype(np.float32)

    @ts.jit
    def f(x: Any, w: Any) -> Any:
        d = getattr(ts, dtype)
        return ts.quantized_matmul(ts.quantize(x, d, axis=0), ts.quantize(w, d, axis=1))

    found, wanted = f(on_gpu(x), on_gpu(w)), f(ts.asarray(x), ts.asarray(w))
    np.testing.assert_allclose(np.asarray(found), np.asarray(wanted), rtol=1e-4, atol=1e-3)


def test_state_stays_on_the_device() -> None:
    total = ts.Ref(on_gpu(np.zeros(1000, np.float32)), name="total")

    @ts.jit
    def add(x: Any) -> Any:
        total.update(lambda t: t + x)
        return ts.sum(total.get())

    found = [float(add(on_gpu(np.ones(1000, np.float32)))) for _ in range(5)]
    assert found == [1000.0, 2000.0, 3000.0, 4000.0, 5000.0]
    assert str(total.get().device) == "cuda:0"

    @ts.jit
    def many(xs: Any) -> Any:
        return ts.scan(lambda c, x: (c, add(x)), None, xs)[1]

    found = np.asarray(many(on_gpu(np.ones((3, 1000), np.float32))))
    assert found.tolist() == [6000.0, 7000.0, 8000.0]


def test_deterministic_functions_repeat_themselves() -> None:
    x = np.random.default_rng(0).standard_normal((300, 4096)).astype(np.float32)
    w = np.random.default_rng(1).standard_normal((4096, 40)).astype(np.float32)

    @ts.jit
    @ts.deterministic(seed=1)
    def f(x: Any, w: Any) -> Any:
        y = ts.softmax(x @ w, axis=-1)
        return y + 0 * ts.sum(x), ts.random.normal(ts.random.next_key(), (3,))

    runs: list[bytes] = []
    for _ in range(3):
        f._fn.step.set(0)  # pyright: ignore[reportPrivateUsage]
        runs.append(b"".join([np.asarray(part).tobytes() for part in f(on_gpu(x), on_gpu(w))]))
    assert len(set(runs)) == 1


def test_sums_of_updates_that_meet() -> None:
    x, at = on_gpu(np.zeros(4, np.float32)), on_gpu(np.asarray([1, 1, 2]))
    f = ts.jit(ts.deterministic(lambda x, at: x.at[at].add(1.0)))
    assert np.asarray(f(x, at)).tolist() == [0, 2, 1, 0]
    read = ts.deterministic(lambda x, at: ts.sum(x[at]))
    assert np.asarray(ts.jit(ts.grad(read))(x, at)).tolist() == [0, 2, 1, 0]
    whole = ts.jit(ts.deterministic(lambda x, at: x.at[at].add(1)))
    assert np.asarray(whole(on_gpu(np.zeros(4, np.int32)), at)).tolist() == [0, 2, 1, 0]

    @ts.jit
    @ts.deterministic
    def allowed(x: Any, at: Any) -> Any:
        with ts.nondeterministic():
            return x.at[at].add(1.0)

    assert np.asarray(allowed(x, at)).tolist() == [0, 2, 1, 0]
