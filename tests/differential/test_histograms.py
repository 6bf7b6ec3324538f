"""Many updates of few elements: parts that threads share, side by side where copies are small."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tessera as ts
from tessera import dtypes as dt
from tessera.compile import Lowered
from tessera.ir.walk import walk
from tessera.schedule import ops, split_scatter
from tessera.schedule.split_scatter import TURNS
from tessera.target.machine import machine, supported_levels
from tests.differential.levels import check_levels
from tests.pairs import every_pair
from tests.schedule.lowering import traced, typed

LEVELS = [name for name in ("x86-64", "x86-64-v3", "x86-64-v4") if name in supported_levels()]
RNG = np.random.default_rng(3)


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of so few updates that the interpreters are done soon."""
    monkeypatch.setattr(split_scatter, "GRAIN", 1 << 11)


def counted(x: Any) -> Any:
    return ts.segment_sum(ts.ones(x.shape[0]), ts.astype(x, ts.int32) % 32, 32)


def of_an_image(x: Any) -> Any:
    places = ts.astype(ts.reshape(x, (-1,)), ts.int32)
    return ts.segment_sum(ts.ones(places.shape[0]), places, 256)


def highest(x: Any) -> Any:
    return ts.segment_max(ts.astype(x, ts.float32) * 0.5, ts.astype(x, ts.int32) % 7, 7)


def run(fn: Callable[..., Any], x: np.ndarray, level: str = LEVELS[-1]) -> Lowered:
    graph = traced(fn, typed(*x.shape, dtype=dt.uint8))
    return check_levels(graph, [x], machine=machine(level))


def sides(lowered: Lowered) -> list[int]:
    """Of nests whose points run in order, how many updates a point has."""
    assert lowered.schedule is not None
    nests = [op for op in walk(lowered.schedule.body) if isinstance(op, ops.Nest)]
    return [sum(isinstance(op, ops.Store) for op in n.body.ops) for n in nests if n.ordered]


@every_pair(
    ("level", LEVELS),
    ("size", [2048, 3001]),
    ("kind", ["random", "equal"]),
    ("fn", [counted, highest]),
)
def test_levels(fn: Any, kind: str, size: int, level: str) -> None:
    x = RNG.integers(0, 256, size).astype(np.uint8)
    lowered = run(fn, np.full_like(x, 9) if kind == "equal" else x, level)
    found = sides(lowered)
    assert found[0] == TURNS
    assert found[1:] in ([], [1])  # what is left


def test_large_copies_are_updated_one_after_the_other() -> None:
    def wide(x: Any) -> Any:
        return ts.segment_sum(ts.ones(x.shape[0]), ts.astype(x, ts.int32) * 8, 2048)

    lowered = Lowered(traced(wide, typed(140000, dtype=dt.uint8)), machine(LEVELS[-1]))
    assert sides(lowered)[0] == 1


def test_places_of_an_image_need_no_divisions() -> None:
    lowered = run(of_an_image, RNG.integers(0, 256, (30, 47)).astype(np.uint8))
    text = str(lowered.tile)
    assert "fn=mod" not in text
    assert "fn=floordiv" not in text
