"""Sums and extremes over the rows of large operands, read as they lie in memory.

The sum of the rows of a large matrix, each times a number, is bound by reading the matrix. A vector
of columns that stays in registers over the whole depth reads a few lines of every row, each in
another page: half of what memory gives, as prefetching follows lines of a page. So some rows are
read side by side from end to end, and added to sums that lie in a near cache. They lie far apart,
so that each goes on where its predecessor ended; neighbours would all begin anew together:

    nest j: y[j] = f(reduce k < K: g(k, j))
    ==>
    nest p, j: part[p, j] = 0
    nest p, k in order, j: part[p, j] += reduce kk < 8: g((p*8 + kk)*steps + k, j)
    nest j: y[j] = f(part[0, j] + part[1, j] + ... + reduce of the places that are left)

The parts of the depth are what threads share; how many there are depends on sizes only, and so do
results. A product of few rows is the same with an axis more: its block of sums is loaded, all
eight rows are added, and it is stored again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, prod

from tessera.dtypes import DType, int8, int16, uint8
from tessera.ir.core import Block, Func, Op, Value, scalar_dtype
from tessera.ir.intexpr import Dim, Facts, linear_in, simplify, substitute, sym, symbols
from tessera.ir.scalar import SCALARS
from tessera.ir.types import ScalarType
from tessera.schedule import ops, small_operands
from tessera.schedule.access import Access, accesses, dependence_of
from tessera.schedule.blocking import choose_block
from tessera.schedule.copying import Copy, identity
from tessera.schedule.cost import LEAST_BLOCK
from tessera.schedule.dependence import behind, only_loop
from tessera.schedule.emit import without_dead
from tessera.schedule.grains import PROGRAMS, grain_of
from tessera.schedule.machines import CachedCpu
from tessera.schedule.narrow_products import Groups, groups_of, narrowed
from tessera.schedule.sizes import power_above
from tessera.schedule.split import Context, Pieces, Rule, index_of, rewrite
from tessera.schedule.types import Axis, BufType

ROWS = 8
"""Rows of the operand that are read side by side: so many that sums are loaded seldom."""

STREAMS = 4
"""The same, where they lie far apart, each is a stream of its own, and elements are not just added:
one core multiplies a row by 4096 x 4096 in 1.43 ms, with eight streams in 1.57; by 1024 x 4096, in
the third cache, in 158 us and 181."""

STREAM_VECTORS = 2
"""Vectors that are read of one before the next."""

LEAST_AGAIN = 3
"""Rows of a product from which all that a step reads lies in the first cache: two wait for memory
anyway. One core multiplies 8 rows by 1024 x 4096 in 0.75 ms so, in 0.87 by whole rows, whose sums
fill half of a Xeon's second cache. Of narrow numbers, rows would be too short: 4 by 4096 x 4096 of
int8 take 1.05 to 1.16 of the time."""

TALL_VECTORS = 2
"""Vectors side by side of a block where there are several blocks of rows."""

FUNCTIONS = ("add", "max", "min")
"""What reductions combine with."""

LEAST_BYTES = 2048
"""The bytes of a row from which registers do not hold what belongs to it."""

FAR, FAR_DEPTH = 1 << 24, 128
"""Bytes of an operand that comes from memory, of which rows that registers do not hold had better
be read as a whole, and the depth from which that makes up for what is loaded and stored besides
(half of it for searches, which have half of the registers). Parts of rows take memory twice as
long: maxima of [100, 500, 300] along its second axis 2.6 ms, and 1.7 in order."""

AGAIN = 4
"""Rows of a product for each of many planes, which are small: with eight registers had better hold
sums (64 x 8 x 256 by 64 x 256 x 512 takes 1.18 times as long in order, with four rows 0.58)."""

SHORTEST = 512
"""Bytes of rows that are read in parts at the most; less was not measured."""

STRIP_BYTES = 32768
"""Sums that one program adds to: about the first cache, as more columns are longer rows."""

FEW, MORE = 16, 48
"""A product of more rows is bound by its multiplications, and copies of its operands pay: the first
where the operand may be in a cache that cores share, the second where it is in memory."""

FEW_BYTES = 4
"""A product of more rows of bytes is rather packed for registers for matrices: a core of a Xeon
(Emerald Rapids) takes 0.6 to 0.9 of the time for 7, 16 of them 0.3 to 0.55; of 7 rows of bfloat16
times 4096 x 4096 1.2 and 2.0."""

ONE_BLOCK = 8
"""A product of more rows, whose operand has a scale for each block of the depth, would apply it for
each block of rows again."""

SHARED_CACHE = 8
"""How many times larger than the second one such a cache is."""

STRIPS = 2
"""Stretches of all rows for each core: the longer they are, the faster they are read. Searches
along the first axis of [64, 65536] took two cores 0.53 ms in stretches of 16 KB, 0.44 in 64, 0.38
as a whole. Also programs of sums that are added in order."""

_SHARED = (2, 16, 32, 64, 128)
"""Places of the depth that one row may be for."""

LEAST_PLACES = 32
"""Rows that a part has at least."""


def read_in_order(func: Func, machine: CachedCpu, facts: Facts | None = None) -> Func:
    """The program with sums, searches and scans over the rows of large operands cut along the rows,
    and deep products of few rows and columns in parts of their depth.

    Args:
        func: a program without tiles and places.
        machine: the CPU.
        facts: what is known of symbolic dims.
    """
    # These build on this module.
    from tessera.schedule.deep_products import split_deep
    from tessera.schedule.depth_lanes import sum_lanes
    from tessera.schedule.rows_apart import sum_rows_apart
    from tessera.schedule.scan_in_order import scan_rows
    from tessera.schedule.search_in_order import search_rows

    rules: tuple[Rule, ...] = (
        lambda nest, context: _sum_rows(nest, context, machine),
        lambda nest, context: sum_lanes(nest, context, machine),
        lambda nest, context: split_deep(nest, context, machine),
        lambda nest, context: search_rows(nest, context, machine),
        lambda nest, context: scan_rows(nest, context, machine),
        lambda nest, context: sum_rows_apart(nest, context, machine),
    )
    return rewrite(func, None, rules, facts)


def _sum_rows(nest: ops.Nest, context: Context, machine: CachedCpu) -> Pieces | None:
    """The nests that read a large operand of a nest's sum in order; None where there is none."""
    op = only_loop(nest)
    if not isinstance(op, (ops.Reduce, ops.Contract)) or nest.ordered or len(op.axes) != 1:
        return None
    if isinstance(op, ops.Reduce) and (op.fn.name not in FUNCTIONS or op.order is not None):
        return None
    if any(one.regions for one in op.body.ops) or scalar_dtype(op.result).is_complex:
        return None
    extents = [axis.extent for axis in (*nest.axes, *op.axes)]
    if not all(isinstance(extent, int) and extent > 0 for extent in extents):
        return None
    reads = [a for a in accesses(nest, context.facts) if a.inner]
    sums = scalar_dtype(op.result).itemsize if _adds_pairs(op, nest, machine) else 1
    for axis in reversed(nest.axes):
        if runs_along(nest, axis, op.axes[0], reads, machine, sums):
            return _RowSum(nest, op, axis, reads, context, machine).run()
    return None


