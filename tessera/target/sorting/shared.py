"""Long rows, which threads share: the words of each row are dealt out to a few buckets, in order of
their words, and buckets are sorted by themselves (samplesort).

All threads count, for their parts of the row, the words of each bucket, and then each knows where
its own begin. Numbers of a row, i64, are `WAYS` for each part: where the words of each bucket that
are in it go; before them the words that part buckets, and where the buckets begin.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tessera.dtypes import int64, uint64
from tessera.ir.core import Func, Value
from tessera.schedule.sort_ops import CHUNK, HEAD, WAYS
from tessera.target import ops as t
from tessera.target.function import I64, PTR, Values
from tessera.target.sorting.code import ROWS, Code, Kind
from tessera.target.sorting.network import network_name
from tessera.target.sorting.quick import sort_name

NAMES = ("words", "numbers", "n", "until", "chunks", "lo", "hi")
"""Arguments of all functions: pointers, words and places of a row, its parts, and which rows, parts
or buckets are worked on."""

TYPES = (PTR, PTR, I64, I64, I64, I64, I64)


def functions(kind: Kind) -> dict[str, Func]:
    """What is called for some rows, parts, rows, parts and buckets, one after the other."""
    funcs = [choose(kind), count(kind), start(kind), deal(kind), sort_buckets(kind)]
    return {func.name: func for func in funcs}


STEPS = {
    "choose_buckets": "rows",
    "count_buckets": "parts",
    "start_buckets": "rows",
    "deal_buckets": "parts",
    "sort_buckets": "buckets",
}
"""The functions in the order of their calls, and what they work on."""


class _Shared(Code):
    """Builds one of the functions."""

    __slots__ = ("chunks", "n", "numbers", "ptr", "until")

    def __init__(self, kind: Kind) -> None:
        super().__init__(kind, TYPES, NAMES)
        self.ptr, self.numbers, self.n, self.until, self.chunks, _, _ = self.args

    def row(self, number: Value) -> tuple[Value, Value]:
        """Where the words and the numbers of a row begin."""
        words = self.map("mul", number, self.times(self.n, 2))
        return words, self.map("mul", number, self.times(self.plus(self.chunks, HEAD), WAYS))

    def divided(self, number: Value, by: Value) -> tuple[Value, Value]:
        """A number that is not negative, and a rest."""
        return self.map("trunc_div", number, by), self.map("rem", number, by)

    def each(self, body: Callable[[Value], None]) -> None:
        """Runs a body for lo to hi."""
        self.span(self.args[-2], self.args[-1], body)

    def bounds(self, numbers: Value) -> list[Value]:
        """The words that part buckets, in every lane."""
        found: list[Value] = []
        for k in range(1, WAYS):
            word = self.emit(t.Load(self.numbers, self.plus(numbers, k), (), I64, loc=self.loc))
            found.append(self.splat(self.cast(self.bitcast(word, uint64), self.dtype)))
        return found

    def part(self, number: Value) -> tuple[Value, Value, Value, Value]:
        """Of a part: where its row begins, its first place and the end, and its numbers."""
        row, chunk = self.divided(number, self.chunks)
        words, numbers = self.row(row)
        low = self.times(chunk, CHUNK)
        high = self.map("min", self.plus(low, CHUNK), self.n)
        own = self.map("add", numbers, self.times(self.plus(chunk, HEAD), WAYS))
        return words, low, high, own

    def under(self, x: Value, bounds: Sequence[Value], present: Value) -> list[Value]:
        """The lanes of words before each bucket's end."""
        return [*[self.map("and", present, self.map("lt", x, b)) for b in bounds], present]


