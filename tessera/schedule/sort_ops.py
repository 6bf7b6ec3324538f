"""The steps of a sort of long rows on a GPU, which stand in kernels as `schedule.sort` does."""

from __future__ import annotations

from tessera.ir.core import Op, Value
from tessera.ir.effects import READ, WRITE
from tessera.ir.opdef import attr, operand, operands
from tessera.ir.types import Type
from tessera.schedule import ops


class SortRuns(ops.ScheduleOp):
    """Packs the keys of each element along an axis into words, and sorts runs of them on a GPU.

    Attributes:
        keys: buffers of one shape.
        words: buffers of these shapes with the axis last, as `words.Layout` says.
        axis: along which elements are compared.
        descending: the largest first.
        run: places of a run; the last one of a row may be shorter.
        warps: warps that share a program.
        packed: whether the keys are words already.
        keep: a power of two: only so many places of each run are stored, the largest word where
            there are none; 0 stores all.
    """

    name = "schedule.sort_runs"
    effects = READ | WRITE
    keys: tuple[Value, ...] = operands()
    words: tuple[Value, ...] = operands()
    axis: int = attr()
    descending: bool = attr(False)
    run: int = attr()
    warps: int = attr()
    packed: bool = attr(False)
    keep: int = attr(0)

    def infer(self) -> tuple[Type, ...]:
        """No result."""
        return ()


class SplitRuns(ops.ScheduleOp):
    """Says where tiles of merged runs begin, on a GPU.

    Runs of words along the last axis are merged in pairs. For each tile of the result: how many of
    the elements before it, in its pair, are of the first run.

    Attributes:
        words: sorted runs.
        splits: an i64 buffer with one element per tile along the last axis.
        runs: perhaps one i64 scalar, which holds the places of a run.
        run: places of a run, a multiple of the tile; 0 where `runs` says it.
        tile: places of a tile.
        least: rows that are no longer than this are left alone.
        warps: warps that share a program.
    """

    name = "schedule.split_runs"
    effects = READ | WRITE
    words: tuple[Value, ...] = operands()
    splits: Value = operand()
    runs: tuple[Value, ...] = operands()
    run: int = attr(0)
    tile: int = attr()
    least: int = attr(0)
    warps: int = attr()

    def infer(self) -> tuple[Type, ...]:
        """No result."""
        return ()


class MergeRuns(ops.ScheduleOp):
    """Merges runs of words along the last axis in pairs, on a GPU.

    Attributes:
        words: sorted runs.
        splits: where tiles begin; see `schedule.split_runs`.
        outputs: buffers for the merged runs.
        runs: perhaps one i64 scalar, which holds the places of a run.
        run: places of a run, a multiple of the tile; 0 where `runs` says it.
        tile: places that a program merges.
        least: rows that are no longer than this are left alone.
        warps: warps that share a program.
    """

    name = "schedule.merge_runs"
    effects = READ | WRITE
    words: tuple[Value, ...] = operands()
    splits: Value = operand()
    outputs: tuple[Value, ...] = operands()
    runs: tuple[Value, ...] = operands()
    run: int = attr(0)
    tile: int = attr()
    least: int = attr(0)
    warps: int = attr()

    def infer(self) -> tuple[Type, ...]:
        """No result."""
        return ()


SORTS = (ops.Sort, SortRuns, SplitRuns, MergeRuns)
"""What may stand in a kernel besides nests."""


def written_by(op: Op) -> tuple[Value, ...]:
    """The buffers that an op of a kernel writes as a whole."""
    match op:
        case ops.Sort():
            return (*op.outputs, *op.temps)
        case SortRuns():
            return op.words
        case SplitRuns():
            return (op.splits,)
        case MergeRuns():
            return op.outputs
        case _:
            return ()
