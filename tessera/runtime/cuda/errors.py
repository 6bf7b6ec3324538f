"""Errors of the CUDA driver: what each status means, what causes it as a rule, and what helps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from tessera.errors import Location, TesseraError
from tessera.graph.device import DeviceError


class CudaError(TesseraError, RuntimeError):
    """The CUDA driver refused something, or failed.

    Attributes:
        status: the driver's number of the error; 0 if it is none of the driver's.
        name: the driver's name of it.
    """

    status: int = 0
    name: str = ""


class NoDriverError(CudaError, DeviceError):
    """There is no CUDA driver, or no device that it can use."""


class DriverVersionError(CudaError):
    """The CUDA driver is older than what is asked of it."""


class ForkError(CudaError):
    """CUDA was used in a child of fork."""


class DeviceMemoryError(CudaError, MemoryError):
    """The device has no memory left."""


class LaunchError(CudaError):
    """A kernel could not be launched, or failed while it ran."""


class HangError(CudaError):
    """A kernel did not end in the time that it was given."""


class ForeignBufferError(CudaError, BufferError):
    """Memory of another library cannot be used in the way that was asked for."""


@dataclass(frozen=True, slots=True)
class Explanation:
    """What a status means to a user.

    Attributes:
        meaning: in one clause.
        cause: the likeliest one.
        fix: what to do.
        kind: the error's class.
    """

    meaning: str
    cause: str
    fix: str
    kind: type[CudaError] = CudaError


_WAIT = "run with TESSERA_CUDA_DEBUG=1, which waits after each launch and so names the kernel"
_RESTART = f"{_WAIT}; CUDA cannot be used again in this process"

INTERRUPTED: Final = -1
"""Status of a native program during which the handler of a signal raised an error."""

TIMED_OUT: Final = -2
"""Status of a native program whose kernel did not end in time."""

EXPLANATIONS: dict[int, Explanation] = {
    1: Explanation(
        "an argument is not valid",
        "a launch beyond the device's limits, or an address that is none of the device's",
        "look at the numbers in this message; if they are right, report this as a defect",
    ),
    2: Explanation(
        "the device has no memory left",
        "live arrays, and memory that other libraries and processes hold on the same device",
        "drop arrays that are no longer needed, use smaller batches, or free what others hold",
        DeviceMemoryError,
    ),
    3: Explanation(
        "the driver is not started in this process",
        "a child of fork",
        "start processes by multiprocessing.get_context('spawn')",
        ForkError,
    ),
    4: Explanation(
        "the driver is shutting down",
        "work on a device while the interpreter exits",
        "finish the work before the program ends",
    ),
    100: Explanation(
        "there is no device",
        "CUDA_VISIBLE_DEVICES hides them, or the container was given none",
        "check nvidia-smi and CUDA_VISIBLE_DEVICES",
        NoDriverError,
    ),
    101: Explanation(
        "there is no device of this number",
        "CUDA_VISIBLE_DEVICES renumbers the devices that it leaves",
        "use one of ts.devices()",
        NoDriverError,
    ),
    200: Explanation(
        "the code is no program that the device can load",
        "a cubin for another GPU, or a damaged one",
        "clear the cache (config.cache_dir) and compile again",
    ),
    201: Explanation(
        "no context of the device is current",
        "the device was reset by other code in this process (cuDevicePrimaryCtxReset)",
        "do not reset devices while arrays live on them",
    ),
    209: Explanation(
        "the code holds nothing for this GPU",
        "a cubin that was made for another one",
        "compile for the device's own capability",
    ),
    218: Explanation(
        "the driver's assembler rejects the PTX text",
        "an instruction that this GPU or this PTX version lacks",
        "report this as a defect, with the text that config.dump='ptx' writes",
    ),
    222: Explanation(
        "the PTX text is of a version newer than the driver",
        "an old driver",
        "install a newer NVIDIA driver, or assemble with config.update(assembler='nvjitlink')",
        DriverVersionError,
    ),
    301: Explanation(
        "a file was not found", "a library of the driver is missing", "reinstall the driver"
    ),
    400: Explanation(
        "a handle is not valid",
        "a stream, event or kernel that was destroyed, or belongs to another device",
        "keep streams alive while work is queued on them",
    ),
    500: Explanation(
        "a name was not found",
        "the program has no kernel of this name",
        "clear the cache (config.cache_dir) and compile again",
    ),
    700: Explanation(
        "a kernel accessed memory at an address that is not its own",
        "an index out of range, memory that was freed, or a pointer of the host",
        f"{_RESTART}; compute-sanitizer shows the access",
        LaunchError,
    ),
    701: Explanation(
        "a launch needs more than a multiprocessor has",
        "too many registers for so many threads, or too much shared memory",
        "use fewer warps or smaller tiles",
        LaunchError,
    ),
    702: Explanation(
        "a kernel ran longer than the system allows",
        "a device that also drives a display, or a kernel that hangs",
        _RESTART,
        LaunchError,
    ),
    709: Explanation(
        "the context was destroyed",
        "other code in this process reset the device",
        "do not reset devices while arrays live on them",
    ),
    710: Explanation(
        "an assertion in a kernel failed", "the condition did not hold", _RESTART, LaunchError
    ),
    714: Explanation(
        "the hardware's stack of a kernel broke", "damaged memory", _RESTART, LaunchError
    ),
    715: Explanation(
        "a kernel met an instruction that is none",
        "code for another GPU, or damaged code",
        _RESTART,
        LaunchError,
    ),
    716: Explanation(
        "a kernel accessed memory at an address that is not aligned",
        "memory of another library that is not aligned to the vectors that are read",
        f"{_RESTART}; copy foreign arrays first",
        LaunchError,
    ),
    717: Explanation(
        "a kernel used an address in the wrong memory space", "a defect", _RESTART, LaunchError
    ),
    718: Explanation("a kernel ran off its code", "damaged memory", _RESTART, LaunchError),
    719: Explanation(
        "a kernel failed while it ran",
        "an access out of range, often to shared memory, or a trap",
        f"{_RESTART}; compute-sanitizer shows the access",
        LaunchError,
    ),
    720: Explanation(
        "a cooperative launch is too large",
        "more blocks than run at once",
        "use fewer blocks",
        LaunchError,
    ),
    801: Explanation(
        "the operation is not supported",
        "a device or driver without this feature",
        "see the name of the function in this message",
    ),
    802: Explanation(
        "the system is not ready",
        "the fabric manager of a machine with NVSwitch does not run",
        "start nvidia-fabricmanager",
    ),
    805: Explanation(
        "the MPS server is not reachable",
        "it was stopped",
        "restart nvidia-cuda-mps-control",
    ),
    900: Explanation(
        "a stream that is being captured cannot do this",
        "an allocation or a wait inside a capture",
        "leave config.cuda_graphs at 0 for this program",
    ),
    901: Explanation(
        "an earlier error spoilt the capture of a graph",
        "see the error before this one",
        "leave config.cuda_graphs at 0 for this program",
    ),
    906: Explanation(
        "the legacy stream cannot be used while a graph is captured",
        "other code in this process that uses the default stream",
        "leave config.cuda_graphs at 0",
    ),
    999: Explanation(
        "the driver failed for a reason that it does not know",
        "a broken installation or a device that fell off the bus",
        "check nvidia-smi and the system's log",
    ),
}
"""By status. What is missing is explained by the driver's own words."""


def error_for(
    status: int,
    what: str,
    *,
    describe: Callable[[int], tuple[str, str]],
    loc: Location | None = None,
    notes: Sequence[str] = (),
) -> CudaError:
    """The error for a status of the driver.

    Args:
        status: not 0.
        what: what was being done.
        describe: gives the driver's name and description of a status.
        loc: where the user asked for it.
        notes: further lines.
    """
    name, text = describe(status)
    found = EXPLANATIONS.get(status)
    meaning = found.meaning if found else text or "the driver does not say more"
    lines = [*notes]
    if found:
        lines.append(f"likely cause: {found.cause}")
    error = (found.kind if found else CudaError)(
        f"{what}: {meaning} ({name}, {status})",
        loc=loc,
        notes=lines,
        fix=found.fix if found else None,
    )
    error.status, error.name = status, name
    return error
