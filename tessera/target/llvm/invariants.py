"""What does not change in a loop, and is written in front of it; what is known of masks.

LLVM's pass that does so is not among the few that most programs need (`runtime/codegen.py`), and
cannot be had by itself. Loads stay where they are: what may be read earlier stands there already.

    for i:                          mask = 0 .. 15 < n
        mask = 0 .. 15 < n   ==>    for i:
        load i, mask                    load i, mask
"""

from __future__ import annotations

from collections.abc import Sequence

from tessera.ir.core import Block, Func, Op, Value
from tessera.ir.walk import walk
from tessera.target import ops as t
from tessera.target.machine import Machine

_MOVABLE = (
    *(t.Lanes, t.Map, t.Cast, t.Bitcast, t.Splat, t.Extract, t.Insert, t.Shuffle, t.Scale),
    *(t.PtrAdd, t.ReduceLanes),
)
"""Ops that touch no memory, and may be computed where nobody needs them."""


def invariants(func: Func) -> dict[Op, list[Op]]:
    """The ops to write in front of each loop of a function, in their order."""
    found: dict[Op, list[Op]] = {}
    # How many loops are around where a value is known; those of none are not listed.
    depths: dict[Value, int] = {}

    def block(body: Block, loops: Sequence[Op]) -> None:
        depth = len(loops)
        for op in body.ops:
            inner = loops
            if depth and isinstance(op, _MOVABLE):
                at = max([depths.get(v, 0) for v in op.operands], default=0)
                if at < depth:
                    found.setdefault(loops[at], []).append(op)
                if at:
                    depths[op.results[0]] = at
                continue
            if depth:
                depths.update(dict.fromkeys(op.results, depth))
            if isinstance(op, (t.For, t.While)):
                inner = [*loops, op]
            for region in op.regions:
                depths.update(dict.fromkeys(region.args, len(inner)))
                block(region, inner)

    block(func.body, ())
    return found


def masks(func: Func, machine: Machine) -> dict[Value, set[int]]:
    """Masks of accesses that take several vectors of a machine, and the lanes of one. Their parts
    are written where they are, once for all that use them: LLVM puts comparisons where their
    parts are wanted, in loops too, and takes a mask of many lanes from block to block as that many
    numbers."""
    found: dict[Value, set[int]] = {}
    for op in walk(func.body):
        if not isinstance(op, (t.Load, t.Store)) or not op.mask:
            continue
        type = op.type if isinstance(op, t.Load) else op.value.type
        bits = 8 * t.element(type).itemsize
        by_parts = not machine.takes_masks(bits)
        if not by_parts and (isinstance(op, t.Store) or not machine.has_masks):
            continue
        width = machine.vector_bits // bits
        is_cut = t.lanes(type) > width and t.lanes(type) % width == 0
        if is_cut and known_lanes(op.mask[0]) is None:
            found.setdefault(op.mask[0], set()).add(width)
    return found


def known_lanes(mask: Value) -> int | None:
    """How many of the first lanes a mask has, where that is known."""
    op = mask.op
    if not isinstance(op, t.Map) or op.fn.name != "lt":
        return None
    number, limit = op.args
    first, rest = number.op, 0
    if isinstance(first, t.Map) and first.fn.name == "add":
        consts = [v.op.value for v in first.args if isinstance(v.op, t.Const)]
        others = [v.op for v in first.args if not isinstance(v.op, t.Const)]
        if len(consts) != 1:
            return None
        first, rest = others[0], int(consts[0])
    if not isinstance(first, t.Lanes) or not isinstance(limit.op, t.Const):
        return None
    if not 0 <= abs(rest) + first.count < 1 << (first.dtype.bits - 1):
        return None  # the sum may wrap around
    return min(max(int(limit.op.value) - rest, 0), first.count)
