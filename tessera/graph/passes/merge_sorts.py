"""Sorts by the same keys are one, which moves what all of them move.

    %a = graph.sort([%x]) {axis=0}               %i = graph.iota()
    %i = graph.iota()                      ==>   %a, %p = graph.sort([%x, %i]) {axis=0}
    %b, %p = graph.sort([%x, %i]) {axis=0}

Derivatives of a sort ask for the places of elements, where the program has had their order already.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from tessera.graph.ops.generate import Iota
from tessera.graph.ops.sort import Sort
from tessera.graph.passes.replacing import Made, Replacing
from tessera.ir.core import Block, Op, Value
from tessera.ir.rewrite import eliminate_dead


def merge_sorts(block: Block) -> Block:
    """The block with one of them where others have what they move in front of the first, or can."""
    if sum([isinstance(op, Sort) for op in block.ops]) < 2:
        return block
    block = eliminate_dead(block)  # what only dead sorts read would be gone when it is needed
    groups: dict[Hashable, list[Sort]] = {}
    for op in block.ops:
        if isinstance(op, Sort):
            key = (tuple(op.attrs.values()), op.xs[: op.num_keys])
            groups.setdefault(key, []).append(op)
    program = Replacing(block)
    for group in groups.values():
        found = [op for op in group if op in program.places]
        same = [op for op in found if _is_there(program, op, found[0])]
        if len(same) > 1:
            program.replace(same, _merged(program, same))
    return program.block()


def _is_there(program: Replacing, op: Op, first: Op) -> bool:
    """Whether what an op reads is there in front of another one, or can be."""
    sources = [v.op for v in program.operands(op)]
    at = program.places[first]
    return all(x is None or isinstance(x, Iota) or program.places.get(x, -1) < at for x in sources)


def _merged(program: Replacing, group: Sequence[Sort]) -> Made:
    """What stands for the results of some sorts: those of one."""
    first, count = group[0], group[0].num_keys
    reads = [program.operands(op) for op in group]
    moved = dict.fromkeys(v for xs in reads for v in xs[count:])
    xs = (*reads[0][:count], *moved)
    new = Sort(xs, first.axis, count, first.descending, first.stable, loc=first.loc)
    place = {v: count + k for k, v in enumerate(moved)}
    made: dict[Value, tuple[Sequence[Op], Value]] = {}
    for op, own in zip(group, reads, strict=True):
        places = [*range(count), *[place[v] for v in own[count:]]]
        made |= {v: ([new], new.results[k]) for v, k in zip(op.results, places, strict=True)}
    return made
