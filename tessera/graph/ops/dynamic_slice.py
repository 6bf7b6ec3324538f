"""Slices of fixed size at positions that are values.

A start is clamped so that the block lies inside the operand, as nothing can be known of it when the
program is made.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tessera.dtypes import int32
from tessera.errors import IndexOutOfBoundsError, ShapeError
from tessera.graph.ops.base import GraphOp, Linear, Rearrange, Source
from tessera.graph.ops.checks import (
    check_dim,
    check_integer,
    check_same_dtype,
    check_shape,
    may_be_nonneg,
    shape_text,
    shapes_may_equal,
    static_shape,
    tensor,
    title,
)
from tessera.graph.ops.generate import constant, index_dtype
from tessera.graph.ops.reshape import (
    Batched,
    batch_front,
    full,
    jvp_by_zeros,
    move_axis,
    zeros_like,
)
from tessera.graph.trace import bind
from tessera.ir.core import Value
from tessera.ir.intexpr import Dim, maximum, minimum, sym
from tessera.ir.opdef import attr, operand, operands
from tessera.ir.types import TensorType


def _check_starts(op: GraphOp, first: int, x: TensorType, count: int) -> None:
    """Starts have the shape of the leading (batch) dims of `x`, which they do not index."""
    for k in range(first, len(op.operands)):
        check_integer(op, f"start {k - first}", tensor(op, k).dtype)
    starts = len(op.operands) - first
    if count != starts or count > x.rank:
        raise ShapeError(
            f"{title(op)}: {starts} starts and {count} sizes for an operand of type {x}",
            loc=op.loc,
            rule="there is one start and one size per dim",
        )
    outer = x.shape[: x.rank - count]
    for k in range(first, len(op.operands)):
        check_dim(
            op,
            shapes_may_equal(tensor(op, k).shape, outer),
            f"start {k - first} has type {tensor(op, k)}",
            f"a start has the batch shape {shape_text(outer)}" if outer else "a start is a scalar",
        )


def _check_sizes(op: GraphOp, x: TensorType, sizes: Sequence[Dim]) -> None:
    inner = x.shape[x.rank - len(sizes) :]
    check_shape(op, sizes)
    for k, (size, dim) in enumerate(zip(sizes, inner, strict=True)):
        if not may_be_nonneg(dim - size):
            raise IndexOutOfBoundsError(
                f"{title(op)}: the slice of dim {k} has {size} elements, but the operand is {x}",
                loc=op.loc,
                rule=f"a slice is not longer than its dim, {dim}",
            )


def _clamped(k: int, dim: Dim, size: Dim) -> Dim:
    """Where a slice begins whose start is operand `k`."""
    return 0 if dim is size or dim == size else minimum(maximum(sym(f"${k}"), 0), dim - size)


def _clamped_values(
    starts: Sequence[np.ndarray], dims: Sequence[int], sizes: Sequence[int]
) -> list[np.ndarray]:
    return [
        np.clip(as_int64(start), 0, dim - size)
        for start, dim, size in zip(starts, dims, sizes, strict=True)
    ]


def as_int64(index: np.ndarray) -> np.ndarray:
    """An index as int64, in which no unsigned value becomes negative."""
    if index.dtype == np.uint64:
        index = np.minimum(index, np.uint64(np.iinfo(np.int64).max))
    return index.astype(np.int64)


class DynamicSlice(Rearrange):
    """A block of fixed size at a position that is computed.

    `%r = graph.dynamic_slice(%x, [%i, %j]) {sizes=[1, 4]} : f32[1, 4]` for `%i : i32[]`. Starts are
    clamped so that the block lies inside the operand. Starts of shape B take one block from each
    example of an operand of shape B + dims.
    """

    name = "graph.dynamic_slice"
    x: Value = operand()
    starts: tuple[Value, ...] = operands()
    sizes: tuple[Dim, ...] = attr()

    def infer(self) -> TensorType:
        x = tensor(self, 0)
        _check_starts(self, 1, x, len(self.sizes))
        _check_sizes(self, x, self.sizes)
        return x.with_shape(x.shape[: self.outer] + self.sizes)

    @property
    def outer(self) -> int:
        """The number of batch dims."""
        return tensor(self, 0).rank - len(self.sizes)

    def evaluate(self, *operands: np.ndarray) -> np.ndarray:
        x, *starts = operands
        sizes = static_shape(self.sizes)
        outer = x.shape[: self.outer]
        begins = _clamped_values(starts, x.shape[self.outer :], sizes)
        out = np.empty(outer + sizes, x.dtype)
        for at in np.ndindex(*outer):
            block = [slice(b[at], b[at] + n) for b, n in zip(begins, sizes, strict=True)]
            out[at] = x[at][tuple(block)]
        return out

    def sources(self, index: tuple[Dim, ...]) -> list[Source]:
        dims = tensor(self, 0).shape[self.outer :]
        inner = [
            i + _clamped(k, dim, size)
            for k, (i, dim, size) in enumerate(
                zip(index[self.outer :], dims, self.sizes, strict=True), 1
            )
        ]
        return [Source(0, (*index[: self.outer], *inner))]

    def dynamic_index(self, k: int, index: tuple[Dim, ...]) -> tuple[Dim, ...]:
        return index[: self.outer]

    def jvp(
        self, primals: Sequence[Any], tangents: Sequence[Any], outs: Sequence[Any]
    ) -> Sequence[Any]:
        return jvp_by_zeros(self, primals, tangents)

    def transpose(self, cts: Sequence[Any], operands: Sequence[Any]) -> Sequence[Any]:
        x, *starts = operands
        return dynamic_update_slice(zeros_like(x), cts[0], starts), *[None] * len(starts)

    def batch(self, operands: Sequence[Any], axes: Sequence[int | None], size: Dim) -> Batched:
        x, *starts = operands
        axis = axes[0]
        if axis is not None and all(a is None for a in axes[1:]):
            # the batch axis becomes a dim that is taken whole: the starts stay scalars
            x = move_axis(x, axis, self.outer)
            starts = (_zero_start(x, self.outer), *starts)
            return (self.bind(x, starts, sizes=(size, *self.sizes)),), (self.outer,)
        x, *starts = [batch_front(v, a, size) for v, a in zip(operands, axes, strict=True)]
        return (self.bind(x, tuple(starts)),), (0,)


class DynamicUpdateSlice(Rearrange):
    """The operand with a block replaced, at a position that is computed.

    `%r = graph.dynamic_update_slice(%x, %update, [%i, %j]) : f32[8, 4]`. Starts are clamped so that
    the block lies inside the operand; they may have batch dims as those of `dynamic_slice`.
    """

    name = "graph.dynamic_update_slice"
    x: Value = operand()
    update: Value = operand()
    starts: tuple[Value, ...] = operands()

    def infer(self) -> TensorType:
        x, update = tensor(self, 0), tensor(self, 1)
        check_same_dtype(self, x, update, ("the operand", "the update"))
        check_dim(
            self,
            update.rank == x.rank and len(self.starts) <= x.rank,
            f"the update is {update}, but the operand {x}",
            "the update has the rank of the operand",
        )
        _check_starts(self, 2, x, len(self.starts))
        outer = self.outer
        check_dim(
            self,
            shapes_may_equal(update.shape[:outer], x.shape[:outer]),
            f"the update is {update}, but the operand {x}",
            "they have the same batch dims",
        )
        _check_sizes(self, x, update.shape[outer:])
        return x

    @property
    def outer(self) -> int:
        """The number of batch dims."""
        return tensor(self, 0).rank - len(self.starts)

    def evaluate(self, *operands: np.ndarray) -> np.ndarray:
        x, update, *starts = operands
        sizes = update.shape[self.outer :]
        begins = _clamped_values(starts, x.shape[self.outer :], sizes)
        out = x.copy()
        for at in np.ndindex(*x.shape[: self.outer]):
            block = [slice(b[at], b[at] + n) for b, n in zip(begins, sizes, strict=True)]
            out[(*at, *block)] = update[at]
        return out

    def sources(self, index: tuple[Dim, ...]) -> list[Source]:
        x, update = tensor(self, 0).shape, tensor(self, 1).shape
        inner: list[Dim] = []
        where: list[Dim] = []
        for k in range(self.outer, len(x)):
            begin = _clamped(2 + k - self.outer, x[k], update[k])
            offset = index[k] - begin
            inner.append(offset)
            if x[k] != update[k]:
                where += [offset, update[k] - 1 - offset]
        block = Source(1, (*index[: self.outer], *inner), tuple(where))
        return [block, Source(0, index)] if where else [block]

    def dynamic_index(self, k: int, index: tuple[Dim, ...]) -> tuple[Dim, ...]:
        return index[: self.outer]

    def jvp(
        self, primals: Sequence[Any], tangents: Sequence[Any], outs: Sequence[Any]
    ) -> Sequence[Any]:
        return jvp_by_zeros(self, primals, tangents)

    def transpose(self, cts: Sequence[Any], operands: Sequence[Any]) -> Sequence[Any]:
        (ct,) = cts
        x, update, *starts = operands
        ct_x = ct_update = None
        if isinstance(x, Linear):
            ct_x = dynamic_update_slice(ct, zeros_like(update), starts)
        if isinstance(update, Linear):
            ct_update = dynamic_slice(ct, starts, update.type.shape[self.outer :])
        return ct_x, ct_update, *[None] * len(starts)

    def batch(self, operands: Sequence[Any], axes: Sequence[int | None], size: Dim) -> Batched:
        x, update, *starts = [
            v if k >= 2 and a is None else batch_front(v, a, size)
            for k, (v, a) in enumerate(zip(operands, axes, strict=True))
        ]
        if all(a is None for a in axes[2:]):
            x, update = move_axis(x, 0, self.outer), move_axis(update, 0, self.outer)
            starts = (_zero_start(x, self.outer), *starts)
            return (dynamic_update_slice(x, update, starts),), (self.outer,)
        starts = [
            batch_front(v, a, size) if a is None else v
            for v, a in zip(starts, axes[2:], strict=True)
        ]
        return (dynamic_update_slice(x, update, starts),), (0,)


def _zero_start(x: Any, outer: int) -> Any:
    return full(x.shape[:outer], 0, int32)


# --- functions --------------------------------------------------------------------------------


def dynamic_slice(x: Any, starts: Sequence[Any], sizes: Sequence[Dim]) -> Any:
    """The block of `x` of the given sizes at `starts`: scalars, or Python ints."""
    return bind(DynamicSlice, x, _starts(starts), sizes=tuple(sizes))


def dynamic_update_slice(x: Any, update: Any, starts: Sequence[Any]) -> Any:
    """`x` with the block at `starts` (scalars, or Python ints) replaced by `update`."""
    return bind(DynamicUpdateSlice, x, update, _starts(starts))


def _starts(starts: Sequence[Any]) -> tuple[Any, ...]:
    return tuple([constant(s, index_dtype(s)) if isinstance(s, int) else s for s in starts])
