"""Calls by one native call: what they do, what they decline, and what they leave behind."""

from __future__ import annotations

import gc
import sys
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tessera as ts
from tessera.config import config
from tessera.runtime.cuda import driver
from tessera.runtime.cuda import starter as starter_module
from tessera.runtime.cuda.device import cuda_device
from tessera.runtime.cuda.errors import LaunchError
from tessera.runtime.cuda.memory import Block, DeviceBuffer
from tessera.runtime.cuda.stream import Stream
from tessera.runtime.layout import slot_offsets
from tests.runtime.cuda.fake_driver import FakeDriver
from tests.runtime.cuda.native_driver import NativeDriver

DATA = np.arange(12, dtype=np.float32).reshape(3, 4)


def on_gpu(data: Any = DATA) -> Any:
    return ts.device_put(np.asarray(data), "cuda:0")


def warm(call: Callable[[], Any]) -> None:
    """Compile, and let memory for two results wait."""
    kept = [call(), call()]
    del kept


class Starts:
    """Counts what goes through Python."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.slow = 0
        allocate = type(cuda_device(0).pool).allocate

        def counting(*args: Any, **kwargs: Any) -> Any:
            self.slow += 1
            return allocate(*args, **kwargs)

        monkeypatch.setattr(type(cuda_device(0).pool), "allocate", counting)

    def during(self, call: Callable[[], Any]) -> tuple[Any, int]:
        """What a call gives, and how many buffers were allocated by Python."""
        before = self.slow
        found = call()
        return found, self.slow - before


@pytest.fixture
def starts(native: NativeDriver, monkeypatch: pytest.MonkeyPatch) -> Starts:
    return Starts(monkeypatch)


def test_offsets_of_slots() -> None:
    found = slot_offsets(Block)
    assert found is not None
    assert sorted(found) == sorted(Block.__slots__)
    assert len(set(found.values())) == len(found)
    assert slot_offsets(int) is None

    class More(Block):
        __slots__ = ("more",)

    assert slot_offsets(More) is None


def test_what_a_call_gives(native: NativeDriver, starts: Starts) -> None:
    x = on_gpu()
    f = ts.jit(lambda x: ts.exp(x) * 2)
    warm(lambda: f(x))
    before = native["launches"]
    y, slow = starts.during(lambda: f(x))
    assert (slow, native["launches"] - before) == (0, 1)
    assert native["parameter"] == x.storage.address
    assert (y.shape, y.dtype, str(y.device), y.weak) == ((3, 4), ts.float32, "cuda:0", False)
    assert y.storage is y.prepared
    owner = y.storage.owner
    assert isinstance(owner, DeviceBuffer)
    assert (owner.nbytes, owner.pointer) == (48, y.storage.address)
    assert owner.stream is cuda_device(0).stream
    assert not owner.is_foreign
    assert 48 in [size for size, _ in cuda_device(0).pool.live()]
    assert np.asarray(y).shape == (3, 4)


def test_results_and_arguments_of_all_structures(native: NativeDriver, starts: Starts) -> None:
    x, y = on_gpu(), on_gpu(DATA + 1)
    several = ts.jit(lambda x, y: {"sum": x + y, "rest": (x - y, [x * y])})
    tree = ts.jit(lambda d, *, scale: d["a"] * scale + d["b"][0])
    captured = ts.jit(lambda a: a + y)
    for call in (
        lambda: several(x, y),
        lambda: tree({"a": x, "b": [y]}, scale=x),
        lambda: captured(x),
    ):
        first = call()
        warm(call)
        found, slow = starts.during(call)
        assert slow == 0
        leaves = [ts.pytree.flatten(each) for each in (first, found)]
        assert leaves[0][1] == leaves[1][1]
        for a, b in zip(leaves[0][0], leaves[1][0], strict=True):
            assert (a.shape, a.dtype) == (b.shape, b.dtype)


def test_other_signatures_take_the_other_way(native: NativeDriver, starts: Starts) -> None:
    x = on_gpu()
    f = ts.jit(lambda x: x + 1)
    for other in (
        on_gpu(DATA.reshape(4, 3)), on_gpu(DATA.astype(np.float64)), DATA, 2.0, ts.asarray(DATA),
        ts.device_put(DATA, "cuda:1"), on_gpu(DATA[0]),
    ):  # fmt: skip
        warm(lambda: f(x))
        found = f(other)
        wanted = other if hasattr(other, "shape") else np.asarray(other, np.float32)
        assert (found.shape, np.dtype(found.dtype.np)) == (wanted.shape, wanted.dtype)
    assert f.cache_size() == 7
    with pytest.raises(TypeError, match="missing 1 required positional argument"):
        f()
    with pytest.raises(TypeError, match="takes 1 positional argument but 2"):
        f(x, x)


def test_weak_numbers_keep_their_rules(native: NativeDriver) -> None:
    half, number = on_gpu(np.ones(3, np.float16)), ts.device_put(2.0, "cuda:0")
    strong = on_gpu(np.float32(2))
    f = ts.jit(lambda x, y: x + y)
    for _ in range(3):
        assert f(half, strong).dtype is ts.float32
        assert f(half, number).dtype is (ts.float16 if number.weak else ts.float32)


def test_within_traces(native: NativeDriver) -> None:
    x = on_gpu()
    f = ts.jit(lambda x: x * 2)
    warm(lambda: f(x))
    before = native["launches"]
    outer = ts.jit(lambda y: f(x) + f(y))
    assert native["launches"] == before
    assert outer(x).shape == (3, 4)
    assert ts.grad(lambda y: ts.sum(f(y)))(x).shape == (3, 4)


def test_other_streams_and_settings(native: NativeDriver, starts: Starts) -> None:
    x = on_gpu()
    f = ts.jit(lambda x: x + 1)
    warm(lambda: f(x))
    other = Stream(cuda_device(0))
    with other:
        found, slow = starts.during(lambda: f(x))
        assert slow == 1
        assert native["stream"] == other.handle
        assert found.storage.owner.stream is other
    # The other stream reads it too: it is given back in order.
    assert starts.during(lambda: f(x))[1] == 1
    assert starts.during(lambda: f(found))[1] == 1
    assert native["stream"] == cuda_device(0).stream.handle
    y = on_gpu()
    warm(lambda: f(y))
    with config.update(cuda_debug=True):
        assert starts.during(lambda: f(y))[1] == 1
    native.reset()
    assert starts.during(lambda: f(y))[1] == 0


def test_nothing_that_waits_is_forgotten(native: NativeDriver, starts: Starts) -> None:
    x = on_gpu()
    f = ts.jit(lambda x: x + 1)
    warm(lambda: f(x))
    pool = cuda_device(0).pool
    owner = object()
    buffer = pool.adopt(x.storage.address, 48, owner)
    del buffer
    assert pool.returned
    assert starts.during(lambda: f(x))[1] == 1
    assert not pool.returned


def test_errors_name_the_kernel_and_leave_nothing(
    native: NativeDriver, fake: FakeDriver, starts: Starts
) -> None:
    x = on_gpu()
    f = ts.jit(lambda x: ts.exp(x))
    warm(lambda: f(x))
    native["launch_status"] = 701
    slow = starts.slow
    waiting = cuda_device(0).pool.statistics().waiting
    for _ in range(3):
        with pytest.raises(LaunchError, match=r"launch of kernel exp.*\n.*test_starter.py"):
            f(x)
    assert starts.slow == slow
    assert cuda_device(0).pool.statistics().waiting == waiting
    native["launch_status"] = 0
    assert starts.during(lambda: f(x))[1] == 0
    native["current_status"] = 201
    with pytest.raises(ts.TesseraError, match="work on cuda:0"):
        f(x)


def test_a_child_of_fork_is_refused(native: NativeDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    x = on_gpu()
    f = ts.jit(lambda x: x + 1)
    warm(lambda: f(x))
    monkeypatch.setattr(driver._state, "forked", True)
    driver.FORKED.value = 1
    try:
        with pytest.raises(ts.TesseraError, match="was forked from one"):
            f(x)
    finally:
        driver.FORKED.value = 0


def test_references(native: NativeDriver, starts: Starts) -> None:
    x, y = on_gpu(), on_gpu(DATA.T.copy())
    f = ts.jit(lambda x, y: (x + 1, ts.cumulative_sum(y, axis=0)))
    warm(lambda: f(x, y))
    _, slow = starts.during(lambda: f(x, y))
    assert slow == 0

    def watched() -> list[int]:
        things: list[Any] = [
            cuda_device(0), cuda_device(0).stream, x.storage.backend, x.storage.device, ts.float32,
            np.dtype(np.float32), x, x.storage, x.storage.shape, x.storage.owner,
            DeviceBuffer, type(x), type(x.storage),
        ]  # fmt: skip
        return [sys.getrefcount(thing) for thing in things]

    gc.collect()
    before = watched()
    for _ in range(1000):
        f(x, y)
    native["launch_status"] = 701
    for _ in range(100):
        with pytest.raises(LaunchError):
            f(x, y)
    native["launch_status"] = 0
    gc.collect()
    assert all(abs(a - b) < 20 for a, b in zip(before, watched(), strict=True))
    kept = [f(x, y) for _ in range(3)]
    del kept
    gc.collect()
    assert all(abs(a - b) < 20 for a, b in zip(before, watched(), strict=True))


def test_threads(native: NativeDriver) -> None:
    x = on_gpu()
    f = ts.jit(lambda x: ts.cumulative_sum(ts.exp(x), axis=0))
    warm(lambda: f(x))
    errors: list[BaseException] = []
    addresses: list[set[int]] = []

    def work() -> None:
        try:
            for _ in range(200):
                some = [f(x) for _ in range(4)]
                addresses.append({a.storage.address for a in some})
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    assert {len(found) for found in addresses} == {4}


def test_eager_ops(native: NativeDriver, starts: Starts) -> None:
    x, y = on_gpu(), on_gpu(DATA + 1)
    for call in (
        lambda: x + y,
        lambda: ts.exp(x),
        lambda: ts.sum(x),
        lambda: ts.sort(x),
        lambda: x + 1.0,
        lambda: 2 - x,
    ):
        warm(call)
        found, slow = starts.during(call)
        assert slow == 0
        assert str(found.device) == "cuda:0"
    assert (x + on_gpu(DATA.astype(np.float64))).dtype is ts.float64


def test_where_the_layout_is_not_known(
    native: NativeDriver, starts: Starts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(starter_module, "_offsets", lambda: None)
    starter_module._loaded.cache_clear()
    try:
        x = on_gpu()
        f = ts.jit(lambda x: x + 1)
        warm(lambda: f(x))
        found, slow = starts.during(lambda: f(x))
        assert slow == 1
        assert found.shape == (3, 4)
    finally:
        starter_module._loaded.cache_clear()


def test_results_in_the_memory_of_arguments(
    native: NativeDriver, starts: Starts, fake: FakeDriver
) -> None:
    held, y = [on_gpu()], on_gpu()
    ref = ts.Ref((on_gpu(), on_gpu(np.int32(0))), name="ref")

    @ts.jit
    def step(y: Any) -> Any:
        a, n = ref.get()
        ref.set((a + y, n + 1))
        return a * y

    f = ts.jit(lambda x, y: (x + y, y * 2), donate_argnums=0)

    def donate() -> None:
        held[0], _ = f(held[0], y)

    warm(lambda: step(y))
    warm(donate)
    owners = [id(each.storage.owner) for each in (*held, *ref.get())]
    live = len(cuda_device(0).pool.live())
    for _ in range(5):
        assert starts.during(donate) == (None, 0)
        found, slow = starts.during(lambda: step(y))
        assert slow == 0
        assert found.storage.address not in [each.storage.address for each in (y, *ref.get())]
        del found
    assert [id(each.storage.owner) for each in (*held, *ref.get())] == owners
    assert len(cuda_device(0).pool.live()) == live
    assert not fake.called("cuMemcpyDtoDAsync")


def test_elements_that_others_have_take_the_other_way(
    native: NativeDriver, fake: FakeDriver
) -> None:
    ref = ts.Ref(on_gpu(), name="ref")
    step = ts.jit(lambda y: ref.update(lambda v: v + y))
    y = on_gpu()
    for _ in range(3):
        step(y)
    for k in range(4):
        held = ref.get()
        step(y)
        assert held.storage.address != ref.get().storage.address
        assert len(fake.called("cuMemcpyDtoDAsync")) == k + 1
        del held
        address = ref.get().storage.address
        step(y)
        assert ref.get().storage.address == address


def test_references_of_results_in_place(native: NativeDriver) -> None:
    """What a call gives is owned once: it ends with the array."""
    f = ts.jit(lambda x: x + 1, donate_argnums=0)
    x = on_gpu()
    for _ in range(5):
        x = f(x)
    assert sys.getrefcount(x.storage) == sys.getrefcount(on_gpu().storage)
    assert sys.getrefcount(x.storage.owner) == sys.getrefcount(on_gpu().storage.owner)
    live = len(cuda_device(0).pool.live())
    del x
    gc.collect()
    assert len(cuda_device(0).pool.live()) == live - 1
