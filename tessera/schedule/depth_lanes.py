"""Products of few rows and a large operand that runs along the depth: lanes along the depth.

    nest i, j: y[i, j] = f(contract k: a[i, k], b[j, k])

Blocks of sums have lanes along `k`, which are added in the end, unless more than half of the lanes
would be full along the few rows (4096 x 4096 times 4096 x 16 took 15.6 ms, and takes 3.5 in
register blocks). The other operand is copied if it runs elsewhere. What blocks of rows multiply
where it lies is left to them (`few_rows`).
"""

from __future__ import annotations

from math import ceil

from tessera.schedule import ops, small_operands
from tessera.schedule.access import accesses
from tessera.schedule.cost import LEAST_BLOCK
from tessera.schedule.dependence import only_loop
from tessera.schedule.grains import grain_of, programs_of
from tessera.schedule.machines import CachedCpu
from tessera.schedule.products import Context as ForProducts
from tessera.schedule.products import Product
from tessera.schedule.read_in_order import FEW, count_of
from tessera.schedule.split import Context, Pieces

LEAST_DEPTH = 512
"""The depth from which it does not matter that lanes are summed in the end."""

LEAST_COPIED, LEAST_SIZE = 128, 1 << 15
"""The same where few columns are copied, and the bytes of the other operand then. Two columns of
128 to 2000 take a core of a Zen 4 0.35 to 0.65 of the time so, five 0.6 to 0.9, and 0.2 to 0.6 if
the other operand is computed."""

MOST_SIZE = 16
"""Second caches that hold the other operand then: of what no cache does 1.1 to 1.5 of the time."""

LEAST_TURNED = 8
"""Columns of an operand from which a copy of it that runs along the depth pays."""

MOST_HEIGHT = 8
"""Rows of a block with lanes along the depth."""


def sum_lanes(nest: ops.Nest, context: Context, machine: CachedCpu) -> Pieces | None:
    """The nest with a product of few rows in blocks of sums whose lanes run along the depth; None
    where it is none, or an operand runs elsewhere."""
    op = only_loop(nest)
    if not isinstance(op, ops.Contract) or nest.ordered or len(op.axes) != 1:
        return None
    if op.order is not None:
        return None  # what lanes along the depth would not keep
    (deep,) = op.axes
    extents = [axis.extent for axis in (*nest.axes, deep)]
    if not all(isinstance(extent, int) and extent > 0 for extent in extents):
        return None
    if op.dtype.is_complex or count_of([deep]) < LEAST_COPIED:
        return None
    free = [axis for axis in nest.axes if axis.name in (*op.rows, *op.cols)]
    few, many = sorted(free, key=lambda axis: count_of([axis]))[:: max(len(free) - 1, 1)][:2]
    reads = [a for a in accesses(nest, context.facts) if a.inner]
    large = [a for a in reads if a.stride(many.name) != 0]
    lanes = max(1, machine.vector_bits // op.dtype.bits)
    if len(free) != 2 or count_of([few]) > min(FEW, max(lanes // 2, LEAST_BLOCK - 1)):
        return None
    if any(a.stride(deep.name) != 1 for a in large):
        return None
    size = sum(count_of([many, deep]) * a.dtype.itemsize for a in large)
    is_turned = any(a.stride(deep.name) != 1 for a in reads)
    turns = is_turned and _copies_soon(op, count_of([few]), size, lanes, machine)
    if not turns and (count_of([deep]) < LEAST_DEPTH or size < machine.l2):
        return None
    if machine.has_masks:
        product = Product.of(nest, ForProducts(machine, context.facts, frozenset()))
        if product is not None and product.has_few:
            return None
    height = ceil(count_of([few]) / ceil(count_of([few]) / MOST_HEIGHT))
    most = max(machine.registers * 3 // 4 // height, 1)
    exact = [w for w in range(1, most + 1) if count_of([many]) % w == 0 and 2 * w >= most]
    width = max(exact, default=most)
    others = [axis for axis in nest.axes if axis not in free]
    programs = max(ceil(programs_of(machine.cores) / count_of(others)), 1)
    chunk = ceil(count_of([many]) / programs / width) * width
    work = 2 * chunk * count_of([few, deep])
    pieces = Pieces()
    if is_turned and (others or (not turns and count_of([few]) < LEAST_TURNED)):
        return None
    if is_turned or (not others and small_operands.is_widened_often(nest, op, few)):
        nest = small_operands.with_turned(nest, op, few, pieces, op.dtype)
    nest = small_operands.widened(nest)
    new = nest.rebuild(
        axes=(*others, many, few),
        tile=(*[1] * len(others), width, height),
        chunk=(*[0 if axis.extent == 1 else 1 for axis in others], chunk, 0),
        reduce_tile=lanes,
        grain=grain_of(count_of(others) * ceil(count_of([many]) / chunk), work),
    )
    assert isinstance(new, ops.Nest)
    pieces.nests.append(new)
    pieces.reason = f"{width} x {height} sums in registers with lanes along the depth"
    return pieces


def _copies_soon(op: ops.Contract, few: int, size: int, lanes: int, machine: CachedCpu) -> bool:
    """Whether so few columns are soon copied, for lanes along the depth: most of those along the
    columns would be idle, for each of which an element of the other operand is broadcast, and
    perhaps computed.

    Args:
        op: the product.
        few: the columns.
        size: bytes of the other operand.
        lanes: of a vector.
        machine: the CPU.
    """
    is_computed = any(not isinstance(one, ops.Load) for one in op.body.ops)
    most = LEAST_BLOCK - 1 if is_computed else lanes * 3 // 8
    return 1 < few <= most and LEAST_SIZE <= size <= MOST_SIZE * machine.l2
