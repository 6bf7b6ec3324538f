"""Launching kernels: from Python one by one, and from native programs of many launches.

A native program is machine code of the host that starts kernels by itself: what `tile.launch`
becomes. Its entry is ``void main(ptr words)``, whose first word is the address of a `LaunchRecord`.
It calls three functions, whose addresses are in `native_symbols`:

    i32 tessera_cuda_launch(ptr kernel, i64 grid, i32 threads, i32 shared, ptr stream, ptr params)
    i32 tessera_cuda_read(ptr host, ptr device, i64 bytes, ptr stream)
    i32 tessera_cuda_write(ptr device, ptr host, i64 bytes, ptr stream)

``kernel`` is a `Kernel`'s handle, ``params`` points to the addresses of its parameters, and
``stream`` is that first word. The second copies to the host and waits, for predicates of loops and
arguments of host functions; the third copies from it and waits, for what these give. All give 0, or
what the driver answered; from then on launches, reads and writes of the run do nothing, reads give
zeros, and `NativeProgram.run` raises the error, with the kernel's name and the user's
line. So a program need not look at what they give, but a long loop should, so as to end early. A
launch of no blocks does nothing.

Programs that move buffers to the host call three more functions; see `host_room.py`.

``tessera_cuda_launch_with`` has two more arguments of type i32: blocks of a cluster, and whether
the kernel may start before the one before it has ended (programmatic dependent launch).
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from threading import get_ident
from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias

import numpy as np
import numpy.typing as npt

from tessera.config import Config, config
from tessera.runtime.cache import default_cache
from tessera.runtime.call import Caller, Word, make_caller
from tessera.runtime.codegen import Source
from tessera.runtime.cuda import driver
from tessera.runtime.cuda.errors import INTERRUPTED, TIMED_OUT, CudaError
from tessera.runtime.cuda.launcher_text import IMPORTS, LAUNCHER_TEXT
from tessera.runtime.cuda.memory import DeviceBuffer
from tessera.runtime.cuda.module import Kernel, kernel_at
from tessera.runtime.cuda.record import LaunchRecord, new_record
from tessera.runtime.cuda.watchdog import hang_error, watch_microseconds
from tessera.runtime.engine import Loaded, load
from tessera.target.machine import machine

if TYPE_CHECKING:
    from tessera.runtime.cuda.stream import Stream

Parameter: TypeAlias = int | DeviceBuffer | np.generic | bytes | npt.NDArray[Any]
"""A kernel's parameter: an integer stands for 64 bits, a buffer for its address, a NumPy scalar for
itself, and bytes or an array for a structure of that content."""

LAUNCH_SYMBOL = "tessera_cuda_launch"
LAUNCH_WITH_SYMBOL = "tessera_cuda_launch_with"
READ_SYMBOL = "tessera_cuda_read"
WRITE_SYMBOL = "tessera_cuda_write"
COPY_SYMBOLS = ("tessera_cuda_offload", "tessera_cuda_fetch", "tessera_cuda_wait")
RUN_SYMBOL = "tessera_cuda_run"
"""What runs a native program: ``void tessera_cuda_run(ptr words)``, whose words are the program's
address and what it gets."""
_MOST_RECORDS = 256


def load_launcher(addresses: Mapping[str, int]) -> Loaded:
    """The native side, over functions of a driver at these addresses."""
    source = Source(LAUNCHER_TEXT, machine("host"), "tessera.cuda.launch", unroll=False)
    return load(source, default_cache(), addresses)


@functools.cache
def _launcher() -> Loaded:
    driver.api()
    return load_launcher({name: driver.address(name) for name in IMPORTS})


def native_symbols() -> Mapping[str, int]:
    """The functions that native programs call, as imports for `runtime.engine.load`.

    They stay loaded for the life of the process.
    """
    found = _launcher().addresses
    names = (LAUNCH_SYMBOL, LAUNCH_WITH_SYMBOL, READ_SYMBOL, WRITE_SYMBOL, *COPY_SYMBOLS)
    return {name: found[name] for name in names}


def launcher() -> Loaded:
    """The native side, over the driver."""
    return _launcher()


@functools.cache
def _run() -> Caller:
    loaded = _launcher()
    return make_caller(loaded.addresses[RUN_SYMBOL], owner=loaded)


def kernel_table(kernels: Sequence[Kernel]) -> npt.NDArray[np.uint64]:
    """The handles of kernels in memory, for a native program that gets their address as a word.

    The caller keeps both the array and the kernels alive.
    """
    return np.array([kernel.handle for kernel in kernels], np.uint64)


class NativeProgram:
    """A native program, ready to run.

    Args:
        main: the address of its ``void main(ptr words)``.
        name: what a range of NVTX is called.
        owner: what keeps the code, its kernels, and what they refer to alive.
    """

    __slots__ = ("__weakref__", "_run", "main", "name", "owner")

    def __init__(self, main: int, *, name: str = "program", owner: object = None) -> None:
        self.main = main
        self.name = name
        self.owner = owner
        self._run = _run()

    def run(
        self,
        stream: Stream,
        words: Sequence[Word],
        settings: Config | None = None,
        room: int = 0,
    ) -> None:
        """Run it, which starts its kernels in a stream; does not wait for them.

        The device's context is current meanwhile, and other Python threads run.

        Args:
            stream: where.
            words: what it gets after the record: integers, or arrays of the host, which stand for
                their addresses.
            settings: the ones in force, from a caller who looked.
            room: what it copies with, if it does; see `tessera.runtime.cuda.host_room`.

        Raises:
            CudaError: A launch failed, or work that was started before it.
            HangError: In debug mode: a kernel did not end.
        """
        driver.api()  # refuses a child of fork
        record = stream.records.get(get_ident()) or record_of(stream)
        if room:
            record.room = room
        settings = settings or config.current()
        if settings.cuda_debug or settings.nvtx:
            record.watch = watch_microseconds(settings)
            with nvtx_range(self.name) if settings.nvtx else nullcontext():
                self._run(self.main, record.address, *words)
            # The next run need not look whether it is watched.
            limit, record.watch = record.watch, 0
            if record.status:
                raise_failure(record, limit)
            return
        self._run(self.main, record.address, *words)
        if record.status:
            raise_failure(record)


def run_program(main: int, stream: Stream, *words: Word, name: str = "program") -> None:
    """Run a native program once; see `NativeProgram`."""
    NativeProgram(main, name=name).run(stream, words)


def run_record(main: int, record: LaunchRecord, words: Sequence[Word]) -> None:
    """Run a native program with a record of the caller's own, for a capture."""
    _run()(main, record.address, *words)
    if record.status:
        raise_failure(record)


