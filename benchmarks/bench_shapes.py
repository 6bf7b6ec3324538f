"""A transformer block whose shapes are annotated, beside one compiled for each shape.

    python benchmarks/bench_shapes.py [--width 512] [--sweep 1000]

Prints, for lengths that are multiples of 16, how long a call takes by the executable that knows its
sizes, by the one for all sizes, by those for multiples of a tile and for an anchor, one core each
(processor time, the least of many calls in turn); then how many programs a sweep over random shapes
compiles, and how long calls with new shapes take.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

import tessera as ts

LENGTHS = (16, 64, 128, 256)
HEAD = 64


def block(x: Any, wqkv: Any, wo: Any, w1: Any, w2: Any) -> Any:
    """Causal attention and a feed-forward part, both behind a normalisation."""
    b, s, d = x.shape
    h = ts.nn.rmsnorm_safe(x) @ wqkv
    q, k, v = [
        ts.permute_dims(ts.reshape(t, (b, s, d // HEAD, HEAD)), (0, 2, 1, 3))
        for t in ts.split(h, 3, axis=-1)
    ]
    mask = ts.arange(s)[:, None] >= ts.arange(s)[None, :]
    scores = ts.where(mask, q @ ts.matrix_transpose(k) * HEAD**-0.5, -1e9)
    y = ts.permute_dims(ts.softmax(scores, axis=-1) @ v, (0, 2, 1, 3))
    x = x + ts.reshape(y, (b, s, d)) @ wo
    return x + ts.nn.gelu(ts.nn.rmsnorm_safe(x) @ w1) @ w2


def annotated(batch: Any, length: Any, width: Any) -> Any:
    """The block for dims of annotations."""

    def f(
        x: ts.Tensor[batch, length, width],
        wqkv: ts.Tensor[width, width * 3],
        wo: ts.Tensor[width, width],
        w1: ts.Tensor[width, width * 4],
        w2: ts.Tensor[width * 4, width],
    ) -> ts.Tensor[batch, length, width]:
        return block(x, wqkv, wo, w1, w2)

    return ts.jit(f)


def weights(width: int) -> list[Any]:
    """Random weights."""
    rng = np.random.default_rng(0)
    shapes = [(width, 3 * width), (width, width), (width, 4 * width), (4 * width, width)]
    return [ts.asarray(rng.standard_normal(s).astype(np.float32) / s[0] ** 0.5) for s in shapes]


def least(contenders: dict[str, Callable[[], Any]], seconds: float) -> dict[str, float]:
    """The least time of each, called in turn."""
    found: dict[str, float] = dict.fromkeys(contenders, float("inf"))
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        for name, call in contenders.items():
            start = time.process_time()
            call()
            found[name] = min(found[name], time.process_time() - start)
    return found


def compare(width: int, batch: int, seconds: float) -> dict[int, dict[str, float]]:
    """Times by length and contender."""
    anchored = ts.dim("S", 1, 8192, anchors=LENGTHS)
    all_names = ts.dim("D", HEAD, 8192, multiple_of=HEAD)
    functions = {
        "known": ts.jit(block),
        "B, S any": annotated(ts.dim("B"), ts.dim("S"), width),
        "16 | S": annotated(ts.dim("B"), ts.dim("S", 1, 8192, tile=16), width),
        "anchors": annotated(ts.dim("B"), anchored, width),
        "B, S, D any": annotated(ts.dim("B"), ts.dim("S"), all_names),
    }
    given, found = weights(width), {}
    for length in LENGTHS:
        x = ts.random.normal(ts.random.key(length), (batch, length, width))
        calls = {name: partial(f, x, *given) for name, f in functions.items()}
        for call in (*calls.values(), *calls.values()):
            call()
        found[length] = least(calls, seconds)
    return found


def sweep(width: int, count: int) -> tuple[int, int, float, float]:
    """Programs compiled and classes known before, the first call, and the median new shape."""
    f = annotated(ts.dim("B"), ts.dim("S", 1, 64, tile=16), width)
    given = weights(width)
    rng = np.random.default_rng(0)
    times: list[float] = []
    for _ in range(count):
        x = ts.zeros((int(rng.integers(1, 5)), int(rng.integers(1, 65)), width))
        start = time.perf_counter()
        f(x, *given)
        times.append(time.perf_counter() - start)
    return f.cache_size(), len(f.specializations()), times[0], float(np.median(times))


def main() -> None:
    """Prints the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--batch", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--sweep", type=int, default=1000)
    options = parser.parse_args()
    with ts.config.update(threads=1):
        found = compare(options.width, options.batch, options.seconds)
        for length, times in found.items():
            known = times["known"]
            row = [f"{name} {t * 1e3:.2f} ms ({t / known:.2f})" for name, t in times.items()]
            print(f"[{options.batch}, {length}, {options.width}]: " + ", ".join(row))
        compiled, classes, first, median = sweep(64, options.sweep)
    print(
        f"{options.sweep} shapes: {compiled} programs compiled of {classes} classes; the first "
        f"call {first:.2f} s, the median call {median * 1e3:.3f} ms"
    )


if __name__ == "__main__":
    main()
