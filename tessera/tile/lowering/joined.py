"""A nest over rows, and sums over these rows, in one pass (`schedule.join_columns`).

A program has `chunk` rows. The code of both nests is evaluated at each tile of rows, as if it were
one body, so that what both read or compute is there once; sums of columns are carried along.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tessera.dtypes import int64
from tessera.ir.core import Block, Op, Value, scalar_dtype
from tessera.ir.intexpr import Dim, Facts, divides
from tessera.schedule import ops as s
from tessera.schedule.one_pass import one_body
from tessera.tile import ops as t
from tessera.tile.lowering import reduction, row_passes
from tessera.tile.lowering.access import write
from tessera.tile.lowering.emitter import Emitter
from tessera.tile.lowering.state import Handler, Point, State, TileDim, Val


def lower_joined(
    em: Emitter,
    nests: Sequence[s.Nest],
    memory: Mapping[Value, Value],
    known: Facts,
    handlers: Mapping[type[Op], Handler],
) -> tuple[Dim, ...]:
    """Emits the body of the kernel; returns its grid.

    Args:
        em: receives the body.
        nests: over rows and columns, and over parts and columns.
        memory: the kernel's argument for each buffer.
        known: what is known of the program's dims.
        handlers: by class of op, how it is lowered.
    """
    rows, parts = nests
    body, sums = one_body(rows, parts, rows.chunk[0])
    common = rows.rebuild((), [Block([], body, ())])
    assert isinstance(common, s.Nest)
    low = State(em, common, memory, handlers, known)
    (row, col), (part, _) = rows.axes, parts.axes
    (count, width), chunk = rows.tile, rows.chunk[0]
    inner = [op for op in body if col.name in low.dependence.ops[op]]
    outer = [op for op in body if col.name not in low.dependence.ops[op]]
    checked = not divides(width, col.extent, known)
    columns = TileDim(col.name, width, em.const(0, int64), col.extent, checked)
    program = em.pure(t.ProgramId, 0)
    neutral = [reduction.identity(low, one.op.fn, scalar_dtype(one.value)) for one in sums]

    def step(i: Value, carried: list[Value]) -> Sequence[Value]:
        with em.bound({row.name: i} if count == 1 else {}):
            point = Point() if count == 1 else Point((TileDim(row.name, count, i, row.extent),))
            row_passes.run(low, outer, point)
            whole = point.plus(columns)
            row_passes.run(low, inner, whole)
            found: list[Value] = []
            for one, before in zip(sums, carried, strict=True):
                x = em.broadcast(low.get(one.value, whole).parts[0], whole.shape)
                if count > 1:
                    x = em.pure(t.Reduce, x, one.op.fn, 0)
                found.append(em.map(one.op.fn, before, x))
            ops = em.frames[-1].builder.ops
            ops[:] = _early(ops, found)
            return found

    begin = em.map("mul", program, em.const(chunk, int64))
    bounds = (begin, em.map("add", begin, em.const(chunk, int64)), em.const(count, int64))
    start = [em.broadcast(x.parts[0], (width,)) for x in neutral]
    totals = em.loop(bounds, start, step)
    with em.bound({part.name: program}):
        for one, total in zip(sums, totals, strict=True):
            em.loc = one.store.loc
            write(
                low, one.store.buf, Val((total,), (col.name,)), one.store.index, Point((columns,))
            )
    return (part.extent,)


def _early(ops: Sequence[Op], totals: Sequence[Value]) -> list[Op]:
    """The ops of a step, with what is only there for totals as early as possible: totals are in
    registers anyway, and what is added to them need not wait there until the row is done.
    """
    users: dict[Value, list[Op]] = {}
    for op in ops:
        for value in op.operands:
            users.setdefault(value, []).append(op)
    wanted, late = set(totals), set[Op]()
    for op in reversed(ops):
        if not isinstance(op, (t.Map, t.Cast, t.Broadcast, t.Reduce)):
            continue
        after = users.get(op.result, [])
        if (after and late.issuperset(after)) or (not after and op.result in wanted):
            late.add(op)
    moved: list[Op] = []
    waiting = [op for op in ops if op in late]
    missing = {result for op in ops for result in op.results}
    for op in ops:
        if op in late:
            continue
        moved.append(op)
        missing.difference_update(op.results)
        for one in list(waiting):
            if missing.isdisjoint(one.operands):
                waiting.remove(one)
                moved.append(one)
                missing.difference_update(one.results)
    return moved
