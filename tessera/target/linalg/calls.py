"""Calls of the library's linear algebra as code: which ones, and the functions that do it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tessera.dtypes import float32, float64
from tessera.ir.core import Func
from tessera.ir.hostcall import HostFunction, LibraryFunction
from tessera.ir.intexpr import Dim
from tessera.ir.types import Type
from tessera.schedule.types import BufType
from tessera.target.linalg import factorize, orthogonal, solve, spectral
from tessera.target.linalg.solve import Triangle, blocks_of
from tessera.target.machine import Machine

_SQUARE = {"cholesky": factorize.cholesky, "det": factorize.det, "slogdet": factorize.slogdet}
_SOLVERS = ("triangular_solve", "lu_solve")

MOST = 128
"""Rows and columns of matrices for which there is code; the library blocks larger ones for the
caches."""

_ELIMINATING = ("lu", "qr", *_SQUARE, *_SOLVERS)
_ROTATING = ("eigh", "pinv", "svd")

MOST_ROTATED = 20
"""Rows and columns of square matrices for which there is code that rotates, and of others that are
as much work: it takes several times the operations of the library's ways."""

MOST_COMPLETE = 32
"""The larger number of those with more singular vectors than values, which are made one by one."""

GRAIN = 1 << 14
"""Multiplications that are worth a thread's while."""


@dataclass(frozen=True, slots=True)
class Matrices:
    """A call as code.

    Attributes:
        func: the function: `func(*arrays, lo, hi)`.
        batch: the dims whose product says how many matrices there are.
        points: those of each matrix.
        grain: points that are worth a thread's while.
    """

    func: Func
    batch: Sequence[Dim]
    points: int
    grain: int


def has_code(function: HostFunction, types: Sequence[Type]) -> bool:
    """Whether there is code for a call.

    Args:
        function: what is called.
        types: of what it reads and of what it gives.
    """
    if not isinstance(function, LibraryFunction):
        return False
    if function.name not in _ELIMINATING and function.name not in _ROTATING:
        return False
    first, last = types[0], types[-1]
    assert isinstance(first, BufType)
    assert isinstance(last, BufType)
    m, n = first.shape[-2:]
    # The columns of right-hand sides.
    free = last.shape[-1:] if function.name in _SOLVERS else ()
    if not all([isinstance(n, int) and n > 0 for n in (m, n, *free)]):
        return False
    assert isinstance(m, int)
    assert isinstance(n, int)
    if first.dtype not in (float32, float64) or max(m, n) > MOST:
        return False
    return function.name in _ELIMINATING or _is_rotated(m, n, types)


def _is_rotated(m: int, n: int, types: Sequence[Type]) -> bool:
    """Whether rotations take less time than the library."""
    factors = _factors(types)
    is_complete = factors is not None and max(factors) > min(m, n)
    if is_complete and max(m, n) > MOST_COMPLETE:
        return False
    return min(m, n) ** 2 * max(m, n) <= MOST_ROTATED**3


def matrices_of_call(
    function: HostFunction, types: Sequence[Type], machine: Machine
) -> Matrices | None:
    """How code does the same as a call; None where the library is called.

    Args:
        function: what is called.
        types: of what it reads and of what it gives.
        machine: the CPU.
    """
    if not has_code(function, types):
        return None
    assert isinstance(function, LibraryFunction)
    first, last = types[0], types[-1]
    assert isinstance(first, BufType)
    assert isinstance(last, BufType)
    dtype, options = first.dtype, function.options
    *batch, m, n = first.shape
    assert isinstance(m, int)
    assert isinstance(n, int)
    steps, points = m * n * min(m, n), 1
    if function.name == "lu":
        func = factorize.lu(m, n, dtype, machine)
    elif function.name == "qr":
        q = types[1]
        assert isinstance(q, BufType)
        columns = q.shape[-1]
        assert isinstance(columns, int)
        steps = m * min(m, n) * (n + columns)
        func = orthogonal.qr(m, n, columns, dtype, machine)
    elif function.name == "eigh":
        steps = 10 * n**3
        func = spectral.eigh(n, len(types) > 2, dtype, machine)
    elif function.name == "pinv":
        steps = 20 * m * n * min(m, n)
        func = spectral.pinv(m, n, dtype, machine)
    elif function.name == "svd":
        steps = 20 * m * n * min(m, n)
        func = spectral.svd(m, n, _factors(types), dtype, machine)
    elif function.name in _SQUARE:
        func = _SQUARE[function.name](n, dtype, machine)
    else:
        columns = last.shape[-1]
        assert isinstance(columns, int)
        points = blocks_of(columns, dtype, machine)
        steps = n * n
        if function.name == "lu_solve":
            func = solve.lu_solve(n, columns, dtype, machine, bool(options[0]))
        else:
            which = Triangle(*[bool(x) for x in options])
            func = solve.triangular_solve(n, columns, dtype, machine, which)
    return Matrices(func, tuple(batch), points, -(-GRAIN // steps))


def _factors(types: Sequence[Type]) -> tuple[int, int] | None:
    """How many singular vectors are wanted, left and right; None for values alone."""
    if len(types) < 4:
        return None
    u, vh = types[1], types[3]
    assert isinstance(u, BufType)
    assert isinstance(vh, BufType)
    left, right = u.shape[-1], vh.shape[-2]
    assert isinstance(left, int)
    assert isinstance(right, int)
    return left, right
