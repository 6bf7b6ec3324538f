"""Places of extremes as a GPU finds them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tessera.dtypes import DType, bfloat16, float32, float64, int32, uint8
from tessera.graph.ops.elementwise import mul
from tessera.graph.ops.reduce import argmax, argmin
from tessera.ir.intexpr import sym
from tessera.schedule import heuristics_gpu
from tessera.tile import ops as t
from tests.pairs import every_pair
from tests.schedule.lowering import typed
from tests.tile.gpu_running import check_gpu, ops_of


@every_pair(
    ("dtype", [bfloat16, float32, float64, int32, uint8]),
    ("fn", [argmax, argmin]),
    ("shape", [(300, 9), (9, 300), (1, 1), (5, 32)]),
)
def test_first_of_equal_elements(fn: Any, dtype: DType, shape: tuple[int, ...]) -> None:
    x = np.random.default_rng(0).integers(0, 4, shape).astype(dtype.np)
    for axis in (0, 1):
        check_gpu(lambda x, axis=axis: fn(x, axis), typed(*shape, dtype=dtype), inputs=[x])


def test_a_pair_of_value_and_place_is_one_reduction() -> None:
    x = np.arange(800, dtype=np.float32).reshape(2, 400)
    module = check_gpu(lambda x: argmax(x, 1), typed(2, 400), inputs=[x])
    (op,) = ops_of(module, t.ArgReduce)
    assert op.index.type.dtype is int32
    assert not ops_of(module, t.Reduce)
    module = check_gpu(lambda x: argmax(x, 1), typed(2, sym("N")), inputs=[x])
    assert len(ops_of(module, t.ArgReduce)) == 2


@pytest.mark.parametrize("fn", [argmax, argmin])
def test_not_a_number_and_infinities(fn: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heuristics_gpu, "MAX_ROW", 8)
    monkeypatch.setattr(heuristics_gpu, "ROW_STEP", 8)
    x = np.full((4, 37), -np.inf if fn is argmax else np.inf, np.float32)
    x[1, 20], x[2, 5:9], x[3, 36] = np.nan, 1.0, np.nan
    check_gpu(lambda x: fn(x, 1), typed(4, 37), inputs=[x])
    check_gpu(lambda x: fn(mul(x, x), 0), typed(4, 37), inputs=[x])
