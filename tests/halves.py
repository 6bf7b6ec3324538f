"""The two halves of a test that has many cases and interprets programs at every level.

Interpreters check each access to memory, and so does the code of `make checked`: one half of the
cases is interpreted, the other runs checked, at the highest level that the machine has. Both are
compiled and run as they are; --long does all with all.
"""

from __future__ import annotations

import collections
import os
import types
import zlib
from collections.abc import Iterator, Sequence

import pytest

CHECKED = bool(os.environ.get("TESSERA_DEBUG_BOUNDS"))

MANY = 4
"""A test with so many cases is divided."""

_IS_CHECKED = pytest.StashKey[bool]()


class Current:
    """What holds for the test that runs.

    Attributes:
        interpreted: whether its programs run in interpreters.
    """

    interpreted = True


def divide(items: Sequence[pytest.Item]) -> None:
    """Divides cases by their names alone, so that each is always in the same half."""
    names = [item.nodeid.partition("[")[0] for item in items]
    counts = collections.Counter(names)
    known: dict[types.FunctionType, bool] = {}
    for item, name in zip(items, names, strict=True):
        if counts[name] >= MANY and _interprets(getattr(item, "function", None), known):
            item.stash[_IS_CHECKED] = zlib.crc32(item.nodeid.encode()) % 2 == 0


def is_checked(item: pytest.Item) -> bool:
    """Whether a test runs where memory is checked."""
    return item.stash.get(_IS_CHECKED, True)


def is_interpreted(item: pytest.Item) -> bool:
    """Whether a test's programs run in interpreters. No check of memory changes what they do."""
    return not CHECKED and not item.stash.get(_IS_CHECKED, False)


def _interprets(fn: object, known: dict[types.FunctionType, bool]) -> bool:
    """Whether a function of the tests, or one that it names, asks what `Current` says."""
    if not isinstance(fn, types.FunctionType) or not _is_ours(fn.__module__):
        return False
    if fn not in known:
        known[fn] = False
        names = set(_names(fn.__code__))
        used = [fn.__globals__.get(name) for name in names]
        modules = [m for m in used if isinstance(m, types.ModuleType) and _is_ours(m.__name__)]
        used += [getattr(module, name, None) for module in modules for name in names]
        known[fn] = any(f is Current or _interprets(f, known) for f in used)
    return known[fn]


def _is_ours(module: str) -> bool:
    return module.startswith("tests.")


def _names(code: types.CodeType) -> Iterator[str]:
    yield from code.co_names
    for inner in code.co_consts:
        if isinstance(inner, types.CodeType):
            yield from _names(inner)
