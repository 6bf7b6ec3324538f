"""The CPU lowering: Tile IR to Target IR, a tile being a block of vector registers.

A tile of shape [a, b, L] becomes a*b values: vectors of L lanes, or scalars when L is 1 (or the rank is 0). Leading dims are
unrolled, so tiles are register blocks and loops stand outside them. A kernel becomes a function

    kernel(pointers..., dims..., lo, hi, n1, n2, ...)

that runs the grid points lo <= p0 < hi, 0 <= p1 < n1, ... in order; a grid of rank 0 has no such arguments. The entry takes
pointers for inputs and outputs, the arena's pointer, and the dims.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tessera.dtypes import DType, Kind, bool_, int32, int64
from tessera.errors import CompileError
from tessera.ir import intexpr
from tessera.ir.builder import Builder
from tessera.ir.core import Block, Func, Module, Op, Value
from tessera.ir.intexpr import Dim
from tessera.ir.loc import Loc
from tessera.ir.scalar import ScalarFn, scalar
from tessera.ir.types import ScalarType, Type
from tessera.ir.walk import walk
from tessera.target import ops as t
from tessera.target.machine import Machine
from tessera.target.types import PtrType, VecType
from tessera.tile import ops as tile
from tessera.tile.types import MemType, TileType

I64 = ScalarType(int64)
PTR = PtrType()


@dataclass(frozen=True, slots=True)
class Rows:
    """A lowered tile: one value per index of the leading dims, row-major."""

    shape: tuple[int, ...]
    dtype: DType
    values: tuple[Value, ...]

    @property
    def lanes(self) -> int:
        """The size of the last dim (1 for a scalar)."""
        return self.shape[-1] if self.shape else 1


@dataclass(frozen=True, slots=True)
class View:
    """A lowered view."""

    ptr: Value
    dtype: DType
    offset: Value
    sizes: tuple[Value, ...]
    strides: tuple[Value, ...]


Lowered = Rows | View | Value


def row_count(shape: tuple[int, ...]) -> int:
    """How many values a tile of this shape lowers to."""
    return math.prod(shape[:-1])


def row_type(shape: tuple[int, ...], dtype: DType) -> Type:
    """The type of each of them."""
    lanes = shape[-1] if shape else 1
    return ScalarType(dtype) if lanes == 1 else VecType(lanes, dtype)


def constant_of(value: Value) -> int | None:
    """The integer that a scalar value is known to be."""
    if isinstance(value.op, t.Const) and isinstance(value.op.value, int):
        return int(value.op.value)
    return None


class Lowering:
    """Lowers one function."""

    def __init__(self, machine: Machine, dims: Sequence[str]) -> None:
        self.machine = machine
        self.entry = Builder()
        self.blocks: list[Builder] = [self.entry]
        self.env: dict[Value, Lowered] = {}
        self.dims: dict[str, Value] = {}
        self.dim_names = tuple(dims)
        self.program_ids: list[Value] = []
        self.arena: Value | None = None
        self.kernels: dict[str, Func] = {}
        self.loc: Loc = Loc.unknown
        self.consts: dict[tuple[object, ...], Value] = {}
        self.prelude = 0

    # --- emission ---------------------------------------------------------------------------------------------------

    def emit(self, op: Op) -> Value:
        """Adds an op to the current block."""
        self.blocks[-1].add(op)
        return op.results[0] if op.results else Value(I64)

    def const(self, value: bool | int | float, type: Type) -> Value:
        """A constant; all stand at the top of the function."""
        key = (type, value.__class__, repr(value))
        found = self.consts.get(key)
        if found is None:
            op = t.Const(value, type, loc=Loc.unknown)
            self.entry.ops.insert(self.prelude, op)
            self.prelude += 1
            found = self.consts[key] = op.result
        return found

    def index(self, value: int) -> Value:
        """An i64 constant."""
        return self.const(value, I64)

    def map(self, fn: str | ScalarFn, *args: Value) -> Value:
        """A scalar function; integer identities are folded."""
        fn = scalar(fn) if isinstance(fn, str) else fn
        if len(args) == 2 and args[0].type == I64:
            folded = self._fold(fn.name, args[0], args[1])
            if folded is not None:
                return folded
        return self.emit(t.Map(args, fn, loc=self.loc))

    def _fold(self, name: str, a: Value, b: Value) -> Value | None:
        x, y = constant_of(a), constant_of(b)
        if x is not None and y is not None and name in ("add", "sub", "mul"):
            return self.index({"add": x + y, "sub": x - y, "mul": x * y}[name])
        if (name == "add" and x == 0) or (name == "mul" and x == 1):
            return b
        if (name in ("add", "sub") and y == 0) or (name == "mul" and y == 1):
            return a
        if name == "mul" and (x == 0 or y == 0):
            return self.index(0)
        return None

    def cast(self, x: Value, dtype: DType) -> Value:
        """A conversion, unless it is none."""
        return x if t.element(x.type) is dtype else self.emit(t.Cast(x, dtype, loc=self.loc))

    def splat(self, x: Value, lanes: int) -> Value:
        """A scalar in every lane; a constant stays a constant."""
        if lanes == 1:
            return x
        if isinstance(x.op, t.Const):
            assert isinstance(x.type, ScalarType)
            return self.const(x.op.value, VecType(lanes, x.type.dtype))
        return self.emit(t.Splat(x, lanes, loc=self.loc))

    def extract(self, x: Value, lane: int) -> Value:
        """One lane; of a scalar, itself."""
        if isinstance(x.type, ScalarType):
            return x
        return self.emit(t.Extract(x, lane, loc=self.loc))

    def pack(self, scalars: Sequence[Value], dtype: DType) -> Value:
        """A vector from scalars (one scalar stays one)."""
        if len(scalars) == 1:
            return scalars[0]
        value = self.const(False if dtype is bool_ else 0, VecType(len(scalars), dtype))
        for lane, x in enumerate(scalars):
            value = self.emit(t.Insert(value, x, lane, loc=self.loc))
        return value

    def dim(self, expr: Dim) -> Value:
        """The value of an index expression over the dims."""
        return intexpr.fold(expr, self.dims.__getitem__, self.index, lambda op, a, b: self.map(op, a, b))

    # --- values -----------------------------------------------------------------------------------------------------

    def rows(self, value: Value) -> Rows:
        """A lowered tile."""
        found = self.env[value]
        assert isinstance(found, Rows)
        return found

    def scalar(self, value: Value) -> Value:
        """A lowered rank-0 tile (or one with a single element)."""
        return self.rows(value).values[0]

    def ptr(self, value: Value) -> Value:
        """A lowered memory."""
        found = self.env[value]
        assert isinstance(found, Value)
        return found

    def define(self, value: Value, values: Sequence[Value]) -> None:
        """Binds a tile to its values."""
        assert isinstance(value.type, TileType)
        self.env[value] = Rows(value.type.shape, value.type.dtype, tuple(values))

    def flatten(self, values: Sequence[Value]) -> list[Value]:
        """All rows of several tiles, in order."""
        return [v for x in values for v in self.rows(x).values]

    def scalars(self, x: Rows) -> list[Value]:
        """Every element, row-major."""
        return [self.extract(v, lane) for v in x.values for lane in range(x.lanes)]

    def from_scalars(self, scalars: Sequence[Value], shape: tuple[int, ...], dtype: DType) -> list[Value]:
        """Rows of the shape from elements in row-major order."""
        lanes = shape[-1] if shape else 1
        return [self.pack(scalars[k * lanes : (k + 1) * lanes], dtype) for k in range(row_count(shape))]

    # --- blocks -----------------------------------------------------------------------------------------------------

    def region(self, types: Sequence[Type], body: Callable[[list[Value]], Sequence[Value]]) -> Block:
        """Builds a region."""
        builder = Builder(types)
        self.blocks.append(builder)
        outputs = body(builder.args)
        self.blocks.pop()
        return builder.block(outputs)

    def branch(self, pred: Value, then: Callable[[], Sequence[Value]], otherwise: Callable[[], Sequence[Value]]) -> tuple[Value, ...]:
        """An `if` with results."""
        yes = self.region((), lambda _: then())
        no = self.region((), lambda _: otherwise())
        op = t.If(pred, yes, no, loc=self.loc)
        self.emit(op)
        return op.results

    def bind_args(self, args: Sequence[Value], values: Sequence[Value]) -> None:
        """Binds tile arguments of a block to flat values."""
        position = 0
        for arg in args:
            assert isinstance(arg.type, TileType)
            count = row_count(arg.type.shape)
            self.define(arg, values[position : position + count])
            position += count

    def flat_types(self, values: Sequence[Value]) -> list[Type]:
        """The row types of several tiles."""
        types: list[Type] = []
        for value in values:
            assert isinstance(value.type, TileType)
            types += [row_type(value.type.shape, value.type.dtype)] * row_count(value.type.shape)
        return types

    def run(self, block: Block) -> None:
        """Lowers the ops of a block into the current one."""
        for op in block.ops:
            self.loc = op.loc
            rule = RULES.get(type(op))
            if rule is None:
                raise CompileError(f"simd: no lowering for {op.name}", loc=op.loc)
            rule(self, op)


# --- rules ------------------------------------------------------------------------------------------------------------


def _const(s: Lowering, op: tile.Const) -> None:
    assert not isinstance(op.value, complex)
    s.define(op.result, [s.const(op.value, ScalarType(op.dtype))])


def _dim(s: Lowering, op: tile.Dim_) -> None:
    s.define(op.result, [s.dim(op.expr)])


def _program_id(s: Lowering, op: tile.ProgramId) -> None:
    s.define(op.result, [s.program_ids[op.axis]])


def _iota(s: Lowering, op: tile.Iota) -> None:
    shape = op.shape
    type = row_type(shape, int64)
    if op.axis == len(shape) - 1:
        lanes = shape[-1]
        row = s.index(0) if lanes == 1 else s.emit(t.Lanes(lanes, int64, loc=s.loc))
        s.define(op.result, [row] * row_count(shape))
        return
    s.define(op.result, [s.const(i[op.axis], type) for i in itertools.product(*map(range, shape[:-1]))])


def _map(s: Lowering, op: tile.Map) -> None:
    args = [s.rows(a) for a in op.args]
    s.define(op.result, [s.map(op.fn, *row) for row in zip(*[a.values for a in args], strict=True)])


def _cast(s: Lowering, op: tile.Cast) -> None:
    s.define(op.result, [s.cast(v, op.dtype) for v in s.rows(op.x).values])


def _bitcast(s: Lowering, op: tile.Bitcast) -> None:
    s.define(op.result, [s.emit(t.Bitcast(v, op.dtype, loc=s.loc)) for v in s.rows(op.x).values])


def _broadcast(s: Lowering, op: tile.Broadcast) -> None:
    x = s.rows(op.x)
    lanes = op.shape[-1] if op.shape else 1
    values = x.values if x.lanes == lanes else tuple([s.splat(v, lanes) for v in x.values])
    if not x.shape:
        s.define(op.result, list(values) * row_count(op.shape))
        return
    picked: list[Value] = []
    for index in itertools.product(*map(range, op.shape[:-1])):
        flat = 0
        for i, size in zip(index, x.shape[:-1], strict=True):
            flat = flat * size + (i if size > 1 else 0)
        picked.append(values[flat])
    s.define(op.result, picked)


def _reshape(s: Lowering, op: tile.Reshape) -> None:
    x = s.rows(op.x)
    lanes = op.shape[-1] if op.shape else 1
    values = x.values if lanes == x.lanes else s.from_scalars(s.scalars(x), op.shape, x.dtype)
    s.define(op.result, values)


def _transpose(s: Lowering, op: tile.Transpose) -> None:
    x = s.rows(op.x)
    shape = tuple(x.shape[p] for p in op.perm)
    by_row = op.perm and op.perm[-1] == len(shape) - 1
    items = list(x.values) if by_row else s.scalars(x)
    sizes = x.shape[:-1] if by_row else x.shape
    perm = op.perm[:-1] if by_row else op.perm
    result: list[Value] = []
    for index in itertools.product(*[range(sizes[p]) for p in perm]):
        source = [0] * len(perm)
        for k, p in enumerate(perm):
            source[p] = index[k]
        flat = 0
        for i, size in zip(source, sizes, strict=True):
            flat = flat * size + i
        result.append(items[flat])
    s.define(op.result, result if by_row else s.from_scalars(result, shape, x.dtype))


def _view(s: Lowering, op: tile.View) -> None:
    assert isinstance(op.mem.type, MemType)
    s.env[op.result] = View(
        s.ptr(op.mem),
        op.mem.type.dtype,
        s.scalar(op.offset),
        tuple([s.scalar(v) for v in op.sizes]),
        tuple([s.scalar(v) for v in op.strides]),
    )


class _Box:
    """Addresses and masks of one box access."""

    def __init__(
        self, s: Lowering, view: View, coords: Sequence[Value], shape: tuple[int, ...], check: Sequence[int]
    ) -> None:
        self.s = s
        self.view = view
        self.coords = [s.scalar(c) for c in coords]
        self.shape = shape
        self.check = check
        self.lanes = shape[-1] if shape else 1
        self.base = view.offset
        for coord, stride in zip(self.coords, view.strides, strict=True):
            self.base = s.map("add", self.base, s.map("mul", coord, stride))
        self.lane_mask: Value | None = None
        last = len(shape) - 1
        if last in check and self.lanes > 1:
            left = s.map("min", s.map("sub", view.sizes[-1], self.coords[-1]), s.index(self.lanes))
            limit = s.splat(s.cast(left, int32), self.lanes)
            self.lane_mask = s.map("lt", s.emit(t.Lanes(self.lanes, int32, loc=s.loc)), limit)

    def offset(self, index: tuple[int, ...]) -> Value:
        """The element offset of a row's first element."""
        offset = self.base
        for i, stride in zip(index, self.view.strides, strict=False):
            offset = self.s.map("add", offset, self.s.map("mul", self.s.index(i), stride))
        return offset

    def guard(self, index: tuple[int, ...]) -> Value | None:
        """The scalar condition under which a row is inside the view, or None."""
        s = self.s
        found: Value | None = None
        dims = [*index, 0] if self.shape else []
        for axis in self.check:
            if axis == len(self.shape) - 1 and self.lanes > 1:
                continue
            at = s.map("add", self.coords[axis], s.index(dims[axis]))
            inside = s.map("lt", at, self.view.sizes[axis])
            found = inside if found is None else s.map("and", found, inside)
        return found

    def mask(self, index: tuple[int, ...], extra: Value | None) -> Value | None:
        """The whole mask of a row: a scalar bool for scalar rows, a vector otherwise, or None."""
        s = self.s
        guard = self.guard(index)
        if self.lanes > 1 and guard is not None:
            guard = s.splat(guard, self.lanes)
        parts = [m for m in (self.lane_mask, guard, extra) if m is not None]
        if not parts:
            return None
        result = parts[0]
        for part in parts[1:]:
            result = s.map("and", result, part)
        return result


