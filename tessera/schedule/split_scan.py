"""Splits a scan of few long rows: sums of parts, a scan of the sums, and scans that go on from
there.

    nest i: y[i, k] = scan k < K: g(i, k)
    ==>
    nest p, i: sums[p, i] = reduce k < chunk: g(i, p*chunk + k)
    nest i: before[p, i] = scan p: sums[p, i]
    nest p, i: y[i, p*chunk + k] = scan k < chunk from before[p - 1, i]: g(i, p*chunk + k)
"""

from __future__ import annotations

from tessera.ir.core import Block, Op, Value
from tessera.ir.intexpr import Dim, ceildiv, divides, sym
from tessera.ir.order import Order, Tree
from tessera.ir.types import ScalarType
from tessera.ir.walk import walk
from tessera.schedule import ops
from tessera.schedule.access import accesses
from tessera.schedule.copying import Copy, guarded, identity
from tessera.schedule.emit import without_dead
from tessera.schedule.ordering import whole
from tessera.schedule.sizes import power_above
from tessera.schedule.split import Context, Pieces, Shape, chunk_of, index_of
from tessera.schedule.types import Axis, BufType

BLOCKS = 0.5
"""Blocks per multiprocessor below which a scan is split: that is one more pass over memory."""

SHORT_CHUNK = 8192
"""Places of a part, if there are no more parts than the following for it."""

MAX_PARTS = 16384
"""Parts whose sums are scanned in one tile."""


def split_scan(nest: ops.Nest, context: Context) -> Pieces | None:
    """A nest with one scan, in parts."""
    heavy = (ops.Reduce, ops.ArgReduce, ops.Contract, ops.Scan)
    found = [op for op in walk(nest.body) if isinstance(op, heavy)]
    stores = any(isinstance(op, ops.Store) for op in walk(nest.body))
    if len(found) != 1 or stores or nest.ordered:
        return None
    (op,) = found
    if type(op) is not ops.Scan:
        return None
    if op.order is not None:
        chunk = op.order.split
        return _Scan(nest, op, chunk, context).run() if chunk else None
    shape = Shape(nest.axes, op.axis.extent, 1, BLOCKS)
    inside = [a for a in accesses(nest, context.facts) if isinstance(a.op, ops.Scan)]
    chunk = chunk_of(shape, inside, context)
    if not chunk:
        return None
    extent = op.axis.extent
    if isinstance(extent, int):
        # Short parts are scanned in one tile, and carry nothing from one to the next.
        chunk = min(chunk, max(SHORT_CHUNK, power_above(-(-extent // MAX_PARTS))))
    return _Scan(nest, op, chunk, context).run()


class _Scan:
    """Splits the scan of one nest."""

    def __init__(self, nest: ops.Nest, op: ops.Scan, chunk: int, context: Context) -> None:
        self.nest = nest
        self.op = op
        self.pieces = Pieces()
        extent = op.axis.extent
        self.chunk = chunk
        self.order = whole(op.order)
        self.part = Axis(context.names.fresh("p"), ceildiv(extent, chunk))
        self.short = Axis(op.axis.name, chunk)
        begin = sym(self.part.name) * chunk
        self.place = begin + sym(op.axis.name)
        self.is_exact = divides(chunk, extent, context.facts)
        self.where: tuple[Dim, ...] = () if self.is_exact else (extent - 1 - self.place,)
        (value,) = op.body.outputs
        assert isinstance(value.type, ScalarType)
        rows = tuple([axis.extent for axis in nest.axes])
        self.type = BufType((self.part.extent, *rows), value.type.dtype)

    def run(self) -> Pieces:
        """The three nests."""
        sums, before = self.pieces.buffer(self.type), self.pieces.buffer(self.type)
        self.sums(sums)
        self.scanned(sums, before)
        self.parts(before)
        self.pieces.reason = f"scanned in {self.part.extent} parts of {self.chunk} places"
        return self.pieces

    def add(self, axes: tuple[Axis, ...], code: list[Op]) -> None:
        """A nest."""
        body = Block([], without_dead(code), ())
        self.pieces.nests.append(ops.Nest(axes, body=body, loc=self.nest.loc))

    def outside(self) -> tuple[list[Op], Copy]:
        """A copy of what stands beside the scan."""
        copy = Copy()
        return [copy.op(op) for op in self.nest.body.ops if op is not self.op], copy

    def body(self, copy: Copy) -> Block:
        """The code at one place of a part, which may not exist."""
        axis = self.op.axis
        guard = () if self.is_exact else (axis.extent - 1 - sym(axis.name),)
        inner = Copy({axis.name: self.place}, {}, guard, dict(copy.env))
        block = inner.block(self.op.body)
        value = guarded(block.ops, block.outputs[0], self.where, (), self.op.fn)
        return Block([], block.ops, (value,))

    def sums(self, target: Value) -> None:
        """Combines the places of each part."""
        code, copy = self.outside()
        order = None if self.order is None else Order(Tree.HALVES, 0, self.order.width)
        reduced = ops.Reduce((self.short,), self.op.fn, self.body(copy), order, loc=self.op.loc)
        index = index_of((self.part, *self.nest.axes))
        code += [reduced, ops.Store(target, reduced.result, (), index)]
        self.add((self.part, *self.nest.axes), code)

    def scanned(self, source: Value, target: Value) -> None:
        """Combines the parts up to each one."""
        index = index_of((self.part, *self.nest.axes))
        load = ops.Load(source, (), index)
        body = Block([], [load], (load.result,))
        op = self.op
        scan = ops.Scan(target, self.part, op.fn, op.reverse, index, body, self.order, loc=op.loc)
        self.add(self.nest.axes, [scan])

    def parts(self, before: Value) -> None:
        """Scans each part, from what stands before it on."""
        op = self.op
        code, copy = self.outside()
        p = sym(self.part.name)
        neighbour, exists = p - 1, p - 1
        if op.reverse:
            neighbour, exists = p + 1, self.part.extent - 2 - p
        (value,) = op.body.outputs
        index = (neighbour, *index_of(self.nest.axes))
        start = ops.Load(before, (), index, (exists,), identity(value, op.fn))
        index = Copy({op.axis.name: self.place}).places(op.index)
        scan = ops.ScanFrom(
            op.buf, self.short, op.fn, op.reverse, index, self.body(copy), self.order, start.result,
            self.where, loc=op.loc,
        )  # fmt: skip
        self.add((self.part, *self.nest.axes), [*code, start, scan])
