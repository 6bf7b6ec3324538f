"""The NumPy interpreter of Target programs, before and after legalization: it defines the ops.

A pointer is a buffer of bytes and an offset into it; scalars are Python ints and bools where the
dtype is i64 or bool and 0-d arrays otherwise, vectors are arrays of one dim. A bool in memory is a
byte.

Memory is as unforgiving as in `tile/interp.py`: what nobody wrote is 0xFF bytes, and an access
outside of its buffer, or at an address less aligned than the op says, is an error that names the op
and the address. The start of a buffer counts as aligned for everything. Lanes that are masked off
touch nothing.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NoReturn

import numpy as np

from tessera.dtypes import DType, Kind, bool_, dtype_of, float32
from tessera.errors import VerifyError
from tessera.ir.control import run_for, run_if, run_while
from tessera.ir.convert import bitcast_array, cast_array, conversion
from tessera.ir.core import Module, Op
from tessera.ir.interp import BlockInterpreter, Step, tree
from tessera.ir.intexpr import evaluate
from tessera.ir.types import ScalarType, Type
from tessera.ir.verify import fail
from tessera.target import interp_panels
from tessera.target import ops as t
from tessera.target.compress_ops import Compress, CountTrue, Permute
from tessera.target.lookup_ops import Lookup
from tessera.target.prefetch_ops import Prefetch
from tessera.target.roots_ops import Roots
from tessera.target.types import PtrType, VecType
from tessera.tile.index_arithmetic import INDEX_FNS
from tessera.tile.interp import Array, as_scalar, converted, flat, host_call, poison
from tessera.tile.types import POISON


@dataclass(frozen=True, slots=True)
class Pointer:
    """An address.

    Attributes:
        data: the bytes of a buffer.
        offset: the position in it; it may lie outside as long as nobody reads or writes there.
        name: what messages call the buffer.
    """

    data: Array
    offset: int
    name: str

    @classmethod
    def to(cls, array: Array, name: str, writable: bool = True) -> Pointer:
        """The address of a contiguous array."""
        return cls(flat(array, writable).view(np.uint8), 0, name)


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
        module: Target IR. The arguments of its entry are pointers to inputs, outputs and the arena,
            then one i64 for each symbolic dim, which the argument's name says.
        inputs: arrays.
        outputs: contiguous arrays, written in place.
        dims: values of symbolic dims.
        arena_bytes: the size of the arena.
        donated: inputs that it may write to, contiguous arrays too.

    Raises:
        VerifyError: the program accesses memory that it may not.
    """
    for array in outputs:
        poison(array)
    arena = np.full(arena_bytes, POISON, np.uint8)
    args: list[Any] = [Pointer.to(x, f"input {k}", k in donated) for k, x in enumerate(inputs)]
    args += [Pointer.to(x, f"output {k}") for k, x in enumerate(outputs)]
    args.append(Pointer.to(arena, "the arena"))
    known = dims or {}
    for arg in module.entry.args[len(args) :]:
        if arg.name not in known:
            raise VerifyError(f"@{module.main}: no value for the dim %{arg.name}")
        args.append(known[arg.name])
    Interpreter(module).call(module.main, args)


class Interpreter(BlockInterpreter):
    """Runs functions of a module.

    Attributes:
        module: what runs.
    """

    level = "Target"

    def __init__(self, module: Module) -> None:
        super().__init__()
        self.module = module
        # Rows and their bytes, for which registers for matrices are set up.
        self.panels: tuple[int, int] | None = None

    def call(self, name: str, args: Sequence[Any]) -> list[Any]:
        """Runs one function; pointers are `Pointer`s, numbers are NumPy or Python ones. What it
        returns."""
        with np.errstate(all="ignore"):
            return self.invoke(name, args)

    def invoke(self, name: str, args: Sequence[Any]) -> list[Any]:
        """`call` from inside of one."""
        func = self.module.funcs.get(name)
        if func is None:
            raise VerifyError(f"there is no function @{name}")
        if len(args) != len(func.args):
            raise VerifyError(f"@{name} takes {len(func.args)} arguments, not {len(args)}")
        for k, (arg, given) in enumerate(zip(func.args, args, strict=True)):
            if isinstance(arg.type, PtrType) is not isinstance(given, Pointer):
                raise VerifyError(f"argument {k} of @{name} is {arg.type}")
            self.values[arg] = (
                as_scalar(given, arg.type.dtype) if isinstance(arg.type, ScalarType) else given
            )
        return self.block(func.body)

    def define(self, op: Op, value: Any) -> None:
        """Sets the only result."""
        result = op.results[0]
        if not isinstance(result.type, VecType):
            value = as_scalar(value, t.element(result.type))
        self.values[result] = value


