"""Random programs agree in the four interpreters and in compiled code.

CI runs a few hundred programs with static sizes and some with symbolic ones; `--long` runs many
more.
"""

from __future__ import annotations

import numpy as np
import pytest

from tessera.schedule import heuristics, plan, split, streaming, together
from tessera.schedule.rebuild import kernels
from tessera.schedule.types import PlaceKind
from tests.differential.levels import check_donated, check_levels
from tests.differential.programs import Program, random_program

BATCH = 10
STATIC = 320
SYMBOLIC = 80
SHARED = 30
DONATED = 80


def check(program: Program, seed: int, symbolic: bool) -> None:
    graph = program.graph(symbolic)
    inputs = program.arrays(np.random.default_rng(seed))
    dims = {f"n{size}": size for x in program.inputs for size in x.shape} if symbolic else {}
    check_levels(graph, inputs, {k: v for k, v in dims.items() if k in graph.dims})


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


@pytest.mark.parametrize("first", range(50_000, 50_000 + DONATED, DONATED // 2))
def test_lent(first: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """As if small outputs were large: others lie there before they are written."""
    monkeypatch.setattr(plan, "LENT", 1)
    lent = 0
    for seed in range(first, first + DONATED // 2):
        program = random_program(seed, False)
        graph = program.graph(False)
        inputs = program.arrays(np.random.default_rng(seed))
        try:
            lowered = check_levels(graph, inputs)
            check_donated(graph, inputs)
        except Exception as err:
            err.add_note(f"seed {seed}: {', '.join(program.names)}")
            raise
        outputs = set(lowered.schedule.outputs)
        for kernel in kernels(lowered.schedule.body):
            for value, place in zip(kernel.results, kernel.places, strict=True):
                lent += place.kind is PlaceKind.OUTPUT and value not in outputs
    assert lent


@pytest.mark.parametrize("donated", [False, True])
@pytest.mark.parametrize("first", range(40_000, 40_000 + SHARED, BATCH))
def test_together(first: int, donated: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """As if kernels of a few elements were worth a job of the threads that they share."""
    monkeypatch.setattr(together, "WORK", 16)
    monkeypatch.setattr(together, "GRAIN", 16)
    monkeypatch.setattr(together, "LARGE", 1 << 40)
    monkeypatch.setattr(heuristics, "MIN_CHUNK", 4)
    monkeypatch.setattr(heuristics, "WORK", 16)
    jobs = 0
    for seed in range(first, first + BATCH):
        program = random_program(seed, False)
        graph = program.graph(False)
        inputs = program.arrays(np.random.default_rng(seed))
        try:
            if donated:
                check_donated(graph, inputs)
            else:
                lowered = check_levels(graph, inputs)
                jobs += any(kernel.job for kernel in kernels(lowered.schedule.body))
        except Exception as err:
            err.add_note(f"seed {seed}: {', '.join(program.names)}")
            raise
    assert jobs or donated


# Of a few kinds of step, so that results often have the type of an argument.
@pytest.mark.parametrize("first", range(30_000, 30_000 + DONATED, BATCH))
def test_donated(first: int) -> None:
    taken = 0
    for seed in range(first, first + BATCH):
        symbolic = seed % 4 == 0
        program = random_program(seed, symbolic)
        graph = program.graph(symbolic)
        inputs = program.arrays(np.random.default_rng(seed))
        dims = {f"n{size}": size for x in program.inputs for size in x.shape} if symbolic else {}
        try:
            known = {k: v for k, v in dims.items() if k in graph.dims}
            taken += check_donated(graph, inputs, known)
        except Exception as err:
            err.add_note(f"seed {seed}, symbolic={symbolic}: {', '.join(program.names)}")
            raise
    assert taken


@pytest.mark.long
@pytest.mark.parametrize("first", range(100_000, 104_000, 50))
def test_many(first: int) -> None:
    run_batch(first, 50, symbolic=first % 100 == 0)


@pytest.mark.parametrize("symbolic", [False, True])
@pytest.mark.parametrize("first", range(20_000, 20_000 + SHARED, BATCH))
def test_shared(first: int, symbolic: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """As if the small arrays were large: many programs, which threads share, reductions in parts,
    and stores past the caches."""
    monkeypatch.setattr(heuristics, "WORK", 16)
    monkeypatch.setattr(heuristics, "GRAIN", 32)
    monkeypatch.setattr(heuristics, "MIN_CHUNK", 4)
    monkeypatch.setattr(streaming, "STREAM_BYTES", 64)
    monkeypatch.setattr(split, "GRAIN", 16)
    run_batch(first, BATCH, symbolic)
