"""Launches from Python, and from native programs over native stand-ins of the driver."""

from __future__ import annotations

import functools
import os
import signal
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from tessera.config import config
from tessera.runtime.cache import ObjectCache
from tessera.runtime.call import make_caller
from tessera.runtime.codegen import Source
from tessera.runtime.cuda import launch as launch_module
from tessera.runtime.cuda.device import CudaDevice
from tessera.runtime.cuda.errors import CudaError, HangError, LaunchError
from tessera.runtime.cuda.launch import (
    PackedParameters,
    kernel_table,
    launch,
    load_launcher,
    native_symbols,
    nvtx_range,
    record_of,
    run_program,
)
from tessera.runtime.cuda.launcher_text import IMPORTS
from tessera.runtime.cuda.module import Kernel, load_cubin
from tessera.runtime.cuda.stream import Stream
from tessera.runtime.engine import Loaded, load
from tessera.runtime.memory import pointer
from tessera.target.machine import machine
from tests.runtime.cuda.fake_driver import FakeDriver
from tests.runtime.cuda.native_driver import NativeDriver

# words: record, kernel table, grid, parameter, host memory, device memory, how often.
MAIN = """
declare i32 @tessera_cuda_launch(ptr, i64, i32, i32, ptr, ptr)
declare i32 @tessera_cuda_launch_with(ptr, i64, i32, i32, ptr, ptr, i32, i32)
declare i32 @tessera_cuda_read(ptr, ptr, i64, ptr)
declare i32 @tessera_cuda_write(ptr, ptr, i64, ptr)

define void @write(ptr %words) {
  %record = load ptr, ptr %words
  %device.at = getelementptr i64, ptr %words, i64 1
  %device = load ptr, ptr %device.at
  %host.at = getelementptr i64, ptr %words, i64 2
  %host = load ptr, ptr %host.at
  %a = call i32 @tessera_cuda_write(ptr %device, ptr %host, i64 8, ptr %record)
  %b = call i32 @tessera_cuda_write(ptr %device, ptr %host, i64 8, ptr %record)
  ret void
}

define void @main(ptr %words) {
entry:
  %parameters = alloca [1 x ptr]
  %record = load ptr, ptr %words
  %table.at = getelementptr i64, ptr %words, i64 1
  %table = load ptr, ptr %table.at
  %kernel = load ptr, ptr %table
  %grid.at = getelementptr i64, ptr %words, i64 2
  %grid = load i64, ptr %grid.at
  %value = getelementptr i64, ptr %words, i64 3
  store ptr %value, ptr %parameters
  %host.at = getelementptr i64, ptr %words, i64 4
  %host = load ptr, ptr %host.at
  %device.at = getelementptr i64, ptr %words, i64 5
  %device = load ptr, ptr %device.at
  %times.at = getelementptr i64, ptr %words, i64 6
  %times = load i64, ptr %times.at
  br label %head

head:
  %i = phi i64 [ 0, %entry ], [ %next, %body ]
  %done = icmp sge i64 %i, %times
  br i1 %done, label %last, label %body

body:
  %a = call i32 @tessera_cuda_launch(ptr %kernel, i64 %grid, i32 128, i32 1000, ptr %record, \
ptr %parameters)
  %next = add i64 %i, 1
  %failed = icmp ne i32 %a, 0
  br i1 %failed, label %last, label %head

last:
  %none = icmp eq ptr %host, null
  br i1 %none, label %leave, label %read

read:
  %b = call i32 @tessera_cuda_read(ptr %host, ptr %device, i64 8, ptr %record)
  br label %leave

leave:
  ret void
}

define void @clustered(ptr %words) {
  %parameters = alloca [1 x ptr]
  %record = load ptr, ptr %words
  %kernel.at = getelementptr i64, ptr %words, i64 1
  %kernel = load ptr, ptr %kernel.at
  %value = getelementptr i64, ptr %words, i64 2
  store ptr %value, ptr %parameters
  %cluster.at = getelementptr i64, ptr %words, i64 3
  %cluster = load i32, ptr %cluster.at
  %overlap.at = getelementptr i64, ptr %words, i64 4
  %overlap = load i32, ptr %overlap.at
  %a = call i32 @tessera_cuda_launch_with(ptr %kernel, i64 6, i32 256, i32 512, ptr %record, \
ptr %parameters, i32 %cluster, i32 %overlap)
  ret void
}
"""


@functools.cache
def native_driver() -> NativeDriver:
    return NativeDriver()


