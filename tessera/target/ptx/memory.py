"""Loads, stores and vectors.

A vector of elements of 8 or 16 bits is packed in 32-bit registers, as an access of it is. One
access has up to 16 bytes; what is less aligned is split.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tessera.dtypes import DType, Kind, bfloat16
from tessera.ir.core import Value
from tessera.target import gpu_ops as g
from tessera.target import ops as t
from tessera.target.ptx.address import (
    address,
    address_parts,
    base_register,
    is_packing,
    space_of,
    whole_word,
    words,
)
from tessera.target.ptx.rows import memory_type, register_file
from tessera.target.ptx.text import Writer, bits_of, is_packed, value_files
from tessera.target.types import AddressSpace, VecType

LOAD_HINTS = {"nc": ".nc", "stream": ".cs", "l2": ".cg", "last": ".L1::evict_last"}
STORE_HINTS = {"stream": ".cs", "l2": ".cg"}


def predicate(w: Writer, mask: Sequence[Value]) -> str | None:
    """The predicate of an access: `""` where there is none, None where it is false."""
    if not mask:
        return ""
    op = mask[0].op
    if isinstance(op, t.Const):
        return "" if op.value else None
    return w.use(mask[0])


def pieces(total: int, align: int, register: int) -> Iterator[tuple[int, int]]:
    """Position and size of each access to `total` bytes; the size is a power of two of at most 16.

    No access ends within a register unless the alignment forces it to.
    """
    at = 0
    while at < total:
        size = min(16, align if at == 0 else min(align, at & -at))
        while size > total - at:
            size //= 2
        if size < register and (total - at) >= register and align >= register:
            size = register
        yield at, size
        at += size


def _element_type(size: int) -> str:
    return {1: "u8", 2: "u16", 4: "b32", 8: "b64"}[size]


def load(w: Writer, op: t.Load | g.LoadCached) -> None:
    """`ld`."""
    mask = predicate(w, op.mask)
    space = space_of(w, op.ptr).value
    hint = LOAD_HINTS[op.hint] if isinstance(op, g.LoadCached) else ""
    word = f"ld.{space}{hint}"
    if mask is None:
        w.names[op.result] = w.registers(op.mask[1])
    elif isinstance(op.type, VecType):
        _load_vector(w, op, word, mask)
    else:
        _load_scalar(w, op, word, mask)


def _load_scalar(w: Writer, op: t.Load | g.LoadCached, word: str, mask: str) -> None:
    dtype = t.element(op.type)
    at = address(w, op.ptr, op.offset, dtype.itemsize)
    text = f"{word}.{memory_type(dtype)}"
    if dtype.is_bool:
        byte = w.register("b32")
        if mask:
            w.always(f"mov.b32 {byte}, {_bool_byte(w, op.mask[1])}")
        w.under(mask, f"{text} {byte}, {at}")
        w.always(f"setp.ne.s32 {w.result(op.result)}, {byte}, 0")
        return
    other = w.use(op.mask[1]) if mask else ""
    result = w.result(op.result)
    if mask:
        w.copy(result, other, register_file(dtype))
    w.under(mask, f"{text} {result}, {at}")


def _bool_byte(w: Writer, value: Value) -> str:
    """A bool as memory has it."""
    if isinstance(value.op, t.Const):
        return str(int(value.op.value))
    return w.once(("byte", value), "b32", f"selp.b32 {{}}, 1, 0, {w.use(value)}")


def _group(registers: Sequence[str]) -> tuple[str, str]:
    """The modifier and the operand of several registers."""
    if len(registers) == 1:
        return "", registers[0]
    return f".v{len(registers)}", "{" + ", ".join(registers) + "}"


def _load_vector(w: Writer, op: t.Load | g.LoadCached, word: str, mask: str) -> None:
    assert isinstance(op.type, VecType)
    dtype, total = op.type.dtype, op.type.lanes * op.type.dtype.itemsize
    others = w.registers(op.mask[1]) if mask else ()
    results = w.results(op.result)
    size = 4 if is_packed(dtype) else dtype.itemsize
    file = value_files(op.type)[0]
    kind = "b32" if is_packed(dtype) else memory_type(dtype)
    align = op.align or dtype.itemsize
    whole = [(at, n) for at, n in pieces(total, align, size) if n >= size]
    if mask:
        for result, other in zip(results, others, strict=True):
            w.copy(result, other, file)
    for at, n in whole:
        modifier, operand = _group(results[at // size : (at + n) // size])
        where = address(w, op.ptr, op.offset, dtype.itemsize, at)
        w.under(mask, f"{word}{modifier}.{kind} {operand}, {where}")
    parts: dict[int, list[tuple[int, str]]] = {}
    for at, n in pieces(total, align, size):
        if n < size:
            part = w.register("b32")
            if mask:
                w.always(f"mov.b32 {part}, 0")
            where = address(w, op.ptr, op.offset, dtype.itemsize, at)
            w.under(mask, f"{word}.{_element_type(n)} {part}, {where}")
            parts.setdefault(at // 4, []).append((at % 4, part))
    for k, found in parts.items():
        value = _joined(w, found)
        if mask:
            w.always(f"selp.b32 {results[k]}, {value}, {others[k]}, {mask}")
        else:
            w.copy(results[k], value, "b32")


def _joined(w: Writer, parts: Sequence[tuple[int, str]]) -> str:
    """Bytes, each moved to its place in a word."""
    (_, word), *rest = parts
    for at, part in rest:
        moved, both = w.register("b32"), w.register("b32")
        w.always(f"shl.b32 {moved}, {part}, {8 * at}")
        w.always(f"or.b32 {both}, {word}, {moved}")
        word = both
    return word


def store(w: Writer, op: t.Store | g.StoreCached) -> None:
    """`st`."""
    mask = predicate(w, op.mask)
    if mask is None:
        return
    space = space_of(w, op.ptr).value
    hint = STORE_HINTS[op.hint] if isinstance(op, g.StoreCached) else ""
    word = f"st.{space}{hint}"
    type = op.value.type
    dtype = t.element(type)
    if isinstance(type, VecType):
        _store_vector(w, op, word, mask)
        return
    at = address(w, op.ptr, op.offset, dtype.itemsize)
    value = _bool_byte(w, op.value) if dtype.is_bool else w.use(op.value)
    if register_file(dtype) == "b16":
        value = w.in_register(value, "b16")
    kind = memory_type(dtype)
    w.under(mask, f"{word}.{kind} {at}, {value}")


def _store_vector(w: Writer, op: t.Store | g.StoreCached, word: str, mask: str) -> None:
    type = op.value.type
    assert isinstance(type, VecType)
    dtype, total = type.dtype, type.lanes * type.dtype.itemsize
    values = w.registers(op.value)
    size = 4 if is_packed(dtype) else dtype.itemsize
    kind = "b32" if is_packed(dtype) else memory_type(dtype)
    for at, n in pieces(total, op.align or dtype.itemsize, size):
        where = address(w, op.ptr, op.offset, dtype.itemsize, at)
        if n >= size:
            modifier, operand = _group(values[at // size : (at + n) // size])
            w.under(mask, f"{word}{modifier}.{kind} {where}, {operand}")
            continue
        part = values[at // 4]
        if at % 4:
            part = w.register("b32")
            w.always(f"shr.u32 {part}, {values[at // 4]}, {8 * (at % 4)}")
        w.under(mask, f"{word}.{_element_type(n)} {where}, {part}")


def alloca(w: Writer, op: t.Alloca) -> None:
    """An array in local memory."""
    name = f"scratch{len(w.symbols)}"
    size = op.count * op.dtype.itemsize
    w.symbols.append(f".local .align 16 .b8 {name}[{size}];")
    w.spaces[op.result] = AddressSpace.LOCAL
    w.put(f"mov.u64 {w.result(op.result)}, {name}")


def ptr_add(w: Writer, op: t.PtrAdd) -> None:
    """A moved pointer."""
    if w.spaces.get(op.ptr) is not None:
        w.spaces[op.result] = w.spaces[op.ptr]
    is_shared = space_of(w, op.ptr) is AddressSpace.SHARED
    base, amount = address_parts(w, op.ptr, op.bytes, 1)
    base = base_register(w, base, is_shared)
    if amount:
        w.always(f"add.s{32 if is_shared else 64} {w.result(op.result)}, {base}, {amount}")
    else:
        w.names[op.result] = (base,)


def pointer(w: Writer, ptr: Value) -> str:
    """A pointer in a register."""
    if isinstance(ptr.op, g.Shared):
        w.uses_shared = True
        base, at = "smem", ptr.op.offset
        return w.once(("symbol", f"{base}+{at}"), "b32", f"mov.u32 {{}}, {base}+{at}")
    return w.use(ptr)


# --- lanes ----------------------------------------------------------------------------------------


def pack(w: Writer, op: g.Pack) -> None:
    """A vector of scalars: packed, or the same registers."""
    dtype = t.element(op.args[0].type)
    if not is_packed(dtype):
        file = register_file(dtype)
        wanted = w.wanted.get(op.result)
        sources = [w.use(a) for a in op.args]
        if wanted is not None:
            w.copies(wanted, sources, [file] * len(sources))
            sources = list(wanted)
        w.names[op.result] = tuple(sources)
        return
    found: list[str] = []
    for part in words(op.args):
        values = [a.op.value for a in part if isinstance(a.op, t.Const)]
        whole = whole_word(part)
        if whole is not None:
            found.append(w.registers(whole[0])[whole[1]])
            continue
        found.append(w.register("b32"))
        if len(values) == len(part):
            data = b"".join(bits_of(v, dtype).to_bytes(dtype.itemsize, "little") for v in values)
            w.always(f"mov.b32 {found[-1]}, {int.from_bytes(data, 'little')}")
        else:
            _pack_word(w, found[-1], part, dtype)
    w.names[op.result] = tuple(found)


def _pack_word(w: Writer, result: str, args: Sequence[Value], dtype: DType) -> None:
    if dtype.itemsize == 2:
        _pack_pair(w, result, args, dtype)
    elif dtype.kind is Kind.FLOAT:
        halves = [w.in_register(w.use(a), "b16") for a in args]
        halves += [w.in_register("0", "b16")] * (4 - len(halves))
        low, high = w.register("b32"), w.register("b32")
        w.always(f"mov.b32 {low}, {{{halves[0]}, {halves[1]}}}")
        w.always(f"mov.b32 {high}, {{{halves[2]}, {halves[3]}}}")
        w.always(f"prmt.b32 {result}, {low}, {high}, 0x6420")
    else:
        parts = [_bool_byte(w, a) if dtype.is_bool else w.use(a) for a in args]
        parts += ["0"] * (4 - len(parts))
        low, high = w.register("b32"), w.register("b32")
        w.always(f"prmt.b32 {low}, {parts[0]}, {parts[1]}, 0x0040")
        w.always(f"prmt.b32 {high}, {parts[2]}, {parts[3]}, 0x0040")
        w.always(f"prmt.b32 {result}, {low}, {high}, 0x5410")


def _pack_pair(w: Writer, result: str, args: Sequence[Value], dtype: DType) -> None:
    if dtype.kind is not Kind.FLOAT:
        parts = [w.use(a) for a in args] + ["0"]
        w.always(f"prmt.b32 {result}, {parts[0]}, {parts[1]}, 0x5410")
        return
    sources = [a.op.x for a in args if isinstance(a.op, t.Cast) and is_packing(a.op)]
    if len(sources) == len(args):
        low = w.use(sources[0])
        high = w.use(sources[1]) if len(sources) > 1 else "0f00000000"
        w.always(f"cvt.rn.{dtype}x2.f32 {result}, {high}, {low}")
        return
    halves = [w.in_register(_half(w, a), "b16") for a in args]
    halves += [w.in_register("0", "b16")] * (2 - len(halves))
    w.always(f"mov.b32 {result}, {{{halves[0]}, {halves[1]}}}")


def _half(w: Writer, value: Value) -> str:
    """An element, whose conversion may not have been written by itself."""
    op = value.op
    if value not in w.fused or not isinstance(op, t.Cast):
        return w.use(value)
    text = f"cvt.rn.{op.dtype}.f32 {{}}, {w.use(op.x)}"
    return w.once(("half", value), "b16", text)


def extract(w: Writer, op: t.Extract) -> None:
    """A lane: its register, or a part of one."""
    type = op.x.type
    assert isinstance(type, VecType)
    registers = w.registers(op.x)
    dtype = type.dtype
    if not is_packed(dtype):
        w.names[op.result] = (registers[op.lane],)
        return
    size = dtype.itemsize
    word = w.in_register(registers[op.lane * size // 4], "b32")
    unpack(w, word, op.lane * size % 4, dtype, op.result)


def unpack(w: Writer, word: str, at: int, dtype: DType, value: Value) -> None:
    """The element at a byte of a word."""
    result = w.result(value)
    if dtype.kind is Kind.FLOAT:
        if dtype.itemsize == 2:
            w.always(f"mov.b32 {{{'_, ' if at else ''}{result}{'' if at else ', _'}}}, {word}")
            return
        byte = w.register("b32")
        w.always(f"prmt.b32 {byte}, {word}, 0, 0x444{at}")
        w.always(f"cvt.u16.u32 {result}, {byte}")
        return
    if dtype.is_bool:
        byte = w.register("b32")
        w.always(f"prmt.b32 {byte}, {word}, 0, 0x444{at}")
        w.always(f"setp.ne.s32 {result}, {byte}, 0")
        return
    signed = dtype.kind is Kind.INT
    if dtype.itemsize == 2:
        if not at:
            text = f"cvt.s32.s16 {result}, {word}" if signed else f"and.b32 {result}, {word}, 65535"
        else:
            text = f"shr.{'s' if signed else 'u'}32 {result}, {word}, 16"
        w.always(text)
        return
    fill = f"{8 | at:x}" * 3 if signed else "444"
    w.always(f"prmt.b32 {result}, {word}, 0, 0x{fill}{at}")


def widen_lane(w: Writer, op: t.Cast) -> None:
    """A bfloat16 lane of a packed vector as float32: its bits, in the upper half."""
    lane = op.x.op
    assert isinstance(lane, t.Extract) and lane.x.type is not None
    assert t.element(lane.x.type) is bfloat16
    word = w.in_register(w.registers(lane.x)[lane.lane // 2], "b32")
    bits = w.register("b32")
    if lane.lane % 2:
        w.always(f"and.b32 {bits}, {word}, 0xffff0000")
    else:
        w.always(f"shl.b32 {bits}, {word}, 16")
    w.always(f"mov.b32 {w.result(op.result)}, {bits}")
