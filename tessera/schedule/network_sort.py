"""Sorts of many rows of a few elements on a CPU: a vector has an element of each of several rows.

    schedule.sort(%x -> %y) {axis=1}       # f32[N, 3]
    ==>
    schedule.nest i:
        %a, %b, %c = %x[i, 0], %x[i, 1], %x[i, 2]
        %a, %b exchanged where they are out of order; then %b, %c; then %a, %b again
        %y[i, 0], %y[i, 1], %y[i, 2] = %a, %b, %c

Only neighbours are compared, so equal elements keep their order: as many rounds as there are
elements, in turn from the first and from the second one on. Keys alone that are whole numbers, of
which equal ones are the same, are exchanged with others than neighbours, too, which takes fewer
steps: the merge exchange of Batcher (Knuth, The Art of Computer Programming, volume 3, 5.2.2 M).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tessera.dtypes import bool_, int32, int64
from tessera.ir.core import Block, Value
from tessera.ir.exchanges import exchanges
from tessera.ir.intexpr import Dim, prod, sym
from tessera.ir.types import ScalarType
from tessera.schedule import ops
from tessera.schedule.copying import Names
from tessera.schedule.sizes import size_of
from tessera.schedule.split_sort import Asked, NestCode
from tessera.schedule.types import Axis, buffer_type

FEW = 4
"""Elements of a row that are sorted so wherever rows fill a vector: it compiles as soon."""

MOST = 9
"""Elements of a row that memory runs along. For more the steps, of which there are half as many as
pairs of elements, take as long as a sort of each row in a vector does."""

MOST_BESIDE = 12
"""The same of rows that lie side by side, as those of images in a stack do: 16 would take half of
the time, too, but 110 ms to compile."""

LEAST_ROWS, MANY_ROWS = 16, 1024
"""Rows that fill a vector, and that are worth the time which more than a few elements take to
compile: 50 to 150 ms rather than 30 to 50."""


def network_sort(asked: Asked, names: Names) -> ops.Kernel | None:
    """The kernel of such a sort; None if it is none.

    Args:
        asked: what is asked of it.
        names: for new axes.
    """
    op = asked.op
    type = buffer_type(op.inputs[0])
    count = type.shape[op.axis]
    others = [dim for k, dim in enumerate(type.shape) if k != op.axis]
    if op.num_keys != 1 or not isinstance(count, int) or count < 2:
        return None
    most = MOST if type.element_strides()[op.axis] == 1 else MOST_BESIDE
    rows = size_of(prod(others))
    if count > most or rows < (LEAST_ROWS if count <= FEW else MANY_ROWS):
        return None
    if type.dtype is bool_ or any(buffer_type(v).dtype.is_complex for v in op.inputs):
        return None

    axes = [Axis(names.fresh("i"), dim) for dim in others]
    place: list[Dim] = [0 if axis.extent == 1 else sym(axis.name) for axis in axes]

    def at(k: int) -> tuple[Dim, ...]:
        return (*place[: op.axis], k, *place[op.axis :])

    code = NestCode()
    moved = op.moved()
    wanted = sorted({source for source, _ in moved if source > 0})
    given = [op.inputs[0], *[op.inputs[n] for n in wanted]]
    words = [
        [code.add(ops.Load(v, (), at(k), loc=op.loc)) for k in range(count)] for v in given
    ]
    if any(source < 0 for source, _ in moved):
        # Numbers as wide as keys are chosen by the same masks.
        number = int64 if type.dtype.bits == 64 else int32
        words.append([code.const(k, number) for k in range(count)])
    _sort(code, words, op.descending)
    found = {0: words[0], **dict(zip(wanted, words[1:], strict=False)), -1: words[-1]}
    for source, target in moved:
        until = buffer_type(target).shape[op.axis]
        assert isinstance(until, int)
        for k, value in enumerate(found[source][:until]):
            value = code.cast(value, buffer_type(target).dtype)
            code.ops.append(ops.Store(target, value, (), at(k), loc=op.loc))
    kept = tuple([axis for axis in axes if axis.extent != 1])
    nest = ops.Nest(kept, body=Block([], code.ops, ()), loc=op.loc)
    return asked.kernel([nest], [], f"rows of {count} are sorted side by side")


def _sort(code: NestCode, rows: Sequence[list[Value]], descending: bool) -> None:
    """Sorts some values by the first row of them, and moves the others as those are moved."""
    keys = rows[0]
    type = keys[0].type
    assert isinstance(type, ScalarType)
    dtype = type.dtype
    alone = len(rows) == 1 and not dtype.is_float
    for i, k in exchanges(len(keys)) if alone else neighbours(len(keys)):
        a, b = keys[i], keys[k]
        if alone:
            keys[i], keys[k] = code.map("min", a, b), code.map("max", a, b)
            if descending:
                keys[i], keys[k] = keys[k], keys[i]
            continue
        # NaN counts as the largest: what is no number does not move back.
        before = ("le", b, a) if descending else ("le", a, b)
        swaps = code.map("not", code.map(*before))
        if dtype.is_float:
            number = a if descending else b
            swaps = code.map("and", swaps, code.map("eq", number, number))
        for row in rows:
            x, y = row[i], row[k]
            row[i], row[k] = code.map("select", swaps, y, x), code.map("select", swaps, x, y)


def neighbours(count: int) -> Iterator[tuple[int, int]]:
    """The steps of a sort that exchanges neighbours only.

    >>> list(neighbours(3))
    [(0, 1), (1, 2), (0, 1)]
    """
    for k in range(count):
        for first in range(k % 2, count - 1, 2):
            yield first, first + 1