def _indices(shape: tuple[int, ...]) -> list[tuple[int, ...]]:
    return list(itertools.product(*map(range, shape[:-1])))


def _load(s: Lowering, op: tile.Load) -> None:
    view = s.env[op.view]
    assert isinstance(view, View) and not isinstance(op.fill, complex)
    box = _Box(s, view, op.coords, op.shape, op.check)
    extra = s.rows(op.mask[0]).values if op.mask else None
    fill = s.const(op.fill, row_type(op.shape, view.dtype))
    values = [
        _load_row(s, box, index, box.mask(index, extra[k] if extra else None), fill)
        for k, index in enumerate(_indices(op.shape))
    ]
    s.define(op.result, values)


def _load_row(s: Lowering, box: _Box, index: tuple[int, ...], mask: Value | None, fill: Value) -> Value:
    ptr, offset = box.view.ptr, box.offset(index)
    scalar_type = ScalarType(box.view.dtype)
    if box.lanes == 1:
        return _guarded(s, mask, lambda: s.emit(t.Load(ptr, offset, (), scalar_type, loc=s.loc)), fill)
    stride = box.view.strides[-1]
    pair = () if mask is None else (mask, fill)
    if constant_of(stride) == 1:
        return s.emit(t.Load(ptr, offset, pair, VecType(box.lanes, box.view.dtype), loc=s.loc))
    lanes = s.emit(t.Lanes(box.lanes, int64, loc=s.loc))
    offsets = s.map("add", s.splat(offset, box.lanes), s.map("mul", lanes, s.splat(stride, box.lanes)))
    return s.emit(t.Gather(ptr, offsets, pair, box.view.dtype, loc=s.loc))


