"""Native code in this process: objects are compiled, or taken from the cache, and linked here.

``load`` makes texts for LLVM callable, the objects of one program together. What LLVM can object to
is a ``CompileError``.

Invariants:

1. The linker is used under one lock. Compiled code runs without.
2. An exception at any point, Ctrl-C included, leaves everything usable: shared state changes only
   by assigning finished objects.
"""

from __future__ import annotations

import ctypes
import functools
import itertools
import struct
import sys
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from typing import Any, Self

from tessera.errors import CompileError
from tessera.runtime import codegen
from tessera.runtime.cache import ObjectCache
from tessera.runtime.codegen import Source, exported_functions, lock
from tessera.runtime.crew import Crew
from tessera.runtime.interrupts import uninterrupted
from tessera.target.machine import Machine, host, missing_on_host


class Loaded:
    """Code in memory, for as long as this object lives.

    Attributes:
        addresses: The address of each exported function, in the order of the text.
        cached: Whether the code came from the cache.
    """

    __slots__ = ("_code", "addresses", "cached")

    addresses: Mapping[str, int]
    cached: bool

    def __init__(self, tracker: Any, symbols: tuple[str, ...], cached: bool) -> None:
        self.addresses = {symbol: int(tracker[symbol]) for symbol in symbols}
        self.cached = cached
        # llvmlite's object would free the code, too: where both are garbage of one cycle, while
        # another thread does so that has it from the list below.
        self._code = tracker._ptr
        tracker.detach()

    def __del__(self, _ending: Callable[[], bool] = sys.is_finalizing) -> None:
        if not _ending():
            _unloading.append(self._code)


# Code that nobody refers to any more, until something is linked. Finalizers run in any thread at
# any point, so they cannot use LLVM themselves.
_unloading: deque[Any] = deque()


def _unload() -> None:
    """Frees the code that nobody refers to any more. Used under the lock only."""
    while _unloading:
        _free(_unloading.popleft())


def _free(code: Any) -> None:
    from llvmlite.binding import ffi

    library: Any = ffi.lib
    with closing(ffi.OutputString()) as error:
        # It fails where the engine is gone, and all code with it.
        library.LLVMPY_LLJIT_Dylib_Tracker_Dispose(code, error)


def load(source: Source, cache: ObjectCache, imports: Mapping[str, int] | None = None) -> Loaded:
    """Compile a text, or take its object from the cache, and load it into this process.

    Args:
        source: What to compile.
        cache: Where objects are kept.
        imports: Addresses of symbols that exist in this process under no name.

    Raises:
        CompileError: The host cannot run it, LLVM rejects it, or a symbol does not exist.
    """
    with Loading(cache, threads=1) as loading:
        loading.add(source, is_last=True)
        return loading.finish(imports)


class Loading:
    """The texts of one program, which threads compile while others are still written. Leaving it
    drops what was not begun.

    Args:
        cache: Where objects are kept.
        threads: How many threads may compile.

    Attributes:
        sources: What to compile, so far.
    """

    def __init__(self, cache: ObjectCache, threads: int) -> None:
        self.sources: list[Source] = []
        self._cache, self._threads = cache, threads
        self._crew = Crew(cache, threads)

    def add(self, source: Source, is_last: bool = False) -> None:
        """Takes a text, which may use what the others export or hide.

        Args:
            source: The text.
            is_last: Whether no other follows.

        Raises:
            CompileError: The host cannot run it.
        """
        if not self.sources:
            check_host(source.machine, source.name)
        self.sources.append(source)
        self._crew.add(source, is_last)

    @uninterrupted
    def finish(self, imports: Mapping[str, int] | None) -> Loaded:
        """Compiles what is left, and loads all into this process.

        Args:
            imports: Addresses of symbols that exist in this process under no name.

        Raises:
            CompileError: LLVM rejects a text, or a symbol does not exist.
        """
        images, name = self._crew.images(), self.sources[0].name
        symbols = [f for source in self.sources for f in exported_functions(source.text)]
        is_kept = self._crew.found == len(images)
        try:
            return _link(images, tuple(symbols), imports, name, is_kept)
        except CompileError:
            if not self._crew.found:
                raise
            # Whole, as their digests say, and yet of no use here: compile all.
            with Crew(self._cache, self._threads, takes_kept=False) as crew:
                for source in self.sources:
                    crew.add(source, source is self.sources[-1])
                images = crew.images()
            return _link(images, tuple(symbols), imports, name)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._crew.close()


