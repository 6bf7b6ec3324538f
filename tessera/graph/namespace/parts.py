"""Arrays cut in pieces and put together, as NumPy's users do it."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from tessera.errors import OptionError, ShapeError, api_boundary
from tessera.graph.array import ArrayBase
from tessera.graph.namespace.arguments import ArrayLike, as_array, index_of, is_sequence, parse_axis
from tessera.graph.namespace.creation import arange, zeros
from tessera.graph.namespace.manipulation import (
    concat,
    expand_dims,
    flip,
    permute_dims,
    reshape,
    stack,
)
from tessera.graph.namespace.searching import where
from tessera.graph.ops.checks import may_equal, shape_text
from tessera.graph.ops.rearrange import slice_axis
from tessera.graph.shortcut import composed, fused
from tessera.ir import loc
from tessera.ir.intexpr import IntExpr

__all__ = [
    "array_split",
    "atleast_1d",
    "atleast_2d",
    "atleast_3d",
    "column_stack",
    "diag",
    "dstack",
    "hstack",
    "rot90",
    "split",
    "swapaxes",
    "vstack",
]


@composed
@api_boundary
def split(
    x: ArrayLike, indices_or_sections: int | Sequence[int], /, *, axis: int = 0
) -> list[ArrayBase]:
    """The parts of an array along an axis.

    Args:
        x: the array; the axis has a known length.
        indices_or_sections: how many parts, which are equally long; or where each part but the
            first starts.
        axis: the axis.

    Raises:
        ShapeError: if the parts were not equally long.

    Example:
        >>> import tessera as ts
        >>> ts.split(ts.arange(6), 3)
        [Array([0, 1], dtype=int64), Array([2, 3], dtype=int64), Array([4, 5], dtype=int64)]
    """
    found = as_array("split", x)
    at = parse_axis("split", axis, found.ndim)
    length = found.shape[at]
    if isinstance(length, IntExpr) and not is_sequence(indices_or_sections):
        count = _sections("split", indices_or_sections)
        if may_equal(length % count, 0):
            part = length // count
            return [slice_axis(found, at, k * part, (k + 1) * part) for k in range(count)]
    at, size = _known("split", found, axis)
    if not is_sequence(indices_or_sections):
        count = _sections("split", indices_or_sections)
        if size % count:
            raise ShapeError(
                f"split: {count} parts of dim {at} of {found.type.strong()}",
                loc=loc.current(),
                rule="the parts are equally long",
                fix="for parts whose lengths differ by one, use `ts.array_split`",
            )
    return _split("split", found, indices_or_sections, at, size)


@composed
@api_boundary
def array_split(
    x: ArrayLike, indices_or_sections: int | Sequence[int], /, *, axis: int = 0
) -> list[ArrayBase]:
    """The parts of an array along an axis; the first ones are longer by one if they have to be.

    For the arguments see `split`.
    """
    found = as_array("array_split", x)
    at, size = _known("array_split", found, axis)
    return _split("array_split", found, indices_or_sections, at, size)


def _known(name: str, x: Any, axis: int) -> tuple[int, int]:
    """An axis and its length."""
    at = parse_axis(name, axis, x.ndim)
    size = x.shape[at]
    if not isinstance(size, int):
        raise ShapeError(
            f"{name}: dim {at} of {x.type.strong()} has a length that is not known",
            loc=loc.current(),
            rule="the number of results does not depend on a length that varies",
        )
    return at, size


def _sections(name: str, count: object) -> int:
    found = index_of(f"{name}: indices_or_sections", count)
    if found < 1:
        raise OptionError(
            f"{name}: {found} parts",
            loc=loc.current(),
            rule="there is at least one part",
        )
    return found


def _split(name: str, x: Any, how: object, axis: int, size: int) -> list[ArrayBase]:
    if is_sequence(how):
        starts = [index_of(f"{name}: indices_or_sections", i) for i in how]
        cuts = [0, *[_clipped(i, size) for i in starts], size]
    else:
        count = _sections(name, how)
        each, longer = divmod(size, count)
        cuts = [k * each + min(k, longer) for k in range(count + 1)]
    before = (slice(None),) * axis
    return [x[(*before, slice(a, max(a, b)))] for a, b in pairwise(cuts)]


def _clipped(index: int, size: int) -> int:
    return min(max(index + size if index < 0 else index, 0), size)


@composed
@api_boundary
def swapaxes(x: ArrayLike, axis1: int, axis2: int, /) -> ArrayBase:
    """The array with two axes in each other's place."""
    found = as_array("swapaxes", x)
    order = [*range(found.ndim)]
    a, b = [parse_axis("swapaxes", axis, found.ndim) for axis in (axis1, axis2)]
    order[a], order[b] = b, a
    return permute_dims(found, tuple(order))


