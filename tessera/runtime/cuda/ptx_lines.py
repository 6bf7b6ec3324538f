"""Lines of a PTX text, and the places in the user's program that they come from."""

from __future__ import annotations

import re

from tessera.ir.lazy import cached_property

_FILE = re.compile(r'^\s*\.file\s+(\d+)\s+"((?:[^"\\]|\\.)*)"')
_LOC = re.compile(r"^\s*\.loc\s+(\d+)\s+(\d+)\s+(\d+)")
_CONTEXT = 1


class PtxLines:
    """A text by lines, which count from 1.

    >>> PtxLines('.file 1 "a.py"\\n.loc 1 7 3\\nret;').place(3)
    ('a.py', 7, 2)
    """

    def __init__(self, text: str) -> None:
        self._text = text

    @cached_property
    def lines(self) -> list[str]:
        """The lines."""
        return self._text.split("\n")

    @cached_property
    def _files(self) -> dict[str, str]:
        matches = filter(None, map(_FILE.match, self.lines))
        return {match[1]: match[2].replace('\\"', '"') for match in matches}

    def place(self, line: int) -> tuple[str, int, int | None] | None:
        """File, line and column (from 0) of the user's program, by the last ``.loc`` before."""
        for text in reversed(self.lines[: max(line - 1, 0)]):
            if (match := _LOC.match(text)) and match[1] in self._files:
                column = int(match[3])
                return self._files[match[1]], int(match[2]), column - 1 if column else None
            if ".entry" in text:
                return None
        return None

    def show(self, line: int, text: str) -> str:
        """A line between its neighbours, and a text below it; empty if there is no such line."""
        if not 1 <= line <= len(self.lines):
            return ""
        first = max(1, line - _CONTEXT)
        last = min(len(self.lines), line + _CONTEXT)
        width = len(str(last))
        shown = [f"PTX line {line}:"]
        for number in range(first, last + 1):
            shown.append(f"  {number:>{width}} | {self.lines[number - 1]}")
            if number == line:
                shown.append(f"  {' ' * width} ^ {text}")
        return "\n".join(shown)
