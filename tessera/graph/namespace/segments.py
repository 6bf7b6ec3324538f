"""Reductions of segments: rows that have one number are combined."""

from __future__ import annotations

from typing import Any

from tessera.errors import DTypeError, ShapeError, api_boundary
from tessera.graph.array import ArrayBase
from tessera.graph.namespace.arguments import ArrayLike, as_array, concrete
from tessera.graph.namespace.taking import index_array
from tessera.graph.ops.checks import may_equal
from tessera.graph.ops.gather import Combine, scatter
from tessera.graph.ops.rearrange import full
from tessera.graph.placement import common_device
from tessera.graph.shortcut import composed
from tessera.ir import loc
from tessera.ir.intexpr import Dim
from tessera.ir.scalar import SCALARS

__all__ = [
    "segment_max",
    "segment_min",
    "segment_prod",
    "segment_sum",
]


@composed
@api_boundary
def segment_sum(
    data: ArrayLike,
    segment_ids: ArrayLike,
    num_segments: int | None = None,
    *,
    indices_are_sorted: bool = False,
    unique_indices: bool = False,
) -> ArrayBase:
    """The sums of rows that have one number.

    Args:
        data: the rows, `[N, ...]`.
        segment_ids: the number of each row, `[N]` integers. Rows with negative numbers, or numbers
            that are too large, do not count.
        num_segments: how many numbers there are; by default as many as needed, which must then be
            known.
        indices_are_sorted: of no effect.
        unique_indices: promises that no number occurs twice.

    Returns:
        `[num_segments, ...]`; 0 for numbers that do not occur.

    Example:
        >>> import tessera as ts
        >>> ts.segment_sum(ts.asarray([1.0, 2.0, 4.0]), ts.asarray([0, 1, 0]), 3)
        Array([5., 2., 0.], dtype=float32)
    """
    return _segments("segment_sum", data, segment_ids, num_segments, Combine.ADD, unique_indices)


@composed
@api_boundary
def segment_prod(
    data: ArrayLike,
    segment_ids: ArrayLike,
    num_segments: int | None = None,
    *,
    indices_are_sorted: bool = False,
    unique_indices: bool = False,
) -> ArrayBase:
    """The products of rows that have one number; 1 for numbers that do not occur.

    For the arguments see `segment_sum`. Derivatives need `unique_indices`.
    """
    return _segments("segment_prod", data, segment_ids, num_segments, Combine.MUL, unique_indices)


@composed
@api_boundary
def segment_max(
    data: ArrayLike,
    segment_ids: ArrayLike,
    num_segments: int | None = None,
    *,
    indices_are_sorted: bool = False,
    unique_indices: bool = False,
) -> ArrayBase:
    """The maxima of rows that have one number; the dtype's lowest for numbers that do not occur.

    For the arguments see `segment_sum`.
    """
    return _segments("segment_max", data, segment_ids, num_segments, Combine.MAX, unique_indices)


@composed
@api_boundary
def segment_min(
    data: ArrayLike,
    segment_ids: ArrayLike,
    num_segments: int | None = None,
    *,
    indices_are_sorted: bool = False,
    unique_indices: bool = False,
) -> ArrayBase:
    """The minima of rows that have one number; the dtype's highest for numbers that do not occur.

    For the arguments see `segment_sum`.
    """
    return _segments("segment_min", data, segment_ids, num_segments, Combine.MIN, unique_indices)


def _segments(
    name: str, data: object, segment_ids: object, count: int | None, combine: Combine, unique: bool
) -> Any:
    rows, numbers = as_array(name, data), index_array(name, segment_ids)
    common_device(name, [rows, numbers], (data, segment_ids))
    if numbers.ndim != 1 or not rows.ndim or not may_equal(rows.shape[0], numbers.shape[0]):
        raise ShapeError(
            f"{name}: data is {rows.type.strong()}, segment_ids are {numbers.type.strong()}",
            loc=loc.current(),
            rule="there is one number for each row",
        )
    if rows.dtype.is_bool:
        raise DTypeError(
            f"{name}: data is {rows.type.strong()}",
            loc=loc.current(),
            rule="the elements are numbers",
        )
    size: Dim
    if count is None:
        known = concrete(numbers, f"`ts.{name}`", "give num_segments")
        size = int(known.max(initial=-1)) + 1
    else:
        size = count
    identity = SCALARS[combine.value].identity
    assert identity is not None
    start = full((size, *rows.shape[1:]), identity(rows.dtype), rows.dtype)
    return scatter(start, rows, [numbers], [0], combine, unique=unique)
