"""Target IR as LLVM IR text.

Tables (`rows.py`) plus a printer. Structured control flow becomes basic blocks, loop-carried values
phis. Formats narrower than float32 are integers here (their arithmetic has been legalized away); a
bool is an i1 in registers and a byte in memory.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tessera.dtypes import Kind, bfloat16, bool_, float16, float32, int16, uint8, uint32
from tessera.errors import CompileError
from tessera.ir.core import Module, Op, Value
from tessera.ir.scalar import ScalarFn
from tessera.ir.types import ScalarType, Type
from tessera.target import ops as t
from tessera.target.llvm import bad_access, control, host, lanes, memory, panels, parallel
from tessera.target.llvm.invariants import known_lanes
from tessera.target.llvm.lanes import joined, mask_literal, piece, shuffle_text
from tessera.target.llvm.text import (
    Rule,
    Writer,
    element_text,
    literal,
    suffix,
    type_text,
)
from tessera.target.lookup_ops import ENTRIES, Lookup
from tessera.target.machine import Feature, Machine
from tessera.target.prefetch_ops import Prefetch
from tessera.target.roots_ops import Roots
from tessera.target.types import VecType


def _const(w: Writer, op: t.Const) -> None:
    del w, op  # constants are written where they are used


def _lanes(w: Writer, op: t.Lanes) -> None:
    element = element_text(op.dtype)
    items = ", ".join(f"{element} {k}" for k in range(op.count))
    w.names[op.result] = f"<{items}>"


def _map(w: Writer, op: t.Map) -> None:
    known = known_lanes(op.result)
    if known is not None:
        w.names[op.result] = mask_literal(known, t.lanes(op.result.type))
        return
    w.names[op.result] = w.map(op)


def _cast(w: Writer, op: t.Cast) -> None:
    x = w.name(op.x)
    name = w.names[op.result] = cast_text(w, x, op.x.type, op.result.type)
    if t.element(op.x.type).itemsize >= op.dtype.itemsize:
        # What a wider one knows of its upper bits makes products cheap.
        w.deepen(name, (x,), op.result.type, 0)


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
        return w.value(f"{code} {text} {x}, {literal(0, source)}")
    a_float, b_float = a.kind is Kind.FLOAT, b.kind is Kind.FLOAT
    if (a_float and a.bits < 32) or (b_float and b.bits < 32):
        raise CompileError(
            f"llvm: cast {source} -> {target} is not primitive; it should have been legalized"
        )
    if a_float and b_float:
        return w.value(f"{'fpext' if a.bits < b.bits else 'fptrunc'} {text} {x} to {result}")
    if a_float:
        return _to_integer(w, x, source, target)
    if b_float:
        code = "sitofp" if a.kind is Kind.INT else "uitofp"
        return w.value(f"{code} {text} {x} to {result}")
    width, wanted = (1 if a is bool_ else 8 * a.itemsize), 8 * b.itemsize
    if width == wanted:
        return x
    if width > wanted:
        return w.value(f"trunc {text} {x} to {result}")
    return w.value(f"{'sext' if a.kind is Kind.INT else 'zext'} {text} {x} to {result}")


def _to_integer(w: Writer, x: str, source: Type, target: Type) -> str:
    """A float as an integer: the nearest there is, NaN as 0.

    LLVM has an intrinsic for it, but no vectors of it on x86: there it is a conversion of what is
    in range, and selections, which may leave out what the conversion does not define.
    """
    b = t.element(target)
    text, result = type_text(source), type_text(target)
    code = "si" if b.kind is Kind.INT else "ui"
    if not t.lanes(source):
        return w.value(
            f"call {result} @llvm.fpto{code}.sat.{suffix(target)}.{suffix(source)}({text} {x})"
        )
    bits = 8 * b.itemsize - (b.kind is Kind.INT)
    least = -(1 << bits) if b.kind is Kind.INT else 0
    low, high = literal(float(least), source), literal(2.0**bits, source)
    masks = f"<{t.lanes(source)} x i1>"

    def select(test: str, a: str, c: str, type: str) -> str:
        return w.value(f"select {masks} {test}, {type} {a}, {type} {c}")

    inside = select(w.value(f"fcmp ogt {text} {x}, {low}"), x, low, text)
    found = w.value(f"fpto{code} {text} {inside} to {result}")
    large = w.value(f"fcmp oge {text} {x}, {high}")
    found = select(large, literal((1 << bits) - 1, target), found, result)
    return select(w.value(f"fcmp uno {text} {x}, {x}"), literal(0, target), found, result)


def _half(w: Writer, x: str, source: Type, target: Type) -> str:
    """f16 <-> f32 by the machine's instruction."""
    a, b = t.element(source), t.element(target)
    if not w.machine.has(Feature.F16C) or {a.name, b.name} != {"f16", "f32"}:
        raise CompileError(
            f"llvm: cast {source} -> {target} is not primitive; it should have been legalized"
        )
    lanes = t.lanes(source)
    half = f"<{lanes} x half>" if lanes else "half"
    if a is float16:
        value = w.value(f"bitcast {type_text(source)} {x} to {half}")
        return w.value(f"fpext {half} {value} to {type_text(target)}")
    value = w.value(f"fptrunc {type_text(source)} {x} to {half}")
    return w.value(f"bitcast {half} {value} to {type_text(target)}")


