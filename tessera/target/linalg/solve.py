"""Equations with small matrices, a vector of right-hand sides at a time.

Each unknown that is found is subtracted, times its column of the matrix, from all equations that
follow (Golub and Van Loan, "Matrix Computations", algorithms 3.1.3 and 3.1.4).
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass

from tessera.dtypes import DType, int32
from tessera.ir.core import Func, Value
from tessera.target.function import I64, Values
from tessera.target.linalg.code import Code, Index, Matrix, lanes_for
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
    c = Code(dtype, machine, m, n, ("a", "b", "x"))
    _solve(c, n, m, c.args, (which,))
    how = "".join([str(int(f)) for f in (which.lower, which.transposed, which.unit)])
    return c.func(f"triangular_solve_{n}_{m}_{how}_{dtype}")


@functools.lru_cache(maxsize=64)
def lu_solve(n: int, m: int, dtype: DType, machine: Machine, transposed: bool) -> Func:
    """`lu_solve(a, lu, perm, b, x, lo, hi)` for the vectors lo to hi - 1 of right-hand sides; `a`
    is not read."""
    c = Code(dtype, machine, m, n, ("a", "lu", "perm", "b", "x"))
    _, lu, perm, *others = c.args
    lower, upper = Triangle(True, transposed, True), Triangle(False, transposed, False)
    halves = (upper, lower) if transposed else (lower, upper)
    _solve(c, n, m, (lu, *others), halves, perm)
    return c.func(f"lu_solve_{n}_{m}_{int(transposed)}_{dtype}")


def _solve(
    c: Code, n: int, m: int, args: Values, halves: Sequence[Triangle], perm: Value | None = None
) -> None:
    """Solves equations with one half of a matrix after the other.

    Args:
        c: what builds the function.
        n: rows of the matrix.
        m: right-hand sides.
        args: the matrix, the right-hand sides, the solution, the first vector and the end.
        halves: which.
        perm: the order in which right-hand sides are read, or written if the halves are transposed.
    """
    a, b, x, lo, hi = args
    work = c.scratch(n, c.lanes)
    is_read = perm is not None and not halves[0].transposed

    def body(number: Value) -> None:
        matrix, at, inside = _place(c, m, number)
        known, found = [Matrix(c.moved(p, matrix, n * m), m) for p in (b, x)]
        factors = Matrix(c.moved(a, matrix, n * n), n)
        order = None if perm is None else Matrix(c.moved(perm, matrix, n, int32), 1)

        def row_of(i: Index, is_moved: bool) -> Index:
            if order is None or not is_moved:
                return i
            return c.cast(c.number_of(order, i), I64.dtype)

        def read(i: Index) -> None:
            # L U X = P B, or U^T L^T (P X) = B.
            c.put_row(work, i, 0, c.row(known, row_of(i, is_read), at, inside))

        def write(i: Index) -> None:
            c.put_row(found, row_of(i, not is_read), at, c.row(work, i), inside)

        c.each(0, n, read)
        for which in halves:
            _substitute(c, factors, work, n, which)
        c.each(0, n, write)

    c.span(lo, hi, body)


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
