"""Steps of models for `search_peers.py`: layers, norms, convolutions, attention, losses, graphs.

Each takes what the last one left, as (rows, features), (batch, places, features), or images with
their channels first or last, and writes it as users do. Sizes are those of models, and some odd
ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from cpu.libraries import Library

WIDTHS = (1, 2, 3, 5, 8, 10, 16, 20, 24, 32, 48, 60, 64, 96, 100, 128, 192, 256, 300, 384, 512, 768)
PLACES = (1, 5, 16, 17, 50, 64, 100, 128, 197, 256)
BATCHES = (1, 2, 3, 4, 8, 16)
CHANNELS = (1, 3, 4, 8, 12, 16, 20, 24, 32, 48, 64, 96, 128)
EDGES = (7, 8, 14, 16, 17, 28, 32, 56)

Shape = tuple[int, ...]


def first(rng: np.random.Generator) -> Shape:
    """The shape of a program's input."""

    def one(sizes: Sequence[int]) -> int:
        return int(rng.choice(sizes))

    kind = int(rng.integers(5))
    if kind == 0:
        return one((1, 4, 7, 16, 32, 100, 128, 500, 1000, 2048, 4096)), one(WIDTHS)
    if kind <= 2:
        return one(BATCHES), one(PLACES), one(WIDTHS[5:])
    edge = one(EDGES)
    if kind == 3:
        return one(BATCHES), edge, edge, one(CHANNELS)
    return one(BATCHES), one(CHANNELS), edge, edge


def _width(g: Any) -> int:
    return int(g.rng.choice(WIDTHS))


def _act(name: str, lib: Library, x: Any) -> Any:
    nn = lib.nn
    match name:
        case "none":
            return x
        case "gelu":
            return nn.gelu(x, approximate=False)
        case "tanh":
            return lib.xp.tanh(x)
        case _:
            return getattr(nn, name)(x)


ACTS = ("none", "relu", "gelu", "silu", "tanh", "sigmoid", "softplus", "elu", "leaky_relu")


def _normed(lib: Library, x: Any, axes: tuple[int, ...], centres: bool = True) -> Any:
    if centres:
        x = x - lib.xp.mean(x, axis=axes, keepdims=True)
    return x / lib.xp.sqrt(lib.xp.mean(x * x, axis=axes, keepdims=True) + 1e-5)


def _heads(rng: np.random.Generator, width: int) -> int:
    return int(rng.choice([h for h in (1, 2, 3, 4, 8, 12) if width % h == 0]))


# --- on anything --------------------------------------------------------------------------------


def activation(g: Any, at: int, shape: Shape) -> bool:
    """An activation."""
    name = str(g.rng.choice(ACTS[1:]))
    return g.add(name, lambda lib, p, x: _act(name, lib, x), (at,))


def residual(g: Any, at: int, shape: Shape) -> bool:
    """A sum with an earlier value."""
    found = [k for k, own in enumerate(g.shapes) if own == shape and k != at]
    if not found:
        return False
    return g.add("residual", lambda lib, p, x, y: x + y, (at, int(g.rng.choice(found))))


def skip(g: Any, at: int, shape: Shape) -> bool:
    """An earlier value beside it, along the last axis or that of channels."""
    axis = int(g.rng.choice([-1, 1]))


    def rest(own: Shape) -> list[int]:
        return [n for d, n in enumerate(own) if d != axis % len(shape)]

    found = [k for k, own in enumerate(g.shapes) if rest(own) == rest(shape)]
    k = int(g.rng.choice(found))
    return g.add(f"beside {axis}", lambda lib, p, x, y: lib.xp.concat([x, y], axis=axis), (at, k))


def dropout(g: Any, at: int, shape: Shape) -> bool:
    """A mask that is an argument."""
    k = g.param(shape)
    return g.add("dropout", lambda lib, p, x: lib.xp.where(p[k] > -0.6, x * 1.25, 0.0), (at,))


