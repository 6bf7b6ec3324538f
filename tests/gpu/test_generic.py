"""Functions with annotated shapes on a real GPU: one executable for all sizes, against NumPy."""

# ruff: noqa: F821, UP037 -- dims are strings, which ruff takes for names of classes

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tessera as ts
from tessera import pytree
from tessera.errors import ShapeError
from tests.api.generic_cases import CASES, arrays, jitted, softmax
from tests.tolerance import assert_close

pytestmark = pytest.mark.gpu


def on_gpu(x: Any) -> Any:
    return ts.device_put(x, "cuda:0")


def check(f: Any, given: list[np.ndarray], wanted: Any) -> None:
    found = pytree.leaves(f(*map(on_gpu, given)))
    expected = pytree.leaves(wanted(*[x.astype(np.float64) for x in given]))
    for a, b in zip(found, expected, strict=True):
        assert str(a.device) == "cuda:0"
        assert_close(np.asarray(a), np.asarray(b, np.float32), length=max(given[0].size, 1))


@pytest.mark.parametrize("name", CASES)
def test_one_executable_serves_all_sizes(name: str) -> None:
    case = CASES[name]
    f = jitted(case)
    for shapes in (*case.shapes, *case.shapes):  # known sizes take another way to the kernels
        check(f, arrays(shapes), case.wanted)
    assert f.cache_size() == 1


@pytest.mark.parametrize("n", [1, 31, 128, 1000, 4099])
def test_rows_of_many_lengths(n: int) -> None:
    check(ROWS, arrays([(17, n)]), softmax)
    assert ROWS.cache_size() == 1


ROWS = jitted(CASES["rows"])


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("aligned", [False, True])
def test_products_of_many_sizes(dtype: str, aligned: bool) -> None:
    dims = [ts.dim(n, 1, 8192, multiple_of=16 if aligned else 1) for n in "NKM"]
    n, k, m = dims

    @ts.jit
    def f(x: ts.Tensor[n, k], y: ts.Tensor[k, m]) -> ts.Tensor[n, m]:
        return x @ y

    sizes = [(16, 16, 16), (128, 64, 256), (512, 1024, 48), (2048, 512, 1024)]
    sizes = sizes if aligned else [(1, 1, 1), (7, 33, 5), (129, 65, 127), (1000, 777, 501)]
    for size in sizes:
        x, y = arrays([size[:2], size[1:]])
        given = [np.asarray(ts.asarray(a).astype(getattr(ts, dtype))) for a in (x, y)]
        found = f(*map(on_gpu, given))
        wanted = given[0].astype(np.float64) @ given[1].astype(np.float64)
        rounding = {"float32": 1e-6, "bfloat16": 2**-8, "float16": 2**-11}[dtype]
        error = np.abs(np.asarray(found).astype(np.float64) - wanted)
        assert error.max() <= rounding * (np.abs(wanted).max() + size[1] ** 0.5) * 2
    assert f.cache_size() == 1


def test_a_gradient_of_many_sizes() -> None:
    @ts.jit
    def f(x: ts.Tensor["N", "M"], w: ts.Tensor["M", 8]) -> Any:
        return ts.grad(lambda w: ts.sum(ts.tanh(x @ w) ** 2))(w)

    for n, m in ((3, 5), (100, 33), (1, 1), (257, 64)):
        x, w = arrays([(n, m), (m, 8)])
        t = np.tanh(x.astype(np.float64) @ w)
        wanted = x.astype(np.float64).T @ (2 * t * (1 - t * t))
        assert_close(np.asarray(f(on_gpu(x), on_gpu(w))), wanted.astype(np.float32), length=n * m)
    assert f.cache_size() == 1


def test_classes_and_errors() -> None:
    size = ts.dim("S", 1, 4096, anchors=[128], tile=16)

    @ts.jit
    def f(x: ts.Tensor["B", size]) -> ts.Tensor["B"]:
        return ts.sum(x, axis=1)

    for s in (128, 32, 7, 128, 48, 1):
        np.testing.assert_array_equal(np.asarray(f(on_gpu(np.ones((3, s), np.float32)))), [s] * 3)
    assert f.cache_size() == 3
    with pytest.raises(ShapeError, match="S is 5000"):
        f(on_gpu(np.ones((1, 5000), np.float32)))
