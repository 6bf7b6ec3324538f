"""Target IR as LLVM IR text.

Tables (`rows.py`) plus a printer. Structured control flow becomes basic blocks, loop-carried values phis. Formats narrower
than float32 are integers here (their arithmetic has been legalized away); a bool is an i1 in registers and a byte in memory.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Sequence

import numpy as np

from tessera.dtypes import DType, Kind, bool_, float16
from tessera.errors import CompileError
from tessera.ir.core import Block, Func, Module, Op, Value
from tessera.ir.scalar import ScalarFn
from tessera.ir.types import ScalarType, Type
from tessera.target import ops as t
from tessera.target.llvm.rows import ROWS
from tessera.target.machine import Feature, Machine
from tessera.target.types import PtrType, VecType

_ELEMENTS = {Kind.INT: "i{}", Kind.UINT: "i{}"}


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


class Writer:
    """Writes one module."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.lines: list[str] = []
        self.names: dict[Value, str] = {}
        self.counter = 0
        self.labels = 0
        self.label = "entry"
        self.declared: dict[str, str] = {}

    # --- names and lines --------------------------------------------------------------------------------------------

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

    def start(self, label: str) -> None:
        """Begins a basic block."""
        self.lines.append(f"{label}:")
        self.label = label

    def name(self, value: Value) -> str:
        """An operand."""
        if isinstance(value.op, t.Const):
            return literal(value.op.value, value.op.type)
        return self.names[value]

    def typed(self, value: Value) -> str:
        """An operand with its type."""
        return f"{type_text(value.type)} {self.name(value)}"

    def declare(self, name: str, text: str) -> None:
        """Declares an external function once."""
        self.declared[name] = text

    # --- functions --------------------------------------------------------------------------------------------------

    def module(self, module: Module, entry: str) -> str:
        """The whole module, with `entry(ptr words)` as its only external function."""
        for func in module.funcs.values():
            self.func(func)
        self.entry(module.entry, entry)
        width = self.machine.vector_bits
        self.lines.append(
            f'attributes #0 = {{ nounwind "prefer-vector-width"="{width}" "min-legal-vector-width"="{width}" }}'
        )
        self.lines += list(self.declared.values())
        return "\n".join(self.lines) + "\n"

    def func(self, func: Func) -> None:
        """One function."""
        self.label = "entry"
        params: list[str] = []
        for arg in func.args:
            self.names[arg] = self.fresh()
            params.append(f"{type_text(arg.type)} {self.names[arg]}")
        self.lines.append(f"define internal void @{func.name}({', '.join(params)}) #0 {{")
        self.start("entry")
        self.block(func.body)
        self.put("ret void")
        self.lines.append("}")

    def entry(self, main: Func, name: str) -> None:
        """The external function: unpacks 64-bit words and calls main."""
        self.lines.append(f"define void @{name}(ptr %words) #0 {{")
        args: list[str] = []
        for k, arg in enumerate(main.args):
            at = self.assign(f"getelementptr i64, ptr %words, i64 {k}")
            text = type_text(arg.type)
            args.append(f"{text} {self.assign(f'load {text}, ptr {at}, align 8')}")
        self.put(f"call void @{main.name}({', '.join(args)})")
        self.put("ret void")
        self.lines.append("}")

    def block(self, block: Block) -> None:
        """The ops of a block."""
        for op in block.ops:
            rule = RULES.get(type(op))
            if rule is None:
                raise CompileError(f"llvm: no text for {op.name}", loc=op.loc)
            rule(self, op)

    # --- scalar functions -------------------------------------------------------------------------------------------

    def apply(self, fn: ScalarFn, args: Sequence[str], type: Type) -> str:
        """A scalar function of operands of one type; for select, `type` is that of the last two."""
        special = GUARDED.get(fn.name)
        kind = t.element(type).kind
        if special is not None and kind is not Kind.FLOAT:
            return special(self, args, type)
        row = ROWS.get(fn.name)
        if row is None or (kind not in row.text and not row.libm):
            raise CompileError(f"llvm: {fn.name} of {type} is not primitive; it should have been legalized")
        if kind not in row.text:
            return self.libm(row.libm, args, type)
        condition = "i1" if not isinstance(type, VecType) else f"<{type.lanes} x i1>"
        ones = literal(True if t.element(type) is bool_ else -1, type)
        return self.assign(
            row.text[kind].format(
                *args, T=type_text(type), S=suffix(type), C=condition, Z=literal(0, type), O=ones
            )
        )

    def libm(self, base: str, args: Sequence[str], type: Type) -> str:
        """Calls a C function lane by lane."""
        dtype = t.element(type)
        element = element_text(dtype)
        name = base + ("f" if dtype.bits == 32 else "")
        self.declare(name, f"declare {element} @{name}({', '.join([element] * len(args))}) nounwind willreturn memory(none)")
        if not isinstance(type, VecType):
            return self.assign(f"call {element} @{name}({', '.join(f'{element} {a}' for a in args)})")
        result = "poison"
        vector = type_text(type)
        for lane in range(type.lanes):
            parts = [self.assign(f"extractelement {vector} {a}, i64 {lane}") for a in args]
            one = self.assign(f"call {element} @{name}({', '.join(f'{element} {p}' for p in parts)})")
            result = self.assign(f"insertelement {vector} {result}, {element} {one}, i64 {lane}")
        return result


