"""DLPack and the CUDA array interface: what is given and taken, order, who keeps what alive."""

from __future__ import annotations

import ctypes
import gc
import sys
from typing import Any

import numpy as np
import pytest

from tessera import dtypes
from tessera.dtypes import DType
from tessera.graph.device import DeviceError
from tessera.runtime.cuda import exchange, transfer
from tessera.runtime.cuda.capsule import ImportedTensor
from tessera.runtime.cuda.device import CudaDevice, cuda_device
from tessera.runtime.cuda.errors import ForeignBufferError
from tessera.runtime.cuda.exchange import from_array_interface, from_dlpack, to_dlpack
from tessera.runtime.cuda.memory import DeviceBuffer
from tests.runtime.cuda.fake_driver import FakeDriver

DATA = np.arange(12, dtype=np.float32).reshape(3, 4)


class Library:
    """Another library's array: it gives capsules of a buffer."""

    def __init__(
        self,
        buffer: DeviceBuffer,
        dtype: DType = dtypes.float32,
        shape: tuple[int, ...] = (3, 4),
        *,
        old: bool = False,
        kind: int = 2,
    ) -> None:
        self.buffer = buffer
        self.dtype = dtype
        self.shape = shape
        self.old = old
        self.kind = kind
        self.streams: list[Any] = []

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.kind, self.buffer.device.index

    def __dlpack__(self, *, stream: Any = None, **options: Any) -> Any:
        if self.old and options:
            raise TypeError("unexpected keyword")
        self.streams.append(stream)
        return to_dlpack(self.buffer, self.dtype, self.shape, stream=stream, **options)


class Interface:
    """Another library's array that has the interface."""

    def __init__(self, **interface: Any) -> None:
        self.__cuda_array_interface__ = {"version": 3, **interface}


@pytest.fixture
def buffer(device: CudaDevice) -> DeviceBuffer:
    return transfer.to_device(DATA, device)


def on_host(found: exchange.Foreign) -> np.ndarray:
    return transfer.to_host(found.buffer, found.shape, found.dtype.np)


def test_there_and_back_without_a_copy(device: CudaDevice, buffer: DeviceBuffer) -> None:
    source = Library(buffer)
    found = from_dlpack(source)
    assert (found.buffer.pointer, found.shape, found.dtype) == (
        buffer.pointer,
        (3, 4),
        dtypes.float32,
    )
    assert found.strides is None
    assert found.read_only
    assert source.streams == [device.stream.handle]
    np.testing.assert_array_equal(on_host(found), DATA)


def test_taken_memory_keeps_its_owner(device: CudaDevice, buffer: DeviceBuffer) -> None:
    before = sys.getrefcount(buffer)
    found = from_dlpack(Library(buffer))
    gc.collect()
    assert sys.getrefcount(buffer) > before
    del found
    device.pool.collect()
    gc.collect()
    assert sys.getrefcount(buffer) == before


def test_a_capsule_that_nobody_takes_is_freed(buffer: DeviceBuffer) -> None:
    before = sys.getrefcount(buffer)
    for version in (None, (1, 1)):
        capsule = to_dlpack(buffer, dtypes.float32, (12,), max_version=version)
        assert "dltensor" in repr(capsule)
        del capsule
    gc.collect()
    assert sys.getrefcount(buffer) == before


def test_a_capsule_is_taken_once(buffer: DeviceBuffer) -> None:
    class Same(Library):
        def __dlpack__(self, **options: Any) -> Any:
            return capsule

    capsule = to_dlpack(buffer, dtypes.float32, (3, 4), max_version=(1, 0))
    from_dlpack(Same(buffer))
    with pytest.raises(ForeignBufferError, match="used already"):
        from_dlpack(Same(buffer))


@pytest.mark.parametrize(
    ("at", "value", "words"),
    [
        (0, 2, r"is of DLPack 2\.1"),
        (52, 3, "type code 3, 32 bits, 1 lanes"),
        (53, 4, "4 bits"),
        (54, 2, "2 lanes"),
    ],
)
def test_tensors_that_are_not_known(
    device: CudaDevice, buffer: DeviceBuffer, at: int, value: int, words: str
) -> None:
    capsule = to_dlpack(buffer, dtypes.float32, (12,), max_version=(1, 1))
    get = ctypes.pythonapi.PyCapsule_GetPointer
    get.argtypes, get.restype = (ctypes.py_object, ctypes.c_char_p), ctypes.c_void_p
    address = get(capsule, b"dltensor_versioned")
    ctypes.c_uint8.from_address(address + at).value = value
    with pytest.raises(ForeignBufferError, match=words):
        ImportedTensor(capsule)
    del capsule  # still its own to free


