"""Normalisations and reductions of rows, forward and backward; sums, arg-reductions, running
sums over each axis."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from cpu.elementwise import TRANSCENDENTAL
from cpu.program import (
    F32,
    Build,
    Cost,
    Program,
    normal,
    numba_program,
    shared,
    torch_program,
)

SHAPES = [{"m": 4096, "n": 1024}, {"m": 16, "n": 50257}, {"m": 64, "n": 128}, {"m": 65536, "n": 64}]
TINY = {"m": 5, "n": 7}


def softmax(xp: Any, m: int, n: int) -> Any:
    """Softmax of rows."""

    def f(x: Any) -> Any:
        e = xp.exp(x - xp.max(x, axis=-1, keepdims=True))
        return e * (1 / xp.sum(e, axis=-1, keepdims=True))

    return f


def logsumexp(xp: Any, m: int, n: int) -> Any:
    """The logarithm of the sum of exponentials of rows."""

    def f(x: Any) -> Any:
        top = xp.max(x, axis=-1, keepdims=True)
        return xp.log(xp.sum(xp.exp(x - top), axis=-1)) + top[:, 0]

    return f


def layernorm(xp: Any, m: int, n: int) -> Any:
    """Layer normalisation (Ba et al., 2016)."""

    def f(x: Any, scale: Any, shift: Any) -> Any:
        centred = x - xp.mean(x, axis=-1, keepdims=True)
        variance = xp.mean(centred * centred, axis=-1, keepdims=True)
        return centred * (1 / xp.sqrt(variance + 1e-5)) * scale + shift

    return f


def rmsnorm(xp: Any, m: int, n: int) -> Any:
    """Normalisation by the root of the mean square (Zhang and Sennrich, 2019)."""

    def f(x: Any, scale: Any) -> Any:
        return x * (1 / xp.sqrt(xp.mean(x * x, axis=-1, keepdims=True) + 1e-5)) * scale

    return f


def _softmax_torch(torch: Any, m: int, n: int) -> Any:
    return lambda x: torch.softmax(x, -1)


def _logsumexp_torch(torch: Any, m: int, n: int) -> Any:
    return lambda x: torch.logsumexp(x, -1)


def _layernorm_torch(torch: Any, m: int, n: int) -> Any:
    return lambda x, scale, shift: torch.nn.functional.layer_norm(x, (n,), scale, shift)


def _rmsnorm_torch(torch: Any, m: int, n: int) -> Any:
    return lambda x, scale: torch.nn.functional.rms_norm(x, (n,), scale, 1e-5)


def _softmax_numba(numba: Any, m: int, n: int) -> Any:
    @numba.njit(parallel=True, fastmath={"reassoc", "contract", "nsz"})
    def f(x: Any) -> Any:
        out = np.empty_like(x)
        for i in numba.prange(x.shape[0]):
            top = x[i, 0]
            for j in range(x.shape[1]):
                top = max(top, x[i, j])
            total = F32(0)
            for j in range(x.shape[1]):
                out[i, j] = np.exp(x[i, j] - top)
                total += out[i, j]
            for j in range(x.shape[1]):
                out[i, j] /= total
        return out

    return f


def _logsumexp_numba(numba: Any, m: int, n: int) -> Any:
    @numba.njit(parallel=True, fastmath={"reassoc", "contract", "nsz"})
    def f(x: Any) -> Any:
        out = np.empty(x.shape[0], x.dtype)
        for i in numba.prange(x.shape[0]):
            top = x[i, 0]
            for j in range(x.shape[1]):
                top = max(top, x[i, j])
            total = F32(0)
            for j in range(x.shape[1]):
                total += np.exp(x[i, j] - top)
            out[i] = np.log(total) + top
        return out

    return f


def _layernorm_numba(numba: Any, m: int, n: int) -> Any:
    @numba.njit(parallel=True, fastmath=True)
    def f(x: Any, scale: Any, shift: Any) -> Any:
        out = np.empty_like(x)
        count = F32(x.shape[1])
        for i in numba.prange(x.shape[0]):
            total = F32(0)
            for j in range(x.shape[1]):
                total += x[i, j]
            mean = total / count
            square = F32(0)
            for j in range(x.shape[1]):
                square += (x[i, j] - mean) ** 2
            inverse = F32(1) / np.sqrt(square / count + F32(1e-5))
            for j in range(x.shape[1]):
                out[i, j] = (x[i, j] - mean) * inverse * scale[j] + shift[j]
        return out

    return f


def _rmsnorm_numba(numba: Any, m: int, n: int) -> Any:
    @numba.njit(parallel=True, fastmath=True)
    def f(x: Any, scale: Any) -> Any:
        out = np.empty_like(x)
        for i in numba.prange(x.shape[0]):
            square = F32(0)
            for j in range(x.shape[1]):
                square += x[i, j] ** 2
            inverse = F32(1) / np.sqrt(square / F32(x.shape[1]) + F32(1e-5))
            for j in range(x.shape[1]):
                out[i, j] = x[i, j] * inverse * scale[j]
        return out

    return f


def _rows(extra: int) -> Callable[..., tuple[Any, ...]]:
    def make(rng: np.random.Generator, m: int, n: int) -> tuple[Any, ...]:
        return (normal(rng, m, n), *(normal(rng, n) for _ in range(extra)))

    return make


def _backward(forward: Callable[..., Any]) -> dict[str, Build]:
    """The cotangents of all arguments for a cotangent of the result."""

    def build(lib: Any, **size: int) -> Any:
        vjp = lib.module.vjp
        # The formula differentiates its maximum too, which cancels but for what rounding leaves:
        # libraries have functions that do not.
        f = partial(lib.nn.logsumexp, axis=-1) if forward is logsumexp else forward(lib.xp, **size)
        return lib.jit(lambda d, *args: vjp(f, *args)[1](d))

    return {"tessera": build, "jax": build}


def _backward_torch(forward: Callable[..., Any]) -> dict[str, Build]:
    def build(lib: Any, **size: int) -> Any:
        torch, f = lib.module, lib.jit(forward(lib.module, **size))

        def run(d: Any, *args: Any) -> Any:
            args = tuple(a.detach().requires_grad_() for a in args)
            return torch.autograd.grad(f(*args), args, d)

        return run

    return {"torch": build}


def _softmax_back(d: Any, x: Any) -> Any:
    y = softmax(np, 0, 0)(x)
    return (y * (d - np.sum(d * y, -1, keepdims=True)),)


def _logsumexp_back(d: Any, x: Any) -> Any:
    return (d[:, None] * softmax(np, 0, 0)(x),)


def _layernorm_back(d: Any, x: Any, scale: Any, shift: Any) -> Any:
    centred = x - x.mean(-1, keepdims=True)
    inverse = 1 / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-5)
    y, g = centred * inverse, d * scale
    dx = inverse * (g - g.mean(-1, keepdims=True) - y * (g * y).mean(-1, keepdims=True))
    return dx, (d * y).sum(0), d.sum(0)


def _rmsnorm_back(d: Any, x: Any, scale: Any) -> Any:
    inverse = 1 / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-5)
    y, g = x * inverse, d * scale
    return inverse * (g - y * (g * y).mean(-1, keepdims=True)), (d * y).sum(0)


def _family(
    name: str,
    forward: Callable[..., Any],
    torch: Callable[..., Any],
    numba: Callable[..., Any],
    back: Callable[..., Any],
    extra: int = 0,
    reduces: bool = False,
    exponentials: int = 0,
) -> list[Program]:
    """The program and its gradient."""
    work = 6 + exponentials * TRANSCENDENTAL

    def with_cotangent(rng: np.random.Generator, m: int, n: int) -> tuple[Any, ...]:
        return normal(rng, *((m,) if reduces else (m, n))), *_rows(extra)(rng, m, n)

    return [
        Program(
            name,
            _rows(extra),
            {**shared(forward), **torch_program(torch), **numba_program(numba)},
            lambda m, n: Cost(4 * (m * n + (m if reduces else m * n)), work * m * n),
            SHAPES,
            TINY,
            quick=(0, 2),
        ),
        Program(
            f"{name} backward",
            with_cotangent,
            {
                **_backward(forward),
                **_backward_torch(torch),
                "numpy": lambda lib, **size: back,
            },
            lambda m, n: Cost(4 * (2 * m * n + (m if reduces else m * n)), (work + 8) * m * n),
            SHAPES[:3],
            TINY,
        ),
    ]


def _reduction(name: str, axis: str) -> Callable[..., Any]:
    where = {"0": 0, "1": 1, "all": None}[axis]

    def body(xp: Any, **size: Any) -> Any:
        f = getattr(xp, name)
        return (lambda x: f(x)) if where is None else (lambda x: f(x, axis=where))

    return body


def _by_axis(name: str) -> dict[str, Build]:
    def build(lib: Any, m: int, n: int, axis: str) -> Any:
        return lib.jit(_reduction(name, axis)(lib.xp))

    return dict.fromkeys(("tessera", "jax", "numpy", "torch"), build)


def _sum_numba(lib: Any, m: int, n: int, axis: str) -> Any:
    numba = lib.module

    @numba.njit(parallel=True, fastmath=True)
    def everything(x: Any) -> Any:
        total = F32(0)
        flat = x.reshape(-1)
        for i in numba.prange(flat.size):
            total += flat[i]
        return np.float32(total)

    @numba.njit(parallel=True, fastmath=True)
    def rows(x: Any) -> Any:
        out = np.empty(x.shape[0], x.dtype)
        for i in numba.prange(x.shape[0]):
            total = F32(0)
            for j in range(x.shape[1]):
                total += x[i, j]
            out[i] = total
        return out

    @numba.njit(parallel=True, fastmath=True)
    def columns(x: Any) -> Any:
        out = np.zeros(x.shape[1], x.dtype)
        parts = numba.get_num_threads()
        width = (x.shape[1] + parts - 1) // parts
        for part in numba.prange(parts):
            for i in range(x.shape[0]):
                for j in range(part * width, min((part + 1) * width, x.shape[1])):
                    out[j] += x[i, j]
        return out

    return {"all": everything, "1": rows, "0": columns}[axis]


def _argmax_numba(lib: Any, m: int, n: int, axis: str) -> Any:
    numba = lib.module

    @numba.njit(parallel=True)
    def rows(x: Any) -> Any:
        out = np.empty(x.shape[0], np.int64)
        for i in numba.prange(x.shape[0]):
            out[i] = np.argmax(x[i])
        return out

    @numba.njit(parallel=True)
    def columns(x: Any) -> Any:
        out = np.zeros(x.shape[1], np.int64)
        top = x[0].copy()
        for i in range(1, x.shape[0]):
            for j in range(x.shape[1]):
                if x[i, j] > top[j]:
                    top[j] = x[i, j]
                    out[j] = i
        return out

    @numba.njit
    def everything(x: Any) -> Any:
        return np.argmax(x)

    return {"all": everything, "1": rows, "0": columns}[axis]


def _axes(*shapes: tuple[int, int]) -> list[dict[str, Any]]:
    return [{"m": m, "n": n, "axis": axis} for m, n in shapes for axis in ("0", "1", "all")]


def _matrix(rng: np.random.Generator, m: int, n: int, axis: str) -> tuple[Any, ...]:
    return (normal(rng, m, n),)


def _cumsum_numba(lib: Any, m: int, n: int, axis: str) -> Any:
    numba = lib.module

    @numba.njit(parallel=True)
    def rows(x: Any) -> Any:
        out = np.empty_like(x)
        for i in numba.prange(x.shape[0]):
            total = F32(0)
            for j in range(x.shape[1]):
                total += x[i, j]
                out[i, j] = total
        return out

    @numba.njit
    def columns(x: Any) -> Any:
        out = np.empty_like(x)
        out[0] = x[0]
        for i in range(1, x.shape[0]):
            for j in range(x.shape[1]):
                out[i, j] = out[i - 1, j] + x[i, j]
        return out

    return {"1": rows, "0": columns}[axis]


def _in_space(name: str) -> dict[str, Build]:
    """A reduction of an array of three axes along one of them."""

    def build(lib: Any, a: int, b: int, c: int, axis: int) -> Any:
        f = getattr(lib.xp, name)
        return lib.jit(lambda x: f(x, axis=axis))

    return dict.fromkeys(("tessera", "jax", "numpy", "torch"), build)


def _space(name: str) -> Program:
    sides, wide = {"a": 64, "b": 256, "c": 256}, {"a": 64, "b": 128, "c": 1000}
    return Program(
        f"{name} of three axes",
        lambda rng, a, b, c, axis: (normal(rng, a, b, c),),
        _in_space(name),
        lambda a, b, c, axis: Cost(4 * a * b * c, a * b * c),
        [*[{**sides, "axis": axis} for axis in range(3)], {**wide, "axis": 1}],
        {"a": 3, "b": 4, "c": 5, "axis": 1},
        quick=(0, 1, 2),
        tolerance=0 if name == "argmax" else 1e-4,
    )


PROGRAMS = [
    *_family(
        "softmax", softmax, _softmax_torch, _softmax_numba, _softmax_back, exponentials=1
    ),
    *_family(
        "logsumexp", logsumexp, _logsumexp_torch, _logsumexp_numba, _logsumexp_back,
        reduces=True, exponentials=1,
    ),
    *_family("layernorm", layernorm, _layernorm_torch, _layernorm_numba, _layernorm_back, extra=2),
    *_family("rmsnorm", rmsnorm, _rmsnorm_torch, _rmsnorm_numba, _rmsnorm_back, extra=1),
    Program(
        "sum",
        _matrix,
        {**_by_axis("sum"), "numba": _sum_numba},
        lambda m, n, axis: Cost(4 * m * n, m * n),
        _axes((4096, 1024), (64, 64)),
        {"m": 5, "n": 7, "axis": "0"},
        quick=(0, 1, 2),
        eager=True,
    ),
    Program(
        "argmax",
        _matrix,
        {**_by_axis("argmax"), "numba": _argmax_numba},
        lambda m, n, axis: Cost(4 * m * n, m * n),
        _axes((4096, 1024)),
        {"m": 5, "n": 7, "axis": "1"},
        quick=(0, 1, 2),
        tolerance=0,
    ),
    _space("sum"),
    _space("argmax"),
    Program(
        "cumsum",
        _matrix,
        {**_by_axis("cumsum"), "numba": _cumsum_numba},
        lambda m, n, axis: Cost(8 * m * n, m * n),
        [{"m": m, "n": n, "axis": a} for m, n, a in ((1, 10**6, "1"), (1024, 1024, "1"),
                                                      (1024, 1024, "0"))],
        {"m": 5, "n": 7, "axis": "1"},
        quick=(0, 1, 2),
    ),
]
