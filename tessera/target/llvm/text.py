"""LLVM IR text: types, literals, and the state of the writer."""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from tessera.dtypes import DType, Kind, bool_
from tessera.errors import CompileError
from tessera.ir.core import Block, Func, Module, Op, Value
from tessera.ir.scalar import ScalarFn
from tessera.ir.types import ScalarType, Type
from tessera.ir.walk import walk
from tessera.target import ops as t
from tessera.target.llvm.addresses import NOTHING, addresses
from tessera.target.llvm.fences import LIMITS, SHUFFLES, fence_type, is_float
from tessera.target.llvm.invariants import invariants, masks
from tessera.target.llvm.rows import ROWS
from tessera.target.machine import Machine
from tessera.target.types import PtrType, VecType

STACK_BITS = 128
"""What a thread's stack begins at a multiple of."""


def repeats(main: Func) -> bool:
    """Whether the entry may run something of its own many times."""
    return any(isinstance(op, (t.For, t.While)) for op in walk(main.body))


def element_text(dtype: DType) -> str:
    """The register type of one element."""
    if dtype is bool_:
        return "i1"
    if dtype.kind is Kind.FLOAT and dtype.bits in (32, 64):
        return "float" if dtype.bits == 32 else "double"
    return f"i{8 * dtype.itemsize}"


def type_text(type: Type) -> str:
    """A Target type in LLVM's words."""
    if isinstance(type, PtrType):
        return "ptr"
    if isinstance(type, VecType):
        return f"<{type.lanes} x {element_text(type.dtype)}>"
    assert isinstance(type, ScalarType)
    return element_text(type.dtype)


def memory_text(type: Type) -> str:
    """The type in memory: bools are bytes."""
    text = type_text(type)
    return text.replace("i1", "i8") if t.element(type) is bool_ else text


def suffix(type: Type) -> str:
    """The name suffix of an overloaded intrinsic: `v16f32`, `i64`."""
    dtype = t.element(type)
    is_float = dtype.kind is Kind.FLOAT and dtype.bits in (32, 64)
    base = "i1" if dtype is bool_ else f"{'f' if is_float else 'i'}{8 * dtype.itemsize}"
    return f"v{type.lanes}{base}" if isinstance(type, VecType) else base


def literal(value: bool | int | float, type: Type) -> str:
    """A constant operand."""
    dtype = t.element(type)
    text = _element_literal(value, dtype)
    if not isinstance(type, VecType):
        return text
    if text in ("0", "false"):
        return "zeroinitializer"
    return f"splat ({element_text(dtype)} {text})"


def _element_literal(value: bool | int | float, dtype: DType) -> str:
    if dtype is bool_:
        return "true" if value else "false"
    if dtype.kind is Kind.FLOAT:
        with np.errstate(all="ignore"):
            rounded = np.asarray(value).astype(dtype.np)
        if dtype.bits not in (32, 64):
            return str(int(rounded.view(f"u{dtype.itemsize}")))
        wide = float(rounded)
        if math.isnan(wide):
            return "0x7FF8000000000000"
        return f"0x{struct.unpack('<Q', struct.pack('<d', wide))[0]:016X}"
    bits = 8 * dtype.itemsize
    number = int(value) & ((1 << bits) - 1)
    return str(number - (1 << bits) if number >> (bits - 1) else number)


Rule = Callable[..., None]
"""Writes one op: `rule(writer, op)`."""


# What is written for a function of operands of a type, which stand for themselves.
_templates: dict[tuple[str, Type], str] = {}


@dataclass(frozen=True, slots=True)
class Part:
    """A function of the text that may stand in a module of its own.

    Attributes:
        lines: the function.
        needs: the names of what it uses: functions, and what the text declares.
        declaration: the line that another module has instead.
    """

    lines: list[str]
    needs: Collection[str]
    declaration: str


