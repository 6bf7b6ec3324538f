"""LLVM text of accesses to memory, with masks and past the caches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tessera.dtypes import DType, bool_, uint8
from tessera.ir.core import Op, Value
from tessera.ir.types import Type
from tessera.target import ops as t
from tessera.target.llvm import some_lanes
from tessera.target.llvm.addresses import is_streamed, stream_unit
from tessera.target.llvm.invariants import known_lanes
from tessera.target.llvm.lanes import joined, mask_literal, piece, shuffle_text
from tessera.target.llvm.text import (
    Rule,
    Writer,
    element_text,
    literal,
    memory_text,
    suffix,
    type_text,
)
from tessera.target.prefetch_ops import Prefetch
from tessera.target.types import VecType

PIECE = 1 << 18
"""Bytes of a piece of memory of which some go past the caches. Pieces of 16 KB to 1 MB take a Zen 4
as long."""

_ALL = "splat (i1 true)"


def address(w: Writer, op: t.Load | t.Store | Prefetch, unit: int) -> str:
    """Where an access begins, whose offset counts so many bytes."""
    behind = w.addresses.behind.get(op)
    if behind is not None:
        lead, bytes = behind
        return _behind(w, w.pointers[lead], bytes)
    ptr, offset = w.name(op.ptr), w.name(op.offset)
    at = w.assign(f"getelementptr i{8 * unit}, ptr {ptr}, i64 {offset}")
    if op in w.addresses.opaque:
        name = "llvm.launder.invariant.group.p0"
        w.declare(name, f"declare ptr @{name}(ptr)")
        at = w.assign(f"call ptr @{name}(ptr {at})")
    w.pointers[op] = at
    return at


def _ptr_add(w: Writer, op: t.PtrAdd) -> None:
    w.names[op.result] = w.assign(f"getelementptr i8, ptr {w.name(op.ptr)}, i64 {w.name(op.bytes)}")


def _in_memory(type: VecType) -> VecType:
    """The type of what lies in memory: bytes for truth values."""
    return VecType(type.lanes, uint8) if type.dtype is bool_ else type


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
    at = address(w, op, dtype.itemsize)
    align = op.align or dtype.itemsize
    text = memory_text(op.type)
    if not op.mask:
        value = w.assign(f"load {text}, ptr {at}, align {align}")
    else:
        value = _masked_load(w, op, at, align)
    w.names[op.result] = _from_memory(w, value, op.type)


def _masked_load(w: Writer, op: t.Load, at: str, align: int) -> str:
    """A load of some lanes, in as many parts as the machine has vectors for it.

    LLVM 22 splits wider ones itself, and where it then knows that the mask of the upper half is
    false, it reads that half without a mask: what lies there may be no memory of the program. So
    it does where it finds that of a part out late; see `_mask_part`.
    """
    assert op.mask and isinstance(op.type, VecType)
    mask, fill = op.mask
    memory = _in_memory(op.type)
    lanes, size = memory.lanes, memory.dtype.itemsize
    width = min(lanes, max(1, w.machine.vector_bits // (8 * size)))
    known = known_lanes(mask)
    if known is not None and isinstance(fill.op, t.Const) and not lanes & (lanes - 1):
        return _load_first(w, memory, known, width, at, align, fill.op.value)
    other = "" if isinstance(fill.op, t.Const) else _to_memory(w, w.name(fill), op.type)
    part, parts = VecType(width, memory.dtype), list[str]()
    masks = w.mask_parts.get((mask, width))
    for k in range(0, lanes, width):
        # Lanes beyond the last one are those of a second vector.
        picks = [min(j, lanes) for j in range(k, k + width)]
        if isinstance(fill.op, t.Const):
            other_ = literal(fill.op.value, part)
        else:
            other_ = shuffle_text(w, other, "poison", memory, picks) if width < lanes else other
        if masks:
            mask_ = masks[k // width]
        else:
            mask_ = _mask_part(w, mask, picks) if width < lanes else w.name(mask)
        from_ = _behind(w, at, k * size)
        parts.append(_masked(w, part, from_, min(align, width * size), mask_, other_))
    if len(parts) == 1:
        return parts[0]
    whole = 1 << (len(parts) - 1).bit_length()
    found = joined(w, parts + ["poison"] * (whole - len(parts)), part)
    return piece(w, found, VecType(whole * width, part.dtype), 0, lanes)


def _masked(w: Writer, type: VecType, at: str, align: int, mask: str, other: str) -> str:
    if not w.machine.takes_masks(type.dtype.bits):
        return some_lanes.load(w, type, at, align, mask, other)
    text = type_text(type)
    return w.assign(
        f"call {text} @llvm.masked.load.{suffix(type)}.p0(ptr align {align} {at}, "
        f"<{type.lanes} x i1> {mask}, {text} {other})"
    )


def _behind(w: Writer, at: str, bytes: int) -> str:
    return w.assign(f"getelementptr i8, ptr {at}, i64 {bytes}") if bytes else at


def _load_first(
    w: Writer, type: VecType, count: int, width: int, at: str, align: int, fill: bool | int | float
) -> str:
    """So many first lanes of a power of two, the others filled: halves, and halves of those, that
    are all there or not there at all, and the rest of a vector of the machine."""
    lanes, text, size = type.lanes, type_text(type), type.dtype.itemsize
    if not count:
        return literal(fill, type)
    if count == lanes:
        return w.assign(f"load {text}, ptr {at}, align {align}")
    if lanes == 2 and not w.machine.takes_masks(type.dtype.bits):
        # No vector of one lane, which ends a pass of LLVM 22's over vectors, and the process.
        element = element_text(type.dtype)
        lane = w.assign(f"load {element}, ptr {at}, align {align}")
        return w.assign(f"insertelement {text} {literal(fill, type)}, {element} {lane}, i64 0")
    if lanes > width or not w.machine.takes_masks(type.dtype.bits):
        half, middle = VecType(lanes // 2, type.dtype), lanes // 2
        low = _load_first(w, half, min(count, middle), width, at, align, fill)
        high = literal(fill, half)
        if count > middle:
            behind = _behind(w, at, middle * size)
            high = _load_first(w, half, count - middle, width, behind, min(align, size), fill)
        return shuffle_text(w, low, high, half, range(lanes))
    if _is_whole(count, type):
        first = VecType(count, type.dtype)
        value = w.assign(f"load {type_text(first)}, ptr {at}, align {align}")
        order = [min(j, count) for j in range(lanes)]
        return shuffle_text(w, value, literal(fill, first), first, order)
    return _masked(w, type, at, align, mask_literal(count, lanes), literal(fill, type))


def _is_whole(count: int, part: VecType) -> bool:
    """Whether so many lanes of a vector are read or written without a mask: all of it, a half or a
    quarter. What is half a vector lies in one line more often than a vector does."""
    return count == part.lanes or (part.dtype.itemsize * count in (16, 32) and count > 1)


def _mask_part(w: Writer, mask: Value, picks: Sequence[int]) -> str:
    """Some lanes of a mask; those beyond the last one are false.

    Where masks are no registers of their own, LLVM 22 makes lanes of a vector of them, of which the
    sign counts. If it sees only then that all are false, as it does behind a conjunction that
    several parts share, it takes `1` in each for that, and then for true: so each part has its own.
    """
    op = mask.op
    if not w.has_masks and isinstance(op, t.Map) and op.fn.name in ("and", "or"):
        parts = [_mask_part(w, x, picks) for x in op.args]
        return w.assign(f"{op.fn.name} <{len(picks)} x i1> {parts[0]}, {parts[1]}")
    return shuffle_text(w, w.name(mask), "zeroinitializer", mask.type, picks)


def _memory_suffix(type: Type) -> str:
    return suffix(type).replace("i1", "i8") if t.element(type) is bool_ else suffix(type)


def _store(w: Writer, op: t.Store) -> None:
    if op in w.addresses.followers:
        return
    if is_streamed(op):
        _stream(w, op)
        return
    type = op.value.type
    dtype = t.element(type)
    at = address(w, op, dtype.itemsize)
    value = _to_memory(w, w.name(op.value), type)
    align = op.align or dtype.itemsize
    text = memory_text(type)
    if not op.mask and isinstance(type, VecType) and 8 * align < w.machine.vector_bits:
        _store_in_order(w, type, value, at, align)
    elif not op.mask:
        w.put(f"store {text} {value}, ptr {at}, align {align}")
    elif known_lanes(op.mask[0]) is not None and isinstance(type, VecType):
        _store_first(w, op, type, value, at)
    else:
        assert isinstance(type, VecType)
        _store_some(w, _in_memory(type), value, at, align, op.mask[0])


def _store_in_order(w: Writer, type: VecType, value: str, at: str, align: int) -> None:
    """Stores vectors of the machine from the first one on. Those that LLVM cuts itself it stores in
    an order of its own; where they do not begin at lines, each line is then written in two parts
    that do not follow each other: rows of 50257 take 1.25 times as long."""
    memory = _in_memory(type)
    size = memory.dtype.itemsize
    width = max(1, w.machine.vector_bits // (8 * size))
    if type.lanes <= width or type.lanes % width:
        w.put(f"store {memory_text(type)} {value}, ptr {at}, align {align}")
        return
    for k in range(0, type.lanes, width):
        text = f"{type_text(VecType(width, memory.dtype))} {piece(w, value, memory, k, width)}"
        w.put(f"store {text}, ptr {_behind(w, at, k * size)}, align {align}")


def _store_some(
    w: Writer, type: VecType, value: str, at: str, align: int, mask: Value
) -> None:
    """Stores some lanes: where there is no instruction for it, of one vector of the machine after
    the other."""
    size, width = type.dtype.itemsize, w.machine.vector_bits // (8 * type.dtype.itemsize)
    masks = w.mask_parts.get((mask, width))
    if w.machine.takes_masks(type.dtype.bits) or masks is None:
        _masked_store(w, type, value, at, align, w.name(mask))
        return
    for k, part in enumerate(masks):
        lanes = piece(w, value, type, k * width, width)
        to = _behind(w, at, k * width * size)
        _masked_store(w, VecType(width, type.dtype), lanes, to, min(align, width * size), part)


def _masked_store(w: Writer, type: VecType, value: str, at: str, align: int, mask: str) -> None:
    """Stores some lanes of a vector as it lies in memory."""
    if not w.machine.takes_masks(type.dtype.bits):
        some_lanes.store(w, type, value, at, align, mask)
        return
    text, name = f"{type_text(type)} {value}", suffix(type)
    mask = f"<{type.lanes} x i1> {mask}"
    w.put(f"call void @llvm.masked.store.{name}.p0({text}, ptr align {align} {at}, {mask})")
    if type.dtype.itemsize < 8 and w.has_masks:
        # Of a narrowed vector of which one known lane is stored, LLVM 22 stores the wide lane,
        # over its neighbours. It narrows apart what has another use, which costs nothing.
        w.declare("llvm.fake.use", "declare void @llvm.fake.use(...)")
        w.put(f"call void (...) @llvm.fake.use({text})")


def _store_first(w: Writer, op: t.Store, type: VecType, value: str, at: str) -> None:
    """Stores so many lanes as are known."""
    known = known_lanes(op.mask[0])
    assert known is not None
    memory = _in_memory(type)
    size, k = memory.dtype.itemsize, 0
    width = min(type.lanes, max(1, w.machine.vector_bits // (8 * size)))
    while k < known:
        # Vectors of the machine, as many as are a power of two.
        count = known - k
        if count >= width:
            count = width << ((count // width).bit_length() - 1)
        elif not w.has_masks:
            # A mask costs more than some stores of what is left, cut into powers of two.
            count = 1 << (count.bit_length() - 1)
        is_whole = not w.has_masks or count >= width
        is_whole = is_whole or _is_whole(count, VecType(width, memory.dtype))
        part = VecType(count if is_whole else min(width, type.lanes - k), memory.dtype)
        if part.lanes > 1:
            text, lanes = type_text(part), piece(w, value, memory, k, part.lanes)
        else:
            # A vector of one lane ends a pass of LLVM 22's over vectors, and the process.
            lanes = w.value(f"extractelement {type_text(memory)} {value}, i64 {k}")
            text = element_text(part.dtype)
        to, align = _behind(w, at, k * size), size if k else op.align or size
        if is_whole:
            w.put(f"store {text} {lanes}, ptr {to}, align {align}")
        else:
            _masked_store(w, part, lanes, to, align, mask_literal(count, part.lanes))
        k += count


def _stream(w: Writer, op: t.Store) -> None:
    """Writes past the caches if the address is aligned, and in a piece that goes there: the same in
    nearly all turns of a loop, so that the branch costs nothing. Those that follow go with it."""
    stores: list[tuple[str, str]] = []
    for one in (op, *w.addresses.streams.get(op, ())):
        at = address(w, one, t.element(one.value.type).itemsize)
        value = _to_memory(w, w.name(one.value), one.value.type)
        stores.append((f"{memory_text(one.value.type)} {value}", at))
    n, whole = w.next_label(), stream_unit(op.value.type)
    align = op.align or t.element(op.value.type).itemsize
    word = w.assign(f"ptrtoint ptr {stores[0][1]} to i64")
    rest = w.assign(f"and i64 {word}, {(whole - 1) | (op.streaming - 1) * PIECE}")
    aligned = w.assign(f"icmp eq i64 {rest}, 0")
    w.put(f"br i1 {aligned}, label %stream{n}, label %plain{n}")
    w.start(f"stream{n}")
    w.declare("nontemporal", "!0 = !{i32 1}")
    for value, at in stores:
        w.put(f"store {value}, ptr {at}, align {whole}, !nontemporal !0")
    w.streams = True
    w.put(f"br label %stored{n}")
    w.start(f"plain{n}")
    for value, at in stores:
        w.put(f"store {value}, ptr {at}, align {align}")
    w.put(f"br label %stored{n}")
    w.start(f"stored{n}")


def _pointers(w: Writer, ptr: Value, offsets: Value, dtype: DType) -> tuple[str, str]:
    lanes = t.lanes(offsets.type)
    element = f"i{8 * dtype.itemsize}"
    name = w.assign(f"getelementptr {element}, ptr {w.name(ptr)}, {w.typed(offsets)}")
    return name, f"<{lanes} x ptr>"


def _gather(w: Writer, op: t.Gather) -> None:
    type = op.result.type
    lanes = t.lanes(type)
    pointers, pointer_type = _pointers(w, op.ptr, op.offsets, op.dtype)
    mask, other = _ALL, "poison"
    is_native = w.machine.gathers(op.dtype.bits)
    if op.mask and is_native:
        mask, other = w.name(op.mask[0]), _to_memory(w, w.name(op.mask[1]), type)
    elif op.mask:
        pointers = some_lanes.safe_pointers(w, pointers, w.name(op.mask[0]), lanes)
    text, name = memory_text(type), _memory_suffix(type)
    value = w.assign(
        f"call {text} @llvm.masked.gather.{name}.v{lanes}p0({pointer_type} align "
        f"{op.dtype.itemsize} {pointers}, <{lanes} x i1> {mask}, {text} {other})"
    )
    value = _from_memory(w, value, type)
    if op.mask and not is_native:
        chosen = f"{type_text(type)} {value}, {w.typed(op.mask[1])}"
        value = w.assign(f"select {w.typed(op.mask[0])}, {chosen}")
    w.names[op.result] = value


def _scatter(w: Writer, op: t.Scatter) -> None:
    type = op.value.type
    dtype, lanes = t.element(type), t.lanes(type)
    value = _to_memory(w, w.name(op.value), type)
    if op.mask and not w.machine.gathers(dtype.bits):
        assert isinstance(type, VecType)
        lane, mask = element_text(t.element(op.offsets.type)), w.name(op.mask[0])
        base, offsets = w.name(op.ptr), w.name(op.offsets)
        some_lanes.scatter(w, _in_memory(type), value, base, offsets, lane, mask)
        return
    pointers, pointer_type = _pointers(w, op.ptr, op.offsets, dtype)
    mask = w.typed(op.mask[0]) if op.mask else f"<{lanes} x i1> {_ALL}"
    w.put(
        f"call void @llvm.masked.scatter.{_memory_suffix(type)}.v{lanes}p0({memory_text(type)} "
        f"{value}, "
        f"{pointer_type} align {dtype.itemsize} {pointers}, {mask})"
    )


RULES: Mapping[type[Op], Rule] = {
    t.PtrAdd: _ptr_add,
    t.Load: _load,
    t.Store: _store,
    t.Gather: _gather,
    t.Scatter: _scatter,
}
