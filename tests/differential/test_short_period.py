"""Short rows that share a row: several of them are one, at every level."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

import tessera as ts
from tessera import dtypes as dt
from tessera.compile import Lowered
from tessera.dtypes import DType, float32
from tessera.graph.transforms.evaluate import trace_function
from tessera.ir.types import TensorType
from tessera.schedule import short_period
from tessera.schedule.rebuild import kernels
from tessera.target.machine import machine, supported_levels
from tests.differential.levels import check_levels, graph_of, values

LEVELS = [name for name in ("x86-64", "x86-64-v3") if name in supported_levels()]


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Arrays of a few rows are worth it."""
    monkeypatch.setattr(short_period, "LEAST", 1)


def repeats(lowered: Lowered) -> int:
    return sum(kernel.label == "repeat" for kernel in kernels(lowered.schedule.body))


def check(
    fn: Callable[..., Any], shapes: Sequence[tuple[int, ...]], count: int, dtype: DType = float32,
    level: str = "x86-64-v3",
) -> None:  # fmt: skip
    graph, inputs = graph_of(fn, shapes, dtype), values(shapes, dtype)
    assert repeats(check_levels(graph, inputs, machine=machine(level))) == count


def scaled(x: Any, m: Any, s: Any) -> Any:
    return (x - m) / (s * s + 1)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("length", [3, 5, 6, 7])
def test_lengths(length: int, level: str) -> None:
    check(scaled, ((3, 64, length), (length,), (length,)), 2, level=level)


@pytest.mark.parametrize("dtype", [dt.float64, dt.bfloat16, dt.int32])
def test_dtypes(dtype: DType) -> None:
    check(lambda x, m: x * m + x, ((4, 96, 3), (3,)), 1, dtype)


def test_bytes() -> None:
    types = [TensorType((5, 64, 3), dt.uint8), TensorType((3,), float32)]
    graph, _ = trace_function(
        lambda x, m: ts.astype(x, float32) / 255 - m, types, "jit", "bytes"
    )
    rng = np.random.default_rng(0)
    inputs = [rng.integers(0, 256, (5, 64, 3)).astype(np.uint8), *values(((3,),))]
    assert repeats(check_levels(graph, inputs, machine=machine("x86-64-v3"))) == 1


def test_what_differs_from_plane_to_plane() -> None:
    def fn(x: Any, m: Any) -> Any:
        return x * m, x - m

    check(fn, ((4, 7, 32, 3), (4, 1, 1, 3)), 1)


def test_in_a_loop() -> None:
    def fn(x: Any, m: Any) -> Any:
        return ts.fori_loop(0, 3, lambda k, x: ts.sort(x, axis=1) * m, x)

    check(fn, ((3, 64, 3), (3,)), 1)


@pytest.mark.parametrize(
    ("fn", "shapes"),
    [
        (lambda x, m: x * m, ((61, 2, 3), (3,))),  # few rows beside each other
        (lambda x, m: x * m, ((3, 64, 16), (16,))),  # whole vectors
        (lambda x, m: x * m, ((3, 64, 3), (3, 64, 1))),  # of each row one
        (lambda x, m: x[:, ::2] * m, ((3, 128, 3), (3,))),  # rows that lie apart
        (lambda x, m: ts.sum(x * m, axis=-1), ((3, 64, 3), (3,))),
        (lambda x, m: x * m * ts.arange(64)[:, None], ((3, 64, 3), (3,))),
    ],
)
def test_others_stay(fn: Any, shapes: Any) -> None:
    check(fn, shapes, 0)


def test_masks_do_as_well() -> None:
    check(scaled, ((3, 64, 3), (3,), (3,)), 0, level="x86-64-v4")


def test_few_rows_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(short_period, "LEAST", 32)
    check(lambda x, m: x * m, ((3, 64, 3), (3,)), 0)
