"""Embedding gather and scatter-add, sorting, the largest k, histograms, transposes."""

from __future__ import annotations

from typing import Any

import numpy as np

from cpu.program import F32, Cost, Program, normal, numba_program, shared, torch_program


def _gather_data(rng: np.random.Generator, rows: int, width: int, take: int) -> tuple[Any, ...]:
    return normal(rng, rows, width), rng.integers(0, rows, take).astype(np.int32)


def _scatter_data(rng: np.random.Generator, rows: int, width: int, take: int) -> tuple[Any, ...]:
    return normal(rng, take, width), rng.integers(0, rows, take).astype(np.int32)


def _gather_numba(numba: Any, **size: int) -> Any:
    @numba.njit(parallel=True)
    def f(table: Any, index: Any) -> Any:
        out = np.empty((index.size, table.shape[1]), table.dtype)
        for i in numba.prange(index.size):
            out[i] = table[index[i]]
        return out

    return f


def _scatter(lib: Any, rows: int, width: int, take: int) -> Any:
    xp = lib.xp
    return lib.jit(lambda x, index: xp.zeros((rows, width), dtype=xp.float32).at[index].add(x))


def _scatter_numpy(lib: Any, rows: int, width: int, take: int) -> Any:
    def f(x: Any, index: Any) -> Any:
        out = np.zeros((rows, width), x.dtype)
        np.add.at(out, index, x)
        return out

    return f


def _scatter_torch(torch: Any, rows: int, width: int, take: int) -> Any:
    return lambda x, index: torch.zeros(rows, width).index_add_(0, index, x)


def _scatter_numba(numba: Any, rows: int, width: int, take: int) -> Any:
    @numba.njit
    def f(x: Any, index: Any) -> Any:
        out = np.zeros((rows, width), x.dtype)
        for i in range(index.size):
            for j in range(width):
                out[index[i], j] += x[i, j]
        return out

    return f


def _vector(rng: np.random.Generator, n: int, **rest: int) -> tuple[Any, ...]:
    return (normal(rng, n),)


def _top(lib: Any, m: int, n: int, k: int) -> Any:
    top_k = lib.module.lax.top_k if lib.name == "jax" else lib.module.top_k
    return lib.jit(lambda x: tuple(top_k(x, k)))


def _top_numpy(lib: Any, m: int, n: int, k: int) -> Any:
    def f(x: Any) -> Any:
        part = np.argpartition(-x, k - 1, axis=-1)[:, :k]
        values = np.take_along_axis(x, part, -1)
        order = np.argsort(-values, axis=-1, kind="stable")
        return np.take_along_axis(values, order, -1), np.take_along_axis(part, order, -1)

    return f


def _top_torch(torch: Any, m: int, n: int, k: int) -> Any:
    return lambda x: tuple(torch.topk(x, k))


BINS, REACH = 64, 4.0


def _histogram(lib: Any, n: int) -> Any:
    xp = lib.xp
    return lib.jit(lambda x: xp.histogram(x, bins=BINS, range=(-REACH, REACH))[0])


def _histogram_torch(torch: Any, n: int) -> Any:
    return lambda x: torch.histc(x, BINS, -REACH, REACH)


def _histogram_numba(numba: Any, n: int) -> Any:
    @numba.njit
    def f(x: Any) -> Any:
        out = np.zeros(BINS, np.int64)
        scale = F32(BINS / (2 * REACH))
        for v in x:
            place = int(np.floor((v + F32(REACH)) * scale))
            if v == REACH:
                place = BINS - 1
            if 0 <= place < BINS:
                out[place] += 1
        return out

    return f


def _histogram_reference(x: np.ndarray) -> np.ndarray:
    # Edges are those of float32, as the programs have them.
    return np.histogram(x, bins=BINS, range=(-REACH, REACH))[0]


def _transpose(lib: Any, m: int, n: int) -> Any:
    name = lib.name
    if name == "numpy":
        return lambda x: np.ascontiguousarray(x.T)
    if name.startswith("torch"):
        return lib.jit(lambda x: x.T.contiguous())
    return lib.jit(lambda x: x.T)


