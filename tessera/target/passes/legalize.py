"""Legalization for CPUs: everything that the LLVM writer has no row for is rewritten into what it
has.

- Arithmetic on formats narrower than float32 happens in float32: casts in, the function, a cast
  out.
- Casts between those formats and others become integer operations, except f16 <-> f32 where the
  machine has them.
- Scalar functions without a row are expanded by `target/passes/expand.py`, transcendental ones by
  `target/passes/mathematics.py`, and those of narrow formats that a wider one does not compute by
  `target/passes/narrow.py`.
- Long expansions that a function uses often become functions of their own.

The rewritten program uses the same IR, so the interpreter runs it as well, and tests compare both.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import is_

import numpy as np

from tessera.dtypes import (
    DType,
    Kind,
    bfloat16,
    bool_,
    float8_e4m3fn,
    float8_e5m2,
    float16,
    float32,
    float64,
    int4,
    int8,
    uint8,
    uint16,
    uint32,
)
from tessera.ir.core import Block, Func, Module, Op, Value
from tessera.ir.loc import Loc
from tessera.ir.scalar import ScalarFn
from tessera.ir.types import Type
from tessera.ir.walk import walk
from tessera.target import ops as t
from tessera.target.build import Build
from tessera.target.llvm.rows import ROWS
from tessera.target.llvm.text import GUARDED, suffix
from tessera.target.machine import Feature, Machine
from tessera.target.passes.expand import EXPANSIONS
from tessera.target.passes.mathematics import ON_CPUS
from tessera.target.passes.narrow import NARROW

MAX_LENGTH = 1500
"""A function holds so much code of long expansions; with more it calls one copy of some of them.
Loops over rows of registers, which are written out, stay below: a call would cost them a little,
while code of many thousands of instructions costs LLVM more than linear time."""

FEW_COPIES = 8
"""So many copies are always written."""

LONG_CODE = 20
"""An expansion of so many ops is long. Arithmetic of bfloat16, which has 17, is not: a call takes
all registers."""

EXACT = frozenset({"max", "min", "neg", "abs", "sign", "floor", "ceil", "trunc", "round"})
"""Functions whose results for bfloat16 operands need no rounding."""

ARITHMETIC = frozenset({"add", "sub", "mul", "div", "square", "sqrt"})
"""Instructions whose NaNs are those of their operands, made quiet, or one whose lower half is 0."""

_CARRIES_NANS = ARITHMETIC | EXACT | {"fma", "select"}
"""Functions of float32 that make no other NaNs either."""

_KEEPS_NANS = (t.Map, t.ReduceLanes, t.Shuffle, t.Splat, t.Extract, t.Insert)
"""Ops that make none, the first two with such functions."""

CONSTANT_DIVISION = 12
"""The instructions of an integer division by a constant, or of vectors by way of floats."""

Use = tuple[str, tuple[Type, ...]]
"""A scalar function and the types of its operands."""


@dataclass(frozen=True, slots=True)
class Format:
    """A binary floating-point format narrower than float32.

    Attributes:
        mantissa: stored mantissa bits.
        bias: exponent bias.
        carrier: unsigned integer of the same width.
        infinity: the code of infinity, or None where the format has none.
        nan: the code of NaN.
        largest: the code of the largest finite number.
    """

    mantissa: int
    bias: int
    carrier: DType
    infinity: int | None
    nan: int
    largest: int


FORMATS: dict[DType, Format] = {
    float16: Format(10, 15, uint16, 0x7C00, 0x7E00, 0x7BFF),
    float8_e5m2: Format(2, 15, uint8, 0x7C, 0x7E, 0x7B),
    float8_e4m3fn: Format(3, 7, uint8, None, 0x7F, 0x7E),
}


def is_small(dtype: DType) -> bool:
    """Whether arithmetic on the dtype happens in a wider one."""
    return dtype is int4 or (dtype.kind is Kind.FLOAT and dtype.bits < 32)


def widen_small(b: Build, x: Value, dtype: DType) -> Value:
    """A small float as float32, exactly."""
    if dtype is bfloat16:
        code = b.cast(b.bitcast(x, uint16), uint32)
        return b.bitcast(b.map("shl", code, b.like(code, 16)), float32)
    form = FORMATS[dtype]
    width = 8 * form.carrier.itemsize
    code = b.cast(b.bitcast(x, form.carrier), uint32)
    sign = b.map(
        "shl", b.map("and", code, b.like(code, 1 << (width - 1))), b.like(code, 32 - width)
    )
    magnitude = b.map("and", code, b.like(code, (1 << (width - 1)) - 1))
    # Bits in place, then scaled: a multiplication by a power of two also normalizes the subnormals.
    placed = b.bitcast(b.map("shl", magnitude, b.like(code, 23 - form.mantissa)), float32)
    scaled = b.map("mul", placed, b.like(placed, 2.0 ** (127 - form.bias)))
    bits = b.bitcast(scaled, uint32)
    special = b.map("gt", magnitude, b.like(code, form.largest))
    if form.infinity is not None:
        fraction = b.map("shl", magnitude, b.like(code, 23 - form.mantissa))
        bits = b.select(special, b.map("or", fraction, b.like(code, 0x7F800000)), bits)
    else:
        bits = b.select(special, b.like(code, 0x7FC00000), bits)
    return b.bitcast(b.map("or", bits, sign), float32)


def narrow_small(b: Build, x: Value, dtype: DType) -> Value:
    """A float32 rounded to a small float, to nearest even; too large is infinity, or NaN where
    there is none.
    """
    if dtype is bfloat16:
        return _upper_half(b, _round_bfloat(b, x))
    form = FORMATS[dtype]
    width = 8 * form.carrier.itemsize
    shift = 23 - form.mantissa
    bits = b.bitcast(x, uint32)
    sign = b.map("shr", b.map("and", bits, b.like(bits, 0x80000000)), b.like(bits, 32 - width))
    magnitude = b.map("and", bits, b.like(bits, 0x7FFFFFFF))
    odd = b.map("and", b.map("shr", magnitude, b.like(bits, shift)), b.like(bits, 1))
    rounded = b.map("add", b.map("add", magnitude, b.like(bits, (1 << (shift - 1)) - 1)), odd)
    normal = b.map(
        "sub",
        b.map("shr", rounded, b.like(bits, shift)),
        b.like(bits, (127 - form.bias) << form.mantissa),
    )
    # Below the smallest normal: adding a number whose last place is the smallest subnormal rounds
    # to a multiple of it.
    magic = 2.0 ** (1 - form.bias - form.mantissa + 23)
    absolute = b.bitcast(magnitude, float32)
    summed = b.bitcast(b.map("add", absolute, b.like(absolute, magic)), uint32)
    subnormal = b.map("sub", summed, b.bitcast(b.like(absolute, magic), uint32))
    small = b.map("lt", magnitude, b.like(bits, (128 - form.bias) << 23))
    code = b.select(small, subnormal, normal)
    over = form.nan if form.infinity is None else form.infinity
    too_large = b.map("gt", code, b.like(bits, form.largest))
    code = b.select(b.map("and", too_large, b.map("not", small)), b.like(bits, over), code)
    code = b.select(b.map("gt", magnitude, b.like(bits, 0x7F800000)), b.like(bits, form.nan), code)
    return b.bitcast(b.cast(b.map("or", code, sign), form.carrier), dtype)


def _round_bfloat(b: Build, x: Value, has_short_nans: bool = False) -> Value:
    """The bits of a float32 of which the upper half is the bfloat16 that it is rounded to."""
    bits = b.bitcast(x, uint32)
    odd = b.map("and", b.map("shr", bits, b.like(bits, 16)), b.like(bits, 1))
    rounded = b.map("add", b.map("add", bits, b.like(bits, 0x7FFF)), odd)
    if has_short_nans:  # then they carry nothing over, and stay NaN
        return rounded
    quiet = b.map("or", b.map("and", bits, b.like(bits, 0x80000000)), b.like(bits, 0x7FC00000))
    return b.select(b.map("ne", x, x), quiet, rounded)


def _upper_half(b: Build, bits: Value) -> Value:
    """The bfloat16 in the upper half of a word."""
    return b.bitcast(b.cast(b.map("shr", bits, b.like(bits, 16)), uint16), bfloat16)


def round_to_odd(b: Build, x: Value) -> Value:
    """A float64 as float32 rounded to odd, so that rounding again to fewer bits rounds correctly.
    """
    near = b.cast(x, float32)
    back = b.cast(near, float64)
    bits = b.bitcast(near, uint32)
    even = b.map("eq", b.map("and", bits, b.like(bits, 1)), b.like(bits, 0))
    inexact = b.map("and", b.map("ne", back, x), b.map("eq", x, x))
    outside = b.map("gt", b.map("abs", back), b.map("abs", x))
    moved = b.select(
        outside, b.map("sub", bits, b.like(bits, 1)), b.map("add", bits, b.like(bits, 1))
    )
    return b.bitcast(b.select(b.map("and", inexact, even), moved, bits), float32)


class Legalizer:
    """Rewrites one function.

    Args:
        machine: the CPU.
        shared: what is called rather than expanded, and the names of the functions.
    """

    def __init__(self, machine: Machine, shared: Mapping[Use, str] | None = None) -> None:
        self.machine = machine
        self.shared = shared or {}
        self.env: dict[Value, Value] = {}
        self.active: set[str] = set()
        # Of the block at hand: small floats as float32, and words of which they are a half.
        self.wide: dict[Value, Value] = {}
        self.words: dict[Value, Value] = {}
        # float32 whose lower half is 0 where it is NaN.
        self.short_nans: set[Value] = set()

    def block(self, block: Block) -> Block:
        """A block, the same one where all of it stays; arguments stay."""
        has = self.machine
        build = Build(
            fused=has.fma, scales=has.scales, looks_up=has.looks_up, assists=has.assists,
            pairs=has.pairs,
        )  # fmt: skip
        around = self.wide, self.words
        self.wide, self.words = {}, {}
        for op in block.ops:
            self.op(op, build)
            if self.short_nans and isinstance(op, _KEEPS_NANS):
                self.note_nans(op)
        self.wide, self.words = around
        outputs = [self.env.get(v, v) for v in block.outputs]
        if _are(build.ops, block.ops) and _are(outputs, block.outputs):
            return block
        return Block(block.args, build.ops, outputs)

    def op(self, op: Op, build: Build) -> None:
        """One op."""
        operands = [self.env.get(v, v) for v in op.operands]
        build.loc = op.loc
        if isinstance(op, t.Map):
            callee = self.shared.get(_use(op)) if self.shared else None
            if callee is None and self.stays(op, operands):
                build.ops.append(op)
            elif callee is None:
                self.env[op.result] = self.map(build, op, operands)
            else:
                call = t.Apply(operands, callee, op.result.type, loc=op.loc)
                self.env[op.result] = build.emit(call)
        elif isinstance(op, t.Cast):
            if operands[0] is op.x and _is_direct(op):
                build.ops.append(op)
            else:
                self.env[op.result] = self.cast(build, operands[0], op.dtype)
        elif isinstance(op, t.ReduceLanes) and is_small(t.element(op.x.type)):
            dtype = t.element(op.x.type)
            wide = self.cast(build, operands[0], _working(dtype))
            self.env[op.result] = self.back(build, op.fn, self.reduce(build, op.fn, wide), dtype)
        elif isinstance(op, t.ReduceLanes):
            self.env[op.result] = self.reduce(build, op.fn, operands[0])
        else:
            self.other(op, operands, build)

    def note_nans(self, op: Op) -> None:
        """Notes a result whose NaNs are those of operands that have short ones."""
        if isinstance(op, t.Map | t.ReduceLanes) and op.fn.name not in _CARRIES_NANS:
            return
        result = self.env.get(op.results[0], op.results[0])
        if t.element(result.type) is float32 and all(
            [self.has_short_nans(self.env.get(v, v)) for v in op.operands]
        ):
            self.short_nans.add(result)

    def has_short_nans(self, x: Value) -> bool:
        """Whether the lower half of all NaNs is 0; so it is where there are none."""
        return (
            x in self.short_nans or isinstance(x.op, t.Const) or t.element(x.type) is not float32
        )

    def other(self, op: Op, operands: list[Value], build: Build) -> None:
        """An op that has no rule of its own."""
        regions = [self.block(region) for region in op.regions]
        if _are(operands, op.operands) and _are(regions, op.regions):
            build.ops.append(op)
            return
        fresh = op.rebuild(operands, regions)
        build.ops.append(fresh)
        self.env.update(zip(op.results, fresh.results, strict=True))

    def stays(self, op: t.Map, operands: list[Value]) -> bool:
        """Whether a scalar function is written as it is."""
        dtype = t.element(op.args[-1].type)
        if is_small(dtype) or self.expansion(op.fn.name, dtype) is not None:
            return False
        return _are(operands, op.operands)

    def map(self, b: Build, op: t.Map, args: list[Value]) -> Value:
        """A scalar function."""
        dtype = t.element(args[-1].type)
        if is_small(dtype) and op.fn.name in NARROW:
            return self.expand(b, NARROW[op.fn.name], args)
        if is_small(dtype) and op.fn.name != "select":
            working = _working(dtype)
            wide = [self.cast(b, a, working) if is_small(t.element(a.type)) else a for a in args]
            value = self.apply(b, op.fn.name, wide)
            if dtype is bfloat16 and op.fn.name in ARITHMETIC:
                self.short_nans.add(value)
            result = t.element(op.result.type)
            return self.back(b, op.fn, value, result)
        return self.apply(b, op.fn.name, args)

    def back(self, b: Build, fn: ScalarFn, value: Value, dtype: DType) -> Value:
        """The result of a function of widened operands, narrowed."""
        if fn.name in EXACT and dtype is bfloat16:
            return self.upper_half(b, b.bitcast(value, uint32))
        return self.cast(b, value, dtype)

    def apply(self, b: Build, name: str, args: list[Value]) -> Value:
        """A scalar function on wide operands, expanded where the writer has no row."""
        rule = self.expansion(name, t.element(args[-1].type))
        if rule is None:
            return b.map(name, *args)
        self.active.add(name)
        value = self.expand(b, rule, args)
        self.active.remove(name)
        return value

    def expansion(self, name: str, dtype: DType) -> Callable[..., Value] | None:
        """What rewrites a function of wide operands, or None where the writer has a row for it. In
        the expansion of a transcendental function, its own name means that row.
        """
        if name in ON_CPUS and dtype in (float32, float64) and name not in self.active:
            return ON_CPUS[name]
        return EXPANSIONS[name] if _needs_expansion(name, dtype) else None

    def expand(self, b: Build, rule: Callable[..., Value], args: list[Value]) -> Value:
        """What a rule writes, legalized."""
        before = len(b.ops)
        value = rule(b, *args)
        # An expansion may use functions that need one themselves.
        tail, b.ops[before:] = b.ops[before:], []
        for op in tail:
            self.op(op, b)
        return self.env.get(value, value)

    def reduce(self, b: Build, fn: ScalarFn, x: Value) -> Value:
        """A lane reduction of wide lanes; with a function that is expanded it is written out:
        halves, then halves of those, as the op is defined.
        """
        if self.expansion(fn.name, t.element(x.type)) is None:
            return b.emit(t.ReduceLanes(x, fn, loc=b.loc))
        lanes = t.lanes(x.type)
        rest: list[Value] = []
        while lanes > 1:
            if lanes % 2:
                rest.append(b.emit(t.Extract(x, lanes - 1, loc=b.loc)))
            half = lanes // 2
            low = b.emit(t.Shuffle(x, x, tuple(range(half)), loc=b.loc))
            high = b.emit(t.Shuffle(x, x, tuple(range(half, 2 * half)), loc=b.loc))
            x, lanes = self.apply(b, fn.name, [low, high]), half
        result = b.emit(t.Extract(x, 0, loc=b.loc))
        for item in reversed(rest):
            result = self.apply(b, fn.name, [result, item])
        return result

    def cast(self, b: Build, x: Value, target: DType) -> Value:
        """A conversion by steps that are primitive."""
        source = t.element(x.type)
        if source is target:
            return x
        if source is int4 or target is int4:
            return self.cast_int4(b, x, target)
        if source is bool_ and target in (float32, float64):
            # Vectors have no conversion of masks, but constants under a mask.
            type = t.with_element(x.type, target)
            one, zero = [b.emit(t.Const(k, type, loc=b.loc)) for k in (1.0, 0.0)]
            return b.select(x, one, zero)
        if is_small(source):
            known = x.op.value if isinstance(x.op, t.Const) else None
            if known is not None and target is float32:
                type = t.with_element(x.type, float32)
                return b.emit(t.Const(_rounded(known, source), type, loc=b.loc))
            return self.cast(b, self.widen(b, x, source), target)
        if is_small(target):
            if source is float64:
                x = round_to_odd(b, x)
            elif source is not float32:
                x = b.cast(x, float32)
            if target is bfloat16:
                bits = _round_bfloat(b, x, self.has_short_nans(x))
                return self.upper_half(b, bits)
            return b.cast(x, target) if self.native(target) else narrow_small(b, x, target)
        return b.cast(x, target)

    def widen(self, b: Build, x: Value, source: DType) -> Value:
        """A small float as float32, once a block."""
        wide = self.wide.get(x)
        if wide is None:
            bits = self.words.get(x)
            if bits is not None:
                kept = b.map("and", bits, b.like(bits, 0xFFFF0000))
                wide = b.bitcast(kept, float32)
            else:
                wide = b.cast(x, float32) if self.native(source) else widen_small(b, x, source)
            self.wide[x] = wide
            if source is bfloat16:
                self.short_nans.add(wide)
        return wide

    def upper_half(self, b: Build, bits: Value) -> Value:
        """The bfloat16 in the upper half of a word, which is remembered: it is widened without
        being narrowed first.
        """
        found = _upper_half(b, bits)
        self.words[found] = bits
        return found

    def cast_int4(self, b: Build, x: Value, target: DType) -> Value:
        """int4 lives sign-extended in a byte."""
        if t.element(x.type) is int4:
            byte = b.cast(x, int8)
            return self.cast(b, _sign_extend(b, byte), target)
        if target is int4:
            byte = self.cast(b, x, int8)
            if t.element(x.type).is_float:  # saturates, where integers wrap around
                byte = b.map("max", b.map("min", byte, b.like(byte, 7)), b.like(byte, -8))
            return b.cast(_sign_extend(b, byte), int4)
        raise AssertionError(target)

    def native(self, dtype: DType) -> bool:
        """Whether the machine converts the format to and from float32."""
        return dtype is float16 and self.machine.has(Feature.F16C)


def _rounded(value: bool | int | float, dtype: DType) -> float:
    """A number as a small float holds it."""
    with np.errstate(all="ignore"):
        return float(np.asarray(value).astype(dtype.np))


def _are(found: Sequence[object], given: Sequence[object]) -> bool:
    """Whether nothing was replaced."""
    return len(found) == len(given) and all(map(is_, found, given))


def _is_direct(op: t.Cast) -> bool:
    """Whether a conversion takes one instruction, on any machine."""
    source, target = t.element(op.x.type), op.dtype
    if source is target or is_small(source) or is_small(target):
        return False
    return not (source is bool_ and target.is_float)


def _is_legal(op: Op) -> bool:
    """Whether an op is written as it is, and short."""
    if isinstance(op, t.Map):
        return _is_short(op.fn.name, t.element(op.args[-1].type))
    return _is_direct(op) if isinstance(op, t.Cast) else not isinstance(op, t.ReduceLanes)


@functools.cache
def _is_short(name: str, dtype: DType) -> bool:
    """Whether a scalar function is one instruction, or two."""
    if is_small(dtype) or (name in ON_CPUS and dtype in (float32, float64)):
        return False
    row = ROWS.get(name)
    return name in ("shl", "shr") or (row is not None and dtype.kind in row.text and name != "rem")


def _sign_extend(b: Build, byte: Value) -> Value:
    return b.map("shr", b.map("shl", byte, b.like(byte, 4)), b.like(byte, 4))


def _working(dtype: DType) -> DType:
    return int8 if dtype is int4 else float32


def _needs_expansion(name: str, dtype: DType) -> bool:
    kind = dtype.kind
    if name in GUARDED and kind is not Kind.FLOAT:
        return False
    row = ROWS.get(name)
    return row is None or (kind not in row.text and not (row.libm and kind is Kind.FLOAT))


def is_primitive(name: str, dtype: DType) -> bool:
    """Whether the writer has text for a scalar function of operands of the dtype."""
    return (name == "select" or not is_small(dtype)) and not _needs_expansion(name, dtype)


class _Shared:
    """Expansions as functions, each made when a function of the module first has many uses of it.

    Attributes:
        funcs: those functions.
    """

    def __init__(self, machine: Machine, taken: Iterable[str]) -> None:
        self.machine = machine
        self.taken = set(taken)
        self.names: dict[Use, str] = {}
        self.funcs: dict[str, Func] = {}

    def of(self, func: Func) -> dict[Use, str]:
        """What a function should call."""
        uses: dict[Use, list[t.Map]] = {}
        for op in walk(func.body):
            if isinstance(op, t.Map):
                uses.setdefault(_use(op), []).append(op)
        lengths: dict[Use, int] = {}
        for use, ops in uses.items():
            length = self.length(ops[0]) if len(ops) > FEW_COPIES else 0
            if length >= LONG_CODE:
                lengths[use] = length * len(ops)
        total = sum(lengths.values())
        found: dict[Use, str] = {}
        for use in sorted(lengths, key=lengths.__getitem__, reverse=True):
            if total <= MAX_LENGTH:
                break
            total -= lengths[use]
            if use not in self.names:
                self.names[use] = self.make(uses[use][0])
            found[use] = self.names[use]
        return found

    def length(self, op: t.Map) -> int:
        """About how many instructions the expansion of an op is."""
        body = Legalizer(self.machine).block(Block([], [op], [op.result]))
        return sum(_length(one) for one in body.ops)

    def make(self, op: t.Map) -> str:
        """The function of an op."""
        args = [Value(v.type) for v in op.args]
        call = t.Map(args, op.fn, loc=Loc.unknown)
        body = Legalizer(self.machine).block(Block(args, [call], [call.result]))
        name = f"{op.fn.name}_{suffix(op.args[-1].type)}"
        while name in self.taken:
            name += "_"
        self.taken.add(name)
        self.funcs[name] = Func(name, body)
        return name


def _length(op: Op) -> int:
    """About how many instructions a legal op is: what vectors have no instruction for is done lane
    by lane."""
    if not isinstance(op, t.Map):
        return 0 if isinstance(op, t.Const) else 1
    type = op.args[-1].type
    if op.fn.name in ("trunc_div", "rem") and t.element(type).kind is not Kind.FLOAT:
        if isinstance(op.args[-1].op, t.Const) or (t.lanes(type) and t.element(type).bits <= 32):
            return CONSTANT_DIVISION
        return 3 * max(t.lanes(type), 1)
    row = ROWS.get(op.fn.name)
    called = row is not None and t.element(type).kind not in row.text and bool(row.libm)
    return 3 * max(t.lanes(type), 1) if called else 1


def _use(op: t.Map) -> Use:
    return op.fn.name, tuple([v.type for v in op.args])


class Legalization:
    """Functions with only what the LLVM writer has rows for, one after the other.

    Args:
        machine: the CPU.
        taken: names of functions that are still to come, where they are known.
    """

    def __init__(self, machine: Machine, taken: Iterable[str] = ()) -> None:
        self._shared = _Shared(machine, taken)

    def run(self, func: Func) -> list[Func]:
        """A function, behind those that it is the first to call."""
        shared = self._shared
        shared.taken.add(func.name)
        if all(map(_is_legal, walk(func.body))):
            return [func]
        before = len(shared.funcs)
        calls = shared.of(func)
        legal = func.with_body(Legalizer(shared.machine, calls).block(func.body))
        return [*list(shared.funcs.values())[before:], legal]


def legalize(module: Module, machine: Machine) -> Module:
    """The module with only what the LLVM writer has rows for."""
    pass_ = Legalization(machine, module.funcs)
    funcs = [f for func in module.funcs.values() for f in pass_.run(func)]
    return Module({f.name: f for f in funcs}, module.main)
