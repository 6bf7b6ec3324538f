"""Rounding to NVFP4, as one op: what `ts.policies.NVFP4` does to the operands of products."""

from __future__ import annotations

from collections.abc import Sequence
from contextvars import ContextVar
from math import prod
from typing import Any, Final

import numpy as np

from tessera.dtypes import float8_e4m3fn, float32
from tessera.errors import DTypeError, ShapeError
from tessera.graph.ops.checks import check_axis, may_equal, tensor, title
from tessera.graph.ops.composite import Composite
from tessera.graph.ops.elementwise import abs_, cast, div, maximum, minimum, mul
from tessera.graph.ops.quantize import Format, dequantize, quantize
from tessera.graph.ops.rearrange import Batched, broadcast, reshape, transpose
from tessera.graph.ops.reduce import max_
from tessera.graph.ops.reshape import batch_front, inverse
from tessera.graph.trace import bind
from tessera.ir.convert import cast_array
from tessera.ir.core import Value
from tessera.ir.intexpr import Dim
from tessera.ir.numerics import Rounding
from tessera.ir.opdef import attr, operand
from tessera.ir.rounding import Grid, round_array
from tessera.ir.types import TensorType

BLOCK: Final = 16
_E2M1: Final = Grid(1, 0, 6.0)
_TOP: Final = 448.0
_TINY: Final = 2.0**-126
_LEAST: Final = 2.0**-9


class RoundBlocks(Composite):
    """x rounded to NVFP4. `%r = graph.round_blocks(%x) {axis=1} : f32[4, 32]`.

    A block of 16 elements along the axis has a scale in e4m3, and each example one in float32, with
    which the largest scale is the largest e4m3 number: `factor = max |x| / (6 * 448)` and
    `scale = e4m3(max |block| / 6 / factor)`. An element becomes a number of e2m1 (0, 0.5, 1, 1.5,
    2, 3, 4, 6) times `scale * factor`. The derivative goes straight through.

    Attributes:
        axis: along which blocks are.
        batch_dims: leading dims of examples.
    """

    name = "graph.round_blocks"
    x: Value = operand()
    axis: int = attr()
    batch_dims: int = attr(0)

    def infer(self) -> TensorType:
        """The operand's type."""
        x = tensor(self, 0)
        check_axis(self, self.axis, x.rank)
        if x.dtype is not float32:
            raise DTypeError(
                f"{title(self)}: the operand is {x.strong()}",
                loc=self.loc,
                rule="numbers are float32 before they are rounded to NVFP4",
                fix="cast them first",
            )
        n = x.shape[self.axis]
        if not may_equal(n, n // BLOCK * BLOCK):
            raise ShapeError(
                f"{title(self)}: dim {self.axis} of {x.strong()} has {n} elements",
                loc=self.loc,
                rule=f"blocks of {BLOCK} elements fill the dim that is summed over",
                fix="pad the array: `ts.pad`",
            )
        return x

    def _split(self, shape: Sequence[Any]) -> tuple[Any, ...]:
        """The shape with the blocks as a dim of their own, behind their axis."""
        at = self.axis
        return (*shape[:at], shape[at] // BLOCK, BLOCK, *shape[at + 1 :])

    def evaluate(self, *operands: np.ndarray) -> np.ndarray:
        """The definition, in float32."""
        (x,) = operands
        with np.errstate(all="ignore"):
            parts = x.reshape(self._split(x.shape))
            axes = tuple(range(self.batch_dims, x.ndim))
            largest = np.max(np.abs(parts), axis=self.axis + 1, initial=0.0)
            whole = np.max(largest, axis=axes, keepdims=True, initial=0.0)
            factor = np.maximum(whole / np.float32(6 * _TOP), np.float32(_TINY))
            scale = np.clip(largest / np.float32(6) / factor, np.float32(_LEAST), np.float32(_TOP))
            scale = cast_array(cast_array(scale, float8_e4m3fn), float32) * factor
            full = np.expand_dims(scale, self.axis + 1)
            inside = np.clip(parts / full, np.float32(-6), np.float32(6))
            found = round_array(inside, _E2M1, Rounding.NEAREST_EVEN) * full
        return found.reshape(x.shape)

    def compose(self, operands: Sequence[Any]) -> Any:
        """The same, by quantization and its inverse."""
        (x,) = operands
        axes = tuple(range(self.batch_dims, x.ndim))
        largest = max_(abs_(reshape(x, self._split(x.shape))), (self.axis + 1,))
        whole = max_(largest, axes)
        factor = maximum(div(whole, 6 * _TOP), _TINY)
        factor = broadcast(factor, largest.shape, tuple(range(self.batch_dims)))
        scale = minimum(maximum(div(div(largest, 6.0), factor), _LEAST), _TOP)
        full = mul(cast(cast(scale, float8_e4m3fn), float32), factor)
        block = tuple([BLOCK if k == self.axis else 1 for k in range(x.ndim)])
        values = quantize(x, full, None, Format.E2M1, block)
        return dequantize(values, full, None, Format.E2M1, block, float32)

    def partial(self, k: int, t: Any, out: Any, *primals: Any) -> Any:
        """Straight through."""
        return t

    def batch(self, operands: Sequence[Any], axes: Sequence[int | None], size: Dim) -> Batched:
        """The batch is one more dim of examples, in front."""
        x = batch_front(operands[0], axes[0], size)
        return (self.bind(x, axis=self.axis + 1, batch_dims=self.batch_dims + 1),), (0,)


def round_blocks(x: Any, axis: int) -> Any:
    """x rounded to NVFP4, in blocks along an axis."""
    return bind(RoundBlocks, x, axis=axis)


IN_BLOCKS: ContextVar[bool] = ContextVar("tessera.in_blocks", default=False)
"""Whether the operands of the products of a function are rounded."""


def in_blocks(x: Any, axes: Sequence[int]) -> Any:
    """An operand of a product, rounded along the axes that are summed over if that is asked for.

    Several axes are one, in the order in which they are given.
    """
    if not IN_BLOCKS.get() or not axes or 0 in x.shape or not x.dtype.is_float:
        return x
    wide = cast(x, float32)
    if len(axes) == 1:
        return cast(round_blocks(wide, axes[0]), x.dtype)
    order = [*[k for k in range(x.ndim) if k not in axes], *axes]
    moved = transpose(wide, order)
    kept = x.ndim - len(axes)
    flat = reshape(moved, (*moved.shape[:kept], prod(moved.shape[kept:])))
    back = reshape(round_blocks(flat, kept), moved.shape)
    return cast(transpose(back, inverse(order)), x.dtype)
