"""Donated arguments and refs of programs for a GPU, simulated: where results lie."""

# ruff: noqa: F821, UP037 -- dims are strings, which ruff takes for names of classes

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tessera as ts
from tessera import pytree
from tessera.errors import DonatedError
from tests.api.test_donation import IN_PLACE, NOT_IN_PLACE
from tests.fake_gpu import FakeBackend, fake_gpu

pytestmark = pytest.mark.unchecked

ROWS = np.linspace(-1, 1, 1200, dtype=np.float32).reshape(40, 30)


@pytest.fixture(scope="module")
def gpu() -> Any:
    with fake_gpu() as found:
        yield found


def on_gpu(data: Any) -> Any:
    return ts.device_put(np.asarray(data), "cuda:0")


def place(x: Any) -> int:
    return x.storage.address


def places(tree: Any) -> list[int]:
    return [place(x) for x in pytree.leaves(tree)]


def bits(tree: Any) -> list[bytes]:
    return [np.asarray(x).tobytes() for x in pytree.leaves(tree)]


# --- what takes the memory of an argument -----------------------------------------------------


@pytest.mark.parametrize("name", IN_PLACE)
def test_in_place(gpu: FakeBackend, name: str) -> None:
    f = IN_PLACE[name]
    donating = ts.jit(f, donate_argnums=0)
    wanted = bits(ts.jit(f)(on_gpu(ROWS)))
    with ts.config.update(verify=True):
        x = on_gpu(ROWS)
        before = place(x)
        y = donating(x)
    assert (place(y), bits(y)) == (before, wanted)
    with pytest.raises(DonatedError, match="after it was donated to"):
        x + 1
    assert donating.lower(y).memory().donated == ROWS.nbytes


@pytest.mark.parametrize("name", NOT_IN_PLACE)
def test_not_in_place(gpu: FakeBackend, name: str) -> None:
    f = NOT_IN_PLACE[name]
    data = ROWS.reshape(-1)
    wanted = bits(ts.jit(f)(on_gpu(data)))
    x = on_gpu(data)
    before = place(x)
    y = ts.jit(f, donate_argnums=0)(x)
    assert bits(y) == wanted
    assert place(y) != before
    with pytest.raises(DonatedError):
        x + 1


def test_only_what_changes_is_written(gpu: FakeBackend) -> None:
    """An update of rows is one kernel whose grid is that of the rows."""
    f = ts.jit(lambda x, k, row: x.at[k].set(row), donate_argnums=0)
    args = [ts.ShapeDtypeStruct((1000, 256), ts.float32), 3, ts.zeros(256)]
    lowered = f.lower(*args, machine="sm_90a")
    assert lowered.memory().peak == 1000 * 1024 + 1024 + 8
    main = str(lowered.tile.entry)
    assert main.count("tile.launch") == 1
    assert "grid=[1]" in main
    copying = ts.jit(f.function).lower(*args, machine="sm_90a")
    assert str(copying.tile.entry).count("tile.launch") == 2


def test_swapped_arguments(gpu: FakeBackend) -> None:
    f = ts.jit(lambda a, b: (b + 0, a * 2), donate_argnums=(0, 1))
    a, b = on_gpu(ROWS), on_gpu(ROWS + 5)
    taken = {place(a), place(b)}
    x, y = f(a, b)
    assert {place(x), place(y)} <= taken
    assert bits([x, y]) == bits([ROWS + 5, ROWS * 2])


# --- whom else an array belongs to ------------------------------------------------------------

OTHERS: dict[str, Callable[[Any], Any]] = {
    "a view": lambda x: ts.reshape(x, (30, 40)),
    "elements": lambda x: x.storage,
    "memory": lambda x: x.storage.owner,
    "another library": lambda x: x.__cuda_array_interface__,
}


@pytest.mark.parametrize("name", OTHERS)
def test_what_others_have_is_copied(gpu: FakeBackend, name: str) -> None:
    f = ts.jit(lambda x: x + 1, donate_argnums=0)
    x = on_gpu(ROWS)
    data = gpu.memory.at(place(x))
    other = OTHERS[name](x)
    before = place(x)
    y = f(x)
    assert place(y) != before
    assert bits(y) == bits(ROWS + 1)
    assert data[: ROWS.nbytes].tobytes() == ROWS.tobytes()
    if isinstance(other, ts.Array):
        assert bits(other) == bits(ROWS.reshape(30, 40))


