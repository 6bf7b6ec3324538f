"""Device memory to and from other libraries: DLPack and ``__cuda_array_interface__``.

Nothing is copied, and nobody waits on the host: whoever takes memory makes its stream wait for the
stream of whoever gave it. Memory that was given away is not used again before everything has ended
that runs on the device when it comes back; memory that was taken is let go of only after our work
on it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tessera.dtypes import DType, dtype_of
from tessera.errors import TesseraError
from tessera.graph.device import DeviceError
from tessera.runtime.cuda import driver
from tessera.runtime.cuda.capsule import (
    CUDA,
    CUDA_HOST,
    CUDA_MANAGED,
    IS_COPIED,
    READ_ONLY,
    ImportedTensor,
    dtype_code,
    make_capsule,
    version_is_enough,
)
from tessera.runtime.cuda.device import CudaDevice, cuda_device
from tessera.runtime.cuda.errors import ForeignBufferError
from tessera.runtime.cuda.memory import DeviceBuffer
from tessera.runtime.cuda.stream import LEGACY_STREAM, Stream
from tessera.runtime.cuda.transfer import read, to_device

VECTOR_ALIGNMENT = 16
"""Kernels read whole vectors of up to so many bytes: where memory starts matters to them."""

_NO_ORDER = -1
_HOST = 1  # CUmemorytype
_BYTE = np.dtype(np.uint8)


@dataclass(frozen=True, slots=True)
class Foreign:
    """Elements in memory that another library made.

    Attributes:
        buffer: the memory from the first element on; it keeps the owner alive.
        dtype: of the elements.
        shape: the extents.
        strides: in elements; None for row-major order without gaps.
        read_only: whether the owner wants nobody to write to it.
    """

    buffer: DeviceBuffer
    dtype: DType
    shape: tuple[int, ...]
    strides: tuple[int, ...] | None
    read_only: bool


# --- giving ---------------------------------------------------------------------------------------


def to_dlpack(
    buffer: DeviceBuffer,
    dtype: DType,
    shape: Sequence[int],
    *,
    offset: int = 0,
    stream: Any = None,
    max_version: tuple[int, int] | None = None,
    dl_device: tuple[Any, int] | None = None,
    copy: bool | None = None,
) -> Any:
    """What ``__dlpack__`` gives for row-major elements in a buffer. They are immutable: consumers
    of DLPack before 1.0, which cannot be told so, get a copy.

    Args:
        buffer: the memory.
        dtype: of the elements.
        shape: the extents.
        offset: bytes before the first element.
        stream: the consumer's, as the protocol says: None or 1 for the legacy default stream, 2 for
            the per-thread one, -1 for no order at all, otherwise an address.
        max_version: the newest DLPack that the consumer knows.
        dl_device: where the consumer wants the elements; only where they are is possible here. The
            caller serves the host by itself.
        copy: whether they are to be copied; None: if need be.

    Raises:
        ForeignBufferError: Not with these arguments.
    """
    device = buffer.device
    if dl_device is not None and (int(dl_device[0]), dl_device[1]) != (CUDA, device.index):
        raise ForeignBufferError(
            f"__dlpack__: an array on {device} for the DLPack device {tuple(dl_device)}",
            rule="an array is given to the device that it is on",
            fix="move it first: ts.device_put(x, device)",
        )
    dtype_code(dtype)  # refuses what there is no code for
    if not version_is_enough(dtype, max_version):
        raise ForeignBufferError(
            f"__dlpack__: an array of dtype {dtype.full_name}",
            rule="DLPack has this dtype since version 1.1, and the consumer asks for "
            + ("an older one" if max_version is None else str(max_version)),
            fix="convert it to `ts.float32` first",
        )
    versioned = max_version is not None and max_version[0] >= 1
    if not versioned and copy is False:
        raise ForeignBufferError(
            "__dlpack__: copy=False for a consumer of DLPack before 1.0",
            rule="arrays are immutable, and old DLPack has no way to say so",
            fix="leave copy out, or pass max_version=(1, 0)",
        )
    flags = READ_ONLY
    if copy or not versioned:
        buffer, offset, flags = _copied(buffer, offset, math.prod(shape) * dtype.itemsize)
    order_consumer(buffer, stream)
    return make_capsule(
        buffer.pointer + offset,
        (CUDA, device.index),
        dtype,
        shape,
        _row_major(shape),
        buffer,
        versioned=versioned,
        flags=flags,
    )


def order_consumer(buffer: DeviceBuffer, stream: Any) -> None:
    """Let another library's stream wait for a buffer; see `to_dlpack` about the stream."""
    buffer.export()
    if stream is None:
        stream = LEGACY_STREAM
    if not isinstance(stream, int) or isinstance(stream, bool) or stream == 0 or stream < _NO_ORDER:
        raise ForeignBufferError(
            f"__dlpack__: the stream {stream!r}",
            rule="a stream is None, 1 (legacy default), 2 (per thread), -1 (no order) or an "
            "address; 0 does not say which default is meant",
        )
    if stream != _NO_ORDER:
        buffer.order(Stream.external(buffer.device, stream))


