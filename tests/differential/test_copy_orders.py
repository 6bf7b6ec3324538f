"""Kernels of random programs give the same whenever their asynchronous copies land.

The simulator lets copies land at once, or as late as the kernel's waits allow. A product's kernel
without its waits, or without its barriers, must be refused.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import tessera as ts
from tessera.compile_gpu import LoweredGpu
from tessera.errors import SimulationError
from tessera.graph import interp as graph_interp
from tessera.ir.core import Block, Func, Op
from tessera.ir.intexpr import evaluate
from tessera.ir.walk import clone, walk
from tessera.target import gpu_ops as g
from tessera.target.gpu import Gpu, gpu
from tessera.target.simulate import run_program
from tests.differential.levels import as_memory, compare
from tests.differential.programs import random_program

pytestmark = pytest.mark.unchecked

MACHINES = (gpu("sm_90a"), gpu("sm_80"))
BATCH = 10


def run(
    lowered: LoweredGpu,
    kernels: dict[str, Func],
    inputs: list[np.ndarray],
    outputs: list[np.ndarray],
    machine: Gpu,
    mode: str,
) -> None:
    arena = int(evaluate(lowered.arena, {}))
    given, wanted = [as_memory(x) for x in inputs], [as_memory(x) for x in outputs]
    late = mode == "lazy"
    run_program(
        lowered.tile, kernels, given, wanted, {}, arena, machine=machine,
        async_mode="lazy" if late else "eager",
    )  # fmt: skip


def kernels_of(lowered: LoweredGpu) -> dict[str, Func]:
    return {name: kernel.func for name, kernel in lowered.gpu_kernels.items()}


@pytest.mark.parametrize("first", range(200_000, 200_100, BATCH))
def test_random_programs(first: int) -> None:
    for seed in range(first, first + BATCH):
        program, machine = random_program(seed), MACHINES[seed % len(MACHINES)]
        graph = program.graph()
        inputs = program.arrays(np.random.default_rng(seed))
        expected = graph_interp.run(graph, inputs, {})
        lowered = LoweredGpu(graph, machine)
        outputs = [np.empty(x.shape, x.dtype) for x in expected]
        for mode in ("eager", "lazy"):
            try:
                run(lowered, kernels_of(lowered), inputs, outputs, machine, mode)
                compare(outputs, expected, mode)
            except Exception as err:
                err.add_note(f"seed {seed}, {machine}: {', '.join(program.names)}")
                raise


# --- seeded mistakes ------------------------------------------------------------------------------


def without(func: Func, kinds: tuple[type[Op], ...]) -> Iterator[tuple[str, Func]]:
    """The kernel without any op of some kinds, and without all of each kind."""
    for kind in kinds:
        if any(isinstance(op, kind) for op in walk(func.body)):
            yield kind.name, clone_without(func, kind)


def clone_without(func: Func, kind: type[Op]) -> Func:
    copy = clone(func)

    def strip(block: Block) -> None:
        block.ops[:] = [op for op in block.ops if not isinstance(op, kind)]
        for op in block.ops:
            for region in op.regions:
                strip(region)

    strip(copy.body)
    return copy


def matmul(x: Any, y: Any) -> Any:
    return x @ y


@pytest.mark.parametrize("machine", MACHINES, ids=str)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64"])
def test_products_need_their_waits_and_barriers(machine: Gpu, dtype: str) -> None:
    rng = np.random.default_rng(0)
    shapes = ((128, 96), (96, 128))
    a, b = (ts.astype(ts.asarray(rng.integers(-3, 4, s)), getattr(ts, dtype)) for s in shapes)
    graph = ts.jit(matmul).lower(a, b).traced
    lowered = LoweredGpu(graph, machine)
    inputs = [np.asarray(a), np.asarray(b)]
    (expected,) = graph_interp.run(graph, inputs, {})
    outputs = [np.empty(expected.shape, expected.dtype)]
    kernels = kernels_of(lowered)
    found: set[str] = set()
    for mode in ("eager", "lazy"):
        run(lowered, kernels, inputs, outputs, machine, mode)
        assert (outputs[0] == expected).all()
    for name, func in kernels.items():
        for what, broken in without(func, (g.Barrier, g.AsyncWait)):
            found.add(what)
            with pytest.raises(SimulationError):
                run(lowered, {**kernels, name: broken}, inputs, outputs, machine, "lazy")
    assert "target.barrier" in found