def record_of(stream: Stream) -> LaunchRecord:
    """This thread's record of a stream."""
    records = stream.records
    found = records.get(get_ident())
    if found is None:
        if len(records) >= _MOST_RECORDS:
            # Of threads that are gone; who runs meanwhile has a reference to its own.
            records.clear()
        found = records[get_ident()] = new_record(stream)
    return found


def raise_failure(record: LaunchRecord, limit: int = 0) -> NoReturn:
    """Raise the error that a record tells of, and clear it.

    Args:
        record: whose status is not 0.
        limit: the microseconds that a kernel could take.
    """
    status, failed = record.status, record.failed & (1 << 64) - 1
    record.status = record.failed = 0
    if status == INTERRUPTED:
        _raise_fetched(record)
    if status == TIMED_OUT:
        raise hang_error(record.owner.device, failed, limit / 1e6)
    kernel = kernel_at(failed) if failed else None
    if failed:
        raise launch_error(
            status, kernel, (record.grid, 1, 1), (record.threads, 1, 1), record.shared
        )
    last = kernel_at(record.last & (1 << 64) - 1)
    notes = ["this is reported by a later call: what failed was started before"]
    if last is not None:
        notes.append(f"the last kernel that was launched is {last.label}")
    driver.raise_status(
        status,
        f"work on {record.owner.device}",
        loc=last.place if last else None,
        notes=notes,
    )


def _raise_fetched(record: LaunchRecord) -> NoReturn:
    """Raise what the handler of a signal raised."""
    restore = ctypes.pythonapi["PyErr_Restore"]
    restore.argtypes, restore.restype = (ctypes.c_void_p,) * 3, None
    parts = record.error_type, record.error_value, record.error_trace
    record.error_type = record.error_value = record.error_trace = 0
    # Functions of pythonapi raise the error that is set when they return.
    restore(*(part & (1 << 64) - 1 for part in parts))
    raise KeyboardInterrupt


def launch_error(
    status: int,
    kernel: Kernel | None,
    grid: Sequence[int],
    block: Sequence[int],
    shared: int,
) -> CudaError:
    """The error for a launch that was refused, or whose kernel failed, with likely causes."""
    label = kernel.label if kernel else "(unloaded)"
    notes = [
        f"grid {' x '.join(map(str, grid))}, block {' x '.join(map(str, block))}, "
        f"{shared} bytes of dynamic shared memory"
    ]
    if kernel is not None:
        notes += _suspicions(kernel, grid, block, shared)
    try:
        driver.raise_status(
            status, f"launch of kernel {label}", loc=kernel.place if kernel else None, notes=notes
        )
    except CudaError as error:
        return error


def _suspicions(
    kernel: Kernel, grid: Sequence[int], block: Sequence[int], shared: int
) -> list[str]:
    """What about a launch exceeds its device."""
    threads = block[0] * block[1] * block[2]
    try:
        limits = kernel.device.limits
        found: list[str] = []
        if grid[0] > (1 << 31) - 1 or max(grid[1:]) > 65535:
            found.append("the grid is larger than 2147483647 x 65535 x 65535 blocks")
        if threads > limits.threads_per_block:
            found.append(f"a block has at most {limits.threads_per_block} threads")
        elif threads > kernel.max_threads:
            found.append(
                f"with its {kernel.registers} registers a thread, a block of this kernel has at "
                f"most {kernel.max_threads} threads"
            )
        if shared + kernel.static_shared > limits.shared_per_block_optin:
            found.append(f"a block has at most {limits.shared_per_block_optin} bytes")
        return found
    except CudaError:  # after an error that broke the context, nothing answers
        return []


