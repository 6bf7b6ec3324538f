"""What shares a scale in a quantized tensor, and where scales and zero points come from."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from tessera.dtypes import (
    DType,
    DTypeLike,
    finfo,
    float8_e4m3fn,
    float32,
    float64,
    iinfo,
)
from tessera.errors import DTypeError, OptionError, ShapeError
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
from tessera.graph.ops.quantize import Format
from tessera.graph.ops.reduce import max_, min_
from tessera.graph.ops.reshape import broadcast, full, reshape
from tessera.ir import loc
from tessera.ir.intexpr import Dim, evaluate, symbols

FormatLike: TypeAlias = DTypeLike
"""A dtype that values are quantized to, or a name: "int4", "int8", "uint8", "e4m3", "e5m2", "e2m1",
or "nvfp4", which is "e2m1" with scales of NVFP4."""

NVFP4 = "nvfp4"
NVFP4_BLOCK = 16


def blocks_of(shape: Sequence[Dim], scales: Sequence[Dim]) -> tuple[int, ...]:
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
class Parts:
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


def parts_of(
    name: str,
    x: ArrayLike,
    dtype: FormatLike,
    axis: int | Sequence[int] | None,
    block: int | Sequence[int] | None,
    scale: Any,
    zero_point: Any,
    symmetric: bool,
) -> Parts:
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
            size = blocks_of(found.shape, scale.shape)
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
            scale = full((), scale, wide_of(found))
        return Parts(found, format, size, _given(name, scale, found, size), zero)
    wide = e.cast(stop_gradient(found), wide_of(found))
    if symmetric:
        return Parts(found, format, size, scale_of(amax(wide, size), format), None)
    if not format.is_integer:
        raise OptionError(
            f"{name}: symmetric=False with {format.value}",
            loc=loc.current(),
            rule="formats of floating-point numbers have no zero point",
        )
    return Parts(found, format, size, *_affine(wide, size, format))


def wide_of(x: Any) -> DType:
    """The dtype of scales for an array."""
    return float64 if x.dtype is float64 else float32


def _nvfp4(name: str, x: Any, axis: Any) -> Parts:
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
    return Parts(x, Format.E2M1, block, e.cast(scale, float8_e4m3fn), None, factor)
