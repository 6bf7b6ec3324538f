"""Rows that a kernel is going to read from places that only data tell.

No prefetcher of a CPU knows the next row of a gather, so its lines arrive one latency after the
other. The kernel does know it: it reads the place some rows ahead, and has the lines fetched.

What is added to a block of a product is read when the block's sums are done, from rows that lie far
apart. Fetched before they begin, it is there.

Squares that are turned read a line of each of as many rows, and the next ones are too many streams
for a prefetcher: those some lines further on are fetched.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeGuard

from tessera.ir.core import Block, Func, Op
from tessera.ir.walk import map_ops, walk
from tessera.schedule import ops
from tessera.schedule.access import accesses, dependence_of
from tessera.schedule.block_ops import Each
from tessera.schedule.dependence import behind
from tessera.schedule.machines import CachedCpu
from tessera.schedule.next_panels import fetch_next_panel
from tessera.schedule.next_rows import fetch_next_line, fetch_next_row, fetch_next_sums
from tessera.schedule.rebuild import with_bodies
from tessera.schedule.types import BufType, buffer_type

AHEAD = 8
"""Rows from the one that is read to the one that is fetched."""

FAR = 1 << 20
"""Bytes of an array that no near cache holds."""

LEAST = 128
"""Bytes of a row that are worth it."""

FURTHER = 256
"""Bytes of a row from the square that is read to the one that is fetched."""

PLAIN = (ops.Const, ops.Index, ops.Load, ops.Map, ops.Cast, ops.Bitcast)
"""What may compute a place a second time."""


def fetch_ahead(func: Func, machine: CachedCpu) -> Func:
    """The program with `ahead` on what reads such rows, after tiles have been chosen.

    Args:
        func: the program.
        machine: the CPU.
    """

    def body(kernel: ops.Kernel) -> Block:
        code: list[Op] = []
        for op in kernel.body.ops:
            if isinstance(op, ops.Nest):
                op = _marked_for(op, machine)
            elif isinstance(op, Each):
                nests = [_in_block(nest, machine) for nest in op.nests]
                op = op.rebuild(regions=[Block((), nests, ())])
            code.append(op)
        return Block(kernel.body.args, code, ())

    marked = any(_is_meant(op) for op in walk(func.body))
    return with_bodies(func, body) if marked else func


def _is_meant(op: Op) -> bool:
    """Whether there is something to fetch for an op."""
    if isinstance(op, (ops.Contract, ops.Reduce, ops.ArgReduce)) or _reads(op):
        return True
    return isinstance(op, ops.Nest) and _is_square(op)


def _marked_for(nest: ops.Nest, machine: CachedCpu) -> ops.Nest:
    """A nest with marks of the one kind that suits it."""
    if _product(nest):
        return fetch_next_panel(_early(nest), machine)
    if _is_square(nest):
        return _turned(nest)
    if machine.vector_bits < 512:
        nest = fetch_next_line(nest)
    return fetch_next_sums(fetch_next_row(_fetched(nest), machine), machine)


def _in_block(nest: ops.Nest, machine: CachedCpu) -> ops.Nest:
    """A nest of a block with the marks that suit it."""
    if _product(nest):
        return fetch_next_panel(nest, machine)
    return fetch_next_row(nest, machine)


def _product(nest: ops.Nest) -> ops.Contract | None:
    """The product of register blocks in a nest."""
    found = [op for op in nest.body.ops if isinstance(op, ops.Contract)]
    return found[0] if found and len(nest.tile) >= 2 and min(nest.tile[-2:]) > 1 else None


def _early(nest: ops.Nest) -> ops.Nest:
    """A nest with a product, and marks on what is read beside it."""
    row, lane = [axis.name for axis in nest.axes[-2:]]
    strides = {a.op: (a.stride(row), a.stride(lane)) for a in accesses(nest)}
    found: set[int] = set()
    for place, op in enumerate(nest.body.ops):
        if not isinstance(op, ops.Load) or not _is_far(op):
            continue
        across, along = strides[op]
        if not isinstance(across, int) or across <= 1 or along != 1:
            continue
        names = _names(nest, op)
        if names is not None and names.isdisjoint((row, lane)):
            found.add(place)
    return _marked(nest, found, lambda op: op.rebuild(early=True))


def _names(nest: ops.Nest, op: ops.Load | ops.Store) -> frozenset[str] | None:
    """The axes on which the place depends that data tell; None where it may not be computed twice,
    as what it is computed from may have changed."""
    depends = dependence_of(nest.body).values
    written = {one.buf for one in nest.body.ops if isinstance(one, ops.Store)}
    code = behind(nest.body.ops, op.dyn)
    loads = [one for one in code if isinstance(one, ops.Load)]
    read = {one.buf for one in (loads if isinstance(op, ops.Store) else (op, *loads))}
    if not all(isinstance(one, PLAIN) for one in code) or any(one.where for one in loads):
        return None
    if not read.isdisjoint(written):
        return None
    return frozenset[str]().union(*[depends[v] for v in op.dyn])


def _marked(nest: ops.Nest, found: set[int], mark: Callable[[Op], Op]) -> ops.Nest:
    """A nest with marks on the ops at some places."""
    if not found:
        return nest
    places = iter(range(len(nest.body.ops)))
    block = map_ops(nest.body, lambda op: mark(op) if next(places) in found else op)
    new = nest.rebuild(regions=[block])
    assert isinstance(new, ops.Nest)
    return new


def _reads(op: Op) -> TypeGuard[ops.Load | ops.Store]:
    """Whether an op reads an element at a place that data tell."""
    if isinstance(op, ops.Store):
        return bool(op.dyn) and op.combine is not None
    return isinstance(op, ops.Load) and bool(op.dyn)


def _fetched(nest: ops.Nest) -> ops.Nest:
    """A nest with its marks."""
    if len(nest.tile) < 2 or nest.tile[-1] == 1 or max(nest.tile[:-1]) > 1:
        return nest
    row, lane = nest.axes[-2:]
    if nest.warps or not isinstance(lane.extent, int):
        return nest
    runs = {a.op: a.stride(lane.name) == 1 for a in accesses(nest)}
    found: set[int] = set()
    for place, op in enumerate(nest.body.ops):
        if not _reads(op) or not runs[op] or not _is_far(op):
            continue
        names = _names(nest, op)
        is_row = names is not None and row.name in names and lane.name not in names
        if is_row and lane.extent * _itemsize(op) >= LEAST:
            found.add(place)
    return _marked(nest, found, lambda op: op.rebuild(ahead=AHEAD))


def _is_square(nest: ops.Nest) -> bool:
    """Whether a nest goes over squares of its last two axes."""
    return not nest.warps and len(nest.tile) >= 2 and nest.tile[-1] == nest.tile[-2] > 1


def _turned(nest: ops.Nest) -> ops.Nest:
    """A nest of squares, and marks on what is read from as many rows as there are lanes."""
    row, lane = [axis.name for axis in nest.axes[-2:]]
    strides = {a.op: (a.stride(row), a.stride(lane)) for a in accesses(nest)}
    places = {
        place: op
        for place, op in enumerate(nest.body.ops)
        if isinstance(op, ops.Load) and not op.dyn and _is_far(op)
    }
    found = {
        place
        for place, op in places.items()
        if strides[op][0] == 1 and strides[op][1] not in (0, 1, -1)
    }
    return _marked(
        nest,
        found,
        lambda op: op.rebuild(ahead=FURTHER // _itemsize(op)) if isinstance(op, ops.Load) else op,
    )


def _itemsize(op: ops.Load | ops.Store) -> int:
    """Bytes of an element."""
    return buffer_type(op.buf).dtype.itemsize


def _is_far(op: ops.Load | ops.Store) -> bool:
    """Whether an array is large, or may be."""
    assert isinstance(op.buf.type, BufType)
    size = op.buf.type.size
    return not isinstance(size, int) or size * _itemsize(op) >= FAR
