"""Programs in all of their forms.

    Graph --passes--> Graph --> Schedule --> Tile --> Target --> LLVM text --LLVM--> machine code

`lower` returns a `Lowered`, which holds each stage and prints it; `Lowered.executable()` loads the
code. The passes below the Graph's are in `lowering.py`, which is loaded when a stage is first made:
a process whose programs all come from the cache does not need it.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Collection, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Self

from tessera.config import OVERRIDDEN, ConfigError, config
from tessera.dtypes import DType
from tessera.errors import OptionError
from tessera.graph.determinism import left_to_chance
from tessera.graph.effects import EFFECTS
from tessera.graph.passes import simplify
from tessera.graph.passes.block_rows import BlockRows, reasons_against
from tessera.graph.passes.fast_functions import FUNCTIONS, LOOKED_UP
from tessera.graph.passes.fast_math import Change, fast_math
from tessera.graph.passes.loops import Loops
from tessera.graph.passes.narrow_integers import NarrowIntegers
from tessera.graph.passes.narrow_products import NarrowProducts
from tessera.graph.passes.window_products import WindowProducts
from tessera.ir.core import Func, Module
from tessera.ir.effects import parse_text, show
from tessera.ir.interpreter import young_garbage_only
from tessera.ir.intexpr import Dim
from tessera.ir.lazy import cached_property
from tessera.ir.passes import Pass, PassContext, check, run_pipeline
from tessera.ir.types import TensorType, Type
from tessera.runtime import cpu, engine, forks, programs, threads
from tessera.runtime.bounds import BoundsRecord
from tessera.runtime.cache import default_cache
from tessera.runtime.call import make_caller
from tessera.runtime.executable import Executable, Signature
from tessera.runtime.hostcall import CallSite, HostCalls, call_sites, checked
from tessera.target.gpu import Gpu
from tessera.target.machine import Machine, host, machine

if TYPE_CHECKING:
    from tessera.schedule.fusion import Decision
    from tessera.schedule.memory_budget import Again
    from tessera.schedule.memory_use import MemoryUse
    from tessera.target.llvm.modules import ModuleText
    from tessera.target.passes.check_bounds import Site

GRAPH_PASSES: tuple[Pass, ...] = (
    simplify.InlineCalls(),  # first: what follows sees one flat program
    simplify.Canonicalize(),  # before the other two, which compare ops by their text
    simplify.FoldConstants(),
    Loops(),  # before equal ops are found, some of which it makes
    simplify.CommonSubexpressions(),
    simplify.Canonicalize(),  # constants and shared values uncover more identities
    NarrowIntegers(),  # each value once, as equal ones are shared by now
    WindowProducts(),  # once chains are as short as they get, and what is shared is seen to be
    simplify.DeadCode(),  # last: all others leave dead ops behind
)

CPU_PASSES: tuple[BlockRows, ...] = (
    BlockRows(),  # on ops that all do something, as it counts what reads what
)
"""What comes after them for a CPU, whose caches keep what a GPU keeps in registers. Each can say
why it left something as it was."""

GPU_PASSES: tuple[Pass, ...] = (
    NarrowProducts(),  # last: constants that are cast are folded, and casts of casts are gone
)
"""What comes after them for a GPU, which has instructions for products of narrow numbers."""

ENTRY = "tessera_run"

_compiling = forks.Gate()

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
    """One program, down to Tile IR. Each stage is made when it is first asked for.

    Args:
        graph: the traced program.
        target: the machine to lower it for.
        donated: the inputs whose memory it may write to.

    Attributes:
        traced: the program as given, after what `ts.fast_math` lets change.
        changes: what that did, and what `ts.nondeterministic` did.
        again: what is computed once more to hold a budget of memory, once the graph is made.
        timings: seconds by step.
        machine: what it is lowered for.
        settings: those in force when it was made.
    """

    def __init__(
        self, graph: Func, target: Machine | Gpu, donated: Collection[int] = ()
    ) -> None:
        self.machine: Machine | Gpu = target
        self.donated = tuple(sorted(donated))
        self.context = PassContext(config.current().verify, _dump_folder(graph.name), _is_dumped)
        self.timings = self.context.timings
        # Before anything else, as caches know programs by what is traced.
        is_gpu = isinstance(target, Gpu)
        self.traced, self.changes = graph, list[Change]()
        if OVERRIDDEN.value:
            fused = is_gpu or target.fma
            slow = FUNCTIONS if is_gpu else LOOKED_UP if target.looks_up else ()
            self.traced, self.changes = fast_math(graph, fused, FUNCTIONS.keys() - slow)
        if OVERRIDDEN.value and is_gpu:
            chance = left_to_chance(graph)
            self.changes += [Change(what, loc, "nondeterministic") for what, loc in chance]
        self.settings = config.current()
        self.again: tuple[Again, ...] = ()

    @cached_property
    @young_garbage_only()
    def graph(self) -> Func:
        """The Graph after its passes."""
        with config.using(self.settings):
            to = self.machine
            own = GPU_PASSES if isinstance(to, Gpu) else CPU_PASSES
            inline = simplify.InlineCalls(selects=isinstance(to, Machine) and to.compresses)
            given = (*GRAPH_PASSES, *own)
            passes = tuple([inline if p.name == inline.name else p for p in given])
            graph = run_pipeline(self.traced, passes, self.context)
            budget = self.settings.memory_budget
            if budget:
                from tessera.lowering import within_budget

                graph, self.again = within_budget(graph, budget, self.machine, self.donated)
            self._check("graph", graph)
            return graph

    @cached_property
    @young_garbage_only()
    def _planned(self) -> tuple[Func, Dim, tuple[Decision, ...]]:
        """The Schedule, the size of the arena, and what fusion decided."""
        from tessera.lowering import to_schedule

        graph = self.graph
        with config.using(self.settings):
            start = time.perf_counter()
            schedule, arena, decisions = to_schedule(
                graph, self.machine, self.donated, self.settings.sentinel_set
            )
            self._done("schedule", start, schedule)
        return schedule, arena, decisions

    @property
    def effects(self) -> tuple[str, ...]:
        """The effects of the program, by the names of `ts.effects`."""
        return tuple(show(parse_text(self.traced.attrs.get(EFFECTS, ""))))

    @property
    def schedule(self) -> Func:
        """Kernels, tile choices and the buffer plan."""
        return self._planned[0]

    @property
    def arena(self) -> Dim:
        """Bytes of scratch memory."""
        return self._planned[1]

    @property
    def decisions(self) -> tuple[Decision, ...]:
        """What fusion decided, and why."""
        return self._planned[2]

    def _done(self, name: str, start: float, item: Func | Module) -> None:
        self.context.record(name, time.perf_counter() - start)
        self.context.write(name, lambda: str(item))
        self._check(name, item)

    def _check(self, name: str, item: Func | Module) -> None:
        if self.context.verify:
            from tessera.lowering import SPECS

            check(name, item, SPECS[name])

    @cached_property
    @young_garbage_only()
    def tile(self) -> Module:
        """The Tile module."""
        from tessera.lowering import to_tile

        schedule = self.schedule
        start = time.perf_counter()
        module = to_tile(schedule, self.machine, self.is_checked)
        self._done("tile", start, module)
        return module

    @property
    def signature(self) -> Signature:
        """What the native function takes and gives."""
        from tessera.schedule.plan import overwritten

        return _signature(self.traced, self.arena, overwritten(self.schedule))

    @property
    def is_checked(self) -> bool:
        """Whether the code checks its accesses to memory."""
        return self.settings.debug_bounds and not isinstance(self.machine, Gpu)

    def to_schedule(self) -> Self:
        """Runs the passes down to the Schedule now, so that their errors are raised here."""
        assert self.schedule is not None
        return self

    def memory(self, **dims: int) -> MemoryUse:
        """The bytes that a call holds at once, known before it runs, and the largest buffers.

        Args:
            **dims: a number for each symbolic dim; formulas have those that are left out.

        Raises:
            OptionError: there is no such dim.
        """
        from tessera.schedule.memory_use import memory_use

        names = self.traced.dims
        if not set(dims) <= set(names):
            raise OptionError(
                f"memory: {self.traced.name} is given {', '.join(sorted(dims))}",
                rule=f"its symbolic dims are {', '.join(names) or 'none'}",
                fix="write `lowered.memory(S=128)` for a dim S" if names else None,
            )
        with config.using(self.settings):
            return memory_use(self.schedule, self.arena).at_sizes(dims)

    def why(self) -> str:
        """The fusion decisions, one per line, then what a budget of memory has computed again or
        moved to the host, and which kernels threads share."""
        from tessera.lowering import moved_buffers, shared_kernels

        lines = [*map(str, self.changes), *[str(d) for d in self.decisions]]
        lines += [*map(str, self.again), *moved_buffers(self.schedule)]
        for rule in () if isinstance(self.machine, Gpu) else CPU_PASSES:
            lines += reasons_against(self.graph.body, rule)
        return "\n".join([*lines, *shared_kernels(self.schedule)])

    def kernels(self) -> list[KernelInfo]:
        """The kernels in order of their first launch, equal ones counted together, and calls of
        libraries, or what does the same.
        """
        from tessera.lowering import count_kernels

        found = count_kernels(self.schedule, self.machine)
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

    def __init__(
        self,
        graph: Func,
        target_machine: Machine | None = None,
        donated: Collection[int] = (),
    ) -> None:
        self.cpu = target_machine or current_machine()
        # The accesses that the code checks, once it is made.
        self.sites: tuple[Site, ...] = ()
        super().__init__(graph, self.cpu, donated)

    @cached_property
    @young_garbage_only()
    def target(self) -> Module:
        """The Target module, legalized for the machine."""
        from tessera.lowering import to_target, verify_target

        tile = self.tile
        start = time.perf_counter()
        module, self.sites = to_target(tile, self.cpu, self.is_checked)
        self._done("target", start, module)
        if self.context.verify:
            verify_target(module, self.cpu, legalized=True)
        return module

    @cached_property
    @young_garbage_only()
    def modules(self) -> tuple[ModuleText, ...]:
        """LLVM IR text, in modules that are compiled by themselves."""
        from tessera.lowering import write_modules

        target = self.target
        start = time.perf_counter()
        modules = tuple(write_modules(target, self.cpu, ENTRY))
        self.context.record("llvm text", time.perf_counter() - start)
        self.context.write("llvm", lambda: _joined(modules), ".ll")
        return modules

    @property
    def llvm(self) -> str:
        """LLVM IR text; the modules of a long program one after the other."""
        return _joined(self.modules)

    @cached_property
    def call_sites(self) -> tuple[CallSite, ...]:
        """Where the machine code calls back."""
        return call_sites(self.target)

    @cached_property
    def host_calls(self) -> HostCalls:
        """What the machine code calls back."""
        return HostCalls(self.call_sites)

    @cached_property
    def bounds(self) -> BoundsRecord:
        """Where the machine code reports accesses outside of buffers, and what sentinels find."""
        assert self.target is not None
        from tessera.lowering import has_unwatched

        checks = self.settings.sentinel_set - {"bounds"}
        looked_for = checks if checks and has_unwatched(self.schedule) else ()
        return BoundsRecord(self.traced.name, self.sites, looked_for)

    def _source(self, module: ModuleText) -> cpu.Source:
        """What LLVM compiles for a module. Code that checks its accesses is to be there soon: it
        runs slowly anyway."""
        fewer = "few" if self.is_checked and module.passes == "all" else module.passes
        return cpu.Source(
            module.text,
            self.cpu,
            self.traced.name,
            optimize=not (module.is_glue or self.is_checked),
            passes=fewer,
        )

    @cached_property
    def native(self) -> cpu.NativeModule:
        """The loaded machine code."""
        with cpu.Loading(default_cache(), config.current().threads) as loading:
            if not (self._is_watched or self.is_checked or {"tile", "modules"} & vars(self).keys()):
                self._descend(loading)
            else:
                for module in self.modules:
                    loading.add(self._source(module), module.is_last)
            start = time.perf_counter()
            imports = _imports(self.host_calls, threads.shares_work(self.target))
            imports.update(self.bounds.symbols)
            module = cpu.finish(loading, imports)
        self.context.record("native", time.perf_counter() - start)
        self.context.write("asm", module.assembly, ".s")
        return module

    @property
    def asm(self) -> str:
        """Assembly text, also for machines that are not this one."""
        return cpu.assembly([self._source(module) for module in self.modules])

    def _descend(self, loading: cpu.Loading) -> None:
        """Makes the stages behind the Schedule, whose texts are compiled meanwhile."""
        from tessera.lowering import descend

        modules: list[ModuleText] = []

        def take(module: ModuleText) -> None:
            modules.append(module)
            loading.add(self._source(module), module.is_last)

        tile, target, seconds = descend(self.schedule, self.cpu, ENTRY, take)
        vars(self).update(tile=tile, target=target, modules=tuple(modules))
        for name, spent in seconds.items():
            self.context.record(name, spent)

    @property
    def _is_watched(self) -> bool:
        """Whether somebody wants to see or check what the passes do."""
        return self.context.verify or self.context.dump is not None

    @_compiling
    @young_garbage_only()
    def executable(self) -> Executable:
        """The callable program; without any pass where the cache has one of equal content."""
        if self.is_checked or self.settings.sentinels:
            return self._checked()
        with config.using(self.settings) if self.settings.memory_budget else nullcontext():
            store = programs.Store(self.traced, self.cpu, self.donated)
        # Whoever wants to see or check what the passes do has them run.
        found = None if self._is_watched else self._load(store.get())
        if found is not None:
            return found
        native, calls = self.native, self.host_calls
        small = self._is_quick()
        shares_work = threads.shares_work(self.target)
        signature = self.signature
        store.put(
            programs.Record(
                native.keys, native.symbols, self.arena, not small, shares_work, self.call_sites,
                signature.overwritten,
            )
        )  # fmt: skip
        return _executable(signature, native.address(ENTRY), calls, not small, native)

    def _is_quick(self) -> bool:
        """Whether it is over before another thread would get the interpreter's lock."""
        from tessera.lowering import is_quick

        return is_quick(self.schedule)

    def _checked(self) -> Executable:
        """The callable program that looks at its record; its places are those of this Graph."""
        entry, native = self.native.address(ENTRY), self.native
        found = _executable(self.signature, entry, self.host_calls, True, native)
        first = len(found.signature.inputs)
        fresh = [first + k for k, on in enumerate(found.signature.overwritten) if on is None]
        fresh.append(first + len(found.signature.outputs))
        record = self.bounds
        found.caller = record.checked(found.caller, fresh if self.is_checked else ())
        found.main = None
        found.told = record.told if self.settings.sentinels else None
        return found

    def _load(self, record: programs.Record | None) -> Executable | None:
        """The callable program of a record, unless its machine code is gone."""
        if record is None:
            return None
        start = time.perf_counter()
        calls = HostCalls(record.calls)
        name = self.traced.name
        engine.check_host(self.cpu, name)
        imports = _imports(calls, record.shares_work)
        code = engine.load_kept(record.code, record.symbols, default_cache(), imports, name)
        if code is None:
            return None
        found = _executable(
            _signature(self.traced, record.arena, record.overwritten),
            code.addresses[ENTRY],
            calls,
            record.release_gil,
            code,
        )
        self.context.record("load", time.perf_counter() - start)
        return found


