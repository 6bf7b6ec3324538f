"""Quantization: numbers as small integers or floats times a scale that several of them share.

    quantize(x, scale, zero)[i]     = clip(round(x[i] / scale[b(i)]) + zero[b(i)], low, high)
    dequantize(q, scale, zero)[i]   = (q[i] - zero[b(i)]) * scale[b(i)]

Which elements share a scale says `block`, one number for each dim: 0 where a scale serves the
whole dim, n where it serves n neighbours (1: each index has its own). The scale has the rank of the
array and a dim of 1, or of as many blocks as there are: `f32[4, 1]` with `block=[1, 0]` is a scale
for each row, `f32[2, 3]` with `block=[128, 128]` one for each tile of a 256 x 384 matrix.

Arithmetic is that of float32, or of float64 where the array or the scale has it; every step rounds
to nearest, halves to even. Values outside of the format's range become its nearest end. In a format
of integers NaN becomes 0, in others it stays.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import Any

import numpy as np

from tessera.dtypes import (
    DType,
    finfo,
    float8_e4m3fn,
    float8_e5m2,
    float32,
    float64,
    iinfo,
    int4,
    int8,
    uint8,
)
from tessera.errors import DTypeError, ShapeError
from tessera.graph.ops import elementwise as e
from tessera.graph.ops.base import Linear
from tessera.graph.ops.checks import check_length, may_equal, shape_text, tensor, title
from tessera.graph.ops.composite import Composite
from tessera.graph.ops.reshape import (
    Batched,
    batch_front,
    broadcast,
    expand_dims,
    full_like,
    reshape,
    sum_axes,
)
from tessera.graph.trace import bind
from tessera.ir.convert import cast_array, widen
from tessera.ir.core import Value
from tessera.ir.intexpr import Dim
from tessera.ir.opdef import attr, operand, operands
from tessera.ir.types import TensorType


class Format(Enum):
    """What a quantized element can be.

    `E2M1`, the elements of NVFP4, has no dtype of its own: its 15 numbers (0, 0.5, 1, 1.5, 2, 3, 4,
    6 and their negatives) are kept in float8_e4m3fn, which has all of them.
    """

    INT4 = "int4"
    INT8 = "int8"
    UINT8 = "uint8"
    E4M3 = "e4m3"
    E5M2 = "e5m2"
    E2M1 = "e2m1"

    @property
    def dtype(self) -> DType:
        """What the values are kept in."""
        return _DTYPES[self]

    @property
    def is_integer(self) -> bool:
        """Whether the values are integers, which may have a zero point."""
        return self.dtype.is_integer

    @property
    def max(self) -> float:
        """The largest value."""
        if self is Format.E2M1:
            return 6.0
        return float(iinfo(self.dtype).max if self.is_integer else finfo(self.dtype).max)

    @property
    def half_step(self) -> float:
        """Half the distance of the largest value to the next: what is that far above it rounds to
        it, or would if the format had no end."""
        if self.is_integer:
            return 0.5
        return {Format.E4M3: 16.0, Format.E5M2: 4096.0, Format.E2M1: 1.0}[self]

    def low(self, has_zero: bool) -> float:
        """The smallest value. Without a zero point the range of signed integers is symmetric: the
        negative of every value is one."""
        if self.is_integer and (has_zero or self is Format.UINT8):
            return float(iinfo(self.dtype).min)
        return -self.max


_DTYPES: dict[Format, DType] = {
    Format.INT4: int4,
    Format.INT8: int8,
    Format.UINT8: uint8,
    Format.E4M3: float8_e4m3fn,
    Format.E5M2: float8_e5m2,
    Format.E2M1: float8_e4m3fn,
}


class Quantized:
    """Base of tensors in a quantized format: what layers take in the place of a weight, and what no
    policy converts.
    """

    @property
    def shape(self) -> tuple[Any, ...]:
        """The shape of what it stands for."""
        raise NotImplementedError

    @property
    def ndim(self) -> int:
        """The number of dims."""
        return len(self.shape)

    def dequantize(self) -> Any:
        """The array that it stands for."""
        raise NotImplementedError

    def rows(self, indices: Any) -> Any:
        """The array's slices at some places along the first axis."""
        raise NotImplementedError

    def __rmatmul__(self, other: Any) -> Any:
        """The matrix product of an array with what it stands for."""
        raise NotImplementedError


