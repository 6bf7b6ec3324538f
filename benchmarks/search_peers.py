"""Looks for programs that are slower than JAX's, or differ: random ones of ordinary array code.

A random program is a few steps such as users write on arrays of one dtype: layers, normalisations,
reductions, slices, gathers, segment sums and scans of any shape, or parts of models
(`model_steps.py`), or what is computed on grids (`field_steps.py`). It is one function of the
arrays and of a library, so that both run the same; so are its gradients for all arrays, of a
weighted sum of its last two values. Both libraries run in one process, in turn, with as many
threads as they take. What looks slower is measured again before it is believed, and what fails is
said.

    python benchmarks/search_peers.py                        # 60 programs, a minute
    python benchmarks/search_peers.py --first 1000 --count 500 --json found.json
    python benchmarks/search_peers.py --of models --dtype bfloat16
    python benchmarks/search_peers.py --of fields --count 200
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ["TESSERA_CACHE"] = "off"

import field_steps
import ml_dtypes  # noqa: F401 - names of dtypes
import model_steps
import numpy as np
from cpu.libraries import Library, load

SIZES = (1, 2, 3, 4, 5, 7, 8, 12, 16, 17, 31, 32, 33, 48, 64, 65, 100, 128, 130, 200, 256, 300, 512,
         777, 1000, 1024, 2048, 3001, 5000)  # fmt: skip
ELEMENTS = 1_200_000
"""Elements of the largest array that a program begins with."""

STEPS = 4
SAMPLE = 0.1
"""Seconds for the samples of one library."""

SLOWER = 0.9
"""JAX's time over ours below this is slower."""

OF = ("arrays", "models", "fields")
"""What steps are of."""

SHORT = 1e-5
"""Seconds: shorter calls are what `cpu/costs.py` is for."""

DIFFERING = {"float32": 1e-2, "float64": 1e-6, "bfloat16": 0.3, "float16": 0.1}
"""By dtype the largest difference allowed, relative to the largest magnitude. XLA may round a value
that is compared with its own maximum otherwise the second time: such gradients differ from ours,
and from JAX's own without `jit`. In bfloat16 it adds up what we add in float32."""

Shape = tuple[int, ...]
Step = Callable[..., Any]


class Program:
    """One random program.

    Attributes:
        dtype: of all arrays.
        params: shape and scale of each array that it takes.
        steps: each makes one value, of the library, the arrays and earlier values.
        names: what the steps do.
    """

    def __init__(self, seed: int, dtype: str = "float32", of: str = "arrays") -> None:
        self.dtype = np.dtype(dtype)
        kinds = {"arrays": KINDS, "models": model_steps.KINDS, "fields": field_steps.KINDS}[of]
        begin = {"models": model_steps.first, "fields": field_steps.first}.get(of)
        self.rng = np.random.default_rng(seed)
        self.params: list[tuple[Shape, float]] = []
        self.steps: list[tuple[Step, tuple[int, ...]]] = []
        self.shapes: list[Shape] = []
        self.names: list[str] = []
        while not self.params:
            shape = begin(self.rng) if begin else self.any_shape()
            if np.prod(shape) <= ELEMENTS:
                self.param(shape)
        self.add("x", lambda lib, p: p[0], ())
        wanted = int(self.rng.integers(2, STEPS + 1))
        for _ in range(20 * wanted):
            if len(self.steps) > wanted:
                break
            kept = len(self.params)
            latest = self.rng.random() < 0.75
            at = len(self.steps) - 1 if latest else int(self.rng.integers(len(self.steps)))
            kind = kinds[int(self.rng.integers(len(kinds)))]
            if not kind(self, at, self.shapes[at]):
                del self.params[kept:]

    def any_shape(self) -> Shape:
        """Of an array of one to four dims."""
        return tuple([self.size() for _ in range(self.rng.choice([1, 2, 2, 2, 3, 3, 3, 4]))])

    def size(self) -> int:
        """Of a dim."""
        return int(self.rng.choice(SIZES))

    def param(self, shape: Shape, scale: float = 1.0) -> int:
        """One more array."""
        self.params.append((shape, scale))
        return len(self.params) - 1

    def add(self, name: str, step: Step, args: tuple[int, ...]) -> bool:
        """Appends a value, unless it is too large; whether it did."""
        import jax

        lib = load("jax")
        given = [jax.ShapeDtypeStruct(self.shapes[k], self.dtype) for k in args]
        params = [jax.ShapeDtypeStruct(shape, self.dtype) for shape, _ in self.params]
        shape = jax.eval_shape(lambda p, v: step(lib, p, *v), params, given).shape
        if np.prod(shape) > 4 * ELEMENTS or 0 in shape:
            return False
        self.steps.append((step, args))
        self.shapes.append(shape)
        self.names.append(f"{name} {list(args)} -> {list(shape)}")
        return True

    def arrays(self, rng: np.random.Generator) -> list[np.ndarray]:
        """What it takes."""
        found = [rng.standard_normal(shape) * scale for shape, scale in self.params]
        return [x.astype(self.dtype) for x in found]

    def run(self, lib: Library, params: Sequence[Any]) -> tuple[Any, Any]:
        """The last two values."""
        values: list[Any] = []
        for step, args in self.steps:
            values.append(step(lib, params, *[values[k] for k in args]))
        return values[-1], values[-2]

    def loss(self, lib: Library, params: Sequence[Any], weights: Sequence[Any]) -> Any:
        """Their weighted sum."""
        found = zip(self.run(lib, params), weights, strict=True)
        return sum([lib.xp.sum(x * w) for x, w in found])


