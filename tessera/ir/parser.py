"""The one parser of all layers: the inverse of the printer, derived from the same declarations.

The result types in the text are not trusted: each op infers its own and the parser compares.
"""

from __future__ import annotations

import inspect
import re
import types
import typing
from collections.abc import Callable
from enum import Enum
from typing import Any

from tessera.dtypes import DType, dtype_of
from tessera.errors import ParseError, TesseraError
from tessera.ir import intexpr
from tessera.ir import loc as _loc
from tessera.ir.core import Block, Func, Module, Op, Value
from tessera.ir.intexpr import Dim, IntExpr
from tessera.ir.numerics import parse_modifiers
from tessera.ir.opdef import FieldKind, attr_hints
from tessera.ir.scalar import ScalarFn, scalar
from tessera.ir.types import ScalarType, TensorType, Type

_SPACE = re.compile(r"(?:\s|//[^\n]*)*")
_WORD = re.compile(r"[A-Za-z_][A-Za-z_0-9]*(?:\.[A-Za-z_0-9]+)*")
_NUMBER = re.compile(r"-?(?:inf|nan|0x[0-9a-fA-F]+|\d+(?:\.\d*)?(?:[eE][+-]?\d+)?)")
_VALUE = re.compile(r"%[A-Za-z_0-9$]+")
_ESCAPE = re.compile(r"\\(.)")
_STRING = re.compile(r'"((?:[^"\\]|\\.)*)"')