class Writer:
    """Writes one module."""

    def __init__(
        self,
        machine: Machine,
        rules: Mapping[type[Op], Rule],
        frame: Callable[[int], list[str]],
    ) -> None:
        self.machine = machine
        # Whether masks are registers of their own.
        self.has_masks = machine.has_masks
        self.rules = rules
        self.frame = frame
        self.lines: list[str] = []
        self.names: dict[Value, str] = {}
        self.counter = 0
        self.labels = 0
        self.label = "entry"
        # What the basic block at hand has computed already, how many operations on vectors of
        # integers, or shuffles, it took, and what stands behind a fence.
        self.known: dict[object, str] = {}
        self.depths: dict[str, int] = {}
        self.shuffles: dict[str, int] = {}
        self.fences: dict[str, str] = {}
        self.declared: dict[str, str] = {}
        # What the function at hand uses.
        self.needs: dict[str, None] = {}
        self.words: dict[Value, int] = {}
        # Whether long chains of operations on integers get fences.
        self.has_fences = False
        # Whether the function stores past the caches.
        self.streams = False
        # What is written in front of the loops of the function, and not where it stands.
        self.early: dict[Op, list[Op]] = {}
        self.moved: set[Op] = set()
        # What follows from other addresses, and the names of those that are computed.
        self.addresses = NOTHING
        self.pointers: dict[Op, str] = {}
        # Masks of which parts are wanted, of so many lanes, and their names.
        self.masks: dict[Value, set[int]] = {}
        self.mask_parts: dict[tuple[Value, int], list[str]] = {}
        # Functions that run a piece of what threads share, by name.
        self.pieces: dict[str, list[str]] = {}
        # The most words that the entry hands on in memory; None where it does not.
        self.parameters: int | None = None
        # The most words that describe calls which threads share.
        self.shared = 0

    # --- names and lines ---

    def fresh(self) -> str:
        """A new register name."""
        self.counter += 1
        return f"%v{self.counter}"

    def next_label(self) -> int:
        """A new number for labels."""
        self.labels += 1
        return self.labels

    def put(self, text: str) -> None:
        """Adds an instruction."""
        self.lines.append("  " + text)

    def assign(self, text: str) -> str:
        """Adds an instruction with a result; returns its name."""
        name = self.fresh()
        self.lines.append(f"  {name} = {text}")
        return name

    def value(self, text: str) -> str:
        """As `assign`, of an instruction that gives the same wherever it stands, once a block."""
        name = self.known.get(text)
        if name is None:
            name = self.known[text] = self.assign(text)
        return name

    def start(self, label: str) -> None:
        """Begins a basic block."""
        self.lines.append(f"{label}:")
        self.label = label
        self.known = {}
        self.depths = {}
        self.shuffles = {}
        self.fences = {}

    def name(self, value: Value) -> str:
        """An operand."""
        if isinstance(value.op, t.Const):
            return literal(value.op.value, value.op.type)
        word = self.words.get(value)
        return self.names[value] if word is None else self.word(word, value)

    def typed(self, value: Value) -> str:
        """An operand with its type."""
        return f"{type_text(value.type)} {self.name(value)}"

    def declare(self, name: str, text: str) -> None:
        """Declares an external function once."""
        self.declared[name] = text
        self.needs[name] = None

    def callee(self, name: str) -> str:
        """A function of the program, where it is used."""
        self.needs[name] = None
        return f"@{name}"

    # --- functions ---

    def module(self, module: Module, entry: str) -> str:
        """The whole module, with `entry(ptr words)` as its only external function."""
        for func in module.funcs.values():
            if func is not module.entry:
                self.func(func)
        return self.finish(module, entry)

    def finish(self, module: Module, entry: str) -> str:
        """The whole module, once its other functions are written."""
        self.entry(module.entry, entry)
        self.lines += self.attributes(any(func.outputs for func in module.funcs.values()))
        self.lines += list(self.declared.values())
        return "\n".join(self.lines) + "\n"

    def attributes(self, has_results: bool) -> list[str]:
        """The attributes of kernels and the entry, and those of functions with results."""
        width = self.machine.vector_bits
        # LLVM learns too late that there are vectors to keep in the frame to have it begin at a
        # multiple of them; they would lie across lines, where the thread's stack happens to begin.
        aligned = ' "stackrealign"' if width > STACK_BITS else ""
        found = [
            # A kernel is launched from many places; inlined, it would be compiled once for each.
            f'attributes #0 = {{ nounwind noinline "prefer-vector-width"="{width}" '
            f'"min-legal-vector-width"="{width}"{aligned} }}',
            # What runs once a call, or a piece: 0.2 ms of LLVM's time rather than 0.5 to 2.
            f'attributes #2 = {{ nounwind noinline optnone "prefer-vector-width"="{width}" '
            f'"min-legal-vector-width"="{width}" }}',
        ]
        if has_results:
            found.append(
                "attributes #1 = { nounwind noinline willreturn memory(none) "
                f'"prefer-vector-width"="{width}" "min-legal-vector-width"="{width}" }}'
            )
        return found

    def func(self, func: Func, optimize: bool = True) -> Part:
        """One function, and whether LLVM optimises it."""
        self.has_fences = optimize and self.machine.arch == "x86-64"
        self.label = "entry"
        self.needs = {}
        first = len(self.lines)
        params: list[str] = []
        for arg in func.args:
            self.names[arg] = self.fresh()
            params.append(f"{type_text(arg.type)} {self.names[arg]}")
        result = type_text(func.outputs[0].type) if func.outputs else "void"
        attributes = "#1" if func.outputs else "#0"
        self.lines.append(
            f"define internal {result} @{func.name}({', '.join(params)}) {attributes} {{"
        )
        self.start("entry")
        self.streams = False
        self.addresses, self.pointers = addresses(func, self.machine.vector_bits), {}
        self.early = invariants(func)
        self.moved = {op for ops in self.early.values() for op in ops}
        self.masks = masks(func, self.machine)
        self.block(func.body)
        if self.streams:
            # Such stores are ordered with nothing: others must see them when this returns.
            self.put("fence seq_cst")
        self.put(f"ret {self.typed(func.outputs[0])}" if func.outputs else "ret void")
        self.lines.append("}")
        types = ", ".join([type_text(arg.type) for arg in func.args])
        declaration = f"declare hidden {result} @{func.name}({types}) {attributes}"
        return Part(self.lines[first:], self.needs, declaration)

    def entry(self, main: Func, name: str) -> None:
        """The external function: main, with its arguments in 64-bit words, and what runs pieces.

        A pointer is read again for each use. A program may have hundreds, most of them used once or
        twice: in registers from the start on they would all be spilled.
        """
        self.label = "entry"
        self.needs = {}
        self.addresses = NOTHING
        attributes = "#0" if repeats(main) else "#2"
        self.lines.append(f"define void @{name}(ptr %words) {attributes} {{")
        self.start("entry")
        top = len(self.lines)
        for k, arg in enumerate(main.args):
            if isinstance(arg.type, PtrType):
                self.words[arg] = k
            else:
                self.names[arg] = self.word(k, arg)
        self.block(main.body)
        self.put("ret void")
        self.lines.append("}")
        if self.parameters is not None:
            self.lines[top:top] = self.frame(self.parameters)
        if self.shared:
            self.lines[top:top] = [f"  %shared = alloca [{self.shared} x i64], align 64"]
        for lines in self.pieces.values():
            self.lines += lines

    def word(self, position: int, value: Value) -> str:
        """Reads an argument of main."""
        at = self.assign(f"getelementptr i64, ptr %words, i64 {position}")
        return self.assign(f"load {type_text(value.type)}, ptr {at}, align 8")

    def block(self, block: Block) -> None:
        """The ops of a block."""
        dead = self.addresses.dead
        for op in block.ops:
            if op in self.moved or op in dead:
                continue
            for one in self.early.get(op, ()):
                if one not in dead:
                    self.op(one)
            self.op(op)

    def op(self, op: Op) -> None:
        """One op."""
        rule = self.rules.get(type(op))
        if rule is None:
            raise CompileError(f"llvm: no text for {op.name}", loc=op.loc)
        rule(self, op)
        for value in op.results if self.masks else ():
            for width in sorted(self.masks.get(value, ())):
                self.mask_parts[value, width] = self.parts(value, width)

    def parts(self, value: Value, width: int) -> list[str]:
        """The vectors of so many lanes that make up another."""
        found: list[str] = []
        for k in range(0, t.lanes(value.type), width):
            picks = ", ".join([f"i32 {k + j}" for j in range(width)])
            whole = f"shufflevector {self.typed(value)}, {type_text(value.type)} poison"
            found.append(self.assign(f"{whole}, <{width} x i32> <{picks}>"))
        return found

    # --- scalar functions ---

    def map(self, op: t.Map) -> str:
        """A scalar function of values, once a block, with fences around what is deep."""
        names = [self.name(v) for v in op.args]
        type = op.args[-1].type
        key = (op.fn.name, type, *names)
        found = self.known.get(key)
        if found is None:
            args = self.behind_fences(op, names) if self.depths else names
            found = self.known[key] = self.apply(op.fn, args, type)
            self.deepen(found, args, op.result.type, 2 if op.fn.name == "mulhi" else 1)
        return found

    def behind_fences(self, op: t.Map, names: Sequence[str]) -> list[str]:
        """Operands, those that are deep behind fences; see `fences.py`."""
        limit = LIMITS.get(op.fn.name, 0)
        found: list[str] = []
        for name, value in zip(names, op.args, strict=True):
            fenced = self.fences.get(name)
            if fenced is None and limit and self.depths.get(name, 0) >= limit:
                fenced = self.fence(name, value.type)
            found.append(fenced or name)
        return found

    def fence(self, name: str, type: Type) -> str:
        """A vector of which LLVM knows nothing. Later operations take this one: to
        have both would take two registers.
        """
        found = fence_type(type)
        assert found is not None
        floats, name_ = found
        text = type_text(type)
        before = name if text == floats else self.value(f"bitcast {text} {name} to {floats}")
        fenced = self.assign(f"call {floats} @llvm.arithmetic.fence.{name_}({floats} {before})")
        if text != floats:
            fenced = self.assign(f"bitcast {floats} {fenced} to {text}")
        self.fences[name] = fenced
        return fenced

    def shuffled(self, value: Value) -> str:
        """An operand of a shuffle, behind a fence if several made it."""
        name = self.name(value)
        if self.shuffles.get(name, 0) < SHUFFLES or fence_type(value.type) is None:
            return name
        return self.fences.get(name) or self.fence(name, value.type)

    def deepen(self, name: str, operands: Sequence[str], type: Type, steps: int = 1) -> None:
        """Notes how many operations a vector of integers took."""
        if self.has_fences and not is_float(type) and fence_type(type) is not None:
            depths = self.depths
            depths[name] = steps + max([depths.get(x, 0) for x in operands])

    def apply(self, fn: ScalarFn, args: Sequence[str], type: Type) -> str:
        """A scalar function of operands of one type; for select, `type` is that of the last two."""
        template = _templates.get((fn.name, type))
        if template is not None:
            return self.value(template.format(*args))
        special = GUARDED.get(fn.name)
        kind = t.element(type).kind
        if special is not None and kind is not Kind.FLOAT:
            return special(self, args, type)
        row = ROWS.get(fn.name)
        if row is None or (kind not in row.text and not row.libm):
            raise CompileError(
                f"llvm: {fn.name} of {type} is not primitive; it should have been legalized"
            )
        if kind not in row.text:
            return self.libm(row.libm, args, type)
        condition = "i1" if not isinstance(type, VecType) else f"<{type.lanes} x i1>"
        ones = literal(True if t.element(type) is bool_ else -1, type)
        places = [f"{{{k}}}" for k in range(len(args))]
        template = _templates[fn.name, type] = row.text[kind].format(
            *places, T=type_text(type), S=suffix(type), C=condition, Z=literal(0, type), O=ones
        )
        return self.value(template.format(*args))

    def libm(self, base: str, args: Sequence[str], type: Type) -> str:
        """Calls a C function lane by lane."""
        dtype = t.element(type)
        element = element_text(dtype)
        name = base + ("f" if dtype.bits == 32 else "")
        self.declare(
            name,
            f"declare {element} @{name}({', '.join([element] * len(args))}) nounwind willreturn "
            f"memory(none)",
        )
        if not isinstance(type, VecType):
            return self.assign(
                f"call {element} @{name}({', '.join(f'{element} {a}' for a in args)})"
            )
        result = "poison"
        vector = type_text(type)
        for lane in range(type.lanes):
            parts = [self.assign(f"extractelement {vector} {a}, i64 {lane}") for a in args]
            one = self.assign(
                f"call {element} @{name}({', '.join(f'{element} {p}' for p in parts)})"
            )
            result = self.assign(f"insertelement {vector} {result}, {element} {one}, i64 {lane}")
        return result


