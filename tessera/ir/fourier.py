"""Discrete Fourier transforms by SciPy's pocketfft. None of them scales its result.

SciPy's and not NumPy's: it transforms several axes in one call, in the input's precision. It is the
library that Reinecke's ducc grew out of, kept by SciPy; linear algebra needs SciPy already.

SciPy's public functions allocate their result, which would be copied: with the pages that the
system clears for it that costs as much as a third of a transform. The extension behind them takes
an array to fill; it is called where it is as we know it, and the public functions elsewhere.
"""

from __future__ import annotations

import functools
import importlib
import platform
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np

from tessera import config

Array: TypeAlias = "np.ndarray[Any, Any]"

THREADED = 1 << 16
"""Elements from which on the library's threads share the lines of a transform."""


def _scipy() -> Any:
    from scipy import fft as scipy_fft

    return scipy_fft


@functools.cache
def _extension() -> Any:
    """The functions that fill a given array, or None."""
    try:
        module: Any = importlib.import_module("scipy.fft._pocketfft.pypocketfft")
    except ImportError:
        return None
    x, back = np.array([1, 2], np.float32), np.empty(2, np.float32)
    half, whole = np.empty(2, np.complex64), np.empty(2, np.complex64)
    try:
        module.r2c(x, (0,), True, 0, half, 1)
        module.c2r(half, (0,), 2, False, 0, back, 1)
        module.c2c(half, (0,), True, 0, whole, 1)
    except Exception:  # of another version, whatever it says
        return None
    right = (half == [3, -1]).all() and (back == [2, 4]).all() and (whole == [2, 4]).all()
    return module if right else None


# The library takes four lines at once, and those that remain one by one. Where its compiler fuses
# products into sums, as on ARM, those round in another way, and which they are would depend on the
# lines that a thread is given.
_LINES_ALIKE = platform.machine() in ("x86_64", "AMD64")


def _threads(x: Array) -> int:
    """How many threads transform an array; results are the same."""
    return config.threads if _LINES_ALIKE and x.size >= THREADED else 1


def fft(inputs: Sequence[Array], outputs: Sequence[Array], inverse: int, *axes: int) -> None:
    """The complex transform over axes: out[k] = sum of x[j] exp(-2 pi i j k / n), or with the
    other sign for the inverse.
    """
    (x,), (out,) = inputs, outputs
    if not out.size:
        return
    native = _extension()
    if native:
        native.c2c(x, axes, not inverse, 0, out, _threads(x))
    elif inverse:
        out[...] = _scipy().ifftn(x, axes=axes, norm="forward", workers=_threads(x))
    else:
        out[...] = _scipy().fftn(x, axes=axes, workers=_threads(x))


def rfft(inputs: Sequence[Array], outputs: Sequence[Array], axis: int) -> None:
    """The first half of the transform of real numbers along an axis."""
    (x,), (out,) = inputs, outputs
    if not out.size:
        return
    native = _extension()
    if native:
        native.r2c(x, (axis,), True, 0, out, _threads(x))
    else:
        out[...] = _scipy().rfft(x, axis=axis, workers=_threads(x))


def irfft(inputs: Sequence[Array], outputs: Sequence[Array], axis: int) -> None:
    """The real result of the inverse transform, given the first half of its operand."""
    (x,), (out,) = inputs, outputs
    if not out.size:
        return
    native, size = _extension(), out.shape[axis]
    if native:
        native.c2r(x, (axis,), size, False, 0, out, _threads(out))
    else:
        out[...] = _scipy().irfft(x, size, axis=axis, norm="forward", workers=_threads(out))
