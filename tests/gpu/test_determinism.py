"""The same bits in each run, on a real GPU: updates that meet, and what stating it costs."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tessera as ts

pytestmark = pytest.mark.gpu

RUNS = 8


def on_gpu(data: Any) -> Any:
    return ts.device_put(np.asarray(data), "cuda:0")


def bits(x: Any) -> bytes:
    return np.asarray(x).tobytes()


def normal(*shape: int, seed: int = 0) -> np.ndarray[Any, Any]:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def summed_in_parts(
    x: np.ndarray[Any, Any], at: np.ndarray[Any, Any], y: np.ndarray[Any, Any]
) -> np.ndarray[Any, Any]:
    """Updates of an element, in parts of 16, which are summed in parts of 16, and so on."""
    out = x.copy()
    order = np.argsort(at, kind="stable")
    rows, first = np.unique(at[order], return_index=True)
    for row, places in zip(rows, np.split(order, first[1:]), strict=True):
        terms = y[places]
        while len(terms) > 1:
            cut = [terms[k : k + 16] for k in range(0, len(terms), 16)]
            terms = np.stack([np.add.accumulate(part, axis=0)[-1] for part in cut])
        out[row] += terms[0]
    return out


def few(rows: int, count: int) -> np.ndarray[Any, Any]:
    """Numbers of rows, of which some occur very often, as words of a text do."""
    rng = np.random.default_rng(3)
    return np.minimum(rng.zipf(1.3, count) - 1, rows - 1)


@pytest.mark.parametrize(
    ("rows", "count", "width"),
    [(50, 17, 3), (1, 5000, 8), (64, 40000, 5), (50000, 8192, 64), (300, 70000, 1), (7, 9000, 0)],
)
def test_updates_that_meet_are_summed_in_order(rows: int, count: int, width: int) -> None:
    rest = (width,) if width else ()
    x, y, at = normal(rows, *rest), normal(count, *rest, seed=1), few(rows, count)
    f = ts.jit(lambda x, i, y: x.at[i].add(y))
    given = [on_gpu(a) for a in (x, at, y)]
    found = {bits(f(*given)) for _ in range(RUNS)}
    assert found == {bits(summed_in_parts(x, at, y))}


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64", "complex64"])
def test_updates_of_other_dtypes_repeat_themselves(dtype: str) -> None:
    x, y = [ts.astype(ts.asarray(normal(40, 6, seed=s)), getattr(ts, dtype)) for s in (0, 1)]
    at = few(40, 3000)
    y = ts.take(y, ts.asarray(np.arange(3000) % 40), axis=0)
    f = ts.jit(lambda x, i, y: x.at[i].add(y))
    given = [ts.device_put(a, "cuda:0") for a in (x, ts.asarray(at), y)]
    found = [f(*given) for _ in range(RUNS)]
    assert len({bits(a) for a in found}) == 1
    wide = "complex128" if dtype == "complex64" else "float64"
    wanted = np.asarray(x).astype(wide)
    np.add.at(wanted, at, np.asarray(y).astype(wide))
    scale = float(np.abs(wanted).max())
    limit = {"float16": 2e-3, "bfloat16": 2e-2, "float64": 1e-13, "complex64": 1e-5}[dtype]
    assert float(np.abs(np.asarray(found[0]).astype(wide) - wanted).max()) <= limit * scale


def test_gradients_of_reads_repeat_themselves() -> None:
    table, ids, w = on_gpu(normal(1000, 64)), on_gpu(few(1000, 20000)), on_gpu(normal(64, 8))

    @ts.jit
    @ts.deterministic
    def step(table: Any, w: Any, ids: Any) -> Any:
        return ts.grad(lambda t: ts.sum(ts.tanh(t[ids] @ w)))(table)

    assert len({bits(step(table, w, ids)) for _ in range(RUNS)}) == 1


def test_histograms_and_segments_repeat_themselves() -> None:
    x, ids = on_gpu(normal(100000)), on_gpu(few(50, 100000))

    @ts.jit
    def f(x: Any, ids: Any) -> Any:
        return ts.bincount(ids, weights=x, length=50), ts.segment_sum(x, ids, num_segments=50)

    assert len({bits(a) + bits(b) for a, b in [f(x, ids) for _ in range(RUNS)]}) == 1


ROWWISE: dict[str, Callable[..., Any]] = {
    "sum": lambda x, w: ts.sum(x, axis=-1),
    "softmax": lambda x, w: ts.softmax(x, axis=-1),
    "layernorm": lambda x, w: (x - ts.mean(x, axis=-1, keepdims=True))
    / ts.std(x, axis=-1, keepdims=True),
    "product": lambda x, w: x @ w,
    "running sums": lambda x, w: ts.cumulative_sum(x, axis=-1),
    "layer": lambda x, w: ts.softmax(ts.tanh(x @ w), axis=-1),
    "gradient": lambda x, w: ts.grad(lambda x: ts.sum(ts.tanh(x @ w) ** 2))(x),
}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "float64"])
@pytest.mark.parametrize("name", list(ROWWISE))
@pytest.mark.parametrize("width", [72, 1000, 4096, 20000])
def test_rows_do_not_depend_on_their_batch(name: str, width: int, dtype: str) -> None:
    """A row alone, in a few, in many: the same bits."""
    if width == 20000 and name not in ("sum", "softmax"):
        pytest.skip("products of this depth take long")
    shapes = (600, width), (width, 64)
    x, w = [ts.astype(ts.asarray(normal(*shape)), getattr(ts, dtype)) for shape in shapes]
    f = ts.jit(ts.deterministic(batch_invariant=True)(ROWWISE[name]))
    w = ts.device_put(w, "cuda:0")
    whole = np.asarray(f(ts.device_put(x, "cuda:0"), w))
    for count in (1, 2, 7, 16, 33, 128, 500):
        found = np.asarray(f(ts.device_put(x[:count], "cuda:0"), w))
        assert found.tobytes() == whole[:count].tobytes(), count


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64"])
@pytest.mark.parametrize(("width", "rest"), [(100, 1), (4096, 1), (70000, 1), (3000, 5)])
def test_running_sums_do_not_depend_on_their_batch(width: int, rest: int, dtype: str) -> None:
    shape = (40, width, rest) if rest > 1 else (40, width)
    x = ts.astype(ts.asarray(normal(*shape)), getattr(ts, dtype))
    f = ts.jit(ts.deterministic(batch_invariant=True)(lambda x: ts.cumulative_sum(x, axis=1)))
    whole = np.asarray(f(ts.device_put(x, "cuda:0")))
    for count in (1, 2, 7, 33):
        found = np.asarray(f(ts.device_put(x[:count], "cuda:0")))
        assert found.tobytes() == whole[:count].tobytes(), count
    wanted = np.cumsum(np.asarray(x).astype("f8"), axis=1)
    limit = {"float32": 1e-6, "bfloat16": 8e-3, "float64": 1e-14}[dtype]
    assert np.abs(whole.astype("f8") - wanted).max() <= limit * width**0.5 * 8


@pytest.mark.parametrize("causal", [False, True])
def test_attention_does_not_depend_on_its_batch(causal: bool) -> None:
    x = normal(9, 4, 200, 64)
    f = ts.jit(
        ts.deterministic(batch_invariant=True)(lambda x: ts.nn.attention(x, x, x, causal=causal))
    )
    whole = np.asarray(f(on_gpu(x)))
    for count in (1, 2, 5):
        assert bits(f(on_gpu(x[:count]))) == whole[:count].tobytes(), count


def test_products_of_float32_have_the_bits_of_a_cpu() -> None:
    """Both fuse one product after the other into the sum."""
    x, w = normal(70, 300), normal(300, 40, seed=1)
    f = ts.jit(ts.deterministic(batch_invariant=True)(lambda x, w: x @ w))
    assert bits(f(on_gpu(x), on_gpu(w))) == bits(f(ts.asarray(x), ts.asarray(w)))


@pytest.mark.parametrize("name", ["sum", "softmax", "layernorm", "product", "running sums"])
@pytest.mark.parametrize(("rows", "width"), [(1, 4096), (16384, 4096), (4096, 1024)])
def test_what_batch_invariance_costs(
    name: str, rows: int, width: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """Prints microseconds: with and without the promise."""
    x, w = on_gpu(normal(rows, width)), on_gpu(normal(width, 1024))
    f = lambda x, w: ts.reshape(ROWWISE[name](x, w), (rows, -1))  # noqa: E731
    stated = timed(ts.jit(ts.deterministic(batch_invariant=True)(f)), x, w)
    free = timed(ts.jit(f), x, w)
    with capsys.disabled():
        print(f"\n{name} {rows} x {width}: {stated:.0f} us, {free:.0f} us without the promise")


def test_integers_are_exact_by_atomics() -> None:
    ids = few(50, 100000)
    f = ts.jit(lambda i: ts.zeros(50, dtype=ts.int32, device="cuda:0").at[i].add(1))
    assert "atomic=true" in f.lower(on_gpu(ids)).stage("schedule")
    assert np.asarray(f(on_gpu(ids))).tolist() == np.bincount(ids, minlength=50).tolist()


def timed(f: Callable[..., Any], *args: Any) -> float:
    """Microseconds of a call, of many that are queued."""
    for _ in range(5):
        f(*args)
    np.asarray(f(*args)[:1])
    best = float("inf")
    for _ in range(7):
        start = time.perf_counter()
        for _ in range(20):
            out = f(*args)
        np.asarray(out[:1, :1])
        best = min(best, (time.perf_counter() - start) / 20)
    return best * 1e6


@pytest.mark.parametrize(
    ("rows", "count", "width", "kind"),
    [
        (50000, 8192, 768, "zipf"),
        (50000, 8192, 768, "even"),
        (50000, 8192, 768, "one"),
        (32768, 65536, 1024, "even"),
    ],
)
def test_what_the_order_costs(
    rows: int, count: int, width: int, kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Prints microseconds: in order, and by atomics (`ts.nondeterministic`)."""
    even = np.random.default_rng(0).integers(0, rows, count)
    ids = {"zipf": few(rows, count), "even": even, "one": np.zeros(count, np.int64)}[kind]
    y = on_gpu(normal(count, width))

    def add(i: Any, y: Any) -> Any:
        return ts.zeros((rows, width), device="cuda:0").at[i].add(y)

    def chance(i: Any, y: Any) -> Any:
        with ts.nondeterministic():
            return add(i, y)

    given = on_gpu(ids), y
    ordered, atomic = timed(ts.jit(add), *given), timed(ts.jit(chance), *given)
    with capsys.disabled():
        print(f"\n{count} x {width} into {rows}, {kind}: {ordered:.0f} us, atomics {atomic:.0f} us")
    np.testing.assert_allclose(
        np.asarray(ts.jit(add)(*given)), np.asarray(ts.jit(chance)(*given)), rtol=1e-3, atol=2e-3
    )