@composed
@api_boundary
def rot90(x: ArrayLike, /, k: int = 1, *, axes: tuple[int, int] = (0, 1)) -> ArrayBase:
    """The array turned by `k` right angles, from the first of two axes towards the second."""
    found = as_array("rot90", x)
    if found.ndim < 2:
        raise ShapeError(
            f"rot90: {found.type.strong()}",
            loc=loc.current(),
            rule="an array that is turned has two dims at least",
        )
    first, second = [parse_axis("rot90", axis, found.ndim) for axis in axes]
    if first == second:
        raise OptionError(
            f"rot90: axes={axes!r}", loc=loc.current(), rule="the axes are two different ones"
        )
    turns = index_of("rot90: k", k) % 4
    if turns == 2:
        return flip(found, axis=(first, second))
    if turns == 1:
        return swapaxes(flip(found, axis=second), first, second)
    return flip(swapaxes(found, first, second), axis=second) if turns else found


@composed
@api_boundary
def atleast_1d(x: ArrayLike, /) -> ArrayBase:
    """The array, with a dim if it has none."""
    found = as_array("atleast_1d", x)
    return found if found.ndim else reshape(found, (1,))


@composed
@api_boundary
def atleast_2d(x: ArrayLike, /) -> ArrayBase:
    """The array, with dims of length 1 in front until there are two."""
    found = as_array("atleast_2d", x)
    return found if found.ndim >= 2 else reshape(found, (*[1] * (2 - found.ndim), *found.shape))


@composed
@api_boundary
def atleast_3d(x: ArrayLike, /) -> ArrayBase:
    """The array, with dims of length 1 until there are three: a vector is `[1, N, 1]`, a matrix
    `[M, N, 1]`.
    """
    found = as_array("atleast_3d", x)
    if found.ndim >= 3:
        return found
    return expand_dims(atleast_2d(found), axis=2)


@composed
@api_boundary
def vstack(arrays: Sequence[ArrayLike], /) -> ArrayBase:
    """Arrays below each other; vectors are rows."""
    return concat([atleast_2d(x) for x in _several("vstack", arrays)])


@composed
@api_boundary
def hstack(arrays: Sequence[ArrayLike], /) -> ArrayBase:
    """Arrays beside each other: along the second dim, or the only one."""
    found = [atleast_1d(x) for x in _several("hstack", arrays)]
    return concat(found, axis=0 if found[0].ndim == 1 else 1)


@composed
@api_boundary
def dstack(arrays: Sequence[ArrayLike], /) -> ArrayBase:
    """Arrays behind each other, along the third dim."""
    return concat([atleast_3d(x) for x in _several("dstack", arrays)], axis=2)


@composed
@api_boundary
def column_stack(arrays: Sequence[ArrayLike], /) -> ArrayBase:
    """Vectors as the columns of a matrix; matrices stay as they are."""
    found = [as_array("column_stack", x) for x in _several("column_stack", arrays)]
    if all(x.ndim == 1 for x in found):
        return stack(found, axis=1)
    return concat([reshape(x, (x.size, 1)) if x.ndim < 2 else x for x in found], axis=1)


def _several(name: str, arrays: object) -> Sequence[Any]:
    if not is_sequence(arrays) or not arrays:
        what = "no array" if is_sequence(arrays) else f"a {type(arrays).__name__}"
        raise OptionError(
            f"{name}: got {what}",
            loc=loc.current(),
            rule="the arrays come as a list or tuple, and there is at least one",
        )
    return arrays


@fused
@composed
@api_boundary
def diag(x: ArrayLike, /, *, k: int = 0) -> ArrayBase:
    """A matrix with a vector on its `k`-th diagonal, or the `k`-th diagonal of a matrix.

    Diagonals above the main one have positive numbers.

    Example:
        >>> import tessera as ts
        >>> ts.diag(ts.asarray([1.0, 2.0]))
        Array([[1., 0.],
               [0., 2.]], dtype=float32)
    """
    found = as_array("diag", x)
    k = index_of("diag: k", k)
    if found.ndim == 2:
        rows, columns = found.shape
        start = max(-k, 0)
        count = max(min(rows - start, columns - max(k, 0)), 0)
        at = arange(count, device=found.device)
        return found[at + start, at + max(k, 0)]
    if found.ndim != 1:
        raise ShapeError(
            f"diag: x has shape {shape_text(found.shape)}",
            loc=loc.current(),
            rule="it is a vector or a matrix",
            fix="for stacks of matrices use `ts.linalg.diagonal`",
        )
    size = found.shape[0] + abs(k)
    row = arange(size, device=found.device)
    on = expand_dims(row, axis=1) + k == row
    if k >= 0:
        padded = concat([_zeros(found, k), found])
        return where(on, padded, _zeros(found))
    padded = concat([found, _zeros(found, -k)])
    return where(on, padded, _zeros(found))


def _zeros(like: Any, count: int | None = None) -> Any:
    shape = () if count is None else (count,)
    return zeros(shape, dtype=like.dtype, device=like.device)
