"""The assemblers there are, and where NVIDIA's programs lie.

None of them needs a GPU, except the driver's, which `runtime/cuda` hands in.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import os
import re
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from typing import Any, Protocol

from tessera.errors import CompileError

INSTALL = "install one: pip install 'tessera[cuda]'"
"""What helps where there is no assembler."""


@dataclass(frozen=True, slots=True)
class Assembled:
    """What an assembler gave: code, or None where it refused the text; and its log."""

    cubin: bytes | None
    log: str


class Assembler(Protocol):
    """Something that makes a cubin of a PTX text."""

    @property
    def name(self) -> str:
        """Short name."""
        ...

    @property
    def version(self) -> str:
        """What code may depend on."""
        ...

    def run(self, text: str, machine: str) -> Assembled:
        """Assemble for a target such as ``sm_90a``; refusals are in the log."""
        ...


def find_assembler(choice: str, driver: Assembler | None = None) -> Assembler:
    """The assembler that a setting asks for.

    Args:
        choice: ``auto``, ``nvjitlink``, ``ptxas`` or ``driver``.
        driver: The driver's JIT, where there is one.

    Raises:
        CompileError: It is not installed.
    """
    found: Assembler | None = None
    # ptxas comes first, as it knows that a module is a whole program. nvJitLink takes it for a part
    # of one, whose helpers (the rare cases of a division, say) are functions that use registers by
    # a convention: kernels then need a third more of them.
    if choice in ("auto", "ptxas"):
        path = find_program("ptxas")
        found = Ptxas(path) if path else None
    if found is None and choice in ("auto", "nvjitlink"):
        found = _nvjitlink()
    if found is None and choice in ("auto", "driver"):
        found = driver
    if found is None:
        wanted = "no assembler of PTX" if choice == "auto" else f"no {choice}"
        raise CompileError(
            f"cuda: there is {wanted} here",
            rule="GPU code is assembled by nvJitLink, ptxas or the GPU's driver",
            fix=INSTALL + (", or set TESSERA_ASSEMBLER=auto" if choice != "auto" else ""),
        )
    return found


def _flags(text: str) -> list[str]:
    return ["-lineinfo"] if "\n.loc " in text or " .loc " in text or "\t.loc " in text else []


def _bindings() -> Any:
    # They have no stubs, and are optional: a module of unknown content.
    return importlib.import_module("cuda.bindings.nvjitlink")


@dataclass(frozen=True, slots=True)
class NvJitLink:
    """nvJitLink, in this process."""

    version: str
    name: str = "nvjitlink"

    def __str__(self) -> str:
        return f"nvJitLink {self.version}"

    def run(self, text: str, machine: str) -> Assembled:
        """Assemble."""
        nvjitlink = _bindings()
        options = [f"-arch={machine}", "-verbose", *_flags(text)]
        try:
            handle = nvjitlink.create(len(options), options)
        except nvjitlink.nvJitLinkError as error:
            return Assembled(None, f"ptxas fatal   : {error}: {machine}")
        try:
            cubin = None
            failure = ""
            data = text.encode()
            try:
                nvjitlink.add_data(handle, nvjitlink.InputType.PTX, data, len(data), "ptx")
                nvjitlink.complete(handle)
                buffer = bytearray(nvjitlink.get_linked_cubin_size(handle))
                nvjitlink.get_linked_cubin(handle, buffer)
                cubin = bytes(buffer)
            except nvjitlink.nvJitLinkError as error:
                failure = str(error)
            log = _read_log(handle, "error") + _read_log(handle, "info")
            return Assembled(cubin, log or failure)
        finally:
            nvjitlink.destroy(handle)


def _read_log(handle: int, kind: str) -> str:
    nvjitlink = _bindings()
    size: int = getattr(nvjitlink, f"get_{kind}_log_size")(handle)
    buffer = bytearray(size)
    if size:
        getattr(nvjitlink, f"get_{kind}_log")(handle, buffer)
    return bytes(buffer).decode(errors="replace").rstrip("\0")


@functools.cache
def _nvjitlink() -> NvJitLink | None:
    try:
        version: tuple[int, int] = _bindings().version()
    # The bindings raise errors of their own where the library itself is missing or too old.
    except (ImportError, RuntimeError, OSError, AttributeError):
        return None
    return NvJitLink(".".join(map(str, version)))


@dataclass(frozen=True, slots=True)
class Ptxas:
    """The program ptxas."""

    path: str
    name: str = "ptxas"

    @property
    def version(self) -> str:
        """As it says itself."""
        return _program_version(self.path, os.stat(self.path).st_mtime_ns)

    def __str__(self) -> str:
        return f"ptxas {self.version}"

    def run(self, text: str, machine: str) -> Assembled:
        """Assemble, in a private folder."""
        with tempfile.TemporaryDirectory(prefix="tessera-") as folder:
            source, target = os.path.join(folder, "in.ptx"), os.path.join(folder, "out.cubin")
            with open(source, "w", encoding="utf-8") as file:
                file.write(text)
            command = [self.path, "-v", f"-arch={machine}", *_flags(text), source, "-o", target]
            done = subprocess.run(command, capture_output=True, check=False)
            log = (done.stderr + done.stdout).decode(errors="replace")
            log = log.replace(source, "input")
            if done.returncode:
                return Assembled(None, log or f"ptxas fatal   : exit status {done.returncode}")
            with open(target, "rb") as file:
                return Assembled(file.read(), log)


@functools.cache
def _program_version(path: str, changed: int) -> str:
    del changed  # a program that was replaced has a version of its own
    done = subprocess.run([path, "--version"], capture_output=True, check=False)
    match = re.search(r"\bV(\d+(?:\.\d+)+)", done.stdout.decode(errors="replace"))
    if match is None:
        raise CompileError(f"cuda: {path} does not tell its version", fix=INSTALL)
    return match[1]


@functools.cache
def _wheel_folders() -> tuple[str, ...]:
    """Where NVIDIA's wheels put programs, which is not on the PATH."""
    spec = importlib.util.find_spec("nvidia")
    found: list[str] = []
    for root in (spec.submodule_search_locations or ()) if spec else ():
        # Wheels since CUDA 13 share one folder a release; each of CUDA 12 has its own.
        names = [name for name in os.listdir(root) if re.fullmatch(r"cu\d+|cuda_\w+", name)]
        found += [os.path.join(root, name, "bin") for name in sorted(names, reverse=True)]
    return tuple(found)