@functools.cache
def launcher() -> Loaded:
    addresses = native_driver().addresses
    return load_launcher({name: addresses[name] for name in IMPORTS})


@functools.cache
def main() -> Loaded:
    source = Source(MAIN, machine("host"), "a test's program")
    return load(source, ObjectCache(None), launcher().addresses)


@pytest.fixture
def native(monkeypatch: pytest.MonkeyPatch) -> Iterator[NativeDriver]:
    """Native programs call this driver."""
    run = make_caller(launcher().addresses["tessera_cuda_run"], owner=launcher())
    monkeypatch.setattr(launch_module, "_launcher", launcher)
    monkeypatch.setattr(launch_module, "_run", lambda: run)
    found = native_driver()
    found.reset()
    yield found
    found.reset()


@pytest.fixture
def kernel(device: CudaDevice) -> Kernel:
    return load_cubin(device, b"\x7fELF").kernel("k")


def run(
    kernel: Kernel,
    *,
    grid: int = 3,
    parameter: int = 7,
    read: tuple[np.ndarray, np.ndarray] | None = None,
    times: int = 1,
) -> None:
    host, source = read or (0, 0)
    table = kernel_table([kernel])
    run_program(
        main().addresses["main"], kernel.device.stream, table, grid, parameter, host, source, times
    )


# --- native programs ------------------------------------------------------------------------------


def test_a_native_launch(native: NativeDriver, kernel: Kernel) -> None:
    run(kernel, grid=3, parameter=-5)
    assert native["launches"] == 1
    assert native["kernel"] == kernel.handle
    names = ("blocks", "y", "z", "threads", "block_y", "block_z", "shared")
    assert [native[name] for name in names] == [3, 1, 1, 128, 1, 1, 1000]
    assert native["stream"] == kernel.device.stream.handle
    assert native["parameter"] == -5
    record = record_of(kernel.device.stream)
    assert (record.launches, record.last, record.status) == (1, kernel.handle, 0)


def test_the_context_is_current_meanwhile(native: NativeDriver, kernel: Kernel) -> None:
    run(kernel)
    assert (native["pushes"], native["pops"]) == (1, 1)
    native["context"] = kernel.device.context
    run(kernel)
    assert (native["pushes"], native["pops"]) == (1, 1)
    native["context"] = 0
    native["push_status"] = 201
    with pytest.raises(CudaError, match="no context"):
        run(kernel)
    assert native["launches"] == 2
    native["current_status"] = 3
    with pytest.raises(CudaError, match="not started"):
        run(kernel)


def test_no_blocks_are_no_launch(native: NativeDriver, kernel: Kernel) -> None:
    run(kernel, grid=0)
    assert native["launches"] == 0


@pytest.mark.parametrize("grid", [1 << 31, -1])
def test_too_many_blocks(native: NativeDriver, kernel: Kernel, grid: int) -> None:
    with pytest.raises(CudaError, match="launch of kernel k"):
        run(kernel, grid=grid)
    assert native["launches"] == 0


def test_a_launch_that_fails_ends_the_run(native: NativeDriver, kernel: Kernel) -> None:
    kernel.label = "softmax"
    native["launch_status"] = 701
    read = np.ones(1, np.int64), np.full(1, 9, np.int64)
    with pytest.raises(LaunchError) as caught:
        run(kernel, read=read, times=5)
    text = str(caught.value)
    assert "launch of kernel softmax: a launch needs more than a multiprocessor has" in text
    assert "grid 3 x 1 x 1, block 128 x 1 x 1, 1000 bytes of dynamic shared memory" in text
    assert native["launches"] == 1
    # A predicate that was not read is false: loops end.
    assert read[0][0] == 0
    native["launch_status"] = 0
    run(kernel, read=read)
    assert read[0][0] == 9


def test_a_read_waits_and_copies(native: NativeDriver, kernel: Kernel) -> None:
    native["busy"] = 5
    host, source = np.zeros(1, np.int64), np.full(1, 42, np.int64)
    run(kernel, read=(host, source))
    assert host[0] == 42
    assert native["queries"] == 6
    assert record_of(kernel.device.stream).reads == 1


def test_a_write_waits_and_copies(native: NativeDriver, kernel: Kernel) -> None:
    native["busy"] = 5
    target, host = np.zeros(1, np.int64), np.full(1, 42, np.int64)
    run_program(main().addresses["write"], kernel.device.stream, target, host)
    assert target[0] == 42
    assert (native["copies"], native["synchronizations"]) == (2, 2)


