"""Arithmetic, logic, comparisons and moves."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tests.ptx.decode import PACKED, Decode, Decoder, items, pair
from tests.ptx.machine import Run, no_op
from tests.ptx.memory import GLOBAL, LOCAL, PARAM, SHARED, Array
from tests.ptx.parser import SIZES, Address, Group, Instruction, Operand, Reg, Symbol
from tests.ptx.rounding import (
    flush,
    fma64,
    fma_wide,
    maximum,
    maximum_nan,
    minimum,
    minimum_nan,
    narrow,
    saturate,
)

_MODES = ("rn", "rz", "rm", "rp")
_FLOATS = ("f16", "bf16", "f32", "f64", "f16x2", "bf16x2")
Function = Callable[..., Array]


def _base(type_: str) -> str:
    return type_.removesuffix("x2") if type_ in PACKED else type_


def _mode(ins: Instruction) -> str:
    found = [part for part in ins.parts if part in _MODES]
    return found[0] if found else "rn"


def _float_run(
    d: Decoder, ins: Instruction, function: Function, count: int, plain: np.ufunc | None = None
) -> Run:
    """A float operation with .ftz, .sat, .relu; `plain` is it where none of them is asked for."""
    type_ = ins.parts[-1]
    result, args = ins.operands[0], [d.src(x, type_) for x in ins.operands[1 : 1 + count]]
    ftz = "ftz" in ins.parts and type_ == "f32"
    sat, relu = "sat" in ins.parts, "relu" in ins.parts
    if plain is not None and not (ftz or sat or relu) and _mode(ins) == "rn":
        return d.pure(result, type_, plain, *args)

    def whole(*values: Array) -> Array:
        if ftz:
            values = tuple(flush(value) for value in values)
        out = function(*values)
        if ftz:
            out = flush(out)
        if sat:
            out = saturate(out)
        if relu:
            out = np.where(
                out > np.zeros((), out.dtype),
                out,
                np.where(out != out, out, np.zeros((), out.dtype)),
            )
        return out

    return d.pure(result, type_, whole, *args)


# --- add, sub, mul, mad, fma ---


def _add(d: Decoder, ins: Instruction) -> Run:
    type_ = ins.parts[-1]
    subtract = ins.parts[0] == "sub"
    ufunc = np.subtract if subtract else np.add
    if type_ in _FLOATS:
        if _mode(ins) == "rn" or type_ == "f64":
            return _float_run(d, ins, ufunc, 2, ufunc)
        one = np.ones((), "f8")

        def exact(a: Array, b: Array) -> Array:
            b = b.astype("f8")
            return narrow(fma_wide(a, one, -b if subtract else b), _base(type_), _mode(ins))

        return _float_run(d, ins, exact, 2)
    args = [d.src(x, type_) for x in ins.operands[1:3]]
    if "sat" in ins.parts:
        low, high = -(2**31), 2**31 - 1

        def clamp(a: Array, b: Array) -> Array:
            return np.clip(ufunc(a.astype("i8"), b.astype("i8")), low, high).astype("i4")

        return d.pure(ins.operands[0], type_, clamp, *args)
    if "cc" in ins.parts:
        return _carry(d, ins, subtract, False)
    return d.pure(ins.operands[0], type_, ufunc, *args)


def _carry(d: Decoder, ins: Instruction, subtract: bool, use: bool) -> Run:
    type_ = "u" + ins.parts[-1][1:]
    carry = d.made.setdefault("carry", np.zeros(d.machine.lanes, "?"))
    a, b = (d.src(x, type_) for x in ins.operands[1:3])
    put = d.put(ins.operands[0], type_)
    keep = "cc" in ins.parts

    def run(mask: Array, full: bool) -> None:
        extra = carry.astype(a.dtype) if use else np.zeros((), a.dtype)
        if subtract:
            first = a - b
            total = first - extra
            out = (a < b) | (first < extra)
        else:
            first = a + b
            total = first + extra
            out = (first < a) | (total < first)
        if keep:
            np.copyto(carry, out, where=mask)
        put(total, mask, full)

    return run


def _add_carry(d: Decoder, ins: Instruction) -> Run:
    return _carry(d, ins, ins.parts[0] == "subc", True)


def high_product(a: Array, b: Array) -> Array:
    """The upper half of a product of integers."""
    bits = 8 * a.dtype.itemsize
    if bits < 64:
        wide = np.dtype(f"{a.dtype.kind}{a.dtype.itemsize * 2}")
        return ((a.astype(wide) * b.astype(wide)) >> wide.type(bits)).astype(a.dtype)
    x, y = a.view("u8"), b.view("u8")
    low, half = np.uint64(0xFFFFFFFF), np.uint64(32)
    xl, xh, yl, yh = x & low, x >> half, y & low, y >> half
    cross = (xl * yl >> half) + (xh * yl & low)
    middle = cross + xl * yh
    # xl * yh + (32 bits) + (32 bits) does not wrap: it is below 2**64.
    top = xh * yh + (xh * yl >> half) + (middle >> half)
    if a.dtype.kind == "i":
        zero = np.uint64(0)
        top = top - np.where(a < 0, y, zero) - np.where(b < 0, x, zero)
    return top.view(a.dtype)


def _wide(type_: str) -> str:
    return f"{type_[0]}{int(type_[1:]) * 2}"


def _product(d: Decoder, ins: Instruction) -> tuple[str, Function]:
    """The result's type and the function of mul.lo, .hi and .wide."""
    type_ = ins.parts[-1]
    if "wide" in ins.parts:
        wide = d.dtype(_wide(type_))
        return _wide(type_), lambda a, b: a.astype(wide) * b.astype(wide)
    if "hi" in ins.parts:
        return type_, high_product
    return type_, np.multiply


