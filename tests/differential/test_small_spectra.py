"""QR, eigenvalues and singular values of small matrices that are code of the program: at every
level, by their laws, for matrices that are hard, and where there is no result."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tessera as ts
from tessera.config import config
from tessera.dtypes import complex64, float32, float64
from tessera.graph.ops import elementwise as e
from tessera.graph.ops.determinant import pinv
from tessera.graph.ops.factorize import eigh, eigvalsh, qr, svd, svdvals
from tessera.ir.core import Func
from tessera.ir.intexpr import sym
from tessera.ir.types import TensorType
from tessera.target.linalg.calls import MOST
from tessera.target.machine import machine, supported_levels
from tests.differential.levels import check_levels
from tests.schedule.lowering import traced

SHAPES = [(1, 1), (2, 2), (3, 3), (4, 4), (5, 5), (8, 8), (4, 2), (2, 4), (9, 3), (3, 9), (1, 5)]
"""Code that is written out and code with loops; rows of less than a vector, of one, and of some."""

Matrices = np.ndarray[Any, Any]


def matrices(*shape: int, dtype: Any = np.float64, seed: int = 0) -> Matrices:
    return np.random.default_rng(seed).uniform(-1, 1, shape).astype(dtype)


def symmetric(*shape: int, dtype: Any = np.float64, seed: int = 0) -> Matrices:
    x = matrices(*shape, seed=seed)
    return (x + x.swapaxes(-1, -2)).astype(dtype)


def is_own(graph: Func, level: str = "host") -> bool:
    from tessera.compile import Lowered

    return "host_call" not in Lowered(graph, machine(level)).stage("target")


def check(fn: Callable[..., Any], arrays: list[Matrices], level: str = "host") -> None:
    """The function is code, and that agrees with the interpreters, which call the library."""
    types = [TensorType(x.shape, float32 if x.dtype == np.float32 else float64) for x in arrays]
    graph = traced(fn, *types)
    assert is_own(graph, level)
    check_levels(graph, arrays, machine=machine(level))


def sizes(parts: Any, which: tuple[int, ...]) -> tuple[Any, ...]:
    """Results, and of vectors, whose signs are free, what does not depend on them."""
    return tuple([e.abs_(x) if k in which else x for k, x in enumerate(parts)])


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(("dtype", "level"), [(np.float32, "host"), (np.float64, "x86-64")])
def test_every_level(shape: tuple[int, int], dtype: Any, level: str) -> None:
    m, n = shape
    x = matrices(2, m, n, dtype=dtype)
    check(lambda x: (*qr(x), *qr(x, full=True)) if m <= n else qr(x), [x], level)
    check(lambda x: (*sizes(svd(x), (0, 2)), svdvals(x)), [x], level)
    check(pinv, [x, np.full(2, 1e-3, dtype)], level)
    if m == n:
        a = symmetric(2, n, n, dtype=dtype, seed=n)
        check(lambda a: (*sizes(eigh(a), (1,)), eigvalsh(a)), [a], level)


def is_orthonormal(columns: Matrices, factor: float = 1) -> bool:
    size = columns.shape[-1]
    error = columns.swapaxes(-1, -2).astype(np.float64) @ columns - np.eye(size)
    return bool(np.abs(error).max(initial=0) <= factor * 4 * np.finfo(columns.dtype).eps)


# Traced once for each type.
QR = [ts.jit(lambda x, m=mode: ts.linalg.qr(x, mode=m)) for mode in ("reduced", "complete")]
SVD = [ts.jit(lambda x, f=full: ts.linalg.svd(x, full_matrices=f)) for full in (False, True)]
SVDVALS = ts.jit(ts.linalg.svdvals)
# Half of the sum with the transpose would be infinite for the largest numbers.
EIGH = ts.jit(lambda a: ts.linalg.eigh(a, symmetrize_input=False))
EIGVALSH = ts.jit(lambda a: ts.linalg.eigvalsh(a, symmetrize_input=False))


def check_qr(x: Matrices) -> None:
    """Its laws, and the errors of each column beside that column's own size."""
    m, n = x.shape[-2:]
    info = np.finfo(x.dtype)
    most = np.abs(x).max(axis=-2, keepdims=True).astype(np.float64)
    bound = 2 * (m + n) * (m**0.5 * info.eps * most + float(info.smallest_subnormal))
    for run in QR:
        q, r = [np.asarray(y) for y in run(x)]
        assert is_orthonormal(q, max(m, n) ** 0.5)
        assert not np.tril(r, -1).any()
        assert (np.abs(q.astype(np.float64) @ r - x) <= bound).all()


