"""The code of a nest over rows, and of sums over these rows, as one body.

    nest i, j: y[i, j] = f(i, j)                              nest i, j: y[i, j] = f(i, j)
    nest p, j: part[p, j] = reduce k < chunk: g(...)    ==>              v = g(i, j)

where each v is added to part[p, j] in the order of the rows. What both nests read or compute is
there once.
"""

from __future__ import annotations

from dataclasses import dataclass

from tessera.ir.core import Op, Value
from tessera.ir.intexpr import Dim, sym
from tessera.schedule import ops
from tessera.schedule.copying import Copy


@dataclass(frozen=True)
class Sum:
    """A sum of columns.

    Attributes:
        op: the reduction over rows.
        value: what is added for each row.
        store: what is done with the sum.
    """

    op: ops.Reduce
    value: Value
    store: ops.Store


def one_body(rows: ops.Nest, parts: ops.Nest, chunk: int) -> tuple[list[Op], list[Sum]]:
    """The code of both nests in terms of the axes of the first.

    Args:
        rows: over rows and columns.
        parts: over parts of the rows, and columns.
        chunk: the rows of a part.
    """
    (row, col), (part, other) = rows.axes, parts.axes
    stored = {op.buf: op.value for op in rows.body.ops if isinstance(op, ops.Store)}
    code = list(rows.body.ops)
    same: dict[str, Dim] = {other.name: sym(col.name)}
    copy = Copy(dict(same))
    reduced: dict[Value, tuple[ops.Reduce, Value]] = {}
    sums: list[Sum] = []
    for op in parts.body.ops:
        if isinstance(op, ops.Reduce):
            to = {**same, op.axes[0].name: sym(row.name) - sym(part.name) * chunk}
            inner = Copy(to, env=dict(copy.env))
            for one in op.body.ops:
                if isinstance(one, ops.Load) and one.buf in stored:
                    inner.env[one.result] = stored[one.buf]
                else:
                    code.append(inner.op(one))
            reduced[op.result] = op, inner.find(op.body.outputs[0])
        elif isinstance(op, ops.Store):
            total, value = reduced[op.value]
            index = tuple(copy.places(op.index))
            fields = op.rebuild(op.operands, index=index)
            assert isinstance(fields, ops.Store)
            sums.append(Sum(total, value, fields))
        else:
            code.append(copy.op(op))
    return code, sums