# --- arithmetic -----------------------------------------------------------------------------------


def _const(s: Interpreter, op: t.Const) -> Step:
    dtype = t.element(op.type)
    value = np.asarray(op.value).astype(dtype.np)
    if not isinstance(op.type, VecType):
        return s.constant(op, as_scalar(value, dtype))
    vector = np.full(op.type.lanes, value)
    vector.flags.writeable = False
    return s.constant(op, vector)


def _lanes(s: Interpreter, op: t.Lanes) -> Step:
    vector = np.arange(op.count).astype(op.dtype.np)
    vector.flags.writeable = False
    return s.constant(op, vector)


def _map(s: Interpreter, op: t.Map) -> Step:
    fn, type, result = op.fn, op.args[-1].type, op.result.type
    fast = INDEX_FNS.get(fn.name)
    if fast is not None and type == t.INDEX:
        return s.applied(op, fast)
    dtypes = [t.element(v.type) for v in op.args]
    if isinstance(result, VecType):
        return s.applied(op, fn.on_arrays(*dtypes))
    compute = fn.on(*dtypes)
    wanted = t.element(result)
    return s.applied(op, lambda *args: as_scalar(compute(*args), wanted))


def _cast(s: Interpreter, op: t.Cast) -> Step:
    is_vector = isinstance(op.result.type, VecType)
    return s.applied(op, converted(t.element(op.x.type), op.dtype, is_vector))


def _bitcast(s: Interpreter, op: t.Bitcast) -> None:
    s.define(op, bitcast_array(np.asarray(s.values[op.x]), op.dtype))


def _splat(s: Interpreter, op: t.Splat) -> Step:
    dtype, count = t.element(op.x.type).np, op.count

    def splat(x: Any) -> Array:
        vector = np.empty(count, dtype)
        vector[...] = x
        return vector

    return s.applied(op, splat)


def _extract(s: Interpreter, op: t.Extract) -> Step:
    dtype, lane = t.element(op.result.type), op.lane

    def extract(x: Array) -> Any:
        return as_scalar(x[lane], dtype)

    return s.applied(op, extract)


def _insert(s: Interpreter, op: t.Insert) -> Step:
    lane = op.lane

    def insert(x: Array, value: Any) -> Array:
        vector = x.copy()
        vector[lane] = value
        return vector

    return s.applied(op, insert)


def _shuffle(s: Interpreter, op: t.Shuffle) -> Step:
    picks = np.array(op.picks)

    def first(a: Array, b: Array) -> Array:
        return a[picks]

    def both(a: Array, b: Array) -> Array:
        return np.concatenate((a, b))[picks]

    return s.applied(op, first if (picks < t.lanes(op.a.type)).all() else both)


def _reduce_lanes(s: Interpreter, op: t.ReduceLanes) -> None:
    x = s.values[op.x]
    dtype = dtype_of(x.dtype)
    if dtype.kind is Kind.FLOAT and dtype.bits < 32:
        s.define(op, cast_array(tree(op.fn, cast_array(x, float32)), dtype))
    else:
        s.define(op, tree(op.fn, x))


def _scale(s: Interpreter, op: t.Scale) -> None:
    x, power = s.values[op.x], s.values[op.power]
    whole = np.nan_to_num(np.floor(np.asarray(power, np.float64))).clip(-(2**15), 2**15)
    found = np.ldexp(x, whole.astype(np.int32))
    limits = np.where(np.isinf(power) & np.isnan(x), np.exp2(power), found)
    s.define(op, limits.astype(found.dtype))


