"""Recordings of steps: the same bits again, from memory and from files, and what differs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tessera as ts
from tessera.config import config
from tessera.errors import CallError, DeterminismError, OptionError, ShapeError
from tessera.replay import compare

COUNT = ts.Ref({"n": 0}, name="count")


@ts.jit
@ts.deterministic(seed=3)
def step(params: Any, x: Any) -> Any:
    """A step with state, random numbers and a narrow dtype."""
    COUNT.update(lambda c: {"n": c["n"] + 1})
    y = ts.nn.dropout(ts.random.next_key(), x, 0.5)
    return {"w": params["w"] + ts.sum(y)}, ts.astype(y, ts.bfloat16)


def arguments() -> tuple[Any, Any]:
    """Of `step`."""
    x = np.random.default_rng(0).standard_normal((4, 5)).astype(np.float32)
    return {"w": ts.ones(3)}, ts.asarray(x)


def test_a_step_runs_again_from_where_it_was() -> None:
    step(*arguments())
    recording = ts.replay.record(step, *arguments())
    assert recording.result[0]["w"].shape == (3,)
    for _ in range(2):
        step(*arguments())
    before = int(COUNT.get()["n"])
    report = recording.run()
    assert report.same
    assert report.count == 5
    assert not report.notes
    assert str(report) == "replay of step: the same bits in 5 arrays"
    report.check()
    assert int(COUNT.get()["n"]) == before - 2


def test_recordings_are_files(tmp_path: Path) -> None:
    path = tmp_path / "step.npz"
    recording = ts.replay.record(step, *arguments())
    recording.save(path)
    assert [p.name for p in tmp_path.iterdir()] == ["step.npz"]
    loaded = ts.replay.load(path)
    assert repr(loaded) == repr(recording)
    assert loaded.outputs["[1]"].dtype == recording.outputs["[1]"].dtype
    assert loaded.run(step, *arguments()).same
    with pytest.raises(CallError, match="is from a file, and has no function"):
        loaded.run()
    with pytest.raises(CallError, match="the arguments have 1 arrays, the recorded ones 2"):
        loaded.run(step, 1.0)


@pytest.mark.parametrize("damage", ["short", "empty", "text", "bits", "other"])
def test_damaged_files_are_no_recordings(tmp_path: Path, damage: str) -> None:
    path = tmp_path / "step.npz"
    ts.replay.record(lambda x: x + 1, ts.ones(50)).save(path)
    content = path.read_bytes()
    if damage == "other":
        np.savez(path, meta=np.array("{}"))
    else:
        half = len(content) // 2
        path.write_bytes({
            "short": content[:half], "empty": b"", "text": b"hello",
            "bits": content[:half] + bytes([content[half] ^ 255]) + content[half + 1 :],
        }[damage])  # fmt: skip
    with pytest.raises(OptionError, match=r"step\.npz is no recording"):
        ts.replay.load(path)
    with pytest.raises(FileNotFoundError):
        ts.replay.load(tmp_path / "none.npz")


def test_what_differs_is_named() -> None:
    state = ts.Ref(0.0, name="noise")

    def drifts(x: Any) -> Any:
        return {"y": x * (1 + 2**-23 * LATER[0])}, ts.sum(x)

    LATER[0] = 0
    recording = ts.replay.record(drifts, ts.asarray([1.0, -2.0, 3.0]))
    LATER[0] = 1
    report = recording.run()
    assert not report.same
    text = str(report)
    assert "the result[0]['y']: 3 elements differ, at most 2 ulp apart; first [0]: 1.0" in text
    assert "the program is another: line " in text
    with pytest.raises(DeterminismError, match="3 elements differ") as caught:
        report.check()
    assert "the program is another" in str(caught.value)
    del state


LATER = [0]


def test_settings_that_differ_are_noted() -> None:
    recording = ts.replay.record(lambda x: x + 1, ts.ones(2))
    with config.update(matmul_precision="tf32"):
        notes = recording.run().notes
    assert notes == ("the precision of products is tf32; it was float32",)


def test_arrays_that_a_step_refers_to_are_part_of_it() -> None:
    w = [ts.ones(3)]
    recording = ts.replay.record(lambda x: x * w[0], ts.ones(3))
    w[0] = ts.ones(3) * 2
    report = recording.run()
    assert not report.same
    assert "it refers to" in report.notes[0]


def test_functions_that_cannot_be_traced_are_recorded_without_refs() -> None:
    def f(x: Any) -> Any:
        return x + 1 if float(ts.sum(x)) > 0 else x

    recording = ts.replay.record(f, ts.ones(3))
    assert recording.program == ""
    assert recording.run().same


def test_another_function_or_another_ref() -> None:
    recording = ts.replay.record(lambda x: (x, x), ts.ones(3))
    with pytest.raises(CallError, match="recorded is `\\[0\\]`, `\\[1\\]`"):
        recording.run(lambda x: x)
    ref = ts.Ref(ts.ones(2), name="state")
    small = ts.replay.record(lambda: ref.get())
    other = ts.Ref(ts.ones(3), name="state")
    with pytest.raises(ShapeError, match="ref 0 `state` is f32"):
        small.run(lambda: other.get())


@pytest.mark.parametrize(
    ("a", "b", "ulps"),
    [
        (np.float32([1.0, -0.0]), np.float32([1.0, 0.0]), 0),
        (np.float64([1.0]), np.nextafter([1.0], [2.0]), 1),
        (np.float32([np.nan]), np.float32([1.0]), None),
        (np.int32([1, 2]), np.int32([1, 3]), None),
    ],
)
def test_bits_are_compared(a: Any, b: Any, ulps: int | None) -> None:
    assert compare("x", a, a.copy()) is None
    found = compare("x", a, b)
    assert found is not None
    assert found.count == 1
    assert found.ulps == ulps


def test_arrays_of_other_types_differ() -> None:
    found = compare("x", np.zeros(2, np.float32), np.zeros(3, np.float32))
    assert str(found) == "x: 3 elements differ; first it: f32[2] recorded, f32[3] now"
