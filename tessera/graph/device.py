"""Where arrays live: devices, and which one is the default.

The host is always there. Other kinds of devices are added by `install_backend`, which the runtime
does; this layer knows them by what `Backend` says.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Generator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol

import numpy as np

from tessera.errors import TesseraError, api_boundary
from tessera.ir import loc

if TYPE_CHECKING:
    from tessera.graph.remote import Remote

__all__ = ["Device", "DeviceError", "device", "devices"]


class DeviceError(TesseraError, ValueError):
    """A device does not exist, or cannot hold the array, or arrays of two devices meet."""


@dataclass(frozen=True, slots=True)
class Device:
    """A device. There is one object per device in `devices()`; compare with `==`.

    Attributes:
        platform: the kind of device: `cpu` or `cuda`.
        index: its number among the devices of its kind.
    """

    platform: str
    index: int = 0

    def __str__(self) -> str:
        return self.platform if self.platform == "cpu" else f"{self.platform}:{self.index}"


CPU: Final = Device("cpu")
"""The host."""

_DEVICES: dict[tuple[str, int], Device] = {("cpu", 0): CPU}


def device_at(platform: str, index: int) -> Device:
    """The one object for a device: comparing with `is` finds equal ones sooner than `==`."""
    key = (platform, index)
    return _DEVICES.get(key) or _DEVICES.setdefault(key, Device(platform, index))


class Backend(Protocol):
    """What a kind of device does for arrays."""

    def count(self) -> int:
        """How many devices there are."""
        ...

    def missing(self) -> str:
        """Why there are none, as the end of a sentence: `there is no CUDA driver`."""
        ...

    def put(self, data: np.ndarray, device: Device) -> Remote:
        """Copies elements from the host; the caller may write to them again at once."""
        ...

    def get(self, data: Remote) -> np.ndarray:
        """Copies elements to the host, once they are computed."""
        ...

    def move(self, data: Remote, device: Device) -> Remote:
        """Copies elements to another device of this kind."""
        ...

    def is_private(self, data: Remote) -> bool:
        """Whether the memory is this backend's, was shown to no other library, and is used in the
        order in which work is started here and now."""
        ...

    def wait(self, data: Remote) -> None:
        """Returns once the elements are computed."""
        ...

    def export_dlpack(self, data: Remote, options: dict[str, Any]) -> Any:
        """A DLPack capsule; `options` are those of `__dlpack__`."""
        ...

    def dlpack_device(self, data: Remote) -> tuple[int, int]:
        """DLPack's numbers of the kind of device and of the device."""
        ...

    def interface(self, data: Remote) -> dict[str, Any]:
        """The `__cuda_array_interface__`."""
        ...

    def adopt(self, x: Any, copy: bool | None) -> Remote | None:
        """The elements of another library's array that is on such a device, shared where the
        layout allows; None if it is not on one.
        """
        ...


_LOADERS: dict[str, Callable[[], Backend]] = {}
_BACKENDS: dict[str, Backend] = {}


def install_backend(platform: str, load: Callable[[], Backend]) -> None:
    """Adds a kind of device.

    Args:
        platform: its name.
        load: makes the backend, when it is first asked for.
    """
    _LOADERS[platform] = load
    _BACKENDS.pop(platform, None)


def backend(platform: str) -> Any:
    """The backend of a kind of device."""
    found = _BACKENDS.get(platform)
    if found is None:
        found = _BACKENDS[platform] = _LOADERS[platform]()
    return found


def backends() -> list[Any]:
    """The backends of which there is a device."""
    return [b for b in map(backend, _LOADERS) if b.count()]


@api_boundary
def devices(platform: str | None = None) -> list[Device]:
    """The devices that arrays can live on.

    Args:
        platform: only those of one kind, `cpu` or `cuda`; the list is empty where there are none.

    Raises:
        DeviceError: there is no such kind.
    """
    if platform is not None and platform != "cpu" and platform not in _LOADERS:
        raise DeviceError(
            f"devices: there is no kind of device {platform!r}",
            loc=loc.current(),
            rule=f"the kinds are {', '.join(['cpu', *_LOADERS])}",
        )
    found = [CPU] if platform in (None, "cpu") else []
    for name in _LOADERS if platform is None else {platform} & set(_LOADERS):
        found += [device_at(name, k) for k in range(backend(name).count())]
    return found


# --- the default ------------------------------------------------------------------------------

DEFAULT: Final[ContextVar[Device]] = ContextVar("tessera.device", default=CPU)
"""The variable that has it."""

MOVED: Final = ctypes.c_int64()
"""Whether it ever was another one than the host, for native code: see `config.OVERRIDDEN`."""

default_device = DEFAULT.get
"""The device of arrays for which none was given."""


@contextmanager
def using(found: Device) -> Generator[Device]:
    """Makes a device the default one within a `with` block."""
    if found is not CPU:
        MOVED.value = 1
    token = DEFAULT.set(found)
    try:
        yield found
    finally:
        # An interruption may have kept it from its turn, until the blocks around had ended.
        if DEFAULT.get() is found:
            DEFAULT.reset(token)


@api_boundary
def device(name: Device | str) -> Any:
    """Makes a device the default one within a `with` block.

    New arrays are made there, and functions without array arguments run there. Functions of arrays
    run where the arrays are.

    Args:
        name: a device, or its name: "cpu", "cuda:0".

    Example:
        >>> import tessera as ts
        >>> with ts.device("cpu"):
        ...     x = ts.zeros(3)
        >>> x.device
        Device(platform='cpu', index=0)
    """
    return using(parse_device("device", name))


def parse_device(name: str, device: object) -> Device:
    """A `device` argument: a device, its name, or None for the default one."""
    if device is None:
        return DEFAULT.get()
    if device is CPU:
        return CPU
    kind, _, number = str(device).partition(":")
    index = int(number) if number.isdecimal() else (-1 if number else 0)
    if kind == "cpu" and not index:
        return CPU
    if kind in _LOADERS and index >= 0:
        return _checked(name, device_at(kind, index))
    raise DeviceError(
        f"{name}: there is no device {str(device)!r}",
        loc=loc.current(),
        rule=f"the devices are {', '.join(map(str, devices()))}",
    )


def _checked(name: str, found: Device) -> Device:
    """A device, if it exists."""
    kind = backend(found.platform)
    count = kind.count()
    if found.index < count:
        return found
    rule = f"the devices are {', '.join(map(str, devices()))}"
    raise DeviceError(
        f"{name}: there is no device {str(found)!r}" + ("" if count else f": {kind.missing()}"),
        loc=loc.current(),
        rule=rule,
        fix=None if count else "install what is missing, or leave the device out",
    )
