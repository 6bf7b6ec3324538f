"""How long it takes to compile the training step of a transformer, beside JAX, and small functions.

One program, written once for both: a GPT-2-like model (learned positions, pre-normalised blocks of
causal attention and a GELU layer), its cross entropy, the gradient and a step of Adam. It is
traced, differentiated and compiled for the CPU, not run. JAX's time is that of
`jax.jit(step).trace(...)`, `.lower()` and `.compile()`. Tessera's are the steps that are Python
(tracing, the Graph's passes, and lowering through Schedule, Tile and Target to the text for LLVM)
and LLVM's, which begin while texts are still written. Each sample is a fresh process, in turn;
caches on disk are empty. `warm` is another process with the caches that the one before it filled:
it traces, and loads what was kept.

Small functions are compiled with caches off, in one process each time, whose own start is measured
too: importing, and what the first compilation of any process needs.

    python benchmarks/compile_time.py --runs 5 --json benchmarks/results/compile-time.json
    python benchmarks/compile_time.py --check         # both compute the same, on a small model
    python benchmarks/compile_time.py --profile       # where Tessera's time goes, by function
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Sizes:
    """The model's sizes; these are GPT-2's smallest, but for the length."""

    batch: int = 4
    length: int = 128
    width: int = 768
    heads: int = 12
    vocabulary: int = 50257


GPT2 = Sizes()
SMALL = Sizes(2, 8, 16, 2, 11)
RATE, DECAY1, DECAY2, EPSILON = 1e-3, 0.9, 0.999, 1e-8


def block_shapes(width: int) -> dict[str, tuple[int, ...]]:
    """The parameters of a block."""
    shapes: dict[str, tuple[int, ...]] = {
        "qkv": (width, 3 * width),
        "qkv_bias": (3 * width,),
        "out": (width, width),
        "out_bias": (width,),
        "up": (width, 4 * width),
        "up_bias": (4 * width,),
        "down": (4 * width, width),
        "down_bias": (width,),
    }
    for norm in ("first", "second"):
        shapes[f"{norm}_scale"] = shapes[f"{norm}_shift"] = (width,)
    return shapes


def model_shapes(sizes: Sizes, layers: int) -> dict[str, Any]:
    """The parameters of the model."""
    return {
        "tokens": (sizes.vocabulary, sizes.width),
        "positions": (sizes.length, sizes.width),
        "blocks": [block_shapes(sizes.width) for _ in range(layers)],
        "scale": (sizes.width,),
        "shift": (sizes.width,),
    }


def normalize(xp: Any, x: Any, scale: Any, shift: Any) -> Any:
    """Layer normalisation."""
    centred = x - xp.mean(x, axis=-1, keepdims=True)
    variance = xp.mean(centred * centred, axis=-1, keepdims=True)
    return centred / xp.sqrt(variance + 1e-5) * scale + shift


def attention(xp: Any, sizes: Sizes, p: Any, x: Any) -> Any:
    """Causal attention of several heads."""
    batch, length, width, heads = sizes.batch, sizes.length, sizes.width, sizes.heads
    qkv = xp.reshape(x @ p["qkv"] + p["qkv_bias"], (batch, length, 3, heads, width // heads))
    q, k, v = (xp.permute_dims(qkv[:, :, n], (0, 2, 1, 3)) for n in range(3))
    scores = q @ xp.permute_dims(k, (0, 1, 3, 2)) / (width // heads) ** 0.5
    places = xp.arange(length)
    scores = xp.where(places[:, None] >= places[None, :], scores, -1e9)
    weights = xp.exp(scores - xp.max(scores, axis=-1, keepdims=True))
    weights = weights / xp.sum(weights, axis=-1, keepdims=True)
    found = xp.reshape(xp.permute_dims(weights @ v, (0, 2, 1, 3)), (batch, length, width))
    return found @ p["out"] + p["out_bias"]


def block(xp: Any, sizes: Sizes, p: Any, x: Any) -> Any:
    """One block."""
    x = x + attention(xp, sizes, p, normalize(xp, x, p["first_scale"], p["first_shift"]))
    h = normalize(xp, x, p["second_scale"], p["second_shift"]) @ p["up"] + p["up_bias"]
    h = 0.5 * h * (1 + xp.tanh(0.7978845608 * (h + 0.044715 * h * h * h)))
    return x + h @ p["down"] + p["down_bias"]


def make_step(xp: Any, value_and_grad: Any, tree_map: Any, sizes: Sizes = GPT2) -> Any:
    """The training step with one library."""

    def loss(params: Any, tokens: Any, targets: Any) -> Any:
        x = xp.take(params["tokens"], tokens, axis=0) + params["positions"]
        for p in params["blocks"]:
            x = block(xp, sizes, p, x)
        logits = normalize(xp, x, params["scale"], params["shift"]) @ params["tokens"].T
        shifted = logits - xp.max(logits, axis=-1, keepdims=True)
        total = xp.log(xp.sum(xp.exp(shifted), axis=-1))
        picked = xp.take_along_axis(shifted, targets[:, :, None], axis=-1)[:, :, 0]
        return xp.mean(total - picked)

    def step(params: Any, first: Any, second: Any, count: Any, tokens: Any, targets: Any) -> Any:
        value, grads = value_and_grad(loss)(params, tokens, targets)
        first = tree_map(lambda m, g: DECAY1 * m + (1 - DECAY1) * g, first, grads)
        second = tree_map(lambda v, g: DECAY2 * v + (1 - DECAY2) * g * g, second, grads)
        count = count + 1
        rate = RATE * xp.sqrt(1 - DECAY2**count) / (1 - DECAY1**count)
        params = tree_map(
            lambda p, m, v: p - rate * m / (xp.sqrt(v) + EPSILON), params, first, second
        )
        return params, first, second, count, value

    return step


def arguments(
    layers: int, make: Any, float32: Any, int32: Any, sizes: Sizes = GPT2
) -> tuple[Any, ...]:
    """The arguments of a step, each made of a shape and a dtype."""

    def built(node: Any) -> Any:
        if isinstance(node, dict):
            return {k: built(v) for k, v in node.items()}
        return [built(v) for v in node] if isinstance(node, list) else make(node, float32)

    state = [built(model_shapes(sizes, layers)) for _ in range(3)]
    words = [make((sizes.batch, sizes.length), int32) for _ in range(2)]
    return (*state, make((), float32), *words)


def check() -> None:
    """Both compute the same."""
    import jax
    import jax.numpy as jnp
    import numpy as np

    import tessera as ts

    def draw(shape: tuple[int, ...], dtype: Any) -> Any:
        if dtype is np.int32:
            return rng.integers(0, SMALL.vocabulary, shape, np.int32)
        return np.abs(rng.normal(size=shape) / 4).astype(dtype)

    rng = np.random.default_rng(0)
    given = arguments(2, draw, np.float32, np.int32, SMALL)
    first = jax.jit(make_step(jnp, jax.value_and_grad, jax.tree.map, SMALL))(*given)
    second = ts.jit(make_step(ts, ts.value_and_grad, ts.pytree.map_, SMALL))(*given)
    leaves = [jax.tree.leaves(found) for found in (first, jax.tree.map(np.asarray, second))]
    for x, y in zip(*leaves, strict=True):
        np.testing.assert_allclose(x, y, rtol=2e-4, atol=2e-5)
    print(f"both compute the same: {len(leaves[0])} arrays")


def measure_jax(layers: int) -> dict[str, float]:
    """Seconds of JAX's steps."""
    import jax
    import jax.numpy as jnp

    step = make_step(jnp, jax.value_and_grad, jax.tree.map)
    given = arguments(layers, jax.ShapeDtypeStruct, jnp.float32, jnp.int32)
    jax.jit(lambda x: jnp.sin(x) @ x)(jnp.ones((2, 2)))  # what is loaded once is no part of it
    start = time.perf_counter()
    traced = jax.jit(step).trace(*given)
    middle = time.perf_counter()
    lowered = traced.lower()
    late = time.perf_counter()
    lowered.compile()
    end = time.perf_counter()
    return {"trace": middle - start, "lower": late - middle, "compile": end - late}


