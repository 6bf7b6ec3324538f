"""Searches over the rows of an operand that is read in order, at every level."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest

import tessera as ts
from tessera.dtypes import DType, bfloat16, float16, float32, float64, int8, int64, uint32
from tessera.schedule import read_in_order
from tessera.target.machine import machine
from tests.differential.levels import check_levels
from tests.schedule.lowering import traced, type_of

DTYPES = (float32, float64, float16, bfloat16, int8, int64, uint32)


@pytest.fixture(autouse=True)
def large(monkeypatch: pytest.MonkeyPatch) -> None:
    """Short rows are long."""
    monkeypatch.setattr(read_in_order, "LEAST_BYTES", 8)


def check(x: np.ndarray, axis: int = 0, level: str = "host") -> None:
    small = replace(machine(level), l2=64)
    for fn in (ts.argmax, ts.argmin):
        graph = traced(partial(fn, axis=axis), type_of(x))
        lowered = check_levels(graph, [x], machine=small)
        assert f"{read_in_order.ROWS} rows read side by side" in str(lowered.kernels())


@pytest.mark.parametrize("shape", [(64, 70), (71, 16), (130, 33)])
@pytest.mark.parametrize("dtype", DTYPES)
def test_dtypes(shape: tuple[int, int], dtype: DType) -> None:
    check(np.random.default_rng(0).integers(0, 50, shape).astype(dtype.np))


@pytest.mark.parametrize("level", ["x86-64", "x86-64-v3"])
def test_machines(level: str) -> None:
    check(np.random.default_rng(0).normal(size=(100, 20)).astype(np.float32), 0, level)


def test_arrays_of_three_axes() -> None:
    check(np.random.default_rng(0).normal(size=(3, 100, 20)).astype(np.float32), 1)
    check(np.random.default_rng(0).normal(size=(67, 3, 20)).astype(np.float32), 0)


def test_special_values() -> None:
    x = np.zeros((70, 16), np.float32)
    x[:, 0], x[:, 1] = -np.inf, np.inf
    x[5, 2] = x[33, 2] = x[69, 2] = np.nan
    x[69, 3], x[3, 3] = np.nan, np.inf
    x[:, 4] = np.nan
    x[::2, 5] = -0.0
    x[68, 6], x[69, 6] = 7, 7
    # Rows 1 and 8 are read in other steps, the later one first; so are the rows of ties and of NaN.
    x[1, 8] = x[8, 8] = x[16, 8] = 5
    x[9, 9] = x[2, 9] = np.nan
    x[2, 10], x[9, 10] = np.nan, np.inf
    x[2, 11], x[9, 11] = np.inf, np.nan
    x[:, 12] = np.where(np.arange(70) % 3 == 1, 3, -3)
    x[16, 7], x[17, 7], x[64, 7] = -7, -8, -8
    check(x)
    check(x, level="x86-64-v3")
    check(x, level="x86-64")
    found: Any = ts.jit(lambda x: ts.argmax(x, axis=0))(x)
    np.testing.assert_array_equal(np.asarray(found), x.argmax(0))
