"""Code on matrices whose rows lie in vectors.

Indices are numbers where they are known: then code is written out, without loops.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from tessera.dtypes import DType, finfo, int32, int64
from tessera.ir.core import Value
from tessera.ir.scalar import scalar
from tessera.ir.types import ScalarType, Type
from tessera.target import ops as t
from tessera.target.function import I64, PTR, FunctionBuild, Values
from tessera.target.machine import Machine
from tessera.target.types import VecType

Index: TypeAlias = "int | Value"

WRITTEN_OUT = 4
"""Matrices of up to so many rows have no loops."""

FEW_VECTORS = 4
"""Rows of up to so many vectors have no loops over them."""


def lanes_for(columns: int, dtype: DType, machine: Machine) -> int:
    """The lanes of vectors for rows of so many elements."""
    lanes = 1
    while lanes < min(columns, machine.vector_lanes(dtype.bits)):
        lanes *= 2
    return lanes


@dataclass(frozen=True, slots=True)
class Matrix:
    """Where a matrix is.

    Attributes:
        ptr: its first element.
        pitch: elements from one row to the next.
    """

    ptr: Value
    pitch: int


class Code(FunctionBuild):
    """Builds one function, of arrays and of the first and the last number of what it does.

    Args:
        dtype: of the elements.
        machine: the CPU.
        columns: elements of the rows that vectors hold.
        rows: of the matrices; for few of them loops over known numbers are written out.
        names: of the arrays.

    Attributes:
        lanes: of vectors; 1 stands for scalars.
    """

    __slots__ = ("dtype", "lanes", "type", "written_out")

    def __init__(
        self, dtype: DType, machine: Machine, columns: int, rows: int, names: Sequence[str]
    ) -> None:
        super().__init__((*[PTR] * len(names), I64, I64), (*names, "lo", "hi"), machine.fma)
        self.dtype = dtype
        self.lanes = lanes_for(columns, dtype, machine)
        self.type: Type = VecType(self.lanes, dtype) if self.lanes > 1 else ScalarType(dtype)
        self.written_out = rows <= WRITTEN_OUT

    # --- indices ---

    def value(self, at: Index) -> Value:
        """An index as a value."""
        return self.index(at) if isinstance(at, int) else at

    def after(self, at: Index, by: int = 1) -> Index:
        """An index further on."""
        return at + by if isinstance(at, int) else self.plus(at, by)

    def place(self, matrix: Matrix, row: Index, column: Index = 0) -> Value:
        """Where an element of a matrix is."""
        if isinstance(row, int) and isinstance(column, int):
            return self.index(row * matrix.pitch + column)
        start = self.times(self.value(row), matrix.pitch)
        if isinstance(column, int):
            return self.plus(start, column)
        return self.map("add", start, column)

    # --- loops ---

    def each(self, lo: Index, hi: Index, body: Callable[[Index], None]) -> None:
        """Runs `body` for lo to hi - 1."""

        def step(at: Index, _: Values) -> Values:
            body(at)
            return ()

        self.each_with(lo, hi, (), step)

    def each_with(
        self, lo: Index, hi: Index, init: Values, body: Callable[[Index, Values], Values]
    ) -> Values:
        """Runs `body` for lo to hi - 1, and carries values."""
        if isinstance(lo, int) and isinstance(hi, int) and (self.written_out or hi - lo < 2):
            for at in range(lo, hi):
                init = body(at, init)
            return init
        return self.carry(self.value(lo), self.value(hi), 1, init, body)

    def along(
        self, columns: int, init: Values, body: Callable[[Index, Values], Values]
    ) -> Values:
        """Runs `body` for where each vector of a row begins, and carries values."""
        if columns > FEW_VECTORS * self.lanes:
            return self.carry(self.index(0), self.index(columns), self.lanes, init, body)
        for at in range(0, columns, self.lanes):
            init = body(at, init)
        return init

    # --- memory ---

    def row(self, matrix: Matrix, row: Index, column: Index = 0, inside: Values = ()) -> Value:
        """A vector of a row, zeros in lanes outside."""
        other = (*inside, self.number(0.0)) if inside else ()
        at = self.place(matrix, row, column)
        return self.emit(t.Load(matrix.ptr, at, other, self.type, loc=self.loc))

    def put_row(
        self, matrix: Matrix, row: Index, column: Index, value: Value, inside: Values = ()
    ) -> None:
        """Writes a vector of a row."""
        at = self.place(matrix, row, column)
        self.ops.append(t.Store(matrix.ptr, at, value, tuple(inside), loc=self.loc))

    def one(self, matrix: Matrix, row: Index, column: Index = 0) -> Value:
        """An element."""
        at = self.place(matrix, row, column)
        return self.emit(t.Load(matrix.ptr, at, (), ScalarType(self.dtype), loc=self.loc))

    def put_one(self, matrix: Matrix, row: Index, column: Index, value: Value) -> None:
        """Writes an element."""
        at = self.place(matrix, row, column)
        self.ops.append(t.Store(matrix.ptr, at, value, (), loc=self.loc))

    def number_of(self, order: Matrix, i: Index) -> Value:
        """The i32 at a place of an order of rows."""
        at = self.place(order, i)
        return self.emit(t.Load(order.ptr, at, (), ScalarType(int32), loc=self.loc))

    def scratch(self, rows: int, pitch: int) -> Matrix:
        """Memory of this call."""
        return Matrix(self.emit(t.Alloca(self.dtype, rows * pitch, loc=self.loc)), pitch)

    def rows(self, count: int, columns: int) -> Matrix:
        """Memory of this call for rows of whole vectors."""
        return self.scratch(count, -(-columns // self.lanes) * self.lanes)

    def moved(self, ptr: Value, number: Value, size: int, dtype: DType | None = None) -> Value:
        """Where an array of so many elements begins, that has this number."""
        at = self.times(number, size * (dtype or self.dtype).itemsize)
        return self.emit(t.PtrAdd(ptr, at, loc=self.loc))

    # --- lanes ---

    def number(self, value: float) -> Value:
        """A constant in every lane."""
        return self.emit(t.Const(value, self.type, loc=self.loc))

    def constant(self, value: float) -> Value:
        """A constant."""
        return self.emit(t.Const(value, ScalarType(self.dtype), loc=self.loc))

    def power(self, x: Value) -> Value:
        """The power of two at or below a number that is not negative; the smallest normal one for
        what is smaller."""
        number, fraction = (int32, 23) if self.dtype.bits == 32 else (int64, 52)
        least = self.constant(finfo(self.dtype).smallest_normal)
        bits = self.bitcast(self.map("max", x, least), number)
        exponent = (1 << self.dtype.bits - 1) - (1 << fraction)
        return self.bitcast(self.map("and", bits, self.like(bits, exponent)), self.dtype)

    def total(self, x: Value, how: str = "add") -> Value:
        """All lanes together."""
        return x if self.lanes == 1 else self.emit(t.ReduceLanes(x, scalar(how), loc=self.loc))

    def filled(self, one: Value) -> Value:
        """A scalar in every lane."""
        return one if self.lanes == 1 else self.emit(t.Splat(one, self.lanes, loc=self.loc))

    def compared(self, how: str, with_: Index) -> Value:
        """Which lanes' numbers compare so with a number."""
        if self.lanes == 1:
            return self.map(how, self.index(0), self.value(with_))
        numbers = self.emit(t.Lanes(self.lanes, int64, loc=self.loc))
        if isinstance(with_, int):
            other = self.emit(t.Const(with_, VecType(self.lanes, I64.dtype), loc=self.loc))
        else:
            other = self.emit(t.Splat(with_, self.lanes, loc=self.loc))
        return self.map(how, numbers, other)

    def columns(self, count: int) -> list[tuple[int, tuple[Value, ...]]]:
        """The vectors of rows of so many elements: where each begins, and which lanes are inside,
        if not all are."""
        return [
            (at, () if count - at >= self.lanes else (self.compared("lt", count - at),))
            for at in range(0, count, self.lanes)
        ]