def _lookup(s: Interpreter, op: Lookup) -> None:
    s.define(op, np.array(op.table, np.float32)[s.values[op.index] % len(op.table)])


def _compress(s: Interpreter, op: Compress) -> None:
    x, mask = s.values[op.x], s.values[op.mask]
    found = np.zeros_like(x)
    found[: mask.sum()] = x[mask]
    s.define(op, found)


def _permute(s: Interpreter, op: Permute) -> None:
    x = s.values[op.x]
    s.define(op, x[s.values[op.index] % x.dtype.type(len(x))])


def _count_true(s: Interpreter, op: CountTrue) -> None:
    s.define(op, int(s.values[op.mask].sum()))


def _dot_groups(s: Interpreter, op: t.DotGroups) -> Step:
    values, acc, left, right, result = s.values, op.acc, op.a, op.b, op.result
    dtype = t.element(acc.type)
    first, second = [conversion(t.element(v.type), dtype) for v in (left, right)]
    size = (t.lanes(left.type) or 1) // (t.lanes(acc.type) or 1)
    order = [slice(k, None, size) for k in reversed(range(size))]

    def step() -> None:
        total, a, b = values[acc], first(values[left]), second(values[right])
        for lanes in order:
            total = total + a[lanes] * b[lanes]
        values[result] = total

    return step


# --- memory ---------------------------------------------------------------------------------------


def _bad_address(op: Op, ptr: Pointer, at: int, size: int, align: int) -> NoReturn:
    where = f"{size} bytes at byte {at} of {ptr.name}, which has {ptr.data.size} bytes"
    if at % align:
        where = f"byte {at} of {ptr.name} is not aligned to {align} bytes"
    raise fail(op, where)


def _bytes(op: Op, ptr: Pointer, at: int, size: int) -> Array:
    """The bytes from `at` on, checked."""
    if at < 0 or at + size > ptr.data.size:
        _bad_address(op, ptr, at, size, 1)
    return ptr.data[at : at + size]


def _typed(data: Array, dtype: DType) -> Array:
    """Bytes as elements."""
    return data != 0 if dtype is bool_ else data.view(dtype.np)


def _start(s: Interpreter, op: t.Load | t.Store, ptr: Pointer, size: int) -> int:
    """Where an access to elements of a size begins, checked for alignment."""
    at = ptr.offset + s.values[op.offset] * size
    align = op.align or size
    if at % align:
        _bad_address(op, ptr, at, 0, align)
    return at


def _ptr_add(s: Interpreter, op: t.PtrAdd) -> Step:
    def add(ptr: Pointer, count: int) -> Pointer:
        return Pointer(ptr.data, ptr.offset + count, ptr.name)

    return s.applied(op, add)


def _span(mask: Array) -> tuple[int, int]:
    """The range of lanes from the first that is set to the last; empty if none is."""
    lanes = np.flatnonzero(mask)
    return (int(lanes[0]), int(lanes[-1]) + 1) if lanes.size else (0, 0)


def _accessed(
    s: Interpreter, op: t.Load | t.Store, type: Type
) -> Callable[[], tuple[Pointer, Array]]:
    """What finds the memory of an access without a mask, checked; a bool is a byte there."""
    dtype, values, pointer, offset = t.element(type), s.values, op.ptr, op.offset
    size, lanes = dtype.itemsize, t.lanes(type) or 1
    count, align = size * lanes, op.align or size
    format = np.dtype(np.uint8 if dtype is bool_ else dtype.np)

    def find() -> tuple[Pointer, Array]:
        ptr: Pointer = values[pointer]
        data, at = ptr.data, ptr.offset + values[offset] * size
        if at % align or at < 0 or at + count > data.size:
            _bad_address(op, ptr, at, count, align)
        return ptr, np.ndarray(lanes, format, data, at)

    return find


