"""Steps of array code on grids for `search_peers.py`: images, signals, simulations, points.

Each takes what the last one left, an array whose axes are those of a grid, perhaps of many and
perhaps with a few channels last, and writes it as users do: neighbours by slices, rolls and pads,
loops over time, borders that are set, places that are computed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from cpu.libraries import Library

EDGES = (3, 7, 8, 15, 16, 20, 28, 32, 33, 48, 64, 100, 128, 200, 256, 300, 480, 640)
LINES = (5, 16, 64, 100, 257, 1000, 1024, 4000, 10000, 65536, 100000)
MANY = (1, 2, 3, 8, 16, 50, 100, 256, 512, 1000)
CHANNELS = (2, 3, 4)

Shape = tuple[int, ...]


def first(rng: np.random.Generator) -> Shape:
    """The shape of a program's input."""

    def one(sizes: Sequence[int]) -> int:
        return int(rng.choice(sizes))

    grid = one(EDGES), one(EDGES)
    kinds: tuple[Shape, ...] = (
        grid,
        (one(MANY), *grid),
        (*grid, one(CHANNELS)),
        (one(MANY[:6]), *grid, one(CHANNELS)),
        (one(LINES),),
        (one(MANY), one(LINES)),
        (one((10, 50, 100, 300, 600, 5000)), one(CHANNELS)),
        (one(EDGES[:11]), one(EDGES[:11]), one(EDGES[:11])),
    )
    return kinds[int(rng.integers(len(kinds)))]


def _long(g: Any, shape: Shape, least: int = 5) -> int | None:
    """An axis of so many places at least."""
    found = [k for k, n in enumerate(shape) if n >= least]
    return int(g.rng.choice(found)) if found else None


def _part(rank: int, parts: dict[int, slice]) -> tuple[slice, ...]:
    return tuple([parts.get(k, slice(None)) for k in range(rank)])


def _around(lib: Library, x: Any, axes: Sequence[int], how: str) -> list[Any]:
    """The neighbours of each place along the axes, one step away."""
    rank = len(x.shape)
    if how == "roll":
        return [lib.xp.roll(x, by, axis=axis) for axis in axes for by in (1, -1)]
    widths = tuple([(1, 1) if k in axes else (0, 0) for k in range(rank)])
    p = lib.xp.pad(x, widths) if how == "pad" else x
    inner = {k: slice(1, -1) for k in axes}
    sides = [(k, s) for k in axes for s in (slice(None, -2), slice(2, None))]
    return [p[_part(rank, {**inner, k: s})] for k, s in sides]


# --- neighbours ---------------------------------------------------------------------------------


def stencil(g: Any, at: int, shape: Shape) -> bool:
    """What is computed of neighbours: around it nothing, the other side, or no result."""
    axes = [k for k, n in enumerate(shape) if n >= 5][-3:]
    axes = [k for k in axes if g.rng.random() < 0.8]
    if not axes:
        return False
    how = str(g.rng.choice(["pad", "roll", "inside"]))
    what = str(g.rng.choice(["laplace", "length", "largest", "box"]))

    def step(lib: Library, p: Sequence[Any], x: Any) -> Any:
        near = _around(lib, x, axes, how)
        rank = len(shape)
        here = x if how != "inside" else x[_part(rank, {k: slice(1, -1) for k in axes})]
        if what == "laplace":
            return here + 0.1 * (sum(near) - len(near) * here)
        if what == "length":
            pairs = zip(near[::2], near[1::2], strict=True)
            return lib.xp.sqrt(sum([(b - a) ** 2 for a, b in pairs]) + 0.1)
        if what == "largest":
            for one in near:
                here = lib.xp.maximum(here, one)
            return here
        return (here + sum(near)) / (len(near) + 1)

    return g.add(f"{what}, {how} {axes}", step, (at,))


