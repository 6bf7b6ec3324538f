"""The pipeline: the one module that names every layer.

    Graph --passes--> Graph --from_graph--> Schedule --choose, plan--> Schedule --from_schedule-->
    Tile
          --simd--> Target --legalize--> Target --writer--> LLVM text --LLVM--> machine code

`lower` returns a `Lowered`, which holds each stage and prints it; `Lowered.executable()` loads the
code.
"""

from __future__ import annotations

import functools
import itertools
import time
from dataclasses import dataclass
from pathlib import Path

from tessera.config import ConfigError, config
from tessera.dtypes import DType
from tessera.errors import OptionError
from tessera.graph.passes import simplify
from tessera.graph.spec import GRAPH
from tessera.ir.core import Func, Module
from tessera.ir.hostcall import LibraryFunction
from tessera.ir.intexpr import Dim
from tessera.ir.passes import Pass, PassContext, check, run_pipeline
from tessera.ir.types import Type
from tessera.ir.walk import walk
from tessera.runtime import cpu, threads
from tessera.runtime.executable import Executable, Signature
from tessera.runtime.hostcall import HostCalls, checked
from tessera.schedule import heuristics, plan
from tessera.schedule.from_graph import lower as lower_graph
from tessera.schedule.fusion import Decision
from tessera.schedule.ops import HostCall, Kernel, Nest
from tessera.schedule.spec import SCHEDULE
from tessera.schedule.split import split
from tessera.schedule.types import BufType
from tessera.target.from_tile.simd import lower_module
from tessera.target.gpu import Gpu
from tessera.target.llvm.writer import write_module
from tessera.target.machine import Machine, host, machine
from tessera.target.passes.legalize import legalize
from tessera.target.spec import TARGET
from tessera.target.spec import verify as verify_target
from tessera.tile.from_schedule import lower_program
from tessera.tile.lowering.join_loops import join_loops
from tessera.tile.spec import TILE

GRAPH_PASSES: tuple[Pass, ...] = (
    simplify.InlineCalls(),  # first: what follows sees one flat program
    simplify.Canonicalize(),  # before the other two, which compare ops by their text
    simplify.FoldConstants(),
    simplify.CommonSubexpressions(),
    simplify.Canonicalize(),  # constants and shared values uncover more identities
    simplify.DeadCode(),  # last: all others leave dead ops behind
)

SPECS = {
    "graph": GRAPH,
    "schedule": SCHEDULE,
    "tile": TILE,
    "target": TARGET,
    "host": TARGET,
}

ENTRY = "tessera_run"

STAGES = {
    "graph": "graph",
    "sched": "schedule",
    "schedule": "schedule",
    "tirh": "tile",
    "tile": "tile",
    "tirt": "target",
    "target": "target",
    "llvm": "llvm",
    "asm": "asm",
    "host": "host",
    "ptx": "ptx",
    "sass": "sass",
}
"""Names that `dump=` accepts, and the attribute of `Lowered` that each one prints. The last three
are stages of programs for GPUs.
"""


def current_machine() -> Machine:
    """The CPU to compile for: the host, or the level that the settings force."""
    level = config.current().cpu_level
    return host() if level is None else machine(level)


@dataclass(frozen=True)
class KernelInfo:
    """A kernel of a program.

    Attributes:
        label: its name.
        count: how many times the program launches an equal one.
        reason: why its ops share a kernel, and how it is tiled.
    """

    label: str
    count: int
    reason: str

    def __str__(self) -> str:
        times = f" x{self.count}" if self.count > 1 else ""
        return f"{self.label}{times}: {self.reason}"


class Stages:
    """One program, down to Tile IR.

    Args:
        graph: the traced program.
        target: the machine to lower it for.

    Attributes:
        graph: the Graph after its passes.
        schedule: kernels, tile choices and the buffer plan.
        tile: the Tile module.
        decisions: what fusion decided, and why.
        timings: seconds by step.
        machine: what it was lowered for.
    """

    def __init__(self, graph: Func, target: Machine | Gpu) -> None:
        self.machine: Machine | Gpu = target
        self.context = PassContext(config.current().verify, _dump_folder(graph.name), _is_dumped)
        self.timings = self.context.timings
        self.traced = graph
        self.graph = run_pipeline(graph, GRAPH_PASSES, self.context)
        self._check("graph", self.graph)
        start = time.perf_counter()
        lowered = lower_graph(self.graph, machine=self.machine)
        self.decisions: tuple[Decision, ...] = lowered.decisions
        program = lowered.func
        if isinstance(self.machine, Gpu):
            program = split(program, self.machine)
        program = heuristics.choose(program, self.machine)
        self.schedule, self.arena = plan.plan(program)
        self._done("schedule", start, self.schedule)

    def _done(self, name: str, start: float, item: Func | Module) -> None:
        self.context.record(name, time.perf_counter() - start)
        self.context.write(name, lambda: str(item))
        self._check(name, item)

    def _check(self, name: str, item: Func | Module) -> None:
        if self.context.verify:
            spec = SPECS[name]
            check(name, item, spec)

    @functools.cached_property
    def tile(self) -> Module:
        """The Tile module."""
        start = time.perf_counter()
        module = lower_program(self.schedule)
        if isinstance(self.machine, Gpu):
            module = join_loops(module)
        self._done("tile", start, module)
        return module

    @property
    def signature(self) -> Signature:
        """What the native function takes and gives."""
        inputs = [_shape_and_dtype(a.type) for a in self.schedule.args]
        outputs = [_shape_and_dtype(v.type) for v in self.schedule.outputs]
        return Signature(tuple(inputs), tuple(outputs), self.schedule.dims, self.arena)

    def why(self) -> str:
        """The fusion decisions, one per line."""
        return "\n".join(str(d) for d in self.decisions)

    def kernels(self) -> list[KernelInfo]:
        """The kernels in order of their first launch, equal ones counted together, and calls of
        libraries.
        """
        found: dict[tuple[str, str], int] = {}
        for op in walk(self.schedule.body):
            if isinstance(op, Kernel) and not op.is_unwritten:
                nests = [n.reason for n in op.body.ops if isinstance(n, Nest)]
                key = (op.label, "; ".join([op.reason, *dict.fromkeys(nests)]))
                found[key] = found.get(key, 0) + 1
            elif isinstance(op, HostCall) and isinstance(op.function, LibraryFunction):
                sizes = ", ".join([str(v.type)[len("buf<") : -1] for v in op.inputs])
                key = (op.function.name, f"a call of a library with {sizes}")
                found[key] = found.get(key, 0) + 1
        return [KernelInfo(label, count, reason) for (label, reason), count in found.items()]

    def stage(self, name: str) -> str:
        """One stage as text, by any of the names in `STAGES`."""
        found = getattr(self, STAGES[name], None)
        if found is None:
            raise OptionError(
                f"stage: {name!r} is no stage of a program for {self.machine}",
                rule=f"its stages are {', '.join([s for s in STAGES if hasattr(type(self), s)])}",
            )
        return str(found)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.traced.name}, {self.machine})"


