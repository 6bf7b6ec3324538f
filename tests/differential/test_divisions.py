"""Quotients and remainders in vectors: bit by bit those of NumPy, at every level."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tessera as ts
from tessera.runtime.memory import pointer
from tessera.target.machine import supported_levels

LEVELS = [name for name in ("x86-64", "x86-64-v3", "x86-64-v4") if name in supported_levels()]
INTEGERS = ["int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"]
SPECIAL = [0.0, -0.0, 1, -1, 2, 3, 0.1, 0.3, np.inf, -np.inf, np.nan, 1e-45, -1e-45, 3e38, 1e30]


def both(x: Any, y: Any) -> Any:
    return x // y, x % y


def run(fn: Callable[..., Any], level: str, *inputs: np.ndarray) -> list[np.ndarray]:
    lowered = ts.jit(fn).lower(*inputs, machine=level)
    found = lowered.executable().run([pointer(x) for x in inputs], [])
    return [np.asarray(part) for part in found]


def expected(x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """NumPy's, but a quotient of integers by 0 is 0, and the quotient beside an infinity is that of
    real numbers."""
    with np.errstate(all="ignore"):
        quotient, remainder = np.floor_divide(x, y), np.remainder(x, y)
        if x.dtype.kind == "f":
            endless = np.isinf(x) | np.isinf(y)
            return np.where(endless, x / y, quotient), remainder
    return np.where(y == 0, 0, quotient), np.where(y == 0, 0, remainder)


def check_bits(found: np.ndarray, wanted: np.ndarray) -> None:
    """NaN may have any sign."""
    bits = np.dtype(f"u{found.itemsize}")
    same = (found.view(bits) == wanted.view(bits)) | (np.isnan(found) & np.isnan(wanted))
    assert same.all()


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("dtype", INTEGERS)
def test_integers(dtype: str, level: str) -> None:
    """All bytes by all bytes; of others those at the ends, and beside multiples of a divisor."""
    info, rng = np.iinfo(dtype), np.random.default_rng(1)
    size = 1 << 16
    if info.bits == 8:
        byte = np.arange(info.min, info.max + 1, dtype=dtype)
        x, y = [np.ascontiguousarray(part.ravel()) for part in np.meshgrid(byte, byte)]
    else:
        x, y = [rng.integers(info.min, info.max, size, dtype, endpoint=True) for _ in range(2)]
        few = rng.integers(max(info.min, -20), 20, size).astype(dtype)
        y = np.where(rng.random(size) < 0.4, few, y)
        ends = np.array([info.min, info.max, info.max // 2, 0, 1], dtype)
        x = np.where(rng.random(size) < 0.2, rng.choice(ends, size), x)
        near = y * rng.integers(0, 9, size).astype(dtype) - rng.integers(0, 2, size).astype(dtype)
        x = np.where(rng.random(size) < 0.3, near, x)
    for found, wanted in zip(run(both, level, x, y), expected(x, y), strict=True):
        np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_floats(dtype: str, level: str) -> None:
    """Any bits, usual numbers, quotients near whole ones, large ones, and what is special."""
    rng, size = np.random.default_rng(2), 20000
    kind = np.dtype(dtype)
    word = np.dtype(f"u{kind.itemsize}")
    any_bits = [
        rng.integers(0, np.iinfo(word).max, size, word, endpoint=True).view(kind) for _ in range(2)
    ]
    usual = (rng.standard_normal(size) * 100).astype(kind)
    spread = (rng.standard_normal(size) * np.exp(rng.uniform(-20, 20, size))).astype(kind)
    factor = rng.integers(-50, 50, size).astype(kind)
    unit = rng.choice([0.1, 0.3, 0.7, 1.1, 7.3], size).astype(kind)
    special = np.array(SPECIAL, kind)
    cases = [
        any_bits, (usual, spread), (spread, usual), (factor * unit, unit),
        (np.nextafter(factor * unit, kind.type(99)), unit), (usual, np.full_like(usual, 6.2831855)),
        (spread, np.ones_like(spread)),
        (np.repeat(special, len(special)), np.tile(special, len(special))),
    ]  # fmt: skip
    for x, y in cases:
        for found, wanted in zip(run(both, level, x, y), expected(x, y), strict=True):
            check_bits(found, wanted)


@pytest.mark.parametrize("level", LEVELS)
def test_vectors_have_no_division_of_integers(level: str) -> None:
    for dtype in (ts.int8, ts.uint16, ts.int32, ts.uint32):
        x = np.ones(64, dtype.np)
        text = ts.jit(both).lower(x, x, machine=level).llvm
        assert "fdiv" in text
        assert "sdiv <" not in text
        assert "udiv <" not in text


def test_usual_remainders_call_nothing() -> None:
    """The C library's is behind a branch."""
    x = np.ones(64, np.float32)
    lowered = ts.jit(lambda x, y: x % y).lower(x, x, machine="x86-64-v3")
    assert "target.if" in str(lowered.target)
    assert lowered.llvm.count("fmod") + lowered.llvm.count("frem") > 0
