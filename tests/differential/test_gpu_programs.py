"""Random programs agree on a simulated GPU with the Graph interpreter.

What is tested is all of it but the PTX: schedules for GPUs, the kernels' Target IR, which the
simulator runs and checks for races, and the host code that launches them.
"""

from __future__ import annotations

from collections.abc import Generator
from functools import partial

import numpy as np
import pytest

from tessera.compile_gpu import lower_on
from tessera.graph import interp as graph_interp
from tessera.graph.device import device_at
from tessera.ir.core import Func
from tessera.schedule.plan import overwritten
from tests.differential.programs import run_programs
from tests.fake_gpu import FakeBackend, fake_gpu
from tests.tolerance import assert_close

pytestmark = pytest.mark.unchecked

BATCH = 5
STATIC = 60
SYMBOLIC = 30

# As on the CPU (`test_random_programs.py`).
FACTOR = 20.0
LENGTH = 100


@pytest.fixture(scope="module")
def gpu() -> Generator[FakeBackend]:
    with fake_gpu() as found:
        yield found


def check(
    gpu: FakeBackend, graph: Func, inputs: list[np.ndarray], dims: dict[str, int], seed: int
) -> None:
    expected = graph_interp.run(graph, inputs, dims)
    device = device_at("cuda", 0)
    lowered = lower_on(graph, device)
    values = [dims[name] for name in lowered.schedule.dims]
    given = [gpu.put(np.asarray(x, order="C"), device) for x in inputs]
    found = lowered.executable(device).run(given, values)
    assert len(found) == len(expected)
    for k, (a, b) in enumerate(zip(found, expected, strict=True)):
        try:
            assert_close(gpu.get(a), b, length=LENGTH, factor=FACTOR)
        except AssertionError as err:
            raise AssertionError(f"output {k}: {err}") from None


@pytest.mark.parametrize("first", range(0, STATIC, BATCH))
def test_static(gpu: FakeBackend, first: int) -> None:
    run_programs(partial(check, gpu), range(first, first + BATCH))


@pytest.mark.parametrize("first", range(10_000, 10_000 + SYMBOLIC, BATCH))
def test_symbolic(gpu: FakeBackend, first: int) -> None:
    run_programs(partial(check, gpu), range(first, first + BATCH), symbolic=True)


@pytest.mark.long
@pytest.mark.parametrize("first", range(100_000, 101_000, 25))
def test_many(gpu: FakeBackend, first: int) -> None:
    run_programs(partial(check, gpu), range(first, first + 25), symbolic=first % 50 == 0)


def check_donated(
    gpu: FakeBackend, graph: Func, inputs: list[np.ndarray], dims: dict[str, int], seed: int
) -> int:
    """Runs a program that may write to all its inputs, on copies and on these; says how many of
    them it takes."""
    device = device_at("cuda", 0)
    lowered = lower_on(graph, device, range(len(inputs)))
    taken = overwritten(lowered.schedule)
    if all([on is None for on in taken]):
        return 0
    expected = graph_interp.run(graph, inputs, dims)
    values = [dims[name] for name in lowered.schedule.dims]
    given = [gpu.put(np.asarray(x, order="C"), device) for x in inputs]
    executable = lowered.executable(device)
    for owned in ((), range(len(inputs))):
        found = executable.run_on(given, owned, values)
        for k, (a, b) in enumerate(zip(found, expected, strict=True)):
            assert_close(gpu.get(a), b, length=LENGTH, factor=FACTOR)
            on = taken[k]
            assert on is None or (a.address == given[on].address) == bool(owned)
        if not owned:
            for x, before in zip(given, inputs, strict=True):
                np.testing.assert_array_equal(gpu.get(x), before)
    return sum([on is not None for on in taken])


@pytest.mark.parametrize("first", range(30_000, 30_000 + STATIC, STATIC // 2))
def test_donated(gpu: FakeBackend, first: int) -> None:
    seeds = range(first, first + STATIC // 2)
    count = partial(check_donated, gpu)
    taken = run_programs(count, [seed for seed in seeds if seed % 4])
    taken += run_programs(count, [seed for seed in seeds if seed % 4 == 0], symbolic=True)
    assert taken
