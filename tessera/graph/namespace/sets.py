"""Set functions. The shapes of what `unique_...` give depend on the elements, so under `jit` they
are errors.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from tessera.dtypes import bool_, dtype_of, uint8
from tessera.errors import api_boundary
from tessera.graph.array import Array, ArrayBase
from tessera.graph.namespace import searching
from tessera.graph.namespace.arguments import (
    ArrayLike,
    as_array,
    common_dtype,
    concrete,
    filled,
    is_number,
    spread,
    to_dtype,
)
from tessera.graph.ops import elementwise as ops
from tessera.graph.ops import reduce
from tessera.graph.ops.gather import IndexMode, gather
from tessera.graph.ops.rearrange import broadcast, reshape
from tessera.graph.ops.sort import sort
from tessera.graph.placement import common_device, device_of, placed
from tessera.graph.shortcut import composed
from tessera.ir.convert import cast_array, widen
from tessera.ir.intexpr import prod

__all__ = [
    "isin",
    "unique_all",
    "unique_counts",
    "unique_inverse",
    "unique_values",
]

_FIX = "sort with `ts.sort`, which keeps the shape, and compare neighbours"


class UniqueAll(NamedTuple):
    """What `unique_all` returns."""

    values: ArrayBase
    indices: ArrayBase
    inverse_indices: ArrayBase
    counts: ArrayBase


class UniqueCounts(NamedTuple):
    """What `unique_counts` returns."""

    values: ArrayBase
    counts: ArrayBase


class UniqueInverse(NamedTuple):
    """What `unique_inverse` returns."""

    values: ArrayBase
    inverse_indices: ArrayBase


def _unique(name: str, x: object) -> UniqueAll:
    """Every NaN is distinct; 0.0 and -0.0 are not."""
    given = as_array(name, x)
    data, where = concrete(given, f"`ts.{name}`", _FIX), device_of(given)
    found: Any = np.unique(
        widen(data), return_index=True, return_inverse=True, return_counts=True, equal_nan=False
    )
    values, indices, inverse, counts = found
    return UniqueAll(
        placed(cast_array(values, dtype_of(data.dtype)), where),
        placed(indices.astype(np.int64, copy=False), where),
        placed(inverse.reshape(data.shape).astype(np.int64, copy=False), where),
        placed(counts.astype(np.int64, copy=False), where),
    )


def _in_order(name: str, x: object) -> UniqueCounts:
    """The same without what needs to know where elements were: a sort, which compiled code does
    sooner, and a comparison of neighbours."""
    given = as_array(name, x)
    data, where = concrete(given, f"`ts.{name}`", _FIX), device_of(given)
    if data.dtype.kind not in "biuf" or not data.size:
        known = _unique(name, x)
        return UniqueCounts(known.values, known.counts)
    line = data.reshape(-1)
    keys = line.view(np.uint8) if data.dtype.kind == "b" else line
    (ordered,) = sort((Array(keys[...]),), 0)
    found: np.ndarray = ordered.host
    starts = np.flatnonzero(np.concatenate([[True], found[1:] != found[:-1]]))
    values = found[starts].view(data.dtype)
    if data.dtype.kind == "f":
        # Of zeros of both signs the first one stands for all.
        values[values == 0] = line[np.argmax(line == 0)]
    counts = np.diff(starts, append=len(found)).astype(np.int64, copy=False)
    return UniqueCounts(placed(values, where), placed(counts, where))


@api_boundary
def unique_all(x: ArrayLike, /) -> UniqueAll:
    """The distinct elements in order.

    Returns:
        `values`, the `indices` of their first occurrences in row-major order, `inverse_indices`
        (which of the values each element is), and `counts`.
    """
    return _unique("unique_all", x)


@api_boundary
def unique_counts(x: ArrayLike, /) -> UniqueCounts:
    """The distinct elements in order, and how often each occurs."""
    return _in_order("unique_counts", x)


@api_boundary
def unique_inverse(x: ArrayLike, /) -> UniqueInverse:
    """The distinct elements in order, and which of them each element is."""
    found = _unique("unique_inverse", x)
    return UniqueInverse(found.values, found.inverse_indices)


@api_boundary
def unique_values(x: ArrayLike, /) -> ArrayBase:
    """The distinct elements in order."""
    return _in_order("unique_values", x).values


@composed
@api_boundary
def isin(x1: ArrayLike, x2: ArrayLike, /, *, invert: bool = False) -> ArrayBase:
    """Which elements are among those of another array. NaN is among none.

    Args:
        x1: the elements to look for.
        x2: the elements to look among, of any shape.
        invert: whether to say which are not.

    Returns:
        Bools, of the shape of `x1`.
    """
    given = [x if is_number(x) else as_array("isin", x) for x in (x1, x2)]
    common_device("isin", given, (x1, x2))
    dtype, weak = common_dtype("isin", given)
    wanted, line = (to_dtype(x, dtype, weak) for x in given)
    line = reshape(line, (prod(line.shape),))
    if dtype.is_bool:
        wanted, line = ops.cast(wanted, uint8), ops.cast(line, uint8)
    if dtype.is_complex:  # has no order
        shape = (*wanted.shape, line.shape[0])
        pairs = broadcast(wanted, shape, range(wanted.ndim)), spread(line, shape)
        found = reduce.any_(ops.eq(*pairs), [wanted.ndim])
    elif line.shape[0] == 0:
        found = filled(wanted.shape, False, bool_, wanted)
    else:
        (ordered,) = sort((line,), 0)
        at = searching.bisect(ordered, wanted, "left")
        found = ops.eq(gather(ordered, [at], [0], IndexMode.CLIP), wanted)
    return ops.not_(found) if invert else found