def _bitcast(w: Writer, op: t.Bitcast) -> None:
    source, target = type_text(op.x.type), type_text(op.result.type)
    x = w.name(op.x)
    name = x if source == target else w.value(f"bitcast {source} {x} to {target}")
    w.names[op.result] = name
    w.deepen(name, (x,), op.result.type, 0)


def _splat(w: Writer, op: t.Splat) -> None:
    vector = type_text(op.result.type)
    one = w.value(f"insertelement {vector} poison, {w.typed(op.x)}, i64 0")
    w.names[op.result] = w.value(
        f"shufflevector {vector} {one}, {vector} poison, <{op.count} x i32> zeroinitializer"
    )


def _extract(w: Writer, op: t.Extract) -> None:
    w.names[op.result] = w.assign(f"extractelement {w.typed(op.x)}, i64 {op.lane}")


def _insert(w: Writer, op: t.Insert) -> None:
    w.names[op.result] = w.assign(
        f"insertelement {w.typed(op.x)}, {w.typed(op.value)}, i64 {op.lane}"
    )


def _shuffle(w: Writer, op: t.Shuffle) -> None:
    a, b = w.shuffled(op.a), w.shuffled(op.b)
    name = w.names[op.result] = shuffle_text(w, a, b, op.a.type, op.picks)
    w.deepen(name, (a, b), op.result.type)
    if w.has_fences:
        w.shuffles[name] = 1 + max(w.shuffles.get(a, 0), w.shuffles.get(b, 0))


def _reduce_lanes(w: Writer, op: t.ReduceLanes) -> None:
    assert isinstance(op.x.type, VecType)
    dtype, lanes = op.x.type.dtype, op.x.type.lanes
    if dtype is bool_ and op.fn.name == "or":
        w.names[op.result] = _any_of(w, w.name(op.x), lanes)
    else:
        w.names[op.result] = _halves(w, op.fn, w.name(op.x), op.x.type)


def _halves(w: Writer, fn: ScalarFn, value: str, whole: VecType) -> str:
    """The lanes of a vector combined, the first half with the second."""
    dtype, lanes, rest = whole.dtype, whole.lanes, list[str]()
    while lanes > 1:
        type = VecType(lanes, dtype)
        if lanes % 2:
            rest.append(w.assign(f"extractelement {type_text(type)} {value}, i64 {lanes - 1}"))
        half = lanes // 2
        low = shuffle_text(w, value, "poison", type, range(half))
        high = shuffle_text(w, value, "poison", type, range(half, 2 * half))
        lanes = half
        value = w.apply(fn, (low, high), VecType(half, dtype))
    scalar_type = ScalarType(dtype)
    result = w.assign(f"extractelement {type_text(VecType(1, dtype))} {value}, i64 0")
    for item in reversed(rest):
        result = w.apply(fn, (result, item), scalar_type)
    return result


def _any_of(w: Writer, mask: str, lanes: int) -> str:
    """Whether a lane holds: one comparison, of what LLVM would find the halves of halves to be."""
    word = w.assign(f"bitcast <{lanes} x i1> {mask} to i{lanes}")
    return w.assign(f"icmp ne i{lanes} {word}, 0")


