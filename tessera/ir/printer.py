"""The one printer of all layers. Everything it knows about an op comes from the op's declaration.

    %r = tile.dot(%a, %b, %acc) {k=64} : tile<f32[4, 32]>

Operands stand in declaration order, variadic ones in brackets; attributes that hold their default
are left out; regions follow as `name(args) { ... }`.
"""

from __future__ import annotations

from enum import Enum
from typing import Any, cast

from tessera.dtypes import DType
from tessera.ir.core import Block, Func, Module, Op, Value
from tessera.ir.intexpr import Poly, Sym
from tessera.ir.opdef import FieldKind
from tessera.ir.scalar import ScalarFn

_ATTR = FieldKind.ATTR
_NUMBERS = frozenset({int, Poly, Sym})


def print_attr(value: Any) -> str:
    """One attribute value as text."""
    if type(value) in _NUMBERS:  # most of them
        return str(value)
    if isinstance(value, tuple):
        items = cast("tuple[Any, ...]", value)
        return "[" + ", ".join([print_attr(item) for item in items]) + "]"
    return _print_other(value)


def _print_other(value: Any) -> str:
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return repr(value)
    if isinstance(value, complex):
        return f"({value.real!r}, {value.imag!r})"
    if isinstance(value, str):
        return '"' + value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'
    if isinstance(value, Enum):
        return str(value.value)
    if isinstance(value, ScalarFn):
        return value.name
    if isinstance(value, DType):
        return str(value)
    return str(value)


class Printer:
    """Prints blocks with unique value names.

    Args:
        canonical: number values in order and drop name hints (the hashed form).
        locations: append `loc("file:line:col")` to ops.
    """

    def __init__(self, canonical: bool = False, locations: bool = False) -> None:
        self.canonical = canonical
        self.locations = locations
        self.names: dict[Value, str] = {}
        self.taken: set[str] = set()
        self.counter = 0

    def name(self, value: Value) -> str:
        """The unique name of a value, with its `%`."""
        known = self.names.get(value)
        if known is not None:
            return known
        if value.name and not self.canonical:
            text = value.name
            suffix = 0
            while text in self.taken:
                suffix += 1
                text = f"{value.name}_{suffix}"
        else:
            while str(self.counter) in self.taken:
                self.counter += 1
            text = str(self.counter)
            self.counter += 1
        self.taken.add(text)
        self.names[value] = f"%{text}"
        return self.names[value]

    def attr(self, value: Any) -> str:
        """An attribute as text."""
        return print_attr(value)

    def op_head(self, op: Op) -> str:
        """An op without its regions."""
        operands: list[str] = []
        attrs: list[str] = []
        store = op.__dict__
        for name, kind, default in op.layout:
            value = store[name]
            if kind is _ATTR:
                # What may not be left out has a default of a type of its own.
                if type(value) is not type(default) or value != default:
                    attrs.append(f"{name}={self.attr(value)}")
            elif kind is FieldKind.OPERAND:
                operands.append(self.name(value))
            elif kind is FieldKind.OPERANDS:
                operands.append("[" + ", ".join([self.name(v) for v in value]) + "]")
        results = ", ".join([self.name(v) for v in op.results])
        text = f"{results} = " if results else ""
        text += f"{op.name}({', '.join(operands)})"
        if attrs:
            text += " {" + ", ".join(attrs) + "}"
        if len(op.results) == 1:
            text += f" : {op.results[0].type}"
        elif op.results:
            text += " : (" + ", ".join([str(v.type) for v in op.results]) + ")"
        if self.locations:
            text += f' loc("{op.loc}")'
        return text

    def op(self, op: Op, indent: int = 0) -> list[str]:
        """An op as lines."""
        pad = "  " * indent
        lines = [pad + self.op_head(op)]
        if not op.regions:
            return lines
        regions = [f.name for f in op.fields if f.kind is FieldKind.REGION]
        for name, block in zip(regions, op.regions, strict=True):
            lines[-1] += f" {name}({self.args(block)}) {{"
            lines += self.block(block, indent + 1, "yield")
            lines.append(pad + "}")
        return lines

    def args(self, block: Block) -> str:
        """Block arguments with types."""
        return ", ".join([f"{self.name(a)}: {a.type}" for a in block.args])

    def block(self, block: Block, indent: int, word: str) -> list[str]:
        """The ops of a block and its outputs."""
        lines: list[str] = []
        for op in block.ops:
            lines += self.op(op, indent)
        outputs = ", ".join([self.name(v) for v in block.outputs])
        lines.append("  " * indent + (f"{word} {outputs}" if outputs else word))
        return lines

    def func(self, func: Func) -> str:
        """A function."""
        dims = "[" + ", ".join(func.dims) + "]" if func.dims else ""
        name = "f" if self.canonical else func.name
        attrs = "".join(f" {k}={print_attr(v)}" for k, v in sorted(func.attrs.items()))
        head = f"func @{name}{dims}({self.args(func.body)}){attrs} {{"
        return "\n".join([head, *self.block(func.body, 1, "return"), "}"])

    def module(self, module: Module) -> str:
        """A module: its functions in order, the entry last."""
        texts: list[str] = []
        for func in module.funcs.values():
            printer = Printer(self.canonical, self.locations)
            text = printer.func(func)
            if self.canonical:
                text = text.replace("func @f", f"func @{func.name}", 1)
            texts.append(text)
        return "\n\n".join(texts)


def print_func(func: Func, locations: bool = False) -> str:
    """A function as text."""
    return Printer(locations=locations).func(func)


def print_module(module: Module, locations: bool = False) -> str:
    """A module as text."""
    return Printer(locations=locations).module(module)


def print_op(op: Op) -> str:
    """One op as text (value names are local to the text)."""
    return "\n".join(Printer().op(op))
