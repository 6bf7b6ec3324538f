"""Programs of scientists: n-body, mandelbrot, k-means, a heat stencil, convolution by FFT."""

from __future__ import annotations

from typing import Any

import numpy as np

from cpu.program import F32, Cost, Program, normal, numba_program, shared, torch_program

SOFTENING = 1e-2


def nbody(xp: Any, n: int) -> Any:
    """Accelerations of n bodies, by all pairs."""

    def f(place: Any, mass: Any) -> Any:
        apart = place[None, :, :] - place[:, None, :]
        square = xp.sum(apart * apart, axis=-1) + SOFTENING
        weight = mass[None, :] / (square * xp.sqrt(square))
        return xp.sum(weight[:, :, None] * apart, axis=1)

    return f


def _nbody_torch(torch: Any, n: int) -> Any:
    def f(place: Any, mass: Any) -> Any:
        apart = place[None, :, :] - place[:, None, :]
        square = (apart * apart).sum(-1) + SOFTENING
        weight = mass[None, :] / (square * torch.sqrt(square))
        return (weight[:, :, None] * apart).sum(1)

    return f


def _nbody_numba(numba: Any, n: int) -> Any:
    @numba.njit(parallel=True, fastmath=True)
    def f(place: Any, mass: Any) -> Any:
        out = np.empty_like(place)
        for i in numba.prange(place.shape[0]):
            ax, ay, az = F32(0), F32(0), F32(0)
            for j in range(place.shape[0]):
                dx = place[j, 0] - place[i, 0]
                dy = place[j, 1] - place[i, 1]
                dz = place[j, 2] - place[i, 2]
                square = dx * dx + dy * dy + dz * dz + F32(SOFTENING)
                weight = mass[j] / (square * np.sqrt(square))
                ax += weight * dx
                ay += weight * dy
                az += weight * dz
            out[i, 0], out[i, 1], out[i, 2] = ax, ay, az
        return out

    return f


STEPS = 200


def mandelbrot_point(lib: Any) -> Any:
    """How many steps a point takes to leave: a `while_loop` for one point."""
    xp, while_loop = lib.xp, lib.while_loop

    def point(cx: Any, cy: Any) -> Any:
        def goes_on(state: Any) -> Any:
            x, y, count = state
            return (x * x + y * y <= 4) & (count < STEPS)

        def step(state: Any) -> Any:
            x, y, count = state
            return x * x - y * y + cx, 2 * x * y + cy, count + 1

        zero = xp.zeros_like(cx)
        return while_loop(goes_on, step, (zero, zero, xp.asarray(0, dtype=xp.int32)))[2]

    return point


def _mandelbrot(lib: Any, n: int) -> Any:
    point = mandelbrot_point(lib)
    return lib.jit(lib.vmap(lib.vmap(point, in_axes=(0, None)), in_axes=(None, 0)))


def _mandelbrot_numpy(lib: Any, n: int) -> Any:
    def f(cx: Any, cy: Any) -> Any:
        cx, cy = np.broadcast_arrays(cx[None, :], cy[:, None])
        x, y, count = np.zeros_like(cx), np.zeros_like(cx), np.zeros(cx.shape, np.int32)
        with np.errstate(over="ignore", invalid="ignore"):
            for _ in range(STEPS):
                inside = x * x + y * y <= 4
                if not inside.any():
                    break
                count += inside
                x, y = (
                    np.where(inside, x * x - y * y + cx, x),
                    np.where(inside, 2 * x * y + cy, y),
                )
        return count

    return f


def _mandelbrot_torch(torch: Any, n: int) -> Any:
    def f(cx: Any, cy: Any) -> Any:
        cx, cy = torch.broadcast_tensors(cx[None, :], cy[:, None])
        x, y = torch.zeros_like(cx), torch.zeros_like(cx)
        count = torch.zeros(cx.shape, dtype=torch.int32)
        for _ in range(STEPS):
            inside = x * x + y * y <= 4
            count += inside
            x, y = (
                torch.where(inside, x * x - y * y + cx, x),
                torch.where(inside, 2 * x * y + cy, y),
            )
        return count

    return f


