"""Sorting networks on tiles of words."""

from __future__ import annotations

from collections.abc import Sequence

from tessera.dtypes import DType, bool_, uint32
from tessera.ir.core import Value
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

    def last(self, where: Value, words: Sequence[Value]) -> list[Value]:
        """The words where the condition holds, else ones that come after all others."""
        found: list[Value] = []
        for word in words:
            dtype = tile_type(word).dtype
            found.append(self.em.select(where, word, self.em.const(2**dtype.bits - 1, dtype)))
        return found


class Network:
    """Emits sorting networks on tiles of words.

    Attributes:
        shape: of the tiles.
        axis: the dim along which they are sorted.
    """

    def __init__(self, em: Emitter, shape: Shape, axis: int) -> None:
        self.em = em
        self.shape = shape
        self.axis = axis

    def sorted(self, words: Sequence[Value]) -> list[Value]:
        """Sorts along the axis: runs of 1, 2, 4, ... elements are merged, of which the second one
        is read backwards (Batcher, "Sorting networks and their applications", 1968)."""
        size = 1
        while size < self.shape[self.axis]:
            size *= 2
            words = self.exchanged(words, size - 1, size // 2)
            words = self.merged(words, size // 2)
        return list(words)

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
        takes = em.map("xor", precedes(em, others, words), self.upper(bit))
        return [em.select(takes, b, a) for a, b in zip(words, others, strict=True)]

    def upper(self, bit: int) -> Value:
        """Where a bit of the place in the tile is 1."""
        em = self.em
        line = tuple([n if k == self.axis else 1 for k, n in enumerate(self.shape)])
        place = em.cast(em.pure(t.Iota, line, self.axis), uint32)
        found = em.map("ne", em.map("and", place, em.const(bit, uint32)), em.const(0, uint32))
        assert tile_type(found).dtype is bool_
        return em.broadcast(found, self.shape)


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
