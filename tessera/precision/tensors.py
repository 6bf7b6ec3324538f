"""Quantized tensors: what they are made of, how they are made, and gradients through quantization.

What quantizing and dequantizing mean is in `graph/ops/quantize.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from math import prod
from typing import Any, TypeAlias, cast

from tessera.api.derivatives import custom_jvp
from tessera.dtypes import (
    DType,
    DTypeLike,
    float32,
    float64,
    int8,
    int64,
)
from tessera.errors import DTypeError, ShapeError, api_boundary
from tessera.graph.array import ArrayBase
from tessera.graph.namespace.arguments import (
    ArrayLike,
    as_array,
    parse_axis,
    parse_dtype,
)
from tessera.graph.namespace.taking import take
from tessera.graph.ops import elementwise as e
from tessera.graph.ops import quantize as q
from tessera.graph.ops.checks import may_equal
from tessera.graph.ops.generate import iota
from tessera.graph.ops.quantize import Format, Quantized, spread_blocks
from tessera.graph.ops.reshape import broadcast, full, full_like, reshape, transpose
from tessera.ir import loc
from tessera.precision.apart import apart
from tessera.precision.packing import pack_values, unpack_integers, unpack_values
from tessera.precision.schemes import FormatLike, blocks_of, parts_of
from tessera.pytree import register_dataclass

GradientRule: TypeAlias = Callable[[Any, Any, Any], Any]
"""What a gradient is multiplied by, from x and both ends of the format's range."""


