"""Native modules: compiling, loading, errors, interruption, threads."""

from __future__ import annotations

import ctypes
import gc
import subprocess
import sys
import threading
import weakref
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tessera.errors import CompileError
from tessera.runtime import codegen, engine
from tessera.runtime.cache import ObjectCache
from tessera.runtime.cpu import NativeModule, compile_text
from tessera.runtime.memory import aligned_empty
from tessera.target.machine import machine, supported_levels

pytestmark = pytest.mark.usefixtures("few_objects")

OFF = ObjectCache(None)

F4 = np.dtype("f4")


def axpy(lanes: int, scale: float = 2.0, name: str = "run") -> str:
    """``z[i] = fma(scale, x[i], y[i])`` in vectors of so many lanes; words are x, y, z, n."""
    v = f"<{lanes} x float>"
    return f"""
define void @{name}(ptr %words) {{
entry:
  %x = load ptr, ptr %words
  %py = getelementptr i64, ptr %words, i64 1
  %y = load ptr, ptr %py
  %pz = getelementptr i64, ptr %words, i64 2
  %z = load ptr, ptr %pz
  %pn = getelementptr i64, ptr %words, i64 3
  %n = load i64, ptr %pn
  br label %loop
loop:
  %i = phi i64 [ 0, %entry ], [ %next, %loop ]
  %ax = getelementptr float, ptr %x, i64 %i
  %ay = getelementptr float, ptr %y, i64 %i
  %az = getelementptr float, ptr %z, i64 %i
  %vx = load {v}, ptr %ax, align {4 * lanes}
  %vy = load {v}, ptr %ay, align {4 * lanes}
  %vz = call {v} @llvm.fmuladd.v{lanes}f32({v} %vx, {v} splat (float {scale:e}), {v} %vy)
  store {v} %vz, ptr %az, align {4 * lanes}
  %next = add i64 %i, {lanes}
  %more = icmp ult i64 %next, %n
  br i1 %more, label %loop, label %done
done:
  ret void
}}
declare {v} @llvm.fmuladd.v{lanes}f32({v}, {v}, {v})
"""


def run_axpy(module: NativeModule, scale: float = 2.0) -> None:
    x, y, z = (aligned_empty((64,), F4) for _ in range(3))
    x[:] = np.arange(64)
    y[:] = 1
    module.caller("run")(x, y, z, 64)
    np.testing.assert_array_equal(z, scale * x + 1)


def unary(function: str, ctype: str = "float") -> str:
    return f"""
define void @run(ptr %words) {{
  %p = load ptr, ptr %words
  %x = load {ctype}, ptr %p
  %y = call {ctype} @{function}({ctype} %x)
  store {ctype} %y, ptr %p
  ret void
}}
declare {ctype} @{function}({ctype})
"""


@pytest.mark.parametrize("level", [*supported_levels(), "host"])
@pytest.mark.parametrize("optimize", [True, False])
def test_every_level_of_the_host_runs(level: str, optimize: bool) -> None:
    here = machine(level)
    text = axpy(here.vector_lanes(32))
    module = compile_text(text, here, name="axpy", optimize=optimize, cache=OFF)
    run_axpy(module)
    width = {128: "%xmm", 256: "%ymm", 512: "%zmm"} if here.arch == "x86-64" else {128: ".4s"}
    assert width[here.vector_bits] in module.assembly()
    if optimize:
        fused = "vfmadd" if here.arch == "x86-64" else "fmla"
        assert (fused in module.assembly()) == here.fma


def test_the_module_says_what_it_is() -> None:
    here = machine("host")
    module = compile_text(axpy(4), here, name="axpy", cache=OFF)
    assert (module.name, module.machine, module.symbols) == ("axpy", here, ("run",))
    assert module.text == axpy(4)
    assert not module.cached
    assert repr(module) == f"NativeModule('axpy', {here}, run)"
    assert "fmuladd" in module.llvm()
    assert module.assembly() == module.assembly()
    assert "target triple" in module.llvm()


def test_exported_functions() -> None:
    text = """
define internal void @hidden() { ret void }
define private void @secret() { ret void }
define noundef i64 @"a name"(i64 %x) { ret i64 %x }
define dso_local fastcc void @b.1() #0 { ret void }
declare void @elsewhere()
"""
    assert codegen.exported_functions(text) == ("a name", "b.1")


