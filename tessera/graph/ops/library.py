"""Ops that are calls of a library: their family, and arithmetic of matrices that their rules share.

Programs call such an op on whole buffers, on the host; see `tessera/ir/routines.py` for the table
of what is called. A routine that fails for some matrices of a batch gives NaN for these.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from tessera.dtypes import complex64, complex128, float32, float64, int64
from tessera.errors import CompileError, DTypeError, ShapeError
from tessera.graph.ops import elementwise as e
from tessera.graph.ops.base import Family, GraphOp
from tessera.graph.ops.checks import (
    may_equal,
    shape_text,
    shapes_may_equal,
    static_shape,
    tensor,
    title,
)
from tessera.graph.ops.contract import dot_general
from tessera.graph.ops.generate import iota
from tessera.graph.ops.rearrange import Batched, batch_front, broadcast, transpose
from tessera.graph.ops.reduce import sum_
from tessera.graph.trace import as_tuple
from tessera.ir.core import Value
from tessera.ir.intexpr import Dim
from tessera.ir.routines import run_routine
from tessera.ir.types import TensorType

DTYPES = (float32, float64, complex64, complex128)
"""What the libraries compute in."""


class LibraryCall(GraphOp):
    """Base of ops that a library computes.

    Class attributes:
        routine: its name in the table of routines.
    """

    family = Family.LIBRARY
    routine: ClassVar[str]

    def options(self) -> tuple[int, ...]:
        """What the routine is told besides the arrays."""
        return ()

    @property
    def batch_rank(self) -> int:
        """How many dims in front of all operands only say how many calls of one kind there are."""
        return tensor(self, 0).rank - 2

    def evaluate(self, *operands: np.ndarray) -> Any:
        """What the routine makes of contiguous arrays."""
        outputs = [_empty(value) for value in self.results]
        inputs = [np.ascontiguousarray(x) for x in operands]
        run_routine(self.routine, inputs, outputs, self.options())
        return tuple(outputs)

    def batch(self, operands: Sequence[Any], axes: Sequence[int | None], size: Dim) -> Batched:
        """The batch axis in front of all operands, where routines have theirs."""
        fronts = [batch_front(x, axis, size) for x, axis in zip(operands, axes, strict=True)]
        found = as_tuple(self.bind(*fronts))
        return found, [0] * len(found)

    def check_dtype(self, k: int = 0) -> TensorType:
        """The type of an operand, which must be one that the library computes in."""
        x = tensor(self, k)
        if x.dtype not in DTYPES:
            raise DTypeError(
                f"{title(self)}: the operand is {x.strong()}",
                loc=self.loc,
                rule="libraries compute in f32, f64, c64 and c128",
                fix="convert it first, as with `x.astype(ts.float32)`",
            )
        return x

    def check_matrix(self, k: int = 0, square: bool = False) -> TensorType:
        """The type of an operand that holds matrices in its last two dims."""
        x = self.check_dtype(k)
        if x.rank < 2:
            raise ShapeError(
                f"{title(self)}: the operand is {x.strong()}",
                loc=self.loc,
                rule="a matrix has two dims or more",
            )
        if square and not may_equal(*x.shape[-2:]):
            rows, columns = x.shape[-2:]
            raise ShapeError(
                f"{title(self)}: the operand is {x.strong()}, with matrices of {rows} rows and"
                f" {columns} columns",
                loc=self.loc,
                rule="the matrices are square",
            )
        return x

    def check_sides(self, a: TensorType, b: TensorType) -> None:
        """The two sides of linear equations fit each other."""
        if a.dtype is not b.dtype:
            raise DTypeError(
                f"{title(self)}: a is {a.strong()}, but b is {b.strong()}",
                loc=self.loc,
                rule="both have one dtype",
                fix="convert one of them with `astype`",
            )
        if b.rank != a.rank or not shapes_may_equal(a.shape[:-1], b.shape[:-1]):
            raise ShapeError(
                f"{title(self)}: a is {a.strong()}, but b is {b.strong()}",
                loc=self.loc,
                rule=f"b has the dims {shape_text(a.shape[:-1])} of a in front of its columns",
            )


def refusal(op: LibraryCall) -> CompileError:
    """The error for a device that has no libraries."""
    return CompileError(
        f"{title(op)}: the operands are on a GPU, and a library of the host computes it",
        loc=op.loc,
        rule="library calls run on the CPU",
        fix="move the operands there first, outside of jit, as with `x.to_device('cpu')`",
    )


def _empty(value: Value) -> np.ndarray:
    type = value.type
    assert isinstance(type, TensorType)
    return np.empty(static_shape(type.shape), type.dtype.np)


# --- matrices in the last two dims ----------------------------------------------------------------


def product(a: Any, b: Any) -> Any:
    """The matrix product for each index of the dims in front, which both have."""
    lead = tuple(range(a.ndim - 2))
    return dot_general(a, b, ((a.ndim - 1,), (a.ndim - 2,)), (lead, lead))


def turned(x: Any) -> Any:
    """The transpose of each matrix."""
    return transpose(x, (*range(x.ndim - 2), x.ndim - 1, x.ndim - 2))


def conj(x: Any) -> Any:
    """The conjugate; real numbers are left as they are."""
    return e.conj(x) if x.dtype.is_complex else x


def adjoint(x: Any) -> Any:
    """The conjugate transpose of each matrix."""
    return turned(conj(x))


def below(shape: Sequence[Dim], k: int = 0) -> Any:
    """Whether an element stands on or below the k-th diagonal of its matrix."""
    rank = len(shape)
    rows, columns = iota(shape, rank - 2, int64), iota(shape, rank - 1, int64)
    return e.le(columns, e.add(rows, k) if k else rows)


def tril(x: Any, k: int = 0) -> Any:
    """The part on and below a diagonal; zeros elsewhere."""
    return e.select(below(x.shape, k), x, 0)


def triu(x: Any, k: int = 0) -> Any:
    """The part on and above a diagonal; zeros elsewhere."""
    return e.select(below(x.shape, k - 1), 0, x)


def on_diagonal(shape: Sequence[Dim]) -> Any:
    """Whether an element stands on the diagonal of its matrix."""
    rank = len(shape)
    return e.eq(iota(shape, rank - 2, int64), iota(shape, rank - 1, int64))


def identity(like: Any) -> Any:
    """Matrices of 1 on the diagonal, of the shape and dtype of others."""
    return e.cast(on_diagonal(like.shape), like.dtype)


def diagonal(x: Any) -> Any:
    """The elements on the diagonal of square matrices."""
    return sum_(e.select(on_diagonal(x.shape), x, 0), (x.ndim - 1,))


def rows_of(x: Any, columns: Dim) -> Any:
    """Each element of vectors as a row of so many equal ones: for `diag(x) @ m` as a product."""
    shape = (*x.shape, columns)
    return broadcast(x, shape, range(x.ndim))


def columns_of(x: Any, rows: Dim) -> Any:
    """Each element of vectors as a column of so many equal ones: for `m @ diag(x)`."""
    shape = (*x.shape[:-1], rows, x.shape[-1])
    return broadcast(x, shape, (*range(x.ndim - 1), x.ndim))


def real(x: Any) -> Any:
    """The real part; real numbers are left as they are."""
    return e.real(x) if x.dtype.is_complex else x
