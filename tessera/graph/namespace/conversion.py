"""Arrays from data: Python values, NumPy, buffers, DLPack.

What is made from Python values has the default dtypes: float32, int64, complex64.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from tessera.dtypes import (
    DType,
    DTypeLike,
    default_float,
    default_int,
    dtype_of,
    result_type,
)
from tessera.errors import LeafError, ShapeError, api_boundary
from tessera.graph import dlpack
from tessera.graph.array import Array, ArrayBase, dtype_from_numpy
from tessera.graph.device import CPU, Device, parse_device
from tessera.graph.host_copy import host_copy, host_moved
from tessera.graph.namespace.arguments import (
    as_array,
    check_fits,
    checked_data,
    is_number,
    is_numpy,
    is_sequence,
    operands,
    parse_dtype,
)
from tessera.graph.ops import elementwise as ops
from tessera.graph.ops.rearrange import concatenate, expand_dims
from tessera.graph.placement import adopted, device_of, moved, to_device
from tessera.graph.remote import Remote
from tessera.graph.trace import Tracer
from tessera.ir import loc
from tessera.ir.convert import cast_array
from tessera.ir.intexpr import IntExpr

__all__ = ["asarray", "from_dlpack"]

DeviceLike = Device | str | None


class SupportsDLPack(Protocol):
    """An array of any library that speaks DLPack."""

    def __dlpack__(self, *, stream: Any = None) -> Any:
        """A capsule."""
        ...

    def __dlpack_device__(self) -> tuple[int, int]:
        """Where the array lives."""
        ...


@api_boundary
def asarray(
    obj: Any,
    /,
    *,
    dtype: DTypeLike | None = None,
    device: DeviceLike = None,
    copy: bool | None = None,
) -> ArrayBase:
    """An array of the elements of something.

    Arrays are immutable, so an array is given back itself, and memory that somebody else could
    change is copied: sharing it takes `copy=False`, by which the caller promises not to write to
    it any more.

    Args:
        obj: an array, a Python number, nested sequences of numbers and arrays, a NumPy array, or
            whatever has the buffer protocol, `__array__` or DLPack.
        dtype: the element type; by default that of the data, and the default dtypes for Python
            numbers.
        device: where the array is to live.
        copy: True copies always; False never, and raises where that is impossible; None copies
            memory that is not an array's.

    Returns:
        An array; under a trace that of the trace if `obj` holds any of its values.

    Raises:
        LeafError: `obj` is nothing to make an array of.
        ValueError: `copy=False`, but a copy is needed.

    Example:
        >>> import tessera as ts
        >>> ts.asarray([[1, 2], [3, 4.5]])
        Array([[1. , 2. ],
               [3. , 4.5]], dtype=float32)
    """
    where = parse_device("asarray", device)
    wanted = None if dtype is None else parse_dtype("asarray", dtype)
    if isinstance(obj, IntExpr):
        obj = ops.cast(as_array("asarray", obj), wanted or default_int)
    if isinstance(obj, ArrayBase):
        found = _from_array(obj, wanted, copy)
        return found if device is None else to_device("asarray", found, where)
    found = _from_data(obj, wanted, copy)
    if isinstance(found, Tracer) or (device is None and isinstance(found.storage, Remote)):
        return found
    if where is CPU and not isinstance(found.storage, Remote):
        return found
    if copy is False and device_of(found) != where:
        _refuse_no_copy(copy, f"the data are on {device_of(found)}, not on {where}")
    return moved(found, where)


def _from_data(obj: Any, wanted: DType | None, copy: bool | None) -> Any:
    """An array of something that is none; on the host, unless another library has it elsewhere."""
    if is_number(obj):
        _refuse_no_copy(copy, "a Python number has no memory to share")
        found = wanted or dtype_of(type(obj))
        return Array(_converted(obj, found))
    if isinstance(obj, range):
        obj = list(obj)
    if is_sequence(obj):
        _refuse_no_copy(copy, "a sequence has no memory to share")
        return _from_sequence(obj, wanted)
    if is_elsewhere(obj) and (found := adopted(obj, copy)) is not None:
        return found if wanted is None else ops.cast(found, wanted)
    return _from_memory(_host_view(obj), wanted, copy)


def is_elsewhere(x: Any) -> bool:
    """Whether another library's array is in memory of a device."""
    if is_numpy(x):
        return False
    if hasattr(x, "__cuda_array_interface__"):
        return True
    return hasattr(x, "__dlpack_device__") and int(x.__dlpack_device__()[0]) != _DLPACK_CPU