def test_an_address_that_is_not_there() -> None:
    module = compile_text(axpy(4), machine("host"), name="axpy", cache=OFF)
    with pytest.raises(CompileError, match=r"axpy: the module has no function 'walk'"):
        module.address("walk")


@pytest.mark.parametrize(
    ("function", "value"),
    [
        ("expf", np.exp(0.5)),
        ("logf", np.log(0.5)),
        ("erff", 0.5204998778),
        ("tgammaf", 1.7724538509),
        ("lgammaf", 0.5723649429),
        ("llvm.exp.f32", np.exp(0.5)),
        ("llvm.tan.f32", np.tan(0.5)),
    ],
)
def test_the_maths_library_is_there(function: str, value: float) -> None:
    module = compile_text(unary(function), machine("host"), name=function, cache=OFF)
    cell = np.array([0.5], "f4")
    module.caller("run")(cell)
    assert cell[0] == pytest.approx(value, rel=1e-6)


@pytest.mark.parametrize("level", supported_levels())
def test_half_precision_is_there_on_every_level(level: str) -> None:
    text = """
define void @run(ptr %words) {
  %p = load ptr, ptr %words
  %h = load half, ptr %p
  %f = fpext half %h to float
  %d = fpext float %f to double
  %e = fmul double %d, 3.0
  %r = fptrunc double %e to half
  store half %r, ptr %p
  ret void
}
"""
    cell = np.array([0.1], "f2")
    compile_text(text, machine(level), name="half", cache=OFF).caller("run")(cell)
    assert cell[0] == np.float16(np.float64(np.float16(0.1)) * 3)


def test_memory_functions_are_there() -> None:
    text = """
define void @run(ptr %words) {
  %a = load ptr, ptr %words
  %at = getelementptr i64, ptr %words, i64 1
  %b = load ptr, ptr %at
  call void @llvm.memcpy.p0.p0.i64(ptr %b, ptr %a, i64 4000, i1 false)
  call void @llvm.memset.p0.i64(ptr %a, i8 0, i64 4000, i1 false)
  ret void
}
declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)
declare void @llvm.memset.p0.i64(ptr, i8, i64, i1)
"""
    a, b = np.arange(1000, dtype="f4"), np.zeros(1000, "f4")
    compile_text(text, machine("host"), name="move", cache=OFF).caller("run")(a, b)
    assert not a.any()
    np.testing.assert_array_equal(b, np.arange(1000))


def test_text_that_does_not_parse_shows_its_line() -> None:
    text = "define void @f() {\nentry:\n  %x = add i32 1, %y\n  ret void\n}\n"
    with pytest.raises(CompileError) as caught:
        compile_text(text, machine("host"), name="bad", cache=OFF)
    assert str(caught.value) == (
        "bad: LLVM rejects the code: use of undefined value '%y'\n"
        "  rule: code generation writes valid LLVM text\n"
        "       1 | define void @f() {\n"
        "       2 | entry:\n"
        "  >    3 |   %x = add i32 1, %y\n"
        "         |                   ^\n"
        "       4 |   ret void\n"
        "       5 | }"
    )


def test_the_column_is_right_on_the_first_line() -> None:
    with pytest.raises(CompileError) as caught:
        compile_text("garbage", machine("host"), name="bad", cache=OFF)
    assert caught.value.notes == (">    1 | garbage\n       | ^",)


def test_text_that_does_not_verify_shows_its_lines() -> None:
    text = (
        "define i32 @f(i32 %a, i1 %c) {\n"
        "  br i1 %c, label %l, label %m\n"
        "l:\n"
        "  %x = add i32 %a, 1 ; written differently than LLVM prints it\n"
        "  br label %m\n"
        "m:\n"
        "  ret i32 %x\n"
        "}\n"
    )
    with pytest.raises(CompileError, match="Instruction does not dominate all uses") as caught:
        compile_text(text, machine("host"), name="bad", cache=OFF)
    assert ">    4 |   %x = add i32 %a, 1" in str(caught.value)
    assert ">    7 |   ret i32 %x" in str(caught.value)


def test_a_function_that_exists_nowhere_is_named() -> None:
    with pytest.raises(CompileError, match=r"cannot be linked(.|\n)*not found: no_such_function$"):
        compile_text(unary("no_such_function"), machine("host"), name="bad", cache=OFF)


