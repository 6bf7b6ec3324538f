"""Rows that a kernel is going to read from places that only data tell.

No prefetcher of a CPU knows the next row of a gather, so its lines arrive one latency after the
other. The kernel does know it: it reads the place some rows ahead, and has the lines fetched.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeGuard

from tessera.ir.core import Block, Func, Op, Value
from tessera.ir.walk import map_ops, walk
from tessera.schedule import ops
from tessera.schedule.access import accesses, dependence_of
from tessera.schedule.rebuild import with_bodies
from tessera.schedule.types import BufType

AHEAD = 8
"""Rows from the one that is read to the one that is fetched."""

FAR = 1 << 20
"""Bytes of an array that no near cache holds."""

LEAST = 128
"""Bytes of a row that are worth it."""

PLAIN = (ops.Const, ops.Index, ops.Load, ops.Map, ops.Cast, ops.Bitcast)
"""What may compute a place a second time."""


def fetch_ahead(func: Func) -> Func:
    """The program with `ahead` on what reads such rows, after tiles have been chosen."""

    def body(kernel: ops.Kernel) -> Block:
        code = [_fetched(op) if isinstance(op, ops.Nest) else op for op in kernel.body.ops]
        return Block(kernel.body.args, code, ())

    return with_bodies(func, body) if any(_reads(op) for op in walk(func.body)) else func


def _reads(op: Op) -> TypeGuard[ops.Load | ops.Store]:
    """Whether an op reads an element at a place that data tell."""
    if isinstance(op, ops.Store):
        return bool(op.dyn) and op.combine is not None
    return isinstance(op, ops.Load) and bool(op.dyn) and not op.where


def behind(code: Sequence[Op], values: Iterable[Value]) -> list[Op]:
    """The ops that compute some values, in order."""
    needed, found = set(values), list[Op]()
    for op in reversed(code):
        if not needed.isdisjoint(op.results):
            found.append(op)
            needed.update(op.operands)
    return found[::-1]


def _fetched(nest: ops.Nest) -> ops.Nest:
    """A nest with its marks."""
    if len(nest.tile) < 2 or nest.tile[-1] == 1 or max(nest.tile[:-1]) > 1:
        return nest
    row, lane = nest.axes[-2:]
    if nest.warps or not isinstance(lane.extent, int):
        return nest
    depends = dependence_of(nest.body).values
    written = {op.buf for op in nest.body.ops if isinstance(op, ops.Store)}
    runs = {a.op: a.stride(lane.name) == 1 for a in accesses(nest)}
    found: set[int] = set()
    for place, op in enumerate(nest.body.ops):
        if not _reads(op):
            continue
        code = behind(nest.body.ops, op.dyn)
        loads = [one for one in code if isinstance(one, ops.Load)]
        read = {one.buf for one in (loads if isinstance(op, ops.Store) else (op, *loads))}
        names = frozenset[str]().union(*[depends[v] for v in op.dyn])
        is_plain = all(isinstance(one, PLAIN) for one in code) and read.isdisjoint(written)
        is_plain = is_plain and not any(one.where for one in loads)
        known = row.name in names and lane.name not in names
        if is_plain and known and runs[op] and _is_far(op, lane.extent):
            found.add(place)
    if not found:
        return nest
    places = iter(range(len(nest.body.ops)))
    block = map_ops(nest.body, lambda op: op.rebuild(ahead=AHEAD) if next(places) in found else op)
    new = nest.rebuild(regions=[block])
    assert isinstance(new, ops.Nest)
    return new


def _is_far(op: ops.Load | ops.Store, extent: int) -> bool:
    """Whether rows of so many elements are long enough, and what they are of is large."""
    assert isinstance(op.buf.type, BufType)
    size, each = op.buf.type.size, op.buf.type.dtype.itemsize
    return extent * each >= LEAST and (not isinstance(size, int) or size * each >= FAR)