def measure_warm(layers: int) -> dict[str, float]:
    """Seconds of Tessera's steps where an equal program is kept."""
    import tessera as ts
    from tessera.compile import lower

    step = make_step(ts, ts.value_and_grad, ts.pytree.map_)
    given = arguments(layers, ts.ShapeDtypeStruct, ts.float32, ts.int32)
    ts.jit(lambda x: ts.sin(x) @ x)(ts.ones((2, 2)))
    start = time.perf_counter()
    traced = ts.jit(step).trace(*given)
    middle = time.perf_counter()
    lowered = lower(traced.graph)
    lowered.executable()
    end = time.perf_counter()
    if set(lowered.timings) != {"load"}:
        raise SystemExit("the program was not kept: did a source change?")
    return {"trace": middle - start, "load": end - middle}


def measure_small() -> dict[str, float]:
    """Seconds from the start of Python's work to small functions that are compiled."""
    start = time.perf_counter()
    import tessera as ts
    import tessera.nn

    imported = time.perf_counter()
    x = ts.ones((64, 64))
    made = time.perf_counter()
    ts.jit(lambda x: x - 1)(x)
    compiled = time.perf_counter()
    large = ts.ones(1 << 20)
    ts.jit(lambda x: x - 1)(large)
    found = {
        "start: import": imported - start,
        "start: first array": made - imported,
        "start: first function": compiled - made,
        "start: threads": time.perf_counter() - compiled,
    }
    functions: dict[str, Any] = {
        "x * 2 + 1": lambda x: x * 2 + 1,
        "sum(tanh(x) ** 2)": lambda x: ts.sum(ts.tanh(x) ** 2),
        "sin(x) + cos(x)": lambda x: ts.sin(x) + ts.cos(x),
        "softmax": lambda x: tessera.nn.softmax(x, axis=-1),
        "x @ x": lambda x: x @ x,
        "max over rows": lambda x: ts.max(x, axis=0),
        "where(x > 0, exp(x), x)": lambda x: ts.where(x > 0, ts.exp(x), x),
        "gelu": lambda x: tessera.nn.gelu(x),
    }
    for name, function in functions.items():
        jitted = ts.jit(function)
        start = time.perf_counter()
        jitted(x)
        found[name] = time.perf_counter() - start
    return found