def _mandelbrot_numba(numba: Any, n: int) -> Any:
    @numba.njit(parallel=True)
    def f(cx: Any, cy: Any) -> Any:
        out = np.empty((cy.size, cx.size), np.int32)
        for i in numba.prange(cy.size):
            for j in range(cx.size):
                x, y, count = F32(0), F32(0), 0
                while x * x + y * y <= 4 and count < STEPS:
                    x, y = x * x - y * y + cx[j], F32(2) * x * y + cy[i]
                    count += 1
                out[i, j] = count
        return out

    return f


def _plane(rng: np.random.Generator, n: int) -> tuple[Any, ...]:
    return np.linspace(-2, 0.6, n, dtype=F32), np.linspace(-1.3, 1.3, n, dtype=F32)


def _mandelbrot_reference(cx: Any, cy: Any) -> Any:
    # Chaos: float64 counts other steps near the border, so the definition is in float32.
    return _mostly(None, _mandelbrot_numpy(None, 0)(cx.astype(F32), cy.astype(F32)))


def _mostly(arguments: Any, result: Any) -> Any:
    """Counts by their mean and by blocks: single points at the border may differ by rounding."""
    counts = np.asarray(result, np.float64)
    side = max(1, counts.shape[0] // 16)
    whole = counts[: side * (counts.shape[0] // side), : side * (counts.shape[1] // side)]
    rows, columns = whole.shape[0] // side, whole.shape[1] // side
    return whole.reshape(rows, side, columns, side).mean((1, 3))


def kmeans(xp: Any, points: int, width: int, clusters: int) -> Any:
    """One step of Lloyd's algorithm, the sums by a product with one-hot rows."""

    def f(x: Any, centres: Any) -> Any:
        distance = xp.sum(centres * centres, axis=1)[None, :] - 2 * (x @ centres.T)
        nearest = xp.argmin(distance, axis=1)
        hot = xp.astype(nearest[:, None] == xp.arange(clusters)[None, :], x.dtype)
        count = xp.maximum(xp.sum(hot, axis=0), 1)
        return (hot.T @ x) / count[:, None]

    return f


def _kmeans_torch(torch: Any, points: int, width: int, clusters: int) -> Any:
    def f(x: Any, centres: Any) -> Any:
        nearest = torch.cdist(x, centres).argmin(1)
        sums = torch.zeros_like(centres).index_add_(0, nearest, x)
        count = torch.bincount(nearest, minlength=clusters).clamp(min=1)
        return sums / count[:, None]

    return f


def _kmeans_numba(numba: Any, points: int, width: int, clusters: int) -> Any:
    @numba.njit(fastmath=True)
    def f(x: Any, centres: Any) -> Any:
        sums = np.zeros_like(centres)
        count = np.zeros(clusters, x.dtype)
        for i in range(x.shape[0]):
            best, place = np.inf, 0
            for c in range(clusters):
                total = F32(0)
                for k in range(width):
                    total += (x[i, k] - centres[c, k]) ** 2
                if total < best:
                    best, place = total, c
            count[place] += 1
            for k in range(width):
                sums[place, k] += x[i, k]
        for c in range(clusters):
            sums[c] /= max(count[c], F32(1))
        return sums

    return f


def _groups(rng: np.random.Generator, points: int, width: int, clusters: int) -> tuple[Any, ...]:
    centres = normal(rng, clusters, width, scale=10)
    x = centres[rng.integers(0, clusters, points)] + normal(rng, points, width)
    return x, centres + normal(rng, clusters, width, scale=0.1)


def heat_step(xp: Any, u: Any) -> Any:
    """One explicit step of the heat equation, cold at the border."""
    inner = u[1:-1, 1:-1]
    around = u[:-2, 1:-1] + u[2:, 1:-1] + u[1:-1, :-2] + u[1:-1, 2:]
    return xp.pad(inner + 0.2 * (around - 4 * inner), 1)


def _heat(lib: Any, n: int, steps: int) -> Any:
    xp, fori_loop = lib.xp, lib.fori_loop
    return lib.jit(lambda u: fori_loop(0, steps, lambda k, u: heat_step(xp, u), u))


def _heat_loop(xp: Any, n: int, steps: int) -> Any:
    def f(u: Any) -> Any:
        for _ in range(steps):
            u = heat_step(xp, u)
        return u

    return f


class TorchPad:
    """`pad` with NumPy's meaning."""

    def __init__(self, torch: Any) -> None:
        self.pad = lambda u, width: torch.nn.functional.pad(u, (width,) * 4)


def _heat_numba(numba: Any, n: int, steps: int) -> Any:
    @numba.njit(parallel=True, fastmath=True)
    def f(u: Any) -> Any:
        u, v = u.copy(), np.zeros_like(u)
        for _ in range(steps):
            for i in numba.prange(1, u.shape[0] - 1):
                for j in range(1, u.shape[1] - 1):
                    around = u[i - 1, j] + u[i + 1, j] + u[i, j - 1] + u[i, j + 1]
                    v[i, j] = u[i, j] + F32(0.2) * (around - F32(4) * u[i, j])
            u, v = v, u
        u[0], u[-1], u[:, 0], u[:, -1] = 0, 0, 0, 0
        return u

    return f


def fft_convolution(fft: Any, rows: int, n: int) -> Any:
    """Linear convolution of rows with filters, by transforms of twice the length."""

    def f(x: Any, w: Any) -> Any:
        return fft.irfft(fft.rfft(x, n=2 * n) * fft.rfft(w, n=2 * n), n=2 * n)[..., :n]

    return f


def _convolution(lib: Any, rows: int, n: int) -> Any:
    fft = np.fft if lib.name == "numpy" else lib.module.fft if "torch" in lib.name else lib.fft
    return lib.jit(fft_convolution(fft, rows, n))


def _convolution_cost(rows: int, n: int) -> Cost:
    transform = 2.5 * 2 * n * (2 * n).bit_length()
    return Cost(8 * rows * n + 4 * n, (2 * rows + 1) * transform)


PROGRAMS = [
    Program(
        "n-body",
        lambda rng, n: (normal(rng, n, 3), rng.uniform(0.5, 1.5, n).astype(F32)),
        {**shared(nbody), **torch_program(_nbody_torch), **numba_program(_nbody_numba)},
        lambda n: Cost(28 * n, 20 * n * n),
        [{"n": 2048}],
        {"n": 9},
        tolerance=1e-3,
    ),
    Program(
        "mandelbrot",
        _plane,
        {
            **{"tessera": _mandelbrot, "jax": _mandelbrot, "numpy": _mandelbrot_numpy},
            **torch_program(_mandelbrot_torch),
            **numba_program(_mandelbrot_numba),
        },
        # A quarter of this part of the plane never leaves.
        lambda n: Cost(4 * n * n, 10 * n * n * STEPS * 0.25),
        [{"n": 512}],
        {"n": 16},
        reference=_mandelbrot_reference,
        view=_mostly,
        tolerance=2e-2,
    ),
    Program(
        "k-means step",
        _groups,
        {**shared(kmeans), **torch_program(_kmeans_torch), **numba_program(_kmeans_numba)},
        lambda points, width, clusters: Cost(
            4 * points * width, 2 * points * width * (clusters + 1)
        ),
        [{"points": 100000, "width": 16, "clusters": 32}],
        {"points": 40, "width": 3, "clusters": 2},
        tolerance=1e-3,
    ),
    Program(
        "heat stencil",
        lambda rng, n, steps: (np.pad(normal(rng, n - 2, n - 2), 1),),
        {
            **{"tessera": _heat, "jax": _heat},
            "numpy": lambda lib, n, steps: _heat_loop(np, n, steps),
            **torch_program(lambda torch, n, steps: _heat_loop(TorchPad(torch), n, steps)),
            **numba_program(_heat_numba),
        },
        lambda n, steps: Cost(8 * n * n * steps, 6 * n * n * steps),
        [{"n": 1024, "steps": 20}, {"n": 128, "steps": 200}],
        {"n": 7, "steps": 3},
    ),
    Program(
        "fft convolution",
        lambda rng, rows, n: (normal(rng, rows, n), normal(rng, n)),
        dict.fromkeys(("tessera", "jax", "numpy", "torch"), _convolution),
        _convolution_cost,
        [{"rows": 64, "n": 4096}, {"rows": 8, "n": 65536}],
        {"rows": 2, "n": 5},
        eager=True,
    ),
]
