"""Linear equations: solutions, inverses, pseudoinverses."""

from __future__ import annotations

from typing import Any

from tessera.dtypes import finfo, int64, real_of
from tessera.errors import ShapeError, api_boundary
from tessera.graph.array import ArrayBase
from tessera.graph.device import using
from tessera.graph.namespace.arguments import ArrayLike, as_array, broadcast_dims, spread
from tessera.graph.ops import determinant, factorize
from tessera.graph.ops import elementwise as ops
from tessera.graph.ops import solve as solving
from tessera.graph.ops.checks import may_equal, shape_text
from tessera.graph.ops.library import conj, identity, product, turned
from tessera.graph.ops.rearrange import broadcast, full, reshape, squeeze
from tessera.graph.ops.reduce import max_, sum_
from tessera.graph.placement import device_of
from tessera.graph.shortcut import composed
from tessera.ir import loc
from tessera.ir.intexpr import Dim
from tessera.linalg.matrices import check_matrix, matrix, pair, same_lead

__all__ = [
    "inv",
    "lstsq",
    "matrix_rank",
    "pinv",
    "solve",
    "triangular_solve",
]


@composed
@api_boundary
def solve(x1: ArrayLike, x2: ArrayLike, /) -> ArrayBase:
    """The solution of x1 @ x = x2, by LAPACK's `getrf`.

    Args:
        x1: an array `[..., n, n]`.
        x2: a vector `[n]`, or an array `[..., n, k]`. The dims in front are broadcast.

    Returns:
        An array of the shape of x2, with all dims in front. A singular matrix divides by zero: the
        result has infinities or NaN.

    Example:
        >>> import tessera as ts
        >>> ts.linalg.solve(ts.asarray([[2.0, 0.0], [0.0, 4.0]]), ts.asarray([2.0, 8.0]))
        Array([1., 2.], dtype=float32)
    """
    a, b = pair("solve", x1, x2)
    check_matrix("solve", a, square=True)
    is_vector = b.ndim == 1
    _check_sides("solve", a, b, a.shape[-1])
    b = reshape(b, (*b.shape, 1)) if is_vector else b
    with using(device_of(a)):
        a, b = same_lead("solve", a, b)
        found = solving.solve(a, b)
        return squeeze(found, (found.ndim - 1,)) if is_vector else found


def _check_sides(name: str, a: Any, b: Any, n: Dim, axis: int = -2) -> None:
    """Right-hand sides fit the matrices: `n` rows, or columns, or elements of a vector."""
    if b.ndim > 1 or axis == -1:
        check_matrix(name, b)
    if b.ndim == 0 or not may_equal(n, b.shape[axis if b.ndim > 1 else 0]):
        word = "elements" if b.ndim < 2 else "rows" if axis == -2 else "columns"
        raise ShapeError(
            f"{name}: the matrices are {a.type.strong()}, the right-hand sides {b.type.strong()}",
            loc=loc.current(),
            rule=f"right-hand sides have {n} {word} here",
        )


@composed
@api_boundary
def triangular_solve(
    a: ArrayLike,
    b: ArrayLike,
    /,
    *,
    left_side: bool = False,
    lower: bool = False,
    transpose_a: bool = False,
    conjugate_a: bool = False,
    unit_diagonal: bool = False,
) -> ArrayBase:
    """The solution of equations with a triangular matrix, by BLAS's `trsm`.

    Args:
        a: an array `[..., n, n]`, of which one triangle is read.
        b: an array `[..., m, n]`, or `[..., n, m]` if left_side. The dims in front are broadcast.
        left_side: whether to solve op(a) @ x = b in place of x @ op(a) = b.
        lower: whether a is lower triangular, not upper.
        transpose_a: whether op transposes.
        conjugate_a: whether op conjugates.
        unit_diagonal: whether the diagonal of a is taken to be 1.

    Returns:
        An array of the shape of b, with all dims in front. A zero on the diagonal divides as
        numbers do.
    """
    x, y = pair("triangular_solve", a, b)
    check_matrix("triangular_solve", x, square=True)
    _check_sides("triangular_solve", x, y, x.shape[-1], -2 if left_side else -1)
    x, y = same_lead("triangular_solve", x, y)
    x = conj(x) if conjugate_a else x
    options = {"lower": lower, "unit_diagonal": unit_diagonal}
    if left_side:
        return solving.triangular_solve(x, y, transposed=transpose_a, **options)
    return turned(
        solving.triangular_solve(x, turned(y), transposed=not transpose_a, **options)
    )


