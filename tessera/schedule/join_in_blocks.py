"""Joins work on rows with sums over these rows on a CPU: block of rows after block of rows.

The kernels are those of `join_columns`. Some rows are worked on, and while they are in the second
cache, their columns are added up:

    each p: nest i < chunk, j: y[p*chunk + i, j] = f(p*chunk + i, j)
            nest j: part[p, j] = reduce k < chunk: g(p*chunk + k, j)
    nest j: z[j] = h(reduce p: part[p, j])

How many rows a block has depends on sizes and the machine, and so do results, but not on the number
of threads.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import ceil

from tessera.ir.core import Block, Func, Op, Value
from tessera.ir.intexpr import sym
from tessera.ir.types import ScalarType
from tessera.ir.walk import walk
from tessera.schedule import ops
from tessera.schedule.block_ops import Each
from tessera.schedule.blocks import PARTS
from tessera.schedule.copying import Copy, Names, identity
from tessera.schedule.grains import grain_of
from tessera.schedule.join_columns import Joining, Rows, Sums
from tessera.schedule.machines import CachedCpu
from tessera.schedule.one_pass import one_body
from tessera.schedule.types import Axis, BufType

MIN_CHUNK = 8
"""Rows for which it pays to write sums of columns."""

MAX_CHUNK = 128
"""Rows that one reduction takes on a CPU: their lines lie in as many pages."""

MIN_PARTS = 8
"""Blocks of which threads have enough to share."""


def join_in_blocks(func: Func, machine: CachedCpu) -> Func:
    """The program with row kernels and column sums joined where both read the same large array."""
    taken = {*func.dims}
    for op in walk(func.body):
        taken.update(ops.bound_axes(op))
    return func.with_body(_InBlocks(machine, Names(taken)).block(func.body, {}))


class _InBlocks(Joining):
    """Joins nests into one that runs in blocks of rows."""

    def __init__(self, machine: CachedCpu, names: Names) -> None:
        super().__init__(names)
        self.machine = machine

    def chunk(self, rows: Rows, sums: Sums) -> int:
        """Rows of a block, which half of the second cache holds."""
        shared, count = self.shared(rows, sums), rows.row.extent
        assert isinstance(count, int) or not shared
        if not shared:
            return 0
        # What has been stored may have gone past the caches.
        is_stored = any(
            type in shared
            for v, type in zip(rows.kernel.results, rows.kernel.types, strict=True)
            if v in sums.kernel.inputs
        )
        read = {*rows.kernel.inputs, *sums.kernel.inputs, *rows.kernel.results}
        if is_stored and not self.is_near(read, sums.found, rows.col):
            return 0
        size = sum([int(str(type.size)) * type.dtype.itemsize for type in shared])
        if size < self.machine.l2:
            return 0
        chunk = 1
        while count % (2 * chunk) == 0 and 2 * chunk * size <= self.machine.l2 // 2 * count:
            chunk *= 2
        chunk = min(chunk, MAX_CHUNK)
        return chunk if chunk >= MIN_CHUNK and count >= MIN_PARTS * chunk else 0

    def is_near(self, used: Iterable[Value], sums: Sequence[ops.Reduce], col: Axis) -> bool:
        """Whether a row of all arrays fits the first cache, and sums of all columns."""
        types = [v.type for v in used if isinstance(v.type, BufType)]
        dtypes = [type.dtype for type in types if col.extent in type.shape[-1:]]
        dtypes += [op.result.type.dtype for op in sums if isinstance(op.result.type, ScalarType)]
        size = sum(dtype.itemsize for dtype in dtypes)
        return isinstance(col.extent, int) and size * col.extent <= self.machine.l1

    def finished(self, kernel: ops.Kernel, part: Axis, chunk: int) -> ops.Kernel:
        """Runs the first two nests for each block."""
        rows, parts, total = kernel.body.ops
        assert isinstance(rows, ops.Nest)
        assert isinstance(parts, ops.Nest)
        assert isinstance(part.extent, int)
        row, col = rows.axes
        copy = Copy({row.name: sym(part.name) * chunk + sym(row.name)})
        found = [op for op in parts.body.ops if isinstance(op, ops.Reduce)]
        if self.is_near(kernel.body.args[: len(kernel.body.args) - kernel.temps], found, col):
            block: list[Op] = _with_sums(rows, parts, chunk, copy)
        else:
            block = [
                ops.Nest((Axis(row.name, chunk), col), body=copy.block(rows.body), loc=rows.loc),
                ops.Nest(parts.axes[1:], body=parts.body, loc=parts.loc),
            ]
        size = len(list(walk(Block((), [rows, parts], ()))))
        extents = [axis.extent for axis in rows.axes if isinstance(axis.extent, int)]
        count = min(part.extent, PARTS)
        each = Each(
            (part,), 0, Axis(self.names.fresh("q"), count),
            f"sums of columns in blocks of {chunk} rows, which stay in the cache",
            grain_of(count, size * extents[0] * ceil(extents[1] / 8) / count),
            body=Block((), block, ()), loc=kernel.loc,
        )  # fmt: skip
        body = Block(kernel.body.args, [each, total.rebuild(tile=())], ())
        # Memory of parts is scratch of a block only; sums are read when all blocks are done.
        joined = kernel.rebuild(regions=[body], temps=0)
        assert isinstance(joined, ops.Kernel)
        return joined


def _with_sums(rows: ops.Nest, parts: ops.Nest, chunk: int, copy: Copy) -> list[Op]:
    """The nest of the rows, which adds to the sums, and before it one that empties these."""
    code, sums = one_body(rows, parts, chunk)
    row, col = rows.axes
    empty: list[Op] = []
    loads: list[Op] = []
    adds: list[Op] = []
    # The pass that writes a row may find there what an earlier one has kept: stores are the last.
    stores = [op for op in code if isinstance(op, ops.Store)]
    for one in sums:
        buf, index, loc = one.store.buf, one.store.index, one.store.loc
        assert isinstance(buf.type, BufType)
        const = ops.Const(identity(one.value, one.op.fn), buf.type.dtype, loc=loc)
        empty += [const, ops.Store(buf, const.result, (), index, loc=loc)]
        load = ops.Load(buf, (), index, loc=loc)
        add = ops.Map((load.result, one.value), one.op.fn, loc=loc)
        loads.append(load)
        adds.append(add)
        stores.append(ops.Store(buf, add.result, (), index, loc=loc))
    # Sums lie pages apart: a load behind a store of another one would wait for it.
    body = [*[op for op in code if not isinstance(op, ops.Store)], *loads, *adds, *stores]
    return [
        ops.Nest((col,), body=Block([], empty, ()), loc=parts.loc),
        ops.Nest(
            (Axis(row.name, chunk), col), ordered=(row.name,),
            body=copy.block(Block([], body, ())), loc=rows.loc,
        ),
    ]  # fmt: skip
