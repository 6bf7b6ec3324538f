"""A network learns the handwritten digits that ship inside scikit-learn.

1,797 images of 8 x 8 pixels, a fifth of them held out; three layers, trained by Adam. The network
is written for one image: `ts.vmap` makes it one for batches, `ts.value_and_grad` differentiates
it, and `ts.jit` compiles the whole training step to one native function. Run it with `make demo`.
"""

from __future__ import annotations

import argparse
import time
from itertools import pairwise
from typing import Any

import numpy as np
from sklearn.datasets import load_digits
from tqdm import tqdm

import tessera as ts

Params = dict[str, Any]


def init(rng: np.random.Generator, sizes: tuple[int, ...]) -> Params:
    """Weights of the layers, scaled for ReLU."""
    params: Params = {}
    for k, (n, m) in enumerate(pairwise(sizes)):
        params[f"w{k}"] = ts.asarray(rng.normal(0, np.sqrt(2 / n), (n, m)).astype(np.float32))
        params[f"b{k}"] = ts.zeros((m,))
    return params


def logits(params: Params, image: Any) -> Any:
    """The scores of the ten digits for one image of 64 pixels."""
    hidden = image
    layers = len(params) // 2
    for k in range(layers):
        hidden = hidden @ params[f"w{k}"] + params[f"b{k}"]
        if k + 1 < layers:
            hidden = ts.relu(hidden)
    return hidden


def loss(params: Params, images: Any, labels: Any) -> Any:
    """Mean cross-entropy over a batch; the network itself is written for one image."""
    scores = ts.vmap(logits, in_axes=(None, 0))(params, images)
    picked = ts.sum(ts.log_softmax(scores, axis=-1) * ts.one_hot(labels, 10), axis=-1)
    return -ts.mean(picked)


@ts.jit
def step(params: Params, m: Params, v: Params, t: Any, images: Any, labels: Any) -> Any:
    """One step of Adam (Kingma and Ba, 2015)."""
    value, grads = ts.value_and_grad(loss)(params, images, labels)
    rate = 2e-3 * ts.sqrt(1 - 0.999**t) / (1 - 0.9**t)
    new_p: Params = {}
    new_m: Params = {}
    new_v: Params = {}
    for name, g in grads.items():
        new_m[name] = 0.9 * m[name] + 0.1 * g
        new_v[name] = 0.999 * v[name] + 0.001 * g * g
        new_p[name] = params[name] - rate * new_m[name] / (ts.sqrt(new_v[name]) + 1e-8)
    return value, new_p, new_m, new_v


@ts.jit
def accuracy(params: Params, images: Any, labels: Any) -> Any:
    """The share of images whose best score is the right digit."""
    scores = ts.vmap(logits, in_axes=(None, 0))(params, images)
    return ts.mean(ts.astype(ts.argmax(scores, axis=-1) == labels, ts.float32))


def main() -> None:
    """Trains, reports accuracy on held-out digits, and lists the kernels that ran."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=40)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()

    digits = load_digits()
    rng = np.random.default_rng(args.seed)
    order = rng.permutation(len(digits.target))
    images = (digits.data[order] / 16).astype(np.float32)
    labels = digits.target[order].astype(np.int64)
    held = len(labels) // 5
    test_x, test_y = ts.asarray(images[:held]), ts.asarray(labels[:held])
    train_x, train_y = images[held:], labels[held:]

    params = init(rng, (64, 128, 64, 10))
    m = {k: ts.zeros_like(p) for k, p in params.items()}
    v = {k: ts.zeros_like(p) for k, p in params.items()}
    start, count = time.perf_counter(), 0
    with tqdm(range(args.epochs), desc="training", unit="epoch") as bar:
        for _ in bar:
            picks = rng.permutation(len(train_y))
            total = 0.0
            batches = range(0, len(picks) - args.batch + 1, args.batch)
            for k in batches:
                index = picks[k : k + args.batch]
                count += 1
                t = np.float32(count)
                value, params, m, v = step(params, m, v, t, train_x[index], train_y[index])
                total += float(value)
            bar.set_postfix(loss=f"{total / len(batches):.4f}")
    seconds = time.perf_counter() - start
    found = float(accuracy(params, test_x, test_y))
    print(
        f"accuracy on {held} held-out digits: {found:.2%}  "
        f"({count} steps, {seconds:.1f} s with compilation)"
    )
    print("\nkernels of one training step, and why each is one kernel:")
    for kernel in step.compiled()[0].kernels():
        print(f"  {kernel}")
    if found < 0.97:
        raise SystemExit("accuracy is below 97%")


if __name__ == "__main__":
    main()
