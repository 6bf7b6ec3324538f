"""Elementwise chains from small to large, special functions, Black-Scholes, stacked columns."""

from __future__ import annotations

from typing import Any

import numpy as np

from cpu.program import F32, Cost, Program, normal, numba_program, shared, torch_program

# Multiplications and additions that a vector exponential, logarithm or error function takes.
TRANSCENDENTAL = 20


def chain(xp: Any, n: int) -> Any:
    """Ten operations that are cheap."""

    def f(x: Any, y: Any, z: Any) -> Any:
        a = x * y + z
        b = a - x * 0.5
        return xp.maximum(b, z) * a + xp.abs(y - b) * 0.25

    return f


def _chain_torch(torch: Any, n: int) -> Any:
    return chain(torch, n)


def _chain_numba(numba: Any, n: int) -> Any:
    @numba.njit(parallel=n >= 65536, fastmath=True)
    def f(x: Any, y: Any, z: Any) -> Any:
        out = np.empty_like(x)
        for i in numba.prange(x.size):
            a = x[i] * y[i] + z[i]
            b = a - x[i] * F32(0.5)
            out[i] = max(b, z[i]) * a + abs(y[i] - b) * F32(0.25)
        return out

    return f


def special(xp: Any, n: int) -> Any:
    """Four functions that are not one instruction."""
    return lambda x: xp.exp(-x * x) + xp.tanh(x) * xp.sin(x) - xp.log1p(xp.abs(x))


def _special_numba(numba: Any, n: int) -> Any:
    @numba.njit(parallel=True, fastmath=True)
    def f(x: Any) -> Any:
        out = np.empty_like(x)
        for i in numba.prange(x.size):
            v = x[i]
            out[i] = np.exp(-v * v) + np.tanh(v) * np.sin(v) - np.log1p(abs(v))
        return out

    return f


def _options(rng: np.random.Generator, n: int) -> tuple[Any, ...]:
    ranges = (5, 30), (1, 100), (0.25, 10)
    return tuple(rng.uniform(low, high, n).astype(F32) for low, high in ranges)


RATE, VOLATILITY = 0.02, 0.30


def black_scholes(xp: Any, erf: Any) -> Any:
    """Prices of European calls and puts (Black and Scholes, 1973)."""

    def normal_cdf(x: Any) -> Any:
        return 0.5 + 0.5 * erf(x * 0.7071067811865476)

    def f(price: Any, strike: Any, years: Any) -> Any:
        root = xp.sqrt(years)
        d1 = xp.log(price / strike) + (RATE + 0.5 * VOLATILITY**2) * years
        d1 = d1 / (VOLATILITY * root)
        d2 = d1 - VOLATILITY * root
        discounted = strike * xp.exp(-RATE * years)
        call = price * normal_cdf(d1) - discounted * normal_cdf(d2)
        return call, call - price + discounted

    return f


def _scholes(lib: Any, n: int) -> Any:
    from scipy.special import erf as numpy_erf

    erf = {"jax": lambda: lib.module.scipy.special.erf, "numpy": lambda: numpy_erf}
    return lib.jit(black_scholes(lib.xp, erf.get(lib.name, lambda: lib.xp.erf)()))


def _scholes_numba(numba: Any, n: int) -> Any:
    import math

    half = F32(0.7071067811865476)

    @numba.njit(parallel=True, fastmath=True)
    def f(price: Any, strike: Any, years: Any) -> Any:
        call, put = np.empty_like(price), np.empty_like(price)
        for i in numba.prange(price.size):
            p, s, t = price[i], strike[i], years[i]
            root = math.sqrt(t)
            d1 = (math.log(p / s) + F32(RATE + 0.5 * VOLATILITY**2) * t) / (F32(VOLATILITY) * root)
            d2 = d1 - F32(VOLATILITY) * root
            discounted = s * math.exp(-F32(RATE) * t)
            n1 = F32(0.5) + F32(0.5) * math.erf(d1 * half)
            n2 = F32(0.5) + F32(0.5) * math.erf(d2 * half)
            call[i] = p * n1 - discounted * n2
            put[i] = call[i] - p + discounted
        return call, put

    return f


