"""A variational autoencoder learns to draw handwritten digits (Kingma and Welling, 2014).

The encoder turns an image of 8 x 8 pixels into a normal distribution over a few numbers, the code;
the decoder turns a sample of that into an image again. Both are trained together, by the gradient
of a bound on the likelihood: samples of `ts.random.normal` move with the mean and the deviation
that they are scaled by, so the gradient goes through them. Each step draws with a key of its own,
made from one seed: the same seed gives the same network.

It writes `vae.png`: digits, what is left of them after the code, digits that are drawn from codes
at random, and two images with those in between.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import matplotlib as mpl
import numpy as np
from sklearn.datasets import load_digits
from tqdm import tqdm

import tessera as ts

mpl.use("Agg")  # a file, no window
from matplotlib import pyplot as plt

Params = dict[str, Any]
PIXELS = 64


def init(key: Any, hidden: int, code: int) -> Params:
    """Weights, with the variance that keeps signals as large as they are."""
    sizes = {
        "encode": (PIXELS, hidden),
        "code": (hidden, 2 * code),
        "decode": (code, hidden),
        "image": (hidden, PIXELS),
    }
    params: Params = {}
    for k, (name, (n, m)) in enumerate(sizes.items()):
        weights = ts.random.normal(ts.random.fold_in(key, k), (n, m)) / n**0.5
        params[name] = (weights, ts.zeros(m))
    return params


def encode(params: Params, image: Any) -> tuple[Any, Any]:
    """The mean and the logarithm of the deviation of an image's code."""
    hidden = ts.nn.silu(ts.nn.dense(image, *params["encode"]))
    both = ts.nn.dense(hidden, *params["code"])
    half = both.shape[-1] // 2
    return both[..., :half], both[..., half:]


def decode(params: Params, code: Any) -> Any:
    """The image of a code: for each pixel the logit of being ink."""
    hidden = ts.nn.silu(ts.nn.dense(code, *params["decode"]))
    return ts.nn.dense(hidden, *params["image"])


def loss(params: Params, key: Any, image: Any) -> Any:
    """Minus the bound on the logarithm of an image's probability, with one sample of its code."""
    mean, log_deviation = encode(params, image)
    code = mean + ts.exp(log_deviation) * ts.random.normal(key, mean.shape)
    logits = decode(params, code)
    # log p(image | code), for shares of ink.
    likelihood = -ts.sum(ts.nn.softplus(logits) - image * logits)
    # How much the code's distribution says that a standard normal one does not.
    spread = ts.exp(2 * log_deviation)
    divergence = 0.5 * ts.sum(mean**2 + spread - 2 * log_deviation - 1)
    return divergence - likelihood


@ts.jit
def step(params: Params, m: Params, v: Params, count: Any, key: Any, images: Any) -> Any:
    """One step of Adam (Kingma and Ba, 2015) on a batch."""
    keys = ts.random.split(ts.random.fold_in(key, count), images.shape[0])

    def mean_loss(params: Params) -> Any:
        return ts.mean(ts.vmap(loss, in_axes=(None, 0, 0))(params, keys, images))

    value, grads = ts.value_and_grad(mean_loss)(params)
    t = ts.astype(count, ts.float32)
    rate = 2e-3 * ts.sqrt(1 - 0.999**t) / (1 - 0.9**t)
    m = ts.pytree.map_(lambda old, g: 0.9 * old + 0.1 * g, m, grads)
    v = ts.pytree.map_(lambda old, g: 0.999 * old + 0.001 * g * g, v, grads)
    params = ts.pytree.map_(lambda p, a, b: p - rate * a / (ts.sqrt(b) + 1e-8), params, m, v)
    return value, params, m, v


@ts.jit
def draw(params: Params, code: Any) -> Any:
    """Images of codes, as shares of ink."""
    return ts.nn.sigmoid(decode(params, code))


def figure(path: str, losses: list[float], rows: list[tuple[str, Any]]) -> None:
    """The course of the training, and rows of images."""
    columns = len(rows[0][1])
    heights = [2, *[1] * len(rows)]
    fig, (curve, *lines) = plt.subplots(
        len(heights), figsize=(columns, len(rows) + 3), height_ratios=heights, layout="constrained"
    )
    curve.plot(losses)
    curve.set(xlabel="epoch", ylabel="-bound per image")
    for axes, (title, images) in zip(lines, rows, strict=True):
        apart = np.pad(np.asarray(images).reshape(-1, 8, 8), ((0, 0), (0, 0), (0, 1)))
        axes.imshow(np.concatenate(list(apart), axis=1), cmap="gray_r", vmin=0, vmax=1)
        axes.set_axis_off()
        axes.set_title(title, loc="left", fontsize="small")
    fig.savefig(path, dpi=80, bbox_inches="tight")
    plt.close(fig)


def main() -> None:
    """Trains, reports the bound on held-out digits, and draws."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=150)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--hidden", type=int, default=256)
    parser.add_argument("--code", type=int, default=8)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", default="vae.png")
    args = parser.parse_args()

    key = ts.random.key(args.seed)
    order_key, init_key, train_key, test_key, draw_key = ts.random.split(key, 5)
    digits = load_digits()
    images = (digits.data / 16).astype(np.float32)
    images = images[np.asarray(ts.random.permutation(order_key, len(images)))]
    held = len(images) // 5
    test, train = ts.asarray(images[:held]), images[held:]

    @ts.jit
    def evaluate(params: Params) -> Any:
        keys = ts.random.split(test_key, held)
        return ts.mean(ts.vmap(loss, in_axes=(None, 0, 0))(params, keys, test))

    params = init(init_key, args.hidden, args.code)
    m = ts.pytree.map_(ts.zeros_like, params)
    v = ts.pytree.map_(ts.zeros_like, params)
    before = float(evaluate(params))
    losses: list[float] = []
    start, count = time.perf_counter(), 0
    with tqdm(range(args.epochs), desc="training", unit="epoch") as bar:
        for epoch in bar:
            order = np.asarray(
                ts.random.permutation(ts.random.fold_in(order_key, epoch), len(train))
            )
            total, batches = 0.0, range(0, len(order) - args.batch + 1, args.batch)
            for k in batches:
                count += 1
                batch = train[order[k : k + args.batch]]
                value, params, m, v = step(params, m, v, np.int32(count), train_key, batch)
                total += float(value)
            losses.append(total / len(batches))
            bar.set_postfix(loss=f"{losses[-1]:.3f}")
    seconds = time.perf_counter() - start
    after = float(evaluate(params))

    shown = 12
    mean, _ = encode(params, test[:shown])
    ways = ts.linspace(0, 1, shown)[:, None]
    between = mean[0] + (mean[1] - mean[0]) * ways
    random = ts.random.normal(draw_key, (shown, args.code))
    rows = [
        ("held-out digits", test[:shown]),
        ("after the code", draw(params, mean)),
        ("from random codes", draw(params, random)),
        ("from the first to the second", draw(params, between)),
    ]
    figure(args.out, losses, rows)
    print(
        f"-bound on {held} held-out digits: {before:.2f} before, {after:.2f} after training  "
        f"({count} steps, {seconds:.1f} s with compilation); drawn to {args.out}"
    )
    if not after < 0.75 * before:
        raise SystemExit("the bound is hardly better than before")


if __name__ == "__main__":
    main()
