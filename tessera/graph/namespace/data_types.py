"""Functions on dtypes. Those that only ask are in `tessera/dtypes.py`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

from tessera import dtypes
from tessera.dtypes import DType, DTypeLike, FInfo, IInfo
from tessera.errors import DTypeError, api_boundary
from tessera.graph.array import ArrayBase
from tessera.graph.device import Device, parse_device
from tessera.graph.namespace.arguments import (
    ArrayLike,
    as_array,
    common_dtype,
    is_number,
    parse_dtype,
)
from tessera.graph.ops.elementwise import cast
from tessera.graph.placement import to_device
from tessera.graph.shortcut import composed
from tessera.ir import loc

P = ParamSpec("P")
R = TypeVar("R")

__all__ = [
    "astype",
    "can_cast",
    "finfo",
    "iinfo",
    "isdtype",
    "result_type",
]


@composed
@api_boundary
def astype(
    x: ArrayLike,
    dtype: DTypeLike,
    /,
    *,
    copy: bool = True,
    device: Device | str | None = None,
) -> ArrayBase:
    """The elements of an array in another dtype.

    Floating-point numbers lose their fraction when they become integers; what lies outside of the
    integers' range becomes the nearest end of it, and NaN becomes 0. Integers wrap around.

    Args:
        x: the array.
        dtype: the element type.
        copy: of no effect, as arrays cannot be changed.
        device: where the result is to live.

    Raises:
        DTypeError: `x` is complex and the dtype is not.
    """
    where = None if device is None else parse_device("astype", device)
    found, wanted = as_array("astype", x), parse_dtype("astype", dtype)
    if found.dtype.is_complex and not wanted.is_complex and not wanted.is_bool:
        raise DTypeError(
            f"astype: {found.type.strong()} does not become {wanted.full_name}",
            loc=loc.current(),
            rule="a complex number is not converted to a real one",
            fix="take `ts.real(x)` or `ts.abs(x)` first",
        )
    result = cast(found, wanted)
    return result if where is None else to_device("astype", result, where)


def _placed(fn: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    """Calls a function on dtypes, whose errors do not know yet where the user called it."""
    try:
        return fn(*args, **kwargs)
    except DTypeError as error:
        error.at(loc.current())
        raise


@api_boundary
def can_cast(from_: DTypeLike | ArrayBase, to: DTypeLike, /) -> bool:
    """Whether a dtype (or an array's) becomes another by promotion alone."""
    return _placed(dtypes.can_cast, from_, to)


@api_boundary
def finfo(type: DTypeLike | ArrayBase, /) -> FInfo:
    """Limits of a floating-point or complex dtype."""
    return _placed(dtypes.finfo, type)


@api_boundary
def iinfo(type: DTypeLike | ArrayBase, /) -> IInfo:
    """Limits of an integer dtype."""
    return _placed(dtypes.iinfo, type)


@api_boundary
def isdtype(dtype: DTypeLike, kind: DTypeLike | tuple[DTypeLike, ...]) -> bool:
    """Whether a dtype is of a kind, such as `"real floating"`, or one of several."""
    return _placed(dtypes.isdtype, dtype, kind)


@api_boundary
def result_type(*arrays_and_dtypes: ArrayLike | DTypeLike) -> DType:
    """The dtype that arrays, dtypes and Python numbers have together."""
    if arrays_and_dtypes and all(
        isinstance(x, ArrayBase) or is_number(x) for x in arrays_and_dtypes
    ):
        return common_dtype("result_type", arrays_and_dtypes)[0]
    given: list[Any] = [x.dtype if isinstance(x, ArrayBase) else x for x in arrays_and_dtypes]
    return _placed(dtypes.result_type, *given)
