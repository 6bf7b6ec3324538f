"""Reading and writing elements at positions that are values: gather and scatter.

Indices count from the front: negative ones are out of range here, the API wraps them. What happens
out of range is an attribute, `IndexMode`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum
from math import nan
from typing import Any

import numpy as np

from tessera.dtypes import DType, Kind
from tessera.errors import DTypeError, IndexOutOfBoundsError, NotDifferentiableError
from tessera.graph.ops.base import Family, GraphOp, Linear, Rearrange, Source, add_tangents
from tessera.graph.ops.checks import (
    check_axes,
    check_dim,
    check_integer,
    check_same_dtype,
    normalize_axis,
    shape_text,
    shapes_may_equal,
    tensor,
    title,
)
from tessera.graph.ops.dynamic_slice import as_int64
from tessera.graph.ops.elementwise import div, eq, mul, select
from tessera.graph.ops.generate import index_dtype
from tessera.graph.ops.rearrange import (
    Batched,
    batch_front,
    broadcast,
    full,
    full_like,
    iota,
    jvp_by_zeros,
    move_axis,
    reshape,
    zeros_like,
)
from tessera.graph.trace import bind
from tessera.ir.core import Value
from tessera.ir.intexpr import Dim, maximum, minimum, prod, sym
from tessera.ir.opdef import attr, operand, operands
from tessera.ir.order import BY_CHANCE, Order
from tessera.ir.types import TensorType


class IndexMode(Enum):
    """What becomes of an index that is out of range."""

    CLIP = "clip"
    """The nearest index in range is used."""
    FILL = "fill"
    """Reading gives NaN, or 0 for integers and False for bool. Not for writing."""
    DROP = "drop"
    """Reading gives 0, and nothing is written."""
    PROMISE = "promise"
    """There is none: the program promises it."""
    RAISE = "raise"
    """An error. No op has it: what reads or writes checks first, see `namespace/bounds.py`."""


class Combine(Enum):
    """How a scattered update joins what is there."""

    SET = "set"
    ADD = "add"
    MUL = "mul"
    MIN = "min"
    MAX = "max"


def _check_indices(op: GraphOp, first: int, x: TensorType, axes: Sequence[int]) -> list[Dim]:
    """The common shape of the index operands."""
    check_axes(op, axes, x.rank)
    types = [tensor(op, k) for k in range(first, len(op.operands))]
    check_dim(
        op,
        len(types) == len(axes),
        f"{len(types)} index arrays for axes={shape_text(axes)}",
        "there is one index array per axis",
    )
    for k, index in enumerate(types):
        check_integer(op, f"index {k}", index.dtype)
        check_dim(
            op,
            shapes_may_equal(index.shape, types[0].shape),
            f"index 0 is {types[0]}, but index {k} is {index}",
            "index arrays have one shape; broadcast them first",
        )
    return list(types[0].shape) if types else []


def _rest(shape: Sequence[Dim], axes: Sequence[int]) -> list[Dim]:
    """The dims that are not indexed."""
    return [dim for k, dim in enumerate(shape) if k not in axes]


def _located(
    indices: Sequence[np.ndarray], dims: Sequence[int]
) -> tuple[tuple[np.ndarray, ...], np.ndarray]:
    """Index arrays brought into range, and where all of them were in range."""
    shape = indices[0].shape if indices else ()
    inside = np.ones(shape, np.bool_)
    clipped: list[np.ndarray] = []
    for index, dim in zip(map(as_int64, indices), dims, strict=True):
        inside &= (index >= 0) & (index < dim)
        clipped.append(np.asarray(np.clip(index, 0, max(dim - 1, 0))))
    return tuple(clipped), inside


def fill_value(dtype: DType) -> float | int | bool:
    """What `IndexMode.FILL` reads out of range."""
    if dtype.is_inexact:
        return nan
    return False if dtype.is_bool else 0


class Gather(Rearrange):
    """Reads elements or slices at computed positions.

    `%r = graph.gather(%x, [%i, %j]) {axes=[0, 2], mode=clip} : f32[5, 4]` for `%x : f32[3, 4, 6]`
    and `i32[5]` indices: `out[i..., r...] = x[...]` with `indices[k][i...]` on `axes[k]`, and r on
    the other axes in their order.

    Attributes:
        axes: the axis that each index array indexes.
        mode: what becomes of indices out of range.
        inside: all are meant to be in range, which sentinels look at.
        unique: the program promises that no two elements are read at the same position.
    """

    name = "graph.gather"
    x: Value = operand()
    indices: tuple[Value, ...] = operands()
    axes: tuple[int, ...] = attr()
    mode: IndexMode = attr()
    inside: bool = attr(False)
    unique: bool = attr(False)

    def infer(self) -> TensorType:
        x = tensor(self, 0)
        outer = _check_indices(self, 1, x, self.axes)
        shape = (*outer, *_rest(x.shape, self.axes))
        size = prod(shape)
        if self.mode in (IndexMode.CLIP, IndexMode.PROMISE) and isinstance(size, int) and size:
            for axis in self.axes:
                if x.shape[axis] == 0:
                    raise IndexOutOfBoundsError(
                        f"{title(self)}: axis {axis} of {x} has no elements, but {size} are taken",
                        loc=self.loc,
                        rule="an index lies inside its axis",
                    )
        return x.with_shape(shape)

    @property
    def outer(self) -> int:
        """The rank of the indices."""
        return tensor(self, 1).rank if self.indices else 0

    def evaluate(self, *operands: np.ndarray) -> np.ndarray:
        x, *indices = operands
        count = len(self.axes)
        front = np.moveaxis(x, self.axes, range(count))
        clipped, inside = _located(indices, front.shape[:count])
        if 0 in front.shape[:count]:
            found = np.zeros(inside.shape + front.shape[count:], x.dtype)
        else:
            found = np.asarray(front[clipped])
        if self.mode in (IndexMode.CLIP, IndexMode.PROMISE):
            return found
        fill = np.asarray(self._fill(tensor(self, 0).dtype)).astype(x.dtype)
        return np.where(inside.reshape(inside.shape + (1,) * (x.ndim - count)), found, fill)

    def _fill(self, dtype: DType) -> float | int | bool:
        return fill_value(dtype) if self.mode is IndexMode.FILL else 0

    def sources(self, index: tuple[Dim, ...]) -> list[Source]:
        x = tensor(self, 0)
        rest = iter(index[self.outer :])
        inner: list[Dim] = []
        where: list[Dim] = []
        for axis, dim in enumerate(x.shape):
            if axis not in self.axes:
                inner.append(next(rest))
                continue
            position: Dim = sym(f"${1 + self.axes.index(axis)}")
            if self.mode is IndexMode.CLIP:
                position = minimum(maximum(position, 0), dim - 1)
            elif self.mode is not IndexMode.PROMISE:
                where += [position, dim - 1 - position]
            inner.append(position)
        found = Source(0, tuple(inner), tuple(where))
        return [found, Source(None, fill=self._fill(x.dtype))] if where else [found]

    def dynamic_index(self, k: int, index: tuple[Dim, ...]) -> tuple[Dim, ...]:
        return index[: self.outer]

    def jvp(
        self, primals: Sequence[Any], tangents: Sequence[Any], outs: Sequence[Any]
    ) -> Sequence[Any]:
        if tangents[0] is None:
            return (None,)
        return (self._again(tangents[0], primals[1:], self.axes, _linear_mode(self.mode)),)

    def _again(
        self, x: Any, indices: Sequence[Any], axes: Sequence[int], mode: IndexMode | None = None
    ) -> Any:
        return gather(x, indices, axes, mode or self.mode, self.inside, self.unique)

    def transpose(self, cts: Sequence[Any], operands: Sequence[Any]) -> Sequence[Any]:
        x, *indices = operands
        mode = _linear_mode(self.mode)
        ct = scatter(
            zeros_like(x), cts[0], indices, self.axes, Combine.ADD, mode, self.unique, self.inside
        )
        return ct, *[None] * len(indices)

    def batch(self, operands: Sequence[Any], axes: Sequence[int | None], size: Dim) -> Batched:
        x, *indices = operands
        x_axis = axes[0]
        if all(a is None for a in axes[1:]):
            assert x_axis is not None
            x = move_axis(x, x_axis, 0)
            inner = tuple([axis + 1 for axis in self.axes])
            return (self._again(x, indices, inner),), (self.outer,)
        indices = [batch_front(v, a, size) for v, a in zip(indices, axes[1:], strict=True)]
        if x_axis is None:
            return (self._again(x, indices, self.axes),), (0,)
        x = move_axis(x, x_axis, 0)
        inner = (0, *[axis + 1 for axis in self.axes])
        places = _with_batch_index(indices, size)
        return (self._again(x, places, inner),), (0,)


def _linear_mode(mode: IndexMode) -> IndexMode:
    """The mode for tangents: what is filled in does not depend on the operand."""
    return IndexMode.DROP if mode is IndexMode.FILL else mode


def _with_batch_index(indices: Sequence[Any], size: Dim) -> list[Any]:
    """Batched indices with one more in front: the number of the example."""
    return [iota(indices[0].shape, 0, index_dtype(size)), *indices]


class Scatter(GraphOp):
    """Writes updates at computed positions; the inverse of `gather`.

    `%r = graph.scatter(%x, %updates, [%i]) {axes=[0], combine=add} : f32[8, 4]` for
    `%updates : f32[5, 4]` and `%i : i32[5]`. Updates are applied in row-major order of the
    indices, so with `set` the last one wins.

    Attributes:
        axes: the axis that each index array indexes.
        combine: how an update joins what is there.
        mode: what becomes of indices out of range; by default nothing is written.
        unique: the program promises that no two updates have the same position.
        inside: all indices are meant to be in range, which sentinels look at.
        order: the order in which updates of one element are combined, where that rounds; None
            leaves it to the schedule, which is in order, or sorts.
    """

    name = "graph.scatter"
    family = Family.SCATTER
    x: Value = operand()
    updates: Value = operand()
    indices: tuple[Value, ...] = operands()
    axes: tuple[int, ...] = attr()
    combine: Combine = attr()
    mode: IndexMode = attr(IndexMode.DROP)
    unique: bool = attr(False)
    inside: bool = attr(False)
    order: Order | None = attr(None)

    @classmethod
    def is_deterministic(
        cls, operands: Sequence[Any], attrs: Mapping[str, Any], on_cpu: bool
    ) -> bool:
        """Unless updates of one element may meet by chance."""
        return attrs.get("order") != BY_CHANCE

    @classmethod
    def free_order(cls, operands: Sequence[Any], attrs: Mapping[str, Any]) -> Order | None:
        """Any, where several updates may round in one element."""
        rounds = operands[0].dtype.is_inexact and attrs["combine"] in (Combine.ADD, Combine.MUL)
        return BY_CHANCE if rounds and not attrs.get("unique") else None

    @property
    def rounds(self) -> bool:
        """Whether the order of updates of one element matters to the last bits."""
        return tensor(self, 0).dtype.is_inexact and self.combine in (Combine.ADD, Combine.MUL)

    def infer(self) -> TensorType:
        x, updates = tensor(self, 0), tensor(self, 1)
        check_same_dtype(self, x, updates, ("the operand", "updates"))
        wanted = [*_check_indices(self, 2, x, self.axes), *_rest(x.shape, self.axes)]
        check_dim(
            self,
            shapes_may_equal(updates.shape, wanted),
            f"updates are {updates}, not of shape {shape_text(wanted)}",
            "updates have the shape of the indices, then the dims of the operand not indexed",
        )
        check_dim(
            self, self.mode is not IndexMode.FILL, "mode is fill", "fill is a mode of reading only"
        )
        kind = x.dtype.kind
        ordered = self.combine in (Combine.MIN, Combine.MAX)
        if self.combine is not Combine.SET and (
            kind is Kind.BOOL or (ordered and kind is Kind.COMPLEX)
        ):
            raise DTypeError(
                f"{title(self)}: {self.combine.value} does not combine elements of {x}",
                loc=self.loc,
                rule="add and mul take numbers, min and max real numbers",
            )
        return x

    @property
    def outer(self) -> int:
        """The rank of the indices."""
        return tensor(self, 2).rank if self.indices else 0

    def evaluate(self, *operands: np.ndarray) -> np.ndarray:
        x, updates, *indices = operands
        count = len(self.axes)
        out = np.moveaxis(x, self.axes, range(count)).copy()
        clipped, inside = _located(indices, out.shape[:count])
        if self.mode is not IndexMode.DROP:
            inside = np.full(inside.shape, 0 not in out.shape[:count])
        positions = tuple([index[inside] for index in clipped])
        values = updates[inside]
        if not count:
            positions, values = (), updates
        with np.errstate(all="ignore"):
            match self.combine:
                case Combine.SET:
                    out[positions] = values
                case Combine.ADD:
                    np.add.at(out, positions, values)
                case Combine.MUL:
                    np.multiply.at(out, positions, values)
                case Combine.MIN:
                    np.minimum.at(out, positions, values)
                case Combine.MAX:
                    np.maximum.at(out, positions, values)
        return np.moveaxis(out, range(count), self.axes)

    def _again(self, x: Any, updates: Any, indices: Sequence[Any], combine: Combine) -> Any:
        order = self.order if combine in (Combine.ADD, Combine.MUL) else None
        return scatter(
            x, updates, indices, self.axes, combine, self.mode, self.unique, self.inside, order
        )

    def jvp(
        self, primals: Sequence[Any], tangents: Sequence[Any], outs: Sequence[Any]
    ) -> Sequence[Any]:
        if self.combine in (Combine.SET, Combine.ADD):
            return jvp_by_zeros(self, primals, tangents)
        rule = self._product_jvp if self.combine is Combine.MUL else self._extremum_jvp
        return (rule(primals, tangents, outs[0]),)

    def _product_jvp(self, primals: Sequence[Any], tangents: Sequence[Any], out: Any) -> Any:
        x, updates, *indices = primals
        total: Any = None
        if tangents[0] is not None:
            total = self._again(tangents[0], updates, indices, Combine.MUL)
        if tangents[1] is not None:
            if not self.unique:
                raise NotDifferentiableError(
                    f"{title(self)}: the derivative of a product with respect to the updates is not"
                    " known",
                    loc=self.loc,
                    rule="the positions of a differentiated product scatter do not repeat",
                    fix="promise it with unique=True, or scatter-add logarithms",
                )
            factors = gather(x, indices, self.axes, self.mode, self.inside)
            part = mul(tangents[1], factors)
            total = add_tangents(total, self._again(zeros_like(x), part, indices, Combine.ADD))
        return total

    def _extremum_jvp(self, primals: Sequence[Any], tangents: Sequence[Any], out: Any) -> Any:
        """The tangent of whichever element became the result; those that tie share evenly."""
        x, updates, *indices = primals
        winner = gather(out, indices, self.axes, self.mode)
        hits = (_indicator(x, out), _indicator(updates, winner))
        parts = [
            zeros_like(p) if t is None else mul(t, hit)
            for p, t, hit in zip(primals[:2], tangents[:2], hits, strict=True)
        ]
        total = self._again(parts[0], parts[1], indices, Combine.ADD)
        return div(total, self._again(hits[0], hits[1], indices, Combine.ADD))

    def transpose(self, cts: Sequence[Any], operands: Sequence[Any]) -> Sequence[Any]:
        (ct,) = cts
        x, updates, *indices = operands
        ct_x = ct_updates = None
        if isinstance(x, Linear):
            match self.combine:
                case Combine.ADD:
                    ct_x = ct
                case Combine.SET:
                    ct_x = self._again(ct, zeros_like(updates), indices, Combine.SET)
                case Combine.MUL:
                    ct_x = self._again(ct, updates, indices, Combine.MUL)
                case _:
                    raise AssertionError("min and max are not linear")
        if isinstance(updates, Linear):
            ct_updates = gather(ct, indices, self.axes, self.mode, self.inside)
            if self.combine is Combine.SET and not self.unique:
                last = broadcast(self._last(x, indices), ct_updates.shape, range(self.outer))
                ct_updates = select(last, ct_updates, 0)
        return ct_x, ct_updates, *[None] * len(indices)

    def _last(self, x: Any, indices: Sequence[Any]) -> Any:
        """Which updates are the last ones at their positions."""
        shape: tuple[Dim, ...] = indices[0].shape if indices else ()
        count = prod(shape)
        numbers = reshape(iota((count,), 0, index_dtype(count)), shape)
        dims = [x.type.shape[axis] for axis in self.axes]
        axes = tuple(range(len(dims)))
        none = full(dims, -1, numbers.dtype)
        written = scatter(none, numbers, indices, axes, Combine.SET, self.mode)
        return eq(gather(written, indices, axes, self.mode), numbers)

    def batch(self, operands: Sequence[Any], axes: Sequence[int | None], size: Dim) -> Batched:
        x, updates = [batch_front(v, a, size) for v, a in zip(operands[:2], axes[:2], strict=True)]
        indices = operands[2:]
        inner = tuple([axis + 1 for axis in self.axes])
        if all(a is None for a in axes[2:]):
            updates = move_axis(updates, 0, self.outer)
        else:
            indices = [batch_front(v, a, size) for v, a in zip(indices, axes[2:], strict=True)]
            indices = _with_batch_index(indices, size)
            inner = (0, *inner)
        return (self.bind(x, updates, tuple(indices), axes=inner),), (0,)


def _indicator(a: Any, b: Any) -> Any:
    return select(eq(a, b), full_like(a, 1), 0)


# --- functions --------------------------------------------------------------------------------


def gather(
    x: Any,
    indices: Sequence[Any],
    axes: Sequence[int],
    mode: IndexMode = IndexMode.PROMISE,
    inside: bool = False,
    unique: bool = False,
) -> Any:
    """Elements of `x`: `indices[k]` on `axes[k]`, and all of the other axes."""
    attrs = {"axes": tuple(axes), "mode": mode, "inside": inside, "unique": unique}
    return bind(Gather, x, tuple(indices), **attrs)


def scatter(
    x: Any,
    updates: Any,
    indices: Sequence[Any],
    axes: Sequence[int],
    combine: Combine,
    mode: IndexMode = IndexMode.DROP,
    unique: bool = False,
    inside: bool = False,
    order: Order | None = None,
) -> Any:
    """`x` with updates put in where `gather` would read; see `Scatter`."""
    attrs = {
        "axes": tuple(axes), "combine": combine, "mode": mode, "unique": unique,
        "inside": inside, "order": order,
    }  # fmt: skip
    return bind(Scatter, x, updates, tuple(indices), **attrs)


def take_along(
    x: Any,
    index: Any,
    axis: int,
    mode: IndexMode = IndexMode.PROMISE,
    inside: bool = False,
    unique: bool = False,
) -> Any:
    """The elements of `x` at `index` along one axis, and at their own place along the others.

    `index` has the rank of `x`; the result has its shape. With `unique`, no place along the axis is
    there twice.
    """
    axis = normalize_axis("take_along", axis, x.ndim)
    places = [
        index if k == axis else iota(index.shape, k, index_dtype(dim))
        for k, dim in enumerate(index.shape)
    ]
    return gather(x, places, range(x.ndim), mode, inside, unique)
