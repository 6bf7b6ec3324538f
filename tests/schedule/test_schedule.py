"""The `Schedule` value: frozen, hashable, one JSON form."""

from __future__ import annotations

import dataclasses

import pytest

from tessera.errors import VerifyError
from tessera.schedule.schedule import Schedule


def test_json_round_trip() -> None:
    schedule = Schedule(block=(128, 128), k=64, warps=8, stages=3)
    text = schedule.to_json()
    assert text == '{"block": [128, 128], "k": 64, "stages": 3, "warps": 8}'
    assert Schedule.from_json(text) == schedule
    assert Schedule.from_json("{}") == Schedule()


def test_equal_schedules_are_one_key() -> None:
    assert len({Schedule(block=(8, 32)), Schedule(block=(8, 32)), Schedule()}) == 2


def test_frozen() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        Schedule().k = 3  # type: ignore[misc]


@pytest.mark.parametrize("bad", [{"k": -1}, {"block": (4, -4)}, {"block": (1.5,)}, {"k": True}])
def test_sizes_are_not_negative(bad: dict[str, object]) -> None:
    with pytest.raises(VerifyError, match="not negative"):
        Schedule(**bad)  # type: ignore[arg-type]


def test_unknown_keys() -> None:
    with pytest.raises(VerifyError, match="unknown keys wraps"):
        Schedule.from_json('{"wraps": 3}')
