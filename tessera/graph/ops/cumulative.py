"""Running combinations along one axis: each result element combines all elements up to its place.

NaN stays once met. The derivatives of products, of logarithms of sums, and of extrema are exact at
zeros, far below the maximum, and at ties (the latest of equal elements has the derivative).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar

import numpy as np

from tessera.dtypes import DType, int64
from tessera.graph.ops.base import Family, GraphOp, linear
from tessera.graph.ops.checks import check_axis, normalize_axis, tensor
from tessera.graph.ops.elementwise import (
    add,
    and_,
    cast,
    div,
    eq,
    exp,
    isnan,
    le,
    logaddexp,
    mul,
    neg,
    or_,
    select,
    sigmoid,
)
from tessera.graph.ops.elementwise_math import difference
from tessera.graph.ops.gather import take_along
from tessera.graph.ops.rearrange import (
    Batched,
    broadcast,
    insert,
    iota,
    pad,
    reverse,
    slice_axis,
)
from tessera.graph.ops.reduce import check_kind, default_accumulator, sum_
from tessera.graph.trace import bind
from tessera.ir.core import Value
from tessera.ir.intexpr import Dim
from tessera.ir.opdef import attr, operand
from tessera.ir.order import SEQUENCE, Order, fixed_running
from tessera.ir.scalar import SCALARS, ScalarFn
from tessera.ir.types import TensorType


class Cumulative(GraphOp):
    """Base of running combinations, each step of which rounds to the operand's dtype.

    `%r = graph.cumsum(%x) {axis=1, reverse=true} : f32[4, S]`.

    Attributes:
        axis: along which elements are combined.
        reverse: from the end to the beginning.
        order: in which order elements are combined; None leaves it to the schedule.

    Class attributes:
        fn: the combining row of the scalar table, which has an identity.
    """

    family = Family.SCAN
    fn: ClassVar[str]
    x: Value = operand()
    axis: int = attr()
    reverse: bool = attr(False)
    order: Order | None = attr(None)

    @property
    def row(self) -> ScalarFn:
        """The combining row of the scalar table."""
        return SCALARS[self.fn]

    def accumulates(self) -> DType | None:
        """The operand's dtype: all sums on the way are results."""
        return tensor(self, 0).dtype

    @classmethod
    def fixed_order(
        cls, operands: Sequence[Any], attrs: Mapping[str, Any], on_cpu: bool
    ) -> Order | None:
        """One element after the other; blocks of neighbours on a GPU."""
        type: TensorType = operands[0].type
        if not type.dtype.is_inexact:
            return None
        if on_cpu or (type.dtype.is_complex and cls.fn != "add"):
            return SEQUENCE
        return fixed_running(type.shape, attrs["axis"])

    def infer(self) -> TensorType:
        """The operand's type."""
        x = tensor(self, 0)
        check_axis(self, self.axis, x.rank)
        check_kind(self, self.row, x)
        return x

    def evaluate(self, *operands: np.ndarray) -> np.ndarray:
        """Combines element after element, each time rounding to the dtype."""
        source = np.moveaxis(operands[0], self.axis, 0)
        if self.reverse:
            source = source[::-1]
        found = np.empty_like(source)
        for k in range(len(source)):
            found[k] = self.row.evaluate(found[k - 1], source[k]) if k else source[k]
        if self.reverse:
            found = found[::-1]
        return np.ascontiguousarray(np.moveaxis(found, 0, self.axis))

    def batch(self, operands: Sequence[Any], axes: Sequence[int | None], size: Dim) -> Batched:
        """The same op along the moved axis."""
        (at,) = axes
        assert at is not None
        return (self.bind(operands[0], axis=self.axis + (self.axis >= at)),), (at,)

    def _forward(self, rule: Callable[..., Any], *arrays: Any) -> Any:
        """A rule written for `reverse=False`, applied to arrays in the op's direction."""
        if not self.reverse:
            return rule(*arrays)
        flipped = [reverse(x, (self.axis,)) for x in arrays]
        return reverse(rule(*flipped), (self.axis,))


class CumSum(Cumulative):
    """Running sums."""

    name = "graph.cumsum"
    fn = "add"

    jvp = linear

    def transpose(self, cts: Sequence[Any], operands: Sequence[Any]) -> Sequence[Any]:
        return (self.bind(cts[0], reverse=not self.reverse),)


class CumProd(Cumulative):
    """Running products."""

    name = "graph.cumprod"
    fn = "mul"

    def partial(self, k: int, t: Any, out: Any, *primals: Any) -> Any:
        length = primals[0].shape[self.axis]
        if isinstance(length, int):
            return self._forward(partial(_doubling, _times, 1, self.axis), primals[0], t)
        return self._forward(self._around_zeros, primals[0], t, out)

    def _around_zeros(self, x: Any, t: Any, out: Any) -> Any:
        """The tangent without a fixed number of steps.

        The first zero on the way is factored out, and has a term of its own; the products of the
        others are divided. Derivatives of this are exact unless there are several zeros.
        """
        axis = self.axis
        is_zero = eq(x, 0)
        count = bind(CumSum, cast(is_zero, int64), axis=axis)
        is_first = and_(is_zero, eq(count, 1))
        quotients = div(select(is_zero, 0, t), select(is_zero, 1, x))
        others = mul(out, bind(CumSum, quotients, axis=axis))
        rest = bind(CumProd, select(is_first, 1, x), axis=axis)
        first = bind(CumSum, select(is_first, t, 0), axis=axis)
        return add(others, mul(rest, first))


