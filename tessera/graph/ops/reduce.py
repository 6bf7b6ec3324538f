"""Ops that combine all elements along some axes: sums, products, extrema, their positions.

The result drops the reduced axes. The order in which elements are combined is not fixed. An empty
axis gives the combining function's neutral element where it has a sensible one; the extrema of an
axis known to be empty are refused (a symbolic axis that turns out empty gives the neutral element).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from tessera.dtypes import DType, bool_, float32, int64
from tessera.errors import DTypeError, ShapeError
from tessera.graph.ops.base import Family, GraphOp, linear
from tessera.graph.ops.checks import (
    check_axes,
    check_axis,
    may_be_nonneg,
    normalize_axis,
    static_shape,
    tensor,
    title,
)
from tessera.graph.ops.elementwise import cast, div, eq, mul
from tessera.graph.ops.rearrange import (
    Batched,
    broadcast,
    call,
    concatenate,
    full,
    reshape,
    slice_axis,
    transpose,
)
from tessera.graph.trace import bind
from tessera.ir.convert import cast_array, widen
from tessera.ir.core import Value
from tessera.ir.intexpr import Dim
from tessera.ir.intexpr import prod as product
from tessera.ir.opdef import attr, operand
from tessera.ir.order import Order, fixed, fixed_in_blocks
from tessera.ir.scalar import SCALARS, ScalarFn
from tessera.ir.types import TensorType


def check_kind(op: GraphOp, row: ScalarFn, x: TensorType) -> None:
    """The combining function takes the operand's dtype."""
    if x.dtype.kind not in row.kinds:
        kinds = ", ".join(sorted(kind.value for kind in row.kinds))
        raise DTypeError(
            f"{title(op)}: the operand is {x.strong()}",
            loc=op.loc,
            rule=f"the dtype's kind is one of {kinds}",
            fix="take `ts.abs(x)` or `ts.real(x)` first" if x.dtype.is_complex else "cast it first",
        )


def default_accumulator(dtype: DType) -> DType:
    """What sums of a dtype are accumulated in unless told: float32 at least, if inexact."""
    return float32 if dtype.is_float and dtype.bits < 32 else dtype


class Reduce(GraphOp):
    """Base of reductions.

    Attributes:
        axes: what is reduced, in increasing order.
        accumulate: the dtype in which elements are combined; the result is converted back. None is
            the operand's own, but sums and products of float16 and narrower state float32.
        order: in which order elements are combined; None leaves it to the schedule.

    Class attributes:
        fn: the combining row of the scalar table, which has an identity.
    """

    family = Family.REDUCE
    fn: ClassVar[str]
    x: Value = operand()
    axes: tuple[int, ...] = attr()
    accumulate: DType | None = attr(None)
    order: Order | None = attr(None)

    @property
    def row(self) -> ScalarFn:
        """The combining row of the scalar table."""
        return SCALARS[self.fn]

    @property
    def accumulator(self) -> DType:
        """The dtype in which elements are combined."""
        return self.accumulate or tensor(self, 0).dtype

    def accumulates(self) -> DType | None:
        """The accumulator."""
        return self.accumulator

    @property
    def kept(self) -> tuple[int, ...]:
        """The axes that are not reduced."""
        return tuple([k for k in range(tensor(self, 0).rank) if k not in self.axes])

    def infer(self) -> TensorType:
        """The operand's type without the reduced axes."""
        x = tensor(self, 0)
        check_axes(self, self.axes, x.rank)
        check_kind(self, self.row, x)
        wide = self.accumulator
        if wide.kind is not x.dtype.kind or wide.bits < x.dtype.bits:
            raise DTypeError(
                f"{title(self)}: {x} cannot be accumulated in {wide}",
                loc=self.loc,
                rule="the accumulator has the operand's kind, and at least its width",
            )
        return x.with_shape([x.shape[k] for k in self.kept])

    def spread(self, y: Any, shape: Sequence[Dim]) -> Any:
        """A result repeated along the reduced axes: the operand's shape."""
        return broadcast(y, shape, self.kept)

    def batch(self, operands: Sequence[Any], axes: Sequence[int | None], size: Dim) -> Batched:
        """The same reduction; the batch axis moves down by the reduced axes before it."""
        (axis,) = axes
        assert axis is not None
        shifted = tuple([k + (k >= axis) for k in self.axes])
        return (self.bind(operands[0], axes=shifted),), (axis - sum(k < axis for k in shifted),)


