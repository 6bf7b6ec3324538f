"""The pool of threads that compiled code shares its work with."""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import os
import re
import subprocess
import sys
import textwrap
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tessera as ts
from tessera.runtime import threads
from tessera.runtime.threads_text import has_threads
from tessera.target.llvm.parallel import PARALLEL, THREADS
from tessera.target.machine import host

PIECE = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)
JOB = ctypes.CFUNCTYPE(
    None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_int64
)

needs_workers = pytest.mark.skipif(
    not has_threads(host().arch, sys.platform), reason="the pool has workers on Linux only"
)


def share(piece: Callable[[int, int], None], count: int, grain: int, most: int) -> None:
    """Runs a function on all pieces of a range."""
    native = PIECE(lambda _, lo, hi: piece(lo, hi))
    run = JOB(threads.symbols(most)[PARALLEL])
    run(ctypes.cast(native, ctypes.c_void_p), None, count, grain, most)


@pytest.mark.parametrize("most", [1, 2, 3, 8])
@pytest.mark.parametrize("count", [0, 1, 2, 7, 64, 101])
@pytest.mark.parametrize("grain", [1, 3, 50, 1000])
def test_every_point_runs_once(count: int, grain: int, most: int) -> None:
    seen: list[int] = []
    share(lambda lo, hi: seen.extend(range(lo, hi)), count, grain, most)
    assert sorted(seen) == list(range(count))


def test_pieces_have_the_size_of_the_grain() -> None:
    pieces: list[tuple[int, int]] = []
    share(lambda lo, hi: pieces.append((lo, hi)), 103, 10, 3)
    assert sorted(pieces) == [(lo, min(lo + 10, 103)) for lo in range(0, 103, 10)]


@needs_workers
def test_workers_take_part() -> None:
    seen: set[int] = set()

    def piece(lo: int, hi: int) -> None:
        seen.add(threading.get_native_id())
        time.sleep(0.002)

    for _ in range(100):
        share(piece, 6, 1, 3)
        if len(seen) >= 3:
            return
    pytest.fail(f"{len(seen)} threads took part")


@needs_workers
def test_workers_on_their_callers_core_keep_the_cores_that_they_may_have() -> None:
    """A worker that leaves its caller's core asks for the others, then for all again, and so does
    its caller for a worker that is there and does not run."""
    share(lambda lo, hi: time.sleep(0.001), 4, 1, 3)
    whole = os.sched_getaffinity(0)
    tasks = [int(task) for task in os.listdir("/proc/self/task")]
    before = {task: os.sched_getaffinity(task) for task in tasks}
    seen: list[int] = []

    def piece(lo: int, hi: int) -> None:
        until = time.perf_counter() + 0.0003  # without letting go of the core
        while time.perf_counter() < until:
            seen.extend(range(lo, lo))
        seen.extend(range(lo, hi))

    workers = {t for t in tasks if t != threading.get_native_id()}
    try:
        for core in sorted(whole)[:2]:
            os.sched_setaffinity(0, {core})
            seen.clear()
            for turn in range(50):
                if turn % 2 == 0:  # it is here when it is woken, and for this job cannot leave
                    _set_affinity(workers, {core})
                share(piece, 6, 1, 3)
                _set_affinity(workers, whole)
            assert Counter(seen) == dict.fromkeys(range(6), 50)
    finally:
        os.sched_setaffinity(0, whole)
    for _ in range(200):  # a worker that came too late for a job may be moving still
        left = set(tasks).intersection(map(int, os.listdir("/proc/self/task")))
        if all(os.sched_getaffinity(task) == before[task] for task in left):
            return
        time.sleep(0.01)
    pytest.fail("a thread has lost cores")


def _set_affinity(tasks: set[int], cores: set[int]) -> None:
    """The cores of threads, of those that still run."""
    for task in tasks:
        with contextlib.suppress(ProcessLookupError):
            os.sched_setaffinity(task, cores)


def test_one_thread_is_the_caller() -> None:
    seen: set[int] = set()
    share(lambda lo, hi: seen.add(threading.get_native_id()), 20, 1, 1)
    assert seen == {threading.get_native_id()}


def test_small_work_is_one_piece_on_the_caller() -> None:
    pieces: list[tuple[int, int, int]] = []
    share(lambda lo, hi: pieces.append((lo, hi, threading.get_native_id())), 9, 9, 4)
    assert pieces == [(0, 9, threading.get_native_id())]


def test_calls_from_inside_a_piece() -> None:
    total = itertools.count()

    def inner(lo: int, hi: int) -> None:
        for _ in range(lo, hi):
            next(total)

    share(lambda lo, hi: share(inner, 10, 1, 3), 12, 1, 3)
    assert next(total) == 120


