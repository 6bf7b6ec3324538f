"""Random numbers inside of loops, derivatives, maps and devices."""

from __future__ import annotations

from typing import Any

import numpy as np

import tessera as ts
from tessera import random
from tests.fake_gpu import fake_gpu

KEY = random.key(4)


def walk(key: Any, deviation: Any) -> Any:
    def step(x: Any, key: Any) -> Any:
        x = x + deviation * random.normal(key, (3,))
        return x, x

    return ts.sum(ts.scan(step, ts.zeros(3), random.split(key, 10))[0] ** 2)


def test_in_a_scan_and_backwards() -> None:
    x = np.zeros(3, np.float32)
    for key in random.split(KEY, 10):
        x = x + np.float32(0.5) * np.asarray(random.normal(key, (3,)))
    value, slope = ts.value_and_grad(walk, argnums=1)(KEY, 0.5)
    np.testing.assert_allclose(float(value), np.sum(x**2), rtol=1e-5)
    # The value is quadratic in the deviation.
    np.testing.assert_allclose(float(slope), 4 * float(value), rtol=1e-5)
    assert float(ts.jit(walk)(KEY, 0.5)) == float(value)


def arrivals(key: Any) -> Any:
    """Adds Poisson numbers until there are 50."""

    def step(state: Any) -> Any:
        key, total = state
        return random.fold_in(key, total), total + random.poisson(key, 3.0)

    return ts.while_loop(lambda state: state[1] < 50, step, (key, 0))[1]


def test_a_sampler_that_loops_inside_a_loop() -> None:
    keys = random.split(KEY, 3)
    wanted = []
    for key in keys:
        total = 0
        while total < 50:
            key, total = random.fold_in(key, total), total + int(random.poisson(key, 3.0))
        wanted.append(total)
    assert [int(arrivals(key)) for key in keys] == wanted
    assert np.asarray(ts.jit(ts.vmap(arrivals))(keys)).tolist() == wanted


def test_derivatives_of_single_samples_under_vmap_and_jit() -> None:
    keys = random.split(KEY, 3)
    a = ts.asarray([1.0, 2.0, 0.5])
    slope = ts.grad(lambda a, key: random.gamma(key, a))
    found = ts.jit(ts.vmap(slope))(a, keys)
    np.testing.assert_allclose(found, [float(slope(a[k], keys[k])) for k in range(3)], rtol=1e-5)


def test_recomputed_samples_are_the_same() -> None:
    def loss(a: Any) -> Any:
        return ts.sum(ts.sin(random.gamma(KEY, a, (5,))))

    def recomputed(a: Any) -> Any:
        return ts.sum(ts.checkpoint(lambda a: ts.sin(random.gamma(KEY, a, (5,))))(a))

    assert float(ts.grad(loss)(2.0)) == float(ts.grad(recomputed)(2.0))


def test_keys_live_where_they_are_made() -> None:
    here = np.asarray(random.normal(KEY, (3,)))
    with fake_gpu(), ts.device("cuda:0"):
        key = random.key(4)
        for found in (key, random.fold_in(key, 3), random.normal(key, (3,))):
            assert str(found.device) == "cuda:0"
        assert str(random.uniform(key, (2,), minval=1.0, maxval=3.0).device) == "cuda:0"
        np.testing.assert_array_equal(np.asarray(random.normal(key, (3,))), here)


def test_without_jit() -> None:
    draws = (
        lambda: random.gamma(KEY, 0.5, (3,)),
        lambda: random.poisson(KEY, 20.0, (3,)),
        lambda: random.permutation(KEY, 5),
        lambda: random.orthogonal(KEY, 3),
    )
    for draw in draws:
        with ts.debug.disable_jit():
            found = np.asarray(draw())
        np.testing.assert_allclose(found, draw(), rtol=1e-6)