def choose(kind: Kind) -> Func:
    """The words that part the buckets of some rows, from a sample."""
    c = _Shared(kind)
    size = kind.small
    sample = c.emit(t.Alloca(kind.dtype, size, loc=c.loc))

    def row(number: Value) -> None:
        words, numbers = c.row(number)

        def take(k: Value) -> None:
            at = c.map("shr", c.map("mul", c.n, k), c.index(size.bit_length() - 1))
            word = c.emit(t.Load(c.ptr, c.map("add", words, at), (), c.one, loc=c.loc))
            c.store(sample, k, word)

        c.loop(size, take)
        zero = c.index(0)
        c.call(network_name(kind, ROWS[-1]), sample, zero, zero, c.index(size))
        for k in range(1, WAYS):
            at = c.index(k * size // WAYS)
            word = c.emit(t.Load(sample, at, (), c.one, loc=c.loc))
            c.store(c.numbers, c.plus(numbers, k), c.bitcast(c.cast(word, uint64), int64))

    c.each(row)
    return c.func(kind.name("choose_buckets"))


def count(kind: Kind) -> Func:
    """How many words of some parts are before the end of each bucket but the last."""
    c = _Shared(kind)

    def part(number: Value) -> None:
        words, low, high, own = c.part(number)
        row, _ = c.divided(number, c.chunks)
        bounds = c.bounds(c.row(row)[1])

        def step(at: Value, carried: Values) -> Values:
            present = c.below(c.map("sub", high, at))
            x = c.load(c.ptr, c.map("add", words, at), [present])
            masks = c.under(x, bounds, present)[:-1]
            return [c.map("add", k, c.count(m)) for k, m in zip(carried, masks, strict=True)]

        found = c.carry(low, high, c.lanes, [c.index(0)] * (WAYS - 1), step)
        for k, number in enumerate(found):
            c.store(c.numbers, c.plus(own, k), number)

    c.each(part)
    return c.func(kind.name("count_buckets"))


def start(kind: Kind) -> Func:
    """Where the words of each bucket and part go, in some rows."""
    c = _Shared(kind)

    def row(number: Value) -> None:
        _, numbers = c.row(number)

        def size(chunk: Value, k: int) -> Value:
            """Words of a part before the end of a bucket."""
            own = c.map("add", numbers, c.times(c.plus(chunk, HEAD), WAYS))
            return c.load_index(c.numbers, c.plus(own, k))

        def total(chunk: Value, carried: Values) -> Values:
            return [c.map("add", x, size(chunk, k)) for k, x in enumerate(carried)]

        zero = c.index(0)
        ends = c.carry(zero, c.chunks, 1, [zero] * (WAYS - 1), total)
        starts = [zero, *ends]
        for k, at in enumerate(starts):
            c.store(c.numbers, c.plus(numbers, WAYS + k), at)

        def move(chunk: Value, carried: Values) -> Values:
            low = c.times(chunk, CHUNK)
            whole = c.map("sub", c.map("min", c.plus(low, CHUNK), c.n), low)
            under = [zero, *[size(chunk, k) for k in range(WAYS - 1)], whole]
            own = c.map("add", numbers, c.times(c.plus(chunk, HEAD), WAYS))
            following: list[Value] = []
            for k, at in enumerate(carried):
                c.store(c.numbers, c.plus(own, k), at)
                more = c.map("sub", under[k + 1], under[k])
                following.append(c.map("add", at, more))
            return following

        c.carry(zero, c.chunks, 1, starts, move)

    c.each(row)
    return c.func(kind.name("start_buckets"))


def deal(kind: Kind) -> Func:
    """Moves the words of some parts to their buckets, in the second half of the row's words."""
    c = _Shared(kind)

    def part(number: Value) -> None:
        words, low, high, own = c.part(number)
        row, _ = c.divided(number, c.chunks)
        bounds = c.bounds(c.row(row)[1])
        target = c.map("add", words, c.n)

        def step(at: Value, carried: Values) -> Values:
            present = c.below(c.map("sub", high, at))
            x = c.load(c.ptr, c.map("add", words, at), [present])
            masks = c.under(x, bounds, present)
            following: list[Value] = []
            before: Value | None = None
            for place, mask in zip(carried, masks, strict=True):
                own = mask if before is None else c.map("and", mask, c.map("not", before))
                number, before = c.count(own), mask
                at = c.map("add", target, place)
                # What follows may be there already, from another thread.
                c.store(c.ptr, at, c.compress(x, own), [c.below(number)])
                following.append(c.map("add", place, number))
            return following

        places = [c.load_index(c.numbers, c.plus(own, k)) for k in range(WAYS)]
        c.carry(low, high, c.lanes, places, step)

    c.each(part)
    return c.func(kind.name("deal_buckets"))


def sort_buckets(kind: Kind) -> Func:
    """Sorts some buckets, to where the row's words began."""
    c = _Shared(kind)

    def bucket(number: Value) -> None:
        row, k = c.divided(number, c.index(WAYS))
        words, numbers = c.row(row)
        at = c.map("add", c.plus(numbers, WAYS), k)
        low = c.load_index(c.numbers, at)
        is_last = c.map("eq", k, c.index(WAYS - 1))
        (high,) = c.choose(is_last, lambda: [c.n], lambda: [c.load_index(c.numbers, c.plus(at, 1))])
        home = c.map("add", words, low)
        beside = c.map("add", home, c.n)
        until = c.map("add", words, c.until)

        def sort() -> None:
            size = c.map("sub", high, low)
            c.call(sort_name(kind), c.ptr, beside, home, beside, size, until)

        c.when(c.map("lt", low, c.until), sort)

    c.each(bucket)
    return c.func(kind.name("sort_buckets"))