def _joined(modules: Sequence[ModuleText]) -> str:
    return "\n".join([module.text for module in modules])


def _imports(calls: HostCalls, shares_work: bool) -> dict[str, int]:
    """Addresses of what a program takes from this process under no name of a library."""
    found = dict(calls.symbols)
    if shares_work:
        found.update(threads.symbols(config.current().threads))
    return found


def _executable(
    signature: Signature, entry: int, calls: HostCalls, release_gil: bool, code: object
) -> Executable:
    caller = make_caller(entry, owner=code, release_gil=release_gil)
    if calls:
        return Executable(signature, checked(caller, calls), code)
    return Executable(signature, caller, code, entry, release_gil)


def _signature(graph: Func, arena: Dim, overwritten: tuple[int | None, ...]) -> Signature:
    """What a Graph's native function takes and gives, which no pass changes."""
    inputs = [_shape_and_dtype(v.type) for v in graph.args]
    outputs = [_shape_and_dtype(v.type) for v in graph.outputs]
    return Signature(tuple(inputs), tuple(outputs), graph.dims, arena, overwritten)


def _shape_and_dtype(type: Type) -> tuple[tuple[Dim, ...], DType]:
    assert isinstance(type, TensorType)
    return type.shape, type.dtype


_PASS_NAMES = frozenset(p.name for p in (*GRAPH_PASSES, *CPU_PASSES, *GPU_PASSES))
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


def lower(graph: Func, donated: Collection[int] = ()) -> Lowered:
    """Lowers a closed Graph for the current machine.

    Args:
        graph: the program.
        donated: the inputs whose memory it may write to.
    """
    return Lowered(graph, donated=donated)
