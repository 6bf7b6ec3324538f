"""The digits' network after training, in int8, int4, fp8 and NVFP4: what accuracy is left.

The network of `digits.py` is trained for a few seconds. Its weights are quantized, a scale for each
column; activations have the scales that `ts.calibrate` finds on 256 images of the training set. At
last it is trained on with weights of three values, gradients going straight through. No GPU is
needed.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.datasets import load_digits

import tessera as ts

Params = dict[str, Any]
LAYERS = 3


def init(rng: np.random.Generator) -> Params:
    """Weights of the layers, scaled for ReLU."""
    params: Params = {}
    for k, (n, m) in enumerate([(64, 128), (128, 64), (64, 10)]):
        params[f"w{k}"] = ts.asarray(rng.normal(0, np.sqrt(2 / n), (n, m)).astype(np.float32))
        params[f"b{k}"] = ts.zeros((m,))
    return params


def activations(params: Params, images: Any) -> list[Any]:
    """What each layer multiplies, and the scores of the ten digits at last."""
    found = [images]
    for k in range(LAYERS):
        hidden = found[-1] @ params[f"w{k}"] + params[f"b{k}"]
        found.append(ts.nn.relu(hidden) if k + 1 < LAYERS else hidden)
    return found


def quantized_logits(params: Params, scales: list[Any], dtype: Any, images: Any) -> Any:
    """The scores, by products of quantized tensors."""
    hidden = images
    for k in range(LAYERS):
        quantized = ts.quantize(hidden, dtype, scale=scales[k])
        hidden = quantized @ params[f"w{k}"] + params[f"b{k}"]
        hidden = ts.nn.relu(hidden) if k + 1 < LAYERS else hidden
    return hidden


def with_weights(params: Params, quantize: Any) -> Params:
    """The parameters with other weights, and biases as they are."""
    return {name: quantize(p) if name[0] == "w" else p for name, p in params.items()}


def loss(params: Params, images: Any, labels: Any) -> Any:
    """Mean cross-entropy."""
    scores = ts.nn.log_softmax(activations(params, images)[-1], axis=-1)
    return -ts.mean(ts.sum(scores * ts.one_hot(labels, 10), axis=-1))


def trained(loss: Any, params: Params, data: Any, epochs: int, rate: float) -> Params:
    """Parameters after gradient descent with momentum."""

    @ts.jit
    def step(params: Params, moving: Params, images: Any, labels: Any) -> tuple[Params, Params]:
        grads = ts.grad(loss)(params, images, labels)
        moving = {name: 0.9 * moving[name] + g for name, g in grads.items()}
        return {name: p - rate * moving[name] for name, p in params.items()}, moving

    images, labels = data
    moving = {name: ts.zeros_like(p) for name, p in params.items()}
    for epoch in range(epochs):
        order = np.random.default_rng(epoch).permutation(len(labels))
        for k in range(0, len(order) - 63, 64):
            picks = order[k : k + 64]
            params, moving = step(params, moving, images[picks], labels[picks])
    return params


def main() -> None:
    """Trains, quantizes, and prints the accuracy of each variant."""
    digits = load_digits()
    rng = np.random.default_rng(0)
    order = rng.permutation(len(digits.target))
    images = (digits.data[order] / 16).astype(np.float32)
    labels = digits.target[order].astype(np.int64)
    held = len(labels) // 5
    test_x, test_y = images[:held], labels[:held]
    data = images[held:], labels[held:]

    def accuracy(scores: Any) -> float:
        return float(np.mean(np.argmax(np.asarray(scores), -1) == test_y))

    params = trained(loss, init(rng), data, epochs=12, rate=0.03)
    exact = accuracy(activations(params, test_x)[-1])
    print(f"float32: accuracy {exact:.2%}")

    batches = [data[0][k : k + 64] for k in range(0, 256, 64)]
    found = {}
    for name, dtype in {"int8": ts.int8, "fp8 e4m3": "e4m3", "fp8 e5m2": "e5m2"}.items():
        weights = with_weights(params, lambda w, dtype=dtype: ts.quantize(w, dtype, axis=1))
        scales = ts.calibrate(lambda x: activations(params, x)[:-1], batches, dtype)
        f = ts.jit(lambda p, x, scales=scales, dtype=dtype: quantized_logits(p, scales, dtype, x))
        found[name] = accuracy(f(weights, test_x))
        print(f"{name}, weights and activations: accuracy {found[name]:.2%}")

    only = {"int4, blocks of 16": ("int4", {"block": (16, 1)}), "nvfp4": ("nvfp4", {"axis": 0})}
    for name, (dtype, options) in only.items():
        # Weights alone, two in a byte: `array @ quantized` dequantizes them.

        def packed(w: Any, dtype: Any = dtype, options: Any = options) -> Any:
            return ts.quantize(w, dtype, **options).pack()

        weights = with_weights(params, packed)
        found[name] = accuracy(ts.jit(activations)(weights, test_x)[-1])
        print(f"{name}, weights only: accuracy {found[name]:.2%}")

    def coarse(w: Any) -> Any:
        # Three values for each weight: -s, 0 and s.
        return ts.fake_quantize(ts.clip(w, -0.3, 0.3), ts.int4, scale=0.3)

    def aware(params: Params, images: Any, labels: Any) -> Any:
        return loss(with_weights(params, coarse), images, labels)

    before = accuracy(activations(with_weights(params, coarse), test_x)[-1])
    tuned = trained(aware, params, data, epochs=4, rate=0.03)
    after = accuracy(activations(with_weights(tuned, coarse), test_x)[-1])
    print(f"three values for each weight: accuracy {before:.2%}, trained on {after:.2%}")
    if min(found.values()) < exact - 0.02 or after < before:
        raise SystemExit("quantization costs more than two points")


if __name__ == "__main__":
    main()
