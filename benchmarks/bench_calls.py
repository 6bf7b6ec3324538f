"""What one call costs beside the work itself: compiled functions and single ops on tiny arrays.

    python benchmarks/bench_calls.py [--rounds N] [--json FILE] [--check]

Contenders are Numba's dispatcher, `jax.jit` and NumPy where they are installed, and Python
functions that do nothing. All are measured in turn, in one process, round after round; medians
count, and the least and the largest round are shown. Each round is a loop that does nothing but
call, and the loop itself, measured empty, is taken off. With `--check`, the exit status says
whether the bars are kept.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import platform
import statistics
import sys
import timeit
from collections import namedtuple
from collections.abc import Callable
from typing import Any

import numpy as np

import tessera as ts

Point = namedtuple("Point", "a b")

# What a call may take, in microseconds.
BARS = {
    "3 arrays": 0.25,
    "3 NumPy arrays": 0.25,
    "dict of 50 arrays": 3.0,
    "eager x + y": 1.0,
}

Case = tuple[str, str, Callable[..., Any], dict[str, Any]]
"""The case, the contender, the function, and what it is called with, by name."""


def arrays() -> list[np.ndarray]:
    return [np.full(4, k, np.float32) for k in (1, 2, 3)]


def tessera_cases() -> list[Case]:
    x, y, z = (ts.asarray(a) for a in arrays())
    nx, ny, nz = arrays()
    tree = {f"w{k}": ts.asarray(np.full((4, 4), k, np.float32)) for k in range(50)}
    many = ts.jit(lambda x: x + 1)
    signatures = [ts.asarray(np.zeros(k + 1, np.float32)) for k in range(100)]
    for _ in range(3):
        for array in signatures:
            many(array)
    found: list[tuple[str, Any, tuple[Any, ...]]] = [
        ("1 array", ts.jit(lambda x: 2 * x), (x,)),
        ("3 arrays", ts.jit(lambda x, y, z: x * y + z), (x, y, z)),
        ("3 NumPy arrays", ts.jit(lambda x, y, z: x * y + z), (nx, ny, nz)),
        ("array and number", ts.jit(lambda x, s: x * s), (x, 2.5)),
        ("static argument", ts.jit(lambda x, n: x * n, static_argnums=1), (x, 3)),
        ("tuple of 3 out", ts.jit(lambda x: (x, 2 * x, 3 * x)), (x,)),
        ("named tuple", ts.jit(lambda p: p.a + p.b), (Point(x, y),)),
        ("dict of 50 arrays", ts.jit(lambda d: d["w0"] + d["w49"]), (tree,)),
        ("dict of 50 in and out", ts.jit(lambda d: {k: 2 * v for k, v in d.items()}), (tree,)),
        ("1 of 100 signatures", many, (signatures[57],)),
        ("eager exp(x)", ts.exp, (x,)),
        ("eager sum(x)", ts.sum, (x,)),
        ("eager matmul", lambda a: a @ a, (tree["w1"],)),
    ]
    cases: list[Case] = [
        (name, "tessera", fn, dict(zip("abc", args, strict=False))) for name, fn, args in found
    ]
    cases.append(("keyword", "tessera", ts.jit(lambda x, y: x + y), {"a": x, "y": y}))
    return cases


def other_cases() -> list[Case]:
    x, y, z = arrays()
    three = dict(a=x, b=y, c=z)
    cases: list[Case] = [("3 arrays", "Python function", lambda x, y, z: x, three)]
    cases.append(("1 array", "built-in function", len, {"a": x}))
    cases.append(("3 arrays", "NumPy x * y + z", lambda x, y, z: x * y + z, three))
    if importlib.util.find_spec("numba") is not None:
        import numba

        one = numba.njit(lambda x: 2 * x)
        multiplied = numba.njit(lambda x, y, z: x * y + z)
        nothing = numba.njit(lambda x, y, z: None)
        scaled = numba.njit(lambda x, s: x * s)
        cases += [
            ("1 array", "numba", one, {"a": x}),
            ("3 arrays", "numba", multiplied, three),
            ("3 arrays", "numba, nothing done", nothing, three),
            ("array and number", "numba", scaled, {"a": x, "b": 2.5}),
        ]
    if importlib.util.find_spec("jax") is not None:
        import jax

        given = {k: jax.numpy.asarray(v) for k, v in three.items()}
        tree = {f"w{k}": jax.numpy.full((4, 4), k, "float32") for k in range(50)}
        cases += [
            ("1 array", "jax", jax.jit(lambda x: 2 * x), {"a": given["a"]}),
            ("3 arrays", "jax", jax.jit(lambda x, y, z: x * y + z), given),
            ("3 NumPy arrays", "jax", jax.jit(lambda x, y, z: x * y + z), three),
            ("dict of 50 arrays", "jax", jax.jit(lambda d: d["w0"] + d["w49"]), {"a": tree}),
        ]
    return cases


def timers() -> dict[tuple[str, str], timeit.Timer]:
    """Loops that do nothing but call, positional arguments by the names a, b and c."""
    found: dict[tuple[str, str], timeit.Timer] = {}
    for case, who, fn, given in [*tessera_cases(), *other_cases()]:
        names = [f"{k}={k}" if k == "y" else k for k in given]
        call = f"call({', '.join(names)})"
        scope: dict[str, Any] = {"call": fn, **given}
        for _ in range(3):
            eval(call, scope)
        found[case, who] = timeit.Timer(call, globals=scope)
    x, y, _ = arrays()
    ours = {"x": ts.asarray(x), "y": ts.asarray(y)}
    for what in ("x + y", "x + 2.5", "x + 1", "2 * x", "x < y", "x[0]", "-x"):
        for who, scope in (("tessera", ours), ("NumPy", {"x": x, "y": y})):
            for _ in range(3):
                eval(what, scope)
            found[f"eager {what}", who] = timeit.Timer(what, globals=dict(scope))
    return found


def measured(rounds: int) -> dict[tuple[str, str], list[float]]:
    """Microseconds of one call, round by round."""
    loops = timers()
    empty = timeit.Timer("pass")
    numbers = {k: max(20, int(2e-3 / (t.timeit(50) / 50))) for k, t in loops.items()}
    found: dict[tuple[str, str], list[float]] = {k: [] for k in loops}
    for _ in range(rounds):
        base = min(empty.repeat(3, 10_000)) / 10_000
        for key, loop in loops.items():
            found[key].append((loop.timeit(numbers[key]) / numbers[key] - base) * 1e6)
    return found


def failures(medians: dict[tuple[str, str], float]) -> list[str]:
    """The bars that are not kept."""
    late = [
        f"{case}: {medians[case, 'tessera']:.3f} us, at most {bar}"
        for case, bar in BARS.items()
        if medians[case, "tessera"] > bar
    ]
    ours, theirs = medians["3 NumPy arrays", "tessera"], medians.get(("3 arrays", "numba"))
    if theirs is not None and ours > theirs / 2:
        late.append(f"3 NumPy arrays: {ours:.3f} us, at most half of Numba's {theirs:.3f}")
    more = medians["1 of 100 signatures", "tessera"] - medians["1 array", "tessera"]
    if more > 0.3:
        late.append(f"100 signatures add {more:.3f} us, at most 0.3")
    return late


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=41, help="of which the median counts")
    parser.add_argument("--json", help="a file for the figures")
    parser.add_argument("--machine", default=platform.machine(), help="what the figures are from")
    parser.add_argument("--check", action="store_true", help="fail where a bar is not kept")
    options = parser.parse_args()
    rounds = measured(options.rounds)
    medians = {key: statistics.median(times) for key, times in rounds.items()}
    rows = [
        {"case": case, "contender": who, "median_us": round(medians[case, who], 4),
         "spread_us": [round(min(times), 4), round(max(times), 4)]}
        for (case, who), times in sorted(rounds.items(), key=lambda item: item[0][0])
    ]  # fmt: skip
    for row in rows:
        low, high = row["spread_us"]
        print(
            f"{row['case']:24} {row['contender']:20} {row['median_us']:9.3f} us"
            f"   ({low:.3f} to {high:.3f})"
        )
    late = failures(medians)
    print("\n".join(late) or "all bars are kept")
    if options.json:
        about = {"machine": options.machine, "python": platform.python_version()}
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump({**about, "rounds": options.rounds, "cases": rows}, file, indent=1)
            file.write("\n")
    return 1 if late and options.check else 0


if __name__ == "__main__":
    sys.exit(main())
