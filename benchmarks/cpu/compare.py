"""Whether results are right: each leaf beside the reference in float64."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from cpu.libraries import as_numpy
from cpu.program import Program, Size, in_float64, leaves, mapped

# Of a larger result so many elements, evenly spaced, are compared.
SAMPLE = 1 << 20


def sampled(result: Any) -> list[np.ndarray]:
    """The leaves of a result, of large ones a sample."""
    found: list[np.ndarray] = []
    for leaf in leaves(result):
        flat = np.ravel(as_numpy(leaf))
        step = -(-flat.size // SAMPLE) if flat.size else 1
        # An odd step meets all columns of a matrix.
        found.append(np.ascontiguousarray(flat[:: step | 1 if step > 1 else 1]))
    return found


def viewed(program: Program, arguments: Any, result: Any) -> list[np.ndarray]:
    """What of a result is compared."""
    if program.view is None:
        return sampled(result)
    return sampled(program.view(arguments, mapped(as_numpy, result)))


def reference(program: Program, size: Size, arguments: Any) -> list[np.ndarray]:
    """What is right, computed by NumPy in float64."""
    from cpu.libraries import load

    wide = in_float64(arguments)
    if program.reference is not None:
        return sampled(program.reference(*wide))
    found = program.build["numpy"](load("numpy"), **size)(*wide)
    if program.view is not None:
        found = program.view(wide, found)
    return sampled(found)


def error(found: Sequence[np.ndarray], expected: Sequence[np.ndarray]) -> float:
    """The largest difference relative to the largest magnitude of its leaf; infinite where the
    leaves do not correspond."""
    if len(found) != len(expected):
        return float("inf")
    worst = 0.0
    for f, e in zip(found, expected, strict=True):
        if f.size != e.size:
            return float("inf")
        if not e.size:
            continue
        kind = np.complex128 if np.iscomplexobj(e) else np.float64
        scale = float(np.max(np.abs(e.astype(kind)))) or 1.0
        gap = float(np.max(np.abs(f.astype(kind) - e.astype(kind)))) / scale
        worst = max(worst, gap if np.isfinite(gap) else float("inf"))
    return worst
