"""What programs need beside what was planned: `f.lower(...).memory()` and what a call really takes.

    python benchmarks/memory.py [words of names]

For each program it prints the planned bytes, those that the process had for the arguments, results
and all in between at their most, and how far apart they are. Memory is counted where it is
asked for, large blocks and small arrays alike, and Python's own objects too.
"""

from __future__ import annotations

import gc
import sys
import tracemalloc
from dataclasses import dataclass
from typing import Any

import numpy as np
from cpu import libraries, suite

import tessera as ts
from tessera.runtime.memory import pool

PROGRAMS = (
    "mlp training",
    "convnet training",
    "transformer block training",
    "lstm gradient",
    "bert f32",
)


@dataclass(frozen=True)
class Peak:
    """What a call of a program needs.

    Attributes:
        name: the program.
        planned: bytes, before it runs.
        measured: bytes, while it runs.
    """

    name: str
    planned: int
    measured: int

    @property
    def error(self) -> float:
        """How far the plan is off, as a part of what was measured."""
        return self.planned / self.measured - 1


def measure(name: str, **size: Any) -> Peak:
    """Plans and measures a program of the suite in some size; its first one by default."""
    program = suite.find(name)
    size = size or dict(program.sizes[0])
    library = libraries.load("tessera")
    f: Any = program.build["tessera"](library, **size)
    arguments = library.arrays(program.make(np.random.default_rng(0), **size))
    given = sum([x.nbytes for x in ts.pytree.leaves(arguments) if isinstance(x, ts.Array)])
    planned = f.lower(*arguments).memory()
    library.wait(f(*arguments))
    gc.collect()
    captured = planned.inputs - given  # constants of the function
    pool.release()
    tracemalloc.start()
    try:
        library.wait(f(*arguments))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    return Peak(name, planned.peak, given + captured + peak)


def main() -> None:
    """Prints a line for each program."""
    words = sys.argv[1:]
    print(f"{'program':28}{'planned':>12}{'measured':>12}{'error':>8}")
    for name in PROGRAMS:
        if not words or any(word in name for word in words):
            found = measure(name)
            numbers = f"{found.planned / 1e6:9.2f} MB{found.measured / 1e6:9.2f} MB"
            print(f"{name:28}{numbers}{found.error:8.1%}")


if __name__ == "__main__":
    main()
