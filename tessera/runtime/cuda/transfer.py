"""Copies between host and device, and host memory that the device can read by itself.

Copies are queued in a stream. One to the device returns when the host's memory may be used again;
one to the host, when the data has arrived.
"""

from __future__ import annotations

import ctypes
import math
import threading
from collections import deque
from typing import Any

import numpy as np
import numpy.typing as npt

from tessera.errors import Location
from tessera.runtime.cuda import driver
from tessera.runtime.cuda.device import CudaDevice
from tessera.runtime.cuda.errors import CudaError
from tessera.runtime.cuda.memory import DeviceBuffer, show_bytes, size_class
from tessera.runtime.cuda.stream import Stream
from tessera.runtime.memory import aligned_empty, pointer

Data = npt.NDArray[Any]

_HOST_MEMORY = 1
_PORTABLE = 1
_BYTE = np.dtype(np.uint8)
_ndarray: Any = np.ndarray


def to_device(
    array: Data,
    device: CudaDevice,
    stream: Stream | None = None,
    place: Location | str | None = None,
) -> DeviceBuffer:
    """Copy an array's elements, in C order, to new memory on a device.

    Args:
        array: any layout; what is not contiguous is made so first.
        device: where to.
        stream: where the copy is queued.
        place: where the user asked for it.
    """
    stream = stream or device.current_stream
    source = np.ascontiguousarray(array)
    buffer = device.pool.allocate(source.nbytes, stream, place)
    write(buffer, source, stream)
    return buffer


def write(buffer: DeviceBuffer, array: Data, stream: Stream | None = None) -> None:
    """Copy a contiguous array into a buffer, which is as large or larger."""
    stream = stream or buffer.stream
    _check_size(buffer, array)
    if not array.nbytes:
        return
    buffer.use_on(stream)
    address = pointer(array)
    with buffer.device:
        driver.call(
            "cuMemcpyHtoDAsync",
            buffer.pointer,
            address,
            array.nbytes,
            stream.raw_handle,
            what=f"copy to {buffer.device}",
        )
    # Ordinary memory was read by the driver already. Pinned memory is read later, by the device.
    if is_pinned(address):
        stream.synchronize()


def to_host(
    buffer: DeviceBuffer,
    shape: tuple[int, ...],
    dtype: np.dtype[Any],
    stream: Stream | None = None,
) -> Data:
    """The first elements of a buffer, as a new array of the host; waits for them."""
    out = aligned_empty(shape, dtype)
    read(buffer, out, stream)
    return out


def read(buffer: DeviceBuffer, out: Data, stream: Stream | None = None, *, offset: int = 0) -> None:
    """Copy from a buffer, at a byte offset, into a contiguous array; waits for it.

    Ctrl-C ends the wait; then the content of the array is not defined.
    """
    stream = stream or buffer.stream
    _check_size(buffer, out, offset)
    if not out.nbytes:
        return
    buffer.use_on(stream)
    with buffer.device:
        driver.call(
            "cuMemcpyDtoHAsync",
            pointer(out),
            buffer.pointer + offset,
            out.nbytes,
            stream.raw_handle,
            what=f"copy from {buffer.device}",
        )
    try:
        stream.synchronize()
    except CudaError:
        raise
    except BaseException:  # Ctrl-C: the device may write to it yet
        buffer.device.pool.keep(out, stream)
        raise


def take_word(address: int, device: CudaDevice) -> int:
    """A word of 32 bits in the memory of a device, once what was started in its current stream is
    done; it is 0 then.
    """
    stream = device.current_stream
    # Of pinned memory: the driver copies to other memory by way of its own, and waits by itself.
    word = pinned.empty((1,), np.dtype(np.uint32), device)
    where = f"copy from {device}"
    with device:
        driver.call(
            "cuMemcpyDtoHAsync", pointer(word), address, word.nbytes, stream.raw_handle, what=where
        )
        try:
            stream.synchronize()
        except CudaError:
            raise
        except BaseException:  # Ctrl-C: the device may write to it yet
            device.pool.keep(word, stream)
            raise
        if word[0]:
            driver.call("cuMemsetD32Async", address, 0, 1, stream.raw_handle, what=where)
    return int(word[0])


def copy(target: DeviceBuffer, source: DeviceBuffer, stream: Stream | None = None) -> None:
    """Copy a buffer's content to another one of that size, also to another device's.

    Args:
        target: where to.
        source: from where.
        stream: of the target's device; by default the target's stream.
    """
    stream = stream or target.stream
    size = source.nbytes
    if target.nbytes < size:
        raise CudaError(f"copy of {size} bytes into a buffer of {target.nbytes}")
    if not size:
        return
    source.use_on(stream)
    target.use_on(stream)
    with target.device:
        if target.device is source.device:
            driver.call(
                "cuMemcpyDtoDAsync", target.pointer, source.pointer, size, stream.raw_handle
            )
        else:
            driver.call(
                "cuMemcpyPeerAsync",
                target.pointer,
                target.device.context,
                source.pointer,
                source.device.context,
                size,
                stream.raw_handle,
            )


