"""Loaded programs, their kernels, and the driver's assembler."""

from __future__ import annotations

import gc

import pytest

from tessera.ir import loc
from tessera.runtime.cuda import driver
from tessera.runtime.cuda.assemblers import Assembler
from tessera.runtime.cuda.device import CudaDevice, cuda_device
from tessera.runtime.cuda.errors import CudaError, LaunchError
from tessera.runtime.cuda.module import DriverAssembler, kernel_at, load_cubin
from tests.runtime.cuda.fake_driver import FakeDriver


def test_the_same_code_is_loaded_once(fake: FakeDriver, device: CudaDevice) -> None:
    first = load_cubin(device, b"\x7fELF one", "one")
    assert load_cubin(device, b"\x7fELF one") is first
    assert load_cubin(device, b"\x7fELF two") is not first
    assert load_cubin(cuda_device(1), b"\x7fELF one") is not first
    assert len(fake.called("cuModuleLoadData")) == 3
    assert "one" in repr(first)


def test_a_kernel_keeps_its_program(fake: FakeDriver, device: CudaDevice) -> None:
    kernel = load_cubin(device, b"\x7fELF").kernel("k")
    assert kernel.module.kernel("k") is kernel
    assert kernel_at(kernel.handle) is kernel
    gc.collect()
    driver.drain()
    assert not fake.called("cuModuleUnload")
    handle, module = kernel.handle, kernel.module.handle
    del kernel
    assert kernel_at(handle) is None
    assert not fake.called("cuModuleUnload")  # finalizers do not
    driver.drain()
    assert fake.called("cuModuleUnload") == [[module]]


def test_kernels_know_their_place(device: CudaDevice) -> None:
    place = loc.current()
    module = load_cubin(device, b"\x7fELF")
    kernel = module.kernel("k", place=place, label="softmax")
    assert module.kernel("k").place is place
    assert "softmax" in repr(kernel)


def test_what_does_not_load(fake: FakeDriver, device: CudaDevice) -> None:
    module = load_cubin(device, b"\x7fELF", "attention")
    with pytest.raises(CudaError, match="attention: kernel 'missing'"):
        module.kernel("missing")
    fake.failures["cuModuleLoadData"] = 209
    with pytest.raises(CudaError, match="loading other on cuda:0: the code holds nothing for this"):
        load_cubin(device, b"\x7fELF other", "other")


def test_resources(fake: FakeDriver, device: CudaDevice) -> None:
    kernel = load_cubin(device, b"\x7fELF").kernel("k", shared=100_000)
    assert (kernel.registers, kernel.static_shared, kernel.local) == (128, 0, 0)
    assert kernel.max_threads == 512
    assert kernel.occupancy(128, 50_000) == 2
    # Asked for once, and again only for more.
    sizes = [args[2] for args in fake.called("cuFuncSetAttribute")]
    assert sizes == [100_000]
    assert kernel.occupancy(128, 200_000) == 2
    with pytest.raises(LaunchError, match="gives a block 232448 bytes"):
        kernel.allow_shared(232_449)


def test_the_drivers_assembler(fake: FakeDriver, device: CudaDevice) -> None:
    assembler: Assembler = DriverAssembler(device)
    assert (assembler.name, "13000" in assembler.version) == ("driver", True)
    assert "CUDA 13" in str(assembler)
    found = assembler.run(".version 8.3", "sm_90a")
    assert found.cubin is not None
    assert found.cubin.startswith(b"\x7fELF.version 8.3\0")
    found = assembler.run("bad", "sm_90a")
    assert (found.cubin, found.log) == (None, "ptxas bad")
    fake.failures["cuLinkComplete"] = 999
    found = assembler.run(".version 8.3", "sm_90a")
    assert found.cubin is None
    assert "999" in found.log
    assert len(fake.called("cuLinkDestroy")) == 3