class _Blockwise(Composite):
    """What both ops share: an array, and a scale for each block of it."""

    x: Value = operand()
    scale: Value = operand()
    zero: tuple[Value, ...] = operands()
    format: Format = attr()
    block: tuple[int, ...] = attr()

    def _check(self) -> tuple[TensorType, TensorType]:
        x, scale = tensor(self, 0), tensor(self, 1)
        check_length(self, "block", self.block, x.rank)
        if not scale.dtype.is_float:
            raise DTypeError(
                f"{title(self)}: the scale is {scale}",
                loc=self.loc,
                rule="a scale is a floating-point number",
                fix="cast it: `scale.astype(ts.float32)`",
            )
        self._check_shape("the scale", x, scale)
        if len(self.zero) > 1:
            raise ShapeError(f"{title(self)}: {len(self.zero)} zero points", loc=self.loc)
        if self.zero:
            self._check_zero(x, tensor(self, 2))
        return x, scale

    def _check_zero(self, x: TensorType, zero: TensorType) -> None:
        if not self.format.is_integer:
            raise DTypeError(
                f"{title(self)}: a zero point with {self.format.value}",
                loc=self.loc,
                rule="formats of floating-point numbers are symmetric",
                fix="leave the zero point out",
            )
        if zero.dtype is not self.format.dtype:
            low, high = iinfo(self.format.dtype).min, iinfo(self.format.dtype).max
            raise DTypeError(
                f"{title(self)}: the zero point is {zero}, the values are {self.format.dtype}",
                loc=self.loc,
                rule=f"a zero point is one of the values, {low} to {high}, and has their dtype",
                fix=f"cast it: `zero_point.astype(ts.{self.format.dtype.full_name})`",
            )
        self._check_shape("the zero point", x, zero)

    def _check_shape(self, what: str, x: TensorType, scale: TensorType) -> None:
        if scale.rank != x.rank:
            raise ShapeError(
                f"{title(self)}: {what} is {scale} for {x}: their ranks are {scale.rank} and"
                f" {x.rank}",
                loc=self.loc,
                rule="the scale has a dim for each dim of the array",
            )
        for k, (n, m, block) in enumerate(zip(x.shape, scale.shape, self.block, strict=True)):
            wanted: Dim = 1 if block == 0 else m * block if block > 0 else -1
            if block < 0 or not may_equal(m if block == 0 else n, wanted):
                raise ShapeError(
                    f"{title(self)}: {what} is {scale} for {x} with"
                    f" block={shape_text(self.block)}; dim {k} has {n} elements and {m} scales",
                    loc=self.loc,
                    rule="a block of 0 has one scale along the dim; blocks of n elements fill the"
                    " dim, and have a scale each",
                )

    def wide(self) -> DType:
        """The dtype in which it computes."""
        dtypes = (tensor(self, 0).dtype, tensor(self, 1).dtype, self._result())
        return float64 if float64 in dtypes else float32

    def _result(self) -> DType:
        raise NotImplementedError

    def batch(self, operands: Sequence[Any], axes: Sequence[int | None], size: Dim) -> Batched:
        """The batch axis is in front; a scale that has none serves all of it."""
        x = batch_front(operands[0], axes[0], size)
        if all(a is None for a in axes[1:]):
            scales = [expand_dims(s, 0) for s in operands[1:]]
            own = 0
        else:
            scales = [batch_front(s, a, size) for s, a in zip(operands[1:], axes[1:], strict=True)]
            own = 1
        found = bind(
            type(self),
            x,
            scales[0],
            tuple(scales[1:]),
            **{**self.attrs, "block": (own, *self.block)},
        )
        return (found,), (0,)

    def again(self, *values: Any) -> Any:
        """An op of the class with the same attributes."""
        return bind(type(self), values[0], values[1], tuple(values[2:]), **self.attrs)


