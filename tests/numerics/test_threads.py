"""Many threads that trace, compile and call at once, and interrupted compilation.

Compilation starts from nothing here: with an engine of its own and an empty cache on disk.
"""

from __future__ import annotations

import contextvars
import importlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tessera as ts
from tessera import config
from tessera.eager import Eager
from tessera.graph import trace as tracing
from tessera.graph.device import CPU, default_device
from tessera.graph.engine import installed
from tessera.ir import loc
from tests.tolerance import assert_close

# Not the function of this name.
pipeline: Any = importlib.import_module("tessera.compile")
lowering: Any = importlib.import_module("tessera.lowering")

THREADS = 8
LIMIT = 120.0
"""Seconds; threads that wait for each other would take forever."""

Job = Callable[[int], None]


@pytest.fixture(autouse=True)
def fresh(tmp_path: Path) -> Generator[None]:
    """Nothing is compiled yet."""
    with config.update(cache_dir=str(tmp_path)), installed(Eager()):
        yield


def together(jobs: list[Callable[[], None]]) -> None:
    """Runs jobs at once in one thread each, and raises what one of them raises."""
    errors: list[BaseException] = []
    start = threading.Barrier(len(jobs))

    def run(job: Callable[[], None]) -> None:
        try:
            start.wait(LIMIT)
            job()
        except BaseException as error:
            errors.append(error)

    threads = [
        threading.Thread(target=contextvars.copy_context().run, args=(run, job), daemon=True)
        for job in jobs
    ]
    end = time.monotonic() + LIMIT
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(0.0, end - time.monotonic()))
    assert not any(thread.is_alive() for thread in threads)
    if errors:
        raise errors[0]