class Lowered(Stages):
    """One program for a CPU in all of its forms.

    Attributes:
        target: the Target module.
        llvm: LLVM IR text.
        asm: assembly text.
    """

    def __init__(self, graph: Func, target_machine: Machine | None = None) -> None:
        self.cpu = target_machine or current_machine()
        super().__init__(graph, self.cpu)

    @functools.cached_property
    def target(self) -> Module:
        """The Target module, legalized for the machine."""
        tile = self.tile
        start = time.perf_counter()
        module = legalize(lower_module(tile, self.cpu), self.cpu)
        self._done("target", start, module)
        if self.context.verify:
            verify_target(module, self.cpu, legalized=True)
        return module

    @functools.cached_property
    def llvm(self) -> str:
        """LLVM IR text."""
        target = self.target
        start = time.perf_counter()
        text = write_module(target, self.cpu, ENTRY)
        self.context.record("llvm text", time.perf_counter() - start)
        self.context.write("llvm", lambda: text, ".ll")
        return text

    @functools.cached_property
    def host_calls(self) -> HostCalls:
        """What the machine code calls back."""
        return HostCalls(self.target)

    @functools.cached_property
    def native(self) -> cpu.NativeModule:
        """The loaded machine code."""
        text = self.llvm
        start = time.perf_counter()
        imports = {**self.host_calls.symbols, **threads.imports(self.target)}
        module = cpu.compile_text(text, self.cpu, name=self.traced.name, imports=imports)
        self.context.record("native", time.perf_counter() - start)
        self.context.write("asm", module.assembly, ".s")
        return module

    @property
    def asm(self) -> str:
        """Assembly text."""
        return self.native.assembly()

    def executable(self) -> Executable:
        """The callable program."""
        native = self.native
        small = self.schedule.dims == () and _work(self.schedule) < 4096
        caller = native.caller(ENTRY, release_gil=not small)
        if self.host_calls:
            caller = checked(caller, self.host_calls)
        return Executable(self.signature, caller, native)


def _shape_and_dtype(type: Type) -> tuple[tuple[Dim, ...], DType]:
    assert isinstance(type, BufType)
    return type.shape, type.dtype


def _work(program: Func) -> int:
    """A rough count of elements written, to decide whether to release the interpreter's lock."""
    total = 0
    for op in program.ops:
        for value in op.results:
            assert isinstance(value.type, BufType)
            size = value.type.size
            total += size if isinstance(size, int) else 4096
    return total


_PASS_NAMES = frozenset(p.name for p in GRAPH_PASSES)
_PROGRAMS = itertools.count()


def _dump_folder(name: str) -> Path | None:
    """Where the stages of a program are written, by the settings; a folder for each program."""
    settings = config.current()
    if not settings.dump:
        return None
    known = {"all", *STAGES, *_PASS_NAMES}
    unknown = sorted(set(settings.dump.split(",")) - known)
    if unknown:
        raise ConfigError(
            f"config: dump names {unknown[0]!r}, which is no stage",
            rule=f"it names `all`, stages ({', '.join(STAGES)}) or passes "
            f"({', '.join(sorted(_PASS_NAMES))})",
        )
    return Path(settings.dump_dir) / f"{next(_PROGRAMS):03d}-{name}"


def _is_dumped(step: str) -> bool:
    """Whether the settings ask for a step: by its name, its layer's, or `all`."""
    wanted = config.current().dump.split(",")
    layer = "graph" if step in _PASS_NAMES else step
    return any(w in ("all", step) or STAGES.get(w) == layer for w in wanted)


def lower(graph: Func) -> Lowered:
    """Lowers a closed Graph for the current machine."""
    return Lowered(graph)
