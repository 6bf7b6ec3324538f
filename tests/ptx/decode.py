"""Operands to arrays, instructions to closures.

A register is one array over the lanes that stays where it is, so a closure holds the arrays of its
operands, immediates included.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from tests.ptx.machine import (
    ARRIVE,
    BARRIER,
    BRANCH,
    CLUSTER,
    COLLECTIVE,
    EXIT,
    PLAIN,
    Machine,
    Run,
    Step,
    no_op,
)
from tests.ptx.memory import Array
from tests.ptx.parser import (
    SIZES,
    Address,
    Group,
    Imm,
    Instruction,
    Operand,
    Pair,
    PtxError,
    Reg,
    Symbol,
)
from tests.ptx.rounding import BF16

CODES: dict[str, np.dtype[Any]] = {
    "pred": np.dtype("?"), "b8": np.dtype("u1"), "u8": np.dtype("u1"), "s8": np.dtype("i1"),
    "b16": np.dtype("u2"), "u16": np.dtype("u2"), "s16": np.dtype("i2"), "f16": np.dtype("f2"),
    "bf16": BF16, "b32": np.dtype("u4"), "u32": np.dtype("u4"), "s32": np.dtype("i4"),
    "f32": np.dtype("f4"), "tf32": np.dtype("f4"), "b64": np.dtype("u8"), "u64": np.dtype("u8"),
    "s64": np.dtype("i8"), "f64": np.dtype("f8"), "e4m3x2": np.dtype("u2"),
    "e5m2x2": np.dtype("u2"),
}  # fmt: skip
"""How NumPy sees the types."""

PACKED: dict[str, np.dtype[Any]] = {
    "f16x2": np.dtype("f2"), "bf16x2": BF16, "s16x2": np.dtype("i2"), "u16x2": np.dtype("u2"),
}  # fmt: skip
"""Two numbers in one register."""

SPACES = ("param", "global", "shared", "shared::cta", "shared::cluster", "local", "const")
FLOATS = ("f16", "bf16", "f32", "f64", "f16x2", "bf16x2")
"""The types of floats."""
_FLOATS = {"f16", "bf16", "f32", "f64", "tf32"}
Decode = Callable[["Decoder", Instruction], Run]


@dataclass(frozen=True, slots=True)
class Place:
    """The addresses that an operand gives: a base for each lane, and an offset."""

    base: Array | None
    offset: int

    def at(self, lanes: Array) -> Array:
        """The addresses of some lanes."""
        if self.base is None:
            return np.full(len(lanes), self.offset, "i8")
        return self.base[lanes].astype("i8") + self.offset


class Decoder:
    """Makes the steps of one machine."""

    def __init__(self, machine: Machine, symbols: dict[str, tuple[str, int]]) -> None:
        self.machine = machine
        self.symbols = symbols
        n = machine.lanes
        kernel = machine.kernel
        self.params = {p.name: p for p in kernel.params}
        self.values: dict[str, Array] = {
            name: np.zeros(n, f"u{SIZES[type_]}" if type_ != "pred" else "?")
            if type_ != "b128"
            else np.zeros((n, 2), "u8")
            for name, type_ in kernel.registers.items()
        }
        for value in self.values.values():
            if value.dtype.kind != "b":
                value.view("u1")[...] = 0xCD  # poison, should a check be missed
        self.special = self._specials()
        self.reads: list[int] = []
        self.writes: list[int] = []
        self.ins: Instruction = Instruction(0, None, (), (), ())
        self.made: dict[object, Array] = {}
        self.collective: Array | None = None
        self.kind = PLAIN

    def _specials(self) -> dict[str, Array]:
        machine = self.machine
        thread = machine.thread.astype("u4")
        lane = thread % np.uint32(32)
        one = np.uint32(1)
        zero = np.zeros(machine.lanes, "u4")
        full = {
            "%tid.x": thread, "%tid.y": zero, "%tid.z": zero, "%laneid": lane,
            "%warpid": thread // np.uint32(32), "%ctaid.x": machine.block_ids, "%ctaid.y": zero,
            "%ctaid.z": zero, "%ntid.x": zero + np.uint32(machine.threads),
            "%lanemask_eq": one << lane, "%lanemask_lt": (one << lane) - one,
            "%clusterid.x": machine.block_ids, "%cluster_ctarank": zero, "%smid": zero,
            "%cluster_ctaid.x": zero,
        }  # fmt: skip
        full["%lanemask_le"] = full["%lanemask_eq"] | full["%lanemask_lt"]
        full["%lanemask_gt"] = ~full["%lanemask_le"]
        full["%lanemask_ge"] = ~full["%lanemask_lt"]
        for name in ("%ntid.y", "%ntid.z", "%nctaid.y", "%nctaid.z", "%cluster_nctarank"):
            full[name] = zero + one
        full["%nwarpid"] = zero + np.uint32(machine.padded // 32)
        return full

    # --- operands ---

    def fail(self, text: str) -> PtxError:
        """An error of the text."""
        ins = self.ins
        return PtxError(f"{self.machine.kernel.name}, line {ins.line}: {ins.name}: {text}")

    def dtype(self, type_: str) -> np.dtype[Any]:
        """NumPy's type."""
        if type_ not in CODES:
            raise self.fail(f"type .{type_} is not supported here")
        return CODES[type_]

    def src(self, operand: Operand, type_: str) -> Array:
        """The values of an operand, an array over the lanes (or two, of packed types)."""
        if type_ in PACKED:
            whole = self.src(operand, "b32")
            return whole.view(PACKED[type_]).reshape(-1, 2)
        dtype = self.dtype(type_)
        if isinstance(operand, Reg):
            return self._register(operand, dtype)
        if isinstance(operand, Imm):
            return self.constant(number(operand.text, type_, self), dtype)
        if isinstance(operand, Symbol):
            if operand.name == "WARP_SZ":
                return self.constant(np.array(32, dtype), dtype)
            return self.constant(np.array(self.address_of(operand.name), dtype), dtype)
        raise self.fail(f"operand {operand} is not understood here")

    def _register(self, operand: Reg, dtype: np.dtype[Any]) -> Array:
        if operand.name in self.values:
            value = self.values[operand.name]
            self.reads.append(self.machine.index[operand.name])
        elif operand.name in self.special:
            value = self.special[operand.name]
        else:
            raise self.fail(f"register {operand.name} is not declared")
        if value.dtype == dtype:
            return value
        if value.dtype.kind == "b" or dtype.kind == "b":
            raise self.fail(f"{operand.name} is used as {dtype}")
        if value.dtype.itemsize < dtype.itemsize:
            if operand.name in self.special:
                return value.astype(dtype)
            raise self.fail(
                f"{operand.name} has {value.dtype.itemsize} bytes, not {dtype.itemsize}"
            )
        # Little end first: the low part of a wider register.
        return value.view(dtype)[:: value.dtype.itemsize // dtype.itemsize]

    def constant(self, value: Any, dtype: np.dtype[Any]) -> Array:
        """The same number in all lanes."""
        key = (dtype, np.asarray(value, dtype).tobytes())
        if key not in self.made:
            self.made[key] = np.full(self.machine.lanes, value, dtype)
        return self.made[key]

    def address_of(self, name: str) -> int:
        """The address of a variable within its space."""
        if name in self.symbols:
            return self.symbols[name][1]
        if name in self.params:
            return self.params[name].offset
        raise self.fail(f"{name} is not declared")

    def place(self, operand: Operand) -> Place:
        """The addresses that `[...]` gives."""
        if not isinstance(operand, Address):
            raise self.fail("an address in brackets is needed")
        if isinstance(operand.base, Symbol):
            return Place(None, self.address_of(operand.base.name) + operand.offset)
        if operand.base is None:
            return Place(None, operand.offset)
        value = self._any_width(operand.base)
        return Place(value, operand.offset)

    def _any_width(self, operand: Reg) -> Array:
        width = self.values[operand.name].dtype.itemsize if operand.name in self.values else 4
        return self.src(operand, f"u{8 * width}")

    def predicate(self, operand: Operand) -> Callable[[], Array]:
        """The values of a predicate, which may be negated."""
        if isinstance(operand, Imm):
            value = self.constant(int(operand.text, 0) != 0, np.dtype("?"))
            return lambda: value
        value = self.src(operand, "pred")
        if isinstance(operand, Reg) and operand.negated:
            return lambda: ~value
        return lambda: value

    # --- results ---

    def put(self, operand: Operand, type_: str) -> Callable[[Array, Array, bool], None]:
        """A function that sets a register in the lanes of a mask."""
        if not isinstance(operand, Reg):
            raise self.fail("a result goes to a register")
        if operand.name == "_":
            return lambda values, mask, full: None
        if operand.name not in self.values:
            raise self.fail(f"register {operand.name} is not declared")
        self.writes.append(self.machine.index[operand.name])
        whole = self.values[operand.name]
        if type_ in PACKED:
            halves = whole.view("u2").reshape(-1, 2)
            half = PACKED[type_]

            def put_pair(values: Array, mask: Array, full: bool) -> None:
                bits = np.ascontiguousarray(values, half).view("u2")
                if full:
                    halves[...] = bits
                else:
                    np.copyto(halves, bits, where=mask[:, None])

            return put_pair
        out, bits = self._out(whole, self.dtype(type_), operand.name)

        def put(values: Array, mask: Array, full: bool) -> None:
            if bits is not None and values.dtype.kind not in "iub?":
                values = np.ascontiguousarray(values).view(bits)
            if full:
                out[...] = values
            else:
                np.copyto(out, values, where=mask, casting="unsafe")

        return put

    def _out(
        self, whole: Array, dtype: np.dtype[Any], name: str
    ) -> tuple[Array, np.dtype[Any] | None]:
        """The register as it is written, and the bits of a value that is narrower than it."""
        if (whole.dtype.kind == "b") != (dtype.kind == "b"):
            raise self.fail(f"{name} cannot hold {dtype}")
        if whole.dtype.itemsize < dtype.itemsize:
            raise self.fail(f"{name} has {whole.dtype.itemsize} bytes, not {dtype.itemsize}")
        if whole.dtype.itemsize == dtype.itemsize:
            return (whole if dtype.kind == "b" else whole.view(dtype)), None
        signed = dtype.kind == "i"
        bits = np.dtype(f"{'i' if signed else 'u'}{dtype.itemsize}")
        return whole.view(f"{'i' if signed else 'u'}{whole.dtype.itemsize}"), bits

    def pure(
        self, result: Operand, type_: str, function: Callable[..., Array], *args: Array
    ) -> Run:
        """A function of registers only: computed in all lanes, kept in those of the mask."""
        if isinstance(function, np.ufunc) and type_ not in PACKED and isinstance(result, Reg):
            whole = self.values.get(result.name)
            dtype = self.dtype(type_)
            if whole is not None and whole.dtype.itemsize == dtype.itemsize and dtype != BF16:
                self.writes.append(self.machine.index[result.name])
                out = self._out(whole, dtype, result.name)[0]
                return _ufunc(function, args, out)
        put = self.put(result, type_)

        def run(mask: Array, full: bool) -> None:
            put(function(*args), mask, full)

        return run

    # --- instructions ---

    def step(self, ins: Instruction, decoders: dict[str, Decode]) -> Step:
        """The step of one instruction."""
        self.reads, self.writes, self.ins = [], [], ins
        self.kind, self.collective = PLAIN, None
        root = ins.parts[0]
        step = Step(PLAIN, no_op, ins)
        if ins.guard is not None:
            guard = Reg(ins.guard.name)
            step.guard = self.src(guard, "pred")
            step.negated = ins.guard.negated
            step.guard_index = self.machine.index[ins.guard.name]
            self.reads.clear()
        if root == "bra":
            target = ins.operands[0]
            found = None
            if isinstance(target, Symbol):
                found = self.machine.kernel.target(ins.scope, target.name)
            if found is None:
                raise self.fail(f"there is no label {target}")
            step.kind, step.target, step.uniform = BRANCH, found, "uni" in ins.parts
        elif root in ("ret", "exit"):
            step.kind = EXIT
        elif root in ("bar", "barrier") and ins.parts[1] not in ("warp", "cluster"):
            self._barrier(step, ins)
        elif root == "barrier" and ins.parts[1:3] == ("cluster", "wait"):
            step.kind, step.barrier = BARRIER, (self.constant(CLUSTER, np.dtype("u4")), None)
        elif root not in decoders:
            raise self.fail("this instruction is not supported")
        else:
            try:
                step.run = decoders[root](self, ins)
            except (ValueError, IndexError, KeyError, StopIteration) as error:
                raise self.fail(f"these operands or modifiers are not known ({error})") from error
            step.kind, step.members = self.kind, self.collective
        step.reads = tuple(dict.fromkeys(self.reads))
        step.writes = tuple(dict.fromkeys(self.writes))
        return step

    def _barrier(self, step: Step, ins: Instruction) -> None:
        parts = [part for part in ins.parts[1:] if part not in ("cta", "aligned")]
        if not parts or parts[0] not in ("sync", "arrive"):
            raise self.fail("this barrier is not supported")
        step.kind = BARRIER if parts[0] == "sync" else ARRIVE
        step.aligned = ins.parts[0] == "bar" or "aligned" in ins.parts
        numbers = self.src(ins.operands[0], "u32")
        counts = self.src(ins.operands[1], "u32") if len(ins.operands) > 1 else None
        if counts is None and step.kind == ARRIVE:
            raise self.fail("an arrival needs a count of threads")
        step.barrier = numbers, counts
        step.simple = counts is None and isinstance(ins.operands[0], Imm)

    def warpwide(self, members: Operand | None) -> None:
        """The instruction is run by lanes together: those of a mask operand, or all."""
        self.kind = COLLECTIVE
        self.collective = None if members is None else self.src(members, "u32")


def _ufunc(function: np.ufunc, args: tuple[Array, ...], out: Array) -> Run:
    if len(args) == 2:
        a, b = args

        def run_two(mask: Array, full: bool) -> None:
            if full:
                function(a, b, out=out)
            else:
                np.copyto(out, function(a, b), where=mask)

        return run_two

    def run(mask: Array, full: bool) -> None:
        if full:
            function(*args, out=out)
        else:
            np.copyto(out, function(*args), where=mask)

    return run


_HEX_FLOAT = re.compile(r"(-?)0([fFdD])([0-9a-fA-F]+)$")


def number(text: str, type_: str, decoder: Decoder) -> Any:
    """An immediate as a number of a type."""
    dtype = decoder.dtype(type_)
    match = _HEX_FLOAT.match(text)
    if match:
        bits = int(match[3], 16)
        width = 4 if match[2] in "fF" else 8
        value = np.array(bits, f"u{width}").view(f"f{width}")
        if type_ in _FLOATS:
            return (-value if match[1] else value).astype(dtype)
        return np.array(bits & ((1 << 8 * dtype.itemsize) - 1), f"u{dtype.itemsize}").view(dtype)
    if type_ in _FLOATS:
        if type_ in ("f16", "bf16") and text.lower().startswith("0x"):
            return np.array(int(text, 16), "u2").view(dtype)
        return np.array(float(text), dtype)
    value = int(text.rstrip("U"), 0)
    if dtype.kind == "b":
        return value != 0
    bits = value & ((1 << 8 * dtype.itemsize) - 1)
    return np.array(bits, f"u{dtype.itemsize}").view(dtype)


def items(operand: Operand) -> tuple[Operand, ...]:
    """The parts of `{...}`, or the operand alone."""
    return operand.items if isinstance(operand, Group) else (operand,)


def pair(operand: Operand) -> tuple[Operand, Operand | None]:
    """The parts of `a|b`."""
    return (operand.first, operand.second) if isinstance(operand, Pair) else (operand, None)
