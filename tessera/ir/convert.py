"""Conversion of arrays between dtypes: the meaning of the `cast` and `bitcast` ops of every layer.

- to bool: whether the element is not zero (NaN is not);
- complex to any real dtype: the real part, then as below;
- floating-point to integer: the fraction is cut off; what lies outside of the range becomes the
  nearest end of it, and NaN becomes 0;
- integer to integer: wraps around;
- integer to floating-point: rounded once, but through float32 for formats narrower than that;
- floating-point to floating-point: rounded once, to the nearest, halves to even.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from tessera.dtypes import DType, dtype_of, iinfo, real_of
from tessera.ir.scalar import round_into

Array: TypeAlias = "npt.NDArray[Any]"


def cast_array(x: Array, dtype: DType) -> Array:
    """The elements of `x` in another dtype; `x` itself where it has that dtype already."""
    source = dtype_of(x.dtype)
    if source is dtype:
        return x
    with np.errstate(all="ignore"):
        return conversion(source, dtype)(x)


@functools.cache
def conversion(source: DType, dtype: DType) -> Callable[[Array], Array]:
    """What `cast_array` does with arrays of a dtype, which is not looked at again; NumPy may warn
    of them."""
    if source is dtype:
        return lambda x: x
    if dtype.is_bool:
        return lambda x: np.asarray(widen(x) != 0)
    if source.is_complex and not dtype.is_complex:
        real = conversion(real_of(source), dtype)
        return lambda x: real(np.asarray(np.real(x)))
    if source.is_float and dtype.is_integer:
        return lambda x: _truncate(widen(x), dtype)
    if dtype.is_float and dtype.bits < 32 and not source.is_float:
        return lambda x: np.asarray(widen(x).astype(np.float32).astype(dtype.np))
    is_plain = source.bits >= 8 and not (dtype.is_float and dtype.bits < 32)
    if is_plain and not (source.is_float and source.bits < 32):
        format = dtype.np
        return lambda x: np.asarray(x.astype(format))
    return lambda x: round_into(widen(x), dtype)


def widen(x: Array) -> Array:
    """The same values in a format that NumPy computes in: float32 and int8 at least."""
    dtype = dtype_of(x.dtype)
    if dtype.is_float and dtype.bits < 32:
        return np.asarray(x.astype(np.float32))
    return np.asarray(x.astype(np.int8)) if dtype.bits < 8 else x


def _truncate(x: Array, dtype: DType) -> Array:
    limits = iinfo(dtype)
    # 2**(bits - 1) and 2**bits are exact in every format that is compared here, unlike max itself.
    top = 2.0 ** (limits.bits if limits.min == 0 else limits.bits - 1)
    inside = (x > limits.min - 1.0) & (x < top)
    wide = np.uint64 if limits.min == 0 else np.int64
    result: Array = np.where(inside, x, 0).astype(wide)
    result = np.where(x >= top, wide(limits.max), result)
    # min - 1 rounds to min in wide formats: then x == min is not inside, and becomes min here.
    result = np.where(x <= float(limits.min), wide(limits.min), result)
    return np.asarray(result.astype(dtype.np))


def bitcast_array(x: Array, dtype: DType) -> Array:
    """The bits of `x` as elements of another dtype of the same width."""
    return np.asarray(np.ascontiguousarray(x).view(dtype.np).reshape(x.shape))