# --- steps --------------------------------------------------------------------------------------


def unary(g: Program, at: int, shape: Shape) -> bool:
    """An elementwise function."""
    name = str(g.rng.choice(["tanh", "sin", "gelu", "relu", "decay", "root", "square", "silu"]))
    steps: dict[str, Step] = {
        "tanh": lambda lib, p, x: lib.xp.tanh(x),
        "sin": lambda lib, p, x: lib.xp.sin(x * 1.5),
        "gelu": lambda lib, p, x: lib.nn.gelu(x, approximate=True),
        "relu": lambda lib, p, x: lib.nn.relu(x),
        "decay": lambda lib, p, x: lib.xp.exp(-lib.xp.abs(x)),
        "root": lambda lib, p, x: lib.xp.sqrt(x * x + 0.5),
        "square": lambda lib, p, x: x * x * 0.5,
        "silu": lambda lib, p, x: x * lib.nn.sigmoid(x),
    }
    return g.add(name, steps[name], (at,))


def binary(g: Program, at: int, shape: Shape) -> bool:
    """A function of two values of one shape."""
    other = int(g.rng.choice([k for k, own in enumerate(g.shapes) if own == shape]))
    name = str(g.rng.choice(["add", "mul", "sub", "div", "max", "where"]))
    steps: dict[str, Step] = {
        "add": lambda lib, p, x, y: x + y,
        "mul": lambda lib, p, x, y: x * y,
        "sub": lambda lib, p, x, y: x - 0.5 * y,
        "div": lambda lib, p, x, y: x / (1 + y * y),
        "max": lambda lib, p, x, y: lib.xp.maximum(x, y * 0.9 + 0.01),
        "where": lambda lib, p, x, y: lib.xp.where(x > y * 0.7 + 0.013, x, y * 0.3),
    }
    return g.add(name, steps[name], (at, other))


def bias(g: Program, at: int, shape: Shape) -> bool:
    """A sum or product with an array that is broadcast."""
    own = tuple([n if g.rng.random() < 0.6 else 1 for n in shape])
    k, adds = g.param(own), g.rng.random() < 0.5
    return g.add("bias", lambda lib, p, x: x + p[k] if adds else x * p[k], (at,))


def layer(g: Program, at: int, shape: Shape) -> bool:
    """A product with weights, as they are or transposed, and what follows it."""
    width, deep = g.size(), shape[-1] ** -0.5
    turned, act = g.rng.random() < 0.4, int(g.rng.integers(3))
    k = g.param((width, shape[-1]) if turned else (shape[-1], width), deep)
    b = g.param((width,))

    def step(lib: Library, p: Sequence[Any], x: Any) -> Any:
        y = x @ (lib.xp.matrix_transpose(p[k]) if turned else p[k]) + p[b]
        return (y, lib.nn.gelu(y, approximate=True), lib.nn.relu(y))[act]

    return g.add("layer, turned" if turned else "layer", step, (at,))


def gram(g: Program, at: int, shape: Shape) -> bool:
    """A product with itself."""
    if len(shape) < 2 or shape[-2] > 300:
        return False
    turn = (*range(len(shape) - 2), len(shape) - 1, len(shape) - 2)
    step: Step = lambda lib, p, x: x @ lib.xp.permute_dims(x, turn) * (1.0 / shape[-1])  # noqa: E731
    return g.add("gram", step, (at,))


def reduction(g: Program, at: int, shape: Shape) -> bool:
    """A reduction over some axes, and perhaps what is left without it."""
    axes = tuple([k for k in range(len(shape)) if g.rng.random() < 0.45]) or (len(shape) - 1,)
    if len(axes) == len(shape):
        axes = axes[1:]
    if not axes:
        return False
    name = str(g.rng.choice(["sum", "mean", "max", "min", "var"]))
    keeps, subtracts = bool(g.rng.random() < 0.6), g.rng.random() < 0.6

    def step(lib: Library, p: Sequence[Any], x: Any) -> Any:
        y = getattr(lib.xp, name)(x, axis=axes, keepdims=keeps)
        return x - y if keeps and subtracts else y

    return g.add(f"{name} {list(axes)}", step, (at,))


