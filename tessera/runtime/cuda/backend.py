"""NVIDIA's GPUs as devices of arrays and of executables."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from tessera.dtypes import dtype_of
from tessera.graph.array import Array
from tessera.graph.device import Device, device_at
from tessera.graph.remote import Remote
from tessera.runtime.cuda import driver
from tessera.runtime.cuda.device import CudaDevice, cuda_device
from tessera.runtime.cuda.errors import CudaError, ForeignBufferError
from tessera.runtime.cuda.memory import DeviceBuffer
from tessera.runtime.remote import Buffer, Code, Job, LoadedCode, Starter, make_table
from tessera.target.gpu import Gpu
from tessera.target.ptx.collective import TOLD

if TYPE_CHECKING:
    from tessera.runtime.cuda.host_room import HostRooms

PLATFORM = "cuda"

_DLPACK_CPU = 1


class CudaBackend:
    """What the CUDA driver does for arrays and executables."""

    # --- devices ----------------------------------------------------------------------------

    def count(self) -> int:
        """How many devices there are."""
        return driver.device_count() if driver.available() else 0

    def missing(self) -> str:
        """Why there are none."""
        try:
            found = driver.device_count()
        except CudaError as error:
            return error.what.removeprefix("cuda: ")
        return "" if found else "the driver finds no device"

    def machine(self, device: Device) -> Gpu:
        """What to compile for."""
        return cuda_device(device.index).machine

    # --- arrays -----------------------------------------------------------------------------

    def _remote(
        self, device: Device, owner: DeviceBuffer, shape: tuple[int, ...], dtype: np.dtype[Any]
    ) -> Remote:
        return Remote(self, device, owner, owner.pointer, shape, dtype)

    def put(self, data: np.ndarray, device: Device) -> Remote:
        """Copies elements from the host."""
        from tessera.runtime.cuda.transfer import to_device

        owner = to_device(data, cuda_device(device.index))
        return self._remote(device, owner, data.shape, data.dtype)

    def get(self, data: Remote) -> np.ndarray:
        """Copies elements to the host, once they are computed."""
        from tessera.runtime.cuda.transfer import read
        from tessera.runtime.memory import aligned_empty

        owner = _owner(data)
        out = aligned_empty(data.shape, data.dtype)
        read(owner, out, offset=data.address - owner.pointer)
        return out

    def move(self, data: Remote, device: Device) -> Remote:
        """Copies elements to another GPU."""
        from tessera.runtime.cuda.transfer import move

        owner = _owner(data)
        copy = move(owner, cuda_device(device.index))
        address = copy.pointer + data.address - owner.pointer
        return Remote(self, device, copy, address, data.shape, data.dtype)

    def is_private(self, data: Remote) -> bool:
        """Whether it is memory of the pool, never exported, of the current stream: who waits for
        its elements, waits for the stream of the buffer alone."""
        owner = _owner(data)
        return owner.is_private and owner.stream is owner.device.current_stream

    def wait(self, data: Remote) -> None:
        """Returns once the elements are computed."""
        _owner(data).stream.synchronize()

    # --- other libraries --------------------------------------------------------------------

    def export_dlpack(self, data: Remote, options: dict[str, Any]) -> Any:
        """A DLPack capsule."""
        from tessera.runtime.cuda.exchange import to_dlpack

        wanted = options.get("dl_device")
        if wanted is not None and int(wanted[0]) == _DLPACK_CPU:
            return self._on_host(data, options)
        owner = _owner(data)
        offset = data.address - owner.pointer
        return to_dlpack(owner, dtype_of(data.dtype), data.shape, offset=offset, **options)

    def _on_host(self, data: Remote, options: dict[str, Any]) -> Any:
        """The same for a consumer that wants the elements on the host."""
        if options.get("copy") is False:
            raise ForeignBufferError(
                f"__dlpack__: copy=False for an array on {data.device}, on the host",
                rule="the host has the elements only as a copy",
            )
        return Array(self.get(data)).__dlpack__(max_version=options.get("max_version"))

    def dlpack_device(self, data: Remote) -> tuple[int, int]:
        """DLPack's numbers of the kind of device (kDLCUDA) and of the device."""
        return 2, data.device.index

    def interface(self, data: Remote) -> dict[str, Any]:
        """The `__cuda_array_interface__`."""
        from tessera.runtime.cuda.exchange import array_interface

        owner = _owner(data)
        offset = data.address - owner.pointer
        return array_interface(owner, dtype_of(data.dtype), data.shape, offset=offset)

    def adopt(self, x: Any, copy: bool | None) -> Remote | None:
        """Another library's array on a GPU."""
        from tessera.runtime.cuda.exchange import from_array_interface, from_dlpack, is_on_cuda

        if not is_on_cuda(x):
            return None
        take = from_dlpack if hasattr(x, "__dlpack_device__") else from_array_interface
        found = take(x, copy=copy)
        device = device_at(PLATFORM, found.buffer.device.index)
        return self._remote(device, found.buffer, found.shape, found.dtype.np)

    # --- programs ---------------------------------------------------------------------------

    def symbols(self) -> Mapping[str, int]:
        """The functions that native entries call."""
        from tessera.runtime.cuda.launch import native_symbols

        return native_symbols()

    def load(self, code: Code, main: int, device: Device) -> LoadedCode:
        """Loads a program."""
        return CudaCode(self, code, main, cuda_device(device.index))


