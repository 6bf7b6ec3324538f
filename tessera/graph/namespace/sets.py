"""Set functions. Their results' shapes depend on the elements, so under `jit` they are errors."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from tessera.dtypes import dtype_of
from tessera.errors import api_boundary
from tessera.graph.array import ArrayBase
from tessera.graph.namespace.arguments import ArrayLike, as_array, concrete
from tessera.graph.placement import device_of, placed
from tessera.ir.convert import cast_array, widen

__all__ = [
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
    found = _unique("unique_counts", x)
    return UniqueCounts(found.values, found.counts)


@api_boundary
def unique_inverse(x: ArrayLike, /) -> UniqueInverse:
    """The distinct elements in order, and which of them each element is."""
    found = _unique("unique_inverse", x)
    return UniqueInverse(found.values, found.inverse_indices)


@api_boundary
def unique_values(x: ArrayLike, /) -> ArrayBase:
    """The distinct elements in order."""
    return _unique("unique_values", x).values
