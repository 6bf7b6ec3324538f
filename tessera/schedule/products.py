"""One product of a CPU's program: its register block, and which operands are packed; see
`pack_products`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from math import ceil, prod

from tessera.ir.core import Block, Op, Value
from tessera.ir.intexpr import Dim, Facts, ceildiv, divides, minimum, substitute, sym, symbols
from tessera.ir.scalar import SCALARS
from tessera.ir.walk import walk
from tessera.schedule import ops, part_ops
from tessera.schedule.access import accesses, dependence_of
from tessera.schedule.blocking import (
    JOINING,
    NEAR,
    REUSED,
    Operands,
    choose_block,
    choose_panels,
    ways_of,
)
from tessera.schedule.copying import POINTWISE, Copy, Names
from tessera.schedule.cost import LEAST_BLOCK
from tessera.schedule.dependence import behind, only_loop
from tessera.schedule.emit import without_dead
from tessera.schedule.far_results import block_of, goes_along_rows, is_written_far, past_caches
from tessera.schedule.few_rows import few_block, may_have_few, stores_again
from tessera.schedule.grains import FEW, grain_of
from tessera.schedule.machines import CachedCpu
from tessera.schedule.narrow_products import groups_of, narrow
from tessera.schedule.panel_by_panel import panel_cuts
from tessera.schedule.panel_ops import ContractPanels
from tessera.schedule.panel_rows import LOW, least_rows, side_by_side
from tessera.schedule.product_parts import Part, Sums, cut, cuts_of_depth
from tessera.schedule.product_programs import is_worth_sharing, program
from tessera.schedule.product_sides import LINE, Side
from tessera.schedule.product_sums import add_sums, sum_names
from tessera.schedule.sizes import size_of
from tessera.schedule.types import Axis, BufType

TURNED = 1.03
"""So many times as fast a product is whose blocks are turned, or they are not."""

LEAST_RUN = 16
"""Rows along memory from which on blocks have these, and not those of a longer axis, for which the
operand would be packed. `einsum('ikj,kl->ijl')` of [64, 128, 32] by [128, 64] takes 0.3 of the time
(Zen 5, two threads)."""

REUSING = 512
"""Rows one after the other for which a panel of the second operand is read again from a cache that
cores share: it takes a hundredth of their time. Threads then share what is outside of them, as they
do in the kernels around."""

REREAD = 16
"""Blocks, of all products that read a far second operand, from which on it is packed: a Zen 4 reads
it as fast where it is, a Xeon half as fast. Of seven blocks both do so faster than they pack it."""

CERTAIN = 1 << 20
"""Multiplications of a product that threads are certain to share."""


@dataclass(frozen=True, slots=True)
class Context:
    """What cutting a product into blocks needs to know.

    Attributes:
        machine: the CPU.
        facts: what is known of symbolic dims.
        taken: names that no axis may have.
        in_blocks: whether it is one of many alike, each on blocks of rows that a near cache holds.
    """

    machine: CachedCpu
    facts: Facts
    taken: frozenset[str]
    in_blocks: bool = False


class Product:
    """The product of one nest.

    Attributes:
        row: the axis that is cut into the rows of register blocks.
        col: the axis that is cut into their columns.
        block: the register block.
        elements: the dtypes in which operands are packed and multiplied.
        groups: how products of narrow operands are added up.
        group: how many one instruction adds.
        line: neighbours along the depth that a packed first operand keeps together; 0: none.
        rest: places at the end of the depth that are no whole line, and summed after those: the
            second operand, which is read in place, has no zeros there.
        cuts: into how many parts each axis along the depth is cut.
        by_panels: whether programs pack panels of the second operand, each for all rows.
        has_few: whether few rows are multiplied with those of the other operand, which are read
            where they lie.
        memory: besides results, where sums wait for the next part of the depth.
        cores: how many share it, if it is large enough.
    """

    def __init__(self, nest: ops.Nest, op: ops.Contract, context: Context) -> None:
        self.nest = nest
        self.op = op
        self.facts = context.facts
        self.machine = context.machine
        self.in_blocks = context.in_blocks
        self.cores = context.machine.cores
        self.depends = dependence_of(nest.body)
        self.accesses = accesses(nest, self.facts)
        bound = [name for one in (nest, *walk(nest.body)) for name in ops.bound_axes(one)]
        names = Names({*context.taken, *bound})
        byname = {axis.name: axis for axis in nest.axes}
        rows, cols = [byname[n] for n in op.rows], [byname[n] for n in op.cols]
        values = op.body.outputs
        self.groups = groups_of(op, context.machine, not context.in_blocks)
        self.group = self.groups.size
        if self.runs(rows) and not self.runs(cols):
            rows, cols, values = cols, rows, values[::-1]
        inner = [a for a in self.accesses if a.inner]

        def widest(cols: list[Axis]) -> Axis:
            if len(cols) == 1:
                return cols[0]
            runs = [sum(a.stride(axis.name) == 1 for a in inner) for axis in cols]
            pairs = [(n, self.runs([axis])) for n, axis in zip(runs, cols, strict=True)]
            found = zip(cols, pairs, strict=True)
            return max(found, key=lambda pair: (*pair[1], size_of(pair[0].extent)))[0]

        if size_of(widest(cols).extent) < LEAST_BLOCK <= size_of(widest(rows).extent):
            rows, cols, values = cols, rows, values[::-1]
        self.depth = prod([size_of(axis.extent) for axis in op.axes])
        self.lanes = max(1, self.machine.vector_bits // op.dtype.bits)
        self.line = 0
        self.rest = 0
        self.io, self.ii = names.fresh("m"), names.fresh("i")
        self.jo, self.ji = names.fresh("n"), names.fresh("j")
        self.kb, self.kk, self.kg = names.fresh("k"), names.fresh("l"), names.fresh("g")
        self.kp, self.part, self.beside = names.fresh("p"), names.fresh("q"), names.fresh("w")
        self.cuts: tuple[int, ...] = ()
        self.by_panels = False
        self.has_few = False
        self.memory: list[Value] = []
        row, col = self.tallest(rows, values[0]), widest(cols)
        self.orient(row, col, values)
        self.has_few = may_have_few(self)
        if self.has_few:
            is_turned = size_of(row.extent) < size_of(col.extent)
            self.orient(*(col, row, values[::-1]) if is_turned else (row, col, values))
            self.has_few = not self.block.packs_left
            if not self.has_few:
                self.orient(row, col, values)
        if not self.has_few and self.may_turn():
            straight = self.block
            self.orient(col, row, values[::-1], True)
            if self.block.cycles * TURNED > straight.cycles:
                self.orient(row, col, values)

    def orient(
        self, row: Axis, col: Axis, values: Sequence[Value], is_turned: bool = False
    ) -> None:
        """Gives blocks rows along one axis and lanes along the other.

        Args:
            row: the axis of the first operand.
            col: the axis of the second one.
            values: the scalars of both.
            is_turned: whether the result runs along the rows.
        """
        self.row, self.col = row, col
        # Unsigned bytes stay so on either side.
        found = (narrow(values[0]), narrow(values[1]))
        same = set(found) == set(self.groups.elements)
        self.elements = found if same else self.groups.elements
        self.others = [a for a in self.nest.axes if a is not row and a is not col]
        self.left, self.right = Side(self, values[0], row), Side(self, values[1], col)
        height, width = size_of(row.extent), size_of(col.extent)
        near = self.machine.l2
        last = self.op.axes[-1]
        stride = self.left.stride(row) * self.elements[0].itemsize if self.left.stride(last) else 0
        far = (self.left.bytes() > near, self.right.bytes() > near)
        # Rows one after the other, or parts of them, stay in the second cache while a program needs
        # them.
        lies = len(self.op.axes) == 1 and self.left.stride(last) == 1
        strays = not lies or self.left.stride(row) != self.depth
        in_place = self.left.may_stay() and not self.left.strays_along(last)
        # What is larger than the second cache is not read from memory twice.
        is_remote = len(self.op.axes) == 1 and self.right.bytes() > self.machine.l2
        self.reused = 2 if is_remote else REUSED
        if self.right.products > 1:
            # Where each core reads it for a block of its own, copying it takes longer.
            self.reused = max(REREAD, self.cores + 1)
        if self.groups.is_panels:
            steps = ceil(self.depth / (LINE * self.group))
            best = choose_panels((height, width, steps), self.lanes)
            if self.has_few:
                best = replace(best, rows=min(best.rows, LOW))
            panels = side_by_side(self, best)
            best = replace(best, columns=best.columns * panels, panels=panels)
            self.block = replace(best, packs_left=not self.left.in_rows(best.rows))
            return
        if self.has_few:
            self.block = few_block(self)
            return
        packing = self.right.packing_of_all()
        streams = not packing and not far[1] and self.right.bytes() > near // NEAR
        left = self.left.packing(not far[0] and self.left.copied() <= 4 * near)
        lie = Operands(
            in_place, stride, left, far[1], self.reused, streams, packing, self.right.copying(),
            self.machine.has_masks, self.left.meets(last), self.right.meets(last),
            self.left.products, self.right.products, self.right.splits(), is_turned,
            far[0] and strays, ways_of(self.machine.l1),
            not self.in_blocks and not is_turned, self.sharing,
            JOINING if self.machine.has_masks and self.cores > 1 else 0,
        )  # fmt: skip
        shape = (height, width, ceil(self.depth / self.group))
        best = choose_block(shape, self.lanes, self.machine.registers, lie)
        self.block = best if is_turned else block_of(self, best, in_place)

    def tallest(self, rows: Sequence[Axis], value: Value) -> Axis:
        """The longest axis of a first operand's rows, unless the operand has to be copied for it:
        where memory runs along a shorter one, blocks read that where it is."""
        # Of places in windows the inner ones lie closer together.
        longest = max(rows[::-1], key=lambda axis: size_of(axis.extent))
        is_plain = self.group == 1 and len(self.op.axes) == 1  # not of windows
        if len(rows) == 1 or not is_plain:
            return longest
        loads = {op for op in behind(self.op.body.ops, (value,)) if isinstance(op, ops.Load)}
        reads = [a for a in self.accesses if a.op in loads]
        if any(a.stride(self.op.axes[-1].name) == 1 for a in reads):
            return longest
        near = [axis for axis in rows if all(a.stride(axis.name) == 1 for a in reads)]
        return next((axis for axis in near if size_of(axis.extent) >= LEAST_RUN), longest)

    def may_turn(self) -> bool:
        """Whether lanes could run along the rows just as well: the first operand is small, and what
        is stored runs along the columns, whose blocks can be turned."""
        stores = [a for a in self.accesses if a.is_store]
        if self.group > 1 or not isinstance(self.row.extent, int):
            return False
        if not all(a.stride(self.col.name) == 1 for a in stores):
            return False
        return size_of(self.row.extent) >= self.lanes

    @classmethod
    def of(cls, nest: ops.Nest, context: Context) -> Product | None:
        """The product of a nest that is one, and can be cut into blocks."""
        op = only_loop(nest)
        if not isinstance(op, ops.Contract) or nest.ordered or nest.tile:
            return None
        if not op.axes or not op.rows or not op.cols or any(x.regions for x in op.body.ops):
            return None
        if op.dtype.is_complex or any(x.extent == 0 for x in (*nest.axes, *op.axes)):
            return None
        code = [*nest.body.ops, *op.body.ops]
        if any(not isinstance(x, (ops.Contract, *POINTWISE)) for x in code):
            return None
        stores = [x for x in nest.body.ops if isinstance(x, ops.Store)]
        written = {x.buf for x in stores}
        if any(x.combine is not None for x in stores):
            return None
        places = {(x.buf, x.index) for x in stores}
        own = [x for x in nest.body.ops if isinstance(x, ops.Load) and (x.buf, x.index) in places]
        if any(isinstance(x, ops.Load) and x.buf in written and x not in own for x in code):
            return None
        return cls(nest, op, context)

    def runs(self, axes: Iterable[Axis]) -> bool:
        """Whether a result runs along one of some axes."""
        stores = [a for a in self.accesses if a.is_store]
        return any(a.stride(axis.name) == 1 for a in stores for axis in axes)

    # --- decisions ----------------------------------------------------------------------------

    def plan(self, cuts: bool = False, by_panels: bool = False) -> bool:
        """Decides which operands are packed; whether the product is cut into blocks at all.

        Args:
            cuts: whether its depth may be cut.
            by_panels: whether it may pack the second operand panel by panel: nobody else packs it.
        """
        rows, cols = size_of(self.row.extent), size_of(self.col.extent)
        left, right = self.left, self.right
        near = self.machine.l2
        row_blocks = ceil(rows / self.block.rows) * right.products
        is_read_far = right.bytes() > near and row_blocks >= self.reused
        # Few rows of each of several windows pay for packing what all of them are multiplied with.
        least = rows * right.products if right.packing_of_all() or is_read_far else rows
        wanted = least_rows(self) if self.groups.is_panels else LEAST_BLOCK
        if not self.has_few and (least < wanted or cols < LEAST_BLOCK):
            return False
        last = self.op.axes[-1]
        is_read_whole = self.machine.masks(self.op.dtype.bits) and self.machine.has_masks
        is_read_whole = is_read_whole or self.is_whole(self.col, self.block.columns)
        in_place = right.lies_along(self.col) and is_read_whole and not self.block.packs_right
        packs_right = not in_place or (is_read_far and self.machine.has_masks)
        packs_left = self.block.packs_left
        packs_right = packs_right or self.group > 1
        along = left.runs_along(last) and not left.runs_along(self.row)
        if self.group > 1 or (packs_left and along):
            line = LINE * self.group
            extent = last.extent
            least = line if self.groups.is_panels else 2 * line
            if isinstance(extent, int) and extent < least:
                line = ceil(extent / self.group) * self.group
            if not divides(line, extent, self.facts):
                # What no line holds takes steps of its own, where nothing else says to pack.
                if isinstance(extent, int) and len(self.op.axes) == 1 and not packs_right:
                    self.rest = extent % line
                packs_right = not self.rest
            self.line = line
        if packs_right and cuts:
            found = panel_cuts(self) if by_panels else None
            self.by_panels = found is not None
            self.cuts = cuts_of_depth(self) if found is None else found
            packs_left = packs_left or (self.parts > 1 and left.is_cut_apart(self.parts))
        if packs_left:
            left.pack()
        if packs_right:
            right.pack()
        add_sums(left, right)
        add_sums(right, left)
        return True

    @property
    def parts(self) -> int:
        """Parts of the depth, which run one after the other."""
        return prod(self.cuts)

    def sums(self) -> Sums | None:
        """Where sums wait for the next part: where the result is going to be, if it runs along the
        lanes and nothing is read there, or in memory of their own, if that is small."""
        code = self.nest.body.ops
        written = {op.buf for op in code if isinstance(op, ops.Store)}
        own = any(isinstance(op, ops.Load) and op.buf in written for op in code)
        along = {a.op for a in self.accesses if a.stride(self.col.name) == 1}
        for op in code:
            if not isinstance(op, ops.Store) or own or op.where or op.dyn or op not in along:
                continue
            assert isinstance(op.buf.type, BufType)
            if op.buf.type.dtype is self.op.dtype:
                return Sums(op.buf, op.index, op)
        axes = (*self.others, self.row, self.col)
        shape = [axis.extent for axis in axes if isinstance(axis.extent, int)]
        if len(shape) < len(axes) or prod(shape) * self.op.dtype.itemsize > self.machine.l2:
            return None
        memory = Value(BufType(tuple(shape), self.op.dtype))
        return Sums(memory, tuple([sym(axis.name) for axis in axes]))

    def is_whole(self, axis: Axis, size: int) -> bool:
        """Whether an axis is whole blocks."""
        return divides(size, axis.extent, self.facts)

    @property
    def depth_axes(self) -> tuple[Axis, ...]:
        """The axes of the reduction, the last one perhaps in lines."""
        *first, last = self.op.axes
        if not self.line:
            return self.op.axes
        count = ceildiv(last.extent, self.line)
        parts = self.parts if len(self.op.axes) == 1 else 1
        lines = Axis(self.kb, ceildiv(count, parts) * parts)
        groups = Axis(self.kk, self.line // self.group)
        inside = (Axis(self.kg, self.group),) if self.group > 1 else ()
        return (*first, lines, groups, *inside)

    @property
    def place_in_line(self) -> Dim:
        """The place in a line of the depth."""
        return sym(self.kk) * self.group + sym(self.kg) if self.group > 1 else sym(self.kk)

    @property
    def depth_guard(self) -> tuple[Dim, ...]:
        """The condition under which a place along the depth is one."""
        last = self.op.axes[-1]
        if not self.line or divides(self.line * self.parts, last.extent, self.facts):
            return ()
        return (last.extent - 1 - sym(last.name),)

    def guard(self, axis: Axis, size: int) -> tuple[Dim, ...]:
        """The condition under which a place of a block is one of the axis."""
        return () if self.is_whole(axis, size) else (axis.extent - 1 - sym(axis.name),)

    @property
    def first_row(self) -> Dim:
        """The first row of a block. Where the first operand is read in place the last block begins
        so early that it is whole: all that it reads is there."""
        rows, size = self.row.extent, self.block.rows
        first = sym(self.io) * size
        if self.left.packed or self.is_whole(self.row, size):
            return first
        return minimum(first, rows - size)

    # --- the nest -----------------------------------------------------------------------------

    def nests(self) -> list[ops.Nest]:
        """The nests over register blocks: one, or one for the last part of the depth, and one for
        those before it, which leave their sums where a result is going to be."""
        sums = self.sums() if self.parts > 1 else None
        if sums is None:
            return [self.nest_of_blocks()]
        part, last = sym(self.kp), self.parts - 1
        stores = [op for op in self.nest.body.ops if isinstance(op, ops.Store)]
        if stores == [sums.store] and stores[0].value is self.op.result:
            return [self.nest_of_blocks(Part(sums, Axis(self.kp, self.parts), part))]
        self.memory = [] if sums.store else [sums.buf]
        first = Part(sums, Axis(self.kp, last), part if last > 1 else 0, False)
        rest = Part(sums, Axis(self.kp, 1), last)
        return [self.nest_of_blocks(first), self.nest_of_blocks(rest)]

    def nest_of_blocks(self, part: Part | None = None) -> ops.Nest:
        """The nest over register blocks.

        Args:
            part: a part of the depth, if it is cut.
        """
        block = self.block
        io, jo = sym(self.io), sym(self.jo)
        first = self.first_row
        axes: dict[str, Dim] = {
            self.row.name: first + sym(self.ii),
            self.col.name: jo * block.columns + sym(self.ji),
        }
        # A block that begins earlier stores those of its rows that the one before has not.
        own = () if stores_again(self) else (sym(self.row.name) - io * block.rows,)
        of_rows = own if first != io * block.rows else self.guard(self.row, block.rows)
        guards = (*of_rows, *self.guard(self.col, block.columns))
        copy = Copy(axes)
        code: list[Op] = []
        for op in self.nest.body.ops:
            if op is self.op:
                start = part.start(copy, guards, op.loc) if part else None
                code += [start] if start else []
                code += self.contracts(copy, part, start and start.result)
                copy.env[op.result] = self.unmoved(code)
                if part and not part.is_last:
                    index, where = copy.places(part.sums.index), copy.places(guards)
                    sums = (part.sums.buf, code[-1].result, (), index, where)
                    code.append(ops.Store(*sums, loc=op.loc))
                    break
                continue
            needed = tuple([e for e in guards if not symbols(e).isdisjoint(self.depends.ops[op])])
            copy.guard = needed
            if isinstance(op, ops.Store) and needed:
                op = op.rebuild(op.operands, where=(*op.where, *needed))
            code.append(copy.op(op))
        rows, cols = size_of(self.row.extent), size_of(self.col.extent)
        row_axis = Axis(self.io, ceildiv(self.row.extent, block.rows))
        col_axis = Axis(self.jo, ceildiv(self.col.extent, block.columns))
        inner = (Axis(self.ii, block.rows), Axis(self.ji, block.columns))
        turns = (part.axis,) if part and part.axis.extent > 1 else ()
        count, wide = program(self, ceil(rows / block.rows), ceil(cols / block.columns))
        if turns:
            # What waits for the next part of the depth stays in the second cache too.
            sums = count * block.rows * block.columns * self.op.dtype.itemsize
            wide = min(wide, max(self.machine.l2 // NEAR // sums, 1))
        after = self.sharing_panels()
        before = [axis for axis in self.others if axis not in after]
        if after:
            wide = 1
        is_far = not turns and is_written_far(self)
        if is_far:
            code = past_caches(code)
        found = (*before, *turns, col_axis, *after, row_axis, *inner)
        by_rows = self.groups.is_panels and not after and wide > 1
        if (is_far and goes_along_rows(self)) or by_rows:
            found = (*before, *after, row_axis, col_axis, *inner)
        sizes = {**dict.fromkeys(self.others, 1), col_axis: wide, row_axis: count}
        chunk: list[int] = []
        for axis in found[:-2]:
            size = sizes.get(axis, 0)
            whole = isinstance(axis.extent, int) and axis.extent <= size
            chunk.append(0 if whole else size)
        pairs = zip(found, chunk, strict=False)
        programs = prod([ceil(size_of(axis.extent) / size) for axis, size in pairs if size])
        work = 2 * self.depth * block.rows * block.columns
        if self.groups.is_panels:
            work = 4 * self.lanes * self.cycles
        grain = grain_of(programs, work * count * wide) if is_worth_sharing(self) else 0
        sides = [name for name, side in (("left", self.left), ("right", self.right)) if side.packed]
        return ops.Nest(
            found,
            tuple([axis.name for axis in turns]),
            tile=(*[1] * (len(found) - 2), block.rows, block.columns),
            chunk=(*chunk, 0, 0),
            reduce_tile=self.group,
            reason=f"{block.rows} x {block.columns} accumulators in {self.groups.registers}, "
            + (f"{' and '.join(sides)} operand packed" if sides else "operands read in place"),
            body=Block([], without_dead(code), ()),
            loc=self.nest.loc,
            grain=grain,
        )

    def sharing_panels(self) -> list[Axis]:
        """The axes of products that share a second operand which fills the cache: they go over one
        panel of it."""
        is_far = self.right.bytes() > self.machine.l2 // NEAR
        found = [axis for axis in self.others if is_far and axis not in self.right.batch]
        rows = size_of(self.row.extent)
        while found and rows * prod([size_of(axis.extent) for axis in found[1:]]) >= REUSING:
            found = found[1:]
        return found

    def unmoved(self, code: list[Op]) -> Value:
        """The product at the end of the code, less what moving an operand has added."""
        product = code[-1].result
        side = next((side for side in (self.left, self.right) if side.sums is not None), None)
        if side is None:
            return product
        assert side.sums is not None
        row = self.first_row + sym(self.ii)
        named = [row if name == self.row.name else sym(name) for name in sum_names(side)]
        load = ops.Load(side.sums, (), tuple(named), loc=self.op.loc)
        rest = ops.Map((product, load.result), SCALARS["sub"], loc=self.op.loc)
        code += [load, rest]
        return rest.result

    @property
    def cycles(self) -> float:
        """Of a block."""
        rows, columns = self.block.rows, self.block.columns
        if not self.groups.is_panels:
            return rows * columns * self.depth / self.lanes / self.group / 2
        blocks = ceil(size_of(self.row.extent) / rows) * ceil(size_of(self.col.extent) / columns)
        return self.block.cycles / blocks

    @property
    def is_shared(self) -> bool:
        """Whether threads are certain to share the product, and so what is packed for it."""
        points = size_of(self.row.extent) * size_of(self.col.extent) * self.copies
        return points * self.depth >= CERTAIN and is_worth_sharing(self)

    @property
    def sharing(self) -> int:
        """How many cores share one product, if they are many; 0 if not."""
        is_alone = self.copies == 1 and not self.in_blocks
        return self.cores if self.cores > FEW and is_alone and self.is_shared else 0

    @property
    def copies(self) -> int:
        """Products that there are side by side, each of programs of its own."""
        return prod([size_of(axis.extent) for axis in self.others])

    def contracts(self, copy: Copy, part: Part | None, start: Value | None) -> list[ops.Contract]:
        """The product of a block: of whole lines, and then of the rest of the depth."""
        lines = self.contract(copy, part, start)
        return [lines, self.contract(copy, None, lines.result, True)] if self.rest else [lines]

    def contract(
        self, copy: Copy, part: Part | None, start: Value | None, is_rest: bool = False
    ) -> ops.Contract:
        """The product of a block, or of a part of its depth, which may go on from a sum.

        Args:
            copy: what the axes of the product are in a block.
            part: the part, if the depth is cut into some.
            start: the sum.
            is_rest: whether it is of those places only that are no whole line.
        """
        axes = dict(copy.axes)
        deep, at = cut(self.depth_axes, self.cuts, part.place) if part else (self.depth_axes, {})
        if self.rest:
            lines = self.op.axes[-1].extent // self.line
            deep = (Axis(self.kb, lines), deep[-1])
            if is_rest:
                deep, at = (Axis(self.kk, self.rest),), {self.kb: lines}
        axes.update(at)
        if self.line:
            deepest = sym(self.kb) * self.line + self.place_in_line
            axes[self.op.axes[-1].name] = substitute(deepest, at)
        code: list[Op] = []
        sides: list[Value] = []
        for side in (self.left, self.right):
            if side.packed is not None:
                place = tuple([substitute(e, at) for e in side.place()])
                load = ops.Load(side.packed, (), place, loc=self.op.loc)
                code.append(load)
                sides.append(load.result)
                continue
            guard = () if side.is_left else self.guard(side.axis, side.size)
            own = Copy(axes, {}, guard, dict(copy.env))
            made = own.block(Block([], side.code(), (side.value,)))
            code += made.ops
            sides += made.outputs
        names = ((self.io, self.ii), (self.jo, self.ji))
        rows, cols = self.op.rows, self.op.cols
        if self.row.name not in rows:
            rows, cols = cols, rows
        rows = (*[n for n in rows if n != self.row.name], *names[0])
        cols = (*[n for n in cols if n != self.col.name], *names[1])
        body, loc = Block([], code, sides), self.op.loc
        fields = (rows, cols, self.op.dtype, body, self.op.order, self.op.fused)
        if self.groups.is_panels:
            size = self.right.size
            panels = size, ceildiv(self.col.extent, size)
            return ContractPanels(deep, *fields, *self.left.steps(), *panels, loc=loc)
        if start is None:
            return ops.Contract(deep, *fields, loc=loc)
        return part_ops.ContractFrom(deep, *fields, start, loc=loc)
