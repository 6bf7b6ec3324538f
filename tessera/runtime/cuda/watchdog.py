"""Kernels that do not end: in debug mode each launch is waited for, and one that hangs is named."""

from __future__ import annotations

from tessera.config import Config
from tessera.runtime.cuda.device import CudaDevice
from tessera.runtime.cuda.driver import Handle
from tessera.runtime.cuda.errors import HangError
from tessera.runtime.cuda.module import kernel_at

_ANY = -1


def watch_microseconds(settings: Config) -> int:
    """How long native code waits after each launch, as `LaunchRecord.watch` says it."""
    if not settings.cuda_debug:
        return 0
    return int(settings.cuda_timeout * 1e6) or _ANY


def hang_error(device: CudaDevice, kernel: Handle, seconds: float) -> HangError:
    """The error for a kernel that did not end in its time."""
    found = kernel_at(kernel)
    return HangError(
        f"kernel {found.label if found else f'at {kernel:#x}'} on {device} has not ended in "
        f"{seconds:g} s",
        loc=found.place if found else None,
        rule="in debug mode a kernel may take config.cuda_timeout seconds",
        notes=[
            "likely cause: a wait for a barrier at which not all threads arrive, or for bytes that "
            "do not come; or a loop that does not end"
        ],
        fix="if the kernel is only slow, raise TESSERA_CUDA_TIMEOUT; if it hangs, only the end of "
        "this process stops it",
    )