def check_svd(x: Matrices, fulls: bool = True) -> None:
    m, n = x.shape[-2:]
    epsilon = np.finfo(x.dtype).eps
    exact = np.linalg.svd(x.astype(np.float64), compute_uv=False)
    bound = 2 * (m + n) * epsilon * exact.max(axis=-1, initial=0)[..., None]
    for run in SVD if fulls else SVD[:1]:
        u, s, vh = [np.asarray(y) for y in run(x)]
        k = s.shape[-1]
        assert is_orthonormal(u, m)
        assert is_orthonormal(vh.swapaxes(-1, -2), n)
        error = (u[..., :k].astype(np.float64) * s[..., None, :]) @ vh[..., :k, :] - x
        assert (np.abs(error) <= bound[..., None]).all()
        assert (np.abs(s - exact) <= bound).all()
        assert (np.diff(s, axis=-1) <= 0).all()
    assert (np.abs(np.asarray(SVDVALS(x)) - exact) <= bound).all()


def check_eigh(a: Matrices) -> None:
    n = a.shape[-1]
    epsilon = np.finfo(a.dtype).eps
    exact = np.linalg.eigvalsh(a.astype(np.float64))
    bound = 4 * n * epsilon * np.abs(exact).max(axis=-1, initial=0)[..., None]
    w, v = [np.asarray(y) for y in EIGH(a)]
    assert is_orthonormal(v, n)
    assert (np.abs(w - exact) <= bound).all()
    assert (np.diff(w, axis=-1) >= 0).all()
    error = a.astype(np.float64) @ v - v.astype(np.float64) * w[..., None, :]
    assert (np.abs(error) <= bound[..., None]).all()
    assert (np.abs(np.asarray(EIGVALSH(a)) - exact) <= bound).all()


