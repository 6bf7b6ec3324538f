"""`ts.linalg` against NumPy, over dtypes, batches and empty matrices, and what NumPy has not."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import scipy.linalg
from hypothesis import given, settings
from hypothesis import strategies as st

import tessera as ts
from tests.tolerance import assert_close

la = ts.linalg
DTYPES = ("f4", "f8", "c8", "c16")
LEADS = ((), (3,), (2, 0))
SIZES = (0, 1, 3, 6)
SHAPES = ((0, 0), (0, 3), (3, 0), (1, 1), (4, 2), (2, 5))

FACTOR = 100.0
"""Factorizations round often, and matrices are conditioned like random ones."""


def numbers(dtype: str, *shape: int, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng([seed, *shape])
    x = rng.normal(size=shape)
    if np.dtype(dtype).kind == "c":
        x = x + 1j * rng.normal(size=shape)
    return x.astype(dtype)


def square(dtype: str, lead: tuple[int, ...], n: int, seed: int = 0) -> np.ndarray:
    """Matrices that are not nearly singular."""
    return numbers(dtype, *lead, n, n, seed=seed) + 4 * np.eye(n, dtype=dtype)


def adjoint(x: np.ndarray) -> np.ndarray:
    return x.conj().swapaxes(-1, -2)


def positive(dtype: str, lead: tuple[int, ...], n: int) -> np.ndarray:
    x = square(dtype, lead, n)
    return x @ adjoint(x)


def close(actual: Any, expected: Any, factor: float = FACTOR) -> None:
    assert_close(np.asarray(actual), np.asarray(expected), factor=factor)


def check_orthonormal(x: Any) -> None:
    """Columns of length 1, at right angles."""
    x = np.asarray(x)
    unit = np.broadcast_to(np.eye(x.shape[-1], dtype=x.dtype), (*x.shape[:-2], *[x.shape[-1]] * 2))
    close(adjoint(x) @ x, unit)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("lead", LEADS)
@pytest.mark.parametrize("n", SIZES)
def test_square_matrices(dtype: str, lead: tuple[int, ...], n: int) -> None:
    a, s = square(dtype, lead, n), positive(dtype, lead, n)
    x, h = ts.asarray(a), ts.asarray(s)
    close(la.cholesky(h), np.linalg.cholesky(s))
    close(la.cholesky(h, upper=True), adjoint(np.linalg.cholesky(s)))
    close(la.det(x), np.linalg.det(a))
    for found, expected in zip(la.slogdet(x), np.linalg.slogdet(a), strict=True):
        close(found, expected)
    close(la.inv(x), np.linalg.inv(a))
    close(la.eigvalsh(h), np.linalg.eigvalsh(s))
    for k in (-2, 0, 1, 5):
        close(la.matrix_power(x, k), np.linalg.matrix_power(a, k))
    w, v = la.eigh(h)
    close(la.eigvalsh(h), w)
    check_orthonormal(v)
    close(s @ np.asarray(v), np.asarray(v) * np.asarray(w)[..., None, :])
    w, v = la.eig(x)
    assert (w.shape, v.shape) == ((*lead, n), (*lead, n, n))
    close(a.astype(v.dtype.np) @ np.asarray(v), np.asarray(v) * np.asarray(w)[..., None, :])
    close(np.sort(np.asarray(la.eigvals(x))), np.sort(np.asarray(w)))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("lead", LEADS)
@pytest.mark.parametrize("shape", SHAPES)
def test_matrices(dtype: str, lead: tuple[int, ...], shape: tuple[int, int]) -> None:
    m, n = shape
    k = min(m, n)
    a = numbers(dtype, *lead, m, n)
    x = ts.asarray(a)
    for mode, columns in (("reduced", k), ("complete", m)):
        q, r = la.qr(x, mode=mode)
        assert (q.shape, r.shape) == ((*lead, m, columns), (*lead, columns, n))
        close(np.asarray(q) @ np.asarray(r), a)
        check_orthonormal(q)
        close(np.tril(np.asarray(r), -1), np.zeros_like(r), factor=0)
    close(la.qr(x, mode="r"), la.qr(x).R)
    for full in (True, False):
        u, s, vh = la.svd(x, full_matrices=full)
        check_orthonormal(u)
        check_orthonormal(adjoint(np.asarray(vh)))
        assert u.shape == (*lead, m, m if full else k)
        assert vh.shape == (*lead, n if full else k, n)
        scaled = np.asarray(u)[..., :k] * np.asarray(s)[..., None, :]
        close(scaled @ np.asarray(vh)[..., :k, :], a)
        close(s, la.svdvals(x))
    close(la.svd(x, compute_uv=False), np.linalg.svd(a, compute_uv=False))
    p, lower, upper = (np.asarray(x) for x in la.lu(x))
    close(p @ lower @ upper, a)
    # LAPACK compares complex pivots by the sum of the magnitudes of their parts.
    assert (np.abs(lower) <= 1.4143).all()
    assert (p.shape, lower.shape, upper.shape) == ((*lead, m, m), (*lead, m, k), (*lead, k, n))
    close(la.pinv(x), np.linalg.pinv(a) if k else np.zeros((*lead, n, m), dtype))
    rank = np.linalg.matrix_rank(a) if k else np.zeros(lead)
    close(la.matrix_rank(x), np.asarray(rank, np.int64))
    for offset in (-7, -1, 0, 2):
        close(la.diagonal(x, offset=offset), np.linalg.diagonal(a, offset=offset), factor=0)
        close(la.trace(x, offset=offset), np.linalg.trace(a, offset=offset))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("lead", LEADS)
def test_equations(dtype: str, lead: tuple[int, ...]) -> None:
    for n in SIZES:
        a, b, v = square(dtype, lead, n), numbers(dtype, *lead, n, 2), numbers(dtype, n)
        x = ts.asarray(a)
        close(la.solve(x, ts.asarray(b)), np.linalg.solve(a, b))
        close(la.solve(x, ts.asarray(v)), np.linalg.solve(a, v[:, None])[..., 0])
    # Dims in front are broadcast.
    b = numbers(dtype, 5, *[1] * len(lead), 6, 3)
    close(la.solve(x, ts.asarray(b)), np.linalg.solve(a, b))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("left", [True, False])
@pytest.mark.parametrize("lower", [True, False])
def test_triangular_equations(dtype: str, left: bool, lower: bool) -> None:
    a, b = square(dtype, (2,), 5), numbers(dtype, 2, *((5, 3) if left else (3, 5)))
    options = {"left_side": left, "lower": lower}
    for unit in (False, True):
        part = np.tril(a) if lower else np.triu(a)
        if unit:
            part[..., np.arange(5), np.arange(5)] = 1
        for transpose in (False, True):
            for conjugate in (False, True):
                op = part.swapaxes(-1, -2) if transpose else part
                op = op.conj() if conjugate else op
                found = np.asarray(
                    la.triangular_solve(
                        ts.asarray(a),
                        ts.asarray(b),
                        transpose_a=transpose,
                        conjugate_a=conjugate,
                        unit_diagonal=unit,
                        **options,
                    )
                )
                # A triangle of ones on the diagonal is conditioned worse.
                close(op @ found if left else found @ op, b, factor=100 * FACTOR)


@pytest.mark.parametrize("dtype", DTYPES)
def test_least_squares(dtype: str) -> None:
    for m, n in ((4, 2), (2, 5), (3, 3)):
        a, b = numbers(dtype, m, n), numbers(dtype, m, 2)
        x, residuals, rank, s = la.lstsq(ts.asarray(a), ts.asarray(b))
        expected = np.linalg.lstsq(a, b, rcond=None)
        close(x, expected[0])
        close(residuals, (np.abs(a @ expected[0] - b) ** 2).sum(0).astype(s.dtype.np))
        assert int(rank) == expected[2]
        close(s, expected[3])
        y = la.lstsq(ts.asarray(a), ts.asarray(b[:, 0]))[0]
        close(y, np.asarray(x)[:, 0])


@pytest.mark.parametrize("dtype", DTYPES)
def test_norms(dtype: str) -> None:
    a = numbers(dtype, 2, 3, 4)
    a[0, 1, 1:3] = 0
    x = ts.asarray(a)
    for order in ("fro", "nuc", 1, -1, 2, -2, math.inf, -math.inf):
        expected = np.linalg.norm(a, order, axis=(-2, -1))
        close(la.matrix_norm(x, ord=order), expected)
        close(la.matrix_norm(x, ord=order, keepdims=True), expected[..., None, None])
        close(la.norm(x, order, axis=(0, 2)), np.linalg.norm(a, order, axis=(0, 2)))
        close(la.norm(x, order, axis=(2, 0)), np.linalg.norm(a, order, axis=(2, 0)))
        close(la.norm(x[0], order), np.linalg.norm(a[0], order))
    for order in (0, 1, 2, 3, 0.5, math.inf, -math.inf):
        for axis in (None, 1, (0, 2)):
            flat = a.ravel() if axis is None else a
            expected = np.linalg.vector_norm(flat, ord=order, axis=axis)
            close(la.vector_norm(x, ord=order, axis=axis), expected)
        close(la.norm(x, order, axis=-1), np.linalg.norm(a, order, axis=-1))
    expected = np.linalg.vector_norm(a, axis=(0, 2), keepdims=True)
    close(la.vector_norm(x, axis=(0, 2), keepdims=True), expected)
    close(la.norm(x), np.linalg.norm(a))


def test_cross_products() -> None:
    a, b = numbers("f8", 4, 3), numbers("f8", 1, 3)
    close(la.cross(ts.asarray(a), ts.asarray(b)), np.cross(a, b))
    close(la.cross(ts.asarray(a.T), ts.asarray(b.T), axis=0), np.cross(a.T, b.T, axis=0))


def test_integers_are_converted_and_dtypes_promoted() -> None:
    x = ts.asarray([[2, 1], [1, 3]])
    assert la.inv(x).dtype is ts.float32
    assert la.det(x).dtype is ts.float32
    assert la.matrix_power(x, 3).dtype is x.dtype
    assert la.trace(x).dtype is ts.sum(x).dtype
    assert la.solve(x, ts.ones(2, dtype=ts.complex128)).dtype is ts.complex128
    assert la.norm(x.astype(ts.complex64)).dtype is ts.float32


@pytest.mark.parametrize("dtype", DTYPES)
def test_exponentials(dtype: str) -> None:
    for n in (0, 1, 2, 5):
        for size in (1e-3, 0.5, 3.0, 20.0):
            a = size * numbers(dtype, 2, n, n) / max(n, 1)
            # Eigenvalues to the left of 0: the scale of the result is 1, and so is the error's.
            a = a - size * np.eye(n, dtype=dtype)
            close(la.expm(ts.asarray(a)), scipy.linalg.expm(a).astype(dtype) if n else a)
    big = np.diag([-1e6, 0.0]).astype(dtype)
    assert np.isnan(np.asarray(la.expm(ts.asarray(big)))).all()
    close(la.expm(ts.asarray(big), max_squarings=18), np.diag([0.0, 1.0]).astype(dtype))
    assert np.isnan(np.asarray(la.expm(ts.asarray(big * np.nan)))).all()


def test_the_derivative_of_the_exponential() -> None:
    """The upper right block of the exponential of a matrix of blocks."""
    a, d = numbers("f8", 3, 3), numbers("f8", 3, 3, seed=1)
    blocks = np.block([[a, d], [np.zeros((3, 3)), a]])
    _, tangent = ts.jvp(la.expm, (ts.asarray(a),), (ts.asarray(d),))
    close(tangent, scipy.linalg.expm(blocks)[:3, 3:])
    pull = ts.jit(ts.grad(lambda a: ts.sum(la.expm(a) * ts.asarray(d))))
    # The transpose of the derivative at A is the derivative at A^T.
    blocks = np.block([[a.T, d], [np.zeros((3, 3)), a.T]])
    close(pull(ts.asarray(a)), scipy.linalg.expm(blocks)[:3, 3:])


# --- algebra --------------------------------------------------------------------------------------


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    shape=st.tuples(st.integers(1, 5), st.integers(1, 5)),
    dtype=st.sampled_from(["f8", "c16"]),
)
def test_laws_of_factors(seed: int, shape: tuple[int, int], dtype: str) -> None:
    m, n = shape
    a = numbers(dtype, m, n, seed=seed)
    x = ts.asarray(a)
    p, s = np.asarray(la.pinv(x)), np.asarray(la.svdvals(x))
    # The four equations of Moore and Penrose; errors grow with the condition.
    bad = max(float(s[0] / s[-1]), 1.0) ** 2
    for found, expected in ((a @ p @ a, a), (p @ a @ p, p)):
        close(found, expected, factor=FACTOR * bad)
    for found in (a @ p, p @ a):
        close(found, adjoint(found), factor=FACTOR * bad)
    close(la.matrix_norm(x), np.sqrt((s**2).sum()))
    close(la.matrix_norm(x, ord=2), s[0])
    g = a @ adjoint(a) + np.eye(m)
    y = ts.asarray(g)
    lower = np.asarray(la.cholesky(y))
    sign, log = la.slogdet(y)
    close(log, 2 * np.log(np.diagonal(lower).real).sum())
    close(np.asarray(sign) * np.exp(np.asarray(log)), np.asarray(la.det(y)), factor=10 * FACTOR)
    close(la.trace(y), np.asarray(la.eigvalsh(y)).sum().astype(dtype))
    close(la.det(ts.asarray(g @ g)), np.asarray(la.det(y)) ** 2, factor=10 * FACTOR)


def test_one_triangle_may_be_read() -> None:
    a = square("c16", (), 4)
    lower = np.tril(a) + adjoint(np.tril(a, -1))
    upper = np.triu(a) + adjoint(np.triu(a, 1))
    x = ts.asarray(a)
    for triangle, full in (("L", lower), ("U", upper), (None, lower)):
        full = full - 1j * np.diag(np.diagonal(full).imag)
        w, v = la.eigh(x, triangle, symmetrize_input=False)
        close(w, np.linalg.eigvalsh(full))
        close(full @ np.asarray(v), np.asarray(v) * np.asarray(w))
        close(la.eigvalsh(x, triangle, symmetrize_input=False), w)
    mean = (a + adjoint(a)) / 2
    close(la.eigvalsh(x, "U"), np.linalg.eigvalsh(mean))
    half = np.tril(positive("c16", (), 4))
    whole = la.cholesky(ts.asarray(half + adjoint(np.tril(half, -1))))
    close(la.cholesky(ts.asarray(half), symmetrize_input=False), whole)


def test_options_may_stand_in_their_places() -> None:
    """As in JAX."""
    x = ts.asarray(numbers("f8", 4, 2))
    close(la.qr(x, "r"), la.qr(x).R)
    assert la.svd(x, False).U.shape == (4, 2)
    close(la.svd(x, False, False), la.svdvals(x))
    assert int(la.matrix_rank(x, 10.0)) == 0
    close(la.pinv(x, 10.0), np.zeros((2, 4)))
    close(la.lstsq(x, x, 1e-3)[0], np.eye(2))
    close(ts.fft.fft(x, 3, 0, "ortho"), np.fft.fft(np.asarray(x), 3, 0, "ortho"))


# --- what has no result ---------------------------------------------------------------------------


def test_matrices_without_a_result_are_nan_and_leave_others_alone() -> None:
    good, bad = np.diag([4.0, 9.0]), np.diag([1.0, -1.0])
    infinite = np.diag([1.0, math.inf])
    found = np.asarray(la.cholesky(ts.asarray(np.stack([good, bad, infinite]))))
    close(found[0], np.diag([2.0, 3.0]))
    assert np.isnan(found[1]).all()
    for function in (la.svd, la.eigh, la.eig):
        for part in function(ts.asarray(np.stack([good, infinite]))):
            part = np.asarray(part)
            assert np.isfinite(part[0]).all()
            assert np.isnan(part[1]).all()


def test_singular_matrices_divide_by_zero() -> None:
    x = ts.asarray(np.array([[1.0, 2.0], [2.0, 4.0]]))
    assert not np.isfinite(np.asarray(la.inv(x))).any()
    assert float(la.det(x)) == 0
    sign, log = la.slogdet(x)
    assert (float(sign), float(log)) == (0, -math.inf)
    found = la.triangular_solve(ts.asarray([[0.0]]), ts.asarray([[1.0]]))
    assert float(found[0, 0]) == math.inf
    assert int(la.matrix_rank(x)) == 1


# --- compositions ---------------------------------------------------------------------------------


def test_the_gradient_of_a_singular_determinant() -> None:
    """The cofactors, which do not vanish where one rank is lacking."""
    a = numbers("f8", 4, 4)
    for x in (a, np.concatenate([a[:3], a[:1] + a[1:2]]), np.concatenate([a[:1] + a[1:2], a[1:]])):
        minors = [
            [
                (-1) ** (i + j) * np.linalg.det(np.delete(np.delete(x, i, 0), j, 1))
                for j in range(4)
            ]
            for i in range(4)
        ]
        close(ts.grad(la.det)(ts.asarray(x)), np.array(minors))


def test_one_factorization_serves_value_and_gradient() -> None:
    """`solve` factorizes once, and its derivatives use the factors."""

    def f(a: Any, b: Any) -> Any:
        return ts.sum(la.solve(a, b) ** 2)

    a, b = ts.asarray(square("f8", (), 4)), ts.asarray(numbers("f8", 4, 2))
    graph = str(ts.jit(ts.grad(f, (0, 1))).lower(a, b).graph)
    assert graph.count("graph.lu(") == 1
    assert graph.count("graph.lu_solve(") == 2


def test_jit_of_grad_of_vmap() -> None:
    def f(a: Any, b: Any) -> Any:
        lower = la.cholesky(a @ ts.matrix_transpose(a) + 1.0)
        x = la.solve(a, b)
        return ts.sum(la.svdvals(a)) * la.slogdet(a).logabsdet + ts.sum(lower * x)

    a, b = square("f8", (3,), 3), numbers("f8", 3, 3)
    pull = ts.grad(f, (0, 1))
    found = ts.jit(ts.vmap(pull))(ts.asarray(a), ts.asarray(b))
    for k in range(3):
        expected = pull(ts.asarray(a[k]), ts.asarray(b[k]))
        for x, y in zip(found, expected, strict=True):
            close(np.asarray(x)[k], y)
    total = ts.jit(ts.grad(lambda a, b: ts.sum(ts.vmap(f)(a, b)), (0, 1)))
    for x, y in zip(total(ts.asarray(a), ts.asarray(b)), found, strict=True):
        close(x, y)


def test_a_batch_of_right_hand_sides_is_one_of_columns() -> None:
    a, b = ts.asarray(square("f8", (), 4)), ts.asarray(numbers("f8", 5, 4, 2))
    solve = ts.jit(ts.vmap(la.solve, in_axes=(None, 0)))
    close(solve(a, b), np.linalg.solve(np.asarray(a), np.asarray(b)))
    assert "lu_solve" in (text := str(solve.lower(a, b).graph))
    assert "f64[4, 10]" in text


def test_derivatives_of_wide_and_complete_factors() -> None:
    a = ts.asarray(numbers("f8", 2, 4))
    g = ts.grad(lambda a: ts.sum(la.qr(a).R ** 3))(a)
    step = 1e-6 * numbers("f8", 2, 4, seed=1)
    r = [np.asarray(la.qr(ts.asarray(np.asarray(a) + s)).R) for s in (step, -step)]
    expected = ((r[0] ** 3).sum() - (r[1] ** 3).sum()) / 2
    assert math.isclose(float((np.asarray(g) * step).sum()), expected, rel_tol=1e-6)
    tall = ts.asarray(numbers("f8", 4, 2))
    with pytest.raises(ts.TesseraError, match="the complete QR of 4 x 2 matrices"):
        ts.grad(lambda a: ts.sum(la.qr(a, mode="complete").Q))(tall)
    with pytest.raises(ts.TesseraError, match="the full SVD of 4 x 2 matrices"):
        ts.grad(lambda a: ts.sum(la.svd(a).U))(tall)
    close(ts.grad(lambda a: ts.sum(la.svdvals(a) ** 2))(tall), 2 * np.asarray(tall))


@pytest.mark.parametrize("dtype", ["f8", "c16"])
@pytest.mark.parametrize("shape", [(4, 2), (2, 4), (3, 3)])
def test_derivatives_of_least_squares(dtype: str, shape: tuple[int, int]) -> None:
    """By differences, in both modes; also of norms, which are of the same singular values."""
    a, b = numbers(dtype, *shape), numbers(dtype, shape[0], 2, seed=3)
    da, db = numbers(dtype, *shape, seed=1), numbers(dtype, shape[0], 2, seed=2)

    def f(a: Any, b: Any) -> Any:
        x, residuals, _, _ = la.lstsq(a, b)
        norms = la.matrix_norm(a, ord="nuc") + la.matrix_norm(a, ord=2) + la.norm(x, 1)
        return ts.sum(ts.abs(x) ** 2) + ts.sum(residuals) + norms

    step = 1e-6
    points = [(ts.asarray(a + k * step * da), ts.asarray(b + k * step * db)) for k in (1, -1, 0)]
    up, down = (float(f(*point)) for point in points[:2])
    expected = (up - down) / (2 * step)
    tangents = (ts.asarray(da), ts.asarray(db))
    _, slope = ts.jit(lambda x, t: ts.jvp(f, x, t))(points[2], tangents)
    assert math.isclose(float(slope), expected, rel_tol=1e-6)
    pulled = ts.jit(ts.grad(f, (0, 1)))(*points[2])
    # Cotangents pair with tangents without a conjugate.
    pairing = sum(
        (np.asarray(g) * t).sum().real for g, t in zip(pulled, (da, db), strict=True)
    )
    assert math.isclose(pairing, expected, rel_tol=1e-6)


def test_repeated_eigenvalues_have_derivatives() -> None:
    """Those of eigenvalues are finite, those of eigenvectors are not."""
    x = ts.asarray(np.diag([1.0, 2.0, 2.0]))
    close(ts.grad(lambda x: ts.sum(la.eigvalsh(x) ** 2))(x), 2 * np.asarray(x))
    g = np.asarray(ts.grad(lambda x: ts.sum(la.eigh(x).eigenvectors ** 3))(x))
    assert not np.isfinite(g).all()


def test_scipy_agrees_on_lu() -> None:
    a = numbers("f8", 4, 3)
    for found, expected in zip(la.lu(ts.asarray(a)), scipy.linalg.lu(a), strict=True):
        close(found, expected)
