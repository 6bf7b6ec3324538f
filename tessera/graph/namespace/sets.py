"""Set functions. The shapes of what `unique_...` give depend on the elements, so under `jit` they
are errors.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from tessera.dtypes import bool_, dtype_of, int64, uint8
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
from tessera.graph.ops.generate import iota
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

FEW = 1000
"""NumPy finds the distinct ones of fewer elements, without a program."""

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


def _unique(name: str, x: object, *wanted: str) -> list[Any]:
    """The distinct elements in order, and numbers about them. Every NaN is distinct; 0.0 and -0.0
    are not, and the first one stands for all.

    Args:
        name: of the function.
        x: its argument.
        *wanted: some of "index", "inverse" and "counts", in this order.
    """
    given = as_array(name, x)
    data, where = concrete(given, f"`ts.{name}`", _FIX), device_of(given)
    find = _by_numpy if data.size < FEW or data.dtype.kind not in "biuf" else _by_sorting
    values, *numbers = find(data, wanted)
    found = [cast_array(values, dtype_of(data.dtype))]
    found += [x.astype(np.int64, copy=False) for x in numbers]
    return [placed(x, where) for x in found]


def _by_numpy(data: np.ndarray, wanted: Sequence[str]) -> list[np.ndarray]:
    # With "index" it sorts so that equal elements, and every NaN, stay in their order.
    in_order = "inverse" in wanted or data.dtype.kind not in "biuf"
    names = dict.fromkeys(("index", *wanted) if in_order else wanted)
    options: Any = {f"return_{name}": True for name in names}
    unique: Any = np.unique  # its stubs know no options that are computed
    result = unique(widen(data), equal_nan=False, **options)
    found: list[np.ndarray] = list(result) if names else [result]
    if "index" not in names:
        _give_zero_its_sign(found[0], data)
    known = dict(zip(("values", *names), found, strict=True))
    return [known[name] for name in ("values", *wanted)]


def _by_sorting(data: np.ndarray, wanted: Sequence[str]) -> list[np.ndarray]:
    """The same by a sort of compiled code, and a comparison of neighbours."""
    line = data.reshape(-1)
    keys = Array((line.view(np.uint8) if data.dtype.kind == "b" else line)[...])
    has_places = "index" in wanted or "inverse" in wanted
    parts = _with_places(keys) if has_places else (_sorted(keys),)
    host: np.ndarray = parts[0].host
    places: list[np.ndarray] = [x.host for x in parts[1:]]
    begins = np.empty(len(host), np.bool_)
    begins[0] = True
    np.not_equal(host[1:], host[:-1], out=begins[1:])
    values = host[begins].view(data.dtype)
    _give_zero_its_sign(values, data)
    found: list[np.ndarray] = [values]
    for name in wanted:
        if name == "counts":
            found.append(np.diff(np.flatnonzero(begins), append=len(host)))
        elif name == "index":
            found.append(places[0][begins])
        else:
            inverse = np.empty(data.shape, np.int64)
            inverse.reshape(-1)[places[0]] = np.cumsum(begins, dtype=np.int64) - 1
            found.append(inverse)
    return found


def _give_zero_its_sign(values: np.ndarray, data: np.ndarray) -> None:
    """Of distinct elements in order, a zero gets that of the first zero."""
    if data.dtype.kind == "f":
        at = int(values.searchsorted(0))
        if at < len(values) and values[at] == 0:
            line = data.reshape(-1)
            values[at] = line[np.argmax(line == 0)]


@composed
def _sorted(line: Array) -> Array:
    found: Any = sort((line,), 0)
    return found[0]


@composed
def _with_places(line: Array) -> tuple[Array, Array]:
    found: Any = sort((line, iota(line.shape, 0, int64)), 0)
    return found


@api_boundary
def unique_all(x: ArrayLike, /) -> UniqueAll:
    """The distinct elements in order.

    Returns:
        `values`, the `indices` of their first occurrences in row-major order, `inverse_indices`
        (which of the values each element is), and `counts`.
    """
    return UniqueAll(*_unique("unique_all", x, "index", "inverse", "counts"))


@api_boundary
def unique_counts(x: ArrayLike, /) -> UniqueCounts:
    """The distinct elements in order, and how often each occurs."""
    return UniqueCounts(*_unique("unique_counts", x, "counts"))


@api_boundary
def unique_inverse(x: ArrayLike, /) -> UniqueInverse:
    """The distinct elements in order, and which of them each element is."""
    return UniqueInverse(*_unique("unique_inverse", x, "inverse"))


@api_boundary
def unique_values(x: ArrayLike, /) -> ArrayBase:
    """The distinct elements in order."""
    return _unique("unique_values", x)[0]


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