# kDLCPU
_DLPACK_CPU = 1


def _from_array(x: Any, wanted: DType | None, copy: bool | None) -> Any:
    if wanted is not None and x.dtype is not wanted:
        _refuse_no_copy(copy, f"the array has dtype {x.dtype.full_name}, not {wanted.full_name}")
        return ops.cast(x, wanted)
    if isinstance(x, Array):
        if isinstance(x.storage, Remote):
            return Array(x.storage)  # copies of what cannot change are of no use there
        if copy:
            return Array(host_copy(x.host))
        return Array(x.host) if x.type.weak else x
    return ops.cast(x, x.dtype)


def _refuse_no_copy(copy: bool | None, why: str) -> None:
    if copy is False:
        raise LeafError(
            f"asarray: copy=False, but {why}",
            loc=loc.current(),
            rule="copy=False shares memory or fails",
            fix="leave copy out",
        ) from None


def _converted(obj: Any, dtype: DType) -> np.ndarray:
    """Python numbers in nested sequences, in a dtype."""
    with np.errstate(all="ignore"):
        if dtype.is_inexact or dtype.is_bool:
            return np.asarray(np.asarray(obj).astype(dtype.np))
        exact = np.asarray(obj)
        if exact.dtype.kind in "iuO" and exact.size:
            check_fits("asarray", int(exact.min()), int(exact.max()), dtype)
        return np.asarray(cast_array(exact, dtype))


def _from_sequence(obj: Sequence[Any], wanted: DType | None) -> Any:
    leaves: list[Any] = []
    traced = _collect(obj, leaves)
    if traced:
        found = _stacked(obj)
        return found if wanted is None else ops.cast(found, wanted)
    kinds: set[type[Any]] = {type(x) for x in leaves}
    if kinds <= {bool, int, float, complex}:
        target = wanted or (result_type(*[kind() for kind in kinds]) if kinds else default_float)
        return Array(host_moved(_converted(_rectangular(obj), target)))
    dtypes = [x if is_number(x) else _leaf_dtype(x) for x in leaves]
    target = wanted or result_type(*dtypes)
    return Array(cast_array(checked_data("asarray", _rectangular(obj)), target))


def _collect(obj: Any, leaves: list[Any]) -> bool:
    """Gathers what is in nested sequences; says whether there are traced values among it."""
    traced = False
    for x in obj:
        if is_sequence(x):
            traced = _collect(x, leaves) or traced
        else:
            leaves.append(x)
            traced = traced or isinstance(x, Tracer)
    return traced


def _leaf_dtype(x: Any) -> DType:
    if isinstance(x, ArrayBase):
        return x.dtype
    if is_numpy(x):
        return dtype_from_numpy(checked_data("asarray", np.asarray(x)).dtype)
    raise LeafError(
        f"asarray: the sequence holds a value of type {type(x).__name__}",
        loc=loc.current(),
        rule="sequences hold numbers, arrays, and sequences of them",
    )


def _rectangular(obj: Sequence[Any]) -> np.ndarray:
    try:
        return np.asarray(_plain(obj))
    except ValueError:
        raise ShapeError(
            "asarray: the nested sequences have different lengths",
            loc=loc.current(),
            rule="an array is rectangular",
            notes=_uneven(obj, ""),
        ) from None


