"""Scans over the rows of large operands, which are read and written as they lie in memory.

What a scan carries for some columns fits registers, and a program that goes down these columns
touches a few lines of every row: each in another page, and prefetching follows lines of a page. So
whole rows are taken, one after the other, and what is carried lies in a near cache:

    nest j: scan k < K: y[k, j] = acc = fn(acc, g(k, j))
    ==>
    nest j: state[j] = identity
    nest k in order, j: state[j] = y[k, j] = fn(state[j], g(k, j))

A loop that carries scalars (`schedule.recur`) is taken apart in the same way; what it leaves at the
end is read from its state by a last nest. Every column goes through the operations it went through
before, so results are the same to the bit. If a step reads factors of the columns besides, and the
first cache does not hold these and what is carried, the loop stays as it is, in registers, if they
hold lines of several vectors.

Prefetchers begin anew with every row, so each step has the next one's lines fetched, if the first
cache has room for them; those that are written, too, unless they go past the caches. A Xeon
(Emerald Rapids) takes 0.72 to 0.8 of the time for 1024 rows of 4 KB, which its third cache has,
and 0.9 for 16384. A Zen 4 takes 0.83 of the time for parts of rows of 16 KB, and 1.2 to 1.4 times
as long for whole rows of 4 KB, which its prefetchers read on end.

Threads share the columns. A thread that has several neighbouring programs goes down their rows
together (`target/from_tile/simd.py`), so a program alone on its machine reads whole rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil

from tessera.config import config
from tessera.ir.core import Block, Op, Value, scalar_dtype
from tessera.ir.intexpr import Dim, substitute, sym
from tessera.ir.walk import free_values
from tessera.schedule import loop_ops, ops, streaming
from tessera.schedule.access import Access, accesses, dependence_of
from tessera.schedule.blocking import LINE_BYTES
from tessera.schedule.copying import Copy, identity
from tessera.schedule.dependence import only_loop
from tessera.schedule.emit import without_dead
from tessera.schedule.grains import MANY, grain_of
from tessera.schedule.machines import CachedCpu
from tessera.schedule.prefetch_ops import Prefetch
from tessera.schedule.read_in_order import count_of
from tessera.schedule.sizes import power_above
from tessera.schedule.split import Context, Pieces, index_of
from tessera.schedule.types import Axis, BufType

LEAST_BYTES = 1024
"""The bytes of a row from which it is read as a whole."""

PART_BYTES = 4096
"""The bytes of a row that a program has at least: a page, as prefetching follows its lines. Two
threads with half a page each took 8 to 11 ms for 16384 rows of 4 KB, one with whole pages 5.5."""

LEAST_PART = 64
"""The same for many cores, which take parts of pages faster than few take whole ones: sixteen took
0.62 ms for these rows, eight 1.4, four 2.8, and one 3.8."""

NEAR = 1 << 23
"""Bytes of an operand of which parts of half a page are as fast: two threads of a Zen 5 take 0.7 of
the time for 1024 rows of 4 KB, which one would have. Two of a Zen 4, whose first cache waits for
few lines, take 1.2 times as long with halves as one with whole pages, and one 1.4 times."""

PROGRAMS = 4
"""Programs that threads share, or one for each core: each reads parts of all rows."""

LEAST_STEPS = 16
"""Steps beside which the nests before and behind them are short."""

LINE = 512
"""Bytes of a row that a loop in registers reads in a step, from which on prefetchers keep up. A
Zen 3, whose registers leave 128, takes 5.7 ms for 64 rows of 256 KB, and 1.7 for whole ones."""

VECTORS = 4
"""Vectors of a tile, which need nothing of each other."""

CHEAP = 8
"""What a step costs at most, in additions. A longer one is not bound by memory, and its values had
better stay in registers."""


def scan_rows(nest: ops.Nest, context: Context, machine: CachedCpu) -> Pieces | None:
    """The nests that go over a large operand of a nest's scan, or of its loop, row by row; None
    where there is none."""
    op = only_loop(nest)
    if not isinstance(op, (ops.Scan, loop_ops.Recur)) or isinstance(op, ops.ScanFrom):
        return None
    extents = [axis.extent for axis in (*nest.axes, op.axis)]
    if nest.ordered or not all(isinstance(extent, int) and extent > 0 for extent in extents):
        return None
    if any(one.regions for one in op.body.ops) or not _is_cheap(nest, op):
        return None
    if isinstance(op, ops.Scan) and any(isinstance(one, ops.Store) for one in nest.body.ops):
        return None
    if count_of([op.axis]) < LEAST_STEPS or any(scalar_dtype(v).is_complex for v in _carried(op)):
        return None
    inside = [a for a in accesses(nest, context.facts) if a.inner]
    for axis in reversed(nest.axes):
        if _runs_along(axis, op, inside, machine) and not _has_factors(nest, axis, op, machine):
            return _RowScan(nest, op, axis, machine).run()
    return None


def _is_cheap(nest: ops.Nest, op: ops.Scan | loop_ops.Recur) -> bool:
    """Whether a step is bound by memory, also with what is the same for all steps."""
    maps = [one for one in (*nest.body.ops, *op.body.ops) if isinstance(one, ops.Map)]
    return sum(one.fn.cost for one in maps) <= CHEAP


def _runs_along(
    col: Axis, op: ops.Scan | loop_ops.Recur, inside: Sequence[Access], machine: CachedCpu
) -> bool:
    """Whether long rows of large operands run along an axis, and none runs elsewhere; as many as
    there is to carry, at least, which is read and written besides."""
    total, streams = 0, 0
    for access in inside:
        if access.stride(col.name) not in (0, 1):
            return False
        if access.stride(col.name) == 1 and access.stride(op.axis.name) != 0:
            row = count_of([col]) * access.dtype.itemsize
            if row < LEAST_BYTES:
                return False
            total += row * count_of([op.axis])
            streams += 1
    return total >= machine.l2 and len(_carried(op)) < streams


def _has_factors(
    nest: ops.Nest, col: Axis, op: ops.Scan | loop_ops.Recur, machine: CachedCpu
) -> bool:
    """Whether a step reads what each column has for all steps, and the first cache does not hold
    that and what is carried."""
    line = machine.registers // 4 * machine.vector_bits // 8
    if not isinstance(op, loop_ops.Recur) or line < LINE:
        return False
    inside, outside = dependence_of(op.body).ops, dependence_of(nest.body).values
    found = [
        one.result
        for one in op.body.ops
        if isinstance(one, ops.Load) and col.name in inside[one]
        if op.axis.name not in inside[one]
    ]
    found += [v for v in free_values(op.body) if col.name in outside.get(v, ())]
    near = sum([scalar_dtype(v).bits for v in (*found, *_carried(op))]) // 8
    return bool(found) and near * count_of([col]) > machine.l1


def _carried(op: ops.Scan | loop_ops.Recur) -> Sequence[Value]:
    """Scalars of the types of what is carried."""
    return op.body.outputs if isinstance(op, ops.Scan) else op.init


class _RowScan:
    """The cut of one nest.

    Attributes:
        col: the axis along which rows run.
        others: the other axes.
        states: what is carried, with an element for each point of the nest.
    """

    def __init__(
        self, nest: ops.Nest, op: ops.Scan | loop_ops.Recur, col: Axis, machine: CachedCpu
    ) -> None:
        self.nest = nest
        self.op = op
        self.col = col
        self.machine = machine
        self.others = [axis for axis in nest.axes if axis is not col]
        at = nest.body.ops.index(op)
        self.before, self.after = nest.body.ops[:at], nest.body.ops[at + 1 :]
        self.carried = _carried(op)
        self.index = index_of(nest.axes)
        self.bits = max([scalar_dtype(v).bits for v in self.carried])
        self.lanes = max(1, machine.vector_bits // self.bits)
        self.states: list[Value] = []

    def run(self) -> Pieces:
        """The nests."""
        pieces = Pieces()
        dims = tuple([axis.extent for axis in self.nest.axes])
        self.states = [pieces.buffer(BufType(dims, scalar_dtype(v))) for v in self.carried]
        pieces.nests += [self.start(), self.steps()]
        if self.after:
            pieces.nests.append(self.last())
        pieces.reason = "whole rows, one after the other"
        return pieces

    def store(self, buf: Value, value: Value) -> ops.Store:
        """Writes an element of what is carried."""
        return ops.Store(buf, value, (), self.index, loc=self.op.loc)

    def loads(self) -> list[ops.Load]:
        """Reads what is carried."""
        return [ops.Load(buf, (), self.index, loc=self.op.loc) for buf in self.states]

    def start(self) -> ops.Nest:
        """What is there before the first step."""
        copy, op = Copy(), self.op
        code = [copy.op(one) for one in self.before]
        for state, value in zip(self.states, self.carried, strict=True):
            if isinstance(op, ops.Scan):
                const = ops.Const(identity(value, op.fn), scalar_dtype(value), loc=op.loc)
                code += [const, self.store(state, const.result)]
            else:
                code.append(self.store(state, copy.find(value)))
        return ops.Nest(self.nest.axes, body=Block([], without_dead(code), ()), loc=self.nest.loc)

    def steps(self) -> ops.Nest:
        """All steps, in order."""
        op, axis = self.op, self.op.axis
        place: Dim = sym(axis.name)
        copy = Copy({axis.name: axis.extent - 1 - place} if op.reverse else {})
        code = [copy.op(one) for one in self.before]
        loads = self.loads()
        code += loads
        before = [load.result for load in loads]
        if isinstance(op, ops.Scan):
            body = copy.block(op.body)
            total = ops.Map((*before, *body.outputs), op.fn, loc=op.loc)
            code += [*body.ops, total]
            after: Sequence[Value] = total.results
            code += self.written(op, total.result, copy)
        else:
            copy.env.update(zip(op.body.args, before, strict=True))
            code += [copy.op(one) for one in op.body.ops]
            after = [copy.find(v) for v in op.body.outputs]
        # An output may be another state's value before: all are read above.
        code += [self.store(*pair) for pair in zip(self.states, after, strict=True)]
        return self.tiled(Block([], without_dead(code), ()))

    def written(self, op: ops.Scan, total: Value, copy: Copy) -> list[Op]:
        """Writes an element of a scan's result."""
        assert isinstance(op.buf.type, BufType)
        dtype, code = op.buf.type.dtype, list[Op]()
        if scalar_dtype(total) is not dtype:
            code.append(ops.Cast(total, dtype, loc=op.loc))
            total = code[-1].result
        code.append(ops.Store(op.buf, total, (), copy.places(op.index), loc=op.loc))
        return code

    def tiled(self, body: Block) -> ops.Nest:
        """The nest of the steps, with its tiles."""
        axis, col = self.op.axis, self.col
        programs = count_of(self.others)
        least = LEAST_PART if self.machine.cores >= MANY else PART_BYTES
        size = count_of([*self.others, axis, col]) * self.bits // 8
        has_halves = self.machine.reads_on and not self.machine.waits_for_few
        if has_halves and size <= NEAR and config.current().threads > 1:
            least = min(least, PART_BYTES // 2)
        wanted = max(PROGRAMS, self.machine.cores) // programs
        parts = max(min(wanted, count_of([col]) * self.bits // 8 // least), 1)
        wide, step = ceil(count_of([col]) / parts), VECTORS * self.lanes
        if self.machine.cores >= MANY and step * parts > count_of([col]):
            step = self.lanes
        wide = ceil(wide / step) * step
        tile = next(n * self.lanes for n in range(VECTORS, 0, -1) if wide % (n * self.lanes) == 0)
        tile = min(tile, power_above(count_of([col])))
        is_cut = wide < count_of([col])
        programs *= ceil(count_of([col]) / wide)
        work = count_of([axis]) * min(wide, count_of([col])) * len(body.ops)
        nest = ops.Nest(
            (*self.others, axis, col), ordered=(axis.name,),
            tile=(*[1] * (len(self.others) + 1), tile),
            chunk=(*[1 if one.extent != 1 else 0 for one in self.others], 0, wide if is_cut else 0),
            reduce_tile=1, reason="whole rows, one after the other", body=body, loc=self.nest.loc,
            grain=grain_of(programs, work),
        )  # fmt: skip
        new = _with_body(nest, streaming.marked(nest, self.machine, down=True))
        if self.machine.reads_on and not is_cut:
            return new
        return _with_body(new, [*self.fetches(new, min(wide, count_of([col]))), *new.body.ops])

    def fetches(self, nest: ops.Nest, wide: int) -> list[Op]:
        """What fetches the lines that the steps, of so many columns, go to next, if the first cache
        has room."""
        step, col, tile = self.op.axis.name, self.col.name, nest.tile[-1]
        found = [a for a in accesses(nest) if a.stride(col) == 1 and a.stride(step) != 0]
        found = [a for a in found if not (isinstance(a.op, ops.Store) and a.op.streaming)]
        if wide * sum([a.dtype.itemsize for a in found]) > self.machine.l1:
            return []
        return [
            Prefetch(a.op.buf, substitute(a.offset, {step: sym(step) + 1, col: sym(col) + k}),
                     loc=a.op.loc)
            for a in found
            for k in range(0, tile, LINE_BYTES // a.dtype.itemsize)
        ]  # fmt: skip

    def last(self) -> ops.Nest:
        """What stands behind the loop."""
        copy, loads = Copy(), self.loads()
        copy.env.update(zip(self.op.results, [load.result for load in loads], strict=True))
        code = [copy.op(one) for one in self.before]
        code += loads
        code += [copy.op(one) for one in self.after]
        return ops.Nest(self.nest.axes, body=Block([], without_dead(code), ()), loc=self.nest.loc)


def _with_body(nest: ops.Nest, code: Sequence[Op]) -> ops.Nest:
    new = nest.rebuild(regions=[Block((), code, ())])
    assert isinstance(new, ops.Nest)
    return new
