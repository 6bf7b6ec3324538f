"""Sorting networks on tiles of words."""

from __future__ import annotations

from collections.abc import Sequence

from tessera.dtypes import DType, int64, uint32
from tessera.ir.core import Value
from tessera.ir.scalar import SCALARS
from tessera.schedule.words import Coder, Layout
from tessera.tile import ops as t
from tessera.tile.lowering.emitter import Emitter, Shape
from tessera.tile.ops import Number, tile_type


class TileCode:
    """Emits the code of words on tiles."""

    def __init__(self, em: Emitter) -> None:
        self.em = em

    def const(self, value: Number, dtype: DType) -> Value:
        """A constant."""
        return self.em.const(value, dtype)

    def map(self, fn: str, *args: Value) -> Value:
        """A row of the scalar table."""
        return self.em.map(fn, *args)

    def cast(self, x: Value, dtype: DType) -> Value:
        """A conversion."""
        return self.em.cast(x, dtype)

    def bitcast(self, x: Value, dtype: DType) -> Value:
        """The same bits as another dtype."""
        return x if tile_type(x).dtype is dtype else self.em.pure(t.Bitcast, x, dtype)


class Words:
    """Emits the code of words on tiles of a shape.

    Attributes:
        layout: of the words.
        coder: packs and unpacks them.
        shape: of the tiles.
    """

    def __init__(self, em: Emitter, layout: Layout, descending: bool, shape: Shape) -> None:
        self.em = em
        self.layout = layout
        self.coder = Coder(TileCode(em), layout, descending)
        self.shape = shape

    def pack(self, keys: Sequence[Value], place: Value) -> list[Value]:
        """The words of elements with these keys and places."""
        return [self.em.broadcast(word, self.shape) for word in self.coder.pack(keys, place)]


class Network:
    """Emits sorting networks on tiles of words.

    Attributes:
        shape: of the tiles.
        axis: the dim along which they are sorted.
        near: how many neighbours along it one thread is expected to hold.
    """

    def __init__(self, em: Emitter, shape: Shape, axis: int, near: int = 1) -> None:
        self.em = em
        self.shape = shape
        self.axis = axis
        self.near = near

    def sorted(self, words: Sequence[Value], until: int = 0) -> list[Value]:
        """Sorts along the axis, or runs of some length: runs of 1, 2, 4, ... elements are merged,
        of which the second one is read backwards (Batcher, "Sorting networks and their
        applications", 1968)."""
        size = 1
        while size < (until or self.shape[self.axis]):
            size *= 2
            words = self.exchanged(words, size - 1, size // 2)
            words = self.merged(words, size // 2)
        return list(words)

    def first(self, words: Sequence[Value], keep: int) -> list[Value]:
        """The first `keep` elements, a power of two, in order. Runs of so many are sorted, and the
        better half of each two stays until there is one."""
        shape, at = self.shape, self.axis
        if keep < shape[at]:
            # A thread holds what is compared at last, which lies far apart.
            self.near = 1
        words = self.sorted(words, keep)
        front, back = shape[:at], shape[at + 1 :]
        size = shape[at]
        while size > keep:
            size //= 2
            halves = Network(self.em, (*front, 2, size // keep, keep, *back), at, self.near)
            runs = Network(self.em, (*front, size, *back), at, self.near)
            better = halves.better([self.em.reshape(word, halves.shape) for word in words])
            words = runs.merged([self.em.reshape(word, runs.shape) for word in better], keep)
        return list(words)

    def better(self, words: Sequence[Value]) -> list[Value]:
        """Of a sorted run in each of two halves the elements that come first, not in order: the
        first one of one run meets the last one of the other."""
        em, at = self.em, self.axis
        second = self.upper(1)
        met: list[Value] = []
        for word in words:
            turned = em.pure(t.FlipBits, word, at + 2, self.shape[at + 2] - 1)
            met.append(em.select(second, turned, word))
        found = met
        if len(words) > 1:
            # The least of all words is not that of each: what loses is made the largest.
            others = [em.pure(t.FlipBits, word, at, 1) for word in met]
            loses = precedes(em, others, met)
            found = list[Value]()
            for word in met:
                dtype = tile_type(word).dtype
                found.append(em.select(loses, em.const(2**dtype.bits - 1, dtype), word))
        return [em.pure(t.Reduce, word, SCALARS["min"], at) for word in found]

    def merged(self, words: Sequence[Value], size: int) -> list[Value]:
        """Sorts runs of a size that rise and then fall, or fall and then rise."""
        while size > 1:
            size //= 2
            words = self.exchanged(words, size, size)
        return list(words)

    def exchanged(self, words: Sequence[Value], mask: int, bit: int) -> list[Value]:
        """Elements whose places differ in all bits of the mask, in order: the smaller one where
        the bit is 0."""
        em = self.em
        others = [em.pure(t.FlipBits, word, self.axis, mask) for word in words]
        if len(words) == 1 and tile_type(words[0]).dtype is uint32:
            # The least of two such words is one instruction.
            low, high = [em.map(fn, words[0], others[0]) for fn in ("min", "max")]
            return [em.select(self.upper(bit), high, low)]
        upper = self.upper(bit)
        if mask < self.near:
            # Both elements of a thread ask whether the one at the higher place comes before the
            # other: one comparison.
            pairs = list(zip(words, others, strict=True))
            first = [em.select(upper, b, a) for a, b in pairs]
            second = [em.select(upper, a, b) for a, b in pairs]
            takes = precedes(em, second, first)
        else:
            takes = em.map("xor", precedes(em, others, words), upper)
        return [em.select(takes, b, a) for a, b in zip(words, others, strict=True)]

    def upper(self, bit: int) -> Value:
        """Where a bit of the place in the tile is 1: a tile with one dim for each part of the
        place, so that it is seen to depend on that bit alone."""
        em, at = self.em, self.axis
        front, back = self.shape[:at], self.shape[at + 1 :]
        size = self.shape[at]
        ones = (1,) * len(front), (1,) * len(back)
        line = (*ones[0], 1, 2, 1, *ones[1])
        found = em.map("ne", em.pure(t.Iota, line, at + 1), em.const(0, int64))
        parts = (*ones[0], size // (2 * bit), 2, bit, *ones[1])
        whole = em.reshape(em.broadcast(found, parts), (*ones[0], size, *ones[1]))
        return em.broadcast(whole, self.shape)


def precedes(em: Emitter, a: Sequence[Value], b: Sequence[Value]) -> Value:
    """Whether words come before others."""
    result: Value | None = None
    for x, y in reversed(list(zip(a, b, strict=True))):
        less = em.map("lt", x, y)
        if result is not None:
            less = em.map("or", less, em.map("and", em.map("eq", x, y), result))
        result = less
    assert result is not None
    return result


def last(em: Emitter, where: Value, words: Sequence[Value]) -> list[Value]:
    """The words where the condition holds, else ones that come after all others."""
    found: list[Value] = []
    for word in words:
        dtype = tile_type(word).dtype
        found.append(em.select(where, word, em.const(2**dtype.bits - 1, dtype)))
    return found