# --- integer functions whose instructions have undefined cases --------------------------------------------------------


def _mask_text(type: Type) -> str:
    return f"<{type.lanes} x i1>" if isinstance(type, VecType) else "i1"


def _shift(word: str, fill_sign: bool) -> Callable[[Writer, Sequence[str], Type], str]:
    def emit(w: Writer, args: Sequence[str], type: Type) -> str:
        text = type_text(type)
        bits = 8 * t.element(type).itemsize
        signed = t.element(type).kind is Kind.INT
        op = ("ashr" if signed else "lshr") if word == "shr" else word
        limit = literal(bits, type)
        ok = w.assign(f"icmp ult {text} {args[1]}, {limit}")
        inside = literal(bits - 1, type) if fill_sign and signed else literal(0, type)
        count = w.assign(f"select {_mask_text(type)} {ok}, {text} {args[1]}, {text} {inside}")
        shifted = w.assign(f"{op} {text} {args[0]}, {count}")
        if fill_sign and signed:
            return shifted
        return w.assign(f"select {_mask_text(type)} {ok}, {text} {shifted}, {text} {literal(0, type)}")

    return emit


def _division(word: str) -> Callable[[Writer, Sequence[str], Type], str]:
    def emit(w: Writer, args: Sequence[str], type: Type) -> str:
        text, mask = type_text(type), _mask_text(type)
        signed = t.element(type).kind is Kind.INT
        a, b = args
        zero, one = literal(0, type), literal(1, type)
        is_zero = w.assign(f"icmp eq {text} {b}, {zero}")
        unsafe = is_zero
        minus = ""
        if signed:
            minus = w.assign(f"icmp eq {text} {b}, {literal(-1, type)}")
            unsafe = w.assign(f"or {mask} {is_zero}, {minus}")
        divisor = w.assign(f"select {mask} {unsafe}, {text} {one}, {text} {b}")
        result = w.assign(f"{'s' if signed else 'u'}{word} {text} {a}, {divisor}")
        if signed:
            negated = w.assign(f"sub {text} {zero}, {a}") if word == "div" else zero
            result = w.assign(f"select {mask} {minus}, {text} {negated}, {text} {result}")
        return w.assign(f"select {mask} {is_zero}, {text} {zero}, {text} {result}")

    return emit


def _mulhi(w: Writer, args: Sequence[str], type: Type) -> str:
    text = type_text(type)
    bits = 8 * t.element(type).itemsize
    wide = text.replace(f"i{bits}", f"i{2 * bits}")
    extend = "sext" if t.element(type).kind is Kind.INT else "zext"
    a, b = (w.assign(f"{extend} {text} {x} to {wide}") for x in args)
    product = w.assign(f"mul {wide} {a}, {b}")
    shift = f"splat (i{2 * bits} {bits})" if isinstance(type, VecType) else str(bits)
    high = w.assign(f"lshr {wide} {product}, {shift}")
    return w.assign(f"trunc {wide} {high} to {text}")


GUARDED: dict[str, Callable[[Writer, Sequence[str], Type], str]] = {
    "shl": _shift("shl", False),
    "shr": _shift("shr", True),
    "trunc_div": _division("div"),
    "rem": _division("rem"),
    "mulhi": _mulhi,
}


# --- ops --------------------------------------------------------------------------------------------------------------


def _const(w: Writer, op: t.Const) -> None:
    del w, op  # constants are written where they are used


def _lanes(w: Writer, op: t.Lanes) -> None:
    element = element_text(op.dtype)
    items = ", ".join(f"{element} {k}" for k in range(op.count))
    w.names[op.result] = f"<{items}>"


def _map(w: Writer, op: t.Map) -> None:
    args = [w.name(a) for a in op.args]
    w.names[op.result] = w.apply(op.fn, args, op.args[-1].type)


