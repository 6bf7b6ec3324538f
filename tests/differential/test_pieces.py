"""Nests that are cut where conditions change: what is computed, and where that is done."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tessera as ts
from tessera import dtypes as dt
from tessera.compile import Lowered
from tessera.ir.walk import walk
from tessera.schedule import ops
from tessera.target.machine import machine, supported_levels
from tests.differential.levels import check_levels
from tests.pairs import every_pair
from tests.schedule.lowering import traced, typed

LEVELS = [name for name in ("x86-64", "x86-64-v3", "x86-64-v4") if name in supported_levels()]
RNG = np.random.default_rng(5)


def haar(x: Any) -> Any:
    """Sums and differences of neighbours, side by side, along both axes."""
    y = ts.concat([x[:, 0::2] + x[:, 1::2], x[:, 0::2] - x[:, 1::2]], axis=1)
    return ts.concat([y[0::2] + y[1::2], y[0::2] - y[1::2]], axis=0)


def thirds(x: Any) -> Any:
    """Three parts, of which the middle one is another array's."""
    y = ts.concat([x[:, 0::3], x[:, 1::3] * 2, x[:, 2::3] + 1], axis=1)
    return y * y[:1]


def padded(x: Any) -> Any:
    """What lies outside is a number."""
    return ts.pad(x[:, ::2], ((0, 0), (100, 70)), constant_values=3) + 1


def shifted(x: Any) -> Any:
    """Conditions near an end, too."""
    y = ts.concat([x[:, 0::2], x[:, 1::2]], axis=1)
    return ts.pad(y[:, :-1], ((0, 0), (1, 0))) - y


def nests(lowered: Lowered) -> list[ops.Nest]:
    assert lowered.schedule is not None
    return [op for op in walk(lowered.schedule.body) if isinstance(op, ops.Nest)]


def values(*shape: int) -> np.ndarray:
    return RNG.integers(0, 7, shape).astype(np.float32)


def run(fn: Callable[..., Any], x: np.ndarray, level: str = LEVELS[-1]) -> Lowered:
    graph = traced(fn, typed(*x.shape, dtype=dt.float32))
    return check_levels(graph, [x], machine=machine(level))


@every_pair(
    ("level", LEVELS),
    ("shape", [(2, 6), (64, 252), (128, 384), (66, 300)]),
    ("fn", [haar, thirds, padded, shifted]),
)
def test_levels(fn: Any, shape: tuple[int, int], level: str) -> None:
    run(fn, values(*shape), level)


def test_what_lies_apart_is_read_without_conditions() -> None:
    found = nests(run(haar, values(256, 512)))
    assert len(found) == 4  # each half of the rows, and of the columns
    for nest in found:
        assert not any([isinstance(op, ops.Holds) for op in nest.body.ops])
        assert not any([op.where for op in nest.body.ops if isinstance(op, ops.Load)])


def test_conditions_near_an_end_stay() -> None:
    first, second = nests(run(shifted, values(128, 384)))
    guarded = [[op for op in n.body.ops if getattr(op, "where", ())] for n in (first, second)]
    assert [len(found) for found in guarded] == [2, 3]


@pytest.mark.parametrize(
    "fn",
    [
        lambda x: ts.concat([x[:, 256:], x[:, :256]], axis=1) * x,  # neighbours
        lambda x: ts.roll(x, 100, axis=0) + x,
    ],
)
def test_whole_rows_are_not_cut(fn: Any) -> None:
    assert len(nests(run(fn, values(256, 512)))) == 1


def test_short_pieces_are_not_cut() -> None:
    assert len(nests(run(haar, values(16, 64)))) == 2
