"""Programs on disk, so that the next process neither lowers nor compiles what this one did.

The cache of objects spares LLVM's work, once the text for LLVM is there. What stands here spares
the passes as well: it finds the machine code of a program by the content of its Graph.

Invariants:

1. The key covers all that lowering reads: the Graph's canonical text (ops, types, attributes,
   constants, symbolic dims), the machine, the settings that code depends on, the versions of the
   libraries that fold constants and make code, and Tessera's own sources.
2. It covers nothing else. Names and places in the user's files are no part of it; a record has
   none, so whoever finds one takes them from the Graph that was just traced.
3. Functions of the host have no content. The key says which of a Graph's calls are of one function,
   and a record says which of the Graph's functions each call of the program is for.
4. What cannot be read back is as good as absent.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import sys
import time
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from tessera.config import config
from tessera.errors import TesseraError
from tessera.ir.core import Func
from tessera.ir.hash import portable_hash
from tessera.ir.hostcall import HostFunction, LibraryFunction
from tessera.ir.intexpr import Dim, parse
from tessera.ir.parser import parse_type
from tessera.runtime.cache import ObjectCache, default_cache
from tessera.runtime.codegen import llvm_version
from tessera.runtime.hostcall import CallSite
from tessera.schedule.types import BufType
from tessera.target.machine import Machine

FORMAT_VERSION = 3
"""Raise it when the form of records changes."""

# A source that is newer than this may not be what runs here.
_LOADED = time.time()


@dataclass(frozen=True)
class Record:
    """What a program needs to run, besides its Graph.

    Attributes:
        code: the keys of its machine code in the cache of objects, one a module.
        symbols: what the machine code exports.
        arena: bytes of scratch memory.
        release_gil: whether other threads of Python run meanwhile.
        shares_work: whether it uses the pool of threads.
        calls: what it calls back, in order.
        overwritten: for each output the donated input whose memory it takes.
    """

    code: tuple[str, ...]
    symbols: tuple[str, ...]
    arena: Dim
    release_gil: bool
    shares_work: bool
    calls: tuple[CallSite, ...]
    overwritten: tuple[int | None, ...]


class Store:
    """Where the record of one program is kept, by its key.

    Args:
        graph: the traced program.
        machine: the CPU.
        donated: the inputs whose memory it may write to.
    """

    def __init__(self, graph: Func, machine: Machine, donated: Sequence[int] = ()) -> None:
        self.cache: ObjectCache = default_cache("programs")
        version = None if self.cache.directory is None else code_version()
        self.key: str | None = None
        if version is not None:
            content, self.functions = portable_hash(graph)
            settings = (config.key(), tuple(donated))
            self.key = key_of(content, machine, settings, version)

    def get(self) -> Record | None:
        """The record, if there is one."""
        data = None if self.key is None else self.cache.get(self.key)
        if self.key is None or data is None:
            return None
        try:
            return _read(json.loads(data), self.functions)
        except (ValueError, KeyError, TypeError, IndexError, TesseraError):
            self.cache.remove(self.key)
            return None

    def put(self, record: Record) -> None:
        """Keeps a record, unless it calls functions that only this process has."""
        if self.key is not None:
            stored = _write(record, self.functions)
            if stored is not None:
                self.cache.put(self.key, json.dumps(stored).encode())


def key_of(content: str, machine: Machine, settings: Hashable, version: str) -> str:
    """The key that follows from the Graph's hash, the machine, the settings and the sources."""
    machine_text = _machine_text(machine)
    parts = (f"tessera program {FORMAT_VERSION}", version, machine_text, settings, content)
    return hashlib.sha256(repr(parts).encode()).hexdigest()


@functools.cache
def code_version() -> str | None:
    """What stands for everything that makes code of a Graph: Tessera's sources by their sizes and
    dates, and the versions of Python, NumPy, ml_dtypes and LLVM.

    None if a source changed since this process began: it may have loaded what was there before.
    """
    import ml_dtypes
    import numpy as np

    root = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    digest = hashlib.sha256(root.encode())
    try:
        for path, size, changed in _sources(root):
            if changed > _LOADED * 1e9:
                return None
            digest.update(f"{path} {size} {changed}\n".encode())
    except OSError:
        return None
    numpy, dtypes = np.__version__, ml_dtypes.__version__
    python = f"{sys.implementation.name} {sys.version}"
    return f"{digest.hexdigest()} {python} numpy {numpy} ml_dtypes {dtypes} llvm {llvm_version()}"


def _sources(root: str) -> list[tuple[str, int, int]]:
    """Path, size and time of change of each source file; their order is that of the paths."""
    found: list[tuple[str, int, int]] = []
    folders = [root]
    while folders:
        with os.scandir(folders.pop()) as entries:
            for entry in entries:
                if entry.name.endswith(".py"):
                    status = entry.stat()
                    found.append((entry.path, status.st_size, status.st_mtime_ns))
                elif entry.name != "__pycache__" and entry.is_dir():
                    folders.append(entry.path)
    if not found:
        raise FileNotFoundError(root)  # the package is no folder of sources
    return sorted(found)


@functools.cache
def _machine_text(machine: Machine) -> str:
    """Everything about a machine. A set has another order in each process."""
    parts: list[str] = []
    for field in fields(machine):
        value: object = getattr(machine, field.name)
        if isinstance(value, frozenset):
            value = sorted([str(item) for item in value])  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
        parts.append(f"{field.name}={value!r}")
    return " ".join(parts)


# --- records as JSON --------------------------------------------------------------------------


def _write(record: Record, functions: Sequence[HostFunction]) -> dict[str, Any] | None:
    calls = [_write_call(site, functions) for site in record.calls]
    if None in calls:
        return None
    return {
        "code": record.code,
        "symbols": record.symbols,
        "arena": str(record.arena),
        "release_gil": record.release_gil,
        "shares_work": record.shares_work,
        "calls": calls,
        "overwritten": record.overwritten,
    }


def _read(stored: Mapping[str, Any], functions: Sequence[HostFunction]) -> Record:
    return Record(
        tuple(stored["code"]),
        tuple(stored["symbols"]),
        parse(stored["arena"]),
        stored["release_gil"],
        stored["shares_work"],
        tuple([_read_call(call, functions) for call in stored["calls"]]),
        tuple(stored["overwritten"]),
    )


def _write_call(site: CallSite, functions: Sequence[HostFunction]) -> dict[str, Any] | None:
    if isinstance(site.function, LibraryFunction):
        function: Any = [site.function.name, *site.function.options]
    elif site.function in functions:
        function = functions.index(site.function)
    else:
        return None
    return {
        "function": function,
        "inputs": site.inputs,
        "types": [str(type) for type in site.types],
        "names": site.names,
        "index": site.index,
    }


def _read_call(stored: Mapping[str, Any], functions: Sequence[HostFunction]) -> CallSite:
    found = stored["function"]
    if isinstance(found, int):
        function = functions[found]
    else:
        name, *options = found
        function = LibraryFunction(name, options)
    return CallSite(
        function,
        stored["inputs"],
        tuple([_buffer(text) for text in stored["types"]]),
        tuple(stored["names"]),
        stored["index"],
    )


def _buffer(text: str) -> BufType:
    type = parse_type(text)
    if not isinstance(type, BufType):
        raise ValueError(text)
    return type