def window(g: Any, at: int, shape: Shape) -> bool:
    """All places of a small window, in a stack or a sum."""
    axes = [k for k, n in enumerate(shape) if n >= 8][:2]
    if len(axes) < 2:
        return False
    size, pads, stacks = int(g.rng.integers(2, 4)), g.rng.random() < 0.5, g.rng.random() < 0.5
    weights = [float(w) for w in g.rng.standard_normal(size * size) / size]
    places = [(i, j) for i in range(size) for j in range(size)]

    def step(lib: Library, p: Sequence[Any], x: Any) -> Any:
        if pads:
            around = [(1, size - 2) if k in axes else (0, 0) for k in range(x.ndim)]
            x = lib.xp.pad(x, tuple(around))
        a, b = axes

        def one(i: int, j: int) -> Any:
            ends = [n + 1 - size for n in x.shape]
            return x[_part(x.ndim, {a: slice(i, i + ends[a]), b: slice(j, j + ends[b])})]

        found = [one(i, j) for i, j in places]
        if stacks:
            return lib.xp.mean(lib.xp.tanh(lib.xp.stack(found, axis=-1)), axis=-1)
        return sum([w * y for w, y in zip(weights, found, strict=True)])

    return g.add(f"window {size}", step, (at,))


def moving(g: Any, at: int, shape: Shape) -> bool:
    """Means of stretches, as differences of a running sum."""
    axis = _long(g, shape, 16)
    if axis is None or shape[axis] > 10000:
        return False
    size, rank = int(g.rng.integers(2, 9)), len(shape)

    def step(lib: Library, p: Sequence[Any], x: Any) -> Any:
        total = lib.xp.cumsum(x, axis=axis)
        last = total[_part(rank, {axis: slice(size, None)})]
        return (last - total[_part(rank, {axis: slice(None, -size)})]) / size

    return g.add(f"moving {axis}", step, (at,))


def steps_in_time(g: Any, at: int, shape: Shape) -> bool:
    """A simulation: a loop whose steps look at neighbours, and perhaps a border that is set."""
    axes = [k for k, n in enumerate(shape) if n >= 5][-2:]
    if not axes or np.prod(shape) > 100_000:
        return False
    count, how = int(g.rng.integers(2, 12)), str(g.rng.choice(["pad", "roll"]))
    sets, moves = g.rng.random() < 0.4, g.rng.random() < 0.5

    def step(lib: Library, p: Sequence[Any], x: Any) -> Any:
        def turn(k: Any, state: Any) -> Any:
            u, v = state
            near = _around(lib, u, axes, how)
            force = sum(near) - len(near) * u
            if not moves:
                return u + 0.1 * force, v
            v = 0.99 * v + 0.1 * force
            u = u + 0.1 * v
            if sets:
                u = u.at[_part(u.ndim, {axes[0]: slice(0, 1)})].set(0.0)
            return u, v

        u, v = lib.fori_loop(0, count, turn, (x, x * 0))
        return u + v

    return g.add(f"{count} steps {axes}", step, (at,))


# --- grids --------------------------------------------------------------------------------------


def border(g: Any, at: int, shape: Shape) -> bool:
    """Parts that are set, added to, or computed anew."""
    axis = _long(g, shape)
    if axis is None:
        return False
    rank, name = len(shape), str(g.rng.choice(["ends", "inner", "every second"]))

    def step(lib: Library, p: Sequence[Any], x: Any) -> Any:
        inner = _part(rank, {axis: slice(1, -1)})
        if name == "ends":
            x = x.at[_part(rank, {axis: slice(0, 1)})].set(0.5)
            return x.at[_part(rank, {axis: slice(-1, None)})].set(0.0)
        if name == "inner":
            return x.at[inner].add(lib.xp.sin(x[inner]))
        return x.at[_part(rank, {axis: slice(None, None, 2)})].multiply(0.5)

    return g.add(f"{name} {axis}", step, (at,))


