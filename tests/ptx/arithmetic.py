"""Arithmetic of integers and floats."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tests.ptx.decode import FLOATS, PACKED, Decode, Decoder
from tests.ptx.machine import Run
from tests.ptx.memory import Array
from tests.ptx.parser import Instruction
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

Function = Callable[..., Array]
_MODES = ("rn", "rz", "rm", "rp")


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
    if type_ in FLOATS:
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
    if type_ in FLOATS:
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
    if type_ in FLOATS:
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
    if type_ in FLOATS:
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
    if type_ not in FLOATS:
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
    if type_ in FLOATS:
        return _float_run(d, ins, np.abs, 1, np.absolute)
    return d.pure(ins.operands[0], type_, np.absolute, d.src(ins.operands[1], type_))


def _neg(d: Decoder, ins: Instruction) -> Run:
    type_ = ins.parts[-1]
    if type_ in FLOATS:
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


ARITHMETIC: dict[str, Decode] = {
    "add": _add, "sub": _add, "addc": _add_carry, "subc": _add_carry, "mul": _mul, "mad": _mad,
    "fma": _fma, "div": _div, "rem": _rem, "min": _extreme, "max": _extreme, "abs": _abs,
    "neg": _neg, "copysign": _copysign, "testp": _testp, "sqrt": _sqrt, "mul24": _mul24,
    "rcp": _in_double(lambda x: 1.0 / x), "rsqrt": _in_double(lambda x: 1.0 / np.sqrt(x)),
    "ex2": _in_double(np.exp2), "lg2": _in_double(np.log2), "sin": _in_double(np.sin),
    "cos": _in_double(np.cos), "tanh": _in_double(np.tanh),
}  # fmt: skip
"""How each of them is decoded."""