def _link(
    images: Sequence[bytes],
    symbols: tuple[str, ...],
    imports: Mapping[str, int] | None,
    name: str,
    cached: bool = False,
) -> Loaded:
    with lock:
        _unload()
        return Loaded(_engine().link(images, symbols, imports or {}, name), symbols, cached)


def check_host(machine: Machine, name: str) -> None:
    """Raises a `CompileError` if the host cannot run code for a machine."""
    lacking = missing_on_host(machine)
    if lacking:
        raise CompileError(
            f"{name}: code for {machine} cannot run here; the host lacks {', '.join(lacking)}",
            fix="compile for machine('host')",
        )


@uninterrupted
def load_kept(
    keys: Sequence[str],
    symbols: tuple[str, ...],
    cache: ObjectCache,
    imports: Mapping[str, int] | None,
    name: str,
) -> Loaded | None:
    """Load objects from the cache, if all are there.

    Args:
        keys: `Source.key` of what they were made of.
        symbols: The functions that they export.
        cache: Where objects are kept.
        imports: Addresses of symbols that exist in this process under no name.
        name: What messages call them.
    """
    images: list[bytes] = []
    for key in keys:
        image = cache.get(key)
        if image is None:
            return None
        images.append(image)
    try:
        return _link(images, symbols, imports, name, cached=True)
    except CompileError:
        # Whole, as their digests say, and yet of no use here: compile them again.
        for key in keys:
            cache.remove(key)
        return None


class _Engine:
    """The linker of this process. Used under the lock only."""

    def __init__(self) -> None:
        self.binding: Any = codegen.binding()
        # Python may have these in a private scope, or, with libgcc, not at all: it has the 128-bit
        # divisions and the half precision conversions that LLVM calls where instructions lack.
        for library in ("libm.so.6", "libgcc_s.so.1"):
            _make_global(library)
        self.counter = itertools.count()
        # JITLink puts all sections of a module within reach of each other, as the small code
        # model needs. Errors go into exceptions, not to stderr.
        self.linker: Any = self.binding.create_lljit_compiler(
            codegen.make_target(self.binding, host(), True),
            use_jit_link=True,
            suppress_errors=True,
        )

    def link(
        self,
        images: Sequence[bytes],
        symbols: tuple[str, ...],
        imports: Mapping[str, int],
        name: str,
    ) -> Any:
        """Load object files; the result maps symbols to addresses and keeps the code loaded."""
        library = self.binding.JITLibraryBuilder()
        for image in images:
            library.add_object_img(image)
        library.add_current_process()
        for symbol in symbols:
            library.export_symbol(symbol)
        for symbol, address in imports.items():
            library.import_symbol(symbol, address)
        try:
            # A name can be used once, even when its library is gone.
            return library.link(self.linker, f"{next(self.counter)}:{name}")
        except RuntimeError as error:
            missing = [s for i in images for s in undefined_symbols(i) if not _is_loaded(s)]
            raise CompileError(
                f"{name}: the code cannot be linked",
                rule="functions that the code calls are in libc, libm, libgcc or CPython",
                notes=[f"not found: {', '.join(missing)}" if missing else str(error)],
            ) from None


# Called under the lock only, so that there is one.
@functools.cache
def _engine() -> _Engine:
    return _Engine()


def _make_global(library: str) -> None:
    try:
        ctypes.CDLL(library, mode=ctypes.RTLD_GLOBAL)
    except OSError:
        # Another C library names it differently; what is missing shows when something is linked.
        return


def _is_loaded(symbol: str) -> bool:
    return symbol == "_GLOBAL_OFFSET_TABLE_" or hasattr(ctypes.CDLL(None), symbol)


def undefined_symbols(image: bytes) -> tuple[str, ...]:
    """The symbols that an ELF object needs from elsewhere; none for what is no such object."""
    if image[:5] != b"\x7fELF\x02" or len(image) < 64:
        return ()
    (table,), (count,) = struct.unpack_from("<Q", image, 40), struct.unpack_from("<H", image, 60)
    sections = [struct.unpack_from("<IIQQQQIIQQ", image, table + 64 * i) for i in range(count)]
    found: list[str] = []
    for _, kind, _, _, at, size, link, *_ in sections:
        if kind != 2:  # SHT_SYMTAB
            continue
        names_at = sections[link][4]
        for entry in range(at + 24, at + size, 24):
            name, _, _, section = struct.unpack_from("<IBBH", image, entry)
            if section == 0 and name:
                start = names_at + name
                found.append(image[start : image.index(b"\0", start)].decode())
    return tuple(found)
