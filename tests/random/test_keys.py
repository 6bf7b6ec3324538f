"""Keys, and the words that are drawn with them: Random123's generator, the same on every target."""

from __future__ import annotations

import doctest
import importlib
from collections.abc import Callable, Generator
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tessera as ts
from tessera.dtypes import uint32
from tessera.graph.interp import run
from tessera.graph.ops import elementwise as ops
from tessera.graph.ops.generate import philox
from tests.fake_gpu import FakeBackend, fake_gpu
from tests.graph.test_ops_generate import KNOWN, word
from tests.schedule.lowering import typed
from tests.tile.gpu_running import check_gpu


@pytest.mark.parametrize(
    "name",
    ["random.keys", "random.continuous", "random.discrete", "random.arrangement", "nn.layers"],
)
def test_examples(name: str) -> None:
    failed, count = doctest.testmod(importlib.import_module(f"tessera.{name}"))
    assert count
    assert not failed


@pytest.fixture
def gpu() -> Generator[FakeBackend]:
    with fake_gpu() as found:
        yield found


def host(x: Any) -> np.ndarray:
    return np.asarray(x)


# --- Random123's published answers ------------------------------------------------------------

COUNTERS = np.array([counter for counter, _, _ in KNOWN], np.uint32)
KEYS = np.array([key for _, key, _ in KNOWN], np.uint32)
ANSWERS = np.array([answer for _, _, answer in KNOWN], np.uint32)


def block(counter: Any, key: Any) -> Any:
    """A block of the generator, made of ops: each of the four words is an array."""

    def emit(name: str, *values: Any) -> Any:
        return {"add": ops.add, "mul": ops.mul, "mulhi": ops.mulhi, "xor": ops.xor}[name](*values)

    def const(value: int, dtype: Any) -> Any:
        return ts.full(counter.shape[:1], value, dtype=dtype)

    words = philox(
        tuple(counter[:, k] for k in range(4)), tuple(key[:, k] for k in range(2)), emit, const
    )
    return ts.stack(words, axis=1)


def test_known_answers_of_the_definition() -> None:
    func = ts.make_graph(block)(ts.asarray(COUNTERS), ts.asarray(KEYS))
    np.testing.assert_array_equal(run(func, [COUNTERS, KEYS])[0], ANSWERS)


def test_known_answers_of_compiled_code() -> None:
    np.testing.assert_array_equal(ts.jit(block)(COUNTERS, KEYS), ANSWERS)


def test_known_answers_of_a_gpu(gpu: FakeBackend) -> None:
    args = [ts.device_put(x, "cuda:0") for x in (COUNTERS, KEYS)]
    np.testing.assert_array_equal(host(ts.jit(block)(*args)), ANSWERS)
    assert gpu.launches


def test_known_answers_of_all_forms_of_a_program() -> None:
    check_gpu(block, typed(3, 4, dtype=uint32), typed(3, 2, dtype=uint32), inputs=[COUNTERS, KEYS])


def test_the_first_published_answer_is_what_bits_draws() -> None:
    np.testing.assert_array_equal(ts.random.bits(ts.random.key(0), 4), ANSWERS[0])


# --- the meaning of keys ----------------------------------------------------------------------


@given(st.integers(0, 2**64 - 1), st.integers(1, 40))
def test_words_are_numbered(seed: int, size: int) -> None:
    key = (seed % 2**32, seed // 2**32)
    wanted = [word(key, n) for n in range(size)]
    np.testing.assert_array_equal(host(ts.random.bits(ts.random.key(seed), size)), wanted)


def test_seeds() -> None:
    assert ts.random.key(0).type == typed(2, dtype=uint32)
    np.testing.assert_array_equal(ts.random.key(2**40 + 3), [3, 2**8])
    np.testing.assert_array_equal(ts.random.key(-1), [2**32 - 1] * 2)
    for dtype in (np.int8, np.int32, np.int64):
        np.testing.assert_array_equal(ts.random.key(dtype(-2)), ts.random.key(-2))
    np.testing.assert_array_equal(ts.random.key(np.uint64(2**64 - 5)), ts.random.key(-5))
    np.testing.assert_array_equal(ts.random.key(7, impl="philox4x32"), [7, 0])
    np.testing.assert_array_equal(ts.random.key(True), [1, 0])
    seeds = ts.arange(-3, 4)
    found = host(ts.jit(ts.vmap(ts.random.key))(seeds))
    np.testing.assert_array_equal(found, [host(ts.random.key(int(s))) for s in host(seeds)])


def test_what_split_gives() -> None:
    key = ts.random.key(12)
    found = host(ts.random.split(key, 5))
    assert found.shape == (5, 2)
    assert found.dtype == np.uint32
    wanted = [[word((12, 0, 0, 1), 2 * n + k) for k in (0, 1)] for n in range(5)]
    np.testing.assert_array_equal(found, wanted)
    np.testing.assert_array_equal(ts.random.split(key), found[:2])
    np.testing.assert_array_equal(ts.random.split(key, (2, 2)), found[:4].reshape(2, 2, 2))
    assert ts.random.split(key, 0).shape == (0, 2)


def test_what_fold_in_gives() -> None:
    key = ts.random.key(12)
    for data in (0, 5, 2**32 - 1):
        wanted = [word((12, 0, data, 2), k) for k in (0, 1)]
        np.testing.assert_array_equal(ts.random.fold_in(key, data), wanted)
        np.testing.assert_array_equal(ts.jit(ts.random.fold_in)(key, np.int64(data)), wanted)
    np.testing.assert_array_equal(ts.random.fold_in(key, -1), ts.random.fold_in(key, 2**32 - 1))


def test_all_keys_of_a_tree_differ() -> None:
    key = ts.random.key(3)
    children = ts.random.split(key, 50)
    trees = [key[None], children]
    trees.append(ts.reshape(ts.vmap(lambda k: ts.random.split(k, 50))(children), (-1, 2)))
    trees.append(ts.vmap(lambda n: ts.random.fold_in(key, n))(ts.arange(100)))
    found = np.concatenate([host(t) for t in trees])
    assert len(np.unique(found, axis=0)) == len(found) == 1 + 50 + 2500 + 100


@pytest.mark.parametrize("dtype", [ts.uint8, ts.uint16, ts.uint32, ts.uint64])
@pytest.mark.parametrize("shape", [(), (3,), (2, 5), (0, 4)])
def test_bits_of_all_dtypes(dtype: Any, shape: tuple[int, ...]) -> None:
    found = ts.random.bits(ts.random.key(9), shape, dtype)
    assert found.shape == shape
    assert found.dtype is dtype
    size = int(np.prod(shape))
    if dtype is ts.uint64:
        wanted = [word((9, 0), 2 * n) + (word((9, 0), 2 * n + 1) << 32) for n in range(size)]
    else:
        wanted = [word((9, 0), n) % 2**dtype.bits for n in range(size)]
    np.testing.assert_array_equal(host(found).reshape(-1), np.array(wanted, dtype.np))


@pytest.mark.parametrize("draw", [lambda k: ts.random.split(k, 3), lambda k: ts.random.bits(k, 5)])
def test_mapped_keys(draw: Callable[[Any], Any]) -> None:
    keys = ts.random.split(ts.random.key(1), 4)
    wanted = [host(draw(keys[k])) for k in range(4)]
    np.testing.assert_array_equal(ts.vmap(draw)(keys), wanted)
    np.testing.assert_array_equal(ts.jit(ts.vmap(draw, in_axes=1))(keys.T), wanted)
