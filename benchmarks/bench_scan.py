"""`ts.scan` beside `jax.lax.scan`, in one run: a recurrent network, an LSTM, a linear recurrence.

Each in its forward direction and with its gradient; the recurrence also by `associative_scan`.
Contenders run interleaved on the same data with the same threads, and are checked against loops in
NumPy in float64, gradients along a random direction by central differences.

    python benchmarks/bench_scan.py
    python benchmarks/bench_scan.py --only lstm --json results.json
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from run import Case, error, first, machine, report

import tessera as ts

Array = np.ndarray


def rnn(xp: Any, scan: Any, w: Any, x: Any) -> Any:
    """A recurrent cell: one product, one `tanh`."""

    def cell(h: Any, row: Any) -> Any:
        h = xp.tanh(h @ w + row)
        return h, h

    return scan(cell, xp.zeros_like(x[0]), x)[1]


def lstm(xp: Any, scan: Any, w: Any, x: Any) -> Any:
    """An LSTM cell (Hochreiter and Schmidhuber, 1997), without biases; x has the inputs' part."""
    n = x.shape[-1] // 4

    def cell(state: Any, row: Any) -> Any:
        h, c = state
        z = h @ w + row
        i, f, o = [0.5 * xp.tanh(0.5 * z[:, k * n : (k + 1) * n]) + 0.5 for k in range(3)]
        c = f * c + i * xp.tanh(z[:, 3 * n :])
        h = o * xp.tanh(c)
        return (h, c), h

    zero = xp.zeros_like(x[0, :, :n])
    return scan(cell, (zero, zero), x)[1]


def recurrence(xp: Any, scan: Any, w: Any, x: Any) -> Any:
    """h = w h + x: memory and the cost of a step."""

    def step(h: Any, row: Any) -> Any:
        h = w * h + row
        return h, h

    return scan(step, xp.zeros_like(x[0]), x)[1]


def parallel(xp: Any, scan: Any, w: Any, x: Any) -> Any:
    """The same recurrence, by halves."""

    def combine(a: Any, b: Any) -> Any:
        return a[0] * b[0], a[1] * b[0] + b[1]

    return scan(combine, (xp.broadcast_to(w, x.shape), x))[1]


def python_scan(f: Any, init: Any, xs: Any) -> Any:
    """The definition."""
    carry, ys = init, []
    for x in xs:
        carry, y = f(carry, x)
        ys.append(y)
    return carry, np.stack(ys)


CASES: dict[str, tuple[Callable[..., Any], tuple[int, ...], tuple[int, ...]]] = {
    # Shapes of the weights and of the inputs, steps first.
    "rnn": (rnn, (128, 128), (100, 32, 128)),
    "small rnn": (rnn, (32, 32), (200, 1, 32)),
    "lstm": (lstm, (128, 512), (64, 32, 512)),
    "recurrence": (recurrence, (256,), (4096, 256)),
    "recurrence of scalars": (recurrence, (), (10000,)),
    "associative recurrence": (parallel, (256,), (4096, 256)),
}


def cases() -> list[Case]:
    """All cases, forward and with gradients."""
    import jax
    import jax.numpy as jnp

    found: list[Case] = []
    rng = np.random.default_rng(0)
    for name, (f, of_w, of_x) in CASES.items():
        w = (rng.uniform(-1, 1, of_w) / np.sqrt(of_w[0] if len(of_w) > 1 else 1)).astype(np.float32)
        x = rng.normal(size=of_x).astype(np.float32)
        scans = ts.scan, jax.lax.scan
        if f is parallel:
            scans = ts.associative_scan, jax.lax.associative_scan
        wide, direction = recurrence if f is parallel else f, rng.normal(size=of_w)

        def loss(w: Any, wide: Any = wide, x: Array = x) -> float:
            return float(np.sum(wide(np, python_scan, w, x.astype(np.float64)) ** 2))

        expected = wide(np, python_scan, w.astype(np.float64), x.astype(np.float64))
        slope = (loss(w + 1e-6 * direction) - loss(w - 1e-6 * direction)) / 2e-6
        forward = Case(f"{name} {list(of_x)}", "steps")
        backward = Case(f"{name}, gradient", "steps")
        libraries = (
            ("tessera", ts, ts.jit, ts.grad, lambda y: y),
            ("jax", jnp, jax.jit, jax.grad, jax.block_until_ready),
        )
        for (label, xp, jit, grad, wait), scan in zip(libraries, scans, strict=True):
            a, b = xp.asarray(w), xp.asarray(x)

            def run(w: Any, x: Any, xp: Any = xp, scan: Any = scan, f: Any = f) -> Any:
                return f(xp, scan, w, x)

            go = jit(run)
            back = jit(grad(lambda w, x, run=run, xp=xp: xp.sum(run(w, x) ** 2)))
            forward.runs[label] = lambda go=go, a=a, b=b, wait=wait: wait(go(a, b))
            backward.runs[label] = lambda back=back, a=a, b=b, wait=wait: wait(back(a, b))
            forward.compile[label], out = first(forward.runs[label])
            forward.check[label] = error(out, expected)
            backward.compile[label], out = first(backward.runs[label])
            found_slope = float(np.sum(np.asarray(out, np.float64) * direction))
            backward.check[label] = abs(found_slope - slope) / abs(slope)
        found += [forward, backward]
    return found


def main() -> None:
    """Runs the cases."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default="", help="run the cases whose name contains this")
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--budget", type=float, default=5.0, help="seconds per case")
    parser.add_argument("--json", type=Path, help="write the results here")
    args = parser.parse_args()
    # The compilation cache would hide what compiling costs.
    os.environ.setdefault("TESSERA_CACHE", "off")
    print(f"{machine()}\n")
    rows = report([c for c in cases() if args.only in c.name], args.rounds, args.budget)
    if args.json:
        found = {"machine": machine(), "date": datetime.date.today().isoformat(), "cases": rows}
        args.json.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
