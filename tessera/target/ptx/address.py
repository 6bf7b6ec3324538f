"""Addresses: what an access adds to a base that other accesses share.

The offset of an access is taken apart into terms `x * scale` and a constant. The base plus the
terms is one register for all accesses of a block that have these; the constant stands in the
access. Sums of offsets are taken not to overflow, as nothing could be at such an address.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tessera.dtypes import bfloat16, float16, float32, int32, int64
from tessera.ir.core import Block, Op, Value
from tessera.ir.walk import uses
from tessera.target import gpu_ops as g
from tessera.target import ops as t
from tessera.target.ptx.text import Writer, is_packed
from tessera.target.types import AddressSpace, PtrType, VecType

SHARED = "smem"
"""The name of the array that all shared memory of a kernel is."""

ACCESSES: Mapping[type[Op], tuple[tuple[str, str], ...]] = {
    t.PtrAdd: (("ptr", "bytes"),),
    t.Load: (("ptr", "offset"),),
    t.Store: (("ptr", "offset"),),
    g.LoadCached: (("ptr", "offset"),),
    g.StoreCached: (("ptr", "offset"),),
    g.Atomic: (("ptr", "offset"),),
    g.AtomicReduce: (("ptr", "offset"),),
    g.CompareExchange: (("ptr", "offset"),),
    g.AsyncCopy: (("dst", "dst_offset"), ("src", "src_offset")),
    g.MbarrierInit: (("ptr", "offset"),),
    g.MbarrierArrive: (("ptr", "offset"),),
    g.MbarrierWait: (("ptr", "offset"),),
    g.BulkLoad: (("dst", "dst_offset"), ("src", "src_offset"), ("barrier", "barrier_offset")),
    g.BulkStore: (("dst", "dst_offset"), ("src", "src_offset")),
    g.TensorLoad: (("dst", "dst_offset"), ("barrier", "barrier_offset")),
    g.TensorStore: (("src", "src_offset"),),
    g.LoadMatrix: (("ptr", "offset"),),
    g.StoreMatrix: (("ptr", "offset"),),
}
"""The pairs of pointer and offset of ops that access memory, or move a pointer."""


@dataclass(frozen=True, slots=True)
class Offset:
    """A sum of `x * scale` for each term, and a constant."""

    terms: tuple[tuple[Value, int], ...]
    constant: int


def constant(value: Value) -> int | None:
    """The value of an integer constant."""
    op = value.op
    return int(op.value) if isinstance(op, t.Const) else None


def _step(value: Value) -> tuple[Value, int, int] | None:
    """What an offset is a multiple of, plus a constant: x, factor, constant."""
    op = value.op
    if isinstance(op, t.Cast):
        widens = t.element(op.x.type) is int32 and op.dtype is int64
        return (op.x, 1, 0) if widens else None
    if not isinstance(op, t.Map) or len(op.args) != 2:
        return None
    c = constant(op.args[1])
    if c is None:
        return None
    match op.fn.name:
        case "add":
            return op.args[0], 1, c
        case "mul":
            return op.args[0], c, 0
        case "shl" if 0 <= c < 32:
            return op.args[0], 1 << c, 0
        case _:
            return None


def _sum(value: Value) -> tuple[Value, Value] | None:
    """The terms of a sum of 64 bits, whose parts may have 32."""
    op = value.op
    is_sum = isinstance(op, t.Map) and op.fn.name == "add" and t.element(value.type) is int64
    return (op.args[0], op.args[1]) if isinstance(op, t.Map) and is_sum else None


def take_apart(value: Value, size: int) -> Offset:
    """An offset that counts units of `size` bytes, in bytes."""
    terms: dict[Value, int] = {}
    total = 0
    pending = [(value, size)]
    while pending:
        value, scale = pending.pop()
        c, step, parts = constant(value), _step(value), _sum(value)
        if c is not None:
            total += c * scale
        elif step is not None:
            x, factor, more = step
            total += more * scale
            pending.append((x, scale * factor))
        elif parts is not None:
            pending += [(parts[1], scale), (parts[0], scale)]
        else:
            terms[value] = terms.get(value, 0) + scale
    return Offset(tuple(terms.items()), total)


def space_of(w: Writer, ptr: Value) -> AddressSpace:
    """The space of a pointer; scratch memory is local, whatever its type says."""
    found = w.spaces.get(ptr)
    if found is not None:
        return found
    assert isinstance(ptr.type, PtrType)
    if isinstance(ptr.op, t.PtrAdd):
        return space_of(w, ptr.op.ptr)
    return ptr.type.space


def address(w: Writer, ptr: Value, offset: Value | None, size: int, more: int = 0) -> str:
    """The text of an address: `[%rd4+16]`.

    Args:
        w: the writer.
        ptr: a pointer.
        offset: counted in units of `size` bytes; None is 0.
        size: bytes.
        more: bytes that are added.
    """
    base, total = address_parts(w, ptr, offset, size)
    total += more
    return f"[{base}+{total}]" if total else f"[{base}]"


def address_parts(w: Writer, ptr: Value, offset: Value | None, size: int) -> tuple[str, int]:
    """The register (or symbol) and the constant of an address."""
    parts = Offset((), 0) if offset is None else take_apart(offset, size)
    total = parts.constant
    while isinstance(ptr.op, t.PtrAdd):
        c = constant(ptr.op.bytes)
        if c is None or ptr in w.names:
            break
        ptr, total = ptr.op.ptr, total + c
    is_shared = space_of(w, ptr) is AddressSpace.SHARED
    if isinstance(ptr.op, g.Shared):
        w.uses_shared = True
        base, about, total = SHARED, None, total + ptr.op.offset
    else:
        base, about = w.use(ptr), ptr
    key: tuple[object, ...] = ("address", about)
    # What is known outside of a loop comes first, so that it can be moved out.
    for x, scale in sorted(parts.terms, key=lambda term: w.depth.get(term[0], 0)):
        key = (*key, w.narrow.get(x, x), scale)
        base = _moved(w, key, base, is_shared, x, scale)
    if not -(1 << 31) <= total < 1 << 31:
        register = base_register(w, base, is_shared)
        moved = w.register("b64")
        w.always(f"add.s64 {moved}, {register}, {total}")
        return moved, 0
    return base, total


def base_register(w: Writer, base: str, is_shared: bool) -> str:
    """A base that may be a symbol, in a register."""
    if base.startswith("%"):
        return base
    file = "b32" if is_shared else "b64"
    return w.once(("symbol", base), file, f"mov.u{file[1:]} {{}}, {base}")


def _moved(
    w: Writer, key: tuple[object, ...], base: str, is_shared: bool, x: Value, scale: int
) -> str:
    """base + x * scale. The key says it in values, as registers may be written again."""
    for scope in reversed(w.known):
        if key in scope:
            return scope[key]
    register = base_register(w, base, is_shared)
    shift = scale.bit_length() - 1 if scale > 0 and not scale & (scale - 1) else -1
    counter = w.narrow.get(x)
    narrow = t.element(x.type) is int32 or counter is not None
    operand = counter or w.use(x)
    if is_shared:
        low = operand
        if not narrow:
            low = w.once(("low", x), "b32", f"cvt.u32.u64 {{}}, {operand}")
        if shift == 0:
            return w.once(key, "b32", f"add.s32 {{}}, {register}, {low}")
        if shift < 0:
            return w.once(key, "b32", f"mad.lo.s32 {{}}, {low}, {scale}, {register}")
        moved = w.once(("shl.b32", x, shift), "b32", f"shl.b32 {{}}, {low}, {shift}")
        return w.once(key, "b32", f"add.s32 {{}}, {register}, {moved}")
    if narrow and -(1 << 31) <= scale < 1 << 31:
        return w.once(key, "b64", f"mad.wide.s32 {{}}, {operand}, {scale}, {register}")
    wide = operand
    if narrow:
        wide = w.once(("wide", x), "b64", f"cvt.s64.s32 {{}}, {operand}")
    if shift == 0:
        return w.once(key, "b64", f"add.s64 {{}}, {register}, {wide}")
    if shift < 0:
        return w.once(key, "b64", f"mad.lo.s64 {{}}, {wide}, {scale}, {register}")
    moved = w.once(("shl.b64", x, shift), "b64", f"shl.b64 {{}}, {wide}, {shift}")
    return w.once(key, "b64", f"add.s64 {{}}, {register}, {moved}")


# --- what is written only as a part of something else ---------------------------------------------


def fused_values(block: Block) -> frozenset[Value]:
    """Results that all their uses take apart: sums in offsets, conversions in packed vectors."""
    soft: Counter[Value] = Counter()
    found: set[Value] = set()
    _find_fused(block, uses(block), soft, found)
    return frozenset(found)


def _find_fused(
    block: Block, total: Counter[Value], soft: Counter[Value], found: set[Value]
) -> None:
    for op in reversed(block.ops):
        for region in reversed(op.regions):
            _find_fused(region, total, soft, found)
        if len(op.results) == 1 and 0 < total[op.result] == soft[op.result] and _is_soft(op):
            found.add(op.result)
            if _sum(op.result) is not None and _step(op.result) is None:
                soft.update(op.operands)
            elif not is_packing(op):
                soft[op.operands[0]] += 1
            continue
        for ptr, offset in ACCESSES.get(type(op), ()):
            soft[getattr(op, offset)] += 1
            soft[getattr(op, ptr)] += 1
        if isinstance(op, g.Pack):
            soft.update([a for a in op.args if a.op is not None and is_packing(a.op)])
            for part in words(op.args):
                if whole_word(part) is not None:
                    soft.update(part)
        if is_widening(op) or is_rounding(op):
            soft[op.operands[0]] += 1


def addressed_values(block: Block) -> frozenset[Value]:
    """Values that addresses are made of, which are read where the access is."""
    found: set[Value] = set()
    _find_addressed(block, found)
    return frozenset(found)


def _find_addressed(block: Block, found: set[Value]) -> None:
    for op in reversed(block.ops):
        for region in reversed(op.regions):
            _find_addressed(region, found)
        for ptr, offset in ACCESSES.get(type(op), ()):
            found.add(getattr(op, ptr))
            found.add(getattr(op, offset))
        if len(op.results) == 1 and op.result in found and _is_term(op):
            found.update(op.operands)


def _is_term(op: Op) -> bool:
    """Whether an offset that this gives is taken apart."""
    is_sum = _step(op.result) is not None or _sum(op.result) is not None
    return isinstance(op, (t.Map, t.Cast)) and is_sum


def _is_soft(op: Op) -> bool:
    """Whether some use can take the op apart."""
    if isinstance(op, t.PtrAdd):
        return constant(op.bytes) is not None
    if isinstance(op, t.Extract):
        return is_packed(t.element(op.x.type))
    if is_packing(op):
        return True
    return _is_term(op)


def words(args: Sequence[Value]) -> list[Sequence[Value]]:
    """The elements of a vector by the register that they are packed in."""
    size = t.element(args[0].type).itemsize
    if size >= 4:
        return []
    per = 4 // size
    return [args[k : k + per] for k in range(0, len(args), per)]


def whole_word(part: Sequence[Value]) -> tuple[Value, int] | None:
    """The vector and the number of the register in it, if elements are just those of one."""
    first = part[0].op
    if not isinstance(first, t.Extract):
        return None
    per = 4 // t.element(part[0].type).itemsize
    if len(part) != per or first.lane % per:
        return None
    for k, value in enumerate(part):
        op = value.op
        if not isinstance(op, t.Extract) or op.x is not first.x or op.lane != first.lane + k:
            return None
    return first.x, first.lane // per


def is_packing(op: Op) -> bool:
    """A conversion that has an instruction for two elements."""
    return (
        isinstance(op, t.Cast)
        and not isinstance(op.x.type, VecType)
        and op.dtype in (float16, bfloat16)
        and t.element(op.x.type) is float32
    )


def is_widening(op: Op) -> bool:
    """A conversion that reads the word of a packed vector."""
    return (
        isinstance(op, t.Cast)
        and op.dtype is float32
        and isinstance(op.x.op, t.Extract)
        and t.element(op.x.type) is bfloat16
    )


def is_rounding(op: Op) -> bool:
    """A conversion of float32 to bfloat16 and back, which is one instruction."""
    return (
        isinstance(op, t.Cast)
        and op.dtype is float32
        and t.element(op.x.type) is bfloat16
        and op.x.op is not None
        and is_packing(op.x.op)
    )
