"""A product in parts of its depth, side by side, and the nest that adds them up, in order:

    nest i, j: y[i, j] = f(contract k < K: a(i, k), b(k, j))
    ==>
    nest p, i, j: part[p, i, j] = contract k < chunk: a(i, p*chunk + k), b(p*chunk + k, j)
    nest i, j: y[i, j] = f(part[0, i, j] + part[1, i, j] + ... + what is left of the depth)
"""

from __future__ import annotations

from tessera.ir.core import Block, Op, Value
from tessera.ir.intexpr import Dim, sym
from tessera.ir.order import SEQUENCE
from tessera.ir.scalar import SCALARS
from tessera.schedule import ops
from tessera.schedule.copying import Copy, guarded
from tessera.schedule.dependence import Dependence
from tessera.schedule.emit import without_dead
from tessera.schedule.ordering import whole
from tessera.schedule.split import Context, Pieces, index_of
from tessera.schedule.types import Axis, BufType

UNROLLED = 32
"""So many parts are summed up by as many loads, side by side for many elements."""


class DepthParts:
    """Parts of the product of one nest.

    Attributes:
        axes: of the nest, without those on which the product does not depend.
        cut: the axis along the depth that is cut.
        extent: its places.
    """

    def __init__(self, nest: ops.Nest, op: ops.Contract, cut: Axis) -> None:
        self.nest = nest
        self.op = op
        self.cut = cut
        assert isinstance(cut.extent, int)
        self.extent = cut.extent
        # A row that is repeated has an axis, too.
        used = Dependence(nest.body).ops[op] | {*op.rows, *op.cols}
        self.axes = tuple([axis for axis in nest.axes if axis.name in used])

    def pieces(self, parts: int, chunk: int, context: Context) -> Pieces:
        """The nests of so many parts of so many places; the last one may be short, or something be
        left that belongs to none."""
        pieces = Pieces()
        dims = (parts, *[axis.extent for axis in self.axes])
        partial = pieces.buffer(BufType(dims, self.op.dtype))
        part = Axis(context.names.fresh("p"), parts)
        pieces.nests += [self._partial(partial, part, chunk)]
        pieces.nests += [self._last(partial, part, parts * chunk)]
        return pieces

    def _product(self, begin: Dim, places: int, guard: tuple[Dim, ...] = ()) -> list[Op]:
        """The product of some places of the axis, and what it needs.

        Args:
            begin: the first one.
            places: how many.
            guard: conditions under which they exist.
        """
        copy = Copy()
        before = self.nest.body.ops[: self.nest.body.ops.index(self.op)]
        code = [copy.op(op) for op in before if not isinstance(op, ops.Store)]
        inner = Copy({self.cut.name: begin + sym(self.cut.name)}, {}, guard, dict(copy.env))
        body = inner.block(self.op.body)
        exists = tuple([e - begin for e in guard])
        sides = [guarded(body.ops, v, exists, (), SCALARS["add"]) for v in body.outputs]
        short = Axis(self.cut.name, places)
        code.append(
            ops.Contract(
                tuple([short if axis is self.cut else axis for axis in self.op.axes]),
                self.op.rows, self.op.cols, self.op.dtype, Block([], body.ops, sides),
                whole(self.op.order), self.op.fused, loc=self.op.loc,
            )
        )  # fmt: skip
        return code

    def _partial(self, partial: Value, part: Axis, chunk: int) -> ops.Nest:
        """The products of the parts."""
        assert isinstance(part.extent, int)
        is_short = part.extent * chunk > self.extent
        guard: tuple[Dim, ...] = (self.extent - 1 - sym(self.cut.name),) if is_short else ()
        axes = (part, *self.axes)
        code = self._product(sym(part.name) * chunk, chunk, guard)
        code.append(ops.Store(partial, code[-1].result, (), index_of(axes)))
        return ops.Nest(axes, body=Block([], without_dead(code), ()), loc=self.nest.loc)

    def _last(self, partial: Value, part: Axis, done: int) -> ops.Nest:
        """What the nest stores, from the sums of the parts and what they leave."""
        copy = Copy()
        code: list[Op] = []
        for op in self.nest.body.ops:
            if op is not self.op:
                code.append(copy.op(op))
                continue
            total = self._total(partial, part, code)
            if done < self.extent:
                code += self._product(done, self.extent - done)
                pair = (total, code[-1].result)
                code.append(ops.Map(pair, SCALARS["add"], loc=op.loc))
                total = code[-1].result
            copy.env[op.result] = total
        body = Block([], without_dead(code), ())
        return ops.Nest(self.nest.axes, body=body, loc=self.nest.loc)

    def _total(self, partial: Value, part: Axis, code: list[Op]) -> Value:
        """The sum of the parts."""
        parts, loc = part.extent, self.op.loc
        assert isinstance(parts, int)
        if parts > UNROLLED:
            load = ops.Load(partial, (), index_of((part, *self.axes)), loc=loc)
            body = Block([], [load], (load.result,))
            order = SEQUENCE if self.op.fused else None
            reduced = ops.Reduce((part,), SCALARS["add"], body, order, loc=loc)
            code.append(reduced)
            return reduced.result
        sums: list[Value] = []
        for k in range(parts):
            load = ops.Load(partial, (), (k, *index_of(self.axes)), loc=loc)
            code.append(load)
            sums.append(load.result)
        total = sums[0]
        for value in sums[1:]:
            add = ops.Map((total, value), SCALARS["add"], loc=loc)
            code.append(add)
            total = add.result
        return total
