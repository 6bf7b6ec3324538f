"""Tessera beside JAX and NumPy, in one run: a training step, five small kernels, compile time.

All contenders run interleaved on the same data with the same threads; results are checked against
float64. Prints medians and ratios (peer's time over ours: above 1 means that Tessera is faster),
and writes JSON where asked.

    make bench                                    # everything
    python benchmarks/run.py --only softmax       # one case
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

Run = Callable[[], Any]


@dataclass
class Case:
    """One comparison.

    Attributes:
        name: what is computed.
        floor: what bounds it, in words.
        runs: contender -> function that runs once and waits for its result.
        compile: contender -> seconds for the first call.
        check: contender -> largest relative error against float64.
    """

    name: str
    floor: str
    runs: dict[str, Run] = field(default_factory=dict)
    compile: dict[str, float] = field(default_factory=dict)
    check: dict[str, float] = field(default_factory=dict)


def first(fn: Run) -> tuple[float, Any]:
    """Seconds and result of the first call."""
    start = time.perf_counter()
    result = fn()
    return time.perf_counter() - start, result


def measure(case: Case, rounds: int, budget: float) -> dict[str, list[float]]:
    """Seconds per call, contenders interleaved; each sample is a batch of calls of about a
    millisecond.
    """
    repeats: dict[str, int] = {}
    for name, run in case.runs.items():
        run()
        start = time.perf_counter()
        run()
        once = max(time.perf_counter() - start, 1e-7)
        repeats[name] = max(1, min(1000, int(1e-3 / once)))
    samples: dict[str, list[float]] = {name: [] for name in case.runs}
    deadline = time.perf_counter() + budget
    for _ in range(rounds):
        for name, run in case.runs.items():
            count = repeats[name]
            start = time.perf_counter()
            for _ in range(count):
                run()
            samples[name].append((time.perf_counter() - start) / count)
        if time.perf_counter() > deadline:
            break
    return samples


def error(found: Any, expected: np.ndarray) -> float:
    """The largest error relative to the largest magnitude."""
    scale = float(np.max(np.abs(expected))) or 1.0
    return float(np.max(np.abs(np.asarray(found, np.float64) - expected))) / scale


# --- small kernels ---


def kernels(xp: Any, softmax: Any) -> dict[str, Callable[..., Any]]:
    """The five kernels in one namespace."""
    return {
        "elementwise chain": lambda x, y: xp.tanh(x * y + 1.0) * x - xp.exp(-y * y),
        "row sums": lambda x, y: xp.sum(x * y, axis=1),
        "column means": lambda x, y: xp.mean(x, axis=0),
        "softmax": lambda x, y: softmax(x),
        "matmul + bias": lambda x, y: x @ y.T + y[0, 0],
    }


def numpy_softmax(x: np.ndarray) -> np.ndarray:
    """Softmax over the last axis."""
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def kernel_cases(contenders: list[str], n: int, m: int) -> list[Case]:
    """The five kernels on n x m float32 arrays."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(n, m)).astype(np.float32)
    y = rng.normal(size=(n, m)).astype(np.float32)
    wide = kernels(np, numpy_softmax)
    cases: list[Case] = []
    for name in wide:
        case = Case(f"{name} [{n}, {m}]", "memory" if "matmul" not in name else "multiply-adds")
        expected = wide[name](x.astype(np.float64), y.astype(np.float64))
        if "numpy" in contenders:
            case.runs["numpy"] = lambda f=wide[name]: f(x, y)
        if "tessera" in contenders:
            import tessera as ts

            f = ts.jit(kernels(ts, lambda v: ts.softmax(v, axis=-1))[name])
            tx, ty = ts.asarray(x), ts.asarray(y)
            case.compile["tessera"], out = first(lambda f=f, a=tx, b=ty: f(a, b))
            case.check["tessera"] = error(out, expected)
            case.runs["tessera"] = lambda f=f, a=tx, b=ty: f(a, b)
        if "jax" in contenders:
            import jax
            import jax.numpy as jnp

            g = jax.jit(kernels(jnp, jax.nn.softmax)[name])
            jx, jy = jnp.asarray(x), jnp.asarray(y)
            case.compile["jax"], out = first(lambda g=g, a=jx, b=jy: g(a, b).block_until_ready())
            case.check["jax"] = error(out, expected)
            case.runs["jax"] = lambda g=g, a=jx, b=jy: g(a, b).block_until_ready()
        cases.append(case)
    return cases


# --- the training step of examples/digits.py ---

SIZES = (64, 128, 64, 10)


def make_step(
    xp: Any, vmap: Any, value_and_grad: Any, relu: Any, log_softmax: Any, one_hot: Any
) -> Any:
    """One step of Adam on a small network."""

    def logits(params: Any, image: Any) -> Any:
        hidden = image
        for k in range(len(SIZES) - 1):
            hidden = hidden @ params[f"w{k}"] + params[f"b{k}"]
            if k + 2 < len(SIZES):
                hidden = relu(hidden)
        return hidden

    def loss(params: Any, images: Any, labels: Any) -> Any:
        scores = vmap(logits, in_axes=(None, 0))(params, images)
        return -xp.mean(xp.sum(log_softmax(scores, axis=-1) * one_hot(labels, 10), axis=-1))

    def step(params: Any, m: Any, v: Any, t: Any, images: Any, labels: Any) -> Any:
        value, grads = value_and_grad(loss)(params, images, labels)
        rate = 2e-3 * xp.sqrt(1 - 0.999**t) / (1 - 0.9**t)
        m = {k: 0.9 * m[k] + 0.1 * g for k, g in grads.items()}
        v = {k: 0.999 * v[k] + 0.001 * g * g for k, g in grads.items()}
        params = {k: p - rate * m[k] / (xp.sqrt(v[k]) + 1e-8) for k, p in params.items()}
        return value, params, m, v

    return step


