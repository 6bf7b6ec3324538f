"""A driver in memory, for tests of the bookkeeping around it."""

from __future__ import annotations

import gc
from collections import deque
from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from tessera.api import cuda_backend
from tessera.eager_remote import forget_programs
from tessera.graph.device import install_backend
from tessera.runtime.cuda import device as device_module
from tessera.runtime.cuda import driver
from tessera.runtime.cuda import launch as launch_module
from tessera.runtime.cuda.device import CudaDevice, cuda_device
from tessera.runtime.cuda.launch import load_launcher
from tests.runtime.cuda.fake_driver import FakeDriver
from tests.runtime.cuda.native_driver import NativeDriver


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeDriver]:
    """A driver that was started, with two devices that have a mebibyte each."""
    # What other tests left is set aside: collecting it takes seconds at the end of the suite.
    gc.freeze()
    found = FakeDriver()
    monkeypatch.setattr(driver, "_state", SimpleNamespace(api=found, forked=False))
    monkeypatch.setattr(driver, "_retired", deque())
    monkeypatch.setattr(driver, "library_exists", lambda: True)
    monkeypatch.setattr(device_module, "_devices", {})
    yield found
    gc.collect()
    gc.unfreeze()
    assert found.contexts == []


@pytest.fixture
def device(fake: FakeDriver) -> CudaDevice:
    """The first device of that driver."""
    return cuda_device(0)


@pytest.fixture
def native(fake: FakeDriver, monkeypatch: pytest.MonkeyPatch) -> Iterator[NativeDriver]:
    """Arrays on that driver's devices, and the functions that native programs call."""
    found = NativeDriver()
    found.reset()
    launcher = load_launcher(found.addresses)
    launch_module._run.cache_clear()
    monkeypatch.setattr(launch_module, "_launcher", lambda: launcher)
    install_backend("cuda", cuda_backend)
    forget_programs()
    yield found
    fake.finish()
    launch_module._run.cache_clear()
    install_backend("cuda", cuda_backend)
    forget_programs()
