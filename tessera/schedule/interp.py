"""The NumPy interpreter of Schedule programs: the definition of the ops.

A nest is evaluated for all of its points at once: a scalar of the nest is an array that broadcasts
to the extents of the axes. Axes of reductions are further dims in front. Axes that are `ordered`
are stepped through one point at a time. Buffers begin poisoned, so that an element that nobody
wrote shows; a load or store outside its buffer is an error.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from tessera.dtypes import DType, dtype_of
from tessera.errors import VerifyError
from tessera.graph.ops.generate import philox
from tessera.graph.ops.sort import sort_order
from tessera.ir.convert import bitcast_array, cast_array
from tessera.ir.core import Block, Func, Op, Value
from tessera.ir.intexpr import Dim, Sym, evaluate
from tessera.ir.scalar import SCALARS, ScalarFn
from tessera.schedule import (
    copy_ops,
    loop_ops,
    ops,
    panel_ops,
    part_ops,
    prefetch_ops,
    sentinel_ops,
    sort_ops,
    window_ops,
)
from tessera.schedule.block_ops import Each
from tessera.schedule.sorting import run_sort
from tessera.schedule.types import Axis, BufType

Array = np.ndarray[Any, Any]

POISON = 0xA5
"""Every byte of a fresh buffer that holds no floats; those hold NaN."""

UFUNCS: Mapping[str, np.ufunc] = {
    "add": np.add,
    "mul": np.multiply,
    "min": np.minimum,
    "max": np.maximum,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
}


def run(func: Func, inputs: Sequence[Array], dims: Mapping[str, int] | None = None) -> list[Array]:
    """Runs a program.

    Args:
        func: the program.
        inputs: one array per argument, of any layout.
        dims: values of symbolic dims; those that are a dim of an input are found by themselves.

    Returns:
        The outputs.

    Raises:
        VerifyError: an access lies outside its buffer.
    """
    machine = Program(bind_dims(func, inputs, dims))
    machine.values.update(zip(func.args, map(np.asarray, inputs), strict=True))
    machine.block(func.body)
    return [machine.values[v] for v in func.outputs]


def bind_dims(
    func: Func, inputs: Sequence[Array], dims: Mapping[str, int] | None = None
) -> dict[str, int]:
    """The values of symbolic dims: given ones, and those that are a dim of an input."""
    env = dict(dims or {})
    for arg, array in zip(func.args, inputs, strict=True):
        assert isinstance(arg.type, BufType)
        for dim, size in zip(arg.type.shape, array.shape, strict=True):
            if isinstance(dim, Sym):
                env.setdefault(dim.name, size)
    return env


def fresh(type: BufType, dims: Mapping[str, int]) -> Array:
    """A poisoned buffer."""
    shape = [int(evaluate(d, dims)) for d in type.shape]
    if type.dtype.is_inexact:
        return np.full(shape, np.nan).astype(type.dtype.np)
    buffer = np.empty(shape, type.dtype.np)
    if type.dtype.is_bool:
        buffer[...] = True
    else:
        buffer[...] = np.frombuffer(bytes([POISON]) * buffer.itemsize, buffer.dtype)[0]
    return buffer


class Program:
    """A program that runs.

    Attributes:
        dims: values of symbolic dims.
        values: the array of each buffer that has been computed.
    """

    def __init__(self, dims: dict[str, int]) -> None:
        self.dims = dims
        self.values: dict[Value, Array] = {}

    def block(self, block: Block) -> list[Array]:
        """Runs the ops of a block; returns its outputs."""
        for op in block.ops:
            self.op(op)
        return [self.values[v] for v in block.outputs]

    def outputs(self, op: ops.Kernel) -> list[Array]:
        """Memory for what a kernel writes."""
        return [fresh(t, self.dims) for t in op.types]

    def op(self, op: Op) -> None:
        """Runs one op."""
        match op:
            case ops.Kernel():
                outputs = self.outputs(op)
                inner = [self.values[v] for v in op.inputs] + outputs
                memory = dict(zip(op.body.args, inner, strict=True))
                for part in op.body.ops:
                    self.part(part, memory)
                self.values.update(zip(op.results, outputs, strict=True))
            case ops.While():
                self.loop(op)
            case ops.Cond():
                pred = bool(self.values[op.pred][()])
                found = self.block(op.then if pred else op.otherwise)
                self.values.update(zip(op.results, found, strict=True))
            case ops.HostCall():
                outputs = [fresh(t, self.dims) for t in op.types]
                op.function.fill([self.values[v] for v in op.inputs], outputs)
                self.values.update(zip(op.results, outputs, strict=True))
            case copy_ops.Offload() | copy_ops.Fetch():
                self.values[op.result] = self.values[op.x].copy()
            case copy_ops.Wait():
                pass
            case _:
                raise VerifyError(f"{op.name} cannot stand in a program", loc=op.loc)

    def loop(self, op: ops.While) -> None:
        """Runs a loop to its end."""
        carried = [self.values[v] for v in op.init]
        while True:
            self.values.update(zip(op.cond.args, carried, strict=True))
            (going,) = self.block(op.cond)
            if not going[()]:
                break
            self.values.update(zip(op.body.args, carried, strict=True))
            carried = self.block(op.body)
        self.values.update(zip(op.results, carried, strict=True))

    def part(self, op: Op, memory: dict[Value, Array]) -> None:
        """Runs one nest or sort of a kernel."""
        if isinstance(op, ops.Nest):
            Points(op, memory, self.dims).run()
        elif isinstance(op, Each):
            self.each(op, memory)
        elif isinstance(op, ops.Sort):
            keys = [memory[v] for v in op.inputs[: op.num_keys]]
            order = sort_order(keys, op.axis, op.descending)
            for k, target in op.moved():
                x = order if k < 0 else np.take_along_axis(memory[op.inputs[k]], order, op.axis)
                wanted = slice(memory[target].shape[op.axis])
                memory[target][...] = np.moveaxis(np.moveaxis(x, op.axis, 0)[wanted], 0, op.axis)
        elif isinstance(op, sort_ops.SORTS):
            run_sort(op, memory)
        else:
            raise VerifyError(f"{op.name} cannot stand in a kernel", loc=op.loc)

    def each(self, op: Each, memory: dict[Value, Array]) -> None:
        """Runs nests block by block."""
        extents = [int(evaluate(axis.extent, self.dims)) for axis in op.axes]
        inner = math.prod(extents[len(op.free) :])
        count = -(-math.prod(extents) // inner // int(evaluate(op.part.extent, self.dims)))
        for k, point in enumerate(itertools.product(*map(range, extents))):
            places = {axis.name: i for axis, i in zip(op.axes, point, strict=True)}
            dims = {**self.dims, **places, op.part.name: k // inner // count}
            if op.steps is not None and point[-1] >= int(evaluate(op.steps, dims)):
                continue
            for nest in op.body.ops:
                assert isinstance(nest, ops.Nest)
                Points(nest, memory, dims).run()


class Points:
    """All points of one nest."""

    def __init__(
        self, nest: ops.Nest, memory: Mapping[Value, Array], dims: Mapping[str, int]
    ) -> None:
        self.nest = nest
        self.memory = memory
        self.dims = dims
        self.extents = [int(evaluate(axis.extent, dims)) for axis in nest.axes]
        self.values: dict[Value, Array] = {}
        # Where the loops around go on.
        self.active: Array = np.asarray(True)

    def run(self) -> None:
        """Evaluates the body."""
        rank = len(self.extents)
        names = [axis.name for axis in self.nest.axes]
        ordered = [names.index(name) for name in self.nest.ordered]
        for point in itertools.product(*[range(self.extents[k]) for k in sorted(ordered)]):
            steps = dict(zip(sorted(ordered), point, strict=True))
            env: dict[str, Any] = dict(self.dims)
            grid: list[int] = []
            for k, name in enumerate(names):
                line = np.array([steps[k]]) if k in steps else np.arange(self.extents[k])
                env[name] = line.reshape([-1 if d == k else 1 for d in range(rank)])
                grid.append(len(line))
            self.block(self.nest.body, env, tuple(grid))

    def block(self, block: Block, env: Mapping[str, Any], grid: tuple[int, ...]) -> list[Array]:
        """Evaluates scalar code; `grid` is the shape that every scalar broadcasts to."""
        for op in block.ops:
            rule = RULES.get(type(op))
            if rule is None:
                raise VerifyError(f"{op.name} cannot stand in a nest", loc=op.loc)
            found = rule(self, op, env, grid)
            if found is not None:
                self.values[op.result] = found
        return [self.values[v] for v in block.outputs]

    def exprs(self, exprs: Sequence[Dim], op: Any, env: Mapping[str, Any]) -> list[Array]:
        """Index expressions with the op's dynamic operands."""
        names = {f"${k}": self.values[v] for k, v in enumerate(op.dyn)}
        scope = {**env, **names}
        return [np.asarray(evaluate(e, scope), np.int64) for e in exprs]

    def mask(self, op: Any, env: Mapping[str, Any]) -> Array:
        """Where all conditions hold."""
        found = np.asarray(True)
        for value in self.exprs(op.where, op, env):
            found = found & (value >= 0)
        return found

    def address(
        self, op: Any, buffer: Array, env: Mapping[str, Any], grid: tuple[int, ...]
    ) -> tuple[tuple[Array, ...], Array]:
        """Index arrays brought into range, and the mask; in-range is checked wherever the mask
        holds."""
        mask = self.mask(op, env)
        index: list[Array] = []
        for d, value in enumerate(self.exprs(op.index, op, env)):
            size = buffer.shape[d]
            outside = mask & ((value < 0) | (value >= size))
            if 0 not in grid and outside.any():
                raise VerifyError(
                    f"{op.name}: dim {d} of a buffer of shape {list(buffer.shape)} is addressed"
                    f" at {op.index[d]}, outside its range",
                    loc=op.loc,
                )
            index.append(np.clip(value, 0, max(size - 1, 0)))
        return tuple(index), mask

    def region(
        self, block: Block, axes: Sequence[Axis], env: Mapping[str, Any], grid: tuple[int, ...]
    ) -> list[Array]:
        """The outputs of a region: over its axes (in front, in full), and those of the nest that
        they depend on."""
        extents = tuple([int(evaluate(axis.extent, self.dims)) for axis in axes])
        inner = dict(env)
        rank = len(extents) + len(grid)
        for k, axis in enumerate(axes):
            line = np.arange(extents[k])
            inner[axis.name] = line.reshape([-1 if d == k else 1 for d in range(rank)])
        own = (*extents, *[1] * len(grid))
        found = self.block(block, inner, (*extents, *grid))
        return [np.broadcast_to(v, np.broadcast_shapes(v.shape, own)) for v in found]


