"""CUDA devices: what they are, and their contexts.

Invariants:

1. There is one object per device in a process, and it uses the device's primary context, which
   other libraries share. The context is retained once and never released: the driver frees it when
   the process ends, after the last finalizer.
2. Whatever needs the context to be current makes it so for its own time (`with device:`), and
   leaves the thread as it was.
"""

from __future__ import annotations

import threading
from contextvars import ContextVar
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any

from tessera.graph.device import DeviceError
from tessera.ir.lazy import cached_property
from tessera.runtime.cuda import driver
from tessera.runtime.cuda.driver import Handle
from tessera.runtime.cuda.errors import CudaError
from tessera.target.gpu import GPUS, Gpu, gpu

if TYPE_CHECKING:
    from tessera.runtime.cuda.memory import DevicePool
    from tessera.runtime.cuda.stream import Event, Stream


@dataclass(frozen=True, slots=True)
class Limits:
    """What a device allows.

    Attributes:
        threads_per_block: of a launch.
        shared_per_block: bytes without opting in.
        shared_per_block_optin: bytes that a kernel may have that asks for them.
        shared_per_multiprocessor: bytes of all blocks of one together.
        registers_per_block: 32-bit registers.
        registers_per_multiprocessor: 32-bit registers.
        threads_per_multiprocessor: of all blocks of one together.
        l2: bytes of the second cache.
        clock: kHz of the multiprocessors.
    """

    threads_per_block: int
    shared_per_block: int
    shared_per_block_optin: int
    shared_per_multiprocessor: int
    registers_per_block: int
    registers_per_multiprocessor: int
    threads_per_multiprocessor: int
    l2: int
    clock: int


class CudaDevice:
    """A device; get one from `cuda_device`.

    Attributes:
        index: its number in this process.
        handle: the driver's.
        context: its primary context.
        name: as the vendor calls it.
        capability: major and minor number.
        multiprocessors: how many.
        memory: bytes.
    """

    def __init__(self, index: int) -> None:
        count = driver.device_count()
        if not 0 <= index < count:
            names = ", ".join(f"cuda:{i}" for i in range(count))
            raise DeviceError(
                f"cuda: there is no device cuda:{index}",
                rule=f"the CUDA devices of this process are {names or '(none)'}",
                fix="check CUDA_VISIBLE_DEVICES and nvidia-smi",
            )
        self.index: int = index
        self.handle: Any = driver.call("cuDeviceGet", index)
        name = driver.call("cuDeviceGetName", 256, self.handle)
        self.name: str = bytes(name).split(b"\0")[0].decode(errors="replace")
        major = self.attribute("COMPUTE_CAPABILITY_MAJOR")
        self.capability: tuple[int, int] = (major, self.attribute("COMPUTE_CAPABILITY_MINOR"))
        self.multiprocessors: int = self.attribute("MULTIPROCESSOR_COUNT")
        self.memory: int = int(driver.call("cuDeviceTotalMem", self.handle))
        self.context: Handle = int(
            driver.call("cuDevicePrimaryCtxRetain", self.handle, what=f"cuda:{index}")
        )
        # Bindings give handles as objects and take both; making them of numbers is not free.
        self._context: Any = driver.api().CUcontext(self.context)
        self._lock = threading.RLock()
        self._stream: Stream | None = None
        self._pool: DevicePool | None = None
        self._chosen: ContextVar[tuple[Stream, ...]] = ContextVar(f"cuda:{index}", default=())

    def attribute(self, name: str) -> int:
        """An attribute, by the driver's name without its prefix ``CU_DEVICE_ATTRIBUTE_``."""
        attribute = getattr(driver.api().CUdevice_attribute, f"CU_DEVICE_ATTRIBUTE_{name}")
        return int(driver.call("cuDeviceGetAttribute", attribute, self.handle))

    @cached_property
    def limits(self) -> Limits:
        """What it allows."""
        return Limits(
            threads_per_block=self.attribute("MAX_THREADS_PER_BLOCK"),
            shared_per_block=self.attribute("MAX_SHARED_MEMORY_PER_BLOCK"),
            shared_per_block_optin=self.attribute("MAX_SHARED_MEMORY_PER_BLOCK_OPTIN"),
            shared_per_multiprocessor=self.attribute("MAX_SHARED_MEMORY_PER_MULTIPROCESSOR"),
            registers_per_block=self.attribute("MAX_REGISTERS_PER_BLOCK"),
            registers_per_multiprocessor=self.attribute("MAX_REGISTERS_PER_MULTIPROCESSOR"),
            threads_per_multiprocessor=self.attribute("MAX_THREADS_PER_MULTIPROCESSOR"),
            l2=self.attribute("L2_CACHE_SIZE"),
            clock=self.attribute("CLOCK_RATE"),
        )

    @cached_property
    def machine(self) -> Gpu:
        """The machine to compile for. `runs_cubins` says whether code for it runs as it is.

        Raises:
            CudaError: The device is older than everything that there is a machine for.
        """
        return machine_for(self.capability)[0]

    @property
    def runs_cubins(self) -> bool:
        """Whether assembled code of its machine runs on it; if not, only the driver's assembler
        can make code for it, from PTX of the machine.
        """
        return machine_for(self.capability)[1]

    @property
    def stream(self) -> Stream:
        """The stream that work goes to where nothing else is said: one for all threads.

        So whatever is started first happens first, whichever thread started it.
        """
        found = self._stream
        if found is None:
            from tessera.runtime.cuda.stream import Stream

            with self._lock:
                found = self._stream
                if found is None:
                    found = self._stream = Stream(self)
        return found

    @property
    def current_stream(self) -> Stream:
        """The stream chosen by `with stream:` in this context, or the device's own."""
        chosen = self._chosen.get()
        return chosen[-1] if chosen else self._stream or self.stream

    @property
    def chosen(self) -> ContextVar[tuple[Stream, ...]]:
        """The streams of the `with stream:` blocks around the caller, innermost last."""
        return self._chosen

    @property
    def pool(self) -> DevicePool:
        """Its memory."""
        found = self._pool
        if found is None:
            from tessera.runtime.cuda.memory import DevicePool

            with self._lock:
                found = self._pool
                if found is None:
                    found = self._pool = DevicePool(self)
        return found

    def memory_info(self) -> tuple[int, int]:
        """Bytes that are free, and bytes in all; what pools hold counts as used."""
        with self:
            free, total = driver.call("cuMemGetInfo")
        return int(free), int(total)

    def synchronize(self) -> None:
        """Wait for all work on the device; Ctrl-C ends the wait, not the work."""
        event = self.record_all()
        if event is not None:
            event.synchronize()
        else:
            with self:
                driver.call("cuCtxSynchronize", what=f"work on {self}")
        self.pool.collect()

    def record_all(self) -> Event | None:
        """An event that is done when all work so far is, on streams of other libraries too; None
        where the driver has no such event.
        """
        from tessera.runtime.cuda.stream import Event

        event = Event(self)
        status = driver.status_of("cuCtxRecordEvent", self._context, event.handle)
        return None if status else event

    def __enter__(self) -> CudaDevice:
        """Make the device current for this thread."""
        driver.call("cuCtxPushCurrent", self._context)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        driver.status_of("cuCtxPopCurrent")

    def __repr__(self) -> str:
        return f"CudaDevice({self.index}, {self.name!r})"

    def __str__(self) -> str:
        return f"cuda:{self.index}"

    def __reduce__(self) -> tuple[Any, tuple[int]]:
        return cuda_device, (self.index,)


