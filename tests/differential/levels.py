"""One Graph through all levels: the interpreters and compiled code agree."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from tessera.compile import Lowered
from tessera.dtypes import DType, float32
from tessera.graph import interp as graph_interp
from tessera.graph.trace import Trace, active
from tessera.ir.core import Func
from tessera.ir.intexpr import Dim, evaluate
from tessera.ir.types import TensorType
from tessera.runtime.memory import pointer
from tessera.schedule.plan import overwritten
from tessera.target import interp as target_interp
from tessera.target.from_tile.simd import lower_module
from tessera.target.machine import Machine, machine, missing_on_host
from tessera.tile import interp as tile_interp
from tests.halves import Current
from tests.schedule.lowering import Placed
from tests.tolerance import assert_close

FACTOR = 20.0
"""Programs chain several operations, each with its own rounding; complex products cancel."""

LENGTH = 100
"""The longest accumulation is of a few thousand values, of random sign."""

Shape = tuple[Dim, ...]


def graph_of(fn: Callable[..., Any], shapes: Sequence[Shape], dtype: DType = float32) -> Func:
    """The Graph of a function of arrays of these shapes."""
    with active(Trace("jit", "program", staging=True)) as trace:
        found = fn(*[trace.input(TensorType(s, dtype)) for s in shapes])
        parts = found if isinstance(found, tuple) else (found,)
        outputs = [v for part in parts for v in (part if isinstance(part, tuple) else (part,))]
        graph, captured = trace.finish(outputs, "program")
    assert not captured
    return graph


def values(shapes: Sequence[tuple[int, ...]], dtype: DType = float32) -> list[np.ndarray]:
    """Arrays for it."""
    rng = np.random.default_rng(5)
    return [np.asarray(rng.normal(size=s) * 3).astype(dtype.np) for s in shapes]


def compare(found: list[np.ndarray], expected: list[np.ndarray], where: str) -> None:
    assert len(found) == len(expected)
    for k, (a, b) in enumerate(zip(found, expected, strict=True)):
        try:
            assert_close(a, b, length=LENGTH, factor=FACTOR)
        except AssertionError as err:
            raise AssertionError(f"{where}, output {k}: {err}") from None


def with_pairs() -> Machine:
    """A Zen 4 as far as products go: its pairs of bfloat16 are worth it. Any CPU that has them runs
    its code."""
    most = machine("x86-64-v4-amx")
    flags = [flag for flag in most.llvm_features.split(",") if "amx" not in flag]
    features = frozenset([feature for feature in most.features if "amx" not in feature.value])
    return replace(
        most, llvm_cpu="znver4", llvm_features=",".join([*flags, "-sse4a"]), features=features
    )


def as_memory(array: np.ndarray) -> np.ndarray:
    """The array as Tile and Target programs see it: complex numbers are pairs of reals."""
    if array.dtype.kind != "c":
        return array
    real = np.float32 if array.dtype == np.complex64 else np.float64
    return np.atleast_1d(np.ascontiguousarray(array)).view(real)


def check_levels(
    graph: Func,
    inputs: Sequence[np.ndarray],
    dims: Mapping[str, int] | None = None,
    machine: Machine | None = None,
    legalized_only: bool = True,
    known: set[tuple[str, ...]] | None = None,
) -> Lowered:
    """Runs a Graph at every level, and compares with the interpreter of its ops; compiled code is
    run where this machine can. What no check of memory changes does not run again with them, nor in
    interpreters for cases whose memory is checked (`tests.halves`).

    Args:
        graph: the program.
        inputs: its arguments.
        dims: its symbolic dims.
        machine: what it is lowered for; the host by default.
        legalized_only: whether Target programs are interpreted in their last form only.
        known: programs that were interpreted on these inputs, in all of their forms: an equal one
            for another machine is only run, and others are added.
    """
    inputs, dims = list(inputs), dict(dims or {})
    expected = graph_interp.run(graph, inputs, dims)
    lowered = Lowered(graph, machine)
    runs = not missing_on_host(lowered.cpu)
    if (Current.interpreted or not runs) and _is_new(lowered, known):
        _interpret(lowered, inputs, dims, expected, legalized_only)
    if not runs:
        return lowered
    values = [dims[name] for name in lowered.schedule.dims]
    native = lowered.executable().run([pointer(x) for x in inputs], values)
    compare(native, expected, "native")
    return lowered


def _is_new(lowered: Lowered, known: set[tuple[str, ...]] | None) -> bool:
    if known is None:
        return True
    forms = tuple(map(str, (lowered.graph, lowered.schedule, lowered.tile, lowered.target)))
    if forms in known:
        return False
    known.add(forms)
    return True


def _interpret(
    lowered: Lowered,
    inputs: list[np.ndarray],
    dims: dict[str, int],
    expected: list[np.ndarray],
    legalized_only: bool,
) -> None:
    compare(graph_interp.run(lowered.graph, inputs, dims), expected, "graph passes")
    # In its memory: copies of a buffer to where it lies are gone.
    placed = Placed.run(lowered.schedule, lowered.arena, inputs, dims)
    compare(placed, expected, "schedule")
    arena = int(evaluate(lowered.arena, dims))
    outputs = [np.empty(x.shape, x.dtype) for x in expected]
    given, wanted = [as_memory(x) for x in inputs], [as_memory(x) for x in outputs]
    tile_interp.run_module(lowered.tile, given, wanted, dims, arena)
    compare(outputs, expected, "tile")
    if not legalized_only:
        raw = lower_module(lowered.tile, lowered.cpu)
        target_interp.run_module(raw, given, wanted, dims, arena)
        compare(outputs, expected, "target")
    target_interp.run_module(lowered.target, given, wanted, dims, arena)
    compare(outputs, expected, "target, legalized")


def check_donated(
    graph: Func,
    inputs: Sequence[np.ndarray],
    dims: Mapping[str, int] | None = None,
    machine: Machine | None = None,
) -> int:
    """Runs a Graph that may write to all its inputs, in every memory, and compares with one that
    may not; gives the number of outputs that took the memory of inputs."""
    inputs, dims = list(inputs), dict(dims or {})
    expected = graph_interp.run(graph, inputs, dims)
    lowered = Lowered(graph, machine, donated=range(len(inputs)))
    taken = overwritten(lowered.schedule)
    written = [on for on in taken if on is not None]
    if not written:
        return 0
    if Current.interpreted:
        placed = Placed.run(lowered.schedule, lowered.arena, inputs, dims)
        compare(placed, expected, "schedule, donated")
    arena = int(evaluate(lowered.arena, dims))
    for name in ("tile", "target") if Current.interpreted else ():
        given = [as_memory(x.copy()) for x in inputs]
        outputs = [np.empty(x.shape, x.dtype) for x in expected]
        wanted = [as_memory(x) for x in outputs]
        if name == "tile":
            tile_interp.run_module(lowered.tile, given, wanted, dims, arena, written)
        else:
            target_interp.run_module(lowered.target, given, wanted, dims, arena, written)
        found = [
            x if on is None else given[on].view(x.dtype).reshape(x.shape)
            for x, on in zip(outputs, taken, strict=True)
        ]
        compare(found, expected, f"{name}, donated")
    executable = lowered.executable()
    kept = [x.copy() for x in inputs]
    compare(executable.run_on(inputs, ()), expected, "native, copied")
    for x, before in zip(inputs, kept, strict=True):
        np.testing.assert_array_equal(x, before)
    native = executable.run_on(kept, range(len(kept)))
    compare(native, expected, "native, donated")
    for x, on in zip(native, taken, strict=True):
        assert on is None or pointer(x) == pointer(kept[on])
    return len(written)
