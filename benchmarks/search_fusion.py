"""Looks for programs that fusion makes slower: random ones, compiled whole and op by op.

A random program on arrays of 1e4 to 1e6 elements is compiled as `ts.jit` would, and once more with
a kernel for each operation: what only moves elements (broadcasts, slices, transposes) is still read
in place, so the second form is what one would write with one careful kernel for each step. Both
write into memory that is there before. Time is the processor's, on one thread, the least of several
samples that take turns; what looks slower is measured again before it is believed.

    python benchmarks/search_fusion.py                        # 60 programs, a minute or two
    python benchmarks/search_fusion.py --first 1000 --count 500 --json found.json
    python benchmarks/search_fusion.py --first 17 --count 1 --show
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

os.environ["TESSERA_CACHE"] = "off"

import numpy as np

import tessera as ts
from tessera.compile import Lowered
from tessera.graph.ops.base import Family
from tessera.ir.core import Block, Func, Op, Value
from tessera.runtime.executable import Executable
from tessera.runtime.memory import aligned_empty

FREE = (Family.REARRANGE, Family.GENERATE)
"""What takes no kernel of its own."""

SAMPLE = 1e-3
"""Seconds of a sample."""

SLOWER = 1.1
"""What counts as slower."""

DIFFERING = 0.01
"""The part of a result that may differ: a rounding more or less may decide a comparison."""

# --- random programs ----------------------------------------------------------------------------

LENGTHS = ((16, 1024), (100, 100), (128, 128), (1000, 1000), (1000, 37), (4096, 64), (64, 4096),
           (3, 50_000), (50_000, 3), (333, 777), (2, 100_000), (1024, 1024))  # fmt: skip


class Generator:
    """One program of arrays of float32, as a list of steps.

    Args:
        rng: where its choices come from.
    """

    def __init__(self, rng: np.random.Generator) -> None:
        self.rng = rng
        self.shape = LENGTHS[rng.integers(len(LENGTHS))]
        n, m = self.shape
        self.inputs = [(n, m)] + [((n, m), (m,), (n, 1), (m, n))[k] for k in rng.integers(0, 4, 2)]
        self.steps: list[tuple[str, Callable[[list[Any]], Any]]] = []
        self.shapes: list[tuple[int, ...]] = list(self.inputs)

    def add(self, name: str, step: Callable[[list[Any]], Any], shape: tuple[int, ...]) -> None:
        """Appends a value."""
        self.steps.append((name, step))
        self.shapes.append(shape)

    def pick(self, fits: Callable[[tuple[int, ...]], bool] = lambda shape: True) -> int | None:
        """A value, likely a late one."""
        found = [k for k, shape in enumerate(self.shapes) if fits(shape)]
        if not found:
            return None
        weights = np.asarray([1.0 + k for k in range(len(found))]) ** 2
        return int(self.rng.choice(found, p=weights / weights.sum()))

    def generate(self, count: int) -> None:
        """So many steps."""
        while len(self.steps) < count:
            RULES[self.rng.integers(len(RULES))](self)

    def run(self, *inputs: Any) -> list[Any]:
        """All values that no other uses."""
        values, used = list(inputs), set[int]()

        class Seen(list[Any]):
            def __getitem__(self, k: Any) -> Any:
                used.add(k)
                return values[k]

        for _, step in self.steps:
            values.append(step(Seen()))
        last = [v for k, v in enumerate(values) if k >= len(inputs) and k not in used]
        return last or values[-1:]

    def names(self) -> str:
        """What it does."""
        return f"{self.inputs}: " + ", ".join([name for name, _ in self.steps])


def _unary(g: Generator) -> None:
    k = g.pick()
    name = str(g.rng.choice(["exp", "tanh", "sin", "sqrt", "square", "abs", "negative", "log1p"]))
    safe = ts.abs if name in ("sqrt", "log1p") else (lambda x: x)
    if name == "exp":
        safe = lambda x: ts.minimum(x, 3.0)  # noqa: E731
    g.add(name, lambda v: getattr(ts, name)(safe(v[k])), g.shapes[k])


def _binary(g: Generator) -> None:
    k = g.pick()
    n = g.shapes[k]

    def fits(other: tuple[int, ...]) -> bool:
        try:
            return np.broadcast_shapes(n, other) in (n, g.shape)
        except ValueError:
            return False

    j = g.pick(fits)
    shape = np.broadcast_shapes(n, g.shapes[j])
    name = str(g.rng.choice(["add", "multiply", "subtract", "maximum", "divide"]))
    if name == "divide":
        g.add(name, lambda v: v[k] / (1.5 + ts.abs(v[j])), shape)
    else:
        g.add(name, lambda v: getattr(ts, name)(v[k], v[j]), shape)


def _where(g: Generator) -> None:
    k = g.pick(lambda s: len(s) == 2)
    j = g.pick(lambda s: s == g.shapes[k])
    i = g.pick(lambda s: s == g.shapes[k])
    g.add("where", lambda v: ts.where(v[k] > 0.25, v[j], v[i]), g.shapes[k])


def _reduce(g: Generator) -> None:
    k = g.pick(lambda s: len(s) == 2 and s[0] * s[1] > 4096)
    if k is None:
        return
    axis = [0, 1, None][g.rng.choice(3, p=[0.4, 0.5, 0.1])]
    name = str(g.rng.choice(["sum", "max", "mean", "min", "sum"]))
    keep = bool(g.rng.integers(4))
    n, m = g.shapes[k]
    full = {0: (1, m), 1: (n, 1), None: (1, 1)}[axis]
    left = {0: (m,), 1: (n,), None: ()}[axis]
    g.add(
        f"{name}{axis}",
        lambda v: getattr(ts, name)(v[k], axis=axis, keepdims=keep),
        full if keep else left,
    )


def _softmax(g: Generator) -> None:
    k = g.pick(lambda s: len(s) == 2 and s[0] * s[1] > 4096)
    if k is None:
        return
    axis = int(g.rng.integers(2))
    if g.rng.integers(2):
        g.add(f"softmax{axis}", lambda v: ts.nn.softmax(v[k], axis=axis), g.shapes[k])
        return

    def norm(v: list[Any]) -> Any:
        x = v[k]
        centred = x - ts.mean(x, axis=axis, keepdims=True)
        variance = ts.mean(centred * centred, axis=axis, keepdims=True)
        return centred / ts.sqrt(variance + 1e-5)

    g.add(f"norm{axis}", norm, g.shapes[k])


def _cumsum(g: Generator) -> None:
    k = g.pick(lambda s: len(s) == 2 and s[0] * s[1] > 4096)
    if k is None:
        return
    axis = int(g.rng.integers(2))
    g.add(f"cumsum{axis}", lambda v: ts.cumulative_sum(v[k], axis=axis), g.shapes[k])


def _transpose(g: Generator) -> None:
    k = g.pick(lambda s: len(s) == 2)
    g.add("transpose", lambda v: v[k].T, g.shapes[k][::-1])


def _reverse(g: Generator) -> None:
    k = g.pick(lambda s: len(s) == 2)
    axis = int(g.rng.integers(2))
    g.add(f"flip{axis}", lambda v: ts.flip(v[k], axis=axis), g.shapes[k])


def _roll(g: Generator) -> None:
    """Two neighbours: a stencil, by slices of a padded array."""
    k = g.pick(lambda s: len(s) == 2 and min(s) > 2)
    if k is None:
        return
    axis = int(g.rng.integers(2))
    size = g.shapes[k][axis]

    def stencil(v: list[Any]) -> Any:
        x = v[k]
        wide = ts.pad(x, [(1, 1) if d == axis else (0, 0) for d in range(2)])
        parts = [
            wide[tuple(slice(o, o + size) if d == axis else slice(None) for d in range(2))]
            for o in (0, 2)
        ]
        return parts[0] + parts[1] - 2.0 * x

    g.add(f"stencil{axis}", stencil, g.shapes[k])


def _shift(g: Generator) -> None:
    k = g.pick(lambda s: len(s) == 2)
    axis = int(g.rng.integers(2))
    by = int(g.rng.integers(1, 3))
    g.add(f"roll{axis}", lambda v: ts.roll(v[k], by, axis=axis), g.shapes[k])


def _concatenate(g: Generator) -> None:
    k = g.pick(lambda s: len(s) == 2 and s[1] % 2 == 0)
    if k is None:
        return
    n, m = g.shapes[k]
    j = g.pick(lambda s: s == (n, m))
    half = m // 2
    g.add("join", lambda v: ts.concat([v[j][:, half:], v[k][:, :half]], axis=1), (n, m))


def _gather(g: Generator) -> None:
    k = g.pick(lambda s: len(s) == 2)
    axis = int(g.rng.integers(2))
    n = g.shapes[k][axis]

    def gather(v: list[Any]) -> Any:
        index = (ts.arange(n, dtype=ts.int32) * 7) % n
        return ts.take(v[k], index, axis=axis)

    g.add(f"take{axis}", gather, g.shapes[k])


def _dot(g: Generator) -> None:
    k = g.pick(lambda s: len(s) == 2 and s[0] * s[1] > 4096 and min(s) >= 32)
    if k is None:
        return
    n, m = g.shapes[k]
    if n * n * m > 1e8 or n > 1024:
        return
    g.add("gram", lambda v: v[k] @ v[k].T * (1.0 / m), (n, n))


def _reshape(g: Generator) -> None:
    k = g.pick(lambda s: len(s) == 2 and s[0] % 2 == 0)
    if k is None:
        return
    n, m = g.shapes[k]
    name = "pairs"
    g.add(name, lambda v: ts.sum(ts.reshape(v[k], (n // 2, 2, m)), axis=1), (n // 2, m))


def _repeat(g: Generator) -> None:
    k = g.pick(lambda s: len(s) == 1 and s[0] in g.shape)
    if k is None:
        return
    size = g.shapes[k][0]
    n, m = g.shape
    if size == m:
        g.add("rows", lambda v: ts.broadcast_to(v[k], (n, m)), (n, m))
    else:
        g.add("columns", lambda v: ts.broadcast_to(v[k][:, None], (n, m)), (n, m))


def _index(g: Generator) -> None:
    k = g.pick(lambda s: len(s) == 2 and s[0] * s[1] > 4096)
    if k is None:
        return
    axis = int(g.rng.integers(2))
    n = g.shapes[k][axis]
    left = g.shapes[k][1 - axis]
    name = str(g.rng.choice(["argmax", "argmin"]))
    g.add(
        f"{name}{axis}",
        lambda v: ts.astype(getattr(ts, name)(v[k], axis=axis), ts.float32) * (1.0 / n),
        (left,),
    )


RULES: tuple[Callable[[Generator], None], ...] = (
    _unary, _unary, _unary, _binary, _binary, _binary, _binary, _where, _reduce, _reduce, _softmax,
    _cumsum, _transpose, _reverse, _roll, _shift, _concatenate, _gather, _dot, _reshape, _repeat,
    _index,
)  # fmt: skip

# --- both forms ---------------------------------------------------------------------------------


class Pieces:
    """A Graph with a program for each of its operations.

    Args:
        graph: after the passes on Graphs.
    """

    def __init__(self, graph: Func) -> None:
        self.graph = graph
        self.programs: list[tuple[Func, list[Value], list[Value]]] = []
        env = {v for op in graph.body.ops if not self._is_free(op) for v in op.results}
        self.stored = env | set(graph.args)
        for op in graph.body.ops:
            if not self._is_free(op):
                self._program([op], list(op.results))
        for value in graph.body.outputs:  # two equal ones are written twice
            if value not in self.stored:
                self._program([value.op] if value.op else [], [value])

    @staticmethod
    def _is_free(op: Op) -> bool:
        return getattr(op, "family", None) in FREE

    def _program(self, ops: list[Op | None], results: list[Value]) -> None:
        """A program of ops and what they read in place."""
        order: dict[Op, None] = {}
        inputs: dict[Value, None] = {}

        def visit(op: Op, is_last: bool) -> None:
            for value in op.operands:
                if value in self.stored or value.op is None:
                    inputs.setdefault(value)
                else:
                    visit(value.op, False)
            order.setdefault(op)

        for op in ops:
            assert op is not None
            visit(op, True)
        env: dict[Value, Value] = {v: Value(v.type, v.name) for v in inputs}
        args = list(env.values())
        fresh: list[Op] = []
        for op in order:
            new = op.rebuild([env[v] for v in op.operands], op.regions)
            env.update(zip(op.results, new.results, strict=True))
            fresh.append(new)
        outputs = [env[v] for v in results]
        self.programs.append((Func("piece", Block(args, fresh, outputs), ()), [*inputs], results))


def bound(found: Executable, inputs: Sequence[np.ndarray], outputs: list[np.ndarray]) -> Any:
    """The executable as a function of nothing."""
    size = found.scratch()
    scratch: Any = aligned_empty((size,), np.dtype(np.uint8)) if size else 0
    words = (*inputs, *outputs, scratch)
    caller = found.caller
    return lambda: caller(*words)


def outputs_of(found: Executable) -> list[np.ndarray]:
    """Memory for its outputs."""
    return [aligned_empty(shape, dtype) for shape, dtype, _ in found.output_shapes({})]


def both(
    graph: Func, inputs: list[np.ndarray]
) -> tuple[Callable[[], None], Callable[[], None], list[Any], list[Any]]:
    """The program whole and in pieces, and where each writes."""
    lowered = Lowered(graph)
    whole = lowered.executable()
    results = outputs_of(whole)
    pieces = Pieces(lowered.graph)
    memory: dict[Value, np.ndarray] = dict(zip(lowered.graph.args, inputs, strict=True))
    calls: list[Callable[[], None]] = []
    for func, given, gives in pieces.programs:
        found = Lowered(func).executable()
        made = outputs_of(found)
        calls.append(bound(found, [memory[v] for v in given], made))
        memory.update(zip(gives, made, strict=True))

    def run() -> None:
        for call in calls:
            call()

    expected = [memory[v] for v in lowered.graph.body.outputs]
    return bound(whole, inputs, results), run, results, expected


def least(functions: Sequence[Callable[[], None]], rounds: int) -> list[float]:
    """The least processor time of each, in turns."""
    batches: list[int] = []
    for f in functions:
        f()
        start = time.process_time()
        f()
        batches.append(max(1, int(SAMPLE / max(time.process_time() - start, 1e-7))))
    found = [float("inf")] * len(functions)
    for _ in range(rounds):
        for k, (f, batch) in enumerate(zip(functions, batches, strict=True)):
            f()
            start = time.process_time()
            for _ in range(batch):
                f()
            found[k] = min(found[k], (time.process_time() - start) / batch)
    return found


def examine(seed: int, show: bool) -> dict[str, Any]:
    """One program: its times, whole and in pieces."""
    rng = np.random.default_rng(seed)
    generator = Generator(rng)
    generator.generate(int(rng.integers(3, 10)))
    arrays = [rng.normal(size=shape).astype(np.float32) for shape in generator.inputs]
    graph = ts.make_graph(generator.run)(*arrays)
    whole, pieces, found, expected = both(graph, arrays)
    times = least([whole, pieces], 5)
    differing = 0.0
    for a, b in zip(found, expected, strict=True):
        wrong = np.abs(a - b) > 1e-3 * np.abs(b).max(initial=1.0)
        differing = max(differing, float(np.mean(wrong)))
    if times[0] > SLOWER * times[1]:
        again = least([whole, pieces], 25)
        times = [min(a, b) for a, b in zip(times, again, strict=True)]
    if show:
        print(graph)
        print(Lowered(graph).why())
    return {
        "seed": seed,
        "program": generator.names(),
        "whole_us": round(1e6 * times[0], 1),
        "pieces_us": round(1e6 * times[1], 1),
        "ratio": round(times[0] / times[1], 3),
        "differing": differing,
    }


def main() -> None:
    """Prints what is slower whole, and what the others are like."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--count", type=int, default=60, help="how many programs")
    parser.add_argument("--show", action="store_true", help="print each program, and why it is so")
    parser.add_argument("--json", type=Path, help="a file for the figures")
    options = parser.parse_args()
    rows: list[dict[str, Any]] = []
    with ts.config.update(threads=1):
        for seed in range(options.first, options.first + options.count):
            row = examine(seed, options.show)
            rows.append(row)
            if row["ratio"] > SLOWER or options.show:
                print(f"{row['ratio']:.2f}  {row['whole_us']} us, in pieces {row['pieces_us']} us"
                      f"  seed {seed}  {row['program']}", flush=True)  # fmt: skip
            if row["differing"] > DIFFERING:
                print(f"seed {seed}: {row['differing']:.0%} of a result differ; is it what is left"
                      f" of numbers that cancel?  {row['program']}", flush=True)  # fmt: skip
    slower = [row for row in rows if row["ratio"] > SLOWER]
    mean = statistics.geometric_mean([row["ratio"] for row in rows])
    print(f"{len(slower)} of {len(rows)} are slower whole; the mean of all ratios is {mean:.2f}")
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
