"""The driver: absent, old, failing, in a child of fork; and what its statuses become."""

from __future__ import annotations

import ctypes
import os
import pickle
import subprocess
import sys

import pytest

from tessera.graph.device import DeviceError
from tessera.runtime.cuda import driver, errors
from tessera.runtime.cuda.device import CudaDevice, cuda_device, machine_for
from tessera.runtime.cuda.errors import (
    CudaError,
    DeviceMemoryError,
    DriverVersionError,
    ForkError,
    LaunchError,
    NoDriverError,
)
from tests.runtime.cuda.fake_driver import FakeDriver


@pytest.fixture
def absent(monkeypatch: pytest.MonkeyPatch) -> None:
    """No driver, whatever the machine has."""
    monkeypatch.setattr(driver, "_state", driver._State())
    monkeypatch.setattr(driver, "_library", lambda: None)
    monkeypatch.setattr(driver, "library_exists", lambda: False)


def test_importing_the_package_loads_nothing_of_cuda() -> None:
    program = (
        "import sys, tessera; "
        "bad = [m for m in sys.modules if m.split('.')[0] == 'cuda' or '.runtime.cuda' in m]; "
        "import tessera.runtime.cuda.launch, tessera.runtime.cuda.graphs; "
        "bad += [m for m in sys.modules if m.split('.')[0] == 'cuda']; "
        "sys.exit(str(bad) if bad else 0)"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


@pytest.mark.usefixtures("absent")
def test_without_a_driver_there_is_a_clear_error() -> None:
    assert not driver.available()
    assert not driver.started()
    with pytest.raises(NoDriverError, match=r"libcuda\.so\.1, is not installed") as caught:
        driver.api()
    assert isinstance(caught.value, DeviceError)
    assert "device='cpu'" in str(caught.value)
    with pytest.raises(NoDriverError):
        cuda_device(17)
    with pytest.raises(NoDriverError):
        driver.address("cuLaunchKernel")
    driver.drain()


@pytest.mark.parametrize(
    ("status", "words"), [(100, "no device"), (804, "compatibility"), (42, "cuInit gave 42")]
)
def test_a_driver_that_does_not_start(
    monkeypatch: pytest.MonkeyPatch, status: int, words: str
) -> None:
    fake = FakeDriver()
    fake.failures["cuInit"] = status
    monkeypatch.setattr(driver, "_state", driver._State())
    monkeypatch.setattr(driver, "library_exists", lambda: True)
    monkeypatch.setattr(driver.importlib, "import_module", lambda _: fake)
    assert not driver.available()
    with pytest.raises(NoDriverError, match=words):
        driver.api()


def test_old_drivers_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeDriver()
    fake.version = 11080
    monkeypatch.setattr(driver, "_state", driver._State())
    monkeypatch.setattr(driver, "library_exists", lambda: True)
    monkeypatch.setattr(driver.importlib, "import_module", lambda _: fake)
    with pytest.raises(DriverVersionError, match=r"of CUDA 11\.8"):
        driver.api()
    assert not driver.available()


def test_bindings_that_are_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise ImportError(name)

    monkeypatch.setattr(driver, "_state", driver._State())
    monkeypatch.setattr(driver, "library_exists", lambda: True)
    monkeypatch.setattr(driver.importlib, "import_module", missing)
    with pytest.raises(NoDriverError, match="cuda-bindings cannot be imported"):
        driver.api()


def test_ptx_versions(fake: FakeDriver) -> None:
    fake.version = 12030
    driver.check_ptx((8, 3))
    driver.check_ptx((6, 0))
    with pytest.raises(DriverVersionError, match=r"CUDA 12\.3.*PTX 8\.4 needs CUDA 12\.4"):
        driver.check_ptx((8, 4))
    with pytest.raises(DriverVersionError):
        driver.check_ptx((10, 0))


def test_calls_give_values_or_errors(fake: FakeDriver) -> None:
    assert driver.call("cuDeviceGetCount") == 2
    assert driver.call("cuMemGetInfo") == (1 << 20, 1 << 20)
    assert driver.call("cuGraphDestroy", 5) is None
    fake.failures["cuGraphDestroy"] = 700
    with pytest.raises(LaunchError, match="work: a kernel accessed memory") as caught:
        driver.call("cuGraphDestroy", 5, what="work")
    assert (caught.value.status, caught.value.name) == (700, "CUDA_ERROR_700")
    assert "likely cause" in str(caught.value)
    assert "TESSERA_CUDA_DEBUG" in str(caught.value)
    fake.failures["cuGraphDestroy"] = 12345
    with pytest.raises(CudaError, match="the driver's words"):
        driver.call("cuGraphDestroy", 5)
    with pytest.raises(DriverVersionError, match="no function cuNothing"):
        driver.call("cuNothing")
    assert driver.status_of("cuNothing") == 801


@pytest.mark.parametrize("status", sorted(errors.EXPLANATIONS))
def test_every_explanation_makes_an_error(status: int) -> None:
    found = errors.error_for(status, "thing", describe=lambda s: (f"NAME_{s}", ""))
    assert found.status == status
    text = str(found)
    assert all(part in text for part in ("thing: ", f"NAME_{status}", "likely cause:", "fix:"))


def test_functions_that_the_driver_lacks(fake: FakeDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    def lacking(*_: object) -> None:
        raise RuntimeError("Function cuGraphDestroy not found")

    # So say the bindings.
    monkeypatch.setattr(fake, "cuGraphDestroy", lacking, raising=False)
    with pytest.raises(DriverVersionError, match="cuGraphDestroy not found"):
        driver.call("cuGraphDestroy", 1)
    assert driver.status_of("cuGraphDestroy", 1) == 801


def test_addresses_for_native_code(monkeypatch: pytest.MonkeyPatch) -> None:
    # The C library stands for the driver's: what counts is how names are looked up.
    monkeypatch.setattr(driver, "_library", lambda: ctypes.CDLL(None))
    assert driver.address("malloc") == ctypes.cast(ctypes.CDLL(None).malloc, ctypes.c_void_p).value
    with pytest.raises(DriverVersionError, match="no function cuNothing"):
        driver.address("cuNothing")


def test_a_driver_that_cannot_be_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken:
        @staticmethod
        def cuInit(flags: int) -> None:
            raise OSError("libnvidia-ptxjitcompiler is missing")

    monkeypatch.setattr(driver, "_state", driver._State())
    monkeypatch.setattr(driver, "library_exists", lambda: True)
    monkeypatch.setattr(driver.importlib, "import_module", lambda _: Broken)
    with pytest.raises(NoDriverError, match=r"cannot be loaded .*ptxjitcompiler"):
        driver.api()


def test_a_context_that_is_gone_stops_no_finalizer(fake: FakeDriver, device: CudaDevice) -> None:
    driver.retire(device.context, "cuEventDestroy", 77)
    fake.failures["cuCtxPushCurrent"] = 709
    driver.drain()
    assert not fake.called("cuEventDestroy")


def test_errors_are_what_users_catch() -> None:
    memory = errors.error_for(2, "x", describe=lambda _: ("", ""))
    assert isinstance(memory, DeviceMemoryError)
    assert isinstance(memory, MemoryError)
    assert isinstance(memory, RuntimeError)
    assert issubclass(NoDriverError, DeviceError)


def test_finalizers_leave_work_for_later(fake: FakeDriver, device: CudaDevice) -> None:
    driver.retire(device.context, "cuEventDestroy", 77)
    assert not fake.called("cuEventDestroy")
    driver.drain()
    assert fake.called("cuEventDestroy") == [[77]]
    driver.drain()
    assert len(fake.called("cuEventDestroy")) == 1


@pytest.mark.usefixtures("fake")
def test_after_fork_everything_says_so(device: CudaDevice) -> None:
    pool, stream = device.pool, device.stream
    driver.retire(device.context, "cuEventDestroy", 77)
    driver._after_fork()
    try:
        assert not driver.available()
        assert driver.FORKED.value
        for use in (
            driver.device_count,
            stream.synchronize,
            device.synchronize,
            lambda: pool.allocate(123456),
            device.__enter__,
        ):
            with pytest.raises(ForkError, match="forked"):
                use()
        driver.drain()
    finally:
        driver._state.forked = False
        driver.FORKED.value = 0


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_real_child_of_fork() -> None:
    program = """
import os
from tessera.runtime.cuda import driver
from tests.runtime.cuda.fake_driver import FakeDriver
driver.library_exists = lambda: True
driver.importlib.import_module = lambda name: FakeDriver()
assert driver.available()
child = os.fork()
if not child:
    try:
        driver.api()
    except driver.ForkError:
        os._exit(7)
    os._exit(1)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
assert driver.available()
"""
    subprocess.run([sys.executable, "-c", program], check=True)


def test_devices(fake: FakeDriver, device: CudaDevice) -> None:
    assert (device.name, device.capability, device.multiprocessors) == ("Fake", (9, 0), 132)
    assert device is cuda_device(0)
    assert pickle.loads(pickle.dumps(device)) is device
    assert repr(device) == "CudaDevice(0, 'Fake')"
    assert (str(device), str(cuda_device(1))) == ("cuda:0", "cuda:1")
    assert device.machine.name == "sm_90a"
    assert device.runs_cubins
    assert device.limits.shared_per_block_optin == 232448
    assert device.memory_info() == (1 << 20, 1 << 20)
    with pytest.raises(DeviceError, match=r"no device cuda:2(.|\n)*cuda:0, cuda:1"):
        cuda_device(2)
    with device:
        assert fake.contexts == [device.context]
        with cuda_device(1):
            assert len(fake.contexts) == 2
    assert fake.contexts == []


@pytest.mark.parametrize(
    ("capability", "name", "runs"),
    [
        ((8, 0), "sm_80", True),
        ((8, 6), "sm_86", True),
        ((8, 7), "sm_86", True),
        ((8, 9), "sm_89", True),
        ((9, 0), "sm_90a", True),
        ((10, 0), "sm_100a", True),
        ((10, 3), "sm_100", True),
        ((12, 1), "sm_120", True),
        ((11, 0), "sm_100", False),
        ((13, 0), "sm_120", False),
    ],
)
def test_the_machine_of_a_device(capability: tuple[int, int], name: str, runs: bool) -> None:
    found, cubins = machine_for(capability)
    assert (found.name, cubins) == (name, runs)


def test_devices_that_are_too_old() -> None:
    with pytest.raises(CudaError, match=r"7\.5 are not supported"):
        machine_for((7, 5))