def machine_for(capability: tuple[int, int]) -> tuple[Gpu, bool]:
    """The machine to compile for on a device, and whether assembled code for it runs there.

    Of several, the exact one with its special features, else the exact one, else the nearest older
    minor number of the same generation, whose code runs. For a generation that is newer than all,
    the newest machine without special features, whose PTX the driver can assemble.

    >>> [str(machine_for(c)[0]) for c in ((9, 0), (8, 7), (10, 3), (14, 0))]
    ['sm_90a', 'sm_86', 'sm_100', 'sm_120']

    Raises:
        CudaError: The device is too old.
    """
    major, minor = capability
    for name in (f"sm_{major}{minor}a", f"sm_{major}{minor}"):
        if name in GPUS:
            return gpu(name), True
    plain = [row for row in map(gpu, GPUS) if not row.name.endswith("a")]
    same = [row for row in plain if row.capability[0] == major and row.capability[1] < minor]
    if same:
        return max(same, key=lambda row: row.capability), True
    older = [row for row in plain if row.capability < capability]
    if older:
        return max(older, key=lambda row: row.capability), False
    raise CudaError(
        f"cuda: devices of capability {major}.{minor} are not supported",
        rule=f"the oldest that code is written for is {plain[0].name}",
        fix="use a newer GPU, or the CPU",
    )


_devices: dict[int, CudaDevice] = {}
_devices_lock = threading.RLock()


def cuda_device(index: int = 0) -> CudaDevice:
    """The device of that number; starts the driver.

    Raises:
        NoDriverError: There is no driver or no device.
        DeviceError: There is no device of that number.
    """
    found = _devices.get(index)
    if found is None:
        with _devices_lock:
            found = _devices.get(index)
            if found is None:
                found = _devices[index] = CudaDevice(index)
    return found