def _guarded(s: Lowering, mask: Value | None, load: Callable[[], Value], fill: Value) -> Value:
    if mask is None:
        return load()
    return s.branch(mask, lambda: [load()], lambda: [fill])[0]


def _store(s: Lowering, op: tile.Store) -> None:
    view = s.env[op.view]
    assert isinstance(view, View)
    value = s.rows(op.value)
    box = _Box(s, view, op.coords, value.shape, op.check)
    extra = s.rows(op.mask[0]).values if op.mask else None
    for k, index in enumerate(_indices(value.shape)):
        _store_row(s, box, index, value.values[k], box.mask(index, extra[k] if extra else None))


def _store_row(s: Lowering, box: _Box, index: tuple[int, ...], value: Value, mask: Value | None) -> None:
    ptr, offset = box.view.ptr, box.offset(index)
    if box.lanes == 1:
        _when(s, mask, lambda: s.emit(t.Store(ptr, offset, value, (), loc=s.loc)))
        return
    stride = box.view.strides[-1]
    masks = () if mask is None else (mask,)
    if constant_of(stride) == 1:
        s.emit(t.Store(ptr, offset, value, masks, loc=s.loc))
        return
    lanes = s.emit(t.Lanes(box.lanes, int64, loc=s.loc))
    offsets = s.map("add", s.splat(offset, box.lanes), s.map("mul", lanes, s.splat(stride, box.lanes)))
    s.emit(t.Scatter(ptr, offsets, value, masks, loc=s.loc))


