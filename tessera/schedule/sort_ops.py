"""The steps of a sort of long rows on a GPU, and of rows on a CPU with wide vectors, which stand in
kernels as `schedule.sort` does."""

from __future__ import annotations

from tessera.ir.core import Op, Value
from tessera.ir.effects import READ, WRITE
from tessera.ir.intexpr import Dim
from tessera.ir.opdef import attr, operand, operands
from tessera.ir.types import Type
from tessera.schedule import ops
from tessera.schedule.types import BufType


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


class SortWords(ops.ScheduleOp):
    """Sorts rows of words on a CPU, or selects the first words of rows of keys.

    Attributes:
        words: a buffer with twice as many places along its last axis as a row has; words are in the
            first half, before and after. Where keys are given, it has room for a few words more
            than there are places asked for, and words only after: of keys and their places.
        numbers: perhaps one i64 buffer: what threads that share a row tell each other; for each row
            `PIECE` for each of twice its `PIECES`. Where keys are given, a u32 buffer with a number
            for each `COLUMN` of whole `BLOCK`s of a row.
        keys: perhaps rows along the last axis, of which the first places are asked for alone.
        count: places of a row.
        until: places whose words are asked for.
        grain: rows that are worth a thread's while; 0: one thread sorts all.
        descending: whether the largest keys come first.
    """

    name = "schedule.sort_words"
    effects = READ | WRITE
    words: Value = operand()
    numbers: tuple[Value, ...] = operands()
    keys: tuple[Value, ...] = operands()
    count: Dim = attr()
    until: Dim = attr()
    grain: int = attr(0)
    descending: bool = attr(False)

    def infer(self) -> tuple[Type, ...]:
        """No result."""
        return ()

    @property
    def rows(self) -> Dim:
        """How many there are."""
        assert isinstance(self.words.type, BufType)
        total: Dim = 1
        for dim in self.words.type.shape[:-1]:
            total = total * dim
        return total


class OrderZeros(ops.ScheduleOp):
    """Brings the zeros of sorted rows, of which those of one sign come first, into the order in
    which the rows had them.

    Attributes:
        source: what was sorted: floats.
        target: the sorted rows, which may be shorter.
        axis: along which they are sorted.
        descending: whether the largest come first.
    """

    name = "schedule.order_zeros"
    effects = READ | WRITE
    source: Value = operand()
    target: Value = operand()
    axis: int = attr()
    descending: bool = attr(False)

    def infer(self) -> tuple[Type, ...]:
        """No result."""
        return ()


PIECES = 8
"""Pieces of a row that threads share: a power of two."""

PIECE = 4
"""Numbers that say where a piece is."""

LONG = 1 << 15
"""Places of the shortest row that threads share."""

FEW = 8
"""Rows that threads share if they are not so many."""

COLUMN = 8
"""Elements of a row that are selected together."""

BLOCK = 128
"""Elements of a row whose columns are so far apart as a register is long."""


def room_of(groups: int) -> int:
    """Words of a row whose first places are selected by the best of so many groups of columns: half
    of these are places at most, and what may be among them is seldom more than all."""
    return min(groups, 128)


SORTS = (ops.Sort, SortRuns, SplitRuns, MergeRuns, SortWords, OrderZeros)
"""What may stand in a kernel besides nests."""


def work_of(op: ops.Sort | SortWords) -> tuple[Dim, Dim, int]:
    """The rows of a sort, their places, and what one comparison costs, in additions."""
    if isinstance(op, SortWords):
        return op.rows, op.count, 1
    type = op.inputs[0].type
    assert isinstance(type, BufType)
    rows: Dim = 1
    for k, dim in enumerate(type.shape):
        rows = rows if k == op.axis else rows * dim
    return rows, type.shape[op.axis], 16


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
        case SortWords():
            return (op.words, *op.numbers)
        case _:
            return ()
