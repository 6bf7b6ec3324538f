"""Factorizations of small matrices: rows in vectors, one elimination step after the other.

A matrix is copied to memory of the call, whose rows are whole vectors, and is changed there. A step
subtracts multiples of one row from all that follow (Golub and Van Loan, "Matrix Computations",
algorithms 3.4.1 and 4.2.2).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

from tessera.dtypes import DType, int32
from tessera.ir.core import Func, Value
from tessera.ir.types import ScalarType
from tessera.target import ops as t
from tessera.target.function import Values
from tessera.target.linalg.code import Code, Index, Matrix
from tessera.target.linalg.parts import copy, fill, from_column, work_of
from tessera.target.machine import Machine


@functools.lru_cache(maxsize=64)
def lu(m: int, n: int, dtype: DType, machine: Machine) -> Func:
    """`lu(source, factors, perm, lo, hi)` for the matrices lo to hi - 1."""
    c = Code(dtype, machine, n, max(m, n), ("source", "factors", "perm"))
    source, factors, perm, lo, hi = c.args
    work, column = work_of(c, m, n)

    def body(number: Value) -> None:
        here, there = [Matrix(c.moved(p, number, m * n), n) for p in (source, factors)]
        order = Matrix(c.moved(perm, number, m, int32), 1)
        copy(c, here, work, m, n)

        def begin(i: Index) -> None:
            _put_order(c, order, i, c.cast(c.value(i), int32))

        c.each(0, m, begin)

        def step(k: Index) -> None:
            place = _pivot(c, work, m, k)
            a, b = [c.number_of(order, i) for i in (k, place)]
            _put_order(c, order, k, b)
            _put_order(c, order, place, a)
            _eliminate(c, work, column, (m, n), k, place)

        c.each(0, min(m, n), step)
        copy(c, work, there, m, n)

    c.span(lo, hi, body)
    return c.func(f"lu_{m}_{n}_{dtype}")


@functools.lru_cache(maxsize=64)
def det(n: int, dtype: DType, machine: Machine) -> Func:
    """`det(source, result, lo, hi)` for the matrices lo to hi - 1."""

    def start(c: Code) -> Values:
        return (c.emit(t.Const(1.0, ScalarType(dtype), loc=c.loc)),)

    def combine(c: Code, before: Values, pivot: Value) -> Values:
        return (c.map("mul", before[0], pivot),)

    return _by_pivots(("det", 1), n, dtype, machine, start, combine)


@functools.lru_cache(maxsize=64)
def slogdet(n: int, dtype: DType, machine: Machine) -> Func:
    """`slogdet(source, sign, logarithm, lo, hi)` for the matrices lo to hi - 1."""

    def start(c: Code) -> Values:
        return tuple([c.emit(t.Const(x, ScalarType(dtype), loc=c.loc)) for x in (1.0, 0.0)])

    def combine(c: Code, before: Values, pivot: Value) -> Values:
        size, zero = c.map("abs", pivot), c.like(pivot, 0)
        sign = c.select(c.map("eq", pivot, zero), zero, c.map("div", pivot, size))
        return c.map("mul", before[0], sign), c.map("add", before[1], c.map("log", size))

    return _by_pivots(("slogdet", 2), n, dtype, machine, start, combine)


def _by_pivots(
    what: tuple[str, int],
    n: int,
    dtype: DType,
    machine: Machine,
    start: Callable[[Code], Values],
    combine: Callable[[Code, Values, Value], Values],
) -> Func:
    """A function of pivots, by its name and how many numbers it gives: `combine` takes one pivot
    after the other, and the first of its numbers changes its sign with each exchange of rows."""
    name, count = what
    results = [f"result{k}" for k in range(count)]
    c = Code(dtype, machine, n, n, ("source", *results))
    source, *targets, lo, hi = c.args
    work, column = work_of(c, n, n)

    def body(number: Value) -> None:
        copy(c, Matrix(c.moved(source, number, n * n), n), work, n, n)

        def step(k: Index, before: Values) -> Values:
            place = _pivot(c, work, n, k)
            _eliminate(c, work, column, (n, n), k, place)
            found = combine(c, before, c.one(work, k, k))
            moved = c.map("ne", place, c.value(k))
            return c.select(moved, c.map("neg", found[0]), found[0]), *found[1:]

        found = c.each_with(0, n, start(c), step)
        for target, value in zip(targets, found, strict=True):
            c.put_one(Matrix(c.moved(target, number, 1), 1), 0, 0, value)

    c.span(lo, hi, body)
    return c.func(f"{name}_{n}_{dtype}")


def _eliminate(
    c: Code, work: Matrix, column: Matrix, shape: tuple[int, int], k: Index, place: Value
) -> None:
    """Makes column k zero below the diagonal, by the row at `place`, and stores there what rows
    were multiplied by."""
    m, n = shape
    for at in range(0, n, c.lanes):
        a, b = c.row(work, k, at), c.row(work, place, at)
        c.put_row(work, k, at, b)
        c.put_row(work, place, at, a)
    pivot = c.one(work, k, k)
    is_zero = c.map("eq", pivot, c.like(pivot, 0))

    def multiplier(i: Index) -> None:
        # Without a pivot, the column is zero already.
        x = c.one(work, i, k)
        c.put_one(column, i, 0, c.select(is_zero, x, c.map("div", x, pivot)))

    c.each(c.after(k), m, multiplier)

    def subtract(first: Index, offset: Index | None) -> None:
        """From a vector of each row: the first of those that change, or another one."""
        row = c.row(work, k, first)
        own = None
        if offset is not None:
            row = c.select(c.compared("gt", offset), row, c.number(0.0))
            own = c.compared("eq", offset)

        def one(i: Index) -> None:
            by = c.one(column, i)
            found = c.fma(c.filled(c.map("neg", by)), row, c.row(work, i, first))
            if own is not None:
                found = c.select(own, c.filled(by), found)
            c.put_row(work, i, first, found)

        c.each(c.after(k), m, one)

    from_column(c, k, n, subtract)


def _pivot(c: Code, work: Matrix, m: int, k: Index) -> Value:
    """The first row, from k on, whose element in column k is largest."""

    def look(i: Index, best: Values) -> Values:
        size = c.map("abs", c.one(work, i, k))
        more = c.map("gt", size, best[0])
        return c.select(more, size, best[0]), c.select(more, c.value(i), best[1])

    start = (c.map("abs", c.one(work, k, k)), c.value(k))
    return c.each_with(c.after(k), m, start, look)[1]


def _put_order(c: Code, order: Matrix, i: Index, row: Value) -> None:
    c.ops.append(t.Store(order.ptr, c.place(order, i), row, (), loc=c.loc))


@functools.lru_cache(maxsize=64)
def cholesky(n: int, dtype: DType, machine: Machine) -> Func:
    """`cholesky(source, factor, lo, hi)` for the matrices lo to hi - 1."""
    c = Code(dtype, machine, n, n, ("source", "factor"))
    source, factor, lo, hi = c.args
    work, column = work_of(c, n, n)

    def body(number: Value) -> None:
        here, there = [Matrix(c.moved(p, number, n * n), n) for p in (source, factor)]
        copy(c, here, work, n, n)
        fill(c, there, n, n, 0.0)
        zero = c.emit(t.Const(0.0, ScalarType(dtype), loc=c.loc))
        for at in range(0, n, c.lanes):
            c.put_row(column, 0, at, c.number(0.0))

        def step(k: Index, failed: Values) -> Values:
            size = c.one(work, k, k)
            good = c.map("gt", size, zero)
            root = c.map("sqrt", size)
            c.put_one(there, k, k, root)
            c.put_one(column, k, 0, zero)

            def scale(i: Index) -> None:
                found = c.map("div", c.one(work, i, k), root)
                c.put_one(there, i, k, found)
                c.put_one(column, i, 0, found)

            c.each(c.after(k), n, scale)

            def subtract(first: Index, offset: Index | None) -> None:
                row = c.row(column, 0, first)
                # Above the diagonal nothing is read.
                begin = c.after(k) if offset is not None else first

                def one(i: Index) -> None:
                    by = c.filled(c.map("neg", c.one(column, i)))
                    c.put_row(work, i, first, c.fma(by, row, c.row(work, i, first)))

                c.each(begin, n, one)

            from_column(c, k, n, subtract)
            return (c.select(good, failed[0], c.like(zero, math.nan)),)

        (failed,) = c.each_with(0, n, (zero,), step)
        c.when(c.map("ne", failed, failed), lambda: fill(c, there, n, n, math.nan))

    c.span(lo, hi, body)
    return c.func(f"cholesky_{n}_{dtype}")