def norm(g: Program, at: int, shape: Shape) -> bool:
    """A softmax along an axis, or a layer normalisation."""
    axis = int(g.rng.integers(len(shape)))
    if shape[axis] < 3 or shape[-1] < 3:
        return False
    if g.rng.random() < 0.5:
        return g.add(f"softmax {axis}", lambda lib, p, x: lib.nn.softmax(x, axis=axis), (at,))
    k = g.param((shape[-1],))

    def step(lib: Library, p: Sequence[Any], x: Any) -> Any:
        centred = x - lib.xp.mean(x, axis=-1, keepdims=True)
        square = lib.xp.mean(centred * centred, axis=-1, keepdims=True)
        return centred / lib.xp.sqrt(square + 1e-2) * p[k]

    return g.add("layer norm", step, (at,))


def movement(g: Program, at: int, shape: Shape) -> bool:
    """What moves elements."""
    axis, rng = int(g.rng.integers(len(shape))), g.rng
    before = (slice(None),) * axis
    order = tuple([int(k) for k in rng.permutation(len(shape))])
    by, first = int(rng.integers(-shape[axis], shape[axis] + 1)), int(rng.integers(shape[axis]))
    step, times = int(rng.integers(1, 4)), int(rng.integers(2, 4))
    widths = tuple([(int(rng.integers(4)), 1) if k == axis else (0, 0) for k in range(len(shape))])
    flat = (*shape[: axis - 1], shape[axis - 1] * shape[axis], *shape[axis + 1 :])
    steps: dict[str, Step] = {
        f"permute {list(order)}": lambda lib, p, x: lib.xp.permute_dims(x, order),
        f"flip {axis}": lambda lib, p, x: lib.xp.flip(x, axis=axis),
        f"roll {by}, {axis}": lambda lib, p, x: lib.xp.roll(x, by, axis=axis),
        f"pad {axis}": lambda lib, p, x: lib.xp.pad(x, widths),
        f"slice {first}::{step}, {axis}": lambda lib, p, x: x[(*before, slice(first, None, step))],
        f"twice {axis}": lambda lib, p, x: lib.xp.concat([x, x * 2], axis=axis),
        f"repeat {times}, {axis}": lambda lib, p, x: lib.xp.repeat(x, times, axis=axis),
    }
    if axis:
        steps["reshape"] = lambda lib, p, x: lib.xp.reshape(x, flat)
    name = str(rng.choice(list(steps)))
    return g.add(name, steps[name], (at,))


def running(g: Program, at: int, shape: Shape) -> bool:
    """A running sum, from either end."""
    axis, back = int(g.rng.integers(len(shape))), g.rng.random() < 0.4
    scale = shape[axis] ** -0.5

    def step(lib: Library, p: Sequence[Any], x: Any) -> Any:
        x = lib.xp.flip(x, axis=axis) if back else x
        x = lib.xp.cumsum(x, axis=axis) * scale
        return lib.xp.flip(x, axis=axis) if back else x

    return g.add(f"running sum {axis}", step, (at,))


def places(g: Program, at: int, shape: Shape) -> bool:
    """A gather, a sort, or an update of rows at places that are arguments."""
    axis, count = int(g.rng.integers(len(shape))), g.size()
    name = str(g.rng.choice(["take", "add rows", "segments", "sort"]))
    limit = shape[axis] if name == "take" else shape[0]
    segments = int(g.rng.integers(1, 40))
    index = g.rng.integers(0, limit, count)
    number = np.sort(g.rng.integers(0, segments, shape[0]))
    k = g.param((count, *shape[1:])) if name == "add rows" else 0

    def summed(lib: Library, p: Sequence[Any], x: Any) -> Any:
        zeros = lib.xp.zeros((segments, *shape[1:]), dtype=x.dtype)
        return zeros.at[lib.xp.asarray(number)].add(x)

    steps: dict[str, Step] = {
        "take": lambda lib, p, x: lib.xp.take(x, lib.xp.asarray(index), axis=axis),
        "add rows": lambda lib, p, x: x.at[lib.xp.asarray(index)].add(p[k] * 0.3),
        "segments": summed,
        "sort": lambda lib, p, x: lib.xp.sort(x, axis=axis),
    }
    if name == "sort" and at:
        return False  # what is rounded differently may change places
    return g.add(f"{name} {axis}", steps[name], (at,))


def loop(g: Program, at: int, shape: Shape) -> bool:
    """A recurrence along the first axis."""
    if len(shape) < 2 or shape[0] > 200:
        return False
    k = g.param((shape[-1], shape[-1]), 0.5 * shape[-1] ** -0.5) if shape[-1] <= 256 else 0

    def step(lib: Library, p: Sequence[Any], x: Any) -> Any:
        def turn(state: Any, row: Any) -> tuple[Any, Any]:
            new = lib.xp.tanh(state @ p[k] + row) if k else 0.9 * state + 0.3 * row
            return new, new

        return lib.scan(turn, x[0] * 0, x)[1]

    return g.add("recurrence", step, (at,))


