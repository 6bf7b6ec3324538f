"""The first places of long rows of keys, without sorting what cannot be among them.

Elements of a row that are a number of registers apart form a column of a block. First the best
element of each column is found, which reads everything; then the best of groups of columns. If k
groups have an element that is no worse than some key, the first k places go to such elements. So
the key of the k-th best group is a limit, which columns have to meet. Elements of those that do are
read again, and words of what meets the limit are collected: of random keys about 1.4 k. A network
sorts them whenever there is no room for more, which makes the k-th word a better limit.

Where many keys are equal, columns that just meet the limit and begin behind the place of the k-th
word are passed over.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tessera.dtypes import DType, Kind, int16, int32, uint32, uint64
from tessera.ir.core import Func, Value
from tessera.ir.scalar import Number
from tessera.schedule.sort_ops import BLOCK, COLUMN, room_of
from tessera.schedule.words import PLACE_BITS, UNSIGNED, Coder, Layout, key_bits
from tessera.target import ops as t
from tessera.target.function import I64, PTR, Values
from tessera.target.sorting import code as sorting
from tessera.target.sorting.network import network, network_name
from tessera.target.types import VecType

TOPS = sorting.Kind(uint32, BLOCK // COLUMN)
WORDS = sorting.Kind(uint64, COLUMN)
TIE = 1 << 31
"""The bit of a column's number that says that it just meets the limit."""


@dataclass(frozen=True, slots=True)
class Selection:
    """What is selected.

    Attributes:
        key: dtype of the keys, of at most 32 bits.
        descending: whether the largest come first.
        groups: of which the limit is found, 16 or more times a power of two.
    """

    key: DType
    descending: bool
    groups: int

    @property
    def room(self) -> int:
        """Words of a row."""
        return room_of(self.groups)

    @property
    def name(self) -> str:
        """The name of the function."""
        return f"select_{self.groups}_{self.key}_{'down' if self.descending else 'up'}"