def test_old_consumers_get_a_copy(device: CudaDevice, buffer: DeviceBuffer) -> None:
    found = from_dlpack(Library(buffer, old=True))
    assert found.buffer.pointer != buffer.pointer
    assert not found.read_only
    np.testing.assert_array_equal(on_host(found), DATA)
    with pytest.raises(ForeignBufferError, match="copy=False for a consumer"):
        to_dlpack(buffer, dtypes.float32, (12,), copy=False)


@pytest.mark.parametrize(
    "dtype",
    [
        dtypes.bool_,
        dtypes.int8,
        dtypes.int64,
        dtypes.uint16,
        dtypes.float16,
        dtypes.bfloat16,
        dtypes.float64,
        dtypes.complex64,
        dtypes.float8_e4m3fn,
        dtypes.float8_e5m2,
    ],
    ids=str,
)
def test_dtypes(device: CudaDevice, dtype: DType) -> None:
    found = from_dlpack(Library(device.pool.allocate(64), dtype, (2, 2)))
    assert found.dtype is dtype


def test_dtypes_that_dlpack_lacks(buffer: DeviceBuffer) -> None:
    with pytest.raises(ForeignBufferError, match="int4"):
        to_dlpack(buffer, dtypes.int4, (4,), max_version=(1, 1))
    with pytest.raises(ForeignBufferError, match=r"since version 1\.1"):
        to_dlpack(buffer, dtypes.float8_e5m2, (4,), max_version=(1, 0))


@pytest.mark.parametrize(("stream", "waits"), [(None, 1), (1, 1), (2, 2), (0x5000, 0x5000)])
def test_consumers_wait_for_us(
    fake: FakeDriver, buffer: DeviceBuffer, stream: int | None, waits: int
) -> None:
    to_dlpack(buffer, dtypes.float32, (12,), stream=stream, max_version=(1, 0))
    ((waiting, _, _),) = fake.called("cuStreamWaitEvent")
    assert waiting == waits


def test_consumers_that_want_no_order(fake: FakeDriver, buffer: DeviceBuffer) -> None:
    to_dlpack(buffer, dtypes.float32, (12,), stream=-1, max_version=(1, 0))
    assert not fake.called("cuStreamWaitEvent")


@pytest.mark.parametrize("stream", [0, -2, "main", True])
def test_streams_that_are_none(buffer: DeviceBuffer, stream: Any) -> None:
    with pytest.raises(ForeignBufferError, match="the stream"):
        to_dlpack(buffer, dtypes.float32, (12,), stream=stream, max_version=(1, 0))


def test_given_memory_comes_back_after_everything(
    fake: FakeDriver, device: CudaDevice, buffer: DeviceBuffer
) -> None:
    capsule = to_dlpack(buffer, dtypes.float32, (12,), stream=-1, max_version=(1, 0))
    pointer = buffer.pointer
    del capsule
    waits = len(fake.called("cuStreamWaitEvent"))
    # The fixture's reference is the last one.
    buffer.__class__.__del__(buffer, lambda: False)
    device.pool.collect()
    assert len(fake.called("cuStreamWaitEvent")) == waits + 1
    assert device.pool.allocate(DATA.nbytes).pointer == pointer
    buffer._block = None
    buffer._exported = False


def test_other_devices(buffer: DeviceBuffer) -> None:
    with pytest.raises(ForeignBufferError, match=r"for the DLPack device \(1, 0\)"):
        to_dlpack(buffer, dtypes.float32, (12,), dl_device=(1, 0), max_version=(1, 0))
    to_dlpack(buffer, dtypes.float32, (12,), dl_device=(2, 0), max_version=(1, 0))
    with pytest.raises(DeviceError, match="is on cuda:0, and cuda:1 is asked for"):
        from_dlpack(Library(buffer), device=cuda_device(1))
    with pytest.raises(DeviceError, match="pinned memory"):
        from_dlpack(Library(buffer, kind=3))
    with pytest.raises(DeviceError, match="DLPack's device 10"):
        from_dlpack(Library(buffer, kind=10))


