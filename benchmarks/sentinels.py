"""What sentinels cost: a transformer block, and a small language model, with and without `check=`.

    python benchmarks/sentinels.py [device]

Processor time on a CPU; on a GPU, which takes a larger block besides, the time until results are
there. The least and the middle of some calls, in turns. The block has no indices that are data; the
model has an embedding in front of the block, and behind it the loss of the next word.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

import tessera as ts

WORDS, HEAD = 2000, 64
SIZES = {"cpu": ((2, 256, 384),), "gpu": ((2, 256, 384), (16, 1024, 768))}
"""Sequences, their length, and the width."""
CHECKS = ("", "nan", "nan,inf", "nan,inf,overflow", "bounds", "nan,inf,overflow,bounds")
CALLS = 20


def block(p: Any, x: Any) -> Any:
    """Attention and a perceptron, each after a normalisation and beside a shortcut."""
    batch, length, width = x.shape

    def normal(x: Any) -> Any:
        centred = x - ts.mean(x, axis=-1, keepdims=True)
        return centred / ts.sqrt(ts.mean(centred * centred, axis=-1, keepdims=True) + 1e-5)

    def heads(x: Any) -> Any:
        parts = ts.reshape(x, (batch, length, width // HEAD, HEAD))
        return ts.permute_dims(parts, (0, 2, 1, 3))

    q, k, v = (heads(normal(x) @ p[name]) for name in "qkv")
    found = ts.softmax(q @ ts.permute_dims(k, (0, 1, 3, 2)) / 8.0, axis=-1) @ v
    x = x + ts.reshape(ts.permute_dims(found, (0, 2, 1, 3)), x.shape) @ p["o"]
    return x + ts.nn.gelu(normal(x) @ p["a"]) @ p["b"]


def block_loss(p: Any, x: Any) -> Any:
    """A number for each output of the block."""
    return ts.mean(block(p, x) ** 2)


def model(p: Any, words: Any) -> Any:
    """The block on words."""
    return block(p, p["e"][words])


def model_loss(p: Any, words: Any, following: Any) -> Any:
    """The cross entropy of the words that follow."""
    found = ts.nn.log_softmax(model(p, words) @ p["e"].T, axis=-1)
    return -ts.mean(ts.take_along_axis(found, following[..., None], axis=-1))


def step(loss: Callable[..., Any]) -> Callable[..., Any]:
    """A step of gradient descent."""

    def run(p: Any, *data: Any) -> Any:
        slopes = ts.grad(loss)(p, *data)
        return {name: p[name] - 0.1 * slopes[name] for name in p}

    return run


def main() -> None:
    """Prints a line for each size, program and check."""
    device = sys.argv[1] if len(sys.argv) > 1 else "cpu"
    for sizes in SIZES["cpu" if device == "cpu" else "gpu"]:
        print("{} sequences of {}, width {}".format(*sizes))
        measure(device, *sizes)


def measure(device: str, batch: int, length: int, width: int) -> None:
    """Prints a line for each program and check."""
    clock = time.process_time if device == "cpu" else time.perf_counter
    rng = np.random.default_rng(0)
    square = (width, width)
    shapes = {**dict.fromkeys("qkvo", square), "a": (width, 4 * width), "b": (4 * width, width)}

    def params(shapes: dict[str, tuple[int, int]]) -> Any:
        made = {n: (rng.normal(size=s) * 0.02).astype(np.float32) for n, s in shapes.items()}
        return ts.device_put(made, device)

    p, whole = params(shapes), params({**shapes, "e": (WORDS, width)})
    x = ts.device_put(rng.normal(size=(batch, length, width)).astype(np.float32), device)
    words, following = (
        ts.device_put(rng.integers(0, WORDS, (batch, length)).astype(np.int32), device)
        for _ in range(2)
    )
    programs: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
        "block": (block, (p, x)),
        "block, training step": (step(block_loss), (p, x)),
        "model": (model, (whole, words)),
        "model, training step": (step(model_loss), (whole, words, following)),
    }
    for name, (f, args) in programs.items():
        functions = [ts.jit(f, check=check) for check in CHECKS]
        times: list[list[float]] = [[] for _ in CHECKS]
        for _ in range(CALLS + 1):
            for g, found in zip(functions, times, strict=True):
                start = clock()
                ts.block_until_ready(g(*args))
                found.append(clock() - start)
        plain = [1e3 * found(times[0][1:]) for found in (np.min, np.median)]
        for check, each in zip(CHECKS, times, strict=True):
            least, middle = (1e3 * found(each[1:]) for found in (np.min, np.median))
            print(
                f"{name:22}{check or '-':26}{least:8.2f} ms {least / plain[0] - 1:+7.1%}"
                f"{middle:8.2f} ms {middle / plain[1] - 1:+7.1%}",
                flush=True,
            )


if __name__ == "__main__":
    main()
