"""Aligned memory and its pool."""

from __future__ import annotations

import gc
import itertools
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tessera as ts
from tessera.compile import Lowered
from tessera.errors import OptionError
from tessera.graph.ops import elementwise
from tessera.ir.intexpr import sym
from tessera.runtime import memory
from tessera.runtime.memory import Pool, aligned_empty, empty, pointer
from tests.schedule.lowering import traced, typed

pytestmark = pytest.mark.usefixtures("few_objects")

MIB = 1 << 20


@pytest.mark.parametrize("dtype", ["u1", "f2", "f4", "f8", "c16", "?"])
@pytest.mark.parametrize("shape", [(), (0,), (3, 0), (1,), (7,), (3, 5), (513, 1025)])
def test_arrays_are_aligned_and_whole(shape: tuple[int, ...], dtype: str) -> None:
    array = aligned_empty(shape, np.dtype(dtype))
    assert (array.shape, array.dtype) == (shape, np.dtype(dtype))
    assert type(array) is np.ndarray
    assert array.flags.c_contiguous
    assert array.flags.writeable
    assert pointer(array) % 64 == 0
    array[...] = 1
    assert array.all()


@pytest.mark.parametrize("size", [1 << 14, 100_001, MIB, 5 * MIB + 3])
def test_arrays_that_are_not_small_start_on_pages(size: int) -> None:
    data = np.ones(size + 1, np.uint8)[1:]
    x, y = ts.asarray(data), ts.asarray(data[::-1])
    found = ts.jit(lambda x, y: (x + y, ts.sort(x)))(x, y)
    assert [pointer(array.contiguous) % 4096 for array in (x, y, *found)] == [0] * 4
    assert pointer(empty(size)) % 4096 == 0


@pytest.mark.parametrize("value", [np.float32(1), np.int64(5), np.bool_(True), 5])
def test_numbers_have_no_memory(value: Any) -> None:
    with pytest.raises((TypeError, AttributeError), match=r"memory of an array|interface"):
        pointer(value)


@pytest.mark.parametrize("size", [0, 1, 63, 64, 65, 4096, MIB - 1, MIB, MIB + 1, 5 * MIB + 3])
def test_bytes(size: int) -> None:
    block = empty(size)
    assert (block.nbytes, block.dtype) == (size, np.uint8)
    assert pointer(block) % 64 == 0
    block.fill(7)
    assert block.sum(dtype=np.int64) == 7 * size


def test_pointer_is_the_address_of_the_data() -> None:
    base = np.arange(24.0).reshape(4, 6)
    for array in (base, base[1:, 2:], base.T, base[::-1], base[:0], np.float32(3) + np.zeros(())):
        array = np.asarray(array)
        assert pointer(array) == array.__array_interface__["data"][0]
        assert memory._pointer_by_interface(array) == pointer(array)


@pytest.fixture
def pool() -> Pool:
    return Pool(64 * MIB)


def take(pool: Pool, size: int) -> np.ndarray:
    return pool.empty((size,), np.dtype("u1"), size)


def test_memory_is_used_again(pool: Pool) -> None:
    first = take(pool, 2 * MIB)
    place = pointer(first)
    del first
    assert pool.waiting_bytes >= 2 * MIB
    second = take(pool, 2 * MIB - 1000)  # of the same class
    assert pointer(second) == place
    assert pool.waiting_bytes == 0


@pytest.mark.parametrize(
    "view",
    [
        lambda a: a[5:],
        lambda a: a[::2].reshape(-1, 2).T,
        lambda a: a[5:][::3][1:],
        lambda a: a.view("f4").reshape(2, -1)[1],
        lambda a: memoryview(a),
        lambda a: np.frombuffer(a, "f8"),
        lambda a: np.lib.stride_tricks.as_strided(a, (10, 10), (1, 1)),
        lambda a: np.asarray(memoryview(a)[3:]),
        lambda a: a.view(np.matrix),
        lambda a: iter(a),
        lambda a: np.broadcast_to(a[:1], (5, 1)),
    ],
)
@pytest.mark.filterwarnings("ignore::PendingDeprecationWarning")
def test_a_view_keeps_its_memory(pool: Pool, view: object) -> None:
    array = take(pool, 2 * MIB)
    place = pointer(array)
    kept = view(array)  # type: ignore[operator]
    del array
    gc.collect()
    assert pool.waiting_bytes == 0
    other = take(pool, 2 * MIB)
    assert pointer(other) != place
    del kept
    gc.collect()
    assert pointer(take(pool, 2 * MIB)) == place


def test_two_live_arrays_never_share(pool: Pool) -> None:
    live = [take(pool, MIB) for _ in range(8)]
    for i, array in enumerate(live):
        array.fill(i)
    assert [int(array[0]) for array in live] == list(range(8))
    places = sorted(pointer(array) for array in live)
    assert all(b - a >= MIB for a, b in itertools.pairwise(places))


def test_the_pool_is_bounded_and_gives_up_the_oldest() -> None:
    pool = Pool(5 * MIB)
    arrays = [take(pool, MIB) for _ in range(8)]
    places = [pointer(array) for array in arrays]
    while arrays:
        del arrays[0]
    assert pool.waiting_bytes <= 5 * MIB
    assert pointer(take(pool, MIB)) in places[4:]
    del places
    # Larger than the whole limit: not kept at all.
    block = take(pool, 32 * MIB)
    del block
    assert pool.waiting_bytes == 0


def test_release_frees_everything(pool: Pool) -> None:
    array = take(pool, 2 * MIB)
    del array
    pool.release()
    assert pool.waiting_bytes == 0
    assert take(pool, 2 * MIB).nbytes == 2 * MIB


