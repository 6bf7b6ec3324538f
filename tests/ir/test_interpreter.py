"""What compiling sets of the interpreter, and that it is as it was afterwards."""

from __future__ import annotations

import gc
import sys
import threading
from collections.abc import Iterator

import pytest

import tessera as ts
from tessera.ir.interpreter import short_turns, young_garbage_only


@pytest.fixture(autouse=True)
def thresholds() -> Iterator[None]:
    before = gc.get_threshold()
    gc.set_threshold(700, 9, 8)
    yield
    gc.set_threshold(*before)


@pytest.fixture(autouse=True)
def turns() -> Iterator[None]:
    before = sys.getswitchinterval()
    yield
    assert sys.getswitchinterval() == before


def test_old_objects_are_left_alone_within() -> None:
    with young_garbage_only():
        young, middle, old = gc.get_threshold()
        assert (young, middle) == (700, 9)
        assert old > 1e6
        with young_garbage_only():
            assert gc.get_threshold()[2] == old
        assert gc.get_threshold()[2] == old
    assert gc.get_threshold() == (700, 9, 8)


def test_an_error_leaves_the_collector_as_it_was() -> None:
    with pytest.raises(ValueError, match="no"), young_garbage_only():
        raise ValueError("no")
    assert gc.get_threshold() == (700, 9, 8)


def test_what_others_set_meanwhile_stays() -> None:
    with young_garbage_only():
        gc.set_threshold(500, 5, 5)
    assert gc.get_threshold() == (500, 5, 5)


def test_threads_may_overlap() -> None:
    inside, leave = threading.Event(), threading.Event()

    def other() -> None:
        with young_garbage_only():
            inside.set()
            leave.wait()

    thread = threading.Thread(target=other)
    with young_garbage_only():
        thread.start()
        inside.wait()
    assert gc.get_threshold()[2] > 1e6
    leave.set()
    thread.join()
    assert gc.get_threshold() == (700, 9, 8)


def test_compiling_leaves_it_as_it_was() -> None:
    ts.jit(lambda x: ts.sum(x * 2))(ts.ones(4))
    assert gc.get_threshold() == (700, 9, 8)


def test_threads_get_the_lock_sooner_within() -> None:
    before = sys.getswitchinterval()
    with short_turns():
        within = sys.getswitchinterval()
        assert within < before
        with short_turns():
            assert sys.getswitchinterval() == within
        assert sys.getswitchinterval() == within
    assert sys.getswitchinterval() == before
    with short_turns():
        sys.setswitchinterval(0.01)
    assert sys.getswitchinterval() == 0.01
    sys.setswitchinterval(before)