def _mul(d: Decoder, ins: Instruction) -> Run:
    type_ = ins.parts[-1]
    if type_ in _FLOATS:
        if _mode(ins) == "rn" or type_ == "f64":
            return _float_run(d, ins, np.multiply, 2, np.multiply)

        def exact(a: Array, b: Array) -> Array:
            return narrow(a.astype("f8") * b.astype("f8"), _base(type_), _mode(ins))

        return _float_run(d, ins, exact, 2)
    out, function = _product(d, ins)
    a, b = (d.src(x, type_) for x in ins.operands[1:3])
    return d.pure(ins.operands[0], out, function, a, b)


def _mul24(d: Decoder, ins: Instruction) -> Run:
    a, b = (d.src(x, ins.parts[-1]) for x in ins.operands[1:3])
    shift = a.dtype.type(8)
    return d.pure(
        ins.operands[0],
        ins.parts[-1],
        lambda x, y: (x << shift >> shift) * (y << shift >> shift),
        a,
        b,
    )


def _mad(d: Decoder, ins: Instruction) -> Run:
    type_ = ins.parts[-1]
    if type_ in _FLOATS:
        return _fma(d, ins)
    out, function = _product(d, ins)
    a, b = (d.src(x, type_) for x in ins.operands[1:3])
    c = d.src(ins.operands[3], out)
    return d.pure(ins.operands[0], out, lambda x, y, z: function(x, y) + z, a, b, c)


def _fma(d: Decoder, ins: Instruction) -> Run:
    kind, mode = _base(ins.parts[-1]), _mode(ins)
    if kind == "f64":
        return _float_run(d, ins, fma64, 3)
    return _float_run(d, ins, lambda a, b, c: narrow(fma_wide(a, b, c), kind, mode), 3)


# --- division and the rest of the one-operand functions ---


def quotient(a: Array, b: Array) -> Array:
    """Integers divided towards zero; all bits are set where b is 0."""
    none = b == 0
    safe = np.where(none, b.dtype.type(1), b)
    if a.dtype.kind == "i":
        q = a // safe
        q = q + ((q < 0) & (q * safe != a)).astype(a.dtype)
        # The most negative number over -1 wraps.
        q = np.where(b == -1, np.zeros((), a.dtype) - a, q)
    else:
        q = a // safe
    return np.where(none, ~np.zeros((), a.dtype), q).astype(a.dtype)


