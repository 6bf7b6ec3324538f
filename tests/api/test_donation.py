"""Results that take the memory of donated arguments: where they do, and that nobody else sees."""

from __future__ import annotations

import gc
import itertools
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tessera as ts
from tessera import pytree
from tessera.errors import DonatedError
from tessera.runtime.memory import is_all_its_own, pointer, pool

N = 1 << 18
DATA = np.random.default_rng(5).uniform(-1, 1, N).astype(np.float32)
ROWS = np.random.default_rng(6).uniform(-1, 1, (40, 30)).astype(np.float32)
PLACES = ts.asarray(np.array([3, 7, 7, 1]))
VALUES = ts.asarray(np.array([1, 2, 4, 8], np.float32))


def fresh(data: np.ndarray = DATA) -> ts.Array:
    """An array that nobody else has, in memory that starts at a line of the cache."""
    return ts.jit(lambda x: x)(ts.asarray(data))


def place(x: Any) -> int:
    return pointer(x.storage)


def results(f: Callable[..., Any], *args: Any) -> list[np.ndarray]:
    return [np.asarray(x).copy() for x in pytree.leaves(f(*args))]


def same(found: list[np.ndarray], wanted: list[np.ndarray]) -> None:
    for a, b in zip(found, wanted, strict=True):
        np.testing.assert_array_equal(a, b)


# --- what takes the memory of an argument -----------------------------------------------------

IN_PLACE: dict[str, Callable[[Any], Any]] = {
    "elementwise": lambda x: ts.exp(x) * 2 - x,
    "the argument": lambda x: x,
    "where": lambda x: ts.where(x > 0, x, 0.0),
    "element set": lambda x: x.at[3].set(1.0),
    "element added": lambda x: x.at[-2].add(1.0),
    "part set": lambda x: x.at[2:17].set(1.0),
    "places set": lambda x: x.at[PLACES].set(VALUES[0]),
    "places added": lambda x: x.at[PLACES].add(VALUES[:, None] if x.ndim == 2 else VALUES),
    "places multiplied": lambda x: x.at[PLACES[:2]].multiply(2.0),
    "a loop": lambda x: ts.fori_loop(0, 5, lambda k, x: x.at[k].set(x[k + 1]), x),
    "a loop of all": lambda x: ts.fori_loop(0, 3, lambda _, x: x * x + 0.1, x),
}


@pytest.mark.parametrize("data", [DATA, ROWS], ids=["line", "rows"])
@pytest.mark.parametrize("name", IN_PLACE)
def test_in_place(name: str, data: np.ndarray) -> None:
    f = IN_PLACE[name]
    donating = ts.jit(f, donate_argnums=0)
    for _ in range(2):
        wanted = results(ts.jit(f), ts.asarray(data))
        x = fresh(data)
        before = place(x)
        y = donating(x)
        assert place(y) == before
        same([np.asarray(y)], wanted)
        with pytest.raises(DonatedError):
            x + 1
        assert place(donating(y)) == before


# Elements that are read after others have been written: not in place, and right.
NOT_IN_PLACE: dict[str, Callable[[Any], Any]] = {
    "reversed": ts.flip,
    "rolled": lambda x: ts.roll(x, 1),
    "neighbours": lambda x: x.at[1:].add(x[:-1]),
    "sorted": ts.sort,
    "after an element": lambda x: x.at[3].set(7.0).at[5].add(x[3]),
    "accumulated": ts.cumsum,
    "another dtype": lambda x: ts.astype(x * 100, ts.int32),
    "smaller": lambda x: x[1:] * 2,
}


@pytest.mark.parametrize("name", NOT_IN_PLACE)
def test_not_in_place(name: str) -> None:
    f = NOT_IN_PLACE[name]
    x = fresh()
    same(results(ts.jit(f, donate_argnums=0), x), results(ts.jit(f), ts.asarray(DATA)))
    with pytest.raises(DonatedError):
        x + 1


def test_memory_of_another_shape() -> None:
    half = ts.full((40, 40), 0.5)
    f = ts.jit(lambda x: ts.matmul(ts.reshape(x, (30, 40)), half), donate_argnums=0)
    wanted = results(f, ts.asarray(ROWS))
    x = fresh(ROWS)
    y = f(x)
    same([np.asarray(y)], wanted)
    assert y.shape == (30, 40)
    # What it is a view of is nobody else's, so it may be taken again.
    g = ts.jit(lambda x: x + 1, donate_argnums=0)
    before = place(y)
    assert place(g(y)) == before