@pytest.mark.parametrize("name", ["query_status", "copy_status", "synchronize_status"])
def test_a_write_that_fails(native: NativeDriver, kernel: Kernel, name: str) -> None:
    native[name] = 719
    target, host = np.zeros(1, np.int64), np.full(1, 42, np.int64)
    with pytest.raises(LaunchError):
        run_program(main().addresses["write"], kernel.device.stream, target, host)
    assert native["copies"] == (name != "query_status")  # the second one does nothing
    assert host[0] == 42


@pytest.mark.parametrize("name", ["query_status", "copy_status", "synchronize_status"])
def test_a_read_that_fails(native: NativeDriver, kernel: Kernel, name: str) -> None:
    native[name] = 719
    host = np.ones(1, np.int64)
    with pytest.raises(LaunchError, match="the last kernel that was launched is k"):
        run(kernel, read=(host, np.ones(1, np.int64)))
    assert host[0] == 0


@pytest.mark.parametrize(
    ("cluster", "overlap", "expected"),
    [(1, 0, []), (2, 0, [(4, 2)]), (1, 1, [(6, 1)]), (4, 1, [(4, 4), (6, 1)])],
)
def test_launches_with_attributes(
    native: NativeDriver,
    kernel: Kernel,
    cluster: int,
    overlap: int,
    expected: list[tuple[int, int]],
) -> None:
    stream = kernel.device.stream
    run_program(main().addresses["clustered"], stream, kernel.handle, 77, cluster, overlap)
    names = ("blocks", "y", "z", "threads", "block_y", "block_z", "shared", "parameter")
    assert [native[name] for name in names] == [6, 1, 1, 256, 1, 1, 512, 77]
    assert (native["kernel"], native["stream"]) == (kernel.handle, stream.handle)
    assert native["attributes"] == len(expected)
    found = [(native["attribute0"], native["value0"]), (native["attribute1"], native["value1"])]
    assert found[: len(expected)] == expected


def test_debug_mode_waits_for_each_launch(native: NativeDriver, kernel: Kernel) -> None:
    native["busy"] = 3
    run(kernel)
    assert native["queries"] == 0
    with config.update(cuda_debug=True):
        run(kernel)
    assert native["queries"] == 4
    native["query_status"] = 700
    with config.update(cuda_debug=True), pytest.raises(LaunchError, match="launch of kernel k"):
        run(kernel)


def test_debug_mode_names_a_kernel_that_hangs(native: NativeDriver, kernel: Kernel) -> None:
    native["busy"] = 1 << 40
    with (
        config.update(cuda_debug=True, cuda_timeout=0.05),
        pytest.raises(HangError, match=r"kernel k on cuda:0 has not ended in 0\.05 s"),
    ):
        run(kernel, times=3)
    assert native["launches"] == 1


def test_signals_end_a_wait(native: NativeDriver, kernel: Kernel) -> None:
    native["busy"] = 1 << 40
    threading.Timer(0.2, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
    with pytest.raises(KeyboardInterrupt):
        run(kernel, read=(np.ones(1, np.int64), np.ones(1, np.int64)))
    native["busy"] = 0
    run(kernel)


def test_a_handlers_own_error_comes_through(native: NativeDriver, kernel: Kernel) -> None:
    class Stop(Exception):
        pass

    def handler(*_: object) -> None:
        raise Stop("now")

    native["busy"] = 1 << 40
    before = signal.signal(signal.SIGALRM, handler)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.1)
        with pytest.raises(Stop, match="now"):
            run(kernel, read=(np.ones(1, np.int64), np.ones(1, np.int64)))
    finally:
        signal.signal(signal.SIGALRM, before)


