"""Memory shared with other libraries on a device: torch, cupy, jax."""

from __future__ import annotations

import importlib.util
from typing import Any

import numpy as np
import pytest

from tessera import dtypes
from tessera.graph.device import DeviceError
from tessera.runtime.cuda import exchange, transfer
from tessera.runtime.cuda.device import CudaDevice
from tessera.runtime.cuda.errors import ForeignBufferError
from tessera.runtime.cuda.launch import launch
from tessera.runtime.cuda.memory import DeviceBuffer
from tessera.runtime.cuda.module import CudaModule
from tests.gpu.kernels import add_one, script

pytestmark = [
    pytest.mark.gpu,
    # Other libraries warn of their own affairs when they are imported.
    pytest.mark.filterwarnings("ignore"),
]


class Exported:
    """A row-major array in a buffer, as other libraries see it."""

    def __init__(self, buffer: DeviceBuffer, dtype: dtypes.DType, shape: tuple[int, ...]) -> None:
        self.buffer, self.dtype, self.shape = buffer, dtype, shape

    def __dlpack_device__(self) -> tuple[int, int]:
        return 2, self.buffer.device.index

    def __dlpack__(self, **options: Any) -> Any:
        return exchange.to_dlpack(self.buffer, self.dtype, self.shape, **options)

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return exchange.array_interface(self.buffer, self.dtype, self.shape)


def exported(device: CudaDevice) -> tuple[np.ndarray, Exported]:
    array = np.arange(12, dtype=np.float32).reshape(3, 4)
    return array, Exported(transfer.to_device(array, device), dtypes.float32, (3, 4))


def on_host(found: exchange.Foreign) -> np.ndarray:
    return transfer.to_host(found.buffer, found.shape, found.dtype.np)


def test_torch(device: CudaDevice, kernels: CudaModule) -> None:
    torch = pytest.importorskip("torch")
    array, ours = exported(device)
    theirs = torch.from_dlpack(ours)
    np.testing.assert_array_equal(theirs.cpu().numpy(), array)
    del ours
    np.testing.assert_array_equal((theirs + 1).cpu().numpy(), array + 1)
    for dtype in (torch.float32, torch.bfloat16, torch.int64, torch.bool, torch.float16):
        tensor = (torch.arange(64, device="cuda") % 2).to(dtype).reshape(8, 8)
        found = exchange.from_dlpack(tensor)
        assert found.buffer.pointer == tensor.data_ptr()
        np.testing.assert_array_equal(
            on_host(found).astype(np.float32), tensor.float().cpu().numpy()
        )
    turned = torch.arange(12.0, device="cuda").reshape(3, 4).T
    np.testing.assert_array_equal(on_host(exchange.from_dlpack(turned)), turned.cpu().numpy())
    part = torch.arange(13.0, device="cuda")[1:]
    assert not exchange.from_dlpack(part).buffer.is_foreign
    np.testing.assert_array_equal(on_host(exchange.from_dlpack(part)), part.cpu().numpy())
    with pytest.raises(ForeignBufferError):
        exchange.from_dlpack(part, copy=False)
    with pytest.raises(DeviceError):
        exchange.from_dlpack(torch.zeros(3))


def test_torch_keeps_order_and_memory(device: CudaDevice, kernels: CudaModule) -> None:
    torch = pytest.importorskip("torch")
    n = 1 << 20
    for _ in range(10):
        # Theirs to ours: our work waits for theirs.
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            torch.cuda._sleep(2_000_000)
            tensor = torch.full((n,), 3.0, device="cuda")
            found = exchange.from_dlpack(tensor)
        del tensor
        assert (on_host(found) == 3).all()
        add_one(kernels, found.buffer, n)
        assert (on_host(found) == 4).all()
        # Ours to theirs: theirs waits for our work.
        launch(kernels.kernel("spin"), 1, 1, [1_000_000])
        buffer = transfer.to_device(np.zeros(n, np.float32), device)
        add_one(kernels, buffer, n)
        with torch.cuda.stream(stream):
            total = torch.from_dlpack(Exported(buffer, dtypes.float32, (n,))).sum()
        del buffer
        transfer.fill(device.pool.allocate(4 * n), 0xFF)
        with torch.cuda.stream(stream):
            assert total.item() == n


def test_cupy(device: CudaDevice) -> None:
    cupy = pytest.importorskip("cupy")
    array, ours = exported(device)
    np.testing.assert_array_equal(cupy.asnumpy(cupy.from_dlpack(ours)), array)
    np.testing.assert_array_equal(cupy.asnumpy(cupy.asarray(ours)), array)
    theirs = cupy.arange(20, dtype=cupy.float32).reshape(4, 5)
    for take in (exchange.from_dlpack, exchange.from_array_interface):
        found = take(theirs)
        assert found.buffer.pointer == theirs.data.ptr
        np.testing.assert_array_equal(on_host(found), cupy.asnumpy(theirs))
        np.testing.assert_array_equal(on_host(take(theirs.T)), cupy.asnumpy(theirs.T))


def test_jax() -> None:
    text = (
        script(
            """
        import numpy as np, jax, jax.numpy as jnp
        from tests.gpu.test_exchange import Exported, exported, exchange, on_host
        try:
            jax.devices("cuda")
        except RuntimeError:
            print("right, as far as there is no GPU for jax")
            raise SystemExit
        device = cuda_device(0)
        array, ours = exported(device)
        theirs = jnp.from_dlpack(ours)
        np.testing.assert_array_equal(np.asarray(theirs), array)
        back = exchange.from_dlpack(theirs * 2)
        np.testing.assert_array_equal(on_host(back), array * 2)
        print("right")
        """,
            XLA_PYTHON_CLIENT_PREALLOCATE="false",
        )
        if _has("jax")
        else "right"
    )
    assert "right" in text


def _has(name: str) -> bool:
    return importlib.util.find_spec(name) is not None