class Quantize(_Blockwise):
    """x in a quantized format: `clip(round(x / scale) + zero)`.

    `%r = graph.quantize(%x, %scale, []) {format=int8, block=[1, 0]} : i8[4, 8]` for
    `%x : f32[4, 8]` and `%scale : f32[4, 1]`. Its result has no tangent; `ts.fake_quantize` says
    what a gradient may be instead.
    """

    name = "graph.quantize"
    differentiable = False

    def infer(self) -> TensorType:
        """The same shape, in what the format is kept in."""
        x, _ = self._check()
        if not x.dtype.is_float:
            raise DTypeError(
                f"{title(self)}: the array is {x}",
                loc=self.loc,
                rule="what is quantized are floating-point numbers",
                fix="cast it first: `x.astype(ts.float32)`",
            )
        return TensorType(x.shape, self.format.dtype, False, x.policy)

    def _result(self) -> DType:
        return self.format.dtype

    def evaluate(self, *operands: np.ndarray) -> np.ndarray:
        """The definition."""
        wide = self.wide()
        x, *scales = (cast_array(widen(a), wide) for a in operands)
        with np.errstate(all="ignore"):
            y = np.asarray(x / spread_array(scales[0], x.shape))
            if self.format.is_integer:
                y = np.rint(y)
            if len(scales) > 1:
                y = y + spread_array(scales[1], x.shape)
            y = np.clip(y, self.format.low(len(scales) > 1), self.format.max)
            if self.format is Format.E2M1:
                size = np.abs(y)
                step = np.where(size < 2, 0.5, np.where(size < 4, 1.0, 2.0)).astype(y.dtype)
                y = np.rint(y / step) * step
            return cast_array(np.asarray(y), self.format.dtype)

    def compose(self, operands: Sequence[Any]) -> Any:
        """Elementwise work, and scales repeated along their blocks."""
        wide, format = self.wide(), self.format
        shape = operands[0].shape
        x, *scales = (e.cast(a, wide) for a in operands)
        y = e.div(x, spread_blocks(scales[0], shape, self.block))
        if format.is_integer:
            y = e.round_(y)
        if len(scales) > 1:
            y = e.add(y, spread_blocks(scales[1], shape, self.block))
        y = e.minimum(e.maximum(y, format.low(len(scales) > 1)), format.max)
        if format is Format.E2M1:
            size = e.abs_(y)
            half, one, two = (full_like(y, n) for n in (0.5, 1.0, 2.0))
            step = e.select(e.lt(size, 2.0), half, e.select(e.lt(size, 4.0), one, two))
            y = e.mul(e.round_(e.div(y, step)), step)
        return e.cast(y, format.dtype)


