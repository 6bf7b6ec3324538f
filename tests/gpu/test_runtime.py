"""The CUDA runtime on a device: copies, launches, order, faults, other libraries."""

from __future__ import annotations

import functools
import os
import signal
import threading
import time
from collections.abc import Iterator

import numpy as np
import pytest

from tessera import dtypes
from tessera.config import config
from tessera.graph.device import DeviceError
from tessera.runtime.cache import ObjectCache
from tessera.runtime.codegen import Source
from tessera.runtime.cuda import driver, transfer
from tessera.runtime.cuda.device import CudaDevice, cuda_device
from tessera.runtime.cuda.errors import (
    CudaError,
    DeviceMemoryError,
    HangError,
)
from tessera.runtime.cuda.graphs import GraphProgram
from tessera.runtime.cuda.launch import (
    NativeProgram,
    kernel_table,
    launch,
    native_symbols,
    run_program,
)
from tessera.runtime.cuda.memory import DeviceBuffer
from tessera.runtime.cuda.module import CudaModule, DriverAssembler, Kernel, load_cubin
from tessera.runtime.cuda.stream import Event, Stream
from tessera.runtime.cuda.tensormap import tensor_maps
from tessera.runtime.engine import Loaded, load
from tessera.target.machine import machine
from tests.gpu.kernels import add_one, script

pytestmark = [
    pytest.mark.gpu,
    # Other libraries warn of their own affairs when they are imported.
    pytest.mark.filterwarnings("ignore"),
]

F32 = np.dtype(np.float32)


@pytest.fixture
def held(device: CudaDevice) -> Iterator[int]:
    """The address of a flag that `wait_flag` waits for; it is raised at the end, whatever happens.

    It lies in memory of the host that a kernel reads. To fill device memory is a launch of the
    driver's, which may come behind the one that waits.
    """
    flag = transfer.pinned.empty((16,), np.dtype(np.uint32), device)
    flag[:] = 0
    yield flag.ctypes.data
    flag[:] = 1
    device.synchronize()


# --- devices and copies ---------------------------------------------------------------------------


def test_the_device(device: CudaDevice) -> None:
    assert driver.available()
    assert device.machine.capability <= device.capability
    assert device.limits.shared_per_block_optin >= device.machine.shared_per_block
    free, total = device.memory_info()
    assert 0 < free <= total
    with pytest.raises(DeviceError, match="there is no device"):
        cuda_device(driver.device_count())
    driver.check_ptx((8, 0))


@pytest.mark.parametrize("size", [0, 1, 3, 1000, (1 << 20) + 1, 1 << 26])
def test_copies(device: CudaDevice, size: int) -> None:
    array = np.random.default_rng(0).integers(0, 255, size, np.uint8)
    buffer = transfer.to_device(array, device)
    np.testing.assert_array_equal(transfer.to_host(buffer, (size,), array.dtype), array)
    moved = transfer.move(buffer, device)
    np.testing.assert_array_equal(transfer.to_host(moved, (size,), array.dtype), array)
    transfer.fill(moved, 9)
    assert (transfer.to_host(moved, (size,), array.dtype) == 9).all()


def test_pinned_copies(device: CudaDevice) -> None:
    array = transfer.pinned.empty((1 << 20,), F32, device)
    array[:] = np.arange(1 << 20)
    assert transfer.is_pinned(array.ctypes.data)
    assert not transfer.is_pinned(np.zeros(4).ctypes.data)
    buffer = transfer.to_device(array, device)
    array[:] = 0  # the copy has read it
    out = transfer.pinned.empty((1 << 20,), F32, device)
    transfer.read(buffer, out)
    np.testing.assert_array_equal(out, np.arange(1 << 20, dtype=np.float32))


# --- launches -------------------------------------------------------------------------------------


def test_launches(device: CudaDevice, kernels: CudaModule) -> None:
    array = np.arange(1000, dtype=np.float32)
    buffer = transfer.to_device(array, device)
    for _ in range(3):
        add_one(kernels, buffer, 1000)
    np.testing.assert_array_equal(transfer.to_host(buffer, (1000,), F32), array + 3)
    kernel = kernels.kernel("add_one")
    assert kernel.registers > 0
    assert kernel.local == 0
    assert kernel.occupancy(128) > 0


