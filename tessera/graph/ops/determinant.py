"""Determinants and pseudoinverses: functions of matrices that have derivatives where those of the
factorizations behind them do not exist.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tessera.dtypes import DType, int64, real_of
from tessera.errors import ShapeError
from tessera.graph.ops import elementwise as e
from tessera.graph.ops.checks import shape_text, shapes_may_equal, tensor, title
from tessera.graph.ops.gather import take_along
from tessera.graph.ops.generate import iota
from tessera.graph.ops.library import (
    LibraryCall,
    adjoint,
    below,
    columns_of,
    diagonal,
    identity,
    product,
    real,
    rows_of,
)
from tessera.graph.ops.rearrange import broadcast
from tessera.graph.ops.reduce import prod_, sum_
from tessera.graph.ops.solve import lu, solve, triangular_solve
from tessera.graph.trace import bind
from tessera.ir.core import Value
from tessera.ir.opdef import operand
from tessera.ir.types import TensorType


class Det(LibraryCall):
    """Determinants of square matrices; 1 for those without elements.

    `%d = graph.det(%a) : f32[3]` for f32[3, 4, 4]. The gradient, the matrix of cofactors, is exact
    for singular matrices too, if they lack one rank.
    """

    name = "graph.det"
    routine = "det"
    x: Value = operand()

    def infer(self) -> TensorType:
        """One number per matrix."""
        x = self.check_matrix(square=True).strong()
        return x.with_shape(x.shape[:-2])

    def partial(self, k: int, t: Any, out: Any, *primals: Any) -> Any:
        """The trace of adj(A) dA."""
        (x,) = primals
        return None if x.shape[-1] == 0 else sum_(diagonal(adjugate_product(x, t)), (x.ndim - 2,))


def adjugate_product(a: Any, b: Any) -> Any:
    """det(A) A^-1 B, without a division by the last pivot: with partial pivoting it is the one that
    vanishes where A lacks one rank.
    """
    factors, perm = lu(a)
    rank = a.ndim
    pivots = diagonal(factors)
    is_last = e.eq(iota(pivots.shape, rank - 2, int64), a.shape[-1] - 1)
    rows = broadcast(perm, b.shape, range(perm.ndim))
    x = take_along(b, rows, rank - 2)
    x = triangular_solve(factors, x, lower=True, unit_diagonal=True)
    # In U x = y the last element is the only one that the last pivot divides. Of det(U) x the
    # others follow from det(U) y, and the last one is that of y times the other pivots.
    others = prod_(e.select(is_last, 1, pivots), (rank - 2,))
    scale = e.select(is_last, per_row(others, pivots), per_row(prod_(pivots, (rank - 2,)), pivots))
    upper = e.select(rows_of(is_last, a.shape[-1]), identity(factors), factors)
    x = triangular_solve(upper, e.mul(x, rows_of(scale, x.shape[-1])), lower=False)
    return e.mul(x, broadcast(permutation_sign(perm, a.dtype), x.shape, range(rank - 2)))


def per_row(x: Any, like: Any) -> Any:
    """A number of each matrix for each of its rows."""
    return broadcast(x, like.shape, range(x.ndim))


def permutation_sign(perm: Any, dtype: DType) -> Any:
    """1 or -1 for each permutation: whether the number of pairs out of order is even."""
    n = perm.shape[-1]
    before, after = rows_of(perm, n), columns_of(perm, n)
    swapped = e.and_(e.gt(before, after), e.not_(below(before.shape)))
    count = sum_(e.cast(swapped, int64), (perm.ndim - 1, perm.ndim))
    return e.cast(e.sub(1, e.mul(e.mod(count, 2), 2)), dtype)


class Slogdet(LibraryCall):
    """Signs of determinants, and the logarithms of their magnitudes: 0 and -inf where it is 0.

    `%s, %l = graph.slogdet(%a) : (c64[3], f32[3])` for c64[3, 4, 4]. The sign of a complex number
    is the number over its magnitude.
    """

    name = "graph.slogdet"
    routine = "slogdet"
    x: Value = operand()

    def infer(self) -> tuple[TensorType, ...]:
        """One number per matrix, and one real number."""
        x = self.check_matrix(square=True).strong()
        return x.with_shape(x.shape[:-2]), TensorType(x.shape[:-2], real_of(x.dtype))

    def jvp(
        self, primals: Sequence[Any], tangents: Sequence[Any], outs: Sequence[Any]
    ) -> Sequence[Any]:
        """The trace of A^-1 dA: its real part, and its imaginary part turns the sign."""
        (x,), (t,), (sign, _) = primals, tangents, outs
        rate = sum_(diagonal(solve(x, t)), (x.ndim - 2,))
        turn = e.mul(e.complex_(0, e.imag(rate)), sign) if x.dtype.is_complex else None
        return turn, real(rate)


class Pinv(LibraryCall):
    """Moore-Penrose pseudoinverses, by the singular value decomposition.

    `%p = graph.pinv(%a, %share) : f32[3, 2, 5]` for f32[3, 5, 2] and f32[3]. Singular values that
    are at most this share of the largest one count as zero.
    """

    name = "graph.pinv"
    routine = "pinv"
    x: Value = operand()
    share: Value = operand()

    def infer(self) -> TensorType:
        """Matrices with rows and columns exchanged."""
        x = self.check_matrix().strong()
        share = tensor(self, 1)
        if share.dtype is not real_of(x.dtype) or not shapes_may_equal(share.shape, x.shape[:-2]):
            wanted = f"{real_of(x.dtype)}{shape_text(x.shape[:-2])}"
            raise ShapeError(
                f"{title(self)}: the shares of {x} are {share}", loc=self.loc, rule=f"{wanted}"
            )
        return x.with_shape((*x.shape[:-2], x.shape[-1], x.shape[-2]))

    def partial(self, k: int, t: Any, out: Any, *primals: Any) -> Any:
        """Golub and Pereyra, "The differentiation of pseudo-inverses and nonlinear least squares
        problems whose variables separate" (1973): for matrices of locally constant rank.
        """
        if k == 1:
            return None
        a, p = primals[0], out
        ph, th = adjoint(p), adjoint(t)
        inner = e.neg(product(p, product(t, p)))
        tall = product(product(p, ph), th)
        tall = e.sub(tall, product(product(tall, a), p))
        wide = product(th, product(ph, p))
        wide = e.sub(wide, product(p, product(a, wide)))
        return e.add(e.add(inner, tall), wide)


# --- functions ------------------------------------------------------------------------------------


def det(x: Any) -> Any:
    """Determinants; see `Det`."""
    return bind(Det, x)


def slogdet(x: Any) -> tuple[Any, Any]:
    """Signs of determinants and logarithms of their magnitudes; see `Slogdet`."""
    sign, log = bind(Slogdet, x)
    return sign, log


def pinv(x: Any, share: Any) -> Any:
    """Pseudoinverses; see `Pinv`."""
    return bind(Pinv, x, share)