def _const(points: Points, op: Any, env: Mapping[str, Any], grid: tuple[int, ...]) -> Array:
    return np.asarray(op.value).astype(op.dtype.np)


def _index(points: Points, op: Any, env: Mapping[str, Any], grid: tuple[int, ...]) -> Array:
    return points.exprs([op.expr], op, env)[0]


def _apply(name: str, *values: Array) -> Array:
    return SCALARS[name].evaluate(*values)


def _random(points: Points, op: Any, env: Mapping[str, Any], grid: tuple[int, ...]) -> Array:
    place = points.exprs([op.expr], op, env)[0].astype(np.uint64)
    counter = (place >> np.uint64(2)).astype(np.uint64)
    low, high = counter.astype(np.uint32), (counter >> np.uint64(32)).astype(np.uint32)
    key = [points.values[word] for word in op.key]
    upper0, upper1 = key[2:] or [np.asarray(0, np.uint32)] * 2
    words = philox(
        (low, high, upper0, upper1),
        (key[0], key[1]),
        _apply,
        lambda value, dtype: np.asarray(value, dtype.np),
    )
    which = (place % np.uint64(4)).astype(np.int64)
    return np.choose(which, words)


def _holds(points: Points, op: Any, env: Mapping[str, Any], grid: tuple[int, ...]) -> Array:
    return points.mask(op, env)