def hard(m: int, n: int) -> Matrices:
    """Zeros, ones, equal rows and columns, ranks that lack some, graded ones, small integers."""
    random = np.random.default_rng(m + n)
    rows, columns = 10.0 ** -np.arange(m), 10.0 ** -np.arange(n)
    found = [
        np.zeros((m, n)),
        np.ones((m, n)),
        np.eye(m, n),
        -np.eye(m, n)[::-1],
        np.add.outer(np.arange(m), np.arange(n)),
        np.outer(np.arange(m) + 1, np.arange(n) - 1.5),
        random.uniform(-1, 1, (m, n)) * columns,
        random.uniform(-1, 1, (m, n)) * rows[:, None],
        random.integers(-2, 3, (m, n)),
        np.where(np.arange(m)[:, None] < m // 2, random.uniform(-1, 1, (m, n)), 0),
        np.tri(m, n),
        1 / (1 + np.add.outer(np.arange(m), np.arange(n))),
    ]
    return np.array(found, np.float64)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(("m", "n"), [(2, 2), (4, 4), (12, 12), (20, 20), (4, 3), (9, 2), (2, 7)])
def test_hard_matrices(dtype: Any, m: int, n: int) -> None:
    """Of all magnitudes."""
    info = np.finfo(dtype)
    scales = [1, 2.0**100, 2.0**-100, info.smallest_normal * 2.0**9, info.max / 2.0**16]
    x = np.concatenate([hard(m, n) * float(scale) for scale in scales])
    check_qr(x.astype(dtype))
    check_svd(x.astype(dtype))
    if m == n:
        check_eigh((x + x.swapaxes(-1, -2)).astype(dtype))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_random_matrices(dtype: Any) -> None:
    for n in (1, 9, 20):
        check_svd(matrices(60, n, n, dtype=dtype))
        check_eigh(symmetric(60, n, n, dtype=dtype))
    for m, n in [(16, 5), (100, 40), (40, 100), (MOST, MOST)]:
        check_qr(matrices(2, m, n, dtype=dtype))
    for m, n in [(16, 5), (30, 4)]:
        check_svd(matrices(20, m, n, dtype=dtype))
    for m, n in [(100, 5), (6, MOST)]:
        check_svd(matrices(20, m, n, dtype=dtype), fulls=False)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_the_library_keeps_the_same_laws(dtype: Any) -> None:
    check_qr(matrices(2, MOST + 2, 40, dtype=dtype))
    check_svd(matrices(2, 30, 25, dtype=dtype))
    check_eigh(symmetric(2, 25, 25, dtype=dtype))


def test_eigenvalues_of_both_signs_and_equal_ones() -> None:
    """Which have the same magnitude: eigenvectors are not those of the square."""
    for n in (2, 3, 6, 11):
        turn = np.linalg.qr(matrices(n, n))[0]
        for values in (
            np.where(np.arange(n) % 2, 1.0, -1.0),
            np.where(np.arange(n) % 3, 2.0, 0.0),
            1 + 1e-12 * np.arange(n),
        ):
            check_eigh((turn * values) @ turn.T)
            check_svd((turn * values) @ turn.T)


def test_signs_of_qr_are_those_of_the_library() -> None:
    for m, n in [(4, 4), (9, 9), (9, 4), (4, 9)]:
        x = matrices(5, m, n)
        for mine, other in zip(ts.jit(ts.linalg.qr)(x), np.linalg.qr(x), strict=True):
            np.testing.assert_allclose(np.asarray(mine), other, rtol=1e-11, atol=1e-12)


def test_pseudoinverses() -> None:
    for m, n in [(3, 3), (5, 2), (2, 5), (9, 9), (90, 3), (3, 90)]:
        x = matrices(4, m, n)
        x[1] = np.outer(np.arange(m) + 1, np.arange(n) + 2)
        x[2] = 0
        found = np.asarray(ts.jit(ts.linalg.pinv)(x))
        np.testing.assert_allclose(found, np.linalg.pinv(x), rtol=1e-10, atol=1e-12)
        assert not found[2].any()


def test_elements_that_are_not_finite_make_all_results_nan() -> None:
    """Of that matrix, and of no other."""
    functions: list[Callable[..., Any]] = [
        lambda x: ts.linalg.eigh(x, symmetrize_input=False),
        lambda x: (ts.linalg.eigvalsh(x, symmetrize_input=False),),
        ts.linalg.svd,
        lambda x: (ts.linalg.svdvals(x),),
        lambda x: (ts.linalg.pinv(x),),
    ]
    for n in (1, 3, 9):
        x = symmetric(4, n, n)
        bad = x.copy()
        bad[0, n - 1, 0] = np.nan
        bad[2, 0, n - 1] = np.inf
        for fn in functions:
            run = ts.jit(fn)
            for good, found in zip(run(x), run(bad), strict=True):
                assert np.isnan(np.asarray(found)[[0, 2]]).all()
                np.testing.assert_array_equal(np.asarray(found)[[1, 3]], np.asarray(good)[[1, 3]])


def test_one_triangle_is_read() -> None:
    for n in (3, 9):
        a = symmetric(n, n)
        other = a + np.triu(matrices(n, n) * 1e30, 1)
        run = ts.jit(lambda a: ts.linalg.eigh(a, symmetrize_input=False))
        for x, y in zip(run(a), run(other), strict=True):
            np.testing.assert_array_equal(np.asarray(x), np.asarray(y))


def test_results_do_not_depend_on_the_batch_or_on_threads() -> None:
    x = matrices(500, 4, 4)
    run = ts.jit(lambda x: (*ts.linalg.eigh(x), *ts.linalg.svd(x), *ts.linalg.qr(x)))
    with config.update(threads=1):
        alone = [np.asarray(y) for y in run(x)]
    with config.update(threads=3):
        for y, z in zip(run(x), alone, strict=True):
            np.testing.assert_array_equal(np.asarray(y), z)
    for y, z in zip(run(x[250]), alone, strict=True):
        np.testing.assert_array_equal(np.asarray(y), z[250])


def test_how_many_matrices_there_are_may_be_unknown() -> None:
    b = sym("b")
    graph = traced(lambda x: (eigvalsh(x), svdvals(x), *qr(x)), TensorType((b, 3, 3), float32))
    assert is_own(graph)
    for count in (0, 1, 3):
        check_levels(graph, [symmetric(count, 3, 3, dtype=np.float32)], {"b": count})


@pytest.mark.parametrize("level", supported_levels())
def test_every_level_of_machines(level: str) -> None:
    with config.update(cpu_level=level):
        check_qr(matrices(3, 11, 7))
        check_svd(matrices(3, 11, 7))
        check_eigh(symmetric(3, 11, 11))


def test_accesses_are_checked() -> None:
    with config.update(debug_bounds=True):
        for m, n in [(3, 3), (7, 5), (5, 7)]:
            check_qr(matrices(2, m, n))
            check_svd(np.concatenate([matrices(2, m, n), hard(m, n)[:6]]))
        check_eigh(symmetric(2, 7, 7))


def test_derivatives() -> None:
    """Through code, by finite differences."""
    a, t = symmetric(5, 5), symmetric(5, 5, seed=1)

    def total(a: Any) -> Any:
        w, v = ts.linalg.eigh(a)
        u, s, _ = ts.linalg.svd(a + ts.eye(5, dtype=ts.float64))
        q, r = ts.linalg.qr(a)
        return ts.sum(w**3) + ts.sum(v[0] ** 2 * w) + ts.sum(u[1] ** 2 * s) + ts.sum(q[0] * r[:, 1])

    run, step = ts.jit(total), 1e-6
    slope = float(np.sum(np.asarray(ts.jit(ts.grad(total))(a)) * t))
    change = (float(run(a + step * t)) - float(run(a - step * t))) / (2 * step)
    np.testing.assert_allclose(slope, change, rtol=1e-6)


def test_which_calls_remain() -> None:
    """Complex numbers, large matrices, sizes that are not known."""
    n = sym("n")

    def known(fn: Callable[..., Any], shape: Any, dtype: Any = float32) -> bool:
        return is_own(traced(fn, TensorType(shape, dtype)))

    assert known(qr, (MOST, 3))
    assert not known(qr, (MOST + 1, 3))
    for fn in (eigh, svd):
        assert known(fn, (20, 20))
        assert not known(fn, (21, 21))
        assert not known(fn, (4, 4), complex64)
    assert not known(svd, (4, n))
    assert known(svd, (MOST, 7))
    assert known(svd, (7, MOST))
    assert not known(svd, (MOST, 8))
    assert not known(lambda x: svd(x, full=True), (33, 2))
    assert known(lambda x: svd(x, full=True), (32, 2))
