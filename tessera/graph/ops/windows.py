"""Windows that move along axes: what convolutions and pooling are made of."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tessera.graph.ops.base import Rearrange, Source, linear
from tessera.graph.ops.checks import (
    check_axes,
    check_dim,
    check_length,
    may_be_nonneg,
    static_shape,
    tensor,
)
from tessera.graph.ops.rearrange import (
    Batched,
    broadcast,
    move_axis,
    pad,
    reshape,
    reverse,
    slice_axis,
    spaced,
)
from tessera.graph.trace import bind
from tessera.ir.core import Value
from tessera.ir.intexpr import Dim, ceildiv
from tessera.ir.opdef import attr, operand
from tessera.ir.types import TensorType


class Windows(Rearrange):
    """Moves windows along axes; the elements of a window are in the last dims.

    `%r = graph.windows(%x) {axes=[1], step=[2], dilation=[1]} : f32[5, 3, 4]` for
    `%x : f32[5, 8, 4]`: `out[n, o, k] = x[n, o * step + k * dilation, k]`. The last dims of the
    operand, as many as there are axes, are those of the window: each place in the window reads a
    slice of its own. Plain windows of an array are those of the array repeated along new last
    dims (`windows`), which costs nothing; the transpose is an op of the class again.

    Attributes:
        axes: along which windows move; all before the dims of the window.
        step: how far they move at a time.
        dilation: how far apart the elements of a window are.
    """

    name = "graph.windows"
    x: Value = operand()
    axes: tuple[int, ...] = attr()
    step: tuple[int, ...] = attr()
    dilation: tuple[int, ...] = attr()

    def infer(self) -> TensorType:
        x = tensor(self, 0)
        outer = x.rank - len(self.axes)
        check_axes(self, self.axes, outer)
        for what in ("step", "dilation"):
            given: tuple[int, ...] = getattr(self, what)
            check_length(self, what, given, len(self.axes))
            check_dim(
                self, all(n >= 1 for n in given), f"{what} is {given}", f"a {what} is 1 or more"
            )
        shape = list(x.shape)
        for axis, size, step, apart in zip(
            self.axes, x.shape[outer:], self.step, self.dilation, strict=True
        ):
            room = x.shape[axis] - (size - 1) * apart
            check_dim(
                self,
                may_be_nonneg(size - 1) and may_be_nonneg(room),
                f"a window of {size} elements, {apart} apart, for dim {axis} of {x}",
                "a window has an element, and fits",
            )
            shape[axis] = ceildiv(room, step)
        return x.with_shape(shape)

    def evaluate(self, *operands: np.ndarray) -> np.ndarray:
        return np.array(moved_view(operands[0], self.attrs))

    def sources(self, index: tuple[Dim, ...]) -> list[Source]:
        inside = list(index)
        outer = len(index) - len(self.axes)
        for n, axis in enumerate(self.axes):
            inside[axis] = index[axis] * self.step[n] + index[outer + n] * self.dilation[n]
        return [Source(0, tuple(inside))]

    jvp = linear

    def transpose(self, cts: Sequence[Any], operands: Sequence[Any]) -> Sequence[Any]:
        """Element j of the operand's slice k is that of window `(j - k * dilation) / stride`."""
        (ct,) = cts
        x: TensorType = operands[0].type
        outer = x.rank - len(self.axes)
        lo: list[Dim] = [0] * x.rank
        hi, interior = [*lo], [*lo]
        for n, axis in enumerate(self.axes):
            reach = (x.shape[outer + n] - 1) * self.dilation[n]
            lo[axis] = reach
            interior[axis] = self.step[n] - 1
            hi[axis] = x.shape[axis] - spaced(ct.shape[axis], self.step[n] - 1)
        last = range(outer, x.rank)
        apart = reverse(pad(ct, 0, lo, hi, interior), last)
        once = (1,) * len(self.axes)
        return (reverse(self.bind(apart, step=once), last),)

    def batch(self, operands: Sequence[Any], axes: Sequence[int | None], size: Dim) -> Batched:
        (x,), (at,) = operands, axes
        assert at is not None
        x = move_axis(x, at, 0)
        return (self.bind(x, axes=tuple([axis + 1 for axis in self.axes])),), (0,)


def moved_view(x: np.ndarray, attrs: dict[str, Any]) -> np.ndarray:
    """The windows as a view of a NumPy array."""
    axes: tuple[int, ...] = attrs["axes"]
    step: tuple[int, ...] = attrs["step"]
    dilation: tuple[int, ...] = attrs["dilation"]
    outer = x.ndim - len(axes)
    shape, strides = list(static_shape(x.shape)), list(x.strides)
    for n, axis in enumerate(axes):
        room = shape[axis] - (shape[outer + n] - 1) * dilation[n]
        shape[axis] = -(-room // step[n])
        strides[axis] = x.strides[axis] * step[n]
        strides[outer + n] += x.strides[axis] * dilation[n]
    return np.lib.stride_tricks.as_strided(x, shape, strides, writeable=False)


# --- functions --------------------------------------------------------------------------------


def windows(
    x: Any,
    axes: Sequence[int],
    sizes: Sequence[int],
    step: Sequence[int],
    dilation: Sequence[int],
) -> Any:
    """All windows of `x` along axes: in place of an axis the windows, and their elements last.

    Args:
        x: the array.
        axes: along which windows move.
        sizes: the window's elements along each axis.
        step: how far windows move at a time.
        dilation: how far apart the elements of a window are.
    """
    if all(size == 1 for size in sizes):
        # Elements, of which every `step`-th is one: gradients need no sum over windows.
        for axis, n in zip(axes, step, strict=True):
            x = slice_axis(x, axis, 0, x.shape[axis], n)
        return reshape(x, (*x.shape, *sizes))
    apart = broadcast(x, (*x.shape, *sizes), range(x.ndim))
    attrs = {"axes": tuple(axes), "step": tuple(step), "dilation": tuple(dilation)}
    return bind(Windows, apart, **attrs)
