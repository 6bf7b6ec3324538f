"""A driver in memory, for tests of the bookkeeping around it."""

from __future__ import annotations

import gc
from collections import deque
from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from tessera.runtime.cuda import device as device_module
from tessera.runtime.cuda import driver
from tessera.runtime.cuda.device import CudaDevice, cuda_device
from tests.runtime.cuda.fake_driver import FakeDriver


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