def _cast(w: Writer, op: t.Cast) -> None:
    w.names[op.result] = cast_text(w, w.name(op.x), op.x.type, op.result.type)


def cast_text(w: Writer, x: str, source: Type, target: Type) -> str:
    """A conversion between types of one lane count."""
    a, b = t.element(source), t.element(target)
    if a is b:
        return x
    text, result = type_text(source), type_text(target)
    if float16 in (a, b):
        return _half(w, x, source, target)
    if b is bool_:
        code = "fcmp une" if a.kind is Kind.FLOAT else "icmp ne"
        return w.assign(f"{code} {text} {x}, {literal(0, source)}")
    a_float, b_float = a.kind is Kind.FLOAT, b.kind is Kind.FLOAT
    if (a_float and a.bits < 32) or (b_float and b.bits < 32):
        raise CompileError(f"llvm: cast {source} -> {target} is not primitive; it should have been legalized")
    if a_float and b_float:
        return w.assign(f"{'fpext' if a.bits < b.bits else 'fptrunc'} {text} {x} to {result}")
    if a_float:
        code = "si" if b.kind is Kind.INT else "ui"
        return w.assign(f"call {result} @llvm.fpto{code}.sat.{suffix(target)}.{suffix(source)}({text} {x})")
    if b_float:
        code = "sitofp" if a.kind is Kind.INT else "uitofp"
        return w.assign(f"{code} {text} {x} to {result}")
    width, wanted = (1 if a is bool_ else 8 * a.itemsize), 8 * b.itemsize
    if width == wanted:
        return x
    if width > wanted:
        return w.assign(f"trunc {text} {x} to {result}")
    return w.assign(f"{'sext' if a.kind is Kind.INT else 'zext'} {text} {x} to {result}")


def _half(w: Writer, x: str, source: Type, target: Type) -> str:
    """f16 <-> f32 by the machine's instruction."""
    a, b = t.element(source), t.element(target)
    if not w.machine.has(Feature.F16C) or {a.name, b.name} != {"f16", "f32"}:
        raise CompileError(f"llvm: cast {source} -> {target} is not primitive; it should have been legalized")
    lanes = t.lanes(source)
    half = f"<{lanes} x half>" if lanes else "half"
    if a is float16:
        value = w.assign(f"bitcast {type_text(source)} {x} to {half}")
        return w.assign(f"fpext {half} {value} to {type_text(target)}")
    value = w.assign(f"fptrunc {type_text(source)} {x} to {half}")
    return w.assign(f"bitcast {half} {value} to {type_text(target)}")


def _bitcast(w: Writer, op: t.Bitcast) -> None:
    source, target = type_text(op.x.type), type_text(op.result.type)
    x = w.name(op.x)
    w.names[op.result] = x if source == target else w.assign(f"bitcast {source} {x} to {target}")


def _splat(w: Writer, op: t.Splat) -> None:
    vector = type_text(op.result.type)
    one = w.assign(f"insertelement {vector} poison, {w.typed(op.x)}, i64 0")
    w.names[op.result] = w.assign(
        f"shufflevector {vector} {one}, {vector} poison, <{op.count} x i32> zeroinitializer"
    )


def _extract(w: Writer, op: t.Extract) -> None:
    w.names[op.result] = w.assign(f"extractelement {w.typed(op.x)}, i64 {op.lane}")


def _insert(w: Writer, op: t.Insert) -> None:
    w.names[op.result] = w.assign(f"insertelement {w.typed(op.x)}, {w.typed(op.value)}, i64 {op.lane}")


def _shuffle(w: Writer, op: t.Shuffle) -> None:
    w.names[op.result] = _shuffle_text(w, w.name(op.a), w.name(op.b), op.a.type, op.picks)


def _shuffle_text(w: Writer, a: str, b: str, type: Type, picks: Sequence[int]) -> str:
    text = type_text(type)
    items = ", ".join(f"i32 {p}" for p in picks)
    return w.assign(f"shufflevector {text} {a}, {text} {b}, <{len(picks)} x i32> <{items}>")


def _reduce_lanes(w: Writer, op: t.ReduceLanes) -> None:
    assert isinstance(op.x.type, VecType)
    dtype, lanes = op.x.type.dtype, op.x.type.lanes
    value, rest = w.name(op.x), list[str]()
    while lanes > 1:
        type = VecType(lanes, dtype)
        if lanes % 2:
            rest.append(w.assign(f"extractelement {type_text(type)} {value}, i64 {lanes - 1}"))
        half = lanes // 2
        low = _shuffle_text(w, value, "poison", type, range(half))
        high = _shuffle_text(w, value, "poison", type, range(half, 2 * half))
        lanes = half
        value = w.apply(op.fn, (low, high), VecType(half, dtype))
    scalar_type = ScalarType(dtype)
    result = w.assign(f"extractelement {type_text(VecType(1, dtype))} {value}, i64 0")
    for item in reversed(rest):
        result = w.apply(op.fn, (result, item), scalar_type)
    w.names[op.result] = result


