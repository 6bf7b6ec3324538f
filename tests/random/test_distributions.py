"""Samplers: their distributions, and that a sample depends on nothing but key and place."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from scipy import stats

import tessera as ts
from tessera import random
from tessera.graph.interp import run
from tests.fake_gpu import fake_gpu
from tests.random.statistics import SIZE, fits, fits_counts

KEY = random.key(20)


def host(x: Any) -> np.ndarray:
    return np.asarray(x)


# --- distributions ----------------------------------------------------------------------------

CONTINUOUS: dict[str, tuple[Callable[..., Any], Any]] = {
    "uniform": (random.uniform, stats.uniform),
    "normal": (random.normal, stats.norm),
    "exponential": (random.exponential, stats.expon),
    "gumbel": (random.gumbel, stats.gumbel_r),
    "laplace": (random.laplace, stats.laplace),
    "logistic": (random.logistic, stats.logistic),
}


@pytest.mark.parametrize("dtype", [ts.float32, ts.float64])
@pytest.mark.parametrize("name", CONTINUOUS)
def test_continuous(name: str, dtype: Any) -> None:
    draw, law = CONTINUOUS[name]
    found = draw(KEY, (SIZE,), dtype)
    assert found.dtype is dtype
    assert fits(found, law.cdf)
    # In every place of a block of four words alike, and neighbours are independent.
    data = host(found).reshape(-1, 4)
    assert all(stats.kstest(data[:, k], law.cdf).pvalue > 1e-3 for k in range(4))
    assert np.max(np.abs(np.corrcoef(data.T) - np.eye(4))) < 4 / np.sqrt(SIZE / 4)


@pytest.mark.parametrize("dtype", [ts.float16, ts.bfloat16])
@pytest.mark.parametrize("name", CONTINUOUS)
def test_narrow_dtypes(name: str, dtype: Any) -> None:
    """They are the rounded samples of float32, but for uniform ones, which are not rounded up."""
    draw, _ = CONTINUOUS[name]
    found = draw(KEY, (SIZE,), dtype)
    assert found.dtype is dtype
    data = host(found).astype(np.float64)
    if name == "uniform":
        assert data.max() < 1
        step = 2.0 ** (11 if dtype is ts.float16 else 8)
        assert fits_counts(data * step, lambda k: np.full(len(k), 1 / step), 0, int(step) - 1)
    else:
        np.testing.assert_array_equal(found, draw(KEY, (SIZE,)).astype(dtype))


def test_the_test_finds_a_wrong_distribution() -> None:
    x = host(random.normal(KEY, (SIZE,)))
    assert not fits(x + 0.05, stats.norm.cdf)  # wrong by 0.02
    assert not fits(x * 1.09, stats.norm.cdf)
    n = host(random.randint(KEY, (SIZE,), 0, 20))
    wrong = np.where((n == 3) & (np.arange(SIZE) % 5 == 0), 4, n)
    assert fits_counts(n, lambda k: np.full(20, 0.05), 0, 19)
    assert not fits_counts(wrong, lambda k: np.full(20, 0.05), 0, 19)


def test_tails_of_the_normal_distribution() -> None:
    x = host(random.normal(KEY, (2_000_000,)))
    for limit in (3, 4, 4.5):
        expected = 2e6 * stats.norm.sf(limit)
        for tail in (x, -x):
            assert abs(np.sum(tail > limit) - expected) < 4 * np.sqrt(expected)


def test_uniform_limits() -> None:
    x = host(random.uniform(KEY, (SIZE,), minval=-3, maxval=5))
    assert fits(x, stats.uniform(-3, 8).cdf)
    # The sum with a large number is rounded, but not up to the end.
    y = host(random.uniform(KEY, (1000,), minval=1e6, maxval=1e6 + 0.125))
    np.testing.assert_array_equal(np.unique(y), np.float32([1e6, 1e6 + 0.0625]))
    low = ts.asarray([0.0, 10.0, 20.0])
    z = host(random.uniform(KEY, (1000, 3), minval=low, maxval=low + 1))
    assert (np.floor(z) == [0, 10, 20]).all()
    np.testing.assert_array_equal(random.uniform(KEY, (3,), minval=2.0, maxval=2.0), [2, 2, 2])
    assert host(random.uniform(KEY, (SIZE,))).min() >= 0


RANGES = [
    (0, 7, ts.int64), (-5, 6, ts.int32), (0, 2, ts.uint8), (-128, 128, ts.int8), (0, 256, ts.uint8),
    (2**31 - 9, 2**31, ts.int32), (2**63 - 5, 2**63, ts.int64), (2**64 - 11, 2**64, ts.uint64),
    (-(2**63), -(2**63) + 3, ts.int64), (65530, 65536, ts.uint16),
]  # fmt: skip


@pytest.mark.parametrize(("low", "high", "dtype"), RANGES)
def test_randint(low: int, high: int, dtype: Any) -> None:
    found = random.randint(KEY, (SIZE,), low, high, dtype)
    assert found.dtype is dtype
    data = [int(x) - low for x in host(found)]
    assert fits_counts(data, lambda k: np.full(len(k), 1 / (high - low)), 0, high - low - 1)


@pytest.mark.parametrize("dtype", [ts.int32, ts.uint32, ts.int64, ts.uint64])
def test_randint_of_all_numbers(dtype: Any) -> None:
    info = ts.iinfo(dtype)
    found = host(random.randint(KEY, (SIZE,), info.min, info.max + 1, dtype))
    top = (found.view(f"u{dtype.itemsize}") >> np.uint64(dtype.bits - 4)).astype(np.int64)
    low = (found.view(f"u{dtype.itemsize}") % 16).astype(np.int64)
    for part in (top, low):
        assert fits_counts(part, lambda k: np.full(16, 1 / 16), 0, 15)


def test_randint_of_odd_ranges() -> None:
    """A range of 3/4 of all numbers, where a remainder would favour the lower third."""
    found = host(random.randint(KEY, (SIZE,), 0, 3 * 2**30, ts.uint32))
    assert fits_counts(found // 2**28, lambda k: np.full(12, 1 / 12), 0, 11)
    low, high = ts.asarray([0, 5, -7]), ts.asarray([3, 5, -9])
    data = host(random.randint(KEY, (100, 3), low, high))
    assert set(data[:, 0]) == {0, 1, 2}
    assert set(data[:, 1]) == {5}  # an empty range gives its beginning
    assert set(data[:, 2]) == {-7}


def test_rademacher() -> None:
    for dtype in (ts.int64, ts.int8, ts.float32):
        found = random.rademacher(KEY, (SIZE,), dtype)
        assert found.dtype is dtype
        assert fits_counts((host(found) + 1) / 2, lambda k: np.full(2, 0.5), 0, 1)


@pytest.mark.parametrize("mode", ["low", "high"])
@pytest.mark.parametrize("p", [0.0, 1e-3, 0.3, 0.5, 1.0])
def test_bernoulli(p: float, mode: Any) -> None:
    found = random.bernoulli(KEY, p, (SIZE,), mode)
    assert found.dtype is ts.bool
    if p in (0, 1):
        assert (host(found) == bool(p)).all()
    else:
        assert fits_counts(found, stats.bernoulli(p).pmf, 0, 1)


def test_bernoulli_of_several() -> None:
    p = ts.asarray([0.0, 1.0, 0.5], dtype=ts.float64)
    data = host(random.bernoulli(KEY, p, (1000, 3)))
    assert (data[:, 0].sum(), data[:, 1].sum()) == (0, 1000)
    assert 420 < data[:, 2].sum() < 580
    assert random.bernoulli(KEY, p).shape == (3,)
    assert random.bernoulli(KEY).shape == ()
    tiny = random.bernoulli(KEY, 1e-15, (SIZE,), "high")
    assert not host(tiny).any()


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_categorical(axis: int) -> None:
    p = np.array([0.1, 0.55, 0.3, 0.05, 0.0])
    with np.errstate(divide="ignore"):
        logits = np.log(p).astype(np.float32) + 3
    line = ts.asarray(np.stack([logits, logits[::-1]], 1 if axis == 0 else 0))
    found = random.categorical(KEY, line, axis=axis, shape=(SIZE, 2))
    assert found.dtype is ts.int64
    assert fits_counts(found[:, 0], lambda k: p[k], 0, 4)
    assert fits_counts(found[:, 1], lambda k: p[::-1][k], 0, 4)
    assert random.categorical(KEY, line, axis=axis).shape == (2,)


def test_categorical_without_replacement() -> None:
    p = np.array([0.5, 0.3, 0.2])
    logits = ts.log(ts.asarray(p, dtype=ts.float32))
    draw = ts.jit(lambda k: random.categorical(k, logits, shape=(2,), replace=False))
    found = host(ts.vmap(draw)(random.split(KEY, SIZE)))
    assert (found[:, 0] != found[:, 1]).all()
    pairs = np.array(
        [[0 if i == j else p[i] * p[j] / (1 - p[i]) for j in range(3)] for i in range(3)]
    )
    code = found[:, 0] * 3 + found[:, 1]
    possible = np.flatnonzero(pairs.reshape(-1))
    assert fits_counts(
        np.searchsorted(possible, code), lambda k: pairs.reshape(-1)[possible][k], 0, 5
    )
    many = random.categorical(KEY, ts.zeros((3, 5)), shape=(2, 2, 3), replace=False)
    assert many.shape == (2, 2, 3)
    assert all(len(set(host(many)[:, :, k].reshape(-1))) == 4 for k in range(3))


# --- the same numbers everywhere --------------------------------------------------------------

LOGITS = np.log(np.array([0.2, 0.5, 0.3], np.float32))
WEIGHTS = np.array([0.2, 0.1, 0.3, 0.4], np.float32)
MATRIX = np.arange(15, dtype=np.float32).reshape(3, 5)

DRAWS: dict[str, Callable[[Any], Any]] = {
    "bits": lambda k: random.bits(k, (5, 3)),
    "split": lambda k: random.split(k, 3),
    "fold_in": lambda k: random.fold_in(k, 5),
    "uniform": lambda k: random.uniform(k, (5, 7), minval=-1.5, maxval=3),
    "uniform_f64": lambda k: random.uniform(k, (9,), ts.float64),
    "normal": lambda k: random.normal(k, (33,)),
    "normal_f64": lambda k: random.normal(k, (33,), ts.float64),
    "exponential": lambda k: random.exponential(k, (33,)),
    "gumbel": lambda k: random.gumbel(k, (33,)),
    "logistic": lambda k: random.logistic(k, (33,)),
    "randint": lambda k: random.randint(k, (9,), -5, 100),
    "bernoulli": lambda k: random.bernoulli(k, 0.3, (33,)),
    "bernoulli_high": lambda k: random.bernoulli(k, 0.3, (33,), "high"),
    "categorical": lambda k: random.categorical(k, LOGITS, shape=(9,)),
    "empty": lambda k: random.normal(k, (0, 3)),
    "truncated": lambda k: random.truncated_normal(k, -1.0, 2.0, (33,)),
    "gamma": lambda k: random.gamma(k, 0.7, (33,)),
    "loggamma": lambda k: random.loggamma(k, 0.01, (33,)),
    "beta": lambda k: random.beta(k, 0.5, 2.0, (33,)),
    "poisson": lambda k: random.poisson(k, 4.0, (17,)),
    "poisson_large": lambda k: random.poisson(k, 40.0, (17,)),
    "permutation": lambda k: random.permutation(k, 9),
    "permutation_of_rows": lambda k: random.permutation(k, MATRIX, 1, independent=True),
    "choice": lambda k: random.choice(k, 9, (2, 3)),
    "choice_once": lambda k: random.choice(k, 9, (4,), replace=False),
    "choice_by_weights": lambda k: random.choice(k, 4, (9,), p=WEIGHTS),
}


@pytest.mark.parametrize("name", DRAWS)
def test_the_same_numbers_everywhere(name: str) -> None:
    draw = DRAWS[name]
    key = random.key(99)
    func = ts.make_graph(draw)(key)
    shapes = {x.shape: x for x in (LOGITS, WEIGHTS, MATRIX)}
    extra = [shapes[x.type.shape] for x in func.body.args[:-1]]
    expected = run(func, [*extra, host(key)])[0]
    np.testing.assert_array_equal(draw(key), expected)
    np.testing.assert_array_equal(ts.jit(draw)(key), expected)
    keys = random.split(key, 3)
    wanted = [host(draw(keys[k])) for k in range(3)]
    np.testing.assert_array_equal(ts.jit(ts.vmap(draw))(keys), wanted)


# One of each way to sample: the simulator takes seconds for some.
SIMULATED = [
    "uniform", "normal", "normal_f64", "gumbel", "randint", "bernoulli",
    "categorical", "empty", "truncated", "gamma", "poisson_large", "permutation_of_rows",
    "choice_by_weights",
]  # fmt: skip


@pytest.mark.parametrize("name", SIMULATED)
def test_the_same_numbers_on_a_gpu(name: str) -> None:
    draw = DRAWS[name]
    key = random.key(99)
    expected = host(draw(key))
    with fake_gpu() as gpu:
        on_gpu = ts.device_put(key, "cuda:0")
        np.testing.assert_array_equal(host(ts.jit(draw)(on_gpu)), expected)
        assert gpu.launches or not expected.size


PLACES: dict[str, Callable[[tuple[int, ...]], Any]] = {
    "bits_u64": lambda shape: random.bits(KEY, shape, ts.uint64),
    "normal": lambda shape: random.normal(KEY, shape),
    "normal_f64": lambda shape: random.normal(KEY, shape, ts.float64),
    "randint": lambda shape: random.randint(KEY, shape, 0, 1000),
    "randint_i32": lambda shape: random.randint(KEY, shape, 0, 1000, ts.int32),
    "bernoulli": lambda shape: random.bernoulli(KEY, 0.4, shape),
    "categorical": lambda shape: random.categorical(KEY, LOGITS, shape=shape),
    "gamma": lambda shape: random.gamma(KEY, 0.7, shape),
    "poisson": lambda shape: random.poisson(KEY, 20.0, shape),
    "choice_by_weights": lambda shape: random.choice(KEY, 4, shape, p=WEIGHTS),
}


@pytest.mark.parametrize("name", PLACES)
def test_an_element_depends_on_its_place_alone(name: str) -> None:
    """On the place in row-major order: another shape, or a longer one, has the same numbers."""
    draw = PLACES[name]
    whole = host(draw((6, 10)))
    np.testing.assert_array_equal(host(draw((60,))).reshape(whole.shape), whole)
    np.testing.assert_array_equal(draw((2, 10)), whole[:2])


def test_a_part_of_a_draw_is_that_part_alone() -> None:
    whole = host(random.normal(KEY, (6, 10)))
    part = ts.jit(lambda k: random.normal(k, (6, 10))[2:4, 1:7:2])
    np.testing.assert_array_equal(part(KEY), whole[2:4, 1:7:2])


def same(found: Any, wanted: list[Any]) -> None:
    data = np.asarray(found)
    np.testing.assert_array_equal(data, np.array(wanted, data.dtype))


def test_what_was_drawn_once_stays() -> None:
    """These numbers are part of the interface: they do not change with versions."""
    key = random.key(42)
    same(random.bits(key, 3), [2632642643, 2012563771, 314527917])
    same(random.split(key), [[541301508, 2550652962], [1410988607, 3371850285]])
    same(random.normal(key, 3), [-1.2109364, 1.8604141, 0.18460795])
    same(random.fold_in(key, 7), [1700750019, 2102255375])
    same(random.uniform(key, 3), [0.61295986, 0.4685865, 0.0732317])
    same(random.exponential(key, 3), [0.48945582, 0.7580345, 2.6141264])
    same(random.randint(key, 5, 0, 1000), [468, 327, 658, 670, 839])
    same(random.gamma(key, 0.5, 3), [0.13357462, 0.010905927, 0.012791874])
    same(random.poisson(key, 30.0, 5), [30, 41, 40, 31, 23])
    same(random.binomial(key, 100, 0.3, 5), [30.0, 39.0, 38.0, 31.0, 24.0])
    same(random.permutation(key, 8), [2, 1, 7, 3, 0, 4, 6, 5])
    same(random.choice(key, 9, (5,), False), [2, 1, 7, 3, 0])
    same(random.categorical(key, np.zeros(9, np.float32), shape=(5,)), [4, 8, 7, 7, 2])
    same(random.truncated_normal(key, 1.0, 2.0, 3), [1.3107451, 1.2142276, 1.2044613])
