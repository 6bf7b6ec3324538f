"""Filters of images, one after the other: corners, sharpening."""

from __future__ import annotations

from typing import Any

import numpy as np

from cpu.program import F32, Cost, Program, numba_program, shared, torch_program
from cpu.science import TorchPad

TAPS = [1 / 16, 4 / 16, 6 / 16, 4 / 16, 1 / 16]
SHARPER = 0.5
SENSITIVITY = 0.04


class _Torch(TorchPad):
    """NumPy's names for what is used of PyTorch."""

    def __init__(self, torch: Any) -> None:
        super().__init__(torch)
        self.clip = torch.clamp


def _box(xp: Any, x: Any) -> Any:
    """Sums of three by three neighbours."""
    p = xp.pad(x, 1)
    p = p[:-2] + p[1:-1] + p[2:]
    return p[:, :-2] + p[:, 1:-1] + p[:, 2:]


def corners(xp: Any, height: int, width: int) -> Any:
    """Harris and Stephens, "A combined corner and edge detector" (1988)."""

    def f(x: Any) -> Any:
        p = xp.pad(x, 1)
        across, down = p[1:-1, 2:] - p[1:-1, :-2], p[2:, 1:-1] - p[:-2, 1:-1]
        xx, yy, xy = _box(xp, across * across), _box(xp, down * down), _box(xp, across * down)
        trace = xx + yy
        return xx * yy - xy * xy - SENSITIVITY * trace * trace

    return f


def sharpened(xp: Any, height: int, width: int) -> Any:
    """An image minus what a filter of 5 by 5 leaves of it."""

    def f(x: Any) -> Any:
        p = xp.pad(x, 2)
        p = sum(tap * p[:, k : k + width] for k, tap in enumerate(TAPS))
        smooth = sum(tap * p[k : k + height] for k, tap in enumerate(TAPS))
        return xp.clip(x + SHARPER * (x - smooth), 0.0, 1.0)

    return f


def _corners_numba(numba: Any, height: int, width: int) -> Any:
    @numba.njit(parallel=True, fastmath=True)
    def f(x: Any) -> Any:
        n, m = x.shape
        shape = (n + 2, m + 2)
        p, xx, yy, xy = (
            np.zeros(shape, F32), np.zeros(shape, F32), np.zeros(shape, F32), np.zeros(shape, F32)
        )  # fmt: skip
        for i in numba.prange(n):
            p[i + 1, 1:-1] = x[i]
        for i in numba.prange(1, n + 1):
            for j in range(1, m + 1):
                across, down = p[i, j + 1] - p[i, j - 1], p[i + 1, j] - p[i - 1, j]
                xx[i, j], yy[i, j], xy[i, j] = across * across, down * down, across * down
        out = np.empty_like(x)
        for i in numba.prange(n):
            for j in range(m):
                a, b, c = F32(0), F32(0), F32(0)
                for r in range(3):
                    for s in range(3):
                        a += xx[i + r, j + s]
                        b += yy[i + r, j + s]
                        c += xy[i + r, j + s]
                out[i, j] = a * b - c * c - F32(SENSITIVITY) * (a + b) * (a + b)
        return out

    return f


def _sharpened_numba(numba: Any, height: int, width: int) -> Any:
    a, b, c = F32(TAPS[0]), F32(TAPS[1]), F32(TAPS[2])

    @numba.njit(parallel=True, fastmath=True)
    def f(x: Any) -> Any:
        n, m = x.shape
        p, q = np.zeros((n, m + 4), F32), np.zeros((n + 4, m), F32)
        for i in numba.prange(n):
            p[i, 2:-2] = x[i]
            for j in range(m):
                q[i + 2, j] = (
                    a * (p[i, j] + p[i, j + 4]) + b * (p[i, j + 1] + p[i, j + 3]) + c * p[i, j + 2]
                )
        out = np.empty_like(x)
        for i in numba.prange(n):
            for j in range(m):
                smooth = a * (q[i, j] + q[i + 4, j]) + b * (q[i + 1, j] + q[i + 3, j])
                smooth += c * q[i + 2, j]
                y = x[i, j] + F32(SHARPER) * (x[i, j] - smooth)
                out[i, j] = min(max(y, F32(0)), F32(1))
        return out

    return f


def _image(rng: np.random.Generator, height: int, width: int) -> tuple[Any, ...]:
    return (rng.random((height, width)).astype(F32),)


def _filter(name: str, f: Any, by_numba: Any, operations: int, tolerance: float) -> Program:
    return Program(
        name,
        _image,
        {
            **shared(f),
            **torch_program(lambda torch, **size: f(_Torch(torch), **size)),
            **numba_program(by_numba),
        },
        lambda height, width: Cost(8 * height * width, operations * height * width),
        [{"height": 1080, "width": 1920}, {"height": 2160, "width": 3840}],
        {"height": 9, "width": 7},
        tolerance=tolerance,
    )


PROGRAMS = [
    _filter("corners", corners, _corners_numba, 24, 1e-3),
    _filter("sharpened image", sharpened, _sharpened_numba, 23, 1e-4),
]
