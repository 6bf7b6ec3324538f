"""QR of small matrices by Householder reflections, one column after the other (Golub and Van Loan,
"Matrix Computations", algorithms 5.1.1 and 5.2.1), with LAPACK's signs."""

from __future__ import annotations

import functools

from tessera.dtypes import DType
from tessera.ir.core import Func, Value
from tessera.target.function import Values
from tessera.target.linalg.code import Code, Index, Matrix
from tessera.target.linalg.parts import copy, from_column, identity, work_of
from tessera.target.machine import Machine


@functools.lru_cache(maxsize=64)
def qr(m: int, n: int, columns: int, dtype: DType, machine: Machine) -> Func:
    """`qr(source, q, r, lo, hi)` for the matrices lo to hi - 1.

    Args:
        m: rows of matrices.
        n: their columns.
        columns: those of Q, and rows of R.
        dtype: of elements.
        machine: the CPU.
    """
    c = Code(dtype, machine, max(n, columns), max(m, n), ("source", "q", "r"))
    source, q, r, lo, hi = c.args
    work, factors = work_of(c, m, n)
    basis, _ = work_of(c, m, columns)
    steps = min(m, n)

    def body(number: Value) -> None:
        copy(c, Matrix(c.moved(source, number, m * n), n), work, m, n)
        c.each(0, steps, lambda k: _reflect(c, work, factors, (m, n), k))
        _put_upper(c, work, Matrix(c.moved(r, number, columns * n), n), (columns, n))
        identity(c, basis, m, columns)

        def back(k: Index) -> None:
            last = steps - 1
            step = last - k if isinstance(k, int) else c.map("sub", c.index(last), k)
            _apply(c, work, factors, basis, (m, columns), step)

        c.each(0, steps, back)
        copy(c, basis, Matrix(c.moved(q, number, m * columns), columns), m, columns)

    c.span(lo, hi, body)
    return c.func(f"qr_{m}_{n}_{columns}_{dtype}")


def _reflect(c: Code, work: Matrix, factors: Matrix, shape: tuple[int, int], k: Index) -> None:
    """Makes column k zero below the diagonal: I - factor v v^T does, of which v, whose element k
    is 1, stays there."""
    m, n = shape
    pivot = c.one(work, k, k)
    zero = c.like(pivot, 0)

    def look(i: Index, most: Values) -> Values:
        return (c.map("max", most[0], c.map("abs", c.one(work, i, k))),)

    # Squares of what is far from 1 would not be numbers.
    (most,) = c.each_with(c.after(k), m, (c.map("abs", pivot),), look)
    unit = c.power(most)
    scale = c.map("div", c.like(unit, 1), unit)

    def add(i: Index, total: Values) -> Values:
        x = c.map("mul", c.one(work, i, k), scale)
        return (c.fma(x, x, total[0]),)

    (total,) = c.each_with(c.after(k), m, (zero,), add)
    is_done = c.map("eq", total, zero)
    scaled = c.map("mul", pivot, scale)
    size = c.map("sqrt", c.fma(scaled, scaled, total))
    found = c.select(c.map("lt", scaled, zero), size, c.map("neg", size))
    factor = c.map("div", c.map("sub", found, scaled), found)
    factor = c.select(is_done, zero, factor)
    c.put_one(factors, k, 0, factor)
    share = c.map("div", c.like(unit, 1), c.map("sub", scaled, found))

    def multiply(i: Index) -> None:
        x = c.one(work, i, k)
        part = c.map("mul", c.map("mul", x, scale), share)
        c.put_one(work, i, k, c.select(is_done, x, part))

    c.each(c.after(k), m, multiply)
    left = c.select(is_done, pivot, c.map("mul", found, unit))

    def columns(first: Index, offset: Index | None) -> None:
        # Without its own column, and those before.
        inside = () if offset is None else (c.compared("gt", offset),)
        _subtract(c, work, factor, (work, first), (k, m), inside)

    from_column(c, k, n, columns)
    c.put_one(work, k, k, left)


def _apply(
    c: Code, work: Matrix, factors: Matrix, basis: Matrix, shape: tuple[int, int], k: Index
) -> None:
    """Applies the reflection of column k to the rows of Q."""
    m, columns = shape
    factor = c.one(factors, k)

    def one(at: Index, _: Values) -> Values:
        _subtract(c, work, factor, (basis, at), (k, m), ())
        return ()

    c.along(columns, (), one)


def _subtract(
    c: Code,
    work: Matrix,
    factor: Value,
    target: tuple[Matrix, Index],
    rows: tuple[Index, int],
    inside: Values,
) -> None:
    """Applies a reflection to one vector of the rows from k on, in some lanes."""
    matrix, at = target
    k, m = rows

    def add(i: Index, total: Values) -> Values:
        return (c.fma(c.filled(c.one(work, i, k)), c.row(matrix, i, at), total[0]),)

    first = c.row(matrix, k, at)
    (total,) = c.each_with(c.after(k), m, (first,), add)
    total = c.map("mul", total, c.filled(factor))
    if inside:
        total = c.select(inside[0], total, c.number(0.0))
    c.put_row(matrix, k, at, c.map("sub", first, total))

    def one(i: Index) -> None:
        by = c.filled(c.map("neg", c.one(work, i, k)))
        c.put_row(matrix, i, at, c.fma(by, total, c.row(matrix, i, at)))

    c.each(c.after(k), m, one)


def _put_upper(c: Code, work: Matrix, target: Matrix, shape: tuple[int, int]) -> None:
    """The upper triangle of a matrix, and zeros below."""
    rows, n = shape

    def one(i: Index) -> None:
        for at, inside in c.columns(n):
            row = c.row(work, i, at)
            above = c.compared("ge", c.after(i, -at))
            c.put_row(target, i, at, c.select(above, row, c.number(0.0)), inside)

    c.each(0, min(rows, n), one)

    def rest(i: Index) -> None:
        for at, inside in c.columns(n):
            c.put_row(target, i, at, c.number(0.0), inside)

    c.each(min(rows, n), rows, rest)
