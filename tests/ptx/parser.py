"""PTX text to kernels: parameters, variables and decoded statements.

It reads what a compiler writes: one module of `.entry` kernels without calls of functions. What it
does not know is a `PtxError` with the line, never skipped.
"""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass, field


class PtxError(Exception):
    """The text is not understood, or a kernel did something wrong."""


@dataclass(frozen=True, slots=True)
class Reg:
    """A register, special ones included; `negated` only for predicates."""

    name: str
    negated: bool = False


@dataclass(frozen=True, slots=True)
class Imm:
    """A number as written."""

    text: str


@dataclass(frozen=True, slots=True)
class Symbol:
    """A variable, parameter or label."""

    name: str


@dataclass(frozen=True, slots=True)
class Address:
    """`[base + offset]`; a base is a register, a symbol or None. `more` has tensor coordinates."""

    base: Reg | Symbol | None
    offset: int
    more: tuple[Operand, ...] = ()


@dataclass(frozen=True, slots=True)
class Group:
    """`{a, b}`."""

    items: tuple[Operand, ...]


@dataclass(frozen=True, slots=True)
class Pair:
    """`a|b`: two results."""

    first: Operand
    second: Operand


Operand = Reg | Imm | Symbol | Address | Group | Pair


@dataclass(slots=True)
class Instruction:
    """One instruction.

    Attributes:
        line: of the text.
        guard: the predicate that it depends on, or None.
        parts: the mnemonic at its dots.
        operands: in order.
        scope: the numbers of the braces around it.
        place: the last `.loc` before it: file, line.
    """

    line: int
    guard: Reg | None
    parts: tuple[str, ...]
    operands: tuple[Operand, ...]
    scope: tuple[int, ...]
    place: tuple[str, int] | None = None

    @property
    def name(self) -> str:
        return ".".join(self.parts)


@dataclass(frozen=True, slots=True)
class Variable:
    """A variable in memory; size 0: its size is given at the launch."""

    name: str
    space: str
    align: int
    size: int
    init: bytes = b""


@dataclass(frozen=True, slots=True)
class Param:
    """A parameter: where it lies among the bytes of all."""

    name: str
    type: str
    offset: int
    size: int


@dataclass(slots=True)
class Kernel:
    """An entry."""

    name: str
    params: tuple[Param, ...] = ()
    registers: dict[str, str] = field(default_factory=dict)
    variables: list[Variable] = field(default_factory=list)
    code: list[Instruction] = field(default_factory=list)
    labels: dict[tuple[tuple[int, ...], str], int] = field(default_factory=dict)
    threads: int = 0

    def target(self, scope: tuple[int, ...], label: str) -> int | None:
        """Where a label of a scope or of one around it stands."""
        for depth in range(len(scope), -1, -1):
            if (found := self.labels.get((scope[:depth], label))) is not None:
                return found
        return None


@dataclass(slots=True)
class Program:
    """A module."""

    version: tuple[int, int] = (0, 0)
    target: str = ""
    kernels: dict[str, Kernel] = field(default_factory=dict)
    variables: list[Variable] = field(default_factory=list)


SIZES = {
    "pred": 1, "b8": 1, "u8": 1, "s8": 1, "e4m3": 1, "e5m2": 1,
    "b16": 2, "u16": 2, "s16": 2, "f16": 2, "bf16": 2, "e4m3x2": 2, "e5m2x2": 2,
    "b32": 4, "u32": 4, "s32": 4, "f32": 4, "f16x2": 4, "bf16x2": 4, "tf32": 4,
    "b64": 8, "u64": 8, "s64": 8, "f64": 8, "b128": 16,
}  # fmt: skip
"""Bytes of the types."""

_TOKEN = re.compile(
    r"""(?P<space>\s+)
    |(?P<string>"(?:[^"\\]|\\.)*")
    |(?P<number>0[fF][0-9a-fA-F]{8}|0[dD][0-9a-fA-F]{16}|0[xX][0-9a-fA-F]+U?|0[bB][01]+U?
        |\d+\.\d*(?:[eE][+-]?\d+)?|\d+[eE][+-]?\d+|\d+U?)
    |(?P<name>[A-Za-z_$%.][\w$.%]*(?:::[\w$.]+)*)
    |(?P<mark>[][{}();:,|!@+\-<>=*])""",
    re.VERBOSE,
)
_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
_LINEWISE = {".version", ".target", ".address_size", ".file", ".loc"}


@dataclass(frozen=True, slots=True)
class _Token:
    kind: str
    text: str
    line: int


