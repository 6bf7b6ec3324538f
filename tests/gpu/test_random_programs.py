"""Random programs on a GPU agree with the Graph interpreter."""

from __future__ import annotations

import numpy as np
import pytest

import tessera as ts
from tessera.compile_gpu import lower_on
from tessera.graph import interp as graph_interp
from tessera.graph.device import backend
from tests.differential.programs import random_program
from tests.tolerance import assert_close

BATCH = 10

# As on the CPU (`tests/differential/test_random_programs.py`).
FACTOR = 20.0
LENGTH = 100


def check(seed: int, symbolic: bool) -> None:
    program = random_program(seed, symbolic)
    graph = program.graph(symbolic)
    inputs = program.arrays(np.random.default_rng(seed))
    dims = {f"n{size}": size for x in program.inputs for size in x.shape} if symbolic else {}
    dims = {k: v for k, v in dims.items() if k in graph.dims}
    expected = graph_interp.run(graph, inputs, dims)
    (device, *_) = ts.devices("cuda")
    lowered = lower_on(graph, device)
    values = [dims[name] for name in lowered.schedule.dims]
    where = backend("cuda")
    given = [where.put(np.asarray(x, order="C"), device) for x in inputs]
    found = lowered.executable(device).run(given, values)
    for k, (a, b) in enumerate(zip(found, expected, strict=True)):
        try:
            assert_close(where.get(a), b, length=LENGTH, factor=FACTOR)
        except AssertionError as error:
            raise AssertionError(f"seed {seed}, output {k}: {error}\n{program}") from error


@pytest.mark.gpu
@pytest.mark.parametrize("first", range(0, 200, BATCH))
def test_static(first: int) -> None:
    for seed in range(first, first + BATCH):
        check(seed, False)


@pytest.mark.gpu
@pytest.mark.parametrize("first", range(0, 100, BATCH))
def test_symbolic(first: int) -> None:
    for seed in range(first, first + BATCH):
        check(seed, True)
