"""Sorting. NaN is larger than everything else."""

from __future__ import annotations

from typing import Any

from tessera.dtypes import bool_, uint8
from tessera.errors import DTypeError, api_boundary
from tessera.graph.array import ArrayBase
from tessera.graph.namespace.arguments import ArrayLike, as_array, parse_axis
from tessera.graph.ops import sort as raw
from tessera.graph.ops.elementwise import cast
from tessera.graph.shortcut import shortcut
from tessera.ir import loc

__all__ = [
    "argsort",
    "sort",
]


@shortcut
@api_boundary
def sort(
    x: ArrayLike, /, *, axis: int = -1, descending: bool = False, stable: bool = True
) -> ArrayBase:
    """The array with its elements in order along an axis.

    Args:
        x: real numbers.
        axis: the axis.
        descending: whether the largest comes first.
        stable: whether equal elements keep their order.
    """
    found = _sortable("sort", x)
    at = parse_axis("sort", axis, found.ndim)
    if found.dtype.is_bool:
        return cast(raw.sort((cast(found, uint8),), at, 1, descending, stable)[0], bool_)
    return raw.sort((found,), at, 1, descending, stable)[0]


@shortcut
@api_boundary
def argsort(
    x: ArrayLike, /, *, axis: int = -1, descending: bool = False, stable: bool = True
) -> ArrayBase:
    """Which elements of the array come first, second and so on, in order along an axis.

    Args:
        x: real numbers.
        axis: the axis.
        descending: whether the largest comes first.
        stable: whether equal elements keep their order.

    Returns:
        int64 positions along the axis.
    """
    found = _sortable("argsort", x)
    at = parse_axis("argsort", axis, found.ndim)
    if found.dtype.is_bool:
        found = cast(found, uint8)
    return raw.argsort(found, at, descending, stable)


def _sortable(name: str, x: object) -> Any:
    found = as_array(name, x)
    if found.dtype.is_complex:
        raise DTypeError(
            f"{name}: the array is {found.type.strong()}",
            loc=loc.current(),
            rule="complex numbers have no order",
            fix="sort by `ts.abs(x)` or `ts.real(x)`",
        )
    return found
