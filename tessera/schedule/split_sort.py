"""Sorts on a GPU: rows that a block of threads can hold are sorted by one block.

An operand that holds the places of the elements themselves, as `argsort` has one, is not read: a
sort on a GPU knows these places anyway.
"""

from __future__ import annotations

from collections.abc import Container, Sequence

from tessera.ir.core import Block, Op, Value
from tessera.ir.intexpr import sym
from tessera.schedule import ops
from tessera.schedule.heuristics import power_above, power_below, size_of
from tessera.schedule.types import BufType

MAX_ROW = 8192
"""Elements of the longest row that a block sorts."""

BLOCK_ELEMENTS = 2048
"""Elements that a block sorts if it can have several rows."""

THREAD_ELEMENTS = 16
"""Elements of a thread."""

LINE = 32
"""Rows of a block where memory runs across them."""

MAX_WARPS = 16
"""Warps of the largest block."""


def split_sort(
    kernel: ops.Kernel, operands: Sequence[Value], used: Container[Value], multiprocessors: int
) -> tuple[ops.Kernel, list[int]] | None:
    """The kernel of a sort, for a GPU.

    Args:
        kernel: the kernel.
        operands: its inputs in the new program.
        used: values that something reads.
        multiprocessors: how many the machine has.

    Returns:
        The kernel, and for each of its results the number of that of the old one; None if it is
        no sort.
    """
    if len(kernel.body.ops) != 1:
        return None
    (op,) = kernel.body.ops
    if not isinstance(op, ops.Sort) or op.warps:
        return None
    extent = _type(op.inputs[0]).shape[op.axis]
    if not isinstance(extent, int) or extent > MAX_ROW:
        return None
    env = dict(zip(kernel.body.args, operands, strict=False))
    places = [k >= op.num_keys and holds_places(env[v], op.axis) for k, v in enumerate(op.inputs)]
    kept = [k for k, v in enumerate(kernel.results[: len(op.outputs)]) if v in used]
    needed = [k for k in range(len(op.inputs)) if k < op.num_keys or (k in kept and not places[k])]
    sources = tuple([-1 if places[k] else needed.index(k) for k in kept])
    values = list(dict.fromkeys(op.inputs[k] for k in needed))
    types = tuple([kernel.types[k] for k in kept])
    inner = {v: Value(v.type) for v in values}
    outputs = [Value(type) for type in types]
    rows, warps = block_of(op, multiprocessors)
    inputs = [inner[op.inputs[k]] for k in needed]
    new = ops.Sort(
        inputs, outputs, [], op.axis, op.num_keys, op.descending, sources, warps, rows, loc=op.loc
    )
    what = f"{rows} rows" if rows > 1 else "a row"
    found = ops.Kernel(
        [env[v] for v in values],
        types,
        label=kernel.label,
        reason=f"{kernel.reason}; {what} of {extent} elements in a block of {warps} warps",
        body=Block([*inner.values(), *outputs], [new], ()),
        loc=kernel.loc,
    )
    return found, kept


def block_of(op: ops.Sort, multiprocessors: int) -> tuple[int, int]:
    """Rows and warps of a block."""
    type = _type(op.inputs[0])
    extent = type.shape[op.axis]
    assert isinstance(extent, int)
    size = power_above(extent)
    others = [k for k in range(len(type.shape)) if k != op.axis]
    rows = 1
    if others:
        most = power_above(size_of(type.shape[others[-1]]))
        is_along = type.element_strides()[op.axis] == 1
        rows = max(BLOCK_ELEMENTS // size, 1)
        total = 1
        for k in others:
            total *= size_of(type.shape[k])
        rows = min(rows, power_below(total / (2 * multiprocessors)))
        if not is_along:
            rows = max(rows, min(LINE, 2 * MAX_ROW // size))
        rows = min(rows, most)
    warps = max(1, min(rows * size // (32 * THREAD_ELEMENTS), MAX_WARPS))
    return rows, warps


def holds_places(value: Value, axis: int) -> bool:
    """Whether a buffer is known to hold the place of each element along an axis."""
    kernel = value.op
    if not isinstance(kernel, ops.Kernel) or len(kernel.body.ops) != 1:
        return False
    target = kernel.body.args[len(kernel.inputs) + kernel.results.index(value)]
    (nest,) = kernel.body.ops
    if not isinstance(nest, ops.Nest):
        return False
    stores = [op for op in nest.body.ops if isinstance(op, ops.Store) and op.buf is target]
    if len(stores) != 1 or stores[0].where or stores[0].dyn or stores[0].combine is not None:
        return False
    place = stores[0].index[axis]
    if place == 0:
        return _constant(stores[0].value.op) == 0
    extents = {axis.name: axis.extent for axis in nest.axes}
    whole = [
        e == 0 or any(e == sym(n) and d == extents[n] for n in extents)
        for e, d in zip(stores[0].index, _type(target).shape, strict=True)
    ]
    op = stores[0].value.op
    while isinstance(op, ops.Cast) and op.dtype.is_integer:
        op = op.x.op
    return all(whole) and isinstance(op, ops.Index) and not op.dyn and op.expr == place


def _constant(op: Op | None) -> object:
    while isinstance(op, ops.Cast):
        op = op.x.op
    return op.value if isinstance(op, ops.Const) else None


def _type(value: Value) -> BufType:
    assert isinstance(value.type, BufType)
    return value.type
