"""Splits products of a GPU's program that have few blocks and great depth.

A block of threads computes some rows and columns of a product, over its whole depth. Where there
are few blocks, or the last ones leave most of the machine idle, the depth is cut into parts, whose
products are summed by a second nest, in order (`depth_parts`).

Whether that pays is estimated: what the busiest multiprocessor computes, against what the parts
cost to write and read. A product that states parts has no others; where they do not pay, a block
adds them up itself, in the same order (`tile/lowering/contraction.py`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod

from tessera.ir.intexpr import Dim
from tessera.ir.walk import walk
from tessera.schedule import ops
from tessera.schedule.depth_parts import DepthParts
from tessera.schedule.heuristics_gpu import SKINNY, GpuChoice, operand_dtype, traffic
from tessera.schedule.split import Context, Pieces
from tessera.schedule.types import Axis

STEPS = 4
"""Steps along the depth that a part has at least: fewer do not fill a block's pipeline."""

MOST_PARTS = 256
"""Parts of the deepest product."""

RATES = {8: 2.9e12, 16: 2.9e12, 32: 0.32e12, 64: 0.32e12}
"""Operations a second of one busy multiprocessor, by the bits of an operand."""

FULL = 16384
"""Elements of the block of which two keep a multiprocessor busy."""

RESIDENT = 8
"""Blocks of a multiprocessor at most, however small they are."""

ALONE = 0.3
"""The part of a multiprocessor's rate that the first of many blocks has."""

LAUNCH = 4e-6
"""Seconds that one more kernel costs."""

MASKED = 2.0
"""How much longer products take whose operands are masked: they are not copied by themselves."""

GAIN = 0.9
"""The part of the time that a split one may take."""


@dataclass(frozen=True, slots=True)
class _Plan:
    """One way to compute a product.

    Attributes:
        chunk: places of the axis that is cut in one part.
        parts: how many.
        seconds: an estimate.
    """

    chunk: int
    parts: int
    seconds: float


def split_products(nest: ops.Nest, context: Context) -> Pieces | None:
    """A nest with one product, in parts."""
    heavy = (ops.Reduce, ops.ArgReduce, ops.Contract, ops.Scan)
    found = [op for op in walk(nest.body) if isinstance(op, heavy)]
    op = found[0] if len(found) == 1 else None
    if nest.ordered or not isinstance(op, ops.Contract) or op not in nest.body.ops:
        return None
    if not op.axes or not op.rows or not op.cols or (op.fused and not stated_parts(op)):
        return None
    extents = [axis.extent for axis in (*nest.axes, *op.axes)]
    if any(not isinstance(extent, int) or extent == 0 for extent in extents):
        return None
    return _Product(nest, op, context).run()


def stated_parts(op: ops.Contract) -> int:
    """The products of a part, where the order of a product states that; 0 elsewhere."""
    return 0 if op.order is None else op.order.split


class _Product:
    """Splits the product of one nest.

    Attributes:
        axes: of the nest, without those on which the product does not depend.
        cut: the axis along the depth that is cut.
    """

    def __init__(self, nest: ops.Nest, op: ops.Contract, context: Context) -> None:
        self.nest = nest
        self.op = op
        self.context = context
        self.cut = max(op.axes, key=lambda axis: _number(axis.extent))
        self.depth = DepthParts(nest, op, self.cut)
        self.axes = self.depth.axes
        self.choice = GpuChoice(nest, context.gpu, context.facts)
        byname = {axis.name: axis for axis in nest.axes}
        self.row, self.col = byname[op.rows[-1]], byname[op.cols[-1]]

    def run(self) -> Pieces | None:
        """The two nests, if they take less time than the one."""
        extent = _number(self.cut.extent)
        whole = self.plan(extent, 1)
        best = min(self.plans(), key=lambda plan: plan.seconds, default=whole)
        if best.seconds > GAIN * whole.seconds or best.parts == 1:
            return None
        pieces = self.depth.pieces(best.parts, best.chunk, self.context)
        depth = best.chunk * _count(self.op.axes) // extent
        pieces.reason = f"in {best.parts} parts of {depth} products"
        return pieces

    # --- how many parts -----------------------------------------------------------------------

    def plans(self) -> Iterator[_Plan]:
        """Ways to cut the depth."""
        extent = _number(self.cut.extent)
        if self.op.fused:
            part = stated_parts(self.op)
            yield self.plan(part, -(-extent // part))
            return
        rest = _count(self.op.axes) // extent
        wanted = 2
        while wanted <= min(MOST_PARTS, extent):
            depth = self.choice.block(self.op, self.row, self.col, wanted)[2]
            step = depth if self.cut is self.op.axes[-1] else 1
            chunk = -(-extent // wanted // step) * step
            if chunk * rest >= STEPS * depth and chunk < extent:
                yield self.plan(chunk, -(-extent // chunk))
            wanted *= 2

    def plan(self, chunk: int, parts: int) -> _Plan:
        """How long a way takes."""
        height, width, _, _ = self.choice.block(self.op, self.row, self.col, parts)
        machine = self.context.gpu
        points = _count(self.axes)
        sides = -(-_number(self.row.extent) // height), -(-_number(self.col.extent) // width)
        # A product that is the same along its rows, or its columns, has fewer points than these.
        others = max(1, points // (_number(self.row.extent) * _number(self.col.extent)))
        blocks = parts * others * sides[0] * sides[1]

        loads = [a for a in self.choice.accesses if a.inner]
        read = sum(traffic(a, self.nest.axes) for a in loads)
        seconds = read / machine.bandwidth / min(1, blocks / machine.multiprocessors)
        if height > SKINNY:
            seconds = max(seconds, self.computing(chunk, blocks, height * width))
        if parts > 1:
            if _number(self.cut.extent) % chunk:
                seconds *= MASKED
            moved = 2 * parts * points * self.op.dtype.itemsize
            seconds += LAUNCH + moved / machine.bandwidth
        return _Plan(chunk, parts, seconds)

    def computing(self, chunk: int, blocks: int, size: int) -> float:
        """Seconds that the busiest multiprocessor computes.

        Args:
            chunk: places of a part.
            blocks: of the grid.
            size: elements of a block.
        """
        bits = max(operand_dtype(v).bits for v in self.op.body.outputs)
        depth = _count(self.op.axes) // _number(self.cut.extent) * chunk
        most = -(-blocks // self.context.gpu.multiprocessors)
        resident = min(max(2 * FULL // size, 1), RESIDENT)
        busy = ALONE + (1 - ALONE) * min(most / resident, 1)
        if bits <= 16:
            # Small blocks read more from shared memory for each product.
            busy *= min((size / FULL) ** 0.25, 1)
        return most * 2 * size * depth / (RATES[max(bits, 8)] * busy)


def _number(extent: Dim) -> int:
    """An extent, which is known."""
    assert isinstance(extent, int)
    return extent


def _count(axes: tuple[Axis, ...]) -> int:
    """The points of some axes."""
    return prod([_number(axis.extent) for axis in axes])
