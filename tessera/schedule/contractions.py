"""Finds contractions among sums of products.

An operand that is a rearranged array may mention both digits of an axis of the result: then no
axis belongs to one operand alone, and the contraction was written as a sum. Once the axes are split
(`axes.split`), the digits are axes, each of which may belong to one operand.

    reduce(r) { x[i, a, r] * y[i, r, a, b] }    ==>    contract(r) {rows=[i], cols=[b]} { x, y }
"""

from __future__ import annotations

from tessera.ir.core import Block, Op
from tessera.ir.types import ScalarType
from tessera.schedule import ops
from tessera.schedule.dependence import Dependence, only_loop


def find(nest: ops.Nest) -> ops.Nest:
    """The nest with its only reduction as a contraction, where it is one."""
    old = only_loop(nest)
    new = _contraction(nest, old) if isinstance(old, ops.Reduce) else None
    if old is None or new is None:
        return nest
    env = {old.result: new.result}
    code: list[Op] = []
    for op in nest.body.ops:
        fresh = new if op is old else op
        if any(v in env for v in op.operands):
            fresh = op.rebuild([env.get(v, v) for v in op.operands])
            env.update(zip(op.results, fresh.results, strict=True))
        code.append(fresh)
    found = nest.rebuild((), [Block([], code, ())])
    assert isinstance(found, ops.Nest)
    return found


def _contraction(nest: ops.Nest, op: ops.Reduce) -> ops.Contract | None:
    """The contraction that a reduction is."""
    (out,) = op.body.outputs
    product = out.op
    assert isinstance(out.type, ScalarType)
    if op.order is not None or op.fn.name != "add":
        return None
    if out.type.dtype.kind not in ops.Contract.accepted:
        return None
    if not isinstance(product, ops.Map) or product.fn.name != "mul" or not op.axes:
        return None
    if product not in op.body.ops or any(inner.regions for inner in op.body.ops):
        return None
    depends = Dependence(nest.body).values
    left, right = [depends.get(v, frozenset[str]()) for v in product.args]
    names = [axis.name for axis in nest.axes if axis.name not in nest.ordered]
    rows = tuple([name for name in names if name in left and name not in right])
    cols = tuple([name for name in names if name in right and name not in left])
    summed = {axis.name for axis in op.axes}
    if not rows or not cols or not summed <= left or not summed <= right:
        return None
    code = [inner for inner in op.body.ops if inner is not product]
    body = Block([], code, product.args)
    return ops.Contract(op.axes, rows, cols, out.type.dtype, body, loc=op.loc)
