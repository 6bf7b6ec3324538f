"""The pages of the documentation run as written, and print what they say they print.

The Python blocks of a page run in order in one namespace. A `text` block that follows one holds
what it prints; `...` in it stands for anything, and numbers of IR values are not compared.
`TESSERA_BLESS=1` rewrites those that differ.
"""

from __future__ import annotations

import contextlib
import io
import linecache
import os
import re
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType

import pytest

from tessera.ir.core import Op

DOCS = Path(__file__).resolve().parent.parent / "docs"
PAGES = sorted(DOCS.glob("*.md"))
BLOCK = re.compile(
    r"^```python\n(.*?)^```\n(?:\n*^```text\n(.*?)^```\n)?", re.DOTALL | re.MULTILINE
)


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[ModuleType]:
    """The module that a page's blocks make; the ops that it declares are forgotten afterwards."""
    made = ModuleType("example")
    monkeypatch.setitem(sys.modules, "example", made)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TESSERA_CACHE", raising=False)
    yield made
    for name, cls in list(Op.registry.items()):
        if cls.__module__ == "example":
            del Op.registry[name]
    linecache.checkcache()


def run(source: str, module: ModuleType, before: str) -> str:
    """What a block prints; its lines are numbered as in a file of all blocks."""
    whole = before + source
    name = os.path.abspath("example.py")
    # Messages show lines of the user's source.
    linecache.cache[name] = (len(whole), None, whole.splitlines(keepends=True), name)
    code = compile("\n" * before.count("\n") + source, name, "exec", dont_inherit=True)
    with contextlib.redirect_stdout(io.StringIO()) as out, ThreadPoolExecutor(1) as thread:
        # On a thread, messages about the user's mistakes show no frame of this file.
        thread.submit(exec, code, vars(module)).result()
    return "\n".join([line.rstrip() for line in out.getvalue().splitlines()]) + "\n"


def fits(expected: str, found: str) -> bool:
    expected, found = [re.sub(r"%(v?)\d+", r"%\1", text) for text in (expected, found)]
    pattern = ".*?".join([re.escape(part) for part in expected.split("...")])
    return re.fullmatch(pattern, found, re.DOTALL) is not None


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_page_runs(page: Path, module: ModuleType) -> None:
    text = page.read_text()
    before, changes = "", list[tuple[int, int, str]]()
    for block in BLOCK.finditer(text):
        source, expected = block.groups()
        line = text.count("\n", 0, block.start()) + 1
        try:
            found = run(source, module, before)
        except Exception as error:
            error.add_note(f"in the block at docs/{page.name}:{line}")
            raise
        before += source
        if expected is None or fits(expected, found):
            continue
        if os.environ.get("TESSERA_BLESS") != "1":
            assert found == expected, f"docs/{page.name}:{line}"
        changes.append((*block.span(2), found))
    if changes:
        page.write_text(changed(text, changes))


def changed(text: str, changes: list[tuple[int, int, str]]) -> str:
    """The text with other words from a place to another, the places in order."""
    for start, end, words in reversed(changes):
        text = text[:start] + words + text[end:]
    return text


def test_only_what_is_printed_is_rewritten() -> None:
    text = "```python\nprint(1)\n```\n\n```text\n```\n" * 2
    spans = [block.span(2) for block in BLOCK.finditer(text)]
    found = changed(text, [(*span, f"{k}\n") for k, span in enumerate(spans)])
    blocks = [f"```python\nprint(1)\n```\n\n```text\n{k}\n```\n" for k in range(2)]
    assert found == "".join(blocks)


def test_every_page_is_listed_and_every_link_leads_somewhere() -> None:
    index = (DOCS / "index.md").read_text()
    for page in PAGES:
        assert page.name == "index.md" or f"({page.name})" in index
        for link in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text()):
            assert (page.parent / link).exists(), f"docs/{page.name}: {link}"
