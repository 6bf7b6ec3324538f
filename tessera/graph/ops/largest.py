"""The places of the largest elements of rows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from tessera.dtypes import DType, iinfo, int64
from tessera.errors import ShapeError
from tessera.graph.ops import elementwise as ops
from tessera.graph.ops import reduce
from tessera.graph.ops.checks import tensor, title
from tessera.graph.ops.composite import Composite
from tessera.graph.ops.gather import take_along
from tessera.graph.ops.rearrange import (
    Batched,
    batch_front,
    broadcast,
    iota,
    pad,
    reshape,
    slice_axis,
)
from tessera.graph.ops.sort import sort, sort_order
from tessera.graph.trace import bind
from tessera.ir.core import Value
from tessera.ir.intexpr import Dim
from tessera.ir.opdef import attr, operand
from tessera.ir.types import TensorType

LEAST_ROW = 256
"""The largest elements of shorter rows are found by sorting these."""

LEAST_PARTS = 16
"""So are more elements than such a part of a row."""

MOST = 64
"""Places that a CPU selects, at most."""

WIDE_PLACE_BITS = 26
"""Bits of the places of keys of 64 bits that are selected."""

SORTED = 1 << 14
"""Elements whose largest a CPU finds by sorting them as soon as by parts, and compiles sooner."""

LONG = 1 << 18
"""Elements of a row that threads had better share; half as many of 64 bits."""


class Largest(Composite):
    """The places of the k largest elements of each row, the largest and first one first.

    `%p = graph.largest(%x) {k=4} : i64[8, 4]`. Rows are along the last axis. NaN counts as larger
    than any number, and -0 equals 0.

    Attributes:
        k: how many, at most as many as there are.
    """

    name = "graph.largest"
    differentiable = False
    x: Value = operand()
    k: int = attr()

    def infer(self) -> TensorType:
        """Places for each row."""
        x = tensor(self, 0)
        if not x.rank:
            raise ShapeError(f"{title(self)}: the operand is {x.strong()}", loc=self.loc)
        return TensorType((*x.shape[:-1], self.k), int64)

    def evaluate(self, *operands: np.ndarray) -> np.ndarray:
        """The definition."""
        (x,) = operands
        return sort_order([x], x.ndim - 1, True)[..., : self.k]

    def compose(self, operands: Sequence[Any]) -> Any:
        """By parts of rows."""
        return _places(operands[0], self.k)

    def compose_selected(self, operands: Sequence[Any]) -> Any:
        """As the first places of a sort, where these are found by themselves; else by parts."""
        (x,) = operands
        *lead, size = x.shape
        if not is_selected(x.dtype, size, self.k):
            return _places(x, self.k, SORTED)
        many = not all(isinstance(dim, int) for dim in lead) or math.prod(lead) > 1
        long = LONG // (2 if x.dtype.bits == 64 else 1)
        is_shared = not many and isinstance(size, int) and size > long
        return _places(x, self.k, SORTED) if is_shared else _sorted(x, self.k)

    def batch(self, operands: Sequence[Any], axes: Sequence[int | None], size: Dim) -> Batched:
        """The batch axis in front."""
        return (largest(batch_front(operands[0], axes[0], size), self.k),), (0,)


def largest(x: Any, k: int) -> Any:
    """The places (i64) of the k largest elements of each row; see `Largest`."""
    size = x.shape[-1]
    if is_selected(x.dtype, size, k) or _part_size(size, k, x.dtype):
        return bind(Largest, x, k=k)
    return _sorted(x, k)


def is_selected(dtype: DType, size: Dim, k: int) -> bool:
    """Whether a CPU that sorts words finds the first k places of rows without sorting the rest."""
    if not isinstance(size, int) or not 1 <= k <= MOST or dtype.is_bool or dtype.is_complex:
        return False
    if dtype.bits == 64:
        return groups_of(k) == 64 and 8 * -(-size // 64) >= 64 and size <= 1 << WIDE_PLACE_BITS
    is_wide = dtype.bits >= 16 if dtype.is_float else dtype.bits >= 8
    return is_wide and -(-size // 128) * 16 >= groups_of(k)


def groups_of(k: int) -> int:
    """Groups of columns by which a limit for the first k places is found."""
    return 64 if k <= 32 else 256


def _sorted(x: Any, k: int) -> Any:
    at = len(x.shape) - 1
    return slice_axis(sort((x, iota(x.shape, at, int64)), at, 1, True)[1], at, 0, k)


def _places(x: Any, k: int, soon: int = 0) -> Any:
    """The places of the k largest elements of each row, the largest and first one first.

    A row is cut into parts. Of two parts the one with the larger maximum ranks first, or else the
    one that comes first. An element in none of the first k parts has k elements before it, the
    maxima of these: so only these parts have to be sorted, and their maxima, whose order is found
    in the same way.

    Args:
        x: rows, along the last axis.
        k: how many.
        soon: elements of rows within it that are rather sorted.
    """
    *lead, size = x.shape
    at = len(lead)
    part = _part_size(size, k, x.dtype)
    if not part:
        return _sorted(x, k)

    def within(rows: Any) -> Any:
        return _sorted(rows, k) if rows.shape[-1] <= soon else _places(rows, k, soon)

    count = -(-size // part)
    # What is added comes after all elements that are as small.
    low = -math.inf if x.dtype.is_float else iinfo(x.dtype).min
    rows = pad(x, low, [0] * x.ndim, [0] * at + [count * part - size])
    tops = reduce.max_(reshape(rows, (*lead, count, part)), [at + 1])
    # In the order of the row, so that the first of equal elements stays the first.
    (first,) = sort((within(tops),), at, 1)
    shape = (*lead, k, part)
    index = ops.mul(broadcast(first, shape, range(at + 1)), part)
    index = reshape(ops.add(index, iota(shape, at + 1, int64)), (*lead, k * part))
    places = within(take_along(rows, index, at))
    return take_along(index, places, at)


def _part_size(size: Dim, k: int, dtype: DType) -> int:
    """Elements of a part of a row; 0 where the row is rather sorted as a whole."""
    if not isinstance(size, int):
        return 0
    if not 1 <= k <= size // LEAST_PARTS or size < LEAST_ROW:
        return 0
    if dtype.is_float and dtype.bits < 16:
        return 0  # not all of these have an infinity
    # As many parts as there are elements in k of them.
    return 1 << (size // k).bit_length() // 2
