"""Exceptions of signal handlers, which come between any two instructions of the main thread."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest

from tessera.runtime import crew
from tessera.runtime.cache import ObjectCache
from tessera.runtime.codegen import Source
from tessera.runtime.crew import Crew
from tessera.runtime.interrupts import start, uninterrupted
from tests.runtime.test_crew import texts

# Of an interruption in a finalizer Python tells, and goes on.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


def stopped(call: Callable[[], Any], at: int) -> bool:
    """Whether a call comes to so many beginnings and ends of functions, where Python looks for
    signals; the last one gets an exception. Elsewhere Python does not look, as between taking a
    lock and the block that gives it back."""
    count = 0

    def profile(_: FrameType, event: str, __: Any) -> None:
        nonlocal count
        count += event != "c_call"
        if count == at:
            count += 1
            raise KeyboardInterrupt

    before = sys.getprofile()
    sys.setprofile(profile)
    try:
        call()
    except KeyboardInterrupt:
        pass
    finally:
        sys.setprofile(before)
    return count > at


def stop_everywhere(call: Callable[[], Any], least: int) -> None:
    """Stops a call wherever it can be, so many times at least; no thread is left."""
    before, at = set(threading.enumerate()), 1
    while stopped(call, at):
        at += 1
    assert at > least
    end = time.monotonic() + 60
    while not set(threading.enumerate()) <= before:
        assert time.monotonic() < end, threading.enumerate()
        time.sleep(0.001)


def test_functions_end_wherever_one_stops_waiting() -> None:
    begun: list[int] = []
    ended: list[int] = []

    @uninterrupted
    def function() -> None:
        begun.append(1)
        time.sleep(0.0001)
        ended.append(1)

    stop_everywhere(function, 30)
    assert begun == ended != []


def test_threads_start_whole_or_not_at_all() -> None:
    stop_everywhere(lambda: start(threading.Thread(target=time.sleep, args=(0.0001,))), 20)


def test_helpers_start_whole_or_not_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    def nothing(_: Source) -> bytes:
        return b""

    monkeypatch.setattr(crew, "emit", nothing)
    monkeypatch.setattr(crew, "usable_cpus", lambda: 4)
    sources = texts(3)

    def add() -> None:
        with Crew(ObjectCache(None), threads=3) as team:
            for source in sources:
                team.add(source)

    stop_everywhere(add, 100)
    assert not crew._helping


def test_errors_of_functions_and_of_starts() -> None:
    @uninterrupted
    def fail() -> None:
        raise OSError("this one")

    with pytest.raises(OSError, match="this one"):
        fail()
    thread = threading.Thread(target=int)
    start(thread)
    thread.join()
    with pytest.raises(RuntimeError, match="only be started once"):
        start(thread)


def test_functions_run_where_no_thread_can_start(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    assert uninterrupted(threading.current_thread)() is threading.main_thread()
