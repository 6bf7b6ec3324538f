"""Scatters of a GPU that sum up what rounds, in an order that the program states.

Updates of one element that meet by chance are summed in any order, and so are other bits in each
run. In order they are brought side by side first, and summed as they stand there:

    %r = graph.scatter(%x, %u, [%i]) {axes=[0], combine=add}
    ==>
    keys, place = sort(%i, iota)                       # stably: updates of an element, in order
    low[e], high[e]                                    # where those of the e-th element are found
    part[t] = u[place[..]] + u[place[..]] + ...        # up to 16 of one element
    part[t'] = part[..] + part[..] + ...               # up to 16 parts of one element, and so on
    %r = graph.scatter(%x, sum[e], [%i[place[low[e]]]]) {axes=[0], combine=add, unique=true}

Elements of few updates, which are most, have no parts: their updates are summed where the sum is
written. So each update is read once, and only elements of many are written more often.

The order of an element's updates is `PARTS`, whatever other elements are updated: terms are cut
into parts of 16, parts into parts of 16 parts, and each is summed in sequence.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tessera.dtypes import float32, int32
from tessera.graph.ops.checkpoint import Barrier
from tessera.graph.ops.cumulative import cumsum
from tessera.graph.ops.elementwise import (
    add,
    cast,
    eq,
    ge,
    gt,
    lt,
    mul,
    ne,
    select,
    shl,
    shr,
    sub,
)
from tessera.graph.ops.elementwise import maximum as larger
from tessera.graph.ops.elementwise import minimum as smaller
from tessera.graph.ops.gather import Combine, IndexMode, Scatter, gather, scatter
from tessera.graph.ops.generate import index_dtype, iota
from tessera.graph.ops.rearrange import slice_
from tessera.graph.ops.reshape import broadcast, full, reshape
from tessera.graph.ops.sort import sort
from tessera.graph.trace import bind
from tessera.graph.transforms.evaluate import trace_function
from tessera.ir.core import Block, Op, Value
from tessera.ir.intexpr import Dim, maximum, minimum, prod
from tessera.ir.loc import ORIGIN
from tessera.ir.order import Order, Tree
from tessera.ir.walk import expand_ops, inline
from tessera.schedule.cost import tensor

FEW = 8
"""Updates of an element that are summed where the sum is written."""

PART = 16
"""Terms of a part."""

BITS = PART.bit_length() - 1
"""A number of terms, shifted by so many bits, is a number of parts."""

SHORT = 16
"""So many updates are written one after the other."""

LONGEST = 1 << 31
"""Updates at most where their number is not known."""

PARTS = Order(split=PART)
"""The order of the updates of an element."""


def scatter_in_order(block: Block, below: int | None = None) -> Block:
    """The block, whose scatters do not sum up by chance.

    Args:
        block: Graph ops.
        below: each array has fewer elements than this; None if that is not known.
    """
    return expand_ops(block, is_by_chance, lambda op, code: _expand(op, code, below))


def is_by_chance(op: Op) -> bool:
    """Whether many updates of one element may meet, in an order that matters."""
    if not isinstance(op, Scatter) or not op.rounds or op.unique:
        return False
    if op.order is not None and op.order.tree is Tree.ANY:
        return False
    count = prod(tensor(op.indices[0]).shape) if op.indices else 1
    return not isinstance(count, int) or count > SHORT


def _expand(op: Op, code: list[Op], below: int | None) -> list[Value]:
    """Emits what stands for a scatter."""

    def run(x: Any, updates: Any, *indices: Any) -> list[Any]:
        assert isinstance(op, Scatter)
        return [_Sums(op, x, updates, indices, below).result()]

    return emit_traced(run, op, "scatter_in_order", code)


def emit_traced(
    run: Callable[..., list[Any]], op: Op, name: str, code: list[Op]
) -> list[Value]:
    """Emits what a function of arrays does with the operands of an op, in that op's place."""
    types = [tensor(v) for v in op.operands]
    outer = ORIGIN.loc
    ORIGIN.loc = op.loc or outer
    try:
        func, captured = trace_function(run, types, name, name)
    finally:
        ORIGIN.loc = outer
    assert not captured
    return inline(func.body, op.operands, code.append)


def stored(x: Any) -> Any:
    """A value that is computed once, and not where it is used."""
    return bind(Barrier, (x,))


