"""Functions of several programs that native code runs one after the other."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tessera as ts
from tessera.graph.shortcut import composed
from tessera.graph.trace import in_python
from tessera.runtime.dispatch import sequences
from tessera.runtime.dispatch.native import native
from tests.api.test_shortcuts import in_threads, natively

pytestmark = [
    pytest.mark.skipif(native() is None, reason="the layout of objects is not known"),
    pytest.mark.unchecked,
]

RNG = np.random.default_rng(3)


def data(*shape: int, dtype: Any = np.float32) -> np.ndarray:
    return RNG.uniform(0.5, 4, shape).astype(dtype)


F, INT = np.float32, np.int32
Call = tuple[Callable[..., Any], Callable[[], tuple[Any, ...]], dict[str, Any]]
CALLS: dict[str, Call] = {
    "mean": (ts.mean, lambda: (data(3, 5),), {"axis": 1}),
    "std": (ts.std, lambda: (data(3, 5),), {}),
    "var, kept": (ts.var, lambda: (data(3, 5),), {"axis": 0, "keepdims": True, "correction": 1}),
    "softmax": (ts.nn.softmax, lambda: (data(3, 5),), {}),
    "softmax along 0": (ts.nn.softmax, lambda: (data(3, 5), 0), {}),
    "logsumexp": (ts.logsumexp, lambda: (data(3, 5),), {"axis": 1}),
    "integer times float": (ts.multiply, lambda: (data(4, dtype=INT), data(4)), {}),
    "float times integer": (ts.multiply, lambda: (data(4), data(4, dtype=INT)), {}),
    "quotient of integers": (ts.divide, lambda: (data(4, dtype=INT), data(4, dtype=INT)), {}),
    "integers and a float": (ts.multiply, lambda: (data(4, dtype=INT), RNG.uniform(1, 2)), {}),
    "row and integers": (ts.add, lambda: (data(2, 4), data(4, dtype=INT)), {}),
    "clip": (ts.clip, lambda: (data(9), 1.5, 2.5), {}),
    "power": (ts.pow, lambda: (data(3, 4), 2), {}),
    "cube": (ts.pow, lambda: (data(3, 4), 3), {}),
    "power of arrays": (ts.pow, lambda: (data(4), data(4)), {}),
    "gelu": (ts.nn.gelu, lambda: (data(3, 4),), {}),
    "elu": (ts.nn.elu, lambda: (data(3, 4), 0.5), {}),
    "celu of 1": (ts.nn.celu, lambda: (data(3, 4) - F(2), 1.0), {}),
    "relu": (ts.nn.relu, lambda: (data(3, 4) - F(2),), {}),
    "standardize": (ts.nn.standardize, lambda: (data(3, 8),), {}),
    "outer": (ts.outer, lambda: (data(3), data(4)), {}),
    "differences": (ts.diff, lambda: (data(9),), {}),
    "nanmean": (ts.nanmean, lambda: (data(3, 4),), {"axis": 0}),
    "concat": (ts.concat, lambda: ([data(3, 4), data(2, 4)],), {}),
    "stack": (ts.stack, lambda: ((data(3, 4), data(3, 4), data(3, 4)),), {"axis": 1}),
    "einsum": (ts.einsum, lambda: ("ij,jk->ik", data(3, 4), data(4, 5)), {}),
    "lower triangle": (ts.tril, lambda: (data(4, 4),), {}),
    "bfloat16": (ts.mean, lambda: (data(3, 5).astype(ts.bfloat16.np),), {"axis": 1}),
}  # fmt: skip


def arrays(x: Any) -> Any:
    if isinstance(x, (list, tuple)):
        return type(x)([arrays(item) for item in x])
    return ts.asarray(x) if isinstance(x, np.ndarray) else x


@pytest.mark.parametrize("name", CALLS)
def test_native_calls_give_the_same_bits(name: str) -> None:
    fn, make, kwargs = CALLS[name]
    for _ in range(5):
        args = arrays(make())
        with in_python():
            wanted = fn(*args, **kwargs)
        found = fn(*args, **kwargs)
        assert (found.shape, found.dtype, found.weak) == (wanted.shape, wanted.dtype, wanted.weak)
        assert np.asarray(found).tobytes() == np.asarray(wanted).tobytes()
    args = args if any(type(x) is float for x in args) else arrays(make())
    assert natively(fn, *args, **kwargs)


def test_other_shapes_are_other_sequences() -> None:
    for rows in (2, 3, 70):
        for columns in (1, 5, 300):
            for _ in range(4):
                x = data(rows, columns)
                found = ts.std(ts.asarray(x), axis=1)
                np.testing.assert_allclose(np.asarray(found), x.std(1), rtol=1e-4, atol=1e-6)


def test_numbers_that_decide_are_told_apart() -> None:
    x = data(3, 4)
    ours = ts.asarray(x)
    for _ in range(3):
        for exponent in (0, 1, 2, 3, 4, 5, 0.5, -1, 2.5, True):
            found = ts.asarray(ours) ** exponent
            np.testing.assert_allclose(np.asarray(found), x ** F(exponent), rtol=1e-5)
    whole = ts.asarray(np.array([1, 2], np.int32))
    for _ in range(3):
        assert np.asarray(whole**2).tolist() == [1, 4]
        assert np.asarray(whole**5).tolist() == [1, 32]
    for alpha in (1.0, 1.0, 1.0, 2.0, 0.5):
        found = ts.nn.celu(-ours, alpha)
        np.testing.assert_allclose(np.asarray(found), alpha * np.expm1(-x / alpha), rtol=1e-5)


def test_bounds_are_read_anew() -> None:
    x = data(50)
    ours = ts.asarray(x)
    for low, high in ((1.0, 2.0), (1.5, 2.0), (1.5, 1.5), (0.0, 3.0), (2.0, 1.0), (2, 3), (0, 1)):
        for _ in range(3):
            np.testing.assert_array_equal(np.asarray(ts.clip(ours, low, high)), x.clip(low, high))


def test_one_array_twice_says_nothing_of_two() -> None:
    x, y = ts.asarray(data(3)), ts.asarray(data(3))
    for _ in range(4):
        np.testing.assert_array_equal(np.asarray(ts.outer(x, x)), np.outer(x, x))
    assert natively(ts.outer, x, x)
    np.testing.assert_array_equal(np.asarray(ts.outer(x, y)), np.outer(x, y))
    for _ in range(4):
        np.testing.assert_array_equal(np.asarray(ts.concat([x, x])), np.concatenate([x, x]))
    np.testing.assert_array_equal(np.asarray(ts.concat([y, x])), np.concatenate([y, x]))


def test_parts_of_one_array_say_nothing_of_others() -> None:
    whole = ts.asarray(data(8))
    for _ in range(4):
        a, b = whole[:6], whole[2:]
        np.testing.assert_array_equal(np.asarray(ts.outer(a, b)), np.outer(a, b))
    assert natively(ts.outer, a, b)
    c = ts.asarray(data(6))
    np.testing.assert_array_equal(np.asarray(ts.outer(a, c)), np.outer(a, c))


def test_containers_of_other_lengths() -> None:
    for count in (1, 2, 3, 2, 1):
        for _ in range(3):
            parts = [data(2, 3) for _ in range(count)]
            for kind in (list, tuple):
                found = ts.stack(kind([ts.asarray(x) for x in parts]))
                np.testing.assert_array_equal(np.asarray(found), np.stack(parts))


def test_functions_within_watched_ones_are_seen() -> None:
    """What runs natively inside would not be seen, and its results be taken for constants."""
    x = data(3, 4)
    for _ in range(4):
        ts.logsumexp(ts.asarray(x))
        ts.mean(ts.asarray(x))
    for _ in range(5):
        x = data(3, 4)
        found = ts.nn.logsumexp(ts.asarray(x))
        np.testing.assert_allclose(float(found), np.log(np.exp(x).sum()), rtol=1e-5)
        found = ts.std(ts.asarray(x))
        np.testing.assert_allclose(float(found), x.std(), rtol=1e-4)


def test_mistakes_stay_errors() -> None:
    x, k = ts.asarray(data(3, 4)), ts.asarray(np.array([1, 2], np.int32))
    for _ in range(4):
        ts.concat([x, x])
        ts.nn.softmax(x, 1)
        k**2
        with pytest.raises(ts.TesseraError):
            ts.concat([x, k])
        with pytest.raises(ts.TesseraError):
            ts.nn.softmax(x, 2)
        with pytest.raises(ts.TesseraError):
            ts.einsum("ij,jk->ik", x, x)


def test_many_threads() -> None:
    wrong: list[object] = []

    def work(k: int) -> None:
        x = np.full((k + 2, 3), k, np.float32)
        x[0] += 1
        ours = ts.asarray(x)
        for _ in range(200):
            found = ts.std(ours, axis=0), ts.nn.softmax(ours), ts.multiply(ours, k)
            shifted = np.exp(x - x.max(1, keepdims=True))
            wanted = x.std(0), shifted / shifted.sum(1, keepdims=True), x * k
            for a, b in zip(found, wanted, strict=True):
                if not np.allclose(np.asarray(a), b, rtol=1e-4):
                    wrong.append(k)

    in_threads(work)
    assert not wrong


def test_large_arrays() -> None:
    x = data(1 << 19)
    ours = ts.asarray(x)
    for _ in range(4):
        np.testing.assert_allclose(float(ts.std(ours)), x.std(dtype=np.float64), rtol=1e-4)
        np.testing.assert_array_equal(np.asarray(ts.clip(ours, 1, 2)), x.clip(1, 2))


def test_what_lies_between_shares_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    needed: list[int] = []
    steps = sequences._Writer.steps

    def noted(self: Any, main: int) -> Any:
        found = steps(self, main)
        needed.append(found.scratch)
        return found

    monkeypatch.setattr(sequences._Writer, "steps", noted)

    @composed
    def fn(x: Any) -> Any:
        y = ts.sin(x)
        z = y
        for k in range(20):
            z = ts.cos(z) * (k + 1) + (y if k % 7 == 0 else z)
        halves = ts.split(z, 2)
        return halves[0] - halves[1] + y[:1024]

    for seed in range(5):
        x = ts.asarray(np.random.default_rng(seed).standard_normal(2048).astype(F))
        with in_python():
            wanted = fn(x)
        np.testing.assert_array_equal(np.asarray(fn(x)), np.asarray(wanted))
    assert natively(fn, x)
    (size,) = needed
    assert size <= 5 * x.nbytes


def test_values_that_never_come_again_fill_nothing() -> None:
    x = ts.asarray(data(3))
    for k in range(200):
        for _ in range(2):
            ts.nn.leaky_relu(x, 0.01 + k)
    assert len(ts.nn.leaky_relu.notes.signatures.table.keep) <= 32
    for _ in range(3):
        ts.nn.gelu(x)
    assert natively(ts.nn.gelu, x)


def _logsumexp(x: np.ndarray) -> np.ndarray:
    return np.log(np.exp(x).sum())


VECTORS: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "median": (ts.median, np.median),
    "quantile": (lambda x: ts.quantile(x, 0.3), lambda x: np.quantile(x, 0.3)),
    "percentile": (lambda x: ts.percentile(x, 40), lambda x: np.percentile(x, 40)),
    "nanmedian": (ts.nanmedian, np.nanmedian),
    "nanquantile": (lambda x: ts.nanquantile(x, 0.3), lambda x: np.nanquantile(x, 0.3)),
    "nanstd": (ts.nanstd, np.nanstd),
    "nanmax": (ts.nanmax, np.nanmax),
    "nanargmax": (ts.nanargmax, np.nanargmax),
    "nan_to_num": (ts.nan_to_num, np.nan_to_num),
    "norm": (ts.linalg.norm, np.linalg.norm),
    "norm of order 1": (
        lambda x: ts.linalg.vector_norm(x, ord=1), lambda x: np.linalg.norm(x, 1)
    ),
    "norm of order 3": (
        lambda x: ts.linalg.vector_norm(x, ord=3), lambda x: np.linalg.norm(x, 3)
    ),
    "largest": (
        lambda x: ts.linalg.vector_norm(x, ord=float("inf")), lambda x: np.abs(x).max()
    ),
    "logsumexp": (ts.logsumexp, _logsumexp),
    "log_softmax": (ts.nn.log_softmax, lambda x: x - _logsumexp(x)),
    "trapezoid": (ts.trapezoid, np.trapezoid),
    "diff": (ts.diff, np.diff),
    "cummax": (ts.cummax, np.maximum.accumulate),
    "repeat": (lambda x: ts.repeat(x, 2), lambda x: np.repeat(x, 2)),
    "roll": (lambda x: ts.roll(x, 1), lambda x: np.roll(x, 1)),
    "kron": (lambda x: ts.kron(x, x), lambda x: np.kron(x, x)),
}  # fmt: skip


@pytest.mark.parametrize("name", VECTORS)
def test_no_value_of_an_earlier_call_is_kept(name: str) -> None:
    """Short vectors, whose results on the way are single numbers: these might be taken for what is
    always so."""
    ours, numpys = VECTORS[name]
    for size in (1, 2, 5):
        for k in range(6):
            x = RNG.standard_normal(size).astype(np.float32) + np.float32(3)
            if name.startswith("nan") and size > 2 and k % 2:
                x[k % size] = np.nan
            wanted = numpys(x)
            np.testing.assert_allclose(np.asarray(ours(ts.asarray(x))), wanted, 1e-4, 1e-4)
