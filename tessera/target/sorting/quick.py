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
never need, words are divided by their bits, the highest one first, so that there are at most as
many steps more as a word has bits.
"""

from __future__ import annotations

from functools import partial

from tessera.ir.core import Func, Value
from tessera.target import ops as t
from tessera.target.function import I64, PTR, Values
from tessera.target.sorting.code import ROWS, Code, Kind
from tessera.target.sorting.network import dispatch, network_name, networks

UNROLL = 8
"""Vectors that are divided at a time; half as many where masks have no registers."""

STEPS = 60
"""Steps that good pivots never need."""

FRAME = 4
"""Numbers of what waits: its place, the place beside it, how much it is, and the steps left."""


def sort_functions(kind: Kind) -> dict[str, Func]:
    """`sort(words, source, home, beside, n, until)`, and what it calls, by name. Of places from
    `until` on nobody asks what is there."""
    funcs = [divide(kind), pivot(kind), bit(kind), equals(kind), quick(kind)]
    return {**networks(kind, kind.networks), **{f.name: f for f in funcs}}


def sort_name(kind: Kind) -> str:
    """The function that sorts."""
    return kind.name_of_all("sort")


def divide(kind: Kind) -> Func:
    """`divide(words, found, source, home, beside, n, pivot)`: words below the pivot to `home`, the
    others to `beside`; `found` gets how many are below."""
    c = Code(
        kind,
        (PTR, PTR, I64, I64, I64, I64, Code(kind, (), ()).one),
        ("words", "found", "source", "home", "beside", "n", "pivot"),
    )
    ptr, found, source, home, beside, n, one = c.args
    limit, lanes, unroll = c.splat(one), c.lanes, UNROLL if c.has_masks else UNROLL // 2
    limit = limit if c.has_masks else c.signed(limit)
    start = c.at(ptr, source)

    def is_low(x: Value) -> Value:
        return c.map("lt", x, limit) if c.has_masks else c.is_less(c.signed(x), limit)

    # Carried are the places where the next words go. Were they made of the counter and how many are
    # below, LLVM would look for the best of many ways to have all addresses of a turn.
    def vectors(at: Value, carried: Values, rows: int = unroll) -> Values:
        low, high = carried
        # All are read first: what is written may lie where the last ones are.
        given = [c.load(start, c.plus(at, k * lanes)) for k in range(rows)]
        masks = [is_low(x) for x in given]
        for x, mask in zip(given, masks, strict=True):
            if c.has_masks:
                # What is written lies in two lines, and a core waits for each that is far.
                c.fetch(ptr, c.plus(low, rows * lanes))
                c.fetch(ptr, c.plus(high, rows * lanes))
            c.store(ptr, low, c.compress(x, mask))
            c.store(ptr, high, c.compress(x, c.map("not", mask)))
            count = c.count(mask)
            low, high = c.map("add", low, count), c.map("sub", c.plus(high, lanes), count)
        return [low, high]

    def rest(at: Value, carried: Values) -> Values:
        low, high = carried
        present = c.below(c.map("sub", n, at))
        x = c.load(start, at, [present])
        under = is_low(x)
        below, above = (
            c.map("and", present, under), c.map("and", present, c.map("not", under))
        )  # fmt: skip
        fewer, more = c.count(below), c.count(above)
        c.store(ptr, low, c.compress(x, below), [c.below(fewer)])
        c.store(ptr, high, c.compress(x, above), [c.below(more)])
        return [c.map("add", low, fewer), c.map("add", high, more)]

    zero, size = c.index(0), unroll * lanes
    whole = c.map("sub", n, c.map("and", n, c.index(size - 1)))
    carried = c.carry(zero, whole, size, [home, beside], vectors)
    if not c.has_masks:
        # Without masks, which take long there, as far as there are whole vectors: what is stored
        # behind their words has been read, or is room.
        first, whole = whole, c.map("and", n, c.index(-lanes))
        carried = c.carry(first, whole, lanes, carried, partial(vectors, rows=1))
    low, _ = c.carry(whole, n, lanes, carried, rest)
    c.store(found, zero, c.map("sub", low, home))
    return c.func(kind.name("divide"))


def pivot(kind: Kind) -> Func:
    """`pivot(words, found, source, n)`: a word that is likely to be in the middle, of at least nine
    vectors, to the place `kind.lanes // 2` of `found`, which has room for a vector."""
    c = Code(kind, (PTR, PTR, I64, I64), ("words", "found", "source", "n"))
    ptr, found, source, n = c.args
    start, step = c.at(ptr, source), c.map("shr", c.plus(n, -c.lanes), c.index(3))
    given = [c.load(start, c.times(step, k)) for k in range(9)]
    while len(given) > 1:
        given = [_median(c, *given[k : k + 3]) for k in range(0, len(given), 3)]
    zero = c.index(0)
    c.store(found, zero, given[0])
    c.call(network_name(kind, ROWS[0]), found, zero, zero, c.index(c.lanes))
    return c.func(kind.name("pivot"))


def pivot_of(c: Code, kind: Kind, ptr: Value, found: Value, source: Value, n: Value) -> Value:
    """Calls `pivot`; its word."""
    c.call(kind.name("pivot"), ptr, found, source, n)
    return pivot_at(c, kind, found)


def pivot_at(c: Code, kind: Kind, found: Value) -> Value:
    """The word that `pivot` has left."""
    return c.emit(t.Load(found, c.index(kind.lanes // 2), (), c.one, loc=c.loc))


def _median(c: Code, x: Value, y: Value, z: Value) -> Value:
    """The one in the middle, lane by lane."""
    low, high = c.map("min", x, y), c.map("max", x, y)
    return c.map("max", low, c.map("min", high, z))


def quick(kind: Kind) -> Func:
    """The sort itself; see `sort_functions`."""
    names = ("words", "source", "home", "beside", "n", "until")
    c = Code(kind, (PTR, I64, I64, I64, I64, I64), names)
    ptr, source, home, beside, n, until = c.args
    # What waits halves the steps that are left, or the range of the words.
    depth = STEPS + kind.dtype.bits + 2
    stack = c.emit(t.Alloca(I64.dtype, FRAME * depth, loc=c.loc))
    count_at = c.emit(t.Alloca(I64.dtype, 1, loc=c.loc))
    word_at = c.emit(t.Alloca(kind.dtype, kind.lanes, loc=c.loc))
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

        is_good = c.map("gt", steps, zero)
        c.when(
            is_good,
            lambda: c.call(kind.name("pivot"), ptr, word_at, source, n),
            lambda: c.call(kind.name("bit"), ptr, word_at, source, steps),
        )
        word = pivot_at(c, kind, word_at)
        fewer = c.plus(steps, -1)
        c.call(kind.name("divide"), ptr, count_at, source, home, beside, n, word)
        count = c.load_index(count_at, zero)

        def equal() -> Values:
            """The pivot is the smallest word, and all are beside."""
            c.call(kind.name("equals"), ptr, count_at, home, beside, n, word)
            count = c.load_index(count_at, zero)
            there = c.map("add", home, count)
            return [beside, there, beside, c.map("sub", n, count), fewer, top]

        def two() -> Values:
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


def equals(kind: Kind) -> Func:
    """`equals(words, found, home, beside, n, pivot)`: of the words that are `beside`, none of them
    below the pivot, those that are equal to it to `home`, the others further on in front of each
    other; `found` gets how many are equal."""
    names = ("words", "found", "home", "beside", "n", "pivot")
    c = Code(kind, (PTR, PTR, I64, I64, I64, Code(kind, (), ()).one), names)
    ptr, found, home, beside, n, word = c.args

    def whole() -> None:
        """There is no larger word, and no smaller one: all go home."""
        c.call(kind.name("divide"), ptr, found, beside, beside, home, n, word)
        c.store(found, c.index(0), n)

    def rest() -> None:
        more = c.map("add", word, c.word(1))
        c.call(kind.name("divide"), ptr, found, beside, home, beside, n, more)

    c.when(c.map("eq", word, c.word(c.largest)), whole, rest)
    return c.func(kind.name("equals"), is_rare=True)


def bit(kind: Kind) -> Func:
    """`bit(words, found, source, steps)`: the pivot that divides words whose first bits are equal
    by their next one, or, where there is none, the word that all of them are; to where `pivot`
    leaves it."""
    c = Code(kind, (PTR, PTR, I64, I64), ("words", "found", "source", "steps"))
    ptr, found, source, steps = c.args
    word, zero = c.emit(t.Load(ptr, source, (), c.one, loc=c.loc)), c.index(0)
    at = c.plus(steps, c.dtype.bits - 1)
    none = c.map("lt", at, zero)
    by = c.cast(c.select(none, zero, at), c.dtype)
    upper = c.map("shl", c.map("or", c.map("shr", word, by), c.word(1)), by)
    c.store(found, c.index(kind.lanes // 2), c.select(none, word, upper))
    return c.func(kind.name("bit"), is_rare=True)
