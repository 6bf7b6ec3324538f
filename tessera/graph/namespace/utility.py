"""Tests of whole arrays, differences, and what the namespace says of itself."""

from __future__ import annotations

from typing import Any

from tessera import dtypes
from tessera.dtypes import DType, bool_
from tessera.errors import DTypeError, ShapeError, api_boundary
from tessera.graph.array import ArrayBase
from tessera.graph.device import Device, default_device, devices, parse_device
from tessera.graph.namespace.arguments import (
    ArrayLike,
    as_array,
    common_dtype,
    parse_axis,
    to_dtype,
)
from tessera.graph.namespace.statistics import Axis, reduced
from tessera.graph.ops import elementwise as ops
from tessera.graph.ops import reduce
from tessera.graph.ops.rearrange import concatenate, slice_axis
from tessera.graph.shortcut import composed, fused, shortcut
from tessera.ir import loc

__all__ = [
    "__array_namespace_info__",
    "all",
    "any",
    "diff",
]


@fused
@shortcut
@api_boundary
def all(x: ArrayLike, /, *, axis: Axis = None, keepdims: bool = False) -> ArrayBase:
    """Whether all elements along some axes, or all at all, are true. Numbers are if not 0.

    Args:
        x: the array.
        axis: the axes to look along; None is all.
        keepdims: whether the axes stay, with length 1.
    """
    found = ops.cast(as_array("all", x), bool_)
    return reduced("all", reduce.all_, found, axis, keepdims)


@fused
@shortcut
@api_boundary
def any(x: ArrayLike, /, *, axis: Axis = None, keepdims: bool = False) -> ArrayBase:
    """Whether any element along some axes, or at all, is true. See `all`."""
    found = ops.cast(as_array("any", x), bool_)
    return reduced("any", reduce.any_, found, axis, keepdims)


@composed
@api_boundary
def diff(
    x: ArrayLike,
    /,
    *,
    axis: int = -1,
    n: int = 1,
    prepend: ArrayBase | None = None,
    append: ArrayBase | None = None,
) -> ArrayBase:
    """The differences of neighbours along an axis.

    Args:
        x: numbers.
        axis: the axis.
        n: how many times differences are taken.
        prepend: what to put before `x` first.
        append: what to put after it.
    """
    found = as_array("diff", x)
    at = parse_axis("diff", axis, found.ndim)
    if n < 0:
        raise ShapeError(f"diff: n is {n}", loc=loc.current(), rule="n is at least 0")
    if found.dtype.is_bool:
        raise DTypeError(
            f"diff: the array is {found.type.strong()}",
            loc=loc.current(),
            rule="the elements are numbers",
        )
    if n == 0:
        return found
    parts = [as_array("diff", p) for p in (prepend, x, append) if p is not None]
    dtype, weak = common_dtype("diff", parts)
    found = concatenate([to_dtype(p, dtype, weak) for p in parts], at)
    for _ in range(n):
        size = found.shape[at]
        if size == 0:
            break
        upper = slice_axis(found, at, 1, size)
        found = ops.sub(upper, slice_axis(found, at, 0, size - 1))
    return found


# --- inspection -------------------------------------------------------------------------------


class NamespaceInfo:
    """What the namespace can do, as `__array_namespace_info__` of the standard says it."""

    def capabilities(self) -> dict[str, Any]:
        """Whether boolean masks and shapes that depend on data are there (outside `jit`)."""
        return {"boolean indexing": True, "data-dependent shapes": True, "max dimensions": None}

    def default_device(self) -> Device:
        """The device of arrays for which none was given."""
        return default_device()

    def devices(self) -> list[Device]:
        """The devices that arrays can live on."""
        return devices()

    def default_dtypes(self, *, device: Device | str | None = None) -> dict[str, DType]:
        """The dtypes of arrays for which none was given."""
        parse_device("default_dtypes", device)
        return {
            "real floating": dtypes.default_float,
            "complex floating": dtypes.default_complex,
            "integral": dtypes.default_int,
            "indexing": dtypes.default_index,
        }

    def dtypes(
        self, *, device: Device | str | None = None, kind: str | tuple[str, ...] | None = None
    ) -> dict[str, DType]:
        """The standard's dtypes, by name, that are of a kind or of one of several."""
        parse_device("dtypes", device)
        names = ["bool", "float32", "float64", "complex64", "complex128"]
        names += [f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)]
        found = {name: dtypes.dtype_of(name) for name in names}
        if kind is None:
            return found
        return {name: d for name, d in found.items() if dtypes.isdtype(d, kind)}


def __array_namespace_info__() -> NamespaceInfo:
    """What the namespace can do."""
    return NamespaceInfo()
