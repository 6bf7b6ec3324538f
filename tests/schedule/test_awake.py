"""Grains of kernels that stand in a loop: of many steps, or beside others which threads share."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import tessera as ts
from tessera.compile import Lowered
from tessera.schedule import ops
from tessera.schedule.rebuild import kernels
from tessera.target.machine import Machine, machine

RNG = np.random.default_rng(5)
SHAPES = ((128, 512), (6, 32, 512))
WEIGHTS, INPUTS = [RNG.uniform(-0.1, 0.1, shape).astype(np.float32) for shape in SHAPES]
ZERO = np.zeros((32, 128), np.float32)


def gates(z: Any, c: Any) -> Any:
    i, f, o = [ts.tanh(z[:, k * 128 : (k + 1) * 128]) for k in range(3)]
    return ts.tanh(o * ts.tanh(f * c + i * ts.tanh(z[:, 384:])))


def network(w: Any, x: Any) -> Any:
    def step(h: Any, row: Any) -> Any:
        h = gates(h @ w + row, h)
        return h, h

    return ts.scan(step, ZERO, x)[1]


ROW = machine("x86-64-v3")
ZEN = replace(ROW, llvm_cpu="znver3")


def grains(fn: Any, *args: Any, cpu: Machine = ROW) -> dict[str, int]:
    """Of each kernel that computes `tanh` or a product, the grain, by its label."""
    found = Lowered(ts.make_graph(fn)(*args), cpu).schedule
    return {
        kernel.label: nest.grain
        for kernel in kernels(found.body)
        for nest in kernel.body.ops
        if isinstance(nest, ops.Nest) and ("dot" in kernel.label or "tanh" in kernel.label)
    }


def test_work_beside_a_shared_product_is_shared_in_a_loop() -> None:
    alone = grains(gates, INPUTS[0], ZERO)
    beside = grains(network, WEIGHTS, INPUTS)
    assert list(alone.values()) == [0]
    assert len(beside) == 2
    assert all(beside.values())


def alone(steps: int | None, rows: int = 32, cpu: Machine = ZEN) -> dict[str, int]:
    """The grains of a loop of so many steps (None: not known) that has one kernel."""

    def step(h: Any, row: Any = INPUTS[0, :rows]) -> Any:
        return gates(row, ts.flip(h, axis=0))

    if steps is None:
        return grains(lambda h: ts.while_loop(lambda h: h[0, 0] < 1, step, h), ZERO[:rows], cpu=cpu)
    return grains(lambda h: ts.fori_loop(0, steps, lambda _, h: step(h), h), ZERO[:rows], cpu=cpu)


@pytest.mark.parametrize(("steps", "is_shared"), [(20, False), (40, True), (None, True)])
def test_work_beside_nothing_that_is_shared_is_in_many_steps(
    steps: int | None, is_shared: bool
) -> None:
    found = alone(steps)
    assert found
    assert any(found.values()) is is_shared


def test_little_work_is_not_shared() -> None:
    found = alone(40, rows=2)
    assert found
    assert not any(found.values())


def test_little_is_not_shared_where_cores_are_far_apart() -> None:
    assert not any(alone(40, cpu=ROW).values())


def test_scans_count_their_steps() -> None:
    def step(h: Any, row: Any) -> Any:
        return gates(row, ts.flip(h, axis=0)), None

    few = grains(lambda x: ts.scan(step, ZERO, x)[0], INPUTS, cpu=ZEN)
    many = grains(lambda x: ts.scan(step, ZERO, x)[0], np.tile(INPUTS, (8, 1, 1)), cpu=ZEN)
    assert few
    assert not any(few.values())
    assert many
    assert all(many.values())


def test_results_are_the_same_for_any_number_of_threads() -> None:
    fn = ts.jit(network)
    found: list[bytes] = []
    for threads in (1, 2, 3):
        with ts.config.update(threads=threads):
            found.append(np.asarray(fn(WEIGHTS, INPUTS)).tobytes())
    assert found == found[:1] * 3
    h = ZERO
    for row in INPUTS:
        h = np.asarray(gates(h @ WEIGHTS + row, h))
    np.testing.assert_allclose(np.asarray(fn(WEIGHTS, INPUTS))[-1], h, rtol=1e-4, atol=1e-5)