def _adds_pairs(op: Op, nest: ops.Nest, machine: CachedCpu) -> bool:
    """Whether a product of narrow integers is added by two, as the machine adds no more of any, or
    has fewer rows than are packed for that.

    Copies of operands cost less than what is read and mixed again for each block of rows, if a
    cache holds them (16 x 1024 times 1024 x 1024 297 us of a Zen 3, not 413). Its rows need not be
    as long as others: as one nest its operands would be widened one by one (of 4 rows 172 us, not
    97).
    """
    if not isinstance(op, ops.Contract) or not op.dtype.is_integer:
        return False
    groups = groups_of(op, machine, True)
    if machine.group(uint8, int8) > 1:
        sides = [[a for a in nest.axes if a.name in names] for names in (op.rows, op.cols)]
        return groups.size > 1 and min(map(count_of, sides)) < LEAST_BLOCK
    return groups.elements == (int16, int16)


def runs_along(
    nest: ops.Nest,
    col: Axis,
    deep: Axis,
    reads: Sequence[Access],
    machine: CachedCpu,
    sums: int = 1,
    held: int = 1,
) -> bool:
    """Whether long rows of a large operand run along an axis, and no operand runs elsewhere.

    Args:
        nest: what reads them.
        col: the axis.
        deep: the axis of the sum.
        reads: what is read.
        machine: the CPU.
        sums: bytes of a sum, if these say how long a row is.
        held: registers that belong to one that is read.
    """
    is_large = False
    for read in reads:
        stride, (jump, shared) = read.stride(col.name), rows_of(read, deep)
        if stride not in (0, 1) or jump is None:
            return False
        if stride == 1:
            again = [axis for axis in nest.axes if read.stride(axis.name) == 0]
            plane = count_of([col]) * (count_of([deep]) // shared) * read.dtype.itemsize
            size = plane
            if count_of(again) <= AGAIN:
                planes = [axis for axis in nest.axes if axis is not col and axis not in again]
                size *= count_of(planes)
            least = -(-LEAST_BYTES // max(read.dtype.itemsize, sums))
            if size >= FAR and count_of([deep]) * held >= FAR_DEPTH:
                room = max(machine.registers * machine.vector_bits // 16 // held, SHORTEST)
                least = min(least, room // read.dtype.itemsize + 1)
            is_long = min(jump, count_of([col])) >= least
            most = size if held == 1 or size >= FAR else plane
            is_large |= is_long and most >= machine.l2
    return is_large


def rows_of(read: Access, deep: Axis) -> tuple[int | None, int]:
    """Elements from one row that is read to the next, and how many places of the depth it is for:
    two where a byte holds two values, a block where they share a scale. None where that varies."""
    jump = read.stride(deep.name)
    if jump is not None:
        return (jump, 1) if isinstance(jump, int) else (None, 1)
    for shared in _SHARED:
        moved = simplify(substitute(read.offset, {deep.name: shared * sym(deep.name)}))
        found = linear_in(moved, (deep.name,))
        if found is not None and deep.name not in symbols(found[1]):
            jump = found[0][deep.name]
            return (jump, shared) if isinstance(jump, int) else (None, 1)
    return None, 1


@dataclass(frozen=True, slots=True)
class Cut:
    """How the columns and the depth of a large operand are dealt out.

    Attributes:
        wide: columns of a program.
        chunks: programs that have all columns.
        parts: of the depth.
        rows: that are read side by side.
        steps: blocks of so many places that a part has.
        strips: stretches that threads share, of a program or more.
    """

    wide: int
    chunks: int
    parts: int
    rows: int
    steps: int
    strips: int

    @property
    def places(self) -> int:
        """Rows of a part."""
        return self.rows * self.steps


def cut_of(
    col: Axis,
    deep: Axis,
    others: Sequence[Axis],
    tile: int,
    column_bytes: int,
    cores: int,
    in_order: bool = False,
    rows: int = ROWS,
    held: int = 1,
) -> Cut:
    """What a program finds for its columns stays in a near cache, `held` numbers for each; there
    are enough programs, with `in_order` none of which has a part of the depth.

    A part of the depth for each core, and columns of these: parts are summed once more in the end.
    """
    extent, room = count_of([col]), STRIP_BYTES // (column_bytes * held)
    least = max(LEAST_BYTES // column_bytes, 1)
    if in_order:
        room = max(min(room, ceil(extent * count_of(others) / strips_of(cores))), least)
    chunks = ceil(extent / room)
    places = count_of([deep])
    wanted = 1 if in_order else ceil(max(PROGRAMS, cores) / (count_of(others) * chunks))
    parts = max(min(wanted, places // LEAST_PLACES), 1)
    if not in_order:
        more = ceil(STRIPS * cores / (count_of(others) * parts))
        chunks = max(chunks, min(more, extent // least))
    wide = ceil(ceil(extent / chunks) / tile) * tile
    return Cut(wide, ceil(extent / wide), parts, rows, places // rows // parts, strips_of(cores))


def strips_of(cores: int) -> int:
    """Stretches of all rows that threads share."""
    return max(PROGRAMS // 2, STRIPS * cores)


def row_of(cut: Cut, part: Axis, step: Axis, deep: Axis, is_apart: bool = True) -> Dim:
    """The place along the depth of a row that a part reads in a step, one of several side by side.

    Those far apart are followed by their neighbours in memory in the next step.
    """
    if is_apart:
        return (sym(part.name) * cut.rows + sym(deep.name)) * cut.steps + sym(step.name)
    return (sym(part.name) * cut.steps + sym(step.name)) * cut.rows + sym(deep.name)


def grain_of_rows(cut: Cut, programs: int, work: float) -> int:
    """Programs that are worth a thread's while: several neighbours, whose columns it reads as one
    stretch of each row. 0 where threads do not pay."""
    grain = grain_of(programs, work)
    return max(grain, cut.chunks // cut.strips) if grain and cut.parts == 1 else grain


class _RowSum:
    """The cut of one nest.

    Attributes:
        col: the axis along which rows run.
        row: the other axis of a product's block; None where there is none.
        others: the other axes.
        cut: of columns and depth.
    """

    def __init__(
        self,
        nest: ops.Nest,
        op: ops.Reduce | ops.Contract,
        col: Axis,
        reads: Sequence[Access],
        context: Context,
        machine: CachedCpu,
    ) -> None:
        self.nest = nest
        self.op = op
        self.col = col
        self.deep = op.axes[0]
        self.names = context.names
        used = dependence_of(nest.body).ops[op]
        self.axes = [axis for axis in nest.axes if axis.name in used]
        others = [axis for axis in self.axes if axis is not col]
        large = [a for a in reads if a.stride(col.name) == 1]
        rows = [a for a in others if all(x.stride(a.name) == 0 for x in large)]
        self.row = rows[-1] if isinstance(op, ops.Contract) and len(rows) == 1 else None
        size = sum(count_of([col, self.deep]) * a.dtype.itemsize for a in large)
        is_remote = size >= SHARED_CACHE * machine.l2
        most = MORE if is_remote else FEW
        groups = groups_of(op, machine, True) if isinstance(op, ops.Contract) else None
        if groups is not None and groups.size > 2 - groups.is_panels:
            # In packed operands four products are added at once, here two.
            most = FEW if is_remote and not groups.is_panels else LEAST_BLOCK - 1
            most = FEW_BYTES if groups.is_panels and groups.size > 2 else most
        elif _adds_pairs(op, nest, machine) and not is_remote:
            most = LEAST_BLOCK - 1
        if any(rows_of(a, self.deep)[1] > 2 for a in reads):
            most = ONE_BLOCK
        self.is_fit = not rows or (self.row is not None and count_of([self.row]) <= most)
        self.others = [axis for axis in others if axis is not self.row]
        self.type = scalar_dtype(op.result)
        self.fn = SCALARS["add"] if isinstance(op, ops.Contract) else op.fn
        # Rows that share bytes or a scale are read together, and so are those whose factors of
        # several sums are neighbours: 8 x 1024 times 1024 x 4096 took 0.87 ms, and 1.20 apart.
        shared = any(rows_of(a, self.deep)[1] > 1 for a in reads)
        self.is_apart = op.order is None and not shared and count_of(rows) == 1
        self.lanes = max(1, machine.vector_bits // self.type.bits)
        self.groups = self.groups_of_rows(machine) if self.is_fit and not shared else None
        # What is done to an element besides makes eight streams wait for arithmetic, too.
        streams = self.is_apart and any(not isinstance(one, ops.Load) for one in op.body.ops)
        self.height, self.tile = 1, (STREAM_VECTORS if streams else 4) * self.lanes
        if self.row is not None and not streams:
            self.height, self.tile = self.block_of(count_of([self.row]), machine.registers)
        self.tile = min(self.tile, power_above(count_of([col])))
        self.in_order = op.order is not None
        self.fused = machine.fma
        # What all blocks of rows read in a step stays in the first cache, and their sums beside it.
        is_wide = all(2 * a.dtype.bits >= self.type.bits for a in large)
        held = ROWS if is_wide and count_of(rows) >= LEAST_AGAIN else 1
        known = (col, self.deep, self.others, self.tile, self.type.itemsize, machine.cores)
        self.cut = cut_of(*known, self.in_order, STREAMS if streams else ROWS, held)

    def block_of(self, rows: int, registers: int) -> tuple[int, int]:
        """Rows and columns of the blocks of a product of so many rows. One block of all is better
        than wide ones: each of several loads what is multiplied once more."""
        size = self.groups.size if self.groups else 1
        shape = (rows, count_of([self.col]), ROWS // size)
        block = choose_block(shape, self.lanes, registers)
        if block.rows == rows or size > 1:
            return block.rows, block.columns
        count = ceil(rows / (registers * 3 // 4 // TALL_VECTORS))
        return ceil(rows / count), TALL_VECTORS * self.lanes

    def groups_of_rows(self, machine: CachedCpu) -> Groups | None:
        """How products of some narrow rows are added up by neighbours of the depth; None where they
        are not."""
        op, row = self.op, self.row
        if not isinstance(op, ops.Contract) or row is None or count_of([row]) == 1 or self.others:
            return None
        found = groups_of(op, machine, panels=False)
        if uint8 in found.elements:
            # As bytes of which one is moved they would have sums besides.
            found = Groups((int16, int16), machine.group(int16, int16))
        return found if found.size > 1 else None

    @property
    def is_widened_often(self) -> bool:
        """Whether a copy of the small operand pays that is as wide as sums."""
        op, row = self.op, self.row
        if not isinstance(op, ops.Contract) or row is None or count_of([row]) == 1 or self.others:
            return False
        return small_operands.is_widened_often(self.nest, op, row)

    def run(self) -> Pieces | None:
        """The nests."""
        if not self.is_fit or self.cut.places < LEAST_PLACES:
            return None
        pieces = Pieces()
        if self.groups is not None:
            self.read_along(pieces, self.groups.elements[0])
        elif self.is_widened_often:
            self.read_along(pieces, self.type)
        dims = (self.cut.parts, *[axis.extent for axis in self.axes])
        sums = pieces.buffer(BufType(dims, self.type))
        part = Axis(self.names.fresh("p"), self.cut.parts)
        pieces.nests += [self.zeros(sums, part), self.partial(sums, part), self.last(sums, part)]
        rows, parts = self.cut.rows, self.cut.parts
        pieces.reason = f"{rows} rows read side by side, in {parts} parts of the depth"
        return pieces

    def read_along(self, pieces: Pieces, element: DType) -> None:
        """Has the small operand run along the depth, as elements of groups."""
        assert isinstance(self.op, ops.Contract) and self.row is not None
        small = narrowed(small_operands.small_first(self.nest, self.op, self.row)[0])
        reads = [a for a in accesses(self.nest) if a.op is small.op]
        if small.type == ScalarType(element) and [a.stride(self.deep.name) for a in reads] == [1]:
            return
        self.nest = small_operands.with_turned(self.nest, self.op, self.row, pieces, element)
        (self.op,) = [op for op in self.nest.body.ops if isinstance(op, ops.Contract)]

    def zeros(self, sums: Value, part: Axis) -> ops.Nest:
        """The sums of nothing."""
        loc = self.op.loc
        axes = (part, *self.axes)
        zero = ops.Const(identity(self.op.result, self.fn), self.type, loc=loc)
        store = ops.Store(sums, zero.result, (), index_of(axes), loc=loc)
        return ops.Nest(axes, body=Block([], [zero, store], ()), loc=self.nest.loc)

    def partial(self, sums: Value, part: Axis) -> ops.Nest:
        """Adds all places of a part to its sums."""
        loc = self.op.loc
        step = Axis(self.names.fresh("k"), self.cut.steps)
        place = row_of(self.cut, part, step, self.deep, self.is_apart)
        index = index_of((part, *self.axes))
        if self.in_order:
            load = ops.Load(sums, (), index, loc=loc)
            sum_ = [load, *self.chain(load.result, place, self.cut.rows)]
            store = ops.Store(sums, sum_[-1].result, (), index, loc=loc)
        else:
            sum_ = self.sum(place, self.cut.rows, self.groups)
            store = ops.Store(sums, sum_[-1].result, (), index, combine=self.fn, loc=loc)
        rows = () if self.row is None else (self.row,)
        axes = (part, *self.others, step, *rows, self.col)
        chunk = (
            1 if self.cut.parts > 1 else 0,
            *[1 if axis.extent != 1 else 0 for axis in self.others],
            0, *[0] * len(rows), self.cut.wide if self.cut.chunks > 1 else 0,
        )  # fmt: skip
        tile = (*[1] * (len(self.others) + 2), *[self.height] * len(rows), self.tile)
        programs = self.cut.parts * count_of(self.others) * self.cut.chunks
        wide = min(self.cut.wide, count_of([self.col]))
        work = 2 * self.cut.places * count_of(rows) * wide
        return ops.Nest(
            axes, ordered=(step.name,), tile=tile, chunk=chunk,
            reduce_tile=self.groups.size if self.groups else 1,
            reason=f"{self.cut.rows} rows read side by side are added to sums in the first cache",
            body=Block([], without_dead([*sum_, store]), ()), loc=self.nest.loc,
            grain=grain_of_rows(self.cut, programs, work),
        )  # fmt: skip

    def sum(self, place: Dim, count: int, groups: Groups | None = None) -> list[Op]:
        """The sum over some places of the depth, perhaps by groups of them, and what it needs."""
        copy = Copy({self.deep.name: place})
        before = self.nest.body.ops[: self.nest.body.ops.index(self.op)]
        code = [copy.op(op) for op in before if not isinstance(op, ops.Store)]
        body = copy.block(self.op.body)
        if groups is not None:
            sides = zip(body.outputs, groups.elements, strict=True)
            casts = [ops.Cast(narrowed(v), dtype, loc=self.op.loc) for v, dtype in sides]
            outputs = [op.x if op.x.type == op.result.type else op.result for op in casts]
            body = Block([], behind([*body.ops, *casts], outputs), outputs)
        short = (Axis(self.deep.name, count),)
        code.append(self.op.rebuild((), [body], axes=short))
        return code

    def chain(self, start: Value, place: Dim, count: int) -> list[Op]:
        """Some products added to a sum one after the other, and what they need.

        Args:
            start: the sum.
            place: of the first one along the depth, in which the axis is 0.
            count: how many.
        """
        before = self.nest.body.ops[: self.nest.body.ops.index(self.op)]
        code: list[Op] = []
        found, loc = start, self.op.loc
        for k in range(count):
            copy = Copy({self.deep.name: substitute(place, {self.deep.name: k})})
            code += [copy.op(op) for op in before if not isinstance(op, ops.Store)]
            body = copy.block(self.op.body)
            sides = [ops.Cast(v, self.type, loc=loc) for v in body.outputs]
            pair = [side.result for side in sides]
            code += [*body.ops, *sides]
            if self.fused:
                code.append(ops.Map((*pair, found), SCALARS["fma"], loc=loc))
            else:
                product = ops.Map(tuple(pair), SCALARS["mul"], loc=loc)
                code += [product, ops.Map((found, product.result), SCALARS["add"], loc=loc)]
            found = code[-1].result
        return code

    def last(self, sums: Value, part: Axis) -> ops.Nest:
        """What the nest stores, from the sums of the parts and what is left of the depth."""
        copy = Copy()
        code: list[Op] = []
        for op in self.nest.body.ops:
            if op is self.op:
                copy.env[self.op.result] = self.total(sums, code)
            else:
                code.append(copy.op(op))
        body = Block([], without_dead(code), ())
        return ops.Nest(self.nest.axes, body=body, loc=self.nest.loc)

    def total(self, sums: Value, code: list[Op]) -> Value:
        """The sum of the parts, and of what is left of the depth."""
        loc = self.op.loc
        found: list[Value] = []
        for k in range(self.cut.parts):
            load = ops.Load(sums, (), (k, *index_of(self.axes)), loc=loc)
            code.append(load)
            found.append(load.result)
        done = self.cut.parts * self.cut.places
        left = count_of([self.deep]) - done
        if left and self.in_order:
            code += self.chain(found[0], sym(self.deep.name) + done, left)
            return code[-1].result
        if left:
            code += self.sum(sym(self.deep.name) + done, left)
            found.append(code[-1].result)
        total = found[0]
        for value in found[1:]:
            code.append(ops.Map((total, value), self.fn, loc=loc))
            total = code[-1].result
        return total


def count_of(axes: Sequence[Axis]) -> int:
    """The points of some axes, whose extents are known."""
    return prod([axis.extent for axis in axes if isinstance(axis.extent, int)])
