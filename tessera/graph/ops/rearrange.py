"""Ops that cut, pad and join arrays, and everything of `reshape` again: the module to import
rearranging functions from.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import numpy as np

from tessera.dtypes import bool_
from tessera.errors import IndexOutOfBoundsError
from tessera.graph.ops.base import Linear, Rearrange, Source, linear
from tessera.graph.ops.checks import (
    check_axis,
    check_dim,
    check_length,
    check_same_dtype,
    may_be_nonneg,
    may_equal,
    normalize_axis,
    static_shape,
    tensor,
    title,
)
from tessera.graph.ops.generate import constant, iota
from tessera.graph.ops.reshape import (
    Batched,
    Broadcast,
    Reshape,
    Reverse,
    Transpose,
    batch_front,
    broadcast,
    call,
    expand_dims,
    full,
    full_like,
    insert,
    inverse,
    jvp_by_zeros,
    move_axis,
    reshape,
    reverse,
    squeeze,
    sum_axes,
    transpose,
    zeros_like,
)
from tessera.graph.trace import bind
from tessera.ir.core import Value
from tessera.ir.intexpr import Dim, ceildiv, maximum
from tessera.ir.opdef import attr, operand, operands
from tessera.ir.types import TensorType

__all__ = [
    "Batched",
    "Broadcast",
    "Concatenate",
    "Pad",
    "Reshape",
    "Reverse",
    "Slice",
    "Transpose",
    "batch_front",
    "broadcast",
    "call",
    "concatenate",
    "constant",
    "expand_dims",
    "full",
    "full_like",
    "insert",
    "inverse",
    "iota",
    "jvp_by_zeros",
    "move_axis",
    "pad",
    "reshape",
    "reverse",
    "slice_",
    "slice_axis",
    "spaced",
    "squeeze",
    "sum_axes",
    "transpose",
    "zeros_like",
]


class Slice(Rearrange):
    """The elements at `start`, `start + stride`, ... below `limit`, in every dim.

    `%r = graph.slice(%x) {start=[0, 2], limit=[S, 8], stride=[1, 3]} : f32[S, 2]`. Strides are
    positive, and `0 <= start <= limit <= dim`.
    """

    name = "graph.slice"
    x: Value = operand()
    start: tuple[Dim, ...] = attr()
    limit: tuple[Dim, ...] = attr()
    stride: tuple[Dim, ...] = attr()

    def infer(self) -> TensorType:
        x = tensor(self, 0)
        for what in ("start", "limit", "stride"):
            check_length(self, what, getattr(self, what), x.rank)
        for k, (a, b, dim) in enumerate(zip(self.start, self.limit, x.shape, strict=True)):
            if not (may_be_nonneg(a) and may_be_nonneg(b - a) and may_be_nonneg(dim - b)):
                raise IndexOutOfBoundsError(
                    f"{title(self)}: {a}:{b} is not a range of dim {k} of {x}",
                    loc=self.loc,
                    rule=f"0 <= start <= limit <= {dim}",
                )
        for k, step in enumerate(self.stride):
            check_dim(
                self,
                may_be_nonneg(step - 1),
                f"the stride of dim {k} is {step}",
                "a stride is at least 1; use reverse for the other direction",
            )
        return x.with_shape(
            [ceildiv(b - a, s) for a, b, s in zip(self.start, self.limit, self.stride, strict=True)]
        )

    def evaluate(self, *operands: np.ndarray) -> np.ndarray:
        start, limit, stride = map(static_shape, (self.start, self.limit, self.stride))
        parts = [slice(a, max(a, b), s) for a, b, s in zip(start, limit, stride, strict=True)]
        return operands[0][tuple(parts)]

    def sources(self, index: tuple[Dim, ...]) -> list[Source]:
        moved = [a + i * s for a, i, s in zip(self.start, index, self.stride, strict=True)]
        return [Source(0, tuple(moved))]

    jvp = linear

    def transpose(self, cts: Sequence[Any], operands: Sequence[Any]) -> Sequence[Any]:
        (ct,) = cts
        shape: tuple[Dim, ...] = operands[0].type.shape
        interior = tuple([s - 1 for s in self.stride])
        count = self.result.type.dims()
        covered = [a + spaced(n, i) for a, n, i in zip(self.start, count, interior, strict=True)]
        high = tuple([dim - end for dim, end in zip(shape, covered, strict=True)])
        return (pad(ct, 0, self.start, high, interior),)

    def batch(self, operands: Sequence[Any], axes: Sequence[int | None], size: Dim) -> Batched:
        (x,), (axis,) = operands, axes
        assert axis is not None
        start, limit = insert(self.start, axis, 0), insert(self.limit, axis, size)
        return (slice_(x, start, limit, insert(self.stride, axis, 1)),), (axis,)


class Pad(Rearrange):
    """Surrounds an array with a value: `lo` of it before, `hi` after, `interior` between elements.

    `%r = graph.pad(%x, %value) {lo=[1], hi=[S]} : f32[S + 5]` for `%x : f32[4]`, `%value : f32[]`.
    `lo`, `hi` and `interior` are not negative; an empty `interior` is all zeros.
    """

    name = "graph.pad"
    x: Value = operand()
    value: Value = operand()
    lo: tuple[Dim, ...] = attr()
    hi: tuple[Dim, ...] = attr()
    interior: tuple[Dim, ...] = attr(())

    def infer(self) -> TensorType:
        x, value = tensor(self, 0), tensor(self, 1)
        check_same_dtype(self, x, value, ("the operand", "the value"))
        check_dim(
            self,
            value.rank == 0,
            f"the value has type {value}",
            "the padding value is a scalar",
        )
        for what in ("lo", "hi", "interior"):
            amounts: tuple[Dim, ...] = getattr(self, what)
            if what != "interior" or amounts:
                check_length(self, what, amounts, x.rank)
            for k, n in enumerate(amounts):
                check_dim(
                    self,
                    may_be_nonneg(n),
                    f"{what} of dim {k} is {n}",
                    "padding is not negative; use slice to cut elements off",
                )
        return x.with_shape(
            [
                lo + spaced(dim, inner) + hi
                for lo, dim, inner, hi in zip(
                    self.lo, x.shape, self.interiors(), self.hi, strict=True
                )
            ]
        )

    def interiors(self) -> tuple[Dim, ...]:
        """`interior`, written out."""
        return self.interior or (0,) * len(self.lo)

    def evaluate(self, *operands: np.ndarray) -> np.ndarray:
        x, value = operands
        lo, hi, inner = map(static_shape, (self.lo, self.hi, self.interiors()))
        spans = [n + max(n - 1, 0) * i for n, i in zip(x.shape, inner, strict=True)]
        shape = [a + n + b for a, n, b in zip(lo, spans, hi, strict=True)]
        out = np.full(shape, value, x.dtype)
        out[tuple([slice(a, a + n, i + 1) for a, n, i in zip(lo, spans, inner, strict=True)])] = x
        return out

    def sources(self, index: tuple[Dim, ...]) -> list[Source]:
        inside: list[Dim] = []
        where: list[Dim] = []
        shape = tensor(self, 0).shape
        for k, (i, lo, step) in enumerate(zip(index, self.lo, self.interiors(), strict=True)):
            j, step = i - lo, step + 1
            found = _in_steps(i, lo, step, shape[k], self.hi[k])
            if found is not None:
                inside.append(found[0])
                where += found[1]
                continue
            if lo != 0:
                where.append(j)
            if self.hi[k] != 0:
                where.append((shape[k] - 1) * step - j)
            if step != 1:
                where.append(-(j % step))
            inside.append(j if step == 1 else j // step)
        if not where:
            return [Source(0, tuple(inside))]
        return [Source(0, tuple(inside), tuple(where)), Source(1)]

    def jvp(
        self, primals: Sequence[Any], tangents: Sequence[Any], outs: Sequence[Any]
    ) -> Sequence[Any]:
        return jvp_by_zeros(self, primals, tangents)

    def transpose(self, cts: Sequence[Any], operands: Sequence[Any]) -> Sequence[Any]:
        (ct,) = cts
        x, value = operands
        dims: tuple[Dim, ...] = x.type.shape
        inside = outside = None
        if isinstance(x, Linear):
            inner = self.interiors()
            limit = tuple(
                [lo + _limit(n, i) for lo, n, i in zip(self.lo, dims, inner, strict=True)]
            )
            inside = slice_(ct, self.lo, limit, tuple([i + 1 for i in inner]))
        if isinstance(value, Linear):
            # not the difference of two sums: that would cancel, and mix in infinities of the inside
            kept = call("select", self._mask(dims), full_like(ct, 0), ct)
            outside = sum_axes(kept, tuple(range(len(dims))))
        return inside, outside

    def _mask(self, shape: tuple[Dim, ...]) -> Any:
        return pad(full(shape, True, bool_), False, self.lo, self.hi, self.interior)

    def batch(self, operands: Sequence[Any], axes: Sequence[int | None], size: Dim) -> Batched:
        x, value = operands
        x_axis, value_axis = axes
        if value_axis is None:
            assert x_axis is not None
            lo, hi = insert(self.lo, x_axis, 0), insert(self.hi, x_axis, 0)
            inner = insert(self.interiors(), x_axis, 0)
            return (pad(x, value, lo, hi, inner),), (x_axis,)
        x = batch_front(x, x_axis, size)
        lo, hi, inner = (0, *self.lo), (0, *self.hi), (0, *self.interiors())
        out = pad(x, 0, lo, hi, inner)
        mask = broadcast(self._mask(x.shape[1:]), out.shape, tuple(range(1, out.ndim)))
        return (call("select", mask, out, broadcast(value, out.shape, (0,))),), (0,)


def _in_steps(
    i: Dim, lo: Dim, step: Dim, count: Dim, hi: Dim
) -> tuple[Dim, tuple[Dim, ...]] | None:
    """The element at place `i` of elements that stand `step` apart, and the conditions under which
    there is one, by the digits of `i`: which step, and where in it. None where all are not whole
    steps."""
    if not (isinstance(lo, int) and isinstance(hi, int)):
        return None
    if not (isinstance(step, int) and isinstance(count, int)) or step == 1 or count == 0:
        return None
    steps, rest = divmod(lo + (count - 1) * step + 1 + hi, step)
    if rest:
        return None
    first, place = divmod(lo, step)
    number = i // step - first
    where: list[Dim] = []
    if first:
        where.append(number)
    if first + count < steps:
        where.append(count - 1 - number)
    if place:
        where.append(i % step - place)
    if place < step - 1:
        where.append(place - i % step)
    return number, tuple(where)


def spaced(dim: Dim, interior: Dim) -> Dim:
    """The length of a dim with `interior` elements put between its own."""
    return dim if interior == 0 else dim + maximum(dim - 1, 0) * interior


def _limit(dim: Dim, interior: Dim) -> Dim:
    """The limit of the slice that undoes `spaced`; a symbolic dim comes back as itself."""
    if interior == 0 or dim == 0:
        return dim
    return (dim - 1) * (interior + 1) + 1


class Concatenate(Rearrange):
    """Joins arrays along one axis.

    `%r = graph.concatenate([%x, %y]) {axis=0} : f32[S + 2, 3]` for `f32[S, 3]` and `f32[2, 3]`.
    """

    name = "graph.concatenate"
    xs: tuple[Value, ...] = operands()
    axis: int = attr()

    def infer(self) -> TensorType:
        check_dim(self, bool(self.xs), "there are no operands", "one or more operands are joined")
        types = [tensor(self, k) for k in range(len(self.xs))]
        first = types[0]
        check_axis(self, self.axis, first.rank)
        for k, other in enumerate(types[1:], 1):
            check_same_dtype(self, first, other, ("operand 0", f"operand {k}"))
            matches = other.rank == first.rank and all(
                d == self.axis or may_equal(first.shape[d], other.shape[d])
                for d in range(first.rank)
            )
            check_dim(
                self,
                matches,
                f"operand 0 is {first}, but operand {k} is {other}",
                f"the operands have equal dims except along axis {self.axis}",
            )
        total: Dim = 0
        for one in types:
            total = total + one.shape[self.axis]
        shape = (*first.shape[: self.axis], total, *first.shape[self.axis + 1 :])
        weak = all(one.weak for one in types)
        return TensorType(shape, first.dtype, weak, first.policy)

    def evaluate(self, *operands: np.ndarray) -> np.ndarray:
        return np.concatenate(operands, self.axis)

    def offsets(self, shapes: Sequence[Sequence[Dim]]) -> list[Dim]:
        """Where each operand begins along the axis, and where the last one ends."""
        return list(accumulate([shape[self.axis] for shape in shapes], _plus, initial=0))

    def sources(self, index: tuple[Dim, ...]) -> list[Source]:
        axis, i = self.axis, index[self.axis]
        offsets = self.offsets([tensor(self, k).shape for k in range(len(self.xs))])
        found: list[Source] = []
        for k in range(len(self.xs)):
            inside = (*index[:axis], i - offsets[k], *index[axis + 1 :])
            last = k == len(self.xs) - 1
            found.append(Source(k, inside, () if last else (offsets[k + 1] - 1 - i,)))
        return found

    def jvp(
        self, primals: Sequence[Any], tangents: Sequence[Any], outs: Sequence[Any]
    ) -> Sequence[Any]:
        return jvp_by_zeros(self, primals, tangents)

    def transpose(self, cts: Sequence[Any], operands: Sequence[Any]) -> Sequence[Any]:
        (ct,) = cts
        offsets = self.offsets([x.type.shape for x in operands])
        return [
            slice_axis(ct, self.axis, offsets[k], offsets[k + 1]) if isinstance(x, Linear) else None
            for k, x in enumerate(operands)
        ]

    def batch(self, operands: Sequence[Any], axes: Sequence[int | None], size: Dim) -> Batched:
        xs = [batch_front(x, axis, size) for x, axis in zip(operands, axes, strict=True)]
        return (concatenate(xs, self.axis + 1),), (0,)


def _plus(a: Dim, b: Dim) -> Dim:
    return a + b


# --- functions --------------------------------------------------------------------------------


def slice_(
    x: Any, start: Sequence[Dim], limit: Sequence[Dim], stride: Sequence[Dim] | None = None
) -> Any:
    """The elements of `x` at `start`, `start + stride`, ... below `limit`, in every dim."""
    start, limit = tuple(start), tuple(limit)
    stride = (1,) * len(start) if stride is None else tuple(stride)
    if limit == x.shape and not any(a != 0 for a in start) and not any(s != 1 for s in stride):
        return x
    return bind(Slice, x, start=start, limit=limit, stride=stride)


def slice_axis(x: Any, axis: int, start: Dim, limit: Dim, stride: Dim = 1) -> Any:
    """A slice along one axis; the other dims are kept whole."""
    axis = normalize_axis("slice", axis, x.ndim)
    starts, limits, strides = [0] * x.ndim, list(x.shape), [1] * x.ndim
    starts[axis], limits[axis], strides[axis] = start, limit, stride
    return slice_(x, starts, limits, strides)


def pad(
    x: Any, value: Any, lo: Sequence[Dim], hi: Sequence[Dim], interior: Sequence[Dim] = ()
) -> Any:
    """`x` surrounded by `value`: a Python number, or a scalar of the dtype of `x`."""
    lo, hi = tuple(lo), tuple(hi)
    interior = tuple(interior) if any(n != 0 for n in interior) else ()
    if not interior and not any(n != 0 for n in (*lo, *hi)):
        return x
    if isinstance(value, (bool, int, float, complex)):
        value = constant(value, x.dtype)
    return bind(Pad, x, value, lo=lo, hi=hi, interior=interior)


def concatenate(xs: Sequence[Any], axis: int) -> Any:
    """The arrays joined along one axis."""
    if len(xs) == 1:
        return xs[0]
    if xs:
        axis = normalize_axis("concatenate", axis, xs[0].ndim)
    return bind(Concatenate, tuple(xs), axis=axis)