def _when(s: Lowering, mask: Value | None, action: Callable[[], object]) -> None:
    if mask is None:
        action()
        return

    def then() -> Sequence[Value]:
        action()
        return ()

    s.branch(mask, then, lambda: ())


def _gather(s: Lowering, op: tile.Gather) -> None:
    assert isinstance(op.mem.type, MemType) and not isinstance(op.fill, complex)
    ptr, dtype = s.ptr(op.mem), op.mem.type.dtype
    offsets = s.rows(op.offsets)
    masks = s.rows(op.mask[0]).values if op.mask else None
    fill = s.const(op.fill, row_type(offsets.shape, dtype))
    values: list[Value] = []
    for k, offset in enumerate(offsets.values):
        mask = masks[k] if masks else None
        if offsets.lanes == 1:

            def load(offset: Value = offset) -> Value:
                return s.emit(t.Load(ptr, offset, (), ScalarType(dtype), loc=s.loc))

            values.append(_guarded(s, mask, load, fill))
        else:
            pair = () if mask is None else (mask, fill)
            values.append(s.emit(t.Gather(ptr, offset, pair, dtype, loc=s.loc)))
    s.define(op.result, values)


def _scatter(s: Lowering, op: tile.Scatter) -> None:
    ptr = s.ptr(op.mem)
    offsets, value = s.rows(op.offsets), s.rows(op.value)
    masks = s.rows(op.mask[0]).values if op.mask else None
    for k, offset in enumerate(offsets.values):
        mask = masks[k] if masks else None
        if offsets.lanes > 1 and op.combine is None:
            s.emit(t.Scatter(ptr, offset, value.values[k], () if mask is None else (mask,), loc=s.loc))
            continue
        for lane in range(offsets.lanes):
            at, x = s.extract(offset, lane), s.extract(value.values[k], lane)
            _when(
                s,
                None if mask is None else s.extract(mask, lane),
                lambda at=at, x=x: _update(s, ptr, at, x, op.combine),
            )