def test_all_of_the_shared_memory(device: CudaDevice, kernels: CudaModule) -> None:
    out = transfer.to_device(np.zeros(1, np.uint32), device)
    size = device.limits.shared_per_block_optin
    launch(kernels.kernel("last_word"), 1, 32, [out, size], shared=size)
    assert transfer.to_host(out, (1,), np.dtype(np.uint32))[0] == 7
    with pytest.raises(CudaError, match="bytes of shared memory"):
        launch(kernels.kernel("last_word"), 1, 32, [out, size], shared=size + 4)


def test_attributes_of_launches(device: CudaDevice, kernels: CudaModule) -> None:
    if device.capability < (9, 0):
        pytest.skip("clusters need capability 9.0")
    buffer = transfer.to_device(np.zeros(1024, np.float32), device)
    kernel = kernels.kernel("add_one")
    launch(kernel, 8, 128, [buffer, 1024], cluster=2)
    launch(kernel, 8, 128, [buffer, 1024], overlap=True)
    launch(kernel, 8, 128, [buffer, 1024], cluster=2, overlap=True)
    # `add_one` does not wait for the kernel before, so overlapping ones may lose an addition.
    assert transfer.to_host(buffer, (1024,), F32).min() >= 1


def test_refused_launches_leave_the_device_usable(device: CudaDevice, kernels: CudaModule) -> None:
    buffer = transfer.to_device(np.zeros(4, np.float32), device)
    with pytest.raises(CudaError, match="a block has at most 1024 threads"):
        launch(kernels.kernel("add_one"), 1, 2048, [buffer, 4])
    with pytest.raises(CudaError):
        load_cubin(device, b"this is no program\0", "nothing")
    with pytest.raises(CudaError, match="kernel 'missing'"):
        kernels.kernel("missing")
    add_one(kernels, buffer, 4)
    assert transfer.to_host(buffer, (4,), F32).tolist() == [1, 1, 1, 1]


def test_the_drivers_assembler(device: CudaDevice) -> None:
    assembler = DriverAssembler(device)
    found = assembler.run(".version 8.0\n.target sm_80\n.address_size 64\nnonsense;\n", "sm_80")
    assert found.cubin is None
    assert "error" in found.log.lower()


# words: record, kernel table, device memory, elements, host memory, times.
_MAIN = """
declare i32 @tessera_cuda_launch(ptr, i64, i32, i32, ptr, ptr)
declare i32 @tessera_cuda_read(ptr, ptr, i64, ptr)

define void @add(ptr %words) {
entry:
  %parameters = alloca [2 x ptr]
  %record = load ptr, ptr %words
  %table.at = getelementptr i64, ptr %words, i64 1
  %table = load ptr, ptr %table.at
  %kernel = load ptr, ptr %table
  %memory = getelementptr i64, ptr %words, i64 2
  %count.at = getelementptr i64, ptr %words, i64 3
  %count = load i64, ptr %count.at
  %times.at = getelementptr i64, ptr %words, i64 5
  %times = load i64, ptr %times.at
  store ptr %memory, ptr %parameters
  %second = getelementptr ptr, ptr %parameters, i64 1
  store ptr %count.at, ptr %second
  %more = add i64 %count, 127
  %grid = udiv i64 %more, 128
  br label %head
head:
  %i = phi i64 [ 0, %entry ], [ %next, %body ]
  %done = icmp sge i64 %i, %times
  br i1 %done, label %leave, label %body
body:
  %a = call i32 @tessera_cuda_launch(ptr %kernel, i64 %grid, i32 128, i32 0, ptr %record, \
ptr %parameters)
  %next = add i64 %i, 1
  br label %head
leave:
  ret void
}

define void @count(ptr %words) {
entry:
  %parameters = alloca [1 x ptr]
  %record = load ptr, ptr %words
  %table.at = getelementptr i64, ptr %words, i64 1
  %table = load ptr, ptr %table.at
  %kernel = load ptr, ptr %table
  %memory = getelementptr i64, ptr %words, i64 2
  %device = load ptr, ptr %memory
  %flag = getelementptr i8, ptr %device, i64 4
  %host.at = getelementptr i64, ptr %words, i64 4
  %host = load ptr, ptr %host.at
  store ptr %memory, ptr %parameters
  br label %body
body:
  %a = call i32 @tessera_cuda_launch(ptr %kernel, i64 1, i32 1, i32 0, ptr %record, \
ptr %parameters)
  %b = call i32 @tessera_cuda_read(ptr %host, ptr %flag, i64 4, ptr %record)
  %value = load i32, ptr %host
  %again = icmp ne i32 %value, 0
  br i1 %again, label %body, label %leave
leave:
  ret void
}
"""


