"""Functions that vanish agree at every level, also where an underflow is not computed as it takes
long."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import tessera as ts
import tessera.nn
from tessera.target.machine import machine
from tests.differential.levels import check_levels
from tests.schedule.lowering import traced, type_of

FUNCTIONS: dict[str, Any] = {
    "exp": ts.exp,
    "exp2": lambda x: ts.exp2(x),
    "sigmoid": tessera.nn.sigmoid,
    "erfc": lambda x: ts.erfc(x),
    "pow": lambda x: ts.pow(3.5, x),
    "softmax": lambda x: tessera.nn.softmax(ts.reshape(x, (5, 18)), axis=-1),
}


@pytest.mark.skipif(machine("host").arch != "x86-64", reason="others have no such processors")
@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_levels(name: str, dtype: str) -> None:
    ends = [-np.inf, np.inf, np.nan, -1e9, 1e9, -1080, -746, -745, -150, -104, -103, -90, 0.0, 28]
    rest = np.linspace(-120, 120, 76)
    x = np.concatenate([ends, rest]).astype(getattr(ts, dtype).np)
    graph = traced(FUNCTIONS[name], type_of(x))
    host = machine("host")
    assert not replace(host, llvm_cpu="znver4").assists
    for one in (host, replace(machine("x86-64-v3"), name="v3")):
        slow = replace(one, llvm_cpu="x86-64-v3")
        assert slow.assists
        for found in (one, slow):
            check_levels(graph, [x], machine=found)