def measure_tessera(layers: int, machine_code: bool) -> dict[str, float]:
    """Seconds of Tessera's steps; those in parentheses are parts of the others, and a second core
    makes machine code while texts are still written."""
    import tessera as ts

    step = make_step(ts, ts.value_and_grad, ts.pytree.map_)
    given = arguments(layers, ts.ShapeDtypeStruct, ts.float32, ts.int32)
    ts.jit(lambda x: ts.sin(x) @ x)(ts.ones((2, 2)))
    start = time.perf_counter()
    traced = ts.jit(step).trace(*given)
    middle = time.perf_counter()
    lowered = traced.lower()
    late = time.perf_counter()
    if machine_code:
        lowered.executable()
    else:
        assert lowered.llvm
    end = time.perf_counter()
    found = {"trace": middle - start, "graph, schedule": late - middle}
    found["tile ... machine code" if machine_code else "tile ... llvm"] = end - late
    found.update({f"({name})": seconds for name, seconds in lowered.timings.items()})
    return found


def sample(which: str, layers: int, folder: str = "") -> dict[str, float]:
    """One measurement in a fresh process, with a folder for the caches."""
    command = [sys.executable, __file__, "--only", which, "--layers", str(layers)]
    env = {**os.environ, "TESSERA_CACHE_DIR": folder, "JAX_PLATFORMS": "cpu"}
    env.pop("TESSERA_CACHE", None)
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=env)
    if done.returncode:
        raise SystemExit(f"{which} failed:\n{done.stderr}")
    return json.loads(done.stdout.splitlines()[-1])


def profile(layers: int) -> None:
    """Prints where Tessera's time goes."""
    import cProfile
    import pstats

    profiler = cProfile.Profile()
    profiler.enable()
    measure_tessera(layers, machine_code=False)
    profiler.disable()
    pstats.Stats(profiler).sort_stats("tottime").print_stats(45)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--runs", type=int, default=3, help="fresh processes of each")
    parser.add_argument("--layers", type=int, default=12, help="blocks of the model")
    parser.add_argument("--limit", type=float, help="fail when the ratio is above this")
    parser.add_argument("--json", help="file for the figures")
    parser.add_argument("--profile", action="store_true", help="where the time goes, by function")
    parser.add_argument("--check", action="store_true", help="compare results on a small model")
    kinds = ["jax", "tessera", "warm", "small"]
    parser.add_argument("--only", choices=kinds, help="one sample, in this process")
    args = parser.parse_args()
    if args.profile:
        profile(args.layers)
        return 0
    if args.check:
        check()
        return 0
    if args.only:
        run: dict[str, Any] = {
            "jax": measure_jax,
            "tessera": lambda n: measure_tessera(n, machine_code=True),
            "warm": measure_warm,
            "small": lambda _: measure_small(),
        }
        print(json.dumps(run[args.only](args.layers)))
        return 0
    found: dict[str, list[dict[str, float]]] = {"jax": [], "tessera": [], "warm": [], "small": []}
    for _ in range(args.runs):
        with tempfile.TemporaryDirectory() as folder:
            for which in ("jax", "tessera", "warm"):
                found[which].append(sample(which, args.layers, folder))
        found["small"].append(sample("small", args.layers))
    medians = {
        which: {name: statistics.median([one[name] for one in samples]) for name in samples[0]}
        for which, samples in found.items()
    }
    small = medians.pop("small")
    totals = {
        which: sum([s for name, s in steps.items() if not name.startswith("(")])
        for which, steps in medians.items()
    }
    for which, steps in medians.items():
        print(f"{which}: {totals[which]:.2f} s")
        for name, seconds in steps.items():
            print(f"    {name:24} {seconds:7.2f} s")
    print("small functions:")
    for name, seconds in small.items():
        print(f"    {name:24} {1e3 * seconds:7.1f} ms")
    ratio, warm = totals["tessera"] / totals["jax"], totals["warm"] / totals["jax"]
    print(f"Tessera over JAX: {ratio:.2f}; with its caches filled: {warm:.3f}")
    if args.json:
        figures = {
            "date": time.strftime("%Y-%m-%d"),
            "machine": f"{platform.machine()}, {os.cpu_count()} cores",
            "layers": args.layers,
            "runs": args.runs,
            "seconds": medians,
            "small": small,
            "ratio": ratio,
            "warm ratio": warm,
        }
        with open(args.json, "w", encoding="utf-8") as file:
            json.dump(figures, file, indent=1)
            file.write("\n")
    return int(args.limit is not None and ratio > args.limit)


if __name__ == "__main__":
    raise SystemExit(main())
