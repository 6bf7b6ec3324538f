"""The operands of a CPU's products: where they are read, and how they are packed; see
`pack_products`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import ceil, gcd, prod
from typing import TYPE_CHECKING

from tessera.dtypes import DType, int8, uint8
from tessera.ir.core import Block, Op, Value, scalar_dtype
from tessera.ir.intexpr import Dim, ceildiv, divides, substitute, sym, symbols
from tessera.ir.scalar import SCALARS
from tessera.ir.types import ScalarType
from tessera.schedule import ops, streaming
from tessera.schedule.axes import collapse
from tessera.schedule.blocking import (
    FAR_PACKING,
    LINE_BYTES,
    MEMORY_PACKING,
    NEAR,
    PACKING,
    SPLIT_PACKING,
    meeting,
    ways_of,
)
from tessera.schedule.copying import Copy, Names, guarded
from tessera.schedule.dependence import behind
from tessera.schedule.emit import without_dead
from tessera.schedule.grains import FEW, grain_of
from tessera.schedule.narrow_products import narrow, narrowed
from tessera.schedule.sizes import power_above, size_of
from tessera.schedule.types import Axis, BufType

if TYPE_CHECKING:
    from tessera.schedule.products import Product

LINE = 16
"""Neighbours along the depth that packing a first operand keeps together: copying is then moving
vectors."""

MOVED = 128
"""What makes signed bytes unsigned."""

FAR, OFTEN = 2, 256
"""An operand that is so many times as large as a second cache, and multiplied with so many columns,
is packed for registers for matrices: 2048 cubed of bfloat16 take 18 ms rather than 26 on one core
of a Xeon (Emerald Rapids), and as long on 16. Of 1024 cubed, which 16 have done in 0.45 ms rather
than 0.65, it is read where it is: a core waits for what another has just packed."""

WAYS = 16
"""Lines of a second cache that have the same place."""

BESIDE = 4
"""Elements that are no farther apart are read where they are, one at a time."""

SQUARE = 16
"""Numbers along the sides of squares in which groups of narrow ones are turned, or half as many:
those of bytes fill the shortest vectors."""

PANELS = 8
"""Panels of groups that are packed together: in two lines there are bytes of so many. 4096 x 4096
of int8 take a Zen 3 10 ms rather than 15, 1024 x 1024 120 us rather than 220."""

WIDE = 512
"""Bits of vectors for which panels are packed one after the other, as was measured; those for
registers for matrices together on few cores: 32 x 1024 x 1024 of bfloat16 take one of a Xeon
(Granite Rapids) 0.26 ms so, and 0.39 one by one. Of many, each packs what it multiplies with."""

WIDEST = 32
"""Numbers along the sides of what is turned for such registers."""

SOON_COPIED = 1 << 14
"""Elements of an operand that one nest copies, with the conditions of its ends everywhere: it takes
less than a microsecond, and each nest more takes as long to compile as a thousand such copies."""


class Side:
    """An operand of a product.

    Attributes:
        product: whose.
        value: the scalar of the contraction's region.
        axis: the axis of the nest that is cut into blocks.
        packed: the packed operand, if it is one.
        sums: the sums along the depth times 128, if the other one is moved by that.
    """

    def __init__(self, product: Product, value: Value, axis: Axis) -> None:
        self.product = product
        self.axis = axis
        is_narrow = product.groups.is_panels
        if product.group > 1 and not is_narrow:
            is_narrow = narrow(value) is product.elements[0 if axis is product.row else 1]
        self.value = narrowed(value) if is_narrow else value
        self.packed: Value | None = None
        self.sums: Value | None = None
        self.reason = ""
        loads = {op for op in self.code() if isinstance(op, ops.Load)}
        self.accesses = [a for a in product.accesses if a.op in loads]
        names = product.depends.values[value]
        self.batch = [axis for axis in product.others if axis.name in names]

    def code(self) -> list[Op]:
        """The ops of the contraction's region that the operand needs."""
        return behind(self.product.op.body.ops, (self.value,))

    @property
    def size(self) -> int:
        """Places of a panel."""
        block = self.product.block
        return block.rows if self.is_left else block.columns // block.panels

    @property
    def element(self) -> DType:
        """The dtype of the packed operand."""
        if self.product.groups.is_panels:
            return scalar_dtype(self.value)
        return self.product.elements[0 if self.is_left else 1]

    def converted(self, code: list[Op], value: Value) -> Value:
        """A scalar as an element of the packed operand; a signed one may become unsigned, moved by
        128."""
        assert isinstance(value.type, ScalarType)
        loc = self.product.op.loc
        if self.is_moved:
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

    def stride(self, axis: Axis) -> int:
        """How far apart elements along an axis are, where the operand is in memory; 0 where it is
        not, or that varies."""
        op = self.value.op
        if not isinstance(op, ops.Load) or op.where or op.dyn:
            return 0
        if self.value.type != ScalarType(self.product.op.dtype):
            return 0
        found = {a.stride(axis.name) for a in self.accesses}
        (stride,) = found if len(found) == 1 else (0,)
        return stride if isinstance(stride, int) else 0

    def strays_along(self, axis: Axis) -> bool:
        """Whether elements along an axis, each in a line of its own, are not in the second cache
        any more when the next block reads their lines: all are more than it holds, or too many have
        the same place there.

        16 cores of a Xeon (Sapphire Rapids) read 768 x 3072 of float32 in place, as the first
        operand of a turned product, for 0.64 ms, and pack it for 0.42; one of a Granite Rapids
        takes 6.5 ms for 96 x 3000 x 1000 so, and 4.1 panel by panel.
        """
        machine = self.product.machine
        lines = self.stride(axis) * self.element.itemsize // LINE_BYTES
        cache = machine.l2 // LINE_BYTES
        is_far = self.bytes() > machine.l2
        # A panel takes its part of it.
        room = cache // 2 if machine.has_masks else cache
        displaces = lines > 0 and self.product.depth * gcd(lines, cache // WAYS) > room
        if machine.has_masks:
            return displaces or (lines > 0 and is_far)
        return displaces and is_far

    def is_cut_apart(self, parts: int) -> bool:
        """Whether lines of one part of a first operand's rows, which is read where it is, displace
        each other in the second cache, as those between them belong to other parts.

        4096 cubed of float32 take a core of a Xeon (Sapphire Rapids) 1.18 s with them packed, 1.28
        where they lie; 2048 cubed as long in both ways, and a Zen 3 0.97 of the time.

        Args:
            parts: of the depth.
        """
        p = self.product
        stride, size = self.stride(self.axis), self.element.itemsize
        return p.depth // parts * size < gcd(stride * size, p.machine.l2 // WAYS)

    def meets(self, axis: Axis) -> bool:
        """Whether elements along an axis, each in a line of its own, displace each other in the
        first cache, and blocks wait for them: where they have four vectors side by side, as there
        are registers for on machines that have some for masks, they do not.

        One core of a Zen 3 takes 0.76 ms for 256 cubed of float64 whose second operand is packed,
        0.88 to 1.0 where it lies, and as much longer for a first operand that is turned.
        """
        p = self.product
        stride = self.stride(axis) * self.element.itemsize
        return (
            not p.machine.has_masks
            and stride >= LINE_BYTES
            and p.depth * meeting(stride) > ways_of(p.machine.l1)
        )

    def may_stay(self) -> bool:
        """Whether blocks could read a first operand where it is: along the depth or its rows, or,
        where an instruction adds products in groups, along the depth as it takes them."""
        p = self.product
        if p.group > 1:
            return self.is_taken_in_rows(1)
        beside = [0 < self.stride(axis) <= BESIDE for axis in (self.axis, p.op.axes[-1])]
        return isinstance(self.axis.extent, int) and any(beside)

    def is_taken_in_rows(self, rows: int) -> bool:
        """Whether blocks of so many rows read the operand where it is, as it is multiplied."""
        return self.in_rows(rows) and self.value.type == ScalarType(self.element)

    def in_rows(self, rows: int) -> bool:
        """Whether registers for matrices read the operand where it is, in blocks of so many rows:
        in memory, along the depth, which is whole lines, with rows in order at distances that are
        known. One that no second cache holds is read too often for that."""
        p, op = self.product, self.value.op
        last, height = p.op.axes[-1], self.axis.extent
        is_read_often = size_of(p.col.extent) >= OFTEN
        if self.bytes() > FAR * p.machine.l2 and is_read_often:
            return False
        if not isinstance(op, ops.Load) or op.where or op.dyn or len(p.op.axes) > 1:
            return False
        if not isinstance(height, int) or height < rows or (height % rows and p.in_blocks):
            return False
        found = {(a.stride(last.name), a.stride(self.axis.name)) for a in self.accesses}
        if not found:
            return False  # the same at all places of the depth: it is read before these
        ((along, row),) = found
        is_known = along == 1 and isinstance(row, int) and row >= 0
        return is_known and divides(LINE * p.group, last.extent, p.facts)

    def steps(self) -> tuple[int, int]:
        """Elements from one row of registers for matrices to the next along the depth, and from one
        row of a block to the next."""
        if self.packed is not None:
            return self.size * self.product.line, self.product.line
        (row,) = {a.stride(self.axis.name) for a in self.accesses}
        assert isinstance(row, int)
        return self.product.line, row

    @property
    def products(self) -> int:
        """How many products read the same packed operand."""
        others = self.product.others
        return prod([size_of(axis.extent) for axis in others if axis not in self.batch])

    def bytes(self) -> int:
        """How large one packed operand is, for one place of the batch."""
        return size_of(self.axis.extent) * self.product.depth * self.element.itemsize

    def copied(self) -> int:
        """The bytes of the packed operands of all places of the batch."""
        batch = () if self.product.in_blocks else self.batch
        return self.bytes() * prod([size_of(axis.extent) for axis in batch])

    def packing(self, is_near: bool) -> float:
        """Cycles in which a vector of it is packed.

        Args:
            is_near: whether the second cache holds it, before and after, and it need not be
                turned.
        """
        if self.copied() > streaming.STREAM_BYTES:
            return MEMORY_PACKING
        return PACKING if is_near else FAR_PACKING

    def packing_of_all(self) -> float:
        """Cycles in which all of a second operand is packed for one product; 0 where blocks can
        read it as it is."""
        p = self.product
        if self.lies_along(self.axis):
            return 0
        is_near = max(self.copied(), NEAR * self.bytes()) <= p.machine.l2
        cost = self.packing(is_near and self.runs_along(self.axis))
        return cost * size_of(self.axis.extent) * p.depth / p.lanes / self.products

    def splits(self) -> float:
        """The part of the vectors along its axis that lie in two lines each, as rows begin anywhere
        in them; 0 on machines whose blocks do not wait for that.
        """
        p = self.product
        stride = self.stride(p.op.axes[-1]) * self.element.itemsize
        is_plain = len(p.op.axes) == 1 and p.group == 1 and self.runs_along(self.axis)
        is_plain = is_plain and p.machine.waits_for_lines
        return 1 - gcd(stride, LINE_BYTES) / LINE_BYTES if is_plain and stride else 0

    def copying(self) -> float:
        """Cycles in which a vector of a second operand is packed, where that may pay though blocks
        could read it as it is. Registers for masks come with enough others for blocks of four
        vectors side by side, which do not wait for a second cache, but for lines."""
        machine = self.product.machine
        if not self.lies_along(self.axis):
            return 0
        if machine.has_masks:
            return SPLIT_PACKING if self.splits() and NEAR * self.copied() <= machine.l2 else 0
        return self.packing(self.copied() <= machine.l2)

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
        if not self.is_left:
            at, panels = len(self.batch), self.product.block.panels
            dims[at] = ceildiv(dims[at], panels) * panels
        self.packed = Value(BufType(tuple(dims), self.element))
        line = self.product.line if self.is_left else 0
        lines = f", {line} of the depth together" if line else ""
        what = "rows" if self.is_left else "columns"
        self.reason = f"an operand of a product in panels of {self.size} {what}{lines}"

    @property
    def is_moved(self) -> bool:
        """Whether 128 is added to each element: bytes are multiplied by signed ones as unsigned
        ones only."""
        is_other = self.element is uint8 and narrow(self.value) is int8
        return is_other and not self.product.groups.is_panels

    def scalars(self) -> list[Op]:
        """What the nest computes before the product."""
        before = self.product.nest.body.ops
        before = before[: before.index(self.product.op)]
        return [op for op in before if not isinstance(op, ops.Store)]

    def place(self) -> tuple[Dim, ...]:
        """The element of the packed operand at the current point of a block."""
        p, found = self.product, [sym(axis.name) for axis in self.axes()]
        if self.is_left and p.line:
            return (*found[:-1], p.place_in_line)
        if p.block.panels == 1 or self.is_left:
            return tuple(found)
        count, place = p.block.panels, sym(p.ji)
        at = {p.jo: sym(p.jo) * count + place // self.size, p.ji: place % self.size}
        return tuple([substitute(e, at) for e in found])

    def kernel_nests(self, target: Value) -> list[ops.Nest]:
        """The nests of a kernel that packs the operand. Axes that lie one after the other, as those
        of a window do, are one: it is turned in squares."""
        found = self.copy_nests(target)
        for k, nest in enumerate(found):
            one = nest if nest.tile else collapse(nest, self.product.facts)
            if one is not nest:
                found[k] = ops.Nest(one.axes, grain=nest.grain, body=one.body, loc=nest.loc)
        return found

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
        full = p.op.axes[-1].extent // p.line if is_short else 0
        if not (isinstance(count, int) and isinstance(depth, int) and isinstance(full, int)):
            return [self.copy_nest(target, {}, is_partial, is_short)]
        if (is_partial or is_short) and self.is_soon_copied():
            return [self.copy_nest(target, {}, is_partial, is_short)]
        found: list[ops.Nest] = []
        whole = count - is_partial
        if self.packs_together and whole > PANELS and whole % PANELS:
            few = whole % PANELS
            found.append(self.copy_nest(target, {at: (0, whole - few)}, False, False))
            found.append(self.copy_nest(target, {at: (whole - few, few)}, False, False))
            whole = 0
        if whole and (not is_short or full):
            part = {at: (0, whole)}
            if is_short:
                part[deep] = (0, full)
            found.append(self.copy_nest(target, part, False, False))
        if whole and is_short:
            part = {at: (0, whole), deep: (full, depth - full)}
            found.append(self.copy_nest(target, part, False, True))
        if is_partial:
            extent, part = self.axis.extent, {at: (count - 1, 1)}
            in_groups = not is_short and self.has_groups
            if in_groups:
                # What the panel has besides is multiplied, too, and nobody reads those sums.
                assert isinstance(extent, int)  # as panels are counted
                part[len(axes) - 2] = (0, extent - (count - 1) * self.size)
            found.append(self.copy_nest(target, part, not in_groups, is_short))
        return found

    def panel_nest(self, target: Value) -> ops.Nest:
        """One nest that packs the operand, with conditions where panels are not whole."""
        p = self.product
        checks = bool(p.guard(self.axis, p.block.columns)), bool(p.depth_guard)
        return self.copy_nest(target, {}, *checks)

    @property
    def packs_together(self) -> bool:
        """Whether panels may be packed several at a time; blocks pack in nests of the axes that
        products have."""
        return self.is_left and not self.product.line and not self.product.in_blocks

    @property
    def has_groups(self) -> bool:
        """Whether memory has groups of a second operand as they are packed."""
        p = self.product
        return not self.is_left and p.group > 1 and self.runs_along(p.op.axes[-1])

    def is_soon_copied(self) -> bool:
        """Whether conditions everywhere cost next to nothing: of a small operand that lies in
        memory as it is packed, and is not turned."""
        p, axes = self.product, self.axes()
        extents = [axis.extent for axis in axes if isinstance(axis.extent, int)]
        is_deep = axes[-1].name == p.kk
        last = p.op.axes[-1].name if is_deep else self.axis.name
        is_small = len(extents) == len(axes) and prod(extents) <= SOON_COPIED
        is_along = all([access.stride(last) in (0, 1) for access in self.accesses])
        # Without masks for narrow numbers, conditions are a branch for each of them.
        bits = [access.dtype.bits for access in self.accesses if access.dtype.bits < 32]
        return is_small and is_along and all(map(p.machine.masks, bits))

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
        code: list[Op] = []
        copy = Copy(mapping)
        for op in (*self.scalars(), *self.code()):
            depends = p.depends.ops[op]
            copy.guard = tuple([e for e in guard if not symbols(e).isdisjoint(depends)])
            code.append(copy.op(op))
        value = copy.find(self.value)
        load = self.value.op
        depends = p.depends.ops[load] if isinstance(load, ops.Load) and not load.where else ()
        if not all([not symbols(e).isdisjoint(depends) for e in guard]):
            conditions = tuple([substitute(e, mapping) for e in guard])
            value = guarded(code, value, conditions, (), SCALARS["add"])
        value = self.converted(code, value)
        index = tuple(places.values())
        code.append(ops.Store(target, value, (), index, loc=p.op.loc))
        body = Block([], without_dead(code), ())
        if not guard:
            if not self.is_left and p.group > 1 and (found := self.groups_nest(made, body)):
                return found
            if self.packs_together and (found := self.rows_nest(made, body)):
                return found
            return ops.Nest(tuple(made), grain=p.is_shared, body=body, loc=p.op.loc)
        # Seldom run, and soon compiled.
        tile = (*[1] * (len(made) - 1), p.lanes)
        if self.turns_rest(made):
            tile = (*tile[:-2], p.lanes, p.lanes)
        if not self.is_left and p.group > 1:
            made[-2:] = made[-1], made[-2]
            tile = (*tile[:-2], p.group, p.lanes)
        return ops.Nest(
            tuple(made), (), tile, (*[0] * len(made),), 1, "what is left at the ends",
            body=body, loc=p.op.loc,
        )  # fmt: skip

    def turns_rest(self, axes: Sequence[Axis]) -> bool:
        """Whether what is left at the ends is turned, too: of an operand that runs along the depth,
        which is the axis before the panel's."""
        p = self.product
        is_plain = p.group == 1 and not p.line and len(p.op.axes) == 1 and len(axes) > 1
        return is_plain and not self.is_left and self.runs_along(p.op.axes[-1])

    def rows_nest(self, axes: Sequence[Axis], body: Block) -> ops.Nest | None:
        """The nest that packs whole panels of rows, where memory runs along these: some panels
        together, as the lines that are read have rows of several of them. None where it does not,
        or panels are not so many.

        Args:
            axes: of the nest, in the order of the packed operand.
            body: of the nest.
        """
        *outer, place = axes
        panels = outer.pop(len(self.batch))
        count = panels.extent
        if not self.runs_along(self.axis) or not isinstance(count, int) or count % PANELS:
            return None
        few = Axis(Names([axis.name for axis in axes]).fresh("q"), PANELS)
        many = Axis(panels.name, count // PANELS)
        copy = Copy({panels.name: sym(panels.name) * PANELS + sym(few.name)})
        outer.insert(len(self.batch), many)
        whole = (*outer, few, place)
        lanes = power_above(self.size)
        batch = len(self.batch)
        chunk = [0 if axis.extent == 1 else 1 for axis in whole[: batch + 1]]
        programs = prod([size_of(axis.extent) for axis in whole[: batch + 1]])
        work = PACKING * self.product.depth * PANELS
        return ops.Nest(
            whole,
            tile=(*[1] * (len(whole) - 1), lanes),
            chunk=(*chunk, *[0] * (len(whole) - len(chunk))),
            reason=f"{PANELS} panels together",
            body=copy.block(body),
            loc=self.product.op.loc,
            grain=grain_of(programs, work, self.product.is_shared),
        )

    def groups_nest(self, axes: Sequence[Axis], body: Block) -> ops.Nest | None:
        """The nest that packs whole panels of groups, where memory runs along the depth or the
        columns, or a part of one that memory has groups of; None where it does not. Along the depth
        squares are turned in registers. Else some panels are packed together: the lines that are
        read have columns of several of them.

        Args:
            axes: of the nest, in the order of the packed operand.
            body: of the nest.
        """
        p, at = self.product, len(self.batch)
        *outer, count, place, inside = axes
        if place.extent != self.size:
            tile = (*[1] * (len(axes) - 1), p.group)
            return ops.Nest(
                tuple(axes), (), tile, (*[0] * len(axes),), 1, "groups one by one",
                body=body, loc=p.op.loc,
            )  # fmt: skip
        side = gcd(SQUARE, p.line, self.size)
        if self.runs_along(self.axis):
            if p.machine.vector_bits >= WIDE and (not p.groups.is_panels or p.cores > FEW):
                return None
            if p.groups.is_panels:
                # A thread then multiplies with the panels that it has packed.
                side = gcd(WIDEST, self.size)
            else:
                outer.append(outer.pop(at))
                at = len(outer) - 1
            inner, tile, wide = (count, inside, place), (1, p.group, side), PANELS
        elif self.has_groups and side >= SQUARE // 2:
            inner, tile, wide = (inside, count, place), (p.group, side // p.group, side), 1
        else:
            return None
        chunk = [wide if k == at else 1 for k in range(len(outer))]
        pairs = zip(outer, chunk, strict=True)
        programs = prod([ceil(size_of(axis.extent) / size) for axis, size in pairs])
        chunk = [0 if axis.extent == 1 else size for axis, size in zip(outer, chunk, strict=True)]
        work = PACKING * p.line * self.size * wide // p.lanes
        return ops.Nest(
            (*outer, *inner),
            tile=(*[1] * len(outer), *tile),
            chunk=(*chunk, 0, 0, 0),
            reason=f"groups of {p.group}, {wide} panels together",
            body=body,
            loc=p.op.loc,
            grain=grain_of(programs, work, p.is_shared),
        )
