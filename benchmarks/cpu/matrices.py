"""Linear algebra of small matrices: equations, factors and decompositions in batches, and equations
in a loop over time."""

from __future__ import annotations

from typing import Any

import numpy as np

from cpu.program import F32, Cost, Program, normal, numba_program, shared, torch_program
from cpu.recurrent import python_scan


def solve(xp: Any, n: int, count: int) -> Any:
    """Equations of many matrices, a right-hand side each."""
    return lambda a, b: xp.linalg.solve(a, b)


def _solve_numba(numba: Any, n: int, count: int) -> Any:
    @numba.njit(parallel=True)
    def f(a: Any, b: Any) -> Any:
        out = np.empty_like(b)
        for k in numba.prange(a.shape[0]):
            out[k] = np.linalg.solve(a[k], b[k])
        return out

    return f


def _equations(rng: np.random.Generator, n: int, count: int) -> tuple[Any, ...]:
    return normal(rng, count, n, n) + 2 * np.eye(n, dtype=F32), normal(rng, count, n, 1)


def _each(one: Any) -> Any:
    """A function of one matrix, of all that there are."""

    def make(numba: Any, n: int, count: int) -> Any:
        compiled = numba.njit(one)

        @numba.njit(parallel=True)
        def f(a: Any) -> Any:
            out = np.empty_like(a)
            for k in numba.prange(a.shape[0]):
                out[k] = compiled(a[k])
            return out

        return f

    return make


def cholesky(xp: Any, n: int, count: int) -> Any:
    """Factors of many covariances."""
    return lambda a: xp.linalg.cholesky(a)


def _cholesky_numba(a: Any) -> Any:
    return np.linalg.cholesky(a)


def _covariances(rng: np.random.Generator, n: int, count: int) -> tuple[Any, ...]:
    x = normal(rng, count, n, n)
    return (x @ x.swapaxes(1, 2) / F32(n) + np.eye(n, dtype=F32),)


def whitening(xp: Any, n: int, count: int) -> Any:
    """Inverse roots of many covariances."""

    def f(a: Any) -> Any:
        values, vectors = xp.linalg.eigh(a)
        return vectors / xp.sqrt(values)[:, None, :] @ xp.swapaxes(vectors, 1, 2)

    return f


def _whitening_numba(a: Any) -> Any:
    values, vectors = np.linalg.eigh(a)
    return (vectors / np.sqrt(values)) @ vectors.T


def rotations(xp: Any, n: int, count: int) -> Any:
    """The orthogonal matrices that are nearest to many others (Procrustes)."""

    def f(a: Any) -> Any:
        left, _, right = xp.linalg.svd(a)
        return left @ right

    return f


def _rotations_numba(a: Any) -> Any:
    left, _, right = np.linalg.svd(a)
    return left @ right


def bases(xp: Any, n: int, count: int) -> Any:
    """Orthonormal bases of the columns of many matrices."""
    return lambda a: xp.linalg.qr(a)[0]


def _bases_numba(a: Any) -> Any:
    return np.linalg.qr(a)[0]


def _any(rng: np.random.Generator, n: int, count: int) -> tuple[Any, ...]:
    """Matrices whose singular values are apart from zero."""
    return (normal(rng, count, n, n) + F32(n) * np.eye(n, dtype=F32),)


def kalman(xp: Any, scan: Any) -> Any:
    """The means that a Kalman filter ("A new approach to linear filtering and prediction problems",
    1960) has of a state, after each observation."""

    def f(model: Any, observations: Any) -> Any:
        moves, sees, noise, error = model["moves"], model["sees"], model["noise"], model["error"]

        def step(state: Any, y: Any) -> Any:
            mean, spread = state
            mean, spread = moves @ mean, moves @ spread @ moves.T + noise
            gain = xp.linalg.solve(sees @ spread @ sees.T + error, sees @ spread).T
            mean = mean + gain @ (y - sees @ mean)
            return (mean, spread - gain @ sees @ spread), mean

        start = (0 * noise[0], noise)
        return scan(step, start, observations)[1]

    return f


def _kalman_torch(torch: Any, states: int, seen: int, steps: int) -> Any:
    def scan(f: Any, init: Any, xs: Any) -> Any:
        carry, ys = init, []
        for x in xs:
            carry, y = f(carry, x)
            ys.append(y)
        return carry, torch.stack(ys)

    return kalman(torch, scan)