def move(
    source: DeviceBuffer, device: CudaDevice, place: Location | str | None = None
) -> DeviceBuffer:
    """A copy of a buffer on a device, another one or the same."""
    target = device.pool.allocate(source.nbytes, place=place)
    copy(target, source)
    return target


def fill(buffer: DeviceBuffer, byte: int = 0, stream: Stream | None = None) -> None:
    """Set every byte of a buffer."""
    stream = stream or buffer.stream
    buffer.use_on(stream)
    if buffer.nbytes:
        with buffer.device:
            driver.call("cuMemsetD8Async", buffer.pointer, byte, buffer.nbytes, stream.raw_handle)


def is_pinned(address: int) -> bool:
    """Whether the device reads this memory of the host by itself."""
    api = driver.api()
    kind = api.CUpointer_attribute.CU_POINTER_ATTRIBUTE_MEMORY_TYPE
    status, *found = api.cuPointerGetAttribute(kind, address)
    return not int(status) and int(found[0]) == _HOST_MEMORY


class PinnedPool:
    """Memory of the host that devices copy from and to by themselves; it waits for its next use.

    Copies are about twice as fast as with ordinary memory. Getting it from the system is slow, and
    takes it from everybody else: blocks stay here when their last array is gone.

    Args:
        limit: how many bytes may wait.
    """

    def __init__(self, limit: int = 1 << 30) -> None:
        self.limit: int = limit
        self._lock = threading.RLock()
        self._returned: deque[tuple[int, int]] = deque()
        self._free: dict[int, list[int]] = {}
        self._bytes = 0
        self._types: dict[int, Any] = {}
        self._device: CudaDevice | None = None

    def empty(self, shape: tuple[int, ...], dtype: np.dtype[Any], device: CudaDevice) -> Data:
        """A new array, not initialised; its memory comes back when the last view is gone.

        Args:
            shape: of the array.
            dtype: of its elements.
            device: any device whose driver is asked; all of them can use the memory.
        """
        capacity = size_class(math.prod(shape) * dtype.itemsize)
        with self._lock:
            self._device = device
            self._sort_in()
            waiting = self._free.get(capacity)
            if waiting:
                address = waiting.pop()
                self._bytes -= capacity
            else:
                what = f"allocation of {show_bytes(capacity)} of pinned memory of the host"
                with device:
                    address = int(driver.call("cuMemHostAlloc", capacity, _PORTABLE, what=what))
            kind = self._types.get(capacity)
            if kind is None:
                kind = self._types[capacity] = self._block_type(capacity)
        return _ndarray(shape, dtype, kind.from_address(address))

    @property
    def waiting_bytes(self) -> int:
        """How many bytes wait for their next use."""
        with self._lock:
            self._sort_in()
            return self._bytes

    def release(self) -> None:
        """Give everything that waits back to the system."""
        with self._lock:
            self._sort_in()
            for capacity, addresses in self._free.items():
                for address in addresses:
                    self._drop(address)
                    self._bytes -= capacity
            self._free.clear()

    def _sort_in(self) -> None:
        while self._returned:
            try:
                address, capacity = self._returned.popleft()
            except IndexError:
                return
            if self._bytes + capacity > self.limit:
                self._drop(address)
                continue
            self._free.setdefault(capacity, []).append(address)
            self._bytes += capacity

    def _drop(self, address: int) -> None:
        assert self._device is not None
        with self._device:
            driver.call("cuMemFreeHost", address)

    def _block_type(self, capacity: int) -> Any:
        """The type of the memory under an array: NumPy keeps it until the last view is gone."""
        base: Any = ctypes.c_char * capacity
        returned = self._returned

        def finalize(block: Any) -> None:
            returned.append((ctypes.addressof(block), capacity))

        return type("PinnedBlock", (base,), {"__slots__": (), "__del__": finalize})


pinned = PinnedPool()
"""The pool of this process."""


def _check_size(buffer: DeviceBuffer, array: Data, offset: int = 0) -> None:
    if offset < 0 or offset + array.nbytes > buffer.nbytes:
        raise CudaError(
            f"copy of {array.nbytes} bytes at {offset} of a buffer of {buffer.nbytes} bytes"
        )
    if not array.flags.c_contiguous:
        raise CudaError("copy: the array of the host is not contiguous")
