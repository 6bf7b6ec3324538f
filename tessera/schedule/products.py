"""One product of a CPU's program: its register block, and which operands are packed; see
`pack_products`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import ceil, prod
from typing import Protocol

from tessera.dtypes import DType, bfloat16, float32, int8, int16, int32, uint8
from tessera.ir.core import Block, Op, Value
from tessera.ir.intexpr import Dim, Facts, ceildiv, divides, substitute, sym, symbols
from tessera.ir.scalar import SCALARS
from tessera.ir.types import ScalarType
from tessera.ir.walk import walk
from tessera.schedule import ops
from tessera.schedule.access import accesses
from tessera.schedule.blocking import REUSED, Operands, choose_block
from tessera.schedule.copying import Copy, Names, guarded
from tessera.schedule.dependence import Dependence
from tessera.schedule.emit import without_dead
from tessera.schedule.heuristics import Cpu, grain_of, size_of
from tessera.schedule.types import Axis, BufType

LEAST = 8
"""A product with fewer rows or columns is not one of register blocks."""

NEAR = 4
"""An operand that is no larger than such a part of the second cache is read where it is."""

MOVED = 128
"""What makes signed bytes unsigned."""

LINE = 16
"""Neighbours along the depth that packing a first operand keeps together: copying is then moving
vectors."""

PROGRAMS = 8
"""Programs that a product is cut into, if it is large enough, so that several cores share it."""

COPIED = (ops.Const, ops.Index, ops.Holds, ops.Load, ops.Store, ops.Map, ops.Cast, ops.Bitcast)
"""What may stand beside a product."""


class CachedCpu(Cpu, Protocol):
    """What products ask of a machine."""

    @property
    def l2(self) -> int:
        """Bytes of the second cache."""
        ...

    def group(self, a: DType, b: DType) -> int:
        """How many products of two narrow dtypes one instruction adds to a lane of 32 bits; 1 where
        there is none."""
        ...

    def masks(self, bits: int) -> bool:
        """Whether lanes of so many bits are loaded and stored under a mask."""
        ...


@dataclass(frozen=True, slots=True)
class Context:
    """What cutting a product into blocks needs to know.

    Attributes:
        machine: the CPU.
        facts: what is known of symbolic dims.
        taken: names that no axis may have.
    """

    machine: CachedCpu
    facts: Facts
    taken: frozenset[str]


class Product:
    """The product of one nest.

    Attributes:
        row: the axis that is cut into the rows of register blocks.
        col: the axis that is cut into their columns.
        block: the register block.
        elements: the dtypes in which operands are packed and multiplied.
        group: how many products one instruction adds.
        line: neighbours along the depth that a packed first operand keeps together; 0: none.
    """

    def __init__(self, nest: ops.Nest, op: ops.Contract, context: Context) -> None:
        self.nest = nest
        self.op = op
        self.facts = context.facts
        self.machine = context.machine
        self.depends = Dependence(nest.body)
        self.accesses = accesses(nest, self.facts)
        bound = [name for one in (nest, *walk(nest.body)) for name in ops.bound_axes(one)]
        names = Names({*context.taken, *bound})
        byname = {axis.name: axis for axis in nest.axes}
        rows, cols = [byname[n] for n in op.rows], [byname[n] for n in op.cols]
        values = op.body.outputs
        self.elements, self.group = self.groups()
        if self.runs(rows) and not self.runs(cols):
            rows, cols, values = cols, rows, values[::-1]
        inner = [a for a in self.accesses if a.inner]

        def widest(cols: list[Axis]) -> Axis:
            runs = [sum(a.stride(axis.name) == 1 for a in inner) for axis in cols]
            pairs = zip(cols, runs if len(cols) > 1 else [0], strict=True)
            return max(pairs, key=lambda pair: (pair[1], size_of(pair[0].extent)))[0]

        if size_of(widest(cols).extent) < LEAST <= size_of(widest(rows).extent):
            rows, cols, values = cols, rows, values[::-1]
        self.row = max(rows, key=lambda axis: size_of(axis.extent))
        self.col = widest(cols)
        self.others = [a for a in nest.axes if a is not self.row and a is not self.col]
        self.depth = prod([size_of(axis.extent) for axis in op.axes])
        bits = op.dtype.bits
        self.lanes = max(1, self.machine.vector_bits // bits)
        height, width = size_of(self.row.extent), size_of(self.col.extent)
        self.line = 0
        self.io, self.ii = names.fresh("m"), names.fresh("i")
        self.jo, self.ji = names.fresh("n"), names.fresh("j")
        self.kb, self.kk, self.kg = names.fresh("k"), names.fresh("l"), names.fresh("g")
        self.left, self.right = Side(self, values[0], self.row), Side(self, values[1], self.col)
        near = self.machine.l2 // NEAR
        last = op.axes[-1]
        in_place = self.group == 1 and self.left.lies_along(last, self.row)
        in_place = in_place and isinstance(self.row.extent, int)
        stride = size_of(last.extent) * bits // 8 if self.left.lies_along(last) else 0
        lie = Operands(in_place, stride, self.left.bytes() > near, self.right.bytes() > near)
        shape = (height, width, ceil(self.depth / self.group))
        self.block = choose_block(shape, self.lanes, self.machine.registers, lie)

    @classmethod
    def of(cls, nest: ops.Nest, context: Context) -> Product | None:
        """The product of a nest that is one, and can be cut into blocks."""
        found = [op for op in nest.body.ops if op.regions]
        op = found[0] if len(found) == 1 else None
        if not isinstance(op, ops.Contract) or nest.ordered or nest.tile:
            return None
        if not op.axes or not op.rows or not op.cols or any(x.regions for x in op.body.ops):
            return None
        if op.dtype.is_complex or any(x.extent == 0 for x in (*nest.axes, *op.axes)):
            return None
        code = [*nest.body.ops, *op.body.ops]
        if any(not isinstance(x, (ops.Contract, *COPIED)) for x in code):
            return None
        stores = [x for x in nest.body.ops if isinstance(x, ops.Store)]
        written = {x.buf for x in stores}
        if any(x.combine is not None for x in stores):
            return None
        if any(isinstance(x, ops.Load) and x.buf in written for x in code):
            return None
        return cls(nest, op, context)

    def runs(self, axes: Iterable[Axis]) -> bool:
        """Whether a result runs along one of some axes."""
        stores = [a for a in self.accesses if a.is_store]
        return any(a.stride(axis.name) == 1 for a in stores for axis in axes)

    def groups(self) -> tuple[tuple[DType, DType], int]:
        """The dtypes in which the operands are multiplied, narrow ones if the machine adds products
        of groups of these; and how many a group has."""
        found = {narrow(value) for value in self.op.body.outputs}
        options: list[tuple[DType, DType]] = []
        if self.op.dtype is float32 and found == {bfloat16}:
            options = [(bfloat16, bfloat16)]
        elif self.op.dtype is int32 and found == {int8}:
            options = [(uint8, int8), (int16, int16)]
        elif self.op.dtype is int32 and found <= {int8, uint8, int16}:
            options = [(int16, int16)]
        for pair in options:
            if self.machine.group(*pair) > 1:
                return pair, self.machine.group(*pair)
        return (self.op.dtype, self.op.dtype), 1

    @property
    def is_moved(self) -> bool:
        """Whether 128 is added to each element of the first operand: bytes are multiplied by signed
        ones as unsigned ones only."""
        return self.elements == (uint8, int8)

    # --- decisions ----------------------------------------------------------------------------

    def plan(self) -> bool:
        """Decides which operands are packed; whether the product is cut into blocks at all."""
        rows, cols = size_of(self.row.extent), size_of(self.col.extent)
        if rows < LEAST or cols < LEAST:
            return False
        left, right = self.left, self.right
        last = self.op.axes[-1]
        near = self.machine.l2 // NEAR
        row_blocks = ceil(rows / self.block.rows)
        in_place = right.lies_along(self.col) and (
            self.machine.masks(self.op.dtype.bits) or self.is_whole(self.col, self.block.columns)
        )
        packs_right = not (in_place and (right.bytes() <= near or row_blocks < REUSED))
        packs_left = self.block.packs_left
        if self.group > 1:
            packs_left = packs_right = True
        along = left.runs_along(last) and not left.runs_along(self.row)
        if packs_left and (along or self.group > 1):
            line = LINE * self.group
            extent = last.extent
            if isinstance(extent, int) and extent < 2 * line:
                line = ceil(extent / self.group) * self.group
            packs_right = packs_right or not divides(line, extent, self.facts)
            self.line = line
        if packs_left:
            left.pack()
        if packs_right:
            right.pack()
        return True

    def is_whole(self, axis: Axis, size: int) -> bool:
        """Whether an axis is whole blocks."""
        return divides(size, axis.extent, self.facts)

    @property
    def depth_axes(self) -> tuple[Axis, ...]:
        """The axes of the reduction, the last one perhaps in lines."""
        *first, last = self.op.axes
        if not self.line:
            return self.op.axes
        lines = Axis(self.kb, ceildiv(last.extent, self.line))
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
        if not self.line or divides(self.line, last.extent, self.facts):
            return ()
        return (last.extent - 1 - sym(last.name),)

    def guard(self, axis: Axis, size: int) -> tuple[Dim, ...]:
        """The condition under which a place of a block is one of the axis."""
        return () if self.is_whole(axis, size) else (axis.extent - 1 - sym(axis.name),)

    # --- the nest -----------------------------------------------------------------------------

    def nest_of_blocks(self) -> ops.Nest:
        """The nest over register blocks."""
        block = self.block
        io, jo = sym(self.io), sym(self.jo)
        axes: dict[str, Dim] = {
            self.row.name: io * block.rows + sym(self.ii),
            self.col.name: jo * block.columns + sym(self.ji),
        }
        guards = [
            *self.guard(self.row, block.rows),
            *self.guard(self.col, block.columns),
        ]
        copy = Copy(axes)
        code: list[Op] = []
        for op in self.nest.body.ops:
            if op is self.op:
                code.append(self.contract(copy))
                copy.env[op.result] = self.unmoved(code)
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
        found = (*self.others, col_axis, row_axis, *inner)
        count = self.rows_of_program(ceil(rows / block.rows))
        wide = self.columns_of_program(ceil(rows / block.rows / count), ceil(cols / block.columns))
        chunk = [0 if axis.extent == 1 else 1 for axis in self.others]
        for axis, size in ((col_axis, wide), (row_axis, count)):
            whole = isinstance(axis.extent, int) and axis.extent <= size
            chunk.append(0 if whole else size)
        pairs = zip(found, chunk, strict=False)
        programs = prod([ceil(size_of(axis.extent) / size) for axis, size in pairs if size])
        work = 2 * self.depth * count * block.rows * wide * block.columns
        grain = grain_of(programs, work)
        sides = [name for name, side in (("left", self.left), ("right", self.right)) if side.packed]
        return ops.Nest(
            found,
            tile=(*[1] * (len(found) - 2), block.rows, block.columns),
            chunk=(*chunk, 0, 0),
            reduce_tile=self.group,
            reason=f"{block.rows} x {block.columns} accumulators in registers, "
            + (f"{' and '.join(sides)} operand packed" if sides else "operands read in place"),
            body=Block([], without_dead(code), ()),
            loc=self.nest.loc,
            grain=grain,
        )

    def unmoved(self, code: list[Op]) -> Value:
        """The product at the end of the code, less what moving the first operand has added."""
        product = code[-1].result
        if self.right.sums is None:
            return product
        index = tuple([sym(name) for name in self.right.sum_names()])
        load = ops.Load(self.right.sums, (), index, loc=self.op.loc)
        rest = ops.Map((product, load.result), SCALARS["sub"], loc=self.op.loc)
        code += [load, rest]
        return rest.result

    def rows_of_program(self, blocks: int) -> int:
        """Blocks along the rows that a program computes side by side: what they read of the first
        operand stays in the second cache, and there are some programs."""
        panel = self.block.rows * self.depth * self.op.dtype.itemsize
        most = max(self.machine.l2 // 2 // panel, 1)
        programs = max(ceil(blocks / most), min(PROGRAMS, blocks))
        return ceil(blocks / programs)

    def columns_of_program(self, programs: int, blocks: int) -> int:
        """Blocks along the columns that a program computes one after the other: all, unless there
        would be few programs."""
        wanted = min(ceil(PROGRAMS / programs), blocks)
        return ceil(blocks / wanted)

    def contract(self, copy: Copy) -> ops.Contract:
        """The product of a block."""
        axes = dict(copy.axes)
        if self.line:
            axes[self.op.axes[-1].name] = sym(self.kb) * self.line + self.place_in_line
        code: list[Op] = []
        sides: list[Value] = []
        for side in (self.left, self.right):
            if side.packed is not None:
                load = ops.Load(side.packed, (), side.place(), loc=self.op.loc)
                code.append(load)
                sides.append(load.result)
                continue
            guard = self.guard(side.axis, side.size)
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
        return ops.Contract(
            self.depth_axes, rows, cols, self.op.dtype, Block([], code, sides), loc=self.op.loc
        )


def narrow(value: Value) -> DType:
    """The dtype of a scalar before it was widened."""
    op = value.op.x if isinstance(value.op, ops.Cast) else value
    assert isinstance(op.type, ScalarType)
    return op.type.dtype


class Side:
    """An operand of a product.

    Attributes:
        product: whose.
        value: the scalar of the contraction's region.
        axis: the axis of the nest that is cut into blocks.
        packed: the packed operand, if it is one.
        sums: the sums of its columns times 128, if the other one is moved by that.
    """

    def __init__(self, product: Product, value: Value, axis: Axis) -> None:
        self.product = product
        self.value = value
        self.axis = axis
        self.packed: Value | None = None
        self.sums: Value | None = None
        self.reason = ""
        loads = {op for op in self.code() if isinstance(op, ops.Load)}
        self.accesses = [a for a in product.accesses if a.op in loads]
        names = product.depends.values[value]
        self.batch = [axis for axis in product.others if axis.name in names]

    def code(self) -> list[Op]:
        """The ops of the contraction's region that the operand needs."""
        needed = {self.value}
        kept: list[Op] = []
        for op in reversed(self.product.op.body.ops):
            if not needed.isdisjoint(op.results):
                kept.append(op)
                needed.update(op.operands)
        return kept[::-1]

    @property
    def size(self) -> int:
        """Places of a block."""
        block = self.product.block
        return block.rows if self.is_left else block.columns

    @property
    def element(self) -> DType:
        """The dtype of the packed operand."""
        return self.product.elements[0 if self.is_left else 1]

    def converted(self, code: list[Op], value: Value) -> Value:
        """A scalar as an element of the packed operand; a signed one may become unsigned, moved by
        128."""
        assert isinstance(value.type, ScalarType)
        loc = self.product.op.loc
        if self.product.is_moved and self.is_left:
            moved = ops.Const(MOVED, value.type.dtype, loc=loc)
            added = ops.Map((value, moved.result), SCALARS["add"], loc=loc)
            code += [moved, added]
            value = added.result
        if value.type == ScalarType(self.element):
            return value
        code.append(ops.Cast(value, self.element, loc=loc))
        return code[-1].result

    def runs_along(self, axis: Axis) -> bool:
        """Whether memory that the operand is computed from runs along an axis."""
        return any(a.stride(axis.name) == 1 for a in self.accesses)

    def lies_along(self, *axes: Axis) -> bool:
        """Whether the operand is in memory, and runs along one of some axes."""
        op = self.value.op
        if not isinstance(op, ops.Load) or op.where or op.dyn:
            return False
        assert isinstance(self.value.type, ScalarType)
        return self.value.type.dtype is self.product.op.dtype and any(map(self.runs_along, axes))

    def bytes(self) -> int:
        """How large one packed operand is, for one place of the batch."""
        return size_of(self.axis.extent) * self.product.depth * self.element.itemsize

    @property
    def is_left(self) -> bool:
        """Whether its axis is the rows."""
        return self.axis is self.product.row

    def axes(self) -> tuple[Axis, ...]:
        """The axes of the packed operand, outermost first."""
        p = self.product
        outer, inner = (p.io, p.ii) if self.is_left else (p.jo, p.ji)
        count = ceildiv(self.axis.extent, self.size)
        place = Axis(inner, self.size)
        depth = list(p.depth_axes)
        if self.is_left and p.line:
            first = depth[: len(p.op.axes)]
            return (*self.batch, Axis(outer, count), *first, place, Axis(p.kk, p.line))
        if p.group > 1:
            return (*self.batch, Axis(outer, count), *depth[:-1], place, depth[-1])
        return (*self.batch, Axis(outer, count), *depth, place)

    def pack(self) -> None:
        """Gives the operand a packed copy."""
        dims = [axis.extent for axis in self.axes()]
        self.packed = Value(BufType(tuple(dims), self.element))
        if self.product.is_moved and not self.is_left:
            extents = {axis.name: axis.extent for axis in self.axes()}
            shape = tuple([extents[name] for name in self.sum_names()])
            self.sums = Value(BufType(shape, self.product.op.dtype))
        lines = f", {self.product.line} of the depth together" if self.is_left else ""
        what = "rows" if self.is_left else "columns"
        self.reason = f"an operand of a product in panels of {self.size} {what}{lines}"

    def sum_names(self) -> list[str]:
        """The axes of the sums of columns."""
        return [*[axis.name for axis in self.batch], self.product.jo, self.product.ji]

    def sum_nest(self, packed: Value, target: Value) -> ops.Nest:
        """The nest that sums the columns of the packed operand."""
        p = self.product
        axes, loc = self.axes(), p.op.loc
        names = self.sum_names()
        moved = ops.Const(MOVED, p.elements[0], loc=loc)
        load = ops.Load(packed, (), self.place(), loc=loc)
        body = Block([], [moved, load], (moved.result, load.result))
        # As a product with a row of 128s it is one of groups too.
        summed = ops.Contract(p.depth_axes, (), tuple(names[-2:]), p.op.dtype, body, loc=loc)
        store = ops.Store(target, summed.result, (), tuple([sym(n) for n in names]), loc=loc)
        found = tuple([axis for axis in axes if axis.name in names])
        chunk = [0 if axis.extent == 1 else 1 for axis in found[:-1]]
        programs = prod([size_of(axis.extent) for axis in found[:-1]])
        return ops.Nest(
            found,
            tile=(*[1] * (len(found) - 1), self.size),
            chunk=(*chunk, 0),
            reduce_tile=p.group,
            body=Block([], [summed, store], ()),
            loc=loc,
            grain=grain_of(programs, p.depth * self.size // p.lanes),
        )

    def place(self) -> tuple[Dim, ...]:
        """The element of the packed operand at the current point of a block."""
        found = [sym(axis.name) for axis in self.axes()]
        if self.is_left and self.product.line:
            return (*found[:-1], self.product.place_in_line)
        return tuple(found)

    def copy_nests(self, target: Value) -> list[ops.Nest]:
        """The nests that pack the operand: whole panels without conditions, then what is left."""
        p = self.product
        axes = self.axes()
        at = len(self.batch)
        count = axes[at].extent
        deep = next((k for k, axis in enumerate(axes) if axis.name == p.kb), -1)
        is_partial = bool(p.guard(self.axis, self.size))
        is_short = bool(p.depth_guard)
        depth = axes[deep].extent if is_short else 0
        if not isinstance(count, int) or not isinstance(depth, int):
            return [self.copy_nest(target, {}, is_partial, is_short)]
        found: list[ops.Nest] = []
        whole = count - is_partial
        if whole and (not is_short or depth > 1):
            part = {at: (0, whole)}
            if is_short:
                part[deep] = (0, depth - 1)
            found.append(self.copy_nest(target, part, False, False))
        if whole and is_short:
            part = {at: (0, whole), deep: (depth - 1, 1)}
            found.append(self.copy_nest(target, part, False, True))
        if is_partial:
            found.append(self.copy_nest(target, {at: (whole, 1)}, True, is_short))
        return found

    def copy_nest(
        self, target: Value, part: Mapping[int, tuple[int, int]], checked: bool, checks_depth: bool
    ) -> ops.Nest:
        """A nest that packs a part of the operand.

        Args:
            target: the packed operand.
            part: for some of its dims the first place and the number of places.
            checked: whether the last panel, which is not whole, is one of them.
            checks_depth: whether the last places of the depth, some of which are none, are.
        """
        p = self.product
        outer, inner = (p.io, p.ii) if self.is_left else (p.jo, p.ji)
        # Names that do not depend on the product let equal copies be found.
        fresh = Names({*p.facts, *[name for axis in p.nest.axes for name in symbols(axis.extent)]})
        places: dict[str, Dim] = {}
        made: list[Axis] = []
        for k, axis in enumerate(self.axes()):
            first, count = part.get(k, (0, axis.extent))
            made.append(Axis(fresh.fresh("p"), count))
            places[axis.name] = sym(made[-1].name) + first
        mapping = dict(places)
        mapping[self.axis.name] = places[outer] * self.size + places[inner]
        if p.line:
            inside = places[p.kk]
            if not self.is_left and p.group > 1:
                inside = inside * p.group + places[p.kg]
            mapping[p.op.axes[-1].name] = places[p.kb] * p.line + inside
        guard = [
            *(p.guard(self.axis, self.size) if checked else ()),
            *(p.depth_guard if checks_depth else ()),
        ]
        before = p.nest.body.ops[: p.nest.body.ops.index(p.op)]
        scalars = [op for op in before if not isinstance(op, ops.Store)]
        code: list[Op] = []
        copy = Copy(mapping)
        for op in (*scalars, *self.code()):
            depends = p.depends.ops[op]
            copy.guard = tuple([e for e in guard if not symbols(e).isdisjoint(depends)])
            code.append(copy.op(op))
        value = copy.find(self.value)
        if not isinstance(self.value.op, ops.Load) or self.value.op.where:
            conditions = tuple([substitute(e, mapping) for e in guard])
            value = guarded(code, value, conditions, (), SCALARS["add"])
        value = self.converted(code, value)
        index = tuple(places.values())
        code.append(ops.Store(target, value, (), index, loc=p.op.loc))
        body = Block([], without_dead(code), ())
        if not guard:
            return ops.Nest(tuple(made), body=body, loc=p.op.loc)
        # Seldom run, and soon compiled.
        tile = (*[1] * (len(made) - 1), p.lanes)
        if not self.is_left and p.group > 1:
            made[-2:] = made[-1], made[-2]
            tile = (*tile[:-2], p.group, p.lanes)
        return ops.Nest(
            tuple(made), (), tile, (*[0] * len(made),), 1, "what is left at the ends",
            body=body, loc=p.op.loc,
        )  # fmt: skip
