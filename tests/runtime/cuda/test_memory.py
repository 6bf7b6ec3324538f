"""Device memory: reuse, order between streams, foreign memory, running out, copies."""

from __future__ import annotations

import gc
import threading

import numpy as np
import pytest

from tessera.runtime.cuda import driver, transfer
from tessera.runtime.cuda.device import CudaDevice, cuda_device
from tessera.runtime.cuda.errors import CudaError, DeviceMemoryError
from tessera.runtime.cuda.memory import DevicePool, show_bytes, size_class
from tessera.runtime.cuda.stream import Stream
from tests.runtime.cuda.fake_driver import FakeDriver

KB = 1024


def test_size_classes() -> None:
    for size in (0, 1, 511, 512, 513, 5000, 1 << 20, (1 << 20) + 1, 100 << 20, (100 << 20) + 5):
        found = size_class(size)
        assert found >= max(size, 1)
        assert found % 512 == 0
        assert found - size <= max(512, size // 8 + 1)
    assert size_class((64 << 30) + 1) - (64 << 30) <= 2 << 20


@pytest.mark.parametrize(
    ("size", "text"), [(3, "3 bytes"), (1024, "1.00 KiB"), (5 << 29, "2.50 GiB"), (1 << 53, "TiB")]
)
def test_bytes_for_people(size: int, text: str) -> None:
    assert text in show_bytes(size)


def test_a_block_is_used_again_in_its_stream(fake: FakeDriver, device: CudaDevice) -> None:
    first = device.pool.allocate(5000)
    pointer = first.pointer
    assert pointer % 256 == 0
    del first
    # Another size of the same class, at once: the stream keeps the order.
    assert device.pool.allocate(5100).pointer == pointer
    other = Stream(device)
    assert device.pool.allocate(5000, other).pointer != pointer
    assert len(fake.called("cuMemAllocFromPoolAsync")) == 2
    assert not fake.called("cuMemFreeAsync")


def test_many_sizes_do_not_pile_up(device: CudaDevice) -> None:
    for size in range(1, 10000):
        device.pool.allocate(size)
    assert len(device.stream.homes) <= 4096


def test_work_of_other_streams_is_waited_for(fake: FakeDriver, device: CudaDevice) -> None:
    buffer = device.pool.allocate(100)
    buffer.use_on(device.stream)
    assert not fake.called("cuStreamWaitEvent")
    other = Stream(device)
    buffer.use_on(other)
    ((waiting, event, _),) = fake.called("cuStreamWaitEvent")
    assert waiting == other.raw_handle
    assert [event, device.stream.raw_handle] in fake.called("cuEventRecord")
    # Back at home: now the other stream comes first.
    buffer.use_on(device.stream)
    assert fake.called("cuStreamWaitEvent")[-1][0] == device.stream.raw_handle
    count = len(fake.called("cuStreamWaitEvent"))
    pointer = buffer.pointer
    del buffer
    assert len(fake.called("cuStreamWaitEvent")) == count
    again = device.pool.allocate(100)
    assert again.pointer == pointer
    assert fake.called("cuStreamWaitEvent")[count:][0][0] == device.stream.raw_handle


def test_exported_memory_waits_for_the_whole_device(fake: FakeDriver, device: CudaDevice) -> None:
    buffer = device.pool.allocate(100)
    buffer.export()
    del buffer
    device.pool.collect()
    assert len(fake.called("cuStreamWaitEvent")) == 1
    assert device.pool.statistics().waiting == 512
    fake.failures["cuCtxRecordEvent"] = 801
    buffer = device.pool.allocate(100)
    buffer.export()
    fake.work(9)
    del buffer
    device.pool.collect()
    assert not fake.pending  # without such events, the host waits


def test_foreign_memory_stays_until_our_work_has_ended(
    fake: FakeDriver, device: CudaDevice
) -> None:
    gone: list[int] = []

    class Owner:
        def __del__(self) -> None:
            gone.append(1)

    buffer = device.pool.adopt(0x1000, 64, Owner())
    assert buffer.is_foreign
    fake.work(device.stream.handle)
    del buffer
    device.pool.collect()
    assert not gone
    fake.finish()
    device.pool.collect()
    assert gone
    assert device.pool.statistics().live == 0


def test_running_out_gives_everything_back_first(fake: FakeDriver, device: CudaDevice) -> None:
    pool = device.pool
    for size in (100 * KB, 200 * KB, 300 * KB, 400 * KB):
        pool.allocate(size)
    assert pool.statistics().waiting > 700 * KB
    big = pool.allocate(900 * KB)
    assert fake.called("cuMemPoolTrimTo")
    assert pool.statistics().live == size_class(900 * KB)
    assert pool.statistics().waiting == 0
    del big


def test_running_out_collects_cycles(device: CudaDevice) -> None:
    gc.disable()
    try:
        cycle: list[object] = [device.pool.allocate(900 * KB)]
        cycle.append(cycle)
        del cycle
        device.pool.allocate(800 * KB)
    finally:
        gc.enable()


def test_running_out_names_the_largest_buffers(fake: FakeDriver, device: CudaDevice) -> None:
    kept = [device.pool.allocate(50 * KB, place=f"model.py:{i}") for i in range(10)]
    kept.append(device.pool.allocate(200 * KB, place="big.py:7"))
    with pytest.raises(DeviceMemoryError) as caught:
        device.pool.allocate(700 * KB)
    text = str(caught.value)
    assert "allocation of 700.00 KiB on cuda:0" in text
    assert "test_memory.py" in text
    assert "live buffers: 700.00 KiB in 11" in text
    lines = [line.strip() for line in text.split("\n")]
    assert "200.00 KiB  big.py:7" in lines
    assert lines.index("200.00 KiB  big.py:7") < lines.index("50.00 KiB  model.py:0")
    assert "150.00 KiB  in 3 smaller ones" in lines
    assert "are free" in text
    del kept
    device.pool.allocate(700 * KB)  # recovered


def test_a_size_beyond_the_device_is_refused_at_once(fake: FakeDriver, device: CudaDevice) -> None:
    waiting = device.pool.allocate(KB)
    del waiting
    with pytest.raises(DeviceMemoryError):
        device.pool.allocate(1 << 40)
    assert not fake.called("cuMemPoolTrimTo")


def test_what_waits_is_limited(fake: FakeDriver, device: CudaDevice) -> None:
    pool = DevicePool(device, limit=100 * KB)
    kept = [pool.allocate(60 * KB) for _ in range(3)]
    del kept
    pool.allocate(10 * KB)
    assert len(fake.called("cuMemFreeAsync")) == 2
    assert pool.statistics().waiting <= 100 * KB


def test_releasing_gives_blocks_back(fake: FakeDriver, device: CudaDevice) -> None:
    device.pool.allocate(KB)
    device.pool.release()
    assert fake.used == 0
    assert device.pool.statistics().reserved == 0


def test_statistics(device: CudaDevice) -> None:
    pool = device.pool
    first = pool.allocate(10 * KB)
    second = pool.allocate(20 * KB)
    assert pool.statistics().live == 30 * KB
    assert [size for size, _ in pool.live()] == [20 * KB, 10 * KB]
    del first
    found = pool.statistics()
    assert (found.live, found.waiting, found.peak) == (20 * KB, 10 * KB, 30 * KB)
    pool.reset_peak()
    assert pool.statistics().peak == 20 * KB
    del second
    assert "DevicePool" in repr(pool)


def test_errors_of_the_driver_come_through(fake: FakeDriver, device: CudaDevice) -> None:
    fake.failures["cuMemAllocFromPoolAsync"] = 700
    with pytest.raises(CudaError, match="allocation of"):
        device.pool.allocate(10)


def test_devices_without_pools(fake: FakeDriver) -> None:
    fake.attributes["MEMORY_POOLS_SUPPORTED"] = 0
    device = cuda_device(0)
    buffer = device.pool.allocate(900 * KB)
    assert device.pool.statistics().reserved == size_class(900 * KB)
    del buffer
    device.pool.allocate(500 * KB)
    assert len(fake.called("cuMemFree")) == 1


def test_threads_share_a_pool(device: CudaDevice) -> None:
    seen: list[int] = []

    def work() -> None:
        for i in range(300):
            kept = [device.pool.allocate(100 + i) for _ in range(5)]
            pointers = [buffer.pointer for buffer in kept]
            if len(set(pointers)) != 5:
                seen.append(i)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not seen
    assert device.pool.statistics().live == 0


# --- copies ---------------------------------------------------------------------------------------


def test_copies_there_and_back(device: CudaDevice) -> None:
    array = np.arange(12, dtype=np.float32).reshape(3, 4)
    buffer = transfer.to_device(array, device)
    np.testing.assert_array_equal(transfer.to_host(buffer, (3, 4), array.dtype), array)
    turned = transfer.to_device(array.T, device)
    np.testing.assert_array_equal(transfer.to_host(turned, (4, 3), array.dtype), array.T)
    again = transfer.move(buffer, device)
    assert again.pointer != buffer.pointer
    np.testing.assert_array_equal(transfer.to_host(again, (12,), array.dtype), array.ravel())
    part = np.empty(2, np.float32)
    transfer.read(buffer, part, offset=8)
    np.testing.assert_array_equal(part, [2, 3])
    transfer.fill(buffer, 0)
    assert not transfer.to_host(buffer, (12,), array.dtype).any()


def test_empty_copies_call_nothing(fake: FakeDriver, device: CudaDevice) -> None:
    buffer = transfer.to_device(np.empty((0, 3), np.float32), device)
    assert transfer.to_host(buffer, (0, 3), np.dtype(np.float32)).shape == (0, 3)
    transfer.fill(buffer)
    transfer.copy(buffer, buffer)
    assert not [name for name, *_ in fake.calls if name.startswith(("cuMemcpy", "cuMemset"))]


def test_copies_between_devices(fake: FakeDriver, device: CudaDevice) -> None:
    array = np.arange(5)
    there = transfer.move(transfer.to_device(array, device), cuda_device(1))
    assert there.device is cuda_device(1)
    np.testing.assert_array_equal(transfer.to_host(there, (5,), array.dtype), array)
    assert len(fake.called("cuMemcpyPeerAsync")) == 1


def test_copies_that_do_not_fit(device: CudaDevice) -> None:
    buffer = device.pool.allocate(8)
    with pytest.raises(CudaError, match="copy of 16 bytes"):
        transfer.write(buffer, np.zeros(2))
    with pytest.raises(CudaError, match="at 4 of a buffer of 8"):
        transfer.read(buffer, np.zeros(1), offset=4)
    with pytest.raises(CudaError, match="not contiguous"):
        transfer.write(device.pool.allocate(64), np.zeros((4, 4), np.int8).T[:, :2])
    with pytest.raises(CudaError, match="into a buffer of 8"):
        transfer.copy(buffer, device.pool.allocate(16))


def test_pinned_memory(fake: FakeDriver, device: CudaDevice) -> None:
    pool = transfer.PinnedPool(limit=10 * KB)
    array = pool.empty((4, 4), np.dtype(np.float32), device)
    array[:] = 3
    view = array[1:]
    del array
    assert pool.waiting_bytes == 0
    buffer = transfer.to_device(view, device)
    assert not fake.pending
    assert transfer.to_host(buffer, (3, 4), view.dtype).all()
    del view
    assert pool.waiting_bytes == 512
    again = pool.empty((10,), np.dtype(np.int8), device)
    assert len(fake.called("cuMemHostAlloc")) == 1
    del again
    large = pool.empty((20 * KB,), np.dtype(np.int8), device)
    del large
    assert pool.waiting_bytes == 512
    pool.release()
    assert not fake.host
    assert pool.waiting_bytes == 0


def test_interrupted_copies_keep_the_array(
    fake: FakeDriver, device: CudaDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    buffer = device.pool.allocate(8)

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    fake.work(device.stream.handle)
    monkeypatch.setattr(Stream, "synchronize", interrupted)
    with pytest.raises(KeyboardInterrupt):
        transfer.read(buffer, np.zeros(1))
    assert len(device.pool.kept) == 1
    fake.finish()
    device.pool.collect()
    assert not device.pool.kept


def test_forgotten_buffers_do_nothing_at_exit(device: CudaDevice) -> None:
    buffer = device.pool.allocate(8)
    buffer.export()
    assert "8 bytes" in repr(buffer)
    buffer.__del__(lambda: True)
    assert not device.pool.returned
    driver.drain()


@pytest.mark.parametrize("is_foreign", [True, False])
def test_a_stream_outlives_buffers_that_are_garbage_with_it(
    fake: FakeDriver, device: CudaDevice, is_foreign: bool
) -> None:
    """Finalizers of a cycle run in any order, and that of a buffer needs its streams."""

    class Room:
        def __init__(self) -> None:
            self.stream = Stream(device)
            if is_foreign:
                self.buffer = device.pool.adopt(0x1000, 64, object(), self.stream)
            else:
                self.buffer = device.pool.allocate(64)
                self.buffer.use_on(self.stream)
            self.itself = self

    handles = [Room().stream.handle for _ in range(8)]
    gc.collect()
    device.pool.collect()
    assert not device.pool.returned
    gc.collect()
    device.pool.collect()
    assert fake.destroyed >= set(handles)
