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
from tessera.target.linalg import factorize, solve
from tessera.target.linalg.solve import Triangle, blocks_of
from tessera.target.machine import Machine

_SQUARE = {"cholesky": factorize.cholesky, "det": factorize.det, "slogdet": factorize.slogdet}

MOST = 128
"""Rows and columns of matrices for which there is code; the library blocks larger ones for the
caches."""

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


def matrices_of_call(
    function: HostFunction, types: Sequence[Type], machine: Machine
) -> Matrices | None:
    """How code does the same as a call; None where the library is called.

    Args:
        function: what is called.
        types: of what it reads and of what it gives.
        machine: the CPU.
    """
    if not isinstance(function, LibraryFunction):
        return None
    first, last = types[0], types[-1]
    assert isinstance(first, BufType)
    assert isinstance(last, BufType)
    dtype, options = first.dtype, function.options
    *batch, m, n = first.shape if len(first.shape) > 1 else (None, None)
    if dtype not in (float32, float64) or not isinstance(m, int) or not isinstance(n, int):
        return None
    if not (0 < m <= MOST and 0 < n <= MOST):
        return None
    steps, points = m * n * min(m, n), 1
    if function.name == "lu":
        func = factorize.lu(m, n, dtype, machine)
    elif function.name in _SQUARE:
        func = _SQUARE[function.name](n, dtype, machine)
    elif function.name in ("triangular_solve", "lu_solve"):
        columns = last.shape[-1]
        if not isinstance(columns, int) or not columns:
            return None
        points = blocks_of(columns, dtype, machine)
        steps = n * n
        if function.name == "lu_solve":
            func = solve.lu_solve(n, columns, dtype, machine, bool(options[0]))
        else:
            which = Triangle(*[bool(x) for x in options])
            func = solve.triangular_solve(n, columns, dtype, machine, which)
    else:
        return None
    return Matrices(func, tuple(batch), points, -(-GRAIN // steps))