def _scale(w: Writer, op: t.Scale) -> None:
    dtype, lanes = t.element(op.x.type), t.lanes(op.x.type)
    element, suffix = element_text(dtype), "ps" if dtype is float32 else "pd"
    # Scalars and short vectors take the place of the first lanes of a register.
    width = min(max(lanes, 128 // dtype.bits), 512 // dtype.bits)
    vector, mask = f"<{width} x {element}>", f"i{max(width, 8)}"
    rounding, declared = (", i32 4", ", i32") if width * dtype.bits == 512 else ("", "")
    name = f"llvm.x86.avx512.mask.scalef.{suffix}.{width * dtype.bits}"
    w.declare(name, f"declare {vector} @{name}({vector}, {vector}, {vector}, {mask}{declared})")
    pieces: list[str] = []
    for at in range(0, max(lanes, 1), width):
        x, power = [_widened(w, value, at, width) for value in (op.x, op.power)]
        operands = f"{vector} {x}, {vector} {power}, {vector} zeroinitializer, {mask} -1{rounding}"
        pieces.append(w.assign(f"call {vector} @{name}({operands})"))
    type = VecType(width, dtype)
    if not lanes:
        w.names[op.result] = w.assign(f"extractelement {vector} {pieces[0]}, i64 0")
    elif lanes < width:
        w.names[op.result] = shuffle_text(w, pieces[0], "poison", type, range(lanes))
    else:
        w.names[op.result] = joined(w, pieces, type)


def _lookup(w: Writer, op: Lookup) -> None:
    lanes, is_pair = t.lanes(op.index.type), len(op.table) > ENTRIES
    type, index = VecType(ENTRIES, float32), VecType(ENTRIES, uint32)
    vector, indices = type_text(type), type_text(index)
    items = [f"float {literal(x, ScalarType(float32))}" for x in op.table]
    parts = [f"{vector} <{', '.join(part)}>" for part in (items[:ENTRIES], items[ENTRIES:]) if part]
    if lanes > ENTRIES:  # a long text is written once
        parts = [f"{vector} {w.assign(f'bitcast {part} to {vector}')}" for part in parts]
    low, high = parts[0], parts[-1]
    name = f"llvm.x86.avx512.{'vpermi2var.ps' if is_pair else 'permvar.sf'}.512"
    last = f", {vector}" if is_pair else ""
    w.declare(name, f"declare {vector} @{name}({vector}, {indices}{last})")
    last = f", {high}" if is_pair else ""
    pieces: list[str] = []
    for at in range(0, max(lanes, 1), ENTRIES):
        one = _widened(w, op.index, at, ENTRIES)
        pieces.append(w.assign(f"call {vector} @{name}({low}, {indices} {one}{last})"))
    if not lanes:
        w.names[op.result] = w.assign(f"extractelement {vector} {pieces[0]}, i64 0")
        return
    count = len(pieces)
    pieces += pieces[:1] * ((1 << (count - 1).bit_length()) - count)
    whole = VecType(ENTRIES * len(pieces), float32)
    found = joined(w, pieces, type)
    if lanes < whole.lanes:
        found = shuffle_text(w, found, "poison", whole, range(lanes))
    w.names[op.result] = found


def _widened(w: Writer, value: Value, at: int, width: int) -> str:
    """Some lanes of a value, with anything in those that it lacks."""
    type, lanes = value.type, t.lanes(value.type)
    if not lanes:
        vector = type_text(VecType(width, t.element(type)))
        return w.assign(f"insertelement {vector} poison, {w.typed(value)}, i64 0")
    if lanes < at + width:
        picks = [min(at + k, lanes - 1) for k in range(width)]
        return shuffle_text(w, w.name(value), "poison", type, picks)
    return piece(w, w.name(value), type, at, width)


@dataclass(frozen=True, slots=True)
class GroupCall:
    """An instruction that adds products of groups.

    Attributes:
        name: of the intrinsic.
        lanes: of 32 bits.
        group: the type that it takes groups as.
        adds: whether it adds them to sums, too.
    """

    name: str
    lanes: int
    group: str
    adds: bool = True


GROUP_CALLS = {
    bfloat16: GroupCall("llvm.x86.avx512bf16.dpbf16ps.512", 16, "<32 x bfloat>"),
    int16: GroupCall("llvm.x86.avx512.vpdpwssd.512", 16, "<16 x i32>"),
    uint8: GroupCall("llvm.x86.avx512.vpdpbusd.512", 16, "<16 x i32>"),
}
"""By the dtype of the first operand."""

PAIR_CALLS = {
    128: GroupCall("llvm.x86.sse2.pmadd.wd", 4, "<8 x i16>", adds=False),
    256: GroupCall("llvm.x86.avx2.pmadd.wd", 8, "<16 x i16>", adds=False),
    512: GroupCall("llvm.x86.avx512.pmaddw.d.512", 16, "<32 x i16>", adds=False),
}
"""Of int16 without AVX-512 VNNI, by the bits of vectors. Two products of -32768 squared are 2^31,
which wraps around, as a sum of int32 does."""


def _dot_groups(w: Writer, op: t.DotGroups) -> None:
    lanes, dtype = t.lanes(op.acc.type), t.element(op.acc.type)
    size, element = t.lanes(op.a.type) // lanes, t.element(op.a.type)
    call = GROUP_CALLS[element]
    if element is int16 and not w.machine.has(Feature.AVX512_VNNI):
        call = PAIR_CALLS[w.machine.vector_bits]
    acc, name = f"<{call.lanes} x {element_text(dtype)}>", call.name
    taken = f"{acc}, " if call.adds else ""
    w.declare(name, f"declare {acc} @{name}({taken}{call.group}, {call.group})")
    pieces: list[str] = []
    for at in range(0, lanes, call.lanes):
        total = piece(w, w.name(op.acc), op.acc.type, at, call.lanes)
        sides: list[str] = [f"{acc} {total}"] if call.adds else []
        for value in (op.a, op.b):
            count = size * call.lanes
            part = piece(w, w.name(value), value.type, size * at, count)
            source = type_text(VecType(count, t.element(value.type)))
            sides.append(f"{call.group} {w.assign(f'bitcast {source} {part} to {call.group}')}")
        found = w.assign(f"call {acc} @{name}({', '.join(sides)})")
        pieces.append(found if call.adds else w.assign(f"add {acc} {total}, {found}"))
    w.names[op.result] = joined(w, pieces, VecType(call.lanes, dtype))


def _prefetch(w: Writer, op: Prefetch) -> None:
    """Into all caches, or all but the first one."""
    near = 2 if op.is_many and w.machine.waits_for_few else 3
    at = memory.address(w, op, 1)
    for line in range(0, op.bytes, w.machine.cacheline):
        place = w.assign(f"getelementptr i8, ptr {at}, i64 {line}") if line else at
        how = f"i32 {op.is_written:d}, i32 {near}, i32 1"
        w.put(f"call void @llvm.prefetch.p0(ptr {place}, {how})")


def _alloca(w: Writer, op: t.Alloca) -> None:
    w.names[op.result] = w.assign(f"alloca [{op.count} x i{8 * op.dtype.itemsize}], align 64")


def _roots(w: Writer, op: Roots) -> None:
    data = op.values().tobytes()
    text = data.hex("\\")
    w.declare(
        op.symbol,
        f'@{op.symbol} = internal unnamed_addr constant [{len(data)} x i8] c"\\{text}", align 64',
    )
    w.names[op.result] = f"@{op.symbol}"


RULES: Mapping[type[Op], Rule] = {
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
    t.Scale: _scale,
    Lookup: _lookup,
    **lanes.RULES,
    **memory.RULES,
    t.DotGroups: _dot_groups,
    t.Alloca: _alloca,
    Roots: _roots,
    Prefetch: _prefetch,
    t.Parallel: parallel.parallel,
    t.Together: parallel.together,
    t.BadAccess: bad_access.bad_access,
    t.Sentinel: bad_access.sentinel,
    **control.RULES,
    **panels.RULES,
    **host.RULES,
}


def write_module(module: Module, machine: Machine, entry: str) -> str:
    """LLVM IR text of a Target module.

    Args:
        module: legalized Target IR.
        machine: the CPU.
        entry: name of the external function `void entry(ptr words)`; the words are main's
            arguments, 8 bytes each.
    """
    return Writer(machine, RULES, host.frame).module(module, entry)
