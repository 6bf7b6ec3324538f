"""Random programs agree in the four interpreters and in compiled code.

CI runs a few hundred programs with static sizes and some with symbolic ones; `--long` runs many
more.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tessera as ts
from tessera.dtypes import bool_, float32, int32
from tessera.graph.transforms.evaluate import trace_function
from tessera.ir.core import Func
from tessera.ir.types import TensorType
from tessera.schedule import grains, heuristics, plan, split, streaming, together
from tessera.schedule.cost import tensor
from tessera.schedule.rebuild import kernels
from tessera.schedule.types import PlaceKind
from tests.differential import programs
from tests.differential.levels import check_donated, check_levels
from tests.differential.programs import Program, run_programs

BATCH = 10
STATIC = 200
SYMBOLIC = 60
SHARED = 30
DONATED = 80
GRADIENTS = 200


def check(graph: Func, inputs: list[np.ndarray], dims: dict[str, int], seed: int) -> None:
    check_levels(graph, inputs, dims, legalized_only=False)


@pytest.mark.parametrize("first", range(0, STATIC, BATCH))
def test_static(first: int) -> None:
    run_programs(check, range(first, first + BATCH))


@pytest.mark.parametrize("first", range(10_000, 10_000 + SYMBOLIC, BATCH))
def test_symbolic(first: int) -> None:
    run_programs(check, range(first, first + BATCH), symbolic=True)


@pytest.mark.parametrize("first", range(50_000, 50_000 + DONATED, DONATED // 2))
def test_lent(first: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """As if small outputs were large: others lie there before they are written. Many are of loops,
    which begin where their results are, and some of whose results nobody reads."""
    monkeypatch.setattr(plan, "LENT", 1)
    monkeypatch.setattr(plan, "LARGE", 1)
    monkeypatch.setattr(programs, "RULES", (*programs.RULES, *[programs.loop_step] * 8))

    def count(graph: Func, inputs: list[np.ndarray], dims: dict[str, int], seed: int) -> int:
        lowered = check_levels(graph, inputs)
        check_donated(graph, inputs)
        outputs, lent = set(lowered.schedule.outputs), 0
        for kernel in kernels(lowered.schedule.body):
            for value, place in zip(kernel.results, kernel.places, strict=True):
                lent += place.kind is PlaceKind.OUTPUT and value not in outputs
        return lent

    assert run_programs(count, range(first, first + DONATED // 2))


@pytest.mark.parametrize("donated", [False, True])
@pytest.mark.parametrize("first", range(40_000, 40_000 + SHARED, BATCH))
def test_together(first: int, donated: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """As if kernels of a few elements were worth a job of the threads that they share."""
    monkeypatch.setattr(together, "WORK", 16)
    monkeypatch.setattr(together, "GRAIN", 16)
    monkeypatch.setattr(together, "LARGE", 1 << 40)
    monkeypatch.setattr(heuristics, "MIN_CHUNK", 4)
    monkeypatch.setattr(heuristics, "WORK", 16)

    def count(graph: Func, inputs: list[np.ndarray], dims: dict[str, int], seed: int) -> int:
        if donated:
            check_donated(graph, inputs)
            return 1
        lowered = check_levels(graph, inputs)
        return any(kernel.job for kernel in kernels(lowered.schedule.body))

    assert run_programs(count, range(first, first + BATCH))


# Of a few kinds of step, so that results often have the type of an argument.
@pytest.mark.parametrize("first", range(30_000, 30_000 + DONATED, BATCH))
def test_donated(first: int) -> None:
    def count(graph: Func, inputs: list[np.ndarray], dims: dict[str, int], seed: int) -> int:
        return check_donated(graph, inputs, dims)

    seeds = range(first, first + BATCH)
    taken = run_programs(count, [seed for seed in seeds if seed % 4])
    taken += run_programs(count, [seed for seed in seeds if seed % 4 == 0], symbolic=True)
    assert taken


@pytest.mark.long
@pytest.mark.parametrize("first", range(100_000, 104_000, 50))
def test_many(first: int) -> None:
    run_programs(check, range(first, first + 50), symbolic=first % 100 == 0)


@pytest.mark.parametrize("symbolic", [False, True])
@pytest.mark.parametrize("first", range(20_000, 20_000 + SHARED, BATCH))
def test_shared(first: int, symbolic: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """As if the small arrays were large: many programs, which threads share, reductions in parts,
    and stores past the caches."""
    monkeypatch.setattr(heuristics, "WORK", 16)
    monkeypatch.setattr(grains, "GRAIN", 32)
    monkeypatch.setattr(heuristics, "MIN_CHUNK", 4)
    monkeypatch.setattr(streaming, "STREAM_BYTES", 64)
    monkeypatch.setattr(split, "GRAIN", 16)
    run_programs(check, range(first, first + BATCH), symbolic)


def gradient(program: Program) -> Func | None:
    """The Graph of the gradients of all that a program computes in floating point, for what it
    takes; None where neither is any, or a loop ends when it likes."""
    types = [TensorType(x.shape, x.dtype) for x in program.inputs]
    places = tuple([k for k, type in enumerate(types) if type.dtype is float32])

    def loss(*inputs: Any) -> Any:
        outputs = program.run(inputs)
        found = [x for x in outputs if x.dtype is float32]
        return sum([ts.sum(ts.sin(x * (0.3 + 0.1 * k))) for k, x in enumerate(found)])

    found = [tensor(x).dtype for x in program.graph().outputs]
    if not places or float32 not in found or "while" in program.names:
        return None
    graph, _ = trace_function(
        lambda *inputs: list(ts.grad(loss, argnums=places)(*inputs)), types, "jit", "gradient"
    )
    return graph


# Of what is rounded alike everywhere: where numbers are equal, gradients of extremes jump.
@pytest.mark.parametrize("first", range(60_000, 60_000 + GRADIENTS, 2 * BATCH))
def test_gradients(first: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(programs, "FLOATS", (float32,))
    left = [rule for rule in programs.RULES if rule is not programs.loop_step]
    monkeypatch.setattr(programs, "RULES", tuple(left))
    monkeypatch.setattr(programs, "DTYPES", (float32, float32, int32, bool_))

    def count(graph: Func, inputs: list[np.ndarray], dims: dict[str, int], seed: int) -> int:
        check_levels(graph, inputs, dims)
        return 1

    assert run_programs(count, range(first, first + 2 * BATCH), derive=gradient) > BATCH // 2