def _uneven(obj: Any, path: str) -> tuple[str, ...]:
    """Two places of nested sequences whose lengths differ."""
    lengths = [len(x) if is_sequence(x) else np.shape(x)[:1] for x in obj]
    for k, length in enumerate(lengths):
        if length != lengths[0]:
            texts = [
                f"{n} item{'' if n == 1 else 's'}" if isinstance(n, int) else "no items"
                for n in (lengths[0], length)
            ]
            return (f"`x{path}[0]` has {texts[0]}, but `x{path}[{k}]` has {texts[1]}",)
    found = [_uneven(x, f"{path}[{k}]") for k, x in enumerate(obj) if is_sequence(x)]
    return next((notes for notes in found if notes), ())


def _plain(obj: Any) -> Any:
    """The sequence with arrays replaced by those of NumPy."""
    if isinstance(obj, Array):
        return obj.host
    return [_plain(x) for x in obj] if is_sequence(obj) else obj


def _stacked(obj: Any) -> Any:
    """Sequences with traced values among them, joined by ops."""
    if not is_sequence(obj):
        return as_array("asarray", obj)
    if not any(is_sequence(x) or is_numpy(x) or isinstance(x, ArrayBase) for x in obj):
        return _from_sequence(obj, None)
    # Numbers stay numbers, so that they take the dtype of the arrays beside them.
    parts = operands("asarray", *[x if is_number(x) else _stacked(x) for x in obj])
    return concatenate([expand_dims(x, 0) for x in parts], 0)


def _host_view(obj: Any) -> np.ndarray:
    """Whatever NumPy can see as an array without copying, as one."""
    if is_numpy(obj):
        return np.asarray(obj)
    try:
        if hasattr(obj, "__array__") or hasattr(obj, "__array_interface__"):
            return np.asarray(obj)
        if hasattr(obj, "__dlpack__"):
            return _imported(obj, None)
        return np.asarray(memoryview(obj))
    except (TypeError, BufferError, ValueError):
        raise LeafError(
            f"asarray: cannot make an array of a value of type {type(obj).__name__}",
            loc=loc.current(),
            rule="arrays are made of numbers, sequences of them, and other arrays",
        ) from None


def _from_memory(data: np.ndarray, wanted: DType | None, copy: bool | None) -> Array:
    checked = checked_data("asarray", data)
    found = checked if wanted is None else cast_array(checked, wanted)
    if found is not data:
        _refuse_no_copy(copy, f"the data have dtype {data.dtype}")
        found = host_moved(found)
    elif copy is not False:
        found = host_copy(found)
    return Array(found.view())


@api_boundary
def from_dlpack(
    x: SupportsDLPack, /, *, device: DeviceLike = None, copy: bool | None = None
) -> ArrayBase:
    """An array of another library, through DLPack.

    Args:
        x: an array with `__dlpack__`. Unless copied, its memory is shared: whoever owns it must
            not write to it while the result is in use.
        device: where the array is to live.
        copy: True copies always, False never; None copies where needed.

    Raises:
        BufferError: `x` cannot be exported.
    """
    if isinstance(x, ArrayBase):
        return asarray(x, copy=copy, device=device)
    if not hasattr(x, "__dlpack__"):
        raise LeafError(
            f"from_dlpack: got a value of type {type(x).__name__}",
            loc=loc.current(),
            rule="it takes an array of another library, with the method `__dlpack__`",
            fix="make an array of it with `ts.asarray`",
        )
    where = None if device is None else parse_device("from_dlpack", device)
    found = adopted(x, copy) if is_elsewhere(x) else None
    if found is None:
        found = Array(checked_data("from_dlpack", _imported(x, copy)).view())
    return found if where is None else moved(found, where)


def _imported(x: Any, copy: bool | None) -> np.ndarray:
    source: Any = dlpack.Importable(x)
    data = np.from_dlpack(source, copy=copy)
    return data if source.dtype is None else data.view(source.dtype.np)