def harmonics(stack: Any) -> Any:
    """The 16 real spherical harmonics of degrees 0 to 3, of unit vectors [n, 3]."""

    def f(d: Any) -> Any:
        return stack(_harmonics(d[:, 0], d[:, 1], d[:, 2]))

    return f


def _harmonics(x: Any, y: Any, z: Any) -> list[Any]:
    xx, yy, zz = x * x, y * y, z * z
    return [
        0.0 * x + 0.28209479, -0.48860251 * y, 0.48860251 * z, -0.48860251 * x,
        1.09254843 * x * y, -1.09254843 * y * z, 0.94617470 * zz - 0.31539157,
        -1.09254843 * x * z, 0.54627422 * (xx - yy), -0.59004359 * y * (3.0 * xx - yy),
        2.89061144 * x * y * z, -0.45704580 * y * (5.0 * zz - 1.0),
        0.37317633 * z * (5.0 * zz - 3.0), -0.45704580 * x * (5.0 * zz - 1.0),
        1.44530572 * z * (xx - yy), -0.59004359 * x * (xx - 3.0 * yy),
    ]  # fmt: skip


def _harmonics_shared(xp: Any, n: int) -> Any:
    return harmonics(lambda columns: xp.stack(columns, axis=-1))


def _harmonics_torch(torch: Any, n: int) -> Any:
    return harmonics(lambda columns: torch.stack(columns, dim=-1))


def _harmonics_numba(numba: Any, n: int) -> Any:
    row = numba.njit(fastmath=True)(_harmonics)

    @numba.njit(parallel=n >= 4096, fastmath=True)
    def f(d: Any) -> Any:
        out = np.empty((d.shape[0], 16), np.float32)
        for i in numba.prange(d.shape[0]):
            found = row(d[i, 0], d[i, 1], d[i, 2])
            for k in range(16):
                out[i, k] = found[k]
        return out

    return f


def _directions(rng: np.random.Generator, n: int) -> tuple[Any, ...]:
    d = normal(rng, n, 3)
    return (d / np.sqrt(np.sum(d * d, axis=1, keepdims=True)),)


SIZES = [{"n": 10**k} for k in range(3, 9)]

PROGRAMS = [
    Program(
        "elementwise chain",
        lambda rng, n: tuple(normal(rng, n) for _ in range(3)),
        {**shared(chain), **torch_program(_chain_torch), **numba_program(_chain_numba)},
        lambda n: Cost(16 * n, 10 * n),
        SIZES,
        {"n": 33},
        quick=(0, 1, 3, 4),
        eager=True,
    ),
    Program(
        "special functions",
        lambda rng, n: (normal(rng, n),),
        {**shared(special), **torch_program(special), **numba_program(_special_numba)},
        lambda n: Cost(8 * n, 4 * TRANSCENDENTAL * n),
        [{"n": 10**6}, {"n": 10**4}],
        {"n": 33},
    ),
    Program(
        "black-scholes",
        _options,
        {
            **dict.fromkeys(("tessera", "jax", "numpy"), _scholes),
            **torch_program(lambda torch, n: black_scholes(torch, torch.erf)),
            **numba_program(_scholes_numba),
        },
        lambda n: Cost(20 * n, (4 * TRANSCENDENTAL + 20) * n),
        [{"n": 10**6}],
        {"n": 33},
    ),
    Program(
        "spherical harmonics",
        _directions,
        {
            **shared(_harmonics_shared),
            **torch_program(_harmonics_torch),
            **numba_program(_harmonics_numba),
        },
        lambda n: Cost(76 * n, 46 * n),
        [{"n": 10**4}, {"n": 10**6}],
        {"n": 33},
    ),
]
