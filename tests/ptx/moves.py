"""Comparisons, choices and moves."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tests.ptx.decode import FLOATS, PACKED, Decode, Decoder, items, pair
from tests.ptx.machine import Run, no_op
from tests.ptx.memory import GLOBAL, LOCAL, PARAM, SHARED, Array
from tests.ptx.parser import SIZES, Address, Group, Instruction, Operand, Reg, Symbol
from tests.ptx.rounding import flush

Function = Callable[..., Array]


_ORDERED: dict[str, Function] = {
    "eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal, "gt": np.greater,
    "ge": np.greater_equal, "lo": np.less, "ls": np.less_equal, "hi": np.greater,
    "hs": np.greater_equal,
}  # fmt: skip


def compare(name: str, type_: str) -> Function:
    """A comparison; of floats, the plain ones are false for NaN and those with u true."""
    if type_ not in FLOATS:
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
    yes: Any = 1.0 if out in FLOATS else ~np.zeros((), d.dtype(out))
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


MOVES: dict[str, Decode] = {
    "setp": _setp, "set": _set, "selp": _selp, "slct": _slct, "mov": _mov, "cvta": _cvta,
    "isspacep": _isspacep, "pragma": _nothing, "nanosleep": _nothing, "setmaxnreg": _nothing,
}  # fmt: skip
"""How each of them is decoded."""
