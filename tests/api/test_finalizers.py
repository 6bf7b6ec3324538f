"""What finalizers compute while something is traced: at once, and no part of it."""

from __future__ import annotations

import functools
import gc
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tessera as ts

# Some finalizers run in a collection, which takes long among all that other tests made.
pytestmark = pytest.mark.usefixtures("few_objects")

HELD = ts.asarray(np.arange(1, 5, dtype=np.float32))
triple = ts.jit(lambda x: 3 * x)

COMPUTE: dict[str, tuple[Callable[[], Any], Any]] = {
    "an op": (lambda: HELD + 1, [2, 3, 4, 5]),
    "creation": (lambda: ts.zeros(2) + ts.arange(2), [0, 1]),
    "indexing": (lambda: HELD[1:] + HELD.at[0].set(7)[:3], [9, 5, 7]),
    "a compiled function": (lambda: triple(HELD), [3, 6, 9, 12]),
    "a fresh one": (lambda: ts.jit(lambda x: x * HELD)(HELD), [1, 4, 9, 16]),
    "a gradient": (lambda: ts.grad(lambda x: ts.sum(x * x))(HELD), [2, 4, 6, 8]),
    "vmap": (lambda: ts.vmap(lambda x: x - 1)(HELD), [0, 1, 2, 3]),
    "a loop": (lambda: ts.fori_loop(0, 3, lambda _, x: x * 2, HELD), [8, 16, 24, 32]),
}


class Thing:
    def __init__(self, run: Callable[[], object] | None = None) -> None:
        self.run = run

    def __del__(self) -> None:
        if self.run is not None:
            self.run()


def by_method(run: Callable[[], object]) -> None:
    Thing(run)


def by_collection(run: Callable[[], object]) -> None:
    thing: Any = Thing(run)
    thing.itself = thing
    del thing
    gc.collect()


def by_weak_reference(run: Callable[[], object]) -> None:
    thing = Thing()
    _kept = weakref.ref(thing, lambda _: run())
    del thing


def by_partial(run: Callable[[], object]) -> None:
    def callback(*args: object) -> None:
        run()

    thing = Thing()
    _kept = weakref.ref(thing, functools.partial(callback, 1))
    del thing


def by_finalize(run: Callable[[], object]) -> None:
    thing = Thing()
    weakref.finalize(thing, run)
    del thing


def by_collector(run: Callable[[], object]) -> None:
    def callback(phase: str, info: dict[str, int]) -> None:
        run()

    gc.callbacks.append(callback)
    try:
        gc.collect()
    finally:
        gc.callbacks.remove(callback)


HOW = [by_method, by_collection, by_weak_reference, by_partial, by_finalize, by_collector]


@pytest.mark.parametrize("what", COMPUTE)
@pytest.mark.parametrize("how", HOW)
def test_what_a_finalizer_computes_is_not_traced(
    how: Callable[[Callable[[], object]], None], what: str
) -> None:
    compute, wanted = COMPUTE[what]
    found: list[Any] = []

    def function(x: Any, finalize: bool) -> Any:
        y = x * 2
        if finalize:
            how(lambda: found.append(compute()))
        return ts.sum(y + 1)

    traced = ts.jit(function, static_argnames="finalize")
    plain = str(traced.trace(HELD, finalize=False))
    assert str(traced.trace(HELD, finalize=True)) == plain
    assert found
    for each in found:
        assert type(each) is ts.Array
        np.testing.assert_array_equal(np.asarray(each), wanted)
    assert float(traced(HELD, finalize=True)) == 24


@pytest.mark.parametrize("how", HOW)
def test_in_a_loop_of_a_traced_function(how: Callable[[Callable[[], object]], None]) -> None:
    found: list[Any] = []

    def step(x: Any, _: Any) -> tuple[Any, None]:
        how(lambda: found.append(HELD * 2))
        return x + HELD, None

    result = ts.jit(lambda x: ts.scan(step, x, length=3)[0])(HELD)
    np.testing.assert_array_equal(np.asarray(result), 4 * np.asarray(HELD))
    assert all([type(x) is ts.Array for x in found])


def test_a_function_of_a_finalizer_is_traced_itself() -> None:
    # The finalizer is below the trace, not in the middle of it.
    found: list[Any] = []

    def run() -> None:
        found.append(ts.jit(lambda x: ts.sum(HELD + ts.ones(4)) + x).trace(HELD))

    Thing(run)
    assert "graph.add" in str(found[0])


def test_a_traced_value_in_a_finalizer(recwarn: pytest.WarningsRecorder) -> None:
    messages: list[str] = []

    def attempt(x: Any) -> None:
        try:
            x + 1
        except ts.errors.TracerLeakError as error:
            messages.append(str(error))

    def function(x: Any) -> Any:
        by_method(lambda: attempt(x))
        return x * 2

    graph = str(ts.jit(function).trace(HELD))
    assert "graph.add" not in graph
    (message,) = messages
    assert "use of a traced value of type f32[4] in a finalizer" in message
    assert "x + 1" in message
    assert "keep no traced values in objects with finalizers" in message
