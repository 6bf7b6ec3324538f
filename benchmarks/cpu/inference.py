"""Batch inference of a small BERT (Devlin et al., 2019), in float32 and with int8 products."""

from __future__ import annotations

from typing import Any

import numpy as np

from cpu.program import F32, Cost, Program, normal

HEADS = 4


def _norm(xp: Any, x: Any, scale: Any, shift: Any) -> Any:
    centred = x - xp.mean(x, axis=-1, keepdims=True)
    variance = xp.mean(centred * centred, axis=-1, keepdims=True)
    return centred / xp.sqrt(variance + 1e-5) * scale + shift


def encoder(xp: Any, dense: Any, gelu: Any) -> Any:
    """Embeddings, post-normalised layers, the first position's vector.

    `dense(x, p, name)` is the affine map of a layer's weights.
    """

    def layer(p: Any, x: Any) -> Any:
        batch, length, width = x.shape
        split = (batch, length, HEADS, width // HEADS)
        q, k, v = (xp.swapaxes(xp.reshape(dense(x, p, n), split), 1, 2) for n in "qkv")
        scores = q @ xp.swapaxes(k, -1, -2) * (width // HEADS) ** -0.5
        weights = xp.exp(scores - xp.max(scores, axis=-1, keepdims=True))
        weights = weights / xp.sum(weights, axis=-1, keepdims=True)
        found = xp.reshape(xp.swapaxes(weights @ v, 1, 2), (batch, length, width))
        x = _norm(xp, x + dense(found, p, "o"), p["scale1"], p["shift1"])
        hidden = gelu(dense(x, p, "up"))
        return _norm(xp, x + dense(hidden, p, "down"), p["scale2"], p["shift2"])

    def f(p: Any, tokens: Any) -> Any:
        length = tokens.shape[1]
        x = xp.take(p["words"], tokens, axis=0) + p["places"][:length]
        for one in p["layers"]:
            x = layer(one, x)
        return x[:, 0]

    return f


def _dense(x: Any, p: Any, name: str) -> Any:
    return x @ p[name] + p[f"{name}_bias"]


def _dense_int8(xp: Any) -> Any:
    """Rows are quantised as they come, weights were by column (symmetric, eight bits)."""

    def dense(x: Any, p: Any, name: str) -> Any:
        scale = xp.maximum(xp.max(xp.abs(x), axis=-1, keepdims=True), 1e-6) / 127
        rows = xp.astype(xp.round(x / scale), xp.int8)
        if xp.__name__ == "jax.numpy":
            sums = xp.matmul(rows, p[name], preferred_element_type=xp.int32)
        else:
            sums = xp.astype(rows, xp.int32) @ xp.astype(p[name], xp.int32)
        return xp.astype(sums, xp.float32) * (scale * p[f"{name}_scale"]) + p[f"{name}_bias"]

    return dense


def _gelu(lib: Any) -> Any:
    if lib.name == "numpy":
        from scipy.special import erf

        return lambda x: 0.5 * x * (1 + erf(x * 0.7071067811865476))
    return lambda x: lib.nn.gelu(x, approximate=False)


def _bert(lib: Any, **size: int) -> Any:
    return lib.jit(encoder(lib.xp, _dense, _gelu(lib)))


def _bert_int8(lib: Any, **size: int) -> Any:
    return lib.jit(encoder(lib.xp, _dense_int8(lib.xp), _gelu(lib)))


def _bert_torch(lib: Any, **size: int) -> Any:
    torch, functional = lib.module, lib.module.nn.functional

    def layer(p: Any, x: Any) -> Any:
        batch, length, width = x.shape
        split = (batch, length, HEADS, width // HEADS)
        q, k, v = (_dense(x, p, n).view(split).transpose(1, 2) for n in "qkv")
        found = functional.scaled_dot_product_attention(q, k, v)
        found = found.transpose(1, 2).reshape(batch, length, width)
        x = functional.layer_norm(x + _dense(found, p, "o"), (width,), p["scale1"], p["shift1"])
        hidden = functional.gelu(_dense(x, p, "up"))
        x = x + _dense(hidden, p, "down")
        return functional.layer_norm(x, (width,), p["scale2"], p["shift2"])

    def f(p: Any, tokens: Any) -> Any:
        x = p["words"][tokens] + p["places"][: tokens.shape[1]]
        for one in p["layers"]:
            x = layer(one, x)
        return x[:, 0]

    def run(p: Any, tokens: Any) -> Any:
        with torch.inference_mode():
            return compiled(p, tokens)

    compiled = lib.jit(f)
    return run


def _dense_int8_torch(torch: Any) -> Any:
    def dense(x: Any, p: Any, name: str) -> Any:
        scale = x.abs().amax(-1, keepdim=True).clamp(min=1e-6) / 127
        rows = torch.round(x / scale).to(torch.int8)
        sums = torch._int_mm(rows.reshape(-1, rows.shape[-1]), p[name])
        sums = sums.reshape(*x.shape[:-1], -1)
        return sums.float() * (scale * p[f"{name}_scale"]) + p[f"{name}_bias"]

    return dense


class _TorchNames:
    """NumPy's names that the encoder uses, of torch."""

    def __init__(self, torch: Any) -> None:
        self.swapaxes, self.reshape = torch.swapaxes, torch.reshape
        self.exp, self.sqrt = torch.exp, torch.sqrt
        self.mean = lambda x, axis, keepdims: x.mean(axis, keepdim=keepdims)
        self.sum = lambda x, axis, keepdims: x.sum(axis, keepdim=keepdims)
        self.max = lambda x, axis, keepdims: x.amax(axis, keepdim=keepdims)
        self.take = lambda x, index, axis: x[index]


def _bert_int8_torch(lib: Any, **size: int) -> Any:
    torch = lib.module
    f = encoder(_TorchNames(torch), _dense_int8_torch(torch), torch.nn.functional.gelu)
    compiled = lib.jit(f)

    def run(p: Any, tokens: Any) -> Any:
        with torch.inference_mode():
            return compiled(p, tokens)

    return run


WORDS = 1000


def _data(
    rng: np.random.Generator, batch: int, length: int, width: int, layers: int
) -> tuple[Any, ...]:
    def one() -> dict[str, np.ndarray]:
        shapes = {n: (width, width) for n in ("q", "k", "v", "o")}
        shapes |= {"up": (width, 4 * width), "down": (4 * width, width)}
        p = {name: normal(rng, *s, scale=s[0] ** -0.5) for name, s in shapes.items()}
        p |= {f"{name}_bias": normal(rng, s[1], scale=0.02) for name, s in shapes.items()}
        p |= {f"scale{k}": np.ones(width, F32) for k in (1, 2)}
        return p | {f"shift{k}": np.zeros(width, F32) for k in (1, 2)}

    params = {
        "words": normal(rng, WORDS, width),
        "places": normal(rng, length, width, scale=0.1),
        "layers": [one() for _ in range(layers)],
    }
    return params, rng.integers(0, WORDS, (batch, length)).astype(np.int32)


def _quantised(rng: np.random.Generator, **size: int) -> tuple[Any, ...]:
    params, tokens = _data(rng, **size)
    for p in params["layers"]:
        for name in ("q", "k", "v", "o", "up", "down"):
            scale = np.abs(p[name]).max(0) / F32(127)
            p[name], p[f"{name}_scale"] = np.round(p[name] / scale).astype(np.int8), scale
    return params, tokens


def _cost(batch: int, length: int, width: int, layers: int) -> Cost:
    rows = batch * length
    work = layers * (24 * rows * width**2 + 4 * rows * length * width)
    return Cost(4 * layers * 12 * width**2 + 8 * rows * width, work)


def _cost_int8(**size: int) -> Cost:
    found = _cost(**size)
    return Cost(found.bytes / 4, found.operations, "int8")


SIZES = [
    {"batch": 8, "length": 128, "width": 256, "layers": 4},
    {"batch": 1, "length": 32, "width": 256, "layers": 4},
]
TINY = {"batch": 2, "length": 3, "width": 8, "layers": 1}

PROGRAMS = [
    Program(
        "bert f32",
        _data,
        {**dict.fromkeys(("tessera", "jax", "numpy"), _bert), "torch": _bert_torch},
        _cost,
        SIZES,
        TINY,
        quick=(0, 1),
    ),
    Program(
        "bert int8",
        _quantised,
        {**dict.fromkeys(("tessera", "jax", "numpy"), _bert_int8), "torch": _bert_int8_torch},
        _cost_int8,
        SIZES,
        TINY,
        quick=(0,),
        # A value at the middle between two bytes falls to either side.
        tolerance=5e-2,
    ),
]
