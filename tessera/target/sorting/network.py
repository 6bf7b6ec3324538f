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


def network_name(kind: Kind, rows: int) -> str:
    """The function for up to so many vectors."""
    return kind.name(f"sort_{rows * kind.lanes}")


def networks(kind: Kind, sizes: Sequence[int] = ROWS) -> dict[str, Func]:
    """The functions that sort up to so many vectors, by name."""
    return {func.name: func for func in [network(kind, rows) for rows in sizes]}


def network(kind: Kind, rows: int) -> Func:
    """`sort(words, source, target, n)`: sorts n words from place `source` on to `target`."""
    c = Code(kind, (PTR, I64, I64, I64), ("words", "source", "target", "n"))
    ptr, source, target, n = c.args
    masks = [c.below(c.plus(n, -row * c.lanes)) for row in range(rows)]
    given = [c.load(ptr, c.plus(source, k * c.lanes), [m]) for k, m in enumerate(masks)]
    for k, (x, mask) in enumerate(zip(sorted_rows(c, given), masks, strict=True)):
        c.store(ptr, c.plus(target, k * c.lanes), x, [mask])
    return c.func(network_name(kind, rows))


def dispatch(c: Code, kind: Kind, n: Value, call: Callable[[str], None]) -> None:
    """Calls `call` with the smallest network for n words."""

    def choose(rows: Sequence[int]) -> None:
        name = network_name(kind, rows[0])
        if len(rows) == 1:
            call(name)
            return
        is_enough = c.map("le", n, c.index(rows[0] * kind.lanes))
        c.when(is_enough, lambda: call(name), lambda: choose(rows[1:]))

    choose(ROWS)


def sorted_rows(c: Code, rows: Values) -> list[Value]:
    """The words of some vectors, a power of two, in order."""
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
        low, high = _exchanged(c, x, c.emit(Permute(other, index, loc=c.loc)))
        found.append(c.select(upper, high, low))
    return found


def _exchanged(c: Code, a: Value, b: Value) -> tuple[Value, Value]:
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


def _turned(c: Code, rows: list[Value]) -> list[Value]:
    """The words column by column.

    Bits of a word's place are exchanged between the number of its vector and that of its lane until
    the vectors are those of the result; the last exchange brings their lanes in order too.
    """
    count, lanes = len(rows), c.lanes
    both = min(count, lanes)
    found, bit = list(rows), 1
    # Bit k of a vector's number meets bit k + shift of the lane.
    shift = (lanes // both).bit_length() - 1
    while bit < both:
        order = _rotated(lanes, shift) if 2 * bit == both else range(lanes)
        lane = bit << shift
        low = [k if not k & lane else lanes + k - lane for k in range(lanes)]
        high = [k + lane if not k & lane else lanes + k for k in range(lanes)]
        for i in [i for i in range(count) if not i & bit]:
            a, b = found[i], found[i + bit]
            found[i] = c.shuffle(a, b, [low[k] for k in order])
            found[i + bit] = c.shuffle(a, b, [high[k] for k in order])
        bit *= 2
    more = count // both
    return [found[k // more + lanes * (k % more)] for k in range(count)]


def _rotated(lanes: int, by: int) -> list[int]:
    """For each lane of the result the one whose lowest bits are its highest."""
    bits = lanes.bit_length() - 1
    return [(k >> (bits - by)) | (k << by) & (lanes - 1) for k in range(lanes)]
