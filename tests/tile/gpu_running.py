"""Running programs as they are lowered for a GPU, in all interpreters that must agree."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from tessera.dtypes import dtype_of, real_of
from tessera.graph import interp as graph_interp
from tessera.ir.core import Func, Module, Op
from tessera.ir.intexpr import evaluate
from tessera.ir.types import TensorType
from tessera.ir.verify import verify
from tessera.ir.walk import walk
from tessera.schedule import interp
from tessera.schedule.from_graph import lower
from tessera.schedule.heuristics import choose
from tessera.schedule.plan import plan
from tessera.schedule.spec import SCHEDULE
from tessera.schedule.split import split
from tessera.target.gpu import Gpu, gpu
from tessera.tile import interp as tile_interp
from tessera.tile.from_schedule import lower_program
from tessera.tile.spec import verify as verify_tile
from tessera.tile.types import TileType
from tests.schedule.lowering import Array, Placed, compare, random_inputs, traced

SM90 = gpu("sm_90a")


def program(func: Func, machine: Gpu = SM90) -> tuple[Func, Any]:
    """A Schedule program for a GPU, with tiles and places, and the size of its arena."""
    verify(func, SCHEDULE)
    func = split(func, machine)
    verify(func, SCHEDULE)
    tiled = choose(func, machine)
    verify(tiled, SCHEDULE)
    placed, size = plan(tiled)
    verify(placed, SCHEDULE)
    return placed, size


def as_parts(array: Array) -> Array:
    """A complex array as what is in memory: real and imaginary parts in turn."""
    dtype = dtype_of(array.dtype)
    return array.reshape(-1).view(real_of(dtype).np) if dtype.is_complex else array


def is_power(n: int) -> bool:
    """Whether a number is a power of two."""
    return n & (n - 1) == 0


def tile_shapes(module: Module) -> set[tuple[int, ...]]:
    """The shapes of all tiles of the kernels."""
    return {
        value.type.shape
        for func in module.funcs.values()
        for op in walk(func.body)
        for value in op.results
        if isinstance(value.type, TileType)
    }


def ops_of(module: Module, cls: type[Op]) -> list[Any]:
    """All ops of a class."""
    found = [op for func in module.funcs.values() for op in walk(func.body)]
    return [op for op in found if isinstance(op, cls)]


def check_program(
    func: Func,
    arrays: Sequence[Array],
    expected: Sequence[Array],
    dims: Mapping[str, int] | None = None,
    length: int = 16,
    factor: float = 4.0,
    machine: Gpu = SM90,
) -> Module:
    """Runs a Schedule program before and after its places are chosen, and its Tile module."""
    placed, size = program(func, machine)
    compare(interp.run(placed, arrays, dims), expected, length, factor)
    dims = interp.bind_dims(placed, arrays, dims)
    compare(Placed.run(placed, size, arrays, dims), expected, length, factor)
    module = lower_program(placed)
    verify_tile(module)
    assert all(is_power(n) for shape in tile_shapes(module) for n in shape)
    outputs = [np.empty(np.shape(x), np.asarray(x).dtype) for x in expected]
    arena = int(evaluate(size, dims))
    parts = [as_parts(x) for x in arrays], [as_parts(x) for x in outputs]
    tile_interp.run_module(module, *parts, dims, arena)
    compare(outputs, expected, length, factor)
    return module


def check_gpu(
    fn: Callable[..., Any],
    *types: TensorType,
    dims: Mapping[str, int] | None = None,
    inputs: Sequence[Array] | None = None,
    length: int = 16,
    factor: float = 4.0,
    machine: Gpu = SM90,
) -> Module:
    """Compares all forms of a function, lowered for a GPU, with its Graph."""
    arrays = list(inputs) if inputs is not None else random_inputs(types, dims or {})
    graph = traced(fn, *types)
    expected = graph_interp.run(graph, arrays, dict(dims or {}))
    func = lower(graph, machine=machine).func
    return check_program(func, arrays, expected, dims, length, factor, machine)
