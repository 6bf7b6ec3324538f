"""Quantized tensors: what they are made of, how they are made, and gradients through quantization.

What quantizing and dequantizing mean is in `graph/ops/quantize.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeAlias, cast

from tessera.api.derivatives import custom_jvp
from tessera.dtypes import (
    DType,
    DTypeLike,
    finfo,
    float8_e4m3fn,
    float32,
    float64,
    iinfo,
    int8,
)
from tessera.errors import DTypeError, OptionError, ShapeError, api_boundary
from tessera.graph.array import ArrayBase
from tessera.graph.namespace.arguments import (
    ArrayLike,
    as_array,
    is_number,
    is_sequence,
    parse_axes,
    parse_axis,
    parse_dtype,
)
from tessera.graph.namespace.statistics import stop_gradient
from tessera.graph.ops import elementwise as e
from tessera.graph.ops import quantize as q
from tessera.graph.ops.checks import may_equal
from tessera.graph.ops.quantize import Format, spread_blocks
from tessera.graph.ops.reduce import max_, min_
from tessera.graph.ops.reshape import broadcast, full, full_like, reshape, transpose
from tessera.ir import loc
from tessera.ir.intexpr import Dim, evaluate, symbols
from tessera.precision.apart import apart
from tessera.precision.packing import pack_values, unpack_integers, unpack_values
from tessera.pytree import register_dataclass

FormatLike: TypeAlias = DTypeLike
"""A dtype that values are quantized to, or a name: "int4", "int8", "uint8", "e4m3", "e5m2", "e2m1",
or "nvfp4", which is "e2m1" with scales of NVFP4."""

GradientRule: TypeAlias = Callable[[Any, Any, Any], Any]
"""What a gradient is multiplied by, from x and both ends of the format's range."""

NVFP4 = "nvfp4"
NVFP4_BLOCK = 16


@register_dataclass
@dataclass(frozen=True, eq=False, repr=False)
class QuantizedTensor:
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
        return _blocks_of(self.shape, self.scale.shape)

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


