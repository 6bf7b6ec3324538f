"""The first device, and small kernels on it."""

from __future__ import annotations

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
