"""Programs on a device: assembled code that is loaded, its kernels, and the driver's assembler.

Invariants:

1. A program stays loaded while it or one of its kernels is referenced. The same code on the same
   device is loaded once.
2. A kernel knows its name and the place in the user's program that it comes from, also when only
   the driver's handle is left of it: errors find it by that.
"""

from __future__ import annotations

import ctypes
import hashlib
import sys
import threading
import weakref
from collections.abc import Callable
from typing import Any

from tessera.errors import Location
from tessera.ir.lazy import cached_property
from tessera.runtime.cuda import driver
from tessera.runtime.cuda.assemblers import Assembled
from tessera.runtime.cuda.device import CudaDevice
from tessera.runtime.cuda.driver import Handle
from tessera.runtime.cuda.errors import LaunchError

_LOG_BYTES = 1 << 16


class CudaModule:
    """A loaded program; get one from `load_cubin`.

    Args:
        device: where.
        cubin: assembled code.
        name: what messages call it.
    """

    def __init__(self, device: CudaDevice, cubin: bytes, name: str = "program") -> None:
        self.device = device
        self.name = name
        self._kernels: weakref.WeakValueDictionary[str, Kernel] = weakref.WeakValueDictionary()
        with device:
            self.raw_handle: Any = driver.call(
                "cuModuleLoadData", cubin, what=f"loading {name} on {device}"
            )
        self.handle: Handle = int(self.raw_handle)

    def kernel(
        self, name: str, *, shared: int = 0, place: Location | None = None, label: str = ""
    ) -> Kernel:
        """A kernel by the name of its entry.

        Args:
            name: in the code.
            shared: bytes of dynamic shared memory that its launches ask for at most.
            place: where in the user's program it comes from.
            label: what messages call it; by default its name.

        Raises:
            LaunchError: It cannot have so much shared memory.
        """
        found = self._kernels.get(name)
        if found is None:
            with self.device:
                handle = driver.call(
                    "cuModuleGetFunction",
                    self.raw_handle,
                    name.encode(),
                    what=f"{self.name}: kernel {name!r}",
                )
            found = Kernel(self, name, handle)
            self._kernels[name] = found
        if place is not None:
            found.place = place
        if label:
            found.label = label
        found.allow_shared(shared)
        return found

    def address(self, name: str) -> int:
        """Where a variable of the code lies in the memory of the device."""
        with self.device:
            found = driver.call(
                "cuModuleGetGlobal",
                self.raw_handle,
                name.encode(),
                what=f"{self.name}: variable {name!r}",
            )
        return int(found[0])

    def __del__(self, _ending: Callable[[], bool] = sys.is_finalizing) -> None:
        if not _ending() and hasattr(self, "handle"):
            # What was launched may run yet; unloading waits for it.
            driver.retire(self.device.context, "cuModuleUnload", self.handle)

    def __repr__(self) -> str:
        return f"CudaModule({self.name!r}, {self.device})"


class Kernel:
    """A kernel of a loaded program; get one from `CudaModule.kernel`.

    Attributes:
        module: which this keeps loaded.
        name: of its entry.
        label: what messages call it.
        handle: the driver's.
        place: where in the user's program it comes from.
    """

    def __init__(self, module: CudaModule, name: str, handle: Any) -> None:
        self.module = module
        self.device: CudaDevice = module.device
        self.name = name
        self.label = name
        self.raw_handle: Any = handle
        self.handle: Handle = int(handle)
        self.place: Location | None = None
        self._shared = 0
        _kernels[self.handle] = self

    def allow_shared(self, size: int) -> None:
        """Let launches ask for so many bytes of dynamic shared memory.

        Raises:
            LaunchError: The device has not so much for one block.
        """
        if size <= self._shared:
            return
        static = self.static_shared
        limit = self.device.limits.shared_per_block_optin
        if static + size > limit:
            raise LaunchError(
                f"kernel {self.label}: a block needs {static + size} bytes of shared memory",
                loc=self.place,
                rule=f"{self.device.name} gives a block {limit} bytes",
                fix="use smaller tiles, or fewer stages",
            )
        with self.device:
            driver.call(
                "cuFuncSetAttribute",
                self.raw_handle,
                driver.api().CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES,
                size,
                what=f"kernel {self.label}: {size} bytes of shared memory",
                loc=self.place,
            )
        self._shared = size

    def attribute(self, name: str) -> int:
        """An attribute, by the driver's name without its prefix ``CU_FUNC_ATTRIBUTE_``."""
        attribute = getattr(driver.api().CUfunction_attribute, f"CU_FUNC_ATTRIBUTE_{name}")
        with self.device:
            return int(driver.call("cuFuncGetAttribute", attribute, self.raw_handle))

    @cached_property
    def registers(self) -> int:
        """32-bit registers of a thread."""
        return self.attribute("NUM_REGS")

    @cached_property
    def static_shared(self) -> int:
        """Bytes of shared memory that the code itself declares."""
        return self.attribute("SHARED_SIZE_BYTES")

    @cached_property
    def local(self) -> int:
        """Bytes of local memory of a thread: spilled registers and arrays."""
        return self.attribute("LOCAL_SIZE_BYTES")

    @cached_property
    def max_threads(self) -> int:
        """Threads that a block can have at most, with its registers."""
        return self.attribute("MAX_THREADS_PER_BLOCK")

    def occupancy(self, threads: int, shared: int = 0) -> int:
        """Blocks that one multiprocessor runs at once.

        Args:
            threads: of a block.
            shared: bytes of dynamic shared memory of a block.
        """
        self.allow_shared(shared)
        with self.device:
            return int(
                driver.call(
                    "cuOccupancyMaxActiveBlocksPerMultiprocessor",
                    self.raw_handle,
                    threads,
                    shared,
                )
            )

    def __repr__(self) -> str:
        return f"Kernel({self.label!r}, {self.device})"


