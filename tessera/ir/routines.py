"""The table of library routines: what programs do by a call instead of by code that is generated.

A routine takes arrays and fills arrays, whole ones, at once. All layers name it, as they name the
scalar functions of `scalar.py`; the same Python function is the meaning of the call in every
interpreter and what compiled code calls. What it calls in turn is SciPy's LAPACK (`lapack.py`) or
SciPy's Fourier transforms (`fourier.py`), which are loaded when the first call runs.

A routine is called as `run(inputs, outputs, *options)`. Inputs and outputs are contiguous arrays in
row-major order that share no memory; the routine reads the ones, and writes every element of the
others. Options are ints. It keeps no state, gives the same bits for the same bits, and calls of it
may run in several threads at once. Dims in front of those that a routine is about are a batch; a
batch may be empty, as may be matrices.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np

from tessera.ir import fourier, lapack

Array: TypeAlias = "np.ndarray[Any, Any]"

Routine: TypeAlias = Callable[..., None]

ROUTINES: dict[str, Routine] = {
    "cholesky": lapack.cholesky,
    "det": lapack.det,
    "eig": lapack.eig,
    "eigh": lapack.eigh,
    "fft": fourier.fft,
    "irfft": fourier.irfft,
    "lu": lapack.lu,
    "lu_solve": lapack.lu_solve,
    "pinv": lapack.pinv,
    "qr": lapack.qr,
    "rfft": fourier.rfft,
    "slogdet": lapack.slogdet,
    "svd": lapack.svd,
    "triangular_solve": lapack.triangular_solve,
}
"""Every routine by its name."""


def run_routine(
    name: str, inputs: Sequence[Array], outputs: Sequence[Array], options: Sequence[int]
) -> None:
    """Calls a routine of the table."""
    ROUTINES[name](inputs, outputs, *options)
