"""The first device, and small kernels on it."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator

import pytest

from tessera.runtime.cuda.device import CudaDevice, cuda_device
from tessera.runtime.cuda.module import CudaModule
from tests.gpu.kernels import load_kernels


@pytest.fixture(scope="module")
def device() -> CudaDevice:
    return cuda_device(0)


@pytest.fixture(scope="module")
def kernels(device: CudaDevice) -> CudaModule:
    return load_kernels(device)


@pytest.fixture(autouse=True)
def beside(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[None]:
    """Tests of several processes run beside each other on the device, but for those that fill its
    memory, hold it or break what runs there."""
    alone = request.node.get_closest_marker("faults") or "held" in request.fixturenames
    with (tmp_path_factory.getbasetemp().parent / "device").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
        yield