def _load(s: Interpreter, op: t.Load) -> Step:
    if op.mask:
        return partial(_load_some, s, op)
    find, dtype, values, result = _accessed(s, op, op.type), t.element(op.type), s.values, op.result
    is_vector = isinstance(op.type, VecType)

    def step() -> None:
        _, found = find()
        if dtype is bool_:
            found = found != 0
        values[result] = found.copy() if is_vector else as_scalar(found[0], dtype)

    return step


def _load_some(s: Interpreter, op: t.Load) -> None:
    dtype = t.element(op.type)
    size = dtype.itemsize
    ptr: Pointer = s.values[op.ptr]
    at = _start(s, op, ptr, size)
    mask, other = s.values[op.mask[0]], s.values[op.mask[1]]
    first, last = _span(mask)
    result = other.copy()
    if last:
        part = _typed(_bytes(op, ptr, at + first * size, (last - first) * size), dtype)
        result[first:last] = np.where(mask[first:last], part, other[first:last])
    s.define(op, result)


def _store(s: Interpreter, op: t.Store) -> Step:
    if op.mask:
        return partial(_store_some, s, op)
    find, values, value = _accessed(s, op, op.value.type), s.values, op.value

    def step() -> None:
        ptr, place = find()
        if not place.flags.writeable:
            raise fail(op, f"writes to {ptr.name}")
        place[...] = values[value]

    return step


def _store_some(s: Interpreter, op: t.Store) -> None:
    dtype = t.element(op.value.type)
    size = dtype.itemsize
    ptr: Pointer = s.values[op.ptr]
    at = _start(s, op, ptr, size)
    if not ptr.data.flags.writeable:
        raise fail(op, f"writes to {ptr.name}")
    value = _stored(s.values[op.value], dtype)
    mask = s.values[op.mask[0]]
    first, last = _span(mask)
    if last:
        part = _bytes(op, ptr, at + first * size, (last - first) * size).view(value.dtype)
        part[mask[first:last]] = value[mask]


def _stored(value: Any, dtype: DType) -> Array:
    """A scalar or vector as memory holds it."""
    array = np.asarray(value, dtype.np).reshape(-1)
    return array.view(np.uint8) if dtype is bool_ else array


def _elements(op: Op, ptr: Pointer, offsets: Array, mask: Array | None, dtype: DType) -> Array:
    """The bytes of each accessed element, one row an element; every element is checked."""
    size = dtype.itemsize
    used = offsets if mask is None else offsets[mask]
    starts = ptr.offset + used * size
    wrong = (starts < 0) | (starts + size > ptr.data.size) | (starts % size != 0)
    if wrong.any():
        _bad_address(op, ptr, int(starts[wrong][0]), size, size)
    return starts[:, None] + np.arange(size)


def _gather(s: Interpreter, op: t.Gather) -> None:
    ptr: Pointer = s.values[op.ptr]
    mask = s.values[op.mask[0]] if op.mask else None
    at = _elements(op, ptr, s.values[op.offsets], mask, op.dtype)
    found = _typed(np.ascontiguousarray(ptr.data[at]).reshape(-1), op.dtype)
    if mask is None:
        s.define(op, found)
        return
    result = s.values[op.mask[1]].copy()
    result[mask] = found
    s.define(op, result)


def _scatter(s: Interpreter, op: t.Scatter) -> None:
    ptr: Pointer = s.values[op.ptr]
    dtype = t.element(op.value.type)
    mask = s.values[op.mask[0]] if op.mask else None
    at = _elements(op, ptr, s.values[op.offsets], mask, dtype)
    if not ptr.data.flags.writeable:
        raise fail(op, f"writes to {ptr.name}")
    value = s.values[op.value] if mask is None else s.values[op.value][mask]
    for where, one in zip(at, _stored(value, dtype).view(np.uint8).reshape(at.shape), strict=True):
        ptr.data[where] = one


def _limit(s: Interpreter, op: t.Limit) -> None:
    ptr: Pointer = s.values[op.ptr]
    data = _bytes(op, ptr, ptr.offset, s.values[op.size])
    s.values[op.result] = Pointer(data, 0, f"a buffer in {ptr.name}")


