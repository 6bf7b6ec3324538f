"""The CUDA driver, through ``cuda.bindings``: started at the first need, its errors explained.

Invariants:

1. Importing this module loads neither the bindings nor the driver.
2. The driver is started once a process, under a lock. A child of fork, in which it cannot be used,
   gets a `ForkError` from every call.
3. Finalizers never call the driver: they leave what is to be freed with `retire`, and the next call
   that may wait frees it (`drain`).
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import importlib
import os
import threading
from collections import deque
from collections.abc import Sequence
from typing import Any, Final, NoReturn, TypeAlias

from tessera.errors import Location
from tessera.runtime.cuda.errors import (
    DriverVersionError,
    ForkError,
    NoDriverError,
    error_for,
)

Handle: TypeAlias = int
"""An object of the driver: the address that it goes by."""

# The first driver (CUDA version, 1000 * major + 10 * minor) that takes a version of PTX.
_PTX_VERSIONS: dict[tuple[int, int], int] = {
    (7, 0): 11000, (7, 1): 11010, (7, 2): 11020, (7, 3): 11030, (7, 4): 11040, (7, 5): 11050,
    (7, 6): 11060, (7, 7): 11070, (7, 8): 11080, (8, 0): 12000, (8, 1): 12010, (8, 2): 12020,
    (8, 3): 12030, (8, 4): 12040, (8, 5): 12050, (8, 6): 12070, (8, 7): 12080, (8, 8): 12090,
    (9, 0): 13000, (9, 1): 13010, (9, 2): 13020,
}  # fmt: skip

_OLDEST_DRIVER = 12000
_NOT_SUPPORTED = 801

_lock = threading.RLock()


class _State:
    """What this process knows of the driver."""

    def __init__(self) -> None:
        self.api: Any = None
        self.forked = False


_state = _State()

FORKED: Final = ctypes.c_int64(0)
"""Not 0 in a child of fork, for native code."""


def api() -> Any:
    """The module ``cuda.bindings.driver``, with the driver started.

    Raises:
        NoDriverError: There is no driver, no device, or no ``cuda.bindings``.
        DriverVersionError: The driver is too old.
        ForkError: This process is a child of one that had started the driver.
    """
    if _state.forked:
        raise _fork_error()
    found = _state.api
    return _start() if found is None else found


def available() -> bool:
    """Whether there is a driver with a device. False where not, whatever the reason.

    Where no driver is installed, this changes nothing in the process. Where one is, it is started,
    and children of fork cannot use it from then on.
    """
    if _state.forked or not library_exists():
        return False
    try:
        return device_count() > 0
    except (NoDriverError, DriverVersionError):
        return False


def started() -> bool:
    """Whether this process has started the driver, and may use it."""
    return _state.api is not None and not _state.forked


@functools.cache
def library_exists() -> bool:
    """Whether the driver's library is installed; loads it, and starts nothing."""
    return _library() is not None


def device_count() -> int:
    """How many devices the driver shows to this process."""
    return int(call("cuDeviceGetCount"))


def driver_version() -> int:
    """The newest CUDA that the driver takes: 1000 * major + 10 * minor."""
    return int(call("cuDriverGetVersion"))


def check_ptx(version: tuple[int, int]) -> None:
    """Refuse a version of PTX that the driver does not know.

    Raises:
        DriverVersionError: The driver is older.
    """
    needed = _PTX_VERSIONS.get(version)
    if needed is None:
        needed = 13020 if version > (9, 2) else 11000
    found = driver_version()
    if found < needed:
        raise DriverVersionError(
            f"the CUDA driver takes programs up to CUDA {_dotted(found)}, and PTX "
            f"{version[0]}.{version[1]} needs CUDA {_dotted(needed)}",
            rule="the driver compiles PTX that is no newer than itself",
            fix="install a newer NVIDIA driver, or assemble without it: "
            "config.update(assembler='nvjitlink')",
        )


def call(name: str, *args: Any, what: str = "", loc: Location | None = None) -> Any:
    """Call a function of the driver.

    Args:
        name: such as ``cuMemAlloc``.
        args: as ``cuda.bindings.driver`` takes them.
        what: what was being done, for an error's message; by default the function.
        loc: where the user asked for it.

    Returns:
        What it gives besides the status: None, a value, or a tuple of values.

    Raises:
        CudaError: It failed.
    """
    module = api()
    function = getattr(module, name, None)
    if function is None:
        raise DriverVersionError(
            f"cuda.bindings has no function {name}", fix="pip install -U cuda-bindings"
        )
    try:
        status, *values = function(*args)
    except RuntimeError as error:  # the bindings, of a function that the driver lacks
        raise DriverVersionError(
            f"{what or name}: {error}", loc=loc, fix="install a newer NVIDIA driver"
        ) from None
    if int(status):
        raise_status(int(status), what or name, loc=loc)
    if not values:
        return None
    return values[0] if len(values) == 1 else tuple(values)


