"""The pipeline for GPUs, from Tile IR on.

    Tile kernels --simt--> Target IR of one thread --passes--> --writer--> PTX --assembler--> cubin
    Tile main --from_tile.host--> Target IR of the host --legalize--> --writer--> LLVM text
          --LLVM--> machine code that launches the kernels

Before that, a program for a GPU takes the same way as one for a CPU (`compile.py`); its schedule is
another.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Collection, Sequence
from typing import Any

from tessera.compile import ENTRY, Lowered, Stages, current_machine
from tessera.config import config
from tessera.errors import Location
from tessera.graph.array import Array
from tessera.graph.device import Device, backend
from tessera.graph.ops import elementwise as ops
from tessera.graph.ops.reduce import any_
from tessera.graph.remote import Remote
from tessera.ir.core import Func, Module
from tessera.ir.interpreter import young_garbage_only
from tessera.ir.intexpr import Dim
from tessera.ir.lazy import cached_property
from tessera.ir.loc import Loc
from tessera.ir.walk import walk
from tessera.runtime import cpu
from tessera.runtime.cuda.assembler import Cubin, SpillError, assemble
from tessera.runtime.cuda.assemblers import Assembler
from tessera.runtime.hostcall import HostCalls, call_sites
from tessera.runtime.remote import Code, KernelCode, RemoteBackend, RemoteExecutable
from tessera.target.check.kernel import check_kernel
from tessera.target.check.report import Report
from tessera.target.from_tile.host import lower_host
from tessera.target.from_tile.simt.kernel import lower_kernel
from tessera.target.gpu import Gpu, gpu
from tessera.target.gpu_ops import BlockInfo
from tessera.target.host_ops import ReadBack
from tessera.target.llvm.writer import write_module
from tessera.target.machine import Machine
from tessera.target.machine import machine as cpu_machine
from tessera.target.ops import Sentinel
from tessera.target.passes.allocate_shared import allocate_shared, shared_bytes
from tessera.target.passes.legalize import legalize
from tessera.target.passes.legalize_gpu import legalize_gpu
from tessera.target.passes.synchronize import synchronize
from tessera.target.ptx.writer import write_kernels
from tessera.tile import ops as tile_ops
from tessera.tile.index_width import INDEX, REASON

KERNEL_PASSES: tuple[tuple[str, Callable[[Func, Gpu], Func]], ...] = (
    ("allocate_shared", allocate_shared),
    ("synchronize", lambda func, _: synchronize(func)),  # between objects that share their place
    ("legalize", legalize_gpu),
)
"""What every kernel goes through before it is written."""


class LoweredGpu(Stages):
    """One program for a GPU in all of its forms.

    Attributes:
        target: the kernels in Target IR.
        host: the Target module of what runs on the host.
        llvm: its LLVM IR text.
        ptx: the kernels' text.
        cubin: the kernels assembled.
        spilling: kernels that keep some registers in memory, and how many; known once the cubin is.
        reports: what is proved about each kernel; with `config.verify`, refutations are errors.
        sass: the GPU's instructions.
        asm: the same.
    """

    def __init__(self, graph: Func, target_machine: Gpu, donated: Collection[int] = ()) -> None:
        super().__init__(graph, target_machine, donated)
        self.gpu = target_machine
        self.spilling: dict[str, str] = {}
        self.host_machine: Machine = current_machine()

    # --- what runs on the GPU ---------------------------------------------------------------

    @cached_property
    @young_garbage_only()
    def gpu_kernels(self) -> dict[str, KernelCode]:
        """The kernels by name, in the order of the table that the host gets."""
        launches: dict[str, list[tile_ops.Launch]] = {}
        for op in walk(self.tile.entry.body):
            if isinstance(op, tile_ops.Launch):
                launches.setdefault(op.kernel, []).append(op)
        start = time.perf_counter()
        found = {
            name: self._kernel(func, launches[name])
            for name, func in self.tile.funcs.items()
            if name != self.tile.main
        }
        self.context.record("target", time.perf_counter() - start)
        self.context.write(
            "target", lambda: "\n\n".join([str(kernel.func) for kernel in found.values()])
        )
        return found

    def _kernel(self, tile: Func, launches: list[tile_ops.Launch]) -> KernelCode:
        launch = launches[0]
        grid: tuple[Dim, ...] = launch.grid
        func = lower_kernel(tile, grid, self.gpu, launch.warps, _shared_places(launches))
        for _, step in KERNEL_PASSES:
            func = step(func, self.gpu)
        return KernelCode(func, _info(func).threads, shared_bytes(func), _place(launch.loc))

    @cached_property
    def reports(self) -> dict[str, Report]:
        """What is proved about the memory accesses of each kernel."""
        start = time.perf_counter()
        found = {name: check_kernel(k.func, self.gpu) for name, k in self.gpu_kernels.items()}
        self.context.record("check", time.perf_counter() - start)
        return found

    @cached_property
    def target(self) -> Module:
        """The kernels in Target IR."""
        return Module({name: kernel.func for name, kernel in self.gpu_kernels.items()})

    @cached_property
    @young_garbage_only()
    def ptx(self) -> str:
        """The kernels' text."""
        kernels = self.gpu_kernels
        if self.context.verify:
            for report in self.reports.values():
                report.raise_if_refuted()
        start = time.perf_counter()
        text = write_kernels([k.func for k in kernels.values()], self.gpu)
        self.context.record("ptx", time.perf_counter() - start)
        self.context.write("ptx", lambda: text, ".ptx")
        return text

    @cached_property
    def cubin(self) -> Cubin:
        """The kernels' machine code."""
        return self._assemble(None)

    def _cubin_by(self, driver: Assembler) -> Cubin:
        """The same; the driver of a GPU may assemble it."""
        if "cubin" not in self.__dict__:
            self.__dict__["cubin"] = self._assemble(driver)
        return self.cubin

    def _assemble(self, driver: Assembler | None) -> Cubin:
        text = self.ptx
        start = time.perf_counter()
        kernels = self.gpu_kernels
        proofs = [r.to_json() for r in self.reports.values()] if self.context.verify else []
        notes = {"proofs": proofs, "shared": {name: k.shared for name, k in kernels.items()}}
        allowed = [name for name, k in kernels.items() if _info(k.func).spills]
        while True:
            try:
                found = assemble(
                    text, self.gpu, name=self.traced.name, allow_spills=allowed, notes=notes,
                    driver=driver,
                )  # fmt: skip
                break
            except SpillError as error:
                # No user chose this tile. A kernel that is somewhat slower is better than none,
                # but it is no secret.
                allowed.append(error.kernel)
                self.spilling[error.kernel] = str(error).splitlines()[0]
        self.context.record("cubin", time.perf_counter() - start)
        self.context.write("sass", lambda: found.disassembly(), ".sass")
        return found

    def why(self) -> str:
        """The fusion decisions, one per line; how wide the indices of kernels are whose sizes are
        known at the call; and which kernels spill."""
        widths = [
            f"{name}: indices of {func.attrs[INDEX][1:]} bits; {func.attrs[REASON]}"
            for name, func in self.tile.funcs.items()
            if INDEX in func.attrs
        ]
        return "\n".join([super().why(), *widths, *self.spilling.values()])

    @property
    def sass(self) -> str:
        """The kernels' instructions."""
        return self.cubin.disassembly()

    @property
    def asm(self) -> str:
        """The kernels' instructions."""
        return self.sass

    # --- what runs on the host --------------------------------------------------------------

    @cached_property
    @young_garbage_only()
    def host(self) -> Module:
        """The Target module of what runs on the host."""
        tile = self.tile
        start = time.perf_counter()
        module = legalize(lower_host(tile, self.host_machine), self.host_machine)
        self._done("host", start, module)
        return module

    @cached_property
    @young_garbage_only()
    def llvm(self) -> str:
        """LLVM IR text of the host's part."""
        module = self.host
        start = time.perf_counter()
        text = write_module(module, self.host_machine, ENTRY)
        self.context.record("llvm text", time.perf_counter() - start)
        self.context.write("llvm", lambda: text, ".ll")
        return text

    def executable(self, device: Device) -> RemoteExecutable:
        """The callable program, on a device."""
        driver: RemoteBackend = backend(device.platform)
        from tessera.lowering import host_copies

        start = time.perf_counter()
        calls = HostCalls(call_sites(self.host))
        symbols = {**driver.symbols(), **calls.symbols}
        native = cpu.compile_text(
            self.llvm, self.host_machine, name=self.traced.name, imports=symbols
        )
        self.context.record("native", time.perf_counter() - start)
        start = time.perf_counter()
        kernels = list(self.gpu_kernels.values())
        sentinels = sum([isinstance(op, Sentinel) for k in kernels for op in walk(k.func.body)])
        host, copies = host_copies(self.schedule)
        code = Code(self.traced.name, kernels, self.gpu, self._cubin_by, sentinels, host, copies)
        program = driver.load(code, native.address(ENTRY), device)
        self.context.record("load", time.perf_counter() - start)
        keep = (native, program, calls)
        suspects = self._suspects() if self.settings.sentinels else None
        reads = any([isinstance(op, ReadBack) for op in walk(self.host.entry.body)])
        return RemoteExecutable(
            *(self.signature, driver, device, program, keep), bool(calls), suspects, reads
        )

    def _suspects(self) -> Callable[[Sequence[Remote]], bool]:
        """Asks whether results have what sentinels look for, and may without one of them telling.

        It is asked at each call, and keeps nothing of the program.
        """
        from tessera.lowering import has_unwatched

        checks = self.settings.sentinel_set - {"bounds"}
        if not checks or not has_unwatched(self.schedule):
            return _has_nothing
        return functools.partial(_has_bad, checks)


