"""Contraction: sums of products over pairs of axes. Matrix products of all kinds are one op."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeAlias

import numpy as np

from tessera.dtypes import DType
from tessera.errors import AxisError, DTypeError, ShapeError
from tessera.graph.ops.base import Family, GraphOp, Linear
from tessera.graph.ops.checks import (
    check_axis,
    check_same_dtype,
    shape_text,
    tensor,
    title,
)
from tessera.graph.ops.elementwise import cast, cast_array
from tessera.graph.ops.rearrange import Batched, inverse, move_axis, transpose
from tessera.graph.ops.reduce import default_accumulator
from tessera.graph.trace import bind
from tessera.ir.convert import widen
from tessera.ir.core import Value
from tessera.ir.intexpr import Dim
from tessera.ir.opdef import attr, operand
from tessera.ir.order import SEQUENCE, Order, fixed_product
from tessera.ir.types import TensorType

AxisPairs: TypeAlias = tuple[tuple[int, ...], tuple[int, ...]]
"""Axes of the left operand, and the axes of the right operand that belong to them, in order."""

_NONE: Final[AxisPairs] = ((), ())

AT_ONCE: Final = {8: 32, 16: 16, 64: 8}
"""How many products the matrix instructions of GPUs add at a time, by the bits of a factor."""
_SIDES: Final = ("lhs", "rhs")


class DotGeneral(GraphOp):
    """The sum of lhs * rhs over contracted axes, for each index of the batch axes.

    `%r = graph.dot_general(%a, %b) {contract=[[1], [0]]} : f32[4, 8]` for f32[4, S], f32[S, 8]. The
    result's dims are the batch dims, the free dims of lhs, the free dims of rhs. Integers wrap
    around; of bool, it says whether any pair is true.

    Attributes:
        contract: the axes summed over.
        batch: the axes that both operands have, and the result.
        dtype: the result's dtype, of the operands' kind and at least their width. None: theirs.
        order: in which order products are added; None leaves it to the schedule.
    """

    name = "graph.dot_general"
    family = Family.CONTRACT
    lhs: Value = operand()
    rhs: Value = operand()
    contract: AxisPairs = attr()
    batch_axes: AxisPairs = attr(_NONE)
    dtype: DType | None = attr(None)
    order: Order | None = attr(None)

    @property
    def accumulate(self) -> DType:
        """The dtype in which products are formed and added."""
        return default_accumulator(self.dtype or tensor(self, 0).dtype)

    def accumulates(self) -> DType | None:
        """The dtype of products and sums."""
        return self.accumulate

    @classmethod
    def fixed_order(
        cls, operands: Sequence[Any], attrs: Mapping[str, Any], on_cpu: bool
    ) -> Order | None:
        """One product after the other; on a GPU as many as a matrix instruction adds, and in
        parts."""
        dtype = operands[0].dtype
        if not dtype.is_inexact:
            return None
        axes: tuple[int, ...] = attrs["contract"][0]
        if on_cpu or dtype.is_complex:
            return SEQUENCE
        # Only one axis is cut into parts.
        depth = operands[0].shape[axes[0]] if len(axes) == 1 else 1
        return fixed_product(depth, AT_ONCE.get(dtype.bits, 1))

    def free(self, side: int) -> list[int]:
        """The axes of an operand that are neither contracted nor batch axes."""
        gone = {*self.contract[side], *self.batch_axes[side]}
        return [k for k in range(tensor(self, side).rank) if k not in gone]

    def infer(self) -> TensorType:
        """Batch dims, free dims of lhs, free dims of rhs."""
        types = lhs, rhs = tensor(self, 0), tensor(self, 1)
        check_same_dtype(self, lhs, rhs, _SIDES)
        for what, pairs in (("contract", self.contract), ("batch_axes", self.batch_axes)):
            if len(pairs[0]) != len(pairs[1]):
                raise AxisError(
                    f"{title(self)}: {what} names {len(pairs[0])} axes of lhs and"
                    f" {len(pairs[1])} of rhs",
                    loc=self.loc,
                    rule="axes come in pairs",
                )
        for side, type in enumerate(types):
            axes = self.contract[side] + self.batch_axes[side]
            for axis in axes:
                check_axis(self, axis, type.rank)
            if len(set(axes)) != len(axes):
                raise AxisError(
                    f"{title(self)}: axes {shape_text(axes)} of {_SIDES[side]} repeat",
                    loc=self.loc,
                    rule="an axis is contracted, or a batch axis, once",
                )
        for what, pairs in (("contracted", self.contract), ("batch", self.batch_axes)):
            for a, b in zip(*pairs, strict=True):
                if lhs.shape[a] != rhs.shape[b]:
                    raise ShapeError(
                        f"{title(self)}: lhs is {lhs}, rhs is {rhs}; the {what} dims {a} of lhs"
                        f" and {b} of rhs are {lhs.shape[a]} and {rhs.shape[b]}",
                        loc=self.loc,
                        rule=f"paired {what} dims are equal",
                    )
        shape = [lhs.shape[k] for k in (*self.batch_axes[0], *self.free(0))]
        shape += [rhs.shape[k] for k in self.free(1)]
        policy = rhs.policy if lhs.policy is None else lhs.policy
        return TensorType(tuple(shape), self._result(lhs), lhs.weak and rhs.weak, policy)

    def _result(self, lhs: TensorType) -> DType:
        dtype = self.dtype
        if dtype is None:
            return lhs.dtype
        if dtype.kind is not lhs.dtype.kind or dtype.bits < lhs.dtype.bits:
            raise DTypeError(
                f"{title(self)}: products of {lhs.dtype} cannot be accumulated in {dtype}",
                loc=self.loc,
                rule="the result has the operands' kind, and at least their width",
            )
        return dtype

    def evaluate(self, *operands: np.ndarray) -> np.ndarray:
        """A matrix product per batch index, in the accumulator's dtype."""
        matrices: list[np.ndarray] = []
        free: list[tuple[int, ...]] = []
        for side, x in enumerate(operands):
            batch, inner, own = self.batch_axes[side], self.contract[side], self.free(side)
            order = (*batch, *own, *inner) if side == 0 else (*batch, *inner, *own)
            free.append(tuple([x.shape[k] for k in own]))
            sizes = [int(np.prod([x.shape[k] for k in axes])) for axes in (own, inner)]
            lead = [x.shape[k] for k in batch]
            wide = widen(cast_array(x, self.accumulate)).transpose(order)
            matrices.append(wide.reshape(*lead, *(sizes if side == 0 else sizes[::-1])))
        with np.errstate(all="ignore"):
            found = np.asarray(np.matmul(matrices[0], matrices[1]))
        lead = [operands[0].shape[k] for k in self.batch_axes[0]]
        result = self.dtype or tensor(self, 0).dtype
        return cast_array(found.reshape((*lead, *free[0], *free[1])), result)

    def partial(self, k: int, t: Any, out: Any, *primals: Any) -> Any:
        """The op is linear in each operand."""
        return self.bind(t, primals[1]) if k == 0 else self.bind(primals[0], t)

    def transpose(self, cts: Sequence[Any], operands: Sequence[Any]) -> Sequence[Any]:
        """The cotangent contracted with the other operand over the latter's free axes."""
        results: list[Any] = [None, None]
        side = 0 if isinstance(operands[0], Linear) else 1
        results[side] = self._pull_back(side, cts[0], operands[1 - side], operands[side].type)
        return results

    def _pull_back(self, side: int, ct: Any, other: Any, wanted: TensorType) -> Any:
        batch, contract = self.batch_axes, self.contract
        count = len(batch[0])
        ranks = [len(self.free(0)), len(self.free(1))]
        start = count + (ranks[0] if side == 0 else 0)
        axes = tuple(range(start, start + ranks[1 - side]))
        # A result wider than the operands (dtype) has a wider cotangent.
        x, y = ct, cast(other, ct.dtype)
        inner, outer = (axes, tuple(self.free(1 - side))), (tuple(range(count)), batch[1 - side])
        # Its dims: batch axes, own free axes, and contracted axes in the order of the other side.
        pairs = sorted(zip(contract[1 - side], contract[side], strict=True))
        parts = [self.free(side), [own for _, own in pairs]]
        order = (*batch[side], *parts[0], *parts[1])
        turned = (*batch[side], *parts[1], *parts[0])
        if turned == tuple(range(len(turned))) != order:
            # With the operands exchanged the product has its dims where they belong.
            x, y, order = y, x, turned
            inner, outer = (inner[1], inner[0]), (outer[1], outer[0])
        product = dot_general(x, y, inner, outer)
        return cast(transpose(product, inverse(order)), wanted.dtype)

    def batch(self, operands: Sequence[Any], axes: Sequence[int | None], size: Dim) -> Batched:
        """A batch axis of one operand is a free axis; one of both is a batch axis."""
        if axes[0] is not None and axes[1] is not None:
            lhs, rhs = (move_axis(x, a or 0, 0) for x, a in zip(operands, axes, strict=True))
            contract = _shift(self.contract, (0, 0))
            lead = _shift(self.batch_axes, (0, 0))
            pairs = ((0, *lead[0]), (0, *lead[1]))
            return (self.bind(lhs, rhs, contract=contract, batch_axes=pairs),), (0,)
        contract, pairs = _shift(self.contract, axes), _shift(self.batch_axes, axes)
        out = self.bind(*operands, contract=contract, batch_axes=pairs)
        side = 0 if axes[0] is not None else 1
        axis = axes[side]
        assert axis is not None
        place = sum(k < axis for k in self.free(side))
        at = len(pairs[0]) + (0 if side == 0 else len(self.free(0))) + place
        return (out,), (at,)


def _shift(pairs: AxisPairs, axes: Sequence[int | None]) -> AxisPairs:
    """Axes renamed for a new axis of each operand (None: no new one)."""
    lhs, rhs = (
        tuple([k + (axis is not None and k >= axis) for k in side])
        for side, axis in zip(pairs, axes, strict=True)
    )
    return lhs, rhs


# --- functions --------------------------------------------------------------------------------


def dot_general(
    lhs: Any,
    rhs: Any,
    contract: AxisPairs,
    batch_axes: AxisPairs = _NONE,
    dtype: DType | None = None,
) -> Any:
    """The sum of lhs * rhs over contracted axes; see `DotGeneral`.

    Args:
        lhs: left operand.
        rhs: right operand, of the same dtype.
        contract: axes of lhs, and those of rhs that belong to them.
        batch_axes: likewise for the axes that the result keeps, in front.
        dtype: the result's dtype; None is the operands'.
    """
    return bind(DotGeneral, lhs, rhs, contract=contract, batch_axes=batch_axes, dtype=dtype)
