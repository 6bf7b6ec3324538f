"""LLVM text of vectors made of lanes of others, and of ops that move lanes as values say."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

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
    text, name = type_text(op.x.type), f"llvm.experimental.vector.compress.{suffix(op.x.type)}"
    given = f"{w.typed(op.x)}, {w.typed(op.mask)}, {text} zeroinitializer"
    w.names[op.result] = w.assign(f"call {text} @{name}({given})")


def _permute(w: Writer, op: Permute) -> None:
    text = type_text(op.x.type)
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
