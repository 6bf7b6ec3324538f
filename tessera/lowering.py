"""The way down, from Graph to the text for LLVM: the one module that names every layer.

    Graph --from_graph--> Schedule --choose, plan--> Schedule --from_schedule--> Tile
          --simd--> Target --legalize--> Target --writer--> LLVM text

The order of the passes stands here, with its reasons. Way and passes of programs for GPUs part at
Tile; see `compile_gpu.py`.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Sequence

from tessera.errors import MemoryBudgetError
from tessera.graph.spec import GRAPH
from tessera.ir import loc
from tessera.ir.core import Block, Func, Module, Op
from tessera.ir.hostcall import LibraryFunction
from tessera.ir.intexpr import Dim
from tessera.ir.verify import Spec
from tessera.ir.walk import walk
from tessera.schedule import heuristics, plan, together
from tessera.schedule.access import one_program
from tessera.schedule.awake import share_awake
from tessera.schedule.block_ops import Each, nests_of
from tessera.schedule.duration import nbytes
from tessera.schedule.fetching import fetch_ahead
from tessera.schedule.from_graph import lower as lower_graph
from tessera.schedule.fusion import Decision
from tessera.schedule.hold_budget import Held, hold
from tessera.schedule.inside import promise_indices
from tessera.schedule.join_in_blocks import join_in_blocks
from tessera.schedule.memory_budget import Again, fit, sums_of, with_less_behind_loops
from tessera.schedule.memory_use import MemoryUse, host_bytes, memory_use, peak
from tessera.schedule.offload import OFFLOAD, copied, moved
from tessera.schedule.ops import (
    ArgReduce,
    Contract,
    HostCall,
    Kernel,
    Nest,
    Reduce,
    Scan,
    Sort,
    While,
)
from tessera.schedule.pack_products import pack_products
from tessera.schedule.plane_sums import sum_by_planes
from tessera.schedule.planes import hold_planes
from tessera.schedule.read_in_order import read_in_order
from tessera.schedule.sentinels import has_unwatched, put_sentinels
from tessera.schedule.short_period import share_rows
from tessera.schedule.sort_ops import WORDS
from tessera.schedule.spec import COPIES, SCHEDULE
from tessera.schedule.split import split, split_for_threads
from tessera.schedule.state_layout import lay_out_states
from tessera.schedule.streaming import stream_outputs
from tessera.schedule.strips import hold_strips
from tessera.schedule.types import Axis, BufType
from tessera.schedule.vector_sort import in_single_vectors, split_sorts
from tessera.schedule.windows import take_windows
from tessera.target.fourier.calls import steps_of_call
from tessera.target.from_tile.simd import lower_kernel, lower_main, lower_module
from tessera.target.gpu import Gpu
from tessera.target.linalg.calls import has_code
from tessera.target.llvm.modules import ModuleText, ModuleWriter, write_modules
from tessera.target.machine import Machine
from tessera.target.passes.check_bounds import Site, check_bounds
from tessera.target.passes.legalize import Legalization, legalize
from tessera.target.passes.outline import outline
from tessera.target.spec import TARGET
from tessera.target.spec import verify as verify_target
from tessera.tile.from_schedule import lower_program
from tessera.tile.lowering.join_loops import join_loops
from tessera.tile.lowering.nest import grid_of
from tessera.tile.spec import TILE

__all__ = [
    "SPECS",
    "count_kernels",
    "descend",
    "has_unwatched",
    "is_quick",
    "to_schedule",
    "to_target",
    "to_tile",
    "verify_target",
    "within_budget",
    "write_modules",
]

SPECS: dict[str, Spec] = {
    "graph": GRAPH,
    "schedule": SCHEDULE,
    "tile": TILE,
    "target": TARGET,
    "host": TARGET,
}


def to_schedule(
    graph: Func,
    machine: Machine | Gpu,
    donated: Collection[int] = (),
    sentinels: Collection[str] = (),
) -> tuple[Func, Dim, tuple[Decision, ...]]:
    """Kernels with tilings and places, the bytes of their arena, and what fusion decided.

    Args:
        graph: the program.
        machine: what it is for.
        donated: the inputs whose memory it may write to.
        sentinels: what values are looked at for.
    """
    if "bounds" in sentinels:
        graph = promise_indices(graph)
    with one_program():
        chosen, decisions = _tiled(graph, machine)
        is_cpu = not isinstance(machine, Gpu)
        schedule, arena = plan.plan(chosen, donated=donated, lend=is_cpu, alternates=is_cpu)
        if not isinstance(machine, Gpu):
            schedule = stream_outputs(schedule, machine)
            schedule = together.join(schedule)  # last: whose memory is whose is known
        if sentinels:
            schedule = put_sentinels(schedule, sentinels)  # nothing else depends on them
    return schedule, arena, decisions


def _tiled(graph: Func, machine: Machine | Gpu) -> tuple[Func, tuple[Decision, ...]]:
    """Kernels with tilings, and what fusion decided."""
    lowered = lower_graph(graph, machine=machine)
    if isinstance(machine, Gpu):
        chosen = heuristics.choose(split(lowered.func, machine), machine)
        if OFFLOAD in graph.attrs:
            chosen = moved(chosen, machine, graph.attrs[OFFLOAD])
        return chosen, lowered.decisions
    # What is cut into rows has its tiles, and is left alone by what follows.
    program = read_in_order(join_in_blocks(lowered.func, machine), machine)
    program = sum_by_planes(split_sorts(program, machine), machine)
    program = split_for_threads(pack_products(program, machine), machine.cores)
    program = share_rows(lay_out_states(program, machine), machine)
    chosen = heuristics.choose(program, machine)
    chosen = in_single_vectors(share_awake(program, chosen, machine), machine)
    chosen = take_windows(chosen, machine)  # before it: what is not padded is no plane to hold
    chosen = hold_planes(chosen, machine)  # kernels have the tiles that they have by themselves
    return fetch_ahead(hold_strips(chosen, machine), machine), lowered.decisions


def within_budget(
    graph: Func, budget: int, machine: Machine | Gpu, donated: Collection[int] = ()
) -> tuple[Func, tuple[Again, ...]]:
    """A Graph that computes the same and needs no more than a budget: some values are computed
    twice, and on a GPU some buffers are moved to the host meanwhile. And what is computed again.

    Args:
        graph: the program.
        budget: bytes at the peak.
        machine: what it is for.
        donated: the inputs whose memory it may write to.

    Raises:
        MemoryBudgetError: none was found.
    """
    if graph.dims:
        return graph, ()
    if isinstance(machine, Gpu):
        held = _held(graph, budget, machine, donated)
        return held.graph, held.again

    def planned(graph: Func) -> tuple[Func, Dim]:
        schedule, arena, _ = to_schedule(graph, machine, donated)
        return schedule, arena

    def fitted(graph: Func) -> tuple[Func, int, tuple[Again, ...]]:
        known = sums_of(planned(graph)[0])

        def need(other: Func) -> int | None:
            schedule, arena = planned(other)
            if not sums_of(schedule) <= known:
                return None
            return int(str(memory_use(schedule, arena).peak))

        return fit(graph, budget, machine, need)

    best = fitted(graph)
    if best[1] > budget:
        # Other programs for the same sums, in another order.
        for other in with_less_behind_loops(graph, machine):
            best = min(best, fitted(other), key=lambda one: one[1])
            if best[1] <= budget:
                break
    found, least, again = best
    if least > budget:
        uses = [memory_use(*planned(each)) for each in (graph, found)]
        place = "a CPU has nowhere to move buffers to"
        raise _too_little(graph, budget, uses[0], uses[1], "computed again", place)
    return found, again


def _held(graph: Func, budget: int, machine: Gpu, donated: Collection[int]) -> Held:
    """The cheapest way to hold a budget on a GPU."""

    def tiled(graph: Func) -> Func:
        with one_program():
            return _tiled(graph, machine)[0]

    def used(program: Func) -> MemoryUse:
        return memory_use(*plan.plan(program, donated=donated, alternates=False))

    def planned(program: Func) -> tuple[int, int]:
        schedule, arena = plan.plan(program, donated=donated, alternates=False)
        assert isinstance(arena, int)
        return peak(schedule, arena), arena

    held = hold(graph, budget, machine, tiled, planned)
    if held.need > budget:
        uses = [used(tiled(one)) for one in (graph, held.graph)]
        what = "computed again or moved to the host"
        place = "what loops work on, arguments and results stay where they are"
        raise _too_little(graph, budget, uses[0], uses[1], what, place)
    return held


def _too_little(
    graph: Func, budget: int, plain: MemoryUse, least: MemoryUse, done: str, place: str
) -> MemoryBudgetError:
    fixed = int(str(least.peak)) - int(str(least.arena))
    needs = f"{least.peak} bytes at the peak with all that helps {done}"
    if least.peak == plain.peak:
        how = "computing values again does not help"
        if "moved" in done:
            how = "neither computing values again nor moving them to the host helps"
        needs = f"{plain.peak} bytes at the peak, and {how}"
    return MemoryBudgetError(
        f"{graph.name}: it needs {needs}, {int(str(least.peak)) - budget} more than its memory "
        f"budget of {budget}",
        loc=loc.current(),
        rule="a plan holds the budget, arguments and results included",
        notes=[f"without a budget it needs {plain.peak}; arguments and results are {fixed}", *[
            str(buffer) for buffer in least.buffers
        ]],
        fix="donate arguments, use smaller dtypes or batches, or `ts.checkpoint` inside of loops; "
        f"{place}",
    )


def to_tile(schedule: Func, machine: Machine | Gpu, checked: bool) -> Module:
    """The kernels in Tile IR, and what launches them."""
    module = lower_program(schedule, limited=checked)
    return join_loops(module) if isinstance(machine, Gpu) else module


def to_target(tile: Module, machine: Machine, checked: bool) -> tuple[Module, tuple[Site, ...]]:
    """The program in Target IR, legalized for a CPU, and the accesses that it checks."""
    module, sites = lower_module(tile, machine), ()
    if checked:
        module, sites = check_bounds(module)  # before legalization, which rewrites its arithmetic
    return legalize(module, machine), sites


def descend(
    schedule: Func, machine: Machine, entry: str, take: Callable[[ModuleText], None]
) -> tuple[Module, Module, dict[str, float]]:
    """What `to_tile`, `to_target` and `write_modules` give, kernel by kernel, so that texts can be
    compiled while others are still made.

    Args:
        schedule: the planned program.
        machine: the CPU.
        entry: as for `write_modules`.
        take: what is done with each module of text.

    Returns:
        The Tile and the Target module, and the seconds that each stage took.
    """
    seconds = {"tile": 0.0, "target": 0.0, "llvm text": 0.0}
    start = time.perf_counter()
    # The entry, which comes last, repeats something then.
    loops = any(isinstance(op, While) for op in walk(schedule.body))
    legalization, writer = Legalization(machine), ModuleWriter(machine, take, loops)
    funcs: dict[str, Func] = {}

    def passed(stage: str) -> None:
        nonlocal start
        now = time.perf_counter()
        seconds[stage] += now - start
        start = now

    def add(func: Func, is_entry: bool = False) -> None:
        legal = legalization.run(func)
        passed("target")
        for one in legal:
            funcs[one.name] = one
            if one is not legal[-1] or not is_entry:
                writer.add(one)
        passed("llvm text")

    def each(kernel: Func, rank: int) -> None:
        passed("tile")
        for one in outline(lower_kernel(kernel, rank, machine)):
            add(one)

    tile = lower_program(schedule, each=each)
    passed("tile")
    kernels = {name: f for name, f in tile.funcs.items() if name != tile.main}
    for func in lower_main(tile.entry, kernels, machine).values():
        add(func, func.name == tile.main)
    target = Module(funcs, tile.main)
    writer.finish(target, entry)
    passed("llvm text")
    return tile, target, seconds


def shared_kernels(program: Func) -> list[str]:
    """Which kernels of a planned program threads share, and in what pieces, a line each."""
    lines: dict[str, None] = {}
    for kernel in [op for op in walk(program.body) if isinstance(op, Kernel)]:
        for nest in kernel.body.ops:
            if isinstance(nest, (Nest, Each)) and nest.grain:
                grid = (nest.part.extent,) if isinstance(nest, Each) else grid_of(nest)
                many = f"{math.prod(grid, start=1)} programs, {nest.grain} at a time"
                lines[f"{kernel.label}: threads share it, {many}"] = None
    return list(lines)


def host_copies(program: Func) -> tuple[int, int]:
    """The bytes of the host's memory that buffers of a planned program are moved to, and how many
    copies to it and from it there are."""
    return host_bytes(program), sum([isinstance(op, COPIES) for op in program.ops])


def moved_buffers(program: Func) -> list[str]:
    """Which buffers of a program are moved to the host, a line each."""
    lines: list[str] = []
    for op, times in copied(program):
        assert isinstance(op.x.type, BufType)
        size, type = nbytes(op.x), str(op.x.type)[len("buf<") : -1]
        back = "once" if times == 1 else f"{times} times"
        lines.append(
            f"moved to the host for the memory budget: {size} bytes, {type}, {op.loc}; fetched "
            f"{back}"
        )
    return lines


def count_kernels(program: Func, machine: Machine | Gpu) -> dict[tuple[str, str], int]:
    """How often a Schedule program launches kernels of equal label and reason, and calls libraries,
    or code that does the same, with arrays of equal types; in order of the first time.
    """
    found: dict[tuple[str, str], int] = {}
    for op in walk(program.body):
        if isinstance(op, Kernel) and not op.is_unwritten:
            blocks = [n.reason for n in op.body.ops if isinstance(n, Each)]
            nests = [*blocks, *[n.reason for n in nests_of(op.body)]]
            key = (op.label, "; ".join([op.reason, *dict.fromkeys(nests)]))
            found[key] = found.get(key, 0) + 1
        elif isinstance(op, HostCall) and isinstance(op.function, LibraryFunction):
            sizes = ", ".join([str(v.type)[len("buf<") : -1] for v in op.inputs])
            types = [v.type for v in (*op.inputs, *op.results)]
            what = "a call of a library"
            if isinstance(machine, Machine) and steps_of_call(op.function, types, machine):
                what = "transforms of lines"
            elif isinstance(machine, Machine) and has_code(op.function, types):
                what = "code for small matrices"
            key = (op.function.name, f"{what} with {sizes}")
            found[key] = found.get(key, 0) + 1
    return found


QUICK = 4096
"""A program that does fewer operations is over before another thread would get the interpreter's
lock."""


def is_quick(program: Func) -> bool:
    """Whether a Schedule program does few operations, and how many is known."""
    return _work(program.body) < QUICK


def _work(block: Block) -> float:
    """A rough count of the operations on elements, to decide whether to release the interpreter's
    lock; infinite where it is not known. What is behind enough of them is not counted.
    """
    total = 0.0
    for op in block.ops:
        total += _work_of(op)
        if total >= QUICK:
            break
    return total


def _work_of(op: Op) -> float:
    if isinstance(op, (While, HostCall)):
        return math.inf
    inner = sum([_work(region) for region in op.regions])
    if isinstance(op, (Sort, *WORDS)):
        return math.inf
    if isinstance(op, (Nest, Each, Reduce, Contract)):
        return inner * _points(op.axes)
    if isinstance(op, (ArgReduce, Scan)):
        return inner * _points((op.axis,))
    return inner + 1


def _points(axes: Sequence[Axis]) -> float:
    found = 1.0
    for axis in axes:
        found *= axis.extent if isinstance(axis.extent, int) else math.inf
    return found
