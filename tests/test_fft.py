"""`ts.fft` against NumPy, over dtypes, lengths, axes and norms; derivatives and batches."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tessera as ts
from tessera import config
from tessera.ir import fourier
from tests.test_linalg import numbers
from tests.tolerance import assert_close

SHAPES = ((1,), (5,), (3, 8), (2, 3, 4), (0, 5))
NORMS = ("backward", "ortho", "forward")


def agree(name: str, x: np.ndarray, **options: Any) -> None:
    """The function of this name and NumPy's give the same, with the same dtype."""
    found = getattr(ts.fft, name)(ts.asarray(x), **options)
    assert_close(np.asarray(found), getattr(np.fft, name)(x, **options), length=x.size)


@pytest.mark.parametrize("dtype", ["f4", "f8", "c8", "c16"])
@pytest.mark.parametrize("shape", SHAPES)
def test_one_axis(dtype: str, shape: tuple[int, ...]) -> None:
    x = numbers(dtype, *shape)
    for norm in NORMS:
        for n in (None, 1, 3, 7):
            for name in ("fft", "ifft", "irfft", "hfft"):
                if n is not None or shape[-1] > 1 or name in ("fft", "ifft"):
                    agree(name, x, n=n, norm=norm)
            if x.dtype.kind == "f":
                agree("rfft", x, n=n, norm=norm)
                agree("ihfft", x, n=n, norm=norm)
    agree("fft", x, n=3, axis=0)
    agree("fftshift", x)
    agree("ifftshift", x, axes=-1)


def routines(x: np.ndarray) -> list[np.ndarray]:
    """What the routines give for real numbers along the last axis."""
    size = x.shape[-1]
    half = np.empty((*x.shape[:-1], size // 2 + 1), np.result_type(x.dtype, np.complex64))
    back, whole, there = np.empty_like(x), np.empty_like(half), np.empty_like(half)
    fourier.rfft([x], [half], x.ndim - 1)
    fourier.irfft([half], [back], x.ndim - 1)
    fourier.fft([half], [whole], 0, 0, x.ndim - 1)
    fourier.fft([half], [there], 1, x.ndim - 1)
    return [half, back, whole, there]


@pytest.mark.parametrize("dtype", ["f4", "f8"])
def test_other_versions_of_scipy_give_the_same(dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    x = numbers(dtype, 3, 10)
    found = routines(x)
    monkeypatch.setattr(fourier, "_extension", lambda: None)
    for a, b in zip(found, routines(x), strict=True):
        np.testing.assert_array_equal(a, b)


def test_results_do_not_depend_on_the_number_of_threads() -> None:
    x = numbers("f4", 40, fourier.THREADED // 32)
    with config.update(threads=1):
        alone = routines(x)
    with config.update(threads=3):
        for a, b in zip(alone, routines(x), strict=True):
            np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("dtype", ["f4", "f8", "c8", "c16"])
@pytest.mark.parametrize("norm", NORMS)
def test_several_axes(dtype: str, norm: str) -> None:
    x = numbers(dtype, 2, 3, 4)
    names = ["fftn", "ifftn", "irfftn", *(["rfftn"] if x.dtype.kind == "f" else [])]
    for options in (
        {},
        {"axes": (0,)},
        {"axes": (0, -1), "s": (3, 5)},
        {"axes": (-1, 0)},
        {"axes": (1, 2), "s": (-1, 4)},
    ):
        for name in names:
            agree(name, x, norm=norm, **options)
    for name in ("fft2", "ifft2", "irfft2", *(["rfft2"] if x.dtype.kind == "f" else [])):
        agree(name, x, norm=norm)


def test_frequencies() -> None:
    for n in (1, 2, 5, 8):
        assert_close(ts.fft.fftfreq(n, d=0.5), np.fft.fftfreq(n, 0.5).astype("f4"))
        assert_close(ts.fft.rfftfreq(n, dtype=ts.float64), np.fft.rfftfreq(n))


def test_integers_are_converted() -> None:
    assert ts.fft.fft(ts.asarray([1, 2, 3])).dtype is ts.complex64
    assert ts.fft.rfft(ts.asarray([True, False])).dtype is ts.complex64


def test_the_transpose_is_a_transform() -> None:
    x = ts.asarray(numbers("f8", 6))
    for f in (
        lambda x: ts.fft.irfft(ts.fft.rfft(x) * 2, 6),
        lambda x: ts.real(ts.fft.ifft(ts.fft.fft(x))),
        lambda x: ts.fft.irfftn(ts.fft.rfftn(ts.reshape(x, (3, 2))), (3, 2)),
    ):
        graph = str(ts.make_graph(ts.grad(lambda x, f=f: ts.sum(f(x) ** 2)))(x))
        assert graph.count("fft(") == 2 * str(ts.make_graph(f)(x)).count("fft(")


def test_the_gradient_of_a_convolution() -> None:
    """Products of transforms are circular convolutions, whose gradients are known."""
    a, b, c = (numbers("f8", 7, seed=k) for k in range(3))

    def convolved(a: Any, b: Any) -> Any:
        return ts.fft.irfft(ts.fft.rfft(a) * ts.fft.rfft(b), 7)

    rows = np.stack([np.roll(b, k) for k in range(7)])
    x, y, z = ts.asarray(a), ts.asarray(b), ts.asarray(c)
    assert_close(convolved(x, y), a @ rows)
    pull = ts.grad(lambda x: ts.sum(z * convolved(x, y)))
    assert_close(pull(x), rows @ c)
    assert_close(ts.jit(pull)(x), rows @ c)
    assert_close(ts.vmap(convolved, in_axes=(0, None))(ts.asarray(rows), y), rows @ rows)
    assert_close(ts.jit(ts.vmap(pull))(ts.asarray(rows)), np.tile(rows @ c, (7, 1)))


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1), n=st.integers(1, 12), norm=st.sampled_from(NORMS)
)
def test_laws_of_transforms(seed: int, n: int, norm: Any) -> None:
    a, b = (numbers("c16", 2, n, seed=seed + k) for k in range(2))
    x, y = ts.asarray(a), ts.asarray(b)
    fft, ifft = ts.fft.fft, ts.fft.ifft
    assert_close(ifft(fft(x, norm=norm), norm=norm), a)
    assert_close(fft(x + 2j * y), np.asarray(fft(x)) + 2j * np.asarray(fft(y)), length=n)
    # Parseval's equation, and a turn of the operand as one of the phases.
    size = np.asarray(ts.linalg.vector_norm(fft(x, norm="ortho"), axis=-1))
    assert_close(size, np.linalg.norm(a, axis=-1))
    phases = np.exp(-2j * np.pi * np.arange(n) / n)
    assert_close(fft(ts.roll(x, 1, axis=-1)), np.asarray(fft(x)) * phases, length=n)
    half = ts.fft.rfft(ts.real(x), norm=norm)
    assert_close(half, np.asarray(fft(ts.real(x), norm=norm))[:, : n // 2 + 1], length=n)
    assert_close(ts.fft.irfft(half, n, norm=norm), a.real)
    assert_close(ts.fft.hfft(ts.fft.ihfft(ts.real(x)), n), a.real)
    assert_close(ts.fft.ifftshift(ts.fft.fftshift(x)), a)
