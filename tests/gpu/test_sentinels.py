"""Sentinels on a real GPU."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tessera as ts
from tessera.errors import IndexOutOfBoundsError, NonFiniteError
from tests.api.test_sentinels import BAD, FINE
from tests.api.test_sentinels_bounds import BAD as BAD_INDEX
from tests.api.test_sentinels_bounds import GOOD, INDEXED, MEANT, X
from tests.api.test_sentinels_gpu import KERNELS, ON_CPUS, found, on_gpu

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("size", [0, 5000])
@pytest.mark.parametrize("name", [name for name in BAD if name not in ON_CPUS])
def test_what_is_bad_is_told(name: str, size: int) -> None:
    f, values, check, expected = BAD[name]
    if size and name in ("in two dims", "a loop", "a product", "a scan", "scattered"):
        pytest.skip("what is said depends on the size")
    x = np.ones(len(values) + size, np.float32)
    x[: len(values)] = values
    said = found(f, x, check=check)
    # Where in the result is told of the first; how many more there are depends on the size.
    assert said is not None
    assert said.split(", and")[0] == expected.split(", and")[0] or size


@pytest.mark.parametrize("name", FINE)
def test_what_is_fine_is_not_told(name: str) -> None:
    f, values, check = FINE[name]
    x = on_gpu(np.asarray(values, np.float32))
    plain, checked = ts.jit(f)(x), ts.jit(f, check=check)(x)
    assert np.asarray(plain).tobytes() == np.asarray(checked).tobytes()


@pytest.mark.parametrize("name", INDEXED)
def test_indices_out_of_range_are_told(name: str) -> None:
    f, expected = INDEXED[name]
    assert found(f, X, BAD_INDEX, check="bounds") == expected
    assert found(f, X, GOOD, check="bounds") is None


@pytest.mark.parametrize("name", MEANT)
def test_indices_that_are_meant_are_not_told(name: str) -> None:
    assert found(MEANT[name], X, BAD_INDEX, check="bounds") is None


@pytest.mark.parametrize("name", KERNELS)
def test_kernels_tell(name: str) -> None:
    f, good, at, value = KERNELS[name]
    bad = [good[0].copy(), *good[1:]]
    bad[0][at] = value
    checked = ts.jit(f, check="nan,inf")
    inputs = [on_gpu(x) for x in good]
    wanted = np.asarray(ts.jit(f)(*inputs))
    for _ in range(3):
        assert np.asarray(checked(*inputs)).tobytes() == wanted.tobytes()
        with pytest.raises(NonFiniteError):
            checked(*[on_gpu(x) for x in bad])


def test_the_error_is_that_of_a_cpu() -> None:
    @ts.jit(check="nan,inf")
    def f(rows: Any) -> Any:
        def step(c: Any, row: Any) -> Any:
            return c - ts.sum(row * ts.log(row)), None

        return ts.grad(lambda rows: ts.scan(step, 0.0, rows)[0])(rows)

    rows = ts.asarray([[0.5, 0.5], [1.0, 0.0]])
    texts: list[str] = []
    for place in (rows, on_gpu(rows)):
        with pytest.raises(NonFiniteError, match="step 1 of the scan") as caught:
            f(place)
        texts.append(str(caught.value))
    assert texts[0] == texts[1]


def block(p: Any, tokens: Any) -> Any:
    """A small transformer block with an embedding."""
    x = p["e"][tokens]
    batch, length, width = x.shape
    q, k, v = [
        ts.permute_dims(ts.reshape(x @ p[n], (batch, length, 4, width // 4)), (0, 2, 1, 3))
        for n in "qkv"
    ]
    scores = ts.softmax(q @ ts.permute_dims(k, (0, 1, 3, 2)) / 8.0, axis=-1) @ v
    x = x + ts.reshape(ts.permute_dims(scores, (0, 2, 1, 3)), (batch, length, width)) @ p["o"]
    return x + ts.nn.gelu(x @ p["a"]) @ p["b"]


def test_a_training_step() -> None:
    rng = np.random.default_rng(0)
    square = dict.fromkeys("qkvo", (128, 128))
    shapes = {"e": (500, 128), **square, "a": (128, 512), "b": (512, 128)}
    p = {n: on_gpu((rng.normal(size=s) * 0.05).astype(np.float32)) for n, s in shapes.items()}
    tokens = on_gpu(rng.integers(0, 500, (4, 96)).astype(np.int32))

    def step(p: Any, tokens: Any) -> Any:
        g = ts.grad(lambda p: ts.mean(block(p, tokens) ** 2))(p)
        return {n: p[n] - 0.1 * g[n] for n in p}

    plain, checked = ts.jit(step), ts.jit(step, check="nan,inf,bounds")
    wanted, result = plain(p, tokens), checked(p, tokens)
    for n in p:
        if n != "e":  # updates of one row meet in any order
            assert np.asarray(wanted[n]).tobytes() == np.asarray(result[n]).tobytes()
    bad = np.asarray(p["k"]).copy()
    bad[127, 127] = np.nan
    with pytest.raises(NonFiniteError):
        checked({**p, "k": on_gpu(bad)}, tokens)
    stray = np.asarray(tokens).copy()
    stray[3, 95] = 500
    with pytest.raises(IndexOutOfBoundsError, match=r"index 500, element \[3, 95\]"):
        checked(p, on_gpu(stray))
    assert np.isfinite(np.asarray(checked(p, tokens)["o"])).all()


def test_operations_outside_of_functions() -> None:
    bad = on_gpu(np.asarray([1, -1], np.float32))
    with ts.debug.sentinels("nan"), pytest.raises(NonFiniteError, match=r"log: .* at \[1\]"):
        ts.log(bad)
    with ts.debug.sentinels(), pytest.raises(IndexOutOfBoundsError, match="index 9"):
        _ = bad[on_gpu(np.asarray([0, 9]))]


def test_programs_as_graphs() -> None:
    f = ts.jit(lambda x: ts.log(ts.sort(x) * 2) + ts.sum(x), check="nan")
    good, bad = on_gpu(np.ones(300, np.float32)), on_gpu(-np.ones(300, np.float32))
    with ts.config.update(cuda_graphs=1):
        for _ in range(4):
            assert np.isfinite(np.asarray(f(good))).all()
            with pytest.raises(NonFiniteError):
                f(bad)