KINDS = (unary, unary, binary, bias, layer, layer, gram, reduction, reduction, norm, movement,
         movement, movement, running, places, places, loop)  # fmt: skip


# --- measuring ----------------------------------------------------------------------------------


def seconds(run: Callable[[], Any]) -> list[float]:
    """Of some calls."""
    run()
    start = time.perf_counter()
    run()
    once = time.perf_counter() - start
    found: list[float] = []
    for _ in range(max(3, min(int(SAMPLE / max(once, 1e-6)), 300))):
        start = time.perf_counter()
        run()
        found.append(time.perf_counter() - start)
    return found


def measure(program: Program, seed: int, libs: Sequence[Library]) -> list[dict[str, Any]]:
    """Ours and JAX's times of a program and of its gradients, and how far results differ."""
    rng = np.random.default_rng(seed + 1)
    arrays = program.arrays(rng)
    weights = [rng.standard_normal(program.shapes[k]).astype(program.dtype) for k in (-1, -2)]
    rows: list[dict[str, Any]] = []
    for what in ("values", "gradients"):
        calls: list[Callable[[], Any]] = []
        for lib in libs:

            def values(a: Any, lib: Library = lib) -> Any:
                return program.run(lib, a[0])

            def gradients(a: Any, lib: Library = lib) -> Any:
                return lib.grad(lambda p: program.loss(lib, p, a[1]))(a[0])

            given = tuple([[lib.asarray(x) for x in part] for part in (arrays, weights)])
            fn = lib.jit(values if what == "values" else gradients)
            calls.append(lambda fn=fn, given=given, lib=lib: lib.wait(fn(given)))
        ours, theirs = [[np.asarray(x, np.float64) for x in call()] for call in calls]
        error = max([_error(a, b) for a, b in zip(ours, theirs, strict=True)])
        times = [seconds(call) for call in calls]
        if min(times[0]) > SLOWER * min(times[1]):
            times = [old + seconds(call) for old, call in zip(times, calls, strict=True)]
        row = {"seed": seed, "what": what, "error": error, "steps": program.names}
        row |= {"ours": min(times[0]), "jax": min(times[1])}
        rows.append(row | {"ratio": float(np.median(times[1]) / np.median(times[0]))})
    return rows


def _error(a: np.ndarray, b: np.ndarray) -> float:
    if a.shape != b.shape or not np.array_equal(np.isnan(a), np.isnan(b)):
        return float("inf")
    return float(np.nanmax(np.abs(a - b)) / (np.nanmax(np.abs(b)) + 1e-3)) if a.size else 0.0


def main() -> None:
    """Searches."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--count", type=int, default=60, help="how many programs")
    parser.add_argument("--of", default="arrays", choices=OF, help="which steps")
    parser.add_argument(
        "--dtype", default="float32", choices=tuple(DIFFERING), help="of all arrays"
    )
    parser.add_argument("--json", type=Path, help="write all figures here")
    asked = parser.parse_args()
    if asked.dtype == "float64":
        os.environ["JAX_ENABLE_X64"] = "1"
    libs = [load("tessera"), load("jax")]
    rows: list[dict[str, Any]] = []
    failed = 0
    for seed in range(asked.first, asked.first + asked.count):
        program = Program(seed, asked.dtype, asked.of)
        try:
            measured = measure(program, seed, libs)
        except Exception as problem:
            failed += 1
            print(f"{seed} FAILS: {type(problem).__name__}: {problem}"[:400])
            print("   ", "; ".join(program.names), flush=True)
            continue
        for row in measured:
            rows.append(row)
            is_slow = row["jax"] < SLOWER * row["ours"] and row["ours"] > SHORT
            is_other = row["error"] > DIFFERING[asked.dtype]
            if is_slow or is_other:
                times = f"ours {1e6 * row['ours']:.0f} us, jax {1e6 * row['jax']:.0f}"
                differs = f"  DIFFERS by {row['error']:.1e}" if is_other else ""
                steps = "; ".join(row["steps"])
                print(f"{seed} {row['what']}: {times}{differs}  {steps}", flush=True)
    for what in ("values", "gradients"):
        ratios = [row["ratio"] for row in rows if row["what"] == what]
        slow = sum(ratio < SLOWER for ratio in ratios)
        mean = float(np.exp(np.mean(np.log(ratios))))
        print(f"{what}: {mean:.2f} times as fast as jax, {slow} of {len(ratios)} slower")
    if failed:
        print(f"{failed} programs fail")
    if asked.json:
        asked.json.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
