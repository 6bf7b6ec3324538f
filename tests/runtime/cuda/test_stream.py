"""Streams and events: waiting so that Ctrl-C is answered, order, timing, who gets the work."""

from __future__ import annotations

import gc
import os
import signal
import threading

import pytest

from tessera.runtime.cuda import driver
from tessera.runtime.cuda.device import CudaDevice
from tessera.runtime.cuda.errors import CudaError, LaunchError
from tessera.runtime.cuda.stream import LEGACY_STREAM, Event, Stream
from tests.runtime.cuda.fake_driver import FakeDriver


def test_waiting(fake: FakeDriver, device: CudaDevice) -> None:
    stream = device.stream
    stream.synchronize()
    fake.work(stream.handle)
    assert not stream.is_done()
    threading.Timer(0.02, fake.finish).start()
    stream.synchronize()
    assert stream.is_done()
    # The main thread asks; it does not wait inside the driver.
    assert not fake.called("cuStreamSynchronize")


def test_other_threads_wait_inside_the_driver(fake: FakeDriver, device: CudaDevice) -> None:
    fake.work(device.stream.handle)
    thread = threading.Thread(target=device.stream.synchronize)
    thread.start()
    thread.join()
    assert len(fake.called("cuStreamSynchronize")) == 1


def test_ctrl_c_ends_a_wait(fake: FakeDriver, device: CudaDevice) -> None:
    fake.work(device.stream.handle)
    threading.Timer(0.1, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
    with pytest.raises(KeyboardInterrupt):
        device.stream.synchronize()
    assert fake.contexts == []
    fake.finish()


@pytest.mark.parametrize("name", ["cuStreamQuery", "cuStreamSynchronize"])
def test_a_wait_reports_what_failed(fake: FakeDriver, device: CudaDevice, name: str) -> None:
    fake.failures[name] = 716
    errors: list[BaseException] = []

    def work() -> None:
        try:
            device.stream.synchronize()
        except CudaError as error:
            errors.append(error)

    if name == "cuStreamQuery":
        work()
    else:
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    (error,) = errors
    assert isinstance(error, LaunchError)
    assert "what failed was started before" in str(error)


def test_the_device_waits_for_everything(fake: FakeDriver, device: CudaDevice) -> None:
    fake.work(device.stream.handle)
    fake.work(12345)
    threading.Timer(0.02, fake.finish).start()
    device.synchronize()
    fake.failures["cuCtxRecordEvent"] = 801
    fake.work(12345)
    device.synchronize()
    assert not fake.pending


def test_events(fake: FakeDriver, device: CudaDevice) -> None:
    stream = device.stream
    assert Event(device).is_done()
    fake.work(stream.handle)
    event = stream.record()
    assert not event.is_done()
    fake.finish()
    event.synchronize()
    start, end = (stream.record(Event(device, timing=True)) for _ in range(2))
    assert end.seconds_since(start) == pytest.approx(1.5e-3)
    with pytest.raises(CudaError, match="without timing"):
        end.seconds_since(event)
    assert fake.called("cuEventCreate")[-1] == [0]
    assert fake.called("cuEventCreate")[0] == [2]
    fake.failures["cuEventQuery"] = 700
    with pytest.raises(LaunchError):
        event.synchronize()
    fake.failures["cuEventSynchronize"] = 700
    with pytest.raises(LaunchError):
        event._block()


def test_streams_wait_for_each_other(fake: FakeDriver, device: CudaDevice) -> None:
    first, second = Stream(device), Stream(device, priority=-1)
    assert fake.called("cuStreamCreateWithPriority") == [[1, 0], [1, -1]]
    event = first.record()
    second.wait(event)
    assert fake.called("cuStreamWaitEvent") == [[second.raw_handle, event.handle, 0]]
    second.wait(first)
    assert len(fake.called("cuEventRecord")) == 2


def test_the_current_stream(device: CudaDevice) -> None:
    assert device.current_stream is device.stream
    one, two = Stream(device), Stream(device)
    seen: list[Stream] = []
    with one:
        assert device.current_stream is one
        with two, one:
            assert device.current_stream is one
        with two:
            thread = threading.Thread(target=lambda: seen.append(device.current_stream))
            thread.start()
            thread.join()
            assert device.current_stream is two
        assert device.current_stream is one
    assert device.current_stream is device.stream
    # Another thread is not inside these blocks.
    assert seen == [device.stream]


def test_one_stream_object_in_two_threads(device: CudaDevice) -> None:
    stream = Stream(device)
    entered, leave = threading.Event(), threading.Event()

    def work() -> None:
        with stream:
            entered.set()
            leave.wait()

    thread = threading.Thread(target=work)
    thread.start()
    entered.wait()
    with stream:
        leave.set()
        thread.join()
        assert device.current_stream is stream
    assert device.current_stream is device.stream


def test_streams_of_others_are_not_destroyed(fake: FakeDriver, device: CudaDevice) -> None:
    owner = object()
    foreign = Stream.external(device, LEGACY_STREAM, owner)
    assert foreign.handle == 1
    own = Stream(device)
    number = own.handle
    assert f"{number:#x}" in repr(own)
    del foreign, own
    gc.collect()
    driver.drain()
    assert fake.called("cuStreamDestroy") == [[number]]
