"""Donated arguments and refs on a real GPU: in place, in order, and what others have is copied."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest

import tessera as ts
from tessera.errors import DonatedError
from tessera.runtime.cuda.device import CudaDevice
from tessera.runtime.cuda.stream import Stream
from tests.api.test_donation import DATA, IN_PLACE, NOT_IN_PLACE, ROWS
from tests.api.test_donation_on_gpu import attend, bits, empty_cache, on_gpu, place, places

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("data", [DATA, ROWS], ids=["line", "rows"])
@pytest.mark.parametrize("name", IN_PLACE)
def test_in_place(name: str, data: np.ndarray) -> None:
    f = IN_PLACE[name]
    donating, plain = ts.jit(f, donate_argnums=0), ts.jit(f)
    for _ in range(3):
        wanted = bits(plain(on_gpu(data)))
        x = on_gpu(data)
        before = place(x)
        y = donating(x)
        assert (place(y), bits(y)) == (before, wanted)
        with pytest.raises(DonatedError, match="after it was donated to"):
            x + 1
        assert place(donating(y)) == before


@pytest.mark.parametrize("name", NOT_IN_PLACE)
def test_not_in_place(name: str) -> None:
    f = NOT_IN_PLACE[name]
    wanted = bits(ts.jit(f)(on_gpu(DATA)))
    x = on_gpu(DATA)
    assert bits(ts.jit(f, donate_argnums=0)(x)) == wanted
    with pytest.raises(DonatedError):
        x + 1


def test_a_row_of_a_large_array(device: CudaDevice) -> None:
    """No second buffer, however often; only the row changes."""
    x = ts.zeros((1 << 16, 1024), device="cuda:0")  # 256 MB
    f = ts.jit(lambda x, k, row: x.at[k].set(row), donate_argnums=0)
    row = ts.ones(1024, device="cuda:0")
    before = place(x)
    x = f(x, 7, row)
    device.pool.reset_peak()
    live = device.pool.statistics().live
    for k in range(100):
        x = f(x, k, row)
    assert place(x) == before
    assert device.pool.statistics().peak - live < 1 << 20
    assert float(ts.sum(x)) == 100 * 1024
    assert np.asarray(x[:101, 0]).tolist() == [1.0] * 100 + [0.0]


def test_threads_meet_before_a_store_over_what_others_read() -> None:
    def f(x: Any, y: Any) -> Any:
        total = ts.sum(y * ts.exp(x)[:, None], axis=1)
        return x + 1, y / total[:, None]

    donating, plain = ts.jit(f, donate_argnums=0), ts.jit(f)
    rng = np.random.default_rng(0)
    for width in (256, 1024, 4096, 16384):
        x, y = rng.normal(size=5000).astype(np.float32), rng.normal(size=(5000, width))
        y = on_gpu(y.astype(np.float32))
        wanted = bits(plain(on_gpu(x), y))
        for _ in range(5):
            assert bits(donating(on_gpu(x), y)) == wanted


def test_a_cache_of_keys_and_values() -> None:
    rng = np.random.default_rng(0)
    steps = rng.normal(size=(16, 2, 8)).astype(np.float32)
    host, cache = empty_cache(ts.asarray, "host"), empty_cache(on_gpu)
    first = places(cache.get())
    step = ts.jit(attend)
    for k, x in enumerate(steps):
        np.testing.assert_allclose(step(cache, on_gpu(x)), step(host, x), rtol=1e-5)
        assert places(cache.get()) == first
        assert int(cache.get()["n"]) == k + 1
    np.testing.assert_array_equal(cache.get()["k"], host.get()["k"])


def test_calls_are_queued_in_order() -> None:
    """Each call reads what the one before has written, with nothing in between that waits."""
    ref = ts.Ref(ts.zeros(1 << 22, device="cuda:0"), name="ref")

    @ts.jit
    def step() -> Any:
        ref[...] = ref[...] * 0.5 + 1.0
        return ref[0]

    before = place(ref.get())
    found = [step() for _ in range(200)]
    wanted = np.float32(0)
    for x in found:
        wanted = wanted * np.float32(0.5) + np.float32(1)
        assert np.asarray(x) == wanted
    assert place(ref.get()) == before


def test_what_others_have_is_copied() -> None:
    f = ts.jit(lambda x: x + 1, donate_argnums=0)
    for other in (
        lambda x: ts.reshape(x, (30, 40)),
        lambda x: x.storage,
        lambda x: x.__cuda_array_interface__,
        lambda x: x.__dlpack__(stream=1, max_version=(1, 0)),
    ):
        x = on_gpu(ROWS)
        held, before = other(x), place(x)
        y = f(x)
        assert place(y) != before
        assert bits(y) == bits(ROWS + 1)
        if isinstance(held, ts.Array):
            assert bits(held) == bits(ROWS.reshape(30, 40))
        z = place(y)
        assert place(f(y)) == z  # the copy is nobody else's


def test_memory_of_torch_is_copied() -> None:
    torch = pytest.importorskip("torch")
    t = torch.arange(1024, dtype=torch.float32, device="cuda")
    f = ts.jit(lambda x: x * 2, donate_argnums=0)
    y = f(ts.from_dlpack(t))
    assert torch.equal(torch.from_dlpack(y), t * 2)
    # Shown to torch, it is written to no more.
    z = torch.from_dlpack(y)
    w = f(y)
    assert torch.equal(z, t * 2)
    assert torch.equal(torch.from_dlpack(w), t * 4)


def test_other_streams(device: CudaDevice) -> None:
    """Readers in another stream are waited for; writers there get a copy."""
    big = ts.ones(1 << 24, device="cuda:0")
    side = Stream(device)
    slow = ts.jit(lambda x: ts.fori_loop(0, 50, lambda _, v: ts.sin(v) + x, x))
    f = ts.jit(lambda x: x * 0, donate_argnums=0)
    wanted = bits(slow(big + 0))
    for _ in range(5):
        x = ts.block_until_ready(big + 0)
        with side:
            y = slow(x)
        before = place(x)
        z = f(x)
        assert place(z) == before
        assert bits(y) == wanted
    x = ts.block_until_ready(big + 0)
    before = place(x)
    with side:
        z = f(x)
    assert place(z) != before
    assert not np.asarray(z).any()


def test_cuda_graphs_of_a_ref() -> None:
    ref = ts.Ref(on_gpu(np.zeros(1000, np.float32)), name="ref")

    @ts.jit
    def step(x: Any) -> None:
        ref.update(lambda v: ts.cumsum(v + x) - ts.cumsum(v) + v)

    x = on_gpu(np.ones(1000, np.float32))
    with ts.config.update(cuda_graphs=1):
        for k in range(10):
            step(x)
            held = ref.get()
            assert np.asarray(held)[0] == k + 1
            del held


def test_threads_with_refs_of_their_own() -> None:
    step = ts.jit(lambda ref, x: ref.update(lambda v: v + x))
    refs = [ts.Ref(on_gpu(np.zeros(5000, np.float32)), name=f"ref{k}") for k in range(4)]
    one = on_gpu(np.float32(1))
    step(refs[0], one)

    def run(ref: Any) -> None:
        for _ in range(100):
            step(ref, one)

    threads = [threading.Thread(target=run, args=(ref,)) for ref in refs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [float(ref.get()[-1]) for ref in refs] == [101.0, 100.0, 100.0, 100.0]
