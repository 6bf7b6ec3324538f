"""Samples of the ops that libraries compute: matrices well away from those without derivatives."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from tessera.graph.ops import elementwise as e
from tessera.graph.ops.determinant import Det, Pinv, Slogdet, det, pinv, slogdet
from tessera.graph.ops.factorize import (
    Cholesky,
    Eig,
    Eigh,
    Qr,
    Svd,
    cholesky,
    eig,
    eigh,
    eigvals,
    eigvalsh,
    qr,
    svd,
    svdvals,
)
from tessera.graph.ops.fourier import Fft, Irfft, Rfft, fft, irfft, rfft
from tessera.graph.ops.library import adjoint, columns_of, product
from tessera.graph.ops.solve import Lu, LuSolve, TriangularSolve, lu, solve, triangular_solve


def matrices(seed: int, *shape: int, complex: bool = False) -> np.ndarray:
    """Numbers around 0, and larger ones of different sizes on the diagonal."""
    rng = np.random.default_rng(seed)
    x = rng.uniform(-1, 1, shape)
    if complex:
        x = x + 1j * rng.uniform(-1, 1, shape)
    k = min(shape[-2:])
    x[..., np.arange(k), np.arange(k)] += np.linspace(2, 4, k)
    return x


def hermitian(x: Any) -> Any:
    """A matrix and its adjoint, added."""
    return e.add(x, adjoint(x))


def rebuilt(x: Any) -> tuple[Any, ...]:
    """What the free phases of complex singular vectors leave alone."""
    u, s, vh = svd(x)
    squares = e.cast(e.mul(s, s), u.dtype)
    wide = e.mul(u, columns_of(squares, u.shape[0]))
    return product(wide, vh), s


def spectral(x: Any) -> Any:
    """What the free phases of complex eigenvectors leave alone."""
    w, v = eigh(hermitian(x))
    powers = e.cast(e.mul(e.mul(w, w), w), v.dtype)
    return product(e.mul(v, columns_of(powers, v.shape[0])), adjoint(v))


def add_samples(add: Callable[..., None]) -> None:
    """Adds the samples by a function `add(cls, fn, *arguments, label=...)`."""
    a, z = matrices(70, 3, 3), matrices(71, 3, 3, complex=True)
    positive = (a @ a.T, z @ z.conj().T)
    add(Cholesky, cholesky, positive[0])
    add(Cholesky, lambda x: cholesky(hermitian(x)), positive[1], label="complex")
    add(Lu, lu, a)
    add(Lu, lambda x: lu(x)[0], matrices(72, 4, 2), label="tall")
    add(Lu, lambda x: lu(x)[0], matrices(73, 2, 3, complex=True), label="wide")
    add(Qr, qr, a)
    add(Qr, qr, matrices(74, 4, 2, complex=True), label="tall")
    add(Eigh, lambda x: eigh(hermitian(x)), a)
    add(Eigh, lambda x: eigvalsh(hermitian(x)), z, label="values")
    add(Eigh, spectral, z, label="complex")
    add(Svd, svd, a)
    add(Svd, svd, matrices(75, 4, 2), label="tall")
    add(Svd, svd, matrices(76, 2, 3), label="wide")
    add(Svd, svdvals, matrices(77, 2, 3, complex=True), label="values")
    add(Svd, rebuilt, matrices(78, 3, 2, complex=True), label="complex")
    add(Eig, eig, z)
    add(Eig, eigvals, z, label="values")
    add(Det, det, a)
    add(Det, det, z, label="complex")
    add(Slogdet, slogdet, -a)
    add(Slogdet, slogdet, z, label="complex")
    add(Pinv, lambda x: pinv(x, e.mul(x[0, 0], 0)), matrices(79, 4, 2))
    b = matrices(80, 3, 2)
    add(LuSolve, solve, a, b)
    add(LuSolve, solve, z, matrices(81, 3, 1, complex=True), label="complex")
    for lower, transposed, unit in ((True, False, False), (False, True, False), (True, True, True)):
        solver = partial(
            triangular_solve, lower=lower, transposed=transposed, unit_diagonal=unit
        )
        label = f"{'lower' if lower else 'upper'}{'-transposed' * transposed}{'-unit' * unit}"
        add(TriangularSolve, solver, a, b, label=label)
    side = matrices(86, 3, 2, complex=True)
    add(TriangularSolve, partial(triangular_solve, lower=False), z, side, label="complex")
    add(Fft, lambda x: fft(x, (0,)), matrices(82, 3, 2, complex=True))
    add(Fft, lambda x: fft(x, (1, 0), True), matrices(83, 3, 2, complex=True), label="inverse")
    for n in (4, 5):
        add(Rfft, lambda x: rfft(x, 1), matrices(84, 2, n), label=str(n))
        half = matrices(85, 2, n // 2 + 1, complex=True)
        add(Irfft, lambda x, n=n: irfft(x, 1, n), half, label=str(n))
