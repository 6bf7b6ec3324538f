"""Products with weights of which a byte holds two, at every level."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import tessera as ts
from tessera.compile import Lowered
from tessera.dtypes import float32, int32, uint8
from tessera.target.machine import machine, supported_levels
from tests.differential.levels import check_levels
from tests.pairs import every_pair
from tests.schedule.lowering import traced, typed

LEVELS = [name for name in ("x86-64", "x86-64-v3", "x86-64-v4") if name in supported_levels()]
RNG = np.random.default_rng(3)
GROUP = 32
"""Weights that share a scale."""


def halves(w: Any) -> list[Any]:
    """The low and the high half of each byte, as numbers."""
    return [ts.astype(part, ts.float32) - 8 for part in (w & 15, w >> 4)]


def scaled(w: Any, scales: Any) -> Any:
    """Weights [deep, columns] times the scales of their groups."""
    deep, columns = w.shape
    groups = ts.reshape(w, (deep // GROUP, GROUP, columns)) * scales[:, None, :]
    return ts.reshape(groups, (deep, columns))


def across(x: Any, w: Any, scales: Any) -> Any:
    """Two rows of a column in a byte."""
    deep, columns = 2 * w.shape[0], w.shape[1]
    return x @ scaled(ts.reshape(ts.stack(halves(w), axis=1), (deep, columns)), scales)


def along(x: Any, w: Any, scales: Any) -> Any:
    """Two weights of a result in a byte, as a linear layer has them."""
    columns, deep = w.shape[0], 2 * w.shape[1]
    rows = ts.reshape(ts.stack(halves(w), axis=-1), (columns, deep))
    return x @ scaled(ts.matrix_transpose(rows), scales)


def in_words(x: Any, w: Any, scales: Any) -> Any:
    """Eight rows of a column in a word."""
    places = ts.arange(0, 32, 4, dtype=ts.int32)
    found = ts.astype((w[:, None, :] >> places[None, :, None]) & 15, ts.float32) - 8
    return x @ scaled(ts.reshape(found, (8 * w.shape[0], w.shape[1])), scales)


def run(fn: Callable[..., Any], rows: int, deep: int, columns: int, **options: Any) -> Lowered:
    kinds = {across: (deep // 2, columns), along: (columns, deep // 2)}
    shape = kinds.get(fn, (deep // 8, columns))
    dtype = int32 if fn is in_words else uint8
    x = RNG.integers(-4, 5, (rows, deep)).astype(np.float32)
    w = RNG.integers(0, 256 if dtype is uint8 else 2**31, shape).astype(dtype.np)
    scales = RNG.integers(1, 4, (deep // GROUP, columns)).astype(np.float32)
    types = [typed(*v.shape, dtype=t) for v, t in ((x, float32), (w, dtype), (scales, float32))]
    return check_levels(traced(fn, *types), [x, w, scales], **options)


@every_pair(
    ("level", LEVELS),
    ("rows", [1, 2, 8, 33]),
    ("fn", [across, along, in_words]),
)
def test_levels(fn: Any, rows: int, level: str) -> None:
    deep = {1: 128, 33: 96}.get(rows, 64)
    run(fn, rows, deep, 40, machine=machine(level))


@pytest.mark.parametrize("level", LEVELS)
def test_one_row_goes_along_memory(level: str) -> None:
    lowered = run(along, 1, 256, 24, machine=machine(level))
    assert "whose elements are neighbours in memory" in str(lowered.schedule)
    assert "//" not in str(lowered.schedule)


@pytest.mark.skipif("x86-64-v4" not in LEVELS, reason="panels by themselves are those of AVX-512")
def test_panels_are_turned() -> None:
    """Where a product goes panel by panel, bytes are read along memory, too."""
    small = replace(machine("x86-64-v4"), l2=1 << 14)
    text = str(run(along, 8, 128, 1024, machine=small).schedule)
    assert "panels of the second operand" in text
    assert "//" not in text