class Dequantize(_Blockwise):
    """The numbers that quantized values stand for: `(q - zero) * scale`.

    `%r = graph.dequantize(%q, %scale, [%zero]) {format=int8, block=[16, 0], dtype=f32} :
    f32[64, 8]`. Linear in the scale, and in values that are floating-point numbers.
    """

    name = "graph.dequantize"
    dtype: DType = attr()

    def infer(self) -> TensorType:
        """The same shape, in the dtype that is asked for."""
        x, _ = self._check()
        if x.dtype is not self.format.dtype:
            raise DTypeError(
                f"{title(self)}: the values are {x}",
                loc=self.loc,
                rule=f"values of {self.format.value} are kept in {self.format.dtype}",
            )
        if not self.dtype.is_float:
            raise DTypeError(
                f"{title(self)}: to {self.dtype}",
                loc=self.loc,
                rule="quantized values stand for floating-point numbers",
            )
        return TensorType(x.shape, self.dtype, False, x.policy)

    def _result(self) -> DType:
        return self.dtype

    def evaluate(self, *operands: np.ndarray) -> np.ndarray:
        """The definition."""
        wide = self.wide()
        q, *scales = (cast_array(widen(a), wide) for a in operands)
        with np.errstate(all="ignore"):
            if len(scales) > 1:
                q = q - spread_array(scales[1], q.shape)
            return cast_array(np.asarray(q * spread_array(scales[0], q.shape)), self.dtype)

    def compose(self, operands: Sequence[Any]) -> Any:
        """Elementwise work, and scales repeated along their blocks."""
        return e.cast(self._scaled(operands[0], operands[1:]), self.dtype)

    def _scaled(self, values: Any, scales: Sequence[Any]) -> Any:
        wide = self.wide()
        return e.mul(
            self._shifted(values, scales),
            spread_blocks(e.cast(scales[0], wide), values.shape, self.block),
        )

    def _shifted(self, values: Any, scales: Sequence[Any]) -> Any:
        """The values less their zero points."""
        q = e.cast(values, self.wide())
        if len(scales) > 1:
            zero = e.cast(scales[1], self.wide())
            q = e.sub(q, spread_blocks(zero, values.shape, self.block))
        return q

    def partial(self, k: int, t: Any, out: Any, *primals: Any) -> Any:
        """It is a product: linear in the values, and in the scale."""
        return self.again(*[t if j == k else x for j, x in enumerate(primals)])

    def transpose(self, cts: Sequence[Any], operands: Sequence[Any]) -> Sequence[Any]:
        """A value's cotangent is multiplied by its scale; a scale's is a sum over its block."""
        (ct,) = cts
        values, *scales = operands
        wide = e.cast(ct, self.wide())
        if isinstance(values, Linear):
            scale = e.cast(scales[0], self.wide())
            found = e.mul(wide, spread_blocks(scale, ct.shape, self.block))
            return (e.cast(found, values.type.dtype), *[None for _ in scales])
        products = e.mul(wide, self._shifted(values, scales))
        total = e.cast(sum_blocks(products, self.block), scales[0].type.dtype)
        return (None, total, *[None for _ in scales[1:]])


# --- scales and blocks ------------------------------------------------------------------------


def spread_array(scale: np.ndarray, shape: Sequence[int]) -> np.ndarray:
    """The scale of each element of an array of that shape, in NumPy."""
    for k, n in enumerate(shape):
        m = scale.shape[k]
        if m != n and m:
            scale = np.repeat(scale, n // m, axis=k)
    return scale


def spread_blocks(scale: Any, shape: Sequence[Dim], block: Sequence[int]) -> Any:
    """The scale of each element of an array of that shape."""
    kept = [k for k, size in enumerate(block) if size]
    split: list[Dim] = []
    dims: list[int] = []
    for k, size in enumerate(block):
        if size > 1:
            dims.append(len(split))
            split += [scale.shape[k], size]
        else:
            if size:
                dims.append(len(split))
            split.append(shape[k])
    own = reshape(scale, [scale.shape[k] for k in kept])
    return reshape(broadcast(own, split, dims), shape)


def axes_of_blocks(
    shape: Sequence[Dim], block: Sequence[int]
) -> tuple[list[Dim], tuple[int, ...], list[Dim]]:
    """The shape with the axes of blocks apart, which these are, and the shape of a scale."""
    split: list[Dim] = []
    gone: list[int] = []
    for n, size in zip(shape, block, strict=True):
        if size > 1:
            split.append(n // size)
        if size != 1:
            gone.append(len(split))
        split.append(size if size > 1 else n)
    left = [1 if size == 0 else n // size for n, size in zip(shape, block, strict=True)]
    return split, tuple(gone), left


def sum_blocks(x: Any, block: Sequence[int]) -> Any:
    """The sum over each block: an array like the scale."""
    split, gone, shape = axes_of_blocks(x.shape, block)
    return reshape(sum_axes(reshape(x, split), gone), shape)


# --- functions --------------------------------------------------------------------------------


def quantize(x: Any, scale: Any, zero: Any, format: Format, block: Sequence[int]) -> Any:
    """x in a format; see `Quantize`. `zero` may be None."""
    zeros = () if zero is None else (zero,)
    return bind(Quantize, x, scale, zeros, format=format, block=tuple(block))


def dequantize(
    values: Any, scale: Any, zero: Any, format: Format, block: Sequence[int], dtype: DType
) -> Any:
    """The numbers that values stand for; see `Dequantize`. `zero` may be None."""
    zeros = () if zero is None else (zero,)
    attrs = {"format": format, "block": tuple(block), "dtype": dtype}
    return bind(Dequantize, values, scale, zeros, **attrs)