def training_case(contenders: list[str], batch: int = 64) -> Case:
    """The demo's training step, batch 64."""
    case = Case(f"digits training step, batch {batch}", "multiply-adds and calls")
    rng = np.random.default_rng(0)
    weights = {}
    for k, (n, m) in enumerate(pairwise(SIZES)):
        weights[f"w{k}"] = (rng.normal(size=(n, m)) / np.sqrt(n)).astype(np.float32)
        weights[f"b{k}"] = np.zeros(m, np.float32)
    images = rng.random((batch, SIZES[0])).astype(np.float32)
    labels = rng.integers(0, 10, batch)
    values: dict[str, float] = {}

    def add(name: str, xp: Any, jit: Any, step: Any, wait: Any) -> None:
        f = jit(step)
        params = {k: xp.asarray(w) for k, w in weights.items()}
        zeros = {k: xp.zeros_like(w) for k, w in params.items()}
        args = (
            params,
            zeros,
            zeros,
            xp.asarray(np.float32(1)),
            xp.asarray(images),
            xp.asarray(labels),
        )
        case.compile[name], out = first(lambda: wait(f(*args)))
        values[name] = float(out[0])
        case.runs[name] = lambda: wait(f(*args))

    if "tessera" in contenders:
        import tessera as ts

        step = make_step(ts, ts.vmap, ts.value_and_grad, ts.relu, ts.log_softmax, ts.one_hot)
        add("tessera", ts, ts.jit, step, lambda out: out)
    if "jax" in contenders:
        import jax
        import jax.numpy as jnp

        step = make_step(
            jnp, jax.vmap, jax.value_and_grad, jax.nn.relu, jax.nn.log_softmax, jax.nn.one_hot
        )
        add("jax", jnp, jax.jit, step, jax.block_until_ready)
    if len(values) == 2:
        case.check["tessera"] = abs(values["tessera"] - values["jax"]) / abs(values["jax"])
    return case


# --- report ---


def report(cases: list[Case], rounds: int, budget: float) -> list[dict[str, Any]]:
    """Measures, prints a table, and returns rows for JSON."""
    rows: list[dict[str, Any]] = []
    print(
        f"{'case':42s} {'tessera':>10s} {'numpy':>10s} {'jax':>10s}   vs numpy  vs jax   compile "
        f"(ours, jax)  error"
    )
    for case in cases:
        samples = measure(case, rounds, budget)
        medians = {k: statistics.median(v) for k, v in samples.items()}
        ours = medians.get("tessera")

        def cell(name: str, medians: dict[str, float] = medians) -> str:
            return f"{medians[name] * 1e6:8.1f}us" if name in medians else "-".rjust(10)

        def ratio(name: str, medians: dict[str, float] = medians, ours: float | None = ours) -> str:
            return f"{medians[name] / ours:7.2f}x" if name in medians and ours else "-".rjust(8)

        compiled = "  ".join(
            f"{case.compile[k] * 1e3:7.0f}ms" for k in ("tessera", "jax") if k in case.compile
        )
        print(
            f"{case.name:42s} {cell('tessera')} {cell('numpy')} {cell('jax')}  {ratio('numpy')} "
            f"{ratio('jax')}  "
            f"{compiled:>20s}  {case.check.get('tessera', 0.0):.1e}"
        )
        spread = {k: [min(v), max(v)] for k, v in samples.items()}
        rows.append(
            {
                "case": case.name,
                "floor": case.floor,
                "median_s": medians,
                "spread_s": spread,
                "first_call_s": case.compile,
                "error": case.check,
            }
        )
    return rows


def machine() -> str:
    """The processor's name and the number of cores."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        name = next(x.split(":", 1)[1].strip() for x in lines if x.startswith("model name"))
    except (OSError, StopIteration):
        name = platform.machine()
    return f"{name}, {os.cpu_count()} cores, Python {platform.python_version()}"


def main() -> None:
    """Runs the suite."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--contenders", default="tessera,numpy,jax")
    parser.add_argument("--only", default="", help="run the cases whose name contains this")
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--budget", type=float, default=5.0, help="seconds per case")
    parser.add_argument("--json", type=Path, help="write the results here")
    args = parser.parse_args()
    contenders = args.contenders.split(",")
    if "jax" in contenders:
        try:
            import jax  # noqa: F401
        except ImportError:
            print("jax is not installed; leaving it out (pip install -e '.[bench]')")
            contenders.remove("jax")
    # The compilation cache would hide what compiling costs.
    os.environ.setdefault("TESSERA_CACHE", "off")
    cases = [training_case(contenders)]
    cases += kernel_cases(contenders, 64, 64) + kernel_cases(contenders, 1024, 1024)
    cases = [c for c in cases if args.only in c.name]
    print(f"{machine()}\n")
    rows = report(cases, args.rounds, args.budget)
    if args.json:
        args.json.parent.mkdir(parents=True, exist_ok=True)
        found = {"machine": machine(), "date": datetime.date.today().isoformat(), "cases": rows}
        args.json.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
