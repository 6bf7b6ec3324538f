"""Rooms of pinned memory, and native copies beside kernels, over stand-ins of the driver."""

from __future__ import annotations

import functools
import gc
from collections.abc import Iterator

import numpy as np
import pytest

from tessera.runtime.cache import ObjectCache
from tessera.runtime.call import make_caller
from tessera.runtime.codegen import Source
from tessera.runtime.cuda import launch as launch_module
from tessera.runtime.cuda.device import CudaDevice
from tessera.runtime.cuda.errors import CudaError
from tessera.runtime.cuda.host_room import HostRoom, HostRooms
from tessera.runtime.cuda.launch import COPY_SYMBOLS, NativeProgram, record_of
from tessera.runtime.cuda.stream import Stream
from tessera.runtime.engine import Loaded, load
from tessera.target.machine import machine
from tests.runtime.cuda.fake_driver import FakeDriver
from tests.runtime.cuda.native_driver import NativeDriver
from tests.runtime.cuda.test_launch import launcher, native_driver

# words: record, memory of the device, another one.
MAIN = """
declare i32 @tessera_cuda_offload(ptr, i64, i64, i64, ptr)
declare i32 @tessera_cuda_fetch(ptr, i64, i64, i64, ptr)
declare i32 @tessera_cuda_wait(i64, ptr)

define void @main(ptr %words) {
  %record = load ptr, ptr %words
  %from.at = getelementptr i64, ptr %words, i64 1
  %from = load ptr, ptr %from.at
  %to.at = getelementptr i64, ptr %words, i64 2
  %to = load ptr, ptr %to.at
  %a = call i32 @tessera_cuda_offload(ptr %from, i64 64, i64 8, i64 0, ptr %record)
  %b = call i32 @tessera_cuda_wait(i64 0, ptr %record)
  %c = call i32 @tessera_cuda_fetch(ptr %to, i64 64, i64 8, i64 1, ptr %record)
  %d = call i32 @tessera_cuda_wait(i64 1, ptr %record)
  ret void
}
"""


@functools.cache
def main() -> Loaded:
    source = Source(MAIN, machine("host"), "a program that copies")
    addresses = {name: launcher().addresses[name] for name in COPY_SYMBOLS}
    return load(source, ObjectCache(None), addresses)


@pytest.fixture
def native(monkeypatch: pytest.MonkeyPatch) -> Iterator[NativeDriver]:
    run = make_caller(launcher().addresses["tessera_cuda_run"], owner=launcher())
    monkeypatch.setattr(launch_module, "_launcher", launcher)
    monkeypatch.setattr(launch_module, "_run", lambda: run)
    found = native_driver()
    found.reset()
    yield found
    found.reset()


def program() -> NativeProgram:
    return NativeProgram(main().addresses["main"], name="p", owner=main())


def test_what_is_copied_comes_back(native: NativeDriver, device: CudaDevice) -> None:
    rooms = HostRooms(device, 128, 2)
    source, target = np.array([7.0]), np.array([0.0])
    rooms.run(program(), device.stream, [source, target])
    assert target[0] == 7.0
    assert (native["copies"], native["records"], native["waits"]) == (2, 4, 4)
    (room,) = rooms._waiting[device.stream]
    assert native["copied_in"] == room.stream.handle
    # The last thing recorded is the end of the second copy, which the run's stream waits for.
    assert native["recorded"] == native["waited"] == room.words[4]
    assert (native["recorded_in"], native["waiting"]) == (room.stream.handle, device.stream.handle)
    assert record_of(device.stream).room == room.words.ctypes.data


def test_a_room_waits_in_its_stream(native: NativeDriver, device: CudaDevice) -> None:
    rooms = HostRooms(device, 128, 2)
    words = [np.array([7.0]), np.array([0.0])]
    for _ in range(3):
        rooms.run(program(), device.stream, words)
    assert rooms.waiting == 1
    other = Stream(device)
    rooms.run(program(), other, words)
    assert rooms.waiting == 2
    assert rooms._waiting[other][0] is not rooms._waiting[device.stream][0]


def test_a_failure_leaves_no_copy_behind(
    native: NativeDriver, device: CudaDevice, fake: FakeDriver
) -> None:
    rooms = HostRooms(device, 128, 2)
    words = [np.array([7.0]), np.array([0.0])]
    for name in ("record_status", "wait_status", "copy_status"):
        native.reset()
        native[name] = 719
        fake.calls.clear()
        with pytest.raises(CudaError, match="719"):
            rooms.run(program(), device.stream, words)
        assert native["copies"] == (name == "copy_status")  # nothing goes on behind it
        (room,) = rooms._waiting[device.stream]
        assert fake.called("cuEventRecord")[-1][1] == room.stream.raw_handle
        assert fake.called("cuStreamWaitEvent")[-1][0] == device.stream.raw_handle


def test_memory_goes_back_when_copies_have_ended(device: CudaDevice, fake: FakeDriver) -> None:
    from tessera.runtime.cuda.transfer import pinned

    pinned.release()
    before = pinned.waiting_bytes
    room = HostRoom(device, 1 << 16, 2)
    handle = room.stream.handle
    fake.work(handle)
    del room
    gc.collect()
    device.pool.collect()
    assert pinned.waiting_bytes == before
    fake.finish()
    device.pool.collect()
    gc.collect()
    assert pinned.waiting_bytes == before + (1 << 16)
    pinned.release()


def test_no_pinned_memory_is_left(device: CudaDevice, fake: FakeDriver) -> None:
    fake.failures["cuMemHostAlloc"] = 2
    with pytest.raises(
        CudaError, match=r"allocation of 3\.00 MiB of pinned memory of the host"
    ) as caught:
        HostRoom(device, 3 << 20, 2)
    assert isinstance(caught.value, MemoryError)
