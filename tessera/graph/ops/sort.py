"""Sorting of several arrays together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tessera.dtypes import int64
from tessera.errors import DTypeError, ShapeError
from tessera.graph.ops.base import Family, GraphOp, is_inexact
from tessera.graph.ops.checks import check_axis, normalize_axis, tensor, title
from tessera.graph.ops.gather import take_along
from tessera.graph.ops.rearrange import Batched, batch_front, iota
from tessera.graph.trace import bind
from tessera.ir.convert import widen
from tessera.ir.core import Value
from tessera.ir.intexpr import Dim
from tessera.ir.opdef import attr, operands
from tessera.ir.types import TensorType


class Sort(GraphOp):
    """Sorts arrays along an axis by the first `num_keys` of them, compared one after the other.

    `%k, %v = graph.sort([%a, %b]) {axis=0} : (f32[S], i64[S])`. All have one shape. NaN counts as
    larger than any number, so it comes last, or first when descending; -0 equals 0.

    Attributes:
        axis: along which elements are moved.
        num_keys: how many of the operands are compared; the others follow.
        descending: the largest first.
        stable: whether equal elements keep their order, also when descending.
    """

    name = "graph.sort"
    family = Family.SORT
    xs: tuple[Value, ...] = operands()
    axis: int = attr()
    num_keys: int = attr(1)
    descending: bool = attr(False)
    stable: bool = attr(True)

    def infer(self) -> tuple[TensorType, ...]:
        """The operands' types."""
        types = [tensor(self, k) for k in range(len(self.xs))]
        if not 1 <= self.num_keys <= len(types):
            raise ShapeError(
                f"{title(self)}: num_keys is {self.num_keys} for {len(types)} operands",
                loc=self.loc,
                rule="at least one operand is a key",
            )
        first = types[0]
        check_axis(self, self.axis, first.rank)
        for k, type in enumerate(types):
            if type.shape != first.shape:
                raise ShapeError(
                    f"{title(self)}: operand {k} is {type}, but operand 0 is {first}",
                    loc=self.loc,
                    rule="operands of a sort have one shape",
                )
            if k < self.num_keys and type.dtype.is_complex:
                raise DTypeError(
                    f"{title(self)}: key {k} is {type}",
                    loc=self.loc,
                    rule="complex numbers have no order",
                )
        return tuple([type.strong() for type in types])

    def evaluate(self, *operands: np.ndarray) -> tuple[np.ndarray, ...]:
        """Always stable."""
        order = sort_order(operands[: self.num_keys], self.axis, self.descending)
        return tuple([np.take_along_axis(x, order, self.axis) for x in operands])

    def differentiate(
        self, primals: Sequence[Any], tangents: Sequence[Any], outs: Sequence[Any] | None
    ) -> tuple[Sequence[Any], Sequence[Any]]:
        """Sorts the places with the operands, and takes the tangents from there."""
        place = iota(primals[0].shape, self.axis, int64)
        if outs is None:
            *outs, index = self.bind((*primals, place))
        else:
            *_, index = self.bind((*primals[: self.num_keys], place))
        return outs, [
            None
            if t is None or not is_inexact(x.dtype)
            else take_along(t, index, self.axis, unique=True)
            for x, t in zip(primals, tangents, strict=True)
        ]

    def batch(self, operands: Sequence[Any], axes: Sequence[int | None], size: Dim) -> Batched:
        """The batch axis in front of all operands."""
        xs = [batch_front(x, axis, size) for x, axis in zip(operands, axes, strict=True)]
        found = sort(xs, self.axis + 1, self.num_keys, self.descending, self.stable)
        return found, [0] * len(xs)


def sort_order(keys: Sequence[np.ndarray], axis: int, descending: bool = False) -> np.ndarray:
    """The stable order, i64, of elements along an axis by several keys, the first one first."""
    ranks = [_rank(widen(key)) for key in keys]
    if descending:
        ranks = [-rank for rank in ranks]
    return np.lexsort(ranks[::-1], axis=axis)


def _rank(key: np.ndarray) -> np.ndarray:
    """Integers that compare as the elements do: equal where they are equal, NaN the largest."""
    found: np.ndarray = np.unique(key, return_inverse=True)[1]
    return found.reshape(key.shape).astype(np.int64)


# --- functions --------------------------------------------------------------------------------


def sort(
    xs: Sequence[Any],
    axis: int,
    num_keys: int = 1,
    descending: bool = False,
    stable: bool = True,
) -> tuple[Any, ...]:
    """Arrays sorted along an axis by the first `num_keys` of them; see `Sort`."""
    axis = normalize_axis("sort", axis, xs[0].ndim)
    attrs = {"axis": axis, "num_keys": num_keys, "descending": descending, "stable": stable}
    found = bind(Sort, tuple(xs), **attrs)
    return found if len(xs) > 1 else (found,)


def argsort(x: Any, axis: int, descending: bool = False, stable: bool = True) -> Any:
    """The places (i64) of the elements of `x` in sorted order along an axis."""
    axis = normalize_axis("argsort", axis, x.ndim)
    return sort((x, iota(x.shape, axis, int64)), axis, 1, descending, stable)[1]
