"""A recurrent network learns to write, character by character, from Python's own help texts.

The text is what `help("topics")` knows: 450 kB that ship with Python. An LSTM (Hochreiter and
Schmidhuber, 1997) reads it through `ts.scan`, whose gradient is a loop that runs backwards; one
jitted function is a whole step of Adam, with its loops inside. Samples are drawn by another scan.
The loss and a sample are drawn into `lstm_text.png`.

    python examples/lstm_text.py                    # about a minute on two cores
    python examples/lstm_text.py --steps 4000       # better spelling
"""

from __future__ import annotations

import argparse
import pydoc_data.topics
import textwrap
import time
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")

import numpy as np
from matplotlib import pyplot as plt
from tqdm import tqdm

import tessera as ts

Params = dict[str, Any]


def corpus() -> tuple[str, np.ndarray]:
    """The alphabet, and the text as positions in it; rare characters become `?`."""
    text = "\n\n".join(pydoc_data.topics.topics[name] for name in sorted(pydoc_data.topics.topics))
    kept = sorted({c for c in set(text) if text.count(c) >= 20} | {"?"})
    position = {c: k for k, c in enumerate(kept)}
    return "".join(kept), np.array([position.get(c, position["?"]) for c in text], np.int32)


def init(rng: np.random.Generator, letters: int, width: int) -> Params:
    """Small random weights; gates that forget start open."""

    def weight(n: int, m: int) -> Any:
        return ts.asarray(rng.normal(0, n**-0.5, (n, m)).astype(np.float32))

    bias = np.zeros(4 * width, np.float32)
    bias[width : 2 * width] = 1
    return {
        "embed": weight(letters, 4 * width),
        "hidden": weight(width, 4 * width),
        "bias": ts.asarray(bias),
        "out": weight(width, letters),
        "out_bias": ts.zeros(letters),
    }


def cell(params: Params, state: tuple[Any, Any], x: Any) -> tuple[Any, Any]:
    """One step for a batch of embedded letters: the next state."""
    h, c = state
    gates = h @ params["hidden"] + x
    width = h.shape[1]
    take, forget, show, new = [gates[:, k * width : (k + 1) * width] for k in range(4)]
    c = ts.sigmoid(forget) * c + ts.sigmoid(take) * ts.tanh(new)
    return ts.sigmoid(show) * ts.tanh(c), c


def loss(params: Params, state: tuple[Any, Any], text: Any) -> tuple[Any, tuple[Any, Any]]:
    """Mean cross-entropy of the next letters, and the state at the end; `text` has a row a step."""

    def step(state: tuple[Any, Any], x: Any) -> tuple[Any, Any]:
        state = cell(params, state, x)
        return state, state[0]

    state, shown = ts.scan(step, state, params["embed"][text[:-1]] + params["bias"])
    scores = shown @ params["out"] + params["out_bias"]
    picked = ts.take_along_axis(ts.log_softmax(scores, axis=-1), text[1:][..., None], axis=-1)
    return -ts.mean(picked), state


@ts.jit
def train(params: Params, m: Params, v: Params, count: Any, state: Any, text: Any) -> Any:
    """One step of Adam (Kingma and Ba, 2015), the gradient limited to length 1."""
    (value, state), grads = ts.value_and_grad(loss, has_aux=True)(params, state, text)
    length = ts.sqrt(sum(ts.sum(g * g) for g in grads.values()))
    grads = {k: g / ts.maximum(length, 1.0) for k, g in grads.items()}
    m = {k: 0.9 * m[k] + 0.1 * g for k, g in grads.items()}
    v = {k: 0.999 * v[k] + 0.001 * g * g for k, g in grads.items()}
    rate = 4e-3 * ts.sqrt(1 - 0.999**count) / (1 - 0.9**count)
    params = {k: p - rate * m[k] / (ts.sqrt(v[k]) + 1e-8) for k, p in params.items()}
    return value, params, m, v, state


@ts.jit
def write(params: Params, state: Any, letter: Any, noise: Any) -> Any:
    """Letters drawn one after the other; `noise` is Gumbel's, a row a letter."""

    def step(carry: Any, noise: Any) -> Any:
        state, letter = carry
        state = cell(params, state, params["embed"][letter] + params["bias"])
        scores = state[0] @ params["out"] + params["out_bias"]
        letter = ts.astype(ts.argmax(scores / 0.7 + noise, axis=-1), ts.int32)
        return (state, letter), letter

    return ts.scan(step, (state, letter), noise)[1]


def main() -> None:
    """Trains, writes, and draws."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--length", type=int, default=64, help="letters a step reads")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("lstm_text.png"))
    args = parser.parse_args()

    alphabet, text = corpus()
    rng = np.random.default_rng(args.seed)
    params = init(rng, len(alphabet), args.width)
    m = {k: ts.zeros_like(p) for k, p in params.items()}
    v = {k: ts.zeros_like(p) for k, p in params.items()}
    # Each row of the batch reads its own part of the text from its beginning to its end.
    columns = text[: len(text) // args.batch * args.batch].reshape(args.batch, -1).T
    rest = (ts.zeros((args.batch, args.width)), ts.zeros((args.batch, args.width)))
    state, at, losses = rest, 0, []
    start = time.perf_counter()
    with tqdm(range(1, args.steps + 1), desc="training", unit="step") as bar:
        for count in bar:
            if at + args.length + 1 > len(columns):
                state, at = rest, 0
            part = columns[at : at + args.length + 1]
            value, params, m, v, state = train(params, m, v, np.float32(count), state, part)
            at += args.length
            losses.append(float(value) / np.log(2))
            bar.set_postfix(bits=f"{np.mean(losses[-20:]):.2f}")
    seconds = time.perf_counter() - start

    noise = ts.asarray(rng.gumbel(size=(1000, 1, len(alphabet))).astype(np.float32))
    one = ts.zeros((1, args.width))
    first = ts.asarray(np.array([alphabet.index("\n")], np.int32))
    letters = np.asarray(write(params, (one, one), first, noise))[:, 0]
    sample = "".join(alphabet[k] for k in letters)
    draw(losses, sample, args.out)
    begin, end = float(np.mean(losses[:5])), float(np.mean(losses[-10:]))
    print(f"\n{textwrap.indent(sample, '  | ')}\n")
    print(
        f"{len(text)} letters; bits per letter {begin:.2f} -> {end:.2f} "
        f"({args.steps} steps, {seconds:.1f} s with compilation); drawn into {args.out}"
    )
    if end > 0.8 * begin:
        raise SystemExit("the loss did not drop")


def draw(losses: list[float], sample: str, path: Path) -> None:
    """The loss beside what the network writes."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 5), width_ratios=(3, 4))
    left.plot(losses, color="tab:blue", linewidth=0.8)
    left.set(xlabel="step", ylabel="bits per letter", title="loss")
    right.set_axis_off()
    right.set_title("what it writes")
    lines = [piece for line in sample.split("\n") for piece in textwrap.wrap(line, 60) or [""]]
    shown = "\n".join(lines[:28]).replace("$", r"\$")
    right.text(0, 1, shown, family="monospace", fontsize=8, va="top")
    figure.tight_layout()
    figure.savefig(path, dpi=110)


if __name__ == "__main__":
    main()