@composed
@api_boundary
def inv(x: ArrayLike, /) -> ArrayBase:
    """The inverses of square matrices; infinities or NaN for singular ones.

    Args:
        x: an array `[..., n, n]`.
    """
    found = matrix("inv", x, square=True)
    with using(device_of(found)):
        return solving.solve(found, identity(found))


@composed
@api_boundary
def pinv(x: ArrayLike, /, rtol: ArrayLike | None = None) -> ArrayBase:
    """The Moore-Penrose pseudoinverses of matrices, by the singular value decomposition.

    Args:
        x: an array `[..., m, n]`.
        rtol: singular values up to this share of the largest one count as zero; a number, or an
            array of the shape of the dims in front. None: the larger of m and n times the
            precision of the dtype.

    Returns:
        An array `[..., n, m]`. Its derivative is that for matrices of constant rank.
    """
    found = matrix("pinv", x)
    with using(device_of(found)):
        return determinant.pinv(found, _share("pinv", found, rtol))


def _share(name: str, x: Any, rtol: Any) -> Any:
    """The share of the largest singular value that counts as zero, for each matrix."""
    dtype, lead = real_of(x.dtype), x.shape[:-2]
    if rtol is None:
        m, n = x.shape[-2:]
        larger = max([d for d in (m, n) if isinstance(d, int)], default=1)
        return full(lead, larger * finfo(dtype).eps, dtype)
    given = ops.cast(as_array(name, rtol), dtype)
    if given.ndim > len(lead) or broadcast_dims([given.shape, lead]) != lead:
        raise ShapeError(
            f"{name}: rtol has the shape {shape_text(given.shape)} for {x.type.strong()}",
            loc=loc.current(),
            rule=f"it fits the dims {shape_text(lead)} in front of the matrices",
        )
    return spread(given, lead)


@composed
@api_boundary
def matrix_rank(x: ArrayLike, /, rtol: ArrayLike | None = None) -> ArrayBase:
    """How many singular values of matrices are larger than a share of the largest one.

    Args:
        x: an array `[..., m, n]`.
        rtol: as for `pinv`.

    Returns:
        int64 numbers `[...]`.
    """
    found = matrix("matrix_rank", x)
    with using(device_of(found)):
        return _rank(factorize.svdvals(found), _share("matrix_rank", found, rtol))


@composed
def _rank(s: Any, share: Any) -> Any:
    """How many singular values do not count as zero."""
    axis = s.ndim - 1
    if s.shape[axis] == 0:
        return full(s.shape[:-1], 0, int64)
    limit = ops.mul(max_(s, (axis,)), share)
    above = ops.gt(s, broadcast(limit, s.shape, range(axis)))
    return sum_(ops.cast(above, int64), (axis,))


@composed
@api_boundary
def lstsq(
    a: ArrayLike, b: ArrayLike, /, rcond: float | None = None
) -> tuple[ArrayBase, ArrayBase, ArrayBase, ArrayBase]:
    """The least-squares solution of a @ x = b of the smallest norm.

    Args:
        a: an array `[..., m, n]`.
        b: a vector `[m]`, or an array `[..., m, k]`.
        rcond: singular values up to this share of the largest one count as zero. None: the larger
            of m and n times the precision of the dtype.

    Returns:
        The solution, the sums of squared residuals of each column, the ranks, and the singular
        values. Unlike NumPy's, the residuals are there for every rank and shape.
    """
    x, y = pair("lstsq", a, b)
    check_matrix("lstsq", x)
    is_vector = y.ndim == 1
    _check_sides("lstsq", x, y, x.shape[-2])
    y = reshape(y, (*y.shape, 1)) if is_vector else y
    with using(device_of(x)):
        x, y = same_lead("lstsq", x, y)
        share = _share("lstsq", x, rcond)
        found, residuals = _fitted(x, determinant.pinv(x, share), y)
        if is_vector:
            found = squeeze(found, (found.ndim - 1,))
        s = factorize.svdvals(x)
        return found, residuals, _rank(s, share), s


@composed
def _fitted(x: Any, inverse: Any, y: Any) -> tuple[Any, Any]:
    """The solution by a pseudoinverse, and what is left of the right-hand sides."""
    found = product(inverse, y)
    apart = ops.sub(product(x, found), y)
    size = ops.real(ops.mul(apart, conj(apart))) if x.dtype.is_complex else ops.square(apart)
    return found, sum_(size, (x.ndim - 2,))
