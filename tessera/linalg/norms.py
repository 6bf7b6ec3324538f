"""Numbers that say something of matrices and vectors: determinants, traces, norms; and products."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

from tessera.dtypes import DType
from tessera.errors import OptionError, ShapeError, api_boundary
from tessera.graph.array import ArrayBase
from tessera.graph.device import using
from tessera.graph.namespace.arguments import (
    ArrayLike,
    as_array,
    as_inexact,
    operands,
    parse_axes,
    parse_axis,
)
from tessera.graph.namespace.linear import matmul
from tessera.graph.namespace.statistics import sum as total
from tessera.graph.ops import determinant, factorize
from tessera.graph.ops import elementwise as ops
from tessera.graph.ops.checks import may_equal
from tessera.graph.ops.library import on_diagonal
from tessera.graph.ops.rearrange import concatenate, full, move_axis, reshape, slice_axis
from tessera.graph.ops.reduce import max_, min_, sum_
from tessera.graph.placement import device_of
from tessera.graph.shortcut import composed, fused
from tessera.ir import loc
from tessera.linalg.equations import inv
from tessera.linalg.matrices import check_matrix, matrix, unknown_choice

__all__ = [
    "SlogdetResult",
    "cross",
    "det",
    "diagonal",
    "matrix_norm",
    "matrix_power",
    "norm",
    "slogdet",
    "trace",
    "vector_norm",
]


class SlogdetResult(NamedTuple):
    """What `slogdet` gives."""

    sign: ArrayBase
    logabsdet: ArrayBase


@composed
@api_boundary
def det(x: ArrayLike, /) -> ArrayBase:
    """The determinants of square matrices `[..., n, n]`, by LAPACK's `getrf`.

    The gradient is the matrix of cofactors; it is exact for singular matrices too, if they lack one
    rank.
    """
    return determinant.det(matrix("det", x, square=True))


@composed
@api_boundary
def slogdet(x: ArrayLike, /) -> SlogdetResult:
    """Signs of determinants, and the logarithms of their magnitudes.

    Args:
        x: an array `[..., n, n]`.

    Returns:
        The sign, a complex number of magnitude 1 for complex matrices, or 0; and the logarithm,
        which is -inf then.
    """
    return SlogdetResult(*determinant.slogdet(matrix("slogdet", x, square=True)))


def _diagonal(name: str, x: object, offset: int) -> Any:
    found = as_array(name, x)
    check_matrix(name, found)
    m, n = found.shape[-2:]
    first, second = max(-offset, 0), max(offset, 0)
    axis = found.ndim - 2
    if not isinstance(m, int) or not isinstance(n, int):
        raise ShapeError(
            f"{name}: the array is {found.type.strong()}",
            loc=loc.current(),
            rule="the length of a diagonal is known when the program is traced",
        )
    length = max(min(m - first, n - second), 0)
    if not length:
        return full((*found.shape[:-2], 0), 0, found.dtype)
    block = slice_axis(found, axis, first, first + length)
    block = slice_axis(block, axis + 1, second, second + length)
    # The diagonal of a square block is every element at a step of length + 1 in a row of them.
    row = reshape(block, (*found.shape[:-2], length * length))
    return slice_axis(row, axis, 0, length * length, length + 1)


@composed
@api_boundary
def diagonal(x: ArrayLike, /, *, offset: int = 0) -> ArrayBase:
    """The elements on a diagonal of matrices.

    Args:
        x: an array `[..., m, n]`.
        offset: which diagonal: positive above the main one, negative below.

    Returns:
        An array with one dim for the diagonal in place of the last two.
    """
    with using(device_of(as_array("diagonal", x))):
        return _diagonal("diagonal", x, operator.index(offset))


@composed
@api_boundary
def trace(x: ArrayLike, /, *, offset: int = 0, dtype: DType | None = None) -> ArrayBase:
    """The sum along a diagonal of matrices.

    Args:
        x: an array `[..., m, n]` of numbers.
        offset: which diagonal: positive above the main one, negative below.
        dtype: of the result; as for `sum`.
    """
    with using(device_of(as_array("trace", x))):
        return total(_diagonal("trace", x, operator.index(offset)), axis=-1, dtype=dtype)


@fused
@composed
@api_boundary
def cross(x1: ArrayLike, x2: ArrayLike, /, *, axis: int = -1) -> ArrayBase:
    """The cross product of vectors of three elements.

    Args:
        x1: vectors along an axis.
        x2: vectors along the same axis; the other dims are broadcast.
        axis: the axis, negative: counted from the last.
    """
    given = [as_array("cross", x1), as_array("cross", x2)]
    if axis >= 0:
        parse_axis("cross", axis, min(x.ndim for x in given))
    for x in given:
        at = parse_axis("cross", axis, x.ndim)
        if not may_equal(x.shape[at], 3):
            raise ShapeError(
                f"cross: the arrays are {given[0].type.strong()} and {given[1].type.strong()}",
                loc=loc.current(),
                rule=f"axis {axis} has three elements",
            )
    a, b = operands("cross", *given)
    at = parse_axis("cross", axis, a.ndim)

    def turn(x: Any, first: int) -> Any:
        parts = [slice_axis(x, at, first, 3), slice_axis(x, at, 0, first)]
        return concatenate(parts, at)

    return ops.sub(ops.mul(turn(a, 1), turn(b, 2)), ops.mul(turn(a, 2), turn(b, 1)))


@composed
@api_boundary
def matrix_power(x: ArrayLike, n: int, /) -> ArrayBase:
    """The n-th power of square matrices, by repeated squaring; of their inverses for a negative n.

    Args:
        x: an array `[..., m, m]`.
        n: an int.
    """
    found = as_array("matrix_power", x)
    check_matrix("matrix_power", found, square=True)
    count = operator.index(n)
    with using(device_of(found)):
        if count == 0:
            return ops.cast(on_diagonal(found.shape), found.dtype)
        if count < 0:
            found = inv(found)
        square, result = found, None
        rest = abs(count)
        while rest:
            if rest & 1:
                result = square if result is None else matmul(result, square)
            rest >>= 1
            square = matmul(square, square) if rest else square
        return result  # pyright: ignore[reportReturnType] -- a power is not 0 here


# --- norms ----------------------------------------------------------------------------------------


@fused
@composed
@api_boundary
def vector_norm(
    x: ArrayLike,
    /,
    *,
    axis: int | Sequence[int] | None = None,
    keepdims: bool = False,
    ord: float = 2,
) -> ArrayBase:
    """The norm of vectors: (sum |x|**ord) ** (1 / ord).

    Args:
        x: an array.
        axis: along which vectors lie, one or several; None: all elements are one vector.
        keepdims: whether the axes stay, with length 1.
        ord: a number. inf is the largest magnitude, -inf the smallest; 0 counts elements that are
            not 0.

    Returns:
        Real numbers.
    """
    found = as_inexact("vector_norm", x)
    if isinstance(ord, str):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise OptionError(
            f"vector_norm: ord={ord!r}",
            loc=loc.current(),
            rule="the order of a norm of vectors is a number",
            fix="use `matrix_norm` for a norm of matrices",
        )
    axes = parse_axes("vector_norm", axis, found.ndim)
    with using(device_of(found)):
        return _kept(_vector_norm(found, axes, ord), found, axes, keepdims)


def _kept(found: Any, x: Any, axes: Sequence[int], keepdims: bool) -> Any:
    if not keepdims:
        return found
    return reshape(found, tuple([1 if k in axes else d for k, d in enumerate(x.shape)]))


def _vector_norm(x: Any, axes: Sequence[int], order: float) -> Any:
    if order == 2:
        square = ops.square(ops.real(x)) if x.dtype.is_complex else ops.square(x)
        if x.dtype.is_complex:
            square = ops.add(square, ops.square(ops.imag(x)))
        return ops.sqrt(sum_(square, axes))
    size = ops.abs_(x)
    if order == float("inf"):
        return max_(size, axes)
    if order == -float("inf"):
        return min_(size, axes)
    if order == 0:
        return sum_(ops.cast(ops.ne(x, 0), size.dtype), axes)
    if order == 1:
        return sum_(size, axes)
    return ops.pow_(sum_(ops.pow_(size, float(order)), axes), 1 / float(order))


ORDERS = ("fro", "nuc", 1, -1, 2, -2, float("inf"), -float("inf"))


@composed
@api_boundary
def matrix_norm(
    x: ArrayLike,
    /,
    *,
    keepdims: bool = False,
    ord: float | Literal["fro", "nuc"] | None = "fro",
) -> ArrayBase:
    """The norm of matrices.

    Args:
        x: an array `[..., m, n]`.
        keepdims: whether the last two dims stay, with length 1.
        ord: `fro` or None: the root of the sum of squares; `nuc`: the sum of singular values; 2 and
            -2: the largest and the smallest one; 1 and -1: the largest and the smallest sum of
            magnitudes of a column; inf and -inf: of a row.

    Returns:
        Real numbers.
    """
    found = as_inexact("matrix_norm", x)
    check_matrix("matrix_norm", found)
    with using(device_of(found)):
        axes = (found.ndim - 2, found.ndim - 1)
        return _kept(_matrix_norm(found, ord), found, axes, keepdims)


def _matrix_norm(x: Any, order: Any) -> Any:
    rank = x.ndim
    if order is None or order == "fro":
        return _vector_norm(x, (rank - 2, rank - 1), 2)
    if order not in ORDERS:
        raise unknown_choice("matrix_norm", "ord", order, ORDERS)
    if order in ("nuc", 2, -2):
        pick = sum_ if order == "nuc" else max_ if order == 2 else min_
        return pick(factorize.svdvals(x), (rank - 2,))
    along = rank - 2 if order in (1, -1) else rank - 1
    sums = sum_(ops.abs_(x), (along,))
    return (min_ if order in (-1, -float("inf")) else max_)(sums, (rank - 2,))


@fused
@composed
@api_boundary
def norm(
    x: ArrayLike,
    /,
    ord: float | Literal["fro", "nuc"] | None = None,
    axis: int | Sequence[int] | None = None,
    keepdims: bool = False,
) -> ArrayBase:
    """NumPy's norm: of vectors along one axis, of matrices along two.

    Args:
        x: an array.
        ord: as for `vector_norm` or `matrix_norm`. None: 2, or `fro`.
        axis: an axis, or two. None: all elements are one vector if ord is None; otherwise the array
            is a vector or a matrix.
        keepdims: whether the axes stay, with length 1.
    """
    found = as_inexact("norm", x)
    axes = parse_axes("norm", axis, found.ndim)
    if axis is None and ord is None:
        return vector_norm(found, keepdims=keepdims)
    if len(axes) == 1:
        return vector_norm(found, axis=axes, keepdims=keepdims, ord=2 if ord is None else ord)  # pyright: ignore[reportArgumentType]
    if len(axes) != 2:
        raise ShapeError(
            f"norm: {len(axes)} axes of {found.type.strong()}",
            loc=loc.current(),
            rule="norms are of vectors along one axis, or of matrices along two",
        )
    with using(device_of(found)):
        moved = move_axis(found, axes[0], found.ndim - 1)
        second = axes[1] - (axes[1] > axes[0])
        moved = move_axis(moved, second, found.ndim - 1)
        return _kept(_matrix_norm(moved, ord), found, axes, keepdims)
