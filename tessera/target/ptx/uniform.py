"""Which values the lanes of a warp may disagree on.

A value is divergent if it depends on the lane: on the thread's number (not on that of its warp), on
memory read at a divergent address, on an atomic, or on control flow that is divergent.
"""

from __future__ import annotations

from collections.abc import Iterable

from tessera.ir.core import Block, Op, Value
from tessera.target import gpu_ops as g
from tessera.target import ops as t

_AGREED = (g.Uniform, g.Vote, g.ReduceWarp, g.BlockId, g.ClusterRank, t.Const)
_OWN = (g.ThreadId, g.Atomic, g.CompareExchange, g.Clock, g.LoadMatrix, g.Mma, t.Alloca)


def divergent_values(block: Block) -> frozenset[Value]:
    """Values of a kernel that may differ between the lanes of a warp."""
    found: set[Value] = set()
    _block(block, found, False)
    return frozenset(found)


def _block(block: Block, found: set[Value], split: bool) -> None:
    for op in block.ops:
        _op(op, found, split)


def _op(op: Op, found: set[Value], split: bool) -> None:
    if isinstance(op, (t.For, t.While)):
        _loop(op, found, split)
    elif isinstance(op, t.If):
        inner = split or op.pred in found
        for region in op.regions:
            _block(region, found, inner)
        for result, a, b in zip(op.results, op.then.outputs, op.otherwise.outputs, strict=True):
            if op.pred in found or a in found or b in found:
                found.add(result)
    elif isinstance(op, _AGREED) or _is_warp_number(op):
        return
    elif isinstance(op, g.ShuffleLanes):
        if op.kind != "index" or op.width != g.WARP or op.by in found:
            found.update(op.results)
    elif isinstance(op, _OWN) or any(v in found for v in op.operands):
        found.update(op.results)


def _is_warp_number(op: Op) -> bool:
    """Whether an op gives the number of the thread's warp, or of several together."""
    if not isinstance(op, t.Map) or len(op.args) != 2:
        return False
    by = op.args[1].op
    if not isinstance(op.args[0].op, g.ThreadId) or not isinstance(by, t.Const):
        return False
    if op.fn.name in ("floordiv", "trunc_div"):
        return int(by.value) > 0 and int(by.value) % g.WARP == 0
    return op.fn.name == "shr" and int(by.value) >= 5


def _loop(op: t.For | t.While, found: set[Value], split: bool) -> None:
    """What a loop carries, until nothing more is found."""
    args: list[list[Value]]
    if isinstance(op, t.For):
        index, *carried = op.body.args
        if op.lo in found or op.step in found:
            found.add(index)
        args, body = [carried], op.body
    else:
        args, body = [op.cond.args, op.body.args], op.body
    _pass_on(op.init, args, found)
    while True:
        before = len(found)
        for region in op.regions:
            _block(region, found, split)
        uneven = _uneven(op, found)
        for k, value in enumerate(body.outputs):
            if value in found:
                found.update(a[k] for a in args)
        for k, result in enumerate(op.results):
            if uneven or args[0][k] in found:
                found.add(result)
        if len(found) == before:
            return


def _uneven(op: t.For | t.While, found: set[Value]) -> bool:
    """Whether lanes may leave the loop at different times."""
    if isinstance(op, t.For):
        return any(v in found for v in (op.lo, op.hi, op.step))
    return op.cond.outputs[0] in found


def _pass_on(init: Iterable[Value], args: list[list[Value]], found: set[Value]) -> None:
    for k, value in enumerate(init):
        if value in found:
            found.update(a[k] for a in args)
