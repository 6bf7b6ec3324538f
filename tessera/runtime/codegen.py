"""LLVM's compiler inside this process: text is parsed, checked, optimised and emitted here.

Everything that LLVM can object to is a ``CompileError``: what it would end the process for is
checked before.

Invariants:

1. Threads compile at the same time. A module lives in a context of its own, and one thread at a
   time has a target machine, which is what LLVM asks of those who use it from several threads.
2. fork waits until no thread uses LLVM, so that a child finds it whole.
3. An exception at any point, Ctrl-C included, leaves everything usable: shared state changes only
   by assigning finished objects.
4. Emitting changes a module, so each output is made from a module of its own.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import re
import threading
from collections import deque
from collections.abc import Callable, Generator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tessera.errors import CompileError
from tessera.runtime.interrupts import uninterrupted
from tessera.target.machine import Machine, host_arch, missing_features

if TYPE_CHECKING:
    from tessera.target.llvm.modules import Passes

_KEY_FORMAT = "tessera object 1"

# Reentrant: a garbage collection inside may finalize objects whose owners take it again.
lock = threading.RLock()
"""Held by who uses what the whole process has of LLVM."""


_PASSES: dict[Passes, str] = {"all": "", "few": " few passes", "none": " no passes"}

FEW = (
    "ipsccp",
    "simplify_cfg",
    "instruction_combine",
    "loop_rotate",
    "loop_unroll",
    "dead_code_elimination",
)
"""What is left of LLVM's standard pipeline for loops over rows of vectors: the rest finds nothing
there, and takes three times as long. What does not change in a loop stands before it already
(`target/llvm/invariants.py`). None of them is another than those of the standard pipeline: its own
numbering of values cannot be had by itself, and `new_gvn`, which can, ended the process."""


@dataclass(frozen=True, slots=True)
class Source:
    """What is compiled, and how.

    Attributes:
        text: One LLVM module.
        machine: The machine to compile for.
        name: What messages call it.
        optimize: Whether LLVM chooses instructions and registers with care, which takes most of its
            time.
        unroll: Whether LLVM may unroll loops beyond what the text did.
        passes: Which passes run over the text before it becomes instructions: LLVM's standard ones,
            a `FEW` of them, or none.
    """

    text: str
    machine: Machine
    name: str
    optimize: bool = True
    unroll: bool = True
    passes: Passes = "all"

    def key(self) -> str:
        """The content hash of everything that the object file depends on."""
        parts = (
            _KEY_FORMAT,
            llvm_version(),
            self.machine.arch,
            self.machine.llvm_cpu,
            self.machine.llvm_features,
            f"optimize={self.optimize} unroll={self.unroll}{_PASSES[self.passes]}",
            self.text,
        )
        digest = hashlib.sha256()
        for part in parts:
            data = part.encode()
            digest.update(len(data).to_bytes(8, "little"))
            digest.update(data)
        return digest.hexdigest()


def emit(source: Source) -> bytes:
    """The object file of a text; threads may do this at the same time.

    Raises:
        CompileError: LLVM rejects it.
    """
    with _compiling() as compiler:
        return compiler.emit(source)


@uninterrupted
def optimized_text(source: Source) -> str:
    """The LLVM text after optimisation."""
    with _compiling() as compiler, compiler.optimized(source) as module:
        return str(module)


@uninterrupted
def assembly_text(source: Source) -> str:
    """The assembly text."""
    with _compiling() as compiler, compiler.optimized(source) as module:
        target = compiler.target(source.machine, source.optimize)
        return str(target.emit_assembly(module))


def exported_functions(text: str) -> tuple[str, ...]:
    """The names of the functions that an LLVM text defines for others to see, in its order.

    >>> exported_functions("define internal void @f() {...}\\ndefine void @g() {...}")
    ('g',)
    """
    found = (m["quoted"] or m["plain"] for m in _DEFINE.finditer(text) if not m["hidden"])
    return tuple(dict.fromkeys(found))


_DEFINE = re.compile(
    r"^define[ ](?P<hidden>internal[ ]|private[ ]|hidden[ ])?[^@\n]*"
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


class _Compiler:
    """LLVM as one thread at a time compiles with it."""

    def __init__(self, binding: Any) -> None:
        # Held while LLVM is at work, by this thread, and over a fork by another one, which holds
        # the process's lock already: that one is not taken under this one.
        self.lock = threading.RLock()
        self.binding = binding
        self.targets: dict[tuple[str, str, str, bool], Any] = {}

    def target(self, machine: Machine, optimize: bool) -> Any:
        """The LLVM target machine of a machine."""
        key = (machine.arch, machine.llvm_cpu, machine.llvm_features, optimize)
        target = self.targets.get(key)
        if target is None:
            target = self.targets[key] = make_target(self.binding, machine, optimize)
        return target

    def emit(self, source: Source) -> bytes:
        """The object file of a text."""
        with self.optimized(source) as module:
            try:
                return _emit_object(self.target(source.machine, source.optimize), module)
            except RuntimeError as error:
                raise CompileError(f"{source.name}: LLVM cannot emit the code: {error}") from None

    @contextmanager
    def optimized(self, source: Source) -> Generator[Any, None, None]:
        """Parse, verify and optimise; every use gives a module of its own.

        Modules and their contexts are closed on the way out. Left to Python, an error's traceback
        would keep them for the garbage collector, which frees things that belong to each other in
        any order.
        """
        _check_intrinsics(source)
        target = self.target(source.machine, source.optimize)
        with (
            closing(self.binding.create_context()) as context,
            closing(self.parse(source, target, context)) as module,
        ):
            try:
                module.verify()
            except RuntimeError as error:
                raise _rejected(source, str(error)) from None
            if source.passes != "none":
                self.run_passes(module, target, source)
            yield module

    def parse(self, source: Source, target: Any, context: Any) -> Any:
        """The module of a text."""
        header = ""
        if not re.search(r"^target datalayout", source.text, re.MULTILINE):
            header += f'target datalayout = "{target.target_data}" '
        if not re.search(r"^target triple", source.text, re.MULTILINE):
            header += f'target triple = "{target.triple}" '
        try:
            # In front of the first line, so that line numbers in messages are those of the text.
            return self.binding.parse_assembly(header + source.text, context)
        except RuntimeError as error:
            raise _rejected(source, str(error), len(header)) from None

    def run_passes(self, module: Any, target: Any, source: Source) -> None:
        """LLVM's standard pipeline without its vectorisers, or a few of its passes."""
        with closing(self.binding.create_pipeline_tuning_options(speed_level=2)) as options:
            options.loop_vectorization = False
            options.slp_vectorization = False
            options.loop_unrolling = source.unroll
            # It copies the options: what is changed later has no effect.
            builder = self.binding.create_pass_builder(target, options)
        with closing(builder):
            # A pass manager runs once: a second run ends the process.
            if source.passes == "all":
                passes = builder.getModulePassManager()
            else:
                passes = self.binding.create_new_module_pass_manager()
                for name in FEW:
                    if name != "loop_unroll" or source.unroll:
                        getattr(passes, f"add_{name}_pass")()
            try:
                unlocked("LLVMPY_RunNewModulePassManager")(passes, module, builder)
            finally:
                _dispose(passes)


