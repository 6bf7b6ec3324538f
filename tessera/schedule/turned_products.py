"""Small products whose second operand runs along the depth: squares of it are turned in registers.

    nest b, i, j: y[b, i, j] = f(contract k: a[b, i, k], w[b, j, k])

A copy of each `w[b]` that runs along its columns takes as long to write and to read again as such a
product takes. Tiles of the depth by the columns are loaded by lines along the depth and turned, and
each of their rows is multiplied with what the rows of the first operand have there, as if it had
been read from memory that runs along the columns: the sums are the same.
"""

from __future__ import annotations

from math import ceil, prod

from tessera.ir.core import Block, Op
from tessera.ir.intexpr import Facts
from tessera.ir.order import SEQUENCE
from tessera.schedule import ops
from tessera.schedule.access import accesses
from tessera.schedule.copying import Copy
from tessera.schedule.cost import LEAST_BLOCK
from tessera.schedule.dependence import only_loop
from tessera.schedule.grains import WORK, grain_of
from tessera.schedule.machines import CachedCpu
from tessera.schedule.sizes import power_above, size_of
from tessera.schedule.types import Axis

TALLEST = 32
"""Rows for which squares are turned for each block of them. For more, a copy is made once."""

DEEPEST = 32
"""Places along the depth: longer rows had better have lanes along them, or be copied."""

WIDEST = 2
"""Vectors of columns."""

ROOM = 2
"""A row's sums are in one register of so many: the squares are in others."""

LOW = 8
"""Rows for which more than one vector of columns is turned."""

NARROW = 4
"""Columns, and places along the depth, for which lanes go along the rows where these fill them."""


def in_squares(nest: ops.Nest, machine: CachedCpu, facts: Facts) -> ops.Nest | None:
    """The nest of a small product whose second operand is turned in registers; None if it is none.

    Args:
        nest: the nest.
        machine: the CPU.
        facts: what is known of symbolic dims.
    """
    op = _product(nest)
    sides = None if op is None else _sides(nest, op, facts)
    if op is None or sides is None:
        return None
    row, col, turns = sides
    rows, columns, depth = [size_of(axis.extent) for axis in (row, col, *op.axes)]
    lanes, width = machine.vector_bits // op.dtype.bits, power_above(columns)
    if not (2 <= rows <= TALLEST and 2 <= columns <= WIDEST * lanes and 2 <= depth <= DEEPEST):
        return None
    if not _pays(rows, columns, depth, lanes, turns):
        return None
    is_whole = columns == width and depth == power_above(depth)
    if not is_whole and not machine.masks(op.dtype.bits):
        return None

    vectors = ceil(width / lanes)
    height = ceil(rows / ceil(rows * ROOM * vectors / machine.registers))
    most = max(lanes // 2 // vectors, 2) if turns else 1
    others = [axis for axis in nest.axes if axis is not row and axis is not col]
    sizes = [size_of(axis.extent) for axis in others]
    work = 2 * depth * rows * width
    chunk = [1] * len(others)
    if others:
        own = max(min(WORK // work, sizes[-1]), 1)
        chunk[-1] = 0 if own == sizes[-1] else own
        sizes[-1], work = ceil(sizes[-1] / own), work * own
    return ops.Nest(
        (*others, row, col),
        tile=(*[1] * len(others), height, width),
        chunk=(*chunk, 0, 0),
        reduce_tile=ceil(depth / ceil(depth / most)),
        reason=f"{height} x {width} accumulators in registers, "
        + ("squares turned of what runs along the depth" if turns else "operands read in place"),
        body=_in_sequence(nest.body, op),
        loc=nest.loc,
        grain=grain_of(prod(sizes), work),
    )


def _pays(rows: int, columns: int, depth: int, lanes: int, turns: bool) -> bool:
    """Whether other ways to compute a product take longer. All of 1 MB, of one array after the
    other (two cores of a Zen 4).

    Args:
        rows: of the product.
        columns: of the product.
        depth: of the product.
        lanes: of a vector.
        turns: whether an operand runs along the depth.
    """
    if not turns:
        # Blocks of 8 x 8 x 8 in whole vectors have lanes that they do not use.
        return min(rows, columns) >= LEAST_BLOCK and power_above(columns) < lanes
    if columns > lanes and rows > LOW and depth > NARROW:
        return False  # 32 x 32 x 8 takes 18 us with a copy, and 29; 8 x 24 x 8 takes 73 and 16
    if rows >= lanes and max(columns, depth) <= NARROW:
        return False  # lanes along the rows: 16 x 3 x 2 takes 7 us, and 18 in squares
    # Instructions with lanes along the depth, whose sums of lanes take some: 2 x 2 x 32 takes 8 us
    # and 33 in squares, 16 x 3 x 32 takes 19 either way, 8 x 8 x 8 173 and 10.
    along = rows * columns * (2 * ceil(depth / lanes) + 5)
    return 4 * along >= 3 * (rows + 2) * depth


def _product(nest: ops.Nest) -> ops.Contract | None:
    """The product of a nest, whose sizes are known, if it is one of two arrays."""
    op = only_loop(nest)
    if not isinstance(op, ops.Contract) or nest.ordered or nest.tile:
        return None
    if (len(op.axes), len(op.rows), len(op.cols)) != (1, 1, 1) or not op.dtype.is_float:
        return None
    if any(not isinstance(axis.extent, int) for axis in (*nest.axes, *op.axes)):
        return None
    if op.order not in (None, SEQUENCE):
        return None
    for value in op.body.outputs:
        load = value.op
        if not isinstance(load, ops.Load) or load.where or load.dyn or value.type != op.result.type:
            return None
    return op


def _sides(nest: ops.Nest, op: ops.Contract, facts: Facts) -> tuple[Axis, Axis, bool] | None:
    """The rows and the columns of a product: results run along the columns, and the operand that
    has these along the depth."""
    found = accesses(nest, facts)
    byname = {axis.name: axis for axis in nest.axes}
    ((row,), (col,), (deep,)), outputs = (op.rows, op.cols, op.axes), op.body.outputs
    for first, last, second in ((row, col, outputs[1]), (col, row, outputs[0])):
        runs = [access.stride(last) == 1 for access in found if access.is_store]
        strides = [(a.stride(deep.name), a.stride(last)) for a in found if a.op is second.op]
        if all(runs) and strides and strides[0][0] == 1 and strides[0][1] not in (0, 1, None):
            return byname[first], byname[last], True
        if all(runs) and strides and strides[0][1] == 1:
            return byname[first], byname[last], False
    return None


def _in_sequence(body: Block, op: ops.Contract) -> Block:
    """A body whose product is added up in sequence."""
    copy, code = Copy(), list[Op]()
    for one in body.ops:
        new = copy.op(one)
        if one is op:
            new = new.rebuild(order=SEQUENCE)
            copy.env[op.result] = new.results[0]
        code.append(new)
    return Block([], code, ())
