"""Fourier transforms that are code of the program, at every level, and against exact ones."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import scipy.fft

import tessera as ts
from tessera.config import config
from tessera.dtypes import complex64, complex128, float32, float64
from tessera.errors import VerifyError
from tessera.graph.ops.fourier import fft, irfft, rfft
from tessera.ir.core import Func
from tessera.ir.intexpr import sym
from tessera.ir.types import TensorType
from tessera.target.machine import machine, supported_levels
from tessera.target.roots_ops import Roots
from tests.differential.levels import check_levels
from tests.schedule.lowering import traced

SIZES = (4, 10, 14, 16, 22, 30, 48, 50, 52, 56, 60, 64, 80, 98, 112, 128, 200, 250, 480)
"""Lines whose vectors are full, short, in a last block that overlaps, and of all radices."""


def random(shape: tuple[int, ...], dtype: str, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    x = rng.normal(size=shape)
    return (x + 1j * rng.normal(size=shape) if dtype[0] == "c" else x).astype(dtype)


def is_own(graph: Func, level: str = "host") -> bool:
    from tessera.compile import Lowered

    return "host_call" not in Lowered(graph, machine(level)).stage("target")


@pytest.mark.parametrize("level", ["host", "x86-64"])
@pytest.mark.parametrize("size", [6, 14, 16, 22, 26, 50, 56, 60, 128])
def test_whole_lines_at_every_level(size: int, level: str) -> None:
    for dtype, name in ((complex64, "c8"), (complex128, "c16")):
        x = random((3, size), name)
        graph = traced(lambda x: (fft(x, (1,)), fft(x, (1,), True)), TensorType(x.shape, dtype))
        check_levels(graph, [x], machine=machine(level))


@pytest.mark.parametrize("level", ["host", "x86-64"])
@pytest.mark.parametrize("size", [8, 32, 60, 96, 100, 120, 250, 500])
def test_real_lines_at_every_level(size: int, level: str) -> None:
    for dtype, name in ((float32, "f4"), (float64, "f8")):
        x = random((2, size), name)
        graph = traced(
            lambda x: irfft(ts.multiply(rfft(x, 1), 2), 1, size), TensorType(x.shape, dtype)
        )
        check_levels(graph, [x], machine=machine(level))


@pytest.mark.parametrize("level", ["host", "x86-64"])
@pytest.mark.parametrize(
    ("shape", "axes"),
    [((2, 6, 3), (1,)), ((15, 37), (0,)), ((2, 2), (0,)), ((4, 16, 16), (0, 2)), ((3, 8, 0), (1,))],
)
def test_other_axes_at_every_level(
    shape: tuple[int, ...], axes: tuple[int, ...], level: str
) -> None:
    for dtype, name in ((complex64, "c8"), (complex128, "c16")):
        graph = traced(lambda x: (fft(x, axes), fft(x, axes, True)), TensorType(shape, dtype))
        assert is_own(graph, level)
        check_levels(graph, [random(shape, name)], machine=machine(level))


def test_how_many_lines_there_are_may_be_unknown() -> None:
    graph = traced(lambda x: rfft(x, 1), TensorType((sym("n"), 64), float32))
    assert is_own(graph)
    columns = traced(lambda x: fft(x, (1, 2)), TensorType((sym("n"), 6, 16), complex64))
    assert is_own(columns)
    for count in (0, 1, 3):
        check_levels(graph, [random((count, 64), "f4")], {"n": count})
        check_levels(columns, [random((count, 6, 16), "c8")], {"n": count})


def four(fft: Any, size: int) -> Callable[..., Any]:
    """The four functions of a module, of complex and of real lines."""

    def run(z: Any, x: Any) -> Any:
        half = z[..., : size // 2 + 1]
        return fft.fft(z), fft.ifft(z), fft.rfft(x), fft.irfft(half, n=size)

    return run


def lines(count: int, size: int, wide: bool = False) -> tuple[np.ndarray, np.ndarray]:
    """Complex and real lines."""
    names = ("c16", "f8") if wide else ("c8", "f4")
    return random((count, size), names[0]), random((count, size), names[1], 1)


def own(size: int, *given: np.ndarray) -> list[np.ndarray]:
    """What compiled code gives."""
    return [np.asarray(y) for y in ts.jit(four(ts.fft, size))(*map(ts.asarray, given))]


@pytest.mark.parametrize("wide", [False, True], ids=["single", "double"])
def test_errors_are_those_of_the_library(wide: bool) -> None:
    """Root mean squares of lines of all sizes, against extended precision."""
    ratios: list[float] = []
    for size in SIZES:
        z, x = lines(20, size, wide)
        run = four(scipy.fft, size)
        exact = run(z.astype(np.clongdouble), x.astype(np.longdouble))
        for found, theirs, want in zip(own(size, z, x), run(z, x), exact, strict=True):
            assert found.dtype == theirs.dtype
            errors = [np.sqrt(np.mean(np.abs(y - want) ** 2)) for y in (found, theirs)]
            assert errors[0] < (4e-16 if wide else 2e-7) * np.sqrt(np.mean(np.abs(want) ** 2))
            ratios.append(float(errors[0] / errors[1]))
    assert np.mean(ratios) < 1.05
    assert max(ratios) < 1.4


@pytest.mark.parametrize("wide", [False, True], ids=["single", "double"])
def test_errors_of_several_axes(wide: bool) -> None:
    ratios: list[float] = []
    for shape, axes in (((3, 60, 50), (1,)), ((64, 33), (0,)), ((32, 64), (0, 1))):
        x = random(shape, "c16" if wide else "c8")
        exact = scipy.fft.fftn(x.astype(np.clongdouble), axes=axes)
        found = np.asarray(ts.jit(partial(ts.fft.fftn, axes=axes))(ts.asarray(x)))
        theirs = scipy.fft.fftn(x, axes=axes)
        errors = [np.sqrt(np.mean(np.abs(y - exact) ** 2)) for y in (found, theirs)]
        ratios.append(float(errors[0] / errors[1]))
    assert max(ratios) < 1.25
    assert np.mean(ratios) < 1.1


@pytest.mark.parametrize("level", supported_levels())
def test_every_level_of_machines(level: str) -> None:
    for size in (200, 480):
        z, x = lines(2, size)
        exact = four(scipy.fft, size)(z.astype(np.complex128), x.astype(np.float64))
        with config.update(cpu_level=level):
            for found, want in zip(own(size, z, x), exact, strict=True):
                assert np.abs(found - want).max() < 1e-6 * np.abs(want).max()


def test_lines_do_not_depend_on_their_batch_or_on_threads() -> None:
    z, x = lines(50, 1024)
    with config.update(threads=1):
        alone = own(1024, z, x)
    with config.update(threads=3):
        for a, b in zip(own(1024, z, x), alone, strict=True):
            np.testing.assert_array_equal(a, b)
    for k in (0, 49):
        for a, b in zip(own(1024, z[k], x[k]), alone, strict=True):
            np.testing.assert_array_equal(a, b[k])
    columns = ts.jit(partial(ts.fft.fft, axis=0))
    z = random((1024, 50), "c8")
    with config.update(threads=1):
        alone = np.asarray(columns(ts.asarray(z)))
    with config.update(threads=3):
        np.testing.assert_array_equal(np.asarray(columns(ts.asarray(z))), alone)
    for part in (slice(0, 3), slice(47, 50), slice(3, 40)):
        few = np.asarray(columns(ts.asarray(np.ascontiguousarray(z[:, part]))))
        np.testing.assert_array_equal(few, alone[:, part])


def test_the_imaginary_parts_of_the_ends_are_not_read() -> None:
    x = random((2, 129), "c8")
    y = x.copy()
    y[:, [0, -1]] = x[:, [0, -1]].real + np.array(complex(0, np.inf), "c8")
    f = ts.jit(partial(ts.fft.irfft, n=256))
    np.testing.assert_array_equal(np.asarray(f(ts.asarray(x))), np.asarray(f(ts.asarray(y))))


def test_accesses_are_checked() -> None:
    z, x = lines(3, 200, wide=True)
    with config.update(debug_bounds=True):
        for found, want in zip(own(200, z, x), four(scipy.fft, 200)(z, x), strict=True):
            np.testing.assert_allclose(found, want, rtol=1e-12, atol=1e-12)
        both = np.asarray(ts.jit(ts.fft.fft2)(ts.asarray(z[:, :48].reshape(3, 3, 16))))
        np.testing.assert_allclose(both, np.fft.fft2(z[:, :48].reshape(3, 3, 16)), atol=1e-12)


def test_derivatives_and_batches_of_code() -> None:
    x, w = random((3, 64), "f8"), random((64,), "f8", 1)

    def filtered(x: Any) -> Any:
        return ts.fft.irfft(ts.fft.rfft(x) * ts.fft.rfft(ts.asarray(w)), n=64)

    rows = np.stack([np.roll(w, k) for k in range(64)])
    np.testing.assert_allclose(np.asarray(ts.jit(filtered)(ts.asarray(x))), x @ rows, atol=1e-12)
    np.testing.assert_allclose(
        np.asarray(ts.jit(ts.vmap(filtered, in_axes=1, out_axes=1))(ts.asarray(x.T.copy()))),
        (x @ rows).T,
        atol=1e-12,
    )
    pull = ts.jit(ts.grad(lambda x: ts.sum(filtered(x) ** 2)))
    np.testing.assert_allclose(np.asarray(pull(ts.asarray(x))), 2 * x @ rows @ rows.T, atol=1e-11)


def test_which_calls_remain() -> None:
    """Odd lines of real numbers, primes above 13, short and long lines."""
    c = complex64
    for shape, axes, own in (
        ((64,), (0,), True),
        ((64, 3), (0,), True),
        ((3, 64), (0, 1), True),
        ((7, 64), (0, 1), True),
        ((17, 64), (0, 1), False),
        ((3, 4), (0, 1), True),
        ((3, 2), (0, 1), False),
        ((1 << 14, 3), (0,), False),
        ((7,), (0,), False),
        ((7 * 16,), (0,), True),
        ((17 * 16,), (0,), False),
        ((1 << 17,), (0,), False),
        ((0, 64), (1,), True),
    ):
        graph = traced(partial(fft, axes=axes), TensorType(shape, c))
        assert is_own(graph) is own, shape
    wide = [is_own(traced(lambda x: fft(x, (0,)), TensorType((n,), complex128)))
            for n in (1 << 15, 1 << 16)]  # fmt: skip
    assert wide == [True, False]
    for size, own in ((65, False), (64, True), (1 << 17, True)):
        graph = traced(partial(rfft, axis=0), TensorType((size,), float32))
        assert is_own(graph) is own, size
    assert "transforms of lines with f32[1024]" in str(
        ts.jit(ts.fft.rfft).lower(ts.ones(1024)).kernels()
    )


def test_functions_that_are_finished_have_modules_of_their_own() -> None:
    with ts.config.update(debug_bounds=False):  # a program with checks is one module
        lowered = ts.jit(lambda x: ts.fft.rfft(x + 1)).lower(ts.ones((4, 64)))
        *modules, entry = lowered.modules
    (kernels,) = [m for m in modules if m.passes != "none"]
    (code,) = [m for m in modules if "define hidden void @rfft_lines_32_f32" in m.text]
    assert [m.is_glue for m in (kernels, code, entry)] == [False, False, True]
    defined = [line for line in kernels.text.splitlines() if line.startswith("define")]
    assert len(defined) == 1
    source = lowered._source(code)
    assert source.passes == "none"
    assert source.key() != replace(source, passes="all").key()


def test_tables_of_roots() -> None:
    table = Roots(24, 3, 6, 4, float64)
    found = table.values().reshape(2, 2, 2, 4)
    for block, start in enumerate((0, 2)):
        for j in (1, 2):
            want = np.exp(-2j * np.pi * j * (start + np.arange(4)) / 24)
            np.testing.assert_allclose(found[block, j - 1, 0], want.real, atol=1e-16)
            np.testing.assert_allclose(found[block, j - 1, 1], want.imag, atol=1e-16)
    for n in (3, 8, 40, 1 << 15):
        values = Roots(n, 2, n, 1, float64).values().reshape(n, 2)
        angle = 8 * np.arctan(np.longdouble(1)) * np.arange(n) / n
        assert np.abs(values[:, 0] - np.cos(angle)).max() < 2e-16
        assert np.abs(values[:, 1] + np.sin(angle)).max() < 2e-16
        if n % 4 == 0:
            assert values[:: n // 4].tolist() == [[1, 0], [0, -1], [-1, 0], [0, 1]]
    for wrong in ((0, 2, 4, 4, float32), (8, 2, 2, 4, float32), (8, 2, 4, 4, complex64)):
        with pytest.raises(VerifyError):
            Roots(*wrong)
