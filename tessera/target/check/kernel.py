"""The whole check of one kernel."""

from __future__ import annotations

from tessera.ir.core import Func, Op
from tessera.target.check.objects import Lifetimes, check_bounds
from tessera.target.check.races import Races
from tessera.target.check.report import Report, Verdict, worst
from tessera.target.check.trace import Trace
from tessera.target.check.uniform import threads_of
from tessera.target.gpu import Gpu


def check_kernel(func: Func, machine: Gpu) -> Report:
    """Proves what can be proved about a kernel's memory accesses.

    Args:
        func: a kernel in Target IR, with barriers and waits put in.
        machine: the GPU that it is for.
    """
    threads = threads_of(func)
    races = Races(func, threads)
    lifetimes = Lifetimes(races.objects)

    def visit(op: Op, trace: Trace) -> None:
        for access in trace.reader.accesses(op):
            lifetimes.see(access)

    trace = Trace(func, races.at_barrier, visit)
    trace.run()
    verdicts: list[Verdict] = [
        *races.verdicts,
        *check_bounds(trace.accesses, races.objects, threads),
        *lifetimes.verdicts,
    ]
    return Report(func, str(machine), worst(verdicts))
