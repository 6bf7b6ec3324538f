"""Work as a number that is the same each time, where a clock would measure what else a machine
does."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import CodeType, FrameType
from typing import Any, TypeVar

import pytest

from tessera import eager

T = TypeVar("T")


def calls(fn: Callable[[], T], code: CodeType | None = None) -> tuple[int, T]:
    """How many functions of Python, or how often one of them, is called while `fn` runs, and what
    it gives."""
    count = 0

    def note(frame: FrameType, event: str, arg: object) -> None:
        nonlocal count
        count += event == "call" and (code is None or frame.f_code is code)

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        found = fn()
    finally:
        sys.setprofile(before)
    return count, found


def names_of_compiled(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Where the names of programs that eager engines compile stand from now on."""
    names: list[str] = []
    lower = eager.lower_graph

    def noted(graph: Any, *args: Any) -> Any:
        names.append(graph.name)
        return lower(graph, *args)

    monkeypatch.setattr(eager, "lower_graph", noted)
    return names


def forget(fn: Any) -> None:
    """Lets a marked function be looked at anew: other tests may have called it where another engine
    computes, or with so many shapes that there is no room for more."""
    fn.notes = None
    fn.known_by(None)