def array_interface(
    buffer: DeviceBuffer, dtype: DType, shape: Sequence[int], *, offset: int = 0
) -> dict[str, Any]:
    """What ``__cuda_array_interface__`` gives for row-major elements in a buffer.

    Consumers see memory that they could write to, since some refuse what is read-only.

    Raises:
        AttributeError: The interface has no such dtype, so the array has no such attribute.
    """
    numpy = dtype.np
    if not issubclass(numpy.type, (np.number, np.bool_)):
        raise AttributeError(
            f"__cuda_array_interface__ has no dtype {dtype.full_name}; DLPack may have it"
        )
    buffer.export()
    return {
        "shape": tuple(shape),
        "typestr": numpy.str,
        "data": (buffer.pointer + offset if math.prod(shape) else 0, False),
        "version": 3,
        "strides": None,
        "stream": buffer.stream.handle,
    }


def _copied(buffer: DeviceBuffer, offset: int, nbytes: int) -> tuple[DeviceBuffer, int, int]:
    return _part(buffer, buffer.pointer + offset, nbytes), 0, IS_COPIED


# --- taking ---------------------------------------------------------------------------------------


def is_on_cuda(source: Any) -> bool:
    """Whether another library's array says that it is in memory of a CUDA device."""
    if hasattr(source, "__dlpack_device__"):
        return int(source.__dlpack_device__()[0]) in (CUDA, CUDA_MANAGED)
    return hasattr(source, "__cuda_array_interface__")


def from_dlpack(
    source: Any,
    *,
    device: CudaDevice | None = None,
    copy: bool | None = None,
    alignment: int = VECTOR_ALIGNMENT,
) -> Foreign:
    """Take an array that speaks DLPack and is on a CUDA device.

    Args:
        source: the other library's array.
        device: where it must be; by default wherever it is.
        copy: whether to copy the elements. None: if they do not lie as compiled code takes them,
            row by row without gaps from an aligned address on; False: then they are refused.
        alignment: of the address.

    Raises:
        ForeignBufferError: It cannot be taken in this way.
        DeviceError: It is on another device.
    """
    kind, index = (int(part) for part in source.__dlpack_device__())
    if kind not in (CUDA, CUDA_MANAGED):
        where = "pinned memory of the host" if kind == CUDA_HOST else f"DLPack's device {kind}"
        raise DeviceError(
            f"from_dlpack: the array is on {where}",
            rule="only memory of CUDA devices is taken as it is",
            fix="move it to the device in the other library, or take it on the host",
        )
    here = _same_device("from_dlpack", cuda_device(index), device)
    stream = here.current_stream
    with here:
        try:
            capsule = source.__dlpack__(stream=stream.handle, max_version=(1, 1))
        except TypeError:  # libraries before DLPack 1.0
            capsule = source.__dlpack__(stream=stream.handle)
    tensor = ImportedTensor(capsule)
    found = _adopt(
        tensor.pointer, tensor.dtype, tensor.shape, tensor.strides, tensor, here, "from_dlpack"
    )
    return _arranged(replace(found, read_only=tensor.read_only), copy, alignment)