class _Accumulate(Reduce):
    """Sums and products, which round."""

    @classmethod
    def fixed_order(
        cls, operands: Sequence[Any], attrs: Mapping[str, Any], on_cpu: bool
    ) -> Order | None:
        """The class of the sum."""
        type: TensorType = operands[0].type
        dtype = attrs.get("accumulate") or default_accumulator(type.dtype)
        if not dtype.is_inexact:
            return None
        axes: tuple[int, ...] = attrs["axes"]
        return fixed(type.shape, axes, dtype) if on_cpu else fixed_in_blocks(type.shape, axes)

    def infer(self) -> TensorType:
        """The operand's type without the reduced axes."""
        dtype = tensor(self, 0).dtype
        wide = default_accumulator(dtype)
        if self.accumulate is None and wide is not dtype:
            # Every op that rounds on the way states in what, so that no reader needs the default.
            self.__dict__["accumulate"] = wide
        return super().infer()

    def evaluate(self, *operands: np.ndarray) -> np.ndarray:
        """NumPy's reduction in the accumulator's dtype."""
        (x,) = operands
        wide = widen(cast_array(x, self.accumulator))
        combine = np.sum if self.fn == "add" else np.prod
        with np.errstate(all="ignore"):
            found: Any = combine(wide, axis=self.axes, dtype=wide.dtype)
        return cast_array(np.asarray(found), tensor(self, 0).dtype)


class Sum(_Accumulate):
    """The sum along some axes. `%r = graph.reduce_sum(%x) {axes=[1]} : f32[S]` for f32[S, 4]."""

    name = "graph.reduce_sum"
    fn = "add"

    jvp = linear

    def transpose(self, cts: Sequence[Any], operands: Sequence[Any]) -> Sequence[Any]:
        return (self.spread(cts[0], operands[0].type.shape),)


class Prod(_Accumulate):
    """The product along some axes. The derivative is right where elements are zero, too."""

    name = "graph.reduce_prod"
    fn = "mul"

    def partial(self, k: int, t: Any, out: Any, *primals: Any) -> Any:
        (x,) = primals
        axis = len(self.kept)
        x, t = (self._flat(v) for v in (x, t))
        length = x.shape[axis]
        if isinstance(length, int):
            return _product_tangent(x, t, axis, length)
        ones = full((*x.shape[:axis], 1), 1, x.dtype)
        others: Any = None
        for reverse in (False, True):
            # The products of all elements before (after) each one.
            start, limit = (1, length) if reverse else (0, length - 1)
            inside = slice_axis(call("cumprod", x, axis=axis, reverse=reverse), axis, start, limit)
            shifted = concatenate([inside, ones] if reverse else [ones, inside], axis)
            others = shifted if others is None else mul(others, shifted)
        return sum_(mul(t, others), (axis,))

    def _flat(self, x: Any) -> Any:
        """The operand with its reduced axes made one, the last."""
        shape: tuple[Dim, ...] = x.shape
        kept = self.kept
        moved = transpose(x, (*kept, *self.axes))
        lead = [shape[k] for k in kept]
        return reshape(moved, (*lead, product([shape[k] for k in self.axes])))


def _product_tangent(x: Any, t: Any, axis: int, length: int) -> Any:
    """The tangent of a product along the last axis, whose halves are multiplied until one is left.

    Products by pairs, unlike quotients of the whole product, are right at zeros in every order.
    """
    if length == 0:
        return None
    while length > 1:
        half = length // 2
        a, b = slice_axis(x, axis, 0, half), slice_axis(x, axis, half, 2 * half)
        ta, tb = slice_axis(t, axis, 0, half), slice_axis(t, axis, half, 2 * half)
        pair, tangent = mul(a, b), call("add", mul(ta, b), mul(tb, a))
        if length % 2:
            pair = concatenate([pair, slice_axis(x, axis, length - 1, length)], axis)
            tangent = concatenate([tangent, slice_axis(t, axis, length - 1, length)], axis)
        x, t, length = pair, tangent, half + length % 2
    return reshape(t, t.shape[:axis])


class _Extremum(Reduce):
    """Extrema: NaN wins, and ties share the derivative equally."""

    def infer(self) -> TensorType:
        """The operand's type without the reduced axes, of which none is empty."""
        found = super().infer()
        check_not_empty(self, self.axes)
        return found

    def evaluate(self, *operands: np.ndarray) -> np.ndarray:
        """NumPy's reduction, starting from the identity."""
        (x,) = operands
        dtype = tensor(self, 0).dtype
        assert self.row.identity is not None
        combine = np.max if self.fn == "max" else np.min
        found: Any = combine(widen(x), axis=self.axes, initial=self.row.identity(dtype))
        return cast_array(np.asarray(found), dtype)

    def partial(self, k: int, t: Any, out: Any, *primals: Any) -> Any:
        (x,) = primals
        wins = cast(eq(x, self.spread(out, x.shape)), t.dtype)
        return div(sum_(mul(t, wins), self.axes), sum_(wins, self.axes))


class Max(_Extremum):
    """The largest element along some axes, or NaN if there is one."""

    name = "graph.reduce_max"
    fn = "max"


class Min(_Extremum):
    """The smallest element along some axes, or NaN if there is one."""

    name = "graph.reduce_min"
    fn = "min"


class _Logical(Reduce):
    differentiable = False

    def infer(self) -> TensorType:
        """The operand's type, bool, without the reduced axes."""
        x = tensor(self, 0)
        if x.dtype is not bool_:
            raise DTypeError(
                f"{title(self)}: the operand is {x.strong()}",
                loc=self.loc,
                rule="the operand is bool",
                fix="compare it with zero first",
            )
        return super().infer()

    def evaluate(self, *operands: np.ndarray) -> np.ndarray:
        """NumPy's reduction."""
        combine = np.any if self.fn == "or" else np.all
        return np.asarray(combine(operands[0], axis=self.axes))