def _load(points: Points, op: Any, env: Mapping[str, Any], grid: tuple[int, ...]) -> Array:
    buffer = points.memory[op.buf]
    index, mask = points.address(op, buffer, env, grid)
    if 0 in buffer.shape:
        shape = np.broadcast_shapes(*[i.shape for i in index], mask.shape)
        return np.full(shape, op.fill).astype(buffer.dtype)
    found = np.asarray(buffer[index])
    fill = np.asarray(op.fill).astype(buffer.dtype)
    return found if mask.all() else np.where(mask, found, fill)


def _store(points: Points, op: Any, env: Mapping[str, Any], grid: tuple[int, ...]) -> None:
    buffer = points.memory[op.buf]
    index, mask = points.address(op, buffer, env, grid)
    mask = np.broadcast_to(mask, grid)
    if not mask.any():
        return
    at = tuple([np.broadcast_to(i, grid)[mask] for i in index])
    value = np.broadcast_to(points.values[op.value], grid)[mask]
    if op.atomic:
        _combine_each(op.combine, buffer, at, value)
        return
    value = value if op.combine is None else op.combine.evaluate(buffer[at], value)
    buffer[at] = value if at else value.reshape(-1)[0]


def _combine_each(fn: ScalarFn, buffer: Array, at: tuple[Array, ...], value: Array) -> None:
    """Combines values into elements that may be the same ones."""
    shape = buffer.shape or (1,)
    elements = buffer.reshape(-1)
    place = np.ravel_multi_index(at or (np.zeros(len(value), np.int64),), shape)
    while place.size:
        _, first = np.unique(place, return_index=True)
        elements[place[first]] = fn.evaluate(elements[place[first]], value[first])
        place, value = np.delete(place, first), np.delete(value, first)