def step(params: Any, moments: Any, count: Any, x: Any, y: Any) -> Any:
    def loss(params: Any) -> Any:
        for layer in params:
            x_next = ts.tanh(x @ layer["w"] + layer["b"]) if layer is params[0] else None
            h = x_next if x_next is not None else h @ layer["w"] + layer["b"]  # noqa: F821
        return ts.mean((h - y) ** 2)

    value, grads = ts.value_and_grad(loss)(params)
    first = pytree.map_(lambda m, g: 0.9 * m + 0.1 * g, moments[0], grads)
    second = pytree.map_(lambda v, g: 0.99 * v + 0.01 * g * g, moments[1], grads)
    params = pytree.map_(lambda p, m, v: p - m / (ts.sqrt(v) + 1e-6), params, first, second)
    return params, (first, second), count + 1, value


def test_a_training_step_updates_parameters_and_state_in_place() -> None:
    rng = np.random.default_rng(0)
    sizes = (70, 130, 50)
    start = [
        {"w": rng.standard_normal((a, b)).astype(np.float32) / 9, "b": np.zeros(b, np.float32)}
        for a, b in itertools.pairwise(sizes)
    ]
    x = ts.asarray(rng.standard_normal((33, 70)).astype(np.float32))
    y = ts.asarray(rng.standard_normal((33, 50)).astype(np.float32))
    plain, donating = ts.jit(step), ts.jit(step, donate_argnums=(0, 1, 2))

    def state() -> Any:
        params = pytree.map_(fresh, start)
        zeros = [pytree.map_(lambda x: fresh(0 * x), start) for _ in range(2)]
        return params, tuple(zeros), fresh(np.array(0, np.int32))

    a, b = state(), state()
    use = donating.lower(*b, x, y).memory()
    assert use.donated == sum([leaf.nbytes for leaf in pytree.leaves(b)])
    # It may need a little more in between: updates come after what reads the parameters.
    assert use.peak < plain.lower(*a, x, y).memory().peak - 0.9 * use.donated
    places = [place(leaf) for leaf in pytree.leaves(b)]
    for _ in range(3):
        *a, first = plain(*a, x, y)
        *b, second = donating(*b, x, y)
        assert float(first) == float(second)
        assert [place(leaf) for leaf in pytree.leaves(b)] == places
    same(results(lambda: a), results(lambda: b))


# --- who else sees it -------------------------------------------------------------------------

WITNESSES: dict[str, Callable[[Any], Any]] = {
    "numpy": np.asarray,
    "buffer": lambda x: np.frombuffer(memoryview(x).cast("B"), np.float32),
    "dlpack": np.from_dlpack,
    "part": lambda x: x[10:],
    "reshaped": lambda x: ts.reshape(x, (-1, 2)),
    "element": lambda x: ts.broadcast_to(x[:1], (N,)),
    "iterator": lambda x: np.asarray(x)[::3],
}


@pytest.mark.parametrize("witness", WITNESSES)
def test_views_stay_as_they_were(witness: str) -> None:
    x = fresh()
    view = WITNESSES[witness](x)
    before = np.asarray(view).copy()
    f = ts.jit(lambda x: x * 2 + 1, donate_argnums=0)
    same(results(f, x), [DATA * 2 + 1])
    np.testing.assert_array_equal(np.asarray(view), before)
    with pytest.raises(DonatedError):
        x + 1


def test_the_same_array_twice() -> None:
    f = lambda x, y: (x + y, x * y)  # noqa: E731
    for donated in ((0,), (1,), (0, 1)):
        x = fresh()
        same(results(ts.jit(f, donate_argnums=donated), x, x), results(f, *2 * [ts.asarray(DATA)]))
        x = fresh()
        y = ts.reshape(x, (N,))
        same(results(ts.jit(f, donate_argnums=donated), x, y), results(f, *2 * [ts.asarray(DATA)]))
        x = fresh()
        part = {"a": x, "b": [x, x]}
        g = ts.jit(lambda p, y: pytree.map_(lambda z: z + y, p), donate_argnums=donated)
        same(results(g, part, x), 3 * [DATA + DATA])


def test_an_array_that_is_a_constant_of_the_function_too() -> None:
    x = fresh()
    f = ts.jit(lambda y: y * 2 + x, donate_argnums=0)
    for _ in range(2):
        same(results(f, fresh()), [DATA * 2 + DATA])
    same(results(f, x), [DATA * 2 + DATA])
    same(results(f, fresh()), [DATA * 2 + DATA])