def test_memory_of_another_library_is_copied(gpu: FakeBackend) -> None:
    class Foreign:
        def __init__(self, data: Any) -> None:
            self.data = data
            self.__cuda_array_interface__ = data.__cuda_array_interface__

    source = on_gpu(ROWS)
    x = ts.asarray(Foreign(source))
    assert place(x) == place(source)
    y = ts.jit(lambda x: x * 2, donate_argnums=0)(x)
    assert place(y) != place(source)
    assert bits([source, y]) == bits([ROWS, ROWS * 2])


def test_one_array_as_two_arguments(gpu: FakeBackend) -> None:
    f = ts.jit(lambda a, b: a + b, donate_argnums=0)
    x = on_gpu(ROWS)
    before = place(x)
    y = f(x, x)
    assert place(y) != before
    assert bits(y) == bits(ROWS + ROWS)


def test_calls_without_an_owner_copy(gpu: FakeBackend) -> None:
    """What calls a program directly, with elements, keeps them."""
    f = ts.jit(lambda x: x + 1, donate_argnums=0)
    f(on_gpu(ROWS))
    (entry,) = f._entries.values()
    x = on_gpu(ROWS).storage
    (y,) = entry.executable.run([x])
    assert y.address != x.address
    assert bits([ts.Array(x), ts.Array(y)]) == bits([ROWS, ROWS + 1])


# --- refs -------------------------------------------------------------------------------------


def attend(cache: Any, x: Any) -> Any:
    """One step of attention with a cache of keys and values."""
    held = cache.get()
    n = held["n"]
    k, v = held["k"].at[:, n].set(x * 2), held["v"].at[:, n].set(x + 1)
    cache.set({"k": k, "v": v, "n": n + 1})
    s = ts.where(ts.arange(k.shape[1]) <= n, ts.sum(k * x[:, None], axis=-1), -ts.inf)
    p = ts.exp(s - ts.max(s, axis=-1, keepdims=True))
    return ts.sum((p / ts.sum(p, axis=-1, keepdims=True))[:, :, None] * v, axis=1)


def empty_cache(put: Callable[[Any], Any], name: str = "cache") -> Any:
    zeros = np.zeros((2, 16, 8), np.float32)
    return ts.Ref({"k": put(zeros), "v": put(zeros), "n": put(np.int32(0))}, name=name)


def test_a_cache_is_written_in_place(gpu: FakeBackend) -> None:
    rng = np.random.default_rng(0)
    steps = rng.normal(size=(4, 2, 8)).astype(np.float32)
    host, cache = empty_cache(ts.asarray), empty_cache(on_gpu)
    first = places(cache.get())
    step = ts.jit(attend)
    for k, x in enumerate(steps):
        np.testing.assert_allclose(step(cache, on_gpu(x)), step(host, x), rtol=1e-5)
        assert places(cache.get()) == first
        assert int(cache.get()["n"]) == k + 1
    use = step.lower(cache, on_gpu(steps[0])).memory()
    assert use.donated == 2 * 2 * 16 * 8 * 4 + 4
    assert use.peak < use.inputs + use.outputs
    np.testing.assert_array_equal(cache.get()["k"], host.get()["k"])


def test_what_was_read_stays(gpu: FakeBackend) -> None:
    ref = ts.Ref(on_gpu(ROWS), name="ref")

    @ts.jit
    def bump(k: Any) -> None:
        ref[k] += 1.0

    old = ref.get()
    bump(3)
    wanted = ROWS.copy()
    wanted[3] += 1
    assert bits(old) == bits(ROWS)
    assert bits(ref.get()) == bits(wanted)
    assert place(old) != place(ref.get())
    del old
    before = place(ref.get())
    bump(3)
    assert place(ref.get()) == before


def test_an_array_that_a_ref_was_made_of_stays(gpu: FakeBackend) -> None:
    x = on_gpu(ROWS)
    ref = ts.Ref(x, name="ref")
    ts.jit(lambda ref: ref.update(lambda v: v * 2))(ref)
    assert bits([x, ref.get()]) == bits([ROWS, ROWS * 2])


