"""The small operand of a product of few rows, which is read again for each block of the large one:
a copy of it that runs along the depth, or is as wide as sums; see `read_in_order`."""

from __future__ import annotations

from tessera.dtypes import DType, bfloat16, float16, float32
from tessera.ir.core import Block, Op, Value
from tessera.ir.intexpr import sym
from tessera.schedule import ops
from tessera.schedule.access import dependence_of
from tessera.schedule.copying import Copy
from tessera.schedule.emit import without_dead
from tessera.schedule.narrow_products import narrow
from tessera.schedule.split import Pieces
from tessera.schedule.types import Axis, BufType


def small_first(nest: ops.Nest, op: ops.Contract, few: Axis) -> tuple[Value, Value]:
    """The operand of a product that has its few rows, and the other one."""
    first, second = op.body.outputs
    has_rows = few.name in dependence_of(nest.body).values[first]
    return (first, second) if has_rows else (second, first)


def is_widened_often(nest: ops.Nest, op: ops.Contract, few: Axis) -> bool:
    """Whether elements of a narrow small operand would be widened again for each block of the large
    one: 4 x 1024 float16 for 1024 columns take a Zen 3 as long as their products."""
    small, _ = small_first(nest, op, few)
    return op.dtype is float32 and narrow(small) in (float16, bfloat16)


def widened(nest: ops.Nest) -> ops.Nest:
    """A nest whose product multiplies numbers as wide as its sums: those of narrow ones have no
    lanes along the depth."""
    (op,) = [op for op in nest.body.ops if isinstance(op, ops.Contract)]
    code, wide = list(op.body.ops), list[Value]()
    for value in op.body.outputs:
        if value.type != op.result.type:
            code.append(ops.Cast(value, op.dtype, loc=op.loc))
        wide.append(value if value.type == op.result.type else code[-1].result)
    return _with_product(nest, op, Block([], code, wide))


def _with_product(nest: ops.Nest, op: ops.Contract, inner: Block) -> ops.Nest:
    """A copy of a nest whose product has another region, on values of the nest's."""
    copy, code = Copy(), list[Op]()
    for one in nest.body.ops:
        code.append(copy.op(one) if one is not op else op.rebuild((), [copy.block(inner)]))
        if one is op:
            copy.env[op.result] = code[-1].result
    new = nest.rebuild((), [Block([], without_dead(code), ())])
    assert isinstance(new, ops.Nest)
    return new


def with_turned(
    nest: ops.Nest, op: ops.Contract, few: Axis, pieces: Pieces, dtype: DType
) -> ops.Nest:
    """The nest on a copy of its small operand that runs along the depth; the copy's nest is the
    first piece.

    Args:
        nest: the nest.
        op: its product.
        few: the axis of the small operand.
        pieces: where the copy is written down.
        dtype: of the copy.
    """
    (deep,) = op.axes
    small, large = small_first(nest, op, few)
    first = small is op.body.outputs[0]
    turned = pieces.buffer(BufType((few.extent, deep.extent), dtype))
    place = (sym(few.name), sym(deep.name))
    copy = Copy()
    before = nest.body.ops[: nest.body.ops.index(op)]
    code: list[Op] = []
    for one in (*before, *op.body.ops):
        if not isinstance(one, ops.Store):
            code.append(copy.op(one))
    code.append(ops.Cast(copy.find(small), dtype, loc=op.loc))
    code.append(ops.Store(turned, code[-1].result, (), place, loc=op.loc))
    body = Block([], without_dead(code), ())
    pieces.nests.append(ops.Nest((few, deep), body=body, loc=nest.loc))

    load = ops.Load(turned, (), place, loc=op.loc)
    sides = (load.result, large) if first else (large, load.result)
    return _with_product(nest, op, Block([], [*op.body.ops, load], sides))