def test_arrays_of_numpy_stay() -> None:
    data = DATA.copy()
    f = ts.jit(lambda x: x + 1, donate_argnums=0)
    for given in (data, data[:], ts.asarray(data, copy=False)):
        same(results(f, given), [DATA + 1])
        np.testing.assert_array_equal(data, DATA)
    same(results(f, np.full(N, 2, np.float32)), [np.full(N, 3, np.float32)])


def test_what_is_read_only_is_not_written(tmp_path: Any) -> None:
    DATA.tofile(tmp_path / "data")
    f = ts.jit(lambda x: x + 1, donate_argnums=0)
    mapped = np.memmap(tmp_path / "data", np.float32, "r")
    same(results(f, ts.asarray(mapped, copy=False)), [DATA + 1])
    same(results(f, ts.asarray(np.frombuffer(DATA.tobytes(), np.float32), copy=False)), [DATA + 1])


def test_memory_that_is_shared_is_known() -> None:
    x = np.zeros(64, np.uint8)
    assert not is_all_its_own(np.frombuffer(bytes(64), np.uint8))
    whole = fresh().storage
    assert is_all_its_own(whole)
    assert not is_all_its_own(x[1:])


def test_other_threads_that_use_the_array() -> None:
    # They hold what they compute with, or find it donated.
    f = ts.jit(lambda x: x * 2 - x, donate_argnums=0)
    slow = ts.jit(lambda x: ts.sum(ts.sin(x) * ts.cos(x) - ts.sin(x * 2) / 2 + x))
    wanted = float(slow(DATA))
    wrong: list[float] = []
    shared = [fresh()]
    done = threading.Event()

    def read() -> None:
        while not done.is_set():
            try:
                found = float(slow(shared[0]))
            except DonatedError:
                continue
            if found != wanted:
                wrong.append(found)

    threads = [threading.Thread(target=read) for _ in range(2)]
    for thread in threads:
        thread.start()
    for _ in range(50):
        shared[0] = f(shared[0])
    done.set()
    for thread in threads:
        thread.join()
    assert not wrong


# --- failures and modes -----------------------------------------------------------------------


def test_a_call_that_fails_has_taken_its_arguments() -> None:
    def refuse(x: np.ndarray) -> None:
        raise ValueError("no")

    def function(x: Any) -> Any:
        y = x * 2
        ts.debug.callback(refuse, y[0])
        return y

    x = fresh()
    f = ts.jit(function, donate_argnums=0)
    with pytest.raises(Exception, match="no"):
        f(x)
    with pytest.raises(DonatedError):
        ts.sum(x)


def test_not_a_number_is_found_in_what_went_in() -> None:
    f = ts.jit(lambda x: ts.log(x) * 0 + x, donate_argnums=0)
    with ts.config.update(debug_nans=True), pytest.raises(ts.errors.NonFiniteError, match="log"):
        f(fresh(-np.abs(DATA)))


@pytest.mark.parametrize("shape", [(), (0,), (1,), (3, 0), (5, 7)])
@pytest.mark.parametrize("dtype", [ts.float64, ts.bfloat16, ts.int8, ts.bool, ts.complex64])
def test_shapes_and_dtypes(shape: tuple[int, ...], dtype: Any) -> None:
    data = np.random.default_rng(1).integers(0, 2, shape)
    x = ts.astype(ts.asarray(data), dtype)
    f = ts.jit(lambda x, y: (ts.where(x == y, y, x), ts.reshape(x, (-1,))), donate_argnums=(0, 1))
    wanted = results(lambda: (x, ts.reshape(x, (-1,))))
    same(results(f, ts.astype(ts.asarray(data), dtype), ts.astype(ts.asarray(data), dtype)), wanted)
    same(results(f, x, x), wanted)


def test_the_peak_is_what_was_predicted() -> None:
    def function(x: Any, y: Any) -> Any:
        z = ts.sort(x * 2)
        return x + ts.sum(z) + y, ts.exp(y)

    size = 1 << 20
    data = np.linspace(0, 1, size, dtype=np.float32)
    f = ts.jit(function, donate_argnums=(0, 1))
    f(fresh(data), fresh(data))
    for donating in (f, ts.jit(function)):
        args = [fresh(data), fresh(data)]
        donating(*args)
        args = [fresh(data), fresh(data)]
        predicted = donating.lower(*args).memory()
        gc.collect()
        others = pool.live_bytes - sum([x.nbytes for x in args])
        pool.reset_peak()
        outputs = donating(*args)
        measured = pool.peak_bytes - others
        assert abs(measured / predicted.peak - 1) < 0.05
        assert predicted.donated == (8 * size if donating is f else 0)
        del outputs