def from_array_interface(
    source: Any,
    *,
    device: CudaDevice | None = None,
    copy: bool | None = None,
    alignment: int = VECTOR_ALIGNMENT,
) -> Foreign:
    """Take an array that has ``__cuda_array_interface__``; see `from_dlpack`."""
    what = "__cuda_array_interface__"
    interface: dict[str, Any] = source.__cuda_array_interface__
    if interface.get("mask") is not None:
        raise ForeignBufferError(f"{what}: the array has a mask", fix="fill it first")
    try:
        dtype = dtype_of(np.dtype(interface["typestr"]))
    except (TypeError, TesseraError):
        raise ForeignBufferError(
            f"{what}: elements of type {interface['typestr']!r}",
            rule="there is no such dtype here",
            fix="convert the array in the other library",
        ) from None
    pointer, read_only = interface["data"]
    shape = tuple(map(int, interface["shape"]))
    steps: Sequence[int] | None = interface.get("strides")
    if steps is not None and any(step % dtype.itemsize for step in steps):
        raise ForeignBufferError(
            f"{what}: strides of {tuple(steps)} bytes, with elements of {dtype.itemsize}",
            rule="elements lie whole elements apart",
            fix="copy the array in the other library",
        )
    strides = None if steps is None else tuple(step // dtype.itemsize for step in steps)
    default = device or cuda_device(0)
    here = default
    if math.prod(shape):
        here = _same_device(what, cuda_device(_device_of(pointer, what)), device)
    stream = interface.get("stream")
    if stream is not None:
        if stream == 0:
            raise ForeignBufferError(f"{what}: the stream 0", rule="it may be 1, 2 or an address")
        here.current_stream.wait(Stream.external(here, int(stream), source))
    found = _adopt(int(pointer or 0), dtype, shape, strides, source, here, what)
    return _arranged(replace(found, read_only=bool(read_only)), copy, alignment)


def _adopt(
    pointer: int,
    dtype: DType,
    shape: tuple[int, ...],
    strides: tuple[int, ...] | None,
    owner: object,
    device: CudaDevice,
    what: str,
) -> Foreign:
    if math.prod(shape) == 0:
        return Foreign(device.pool.allocate(0), dtype, shape, None, False)
    if strides is not None and _is_row_major(shape, strides):
        strides = None
    if strides is not None and any(s < 0 for s, n in zip(strides, shape, strict=True) if n > 1):
        raise ForeignBufferError(
            f"{what}: an array with negative strides {strides}",
            rule="the first element is the one with the lowest address",
            fix="copy the array in the other library",
        )
    nbytes = _span(shape, strides) * dtype.itemsize
    return Foreign(device.pool.adopt(pointer, nbytes, owner), dtype, shape, strides, False)


def _arranged(found: Foreign, copy: bool | None, alignment: int) -> Foreign:
    """The elements as compiled code takes them, copied if need be or asked for."""
    aligned = found.buffer.pointer % max(alignment, found.dtype.itemsize) == 0
    if found.strides is None and aligned and not copy:
        return found
    if copy is False:
        reason = (
            f"its address {found.buffer.pointer:#x} is no multiple of {alignment}"
            if found.strides is None
            else f"its strides are {found.strides}"
        )
        raise ForeignBufferError(
            f"copy=False for an array of shape {found.shape} that cannot be taken as it is: "
            f"{reason}",
            rule=f"elements lie row by row without gaps, from a multiple of {alignment} bytes on",
            fix="leave copy out, or make the array contiguous in the other library",
        )
    if found.strides is None:
        buffer = _part(found.buffer, found.buffer.pointer, found.buffer.nbytes)
    else:
        buffer = _rearranged(found)
    return replace(found, buffer=buffer, strides=None, read_only=False)


def _part(source: DeviceBuffer, pointer: int, nbytes: int) -> DeviceBuffer:
    """A copy of bytes of a buffer."""
    device = source.device
    target = device.pool.allocate(nbytes, source.stream)
    source.order(target.stream)
    if nbytes:
        with device:
            driver.call(
                "cuMemcpyDtoDAsync", target.pointer, pointer, nbytes, target.stream.raw_handle
            )
    return target


def _rearranged(found: Foreign) -> DeviceBuffer:
    """The elements row by row, over the host: slow, and right for any strides."""
    assert found.strides is not None
    span = np.empty(found.buffer.nbytes, _BYTE)
    read(found.buffer, span)
    itemsize = found.dtype.itemsize
    steps = tuple(step * itemsize for step in found.strides)
    elements = np.lib.stride_tricks.as_strided(span.view(found.dtype.np), found.shape, steps)
    return to_device(np.ascontiguousarray(elements), found.buffer.device, found.buffer.stream)


def _same_device(what: str, found: CudaDevice, wanted: CudaDevice | None) -> CudaDevice:
    if wanted is not None and found is not wanted:
        raise DeviceError(
            f"{what}: the array is on {found}, and {wanted} is asked for",
            rule="memory is taken where it is",
            fix=f"take it on {found} and move it: ts.device_put(x, '{wanted}')",
        )
    return found


def _device_of(pointer: int, what: str) -> int:
    """The number of the device that an address belongs to."""
    api = driver.api()
    kinds = api.CUpointer_attribute
    status, *found = api.cuPointerGetAttribute(kinds.CU_POINTER_ATTRIBUTE_MEMORY_TYPE, pointer)
    if int(status) or int(found[0]) == _HOST:
        raise ForeignBufferError(
            f"{what}: {pointer:#x} is no address on a CUDA device",
            rule="the interface is for memory of a device",
            fix="the memory was freed, or is the host's",
        )
    return int(
        driver.call("cuPointerGetAttribute", kinds.CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, pointer)
    )


def _row_major(shape: Sequence[int]) -> tuple[int, ...]:
    steps: list[int] = []
    step = 1
    for size in reversed(shape):
        steps.append(step)
        step *= max(size, 1)
    return tuple(reversed(steps))


def _is_row_major(shape: tuple[int, ...], strides: tuple[int, ...]) -> bool:
    return all(
        size == 1 or step == wanted
        for size, step, wanted in zip(shape, strides, _row_major(shape), strict=True)
    )


def _span(shape: tuple[int, ...], strides: tuple[int, ...] | None) -> int:
    """How many elements lie from the first to the last."""
    if strides is None:
        return math.prod(shape)
    return 1 + sum((size - 1) * step for size, step in zip(shape, strides, strict=True))


__all__ = [
    "VECTOR_ALIGNMENT",
    "Foreign",
    "array_interface",
    "from_array_interface",
    "from_dlpack",
    "is_on_cuda",
    "order_consumer",
    "to_dlpack",
]