def status_of(name: str, *args: Any) -> int:
    """Call a function of the driver, and give its status alone; "not supported" if it has none."""
    module = api()
    try:
        return int(getattr(module, name)(*args)[0])
    except (AttributeError, RuntimeError):
        return _NOT_SUPPORTED


def raise_status(
    status: int, what: str, *, loc: Location | None = None, notes: Sequence[str] = ()
) -> NoReturn:
    """Raise the error for a status."""
    raise error_for(status, what, describe=_describe, loc=loc, notes=notes)


def address(symbol: str) -> int:
    """The address of a function of the driver, for native code.

    Names carry their version where the driver has several: ``cuMemcpyDtoHAsync_v2``.
    """
    library = _library()
    if library is None:
        raise _no_driver("its library, libcuda.so.1, is not installed")
    try:
        found = ctypes.cast(getattr(library, symbol), ctypes.c_void_p).value
    except AttributeError:
        found = None
    if not found:
        raise DriverVersionError(
            f"the CUDA driver has no function {symbol}", fix="install a newer NVIDIA driver"
        )
    return found


_retired: deque[tuple[Handle, str, Any]] = deque()


def retire(context: Handle, function: str, argument: Any) -> None:
    """Leave something to be freed later; finalizers may call this at any point of any thread.

    Args:
        context: the one that it belongs to.
        function: what frees it, such as ``cuEventDestroy``.
        argument: what that takes.
    """
    _retired.append((context, function, argument))


def drain() -> None:
    """Free what finalizers left. Failures are ignored: nobody is there who could act on them."""
    if not _retired or not started():
        return
    module = _state.api
    while _retired:
        try:
            context, function, argument = _retired.popleft()
        except IndexError:
            return
        if int(module.cuCtxPushCurrent(context)[0]):
            continue
        try:
            getattr(module, function)(argument)
        finally:
            module.cuCtxPopCurrent()


def _start() -> Any:
    with _lock:
        if _state.api is not None:
            return _state.api
        if not library_exists():
            raise _no_driver("its library, libcuda.so.1, is not installed")
        try:
            module = importlib.import_module("cuda.bindings.driver")
        except ImportError as error:
            raise _no_driver(
                f"the package cuda-bindings cannot be imported ({error})",
                "pip install 'tessera[cuda]'",
            ) from None
        _initialize(module)
        _state.api = module
        with contextlib.suppress(AttributeError):
            os.register_at_fork(after_in_child=_after_fork)
        return module


def _initialize(module: Any) -> None:
    try:
        status = int(module.cuInit(0)[0])
        if status == 0:
            status, version = map(int, module.cuDriverGetVersion())
        else:
            version = 0
    except Exception as error:  # the bindings raise errors of their own kinds for a broken driver
        raise _no_driver(f"it cannot be loaded ({error})") from None
    if status:
        reason = {
            3: "it cannot be used here: this process is the child of one that uses it",
            100: "it finds no device",
            803: "it does not fit the kernel module that is loaded; reboot after an update",
            804: "it is a compatibility package that this device does not support",
        }.get(status, f"it does not start (cuInit gave {status})")
        raise _no_driver(reason)
    if version < _OLDEST_DRIVER:
        raise DriverVersionError(
            f"the CUDA driver is of CUDA {_dotted(version)}",
            rule=f"the oldest that is supported is CUDA {_dotted(_OLDEST_DRIVER)} (525)",
            fix="install a newer NVIDIA driver",
        )


@functools.cache
def _library() -> Any:
    for name in ("libcuda.so.1", "libcuda.so"):
        with contextlib.suppress(OSError):
            return ctypes.CDLL(name)
    return None


def _no_driver(
    reason: str, fix: str = "install the NVIDIA driver, or use the CPU: device='cpu'"
) -> NoDriverError:
    return NoDriverError(f"cuda: the NVIDIA driver cannot be used: {reason}", fix=fix)


def _fork_error() -> ForkError:
    return ForkError(
        "cuda: this process was forked from one that had started the CUDA driver",
        rule="CUDA does not work in a child of fork, nor does memory on a device exist there",
        fix="start processes by multiprocessing.get_context('spawn'), or use no device before fork",
    )


def _after_fork() -> None:
    _state.forked = True
    FORKED.value = 1
    _retired.clear()


def _describe(status: int) -> tuple[str, str]:
    """The driver's own name and description of a status."""
    module = _state.api
    if module is None:
        return f"CUDA error {status}", ""
    try:
        result = module.CUresult(status)
        name, text = module.cuGetErrorName(result)[1], module.cuGetErrorString(result)[1]
    except (ValueError, IndexError, RuntimeError):
        return f"CUDA error {status}", ""
    return _text(name) or f"CUDA error {status}", _text(text)


def _text(value: Any) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value or "")


def _dotted(version: int) -> str:
    return f"{version // 1000}.{version % 1000 // 10}"
