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
from tessera.ir.core import Block, Op, Value


def merge_sorts(block: Block) -> Block:
    """The block with each of them in place of the first one, where what the others move is there or
    can be."""
    groups: dict[Hashable, list[Sort]] = {}
    for op in block.ops:
        if isinstance(op, Sort):
            key = (tuple(op.attrs.values()), op.xs[: op.num_keys])
            groups.setdefault(key, []).append(op)
    if all(len(group) == 1 for group in groups.values()):
        return block
    places = {op: k for k, op in enumerate(block.ops)}
    merged: dict[Op, list[Sort]] = {}
    for first, *others in groups.values():
        same = [op for op in others if _is_there(op.xs, places, places[first])]
        if same:
            merged[first] = [first, *same]
    begun = {op for group in merged.values() for op in group}
    made: set[Op] = set()
    env: dict[Value, Value] = {}
    code: list[Op] = []
    for old in block.ops:
        if old in merged:
            # What has no operands can stand here: nobody reads it before.
            needed = dict.fromkeys(v.op for op in merged[old] for v in op.xs if v.op)
            later = [op for op in needed if op in places and places[op] > places[old]]
            later = [op for op in later if op not in made]
            made.update(later)
            code += [*later, _merged(merged[old], env)]
        elif old not in begun and old not in made:
            operands = [env.get(v, v) for v in old.operands]
            changed = any(v in env for v in old.operands)
            op = old.rebuild(operands) if changed else old
            env.update(zip(old.results, op.results, strict=True) if changed else ())
            code.append(op)
    return Block(block.args, code, [env.get(v, v) for v in block.outputs])


def _is_there(values: Sequence[Value], places: dict[Op, int], at: int) -> bool:
    """Whether values are there in front of an op, or can be."""
    return all(isinstance(v.op, Iota) or places.get(v.op, -1) < at for v in values if v.op)


def _merged(group: Sequence[Sort], env: dict[Value, Value]) -> Sort:
    """The one sort of a group; `env` is told of its results."""
    first = group[0]
    moved = dict.fromkeys(v for op in group for v in op.xs[op.num_keys :])
    keys = first.xs[: first.num_keys]
    xs = tuple([env.get(v, v) for v in (*keys, *moved)])
    new = Sort(xs, first.axis, first.num_keys, first.descending, first.stable, loc=first.loc)
    results = dict(zip(moved, new.results[len(keys) :], strict=True))
    for op in group:
        found = [*new.results[: len(keys)], *[results[v] for v in op.xs[len(keys) :]]]
        env.update(zip(op.results, found, strict=True))
    return new
