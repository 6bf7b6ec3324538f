"""Linear equations: triangular ones, and those of a matrix that is given with its factors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tessera.dtypes import int32
from tessera.errors import DTypeError, ShapeError
from tessera.graph.ops import elementwise as e
from tessera.graph.ops.base import Linear, add_tangents
from tessera.graph.ops.checks import shape_text, shapes_may_equal, tensor, title
from tessera.graph.ops.gather import take_along
from tessera.graph.ops.library import (
    LibraryCall,
    identity,
    product,
    tril,
    triu,
    turned,
)
from tessera.graph.ops.rearrange import Batched, broadcast, move_axis, pad, reshape, slice_axis
from tessera.graph.trace import bind
from tessera.ir.core import Value
from tessera.ir.intexpr import Dim, minimum
from tessera.ir.opdef import attr, operand
from tessera.ir.types import TensorType


class Solver(LibraryCall):
    """Base of ops that solve equations for a last operand, in which they are linear."""

    @property
    def is_transposed(self) -> bool:
        """Whether the equations are those of the transposed matrices."""
        return bool(self.attrs["transposed"])

    def masked(self, a: Any) -> Any:
        """The tangent of the matrices without elements that are not read."""
        return a

    def jvp(
        self, primals: Sequence[Any], tangents: Sequence[Any], outs: Sequence[Any]
    ) -> Sequence[Any]:
        """A dX = dB - dA X."""
        da, db = tangents[0], tangents[-1]
        side = db
        if da is not None:
            da = self.masked(da)
            moved = product(turned(da) if self.is_transposed else da, outs[0])
            side = add_tangents(db, e.neg(moved))
        return (None if side is None else self.bind(*primals[:-1], side),)

    def transpose(self, cts: Sequence[Any], operands: Sequence[Any]) -> Sequence[Any]:
        """The equations of the transposed matrices."""
        assert isinstance(operands[-1], Linear)
        ct = self.bind(*operands[:-1], cts[0], transposed=not self.is_transposed)
        return (*[None] * (len(operands) - 1), ct)

    def batch(self, operands: Sequence[Any], axes: Sequence[int | None], size: Dim) -> Batched:
        """A batch of right-hand sides alone is one of more columns."""
        axis = axes[-1]
        if axis is None or any(a is not None for a in axes[:-1]):
            return super().batch(operands, axes, size)
        b = move_axis(operands[-1], axis, operands[-1].ndim - 1)
        wide = reshape(b, (*b.shape[:-2], b.shape[-2] * b.shape[-1]))
        out = self.bind(*operands[:-1], wide)
        return (reshape(out, b.shape),), (b.ndim - 1,)


class TriangularSolve(Solver):
    """X with A X = B, or A^T X = B if `transposed`, for triangular matrices A.

    `%x = graph.triangular_solve(%a, %b) {lower=true} : f32[3, 4, 2]` for f32[3, 4, 4] and
    f32[3, 4, 2]. The other triangle of A is not read. A zero on the diagonal divides as numbers do.

    Attributes:
        lower: which triangle A is.
        unit_diagonal: whether the diagonal is taken to be 1, and not read.
    """

    name = "graph.triangular_solve"
    routine = "triangular_solve"
    a: Value = operand()
    b: Value = operand()
    lower: bool = attr()
    transposed: bool = attr(False)
    unit_diagonal: bool = attr(False)

    def infer(self) -> TensorType:
        """The type of B."""
        a = self.check_matrix(0, square=True)
        b = tensor(self, 1)
        self.check_sides(a, b)
        return b.strong()

    def options(self) -> tuple[int, ...]:
        """Lower, transposed, unit diagonal."""
        return int(self.lower), int(self.transposed), int(self.unit_diagonal)

    def masked(self, a: Any) -> Any:
        k = int(self.unit_diagonal)
        return tril(a, -k) if self.lower else triu(a, k)


class LuSolve(Solver):
    """X with A X = B, or A^T X = B if `transposed`, given what `graph.lu` makes of A.

    `%x = graph.lu_solve(%a, %lu, %perm, %b) : f32[4, 2]`. A is not read: derivatives are taken
    with respect to it, as if its factors did not depend on it. That spares those of the
    factorization.
    """

    name = "graph.lu_solve"
    routine = "lu_solve"
    a: Value = operand()
    lu: Value = operand()
    perm: Value = operand()
    b: Value = operand()
    transposed: bool = attr(False)

    def infer(self) -> TensorType:
        """The type of B."""
        a = self.check_matrix(0, square=True)
        lu, perm, b = (tensor(self, k) for k in (1, 2, 3))
        if lu.dtype is not a.dtype or perm.dtype is not int32:
            raise DTypeError(
                f"{title(self)}: the factors of {a.strong()} are {lu.strong()} and {perm.strong()}",
                loc=self.loc,
                rule="they are what `lu` gives",
            )
        wanted = (a.shape, a.shape[:-1])
        for found, shape in zip((lu, perm), wanted, strict=True):
            if not shapes_may_equal(found.shape, shape):
                raise ShapeError(
                    f"{title(self)}: a factor of {a.strong()} is {found.strong()}",
                    loc=self.loc,
                    rule=f"its shape is {shape_text(shape)}",
                )
        self.check_sides(a, b)
        return b.strong()

    def options(self) -> tuple[int, ...]:
        """Whether the equations are transposed."""
        return (int(self.transposed),)


class Lu(LibraryCall):
    """P A = L U with partial pivoting: both factors in one matrix, and the order of the rows.

    `%lu, %perm = graph.lu(%a) : (f32[4, 3], i32[4])`: L has ones on its diagonal, which are not
    stored; `A[perm] = L U`. A column without a pivot leaves a zero on the diagonal of U.

    Attributes:
        constant: whether the results count as constants where derivatives are taken.
    """

    name = "graph.lu"
    routine = "lu"
    x: Value = operand()
    constant: bool = attr(False)

    def infer(self) -> tuple[TensorType, ...]:
        """The type of A, and i32 for its rows."""
        x = self.check_matrix()
        return x.strong(), TensorType(x.shape[:-1], int32)

    def jvp(
        self, primals: Sequence[Any], tangents: Sequence[Any], outs: Sequence[Any]
    ) -> Sequence[Any]:
        """From P dA = dL U + L dU: the part of L^-1 P dA U^-1 below the diagonal is L^-1 dL, the
        rest is dU U^-1. Factors that are not square get ones on the diagonal.
        """
        if self.constant:
            return None, None
        lu, perm = outs
        m, n = lu.shape[-2:]
        k = minimum(m, n)
        rank = lu.ndim
        lower = tril(slice_axis(lu, rank - 1, 0, k), -1)
        lower = pad(lower, 0, [0] * rank, [*[0] * (rank - 1), m - k])
        upper = slice_axis(lu, rank - 2, 0, k)
        upper = e.sub(triu(upper), identity(upper))
        upper = pad(upper, 0, [0] * rank, [*[0] * (rank - 2), n - k, 0])
        upper = e.add(upper, identity(upper))
        rows = broadcast(perm, lu.shape, range(perm.ndim))
        inner = take_along(tangents[0], rows, rank - 2)
        inner = triangular_solve(lower, inner, lower=True, unit_diagonal=True)
        inner = turned(triangular_solve(upper, turned(inner), lower=False, transposed=True))
        left = product(e.add(lower, identity(lower)), tril(inner, -1))
        return e.add(left, product(triu(inner), upper)), None


# --- functions ------------------------------------------------------------------------------------


def triangular_solve(
    a: Any, b: Any, *, lower: bool, transposed: bool = False, unit_diagonal: bool = False
) -> Any:
    """X with A X = B for triangular matrices; see `TriangularSolve`."""
    attrs = {"lower": lower, "transposed": transposed, "unit_diagonal": unit_diagonal}
    return bind(TriangularSolve, a, b, **attrs)


def lu(x: Any, constant: bool = False) -> tuple[Any, Any]:
    """Both factors in one matrix, and the order of the rows; see `Lu`."""
    factors, perm = bind(Lu, x, constant=constant)
    return factors, perm


def solve(a: Any, b: Any) -> Any:
    """X with A X = B, of operands with the same dims in front."""
    factors, perm = lu(a, constant=True)
    return bind(LuSolve, a, factors, perm, b)
