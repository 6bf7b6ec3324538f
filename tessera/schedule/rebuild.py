"""Rebuilding programs kernel by kernel."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from tessera.ir.core import Block, Func, Op, Value
from tessera.ir.walk import free_values
from tessera.schedule import ops

KernelRule = Callable[[ops.Kernel], Block]
KernelsRule = Callable[[ops.Kernel, list[Value]], Iterable[Op]]


def kernels(block: Block) -> Iterator[ops.Kernel]:
    """The kernels of a program, those inside loops and conditionals included."""
    for op in block.ops:
        if isinstance(op, ops.Kernel):
            yield op
        else:
            for region in op.regions:
                yield from kernels(region)


def with_bodies(func: Func, rule: KernelRule) -> Func:
    """The program with each kernel's body replaced by what `rule` makes of the kernel."""
    return with_kernels(func, lambda op, inputs: [op.rebuild(inputs, [rule(op)])])


def with_kernels(func: Func, rule: KernelsRule) -> Func:
    """The program with each kernel replaced by what `rule` makes of it and of its new inputs: some
    kernels, the last of which gives its results."""
    return func.with_body(_block(func.body, {}, rule))


def _block(block: Block, env: dict[Value, Value], rule: KernelsRule) -> Block:
    code: list[Op] = []
    for op in block.ops:
        operands = [env.get(v, v) for v in op.operands]
        if isinstance(op, ops.Kernel):
            code += rule(op, operands)
        else:
            code.append(op.rebuild(operands, [_block(r, env, rule) for r in op.regions]))
        env.update(zip(op.results, code[-1].results, strict=True))
    return Block(block.args, code, [env.get(v, v) for v in block.outputs])


def without_dead_kernels(block: Block) -> Block:
    """The program without kernels that nobody needs any more."""
    live = set(block.outputs)
    code: list[Op] = []
    for op in reversed(block.ops):
        if isinstance(op, ops.Kernel) and live.isdisjoint(op.results):
            continue
        live.update(free_values(Block([], [op], ())))
        code.append(op)
    return Block(block.args, code[::-1], block.outputs)
