"""The CUDA backend of arrays and executables, over a driver in memory whose kernels do nothing."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tessera as ts
from tessera.api import cuda_backend
from tessera.graph.device import DeviceError, install_backend
from tessera.runtime.cuda import driver
from tessera.runtime.cuda.device import cuda_device
from tessera.runtime.cuda.errors import ForeignBufferError, LaunchError
from tessera.runtime.cuda.stream import Stream
from tests.runtime.cuda.fake_driver import FakeDriver
from tests.runtime.cuda.native_driver import NativeDriver

DATA = np.arange(12, dtype=np.float32).reshape(3, 4)


def test_devices(native: NativeDriver) -> None:
    assert [str(d) for d in ts.devices("cuda")] == ["cuda:0", "cuda:1"]
    with pytest.raises(DeviceError, match="there is no device 'cuda:2'"):
        ts.zeros(2, device="cuda:2")


def test_no_device(native: NativeDriver, fake: FakeDriver) -> None:
    fake.devices = 0
    assert ts.devices() == [ts.Device("cpu")]
    with pytest.raises(DeviceError, match="'cuda:0': the driver finds no device"):
        ts.zeros(2, device="cuda")


def test_no_driver_and_no_bindings(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> Any:
        raise ImportError(f"No module named {name!r}")

    monkeypatch.setattr(driver, "_state", driver._State())
    install_backend("cuda", cuda_backend)
    monkeypatch.setattr(driver, "_library", lambda: None)
    monkeypatch.setattr(driver, "library_exists", lambda: False)
    assert ts.devices("cuda") == []
    with pytest.raises(DeviceError, match=r"its library, libcuda.so.1, is not installed") as info:
        ts.device("cuda:0")
    assert "leave the device out" in (info.value.fix or "")
    monkeypatch.setattr(driver, "library_exists", lambda: True)
    monkeypatch.setattr(driver.importlib, "import_module", missing)
    assert ts.devices("cuda") == []
    with pytest.raises(DeviceError, match="the package cuda-bindings cannot be imported"):
        ts.device("cuda:0")


def test_arrays(native: NativeDriver) -> None:
    x = ts.device_put(DATA, "cuda:0")
    assert np.array_equal(np.asarray(x), DATA)
    y = x.to_device("cuda:1")
    assert str(y.device) == "cuda:1"
    assert np.array_equal(np.asarray(y), DATA)
    assert np.array_equal(np.asarray(ts.reshape(y, (4, 3))), DATA.reshape(4, 3))
    assert x.block_until_ready() is x
    assert ts.device_put(np.empty((0, 3)), "cuda:0").tolist() == []


def test_a_program_launches_its_kernels(native: NativeDriver) -> None:
    x = ts.device_put(DATA, "cuda:0")
    f = ts.jit(lambda x: ts.exp(x) * 2)
    for _ in range(3):
        y = f(x)
    assert native["launches"] == 3
    assert native["threads"] % 32 == 0
    assert native["parameter"] == x.storage.address
    assert (str(y.device), y.shape) == ("cuda:0", (3, 4))
    assert (x * 2.0 + x).shape == (3, 4)
    assert native["launches"] == 5


def test_a_refused_launch_names_the_kernel_and_the_line(native: NativeDriver) -> None:
    x = ts.device_put(DATA, "cuda:0")
    native["launch_status"] = 701
    with pytest.raises(LaunchError, match=r"launch of kernel exp.*\n.*test_backend.py"):
        ts.jit(lambda x: ts.exp(x))(x)
    native["launch_status"] = 0
    ts.jit(lambda x: ts.exp(x))(x)


def test_buffers_go_back_to_the_pool(native: NativeDriver, fake: FakeDriver) -> None:
    x = ts.device_put(DATA, "cuda:0")
    f = ts.jit(lambda x: x + 1)
    for _ in range(3):
        f(x)
    used = fake.used
    for _ in range(20):
        f(x)
    assert fake.used == used


def test_a_result_has_the_buffer_of_a_donated_argument(
    native: NativeDriver, fake: FakeDriver
) -> None:
    f = ts.jit(lambda x: x + 1, donate_argnums=0)
    x = ts.device_put(DATA, "cuda:0")
    owner, pointer = id(x.storage.owner), x.storage.address
    used = fake.used
    for _ in range(3):
        x = f(x)
        assert (id(x.storage.owner), x.storage.address) == (owner, pointer)
    assert native["launches"] == 3
    assert native["parameter"] == pointer
    assert fake.used == used
    assert not fake.called("cuMemcpyDtoDAsync")


def test_what_others_may_see_is_copied(native: NativeDriver, fake: FakeDriver) -> None:
    f = ts.jit(lambda x: x + 1, donate_argnums=0)
    others: list[Any] = [
        lambda x: x.storage,
        lambda x: ts.reshape(x, (4, 3)),
        lambda x: x.__cuda_array_interface__,
        lambda x: x.__dlpack__(max_version=(1, 0)),
    ]
    for k, other in enumerate(others):
        x = ts.device_put(DATA, "cuda:0")
        held = other(x)
        before = x.storage.address
        y = f(x)
        assert y.storage.address == native["parameter"] != before
        assert len(fake.called("cuMemcpyDtoDAsync")) == k + 1
        after = y.storage.address
        assert f(y).storage.address == after
        del held


def test_streams_of_donated_arguments(native: NativeDriver, fake: FakeDriver) -> None:
    """Work of another stream that reads the memory is waited for; results stay in the stream of
    their buffer."""
    f = ts.jit(lambda x: x + 1, donate_argnums=0)
    g = ts.jit(lambda x: x * 2)
    x = ts.device_put(DATA, "cuda:0")
    f(ts.device_put(DATA, "cuda:0"))
    side = Stream(cuda_device(0))
    with side:
        g(x)
    waits, before = len(fake.called("cuStreamWaitEvent")), x.storage.address
    y = f(x)
    assert y.storage.address == before
    assert len(fake.called("cuStreamWaitEvent")) > waits
    with side:
        z = f(y)
    assert z.storage.address != before
    assert z.storage.owner.stream is side


def test_other_libraries(native: NativeDriver) -> None:
    x = ts.device_put(DATA, "cuda:0")
    found = x.__cuda_array_interface__
    assert found["data"] == (x.storage.address, False)
    assert found["shape"] == (3, 4)
    assert x.__dlpack_device__() == (2, 0)
    assert "dltensor_versioned" in repr(x.__dlpack__(max_version=(1, 0)))
    assert np.array_equal(np.from_dlpack(x, device="cpu"), DATA)
    with pytest.raises(BufferError, match="copy=False"):
        x.__dlpack__(max_version=(1, 0), dl_device=(1, 0), copy=False)

    class Foreign:
        def __init__(self, interface: dict[str, Any]) -> None:
            self.__cuda_array_interface__ = interface

    shared = ts.asarray(Foreign(found))
    assert shared.storage.address == x.storage.address
    assert np.array_equal(np.asarray(shared), DATA)
    columns = {**found, "shape": (4, 3), "strides": (4, 16)}
    copied = ts.asarray(Foreign(columns))
    assert np.array_equal(np.asarray(copied), DATA.T)
    odd = {**found, "shape": (4,), "data": (found["data"][0] + 4, False)}
    assert np.array_equal(np.asarray(ts.asarray(Foreign(odd))), DATA.ravel()[1:5])
    for bad in (columns, odd):
        with pytest.raises(ForeignBufferError, match="copy=False"):
            ts.asarray(Foreign(bad), copy=False)


def test_out_of_memory(native: NativeDriver) -> None:
    with pytest.raises(MemoryError, match="the device has no memory left"):
        ts.device_put(np.zeros(1 << 20, np.float32), "cuda:0")