def test_many_callers_neither_wait_nor_multiply() -> None:
    running, most = Counter[str](), [0]
    lock = threading.Lock()
    results: list[int] = []

    def piece(lo: int, hi: int) -> None:
        with lock:
            running["now"] += 1
            most[0] = max(most[0], running["now"])
        time.sleep(0.0005)
        with lock:
            running["now"] -= 1
            running["points"] += hi - lo

    def caller() -> None:
        for _ in range(5):
            share(piece, 8, 1, 3)
        results.append(1)

    callers = [threading.Thread(target=caller) for _ in range(6)]
    for each in callers:
        each.start()
    for each in callers:
        each.join(60)
    assert len(results) == 6
    assert running["points"] == 6 * 5 * 8
    # Six callers, and workers that had not yet seen that there are so many.
    assert most[0] <= 6 + 2


@needs_workers
def test_the_pool_does_not_grow_with_calls() -> None:
    share(lambda lo, hi: None, 100, 1, 3)
    before = len(os.listdir("/proc/self/task"))
    for _ in range(50):
        share(lambda lo, hi: None, 100, 1, 3)
    assert len(os.listdir("/proc/self/task")) <= before  # threads of the test before may be ending


def test_the_number_of_threads_is_a_word() -> None:
    for most in (1, 2, 5):
        assert ctypes.c_int64.from_address(threads.symbols(most)[THREADS]).value == most


# --- programs -------------------------------------------------------------------------------------

RNG = np.random.default_rng(5)
LONG = RNG.standard_normal(300_001).astype(np.float32)
MATRIX = RNG.standard_normal((513, 701)).astype(np.float32)

PROGRAMS: dict[str, tuple[Callable[..., Any], np.ndarray[Any, Any]]] = {
    "elementwise": (lambda x: ts.exp(x) * ts.tanh(x) + 1, LONG),
    "sum": (lambda x: ts.sum(ts.exp(x)), LONG),
    "argmax": (lambda x: ts.argmax(x), LONG),
    "histogram": (lambda x: ts.histogram(x, 20, weights=ts.sin(x))[0], LONG),
    "rows": (lambda x: ts.sum(ts.exp(x), axis=1), MATRIX),
    "columns": (lambda x: ts.sum(ts.exp(x), axis=0), MATRIX),
    "softmax": (lambda x: ts.nn.softmax(x, axis=1), MATRIX),
    "transpose": (lambda x: x.T + 1, MATRIX),
    "product": (lambda x: x @ x.T, MATRIX),
    "sort": (lambda x: ts.sort(x, axis=1), MATRIX),
    "gather": (lambda x: x[::-1][ts.argsort(x[:, 0])], MATRIX),
    "cumsum": (lambda x: ts.cumulative_sum(x, axis=1), MATRIX),
    "gradient": (ts.grad(lambda x: ts.sum(ts.log(1 + ts.exp(x)))), MATRIX),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_results_are_the_same_for_any_number_of_threads(name: str) -> None:
    function, x = PROGRAMS[name]
    compiled = ts.jit(function)
    with ts.config.update(threads=1):
        expected = np.asarray(compiled(x))
    for most in (2, 3, 5):
        with ts.config.update(threads=most):
            for _ in range(3):
                np.testing.assert_array_equal(np.asarray(compiled(x)), expected)


def test_large_work_is_shared_and_small_work_is_not() -> None:
    program = ts.jit(lambda x: ts.exp(x) + 1)
    large = program.lower(LONG)
    assert "target.parallel" in large.stage("target")
    assert "threads share its programs" in str(large.kernels()[0])
    assert re.search(r"exp_add: threads share it, \d+ programs, \d+ at a time", large.why())
    small = program.lower(LONG[:1000])
    assert "target.parallel" not in small.stage("target")
    assert "threads" not in str(small.kernels()[0]) + small.why()


def test_callers_in_threads_of_python() -> None:
    program = ts.jit(lambda x: ts.sum(ts.exp(x), axis=1))
    expected = np.asarray(program(MATRIX))
    wrong: list[str] = []

    def caller() -> None:
        for _ in range(20):
            if not (np.asarray(program(MATRIX)) == expected).all():
                wrong.append("differs")

    callers = [threading.Thread(target=caller) for _ in range(4)]
    for each in callers:
        each.start()
    for each in callers:
        each.join(60)
    assert not wrong
    assert not any(each.is_alive() for each in callers)


# --- processes ------------------------------------------------------------------------------------


def run_script(text: str, **environment: str) -> subprocess.CompletedProcess[str]:
    setup = """
    import os, signal, sys, threading, time
    import numpy as np
    import tessera as ts
    program = ts.jit(lambda x: ts.exp(x) * 2)
    x = np.linspace(0, 1, 400_000, dtype=np.float32)
    expected = np.asarray(program(x))

    def tasks():
        time.sleep(0.1)  # threads that were joined may still be ending
        return len(os.listdir("/proc/self/task"))
    """
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(setup) + textwrap.dedent(text)],
        capture_output=True, text=True, timeout=120, check=False,
        env={**os.environ, "TESSERA_THREADS": "3", **environment},
    )  # fmt: skip


