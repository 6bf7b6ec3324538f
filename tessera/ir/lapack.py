"""Linear algebra by SciPy's LAPACK and BLAS, without copies by wrappers.

Matrices here are in row-major order, LAPACK's in column-major order: it sees their transposes.
Where a factorization of the transpose says what that of the matrix is, nothing is copied but what
LAPACK would overwrite.

Where a matrix has no result (a Cholesky factor of one that is not positive definite, an iteration
that does not converge, elements that are not finite), its results are NaN, as JAX has it: inside a
compiled program nobody could catch an exception.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np

from tessera.ir.fortran import FEW, Arg, call, integers
from tessera.ir.fortran import work as scratch

Array: TypeAlias = "np.ndarray[Any, Any]"

def _batch(x: Array, rank: int = 2) -> int:
    """How many matrices an array holds."""
    return math.prod(x.shape[: x.ndim - rank])


def _turned(x: Array) -> Array:
    """A copy of each matrix in column-major order: its transpose in row-major order."""
    return np.array(x.swapaxes(-1, -2), order="C", copy=True)


def _is_finite(x: Array) -> Array | None:
    """Which matrices of a batch have finite elements only; None if all have."""
    each = np.isfinite(x)
    return None if each.all() else each.all(axis=(-1, -2)).reshape(-1)


def _cleared(factors: Array, finite: Array | None) -> Array:
    """The matrices, with zeros in those whose elements are not finite: routines may not return."""
    if finite is not None:
        factors.reshape(len(finite), -1)[~finite] = 0
    return factors


def _blank(info: Array, finite: Array | None, *outputs: Array) -> None:
    """NaN for all results of the matrices of a batch that a routine failed for, or whose elements
    are not finite."""
    if finite is None and not info.any():
        return
    bad = info != 0 if finite is None else (info != 0) | ~finite
    for out in outputs:
        out.reshape(len(bad), -1)[bad] = np.nan


@functools.cache
def _lower(n: int) -> Array:
    """Which elements of a matrix stand on or below its diagonal."""
    return np.tri(n, dtype=np.bool_)


@functools.cache
def _upper(m: int, n: int) -> Array:
    """Which elements of a matrix stand on or above its diagonal."""
    return ~np.tri(m, n, -1, dtype=np.bool_)


# --- routines -------------------------------------------------------------------------------------


def cholesky(inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
    """The lower factor L of L L^H, from the elements on and below the diagonal."""
    (x,), (out,) = inputs, outputs
    n, count = x.shape[-1], _batch(x)
    if not x.size:
        return
    out[...] = 0
    np.copyto(out, x, where=_lower(n))
    # The transpose of the lower half is an upper one: U^H U = conj(A), and L is U transposed.
    info = call("potrf", x.dtype, count, b"U", n, out, n)
    _blank(info, None, out)


def triangular_solve(
    inputs: Sequence[Array],
    outputs: Sequence[Array],
    lower: int,
    transposed: int,
    unit_diagonal: int,
) -> None:
    """X with A X = B, or A^T X = B, for a triangular A; no other element of it is read.

    A zero on the diagonal divides as numbers do.
    """
    (a, b), (out,) = inputs, outputs
    out[...] = b
    n, m = b.shape[-2:]
    if not out.size:
        return
    one = np.ones(1, a.dtype)
    # X^T A^T = B^T, in column-major order.
    letters = (
        b"R",
        b"U" if lower else b"L",
        b"T" if transposed else b"N",
        b"U" if unit_diagonal else b"N",
    )
    call("trsm", a.dtype, _batch(a), *letters, m, n, (one, 0), a, n, out, m)


def lu(inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
    """P A = L U: both factors in one matrix, and the rows of A in their new order."""
    (x,), (out, perm) = inputs, outputs
    m, count = x.shape[-2], _batch(x)
    perm[...] = np.arange(m)
    if not x.size:
        return
    out[...], pivots = _factored(x)
    _exchange(perm.reshape(count, m), pivots)


def _exchange(perm: Array, pivots: Array) -> None:
    """Orders of rows after each was exchanged in turn with that which a pivot, from 1 on, names."""
    if len(perm) < FEW:
        # Lists are exchanged in a fraction of the time of arrays, but one after the other.
        for row, exchanges in zip(perm, pivots.tolist(), strict=True):
            order = row.tolist()
            for i, j in enumerate(exchanges):
                order[i], order[j - 1] = order[j - 1], order[i]
            row[:] = order
        return
    every = np.arange(len(perm))
    for i in range(pivots.shape[1]):
        j = pivots[:, i] - 1
        perm[every, i], perm[every, j] = perm[every, j], perm[every, i].copy()


def _factored(x: Array) -> tuple[Array, Array]:
    """The factors L and U in one matrix, and with which row, from 1 on, each was exchanged."""
    m, n = x.shape[-2:]
    count = _batch(x)
    factors = _turned(x)
    pivots = np.empty((count, min(m, n)), integers("getrf", x.dtype, 1).dtype)
    call("getrf", x.dtype, count, m, n, factors, m, pivots)
    return factors.swapaxes(-1, -2), pivots


def _pivots_and_sign(x: Array) -> tuple[Array, Array]:
    """The diagonal of U, and the sign of the permutation, of square matrices that are not empty."""
    factors, exchanged = _factored(x)
    n = x.shape[-1]
    unmoved = np.array(range(1, n + 1))
    odd = np.not_equal(exchanged, unmoved).sum(axis=-1) % 2
    diagonal = np.diagonal(factors, axis1=-2, axis2=-1)
    return diagonal, np.where(odd, -1, 1).astype(x.dtype).reshape(x.shape[:-2])


def det(inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
    """Determinants; 1 for matrices without elements."""
    (x,), (out,) = inputs, outputs
    out[...] = 1
    if x.size:
        diagonal, sign = _pivots_and_sign(x)
        with np.errstate(all="ignore"):
            out[...] = diagonal.prod(axis=-1) * sign


def slogdet(inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
    """Signs of determinants, and logarithms of their magnitudes: 0 and -inf for 0."""
    (x,), (out, log) = inputs, outputs
    out[...] = 1
    log[...] = 0
    if x.size:
        diagonal, sign = _pivots_and_sign(x)
        with np.errstate(all="ignore"):
            sizes = np.abs(diagonal)
            log[...] = np.log(sizes).sum(axis=-1)
            parts = diagonal / np.where(sizes == 0, 1, sizes)
            out[...] = np.where((diagonal == 0).any(axis=-1), 0, parts.prod(axis=-1) * sign)


def pinv(inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
    """Pseudoinverses: singular values of at most a share, the second input, of the largest one
    count as zero.
    """
    (x, share), (out,) = inputs, outputs
    if not x.size:
        out[...] = 0
        return
    k = min(x.shape[-2:])
    u = np.empty((*x.shape[:-1], k), x.dtype)
    s = np.empty((*x.shape[:-2], k), x.real.dtype)
    vh = np.empty((*x.shape[:-2], k, x.shape[-1]), x.dtype)
    svd((x,), (u, s, vh))
    kept = ~(s <= share[..., None] * s[..., :1])  # so that NaN stays NaN
    inverse = np.where(kept, 1 / np.where(kept, s, 1), 0).astype(s.dtype)
    left = vh.conj().swapaxes(-1, -2) * inverse[..., None, :]
    np.matmul(left, u.conj().swapaxes(-1, -2), out=out)


def lu_solve(inputs: Sequence[Array], outputs: Sequence[Array], transposed: int) -> None:
    """X with A X = B, or A^T X = B, given the factors of A and the order of its rows."""
    _, factors, perm, b = inputs
    (out,) = outputs
    if not out.size:
        return
    rows = perm[..., None].astype(np.int64)
    first, second = np.empty_like(out), np.empty_like(out)
    if not transposed:
        # L U X = P B.
        triangular_solve((factors, np.take_along_axis(b, rows, -2)), (first,), 1, 0, 1)
        triangular_solve((factors, first), (out,), 0, 0, 0)
        return
    # U^T L^T (P X) = B.
    triangular_solve((factors, b), (first,), 0, 1, 0)
    triangular_solve((factors, first), (second,), 1, 1, 1)
    np.put_along_axis(out, rows, second, -2)


def qr(inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
    """Q R, with as many columns of Q as its output has."""
    (x,), (q, r) = inputs, outputs
    m, n = x.shape[-2:]
    columns, count = q.shape[-1], _batch(x)
    if not x.size:
        q[...] = np.eye(m, columns)
        r[...] = 0
        return
    k = min(m, n)
    factors = np.empty((*x.shape[:-2], max(n, columns), m), x.dtype)
    factors[..., :n, :] = x.swapaxes(-1, -2)
    tau = np.zeros((count, k), x.dtype)
    args: list[Arg] = [m, n, factors, m, tau, b"", 0]
    args[5:] = [(work := scratch("geqrf", x.dtype, 5, *args), 0), work.size]
    call("geqrf", x.dtype, count, *args)
    r[...] = 0
    found = factors[..., :n, :].swapaxes(-1, -2)[..., : r.shape[-2], :]
    np.copyto(r, found, where=_upper(*r.shape[-2:]))
    name = "orgqr"
    args = [m, columns, k, factors, m, tau, b"", 0]
    args[6:] = [(work := scratch(name, x.dtype, 6, *args), 0), work.size]
    call(name, x.dtype, count, *args)
    q[...] = factors[..., :columns, :].swapaxes(-1, -2)


def eigh(inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
    """Eigenvalues in ascending order, and eigenvectors if there is an output for them, of Hermitian
    matrices, from the elements on and below the diagonal.
    """
    (x,), (w, *vectors) = inputs, outputs
    n, count = x.shape[-1], _batch(x)
    if not x.size:
        return
    finite = _is_finite(x)
    factors = _cleared(_turned(x), finite)
    wants = b"V" if vectors else b"N"
    args: list[Arg] = [wants, b"L", n, factors, n, w]
    # Sizes of scratch memory as LAPACK's documentation of `heevd` and `syevd` states them.
    counts = integers("syevd", x.dtype, 3 + 5 * n)
    if x.dtype.kind == "c":
        work = np.empty(2 * n + n * n, x.dtype)
        real = np.empty(1 + 5 * n + 2 * n * n, w.dtype)
        args += [(work, 0), work.size, (real, 0), real.size]
    else:
        work = np.empty(1 + 6 * n + 2 * n * n, x.dtype)
        args += [(work, 0), work.size]
    info = call("syevd", x.dtype, count, *args, (counts, 0), counts.size)
    if vectors:
        vectors[0][...] = factors.swapaxes(-1, -2)
    _blank(info, finite, w, *vectors)


def svd(inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
    """U, the singular values in descending order, and V^H; or the values alone."""
    (x,) = inputs
    m, n = x.shape[-2:]
    k, count = min(m, n), _batch(x)
    u, s, vh = outputs if len(outputs) == 3 else (None, outputs[0], None)
    if not x.size:
        if u is not None and vh is not None:
            u[...] = np.eye(*u.shape[-2:])
            vh[...] = np.eye(*vh.shape[-2:])
        return
    finite = _is_finite(x)
    # The transpose is conj(V) S U^T, whose factors are in row-major order V^H and U. But LAPACK
    # takes half as long again for wide matrices as for tall ones, or twice as long.
    is_tall = m > n
    factors = _cleared(_turned(x) if is_tall else np.array(x, order="C", copy=True), finite)
    turned: list[Array] = []
    if u is None or vh is None:
        wants, left, right = b"N", np.empty(1, x.dtype), np.empty(1, x.dtype)
        places: list[Arg] = [(left, 0), 1, (right, 0), 1]
    else:
        wants = b"A" if u.shape[-1] == m and vh.shape[-2] == n else b"S"
        if is_tall:
            turned = [np.empty_like(v.swapaxes(-1, -2), order="C") for v in (u, vh)]
            places = [turned[0], m, turned[1], vh.shape[-2]]
        else:
            places = [vh, n, u, u.shape[-1]]
    counts = integers("gesdd", x.dtype, 8 * k)
    sides = (m, n) if is_tall else (n, m)
    args: list[Arg] = [wants, *sides, factors, sides[0], s, *places, b"", 0]
    if x.dtype.kind == "c":
        larger = max(m, n)
        size = max(5 * k * k + 5 * k, 2 * larger * k + 2 * k * k + k)
        args.append((np.empty(size, s.dtype), 0))
    args.append((counts, 0))
    args[10:12] = [(work := scratch("gesdd", x.dtype, 10, *args), 0), work.size]
    info = call("gesdd", x.dtype, count, *args)
    for found, v in zip(turned, (u, vh), strict=False):
        if v is not None:
            v[...] = found.swapaxes(-1, -2)
    _blank(info, finite, *outputs)


def eig(inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
    """Eigenvalues of complex matrices, and right eigenvectors if there is an output for them: of
    length 1, their largest element real.
    """
    (x,), (w, *vectors) = inputs, outputs
    n, count = x.shape[-1], _batch(x)
    if not x.size:
        return
    finite = _is_finite(x)
    factors = _cleared(_turned(x), finite)
    none = np.empty(1, x.dtype)
    found = np.empty_like(factors) if vectors else none
    right: Arg = found if vectors else (none, 0)
    args: list[Arg] = [b"N", b"V" if vectors else b"N", n, factors, n, w, (none, 0), 1]
    args += [right, n, b"", 0, (np.empty(2 * n, x.real.dtype), 0)]
    args[10:12] = [(work := scratch("geev", x.dtype, 10, *args), 0), work.size]
    info = call("geev", x.dtype, count, *args)
    if vectors:
        vectors[0][...] = found.swapaxes(-1, -2)
    _blank(info, finite, w, *vectors)