def launch(
    kernel: Kernel,
    grid: int | Sequence[int],
    block: int | Sequence[int],
    parameters: Sequence[Parameter],
    *,
    shared: int = 0,
    stream: Stream | None = None,
    cluster: int = 1,
    overlap: bool = False,
) -> None:
    """Launch one kernel.

    Args:
        kernel: which.
        grid: blocks, up to three numbers; with a 0 among them nothing is launched.
        block: threads of a block, up to three numbers.
        parameters: in order; see `Parameter`.
        shared: bytes of dynamic shared memory.
        stream: where; by default the device's current stream.
        cluster: blocks of a cluster, along the first axis.
        overlap: whether it may start before the kernel before it has ended.

    Raises:
        CudaError: The driver refuses it.
    """
    device = kernel.device
    stream = stream or device.current_stream
    grids, blocks = _three(grid), _three(block)
    if 0 in grids:
        return
    kernel.allow_shared(shared)
    for parameter in parameters:
        if isinstance(parameter, DeviceBuffer):
            parameter.use_on(stream)
    packed = PackedParameters(parameters)
    with device:
        if cluster > 1 or overlap:
            status = driver.status_of(
                "cuLaunchKernelEx",
                _config(grids, blocks, shared, stream, cluster, overlap),
                kernel.raw_handle,
                packed.address,
                0,
            )
        else:
            status = driver.status_of(
                "cuLaunchKernel", kernel.raw_handle, *grids, *blocks, shared, stream.raw_handle,
                packed.address, 0,
            )  # fmt: skip
    if status:
        raise launch_error(status, kernel, grids, blocks, shared)


class PackedParameters:
    """Parameters in memory, as the driver takes them.

    Attributes:
        address: of the array of their addresses.
    """

    __slots__ = ("_values", "_words", "address")

    def __init__(self, parameters: Sequence[Parameter]) -> None:
        # Tensor maps lie at multiples of 64 bytes.
        values = [_bytes(parameter) for parameter in parameters]
        sizes = [-(-len(value) // 64) * 64 for value in values]
        self._values = np.zeros(sum(sizes) + 64, np.uint8)
        base = self._values.ctypes.data
        at = -base % 64
        addresses: list[int] = []
        for value, size in zip(values, sizes, strict=True):
            self._values[at : at + len(value)] = np.frombuffer(value, np.uint8)
            addresses.append(base + at)
            at += size
        self._words = np.array(addresses or [0], np.uint64)
        self.address: int = self._words.ctypes.data


def _bytes(parameter: Parameter) -> bytes:
    if isinstance(parameter, bytes):
        return parameter
    if isinstance(parameter, np.ndarray | np.generic):
        return parameter.tobytes()
    word = parameter if isinstance(parameter, int) else parameter.pointer
    return (word & (1 << 64) - 1).to_bytes(8, "little")


def _three(numbers: int | Sequence[int]) -> tuple[int, int, int]:
    found = (numbers,) if isinstance(numbers, int) else tuple(numbers)
    x, y, z = (*found, 1, 1, 1)[:3]
    return x, y, z


def _config(
    grid: tuple[int, int, int],
    block: tuple[int, int, int],
    shared: int,
    stream: Stream,
    cluster: int,
    overlap: bool,
) -> Any:
    api = driver.api()
    ids = api.CUlaunchAttributeID
    attributes: list[Any] = []
    if cluster > 1:
        attribute = api.CUlaunchAttribute()
        attribute.id = ids.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
        size = attribute.value.clusterDim
        size.x, size.y, size.z = cluster, 1, 1
        attributes.append(attribute)
    if overlap:
        attribute = api.CUlaunchAttribute()
        attribute.id = ids.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
        attribute.value.programmaticStreamSerializationAllowed = 1
        attributes.append(attribute)
    config = api.CUlaunchConfig()
    config.gridDimX, config.gridDimY, config.gridDimZ = grid
    config.blockDimX, config.blockDimY, config.blockDimZ = block
    config.sharedMemBytes = shared
    config.hStream = stream.raw_handle
    config.attrs = attributes
    config.numAttrs = len(attributes)
    return config


def nvtx_range(name: str) -> AbstractContextManager[Any]:
    """A range that profilers show, if the package ``nvtx`` is installed."""
    module = _nvtx()
    return nullcontext() if module is None else module.annotate(name, domain="tessera")


@functools.cache
def _nvtx() -> Any:
    import importlib

    try:
        return importlib.import_module("nvtx")
    except ImportError:
        return None


__all__ = [
    "COPY_SYMBOLS",
    "LAUNCH_SYMBOL",
    "LAUNCH_WITH_SYMBOL",
    "READ_SYMBOL",
    "RUN_SYMBOL",
    "WRITE_SYMBOL",
    "NativeProgram",
    "PackedParameters",
    "Parameter",
    "kernel_table",
    "launch",
    "launch_error",
    "launcher",
    "load_launcher",
    "native_symbols",
    "nvtx_range",
    "raise_failure",
    "record_of",
    "run_program",
    "run_record",
]