# --- integer functions whose instructions have undefined cases ---


def _mask_text(type: Type) -> str:
    return f"<{type.lanes} x i1>" if isinstance(type, VecType) else "i1"


def _known_integer(text: str) -> int | None:
    """The integer that a constant operand is, in all lanes."""
    found = _INTEGER.fullmatch(text)
    return int(found[1] or found[2]) if found else None


_INTEGER = re.compile(r"(-?\d+)|splat \(i\d+ (-?\d+)\)")


def _shift(word: str, fill_sign: bool) -> Callable[[Writer, Sequence[str], Type], str]:
    def emit(w: Writer, args: Sequence[str], type: Type) -> str:
        text = type_text(type)
        bits = 8 * t.element(type).itemsize
        signed = t.element(type).kind is Kind.INT
        op = ("ashr" if signed else "lshr") if word == "shr" else word
        known = _known_integer(args[1])
        if known is not None and 0 <= known < bits:
            return w.value(f"{op} {text} {args[0]}, {args[1]}")
        limit = literal(bits, type)
        ok = w.value(f"icmp ult {text} {args[1]}, {limit}")
        inside = literal(bits - 1, type) if fill_sign and signed else literal(0, type)
        count = w.value(f"select {_mask_text(type)} {ok}, {text} {args[1]}, {text} {inside}")
        shifted = w.value(f"{op} {text} {args[0]}, {count}")
        if fill_sign and signed:
            return shifted
        return w.value(
            f"select {_mask_text(type)} {ok}, {text} {shifted}, {text} {literal(0, type)}"
        )

    return emit


