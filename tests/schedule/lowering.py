"""Lowering Graph functions in tests, and running what comes out in all the ways that must agree."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

import tessera.api  # noqa: F401  # operators of tracers
from tessera.dtypes import DType, dtype_of, float32
from tessera.graph import interp as graph_interp
from tessera.graph.transforms.evaluate import trace_function
from tessera.ir.core import Func, Value
from tessera.ir.intexpr import Dim, evaluate
from tessera.ir.parser import parse_func
from tessera.ir.types import TensorType
from tessera.ir.verify import verify
from tessera.ir.walk import walk
from tessera.schedule import interp, ops
from tessera.schedule.from_graph import Options, from_graph
from tessera.schedule.heuristics import choose
from tessera.schedule.machines import CpuModel
from tessera.schedule.plan import overwritten, plan
from tessera.schedule.rebuild import kernels
from tessera.schedule.spec import SCHEDULE
from tessera.schedule.types import BufType, PlaceKind
from tests.tolerance import assert_close

Array = NDArray[Any]

WIDE = CpuModel(512, 32)
NARROW = CpuModel(128, 16)


def typed(*shape: Dim, dtype: DType = float32) -> TensorType:
    """A tensor type."""
    return TensorType(tuple(shape), dtype)


def type_of(x: Array) -> TensorType:
    """The type of an array."""
    return TensorType(x.shape, dtype_of(x.dtype))


def traced(fn: Callable[..., Any], *types: TensorType) -> Func:
    """The Graph of a function."""

    def run(*args: Any) -> list[Any]:
        found = fn(*args)
        return list(found) if isinstance(found, (tuple, list)) else [found]

    func, captured = trace_function(run, list(types), "jit", "f")
    assert not captured
    return func


def lowered(fn: Callable[..., Any], *types: TensorType, options: Options | None = None) -> Func:
    """The verified program of a function."""
    func = from_graph(traced(fn, *types), options)
    verify(func, SCHEDULE)
    return func


def random_inputs(
    types: Sequence[TensorType], dims: Mapping[str, int], seed: int = 0
) -> list[Array]:
    """Arrays of the types: numbers around 1, small integers."""
    rng = np.random.default_rng(seed)
    found: list[Array] = []
    for t in types:
        shape = [int(evaluate(d, dims)) for d in t.shape]
        if t.dtype.is_complex:
            parts = rng.standard_normal((2, *shape))
            found.append((parts[0] + 1j * parts[1]).astype(t.dtype.np))
        elif t.dtype.is_float:
            found.append(rng.standard_normal(shape).astype(t.dtype.np))
        else:
            found.append(rng.integers(0, 2 if t.dtype.is_bool else 4, shape).astype(t.dtype.np))
    return found


def check(
    fn: Callable[..., Any],
    *types: TensorType,
    dims: Mapping[str, int] | None = None,
    inputs: Sequence[Array] | None = None,
    length: int = 16,
    factor: float = 4.0,
) -> Func:
    """Compares all forms of the program with the Graph; returns the program without tiles and
    places.

    The factor allows for reductions in another order and for functions of rounded values.
    """
    dims = dict(dims or {})
    arrays = list(inputs) if inputs is not None else random_inputs(types, dims)
    graph = traced(fn, *types)
    expected = graph_interp.run(graph, arrays, dims)
    assert all(dtype_of(x.dtype) is t.dtype for x, t in zip(arrays, types, strict=True))
    plain = from_graph(graph, Options(reshape_axes=False))
    func = from_graph(graph)
    verify(plain, SCHEDULE)
    verify(func, SCHEDULE)
    assert str(parse_func(str(func))) == str(func)
    for program in (plain, func):
        compare(interp.run(program, arrays, dims), expected, length, factor)
    for machine in (WIDE, NARROW):
        tiled = choose(func, machine)
        verify(tiled, SCHEDULE)
        compare(interp.run(tiled, arrays, dims), expected, length, factor)
    placed, size = plan(choose(func, WIDE))
    verify(placed, SCHEDULE)
    compare(Placed.run(placed, size, arrays, dims), expected, length, factor)
    return func


def compare(
    found: Sequence[Array], expected: Sequence[Array], length: int = 16, factor: float = 4.0
) -> None:
    """Compares the outputs of two runs."""
    for a, b in zip(found, expected, strict=True):
        assert_close(a, b, length=length, factor=factor)


class Placed(interp.Program):
    """Runs a program in the memory that the plan gave it: buffers that overlap spoil each other."""

    def __init__(
        self, func: Func, size: Dim, inputs: Sequence[Array], dims: Mapping[str, int]
    ) -> None:
        super().__init__(interp.bind_dims(func, inputs, dims))
        self.func = func
        self.arena = np.full(int(evaluate(size, self.dims)), interp.POISON, np.uint8)
        # Donated inputs are written to.
        self.given = [x.copy() for x in inputs]
        self.values.update(zip(func.args, self.given, strict=True))
        self.results = [
            self.poisoned(v) if on is None else self.taken(v, on)
            for v, on in zip(func.outputs, overwritten(func), strict=True)
        ]

    @classmethod
    def run(
        cls, func: Func, size: Dim, inputs: Sequence[Array], dims: Mapping[str, int]
    ) -> list[Array]:
        """The outputs."""
        machine = cls(func, size, inputs, dims)
        machine.block(func.body)
        for value, array in zip(func.outputs, machine.results, strict=True):
            assert np.shares_memory(machine.values[value], array) or not array.size
        return machine.results

    def poisoned(self, value: Value) -> Array:
        assert isinstance(value.type, BufType)
        return interp.fresh(value.type, self.dims)

    def taken(self, value: Value, on: Any) -> Array:
        assert isinstance(value.type, BufType)
        return self.given[on].reshape([int(evaluate(d, self.dims)) for d in value.type.shape])

    def memory(self, op: Any, k: int) -> Array:
        """The memory of a result."""
        place, value = op.places[k], op.results[k]
        if place.kind is PlaceKind.OUTPUT:
            # Or what lies there before the output is written, which may be smaller.
            assert isinstance(value.type, BufType)
            shape = [int(evaluate(d, self.dims)) for d in value.type.shape]
            whole = self.results[place.at].reshape(-1)
            assert value.type.dtype.np == whole.dtype
            return whole[: int(np.prod(shape))].reshape(shape)
        if place.kind is PlaceKind.INPUT:
            return self.taken(value, place.at)
        assert place.kind is PlaceKind.ARENA
        start = int(evaluate(place.at, self.dims))
        assert start % 64 == 0
        assert isinstance(value.type, BufType)
        shape = [int(evaluate(d, self.dims)) for d in value.type.shape]
        size = int(np.prod(shape)) * value.type.dtype.itemsize
        assert start + size <= len(self.arena)
        return self.arena[start : start + size].view(value.type.dtype.np).reshape(shape)

    def outputs(self, op: ops.Kernel) -> list[Array]:
        found = [self.memory(op, k) for k in range(len(op.results))]
        inputs = [self.values[v] for v in op.inputs]
        for value, array in zip(op.results, found, strict=True):
            if not any(np.shares_memory(array, x) for x in inputs):
                array[...] = self.poisoned(value)
        return found

    def op(self, op: Any) -> None:
        super().op(op)
        if isinstance(op, ops.HostCall):
            for k, value in enumerate(op.results):
                found = self.memory(op, k)
                assert not any(np.shares_memory(found, self.values[v]) for v in op.inputs)
                found[...] = self.values[value]
                self.values[value] = found
        if isinstance(op, ops.Cond):
            for k, value in enumerate(op.results):
                found = self.memory(op, k)
                assert np.shares_memory(found, self.values[value]) or not found.size

    def loop(self, op: ops.While) -> None:
        carried = [self.memory(op, k) for k in range(len(op.results))]
        found = [self.values[v] for v in op.init]
        while True:
            for target, source in zip(carried, [x.copy() for x in found], strict=True):
                target[...] = source
            self.values.update(zip(op.cond.args, carried, strict=True))
            (going,) = self.block(op.cond)
            if not going[()]:
                break
            self.values.update(zip(op.body.args, carried, strict=True))
            found = self.block(op.body)
        self.values.update(zip(op.results, carried, strict=True))


def counts(func: Func) -> tuple[int, int, int]:
    """Kernels, nests and stores of a program."""
    found = list(kernels(func.body))
    inner = [op for kernel in found for op in walk(kernel.body)]
    nests = sum(isinstance(op, ops.Nest) for op in inner)
    return len(found), nests, sum(isinstance(op, (ops.Store, ops.Scan)) for op in inner)


def labels(func: Func) -> list[str]:
    """The kernels' labels."""
    return [kernel.label for kernel in kernels(func.body)]


def nests_of(func: Func) -> list[ops.Nest]:
    """All nests in order."""
    return [op for k in kernels(func.body) for op in k.body.ops if isinstance(op, ops.Nest)]


def all_ops(func: Func, cls: type[Any]) -> list[Any]:
    """All ops of a class inside kernels."""
    return [op for k in kernels(func.body) for op in walk(k.body) if isinstance(op, cls)]
