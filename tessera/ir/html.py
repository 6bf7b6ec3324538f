"""How arrays and programs look in a notebook: HTML, with all text escaped.

Colors are readable on light and on dark backgrounds; there are no style sheets and no scripts, so
that what is shown looks the same wherever a notebook is kept.
"""

from __future__ import annotations

import html
import re
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np

Array: TypeAlias = "np.ndarray[Any, Any]"

EDGE = 5
"""A row of numbers that is longer than twice this and 2 shows so many at each end."""

COLORS = {
    "comment": "#7f7f7f",
    "text": "#3a8a3a",
    "function": "#b5651d",
    "op": "#2f6fd0",
    "type": "#1f8f8f",
    "word": "#a03fb0",
}
"""The color of each kind of token; others have that of the page."""

_TOKENS = re.compile(
    r"(?P<comment>//[^\n]*)"
    r'|(?P<text>"(?:[^"\\]|\\.)*")'
    r"|(?P<function>@[\w.$-]+)"
    r"|(?P<op>\b(?:graph|schedule|tile|target)\.\w+)"
    r"|(?P<type>\b(?:buf|mem|tile|view|vec|ptr)(?=<)"
    r"|\b(?:[iuf]\d+\w*|bf16|c64|c128|bool)\b(?=[\[\]>,*)]))"
    r"|(?P<word>^\s*(?:func|return|yield)\b)",
    re.MULTILINE,
)


def highlight(text: str) -> str:
    """A program's text as HTML.

    >>> highlight('graph.exp(%x) "<b>"').partition(">")[2].partition(" ")[0]
    '<span'
    """
    parts: list[str] = []
    end = 0
    for match in _TOKENS.finditer(text):
        parts.append(html.escape(text[end : match.start()]))
        color = COLORS[match.lastgroup or ""]
        parts.append(f'<span style="color:{color}">{html.escape(match[0])}</span>')
        end = match.end()
    parts.append(html.escape(text[end:]))
    return f'<pre style="line-height:1.3;overflow-x:auto">{"".join(parts)}</pre>'


def show_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Rows of text as HTML.

    >>> show_table(["a"], [["<1>"]]).count("<td")
    1
    """
    style = 'style="text-align:left;white-space:pre;padding:0 1em 0 0"'
    lines = [[f"<th {style}>{html.escape(cell)}</th>" for cell in head]]
    lines += [[f"<td {style}>{html.escape(cell)}</td>" for cell in row] for row in rows]
    return "<table>" + "".join([f"<tr>{''.join(line)}</tr>" for line in lines]) + "</table>"


def show_array(title: str, data: Array) -> str:
    """An array's numbers as a table below a title: one or two dims, and of more the first ones."""
    head = f"<div><code>{html.escape(title)}</code></div>"
    if not data.size:
        return head
    note = ""
    if data.ndim > 2:
        first = ", ".join(["0"] * (data.ndim - 2))
        note = f"<div>the first matrix, [{first}, :, :]</div>"
        data = data[(0,) * (data.ndim - 2)]
    rows = _shown(data.shape[0]) if data.ndim == 2 else [0]
    columns = _shown(data.shape[-1]) if data.ndim else [0]
    grid = np.atleast_2d(data)
    lines = [
        "".join([_cell(None if i is None or j is None else grid[i, j]) for j in columns])
        for i in rows
    ]
    table = "".join([f"<tr>{line}</tr>" for line in lines])
    return f"{head}{note}<table>{table}</table>"


def _shown(size: int) -> Sequence[int | None]:
    """The places along an axis that are shown; None where some are left out."""
    if size <= 2 * EDGE + 2:
        return range(size)
    return [*range(EDGE), None, *range(size - EDGE, size)]


def _cell(value: Any) -> str:
    if value is None:
        return "<td>&#8943;</td>"
    number = value.item()
    text = f"{number:.6g}" if isinstance(number, (float, complex)) else str(number)
    return f'<td style="text-align:right">{html.escape(text)}</td>'
