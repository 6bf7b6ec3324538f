"""What budgets of memory cost on a GPU: a training step of some blocks of a transformer.

    python benchmarks/budgets.py [device]

For each budget: what the plan needs, what the pool of the device gave, what is computed again and
moved to the host, the model's estimate of the time that costs, and the time of a step, the least
and the middle of some, in turns. `only moved` computes nothing again; `in order` lets no copy run
beside a kernel, as if there were no memory for it.
"""

from __future__ import annotations

import gc
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from sentinels import block

import tessera as ts
from tessera.runtime.cuda.device import cuda_device
from tessera.schedule import hold_budget

BLOCKS, BATCH, LENGTH, WIDTH = 6, 8, 1024, 768
CALLS = 10
PARTS = (1.0, 0.9, 0.75, 0.6, 0.5, 0.4, 0.3)
"""Of what is needed without a budget."""

WAYS = ("all", "only moved", "in order")


def step(params: list[Any], x: Any) -> list[Any]:
    """A step of gradient descent."""

    def loss(params: list[Any]) -> Any:
        h = x
        for p in params:
            h = block(p, h)
        return ts.mean(h * h)

    grads = ts.grad(loss)(params)
    return [{n: p[n] - 0.1 * g[n] for n in p} for p, g in zip(params, grads, strict=True)]


@contextmanager
def way(name: str) -> Iterator[None]:
    """Budgets are held in this way within a `with` block."""
    steps, rooms = hold_budget.steps, hold_budget.ROOMS
    if name != "all":
        hold_budget.steps = lambda *_: iter(())
    if name == "in order":
        hold_budget.ROOMS = ()
    try:
        yield
    finally:
        hold_budget.steps, hold_budget.ROOMS = steps, rooms


def arguments(device: str) -> tuple[list[Any], Any]:
    """The parameters of the blocks, and what they are given."""
    rng = np.random.default_rng(0)
    square, wide = (WIDTH, WIDTH), (WIDTH, 4 * WIDTH)
    shapes = {**dict.fromkeys("qkvo", square), "a": wide, "b": wide[::-1]}
    params = [
        {n: (rng.normal(size=s) * 0.02).astype(np.float32) for n, s in shapes.items()}
        for _ in range(BLOCKS)
    ]
    x = rng.normal(size=(BATCH, LENGTH, WIDTH)).astype(np.float32)
    return ts.device_put((params, x), device)


def measured(f: Any, args: Any, device: str) -> int:
    """The bytes of the device that a call takes at its most, arguments included."""
    pool = cuda_device(int(device.partition(":")[2] or 0)).pool
    gc.collect()
    pool.release()
    pool.reset_peak()
    before = pool.statistics().live
    ts.block_until_ready(f(*args))
    given = sum([x.nbytes for x in ts.pytree.leaves(args)])
    return pool.statistics().peak - before + given


def main() -> None:
    """Prints a line for each budget and way."""
    device = sys.argv[1] if len(sys.argv) > 1 else "cuda:0"
    args = arguments(device)
    plain = ts.jit(step)
    whole = plain.memory(*args).peak
    wanted = [np.asarray(x).tobytes() for x in ts.pytree.leaves(plain(*args))]
    base = timed(plain, args)
    print(f"no budget: {whole / 1e6:.1f} MB, {base[0]:.2f} ms, {base[1]:.2f} ms")
    for name in WAYS:
        for part in PARTS[1:]:
            with way(name):
                f = ts.jit(step, memory_budget=int(whole * part))
                start = time.perf_counter()
                try:
                    lowered = f.lower(*args)
                    found = f(*args)
                except ts.errors.MemoryBudgetError as error:
                    print(f"{name:11}{part:5.0%}  {str(error).splitlines()[0]}", flush=True)
                    break
                compiling = time.perf_counter() - start
            same = [np.asarray(x).tobytes() for x in ts.pytree.leaves(found)] == wanted
            del found
            use, took = lowered.memory(), measured(f, args, device)
            least, middle = timed(f, args)
            print(
                f"{name:11}{part:5.0%}  planned {use.peak / 1e6:8.1f} MB, measured "
                f"{took / 1e6:8.1f} ({use.peak / took - 1:+.1%}), host {use.host / 1e6:8.1f}; "
                f"{len(lowered.again)} again, offload={lowered.graph.attrs.get('offload', '-')}; "
                f"{least:7.2f} ms {least / base[0] - 1:+7.1%} {middle:7.2f} ms "
                f"{middle / base[1] - 1:+7.1%}; compiled in {compiling:.1f} s, "
                f"{'the same bits' if same else 'OTHER BITS'}",
                flush=True,
            )


def timed(f: Any, args: Any) -> tuple[float, float]:
    """Milliseconds of a call: the least and the middle."""
    times: list[float] = []
    for _ in range(CALLS + 1):
        start = time.perf_counter()
        ts.block_until_ready(f(*args))
        times.append(1e3 * (time.perf_counter() - start))
    return min(times[1:]), float(np.median(times[1:]))


if __name__ == "__main__":
    main()
