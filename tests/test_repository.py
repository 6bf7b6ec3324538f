"""What the files of the repository may contain, and how long they may be."""

from __future__ import annotations

import ast
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

MAX_LINES = 1200
MAX_PACKAGE_LINES = 600
MAX_FUNCTION_LINES = 100

# Package files that are tables (a row an op, an instruction, a machine) and so may be longer.
TABLES: set[str] = set()

# A path of one machine means nothing on another. The words are put together here so that this file
# has none of them.
MACHINE_FOLDERS = "|".join(["work", "tmp", "root"])
# A package index is the business of whoever installs; naming one here would fix it for everybody.
INDEX_HOSTS = "|".join(
    [r"pypi\.org", r"pythonhosted\.org", r"registry\.npmjs", r"proxy\.golang", r"deb\.debian\.org"]
)
FORBIDDEN = re.compile(rf"(?<![\w.~}})-])/(?:{MACHINE_FOLDERS})(?![\w.-])|{INDEX_HOSTS}")


def tracked_files() -> list[Path]:
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if listed.returncode != 0:
        return []
    return [ROOT / name for name in listed.stdout.split("\0") if name and (ROOT / name).is_file()]


@pytest.fixture(scope="module")
def texts() -> dict[str, str]:
    """Path to content, for the tracked files that are text."""
    found = {}
    for path in tracked_files():
        try:
            found[path.relative_to(ROOT).as_posix()] = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue
    if not found:
        pytest.skip("no list of tracked files: this is not a git checkout")
    return found


def test_no_text_that_holds_on_one_machine_only(texts: dict[str, str]) -> None:
    found = [
        f"{name}:{number}: {line.strip()}"
        for name, text in texts.items()
        for number, line in enumerate(text.splitlines(), 1)
        if FORBIDDEN.search(line)
    ]
    assert not found, "\n".join(found)


def test_files_are_of_readable_length(texts: dict[str, str]) -> None:
    found = []
    for name, text in texts.items():
        is_prose = name.startswith("tessera/") and name not in TABLES
        limit = MAX_PACKAGE_LINES if is_prose else MAX_LINES
        if (lines := text.count("\n")) > limit:
            found.append(f"{name}: {lines} lines, the limit is {limit}")
    assert not found, "\n".join(found)


def test_the_list_of_tables_is_current(texts: dict[str, str]) -> None:
    short = [name for name in TABLES if texts.get(name, "").count("\n") <= MAX_PACKAGE_LINES]
    assert not short, f"no longer need their place in TABLES: {short}"


def test_functions_are_of_readable_length(texts: dict[str, str]) -> None:
    found = []
    for name, text in texts.items():
        if not (name.startswith("tessera/") and name.endswith(".py")):
            continue
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                lines = (node.end_lineno or node.lineno) - node.lineno + 1
                if lines > MAX_FUNCTION_LINES:
                    found.append(f"{name}:{node.lineno}: {node.name} has {lines} lines")
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    ("line", "is_forbidden"),
    [
        ("cache = '/" + "tmp/tessera'", True),
        ("cd /" + "work", True),
        ("index https://" + "pypi" + ".org/simple", True),
        ("a bound on sqrt/" + "root of x", False),
        ("docs/" + "work/notes.md", False),
        ("/" + "tmpfiles", False),
        ("$HOME/" + "work", False),
    ],
)
def test_the_pattern(line: str, is_forbidden: bool) -> None:
    assert bool(FORBIDDEN.search(line)) == is_forbidden