class CumMax(Cumulative):
    """Running maxima; NaN from the first one on."""

    name = "graph.cummax"
    fn = "max"

    def partial(self, k: int, t: Any, out: Any, *primals: Any) -> Any:
        return self._forward(self._chosen, primals[0], t, out)

    def _chosen(self, x: Any, t: Any, out: Any) -> Any:
        """The tangents of the elements that the results are."""
        place = iota(x.shape, self.axis, int64)
        is_extremum = or_(eq(x, out), isnan(x))
        index = bind(CumMax, select(is_extremum, place, 0), axis=self.axis)
        return take_along(t, index, self.axis)


class CumMin(CumMax):
    """Running minima; NaN from the first one on."""

    name = "graph.cummin"
    fn = "min"


class CumLogSumExp(Cumulative):
    """Running log(sum(exp(x)))."""

    name = "graph.cumlogsumexp"
    fn = "logaddexp"

    def partial(self, k: int, t: Any, out: Any, *primals: Any) -> Any:
        length = primals[0].shape[self.axis]
        if isinstance(length, int):
            rule = partial(_doubling, _log_plus, -np.inf, self.axis)
            return self._forward(rule, primals[0], t)
        return self._forward(self._weighted, primals[0], t, out)

    def _weighted(self, x: Any, t: Any, out: Any) -> Any:
        """The tangent without a fixed number of steps: a sum over all earlier elements for each."""
        axis, rank = self.axis, x.ndim
        shape = insert(x.shape, axis, x.shape[axis])
        own = [k + (k > axis) for k in range(rank)]
        each = [k + (k >= axis) for k in range(rank)]
        x, t = (broadcast(v, shape, each) for v in (x, t))
        out = broadcast(out, shape, own)
        # What comes later is taken out before exp, not after: exp might overflow, and then its
        # derivative would be infinity times 0.
        counted = le(iota(shape, axis + 1, int64), iota(shape, axis, int64))
        weights = exp(select(counted, difference(x, out), -np.inf))
        return sum_(mul(weights, t), (axis + 1,))


def _doubling(combine: Callable[..., Any], neutral: float, axis: int, x: Any, t: Any) -> Any:
    """The tangents of the running combinations of `x` along an axis of known length.

    In each step every element is combined with the one 1, 2, 4, ... places before, which covers all
    before it in the end (Hillis and Steele, "Data parallel algorithms", 1986).

    Args:
        combine: from an element, its tangent, a later element and its tangent to both of the
            combination.
        neutral: what stands before the first element.
        axis: the axis.
        x: the elements.
        t: their tangents.
    """
    length: int = x.shape[axis]
    none = [0] * x.ndim
    distance = 1
    while distance < length:
        low = insert(none[1:], axis, distance)
        before = pad(slice_axis(x, axis, 0, length - distance), neutral, low, none)
        moved = pad(slice_axis(t, axis, 0, length - distance), 0, low, none)
        x, t = combine(before, moved, x, t)
        distance *= 2
    return t


def _times(a: Any, ta: Any, b: Any, tb: Any) -> tuple[Any, Any]:
    return mul(a, b), add(mul(ta, b), mul(tb, a))


def _log_plus(a: Any, ta: Any, b: Any, tb: Any) -> tuple[Any, Any]:
    more = difference(a, b)
    tangent = add(mul(ta, sigmoid(more)), mul(tb, sigmoid(neg(more))))
    return logaddexp(a, b), tangent


# --- functions --------------------------------------------------------------------------------


def _cumulative(cls: type[Cumulative], x: Any, axis: int, reverse: bool, exact: bool) -> Any:
    axis = normalize_axis(cls.name.rpartition(".")[2], axis, x.ndim)
    dtype = x.dtype
    wide = dtype if exact else default_accumulator(dtype)
    return cast(bind(cls, cast(x, wide), axis=axis, reverse=reverse), dtype)


def cumsum(x: Any, axis: int, reverse: bool = False) -> Any:
    """Running sums along an axis; accumulated in float32 at least."""
    return _cumulative(CumSum, x, axis, reverse, False)


def cumprod(x: Any, axis: int, reverse: bool = False) -> Any:
    """Running products along an axis; accumulated in float32 at least."""
    return _cumulative(CumProd, x, axis, reverse, False)


def cummax(x: Any, axis: int, reverse: bool = False) -> Any:
    """Running maxima along an axis."""
    return _cumulative(CumMax, x, axis, reverse, True)


def cummin(x: Any, axis: int, reverse: bool = False) -> Any:
    """Running minima along an axis."""
    return _cumulative(CumMin, x, axis, reverse, True)


def cumlogsumexp(x: Any, axis: int, reverse: bool = False) -> Any:
    """Running log(sum(exp(x))) along an axis; accumulated in float32 at least."""
    return _cumulative(CumLogSumExp, x, axis, reverse, False)
