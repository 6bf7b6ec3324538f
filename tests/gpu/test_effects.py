"""What the host gives to programs on a real GPU, and refs there."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tessera as ts

pytestmark = pytest.mark.gpu


def on_gpu(data: Any) -> Any:
    return ts.device_put(np.asarray(data), "cuda:0")


@pytest.mark.parametrize("size", [1, 1000, 300_000])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8", "bool"])
def test_results_of_the_host(size: int, dtype: str) -> None:
    seen: list[int] = []

    def reverse(x: Any) -> Any:
        seen.append(len(x))
        return np.asarray(x)[::-1]

    x = ts.device_put(ts.asarray(np.arange(size) % 7).astype(getattr(ts, dtype)), "cuda:0")
    for call in (ts.io_callback, ts.pure_callback):
        f = ts.jit(lambda x, call=call: call(reverse, x, x))
        for _ in range(3):
            found = f(x)
            assert str(found.device) == "cuda:0"
            assert np.asarray(found).tobytes() == np.asarray(x)[::-1].tobytes()
    assert seen == [size] * 6


def test_calls_stand_between_kernels() -> None:
    """In loops and branches, in the order of the program, as on a CPU."""
    pair = (ts.ShapeDtypeStruct((1000,), ts.float32), ts.ShapeDtypeStruct((), ts.int32))
    asked: list[tuple[float, float]] = []

    def ask(c: Any, k: Any) -> tuple[np.ndarray, np.ndarray]:
        c = np.asarray(c)
        asked.append((float(c[-1]), float(k)))
        return c * 2, np.int32(len(asked))

    def step(c: Any, k: Any) -> tuple[Any, Any]:
        more, count = ts.io_callback(ask, pair, c + 1, k)
        c = ts.cond(ts.max(more) > 40, lambda c: c - 1, lambda c: c + more, c)
        return c, count

    f = ts.jit(lambda x: ts.scan(step, x, ts.arange(20)))
    wanted = f(ts.zeros(1000))
    on_host = [*asked]
    for _ in range(2):
        asked.clear()
        found = f(on_gpu(np.zeros(1000, np.float32)))
        for x, y in zip(found, wanted, strict=True):
            assert np.asarray(x).tobytes() == np.asarray(y).tobytes()
        assert asked == on_host


def test_a_while_loop_that_the_host_ends() -> None:
    numbers = iter(range(10, -1, -1))
    like = ts.ShapeDtypeStruct((), ts.int32)

    @ts.jit
    def f(x: Any) -> Any:
        def body(c: Any) -> Any:
            x, _ = c
            return x + 1, ts.io_callback(lambda: np.int32(next(numbers)), like)

        return ts.while_loop(lambda c: c[1] > 0, body, (x, ts.asarray(1, dtype=ts.int32)))[0]

    assert np.asarray(f(on_gpu(np.zeros(4, np.float32)))).tolist() == [11.0] * 4


def test_exceptions_end_the_program() -> None:
    def check(x: Any) -> Any:
        if x[0] > 2:
            raise KeyError("too large")
        return x

    f = ts.jit(lambda x: ts.io_callback(check, x, x * 2) + 1)
    x = on_gpu(np.ones(5, np.float32))
    for _ in range(3):
        with pytest.raises(KeyError, match="too large"):
            f(x + 1)
        assert np.asarray(f(x)).tolist() == [3.0] * 5


def test_a_derivative_reads_what_the_host_gave() -> None:
    count = iter(range(1, 100))
    like = ts.ShapeDtypeStruct((), ts.float32)

    def loss(x: Any) -> Any:
        def body(c: Any, _: Any) -> Any:
            return ts.sin(c) * ts.io_callback(lambda: np.float32(next(count)), like), None

        return ts.sum(ts.scan(body, x, None, length=3)[0])

    value, slope = ts.jit(ts.value_and_grad(loss))(on_gpu(np.full(4, 0.1, np.float32)))
    a = np.sin(0.1)
    b = 2 * np.sin(a)
    assert float(value) == pytest.approx(4 * 3 * np.sin(b), rel=1e-5)
    wanted = np.cos(0.1) * 2 * np.cos(a) * 3 * np.cos(b)
    assert np.asarray(slope) == pytest.approx(np.full(4, wanted), rel=1e-5)


def test_a_ref_that_the_host_feeds() -> None:
    state = ts.Ref(on_gpu(np.zeros(1000, np.float32)), name="state")
    rows = iter(np.arange(5000, dtype=np.float32).reshape(5, 1000))
    like = ts.ShapeDtypeStruct((1000,), ts.float32)

    @ts.jit
    def feed() -> None:
        state[...] += ts.io_callback(lambda: next(rows), like)

    for _ in range(5):
        feed()
    assert str(state.get().device) == "cuda:0"
    wanted = np.arange(5000, dtype=np.float32).reshape(5, 1000).sum(0)
    assert np.asarray(state.get()).tolist() == wanted.tolist()