def _map(points: Points, op: Any, env: Mapping[str, Any], grid: tuple[int, ...]) -> Array:
    return op.fn.evaluate(*[points.values[v] for v in op.args])


def _cast(points: Points, op: Any, env: Mapping[str, Any], grid: tuple[int, ...]) -> Array:
    return cast_array(points.values[op.x], op.dtype)


def _bitcast(points: Points, op: Any, env: Mapping[str, Any], grid: tuple[int, ...]) -> Array:
    return bitcast_array(points.values[op.x], op.dtype)


def _sentinel(points: Points, op: Any, env: Mapping[str, Any], grid: tuple[int, ...]) -> None:
    if 0 not in grid and (points.values[op.bad] & points.active).any():
        raise VerifyError(f"{op.name}: a value is bad", loc=op.loc)



def _prefetch(points: Points, op: Any, env: Mapping[str, Any], grid: tuple[int, ...]) -> None:
    del points, op, env, grid


def combine_all(fn: ScalarFn, value: Array, count: int) -> Array:
    """The first `count` dims of an array, combined; the identity of nothing."""
    dtype = dtype_of(value.dtype)
    flat = value.reshape((-1, *value.shape[count:])) if value.size else value
    if not value.size:
        return np.broadcast_to(_identity(fn, dtype), value.shape[count:])
    ufunc = UFUNCS.get(fn.name)
    if ufunc is not None and value.dtype.kind in "biufc":
        with np.errstate(all="ignore"):
            return np.asarray(ufunc.reduce(flat, axis=0, dtype=value.dtype))
    total = flat[0]
    for one in flat[1:]:
        total = fn.evaluate(total, one)
    return total


def _identity(fn: ScalarFn, dtype: DType) -> Array:
    assert fn.identity is not None
    return np.asarray(fn.identity(dtype)).astype(dtype.np)


def _reduce(points: Points, op: Any, env: Mapping[str, Any], grid: tuple[int, ...]) -> Array:
    (value,) = points.region(op.body, op.axes, env, grid)
    return combine_all(op.fn, value, len(op.axes))


def _arg_reduce(points: Points, op: Any, env: Mapping[str, Any], grid: tuple[int, ...]) -> Array:
    (value,) = points.region(op.body, (op.axis,), env, grid)
    if not value.size:
        return np.zeros(grid, np.int64)
    wide = value.astype(np.float32) if value.dtype.kind == "V" else value
    found = np.argmax(wide, axis=0) if op.fn.name == "max" else np.argmin(wide, axis=0)
    return np.asarray(found, np.int64)