def _owner(data: Remote) -> DeviceBuffer:
    assert isinstance(data.owner, DeviceBuffer)
    return data.owner


class CudaCode:
    """A program on a GPU.

    Args:
        backend: what its outputs refer to.
        code: the program.
        main: the address of its native entry.
        device: where.

    Attributes:
        table: what its native entry reads.
    """

    def __init__(self, backend: CudaBackend, code: Code, main: int, device: CudaDevice) -> None:
        from tessera.runtime.cuda.graphs import GraphProgram
        from tessera.runtime.cuda.module import DriverAssembler, load_cubin

        kernels = list(code.kernels)
        # Programs without kernels, which give back their inputs, have nothing to load.
        self._kernels: list[Any] = []
        self._word: int | None = None
        if kernels:
            cubin = code.cubin(DriverAssembler(device))
            module = load_cubin(device, cubin.data, code.name)
            self._kernels = [module.kernel(k.name, shared=k.shared, place=k.place) for k in kernels]
            self._word = module.address(TOLD) if code.sentinels else None
        self.table = make_table(kernels, [k.handle for k in self._kernels])
        self._backend = backend
        self._main = main
        self._device = device
        self._pool = device.pool
        program = GraphProgram(main, name=code.name, owner=(self._kernels, self.table))
        self._run = program.run
        self._rooms: HostRooms | None = None
        if code.copies:
            from tessera.runtime.cuda.host_room import HostRooms

            self._rooms = rooms = HostRooms(device, code.host, code.copies)
            self._run = functools.partial(rooms.run, program.program)

    def allocate(self, nbytes: int) -> Buffer:
        """New memory in the current stream."""
        return self._pool.allocate(nbytes)

    def starter(self, job: Job) -> Starter | None:
        """One native call in the place of `allocate` and `run`, for the device's own stream; none
        where the run needs memory of the host."""
        if self._rooms is not None:
            return None
        from tessera.runtime.cuda.starter import make_starter

        owner = (self._kernels, job.keep)
        return make_starter(self._main, job, self.table, self._device, self._backend, owner)

    def run(self, inputs: Sequence[Remote], words: Sequence[Any]) -> None:
        """Runs the native entry in the current stream."""
        stream = self._device.current_stream
        for x in inputs:
            owner: Any = x.owner
            owner.use_on(stream)  # nothing where it is the owner's own
        self._run(stream, words)

    def told(self) -> int:
        """The number of the sentinel that told of something first, or 0; waits."""
        if self._word is None:
            return 0
        from tessera.runtime.cuda.transfer import take_word

        return take_word(self._word, self._device)
