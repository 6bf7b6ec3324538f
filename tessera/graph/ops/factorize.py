"""Factorizations of matrices, with the derivatives of Giles, "Collected matrix derivative results
for forward and reverse mode algorithmic differentiation" (2008), Walter and Lehmann, "Algorithmic
differentiation of linear algebra functions with application in optimum experimental design" (2010)
for QR, and Seeger et al., "Auto-differentiating linear algebra" (2017).

Derivatives of eigenvectors and singular vectors divide by the differences of their values: where
two are equal, these vectors are not unique, and their derivatives are infinite or NaN. Those of the
values themselves are finite.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tessera.dtypes import int64, real_of
from tessera.errors import DTypeError, NotDifferentiableError
from tessera.graph.ops import elementwise as e
from tessera.graph.ops.base import add_tangents
from tessera.graph.ops.checks import tensor, title
from tessera.graph.ops.generate import iota
from tessera.graph.ops.library import (
    LibraryCall,
    adjoint,
    columns_of,
    conj,
    diagonal,
    on_diagonal,
    product,
    real,
    rows_of,
    tril,
    turned,
)
from tessera.graph.ops.reduce import argmax, sum_
from tessera.graph.ops.solve import solve, triangular_solve
from tessera.graph.trace import bind
from tessera.graph.transforms.evaluate import bind_op
from tessera.ir.core import Value
from tessera.ir.intexpr import minimum
from tessera.ir.opdef import attr, operand
from tessera.ir.types import TensorType


class Cholesky(LibraryCall):
    """The lower triangular L with A = L L^H, of Hermitian positive definite matrices.

    `%l = graph.cholesky(%a) : f32[3, 4, 4]`. Only the lower triangle of A is read. NaN for a matrix
    that is not positive definite.
    """

    name = "graph.cholesky"
    routine = "cholesky"
    x: Value = operand()

    def infer(self) -> TensorType:
        """The type of A."""
        return self.check_matrix(square=True).strong()

    def partial(self, k: int, t: Any, out: Any, *primals: Any) -> Any:
        """L phi(L^-1 dA L^-H), where phi halves the diagonal of the lower triangle."""
        # The derivative for the Hermitian matrix that the lower triangle of dA stands for.
        strict = tril(t, -1)
        middle = e.select(on_diagonal(t.shape), real_only(t), 0)
        full = e.add(e.add(strict, adjoint(strict)), middle)
        inner = triangular_solve(out, full, lower=True)
        inner = adjoint(triangular_solve(out, adjoint(inner), lower=True))
        half = e.select(on_diagonal(inner.shape), e.mul(inner, 0.5), tril(inner))
        return product(out, half)


def real_only(x: Any) -> Any:
    """Numbers without their imaginary parts, in the same dtype."""
    return e.complex_(e.real(x), 0) if x.dtype.is_complex else x


class Qr(LibraryCall):
    """Q with orthonormal columns and an upper triangular R, A = Q R, by Householder reflections.

    `%q, %r = graph.qr(%a) : (f32[5, 3], f32[3, 3])`. The diagonal of R is real, of either sign.

    Attributes:
        full: whether Q is square, and R as large as A.
    """

    name = "graph.qr"
    routine = "qr"
    x: Value = operand()
    full: bool = attr(False)

    def infer(self) -> tuple[TensorType, ...]:
        """The types of Q and R."""
        x = self.check_matrix().strong()
        m, n = x.shape[-2:]
        k = m if self.full else minimum(m, n)
        return x.with_shape((*x.shape[:-1], k)), x.with_shape((*x.shape[:-2], k, n))

    def jvp(
        self, primals: Sequence[Any], tangents: Sequence[Any], outs: Sequence[Any]
    ) -> Sequence[Any]:
        """With W = Q^H dA R^-1 and the skew S of its lower triangle: dQ = Q (S - W) + dA R^-1, and
        dR = (W - S) R.
        """
        q, r = outs
        m, n = primals[0].shape[-2:]
        if r.shape[-2] != n:
            kind = "complete QR" if self.full else "QR"
            raise NotDifferentiableError(
                f"{title(self)}: the {kind} of {m} x {n} matrices has no derivative",
                loc=self.loc,
                rule="R is square",
                fix='use mode="reduced"',
            )
        scaled = turned(triangular_solve(r, turned(tangents[0]), lower=False, transposed=True))
        inner = product(adjoint(q), scaled)
        strict = tril(inner, -1)
        skew = e.sub(strict, adjoint(strict))
        if inner.dtype.is_complex:
            # The diagonal of R stays real.
            phase = e.complex_(0, e.imag(inner))
            skew = e.add(skew, e.select(on_diagonal(inner.shape), phase, 0))
        dq = e.add(product(q, e.sub(skew, inner)), scaled)
        return dq, product(e.sub(inner, skew), r)


class WithVectors(LibraryCall):
    """Base of ops that give values, and vectors too if `vectors`."""

    def differentiate(
        self, primals: Sequence[Any], tangents: Sequence[Any], outs: Sequence[Any] | None
    ) -> tuple[Sequence[Any], Sequence[Any]]:
        """The derivatives of values take the vectors, so they are computed as well."""
        if self.attrs["vectors"]:
            outs = bind_op(self, primals) if outs is None else outs
            return outs, self.jvp(primals, tangents, outs)
        found = self.bind(*primals, vectors=True)
        k = self.place
        tangent = self.value_tangent(tangents[0], found)
        return [found[k]] if outs is None else outs, [tangent]

    @property
    def place(self) -> int:
        """Where the values stand among the results."""
        return 0

    def value_tangent(self, t: Any, outs: Sequence[Any]) -> Any:
        """The tangent of the values."""
        raise NotImplementedError


class Eigh(WithVectors):
    """Eigenvalues in ascending order, and orthonormal eigenvectors as columns, of Hermitian
    matrices.

    `%w, %v = graph.eigh(%a) : (f32[3, 4], f32[3, 4, 4])`. Only the lower triangle of A is read,
    though derivatives take dA to be Hermitian as well.

    Attributes:
        vectors: whether the eigenvectors are a result, too.
    """

    name = "graph.eigh"
    routine = "eigh"
    x: Value = operand()
    vectors: bool = attr(True)

    def infer(self) -> tuple[TensorType, ...]:
        """Real numbers, and the type of A."""
        x = self.check_matrix(square=True).strong()
        w = TensorType(x.shape[:-1], real_of(x.dtype))
        return (w, x) if self.vectors else (w,)

    def value_tangent(self, t: Any, outs: Sequence[Any]) -> Any:
        """The diagonal of V^H dA V."""
        _, v = outs
        return real(diagonal(product(adjoint(v), product(t, v))))

    def jvp(
        self, primals: Sequence[Any], tangents: Sequence[Any], outs: Sequence[Any]
    ) -> Sequence[Any]:
        """dV = V (F * V^H dA V), where F_ij = 1 / (w_j - w_i) off the diagonal."""
        w, v = outs
        inner = product(adjoint(v), product(tangents[0], v))
        return real(diagonal(inner)), product(v, scaled_by(inner, gaps(w, w)))


def gaps(a: Any, b: Any) -> Any:
    """1 / (b_j - a_i), and 0 on the diagonal."""
    n = a.shape[-1]
    found = e.sub(columns_of(b, n), rows_of(a, n))
    inside = on_diagonal(found.shape)
    return e.select(inside, 0, e.div(1, e.select(inside, 1, found)))


def scaled_by(x: Any, factor: Any) -> Any:
    """A product with real numbers, elementwise."""
    return e.mul(x, factor if factor.dtype is x.dtype else e.cast(factor, x.dtype))


class Svd(WithVectors):
    """U with orthonormal columns, the singular values in descending order, and V^H with orthonormal
    rows: A = U diag(s) V^H.

    `%u, %s, %vh = graph.svd(%a) : (f32[5, 3], f32[3], f32[3, 3])`, or `%s` alone.

    Attributes:
        vectors: whether U and V^H are results, too.
        full: whether U and V^H are square.
    """

    name = "graph.svd"
    routine = "svd"
    x: Value = operand()
    vectors: bool = attr(True)
    full: bool = attr(False)

    def infer(self) -> tuple[TensorType, ...]:
        """The types of U, s and V^H."""
        x = self.check_matrix().strong()
        m, n = x.shape[-2:]
        k, lead = minimum(m, n), x.shape[:-2]
        s = TensorType((*lead, k), real_of(x.dtype))
        if not self.vectors:
            return (s,)
        u = (*lead, m, m if self.full else k)
        vh = (*lead, n if self.full else k, n)
        return x.with_shape(u), s, x.with_shape(vh)

    @property
    def place(self) -> int:
        """Singular values stand between the vectors."""
        return 1

    def differentiate(
        self, primals: Sequence[Any], tangents: Sequence[Any], outs: Sequence[Any] | None
    ) -> tuple[Sequence[Any], Sequence[Any]]:
        """Square factors of matrices that are not have no derivative."""
        m, n = tensor(self, 0).shape[-2:]
        if self.full and self.vectors and m != n:
            raise NotDifferentiableError(
                f"{title(self)}: the full SVD of {m} x {n} matrices has no derivative",
                loc=self.loc,
                rule="all vectors belong to singular values",
                fix="use full_matrices=False",
            )
        return super().differentiate(primals, tangents, outs)

    def value_tangent(self, t: Any, outs: Sequence[Any]) -> Any:
        """The diagonal of U^H dA V."""
        u, _, vh = outs
        return real(diagonal(product(adjoint(u), product(t, adjoint(vh)))))

    def jvp(
        self, primals: Sequence[Any], tangents: Sequence[Any], outs: Sequence[Any]
    ) -> Sequence[Any]:
        """Townsend, "Differentiating the singular value decomposition" (2016); for complex numbers
        the phases that are free are shared by U and V.
        """
        u, s, vh = outs
        (da,) = tangents
        uh, v = adjoint(u), adjoint(vh)
        inner = product(uh, product(da, v))
        k = s.shape[-1]
        squares = e.mul(s, s)
        factor = gaps(squares, squares)
        right = scaled_by(inner, columns_of(s, k))
        left = scaled_by(inner, rows_of(s, k))
        du = product(u, scaled_by(e.add(right, adjoint(right)), factor))
        dv = product(v, scaled_by(e.add(left, adjoint(left)), factor))
        if inner.dtype.is_complex:
            zero = e.eq(s, 0)
            inverse = e.select(zero, 0, e.div(1, e.select(zero, 1, s)))
            phase = e.select(on_diagonal(inner.shape), e.complex_(0, e.imag(inner)), 0)
            du = e.add(du, product(u, scaled_by(phase, columns_of(inverse, k))))
        du = add_tangents(du, outside(u, product(da, v), s))
        dv = add_tangents(dv, outside(v, product(adjoint(da), u), s))
        return du, real(diagonal(inner)), adjoint(dv)


def outside(u: Any, moved: Any, s: Any) -> Any:
    """The part of a tangent of U that leaves the span of its columns, None where that is all."""
    m, k = u.shape[-2:]
    if m == k:
        return None
    apart = e.sub(moved, product(u, product(adjoint(u), moved)))
    return scaled_by(apart, columns_of(e.div(1, s), m))


class Eig(WithVectors):
    """Eigenvalues, and eigenvectors as columns, of complex matrices.

    `%w, %v = graph.eig(%a) : (c64[3, 4], c64[3, 4, 4])`. Eigenvectors have length 1, and their
    element of the largest magnitude is real.

    Attributes:
        vectors: whether the eigenvectors are a result, too.
    """

    name = "graph.eig"
    routine = "eig"
    x: Value = operand()
    vectors: bool = attr(True)

    def infer(self) -> tuple[TensorType, ...]:
        """The type of A."""
        x = self.check_matrix(square=True).strong()
        if not x.dtype.is_complex:
            raise DTypeError(
                f"{title(self)}: the operand is {x}",
                loc=self.loc,
                rule="the eigenvalues of real matrices may be complex",
                fix="convert it to a complex dtype first",
            )
        w = x.with_shape(x.shape[:-1])
        return (w, x) if self.vectors else (w,)

    def value_tangent(self, t: Any, outs: Sequence[Any]) -> Any:
        """The diagonal of V^-1 dA V."""
        _, v = outs
        return diagonal(solve(v, product(t, v)))

    def jvp(
        self, primals: Sequence[Any], tangents: Sequence[Any], outs: Sequence[Any]
    ) -> Sequence[Any]:
        """dV = V (F * V^-1 dA V), and what keeps the length and the phase of each column."""
        w, v = outs
        inner = solve(v, product(tangents[0], v))
        dv = product(v, e.mul(inner, gaps(w, w)))
        along = column_sum(e.real(e.mul(conj(v), dv)))
        sizes = e.real(e.mul(conj(v), v))
        largest = first_largest(sizes)
        turn = column_sum(e.select(largest, e.imag(e.div(dv, e.select(largest, v, 1))), 0))
        rate = e.complex_(along, turn)
        return diagonal(inner), e.sub(dv, e.mul(v, columns_of(rate, v.shape[-2])))


def column_sum(x: Any) -> Any:
    """The sum of each column of matrices."""
    return sum_(x, (x.ndim - 2,))


def first_largest(x: Any) -> Any:
    """Whether an element is the first of the largest ones of its column."""
    axis = x.ndim - 2
    place = columns_of(argmax(x, axis), x.shape[axis])
    return e.eq(iota(x.shape, axis, int64), place)


# --- functions ------------------------------------------------------------------------------------


def cholesky(x: Any) -> Any:
    """The lower factor of Hermitian matrices; see `Cholesky`."""
    return bind(Cholesky, x)


def qr(x: Any, full: bool = False) -> tuple[Any, Any]:
    """Q and R; see `Qr`."""
    q, r = bind(Qr, x, full=full)
    return q, r


def eigh(x: Any) -> tuple[Any, Any]:
    """Eigenvalues and eigenvectors of Hermitian matrices; see `Eigh`."""
    w, v = bind(Eigh, x)
    return w, v


def eigvalsh(x: Any) -> Any:
    """Eigenvalues of Hermitian matrices; see `Eigh`."""
    return bind(Eigh, x, vectors=False)


def svd(x: Any, full: bool = False) -> tuple[Any, Any, Any]:
    """U, singular values and V^H; see `Svd`."""
    u, s, vh = bind(Svd, x, full=full)
    return u, s, vh


def svdvals(x: Any) -> Any:
    """Singular values; see `Svd`."""
    return bind(Svd, x, vectors=False)


def eig(x: Any) -> tuple[Any, Any]:
    """Eigenvalues and eigenvectors of complex matrices; see `Eig`."""
    w, v = bind(Eig, x)
    return w, v


def eigvals(x: Any) -> Any:
    """Eigenvalues of complex matrices; see `Eig`."""
    return bind(Eig, x, vectors=False)
