"""Content hashes: what a function is, apart from names and locations."""

from __future__ import annotations

import hashlib
from typing import Any

from tessera.ir.core import Func, Module
from tessera.ir.hostcall import HostFunction, LibraryFunction
from tessera.ir.printer import Printer

FORMAT_VERSION = 1
"""Raise it when the text form or the meaning of an op changes: all cached artifacts of older
versions are then ignored.
"""


def content_hash(item: Func | Module) -> str:
    """The hash (hex SHA-256) of the canonical text: values numbered in order, no locations, format
    version first.
    """
    printer = Printer(canonical=True)
    if isinstance(item, Func):
        text = printer.func(item)
    else:
        text = f"entry @{item.main}\n{printer.module(item)}"
    return hashlib.sha256(f"tessera-ir {FORMAT_VERSION}\n{text}".encode()).hexdigest()


def portable_hash(func: Func) -> tuple[str, list[HostFunction]]:
    """A hash that means the same in every process, and the functions of the host that are called.

    In the canonical text such a function stands as a number that counts what this process has made.
    Here it is its place in the list, which is in the order of first calls.
    """
    printer = _Portable()
    text = f"portable tessera-ir {FORMAT_VERSION}\n{printer.func(func)}"
    return hashlib.sha256(text.encode()).hexdigest(), list(printer.functions)


class _Portable(Printer):
    """The canonical printer, with functions of the host numbered by itself."""

    def __init__(self) -> None:
        super().__init__(canonical=True)
        self.functions: dict[HostFunction, int] = {}

    def attr(self, value: Any) -> str:
        """An attribute as text."""
        if isinstance(value, HostFunction) and not isinstance(value, LibraryFunction):
            return f"host {self.functions.setdefault(value, len(self.functions))}"
        return super().attr(value)
