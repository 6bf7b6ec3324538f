"""Sums that share what they read, in registers together.

    y[i, c] = sum_r x[i + r, c] * w[r, c]

Lanes are along `c`. A vector of `w` is the same for every `i`: with eight of them in a tile it is
read once for eight products rather than for one, and two reads for a multiplication become little
more than one. A convolution of each channel with a window of its own is such a sum, and so is a
weighted sum of rows with weights for each column. Where the window is short, LLVM unrolls it, and
what neighbours read alike is read once, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tessera.ir.core import Op
from tessera.ir.intexpr import Dim
from tessera.schedule import ops
from tessera.schedule.access import Access
from tessera.schedule.blocking import meeting
from tessera.schedule.types import Axis

if TYPE_CHECKING:
    from tessera.schedule.heuristics import Choice

HEIGHTS = (8, 7, 6, 5, 4)
"""Sums side by side, of which the first that leaves none over is taken."""

MEETING = 4
"""Vectors side by side where lines of neighbours displace each other in the first cache: whole
stretches of memory come from the second one sooner than a line here and there."""


def take_block(
    choice: Choice, axis: Axis, found: Sequence[Op], inside: Sequence[Access]
) -> bool:
    """Gives a nest of one sum tiles of several vectors along another axis; whether it has such.

    Args:
        choice: that of the nest.
        axis: the one along which lanes are.
        found: the reductions.
        inside: what they read.
    """
    read = [a.op for a in inside]
    if choice.heavy or len(read) < 2 or len(found) > 1 or not isinstance(found[0], ops.Reduce):
        return False
    if not all(isinstance(op, ops.Load) and not op.where and not op.dyn for op in read):
        return False
    if any(a.stride(axis.name) not in (0, 1) for a in inside):
        return False
    vectors = [a for a in inside if a.stride(axis.name) == 1]
    for other in reversed(choice.free):
        shared = [a.stride(other.name) == 0 for a in vectors]
        if other is axis or not isinstance(other.extent, int) or other.extent < HEIGHTS[-1]:
            continue
        if any(shared) and not all(shared):
            steps = [a.stride(other.name) for a in vectors]
            registers = choice.machine.registers
            meet = any(_meet(choice, step) for step in steps)
            width = min(MEETING, registers // 8) if meet else 1
            most = registers // width - 1
            heights = [n for n in HEIGHTS if n <= most]
            height = next((n for n in heights if other.extent % n == 0), heights[0])
            choice.vectorise(axis, width * choice.lanes)
            choice.tiles[other.name] = height
            choice.last.insert(0, other.name)
            choice.reason = f"lanes along {axis.name}, {height} sums along {other.name} together"
            return True
    return False


def _meet(choice: Choice, step: Dim | None) -> bool:
    """Whether lines so many elements apart have one of two places in the first cache."""
    size = choice.machine.vector_bits // choice.lanes // 8
    return isinstance(step, int) and meeting(step * size) >= 1 / 2