class Any_(_Logical):
    """Whether any element along some axes is true."""

    name = "graph.reduce_any"
    fn = "or"


class All(_Logical):
    """Whether all elements along some axes are true."""

    name = "graph.reduce_all"
    fn = "and"


def check_not_empty(op: GraphOp, axes: Sequence[int]) -> None:
    """None of the axes of operand 0 is known to be empty."""
    x = tensor(op, 0)
    for axis in axes:
        if not may_be_nonneg(x.shape[axis] - 1):
            raise ShapeError(
                f"{title(op)}: dim {axis} of {x} is empty",
                loc=op.loc,
                rule="an empty axis has no extremum",
            )


class ArgReduce(GraphOp):
    """Base of searches for the position, i64, of the extremum along one axis.

    The first of equal ones wins, and NaN counts as the extremum.

    Class attributes:
        fn: `max` or `min`.
    """

    family = Family.REDUCE
    differentiable = False
    fn: ClassVar[str]
    x: Value = operand()
    axis: int = attr()

    @property
    def row(self) -> ScalarFn:
        """The row of the scalar table that compares."""
        return SCALARS[self.fn]

    def accumulates(self) -> DType | None:
        """The operand's dtype, in which elements are compared."""
        return tensor(self, 0).dtype

    def infer(self) -> TensorType:
        """i64, without the axis."""
        x = tensor(self, 0)
        check_axis(self, self.axis, x.rank)
        check_kind(self, self.row, x)
        check_not_empty(self, (self.axis,))
        shape = (*x.shape[: self.axis], *x.shape[self.axis + 1 :])
        return TensorType(shape, int64, policy=x.policy)

    def evaluate(self, *operands: np.ndarray) -> np.ndarray:
        """NumPy's; 0 along a symbolic axis that turned out empty."""
        (x,) = operands
        if x.shape[self.axis] == 0:
            return np.zeros(static_shape(self.infer().shape), np.int64)
        search = np.argmax if self.fn == "max" else np.argmin
        return np.asarray(search(widen(x), axis=self.axis))

    def batch(self, operands: Sequence[Any], axes: Sequence[int | None], size: Dim) -> Batched:
        """The same search along the moved axis."""
        (at,) = axes
        assert at is not None
        axis = self.axis + (self.axis >= at)
        return (self.bind(operands[0], axis=axis),), (at - (axis < at),)


class ArgMax(ArgReduce):
    """The position of the largest element. `%r = graph.argmax(%x) {axis=1} : i64[S]`."""

    name = "graph.argmax"
    fn = "max"


class ArgMin(ArgReduce):
    """The position of the smallest element. `%r = graph.argmin(%x) {axis=1} : i64[S]`."""

    name = "graph.argmin"
    fn = "min"


# --- functions --------------------------------------------------------------------------------


def _reduce(cls: type[Reduce], x: Any, axes: Sequence[int] | None, **attrs: Any) -> Any:
    if axes is None:
        axes = range(x.ndim)
    found = tuple(sorted([normalize_axis(cls.name.rpartition("_")[2], k, x.ndim) for k in axes]))
    return bind(cls, x, axes=found, **attrs) if found else x


def sum_(x: Any, axes: Sequence[int] | None = None, accumulate: DType | None = None) -> Any:
    """The sum along some axes, or all. Accumulated in a given dtype; the result's is that of x."""
    return _reduce(Sum, x, axes, accumulate=accumulate)


def prod_(x: Any, axes: Sequence[int] | None = None, accumulate: DType | None = None) -> Any:
    """The product along some axes, or all."""
    return _reduce(Prod, x, axes, accumulate=accumulate)


def max_(x: Any, axes: Sequence[int] | None = None) -> Any:
    """The largest element along some axes, or all."""
    return _reduce(Max, x, axes)


def min_(x: Any, axes: Sequence[int] | None = None) -> Any:
    """The smallest element along some axes, or all."""
    return _reduce(Min, x, axes)


def any_(x: Any, axes: Sequence[int] | None = None) -> Any:
    """Whether any element along some axes, or at all, is true."""
    return _reduce(Any_, x, axes)


def all_(x: Any, axes: Sequence[int] | None = None) -> Any:
    """Whether all elements along some axes, or all, are true."""
    return _reduce(All, x, axes)


def argmax(x: Any, axis: int) -> Any:
    """The position (i64) of the first largest element along an axis; of the first NaN if any."""
    return bind(ArgMax, x, axis=normalize_axis("argmax", axis, x.ndim))


def argmin(x: Any, axis: int) -> Any:
    """The position (i64) of the first smallest element along an axis; of the first NaN if any."""
    return bind(ArgMin, x, axis=normalize_axis("argmin", axis, x.ndim))
