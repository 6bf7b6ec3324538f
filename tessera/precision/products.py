"""Products of quantized tensors.

    sum_k (a[i, k] - za) * sa * (b[k, j] - zb) * sb

A scale that is the same along k is taken out of the sum: what is summed are the values themselves,
integers in int32, exactly, and others in float32; scales multiply the sum, first the left one, then
the right one. Zero points of integers are taken out as well:

    sum (a - za) * (b - zb) = sum a * b - za * sum b - zb * sum a + k * za * zb

A scale that varies along k multiplies the values, in float32, where the product reads them; a
global scale multiplies the sum.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tessera.dtypes import DType, DTypeLike, bfloat16, float16, float32, float64, int8, int32, uint8
from tessera.errors import DTypeError, ShapeError, api_boundary
from tessera.graph.array import ArrayBase
from tessera.graph.namespace.arguments import (
    ArrayLike,
    as_array,
    broadcast_together,
    parse_dtype,
)
from tessera.graph.namespace.linear import matrix_product
from tessera.graph.ops import elementwise as e
from tessera.graph.ops.quantize import Format, dequantize, spread_blocks
from tessera.graph.ops.reduce import sum_
from tessera.graph.ops.reshape import expand_dims, full, full_like, reshape
from tessera.ir import loc
from tessera.precision.apart import apart
from tessera.precision.tensors import QuantizedTensor


@dataclass(frozen=True)
class _Integers:
    """An operand of a product of integers.

    Attributes:
        values: what is multiplied, in int8.
        zero: in int32, what stands for 0 in the values; None is 0.
    """

    values: Any
    zero: Any


@api_boundary
@apart
def quantized_matmul(
    x1: ArrayLike | QuantizedTensor,
    x2: ArrayLike | QuantizedTensor,
    /,
    *,
    dtype: DTypeLike | None = None,
) -> ArrayBase:
    """The matrix product of what quantized tensors stand for; `a @ b` is the same.

    Two tensors of integers are summed in int32, which is exact (and wraps around where sums do not
    fit, from about 130,000 products of int8 on); floating-point formats in float32. An array beside
    a quantized tensor keeps its dtype, and sums are in float32 at least.

    Args:
        x1: an array or quantized tensor `[..., n, k]`; an array may be a vector `[k]`.
        x2: likewise `[..., k, m]`.
        dtype: the result's; None is that of the operand that is an array, else float32, also
            beside an array of 8 bits. No policy in force changes it.

    Returns:
        An array `[..., n, m]`.

    Raises:
        ShapeError: the operands do not fit.

    Example:
        >>> import tessera as ts
        >>> w = ts.quantize(ts.asarray([[1.0, -2.0], [0.5, 4.0]]), ts.int8, axis=1)
        >>> ts.asarray([[2.0, 4.0]]) @ w
        Array([[ 4.015748, 11.968504]], dtype=float32)
    """
    given = [
        x if isinstance(x, QuantizedTensor) else as_array("quantized_matmul", x) for x in (x1, x2)
    ]
    arrays = [x for x in given if not isinstance(x, QuantizedTensor)]
    squeezed = [k for k, x in enumerate(given) if _is_vector(x)]
    for k in squeezed:
        given[k] = expand_dims(given[k], 0 if k == 0 else 1)
    _check(given[0], given[1])
    wanted = float32 if dtype is None else parse_dtype("quantized_matmul", dtype)
    if dtype is None and arrays:
        wanted = arrays[0].dtype
        if len(arrays) == 2 or wanted.is_storage:
            wanted = float32
    out = e.cast(_product(given[0], given[1], wanted), wanted)
    kept = [n for k, n in enumerate(out.shape) if k - out.ndim + 2 not in squeezed]
    return reshape(out, kept) if squeezed else out


def _is_vector(x: Any) -> bool:
    return not isinstance(x, QuantizedTensor) and x.ndim == 1


def _check(a: Any, b: Any) -> None:
    for name, x in (("x1", a), ("x2", b)):
        if x.ndim < 2:
            raise ShapeError(
                f"quantized_matmul: {name} has {x.ndim} dims",
                loc=loc.current(),
                rule="operands are matrices or stacks of them; an array may be a vector",
            )
        if not isinstance(x, QuantizedTensor) and not x.dtype.is_float:
            raise DTypeError(
                f"quantized_matmul: {name} is {x.type.strong()}",
                loc=loc.current(),
                rule="an array beside a quantized tensor has floating-point numbers",
                fix="cast it: `x.astype(ts.float32)`",
            )


def _product(a: Any, b: Any, wanted: DType) -> Any:
    a, b = (x.integers() if isinstance(x, QuantizedTensor) else x for x in (a, b))
    both = [x for x in (a, b) if isinstance(x, QuantizedTensor)]
    uniform = all(_is_uniform(x, side) for side, x in enumerate((a, b)))
    if len(both) == 2 and uniform and all([Format(x.format).is_integer for x in both]):
        return _scaled(_integers(_as_int8(a), _as_int8(b)), a, b)
    if len(both) == 2 and uniform and a.values.dtype is b.values.dtype:
        return _scaled(matrix_product(a.values, b.values, float32), a, b)
    inner = float64 if wanted is float64 else float32
    # Values of all formats are exact in 16 bits, which more machines multiply; sums are in float32.
    arrays = [x.dtype for x in (a, b) if not isinstance(x, QuantizedTensor)]
    narrow = arrays in ([], [bfloat16], [float16])
    work = (arrays or [bfloat16])[0] if uniform and narrow else inner
    left, right = (_floats(x, side, work, inner) for side, x in enumerate((a, b)))
    return _scaled(matrix_product(left, right, inner), a, b)


def _axis(x: Any, side: int) -> int:
    """The axis of a side that is summed over."""
    return x.ndim - 1 - side


def _is_uniform(x: Any, side: int) -> bool:
    """Whether an operand's scales are the same along what is summed over."""
    return not isinstance(x, QuantizedTensor) or x.block[_axis(x, side)] == 0