def sizes(g: Any, at: int, shape: Shape) -> bool:
    """Twice or half as many places along some axes."""
    axes = [k for k, n in enumerate(shape) if n >= 4][:2]
    if not axes:
        return False
    name = str(g.rng.choice(["up", "means", "every second", "largest"]))

    def step(lib: Library, p: Sequence[Any], x: Any) -> Any:
        for axis in axes:
            n = x.shape[axis] // 2 * 2
            even = x[_part(x.ndim, {axis: slice(0, n)})]
            if name == "up":
                x = lib.xp.repeat(x, 2, axis=axis)
            elif name == "every second":
                x = x[_part(x.ndim, {axis: slice(None, None, 2)})]
            else:
                pairs = lib.xp.reshape(even, (*x.shape[:axis], n // 2, 2, *x.shape[axis + 1 :]))
                reduce = lib.xp.mean if name == "means" else lib.xp.max
                x = reduce(pairs, axis=axis + 1)
        return x

    return g.add(f"{name} {axes}", step, (at,))


def masked(g: Any, at: int, shape: Shape) -> bool:
    """A mask made of places."""
    rank, name = len(shape), str(g.rng.choice(["below", "chess", "disc"]))

    def step(lib: Library, p: Sequence[Any], x: Any) -> Any:
        def along(k: int) -> Any:
            own = tuple([n if d == k else 1 for d, n in enumerate(shape)])
            return lib.xp.reshape(lib.xp.arange(shape[k]), own)

        a, b = along(0), along(rank - 1)
        if name == "below":
            return lib.xp.where(b <= a, x, 0.0)
        if name == "chess":
            return lib.xp.where((a + b) % 2 == 0, x, -0.5 * x)
        far = (a % 128 - 60) ** 2 + (b % 128 - 60) ** 2
        return x * lib.xp.exp(-lib.xp.astype(far, x.dtype) * 0.01)

    return g.add(name, step, (at,))


def turned(g: Any, at: int, shape: Shape) -> bool:
    """The grid at places that are computed: between four neighbours, or the nearest."""
    if len(shape) < 2 or min(shape[:2]) < 8 or len(shape) > 3:
        return False
    high, wide, nearest = shape[0], shape[1], g.rng.random() < 0.4

    def step(lib: Library, p: Sequence[Any], x: Any) -> Any:
        xp = lib.xp
        i = xp.astype(xp.arange(high), x.dtype)[:, None] + xp.zeros((1, wide), dtype=x.dtype)
        j = xp.astype(xp.arange(wide), x.dtype)[None, :] + 0 * i
        y, z = 0.875 * i - 0.25 * j + 1.5, 0.25 * i + 0.875 * j - 3.25
        low, left = xp.floor(y), xp.floor(z)
        a, b = y - low, z - left
        if len(shape) == 3:
            a, b = a[..., None], b[..., None]
        low, left = xp.astype(low, xp.int32), xp.astype(left, xp.int32)

        def near(k: int, n: int) -> Any:
            return x[xp.clip(low + k, 0, high - 1), xp.clip(left + n, 0, wide - 1)]

        if nearest:
            return near(0, 0)
        above = near(0, 0) * (1 - b) + near(0, 1) * b
        return above * (1 - a) + (near(1, 0) * (1 - b) + near(1, 1) * b) * a

    return g.add("turned", step, (at,))


# --- channels and points ------------------------------------------------------------------------


def channels(g: Any, at: int, shape: Shape) -> bool:
    """What is computed of a few channels, which lie last."""
    if len(shape) < 2 or not 2 <= shape[-1] <= 4:
        return False
    name = str(g.rng.choice(["grey", "unit", "mixed", "turned", "largest"]))
    few = shape[-1]
    k = g.param((few, few), 0.6) if name == "mixed" else 0

    def step(lib: Library, p: Sequence[Any], x: Any) -> Any:
        xp, parts = lib.xp, [x[..., n] for n in range(few)]
        if name == "grey":
            return sum([(0.2 + 0.1 * n) * part for n, part in enumerate(parts)])
        if name == "unit":
            return x / xp.sqrt(xp.sum(x * x, axis=-1, keepdims=True) + 0.1)
        if name == "mixed":
            return x @ p[k]
        if name == "turned":
            return xp.stack([0.8 * parts[0] - 0.6 * parts[1], *parts[1:]], axis=-1)
        return x - xp.max(x, axis=-1, keepdims=True)

    return g.add(f"channels, {name}", step, (at,))


def pairs(g: Any, at: int, shape: Shape) -> bool:
    """What is between all pairs of points."""
    if len(shape) != 2 or shape[0] > 600 or not 2 <= shape[1] <= 4:
        return False
    name = str(g.rng.choice(["nearest", "force", "kernel"]))

    def step(lib: Library, p: Sequence[Any], x: Any) -> Any:
        apart = x[:, None, :] - x[None, :, :]
        square = lib.xp.sum(apart * apart, axis=-1)
        if name == "nearest":
            return lib.xp.sum(lib.xp.sqrt(square + 0.3), axis=1)
        if name == "force":
            return lib.xp.sum(apart / (square + 0.1)[..., None] ** 1.5, axis=1)
        return lib.xp.exp(-square) @ x

    return g.add(f"pairs, {name}", step, (at,))


def summary(g: Any, at: int, shape: Shape) -> bool:
    """Several figures of the same rows, or rows in terms of them."""
    axis = _long(g, shape, 4)
    if axis is None or len(shape) < 2:
        return False
    name = str(g.rng.choice(["standard", "figures", "clipped", "spread"]))

    def step(lib: Library, p: Sequence[Any], x: Any) -> Any:
        xp = lib.xp
        mean, std = xp.mean(x, axis=axis, keepdims=True), xp.std(x, axis=axis, keepdims=True)
        if name == "standard":
            return (x - mean) / (std + 0.1)
        if name == "clipped":
            return xp.clip(x, mean - 1.5 * std, mean + 1.5 * std)
        least, most = [f(x, axis=axis, keepdims=True) for f in (xp.min, xp.max)]
        if name == "spread":
            return (x - least) / (most - least + 0.1)
        return xp.squeeze(xp.concat([mean, std + 0.1, least, most], axis=axis) * 0.5)

    return g.add(f"{name} {axis}", step, (at,))


def spectrum(g: Any, at: int, shape: Shape) -> bool:
    """Some frequencies of the last axis."""
    n = shape[-1]
    if not 16 <= n <= 4096:
        return False
    keeps = n // 4

    def step(lib: Library, p: Sequence[Any], x: Any) -> Any:
        found = lib.fft.rfft(x, axis=-1)
        low = lib.xp.where(lib.xp.arange(n // 2 + 1) < keeps, found, 0.0)
        return lib.fft.irfft(low, n=n, axis=-1)

    return g.add("low frequencies", step, (at,))


def function(g: Any, at: int, shape: Shape) -> bool:
    """An elementwise function of it, and perhaps of an earlier value."""
    others = [k for k, own in enumerate(g.shapes) if own == shape]
    other, name = int(g.rng.choice(others)), str(g.rng.choice(["sin", "tanh", "mix", "ratio"]))

    def step(lib: Library, p: Sequence[Any], x: Any, y: Any) -> Any:
        if name == "mix":
            return 0.7 * x + 0.3 * y * y
        if name == "ratio":
            return x / (1.0 + y * y)
        return getattr(lib.xp, name)(x + 0.1 * y)

    return g.add(name, step, (at, other))


KINDS = (stencil, stencil, stencil, window, moving, steps_in_time, border, border, sizes, masked,
         turned, channels, channels, pairs, summary, spectrum, function, function)  # fmt: skip
