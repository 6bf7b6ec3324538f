"""Convolutions as loops over all places of the window."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np


def windows_of(
    x: np.ndarray,
    sizes: Sequence[int],
    strides: Sequence[int],
    padding: Sequence[tuple[int, int]],
    base: Sequence[int],
    dilation: Sequence[int],
    fill: Any,
) -> np.ndarray:
    """`[places..., window...]` of an array all of whose dims have windows."""
    spread = [n + max(n - 1, 0) * (b - 1) for n, b in zip(x.shape, base, strict=True)]
    whole = np.full(spread, fill, x.dtype)
    whole[tuple([slice(None, None, b) for b in base])] = x
    for axis, (lo, hi) in enumerate(padding):
        cut = slice(max(-lo, 0), whole.shape[axis] - max(-hi, 0))
        whole = whole[(slice(None),) * axis + (cut,)]
        ends = [(0, 0)] * x.ndim
        ends[axis] = (max(lo, 0), max(hi, 0))
        whole = np.pad(whole, ends, constant_values=fill)
    counts = [
        max(-(-(n - (k - 1) * d) // s), 0)
        for n, k, s, d in zip(whole.shape, sizes, strides, dilation, strict=True)
    ]
    out = np.zeros((*counts, *sizes), x.dtype)
    for place in itertools.product(*map(range, counts)):
        for inner in itertools.product(*map(range, sizes)):
            at = [p * s + k * d for p, s, k, d in zip(place, strides, inner, dilation, strict=True)]
            out[place + inner] = whole[tuple(at)]
    return out


def same_pads(dims: Sequence[int], sizes: Sequence[int], strides: Any, dilation: Any) -> Any:
    """The padding that SAME is."""
    found: list[tuple[int, int]] = []
    for n, k, s, d in zip(dims, sizes, strides, dilation, strict=True):
        total = max((-(-n // s) - 1) * s + (k - 1) * d + 1 - n, 0)
        found.append((total // 2, total - total // 2))
    return found


def convolved(
    x: np.ndarray, w: np.ndarray, strides: Any, padding: Any, base: Any, dilation: Any,
    groups: int = 1, batches: int = 1,
) -> np.ndarray:  # fmt: skip
    """What `conv_general` computes on `[N, C, ...]` and `[O, C, ...]`."""
    sizes = w.shape[2:]
    if padding == "SAME":
        padding = same_pads(x.shape[2:], sizes, strides, dilation)
    n, o = x.shape[0] // batches, w.shape[0]
    rows: list[Any] = []
    if 0 in (n, w.shape[1]):
        dims = zip(x.shape[2:], sizes, strict=True)
        return np.zeros((n, o, *[length - size + 1 for length, size in dims]))
    for k in range(o):
        g = k // (o // (groups * batches))
        total: Any = 0
        for c in range(w.shape[1]):
            examples = x[(g * n if batches > 1 else 0) :][:n]
            images = examples[:, (g if groups > 1 else 0) * w.shape[1] + c]
            moved = np.stack(
                [windows_of(i, sizes, strides, padding, base, dilation, 0) for i in images]
            )
            total = total + np.tensordot(moved, w[k, c], w.ndim - 2)
        rows.append(total)
    return np.stack(rows, 1)
