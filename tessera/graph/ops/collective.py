"""Collectives: ops over all examples of a mapped axis, which a `vmap` around them has named.

They stand for what one example sees. Batching over their axis resolves them to ops on the batch;
batching over another axis leaves them as they are. None is left when a program is lowered.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum
from typing import Any

from tessera.dtypes import int64
from tessera.graph.ops.arithmetic import mul
from tessera.graph.ops.base import Collective
from tessera.graph.ops.checks import tensor
from tessera.graph.ops.dynamic_slice import dynamic_slice
from tessera.graph.ops.generate import constant, iota
from tessera.graph.ops.rearrange import concatenate, slice_axis
from tessera.graph.ops.reduce import max_, min_, sum_
from tessera.graph.ops.reshape import Batched, batch_front, full, move_axis, squeeze
from tessera.graph.trace import bind
from tessera.ir.core import Value
from tessera.ir.intexpr import Dim
from tessera.ir.opdef import attr, operand
from tessera.ir.types import TensorType


class Combination(Enum):
    """How the examples of an axis are combined."""

    SUM = "sum"
    MAX = "max"
    MIN = "min"


REDUCERS: dict[Combination, Callable[..., Any]] = {
    Combination.SUM: sum_,
    Combination.MAX: max_,
    Combination.MIN: min_,
}


class AxisReduce(Collective):
    """The combination of all examples, which they all get.

    `%r = graph.axis_reduce(%x) {axis_name="i", how=sum} : f32[S]`.
    """

    name = "graph.axis_reduce"
    x: Value = operand()
    axis_name: str = attr()
    how: Combination = attr()
    suspended: bool = attr(False)

    def infer(self) -> TensorType:
        """The type of the operand."""
        return tensor(self, 0).strong()

    def resolve(self, operands: Sequence[Any], axes: Sequence[int | None], size: Dim) -> Batched:
        """A reduction of the batch axis."""
        (x,), (axis,) = operands, axes
        if axis is not None:
            return (REDUCERS[self.how](x, (axis,)),), (None,)
        if self.how is not Combination.SUM:
            return (x,), (None,)
        count = full(x.shape, size, x.dtype)  # pyright: ignore[reportArgumentType]
        return (mul(x, count),), (None,)

    def jvp(
        self, primals: Sequence[Any], tangents: Sequence[Any], outs: Sequence[Any]
    ) -> Sequence[Any]:
        """A sum is linear; the others have no rule here, but do where they are resolved."""
        if self.how is not Combination.SUM:
            return super().jvp(primals, tangents, outs)
        return (None if tangents[0] is None else self.bind(tangents[0]),)

    def transpose(self, cts: Sequence[Any], operands: Sequence[Any]) -> Sequence[Any]:
        """Each example has a cotangent for the sum; their sum comes back to all."""
        return (self.bind(cts[0]),)

    def batch(self, operands: Sequence[Any], axes: Sequence[int | None], size: Dim) -> Batched:
        """Over another axis: the same of each of its examples."""
        return (self.bind(operands[0]),), axes


class AllGather(Collective):
    """The examples, along a new axis.

    `%r = graph.axis_gather(%x) {axis_name="i", axis=0, size=8} : f32[8, S]`.
    """

    name = "graph.axis_gather"
    x: Value = operand()
    axis_name: str = attr()
    axis: int = attr()
    size: Dim = attr()
    suspended: bool = attr(False)

    def infer(self) -> TensorType:
        """The type of the operand with an axis more."""
        x = tensor(self, 0)
        return x.with_shape((*x.shape[: self.axis], self.size, *x.shape[self.axis :])).strong()

    def resolve(self, operands: Sequence[Any], axes: Sequence[int | None], size: Dim) -> Batched:
        """The batch itself, with its axis in the place."""
        found = batch_front(operands[0], axes[0], size)
        return (move_axis(found, 0, self.axis),), (None,)

    def jvp(
        self, primals: Sequence[Any], tangents: Sequence[Any], outs: Sequence[Any]
    ) -> Sequence[Any]:
        """It is linear."""
        return (None if tangents[0] is None else self.bind(tangents[0]),)

    def transpose(self, cts: Sequence[Any], operands: Sequence[Any]) -> Sequence[Any]:
        """Of the sum of all cotangents each example gets its own part."""
        over = {"axis_name": self.axis_name, "suspended": self.suspended}
        total = bind(AxisReduce, cts[0], how=Combination.SUM, **over)
        here = bind(AxisIndex, **over)
        zero = constant(0, int64)
        starts = [here if k == self.axis else zero for k in range(total.ndim)]
        sizes = [1 if k == self.axis else dim for k, dim in enumerate(total.shape)]
        return (squeeze(dynamic_slice(total, starts, sizes), (self.axis,)),)

    def batch(self, operands: Sequence[Any], axes: Sequence[int | None], size: Dim) -> Batched:
        """Over another axis, which comes first."""
        x = batch_front(operands[0], axes[0], size)
        return (self.bind(x, axis=self.axis + 1),), (0,)


class Permute(Collective):
    """What another example has: example `d` gets that of `s` for each pair `(s, d)`, the others
    zeros.

    `%r = graph.axis_permute(%x) {axis_name="i", pairs=[[0, 1], [1, 0]]} : f32[S]`.
    """

    name = "graph.axis_permute"
    x: Value = operand()
    axis_name: str = attr()
    pairs: tuple[tuple[int, int], ...] = attr()
    suspended: bool = attr(False)

    def infer(self) -> TensorType:
        """The type of the operand."""
        return tensor(self, 0).strong()

    def resolve(self, operands: Sequence[Any], axes: Sequence[int | None], size: Dim) -> Batched:
        """Slices of the batch, joined in the new order."""
        x = batch_front(operands[0], axes[0], size)
        assert isinstance(size, int)
        source = {d: s for s, d in self.pairs}
        parts: list[Any] = []
        start = 0
        while start < size:
            first, stop = source.get(start), start + 1
            while stop < size and source.get(stop) == (
                None if first is None else first + stop - start
            ):
                stop += 1
            count = stop - start
            if first is None:
                parts.append(full((count, *x.shape[1:]), 0, x.dtype))
            else:
                parts.append(slice_axis(x, 0, first, first + count))
            start = stop
        return (concatenate(parts, 0) if parts else x,), (0,)

    def jvp(
        self, primals: Sequence[Any], tangents: Sequence[Any], outs: Sequence[Any]
    ) -> Sequence[Any]:
        """It is linear."""
        return (None if tangents[0] is None else self.bind(tangents[0]),)

    def transpose(self, cts: Sequence[Any], operands: Sequence[Any]) -> Sequence[Any]:
        """The way back."""
        return (self.bind(cts[0], pairs=tuple([(d, s) for s, d in self.pairs])),)

    def batch(self, operands: Sequence[Any], axes: Sequence[int | None], size: Dim) -> Batched:
        """Over another axis: the same of each of its examples."""
        return (self.bind(operands[0]),), axes


class AxisIndex(Collective):
    """Which example this is. `%r = graph.axis_index() {axis_name="i"} : i64[]`."""

    name = "graph.axis_index"
    differentiable = False
    axis_name: str = attr()
    suspended: bool = attr(False)

    def infer(self) -> TensorType:
        """An integer."""
        return TensorType((), int64)

    def resolve(self, operands: Sequence[Any], axes: Sequence[int | None], size: Dim) -> Batched:
        """All indices."""
        return (iota((size,), 0, int64),), (0,)

    def batch(self, operands: Sequence[Any], axes: Sequence[int | None], size: Dim) -> Batched:
        """The same for all examples of another axis."""
        return (self.bind(),), (None,)