def _division(word: str) -> Callable[[Writer, Sequence[str], Type], str]:
    def emit(w: Writer, args: Sequence[str], type: Type) -> str:
        text, mask = type_text(type), _mask_text(type)
        signed = t.element(type).kind is Kind.INT
        a, b = args
        if (_known_integer(b) or 0) > 0:
            return w.value(f"{'s' if signed else 'u'}{word} {text} {a}, {b}")
        zero, one = literal(0, type), literal(1, type)
        is_zero = w.value(f"icmp eq {text} {b}, {zero}")
        unsafe = is_zero
        minus = ""
        if signed:
            minus = w.value(f"icmp eq {text} {b}, {literal(-1, type)}")
            unsafe = w.value(f"or {mask} {is_zero}, {minus}")
        divisor = w.value(f"select {mask} {unsafe}, {text} {one}, {text} {b}")
        if isinstance(type, VecType) and type.dtype.bits <= 32:
            result = _quotient(w, a, divisor, type)
            if word == "rem":
                product = w.value(f"mul {text} {result}, {divisor}")
                result = w.value(f"sub {text} {a}, {product}")
        else:
            result = w.value(f"{'s' if signed else 'u'}{word} {text} {a}, {divisor}")
        if signed:
            negated = w.value(f"sub {text} {zero}, {a}") if word == "div" else zero
            result = w.value(f"select {mask} {minus}, {text} {negated}, {text} {result}")
        return w.value(f"select {mask} {is_zero}, {text} {zero}, {text} {result}")

    return emit


