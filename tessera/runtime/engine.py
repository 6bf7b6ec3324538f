"""LLVM inside this process: text is parsed, checked, optimised, emitted and linked here.

``compile_image`` gives an object file for a text, from the cache where it has one; ``load`` makes
it callable. Everything that LLVM can object to is a ``CompileError``: what it would end the process
for is checked before.

Invariants:

1. LLVM is used under one lock, since its objects are not thread-safe. Compiled code runs without.
2. An exception at any point, Ctrl-C included, leaves everything usable: shared state changes only
   by assigning finished objects.
3. Emitting changes a module, so each output is made from a module of its own.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import itertools
import os
import re
import struct
import sys
import threading
from collections import deque
from collections.abc import Callable, Generator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import Any

from tessera.errors import CompileError
from tessera.runtime.cache import ObjectCache
from tessera.target.machine import Machine, host, missing_features, missing_on_host

_KEY_FORMAT = "tessera object 1"

# Reentrant: a garbage collection inside may finalize objects whose owners take it again.
_lock = threading.RLock()

# A child of fork gets the memory as it was; holding the lock over fork keeps LLVM's part whole.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_lock.release
    )


@dataclass(frozen=True, slots=True)
class Source:
    """What is compiled, and how.

    Attributes:
        text: One LLVM module.
        machine: The machine to compile for.
        name: What messages call it.
        optimize: Whether LLVM optimises.
        unroll: Whether LLVM may unroll loops beyond what the text did.
    """

    text: str
    machine: Machine
    name: str
    optimize: bool = True
    unroll: bool = True

    def key(self) -> str:
        """The content hash of everything that the object file depends on."""
        parts = (
            _KEY_FORMAT,
            llvm_version(),
            self.machine.arch,
            self.machine.llvm_cpu,
            self.machine.llvm_features,
            f"optimize={self.optimize} unroll={self.unroll}",
            self.text,
        )
        digest = hashlib.sha256()
        for part in parts:
            data = part.encode()
            digest.update(len(data).to_bytes(8, "little"))
            digest.update(data)
        return digest.hexdigest()


class Loaded:
    """Code in memory, for as long as this object lives.

    Attributes:
        addresses: The address of each exported function, in the order of the text.
        cached: Whether the code came from the cache.
    """

    __slots__ = ("_tracker", "addresses", "cached")

    addresses: Mapping[str, int]
    cached: bool

    def __init__(self, tracker: Any, symbols: tuple[str, ...], cached: bool) -> None:
        self._tracker = tracker
        self.addresses = {symbol: int(tracker[symbol]) for symbol in symbols}
        self.cached = cached

    def __del__(self, _ending: Callable[[], bool] = sys.is_finalizing) -> None:
        if not _ending():
            _unloading.append(self._tracker)
            _unload()


# Code that nobody refers to any more. Finalizers run in any thread at any point; they neither wait
# for the lock nor use LLVM without it.
_unloading: deque[Any] = deque()


def _unload() -> None:
    # Whoever holds the lock may have passed this point already: look again after each release.
    while _unloading and _lock.acquire(blocking=False):
        try:
            while _unloading:
                _unloading.popleft().close()
        finally:
            _lock.release()


def load(source: Source, cache: ObjectCache, imports: Mapping[str, int] | None = None) -> Loaded:
    """Compile a text, or take its object from the cache, and load it into this process.

    Args:
        source: What to compile.
        cache: Where objects are kept.
        imports: Addresses of symbols that exist in this process under no name.

    Raises:
        CompileError: The host cannot run it, LLVM rejects it, or a symbol does not exist.
    """
    check_host(source.machine, source.name)
    key = source.key()
    symbols = exported_functions(source.text)
    found = load_kept(key, symbols, cache, imports, source.name)
    if found is not None:
        return found
    with _lock:
        image = _engine().emit(source)
        tracker = _engine().link(image, symbols, imports or {}, source.name)
        loaded = Loaded(tracker, symbols, False)
    _unload()
    cache.put(key, image)
    return loaded


def check_host(machine: Machine, name: str) -> None:
    """Raises a `CompileError` if the host cannot run code for a machine."""
    lacking = missing_on_host(machine)
    if lacking:
        raise CompileError(
            f"{name}: code for {machine} cannot run here; the host lacks {', '.join(lacking)}",
            fix="compile for machine('host')",
        )


def load_kept(
    key: str,
    symbols: tuple[str, ...],
    cache: ObjectCache,
    imports: Mapping[str, int] | None,
    name: str,
) -> Loaded | None:
    """Load an object from the cache, if it is there.

    Args:
        key: `Source.key` of what it was made of.
        symbols: The functions that it exports.
        cache: Where objects are kept.
        imports: Addresses of symbols that exist in this process under no name.
        name: What messages call it.
    """
    image = cache.get(key)
    if image is None:
        return None
    try:
        with _lock:
            tracker = _engine().link(image, symbols, imports or {}, name)
            return Loaded(tracker, symbols, True)
    except CompileError:
        # Whole, as its digest says, and yet of no use here: compile it again.
        cache.remove(key)
        return None


def optimized_text(source: Source) -> str:
    """The LLVM text after optimisation."""
    with _lock, _engine().optimized(source) as module:
        return str(module)


def assembly_text(source: Source) -> str:
    """The assembly text."""
    with _lock:
        engine = _engine()
        with engine.optimized(source) as module:
            return str(engine.target(source.machine, source.optimize).emit_assembly(module))


def exported_functions(text: str) -> tuple[str, ...]:
    """The names of the functions that an LLVM text defines for others to see, in its order.

    >>> exported_functions("define internal void @f() {...}\\ndefine void @g() {...}")
    ('g',)
    """
    found = (m["quoted"] or m["plain"] for m in _DEFINE.finditer(text) if not m["hidden"])
    return tuple(dict.fromkeys(found))


_DEFINE = re.compile(
    r"^define[ ](?P<hidden>internal[ ]|private[ ])?[^@\n]*"
    r'@(?:"(?P<quoted>[^"]+)"|(?P<plain>[\w.$-]+))[ ]?\(',
    re.MULTILINE,
)


@functools.cache
def llvm_version() -> str:
    """The versions of llvmlite and LLVM."""
    import llvmlite
    import llvmlite.binding

    binding: Any = llvmlite.binding
    return f"{llvmlite.__version__} {binding.llvm_version_info}"


def _check_intrinsics(source: Source) -> None:
    missing = missing_features(source.text, source.machine)
    if missing:
        raise CompileError(
            f"{source.name}: the code uses instructions that {source.machine} lacks",
            rule="an intrinsic may be emitted only for a machine that has its features",
            notes=[f"{used} needs {', '.join(needs)}" for used, needs in missing.items()],
        )


class _Engine:
    """LLVM as this process uses it: target machines and the linker. Used under the lock only."""

    def __init__(self) -> None:
        import llvmlite.binding

        self.binding: Any = llvmlite.binding
        self.binding.initialize_native_target()
        self.binding.initialize_native_asmprinter()
        # Python may have these in a private scope, or, with libgcc, not at all: it has the 128-bit
        # divisions and the half precision conversions that LLVM calls where instructions lack.
        for library in ("libm.so.6", "libgcc_s.so.1"):
            _make_global(library)
        self.targets: dict[tuple[str, str, bool], Any] = {}
        self.counter = itertools.count()
        # JITLink puts all sections of a module within reach of each other, as the small code
        # model needs. Errors go into exceptions, not to stderr.
        self.linker: Any = self.binding.create_lljit_compiler(
            self.target(host(), True), use_jit_link=True, suppress_errors=True
        )

    def target(self, machine: Machine, optimize: bool) -> Any:
        """The LLVM target machine of a machine."""
        key = (machine.llvm_cpu, machine.llvm_features, optimize)
        target = self.targets.get(key)
        if target is None:
            # Small and position independent: constants fold into instructions as memory operands.
            # The default for JITs loads the address of each into a register first.
            target = self.binding.Target.from_default_triple().create_target_machine(
                cpu=machine.llvm_cpu,
                features=machine.llvm_features,
                opt=3 if optimize else 0,
                reloc="pic",
                codemodel="small",
            )
            self.targets[key] = target
        return target

    @contextmanager
    def optimized(self, source: Source) -> Generator[Any, None, None]:
        """Parse, verify and optimise; every use gives a module of its own.

        Modules live in LLVM's global context, and are closed on the way out. Left to Python, an
        error's traceback would keep them for the garbage collector, which frees things that
        belong to each other in any order.
        """
        _check_intrinsics(source)
        target = self.target(source.machine, source.optimize)
        with closing(self.parse(source, target)) as module:
            try:
                module.verify()
            except RuntimeError as error:
                raise _rejected(source, str(error)) from None
            if source.optimize:
                self.run_passes(module, target, source.unroll)
            yield module

    def parse(self, source: Source, target: Any) -> Any:
        """The module of a text."""
        header = ""
        if not re.search(r"^target datalayout", source.text, re.MULTILINE):
            header += f'target datalayout = "{target.target_data}" '
        if not re.search(r"^target triple", source.text, re.MULTILINE):
            header += f'target triple = "{target.triple}" '
        try:
            # In front of the first line, so that line numbers in messages are those of the text.
            return self.binding.parse_assembly(header + source.text)
        except RuntimeError as error:
            raise _rejected(source, str(error), len(header)) from None

    def run_passes(self, module: Any, target: Any, unroll: bool) -> None:
        """LLVM's standard pipeline without its vectorisers."""
        with (
            closing(self.binding.create_pipeline_tuning_options(speed_level=2)) as options,
            closing(self.binding.create_pass_builder(target, options)) as builder,
        ):
            options.loop_vectorization = False
            options.slp_vectorization = False
            options.loop_unrolling = unroll
            # A pass manager runs once: a second run ends the process.
            passes = builder.getModulePassManager()
            try:
                passes.run(module, builder)
            finally:
                _dispose(passes)

    def emit(self, source: Source) -> bytes:
        """The object file of a text."""
        with self.optimized(source) as module:
            try:
                return bytes(self.target(source.machine, source.optimize).emit_object(module))
            except RuntimeError as error:
                raise CompileError(f"{source.name}: LLVM cannot emit the code: {error}") from None

    def link(
        self, image: bytes, symbols: tuple[str, ...], imports: Mapping[str, int], name: str
    ) -> Any:
        """Load an object file; the result maps symbols to addresses and keeps the code loaded."""
        library = self.binding.JITLibraryBuilder().add_object_img(image).add_current_process()
        for symbol in symbols:
            library.export_symbol(symbol)
        for symbol, address in imports.items():
            library.import_symbol(symbol, address)
        try:
            # A name can be used once, even when its library is gone.
            return library.link(self.linker, f"{next(self.counter)}:{name}")
        except RuntimeError as error:
            missing = [s for s in undefined_symbols(image) if not _is_loaded(s)]
            raise CompileError(
                f"{name}: the code cannot be linked",
                rule="functions that the code calls are in libc, libm, libgcc or CPython",
                notes=[f"not found: {', '.join(missing)}" if missing else str(error)],
            ) from None


