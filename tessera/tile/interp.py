"""The NumPy interpreter of Tile programs: the definition of the ops.

`run_module` runs a module's entry on arrays, kernel by kernel and grid point by grid point, in
order. Tiles are arrays of the tile's shape; scalars of i64 and bool are Python ints and bools.
Memory is a typed window of a buffer.

What it promises about mistakes:

1. Outputs and the arena begin poisoned: every byte is 0xFF, which is NaN in all floating-point
   formats and -1 in signed integers (bool outputs begin true). What nobody wrote shows.
2. A memory access outside of its buffer, or outside of its view in a dim that is not masked, is an
   error that names the op and the index. Lanes that are masked off touch nothing.
3. A dim in `check` may be left at its end only: a negative coordinate is an error too.
4. Inputs cannot be written.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from tessera.dtypes import DType, bool_, dtype_of, int64
from tessera.errors import DTypeError, ShapeError, VerifyError
from tessera.ir.control import run_for, run_if, run_while
from tessera.ir.convert import bitcast_array, conversion
from tessera.ir.core import Func, Module, Op, Value
from tessera.ir.hostcall import HostFunction
from tessera.ir.interp import BlockInterpreter, Step
from tessera.ir.intexpr import Dim, evaluate
from tessera.ir.verify import fail
from tessera.tile import entry_ops, interp_lanes, interp_panels, interp_reductions, interp_words
from tessera.tile import ops as t
from tessera.tile.entry_ops import Together
from tessera.tile.index_arithmetic import INDEX_FNS, wrap
from tessera.tile.interp_boxes import finder, places
from tessera.tile.prefetch_ops import Prefetch
from tessera.tile.scratch_ops import Scratch
from tessera.tile.sentinel_ops import Sentinel
from tessera.tile.types import POISON, MemType, TileType

Array: TypeAlias = "npt.NDArray[Any]"
Scalar: TypeAlias = "int | bool | Array"


def as_scalar(value: Any, dtype: DType) -> Scalar:
    """One element as the interpreters keep it: a Python int or bool, else a 0-d array."""
    if dtype is int64:
        return int(value)
    return bool(value) if dtype is bool_ else np.asarray(value, dtype.np)


def converted(source: DType, dtype: DType, is_array: bool) -> Callable[[Any], Any]:
    """What converts arrays of one dtype to another one, or scalars."""
    convert = conversion(source, dtype)
    return convert if is_array else lambda x: as_scalar(convert(np.asarray(x)), dtype)


def poison(array: Array) -> None:
    """Fills an array with what nobody wrote."""
    if dtype_of(array.dtype).is_bool:
        array[...] = True
    else:
        array[...] = np.frombuffer(bytes([POISON]) * array.itemsize, array.dtype)[0]


def flat(array: Array, writable: bool) -> Array:
    """The elements of a contiguous array as one row, which shares its memory.

    Raises:
        ValueError: a writable array is not contiguous.
    """
    if writable and not (array.flags.c_contiguous and array.flags.writeable):
        raise ValueError("outputs must be contiguous and writable")
    result = np.ascontiguousarray(array).reshape(-1).view()
    result.flags.writeable = writable
    return result


@dataclass(frozen=True, slots=True)
class Memory:
    """Elements that programs address.

    Attributes:
        data: the elements, one row.
        name: what messages call it.
        raw: the same as bytes.
    """

    data: Array
    name: str
    raw: Array = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "raw", self.data.view(np.uint8))


@dataclass(frozen=True, slots=True)
class View:
    """A window on memory, as `tile.view` defines it."""

    memory: Memory
    offset: int
    sizes: tuple[int, ...]
    strides: tuple[int, ...]


def run_module(
    module: Module,
    inputs: Sequence[Array],
    outputs: Sequence[Array],
    dims: Mapping[str, int] | None = None,
    arena_bytes: int = 0,
    donated: Collection[int] = (),
) -> None:
    """Runs the entry of a module.

    Args:
        module: Tile IR; the arguments of its entry are the inputs, then the outputs.
        inputs: arrays of the arguments' dtypes, of any shape.
        outputs: contiguous arrays, written in place.
        dims: values of the entry's symbolic dims.
        arena_bytes: the size of the arena.
        donated: inputs that it may write to, contiguous arrays too.

    Raises:
        VerifyError: the program accesses memory that it may not.
    """
    for array in outputs:
        poison(array)
    arena = np.full(arena_bytes, POISON, np.uint8)
    interpreter = Interpreter(module, dict(dims or {}), arena)
    arrays = [flat(x, k in donated) for k, x in enumerate(inputs)]
    arrays += [flat(x, True) for x in outputs]
    interpreter.main(arrays)


class Interpreter(BlockInterpreter):
    """The state of one run.

    Attributes:
        module: what runs.
        dims: values of symbolic dims.
        arena: the bytes of the arena.
        program: the coordinates of the grid point that runs.
    """

    level = "Tile"

    def __init__(self, module: Module, dims: Mapping[str, int], arena: Array) -> None:
        super().__init__()
        self.module = module
        self.dims = dims
        self.arena = arena
        # Memory of the host, the copies in the order in which they begin, and how many have ended.
        self.host: dict[int, int] = {}
        self.ended = 0
        self.copies: list[tuple[entry_ops.Offload | entry_ops.Fetch, Array]] = []
        self.program: tuple[int, ...] = ()

    def main(self, arrays: Sequence[Array]) -> None:
        """Runs the entry on flat arrays."""
        func = self.module.entry
        if len(arrays) != len(func.args):
            raise VerifyError(f"@{func.name} takes {len(func.args)} arrays, not {len(arrays)}")
        for k, (arg, array) in enumerate(zip(func.args, arrays, strict=True)):
            if not isinstance(arg.type, MemType) or dtype_of(array.dtype) is not arg.type.dtype:
                raise VerifyError(f"argument {k} of @{func.name} is {arg.type}, not {array.dtype}")
            self.values[arg] = Memory(array, f"%{arg.name or k}")
        with np.errstate(all="ignore"):
            self.block(func.body)

    def kernel(self, func: Func, args: Sequence[Memory], grid: Sequence[int]) -> None:
        """Runs a kernel for every point of a grid."""
        self.values.update(zip(func.args, args, strict=True))
        for point in itertools.product(*map(range, grid)):
            self.program = point
            self.block(func.body)

    def tile(self, value: Value) -> Array:
        """A tile as an array."""
        return np.asarray(self.values[value])

    def ints(self, values: Sequence[Value]) -> tuple[int, ...]:
        """Scalars as ints."""
        return tuple([self.values[v] for v in values])

    def dim(self, e: Dim) -> int:
        """An index expression over the dims."""
        return wrap(int(evaluate(e, self.dims)))

    def define(self, op: Op, value: Any) -> None:
        """Sets the only result."""
        self.put(op.results[0], value)

    def put(self, result: Value, value: Any) -> None:
        """Sets a result."""
        assert isinstance(result.type, TileType)
        if result.type.shape:
            self.values[result] = value
        else:
            self.values[result] = as_scalar(value, result.type.dtype)


# --- values ---------------------------------------------------------------------------------------


def _const(s: Interpreter, op: t.Const) -> Step:
    return s.constant(op, as_scalar(np.asarray(op.value).astype(op.dtype.np), op.dtype))


def _dim(s: Interpreter, op: t.Dim_) -> None:
    s.define(op, s.dim(op.expr))


def _program_id(s: Interpreter, op: t.ProgramId) -> None:
    if op.axis >= len(s.program):
        raise fail(op, f"axis {op.axis} of a grid of rank {len(s.program)}")
    s.define(op, s.program[op.axis])


def _iota(s: Interpreter, op: t.Iota) -> None:
    line = np.arange(op.shape[op.axis]).reshape(
        [-1 if k == op.axis else 1 for k in range(len(op.shape))]
    )
    s.define(op, np.broadcast_to(line, op.shape))


def _map(s: Interpreter, op: t.Map) -> Step:
    types, fast = [t.tile_type(v) for v in op.args], INDEX_FNS.get(op.fn.name)
    if fast is not None and types[0] == t.INDEX:
        return s.applied(op, fast)
    dtypes = [type.dtype for type in types]
    if types[0].shape:
        return s.applied(op, op.fn.on_arrays(*dtypes))
    compute = op.fn.on(*dtypes)
    wanted = t.tile_type(op.result).dtype
    return s.applied(op, lambda *args: as_scalar(compute(*args), wanted))


def _cast(s: Interpreter, op: t.Cast) -> Step:
    source = t.tile_type(op.x)
    return s.applied(op, converted(source.dtype, op.dtype, bool(source.shape)))


def _bitcast(s: Interpreter, op: t.Bitcast) -> None:
    s.define(op, bitcast_array(s.tile(op.x), op.dtype))


def _broadcast(s: Interpreter, op: t.Broadcast) -> Step:
    shape, dtype = op.shape, t.tile_type(op.x).dtype.np

    def broadcast(x: Any) -> Array:
        result = np.empty(shape, dtype)
        result[...] = x
        return result

    def same(x: Scalar) -> Scalar:
        return x

    return s.applied(op, broadcast if shape else same)


def _reshape(s: Interpreter, op: t.Reshape) -> None:
    s.define(op, s.tile(op.x).reshape(op.shape))


def _transpose(s: Interpreter, op: t.Transpose) -> None:
    s.define(op, s.tile(op.x).transpose(op.perm))


# --- memory ---------------------------------------------------------------------------------------


def _view(s: Interpreter, op: t.View) -> Step:
    rank = len(op.sizes)

    def view(memory: Memory, offset: int, *lengths: int) -> View:
        return View(memory, offset, lengths[:rank], lengths[rank:])

    assert op.operands == (op.mem, op.offset, *op.sizes, *op.strides)
    return s.applied(op, view)


def _box(
    s: Interpreter, op: t.Load | t.Store, view: View, shape: tuple[int, ...]
) -> tuple[Array, Array | None]:
    """Linear offsets of a box, and which of them are accessed (None: all)."""
    rank = len(shape)
    offsets = np.asarray(view.offset)
    lines: list[Array] = []
    for k, coord in enumerate(s.ints(op.coords)):
        line = np.arange(coord, coord + shape[k])
        lines.append(line.reshape([-1 if d == k else 1 for d in range(rank)]))
        offsets = offsets + lines[k] * view.strides[k]
    active = s.tile(op.mask[0]) if op.mask else None
    for k in op.check:
        below = lines[k] < view.sizes[k]
        if not below.all():
            active = below if active is None else active & below
    for k, line in enumerate(lines):
        outside = (line < 0) | (line >= view.sizes[k])
        wrong = outside if active is None else active & outside
        if wrong.any():
            at = int(np.broadcast_to(line, wrong.shape)[wrong][0])
            sizes = list(view.sizes)
            name = view.memory.name
            raise fail(op, f"coordinate {at} in dim {k} of a view with sizes {sizes} of {name}")
    mask = None if active is None else np.broadcast_to(active, shape)
    return np.broadcast_to(offsets, shape), mask


def _addressed(op: Op, memory: Memory, offsets: Array, active: Array | None) -> Array:
    """The offsets of what is accessed, checked."""
    found = offsets if active is None else offsets[active]
    size = memory.data.size
    if found.size and not (found.min() >= 0 and found.max() < size):
        at = int(found[(found < 0) | (found >= size)][0])
        raise fail(op, f"element {at} of {memory.name}, which has {size} elements")
    return found


def _read(op: Op, memory: Memory, offsets: Array, active: Array | None, fill: Any) -> Array:
    at = _addressed(op, memory, offsets, active)
    data = memory.data
    if active is None:
        return _bools(data[at])
    result = np.full(offsets.shape, np.asarray(fill).astype(data.dtype))
    result[active] = _bools(data[at])
    return result


def _bools(x: Array) -> Array:
    """A bool in memory is any byte, true where it is not zero."""
    return x.view(np.uint8) != 0 if x.dtype == np.bool_ else x


def _load(s: Interpreter, op: t.Load) -> Step:
    values, find = s.values, finder(s, op, op.shape)

    def step() -> None:
        view: View = values[op.view]
        if (found := find(view)) is not None:
            if found.shape == op.shape:
                s.define(op, _bools(found.copy()))
                return
            result = np.full(op.shape, np.asarray(op.fill).astype(found.dtype))
            result[places(found)] = _bools(found)
            s.define(op, result)
            return
        offsets, active = _box(s, op, view, op.shape)
        s.define(op, _read(op, view.memory, offsets, active, op.fill))

    return step


def _store(s: Interpreter, op: t.Store) -> Step:
    shape = t.tile_type(op.value).shape
    values, find = s.values, finder(s, op, shape)

    def step() -> None:
        view: View = values[op.view]
        if view.memory.data.flags.writeable and (found := find(view)) is not None:
            value = values[op.value]
            found[...] = value if found.shape == shape else value[places(found)]
            return
        value = s.tile(op.value)
        offsets, active = _box(s, op, view, value.shape)
        _write(op, view.memory, offsets, active, value)

    return step


def _write(op: Op, memory: Memory, offsets: Array, active: Array | None, value: Array) -> None:
    if not memory.data.flags.writeable:
        raise fail(op, f"writes to {memory.name}, which is an input")
    at = _addressed(op, memory, offsets, active)
    memory.data[at] = value if active is None else value[active]


def _gather(s: Interpreter, op: t.Gather) -> None:
    active = s.tile(op.mask[0]) if op.mask else None
    s.define(op, _read(op, s.values[op.mem], s.tile(op.offsets), active, op.fill))


def _scatter(s: Interpreter, op: t.Scatter) -> None:
    memory: Memory = s.values[op.mem]
    offsets, value = s.tile(op.offsets).reshape(-1), s.tile(op.value).reshape(-1)
    active = s.tile(op.mask[0]).reshape(-1) if op.mask else None
    if op.combine is None:
        _write(op, memory, offsets, active, value)
        return
    at = _addressed(op, memory, offsets, active)
    values = value if active is None else value[active]
    # Elements that meet are combined one after another, so each of them takes a round of its own.
    while at.size:
        _, first = np.unique(at, return_index=True)
        old = _bools(memory.data[at[first]])
        _write(op, memory, at[first], None, op.combine.evaluate(old, values[first]))
        at, values = np.delete(at, first), np.delete(values, first)


# --- the entry ------------------------------------------------------------------------------------


def _arena(s: Interpreter, op: t.Arena) -> None:
    start, size = s.dim(op.offset), op.dtype.itemsize
    if not 0 <= start <= s.arena.size or start % size:
        raise fail(op, f"byte {start} of an arena of {s.arena.size} bytes, for {op.dtype} elements")
    whole = (s.arena.size - start) // size * size
    name = f"the arena from byte {start} on"
    s.values[op.result] = Memory(s.arena[start : start + whole].view(op.dtype.np), name)


def _limit(s: Interpreter, op: t.Limit) -> None:
    memory: Memory = s.values[op.mem]
    size, item = s.dim(op.size), memory.data.dtype.itemsize
    if not 0 <= size <= memory.data.nbytes or size % item:
        raise fail(op, f"{size} bytes of {memory.name}, which has {memory.data.nbytes}")
    s.values[op.result] = Memory(memory.data[: size // item], f"a buffer in {memory.name}")


def _part(s: Interpreter, op: t.Part) -> None:
    memory: Memory = s.values[op.mem]
    size = op.dtype.itemsize
    if op.offset > memory.data.size:
        raise fail(op, f"byte {op.offset} of {memory.name}, which has {memory.data.size}")
    whole = (memory.data.size - op.offset) // size * size
    data = memory.data[op.offset : op.offset + whole].view(op.dtype.np)
    s.values[op.result] = Memory(data, f"{memory.name} from byte {op.offset} on")


def _scratch(s: Interpreter, op: Scratch) -> None:
    data = np.full(op.count * op.dtype.itemsize, POISON, np.uint8).view(op.dtype.np)
    s.values[op.result] = Memory(data, "scratch memory")


def _prefetch(s: Interpreter, op: Prefetch) -> None:
    """Changes nothing."""


def _sentinel(s: Interpreter, op: Sentinel) -> None:
    if np.any(s.values[op.bad]):
        raise fail(op, "a value is bad")


def _launch(s: Interpreter, op: t.Launch) -> None:
    func = s.module.funcs.get(op.kernel)
    if func is None:
        raise fail(op, f"there is no kernel @{op.kernel}")
    args = [s.values[v] for v in op.args]
    s.kernel(func, args, [s.dim(e) for e in op.grid])


def _together(s: Interpreter, op: Together) -> None:
    """The other way round: what depends on the order shows."""
    for launch in reversed(op.body.ops):
        assert isinstance(launch, t.Launch)
        _launch(s, launch)


def _host_call(s: Interpreter, op: t.HostCall) -> None:
    arrays: list[Array] = []
    for value, type in zip(op.args, op.types, strict=True):
        memory: Memory = s.values[value]
        shape = [s.dim(dim) for dim in type.shape]
        count = math.prod(shape) * (2 if type.dtype.is_complex else 1)
        if count > memory.data.size:
            raise fail(op, f"{type} in {memory.name}, which has {memory.data.size} elements")
        arrays.append(memory.data[:count].view(type.dtype.np).reshape(shape))
    host_call(op, op.function, arrays, op.inputs)


def host_call(op: Op, function: HostFunction, arrays: Sequence[Array], inputs: int) -> None:
    """Calls a function of the host: the first arrays are read, the others written."""
    given = [_bools(x) for x in arrays[:inputs]]
    try:
        function.fill(given, arrays[inputs:])
    except (DTypeError, ShapeError) as error:
        raise fail(op, error.what) from None


def _copy(s: Interpreter, op: entry_ops.Offload | entry_ops.Fetch) -> None:
    """As late as may be: at the wait."""
    memory: Memory = s.values[op.mem]
    data = memory.data.view(np.uint8)
    if op.size > data.size:
        raise fail(op, f"{op.size} bytes of {memory.name}, which has {data.size}")
    if isinstance(op, entry_ops.Fetch):
        data[: op.size] = POISON
    s.copies.append((op, data[: op.size]))


def _wait(s: Interpreter, op: entry_ops.Wait) -> None:
    numbers = [copy.number for copy, _ in s.copies]
    if op.number not in numbers:
        raise fail(op, f"copy {op.number} has not begun")
    for copy, data in s.copies[s.ended : numbers.index(op.number) + 1]:
        s.ended += 1
        if isinstance(copy, entry_ops.Offload):
            s.host.update({copy.at + k: byte for k, byte in enumerate(data)})
        else:
            data[...] = [s.host[copy.at + k] for k in range(copy.size)]


Interpreter.plans = {
    t.Const: _const,
    t.Map: _map,
    t.Cast: _cast,
    t.Broadcast: _broadcast,
    t.View: _view,
    t.Load: _load,
    t.Store: _store,
}
Interpreter.rules = {
    t.Dim_: _dim,
    t.ProgramId: _program_id,
    t.Iota: _iota,
    t.Bitcast: _bitcast,
    t.Reshape: _reshape,
    t.Transpose: _transpose,
    t.Gather: _gather,
    t.Scatter: _scatter,
    t.For: run_for,
    t.While: run_while,
    t.If: run_if,
    t.Arena: _arena,
    t.Limit: _limit,
    t.Part: _part,
    Sentinel: _sentinel,
    Prefetch: _prefetch,
    Scratch: _scratch,
    **interp_lanes.RULES,
    **interp_reductions.RULES,
    t.Launch: _launch,
    Together: _together,
    **interp_panels.RULES,
    **interp_words.RULES,
    t.HostCall: _host_call,
    entry_ops.Offload: _copy,
    entry_ops.Fetch: _copy,
    entry_ops.Wait: _wait,
}
