"""The whole check of one kernel."""

from __future__ import annotations

from dataclasses import replace

from tessera.ir.core import Func, Op
from tessera.ir.walk import walk
from tessera.target import gpu_ops as g
from tessera.target import ops as t
from tessera.target.check.blocks import check_blocks
from tessera.target.check.flow import Flow
from tessera.target.check.objects import Lifetimes, check_bounds
from tessera.target.check.phases import check_phases
from tessera.target.check.races import BY_PHASES, Races
from tessera.target.check.report import Outcome, Report, Verdict, worst
from tessera.target.check.rules import check_rules
from tessera.target.check.trace import Trace
from tessera.target.check.uniform import threads_of
from tessera.target.gpu import Gpu


def check_kernel(func: Func, machine: Gpu, blocks: int | None = None) -> Report:
    """Checks the rules of a kernel, and proves what can be proved about its memory accesses.

    Args:
        func: a kernel in Target IR, with barriers and waits put in.
        machine: the GPU that it is for.
        blocks: how many blocks every launch of it has, if that is known.

    Raises:
        VerifyError: a numbered rule is broken. Races and the like do not raise: see
            `Report.raise_if_refuted`.
    """
    check_rules(func, machine)
    if blocks == 0 or _is_never_launched(func):
        return Report(func, str(machine), ())
    threads = threads_of(func)
    races = Races(func, threads)
    lifetimes = Lifetimes(races.objects)
    flow = Flow(func)

    def visit(op: Op, trace: Trace) -> None:
        accesses = trace.reader.accesses(op)
        for access in accesses:
            lifetimes.see(access)
        flow.visit(op, trace, accesses)

    trace = Trace(func, races.at_barrier, visit)
    races.block = trace.values.block
    if blocks:
        trace.values.block.hi = blocks - 1
    trace.run()
    flow.at_end(trace.state)
    # A kernel that does not ask for its block's number is for one block.
    alone = blocks == 1 or not any(isinstance(op, g.BlockId) for op in walk(func.body))
    phases = check_phases(func, races.objects.names)
    by_phases = any(v.outcome is Outcome.PROVED for v in phases)
    verdicts: list[Verdict] = [
        *(
            replace(v, outcome=Outcome.PROVED) if by_phases and v.why == BY_PHASES else v
            for v in races.verdicts
        ),
        *check_bounds(trace.accesses, races.objects, threads),
        *lifetimes.verdicts,
        *check_blocks(trace.accesses, trace.values.block, races.objects.names, alone),
        *phases,
    ]
    return Report(func, str(machine), worst(verdicts))


def _is_never_launched(func: Func) -> bool:
    """Whether an axis of the grid is empty: the block's number would be divided by zero."""
    for op in func.ops:
        if isinstance(op, t.Map) and op.fn.name in ("rem", "trunc_div"):
            by = op.args[1].op
            if isinstance(by, t.Const) and by.value == 0 and isinstance(op.args[0].op, g.BlockId):
                return True
    return False
