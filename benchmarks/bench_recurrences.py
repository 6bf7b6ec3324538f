"""Loops on single elements beside JAX, in one run: the selective scan of a state-space model (Gu
and Dao, 2023), linear recurrences with many channels and with one, the Mandelbrot set.

Contenders run interleaved on the same data, on one thread unless `--threads` says otherwise, and
are checked against loops in NumPy in float64.

    python benchmarks/bench_recurrences.py
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
parser.add_argument("--threads", type=int, default=1)
parser.add_argument("--json", type=Path)
options = parser.parse_args()
if options.threads == 1:
    os.environ["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"

import jax  # noqa: E402
import numpy as np  # noqa: E402

import tessera as ts  # noqa: E402

Array = np.ndarray


def selective(xp: Any, scan: Any, dt: Any, a: Any, b: Any, c: Any, x: Any) -> Any:
    """Steps dt [L, B, D], rates a [D, N], b and c [L, B, N], inputs x [L, B, D]."""

    def step(h: Any, row: Any) -> Any:
        dt, b, c, x = row
        h = xp.exp(dt[:, :, None] * a) * h + (dt * x)[:, :, None] * b[:, None, :]
        return h, xp.sum(h * c[:, None, :], axis=-1)

    h = xp.zeros((*dt.shape[1:], a.shape[1]), dtype=dt.dtype)
    return scan(step, h, (dt, b, c, x))[1]


def channels(xp: Any, scan: Any, w: Any, x: Any) -> Any:
    """h = w h + x, element by element."""

    def step(h: Any, row: Any) -> Any:
        h = w * h + row
        return h, h

    return scan(step, xp.zeros_like(x[0]), x)[1]


def escape(xp: Any, x: Any, y: Any) -> Any:
    """Steps until a point of the plane leaves the disk of radius 2, 200 at most."""

    def cond(state: Any) -> Any:
        a, b, n = state
        return (a * a + b * b < 4.0) & (n < 200)

    def body(state: Any) -> Any:
        a, b, n = state
        return a * a - b * b + x, 2 * a * b + y, n + 1

    zero = xp.zeros((), dtype=xp.float32)
    loop = ts.while_loop if xp is ts else jax.lax.while_loop
    return loop(cond, body, (zero, zero, xp.zeros((), dtype=xp.int32)))[2]


def mandelbrot(xp: Any, _: Any, x: Any, y: Any) -> Any:
    """A batch of loops whose elements end early."""
    if xp is np:
        a, b, n = np.zeros_like(x), np.zeros_like(x), np.zeros(x.shape, np.int32)
        for _ in range(200):
            goes = a * a + b * b < 4.0
            a, b = np.where(goes, a * a - b * b + x, a), np.where(goes, 2 * a * b + y, b)
            n += goes
        return n
    batch = ts.vmap if xp is ts else jax.vmap
    return batch(batch(lambda x, y: escape(xp, x, y)))(x, y)


def python_scan(f: Any, init: Any, xs: Any) -> Any:
    """The definition."""
    carry, ys = init, []
    for row in zip(*xs, strict=True) if isinstance(xs, tuple) else xs:
        carry, y = f(carry, row)
        ys.append(y)
    return carry, np.stack(ys)


def normal(*shape: int) -> Array:
    """Numbers of a fixed seed."""
    return np.random.default_rng(0).normal(size=shape).astype(np.float32)


def cases() -> dict[str, tuple[Callable[..., Any], list[Array]]]:
    """By name: the function, and its arguments."""
    length, batch, width, state = 1024, 2, 256, 16
    dt = np.abs(normal(length, batch, width)) * np.float32(0.1)
    rates = -np.abs(normal(width, state))
    x, y = np.linspace(-2, 1, 512), np.linspace(-1.5, 1.5, 512)
    plane = np.meshgrid(x.astype(np.float32), y.astype(np.float32))
    rows = [normal(length, batch, state) for _ in range(2)]
    return {
        "selective scan L1024 B2 D256 N16": (
            selective, [dt, rates, *rows, normal(length, batch, width)]
        ),
        "recurrence T1024 C1024": (channels, [np.tanh(normal(1024)), normal(1024, 1024)]),
        "recurrence T64 C65536": (channels, [np.tanh(normal(65536)), normal(64, 65536)]),
        "mandelbrot 512x512": (mandelbrot, [np.ascontiguousarray(v) for v in plane]),
        "recurrence of scalars T16384": (channels, [np.float32(0.9), normal(16384)]),
    }  # fmt: skip


def measure(fns: dict[str, Callable[[], Any]], repeats: int) -> dict[str, dict[str, float]]:
    """Minimum and median milliseconds of each, one after the other in turns."""
    times: dict[str, list[float]] = {name: [] for name in fns}
    for _ in range(repeats):
        for name, fn in fns.items():
            start = time.perf_counter()
            fn()
            times[name].append(1e3 * (time.perf_counter() - start))
    return {k: {"min": min(v), "median": sorted(v)[len(v) // 2]} for k, v in times.items()}


def main() -> None:
    """Prints one line for each case."""
    found: dict[str, Any] = {}
    with ts.config.update(threads=options.threads):
        for name, (fn, args) in cases().items():
            wide = [np.asarray(x, np.float64) for x in args]
            expected = fn(np, python_scan, *wide)
            ours = ts.jit(lambda *a, fn=fn: fn(ts, ts.scan, *a))
            theirs = jax.jit(lambda *a, fn=fn: fn(jax.numpy, jax.lax.scan, *a))
            given = [ts.asarray(x) for x in args]
            other = [jax.numpy.asarray(x) for x in args]
            contenders: dict[str, Callable[[], Any]] = {
                "tessera": lambda ours=ours, given=given: ours(*given),
                "jax": lambda theirs=theirs, other=other: theirs(*other).block_until_ready(),
            }
            for fn_ in contenders.values():
                # On the edge of the set a rounding more or less changes how many steps there are.
                wrong = np.abs(np.asarray(fn_()) - expected) > 1e-4 * np.abs(expected).max()
                assert wrong.mean() < (1e-2 if expected.dtype.kind == "i" else 1e-9)
            found[name] = measure(contenders, 15)
            ratio = found[name]["jax"]["median"] / found[name]["tessera"]["median"]
            text = "  ".join(
                f"{k} {v['min']:.3f} ({v['median']:.3f}) ms" for k, v in found[name].items()
            )
            print(f"{name}: {text}, {ratio:.1f}x", flush=True)
    if options.json:
        record = {"threads": options.threads, "ms": found}
        options.json.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