# Called under the lock only, so that there is one.
@functools.cache
def _engine() -> _Engine:
    return _Engine()


def _dispose(passes: Any) -> None:
    """Free a pass manager.

    In llvmlite 0.50 its ``close`` finds the empty method of a base class before the one that frees
    it, and 70 kB a module would stay.
    """
    for base in type(passes).__mro__:
        if base.__name__ == "NewPassManager" and "_dispose" in vars(base):
            vars(base)["_dispose"](passes)
            passes.detach()
            return
    passes.close()


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


_PARSE_ERROR = re.compile(r"<string>:(\d+):(\d+): error: (.*)")


def _rejected(source: Source, message: str, shift: int = 0) -> CompileError:
    """The error for a text that LLVM does not take, with the offending lines."""
    lines = source.text.split("\n")
    found = _PARSE_ERROR.search(message)
    if found:
        line, column, what = int(found[1]), int(found[2]), found[3]
        places = [_excerpt(lines, line, column - shift if line == 1 else column)]
    else:
        what, *quoted = (part for part in message.split("\n") if part.strip())
        places = [_excerpt(lines, line, None) for part in quoted if (line := _find(lines, part))]
        places = places or ["\n".join(quoted)]
    return CompileError(
        f"{source.name}: LLVM rejects the code: {what}",
        rule="code generation writes valid LLVM text",
        notes=[place for place in places if place],
    )


def _find(lines: list[str], instruction: str) -> int | None:
    """The number of the line that LLVM means by an instruction, which it prints in its own form."""
    wanted = instruction.strip()
    defined = re.match(r"(%[\w.$-]+) = ", wanted)
    for number, line in enumerate(lines, 1):
        stripped = line.strip()
        if stripped == wanted or (defined and stripped.startswith(defined[0])):
            return number
    return None


def _excerpt(lines: list[str], line: int, column: int | None) -> str:
    """A line between its neighbours, with a caret."""
    first, last = max(1, line - 2), min(len(lines), line + 2)
    shown: list[str] = []
    for number in range(first, last + 1):
        shown.append(f"{'>' if number == line else ' '} {number:4} | {lines[number - 1]}")
        if number == line and column is not None and column > 0:
            shown.append(f"       | {' ' * (column - 1)}^")
    return "\n".join(shown)