def _bad_access(s: Interpreter, op: t.BadAccess) -> None:
    at, low, high = (s.values[v] for v in (op.at, op.low, op.high))
    raise fail(op, f"access {op.site} at byte {at - low} of {high - low}")


def _prefetch(s: Interpreter, op: Prefetch) -> None:
    """Changes nothing."""


def _sentinel(s: Interpreter, op: t.Sentinel) -> None:
    raise fail(op, "a value is bad")


def _roots(s: Interpreter, op: Roots) -> None:
    data = op.values().view(np.uint8)
    data.flags.writeable = False
    s.values[op.result] = Pointer(data, 0, "a table of roots")


def _alloca(s: Interpreter, op: t.Alloca) -> None:
    data = np.full(op.count * op.dtype.itemsize, POISON, np.uint8)
    s.values[op.result] = Pointer(data, 0, "scratch memory")


# --- calls ---------------------------------------------------------------------------------------


def _call(s: Interpreter, op: t.Call) -> None:
    s.invoke(op.callee, [s.values[v] for v in op.args])


def _parallel(s: Interpreter, op: t.Parallel) -> None:
    """Pieces run in an order of chance, the same in each run: what depends on it shows."""
    args, count = [s.values[v] for v in op.args], int(s.values[op.count])
    starts = list(range(0, count, op.grain))
    random.Random(count).shuffle(starts)
    for lo in starts:
        s.invoke(op.callee, [*args, lo, min(lo + op.grain, count)])


def _together(s: Interpreter, op: t.Together) -> None:
    """Pieces of all calls run in an order of chance, the same in each run."""
    pieces: list[tuple[str, list[Any]]] = []
    for one in op.body.ops:
        assert isinstance(one, (t.Call, t.Parallel))
        args = [s.values[v] for v in one.args]
        if isinstance(one, t.Call):
            pieces.append((one.callee, args))
            continue
        count = int(s.values[one.count])
        for lo in range(0, count, one.grain):
            pieces.append((one.callee, [*args, lo, min(lo + one.grain, count)]))
    random.Random(len(pieces)).shuffle(pieces)
    for callee, args in pieces:
        s.invoke(callee, args)


def _apply(s: Interpreter, op: t.Apply) -> None:
    (s.values[op.result],) = s.invoke(op.callee, [s.values[v] for v in op.args])


def _host_call(s: Interpreter, op: t.HostCall) -> None:
    dims = {name: s.values[v] for name, v in zip(op.names, op.dims, strict=True)}
    arrays: list[Array] = []
    for value, type in zip(op.args, op.types, strict=True):
        ptr: Pointer = s.values[value]
        shape = [int(evaluate(dim, dims)) for dim in type.shape]
        data = _bytes(op, ptr, ptr.offset, math.prod(shape) * type.dtype.itemsize)
        arrays.append(data.view(type.dtype.np).reshape(shape))
    host_call(op, op.function, arrays, op.inputs)


Interpreter.plans = {
    t.Const: _const,
    t.Lanes: _lanes,
    t.Map: _map,
    t.Cast: _cast,
    t.Splat: _splat,
    t.Extract: _extract,
    t.Insert: _insert,
    t.Shuffle: _shuffle,
    t.DotGroups: _dot_groups,
    t.PtrAdd: _ptr_add,
    t.Load: _load,
    t.Store: _store,
}
Interpreter.rules = {
    t.Bitcast: _bitcast,
    t.ReduceLanes: _reduce_lanes,
    t.Scale: _scale,
    Lookup: _lookup,
    Compress: _compress,
    Permute: _permute,
    CountTrue: _count_true,
    t.Gather: _gather,
    t.Scatter: _scatter,
    t.Alloca: _alloca,
    Roots: _roots,
    t.Limit: _limit,
    t.BadAccess: _bad_access,
    t.Sentinel: _sentinel,
    Prefetch: _prefetch,
    **interp_panels.RULES,
    t.For: run_for,
    t.While: run_while,
    t.If: run_if,
    t.Call: _call,
    t.Parallel: _parallel,
    t.Together: _together,
    t.Apply: _apply,
    t.HostCall: _host_call,
}
