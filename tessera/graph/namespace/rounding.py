"""Conversion of arrays with a rounding mode; `ts.astype` rounds to the nearest."""

from __future__ import annotations

from typing import Any

from tessera.dtypes import DType, DTypeLike, float32, float64, iinfo, uint32
from tessera.errors import DTypeError, OptionError, ShapeError, api_boundary
from tessera.graph.array import ArrayBase
from tessera.graph.namespace.arguments import ArrayLike, as_array, parse_dtype
from tessera.graph.ops import elementwise as ops
from tessera.graph.ops.precision import round_cast, unit
from tessera.ir import loc
from tessera.ir.numerics import Denormals, Rounding, parse_member

__all__ = ["round_to"]


@api_boundary
def round_to(
    x: ArrayLike,
    dtype: DTypeLike,
    /,
    *,
    rounding: Rounding | str = "nearest_even",
    saturate: bool = False,
    denormals: Denormals | str = "preserve",
    key: ArrayLike | None = None,
) -> ArrayBase:
    """The elements of an array in another dtype, rounded as told.

    A number is rounded to the format continued without an upper end; what then exceeds its largest
    finite number becomes infinite (NaN in `float8_e4m3fn`, which has no infinity), or the largest
    number where the mode rounds towards zero there.

    Args:
        x: An array of real numbers.
        dtype: The element type.
        rounding: `"nearest_even"`, `"toward_zero"`, `"up"`, `"down"`, or `"stochastic"`: to the
            farther one of two neighbours with the probability of the fraction of the way to it.
        saturate: Whether the largest finite number takes the place of what is larger, infinities
            included. Integers wrap around without it; floating-point numbers that become integers
            always saturate.
        denormals: `"preserve"`, or `"flush"`: what is below the smallest normal number becomes 0.
        key: For stochastic rounding, a key; element n is rounded by word n of its sequence.

    Returns:
        An array of the dtype and of the shape of `x`. The derivative is 1, but 0 for a number that
        was saturated.

    Raises:
        DTypeError: `x` or `dtype` is complex or bool; or 64-bit integers are to become
            floating-point numbers other than by `"nearest_even"`.
        OptionError: There is no such mode, or stochastic rounding has no key.
        ShapeError: The key is none.

    Example:
        >>> import tessera as ts
        >>> x = ts.asarray([1.004, -1.004, 500.0])
        >>> ts.round_to(x, ts.bfloat16, rounding="up")
        Array([  1.0078125,  -1.       , 500.       ], dtype=bfloat16)
        >>> ts.round_to(x, ts.float8_e4m3fn, saturate=True)
        Array([  1.,  -1., 448.], dtype=float8_e4m3fn)
    """
    found, wanted = as_array("round_to", x), parse_dtype("round_to", dtype)
    for given in (found.dtype, wanted):
        if given.is_bool or given.is_complex:
            raise DTypeError(
                f"round_to: {found.type.strong()} to {wanted.full_name}",
                loc=loc.current(),
                rule="real numbers are rounded to real numbers",
                fix="use `ts.astype`" if given.is_bool else "take `ts.real(x)` first",
            )
    mode = parse_member("round_to", "rounding", Rounding, rounding)
    flushed = parse_member("round_to", "denormals", Denormals, denormals) is Denormals.FLUSH
    words = _key(key, mode)
    if found.dtype.is_integer:
        if wanted.is_integer:
            return ops.cast(_clamped(found, wanted) if saturate else found, wanted)
        if found.dtype.bits == 64 and mode is not Rounding.NEAREST_EVEN:
            raise DTypeError(
                f"round_to: {found.type.strong()} to {wanted.full_name}, {mode.value}",
                loc=loc.current(),
                rule="integers of 64 bits become floating-point numbers by nearest_even only",
                fix="convert them to float64 first, which rounds those above 2**53",
            )
        found = ops.cast(found, float64)
    if wanted.is_integer:
        return ops.cast(_whole(found, mode, words), wanted)
    return round_cast(found, wanted, mode, saturate, flushed, words)


def _key(key: object, mode: Rounding) -> Any:
    if mode is not Rounding.STOCHASTIC:
        return None
    if key is None:
        raise OptionError(
            "round_to: rounding is stochastic, but there is no key",
            loc=loc.current(),
            rule="random numbers come from a key",
            fix="give one: `key=ts.random.key(0)`",
        )
    found = as_array("round_to", key)
    if found.dtype is not uint32 or found.shape not in ((2,), (4,)):
        raise ShapeError(
            f"round_to: the key has type {found.type.strong()}",
            loc=loc.current(),
            rule="a key is two words: u32[2]",
            fix="make one with `ts.random.key(seed)`",
        )
    return found


def _clamped(x: Any, dtype: DType) -> Any:
    """Integers within the range of another dtype."""
    own, to = iinfo(x.dtype), iinfo(dtype)
    if to.min > own.min:
        x = ops.maximum(x, to.min)
    return ops.minimum(x, to.max) if to.max < own.max else x


def _whole(x: Any, mode: Rounding, key: Any) -> Any:
    """Floating-point numbers as whole ones."""
    if mode is Rounding.STOCHASTIC:
        x = ops.cast(x, float64 if x.dtype is float64 else float32)
        whole = ops.trunc(x)
        away = ops.lt(unit(key, x.shape, x.dtype), ops.abs_(ops.sub(x, whole)))
        return ops.add(whole, ops.mul(ops.cast(away, x.dtype), ops.sign(x)))
    return _MODES[mode](x)


_MODES = {
    Rounding.NEAREST_EVEN: ops.round_,
    Rounding.TOWARD_ZERO: ops.trunc,
    Rounding.UP: ops.ceil,
    Rounding.DOWN: ops.floor,
}
