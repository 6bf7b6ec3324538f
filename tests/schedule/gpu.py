"""Lowering for GPUs in tests: the interpreters of all layers must agree, as far as Tile IR."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tessera.compile import GRAPH_PASSES
from tessera.graph import interp as graph_interp
from tessera.ir.core import Func, Module
from tessera.ir.intexpr import evaluate
from tessera.ir.passes import PassContext, run_pipeline
from tessera.ir.types import TensorType
from tessera.ir.verify import verify
from tessera.ir.walk import walk
from tessera.schedule import ops
from tessera.schedule.from_graph import lower
from tessera.schedule.heuristics import choose
from tessera.schedule.plan import plan
from tessera.schedule.rebuild import kernels
from tessera.schedule.spec import SCHEDULE
from tessera.target.gpu import Gpu, gpu
from tessera.tile import interp as tile_interp
from tessera.tile import ops as t
from tessera.tile.from_schedule import lower_program
from tessera.tile.spec import verify as verify_tile
from tessera.tile.types import TileType
from tests.schedule.lowering import Placed, random_inputs, traced
from tests.tolerance import assert_close

Array = NDArray[Any]

MACHINE = gpu("sm_90a")


@dataclass(frozen=True)
class Lowered:
    """A program for a GPU.

    Attributes:
        graph: after its passes.
        schedule: with tiles and places.
        arena: bytes.
        tile: kernels and the program that launches them.
    """

    graph: Func
    schedule: Func
    arena: Any
    tile: Module

    @property
    def launches(self) -> int:
        """Kernels that the program launches."""
        return sum(isinstance(op, t.Launch) for op in walk(self.tile.entry.body))

    @property
    def nests(self) -> list[ops.Nest]:
        """All nests in order."""
        found = [op for k in kernels(self.schedule.body) for op in k.body.ops]
        return [op for op in found if isinstance(op, ops.Nest)]

    def tile_ops(self, cls: type[Any]) -> list[Any]:
        """Ops of a class in the kernels."""
        found = [walk(f.body) for f in self.tile.funcs.values() if f.name != "main"]
        return [op for code in found for op in code if isinstance(op, cls)]


def lower_graph(func: Func, machine: Gpu = MACHINE) -> Lowered:
    """Lowers a Graph and verifies each stage."""
    graph = run_pipeline(func, GRAPH_PASSES, PassContext(True))
    program = lower(graph, machine=machine).func
    verify(program, SCHEDULE)
    placed, size = plan(choose(program, machine))
    verify(placed, SCHEDULE)
    module = lower_program(placed)
    verify_tile(module)
    for kernel in module.funcs.values():
        for op in walk(kernel.body):
            for value in op.results:
                if isinstance(value.type, TileType):
                    assert all(n & (n - 1) == 0 for n in value.type.shape), str(op)
    return Lowered(graph, placed, size, module)


def lowered(fn: Callable[..., Any], *types: TensorType) -> Lowered:
    """Lowers a function."""
    return lower_graph(traced(fn, *types))


def check(
    fn: Callable[..., Any],
    *types: TensorType,
    dims: Mapping[str, int] | None = None,
    inputs: Sequence[Array] | None = None,
    length: int = 64,
    factor: float = 8.0,
    machine: Gpu = MACHINE,
) -> Lowered:
    """Compares the interpreters on random inputs."""
    dims = dict(dims or {})
    arrays = list(inputs) if inputs is not None else random_inputs(types, dims)
    func = traced(fn, *types)
    result = lower_graph(func, machine)
    expected = graph_interp.run(func, arrays, dims)
    for found in runs(result, arrays, expected, dims):
        for a, b in zip(found, expected, strict=True):
            assert_close(a, b, length=length, factor=factor)
    return result


def runs(
    result: Lowered, arrays: Sequence[Array], expected: Sequence[Array], dims: Mapping[str, int]
) -> list[list[Array]]:
    """What the Schedule and the Tile interpreter compute."""
    # In its memory: copies of a buffer to where it lies are gone.
    schedule = Placed.run(result.schedule, result.arena, arrays, dims)
    outputs = [np.empty(x.shape, x.dtype) for x in expected]
    given, wanted = [as_memory(x) for x in arrays], [as_memory(x) for x in outputs]
    arena = int(evaluate(result.arena, dims))
    tile_interp.run_module(result.tile, given, wanted, dims, arena)
    return [schedule, outputs]


def as_memory(array: Array) -> Array:
    """The array as Tile programs see it: complex numbers are pairs of reals."""
    if array.dtype.kind != "c":
        return array
    real = np.float32 if array.dtype == np.complex64 else np.float64
    return np.atleast_1d(np.ascontiguousarray(array)).view(real)
