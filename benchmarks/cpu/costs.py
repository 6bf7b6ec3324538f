"""What a call costs beside its work, and what compiling a small function takes."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np

from cpu.program import Build, Cost, Program, normal, numba_program, shared, torch_program


def _three(xp: Any, **size: Any) -> Any:
    return lambda x, y, z: x * y + z


def _mapped(xp: Any, **size: Any) -> Any:
    return lambda p: {name: 2 * leaf for name, leaf in p.items()}


def _first(xp: Any, **size: Any) -> Any:
    return lambda p: p["w0"] + p["w1"]


def _leaves(rng: np.random.Generator, leaves: int) -> tuple[Any, ...]:
    return ({f"w{k}": normal(rng, 8) for k in range(leaves)},)


def _many(lib: Any, signatures: int) -> Any:
    """One function that has been compiled for many shapes; the call is of the first."""
    f = lib.jit(lambda x, y: x + y)
    for n in range(1, signatures):
        other = lib.asarray(np.zeros(8 + n, np.float32))
        f(other, other)
    return f


def _compiling(body: Any) -> dict[str, Build]:
    """A new function of the same kind each time, compiled and called.

    Each has a constant of its own, which no cache can know.
    """

    def build(lib: Any, **size: Any) -> Any:
        numbers = itertools.count()

        def run(x: Any) -> Any:
            constant = 1 + 1e-6 * (next(numbers) % 1000)
            return lib.jit(body(lib.xp, constant))(x)

        return run

    return dict.fromkeys(("tessera", "jax", "torch.compile"), build)


def _one_kernel(xp: Any, constant: float) -> Any:
    return lambda x: xp.sum(xp.exp(-x * x) * constant + x)


def _compiling_numba(lib: Any, **size: Any) -> Any:
    numba = lib.module
    numbers = itertools.count()

    def run(x: Any) -> Any:
        constant = np.float32(1 + 1e-6 * (next(numbers) % 1000))

        @numba.njit
        def f(x: Any) -> Any:
            total = np.float32(0)
            for v in x:
                total += np.exp(-v * v) * constant + v
            return total

        return f(x)

    return run


CALL, COMPILE = "the call", "the compiler"

PROGRAMS = [
    Program(
        "call, 3 arrays",
        lambda rng, n: tuple(normal(rng, n) for _ in range(3)),
        {
            **shared(_three),
            **torch_program(_three),
            **numba_program(lambda numba, n: numba.njit(lambda x, y, z: x * y + z)),
        },
        lambda n: Cost(16 * n, 2 * n),
        [{"n": 8}],
        {"n": 8},
        threads=(1,),
        eager=True,
        bound=CALL,
    ),
    Program(
        "call, eager x + y",
        lambda rng, n: tuple(normal(rng, n) for _ in range(2)),
        {
            **dict.fromkeys(
                ("tessera", "jax", "torch", "numpy"), lambda lib, n: lambda x, y: x + y
            ),
        },
        lambda n: Cost(12 * n, n),
        [{"n": 8}],
        {"n": 8},
        threads=(1,),
        bound=CALL,
    ),
    Program(
        "call, dict in",
        _leaves,
        {**shared(_first), **torch_program(_first)},
        lambda leaves: Cost(96, 8),
        [{"leaves": 50}],
        {"leaves": 3},
        threads=(1,),
        bound=CALL,
    ),
    Program(
        "call, dict in and out",
        _leaves,
        {**shared(_mapped), **torch_program(_mapped)},
        lambda leaves: Cost(64 * leaves, 8 * leaves),
        [{"leaves": 10}, {"leaves": 50}],
        {"leaves": 3},
        threads=(1,),
        quick=(0, 1),
        bound=CALL,
    ),
    Program(
        "call, one signature of many",
        lambda rng, signatures: tuple(normal(rng, 8) for _ in range(2)),
        {"tessera": _many, "jax": _many, "numpy": lambda lib, signatures: lambda x, y: x + y},
        lambda signatures: Cost(96, 8),
        [{"signatures": 100}],
        {"signatures": 3},
        threads=(1,),
        bound=CALL,
    ),
    Program(
        "compile one kernel",
        lambda rng, n: (normal(rng, n),),
        {**_compiling(_one_kernel), "numba": _compiling_numba},
        lambda n: Cost(4 * n, 24 * n),
        [{"n": 1000}],
        {"n": 9},
        reference=lambda x: np.sum(np.exp(-x * x) + x),
        tolerance=1e-2,
        threads=(1,),
        bound=COMPILE,
    ),
]
