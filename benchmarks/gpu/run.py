"""Tessera beside PyTorch (eager and compiled), Triton and JAX on one GPU, in one run.

Random data, results checked against float64, contenders interleaved, medians of queued calls. The
floor is bytes over the measured copy bandwidth, or operations over the measured matrix rate.

    python benchmarks/gpu/run.py                  # everything
    python benchmarks/gpu/run.py softmax adam     # cases whose names contain a word
    python benchmarks/gpu/run.py --json out.json
    python benchmarks/gpu/run.py --tf32 "product NN f32"
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import statistics
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cases
import torch

import tessera as ts

Run = Callable[[], Any]
ROUNDS = 7
SAMPLE = 8e-3


@dataclass
class Result:
    """What one case gave: microseconds by contender, and the largest relative error of ours."""

    name: str
    floor: float
    what: str
    times: dict[str, float]
    errors: dict[str, float]


def queued(run: Run, count: int) -> float:
    """Seconds a call, of `count` calls that are queued and waited for together."""
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(count):
        run()
    torch.cuda.synchronize()
    return (time.perf_counter() - start) / count


def measure(runs: dict[str, Run]) -> dict[str, float]:
    """Medians, contenders one after the other in each round."""
    counts: dict[str, int] = {}
    for name, run in runs.items():
        queued(run, 2)
        counts[name] = max(3, min(400, int(SAMPLE / max(queued(run, 3), 1e-6))))
    samples: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(ROUNDS):
        for name, run in runs.items():
            samples[name].append(queued(run, counts[name]))
    return {name: statistics.median(s) for name, s in samples.items()}


def ceilings() -> tuple[float, float]:
    """Copy bandwidth in bytes a second (read and written), and bf16 operations a second."""
    return 2 * 4 * (1 << 29) / _copy(), 2 * 8192**3 / _product()


def _copy() -> float:
    x = torch.randn(1 << 29, device="cuda")
    y = torch.empty_like(x)
    return measure({"copy": lambda: y.copy_(x)})["copy"]


def _product() -> float:
    a = torch.randn(8192, 8192, device="cuda").bfloat16()
    return measure({"product": lambda: a @ a})["product"]


def flat(result: Any) -> list[torch.Tensor]:
    """The arrays of a result, as torch tensors."""
    if isinstance(result, (tuple, list)):
        return [t for part in result for t in flat(part)]
    if isinstance(result, torch.Tensor):
        return [result]
    return [torch.from_dlpack(result)]


def error(found: Sequence[torch.Tensor], expected: Sequence[torch.Tensor]) -> float:
    """The largest relative error in norm."""
    worst = 0.0
    for f, e in zip(found, expected, strict=True):
        scale = float(e.double().norm()) or 1.0
        worst = max(worst, float((f.double() - e.double()).norm()) / scale)
    return worst


def run_case(case: cases.Case, bandwidth: float, rate: float) -> Result:
    """Checks and measures one case."""
    args = case.make()
    runs, errors = {}, {}
    expected = flat(case.reference(*args)) if case.reference else None
    for name, bind in case.contenders.items():
        try:
            run = bind(*args)
            result = flat(run())
            torch.cuda.synchronize()
            if expected is not None:
                errors[name] = error(result, expected)
            runs[name] = run
        except Exception as problem:  # a peer that cannot do a case is a line of the report
            print(f"  {case.name}: {name} failed: {type(problem).__name__}: {str(problem)[:300]}")
    floor = max(case.bytes / bandwidth, case.flops / rate)
    what = "bytes" if case.bytes / bandwidth >= case.flops / rate else "flops"
    return Result(case.name, floor, what, measure(runs), errors)


def line(result: Result) -> str:
    """One line of the report."""
    ours = result.times.get("tessera")
    others = {k: v for k, v in result.times.items() if k != "tessera"}
    peers = {k: v for k, v in others.items() if not k.startswith("tessera")}
    best = min(peers, key=lambda k: peers[k]) if peers else ""
    parts = [f"{result.name:34s} floor {result.floor * 1e6:8.1f}"]
    if ours:
        parts.append(f"ours {ours * 1e6:8.1f} ({result.floor / ours:4.2f} of floor)")
        if best:
            parts.append(f"best peer {best} {peers[best] * 1e6:8.1f}: {peers[best] / ours:4.2f}x")
    parts.append(" ".join(f"{k} {v * 1e6:.1f}" for k, v in others.items()))
    if "tessera" in result.errors:
        parts.append(f"err {result.errors['tessera']:.1e}")
    return " | ".join(parts)


def main() -> None:
    """Runs the cases that are asked for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("only", nargs="*", help="words that a case's name contains")
    parser.add_argument("--json", type=Path, help="where to write all figures")
    parser.add_argument("--tf32", action="store_true", help="float32 products by tensor cores")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    if options.tf32:
        os.environ["TESSERA_MATMUL_PRECISION"] = "tf32"
        torch.backends.cuda.matmul.allow_tf32 = True
        if ts.config.matmul_precision != "tf32":
            parser.error("the settings were read before they could be changed")
    torch.manual_seed(0)
    bandwidth, rate = ceilings()
    name = torch.cuda.get_device_name()
    print(f"{name}: copy {bandwidth / 1e9:.0f} GB/s, bf16 product {rate / 1e12:.0f} TFLOP/s")
    print(f"tessera {ts.__version__}, torch {torch.__version__}; microseconds", flush=True)
    results: list[Result] = []
    for case in cases.CASES:
        if options.only and not any(word in case.name for word in options.only):
            continue
        found = run_case(case, bandwidth, rate)
        results.append(found)
        print(line(found), flush=True)
        torch.cuda.empty_cache()
    if options.json:
        record = {
            "date": datetime.date.today().isoformat(),
            "machine": name,
            "copy": bandwidth,
            "bf16": rate,
            "cases": [vars(r) for r in results],
        }
        options.json.write_text(json.dumps(record, indent=1))


if __name__ == "__main__":
    main()