class Parser:
    """Parses one text. `locations` chooses what ops get: the unknown location, always."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.pos: int = 0
        self.scopes: list[dict[str, Value]] = []

    # --- tokens ---

    def error(self, message: str) -> ParseError:
        """An error at the current position, with the line and a caret."""
        line = self.text.count("\n", 0, self.pos) + 1
        start = self.text.rfind("\n", 0, self.pos) + 1
        end = self.text.find("\n", self.pos)
        source = self.text[start : end if end >= 0 else len(self.text)]
        caret = " " * (self.pos - start) + "^"
        return ParseError(f"line {line}: {message}\n    {source}\n    {caret}")

    def error_at(self, pos: int, message: str) -> ParseError:
        """An error at an earlier position."""
        self.pos = pos
        return self.error(message)

    def skip(self) -> None:
        """Skips space and comments."""
        match = _SPACE.match(self.text, self.pos)
        if match is not None:
            self.pos = match.end()

    def peek(self, token: str) -> bool:
        """Whether the text goes on with `token`."""
        self.skip()
        return self.text.startswith(token, self.pos)

    def accept(self, token: str) -> bool:
        """Consumes `token` if it is next."""
        if self.peek(token):
            self.pos += len(token)
            return True
        return False

    def expect(self, token: str) -> None:
        """Consumes `token` or fails."""
        if not self.accept(token):
            raise self.error(f"expected {token!r}")

    def match(self, pattern: re.Pattern[str], what: str) -> str:
        """Consumes a pattern or fails."""
        self.skip()
        match = pattern.match(self.text, self.pos)
        if match is None:
            raise self.error(f"expected {what}")
        self.pos = match.end()
        return match.group(0)

    def word(self) -> str:
        """A word, possibly dotted."""
        return self.match(_WORD, "a word")

    def string(self) -> str:
        """A quoted string."""
        raw = self.match(_STRING, "a string")[1:-1]
        return _ESCAPE.sub(lambda found: "\n" if found[1] == "n" else found[1], raw)

    def dim(self) -> Dim:
        """An index expression."""
        self.skip()
        try:
            value, self.pos = intexpr.parse_prefix(self.text, self.pos)
        except (ValueError, SyntaxError) as err:
            raise self.error(f"expected an index expression: {err}") from None
        return value

    def integer(self) -> int:
        """A constant integer."""
        value = self.dim()
        if not isinstance(value, int):
            raise self.error("expected an integer")
        return value

    def number(self) -> bool | int | float | complex:
        """A number literal; its form says its type."""
        if self.peek("true") or self.peek("false"):
            return self._bool()
        if self.peek("("):
            return self._complex()
        text = self.match(_NUMBER, "a number")
        is_int = not any(c in text for c in ".en") or text.startswith("0x")
        return int(text, 0) if is_int else float(text)

    def sequence(self, close: str, item: Callable[[], Any]) -> list[Any]:
        """Items separated by commas up to `close`, which is consumed."""
        items: list[Any] = []
        while not self.accept(close):
            if items:
                self.expect(",")
            items.append(item())
        return items

    # --- types and attributes ---

    def dtype(self) -> DType:
        """A dtype name."""
        name = self.word()
        try:
            return dtype_of(name)
        except TesseraError:
            raise self.error(f"unknown dtype {name!r}") from None

    def type(self) -> Type:
        """A type."""
        start = self.pos
        word = self.word()
        known = Type.registry.get(word)
        if known is not None:
            return known.parse(self)
        self.pos = start
        dtype = self.dtype()
        weak = self.text.startswith("*[", self.pos)
        if weak:
            self.pos += 1
        if not self.text.startswith("[", self.pos):
            return ScalarType(dtype)
        self.expect("[")
        shape = tuple(self.sequence("]", self.dim))
        policy = parse_modifiers(self) if self.accept("@") else None
        return TensorType(shape, dtype, weak, policy)

    def attr(self, hint: Any) -> Any:
        """An attribute value, read as the declared annotation says."""
        origin = typing.get_origin(hint)
        if origin in (typing.Union, types.UnionType):
            return self._union(typing.get_args(hint))
        if origin is tuple:
            return self._tuple(typing.get_args(hint))
        if hint in (tuple,):
            return self._tuple((Dim, ...))
        readers: dict[Any, Callable[[], Any]] = {
            bool: self._bool,
            int: self.integer,
            float: self._float,
            complex: self._complex,
            str: self.string,
            DType: self.dtype,
            IntExpr: self.dim,
            ScalarFn: lambda: scalar(self.word()),
        }
        reader = readers.get(hint)
        if reader is not None:
            return reader()
        if inspect.isclass(hint):
            if issubclass(hint, Enum):
                return hint(self.word())
            if issubclass(hint, Type):
                return self.type()
        parse: Callable[[Parser], Any] | None = getattr(hint, "parse", None)
        if parse is not None:
            return parse(self)
        raise self.error(f"attributes of type {hint} have no text form")

    def _union(self, options: tuple[Any, ...]) -> Any:
        if type(None) in options and self.peek("none"):
            self.pos += 4
            return None
        rest = tuple(o for o in options if o is not type(None))
        if rest and set(rest) <= {bool, int, float, complex}:
            return self.number()
        if IntExpr in rest and set(rest) <= {int, IntExpr}:
            return self.dim()
        if len(rest) == 1:
            return self.attr(rest[0])
        start = self.pos
        for option in rest:
            try:
                return self.attr(option)
            except (TesseraError, ValueError, KeyError):
                self.pos = start
        raise self.error(f"expected one of {rest}")

    def _tuple(self, args: tuple[Any, ...]) -> tuple[Any, ...]:
        self.expect("[")
        if len(args) == 2 and args[1] is Ellipsis:
            return tuple(self.sequence("]", lambda: self.attr(args[0])))
        position = iter(args)
        return tuple(self.sequence("]", lambda: self.attr(next(position))))

    def _bool(self) -> bool:
        word = self.word()
        if word not in ("true", "false"):
            raise self.error("expected true or false")
        return word == "true"

    def _float(self) -> float:
        return float(self.match(_NUMBER, "a number"))

    def _complex(self) -> complex:
        self.expect("(")
        real = self._float()
        self.expect(",")
        imag = self._float()
        self.expect(")")
        return complex(real, imag)

    # --- values, ops, blocks ---

    def value(self) -> Value:
        """A use of a value."""
        name = self.match(_VALUE, "a value")
        for scope in reversed(self.scopes):
            if name in scope:
                return scope[name]
        raise self.error(f"{name} is not defined")

    def define(self, name: str, value: Value) -> None:
        """Binds a name in the innermost scope."""
        if name in self.scopes[-1]:
            raise self.error(f"{name} is defined twice")
        hint = name[1:]
        value.name = "" if hint.isdigit() else hint
        self.scopes[-1][name] = value

    def args(self) -> list[Value]:
        """Block arguments; binds them."""

        def one() -> Value:
            name = self.match(_VALUE, "a block argument")
            self.expect(":")
            value = Value(self.type())
            self.define(name, value)
            return value

        return self.sequence(")", one)

    def op(self) -> Op:
        """One op."""
        names: list[str] = []
        if self.peek("%"):
            names.append(self.match(_VALUE, "a result"))
            while self.accept(","):
                names.append(self.match(_VALUE, "a result"))
            self.expect("=")
        self.skip()
        start = self.pos
        cls = Op.registry.get(self.word())
        if cls is None:
            raise self.error_at(start, "unknown op")
        fields = self._fields(cls)
        stated = self._result_types()
        for field in cls.fields:
            if field.kind is FieldKind.REGION:
                fields[field.name] = self._region(field.name)
        try:
            op = cls(loc=_loc.Loc.unknown, **fields)
        except (TesseraError, TypeError) as err:
            text = str(err).removeprefix(f"{cls.name}: ")
            raise self.error_at(start, f"{cls.name}: {text}") from None
        found = tuple(v.type for v in op.results)
        if found != stated:
            said, meant = (", ".join(map(str, types)) or "no result" for types in (stated, found))
            message = f"{cls.name}: the text says {said}, but the op infers {meant}"
            raise self.error_at(start, message)
        if len(names) != len(op.results):
            raise self.error(f"{cls.name} has {len(op.results)} results, {len(names)} are named")
        for name, value in zip(names, op.results, strict=True):
            self.define(name, value)
        return op

    def _fields(self, cls: type[Op]) -> dict[str, Any]:
        fields: dict[str, Any] = {}
        self.expect("(")
        first = True
        for field in cls.fields:
            if field.kind not in (FieldKind.OPERAND, FieldKind.OPERANDS):
                continue
            if not first:
                self.expect(",")
            first = False
            if field.kind is FieldKind.OPERAND:
                fields[field.name] = self.value()
            else:
                self.expect("[")
                fields[field.name] = tuple(self.sequence("]", self.value))
        self.expect(")")
        if self.accept("{"):
            hints = attr_hints(cls)

            def one() -> None:
                key = self.word()
                if key not in hints:
                    raise self.error(f"{cls.name} has no attribute {key!r}")
                self.expect("=")
                fields[key] = self.attr(hints[key])

            self.sequence("}", one)
        return fields

    def _result_types(self) -> tuple[Type, ...]:
        if not self.accept(":"):
            return ()
        if self.accept("("):
            return tuple(self.sequence(")", self.type))
        return (self.type(),)

    def _region(self, name: str) -> Block:
        word = self.word()
        if word != name:
            raise self.error(f"expected region {name!r}")
        self.scopes.append({})
        self.expect("(")
        args = self.args()
        self.expect("{")
        block = self._body(args, "yield")
        self.scopes.pop()
        return block

    def _body(self, args: list[Value], word: str) -> Block:
        ops: list[Op] = []
        pattern = re.compile(rf"{word}\b")
        while True:
            self.skip()
            if pattern.match(self.text, self.pos):
                self.pos += len(word)
                outputs: list[Value] = []
                while self.peek("%") or (outputs and self.accept(",")):
                    outputs.append(self.value())
                self.expect("}")
                return Block(args, ops, outputs)
            ops.append(self.op())

    def func(self) -> Func:
        """A function."""
        self.expect("func")
        self.expect("@")
        name = self.word()
        dims = [str(d) for d in self.sequence("]", self.dim)] if self.accept("[") else []
        self.scopes.append({})
        self.expect("(")
        args = self.args()
        attrs: dict[str, str] = {}
        while not self.accept("{"):
            key = self.word()
            self.expect("=")
            attrs[key] = self.string()
        body = self._body(args, "return")
        self.scopes.pop()
        return Func(name, body, dims, attrs)

    def module(self) -> Module:
        """Functions up to the end of the text; the last one is the entry unless one is called main.
        """
        funcs: dict[str, Func] = {}
        self.skip()
        while self.pos < len(self.text):
            start = self.pos
            func = self.func()
            if func.name in funcs:
                raise self.error_at(start, f"@{func.name} is defined twice")
            funcs[func.name] = func
            self.skip()
        if not funcs:
            raise self.error("expected a function")
        return Module(funcs, "main" if "main" in funcs else next(reversed(funcs)))


def parse_func(text: str) -> Func:
    """Parses one function; nothing may follow it."""
    parser = Parser(text)
    func = parser.func()
    parser.skip()
    if parser.pos != len(text):
        raise parser.error("text after the function")
    return func


def parse_module(text: str) -> Module:
    """Parses a module."""
    return Parser(text).module()


def parse_type(text: str) -> Type:
    """Parses one type."""
    return Parser(text).type()
