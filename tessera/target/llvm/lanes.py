"""LLVM text of vectors made of lanes of others, and of ops that move lanes as values say."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from tessera.ir.core import Op
from tessera.ir.types import Type
from tessera.target import ops as t
from tessera.target.compress_ops import Compress, CountTrue, Permute
from tessera.target.llvm.text import Rule, Writer, suffix, type_text
from tessera.target.types import VecType


def shuffle_text(w: Writer, a: str, b: str, type: Type, picks: Sequence[int]) -> str:
    """Lanes of two vectors."""
    text = type_text(type)
    items = ", ".join(f"i32 {p}" for p in picks)
    return w.value(f"shufflevector {text} {a}, {text} {b}, <{len(picks)} x i32> <{items}>")


def joined(w: Writer, pieces: list[str], type: VecType) -> str:
    """Vectors of one type, as many as are a power of two, one after the other."""
    count = type.lanes
    while len(pieces) > 1:
        vector = VecType(count, type.dtype)
        count *= 2
        pairs = zip(pieces[::2], pieces[1::2], strict=True)
        pieces = [shuffle_text(w, a, b, vector, range(count)) for a, b in pairs]
    return pieces[0]


def piece(w: Writer, value: str, type: Type, at: int, count: int) -> str:
    """Some neighbouring lanes of a vector."""
    if t.lanes(type) == count:
        return value
    return shuffle_text(w, value, "poison", type, range(at, at + count))


def mask_literal(count: int, lanes: int) -> str:
    """A mask that has the first lanes."""
    items = ["i1 true"] * count + ["i1 false"] * (lanes - count)
    return f"<{', '.join(items)}>"


def _compress(w: Writer, op: Compress) -> None:
    if w.machine.vector_bits == 256:
        _compress_by_table(w, op)
        return
    text, name = type_text(op.x.type), f"llvm.experimental.vector.compress.{suffix(op.x.type)}"
    given = f"{w.typed(op.x)}, {w.typed(op.mask)}, {text} zeroinitializer"
    w.names[op.result] = w.assign(f"call {text} @{name}({given})")


def _compress_by_table(w: Writer, op: Compress) -> None:
    """The table has a register of places for each mask, 32-bit ones, two for a lane of 64 bits."""
    count = t.lanes(op.mask.type)
    name, data = f"chosen_of_{count}", chosen_lanes(count).tobytes()
    text = data.hex("\\")
    w.declare(
        name, f'@{name} = internal unnamed_addr constant [{len(data)} x i8] c"\\{text}", align 64'
    )
    bits = w.assign(f"bitcast {w.typed(op.mask)} to i{count}")
    number = w.assign(f"zext i{count} {bits} to i64")
    at = w.assign(f"getelementptr {_PLACES}, ptr @{name}, i64 {number}")
    places = w.assign(f"load {_PLACES}, ptr {at}, align 32")
    _permute_by(w, op, places)


def chosen_lanes(count: int) -> np.ndarray:
    """For each mask of so many lanes of a register of 256 bits the places of what it chooses, in
    order, and then of all others, in 32 bits."""
    masks = np.arange(1 << count)[:, None] >> np.arange(count) & 1
    order = np.argsort(1 - masks, axis=1, kind="stable")
    size = 8 // count
    return (order[..., None] * size + np.arange(size)).astype(np.uint32)


_PLACES = "<8 x i32>"


def _permute_by(w: Writer, op: Compress | Permute, places: str) -> None:
    """Lanes of 32 bits of a register of 256."""
    name, text = "llvm.x86.avx2.permd", type_text(op.x.type)
    w.declare(name, f"declare {_PLACES} @{name}({_PLACES}, {_PLACES})")
    x = w.assign(f"bitcast {w.typed(op.x)} to {_PLACES}")
    found = w.assign(f"call {_PLACES} @{name}({_PLACES} {x}, {_PLACES} {places})")
    w.names[op.result] = w.assign(f"bitcast {_PLACES} {found} to {text}")


def _permute(w: Writer, op: Permute) -> None:
    text = type_text(op.x.type)
    if w.machine.vector_bits == 256:
        places = w.name(op.index)
        if t.element(op.x.type).bits == 64:
            # Both halves of lane k are lanes 2k and 2k + 1.
            low = w.assign(f"shl {text} {places}, splat (i64 1)")
            high = w.assign(f"shl {text} {places}, splat (i64 33)")
            both = w.assign(f"or {text} {low}, {high}")
            both = w.assign(f"or {text} {both}, splat (i64 4294967296)")
            places = w.assign(f"bitcast {text} {both} to {_PLACES}")
        _permute_by(w, op, places)
        return
    name = f"llvm.x86.avx512.permvar.{'si' if t.element(op.x.type).bits == 32 else 'di'}.512"
    w.declare(name, f"declare {text} @{name}({text}, {text})")
    w.names[op.result] = w.assign(f"call {text} @{name}({w.typed(op.x)}, {w.typed(op.index)})")


def _count_true(w: Writer, op: CountTrue) -> None:
    count = t.lanes(op.mask.type)
    bits = w.assign(f"bitcast {w.typed(op.mask)} to i{count}")
    wide = w.assign(f"zext i{count} {bits} to i64")
    w.names[op.result] = w.assign(f"call i64 @llvm.ctpop.i64(i64 {wide})")


RULES: Mapping[type[Op], Rule] = {
    Compress: _compress,
    Permute: _permute,
    CountTrue: _count_true,
}