def _contract(points: Points, op: Any, env: Mapping[str, Any], grid: tuple[int, ...]) -> Array:
    lhs, rhs = points.region(op.body, op.axes, env, grid)
    start = points.values[op.start] if isinstance(op, part_ops.ContractFrom) else None
    with np.errstate(all="ignore"):
        product = cast_array(lhs, op.dtype) * cast_array(rhs, op.dtype)
        if not product.size:
            return np.zeros(grid, op.dtype.np) if start is None else start
        axes = tuple(range(len(op.axes)))
        total = np.asarray(np.add.reduce(product, axis=axes, dtype=op.dtype.np))
        return total if start is None else np.asarray(start + total)


def _scan(points: Points, op: Any, env: Mapping[str, Any], grid: tuple[int, ...]) -> None:
    (value,) = points.region(op.body, (op.axis,), env, grid)
    buffer = points.memory[op.buf]
    is_part = isinstance(op, ops.ScanFrom)
    first = points.values[op.start] if is_part else _identity(op.fn, dtype_of(value.dtype))
    acc = np.broadcast_to(first, grid)
    order = range(len(value))
    for k in reversed(order) if op.reverse else order:
        scope = {**env, op.axis.name: k}
        inside = np.ones(grid, np.bool_)
        for e in op.where if is_part else ():
            inside &= np.asarray(evaluate(e, scope)) >= 0
        if not inside.any():
            continue
        acc = np.where(inside, op.fn.evaluate(acc, value[k]), acc)
        index = [np.broadcast_to(np.asarray(evaluate(e, scope)), grid)[inside] for e in op.index]
        buffer[tuple(index)] = cast_array(acc[inside], dtype_of(buffer.dtype))


def _recur(points: Points, op: Any, env: Mapping[str, Any], grid: tuple[int, ...]) -> None:
    carried = [points.values[v] for v in op.init]
    order = range(int(evaluate(op.axis.extent, points.dims)))
    for k in reversed(order) if op.reverse else order:
        points.values.update(zip(op.body.args, carried, strict=True))
        carried = points.block(op.body, {**env, op.axis.name: np.asarray(k)}, grid)
    points.values.update(zip(op.results, carried, strict=True))


def _repeat(points: Points, op: Any, env: Mapping[str, Any], grid: tuple[int, ...]) -> None:
    carried = [np.broadcast_to(points.values[v], grid) for v in op.init]
    active = np.ones(grid, np.bool_)
    while True:
        points.values.update(zip(op.cond.args, carried, strict=True))
        active = active & points.block(op.cond, env, grid)[0]
        if not active.any():
            break
        points.values.update(zip(op.body.args, carried, strict=True))
        outer, points.active = points.active, points.active & active
        following = points.block(op.body, env, grid)
        points.active = outer
        carried = [np.where(active, a, b) for a, b in zip(following, carried, strict=True)]
    points.values.update(zip(op.results, carried, strict=True))


RULES: Mapping[
    type[Op], Callable[[Points, Any, Mapping[str, Any], tuple[int, ...]], Array | None]
] = {
    ops.Const: _const,
    ops.Index: _index,
    ops.Random: _random,
    ops.Holds: _holds,
    ops.Load: _load,
    window_ops.WindowLoad: _load,
    ops.Store: _store,
    ops.Map: _map,
    ops.Cast: _cast,
    ops.Bitcast: _bitcast,
    ops.Reduce: _reduce,
    ops.ArgReduce: _arg_reduce,
    ops.Contract: _contract,
    part_ops.ContractFrom: _contract,
    panel_ops.ContractPanels: _contract,
    ops.Scan: _scan,
    ops.ScanFrom: _scan,
    sentinel_ops.Sentinel: _sentinel,
    prefetch_ops.Prefetch: _prefetch,
    loop_ops.Recur: _recur,
    loop_ops.Repeat: _repeat,
}
