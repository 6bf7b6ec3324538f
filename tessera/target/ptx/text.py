"""PTX text: registers, literals, lines with their places, and the state of the writer."""

from __future__ import annotations

import functools
import string
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from tessera.dtypes import DType, Kind
from tessera.errors import CompileError
from tessera.ir.core import Block, Op, Value
from tessera.ir.loc import Loc
from tessera.ir.types import ScalarType, Type
from tessera.target import ops as t
from tessera.target.gpu import Gpu, GpuFeature
from tessera.target.ptx.rows import FILES, PREFIX, Row, register_file
from tessera.target.types import AddressSpace, PtrType, VecType


@functools.cache
def _scratch(line: str) -> tuple[str, ...]:
    """The scratch registers that a line of a row names."""
    fields = [field for _, field, _, _ in string.Formatter().parse(line)]
    return tuple([field for field in fields if field and field[0] in FILES])


def is_packed(dtype: DType) -> bool:
    """Whether vectors of the dtype have several elements in one 32-bit register."""
    return dtype.itemsize < 4


def value_files(type: Type) -> list[str]:
    """The register files of a value: one register, or those of a vector.

    Elements of 8 and 16 bits are packed in 32-bit registers, first element lowest.
    """
    if isinstance(type, PtrType):
        return ["b32" if type.space is AddressSpace.SHARED else "b64"]
    if isinstance(type, VecType):
        if is_packed(type.dtype):
            return ["b32"] * (-(-type.lanes * type.dtype.itemsize // 4))
        return [register_file(type.dtype)] * type.lanes
    assert isinstance(type, ScalarType)
    return [register_file(type.dtype)]


def bits_of(value: bool | int | float, dtype: DType) -> int:
    """The bits of a constant, as memory has them."""
    with np.errstate(all="ignore"):
        exact = np.asarray(value, object if isinstance(value, int) else None)
        if dtype.is_integer:
            return int(exact) & ((1 << (8 * dtype.itemsize)) - 1)
        array = np.asarray(value).astype(dtype.np)
    return int(array.view(f"u{dtype.itemsize}"))


def literal(value: bool | int | float, dtype: DType) -> str:
    """A constant operand of the register that holds the dtype; a bool has none."""
    if dtype.kind is Kind.FLOAT:
        bits = bits_of(value, dtype)
        if dtype.bits == 32:
            return f"0f{bits:08x}"
        return f"0d{bits:016x}" if dtype.bits == 64 else f"0x{bits:x}"
    number = int(value) & ((1 << dtype.bits) - 1)
    if dtype.kind is Kind.INT and number >> (dtype.bits - 1):
        number -= 1 << dtype.bits
    if number == -(1 << 63):
        return "0x8000000000000000"
    return str(number)


Rule = Callable[[Any, Any], None]
"""Writes one op: `rule(writer, op)`."""


class Writer:
    """Writes the body of one kernel.

    Attributes:
        machine: the GPU.
        kernel: the kernel's name.
        lines: what is written.
        names: registers of values.
        wanted: registers that a value's are to be, where the value is a result that a loop or a
            branch carries on.
        guard: the predicate of a short branch that is written without a jump.
        symbols: declarations of local memory.
        told: the number of the last sentinel.
        fused: values that are never written by themselves.
        addressed: values that addresses are made of, which may be read later than where they stand.
        divergent: values that the lanes of a warp may disagree on.
        spaces: the spaces of pointers whose type does not say it.
        known: what has been computed, by scope: the innermost is last.
        narrow: 32-bit registers of counters that are i64.
        depth: how many scopes are around a value.
    """

    def __init__(
        self, machine: Gpu, kernel: str, rules: Mapping[type[Op], Rule], files: dict[str, int]
    ) -> None:
        self.machine = machine
        self.kernel = kernel
        self.rules = rules
        self.files = files
        self.lines: list[str] = []
        self.names: dict[Value, tuple[str, ...]] = {}
        self.wanted: dict[Value, tuple[str, ...]] = {}
        self.spaces: dict[Value, AddressSpace] = {}
        self.fused: frozenset[Value] = frozenset()
        self.addressed: frozenset[Value] = frozenset()
        self.divergent: frozenset[Value] = frozenset()
        self.narrow: dict[Value, str] = {}
        self.depth: dict[Value, int] = {}
        self.known: list[dict[Any, str]] = [{}]
        self.guard = ""
        self.counts: dict[str, int] = dict.fromkeys(PREFIX, 0)
        self.labels = 0
        self.symbols: list[str] = []
        self.loc: Loc = Loc.unknown
        self.place = ""
        self.uses_shared = False
        self.told = 0

    # --- registers ---

    def register(self, file: str) -> str:
        """A new register."""
        self.counts[file] += 1
        return f"{PREFIX[file]}{self.counts[file]}"

    def results(self, value: Value) -> tuple[str, ...]:
        """New registers for a value, or those that are wanted."""
        names = self.wanted.get(value)
        if names is None:
            names = tuple([self.register(file) for file in value_files(value.type)])
        self.names[value] = names
        return names

    def result(self, value: Value) -> str:
        """The register for a value that has one."""
        (name,) = self.results(value)
        return name

    def use(self, value: Value) -> str:
        """An operand: a register or, of a constant that is no bool, a literal."""
        op = value.op
        if isinstance(op, t.Const) and isinstance(op.type, ScalarType) and value not in self.names:
            if not op.type.dtype.is_bool:
                return literal(op.value, op.type.dtype)
            name = self.once(("bool", bool(op.value)), "pred", f"mov.pred {{}}, {int(op.value)}")
            return name
        (name,) = self.names[value]
        return name

    def registers(self, value: Value) -> tuple[str, ...]:
        """The operands of a value: one, or those of a vector."""
        op = value.op
        if isinstance(op, t.Const) and value not in self.names:
            if isinstance(op.type, VecType):
                return self.const_vector(op.value, op.type)
            return (self.use(value),)
        return self.names[value]

    def const_vector(self, value: bool | int | float, type: VecType) -> tuple[str, ...]:
        """Literals of a vector with one value in all lanes."""
        dtype = type.dtype
        if not is_packed(dtype):
            return (literal(value, dtype),) * type.lanes
        size = dtype.itemsize
        bits = bits_of(value, dtype)
        data = bits.to_bytes(size, "little") * type.lanes
        data += bytes(-len(data) % 4)
        words = [int.from_bytes(data[k : k + 4], "little") for k in range(0, len(data), 4)]
        return tuple([str(w) for w in words])

    def in_register(self, operand: str, file: str) -> str:
        """An operand that must not be a literal."""
        if operand.startswith("%"):
            return operand
        return self.once((operand, file), file, f"mov.{file} {{}}, {operand}")

    def once(self, key: object, file: str, text: str) -> str:
        """A register with what one instruction computes, written once where it is known."""
        for scope in reversed(self.known):
            name = scope.get(key)
            if name is not None:
                return name
        name = self.register(file)
        self.always(text.format(name))
        self.known[-1][key] = name
        return name

    # --- lines ---

    def put(self, text: str) -> None:
        """An instruction; in a branch without a jump, under its predicate."""
        self.mark()
        self.lines.append(f"\t{self.guard}{text};")

    def always(self, text: str) -> None:
        """An instruction without effects, which is run under any predicate."""
        self.mark()
        self.lines.append(f"\t{text};")

    def under(self, predicate: str, text: str) -> None:
        """An instruction with effects under a predicate (`""`: none)."""
        if not predicate:
            self.put(text)
            return
        if self.guard:
            both = self.register("pred")
            held = self.guard.split()[0]
            if held.startswith("@!"):
                held = self.once(("not", held[2:]), "pred", f"not.pred {{}}, {held[2:]}")
            self.always(f"and.pred {both}, {held.lstrip('@')}, {predicate}")
            predicate = both
        self.mark()
        self.lines.append(f"\t@{predicate} {text};")

    def mark(self) -> None:
        """The place of what follows, where it is another one."""
        frames = self.loc.frames
        if not frames:
            return
        frame = frames[0]
        file = self.files.setdefault(frame.filename, len(self.files) + 1)
        place = f"\t.loc {file} {frame.line} {(frame.column or 0) + 1}"
        if place != self.place:
            self.place = place
            self.lines.append(place)

    def next_label(self) -> int:
        """A new number for labels."""
        self.labels += 1
        return self.labels

    def start(self, label: str) -> None:
        """A label."""
        self.lines.append(f"{label}:")

    def row(
        self, row: Row, what: str, result: str, operands: Sequence[str], loc: Loc | None = None
    ) -> None:
        """The instructions of a row."""
        self.need(row.feature, what, loc)
        scratch: dict[str, str] = {}
        given = dict(zip("abc", operands, strict=False))
        for line in row.lines:
            for field in _scratch(line):
                if field not in scratch:
                    scratch[field] = self.register(FILES[field[0]])
            text = line.format(d=result, **given, **scratch)
            self.always(text.rstrip(";"))

    def need(self, feature: GpuFeature | None, what: str, loc: Loc | None = None) -> None:
        """Refuses what the machine lacks."""
        if feature is not None and not self.machine.has(feature):
            raise CompileError(
                f"ptx: {what} needs {feature.value}, which {self.machine} lacks",
                loc=self.loc if loc is None else loc,
            )

    # --- blocks ---

    def block(self, block: Block) -> None:
        """The ops of a block."""
        for op in block.ops:
            self.op(op)

    def op(self, op: Op) -> None:
        """One op."""
        rule = self.rules.get(type(op))
        if rule is None:
            raise CompileError(f"ptx: no text for {op.name}", loc=op.loc)
        if op.results and op.results[0] in self.fused:
            return
        if op.loc:
            self.loc = op.loc
        rule(self, op)
        for result in op.results:
            self.depth[result] = len(self.known)

    def region(self, block: Block) -> None:
        """The ops of an inner block, whose addresses are not known outside."""
        self.known.append({})
        self.block(block)
        self.known.pop()

    def copy(self, target: str, source: str, file: str) -> None:
        """One move, unless it is none."""
        if target != source:
            self.always(f"mov.{file} {target}, {source}")

    def copies(self, targets: Sequence[str], sources: Sequence[str], files: Sequence[str]) -> None:
        """Moves that happen at once: what is read is what was there before any of them."""
        pending = {
            target: (source, file)
            for target, source, file in zip(targets, sources, files, strict=True)
            if target != source
        }
        while pending:
            read = {source for source, _ in pending.values()}
            free = [target for target in pending if target not in read]
            for target in free:
                source, file = pending.pop(target)
                self.copy(target, source, file)
            if not free:
                # Only circles are left: one register is saved.
                target, (source, file) = next(iter(pending.items()))
                saved = self.register(file)
                self.copy(saved, target, file)
                pending = {
                    k: (saved if s == target else s, f) for k, (s, f) in pending.items()
                }
