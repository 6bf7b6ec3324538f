"""Sums and extremes along the rows of large operands, of several rows at a time.

A sum that reads a row from end to end is one stream, and nobody fetches the next row before it
begins. Rows far apart are several streams, of which each goes on where its predecessor ended
(`read_in_order`), and what all rows are multiplied with is loaded once for them:

    nest i < M: y[i] = f(reduce k: g(i, k))
    ==>
    nest p < P, s < M/4P, r < 4: y[i] = f(reduce k: g(i, k)), i = (4*p + r)*M/4P + s

with four rows in each step. The rows of a program are neighbours: a thread has those that it wrote.
One core multiplies 4096 x 4096 by a column in 1.40 ms, and row by row in 1.54; 1024 x 4096, which
the third cache holds, in 160 us and 209.
"""

from __future__ import annotations

from math import ceil, prod

from tessera.ir.core import Block, Op
from tessera.ir.intexpr import sym
from tessera.ir.types import ScalarType
from tessera.schedule import ops
from tessera.schedule.access import Access, accesses, dependence_of
from tessera.schedule.copying import Copy
from tessera.schedule.dependence import only_loop
from tessera.schedule.grains import PROGRAMS, grain_of, programs_of
from tessera.schedule.machines import CachedCpu
from tessera.schedule.read_in_order import (
    FUNCTIONS,
    LEAST_BYTES,
    STREAM_VECTORS,
    STREAMS,
    count_of,
)
from tessera.schedule.split import Context, Pieces
from tessera.schedule.types import Axis

CHEAP = 4
"""What the terms of a sum may cost, in additions: others are bound by their arithmetic."""


def sum_rows_apart(nest: ops.Nest, context: Context, machine: CachedCpu) -> Pieces | None:
    """The nest that reads several rows of a large operand at a time; None where there is none."""
    op = only_loop(nest)
    if not isinstance(op, ops.Reduce) or nest.ordered or not nest.axes or not _is_cheap(op):
        return None
    (deep,) = op.axes
    axes = (*nest.axes, deep)
    used = dependence_of(nest.body).ops[op]
    if not all(isinstance(axis.extent, int) and axis.extent > 0 for axis in axes):
        return None
    if not all(axis.name in used for axis in nest.axes):
        return None
    row = max(nest.axes, key=lambda axis: count_of([axis]))
    streams = next((n for n in range(STREAMS, 1, -1) if count_of([row]) % n == 0), 0)
    reads = [a for a in accesses(nest, context.facts) if a.inner]
    large = [a for a in reads if a.stride(deep.name) == 1 and a.stride(row.name) != 0]
    if not streams or any(a.stride(deep.name) not in (0, 1) for a in reads):
        return None
    if prod([count_of([axis]) for axis in nest.axes]) < streams * PROGRAMS:
        return None  # threads share parts of so few rows
    if sum(_bytes(a, axes) for a in large) < machine.l2:
        return None
    if any(count_of([deep]) * a.dtype.itemsize < LEAST_BYTES for a in large):
        return None
    pieces = Pieces()
    pieces.nests.append(_apart(nest, op, row, streams, context, machine))
    pieces.reason = f"{streams} rows far apart are read side by side"
    return pieces


def _is_cheap(op: ops.Reduce) -> bool:
    """Whether a reduction of one axis waits for what it reads."""
    if op.fn.name not in FUNCTIONS or op.order is not None or len(op.axes) != 1:
        return False
    if any(one.regions for one in op.body.ops):
        return False
    assert isinstance(op.result.type, ScalarType)
    dtype = op.result.type.dtype
    costs = [one.fn.cost for one in op.body.ops if isinstance(one, ops.Map)]
    return not dtype.is_complex and dtype.bits >= 32 and sum(costs) <= CHEAP


def _bytes(read: Access, axes: tuple[Axis, ...]) -> int:
    """How much is read."""
    moving = [axis for axis in axes if read.stride(axis.name) != 0]
    return count_of(moving) * read.dtype.itemsize


def _apart(
    nest: ops.Nest,
    op: ops.Reduce,
    row: Axis,
    streams: int,
    context: Context,
    machine: CachedCpu,
) -> ops.Nest:
    """The nest with so many rows in each step."""
    assert isinstance(op.result.type, ScalarType)
    others = [axis for axis in nest.axes if axis is not row]
    around = prod([count_of([axis]) for axis in others])
    most, steps = ceil(programs_of(machine.cores) / around), count_of([row]) // streams
    parts = next(n for n in range(most, 0, -1) if steps % n == 0)
    steps //= parts
    extents = (("p", parts), ("s", steps), ("r", streams))
    part, step, stream = [Axis(context.names.fresh(name), count) for name, count in extents]
    place = (sym(part.name) * streams + sym(stream.name)) * steps + sym(step.name)
    copy = Copy({row.name: place})
    code: list[Op] = [copy.op(one) for one in nest.body.ops]
    chunk = ceil(steps / ceil(most / parts))
    programs = around * parts * ceil(steps / chunk)
    new = nest.rebuild(
        (), [Block([], code, ())],
        axes=(*others, part, step, stream),
        tile=(*[1] * (len(others) + 2), streams),
        chunk=(
            *[int(axis.extent != 1) for axis in (*others, part)],
            0 if chunk == steps else chunk, 0,
        ),
        reduce_tile=STREAM_VECTORS * max(machine.vector_bits // op.result.type.dtype.bits, 1),
        grain=grain_of(programs, 2 * chunk * streams * count_of(op.axes)),
    )  # fmt: skip
    assert isinstance(new, ops.Nest)
    return new
