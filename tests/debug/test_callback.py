"""`ts.debug.callback` and `ts.debug.print`: what the host is told, in which order, how often."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tessera as ts
from tessera.compile import lower
from tessera.graph import interp as graph_interp
from tessera.schedule import interp as schedule_interp
from tessera.target import interp as target_interp
from tessera.tile import interp as tile_interp
from tests.fake_gpu import fake_gpu

Run = Callable[..., Any]


def told(run: Callable[[Run], Any]) -> list[Any]:
    """What a program tells the host, as Python values."""
    seen: list[Any] = []

    def tell(*values: Any) -> None:
        ts.debug.callback(lambda *a: seen.append([x.tolist() for x in map(np.asarray, a)]), *values)

    run(tell)
    return [x[0] if len(x) == 1 else x for x in seen]


def jitted(fn: Callable[..., Any]) -> Callable[..., Any]:
    return ts.jit(fn)


def eagerly(fn: Callable[..., Any]) -> Callable[..., Any]:
    return fn


both = pytest.mark.parametrize("mode", [jitted, eagerly])


@both
def test_order_and_values(mode: Run) -> None:
    def run(tell: Run) -> None:
        def f(x: Any) -> Any:
            tell(x)
            y = ts.sin(x) * 0
            tell(y, ts.sum(x))
            tell()
            tell(x)
            return y

        mode(f)(ts.asarray([1.0, 2.0]))

    assert told(run) == [[1.0, 2.0], [[0.0, 0.0], 3.0], [], [1.0, 2.0]]


@both
def test_in_control_flow(mode: Run) -> None:
    def run(tell: Run) -> None:
        def step(i: Any, x: Any) -> Any:
            tell(i, x)
            return ts.cond(x > 2, lambda x: (tell(-x), x + 1)[1], lambda x: x * 2, x)

        mode(lambda x: ts.fori_loop(0, 4, step, x))(1.0)

    wanted = [[0, 1.0], [1, 2.0], [2, 4.0], -4.0, [3, 5.0], -5.0]
    assert told(run) == wanted


@both
def test_in_the_condition_of_a_loop(mode: Run) -> None:
    def run(tell: Run) -> None:
        mode(lambda x: ts.while_loop(lambda v: (tell(v), v < 2)[1], lambda v: v + 1, x))(0)

    assert told(run) == [0, 1, 2]


@both
def test_what_nobody_uses_runs_where_it_tells(mode: Run) -> None:
    def run(tell: Run) -> None:
        def f(x: Any) -> Any:
            ts.while_loop(lambda v: v < 2, lambda v: (tell(v), v + 1)[1], 0)
            ts.cond(x > 0, lambda: tell(7.0), lambda: tell(8.0))
            ts.jit(lambda y: (tell(y), y)[1])(x)
            return x

        mode(f)(1.0)

    assert told(run) == [0, 1, 7.0, 1.0]


@both
def test_vmap_tells_of_each_example(mode: Run) -> None:
    def run(tell: Run) -> None:
        def f(x: Any, y: Any) -> Any:
            tell(x, y)
            tell(y)
            return x + y

        mode(ts.vmap(f, in_axes=(1, None)))(ts.asarray([[1, 2], [3, 4]]), 5)

    assert told(run) == [[[1, 3], 5], [[2, 4], 5], 5]


def test_vmap_in_vmap() -> None:
    def run(tell: Run) -> None:
        f = ts.vmap(ts.vmap(lambda x, y: (tell(x, y), x)[1], (0, None)), (0, 0))
        f(ts.asarray([[1, 2], [3, 4]]), ts.asarray([5, 6]))

    assert told(run) == [[1, 5], [2, 5], [3, 6], [4, 6]]


def test_vmap_over_an_empty_batch() -> None:
    def run(tell: Run) -> None:
        ts.jit(ts.vmap(lambda x: (tell(x), x)[1]))(ts.zeros((0, 2)))

    assert told(run) == []


@both
@pytest.mark.parametrize("transform", [ts.grad, ts.value_and_grad])
def test_grad_tells_once_and_forward(mode: Run, transform: Run) -> None:
    def run(tell: Run) -> None:
        def f(x: Any) -> Any:
            tell(x)
            y = ts.cond(x > 0, lambda x: (tell(x * x), x * x)[1], lambda x: x, x)
            return ts.jit(lambda y: (tell(y + 1), ts.sin(y))[1])(y)

        mode(transform(f))(2.0)

    assert told(run) == [2.0, 4.0, 5.0]


@both
def test_forward_mode_tells_once(mode: Run) -> None:
    def run(tell: Run) -> None:
        def f(x: Any) -> Any:
            def step(v: Any) -> Any:
                tell(v[1])
                return v[0] + 1, v[1] * x

            return ts.while_loop(lambda v: v[0] < 2, step, (0, x))[1]

        mode(lambda x: ts.jvp(f, (x,), (1.0,)))(2.0)
        tell(-1)
        _, apply = ts.linearize(f, 3.0)
        tell(-2)
        apply(1.0)

    assert told(run) == [2.0, 4.0, -1, 3.0, 9.0, -2]


@both
def test_derivatives_of_loops_tell_once(mode: Run) -> None:
    xs = ts.asarray([1.0, 2.0])

    def run(tell: Run) -> None:
        def scanned(w: Any) -> Any:
            def step(c: Any, x: Any) -> Any:
                tell(c, x)
                return c * w + x, None

            return ts.scan(step, 0.0, xs)[0]

        mode(ts.grad(scanned))(2.0)
        mode(lambda w: ts.jvp(scanned, (w,), (1.0,)))(3.0)
        mode(ts.grad(lambda w: ts.sum(ts.map(lambda x: (tell(x), x * w)[1], xs))))(2.0)
        mode(ts.grad(lambda w: ts.fori_loop(0, 2, lambda i, a: (tell(i), a * w)[1], 1.0)))(2.0)

    scan = [[0.0, 1.0], [1.0, 2.0]]
    assert told(run) == [*scan, *scan, 1.0, 2.0, 0, 1]


@both
def test_checkpoints_and_switches(mode: Run) -> None:
    def run(tell: Run) -> None:
        def f(x: Any) -> Any:
            y = x * x
            tell(y)
            return ts.sin(y) * y

        mode(ts.grad(ts.checkpoint(f)))(2.0)
        branches = [lambda x, k=k: (tell(k), x)[1] for k in range(3)]
        mode(lambda i: ts.switch(i, branches, 1.0))(1)

    assert told(run) == [4.0, 1]


@both
def test_cotangents_in_a_rule(mode: Run) -> None:
    def run(tell: Run) -> None:
        square = ts.custom_vjp(lambda x: x * x)
        square.defvjp(lambda x: (square(x), x), lambda x, ct: (tell(ct), (2 * x * ct,))[1])
        mode(ts.grad(lambda x: 3 * square(x)))(2.0)

    assert told(run) == [3.0]


def test_dtypes_and_shapes() -> None:
    arrays = [
        ts.asarray([1 + 2j, 3]), ts.asarray([True, False]), ts.ones((0, 3)),
        ts.ones(3, dtype=ts.bfloat16), ts.asarray(7, dtype=ts.uint8), ts.zeros((2, 1, 3)),
    ]  # fmt: skip
    seen: list[Any] = []

    @ts.jit
    def f(*xs: Any) -> Any:
        ts.debug.callback(lambda *a: seen.extend(a), *xs, *[x.T if x.ndim == 2 else x for x in xs])

    f(*arrays)
    wanted = [*arrays, *[x.T if x.ndim == 2 else x for x in arrays]]
    assert [(x.dtype, x.shape) for x in seen] == [(x.dtype, x.shape) for x in wanted]
    for found, x in zip(seen, wanted, strict=True):
        assert np.array_equal(np.asarray(found), np.asarray(x))


def test_what_it_is_given_is_its_own() -> None:
    kept: list[Any] = []

    @ts.jit
    def f(x: Any) -> Any:
        y = x + 1
        ts.debug.callback(kept.append, y)
        return ts.sum(y * y * y)

    for k in range(4):
        f(ts.ones(1000) * k)
    assert [float(x[0]) for x in kept] == [1.0, 2.0, 3.0, 4.0]


def test_containers_and_other_values() -> None:
    seen: list[Any] = []

    @ts.jit
    def f(x: Any) -> Any:
        ts.debug.callback(
            lambda *a, **k: seen.append((a, k)), {"x": [x, "text", 3]}, np.ones(2), flag=None
        )

    f(ts.asarray(1.5))
    (((tree, array), names),) = seen
    assert (float(tree["x"][0]), tree["x"][1:], names) == (1.5, ["text", 3], {"flag": None})
    assert isinstance(array, ts.Array)


def test_an_exception_ends_the_program() -> None:
    seen: list[Any] = []

    def fail(x: Any) -> None:
        raise KeyError(f"no {float(x)}")

    @ts.jit
    def f(x: Any) -> Any:
        def step(i: Any, v: Any) -> Any:
            ts.debug.callback(seen.append, i)
            ts.cond(i == 2, lambda v: ts.debug.callback(fail, v), lambda v: None, v)
            return v + 1

        x = ts.fori_loop(0, 5, step, x)
        ts.debug.callback(seen.append, x)
        return x

    for _ in range(2):
        with pytest.raises(KeyError, match=r"no 3\.0") as caught:
            f(1.0)
        assert [int(x) for x in seen] == [0, 1, 2]
        seen.clear()
        (note,) = caught.value.__notes__
        assert note.startswith("raised in debug.callback of fail, at ")
        assert "ts.debug.callback(fail, v)" in note
    assert float(ts.jit(lambda x: x + 1)(1.0)) == 2.0


def test_interrupts_pass() -> None:
    def stop() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        ts.jit(lambda: ts.debug.callback(stop))()


def test_programs_in_callbacks() -> None:
    seen: list[Any] = []

    @ts.jit
    def inner(x: Any) -> Any:
        ts.debug.callback(lambda x: seen.append(("inner", float(x))), x)
        return x * 2

    def catch(x: Any) -> None:
        with pytest.raises(ZeroDivisionError):
            ts.jit(lambda x: ts.debug.callback(lambda x: 1 // 0, x))(x)
        seen.append(("outer", float(inner(x))))

    @ts.jit
    def outer(x: Any) -> Any:
        ts.debug.callback(catch, x)
        return inner(x + 1)

    assert float(outer(1.0)) == 4.0
    assert seen == [("inner", 1.0), ("outer", 2.0), ("inner", 2.0)]


def test_threads() -> None:
    """Each thread gets its own exceptions; callbacks run on the thread that called the program."""
    barrier = threading.Barrier(2, timeout=20)

    @ts.jit
    def f(x: Any) -> Any:
        def check(x: Any) -> None:
            barrier.wait()
            if int(x):
                raise ValueError(threading.current_thread().name)

        ts.debug.callback(check, x)
        return ts.sum(ts.sin(ts.ones(200_000) * x))

    found: dict[str, str] = {}

    def run(x: int) -> None:
        try:
            f(ts.asarray(x))
            found[threading.current_thread().name] = "none"
        except ValueError as error:
            found[threading.current_thread().name] = str(error)

    f_traced = f.lower(ts.asarray(0))
    assert "host_call" in str(f_traced.graph)
    threads = [threading.Thread(target=run, args=(x,), name=f"t{x}") for x in (0, 1)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert found == {"t0": "none", "t1": "t1"}


def test_programs_are_freed() -> None:
    import gc
    import weakref

    class Token:
        def __call__(self, x: Any) -> None:
            pass

    token = Token()
    dead = weakref.ref(token)
    f = ts.jit(lambda x, token=token: ts.debug.callback(token, x), static_argnames="token")
    f(1.0)
    del f, token
    gc.collect()
    assert dead() is None


def test_all_interpreters_agree() -> None:
    """The four interpreters tell the host the same as the compiled code."""
    seen: list[Any] = []

    def f(x: Any, z: Any) -> Any:
        def step(v: Any) -> Any:
            ts.debug.callback(lambda v: seen.append(v.tolist()), v)
            return v * 2

        ts.debug.callback(lambda z: seen.append(z.tolist()), z)
        return ts.while_loop(lambda v: v[0] < 6, step, x + 1)

    inputs = [np.asarray([1.0, 2.0], np.float32), np.asarray([1 + 2j], np.complex64)]
    graph = ts.make_graph(f)(*inputs)
    assert len(graph.args) == len(inputs)
    lowered = lower(graph)
    arena = lowered.arena
    assert isinstance(arena, int)

    # Tile memory has complex numbers as pairs.
    parts = [inputs[0], inputs[1].view(np.float32)]

    def output() -> list[Any]:
        return [np.empty(2, np.float32)]

    runs: list[Callable[[], Any]] = [
        lambda: lowered.executable().run(inputs),
        lambda: graph_interp.run(graph, inputs),
        lambda: schedule_interp.run(lowered.schedule, inputs),
        lambda: tile_interp.run_module(lowered.tile, parts, output(), arena_bytes=arena),
        lambda: target_interp.run_module(lowered.target, inputs, output(), arena_bytes=arena),
    ]
    for run in runs:
        run()
        assert seen == [[1 + 2j], [2.0, 3.0], [4.0, 6.0]]
        seen.clear()


def test_symbolic_sizes() -> None:
    from tessera.ir.parser import parse_func

    graph = parse_func(
        "func @f[S](%x: f32[S]) { %y = graph.sin(%x) : f32[S] "
        "graph.host_call([%y]) {function=host<nothing, 0>} return %y }"
    )
    seen: list[Any] = []
    from tessera.graph.ops.hostcall import HostCall
    from tessera.ir.core import Block
    from tessera.ir.hostcall import HostFunction
    from tessera.ir.loc import Loc

    function = HostFunction("see", lambda x: (seen.append(x), ())[1], Loc.unknown)
    call = next(op for op in graph.ops if isinstance(op, HostCall))
    ops = [op.rebuild(function=function) if op is call else op for op in graph.ops]
    graph = graph.with_body(Block(graph.args, ops, graph.outputs))
    program = lower(graph).executable()
    for n in (0, 1, 5):
        x = np.arange(n, dtype=np.float32)
        program.run([x], [n])
        np.testing.assert_allclose(seen.pop(), np.sin(x), rtol=1e-6)


def test_on_a_gpu(capsys: pytest.CaptureFixture[str]) -> None:
    def fail(x: Any) -> None:
        raise ValueError("from a callback")

    with fake_gpu(), ts.device("cuda:0"), ts.config.update(verify=True):
        x = ts.asarray([1.0, 2.5])
        ts.debug.print("eager {}", x)

        @ts.jit
        def f(x: Any, n: Any) -> Any:
            ts.debug.print("x is {}", x * 2)

            def step(i: Any, v: Any) -> Any:
                ts.debug.print("step {i}: {v}", i=i, v=v)
                return v * 2

            return ts.fori_loop(0, n, step, x)

        for _ in range(2):
            f(x, 2)
        with pytest.raises(ValueError, match="from a callback"):
            ts.jit(lambda x: (ts.debug.callback(fail, x), x + 1)[1])(x)
        ts.fori_loop(0, 2, lambda i, v: (ts.debug.print("eager {}", v), v + 1)[1], x)
    once = ["x is [2. 5.]", "step 0: [1.  2.5]", "step 1: [2. 5.]"]
    lines = capsys.readouterr().out.splitlines()
    assert lines == ["eager [1.  2.5]", *once, *once, "eager [1.  2.5]", "eager [2.  3.5]"]


def test_print_formats(capsys: pytest.CaptureFixture[str]) -> None:
    @ts.jit
    def f(x: Any, n: Any) -> None:
        ts.debug.print("{{}} {n:>3} {:.2f} {y} {p[k]} {w}", x, y=x, n=n, p={"k": x}, w="word")
        ts.debug.print("{:{width}.1f}|", x, width=6)
        ts.debug.print("no values")

    f(1.5, 7)
    assert capsys.readouterr().out == "{}   7 1.50 1.5 1.5 word\n   1.5|\nno values\n"


def test_eager_control_flow_keeps_no_programs() -> None:
    from tessera.graph.engine import current_engine

    def count() -> int:
        return len(current_engine()._cache)  # pyright: ignore[reportAttributeAccessIssue]

    def run() -> None:
        ts.while_loop(lambda x: x < 2, lambda x: (ts.debug.callback(int, x), x + 1)[1], 0)

    run()
    before = count()
    for _ in range(3):
        run()
    assert count() == before