ROWS = [{"rows": 50000, "width": 256, "take": 16384}, {"rows": 1000, "width": 64, "take": 512}]
FEW = {"rows": 7, "width": 3, "take": 12}

PROGRAMS = [
    Program(
        "embedding gather",
        _gather_data,
        {
            **shared(lambda xp, **size: lambda table, index: xp.take(table, index, axis=0)),
            **torch_program(lambda torch, **size: lambda table, index: table[index]),
            **numba_program(_gather_numba),
        },
        lambda rows, width, take: Cost(8 * take * width),
        ROWS,
        FEW,
    ),
    Program(
        "embedding scatter-add",
        _scatter_data,
        {
            **{"tessera": _scatter, "jax": _scatter, "numpy": _scatter_numpy},
            **torch_program(_scatter_torch),
            **numba_program(_scatter_numba),
        },
        lambda rows, width, take: Cost(4 * (take + rows) * width),
        ROWS,
        FEW,
    ),
    Program(
        "sort",
        _vector,
        {
            **shared(lambda xp, n: lambda x: xp.sort(x)),
            **torch_program(lambda torch, n: lambda x: torch.sort(x).values),
            **numba_program(lambda numba, n: numba.njit(lambda x: np.sort(x))),
        },
        # A merge sort in blocks that stay in registers and caches moves everything a few times.
        lambda n: Cost(8 * n, 2 * n * max(n, 2).bit_length()),
        [{"n": 10**5}, {"n": 10**6}, {"n": 1000}],
        {"n": 33},
        tolerance=0,
    ),
    Program(
        "sort f64",
        lambda rng, n: (normal(rng, n).astype(np.float64),),
        {
            **shared(lambda xp, n: lambda x: xp.sort(x)),
            **torch_program(lambda torch, n: lambda x: torch.sort(x).values),
            **numba_program(lambda numba, n: numba.njit(lambda x: np.sort(x))),
        },
        lambda n: Cost(16 * n, 2 * n * max(n, 2).bit_length()),
        [{"n": 10**5}],
        {"n": 33},
        tolerance=0,
        wide=True,
    ),
    Program(
        "argsort",
        _vector,
        {
            **shared(lambda xp, n: lambda x: xp.argsort(x, stable=True)),
            **torch_program(lambda torch, n: lambda x: torch.argsort(x, stable=True)),
        },
        lambda n: Cost(12 * n, 2 * n * max(n, 2).bit_length()),
        [{"n": 10**5}],
        {"n": 33},
        tolerance=0,
    ),
    Program(
        "top-k",
        lambda rng, m, n, k: (normal(rng, m, n),),
        {**{"tessera": _top, "jax": _top, "numpy": _top_numpy}, **torch_program(_top_torch)},
        lambda m, n, k: Cost(4 * m * n, m * n),
        [{"m": 64, "n": 32768, "k": 32}, {"m": 1, "n": 10**6, "k": 100}],
        {"m": 3, "n": 17, "k": 4},
        quick=(0, 1),
        tolerance=1e-7,
    ),
    Program(
        "histogram",
        _vector,
        {
            **dict.fromkeys(("tessera", "jax", "numpy"), _histogram),
            **torch_program(_histogram_torch),
            **numba_program(_histogram_numba),
        },
        lambda n: Cost(4 * n, 4 * n),
        [{"n": 10**6}],
        {"n": 100},
        reference=_histogram_reference,
        # One number on the other side of an edge, by rounding.
        tolerance=2e-4,
        eager=True,
    ),
    Program(
        "transpose",
        lambda rng, m, n: (normal(rng, m, n),),
        dict.fromkeys(("tessera", "jax", "numpy", "torch"), _transpose),
        lambda m, n: Cost(8 * m * n),
        [{"m": 2048, "n": 2048}, {"m": 1000, "n": 333}],
        {"m": 5, "n": 7},
        tolerance=0,
    ),
]