def test_what_says_it_is_on_cuda(buffer: DeviceBuffer) -> None:
    assert exchange.is_on_cuda(Library(buffer))
    assert not exchange.is_on_cuda(Library(buffer, kind=1))
    assert exchange.is_on_cuda(Interface())
    assert not exchange.is_on_cuda(DATA)


def test_a_scalar_and_nothing(device: CudaDevice, buffer: DeviceBuffer) -> None:
    assert from_dlpack(Library(buffer, shape=())).shape == ()
    assert from_dlpack(Library(buffer, shape=(0, 4))).shape == (0, 4)


# --- the interface --------------------------------------------------------------------------------


def test_the_interface_there_and_back(device: CudaDevice, buffer: DeviceBuffer) -> None:
    interface = exchange.array_interface(buffer, dtypes.float32, (3, 4))
    assert interface["stream"] == device.stream.handle
    found = from_array_interface(Interface(**interface))
    assert found.buffer.pointer == buffer.pointer
    np.testing.assert_array_equal(on_host(found), DATA)
    with pytest.raises(AttributeError, match="bfloat16"):
        exchange.array_interface(buffer, dtypes.bfloat16, (3, 4))
    assert exchange.array_interface(buffer, dtypes.int8, (0,))["data"] == (0, False)


def described(buffer: DeviceBuffer, **changes: Any) -> Interface:
    fields = {"shape": (3, 4), "typestr": "<f4", "data": (buffer.pointer, False), "strides": None}
    return Interface(**{**fields, **changes})


def test_arrays_that_do_not_lie_row_by_row(device: CudaDevice, buffer: DeviceBuffer) -> None:
    turned = described(buffer, shape=(4, 3), strides=(4, 16))
    np.testing.assert_array_equal(on_host(from_array_interface(turned)), DATA.T)
    part = described(buffer, shape=(3, 2), strides=(16, 4))
    np.testing.assert_array_equal(on_host(from_array_interface(part)), DATA[:, :2])
    repeated = described(buffer, shape=(2, 4), strides=(0, 4))
    np.testing.assert_array_equal(on_host(from_array_interface(repeated)), DATA[[0, 0]])
    with pytest.raises(ForeignBufferError, match="strides are"):
        from_array_interface(turned, copy=False)
    with pytest.raises(ForeignBufferError, match="negative strides"):
        from_array_interface(described(buffer, strides=(-16, 4)))


def test_arrays_that_are_not_aligned(device: CudaDevice, buffer: DeviceBuffer) -> None:
    source = described(buffer, shape=(11,), data=(buffer.pointer + 4, False))
    found = from_array_interface(source)
    assert not found.buffer.is_foreign
    np.testing.assert_array_equal(on_host(found), DATA.ravel()[1:])
    assert from_array_interface(source, alignment=4).buffer.is_foreign
    with pytest.raises(ForeignBufferError, match="no multiple of 16"):
        from_array_interface(source, copy=False)
    copied = from_array_interface(described(buffer), copy=True)
    assert copied.buffer.pointer != buffer.pointer


def test_the_interfaces_stream(fake: FakeDriver, device: CudaDevice, buffer: DeviceBuffer) -> None:
    from_array_interface(described(buffer, stream=2))
    assert fake.called("cuStreamWaitEvent")[0][0] == device.stream.raw_handle
    assert fake.called("cuEventRecord")[0][1] == 2
    with pytest.raises(ForeignBufferError, match="the stream 0"):
        from_array_interface(described(buffer, stream=0))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"mask": 1}, "mask"),
        ({"typestr": "<M8"}, "elements of type '<M8'"),
        ({"strides": (17, 4)}, "whole elements apart"),
        ({"data": (0x10, False)}, "no address on a CUDA device"),
    ],
)
def test_interfaces_that_are_refused(
    buffer: DeviceBuffer, changes: dict[str, Any], words: str
) -> None:
    with pytest.raises(ForeignBufferError, match=words):
        from_array_interface(described(buffer, **changes))


def test_the_wrong_device(fake: FakeDriver, buffer: DeviceBuffer) -> None:
    fake.foreign_index = 1
    with pytest.raises(DeviceError, match="is on cuda:1, and cuda:0 is asked for"):
        from_array_interface(described(buffer), device=buffer.device)


def test_an_interface_without_elements(device: CudaDevice, buffer: DeviceBuffer) -> None:
    found = from_array_interface(described(buffer, shape=(0, 4), data=(0, True)))
    assert (found.shape, found.read_only) == ((0, 4), True)
