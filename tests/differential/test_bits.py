"""Random programs give the same bits for any number of threads, in every run, and when they are
loaded from the cache."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tessera as ts
from tessera.compile import Lowered
from tessera.config import config
from tessera.runtime import programs
from tessera.schedule import grains, heuristics, split
from tests.differential.levels import graph_of, values
from tests.differential.programs import random_program

BATCH = 6


def softmax(x: Any, y: Any) -> Any:
    return ts.softmax(x, axis=-1) + ts.tanh(y)


@pytest.mark.unchecked
@pytest.mark.parametrize("first", range(50_000, 50_000 + 5 * BATCH, BATCH))
def test_bits(first: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """As if the small arrays were large enough for threads to share."""
    monkeypatch.setattr(heuristics, "WORK", 16)
    monkeypatch.setattr(grains, "GRAIN", 32)
    monkeypatch.setattr(heuristics, "MIN_CHUNK", 4)
    monkeypatch.setattr(split, "GRAIN", 16)
    monkeypatch.delenv("TESSERA_CACHE", raising=False)
    monkeypatch.setattr(programs, "code_version", lambda: "sources")
    shared = warm = 0
    programs_of = [random_program(seed) for seed in range(first, first + BATCH)]
    cases = [
        (", ".join(one.names), one.graph(), one.arrays(np.random.default_rng(first + k)))
        for k, one in enumerate(programs_of)
    ]
    # And one that threads do share.
    shapes = [(40, 48)] * 2
    cases.append(("softmax", graph_of(softmax, shapes), values(shapes)))
    for names, graph, inputs in cases:
        found: dict[str, list[bytes]] = {}
        for turn, threads in enumerate((1, 2, 3, 2)):
            with config.update(cache_dir=str(tmp_path), threads=threads):
                lowered = Lowered(graph)
                executable = lowered.executable()
                if set(lowered.timings) == {"load"}:
                    warm += 1
                else:
                    shared += "target.parallel" in str(lowered.target)
            for run in range(3):
                results = executable.run(inputs)
                found[f"turn {turn}, {threads} threads, run {run}"] = [x.tobytes() for x in results]
        first_found = next(iter(found.values()))
        for what, results in found.items():
            assert results == first_found, f"from seed {first} on, {what}: {names}"
    assert warm >= BATCH  # calls of functions of this process are not kept
    assert shared
