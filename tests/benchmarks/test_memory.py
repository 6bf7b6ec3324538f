"""What was planned is what five programs need."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))

import memory


@pytest.mark.unchecked
@pytest.mark.parametrize("name", memory.PROGRAMS)
def test_the_plan_holds(name: str) -> None:
    found = memory.measure(name)
    assert abs(found.error) < 0.05
