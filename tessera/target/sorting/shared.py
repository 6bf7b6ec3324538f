"""Long rows, which threads share: the first steps of a quicksort are taken one level after the
other, and the pieces of a level by several threads. What the last one leaves are sorts by
themselves.

Numbers of a row, i64, are four for each piece, those of `quick.sort`: where its words are, where
they are to be, a place beside that, and how many they are. Piece 1 is the row, and what piece k is
divided into are pieces 2k and 2k + 1, neither of which touches what the other one may write.
"""

from __future__ import annotations

from tessera.ir.core import Func, Value
from tessera.schedule.sort_ops import PIECE, PIECES
from tessera.target import ops as t
from tessera.target.function import I64, PTR
from tessera.target.sorting.code import Code, Kind
from tessera.target.sorting.quick import pivot_of, sort_name

NAMES = ("words", "numbers", "n", "until", "first", "lo", "hi")
"""Arguments: pointers, words and places of a row, how many pieces of it the level has, and which of
the level's pieces, those of all rows, are worked on."""

TYPES = (PTR, PTR, I64, I64, I64, I64, I64)


def share_name(kind: Kind) -> str:
    """The function for one level."""
    return kind.name_of_all("share")


def levels() -> list[int]:
    """How many pieces each level has."""
    return [1 << k for k in range(PIECES.bit_length())]


def share(kind: Kind) -> Func:
    """Divides the pieces of a level, or sorts those of the last one."""
    c = Code(kind, TYPES, NAMES)
    ptr, numbers, n, until, first, lo, hi = c.args
    zero = c.index(0)
    count_at = c.emit(t.Alloca(I64.dtype, 1, loc=c.loc))
    word_at = c.emit(t.Alloca(kind.dtype, kind.lanes, loc=c.loc))

    def put(node: Value, values: tuple[Value, ...]) -> None:
        at = c.times(node, PIECE)
        for k, value in enumerate(values):
            c.store(numbers, c.plus(at, k), value)

    def piece(number: Value) -> None:
        row = c.map("trunc_div", number, first)
        words = c.map("mul", row, c.times(n, 2))
        node = c.map("add", c.times(row, 2 * PIECES), first)
        node = c.map("add", node, c.map("rem", number, first))
        is_row = c.map("eq", first, c.index(1))
        c.when(is_row, lambda: put(node, (words, words, c.map("add", words, n), n)))
        at = c.times(node, PIECE)
        source, home, beside, size = [c.load_index(numbers, c.plus(at, k)) for k in range(PIECE)]
        end = c.map("add", words, until)

        after = c.map("sub", c.map("add", node, node), c.times(row, 2 * PIECES))

        def divide() -> None:
            word = pivot_of(c, kind, ptr, word_at, source, size)
            c.call(kind.name("divide"), ptr, count_at, source, home, beside, size, word)
            count = c.load_index(count_at, zero)
            more = c.map("sub", size, count)
            # Words that are not below the pivot are beside; behind them is room for the others.
            put(after, (home, home, c.map("add", beside, more), count))
            put(c.plus(after, 1), (beside, c.map("add", home, count), beside, more))

        def whole() -> None:
            put(after, (source, home, beside, size))
            put(c.plus(after, 1), (source, home, beside, zero))

        def split() -> None:
            is_large = c.map("gt", size, c.index(kind.small))
            c.when(c.map("and", is_large, c.map("lt", home, end)), divide, whole)

        def sort() -> None:
            c.call(sort_name(kind), ptr, source, home, beside, size, end)

        is_last = c.map("eq", first, c.index(PIECES))
        c.when(is_last, lambda: c.when(c.map("lt", home, end), sort), split)

    c.span(lo, hi, piece)
    return c.func(share_name(kind), is_rare=True)