@functools.cache
def programs() -> Loaded:
    return load(Source(_MAIN, machine("host"), "programs"), ObjectCache(None), native_symbols())


def run(name: str, kernel: Kernel, buffer: DeviceBuffer, n: int, times: int = 1) -> np.ndarray:
    host, table = np.full(1, 5, np.uint32), kernel_table([kernel])
    main = programs().addresses[name]
    run_program(main, buffer.stream, table, buffer.pointer, n, host, times, name=name)
    return host


def test_native_programs(device: CudaDevice, kernels: CudaModule) -> None:
    buffer = transfer.to_device(np.zeros(5000, np.float32), device)
    run("add", kernels.kernel("add_one"), buffer, 5000, times=100)
    assert (transfer.to_host(buffer, (5000,), F32) == 100).all()
    run("add", kernels.kernel("add_one"), buffer, 0, times=100)
    with config.update(cuda_debug=True, nvtx=True):
        run("add", kernels.kernel("add_one"), buffer, 5000, times=5)
    assert (transfer.to_host(buffer, (5000,), F32) == 105).all()


def test_loops_that_read_their_condition(device: CudaDevice, kernels: CudaModule) -> None:
    buffer = transfer.to_device(np.array([1000, 1], np.uint32), device)
    host = run("count", kernels.kernel("count_down"), buffer, 0)
    assert host[0] == 0
    assert transfer.to_host(buffer, (2,), np.dtype(np.uint32)).tolist() == [0, 0]


def test_the_cost_of_a_native_launch(device: CudaDevice, kernels: CudaModule) -> None:
    """Prints what a launch costs the host, beside a bare call of the bindings."""
    buffer = transfer.to_device(np.zeros(4, np.float32), device)
    kernel = kernels.kernel("add_one")
    program, table = NativeProgram(programs().addresses["add"]), kernel_table([kernel])
    packed = np.array([buffer.pointer, 4], np.uint64)
    pointers = np.array([packed.ctypes.data, packed.ctypes.data + 8], np.uint64)
    api, address, stream = driver.api(), pointers.ctypes.data, device.stream
    bare: list[float] = []
    ours: list[float] = []
    with device:
        for _ in range(20):
            device.synchronize()
            start = time.perf_counter()
            for _ in range(200):
                api.cuLaunchKernel(
                    kernel.raw_handle, 1, 1, 1, 128, 1, 1, 0, stream.raw_handle, address, 0
                )
            bare.append((time.perf_counter() - start) / 200)
            device.synchronize()
            start = time.perf_counter()
            for _ in range(200):
                program.run(stream, (table, buffer.pointer, 4, 0, 1))
            ours.append((time.perf_counter() - start) / 200)
    print(f"launch: bindings {np.median(bare) * 1e6:.2f} us, native {np.median(ours) * 1e6:.2f} us")


# --- order ----------------------------------------------------------------------------------------


def test_streams_are_ordered_by_use(device: CudaDevice, kernels: CudaModule) -> None:
    other = Stream(device)
    n = 1 << 16
    for _ in range(20):
        buffer = transfer.to_device(np.zeros(n, np.float32), device)
        launch(kernels.kernel("spin"), 1, 1, [300_000])
        add_one(kernels, buffer, n)
        # Used in the other stream: after the addition. And used again there, before it is reused.
        launch(kernels.kernel("spin"), 1, 1, [300_000], stream=other)
        copied = device.pool.allocate(4 * n, other)
        transfer.copy(copied, buffer, other)
        pointer = buffer.pointer
        del buffer
        again = device.pool.allocate(4 * n)
        assert again.pointer == pointer
        transfer.fill(again, 0xFF)
        assert (transfer.to_host(copied, (n,), F32) == 1).all()


