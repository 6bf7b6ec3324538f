"""Eigenvalues and singular values of small matrices by Jacobi's rotations: one pair of rows after
the other, in sweeps, until nothing is left to do (Golub and Van Loan, "Matrix Computations",
algorithms 8.5.2 and 8.6.4).

Matrices are scaled by a power of two before, so that no square is too large or too small.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import TypeAlias

from tessera.dtypes import DType
from tessera.ir.core import Func, Value
from tessera.target.function import Values
from tessera.target.linalg.code import Code, Index, Matrix
from tessera.target.linalg.parts import copy, fill, identity
from tessera.target.machine import Machine

MORE = 1
"""Rows that a matrix counts for besides its own where loops are written out: a pair of rows is more
code than a row, and no faster written out."""

SWEEPS = 40
"""Of which one does not need more than ten or so, whatever the matrix."""


@functools.lru_cache(maxsize=64)
def eigh(n: int, vectors: bool, dtype: DType, machine: Machine) -> Func:
    """`eigh(source, values, vectors, lo, hi)` for the matrices lo to hi - 1; without `vectors` if
    they are not wanted. Only the lower triangle is read, but NaN is what any element makes of it
    that is not finite.
    """
    names = ("source", "values", *(("vectors",) if vectors else ()))
    c = Code(dtype, machine, n, n + MORE, names)
    source, values, *rest, lo, hi = c.args
    work, found = c.rows(n, n), c.scratch(n, 1)
    bases = [c.rows(n, n)] if vectors else []
    # Off the diagonal there is nothing left: far below what rounds to nothing beside the largest.
    enough = c.constant(2.0 ** -(30 if dtype.bits == 32 else 60))

    def body(number: Value) -> None:
        here = Matrix(c.moved(source, number, n * n), n)
        wrong = _is_not_finite(c, here, n, n)
        unit = _mirrored(c, here, work, n)
        for basis in bases:
            identity(c, basis, n, n)

        def sweep(_: Values) -> Values:
            _pairs(c, n, lambda p, q: _rotate(c, work, bases, n, p, q))
            return (_largest_off_diagonal(c, work, n),)

        _until_done(
            c, (_largest_off_diagonal(c, work, n),), lambda s: c.map("gt", s[0], enough), sweep
        )
        c.each(0, n, lambda i: c.put_one(found, i, 0, c.one(work, i, i)))
        _sort(c, found, [(basis, n) for basis in bases], n, "lt")
        there = Matrix(c.moved(values, number, n), 1)
        c.each(0, n, lambda i: c.put_one(there, i, 0, c.map("mul", c.one(found, i), unit)))
        outputs = [(there, n)]
        for pointer, basis in zip(rest, bases, strict=True):
            turned = Matrix(c.moved(pointer, number, n * n), n)
            _put_turned(c, basis, turned, n, n)
            outputs.append((turned, n * n))
        _blank(c, wrong, outputs)

    c.span(lo, hi, body)
    return c.func(f"eigh_{n}_{int(vectors)}_{dtype}")


@functools.lru_cache(maxsize=64)
def svd(m: int, n: int, factors: tuple[int, int] | None, dtype: DType, machine: Machine) -> Func:
    """`svd(source, u, s, vh, lo, hi)` for the matrices lo to hi - 1.

    Args:
        m: rows of matrices.
        n: their columns.
        factors: the columns of U and the rows of V^H; None for `svd(source, s, lo, hi)`.
        dtype: of elements.
        machine: the CPU.
    """
    names = ("source", *(("u", "s", "vh") if factors else ("s",)))
    c = Code(dtype, machine, max(m, n), max(m, n) + MORE, names)
    source, *targets, lo, hi = c.args
    found = _Singular(c, m, n, None if factors is None else factors[0 if m >= n else 1])

    def body(number: Value) -> None:
        wrong, unit, rank = found.decompose(Matrix(c.moved(source, number, m * n), n))
        k = found.count
        values = Matrix(c.moved(targets[1 if factors else 0], number, k), 1)
        c.each(0, k, lambda i: c.put_one(values, i, 0, c.map("mul", c.one(found.sizes, i), unit)))
        outputs = [(values, k)]
        if factors:
            left, right = factors
            found.normalize(rank)
            u = Matrix(c.moved(targets[0], number, m * left), left)
            vh = Matrix(c.moved(targets[2], number, right * n), n)
            _put_turned(c, found.left, u, left, m)
            copy(c, found.right, vh, right, n)
            outputs += [(u, m * left), (vh, right * n)]
        _blank(c, wrong, outputs)

    c.span(lo, hi, body)
    shape = "" if factors is None else f"_{factors[0]}_{factors[1]}"
    return c.func(f"svd_{m}_{n}{shape}_{dtype}")


@functools.lru_cache(maxsize=64)
def pinv(m: int, n: int, dtype: DType, machine: Machine) -> Func:
    """`pinv(source, share, result, lo, hi)` for the matrices lo to hi - 1: singular values of at
    most a share of the largest one count as zero."""
    c = Code(dtype, machine, max(m, n), max(m, n) + MORE, ("source", "share", "result"))
    source, share, result, lo, hi = c.args
    found, line = _Singular(c, m, n, min(m, n)), c.rows(1, m)

    def body(number: Value) -> None:
        columns = c.columns(m)
        wrong, unit, rank = found.decompose(Matrix(c.moved(source, number, m * n), n))
        found.normalize(rank)
        sizes = found.sizes
        limit = c.map("mul", c.one(Matrix(c.moved(share, number, 1), 1), 0), c.one(sizes, 0))
        limit = c.map("max", limit, _least(c))  # whose vectors are not those of the matrix

        def invert(i: Index) -> None:
            size = c.one(sizes, i)
            zero = c.like(size, 0)
            inverse = c.map("div", c.map("div", c.like(size, 1), size), unit)
            c.put_one(sizes, i, 0, c.select(c.map("le", size, limit), zero, inverse))

        c.each(0, found.count, invert)
        target = Matrix(c.moved(result, number, n * m), m)

        def row(a: Index) -> None:
            def part(at: Index, _: Values) -> Values:
                def add(i: Index, total: Values) -> Values:
                    by = c.map("mul", c.one(found.right, i, a), c.one(sizes, i))
                    return (c.fma(c.filled(by), c.row(found.left, i, at), total[0]),)

                (total,) = c.each_with(0, found.count, (c.number(0.0),), add)
                c.put_row(line, 0, at, total)
                return ()

            c.along(m, (), part)
            for at, inside in columns:
                c.put_row(target, a, at, c.row(line, 0, at), inside)

        c.each(0, n, row)
        _blank(c, wrong, [(target, n * m)])

    c.span(lo, hi, body)
    return c.func(f"pinv_{m}_{n}_{dtype}")


class _Singular:
    """Code for the singular values and vectors of a matrix.

    Args:
        c: takes the code.
        m: rows of the matrix.
        n: its columns.
        wanted: how many singular vectors are wanted of the longer kind, if any are.

    Attributes:
        count: how many singular values there are.
        left: the left singular vectors as rows.
        right: the right ones.
        sizes: the singular values of the scaled matrix.
    """

    def __init__(self, c: Code, m: int, n: int, wanted: int | None) -> None:
        # Rows that are made orthogonal: those of the matrix or, where it has more, its columns.
        self.count, self._length = min(m, n), max(m, n)
        self._c, self._shape, self._wanted = c, (m, n), wanted or self.count
        self._work = c.rows(self._wanted, self._length)
        self._basis = c.rows(self.count, self.count)
        self._rows = [(self._work, self._length)]
        if wanted is not None:
            self._rows.append((self._basis, self.count))
        self.sizes = c.scratch(self.count, 1)
        is_tall = m >= n
        self.left, self.right = [self._basis, self._work][:: -1 if is_tall else 1]

    def decompose(self, source: Matrix) -> tuple[Value, Value, Value]:
        """Finds the values, in descending order, and rows along the vectors: whether an element is
        not finite, the power of two by which values are to be multiplied, and how many are not
        zero."""
        c, (m, n), k = self._c, self._shape, self.count
        wrong = _is_not_finite(c, source, m, n)
        unit = _scaled(c, source, self._work, (m, n), is_turned=m >= n)
        if len(self._rows) > 1:
            identity(c, self._basis, k, k)
        one = c.index(1)

        def pair(p: Index, q: Index, before: Values) -> Values:
            turned = _orthogonalize(c, self._rows, p, q)
            return (c.select(turned, c.index(1), before[0]),)

        _until_done(
            c,
            (one,),
            lambda state: c.map("eq", state[0], one),
            lambda _: _pairs_with(c, k, (c.index(0),), pair),
        )
        rank = _norms(c, self._work, self.sizes, k, self._length)
        _sort(c, self.sizes, self._rows, k, "gt")
        return wrong, unit, rank

    def normalize(self, rank: Value) -> None:
        """Makes the rows vectors of length 1, and finds those that are missing or next to zero."""
        _normalize(self._c, self._work, self.sizes, rank, self._length)
        _complete(self._c, self._work, rank, self._wanted, self._length)


# --- rotations ------------------------------------------------------------------------------------


Angle: TypeAlias = "tuple[Value, Value]"
"""Its sine, and the tangent of its half."""


def _angle(c: Code, h: Value, d: Value) -> tuple[Value, Angle]:
    """The smaller angle that makes h of [[a, h], [h, a + d]] zero: its tangent, and what rotations
    take."""
    double = c.map("add", h, h)
    size = c.map("sqrt", c.fma(d, d, c.map("mul", double, double)))
    tangent = c.map("div", double, c.map("add", c.map("abs", d), size))
    tangent = c.select(c.map("lt", d, c.like(d, 0)), c.map("neg", tangent), tangent)
    one = c.like(d, 1)
    secant = c.map("sqrt", c.fma(tangent, tangent, one))
    half = c.map("div", tangent, c.map("add", secant, one))
    return tangent, (c.map("div", tangent, secant), half)


def _turn(
    c: Code, matrix: Matrix, columns: int, rows: tuple[Index, Index], angle: Angle
) -> None:
    """Rotates two rows: adds to each what is proportional to the sine, so that small angles change
    lengths by less than rounding does (Rutishauser)."""
    p, q = rows
    sine, half = [c.filled(x) for x in angle]
    minus, minus_half = c.map("neg", sine), c.map("neg", half)

    def one(at: Index, _: Values) -> Values:
        a, b = c.row(matrix, p, at), c.row(matrix, q, at)
        c.put_row(matrix, p, at, c.fma(minus, c.fma(half, a, b), a))
        c.put_row(matrix, q, at, c.fma(sine, c.fma(minus_half, b, a), b))
        return ()

    c.along(columns, (), one)


def _rotate(c: Code, work: Matrix, bases: list[Matrix], n: int, p: Index, q: Index) -> None:
    """Makes one element of a symmetric matrix zero."""
    h = c.one(work, p, q)

    def turn() -> None:
        a, b = c.one(work, p, p), c.one(work, q, q)
        tangent, angle = _angle(c, h, c.map("sub", b, a))
        for matrix in (work, *bases):
            _turn(c, matrix, n, (p, q), angle)
        change = c.map("mul", tangent, h)
        zero = c.like(h, 0)
        c.put_one(work, p, p, c.map("sub", a, change))
        c.put_one(work, q, q, c.map("add", b, change))
        c.put_one(work, p, q, zero)
        c.put_one(work, q, p, zero)

        def mirror(i: Index) -> None:
            c.put_one(work, i, p, c.one(work, p, i))
            c.put_one(work, i, q, c.one(work, q, i))

        c.each(0, n, mirror)

    # Beside the largest that is nothing, and its square is not zero.
    nothing = c.constant(2.0 ** -(60 if c.dtype.bits == 32 else 500))
    c.when(c.map("gt", c.map("abs", h), nothing), turn)


def _least(c: Code) -> Value:
    """The length, where the largest element is 1 or more, up to which a row is what rounding leaves
    of zeros. Such rows are not turned: of what is left of them the next sweep would leave as
    little, and so on."""
    return c.constant(2.0 ** -(40 if c.dtype.bits == 32 else 80))


def _orthogonalize(
    c: Code, matrices: Sequence[tuple[Matrix, int]], p: Index, q: Index
) -> Value:
    """Makes two rows of the first matrix orthogonal, if they are not; whether they were not. The
    others, each with the number of its columns, are turned alike."""
    work, length = matrices[0]

    def add(at: Index, sums: Values) -> Values:
        x, y = c.row(work, p, at), c.row(work, q, at)
        return [c.fma(a, b, s) for (a, b), s in zip([(x, x), (y, y), (x, y)], sums, strict=True)]

    a, b, h = [c.total(s) for s in c.along(length, [c.number(0.0) for _ in range(3)], add)]
    # What is rounded of a product of rows, beside their lengths.
    share = c.constant(math.sqrt(length) * 2.0 ** -(24 if c.dtype.bits == 32 else 53))
    limit = c.map("mul", share, c.map("mul", c.map("sqrt", a), c.map("sqrt", b)))
    kept = c.map("gt", c.map("min", a, b), c.map("mul", _least(c), _least(c)))
    turns = c.map("and", c.map("gt", c.map("abs", h), limit), kept)

    def turn() -> None:
        unit = c.map("div", c.like(h, 1), c.map("add", a, b))
        d = c.map("mul", c.map("sub", b, a), unit)
        _, angle = _angle(c, c.map("mul", h, unit), d)
        for matrix, columns in matrices:
            _turn(c, matrix, columns, (p, q), angle)

    c.when(turns, turn)
    return turns


def _pairs(c: Code, n: int, each: Callable[[Index, Index], None]) -> None:
    """Calls a function for each two rows."""

    def one(p: Index, q: Index, _: Values) -> Values:
        each(p, q)
        return ()

    _pairs_with(c, n, (), one)


def _pairs_with(
    c: Code, n: int, init: Values, each: Callable[[Index, Index, Values], Values]
) -> Values:
    """Calls a function for each two rows, and carries values. Rows of those that follow one another
    are others, so that a processor begins one rotation before the last has ended."""

    def apart(by: Index, outer: Values) -> Values:
        end = n - by if isinstance(by, int) else c.map("sub", c.index(n), by)

        def pair(p: Index, inner: Values) -> Values:
            if isinstance(p, int) and isinstance(by, int):
                return each(p, p + by, inner)
            return each(p, c.map("add", c.value(p), c.value(by)), inner)

        return c.each_with(0, end, outer, pair)

    return c.each_with(1, n, init, apart)


def _until_done(
    c: Code, init: Values, goes_on: Callable[[Values], Value], sweep: Callable[[Values], Values]
) -> None:
    """Sweeps as long as there is something to do."""

    def test(state: Values) -> Value:
        return c.map("and", goes_on(state[1:]), c.map("lt", state[0], c.index(SWEEPS)))

    c.repeat((c.index(0), *init), test, lambda s: (c.plus(s[0], 1), *sweep(s[1:])))


# --- before and after -----------------------------------------------------------------------------


def _is_not_finite(c: Code, source: Matrix, m: int, n: int) -> Value:
    """Whether an element is not finite: such numbers less themselves are NaN."""
    columns = c.columns(n)

    def add(i: Index, total: Values) -> Values:
        (found,) = total
        for at, inside in columns:
            x = c.row(source, i, at, inside)
            found = c.map("add", found, c.map("sub", x, x))
        return (found,)

    (total,) = c.each_with(0, m, (c.number(0.0),), add)
    total = c.total(total)
    return c.map("ne", total, total)


def _mirrored(c: Code, source: Matrix, work: Matrix, n: int) -> Value:
    """Copies the lower triangle to both, with its largest element between 1 and 2 in magnitude; the
    power of two that it was divided by."""
    fill(c, work, n, n, 0.0)

    def put(i: Index, j: Index, x: Value) -> None:
        c.put_one(work, i, j, x)
        c.put_one(work, j, i, x)

    most = _copied(c, source, n, c.after, put)
    return _multiplied(c, work, (n, n), most)


def _scaled(
    c: Code, source: Matrix, work: Matrix, shape: tuple[int, int], is_turned: bool
) -> Value:
    """Copies a matrix, or its transpose, likewise."""
    m, n = shape
    rows, columns = (n, m) if is_turned else (m, n)
    fill(c, work, rows, columns, 0.0)

    def put(i: Index, j: Index, x: Value) -> None:
        c.put_one(work, *((j, i) if is_turned else (i, j)), x)

    most = _copied(c, source, m, lambda _: n, put)
    return _multiplied(c, work, (rows, columns), most)


def _copied(
    c: Code,
    source: Matrix,
    rows: int,
    end: Callable[[Index], Index],
    put: Callable[[Index, Index, Value], None],
) -> Value:
    """Copies the elements of rows up to an end of each; their largest magnitude."""

    def row(i: Index, most: Values) -> Values:
        def one(j: Index, most: Values) -> Values:
            x = c.one(source, i, j)
            put(i, j, x)
            return (c.map("max", most[0], c.map("abs", x)),)

        return c.each_with(0, end(i), most, one)

    (most,) = c.each_with(0, rows, (c.constant(0.0),), row)
    return most


def _multiplied(c: Code, work: Matrix, shape: tuple[int, int], most: Value) -> Value:
    unit = c.power(most)
    factor = c.filled(c.map("div", c.like(unit, 1), unit))
    m, n = shape

    c.each(0, m, lambda i: _change(c, work, i, n, lambda x: c.map("mul", x, factor)))
    return unit


def _change(c: Code, work: Matrix, i: Index, n: int, how: Callable[[Value], Value]) -> None:
    """Changes the elements of a row."""

    def one(at: Index, _: Values) -> Values:
        c.put_row(work, i, at, how(c.row(work, i, at)))
        return ()

    c.along(n, (), one)


def _largest_off_diagonal(c: Code, work: Matrix, n: int) -> Value:
    """The largest magnitude off the diagonal of a symmetric matrix."""

    def row(i: Index, most: Values) -> Values:
        (found,) = most
        for at in range(0, n, c.lanes):
            size = c.map("abs", c.row(work, i, at))
            is_own = c.compared("eq", c.after(i, -at))
            found = c.map("max", found, c.select(is_own, c.number(0.0), size))
        return (found,)

    (most,) = c.each_with(0, n, (c.number(0.0),), row)
    return c.total(most, "max")


def _sort(
    c: Code, keys: Matrix, others: Sequence[tuple[Matrix, int]], n: int, how: str
) -> None:
    """Brings numbers into order, and the rows of matrices with them."""

    def step(i: Index) -> None:
        def look(j: Index, best: Values) -> Values:
            key = c.one(keys, j)
            better = c.map(how, key, best[0])
            return c.select(better, key, best[0]), c.select(better, c.value(j), best[1])

        own = c.one(keys, i)
        key, place = c.each_with(c.after(i), n, (own, c.value(i)), look)
        c.put_one(keys, place, 0, own)
        c.put_one(keys, i, 0, key)
        for matrix, columns in others:

            def exchange(at: Index, _: Values, matrix: Matrix = matrix) -> Values:
                a, b = c.row(matrix, i, at), c.row(matrix, place, at)
                c.put_row(matrix, place, at, a)
                c.put_row(matrix, i, at, b)
                return ()

            c.along(columns, (), exchange)

    c.each(0, n - 1, step)


def _norms(c: Code, work: Matrix, sizes: Matrix, n: int, length: int) -> Value:
    """The lengths of rows, and how many rows are more than what rounding leaves."""

    def one(i: Index, count: Values) -> Values:
        size = c.map("sqrt", _product(c, work, i, i, length))
        has = c.map("gt", size, _least(c))
        c.put_one(sizes, i, 0, size)
        return (c.select(has, c.plus(count[0], 1), count[0]),)

    return c.each_with(0, n, (c.index(0),), one)[0]


def _normalize(c: Code, work: Matrix, sizes: Matrix, rank: Value, length: int) -> None:
    """Divides rows by their lengths."""

    def one(i: Value) -> None:
        by = c.filled(c.one(sizes, i))
        _change(c, work, i, length, lambda x: c.map("div", x, by))

    c.span(c.index(0), rank, one)


def _complete(c: Code, work: Matrix, rank: Value, count: int, length: int) -> None:
    """Makes rows from `rank` on orthogonal to all before: of the axis that those are farthest
    from."""
    weights = c.rows(1, length)
    def look(j: Value, best: Values) -> Values:
        weight = c.one(weights, 0, j)
        less = c.map("lt", weight, best[0])
        return c.select(less, weight, best[0]), c.select(less, j, best[1])

    def one(i: Value) -> None:
        def weigh(at: Index, _: Values) -> Values:
            def add(other: Value, total: Values) -> Values:
                x = c.row(work, other, at)
                return (c.fma(x, x, total[0]),)

            (total,) = c.carry(c.index(0), i, 1, (c.number(0.0),), add)
            c.put_row(weights, 0, at, total)
            c.put_row(work, i, at, c.number(0.0))
            return ()

        c.along(length, (), weigh)
        first = (c.one(weights, 0, 0), c.index(0))
        _, axis = c.carry(c.index(1), c.index(length), 1, first, look)
        c.put_one(work, i, axis, c.constant(1.0))
        # Twice is enough.
        for _ in range(2):
            c.span(c.index(0), i, lambda other: _remove(c, work, i, other, length))
        size = c.filled(c.map("sqrt", _product(c, work, i, i, length)))
        _change(c, work, i, length, lambda x: c.map("div", x, size))

    c.span(rank, c.index(count), one)


def _product(c: Code, work: Matrix, i: Index, j: Index, length: int) -> Value:
    """The product of two rows."""

    def add(at: Index, total: Values) -> Values:
        return (c.fma(c.row(work, i, at), c.row(work, j, at), total[0]),)

    return c.total(c.along(length, (c.number(0.0),), add)[0])


def _remove(c: Code, work: Matrix, i: Index, other: Index, length: int) -> None:
    """Takes out of a row what is along another one."""
    by = c.filled(c.map("neg", _product(c, work, i, other, length)))

    def one(at: Index, _: Values) -> Values:
        c.put_row(work, i, at, c.fma(by, c.row(work, other, at), c.row(work, i, at)))
        return ()

    c.along(length, (), one)


def _put_turned(c: Code, rows: Matrix, target: Matrix, m: int, n: int) -> None:
    """The transpose of m rows."""
    c.each(0, m, lambda i: c.each(0, n, lambda j: c.put_one(target, j, i, c.one(rows, i, j))))


def _blank(c: Code, wrong: Value, outputs: list[tuple[Matrix, int]]) -> None:
    """NaN for all numbers of the results, where something was wrong."""

    def run() -> None:
        nan = c.constant(math.nan)
        for matrix, count in outputs:
            flat = Matrix(matrix.ptr, 1)
            c.span(c.index(0), c.index(count), lambda i, flat=flat: c.put_one(flat, i, 0, nan))

    c.when(wrong, run)