def _floats(x: Any, side: int, work: DType, inner: DType) -> Any:
    """What a product of floating-point numbers multiplies."""
    if not isinstance(x, QuantizedTensor):
        return e.cast(x, work)
    format = Format(x.format)
    if not _is_uniform(x, side):
        return dequantize(x.values, x.scale, x.zero_point, format, x.block, inner)
    if x.zero_point is None:
        return e.cast(x.values, work)
    ones = full_like(e.cast(x.scale, float32), 1.0)
    return dequantize(x.values, ones, x.zero_point, format, x.block, work)


def _as_int8(x: QuantizedTensor) -> _Integers:
    """Integer values in int8, with their zero points in int32."""
    values, zero = x.values, x.zero_point
    if zero is not None:
        zero = e.cast(_along(zero, x), int32)
    if values.dtype is uint8:
        # Less 128 both: the highest bit is turned.
        values = e.bitcast(e.xor(values, 128), int8)
        if zero is None:
            zero = full(_along(x.scale, x).shape, 0, int32)
        zero = e.sub(zero, 128)
    return _Integers(e.cast(values, int8), zero)


def _along(scale: Any, x: QuantizedTensor) -> Any:
    """A scale or zero point for each index of a product's result: 1 along the axis of the sum."""
    block = list(x.block)
    shape = [1 if not size else n for n, size in zip(x.shape, block, strict=True)]
    return scale if shape == list(scale.shape) else spread_blocks(scale, shape, block)


def _integers(a: _Integers, b: _Integers) -> Any:
    """The sum of products of integers less their zero points, in int32."""
    total = matrix_product(a.values, b.values, int32)
    if a.zero is not None:
        columns = _sums(b.values, b.values.ndim - 2)
        total = _apply(e.sub, total, _apply(e.mul, a.zero, columns))
    if b.zero is not None:
        rows = _sums(a.values, a.values.ndim - 1)
        total = _apply(e.sub, total, _apply(e.mul, rows, b.zero))
    if a.zero is not None and b.zero is not None:
        count = full_like(a.zero, a.values.shape[-1])
        total = _apply(e.add, total, _apply(e.mul, e.mul(a.zero, count), b.zero))
    return total


def _sums(values: Any, axis: int) -> Any:
    """Sums along an axis, which stays."""
    return expand_dims(sum_(e.cast(values, int32), (axis,)), axis)


def _apply(fn: Any, x: Any, y: Any) -> Any:
    """A function of two arrays that are broadcast."""
    return fn(*broadcast_together("quantized_matmul", [x, y]))


def _scaled(total: Any, a: Any, b: Any) -> Any:
    """The sums times the scales that were left out of them."""
    wide = total if total.dtype.is_float else e.cast(total, float32)
    for side, x in enumerate((a, b)):
        if not isinstance(x, QuantizedTensor):
            continue
        scales = [_along(x.scale, x)] if _is_uniform(x, side) else []
        for scale in [*scales, *([] if x.global_scale is None else [x.global_scale])]:
            wide = _apply(e.mul, wide, e.cast(scale, wide.dtype))
    return wide