def _has_nothing(outputs: Sequence[Remote]) -> bool:
    return False


def _has_bad(checks: Collection[str], outputs: Sequence[Remote]) -> bool:
    # On the device, by programs of their own.
    with config.update(sentinels=""):
        return any([_is_bad(Array(x), checks) for x in outputs])


def _is_bad(x: Array, checks: Collection[str]) -> bool:
    """Whether an array has NaN, or infinities if these are looked for."""
    if not x.dtype.is_inexact or not x.size:
        return False
    found: Any = ops.isnan(x) if checks == {"nan"} else ops.not_(ops.isfinite(x))
    return bool(any_(found, tuple(range(x.ndim))).host)


def _info(kernel: Func) -> BlockInfo:
    info = kernel.ops[0]
    assert isinstance(info, BlockInfo)
    return info


def _shared_places(launches: list[tile_ops.Launch]) -> frozenset[int]:
    """Arguments that lie where another one does, in some launch: a kernel may write its result over
    what it reads, element by element."""
    found: set[int] = set()
    for launch in launches:
        places: dict[object, int] = {}
        for k, value in enumerate(launch.args):
            op = value.op
            place = op.offset if isinstance(op, tile_ops.Arena) else value
            if place in places:
                found |= {k, places[place]}
            places.setdefault(place, k)
    return frozenset(found)


def _place(loc: Loc) -> Location | None:
    return None if loc is Loc.unknown else loc


def lower_for(
    graph: Func, machine: Machine | Gpu | None = None, donated: Collection[int] = ()
) -> Lowered | LoweredGpu:
    """Lowers a closed Graph for a machine.

    Args:
        graph: the program.
        machine: by default the host.
        donated: the inputs whose memory it may write to.
    """
    if isinstance(machine, Gpu):
        return LoweredGpu(graph, machine, donated)
    return Lowered(graph, machine, donated)


def machine_named(machine: Machine | Gpu | str) -> Machine | Gpu:
    """A machine by name: a GPU such as `sm_90a`, a level of CPUs, or `host`."""
    if not isinstance(machine, str):
        return machine
    return gpu(machine) if machine.startswith("sm_") else cpu_machine(machine)


def lower_on(graph: Func, device: Device, donated: Collection[int] = ()) -> LoweredGpu:
    """Lowers a closed Graph for a GPU.

    Args:
        graph: the program.
        device: where it is going to run.
        donated: the inputs whose memory it may write to.
    """
    driver: RemoteBackend = backend(device.platform)
    return LoweredGpu(graph, driver.machine(device), donated)