def _div(d: Decoder, ins: Instruction) -> Run:
    type_ = ins.parts[-1]
    if type_ in _FLOATS:
        mode = _mode(ins)
        if mode != "rn" and type_ == "f32":
            return _float_run(
                d, ins, lambda a, b: narrow(a.astype("f8") / b.astype("f8"), "f32", mode), 2
            )
        return _float_run(d, ins, np.divide, 2, np.divide)
    a, b = (d.src(x, type_) for x in ins.operands[1:3])
    return d.pure(ins.operands[0], type_, quotient, a, b)


def _rem(d: Decoder, ins: Instruction) -> Run:
    type_ = ins.parts[-1]
    a, b = (d.src(x, type_) for x in ins.operands[1:3])
    return d.pure(ins.operands[0], type_, lambda x, y: x - quotient(x, y) * y, a, b)


def _in_double(function: Function) -> Decode:
    """A function that is computed in float64 and rounded to the type."""

    def decode(d: Decoder, ins: Instruction) -> Run:
        kind = _base(ins.parts[-1])
        if kind == "f64":
            return _float_run(d, ins, function, 1)
        return _float_run(d, ins, lambda a: narrow(function(a.astype("f8")), kind, _mode(ins)), 1)

    return decode


def _sqrt(d: Decoder, ins: Instruction) -> Run:
    return _float_run(d, ins, np.sqrt, 1, np.sqrt)


def _extreme(d: Decoder, ins: Instruction) -> Run:
    type_, larger = ins.parts[-1], ins.parts[0] == "max"
    if type_ not in _FLOATS:
        args = [d.src(x, type_) for x in ins.operands[1:3]]
        return d.pure(ins.operands[0], type_, np.maximum if larger else np.minimum, *args)
    if "NaN" in ins.parts:
        function = maximum_nan if larger else minimum_nan
    else:
        function = maximum if larger else minimum
    if len(ins.operands) == 4:
        return _float_run(d, ins, lambda a, b, c: function(function(a, b), c), 3)
    return _float_run(d, ins, function, 2)


def _abs(d: Decoder, ins: Instruction) -> Run:
    type_ = ins.parts[-1]
    if type_ in _FLOATS:
        return _float_run(d, ins, np.abs, 1, np.absolute)
    return d.pure(ins.operands[0], type_, np.absolute, d.src(ins.operands[1], type_))


def _neg(d: Decoder, ins: Instruction) -> Run:
    type_ = ins.parts[-1]
    if type_ in _FLOATS:
        return _float_run(d, ins, np.negative, 1, np.negative)
    return d.pure(ins.operands[0], type_, np.negative, d.src(ins.operands[1], type_))


def _copysign(d: Decoder, ins: Instruction) -> Run:
    type_ = ins.parts[-1]
    sign, size = (d.src(x, type_) for x in ins.operands[1:3])
    return d.pure(ins.operands[0], type_, lambda a, b: np.copysign(b, a), sign, size)


def _testp(d: Decoder, ins: Instruction) -> Run:
    x = d.src(ins.operands[1], ins.parts[-1])
    tiny = np.finfo(x.dtype).tiny
    tests: dict[str, Function] = {
        "finite": np.isfinite,
        "infinite": np.isinf,
        "number": lambda a: ~np.isnan(a),
        "notanumber": np.isnan,
        "normal": lambda a: np.isfinite(a) & (np.abs(a) >= tiny),
        "subnormal": lambda a: (np.abs(a) < tiny) & (a != 0),
    }
    return d.pure(ins.operands[0], "pred", tests[ins.parts[1]], x)


# --- bits ---


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


# --- comparisons and choices ---

_ORDERED: dict[str, Function] = {
    "eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal, "gt": np.greater,
    "ge": np.greater_equal, "lo": np.less, "ls": np.less_equal, "hi": np.greater,
    "hs": np.greater_equal,
}  # fmt: skip


def compare(name: str, type_: str) -> Function:
    """A comparison; of floats, the plain ones are false for NaN and those with u true."""
    if type_ not in _FLOATS:
        return _ORDERED[name]
    if name == "ne":
        return lambda a, b: (a < b) | (a > b)
    if name == "num":
        return lambda a, b: (a == a) & (b == b)
    if name == "nan":
        return lambda a, b: (a != a) | (b != b)
    if name == "neu":
        return np.not_equal
    if name.endswith("u"):
        plain = _ORDERED[name[:-1]]
        return lambda a, b: plain(a, b) | (a != a) | (b != b)
    return _ORDERED[name]


