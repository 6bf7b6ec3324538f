"""Loops and branches, whose tiles are vectors that are carried."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tessera.ir.core import Block, Value
from tessera.target import ops as t
from tessera.target.from_tile.counted_loop import counted_loop
from tessera.target.from_tile.extremes import Extremes
from tessera.target.from_tile.lowering import Lowering
from tessera.target.from_tile.places import search
from tessera.tile import ops as tile


def for_loop(s: Lowering, op: tile.For) -> None:
    """A loop over numbers; one that searches for a place may be two of them."""
    found = search(s, op, lambda: _loop(s, op, unroll=1))
    s.bind_args(op.results, _loop(s, op) if found is None else found)


def _loop(s: Lowering, op: tile.For, unroll: int = 0) -> Sequence[Value]:
    extremes = Extremes(s, op)
    found = counted_loop(s, op, extremes.others, extremes.start(), extremes.step, unroll)
    return extremes.finish(*found)


def while_loop(s: Lowering, op: tile.While) -> None:
    """A loop with a condition."""
    init = s.flatten(op.init)
    types = [v.type for v in init]

    def part(block: Block) -> Block:
        def body(args: list[Value]) -> Sequence[Value]:
            s.bind_args(block.args, args)
            s.run(block)
            return s.flatten(block.outputs)

        return s.region(types, body)

    loop = t.While(init, part(op.cond), part(op.body), loc=op.loc)
    s.emit(loop)
    s.bind_args(op.results, loop.results)


def branch(s: Lowering, op: tile.If) -> None:
    """An `if`."""
    def part(block: Block) -> Callable[[], Sequence[Value]]:
        def body() -> Sequence[Value]:
            s.run(block)
            return s.flatten(block.outputs)

        return body

    results = s.branch(s.scalar(op.pred), part(op.then), part(op.otherwise))
    s.bind_args(op.results, results)
