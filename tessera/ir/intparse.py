"""The text form of integer expressions, read back: ``parse(str(e)) is e``.

sum     = product (("+" | "-") product)*
product = factor (("*" | "//" | "%") factor)*
factor  = "-" factor | int | name | "(" sum ")" | ("min" | "max") "(" sum ("," sum)* ")"
"""

from __future__ import annotations

import re

from tessera.ir.intnode import Dim, add, floordiv, maximum, minimum, mod, mul, sym

# `->` and `**` are no operators here, so that an expression ends before an arrow
_TOKEN = re.compile(r"\s*(?:(\d+)|(\$\w+|[^\W\d]\w*)|(//|-(?!>)|\*(?!\*)|[+%(),]))")


class _Reader:
    """Tokens of ``text``; ``end`` is where the last accepted token ends."""

    def __init__(self, text: str, pos: int) -> None:
        self.text = text
        self.end = pos
        self._next = _TOKEN.match(text, pos)

    def peek(self, group: int) -> str | None:
        return self._next[group] if self._next else None

    def advance(self) -> None:
        assert self._next is not None
        self.end = self._next.end()
        self._next = _TOKEN.match(self.text, self.end)

    def accept(self, *operators: str) -> str | None:
        found = self.peek(3)
        if found not in operators:
            return None
        self.advance()
        return found

    def expect(self, operator: str) -> None:
        if not self.accept(operator):
            raise self.error(repr(operator))

    def error(self, wanted: str) -> ValueError:
        rest = self.text[self.end :]
        column = len(self.text) - len(rest.lstrip()) + 1
        return ValueError(f"index expression {self.text!r}, column {column}: expected {wanted}")

    def sum(self) -> Dim:
        value = self.product()
        while sign := self.accept("+", "-"):
            value = add(value, self.product(), 1 if sign == "+" else -1)
        return value

    def product(self) -> Dim:
        value = self.factor()
        while operator := self.accept("*", "//", "%"):
            apply = {"*": mul, "//": floordiv, "%": mod}[operator]
            value = apply(value, self.factor())
        return value

    def factor(self) -> Dim:
        if self.accept("-"):
            return -self.factor()
        if self.accept("("):
            value = self.sum()
            self.expect(")")
            return value
        number, name = self.peek(1), self.peek(2)
        if number is None and name is None:
            raise self.error("a number, a name, '-' or '('")
        self.advance()
        if number is not None:
            return int(number)
        assert name is not None
        return self.extremum(name) if name in ("min", "max") else sym(name)

    def extremum(self, name: str) -> Dim:
        self.expect("(")
        args = [self.sum()]
        while self.accept(","):
            args.append(self.sum())
        self.expect(")")
        return minimum(*args) if name == "min" else maximum(*args)


def parse_prefix(text: str, pos: int = 0) -> tuple[Dim, int]:
    """The expression that starts at ``pos``, and the position behind its last character.

    Stops before the first character that cannot continue it, such as ``,`` ``]`` ``}`` ``:`` ``)``.

    Raises:
        ValueError: no expression starts there, or one starts and breaks off.
    """
    reader = _Reader(text, pos)
    return reader.sum(), reader.end


def parse(text: str) -> Dim:
    """The expression that ``text`` spells; the inverse of ``str``.

    Raises:
        ValueError: the text is not an expression, or goes on behind one.
    """
    reader = _Reader(text, 0)
    value = reader.sum()
    if text[reader.end :].strip():
        raise reader.error("an operator or the end")
    return value
