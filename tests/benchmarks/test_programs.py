"""Every program of the CPU suite computes what it should, in a tiny size; nothing is timed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[2] / "benchmarks"
sys.path.insert(0, str(ROOT))

from cpu import compare, libraries, report, roof, running, suite  # noqa: E402

PROGRAMS = suite.programs()


TESTED = [(p, c) for p in PROGRAMS for c in ("tessera", "numpy") if c in p.build]


@pytest.mark.parametrize(("program", "contender"), TESTED, ids=lambda x: getattr(x, "name", x))
def test_program_is_right(program: Any, contender: str) -> None:
    library = libraries.load(contender)
    arguments = program.make(np.random.default_rng(3), **program.tiny)
    fn = program.build[contender](library, **program.tiny)
    result = library.wait(fn(*library.arrays(arguments)))
    found = compare.viewed(program, arguments, result)
    expected = compare.reference(program, program.tiny, arguments)
    assert compare.error(found, expected) <= program.tolerance


@pytest.mark.skipif(len(roof.cores()) < 2, reason="two cores that take turns")
def test_a_word_goes_from_core_to_core() -> None:
    found = [roof.Handover().nanoseconds() for _ in range(3)]
    assert all(1 < one < 1e9 for one in found)


def test_names_choose_cases() -> None:
    labels = [case.label for case in suite.cases(["gemm f32 n="], quick=False)]
    assert labels[0] == "gemm f32 n=64"
    assert len(labels) == len(suite.find("gemm f32").sizes)
    quick = suite.cases([], quick=True)
    assert {case.program.name for case in quick} == {p.name for p in PROGRAMS}


def test_costs_are_positive_and_floors_follow_them() -> None:
    rates = {"f32": 1e11, "f64": 5e10, "int8": 4e11, "bf16": 2e11}
    ceiling = roof.Roof(1, {1 << 14: 1e11, 1 << 28: 1e10}, rates)
    for case in suite.cases([], quick=False):
        cost = case.program.cost(**case.size)
        assert cost.bytes > 0 or cost.operations > 0 or case.program.bound, case.label
        seconds, what = ceiling.floor(cost)
        assert what in ("bytes", "operations")
        assert seconds >= cost.operations / ceiling.rates[cost.kind]


def test_a_wrong_result_is_an_error() -> None:
    right = [np.arange(4.0)]
    assert compare.error([np.arange(4.0)], right) == 0
    assert compare.error([np.asarray([0, 1, 2, 4.0])], right) == pytest.approx(1 / 3)
    assert compare.error([np.asarray([0, 1, 2, np.nan])], right) == float("inf")
    assert compare.error([], right) == float("inf")


def test_the_suite_runs_and_leaves_out_what_is_missing(tmp_path: Path) -> None:
    found = tmp_path / "found.json"
    options = ["--quick", "--threads", "1", "--budget", "0.01", "--contenders", "tessera,numpy"]
    command = [sys.executable, str(ROOT / "run.py"), *options, "--json", str(found), "eager x + y"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    assert "call, eager x + y n=8 [1t] | floor" in done.stdout
    (row,) = report.load_rows(json.loads(found.read_text()))
    assert set(row.contenders) == {"tessera", "numpy"}
    assert all(m.samples and m.error < 1e-6 for m in row.contenders.values())


def test_the_suite_runs_beside_another_version(tmp_path: Path) -> None:
    found = tmp_path / "found.json"
    options = ["--quick", "--threads", "1", "--budget", "0.01", "--before", str(ROOT.parent)]
    command = [sys.executable, str(ROOT / "run.py"), *options, "--json", str(found), "eager x + y"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    (row,) = report.load_rows(json.loads(found.read_text()))
    assert set(row.contenders) == {"tessera", "tessera before"}
    assert all(m.samples and not m.problem for m in row.contenders.values())
    command[command.index("--before") + 1] = str(tmp_path)
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 2
    assert f"--before: there is no tessera in {tmp_path}" in done.stderr


class _Missing:
    """What a worker's process is asked through, without the process."""

    def __init__(self, *arguments: object) -> None:
        del arguments

    def answer(self, limit: float) -> None:
        raise ImportError(f"No module, within {limit:.0f} s")


