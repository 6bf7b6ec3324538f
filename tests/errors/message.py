"""Runs a user's program that makes a mistake, and returns the message that the user sees."""

from __future__ import annotations

import linecache
import textwrap
import traceback

import tessera as ts
from tessera.errors import PACKAGE_FOLDER, TesseraError

FILE = "user.py"


def message(program: str) -> str:
    """The name and the text of the error that a program ends with.

    The program is run as `user.py`, and has `ts` already. No frame of Tessera may show in the
    traceback, and no other error.
    """
    source = textwrap.dedent(program).lstrip("\n")
    linecache.cache[FILE] = (len(source), None, source.splitlines(keepends=True), FILE)
    try:
        exec(compile(source, FILE, "exec"), {"ts": ts, "__name__": "user"})
    except TesseraError as error:
        shown = traceback.format_exc()
        text = f"{type(error).__name__}: {error}"
    else:
        raise AssertionError("the program has no error")
    assert PACKAGE_FOLDER not in shown
    assert shown.count("Traceback (most recent call last)") == 1
    return text


def expect(program: str, text: str) -> None:
    """Checks that a program ends with an error that has exactly this text."""
    found = message(program)
    wanted = textwrap.dedent(text).strip("\n")
    assert found == wanted, found
