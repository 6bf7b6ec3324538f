"""Work as a number that is the same each time, where a clock would measure what else a machine
does."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import TypeVar

T = TypeVar("T")


def calls(fn: Callable[[], T]) -> tuple[int, T]:
    """How many functions of Python are called while `fn` runs, and what it gives."""
    count = 0

    def note(frame: FrameType, event: str, arg: object) -> None:
        nonlocal count
        count += event == "call"

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        found = fn()
    finally:
        sys.setprofile(before)
    return count, found