_kernels: weakref.WeakValueDictionary[Handle, Kernel] = weakref.WeakValueDictionary()
_modules: weakref.WeakValueDictionary[tuple[int, bytes], CudaModule] = weakref.WeakValueDictionary()
_lock = threading.RLock()


def kernel_at(handle: Handle) -> Kernel | None:
    """The kernel that the driver knows by a handle, if it is still referenced."""
    return _kernels.get(handle)


def load_cubin(device: CudaDevice, cubin: bytes, name: str = "program") -> CudaModule:
    """Load assembled code, or find it where it is loaded already.

    Raises:
        CudaError: The device cannot run it.
    """
    driver.drain()
    key = (device.index, hashlib.sha256(cubin).digest())
    with _lock:
        found = _modules.get(key)
        if found is None:
            found = _modules[key] = CudaModule(device, cubin, name)
    return found


class DriverAssembler:
    """The driver's own assembler, which makes code for one device.

    Args:
        device: which.

    Attributes:
        name: what settings call it.
    """

    name: str = "driver"

    def __init__(self, device: CudaDevice) -> None:
        self.device = device

    @property
    def version(self) -> str:
        """What code may depend on."""
        return f"{driver.driver_version()} {self.device.capability}"

    def __str__(self) -> str:
        return f"the driver of CUDA {driver.driver_version() // 1000}"

    def run(self, text: str, machine: str) -> Assembled:
        """Assemble PTX text. The code is for the device, whatever the machine in its text."""
        del machine  # the text names it, and the driver refuses one that the device is not
        data = text.encode() + b"\0"
        api = driver.api()
        option = api.CUjit_option
        info, errors = bytearray(_LOG_BYTES), bytearray(_LOG_BYTES)
        options: dict[Any, Any] = {
            option.CU_JIT_INFO_LOG_BUFFER: info,
            option.CU_JIT_INFO_LOG_BUFFER_SIZE_BYTES: len(info),
            option.CU_JIT_ERROR_LOG_BUFFER: errors,
            option.CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES: len(errors),
            option.CU_JIT_LOG_VERBOSE: 1,
            option.CU_JIT_GENERATE_LINE_INFO: 1,
        }
        with self.device:
            state = driver.call("cuLinkCreate", len(options), list(options), list(options.values()))
            try:
                status = driver.status_of(
                    "cuLinkAddData", state, api.CUjitInputType.CU_JIT_INPUT_PTX, data, len(data),
                    b"tessera.ptx", 0, [], [],
                )  # fmt: skip
                cubin = None
                if not status:
                    status, *found = api.cuLinkComplete(state)
                    if not int(status):
                        cubin = ctypes.string_at(int(found[0]), int(found[1]))
            finally:
                driver.status_of("cuLinkDestroy", state)
        log = _text(errors) + _text(info)
        if cubin is None and not log:
            log = f"ptxas fatal   : the driver gave status {int(status)}"
        return Assembled(cubin, log)


def _text(buffer: bytearray) -> str:
    return bytes(buffer).split(b"\0")[0].decode(errors="replace")
