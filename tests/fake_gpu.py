"""A GPU that is none: memory of the host, and kernels that run in the simulator.

Everything above the driver is the real thing: the pipeline down to the kernels' Target IR, the
machine code of the host that launches them with packed parameters, arrays, eager ops and `jit`.
`fake_gpu()` puts it in the place of the CUDA backend for a while.
"""

from __future__ import annotations

import bisect
import ctypes
import functools
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from tessera.api import cuda_backend
from tessera.eager_remote import forget_programs
from tessera.graph.device import Device, install_backend
from tessera.graph.remote import Remote
from tessera.runtime.call import make_caller
from tessera.runtime.remote import Buffer, Code, Job, KernelCode, make_table
from tessera.target.gpu import Gpu, gpu
from tessera.target.simulate.run import run_kernel
from tessera.target.types import PtrType

_LAUNCH = ctypes.CFUNCTYPE(
    ctypes.c_int32, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int32, ctypes.c_int32,
    ctypes.c_void_p, ctypes.POINTER(ctypes.c_void_p),
)  # fmt: skip
_READ = ctypes.CFUNCTYPE(
    ctypes.c_int32, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_void_p
)

_COPY = ctypes.CFUNCTYPE(
    ctypes.c_int32, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p
)
_WAIT = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_int64, ctypes.c_void_p)

REFUSED = 701


class FakeBuffer:
    """Memory of the fake device: poisoned when it is new."""

    def __init__(self, memory: FakeMemory, nbytes: int) -> None:
        self._memory = memory
        raw = np.full(max(nbytes, 1) + 255, 0xFF, np.uint8)
        start = -raw.ctypes.data % 256
        self.data = raw[start : start + max(nbytes, 1)]
        self.pointer: int = self.data.ctypes.data
        self.nbytes = nbytes
        self.is_exported = False
        memory.add(self)

    def __del__(self) -> None:
        self._memory.remove(self)


class FakeMemory:
    """All buffers that are alive, by address."""

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._data: dict[int, np.ndarray] = {}

    def add(self, buffer: FakeBuffer) -> None:
        bisect.insort(self._starts, buffer.pointer)
        self._data[buffer.pointer] = buffer.data

    def remove(self, buffer: FakeBuffer) -> None:
        self._starts.remove(buffer.pointer)
        del self._data[buffer.pointer]

    def at(self, address: int) -> np.ndarray:
        """The bytes from an address on, to the end of their buffer; none at null, where an arena
        of no bytes is."""
        if not address:
            return np.empty(0, np.uint8)
        place = bisect.bisect_right(self._starts, address) - 1
        assert place >= 0, f"{address:#x} is no address of the device"
        start = self._starts[place]
        data = self._data[start]
        # Where a buffer ends, something empty may lie.
        assert address <= start + data.size, f"{address:#x} lies behind a buffer"
        return data[address - start :]

    @property
    def live(self) -> int:
        """How many buffers there are."""
        return len(self._starts)


