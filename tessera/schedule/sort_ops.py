"""The steps of a sort of long rows on a GPU, and of rows on a CPU with wide vectors, which stand in
kernels as `schedule.sort` does."""

from __future__ import annotations

from typing import TypeGuard

from tessera.dtypes import DType, int64, uint32, uint64
from tessera.errors import VerifyError
from tessera.graph.ops.largest import groups_of
from tessera.ir.core import Op, Value
from tessera.ir.effects import READ, WRITE
from tessera.ir.intexpr import Dim, ceildiv
from tessera.ir.opdef import attr, operand, operands
from tessera.ir.types import Type
from tessera.schedule import ops
from tessera.schedule.types import buffer_type

REGISTER = 512
"""Bits of a vector register of CPUs with AVX-512."""


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
    """Sorts rows of words on a CPU.

    Attributes:
        words: a buffer with `room_of_row` along its last axis; words are in its first places,
            before and after.
        numbers: perhaps one i64 buffer: what threads that share a row tell each other; for each row
            `PIECE` for each of twice its `PIECES`.
        count: places of a row.
        until: places whose words are asked for.
        grain: rows that are worth a thread's while; 0: one thread sorts all.
        register: bits of a vector register.
    """

    name = "schedule.sort_words"
    effects = READ | WRITE
    words: Value = operand()
    numbers: tuple[Value, ...] = operands()
    count: Dim = attr()
    until: Dim = attr()
    grain: int = attr(0)
    register: int = attr(REGISTER)

    def infer(self) -> tuple[Type, ...]:
        """No result."""
        return ()

    def verify(self) -> None:
        """Words are unsigned, and have their room."""
        words = buffer_type(self.words)
        room = room_of_row(self.count, words.dtype, self.register)
        if words.dtype not in (uint32, uint64) or words.shape[-1:] != (room,):
            raise VerifyError(f"rows of {self.count} words in {words}")
        if len(self.numbers) > 1 or any(buffer_type(v).dtype is not int64 for v in self.numbers):
            raise VerifyError(f"numbers in {', '.join([str(v.type) for v in self.numbers])}")

    @property
    def rows(self) -> Dim:
        """How many there are."""
        return _rows_of(self.words)


ROWS = 16
"""Vectors of a row that a network sorts where it is."""


def room_of_row(count: Dim, dtype: DType, register: int) -> Dim:
    """Places that a row of words has in memory: twice its own, or, where a network sorts all of it,
    those of whole vectors. A load that overlaps what a masked store leaves alone waits for it."""
    if is_held(count, dtype, register):
        return ceildiv(count, register // dtype.bits) * (register // dtype.bits)
    return 2 * count


def is_held(count: Dim, dtype: DType, register: int) -> TypeGuard[int]:
    """Whether a network sorts a row of so many words."""
    return isinstance(count, int) and count * dtype.bits <= ROWS * register


class SelectWords(ops.ScheduleOp):
    """Writes the words of the first places of rows of keys, in order, on a CPU.

    Attributes:
        keys: rows along the last axis.
        words: a buffer with room for `room_of` words along its last axis, of keys and their places,
            or of places alone where a key takes a word.
        tops: a buffer of `rank_of` with a number for each column of a row.
        until: how many places.
        grain: rows that are worth a thread's while; 0: one thread has all.
        descending: whether the largest keys come first.
        register: bits of a vector register.
    """

    name = "schedule.select_words"
    effects = READ | WRITE
    keys: Value = operand()
    words: Value = operand()
    tops: Value = operand()
    until: int = attr()
    grain: int = attr(0)
    descending: bool = attr(False)
    register: int = attr(REGISTER)

    def infer(self) -> tuple[Type, ...]:
        """No result."""
        return ()

    def verify(self) -> None:
        """Buffers have a row for each row of keys."""
        keys, words, tops = [buffer_type(v) for v in (self.keys, self.words, self.tops)]
        if not keys.shape or self.until < 1:
            raise VerifyError(f"the first {self.until} of rows of {keys}")
        columns = columns_of(keys.shape[-1], keys.dtype, self.register)
        room = room_of(groups_of(self.until))
        for found, dtype, last in ((words, uint64, room), (tops, rank_of(keys.dtype), columns)):
            if found.dtype is not dtype or found.shape != (*keys.shape[:-1], last):
                raise VerifyError(f"the first {self.until} of rows of {keys}, in {found}")

    @property
    def rows(self) -> Dim:
        """How many there are."""
        return _rows_of(self.keys)

    @property
    def count(self) -> Dim:
        """Places of a row."""
        return buffer_type(self.keys).shape[-1]


class OrderZeros(ops.ScheduleOp):
    """Brings the zeros of sorted rows, of which those of one sign come first, into the order in
    which the rows had them.

    Attributes:
        source: what was sorted: floats.
        target: the sorted rows, which may be shorter.
        marks: if given, a number for all rows, and one for each of them: 0 where there are zeros
            of the sign that comes first. All others are left as they are.
        axis: along which they are sorted.
        descending: whether the largest come first.
    """

    name = "schedule.order_zeros"
    effects = READ | WRITE
    source: Value = operand()
    target: Value = operand()
    marks: tuple[Value, ...] = operands()
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


def rank_of(key: DType) -> DType:
    """What keys are compared as."""
    return uint64 if key.bits == 64 else uint32


def columns_of(count: Dim, key: DType, register: int) -> Dim:
    """Columns of a row: those of whole blocks, whose elements are as far apart as a register of
    ranks is long."""
    lanes = register // rank_of(key).bits
    return ceildiv(count, COLUMN * lanes) * lanes


def room_of(groups: int) -> int:
    """Words of a row whose first places are selected by the best of so many groups of columns: half
    of these are places at most, and what may be among them is seldom more than all."""
    return min(groups, 128)


WORDS = (SortWords, SelectWords)
"""What the library's functions do, which the entry calls."""

SORTS = (ops.Sort, SortRuns, SplitRuns, MergeRuns, *WORDS, OrderZeros)
"""What may stand in a kernel besides nests."""


def _rows_of(value: Value) -> Dim:
    """The rows along the last axis of a buffer."""
    total: Dim = 1
    for dim in buffer_type(value).shape[:-1]:
        total = total * dim
    return total


def work_of(op: ops.Sort | SortWords | SelectWords) -> tuple[Dim, Dim, int]:
    """The rows of a sort, their places, and what one comparison costs, in additions."""
    if isinstance(op, WORDS):
        return op.rows, op.count, 1
    type = buffer_type(op.inputs[0])
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
        case SelectWords():
            return (op.words, op.tops)
        case _:
            return ()
