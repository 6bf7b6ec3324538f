"""Random programs agree in the four interpreters and in compiled code.

CI runs a few hundred programs with static sizes and some with symbolic ones; `--long` runs many
more.
"""

from __future__ import annotations

import numpy as np
import pytest

from tessera.compile import Lowered
from tessera.graph import interp as graph_interp
from tessera.ir.intexpr import evaluate
from tessera.runtime.memory import pointer
from tessera.target import interp as target_interp
from tessera.target.from_tile.simd import lower_module
from tessera.tile import interp as tile_interp
from tests.differential.programs import Program, random_program
from tests.schedule.lowering import Placed
from tests.tolerance import assert_close

BATCH = 10
STATIC = 320
SYMBOLIC = 80

FACTOR = 20.0
"""Programs chain several operations, each with its own rounding; complex products cancel."""

LENGTH = 100
"""The longest accumulation is of a few thousand values, of random sign."""


def compare(found: list[np.ndarray], expected: list[np.ndarray], where: str) -> None:
    assert len(found) == len(expected)
    for k, (a, b) in enumerate(zip(found, expected, strict=True)):
        try:
            assert_close(a, b, length=LENGTH, factor=FACTOR)
        except AssertionError as err:
            raise AssertionError(f"{where}, output {k}: {err}") from None


def as_memory(array: np.ndarray) -> np.ndarray:
    """The array as Tile and Target programs see it: complex numbers are pairs of reals."""
    if array.dtype.kind != "c":
        return array
    real = np.float32 if array.dtype == np.complex64 else np.float64
    return np.atleast_1d(np.ascontiguousarray(array)).view(real)


def check(program: Program, seed: int, symbolic: bool) -> None:
    graph = program.graph(symbolic)
    inputs = program.arrays(np.random.default_rng(seed))
    dims = {f"n{size}": size for x in program.inputs for size in x.shape} if symbolic else {}
    dims = {k: v for k, v in dims.items() if k in graph.dims}
    expected = graph_interp.run(graph, inputs, dims)
    lowered = Lowered(graph)
    compare(graph_interp.run(lowered.graph, inputs, dims), expected, "graph passes")
    # In its memory: copies of a buffer to where it lies are gone.
    placed = Placed.run(lowered.schedule, lowered.arena, inputs, dims)
    compare(placed, expected, "schedule")
    arena = int(evaluate(lowered.arena, dims))
    outputs = [np.empty(x.shape, x.dtype) for x in expected]
    given, wanted = [as_memory(x) for x in inputs], [as_memory(x) for x in outputs]
    tile_interp.run_module(lowered.tile, given, wanted, dims, arena)
    compare(outputs, expected, "tile")
    raw = lower_module(lowered.tile, lowered.machine)
    target_interp.run_module(raw, given, wanted, dims, arena)
    compare(outputs, expected, "target")
    target_interp.run_module(lowered.target, given, wanted, dims, arena)
    compare(outputs, expected, "target, legalized")
    values = [dims[name] for name in lowered.schedule.dims]
    native = lowered.executable().run([pointer(x) for x in inputs], values)
    compare(native, expected, "native")


def run_batch(first: int, count: int, symbolic: bool) -> None:
    for seed in range(first, first + count):
        program = random_program(seed, symbolic)
        try:
            check(program, seed, symbolic)
        except Exception as err:
            err.add_note(f"seed {seed}, symbolic={symbolic}: {', '.join(program.names)}")
            raise


@pytest.mark.parametrize("first", range(0, STATIC, BATCH))
def test_static(first: int) -> None:
    run_batch(first, BATCH, symbolic=False)


@pytest.mark.parametrize("first", range(10_000, 10_000 + SYMBOLIC, BATCH))
def test_symbolic(first: int) -> None:
    run_batch(first, BATCH, symbolic=True)


@pytest.mark.long
@pytest.mark.parametrize("first", range(100_000, 104_000, 50))
def test_many(first: int) -> None:
    run_batch(first, 50, symbolic=first % 100 == 0)