def test_an_intrinsic_that_the_machine_lacks_is_refused() -> None:
    text = """
define void @run(ptr %p) {
  %x = load <16 x float>, ptr %p
  %y = call <16 x float> @llvm.x86.avx512.mask.scalef.ps.512(
    <16 x float> %x, <16 x float> %x, <16 x float> %x, i16 -1, i32 4)
  store <16 x float> %y, ptr %p
  ret void
}
declare <16 x float> @llvm.x86.avx512.mask.scalef.ps.512(
  <16 x float>, <16 x float>, <16 x float>, i16, i32)
"""
    with pytest.raises(CompileError, match=r"scalef.ps.512 needs avx512f"):
        compile_text(text, machine(supported_levels()[0]), name="scale", cache=OFF)


def test_code_that_the_host_cannot_run_is_refused() -> None:
    future = replace(machine(supported_levels()[0]), name="future", llvm_features="+avx9000")
    with pytest.raises(CompileError, match="the host lacks avx9000"):
        compile_text(axpy(4), future, name="axpy", cache=OFF)


@pytest.mark.parametrize("step", ["parse", "run_passes", "emit", "link", "target"])
def test_an_interrupt_leaves_everything_usable(step: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    compile_text(axpy(4), machine("host"), name="before", cache=OFF)
    with monkeypatch.context() as patch:
        patch.setattr(engine._Engine if step == "link" else codegen._Compiler, step, interrupt)
        with pytest.raises(KeyboardInterrupt):
            compile_text(axpy(8), machine("host"), name="interrupted", cache=OFF)
    run_axpy(compile_text(axpy(8), machine("host"), name="after", cache=OFF))
    # The lock is free: another thread gets it.
    done: list[NativeModule] = []
    thread = threading.Thread(
        target=lambda: done.append(compile_text(axpy(4), machine("host"), name="thread", cache=OFF))
    )
    thread.start()
    thread.join(60)
    assert done


def test_eight_threads_compile_at_once(tmp_path: Path) -> None:
    cache = ObjectCache(tmp_path / "c")
    failures: list[BaseException] = []
    barrier = threading.Barrier(8)

    def work(seed: int) -> None:
        try:
            barrier.wait(60)
            for i in range(4):
                # Half of them the same in all threads, to meet in the cache.
                scale = float(i if i % 2 else 10 * seed + i)
                module = compile_text(
                    axpy(8, scale), machine("host"), name=f"axpy{seed}", cache=cache
                )
                run_axpy(module, scale)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert not failures


def test_the_cache_spares_compiling(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = ObjectCache(tmp_path / "c")
    first = compile_text(axpy(8), machine("host"), name="first", cache=cache)

    def forbidden(*_: object) -> bytes:
        raise AssertionError("compiled")

    with monkeypatch.context() as patch:
        patch.setattr(codegen._Compiler, "emit", forbidden)
        second = compile_text(axpy(8), machine("host"), name="second", cache=cache)
    assert (first.cached, second.cached) == (False, True)
    run_axpy(first)
    run_axpy(second)
    assert first.address("run") != second.address("run")


def test_what_the_object_depends_on_is_in_its_key() -> None:
    here, text = machine("host"), axpy(8)
    sources = [
        codegen.Source(text, here, "a"),
        codegen.Source(text + ";", here, "a"),
        codegen.Source(text, here, "a", optimize=False),
        codegen.Source(text, here, "a", unroll=False),
        *(codegen.Source(text, machine(level), "a") for level in supported_levels()),
    ]
    assert len({source.key() for source in sources}) == len(sources)
    assert codegen.Source(text, here, "b").key() == sources[0].key()


@pytest.mark.parametrize("content", [b"", b"not an object", b"\x7fELF" + bytes(100)])
def test_a_useless_cached_object_is_compiled_again(tmp_path: Path, content: bytes) -> None:
    cache = ObjectCache(tmp_path / "c")
    key = codegen.Source(axpy(8), machine("host"), "axpy").key()
    cache.put(key, content)
    module = compile_text(axpy(8), machine("host"), name="axpy", cache=cache)
    assert not module.cached
    run_axpy(module)
    assert compile_text(axpy(8), machine("host"), name="axpy", cache=cache).cached


def test_a_caller_keeps_its_module_alive() -> None:
    module = compile_text(axpy(4), machine("host"), name="axpy", cache=OFF)
    caller = module.caller("run")
    alive = weakref.ref(module)
    del module
    gc.collect()
    assert alive() is not None
    x, y, z = (aligned_empty((64,), F4) for _ in range(3))
    x[:] = 1
    y[:] = 1
    caller(x, y, z, 64)
    assert z.tolist() == [3.0] * 64
    del caller
    gc.collect()
    assert alive() is None


def test_modules_come_and_go() -> None:
    for i in range(30):
        run_axpy(compile_text(axpy(8, i), machine("host"), name="same", cache=OFF), i)


def test_a_loop_is_unrolled_only_if_allowed() -> None:
    text = axpy(8).replace("load i64, ptr %pn", "add i64 0, 64")
    rolled = compile_text(text, machine("host"), name="a", unroll=False, cache=OFF)
    unrolled = compile_text(text, machine("host"), name="a", unroll=True, cache=OFF)
    assert rolled.llvm().count("fmuladd") < unrolled.llvm().count("fmuladd")
    run_axpy(rolled)
    run_axpy(unrolled)


def test_scalar_loops_stay_scalar() -> None:
    text = axpy(1).replace("splat (float 2.000000e+00)", "2.0").replace("v1f32", "f32")
    text = text.replace("<1 x float>", "float")
    module = compile_text(text, machine("host"), name="a", unroll=False, cache=OFF)
    assert "vector.body" not in module.llvm()
    run_axpy(module)


FORK = """
import os, sys, threading
from tests.runtime.test_cpu import OFF, axpy, compile_text, machine, run_axpy
here = machine("host")
before = compile_text(axpy(8), here, name="before", cache=OFF)
stop = threading.Event()
def busy():
    i = 0
    while not stop.is_set():
        compile_text(axpy(8, i), here, name="busy", cache=OFF)
        i += 1
thread = threading.Thread(target=busy)
thread.start()
for _ in range(3):
    child = os.fork()
    if not child:
        run_axpy(before)
        run_axpy(compile_text(axpy(8), here, name="child", cache=OFF))
        os._exit(7)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
stop.set()
thread.join()
print("fine")
"""


def test_a_forked_child_compiles() -> None:
    done = subprocess.run(
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", FORK],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (done.stdout, done.stderr, done.returncode) == ("fine\n", "", 0)


EXIT = """
import threading
from tests.runtime.test_cpu import OFF, axpy, compile_text, machine
module = compile_text(axpy(8), machine("host"), name="axpy", cache=OFF)
class Keep:
    caller = module.caller("run")
    def __del__(self):
        print("end")
keep = Keep()
keep.cycle = keep
"""


def test_the_process_ends_in_order() -> None:
    done = subprocess.run(
        [sys.executable, "-c", EXIT], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.stdout, done.stderr, done.returncode) == ("end\n", "", 0)


def test_undefined_symbols_of_an_object() -> None:
    source = codegen.Source(unary("expf"), machine("host"), "exp")
    image = codegen.emit(source)
    assert "expf" in engine.undefined_symbols(image)
    assert "run" not in engine.undefined_symbols(image)


def test_addresses_are_callable_by_others() -> None:
    text = "define i64 @twice(i64 %x) {\n  %y = shl i64 %x, 1\n  ret i64 %y\n}\n"
    module = compile_text(text, machine("host"), name="twice", cache=OFF)
    twice = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64)(module.address("twice"))
    assert twice(21) == 42


def test_code_is_freed_once_also_as_part_of_a_cycle(monkeypatch: pytest.MonkeyPatch) -> None:
    """Finalizers of a cycle run in any order and any thread; who links next frees the code."""
    trackers: list[Any] = []
    code: list[object] = []
    freed: list[object] = []
    link, free = engine._Engine.link, engine._free

    def kept(*args: Any) -> Any:
        trackers.append(link(*args))
        code.append(trackers[-1]._ptr)
        return trackers[-1]

    monkeypatch.setattr(engine._Engine, "link", kept)
    monkeypatch.setattr(engine, "_free", lambda code: (freed.append(code), free(code)))
    cycle: list[object] = [compile_text(axpy(4), machine("host"), name="cycle", cache=OFF)]
    cycle.append(cycle)
    assert [tracker.closed for tracker in trackers] == [True]  # it frees nothing any more
    del cycle
    gc.collect()
    assert freed.count(code[0]) == 0
    compile_text(axpy(4), machine("host"), name="next", cache=OFF)
    assert freed.count(code[0]) == 1