def _kalman_numba(numba: Any, states: int, seen: int, steps: int) -> Any:
    @numba.njit
    def run(moves: Any, sees: Any, noise: Any, error: Any, observations: Any) -> Any:
        mean, spread = np.zeros_like(noise[0]), noise
        found = np.empty((observations.shape[0], mean.size), mean.dtype)
        for k in range(observations.shape[0]):
            mean = moves @ mean
            spread = moves @ spread @ moves.T + noise
            seen = sees @ spread
            gain = np.linalg.solve(seen @ sees.T + error, seen).T
            mean = mean + gain @ (observations[k] - sees @ mean)
            spread = spread - gain @ seen
            found[k] = mean
        return found

    def f(model: Any, observations: Any) -> Any:
        parts = [model[name] for name in ("moves", "sees", "noise", "error")]
        return run(*parts, observations)

    return f


def _motion(rng: np.random.Generator, states: int, seen: int, steps: int) -> tuple[Any, ...]:
    model = {
        "moves": F32(0.95) * np.eye(states, dtype=F32) + normal(rng, states, states, scale=0.01),
        "sees": normal(rng, seen, states),
        "noise": F32(0.1) * np.eye(states, dtype=F32),
        "error": np.eye(seen, dtype=F32),
    }
    return model, normal(rng, steps, seen)


def _kalman_cost(states: int, seen: int, steps: int) -> Cost:
    products = 4 * states**3 + 4 * seen * states**2 + 4 * seen**2 * states
    return Cost(4 * steps * (states + seen), steps * (products + seen**3))


PROGRAMS = [
    Program(
        "solve",
        _equations,
        {**shared(solve), **torch_program(solve), **numba_program(_solve_numba)},
        lambda n, count: Cost(4 * count * (n * n + 2 * n), count * 2 / 3 * n**3),
        [{"n": 3, "count": 5000}, {"n": 16, "count": 500}, {"n": 64, "count": 30}],
        {"n": 3, "count": 4},
        tolerance=1e-2,
        bound="latency",
        eager=True,
    ),
    Program(
        "cholesky",
        _covariances,
        {**shared(cholesky), **torch_program(cholesky), **numba_program(_each(_cholesky_numba))},
        lambda n, count: Cost(8 * count * n * n, count / 3 * n**3),
        [{"n": 3, "count": 5000}, {"n": 64, "count": 30}],
        {"n": 3, "count": 4},
        bound="latency",
    ),
    Program(
        "whitening",
        _covariances,
        {**shared(whitening), **torch_program(whitening), **numba_program(_each(_whitening_numba))},
        lambda n, count: Cost(8 * count * n * n, count * 11 * n**3),
        [{"n": 3, "count": 5000}, {"n": 16, "count": 500}],
        {"n": 3, "count": 4},
        tolerance=1e-3,
        bound="latency",
    ),
    Program(
        "nearest rotations",
        _any,
        {**shared(rotations), **torch_program(rotations), **numba_program(_each(_rotations_numba))},
        lambda n, count: Cost(8 * count * n * n, count * 24 * n**3),
        [{"n": 3, "count": 5000}, {"n": 16, "count": 500}],
        {"n": 3, "count": 4},
        tolerance=1e-3,
        bound="latency",
    ),
    Program(
        "orthonormal bases",
        _any,
        {**shared(bases), **torch_program(bases), **numba_program(_each(_bases_numba))},
        lambda n, count: Cost(8 * count * n * n, count * 8 / 3 * n**3),
        [{"n": 3, "count": 5000}, {"n": 64, "count": 30}],
        {"n": 3, "count": 4},
        tolerance=1e-3,
        bound="latency",
    ),
    Program(
        "kalman filter",
        _motion,
        {
            **dict.fromkeys(
                ("tessera", "jax"), lambda lib, **size: lib.jit(kalman(lib.xp, lib.scan))
            ),
            "numpy": lambda lib, **size: kalman(np, python_scan),
            **torch_program(_kalman_torch),
            **numba_program(_kalman_numba),
        },
        _kalman_cost,
        [{"states": 4, "seen": 2, "steps": 500}, {"states": 16, "seen": 8, "steps": 500}],
        {"states": 3, "seen": 2, "steps": 4},
        tolerance=1e-3,
        bound="latency",
    ),
]
