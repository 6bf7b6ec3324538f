"""Random words on CPUs: those of one block are made once."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tessera as ts
from tessera.compile import Lowered
from tessera.config import config
from tessera.target.machine import host

KEY = np.array([7, 0xDEADBEEF], np.uint32)


def lowered(func: Any) -> Lowered:
    return Lowered(ts.make_graph(func)(ts.asarray(KEY)), host())


def drawn(size: int, step: int) -> Any:
    """Numbers of several neighbouring words each."""

    def func(key: Any) -> Any:
        words = ts.reshape(ts.random.bits(key, (size * step,)), (size, step))
        total = words[:, 0]
        for k in range(1, step):
            total = total * 31 ^ words[:, k]
        return total

    return func


@pytest.mark.parametrize("step", range(1, 10))
def test_words_are_those_of_the_sequence(step: int) -> None:
    words = np.asarray(ts.random.bits(ts.asarray(KEY), (33 * step,))).reshape(33, step)
    want = words[:, 0].copy()
    for k in range(1, step):
        want = want * np.uint32(31) ^ words[:, k]
    with config.update(cache_dir=""):
        (found,) = lowered(drawn(33, step)).executable().run([KEY])
    assert np.array_equal(np.asarray(found), want)


@pytest.mark.parametrize(("step", "blocks"), [(1, 1), (2, 1), (4, 1), (8, 2)])
def test_blocks_that_are_made(step: int, blocks: int) -> None:
    # Two products a round, of which one in the first is known.
    assert str(lowered(drawn(33, step)).schedule).count("fn=mulhi") <= 20 * blocks
