"""Which device arrays go to, and moving them.

Arrays stay where they are, and functions run where their arrays are. What has no device of its own
goes along: Python numbers, NumPy arrays, and arrays without dims that are on the host.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NoReturn

import numpy as np

from tessera.errors import LeafError, api_boundary
from tessera.graph.array import Array, ArrayBase
from tessera.graph.device import (
    CPU,
    Device,
    DeviceError,
    backend,
    backends,
    default_device,
    parse_device,
)
from tessera.graph.remote import Remote
from tessera.graph.trace import Tracer, is_tracing
from tessera.ir import loc
from tessera.ir.types import TensorType
from tessera.pytree import flatten, leaves, unflatten

__all__ = ["block_until_ready", "device_put"]


def placed(data: np.ndarray, device: Device, type: TensorType | None = None) -> Array:
    """An array on a device of elements that are on the host, and that nobody else uses."""
    if device is CPU or device == CPU:
        return Array(data, type)
    return Array(backend(device.platform).put(data, device), type)


def placed_by_default(data: np.ndarray) -> Array:
    """An array on the default device."""
    return placed(data, default_device())


def device_of(x: Any) -> Device:
    """The device of an array; of a traced value the one that its program is for."""
    while isinstance(x, Tracer):
        if x.concrete is None:
            return default_device()
        x = x.concrete
    data = x.storage
    return data.device if isinstance(data, Remote) else CPU


def device_of_all(arrays: Sequence[Any]) -> Device:
    """The device that a function of these arrays and tracers runs on."""
    for x in arrays:
        device = device_of(x)
        if device is not CPU:
            return device
    return CPU if arrays and not is_tracing() else default_device()


def moved(x: Array, device: Device) -> Array:
    """A concrete array on another device."""
    data = x.storage
    type = x.type if x.weak else None
    if isinstance(data, Remote):
        if data.device == device:
            return x
        if data.device.platform == device.platform:
            return Array(data.backend.move(data, device), type)
        data = data.get()
    elif device == CPU:
        return x
    return placed(np.asarray(data, order="C"), device, type)


def goes_along(x: Any, given: object) -> bool:
    """Whether an argument has no device of its own.

    Args:
        x: the argument as an array.
        given: what the user gave.
    """
    if not isinstance(x, Array) or isinstance(x.storage, Remote):
        return False
    return x.weak or not x.storage.ndim or not isinstance(given, ArrayBase)


def common_device(name: str, arrays: Sequence[Any], given: Sequence[object]) -> Device | None:
    """The device that the arguments of a call are on; None if it is the host.

    Args:
        name: what messages call the function.
        arrays: the arguments as arrays, tracers or numbers.
        given: what the user gave.

    Raises:
        DeviceError: arguments that have a device of their own are on different ones.
    """
    first: Any = None
    for x in arrays:
        if type(x) is Array and type(x.storage) is Remote:
            first = x
            break
    if first is None:
        return None
    device = device_of(first)
    for x, source in zip(arrays, given, strict=True):
        if type(x) is Array and device_of(x) != device and not goes_along(x, source):
            differ(name, first, x)
    return device


def gathered(name: str, arrays: Sequence[Any], given: Sequence[object]) -> list[Any]:
    """Arguments, of which those that have no device of their own are moved to that of the others;
    see `common_device`.
    """
    device = common_device(name, arrays, given)
    if device is None:
        return list(arrays)
    return [moved(x, device) if type(x) is Array else x for x in arrays]


def differ(name: str, x: Any, y: Any) -> NoReturn:
    """Fails for two arrays on different devices."""
    raise DeviceError(
        f"{name}: one array is {x.type.strong()} on {device_of(x)}, and another is "
        f"{y.type.strong()} on {device_of(y)}",
        loc=loc.current(),
        rule="the arrays of one call are on one device",
        fix=f"move one of them, as with `ts.device_put(x, {str(device_of(x))!r})`",
    )


def creation_device(name: str, device: object) -> Device:
    """The `device` argument of a function that makes an array.

    Raises:
        DeviceError: there is no such device; or the function is part of a program for another one.
    """
    found = parse_device(name, device)
    if device is not None and is_tracing() and found != default_device():
        raise DeviceError(
            f"{name}: an array on {found}, in a program for {default_device()}",
            loc=loc.current(),
            rule="a compiled function runs on one device, that of its arguments",
            fix="leave the device out, or make the array outside and pass it in",
        )
    return found


# --- public -----------------------------------------------------------------------------------


@api_boundary
def device_put(x: Any, device: Device | str | None = None, /) -> Any:
    """Arrays on a device.

    Copies of what is elsewhere; what is there already is given back itself. To a GPU the copy is
    started, and whatever uses the result waits for it.

    Args:
        x: an array, or containers of arrays; also NumPy arrays and numbers.
        device: a device or its name; by default the default device.

    Returns:
        The same structure.

    Raises:
        DeviceError: there is no such device.

    Example:
        >>> import tessera as ts
        >>> ts.device_put({"w": ts.ones(2), "b": 0.5}, "cpu")["w"].device
        Device(platform='cpu', index=0)
    """
    wanted = parse_device("device_put", device)
    found, treedef = flatten(x)
    return unflatten(treedef, [_put(leaf, wanted) for leaf in found])


def to_device(name: str, x: Any, wanted: Device) -> Any:
    """An array or a tracer on a device."""
    if isinstance(x, Tracer):
        if device_of(x) != wanted:
            raise DeviceError(
                f"{name}: a traced value of type {x.type.strong()} to {wanted}",
                loc=loc.current(),
                rule=f"inside `{x.trace.kind}` all values are on one device, {device_of(x)}",
                fix="move the arguments before the call, or the result after it",
            )
        return x
    return moved(x, wanted)


def _put(x: Any, wanted: Device) -> Any:
    if isinstance(x, ArrayBase):
        return to_device("device_put", x, wanted)
    from tessera.graph.namespace.conversion import asarray

    if not isinstance(x, (bool, int, float, complex, np.ndarray, np.generic)):
        raise LeafError(
            f"device_put: got a value of type {type(x).__name__}",
            loc=loc.current(),
            rule="leaves are arrays and numbers",
        )
    return asarray(x, device=wanted)


@api_boundary
def block_until_ready(x: Any, /) -> Any:
    """Waits until arrays are computed, and gives them back.

    Work on a GPU is only started by the functions that one calls; whatever needs the elements on
    the host waits by itself. This is for measuring time, and to see errors where they belong.

    Args:
        x: an array, or containers of arrays.
    """
    for leaf in leaves(x):
        if isinstance(leaf, Array) and isinstance(leaf.storage, Remote):
            leaf.storage.backend.wait(leaf.storage)
    return x


def adopted(x: Any, copy: bool | None) -> Array | None:
    """Another library's array on a device of ours, or None if it is on none."""
    for each in backends():
        found = each.adopt(x, copy)
        if found is not None:
            return Array(found)
    return None