def _update(s: Lowering, ptr: Value, at: Value, x: Value, combine: ScalarFn | None) -> None:
    if combine is not None:
        x = s.map(combine, s.emit(t.Load(ptr, at, (), x.type, loc=s.loc)), x)
    s.emit(t.Store(ptr, at, x, (), loc=s.loc))


def _tree(items: Sequence[Value], combine: Callable[[Value, Value], Value]) -> Value:
    level = list(items)
    while len(level) > 1:
        half = len(level) // 2
        level = [combine(level[k], level[k + half]) for k in range(half)] + level[2 * half :]
    return level[0]


def _slices(x: Rows, axis: int) -> list[list[int]]:
    """For a leading axis: for each row of the result, the rows along the axis."""
    lead = x.shape[:-1]
    kept = [range(n) for k, n in enumerate(lead) if k != axis]
    result: list[list[int]] = []
    for index in itertools.product(*kept):
        rows: list[int] = []
        for i in range(lead[axis]):
            full = [*index[:axis], i, *index[axis:]]
            flat = 0
            for position, size in zip(full, lead, strict=True):
                flat = flat * size + position
            rows.append(flat)
        result.append(rows)
    return result


def _reduce(s: Lowering, op: tile.Reduce) -> None:
    x = s.rows(op.x)
    shape = x.shape[: op.axis] + x.shape[op.axis + 1 :]
    if op.axis == len(x.shape) - 1:
        scalars = [v if x.lanes == 1 else s.emit(t.ReduceLanes(v, op.fn, loc=s.loc)) for v in x.values]
        s.define(op.result, s.from_scalars(scalars, shape, x.dtype))
        return
    s.define(
        op.result,
        [_tree([x.values[r] for r in rows], lambda a, b: s.map(op.fn, a, b)) for rows in _slices(x, op.axis)],
    )