def _address(w: Writer, ptr: Value, offset: Value, dtype: DType) -> str:
    element = f"i{8 * dtype.itemsize}"
    return w.assign(f"getelementptr {element}, ptr {w.name(ptr)}, i64 {w.name(offset)}")


def _ptr_add(w: Writer, op: t.PtrAdd) -> None:
    w.names[op.result] = w.assign(f"getelementptr i8, ptr {w.name(op.ptr)}, i64 {w.name(op.bytes)}")


def _from_memory(w: Writer, value: str, type: Type) -> str:
    if t.element(type) is not bool_:
        return value
    text = memory_text(type)
    zero = "zeroinitializer" if isinstance(type, VecType) else "0"
    return w.assign(f"icmp ne {text} {value}, {zero}")


def _to_memory(w: Writer, value: str, type: Type) -> str:
    if t.element(type) is not bool_:
        return value
    return w.assign(f"zext {type_text(type)} {value} to {memory_text(type)}")


def _load(w: Writer, op: t.Load) -> None:
    dtype = t.element(op.type)
    at = _address(w, op.ptr, op.offset, dtype)
    align = op.align or dtype.itemsize
    text = memory_text(op.type)
    if not op.mask:
        value = w.assign(f"load {text}, ptr {at}, align {align}")
    else:
        other = _to_memory(w, w.name(op.mask[1]), op.type)
        name = _memory_suffix(op.type)
        value = w.assign(
            f"call {text} @llvm.masked.load.{name}.p0(ptr align {align} {at}, {w.typed(op.mask[0])}, {text} {other})"
        )
    w.names[op.result] = _from_memory(w, value, op.type)


def _memory_suffix(type: Type) -> str:
    return suffix(type).replace("i1", "i8") if t.element(type) is bool_ else suffix(type)


def _store(w: Writer, op: t.Store) -> None:
    type = op.value.type
    dtype = t.element(type)
    at = _address(w, op.ptr, op.offset, dtype)
    value = _to_memory(w, w.name(op.value), type)
    align = op.align or dtype.itemsize
    text = memory_text(type)
    if not op.mask:
        w.put(f"store {text} {value}, ptr {at}, align {align}")
    else:
        name = _memory_suffix(type)
        w.put(
            f"call void @llvm.masked.store.{name}.p0({text} {value}, ptr align {align} {at}, {w.typed(op.mask[0])})"
        )


def _pointers(w: Writer, ptr: Value, offsets: Value, dtype: DType) -> tuple[str, str]:
    lanes = t.lanes(offsets.type)
    element = f"i{8 * dtype.itemsize}"
    name = w.assign(f"getelementptr {element}, ptr {w.name(ptr)}, {w.typed(offsets)}")
    return name, f"<{lanes} x ptr>"


def _gather(w: Writer, op: t.Gather) -> None:
    type = op.result.type
    lanes = t.lanes(type)
    pointers, pointer_type = _pointers(w, op.ptr, op.offsets, op.dtype)
    mask = w.typed(op.mask[0]) if op.mask else f"<{lanes} x i1> splat (i1 true)"
    other = _to_memory(w, w.name(op.mask[1]), type) if op.mask else "poison"
    text, name = memory_text(type), _memory_suffix(type)
    value = w.assign(
        f"call {text} @llvm.masked.gather.{name}.v{lanes}p0({pointer_type} align {op.dtype.itemsize} {pointers}, "
        f"{mask}, {text} {other})"
    )
    w.names[op.result] = _from_memory(w, value, type)


def _scatter(w: Writer, op: t.Scatter) -> None:
    type = op.value.type
    dtype, lanes = t.element(type), t.lanes(type)
    pointers, pointer_type = _pointers(w, op.ptr, op.offsets, dtype)
    mask = w.typed(op.mask[0]) if op.mask else f"<{lanes} x i1> splat (i1 true)"
    value = _to_memory(w, w.name(op.value), type)
    w.put(
        f"call void @llvm.masked.scatter.{_memory_suffix(type)}.v{lanes}p0({memory_text(type)} {value}, "
        f"{pointer_type} align {dtype.itemsize} {pointers}, {mask})"
    )


