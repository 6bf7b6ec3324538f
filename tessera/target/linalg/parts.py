"""What the functions on small matrices have in common."""

from __future__ import annotations

from collections.abc import Callable

from tessera.ir.core import Value
from tessera.target.function import Values
from tessera.target.linalg.code import Code, Index, Matrix

ALIASED = 512
"""Rows that are multiples of so many bytes apart share few sets of the first cache, where a step
reads a column."""


def work_of(c: Code, m: int, n: int) -> tuple[Matrix, Matrix]:
    """Memory for a matrix in whole vectors, and for a number of each row and column."""
    pitch = -(-n // c.lanes) * c.lanes
    if pitch * c.dtype.itemsize % ALIASED == 0:
        pitch += c.lanes
    return c.scratch(m, pitch), c.scratch(max(m, pitch), 1)


def copy(c: Code, source: Matrix, target: Matrix, m: int, n: int) -> None:
    """Copies a matrix; to or from one of whole vectors."""
    columns = c.columns(n)

    def one(i: Index) -> None:
        for at, inside in columns:
            value = c.row(source, i, at, inside if source.pitch == n else ())
            c.put_row(target, i, at, value, inside if target.pitch == n else ())

    c.each(0, m, one)


def fill(c: Code, target: Matrix, m: int, n: int, value: float) -> None:
    """Makes all elements a number; those of whole vectors, where there is room for them."""
    columns = c.columns(n)

    def one(i: Index) -> None:
        for at, inside in columns:
            c.put_row(target, i, at, c.number(value), inside if target.pitch == n else ())

    c.each(0, m, one)


def identity(c: Code, target: Matrix, m: int, n: int) -> None:
    """Makes a matrix in whole vectors zero, and its diagonal one."""
    fill(c, target, m, n, 0.0)
    unit = c.constant(1.0)
    c.each(0, min(m, n), lambda i: c.put_one(target, i, i, unit))


def from_column(c: Code, k: Index, n: int, each: Callable[[Index, Index | None], None]) -> None:
    """Calls a function for the vectors of a row from the one with column k on: with the column
    where each begins, and the first one with the lane of column k."""
    if n <= c.lanes:
        each(0, k)
        return
    if isinstance(k, int):
        first: Index = k - k % c.lanes
        offset: Index = k % c.lanes
    else:
        offset = c.map("rem", k, c.index(c.lanes))
        first = c.map("sub", k, offset)
    each(first, offset)
    lo = c.after(first, c.lanes)
    if isinstance(lo, int):
        for at in range(lo, n, c.lanes):
            each(at, None)
        return

    def rest(at: Value, _: Values) -> Values:
        each(at, None)
        return ()

    c.carry(lo, c.index(n), c.lanes, (), rest)
