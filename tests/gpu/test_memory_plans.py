"""Planned memory beside what a real GPU's pool gives."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tessera as ts
from tessera.errors import MemoryBudgetError
from tessera.runtime.cuda.device import CudaDevice
from tests.api.test_memory_budget import attention, perceptron

pytestmark = pytest.mark.gpu

SIZES = {"perceptron": (perceptron, 4, 1024, 4096), "attention": (attention, 3, 512, 2048)}


def arguments(count: int, width: int, rows: int) -> Any:
    rng = np.random.default_rng(0)
    params = [rng.normal(size=(width, width)).astype(np.float32) * 0.02 for _ in range(count)]
    return ts.device_put((params, rng.normal(size=(rows, width)).astype(np.float32)), "cuda:0")


@pytest.mark.parametrize("name", SIZES)
def test_plans_are_what_calls_take(name: str, device: CudaDevice) -> None:
    f, *sizes = SIZES[name]
    args = arguments(*sizes)
    plain = ts.jit(f)
    ts.block_until_ready(plain(*args))
    planned = plain.memory()
    device.pool.reset_peak()
    before = device.pool.statistics().live
    found = ts.block_until_ready(plain(*args))
    after = device.pool.statistics()
    assert abs(after.live - before - planned.outputs) <= 0.13 * planned.outputs + 4096
    # Scratch memory comes back as the call returns, and the pool counts about the most at once.
    assert after.peak - before <= 1.13 * (planned.outputs + planned.arena) + 4096
    assert planned.inputs == sum([x.nbytes for x in ts.pytree.leaves(args)])
    del found


@pytest.mark.parametrize("name", SIZES)
def test_budgets(name: str) -> None:
    f, *sizes = SIZES[name]
    args = arguments(*sizes)
    plain = ts.jit(f)
    wanted = [np.asarray(x) for x in ts.pytree.leaves(plain(*args))]
    use = plain.memory()
    peaks: list[int] = []
    for part in (1.0, 0.95):
        g = ts.jit(f, memory_budget=int(use.inputs + use.outputs + use.arena * part))
        found = [np.asarray(x) for x in ts.pytree.leaves(g(*args))]
        peaks.append(g.memory().peak)
        for a, b in zip(found, wanted, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-4 * np.abs(b).max())
    assert peaks[0] == use.peak > peaks[1]
    with pytest.raises(MemoryBudgetError):
        ts.jit(f, memory_budget=use.inputs + use.outputs)(*args)
