"""Control flow in every form of a program: interpreters of all layers, the CPU, a simulated GPU."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any

import numpy as np
import pytest

import tessera as ts
from tessera.compile_gpu import lower_on
from tessera.dtypes import float32
from tessera.graph import interp as graph_interp
from tessera.graph.device import device_at
from tessera.ir.types import TensorType
from tests.fake_gpu import FakeBackend, fake_gpu
from tests.schedule import gpu as schedule_gpu
from tests.schedule import lowering
from tests.tolerance import assert_close

X = np.random.default_rng(7).uniform(-1, 1, (5, 2, 3)).astype(np.float32)
W = np.random.default_rng(8).uniform(-1, 1, (3, 3)).astype(np.float32)


def recurrent(x: Any, w: Any) -> Any:
    def cell(h: Any, v: Any) -> Any:
        h = ts.tanh(h @ w + v)
        return h, ts.sum(h, axis=1)

    return ts.scan(cell, ts.zeros((2, 3)), x, unroll=2)


def branches(x: Any, w: Any) -> Any:
    def turn(c: Any, v: Any) -> Any:
        k = ts.astype(ts.floor(ts.sum(v) * 2), ts.int32)
        c = ts.switch(k, [lambda c: c * 2, lambda c: c + v, ts.sin], c)
        return ts.cond(ts.sum(c) > 0, lambda c: -c, lambda c: c @ w, c), k

    return ts.scan(turn, x[0], x, reverse=True)


def until(x: Any, w: Any) -> Any:
    def halve(row: Any) -> Any:
        return ts.while_loop(
            lambda c: ts.sum(c[0] ** 2) > 0.1, lambda c: (c[0] * 0.5, c[1] + 1), (row, 0)
        )

    return ts.vmap(halve)(x[:, 0]), ts.fori_loop(0, 3, lambda i, c: c @ w + i, x[0])


def combined(x: Any, w: Any) -> Any:
    return ts.associative_scan(ts.add, x), ts.reduce(w, 0.0, ts.hypot, (0,)), ts.map(ts.sum, x)


def prefixes(x: Any, w: Any) -> Any:
    """A linear recurrence, of which the derivative has many buffers of one size."""

    def combine(a: Any, b: Any) -> Any:
        return a[0] * b[0], a[1] * b[0] + b[1]

    return ts.sum(ts.associative_scan(combine, (ts.broadcast_to(w[0], x.shape), x))[1] ** 2)


PROGRAMS: dict[str, Callable[..., Any]] = {
    "recurrent": recurrent,
    "branches": branches,
    "until": until,
    "combined": combined,
    "gradient": ts.grad(lambda x, w: ts.sum(recurrent(x, w)[1] ** 2), argnums=(0, 1)),
    "gradient of prefixes": lambda x, w: ts.grad(prefixes)(ts.reshape(x, (10, 3)), w),
    "batched": ts.vmap(recurrent, in_axes=(2, None)),
}


@pytest.fixture(scope="module")
def gpu() -> Generator[FakeBackend]:
    with fake_gpu() as found:
        yield found


def arguments(name: str) -> list[np.ndarray]:
    return [np.repeat(X[:, :, None], 3, 2) if name == "batched" else X, W]


@pytest.mark.unchecked
@pytest.mark.parametrize("name", PROGRAMS)
def test_the_interpreters_agree(name: str) -> None:
    inputs = arguments(name)
    types = [TensorType(x.shape, float32) for x in inputs]

    def flat(*args: Any) -> Any:
        return tuple(ts.pytree.leaves(PROGRAMS[name](*args)))

    lowering.check(flat, *types, inputs=inputs)
    schedule_gpu.check(flat, *types, inputs=inputs)


@pytest.mark.parametrize("name", PROGRAMS)
def test_compiled_code_agrees(gpu: FakeBackend, name: str) -> None:
    inputs = arguments(name)
    lowered = ts.jit(PROGRAMS[name]).lower(*inputs)
    expected = graph_interp.run(lowered.graph, inputs)
    found = lowered.executable().run(inputs)
    for a, b in zip(found, expected, strict=True):
        assert_close(a, b, length=50)
    device = device_at("cuda", 0)
    there = lower_on(lowered.traced, device)
    given = [gpu.put(x, device) for x in inputs]
    for a, b in zip(there.executable(device).run(given, []), expected, strict=True):
        assert_close(gpu.get(a), b, length=50)


def test_arrays_on_a_device_stay_there(gpu: FakeBackend) -> None:
    """Numbers of the host go with them."""
    x = ts.device_put(ts.asarray(X[:, 0, 0]), "cuda")
    host = ts.asarray(X[:, 0, 0])
    calls: list[Callable[[Any], Any]] = [
        lambda x: ts.scan(lambda c, v: (c + v, c * v), 0.0, x),
        ts.grad(lambda x: ts.sum(ts.scan(lambda c, v: (c + v, c * v), 1.0, x)[1])),
        lambda x: ts.fori_loop(0, ts.asarray(3), lambda i, c: c + i, x),
        lambda x: ts.switch(2, [ts.sin, ts.cos, ts.exp], x),
        lambda x: ts.reduce(x, 0.0, ts.hypot, (0,)),
        lambda x: ts.associative_scan(ts.add, x, reverse=True),
        lambda x: ts.map(ts.sin, x, batch_size=2),
    ]
    for call in calls:
        for a, b in zip(ts.pytree.leaves(call(x)), ts.pytree.leaves(call(host)), strict=True):
            assert str(a.device) == "cuda:0"
            assert_close(a, b, length=8)