def data(k: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(k).uniform(0.5, 1.5, shape)


# --- jobs: each checks its result for a number k ----------------------------------------------

shared = ts.jit(lambda x, y: {"sum": ts.sum(x * y, axis=0), "tanh": ts.tanh(x - y)})


def call_shared(k: int) -> None:
    """One function, some signatures that several threads compile at once."""
    x, y = data(k, 2 + k % 3, 5), data(k + 1, 2 + k % 3, 5)
    found = shared(ts.asarray(x), ts.asarray(y))
    assert_close(found["sum"], np.sum(x * y, 0), length=4)
    assert_close(found["tanh"], np.tanh(x - y))


def eager(k: int) -> None:
    x = data(k, 3, 2 + k)
    found = ts.sum(ts.exp(ts.asarray(x)) @ ts.asarray(x.T), axis=0)
    assert_close(found, np.sum(np.exp(x) @ x.T, 0), length=12)
    order = np.asarray(ts.argsort(ts.asarray(x[0])))
    np.testing.assert_array_equal(order, np.argsort(x[0]))


def gradient(k: int) -> None:
    x = data(k, 4)
    f = ts.grad(lambda x: ts.sum(ts.sin(x) * x))
    assert_close(f(ts.asarray(x)), np.cos(x) * x + np.sin(x), factor=4)
    if k % 2:
        assert_close(ts.jit(f)(ts.asarray(x)), np.cos(x) * x + np.sin(x), factor=4)


def batched(k: int) -> None:
    x = data(k, 3, 4)
    found = ts.vmap(ts.grad(lambda x: ts.prod(x) * (k + 1.0)))(ts.asarray(x))
    assert_close(found, (k + 1.0) * np.prod(x, 1, keepdims=True) / x, factor=10)


def own_function(k: int) -> None:
    """A new function, with traces inside of traces."""
    x = data(k, 3)

    @ts.jit
    def f(x: Any) -> Any:
        inner = ts.jit(lambda y: ts.sum(x * y) * (k + 1))
        return ts.grad(inner)(x) + x

    assert_close(f(ts.asarray(x)), x * (k + 1) + x)


JOBS: list[Job] = [call_shared, eager, gradient, batched, own_function]


def test_different_work_at_once() -> None:
    def work(number: int) -> None:
        for step in range(len(JOBS)):
            JOBS[(number + step) % len(JOBS)](number + step)

    together([lambda n=n: work(n) for n in range(THREADS)])
    assert not tracing._STATE.stack


def test_first_calls_at_once(tmp_path: Path) -> None:
    """What runs calls natively is loaded by one of the threads that want it, once."""
    code = """
import threading
import numpy as np
import tessera as ts
from tessera.runtime.dispatch.native import native

start, found = threading.Barrier(8), []

def first() -> None:
    start.wait()
    found.append((ts.sum(ts.exp(ts.zeros((3, 3)))), native()))

threads = [threading.Thread(target=first) for _ in range(8)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
sums, loaded = zip(*found, strict=True)
assert len(set(loaded)) == 1
np.testing.assert_array_equal(sums, np.float32(9))
"""
    environment = {**os.environ, "TESSERA_CACHE_DIR": str(tmp_path)}
    subprocess.run([sys.executable, "-c", code], check=True, env=environment, timeout=LIMIT)


@pytest.mark.parametrize("job", JOBS)
def test_same_work_at_once(job: Job) -> None:
    together([lambda: job(7)] * THREADS)


def test_one_signature_has_one_entry() -> None:
    f = ts.jit(lambda x: ts.cumulative_sum(x) * 2.0)
    x = data(0, 6)
    together([lambda: assert_close(f(ts.asarray(x)), np.cumsum(x) * 2, length=6)] * THREADS)
    assert f.cache_size() == 1


def test_many_calls_of_compiled_functions() -> None:
    """Results do not share memory, nor do calls share scratch memory."""
    f = ts.jit(lambda x: ts.sum(ts.sort(x * 2.0)[::-1] * ts.cumulative_sum(x)))
    x = [data(k, 64) for k in range(THREADS)]
    expected = [np.sum(np.sort(v * 2)[::-1] * np.cumsum(v)) for v in x]

    def work(k: int) -> None:
        array = ts.asarray(x[k])
        kept = [f(array) for _ in range(200)]
        for found in kept:
            assert_close(found, expected[k], length=64)

    together([lambda k=k: work(k) for k in range(THREADS)])


def test_traces_of_threads_are_apart() -> None:
    """While one thread traces, ops of another are computed."""
    inside, done = threading.Event(), threading.Event()

    def tracer() -> None:
        def f(x: Any) -> Any:
            inside.set()
            assert done.wait(LIMIT)
            return x * 3.0

        assert_close(ts.jit(f)(ts.asarray(data(0, 3))), data(0, 3) * 3)

    def other() -> None:
        try:
            assert inside.wait(LIMIT)
            x = ts.asarray(data(1, 3))
            assert float(ts.sum(x + 1.0)) > 0.0
            assert_close(ts.grad(lambda x: ts.sum(x * x))(x), 2 * data(1, 3))
        finally:
            done.set()

    together([tracer, other])


# --- interruptions ----------------------------------------------------------------------------

STEPS = [
    (pipeline, "run_pipeline"),
    (lowering, "lower_graph"),
    (lowering.heuristics, "choose"),
    (lowering.plan, "plan"),
    (lowering, "lower_program"),
    (lowering, "lower_kernel"),
    (lowering, "Legalization"),
    (lowering, "ModuleWriter"),
    (pipeline.cpu, "finish"),
    (pipeline, "Executable"),
]


def check_all() -> None:
    for k, job in enumerate(JOBS):
        job(k)


@pytest.mark.parametrize(("module", "step"), STEPS, ids=[name for _, name in STEPS])
def test_interrupted_steps(monkeypatch: pytest.MonkeyPatch, module: Any, step: str) -> None:
    """After an interruption in the middle, the same call works."""
    original = getattr(module, step)
    interrupted: list[bool] = []

    def once(*args: Any, **kwargs: Any) -> Any:
        if not interrupted:
            interrupted.append(True)
            raise KeyboardInterrupt
        return original(*args, **kwargs)

    monkeypatch.setattr(module, step, once)
    x = ts.asarray(data(3, 5))
    jitted = ts.jit(lambda x: ts.sum(x * x))
    gradient = ts.grad(lambda x: ts.sum(ts.exp(x)))
    batch = ts.vmap(ts.jit(lambda x: ts.sin(x) * 2.0))
    for call, expected in (
        (jitted, np.sum(data(3, 5) ** 2)),
        (lambda x: ts.log(x), np.log(data(3, 5))),
        (gradient, np.exp(data(3, 5))),
        (batch, np.sin(data(3, 5)) * 2),
        (ts.jit(gradient), np.exp(data(3, 5))),
    ):
        interrupted.clear()
        with pytest.raises(KeyboardInterrupt):
            call(x)
        assert not tracing._STATE.stack
        assert_close(call(x), expected, length=5)
        assert_close(call(x), expected, length=5)
    assert jitted.cache_size() == 1


def test_interrupted_functions() -> None:
    """An interruption of the user's function, in traces within traces."""
    interrupt = [True]

    def f(x: Any) -> Any:
        y = x * 2.0
        if interrupt:
            raise KeyboardInterrupt
        return ts.sum(y * x)

    x = ts.asarray(data(4, 3))
    ways: list[Callable[[Callable[..., Any]], Any]] = [
        lambda jitted: jitted(x),
        lambda jitted: ts.grad(f)(x),
        lambda jitted: ts.jit(ts.grad(jitted))(x),
        lambda jitted: ts.vmap(ts.grad(jitted))(ts.stack([x, x])),
        lambda jitted: ts.jvp(ts.grad(jitted), (x,), (x,)),
    ]
    for way in ways:
        jitted = ts.jit(f)  # one that has no trace yet, which would be used again
        interrupt[:] = [True]
        with pytest.raises(KeyboardInterrupt):
            way(jitted)
        assert not tracing._STATE.stack
        assert jitted.cache_size() == 0
        interrupt.clear()
        way(jitted)
        assert_close(jitted(x), np.sum(2 * data(4, 3) ** 2), length=3)


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="no timers that interrupt")
# Of an interruption in a finalizer Python tells, and goes on.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_interruptions_at_any_time() -> None:
    def interrupt(number: int, frame: Any) -> None:
        raise KeyboardInterrupt

    saved = signal.signal(signal.SIGALRM, interrupt)
    try:
        for k in range(100):
            try:
                signal.setitimer(signal.ITIMER_REAL, 0.0002 * 1.07**k)
                JOBS[k % len(JOBS)](k)
                own_function(k)
                signal.setitimer(signal.ITIMER_REAL, 0)
            except KeyboardInterrupt:
                pass
            assert not tracing._STATE.stack
            assert loc.ORIGIN.loc is None
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, saved)
    check_all()
    together([lambda k=k: JOBS[k % len(JOBS)](k) for k in range(THREADS)])


def test_interruptions_at_the_ends_of_blocks() -> None:
    """Ctrl-C is looked for as a function begins: here as a block of a `with` statement is to end,
    for each statement that the jobs run."""
    seen: set[tuple[Any, ...]] = set()
    interrupted: list[bool] = []

    def interrupt(frame: Any, event: str, _: object) -> None:
        if event != "call" or frame.f_code.co_name != "__exit__" or interrupted:
            return
        statement = frame.f_back
        key = statement.f_code, statement.f_lasti
        if "/tessera/" in statement.f_code.co_filename and key not in seen:
            seen.add(key)
            interrupted.append(True)
            raise KeyboardInterrupt

    settings = config.current()
    while True:
        interrupted.clear()
        try:
            sys.setprofile(interrupt)
            for k, job in enumerate(JOBS):
                job(k + len(seen))
            own_function(len(seen))
        except KeyboardInterrupt:
            pass
        finally:
            sys.setprofile(None)
        if not interrupted:
            break
        assert not tracing._STATE.stack
        assert loc.ORIGIN.loc is None
        assert default_device() is CPU
        assert config.current() is settings
    assert len(seen) > 10
    check_all()
