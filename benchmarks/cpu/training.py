"""Training steps: a perceptron, convolutional networks, a transformer block, Adam alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from cpu.program import (
    F32,
    Build,
    Cost,
    Program,
    gradient_view,
    normal,
    slopes,
    transformed,
)

Loss = Callable[..., Any]


def _trained(loss: Callable[[Any], Loss]) -> dict[str, Build]:
    """Loss and gradients; `loss` takes a library."""
    return transformed(lambda lib, **size: lib.value_and_grad(loss(lib)))


def _trained_torch(loss: Callable[[Any], Loss]) -> dict[str, Build]:
    """The same with autograd: the forward part is what is compiled."""

    def build(lib: Any, **size: Any) -> Any:
        torch, forward = lib.module, lib.jit(loss(lib.module))

        def run(params: Any, *args: Any) -> Any:
            params = {k: v.detach().requires_grad_() for k, v in params.items()}
            value = forward(params, *args)
            grads = torch.autograd.grad(value, list(params.values()))
            return value.detach(), dict(zip(params, grads, strict=True))

        return run

    return {"torch": build}


# --- perceptron ---


def _cross_entropy(xp: Any, logits: Any, y: Any) -> Any:
    """The mean of rows, of which `y` has the labels as rows with a one."""
    top = xp.max(logits, axis=-1, keepdims=True)
    total = xp.log(xp.sum(xp.exp(logits - top), axis=-1)) + top[:, 0]
    return xp.mean(total - xp.sum(logits * y, axis=-1))


def mlp(lib: Any) -> Loss:
    """Cross entropy of 784-512-10, labels as rows with a one."""
    xp = lib.xp

    def loss(p: Any, x: Any, y: Any) -> Any:
        hidden = xp.maximum(x @ p["w1"] + p["b1"], 0)
        logits = hidden @ p["w2"] + p["b2"]
        return _cross_entropy(xp, logits, y)

    return loss


def _mlp_torch(torch: Any) -> Loss:
    functional = torch.nn.functional

    def loss(p: Any, x: Any, y: Any) -> Any:
        hidden = torch.relu(torch.addmm(p["b1"], x, p["w1"]))
        return functional.cross_entropy(torch.addmm(p["b2"], hidden, p["w2"]), y)

    return loss


def _mlp_data(rng: np.random.Generator, batch: int, hidden: int) -> tuple[Any, ...]:
    params = {
        "w1": normal(rng, 784, hidden, scale=784**-0.5),
        "b1": np.zeros(hidden, F32),
        "w2": normal(rng, hidden, 10, scale=hidden**-0.5),
        "b2": np.zeros(10, F32),
    }
    return params, normal(rng, batch, 784), np.eye(10, dtype=F32)[rng.integers(0, 10, batch)]


# --- convolutions ---


FEATURES_FIRST, FEATURES_LAST = ("NCHW", "OIHW", "NCHW"), ("NHWC", "HWIO", "NHWC")


def _convolve(
    lib: Any, x: Any, w: Any, stride: int, groups: int, forms: Any = FEATURES_FIRST
) -> Any:
    pad = ((w.shape[forms[1].index("H")] // 2,) * 2,) * 2
    how = {"feature_group_count": groups, "dimension_numbers": forms}
    if lib.name == "jax":
        return lib.module.lax.conv_general_dilated(x, w, (stride, stride), pad, **how)
    if lib.name.startswith("tessera"):
        return lib.module.conv_general(x, w, (stride, stride), pad, **how)
    if forms is FEATURES_FIRST:
        return numpy_convolution(x, w, stride, groups)
    x, w = np.moveaxis(x, -1, 1), np.transpose(w, (3, 2, 0, 1))
    return np.moveaxis(numpy_convolution(x, w, stride, groups), 1, -1)


def numpy_convolution(x: np.ndarray, w: np.ndarray, stride: int, groups: int) -> np.ndarray:
    """By windows and one product for each group."""
    reach = w.shape[2] // 2
    padded = np.pad(x, ((0, 0), (0, 0), (reach, reach), (reach, reach)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, w.shape[2:], (2, 3))
    windows = windows[:, :, ::stride, ::stride]
    n, c, h, v = windows.shape[:4]
    split = windows.reshape(n, groups, c // groups, h, v, *w.shape[2:])
    weights = w.reshape(groups, w.shape[0] // groups, *w.shape[1:])
    out = np.einsum("ngchvij,gocij->ngohv", split, weights, optimize=True)
    return out.reshape(n, w.shape[0], h, v)


def _conv(lib: Any, stride: int, groups: int, **size: int) -> Any:
    return lib.jit(lambda x, w: _convolve(lib, x, w, stride, groups))


def _conv_torch(lib: Any, stride: int, groups: int, **size: int) -> Any:
    convolution = lib.module.nn.functional.conv2d
    return lib.jit(
        lambda x, w: convolution(x, w, stride=stride, padding=w.shape[2] // 2, groups=groups)
    )


def _conv_data(
    rng: np.random.Generator,
    batch: int,
    channels: int,
    out: int,
    side: int,
    window: int,
    stride: int,
    groups: int,
) -> tuple[Any, ...]:
    return (
        normal(rng, batch, channels, side, side),
        normal(rng, out, channels // groups, window, window, scale=0.1),
    )


def _conv_cost(
    batch: int,
    channels: int,
    out: int,
    side: int,
    window: int,
    stride: int,
    groups: int,
) -> Cost:
    places = batch * out * (side // stride) ** 2
    return Cost(
        4 * (batch * channels * side**2 + places + out * channels // groups * window**2),
        2 * places * channels // groups * window**2,
    )


def _layer(
    batch: int,
    channels: int,
    out: int,
    side: int,
    window: int = 3,
    stride: int = 1,
    groups: int = 1,
) -> dict[str, int]:
    return {
        **{"batch": batch, "channels": channels, "out": out, "side": side, "window": window},
        **{"stride": stride, "groups": groups},
    }


def convnet(lib: Any) -> Loss:
    """A stem, a strided layer, a depthwise layer and a pointwise one, mean, cross entropy."""
    xp = lib.xp

    def loss(p: Any, x: Any, y: Any) -> Any:
        x = xp.maximum(_convolve(lib, x, p["stem"], 1, 1), 0)
        x = xp.maximum(_convolve(lib, x, p["down"], 2, 1), 0)
        x = xp.maximum(_convolve(lib, x, p["depth"], 1, p["depth"].shape[0]), 0)
        x = xp.maximum(_convolve(lib, x, p["point"], 1, 1), 0)
        logits = xp.mean(x, axis=(2, 3)) @ p["out"]
        return _cross_entropy(xp, logits, y)

    return loss


def _convnet_torch(torch: Any) -> Loss:
    functional = torch.nn.functional
    conv = functional.conv2d

    def loss(p: Any, x: Any, y: Any) -> Any:
        x = torch.relu(conv(x, p["stem"], padding=1))
        x = torch.relu(conv(x, p["down"], stride=2, padding=1))
        x = torch.relu(conv(x, p["depth"], padding=1, groups=p["depth"].shape[0]))
        x = torch.relu(conv(x, p["point"]))
        return functional.cross_entropy(x.mean((2, 3)) @ p["out"], y)

    return loss


def _convnet_data(rng: np.random.Generator, batch: int, side: int, width: int) -> tuple[Any, ...]:
    params = {
        "stem": normal(rng, width, 3, 3, 3, scale=0.2),
        "down": normal(rng, 2 * width, width, 3, 3, scale=(9 * width) ** -0.5),
        "depth": normal(rng, 2 * width, 1, 3, 3, scale=0.3),
        "point": normal(rng, 4 * width, 2 * width, 1, 1, scale=(2 * width) ** -0.5),
        "out": normal(rng, 4 * width, 10, scale=0.1),
    }
    labels = np.eye(10, dtype=F32)[rng.integers(0, 10, batch)]
    return params, normal(rng, batch, 3, side, side), labels


def _convnet_cost(batch: int, side: int, width: int) -> Cost:
    full, half = batch * side**2, batch * side**2 // 4
    work = 54 * full * width + 36 * half * width**2 + 36 * half * width + 16 * half * width**2
    return Cost(4 * (3 * full + 20 * width**2), 3 * work)


def residual(lib: Any) -> Loss:
    """A stem and a residual block with batch norms, features last, mean, cross entropy."""
    xp = lib.xp

    def convolve(x: Any, w: Any) -> Any:
        return _convolve(lib, x, w, 1, 1, FEATURES_LAST)

    def normalized(x: Any, scale: Any, shift: Any) -> Any:
        centred = x - xp.mean(x, axis=(0, 1, 2))
        return centred / xp.sqrt(xp.mean(centred * centred, axis=(0, 1, 2)) + 1e-5) * scale + shift

    def loss(p: Any, x: Any, y: Any) -> Any:
        x = xp.maximum(normalized(convolve(x, p["stem"]), p["scale0"], p["shift0"]), 0)
        h = xp.maximum(normalized(convolve(x, p["first"]), p["scale1"], p["shift1"]), 0)
        h = normalized(convolve(h, p["second"]), p["scale2"], p["shift2"])
        logits = xp.mean(xp.maximum(x + h, 0), axis=(1, 2)) @ p["out"]
        return _cross_entropy(xp, logits, y)

    return loss


def _residual_torch(torch: Any) -> Loss:
    """The same; its tensors with features last are views of those with features first."""
    functional = torch.nn.functional

    def layer(p: Any, x: Any, name: str, n: int) -> Any:
        x = functional.conv2d(x, p[name].permute(3, 2, 0, 1), padding=1)
        return functional.batch_norm(x, None, None, p[f"scale{n}"], p[f"shift{n}"], training=True)

    def loss(p: Any, x: Any, y: Any) -> Any:
        x = torch.relu(layer(p, x.permute(0, 3, 1, 2), "stem", 0))
        h = layer(p, torch.relu(layer(p, x, "first", 1)), "second", 2)
        return functional.cross_entropy(torch.relu(x + h).mean((2, 3)) @ p["out"], y)

    return loss


def _residual_data(
    rng: np.random.Generator, batch: int, side: int, width: int
) -> tuple[Any, ...]:
    params = {
        "stem": normal(rng, 3, 3, 3, width, scale=0.2),
        "first": normal(rng, 3, 3, width, width, scale=(9 * width) ** -0.5),
        "second": normal(rng, 3, 3, width, width, scale=(9 * width) ** -0.5),
        "out": normal(rng, width, 10, scale=0.3),
    }
    for n in range(3):
        params[f"scale{n}"] = 1 + normal(rng, width, scale=0.1)
        params[f"shift{n}"] = normal(rng, width, scale=0.1)
    labels = np.eye(10, dtype=F32)[rng.integers(0, 10, batch)]
    return params, normal(rng, batch, side, side, 3), labels


def _residual_cost(batch: int, side: int, width: int) -> Cost:
    places = batch * side**2
    # Nobody needs the gradient of the images.
    work = 2 * places * (2 * 27 * width + 3 * 2 * 9 * width**2)
    return Cost(4 * (3 * places + 18 * width**2), work)


# --- transformer block ---


def block(xp: Any, heads: int) -> Callable[[Any, Any], Any]:
    """A pre-normalised block of causal attention and a GELU layer, as in GPT-2."""

    def normalized(x: Any, scale: Any, shift: Any) -> Any:
        centred = x - xp.mean(x, axis=-1, keepdims=True)
        variance = xp.mean(centred * centred, axis=-1, keepdims=True)
        return centred / xp.sqrt(variance + 1e-5) * scale + shift

    def f(p: Any, x: Any) -> Any:
        batch, length, width = x.shape
        h = normalized(x, p["scale1"], p["shift1"])
        qkv = xp.reshape(h @ p["qkv"] + p["qkv_bias"], (batch, length, 3, heads, width // heads))
        q, k, v = (xp.swapaxes(qkv[:, :, n], 1, 2) for n in range(3))
        scores = q @ xp.swapaxes(k, -1, -2) * (width // heads) ** -0.5
        places = xp.arange(length)
        scores = xp.where(places[:, None] >= places[None, :], scores, -1e9)
        weights = xp.exp(scores - xp.max(scores, axis=-1, keepdims=True))
        weights = weights / xp.sum(weights, axis=-1, keepdims=True)
        found = xp.reshape(xp.swapaxes(weights @ v, 1, 2), (batch, length, width))
        x = x + found @ p["out"] + p["out_bias"]
        h = normalized(x, p["scale2"], p["shift2"]) @ p["up"] + p["up_bias"]
        h = 0.5 * h * (1 + xp.tanh(0.7978845608 * (h + 0.044715 * h * h * h)))
        return x + h @ p["down"] + p["down_bias"]

    return f


HEADS = 6


def block_loss(lib: Any) -> Loss:
    """The mean square of a block's result."""
    f = block(lib.xp, HEADS)
    return lambda p, x: lib.xp.mean(f(p, x) ** 2)


