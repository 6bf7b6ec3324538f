"""Equations with small matrices, a vector of right-hand sides at a time.

Each unknown that is found is subtracted, times its column of the matrix, from all equations that
follow (Golub and Van Loan, "Matrix Computations", algorithms 3.1.3 and 3.1.4).
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

from tessera.dtypes import DType, int32
from tessera.ir.core import Func, Value
from tessera.ir.types import ScalarType
from tessera.target import ops as t
from tessera.target.function import I64, PTR, Values
from tessera.target.linalg.code import WRITTEN_OUT, Code, Index, Matrix, lanes_for
from tessera.target.machine import Machine


@dataclass(frozen=True, slots=True)
class Triangle:
    """Half of a matrix.

    Attributes:
        lower: which one.
        transposed: whether the equations are those of its transpose.
        unit: whether the diagonal is taken to be 1.
    """

    lower: bool
    transposed: bool
    unit: bool


def blocks_of(m: int, dtype: DType, machine: Machine) -> int:
    """How many vectors m right-hand sides are."""
    return -(-m // lanes_for(m, dtype, machine))


@functools.lru_cache(maxsize=64)
def triangular_solve(n: int, m: int, dtype: DType, machine: Machine, which: Triangle) -> Func:
    """`triangular_solve(a, b, x, lo, hi)` for the vectors lo to hi - 1 of right-hand sides."""
    c = _code(n, m, dtype, machine, ("a", "b", "x"))
    a, b, x, lo, hi = c.args
    work = c.scratch(n, c.lanes)

    def body(number: Value) -> None:
        matrix, at, inside = _place(c, m, number)
        known, found = [Matrix(c.moved(p, matrix, n * m), m) for p in (b, x)]

        def read(i: Index) -> None:
            c.put_row(work, i, 0, c.row(known, i, at, inside))

        def write(i: Index) -> None:
            c.put_row(found, i, at, c.row(work, i), inside)

        c.each(0, n, read)
        _substitute(c, Matrix(c.moved(a, matrix, n * n), n), work, n, which)
        c.each(0, n, write)

    c.span(lo, hi, body)
    how = "".join([str(int(f)) for f in (which.lower, which.transposed, which.unit)])
    return c.func(f"triangular_solve_{n}_{m}_{how}_{dtype}")


@functools.lru_cache(maxsize=64)
def lu_solve(n: int, m: int, dtype: DType, machine: Machine, transposed: bool) -> Func:
    """`lu_solve(a, lu, perm, b, x, lo, hi)` for the vectors lo to hi - 1 of right-hand sides; `a`
    is not read."""
    c = _code(n, m, dtype, machine, ("a", "lu", "perm", "b", "x"))
    _, lu, perm, b, x, lo, hi = c.args
    work = c.scratch(n, c.lanes)
    lower, upper = Triangle(True, transposed, True), Triangle(False, transposed, False)

    def body(number: Value) -> None:
        matrix, at, inside = _place(c, m, number)
        known, found = [Matrix(c.moved(p, matrix, n * m), m) for p in (b, x)]
        factors = Matrix(c.moved(lu, matrix, n * n), n)
        order = Matrix(c.moved(perm, matrix, n, int32), 1)

        def row_of(i: Index) -> Value:
            found = t.Load(order.ptr, c.place(order, i), (), ScalarType(int32), loc=c.loc)
            return c.cast(c.emit(found), I64.dtype)

        def read(i: Index) -> None:
            # L U X = P B, or U^T L^T (P X) = B.
            row = i if transposed else row_of(i)
            c.put_row(work, i, 0, c.row(known, row, at, inside))

        def write(i: Index) -> None:
            row = row_of(i) if transposed else i
            c.put_row(found, row, at, c.row(work, i), inside)

        c.each(0, n, read)
        for which in (upper, lower) if transposed else (lower, upper):
            _substitute(c, factors, work, n, which)
        c.each(0, n, write)

    c.span(lo, hi, body)
    return c.func(f"lu_solve_{n}_{m}_{int(transposed)}_{dtype}")


def _code(n: int, m: int, dtype: DType, machine: Machine, names: tuple[str, ...]) -> Code:
    types = (*[PTR] * len(names), I64, I64)
    lanes = lanes_for(m, dtype, machine)
    return Code(dtype, lanes, machine.fma, n <= WRITTEN_OUT, types, (*names, "lo", "hi"))


def _place(c: Code, m: int, number: Value) -> tuple[Value, Index, Values]:
    """The matrix of a vector, its first column, and which lanes are right-hand sides."""
    blocks = -(-m // c.lanes)
    if blocks == 1:
        return number, 0, () if m == c.lanes else (c.compared("lt", m),)
    matrix = c.map("trunc_div", number, c.index(blocks))
    at = c.times(c.map("rem", number, c.index(blocks)), c.lanes)
    left = c.map("sub", c.index(m), at)
    return matrix, at, () if m % c.lanes == 0 else (c.compared("lt", left),)


def _substitute(c: Code, a: Matrix, work: Matrix, n: int, which: Triangle) -> None:
    """Solves the equations in place."""
    forward = which.lower is not which.transposed

    def step(count: Index) -> None:
        if forward:
            i, lo, hi = count, c.after(count), n
        elif isinstance(count, int):
            i = hi = n - 1 - count
            lo = 0
        else:
            i = hi = c.map("sub", c.index(n - 1), count)
            lo = 0
        x = c.row(work, i)
        if not which.unit:
            x = c.map("div", x, c.filled(c.one(a, i, i)))
            c.put_row(work, i, 0, x)
        x = c.map("neg", x)

        def subtract(k: Index) -> None:
            by = c.one(a, i, k) if which.transposed else c.one(a, k, i)
            c.put_row(work, k, 0, c.fma(c.filled(by), x, c.row(work, k)))

        c.each(lo, hi, subtract)

    c.each(0, n, step)
