"""Sizes and costs, as far as decisions need them: numbers for symbolic dims, and the price of
computing one element."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from tessera.dtypes import Kind
from tessera.graph.ops.base import Family, GraphOp, Rearrange
from tessera.graph.ops.contract import DotGeneral
from tessera.graph.ops.elementwise import Bitcast, Cast, Elementwise
from tessera.graph.ops.rearrange import (
    Broadcast,
    Concatenate,
    Pad,
    Reshape,
    Reverse,
    Slice,
    Transpose,
)
from tessera.graph.ops.windows import Windows
from tessera.ir.core import Block, Op, Value
from tessera.ir.intexpr import Dim, evaluate, symbols
from tessera.ir.types import TensorType

LIMITED = 5
"""A conversion of floating-point numbers to integers, whose limits it keeps to."""

SYMBOLIC_SIZE = 64
"""What a symbolic dim counts as where a decision needs a number."""

RANDOM_COST = 60
"""One element of random bits, in additions."""

EXPENSIVE = 8
"""A value that costs more than this is stored if it has several consumers."""

LOAD_COST = 2
"""A load at a computed address."""

LEAST_BLOCK = 8
"""A contraction whose rows or columns are all shorter has no register blocks."""

FEW_ROWS = 16
"""A product of more rows on a GPU is bound by its multiplications."""

SMALL_OPERAND = 65536
"""Additions that make up an operand which is always computed as it is loaded."""

PANEL = 16
"""How often a register block of a contraction uses an element of an operand."""

TURNED = 1 << 20
"""Bytes of an operand from which turning it, while it is computed, takes longer than storing it:
`silu` of 4096 x 768 times ten columns took 3.5 ms, and 1.6 apart; of 512 x 128 37 us, and 53."""

IN_ORDER = 256
"""Of fewer elements it does not matter that they are computed one after the other."""

FEW_COLUMNS = 5
"""What an element costs that few columns had better not compute one by one."""

_hints: dict[Dim, int] = {}


def hint(dim: Dim) -> int:
    """A plausible number for a dim, at least 1."""
    if isinstance(dim, int):
        return max(dim, 1)
    found = _hints.get(dim)
    if found is None:
        found = max(int(evaluate(dim, dict.fromkeys(dim.symbols, SYMBOLIC_SIZE))), 1)
        _hints[dim] = found
    return found


def points(dims: Iterable[Dim]) -> int:
    """A plausible number of elements."""
    total = 1
    for dim in dims:
        total *= hint(dim)
    return total


def tensor(value: Value) -> TensorType:
    """The type of a Graph value."""
    found = value.type
    assert isinstance(found, TensorType)
    return found


def repeats_nothing(op: GraphOp) -> bool:
    """Whether no element of the operand appears twice in the result."""
    return isinstance(op, (Reshape, Transpose, Reverse, Slice))


def is_widened(value: Value) -> bool:
    """Whether a value is a narrower one in a wider dtype, exactly: if anything is stored, it is the
    narrow one, which is read as fast as it is converted."""
    if not isinstance(value.op, Cast):
        return False
    narrow, wide = tensor(value.op.x).dtype, tensor(value).dtype
    return narrow.bits * 2 <= wide.bits and np.can_cast(narrow.np, wide.np, "safe")


def are_windows(value: Value) -> bool:
    """Whether a value is windows of an array some dims of which are cut into several, those of a
    convolution in groups, or in another order. They are read where they are, as others."""
    op = value.op
    if isinstance(op, Transpose):
        return isinstance(op.x.op, Windows) or are_windows(op.x)
    if not isinstance(op, Reshape) or not isinstance(op.x.op, Windows):
        return False
    before, after = tensor(op.x).shape, list(tensor(value).shape)
    if not all([isinstance(size, int) for size in (*before, *after)]):
        return False
    for size in before:
        product: Dim = 1
        while after and product < size:
            product *= after.pop(0)
        if product != size:
            return False
    return all([size == 1 for size in after])


def read_along_memory(value: Value, places: Iterable[Sequence[Dim]]) -> str:
    """How a contraction reads an operand that is stored before it, if it reads it several times;
    empty where it had better not be stored.

    Args:
        value: the operand.
        places: the indices of what is read of it.
    """
    if isinstance(value.op, Pad):
        return "without its conditions"
    if not isinstance(value.op, Transpose) or value.op.perm[-1] == len(value.op.perm) - 1:
        return ""
    # Each place of a window would turn its own copy.
    return "in windows" if all([len(symbols(index[-1])) > 1 for index in places]) else ""


def _conversion(op: Cast | Bitcast) -> int:
    """The cost of a conversion: to an integer there are limits to look at, and NaN."""
    source, target = tensor(op.operands[0]).dtype, tensor(op.results[0]).dtype
    return LIMITED if source.is_float and target.kind in (Kind.INT, Kind.UINT) else 1


def is_joined(value: Value) -> bool:
    """Whether a value is a concatenation in another shape: rather that is stored, part by part."""
    return isinstance(value.op, Reshape) and isinstance(value.op.operands[0].op, Concatenate)


def is_stored(value: Value, cost: int, count: float) -> bool:
    """Whether an operand of a product on a GPU is stored before it: one of some work, unless it is
    computed from no more than half of its bytes, as values of 4 bits are, and the product reads it
    for so few rows that memory bounds it.

    Args:
        value: the operand.
        cost: of an element, in additions.
        count: how often all rows read an element of it, in all.
    """
    if not cost or cost * points(tensor(value).shape) <= SMALL_OPERAND:
        return False
    if isinstance(value.op, Bitcast):
        return False  # the same bytes
    return count > FEW_ROWS * points(tensor(value).shape) or not _reads_less(value)


def _reads_less(value: Value) -> bool:
    found, read = [value], dict[Value, int]()
    while found:
        one = found.pop()
        if isinstance(one.op, (Elementwise, Rearrange)):
            found += [v for v in one.op.operands if v not in read]
            read.update(dict.fromkeys(one.op.operands, 0))
        elif one.op is None or one.op.operands:
            read[one] = size_in_bytes(one)
    return 2 * sum(read.values()) <= size_in_bytes(value)


def size_in_bytes(value: Value) -> int:
    """A plausible number of bytes."""
    return points(tensor(value).shape) * tensor(value).dtype.itemsize


def in_blocks(op: Op) -> bool:
    """Whether a contraction may be cut into register blocks: both sides have a dim that is long
    enough."""
    if not isinstance(op, DotGeneral):
        return True
    sides = [(tensor(op.lhs).shape, op.free(0)), (tensor(op.rhs).shape, op.free(1))]
    return all(any(hint(shape[k]) >= LEAST_BLOCK for k in free) for shape, free in sides)


def wants_rows(heavy: Iterable[Op], value: Value, cost: int) -> bool:
    """Whether a contraction of few columns is better off with rows that are in memory: the value is
    its first operand, perhaps moved. One without register blocks computes it one element at a time,
    as lanes go along columns; one with blocks would turn a large one, for lanes along its rows.

    One core of a Zen 5, by four columns, us, computed in place and stored before: layer norm of
    4096 x 64 190 and 66, of 65536 x 64 3200 and 1680; `where(x > 0, x, x / 10)` of these 90 and 59,
    1420 and 1730 (sixteen cores of a Xeon: the smaller one 26 and 56).

    Args:
        heavy: contractions, and other ops.
        value: that is computed.
        cost: of an element, in additions.
    """
    if cost < FEW_COLUMNS or points(tensor(value).shape) < IN_ORDER:
        return False
    if not isinstance(value.op, (Elementwise, Concatenate)):
        return False  # windows of it are many times as large
    return any([_reads_rows(op, value, cost) for op in heavy])


def _reads_rows(op: Op, value: Value, cost: int) -> bool:
    """Whether an op is such a contraction."""
    if not isinstance(op, DotGeneral) or not all(map(op.free, (0, 1))):
        return False
    first = op.lhs
    while isinstance(first.op, Rearrange) and len(first.op.operands) == 1 and first is not value:
        (first,) = first.op.operands
    if first is not value:
        return False
    if in_blocks(op):
        columns = points([tensor(op.rhs).shape[k] for k in op.free(1)])
        return cost >= EXPENSIVE and columns <= PANEL and size_in_bytes(value) > TURNED
    places = zip((op.lhs, op.rhs), op.contract, strict=True)
    return not all([_runs_along(side, axes) for side, axes in places])


def _runs_along(value: Value, axes: Sequence[int]) -> bool:
    """Whether an array, perhaps a transposed one, has one of its axes last in memory, but for
    others with one place."""
    if len(axes) != 1:
        return False
    (axis,) = axes
    while isinstance(value.op, Transpose):
        axis = value.op.perm[axis]
        (value,) = value.op.operands
    return all([dim == 1 for dim in tensor(value).shape[axis + 1 :]])


def reused(heavy: Iterable[Op]) -> int:
    """How often contractions use an element of an operand that they have loaded, or computed."""
    return PANEL if all(map(in_blocks, heavy)) else LEAST_BLOCK


class Costs:
    """Of every value: what one element costs when it is computed where it is used.

    Attributes:
        element: cost in additions, operands included as far as they will be computed in place too.
        loads: how many arrays one element is read from, operands included in the same way.
        reduces: values that hold one result of a reduction or contraction per element.
        contracts: those among them that hold one of a contraction.
    """

    def __init__(self, block: Block) -> None:
        self.element: dict[Value, int] = {}
        self.loads: dict[Value, int] = {}
        self.reduces: set[Value] = set()
        self.contracts: set[Value] = set()
        self.counts = dict.fromkeys(block.outputs, 2)
        for op in block.ops:
            for value in set(op.operands):
                self.counts[value] = self.counts.get(value, 0) + 1
        for op in block.ops:
            assert isinstance(op, GraphOp)
            cost = min(self._cost(op), 1_000_000)
            held = op.family is Family.CONTRACT or not self.contracts.isdisjoint(op.operands)
            loads = self._loads(op)
            for value in op.results:
                self.element[value] = cost
                self.loads[value] = loads
                if held and value in self.reduces:
                    self.contracts.add(value)

    def _loads(self, op: GraphOp) -> int:
        if isinstance(op, Elementwise):
            whole = points(tensor(op.results[0]).shape)
            read = [v for v in op.operands if 2 * points(tensor(v).shape) > whole]
            return min(sum([self._operand_loads(v) for v in read]), 1_000)
        if isinstance(op, Concatenate):  # one part has the element
            return max([self._operand_loads(v) for v in op.operands])
        if isinstance(op, Rearrange):
            return self._operand_loads(op.operands[0])
        return 0 if op.family is Family.GENERATE else 1

    def _operand_loads(self, value: Value) -> int:
        stored = self.element.get(value, 0) > EXPENSIVE and self.counts[value] > 1
        return 1 if stored else self.loads.get(value, 1)

    def _cost(self, op: GraphOp) -> int:
        family = op.family
        if family in (Family.REDUCE, Family.CONTRACT):
            self.reduces.add(op.results[0])
            return 1_000
        if family is Family.RANDOM:
            return RANDOM_COST
        if isinstance(op, Elementwise):
            if any(self._is_pending(v) for v in op.operands):
                self.reduces.add(op.results[0])
            own = _conversion(op) if isinstance(op, (Cast, Bitcast)) else op.row.cost
            if tensor(op.operands[0]).dtype.kind is Kind.COMPLEX:
                own *= 4
            return own + sum(self._operand(v) for v in op.operands)
        if isinstance(op, Rearrange):
            return self._rearranged(op)
        return 0

    def _is_pending(self, value: Value) -> bool:
        """Whether a reduction flows into its only consumer. With several it will be stored."""
        return value in self.reduces and self.counts[value] == 1

    def _operand(self, value: Value) -> int:
        """An operand's share: nothing where it will probably be stored."""
        cost = self.element.get(value, 0)
        return 0 if cost > EXPENSIVE and self.counts[value] > 1 else cost

    def _rearranged(self, op: Rearrange) -> int:
        if repeats_nothing(op):
            (x,) = op.operands
            if self._is_pending(x):
                self.reduces.add(op.results[0])
            return self._operand(x)
        if isinstance(op, Broadcast):
            return 0 if op.operands[0] in self.reduces else self._operand(op.operands[0])
        # Each further source is a comparison and a select; an index operand is a load.
        inner = sum(0 if v in self.reduces else self._operand(v) for v in op.operands)
        return inner + LOAD_COST * (len(op.operands) - 1)