@register_dataclass
@dataclass(frozen=True, eq=False, repr=False)
class QuantizedTensor(Quantized):
    """An array in a quantized format, with scales: `(values - zero_point) * scale`.

    It is a tree of its arrays, so it goes through `jit`, `vmap`, `scan` and `grad`. `ts.quantize`
    makes one; `@` and `ts.quantized_matmul` multiply it.

    Attributes:
        values: what is stored, of the format's dtype; of a packed tensor, bytes.
        scale: as many dims as the values; a dim of 1 serves the whole dim of the values, another
            one a block of equal size for each of its scales.
        zero_point: what stands for 0, of the values' dtype and the scale's shape; None is 0.
        global_scale: a number that multiplies all scales (NVFP4); None is 1.
        format: the format's name.
        dtype: the dtype of the array that it stands for.
        packed: the axis along which a byte holds two values, counted from the last (negative);
            None: each value has a byte. `pack` says more.
        padded: whether the last byte along that axis holds one value only.
    """

    values: Any
    scale: Any
    zero_point: Any = None
    global_scale: Any = None
    format: str = field(default="int8", metadata={"static": True})
    dtype: DType = field(default=float32, metadata={"static": True})
    packed: int | None = field(default=None, metadata={"static": True})
    padded: bool = field(default=False, metadata={"static": True})

    # NumPy leaves `array @ tensor` to the tensor.
    __array_ufunc__ = None

    @property
    def shape(self) -> tuple[Any, ...]:
        """The shape, of what it stands for."""
        if self.packed is None:
            return self.values.shape
        shape, axis = list(self.values.shape), self._pairs()
        shape[axis] = shape[axis] * 2 - self.padded
        return tuple(shape)

    def _pairs(self) -> int:
        """The axis along which a byte holds two values."""
        axis = self.ndim + cast("int", self.packed)
        if axis < 0:
            raise ShapeError(
                f"QuantizedTensor: the values are {self.values.type.strong()}, packed along axis"
                f" {self.packed}",
                loc=loc.current(),
                rule="slices are taken along axes in front of the packed one",
                fix="pack along another axis, `q.pack(-1)`, or slice `q.unpack()`",
            )
        return axis

    @property
    def ndim(self) -> int:
        """The number of dims."""
        return self.values.ndim

    @property
    def block(self) -> tuple[int, ...]:
        """How many neighbours along each dim share a scale; 0 is all of them."""
        return blocks_of(self.shape, self.scale.shape)

    @property
    def nbytes(self) -> int:
        """The bytes of its arrays."""
        arrays = (self.values, self.scale, self.zero_point, self.global_scale)
        return sum([x.nbytes for x in arrays if x is not None])

    @property
    def full_scale(self) -> Any:
        """The scales, times the global one."""
        if self.global_scale is None:
            return self.scale
        shape = self.scale.shape
        return e.mul(e.cast(self.scale, float32), broadcast(self.global_scale, shape, ()))

    @property
    def mT(self) -> QuantizedTensor:
        """Matrices transposed."""
        axes = [*range(self.ndim - 2), self.ndim - 1, self.ndim - 2]
        zero = self.zero_point
        turned = {-1: -2, -2: -1}
        return replace(
            self,
            packed=None if self.packed is None else turned.get(self.packed, self.packed),
            values=transpose(self.values, axes),
            scale=transpose(self.scale, axes),
            zero_point=None if zero is None else transpose(zero, axes),
        )

    @api_boundary
    @apart
    def dequantize(self, dtype: DTypeLike | None = None) -> ArrayBase:
        """The array that it stands for.

        Args:
            dtype: its dtype; None is that of the array that was quantized.
        """
        wanted = self.dtype if dtype is None else parse_dtype("dequantize", dtype)
        format = Format(self.format)
        scale, x = self.full_scale, self.unpack()
        return q.dequantize(x.values, scale, x.zero_point, format, self.block, wanted)

    def integers(self) -> QuantizedTensor:
        """The same in int8, if it is packed: what products read."""
        if self.packed is None:
            return self
        axis, format = self._pairs(), Format(self.format)
        values = unpack_integers(self.values, format, axis, self.shape[axis])
        kept = replace(self, values=values, format="int8", packed=None, padded=False)
        if format is Format.E2M1:
            # Which are twice the values: a global scale multiplies the sum of products.
            whole = self.global_scale
            half = full((), 0.5, float32) if whole is None else e.mul(whole, 0.5)
            return replace(kept, global_scale=half)
        zero = self.zero_point
        return kept if zero is None else replace(kept, zero_point=e.cast(zero, int8))

    @api_boundary
    @apart
    def rows(self, indices: ArrayLike) -> ArrayBase:
        """The numbers at some places along the first axis, of which only these are read.

        Args:
            indices: integers, as for `ts.take`.

        Returns:
            An array `[*indices.shape, *shape[1:]]`.

        Example:
            >>> import tessera as ts
            >>> q = ts.quantize(ts.asarray([[1.0, 2.0], [4.0, 8.0]]), ts.int8, axis=0)
            >>> q.rows(ts.asarray([1, 1, 0])).shape
            (3, 2)
        """
        at: Any = take(iota((self.shape[0],), 0, int64), indices, axis=0)
        found = self._taken(reshape(at, (prod(at.shape),)))
        return reshape(found.dequantize(), (*at.shape, *self.shape[1:]))

    def _taken(self, at: Any) -> QuantizedTensor:
        """The slices at some places, which are not negative."""
        block = self.block[0]

        def scales(x: Any) -> Any:
            if x is None or block == 0:
                return x
            return take(x, at // block, axis=0)

        scale, zero = scales(self.scale), scales(self.zero_point)
        if self.packed is None or self._pairs() > 0:
            values = take(self.values, at, axis=0)
            return replace(self, values=values, scale=scale, zero_point=zero)
        # Both values of a byte are unpacked, and one of them is taken.
        both = take(self.values, at // 2, axis=0)
        values = unpack_values(both, Format(self.format), 0, 2 * both.shape[0])
        own = iota((both.shape[0],), 0, int64) * 2 + at % 2
        kept = replace(self, scale=scale, zero_point=zero, packed=None, padded=False)
        return replace(kept, values=take(values, own, axis=0))

    @api_boundary
    @apart
    def pack(self, axis: int | None = None) -> QuantizedTensor:
        """The same with two values in a byte: half of the memory, for formats of 4 bits.

        What it stands for does not change. Products and `dequantize` unpack what they read; that is
        fastest along the last axis but one, where a row of bytes is two rows of values.

        Args:
            axis: along which two neighbours share a byte; an odd number of them is padded. None is
                the last axis but one, or the only one.

        Raises:
            DTypeError: the format takes 8 bits.
            ShapeError: it is not known whether the axis has an even number of values.

        Example:
            >>> import tessera as ts
            >>> w = ts.quantize(ts.ones((64, 8)), ts.int4, axis=1)
            >>> w.pack(), w.pack().values.shape
            (QuantizedTensor(int4, shape=(64, 8), scale=(1, 8), packed=-2, dtype=float32), (32, 8))
        """
        format = Format(self.format)
        if format not in (Format.INT4, Format.E2M1):
            raise DTypeError(
                f"pack: the values are {self.format}",
                loc=loc.current(),
                rule="int4, e2m1 and nvfp4 take 4 bits, two values a byte",
            )
        at = parse_axis("pack", max(self.ndim - 2, 0) if axis is None else axis, self.ndim)
        if self.packed == at - self.ndim:
            return self
        size = self.shape[at]
        padded = isinstance(size, int) and size % 2 == 1
        if not isinstance(size, int) and not may_equal(size, size // 2 * 2):
            raise ShapeError(
                f"pack: dim {at} has {size} values",
                loc=loc.current(),
                rule="whether a dim has an even number of values is known before it is packed",
                fix=f'say that it has: `ts.constrain("{size} % 2 == 0")`, or pack another axis',
            )
        values = pack_values(self.unpack().values, format, at, padded)
        return replace(self, values=values, packed=at - self.ndim, padded=padded)

    @api_boundary
    @apart
    def unpack(self) -> QuantizedTensor:
        """The same with a byte for each value."""
        if self.packed is None:
            return self
        axis = self._pairs()
        values = unpack_values(self.values, Format(self.format), axis, self.shape[axis])
        return replace(self, values=values, packed=None, padded=False)

    @api_boundary
    def __matmul__(self, other: Any) -> Any:
        from tessera.precision.products import quantized_matmul

        return quantized_matmul(self, other)

    @api_boundary
    def __rmatmul__(self, other: Any) -> Any:
        from tessera.precision.products import quantized_matmul

        return quantized_matmul(other, self)

    def __repr__(self) -> str:
        shape = str(self.shape) if hasattr(self.values, "shape") else _shape(self.values)
        parts = [self.format, f"shape={shape}", f"scale={_shape(self.scale)}"]
        if self.zero_point is not None:
            parts.append("zero_point")
        if self.global_scale is not None:
            parts.append("global_scale")
        if self.packed is not None:
            parts.append(f"packed={self.packed}")
        return f"QuantizedTensor({', '.join(parts)}, dtype={self.dtype.full_name})"


def _shape(x: Any) -> str:
    # Leaves of trees may be anything.
    return str(tuple(x.shape)) if hasattr(x, "shape") else repr(x)


# --- functions --------------------------------------------------------------------------------


@api_boundary
@apart
def quantize(
    x: ArrayLike,
    dtype: FormatLike,
    *,
    axis: int | Sequence[int] | None = None,
    block: int | Sequence[int] | None = None,
    scale: ArrayLike | None = None,
    zero_point: ArrayLike | None = None,
    symmetric: bool = True,
) -> QuantizedTensor:
    """An array in a quantized format: `clip(round(x / scale) + zero_point)`.

    Without options one scale serves the whole array, and makes its largest magnitude the format's
    largest value. Halves round to even. No gradient comes back through the result; see
    `ts.fake_quantize`.

    Args:
        x: an array of real floating-point numbers.
        dtype: `ts.int4`, `ts.int8`, `ts.uint8`, `ts.float8_e4m3fn`, `ts.float8_e5m2`, or the name
            of a format: these, "e4m3", "e5m2", "e2m1" (the fp4 numbers, kept in float8_e4m3fn), or
            "nvfp4": "e2m1" with a scale in e4m3 for each 16 elements along `axis` and one in
            float32 for all (emulated: what it computes is NVFP4, what it stores is not packed).
        axis: axes whose indices each have a scale of their own ("per channel"); with a block, the
            axis along which it lies.
        block: how many neighbours along `axis` (the last one) share a scale, which differs for
            every other index; or for each axis, where 0 is all of it: `(128, 128)` are tiles.
        scale: a number or an array, in the place of one from `x`; see `QuantizedTensor.scale`. Its
            shape says what shares a scale where neither `axis` nor `block` does.
        zero_point: with a scale, what stands for 0: a number or an array of the format's dtype.
        symmetric: False finds a zero point too, so that smallest and largest element (and 0) are
            the ends of the format. Symmetric integers use -127 to 127 only.

    Raises:
        DTypeError: no such format, or the array, the scale or the zero point are of another kind.
        ShapeError: blocks do not fill an axis, or the scale has another shape.
        OptionError: options that exclude each other.

    Example:
        >>> import tessera as ts
        >>> q = ts.quantize(ts.asarray([[0.5, -1.27], [20.0, 10.0]]), ts.int8, axis=0)
        >>> q.values
        Array([[  50, -127],
               [ 127,   64]], dtype=int8)
        >>> q.dequantize()
        Array([[ 0.5    , -1.27   ],
               [20.     , 10.07874]], dtype=float32)
    """
    p = parts_of("quantize", x, dtype, axis, block, scale, zero_point, symmetric)
    values = q.quantize(p.x, p.full_scale, p.zero, p.format, p.block)
    return QuantizedTensor(values, p.scale, p.zero, p.factor, p.format.value, p.x.dtype)


@api_boundary
@apart
def fake_quantize(
    x: ArrayLike,
    dtype: FormatLike,
    *,
    axis: int | Sequence[int] | None = None,
    block: int | Sequence[int] | None = None,
    scale: ArrayLike | None = None,
    zero_point: ArrayLike | None = None,
    symmetric: bool = True,
    gradient: GradientRule | None = None,
) -> ArrayBase:
    """`ts.quantize(x, ...).dequantize()`, with a gradient: for training what is quantized later.

    The gradient goes straight through where `x` is in the format's range, and is 0 where it was
    clipped (Bengio et al., 2013; Jacob et al., 2018). A scale that is given has the gradient of
    learned step sizes (Esser et al., 2020); one that comes from `x` counts as a constant.

    Args:
        x: an array of real floating-point numbers.
        dtype: as for `ts.quantize`, like the other arguments.
        axis: axes with scales of their own.
        block: how many neighbours share a scale.
        scale: in the place of one from `x`.
        zero_point: with a scale, what stands for 0.
        symmetric: whether 0 stands for 0.
        gradient: another rule: `gradient(x, low, high)` is what the gradient of each element is
            multiplied by; what lies between low and high rounds to a value of the format.

    Returns:
        An array of the shape and dtype of `x`.

    Example:
        >>> import tessera as ts
        >>> f = lambda x: ts.sum(ts.fake_quantize(x, ts.int4, scale=0.5))
        >>> ts.grad(f)(ts.asarray([0.3, 3.7, 3.8]))
        Array([1., 1., 0.], dtype=float32)
    """
    p = parts_of("fake_quantize", x, dtype, axis, block, scale, zero_point, symmetric)
    rule = straight_through if gradient is None else gradient
    zeros = () if p.zero is None else (p.zero,)
    found: Any = cast("Any", _fake)(p.format, p.block, rule, p.x, p.full_scale, *zeros)
    return found


def straight_through(x: Any, low: Any, high: Any) -> Any:
    """1 where x is between both ends, else 0."""
    inside = e.and_(e.ge(x, low), e.le(x, high))
    return e.cast(inside, x.dtype)


@partial(custom_jvp, nondiff_argnums=(0, 1, 2))
def _fake(format: Format, block: Any, rule: GradientRule, x: Any, scale: Any, *zero: Any) -> Any:
    zeros = zero[0] if zero else None
    values = q.quantize(x, scale, zeros, format, block)
    return q.dequantize(values, scale, zeros, format, block, x.dtype)


@_fake.defjvp
def _fake_jvp(format: Format, block: Any, rule: GradientRule, primals: Any, tangents: Any) -> Any:
    x, scale, *zero = primals
    tx, tscale, *_ = tangents
    zeros = zero[0] if zero else None
    values = q.quantize(x, scale, zeros, format, block)
    out = q.dequantize(values, scale, zeros, format, block, x.dtype)
    wide = float64 if float64 in (x.dtype, scale.dtype) else float32
    step = spread_blocks(e.cast(scale, wide), x.shape, block)
    low, high = format.low(bool(zero)) - format.half_step, format.max + format.half_step
    origin = spread_blocks(e.cast(zero[0], wide), x.shape, block) if zero else 0.0
    ends = [
        e.cast(e.mul(e.sub(full(x.shape, end, wide), origin), step), x.dtype) for end in (low, high)
    ]
    factor = rule(x, *ends)
    factor = as_array("fake_quantize", factor)
    if factor.shape != x.shape:
        factor = broadcast(factor, x.shape, range(x.ndim - factor.ndim, x.ndim))
    factor = e.cast(factor, x.dtype)
    # d(s * round(x / s)) / ds is round(x / s) - x / s where that passes x's gradient, else the end.
    stored = q.dequantize(values, full_like(scale, 1.0), zeros, format, block, wide)
    slope = e.sub(stored, e.mul(e.cast(factor, wide), e.div(e.cast(x, wide), step)))
    moved = e.mul(spread_blocks(e.cast(tscale, wide), x.shape, block), slope)
    return out, e.add(e.mul(tx, factor), e.cast(moved, x.dtype))
