"""Aligned memory and its pool."""

from __future__ import annotations

import gc
import itertools
import threading

import numpy as np
import pytest

from tessera.runtime import memory
from tessera.runtime.memory import Pool, aligned_empty, empty, pointer

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