def _quotient(w: Writer, a: str, b: str, type: VecType) -> str:
    """A quotient of integers towards zero, by that of floats of twice as many bits, or of float32
    for fewer than 32: vectors have no instruction for one of integers. The nearest float to x / y
    is below the next whole number: that is 1 / y away or more, and a float's last bit less."""
    wide = "double" if type.dtype.bits == 32 else "float"
    text, floats = type_text(type), f"<{type.lanes} x {wide}>"
    sign = "s" if type.dtype.kind is Kind.INT else "u"
    x, y = [w.value(f"{sign}itofp {text} {v} to {floats}") for v in (a, b)]
    found = w.value(f"fdiv {floats} {x}, {y}")
    return w.value(f"fpto{sign}i {floats} {found} to {text}")


def _mulhi(w: Writer, args: Sequence[str], type: Type) -> str:
    text = type_text(type)
    bits = 8 * t.element(type).itemsize
    wide = text.replace(f"i{bits}", f"i{2 * bits}")
    extend = "sext" if t.element(type).kind is Kind.INT else "zext"
    a, b = (w.value(f"{extend} {text} {x} to {wide}") for x in args)
    product = w.value(f"mul {wide} {a}, {b}")
    shift = f"splat (i{2 * bits} {bits})" if isinstance(type, VecType) else str(bits)
    high = w.value(f"lshr {wide} {product}, {shift}")
    return w.value(f"trunc {wide} {high} to {text}")


GUARDED: dict[str, Callable[[Writer, Sequence[str], Type], str]] = {
    "shl": _shift("shl", False),
    "shr": _shift("shr", True),
    "trunc_div": _division("div"),
    "rem": _division("rem"),
    "mulhi": _mulhi,
}
