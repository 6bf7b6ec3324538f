"""Quicksort of words, whose steps divide whole vectors (Gueron and Krasnov, "Fast quicksort
implementation using AVX vector instructions", 2016; Bramas, 2017).

A step reads words from one place and appends those below its pivot to where the result is to be,
the others to a place beside it: both may be where it reads, as neither gets ahead of the reading.
So the words of a piece are where they were to be, or beside that, and none is moved back.

    sort(words, source, home, beside, n):  until nothing is left
      n small:  a network, from source to home
      else:     count = divide(source -> home, beside; a pivot)
                the first `count` words wait on a stack, as sort(home, home, beside, count);
                go on with sort(beside, home + count, beside, n - count)

Equal words: where nothing is below the pivot, this is the smallest word, and a second step moves
all that are equal to it to where they belong. Bad pivots: after so many steps as good ones would
never need, the pivot is in the middle of the smallest and the largest word, so that there are at
most as many steps more as a word has bits.
"""

from __future__ import annotations

from tessera.ir.core import Func, Value
from tessera.target import ops as t
from tessera.target.function import I64, PTR, Values
from tessera.target.sorting.code import Code, Kind
from tessera.target.sorting.network import dispatch, networks, sorted_rows

UNROLL = 8
"""Vectors that are divided at a time."""

STEPS = 40
"""Steps that good pivots never need."""

FRAME = 4
"""Numbers of what waits: its place, the place beside it, how much it is, and the steps left."""


def sort_functions(kind: Kind) -> dict[str, Func]:
    """`sort(words, source, home, beside, n, until)`, and what it calls, by name. Of places from
    `until` on nobody asks what is there."""
    funcs = [divide(kind), pivot(kind), middle(kind), quick(kind)]
    return {**networks(kind), **{f.name: f for f in funcs}}


def sort_name(kind: Kind) -> str:
    """The function that sorts."""
    return kind.name("sort")


def divide(kind: Kind) -> Func:
    """`divide(words, found, source, home, beside, n, pivot)`: words below the pivot to `home`, the
    others to `beside`; `found` gets how many are below."""
    c = Code(
        kind,
        (PTR, PTR, I64, I64, I64, I64, Code(kind, (), ()).one),
        ("words", "found", "source", "home", "beside", "n", "pivot"),
    )
    ptr, found, source, home, beside, n, one = c.args
    limit, lanes = c.splat(one), c.lanes

    def vectors(at: Value, carried: Values) -> Values:
        (count,) = carried
        place = c.map("add", source, at)
        # All are read first: what is written may lie where the last ones are.
        given = [c.load(ptr, c.plus(place, k * lanes)) for k in range(UNROLL)]
        masks = [c.map("lt", x, limit) for x in given]
        for k, (x, low) in enumerate(zip(given, masks, strict=True)):
            c.store(ptr, c.map("add", home, count), c.compress(x, low))
            there = c.map("sub", c.map("add", beside, c.plus(at, k * lanes)), count)
            c.store(ptr, there, c.compress(x, c.map("not", low)))
            count = c.map("add", count, c.count(low))
        return [count]

    def rest(at: Value, carried: Values) -> Values:
        (count,) = carried
        present = c.below(c.map("sub", n, at))
        x = c.load(ptr, c.map("add", source, at), [present])
        is_low = c.map("lt", x, limit)
        low = c.map("and", present, is_low)
        high = c.map("and", present, c.map("not", is_low))
        fewer = c.count(low)
        c.store(ptr, c.map("add", home, count), c.compress(x, low), [c.below(fewer)])
        there = c.map("sub", c.map("add", beside, at), count)
        c.store(ptr, there, c.compress(x, high), [c.below(c.count(high))])
        return [c.map("add", count, fewer)]

    zero, size = c.index(0), UNROLL * lanes
    whole = c.map("sub", n, c.map("and", n, c.index(size - 1)))
    carried = c.carry(zero, whole, size, [zero], vectors)
    (count,) = c.carry(whole, n, lanes, carried, rest)
    c.store(found, zero, count)
    return c.func(kind.name("divide"))