class _Sums:
    """The sums of the updates of each element.

    Attributes:
        updates: with one dim for their number.
        indices: where they go, in one dim.
        count: of updates.
        rest: the dims of an update.
        segments: elements with updates, at most, and one for those that go nowhere.
        most: updates at most.
        dtype: of numbers of updates and elements.
    """

    def __init__(
        self, op: Scatter, x: Any, updates: Any, indices: Sequence[Any], below: int | None
    ) -> None:
        self.op = op
        self.x = x
        self.dims = tuple([x.shape[axis] for axis in op.axes])
        self.count = prod(indices[0].shape)
        self.rest: tuple[Dim, ...] = tuple(updates.shape[indices[0].ndim :])
        self.updates = reshape(updates, (self.count, *self.rest))
        self.indices = [reshape(i, (self.count,)) for i in indices]
        rows = prod(self.dims)
        is_known = isinstance(self.count, int) and isinstance(rows, int)
        self.segments = minimum(self.count, rows + 1) if is_known else self.count
        self.dtype = index_dtype(maximum(self.count, rows) + PART + 1)
        self.most = LONGEST if below is None else below
        if isinstance(self.count, int):
            self.most = self.count
        elif below is not None and below <= 1 << 30:
            # Where an array has fewer elements its rows are fewer, too, or have no elements.
            self.dtype = int32
        own = tensor(op.x).dtype
        self.wide = float32 if own.is_float and own.bits < 32 else own
        self.combine = mul if op.combine is Combine.MUL else add

    def result(self) -> Any:
        """The scatter of the sums."""
        keys, place = sort((self.number(), iota((self.count,), 0, self.dtype)), 0)
        segments, low, high = self.ends(keys)
        # Where updates that go nowhere lie nothing is summed.
        size = stored(select(gt(self.at(keys, low), 0), sub(high, low), 0))
        first, exists = self.at(place, low), gt(size, 0)
        found = [stored(select(exists, self.at(i, first), -1)) for i in self.targets()]
        total = self.total(segments, low, size, place)
        total = cast(total, tensor(self.op.x).dtype)
        return scatter(self.x, total, found, self.op.axes, self.op.combine, unique=True)

    def number(self) -> Any:
        """Of each update the number of its element, from 1; 0 where it goes nowhere."""
        places = add(iota((prod(self.dims),), 0, self.dtype), 1)
        axes = range(len(self.dims))
        return gather(reshape(places, self.dims), self.indices, axes, self.op.mode)

    def targets(self) -> list[Any]:
        """The indices as they are meant."""
        if self.op.mode is not IndexMode.CLIP:
            return self.indices
        places = [iota((dim,), 0, index_dtype(dim)) for dim in self.dims]
        pairs = zip(places, self.indices, strict=True)
        return [gather(p, [i], (0,), IndexMode.CLIP) for p, i in pairs]

    def at(self, x: Any, index: Any) -> Any:
        """Elements, or rows, of an array; 0 beyond its ends."""
        return gather(x, [index], (0,), IndexMode.DROP)

    def ends(self, keys: Any) -> tuple[Any, Any, Any]:
        """The number of each update's element, in sorted order, and where its updates begin and
        end there."""
        here = iota((self.count,), 0, self.dtype)
        keys = add(keys, 1)  # no key is what stands beyond the ends
        begins = ne(self.at(keys, sub(here, 1)), keys)
        segments = sub(cumsum(cast(begins, self.dtype), 0), 1)
        # The first update of an element, and what follows the last one.
        shape = (2, self.count)
        side, place = [iota(shape, axis, self.dtype) for axis in (0, 1)]
        both = broadcast(keys, shape, (1,))
        near = self.at(keys, sub(add(place, mul(side, 2)), 1))
        numbers = select(ne(near, both), broadcast(segments, shape, (1,)), -1)
        none = full((2, self.segments), 0, self.dtype)
        ends = scatter(none, add(place, side), [side, numbers], (0, 1), Combine.SET, unique=True)
        return segments, self.row(ends, 0, self.segments), self.row(ends, 1, self.segments)

    # --- sums -----------------------------------------------------------------------------------

    def total(self, segments: Any, low: Any, size: Any, place: Any) -> Any:
        """The sum of each element, of which `size` updates stand side by side from `low` on."""
        few = self.index(low, size, FEW, place)
        counts = self.counts()
        if not counts:
            return self.sum(self.updates, few)
        sizes = self.sizes(size, len(counts))
        first = sub(cumsum(sizes, 1), sizes)
        owners = self.owners(first, segments, low, size, counts[0])
        items = low, size
        levels: list[tuple[Any, Any]] = []
        for k, count in enumerate(counts):
            owner = self.row(owners, k, count)
            parts = self.row(first, k, self.segments), self.row(sizes, k, self.segments)
            begin = mul(sub(iota((count,), 0, self.dtype), self.at(parts[0], owner)), PART)
            # What no element has is a part of nothing.
            left = select(ge(owner, 0), sub(self.at(items[1], owner), begin), 0)
            begin = add(self.at(items[0], owner), begin)
            levels.append((self.index(begin, left, PART, None if k else place), parts[0]))
            items = parts
        source, limit = self.updates, FEW
        sums: list[tuple[Any, Any]] = []
        for k, (index, begin) in enumerate(levels):
            source = stored(self.sum(source, index))
            is_cut = gt(size, limit)
            sums.append((is_cut, self.at(source, select(is_cut, begin, -1))))
            limit = PART ** (k + 1)
        found = self.sum(self.updates, few)
        for is_cut, values in sums:
            found = select(self.spread(is_cut), values, found)
        return found

    def counts(self) -> list[Dim]:
        """The parts of each size that there are at most: those of 16 terms, of 256, ..."""
        counts: list[Dim] = []
        limit, size = FEW, PART
        while limit < self.most:
            cut = self.count // (limit + 1)
            if isinstance(cut, int) and isinstance(self.segments, int):
                counts.append(self.count // size + min(self.segments, cut))
            else:
                counts.append(2 * cut)
            limit, size = size, size * PART
        return counts

    def sizes(self, size: Any, levels: int) -> Any:
        """How many parts of each size an element has: none where a smaller one holds all."""
        shape = (levels, self.segments)
        size = broadcast(size, shape, (1,))
        parts = add(shr(sub(size, 1), self.bits(iota(shape, 0, self.dtype), levels)), 1)
        return select(gt(size, self.limit(shape)), parts, 0)

    def owners(self, first: Any, segments: Any, low: Any, size: Any, count: Dim) -> Any:
        """The element that each part belongs to, -1 for none: a part of each size begins with
        every so many updates of an element."""
        shape = (first.shape[0], self.count)
        level, place = [iota(shape, axis, self.dtype) for axis in (0, 1)]
        number = sub(place, broadcast(self.at(low, segments), shape, (1,)))
        segments = broadcast(segments, shape, (1,))
        bits = self.bits(level, shape[0])
        part = shr(number, bits)
        is_first = eq(shl(part, bits), number)
        is_cut = gt(self.at(size, segments), self.limit(shape))
        begin = gather(first, [level, segments], (0, 1), IndexMode.DROP)
        target = select(is_first, select(is_cut, add(begin, part), -1), -1)
        none = full((shape[0], count), -1, self.dtype)
        return scatter(none, segments, [level, target], (0, 1), Combine.SET, unique=True)

    def bits(self, level: Any, levels: int) -> Any:
        """How far numbers of updates are shifted to be numbers of parts of some sizes."""
        bits = mul(add(level, 1), BITS)
        # What nobody has so many of has one part; a shift by all bits is none.
        return bits if BITS * levels < self.dtype.bits else smaller(bits, self.dtype.bits - 1)

    def limit(self, shape: Sequence[Dim]) -> Any:
        """The updates of an element that need no parts of each size."""
        below = mul(iota(shape, 0, self.dtype), BITS)
        return larger(shl(full(shape, 1, self.dtype), below), FEW)

    def row(self, x: Any, k: int, count: Dim) -> Any:
        """The first elements of a row."""
        return reshape(slice_(x, (k, 0), (k + 1, count)), (count,))

    def index(self, begin: Any, size: Any, width: int, place: Any) -> Any:
        """The numbers of the terms of each sum, and -1 where it has no more."""
        shape = (*begin.shape, width)
        column = iota(shape, 1, self.dtype)
        index = add(broadcast(begin, shape, (0,)), column)
        if place is not None:
            index = self.at(place, index)
        index = select(lt(column, broadcast(size, shape, (0,))), index, -1)
        return stored(index) if self.rest else index

    def sum(self, source: Any, index: Any) -> Any:
        """Sums of rows, one after the other."""
        count, width = index.shape
        total: Any = None
        for k in range(width):
            column = reshape(slice_(index, (0, k), (count, k + 1)), (count,))
            value = cast(self.at(source, column), self.wide)
            if total is None:
                total = value
            else:
                total = select(self.spread(ge(column, 0)), self.combine(total, value), total)
        return total

    def spread(self, x: Any) -> Any:
        """A value for each sum, for all elements of it."""
        return broadcast(x, (*x.shape, *self.rest), (0,))
