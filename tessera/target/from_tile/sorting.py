"""Sorts of rows of words: calls of the library's functions for them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tessera.graph.ops.largest import groups_of
from tessera.ir.core import Func, Value
from tessera.schedule.sort_ops import FEW, LONG, is_held
from tessera.target import ops as t
from tessera.target.from_tile.lowering import Lowering, constant_of
from tessera.target.function import I64, PTR
from tessera.target.sorting import shared
from tessera.target.sorting.code import ENDS, Code, Kind
from tessera.target.sorting.network import network_name, networks
from tessera.target.sorting.quick import sort_functions, sort_name
from tessera.target.sorting.select import Selection, select_functions
from tessera.tile.entry_ops import SelectWords, SortWords


def sort_words(s: Lowering, op: SortWords) -> None:
    """A sort of rows, in parts where there are few long ones."""
    kind = _kind(s, op)
    words, rows = s.ptr(op.words), s.dim(op.rows)
    n, until = s.dim(op.count), s.dim(op.until)
    vectors = _vectors(kind, op.count) if is_held(op.count, op.dtype, op.register) else None
    s.made.update(sort_functions(kind) if vectors is None else networks(kind, (vectors,), True))

    def alone() -> Sequence[Value]:
        func = sort_rows(kind, vectors)
        s.made[func.name] = func
        _share(s, func.name, [words, n, until], rows, op.grain)
        return ()

    def together() -> Sequence[Value]:
        _in_parts(s, kind, [words, s.ptr(op.numbers[0]), n, until], rows)
        return ()

    if not op.numbers:
        alone()
        return
    long, few = s.index(LONG), s.index(FEW)
    known = [constant_of(value) for value in (n, rows)]
    is_long = s.map("and", s.map("ge", n, long), s.map("lt", rows, few))
    if None in known:
        s.branch(is_long, together, alone)
    else:
        together()


def _kind(s: Lowering, op: SortWords) -> Kind:
    """What is sorted."""
    kind = Kind(op.dtype, op.register // op.dtype.bits)
    count = constant_of(s.dim(op.count))
    return replace(kind, networks=ENDS) if count and count > kind.small else kind


def select_words(s: Lowering, op: SelectWords) -> None:
    """The first places of rows of keys."""
    how = Selection(op.dtype, op.descending, groups_of(op.until), s.machine.vector_bits)
    s.made.update(select_functions(how))
    args = [*[s.ptr(v) for v in (op.keys, op.words, op.tops)], s.dim(op.count), s.index(op.until)]
    _share(s, how.name, args, s.dim(op.rows), op.grain)


def _in_parts(s: Lowering, kind: Kind, args: list[Value], rows: Value) -> None:
    """Long rows, each shared by threads."""
    func = shared.share(kind)
    s.made[func.name] = func
    for first in shared.levels():
        count = s.map("mul", rows, s.index(first))
        s.emit(t.Parallel([*args, s.index(first)], count, func.name, 1, loc=s.loc))


def _share(s: Lowering, callee: str, args: list[Value], count: Value, grain: int) -> None:
    """Calls a function for some points, which threads share if there are enough."""
    known = constant_of(count)
    if grain and (known is None or known > grain):
        s.emit(t.Parallel(args, count, callee, grain, loc=s.loc))
    else:
        s.emit(t.Call([*args, s.index(0), count], callee, loc=s.loc))


def _vectors(kind: Kind, n: int) -> int:
    """The vectors of a network for rows of a length, a power of two."""
    return 1 << (max(-(-n // kind.lanes), 1) - 1).bit_length()


def sort_rows(kind: Kind, vectors: int | None) -> Func:
    """`sort_rows(words, n, until, lo, hi)`: sorts some rows, each by one network of so many vectors
    where registers hold it.
    """
    c = Code(kind, (PTR, I64, I64, I64, I64), ("words", "n", "until", "lo", "hi"))
    ptr, n, until, lo, hi = c.args
    whole = c.map("and", c.plus(n, kind.lanes - 1), c.index(-kind.lanes))
    room = whole if vectors else c.times(n, 2)

    def row(number: Value) -> None:
        start = c.map("mul", number, room)
        if vectors:
            c.call(network_name(kind, vectors, True), ptr, start, start, n)
            return
        end = c.map("add", start, until)
        c.call(sort_name(kind), ptr, start, start, c.map("add", start, n), n, end)

    c.span(lo, hi, row)
    name = kind.name(f"sort_rows_{vectors}") if vectors else kind.name_of_all("sort_rows")
    return c.func(name, is_rare=not vectors)
