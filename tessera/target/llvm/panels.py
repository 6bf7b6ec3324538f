"""LLVM text of products of packed panels: AMX's eight registers, by number.

Registers 0 to 3 hold sums, 4 and 5 rows of the first operand, 6 and 7 columns of the second one.
LLVM could choose them as it chooses others; it was not asked to, as there is nothing to choose.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping

from tessera.dtypes import DType, bfloat16, int8, uint8
from tessera.ir.core import Op
from tessera.target.llvm.text import Rule, Writer
from tessera.target.panel_ops import BeginPanels, DotPanels, EndPanels
from tessera.tile.panel_ops import GROUP_BYTES, ROW_BYTES, registers

_PRODUCTS: Mapping[tuple[DType, DType], str] = {
    (bfloat16, bfloat16): "tdpbf16ps",
    (int8, int8): "tdpbssd",
    (int8, uint8): "tdpbsud",
    (uint8, int8): "tdpbusd",
    (uint8, uint8): "tdpbuud",
}
"""Instructions that multiply registers, by their elements."""

_LEFT, _RIGHT = 4, 6


def _begin(w: Writer, op: BeginPanels) -> None:
    """The palette, and of each register the bytes of a row and the rows."""
    lengths, rows = [ROW_BYTES] * 8, [op.rows] * 8
    lengths[_LEFT : _LEFT + 2] = [op.bytes] * 2
    rows[_RIGHT : _RIGHT + 2] = [op.bytes // GROUP_BYTES] * 2
    data = struct.pack("<B15x8H16x8B8x", 1, *lengths, *rows)
    name = f"panels_{op.rows}_{op.bytes}"
    text = data.hex("\\")
    w.declare(
        name, f'@{name} = internal unnamed_addr constant [{len(data)} x i8] c"\\{text}", align 64'
    )
    _call(w, "ldtilecfg", f"ptr @{name}")


def _end(w: Writer, op: EndPanels) -> None:
    _call(w, "tilerelease")


def _dot(w: Writer, op: DotPanels) -> None:
    found = registers(op.rows, op.columns)
    assert found is not None
    down, across = found
    rows, size = op.set_up
    width = op.columns * GROUP_BYTES
    left, right, out = [w.name(v) for v in (op.left, op.right, op.out)]
    for k in range(down * across):
        _call(w, "tilezero", f"i8 {k}")
    n, before = w.next_label(), w.label
    w.put(f"br label %head{n}")
    w.start(f"head{n}")
    step, following = w.fresh(), w.fresh()
    w.put(f"{step} = phi i64 [ 0, %{before} ], [ {following}, %body{n} ]")
    going = w.assign(f"icmp slt i64 {step}, {w.name(op.steps)}")
    w.put(f"br i1 {going}, label %body{n}, label %done{n}")
    w.start(f"body{n}")
    item = op.a.itemsize
    a = _at(w, left, w.assign(f"mul nsw i64 {step}, {op.step * item}"))
    b = _at(w, right, w.assign(f"mul nsw i64 {step}, {size // GROUP_BYTES * width}"))
    product = _PRODUCTS[op.a, op.b]
    for i in range(down):
        at = _at(w, a, i * rows * op.row * item)
        _call(w, "tileloadd64", f"i8 {_LEFT + i % 2}", f"ptr {at}", f"i64 {op.row * item}")
        for j in range(across):
            if i == 0 or across > 2:
                at = _at(w, b, j * ROW_BYTES)
                _call(w, "tileloadd64", f"i8 {_RIGHT + j % 2}", f"ptr {at}", f"i64 {width}")
            picks = i * across + j, _LEFT + i % 2, _RIGHT + j % 2
            _call(w, product, *[f"i8 {k}" for k in picks])
    w.put(f"{following} = add nsw i64 {step}, 1")
    w.put(f"br label %head{n}")
    w.start(f"done{n}")
    for k in range(down * across):
        at = _at(w, out, k // across * rows * width + k % across * ROW_BYTES)
        _call(w, "tilestored64", f"i8 {k}", f"ptr {at}", f"i64 {width}")


def _at(w: Writer, pointer: str, bytes: int | str) -> str:
    """A pointer so many bytes further on."""
    return w.assign(f"getelementptr i8, ptr {pointer}, i64 {bytes}") if bytes else pointer


def _call(w: Writer, name: str, *args: str) -> None:
    """Calls an intrinsic function, whose arguments are given with their types."""
    types = ", ".join([arg.split()[0] for arg in args])
    w.declare(f"llvm.x86.{name}", f"declare void @llvm.x86.{name}({types})")
    w.put(f"call void @llvm.x86.{name}({', '.join(args)})")


RULES: Mapping[type[Op], Rule] = {BeginPanels: _begin, EndPanels: _end, DotPanels: _dot}
