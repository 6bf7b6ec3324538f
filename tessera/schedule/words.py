"""Words: unsigned integers that compare as the elements of a sort do.

A word holds the keys of an element, the first one in its highest bits, and in its lowest bits the
place of the element, so that no two words are equal and the order is stable. What does not fit one
word goes into further ones, which are compared if the earlier ones are equal.

A key becomes an unsigned integer of its width: the sign bit of an integer is flipped, and so are
all bits of a negative float; -0 becomes 0, and NaN the largest number. Descending flips all bits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from tessera.dtypes import (
    DType,
    Kind,
    float16,
    int8,
    int64,
    uint8,
    uint16,
    uint32,
    uint64,
)
from tessera.ir.intexpr import Dim
from tessera.ir.scalar import Number

T = TypeVar("T")

PLACE_BITS = 31
"""Bits of a place in a row; a row of unknown length has no more places."""

FIRST_ZERO = 2**31 - 1
"""The smaller one of the integers of 32 bits of -0 and 0, where these differ by one."""

UNSIGNED = {8: uint8, 16: uint16, 32: uint32, 64: uint64}


class Code(Protocol[T]):
    """What writes or computes scalar code on values of type T."""

    def const(self, value: Number, dtype: DType) -> T:
        """A constant."""
        ...

    def map(self, fn: str, *args: T) -> T:
        """A row of the scalar table."""
        ...

    def cast(self, x: T, dtype: DType) -> T:
        """A conversion."""
        ...

    def bitcast(self, x: T, dtype: DType) -> T:
        """The same bits as another dtype."""
        ...


@dataclass(frozen=True, slots=True)
class Part:
    """A run of bits of a word.

    Attributes:
        word: which word.
        shift: bits of the word below it.
        bits: how many it has.
    """

    word: int
    shift: int
    bits: int


@dataclass(frozen=True, slots=True)
class Layout:
    """Where everything is in the words of an element.

    Attributes:
        keys: dtypes of the keys.
        dtypes: of the words, the first one first.
        parts: by key.
        place: of the element in its row.
        zero: a bit that says that the only key is -0; None where there is none.
        signed_zeros: whether -0 comes before 0.
    """

    keys: tuple[DType, ...]
    dtypes: tuple[DType, ...]
    parts: tuple[Part, ...]
    place: Part
    zero: Part | None
    signed_zeros: bool = False

    @classmethod
    def alone(cls, key: DType) -> Layout:
        """A word for a key that is all there is of an element. -0 comes before 0."""
        bits = key_bits(key)
        word = uint32 if bits <= 32 else uint64
        return cls((key,), (word,), (Part(0, 0, bits),), Part(0, 0, 0), None, key.is_float)

    @classmethod
    def places(cls, keys: Sequence[DType]) -> Layout:
        """A word for the place of an element alone."""
        return cls(tuple(keys), (uint64,), (), Part(0, 0, PLACE_BITS), None)

    @classmethod
    def of(cls, keys: Sequence[DType], place_bits: int) -> Layout:
        """The words for keys of some dtypes, and places of so many bits."""
        flag = int(len(keys) == 1 and keys[0].is_float)
        widths = [key_bits(dtype) for dtype in keys]
        used: list[int] = []
        for bits in (*widths, place_bits + flag):
            if not used or used[-1] + bits > 64:
                used.append(0)
            used[-1] += bits
        dtypes = tuple([uint32 if bits <= 32 else uint64 for bits in used])
        parts: list[Part] = []
        word, top = 0, dtypes[0].bits
        for bits in widths:
            if dtypes[word].bits - top + bits > used[word]:
                word += 1
                top = dtypes[word].bits
            top -= bits
            parts.append(Part(word, top, bits))
        last = len(dtypes) - 1
        zero = Part(last, 0, 1) if flag else None
        return cls(tuple(keys), dtypes, tuple(parts), Part(last, flag, place_bits), zero)

    @property
    def holds_keys(self) -> bool:
        """Whether keys can be had back from their words."""
        is_exact = self.zero is not None or self.signed_zeros
        return is_exact or (
            bool(self.parts) and not any(dtype.is_float for dtype in self.keys)
        )


def has_places(count: Dim) -> bool:
    """Whether words have room for the places of a row of so many elements."""
    return not isinstance(count, int) or count <= 1 << PLACE_BITS


def _fits(layout: Layout, count: Dim) -> bool:
    """Whether words have the places of a row of so many elements, if they have any."""
    return not layout.place.bits or has_places(count)


def one_word(
    keys: Sequence[DType], others: int, count: Dim, wide: bool = False
) -> Layout | None:
    """The word of each element, where one holds its keys and, unless there is nothing else to be
    moved, its place. Args are those of `layout_of`, and whether places have all their bits.
    """
    if any(dtype.is_complex for dtype in keys):
        return None
    if others:
        layout = None if wide else _narrow(keys, count)
        layout = layout or Layout.of(keys, PLACE_BITS)
    elif len(keys) == 1:
        layout = Layout.alone(keys[0])
    else:
        layout = Layout.of(keys, 0)
        layout = layout if layout.holds_keys else Layout.of(keys, PLACE_BITS)
    return layout if len(layout.dtypes) == 1 and _fits(layout, count) else None


def _narrow(keys: Sequence[DType], count: Dim) -> Layout | None:
    """A word of 32 bits, of which two are sorted while one of 64 is, if it has room for places in
    rows of so many elements."""
    if not isinstance(count, int):
        return None
    layout = Layout.of(keys, max((count - 1).bit_length(), 1))
    return layout if layout.dtypes == (uint32,) else None


MAX_WORDS = 2
"""Words of an element that a CPU moves at once."""


def layout_of(keys: Sequence[DType], others: int, count: Dim) -> Layout | None:
    """The words that a CPU sorts.

    Args:
        keys: what is compared.
        others: how many more values are moved.
        count: elements of a row.

    Returns:
        The words; None where a permutation is sorted instead.
    """
    if any(dtype.is_complex for dtype in keys):
        return None
    layout = Layout.of(keys, PLACE_BITS)
    if len(layout.dtypes) > 1 and not others and layout.zero is None:
        bare = Layout.of(keys, 0)
        layout = bare if bare.holds_keys else layout
    return layout if len(layout.dtypes) <= MAX_WORDS and _fits(layout, count) else None


def key_bits(dtype: DType) -> int:
    """Bits of the integer that a key becomes."""
    return max(dtype.bits, 16 if dtype.is_float else 8)


class Coder(Generic[T]):
    """Packs and unpacks words.

    Args:
        code: writes the code.
        layout: of the words.
        descending: whether large keys come first.
    """

    def __init__(self, code: Code[T], layout: Layout, descending: bool) -> None:
        self.code = code
        self.layout = layout
        self.descending = descending

    def pack(self, keys: Sequence[T], place: T) -> list[T]:
        """The words of elements with these keys and places."""
        code, layout = self.code, self.layout
        pieces: list[tuple[Part, T]] = []
        for k, (part, key) in enumerate(zip(layout.parts, keys, strict=True)):
            pieces.append((part, self._encoded(key, layout.keys[k], not layout.signed_zeros)))
        if layout.place.bits:
            pieces.append((layout.place, place))
        if layout.zero is not None:
            key, bits = self._pattern(keys[0], layout.keys[0])
            sign = code.const(2 ** (bits - 1), UNSIGNED[bits])
            pieces.append((layout.zero, code.cast(code.map("eq", key, sign), uint8)))
        words: dict[int, T] = {}
        for part, value in pieces:
            dtype = layout.dtypes[part.word]
            moved = code.cast(value, dtype)
            if part.shift:
                moved = code.map("shl", moved, code.const(part.shift, dtype))
            old = words.get(part.word)
            words[part.word] = moved if old is None else code.map("or", old, moved)
        return [words[k] for k in range(len(layout.dtypes))]

    def encoded(self, x: T, dtype: DType) -> T:
        """A key as an unsigned integer of its width."""
        return self._encoded(x, dtype)

    def ordered(self, x: T) -> T:
        """The only key as an unsigned integer in which -0 comes before 0."""
        return self._encoded(x, self.layout.keys[0], False)

    def unordered(self, word: T) -> T:
        """The only key from such an integer."""
        return self._decoded(word, self.layout.keys[0])

    def first_zero(self, x: T) -> T:
        """An unsigned integer that is 0 for zeros of the sign that comes first, and for nothing
        else, of the only key, a float."""
        pattern, bits = self._pattern(x, self.layout.keys[0])
        first = 0 if self.descending else 1 << (bits - 1)
        return self.code.map("xor", pattern, self.code.const(first, UNSIGNED[bits]))

    def negative_zero(self) -> T:
        """The integer of 32 bits of -0 in which it comes before 0."""
        return self.code.const(FIRST_ZERO + self.descending, uint32)

    def place(self, words: Sequence[T]) -> T:
        """The places of elements, i64."""
        return self.code.cast(self._take(words, self.layout.place), int64)

    def key(self, words: Sequence[T], k: int) -> T:
        """A key of elements."""
        code, layout = self.code, self.layout
        dtype = layout.keys[k]
        found = self._decoded(self._take(words, layout.parts[k]), dtype)
        if layout.zero is None:
            return found
        zero = code.const(0, layout.dtypes[layout.zero.word])
        flag = code.map("ne", self._take(words, layout.zero), zero)
        return code.map("select", flag, code.const(-0.0, dtype), found)

    def _take(self, words: Sequence[T], part: Part) -> T:
        """The bits of a part."""
        code, word, dtype = self.code, words[part.word], self.layout.dtypes[part.word]
        if part.shift:
            word = code.map("shr", word, code.const(part.shift, dtype))
        if part.shift + part.bits < dtype.bits:
            word = code.map("and", word, code.const(2**part.bits - 1, dtype))
        return word

    def _pattern(self, x: T, dtype: DType) -> tuple[T, int]:
        """The bits of a float, and how many."""
        bits = key_bits(dtype)
        wide = x if dtype.bits == bits else self.code.cast(x, float16)
        return self.code.bitcast(wide, UNSIGNED[bits]), bits

    def _encoded(self, x: T, dtype: DType, is_equal: bool = True) -> T:
        """A key as an unsigned integer that compares as it does; whether -0 is equal to 0."""
        code, bits = self.code, key_bits(dtype)
        unsigned = UNSIGNED[bits]
        ones, sign = code.const(2**bits - 1, unsigned), code.const(2 ** (bits - 1), unsigned)
        if dtype.is_float:
            pattern, _ = self._pattern(x, dtype)
            zero = code.const(0, unsigned)
            if is_equal:
                pattern = code.map("select", code.map("eq", pattern, sign), zero, pattern)
            flip = code.map("select", code.map("ge", pattern, sign), ones, sign)
            found = code.map("xor", pattern, flip)
            found = code.map("select", code.map("isnan", x), ones, found)
        elif dtype.kind is Kind.INT:
            x = code.cast(x, int8) if dtype.bits < 8 else x
            found = code.map("xor", code.bitcast(x, unsigned), sign)
        else:
            found = code.cast(x, unsigned)
        return code.map("xor", found, ones) if self.descending else found

    def _decoded(self, word: T, dtype: DType) -> T:
        """A key from its unsigned integer; a zero is positive."""
        code, bits = self.code, key_bits(dtype)
        unsigned = UNSIGNED[bits]
        ones, sign = code.const(2**bits - 1, unsigned), code.const(2 ** (bits - 1), unsigned)
        x = code.cast(word, unsigned)
        x = code.map("xor", x, ones) if self.descending else x
        if dtype.is_bool:
            return code.map("ne", x, code.const(0, unsigned))
        if dtype.is_float:
            flip = code.map("select", code.map("ge", x, sign), sign, ones)
            wide = dtype if dtype.bits == bits else float16
            return code.cast(code.bitcast(code.map("xor", x, flip), wide), dtype)
        if dtype.kind is Kind.INT:
            signed = dtype if dtype.bits == bits else int8
            return code.cast(code.bitcast(code.map("xor", x, sign), signed), dtype)
        return code.cast(x, dtype)
