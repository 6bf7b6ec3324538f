"""Policies for usual purposes; see `ts.Policy` and `docs/precision.md`.

    >>> import tessera as ts
    >>> ts.policies.Training()
    Training(bf16 -> f32)
    >>> ts.policies.Inference().storage
    tessera.float8_e4m3fn
"""

from __future__ import annotations

from tessera.dtypes import DTypeLike, bfloat16, dtype_of, float8_e4m3fn, float32
from tessera.errors import api_boundary
from tessera.ir import numerics
from tessera.ir.numerics import Policy

__all__ = ["NVFP4", "Inference", "Training"]


@api_boundary
def Training(storage: DTypeLike = bfloat16, accumulate: DTypeLike = float32) -> Policy:
    """Arrays are kept and computed with in a narrow dtype, and sums are formed in a wide one.

    Args:
        storage: The dtype of results and of operands.
        accumulate: The dtype in which sums and products are formed, at least as wide.

    Example:
        >>> import tessera as ts
        >>> p = ts.policies.Training()
        >>> p.storage, p.compute, p.accumulate
        (tessera.bfloat16, tessera.bfloat16, tessera.float32)
    """
    return numerics.training(dtype_of(storage), dtype_of(accumulate))


@api_boundary
def Inference(storage: DTypeLike = float8_e4m3fn, compute: DTypeLike = bfloat16) -> Policy:
    """Arrays are kept in a narrow dtype, saturating, and computed with in a wider one; sums are
    formed in float32.

    Args:
        storage: The dtype of results.
        compute: The dtype that operands are converted to.

    Example:
        >>> import tessera as ts
        >>> ts.policies.Inference()
        Inference(f8e4m3fn -> bf16)
    """
    return numerics.inference(dtype_of(storage), dtype_of(compute))


@api_boundary
def NVFP4(accum: DTypeLike = float32) -> Policy:
    """The operands of matrix products are rounded to NVFP4: numbers of 4 bits (e2m1) in blocks of
    16 along the axis that is summed over, with a scale in e4m3 for each block and one in float32
    for all. Everything else is kept in 16 bits.

    It is emulated: the numbers are those of NVFP4, and are multiplied as numbers of `accum`.

    Args:
        accum: The dtype in which products are formed: float32, or float16.

    Example:
        >>> import tessera as ts
        >>> with ts.policy(ts.policies.NVFP4(accum=ts.float32)):
        ...     y = ts.ones((2, 16)) @ ts.ones((16, 3))
        >>> y.dtype, ts.policies.NVFP4()
        (tessera.bfloat16, NVFP4(accum=f32))
    """
    return numerics.nvfp4(dtype_of(accum))
