"""`ts.io_callback` and `ts.pure_callback`: what Python gives to programs."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tessera as ts
from tessera.errors import DTypeError, NonFiniteError, PytreeError, ShapeError
from tessera.graph import interp as graph_interp
from tessera.schedule import interp as schedule_interp
from tessera.target import interp as target_interp
from tessera.tile import interp as tile_interp
from tests.fake_gpu import fake_gpu

F32 = ts.ShapeDtypeStruct((), ts.float32)
X = ts.asarray([1.0, 2.0])

both = pytest.mark.parametrize("mode", [ts.jit, lambda f: f], ids=["jit", "eager"])


class Counter:
    """A function that is asked, and answers how often it was."""

    def __init__(self) -> None:
        self.asked: list[Any] = []

    def __call__(self, *args: Any) -> np.ndarray:
        self.asked.append([np.asarray(x).tolist() for x in args])
        return np.asarray(len(self.asked), np.float32)


# --- what is given ------------------------------------------------------------------------------


@both
def test_containers_of_results(mode: Any) -> None:
    def load(name: str, x: Any, scale: float) -> Any:
        assert isinstance(x, ts.Array)
        assert name == "rows"
        return {"a": np.asarray(x) * scale, "b": [x.shape[0], (x, True)]}

    @mode
    def f(x: Any) -> Any:
        kinds = {"a": x, "b": [ts.ShapeDtypeStruct((), ts.int32), (x, ts.asarray(False))]}
        return ts.io_callback(load, kinds, "rows", x, scale=np.float32(3))

    found = f(X)
    assert found["a"].tolist() == [3.0, 6.0]
    count, (same, flag) = found["b"]
    assert (int(count), count.dtype) == (2, ts.int32)
    assert same.tolist() == [1.0, 2.0]
    assert bool(flag) is True


@both
def test_all_dtypes_and_shapes(mode: Any) -> None:
    arrays = [
        np.asarray([1 + 2j, 3]), np.asarray([True, False]), np.ones((0, 3), np.float32),
        np.ones(3, ts.bfloat16.np), np.asarray(7, np.uint8), np.zeros((2, 1, 3), np.float16),
        np.arange(6).reshape(2, 3).T, np.asarray([1 + 2j], np.complex64),
    ]  # fmt: skip

    @mode
    def f() -> Any:
        kinds = [ts.ShapeDtypeStruct.of(ts.asarray(x).type) for x in arrays]
        io = ts.io_callback(lambda: arrays, kinds)
        return io, ts.pure_callback(lambda *xs: xs, tuple(io), *io)

    for found in f():
        for x, wanted in zip(found, arrays, strict=True):
            assert (x.shape, x.dtype.np) == (wanted.shape, wanted.dtype)
            assert np.array_equal(np.asarray(x), wanted)


@both
def test_nothing_is_given(mode: Any) -> None:
    seen: list[Any] = []

    @mode
    def f(x: Any) -> Any:
        return ts.io_callback(lambda x: seen.append(float(x)), None, x)

    assert f(2.0) is None
    assert seen == [2.0]


def test_numbers_take_the_dtype() -> None:
    kinds = [ts.ShapeDtypeStruct((), d) for d in (ts.float64, ts.uint8, ts.complex64, ts.int32)]
    found = ts.pure_callback(lambda: [2, 7, 1.5, True], kinds)
    assert [x.dtype for x in found] == [ts.float64, ts.uint8, ts.complex64, ts.int32]
    assert [complex(x) for x in found] == [2, 7, 1.5, 1]
    with pytest.raises(DTypeError):
        ts.pure_callback(lambda: 2.5, kinds[1])


def test_results_are_of_each_call() -> None:
    """A program that runs again asks again."""
    counter = Counter()
    f = ts.jit(lambda x: x * ts.io_callback(counter, F32))
    assert [float(f(2.0)) for _ in range(4)] == [2.0, 4.0, 6.0, 8.0]


def test_what_is_given_may_be_changed_later() -> None:
    """Programs have results of their own."""
    kept = np.asarray([1.0, 2.0], np.float32)
    load: Any = lambda: ts.io_callback(lambda: kept, X)  # noqa: E731
    for f in (load, ts.jit(load)):
        found = f()
        kept[0] = 9.0
        assert found.tolist() == [1.0, 2.0]
        kept[0] = 1.0


def test_symbolic_sizes() -> None:
    @ts.jit
    def f(x: ts.Tensor["N"]) -> Any:  # noqa: F821, UP037
        y = ts.pure_callback(lambda x: np.asarray(x)[::-1], x, x)
        return ts.vmap(lambda x: ts.io_callback(lambda x: x, F32, x))(y)

    for n in (1, 3, 7):
        assert f(ts.arange(n, dtype=ts.float32)).tolist() == list(range(n))[::-1]
    assert f.cache_size() == 1


def test_all_interpreters_agree() -> None:
    from tessera.compile import lower

    def f(x: Any) -> Any:
        y = ts.io_callback(lambda x: np.asarray(x) + 1, x, x * 2)
        ask: Any = lambda i, c: c + ts.io_callback(lambda a: a * 2, F32, y[i])  # noqa: E731
        z = ts.fori_loop(0, 3, ask, 0.0)
        return z * ts.pure_callback(np.sqrt, y, y), z

    x = np.asarray([4.0, 1.5, 3.0], np.float32)
    graph = ts.make_graph(f)(x)
    lowered = lower(graph)
    assert isinstance(lowered.arena, int)
    arena = lowered.arena
    wanted = [np.asarray(y) for y in f(ts.asarray(x))]

    def outputs() -> list[np.ndarray]:
        return [np.empty(3, np.float32), np.empty((), np.float32)]

    tile, target = outputs(), outputs()
    tile_interp.run_module(lowered.tile, [x], tile, arena_bytes=arena)
    target_interp.run_module(lowered.target, [x], target, arena_bytes=arena)
    for found in (
        lowered.executable().run([x]), graph_interp.run(graph, [x]),
        schedule_interp.run(lowered.schedule, [x]), tile, target,
    ):  # fmt: skip
        for a, b in zip(found, wanted, strict=True):
            np.testing.assert_array_equal(a, b)


# --- order and number of calls ------------------------------------------------------------------


@both
def test_order_in_control_flow(mode: Any) -> None:
    counter = Counter()

    def ask(x: Any) -> Any:
        return ts.io_callback(counter, F32, x)

    def f(x: Any) -> Any:
        x = ask(x)  # 1
        x = ts.cond(x > 0, lambda x: x + ask(x), lambda x: -ask(x), x)  # 1 + 2
        x = ts.fori_loop(0, 2, lambda i, x: x + ask(x), x)  # 3 + 3 + 4
        x = ts.while_loop(lambda x: ask(x) < 7, lambda x: x + ask(x), x)  # 5; 10 + 6; 7
        _, ys = ts.scan(lambda c, x: (c, ask(x)), 0.0, ts.asarray([20.0, 21.0]), reverse=True)
        return x, ys

    x, ys = mode(f)(5.0)
    assert counter.asked == [[5.0], [1.0], [3.0], [6.0], [10.0], [10.0], [16.0], [21.0], [20.0]]
    assert (float(x), ys.tolist()) == (16.0, [9.0, 8.0])


PROGRAMS: dict[str, Callable[[Any, Any], Any]] = {
    # What would be merged, removed, moved out of loops, or run side by side if it were pure.
    "twice the same": lambda ask, x: ask(x) - ask(x),
    "a function called twice": lambda ask, x: (lambda f: f(x) - f(x))(ts.jit(ask)),
    "nobody uses it": lambda ask, x: (ask(x), ask(x), x)[2],
    "the same in each step": lambda ask, x: ts.fori_loop(0, 3, lambda i, c: c + ask(1.0), x),
    "a loop nobody uses": lambda ask, x: (ts.fori_loop(0, 2, lambda i, c: ask(c), x), x)[1],
    "a branch nobody uses": lambda ask, x: (ts.cond(x < 9, ask, lambda x: x, x), x)[1],
    "a call nobody uses": lambda ask, x: (ts.jit(ask)(x), x)[1],
    "both branches the same": lambda ask, x: ts.cond(x > 9, ask, ask, x),
    "between kernels": lambda ask, x: ts.sum(ts.exp(ts.ones(40) * ask(ts.sum(ts.ones(40) * x)))),
    "independent kernels": lambda ask, x: [
        ts.sum(ts.sin(ts.ones(9) * ask(x))), ts.sum(ts.cos(ts.ones(7) * ask(x + 1))), ask(x + 2),
    ],
    "independent jobs": lambda ask, x: [
        ask(y[0]) + y[1] for y in [ts.sin(ts.ones(60_000) * x * k) for k in range(4)]
    ],
    "jobs between calls": lambda ask, x: [
        ask(ts.sum(ts.sin(ts.arange(60_000.0) * x * k))) for k in range(4)
    ],
    "constants": lambda ask, x: ask(1.0) + ask(2.0) + ask(1.0),
    "of no steps": lambda ask, x: ts.fori_loop(0, 0, lambda i, c: ask(c), x),
    "large arrays": lambda ask, x: ask(ts.sum(ts.sin(ts.ones((300, 300)) * x + ask(x)))) + ask(x),
    "rows and columns": lambda ask, x: (
        lambda m: ts.sum(m, axis=0)[1] + ask(ts.max(m)) + ask(m[1, 2])
    )(ts.ones((70, 80)) * ask(x)),
    "products": lambda ask, x: ts.sum((ts.ones((40, 40)) * ask(x)) @ (ts.ones((40, 40)) * ask(x))),
    "a sort": lambda ask, x: ts.sort(ts.arange(9.0) * ask(x))[3] * ask(x),
}  # fmt: skip


@pytest.mark.parametrize("name", PROGRAMS)
def test_no_pass_moves_a_call(name: str) -> None:
    program = PROGRAMS[name]
    counter = Counter()

    def ask(x: Any) -> Any:
        return ts.io_callback(counter, F32, x)

    with ts.debug.disable_jit():
        wanted = program(ask, ts.asarray(2.0))
    asked = list(counter.asked)
    for threads in (1, 2):
        counter.asked.clear()
        with ts.config.update(verify=True, threads=threads):
            found = ts.jit(lambda x: program(ask, x))(2.0)
        assert [x for (x,) in counter.asked] == pytest.approx([x for (x,) in asked], rel=1e-4)
        for a, b in zip(ts.pytree.leaves(found), ts.pytree.leaves(wanted), strict=True):
            assert float(a) == pytest.approx(float(b), rel=1e-5)


def test_pure_calls_are_like_other_operations() -> None:
    """Merged with equal ones, left out where nobody uses them, and no effect."""
    calls: list[float] = []

    def work(x: Any, scale: float) -> Any:
        calls.append(scale)
        return np.asarray(x) * np.float32(scale)

    @ts.function(effects=[])
    def f(x: Any) -> Any:
        def call(scale: float) -> Any:
            return ts.pure_callback(work, x, x, scale)

        call(5.0)
        return call(2.0) + call(2.0) + call(3.0)

    assert f(X).tolist() == [7.0, 14.0]
    assert calls == [2.0, 3.0]
    assert ts.effects.of(f)(X).effects == ()
    assert str(f.lower(X).graph).count("host_call") == 2


# --- vmap ---------------------------------------------------------------------------------------


@both
def test_vmap_calls_for_each_example(mode: Any) -> None:
    counter = Counter()

    def f(x: Any, y: Any) -> Any:
        return x * ts.io_callback(counter, F32, x, y), ts.io_callback(counter, F32, y)

    found = mode(ts.vmap(f, in_axes=(0, None), out_axes=(0, None)))(ts.asarray([3.0, 4.0]), 1.0)
    # What is the same for all examples is asked once.
    assert counter.asked == [[3.0, 1.0], [4.0, 1.0], [1.0]]
    assert (found[0].tolist(), float(found[1])) == ([3.0, 8.0], 3.0)


def test_vmap_in_vmap() -> None:
    counter = Counter()
    ts.vmap(ts.vmap(lambda x: ts.io_callback(counter, F32, x)))(ts.asarray([[1, 2], [3, 4]]))
    assert counter.asked == [[1], [2], [3], [4]]


@both
def test_branches_and_loops_that_differ(mode: Any) -> None:
    """Only the branch that is taken calls, and a loop that has ended does not."""
    counter = Counter()

    def ask(x: Any) -> Any:
        return ts.io_callback(counter, F32, x)

    branch = ts.vmap(lambda x: ts.cond(x > 0, ask, lambda x: x, x))
    assert mode(branch)(ts.asarray([5.0, -1.0, 6.0])).tolist() == [1.0, -1.0, 2.0]
    assert counter.asked == [[5.0], [6.0]]
    counter.asked.clear()
    loop = ts.vmap(lambda x: ts.while_loop(lambda x: x < 3, lambda x: x + ask(x), x))
    assert mode(loop)(ts.asarray([2.5, 7.0, 0.0])).tolist() == [3.5, 7.0, 5.0]
    assert counter.asked == [[2.5], [0.0], [2.0]]
    # Several arguments, some of them the same for all, and on other axes.
    two = lambda p, x, y: ts.cond(p, lambda x, y: x * ask(y), lambda x, y: x, x, y)  # noqa: E731
    x = ts.asarray([[1.0, 2.0], [3.0, 4.0]])
    found = mode(ts.vmap(two, (0, 1, None), 1))(ts.asarray([False, True]), x, 9.0)
    assert counter.asked[3:] == [[9.0]]
    assert found.tolist() == [[1.0, 8.0], [3.0, 16.0]]


@pytest.mark.parametrize("method", ["sequential", "expand_dims", "broadcast_all"])
@both
def test_vmap_methods(mode: Any, method: str) -> None:
    shapes: list[Any] = []

    def add(x: Any, y: Any) -> Any:
        shapes.append((x.shape, y.shape))
        return np.asarray(x) + np.asarray(y)

    f: Any = lambda x, y: ts.pure_callback(add, x, x, y, vmap_method=method)  # noqa: E731
    x, y = np.arange(6, dtype=np.float32).reshape(2, 3), np.asarray([1, 2], np.float32)
    assert np.array_equal(mode(ts.vmap(f, (1, None)))(x, y), x.T + y)
    wanted = {
        "sequential": [((2,), (2,))] * 3,
        "expand_dims": [((3, 2), (1, 2))],
        "broadcast_all": [((3, 2), (3, 2))],
    }
    assert shapes == wanted[method]
    shapes.clear()
    y = np.asarray([[1], [2], [3]], np.float32)
    twice = mode(ts.vmap(ts.vmap(f, (0, None)), (1, 0)))(x[..., None], y)
    assert np.array_equal(twice[..., 0], x.T + y)
    if method != "sequential":
        assert len(shapes) == 1


def test_vmap_over_an_empty_batch() -> None:
    counter = Counter()
    for mode in (ts.jit, lambda f: f):
        found = mode(ts.vmap(lambda x: ts.io_callback(counter, F32, x)))(ts.zeros((0,)))
        assert found.shape == (0,)
    assert counter.asked == []


# --- derivatives --------------------------------------------------------------------------------


def test_rules() -> None:
    """Rules of the user give calls derivatives; they may have effects."""
    counter = Counter()

    @ts.custom_vjp
    def root(x: Any) -> Any:
        return ts.pure_callback(np.sqrt, x, x)

    def forward(x: Any) -> Any:
        y = root(x)
        ts.io_callback(counter, F32, y)
        return y, y

    root.defvjp(forward, lambda y, ct: (ct / (2 * y),))
    for mode in (ts.jit, lambda f: f):
        counter.asked.clear()
        assert float(mode(root)(4.0)) == 2.0
        assert counter.asked == []
        assert float(mode(ts.grad(root))(4.0)) == pytest.approx(1 / 4)
        assert counter.asked == [[2.0]]
        assert mode(ts.vmap(ts.grad(root)))(ts.asarray([4.0, 1.0])).tolist() == pytest.approx(
            [1 / 4, 1 / 2]
        )


@pytest.mark.parametrize("mode", [ts.jit, ts.checkpoint, lambda f: f], ids=["jit", "remat", "no"])
def test_effects_of_rules(mode: Any) -> None:
    """The function runs for its value, then its rules, once each."""
    told: list[str] = []

    def tell(what: str, x: Any) -> Any:
        ts.debug.callback(lambda x: told.append(what), x)
        return x

    square = ts.custom_vjp(lambda x: tell("function", x) ** 2)
    square.defvjp(
        lambda x: (tell("forward", x) ** 2, x), lambda x, ct: (tell("backward", 2 * x) * ct,)
    )
    cube = ts.custom_jvp(lambda x: tell("function", x) ** 3)
    cube.defjvp(lambda p, t: (tell("value", p[0]) ** 3, tell("tangent", 3 * p[0] ** 2) * t[0]))
    for f, rules in ((square, ["forward", "backward"]), (cube, ["value", "tangent"])):
        for run, wanted in (
            (mode(f), []), (ts.grad(mode(f)), rules), (mode(ts.grad(f)), rules),
            (lambda x, f=f: ts.vmap(ts.grad(mode(f)))(ts.asarray([x]))[0], rules),
        ):  # fmt: skip
            told.clear()
            run(3.0)
            assert told == ["function", *wanted]


@both
def test_what_needs_no_derivative(mode: Any) -> None:
    f: Any = lambda x: x * ts.pure_callback(np.sqrt, x, ts.stop_gradient(x))  # noqa: E731
    assert float(mode(ts.grad(f))(4.0)) == 2.0
    g: Any = lambda x: ts.where(ts.pure_callback(lambda x: x > 1, ts.asarray(True), x), x, 3 * x)  # noqa: E731
    assert float(mode(ts.grad(g))(0.5)) == 3.0


ONCE: dict[str, Callable[[Any], Callable[[Any], Any]]] = {
    "plain": lambda ask: lambda x: x * ask(x),
    "call": lambda ask: ts.jit(lambda x: x * ask(x)),
    "scan": lambda ask: lambda x: ts.scan(lambda c, a: (c * ask(c), c), x, X)[0],
    "fori": lambda ask: lambda x: ts.fori_loop(0, 3, lambda i, c: ts.sin(c) * ask(c), x),
    "branch": lambda ask: lambda x: ts.cond(x > 0, lambda x: x * ask(x), lambda x: x, x),
    "remat": lambda ask: ts.checkpoint(lambda x: ts.sin(ts.sin(x * ask(x)))),
    "remat of what takes nothing": lambda ask: ts.checkpoint(lambda x: ts.sin(ts.sin(x * ask()))),
    "remat within a budget": lambda ask: ts.checkpoint(
        lambda x: ts.sin(ts.sin(x * ask())), policy=ts.checkpoint_policies.memory_budget(8)
    ),
    "remat of a scan": lambda ask: ts.checkpoint(
        lambda x: ts.scan(lambda c, a: (ts.sin(c * ask(c)), c), x, X)[0]
    ),
}


@pytest.mark.parametrize("name", ONCE)
def test_once_only_effects_under_remat(name: str) -> None:
    """And under all that runs a part of a program again."""
    counter = Counter()

    def ask(*xs: Any) -> Any:
        return ts.io_callback(counter, F32, *map(ts.stop_gradient, xs))

    f = ONCE[name](ask)
    f(1.5)
    wanted = list(counter.asked)
    counter.asked.clear()
    dy = float(ts.jvp(f, (1.5,), (1.0,))[1])
    assert counter.asked == wanted
    grad = ts.grad(f)
    for run in (grad, ts.jit(grad), ts.grad(ts.jit(f)), ts.jit(ts.grad(ts.checkpoint(f)))):
        for _ in range(2):
            counter.asked.clear()
            assert float(run(1.5)) == pytest.approx(dy, rel=1e-4)
            assert counter.asked == wanted
    counter.asked.clear()
    ts.jit(ts.grad(ts.grad(f)))(1.5)
    assert counter.asked == wanted


def test_linear_parts_are_run_several_times() -> None:
    counter = Counter()
    f: Any = lambda x: ts.while_loop(  # noqa: E731
        lambda c: c < 20, lambda c: c * (ts.io_callback(counter, F32, ts.stop_gradient(c)) + 1), x
    )
    y, push = ts.linearize(f, 1.5)
    assert [float(push(float(t))) for t in (1, 2, 1)] == [24.0, 48.0, 24.0]
    assert (float(y), len(counter.asked)) == (36.0, 3)


def test_after_an_exception() -> None:
    """A program that was ended in the middle does not change what the next one is told."""
    counter = Counter()
    broken: list[bool] = [True]

    def check(x: Any) -> None:
        if broken and float(x) > 4:
            raise KeyError("broken")

    def step(c: Any, a: Any) -> Any:
        c = c * ts.io_callback(counter, F32, ts.stop_gradient(c)) + a
        ts.debug.callback(check, c)
        return c, c

    f = ts.jit(ts.grad(lambda x: ts.scan(step, x, ts.ones(3))[0]))
    with pytest.raises(KeyError):
        f(2.0)
    broken.clear()
    counter.asked.clear()
    assert float(f(2.0)) == 6.0
    assert len(counter.asked) == 3


@pytest.mark.skipif(
    ts.config.debug_bounds, reason="programs that check their accesses run in one thread at a time"
)
def test_threads() -> None:
    """Two threads that run one program are told what they were told."""
    barrier = threading.Barrier(2, timeout=20)

    def ask(x: Any) -> np.ndarray:
        barrier.wait()
        return np.asarray(x)

    def step(c: Any, a: Any) -> Any:
        return c * ts.io_callback(ask, F32, a), c

    f = ts.jit(ts.grad(lambda x, xs: ts.scan(step, x, xs)[0]))
    f.lower(1.0, X)
    found: dict[float, float] = {}

    def run(a: float) -> None:
        found[a] = float(f(1.0, ts.asarray([a, a])))

    threads = [threading.Thread(target=run, args=(a,)) for a in (2.0, 3.0)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert found == {2.0: 4.0, 3.0: 9.0}


# --- what goes wrong ----------------------------------------------------------------------------


@both
@pytest.mark.parametrize(
    ("given", "error", "text"),
    [
        (np.ones(3, np.float32), ShapeError, r"the result is float32\[3\], not float32\[2\]"),
        (np.ones(2), DTypeError, r"the result is float64\[2\], not float32\[2\]"),
        ((np.ones(2),), PytreeError, "the result has a tuple, `result_shape_dtypes` a leaf"),
        (None, PytreeError, "differ in structure"),
    ],
)
def test_results_that_are_not_as_said(mode: Any, given: Any, error: Any, text: str) -> None:
    for call in (ts.io_callback, ts.pure_callback):
        f: Any = lambda x, call=call: call(lambda x: given, x, x)  # noqa: E731
        with pytest.raises(error, match=text):
            mode(f)(X)
        with pytest.raises(error, match=text):
            mode(ts.vmap(f))(X[None])


@both
def test_exceptions_come_with_their_traceback(mode: Any) -> None:
    def fail(x: Any) -> Any:
        raise ValueError(f"no {float(x)}")

    with pytest.raises(ValueError, match=r"no 3\.0") as caught:
        mode(lambda x: ts.io_callback(fail, F32, x) + 1)(3.0)
    assert caught.traceback[-1].name == "fail"
    (note,) = caught.value.__notes__
    assert note.startswith("raised in io_callback of fail, at ")


def test_programs_are_freed() -> None:
    import gc
    import weakref

    class Token:
        def __call__(self, x: Any) -> Any:
            return x

    token = Token()
    dead = weakref.ref(token)
    for call in (ts.io_callback, ts.pure_callback):
        f = ts.jit(lambda x, token=token, call=call: call(token, F32, x), static_argnames="token")
        f(1.0)
        ts.cond(True, lambda x, token=token, call=call: call(token, F32, x), lambda x: x, 1.0)
    del f, token
    gc.collect()
    assert dead() is None


def test_on_a_gpu() -> None:
    with fake_gpu(), ts.device("cuda:0"):
        x = ts.asarray([1.0, 2.0])
        seen: list[Any] = []
        f = ts.jit(lambda x: (ts.io_callback(lambda x: seen.append(x.tolist()), None, x), x + 1)[1])
        assert f(x).tolist() == [2.0, 3.0]
        assert seen == [[1.0, 2.0]]
        for call in (ts.io_callback, ts.pure_callback):
            g = ts.jit(lambda x, call=call: call(lambda x: x * 3, x, x + 1) + x)
            for k in range(3):
                assert g(x + k).tolist() == [7.0 + 4 * k, 11.0 + 4 * k]
            assert str(g(x).device) == "cuda:0"


def test_on_a_gpu_in_loops_and_branches() -> None:
    """Calls and what they give stand in the order of the program, between kernels."""
    asked: list[list[float]] = []
    pair = (ts.ShapeDtypeStruct((3,), ts.float32), ts.ShapeDtypeStruct((), ts.int32))

    def ask(c: Any, k: Any) -> tuple[np.ndarray, np.ndarray]:
        asked.append([*np.asarray(c).tolist(), float(k)])
        return np.asarray(c) * 2, np.int32(len(asked))

    def step(c: Any, k: Any) -> tuple[Any, Any]:
        more, count = ts.io_callback(ask, pair, c + 1, k)
        c = ts.cond(ts.sum(more) > 40, lambda c: c - 1, lambda c: c + more, c)
        return c, count

    f = ts.jit(lambda x: ts.scan(step, x, ts.arange(5)))
    wanted = f(ts.zeros(3))
    on_host = [*asked]
    asked.clear()
    with fake_gpu():
        found = f(ts.device_put(np.zeros(3, np.float32), "cuda:0"))
        assert [x.tolist() for x in found] == [x.tolist() for x in wanted]
        assert asked == on_host

        def halve(x: Any) -> Any:
            if x[0] < 1:
                raise KeyError("too small")
            return x / 2

        until = ts.jit(
            lambda x: ts.while_loop(lambda x: x[0] > 3, lambda x: ts.io_callback(halve, x, x), x)
        )
        y = ts.device_put(np.full(4, 20, np.float32), "cuda:0")
        assert until(y).tolist() == [2.5] * 4
        g = ts.jit(lambda x: ts.io_callback(halve, x, x) + 1)
        with pytest.raises(KeyError, match="too small"):
            g(y / 40)
        assert g(y).tolist() == [11.0] * 4
        wrong = ts.jit(lambda x: ts.io_callback(lambda x: x[:1], x, x))
        with pytest.raises(ShapeError):
            wrong(y)
        empty = ts.jit(lambda x: ts.io_callback(lambda x: x, x, x))
        assert empty(y[:0]).tolist() == []


def test_on_a_gpu_without_a_program() -> None:
    """Results of eager calls are on the device of the arguments."""
    with fake_gpu(), ts.device("cuda:0"):
        x = ts.asarray([1.0, 4.0])
        ask: Any = lambda x: ts.pure_callback(np.sqrt, x, x)  # noqa: E731
        value = ts.vjp(lambda x: x * ask(ts.stop_gradient(x)), x)[0]
        for found in (ask(x), ts.vmap(ask)(x), value / x):
            assert (found.device, found.tolist()) == (x.device, [1.0, 2.0])


@pytest.mark.parametrize("where", ["call", "branch", "top"])
def test_watched_programs(where: str) -> None:
    """What looks for a NaN runs a program again, and asks nobody again."""
    counter = Counter()

    def f(x: Any) -> Any:
        def inner(x: Any) -> Any:
            return ts.sqrt(x - ts.io_callback(counter, F32, x))

        if where == "branch":
            return ts.cond(x > 0, inner, lambda x: x, x) * 2
        return (ts.jit(inner) if where == "call" else inner)(x) * 2

    for run in (ts.jit(f, check="nan"), ts.debug.sentinels, ts.debug.nans):
        counter.asked.clear()
        counter.asked.append(None)  # the second answer is greater than the argument
        if run in (ts.debug.sentinels, ts.debug.nans):
            for mode in (ts.jit, lambda f: f):
                counter.asked[1:] = []
                with run(), pytest.raises(NonFiniteError, match=r"^sqrt: "):
                    mode(f)(1.5)
                assert counter.asked[1:] == [[1.5]]
        else:
            with pytest.raises(NonFiniteError, match=r"^sqrt: "):
                run(1.5)
            assert counter.asked[1:] == [[1.5]]
