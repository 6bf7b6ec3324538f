"""Grains of kernels in loops, of many steps or beside others which threads share.

To wake a thread takes longer than many a kernel; but a worker that has just done its part of a job
looks for the next one for a while before it sleeps. In the steps of a loop, jobs follow each other
so closely that it is awake; to wake it once takes as long as many steps.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from tessera.ir.core import Block, Func, Op, Value
from tessera.schedule import ops
from tessera.schedule.heuristics import UNKNOWN_STEPS, Cpu, choose_nest
from tessera.schedule.left_behind import is_shared
from tessera.schedule.ordering import with_orders
from tessera.schedule.rebuild import kernels, with_bodies

MANY_STEPS = 32
"""Steps in which threads save what it takes to wake them: 10 us, where they slept."""


def share_awake(func: Func, chosen: Func, machine: Cpu) -> Func:
    """The program with tiles; kernels that one thread runs are shared if less is worth the while.

    Args:
        func: the program without tiles.
        chosen: the same with tiles, kernel by kernel.
        machine: the CPU.
    """
    made = list(kernels(chosen.body))
    beside = dict(zip(made, kernels(func.body), strict=True))
    awake = {kernel: beside[kernel] for kernel in _in_loops(chosen.body, {}, machine)}
    if not awake:
        return chosen

    def body(kernel: ops.Kernel) -> Block:
        if kernel not in awake:
            return kernel.body
        code: list[Op] = []
        for op, old in zip(kernel.body.ops, awake[kernel].body.ops, strict=True):
            if isinstance(old, ops.Nest) and not old.tile:
                asked = old.rebuild(grain=1)
                assert isinstance(asked, ops.Nest)
                op = choose_nest(asked, machine)
            code.append(op)
        return Block(kernel.body.args, with_orders(code), ())

    return with_bodies(chosen, body)


def _in_loops(block: Block, known: dict[Value, int], machine: Cpu) -> Iterator[ops.Kernel]:
    """The kernels of loops that no threads share: those of many steps, or beside a shared one.

    Args:
        block: what is around the loops.
        known: numbers in buffers; the block's are added.
        machine: the CPU.
    """
    for op in block.ops:
        if isinstance(op, ops.Kernel):
            known.update(_constant(op))
            continue
        for region in op.regions:
            yield from _in_loops(region, known, machine)
            if isinstance(op, ops.While):
                here = [one for one in region.ops if isinstance(one, ops.Kernel)]
                alone = [one for one in here if not any(map(is_shared, one.body.ops))]
                is_long = machine.hands_over and _steps(op, known) >= MANY_STEPS
                if is_long or len(alone) < len(here):
                    yield from alone


def _steps(loop: ops.While, known: Mapping[Value, int]) -> int:
    """How many steps a loop has that counts in ones, if one can tell."""
    begin = dict(zip(loop.cond.args, loop.init, strict=True))
    match loop.cond.ops:
        case [ops.Kernel(inputs=(a, b))]:
            first, last = known.get(begin.get(a, a)), known.get(begin.get(b, b))
            if first is not None and last is not None:
                return abs(last - first)
        case _:
            pass
    return UNKNOWN_STEPS


def _constant(kernel: ops.Kernel) -> Iterator[tuple[Value, int]]:
    """The buffer of a kernel that stores a number, and the number."""
    for nest in kernel.body.ops:
        match nest.regions[0].ops if isinstance(nest, ops.Nest) else ():
            case [ops.Const(value=int() as value), ops.Store()] if len(kernel.results) == 1:
                yield kernel.results[0], value
            case _:
                pass