def select_functions(selection: Selection) -> dict[str, Func]:
    """`select(keys, words, tops, n, until, lo, hi)`, and what it calls, by name: in some rows the
    words of the first places, in order. `tops` is room for a number for each `COLUMN` of a row's
    places."""
    rows = selection.groups // TOPS.lanes
    sort = network(WORDS, selection.room // WORDS.lanes)
    funcs = [network(TOPS, rows), sort, _Select(selection).build()]
    return {func.name: func for func in funcs}


class _Select(sorting.Code):
    """Builds the function."""

    __slots__ = ("coder", "first", "how", "keys", "limit", "n", "tie", "tops", "until")

    def __init__(self, how: Selection) -> None:
        names = ("keys", "words", "tops", "n", "until", "lo", "hi")
        super().__init__(TOPS, (PTR, PTR, PTR, I64, I64, I64, I64), names)
        self.how = how
        self.coder = Coder(_Code(self), Layout.of([how.key], PLACE_BITS), how.descending)

    def build(self) -> Func:
        """The function."""
        keys, words, tops, self.n, self.until, lo, hi = self.args
        scratch = self.emit(t.Alloca(uint32, self.how.groups, loc=self.loc))
        whole = self.map("sub", self.n, self.map("and", self.n, self.index(BLOCK - 1)))
        size = self.times(self.map("shr", self.plus(self.n, BLOCK - 1), self.index(7)), self.lanes)

        def row(number: Value) -> None:
            self.keys = self.at_of(keys, self.map("mul", number, self.n), self.how.key.itemsize)
            self.first = self.at_of(words, self.times(number, self.how.room), WORDS.dtype.itemsize)
            self.tops = self.at(tops, self.map("mul", number, size))
            self.find_tops(whole)
            self.find_limit(scratch, size)
            self.collect(self.choose_columns(size))

        self.span(lo, hi, row)
        return self.func(self.how.name)

    def at_of(self, ptr: Value, place: Value, size: int) -> Value:
        """A pointer to an element of a size."""
        return self.emit(t.PtrAdd(ptr, self.times(place, size), loc=self.loc))

    # --- keys as integers of 32 bits: the larger one is the better, NaN and zeros in any order ---

    def rank(self, x: Value) -> Value:
        """Of keys."""
        key, lanes = self.how.key, t.lanes(x.type)
        bits = self.bitcast(x, UNSIGNED[key_bits(key)])
        if key.is_float:
            wide = self.cast(self.bitcast(bits, _SIGNED[key_bits(key)]), int32)
            sign = self.map("lt", wide, self.like(wide, 0))
            ones = self.like(wide, 2 ** (key.bits - 1) - 1)
            flipped = self.map("xor", wide, self.select(sign, ones, self.like(wide, 0)))
            found = self.bitcast(flipped, uint32)
            found = self.map("sub", found, self.like(found, _lowest(key)))
        elif key.kind is Kind.INT:
            found = self.bitcast(self.cast(x, int32), uint32)
            found = self.map("xor", found, self.like(found, 2**31))
        else:
            found = self.cast(bits, uint32)
        assert t.lanes(found.type) == lanes
        return found if self.how.descending else self.map("not", found)

    def equals(self, rank: Value) -> tuple[Value, Value]:
        """The lowest and the highest rank of keys that are equal to one of a rank."""
        key = self.how.key
        if not key.is_float:
            return rank, rank
        nan = (_ordered(_infinity(key), key.bits) + 1 - _lowest(key)) % 2**32
        zero = -_lowest(key) % 2**32
        falls = self.how.descending
        # Of zeros -0 is the lower one.
        nans = (nan, 2**32 - 1) if falls else (0, 2**32 - 1 - nan)
        zeros = (zero - 1, zero) if falls else (2**32 - 1 - zero, 2**32 - zero)
        low, high = rank, rank
        for first, last in (nans, zeros):
            inside = self.map(
                "and", self.map("ge", rank, self.word(first)), self.map("le", rank, self.word(last))
            )
            low = self.select(inside, self.word(first), low)
            high = self.select(inside, self.word(last), high)
        return low, high

    # --- steps ---

    def find_tops(self, whole: Value) -> None:
        """The best of each column."""
        places = range(0, BLOCK, self.lanes)
        vector = VecType(self.lanes, self.how.key)

        def put(at: Value, found: Value) -> None:
            self.store(self.tops, self.map("shr", at, self.index(3)), found)

        def block(at: Value) -> None:
            given = [
                self.emit(t.Load(self.keys, self.plus(at, k), (), vector, loc=self.loc))
                for k in places
            ]
            ranks = [self.rank(x) for x in given]
            while len(ranks) > 1:
                half = len(ranks) // 2
                ranks = [self.map("max", ranks[k], ranks[k + half]) for k in range(half)]
            put(at, ranks[0])

        def rest() -> None:
            def step(at: Value, carried: Values) -> Values:
                present = self.below(self.map("sub", self.n, at))
                none = self.emit(t.Const(0, vector, loc=self.loc))
                x = self.emit(t.Load(self.keys, at, (present, none), vector, loc=self.loc))
                rank = self.select(present, self.rank(x), self.words(0))
                return [self.map("max", carried[0], rank)]

            put(whole, self.carry(whole, self.n, self.lanes, [self.words(0)], step)[0])

        zero = self.index(0)
        self.carry(zero, whole, BLOCK, (), lambda at, _: _none(block(at)))
        self.when(self.map("lt", whole, self.n), rest)

    def find_limit(self, scratch: Value, size: Value) -> None:
        """The rank that the first places have at least."""
        count = self.how.groups

        def step(at: Value, carried: Values) -> Values:
            given = [self.load(self.tops, self.plus(at, k)) for k in range(0, count, self.lanes)]
            return [self.map("max", a, b) for a, b in zip(carried, given, strict=True)]

        zero = self.index(0)
        whole = self.map("sub", size, self.map("and", size, self.index(count - 1)))
        init = [self.words(0)] * (count // self.lanes)
        for k, best in enumerate(self.carry(zero, whole, count, init, step)):
            self.store(scratch, self.index(k * self.lanes), best)
        self.call(network_name(TOPS, count // self.lanes), scratch, zero, zero, self.index(count))
        last = self.map("sub", self.index(count), self.until)
        rank = self.emit(t.Load(scratch, last, (), self.one, loc=self.loc))
        self.limit, self.tie = self.equals(rank)

    def choose_columns(self, size: Value) -> Value:
        """Columns that meet the limit, by the places of their first elements, in front of the tops,
        and how many they are."""
        limit, tie = self.splat(self.limit), self.splat(self.tie)
        lanes = self.emit(t.Lanes(self.lanes, uint32, loc=self.loc))

        def step(at: Value, carried: Values) -> Values:
            (count,) = carried
            tops = self.load(self.tops, at)
            mask = self.map("ge", tops, limit)
            first = self.splat(self.cast(self.times(at, COLUMN), uint32))
            first = self.map("add", first, lanes)
            tied = self.map("or", first, self.like(first, TIE))
            first = self.select(self.map("le", tops, tie), tied, first)
            # It is written where what has been read was.
            self.store(self.tops, count, self.compress(first, mask))
            return [self.map("add", count, self.count(mask))]

        zero = self.index(0)
        return self.carry(zero, size, self.lanes, [zero], step)[0]

    def collect(self, columns: Value) -> None:
        """The words of elements of some columns that meet the limit, and sorts them."""
        zero = self.index(0)
        limit = self.emit(t.Splat(self.limit, COLUMN, loc=self.loc))
        lanes = self.emit(t.Lanes(COLUMN, I64.dtype, loc=self.loc))
        steps = self.map("mul", lanes, self.like(lanes, self.lanes))
        n = self.emit(t.Splat(self.n, COLUMN, loc=self.loc))
        none = self.emit(t.Const(0, VecType(COLUMN, self.how.key), loc=self.loc))
        one = t.Const(2**64 - 1, t.with_element(I64, uint64), loc=self.loc)

        def read(first: Value, state: Values) -> Values:
            filled, last, best = state
            places = self.map("add", self.emit(t.Splat(first, COLUMN, loc=self.loc)), steps)
            present = self.map("lt", places, n)
            x = self.emit(t.Gather(self.keys, places, (present, none), self.how.key, loc=self.loc))
            meets = self.map("and", present, self.map("ge", self.rank(x), limit))
            (word,) = self.coder.pack([x], places)
            under = self.map("lt", word, self.emit(t.Splat(best, COLUMN, loc=self.loc)))
            meets = self.map("and", meets, under)
            self.store(self.first, filled, self.compress(word, meets))
            filled = self.map("add", filled, self.count(meets))

            def less() -> Values:
                self.sort(filled)
                where = self.plus(self.until, -1)
                best = self.emit(t.Load(self.first, where, (), one.type, loc=self.loc))
                place = self.map("shr", best, self.emit(t.Const(1, best.type, loc=self.loc)))
                if not self.how.key.is_float:
                    place = best
                mask = self.emit(t.Const(2**PLACE_BITS - 1, best.type, loc=self.loc))
                last = self.cast(self.map("and", place, mask), I64.dtype)
                return [self.until, last, best]

            is_full = self.map("gt", filled, self.index(self.how.room - COLUMN))
            return self.choose(is_full, less, lambda: [filled, last, best])

        def step(at: Value, state: Values) -> Values:
            number = self.emit(t.Load(self.tops, at, (), self.one, loc=self.loc))
            is_tie = self.map("ge", number, self.word(TIE))
            number = self.map("and", number, self.word(TIE - 1))
            first = self.cast(number, I64.dtype)
            is_late = self.map("and", is_tie, self.map("gt", first, state[1]))
            return self.choose(is_late, lambda: list(state), lambda: list(read(first, state)))

        init = [zero, self.index(2**62), self.emit(one)]
        self.sort(self.carry(zero, columns, 1, init, step)[0])

    def sort(self, count: Value) -> None:
        """Sorts the words."""
        zero = self.index(0)
        self.call(network_name(WORDS, self.how.room // WORDS.lanes), self.first, zero, zero, count)


class _Code:
    """Emits the code of words on vectors of a column."""

    def __init__(self, build: sorting.Code) -> None:
        self.build = build

    def const(self, value: Number, dtype: DType) -> Value:
        """A constant."""
        return self.build.emit(t.Const(value, VecType(COLUMN, dtype), loc=self.build.loc))

    def map(self, fn: str, *args: Value) -> Value:
        """A row of the scalar table."""
        return self.build.map(fn, *args)

    def cast(self, x: Value, dtype: DType) -> Value:
        """A conversion."""
        return self.build.cast(x, dtype)

    def bitcast(self, x: Value, dtype: DType) -> Value:
        """The same bits as another dtype."""
        return self.build.bitcast(x, dtype)


_SIGNED = {16: int16, 32: int32}


def _ordered(bits: int, width: int) -> int:
    """The bits of a float as a signed integer that compares as it does, modulo 2**32."""
    if bits >> (width - 1):
        return (bits - 2**width) ^ (2 ** (width - 1) - 1)
    return bits


def _infinity(key: DType) -> int:
    """Its bits."""
    return int(np.asarray(np.inf, key.np).view(f"u{key.itemsize}"))


def _lowest(key: DType) -> int:
    """What stands for -inf."""
    return _ordered(_infinity(key) | 2 ** (key.bits - 1), key.bits) % 2**32


def _none(_: None) -> Values:
    return ()