def test_a_finalizer_inside_the_pool_does_not_wait(pool: Pool) -> None:
    array = take(pool, 2 * MIB)
    with pool._lock:
        del array  # as a garbage collection in the middle of the pool's work does
        assert pool.waiting_bytes >= 2 * MIB
    assert take(pool, 2 * MIB).nbytes == 2 * MIB


@pytest.mark.parametrize("size", [1, 64, 65, 1000, MIB, MIB + 1, 3 * MIB + 17, 10**9 + 1])
def test_size_classes_waste_an_eighth_at_most(size: int) -> None:
    capacity = memory._size_class(size)
    assert size <= capacity <= max(size + size // 8 + 1, size + 64)
    assert capacity % 64 == 0
    assert memory._size_class(capacity) == capacity


def test_threads_share_the_pool(pool: Pool) -> None:
    wrong: list[int] = []

    def work(seed: int) -> None:
        kept: list[np.ndarray] = []
        for i in range(60):
            array = take(pool, MIB * (1 + (i + seed) % 3))
            array[:: 64 * 1024] = seed
            kept.append(array)
            if len(kept) > 3:
                oldest = kept.pop(0)
                if (oldest[:: 64 * 1024] != seed).any():
                    wrong.append(seed)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(1, 9)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert pool.waiting_bytes <= pool.limit


# --- how much -------------------------------------------------------------------------------------


def test_blocks_are_little_larger_than_what_they_hold() -> None:
    for size in (MIB, MIB + 1, 3 * MIB + 5, 40_000_000):
        assert size <= memory._size_class(size) <= size * 33 / 32


def test_use_is_counted(pool: Pool) -> None:
    first, second = take(pool, 2 * MIB), take(pool, 4 * MIB)
    assert pool.live_bytes >= 6 * MIB
    del second
    third = take(pool, 2 * MIB)
    most = pool.peak_bytes
    assert 6 * MIB <= most < 6.5 * MIB
    del first, third
    assert pool.live_bytes == 0
    pool.reset_peak()
    assert (pool.peak_bytes, most > 0) == (0, True)


def test_a_lower_limit_frees_what_waits(pool: Pool) -> None:
    arrays = [take(pool, MIB) for _ in range(6)]
    del arrays
    pool.limit = 2 * MIB
    kept = take(pool, 4 * MIB)
    assert pool.waiting_bytes <= 2 * MIB
    assert kept.nbytes == 4 * MIB


def test_what_waits_goes_where_memory_is_short(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "available_bytes", lambda: 10 * MIB)
    small, large = take(pool, 9 * MIB), take(pool, 16 * MIB)
    del small, large
    monkeypatch.setattr(memory, "available_bytes", lambda: 1 << 40)
    again = take(pool, 20 * MIB)
    assert pool.waiting_bytes > 0
    monkeypatch.setattr(memory, "available_bytes", lambda: 10 * MIB)
    more = take(pool, 12 * MIB)
    assert pool.waiting_bytes == 0
    assert again.nbytes + more.nbytes == 32 * MIB


def test_memory_that_there_is_not(pool: Pool) -> None:
    kept = take(pool, MIB)
    del kept
    with pytest.raises(MemoryError):
        take(pool, 1 << 60)
    assert (pool.waiting_bytes, pool.live_bytes) == (0, 0)


def test_what_is_available_is_a_number() -> None:
    assert memory.available_bytes() > MIB
    assert memory._field("/nowhere") == -1


def test_the_setting_bounds_what_waits() -> None:
    with ts.config.update(memory_cache=0):
        one = aligned_empty((2 * MIB,), np.dtype("u1"))
        del one
        two = aligned_empty((3 * MIB,), np.dtype("u1"))
        assert memory.pool.waiting_bytes == 0
        del two
    aligned_empty((3 * MIB,), np.dtype("u1"))
    assert memory.pool.limit == ts.config.memory_cache << 20


PROGRAMS: dict[str, Callable[..., Any]] = {
    "one array": lambda x: ts.exp(x) + 1,
    "in between": lambda x: ts.sort(ts.exp(x) / ts.sum(ts.exp(x), axis=0), axis=1) + 1,
    "several": lambda x: (x.T + 0, ts.cumulative_sum(x, axis=1), x @ x.T),
    "gradient": ts.grad(lambda x: ts.sum(ts.tanh(x @ x.T) @ x)),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_use_is_predicted(name: str) -> None:
    program = ts.jit(PROGRAMS[name])
    x = ts.asarray(np.linspace(0.1, 1, 1_200_000, dtype=np.float32).reshape(1000, 1200))
    predicted = program.lower(x).memory()
    assert predicted.inputs == 4_800_000
    program(x)
    gc.collect()
    before = memory.pool.live_bytes
    memory.pool.reset_peak()
    program(x)
    measured = memory.pool.peak_bytes - before + predicted.inputs
    assert measured == pytest.approx(predicted.peak, rel=0.05)


def test_use_with_symbolic_dims() -> None:
    lowered = Lowered(traced(lambda x: elementwise.exp(x), typed(sym("S"), 5)))
    assert (lowered.memory(S=7).inputs, lowered.memory(S=70).peak) == (140, 2800)
    assert str(lowered.memory().peak) == "40*S"
    with pytest.raises(OptionError, match=r"memory: f is given T"):
        lowered.memory(T=3)


def test_use_of_known_sizes_has_no_dims() -> None:
    lowered = ts.jit(lambda x: x + 1).lower(np.zeros(3, np.float32))
    assert str(lowered.memory()).splitlines()[0] == (
        "12 bytes of inputs, 12 of outputs, 0 in between; 24 at the peak"
    )
    with pytest.raises(OptionError, match=r"is given S"):
        lowered.memory(S=3)