def find_program(name: str) -> str | None:
    """The path of a program of the CUDA toolkit: of a wheel, of CUDA_HOME, or on the PATH."""
    homes = [os.environ[key] for key in ("CUDA_HOME", "CUDA_PATH") if os.environ.get(key)]
    for folder in (*_wheel_folders(), *(os.path.join(home, "bin") for home in homes)):
        path = os.path.join(folder, name)
        if os.path.isfile(path) and os.access(path, os.X_OK):
            return path
    return shutil.which(name)


def disassemble(cubin: bytes) -> str:
    """The instructions of a cubin, by nvdisasm.

    Raises:
        CompileError: nvdisasm is not installed, or this is no cubin.
    """
    path = find_program("nvdisasm")
    if path is None:
        raise CompileError(
            "cuda: there is no nvdisasm here", fix="pip install nvidia-cuda-nvdisasm"
        )
    with tempfile.TemporaryDirectory(prefix="tessera-") as folder:
        source = os.path.join(folder, "in.cubin")
        with open(source, "wb") as file:
            file.write(cubin)
        done = subprocess.run([path, "-c", source], capture_output=True, check=False)
    if done.returncode:
        raise CompileError(f"cuda: nvdisasm: {done.stderr.decode(errors='replace').strip()}")
    return done.stdout.decode(errors="replace")
