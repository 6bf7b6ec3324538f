"""Random programs, as PTX text run on NumPy, agree with the Graph interpreter."""

from __future__ import annotations

import numpy as np
import pytest

from tessera.compile_gpu import LoweredGpu
from tessera.graph import interp as graph_interp
from tessera.ir.core import Func
from tessera.target.gpu import gpu
from tests.differential.levels import as_memory, compare
from tests.differential.programs import run_programs
from tests.ptx.program import run_lowered

pytestmark = pytest.mark.unchecked

BATCH = 5
STATIC = 20
SYMBOLIC = 10
MACHINES = ("sm_90a", "sm_80")


def check(graph: Func, inputs: list[np.ndarray], dims: dict[str, int], seed: int) -> None:
    expected = graph_interp.run(graph, inputs, dims)
    lowered = LoweredGpu(graph, gpu(MACHINES[seed % len(MACHINES)]))
    outputs = [np.empty(x.shape, x.dtype) for x in expected]
    given, wanted = [as_memory(x) for x in inputs], [as_memory(x) for x in outputs]
    mode = "lazy" if seed % 3 else "eager"
    run_lowered(lowered, given, wanted, dims=dims, async_mode=mode)
    compare(outputs, expected, f"PTX for {lowered.gpu}")


@pytest.mark.parametrize("first", range(0, STATIC, BATCH))
def test_static(first: int) -> None:
    run_programs(check, range(first, first + BATCH))


@pytest.mark.parametrize("first", range(10_000, 10_000 + SYMBOLIC, BATCH))
def test_symbolic(first: int) -> None:
    run_programs(check, range(first, first + BATCH), symbolic=True)


@pytest.mark.long
@pytest.mark.parametrize("first", range(100_000, 101_000, 25))
def test_many(first: int) -> None:
    run_programs(check, range(first, first + 25), symbolic=first % 50 == 0)