def _pick(s: Lowering, fn: ScalarFn, a: tuple[Value, Value], b: tuple[Value, Value]) -> tuple[Value, Value]:
    """The better of two (value, index) pairs: NaN first, then the extreme, then the smaller index."""
    (x, i), (y, j) = a, b
    dtype = t.element(x.type)
    better = s.map("gt" if fn.name == "max" else "lt", x, y)
    tie = s.map("eq", x, y)
    if dtype.kind is Kind.FLOAT:
        x_nan, y_nan = s.map("ne", x, x), s.map("ne", y, y)
        better = s.map("or", better, s.map("and", x_nan, s.map("not", y_nan)))
        tie = s.map("or", tie, s.map("and", x_nan, y_nan))
    first = s.map("or", better, s.map("and", tie, s.map("lt", i, j)))
    return s.map("select", first, x, y), s.map("select", first, i, j)


def _arg_reduce(s: Lowering, op: tile.ArgReduce) -> None:
    x, index = s.rows(op.x), s.rows(op.index)
    shape = x.shape[: op.axis] + x.shape[op.axis + 1 :]
    pairs = list(zip(x.values, index.values, strict=True))

    def combine(items: Sequence[tuple[Value, Value]]) -> tuple[Value, Value]:
        best = items[0]
        for item in items[1:]:
            best = _pick(s, op.fn, best, item)
        return best

    if op.axis == len(x.shape) - 1:
        found = [
            combine([(s.extract(v, k), s.extract(i, k)) for k in range(x.lanes)]) if x.lanes > 1 else (v, i)
            for v, i in pairs
        ]
        s.define(op.results[0], s.from_scalars([f[0] for f in found], shape, x.dtype))
        s.define(op.results[1], s.from_scalars([f[1] for f in found], shape, index.dtype))
        return
    found = [combine([pairs[r] for r in rows]) for rows in _slices(x, op.axis)]
    s.define(op.results[0], [f[0] for f in found])
    s.define(op.results[1], [f[1] for f in found])


