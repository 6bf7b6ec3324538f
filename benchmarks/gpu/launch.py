"""What starting work on a GPU costs the host, beside a bare launch through cuda-bindings.

Arrays are tiny, so that the work itself is none. Calls are timed in batches that fit into the
device's queue, which is waited for between them; all contenders take turns, and medians count.

    python benchmarks/gpu/launch.py
    python benchmarks/gpu/launch.py --json launch.json

The bar: a launch by a cached executable costs at most what a bare `cuLaunchKernel` costs. Exit
status 1 says that it does not.
"""

from __future__ import annotations

import argparse
import datetime
import importlib
import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import tessera as ts
from tessera.ir.walk import walk
from tessera.runtime.cuda.device import cuda_device
from tessera.runtime.cuda.launch import PackedParameters
from tessera.runtime.cuda.module import load_cubin
from tessera.tile import ops as tile_ops

Run = Callable[[], Any]

ROUNDS = 60
# A queue holds about a thousand launches; when it is full, a launch waits for the device.
LAUNCHES = 400
CHAIN = 50

BARE = "bare cuLaunchKernel, cuda-bindings"
NATIVE = "native entry, per launch"
RUN = "Executable.run, 1 launch"


def one(x: Any) -> Any:
    """A program of one launch."""
    return x + 1


def chain(x: Any) -> Any:
    """A program of many launches, each of which needs the one before it."""
    for _ in range(CHAIN):
        x = ts.cumulative_sum(x)
    return x


def launches(lowered: Any) -> int:
    """How many kernels a run of a program starts."""
    return sum(isinstance(op, tile_ops.Launch) for op in walk(lowered.tile.entry.body))


def bare(x: Any, lowered: Any) -> Run:
    """A launch of a program's only kernel, with parameters that were packed before."""
    from cuda.bindings import driver

    device = cuda_device(0)
    stream = device.stream.raw_handle
    (code,) = lowered.gpu_kernels.values()
    kernel = load_cubin(device, lowered.cubin.data).kernel(code.name)
    out = device.pool.allocate(x.nbytes)
    parameters = PackedParameters([x.storage.address, out])
    function, address = kernel.raw_handle, parameters.address
    grid = -(-x.size // code.threads)
    driver.cuCtxSetCurrent(driver.CUcontext(device.context))

    def call(_keep: Any = (kernel, out, parameters)) -> None:
        driver.cuLaunchKernel(
            function, grid, 1, 1, code.threads, 1, 1, code.shared, stream, address, 0
        )

    return call


def ours() -> tuple[dict[str, tuple[Run, int]], int]:
    """Our calls, each with its number of launches; and how many more the chain has than one."""
    x, y, z = (ts.device_put(np.full(4, k, np.float32), "cuda:0") for k in (1, 2, 3))
    leaves = {f"w{k}": x for k in range(10)}
    single, many = ts.jit(one).lower(x), ts.jit(chain).lower(x)
    run, run_many = single.executable(x.device).run, many.executable(x.device).run
    first = ts.jit(one)
    second = ts.jit(lambda x, y: x + y)
    third = ts.jit(lambda x, y, z: x * y + z)
    tree = ts.jit(lambda d: d["w0"] + d["w9"])
    count = launches(many)
    inputs = [x.storage]
    return {
        BARE: (bare(x, single), 1),
        "chain": (lambda: run_many(inputs), count),
        RUN: (lambda: run(inputs), 1),
        "ts.jit, 1 array": (lambda: first(x), 1),
        "ts.jit, 2 arrays": (lambda: second(x, y), 1),
        "ts.jit, 3 arrays": (lambda: third(x, y, z), 1),
        "ts.jit, dict of 10": (lambda: tree(leaves), 1),
        "ts eager x + y": (lambda: x + y, 1),
        "ts eager x + 1.0": (lambda: x + 1.0, 1),
    }, count - 1


def peers() -> dict[str, tuple[Run, int]]:
    """Calls of other libraries, of those that are installed."""
    found: dict[str, tuple[Run, int]] = {}
    for add in (_torch, _triton, _jax):
        try:
            found |= add()
        except Exception as problem:  # what is missing, or does not work, is a line of the report
            print(f"  skipped {add.__name__[1:]}: {type(problem).__name__}: {str(problem)[:200]}")
    return found


def _torch() -> dict[str, tuple[Run, int]]:
    torch: Any = importlib.import_module("torch")
    a, b = (torch.full((4,), float(k), device="cuda") for k in (1, 2))
    return {"torch eager a + b": (lambda: a + b, 1)}


def _triton() -> dict[str, tuple[Run, int]]:
    torch: Any = importlib.import_module("torch")
    kernels: Any = importlib.import_module("triton_kernels")
    a = torch.ones(4, device="cuda")
    out = torch.empty_like(a)
    start = kernels.add_one[(1,)]
    return {"triton, 1 array and its output": (lambda: start(out, a, 4, BLOCK=128), 1)}


def _jax() -> dict[str, tuple[Run, int]]:
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    jax: Any = importlib.import_module("jax")
    numpy: Any = importlib.import_module("jax.numpy")
    a, b, c = (numpy.full(4, k, numpy.float32) for k in (1, 2, 3))
    leaves = {f"w{k}": a for k in range(10)}
    first, third = jax.jit(one), jax.jit(lambda x, y, z: x * y + z)
    tree = jax.jit(lambda d: d["w0"] + d["w9"])
    return {
        "jax.jit, 1 array": (lambda: first(a), 1),
        "jax.jit, 3 arrays": (lambda: third(a, b, c), 1),
        "jax.jit, dict of 10": (lambda: tree(leaves), 1),
    }


def wait() -> None:
    """Until the device has done everything, whoever started it."""
    cuda_device(0).synchronize()


def batch(run: Run, count: int) -> float:
    """Seconds a call, until it returns."""
    wait()
    start = time.perf_counter()
    for _ in range(count):
        run()
    return (time.perf_counter() - start) / count


def measure(runs: dict[str, tuple[Run, int]]) -> dict[str, float]:
    """Medians in microseconds a call."""
    samples: dict[str, list[float]] = {name: [] for name in runs}
    for run, started in runs.values():
        batch(run, max(LAUNCHES // started, 2))
    for _ in range(ROUNDS):
        for name, (run, started) in runs.items():
            samples[name].append(batch(run, max(LAUNCHES // started, 2)))
    return {name: statistics.median(times) * 1e6 for name, times in samples.items()}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, help="where to write all figures")
    options = parser.parse_args()
    if not ts.devices("cuda"):
        print("there is no GPU here")
        return 0
    runs, more = ours()
    times = measure(runs | peers())
    times[NATIVE] = (times.pop("chain") - times[RUN]) / more
    machine = f"{cuda_device(0).name}, Python {platform.python_version()}"
    print(f"{machine}; microseconds of the host a call")
    for name, found in sorted(times.items(), key=lambda item: item[1]):
        print(f"{name:36} {found:8.2f}   {found / times[BARE]:5.2f} of the bare launch")
    if options.json:
        record = {"date": datetime.date.today().isoformat(), "machine": machine, "calls": times}
        options.json.write_text(json.dumps(record, indent=1))
    return 1 if max(times[NATIVE], times[RUN]) > times[BARE] else 0


if __name__ == "__main__":
    sys.exit(main())
