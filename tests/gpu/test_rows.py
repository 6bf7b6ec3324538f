"""Every scalar function, conversion and access on a GPU: what its instructions do is what the
tables say.
"""

from __future__ import annotations

import numpy as np
import pytest

from tessera import dtypes as d
from tessera.dtypes import DType
from tessera.ir.convert import cast_array
from tessera.ir.core import Func
from tessera.ir.scalar import scalar
from tessera.runtime.cuda import transfer
from tessera.runtime.cuda.device import CudaDevice, cuda_device
from tessera.runtime.cuda.launch import launch
from tessera.runtime.cuda.module import CudaModule, DriverAssembler, load_cubin
from tessera.target.passes.legalize_gpu import legalize_gpu
from tessera.target.ptx.writer import write_kernels
from tests.target.ptx.evaluate import THREADS, Array, cast_kernel, map_kernel
from tests.target.ptx.test_accuracy import LIMITS, errors, ordered
from tests.target.ptx.test_memory import cases, raw, reversing
from tests.target.ptx.test_rows import REAL, map_cases, wrong_zeros
from tests.target.running import ulps
from tests.target.test_scalars import (
    ABSOLUTE,
    COSTLY_UNITS,
    UNITS,
    cast_elements,
    elements,
    operands,
)

pytestmark = pytest.mark.gpu

OWN_ERROR = 1.5
"""What the special function unit may add to the limits of functions, in units."""


@pytest.fixture(scope="module")
def device() -> CudaDevice:
    return cuda_device(0)


def load(device: CudaDevice, funcs: list[Func]) -> CudaModule:
    legal = [legalize_gpu(func, device.machine) for func in funcs]
    found = DriverAssembler(device).run(write_kernels(legal, device.machine), device.machine.name)
    assert found.cubin is not None, found.log
    return load_cubin(device, found.cubin, "rows")


def run(device: CudaDevice, module: CudaModule, name: str, inputs: list[Array], out: Array) -> None:
    """An elementwise kernel; arrays are padded to whole blocks."""
    size = -(-len(out) // THREADS) * THREADS
    buffers = [transfer.to_device(raw_bytes(np.resize(x, size)), device) for x in inputs]
    result = transfer.to_device(np.zeros(size * out.itemsize, np.uint8), device)
    launch(module.kernel(name), size // THREADS, THREADS, [*buffers, result])
    found = np.empty(size * out.itemsize, np.uint8)
    transfer.read(result, found)
    device.synchronize()
    out[:] = found.view(out.dtype)[: len(out)]


def raw_bytes(x: Array) -> Array:
    return np.ascontiguousarray(x).view(np.uint8)


@pytest.mark.parametrize("dtype", REAL, ids=str)
def test_scalar_functions(device: CudaDevice, dtype: DType) -> None:
    given = operands(dtype)
    rows = map_cases(dtype, given)
    module = load(device, [kernel for _, _, kernel in rows])
    for fn, used, kernel in rows:
        inputs = [given[k] for k in used]
        want = fn.evaluate(*inputs)
        got = np.empty_like(want)
        run(device, module, kernel.name, inputs, got)
        allowed = UNITS.get(fn.name, COSTLY_UNITS if fn.cost >= 16 else 0)
        wrong = ulps(got, want, ABSOLUTE.get(fn.name, 0.0)) > allowed
        if fn.name not in ("min", "max"):
            wrong |= wrong_zeros(got, want)
        k = int(np.argmax(wrong))
        shown = ", ".join(str(x[k]) for x in inputs)
        assert not wrong.any(), f"{fn.name}({shown}) = {want[k]}, but was {got[k]}"


@pytest.mark.parametrize("source", REAL, ids=str)
def test_conversions(device: CudaDevice, source: DType) -> None:
    x = cast_elements(source)
    module = load(device, [cast_kernel(source, target) for target in REAL])
    for target in REAL:
        want = cast_array(x, target)
        got = np.empty_like(want)
        run(device, module, f"k_{source}_{target}", [x], got)
        wrong = (ulps(got, want) > 0) | wrong_zeros(got, want)
        k = int(np.argmax(wrong))
        assert not wrong.any(), f"{source} {x[k]} -> {target} = {want[k]}, but was {got[k]}"


@pytest.mark.parametrize("dtype", REAL, ids=str)
def test_accesses(device: CudaDevice, dtype: DType) -> None:
    funcs = [reversing(dtype, *case) for case in cases(dtype)]
    module = load(device, funcs)
    for func, (lanes, _, masked, space) in zip(funcs, cases(dtype), strict=True):
        given = np.resize(elements(dtype), 32 * lanes)
        source = transfer.to_device(raw_bytes(given), device)
        result = transfer.to_device(np.zeros(given.nbytes, np.uint8), device)
        shared = 128 + given.nbytes if space == "shared" else 0
        launch(module.kernel(func.name), 1, 32, [source, result], shared=shared)
        found = np.empty(given.nbytes, np.uint8)
        transfer.read(result, found)
        device.synchronize()
        want = given.reshape(32, lanes)[:, ::-1].copy()
        if masked:
            want[20:] = 0
        assert np.array_equal(raw(found.view(given.dtype)), raw(want)), func.name


@pytest.mark.parametrize("name", LIMITS)
def test_functions_of_float32(device: CudaDevice, name: str) -> None:
    module = load(device, [map_kernel(name, [d.float32])])
    bits = np.arange(0, 1 << 32, 1021, dtype=np.uint64).astype(np.uint32)
    x = bits.view(np.float32)
    got = np.empty_like(x)
    run(device, module, f"k_{name}", [x], got)
    with np.errstate(all="ignore"):
        exact = scalar(name).evaluate(x.astype(np.float64))
    found = errors(got, exact)
    k = int(np.argmax(found))
    assert found[k] <= min(LIMITS[name] + OWN_ERROR, 2.1), (name, x[k], exact[k], got[k], found[k])


@pytest.mark.parametrize("dtype", [d.bfloat16, d.float16], ids=str)
def test_all_16_bit_arguments(device: CudaDevice, dtype: DType) -> None:
    names = ("exp", "exp2", "sigmoid", "tanh", "erf", "log", "log2", "rsqrt", "sqrt")
    module = load(device, [map_kernel(name, [dtype]) for name in names])
    x = np.arange(1 << 16).astype(np.uint16).view(dtype.np)
    for name in names:
        want = scalar(name).evaluate(x)
        got = np.empty_like(want)
        run(device, module, f"k_{name}", [x], got)
        nan = np.isnan(want.astype(np.float32))
        assert np.array_equal(nan, np.isnan(got.astype(np.float32))), name
        distance = np.where(nan, 0, np.abs(ordered(got) - ordered(want)))
        k = int(np.argmax(distance))
        assert distance[k] <= 1, f"{name}({x[k]}) = {want[k]}, but was {got[k]}"