def _block_torch(torch: Any) -> Loss:
    functional = torch.nn.functional

    def loss(p: Any, x: Any) -> Any:
        batch, length, width = x.shape
        h = functional.layer_norm(x, (width,), p["scale1"], p["shift1"])
        qkv = (h @ p["qkv"] + p["qkv_bias"]).view(batch, length, 3, HEADS, width // HEADS)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        found = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        found = found.transpose(1, 2).reshape(batch, length, width)
        x = x + found @ p["out"] + p["out_bias"]
        h = functional.layer_norm(x, (width,), p["scale2"], p["shift2"]) @ p["up"] + p["up_bias"]
        x = x + functional.gelu(h, approximate="tanh") @ p["down"] + p["down_bias"]
        return (x**2).mean()

    return loss


def block_parameters(rng: np.random.Generator, width: int) -> dict[str, np.ndarray]:
    """Parameters of a block."""
    shapes = {"qkv": (width, 3 * width), "out": (width, width), "up": (width, 4 * width)}
    shapes["down"] = (4 * width, width)
    params = {name: normal(rng, *s, scale=s[0] ** -0.5) for name, s in shapes.items()}
    params |= {f"{name}_bias": np.zeros(s[1], F32) for name, s in shapes.items()}
    params |= {f"scale{k}": np.ones(width, F32) for k in (1, 2)}
    return params | {f"shift{k}": np.zeros(width, F32) for k in (1, 2)}


def _block_data(rng: np.random.Generator, batch: int, length: int, width: int) -> tuple[Any, ...]:
    return block_parameters(rng, width), normal(rng, batch, length, width)


def block_cost(batch: int, length: int, width: int) -> Cost:
    """Of a block forward."""
    rows = batch * length
    work = 24 * rows * width**2 + 2 * rows * length * width
    return Cost(4 * (12 * width**2 + 2 * rows * width), work)


# --- Adam ---


def adam(xp: Any) -> Any:
    """One step (Kingma and Ba, 2015) over a list of arrays."""

    def step(params: Any, grads: Any, first: Any, second: Any, count: Any) -> Any:
        rate = 1e-3 * xp.sqrt(1 - 0.999**count) / (1 - 0.9**count)
        first = [0.9 * m + 0.1 * g for m, g in zip(first, grads, strict=True)]
        second = [0.999 * v + 0.001 * g * g for v, g in zip(second, grads, strict=True)]
        params = [
            p - rate * m / (xp.sqrt(v) + 1e-8)
            for p, m, v in zip(params, first, second, strict=True)
        ]
        return params, first, second

    return step


def _adam(lib: Any, **size: int) -> Any:
    return lib.jit(adam(lib.xp))


def _adam_torch(lib: Any, **size: int) -> Any:
    torch = lib.module

    # As `torch.optim.Adam` does with `foreach`, but not in place, so that each call does the same.
    def step(params: Any, grads: Any, first: Any, second: Any, count: Any) -> Any:
        rate = 1e-3 * torch.sqrt(1 - 0.999**count) / (1 - 0.9**count)
        first = torch._foreach_add(torch._foreach_mul(first, 0.9), grads, alpha=0.1)
        squares = torch._foreach_mul(grads, grads)
        second = torch._foreach_add(torch._foreach_mul(second, 0.999), squares, alpha=0.001)
        below = torch._foreach_add(torch._foreach_sqrt(second), 1e-8)
        moves = torch._foreach_mul(torch._foreach_div(first, below), float(rate))
        return torch._foreach_sub(params, moves), first, second

    return lib.jit(step)


def _adam_data(rng: np.random.Generator, tensors: int, side: int) -> tuple[Any, ...]:
    shapes = [(side, side) if k % 2 else (side,) for k in range(tensors)]
    params, grads, first = ([normal(rng, *s) for s in shapes] for _ in range(3))
    second = [normal(rng, *s) ** 2 for s in shapes]
    return params, grads, first, second, np.asarray(3, F32)


def _adam_cost(tensors: int, side: int) -> Cost:
    count = tensors // 2 * (side**2 + side)
    return Cost(28 * count, 12 * count)


class _NumpyLibrary:
    """What the losses above ask of a library, for the reference."""

    name, xp = "numpy", np


def _reference(loss: Callable[[Any], Loss]) -> Any:
    return slopes(loss(_NumpyLibrary()))


def _step(
    name: str, loss: Any, torch: Any, make: Any, cost: Any, sizes: Any, tiny: Any, **rest: Any
) -> Program:
    return Program(
        name,
        make,
        {**_trained(loss), **_trained_torch(torch)},
        cost,
        sizes,
        tiny,
        reference=_reference(loss),
        view=gradient_view(),
        tolerance=2e-3,
        **rest,
    )


CONVOLUTIONS = [
    _layer(8, 64, 64, 56),
    _layer(8, 64, 128, 56, stride=2),
    _layer(8, 128, 128, 56, groups=128),
    _layer(8, 256, 64, 28, window=1),
    _layer(8, 3, 64, 112, window=7, stride=2),
]


def _conv_gradient(lib: Any, stride: int, groups: int, **size: int) -> Any:
    def loss(p: Any) -> Any:
        return lib.xp.mean(_convolve(lib, p["x"], p["w"], stride, groups) ** 2)

    return lib.value_and_grad(loss)


def _conv_gradient_torch(lib: Any, stride: int, groups: int, **size: int) -> Any:
    torch, f = lib.module, _conv_torch(lib, stride, groups)

    def run(p: Any) -> Any:
        x, w = (p[k].detach().requires_grad_() for k in "xw")
        loss = (f(x, w) ** 2).mean()
        dx, dw = torch.autograd.grad(loss, (x, w))
        return loss.detach(), {"x": dx, "w": dw}

    return run


def _conv_gradient_program(name: str, size: dict[str, int], tiny: dict[str, int]) -> Program:
    def loss(p: Any) -> Any:
        groups = p["x"].shape[1] // p["w"].shape[1]
        return np.mean(numpy_convolution(p["x"], p["w"], size["stride"], groups) ** 2)

    def cost(**size: int) -> Cost:
        found = _conv_cost(**size)
        return Cost(2 * found.bytes, 3 * found.operations)

    return Program(
        name,
        lambda rng, **size: ({k: v for k, v in zip("xw", _conv_data(rng, **size), strict=True)},),
        {**transformed(_conv_gradient), "torch": _conv_gradient_torch},
        cost,
        [size],
        tiny,
        reference=slopes(loss),
        view=gradient_view(),
        tolerance=2e-3,
        eager=True,
    )


PROGRAMS = [
    _step(
        "mlp training", mlp, _mlp_torch, _mlp_data,
        lambda batch, hidden: Cost(4 * (2 * 794 * hidden + batch * 784), 6 * 794 * batch * hidden),
        [{"batch": 128, "hidden": 512}, {"batch": 16, "hidden": 128}],
        {"batch": 3, "hidden": 4},
    ),
    Program(
        "conv2d", _conv_data,
        {"tessera": _conv, "jax": _conv, "numpy": _conv, "torch": _conv_torch},
        _conv_cost, CONVOLUTIONS, _layer(2, 2, 4, 6, stride=2, groups=2), quick=(0, 1, 2, 3),
        eager=True,
    ),
    _conv_gradient_program(
        "conv2d 3x3 gradient", _layer(8, 64, 64, 56), _layer(2, 2, 3, 5)
    ),
    _conv_gradient_program(
        "conv2d depthwise gradient",
        _layer(8, 128, 128, 56, groups=128), _layer(2, 3, 3, 5, groups=3),
    ),
    _step(
        "convnet training", convnet, _convnet_torch, _convnet_data, _convnet_cost,
        [{"batch": 16, "side": 32, "width": 32}], {"batch": 2, "side": 4, "width": 2},
    ),
    _step(
        "residual block training", residual, _residual_torch, _residual_data, _residual_cost,
        [{"batch": 16, "side": 32, "width": 32}], {"batch": 3, "side": 4, "width": 2},
    ),
    _step(
        "transformer block training", block_loss, _block_torch, _block_data,
        lambda **size: Cost(3 * block_cost(**size).bytes, 3 * block_cost(**size).operations),
        [{"batch": 2, "length": 256, "width": 384}], {"batch": 2, "length": 3, "width": 6},
    ),
    Program(
        "adam", _adam_data,
        {**dict.fromkeys(("tessera", "jax", "numpy"), _adam), "torch": _adam_torch},
        _adam_cost, [{"tensors": 100, "side": 256}, {"tensors": 100, "side": 32}],
        {"tensors": 4, "side": 3}, quick=(0, 1),
    ),
]