# --- threads, and fork ------------------------------------------------------------------------

# All there are, and those that nobody uses. Threads leave them to others rather than have their
# own: at a thread's end, LLVM would free its part at no time that a fork could wait for.
_compilers: list[_Compiler] = []
_idle: deque[_Compiler] = deque()


@contextmanager
def _compiling() -> Generator[_Compiler, None, None]:
    """A compiler, for this thread alone."""
    try:
        compiler = _idle.pop()
    except IndexError:
        with lock:
            compiler = _Compiler(binding())
            _compilers.append(compiler)
    try:
        with compiler.lock:
            yield compiler
    finally:
        _idle.append(compiler)


_stopped: list[_Compiler] = []


def _stop() -> None:
    """Before a fork: wait for those who use LLVM, and keep the others from it."""
    lock.acquire()
    for compiler in _compilers:
        compiler.lock.acquire()
        _stopped.append(compiler)


def _go_on() -> None:
    while _stopped:
        _stopped.pop().lock.release()
    lock.release()


# A child of fork gets the memory as it was; holding the locks over fork keeps LLVM's part whole.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_stop, after_in_parent=_go_on, after_in_child=_go_on)


# --- llvmlite ---------------------------------------------------------------------------------


# Called under the lock only, so that LLVM is set up once.
@functools.cache
def binding() -> Any:
    """llvmlite, once LLVM knows this machine."""
    import llvmlite.binding

    found: Any = llvmlite.binding
    found.initialize_native_target()
    found.initialize_native_asmprinter()
    return found


def make_target(binding: Any, machine: Machine, optimize: bool) -> Any:
    """A new LLVM target machine."""
    # Small and position independent: constants fold into instructions as memory operands.
    # The default for JITs loads the address of each into a register first.
    if machine.arch == host_arch():
        target = binding.Target.from_default_triple()
    else:
        # Text can be looked at for any machine.
        binding.initialize_all_targets()
        binding.initialize_all_asmprinters()
        target = binding.Target.from_triple(f"{machine.arch}-unknown-linux-gnu")
    return target.create_target_machine(
        cpu=machine.llvm_cpu,
        features=machine.llvm_features,
        opt=3 if optimize else 0,
        reloc="pic",
        codemodel="small",
    )


@functools.cache
def unlocked(name: str) -> Callable[..., Any]:
    """A function of llvmlite's library without the lock that llvmlite puts around all of them.

    It allows one call of LLVM at a time in the process, since it shares contexts between threads.
    The two functions that take long are called without it here, each on a context of its own.
    """
    from llvmlite.binding import ffi

    library: Any = ffi.lib
    locked = getattr(library, name)
    function = getattr(ctypes.CDLL(library._name), name)
    function.argtypes, function.restype = locked.argtypes, locked.restype
    return function


def _emit_object(target: Any, module: Any) -> bytes:
    """What `target.emit_object` does, beside other threads.

    Raises:
        RuntimeError: LLVM cannot emit it.
    """
    from llvmlite.binding import ffi

    library: Any = ffi.lib
    with closing(ffi.OutputString()) as error:
        buffer = unlocked("LLVMPY_TargetMachineEmitToMemory")(target, module, 1, error)
        if not buffer:
            raise RuntimeError(str(error))
    try:
        size = library.LLVMPY_GetBufferSize(buffer)
        return ctypes.string_at(library.LLVMPY_GetBufferStart(buffer), size)
    finally:
        library.LLVMPY_DisposeMemoryBuffer(buffer)


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