def test_threads_and_streams(device: CudaDevice, kernels: CudaModule) -> None:
    errors: list[object] = []

    def work(seed: int, stream: Stream | None) -> None:
        generator = np.random.default_rng(seed)
        try:
            for _ in range(100):
                n = int(generator.integers(1, 20000))
                array = generator.random(n, np.float32)
                buffer = transfer.to_device(array, device, stream)
                add_one(kernels, buffer, n, stream)
                add_one(kernels, buffer, n, stream)
                found = transfer.to_host(buffer, (n,), F32, stream)
                if not np.array_equal(found, array + np.float32(1) + np.float32(1)):
                    errors.append((seed, n))
        except Exception as error:
            errors.append(error)

    streams = [None, None, Stream(device), Stream(device)]
    threads = [threading.Thread(target=work, args=pair) for pair in enumerate(streams)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []


def test_events(device: CudaDevice, kernels: CudaModule) -> None:
    start, end = Event(device, timing=True), Event(device, timing=True)
    stream = device.stream
    stream.record(start)
    launch(kernels.kernel("spin"), 1, 1, [5_000_000])
    stream.record(end)
    assert not end.is_done()
    assert 4e-3 < end.seconds_since(start) < 1.0
    assert end.is_done()


def test_graphs(device: CudaDevice, kernels: CudaModule) -> None:
    buffer = transfer.to_device(np.zeros(100, np.float32), device)
    kernel = kernels.kernel("add_one")
    table, host = kernel_table([kernel]), np.zeros(1, np.uint32)
    program = GraphProgram(programs().addresses["add"], name="add", owner=(kernel, table))
    with config.update(cuda_graphs=5):
        for _ in range(6):
            program.run(device.stream, (table, buffer.pointer, 100, host, 10))
        assert program.graphs == 1
        assert (transfer.to_host(buffer, (100,), F32) == 60).all()
        other = transfer.to_device(np.zeros(100, np.float32), device)
        program.run(device.stream, (table, other.pointer, 100, host, 10))
        assert (transfer.to_host(other, (100,), F32) == 10).all()
        counter = transfer.to_device(np.array([3, 1], np.uint32), device)
        down = GraphProgram(programs().addresses["count"])
        handles = kernel_table([kernels.kernel("count_down")])
        for _ in range(3):
            down.run(device.stream, (handles, counter.pointer, 0, host, 1))
        assert down.graphs == 0
    program.clear()
    device.synchronize()
    driver.drain()


def test_tensor_maps(device: CudaDevice) -> None:
    if device.capability < (9, 0):
        pytest.skip("bulk tensor copies need capability 9.0")
    buffer = device.pool.allocate(256 * 256 * 4)
    for dtype in (dtypes.bfloat16, dtypes.float32, dtypes.float8_e5m2, dtypes.int32):
        for swizzle in (0, 32, 64, 128):
            width = (swizzle or 128) // dtype.itemsize
            found = tensor_maps.get(
                buffer.pointer, dtype, (128, 128), (128, 1), (64, width), swizzle=swizzle
            )
            assert found.data.any()
    assert tensor_maps.get(buffer.pointer, dtypes.float32, (512,), (1,), (64,)).data.any()
    assert tensor_maps.get(
        buffer.pointer, dtypes.int8, (4, 2, 16, 16, 16), (8192, 4096, 256, 16, 1), (1, 1, 8, 8, 16)
    ).data.any()


# --- running out ----------------------------------------------------------------------------------


@pytest.mark.faults
def test_running_out_of_memory(device: CudaDevice, kernels: CudaModule) -> None:
    device.pool.release()
    free, _ = device.memory_info()
    kept = device.pool.allocate(free // 2, place="the larger half")
    with pytest.raises(DeviceMemoryError) as caught:
        device.pool.allocate(free)
    text = str(caught.value)
    assert "the larger half" in text
    assert "test_runtime.py" in text
    assert isinstance(caught.value, MemoryError)
    del kept
    again = device.pool.allocate(free // 2)
    del again
    buffer = transfer.to_device(np.zeros(4, np.float32), device)
    add_one(kernels, buffer, 4)
    assert transfer.to_host(buffer, (4,), F32)[0] == 1
    device.synchronize()
    device.pool.release()
    assert device.memory_info()[0] > free * 0.9


@pytest.mark.faults
def test_fragmentation(device: CudaDevice) -> None:
    device.pool.release()
    free, _ = device.memory_info()
    piece = free // 20
    pieces = [device.pool.allocate(piece + i * 1000) for i in range(18)]
    del pieces[::2]
    # Half is free, in pieces of which none is large enough.
    large = device.pool.allocate(piece * 8)
    transfer.fill(large, 1)
    device.synchronize()
    del large, pieces
    device.pool.release()


# --- faults ---------------------------------------------------------------------------------------


def test_ctrl_c(device: CudaDevice, kernels: CudaModule, held: int) -> None:
    launch(kernels.kernel("wait_flag"), 1, 1, [held])
    threading.Timer(0.3, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
    with pytest.raises(KeyboardInterrupt):
        device.stream.synchronize()


def test_ctrl_c_in_a_native_program(device: CudaDevice, kernels: CudaModule, held: int) -> None:
    buffer = transfer.to_device(np.array([10, 1], np.uint32), device)
    launch(kernels.kernel("wait_flag"), 1, 1, [held])
    threading.Timer(0.3, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
    with pytest.raises(KeyboardInterrupt):
        run("count", kernels.kernel("count_down"), buffer, 0)


@pytest.mark.faults
def test_a_kernel_that_hangs(device: CudaDevice, kernels: CudaModule, held: int) -> None:
    kernel, host = kernels.kernel("wait_flag"), np.full(1, 5, np.uint32)
    table = kernel_table([kernel])
    with (
        config.update(cuda_debug=True, cuda_timeout=0.3),
        pytest.raises(HangError, match="kernel wait_flag on cuda:0 has not ended"),
    ):
        run_program(programs().addresses["add"], device.stream, table, held, 1, host, 1, name="add")


@pytest.mark.faults
def test_a_bad_address_is_reported() -> None:
    text = script(
        """
        from tessera.runtime.cuda.errors import LaunchError
        from tessera.runtime.cuda.launch import launch
        device = cuda_device(0)
        launch(load_kernels(device).kernel("bad_address"), 1, 1, [])
        try:
            device.stream.synchronize()
        except LaunchError as error:
            print(error)
        try:
            device.pool.allocate(1 << 20)
        except LaunchError as error:
            print("again:", error)
        """
    )
    assert "CUDA_ERROR_ILLEGAL_ADDRESS" in text
    assert "TESSERA_CUDA_DEBUG" in text
    assert "again:" in text


@pytest.mark.faults
def test_debug_mode_names_the_kernel() -> None:
    text = script(
        """
        from tests.gpu.test_runtime import run
        from tessera.runtime.cuda.errors import LaunchError
        device = cuda_device(0)
        kernel = load_kernels(device).kernel("bad_address", label="softmax")
        try:
            run("add", kernel, device.pool.allocate(64), 1)
        except LaunchError as error:
            print(error)
        """,
        TESSERA_CUDA_DEBUG="1",
    )
    assert "launch of kernel softmax" in text
    assert "CUDA_ERROR_ILLEGAL_ADDRESS" in text


def test_a_child_of_fork() -> None:
    text = script(
        """
        import os, warnings
        import numpy as np
        from tessera.runtime.cuda import driver, transfer
        from tessera.runtime.cuda.errors import ForkError
        warnings.simplefilter("ignore")
        device = cuda_device(0)
        buffer = transfer.to_device(np.ones(4), device)
        child = os.fork()
        if child == 0:
            try:
                transfer.to_host(buffer, (4,), np.dtype(float))
            except ForkError as error:
                print(error, driver.available(), flush=True)
            del buffer
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        print(transfer.to_host(buffer, (4,), np.dtype(float)))
        """
    )
    assert "was forked from one" in text
    assert "False" in text
    assert "[1. 1. 1. 1.]" in text


def test_buffers_that_live_until_the_end() -> None:
    script(
        """
        import numpy as np, sys
        from tessera.runtime.cuda import transfer
        from tessera.runtime.cuda.stream import Stream
        device = cuda_device(0)
        sys.kept = [transfer.to_device(np.ones(1000), device), Stream(device), load_kernels(device)]
        kept = transfer.pinned.empty((10,), np.dtype(float), device)
        """
    )