def test_a_call_that_fails_leaves_refs_as_they_were(gpu: FakeBackend) -> None:
    ref = ts.Ref(on_gpu(ROWS), name="ref")
    is_bad = [False]

    def check() -> Any:
        if is_bad[0]:
            raise KeyError("no")
        return np.float32(1)

    @ts.jit
    def f() -> None:
        ref[0] = 7.0
        ref[1] += ts.io_callback(check, ts.ShapeDtypeStruct((), ts.float32))

    f()
    held = bits(ref.get())
    is_bad[0] = True
    with pytest.raises(KeyError, match="no"):
        f()
    assert bits(ref.get()) == held


def test_loops_that_wait_can_be_interrupted_and_copy(gpu: FakeBackend) -> None:
    """Ctrl-C ends a program where it reads a condition: the ref is then as it was before."""
    ref = ts.Ref(on_gpu(np.zeros((64, 300), np.float32)), name="ref")

    @ts.jit
    def f(n: Any) -> None:
        def body(k: Any) -> Any:
            ref.update(lambda x: ts.sort(x, axis=1) + 1)
            return k + 1

        ts.while_loop(lambda k: k < n, body, 0)

    f(on_gpu(np.int64(2)))
    (entry,) = f._entries.values()
    assert entry.executable.is_interruptible
    before, held = ref.get().storage.address, bits(ref.get())
    reads = gpu.reads
    f(on_gpu(np.int64(2)))
    assert gpu.reads > reads
    assert place(ref.get()) != before
    assert bits(ref.get()) != held


# --- kernels that write over what they read ---------------------------------------------------


def test_threads_meet_before_a_store_over_what_others_read(gpu: FakeBackend) -> None:
    """All threads of a block read one number of a row; the first one stores over it."""

    def f(x: Any, y: Any) -> Any:
        total = ts.sum(y * ts.exp(x)[:, None], axis=1)
        return x + 1, y / total[:, None]

    args = [ts.ShapeDtypeStruct((8,), ts.float32), ts.ShapeDtypeStruct((8, 1024), ts.float32)]

    def between(*donated: int) -> list[str]:
        lowered = ts.jit(f, donate_argnums=donated).lower(*args, machine="sm_90a")
        (kernel,) = lowered.target.funcs.values()
        names = [op.name.removeprefix("target.") for op in kernel.ops]
        first = names.index("store")
        return [n for n in names[:first] if n in ("load", "load_cached", "barrier")]

    assert between() == ["load_cached"]
    assert between(0) == ["load", "barrier"]


def test_elements_that_one_thread_reads_need_no_barrier(gpu: FakeBackend) -> None:
    arg = ts.ShapeDtypeStruct((1 << 20,), ts.float32)
    f = ts.jit(lambda x, y: (x * 2 + y, y * 2), donate_argnums=(0, 1))
    lowered = f.lower(arg, arg, machine="sm_90a")
    assert lowered.memory().donated == 8 << 20
    for kernel in lowered.target.funcs.values():
        assert "barrier" not in str(kernel)


# --- shapes -----------------------------------------------------------------------------------


def test_one_program_for_all_sizes_writes_its_refs_in_place(gpu: FakeBackend) -> None:
    cache = ts.Ref(on_gpu(np.zeros((16, 8), np.float32)), name="cache")

    @ts.jit
    def step(x: ts.Tensor["B", 8], k: Any) -> Any:
        cache[k] = ts.sum(x, axis=0)
        return x @ cache.get().T

    before = place(cache.get())
    wanted = np.zeros((16, 8), np.float32)
    rng = np.random.default_rng(0)
    for n in (3, 5, 7, 3):
        x = rng.integers(-4, 5, (n, 8)).astype(np.float32)
        wanted[n] = x.sum(0)
        np.testing.assert_array_equal(step(on_gpu(x), n), x @ wanted.T)
        assert place(cache.get()) == before
    np.testing.assert_array_equal(cache.get(), wanted)
    assert step.cache_size() == 1
    use = step.memory(ts.ShapeDtypeStruct((11, 8), ts.float32), 3, machine="sm_90a")
    assert use.donated == 16 * 8 * 4


def test_refs_keep_their_memory_beside_results_of_their_shape(gpu: FakeBackend) -> None:
    ref = ts.Ref(on_gpu(ROWS), name="ref")

    @ts.jit
    def step(y: Any) -> Any:
        old = ref.get()
        ref.set(old + y)
        return old * y

    y, before = on_gpu(ROWS), place(ref.get())
    for k in range(1, 4):
        assert bits(step(y)) == bits(ROWS * np.float32(k) * ROWS)
        assert place(ref.get()) == before
