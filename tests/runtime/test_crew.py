"""Programs of several modules: threads compile them to what one thread does, and errors,
interruptions, forks and the end of the process meet them in order."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tessera as ts
from tessera.compile import Lowered
from tessera.config import config
from tessera.errors import CompileError
from tessera.runtime import codegen, crew
from tessera.runtime.cache import ObjectCache
from tessera.runtime.codegen import Source, emit
from tessera.runtime.cpu import compile_sources
from tessera.runtime.crew import Crew
from tessera.target.llvm import modules
from tessera.target.machine import machine, supported_levels
from tessera.tile.types import FINISHED, RARE
from tests.runtime.test_cpu import OFF, axpy, run_axpy

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def two_processors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(crew, "usable_cpus", lambda: 4)


@pytest.fixture
def one_module(monkeypatch: pytest.MonkeyPatch) -> None:
    """Programs are not cut."""
    set_length(monkeypatch, 1 << 30)


@pytest.fixture
def short_modules(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small programs are cut too."""
    set_length(monkeypatch, 1)


def set_length(monkeypatch: pytest.MonkeyPatch, length: int) -> None:
    """Modules of so many lines, the first one too."""
    monkeypatch.setattr(modules, "LENGTH", dict.fromkeys((False, True), length))
    monkeypatch.setattr(modules, "FIRST", length)


def texts(count: int) -> list[Source]:
    return [Source(axpy(8, 1.0 + k, f"run{k}"), machine("host"), "program") for k in range(count)]


# --- the cut ----------------------------------------------------------------------------------


def loop(x: ts.Array) -> Any:
    def body(state: Any) -> Any:
        k, v = state
        return k + 1, ts.sort(v * 1.5 - ts.sum(v))

    return ts.while_loop(lambda state: state[0] < 5, body, (ts.sum(x) * 0, x))[1]


def many_functions(x: ts.Array) -> Any:
    # So many uses of expansions that kernels call copies of them.
    y = x
    for _ in range(12):
        y = ts.sin(ts.cos(y)) + ts.tan(y)
    return y, ts.sort(y), ts.sin(ts.sort(x))


PROGRAMS: dict[str, Any] = {
    "one kernel": lambda x: x + 1,
    "rows": lambda x: ts.exp(x) / ts.sum(ts.exp(x), axis=0),
    "several": lambda x: (ts.sort(x), ts.cumsum(x, axis=0), ts.max(ts.sort(x)), x @ x),
    "loop": loop,
    "functions": many_functions,
}
SIZES = {"rows": (64, 4096), "loop": (300,), "functions": (50,)}


