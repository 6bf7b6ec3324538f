"""Logic and bits."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tests.ptx.decode import Decode, Decoder
from tests.ptx.machine import Run
from tests.ptx.memory import Array
from tests.ptx.parser import Instruction


def _logic(function: np.ufunc) -> Decode:
    def decode(d: Decoder, ins: Instruction) -> Run:
        type_ = ins.parts[-1]
        if type_ == "pred":
            makers = [d.predicate(x) for x in ins.operands[1:]]
            return d.pure(ins.operands[0], type_, lambda: function(*(make() for make in makers)))
        return d.pure(
            ins.operands[0], type_, function, *(d.src(x, type_) for x in ins.operands[1:])
        )

    return decode


def _shift(d: Decoder, ins: Instruction) -> Run:
    type_, left = ins.parts[-1], ins.parts[0] == "shl"
    a, by = d.src(ins.operands[1], type_), d.src(ins.operands[2], "u32")
    bits = 8 * a.dtype.itemsize
    last = np.uint32(bits - 1)

    def run(x: Array, n: Array) -> Array:
        amount = np.minimum(n, last).astype(x.dtype)
        y = x << amount if left else x >> amount
        if x.dtype.kind == "i" and not left:
            return y
        return np.where(n > last, np.zeros((), x.dtype), y)

    return d.pure(ins.operands[0], type_, run, a, by)


def _funnel(d: Decoder, ins: Instruction) -> Run:
    low, high, by = (d.src(x, "u32") for x in ins.operands[1:4])
    left, clamp = ins.parts[1] == "l", "clamp" in ins.parts

    def run(a: Array, b: Array, n: Array) -> Array:
        amount = np.minimum(n, np.uint32(32)) if clamp else n & np.uint32(31)
        value = (b.astype("u8") << np.uint64(32)) | a
        if left:
            return (value << amount.astype("u8") >> np.uint64(32)).astype("u4")
        return (value >> amount.astype("u8")).astype("u4")

    return d.pure(ins.operands[0], "b32", run, low, high, by)


def _bfe(d: Decoder, ins: Instruction) -> Run:
    type_ = ins.parts[-1]
    a, at, size = d.src(ins.operands[1], type_), *(d.src(x, "u32") for x in ins.operands[2:4])
    bits = 8 * a.dtype.itemsize

    def run(x: Array, start: Array, length: Array) -> Array:
        start, length = start & np.uint32(255), length & np.uint32(255)
        words = x.view(f"u{x.dtype.itemsize}").astype("u8")
        inside = np.minimum(length, bits).astype("u8")
        field = np.where(
            start < bits, words >> np.minimum(start, bits - 1).astype("u8"), np.uint64(0)
        )
        whole = inside >= 64
        keep = np.where(
            whole,
            ~np.uint64(0),
            (np.uint64(1) << np.where(whole, np.uint64(0), inside)) - np.uint64(1),
        )
        value = field & keep
        if x.dtype.kind == "i":
            top = np.minimum(start.astype("i8") + length.astype("i8") - 1, bits - 1)
            sign = (words >> np.maximum(top, 0).astype("u8")) & np.uint64(1)
            value = np.where((sign == 1) & (length > 0), _fill(value, start, length, bits), value)
        return (
            np.where(length == 0, np.uint64(0), value).astype(f"u{x.dtype.itemsize}").view(x.dtype)
        )

    return d.pure(ins.operands[0], type_, run, a, at, size)


def _fill(value: Array, start: Array, length: Array, bits: int) -> Array:
    """Sign bits above a field, and where the field reaches beyond the number."""
    known = np.clip(bits - start.astype("i8"), 0, length.astype("i8"))
    short = known < 64
    above = np.where(short, ~np.uint64(0) << np.where(short, known, 0).astype("u8"), np.uint64(0))
    return value | above


def _bfi(d: Decoder, ins: Instruction) -> Run:
    type_ = ins.parts[-1]
    a, b = (d.src(x, type_) for x in ins.operands[1:3])
    at, size = (d.src(x, "u32") for x in ins.operands[3:5])
    bits = 8 * a.dtype.itemsize

    def run(x: Array, y: Array, start: Array, length: Array) -> Array:
        start, length = start & np.uint32(255), np.minimum(length & np.uint32(255), bits)
        full = length >= 64
        ones = np.where(
            full,
            ~np.uint64(0),
            (np.uint64(1) << np.where(full, 0, length).astype("u8")) - np.uint64(1),
        )
        shift = np.minimum(start, bits - 1).astype("u8")
        field = np.where(start < bits, ones << shift, np.uint64(0))
        moved = np.where(start < bits, x.astype("u8") << shift, np.uint64(0))
        return ((y.astype("u8") & ~field) | (moved & field)).astype(x.dtype)

    return d.pure(ins.operands[0], type_, run, a, b, at, size)


def _lop3(d: Decoder, ins: Instruction) -> Run:
    a, b, c = (d.src(x, "b32") for x in ins.operands[1:4])
    table = int(d.src(ins.operands[4], "u32")[0])

    def run(x: Array, y: Array, z: Array) -> Array:
        out = np.zeros_like(x)
        for i in range(8):
            if table >> i & 1:
                out |= (x if i & 4 else ~x) & (y if i & 2 else ~y) & (z if i & 1 else ~z)
        return out

    return d.pure(ins.operands[0], "b32", run, a, b, c)


def _prmt(d: Decoder, ins: Instruction) -> Run:
    if len(ins.parts) > 2:
        raise d.fail("modes of prmt are not supported")
    a, b, select = (d.src(x, "b32") for x in ins.operands[1:4])

    def run(x: Array, y: Array, s: Array) -> Array:
        source = np.stack([x, y], axis=1).view("u1")
        shifts = np.arange(0, 16, 4, dtype="u4")
        nibbles = (s[:, None] >> shifts) & np.uint32(15)
        picked = np.take_along_axis(source, (nibbles & np.uint32(7)).astype("i8"), axis=1)
        signs = np.where(picked & 128, np.uint8(255), np.uint8(0))
        picked = np.where(nibbles & np.uint32(8), signs, picked)
        return np.ascontiguousarray(picked).view("u4")[:, 0]

    return d.pure(ins.operands[0], "b32", run, a, b, select)


def _count(function: Callable[[Array, int], Array]) -> Decode:
    def decode(d: Decoder, ins: Instruction) -> Run:
        x = d.src(ins.operands[1], "b" + ins.parts[-1][1:])
        bits = 8 * x.dtype.itemsize
        return d.pure(ins.operands[0], "u32", lambda a: function(a, bits).astype("u4"), x)

    return decode


def leading_zeros(x: Array, bits: int) -> Array:
    """How many of the upper bits are zero."""
    high = np.frexp((x >> np.array(bits // 2, x.dtype)).astype("f8"))[1]
    low = np.frexp((x & np.array((1 << bits // 2) - 1, x.dtype)).astype("f8"))[1]
    return bits - np.where(high > 0, high + bits // 2, low)


def _brev(d: Decoder, ins: Instruction) -> Run:
    type_ = ins.parts[-1]
    x = d.src(ins.operands[1], type_)

    def run(a: Array) -> Array:
        raw = np.unpackbits(a.view("u1").reshape(-1, a.dtype.itemsize), axis=1, bitorder="little")
        return np.packbits(raw[:, ::-1], axis=1, bitorder="little").view(a.dtype)[:, 0]

    return d.pure(ins.operands[0], type_, run, x)


def _bfind(d: Decoder, ins: Instruction) -> Run:
    x = d.src(ins.operands[1], ins.parts[-1])
    bits = 8 * x.dtype.itemsize

    def run(a: Array) -> Array:
        words = np.where(a < 0, ~a, a).view(f"u{a.dtype.itemsize}")
        zeros = leading_zeros(words, bits)
        place = zeros if "shiftamt" in ins.parts else bits - 1 - zeros
        return np.where(words == 0, 0xFFFFFFFF, place).astype("u4")

    return d.pure(ins.operands[0], "u32", run, x)


def _dp4a(d: Decoder, ins: Instruction) -> Run:
    a_type, b_type = ins.parts[1:3]
    a, b = d.src(ins.operands[1], "b32"), d.src(ins.operands[2], "b32")
    c = d.src(ins.operands[3], "s32")

    def run(x: Array, y: Array, z: Array) -> Array:
        x8 = x.view("i1" if a_type == "s32" else "u1").reshape(-1, 4).astype("i4")
        y8 = y.view("i1" if b_type == "s32" else "u1").reshape(-1, 4).astype("i4")
        return z + (x8 * y8).sum(axis=1, dtype="i4")

    return d.pure(ins.operands[0], "s32", run, a, b, c)


BITS: dict[str, Decode] = {
    "and": _logic(np.bitwise_and), "or": _logic(np.bitwise_or), "xor": _logic(np.bitwise_xor),
    "not": _logic(np.invert), "shl": _shift, "shr": _shift, "shf": _funnel, "bfe": _bfe,
    "bfi": _bfi, "lop3": _lop3, "prmt": _prmt, "brev": _brev, "bfind": _bfind, "dp4a": _dp4a,
    "popc": _count(lambda x, _: np.bitwise_count(x)), "clz": _count(leading_zeros),
}  # fmt: skip
"""How each of them is decoded."""
