"""Nanoseconds per element of the expanded transcendental functions, beside NumPy and SciPy.

Each function runs in a loop over one array that fits into the second cache, on one thread, with the
vectors of the machine; the smallest time of several rounds counts.

    python benchmarks/bench_mathematics.py
    python benchmarks/bench_mathematics.py --only exp tanh --machines host x86-64-v3 x86-64
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from tessera.dtypes import DType, float32, float64, int64
from tessera.ir.core import Block, Func, Module, Value
from tessera.ir.scalar import SCALARS
from tessera.ir.types import ScalarType
from tessera.runtime.cpu import compile_text
from tessera.target import ops as t
from tessera.target.build import Build
from tessera.target.llvm.writer import write_module
from tessera.target.machine import machine
from tessera.target.passes.legalize import legalize
from tessera.target.passes.mathematics import MATHEMATICS
from tessera.target.types import PtrType, VecType

Array = npt.NDArray[Any]

# Where arguments are drawn from; -5 to 5 for the others.
RANGES = {
    **dict.fromkeys(("log", "log2", "log10"), (1e-3, 100.0)),
    **dict.fromkeys(("asin", "acos", "atanh", "erfinv"), (-1.0, 1.0)),
    **dict.fromkeys(("sin", "cos", "tan"), (-50.0, 50.0)),
    **dict.fromkeys(("lgamma", "digamma"), (-5.0, 30.0)),
    "acosh": (1.0, 50.0),
    "log1p": (-0.99, 50.0),
    "pow": (0.0, 10.0),
}

NUMPY_NAMES = {
    "asin": "arcsin",
    "acos": "arccos",
    "atan": "arctan",
    "atan2": "arctan2",
    "asinh": "arcsinh",
    "acosh": "arccosh",
    "atanh": "arctanh",
    "pow": "power",
}
SCIPY_NAMES = {
    "erf": "erf",
    "erfc": "erfc",
    "erfinv": "erfinv",
    "sigmoid": "expit",
    "lgamma": "gammaln",
    "digamma": "psi",
}


def loop(name: str, dtype: DType, lanes: int) -> Module:
    """`y[:n] = name(a[:n], b[:n])`."""
    index, of = ScalarType(int64), VecType(lanes, dtype)
    a, b, y = (Value(PtrType(), name) for name in ("a", "b", "y"))
    n, i, outer, inner = Value(index, "n"), Value(index, "i"), Build(), Build()
    x = [inner.emit(t.Load(p, i, (), of)) for p in (a, b)][: SCALARS[name].arity]
    inner.ops.append(t.Store(y, i, inner.map(name, *x), ()))
    start, step = (outer.emit(t.Const(k, index)) for k in (0, lanes))
    outer.ops.append(t.For(start, n, step, (), 0, Block([i], inner.ops, ())))
    return Module({"k": Func("k", Block([a, b, y, n], outer.ops, ()))}, "k")


def compiled(name: str, dtype: DType, target_name: str) -> tuple[Callable[..., Any], float]:
    """The loop, and the milliseconds that it took to compile (less if it was cached)."""
    target = machine(target_name)
    start = time.perf_counter()
    module = legalize(loop(name, dtype, target.vector_lanes(dtype.bits)), target)
    text = write_module(module, target, "run")
    run = compile_text(text, target, name=name).caller("run")
    return run, 1e3 * (time.perf_counter() - start)


def aligned(size: int, dtype: DType) -> Array:
    """An array that starts on a cache line."""
    space = np.empty(size * dtype.itemsize + 64, np.uint8)
    start = -space.ctypes.data % 64
    return space[start : start + size * dtype.itemsize].view(dtype.np)


def smallest(fn: Callable[[], Any], rounds: int, size: int) -> float:
    """Nanoseconds per element of the fastest round."""
    times: list[float] = []
    for _ in range(rounds):
        start = time.perf_counter()
        fn()
        times.append(time.perf_counter() - start)
    return 1e9 * min(times) / size


def library(name: str) -> Callable[..., Any]:
    """NumPy's function, or SciPy's."""
    if name in SCIPY_NAMES:
        import scipy.special

        return getattr(scipy.special, SCIPY_NAMES[name])
    return getattr(np, NUMPY_NAMES.get(name, name))


def row(name: str, dtype: DType, machines: Sequence[str], size: int, rounds: int) -> str:
    """One line of the table."""
    rng = np.random.default_rng(0)
    low, high = RANGES.get(name, (-5.0, 5.0))
    inputs = [aligned(size, dtype) for _ in range(2)]
    for x in inputs:
        x[:] = rng.uniform(low, high, size)
    result = aligned(size, dtype)
    cells: list[str] = []
    for target in machines:
        run, milliseconds = compiled(name, dtype, target)
        words = [*(x.ctypes.data for x in (*inputs, result)), size]
        cost = smallest(lambda run=run, words=words: run(*words), rounds, size)
        cells.append(f"{cost:7.2f} ({milliseconds:4.0f})")
    given = inputs[: SCALARS[name].arity]
    with np.errstate(all="ignore"):
        other = smallest(lambda: library(name)(*given, out=result), rounds, size)
    return f"{name:8} {dtype.name:4} {'  '.join(f'{c:>16}' for c in cells)}  {other:10.2f}"


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", nargs="*", default=list(MATHEMATICS), choices=list(MATHEMATICS))
    parser.add_argument("--machines", nargs="*", default=["host"], help="levels, or host")
    parser.add_argument("--size", type=int, default=16384, help="elements, a multiple of 64")
    parser.add_argument("--rounds", type=int, default=50)
    args = parser.parse_args()
    print("ns per element (ms to compile; less if cached)")
    heads = "  ".join(f"{m:>16}" for m in args.machines)
    print(f"{'':13} {heads}  {'NumPy/SciPy':>10}")
    for name in args.only:
        for dtype in (float32, float64):
            print(row(name, dtype, args.machines, args.size, args.rounds), flush=True)


if __name__ == "__main__":
    main()
