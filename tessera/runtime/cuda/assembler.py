"""PTX text to machine code, without a GPU.

Three assemblers take the same text: the program ptxas, nvJitLink in this process, and the JIT of
the driver. ``config.assembler`` chooses; ``auto`` takes the first that there is.

Invariants:

1. What `assemble` returns is code of the given text for the given machine; a cached entry counts
   only if its digests agree.
2. A kernel that the assembler changed (a line with a code), or whose registers it put in memory,
   is an error unless the caller allows it, also when it comes from the cache.
3. Nothing is written but in the cache, and in a private folder that is gone afterwards.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Collection, Generator, Mapping
from dataclasses import dataclass, replace

from tessera.config import config
from tessera.errors import CompileError, Location
from tessera.ir.loc import Loc
from tessera.runtime.cache import ObjectCache, default_cache
from tessera.runtime.cuda.assembler_log import (
    ADVISORIES,
    UNKNOWN_ADVISORY,
    AssemblerLog,
    KernelUsage,
    Problem,
    parse_log,
)
from tessera.runtime.cuda.assemblers import Assembler, disassemble, find_assembler
from tessera.runtime.cuda.elf import kernel_usages
from tessera.runtime.cuda.ptx_lines import PtxLines
from tessera.runtime.cuda.reflection import KernelReflection, Reflection, digest, read_kernels
from tessera.target.gpu import Gpu

_SHOWN = 4  # errors of one text that a message quotes


@dataclass(frozen=True, slots=True)
class Cubin:
    """Machine code of a program's kernels.

    Attributes:
        data: the ELF file that the driver loads.
        reflection: what is known of it.
        cached: whether it was found in the cache.
    """

    data: bytes
    reflection: Reflection
    cached: bool = False

    @property
    def name(self) -> str:
        """What messages call the program."""
        return self.reflection.name

    @property
    def kernels(self) -> Mapping[str, KernelReflection]:
        """The kernels by name."""
        return {kernel.name: kernel for kernel in self.reflection.kernels}

    def usage(self, kernel: str) -> KernelUsage:
        """What a kernel takes."""
        return self.kernels[kernel].usage

    def disassembly(self) -> str:
        """The instructions, by nvdisasm.

        Raises:
            CompileError: nvdisasm is not installed.
        """
        return disassemble(self.data)


class SpillError(CompileError):
    """A kernel needs more registers than it has.

    Attributes:
        kernel: its name.
    """

    def __init__(self, kernel: str, message: str, *, rule: str, fix: str) -> None:
        super().__init__(message, rule=rule, fix=fix)
        self.kernel = kernel


def assemble(
    text: str,
    machine: Gpu,
    *,
    name: str,
    allow_spills: Collection[str] = (),
    allow_advisories: Collection[str] = (),
    notes: Mapping[str, object] | None = None,
    cache: ObjectCache | None = None,
    driver: Assembler | None = None,
) -> Cubin:
    """The machine code of a PTX text.

    Args:
        text: A whole PTX module.
        machine: What it is for.
        name: What messages call it.
        allow_spills: Kernels that may put registers in memory and have a stack.
        allow_advisories: Codes, such as ``C7519``, that are no errors in this text.
        notes: Added to the reflection: shapes, roles, proofs, verdicts; JSON values.
        cache: Where code is kept; by default the folder of the settings.
        driver: The JIT of the driver, where there is one.

    Raises:
        SpillError: A kernel spills, or has a stack.
        CompileError: There is no assembler; the text is not accepted, or was changed by the
            assembler.
    """
    assembler = find_assembler(config.assembler, driver)
    cache = default_cache("cubins") if cache is None else cache
    content = "\0".join(("1", assembler.name, assembler.version, machine.name, text))
    key = digest(content.encode())
    with _alone(key):
        cubin = _stored(cache.get(key), digest(text.encode()))
        if cubin is None:
            cubin = _run(assembler, text, machine, name)
            reflection = replace(cubin.reflection, notes=dict(notes or {})).to_json()
            cache.put(key, _pack(reflection, cubin.data), note=reflection)
    reflection = replace(cubin.reflection, name=name, notes=dict(notes or {}))
    cubin = replace(cubin, reflection=reflection)
    _refuse_advisories(cubin, PtxLines(text), allow_advisories)
    _refuse_spills(cubin, allow_spills)
    return cubin


def _run(assembler: Assembler, text: str, machine: Gpu, name: str) -> Cubin:
    output = assembler.run(text, machine.name)
    log = parse_log(output.log)
    if output.cubin is None:
        raise _refusal(log, output.log, PtxLines(text), assembler, machine, name)
    reflection = Reflection(
        name, machine.name, assembler.name, assembler.version, digest(text.encode()),
        digest(output.cubin), _kernels(text, log, output.cubin), log.advisories, log.warnings,
    )  # fmt: skip
    return Cubin(output.cubin, reflection)


def _kernels(text: str, log: AssemblerLog, cubin: bytes) -> tuple[KernelReflection, ...]:
    """The kernels of the text with their usage: by the log, and by the file where it is silent."""
    files = kernel_usages(cubin)
    found: list[KernelReflection] = []
    for kernel in read_kernels(text):
        own = files.get(kernel.name, KernelUsage())
        said = log.kernels.get(kernel.name)
        usage = own if said is None else replace(
            said,
            registers=said.registers or own.registers,
            stack=said.stack or own.stack,
            constant=said.constant or own.constant,
        )  # fmt: skip
        found.append(replace(kernel, usage=usage))
    return tuple(found)


def _refusal(
    log: AssemblerLog, text: str, lines: PtxLines, assembler: Assembler, machine: Gpu, name: str
) -> CompileError:
    problems = sorted(dict.fromkeys(log.problems), key=lambda p: p.line)
    shown = problems[:_SHOWN]
    first = shown[0] if shown else Problem(0, text.strip() or "the assembler gave no reason")
    notes = [note for problem in shown if (note := lines.show(problem.line, problem.text))]
    if len(problems) > len(shown):
        notes.append(f"and {len(problems) - len(shown)} more errors")
    rule, fix = None, "report this as a bug of Tessera, with the PTX text"
    if "Unsupported .version" in first.text:
        fix = "install a newer assembler: pip install -U 'tessera[cuda]'"
    elif "is not defined for option" in first.text or "UNSUPPORTED_ARCH" in text:
        fix = f"install an assembler that knows {machine}: pip install -U 'tessera[cuda]'"
    elif "too much shared data" in first.text:
        rule = f"a block has up to {machine.shared_per_block} bytes of shared memory"
        fix = "choose a smaller tile or fewer stages"
    elif log.advisories:
        known = ADVISORIES.get(log.advisories[0].code, UNKNOWN_ADVISORY)
        rule, fix = known.rule, known.fix
    return CompileError(
        f"{name}: {assembler} does not accept the code for {machine}: {first.text}",
        loc=_location(lines, first.line),
        rule=rule,
        notes=notes,
        fix=fix,
    )


def _location(lines: PtxLines, line: int) -> Location | None:
    place = lines.place(line)
    return Loc.in_file(*place) if place else None


def _refuse_advisories(cubin: Cubin, lines: PtxLines, allowed: Collection[str]) -> None:
    for advisory in cubin.reflection.advisories:
        if advisory.code in allowed:
            continue
        known = ADVISORIES.get(advisory.code, UNKNOWN_ADVISORY)
        shown = lines.show(advisory.line, "around here")
        kernel = f", kernel {advisory.kernel}" if advisory.kernel else ""
        raise CompileError(
            f"{cubin.name}{kernel}: the assembler changed the code ({advisory.code})",
            loc=_location(lines, advisory.line),
            rule=known.rule,
            fix=known.fix,
            notes=(f"assembler: {advisory.text}", *((shown,) if shown else ())),
        )


def _refuse_spills(cubin: Cubin, allowed: Collection[str]) -> None:
    for kernel in cubin.reflection.kernels:
        usage = kernel.usage
        if kernel.name in allowed or not (usage.spills or usage.stack):
            continue
        limit = f" of {kernel.threads} threads" if kernel.threads else ""
        what = f"has a stack of {usage.stack} bytes"
        if usage.spills:
            what = (
                f"spills: {usage.spill_stores} bytes of registers stored, {usage.spill_loads} "
                f"bytes loaded, at {usage.registers} registers a thread"
            )
        raise SpillError(
            kernel.name,
            f"{cubin.name}, kernel {kernel.name}{limit}: {what}",
            rule="the values of a thread stay in its registers, unless the schedule accepts spills",
            fix="choose a smaller tile or fewer warps a block, or accept spills in the schedule",
        )


# --- the cache ---

_locks: dict[str, tuple[threading.Lock, int]] = {}
_locks_lock = threading.Lock()


@contextlib.contextmanager
def _alone(key: str) -> Generator[None, None, None]:
    """Only one thread of this process works on one key; the others find what it has made."""
    with _locks_lock:
        lock, users = _locks.get(key, (threading.Lock(), 0))
        _locks[key] = (lock, users + 1)
    try:
        with lock:
            yield
    finally:
        with _locks_lock:
            lock, users = _locks[key]
            if users == 1:
                del _locks[key]
            else:
                _locks[key] = (lock, users - 1)


def _pack(reflection: str, cubin: bytes) -> bytes:
    return reflection.encode() + b"\0" + cubin


def _stored(entry: bytes | None, ptx: str) -> Cubin | None:
    """The cubin of a cache entry, or None where it does not hold what it should."""
    if entry is None:
        return None
    text, _, data = entry.partition(b"\0")
    try:
        reflection = Reflection.from_json(text.decode())
    except ValueError:
        return None
    if (reflection.ptx_sha256, reflection.cubin_sha256) != (ptx, digest(data)):
        return None
    return Cubin(data, reflection, cached=True)
