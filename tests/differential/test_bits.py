"""Random programs give the same bits for any number of threads, in every run, and when they are
loaded from the cache."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tessera.compile import Lowered
from tessera.config import config
from tessera.runtime import programs
from tessera.schedule import grains, heuristics, split
from tests.differential.programs import random_program

BATCH = 6


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
    for seed in range(first, first + BATCH):
        program = random_program(seed)
        graph = program.graph()
        inputs = program.arrays(np.random.default_rng(seed))
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
            assert results == first_found, f"seed {seed}, {what}: {', '.join(program.names)}"
    assert warm >= BATCH - 1  # calls of functions of this process are not kept
    assert shared