def _setp(d: Decoder, ins: Instruction) -> Run:
    type_ = ins.parts[-1]
    function = compare(ins.parts[1], type_)
    a, b = (d.src(x, type_) for x in ins.operands[1:3])
    if "ftz" in ins.parts:
        inner = function
        function = lambda x, y: inner(flush(x), flush(y))  # noqa: E731
    first, second = pair(ins.operands[0])
    if len(ins.operands) == 3 and second is None:
        return d.pure(first, "pred", function, a, b)
    join: Function = {"and": np.logical_and, "or": np.logical_or, "xor": np.logical_xor}.get(
        ins.parts[2], np.logical_and
    )
    third = d.predicate(ins.operands[3]) if len(ins.operands) > 3 else None
    put, put_not = d.put(first, "pred"), None if second is None else d.put(second, "pred")

    def run(mask: Array, full: bool) -> None:
        held = function(a, b)
        no = ~held
        if third is not None:
            c = third()
            held, no = join(held, c), join(no, c)
        put(held, mask, full)
        if put_not is not None:
            put_not(no, mask, full)

    return run


def _set(d: Decoder, ins: Instruction) -> Run:
    out, type_ = ins.parts[-2:]
    function = compare(ins.parts[1], type_)
    a, b = (d.src(x, type_) for x in ins.operands[1:3])
    if type_ in PACKED:
        raise d.fail("set of packed numbers is not supported")
    yes: Any = 1.0 if out in _FLOATS else ~np.zeros((), d.dtype(out))
    dtype = d.dtype(out)
    return d.pure(
        ins.operands[0], out,
        lambda x, y: np.where(function(x, y), np.array(yes, dtype), np.zeros((), dtype)), a, b,
    )  # fmt: skip


def _selp(d: Decoder, ins: Instruction) -> Run:
    type_ = ins.parts[-1]
    a, b = (d.src(x, type_) for x in ins.operands[1:3])
    choose = d.predicate(ins.operands[3])
    return d.pure(ins.operands[0], type_, lambda x, y: np.where(choose(), x, y), a, b)


def _slct(d: Decoder, ins: Instruction) -> Run:
    type_ = ins.parts[-2]
    a, b = (d.src(x, type_) for x in ins.operands[1:3])
    c = d.src(ins.operands[3], ins.parts[-1])
    return d.pure(ins.operands[0], type_, lambda x, y, z: np.where(z >= 0, x, y), a, b, c)


# --- moves ---


def _mov(d: Decoder, ins: Instruction) -> Run:
    type_ = ins.parts[-1]
    result, value = ins.operands
    if isinstance(result, Group) or isinstance(value, Group):
        return _repack(d, ins, result, value, type_)
    if isinstance(value, Reg) and value.name in ("%clock64", "%globaltimer", "%clock"):
        put = d.put(result, type_)
        dtype = d.dtype(type_)
        machine = d.machine

        def clock(mask: Array, full: bool) -> None:
            machine.ticks += 1
            put(np.full(machine.lanes, machine.ticks, dtype), mask, full)

        return clock
    if isinstance(value, Symbol) and value.name in d.params:
        # The address of a parameter, which only cvta.param and ld.param take.
        offset = d.params[value.name].offset
        return d.pure(result, type_, _same, d.constant(offset, d.dtype(type_)))
    if isinstance(value, Address):
        raise d.fail("mov takes no address in brackets")
    if type_ == "pred":
        make = d.predicate(value)
        return d.pure(result, type_, lambda: make())
    return d.pure(
        result,
        type_,
        np.positive
        if type_ in ("u32", "b32", "u64", "b64", "f32", "s32", "s64", "f64", "u16", "s16")
        else _same,
        d.src(value, "b" + type_[1:] if type_ == "bf16" else type_),
    )


def _same(x: Array) -> Array:
    return x


