"""Arrays, eager ops and compiled functions on a real GPU, against the CPU."""

from __future__ import annotations

import gc
import threading
from typing import Any

import numpy as np
import pytest

import tessera as ts
from tests.api.test_devices import PROGRAMS, grid

pytestmark = pytest.mark.gpu


def on_gpu(data: Any) -> Any:
    return ts.device_put(np.asarray(data), "cuda:0")


def close(x: Any, wanted: Any, tolerance: float = 1e-4) -> None:
    assert str(x.device) == "cuda:0"
    np.testing.assert_allclose(np.asarray(x), wanted, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("mode", ["jit", "eager", "grad", "vmap"])
def test_program(name: str, mode: str) -> None:
    fn, args = PROGRAMS[name]
    if mode == "grad":
        if name in ("argmax", "while", "sort", "fori"):
            pytest.skip("no gradient")
        inner = fn
        fn = ts.jit(ts.grad(lambda *a: ts.sum(ts.sin(inner(*a)))))
    elif mode == "vmap":
        args = tuple([np.stack([a, a * 0.5 + 0.1]) for a in args])
        fn = ts.jit(ts.vmap(fn))
    elif mode == "jit":
        fn = ts.jit(fn)
    wanted = fn(*[ts.asarray(a) for a in args])
    close(fn(*[on_gpu(a) for a in args]), np.asarray(wanted))


def test_round_trip() -> None:
    names = "bool int8 uint16 int32 int64 float16 bfloat16 float32 float64 complex64"
    for dtype in names.split():
        x = ts.astype(ts.arange(1000), getattr(ts, dtype))
        y = x.to_device("cuda:0")
        assert y.device == ts.Device("cuda", 0)
        assert np.array_equal(np.asarray(y), np.asarray(x))
    assert float(on_gpu(np.float32(2.5))) == 2.5


def test_large_arrays() -> None:
    data = np.random.default_rng(0).standard_normal((3000, 4097), dtype=np.float32)
    x = on_gpu(data)
    close(ts.sum(x, axis=0), data.sum(axis=0), 1e-2)
    close(ts.jit(lambda x: ts.exp(x) + x[:, ::-1])(x), np.exp(data) + data[:, ::-1])
    close(ts.max(x), data.max())


def test_calls_return_before_the_work_is_done() -> None:
    x = on_gpu(np.ones((4096, 4096), np.float32))
    f = ts.jit(lambda x: ts.exp(x) * 0.5)
    for _ in range(20):
        y = f(x)
    assert y.block_until_ready() is y
    close(y[0, :3], np.full(3, np.exp(1) * 0.5))


def test_memory_is_used_again() -> None:
    from tessera.runtime.cuda.device import cuda_device

    x = on_gpu(np.ones(1 << 20, np.float32))
    f = ts.jit(lambda x: x * 1.5)
    for _ in range(3):
        f(x)
    gc.collect()
    before = cuda_device(0).pool.statistics()
    for _ in range(50):
        f(x)
    gc.collect()
    after = cuda_device(0).pool.statistics()
    assert after.live == before.live
    assert after.reserved == before.reserved


def test_threads() -> None:
    f = ts.jit(lambda x: ts.cumulative_sum(ts.tanh(x)))
    data = grid(1000)
    wanted = np.asarray(f(ts.asarray(data)))
    failures: list[BaseException] = []

    def work() -> None:
        try:
            for _ in range(50):
                close(f(on_gpu(data)), wanted, 1e-3)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def test_streams() -> None:
    from tessera.runtime.cuda.device import cuda_device
    from tessera.runtime.cuda.stream import Stream

    x = on_gpu(np.ones(1 << 22, np.float32))
    f = ts.jit(lambda x: x * 2 + 1)
    with Stream(cuda_device(0)):
        y = f(f(x))
    close(f(y)[:3], np.full(3, 15.0))


def test_dlpack_with_torch() -> None:
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("torch has no CUDA")
    data = grid(64, 32)
    x = on_gpu(data)
    there = torch.from_dlpack(x)
    assert there.is_cuda
    assert np.array_equal(there.cpu().numpy(), data)
    for source in (there, there.T, there[1:, 3:], there.to(torch.bfloat16)):
        back = ts.from_dlpack(source)
        assert str(back.device) == "cuda:0"
        wanted = source.to(torch.float32).cpu().numpy()
        assert np.array_equal(np.asarray(ts.astype(back, ts.float32)), wanted)
    assert ts.from_dlpack(there).storage.address == there.data_ptr()


def test_the_array_interface() -> None:
    cupy = pytest.importorskip("cupy")
    data = grid(64, 32)
    there = cupy.asarray(on_gpu(data))
    assert np.array_equal(cupy.asnumpy(there), data)
    close(ts.asarray(there * 2), data * 2)
