"""LLVM text of products of packed panels: AMX's eight registers, by number.

Registers 0 to 3 hold sums, 4 and 5 rows of the first operand, 6 and 7 columns of the second one.
LLVM could choose them as it chooses others; it was not asked to, as there is nothing to choose.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping

from tessera.dtypes import DType, bfloat16, int8, uint8
from tessera.ir.core import Op
from tessera.target import ops as t
from tessera.target.llvm.control import as_it_is
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
    """The sums of a block, from zero on or from those that wait."""
    found = registers(op.rows, op.columns)
    assert found is not None
    left, right, start, out, first, end = [w.name(v) for v in op.operands]
    down, across, rows = found.down, found.across, found.rows
    size, width, item = op.set_up[1], op.columns * GROUP_BYTES, op.a.itemsize
    step_out = op.width * GROUP_BYTES

    def place_of(pointer: str, k: int, row: int) -> str:
        return _at(w, pointer, k // across * rows * row + k % across * ROW_BYTES)

    sums = range(down * across)
    n = w.next_label()
    goes_on = not (isinstance(op.first.op, t.Const) and op.first.op.value == 0)
    if goes_on:
        begins = w.assign(f"icmp eq i64 {first}, 0")
        w.put(f"br i1 {begins}, label %zero{n}, label %go{n}")
        w.start(f"go{n}")
        for k in sums:
            _call(w, "tileloadd64", f"i8 {k}", f"ptr {place_of(start, k, width)}", f"i64 {width}")
        w.put(f"br label %begin{n}")
        w.start(f"zero{n}")
    for k in sums:
        _call(w, "tilezero", f"i8 {k}")
    if goes_on:
        w.put(f"br label %begin{n}")
        w.start(f"begin{n}")

    def step(at: str) -> None:
        a = _at(w, left, w.assign(f"mul nsw i64 {at}, {op.step * item}"))
        b = _at(w, right, w.assign(f"mul nsw i64 {at}, {size // GROUP_BYTES * width}"))
        for i in range(down):
            place = _at(w, a, i * rows * op.row * item)
            _call(w, "tileloadd64", f"i8 {_LEFT + i % 2}", f"ptr {place}", f"i64 {op.row * item}")
            for j in range(across):
                if i == 0 or across > 2:
                    place = _at(w, b, j * ROW_BYTES)
                    _call(w, "tileloadd64", f"i8 {_RIGHT + j % 2}", f"ptr {place}", f"i64 {width}")
                picks = i * across + j, _LEFT + i % 2, _RIGHT + j % 2
                _call(w, _PRODUCTS[op.a, op.b], *[f"i8 {k}" for k in picks])

    _loop(w, (first, end), step)
    for k in sums:
        place = place_of(out, k, step_out)
        _call(w, "tilestored64", f"i8 {k}", f"ptr {place}", f"i64 {step_out}")


def _loop(w: Writer, bounds: tuple[str, str], body: Callable[[str], None]) -> None:
    """A loop over an i64, one by one."""
    n, before = w.next_label(), w.label
    w.put(f"br label %head{n}")
    w.start(f"head{n}")
    place, following = w.fresh(), w.fresh()
    w.put(f"{place} = phi i64 [ {bounds[0]}, %{before} ], [ {following}, %latch{n} ]")
    going = w.assign(f"icmp slt i64 {place}, {bounds[1]}")
    w.put(f"br i1 {going}, label %body{n}, label %done{n}")
    w.start(f"body{n}")
    body(place)
    w.put(f"br label %latch{n}")
    w.start(f"latch{n}")
    w.put(f"{following} = add nsw i64 {place}, 1")
    w.put(f"br label %head{n}{as_it_is(w)}")
    w.start(f"done{n}")


def _at(w: Writer, pointer: str, bytes: int | str) -> str:
    """A pointer so many bytes further on."""
    return w.assign(f"getelementptr i8, ptr {pointer}, i64 {bytes}") if bytes else pointer


def _call(w: Writer, name: str, *args: str) -> None:
    """Calls an intrinsic function, whose arguments are given with their types."""
    types = ", ".join([arg.split()[0] for arg in args])
    w.declare(f"llvm.x86.{name}", f"declare void @llvm.x86.{name}({types})")
    w.put(f"call void @llvm.x86.{name}({', '.join(args)})")


RULES: Mapping[type[Op], Rule] = {BeginPanels: _begin, EndPanels: _end, DotPanels: _dot}
