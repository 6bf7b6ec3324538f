"""Sums, extremes and searches along a middle axis: each plane is small, all together are not."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest

import tessera as ts
from tessera.dtypes import DType, bfloat16, float32, float64, int32
from tessera.schedule import read_in_order
from tessera.target.machine import machine
from tests.differential.levels import check_levels
from tests.schedule.lowering import traced, type_of

# A plane of [5, 140, 20] in float32 has 11200 bytes.
L2 = 20000
IN_ORDER = "rows read side by side"


def kernels(fn: Any, *args: np.ndarray, far: int = 1 << 24, least: int = 8) -> str:
    """What the kernels say, of results that agree at all levels."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(read_in_order, "LEAST_BYTES", least)
        patch.setattr(read_in_order, "SHORTEST", 8)
        patch.setattr(read_in_order, "FAR", far)
        graph = traced(fn, *map(type_of, args))
        small = replace(machine("host"), l2=L2)
        return str(check_levels(graph, list(args), machine=small).kernels())


def numbers(*shape: int, dtype: DType = float32) -> np.ndarray:
    return np.random.default_rng(0).integers(-20, 20, shape).astype(dtype.np)


@pytest.mark.parametrize("dtype", [float32, float64, bfloat16, int32])
@pytest.mark.parametrize("name", ["sum", "max", "min"])
def test_small_planes_of_a_large_operand(name: str, dtype: DType) -> None:
    fn = partial(getattr(ts, name), axis=1)
    assert IN_ORDER in kernels(fn, numbers(5, 140, 20, dtype=dtype))


def test_a_small_operand_is_not() -> None:
    assert IN_ORDER not in kernels(partial(ts.sum, axis=1), numbers(1, 140, 20))
    assert IN_ORDER not in kernels(partial(ts.sum, axis=1), numbers(5, 140, 20), least=1 << 12)


def test_searches_of_far_operands_only() -> None:
    x = numbers(5, 140, 20)
    for fn in (ts.argmax, ts.argmin):
        assert IN_ORDER not in kernels(partial(fn, axis=1), x)
        assert IN_ORDER in kernels(partial(fn, axis=1), x, far=L2)


def test_shorter_rows_of_deep_far_operands() -> None:
    registers = machine("host").registers * machine("host").vector_bits // 16
    columns = registers // 4 + 4
    deep, flat = numbers(3, 140, columns), numbers(3, 120, columns)
    long = {"far": L2, "least": 1 << 20}
    for fn in (ts.sum, ts.max):
        assert IN_ORDER in kernels(partial(fn, axis=1), deep, **long)
        assert IN_ORDER not in kernels(partial(fn, axis=1), flat, **long)
        assert IN_ORDER not in kernels(partial(fn, axis=1), deep[..., :-8].copy(), **long)
    # They have half of the registers.
    half = flat[..., : columns // 2 + 4].copy()
    assert IN_ORDER in kernels(partial(ts.argmax, axis=1), half, **long)


@pytest.mark.parametrize(("rows", "in_order"), [(1, True), (4, True), (5, False)])
def test_products_of_few_rows(rows: int, in_order: bool) -> None:
    found = kernels(ts.matmul, numbers(5, rows, 140), numbers(5, 140, 20))
    assert (IN_ORDER in found) == in_order


def test_gradients_and_batches() -> None:
    x = numbers(5, 140, 20)

    def loss(x: Any) -> Any:
        return ts.sum(ts.sum(x * x, axis=1) ** 2)

    assert IN_ORDER in kernels(ts.grad(loss), x)
    assert IN_ORDER in kernels(ts.vmap(partial(ts.sum, axis=0)), x)