def _tokens(text: str) -> list[_Token]:
    text = _COMMENT.sub(lambda m: re.sub(r"[^\n]", " ", m[0]), text)
    found: list[_Token] = []
    at, line = 0, 1
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None:
            raise PtxError(f"line {line}: cannot read {text[at : at + 20]!r}")
        if match.lastgroup != "space":
            found.append(_Token(str(match.lastgroup), match[0], line))
        line += match[0].count("\n")
        at = match.end()
    return found


@functools.lru_cache(maxsize=64)
def parse(text: str) -> Program:
    """The program of a PTX text."""
    return _Parser(_tokens(text)).program()


class _Parser:
    def __init__(self, tokens: list[_Token]) -> None:
        self.tokens = tokens
        self.at = 0
        self.files: dict[str, str] = {}
        self.place: tuple[str, int] | None = None
        self.scopes = 0

    # --- tokens ---

    def peek(self, ahead: int = 0) -> str:
        at = self.at + ahead
        return self.tokens[at].text if at < len(self.tokens) else ""

    def next(self) -> _Token:
        if self.at >= len(self.tokens):
            raise PtxError("the text ends too early")
        self.at += 1
        return self.tokens[self.at - 1]

    def take(self, text: str) -> bool:
        if self.peek() == text:
            self.at += 1
            return True
        return False

    def expect(self, text: str) -> None:
        token = self.next()
        if token.text != text:
            raise PtxError(f"line {token.line}: expected {text!r}, not {token.text!r}")

    def integer(self) -> int:
        negative = self.take("-")
        token = self.next()
        try:
            value = int(token.text.rstrip("U"), 0)
        except ValueError:
            raise PtxError(f"line {token.line}: expected a number, not {token.text!r}") from None
        return -value if negative else value

    def rest_of_line(self) -> list[str]:
        line = self.tokens[self.at - 1].line
        found: list[str] = []
        while self.at < len(self.tokens) and self.tokens[self.at].line == line:
            found.append(self.next().text)
        return found

    # --- the module ---

    def program(self) -> Program:
        program = Program()
        while self.at < len(self.tokens):
            token = self.next()
            if token.text in _LINEWISE:
                self.linewise(token.text, program)
            elif token.text in (".visible", ".weak", ".extern"):
                continue
            elif token.text == ".entry":
                kernel = self.entry(program)
                program.kernels[kernel.name] = kernel
            elif token.text in (".shared", ".global", ".const"):
                program.variables.append(self.variable(token.text[1:]))
            else:
                raise PtxError(f"line {token.line}: {token.text!r} is not known here")
        return program

    def linewise(self, name: str, program: Program | None = None) -> None:
        rest = self.rest_of_line()
        if name == ".file":
            self.files[rest[0]] = rest[1].strip('"')
        elif name == ".loc":
            self.place = self.files.get(rest[0], f"file {rest[0]}"), int(rest[1])
        elif program is not None and name == ".version":
            major, minor = "".join(rest).split(".")
            program.version = int(major), int(minor)
        elif program is not None and name == ".target":
            program.target = rest[0]

    def variable(self, space: str) -> Variable:
        align, type_ = 0, ""
        while self.peek().startswith("."):
            name = self.next().text[1:]
            if name == "align":
                align = self.integer()
            elif name in SIZES:
                type_ = name
        token = self.next()
        size = SIZES[type_]
        align = align or size
        while self.take("["):
            size *= 0 if self.peek() == "]" else self.integer()
            self.expect("]")
        init = b""
        if self.take("="):
            init = self.initial(SIZES[type_])
        self.expect(";")
        return Variable(token.text, space, align, size, init)

    def initial(self, size: int) -> bytes:
        if not self.take("{"):
            return _number_bytes(self.next().text, size)
        found = b""
        while not self.take("}"):
            negative = self.take("-")
            found += _number_bytes(("-" if negative else "") + self.next().text, size)
            self.take(",")
        return found

    def entry(self, program: Program) -> Kernel:
        kernel = Kernel(self.next().text, variables=list(program.variables))
        kernel.params = self.params()
        while not self.take("{"):
            token = self.next()
            if token.text == ".reqntid":
                kernel.threads = self.integer()
                while self.take(","):
                    kernel.threads *= self.integer()
            elif token.text == ".reqnctapercluster" and self.peek() != "1":
                raise PtxError(f"line {token.line}: clusters of several blocks are not supported")
        self.body(kernel, (), {})
        return kernel

    def params(self) -> tuple[Param, ...]:
        found: list[Param] = []
        offset = 0
        if not self.take("("):
            return ()
        while not self.take(")"):
            self.expect(".param")
            align, type_, pointer = 0, "", False
            while self.peek().startswith("."):
                name = self.next().text[1:]
                if name == "align":
                    # That of a pointer's target is no matter of the parameter's.
                    value = self.integer()
                    align = align if pointer else value
                elif name == "ptr":
                    pointer = True
                elif name in SIZES:
                    type_ = name
            name = self.next().text
            size = SIZES[type_]
            align = align or size
            if self.take("["):
                size *= self.integer()
                self.expect("]")
            offset = -(-offset // align) * align
            found.append(Param(name, type_, offset, size))
            offset += size
            self.take(",")
        return tuple(found)

    # --- code ---

    def body(self, kernel: Kernel, scope: tuple[int, ...], names: dict[str, str]) -> None:
        """Statements up to the closing brace; `names` maps registers to the kernel's names."""
        names = dict(names)
        while not self.take("}"):
            token = self.next()
            text = token.text
            if text == "{":
                self.scopes += 1
                self.body(kernel, (*scope, self.scopes), names)
            elif text in _LINEWISE:
                self.linewise(text)
            elif text == ".reg":
                self.registers(kernel, scope, names)
            elif text in (".shared", ".local", ".const", ".global"):
                kernel.variables.append(self.variable(text[1:]))
            elif text == ".pragma":
                while not self.take(";"):
                    self.next()
            elif self.peek() == ":" and token.kind == "name":
                self.next()
                kernel.labels[scope, text] = len(kernel.code)
            elif text == ".branchtargets" or (token.kind == "name" and text.startswith(".")):
                raise PtxError(f"line {token.line}: directive {text} is not supported")
            else:
                self.at -= 1
                kernel.code.append(self.instruction(scope, names))

    def registers(self, kernel: Kernel, scope: tuple[int, ...], names: dict[str, str]) -> None:
        type_ = self.next().text[1:]
        if type_ not in SIZES:
            raise PtxError(f"line {self.tokens[self.at - 1].line}: no registers of type .{type_}")
        while True:
            name = self.next().text
            found = [name]
            if self.take("<"):
                found = [f"{name}{i}" for i in range(self.integer())]
                self.expect(">")
            for each in found:
                own = each + "".join(f"@{s}" for s in scope)
                names[each] = own
                kernel.registers[own] = type_
            if not self.take(","):
                break
        self.expect(";")

    def instruction(self, scope: tuple[int, ...], names: dict[str, str]) -> Instruction:
        guard = None
        line = self.tokens[self.at].line
        if self.take("@"):
            negated = self.take("!")
            name = self.next().text
            guard = Reg(names.get(name, name), negated)
        parts = tuple(self.next().text.split("."))
        operands: list[Operand] = []
        while not self.take(";"):
            operands.append(self.operand(names))
            if not self.take(",") and self.peek() != ";":
                token = self.next()
                raise PtxError(f"line {token.line}: expected ',' or ';', not {token.text!r}")
        return Instruction(line, guard, parts, tuple(operands), scope, self.place)

    def operand(self, names: dict[str, str]) -> Operand:
        first = self.single(names)
        if self.take("|"):
            return Pair(first, self.single(names))
        return first

    def single(self, names: dict[str, str]) -> Operand:
        token = self.next()
        text = token.text
        if text == "{":
            items: list[Operand] = []
            while not self.take("}"):
                items.append(self.operand(names))
                self.take(",")
            return Group(tuple(items))
        if text == "[":
            return self.address(names)
        if text in ("-", "!"):
            inner = self.single(names)
            if text == "!" and isinstance(inner, Reg):
                return Reg(inner.name, True)
            if text == "-" and isinstance(inner, Imm):
                return Imm("-" + inner.text)
            raise PtxError(f"line {token.line}: {text!r} is not understood here")
        if token.kind == "number":
            return Imm(text)
        if token.kind != "name":
            raise PtxError(f"line {token.line}: an operand cannot start with {text!r}")
        if text in names:
            return Reg(names[text])
        if text.startswith("%") or text == "_":
            return Reg(text)
        return Symbol(text)

    def address(self, names: dict[str, str]) -> Address:
        base: Reg | Symbol | None = None
        offset = 0
        more: tuple[Operand, ...] = ()
        if self.tokens[self.at].kind == "number":
            offset = self.integer()
        else:
            found = self.single(names)
            if not isinstance(found, Reg | Symbol):
                raise PtxError(f"line {self.tokens[self.at].line}: an address needs a base")
            base = found
        while not self.take("]"):
            if self.take("+"):
                offset += self.integer()
            elif self.take("-"):
                offset -= self.integer()
            elif self.take(","):
                more = (*more, self.operand(names))
            else:
                token = self.next()
                raise PtxError(f"line {token.line}: {token.text!r} is not part of an address")
        return Address(base, offset, more)


def _number_bytes(text: str, size: int) -> bytes:
    if text[:2] in ("0f", "0F", "0d", "0D"):
        return int(text[2:], 16).to_bytes(size, "little")
    return (int(text.rstrip("U"), 0) & ((1 << 8 * size) - 1)).to_bytes(size, "little")
