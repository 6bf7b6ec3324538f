"""LLVM text of ops that move lanes as values say."""

from __future__ import annotations

from collections.abc import Mapping

from tessera.ir.core import Op
from tessera.target import ops as t
from tessera.target.compress_ops import Compress, CountTrue, Permute
from tessera.target.llvm.text import Rule, Writer, suffix, type_text


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
