"""Networks that sort a few vectors of words.

The words are a matrix with a vector in each row. Its columns are sorted by exchanges of whole
vectors (Batcher's odd-even merge), all at once; then neighbouring columns are merged in pairs, the
second one backwards, then pairs of columns, and so on (Batcher's bitonic merge). So few steps
compare words of one vector. In the end the matrix is turned, as its words are in order column by
column.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from tessera.ir.core import Func, Value
from tessera.target import ops as t
from tessera.target.compress_ops import Permute
from tessera.target.function import I64, PTR, Values
from tessera.target.sorting.code import ROWS, Code, Kind


def network_name(kind: Kind, rows: int, whole: bool = False) -> str:
    """The function for up to so many vectors."""
    what = "fill" if whole and not kind.has_masks else "sort"
    return kind.name(f"{what}_{rows * kind.lanes}")


def networks(kind: Kind, sizes: Sequence[int], whole: bool = False) -> dict[str, Func]:
    """The functions that sort up to so many vectors, and what these call, by name.

    Args:
        kind: what is sorted.
        sizes: vectors, powers of two.
        whole: whether what is behind the words in the last vector may be anything.
    """
    found: dict[str, Func] = {}
    for rows in sizes:
        if rows > ROWS[-1]:
            found.update(networks(kind, (rows // 2,)))
        func = network(kind, rows, whole) if rows <= ROWS[-1] else _twice(kind, rows)
        found[func.name] = func
    return found


def network(kind: Kind, rows: int, whole: bool = False) -> Func:
    """`sort(words, source, target, n)`: sorts n words from place `source` on to `target`."""
    c = Code(kind, (PTR, I64, I64, I64), ("words", "source", "target", "n"))
    ptr, source, target, n = c.args
    masks = c.below_rows(n, rows)
    places = [c.index(k * c.lanes) for k in range(rows)]
    there = c.at(ptr, source)
    given = [c.load(there, at, [m]) for at, m in zip(places, masks, strict=True)]
    there, found = c.at(ptr, target), sorted_rows(c, given)
    if c.has_masks:
        for at, x, mask in zip(places, found, masks, strict=True):
            c.store(there, at, x, [mask])
    else:
        _store_some(c, there, found, n, [] if whole else masks)
    return c.func(network_name(kind, rows, whole))


def _twice(kind: Kind, rows: int) -> Func:
    """The same for so many vectors that registers are too few, with room for all of them at
    `target`: both halves are sorted, every word of the first one meets the one of the second that
    is as far from its end, the smaller one goes to the first half, and both are sorted again."""
    c = Code(kind, (PTR, I64, I64, I64), ("words", "source", "target", "n"))
    ptr, source, target, n = c.args
    name, half = network_name(kind, rows // 2), rows // 2 * c.lanes
    size, back = c.index(half), range(c.lanes - 1, -1, -1)

    def sort(source: Value, n: Value, at: int = 0) -> None:
        c.call(name, ptr, c.plus(source, at), c.plus(target, at), n)

    def meet(at: Value, _: Values) -> Values:
        there = c.at(ptr, target)
        other = c.map("sub", c.index(2 * half - c.lanes), at)
        mask = c.below(c.map("sub", n, other))
        y = c.load(there, other, [mask])
        given = _comparable(c, [c.load(there, at), c.shuffle(y, y, back)])
        x, y = _comparable(c, _exchanged(c, *given))
        c.store(there, at, x)
        c.store(there, other, y)
        return ()

    def both() -> None:
        sort(source, size)
        sort(source, c.map("sub", n, size), half)
        c.carry(c.index(0), size, c.lanes, (), meet)
        sort(target, size)
        sort(target, size, half)

    c.when(c.map("le", n, size), lambda: sort(source, n), both)
    return c.func(network_name(kind, rows))


def _store_some(c: Code, there: Value, found: Values, n: Value, masks: Values) -> None:
    """Stores the first n words of some vectors, and uses a mask once at most; without masks all of
    the last vector."""
    zero = c.index(0)
    if len(found) == 1:
        is_whole = c.map("eq", n, c.index(c.lanes))

        def store(masks: Values = ()) -> None:
            c.store(there, zero, found[0], masks)

        if masks:
            c.when(is_whole, store, lambda: store(masks))
        else:
            store()
        return
    near = c.emit(t.Alloca(c.dtype, len(found) * c.lanes, loc=c.loc))
    for k, x in enumerate(found):
        c.store(near, c.index(k * c.lanes), x)
    whole = c.map("and", n if masks else c.plus(n, c.lanes - 1), c.index(-c.lanes))

    def copy(at: Value, _: Values) -> Values:
        c.store(there, at, c.load(near, at))
        return ()

    c.carry(zero, whole, c.lanes, (), copy)
    if not masks:
        return
    mask = c.below(c.map("sub", n, whole))
    c.when(c.map("lt", whole, n), lambda: c.store(there, whole, c.load(near, whole), [mask]))


def dispatch(c: Code, kind: Kind, n: Value, call: Callable[[str], None]) -> None:
    """Calls `call` with the smallest network for n words."""

    def choose(rows: Sequence[int]) -> None:
        name = network_name(kind, rows[0])
        if len(rows) == 1:
            call(name)
            return
        is_enough = c.map("le", n, c.index(rows[0] * kind.lanes))
        c.when(is_enough, lambda: call(name), lambda: choose(rows[1:]))

    choose(kind.networks)


def sorted_rows(c: Code, rows: Values) -> list[Value]:
    """The words of some vectors, a power of two, in order."""
    return _comparable(c, _sorted(c, _comparable(c, rows)))


def _comparable(c: Code, rows: Values) -> list[Value]:
    """Words as they are exchanged, from those in memory, or the other way."""
    return [c.signed(x) if c.is_compared else x for x in rows]


def _sorted(c: Code, rows: Values) -> list[Value]:
    found = list(rows)
    for low, high in _odd_even(len(rows)):
        found[low], found[high] = _exchanged(c, found[low], found[high])
    lanes = c.emit(t.Lanes(c.lanes, c.dtype, loc=c.loc))
    if len(rows) == 1:
        # Of one vector each step waits for the one before: loops would only be in the way.
        half = 1
        while half < c.lanes:
            bits = [half >> k for k in range(1, half.bit_length())]
            for flip, bit in ((2 * half - 1, half), *zip(bits, bits, strict=True)):
                found = _across(c, found, found, lanes, c.word(flip), c.word(bit))
            half *= 2
        return found

    def columns(state: Values) -> Values:
        """Merges blocks of `half` columns, each in order, in pairs."""
        half, *rows = state
        flip = c.map("sub", c.map("add", half, half), c.word(1))
        rows = _across(c, rows, list(reversed(rows)), lanes, flip, half)

        def within(state: Values) -> Values:
            bit, *rows = state
            return [_halved(c, bit), *_across(c, rows, rows, lanes, bit, bit)]

        def goes_on(state: Values) -> Value:
            return c.map("gt", state[0], c.word(0))

        _, *rows = c.repeat([_halved(c, half), *rows], goes_on, within)
        step = len(rows) // 2
        while step:
            for k in [k for k in range(len(rows)) if not k & step]:
                rows[k], rows[k + step] = _exchanged(c, rows[k], rows[k + step])
            step //= 2
        return [c.map("add", half, half), *rows]

    def is_left(state: Values) -> Value:
        return c.map("lt", state[0], c.word(c.lanes))

    _, *found = c.repeat([c.word(1), *found], is_left, columns)
    return _turned(c, found)


def _halved(c: Code, x: Value) -> Value:
    return c.map("shr", x, c.word(1))


def _across(
    c: Code, rows: Values, others: Values, lanes: Value, flip: Value, bit: Value
) -> list[Value]:
    """Lanes after they have met those of other vectors whose numbers differ in the bits of `flip`:
    the smaller word where `bit`, the highest of these, is 0."""
    index = c.map("xor", lanes, c.splat(flip))
    upper = c.map("ne", c.map("and", lanes, c.splat(bit)), c.words(0))
    found: list[Value] = []
    for x, other in zip(rows, others, strict=True):
        met = c.emit(Permute(other, index, loc=c.loc))
        if c.is_compared:
            found.append(c.select(c.map("xor", c.is_less(x, met), upper), x, met))
            continue
        low, high = _exchanged(c, x, met)
        found.append(c.select(upper, high, low))
    return found


def _exchanged(c: Code, a: Value, b: Value) -> tuple[Value, Value]:
    if c.is_compared:
        is_less = c.is_less(a, b)
        return c.select(is_less, a, b), c.select(is_less, b, a)
    return c.map("min", a, b), c.map("max", a, b)


def _odd_even(count: int) -> Iterator[tuple[int, int]]:
    """The exchanges of an odd-even merge sort of a power of two."""
    size = 1
    while size < count:
        step = size
        while step >= 1:
            for start in range(step % size, count - step, 2 * step):
                for k in range(start, min(start + step, count - step)):
                    if k // (2 * size) == (k + step) // (2 * size):
                        yield k, k + step
            step //= 2
        size *= 2


def _turned(c: Code, rows: Values) -> list[Value]:
    """The words column by column.

    Bits of a word's place are exchanged between the number of its vector and that of its lane, two
    by two in turns of a loop: LLVM looks for what shuffles of several steps may be together, which
    took it longer than all the rest.
    """
    if len(rows) < c.lanes:
        return _rotated(c, rows)
    part = 128 // c.dtype.bits
    half, bits = part // 2, part.bit_length() - 1
    # Neighbours of a part of 128 bits: the bit of the vector becomes the last one of the lane.
    near = [2 * half * (k // part) + k % part // 2 + k % 2 * c.lanes for k in range(c.lanes)]
    # Parts: it becomes the first one of the lane.
    far = [
        2 * part * (k // part % 2) + k % part + k // (2 * part) * c.lanes for k in range(c.lanes)
    ]

    def met(given: Values, bit: int, lanes: Sequence[int], by: int) -> list[Value]:
        found = list(given)
        for k in [k for k in range(len(given)) if not k >> bit & 1]:
            a, b = given[k], given[k + (1 << bit)]
            found[k] = c.shuffle(a, b, lanes)
            found[k + (1 << bit)] = c.shuffle(a, b, [lane + by for lane in lanes])
        return found

    def turn(_: Value, given: Values) -> list[Value]:
        if bits > 1:
            given = met(given, 1, near, half)
        given = met(given, bits, far, part)
        order = range(len(given))
        if bits > 1:
            order = [_exchanged_bits(k, 0) for k in order]
        return [given[_exchanged_bits(k, bits)] for k in order]

    if c.lanes == 2 * part:
        for bit in reversed(range(bits)):
            rows = met(rows, bit, near, half)
        rows = met(rows, bits, far, part)
    else:
        rows = met(rows, 0, near, half) if bits == 1 else rows
        rows = c.carry(c.index(0), c.index(2), 1, rows, turn)
    more = len(rows) // c.lanes
    return [rows[k // more + c.lanes * (k % more)] for k in range(len(rows))]


def _exchanged_bits(number: int, at: int) -> int:
    """A number whose bits `at` and `at + 1` have changed places."""
    differ = (number >> at ^ number >> at + 1) & 1
    return number ^ (differ * 3 << at)


def _rotated(c: Code, rows: Values) -> list[Value]:
    """The words of fewer vectors than these have lanes, column by column.

    Bits of a word's place, the number of its vector and then that of its lane, are rotated one by
    one until those of the vector are the last.
    """
    half, found = len(rows) // 2, list(rows)
    mixed = [k // 2 + c.lanes * (k % 2) for k in range(2 * c.lanes)]
    for _ in range(len(rows).bit_length() - 1):
        pairs = list(zip(found[:half], found[half:], strict=True))
        parts = (mixed[: c.lanes], mixed[c.lanes :])
        found = [c.shuffle(a, b, part) for a, b in pairs for part in parts]
    return found
