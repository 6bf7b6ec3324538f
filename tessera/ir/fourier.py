"""Discrete Fourier transforms by SciPy's pocketfft. None of them scales its result.

SciPy's and not NumPy's: it transforms several axes in one call, in the input's precision. It is the
library that Reinecke's ducc grew out of, kept by SciPy; linear algebra needs SciPy already.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np

Array: TypeAlias = "np.ndarray[Any, Any]"


def _scipy() -> Any:
    from scipy import fft as scipy_fft

    return scipy_fft


def fft(inputs: Sequence[Array], outputs: Sequence[Array], inverse: int, *axes: int) -> None:
    """The complex transform over axes: out[k] = sum of x[j] exp(-2 pi i j k / n), or with the
    other sign for the inverse.
    """
    (x,), (out,) = inputs, outputs
    if not out.size:
        return
    if inverse:
        out[...] = _scipy().ifftn(x, axes=axes, norm="forward")
    else:
        out[...] = _scipy().fftn(x, axes=axes)


def rfft(inputs: Sequence[Array], outputs: Sequence[Array], axis: int) -> None:
    """The first half of the transform of real numbers along an axis."""
    (x,), (out,) = inputs, outputs
    if out.size:
        out[...] = _scipy().rfft(x, axis=axis)


def irfft(inputs: Sequence[Array], outputs: Sequence[Array], axis: int) -> None:
    """The real result of the inverse transform, given the first half of its operand."""
    (x,), (out,) = inputs, outputs
    if out.size:
        out[...] = _scipy().irfft(x, out.shape[axis], axis=axis, norm="forward")