def _blocks_of(shape: Sequence[Dim], scales: Sequence[Dim]) -> tuple[int, ...]:
    """The block that the shapes say; a dim that does not fit is left to the op's check."""
    found: list[int] = []
    for n, m in zip(shape, scales, strict=False):
        if m == n:
            found.append(1)
        else:
            scales_there = _example(m)
            found.append(0 if m == 1 or not scales_there else _example(n) // scales_there)
    return (*found, *[0] * (len(shape) - len(found)))


def _example(dim: Dim) -> int:
    """A size that a dim has for symbols which all blocks in use divide. A dim and one for each of
    its blocks have a constant quotient, so one example tells it."""
    return evaluate(dim, dict.fromkeys(symbols(dim), _DIVISIBLE))


_DIVISIBLE = 2**20 * 3**4 * 5**3 * 7 * 11

# --- schemes ----------------------------------------------------------------------------------


def parse_format(name: str, dtype: FormatLike) -> Format:
    """The format that a dtype or a name says."""
    if isinstance(dtype, str) and dtype == NVFP4:
        return Format.E2M1
    if isinstance(dtype, str) and dtype in [f.value for f in Format]:
        return Format(dtype)
    for format in (Format.INT4, Format.INT8, Format.UINT8, Format.E4M3, Format.E5M2):
        if not isinstance(dtype, str) and dtype == format.dtype:
            return format
    wanted = dtype if isinstance(dtype, str) else parse_dtype(name, dtype).full_name
    raise DTypeError(
        f"{name}: {wanted} is no quantized format",
        loc=loc.current(),
        rule="the formats are int4, int8, uint8, e4m3, e5m2, e2m1 and nvfp4",
        fix=None if isinstance(dtype, str) else f"convert it plainly: `x.astype(ts.{wanted})`",
    )


def parse_block(
    name: str, x: Any, axis: int | Sequence[int] | None, block: int | Sequence[int] | None
) -> tuple[int, ...]:
    """Which elements share a scale, as `graph/ops/quantize.py` says it."""
    if block is None:
        own = () if axis is None else parse_axes(name, axis, x.ndim)
        return tuple([int(k in own) for k in range(x.ndim)])
    if is_sequence(block):
        if axis is not None:
            raise OptionError(
                f"{name}: axis={axis} beside block={block}",
                loc=loc.current(),
                rule="a block of several numbers has one for each dim, and needs no axis",
            )
        found = tuple([int(n) for n in block])
    else:
        along = parse_axis(name, -1 if axis is None else axis, x.ndim)
        found = tuple([_length(block) if k == along else 1 for k in range(x.ndim)])
    if len(found) != x.ndim:
        raise ShapeError(
            f"{name}: block={block} has {len(found)} numbers for an array of rank {x.ndim}",
            loc=loc.current(),
            rule="a block has a number for each dim of the array",
        )
    for k, (n, size) in enumerate(zip(x.shape, found, strict=True)):
        if size < 0 or (size and not may_equal(n, n // size * size)):
            raise ShapeError(
                f"{name}: dim {k} of {x.type.strong()} has {n} elements, and blocks have {size}",
                loc=loc.current(),
                rule="blocks fill the dim; 0 is one block",
                fix=None
                if size < 0
                else "pad the array: `ts.pad`"
                if isinstance(n, int)
                else f'say that they do: `ts.constrain("{n} % {size} == 0")`',
            )
    return found


def _length(block: Any) -> int:
    return int(block)


def _extreme(find: Callable[..., Any], x: Any, block: Sequence[int]) -> Any:
    """The largest or smallest element of each block."""
    split, gone, shape = q.axes_of_blocks(x.shape, block)
    if 0 in x.shape:
        return full(shape, 0, x.dtype)  # of no elements: nothing is stored with it
    return reshape(find(reshape(x, split), gone) if gone else x, shape)


def amax(x: Any, block: Sequence[int]) -> Any:
    """The largest magnitude of each block; 0 for a block without elements."""
    return _extreme(max_, e.abs_(x), block)


def scale_of(largest: Any, format: Format) -> Any:
    """The scale with which a magnitude becomes the format's largest value, and no less than the
    smallest normal number."""
    return e.maximum(e.div(largest, format.max), finfo(largest.dtype).smallest_normal)


def _affine(x: Any, block: Sequence[int], format: Format) -> tuple[Any, Any]:
    """The scale and the zero point with which the range of a block, with 0, is the format's."""
    low, high = format.low(True), format.max
    bottom = e.minimum(_extreme(min_, x, block), 0.0)
    top = e.maximum(_extreme(max_, x, block), 0.0)
    # Both parts are divided first: the difference of large numbers overflows.
    count = high - low
    scale = e.sub(e.div(top, count), e.div(bottom, count))
    scale = e.maximum(scale, finfo(x.dtype).smallest_normal)
    zero = e.sub(low, e.round_(e.div(bottom, scale)))
    return scale, e.cast(e.minimum(e.maximum(zero, low), high), format.dtype)


def _given(name: str, given: Any, x: Any, block: Sequence[int]) -> Any:
    """A scale of the caller's: as it is, or a number for all."""
    found = as_array(name, given)
    if found.ndim:
        return found
    shape = [1 if not size else n // size for n, size in zip(x.shape, block, strict=True)]
    return broadcast(found, shape, ())


def _given_zero(name: str, given: Any, x: Any, block: Sequence[int], format: Format) -> Any:
    if isinstance(given, (int, float)) and format.is_integer:
        limits = iinfo(format.dtype)
        if not float(given).is_integer() or not limits.min <= given <= limits.max:
            raise DTypeError(
                f"{name}: the zero point is {given}",
                loc=loc.current(),
                rule=f"a zero point is one of the values of {format.value}, {limits.min} to"
                f" {limits.max}",
            )
        given = full((), int(given), format.dtype)
    return _given(name, given, x, block)


@dataclass(frozen=True)
class _Parts:
    """An array that is to be quantized, and with what."""

    x: Any
    format: Format
    block: tuple[int, ...]
    scale: Any
    zero: Any
    factor: Any = None

    @property
    def full_scale(self) -> Any:
        """The scales, times the global one."""
        if self.factor is None:
            return self.scale
        return e.mul(e.cast(self.scale, float32), broadcast(self.factor, self.scale.shape, ()))


def _parts(
    name: str,
    x: ArrayLike,
    dtype: FormatLike,
    axis: int | Sequence[int] | None,
    block: int | Sequence[int] | None,
    scale: Any,
    zero_point: Any,
    symmetric: bool,
) -> _Parts:
    found = as_array(name, x)
    format = parse_format(name, dtype)
    if not found.dtype.is_float:
        raise DTypeError(
            f"{name}: the array is {found.type.strong()}",
            loc=loc.current(),
            rule="what is quantized are real floating-point numbers",
            fix="cast it first: `x.astype(ts.float32)`",
        )
    if isinstance(dtype, str) and dtype == NVFP4:
        if scale is not None or block is not None:
            raise OptionError(
                f"{name}: {'scale' if scale is not None else 'block'} with nvfp4",
                loc=loc.current(),
                rule="NVFP4 has blocks of 16 elements, and scales that come from the array",
                fix='use "e2m1"',
            )
        return _nvfp4(name, found, -1 if axis is None else axis)
    size = parse_block(name, found, axis, block)
    if scale is not None and axis is None and block is None and not is_number(scale):
        scale = as_array(name, scale)
        if scale.ndim == found.ndim:
            size = _blocks_of(found.shape, scale.shape)
    if scale is None and zero_point is not None:
        raise OptionError(
            f"{name}: a zero point without a scale",
            loc=loc.current(),
            rule="both are given, or both come from the array",
            fix="give the scale, or `symmetric=False`",
        )
    if scale is not None:
        zero = None
        if zero_point is not None:
            zero = _given_zero(name, zero_point, found, size, format)
        if isinstance(scale, (int, float)):
            scale = full((), scale, _wide(found))
        return _Parts(found, format, size, _given(name, scale, found, size), zero)
    wide = e.cast(stop_gradient(found), _wide(found))
    if symmetric:
        return _Parts(found, format, size, scale_of(amax(wide, size), format), None)
    if not format.is_integer:
        raise OptionError(
            f"{name}: symmetric=False with {format.value}",
            loc=loc.current(),
            rule="formats of floating-point numbers have no zero point",
        )
    return _Parts(found, format, size, *_affine(wide, size, format))


def _wide(x: Any) -> DType:
    """The dtype of scales for an array."""
    return float64 if x.dtype is float64 else float32


def _nvfp4(name: str, x: Any, axis: Any) -> _Parts:
    """Scales in e4m3 for 16 elements each, and one in float32 for all, such that the largest scale
    is the largest e4m3 number."""
    block = parse_block(name, x, axis, NVFP4_BLOCK)
    largest = amax(e.cast(stop_gradient(x), float32), block)
    top = finfo(float8_e4m3fn).max
    whole = max_(largest, tuple(range(largest.ndim)))
    factor = e.maximum(
        e.div(whole, Format.E2M1.max * top), finfo(float32).smallest_normal
    )
    scale = e.div(e.div(largest, Format.E2M1.max), broadcast(factor, largest.shape, ()))
    scale = e.minimum(e.maximum(scale, finfo(float8_e4m3fn).smallest_subnormal), top)
    return _Parts(x, Format.E2M1, block, e.cast(scale, float8_e4m3fn), None, factor)


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
    p = _parts("quantize", x, dtype, axis, block, scale, zero_point, symmetric)
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
    p = _parts("fake_quantize", x, dtype, axis, block, scale, zero_point, symmetric)
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
