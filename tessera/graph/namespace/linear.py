"""Products of matrices and vectors. All of them are one op, `dot_general`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tessera.dtypes import DType, bool_, int32
from tessera.errors import ShapeError, api_boundary
from tessera.graph.array import ArrayBase
from tessera.graph.namespace.arguments import (
    ArrayLike,
    as_array,
    broadcast_dims,
    common_dtype,
    parse_axes,
    parse_axis,
    spread,
    to_dtype,
)
from tessera.graph.ops import elementwise as ops
from tessera.graph.ops.checks import may_equal
from tessera.graph.ops.contract import dot_general
from tessera.graph.ops.rearrange import reshape, transpose
from tessera.graph.ops.round_blocks import in_blocks
from tessera.graph.placement import common_device
from tessera.graph.shortcut import composed, shortcut
from tessera.ir import loc

__all__ = [
    "dot",
    "matmul",
    "outer",
    "tensordot",
    "vecdot",
]


def _pair(name: str, x1: object, x2: object) -> tuple[Any, Any]:
    given = [as_array(name, x1), as_array(name, x2)]
    common_device(name, given, (x1, x2))
    dtype, weak = common_dtype(name, given)
    a, b = (to_dtype(x, dtype, weak) for x in given)
    return a, b


def _contract(
    a: Any,
    b: Any,
    left: Sequence[int],
    right: Sequence[int],
    batch: int = 0,
    dtype: DType | None = None,
) -> Any:
    """The sum of products over axes; the first `batch` axes of both are kept, and in front."""
    pairs = (tuple(left), tuple(right))
    same = (tuple(range(batch)), tuple(range(batch)))
    if a.dtype.is_bool:
        # Whether any product is true: the sum of 0s and 1s is not 0. It is added in 32 bits.
        wide = dot_general(ops.cast(a, int32), ops.cast(b, int32), pairs, same)
        return ops.cast(wide, bool_)
    return dot_general(in_blocks(a, left), in_blocks(b, right), pairs, same, dtype)


def _mismatch(name: str, a: Any, b: Any, i: int, j: int) -> ShapeError:
    return ShapeError(
        f"{name}: x1 is {a.type.strong()}, x2 is {b.type.strong()}; dim {i} of x1 is {a.shape[i]},"
        f" but dim {j} of x2 is {b.shape[j]}",
        loc=loc.current(),
        rule="the dims that are summed over have equal lengths",
        fix=_other_way(name, a, b, i),
    )


def _other_way(name: str, a: Any, b: Any, i: int) -> str | None:
    """How two matrices fit that do not as they are."""
    if name != "matmul" or a.ndim != 2 or b.ndim != 2:
        return None
    if a.shape[i] == b.shape[1]:
        both = a.shape[0] == b.shape[0]
        more = ", or the first: `x1.T @ x2`" if both else ""
        return f"transpose the second: `x1 @ x2.T`{more}"
    return "transpose the first: `x1.T @ x2`" if a.shape[0] == b.shape[0] else None


@shortcut
@api_boundary
def matmul(x1: ArrayLike, x2: ArrayLike, /) -> ArrayBase:
    """The matrix product.

    Args:
        x1: an array `[..., n, k]`, or a vector `[k]`.
        x2: an array `[..., k, m]`, or a vector `[k]`. The dims in front are broadcast.

    Returns:
        An array `[..., n, m]`, without the dims that vectors lack.

    Example:
        >>> import tessera as ts
        >>> ts.matmul(ts.ones((2, 3)), ts.ones(3))
        Array([3., 3.], dtype=float32)
    """
    return matrix_product(*_pair("matmul", x1, x2))


def matrix_product(a: Any, b: Any, dtype: DType | None = None) -> Any:
    """The matrix product of arrays of one dtype.

    Args:
        a: the left operand.
        b: the right operand.
        dtype: the result's, in which products are summed; None is the operands'.
    """
    if a.ndim == 0 or b.ndim == 0:
        raise ShapeError(
            f"matmul: x1 is {a.type.strong()}, x2 is {b.type.strong()}",
            loc=loc.current(),
            rule="operands of a matrix product have one dim or more",
            fix="use `*` to multiply by a number",
        )
    i, j = a.ndim - 1, max(b.ndim - 2, 0)
    if not may_equal(a.shape[i], b.shape[j]):
        raise _mismatch("matmul", a, b, i, j)
    if b.ndim <= 2:
        return _contract(a, b, [i], [j], dtype=dtype)
    if a.ndim == 1:
        return _contract(b, a, [j], [0], dtype=dtype)
    lead = broadcast_dims([a.shape[:-2], b.shape[:-2]])
    if isinstance(lead, int):
        raise ShapeError(
            f"matmul: x1 is {a.type.strong()}, x2 is {b.type.strong()}, whose dims -{lead + 2} do"
            " not fit",
            loc=loc.current(),
            rule="dims in front of the matrices are equal, or one of them is 1 or missing",
        )
    a, b = spread(a, (*lead, *a.shape[-2:])), spread(b, (*lead, *b.shape[-2:]))
    rank = len(lead)
    return _contract(a, b, [rank + 1], [rank], rank, dtype)


@composed
@api_boundary
def tensordot(
    x1: ArrayLike,
    x2: ArrayLike,
    /,
    *,
    axes: int | tuple[Sequence[int], Sequence[int]] = 2,
) -> ArrayBase:
    """The sum of products over pairs of axes.

    Args:
        x1: the left operand.
        x2: the right operand.
        axes: axes of x1, and those of x2 that belong to them; or how many: the last ones of x1,
            and the first ones of x2.

    Returns:
        An array with the other dims of x1, then those of x2.
    """
    a, b = _pair("tensordot", x1, x2)
    if isinstance(axes, int):
        if not 0 <= axes <= min(a.ndim, b.ndim):
            raise ShapeError(
                f"tensordot: {axes} axes of {a.type.strong()} and {b.type.strong()}",
                loc=loc.current(),
                rule="no more axes are summed over than both operands have",
            )
        left = tuple(range(a.ndim - axes, a.ndim))
        right = tuple(range(axes))
    else:
        left = parse_axes("tensordot", tuple(axes[0]), a.ndim)
        right = parse_axes("tensordot", tuple(axes[1]), b.ndim)
    if len(left) != len(right):
        raise ShapeError(
            f"tensordot: {len(left)} axes of x1, and {len(right)} of x2",
            loc=loc.current(),
            rule="axes come in pairs",
        )
    for i, j in zip(left, right, strict=True):
        if not may_equal(a.shape[i], b.shape[j]):
            raise _mismatch("tensordot", a, b, i, j)
    return _contract(a, b, left, right)


@shortcut
@api_boundary
def vecdot(x1: ArrayLike, x2: ArrayLike, /, *, axis: int = -1) -> ArrayBase:
    """The sum of conj(x1) * x2 along an axis.

    Args:
        x1: the left operand.
        x2: the right operand; the other dims are broadcast.
        axis: the axis of both, negative: counted from the last.
    """
    a, b = _pair("vecdot", x1, x2)
    if axis >= 0:
        parse_axis("vecdot", axis, min(a.ndim, b.ndim))
    i, j = parse_axis("vecdot", axis, a.ndim), parse_axis("vecdot", axis, b.ndim)
    if not may_equal(a.shape[i], b.shape[j]):
        raise _mismatch("vecdot", a, b, i, j)
    a, b = _axis_last(a, i), _axis_last(b, j)
    lead = broadcast_dims([a.shape[:-1], b.shape[:-1]])
    if isinstance(lead, int):
        raise ShapeError(
            f"vecdot: x1 is {a.type.strong()}, x2 is {b.type.strong()}, whose other dims do not"
            " fit",
            loc=loc.current(),
            rule="they are equal, or one of them is 1 or missing",
        )
    a, b = spread(a, (*lead, a.shape[-1])), spread(b, (*lead, b.shape[-1]))
    if a.dtype.is_complex:
        a = ops.conj(a)
    rank = len(lead)
    return _contract(a, b, [rank], [rank], rank)


def _axis_last(x: Any, axis: int) -> Any:
    return transpose(x, [*(k for k in range(x.ndim) if k != axis), axis])


@shortcut
@api_boundary
def dot(x1: ArrayLike, x2: ArrayLike, /) -> ArrayBase:
    """NumPy's product: the sum over the last axis of x1 and the last but one of x2.

    Arrays without dims are multiplied elementwise.
    """
    a, b = _pair("dot", x1, x2)
    if a.ndim == 0 or b.ndim == 0:
        shape = a.shape or b.shape
        return ops.mul(spread(a, shape), spread(b, shape))
    i, j = a.ndim - 1, max(b.ndim - 2, 0)
    if not may_equal(a.shape[i], b.shape[j]):
        raise _mismatch("dot", a, b, i, j)
    return _contract(a, b, [i], [j])


@composed
@api_boundary
def outer(x1: ArrayLike, x2: ArrayLike, /) -> ArrayBase:
    """All products of an element of x1 and one of x2, both vectors."""
    a, b = _pair("outer", x1, x2)
    if a.ndim != 1 or b.ndim != 1:
        raise ShapeError(
            f"outer: x1 is {a.type.strong()}, x2 is {b.type.strong()}",
            loc=loc.current(),
            rule="both are vectors",
        )
    shape = (a.shape[0], b.shape[0])
    return ops.mul(spread(reshape(a, (a.shape[0], 1)), shape), spread(b, shape))
