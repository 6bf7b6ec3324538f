"""The state of one GPU kernel's lowering: emission, thread coordinates, tiles in registers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from tessera.dtypes import DType, Kind, bool_, int32, int64
from tessera.errors import CompileError
from tessera.ir import intexpr
from tessera.ir.builder import Builder
from tessera.ir.core import Block, Func, Op, Value
from tessera.ir.intexpr import Dim
from tessera.ir.loc import Loc
from tessera.ir.scalar import ScalarFn, scalar
from tessera.ir.types import ScalarType, Type
from tessera.target import gpu_ops as g
from tessera.target import ops as t
from tessera.target.from_tile.simt.assign import Assignment
from tessera.target.from_tile.simt.divide import Divisibility
from tessera.target.from_tile.simt.overwriting import Overwriting
from tessera.target.from_tile.simt.spread import LANE_BITS, Piece, Spread, flat_bits
from tessera.target.gpu import Gpu
from tessera.target.types import PtrType
from tessera.tile import ops as tile
from tessera.tile.index_width import INDEX
from tessera.tile.types import TileType

I32 = ScalarType(int32)
I64 = ScalarType(int64)
BOOL = ScalarType(bool_)
PTR = PtrType()

Number = bool | int | float

LARGEST_I32 = (1 << 31) - 1


@dataclass(frozen=True, slots=True)
class Held:
    """A tile in registers: `values[r]` is register r of the spread; one value if there is none."""

    shape: tuple[int, ...]
    dtype: DType
    spread: Spread | None
    values: tuple[Value, ...]


@dataclass(frozen=True, slots=True)
class Window:
    """A view: where it is, and its parts as Target scalars and as the Tile ops that made them."""

    memory: Value
    source: Value
    dtype: DType
    offset: Value
    sizes: tuple[Value, ...]
    strides: tuple[Value, ...]


Rule = Callable[..., None]
"""Lowers one op: `rule(lowering, op)`."""


class Simt:
    """Lowers one kernel.

    Attributes:
        machine: the GPU.
        warps: of a block.
        spreads: how each tile lies.
        divisors: what is known of index scalars.
        written: memory arguments that the kernel writes.
        overwriting: those that may lie where another one does.
        is_narrow: whether 32 bits hold the place of every element in its memory.
        loc: the location of new ops.
    """

    def __init__(
        self,
        machine: Gpu,
        func: Func,
        warps: int,
        assignment: Assignment,
        rules: Mapping[type[Op], Rule],
    ) -> None:
        self.machine = machine
        self.warps = warps
        self.spreads = assignment
        self.divisors: Divisibility = assignment.divisors
        self.rules = rules
        self.frames: list[Builder] = []
        self.made: list[dict[object, Value]] = []
        self.levels: dict[Value, int] = {}
        self.env: dict[Value, Held] = {}
        self.windows: dict[Value, Window] = {}
        self.memory: dict[Value, Value] = {}
        self.dims: dict[str, Value] = {}
        self.program_ids: list[Value] = []
        self.written: set[Value] = set()
        self.overwriting = Overwriting(())
        self.func = func
        self.is_narrow = func.attrs.get(INDEX) == "i32"
        self.users: dict[Value, list[Op | None]] = {}
        _collect_users(func.body, self.users)
        self.loc: Loc = Loc.unknown

    # --- emission -----------------------------------------------------------------------------

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return 32 * self.warps

    def open(self, types: Sequence[Type], names: Sequence[str] = ()) -> list[Value]:
        """Opens a block; returns its arguments."""
        builder = Builder(types, names)
        self.frames.append(builder)
        self.made.append({})
        for arg in builder.args:
            self.levels[arg] = len(self.frames) - 1
        return builder.args

    def close(self, outputs: Sequence[Value] = ()) -> Block:
        """Closes the innermost block."""
        self.made.pop()
        return self.frames.pop().block(outputs)

    def emit(self, op: Op) -> Value:
        """Adds an op to the innermost block."""
        self.frames[-1].ops.append(op)
        for result in op.results:
            self.levels[result] = len(self.frames) - 1
        return op.results[0] if op.results else _NOTHING

    def pure(self, cls: type[Op], *args: Any, floor: int = 0) -> Value:
        """The result of a pure op, in the block of its operands, computed once there."""
        level = floor
        for arg in args:
            if isinstance(arg, Value):
                level = max(level, self.levels[arg])
            elif isinstance(arg, tuple):
                items = cast("tuple[Any, ...]", arg)
                level = max([level, *[self.levels[v] for v in items if isinstance(v, Value)]])
        key = (cls, *[repr(a) if isinstance(a, (float, int)) else a for a in args])
        found = self.made[level].get(key)
        if found is None:
            op = cls(*args, loc=self.loc)
            self.frames[level].ops.append(op)
            found = op.result
            self.levels[found] = level
            self.made[level][key] = found
        return found

    def const(self, value: Number, dtype: DType) -> Value:
        """A scalar constant."""
        return self.pure(t.Const, value, ScalarType(dtype))

    def i32(self, value: int) -> Value:
        """An i32 constant."""
        return self.const(value, int32)

    def i64(self, value: int) -> Value:
        """An i64 constant."""
        return self.const(value, int64)

    def number(self, value: Value) -> int | None:
        """The integer that a Target scalar is known to be."""
        op = value.op
        if isinstance(op, t.Const) and isinstance(op.value, int):
            return int(op.value)
        return None

    def index(self, fn: str, a: Value, b: Value) -> Value:
        """Arithmetic on index scalars, hoisted, with identities folded."""
        x, y = self.number(a), self.number(b)
        dtype = t.element(a.type)
        if x is not None and y is not None and fn in _FOLDED:
            return self.const(_wrapped(_FOLDED[fn](x, y), dtype.bits), dtype)
        if x is not None and fn in ("add", "mul", "and", "min", "max"):
            a, b, x, y = b, a, y, x
        if y == 0 and fn in ("add", "sub", "shl", "shr", "or", "xor"):
            return a
        if y == 1 and fn in ("mul", "floordiv", "trunc_div"):
            return a
        if y == 0 and fn in ("mul", "and"):
            return b
        if y == 1 and fn in ("mod", "rem"):
            return self.const(0, dtype)
        return self.pure(t.Map, (a, b), scalar(fn))

    def map(self, fn: ScalarFn | str, *args: Value) -> Value:
        """A row of the scalar table, computed here."""
        row = scalar(fn) if isinstance(fn, str) else fn
        return self.emit(t.Map(args, row, loc=self.loc))

    def cast(self, x: Value, dtype: DType) -> Value:
        """A conversion of an index, unless it is none."""
        if t.element(x.type) is dtype:
            return x
        number = self.number(x)
        if number is not None and dtype.is_integer:
            return self.const(number, dtype)
        return self.pure(t.Cast, x, dtype)

    def narrow(self, x: Value) -> Value:
        """The low 32 bits of an index: of what a sum or product is made of, without it."""
        op, number = x.op, self.number(x)
        if t.element(x.type) is int32:
            return x
        if number is not None:
            return self.i32(_wrapped(number, 32))
        if isinstance(op, t.Cast) and t.element(op.x.type) is int32:
            return op.x
        if isinstance(op, t.Map) and op.fn.name in ("add", "sub", "mul"):
            return self.index(op.fn.name, self.narrow(op.args[0]), self.narrow(op.args[1]))
        return self.cast(x, int32)

    def convert(self, x: Value, dtype: DType) -> Value:
        """A conversion of data, unless it is none."""
        return x if t.element(x.type) is dtype else self.emit(t.Cast(x, dtype, loc=self.loc))

    def all_of(self, conditions: Sequence[Value | None]) -> Value | None:
        """The conjunction of conditions; None if there are none."""
        found: Value | None = None
        for condition in conditions:
            if condition is None or condition is found:
                continue
            found = condition if found is None else self.index("and", found, condition)
        return found

    def dim(self, expr: Dim) -> Value:
        """The value of an index expression over the dims."""
        return intexpr.fold(expr, self.dims.__getitem__, self.i64, self.index)

    # --- threads ------------------------------------------------------------------------------

    @property
    def thread(self) -> Value:
        """The thread's number."""
        return self.pure(g.ThreadId)

    @property
    def never(self) -> Value:
        """What is false, but not known to be."""
        warp = self.pure(g.Uniform, self.index("shr", self.thread, self.i32(LANE_BITS)))
        return self.index("ge", warp, self.i32(32))

    def bits_of_thread(self, pieces: Sequence[Piece]) -> Value:
        """A number put together from bits of the thread's."""
        found: Value | None = None
        for piece in merged(pieces):
            part = self.index("shr", self.thread, self.i32(piece.right))
            if piece.mask != (self.threads - 1) >> piece.right:
                part = self.index("and", part, self.i32(piece.mask))
            part = self.index("shl", part, self.i32(piece.left))
            found = part if found is None else self.index("add", found, part)
        return self.i32(0) if found is None else found

    def coordinate(self, spread: Spread, dim: int) -> Value:
        """The thread's own part of a coordinate, i32."""
        return self.bits_of_thread(spread.pieces(dim))

    def mixed(self, columns: Sequence[int]) -> Value:
        """XOR of `columns[k]` over the bits k that the thread's number has."""
        single = [(k, c) for k, c in enumerate(columns) if c and not c & (c - 1)]
        pieces = merged([Piece(k, 1, c.bit_length() - 1) for k, c in single])
        rest = [(k, c) for k, c in enumerate(columns) if c & (c - 1)]
        found: Value | None = None
        for piece in pieces:
            part = self.bits_of_thread([piece])
            found = part if found is None else self.index("xor", found, part)
        for k, column in rest:
            bit = self.bits_of_thread([Piece(k, 1, 0)])
            part = self.index("mul", bit, self.i32(column))
            found = part if found is None else self.index("xor", found, part)
        return self.i32(0) if found is None else found

    def thread_bit(self, k: int) -> Value:
        """Whether bit k of the thread's number is set."""
        bit = self.index("and", self.thread, self.i32(1 << k))
        return self.index("ne", bit, self.i32(0))

    def first_copy(self, mask: int) -> Value | None:
        """Whether the thread is the one of several copies that acts; None if there are none."""
        if mask == 0:
            return None
        if mask == self.threads - 1:
            return self.index("eq", self.thread, self.i32(0))
        return self.index("eq", self.index("and", self.thread, self.i32(mask)), self.i32(0))

    # --- tiles --------------------------------------------------------------------------------

    def held(self, value: Value) -> Held:
        """A lowered tile."""
        return self.env[value]

    def scalar(self, value: Value) -> Value:
        """A lowered tile of one element."""
        return self.env[value].values[0]

    def spread_of(self, value: Value) -> Spread | None:
        """How a tile shall lie; None for one element."""
        assert isinstance(value.type, TileType)
        return self.spreads.of(value) if flat_bits(value.type.shape) else None

    def define(self, value: Value, values: Sequence[Value], spread: Spread | None = None) -> None:
        """Binds a tile to its registers."""
        assert isinstance(value.type, TileType)
        type = value.type
        if flat_bits(type.shape) == 0:
            spread = None
        elif spread is None:
            spread = self.spreads.of(value)
        count = 1 if spread is None else spread.registers
        if len(values) != count:
            raise CompileError(f"simt: {len(values)} registers for {type}, not {count}")
        self.env[value] = Held(type.shape, type.dtype, spread, tuple(values))

    def registers(self, value: Value) -> int:
        """How many registers a tile takes."""
        spread = self.spread_of(value)
        return 1 if spread is None else spread.registers

    def is_narrowed(self, value: Value) -> bool:
        """Whether all that is made of a tile is a conversion to a float of 16 bits or fewer."""
        return all(
            isinstance(op, tile.Cast) and op.dtype.kind is Kind.FLOAT and op.dtype.bits <= 16
            for op in self.users.get(value, ())
        )

    def element_coordinate(self, spread: Spread, dim: int, register: int) -> Value:
        """The coordinate along a dim of the element in a register, i32."""
        own = self.coordinate(spread, dim)
        return self.index("add", own, self.i32(spread.coordinates[register][dim]))

    # --- blocks -------------------------------------------------------------------------------

    def region(
        self, types: Sequence[Type], body: Callable[[list[Value]], Sequence[Value]]
    ) -> Block:
        """Builds a region."""
        args = self.open(types)
        outputs = body(args)
        return self.close(outputs)

    def branch(
        self,
        pred: Value,
        then: Callable[[], Sequence[Value]],
        otherwise: Callable[[], Sequence[Value]] = tuple,
    ) -> tuple[Value, ...]:
        """An `if` with results."""
        loc = self.loc
        yes = self.region((), lambda _: then())
        no = self.region((), lambda _: otherwise())
        op = t.If(pred, yes, no, loc=loc)
        self.emit(op)
        return op.results

    def run(self, block: Block) -> None:
        """Lowers the ops of a block into the current one."""
        for op in block.ops:
            self.loc = op.loc
            rule = self.rules.get(type(op))
            if rule is None:
                raise CompileError(f"simt: no lowering for {op.name}", loc=op.loc)
            rule(self, op)


