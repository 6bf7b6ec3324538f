"""Large buffers that lie where an output will be written later."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tessera as ts
from tessera.schedule.plan import LENT
from tessera.schedule.rebuild import kernels
from tessera.schedule.types import PlaceKind

SIDE = 300
BYTES = SIDE * SIDE * 4
X = np.random.default_rng(2).uniform(-1, 1, (SIDE, SIDE)).astype(np.float32)


def summed(x: Any, axis: int) -> Any:
    """Something that is stored: it is read along both axes."""
    return ts.cumsum(x, axis=axis)


# The function, and how many buffers of a matrix its arena has.
PROGRAMS: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any], int]] = {
    "one after the other": (
        lambda x: summed(summed(x, 0), 1) * 2,
        lambda x: np.cumsum(np.cumsum(x, 0), 1) * 2,
        1,
    ),
    "two outputs": (
        lambda x: (summed(summed(x, 0), 1), summed(summed(-x, 0), 1)),
        lambda x: (np.cumsum(np.cumsum(x, 0), 1), np.cumsum(np.cumsum(-x, 0), 1)),
        1,
    ),
    "needed until the end": (
        lambda x: (lambda y: summed(summed(y, 1).T, 1) + y)(summed(x, 0)),
        lambda x: (lambda y: np.cumsum(np.cumsum(y, 1).T, 1) + y)(np.cumsum(x, 0)),
        2,
    ),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_arenas_are_smaller(name: str) -> None:
    fn, numpy, most = PROGRAMS[name]
    assert BYTES >= LENT
    lowered = ts.jit(fn).lower(X)
    assert lowered.memory().arena // BYTES <= most  # besides rows that scans carry
    found, wanted = ts.jit(fn)(X), numpy(X)
    for a, b in zip(ts.pytree.leaves(found), ts.pytree.leaves(wanted), strict=True):
        np.testing.assert_allclose(np.asarray(a), b, rtol=1e-3, atol=1e-3)


def test_the_memory_of_an_output_is_lent() -> None:
    lowered = ts.jit(lambda x: ts.flip(summed(summed(x, 0), 1))).lower(X)
    places = [place for kernel in kernels(lowered.schedule.body) for place in kernel.places]
    assert sum(place.kind is PlaceKind.OUTPUT for place in places) == 2
    assert lowered.memory().arena <= BYTES


def test_small_outputs_are_not_lent() -> None:
    lowered = ts.jit(lambda x: ts.flip(summed(summed(x, 0), 1))).lower(X[:50, :50])
    places = [place for kernel in kernels(lowered.schedule.body) for place in kernel.places]
    assert sum(place.kind is PlaceKind.OUTPUT for place in places) == 1


def test_a_loop_uses_the_memory_of_an_output() -> None:
    def fn(x: Any) -> Any:
        y = ts.fori_loop(0, 3, lambda _, y: summed(summed(y, 0) * 0.01, 1) * 0.01, x)
        return summed(y, 0) * 2

    found, wanted = ts.jit(fn)(X), X
    for _ in range(3):
        wanted = np.cumsum(np.cumsum(wanted, 0) * np.float32(0.01), 1) * np.float32(0.01)
    np.testing.assert_allclose(np.asarray(found), np.cumsum(wanted, 0) * 2, rtol=1e-3, atol=1e-5)


def test_what_nobody_reads_is_written_elsewhere() -> None:
    """An output of a kernel without readers does not lie where another one of its outputs does."""

    def fn(x: Any) -> Any:
        step = lambda _, c: (c[0] + c[1], c[1] * 0.5)  # noqa: E731
        return ts.fori_loop(0, 4, step, (ts.ones_like(x), x))[0]

    found = ts.jit(fn)(X)
    np.testing.assert_allclose(np.asarray(found), 1 + X * 1.875, rtol=1e-5, atol=1e-5)
    (loop,) = [k for k in kernels(ts.jit(fn).lower(X).schedule.body) if k.label == "scan"]
    assert len(loop.places) == len({*loop.places}) == 2
