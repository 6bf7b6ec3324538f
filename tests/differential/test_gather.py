"""Elements at places that data tell, in vectors."""

from __future__ import annotations

import re
from typing import Any

import numpy as np

from tessera import dtypes as dt
from tessera.graph.ops.gather import IndexMode, gather
from tessera.target.machine import machine, supported_levels
from tests.differential.levels import check_levels
from tests.pairs import every_pair
from tests.schedule.lowering import traced, typed

LEVELS = [name for name in ("x86-64", "x86-64-v3", "x86-64-v4") if name in supported_levels()]


@every_pair(
    ("level", LEVELS),
    ("size", [1, 100, 127, 200, 255, 256, 300, 40_000]),
    ("dtype", [dt.int8, dt.uint8, dt.int16, dt.uint16, dt.int32, dt.uint32]),
)
def test_narrow_places_are_compared_as_they_are(dtype: dt.DType, size: int, level: str) -> None:
    def fn(x: Any, places: Any) -> Any:
        return gather(x, [places], [0], IndexMode.DROP)

    info = np.iinfo(dtype.np)
    rng = np.random.default_rng(size)
    places = rng.integers(max(info.min, -2 * size), min(info.max, 2 * size), 67, dtype.np)
    places[:4] = info.min, info.max, 0, min(size - 1, info.max)
    inputs = [rng.standard_normal(size).astype(np.float32), places]
    graph = traced(fn, typed(size), typed(67, dtype=dtype))
    lowered = check_levels(graph, inputs, machine=machine(level))
    text = str(lowered.tile)
    widened = set(re.findall(r"(%\d+) = tile.cast", text))
    compared = set(re.findall(r"tile.map\(\[(%\d+), %\d+\]\) \{fn=[gl]e\}", text))
    assert compared or size > info.max  # no place is beyond the end, or before the beginning
    assert compared.isdisjoint(widened)
