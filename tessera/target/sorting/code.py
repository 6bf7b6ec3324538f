"""Code on vectors of words that are sorted: unsigned integers of 32 or 64 bits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tessera.dtypes import DType, int32, int64
from tessera.ir.core import Value
from tessera.ir.types import ScalarType, Type
from tessera.schedule.sort_ops import REGISTER
from tessera.target import ops as t
from tessera.target.compress_ops import Compress, CountTrue
from tessera.target.function import FunctionBuild
from tessera.target.prefetch_ops import Prefetch
from tessera.target.types import VecType

ROWS = (1, 4, 16)
"""Vectors that networks sort; of the largest one half of the registers."""

ENDS = (ROWS[0], ROWS[-1])
"""Those that long rows have."""


@dataclass(frozen=True, slots=True)
class Kind:
    """What is sorted, and on what.

    Attributes:
        dtype: of the words, u32 or u64.
        lanes: of a vector.
        networks: vectors that networks sort. Of a long row hardly a piece is small, and so it has
            none for a few.
    """

    dtype: DType
    lanes: int
    networks: tuple[int, ...] = ROWS

    @property
    def has_masks(self) -> bool:
        """Whether masks have registers (AVX-512). Else a store with a mask may take ten times as
        long as one without (AMD's processors with AVX2), and vectors are compared with signs."""
        return self.lanes * self.dtype.bits == REGISTER

    @property
    def small(self) -> int:
        """Words that a network sorts at most."""
        return self.lanes * self.networks[-1]

    def name(self, what: str) -> str:
        """The name of a function."""
        return f"words_{what}_{self.dtype}"

    def name_of_all(self, what: str) -> str:
        """The name of a function that calls networks."""
        return self.name(what if self.networks != ENDS else f"{what}_long")


class Code(FunctionBuild):
    """Builds one function.

    Args:
        kind: what is sorted.
        types: of the arguments.
        names: of the arguments.
    """

    __slots__ = ("dtype", "has_masks", "lanes", "largest", "numbers", "one", "vector")

    def __init__(self, kind: Kind, types: Sequence[Type], names: Sequence[str]) -> None:
        super().__init__(types, names)
        self.dtype = kind.dtype
        self.lanes = kind.lanes
        self.has_masks = kind.has_masks
        # Of lanes: a mask without a register has the width of what it was found from.
        self.numbers = int64 if kind.dtype.bits == 64 and not kind.has_masks else int32
        self.one = ScalarType(kind.dtype)
        self.vector = VecType(kind.lanes, kind.dtype)
        self.largest = 2**kind.dtype.bits - 1

    def word(self, value: int) -> Value:
        """A constant word."""
        return self.emit(t.Const(value, self.one, loc=self.loc))

    def words(self, value: int) -> Value:
        """A constant in every lane."""
        return self.emit(t.Const(value, self.vector, loc=self.loc))

    def splat(self, x: Value) -> Value:
        """A word in every lane."""
        return self.emit(t.Splat(x, self.lanes, loc=self.loc))

    def shuffle(self, a: Value, b: Value, picks: Sequence[int]) -> Value:
        """Lanes of two vectors."""
        return self.emit(t.Shuffle(a, b, tuple(picks), loc=self.loc))

    # --- order ---

    @property
    def sign(self) -> int:
        """The word of a sign bit alone."""
        return 1 << (self.dtype.bits - 1)

    @property
    def is_compared(self) -> bool:
        """Whether there is no minimum of two vectors, and none but signed words are compared."""
        return self.dtype.bits == 64 and not self.has_masks

    def signed(self, x: Value) -> Value:
        """Words whose comparison as signed integers is that of some words, and the other way."""
        return self.map("xor", x, self.like(x, self.sign))

    def is_less(self, a: Value, b: Value) -> Value:
        """Compares words as signed integers."""
        dtype = int64 if self.dtype.bits == 64 else int32
        return self.map("lt", self.bitcast(a, dtype), self.bitcast(b, dtype))

    # --- masks ---

    def below(self, count: Value) -> Value:
        """The lanes before a place."""
        return self.below_rows(count, 1)[0]

    def below_rows(self, count: Value, rows: int) -> list[Value]:
        """For each of some vectors that follow each other, the lanes before a place."""
        limit = self.emit(t.Splat(self.cast(count, self.numbers), self.lanes, loc=self.loc))
        lanes = self.emit(t.Lanes(self.lanes, self.numbers, loc=self.loc))
        found = [self.map("lt", lanes, limit)]
        for row in range(1, rows):
            places = self.map("add", lanes, self.like(lanes, row * self.lanes))
            found.append(self.map("lt", places, limit))
        return found

    def count(self, mask: Value) -> Value:
        """How many lanes are set."""
        return self.emit(CountTrue(mask, loc=self.loc))

    def compress(self, x: Value, mask: Value) -> Value:
        """The lanes that are set, at the front."""
        return self.emit(Compress(x, mask, loc=self.loc))

    # --- memory: places count words ---

    def at(self, ptr: Value, place: Value) -> Value:
        """A pointer to a place."""
        return self.emit(t.PtrAdd(ptr, self.times(place, self.dtype.itemsize), loc=self.loc))

    def load(self, ptr: Value, at: Value, mask: Sequence[Value] = ()) -> Value:
        """A vector; where a mask says that there is none, the largest word."""
        given = (*mask, self.words(self.largest)) if mask else ()
        return self.emit(t.Load(ptr, at, given, self.vector, loc=self.loc))

    def store(self, ptr: Value, at: Value, x: Value, mask: Sequence[Value] = ()) -> None:
        """Writes a vector or a word."""
        self.ops.append(t.Store(ptr, at, x, tuple(mask), loc=self.loc))

    def fetch(self, ptr: Value, at: Value) -> None:
        """Has the line fetched of a word that is going to be written."""
        offset = self.times(at, self.dtype.itemsize)
        self.ops.append(Prefetch(ptr, offset, 1, is_written=True, loc=self.loc))

    def load_index(self, ptr: Value, at: Value) -> Value:
        """An i64."""
        return self.emit(t.Load(ptr, at, (), t.INDEX, loc=self.loc))

    def call(self, name: str, *args: Value) -> None:
        """Calls a function."""
        self.ops.append(t.Call(args, name, loc=self.loc))