def norm(g: Any, at: int, shape: Shape) -> bool:
    """Layer, RMS, batch, instance norm or unit length, with weights."""
    name = str(g.rng.choice(["layer", "rms", "batch", "instance", "unit", "batch first"]))
    if len(shape) == 4 and name == "instance":
        axes: tuple[int, ...] = tuple(g.rng.choice([[1, 2], [2, 3]]).tolist())
    elif name == "batch first" and len(shape) == 4:
        axes = (0, 2, 3)
    elif name in ("batch", "batch first"):
        axes = tuple(range(len(shape) - 1))
    else:
        axes = (-1,)
    if np.prod([shape[a] for a in axes]) < 3:
        return False
    own = tuple([1 if d in [a % len(shape) for a in axes] else n for d, n in enumerate(shape)])
    own = (shape[-1],) if axes == (-1,) else own
    k, b = g.param(own), g.param(own)

    def step(lib: Library, p: Sequence[Any], x: Any) -> Any:
        if name == "unit":
            return x / lib.xp.sqrt(lib.xp.sum(x * x, axis=-1, keepdims=True) + 1e-6)
        return _normed(lib, x, axes, name != "rms") * p[k] + p[b]

    return g.add(f"{name} norm {list(axes)}", step, (at,))


def dense(g: Any, at: int, shape: Shape) -> bool:
    """A layer over the last axis."""
    width, act, turned = _width(g), str(g.rng.choice(ACTS)), g.rng.random() < 0.3
    deep = shape[-1]
    k, b = g.param((width, deep) if turned else (deep, width), deep**-0.5), g.param((width,))

    def step(lib: Library, p: Sequence[Any], x: Any) -> Any:
        w = lib.xp.matrix_transpose(p[k]) if turned else p[k]
        return _act(act, lib, x @ w + p[b])

    return g.add(f"dense {act}" + ", turned" * turned, step, (at,))


def feed_forward(g: Any, at: int, shape: Shape) -> bool:
    """Norm, two layers or a gated one, residual."""
    deep, gated = shape[-1], bool(g.rng.random() < 0.5)
    if deep < 8:
        return False
    wide = deep * int(g.rng.choice([1, 2, 4]))
    up, down, gate = g.param((deep, wide), deep**-0.5), g.param((wide, deep), wide**-0.5), 0
    if gated:
        gate = g.param((deep, wide), deep**-0.5)

    def step(lib: Library, p: Sequence[Any], x: Any) -> Any:
        y = _normed(lib, x, (-1,), not gated)
        h = lib.nn.silu(y @ p[gate]) * (y @ p[up]) if gated else lib.nn.gelu(y @ p[up])
        return x + h @ p[down]

    return g.add("gated feed-forward" if gated else "feed-forward", step, (at,))


def features(g: Any, at: int, shape: Shape) -> bool:
    """Random Fourier features."""
    width = int(g.rng.choice([4, 10, 16, 32]))
    k = g.param((shape[-1], width))

    def step(lib: Library, p: Sequence[Any], x: Any) -> Any:
        y = x @ p[k]
        return lib.xp.concat([lib.xp.sin(y), lib.xp.cos(y)], axis=-1)

    return g.add("fourier features", step, (at,))


# --- on rows ------------------------------------------------------------------------------------


def losses(g: Any, at: int, shape: Shape) -> bool:
    """A loss of each row."""
    if len(shape) > 3 or shape[-1] < 2:
        return False
    name = str(g.rng.choice(["cross entropy", "smoothed", "binary", "entropy", "huber"]))
    labels = g.rng.integers(0, shape[-1], shape[:-1])
    k = g.param(shape)

    def step(lib: Library, p: Sequence[Any], x: Any) -> Any:
        xp = lib.xp
        logs = lib.nn.log_softmax(x, axis=-1)
        if name == "cross entropy":
            return -xp.take_along_axis(logs, xp.asarray(labels)[..., None], axis=-1)
        if name == "smoothed":
            hot = lib.nn.one_hot(xp.asarray(labels), shape[-1], dtype=x.dtype)
            return -xp.sum((0.9 * hot + 0.1 / shape[-1]) * logs, axis=-1, keepdims=True)
        if name == "binary":
            target = lib.nn.sigmoid(p[k])
            return xp.mean(lib.nn.softplus(x) - x * target, axis=-1, keepdims=True)
        if name == "entropy":
            return -xp.sum(xp.exp(logs) * logs, axis=-1, keepdims=True)
        d = xp.abs(x - p[k])
        return xp.sum(xp.where(d < 1, 0.5 * d * d, d - 0.5), axis=-1, keepdims=True)

    return g.add(name, step, (at,))


