"""Sorts on a CPU with wide vectors of elements that need two words or more, as 64-bit keys with
their places do: by one digit of 32 bits after the other, the lowest one first.

    schedule.sort(%x -> %y), digits d0 (low) and d1 of each key
    ==>
    schedule.nest: %words[.., i] = d0 << 32 | i;  %d1[.., i] = d1
    schedule.sort_words(%words)
    schedule.nest: p = low half of %words[.., i];  %places[.., i] = p
                   %words[.., i] = %d1[.., p] << 32 | i
    schedule.sort_words(%words)
    schedule.nest: %y[.., i] = %x[.., %places[.., low half of %words[.., i]]]

A word has the digit of an element and where it stood after the digits below, so words differ and
what is equal keeps its order. Both sorts are calls of the same functions.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tessera.dtypes import DType, int64, uint32, uint64
from tessera.ir.core import Block, Op, Value, scalar_dtype
from tessera.ir.intexpr import Dim, sym
from tessera.schedule import ops, sort_ops
from tessera.schedule.copying import Names
from tessera.schedule.split_sort import Asked, NestCode
from tessera.schedule.types import Axis, BufType, buffer_type
from tessera.schedule.words import Coder, Layout, key_bits

DIGIT = 32
"""Bits of a digit."""

MOST = 4
"""Digits of an element. More take as long as a merge sort, and longer to compile."""


def digits_of(keys: Sequence[DType]) -> int:
    """How many digits elements with such keys have; 0 where these are too many."""
    if any(dtype.is_complex for dtype in keys):
        return 0
    count = -(-sum(map(key_bits, keys)) // DIGIT)
    return count if count <= MOST else 0


def sort_by_digits(
    register: int, asked: Asked, numbers: Sequence[Value], names: Names
) -> ops.Kernel:
    """The kernel of such a sort.

    Args:
        register: bits of a vector register.
        asked: what is asked of the sort.
        numbers: perhaps the buffer by which threads share a row.
        names: for new axes.
    """
    op = asked.op
    count = buffer_type(op.inputs[0]).shape[op.axis]
    until = buffer_type(op.outputs[0]).shape[op.axis]
    digits = _Digits.of(op, names, register)

    def sort(until: Dim) -> Op:
        return sort_ops.SortWords(
            digits.words, numbers, count, until, register=register, loc=op.loc
        )

    code: list[Op] = [digits.pack(op.inputs[: op.num_keys])]
    for k in range(len(digits.upper)):
        code += [sort(count), digits.advance(k)]
    code += [sort(until), digits.collect()]
    temps = [digits.words, *digits.upper, *digits.places, *numbers]
    what = f"words of {len(digits.upper) + 1} digits and places are sorted in vectors, one by one"
    return asked.kernel(code, temps, what)


@dataclass(frozen=True, slots=True)
class _Digits:
    """The nests of one sort, and its buffers, rows along their last axis.

    Attributes:
        op: the sort.
        names: for new axes.
        words: digits and places.
        upper: the digits above the lowest one, from low to high.
        places: one or two buffers, in turn those of elements by the digits so far.
    """

    op: ops.Sort
    names: Names
    words: Value
    upper: tuple[Value, ...]
    places: tuple[Value, ...]

    @classmethod
    def of(cls, op: ops.Sort, names: Names, register: int) -> _Digits:
        types = [buffer_type(v) for v in op.inputs[: op.num_keys]]
        others = tuple([dim for k, dim in enumerate(types[0].shape) if k != op.axis])
        count = types[0].shape[op.axis]
        upper = [
            Value(BufType((*others, count), uint32))
            for _ in range(digits_of([type.dtype for type in types]) - 1)
        ]
        places = [Value(BufType((*others, count), uint32)) for _ in upper[:2]]
        room = sort_ops.room_of_row(count, uint64, register)
        words = Value(BufType((*others, room), uint64))
        return cls(op, names, words, tuple(upper), tuple(places))

    def pack(self, keys: Sequence[Value]) -> ops.Nest:
        """The nest that makes words of the lowest digits, and the other digits."""
        op = self.op
        axes, index = self._axes(buffer_type(keys[0]).shape)
        code = NestCode()
        found = [code.add(ops.Load(v, (), tuple(index), loc=op.loc)) for v in keys]
        dtypes = tuple([buffer_type(v).dtype for v in keys])
        coder = Coder(code, Layout.of(dtypes, 0), op.descending)
        parts = [coder.encoded(x, dtype) for x, dtype in zip(found, dtypes, strict=True)]
        digits = list(_cut(code, parts, [key_bits(dtype) for dtype in dtypes]))
        at = self._across(index)
        self._store_word(code, digits[0], at)
        for buffer, digit in zip(self.upper, digits[1:], strict=True):
            code.ops.append(ops.Store(buffer, digit, (), at, loc=op.loc))
        return self._nest(axes, code)

    def advance(self, k: int) -> ops.Nest:
        """The nest between the sorts by digit k and by the next one."""
        axes, at = self._axes(buffer_type(self.upper[0]).shape)
        code = NestCode()
        place = self._place(code, at, k)
        code.ops.append(
            ops.Store(self.places[k % 2], code.cast(place, uint32), (), tuple(at), loc=self.op.loc)
        )
        self._store_word(code, self._picked(code, self.upper[k], place, at), at)
        return self._nest(axes, code)

    def collect(self) -> ops.Nest:
        """The nest that moves elements to where their words are."""
        op = self.op
        axes, index = self._axes(buffer_type(op.outputs[0]).shape)
        code = NestCode()
        place = self._place(code, self._across(index), len(self.upper))
        inner = tuple([sym("$0") if d == op.axis else e for d, e in enumerate(index)])
        for k, target in op.moved():
            value = code.cast(place, buffer_type(target).dtype)
            if k >= 0:
                value = code.add(ops.Load(op.inputs[k], (place,), inner, loc=op.loc))
            code.ops.append(ops.Store(target, value, (), tuple(index), loc=op.loc))
        return self._nest(axes, code)

    def _axes(self, shape: Sequence[Dim]) -> tuple[list[Axis], list[Dim]]:
        """Axes of a nest for each element of a shape, and the indices of one."""
        axes = [Axis(self.names.fresh("i"), dim) for dim in shape]
        index: list[Dim] = [0 if axis.extent == 1 else sym(axis.name) for axis in axes]
        return [axis for axis in axes if axis.extent != 1], index

    def _across(self, index: Sequence[Dim]) -> tuple[Dim, ...]:
        """The indices of an element of the operands as those of its row and place."""
        axis = self.op.axis
        return (*[e for k, e in enumerate(index) if k != axis], index[axis])

    def _place(self, code: NestCode, at: Sequence[Dim], k: int) -> Value:
        """The place (i64) of the element whose word is the one there, after the sort by digit k."""
        word = code.add(ops.Load(self.words, (), tuple(at)))
        place = code.cast(code.cast(word, uint32), int64)
        if not k:
            return place
        return code.cast(self._picked(code, self.places[(k - 1) % 2], place, at), int64)

    def _picked(self, code: NestCode, buffer: Value, place: Value, at: Sequence[Dim]) -> Value:
        """What a buffer has at a place of a row."""
        return code.add(ops.Load(buffer, (place,), (*at[:-1], sym("$0")), loc=self.op.loc))

    def _store_word(self, code: NestCode, digit: Value, at: Sequence[Dim]) -> None:
        place = code.cast(code.add(ops.Index((), at[-1])), uint64)
        high = code.map("shl", code.cast(digit, uint64), code.const(DIGIT, uint64))
        word = code.map("or", high, place)
        code.ops.append(ops.Store(self.words, word, (), tuple(at), loc=self.op.loc))

    def _nest(self, axes: Sequence[Axis], code: NestCode) -> ops.Nest:
        return ops.Nest(tuple(axes), body=Block([], code.ops, ()), loc=self.op.loc)


def _cut(code: NestCode, parts: Sequence[Value], widths: Sequence[int]) -> Iterator[Value]:
    """The digits (u32) of unsigned integers that follow each other, from low to high."""
    for low in range(0, sum(widths), DIGIT):
        digit: Value | None = None
        end = 0
        for part, width in zip(reversed(parts), reversed(widths), strict=True):
            start, end = end, end + width
            if end <= low or start >= low + DIGIT:
                continue
            value = part
            if start < low:
                value = code.map("shr", value, code.const(low - start, scalar_dtype(value)))
            value = code.cast(value, uint32)
            if start > low:
                value = code.map("shl", value, code.const(start - low, uint32))
            digit = value if digit is None else code.map("or", digit, value)
        assert digit is not None
        yield digit