def _alloca(w: Writer, op: t.Alloca) -> None:
    w.names[op.result] = w.assign(f"alloca [{op.count} x i{8 * op.dtype.itemsize}], align 64")


def _phis(w: Writer, values: Sequence[Value]) -> tuple[list[str], int]:
    """Reserves a phi line per value; they are filled in once the incoming values are known."""
    names = [w.fresh() for _ in values]
    at = len(w.lines)
    w.lines.extend([""] * len(values))
    return names, at


def _fill_phis(w: Writer, at: int, names: Sequence[str], types: Sequence[Type], incoming: Sequence[tuple[Sequence[str], str]]) -> None:
    for k, (name, type) in enumerate(zip(names, types, strict=True)):
        sources = ", ".join(f"[ {values[k]}, %{label} ]" for values, label in incoming)
        w.lines[at + k] = f"  {name} = phi {type_text(type)} {sources}"


def _for(w: Writer, op: t.For) -> None:
    n = w.next_label()
    before, init = w.label, [w.name(op.lo), *[w.name(v) for v in op.init]]
    w.put(f"br label %head{n}")
    w.start(f"head{n}")
    names, at = _phis(w, op.body.args)
    types = [a.type for a in op.body.args]
    w.names.update(zip(op.body.args, names, strict=True))
    going = w.assign(f"icmp slt i64 {names[0]}, {w.name(op.hi)}")
    w.put(f"br i1 {going}, label %body{n}, label %done{n}")
    w.start(f"body{n}")
    w.block(op.body)
    following = w.assign(f"add nsw i64 {names[0]}, {w.name(op.step)}")
    last = w.label
    w.put(f"br label %head{n}")
    carried = [following, *[w.name(v) for v in op.body.outputs]]
    _fill_phis(w, at, names, types, [(init, before), (carried, last)])
    w.start(f"done{n}")
    w.names.update(zip(op.results, names[1:], strict=True))


def _while(w: Writer, op: t.While) -> None:
    n = w.next_label()
    before, init = w.label, [w.name(v) for v in op.init]
    w.put(f"br label %head{n}")
    w.start(f"head{n}")
    names, at = _phis(w, op.init)
    types = [v.type for v in op.init]
    w.names.update(zip(op.cond.args, names, strict=True))
    w.names.update(zip(op.body.args, names, strict=True))
    w.block(op.cond)
    w.put(f"br i1 {w.name(op.cond.outputs[0])}, label %body{n}, label %done{n}")
    w.start(f"body{n}")
    w.block(op.body)
    last = w.label
    w.put(f"br label %head{n}")
    _fill_phis(w, at, names, types, [(init, before), ([w.name(v) for v in op.body.outputs], last)])
    w.start(f"done{n}")
    w.names.update(zip(op.results, names, strict=True))


def _if(w: Writer, op: t.If) -> None:
    n = w.next_label()
    w.put(f"br i1 {w.name(op.pred)}, label %then{n}, label %else{n}")
    incoming: list[tuple[list[str], str]] = []
    for word, block in (("then", op.then), ("else", op.otherwise)):
        w.start(f"{word}{n}")
        w.block(block)
        incoming.append(([w.name(v) for v in block.outputs], w.label))
        w.put(f"br label %done{n}")
    w.start(f"done{n}")
    names, at = _phis(w, op.results)
    _fill_phis(w, at, names, [v.type for v in op.results], incoming)
    w.names.update(zip(op.results, names, strict=True))


def _call(w: Writer, op: t.Call) -> None:
    w.put(f"call void @{op.callee}({', '.join(w.typed(a) for a in op.args)})")


RULES: dict[type[Op], Callable[..., None]] = {
    t.Const: _const,
    t.Lanes: _lanes,
    t.Map: _map,
    t.Cast: _cast,
    t.Bitcast: _bitcast,
    t.Splat: _splat,
    t.Extract: _extract,
    t.Insert: _insert,
    t.Shuffle: _shuffle,
    t.ReduceLanes: _reduce_lanes,
    t.PtrAdd: _ptr_add,
    t.Load: _load,
    t.Store: _store,
    t.Gather: _gather,
    t.Scatter: _scatter,
    t.Alloca: _alloca,
    t.For: _for,
    t.While: _while,
    t.If: _if,
    t.Call: _call,
}


def write_module(module: Module, machine: Machine, entry: str) -> str:
    """LLVM IR text of a Target module.

    Args:
        module: legalized Target IR.
        machine: the CPU.
        entry: name of the external function `void entry(ptr words)`; the words are main's arguments, 8 bytes each.
    """
    return Writer(machine).module(module, entry)