def similarity(g: Any, at: int, shape: Shape) -> bool:
    """Between rows and others: cosines, distances, a kernel, a contrastive loss."""
    if len(shape) not in (2, 3) or shape[-2] > 512:
        return False
    others, deep = int(g.rng.choice([2, 10, 64, 100, 300])), shape[-1]
    name = str(g.rng.choice(["cosine", "distance", "kernel", "contrast", "product distance"]))
    k = g.param((others, deep))

    def step(lib: Library, p: Sequence[Any], x: Any) -> Any:
        xp, y = lib.xp, p[k]
        if name in ("cosine", "contrast"):
            a = x / xp.sqrt(xp.sum(x * x, axis=-1, keepdims=True) + 1e-6)
            b = y / xp.sqrt(xp.sum(y * y, axis=-1, keepdims=True) + 1e-6)
            found = a @ b.T
            return lib.nn.log_softmax(found * 5, axis=-1) if name == "contrast" else found
        if name == "product distance":
            return xp.sum(x * x, axis=-1, keepdims=True) + xp.sum(y * y, axis=-1) - 2 * (x @ y.T)
        d = x[..., :, None, :] - y
        d = xp.sum(d * d, axis=-1)
        return xp.exp(-d / deep) if name == "kernel" else xp.sqrt(d + 1e-4)

    if name in ("distance", "kernel") and np.prod(shape) * others > 3e7:
        return False
    return g.add(name, step, (at,))


def graph(g: Any, at: int, shape: Shape) -> bool:
    """Messages along edges: sums, means, or attention over neighbours."""
    if len(shape) != 2 or shape[0] < 4:
        return False
    nodes, edges = shape[0], shape[0] * int(g.rng.choice([2, 5, 10]))
    source, target = g.rng.integers(0, nodes, edges), g.rng.integers(0, nodes, edges)
    name = str(g.rng.choice(["sum", "mean", "attention"]))
    k = g.param((shape[1],), shape[1] ** -0.5)

    def step(lib: Library, p: Sequence[Any], x: Any) -> Any:
        xp = lib.xp
        s, t = xp.asarray(source), xp.asarray(target)
        sent = xp.take(x, s, axis=0)
        if name == "attention":
            weight = xp.exp(xp.tanh(xp.sum(sent * p[k], axis=-1)))
            total = xp.zeros((nodes,), dtype=x.dtype).at[t].add(weight)
            sent = sent * (weight / (xp.take(total, t) + 1e-6))[:, None]
        found = xp.zeros((nodes, shape[1]), dtype=x.dtype).at[t].add(sent)
        if name == "mean":
            count = xp.zeros((nodes, 1), dtype=x.dtype).at[t].add(1.0)
            return found / xp.maximum(count, 1.0)
        return found

    return g.add(f"graph {name}", step, (at,))


def pooled(g: Any, at: int, shape: Shape) -> bool:
    """Mean or maximum over places, or the first of them."""
    if len(shape) < 3:
        return False
    axes = (1,) if len(shape) == 3 else tuple(g.rng.choice([[1, 2], [2, 3]]).tolist())
    name = str(g.rng.choice(["mean", "max", "first"]))

    def step(lib: Library, p: Sequence[Any], x: Any) -> Any:
        if name == "first":
            return x[:, 0]
        return getattr(lib.xp, name)(x, axis=axes)

    return g.add(f"pooled {name} {list(axes)}", step, (at,))


# --- on sequences -------------------------------------------------------------------------------


