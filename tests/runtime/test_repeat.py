"""The loop over batches is native where a batch is large, and does what Python's loop does."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest

from tessera.ir import fortran
from tessera.ir.routines import run_routine
from tessera.runtime.repeat import PARAMETERS, repeat


@pytest.mark.parametrize("parameters", [PARAMETERS[0], 9, PARAMETERS[-1]])
def test_pointers_advance(parameters: int) -> None:
    seen: list[tuple[int, ...]] = []
    kind = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * parameters)
    function = kind(lambda *places: seen.append(places))
    address = ctypes.cast(function, ctypes.c_void_p).value
    assert address is not None
    starts, steps = [1000 * (k + 1) for k in range(parameters)], [*range(parameters)]
    repeat(address, 3, starts, steps)
    expected = [
        tuple(start + k * step for start, step in zip(starts, steps, strict=True))
        for k in range(3)
    ]
    assert seen == expected
    repeat(address, 0, starts, steps)
    assert len(seen) == 3


@pytest.mark.parametrize("count", [2 * fortran.FEW - 1, 203])
@pytest.mark.parametrize("dtype", ["f4", "f8", "c8", "c16"])
def test_large_batches_are_as_small_ones(
    dtype: str, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also those in parts, which threads share: each part has scratch memory of its own."""
    monkeypatch.setattr(fortran, "PART", 100)
    rng = np.random.default_rng(0)
    x = rng.normal(size=(count, 4, 4)).astype(dtype)
    if x.dtype.kind == "c":
        x = x + 1j * rng.normal(size=x.shape).astype(x.real.dtype)
    real = x.real.dtype
    shapes = {
        "lu": [(x.shape, x.dtype), (x.shape[:2], np.int32)],
        "qr": [(x.shape, x.dtype)] * 2,
        "eigh": [(x.shape[:2], real), (x.shape, x.dtype)],
        "svd": [(x.shape, x.dtype), (x.shape[:2], real), (x.shape, x.dtype)],
        "det": [(x.shape[:1], x.dtype)],
    }
    calls: list[object] = []

    def counted(*args: object) -> None:
        calls.append(args[-1])
        repeat(*args)  # pyright: ignore[reportArgumentType]

    for name, types in shapes.items():
        many, few = ([np.empty(*one) for one in types] for _ in range(2))
        monkeypatch.setattr(fortran, "_REPEAT", [counted])
        run_routine(name, [x], many, ())
        parts = 2 if name == "eigh" else 25
        assert {*calls} == {1 if count < 2 * fortran.FEW else parts}
        calls.clear()
        monkeypatch.setattr(fortran, "_REPEAT", [])
        run_routine(name, [x], few, ())
        for a, b in zip(many, few, strict=True):
            np.testing.assert_array_equal(a, b)
        one = [np.empty(shape[1:], kind) for shape, kind in types]
        run_routine(name, [x[3]], one, ())
        for a, b in zip(many, one, strict=True):
            np.testing.assert_array_equal(a[3], b)


def test_parts_of_large_matrices_are_the_librarys(monkeypatch: pytest.MonkeyPatch) -> None:
    """It has threads of its own for these."""
    seen: list[int] = []
    monkeypatch.setattr(fortran, "_REPEAT", [lambda *args: seen.append(args[-1])])
    for size, count in ((33, 64), (32, 64), (4, 15)):
        x = np.zeros((count, size, size))
        run_routine("svd", [x], [np.empty((count, size))], ())
    assert seen == [1, 8, 1]
    seen.clear()
    for size, count in ((17, 640), (16, 640)):
        x = np.zeros((count, size, size))
        run_routine("eigh", [x], [np.empty((count, size)), np.empty_like(x)], ())
    assert seen == [1, 2]