def test_signals_end_a_long_run_of_launches(native: NativeDriver, kernel: Kernel) -> None:
    threading.Timer(0.2, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
    with pytest.raises(KeyboardInterrupt):
        run(kernel, times=1 << 50)


def test_each_thread_has_its_own_record(native: NativeDriver, kernel: Kernel) -> None:
    records: list[int] = []
    together = threading.Barrier(3)

    def work() -> None:
        together.wait()
        for _ in range(200):
            run(kernel)
        together.wait()
        records.append(record_of(kernel.device.stream).launches)

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert records == [200, 200, 200]
    assert record_of(Stream(kernel.device)) is not record_of(kernel.device.stream)


def test_symbols_for_other_programs(native: NativeDriver) -> None:
    assert sorted(native_symbols()) == [
        "tessera_cuda_fetch",
        "tessera_cuda_launch",
        "tessera_cuda_launch_with",
        "tessera_cuda_offload",
        "tessera_cuda_read",
        "tessera_cuda_wait",
        "tessera_cuda_write",
    ]


def test_ranges_for_profilers(
    native: NativeDriver, kernel: Kernel, monkeypatch: pytest.MonkeyPatch
) -> None:
    names: list[str] = []

    class Nvtx:
        @staticmethod
        def annotate(name: str, domain: str) -> Any:
            names.append(f"{domain}:{name}")
            return nvtx_range("none")

    monkeypatch.setattr(launch_module, "_nvtx", lambda: None)
    with config.update(nvtx=True):
        run(kernel)
        original = launch_module.nvtx_range
        monkeypatch.setattr(
            launch_module, "nvtx_range", lambda name: names.append(name) or original(name)
        )
        run(kernel)
    assert names == ["program"]
    assert native["launches"] == 2


# --- from Python ----------------------------------------------------------------------------------


def test_a_launch_from_python(fake: FakeDriver, kernel: Kernel) -> None:
    buffer = kernel.device.pool.allocate(64)
    launch(kernel, (2, 3), 64, [buffer, 5, np.float32(1.5)], shared=128)
    ((handle, *numbers, stream, address, extra),) = fake.called("cuLaunchKernel")
    assert handle == kernel.raw_handle
    assert numbers == [2, 3, 1, 64, 1, 1, 128]
    assert stream == kernel.device.stream.raw_handle
    assert (extra, address != 0) == (0, True)
    launch(kernel, (2, 0), 64, [])
    assert len(fake.called("cuLaunchKernel")) == 1


def test_parameters_in_memory() -> None:
    packed = PackedParameters([-1, np.float32(1.5), b"x" * 128, np.arange(3, dtype=np.int16)])
    addresses = packed._words
    assert packed.address == pointer(addresses)
    assert not any(int(address) % 64 for address in addresses)
    data, base = packed._values.tobytes(), pointer(packed._values)
    contents = [data[int(address) - base :] for address in addresses]
    assert contents[0].startswith(b"\xff" * 8)
    assert contents[1].startswith(np.float32(1.5).tobytes())
    assert contents[2].startswith(b"x" * 128)
    assert contents[3].startswith(np.arange(3, dtype=np.int16).tobytes())
    assert PackedParameters([]).address


def test_attributes_from_python(fake: FakeDriver, kernel: Kernel) -> None:
    launch(kernel, 4, 32, [1], cluster=2, overlap=True)
    ((configuration, handle, _, _),) = fake.called("cuLaunchKernelEx")
    assert handle == kernel.raw_handle
    assert (configuration.gridDimX, configuration.blockDimX, configuration.numAttrs) == (4, 32, 2)
    first, second = configuration.attrs
    assert (first.value.clusterDim.x, first.value.clusterDim.z) == (2, 1)
    assert second.value.programmaticStreamSerializationAllowed == 1


def test_a_launch_on_another_stream_is_ordered(fake: FakeDriver, kernel: Kernel) -> None:
    buffer = kernel.device.pool.allocate(64)
    stream = Stream(kernel.device)
    launch(kernel, 1, 32, [buffer], stream=stream)
    assert fake.called("cuStreamWaitEvent")[0][0] == stream.raw_handle
    with stream:
        launch(kernel, 1, 32, [])
    assert fake.called("cuLaunchKernel")[-1][8] == stream.raw_handle


@pytest.mark.parametrize(
    ("grid", "block", "words"),
    [
        (1, 2048, "at most 1024 threads"),
        (1, 1000, "128 registers a thread, a block of this kernel has at most 512"),
        ((1, 70000), 32, "the grid is larger"),
    ],
)
def test_refused_launches_say_why(
    fake: FakeDriver, kernel: Kernel, grid: Any, block: int, words: str
) -> None:
    fake.failures["cuLaunchKernel"] = 1
    with pytest.raises(CudaError, match=words):
        launch(kernel, grid, block, [])
    fake.failures["cuFuncGetAttribute"] = 700  # nothing answers any more
    with pytest.raises(CudaError, match="launch of kernel k"):
        launch(kernel, 1, 1000, [])


def test_shared_memory_beyond_the_device(fake: FakeDriver, kernel: Kernel) -> None:
    with pytest.raises(LaunchError, match="a block needs 300000 bytes of shared memory"):
        launch(kernel, 1, 32, [], shared=300000)
    assert not fake.called("cuLaunchKernel")
