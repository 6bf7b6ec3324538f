"""Sums of a CPU that are under way side by side, as they read the same elements.

A reduction with lanes along memory reads everything once for each of its results. Where these lie
along a short axis on which one of the operands does not depend, such as the window of a depthwise
convolution's weights, one pass over that operand is enough:

    nest c, i < 3, j < 3: tile [1, 3, 3]: reduce r: x[c, r + i, ... + j] * y[c, r]
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import TYPE_CHECKING

from tessera.ir.core import Op
from tessera.schedule import ops
from tessera.schedule.access import Access
from tessera.schedule.machines import MOVES_LANES, Cpu
from tessera.schedule.sizes import power_below, size_of
from tessera.schedule.types import Axis

if TYPE_CHECKING:
    from tessera.schedule.heuristics import Choice

MOST = 4
"""Places of a short axis."""

MOST_OF_WINDOW = 8
"""Places of one along which a window moves: all of them read nearly the same."""

PROGRAMS = 8
"""Places of the other axes, of which threads have enough to share."""

SUMS = 5 / 8
"""The part of the registers that sums may take; the others are for what is multiplied."""


def runs_along(machine: Cpu, inside: Sequence[Access], axis: Axis | None, length: int) -> int:
    """How many reads go along a reduction from one element in memory to the next, or to one that is
    nearer than along the axis. (Sums of every second of 1024 float32 take a twentieth of the time
    that a lane for each row takes, of every 16th a third.)

    Args:
        machine: the CPU.
        inside: the reads.
        axis: that of the nest along which most of them do so.
        length: of the reduction. One along a short window that moves along the axis has lanes
            along this: none is counted. Nor is any where fewer reads jump along the axis: a number
            that all lanes share is read as fast as a vector, and far ones one by one.
    """
    extent = 0 if axis is None or not isinstance(axis.extent, int) else axis.extent
    if axis is not None and extent >= length:
        strides = {a.stride(axis.name) for a in inside}
        steps = ({1}, {2}) if machine.vector_bits >= MOVES_LANES else ({1},)
        if 0 in strides and strides - {0} in steps:
            return 0
    if axis is not None and _gathered(inside, axis) < _gathered(inside, None):
        return 0
    return sum(1 for a in inside if a.inner and _goes_along(a, axis))


def _goes_along(access: Access, axis: Axis | None) -> bool:
    """Whether what is read next along a reduction is a neighbour in memory, or at least nearer than
    along the axis, where every lane reads lines of its own."""
    step = access.stride(access.inner[-1].name)
    if not isinstance(step, int) or step == 0:
        return False
    jump = None if axis is None else access.stride(axis.name)
    return abs(step) == 1 or not isinstance(jump, int) or 1 < abs(step) < abs(jump)


def _gathered(inside: Sequence[Access], axis: Axis | None) -> int:
    """Reads that jump along an axis, or along their reductions."""
    names = [(a, a.inner[-1].name if axis is None else axis.name) for a in inside if a.inner]
    return sum(1 for a, name in names if a.stride(name) not in (0, 1, -1))


def registers_of(found: Sequence[Op], inside: Sequence[Access], axis: Axis) -> int:
    """Registers that a vector of lanes along an axis takes: an accumulator for each reduction, and
    where there are several, what they have read of further arrays."""
    arrays = {a.op.buf for a in inside if a.stride(axis.name) == 1}
    return len(found) + (max(len(arrays) - 1, 0) if len(found) > 1 else 0)


def long_line(choice: Choice, axis: Axis, count: int = 1) -> int:
    """Lanes of a tile with so many registers each: long lines of memory, as far as registers and a
    few programs allow."""
    programs = prod([size_of(one.extent) for one in choice.free if one is not axis])
    share = power_below(size_of(axis.extent) / (1 if programs >= PROGRAMS else 4))
    vectors = power_below(choice.machine.registers / max(count, 2))
    return max(choice.width, min(choice.lanes * vectors, share))


def side_by_side(choice: Choice, inside: Sequence[Access], found: Sequence[Op]) -> int:
    """Has a nest take all places of such axes together.

    Args:
        choice: that of the nest.
        inside: what its reductions read.
        found: the reductions.

    Returns:
        How many lanes each sum may have, at most as many as a tile of the nest.
    """
    if choice.heavy or len(found) != 1 or not isinstance(found[0], ops.Reduce):
        return choice.width
    along = found[0].axes[-1].name
    if any(a.stride(along) not in (0, 1) for a in inside):
        return choice.width
    room = choice.machine.registers * SUMS
    short: dict[str, int] = {}
    for axis in reversed(choice.free):
        extent = axis.extent
        if not isinstance(extent, int) or not 1 < extent <= _most(axis.name, inside):
            continue
        is_shared = any(a.stride(axis.name) == 0 for a in inside)
        if is_shared and extent * prod(short.values()) <= room:
            short = {axis.name: extent, **short}
    others = [axis.extent for axis in choice.free if axis.name not in short]
    if not short or prod([n for n in others if isinstance(n, int)]) < PROGRAMS:
        return choice.width
    choice.tiles, choice.last = short, [*short]
    vectors = int(room) // prod(short.values())
    return min(choice.width, choice.lanes << (vectors.bit_length() - 1))


def _most(axis: str, inside: Sequence[Access]) -> int:
    """Places of a short axis."""
    for a in inside:
        step = a.stride(axis)
        if step != 0 and any(a.stride(one.name) == step for one in a.inner):
            return MOST_OF_WINDOW
    return MOST
