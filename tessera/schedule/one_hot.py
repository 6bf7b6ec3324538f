"""Scatters that write one element of each row, as work on whole rows.

    %r = graph.scatter(%x, %u, [iota, %i]) {axes=[0, 1], combine=add}      # %i : i32[8, 1]
    ==>
    %r = select(%i == column, %x + %u, %x)                                 # everything [8, 100]

The gradient of picking an element of each row is of this kind. As elementwise work it becomes part
of the kernel that computes the rest of the gradient; a scatter would be two kernels before that.
The sum of such a row, where the rest of it is 0, is the element.
"""

from __future__ import annotations

from tessera.config import config
from tessera.dtypes import int32, int64, uint64
from tessera.graph.ops.arithmetic import Add, Eq, Max, Min, Neg, Select
from tessera.graph.ops.elementwise import Cast
from tessera.graph.ops.gather import Combine, IndexMode, Scatter
from tessera.graph.ops.generate import Constant, Dense, Iota
from tessera.graph.ops.rearrange import Broadcast, Reshape
from tessera.graph.ops.reduce import Sum
from tessera.ir.core import Block, Op, Value
from tessera.ir.intexpr import Dim, Sym, sym
from tessera.schedule.cost import tensor
from tessera.schedule.formulas import formula


def expand(block: Block) -> Block:
    """The block without scatters of one element per row."""
    if not any(isinstance(op, Scatter) for op in block.ops):
        return block
    rewriting = _Rewriting()
    for op in block.ops:
        rewriting.op(op)
    return Block(block.args, rewriting.code, [rewriting.env.get(v, v) for v in block.outputs])


class _Rewriting:
    def __init__(self) -> None:
        self.code: list[Op] = []
        self.env: dict[Value, Value] = {}
        self.single: dict[Value, tuple[Value, int]] = {}

    def op(self, old: Op) -> None:
        """Takes an op over, or what stands for it."""
        op = old
        if any(v in self.env for v in op.operands):
            op = op.rebuild([self.env.get(v, v) for v in op.operands], op.regions)
        axes = _row_axes(op) if isinstance(op, Scatter) else None
        if isinstance(op, Scatter) and axes is not None:
            self.env[old.results[0]] = self.scatter(op, *axes)
            return
        total = self.total(op)
        if total is not None:
            self.env[old.results[0]] = total
            return
        self.code.append(op)
        if op is not old:
            self.env.update(zip(old.results, op.results, strict=True))

    def total(self, op: Op) -> Value | None:
        """The sum of rows with one element each."""
        if isinstance(op, Neg) and op.x in self.single:
            value, axis = self.single[op.x]
            self.single[op.result] = (self.add(Neg(value, loc=op.loc)), axis)
        if not isinstance(op, Sum) or op.operands[0] not in self.single:
            return None
        value, axis = self.single[op.operands[0]]
        return value if op.axes == (axis,) and tensor(value) == tensor(op.result) else None

    def add(self, op: Op) -> Value:
        """Appends an op with one result."""
        self.code.append(op)
        return op.results[0]

    def scatter(self, op: Scatter, axis: int, kept: tuple[int, ...]) -> Value:
        """The scatter as a selection along an axis."""
        x = tensor(op.x)
        loc = op.loc
        index = op.indices[op.axes.index(axis)]
        dtype = tensor(index).dtype
        if dtype not in (int32, int64):
            dtype = int64
            index = self.add(Cast(index, dtype, loc=loc))
        extent = x.shape[axis]
        if op.mode is IndexMode.CLIP:
            assert isinstance(extent, int)
            shape = tensor(index).shape
            for cls, bound in ((Max, 0), (Min, extent - 1)):
                limit = self.add(Constant(Dense.of(bound, dtype), loc=loc))
                index = self.add(
                    cls(index, self.add(Broadcast(limit, shape, (), loc=loc)), loc=loc)
                )
        place = self.spread(op, index, kept)
        column = self.add(Iota(x.shape, axis, dtype, loc=loc))
        hit = self.add(Eq(place, column, loc=loc))
        value = self.spread(op, op.updates, kept)
        if op.combine is Combine.ADD:
            value = self.add(Add(op.x, value, loc=loc))
        result = self.add(Select(hit, value, op.x, loc=loc))
        if op.combine is Combine.ADD and op.mode is not IndexMode.DROP and _is_zero(op.x):
            self.single[result] = (self.row_value(op, op.updates, kept), axis)
        return result

    def row_value(self, op: Scatter, value: Value, kept: tuple[int, ...]) -> Value:
        """A value per row, without dims of size 1."""
        rows = tuple([tensor(op.x).shape[k] for k in kept])
        if tensor(value).shape != rows:
            value = self.add(Reshape(value, rows, loc=op.loc))
        return value

    def spread(self, op: Scatter, value: Value, kept: tuple[int, ...]) -> Value:
        """A value per row, repeated along the rows."""
        value = self.row_value(op, value, kept)
        return self.add(Broadcast(value, tensor(op.x).shape, kept, loc=op.loc))


def _is_zero(value: Value) -> bool:
    """Whether a value is 0 everywhere."""
    op = value.op
    if isinstance(op, Broadcast):
        op = op.x.op
    return isinstance(op, Constant) and not op.value.array.any()


def _row_axes(op: Scatter) -> tuple[int, tuple[int, ...]] | None:
    """The axis along which one element of each row is written, and the axes of the rows."""
    x, updates = tensor(op.x), tensor(op.updates)
    if op.combine not in (Combine.ADD, Combine.SET) or len(op.axes) != x.rank or not op.indices:
        return None
    if op.inside and "bounds" in config.current().sentinel_set:
        return None  # an index that is compared is no access that can be looked at
    shape = tensor(op.indices[0]).shape
    names: list[Dim] = [0 if dim == 1 else sym(f"p{k}") for k, dim in enumerate(shape)]
    left: list[int] = []
    dims: list[int] = []
    kept: list[int] = []
    for k in range(x.rank):
        found = formula(op.indices[op.axes.index(k)], tuple(names))
        if isinstance(found, Sym) and found in names and x.shape[k] == shape[names.index(found)]:
            dims.append(names.index(found))
            kept.append(k)
        elif found == 0 and x.shape[k] == 1:
            continue
        else:
            left.append(k)
    if len(left) != 1 or dims != [k for k, dim in enumerate(shape) if dim != 1]:
        return None
    (axis,) = left
    known = isinstance(x.shape[axis], int) or op.mode is not IndexMode.CLIP
    if not known or tensor(op.indices[op.axes.index(axis)]).dtype is uint64:
        return None
    return (axis, tuple(kept)) if updates.shape == shape else None
