"""What one call costs beside the work itself: compiled functions and single ops on tiny arrays.

    python benchmarks/bench_calls.py [--repeat N] [--number N] [--budget MICROSECONDS]

Prints the least time of several rounds per call. With `--budget`, the exit status says whether all
compiled calls with a few arrays keep within it.
"""

from __future__ import annotations

import argparse
import sys
import timeit
from collections.abc import Callable
from typing import Any

import numpy as np

import tessera as ts


def compiled_calls() -> dict[str, Callable[[], Any]]:
    """Calls of compiled functions with arrays as arguments: those that the budget is for."""
    x, y, z = (ts.asarray(np.full(4, k, np.float32)) for k in (1, 2, 3))
    one = ts.jit(lambda x: 2 * x)
    two = ts.jit(lambda x, y: x + y)
    three = ts.jit(lambda x, y, z: x * y + z)
    return {
        "jit, 1 array": lambda: one(x),
        "jit, 2 arrays": lambda: two(x, y),
        "jit, 3 arrays": lambda: three(x, y, z),
    }


def other_calls() -> dict[str, Callable[[], Any]]:
    """Calls with containers, with what must be converted, and single ops."""
    x, y = (ts.asarray(np.full(4, k, np.float32)) for k in (1, 2))
    square = ts.asarray(np.eye(2, dtype=np.float32))
    host = np.ones(4, np.float32)
    leaves = {f"w{k}": x for k in range(10)}
    reduced = ts.jit(lambda d: d["w0"] + d["w9"])
    mapped = ts.jit(lambda d: {name: 2 * leaf for name, leaf in d.items()})
    keyword = ts.jit(lambda x, y: x + y)
    numpy = ts.jit(lambda x: 2 * x)
    scaled = ts.jit(lambda x, s: x * s)
    return {
        "jit, dict of 10 in, 1 out": lambda: reduced(leaves),
        "jit, dict of 10 in and out": lambda: mapped(leaves),
        "jit, keyword argument": lambda: keyword(x, y=y),
        "jit, NumPy array": lambda: numpy(host),
        "jit, array and number": lambda: scaled(x, 2.0),
        "eager x + y": lambda: x + y,
        "eager x + 1.0": lambda: x + 1.0,
        "eager exp(x)": lambda: ts.exp(x),
        "eager sum(x)": lambda: ts.sum(x),
        "eager reshape": lambda: ts.reshape(x, (2, 2)),
        "eager x[0]": lambda: x[0],
        "eager matmul": lambda: square @ square,
        "eager concat": lambda: ts.concat([x, y]),
        "eager sort": lambda: ts.sort(x),
        "NumPy x + y": lambda: host + host,
    }


def microseconds(call: Callable[[], Any], number: int, repeat: int) -> float:
    """The least time of one call, after it has been compiled."""
    call()
    return min(timeit.repeat(call, number=number, repeat=repeat)) / number * 1e6


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeat", type=int, default=7, help="rounds, of which the best counts")
    parser.add_argument("--number", type=int, default=20_000, help="calls per round")
    parser.add_argument("--budget", type=float, help="microseconds that a compiled call may take")
    options = parser.parse_args()
    late: list[str] = []
    for name, call in compiled_calls().items():
        found = microseconds(call, options.number, options.repeat)
        print(f"{name:28} {found:8.2f} us")
        if options.budget is not None and found > options.budget:
            late.append(name)
    for name, call in other_calls().items():
        print(f"{name:28} {microseconds(call, options.number, options.repeat):8.2f} us")
    if late:
        print(f"over the budget of {options.budget} us: {', '.join(late)}")
    return 1 if late else 0


if __name__ == "__main__":
    sys.exit(main())