@needs_workers
def test_a_forked_child_has_a_pool_of_its_own() -> None:
    done = run_script("""
    child = os.fork()
    if child == 0:
        alone = tasks()
        same = (np.asarray(program(x)) == expected).all()
        workers = tasks() - alone
        sys.stdout.write(f"child {alone} {same} {workers}\\n")
        sys.stdout.flush()
        os._exit(0)
    os.waitpid(child, 0)
    print("parent", (np.asarray(program(x)) == expected).all())
    """)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["child 1 True 2", "parent True"]


@needs_workers
def test_a_fork_while_another_thread_changes_the_memory_pool() -> None:
    """It waits for that thread, so that the child does not wait for one that it has not."""
    done = run_script("""
    import faulthandler
    from tessera.runtime.memory import pool
    held = threading.Event()
    def hold():
        with pool._lock:
            held.set()
            time.sleep(0.1)
    holder = threading.Thread(target=hold)
    holder.start()
    held.wait()
    child = os.fork()
    if child == 0:
        faulthandler.dump_traceback_later(20, exit=True)
        os._exit(0 if (np.asarray(program(x)) == expected).all() else 1)
    assert os.waitpid(child, 0)[1] == 0
    holder.join()
    """)
    assert done.returncode == 0, done.stderr


def test_a_fork_while_others_compute() -> None:
    done = run_script("""
    going = True
    def work():
        while going:
            program(x)
    threads = [threading.Thread(target=work) for _ in range(3)]
    for t in threads: t.start()
    for _ in range(10):
        child = os.fork()
        if child == 0:
            os._exit(0 if (np.asarray(program(x)) == expected).all() else 1)
        assert os.waitpid(child, 0)[1] == 0
    going = False
    for t in threads: t.join()
    """)
    assert done.returncode == 0, done.stderr


def test_a_fork_while_others_compile(tmp_path: Path) -> None:
    # Each thread's first call, its functions, their signatures and the cache on disk have locks.
    done = run_script(
        """
    going = True
    def work():
        while going:
            ts.jit(lambda x, c=time.perf_counter(): x * c)(x[:100])
    threads = [threading.Thread(target=work) for _ in range(3)]
    for t in threads: t.start()
    for k in range(10):
        child = os.fork()
        if child == 0:
            fresh = ts.jit(lambda x, c=time.perf_counter(): x + c)
            os._exit(0 if (np.asarray(fresh(x)) > x).all() else 1)
        assert os.waitpid(child, 0)[1] == 0
    going = False
    for t in threads: t.join()
    """,
        TESSERA_CACHE_DIR=str(tmp_path),
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    "call",
    [
        "program(ours)",
        "program(x)",
        "program(x[::2])",
        "tree({'a': x, 'b': (x, ours)}), ts.pytree.leaves({'a': [x] * 3})",
        "ts.grad(lambda x: ts.sum(x * x))(x[:100])",
    ],
)
def test_exit_while_daemons_compute(call: str) -> None:
    # Python ends them where they come for its lock; within C++ that would end the process.
    done = run_script(f"""
    ours = ts.asarray(x)
    tree = ts.jit(lambda t: {{"a": t["a"] + t["b"][0], "b": [t["b"][1]]}})
    def work():
        while True:
            {call}
    {call}
    for _ in range(3):
        threading.Thread(target=work, daemon=True).start()
    time.sleep(0.1)
    print("end")
    """)
    assert (done.returncode, done.stdout) == (0, "end\n"), done.stderr


def test_what_runs_at_exit_may_wait_for_a_thread_that_computes() -> None:
    # Handlers run from the last that was registered: this one after Tessera's own.
    script = """
    import atexit, threading
    leaving, going = threading.Event(), True
    def leave():
        leaving.set()
        thread.join()
        print("computed", done)
    atexit.register(leave)
    import numpy as np
    import tessera as ts
    done = False
    def work():
        global done
        leaving.wait()
        done = bool((np.asarray(ts.jit(lambda t: [x + 1 for x in t])([np.ones(3)])) == 2).all())
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    """
    found = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert (found.returncode, found.stdout) == (0, "computed True\n"), found.stderr


def test_ctrl_c_ends_a_loop_of_calls() -> None:
    done = run_script("""
    threading.Timer(0.3, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
    try:
        while True:
            program(x)
    except KeyboardInterrupt:
        print("stopped", (np.asarray(program(x)) == expected).all())
    """)
    assert (done.returncode, done.stdout) == (0, "stopped True\n"), done.stderr


@needs_workers
@pytest.mark.parametrize(("setting", "workers"), [("1", 0), ("2", 1), ("4", 3)])
def test_threads_are_set_by_the_environment(setting: str, workers: int) -> None:
    done = run_script(
        """
    now = tasks()
    with ts.config.update(threads=6):
        program(x)
    print(ts.config.threads, tasks() - now)
    """,
        TESSERA_THREADS=setting,
    )
    assert done.stdout == f"{setting} {5 - workers}\n", done.stderr