def _repack(d: Decoder, ins: Instruction, result: Operand, value: Operand, type_: str) -> Run:
    """Parts of a register to and from several."""
    size = SIZES[type_]
    if isinstance(result, Group):
        parts = result.items
        part = f"b{8 * size // len(parts)}"
        if type_ == "b128":
            assert isinstance(value, Reg)
            source = d.values[value.name].view(d.dtype(part)).reshape(d.machine.lanes, -1)
            d.reads.append(d.machine.index[value.name])
        else:
            source = d.src(value, type_).view(d.dtype(part)).reshape(d.machine.lanes, -1)
        puts = [d.put(x, part) for x in parts]

        def unpack(mask: Array, full: bool) -> None:
            # A part may be written to the register that is taken apart.
            columns = [source[:, i].copy() for i in range(len(puts))]
            for put, column in zip(puts, columns, strict=True):
                put(column, mask, full)

        return unpack
    parts = items(value)
    part = f"b{8 * size // len(parts)}"
    sources = [d.src(x, part) for x in parts]
    if type_ == "b128":
        raise d.fail("packing 128 bits is not supported")
    whole = d.dtype("b" + type_[1:])
    return d.pure(
        result, "b" + type_[1:],
        lambda *xs: np.ascontiguousarray(np.stack(xs, axis=1)).view(whole)[:, 0], *sources,
    )  # fmt: skip


_WINDOWS = {"global": 0, "const": 0, "shared": SHARED, "local": LOCAL, "param": PARAM}


def _cvta(d: Decoder, ins: Instruction) -> Run:
    to = "to" in ins.parts
    space = ins.parts[2 if to else 1].split("::")[0]
    operand = ins.operands[1]
    type_ = ins.parts[-1]
    base = np.uint64(_WINDOWS[space])
    value = d.src(operand, type_)
    if to:
        return d.pure(ins.operands[0], type_, lambda x: x - base, value)
    return d.pure(ins.operands[0], type_, lambda x: x + base, value)


def _isspacep(d: Decoder, ins: Instruction) -> Run:
    space = ins.parts[1].split("::")[0]
    bounds = {
        "global": (GLOBAL, SHARED), "shared": (SHARED, LOCAL), "local": (LOCAL, PARAM),
        "param": (PARAM, 1 << 62),
    }  # fmt: skip
    low, high = map(np.uint64, bounds[space])
    return d.pure(
        ins.operands[0], "pred", lambda x: (x >= low) & (x < high), d.src(ins.operands[1], "u64")
    )


def _nothing(d: Decoder, ins: Instruction) -> Run:
    del d, ins
    return no_op


ARITHMETIC: dict[str, Decode] = {
    "add": _add, "sub": _add, "addc": _add_carry, "subc": _add_carry, "mul": _mul, "mad": _mad,
    "fma": _fma, "div": _div, "rem": _rem, "min": _extreme, "max": _extreme, "abs": _abs,
    "neg": _neg, "copysign": _copysign, "testp": _testp, "sqrt": _sqrt, "mul24": _mul24,
    "rcp": _in_double(lambda x: 1.0 / x), "rsqrt": _in_double(lambda x: 1.0 / np.sqrt(x)),
    "ex2": _in_double(np.exp2), "lg2": _in_double(np.log2), "sin": _in_double(np.sin),
    "cos": _in_double(np.cos), "tanh": _in_double(np.tanh),
    "and": _logic(np.bitwise_and), "or": _logic(np.bitwise_or), "xor": _logic(np.bitwise_xor),
    "not": _logic(np.invert), "shl": _shift, "shr": _shift, "shf": _funnel, "bfe": _bfe,
    "bfi": _bfi, "lop3": _lop3, "prmt": _prmt, "brev": _brev, "bfind": _bfind, "dp4a": _dp4a,
    "popc": _count(lambda x, _: np.bitwise_count(x)), "clz": _count(leading_zeros),
    "setp": _setp, "set": _set, "selp": _selp, "slct": _slct, "mov": _mov, "cvta": _cvta,
    "isspacep": _isspacep, "pragma": _nothing, "nanosleep": _nothing, "setmaxnreg": _nothing,
}  # fmt: skip
"""How each of them is decoded."""