def pivot(kind: Kind) -> Func:
    """`pivot(words, found, source, n)`: a word that is likely to be in the middle, of at least nine
    vectors."""
    c = Code(kind, (PTR, PTR, I64, I64), ("words", "found", "source", "n"))
    ptr, found, source, n = c.args
    step = c.map("shr", c.plus(n, -c.lanes), c.index(3))
    places = [c.map("add", source, c.times(step, k)) for k in range(9)]
    given = [c.load(ptr, at) for at in places]
    while len(given) > 1:
        given = [_median(c, *given[k : k + 3]) for k in range(0, len(given), 3)]
    (x,) = sorted_rows(c, given)
    c.store(found, c.index(0), c.emit(t.Extract(x, c.lanes // 2, loc=c.loc)))
    return c.func(kind.name("pivot"))


def _median(c: Code, x: Value, y: Value, z: Value) -> Value:
    """The one in the middle, lane by lane."""
    low, high = c.map("min", x, y), c.map("max", x, y)
    return c.map("max", low, c.map("min", high, z))


def middle(kind: Kind) -> Func:
    """`middle(words, found, source, n)`: half way between the smallest and the largest of at least
    a vector's words; the smallest one only where all are equal."""
    c = Code(kind, (PTR, PTR, I64, I64), ("words", "found", "source", "n"))
    ptr, found, source, n = c.args
    last = c.load(ptr, c.plus(c.map("add", source, n), -c.lanes))

    def body(at: Value, carried: Values) -> Values:
        x = c.load(ptr, c.map("add", source, at))
        return [c.map("min", carried[0], x), c.map("max", carried[1], x)]

    low, high = c.carry(c.index(0), c.plus(n, 1 - c.lanes), c.lanes, [last, last], body)
    least = c.least(low)
    gap = c.map("sub", c.most(high), least)
    half = c.map("shr", gap, c.word(1))
    odd = c.map("and", gap, c.word(1))
    c.store(found, c.index(0), c.map("add", least, c.map("add", half, odd)))
    return c.func(kind.name("middle"))


def quick(kind: Kind) -> Func:
    """The sort itself; see `sort_functions`."""
    names = ("words", "source", "home", "beside", "n", "until")
    c = Code(kind, (PTR, I64, I64, I64, I64, I64), names)
    ptr, source, home, beside, n, until = c.args
    # What waits halves the steps that are left, or the range of the words.
    depth = STEPS + kind.dtype.bits + 2
    stack = c.emit(t.Alloca(I64.dtype, FRAME * depth, loc=c.loc))
    count_at = c.emit(t.Alloca(I64.dtype, 1, loc=c.loc))
    word_at = c.emit(t.Alloca(kind.dtype, 1, loc=c.loc))
    zero = c.index(0)

    def small(state: Values) -> Values:
        """Sorts the words with a network, and takes what waits."""
        source, home, _, n, _, top = state
        dispatch(c, kind, n, lambda name: c.call(name, ptr, source, home, n))
        down = c.plus(top, -FRAME)

        def pop() -> Values:
            frame = [c.load_index(stack, c.plus(down, k)) for k in range(FRAME)]
            return [frame[0], *frame]

        none = [zero, zero, zero, zero, zero]
        return [*c.choose(c.map("ge", down, zero), pop, lambda: none), down]

    def large(state: Values) -> Values:
        source, home, beside, n, steps, top = state
        args = (ptr, word_at, source, n)
        c.when(
            c.map("gt", steps, zero),
            lambda: c.call(kind.name("pivot"), *args),
            lambda: c.call(kind.name("middle"), *args),
        )
        word = c.emit(t.Load(word_at, zero, (), c.one, loc=c.loc))
        c.call(kind.name("divide"), ptr, count_at, source, home, beside, n, word)
        count = c.load_index(count_at, zero)

        def equal() -> Values:
            """The pivot is the smallest word, and all are beside."""

            def whole() -> Values:
                """There is no larger word, and no smaller one: all go home."""
                c.call(kind.name("divide"), ptr, count_at, beside, beside, home, n, word)
                return [home, zero]

            def rest() -> Values:
                more = c.map("add", word, c.word(1))
                c.call(kind.name("divide"), ptr, count_at, beside, home, beside, n, more)
                count = c.load_index(count_at, zero)
                return [c.map("add", home, count), c.map("sub", n, count)]

            place, left = c.choose(c.map("eq", word, c.word(c.largest)), whole, rest)
            return [beside, place, beside, left, steps, top]

        def two() -> Values:
            fewer = c.plus(steps, -1)
            there = c.map("add", home, count)

            def both() -> Values:
                for k, value in enumerate((home, beside, count, fewer)):
                    c.store(stack, c.plus(top, k), value)
                return [beside, there, beside, c.map("sub", n, count), fewer, c.plus(top, FRAME)]

            def first() -> Values:
                return [home, home, beside, count, fewer, top]

            return c.choose(c.map("lt", there, until), both, first)

        return c.choose(c.map("eq", count, zero), equal, two)

    def body(state: Values) -> Values:
        is_small = c.map("le", state[3], c.index(kind.small))
        return c.choose(is_small, lambda: small(state), lambda: large(state))

    init = [source, home, beside, n, c.index(STEPS), zero]
    c.repeat(init, lambda state: c.map("ge", state[5], zero), body)
    return c.func(sort_name(kind))
