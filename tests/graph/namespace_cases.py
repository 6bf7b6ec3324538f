"""What the tests of the array namespace share: samples, comparison with NumPy, the engine.

The namespace is only ops, so by default its functions are computed by the ops' own definitions,
which is exact and takes no compilation. TESSERA_TEST_ENGINE=native runs the same tests on compiled
code, TESSERA_TEST_ENGINE=gpu on a simulated GPU (`tests/fake_gpu.py`), TESSERA_TEST_ENGINE=cuda on
the first GPU that there is.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import tessera as ts
from tessera.graph.engine import installed
from tessera.graph.interp import NumpyEngine
from tests.fake_gpu import fake_gpu

INTEGERS = ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"]
FLOATS = ["float16", "bfloat16", "float32", "float64"]
COMPLEX = ["complex64", "complex128"]
NUMERIC = [*INTEGERS, *FLOATS, *COMPLEX]
ALL = ["bool", *NUMERIC]
SHAPES: list[tuple[int, ...]] = [(), (0,), (1,), (5,), (2, 3), (3, 0, 2), (2, 1, 3), (1, 7, 2, 1)]

TOLERANCE = {"float16": 2e-3, "bfloat16": 2e-2, "float32": 2e-6, "float64": 1e-14}
TOLERANCE |= {"complex64": 4e-6, "complex128": 1e-13}


@pytest.fixture(autouse=True)
def engine() -> Iterator[None]:
    """Computes ops outside of traces by their definitions."""
    dir(ts)  # loads everything, and with it the native engine
    if os.environ.get("TESSERA_TEST_ENGINE") == "native":
        yield
        return
    if os.environ.get("TESSERA_TEST_ENGINE") == "cuda":
        with ts.device("cuda:0"):
            yield
        return
    if os.environ.get("TESSERA_TEST_ENGINE") == "gpu":
        with _one_gpu(), ts.device("cuda:0"):
            yield
        return
    with by_definition():
        yield


@contextlib.contextmanager
def by_definition() -> Iterator[None]:
    """Ops outside of traces are computed by their definitions."""
    with installed(NumpyEngine()):
        yield


@contextlib.contextmanager
def _one_gpu() -> Iterator[None]:
    """The same simulated GPU for all tests, so that programs are compiled once."""
    if not _GPUS:
        found = fake_gpu()
        found.__enter__()
        _GPUS.append(found)
    yield


_GPUS: list[Any] = []


def dtype_of(name: str) -> Any:
    """The NumPy dtype of a name of ours."""
    return getattr(ts, name).np


def sample(name: str, shape: tuple[int, ...], seed: int = 0, low: float = -9) -> np.ndarray:
    """Elements of a dtype that are not too large to be exact in float16."""
    rng = np.random.default_rng([seed, *shape])
    if name == "bool":
        return np.asarray(rng.random(shape) < 0.5)
    if name.startswith("uint"):
        return np.asarray(rng.integers(0, 10, shape)).astype(dtype_of(name))
    if name.startswith("int"):
        return np.asarray(rng.integers(int(low), 10, shape)).astype(dtype_of(name))
    real = np.round(np.asarray(rng.uniform(low, 9, shape)) * 8) / 8
    if name.startswith("complex"):
        real = real + 1j * np.round(np.asarray(rng.uniform(-9, 9, shape)) * 8) / 8
    return np.asarray(real).astype(dtype_of(name))


def host(x: Any) -> np.ndarray:
    """The elements of a result."""
    assert isinstance(x, ts.Array), type(x)
    return np.asarray(x)


def same(found: Any, wanted: Any, dtype: str | None = None, rtol: float | None = None) -> None:
    """A result has the elements of an array of NumPy's, and a dtype: by default its own."""
    data = host(found)
    if _GPUS:
        assert str(found.device) == "cuda:0"
    wanted = np.asarray(wanted)
    name = dtype or wanted.dtype.name
    assert found.dtype.full_name == name
    assert data.shape == wanted.shape
    if data.dtype.kind in "biu":
        np.testing.assert_array_equal(data, wanted)
        return
    wide: Any = np.complex128 if data.dtype.kind == "c" else np.float64
    tolerance = TOLERANCE[name] if rtol is None else rtol
    with np.errstate(all="ignore"):
        np.testing.assert_allclose(
            data.astype(wide), wanted.astype(wide), rtol=tolerance, atol=tolerance
        )
