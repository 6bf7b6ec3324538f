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

from tessera.dtypes import DType, Kind, int16, int32, int64, uint64
from tessera.ir.core import Func, Value
from tessera.ir.scalar import Number
from tessera.schedule.sort_ops import COLUMN, rank_of, room_of
from tessera.schedule.words import PLACE_BITS, UNSIGNED, Coder, Layout, key_bits
from tessera.target import ops as t
from tessera.target.function import I64, PTR, Values
from tessera.target.sorting import code as sorting
from tessera.target.sorting.network import network_name, networks
from tessera.target.types import VecType

WORD = t.with_element(I64, uint64)

PAIRS = room_of(64)
"""Keys and places of 64 bits that a row has room for."""

KEYS, PLACES, FOUND, LOWER = [k * PAIRS for k in range(4)]
"""Where they are, words that are sorted, and those of the lower digit."""

TIE = 1 << 31
"""The bit of a column's number that says that it just meets the limit."""


@dataclass(frozen=True, slots=True)
class Selection:
    """What is selected.

    Attributes:
        key: dtype of the keys.
        descending: whether the largest come first.
        most: groups of which the limit is found, if a network sorts so many.
        register: bits of a vector register.
    """

    key: DType
    descending: bool
    most: int
    register: int

    @property
    def groups(self) -> int:
        """Groups of which the limit is found."""
        return min(self.most, self.tops.small)

    @property
    def room(self) -> int:
        """Words of a row."""
        return room_of(self.groups)

    @property
    def tops(self) -> sorting.Kind:
        """Ranks of keys."""
        rank = rank_of(self.key)
        return sorting.Kind(rank, self.register // rank.bits)

    @property
    def words(self) -> sorting.Kind:
        """What is sorted in the end."""
        return sorting.Kind(uint64, self.register // uint64.bits)

    @property
    def name(self) -> str:
        """The name of the function."""
        return f"select_{self.groups}_{self.key}_{'down' if self.descending else 'up'}"


def select_functions(selection: Selection) -> dict[str, Func]:
    """`select(keys, words, tops, n, until, lo, hi)`, and what it calls, by name: in some rows the
    words of the first places, in order. `tops` is room for a number for each `COLUMN` of a row's
    places."""
    tops, words = selection.tops, selection.words
    select = (_SelectPairs if selection.key.bits == 64 else _Select)(selection).build()
    return {
        **networks(tops, (selection.groups // tops.lanes,)),
        **networks(words, (selection.room // words.lanes,)),
        select.name: select,
    }


class _Select(sorting.Code):
    """Builds the function."""

    __slots__ = ("coder", "few", "first", "how", "keys", "limit", "n", "tie", "tops", "until")

    def __init__(self, how: Selection) -> None:
        names = ("keys", "words", "tops", "n", "until", "lo", "hi")
        super().__init__(how.tops, (PTR, PTR, PTR, I64, I64, I64, I64), names)
        self.how = how
        self.few = how.words.lanes
        self.coder = Coder(_Code(self, self.few), Layout.of([how.key], PLACE_BITS), how.descending)

    def build(self) -> Func:
        """The function."""
        keys, words, tops, self.n, self.until, lo, hi = self.args
        scratch = self.emit(t.Alloca(self.dtype, self.how.groups, loc=self.loc))
        self.prepare()
        block = COLUMN * self.lanes
        whole = self.map("sub", self.n, self.map("and", self.n, self.index(block - 1)))
        blocks = self.map("shr", self.plus(self.n, block - 1), self.index(block.bit_length() - 1))
        size = self.times(blocks, self.lanes)

        def row(number: Value) -> None:
            self.keys = self.at_of(keys, self.map("mul", number, self.n), self.how.key.itemsize)
            self.first = self.at_of(words, self.times(number, self.how.room), uint64.itemsize)
            self.tops = self.at(tops, self.map("mul", number, size))
            self.find_tops(whole)
            self.find_limit(scratch, size)
            self.collect(self.choose_columns(size))

        self.span(lo, hi, row)
        return self.func(self.how.name)

    def prepare(self) -> None:
        """Makes room for what all rows need."""

    def at_of(self, ptr: Value, place: Value, size: int) -> Value:
        """A pointer to an element of a size."""
        return self.emit(t.PtrAdd(ptr, self.times(place, size), loc=self.loc))

    # --- ranks, integers: the larger one is the better, NaN and zeros in any order ---

    def rank(self, x: Value, signs: int = 0) -> Value:
        """Of keys, perhaps with another sign bit."""
        key, lanes = self.how.key, t.lanes(x.type)
        bits = self.bitcast(x, UNSIGNED[key_bits(key)])
        if key.is_float:
            wide = self.cast(self.bitcast(bits, _SIGNED[key_bits(key)]), _SIGNED[self.dtype.bits])
            sign = self.map("lt", wide, self.like(wide, 0))
            ones = self.like(wide, 2 ** (key.bits - 1) - 1)
            flipped = self.map("xor", wide, self.select(sign, ones, self.like(wide, 0)))
            found = self.bitcast(flipped, self.dtype)
            found = self.map("sub", found, self.like(found, _lowest(key, self.dtype.bits) ^ signs))
        elif key.kind is Kind.INT:
            found = self.bitcast(self.cast(x, _SIGNED[self.dtype.bits]), self.dtype)
            if not signs:
                found = self.map("xor", found, self.like(found, self.sign))
        else:
            found = self.cast(bits, self.dtype)
            found = self.map("xor", found, self.like(found, signs)) if signs else found
        assert t.lanes(found.type) == lanes
        return found if self.how.descending else self.map("not", found)

    def equals(self, rank: Value) -> tuple[Value, Value]:
        """The lowest and the highest rank of keys that are equal to one of a rank."""
        key = self.how.key
        if not key.is_float:
            return rank, rank
        lowest, most = _lowest(key, self.dtype.bits), self.largest
        nan = _ordered(_infinity(key), key.bits) + 1 - lowest & most
        zero = -lowest & most
        falls = self.how.descending
        # Of zeros -0 is the lower one.
        nans = (nan, most) if falls else (0, most - nan)
        zeros = (zero - 1, zero) if falls else (most - zero, most + 1 - zero)
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
        block_size = COLUMN * self.lanes
        places = range(0, block_size, self.lanes)
        vector = VecType(self.lanes, self.how.key)
        signs = self.sign if self.is_compared else 0

        def best(a: Value, b: Value) -> Value:
            return self.select(self.is_less(a, b), b, a) if signs else self.map("max", a, b)

        def put(at: Value, found: Value) -> None:
            found = self.map("xor", found, self.words(signs)) if signs else found
            self.store(self.tops, self.map("shr", at, self.index(3)), found)

        def block(at: Value) -> None:
            given = [
                self.emit(t.Load(self.keys, self.plus(at, k), (), vector, loc=self.loc))
                for k in places
            ]
            ranks = [self.rank(x, signs) for x in given]
            while len(ranks) > 1:
                half = len(ranks) // 2
                ranks = [best(ranks[k], ranks[k + half]) for k in range(half)]
            put(at, ranks[0])

        def rest() -> None:
            def step(at: Value, carried: Values) -> Values:
                present = self.below(self.map("sub", self.n, at))
                none = self.emit(t.Const(0, vector, loc=self.loc))
                x = self.emit(t.Load(self.keys, at, (present, none), vector, loc=self.loc))
                rank = self.select(present, self.rank(x, signs), self.words(signs))
                return [best(carried[0], rank)]

            put(whole, self.carry(whole, self.n, self.lanes, [self.words(signs)], step)[0])

        zero = self.index(0)
        self.carry(zero, whole, block_size, (), lambda at, _: _none(block(at)))
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
        sort = network_name(self.how.tops, count // self.lanes)
        self.call(sort, scratch, zero, zero, self.index(count))
        last = self.map("sub", self.index(count), self.until)
        rank = self.emit(t.Load(scratch, last, (), self.one, loc=self.loc))
        self.limit, self.tie = self.equals(rank)

    def choose_columns(self, size: Value) -> Value:
        """Columns that meet the limit, by the places of their first elements, in front of the tops,
        and how many they are."""
        limit, tie = self.splat(self.limit), self.splat(self.tie)
        lanes = self.emit(t.Lanes(self.lanes, self.dtype, loc=self.loc))

        def step(at: Value, carried: Values) -> Values:
            (count,) = carried
            tops = self.load(self.tops, at)
            mask = self.map("ge", tops, limit)
            first = self.splat(self.cast(self.times(at, COLUMN), self.dtype))
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
        few = self.few
        limit = self.emit(t.Splat(self.limit, few, loc=self.loc))
        lanes = self.emit(t.Lanes(few, I64.dtype, loc=self.loc))
        steps = self.map("mul", lanes, self.like(lanes, self.lanes))
        n = self.emit(t.Splat(self.n, few, loc=self.loc))
        none = self.emit(t.Const(0, VecType(few, self.how.key), loc=self.loc))

        def read(first: Value, state: Values) -> Values:
            filled, last, best = state
            for part in range(0, COLUMN, few):
                at = self.plus(first, part * self.lanes)
                places = self.map("add", self.emit(t.Splat(at, few, loc=self.loc)), steps)
                present = self.map("lt", places, n)
                given = (present, none)
                x = self.emit(t.Gather(self.keys, places, given, self.how.key, loc=self.loc))
                meets = self.map("and", present, self.map("ge", self.rank(x), limit))
                meets = self.append(x, places, meets, [filled, last, best])
                filled = self.map("add", filled, self.count(meets))

            def less() -> Values:
                self.sort(filled)
                return [self.until, *self.last_of_all()]

            is_full = self.map("gt", filled, self.index(self.how.room - COLUMN))
            return self.choose(is_full, less, lambda: [filled, last, best])

        def step(at: Value, state: Values) -> Values:
            number = self.emit(t.Load(self.tops, at, (), self.one, loc=self.loc))
            is_tie = self.map("ge", number, self.word(TIE))
            number = self.map("and", number, self.word(TIE - 1))
            first = self.cast(number, I64.dtype)
            is_late = self.map("and", is_tie, self.map("gt", first, state[1]))
            return self.choose(is_late, lambda: list(state), lambda: list(read(first, state)))

        init = [zero, self.index(2**62), self.emit(t.Const(2**64 - 1, WORD, loc=self.loc))]
        self.finish(self.carry(zero, columns, 1, init, step)[0])

    def append(self, x: Value, places: Value, meets: Value, state: Values) -> Value:
        """Appends the words of some elements that are before the last one; which these are."""
        filled, _, best = state
        (word,) = self.coder.pack([x], places)
        under = self.map("lt", word, self.emit(t.Splat(best, self.few, loc=self.loc)))
        meets = self.map("and", meets, under)
        self.store(self.first, filled, self.compress(word, meets))
        return meets

    def last_of_all(self) -> list[Value]:
        """The place of the last one of as many sorted words as are asked for, and that word."""
        where = self.plus(self.until, -1)
        best = self.emit(t.Load(self.first, where, (), WORD, loc=self.loc))
        place = self.map("shr", best, self.emit(t.Const(1, WORD, loc=self.loc)))
        if not self.how.key.is_float:
            place = best
        mask = self.emit(t.Const(2**PLACE_BITS - 1, WORD, loc=self.loc))
        return [self.cast(self.map("and", place, mask), I64.dtype), best]

    def finish(self, count: Value) -> None:
        """Leaves the words of the first places."""
        self.sort(count)

    def sort(self, count: Value) -> None:
        """Sorts the words."""
        zero = self.index(0)
        sort = network_name(self.how.words, self.how.room // self.few)
        self.call(sort, self.first, zero, zero, count)


class _SelectPairs(_Select):
    """Builds the function for keys of 64 bits, whose places are beside them.

    They are sorted by two digits, as in `schedule/digit_sort.py`; the word of the lower one has
    room for the place of an element and for where it stands:

        low half of the key | place, 26 bits | number, 6 bits
        high half of the key | number in that order
    """

    __slots__ = ("scratch",)

    def prepare(self) -> None:
        """Makes room for keys, places and words."""
        self.scratch = self.emit(t.Alloca(uint64, 4 * PAIRS, loc=self.loc))

    def append(self, x: Value, places: Value, meets: Value, state: Values) -> Value:
        """Appends the keys and places of some elements that are before the last one."""
        filled, last, best = state
        key = self.coder.encoded(x, self.how.key)
        places = self.bitcast(places, uint64)
        most, until = self.splat(best), self.splat(self.cast(last, uint64))
        tied = self.map("and", self.map("eq", key, most), self.map("lt", places, until))
        meets = self.map("and", meets, self.map("or", self.map("lt", key, most), tied))
        for value, where in ((key, KEYS), (places, PLACES)):
            self.store(self.scratch, self.plus(filled, where), self.compress(value, meets))
        return meets

    def last_of_all(self) -> list[Value]:
        """The place and the key of the last one of as many as are asked for."""
        key, place = [
            self.emit(t.Load(self.scratch, self.plus(self.until, at - 1), (), WORD, loc=self.loc))
            for at in (KEYS, PLACES)
        ]
        return [self.cast(place, I64.dtype), key]

    def sort(self, count: Value) -> None:
        """Sorts keys and places."""
        low, high = self.words(2**32 - 1), self.words(2**64 - 2**32)
        half, six = self.words(32), self.words(6)
        lanes = self.emit(t.Lanes(self.lanes, uint64, loc=self.loc))

        def get(at: Value, where: int) -> Value:
            there = [self.below(self.map("sub", count, at))]
            return self.load(self.scratch, self.plus(at, where), there)

        def pick(at: Value, numbers: Value, where: int) -> Value:
            there = self.below(self.map("sub", count, at))
            numbers = self.map("and", numbers, self.words(PAIRS - 1))
            index = self.bitcast(self.map("add", numbers, self.words(where)), I64.dtype)
            given = (there, self.words(0))
            return self.emit(t.Gather(self.scratch, index, given, uint64, loc=self.loc))

        def put(at: Value, where: int, value: Value) -> None:
            self.store(self.scratch, self.plus(at, where), value)

        def number(at: Value) -> Value:
            return self.map("add", self.splat(self.cast(at, uint64)), lanes)

        def lower(at: Value, _: Values) -> Values:
            place = self.map("shl", get(at, PLACES), six)
            word = self.map("or", self.map("shl", get(at, KEYS), half), place)
            put(at, FOUND, self.map("or", word, number(at)))
            return ()

        def upper(at: Value, _: Values) -> Values:
            word = get(at, FOUND)
            put(at, LOWER, word)
            key = self.map("and", pick(at, word, KEYS), high)
            put(at, FOUND, self.map("or", key, number(at)))
            return ()

        def part(at: Value, _: Values) -> Values:
            word = get(at, FOUND)
            other = pick(at, word, LOWER)
            key = self.map("or", self.map("and", word, high), self.map("shr", other, half))
            put(at, KEYS, key)
            put(at, PLACES, self.map("shr", self.map("and", other, low), six))
            return ()

        start = self.index(FOUND)
        for step in (lower, upper, part):
            if step is not lower:
                name = network_name(self.how.words, PAIRS // self.few)
                self.call(name, self.scratch, start, start, count)
            self.carry(self.index(0), count, self.lanes, (), step)

    def finish(self, count: Value) -> None:
        """Leaves the first places."""
        self.sort(count)

        def step(at: Value, _: Values) -> Values:
            places = self.load(self.scratch, self.plus(at, PLACES))
            self.store(self.first, at, places)
            return ()

        self.carry(self.index(0), self.until, self.lanes, (), step)


class _Code:
    """Emits the code of words on vectors of some lanes."""

    def __init__(self, build: sorting.Code, lanes: int) -> None:
        self.build = build
        self.lanes = lanes

    def const(self, value: Number, dtype: DType) -> Value:
        """A constant."""
        return self.build.emit(t.Const(value, VecType(self.lanes, dtype), loc=self.build.loc))

    def map(self, fn: str, *args: Value) -> Value:
        """A row of the scalar table."""
        return self.build.map(fn, *args)

    def cast(self, x: Value, dtype: DType) -> Value:
        """A conversion."""
        return self.build.cast(x, dtype)

    def bitcast(self, x: Value, dtype: DType) -> Value:
        """The same bits as another dtype."""
        return self.build.bitcast(x, dtype)


_SIGNED = {16: int16, 32: int32, 64: int64}


def _ordered(bits: int, width: int) -> int:
    """The bits of a float as a signed integer that compares as it does."""
    if bits >> (width - 1):
        return (bits - 2**width) ^ (2 ** (width - 1) - 1)
    return bits


def _infinity(key: DType) -> int:
    """Its bits."""
    return int(np.asarray(np.inf, key.np).view(f"u{key.itemsize}"))


def _lowest(key: DType, bits: int) -> int:
    """What stands for -inf among integers of so many bits."""
    return _ordered(_infinity(key) | 2 ** (key.bits - 1), key.bits) % 2**bits


def _none(_: None) -> Values:
    return ()
