"""Loops over numbers, and what they carry besides."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tessera.ir.core import Op, Value
from tessera.target import ops as t
from tessera.target.from_tile.lowering import I64, Lowering
from tessera.tile import ops as tile


def counted_loop(
    s: Lowering,
    op: tile.For,
    others: Sequence[Op],
    bad: Sequence[Value],
    step: Callable[[list[Value]], tuple[Sequence[Value], Sequence[Value]]],
    unroll: int = 0,
) -> tuple[list[Value], list[Value]]:
    """A loop over numbers, and what it carries besides.

    Args:
        s: the lowering of the kernel.
        op: the loop.
        others: the ops of its body that are lowered as they are.
        bad: what is carried besides, at first.
        step: takes that of a step, behind these ops; gives what the body yields, and what it
            yields besides.
        unroll: what the loop says.

    Returns:
        The results, and what was carried besides.
    """
    init = s.flatten(op.init)
    count = len(init)

    def body(args: list[Value]) -> Sequence[Value]:
        s.define(op.body.args[0], args[:1])
        s.bind_args(op.body.args[1:], args[1 : 1 + count])
        s.run_ops(others)
        outputs, new = step(args[1 + count :])
        return [*outputs, *new]

    init += bad
    block = s.region([I64, *[v.type for v in init]], body)
    bounds = [s.scalar(v) for v in (op.lo, op.hi, op.step)]
    loop = t.For(*bounds, init, unroll, block, loc=op.loc)
    s.emit(loop)
    return list(loop.results[:count]), list(loop.results[count:])
