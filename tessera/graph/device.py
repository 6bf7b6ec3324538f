"""Where arrays live."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from tessera.errors import TesseraError
from tessera.ir import loc

__all__ = ["Device", "DeviceError"]


class DeviceError(TesseraError, ValueError):
    """A device does not exist, or cannot hold the array."""


@dataclass(frozen=True, slots=True)
class Device:
    """A device. There is one object per device in `devices()`; compare with `==`.

    Attributes:
        platform: the kind of device, `cpu`.
        index: its number among the devices of its kind.
    """

    platform: str
    index: int = 0

    def __str__(self) -> str:
        return self.platform if self.index == 0 else f"{self.platform}:{self.index}"


CPU: Final = Device("cpu")
"""The host."""


def devices() -> list[Device]:
    """The devices that arrays can live on."""
    return [CPU]


def parse_device(name: str, device: object) -> Device:
    """A `device` argument: a device, its name, or None for the default one."""
    if device is None or device is CPU or str(device) in ("cpu", "cpu:0"):
        return CPU
    raise DeviceError(
        f"{name}: there is no device {str(device)!r}",
        loc=loc.current(),
        rule=f"the devices are {', '.join(map(str, devices()))}",
    )