def _scan(s: Lowering, op: tile.Scan) -> None:
    x = s.rows(op.x)

    def running(items: list[Value]) -> list[Value]:
        if op.reverse:
            items = items[::-1]
        out = [items[0]]
        for item in items[1:]:
            out.append(s.map(op.fn, out[-1], item))
        return out[::-1] if op.reverse else out

    if op.axis == len(x.shape) - 1:
        if x.lanes == 1:
            s.define(op.result, x.values)
            return
        values = [s.pack(running([s.extract(v, k) for k in range(x.lanes)]), x.dtype) for v in x.values]
        s.define(op.result, values)
        return
    result = list(x.values)
    for rows in _slices(x, op.axis):
        for row, value in zip(rows, running([x.values[r] for r in rows]), strict=True):
            result[row] = value
    s.define(op.result, result)


def _dot(s: Lowering, op: tile.Dot) -> None:
    a, b, acc = s.rows(op.a), s.rows(op.b), s.rows(op.acc)
    (rows, depth), lanes = a.shape, b.lanes
    dtype = acc.dtype
    fused = dtype.kind is Kind.FLOAT and has_fma(s.machine, dtype)
    result = list(acc.values)
    for k in range(depth):
        right = s.cast(b.values[k], dtype)
        for m in range(rows):
            left = s.splat(s.cast(s.extract(a.values[m], k), dtype), lanes)
            if fused:
                result[m] = s.map("fma", left, right, result[m])
            else:
                result[m] = s.map("add", result[m], s.map("mul", left, right))
    s.define(op.result, result)


def has_fma(machine: Machine, dtype: DType) -> bool:
    """Whether a fused multiply-add of the dtype is one instruction."""
    return machine.fma and dtype.bits in (32, 64)


def _for(s: Lowering, op: tile.For) -> None:
    init = s.flatten(op.init)
    types = [I64, *[v.type for v in init]]

    def body(args: list[Value]) -> Sequence[Value]:
        s.define(op.body.args[0], args[:1])
        s.bind_args(op.body.args[1:], args[1:])
        s.run(op.body)
        return s.flatten(op.body.outputs)

    block = s.region(types, body)
    loop = t.For(s.scalar(op.lo), s.scalar(op.hi), s.scalar(op.step), init, 0, block, loc=op.loc)
    s.emit(loop)
    s.bind_args(op.results, loop.results)


def _while(s: Lowering, op: tile.While) -> None:
    init = s.flatten(op.init)
    types = [v.type for v in init]

    def part(block: Block) -> Block:
        def body(args: list[Value]) -> Sequence[Value]:
            s.bind_args(block.args, args)
            s.run(block)
            return s.flatten(block.outputs)

        return s.region(types, body)

    loop = t.While(init, part(op.cond), part(op.body), loc=op.loc)
    s.emit(loop)
    s.bind_args(op.results, loop.results)


def _if(s: Lowering, op: tile.If) -> None:
    def part(block: Block) -> Callable[[], Sequence[Value]]:
        def body() -> Sequence[Value]:
            s.run(block)
            return s.flatten(block.outputs)

        return body

    results = s.branch(s.scalar(op.pred), part(op.then), part(op.otherwise))
    s.bind_args(op.results, results)


