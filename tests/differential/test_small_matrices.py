"""Linear algebra of small matrices that is code of the program: at every level, against exact
results, and where matrices have none."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tessera as ts
from tessera.config import config
from tessera.dtypes import DType, complex64, float32, float64
from tessera.graph.ops.determinant import det, slogdet
from tessera.graph.ops.factorize import cholesky
from tessera.graph.ops.library import adjoint, product
from tessera.graph.ops.solve import lu, solve, triangular_solve
from tessera.ir.core import Func
from tessera.ir.intexpr import sym
from tessera.ir.types import TensorType
from tessera.target.linalg.calls import MOST
from tessera.target.machine import machine, supported_levels
from tests.differential.levels import check_levels
from tests.pairs import every_pair
from tests.schedule.lowering import traced

SIZES = (1, 2, 3, 4, 5, 8, 11, 16, 19, 33)
"""Code that is written out and code with loops; rows of less than a vector, of one, and of some."""


def matrices(*shape: int, dtype: Any = np.float64, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).uniform(-1, 1, shape).astype(dtype)


def positive(count: int, n: int, dtype: Any = np.float64) -> np.ndarray:
    """Positive definite ones."""
    x = matrices(count, n, n)
    return (x @ x.swapaxes(1, 2) + 0.1 * np.eye(n)).astype(dtype)


def is_own(graph: Func, level: str = "host") -> bool:
    from tessera.compile import Lowered

    return "host_call" not in Lowered(graph, machine(level)).stage("target")


def check(fn: Callable[..., Any], arrays: list[np.ndarray], level: str = "host") -> None:
    """The function is code, and that agrees with the interpreters."""
    types = [TensorType(x.shape, float32 if x.dtype == np.float32 else float64) for x in arrays]
    graph = traced(fn, *types)
    assert is_own(graph, level)
    check_levels(graph, arrays, machine=machine(level))


@every_pair(
    ("level", ["host", "x86-64"]),
    ("n", SIZES),
    ("dtype", [np.float32, np.float64]),
)
def test_square_matrices_at_every_level(n: int, dtype: Any, level: str) -> None:
    x = matrices(2, n, n, dtype=dtype)
    x[..., np.arange(n), np.arange(n)] += 2
    check(lambda x: (*lu(x), det(x), *slogdet(x)), [x], level)
    check(cholesky, [positive(2, n, dtype)], level)


@pytest.mark.parametrize(("m", "n"), [(1, 3), (3, 1), (4, 2), (2, 4), (7, 5), (5, 20), (20, 5)])
def test_other_matrices_at_every_level(m: int, n: int) -> None:
    check(lu, [matrices(3, m, n)])
    check(lu, [matrices(m, n)])


@pytest.mark.parametrize("level", ["host", "x86-64"])
@pytest.mark.parametrize(
    ("n", "columns"), [(1, 1), (3, 1), (3, 4), (4, 9), (6, 1), (9, 3), (10, 19)]
)
def test_equations_at_every_level(n: int, columns: int, level: str) -> None:
    for dtype in (np.float32, np.float64):
        a, b = matrices(2, n, n, dtype=dtype), matrices(2, n, columns, dtype=dtype, seed=1)
        a[..., np.arange(n), np.arange(n)] += 2
        check(solve, [a, b], level)
        check(solve, [a[0], b[0]], level)
        for lower in (False, True):
            for transposed in (False, True):
                for unit in (False, True):
                    options: Any = {"transposed": transposed, "unit_diagonal": unit}
                    check(
                        lambda a, b, lower=lower, options=options: triangular_solve(
                            a, b, lower=lower, **options
                        ),
                        [a, b],
                        level,
                    )


def test_derivatives_are_equations_of_transposed_matrices() -> None:
    a, b = matrices(4, 5, 5) + 3 * np.eye(5), matrices(4, 5, 2, seed=1)
    pull = ts.jit(ts.grad(lambda a, b: ts.sum(ts.linalg.solve(a, b) ** 2), argnums=(0, 1)))
    assert {k.reason.split(" with ")[0] for k in pull.lower(a, b).kernels() if "lu" in k.label} == {
        "code for small matrices"
    }
    da, db = [np.asarray(x) for x in pull(a, b)]
    x = np.linalg.solve(a, b)
    want = np.linalg.solve(a.swapaxes(1, 2), 2 * x)
    np.testing.assert_allclose(db, want, rtol=1e-12, atol=1e-13)
    np.testing.assert_allclose(da, -want @ x.swapaxes(1, 2), rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("n", [*SIZES, 64, 100, MOST])
def test_errors_are_those_of_the_library(n: int) -> None:
    """Backward errors, of factors and of equations."""
    epsilon = np.finfo(np.float32).eps
    a, b = matrices(5, n, n, dtype=np.float32), matrices(5, n, 3, dtype=np.float32, seed=1)
    x = np.asarray(ts.jit(ts.linalg.solve)(a, b)).astype(np.float64)
    size = np.abs(a).sum(-1).max(-1) * np.abs(x).max((-2, -1)) + np.abs(b).max((-2, -1))
    assert (np.abs(a @ x - b).max((-2, -1)) <= 4 * n * epsilon * size).all()
    p, lower, upper = [np.asarray(x).astype(np.float64) for x in ts.jit(ts.linalg.lu)(a)]
    assert np.abs(p @ lower @ upper - a).max() <= n * epsilon * np.abs(upper).max()
    assert np.abs(lower).max() <= 1
    c = positive(5, n, np.float32)
    root = np.asarray(ts.jit(ts.linalg.cholesky)(c)).astype(np.float64)
    assert not np.triu(root, 1).any()
    assert np.abs(root @ root.swapaxes(1, 2) - c).max() <= n * epsilon * np.abs(c).max()


def test_matrices_that_are_not_positive_have_no_factor() -> None:
    for n in (1, 2, 4, 9, 20):
        x = positive(4, n)
        want = np.linalg.cholesky(x[2])
        x[0, n - 1, n - 1] = -1
        x[1, 0, 0] = 0
        x[3, n // 2, n // 2] = np.nan
        found = np.asarray(ts.jit(lambda x: ts.linalg.cholesky(x, symmetrize_input=False))(x))
        assert np.isnan(found[[0, 1, 3]]).all()
        np.testing.assert_allclose(found[2], want, rtol=1e-12, atol=1e-13)


def test_the_other_half_is_not_read() -> None:
    n = 11
    x = positive(1, n)[0]
    upper = np.triu(np.full((n, n), np.nan), 1)
    root = ts.jit(lambda x: ts.linalg.cholesky(x, symmetrize_input=False))
    np.testing.assert_array_equal(np.asarray(root(x + upper)), np.asarray(root(x)))
    b = matrices(n, 3)
    for lower, other in ((True, upper), (False, upper.T)):
        equations = ts.jit(
            lambda a, b, lower=lower: ts.linalg.triangular_solve(
                a, b, left_side=True, lower=lower, unit_diagonal=True
            )
        )
        bad = x + other + np.diag(np.full(n, np.nan))
        np.testing.assert_array_equal(np.asarray(equations(bad, b)), np.asarray(equations(x, b)))


def test_singular_matrices() -> None:
    for n in (2, 3, 4, 7, 20):
        x = matrices(3, n, n)
        x[1, :, 0] = 0
        x[2, n - 1] = 2 * x[2, 0]
        found = np.asarray(ts.jit(ts.linalg.det)(x))
        np.testing.assert_allclose(found, np.linalg.det(x), rtol=1e-12, atol=1e-15)
        assert found[1] == 0
        sign, logarithm = [np.asarray(y) for y in ts.jit(ts.linalg.slogdet)(x)]
        assert (sign[1], logarithm[1]) == (0, -np.inf)
        np.testing.assert_allclose(logarithm[0], np.linalg.slogdet(x[0])[1], rtol=1e-12)
        p, lower, upper = [np.asarray(y) for y in ts.jit(ts.linalg.lu)(x)]
        np.testing.assert_allclose(p @ lower @ upper, x, rtol=1e-12, atol=1e-13)
        assert upper[1, 0, 0] == 0
        zero = np.zeros((1, n, n))
        assert not np.isfinite(np.asarray(ts.jit(ts.linalg.solve)(zero, np.ones((1, n, 1))))).any()


def test_the_first_of_equal_pivots_is_taken() -> None:
    for n in (3, 10):
        p, lower, _ = [np.asarray(y) for y in ts.jit(ts.linalg.lu)(np.full((n, n), -2.0))]
        np.testing.assert_array_equal(p, np.eye(n))
        want = np.eye(n)
        want[:, 0] = 1
        np.testing.assert_array_equal(lower, want)


def test_results_do_not_depend_on_the_batch_or_on_threads() -> None:
    a, b = matrices(700, 6, 6), matrices(700, 6, 3, seed=1)
    run = ts.jit(lambda a, b: (ts.linalg.solve(a, b), ts.linalg.det(a)))
    with config.update(threads=1):
        alone = [np.asarray(x) for x in run(a, b)]
    with config.update(threads=3):
        for x, y in zip(run(a, b), alone, strict=True):
            np.testing.assert_array_equal(np.asarray(x), y)
    for k in (0, 350, 699):
        for x, y in zip(run(a[k], b[k]), alone, strict=True):
            np.testing.assert_array_equal(np.asarray(x), y[k])


def test_how_many_matrices_there_are_may_be_unknown() -> None:
    n = sym("n")
    types = [TensorType((n, 5, 5), float32), TensorType((n, 5, 2), float32)]
    graph = traced(solve, *types)
    assert is_own(graph)
    for count in (0, 1, 3):
        x = matrices(count, 5, 5, dtype=np.float32) + np.float32(3) * np.eye(5, dtype=np.float32)
        check_levels(graph, [x, matrices(count, 5, 2, dtype=np.float32)], {"n": count})


@pytest.mark.parametrize("level", supported_levels())
def test_every_level_of_machines(level: str) -> None:
    a, b = matrices(3, 13, 13), matrices(3, 13, 5, seed=1)
    with config.update(cpu_level=level):
        found = np.asarray(ts.jit(ts.linalg.solve)(a, b))
    np.testing.assert_allclose(found, np.linalg.solve(a, b), rtol=1e-9, atol=1e-10)


def test_accesses_are_checked() -> None:
    a, b = positive(3, 7), matrices(3, 7, 5)
    with config.update(debug_bounds=True):
        found = np.asarray(ts.jit(ts.linalg.solve)(a, b))
        root = np.asarray(ts.jit(ts.linalg.cholesky)(a))
    np.testing.assert_allclose(found, np.linalg.solve(a, b), rtol=1e-10)
    np.testing.assert_allclose(root, np.linalg.cholesky(a), rtol=1e-12, atol=1e-13)


def test_in_loops() -> None:
    a, b = matrices(20, 4, 4) + 3 * np.eye(4), matrices(4, seed=1)

    def run(a: Any, b: Any) -> Any:
        return ts.scan(lambda x, m: (ts.linalg.solve(m, x), None), b, a)[0]

    want = b
    for m in a:
        want = np.linalg.solve(m, want)
    np.testing.assert_allclose(np.asarray(ts.jit(run)(a, b)), want, rtol=1e-12)


def test_which_calls_remain() -> None:
    """Complex numbers, large matrices, sizes that are not known."""
    n = sym("n")

    def known(fn: Callable[..., Any], shape: Any, dtype: DType = float32) -> bool:
        return is_own(traced(fn, TensorType(shape, dtype)))

    assert known(cholesky, (MOST, MOST))
    assert not known(cholesky, (MOST + 1, MOST + 1))
    assert not known(cholesky, (4, 4), complex64)
    assert not known(lu, (4, n))
    assert not known(lambda x: lu(product(x, adjoint(x))), (4, 4), complex64)
    for wide in (1, 1000):
        types = [TensorType((8, 8), float32), TensorType((8, wide), float32)]
        assert is_own(traced(lambda a, b: triangular_solve(a, b, lower=True), *types))
    types = [TensorType((8, 8), float32), TensorType((8, n), float32)]
    assert not is_own(traced(lambda a, b: triangular_solve(a, b, lower=True), *types))
