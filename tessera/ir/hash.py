"""The content hash: what a function is, apart from names and locations."""

from __future__ import annotations

import hashlib

from tessera.ir.core import Func, Module
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
