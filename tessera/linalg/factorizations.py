"""Factorizations of matrices, by LAPACK."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple, overload

from tessera.dtypes import complex64, complex128, float32
from tessera.errors import api_boundary
from tessera.graph.array import ArrayBase
from tessera.graph.device import using
from tessera.graph.namespace.arguments import ArrayLike
from tessera.graph.ops import elementwise as ops
from tessera.graph.ops import factorize
from tessera.graph.ops import solve as solving
from tessera.graph.ops.library import adjoint, columns_of, identity, product, tril, triu
from tessera.graph.ops.rearrange import concatenate, iota, slice_axis
from tessera.graph.placement import device_of
from tessera.graph.shortcut import composed
from tessera.ir.intexpr import minimum
from tessera.linalg.matrices import hermitian, matrix, unknown_choice

__all__ = [
    "EigResult",
    "EighResult",
    "QRResult",
    "SVDResult",
    "cholesky",
    "eig",
    "eigh",
    "eigvals",
    "eigvalsh",
    "lu",
    "qr",
    "svd",
    "svdvals",
]


class EigResult(NamedTuple):
    """What `eig` gives."""

    eigenvalues: ArrayBase
    eigenvectors: ArrayBase


class EighResult(NamedTuple):
    """What `eigh` gives."""

    eigenvalues: ArrayBase
    eigenvectors: ArrayBase


class QRResult(NamedTuple):
    """What `qr` gives."""

    Q: ArrayBase
    R: ArrayBase


class SVDResult(NamedTuple):
    """What `svd` gives."""

    U: ArrayBase
    S: ArrayBase
    Vh: ArrayBase


@composed
@api_boundary
def cholesky(
    x: ArrayLike, /, *, upper: bool = False, symmetrize_input: bool = True
) -> ArrayBase:
    """The Cholesky factor of Hermitian positive definite matrices, by LAPACK's `potrf`.

    Args:
        x: an array `[..., n, n]`.
        upper: whether to give U with x = U^H U, in place of L with x = L L^H.
        symmetrize_input: whether to take the mean of x and its conjugate transpose, so that both
            triangles count, also in derivatives. Otherwise only the lower one is read.

    Returns:
        An array `[..., n, n]`; NaN for a matrix that is not positive definite.

    Example:
        >>> import tessera as ts
        >>> ts.linalg.cholesky(ts.asarray([[4.0, 2.0], [2.0, 5.0]]))
        Array([[2., 0.],
               [1., 2.]], dtype=float32)
    """
    found = hermitian("cholesky", x, symmetrize_input)
    with using(device_of(found)):
        lower = factorize.cholesky(found)
        return adjoint(lower) if upper else lower


@overload
def qr(x: ArrayLike, /, mode: Literal["reduced", "complete"] = "reduced") -> QRResult: ...


@overload
def qr(x: ArrayLike, /, mode: Literal["r"]) -> ArrayBase: ...


@composed
@api_boundary
def qr(
    x: ArrayLike, /, mode: Literal["reduced", "complete", "r"] = "reduced"
) -> QRResult | ArrayBase:
    """The QR factorization by Householder reflections, as LAPACK's `geqrf` has it.

    Args:
        x: an array `[..., m, n]`.
        mode: `reduced`: Q is `[..., m, k]` and R `[..., k, n]`, with the lesser k of m and n;
            `complete`: Q is `[..., m, m]`, without derivatives where m > n; `r`: R alone, reduced.

    Returns:
        Q with orthonormal columns, and upper triangular R.
    """
    found = matrix("qr", x)
    if mode not in ("reduced", "complete", "r"):
        raise unknown_choice("qr", "mode", mode, ("reduced", "complete", "r"))
    m, n = found.shape[-2:]
    if isinstance(m, int) and isinstance(n, int) and 0 < m < n:
        # Q belongs to the first columns, and the others follow: so they have derivatives.
        q, left = factorize.qr(slice_axis(found, found.ndim - 1, 0, m))
        rest = slice_axis(found, found.ndim - 1, m, n)
        r = concatenate([left, product(adjoint(q), rest)], left.ndim - 1)
    else:
        q, r = factorize.qr(found, full=mode == "complete")
    return r if mode == "r" else QRResult(q, r)


@composed
@api_boundary
def lu(x: ArrayLike, /) -> tuple[ArrayBase, ArrayBase, ArrayBase]:
    """The LU factorization with partial pivoting, by LAPACK's `getrf`.

    Args:
        x: an array `[..., m, n]`.

    Returns:
        A permutation matrix P `[..., m, m]`, L `[..., m, k]` with ones on its diagonal, and upper
        triangular U `[..., k, n]`, with the lesser k of m and n: x = P L U.
    """
    found = matrix("lu", x)
    with using(device_of(found)):
        factors, perm = solving.lu(found)
        rank, m, n = found.ndim, *found.shape[-2:]
        k = minimum(m, n)
        columns = columns_of(perm, m)
        order = ops.eq(iota(columns.shape, rank - 2, perm.dtype), columns)
        lower = tril(slice_axis(factors, rank - 1, 0, k), -1)
        upper = triu(slice_axis(factors, rank - 2, 0, k))
        return ops.cast(order, found.dtype), ops.add(lower, identity(lower)), upper


@overload
def svd(
    x: ArrayLike, /, full_matrices: bool = True, compute_uv: Literal[True] = True
) -> SVDResult: ...


@overload
def svd(
    x: ArrayLike, /, full_matrices: bool = True, *, compute_uv: Literal[False]
) -> ArrayBase: ...


@composed
@api_boundary
def svd(
    x: ArrayLike, /, full_matrices: bool = True, compute_uv: bool = True
) -> SVDResult | ArrayBase:
    """The singular value decomposition x = U diag(S) Vh, by LAPACK's `gesdd`; of small real
    matrices by Jacobi's rotations.

    Args:
        x: an array `[..., m, n]`.
        full_matrices: whether U is `[..., m, m]` and Vh `[..., n, n]`; otherwise `[..., m, k]` and
            `[..., k, n]`, with the lesser k of m and n. They have derivatives if m == n.
        compute_uv: whether U and Vh are wanted; otherwise S is all that is given.

    Returns:
        U, S in descending order, and Vh. Derivatives of U and Vh are infinite or NaN where two
        singular values are equal.
    """
    found = matrix("svd", x)
    if not compute_uv:
        return factorize.svdvals(found)
    with using(device_of(found)):
        return SVDResult(*factorize.svd(found, full=full_matrices))


@composed
@api_boundary
def svdvals(x: ArrayLike, /) -> ArrayBase:
    """The singular values of matrices, in descending order."""
    return factorize.svdvals(matrix("svdvals", x))


@composed
@api_boundary
def eigh(
    x: ArrayLike, /, UPLO: Literal["L", "U"] | None = None, symmetrize_input: bool = True
) -> EighResult:
    """Eigenvalues and eigenvectors of Hermitian matrices, by LAPACK's `syevd` or `heevd`; of small
    real ones by Jacobi's rotations.

    Args:
        x: an array `[..., n, n]`.
        UPLO: which triangle is read if symmetrize_input is False: `L`, the lower one, or `U`.
        symmetrize_input: as for `cholesky`.

    Returns:
        Real eigenvalues `[..., n]` in ascending order, and orthonormal eigenvectors as columns of
        `[..., n, n]`. Derivatives of eigenvectors are infinite or NaN where two eigenvalues are
        equal.
    """
    return EighResult(*factorize.eigh(_triangle("eigh", x, UPLO, symmetrize_input)))


@composed
@api_boundary
def eigvalsh(
    x: ArrayLike, /, UPLO: Literal["L", "U"] | None = None, *, symmetrize_input: bool = True
) -> ArrayBase:
    """The eigenvalues of Hermitian matrices, in ascending order; see `eigh`."""
    return factorize.eigvalsh(_triangle("eigvalsh", x, UPLO, symmetrize_input))


def _triangle(name: str, x: object, triangle: str | None, symmetrize: bool) -> Any:
    """Hermitian matrices of which the lower triangle counts."""
    if triangle not in (None, "L", "U"):
        raise unknown_choice(name, "UPLO", triangle, ("L", "U"))
    found = hermitian(name, x, symmetrize)
    return adjoint(found) if triangle == "U" and not symmetrize else found


def _complex_matrix(name: str, x: object) -> Any:
    found = matrix(name, x, square=True)
    if found.dtype.is_complex:
        return found
    return ops.cast(found, complex64 if found.dtype is float32 else complex128)


@api_boundary
def eig(x: ArrayLike, /) -> EigResult:
    """Eigenvalues and right eigenvectors of square matrices, by LAPACK's `geev`.

    Args:
        x: an array `[..., n, n]`.

    Returns:
        Complex eigenvalues `[..., n]` in no order, and eigenvectors as columns of `[..., n, n]`,
        of length 1, the largest element of each real.
    """
    return EigResult(*factorize.eig(_complex_matrix("eig", x)))


@api_boundary
def eigvals(x: ArrayLike, /) -> ArrayBase:
    """The complex eigenvalues of square matrices; see `eig`."""
    return factorize.eigvals(_complex_matrix("eigvals", x))