@pytest.mark.parametrize("name", PROGRAMS)
def test_one_module_and_several_compute_the_same(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = np.random.default_rng(0).normal(size=SIZES.get(name, (64, 64))).astype(np.float32)
    graph = ts.make_graph(PROGRAMS[name])(ts.asarray(x))
    with config.update(cache_dir=""):
        set_length(monkeypatch, 1 << 30)
        one = Lowered(graph)
        expected = one.executable().run([x])
        set_length(monkeypatch, 1)
        several = Lowered(graph)
        found = several.executable().run([x])
    kinds = {FINISHED in f.attrs for f in one.target.funcs.values() if f is not one.target.entry}
    # Functions that are finished have modules of their own, and the entry another.
    assert len(one.modules) == (len(kinds) + 1 if True in kinds else 1)
    kernels = sum([f.attrs.get(FINISHED) != RARE for f in several.target.funcs.values()]) - 1
    # One function needs no module of its own; else each has one here, and the entry, beside which
    # those stand that hardly run.
    assert len(several.modules) == (1 if kernels == 1 else kernels + 1)
    for a, b in zip(found, expected, strict=True):
        assert np.asarray(a).tobytes() == np.asarray(b).tobytes()
    assert one.native.symbols == several.native.symbols
    for module in several.modules:
        assert codegen.exported_functions(module.text) in ((), several.native.symbols)


def test_the_first_module_is_short(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that another thread has something to do while the rest is written."""
    graph = ts.make_graph(lambda x: ts.softmax(x, axis=0))(ts.zeros((4096, 1000)))
    lines = [len(module.text.splitlines()) for module in Lowered(graph).modules]
    assert len(lines) > 2  # kernels in two, and the entry
    assert modules.FIRST <= lines[0] < modules.LENGTH[False] / 2
    monkeypatch.setattr(modules, "FIRST", 1 << 30)
    assert len(Lowered(graph).modules) == 1


def test_what_a_loop_runs_stands_beside_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """A call of a function that could have stood in the loop took half of a small step's time."""

    def fn(x: Any) -> Any:
        return ts.fori_loop(0, 9, lambda _, y: ts.softmax(y, axis=0), x)

    with config.update(cache_dir=""):
        lowered = Lowered(ts.make_graph(fn)(ts.zeros((4096, 1000))))
        assert len(lowered.modules) == 1
        assert len(lowered.modules[0].text.splitlines()) > 2 * modules.FIRST
        (key,) = lowered.native.keys
        assert Lowered(lowered.graph).native.keys == (key,)


@pytest.mark.parametrize("level", ["x86-64", "x86-64-v3"])
def test_vectors_are_passed_between_modules(level: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if level not in supported_levels():
        pytest.skip(f"this machine is not {level}")
    x = np.random.default_rng(0).normal(size=50).astype(np.float32)
    graph = ts.make_graph(many_functions)(ts.asarray(x))
    found: list[Any] = []
    with config.update(cache_dir=""):
        for length in (1 << 30, 1):
            set_length(monkeypatch, length)
            lowered = Lowered(graph, machine(level))
            found.append(lowered.executable().run([x]))
    assert any("declare hidden <" in module.text for module in lowered.modules)
    for a, b in zip(*found, strict=True):
        assert np.asarray(a).tobytes() == np.asarray(b).tobytes()


def test_an_entry_that_repeats_is_optimised(short_modules: None) -> None:
    straight = Lowered(ts.make_graph(PROGRAMS["several"])(ts.ones((64, 64))))
    assert [module.is_glue for module in straight.modules] == [
        *[False] * (len(straight.modules) - 1), True
    ]  # fmt: skip
    looping = Lowered(ts.make_graph(loop)(ts.ones((300,))))
    assert len(looping.modules) > 2
    assert not any(module.is_glue for module in looping.modules)


def softmax(x: ts.Array) -> Any:
    return ts.softmax(x, axis=-1)


PLAIN: dict[str, tuple[Any, tuple[int, ...], bool]] = {
    "long": (softmax, (64, 64), True),
    "masks": (softmax, (64, 60), True),
    "streams": (lambda x: x + 1, (4096, 4096), True),
    "streams rows": (lambda x: ts.permute_dims(x, (1, 0)), (2048, 2048), True),
    "streams arrays": (lambda x: (x + 1, x * 2), (4096, 4096), False),
    "gathers": (lambda x: ts.take(x, ts.astype(x[0], ts.int32), axis=0), (64, 64), True),
    "numbers": (lambda x: ts.bincount(ts.astype(x[0], ts.int32), length=9), (64, 64), False),
    "a loop": (lambda x: ts.fori_loop(0, 9, lambda _, y: softmax(y), x), (64, 64), True),
}


@pytest.mark.parametrize("name", PLAIN)
def test_plain_code_takes_few_passes(name: str, one_module: None) -> None:
    func, shape, is_plain = PLAIN[name]
    with config.update(cache_dir=""):
        lowered = Lowered(ts.make_graph(func)(ts.ones(shape)), machine("x86-64-v4"))
    assert [module.passes for module in lowered.modules] == ["few" if is_plain else "all"]


@pytest.mark.parametrize("debug", [False, True])
def test_code_that_checks_itself_is_compiled_quickly(debug: bool, one_module: None) -> None:
    counts = PLAIN["numbers"][0]
    with config.update(debug_bounds=debug):
        lowered = Lowered(ts.make_graph(counts)(ts.ones((64, 64))))
        (source,) = [lowered._source(module) for module in lowered.modules]
    assert source.optimize is not debug
    assert source.passes == ("few" if debug else "all")


@pytest.mark.parametrize("columns", [5, 60, 64, 100, 128, 256, 1000, 1024])
def test_few_passes_compute_the_same(
    columns: int, one_module: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = np.random.default_rng(0).normal(size=(64, columns)).astype(np.float32)
    x[3, 2], x[7, 4], x[11] = np.nan, np.inf, -np.inf
    graph = ts.make_graph(lambda x: (softmax(x), ts.argmax(x, axis=0)))(ts.asarray(x))
    found: list[Any] = []
    keys: set[str] = set()
    with config.update(cache_dir=""):
        for is_plain in (True, False):
            monkeypatch.setattr(modules, "_is_plain", lambda *_, found=is_plain: found)
            lowered = Lowered(graph)
            found.append(lowered.executable().run([x]))
            keys.update(lowered.native.keys)
    assert len(keys) == 2
    for a, b in zip(*found, strict=True):
        assert np.asarray(a).tobytes() == np.asarray(b).tobytes()


@pytest.mark.parametrize("debug", [False, True])
def test_a_module_declares_what_it_takes_alone(short_modules: None, debug: bool) -> None:
    with config.update(debug_bounds=debug):
        lowered = Lowered(ts.make_graph(many_functions)(ts.ones((50,))))
        found = lowered.executable().run([np.full(50, 0.5, np.float32)])
    assert len(lowered.modules) > 3
    assert len(found) >= 3
    for module in lowered.modules:
        declared = [s for s in module.text.split("\n") if s.startswith("declare hidden")]
        names = [line.partition("@")[2].partition("(")[0] for line in declared]
        defined = module.text.partition("declare hidden")[0]
        assert all(f"@{name}" in defined for name in names)


# --- threads ----------------------------------------------------------------------------------


@pytest.mark.parametrize("threads", [1, 2, 4])
def test_objects_do_not_depend_on_the_number_of_threads(threads: int, tmp_path: Path) -> None:
    sources = texts(6)
    cache = ObjectCache(tmp_path / "c")
    with Crew(cache, threads) as workers:
        for source in sources:
            workers.add(source)
        images = workers.images()
    assert images == [emit(source) for source in sources]
    assert [cache.get(source.key()) for source in sources] == images
    assert not workers.found
    assert not crew._helping


def test_helpers_compile(monkeypatch: pytest.MonkeyPatch) -> None:
    by: set[int] = set()
    both = threading.Barrier(2)

    def meet(source: Source) -> bytes:
        if threading.get_ident() not in by:
            by.add(threading.get_ident())
            both.wait(60)  # for nobody alone
        return b""

    monkeypatch.setattr(crew, "emit", meet)
    with Crew(OFF, 2) as workers:
        for source in texts(4):
            workers.add(source)
        assert workers.images() == [b""] * 4
    assert len(by) == 2


def test_one_thread_and_one_processor_start_no_helper(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_thread(*_: object, **__: object) -> Any:
        raise AssertionError("a thread")

    monkeypatch.setattr(threading, "Thread", no_thread)
    for threads, processors in ((1, 4), (4, 1)):
        monkeypatch.setattr(crew, "usable_cpus", lambda n=processors: n)
        with Crew(OFF, threads) as workers:
            for source in texts(3):
                workers.add(source)
            assert len(workers.images()) == 3


def test_a_process_that_can_start_no_thread_compiles_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    module = compile_sources(texts(3), cache=OFF, threads=4)
    assert module.symbols == ("run0", "run1", "run2")
    assert not crew._helping


def test_several_threads_compile_programs_at_once(short_modules: None) -> None:
    x = np.random.default_rng(0).normal(size=(64, 64)).astype(np.float32)
    failures: list[BaseException] = []
    barrier = threading.Barrier(4)

    def work(seed: int) -> None:
        try:
            barrier.wait(60)
            for scale in (seed + 1.0, 0.5):
                graph = ts.make_graph(lambda x, s=scale: (ts.sort(x * s), ts.max(x @ x), x + s))(
                    ts.asarray(x)
                )
                found = Lowered(graph).executable().run([x])
                np.testing.assert_array_equal(found[0], np.sort(x * np.float32(scale)))
                np.testing.assert_array_equal(found[2], x + np.float32(scale))
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    with config.update(cache_dir=""):
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(120)
    assert not failures
    assert not crew._helping


# --- errors and interruptions -----------------------------------------------------------------


@pytest.mark.parametrize("threads", [1, 4])
def test_the_error_is_that_of_the_first_wrong_module(threads: int) -> None:
    sources = texts(6)
    for k in (2, 4, 5):
        text = sources[k].text.replace("done:", f"done:\n  %x{k} = add i32 1, %y{k}")
        sources[k] = Source(text, machine("host"), "program")
    with pytest.raises(CompileError) as caught:
        compile_sources(sources, cache=OFF, threads=threads)
    assert str(caught.value).startswith(
        "program: LLVM rejects the code: use of undefined value '%y2'\n"
        "  rule: code generation writes valid LLVM text\n"
    )
    run_axpy_named(compile_sources(texts(2), cache=OFF, threads=threads))


def run_axpy_named(module: Any) -> None:
    class Renamed:
        def caller(self, _: str) -> Any:
            return module.caller("run0")

    run_axpy(Renamed(), 1.0)  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("at", [0, 2])
def test_an_interrupt_drops_what_was_not_begun(at: int, monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[Source] = []
    held = threading.Event()

    def interrupted(source: Source) -> bytes:
        # The main thread waits for another one, which LLVM is at work in.
        if threading.current_thread().name == "tessera.llvm":
            begun.append(source)
            if len(begun) <= at:
                return emit(source)
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
        assert held.wait(60)
        return emit(source)

    with monkeypatch.context() as patch:
        patch.setattr(crew, "emit", interrupted)
        with pytest.raises(KeyboardInterrupt):
            compile_sources(texts(12), cache=OFF, threads=3)
        held.set()
        for thread in threading.enumerate():
            if thread.name.startswith("tessera."):
                thread.join(60)
    assert len(begun) == at + 1
    run_axpy_named(compile_sources(texts(3), cache=OFF, threads=3))


def test_what_is_kept_of_some_modules_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache, sources = ObjectCache(tmp_path / "c"), texts(4)
    compile_sources(sources, cache=cache, threads=2)
    cache.remove(sources[1].key())
    compiled: list[Source] = []

    def note(source: Source) -> bytes:
        compiled.append(source)
        return emit(source)

    monkeypatch.setattr(crew, "emit", note)
    assert not compile_sources(sources, cache=cache, threads=2).cached
    assert compiled == [sources[1]]
    assert compile_sources(sources, cache=cache, threads=2).cached


@pytest.mark.parametrize("lacking", [(), (0,)])
def test_a_useless_object_among_others_is_compiled_again(
    lacking: tuple[int, ...], tmp_path: Path
) -> None:
    cache, sources = ObjectCache(tmp_path / "c"), texts(3)
    compile_sources(sources, cache=cache)
    cache.put(sources[2].key(), b"\x7fELF" + bytes(100))
    for k in lacking:
        cache.remove(sources[k].key())
    module = compile_sources(sources, cache=cache)
    assert not module.cached
    run_axpy_named(module)
    assert compile_sources(sources, cache=cache).cached


# --- processes --------------------------------------------------------------------------------

START = """
import os, signal, sys, threading
from tessera.runtime import crew
crew.usable_cpus = lambda: 4
from tests.runtime.test_crew import OFF, compile_sources, run_axpy_named, texts
"""

FORK = """
run_axpy_named(compile_sources(texts(2), cache=OFF))  # what it imports is imported
sources = texts(40)
thread = threading.Thread(target=lambda: run_axpy_named(
    compile_sources(sources, cache=OFF, threads=3)))
thread.start()
for _ in range(3):
    child = os.fork()
    if not child:
        run_axpy_named(compile_sources(texts(4), cache=OFF, threads=3))
        os._exit(7)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
thread.join()
print("fine")
"""

EXIT = """
import atexit
def late():
    run_axpy_named(compile_sources(texts(3), cache=OFF, threads=3))
    print("end")
atexit.register(late)
def emit(source, emit=crew.emit):
    if threading.current_thread().name == "tessera.llvm":
        crew.emit = emit
        os.kill(os.getpid(), signal.SIGINT)
    return emit(source)
crew.emit = emit
try:
    compile_sources(texts(30), cache=OFF, threads=3)
except KeyboardInterrupt:
    print("interrupted")
"""


@pytest.mark.parametrize(
    ("code", "expected"), [(FORK, "fine\n"), (EXIT, "interrupted\nend\n")], ids=["fork", "exit"]
)
def test_processes_fork_and_end_meanwhile(code: str, expected: str) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", START + code],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert (done.stdout, done.stderr, done.returncode) == (expected, "", 0)


@pytest.fixture(autouse=True)
def no_helper_is_left() -> Iterator[None]:
    yield
    assert not crew._helping
