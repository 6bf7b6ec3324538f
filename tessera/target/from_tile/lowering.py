"""The state of the CPU lowering: how tiles become rows of registers, and what rules build with."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from tessera.dtypes import DType, bool_, int32, int64
from tessera.errors import CompileError
from tessera.ir import intexpr
from tessera.ir.builder import Builder
from tessera.ir.core import Block, Func, Op, Value
from tessera.ir.intexpr import Dim
from tessera.ir.loc import Loc
from tessera.ir.scalar import ScalarFn, scalar
from tessera.ir.types import ScalarType, Type
from tessera.target import ops as t
from tessera.target.machine import Machine
from tessera.target.types import PtrType, VecType
from tessera.tile.types import TileType

I32, I64 = ScalarType(int32), ScalarType(int64)
BOOL = ScalarType(bool_)
PTR = PtrType()


@dataclass(frozen=True, slots=True)
class Rows:
    """A lowered tile: one value per index of the leading dims, row-major.

    Attributes:
        shape: of the tile.
        dtype: of its elements.
        values: the rows.
        mixed: where the rows lie mixed in memory, one element of each after the other, what is
            there.
    """

    shape: tuple[int, ...]
    dtype: DType
    values: tuple[Value, ...]
    mixed: Value | None = None

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


FOLDED: Mapping[str, Callable[[int, int], int]] = {
    "add": operator.add, "sub": operator.sub, "mul": operator.mul, "min": min, "max": max,
}  # fmt: skip
"""Functions of two known integers, which are constants."""

COMPARED: Mapping[str, Callable[[int, int], bool]] = {
    name: getattr(operator, name) for name in ("eq", "ne", "lt", "le", "gt", "ge")
}
"""The same for comparisons."""


def is_power(n: int) -> bool:
    """Whether a number is a power of two above one."""
    return n > 1 and not n & (n - 1)


Rule = Callable[..., None]
"""Lowers one op: `rule(lowering, op)`."""


PART = 128
"""Bits of a vector that are mixed with those of another one in an instruction."""


class Lowering:
    """Lowers one function."""

    def __init__(
        self, machine: Machine, dims: Sequence[str], rules: Mapping[type[Op], Rule]
    ) -> None:
        self.machine = machine
        self.rules = rules
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
        self.host_calls = 0
        # Functions of the program that no kernel is lowered to.
        self.made: dict[str, Func] = {}
        # Whether registers for matrices are set up, for all products of the kernel.
        self.has_panels = False
        # The rows of scans, by block, operand, function and axis: their ends are the totals.
        self.scans: dict[tuple[object, ...], tuple[list[Value], bool]] = {}
        # Where the program uses a GPU: the record of its run.
        self.run_record: Value | None = None

    # --- emission ---

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
        folded: Value | None = None
        if fn.name == "select" and isinstance(args[0].op, t.Const):
            folded = args[1] if args[0].op.value else args[2]
        elif fn.name == "neg" and args[0].type == I64:
            folded = self._fold("sub", self.index(0), args[0])
        elif len(args) == 2 and args[0].type in (I64, I32):
            folded = self._fold(fn.name, args[0], args[1])
        return folded or self.emit(t.Map(args, fn, loc=self.loc))

    def _fold(self, name: str, a: Value, b: Value) -> Value | None:
        x, y = constant_of(a), constant_of(b)
        if x is not None and y is not None and name in COMPARED:
            return self.const(COMPARED[name](x, y), BOOL)
        if a.type != I64:
            return None
        if x is not None and y is not None and name in FOLDED:
            return self.index(FOLDED[name](x, y))
        if (name == "add" and x == 0) or (name == "mul" and x == 1):
            return b
        if (name in ("add", "sub") and y == 0) or (name == "mul" and y == 1):
            return a
        if name == "mul" and (x == 0 or y == 0):
            return self.index(0)
        return None

    def cast(self, x: Value, dtype: DType) -> Value:
        """A conversion, unless it is none; a small integer constant stays a constant."""
        known = constant_of(x) if x.type == I64 and dtype is int32 else None
        if known is not None and -(1 << 31) <= known < 1 << 31:
            return self.const(known, ScalarType(int32))
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

    def pick(self, x: Value, lanes: range) -> Value:
        """Some neighbouring lanes of a vector, perhaps all."""
        assert isinstance(x.type, VecType)
        if len(lanes) == x.type.lanes:
            return x
        return self.emit(t.Shuffle(x, x, tuple(lanes), loc=self.loc))

    def turn(self, rows: Sequence[Value]) -> list[Value]:
        """The transpose of as many vectors as they have lanes, a power of two.

        Each step is one instruction for each vector. Parts of 128 bits (`PART`) are turned first:
        the vectors of a part are interleaved, which moves the bits of number and lane round, one
        behind the other. Then whole parts go where they belong, by those of even and odd number.
        """
        n, found = len(rows), list(rows)
        part = min(n, PART // t.element(rows[0].type).bits)
        place = [(k - k % part + k % part // 2, k % 2 * n) for k in range(n)]
        near = [tuple([at + m + side for at, side in place]) for m in (0, part // 2)]
        far = [
            tuple([k % part + (2 * (k // part) + m) * part for k in range(n)]) for m in (0, 1)
        ]

        def pick(a: Value, b: Value, picks: tuple[int, ...]) -> Value:
            return self.emit(t.Shuffle(a, b, picks, loc=self.loc))

        for _ in range(part.bit_length() - 1):
            for first in range(0, n, part):
                group = found[first : first + part]
                pairs = zip(group[: part // 2], group[part // 2 :], strict=True)
                found[first : first + part] = [pick(a, b, m) for a, b in pairs for m in near]
        for _ in range((n // part).bit_length() - 1):
            for lane in range(part):
                group = found[lane::part]
                pairs = list(zip(group[::2], group[1::2], strict=True))
                found[lane::part] = [pick(a, b, m) for m in far for a, b in pairs]
        return found

    def chain(self, parts: Sequence[Value]) -> Value:
        """One vector after the other; a power of two of them."""
        found = list(parts)
        while len(found) > 1:
            picks = tuple(range(2 * t.lanes(found[0].type)))
            pairs = zip(found[::2], found[1::2], strict=True)
            found = [self.emit(t.Shuffle(x, y, picks, loc=self.loc)) for x, y in pairs]
        return found[0]

    def mix(self, rows: Sequence[Value]) -> Value:
        """One element of each vector after the other; a power of two of them."""
        found, size = list(rows), 1
        while len(found) > 1:
            # Groups of two halves, one after the other in each lane.
            assert isinstance(found[0].type, VecType)
            count = found[0].type.lanes
            halves = [(k // (2 * size) * size + k % size, k // size % 2) for k in range(2 * count)]
            picks = tuple([place + count * half for place, half in halves])
            pairs = zip(found[::2], found[1::2], strict=True)
            found = [self.emit(t.Shuffle(x, y, picks, loc=self.loc)) for x, y in pairs]
            size *= 2
        return found[0]

    def dim(self, expr: Dim) -> Value:
        """The value of an index expression over the dims."""
        return intexpr.fold(
            expr, self.dims.__getitem__, self.index, lambda op, a, b: self.map(op, a, b)
        )

    # --- values ---

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

    def from_scalars(
        self, scalars: Sequence[Value], shape: tuple[int, ...], dtype: DType
    ) -> list[Value]:
        """Rows of the shape from elements in row-major order."""
        lanes = shape[-1] if shape else 1
        return [
            self.pack(scalars[k * lanes : (k + 1) * lanes], dtype) for k in range(row_count(shape))
        ]

    # --- blocks ---

    def region(
        self, types: Sequence[Type], body: Callable[[list[Value]], Sequence[Value]]
    ) -> Block:
        """Builds a region."""
        builder = Builder(types)
        self.blocks.append(builder)
        outputs = body(builder.args)
        self.blocks.pop()
        return builder.block(outputs)

    def branch(
        self,
        pred: Value,
        then: Callable[[], Sequence[Value]],
        otherwise: Callable[[], Sequence[Value]],
    ) -> tuple[Value, ...]:
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

    def run(self, block: Block) -> None:
        """Lowers the ops of a block into the current one."""
        self.run_ops(block.ops)

    def run_ops(self, code: Sequence[Op]) -> None:
        """Lowers ops into the current block."""
        for op in code:
            self.loc = op.loc
            rule = self.rules.get(type(op))
            if rule is None:
                raise CompileError(f"simd: no lowering for {op.name}", loc=op.loc)
            rule(self, op)