def _collect_users(block: Block, users: dict[Value, list[Op | None]]) -> None:
    """The ops that use each value; None stands for the end of a block."""
    for op in block.ops:
        for value in op.operands:
            users.setdefault(value, []).append(op)
        for region in op.regions:
            _collect_users(region, users)
    for value in block.outputs:
        users.setdefault(value, []).append(None)


def _wrapped(value: int, bits: int) -> int:
    """The signed number of so many bits that an overflowing one becomes."""
    half = 1 << bits - 1
    return (value + half) % (2 * half) - half


_NOTHING = Value(I64)

_FOLDED: Mapping[str, Callable[[int, int], int]] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "min": min,
    "max": max,
    "shl": lambda a, b: a << b,
    "and": lambda a, b: a & b,
    "or": lambda a, b: a | b,
    "floordiv": lambda a, b: a // b if b else 0,
    "mod": lambda a, b: a % b if b else 0,
}


def merged(pieces: Sequence[Piece]) -> list[Piece]:
    """The same with neighbouring bits in one piece."""
    found: list[Piece] = []
    for piece in pieces:
        last = found[-1] if found else None
        width = last.mask.bit_length() if last is not None else 0
        if (
            last is not None
            and piece.right == last.right + width
            and piece.left == last.left + width
        ):
            found[-1] = Piece(last.right, last.mask | piece.mask << width, last.left)
        else:
            found.append(piece)
    return found
