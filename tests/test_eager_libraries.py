"""Linear algebra and Fourier transforms outside of any trace: code rather than calls of a library
where there is code, with the results of `jit`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tessera as ts
from tessera import eager, eager_libraries, eager_plans, pytree
from tessera.graph.engine import installed
from tessera.graph.ops import determinant
from tessera.runtime.dispatch.native import native
from tests.counting import calls, forget, names_of_compiled
from tests.tolerance import assert_close

NATIVE = pytest.mark.skipif(native() is None, reason="the layout of objects is not known")

la = ts.linalg
RNG = np.random.default_rng(11)

FUNCTIONS: dict[str, Callable[..., Any]] = {
    "solve": lambda x, b: la.solve(x, b),
    "vector": lambda x, b: la.solve(x, b[..., 0]) if b.ndim == 2 else la.solve(x, b),
    "inv": lambda x, b: la.inv(x),
    "det": lambda x, b: la.det(x),
    "slogdet": lambda x, b: la.slogdet(x),
    "cholesky": lambda x, b: la.cholesky(x),
    "upper": lambda x, b: la.cholesky(x, upper=True),
    "lu": lambda x, b: la.lu(x),
    "qr": lambda x, b: la.qr(x),
    "eigvalsh": lambda x, b: la.eigvalsh(x),
    "svdvals": lambda x, b: la.svdvals(b),
    "pinv": lambda x, b: la.pinv(b),
    "lower": lambda x, b: la.triangular_solve(x, b, left_side=True, lower=True),
    "right": lambda x, b: la.triangular_solve(x, ts.matrix_transpose(b), transpose_a=True),
}


def matrices(*shape: int, dtype: Any = np.float32) -> tuple[Any, Any]:
    """Positive definite ones, and right-hand sides."""
    x = RNG.standard_normal(shape).astype(dtype)
    x = x @ x.swapaxes(-1, -2) + np.eye(shape[-1], dtype=dtype)
    b = RNG.standard_normal((*shape[:-1], 2)).astype(dtype)
    return ts.asarray(x), ts.asarray(b)


def bits(found: Any) -> list[tuple[Any, bytes]]:
    return [(x.dtype, np.asarray(x).tobytes()) for x in pytree.leaves(found)]


@pytest.mark.parametrize("shape", [(1, 1), (4, 4), (2, 9, 9), (3, 0, 5, 5), (2, 1, 3, 3)], ids=str)
@pytest.mark.parametrize("dtype", [np.float32, np.float64], ids=["f4", "f8"])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_results_are_those_of_jit(name: str, dtype: Any, shape: tuple[int, ...]) -> None:
    x, b = matrices(*shape, dtype=dtype)
    f = FUNCTIONS[name]
    expected = ts.jit(f)(x, b)
    for _ in range(4):
        found = f(x, b)
        assert_same(found, expected)
        assert bits(found) == bits(f(x, b))


@pytest.mark.parametrize("dtype", [np.float32, np.float64], ids=["f4", "f8"])
@pytest.mark.parametrize("name", ["fft", "ifft", "rfft", "irfft", "fft2", "rfft2", "irfft2"])
def test_transforms_are_those_of_jit(name: str, dtype: Any) -> None:
    function = getattr(ts.fft, name)
    for shape in ((16, 48), (3, 16, 20), (2, 0, 16, 16), (3, 16, 17)):
        x = ts.asarray(RNG.standard_normal(shape).astype(dtype))
        expected = ts.jit(lambda x: function(x))(x)
        for _ in range(3):
            assert_same(function(x), expected)


@pytest.mark.unchecked
def test_one_program_serves_any_number_of_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    names = names_of_compiled(monkeypatch)
    for shape in ((1, 144), (5, 144), (70, 144)):
        x = RNG.standard_normal(shape).astype(np.float32)
        assert_close(np.asarray(ts.fft.rfft(ts.asarray(x))), np.fft.rfft(x), factor=50.0)
    for shape in ((2, 80, 48), (9, 80, 48)):
        x = RNG.standard_normal(shape).astype(np.float32)
        assert_close(np.asarray(ts.fft.rfft2(ts.asarray(x))), np.fft.rfft2(x), factor=50.0)
    assert (names.count("rfft"), names.count("fft")) == (2, 1)


def assert_same(found: Any, expected: Any) -> None:
    """What is around the calls is fused by jit, and rounds otherwise."""
    pairs = zip(pytree.leaves(found), pytree.leaves(expected), strict=True)
    for a, b in pairs:
        assert a.dtype is b.dtype
        assert_close(np.asarray(a), np.asarray(b), factor=20.0)


def test_columns_and_parts_of_arrays() -> None:
    x, b = matrices(6, 8, 8)
    for turned in (ts.matrix_transpose(x), x[::2], x[:, ::-1, ::-1]):
        some = b[: turned.shape[0]]
        expected = np.linalg.solve(np.asarray(turned), np.asarray(some))
        assert_close(np.asarray(la.solve(turned, some)), expected, factor=100.0)


@pytest.mark.unchecked
def test_one_program_serves_any_number_of_matrices(monkeypatch: pytest.MonkeyPatch) -> None:
    names = names_of_compiled(monkeypatch)
    for count in (1, 2, 7, 30):
        x, _ = matrices(count, 23, 23)
        assert_close(np.asarray(la.det(x)), np.linalg.det(np.asarray(x)), factor=1000.0)
    assert names.count("det") == 1


@NATIVE
@pytest.mark.unchecked
@pytest.mark.parametrize("name", ["solve", "inv", "det", "cholesky", "pinv", "qr", "eigh", "svd"])
def test_known_calls_are_native(name: str) -> None:
    x, b = matrices(5, 5)
    function = getattr(la, name)
    forget(function)
    args = (x, b) if name == "solve" else (x,)
    for _ in range(4):
        function(*args)
    assert calls(lambda: function(*args))[0] == 1


@NATIVE
@pytest.mark.unchecked
@pytest.mark.parametrize("name", ["fft", "ifft", "rfft", "irfft", "fft2", "fftshift"])
def test_known_transforms_are_native(name: str) -> None:
    dtype = np.float32 if name == "rfft" else np.complex64
    x = ts.asarray(RNG.standard_normal((4, 17 if name == "irfft" else 16)).astype(dtype))
    function = getattr(ts.fft, name)
    forget(function)
    for _ in range(4):
        function(x)
    assert calls(lambda: function(x))[0] == 1


def test_libraries_compute_what_there_is_no_code_for(monkeypatch: pytest.MonkeyPatch) -> None:
    names: list[str] = []
    run = eager_libraries.run_routine

    def noted(name: str, *args: Any) -> None:
        names.append(name)
        run(name, *args)

    monkeypatch.setattr(eager_libraries, "run_routine", noted)
    x, _ = matrices(129, 129)
    wide, _ = matrices(3, 3)
    empty, none = ts.zeros((0, 0)), ts.zeros((3, 0))
    assert_close(np.asarray(la.slogdet(x)[1]), np.linalg.slogdet(np.asarray(x))[1], factor=100.0)
    la.det(wide.astype(ts.complex64))
    assert float(la.det(empty)) == 1
    assert la.solve(wide, none).shape == (3, 0)
    la.eigvalsh(matrices(21, 21)[0])
    assert names == ["slogdet", "det", "det", "lu_solve", "eigh"]


def test_matrices_without_a_result() -> None:
    x = ts.asarray([[1.0, 2.0], [2.0, 1.0]])
    assert np.isnan(np.asarray(la.cholesky(x))).all()
    singular = ts.asarray([[1.0, 2.0], [2.0, 4.0]])
    assert not np.isfinite(np.asarray(la.inv(singular))).any()
    assert float(la.det(singular)) == 0
    assert np.isnan(float(la.det(ts.asarray([[np.nan, 1.0], [1.0, 1.0]]))))


def test_derivatives_are_those_of_jit() -> None:
    x, b = matrices(6, 6)

    def f(x: Any) -> Any:
        return ts.sum(la.solve(x, b) ** 2) + la.slogdet(x)[1]

    expected = ts.jit(ts.grad(f))(x)
    for _ in range(4):
        assert_close(np.asarray(ts.grad(f)(x)), np.asarray(expected), factor=50.0)


def test_errors_are_those_of_the_function() -> None:
    x, _ = matrices(3, 3)
    for _ in range(3):
        with pytest.raises(ts.errors.ShapeError, match="right-hand sides have 3 rows here"):
            la.solve(x, ts.zeros((4, 2)))


def test_few_programs_for_known_sizes_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(eager_plans, "MOST_PROGRAMS", 2)
    engine = eager.Eager()
    names = names_of_compiled(monkeypatch)
    with installed(engine):
        for n in (11, 12, 13, 12, 13, 11):
            x = np.eye(n, dtype=np.float32) * 2
            assert float(determinant.det(ts.asarray(x))) == 2.0**n
            total, _ = ts.scan(lambda c, v: (c + v, None), 0.0, ts.asarray(x[0]))
            assert float(total) == 2
    assert names.count("det") == 4
    assert names.count("scan") == 4