def _arena(s: Lowering, op: tile.Arena) -> None:
    assert s.arena is not None
    s.env[op.result] = s.emit(t.PtrAdd(s.arena, s.dim(op.offset), loc=s.loc))


def _launch(s: Lowering, op: tile.Launch) -> None:
    args = [s.ptr(a) for a in op.args]
    args += [s.dims[name] for name in s.kernels[op.kernel].dims]
    if op.grid:
        args += [s.index(0), *[s.dim(g) for g in op.grid]]
    s.emit(t.Call(args, op.kernel, loc=s.loc))


RULES: dict[type[Op], Callable[..., None]] = {
    tile.Const: _const,
    tile.Dim_: _dim,
    tile.ProgramId: _program_id,
    tile.Iota: _iota,
    tile.Map: _map,
    tile.Cast: _cast,
    tile.Bitcast: _bitcast,
    tile.Broadcast: _broadcast,
    tile.Reshape: _reshape,
    tile.Transpose: _transpose,
    tile.View: _view,
    tile.Load: _load,
    tile.Store: _store,
    tile.Gather: _gather,
    tile.Scatter: _scatter,
    tile.Reduce: _reduce,
    tile.ArgReduce: _arg_reduce,
    tile.Scan: _scan,
    tile.Dot: _dot,
    tile.For: _for,
    tile.While: _while,
    tile.If: _if,
    tile.Arena: _arena,
    tile.Launch: _launch,
}


def lower_kernel(func: Func, grid_rank: int, machine: Machine) -> Func:
    """One kernel as a function over a range of its grid."""
    s = Lowering(machine, func.dims)
    for arg in func.args:
        s.env[arg] = s.entry.arg(PTR, arg.name)
    for name in func.dims:
        s.dims[name] = s.entry.arg(I64, name)
    names = ["lo", "hi", *[f"n{k}" for k in range(1, grid_rank)]] if grid_rank else []
    bounds = [s.entry.arg(I64, name) for name in names]
    _grid_loops(s, func, bounds)
    return Func(func.name, s.entry.block(()))


def _grid_loops(s: Lowering, func: Func, bounds: Sequence[Value]) -> None:
    ranges = [(bounds[0], bounds[1])] if bounds else []
    ranges += [(s.index(0), n) for n in bounds[2:]]

    def nest(level: int) -> None:
        if level == len(ranges):
            s.run(func.body)
            return

        def body(args: list[Value]) -> Sequence[Value]:
            s.program_ids.append(args[0])
            nest(level + 1)
            return ()

        lo, hi = ranges[level]
        block = s.region([I64], body)
        s.emit(t.For(lo, hi, s.index(1), (), 0, block, loc=Loc.unknown))

    nest(0)


def lower_main(func: Func, kernels: dict[str, Func], machine: Machine) -> Func:
    """The entry: pointers of inputs and outputs, the arena, the dims."""
    s = Lowering(machine, func.dims)
    for arg in func.args:
        s.env[arg] = s.entry.arg(PTR, arg.name)
    s.arena = s.entry.arg(PTR, "arena")
    for name in func.dims:
        s.dims[name] = s.entry.arg(I64, name)
    s.kernels = kernels
    s.run(func.body)
    return Func(func.name, s.entry.block(()))


def lower_module(module: Module, machine: Machine) -> Module:
    """A Tile module as a Target module."""
    ranks: dict[str, int] = {}
    for op in walk(module.entry.body):
        if isinstance(op, tile.Launch):
            ranks[op.kernel] = len(op.grid)
    kernels = {name: f for name, f in module.funcs.items() if name != module.main}
    funcs = {name: lower_kernel(f, ranks.get(name, 0), machine) for name, f in kernels.items()}
    funcs[module.main] = lower_main(module.entry, kernels, machine)
    return Module(funcs, module.main)