class FakeBackend:
    """Devices that simulate a GPU.

    Args:
        machine: which.
        devices: how many.

    Attributes:
        launches: names of the kernels that ran, in order.
        reads: how many conditions were read back.
        copied: the copies to the host and back that ended, in order.
        refuse: a kernel whose launch fails.
    """

    def __init__(self, machine: Gpu, devices: int = 2) -> None:
        self.gpu = machine
        self.devices = devices
        self.memory = FakeMemory()
        self.launches: list[str] = []
        self.reads = 0
        self.refuse = ""
        self.waits = 0
        self.check = True
        self.kernels: list[KernelCode] = []
        self.error: BaseException | None = None
        self.told: list[Any] = []
        self._launch, self._read = _LAUNCH(self.launch), _READ(self.read)
        self._write = _READ(self.write)
        self.room = np.empty(0, np.uint8)
        self.copies: list[tuple[str, int, int, np.ndarray]] = []
        self.copied: list[str] = []
        self.ended = 0
        self._offload = _COPY(functools.partial(self.copy, "offload"))
        self._fetch = _COPY(functools.partial(self.copy, "fetch"))
        self._wait_for = _WAIT(self.wait_for)

    # --- devices and arrays ---

    def count(self) -> int:
        return self.devices

    def missing(self) -> str:
        return "" if self.devices else "there is no fake device"

    def machine(self, device: Device) -> Gpu:
        return self.gpu

    def put(self, data: np.ndarray, device: Device) -> Remote:
        buffer = FakeBuffer(self.memory, data.nbytes)
        buffer.data[: data.nbytes] = np.frombuffer(data.tobytes(), np.uint8)
        return Remote(self, device, buffer, buffer.pointer, data.shape, data.dtype)

    def get(self, data: Remote) -> np.ndarray:
        raw = self.memory.at(data.address)[: data.nbytes].copy() if data.size else np.empty(0, "u1")
        return raw.view(data.dtype).reshape(data.shape)

    def move(self, data: Remote, device: Device) -> Remote:
        return self.put(self.get(data), device)

    def is_private(self, data: Remote) -> bool:
        return isinstance(data.owner, FakeBuffer) and not data.owner.is_exported

    def wait(self, data: Remote) -> None:
        self.waits += 1

    def export_dlpack(self, data: Remote, options: dict[str, Any]) -> Any:
        raise BufferError("the fake device exports nothing")

    def dlpack_device(self, data: Remote) -> tuple[int, int]:
        return 2, data.device.index

    def interface(self, data: Remote) -> dict[str, Any]:
        if isinstance(data.owner, FakeBuffer):
            data.owner.is_exported = True
        return {
            "shape": data.shape, "typestr": data.dtype.str, "data": (data.address, True),
            "strides": None, "version": 3,
        }  # fmt: skip

    def adopt(self, x: Any, copy: bool | None) -> Remote | None:
        found = x.__cuda_array_interface__
        dtype = np.dtype(found["typestr"])
        return Remote(self, Device("cuda"), x, found["data"][0], tuple(found["shape"]), dtype)

    # --- programs ---

    def symbols(self) -> Mapping[str, int]:
        names: dict[str, Any] = {
            "tessera_cuda_launch": self._launch,
            "tessera_cuda_read": self._read,
            "tessera_cuda_write": self._write,
            "tessera_cuda_offload": self._offload,
            "tessera_cuda_fetch": self._fetch,
            "tessera_cuda_wait": self._wait_for,
        }
        return {name: ctypes.cast(f, ctypes.c_void_p).value or 0 for name, f in names.items()}

    def load(self, code: Code, main: int, device: Device) -> FakeCode:
        return FakeCode(self, code, main)

    def launch(
        self, handle: int, grid: int, threads: int, shared: int, record: int, params: Any
    ) -> int:
        try:
            kernel = self.kernels[handle - 1]
            assert (threads, shared) == (kernel.threads, kernel.shared)
            self.launches.append(kernel.name)
            if kernel.name == self.refuse:
                return REFUSED
            args: list[Any] = []
            for k, arg in enumerate(kernel.func.args):
                word = ctypes.c_int64.from_address(params[k]).value
                args.append(self.memory.at(word) if isinstance(arg.type, PtrType) else word)
            run_kernel(
                kernel.func, args, grid, machine=self.gpu, check=self.check, told=self.told
            )
        except BaseException as error:
            self.error = error
            return 1
        return 0

    def read(self, host: int, device: int, nbytes: int, record: int) -> int:
        self.reads += 1
        try:
            ctypes.memmove(host, self.memory.at(device).ctypes.data, nbytes)
        except BaseException as error:
            self.error = error
            return 1
        return 0

    def write(self, device: int, host: int, nbytes: int, record: int) -> int:
        try:
            ctypes.memmove(self.memory.at(device).ctypes.data, host, nbytes)
        except BaseException as error:
            self.error = error
            return 1
        return 0


    def copy(self, kind: str, device: int, at: int, nbytes: int, number: int, record: int) -> int:
        """A copy beside kernels happens as late as it may: when it is waited for."""
        try:
            data = self.memory.at(device)[:nbytes]
            assert data.size == nbytes
            assert at + nbytes <= self.room.size
            if kind == "fetch":
                data[...] = 0xFF
            self.copies.append((kind, number, at, data))
        except BaseException as error:
            self.error = error
            return 1
        return 0

    def wait_for(self, number: int, record: int) -> int:
        try:
            last = [number for _, number, _, _ in self.copies].index(number)
            for kind, _, at, data in self.copies[self.ended : last + 1]:
                self.ended += 1
                room = self.room[at : at + data.size]
                source, target = (data, room) if kind == "offload" else (room, data)
                target[...] = source
                self.copied.append(kind)
        except BaseException as error:
            self.error = error
            return 1
        return 0


class FakeCode:
    """A program on a fake device."""

    def __init__(self, backend: FakeBackend, code: Code, main: int) -> None:
        self._backend = backend
        first = len(backend.kernels) + 1
        backend.kernels += code.kernels
        self.table = make_table(code.kernels, range(first, first + len(code.kernels)))
        self._call = make_caller(main)
        self._host = code.host

    def allocate(self, nbytes: int) -> Buffer:
        return FakeBuffer(self._backend.memory, nbytes)

    def starter(self, job: Job) -> None:
        del job

    def told(self) -> int:
        found, self._backend.told = self._backend.told, []
        return 1 if found else 0

    def run(self, inputs: Sequence[Remote], words: Sequence[Any]) -> None:
        before = len(self._backend.launches)
        self._backend.room = np.full(self._host, 0xFF, np.uint8)
        self._backend.copies, self._backend.ended = [], 0
        self._call(0, *words)
        error, self._backend.error = self._backend.error, None
        if error is not None:
            raise error
        assert self._backend.ended == len(self._backend.copies), "a copy was not waited for"
        if self._backend.refuse in self._backend.launches[before:]:
            raise RuntimeError(f"launch of {self._backend.refuse} refused")


@contextmanager
def fake_gpu(name: str = "sm_90a", devices: int = 2) -> Generator[FakeBackend]:
    """Fake GPUs in the place of the machine's own within a `with` block."""
    found = FakeBackend(gpu(name), devices)
    install_backend("cuda", lambda: found)
    forget_programs()
    try:
        yield found
    finally:
        install_backend("cuda", cuda_backend)
        forget_programs()