def attention(g: Any, at: int, shape: Shape) -> bool:
    """Self-attention with heads, projections in one or three, perhaps causal, rotated, grouped."""
    if len(shape) != 3 or shape[-1] % 8:
        return False
    batch, places, width = shape
    heads = _heads(g.rng, width)
    size, causal = width // heads, bool(g.rng.random() < 0.5)
    turned = bool(g.rng.random() < 0.4) and size % 2 == 0
    groups = 1 if g.rng.random() < 0.3 else heads
    wide = width + 2 * groups * size
    k, o = g.param((width, wide), width**-0.5), g.param((width, width), width**-0.5)
    angle = np.outer(np.arange(places), 10000.0 ** (-np.arange(size // 2) / max(size // 2, 1)))

    def rotated(lib: Library, x: Any) -> Any:
        cos, sin = (lib.xp.asarray(f(angle), dtype=x.dtype) for f in (np.cos, np.sin))
        a, b = x[..., : size // 2], x[..., size // 2 :]
        return lib.xp.concat([a * cos - b * sin, b * cos + a * sin], axis=-1)

    def step(lib: Library, p: Sequence[Any], x: Any) -> Any:
        xp, y = lib.xp, x @ p[k]

        def split(first: int, count: int) -> Any:
            part = y[..., first : first + count * size]
            return xp.permute_dims(xp.reshape(part, (batch, places, count, size)), (0, 2, 1, 3))

        q, ks, v = split(0, heads), split(width, groups), split(width + groups * size, groups)
        if turned:
            q, ks = rotated(lib, q), rotated(lib, ks)
        scores = q @ xp.matrix_transpose(ks) * size**-0.5
        if causal:
            scores = xp.where(xp.tril(xp.ones((places, places))) > 0, scores, -1e9)
        out = xp.permute_dims(lib.nn.softmax(scores, axis=-1) @ v, (0, 2, 1, 3))
        return xp.reshape(out, (batch, places, width)) @ p[o]

    names = "".join([f" {n}" for n, is_so in (("causal", causal), ("rotated", turned)) if is_so])
    return g.add(f"attention {heads} heads, {groups} groups{names}", step, (at,))


def queries(g: Any, at: int, shape: Shape) -> bool:
    """Attention of a few learned queries."""
    if len(shape) != 3:
        return False
    count, width = int(g.rng.choice([1, 4, 16])), shape[-1]
    k = g.param((count, width))

    def step(lib: Library, p: Sequence[Any], x: Any) -> Any:
        scores = lib.xp.einsum("qd,bsd->bqs", p[k], x) * width**-0.5
        return lib.xp.einsum("bqs,bsd->bqd", lib.nn.softmax(scores, axis=-1), x)

    return g.add(f"{count} queries", step, (at,))


def experts(g: Any, at: int, shape: Shape) -> bool:
    """A gated mixture of layers."""
    if len(shape) not in (2, 3) or shape[-1] < 8:
        return False
    count, deep, wide = int(g.rng.choice([2, 4, 8])), shape[-1], int(g.rng.choice(WIDTHS[6:16]))
    gate, w = g.param((deep, count)), g.param((count, deep, wide), deep**-0.5)
    if np.prod(shape) * count * wide > 1e9:
        return False
    rows = "bs"[: len(shape) - 1]

    def step(lib: Library, p: Sequence[Any], x: Any) -> Any:
        weight = lib.nn.softmax(x @ p[gate], axis=-1)
        each = lib.nn.relu(lib.xp.einsum(f"{rows}d,edf->{rows}ef", x, p[w]))
        return lib.xp.einsum(f"{rows}e,{rows}ef->{rows}f", weight, each)

    return g.add(f"{count} experts", step, (at,))


def ensemble(g: Any, at: int, shape: Shape) -> bool:
    """A layer of its own for each of the first axis."""
    if len(shape) not in (2, 3) or shape[0] > 64:
        return False
    wide = int(g.rng.choice(WIDTHS[:16]))
    w = g.param((shape[0], shape[-1], wide), shape[-1] ** -0.5)
    step = lambda lib, p, x: lib.vmap(lambda a, b: lib.nn.silu(a @ b))(x, p[w])  # noqa: E731
    return g.add("ensemble", step, (at,))


def mixing(g: Any, at: int, shape: Shape) -> bool:
    """A layer over places, as in a mixer."""
    if len(shape) != 3:
        return False
    k = g.param((shape[1], shape[1]), shape[1] ** -0.5)
    text = str(g.rng.choice(["st,bsd->btd", "st,btd->bsd"]))

    def step(lib: Library, p: Sequence[Any], x: Any) -> Any:
        return x + lib.nn.gelu(lib.xp.einsum(text, p[k], x))

    return g.add(f"mixing {text}", step, (at,))


def recurrent(g: Any, at: int, shape: Shape) -> bool:
    """A GRU, an LSTM, or a gated sum along places."""
    if len(shape) != 3 or shape[1] > 128 or shape[-1] > 300:
        return False
    name, deep, wide = str(g.rng.choice(["gru", "lstm", "gated"])), shape[-1], shape[-1]
    gates = {"gru": 3, "lstm": 4, "gated": 1}[name]
    w = g.param((deep, gates * wide), deep**-0.5)
    u = g.param((wide, gates * wide), wide**-0.5) if name != "gated" else 0

    def step(lib: Library, p: Sequence[Any], x: Any) -> Any:
        xp, sig = lib.xp, lib.nn.sigmoid
        rows = xp.permute_dims(x @ p[w], (1, 0, 2))
        zero = xp.zeros((shape[0], wide), dtype=x.dtype)

        def gru(h: Any, row: Any) -> tuple[Any, Any]:
            own = h @ p[u]
            z, r = sig(row[:, :wide] + own[:, :wide]), sig((row + own)[:, wide : 2 * wide])
            n = xp.tanh(row[:, 2 * wide :] + r * own[:, 2 * wide :])
            h = (1 - z) * n + z * h
            return h, h

        def lstm(state: Any, row: Any) -> tuple[Any, Any]:
            h, c = state
            i, f, o, n = xp.split(row + h @ p[u], 4, axis=-1)
            c = sig(f) * c + sig(i) * xp.tanh(n)
            h = sig(o) * xp.tanh(c)
            return (h, c), h

        def gated(h: Any, row: Any) -> tuple[Any, Any]:
            a = sig(row)
            h = a * h + (1 - a) * row
            return h, h

        if name == "lstm":
            found = lib.scan(lstm, (zero, zero), rows)[1]
        else:
            found = lib.scan(gru if name == "gru" else gated, zero, rows)[1]
        return xp.permute_dims(found, (1, 0, 2))

    return g.add(name, step, (at,))


# --- on images ----------------------------------------------------------------------------------


def convolution(g: Any, at: int, shape: Shape) -> bool:
    """With any kernel, stride, dilation and groups; channels first or last; one or two dims."""
    if len(shape) not in (3, 4):
        return False
    last, dims = bool(g.rng.random() < 0.5), len(shape) - 2
    channels = shape[-1] if last else shape[1]
    out, edge = int(g.rng.choice(CHANNELS)), int(g.rng.choice([1, 3, 3, 3, 4, 5, 7]))
    stride, apart = int(g.rng.choice([1, 1, 2])), int(g.rng.choice([1, 1, 1, 2]))
    kind, act = g.rng.random(), str(g.rng.choice(ACTS[:5]))
    groups = channels if kind < 0.2 else 2 if kind < 0.3 and channels % 2 == out % 2 == 0 else 1
    out = channels if groups == channels else out
    places = shape[1:-1] if last else shape[2:]
    if min(places) < 4 or np.prod(shape) * out * edge**dims / groups > 2e9:
        return False
    letters = "HW"[-dims:]
    names = (f"N{letters}C", f"{letters}IO", f"N{letters}C") if last else (
        f"NC{letters}", f"OI{letters}", f"NC{letters}")  # fmt: skip
    inner, kernel = channels // groups, (edge,) * dims
    own = (*kernel, inner, out) if last else (out, inner, *kernel)
    k = g.param(own, (inner * edge**dims) ** -0.5)
    b = g.param((out,) if last else (out, *[1] * dims))

    def step(lib: Library, p: Sequence[Any], x: Any) -> Any:
        conv = lib.module.conv_general if lib.name == "tessera" else (
            lib.module.lax.conv_general_dilated)  # fmt: skip
        y = conv(x, p[k], (stride,) * dims, "SAME", rhs_dilation=(apart,) * dims,
                 dimension_numbers=names, feature_group_count=groups)  # fmt: skip
        return _act(act, lib, y + p[b])

    told = f"conv {names[0]} {edge} to {out}, stride {stride}, apart {apart}, groups {groups} {act}"
    return g.add(told, step, (at,))


def windows(g: Any, at: int, shape: Shape) -> bool:
    """The largest or the mean of windows, by reshape, as many write it."""
    if len(shape) != 4:
        return False
    last = bool(g.rng.random() < 0.5)
    n, h, w, c = shape if last else (shape[0], *shape[2:], shape[1])
    if h % 2 or w % 2:
        return False
    name = str(g.rng.choice(["max", "mean"]))
    split = (n, h // 2, 2, w // 2, 2, c) if last else (n, c, h // 2, 2, w // 2, 2)

    def step(lib: Library, p: Sequence[Any], x: Any) -> Any:
        return getattr(lib.xp, name)(lib.xp.reshape(x, split), axis=(2, 4) if last else (3, 5))

    return g.add(f"{name} of windows", step, (at,))


def larger(g: Any, at: int, shape: Shape) -> bool:
    """Twice as many places along each dim: repeated, or channels spread over them."""
    if len(shape) != 4 or shape[1] > 64:
        return False
    n, h, w, c = shape
    name = "spread" if c % 4 == 0 and g.rng.random() < 0.5 else "repeated"

    def step(lib: Library, p: Sequence[Any], x: Any) -> Any:
        xp = lib.xp
        if name == "repeated":
            return xp.repeat(xp.repeat(x, 2, axis=1), 2, axis=2)
        parts = xp.permute_dims(xp.reshape(x, (n, h, w, 2, 2, c // 4)), (0, 1, 3, 2, 4, 5))
        return xp.reshape(parts, (n, 2 * h, 2 * w, c // 4))

    return g.add(name, step, (at,))


def patches(g: Any, at: int, shape: Shape) -> bool:
    """Images as sequences of patches, channels last or first; or of places."""
    if len(shape) != 4:
        return False
    n, h, w, c = shape
    edge = int(g.rng.choice([1, 2, 4]))
    last = bool(g.rng.random() < 0.5)
    if not last:
        n, c, h, w = shape
    if h % edge or w % edge:
        return False
    split = (n, h // edge, edge, w // edge, edge, c)
    split = split if last else (n, c, h // edge, edge, w // edge, edge)
    order = (0, 1, 3, 2, 4, 5) if last else (0, 2, 4, 3, 5, 1)
    flat = (n, h // edge * (w // edge), edge * edge * c)

    def step(lib: Library, p: Sequence[Any], x: Any) -> Any:
        return lib.xp.reshape(lib.xp.permute_dims(lib.xp.reshape(x, split), order), flat)

    return g.add(f"patches of {edge}", step, (at,))


def squeeze(g: Any, at: int, shape: Shape) -> bool:
    """Channels weighted by what all places say."""
    if len(shape) != 4:
        return False
    last = bool(g.rng.random() < 0.5)
    axes, c = ((1, 2), shape[-1]) if last else ((2, 3), shape[1])
    few = max(c // 4, 1)
    a, b = g.param((c, few), c**-0.5), g.param((few, c), few**-0.5)

    def step(lib: Library, p: Sequence[Any], x: Any) -> Any:
        s = lib.nn.sigmoid(lib.nn.relu(lib.xp.mean(x, axis=axes) @ p[a]) @ p[b])
        return x * (s[:, None, None, :] if last else s[:, :, None, None])

    return g.add("squeeze and excite", step, (at,))


KINDS = (
    *(activation, residual, residual, skip, dropout, norm, norm, norm, dense, dense, feed_forward),
    *(features, losses, losses, similarity, similarity, graph, graph, pooled, attention, attention),
    *(attention, queries, experts, ensemble, mixing, recurrent, recurrent, convolution),
    *(convolution, convolution, convolution, windows, larger, patches, squeeze),
)
