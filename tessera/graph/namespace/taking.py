"""Elements and slices of arrays at places that are arrays: `take`, `take_along_axis`."""

from __future__ import annotations

from typing import Any

from tessera.dtypes import PythonScalar
from tessera.errors import DTypeError, ShapeError, api_boundary
from tessera.graph.array import Array, ArrayBase
from tessera.graph.namespace.arguments import (
    ArrayLike,
    as_array,
    broadcast_dims,
    parse_axis,
    spread,
)
from tessera.graph.namespace.indexing import fill_outside, parse_mode, read_at_once, wrapped
from tessera.graph.ops.gather import IndexMode, gather, take_along
from tessera.graph.ops.rearrange import transpose
from tessera.graph.shortcut import composed
from tessera.graph.trace import is_tracing
from tessera.ir import loc

__all__ = [
    "take",
    "take_along_axis",
]


def index_array(name: str, x: object) -> Any:
    """An argument as an array of integers."""
    found = as_array(name, x)
    if not found.dtype.is_integer:
        raise DTypeError(
            f"{name}: the indices are {found.type.strong()}",
            loc=loc.current(),
            rule="they are integers",
        )
    return found


@api_boundary
def take(
    x: ArrayLike,
    indices: ArrayLike,
    /,
    *,
    axis: int | None = None,
    mode: str | None = None,
    fill_value: PythonScalar | None = None,
) -> ArrayBase:
    """The slices of an array at some places along an axis.

    Args:
        x: the array.
        indices: integers; negative ones count from the end.
        axis: the axis; may be left out for an array of one dim.
        mode: what becomes of indices out of range: `clip`, `fill`, `promise_in_bounds`, or `raise`
            for an error also where they are known only as the program runs. None refuses those
            that are known, and clamps those of traced arrays.
        fill_value: what `fill` gives, as for `x.at[...].get`.
    """
    policy = parse_mode("take", mode)
    found, index = as_array("take", x), index_array("take", indices)
    if axis is None and found.ndim != 1:
        raise ShapeError(
            f"take: no axis is given for {found.type.strong()}",
            loc=loc.current(),
            rule="the axis may be left out only for an array of one dim",
        )
    at = parse_axis("take", 0 if axis is None else axis, found.ndim)
    if policy is None and type(found) is Array and type(index) is Array and not is_tracing():
        at_once = read_at_once(found, (*[slice(None)] * at, index))
        if at_once is not None:
            return at_once
    places, known = wrapped(found.type, at, index, policy)
    taken = gather(found, [places], [at], *_gather_mode(known, policy))
    outer = index.ndim
    if policy is IndexMode.FILL and not known:
        taken = fill_outside(taken, [(places, found.shape[at])], range(outer), fill_value)
    order = [*range(outer, outer + at), *range(outer), *range(outer + at, taken.ndim)]
    return transpose(taken, order)


@composed
def _along(x: Any, places: Any, axis: int) -> Any:
    """Elements at places that are known to be in range: looking at these is left to Python."""
    return take_along(x, places, axis)


def _gather_mode(known: bool, policy: IndexMode | None) -> tuple[IndexMode, bool]:
    """The mode, and whether all indices are meant to be in range although that is not known."""
    if known:
        return IndexMode.PROMISE, False
    if policy is None or policy is IndexMode.RAISE:
        return IndexMode.CLIP, policy is None
    return IndexMode.DROP if policy is IndexMode.FILL else policy, policy is IndexMode.PROMISE


@api_boundary
def take_along_axis(
    x: ArrayLike,
    indices: ArrayLike,
    /,
    *,
    axis: int = -1,
    mode: str | None = None,
    fill_value: PythonScalar | None = None,
) -> ArrayBase:
    """The elements of an array at places along an axis that differ from line to line.

    Args:
        x: the array.
        indices: integers, of the rank of `x`; their other dims are broadcast with those of `x`.
        axis: the axis.
        mode: what becomes of indices out of range, as for `take`.
        fill_value: what `fill` gives.
    """
    policy = parse_mode("take_along_axis", mode)
    found, index = as_array("take_along_axis", x), index_array("take_along_axis", indices)
    at = parse_axis("take_along_axis", axis, found.ndim)
    others = [
        (*v.shape[:at], *v.shape[at + 1 :]) if v.ndim == found.ndim else () for v in (found, index)
    ]
    common = broadcast_dims(others)
    if index.ndim != found.ndim or isinstance(common, int):
        raise ShapeError(
            f"take_along_axis: x is {found.type.strong()}, the indices are {index.type.strong()}",
            loc=loc.current(),
            rule="both have one rank, and dims that broadcast except along the axis",
        )
    found, index = (spread(v, (*common[:at], v.shape[at], *common[at:])) for v in (found, index))
    places, known = wrapped(found.type, at, index, policy)
    if known:
        return _along(found, places, at)
    taken = take_along(found, places, at, *_gather_mode(known, policy))
    if policy is IndexMode.FILL and not known:
        return fill_outside(taken, [(places, found.shape[at])], range(taken.ndim), fill_value)
    return taken
