"""Calling native code: words, arrays, errors, the lock of the interpreter, and the fallback."""

from __future__ import annotations

import gc
import sys
import threading
import time
import weakref
from collections.abc import Callable

import numpy as np
import pytest

from tessera.runtime import call
from tessera.runtime.cache import ObjectCache
from tessera.runtime.call import Caller, make_builtin, make_caller
from tessera.runtime.cpu import NativeModule, compile_text
from tessera.runtime.memory import pointer
from tessera.target.machine import machine

pytestmark = pytest.mark.usefixtures("few_objects")

# Copies words[2:] to the memory at words[0]; words[1] says how many.
COPY = """
define void @run(ptr %words) {
entry:
  %out = load ptr, ptr %words
  %at = getelementptr i64, ptr %words, i64 1
  %n = load i64, ptr %at
  br label %head
head:
  %i = phi i64 [ 0, %entry ], [ %next, %loop ]
  %done = icmp eq i64 %i, %n
  br i1 %done, label %exit, label %loop
loop:
  %next = add i64 %i, 1
  %k = add i64 %i, 2
  %from = getelementptr i64, ptr %words, i64 %k
  %w = load i64, ptr %from
  %to = getelementptr i64, ptr %out, i64 %i
  store i64 %w, ptr %to
  br label %head
exit:
  ret void
}
"""

MakeCaller = Callable[..., Caller]


@pytest.fixture(scope="module")
def copy() -> NativeModule:
    return compile_text(COPY, machine("host"), name="copy", cache=ObjectCache(None))


@pytest.fixture(params=["native", "ctypes"])
def make(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> MakeCaller:
    if request.param == "ctypes":
        monkeypatch.setattr(call, "_shim", lambda: None)
    return make_caller


@pytest.mark.parametrize("release_gil", [True, False])
@pytest.mark.parametrize("count", [0, 1, 2, 8, 509, 510, 511, 600, 5000])
def test_words_arrive(copy: NativeModule, make: MakeCaller, count: int, release_gil: bool) -> None:
    caller = make(copy.address("run"), owner=copy, release_gil=release_gil)
    out = np.zeros(count + 1, "i8")
    words = [(-1) ** i * i * 12345678901 for i in range(count)]
    assert caller(out, count, *words) is None
    assert out.tolist() == [*words, 0]


@pytest.mark.parametrize(
    "number",
    [0, 1, -1, 2**30 - 1, 2**30, 2**60, 2**62, 2**63 - 1, -(2**63), 2**63, 2**64 - 1, 2**64 + 5],
)
def test_integers_are_taken_modulo_64_bits(
    copy: NativeModule, make: MakeCaller, number: int
) -> None:
    out = np.zeros(1, "u8")
    make(copy.address("run"), owner=copy)(out, 1, number)
    assert int(out[0]) == number % 2**64


def test_arrays_stand_for_their_memory(copy: NativeModule, make: MakeCaller) -> None:
    arrays = [
        np.zeros((3, 4), "f4"),
        np.zeros(10, "i1")[3:],
        np.zeros(()),
        np.zeros(0),
        np.array(["text", None], dtype=object),
        np.frombuffer(b"read only data", "u1"),
    ]
    out = np.zeros(len(arrays), "i8")
    make(copy.address("run"), owner=copy)(out, len(arrays), *arrays)
    assert out.tolist() == [pointer(array) for array in arrays]


def test_numpy_integers_and_bools_are_integers(copy: NativeModule, make: MakeCaller) -> None:
    out = np.zeros(3, "i8")
    make(copy.address("run"), owner=copy)(out, np.int32(3), np.int64(-7), True, np.uint8(255))
    assert out.tolist() == [-7, 1, 255]


class Subclass(np.ndarray):
    """An array whose data nobody promised to be where an array's is."""


@pytest.mark.parametrize("wrong", [1.5, "x", None, np.float32(1), np.zeros(2).view(Subclass)])
@pytest.mark.parametrize("count", [4, 1000])
def test_what_is_no_word_is_a_type_error(copy: NativeModule, wrong: object, count: int) -> None:
    caller = make_caller(copy.address("run"), owner=copy)
    out = np.zeros(count, "i8")
    with pytest.raises(TypeError):
        caller(out, count, *[1] * (count - 1), wrong)
    assert not out.any()
    caller(out, 1, 5)
    assert out[0] == 5


def test_calls_leave_references_as_they_were(copy: NativeModule) -> None:
    caller = make_caller(copy.address("run"), owner=copy)
    out, word = np.zeros(1, "i8"), 2**40 + 1
    before = sys.getrefcount(out), sys.getrefcount(word), sys.getrefcount(None)
    for _ in range(10_000):
        caller(out, 1, word)
    after = sys.getrefcount(out), sys.getrefcount(word), sys.getrefcount(None)
    assert before[:2] == after[:2]
    # Others use None as well, so only a drift counts.
    assert abs(before[2] - after[2]) < 1000


def test_the_owner_lives_as_long_as_the_caller(copy: NativeModule, make: MakeCaller) -> None:
    class Owner:
        pass

    owner = Owner()
    alive = weakref.ref(owner)
    caller = make(copy.address("run"), owner=owner)
    del owner
    gc.collect()
    assert alive() is not None
    del caller
    gc.collect()
    assert alive() is None


SLEEP = """
define void @run(ptr %words) {
  %us = load i32, ptr %words
  %r = call i32 @usleep(i32 %us)
  ret void
}
declare i32 @usleep(i32)
"""


@pytest.mark.parametrize("release_gil", [True, False])
def test_other_threads_run_if_asked(make: MakeCaller, release_gil: bool) -> None:
    module = compile_text(SLEEP, machine("host"), name="sleep", cache=ObjectCache(None))
    sleep = make(module.address("run"), owner=module, release_gil=release_gil)
    times: list[float] = []
    stop = threading.Event()

    def watch() -> None:
        while not stop.is_set():
            times.append(time.perf_counter())
            time.sleep(0.001)

    thread = threading.Thread(target=watch)
    thread.start()
    while not times:
        time.sleep(0.001)
    start = time.perf_counter()
    sleep(300_000)
    end = time.perf_counter()
    stop.set()
    thread.join()
    assert end - start >= 0.29
    # Away from both ends: the watcher may have been between two steps there.
    inside = [t for t in times if start + 0.05 < t < end - 0.05]
    assert bool(inside) == release_gil


def test_a_builtin_speaks_the_vector_call() -> None:
    text = """
define ptr @second(ptr %self, ptr %args, i64 %count) {
  %few = icmp ult i64 %count, 2
  br i1 %few, label %own, label %other
own:
  call void @Py_IncRef(ptr %self)
  ret ptr %self
other:
  %at = getelementptr ptr, ptr %args, i64 1
  %arg = load ptr, ptr %at
  call void @Py_IncRef(ptr %arg)
  ret ptr %arg
}
declare void @Py_IncRef(ptr)
"""
    module = compile_text(text, machine("host"), name="second", cache=ObjectCache(None))
    receiver = object()
    second = make_builtin(module.address("second"), receiver=receiver, owner=module, name="second")
    assert second(1, "b", 3) == "b"
    assert second() is receiver
    assert second.__name__ == "second"