def test_a_missing_peer_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running, "Worker", _Missing)
    runner = running.Runner(["jax"], 0.01, 1)
    runner.roofs[1] = roof.Roof(1, {1 << 14: 1e11}, {"f32": 1e11})
    (case,) = suite.cases(["eager x + y"], quick=True)
    row = runner.measure(case, 1)
    assert row.contenders == {}
    assert runner.missing == {"jax": "No module, within 120 s"}


def test_bars_are_for_tessera() -> None:
    row = running.Row("call", "call, 3 arrays", "costs", 1, 8.0, 1.0, 1e-9, "the call")
    row.contenders["numpy"] = running.Measured(1e-3)
    assert suite.late([row]) == []
    row.contenders["tessera"] = running.Measured(0.2e-6)
    assert suite.late([row]) == []
    row.contenders["tessera"] = running.Measured(0.3e-6)
    assert suite.late([row]) == ["call: 0.3 us, at most 0.25"]


def test_the_higher_ceilings_of_two_measurements_count() -> None:
    first = roof.Roof(2, {1 << 14: 3e11, 1 << 24: 1e11}, {"f32": 1e11})
    second = roof.Roof(2, {1 << 14: 2e11, 1 << 24: 2e11}, {"f32": 2e11})
    assert first.best(second) == roof.Roof(2, {1 << 14: 3e11, 1 << 24: 2e11}, {"f32": 2e11})


def test_report_has_ratios_and_says_what_failed() -> None:
    row = running.Row("case", "case", "rows", 2, 8.0, 1.0, 1e-6, "bytes")
    row.contenders["tessera"] = running.Measured(1e-3, 1e-3, 1e-3, 1e-3, 5)
    row.contenders["jax"] = running.Measured(2e-3, 2e-3, 2e-3, 2e-3, 5)
    row.contenders["numpy"] = running.Measured(problem="wrong: the error is 1.0e+00")
    assert report.ratio(row, "jax") == pytest.approx(2)
    assert "jax 2 ms (2 ms to 2 ms) 2.00x" in report.line(row)
    assert "numpy FAILED: wrong" in report.line(row)
    ceiling = roof.Roof(2, {1 << 14: 1e11}, {"f32": 1e11})
    record = report.record([row], {2: ceiling})
    assert report.load_rows(record) == [row]
    assert report.load_rows(json.loads(report.as_text(record))) == [row]
    assert "| case | 2 | 1 us | bytes |  |  | 1 ms | jax | 2 ms | 2.00 |" in report.markdown([row])
    assert "failed</td>" in report.page([row], {2: ceiling})


def test_what_memory_bounds_is_measured_beside_a_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running, "BEYOND", 0)
    runner = running.Runner(["tessera"], 0.01, 60)
    runner.roofs[1] = roof.Roof(1, {1 << 14: 1e11}, {"f32": 1e15})
    program = suite.find("transpose")
    try:
        row = runner.measure(suite.Case(program, program.tiny), 1)
    finally:
        runner.close()
    assert row.triad is not None
    assert row.stream is not None
    for moved in (row.triad, row.stream):
        assert moved.samples > 0
        assert moved.median > 0
    assert set(row.contenders) == {"tessera"}
    row.stream.median = 0.5 * row.contenders["tessera"].median
    assert report.share(row.stream, row) == pytest.approx(0.5)
    assert " 0.50 | triad" in report.line(row)
    assert f"  behind memory: {row.case}: 0.50 of STREAM" in report.summary([row])
    assert report.load_rows(report.record([row], runner.roofs)) == [row]
    assert "<td>0.50</td>" in report.page([row], runner.roofs)
