"""Ops that give the same elements another shape or order: broadcast, reshape, transpose, reverse;
and the functions by which rules and the API call them.

The functions take arrays or tracers, and give back the operand itself where there is nothing to do.
All sizes may be symbolic. `evaluate` is written in NumPy's terms and `sources` in index terms, so
that each checks the other.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import accumulate
from typing import Any, TypeAlias

import numpy as np

from tessera.dtypes import DType
from tessera.errors import ShapeError
from tessera.graph.ops.base import GraphOp, Rearrange, Source, linear
from tessera.graph.ops.checks import (
    check_axes,
    check_dim,
    check_length,
    check_permutation,
    check_shape,
    may_equal,
    normalize_axis,
    shape_text,
    static_shape,
    tensor,
    title,
)
from tessera.graph.ops.generate import constant
from tessera.graph.trace import bind
from tessera.graph.transforms.evaluate import bind_op
from tessera.ir.core import Op, Value
from tessera.ir.intexpr import Dim, IntExpr, prod, simplify, substitute, sym
from tessera.ir.opdef import attr, operand
from tessera.ir.types import TensorType

Batched: TypeAlias = tuple[Sequence[Any], Sequence[int | None]]
"""What `batch` returns: outputs, and the batch axis of each."""


class Broadcast(Rearrange):
    """Repeats an array along new dims and along dims of length 1.

    `%r = graph.broadcast(%x) {shape=[2, S, 3], dims=[1, 2]} : f32[2, S, 3]`. Dim k of the operand
    is dim `dims[k]` of the result: of the same length, or 1. `dims` increases.
    """

    name = "graph.broadcast"
    x: Value = operand()
    shape: tuple[Dim, ...] = attr()
    dims: tuple[int, ...] = attr()

    def infer(self) -> TensorType:
        x = tensor(self, 0)
        check_shape(self, self.shape)
        check_length(self, "dims", self.dims, x.rank)
        check_axes(self, self.dims, len(self.shape))
        check_dim(
            self,
            list(self.dims) == sorted(self.dims),
            f"dims={shape_text(self.dims)} is not in order",
            "broadcasting keeps the order of dims; use transpose to change it",
        )
        for k, d in enumerate(self.dims):
            if x.shape[k] != 1 and not may_equal(x.shape[k], self.shape[d]):
                raise ShapeError(
                    f"{title(self)}: dim {k} of {x} is {x.shape[k]}, but dim {d} of the shape"
                    f" {shape_text(self.shape)} is {self.shape[d]}",
                    loc=self.loc,
                    rule="a dim is broadcast only if it is 1; otherwise the lengths are equal",
                )
        return x.with_shape(self.shape)

    def evaluate(self, *operands: np.ndarray) -> np.ndarray:
        (x,) = operands
        lengths = [1] * len(self.shape)
        for k, d in enumerate(self.dims):
            lengths[d] = x.shape[k]
        return np.broadcast_to(x.reshape(lengths), static_shape(self.shape))

    def sources(self, index: tuple[Dim, ...]) -> list[Source]:
        shape = tensor(self, 0).shape
        return [
            Source(0, tuple([0 if shape[k] == 1 else index[d] for k, d in enumerate(self.dims)]))
        ]

    jvp = linear

    def transpose(self, cts: Sequence[Any], operands: Sequence[Any]) -> Sequence[Any]:
        shape = operands[0].type.shape
        kept = [d for k, d in enumerate(self.dims) if shape[k] != 1 or self.shape[d] == 1]
        axes = tuple([d for d in range(len(self.shape)) if d not in kept])
        return (reshape(sum_axes(cts[0], axes), shape),)

    def batch(self, operands: Sequence[Any], axes: Sequence[int | None], size: Dim) -> Batched:
        x = batch_front(operands[0], axes[0], size)
        dims = (0, *[d + 1 for d in self.dims])
        return (broadcast(x, (size, *self.shape), dims),), (0,)


class Reshape(Rearrange):
    """The same elements in row-major order in another shape.

    `%r = graph.reshape(%x) {shape=[S, 6]} : f32[S, 6]` for `%x : f32[S, 2, 3]`.
    """

    name = "graph.reshape"
    x: Value = operand()
    shape: tuple[Dim, ...] = attr()

    def infer(self) -> TensorType:
        x = tensor(self, 0)
        check_shape(self, self.shape)
        before, after = prod(x.shape), prod(self.shape)
        if not may_equal(before, after):
            raise ShapeError(
                f"{title(self)}: {x} has {before} elements, but the shape"
                f" {shape_text(self.shape)} has {after}",
                loc=self.loc,
                rule="reshaping keeps the number of elements",
            )
        return x.with_shape(self.shape)

    def evaluate(self, *operands: np.ndarray) -> np.ndarray:
        return operands[0].reshape(static_shape(self.shape))

    def sources(self, index: tuple[Dim, ...]) -> list[Source]:
        names = {f"$r{k}": i for k, i in enumerate(index)}
        exprs = _reshape_map(tensor(self, 0).shape, self.shape)
        return [Source(0, tuple([substitute(e, names) for e in exprs]))]

    jvp = linear

    def transpose(self, cts: Sequence[Any], operands: Sequence[Any]) -> Sequence[Any]:
        return (reshape(cts[0], operands[0].type.shape),)

    def batch(self, operands: Sequence[Any], axes: Sequence[int | None], size: Dim) -> Batched:
        x = batch_front(operands[0], axes[0], size)
        return (reshape(x, (size, *self.shape)),), (0,)


@lru_cache(maxsize=4096)
def _reshape_map(src: tuple[Dim, ...], dst: tuple[Dim, ...]) -> tuple[Dim, ...]:
    """The index into `src` of the element of `dst` at `$r0, $r1, ...`.

    Dims are grouped into the shortest runs of equal size, so untouched dims keep their own index,
    merged dims become affine sums, and only dims that are split need division.
    """
    result: list[Dim] = [0] * len(src)
    if 0 in src or 0 in dst:
        return tuple(result)
    a = [k for k, d in enumerate(src) if d != 1]
    b = [k for k, d in enumerate(dst) if d != 1]
    for p, q in _runs([src[k] for k in a], [dst[k] for k in b]):
        rows, a = a[:p], a[p:]
        cols, b = b[:q], b[q:]
        flat: Dim = 0
        for k in cols:
            flat = flat * dst[k] + sym(f"$r{k}")
        ranges = {f"$r{k}": (0, dst[k] - 1) for k in cols}
        for n, k in reversed(list(enumerate(rows))):
            part = flat % src[k] if n else flat
            flat = flat // src[k] if n else 0
            result[k] = simplify(part, ranges) if isinstance(part, IntExpr) else part
    return tuple(result)


def _runs(a: list[Dim], b: list[Dim]) -> list[tuple[int, int]]:
    """Lengths of the shortest runs of `a` and `b` with equal products; no dim is 1.

    Runs are matched from the front, and what is then left from the back. Symbolic shapes may leave
    dims in the middle whose products are not known to be equal: they form one run.
    """
    head, i, j = _matching_runs(a, b)
    tail, p, q = _matching_runs(a[i:][::-1], b[j:][::-1])
    middle = (len(a) - i - p, len(b) - j - q)
    return [*head, *([middle] if middle != (0, 0) else []), *reversed(tail)]


def _matching_runs(a: list[Dim], b: list[Dim]) -> tuple[list[tuple[int, int]], int, int]:
    found: list[tuple[int, int]] = []
    i = j = 0
    while i < len(a) and j < len(b):
        sizes: dict[Dim, int] = {}
        for q, size in enumerate(accumulate(b[j:], _times), 1):
            sizes.setdefault(size, q)
        run = next(
            ((p, sizes[s]) for p, s in enumerate(accumulate(a[i:], _times), 1) if s in sizes), None
        )
        if run is None:
            break
        found.append(run)
        i, j = i + run[0], j + run[1]
    return found, i, j


def _times(a: Dim, b: Dim) -> Dim:
    return a * b


class Transpose(Rearrange):
    """Permutes dims: dim k of the result is dim `perm[k]` of the operand.

    `%r = graph.transpose(%x) {perm=[1, 0]} : f32[S, 2]` for `%x : f32[2, S]`.
    """

    name = "graph.transpose"
    x: Value = operand()
    perm: tuple[int, ...] = attr()

    def infer(self) -> TensorType:
        x = tensor(self, 0)
        check_permutation(self, self.perm, x.rank)
        return x.with_shape([x.shape[p] for p in self.perm])

    def evaluate(self, *operands: np.ndarray) -> np.ndarray:
        return np.transpose(operands[0], self.perm)

    def sources(self, index: tuple[Dim, ...]) -> list[Source]:
        return [Source(0, tuple([index[k] for k in inverse(self.perm)]))]

    jvp = linear

    def transpose(self, cts: Sequence[Any], operands: Sequence[Any]) -> Sequence[Any]:
        return (transpose(cts[0], inverse(self.perm)),)

    def batch(self, operands: Sequence[Any], axes: Sequence[int | None], size: Dim) -> Batched:
        axis = axes[0]
        assert axis is not None
        perm = (axis, *[p + (p >= axis) for p in self.perm])
        return (transpose(operands[0], perm),), (0,)


class Reverse(Rearrange):
    """Reverses the order along some axes. `%r = graph.reverse(%x) {axes=[0]} : f32[S]`."""

    name = "graph.reverse"
    x: Value = operand()
    axes: tuple[int, ...] = attr()

    def infer(self) -> TensorType:
        x = tensor(self, 0)
        check_axes(self, self.axes, x.rank)
        return x

    def evaluate(self, *operands: np.ndarray) -> np.ndarray:
        return np.flip(operands[0], self.axes)

    def sources(self, index: tuple[Dim, ...]) -> list[Source]:
        shape = tensor(self, 0).shape
        flipped = [shape[k] - 1 - i if k in self.axes else i for k, i in enumerate(index)]
        return [Source(0, tuple(flipped))]

    jvp = linear

    def transpose(self, cts: Sequence[Any], operands: Sequence[Any]) -> Sequence[Any]:
        return (reverse(cts[0], self.axes),)

    def batch(self, operands: Sequence[Any], axes: Sequence[int | None], size: Dim) -> Batched:
        axis = axes[0]
        assert axis is not None
        return (reverse(operands[0], tuple([k + (k >= axis) for k in self.axes])),), (axis,)


# --- functions --------------------------------------------------------------------------------


def broadcast(x: Any, shape: Sequence[Dim], dims: Sequence[int]) -> Any:
    """`x` repeated to `shape`; its dim k becomes dim `dims[k]`."""
    shape = tuple(shape)
    if x.shape == shape:
        return x
    return bind(Broadcast, x, shape=shape, dims=tuple(dims))


def reshape(x: Any, shape: Sequence[Dim]) -> Any:
    """The elements of `x` in row-major order in another shape."""
    shape = tuple(shape)
    return x if x.shape == shape else bind(Reshape, x, shape=shape)


def transpose(x: Any, perm: Sequence[int]) -> Any:
    """`x` with its dims permuted: dim k of the result is dim `perm[k]`."""
    perm = tuple(perm)
    return x if perm == tuple(range(x.ndim)) else bind(Transpose, x, perm=perm)


def reverse(x: Any, axes: Sequence[int]) -> Any:
    """`x` in reversed order along `axes`."""
    return bind(Reverse, x, axes=tuple(axes)) if axes else x


def inverse(perm: Sequence[int]) -> tuple[int, ...]:
    """The permutation that undoes `perm`."""
    return tuple(sorted(range(len(perm)), key=perm.__getitem__))


def move_axis(x: Any, source: int, destination: int) -> Any:
    """`x` with one axis moved; the others keep their order. Negative axes count from the end."""
    source = normalize_axis("move_axis", source, x.ndim)
    destination = normalize_axis("move_axis", destination, x.ndim)
    perm = [k for k in range(x.ndim) if k != source]
    perm.insert(destination, source)
    return transpose(x, perm)


def expand_dims(x: Any, axis: int) -> Any:
    """`x` with a new dim of length 1, which stands at `axis` in the result."""
    axis = normalize_axis("expand_dims", axis, x.ndim + 1)
    return reshape(x, insert(x.shape, axis, 1))


def squeeze(x: Any, axes: Sequence[int]) -> Any:
    """`x` without some dims of length 1."""
    gone = {normalize_axis("squeeze", axis, x.ndim) for axis in axes}
    for axis in sorted(gone):
        if not may_equal(x.shape[axis], 1):
            raise ShapeError(
                f"squeeze: dim {axis} of {x.type} is {x.shape[axis]}",
                rule="only dims of length 1 can be removed",
            )
    return reshape(x, [d for k, d in enumerate(x.shape) if k not in gone])


def full(shape: Sequence[Dim], value: Any, dtype: DType, weak: bool = False) -> Any:
    """An array that holds `value`, a Python number, everywhere."""
    return broadcast(constant(value, dtype, weak), shape, ())


def full_like(x: Any, value: Any) -> Any:
    """An array of the shape and dtype of `x` that holds a Python number everywhere."""
    return full(x.type.shape, value, x.type.dtype)


def zeros_like(x: Any) -> Any:
    """An array of zeros of the shape and dtype of `x`."""
    return full_like(x, 0)


def insert(values: Sequence[Any], position: int, value: Any) -> tuple[Any, ...]:
    """`values` with one more entry at a position."""
    return (*values[:position], value, *values[position:])


# --- what rules share -------------------------------------------------------------------------


def batch_front(x: Any, axis: int | None, size: Dim) -> Any:
    """`x` with its batch axis in front; repeated where it has none."""
    if axis is None:
        return broadcast(x, (size, *x.shape), range(1, x.ndim + 1))
    return move_axis(x, axis, 0)


def jvp_by_zeros(op: GraphOp, primals: Sequence[Any], tangents: Sequence[Any]) -> Sequence[Any]:
    """The `jvp` of an op that is linear in its inexact operands together.

    Unknown tangents are zeros, and operands that carry none (indices) are passed on.
    """
    if all(t is None for t in tangents):
        return (None,)
    flat = [
        p if not p.dtype.is_inexact else zeros_like(p) if t is None else t
        for p, t in zip(primals, tangents, strict=True)
    ]
    return bind_op(op, flat)


def call(name: str, *operands: Any, **attrs: Any) -> Any:
    """Binds the Graph op called `name`: for ops of modules that themselves import this one."""
    return bind(Op.registry[f"graph.{name}"], *operands, **attrs)


def sum_axes(x: Any, axes: Sequence[int]) -> Any:
    """The sum along some axes, which disappear."""
    return call("reduce_sum", x, axes=tuple(axes)) if axes else x
