"""Grains of kernels that stand beside others which threads share.

To wake a thread takes longer than many a kernel; but a worker that has just done its part of a job
looks for the next one for a while before it sleeps. In the steps of a loop, jobs follow each other
so closely that it is awake.
"""

from __future__ import annotations

from collections.abc import Iterator

from tessera.ir.core import Block, Func, Op
from tessera.schedule import ops
from tessera.schedule.heuristics import Cpu, choose_nest
from tessera.schedule.left_behind import is_shared
from tessera.schedule.ordering import with_orders
from tessera.schedule.rebuild import kernels, with_bodies


def share_awake(func: Func, chosen: Func, machine: Cpu) -> Func:
    """The program with tiles; kernels that one thread runs are shared if less is worth the while.

    Args:
        func: the program without tiles.
        chosen: the same with tiles, kernel by kernel.
        machine: the CPU.
    """
    made = list(kernels(chosen.body))
    beside = dict(zip(made, kernels(func.body), strict=True))
    awake = {kernel: beside[kernel] for kernel in _beside_shared(chosen.body)}
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


def _beside_shared(block: Block) -> Iterator[ops.Kernel]:
    """The kernels of loops that no threads share, in steps where they share another."""
    for op in block.ops:
        if isinstance(op, ops.Kernel):
            continue
        for region in op.regions:
            yield from _beside_shared(region)
            if isinstance(op, ops.While):
                here = [one for one in region.ops if isinstance(one, ops.Kernel)]
                alone = [one for one in here if not any(map(is_shared, one.body.ops))]
                if len(alone) < len(here):
                    yield from alone
